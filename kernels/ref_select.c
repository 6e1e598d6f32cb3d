/* Ops that choose elements by their values. Where values are ordered, NaN is the largest and equal to itself, zeros of
 * both signs are equal, and of equal ones the first in the input comes first. */
#include "kernels/ref.h"

#include <math.h>
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

static bool wanted(const struct host_call *c, int i)
{
    return i < c->n_out && !ref_absent(&c->out[i]);
}

/* <0, 0, >0 */
static int order(const struct tensor *t, int64_t at, int64_t other)
{
    if (dtype_is_float(t->shape.dtype)) {
        double a = ref_d(t, at), b = ref_d(t, other);
        if (isnan(a) || isnan(b))
            return isnan(a) - isnan(b);
        return (a > b) - (a < b);
    }
    int64_t a = ref_i(t, at), b = ref_i(t, other);
    if (t->shape.dtype == DT_U64)
        return ((uint64_t)a > (uint64_t)b) - ((uint64_t)a < (uint64_t)b);
    return (a > b) - (a < b);
}

/* Merge sort of n ids from the bottom; equal ones keep their order. Gives the one of both lists that is sorted. */
static int64_t *sort_ids(
    int64_t *ids, int64_t *spare, int64_t n, int (*cmp)(const void *arg, int64_t a, int64_t b), const void *arg)
{
    for (int64_t width = 1; width < n; width *= 2) {
        for (int64_t begin = 0; begin < n; begin += 2 * width) {
            int64_t mid = YK_MIN(begin + width, n), end = YK_MIN(begin + 2 * width, n);
            for (int64_t k = begin, a = begin, b = mid; k < end; k++)
                spare[k] = a < mid && (b >= end || cmp(arg, ids[a], ids[b]) <= 0) ? ids[a++] : ids[b++];
        }
        int64_t *t = ids;
        ids = spare;
        spare = t;
    }
    return ids;
}

static bool is_zero(const struct tensor *t, int64_t at)
{
    return dtype_is_float(t->shape.dtype) ? ref_d(t, at) == 0 : ref_i(t, at) == 0;
}

static yk_err run_nonzero(struct host_call *c)
{
    const struct tensor *x = &c->in[0];
    int64_t n = tensor_count(x), found = 0;
    int64_t *out = c->out[0].data;
    for (int64_t i = 0; i < n; i++)
        found += !is_zero(x, i);
    c->out[0].shape.dims[1] = x->shape.rank ? found : 0;
    for (int64_t i = 0, k = 0; i < n; i++) {
        if (is_zero(x, i))
            continue;
        int64_t left = i;
        for (int d = x->shape.rank - 1; d >= 0; d--) {
            out[d * found + k] = left % x->shape.dims[d];
            left /= x->shape.dims[d];
        }
        k++;
    }
    return YK_OK;
}

static yk_err run_compress(struct host_call *c)
{
    const struct tensor *x = &c->in[0];
    const uint8_t *cond = c->in[1].data;
    const struct attr *a = node_attr(c->node, "axis");
    int64_t axis = a ? ref_axis(a->i, x->shape.rank) : 0, outer = 1, inner = 1, taken = 0;
    int64_t length = a ? x->shape.dims[axis] : tensor_count(x), n = tensor_count(&c->in[1]), k = 0;
    if (a)
        outer_inner(&x->shape, axis, &outer, &inner);
    size_t run = (size_t)inner * element(x);
    for (int64_t i = 0; i < n; i++)
        taken += cond[i] != 0;
    c->out[0].shape.dims[axis] = taken;
    for (int64_t o = 0; o < outer && run; o++)
        for (int64_t i = 0; i < n; i++)
            if (cond[i])
                memcpy((char *)c->out[0].data + (size_t)k++ * run,
                    (const char *)x->data + (size_t)(o * length + i) * run, run);
    return YK_OK;
}

/* ---- Unique ---- */

struct slices { /* x as outer times n slices times inner */
    const struct tensor *x;
    int64_t outer, n, inner;
};

static int order_slices(const void *arg, int64_t a, int64_t b)
{
    const struct slices *s = arg;
    for (int64_t o = 0; o < s->outer; o++)
        for (int64_t i = 0; i < s->inner; i++) {
            int r = order(s->x, (o * s->n + a) * s->inner + i, (o * s->n + b) * s->inner + i);
            if (r)
                return r;
        }
    return 0;
}

static void sizes_unique(const struct op_ctx *c, struct backend_form *f)
{
    const struct attr *a = node_attr(c->node, "axis");
    int64_t n = shape_count(c->in[0]);
    if (a && a->kind == ATTR_INT && c->in[0]->rank > 0)
        n = c->in[0]->dims[ref_axis(a->i, c->in[0]->rank)];
    f->workspace_bytes = 4 * (YK_MAX(n, 0) + 1) * (int64_t)sizeof(int64_t);
}

