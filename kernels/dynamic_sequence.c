/* Sequences and optionals, and tensors cut and put together along an axis. */
#include <stdlib.h>
#include <string.h>

#include "kernels/dynamic_priv.h"

/* ---- along an axis ---- */

static void outer_inner(const struct shape *s, int axis, int64_t *outer, int64_t *inner)
{
    *outer = 1;
    *inner = (int64_t)dtype_bytes(s->dtype);
    for (int d = 0; d < axis; d++)
        *outer *= s->dims[d];
    for (int d = axis + 1; d < s->rank; d++)
        *inner *= s->dims[d];
}

yk_err dynamic_slice(struct dynamic *d, const struct tensor *t, int axis, int64_t at, int64_t n, bool keep_axis,
    struct dyn_value **out, struct yk_diag *why)
{
    struct shape s = t->shape;
    int64_t outer, inner, dim = s.dims[axis];
    outer_inner(&s, axis, &outer, &inner);
    s.dims[axis] = n;
    if (!keep_axis) {
        for (int i = axis; i + 1 < s.rank; i++)
            s.dims[i] = s.dims[i + 1];
        s.rank--;
    }
    yk_err err = dyn_tensor(d->heap, &s, out, why);
    if (err || tensor_bytes(&(*out)->tensor) == 0)
        return err;
    char *to = (*out)->tensor.data;
    const char *from = t->data;
    size_t run = (size_t)(n * inner);
    for (int64_t o = 0; o < outer; o++)
        memcpy(to + (size_t)o * run, from + (size_t)((o * dim + at) * inner), run);
    return YK_OK;
}

/* The shape of the whole; every item is checked against it. */
static yk_err joined_shape(struct dyn_value *const *items, int64_t n, int64_t axis, bool stack, struct shape *out,
    int *at, struct yk_diag *why)
{
    char a[160], b[160];
    if (n < 1)
        return yk_fail(why, YK_INVAL, "there is nothing to put together");
    if (items[0]->type != VALUE_TENSOR)
        return yk_fail(why, YK_INVAL, "what is put together is no tensor");
    const struct shape *first = &items[0]->tensor.shape;
    struct shape s = {.dtype = first->dtype, .rank = first->rank + (stack ? 1 : 0)};
    if (s.rank > YK_MAX_RANK)
        return yk_fail(why, YK_LIMIT, "it would have %d axes, the limit is %d", s.rank, YK_MAX_RANK);
    yk_err err = op_axis(axis, s.rank, at, why);
    if (err)
        return err;
    for (int i = 0, k = 0; i < s.rank; i++)
        s.dims[i] = stack && i == *at ? n : first->dims[k++];
    for (int64_t i = 1; i < n; i++) {
        const struct shape *x = &items[i]->tensor.shape;
        bool same = items[i]->type == VALUE_TENSOR && x->dtype == first->dtype && x->rank == first->rank;
        for (int k = 0; same && k < x->rank; k++)
            same = x->dims[k] == first->dims[k] || (!stack && k == *at);
        if (!same) {
            dyn_text(items[0], a, sizeof(a));
            dyn_text(items[i], b, sizeof(b));
            return yk_fail(why, YK_INVAL, "member %lld is %s, member 0 is %s", (long long)i, b, a);
        }
        if (!stack && !yk_add_i64(s.dims[*at], x->dims[*at], &s.dims[*at]))
            return yk_fail(why, YK_LIMIT, "the whole is too large");
    }
    *out = s;
    return YK_OK;
}

yk_err dynamic_join(struct dynamic *d, struct dyn_value *const *items, int64_t n, int64_t axis, bool stack,
    bool reverse, struct dyn_value **out, struct yk_diag *why)
{
    struct shape s;
    int at;
    yk_err err = joined_shape(items, n, axis, stack, &s, &at, why);
    if (err || (err = dyn_tensor(d->heap, &s, out, why)) || tensor_bytes(&(*out)->tensor) == 0)
        return err;
    int64_t outer, inner, whole;
    outer_inner(&s, at, &outer, &inner);
    whole = s.dims[at] * inner;
    char *to = (*out)->tensor.data;
    for (int64_t i = 0; i < n; i++) {
        const struct tensor *t = &items[reverse ? n - 1 - i : i]->tensor;
        size_t run = (size_t)((stack ? 1 : t->shape.dims[at]) * inner);
        for (int64_t o = 0; run && o < outer; o++)
            memcpy(to + (size_t)(o * whole), (const char *)t->data + (size_t)o * run, run);
        to += run;
    }
    return YK_OK;
}

