/* Resize of f32 images in modes nearest and linear, where only the last two axes change: every row of the output is
 * made of one or two rows of the input, blended first and then sampled. Images may be stored channels last. */
#include <string.h>

#include "kernels/ref.h"
#include "kernels/resize.h"
#include "kernels/simd.h"

/* Where an element of an axis comes from: first and last of its neighbours, and the share of the last. */
struct place {
    int64_t from, to;
    float share;
};

struct resize_job {
    struct host_call *c;
    int64_t in_h, in_w, out_h, out_w;
    const struct place *rows, *cols;
    float *blend; /* a row of the input for each output row of a round */
    int64_t first;
    bool linear, same; /* same: columns are copied */
    int64_t channels;  /* of a pixel, stored channels last; 1 otherwise */
};

#define ROUND 256     /* rows at a time */
#define ROUND_LAST 32 /* the same, channels last */

SIMD_CLONES static void blend_rows(
    float *restrict y, const float *restrict a, const float *restrict b, float share, int64_t n)
{
    float rest = 1 - share;
    for (int64_t i = 0; i < n; i++)
        y[i] = rest * a[i] + share * b[i];
}

static void sample_row(float *restrict y, const float *restrict x, const struct place *at, bool linear, int64_t n)
{
    if (linear)
        for (int64_t i = 0; i < n; i++) { /* a share of 0 takes nothing of a neighbour that is infinite */
            float v = x[at[i].from], s = at[i].share;
            y[i] = s > 0 ? (1 - s) * v + s * x[at[i].to] : v;
        }
    else
        for (int64_t i = 0; i < n; i++)
            y[i] = x[at[i].from];
}

/* Pixels of some channels: the same operations for each. */
SIMD_CLONES static void sample_pixels(
    float *restrict y, const float *restrict x, const struct place *at, bool linear, int64_t n, int64_t channels)
{
    for (int64_t i = 0; i < n; i++, y += channels) {
        const float *v = x + at[i].from * channels, *w = x + at[i].to * channels;
        float s = at[i].share;
        if (linear && s > 0)
            for (int64_t k = 0; k < channels; k++)
                y[k] = (1 - s) * v[k] + s * w[k];
        else
            memcpy(y, v, (size_t)channels * sizeof(float));
    }
}

static void resize_piece(void *arg, int64_t begin, int64_t end)
{
    const struct resize_job *j = arg;
    for (int64_t i = begin; i < end; i++) {
        int64_t r = j->first + i, plane = r / j->out_h;
        const struct place *row = &j->rows[r % j->out_h];
        int64_t wide = j->in_w * j->channels;
        const float *x = (const float *)j->c->in[0].data + plane * j->in_h * wide, *from = x + row->from * wide;
        float *y = (float *)j->c->out[0].data + r * j->out_w * j->channels;
        if (row->share > 0) {
            float *mixed = j->same ? y : j->blend + i * wide;
            blend_rows(mixed, from, x + row->to * wide, row->share, wide);
            from = mixed;
        }
        if (j->same && from != y)
            memcpy(y, from, (size_t)(j->out_w * j->channels) * sizeof(float));
        else if (!j->same && j->channels > 1)
            sample_pixels(y, from, j->cols, j->linear, j->out_w, j->channels);
        else if (!j->same)
            sample_row(y, from, j->cols, j->linear, j->out_w);
    }
}

static bool changes_end_only(const struct shape *x, const struct shape *y)
{
    for (int d = 0; d < x->rank - 2; d++)
        if (x->dims[d] != y->dims[d])
            return false;
    return x->rank >= 2;
}

static bool claim_resize(const struct op_ctx *c)
{
    struct resize_attrs a;
    if (c->in[0]->dtype != DT_F32 || op_resize_attrs(c->node, &a, NULL) || a.mode == RESIZE_CUBIC ||
        a.coord == RESIZE_TF_CROP || a.coord == RESIZE_TF_HALF_PIXEL_FOR_NN || !changes_end_only(c->in[0], &c->out[0]))
        return false;
    return true;
}

