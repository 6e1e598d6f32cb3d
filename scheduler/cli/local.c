#include "scheduler/cli/local.h"

#include "common/hash.h"
#include "common/log.h"
#include "common/onnx.h"
#include "common/passes.h"
#include "common/samples.h"
#include "kernels/fold.h"
#include "scheduler/cli/flags.h"
#include "scheduler/cli/tune.h"
#include "scheduler/solve_train.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PLAN_FILE_LIMIT ((size_t)64 << 20)

yk_err local_use_plan(
    struct cli *c, struct local *l, struct graph *g, const struct solve_training *training, struct yk_diag *why)
{
    struct json *doc = NULL;
    struct yk_buf skeleton = {0};
    yk_err err = onnx_export_skeleton(g, &skeleton, why); /* its hash is what a plan names */
    yk_buf_free(&skeleton);
    if (!err)
        err = json_load(c->o.plan, PLAN_FILE_LIMIT, &doc, why);
    if (err)
        return err;
    err = plan_from_json(doc, &l->plan, why);
    json_free(doc);
    if (!err && training)
        err = solve_train_complete(training, g, l->plan, why);
    if (!err)
        err = plan_check(l->plan, g, NULL, why);
    if (err)
        return yk_wrap(why, err, "%s", c->o.plan);
    if (!l->plan->forms)
        return YK_OK;
    if (c->o.tune)
        return yk_fail(
            why, YK_INVAL, "--tune: the forms are those of --plan=%s, there is nothing to choose", c->o.plan);
    l->forms = yk_xalloc(((size_t)g->n_nodes + 1) * sizeof *l->forms);
    for (int32_t i = 0; i < g->n_nodes; i++)
        l->forms[i] = l->plan->forms[i];
    return YK_OK;
}

int local_threads(const struct cli *c)
{
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    return c->o.threads > 0 ? (int)c->o.threads : cores > 0 ? (int)cores : 1;
}

/* Asked for by name, wrong answers end the command; one that hung is quarantined, and the others do the work. */
yk_err local_open_backends(struct cli *c, struct local *l, struct yk_diag *why)
{
    struct backends_config config = {.timeout_ms = c->o.backend_timeout_ms, .check_every = c->o.backend_check_every};
    yk_err err = pool_open(local_threads(c), &l->pool, why);
    if (!err)
        err = backends_open_with(c->o.backend, &config, l->pool, &l->backends, why);
    for (int i = 0; !err && i < l->backends.n_refused; i++) {
        if (l->backends.refused[i].hung)
            log_warn("%s; going on with the others", l->backends.refused[i].text);
        else
            err = yk_fail(why, YK_REFUSED, "%s", l->backends.refused[i].text);
    }
    return err;
}

/* --size into sizes and wanted. */
static yk_err given_sizes(const struct cli_opts *o, struct local *l, struct yk_diag *why)
{
    const struct graph *g = l->graph;
    l->sizes = yk_xalloc(((size_t)g->n_syms + 1) * sizeof *l->sizes);
    l->wanted = yk_xalloc(((size_t)g->n_syms + 1) * sizeof *l->wanted);
    for (int32_t i = 0; i < g->n_syms; i++)
        l->sizes[i] = 1;
    for (int i = 0; i < o->sizes.n; i++) {
        const char *text = o->sizes.at[i];
        int64_t n;
        size_t len;
        int32_t sym = 0;
        yk_err err = flags_size(text, &len, &n, why);
        if (err)
            return err;
        while (sym < g->n_syms && (strlen(g->syms[sym]) != len || memcmp(g->syms[sym], text, len) != 0))
            sym++;
        if (sym == g->n_syms)
            return yk_fail(why, YK_INVAL, "--size=%s: the model has no dimension of that name%s%s%s", text,
                g->n_syms ? "; it has '" : "", g->n_syms ? g->syms[0] : "",
                g->n_syms > 1 ? "' and others"
                : g->n_syms   ? "'"
                              : "");
        if (sym == l->batch_dim)
            return yk_fail(why, YK_INVAL, "--size=%s: that is the batch, which --batch or the inputs give", text);
        l->sizes[sym] = l->wanted[sym] = n;
    }
    return YK_OK;
}