static yk_err run_unique(struct host_call *c)
{
    const struct tensor *x = &c->in[0];
    const struct attr *attr = node_attr(c->node, "axis");
    int64_t axis = attr ? ref_axis(attr->i, x->shape.rank) : 0, groups = 0;
    struct slices s = {x, 1, attr ? x->shape.dims[axis] : tensor_count(x), 1};
    if (attr)
        outer_inner(&x->shape, axis, &s.outer, &s.inner);
    int64_t *first = (int64_t *)c->workspace + 2 * s.n, *number = first + s.n;
    int64_t *ids = c->workspace;
    for (int64_t i = 0; i < s.n; i++)
        ids[i] = i;
    ids = sort_ids(ids, ids + s.n, s.n, order_slices, &s);
    /* number[i]: the group of slice i. In groups of equal slices the smallest index comes first. */
    for (int64_t k = 0; k < s.n; k++) {
        if (k == 0 || order_slices(&s, ids[k - 1], ids[k]))
            first[groups++] = ids[k];
        number[ids[k]] = groups - 1;
    }
    if (!node_attr_i(c->node, "sorted", 1)) { /* by first appearance: ids becomes the new number of a group */
        int64_t next = 0;
        for (int64_t i = 0; i < s.n; i++)
            if (first[number[i]] == i)
                ids[number[i]] = next++;
        for (int64_t i = 0; i < s.n; i++)
            number[i] = ids[number[i]];
        next = 0;
        for (int64_t i = 0; i < s.n; i++)
            if (number[i] == next)
                first[next++] = i;
    }
    c->out[0].shape.dims[axis] = groups;
    size_t run = (size_t)s.inner * element(x);
    for (int64_t o = 0; o < s.outer && run; o++)
        for (int64_t g = 0; g < groups; g++)
            memcpy((char *)c->out[0].data + (size_t)(o * groups + g) * run,
                (const char *)x->data + (size_t)(o * s.n + first[g]) * run, run);
    if (wanted(c, 1)) {
        c->out[1].shape.dims[0] = groups;
        memcpy(c->out[1].data, first, (size_t)groups * sizeof(int64_t));
    }
    if (wanted(c, 2))
        memcpy(c->out[2].data, number, (size_t)s.n * sizeof(int64_t));
    if (wanted(c, 3)) {
        int64_t *counts = c->out[3].data;
        c->out[3].shape.dims[0] = groups;
        memset(counts, 0, (size_t)groups * sizeof(int64_t));
        for (int64_t i = 0; i < s.n; i++)
            counts[number[i]]++;
    }
    return YK_OK;
}

/* ---- TopK: a heap of the best so far, the worst of them on top ---- */

struct best {
    const struct tensor *x;
    int64_t base, step; /* of the row */
    bool largest;
    int64_t *heap, n;
};

/* Candidate a comes before b. */
static bool better(const struct best *s, int64_t a, int64_t b)
{
    int r = order(s->x, s->base + a * s->step, s->base + b * s->step);
    return r ? (r > 0) == s->largest : a < b;
}

static void sink(struct best *s, int64_t at)
{
    int64_t id = s->heap[at];
    for (int64_t k; (k = 2 * at + 1) < s->n; at = k) {
        if (k + 1 < s->n && better(s, s->heap[k], s->heap[k + 1]))
            k++;
        if (!better(s, id, s->heap[k]))
            break;
        s->heap[at] = s->heap[k];
    }
    s->heap[at] = id;
}

static void choose(struct best *s, int64_t length, int64_t k)
{
    for (int64_t i = 0; i < k; i++)
        s->heap[i] = i;
    s->n = k;
    for (int64_t i = k / 2; i-- > 0;)
        sink(s, i);
    for (int64_t i = k; i < length; i++)
        if (better(s, i, s->heap[0])) {
            s->heap[0] = i;
            sink(s, 0);
        }
    while (s->n > 1) { /* the worst goes to the end */
        int64_t worst = s->heap[0];
        s->heap[0] = s->heap[--s->n];
        sink(s, 0);
        s->heap[s->n] = worst;
    }
}

static void sizes_topk(const struct op_ctx *c, struct backend_form *f)
{
    const struct attr *a = node_attr(c->node, "axis");
    int rank = c->in[0]->rank;
    f->workspace_bytes = c->out[0].dims[ref_axis(a ? a->i : -1, rank)] * (int64_t)sizeof(int64_t);
}

static yk_err run_topk(struct host_call *c)
{
    const struct tensor *x = &c->in[0];
    int64_t axis = ref_axis(node_attr_i(c->node, "axis", -1), x->shape.rank), outer, inner;
    outer_inner(&x->shape, axis, &outer, &inner);
    int64_t length = x->shape.dims[axis], k = c->out[0].shape.dims[axis];
    struct best s = {.x = x, .step = inner, .largest = node_attr_i(c->node, "largest", 1), .heap = c->workspace};
    size_t size = element(x);
    if (k == 0)
        return YK_OK;
    if (k > length || k < 0)
        return yk_fail(c->why, YK_INVAL, "K is %lld for an axis of %lld", (long long)k, (long long)length);
    for (int64_t r = 0; r < outer * inner; r++) {
        s.base = r / inner * length * inner + r % inner;
        choose(&s, length, k);
        for (int64_t i = 0; i < k; i++) {
            int64_t at = (r / inner * k + i) * inner + r % inner;
            memcpy((char *)c->out[0].data + (size_t)at * size,
                (const char *)x->data + (size_t)(s.base + s.heap[i] * inner) * size, size);
            if (wanted(c, 1))
                ((int64_t *)c->out[1].data)[at] = s.heap[i];
        }
    }
    return YK_OK;
}

