/* Attention: its sizes, steps and FLOPs. */
#include <inttypes.h>
#include <string.h>

#include "common/op_rules.h"

enum layout { LAYOUT_ROWS, LAYOUT_TIME, LAYOUT_HEADS };
static const char *const layouts[] = {"rows", "time", "heads"};

static yk_err int_attr(
    const struct node *n, const char *name, int64_t otherwise, int64_t least, int64_t *out, struct yk_diag *why)
{
    const struct attr *a = node_attr(n, name);
    *out = a && a->kind == ATTR_INT ? a->i : otherwise;
    if ((a && a->kind != ATTR_INT) || *out < least || *out > INT32_MAX)
        return yk_fail(why, YK_INVAL, "attribute %s must be an integer from %" PRId64 " to %d", name, least, INT32_MAX);
    return YK_OK;
}

static yk_err layout_of(const struct node *n, enum layout *out, struct yk_diag *why)
{
    const struct attr *a = node_attr(n, "layout");
    for (int i = 0; i < (int)YK_COUNT(layouts); i++)
        if (!a ? i == 0 : a->kind == ATTR_STRING && strcmp(a->s, layouts[i]) == 0) {
            *out = (enum layout)i;
            return YK_OK;
        }
    return yk_fail(why, YK_INVAL, "attribute layout is none of rows, time, heads");
}

/* One operand of three axes: its size along the axes that are not columns, and the steps. */
static yk_err columns(const struct shape *s, enum layout layout, int64_t heads, int64_t at, int64_t width,
    const char *what, int64_t *batch, int64_t *length, int64_t step[3], struct yk_diag *why)
{
    int b = layout == LAYOUT_ROWS ? 0 : 1, l = 1 - b;
    if (at + heads * width > s->dims[2])
        return yk_fail(why, YK_INVAL,
            "%s: %" PRId64 " heads of %" PRId64 " from column %" PRId64 ", but there are %" PRId64 " columns", what,
            heads, width, at, s->dims[2]);
    *batch = s->dims[b];
    *length = s->dims[l];
    step[0] = b == 0 ? s->dims[1] * s->dims[2] : s->dims[2];
    step[1] = width;
    step[2] = b == 0 ? s->dims[2] : s->dims[1] * s->dims[2];
    return YK_OK;
}

static yk_err by_columns(const struct node *n, enum layout layout, const struct shape *q, const struct shape *k,
    const struct shape *v, struct attention_dims *d, struct yk_diag *why)
{
    int64_t batch[2] = {0}, length = 0;
    yk_err err = int_attr(n, "heads", 1, 1, &d->heads, why);
    if (!err)
        err = int_attr(n, "size", 0, 1, &d->d, why);
    if (!err)
        err = int_attr(n, "v_size", d->d, 1, &d->dv, why);
    if (!err)
        err = int_attr(n, "q_at", 0, 0, &d->q_at, why);
    if (!err)
        err = int_attr(n, "k_at", 0, 0, &d->k_at, why);
    if (!err)
        err = int_attr(n, "v_at", 0, 0, &d->v_at, why);
    if (!err)
        err = columns(q, layout, d->heads, d->q_at, d->d, "Q", &d->batch, &d->lq, d->q, why);
    if (!err)
        err = columns(k, layout, d->heads, d->k_at, d->d, "K", &batch[0], &d->lk, d->k, why);
    if (!err)
        err = columns(v, layout, d->heads, d->v_at, d->dv, "V", &batch[1], &length, d->v, why);
    if (err)
        return err;
    if (batch[0] != d->batch || batch[1] != d->batch || length != d->lk)
        return yk_fail(why, YK_INVAL, "Q, K and V do not have the same batch, or K and V not the same length");
    struct shape y = {.rank = 3, .dims = {d->batch, d->lq, d->heads * d->dv}};
    if (layout == LAYOUT_TIME)
        y = (struct shape){.rank = 3, .dims = {d->lq, d->batch, d->heads * d->dv}};
    return columns(&y, layout, d->heads, 0, d->dv, "Y", &batch[0], &length, d->y, why);
}

