#include "common/train_info.h"

static bool in_range(int64_t v, int64_t n)
{
    return v >= 0 && v < n;
}

static bool is_weight(const struct graph *g, int64_t v)
{
    return in_range(v, g->n_values) && g->values[v].kind == VALUE_WEIGHT;
}

static yk_err no_memory(const struct wire_training *w, struct yk_diag *why)
{
    return yk_fail(why, YK_NOMEM, "no memory for %zu parameters", w->params.n);
}

static yk_err read_param(const struct wire_param *p, const struct graph *g, struct grad_param *out, struct yk_diag *why)
{
    if (!is_weight(g, p->value) || !p->uses.n || p->uses.n > (size_t)g->n_outputs)
        return yk_fail(why, YK_INVAL, "the training names a parameter that the graph has not");
    int32_t *uses = yk_arena_alloc(g->arena, p->uses.n, sizeof *uses);
    if (!uses)
        return yk_fail(why, YK_NOMEM, "no memory for the gradients of a parameter");
    for (size_t u = 0; u < p->uses.n; u++) {
        if (!in_range(p->uses.at[u], g->n_outputs))
            return yk_fail(why, YK_INVAL, "the training names a gradient that the graph has not");
        uses[u] = (int32_t)p->uses.at[u];
    }
    *out = (struct grad_param){.value = (int32_t)p->value,
        .name = g->values[p->value].name,
        .trainable = true,
        .n_uses = (int32_t)p->uses.n,
        .uses = uses};
    return YK_OK;
}

static yk_err read_state(const struct wire_state *s, const struct graph *g, struct grad_state *out, struct yk_diag *why)
{
    if (!is_weight(g, s->value) || !in_range(s->output, g->n_outputs))
        return yk_fail(why, YK_INVAL, "the training names a running statistic that the graph has not");
    *out = (struct grad_state){(int32_t)s->value, (int32_t)s->output};
    return YK_OK;
}

yk_err train_info_read(const struct wire_training *w, struct graph *g, struct grad_info *out, struct yk_diag *why)
{
    if (!in_range(w->stay, (int64_t)g->n_outputs + 1))
        return yk_fail(why, YK_INVAL, "%lld outputs stay of %d", (long long)w->stay, g->n_outputs);
    int64_t n = g->n_outputs - w->stay; /* those that leave */
    if (!in_range(w->loss, n) || !in_range(w->scores, n) || !in_range(w->outputs, n + 1) ||
        !in_range(w->n_outputs, n - w->outputs + 1) || !in_range(w->target, g->n_inputs) ||
        !in_range(w->divisor, g->n_inputs) || !in_range(w->first_backward, (int64_t)g->n_nodes + 1))
        return yk_fail(why, YK_INVAL, "the training names inputs, outputs or nodes that the graph has not");
    struct grad_param *params = yk_arena_alloc(g->arena, w->params.n + 1, sizeof *params);
    struct grad_state *states = yk_arena_alloc(g->arena, w->states.n + 1, sizeof *states);
    yk_err err = params && states ? YK_OK : no_memory(w, why);
    for (size_t i = 0; i < w->params.n && !err; i++)
        err = read_param(&w->params.at[i], g, &params[i], why);
    for (size_t i = 0; i < w->states.n && !err; i++)
        err = read_state(&w->states.at[i], g, &states[i], why);
    if (err)
        return err;
    g->n_staying = (int32_t)w->stay;
    *out = (struct grad_info){.n_params = (int32_t)w->params.n,
        .n_states = (int32_t)w->states.n,
        .params = params,
        .states = states,
        .target_input = (int32_t)w->target,
        .divisor_input = (int32_t)w->divisor,
        .loss_output = (int32_t)w->loss,
        .model_output = (int32_t)w->outputs,
        .logits_output = (int32_t)w->scores,
        .n_model_outputs = (int32_t)w->n_outputs,
        .first_backward = (int32_t)w->first_backward};
    return YK_OK;
}
