/* The training graph: the forward part, the loss, then the rules of the forward nodes from the last to the first. Rules
 * write nodes behind the forward ones in any order; arrange() puts all in the canonical order at the end. */
#include "common/grad.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/grad_priv.h"

#define GRAD_ARENA_BYTES ((size_t)1 << 30)

static const struct grad_rules *const families[] = {&grad_rules_act, &grad_rules_linear, &grad_rules_math,
    &grad_rules_move, &grad_rules_norm, &grad_rules_reduce, &grad_rules_stop};

const struct grad_rule *grad_rule_of(const struct op *op)
{
    for (size_t f = 0; f < YK_COUNT(families); f++)
        for (int i = 0; i < families[f]->n; i++) {
            const struct grad_rule *rule = &families[f]->rows[i];
            if (strcmp(rule->op, op->name) == 0 && strcmp(rule->domain, op->domain) == 0)
                return rule;
        }
    return NULL;
}

bool grad_has_rule(const char *domain, const char *op)
{
    const struct op *row = op_find(domain, op);
    const struct grad_rule *rule = row ? grad_rule_of(row) : NULL;
    return rule && rule->run;
}

bool grad_rule_takes(const struct grad_rule *rule, int k)
{
    return rule->inputs >> YK_MIN(k, 31) & 1;
}

bool grad_rule_gives(const struct grad_rule *rule, int k)
{
    return rule->outputs >> YK_MIN(k, 31) & 1;
}

/* ---- uses of parameters ---- */

struct use {
    int32_t param, gradient, node;
};

struct build {
    struct grad r;
    struct pass_probes probes;
    struct grad_info info;
    uint8_t *params;
    struct use *uses; /* in the order of the fold */
    int32_t n_uses, cap_uses;
    int32_t scores, target, divisor, loss;
};

static yk_err no_memory(struct build *b)
{
    return b->r.err = yk_fail(b->r.why, YK_NOMEM, "no memory for the training graph");
}

static yk_err add_use(struct build *b, int32_t param, int32_t gradient)
{
    if (b->n_uses == b->cap_uses) {
        int32_t wider = b->cap_uses ? 2 * b->cap_uses : 64;
        struct use *uses = b->cap_uses > INT32_MAX / 4 ? NULL : yk_try_realloc(b->uses, (size_t)wider, sizeof *uses);
        if (!uses)
            return no_memory(b);
        b->uses = uses;
        b->cap_uses = wider;
    }
    b->uses[b->n_uses++] = (struct use){param, gradient, b->r.node};
    return YK_OK;
}

/* ---- backward ---- */

/* What a gradient goes through has a known size. */
static yk_err check_sizes(struct build *b, const struct node *n)
{
    const int32_t *lists[] = {n->in, n->out};
    int32_t counts[] = {n->n_in, n->n_out};
    for (int l = 0; l < 2; l++)
        for (int32_t k = 0; k < counts[l]; k++) {
            int32_t v = lists[l][k];
            if (v != YK_ABSENT && dtype_is_float(grad_type(&b->r, v)) && !shapes_has(&b->probes.at[0], v))
                return grad_fail(&b->r, YK_UNSUPPORTED, "the size of '%s' depends on data", b->r.fwd->values[v].name);
        }
    return YK_OK;
}

