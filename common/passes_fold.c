/* Constant folding: nodes that change nothing go, nodes whose inputs are all constant become weights. */
#include <stdlib.h>
#include <string.h>

#include "common/passes_rewrite.h"

/* Folding may not blow a small file up: results together stay below twice the weights plus this. */
#define FOLD_SPARE_BYTES ((int64_t)64 << 20)
/* Nor may it take long: operations and bytes that folding may work on, beside so many for each byte of the weights. */
#define FOLD_SPARE_WORK 5e8
#define FOLD_WORK_PER_BYTE 64
#define FOLD_ROUNDS 16

/* ---- nodes that change nothing ---- */

static bool all_equal_to(const int64_t *v, int64_t n, int64_t x)
{
    for (int64_t i = 0; v && i < n; i++)
        if (v[i] != x)
            return false;
    return v != NULL;
}

/* Whether out[0] always equals in[0]. */
static bool is_noop(const struct graph *g, const struct pass_probes *p, const struct node *n, bool train)
{
    const char *op = n->op->name;
    if (n->op->domain[0] || n->n_in < 1 || n->in[0] == YK_ABSENT || n->n_out < 1 || n->out[0] == YK_ABSENT)
        return false;
    for (int32_t k = 1; k < n->n_out; k++)
        if (n->out[k] != YK_ABSENT)
            return false;
    if (strcmp(op, "Identity") == 0)
        return true;
    if (strcmp(op, "Dropout") == 0) {
        int32_t training = n->n_in > 2 ? n->in[2] : YK_ABSENT;
        float ratio;
        if (n->n_in > 1 && n->in[1] != YK_ABSENT && pass_const_f32(g, n->in[1], &ratio) && ratio == 0)
            return true;
        return training == YK_ABSENT ? !train
                                     : (pass_is_const(g, training) && shape_count(&g->values[training].shape) == 1 &&
                                           dtype_read_int(DT_BOOL, g->values[training].data, 0) == 0);
    }
    if (!pass_same_shape(p, n->in[0], n->out[0]))
        return false;
    if (strcmp(op, "Cast") == 0 || strcmp(op, "Reshape") == 0 || strcmp(op, "Expand") == 0 ||
        strcmp(op, "Flatten") == 0 || strcmp(op, "Squeeze") == 0 || strcmp(op, "Unsqueeze") == 0)
        return true;
    if (strcmp(op, "Concat") == 0 || strcmp(op, "Sum") == 0 || strcmp(op, "Min") == 0 || strcmp(op, "Max") == 0 ||
        strcmp(op, "Mean") == 0)
        return n->n_in == 1;
    if (strcmp(op, "Pad") == 0)
        return all_equal_to(pass_same_content(p, n->in[1]), shape_count(&p->at[0].of[n->in[1]]), 0);
    if (strcmp(op, "Slice") == 0) /* equal sizes and step 1 leave only the whole axis */
        return n->n_in < 5 || n->in[4] == YK_ABSENT ||
               all_equal_to(pass_same_content(p, n->in[4]), shape_count(&p->at[0].of[n->in[4]]), 1);
    return false;
}

/* A graph output keeps its id and name: what made the input makes the output instead. */
static bool take_over_output(struct graph *g, const uint8_t *outputs, int32_t *to, int32_t in, int32_t out)
{
    int32_t producer = g->values[in].producer;
    if (g->values[in].kind != VALUE_NODE || producer < 0 || outputs[in])
        return false;
    struct node *made = &g->nodes[producer];
    for (int32_t k = 0; k < made->n_out; k++)
        if (made->out[k] == in)
            made->out[k] = out;
    g->values[out].producer = producer;
    to[in] = out;
    return true;
}