/* ---- sequences ---- */

static yk_err want_sequence(struct dyn_value *const *in, int i, struct yk_diag *why)
{
    char text[160];
    if (in[i] && in[i]->type == VALUE_SEQUENCE)
        return YK_OK;
    if (!in[i])
        return yk_fail(why, YK_INVAL, "input %d is missing", i);
    dyn_text(in[i], text, sizeof(text));
    return yk_fail(why, YK_INVAL, "input %d is no sequence: %s", i, text);
}

/* Members of a sequence are tensors of one type. */
static yk_err want_member(const struct dyn_value *v, enum dtype dtype, struct yk_diag *why)
{
    char text[160];
    if (v && v->type == VALUE_TENSOR && (dtype == DT_NONE || v->tensor.shape.dtype == dtype))
        return YK_OK;
    if (!v)
        return yk_fail(why, YK_INVAL, "a member of the sequence is missing");
    dyn_text(v, text, sizeof(text));
    return yk_fail(why, YK_INVAL, "%s cannot be a member of a sequence of %s tensors", text,
        dtype == DT_NONE ? "equal" : dtype_name(dtype));
}

static yk_err construct(
    struct dynamic *d, const struct node *n, struct dyn_value *const *in, struct dyn_value **out, struct yk_diag *why)
{
    enum dtype dtype = DT_NONE;
    for (int i = 0; i < n->n_in; i++) {
        yk_err err = want_member(in[i], dtype, why);
        if (err)
            return err;
        dtype = in[i]->tensor.shape.dtype;
    }
    return dyn_list(d->heap, VALUE_SEQUENCE, dtype, in, n->n_in, out, why);
}

static yk_err empty(struct dynamic *d, const struct node *n, struct dyn_value **out, struct yk_diag *why)
{
    int64_t type = node_attr_i(n, "dtype", 1);
    enum dtype dtype = dtype_from_onnx(type);
    if (dtype == DT_NONE)
        return yk_fail(why, YK_UNSUPPORTED, "a sequence of element type %lld", (long long)type);
    return dyn_list(d->heap, VALUE_SEQUENCE, dtype, NULL, 0, out, why);
}

/* Position input i among n places; `otherwise` without one. */
static yk_err position(
    struct dyn_value *const *in, int n_in, int i, int64_t n, int64_t otherwise, int64_t *out, struct yk_diag *why)
{
    *out = otherwise;
    if (i < n_in && in[i]) {
        yk_err err = dynamic_int(in, i, "the position", out, why);
        if (err)
            return err;
    }
    if (*out < -n || *out >= n)
        return yk_fail(
            why, YK_INVAL, "position %lld is outside a sequence of %lld places", (long long)*out, (long long)n);
    *out += *out < 0 ? n : 0;
    return YK_OK;
}

/* The sequence with `v` put in at a position, or (v NULL) without that member. */
static yk_err rebuild(struct dynamic *d, const struct dyn_value *seq, int64_t at, struct dyn_value *v,
    struct dyn_value **out, struct yk_diag *why)
{
    int64_t n = seq->n + (v ? 1 : -1);
    struct dyn_value **items = yk_try_alloc((size_t)n + 1, sizeof(struct dyn_value *));
    if (!items)
        return yk_fail(why, YK_NOMEM, "no memory for a sequence of %lld", (long long)n);
    for (int64_t i = 0, from = 0; i < n; i++) {
        if (i == at && !v)
            from++;
        items[i] = v && i == at ? v : seq->items[from++];
    }
    enum dtype dtype = seq->tensor.shape.dtype;
    if (dtype == DT_NONE && v)
        dtype = v->tensor.shape.dtype;
    yk_err err = dyn_list(d->heap, VALUE_SEQUENCE, dtype, items, n, out, why);
    free(items);
    return err;
}