static yk_err node_backward(struct build *b, int32_t index)
{
    struct grad *r = &b->r;
    const struct node *n = &r->fwd->nodes[index];
    const struct grad_rule *rule = grad_rule_of(n->op);
    int32_t dy[OP_MAX_OUT], dx[OP_MAX_IN];
    bool arrives = false, wanted = false;
    if (!rule || !rule->run)
        return YK_OK;
    for (int k = 0; k < n->n_out; k++) {
        dy[k] = n->out[k] != YK_ABSENT && grad_rule_gives(rule, k) ? r->acc[n->out[k]] : YK_ABSENT;
        arrives = arrives || dy[k] != YK_ABSENT;
    }
    for (int k = 0; k < n->n_in; k++) {
        dx[k] = YK_ABSENT;
        wanted = wanted || (grad_needs(r, n, k) && grad_rule_takes(rule, k));
    }
    if (!arrives || !wanted)
        return YK_OK;
    r->node = index;
    if (check_sizes(b, n))
        return r->err;
    rule->run(r, n, dy, dx);
    for (int k = 0; k < n->n_in && !r->err; k++) {
        if (dx[k] == YK_ABSENT || !grad_needs(r, n, k) || !grad_rule_takes(rule, k))
            continue;
        int32_t v = n->in[k];
        if (b->params[v] == 1)
            add_use(b, v, dx[k]);
        else
            r->acc[v] = r->acc[v] == YK_ABSENT ? dx[k] : grad_op2(r, "Add", r->acc[v], dx[k]);
    }
    return r->err;
}

/* ---- the graph's borders ---- */

static int32_t named_value(struct build *b, const char *name, enum value_kind kind, enum dtype t)
{
    char unique[64];
    snprintf(unique, sizeof unique, "%s", name);
    for (int i = 2; graph_find_value(b->r.g, unique) != YK_ABSENT; i++)
        snprintf(unique, sizeof unique, "%s.%d", name, i);
    return graph_add_value(b->r.g, unique, kind, t);
}

/* The target is declared as the scores are, where they are declared; else its sizes come from the rank alone. */
static yk_err add_inputs(struct build *b)
{
    struct grad *r = &b->r;
    struct graph *g = r->g;
    const struct graph *fwd = r->fwd;
    bool ids = grad_loss_has_ids(r->o->loss);
    int rank = grad_rank(r, b->scores), kept = 0;
    enum dtype t = grad_type(r, b->scores);
    b->target = named_value(b, "target", VALUE_INPUT, ids ? DT_I64 : t);
    b->divisor = named_value(b, "divisor", VALUE_INPUT, t);
    g->inputs = yk_arena_alloc(g->arena, (size_t)fwd->n_inputs + 2, sizeof *g->inputs);
    struct dim *dims = yk_arena_alloc(g->arena, (size_t)rank + 1, sizeof *dims);
    if (b->target == YK_ABSENT || b->divisor == YK_ABSENT || !g->inputs || !dims)
        return no_memory(b);
    if (fwd->n_inputs)
        memcpy(g->inputs, fwd->inputs, (size_t)fwd->n_inputs * sizeof *g->inputs);
    b->info.target_input = fwd->n_inputs;
    b->info.divisor_input = fwd->n_inputs + 1;
    g->inputs[fwd->n_inputs] = b->target;
    g->inputs[fwd->n_inputs + 1] = b->divisor;
    g->n_inputs = fwd->n_inputs + 2;
    g->values[b->divisor].rank = 0;
    for (int k = 0; k < rank; k++) {
        if (ids && k == 1)
            continue;
        int64_t size = r->p->at[0].of[b->scores].dims[k];
        int32_t sym = -1;
        bool fixed = true;
        for (int i = 1; i < r->p->n; i++)
            fixed = fixed && r->p->at[i].of[b->scores].dims[k] == size;
        /* A size that varies is that of the named dimension which has it in all probes. */
        for (int32_t in = 0; !fixed && sym < 0 && in < fwd->n_inputs; in++) {
            const struct value *v = &fwd->values[fwd->inputs[in]];
            for (int d = 0; sym < 0 && d < v->rank; d++) {
                bool same = v->dims[d].sym >= 0;
                for (int i = 0; same && i < r->p->n; i++)
                    same = r->p->at[i].of[fwd->inputs[in]].dims[d] == r->p->at[i].of[b->scores].dims[k];
                sym = same ? v->dims[d].sym : -1;
            }
        }
        if (!fixed && sym < 0) {
            char name[64];
            snprintf(name, sizeof name, "target_%d", k);
            if ((sym = graph_sym(g, name)) < 0)
                return no_memory(b);
        }
        dims[kept++] = (struct dim){.value = fixed ? size : -1, .sym = fixed ? -1 : sym};
    }
    g->values[b->target].dims = dims;
    g->values[b->target].rank = kept;
    return YK_OK;
}