static void steps(const struct shape *s, int64_t step[3])
{
    step[2] = s->dims[3];
    step[1] = s->dims[2] * step[2];
    step[0] = s->dims[1] * step[1];
}

static yk_err by_heads(
    const struct shape *q, const struct shape *k, const struct shape *v, struct attention_dims *d, struct yk_diag *why)
{
    for (int i = 0; i < 2; i++)
        if (k->dims[i] != q->dims[i] || v->dims[i] != q->dims[i])
            return yk_fail(why, YK_INVAL, "Q, K and V do not have the same batch and heads");
    if (q->dims[3] != k->dims[3] || k->dims[2] != v->dims[2])
        return yk_fail(why, YK_INVAL, "Q and K do not have the same width, or K and V not the same length");
    d->batch = q->dims[0];
    d->heads = q->dims[1];
    d->lq = q->dims[2];
    d->lk = k->dims[2];
    d->d = q->dims[3];
    d->dv = v->dims[3];
    struct shape y = *q;
    y.dims[3] = d->dv;
    steps(q, d->q);
    steps(k, d->k);
    steps(v, d->v);
    steps(&y, d->y);
    return YK_OK;
}

yk_err op_attention_dims(const struct node *n, const struct shape *q, const struct shape *k, const struct shape *v,
    const struct shape *mask, struct attention_dims *out, struct yk_diag *why)
{
    enum layout layout = LAYOUT_ROWS;
    struct attention_dims d = {0};
    yk_err err = layout_of(n, &layout, why);
    if (err)
        return err;
    int rank = layout == LAYOUT_HEADS ? 4 : 3;
    if (q->rank != rank || k->rank != rank || v->rank != rank)
        return yk_fail(why, YK_INVAL, "Q, K and V have %d, %d and %d axes, layout %s wants %d", q->rank, k->rank,
            v->rank, layouts[layout], rank);
    err = rank == 4 ? by_heads(q, k, v, &d, why) : by_columns(n, layout, q, k, v, &d, why);
    if (err)
        return err;
    d.scale = node_attr_f(n, "scale", 1);
    struct shape scores = {.rank = 4, .dims = {d.batch, d.heads, d.lq, d.lk}};
    if (mask && !op_broadcasts_to(mask, &scores))
        return yk_fail(why, YK_INVAL,
            "the mask does not broadcast to (%" PRId64 ",%" PRId64 ",%" PRId64 ",%" PRId64 ")", d.batch, d.heads, d.lq,
            d.lk);
    int64_t step = 1;
    for (int i = 3; mask && i >= 4 - mask->rank; i--) {
        int64_t size = mask->dims[i - (4 - mask->rank)];
        d.m[i] = size == 1 ? 0 : step;
        step *= size;
    }
    *out = d;
    return YK_OK;
}

yk_err op_rule_attention(struct op_ctx *c)
{
    struct attention_dims d;
    float scale;
    yk_err err = op_attr_f(c, "scale", 1, &scale);
    for (int i = 0; !err && i < c->n_in; i++)
        if (!(err = op_want(c, i, OP_FLOATS)))
            err = op_want_same(c, 0, i);
    if (!err)
        err = op_attention_dims(c->node, c->in[0], c->in[1], c->in[2], c->n_in > 3 ? c->in[3] : NULL, &d, c->why);
    if (err)
        return err;
    struct shape y = *c->in[0];
    y.dims[y.rank - 1] = y.rank == 4 ? d.dv : d.heads * d.dv;
    op_out(c, 0, y.dtype, y.rank, y.dims);
    return YK_OK;
}

double op_flops_attention(const struct op_ctx *c)
{
    struct attention_dims d;
    if (op_attention_dims(c->node, c->in[0], c->in[1], c->in[2], c->n_in > 3 ? c->in[3] : NULL, &d, NULL))
        return 0;
    double scores = (double)d.batch * (double)d.heads * (double)d.lq * (double)d.lk;
    return scores * (2 * (double)(d.d + d.dv) + 5); /* 5: softmax */
}