static yk_err insert(
    struct dynamic *d, const struct node *n, struct dyn_value *const *in, struct dyn_value **out, struct yk_diag *why)
{
    int64_t at;
    yk_err err = want_sequence(in, 0, why);
    if (!err)
        err = want_member(in[1], in[0]->tensor.shape.dtype, why);
    /* Places are 0..n; negative ones count from the members' end. */
    if (!err && n->n_in > 2 && in[2]) {
        if ((err = dynamic_int(in, 2, "the position", &at, why)))
            return err;
        if (at < -in[0]->n || at > in[0]->n)
            return yk_fail(why, YK_INVAL, "position %lld is outside a sequence of %lld members", (long long)at,
                (long long)in[0]->n);
        at += at < 0 ? in[0]->n : 0;
    } else if (!err) {
        at = in[0]->n;
    }
    return err ? err : rebuild(d, in[0], at, in[1], out, why);
}

static yk_err erase(
    struct dynamic *d, const struct node *n, struct dyn_value *const *in, struct dyn_value **out, struct yk_diag *why)
{
    int64_t at;
    yk_err err = want_sequence(in, 0, why);
    if (!err)
        err = position(in, n->n_in, 1, in[0]->n, in[0]->n - 1, &at, why);
    return err ? err : rebuild(d, in[0], at, NULL, out, why);
}

static yk_err at_position(
    const struct node *n, struct dyn_value *const *in, struct dyn_value **out, struct yk_diag *why)
{
    int64_t at;
    yk_err err = want_sequence(in, 0, why);
    if (!err)
        err = position(in, n->n_in, 1, in[0]->n, -1, &at, why);
    if (!err)
        *out = dyn_ref(in[0]->items[at]);
    return err;
}

static yk_err concat(
    struct dynamic *d, const struct node *n, struct dyn_value *const *in, struct dyn_value **out, struct yk_diag *why)
{
    const struct attr *axis = node_attr(n, "axis");
    int64_t new_axis = node_attr_i(n, "new_axis", 0);
    yk_err err = want_sequence(in, 0, why);
    if (err)
        return err;
    if (!axis || axis->kind != ATTR_INT)
        return yk_fail(why, YK_INVAL, "it has no axis");
    if (new_axis != 0 && new_axis != 1)
        return yk_fail(why, YK_INVAL, "new_axis is %lld, wants 0 or 1", (long long)new_axis);
    return dynamic_join(d, in[0]->items, in[0]->n, axis->i, new_axis == 1, false, out, why);
}

/* How many pieces, and the length of each: `sizes` NULL means pieces of `step`, the last one maybe shorter. */
static yk_err split_sizes(const struct node *n, struct dyn_value *const *in, int64_t dim, int64_t *step,
    const struct tensor **sizes, int64_t *count, struct yk_diag *why)
{
    struct tensor *t = NULL;
    yk_err err;
    *step = 1;
    *sizes = NULL;
    *count = dim;
    if (n->n_in < 2 || !in[1])
        return YK_OK;
    if ((err = dynamic_tensor(in, 1, "the split", &t, why)))
        return err;
    if ((t->shape.dtype != DT_I32 && t->shape.dtype != DT_I64) || t->shape.rank > 1)
        return yk_fail(why, YK_INVAL, "the split is no integer or list of integers");
    if (t->shape.rank == 0) {
        *step = dtype_read_int(t->shape.dtype, t->data, 0);
        if (*step < 1)
            return yk_fail(why, YK_INVAL, "the split is %lld", (long long)*step);
        *count = dim / *step + (dim % *step != 0);
        return YK_OK;
    }
    int64_t sum = 0;
    *sizes = t;
    *count = tensor_count(t);
    for (int64_t i = 0; i < *count; i++) {
        int64_t size = dtype_read_int(t->shape.dtype, t->data, i);
        if (size < 0 || size > dim - sum)
            return yk_fail(why, YK_INVAL, "piece %lld of %lld does not fit into %lld elements", (long long)i,
                (long long)size, (long long)dim);
        sum += size;
    }
    return sum == dim ? YK_OK
                      : yk_fail(why, YK_INVAL, "the pieces have %lld elements, the axis has %lld", (long long)sum,
                            (long long)dim);
}

