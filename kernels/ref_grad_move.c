/* Gradients of ops that move elements: each element of dY is added to where the op took it from. Where several may go
 * to one place they are summed up in double, in the order in which they lie in dY. */
#include <stdlib.h>
#include <string.h>

#include "kernels/ref.h"
#include "kernels/resize.h"

#define BLOCK 256

/* ---- Gather: chains of the indices that name one place, in their order ---- */

struct gather_job {
    struct host_call *c;
    int64_t limit, n, inner;
    const int64_t *head, *next; /* first index of a place; the one behind an index. -1: none */
};

static void gather_piece(void *arg, int64_t begin, int64_t end)
{
    const struct gather_job *j = arg;
    struct host_call *c = j->c;
    enum dtype t = c->in[0].shape.dtype;
    double acc[BLOCK], v[BLOCK];
    for (int64_t p = begin; p < end; p++) /* outer, place */
        for (int64_t i = 0; i < j->inner; i += BLOCK) {
            int64_t n = YK_MIN(j->inner - i, BLOCK), outer = p / j->limit;
            memset(acc, 0, sizeof acc);
            for (int64_t k = j->head[p % j->limit]; k >= 0; k = j->next[k]) {
                ref_load_d(v, c->in[0].data, t, (outer * j->n + k) * j->inner + i, 1, n);
                for (int64_t l = 0; l < n; l++)
                    acc[l] += v[l];
            }
            ref_store_d(c->out[0].data, t, p * j->inner + i, 1, acc, n);
        }
}

static void gather_sizes(const struct op_ctx *c, struct backend_form *form)
{
    const struct shape *x = &c->out[0];
    int64_t axis = ref_axis(node_attr_i(c->node, "axis", 0), x->rank);
    form->workspace_bytes += (x->dims[axis] + YK_MAX(shape_count(c->in[2]), 0)) * (int64_t)sizeof(int64_t);
}

static yk_err run_gather(struct host_call *c)
{
    const struct shape *x = &c->out[0].shape;
    int64_t axis = ref_axis(node_attr_i(c->node, "axis", 0), x->rank), outer = 1;
    struct gather_job j = {.c = c, .limit = x->dims[axis], .n = tensor_count(&c->in[2]), .inner = 1};
    for (int d = 0; d < axis; d++)
        outer *= x->dims[d];
    for (int d = (int)axis + 1; d < x->rank; d++)
        j.inner *= x->dims[d];
    int64_t *head = c->workspace, *next = head + j.limit;
    for (int64_t i = 0; i < j.limit; i++)
        head[i] = -1;
    for (int64_t k = j.n - 1; k >= 0; k--) {
        int64_t i = ref_i(&c->in[2], k);
        if (i < -j.limit || i >= j.limit)
            return yk_fail(c->why, YK_INVAL, "index %lld (element %lld) is outside an axis of %lld", (long long)i,
                (long long)k, (long long)j.limit);
        i += i < 0 ? j.limit : 0;
        next[k] = head[i];
        head[i] = k;
    }
    j.head = head;
    j.next = next;
    host_split(c, outer * j.limit, 2 * j.inner * (1 + j.n / YK_MAX(j.limit, 1)), gather_piece, &j);
    return YK_OK;
}

/* ---- Slice: elements go to places of their own ---- */

