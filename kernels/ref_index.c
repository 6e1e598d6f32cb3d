/* Ops that address by data. Every index is checked before it is used; the message names it and the limit. */
#include "kernels/ref.h"

#include <string.h>

static size_t element(const struct tensor *t)
{
    return dtype_bytes(t->shape.dtype);
}

static void outer_inner(const struct shape *s, int64_t axis, int64_t *outer, int64_t *inner)
{
    *outer = *inner = 1;
    for (int d = 0; d < axis; d++)
        *outer *= s->dims[d];
    for (int d = (int)axis + 1; d < s->rank; d++)
        *inner *= s->dims[d];
}

static yk_err index_of(struct host_call *c, const struct tensor *ids, int64_t at, int64_t limit, int64_t *out)
{
    int64_t i = ref_i(ids, at);
    if (i < -limit || i >= limit)
        return yk_fail(c->why, YK_INVAL, "index %lld (element %lld) is outside an axis of %lld", (long long)i,
            (long long)at, (long long)limit);
    *out = i < 0 ? i + limit : i;
    return YK_OK;
}

static yk_err run_gather(struct host_call *c)
{
    const struct shape *x = &c->in[0].shape;
    int64_t axis = ref_axis(node_attr_i(c->node, "axis", 0), x->rank), outer, inner, i = 0;
    outer_inner(x, axis, &outer, &inner);
    int64_t limit = x->dims[axis], n = tensor_count(&c->in[1]);
    size_t run = (size_t)inner * element(&c->in[0]);
    yk_err err;
    for (int64_t k = 0; k < n; k++) {
        if ((err = index_of(c, &c->in[1], k, limit, &i)))
            return err;
        for (int64_t o = 0; o < outer; o++)
            memcpy((char *)c->out[0].data + (size_t)(o * n + k) * run,
                (const char *)c->in[0].data + (size_t)(o * limit + i) * run, run);
    }
    return YK_OK;
}

/* Offset in x of element `at` of the index tensor, with its own coordinate on `axis` replaced by i. */
static int64_t along(const struct shape *ids, const struct shape *x, int64_t at, int64_t axis, int64_t i)
{
    int64_t off = 0, step = 1;
    for (int d = x->rank - 1; d >= 0; d--) {
        off += (d == axis ? i : at % ids->dims[d]) * step;
        at /= ids->dims[d];
        step *= x->dims[d];
    }
    return off;
}

static yk_err run_gather_elements(struct host_call *c)
{
    const struct shape *x = &c->in[0].shape, *ids = &c->in[1].shape;
    int64_t axis = ref_axis(node_attr_i(c->node, "axis", 0), x->rank), i = 0;
    size_t size = element(&c->in[0]);
    yk_err err;
    for (int64_t k = 0, n = shape_count(ids); k < n; k++) {
        if ((err = index_of(c, &c->in[1], k, x->dims[axis], &i)))
            return err;
        memcpy((char *)c->out[0].data + (size_t)k * size,
            (const char *)c->in[0].data + (size_t)along(ids, x, k, axis, i) * size, size);
    }
    return YK_OK;
}

/* reduction: copy, add, mul, min or max of one element. */
static void combine(const char *how, struct tensor *y, int64_t at, const struct tensor *u, int64_t from)
{
    enum dtype t = y->shape.dtype;
    size_t size = dtype_bytes(t);
    if (!strcmp(how, "none")) {
        memcpy((char *)y->data + (size_t)at * size, (const char *)u->data + (size_t)from * size, size);
    } else if (dtype_is_float(t)) {
        double a = ref_d(y, at), b = ref_d(u, from);
        a = !strcmp(how, "add")   ? a + b
            : !strcmp(how, "mul") ? a * b
            : !strcmp(how, "min") ? (b < a ? b : a)
                                  : (b > a ? b : a);
        ref_store_d(y->data, t, at, 1, &a, 1);
    } else {
        int64_t a = ref_i(y, at), b = ref_i(u, from);
        a = !strcmp(how, "add")   ? (int64_t)((uint64_t)a + (uint64_t)b)
            : !strcmp(how, "mul") ? (int64_t)((uint64_t)a * (uint64_t)b)
            : !strcmp(how, "min") ? (b < a ? b : a)
                                  : (b > a ? b : a);
        ref_store_i(y->data, t, at, 1, &a, 1);
    }
}

static yk_err run_scatter_elements(struct host_call *c)
{
    const struct shape *x = &c->in[0].shape, *ids = &c->in[1].shape;
    const char *how = node_attr_s(c->node, "reduction", "none");
    int64_t axis = ref_axis(node_attr_i(c->node, "axis", 0), x->rank), i = 0;
    yk_err err;
    memcpy(c->out[0].data, c->in[0].data, (size_t)tensor_bytes(&c->in[0]));
    for (int64_t k = 0, n = shape_count(ids); k < n; k++) {
        if ((err = index_of(c, &c->in[1], k, x->dims[axis], &i)))
            return err;
        combine(how, &c->out[0], along(ids, x, k, axis, i), &c->in[2], k);
    }
    return YK_OK;
}