/* Scales that are known to leave the axes in front as they are. */
static bool claim_last(const struct op_ctx *c)
{
    if (!claim_resize(c))
        return false;
    if (c->n_in < 3 || !c->in[2] || shape_count(c->in[2]) == 0) /* sizes are given */
        return true;
    for (int d = 0; d < c->in[0]->rank - 2; d++) {
        float scale;
        if (!c->data[2] || c->in[2]->dtype != DT_F32)
            return false;
        memcpy(&scale, (const char *)c->data[2] + (size_t)d * sizeof scale, sizeof scale);
        if (scale != 1)
            return false;
    }
    return true;
}

static void sizes_resize(const struct op_ctx *c, struct backend_form *f)
{
    const struct shape *x = c->in[0], *y = &c->out[0];
    ref_kernel(c->node)->sizes(c, f);
    int64_t places = y->dims[y->rank - 2] + y->dims[y->rank - 1];
    int64_t lines = x->rank == 4 ? YK_MAX(ROUND, ROUND_LAST * x->dims[1]) : ROUND;
    int64_t own = places * (int64_t)sizeof(struct place) + lines * x->dims[x->rank - 1] * (int64_t)sizeof(float);
    f->workspace_bytes = YK_MAX(f->workspace_bytes, own);
}

static void make_places(const struct resize_attrs *a, const struct resize_axis *x, struct place *out)
{
    for (int64_t i = 0; i < x->out; i++) {
        struct resize_at at;
        op_resize_at(a, x, i, &at);
        out[i] = (struct place){
            at.index[0], at.taps == 2 ? at.index[1] : at.index[0], at.taps == 2 ? (float)at.weight[1] : 0};
    }
}

static yk_err run_resize(struct host_call *c)
{
    const struct shape *x = &c->in[0].shape, *y = &c->out[0].shape;
    int h = x->rank - 2, w = x->rank - 1;
    struct resize_attrs a;
    yk_err err = op_resize_attrs(c->node, &a, c->why);
    if (err)
        return err;
    /* A scale beside 1 may keep the size of an axis and still move its elements. */
    for (int d = 0; d < h; d++) {
        struct resize_axis axis = resize_axis_of(c, d);
        if (!op_resize_is_copy(&a, &axis) && ((c->last_in | c->last_out) & 1))
            return yk_fail(c->why, YK_INTERNAL, "a Resize of channels that are stored last");
        if (!op_resize_is_copy(&a, &axis))
            return ref_kernel(c->node)->run(c);
    }
    struct resize_axis rows = resize_axis_of(c, h), cols = resize_axis_of(c, w);
    struct place *places = c->workspace;
    struct resize_job j = {.c = c, .in_h = x->dims[h], .in_w = x->dims[w], .out_h = y->dims[h], .out_w = y->dims[w]};
    j.rows = places;
    j.cols = places + j.out_h;
    j.blend = (float *)(places + j.out_h + j.out_w);
    j.linear = a.mode == RESIZE_LINEAR;
    j.same = op_resize_is_copy(&a, &cols);
    make_places(&a, &rows, places);
    make_places(&a, &cols, places + j.out_h);
    bool last = ((c->last_in | c->last_out) & 1) != 0;
    j.channels = last ? x->dims[1] : 1;
    int64_t wide = j.out_w * j.channels, round = last ? ROUND_LAST : ROUND;
    int64_t count = wide ? tensor_count(&c->out[0]) / wide : 0;
    int64_t cost = last ? (j.in_w + j.out_w) * j.channels / 4 + 1 : j.in_w / 4 + j.out_w + 1;
    bool blends = false;
    for (int64_t i = 0; i < j.out_h && !j.same; i++)
        blends |= j.rows[i].share > 0;
    if (!blends) /* no scratch to share: all lines in one run */
        round = YK_MAX(count, 1);
    for (j.first = 0; j.first < count; j.first += round)
        host_split(c, YK_MIN(round, count - j.first), cost, resize_piece, &j);
    return YK_OK;
}

#define ROW(claims, how)                                                                             \
    {                                                                                                \
        .domain = "", .op = "Resize", .kind = "resize.rows", .claim = claims, .sizes = sizes_resize, \
        .run = run_resize, .layout = how                                                             \
    }
static const struct host_kernel rows[] = {ROW(claim_last, HOST_SAME), ROW(claim_resize, HOST_DENSE)};
const struct host_rows simd_resize = {rows, (int)YK_COUNT(rows)};