yk_err pass_drop_noops(struct graph *g, bool train, bool *changed, struct yk_diag *why)
{
    struct pass_probes p;
    yk_err err = graph_sort(g, why);
    if (err || (err = pass_probes_open(g, &p, why)) != YK_OK)
        return err;
    int32_t *to = yk_try_alloc((size_t)g->n_values + 1, sizeof *to); /* by value: what stands for it */
    uint8_t *outputs = pass_outputs(g);
    if (!to || !outputs) {
        err = yk_fail(why, YK_NOMEM, "no memory to fold");
        goto out;
    }
    for (int32_t v = 0; v < g->n_values; v++)
        to[v] = v;
    /* The nodes keep their inputs until the end, so that is_noop asks for shapes by the ids of before. */
    for (int32_t i = 0; i < g->n_nodes; i++) {
        struct node *n = &g->nodes[i];
        if (!is_noop(g, &p, n, train))
            continue;
        int32_t in = pass_resolve(to, n->in[0]), out = n->out[0];
        if (outputs[out] && !take_over_output(g, outputs, to, in, out))
            continue;
        if (!outputs[out])
            to[out] = in;
        n->op = NULL;
        *changed = true;
    }
    pass_replace_uses(g, to);
out:
    free(to);
    free(outputs);
    pass_probes_close(&p);
    return err ? err : pass_compact(g, why);
}

/* ---- nodes whose inputs are constant ---- */

struct fold {
    struct graph *g;
    passes_eval eval;
    void *arg;
    bool train;   /* what may be trained is no constant */
    int64_t left; /* bytes that folding may still make */
    double work;  /* operations and bytes that it may still work on */
    struct op_ctx *c;
    int64_t content[OP_MAX_IN][OP_MAX_CONTENT];
};

static void set_context(struct fold *f, const struct node *n)
{
    struct op_ctx *c = f->c;
    c->graph = f->g;
    c->node = n;
    c->n_in = n->n_in;
    c->n_out = n->n_out;
    c->why = NULL;
    for (int32_t i = 0; i < n->n_in; i++) {
        const struct value *v = n->in[i] == YK_ABSENT ? NULL : &f->g->values[n->in[i]];
        c->in[i] = v ? &v->shape : NULL;
        c->content[i] = NULL;
        int64_t count = v ? shape_count(&v->shape) : -1;
        if (!v || !v->data || count < 0 || count > OP_MAX_CONTENT ||
            !(dtype_is_int(v->shape.dtype) || v->shape.dtype == DT_BOOL))
            continue;
        for (int64_t k = 0; k < count; k++)
            f->content[i][k] = dtype_read_int(v->shape.dtype, v->data, k);
        c->content[i] = f->content[i];
    }
}

/* A float tensor of the file: training may change it. */
static bool is_trained(const struct value *v)
{
    return !v->constant && dtype_is_float(v->dtype) && v->shape.rank > 0;
}

static bool may_fold(const struct fold *f, const uint8_t *outputs, const struct node *n)
{
    const struct graph *g = f->g;
    if (n->op->flags & (OP_CONTROL | OP_VALUES | OP_RANDOM | OP_DATA_SHAPE) || n->n_in > OP_MAX_IN ||
        n->n_out > OP_MAX_OUT)
        return false;
    for (int32_t k = 0; k < n->n_in; k++)
        if (n->in[k] != YK_ABSENT && (!pass_is_const(g, n->in[k]) || (f->train && is_trained(&g->values[n->in[k]]))))
            return false;
    for (int32_t k = 0; k < n->n_out; k++)
        if (n->out[k] != YK_ABSENT && outputs[n->out[k]]) /* outputs stay made by a node */
            return false;
    return true;
}

/* Data of a Constant node that is a tensor is used where it lies. */
static bool constant_in_place(struct graph *g, struct node *n)
{
    const struct attr *a = n->n_attr == 1 ? &n->attr[0] : NULL;
    if (strcmp(n->op->name, "Constant") != 0 || !a || a->kind != ATTR_TENSOR || !a->tensor || !a->tensor->data)
        return false;
    pass_make_const(g, n->out[0], &a->tensor->shape, a->tensor->data);
    return true;
}

static bool constant_floats(struct graph *g, struct node *n, void *data)
{
    const struct attr *a = n->n_attr == 1 ? &n->attr[0] : NULL;
    if (strcmp(n->op->name, "Constant") != 0 || !a)
        return false;
    if (a->kind == ATTR_FLOAT)
        memcpy(data, &a->f, sizeof a->f);
    else if (a->kind == ATTR_FLOATS && a->n)
        memcpy(data, a->floats, a->n * sizeof *a->floats);
    (void)g;
    return a->kind == ATTR_FLOAT || a->kind == ATTR_FLOATS;
}