/* Offset in x that tuple k of an ND index tensor names, over the axes from `first`. */
static yk_err tuple_of(struct host_call *c, const struct shape *x, int64_t k, int first, int64_t *off)
{
    const struct tensor *ids = &c->in[1];
    int64_t m = ids->shape.dims[ids->shape.rank - 1], i = 0;
    *off = 0;
    for (int64_t d = 0; d < m; d++) {
        yk_err err = index_of(c, ids, k * m + d, x->dims[first + d], &i);
        if (err)
            return err;
        *off = *off * x->dims[first + d] + i;
    }
    return YK_OK;
}

static yk_err run_gather_nd(struct host_call *c)
{
    const struct shape *x = &c->in[0].shape, *ids = &c->in[1].shape;
    int batch = (int)node_attr_i(c->node, "batch_dims", 0);
    int64_t m = ids->dims[ids->rank - 1], batches = 1, inner = 1, whole = 1, off;
    for (int d = 0; d < batch; d++)
        batches *= x->dims[d];
    for (int d = batch; d < x->rank; d++) {
        whole *= x->dims[d];
        inner *= d >= batch + m ? x->dims[d] : 1;
    }
    int64_t tuples = 1;
    for (int d = 0; d < ids->rank - 1; d++)
        tuples *= ids->dims[d];
    size_t run = (size_t)inner * element(&c->in[0]);
    for (int64_t k = 0; k < tuples; k++) {
        yk_err err = tuple_of(c, x, k, batch, &off);
        if (err)
            return err;
        int64_t b = k / (tuples / batches);
        memcpy((char *)c->out[0].data + (size_t)k * run,
            (const char *)c->in[0].data + (size_t)(b * whole + off * inner) * element(&c->in[0]), run);
    }
    return YK_OK;
}

static yk_err run_scatter_nd(struct host_call *c)
{
    const struct shape *x = &c->in[0].shape, *ids = &c->in[1].shape;
    const char *how = node_attr_s(c->node, "reduction", "none");
    int64_t m = ids->dims[ids->rank - 1], inner = 1, tuples = 1, off;
    for (int d = (int)m; d < x->rank; d++)
        inner *= x->dims[d];
    for (int d = 0; d < ids->rank - 1; d++)
        tuples *= ids->dims[d];
    memcpy(c->out[0].data, c->in[0].data, (size_t)tensor_bytes(&c->in[0]));
    for (int64_t k = 0; k < tuples; k++) {
        yk_err err = tuple_of(c, x, k, 0, &off);
        if (err)
            return err;
        for (int64_t i = 0; i < inner; i++)
            combine(how, &c->out[0], off * inner + i, &c->in[2], k * inner + i);
    }
    return YK_OK;
}

#define PAD_MAX ((int64_t)1 << 40) /* elements; keeps the arithmetic from overflowing */

static int64_t pad_source(int64_t i, int64_t len, int mode)
{
    if (i >= 0 && i < len)
        return i;
    if (mode == 0 || len == 0)
        return -1;
    if (mode == 1) /* edge */
        return i < 0 ? 0 : len - 1;
    if (mode == 3) { /* wrap */
        i %= len;
        return i < 0 ? i + len : i;
    }
    if (len == 1)
        return 0;
    int64_t period = 2 * (len - 1); /* reflect */
    i %= period;
    i = i < 0 ? i + period : i;
    return i < len ? i : period - i;
}

static yk_err run_pad(struct host_call *c)
{
    const struct shape *x = &c->in[0].shape, *y = &c->out[0].shape;
    const char *m = node_attr_s(c->node, "mode", "constant");
    int mode = !strcmp(m, "edge") ? 1 : !strcmp(m, "reflect") ? 2 : !strcmp(m, "wrap") ? 3 : 0;
    size_t size = element(&c->in[0]);
    char fill[8] = {0};
    int64_t begin[YK_MAX_RANK] = {0}, n = tensor_count(&c->in[1]) / 2;
    if (ref_has(c, 2) && tensor_count(&c->in[2]) == 1)
        memcpy(fill, c->in[2].data, size);
    for (int64_t k = 0; k < n; k++) {
        int64_t axis = ref_has(c, 3) ? ref_axis(ref_i(&c->in[3], k), x->rank) : k;
        if (axis < 0 || axis >= x->rank)
            return yk_fail(c->why, YK_INVAL, "axis %lld of a rank %d tensor", (long long)axis, x->rank);
        begin[axis] = ref_i(&c->in[1], k);
        if (begin[axis] < -PAD_MAX || begin[axis] > PAD_MAX)
            return yk_fail(
                c->why, YK_INVAL, "pad %lld on an axis of %lld", (long long)begin[axis], (long long)x->dims[axis]);
    }
    for (int64_t i = 0, count = shape_count(y); i < count; i++) {
        int64_t left = i, at = 0, step = 1;
        for (int d = y->rank - 1; d >= 0 && at >= 0; d--) {
            int64_t from = pad_source(left % y->dims[d] - begin[d], x->dims[d], mode);
            left /= y->dims[d];
            at = from < 0 ? -1 : at + from * step;
            step *= x->dims[d];
        }
        memcpy((char *)c->out[0].data + (size_t)i * size,
            at < 0 ? fill : (const char *)c->in[0].data + (size_t)at * size, size);
    }
    return YK_OK;
}

