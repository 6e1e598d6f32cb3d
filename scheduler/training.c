#include "scheduler/training.h"

#include "common/onnx.h"
#include "common/plan.h"
#include "common/samples.h"
#include "common/train_info.h"
#include "scheduler/model.h"
#include "scheduler/policy.h"
#include "scheduler/solve.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void training_set_free(struct training_set *set)
{
    free(set->kept);
    *set = (struct training_set){0};
}

static void free_wire(struct wire_training *w)
{
    for (size_t i = 0; i < w->params.n; i++)
        free(w->params.at[i].uses.at);
    free(w->params.at);
    free(w->states.at);
    *w = (struct wire_training){0};
}

void training_free(struct training *t)
{
    if (!t)
        return;
    train_config_fini(&t->config);
    model_free(t->model);
    free(t->of);
    free(t->warning);
    free_wire(&t->wire);
    training_set_free(&t->saved);
    for (int i = 0; i < TRAINING_COMING; i++)
        training_set_free(&t->coming[i]);
    free(t);
}

double training_step_ms(const struct training *t)
{
    return t->n_ms > 1 ? policy_middle(t->ms, YK_MIN(t->n_ms, TRAINING_MS)) : 0;
}

char *training_config_text(const struct train_config *c)
{
    struct yk_buf b = {0};
    struct json_out o;
    json_out_init(&o, &b, 0);
    train_config_write(c, &o);
    yk_buf_add(&b, "", 1);
    return b.failed ? yk_xstrdup("{}") : (char *)b.data;
}

/* ---- the training graph ---- */

/* A value of the graph as grad made it, in the graph as its skeleton gives it to agents. */
static yk_err find_value(
    const struct graph *made, const struct graph *read, int32_t value, int64_t *out, struct yk_diag *why)
{
    *out = graph_find_value(read, made->values[value].name);
    return *out == YK_ABSENT
               ? yk_fail(why, YK_INTERNAL, "'%.80s' is lost in the training graph's skeleton", made->values[value].name)
               : YK_OK;
}

static yk_err take_info(struct training *t, const struct graph *made, const struct grad_info *info, struct yk_diag *why)
{
    struct graph *read = t->model->graph;
    struct wire_training *w = &t->wire;
    yk_err err = YK_OK;
    if (read->n_nodes != made->n_nodes || read->n_outputs != made->n_outputs || read->n_inputs != made->n_inputs)
        return yk_fail(why, YK_INTERNAL, "the training graph's skeleton has other nodes");
    w->params.at = yk_xalloc(((size_t)info->n_params + 1) * sizeof *w->params.at);
    for (int32_t i = 0; i < info->n_params && !err; i++) {
        const struct grad_param *p = &info->params[i];
        if (!p->trainable)
            continue;
        struct wire_param *to = &w->params.at[w->params.n++];
        to->uses.at = yk_xalloc(((size_t)p->n_uses + 1) * sizeof *to->uses.at);
        to->uses.n = (size_t)p->n_uses;
        for (int32_t u = 0; u < p->n_uses; u++)
            to->uses.at[u] = p->uses[u];
        t->trained_bytes += made->values[p->value].bytes;
        err = find_value(made, read, p->value, &to->value, why);
    }
    w->states.at = yk_xalloc(((size_t)info->n_states + 1) * sizeof *w->states.at);
    for (int32_t i = 0; i < info->n_states && !err; i++) {
        struct wire_state *to = &w->states.at[w->states.n++];
        to->output = info->states[i].output;
        err = find_value(made, read, info->states[i].value, &to->value, why);
    }
    w->loss = info->loss_output;
    w->scores = info->logits_output;
    w->outputs = info->model_output;
    w->n_outputs = info->n_model_outputs;
    w->first_backward = info->first_backward;
    w->target = info->target_input;
    w->divisor = info->divisor_input;
    w->stay = made->n_outputs - info->model_output - info->n_model_outputs;
    if (!err)
        err = train_info_read(w, read, &t->info, why); /* as agents will */
    t->info.first_loss = t->first_loss = info->first_loss;
    t->first_backward = info->first_backward;
    t->of = yk_xalloc(((size_t)made->n_nodes + 1) * sizeof *t->of);
    for (int32_t i = 0; i < made->n_nodes; i++) {
        t->of[i] = info->of[i];
        t->n_forward = YK_MAX(t->n_forward, info->of[i] + 1);
    }
    if (info->warning)
        t->warning = yk_xstrdup(info->warning);
    return err;
}

