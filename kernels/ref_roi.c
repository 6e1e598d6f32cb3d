/* Ops that sample an image at computed places, or put elements back: GridSample, RoiAlign, MaxRoiPool, MaxUnpool,
 * ReverseSequence. Places come from data: whatever they are, nothing outside the image is read. */
#include "kernels/ref.h"

#include <math.h>
#include <string.h>

/* ---- GridSample, as PyTorch's grid_sample ---- */

enum pad { PAD_ZEROS, PAD_BORDER, PAD_REFLECTION };

struct grid_job {
    struct host_call *c;
    int64_t planes, h, w, out_h, out_w; /* planes: channels of an image */
    char mode;                          /* 'l', 'n' or 'c' */
    enum pad pad;
    bool align;
};

/* Mirrors at lo and hi until inside. */
static double reflect(double at, double lo, double hi)
{
    double span = hi - lo;
    if (span <= 0)
        return 0;
    double in = fabs(at - lo), extra = fmod(in, span);
    return fmod(floor(in / span), 2) == 0 ? lo + extra : hi - extra;
}

/* Where padding moves a coordinate of an axis of n elements; zeros leave it. */
static double bounded(const struct grid_job *j, double at, int64_t n)
{
    double last = (double)(n - 1);
    if (!isfinite(at))
        at = -100; /* outside, as in PyTorch */
    if (j->pad == PAD_REFLECTION)
        at = j->align ? reflect(at, 0, last) : reflect(at, -0.5, last + 0.5);
    if (j->pad != PAD_ZEROS)
        at = at < 0 ? 0 : at > last ? last : at;
    return at;
}

/* Element (y, x) of a plane; coordinates are whole. */
static double pixel(const struct grid_job *j, int64_t plane, double y, double x)
{
    if (!(y >= 0 && y < (double)j->h && x >= 0 && x < (double)j->w))
        return 0;
    return ref_d(&j->c->in[0], (plane * j->h + (int64_t)y) * j->w + (int64_t)x);
}

static void cubic_weights(double t, double *w)
{
    const double a = -0.75;
    w[0] = ((a * (t + 1) - 5 * a) * (t + 1) + 8 * a) * (t + 1) - 4 * a;
    w[1] = ((a + 2) * t - (a + 3)) * t * t + 1;
    w[2] = ((a + 2) * (1 - t) - (a + 3)) * (1 - t) * (1 - t) + 1;
    w[3] = ((a * (2 - t) - 5 * a) * (2 - t) + 8 * a) * (2 - t) - 4 * a;
}

static double sample(const struct grid_job *j, int64_t plane, double y, double x)
{
    if (j->mode == 'n')
        return pixel(j, plane, nearbyint(bounded(j, y, j->h)), nearbyint(bounded(j, x, j->w)));
    if (j->mode == 'c') {
        double wy[4], wx[4], sum = 0, top = floor(y), left = floor(x);
        if (!isfinite(y) || !isfinite(x))
            return j->pad == PAD_ZEROS ? 0 : NAN;
        cubic_weights(y - top, wy);
        cubic_weights(x - left, wx);
        for (int r = 0; r < 4; r++) {
            double row = 0, at = bounded(j, top + r - 1, j->h);
            for (int k = 0; k < 4; k++)
                row += wx[k] * pixel(j, plane, at, bounded(j, left + k - 1, j->w));
            sum += wy[r] * row;
        }
        return sum;
    }
    y = bounded(j, y, j->h);
    x = bounded(j, x, j->w);
    double top = floor(y), left = floor(x), fy = y - top, fx = x - left;
    return pixel(j, plane, top, left) * (1 - fy) * (1 - fx) + pixel(j, plane, top, left + 1) * (1 - fy) * fx +
           pixel(j, plane, top + 1, left) * fy * (1 - fx) + pixel(j, plane, top + 1, left + 1) * fy * fx;
}

/* In f32 where the nearest is asked for: everybody's ties are those of f32. */
static double denormal(const struct grid_job *j, double v, int64_t n)
{
    if (j->mode == 'n') {
        float f = (float)v, size = (float)n;
        return (double)(j->align ? (f + 1) / 2 * (size - 1) : ((f + 1) * size - 1) / 2);
    }
    return j->align ? (v + 1) / 2 * (double)(n - 1) : ((v + 1) * (double)n - 1) / 2;
}