static yk_err run_slice(struct host_call *c)
{
    const struct shape *x = &c->out[0].shape, *y = &c->in[0].shape;
    int64_t step[YK_MAX_RANK], base = 0, at = 1;
    size_t size = dtype_bytes(x->dtype);
    for (int d = x->rank - 1; d >= 0; d--) {
        step[d] = at;
        at *= x->dims[d];
    }
    for (int64_t k = 0, n = tensor_count(&c->in[2]); k < n; k++) {
        int64_t axis = ref_has(c, 4) ? ref_axis(ref_i(&c->in[4], k), x->rank) : k;
        if (axis < 0 || axis >= x->rank)
            return yk_fail(c->why, YK_INVAL, "axis %lld of a rank %d tensor", (long long)axis, x->rank);
        int64_t len = x->dims[axis], begin = ref_i(&c->in[2], k), by = ref_has(c, 5) ? ref_i(&c->in[5], k) : 1;
        int64_t count = y->dims[axis];
        begin = begin < -len ? -len : begin > len ? len : begin;
        begin += begin < 0 ? len : 0;
        if (by < 0 && begin > len - 1)
            begin = len - 1;
        if (count > 0 && (by < -len || by > len) && count > 1)
            return yk_fail(
                c->why, YK_INVAL, "step %lld on axis %lld of %lld", (long long)by, (long long)axis, (long long)len);
        if (count > 0 && (begin < 0 || begin >= len || begin + (count - 1) * (count > 1 ? by : 0) < 0 ||
                             begin + (count - 1) * (count > 1 ? by : 0) >= len))
            return yk_fail(c->why, YK_INVAL, "axis %lld gives other elements than were inferred", (long long)axis);
        base += begin * step[axis];
        step[axis] *= count > 1 ? by : 1;
    }
    memset(c->out[0].data, 0, (size_t)tensor_bytes(&c->out[0]));
    int rank = y->rank;
    int64_t row = rank ? y->dims[rank - 1] : 1, by = rank ? step[rank - 1] : 1, n = tensor_count(&c->in[0]);
    for (int64_t i = 0; i < n; i += row) {
        int64_t left = i / row, to = base;
        for (int d = rank - 2; d >= 0; d--) {
            to += left % y->dims[d] * step[d];
            left /= y->dims[d];
        }
        const char *from = (const char *)c->in[0].data + (size_t)i * size;
        char *dst = c->out[0].data;
        if (by == 1)
            memcpy(dst + (size_t)to * size, from, (size_t)row * size);
        else
            for (int64_t k = 0; k < row; k++)
                memcpy(dst + (size_t)(to + k * by) * size, from + (size_t)k * size, size);
    }
    return YK_OK;
}

/* ---- Tile ---- */

static void tile_piece(void *arg, int64_t begin, int64_t end)
{
    struct host_call *c = arg;
    const struct shape *x = &c->out[0].shape, *y = &c->in[0].shape;
    int64_t repeats[YK_MAX_RANK], all = 1;
    for (int d = 0; d < x->rank; d++) {
        repeats[d] = x->dims[d] ? y->dims[d] / x->dims[d] : 0;
        all *= repeats[d];
    }
    for (int64_t i = begin; i < end; i++) {
        double sum = 0;
        for (int64_t r = 0; r < all; r++) {
            int64_t left = i, again = r, at = 0, step = 1;
            for (int d = x->rank - 1; d >= 0; d--) {
                at += (left % x->dims[d] + again % repeats[d] * x->dims[d]) * step;
                left /= x->dims[d];
                again /= repeats[d];
                step *= y->dims[d];
            }
            sum += ref_d(&c->in[0], at);
        }
        ref_store_d(c->out[0].data, x->dtype, i, 1, &sum, 1);
    }
}

static yk_err run_tile(struct host_call *c)
{
    int64_t n = tensor_count(&c->out[0]);
    host_split(c, n, 10 * (tensor_count(&c->in[0]) / YK_MAX(n, 1)), tile_piece, c);
    return YK_OK;
}

/* ---- Pad ---- */

/* Where element i (of an axis, pads in front taken off) comes from; -1: it is the value that is padded with. */
static int64_t pad_source(int64_t i, int64_t len, bool edge, bool reflect)
{
    if (i >= 0 && i < len)
        return i;
    if (len < 1 || (!edge && !reflect))
        return -1;
    if (edge || len == 1)
        return i < 0 ? 0 : len - 1;
    int64_t period = 2 * (len - 1);
    i %= period;
    i = i < 0 ? i + period : i;
    return i < len ? i : period - i;
}