/* A graph output is made by a node of its own and listed once. */
static int32_t own_output(struct build *b, int32_t value)
{
    struct grad *r = &b->r;
    bool again = value < r->fwd->n_values || r->g->values[value].kind != VALUE_NODE;
    for (int32_t i = 0; i < r->g->n_outputs && !again; i++)
        again = r->g->outputs[i] == value;
    return again ? grad_op1(r, "Identity", value) : value;
}

static yk_err add_outputs(struct build *b)
{
    struct grad *r = &b->r;
    struct graph *g = r->g;
    const struct graph *fwd = r->fwd;
    int32_t n_states = 0, n_params = 0, at;
    for (int32_t v = 0; v < fwd->n_values; v++) {
        n_states += r->next[v] != YK_ABSENT;
        n_params += b->params[v] != 0;
    }
    struct grad_param *params = yk_arena_alloc(g->arena, (size_t)n_params + 1, sizeof *params);
    struct grad_state *states = yk_arena_alloc(g->arena, (size_t)n_states + 1, sizeof *states);
    int32_t *uses = yk_arena_alloc(g->arena, (size_t)b->n_uses + 1, sizeof *uses);
    g->outputs =
        yk_arena_alloc(g->arena, (size_t)fwd->n_outputs + (size_t)b->n_uses + (size_t)n_states + 1, sizeof *g->outputs);
    if (!params || !states || !uses || !g->outputs)
        return no_memory(b);
    struct grad_info *info = &b->info;
    info->loss_output = 0;
    info->model_output = 1;
    info->n_model_outputs = fwd->n_outputs;
    g->outputs[g->n_outputs++] = b->loss;
    for (int32_t i = 0; i < fwd->n_outputs; i++) {
        if (fwd->outputs[i] == b->scores)
            info->logits_output = g->n_outputs;
        g->outputs[g->n_outputs++] = fwd->outputs[i];
    }
    at = 0;
    for (int32_t i = 0; i < fwd->n_nodes; i++) /* parameters by their first use */
        for (int32_t k = 0; k < fwd->nodes[i].n_in; k++) {
            int32_t v = fwd->nodes[i].in[k];
            if (v == YK_ABSENT || b->params[v] == 0 || b->params[v] > 2)
                continue;
            struct grad_param *p = &params[info->n_params++];
            *p = (struct grad_param){.value = v, .name = g->values[v].name, .uses = &uses[at]};
            for (int32_t u = 0; u < b->n_uses; u++) {
                if (b->uses[u].param != v)
                    continue;
                p->trainable = true;
                p->n_uses++;
                uses[at++] = g->n_outputs;
                r->node = b->uses[u].node;
                int32_t out = own_output(b, b->uses[u].gradient);
                if (out == YK_ABSENT)
                    return r->err ? r->err : no_memory(b);
                g->outputs[g->n_outputs++] = out;
            }
            b->params[v] = 3; /* listed */
        }
    for (int32_t i = 0; i < fwd->n_nodes; i++)
        for (int32_t k = 0; k < fwd->nodes[i].n_in; k++) {
            int32_t v = fwd->nodes[i].in[k], next = v == YK_ABSENT ? YK_ABSENT : r->next[v];
            if (next == YK_ABSENT)
                continue;
            r->next[v] = YK_ABSENT;
            bool listed = false; /* by the model, as an output of its own */
            int32_t output = 0;
            for (; output < g->n_outputs && !listed; output += !listed)
                listed = g->outputs[output] == next;
            states[info->n_states++] = (struct grad_state){v, output};
            if (!listed)
                g->outputs[g->n_outputs++] = next;
        }
    g->n_staying = g->n_outputs - 1 - fwd->n_outputs;
    info->params = params;
    info->states = states;
    return YK_OK;
}