static void grid_piece(void *arg, int64_t begin, int64_t end)
{
    const struct grid_job *j = arg;
    int64_t per = j->out_h * j->out_w;
    struct tensor *out = &j->c->out[0];
    for (int64_t p = begin; p < end; p++)
        for (int64_t i = 0; i < per; i++) {
            int64_t at = (p / j->planes * per + i) * 2;
            double x = denormal(j, ref_d(&j->c->in[1], at), j->w), y = denormal(j, ref_d(&j->c->in[1], at + 1), j->h);
            double v = sample(j, p, y, x);
            ref_store_d(out->data, out->shape.dtype, p * per + i, 1, &v, 1);
        }
}

static yk_err run_grid(struct host_call *c)
{
    const struct shape *x = &c->in[0].shape, *y = &c->out[0].shape;
    const char *mode = node_attr_s(c->node, "mode", "bilinear"), *pad = node_attr_s(c->node, "padding_mode", "zeros");
    struct grid_job j = {.c = c, .planes = x->dims[1], .h = x->dims[2], .w = x->dims[3]};
    j.out_h = y->dims[2];
    j.out_w = y->dims[3];
    j.mode = !strcmp(mode, "nearest") ? 'n' : !strcmp(mode, "bicubic") ? 'c' : 'l';
    j.pad = !strcmp(pad, "border") ? PAD_BORDER : !strcmp(pad, "reflection") ? PAD_REFLECTION : PAD_ZEROS;
    j.align = node_attr_i(c->node, "align_corners", 0) != 0;
    host_split(c, x->dims[0] * j.planes, 60 * j.out_h * j.out_w, grid_piece, &j);
    return YK_OK;
}

/* ---- RoiAlign ---- */

#define GRID_MAX 4096 /* samples of one output element along an axis */

struct roi_job {
    struct host_call *c;
    int64_t channels, h, w, out_h, out_w, ratio;
    bool max, half_pixel;
    double scale;
};

/* Bilinear sample; up to a pixel outside the edge is taken. */
static double roi_sample(const struct roi_job *j, int64_t plane, double y, double x)
{
    if (!(y >= -1 && y <= (double)j->h && x >= -1 && x <= (double)j->w))
        return 0;
    y = YK_MAX(y, 0);
    x = YK_MAX(x, 0);
    int64_t top = YK_MIN((int64_t)y, j->h - 1), left = YK_MIN((int64_t)x, j->w - 1);
    int64_t bottom = YK_MIN(top + 1, j->h - 1), right = YK_MIN(left + 1, j->w - 1);
    double fy = bottom == top ? 0 : y - (double)top, fx = right == left ? 0 : x - (double)left;
    const struct tensor *t = &j->c->in[0];
    int64_t base = plane * j->h * j->w;
    return ref_d(t, base + top * j->w + left) * (1 - fy) * (1 - fx) +
           ref_d(t, base + top * j->w + right) * (1 - fy) * fx + ref_d(t, base + bottom * j->w + left) * fy * (1 - fx) +
           ref_d(t, base + bottom * j->w + right) * fy * fx;
}

struct roi {
    double x, y, bin_w, bin_h;
    int64_t grid_h, grid_w;
};

static struct roi roi_of(const struct roi_job *j, int64_t r)
{
    double v[4], shift = j->half_pixel ? 0.5 : 0;
    for (int k = 0; k < 4; k++)
        v[k] = ref_d(&j->c->in[1], 4 * r + k) * j->scale - shift;
    double w = v[2] - v[0], h = v[3] - v[1];
    if (!j->half_pixel) { /* of the older form: at least a pixel */
        w = w < 1 ? 1 : w;
        h = h < 1 ? 1 : h;
    }
    struct roi o = {.x = v[0], .y = v[1], .bin_w = w / (double)j->out_w, .bin_h = h / (double)j->out_h};
    double gh = j->ratio ? (double)j->ratio : ceil(o.bin_h), gw = j->ratio ? (double)j->ratio : ceil(o.bin_w);
    o.grid_h = gh >= 0 && gh <= GRID_MAX ? (int64_t)gh : -1;
    o.grid_w = gw >= 0 && gw <= GRID_MAX ? (int64_t)gw : -1;
    if (j->ratio == 0) { /* an empty or turned region has no samples */
        o.grid_h = gh < 0 ? 0 : o.grid_h;
        o.grid_w = gw < 0 ? 0 : o.grid_w;
    }
    return o;
}