static yk_err run_one_hot(struct host_call *c)
{
    const struct shape *y = &c->out[0].shape;
    int64_t axis = ref_axis(node_attr_i(c->node, "axis", -1), y->rank), outer, inner;
    outer_inner(y, axis, &outer, &inner);
    int64_t depth = y->dims[axis];
    size_t size = element(&c->out[0]);
    const char *off = c->in[2].data, *on = off + size;
    for (int64_t o = 0; o < outer; o++)
        for (int64_t d = 0; d < depth; d++)
            for (int64_t i = 0; i < inner; i++) {
                int64_t id = ref_i(&c->in[0], o * inner + i);
                id = id < 0 ? id + depth : id;
                memcpy((char *)c->out[0].data + (size_t)((o * depth + d) * inner + i) * size, id == d ? on : off, size);
            }
    return YK_OK;
}

static yk_err run_cumsum(struct host_call *c)
{
    const struct shape *x = &c->in[0].shape;
    int64_t axis = ref_axis(ref_i(&c->in[1], 0), x->rank), outer, inner;
    if (axis < 0 || axis >= x->rank)
        return yk_fail(c->why, YK_INVAL, "axis %lld of a rank %d tensor", (long long)axis, x->rank);
    outer_inner(x, axis, &outer, &inner);
    int64_t len = x->dims[axis];
    bool exclusive = node_attr_i(c->node, "exclusive", 0), reverse = node_attr_i(c->node, "reverse", 0);
    enum dtype t = x->dtype;
    for (int64_t o = 0; o < outer * inner; o++) {
        double sum = 0;
        uint64_t isum = 0;
        for (int64_t k = 0; k < len; k++) {
            int64_t at = (o / inner * len + (reverse ? len - 1 - k : k)) * inner + o % inner;
            if (dtype_is_float(t)) {
                double v = ref_d(&c->in[0], at), next = sum + v;
                ref_store_d(c->out[0].data, t, at, 1, exclusive ? &sum : &next, 1);
                sum = next;
            } else {
                int64_t next = (int64_t)(isum + (uint64_t)ref_i(&c->in[0], at)), before = (int64_t)isum;
                ref_store_i(c->out[0].data, t, at, 1, exclusive ? &before : &next, 1);
                isum = (uint64_t)next;
            }
        }
    }
    return YK_OK;
}

static yk_err run_trilu(struct host_call *c)
{
    const struct shape *x = &c->in[0].shape;
    int64_t rows_n = x->dims[x->rank - 2], cols = x->dims[x->rank - 1];
    int64_t k = ref_has(c, 1) ? ref_i(&c->in[1], 0) : 0, n = shape_count(x);
    bool upper = node_attr_i(c->node, "upper", 1);
    size_t size = element(&c->in[0]);
    k = YK_MIN(YK_MAX(k, -rows_n - 1), cols + 1);
    for (int64_t i = 0; i < n; i++) {
        int64_t r = i / cols % rows_n, col = i % cols;
        if (upper ? col - r >= k : col - r <= k)
            memcpy((char *)c->out[0].data + (size_t)i * size, (const char *)c->in[0].data + (size_t)i * size, size);
        else
            memset((char *)c->out[0].data + (size_t)i * size, 0, size);
    }
    return YK_OK;
}

#define ROW(name, fn)                                      \
    {                                                      \
        .domain = "", .op = name, .kind = "ref", .run = fn \
    }
static const struct host_kernel rows[] = {
    ROW("Gather", run_gather),
    ROW("GatherElements", run_gather_elements),
    ROW("GatherND", run_gather_nd),
    ROW("ScatterElements", run_scatter_elements),
    ROW("ScatterND", run_scatter_nd),
    ROW("Pad", run_pad),
    ROW("OneHot", run_one_hot),
    ROW("CumSum", run_cumsum),
    ROW("Trilu", run_trilu),
};
const struct host_rows ref_index = {rows, (int)YK_COUNT(rows)};