yk_err training_make(struct training *t, const char *dir, const char *blob_hash, passes_eval eval, void *eval_arg,
    struct model_blob **slices, size_t *n_slices, struct yk_diag *why)
{
    struct graph *forward = NULL, *made = NULL;
    struct grad_info info = {0};
    struct grad_options o;
    char *path = yk_xasprintf("%s/%s", dir, blob_hash);
    *slices = NULL;
    *n_slices = 0;
    train_config_grad(&t->config, &o);
    yk_err err = onnx_import(path, &forward, NULL, why);
    if (!err)
        err = passes_train(forward, eval, eval_arg, why);
    if (!err)
        err = samples_in_front(forward, why);
    if (!err)
        err = grad_build(forward, &o, &made, &info, why);
    if (!err)
        err = model_of_graph(made, dir, &t->model, slices, n_slices, why);
    if (!err)
        err = take_info(t, made, &info, why);
    if (err) {
        model_slices_free(*slices, *n_slices);
        *slices = NULL;
        *n_slices = 0;
    }
    graph_close(made);
    graph_close(forward);
    free(path);
    return err;
}

void training_adopt(struct training *t, struct training *made)
{
    struct training before = *t;
    t->model = made->model;
    t->of = made->of;
    t->n_forward = made->n_forward;
    t->first_loss = made->first_loss;
    t->first_backward = made->first_backward;
    t->wire = made->wire;
    t->info = made->info;
    t->trained_bytes = made->trained_bytes;
    t->warning = made->warning;
    made->model = before.model;
    made->of = before.of;
    made->wire = before.wire;
    made->warning = before.warning;
    training_free(made);
}

yk_err training_export(const char *dir, const char *blob_hash, const char *const *names, const void *const *data,
    const int64_t *bytes, int32_t n, const char *file, struct yk_diag *why)
{
    struct graph *g = NULL;
    struct yk_buf out = {0};
    char *from = yk_xasprintf("%s/%s", dir, blob_hash), *to = yk_xasprintf("%s/%s", dir, file);
    yk_err err = onnx_import(from, &g, NULL, why);
    for (int32_t i = 0; i < n && !err; i++) {
        int32_t v = graph_find_value(g, names[i]);
        if (v == YK_ABSENT || g->values[v].kind != VALUE_WEIGHT || !data[i])
            continue;
        if (g->values[v].bytes != bytes[i])
            err = yk_fail(why, YK_INTERNAL, "'%.80s' has %lld bytes in the model and %lld in the checkpoint", names[i],
                (long long)g->values[v].bytes, (long long)bytes[i]);
        g->values[v].data = data[i];
        g->values[v].has_hash = false;
        g->values[v].aligned = true;
    }
    if (!err)
        err = passes_eval_mode(g, why);
    if (!err)
        err = onnx_export(g, &out, why);
    if (!err)
        err = model_write_file(to, out.data, out.len, why);
    graph_close(g);
    yk_buf_free(&out);
    free(from);
    free(to);
    return err;
}

/* ---- halves ---- */

void training_for_solver(const struct training *t, struct solve_training *out)
{
    bool sgd = t->config.optimizer == TRAIN_SGD;
    *out = (struct solve_training){.of = t->of,
        .info = &t->info,
        .n_forward = t->n_forward,
        .first_loss = t->first_loss,
        .first_backward = t->first_backward,
        .state_bytes = sgd ? t->config.momentum > 0 : 2};
}

/* Node i and the one before it belong to the same forward node. */
static yk_err torn(const struct training *t, int32_t i, int32_t before, int32_t behind, struct yk_diag *why)
{
    const struct node *n = t->model->graph->nodes;
    int32_t first = i - 1, last = i;
    while (first > 0 && t->of[first - 1] == t->of[i])
        first--;
    while (last + 1 < t->first_loss && t->of[last + 1] == t->of[i])
        last++;
    return yk_fail(why, YK_INVAL,
        "nodes %d (%s) and %d (%s) belong together, but are in stages %d and %d: end a stage in front of node %d or "
        "behind node %d",
        i - 1, n[i - 1].op->name, i, n[i].op->name, before, behind, first, last);
}