static double roi_element(const struct roi_job *j, const struct roi *o, int64_t plane, int64_t py, int64_t px)
{
    double sum = 0, most = -INFINITY;
    for (int64_t iy = 0; iy < o->grid_h; iy++)
        for (int64_t ix = 0; ix < o->grid_w; ix++) {
            double y = o->y + (double)py * o->bin_h + ((double)iy + 0.5) * o->bin_h / (double)o->grid_h;
            double x = o->x + (double)px * o->bin_w + ((double)ix + 0.5) * o->bin_w / (double)o->grid_w;
            double v = roi_sample(j, plane, y, x);
            sum += v;
            most = v > most || isnan(v) ? v : most;
        }
    int64_t n = o->grid_h * o->grid_w;
    return n == 0 ? 0 : j->max ? most : sum / (double)n;
}

static void roi_piece(void *arg, int64_t begin, int64_t end)
{
    const struct roi_job *j = arg;
    struct tensor *out = &j->c->out[0];
    for (int64_t p = begin; p < end; p++) {
        int64_t r = p / j->channels, i = p * j->out_h * j->out_w;
        int64_t plane = ((const int64_t *)j->c->in[2].data)[r] * j->channels + p % j->channels;
        struct roi o = roi_of(j, r);
        for (int64_t y = 0; y < j->out_h; y++)
            for (int64_t x = 0; x < j->out_w; x++, i++) {
                double v = roi_element(j, &o, plane, y, x);
                ref_store_d(out->data, out->shape.dtype, i, 1, &v, 1);
            }
    }
}

static yk_err run_roi_align(struct host_call *c)
{
    const struct shape *x = &c->in[0].shape, *y = &c->out[0].shape;
    struct roi_job j = {.c = c, .channels = x->dims[1], .h = x->dims[2], .w = x->dims[3]};
    j.out_h = y->dims[2];
    j.out_w = y->dims[3];
    j.ratio = node_attr_i(c->node, "sampling_ratio", 0);
    j.max = !strcmp(node_attr_s(c->node, "mode", "avg"), "max");
    j.half_pixel = !strcmp(node_attr_s(c->node, "coordinate_transformation_mode", "half_pixel"), "half_pixel");
    j.scale = (double)node_attr_f(c->node, "spatial_scale", 1);
    for (int64_t r = 0; r < y->dims[0]; r++) {
        int64_t image = ((const int64_t *)c->in[2].data)[r];
        if (image < 0 || image >= x->dims[0])
            return yk_fail(c->why, YK_INVAL, "batch_indices[%lld] is %lld, there are %lld images", (long long)r,
                (long long)image, (long long)x->dims[0]);
        struct roi o = roi_of(&j, r);
        if (!isfinite(o.x) || !isfinite(o.y) || !isfinite(o.bin_w) || !isfinite(o.bin_h))
            return yk_fail(c->why, YK_INVAL, "region %lld is not finite", (long long)r);
        if (o.grid_h < 0 || o.grid_w < 0)
            return yk_fail(c->why, YK_LIMIT, "region %lld takes more than %d samples an element: set sampling_ratio",
                (long long)r, GRID_MAX);
    }
    host_split(c, y->dims[0] * j.channels, 80 * j.out_h * j.out_w * (j.ratio ? j.ratio * j.ratio : 4), roi_piece, &j);
    return YK_OK;
}

/* ---- MaxRoiPool ---- */

/* A coordinate as a whole number that fits arithmetic. */
static int64_t whole(double v)
{
    v = round(v);
    return v > 1e9 ? 1000000000 : v < -1e9 ? -1000000000 : (int64_t)v;
}

static int64_t clip(double v, int64_t n)
{
    return v < 0 ? 0 : v > (double)n ? n : (int64_t)v;
}