yk_err local_open(struct cli *c, const char *path, struct local *l, struct yk_diag *why)
{
    struct yk_buf problems = {0};
    *l = (struct local){0};
    yk_err err = onnx_import(path, &l->graph, &problems, why);
    if (err && problems.len)
        fprintf(stderr, "%.*s", (int)problems.len, (const char *)problems.data);
    yk_buf_free(&problems);
    if (err)
        goto out;
    if ((err = passes_infer(l->graph, fold_eval, NULL, why)))
        goto out;
    if (c->o.plan && (err = local_use_plan(c, l, l->graph, NULL, why)))
        goto out;
    if ((err = local_open_backends(c, l, why)))
        goto out;
    l->batch_dim = graph_batch_dim(l->graph, &l->fixed_batch);
    l->tune = c->o.tune;
    err = given_sizes(&c->o, l, why);
out:
    return err;
}

yk_err local_agree(const struct local *l, struct yk_diag *why)
{
    for (int32_t i = 0; i < l->graph->n_syms; i++)
        if (l->wanted[i] && l->wanted[i] != l->sizes[i])
            return yk_fail(why, YK_INVAL, "--size=%s=%" PRId64 ": in the inputs it is %" PRId64, l->graph->syms[i],
                l->wanted[i], l->sizes[i]);
    return YK_OK;
}

yk_err local_all_given(const struct local *l, struct yk_diag *why)
{
    const struct graph *g = l->graph;
    for (int32_t i = 0; i < g->n_inputs; i++) {
        const struct value *v = &g->values[g->inputs[i]];
        for (int k = 0; k < v->rank; k++) {
            int32_t sym = v->dims[k].sym;
            if (sym >= 0 && sym != l->batch_dim && !l->wanted[sym])
                return yk_fail(why, YK_INVAL,
                    "dimension %d of input '%s' is '%s', whose size is not known: --size=%s=N, or --input", k, v->name,
                    g->syms[sym], g->syms[sym]);
        }
    }
    return YK_OK;
}

yk_err local_load(struct local *l, int64_t max_batch, struct yk_diag *why)
{
    if (l->batch_dim >= 0)
        l->sizes[l->batch_dim] = max_batch;
    else if (max_batch != l->fixed_batch)
        return yk_fail(why, YK_INVAL,
            "the model takes batches of exactly %lld, not %lld: export it with a dynamic batch",
            (long long)l->fixed_batch, (long long)max_batch);
    yk_err err = l->tune && !l->forms ? tune_forms(l, NULL, why) : YK_OK;
    if (err)
        return err;
    struct exec_config config = {.graph = l->graph,
        .forms = l->forms,
        .max_sizes = l->sizes,
        .input_shapes = l->input_shapes,
        .backends = &l->backends};
    exec_close(l->exec);
    l->exec = NULL;
    return exec_open(&config, &l->exec, why);
}

void local_renew(struct local *l, int64_t max_batch)
{
    int lost = 0;
    struct exec *e;
    for (int i = 0; i < l->backends.n; i++)
        lost += backends_lost(l->backends.at[i], NULL);
    if (lost == l->n_lost)
        return;
    l->n_lost = lost;
    int64_t batch = l->batch_dim >= 0 ? l->sizes[l->batch_dim] : 0;
    if (l->batch_dim >= 0)
        l->sizes[l->batch_dim] = max_batch;
    struct exec_config config = {.graph = l->graph,
        .forms = l->forms,
        .max_sizes = l->sizes,
        .input_shapes = l->input_shapes,
        .backends = &l->backends};
    struct yk_diag why;
    if (exec_open(&config, &e, &why) == YK_OK) {
        exec_close(l->exec);
        l->exec = e;
    } else {
        log_warn("going on with ref in place of a backend that was taken out: %s", why.text);
    }
    if (l->batch_dim >= 0)
        l->sizes[l->batch_dim] = batch;
}

void local_close(struct local *l)
{
    exec_close(l->exec);
    backends_close(&l->backends);
    pool_close(l->pool);
    plan_free(l->plan);
    free(l->forms);
    free(l->tuned);
    free(l->sizes);
    free(l->wanted);
    graph_close(l->graph);
}