/* ---- NonMaxSuppression ---- */

struct box {
    double y1, x1, y2, x2;
};

static struct box box_at(const float *v, bool centre)
{
    double a = (double)v[0], b = (double)v[1], c = (double)v[2], d = (double)v[3];
    if (centre) /* x, y, width, height */
        return (struct box){b - d / 2, a - c / 2, b + d / 2, a + c / 2};
    return (struct box){YK_MIN(a, c), YK_MIN(b, d), YK_MAX(a, c), YK_MAX(b, d)};
}

/* Intersection over union above the threshold; boxes without an area overlap nothing. */
static bool overlaps(struct box a, struct box b, double threshold)
{
    double h = YK_MIN(a.y2, b.y2) - YK_MAX(a.y1, b.y1), w = YK_MIN(a.x2, b.x2) - YK_MAX(a.x1, b.x1);
    double area_a = (a.y2 - a.y1) * (a.x2 - a.x1), area_b = (b.y2 - b.y1) * (b.x2 - b.x1);
    if (!(h > 0 && w > 0 && area_a > 0 && area_b > 0))
        return false;
    return h * w / (area_a + area_b - h * w) > threshold;
}

/* The larger score first. */
static int order_scores(const void *arg, int64_t a, int64_t b)
{
    const float *s = arg;
    return (s[a] < s[b]) - (s[a] > s[b]);
}

static void sizes_nms(const struct op_ctx *c, struct backend_form *f)
{
    f->workspace_bytes = 2 * (c->in[0]->dims[1] + 1) * (int64_t)sizeof(int64_t);
}

/* Best scores first. A box with a NaN for a score is no candidate. */
static yk_err run_nms(struct host_call *c)
{
    const struct shape *boxes = &c->in[0].shape, *scores = &c->in[1].shape;
    int64_t n = boxes->dims[1], classes = scores->dims[1], total = 0, *out = c->out[0].data;
    int64_t most = ref_has(c, 2) ? YK_MIN(YK_MAX(ref_i(&c->in[2], 0), 0), n) : 0;
    double iou = ref_has(c, 3) ? ref_d(&c->in[3], 0) : 0, low = ref_has(c, 4) ? ref_d(&c->in[4], 0) : 0;
    bool centre = node_attr_i(c->node, "center_point_box", 0);
    if (!(iou >= 0 && iou <= 1))
        return yk_fail(c->why, YK_INVAL, "iou_threshold is %g, allowed are 0 to 1", iou);
    if (c->out[0].shape.dims[1] != 3)
        return yk_fail(c->why, YK_INTERNAL, "output 0 does not have three columns");
    int64_t *ids = c->workspace;
    for (int64_t r = 0; r < scores->dims[0] * classes; r++) {
        const float *s = (const float *)c->in[1].data + r * n, *b = (const float *)c->in[0].data + r / classes * n * 4;
        int64_t begin = total, k = 0;
        for (int64_t i = 0; i < n; i++)
            if (!isnan(s[i]) && (!ref_has(c, 4) || (double)s[i] > low))
                ids[k++] = i;
        const int64_t *sorted = sort_ids(ids, ids + n, k, order_scores, s);
        for (int64_t i = 0; i < k && total - begin < most; i++) {
            struct box candidate = box_at(b + 4 * sorted[i], centre);
            bool free_place = true;
            for (int64_t j = begin; j < total && free_place; j++)
                free_place = !overlaps(candidate, box_at(b + 4 * out[3 * j + 2], centre), iou);
            if (!free_place)
                continue;
            out[3 * total] = r / classes;
            out[3 * total + 1] = r % classes;
            out[3 * total + 2] = sorted[i];
            total++;
        }
    }
    c->out[0].shape.dims[0] = total;
    return YK_OK;
}

#define ROW(name, size_fn, fn)                                               \
    {                                                                        \
        .domain = "", .op = name, .kind = "ref", .sizes = size_fn, .run = fn \
    }
static const struct host_kernel rows[] = {
    ROW("NonZero", NULL, run_nonzero),
    ROW("Compress", NULL, run_compress),
    ROW("Unique", sizes_unique, run_unique),
    ROW("TopK", sizes_topk, run_topk),
    ROW("NonMaxSuppression", sizes_nms, run_nms),
};
const struct host_rows ref_select = {rows, (int)YK_COUNT(rows)};