/* ---- order ---- */

/* Forward nodes each followed by their early ones, the loss, the backward part. */
static yk_err arrange(struct build *b)
{
    struct grad *r = &b->r;
    struct graph *g = r->g;
    int32_t n_fwd = r->fwd->n_nodes, at = 0, early = 0;
    struct node *nodes = yk_arena_alloc(g->arena, (size_t)g->n_nodes + 1, sizeof *nodes);
    int32_t *of = yk_arena_alloc(g->arena, (size_t)g->n_nodes + 1, sizeof *of);
    int32_t *list = yk_try_alloc((size_t)r->n_made + 1, sizeof *list); /* early ones by forward node */
    int32_t *start = yk_try_alloc((size_t)n_fwd + 2, sizeof *start);
    yk_err err = YK_OK;
    if (!nodes || !of || !list || !start) {
        err = no_memory(b);
        goto out;
    }
    for (int32_t i = 0; i < r->n_made; i++)
        if (r->made[i].part == GRAD_EARLY)
            start[r->made[i].of + 1]++;
    for (int32_t i = 0; i < n_fwd; i++)
        start[i + 1] += start[i];
    for (int32_t i = 0; i < r->n_made; i++)
        if (r->made[i].part == GRAD_EARLY)
            list[start[r->made[i].of]++] = i;
    for (int32_t i = 0; i < n_fwd; i++) { /* start[i] is now where those of i end */
        of[at] = i;
        nodes[at++] = g->nodes[i];
        for (; early < start[i]; early++) {
            of[at] = i;
            nodes[at++] = g->nodes[n_fwd + list[early]];
        }
    }
    for (int part = GRAD_LOSS_PART; part <= GRAD_BACKWARD; part++) {
        *(part == GRAD_LOSS_PART ? &b->info.first_loss : &b->info.first_backward) = at;
        for (int32_t i = 0; i < r->n_made; i++)
            if ((int)r->made[i].part == part) {
                of[at] = r->made[i].of;
                nodes[at++] = g->nodes[n_fwd + i];
            }
    }
    g->nodes = nodes;
    g->cap_nodes = at;
    b->info.of = of;
    err = graph_sort(g, r->why);
    for (int32_t i = 0; i < at && !err; i++)
        for (int32_t k = 0; k < g->nodes[i].n_in; k++)
            if (g->nodes[i].in[k] != YK_ABSENT && g->values[g->nodes[i].in[k]].producer >= i)
                err = yk_fail(r->why, YK_INTERNAL, "node %d '%s' of the training graph stands before what it reads", i,
                    g->nodes[i].name);
out:
    free(list);
    free(start);
    return err;
}

/* ---- all of it ---- */

static yk_err find_scores(struct build *b)
{
    const struct graph *fwd = b->r.fwd;
    const char *name = b->r.o->output;
    if (fwd->n_outputs == 0)
        return yk_fail(b->r.why, YK_INVAL, "the model has no output");
    b->scores = name ? YK_ABSENT : fwd->outputs[0];
    for (int32_t i = 0; name && i < fwd->n_outputs; i++)
        if (strcmp(fwd->values[fwd->outputs[i]].name, name) == 0)
            b->scores = fwd->outputs[i];
    if (b->scores == YK_ABSENT)
        return yk_fail(b->r.why, YK_INVAL, "the model has no output '%s'; its first one is '%s'", name,
            fwd->values[fwd->outputs[0]].name);
    const struct value *v = &fwd->values[b->scores];
    if (v->type != VALUE_TENSOR || v->kind != VALUE_NODE)
        return yk_fail(b->r.why, YK_INVAL, "output '%s' is no tensor that a node makes", v->name);
    if (!shapes_has(&b->probes.at[0], b->scores))
        return yk_fail(b->r.why, YK_UNSUPPORTED, "the size of output '%s' depends on data", v->name);
    enum dtype t = grad_type(&b->r, b->scores);
    if (t != DT_F32 && t != DT_F64)
        return yk_fail(
            b->r.why, YK_INVAL, "output '%s' is %s: a loss reads float32 or float64", v->name, dtype_name(t));
    int rank = grad_rank(&b->r, b->scores);
    if (rank < (grad_loss_has_ids(b->r.o->loss) ? 2 : 1))
        return yk_fail(b->r.why, YK_INVAL, "output '%s' has %d axes, loss %s wants %s", v->name, rank,
            grad_loss_name(b->r.o->loss), grad_loss_has_ids(b->r.o->loss) ? "batch and classes" : "a batch");
    return YK_OK;
}