static void sums_sizes(const struct op_ctx *c, struct backend_form *form)
{
    form->workspace_bytes += (int64_t)sizeof(double) * YK_MAX(shape_count(&c->out[0]), 0);
}

struct pad_job {
    struct host_call *c;
    const int64_t *begin;
};

/* What is padded with a constant is cut off again. */
static void crop_piece(void *arg, int64_t from, int64_t to)
{
    const struct pad_job *j = arg;
    const struct shape *x = &j->c->out[0].shape, *y = &j->c->in[0].shape;
    size_t size = dtype_bytes(x->dtype);
    const char *dy = j->c->in[0].data;
    char *dx = j->c->out[0].data;
    for (int64_t i = from; i < to; i++) {
        int64_t left = i, at = 0, step = 1;
        for (int d = x->rank - 1; d >= 0 && at >= 0; d--) {
            int64_t k = left % x->dims[d] + j->begin[d];
            left /= x->dims[d];
            at = k < 0 || k >= y->dims[d] ? -1 : at + k * step;
            step *= y->dims[d];
        }
        if (at < 0)
            memset(dx + (size_t)i * size, 0, size);
        else
            memcpy(dx + (size_t)i * size, dy + (size_t)at * size, size);
    }
}

static yk_err run_pad(struct host_call *c)
{
    const struct shape *x = &c->out[0].shape, *y = &c->in[0].shape;
    const char *mode = node_attr_s(c->node, "mode", "constant");
    bool edge = !strcmp(mode, "edge"), reflect = !strcmp(mode, "reflect");
    double *sum = c->workspace;
    int64_t begin[YK_MAX_RANK] = {0}, n = tensor_count(&c->out[0]);
    for (int d = 0; d < x->rank; d++) {
        begin[d] = ref_i(&c->in[2], d);
        if (begin[d] < -x->dims[d] || begin[d] > y->dims[d])
            begin[d] = begin[d] < 0 ? -x->dims[d] : y->dims[d]; /* nothing of x is left */
    }
    if (!edge && !reflect) {
        struct pad_job j = {c, begin};
        host_split(c, n, 10, crop_piece, &j);
        return YK_OK;
    }
    memset(sum, 0, (size_t)n * sizeof *sum);
    for (int64_t i = 0, count = tensor_count(&c->in[0]); i < count; i++) {
        int64_t left = i, at = 0, step = 1;
        for (int d = y->rank - 1; d >= 0 && at >= 0; d--) {
            int64_t from = pad_source(left % y->dims[d] - begin[d], x->dims[d], edge, reflect);
            left /= y->dims[d];
            at = from < 0 ? -1 : at + from * step;
            step *= x->dims[d];
        }
        if (at >= 0)
            sum[at] += ref_d(&c->in[0], i);
    }
    ref_store_d(c->out[0].data, x->dtype, 0, 1, sum, n);
    return YK_OK;
}

/* ---- Resize: the weights of the forward taps ---- */

struct resize_job {
    struct host_call *c;
    const struct resize_at *table[YK_MAX_RANK];
    int64_t stride[YK_MAX_RANK];
    double *sum;
    int first;       /* axes in front of it are copied: what they count are planes of their own */
    int64_t in, out; /* elements of a plane of X and of Y */
};

static void add_at(const struct resize_job *j, int axis, int rank, int64_t base, const int64_t *at, double d)
{
    if (axis == rank) {
        j->sum[base] += d;
        return;
    }
    const struct resize_at *t = &j->table[axis][at[axis]];
    for (int k = 0; k < t->taps; k++)
        add_at(j, axis + 1, rank, base + t->index[k] * j->stride[axis], at, t->taps == 1 ? d : d * t->weight[k]);
}

