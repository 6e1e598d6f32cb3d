#include "kernels/profile_priv.h"

#include <stdlib.h>
#include <string.h>

#include "kernels/exec.h"

struct bed {
    const struct graph *g;
    const struct shapes *s;
    const char **forms; /* by node */
    void **made;        /* by value: weights that the graph has only hashes of */
    void *inner;        /* the same of subgraphs: one for all of them */
    int64_t inner_bytes;
    struct dyn_value **in, **out;
    double *ms;
};

/* Zeros: memory that is only read costs nothing. */
static yk_err make_weight(void *arg, int32_t value, const void **data, struct yk_diag *why)
{
    struct bed *b = arg;
    int64_t bytes = shape_bytes(&b->g->values[value].shape);
    if (!b->made[value])
        b->made[value] = yk_try_alloc((size_t)YK_MAX(bytes, 1), 1);
    *data = b->made[value];
    return *data ? YK_OK : yk_fail(why, YK_NOMEM, "no memory to profile");
}

static yk_err make_inner(void *arg, const struct value *weight, const void **data, struct yk_diag *why)
{
    struct bed *b = arg;
    (void)weight;
    *data = b->inner;
    return *data ? YK_OK : yk_fail(why, YK_NOMEM, "no memory to profile");
}

static void largest_inner(void *arg, const struct value *weight)
{
    struct bed *b = arg;
    b->inner_bytes = YK_MAX(b->inner_bytes, shape_bytes(&weight->shape));
}

static bool small_enough(const struct bed *b, struct op_ctx *c, int64_t room_bytes)
{
    double flops = 0;
    int64_t bytes = 0;
    for (int32_t i = 0; i < b->g->n_nodes; i++) {
        shapes_node(b->g, b->s, i, c);
        flops += op_flops(c);
    }
    for (int32_t v = 0; v < b->g->n_values; v++)
        if (b->g->values[v].kind == VALUE_WEIGHT && !yk_add_i64(bytes, b->g->values[v].bytes, &bytes))
            return false;
    int64_t most = YK_MIN(PROFILE_WEIGHT_BYTES, room_bytes);
    return flops <= PROFILE_FLOPS && bytes <= most && b->inner_bytes <= most;
}

static yk_err make_inputs(struct bed *b, struct yk_diag *why)
{
    struct yk_rng rng;
    yk_err err = YK_OK;
    yk_rng_seed(&rng, 1);
    for (int32_t k = 0; k < b->g->n_inputs && !err; k++) {
        int32_t v = b->g->inputs[k];
        if (shapes_has(b->s, v) && !(err = dyn_tensor(NULL, &b->s->of[v], &b->in[k], why)))
            profile_fill(b->in[k]->tensor.data, &b->s->of[v], b->s->content[v], &rng);
        else if (!err)
            err = dyn_list(NULL, b->g->values[v].type, b->g->values[v].dtype, NULL, 0, &b->in[k], why);
    }
    return err;
}

static void on_node(void *arg, int32_t node, const char *form, double ms)
{
    struct bed *b = arg;
    (void)form;
    if (b->s->dynamic[node]) /* the better of the runs: others may be at work beside it */
        b->ms[node] = b->ms[node] > 0 ? YK_MIN(b->ms[node], ms) : ms;
}

yk_err profile_dynamic(const struct graph *g, struct backends *backends, const struct shapes *s, const int64_t *sizes,
    const char *form, int64_t room_bytes, double *ms, struct yk_diag *why)
{
    size_t n_nodes = (size_t)g->n_nodes + 1;
    struct bed b = {.g = g, .s = s, .ms = ms};
    struct exec *e = NULL;
    struct op_ctx *c = yk_try_alloc(1, sizeof(*c));
    b.forms = yk_try_alloc(n_nodes, sizeof(*b.forms));
    b.made = yk_try_alloc((size_t)g->n_values + 1, sizeof(*b.made));
    b.in = yk_try_alloc((size_t)g->n_inputs + 1, sizeof(struct dyn_value *));
    b.out = yk_try_alloc((size_t)g->n_outputs + 1, sizeof(struct dyn_value *));
    yk_err err = c && b.forms && b.made && b.in && b.out ? YK_OK : YK_NOMEM;
    memset(ms, 0, n_nodes * sizeof(*ms) - sizeof(*ms));
    for (int32_t i = 0; i < g->n_nodes; i++)
        node_each_inner_weight(&g->nodes[i], largest_inner, &b);
    if (err || !small_enough(&b, c, room_bytes / 4) || (err = make_inputs(&b, NULL)))
        goto out;
    for (int32_t i = 0; i < g->n_nodes; i++)
        b.forms[i] = s->dynamic[i] ? form : NULL;
    struct exec_config config = {.graph = g,
        .forms = b.forms,
        .max_sizes = sizes,
        .backends = backends,
        .weight = make_weight,
        .inner_weight = make_inner,
        .weight_arg = &b,
        .heap_limit = YK_MIN(PROFILE_HEAP_BYTES, room_bytes / 2),
        .step_limit = PROFILE_STEPS,
        .time_limit_ms = PROFILE_RUN_MS};
    b.inner = yk_try_alloc((size_t)b.inner_bytes + 1, 1);
    /* What fails on made-up inputs keeps the times that it had. */
    if (exec_open(&config, &e, NULL) == YK_OK) {
        exec_trace(e, on_node, &b);
        for (int i = 0; i < 2; i++) {
            if (exec_run_values(e, sizes, b.in, b.out, 1, NULL))
                break;
            for (int32_t k = 0; k < g->n_outputs; k++) {
                dyn_unref(b.out[k]);
                b.out[k] = NULL;
            }
        }
    }
out:
    exec_close(e);
    for (int32_t k = 0; b.in && k < g->n_inputs; k++)
        dyn_unref(b.in[k]);
    for (int32_t v = 0; b.made && v < g->n_values; v++)
        free(b.made[v]);
    free(b.inner);
    free(b.forms);
    free(b.made);
    free(b.in);
    free(b.out);
    free(c);
    return err == YK_NOMEM ? yk_fail(why, err, "no memory to profile") : err;
}