/* Exporters that fold batch normalisation give the convolutions new names. */
static bool is_folded(const struct graph *fwd)
{
    bool folded = false;
    for (int32_t i = 0; i < fwd->n_nodes; i++) {
        const struct node *n = &fwd->nodes[i];
        if (strcmp(n->op->name, "BatchNormalization") == 0)
            return false;
        if (strcmp(n->op->name, "Conv") == 0 && n->n_in > 2 && n->in[1] != YK_ABSENT)
            folded = folded || strncmp(fwd->values[n->in[1]].name, "onnx::", 6) == 0;
    }
    return folded;
}

static const char *warning_of(const struct build *b)
{
    const struct graph *fwd = b->r.fwd;
    int32_t maker = b->scores >= 0 ? fwd->values[b->scores].producer : -1;
    const char *made_by = maker >= 0 ? fwd->nodes[maker].op->name : "";
    if (b->r.o->loss == GRAD_CROSS_ENTROPY && strcmp(made_by, "Softmax") == 0)
        return "the output is made by Softmax, and cross-entropy takes softmax once more: it wants the scores in front";
    if (b->r.o->loss == GRAD_BCE && strcmp(made_by, "Sigmoid") == 0)
        return "the output is made by Sigmoid, and this loss takes the sigmoid once more: it wants the scores in front";
    if (b->r.o->loss == GRAD_NLL && strcmp(made_by, "LogSoftmax") != 0)
        return "the output is not made by LogSoftmax: nll wants logarithms of probabilities";
    if (is_folded(fwd))
        return "the model was exported for inference with batch normalisation folded into its convolutions: it trains "
               "as "
               "it is, without batch normalisation; export it with training=TrainingMode.TRAINING and "
               "do_constant_folding=False to train with it";
    return b->r.warning;
}

static yk_err open_graph(struct build *b)
{
    const struct graph *fwd = b->r.fwd;
    size_t n = (size_t)fwd->n_values + 1;
    struct grad *r = &b->r;
    r->g = graph_open(GRAD_ARENA_BYTES);
    r->acc = yk_try_alloc(n, sizeof *r->acc);
    r->next = yk_try_alloc(n, sizeof *r->next);
    r->copy = yk_try_alloc(n, sizeof *r->copy);
    r->shape_of = yk_try_alloc(n, sizeof *r->shape_of);
    r->shape_at = yk_try_alloc(n, sizeof *r->shape_at);
    r->needs = yk_try_alloc(n, 1);
    b->params = yk_try_alloc(n, 1);
    if (!r->g || !r->acc || !r->next || !r->copy || !r->shape_of || !r->shape_at || !r->needs || !b->params)
        return no_memory(b);
    for (size_t v = 0; v < n; v++)
        r->acc[v] = r->next[v] = r->copy[v] = r->shape_of[v] = r->shape_at[v] = YK_ABSENT;
    r->g->backing = fwd->backing; /* fwd ends it; this graph may say what of it is idle */
    r->g->backing_idle = fwd->backing_idle;
    const char *name = yk_arena_strdup(r->g->arena, fwd->name);
    r->g->name = name ? name : "";
    for (int32_t s = 0; s < fwd->n_syms; s++)
        if (graph_sym(r->g, fwd->syms[s]) != s)
            return no_memory(b);
    return YK_OK;
}