static yk_err fold_node(struct fold *f, int32_t index, bool *changed, struct yk_diag *why)
{
    struct graph *g = f->g;
    struct node *n = &g->nodes[index];
    void *data[OP_MAX_OUT] = {NULL};
    int64_t bytes = 0;
    bool known = true;

    if (constant_in_place(g, n)) {
        *changed = true;
        return YK_OK;
    }
    set_context(f, n);
    f->c->why = why;
    yk_err err = op_infer(f->c);
    if (err) /* left alone: inference over the whole graph names it */
        return YK_OK;
    for (int32_t k = 0; k < n->n_out; k++) {
        known = known && f->c->out_known[k];
        if (!yk_add_i64(bytes, shape_bytes(&f->c->out[k]), &bytes))
            return YK_OK;
    }
    bool floats = strcmp(n->op->name, "Constant") == 0;
    if ((!known && !floats && !f->eval) || bytes > f->left)
        return YK_OK;
    double work = known ? 0 : op_flops(f->c) + op_bytes(f->c);
    if (!(work <= f->work)) /* it runs like any other node */
        return YK_OK;
    f->work -= work;
    for (int32_t k = 0; k < n->n_out; k++) {
        data[k] = graph_alloc_data(g, shape_bytes(&f->c->out[k]));
        if (!data[k])
            return yk_fail(why, YK_NOMEM, "no memory to fold node %d '%s'", index, n->name);
    }
    if (known) {
        for (int32_t k = 0; k < n->n_out; k++)
            for (int64_t i = 0; i < shape_count(&f->c->out[k]); i++)
                pass_write_int(f->c->out[k].dtype, data[k], i, f->c->out_content[k][i]);
    } else if (!constant_floats(g, n, data[0])) {
        if (!f->eval)
            return YK_OK;
        err = f->eval(f->arg, g, index, f->c->out, data, why);
        if (err == YK_UNSUPPORTED) /* then it runs like any other node */
            return YK_OK;
        if (err)
            return yk_wrap(why, err, "folding node %d '%s' (%s)", index, n->name, n->op->name);
    }
    f->left -= bytes;
    int32_t n_out = n->n_out;
    for (int32_t k = 0; k < n_out; k++)
        if (n->out[k] != YK_ABSENT)
            pass_make_const(g, n->out[k], &f->c->out[k], data[k]);
    *changed = true;
    return YK_OK;
}

static yk_err fold_round(struct fold *f, bool *changed, struct yk_diag *why)
{
    yk_err err = graph_sort(f->g, why);
    uint8_t *outputs = pass_outputs(f->g);
    if (!err && !outputs)
        err = yk_fail(why, YK_NOMEM, "no memory to fold");
    for (int32_t i = 0; !err && i < f->g->n_nodes; i++)
        if (f->g->nodes[i].op && may_fold(f, outputs, &f->g->nodes[i]))
            err = fold_node(f, i, changed, why);
    free(outputs);
    return err ? err : pass_compact(f->g, why);
}

yk_err passes_fold_constants(struct graph *g, passes_eval eval, void *arg, struct yk_diag *why)
{
    return pass_fold_constants(g, false, eval, arg, why);
}

yk_err pass_fold_constants(struct graph *g, bool train, passes_eval eval, void *arg, struct yk_diag *why)
{
    struct fold *f = yk_try_alloc(1, sizeof *f);
    if (!f)
        return yk_fail(why, YK_NOMEM, "no memory to fold");
    *f = (struct fold){
        .g = g, .eval = eval, .arg = arg, .train = train, .left = FOLD_SPARE_BYTES, .work = FOLD_SPARE_WORK};
    f->c = yk_try_alloc(1, sizeof *f->c);
    yk_err err = f->c ? pass_compact(g, why) : yk_fail(why, YK_NOMEM, "no memory to fold");
    for (int32_t v = 0; !err && v < g->n_values; v++)
        if (g->values[v].kind == VALUE_WEIGHT && g->values[v].bytes > 0)
            f->left = YK_MIN(f->left + 2 * YK_MIN(g->values[v].bytes, INT64_MAX / 8), INT64_MAX / 2),
            f->work += FOLD_WORK_PER_BYTE * (double)g->values[v].bytes;
    bool changed = true;
    for (int round = 0; !err && changed && round < FOLD_ROUNDS; round++) {
        changed = false;
        err = fold_round(f, &changed, why);
        if (!err)
            err = pass_drop_noops(g, train, &changed, why);
        if (!err)
            err = pass_fold_shapes(g, &changed, why);
    }
    free(f->c);
    free(f);
    return err;
}