static yk_err sizes_of_input(
    const struct graph *g, int32_t input, const struct shape *got, int64_t *sizes, int64_t *known, struct yk_diag *why)
{
    const struct value *v = &g->values[g->inputs[input]];
    char text[128];
    shape_text(got, text, sizeof text);
    if (v->dtype != got->dtype)
        return yk_fail(why, YK_INVAL, "input '%s' takes %s, its data are %s", v->name, dtype_name(v->dtype), text);
    if (v->rank < 0)
        return YK_OK;
    if (v->rank != got->rank)
        return yk_fail(why, YK_INVAL, "input '%s' takes %d dimensions, its data are %s", v->name, v->rank, text);
    for (int i = 0; i < v->rank; i++) {
        int32_t sym = v->dims[i].sym;
        if (sym >= 0 && known[sym] && sizes[sym] != got->dims[i])
            return yk_fail(why, YK_INVAL,
                "dimension %d of input '%s' is '%s', which is %" PRId64 " in input '%s', but its data are %s", i,
                v->name, g->syms[sym], sizes[sym], g->values[g->inputs[known[sym] - 1]].name, text);
        if (sym >= 0) {
            sizes[sym] = got->dims[i];
            known[sym] = input + 1;
        } else if (v->dims[i].value >= 0 && v->dims[i].value != got->dims[i]) {
            return yk_fail(why, YK_INVAL, "dimension %d of input '%s' is %" PRId64 ", its data are %s", i, v->name,
                v->dims[i].value, text);
        }
    }
    return YK_OK;
}

yk_err local_sizes(const struct graph *g, const struct shape *const *in, int64_t *sizes, struct yk_diag *why)
{
    int64_t *known = yk_xalloc(((size_t)g->n_syms + 1) * sizeof *known);
    yk_err err = YK_OK;
    for (int32_t i = 0; i < g->n_syms; i++)
        sizes[i] = 1;
    for (int32_t i = 0; !err && i < g->n_inputs; i++)
        if (in[i])
            err = sizes_of_input(g, i, in[i], sizes, known, why);
    free(known);
    return err;
}

yk_err local_microbatch(
    const struct cli *c, const struct plan *plan, int64_t fixed, int64_t batch, int64_t *out, struct yk_diag *why)
{
    int64_t asked = flags_microbatch(c);
    if (plan && asked && asked != plan->microbatch)
        return yk_fail(why, YK_INVAL, "--microbatch=%" PRId64 ", the plan has %" PRId64, asked, plan->microbatch);
    yk_err err = plan ? YK_OK : samples_split_check(batch, asked, fixed, why);
    if (!err)
        *out = plan ? plan->microbatch : fixed ? fixed : asked ? asked : batch;
    return err;
}

yk_err local_input_shape(const struct local *l, int32_t input, int64_t batch, struct shape *out, struct yk_diag *why)
{
    const struct value *v = &l->graph->values[l->graph->inputs[input]];
    if (v->rank < 0)
        return yk_fail(why, YK_INVAL, "input '%s' has no declared shape", v->name);
    *out = (struct shape){.dtype = v->dtype, .rank = v->rank};
    for (int i = 0; i < v->rank; i++) {
        int32_t sym = v->dims[i].sym;
        out->dims[i] = sym < 0 ? v->dims[i].value : sym == l->batch_dim ? batch : l->sizes[sym];
    }
    return YK_OK;
}

struct tensor local_samples(const struct local *l, const struct data_set *set, const struct data_ahead_batch *b,
    int32_t value, const struct shapes *shapes)
{
    int input = 0;
    while (l->graph->inputs[input] != value)
        input++;
    return (struct tensor){shapes->of[value], (char *)b->x + data_at(set, input, b->count)};
}

yk_err local_outputs_alloc(struct local *l, const int64_t *sizes, struct tensor **out, struct yk_diag *why)
{
    const struct memplan *plan = exec_plan(l->exec);
    const struct shapes *shapes;
    yk_err err = exec_sizes(l->exec, sizes, &shapes, why);
    if (err)
        return err;
    struct tensor *tensors = yk_xalloc(((size_t)plan->n_out + 1) * sizeof *tensors);
    for (int32_t i = 0; i < plan->n_out; i++) {
        tensors[i].shape = shapes->of[plan->out[i]];
        int64_t bytes = tensor_bytes(&tensors[i]);
        tensors[i].data = bytes < 0 ? NULL : yk_try_aligned((size_t)bytes + 1);
        if (!tensors[i].data) {
            while (i-- > 0)
                free(tensors[i].data);
            free(tensors);
            return yk_fail(why, YK_NOMEM, "no memory for the outputs");
        }
    }
    *out = tensors;
    return YK_OK;
}