static void close_build(struct build *b)
{
    struct grad *r = &b->r;
    free(r->acc);
    free(r->next);
    free(r->copy);
    free(r->shape_of);
    free(r->shape_at);
    free(r->needs);
    free(r->made);
    free(r->consts);
    free(b->params);
    free(b->uses);
    pass_probes_close(&b->probes);
}

/* The graph without its borders: forward part, loss and backward part, in the order in which they were written. */
static yk_err write_graph(struct build *b)
{
    struct grad *r = &b->r;
    const struct graph *fwd = r->fwd;
    int32_t d = YK_ABSENT;
    yk_err err = grad_copy(r);
    if (!err)
        err = add_inputs(b);
    if (!err) {
        r->node = fwd->values[b->scores].producer;
        err = grad_write_loss(r, b->scores, b->target, b->divisor, &b->loss, &d);
        r->acc[b->scores] = d;
    }
    for (int32_t i = fwd->n_nodes - 1; i >= 0 && !err; i--)
        err = node_backward(b, i);
    return err;
}

/* Two samples: what is wrong with them may say more than the probes. */
static yk_err say_shapes(const struct graph *fwd, struct yk_diag *why)
{
    yk_err err = yk_fail(why, YK_UNSUPPORTED, "the shapes of the model cannot be told for all sizes of its dimensions");
    int64_t *sizes = yk_try_alloc((size_t)fwd->n_syms + 1, sizeof *sizes);
    struct shapes s;
    if (!sizes)
        return err;
    graph_sizes(fwd, NULL, 2, sizes);
    yk_err e = shapes_infer(fwd, sizes, NULL, &s, why);
    free(sizes);
    if (!e)
        shapes_fini(&s);
    return e ? e : err;
}

/* Everything but the second look that recompute takes. saved: to note what the rules read; again: what is computed
 * again. Both may be NULL. */
static yk_err build_once(const struct graph *fwd, const struct grad_options *o, uint8_t *saved, uint8_t **again,
    struct graph **out, struct grad_info *info, struct yk_diag *why)
{
    struct build b = {.r = {.fwd = fwd, .o = o, .node = -1, .why = why, .saved = saved}, .scores = YK_ABSENT};
    struct grad *r = &b.r;
    yk_err err = open_graph(&b);
    if (!err)
        err = pass_probes_open(fwd, &b.probes, why);
    r->p = &b.probes;
    if (!err && b.probes.n == 0)
        err = say_shapes(fwd, why);
    if (!err)
        err = find_scores(&b);
    if (!err) {
        grad_find_params(r, b.params);
        if (!(err = grad_check_freeze(r, b.params)))
            err = grad_find_paths(r, b.scores, b.params);
    }
    if (again)
        r->again = *again;
    if (!err)
        err = write_graph(&b);
    if (!err && saved)
        err = grad_plan_again(r, saved);
    if (again)
        *again = r->again;
    if (!err && !saved)
        err = add_outputs(&b);
    if (!err && !saved)
        err = arrange(&b);
    b.info.warning = warning_of(&b);
    close_build(&b);
    if (err || saved) {
        graph_close(r->g);
        return err;
    }
    *out = r->g;
    *info = b.info;
    return YK_OK;
}

yk_err grad_build(const struct graph *fwd, const struct grad_options *o, struct graph **out, struct grad_info *info,
    struct yk_diag *why)
{
    uint8_t *saved = NULL, *again = NULL;
    yk_err err = grad_check_options(o, why);
    if (!err && o->recompute) {
        saved = yk_try_alloc((size_t)fwd->n_values + 1, 1);
        err = saved ? build_once(fwd, o, saved, &again, NULL, NULL, why)
                    : yk_fail(why, YK_NOMEM, "no memory for the training graph");
    }
    if (!err)
        err = build_once(fwd, o, NULL, &again, out, info, why);
    free(saved);
    free(again);
    return err;
}
