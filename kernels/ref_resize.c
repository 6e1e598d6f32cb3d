/* Resize: for each axis a table of where its elements come from, then products of the tables. */
#include "kernels/ref.h"

#include <string.h>

#include "kernels/resize.h"

struct resize_job {
    struct host_call *c;
    struct resize_attrs a;
    const struct resize_at *table[YK_MAX_RANK]; /* taps 0: outside */
    int64_t stride[YK_MAX_RANK];
};

struct resize_axis resize_axis_of(const struct host_call *c, int d)
{
    int rank = c->in[0].shape.rank;
    struct resize_axis a = {.in = c->in[0].shape.dims[d], .out = c->out[0].shape.dims[d], .scale = 1, .roi_end = 1};
    a.exact = !(ref_has(c, RESIZE_SCALES) && tensor_count(&c->in[RESIZE_SCALES]) == rank);
    if (!a.exact)
        a.scale = ref_d(&c->in[RESIZE_SCALES], d);
    if (ref_has(c, RESIZE_ROI) && tensor_count(&c->in[RESIZE_ROI]) == 2 * rank) {
        a.roi_begin = ref_d(&c->in[RESIZE_ROI], d);
        a.roi_end = ref_d(&c->in[RESIZE_ROI], rank + d);
    }
    return a;
}

static double value_at(const struct resize_job *j, int axis, int64_t base, const int64_t *at)
{
    if (axis == j->c->in[0].shape.rank)
        return ref_d(&j->c->in[0], base);
    const struct resize_at *t = &j->table[axis][at[axis]];
    if (t->taps == 1)
        return value_at(j, axis + 1, base + t->index[0] * j->stride[axis], at);
    double sum = 0;
    for (int k = 0; k < t->taps; k++)
        sum += t->weight[k] * value_at(j, axis + 1, base + t->index[k] * j->stride[axis], at);
    return sum;
}

static void resize_piece(void *arg, int64_t begin, int64_t end)
{
    const struct resize_job *j = arg;
    const struct tensor *x = &j->c->in[0], *y = &j->c->out[0];
    int rank = y->shape.rank;
    size_t size = dtype_bytes(x->shape.dtype);
    int64_t row = rank ? y->shape.dims[rank - 1] : 1, at[YK_MAX_RANK] = {0};
    for (int64_t r = begin; r < end; r++) {
        int64_t left = r;
        for (int d = rank - 2; d >= 0; d--) {
            at[d] = left % y->shape.dims[d];
            left /= y->shape.dims[d];
        }
        for (int64_t i = 0; i < row; i++) {
            bool outside = false;
            int64_t from = 0;
            if (rank)
                at[rank - 1] = i;
            for (int d = 0; d < rank; d++) {
                outside |= j->table[d][at[d]].taps == 0;
                from += j->table[d][at[d]].index[0] * j->stride[d];
            }
            double v = (double)j->a.extrapolation;
            if (!outside && j->a.mode == RESIZE_NEAREST) {
                memcpy(
                    (char *)y->data + (size_t)(r * row + i) * size, (const char *)x->data + (size_t)from * size, size);
                continue;
            }
            if (!outside)
                v = value_at(j, 0, 0, at);
            ref_store_d(y->data, y->shape.dtype, r * row + i, 1, &v, 1);
        }
    }
}

static void sizes_resize(const struct op_ctx *c, struct backend_form *f)
{
    int64_t n = 0;
    for (int d = 0; d < c->out[0].rank; d++)
        n += c->out[0].dims[d];
    f->workspace_bytes = n * (int64_t)sizeof(struct resize_at);
}

static yk_err run_resize(struct host_call *c)
{
    struct resize_job j = {.c = c};
    struct resize_at *table = c->workspace;
    const struct shape *x = &c->in[0].shape, *y = &c->out[0].shape;
    yk_err err = op_resize_attrs(c->node, &j.a, c->why);
    if (err)
        return err;
    int64_t stride = 1;
    for (int d = x->rank - 1; d >= 0; d--) {
        j.stride[d] = stride;
        stride *= x->dims[d];
        struct resize_axis axis = resize_axis_of(c, d);
        j.table[d] = table;
        bool copy = op_resize_is_copy(&j.a, &axis);
        for (int64_t i = 0; i < y->dims[d]; i++, table++) {
            if (copy)
                *table = (struct resize_at){.taps = 1, .index = {i}, .weight = {1}};
            else if (!op_resize_at(&j.a, &axis, i, table))
                table->taps = 0;
        }
    }
    int64_t row = y->rank ? y->dims[y->rank - 1] : 1, rows = row ? tensor_count(&c->out[0]) / row : 0;
    host_split(c, rows, 20 * row, resize_piece, &j);
    return YK_OK;
}

static const struct host_kernel rows[] = {
    {.domain = "", .op = "Resize", .kind = "ref", .sizes = sizes_resize, .run = run_resize},
};
const struct host_rows ref_resize = {rows, (int)YK_COUNT(rows)};