static yk_err run_max_roi_pool(struct host_call *c)
{
    const struct shape *x = &c->in[0].shape, *y = &c->out[0].shape;
    int64_t h = x->dims[2], w = x->dims[3], out_h = y->dims[2], out_w = y->dims[3], i = 0;
    double scale = (double)node_attr_f(c->node, "spatial_scale", 1);
    for (int64_t r = 0; r < y->dims[0]; r++) {
        double v[5];
        ref_load_d(v, c->in[1].data, c->in[1].shape.dtype, 5 * r, 1, 5);
        for (int k = 0; k < 5; k++)
            if (!isfinite(v[k]))
                return yk_fail(c->why, YK_INVAL, "region %lld is not finite", (long long)r);
        if (v[0] < 0 || v[0] >= (double)x->dims[0])
            return yk_fail(c->why, YK_INVAL, "region %lld is of image %g, there are %lld", (long long)r, v[0],
                (long long)x->dims[0]);
        int64_t left = whole(v[1] * scale), top = whole(v[2] * scale);
        double rw = (double)YK_MAX(whole(v[3] * scale) - left + 1, 1);
        double rh = (double)YK_MAX(whole(v[4] * scale) - top + 1, 1);
        for (int64_t ch = 0; ch < x->dims[1]; ch++) {
            int64_t base = ((int64_t)v[0] * x->dims[1] + ch) * h * w;
            for (int64_t py = 0; py < out_h; py++)
                for (int64_t px = 0; px < out_w; px++, i++) {
                    int64_t y0 = clip(floor((double)py * rh / (double)out_h) + (double)top, h);
                    int64_t y1 = clip(ceil((double)(py + 1) * rh / (double)out_h) + (double)top, h);
                    int64_t x0 = clip(floor((double)px * rw / (double)out_w) + (double)left, w);
                    int64_t x1 = clip(ceil((double)(px + 1) * rw / (double)out_w) + (double)left, w);
                    double most = y1 > y0 && x1 > x0 ? -INFINITY : 0;
                    for (int64_t a = y0; a < y1; a++)
                        for (int64_t b = x0; b < x1; b++) {
                            double e = ref_d(&c->in[0], base + a * w + b);
                            most = e > most || isnan(e) ? e : most;
                        }
                    ref_store_d(c->out[0].data, c->out[0].shape.dtype, i, 1, &most, 1);
                }
        }
    }
    return YK_OK;
}

/* ---- MaxUnpool, ReverseSequence: bytes move ---- */

static yk_err run_max_unpool(struct host_call *c)
{
    size_t size = dtype_bytes(c->in[0].shape.dtype);
    int64_t n = tensor_count(&c->in[0]), most = tensor_count(&c->out[0]);
    const int64_t *index = c->in[1].data;
    memset(c->out[0].data, 0, (size_t)most * size);
    for (int64_t i = 0; i < n; i++) {
        if (index[i] < 0 || index[i] >= most)
            return yk_fail(c->why, YK_INVAL, "index %lld at %lld is out of range for %lld elements",
                (long long)index[i], (long long)i, (long long)most);
        memcpy((char *)c->out[0].data + (size_t)index[i] * size, (const char *)c->in[0].data + (size_t)i * size, size);
    }
    return YK_OK;
}

static yk_err run_reverse(struct host_call *c)
{
    const struct shape *x = &c->in[0].shape;
    bool time_first = node_attr_i(c->node, "time_axis", 0) == 0;
    int64_t batch = x->dims[time_first], time = x->dims[!time_first];
    size_t size = dtype_bytes(x->dtype);
    for (int d = 2; d < x->rank; d++)
        size *= (size_t)x->dims[d];
    for (int64_t b = 0; b < batch; b++) {
        int64_t len = ((const int64_t *)c->in[1].data)[b];
        if (len < 0 || len > time)
            return yk_fail(c->why, YK_INVAL, "sequence_lens[%lld] is %lld, allowed are 0 to %lld", (long long)b,
                (long long)len, (long long)time);
        for (int64_t t = 0; t < time; t++) {
            int64_t from = t < len ? len - 1 - t : t;
            size_t to = (size_t)(time_first ? t * batch + b : b * time + t) * size;
            size_t at = (size_t)(time_first ? from * batch + b : b * time + from) * size;
            memcpy((char *)c->out[0].data + to, (const char *)c->in[0].data + at, size);
        }
    }
    return YK_OK;
}

static const struct host_kernel rows[] = {
    {.domain = "", .op = "GridSample", .kind = "ref", .run = run_grid},
    {.domain = "", .op = "RoiAlign", .kind = "ref", .run = run_roi_align},
    {.domain = "", .op = "MaxRoiPool", .kind = "ref", .run = run_max_roi_pool},
    {.domain = "", .op = "MaxUnpool", .kind = "ref", .run = run_max_unpool},
    {.domain = "", .op = "ReverseSequence", .kind = "ref", .run = run_reverse},
};
const struct host_rows ref_roi = {rows, (int)YK_COUNT(rows)};
