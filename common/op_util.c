/* Checks and small arithmetic that all shape rules share. */
#include <stdio.h>
#include <string.h>

#include "common/op_rules.h"

yk_err op_want(const struct op_ctx *c, int i, unsigned dtypes)
{
    if (i >= c->n_in || !c->in[i] || dtypes & OP_BIT(c->in[i]->dtype))
        return YK_OK;
    return yk_fail(
        c->why, YK_INVAL, "input %d has type %s, which this op does not take", i, dtype_name(c->in[i]->dtype));
}

yk_err op_want_same(const struct op_ctx *c, int i, int j)
{
    if (i >= c->n_in || j >= c->n_in || !c->in[i] || !c->in[j] || c->in[i]->dtype == c->in[j]->dtype)
        return YK_OK;
    return yk_fail(c->why, YK_INVAL, "inputs %d and %d differ in type (%s, %s)", i, j, dtype_name(c->in[i]->dtype),
        dtype_name(c->in[j]->dtype));
}

yk_err op_want_rank(const struct op_ctx *c, int i, int lo, int hi)
{
    if (i >= c->n_in || !c->in[i] || (c->in[i]->rank >= lo && c->in[i]->rank <= hi))
        return YK_OK;
    if (lo == hi)
        return yk_fail(c->why, YK_INVAL, "input %d has %d axes, wants %d", i, c->in[i]->rank, lo);
    return yk_fail(c->why, YK_INVAL, "input %d has %d axes, wants %d to %d", i, c->in[i]->rank, lo, hi);
}

yk_err op_attr_i(const struct op_ctx *c, const char *name, int64_t otherwise, int64_t *out)
{
    const struct attr *a = node_attr(c->node, name);
    if (a && a->kind != ATTR_INT)
        return yk_fail(c->why, YK_INVAL, "attribute %s is not an integer", name);
    *out = a ? a->i : otherwise;
    return YK_OK;
}

yk_err op_attr_f(const struct op_ctx *c, const char *name, float otherwise, float *out)
{
    const struct attr *a = node_attr(c->node, name);
    if (a && a->kind != ATTR_FLOAT)
        return yk_fail(c->why, YK_INVAL, "attribute %s is not a float", name);
    *out = a ? a->f : otherwise;
    return YK_OK;
}

yk_err op_attr_word(const struct op_ctx *c, const char *name, const char *const *words, int n, int otherwise, int *out)
{
    const struct attr *a = node_attr(c->node, name);
    char list[160];
    size_t at = 0;
    *out = otherwise;
    if (!a && otherwise >= 0)
        return YK_OK;
    for (int i = 0; a && a->kind == ATTR_STRING && i < n; i++)
        if (strcmp(a->s, words[i]) == 0) {
            *out = i;
            return YK_OK;
        }
    list[0] = 0;
    for (int i = 0; i < n && at < sizeof list; i++)
        at += (size_t)snprintf(list + at, sizeof list - at, "%s%s", i ? ", " : "", words[i]);
    return yk_fail(c->why, YK_INVAL, "attribute %s is none of %s", name, list);
}

yk_err op_attr_axis(const struct op_ctx *c, int64_t otherwise, int rank, int *out)
{
    int64_t axis = otherwise;
    yk_err err = op_attr_i(c, "axis", otherwise, &axis);
    return err ? err : op_axis(axis, rank, out, c->why);
}

yk_err op_axis(int64_t axis, int rank, int *out, struct yk_diag *why)
{
    if (axis < -(int64_t)rank || axis >= rank)
        return yk_fail(why, YK_INVAL, "axis %lld is out of range for %d axes", (long long)axis, rank);
    *out = (int)(axis < 0 ? axis + rank : axis);
    return YK_OK;
}

yk_err op_ints(const struct op_ctx *c, int i, const char *what, const int64_t **v, int *n)
{
    if (i >= c->n_in || !c->in[i])
        return yk_fail(c->why, YK_INVAL, "%s (input %d) is missing", what, i);
    if (!(OP_INDEX & OP_BIT(c->in[i]->dtype)) || c->in[i]->rank > 1)
        return yk_fail(c->why, YK_INVAL, "%s (input %d) is not a list of integers", what, i);
    int64_t count = shape_count(c->in[i]);
    if (count > OP_MAX_CONTENT)
        return yk_fail(c->why, YK_INVAL, "%s (input %d) has %lld elements", what, i, (long long)count);
    if (!c->content[i] && count > 0)
        return yk_fail(c->why, YK_DEPENDS, "%s (input %d) depends on data", what, i);
    *v = c->content[i];
    *n = (int)count;
    return YK_OK;
}

bool op_number(const struct op_ctx *c, int i, int64_t k, double *out)
{
    if (i >= c->n_in || !c->in[i] || k < 0 || k >= shape_count(c->in[i]))
        return false;
    enum dtype t = c->in[i]->dtype;
    const char *at = c->data[i];
    if (c->content[i])
        *out = (double)c->content[i][k];
    else if (!at)
        return false;
    else if (t == DT_F32)
        *out = (double)*(float *)memcpy(&(float){0}, at + 4 * k, 4);
    else if (t == DT_F64)
        memcpy(out, at + 8 * k, 8);
    else if (dtype_is_int(t) || t == DT_BOOL)
        *out = (double)dtype_read_int(t, at, k);
    else
        return false;
    return true;
}

bool op_const_scalar(const struct op_ctx *c, int i, double *out)
{
    return i < c->n_in && c->in[i] && shape_count(c->in[i]) == 1 && op_number(c, i, 0, out);
}

bool op_is_scalar(const struct shape *s)
{
    return s->rank == 0 || (s->rank == 1 && s->dims[0] == 1);
}

yk_err op_broadcast(const struct shape *const *in, int n, struct shape *out, struct yk_diag *why)
{
    struct shape s = {.dtype = DT_NONE, .rank = 0};
    for (int i = 0; i < n; i++)
        if (in[i] && in[i]->rank > s.rank)
            s.rank = in[i]->rank;
    for (int d = 0; d < s.rank; d++)
        s.dims[d] = 1;
    for (int i = 0; i < n; i++) {
        if (!in[i])
            continue;
        if (s.dtype == DT_NONE)
            s.dtype = in[i]->dtype;
        for (int k = 0; k < in[i]->rank; k++) {
            int d = s.rank - in[i]->rank + k;
            int64_t have = s.dims[d], want = in[i]->dims[k];
            if (have == want || want == 1)
                continue;
            if (have != 1)
                return yk_fail(why, YK_INVAL, "cannot broadcast sizes %lld and %lld of axis %d", (long long)have,
                    (long long)want, d);
            s.dims[d] = want;
        }
    }
    *out = s;
    return YK_OK;
}

bool op_broadcasts_to(const struct shape *s, const struct shape *target)
{
    if (s->rank > target->rank)
        return false;
    for (int k = 0; k < s->rank; k++)
        if (s->dims[k] != 1 && s->dims[k] != target->dims[target->rank - s->rank + k])
            return false;
    return true;
}

void op_out(struct op_ctx *c, int i, enum dtype dtype, int rank, const int64_t *dims)
{
    if (i >= c->n_out)
        return;
    c->out[i].dtype = dtype;
    c->out[i].rank = rank;
    for (int k = 0; k < rank && k < YK_MAX_RANK; k++)
        c->out[i].dims[k] = dims[k];
}

void op_out_like(struct op_ctx *c, int i, const struct shape *s, enum dtype dtype)
{
    op_out(c, i, dtype, s->rank, s->dims);
}