static yk_err split(
    struct dynamic *d, const struct node *n, struct dyn_value *const *in, struct dyn_value **out, struct yk_diag *why)
{
    struct tensor *t = NULL;
    const struct tensor *sizes = NULL;
    int64_t step, count, at = 0, done = 0;
    int axis;
    yk_err err = dynamic_tensor(in, 0, "what is split", &t, why);
    if (!err)
        err = op_axis(node_attr_i(n, "axis", 0), t->shape.rank, &axis, why);
    if (!err)
        err = split_sizes(n, in, t->shape.dims[axis], &step, &sizes, &count, why);
    if (err)
        return err;
    bool keep = n->n_in > 1 && in[1] ? true : node_attr_i(n, "keepdims", 1) != 0;
    struct dyn_value **items = yk_try_alloc((size_t)count + 1, sizeof(struct dyn_value *));
    if (!items)
        return yk_fail(why, YK_NOMEM, "no memory for a sequence of %lld", (long long)count);
    for (; done < count && !err; done++) {
        int64_t size =
            sizes ? dtype_read_int(sizes->shape.dtype, sizes->data, done) : YK_MIN(step, t->shape.dims[axis] - at);
        if ((err = dynamic_slice(d, t, axis, at, size, keep, &items[done], why)))
            break;
        at += size;
    }
    if (!err)
        err = dyn_list(d->heap, VALUE_SEQUENCE, t->shape.dtype, items, count, out, why);
    for (int64_t i = 0; i < done; i++)
        dyn_unref(items[i]);
    free(items);
    return err;
}

/* ---- optionals ---- */

static yk_err optional(
    struct dynamic *d, const struct node *n, struct dyn_value *const *in, struct dyn_value **out, struct yk_diag *why)
{
    bool filled = n->n_in > 0 && in[0];
    if (filled && in[0]->type == VALUE_OPTIONAL)
        return yk_fail(why, YK_INVAL, "an optional cannot hold an optional");
    return dyn_list(d->heap, VALUE_OPTIONAL, DT_NONE, in, filled ? 1 : 0, out, why);
}

static yk_err get_element(struct dyn_value *const *in, struct dyn_value **out, struct yk_diag *why)
{
    if (!in[0])
        return yk_fail(why, YK_INVAL, "input 0 is missing");
    if (in[0]->type != VALUE_OPTIONAL) {
        *out = dyn_ref(in[0]);
        return YK_OK;
    }
    if (in[0]->n == 0)
        return yk_fail(why, YK_INVAL, "the optional is empty");
    *out = dyn_ref(in[0]->items[0]);
    return YK_OK;
}

yk_err dynamic_sequence(
    struct dynamic *d, const struct node *n, struct dyn_value *const *in, struct dyn_value **out, struct yk_diag *why)
{
    const char *op = n->op->name;
    yk_err err;
    if (!strcmp(op, "SequenceConstruct"))
        return construct(d, n, in, out, why);
    if (!strcmp(op, "SequenceEmpty"))
        return empty(d, n, out, why);
    if (!strcmp(op, "SequenceInsert"))
        return insert(d, n, in, out, why);
    if (!strcmp(op, "SequenceErase"))
        return erase(d, n, in, out, why);
    if (!strcmp(op, "SequenceAt"))
        return at_position(n, in, out, why);
    if (!strcmp(op, "ConcatFromSequence"))
        return concat(d, n, in, out, why);
    if (!strcmp(op, "SplitToSequence"))
        return split(d, n, in, out, why);
    if (!strcmp(op, "SequenceLength"))
        return (err = want_sequence(in, 0, why)) ? err : dynamic_scalar(d, DT_I64, 0, in[0]->n, out, why);
    if (!strcmp(op, "Optional"))
        return optional(d, n, in, out, why);
    if (!strcmp(op, "OptionalGetElement"))
        return get_element(in, out, why);
    if (!strcmp(op, "OptionalHasElement"))
        return dynamic_scalar(
            d, DT_BOOL, 0, n->n_in > 0 && in[0] && (in[0]->type != VALUE_OPTIONAL || in[0]->n > 0), out, why);
    return yk_fail(why, YK_UNSUPPORTED, "no backend here can run it");
}