static void resize_piece(void *arg, int64_t begin, int64_t end)
{
    const struct resize_job *j = arg;
    const struct tensor *dy = &j->c->in[0];
    struct tensor *dx = &j->c->out[0];
    int64_t at[YK_MAX_RANK];
    for (int64_t p = begin; p < end; p++) {
        memset(j->sum + p * j->in, 0, (size_t)j->in * sizeof *j->sum);
        for (int64_t i = 0; i < j->out; i++) {
            int64_t left = i;
            for (int d = dy->shape.rank - 1; d >= j->first; d--) {
                at[d] = left % dy->shape.dims[d];
                left /= dy->shape.dims[d];
            }
            add_at(j, j->first, dy->shape.rank, p * j->in, at, ref_d(dy, p * j->out + i));
        }
        ref_store_d(dx->data, dx->shape.dtype, p * j->in, 1, j->sum + p * j->in, j->in);
    }
}

static void resize_sizes(const struct op_ctx *c, struct backend_form *form)
{
    sums_sizes(c, form);
    for (int d = 0; d < c->in[0]->rank; d++)
        form->workspace_bytes += c->in[0]->dims[d] * (int64_t)sizeof(struct resize_at);
}

static yk_err run_resize(struct host_call *c)
{
    const struct shape *x = &c->out[0].shape, *y = &c->in[0].shape;
    struct resize_job j = {.c = c, .sum = c->workspace};
    struct resize_attrs a;
    int64_t n = tensor_count(&c->out[0]), step = 1, planes = 1;
    bool copies[YK_MAX_RANK];
    struct resize_at *table = (struct resize_at *)(void *)(j.sum + n);
    struct host_call *f = yk_try_alloc(1, sizeof *f); /* the forward call, as resize_axis_of reads it */
    yk_err err = op_resize_attrs(c->node, &a, c->why);
    if (!f)
        return yk_fail(c->why, YK_NOMEM, "no memory to resize");
    f->n_in = YK_MIN(c->n_in - 1, 4);
    f->n_out = 1;
    f->in[0].shape = *x;
    f->out[0].shape = *y;
    for (int i = 1; i < f->n_in; i++)
        f->in[i] = c->in[i + 1];
    for (int d = x->rank - 1; d >= 0 && !err; d--) {
        struct resize_axis axis = resize_axis_of(f, d);
        copies[d] = op_resize_is_copy(&a, &axis) && axis.in == axis.out;
        j.table[d] = table;
        j.stride[d] = step;
        step *= x->dims[d];
        for (int64_t i = 0; i < y->dims[d]; i++, table++) {
            memset(table, 0, sizeof *table);
            if (!op_resize_at(&a, &axis, i, table))
                table->taps = 0; /* outside: a constant */
        }
    }
    free(f);
    if (err)
        return err;
    while (j.first < x->rank && copies[j.first])
        planes *= x->dims[j.first++];
    j.in = j.out = 1;
    for (int d = j.first; d < x->rank; d++) {
        j.in *= x->dims[d];
        j.out *= y->dims[d];
    }
    host_split(c, planes, 2 * j.in + 12 * j.out, resize_piece, &j);
    return YK_OK;
}

static const struct host_kernel rows[] = {
    {.domain = "ai.yoke", .op = "GatherGrad", .kind = "ref", .sizes = gather_sizes, .run = run_gather},
    {.domain = "ai.yoke", .op = "SliceGrad", .kind = "ref", .run = run_slice},
    {.domain = "ai.yoke", .op = "TileGrad", .kind = "ref", .run = run_tile},
    {.domain = "ai.yoke", .op = "PadGrad", .kind = "ref", .sizes = sums_sizes, .run = run_pad},
    {.domain = "ai.yoke", .op = "ResizeGrad", .kind = "ref", .sizes = resize_sizes, .run = run_resize},
};
const struct host_rows ref_grad_move = {rows, (int)YK_COUNT(rows)};