yk_err training_pairs(const struct training *t, const struct plan_pipeline *line, const int32_t *stage_of,
    int32_t *pair, struct yk_diag *why)
{
    const struct graph *g = t->model->graph;
    int32_t *home = yk_xalloc(((size_t)t->n_forward + 1) * sizeof *home); /* by forward node: its stage */
    bool *forward = yk_xalloc(((size_t)line->n_stages + 1) * sizeof *forward);
    yk_err err = YK_OK;
    for (int32_t s = 0; s < line->n_stages; s++)
        pair[s] = s;
    for (int32_t i = 0; i < t->n_forward; i++)
        home[i] = -1;
    for (int32_t i = 0; i < t->first_loss && !err; i++) {
        int32_t f = t->of[i];
        if (home[f] >= 0 && home[f] != stage_of[i])
            err = torn(t, i, home[f], stage_of[i], why);
        home[f] = stage_of[i];
        forward[stage_of[i]] = true;
    }
    for (int32_t i = t->first_loss; i < g->n_nodes && !err; i++) {
        int32_t s = stage_of[i], f = home[t->of[i]];
        if (s == f)
            continue;
        const char *agent = line->stages[f].agent;
        if (i < t->first_backward)
            err = yk_fail(why, YK_INVAL, "node %d (%s) of the loss is in stage %d: it belongs to stage %d", i,
                g->nodes[i].op->name, s, f);
        else if (strcmp(line->stages[s].agent, agent) != 0)
            err = yk_fail(why, YK_INVAL,
                "backward node %d (%s) is in stage %d on %s: it belongs to %s, which has node %d in stage %d", i,
                g->nodes[i].op->name, s, line->stages[s].agent, agent, t->of[i], f);
        else if (forward[s] || (pair[f] != f && pair[f] != s) || (pair[s] != s && pair[s] != f))
            err = yk_fail(why, YK_INVAL,
                "backward node %d (%s) is in stage %d: the backward nodes of stage %d make one stage, or are in it", i,
                g->nodes[i].op->name, s, f);
        pair[f] = s;
        pair[s] = f;
    }
    for (int32_t i = t->first_loss; i < g->n_nodes && !err; i++) { /* none is left in the forward stage itself */
        int32_t f = home[t->of[i]];
        if (i >= t->first_backward && stage_of[i] == f && pair[f] != f)
            err = yk_fail(why, YK_INVAL, "backward node %d (%s) is in stage %d, others of that stage are in stage %d",
                i, g->nodes[i].op->name, f, pair[f]);
    }
    free(home);
    free(forward);
    return err;
}

yk_err training_check(const struct training *t, const struct plan *plan, struct yk_diag *why)
{
    int32_t n = t->model->graph->n_nodes;
    int32_t *stage_of = yk_xalloc(((size_t)n + 1) * sizeof *stage_of);
    yk_err err = YK_OK;
    for (int32_t i = 0; i < plan->n_pipelines && !err; i++) {
        const struct plan_pipeline *line = &plan->pipelines[i];
        int32_t *pair = yk_xalloc(((size_t)line->n_stages + 1) * sizeof *pair);
        err = plan_stage_of(plan, i, n, stage_of, why);
        if (!err)
            err = training_pairs(t, line, stage_of, pair, why);
        free(pair);
    }
    free(stage_of);
    return err;
}

/* ---- sets as rows ---- */

void training_set_write(const struct training_set *set, const struct model *m, struct yk_buf *out)
{
    struct json_out o;
    json_out_init(&o, out, 0);
    json_open(&o, '[');
    for (int32_t i = 0; i < set->n_kept; i++) {
        const struct training_kept *k = &set->kept[i];
        json_open(&o, '{');
        json_put_key(&o, "value");
        json_put_str(&o, m->graph->values[k->value].name);
        json_put_key(&o, "slot");
        json_put_i64(&o, k->slot);
        json_put_key(&o, "hash");
        json_put_str(&o, k->hash);
        json_put_key(&o, "bytes");
        json_put_i64(&o, k->bytes);
        if (k->part[0]) {
            json_put_key(&o, "part");
            json_put_str(&o, k->part);
            json_put_key(&o, "at");
            json_put_i64(&o, k->at);
        }
        json_close(&o, '}');
    }
    json_close(&o, ']');
    yk_buf_add(out, "", 1);
}

yk_err training_set_read(const char *text, const struct model *m, struct training_set *out, struct yk_diag *why)
{
    struct json *doc = NULL;
    *out = (struct training_set){0};
    yk_err err = json_parse(text, strlen(text), &doc, why);
    if (err)
        return err;
    out->kept = yk_xalloc((json_len(doc) + 1) * sizeof *out->kept);
    for (size_t i = 0; i < json_len(doc) && !err; i++) {
        const struct json *row = json_at(doc, i);
        const char *name = NULL, *hash = NULL, *part = "";
        int64_t slot = 0;
        struct training_kept *k = &out->kept[out->n_kept++];
        if ((err = json_get_str(row, "value", true, &name, why)) ||
            (err = json_get_str(row, "hash", true, &hash, why)) ||
            (err = json_get_i64(row, "slot", true, -1, 64, &slot, why)) ||
            (err = json_get_i64(row, "bytes", true, 0, INT64_MAX, &k->bytes, why)) ||
            (err = json_get_str(row, "part", false, &part, why)) ||
            (err = json_get_i64(row, "at", false, 0, INT64_MAX, &k->at, why)))
            break;
        snprintf(k->part, sizeof k->part, "%s", part);
        k->slot = (int32_t)slot;
        k->value = graph_find_value(m->graph, name);
        if (k->value == YK_ABSENT || !hash_is_hex(hash))
            err = yk_fail(why, YK_FORMAT, "a checkpoint names '%.80s', which the training graph has not", name);
        else
            memcpy(k->hash, hash, sizeof k->hash);
    }
    json_free(doc);
    if (err)
        training_set_free(out);
    return err;
}
