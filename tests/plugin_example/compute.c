#include "compute.h"

#include <string.h>

int64_t compute_count(const struct yoke_shape *s)
{
    int64_t n = 1;
    for (uint32_t i = 0; i < s->rank; i++)
        n *= s->dims[i];
    return n;
}

/* ---- compiling ---- */

static const struct yoke_attr *find(const struct yoke_node *n, const char *name, uint32_t kind)
{
    for (int i = 0; i < n->n_attr; i++)
        if (!strcmp(n->attr[i]->name, name) && n->attr[i]->kind == kind)
            return n->attr[i];
    return NULL;
}

static int64_t attr_i(const struct yoke_node *n, const char *name, int64_t otherwise)
{
    const struct yoke_attr *a = find(n, name, YOKE_ATTR_INT);
    return a ? a->i : otherwise;
}

static double attr_f(const struct yoke_node *n, const char *name, double otherwise)
{
    const struct yoke_attr *a = find(n, name, YOKE_ATTR_FLOAT);
    return a ? a->f : otherwise;
}

static void attr_ints(const struct yoke_node *n, const char *name, int64_t *out, int count, int64_t otherwise)
{
    const struct yoke_attr *a = find(n, name, YOKE_ATTR_INTS);
    for (int i = 0; i < count; i++)
        out[i] = a && a->n == count ? a->ints[i] : otherwise;
}

static int same_shape(const struct yoke_shape *a, const struct yoke_shape *b)
{
    return a->rank == b->rank && !memcmp(a->dims, b->dims, a->rank * sizeof(a->dims[0]));
}

static int can_matmul(const struct yoke_shape *a, const struct yoke_shape *b)
{
    if (a->rank < 2 || b->rank < 2)
        return 0;
    if (b->rank == 2)
        return 1;
    return a->rank == b->rank && !memcmp(a->dims, b->dims, (a->rank - 2) * sizeof(a->dims[0]));
}

static enum compute_kind kind_of(const struct yoke_node *n, const struct yoke_shape *const *x)
{
    const struct yoke_attr *pad = find(n, "auto_pad", YOKE_ATTR_STRING);
    int ours = !strcmp(n->domain, "ai.yoke"), onnx = !n->domain[0];
    if ((onnx && !strcmp(n->op, "Conv")) || (ours && !strcmp(n->op, "FusedConv")))
        return x[0]->rank == 4 && (!pad || !strcmp(pad->s, "NOTSET")) ? COMPUTE_CONV : COMPUTE_NONE;
    if ((onnx && !strcmp(n->op, "Gemm")) || (ours && !strcmp(n->op, "FusedGemm")))
        return COMPUTE_GEMM;
    if (onnx && !strcmp(n->op, "MatMul"))
        return can_matmul(x[0], x[1]) ? COMPUTE_MATMUL : COMPUTE_NONE;
    if (onnx && !strcmp(n->op, "Add"))
        return COMPUTE_ADD;
    return onnx && !strcmp(n->op, "Relu") ? COMPUTE_RELU : COMPUTE_NONE;
}

void compute_compile(const struct yoke_segment *s, int node, struct compute *c)
{
    const struct yoke_node *n = s->nodes[node];
    const struct yoke_shape *x[COMPUTE_IN] = {0};
    memset(c, 0, sizeof(*c));
    if (n->n_in > COMPUTE_IN || n->n_out != 1 || n->out[0] < 0)
        return;
    for (int i = 0; i < n->n_in; i++) {
        c->in[i] = n->in[i];
        x[i] = n->in[i] < 0 ? NULL : s->values[n->in[i]]->shape;
        if (x[i] && x[i]->dtype != YOKE_F32)
            return;
    }
    for (int i = n->n_in; i < COMPUTE_IN; i++)
        c->in[i] = -1;
    c->n_in = n->n_in;
    c->out = n->out[0];
    c->kind = kind_of(n, x);
    attr_ints(n, "pads", c->pads, 4, 0);
    attr_ints(n, "strides", c->strides, 2, 1);
    attr_ints(n, "dilations", c->dilations, 2, 1);
    c->group = attr_i(n, "group", 1);
    c->trans_a = attr_i(n, "transA", 0) != 0;
    c->trans_b = attr_i(n, "transB", 0) != 0;
    c->alpha = attr_f(n, "alpha", 1);
    c->beta = attr_f(n, "beta", 1);
    const struct yoke_attr *activation = find(n, "activation", YOKE_ATTR_STRING);
    if (activation) {
        c->activation = !strcmp(activation->s, "relu") ? 1 : !strcmp(activation->s, "clip") ? 2 : 0;
        if (!c->activation && strcmp(activation->s, "none") != 0)
            c->kind = COMPUTE_NONE;
    }
    c->lo = attr_f(n, "min", 0);
    c->hi = attr_f(n, "max", 0);
}

/* ---- running ---- */

static double activate(const struct compute *c, double v)
{
    if (c->activation == 1)
        return v < 0 ? 0 : v;
    if (c->activation == 2) {
        v = v < c->lo ? c->lo : v;
        return v > c->hi ? c->hi : v;
    }
    return v;
}

static double conv_at(const struct compute *c, const struct yoke_shape *xs, const struct yoke_shape *ws, const float *x,
    const float *w, int64_t oy, int64_t ox)
{
    double sum = 0;
    for (int64_t ic = 0; ic < ws->dims[1]; ic++)
        for (int64_t ky = 0; ky < ws->dims[2]; ky++) {
            int64_t y = oy * c->strides[0] - c->pads[0] + ky * c->dilations[0];
            if (y < 0 || y >= xs->dims[2])
                continue;
            for (int64_t kx = 0; kx < ws->dims[3]; kx++) {
                int64_t at = ox * c->strides[1] - c->pads[1] + kx * c->dilations[1];
                if (at >= 0 && at < xs->dims[3])
                    sum += (double)x[(ic * xs->dims[2] + y) * xs->dims[3] + at] *
                           (double)w[(ic * ws->dims[2] + ky) * ws->dims[3] + kx];
            }
        }
    return sum;
}

static void run_conv(const struct compute *c, const struct yoke_shape *const *shapes, float *const *data)
{
    const struct yoke_shape *xs = shapes[c->in[0]], *ws = shapes[c->in[1]], *ys = shapes[c->out];
    const float *bias = c->in[2] >= 0 ? data[c->in[2]] : NULL, *rest = c->in[3] >= 0 ? data[c->in[3]] : NULL;
    int64_t outs = ys->dims[1] / c->group, image = xs->dims[2] * xs->dims[3],
            kernel = ws->dims[1] * ws->dims[2] * ws->dims[3];
    int64_t at = 0;
    for (int64_t n = 0; n < ys->dims[0]; n++)
        for (int64_t oc = 0; oc < ys->dims[1]; oc++) {
            const float *x = data[c->in[0]] + (n * xs->dims[1] + oc / outs * ws->dims[1]) * image;
            for (int64_t oy = 0; oy < ys->dims[2]; oy++)
                for (int64_t ox = 0; ox < ys->dims[3]; ox++, at++) {
                    double v = conv_at(c, xs, ws, x, data[c->in[1]] + oc * kernel, oy, ox);
                    v += bias ? (double)bias[oc] : 0;
                    v += rest ? (double)rest[at] : 0;
                    data[c->out][at] = (float)activate(c, v);
                }
        }
}

static void run_gemm(const struct compute *c, const struct yoke_shape *const *shapes, float *const *data)
{
    const struct yoke_shape *as = shapes[c->in[0]], *bs = shapes[c->in[1]], *ys = shapes[c->out];
    const struct yoke_shape *cs = c->in[2] >= 0 ? shapes[c->in[2]] : NULL;
    const float *a = data[c->in[0]], *b = data[c->in[1]];
    int64_t k = as->dims[c->trans_a ? 0 : as->rank - 1], n = ys->dims[ys->rank - 1], m = compute_count(ys) / n;
    int64_t bias_n = cs && cs->rank >= 1 && cs->dims[cs->rank - 1] > 1 ? 1 : 0;
    int64_t bias_m = cs && cs->rank >= 2 && cs->dims[cs->rank - 2] > 1 ? cs->dims[cs->rank - 1] : 0;
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < n; j++) {
            double v = 0;
            for (int64_t l = 0; l < k; l++)
                v += (double)a[c->trans_a ? l * m + i : i * k + l] * (double)b[c->trans_b ? j * k + l : l * n + j];
            v *= c->alpha;
            if (cs)
                v += c->beta * (double)data[c->in[2]][i * bias_m + j * bias_n];
            data[c->out][i * n + j] = (float)activate(c, v);
        }
    (void)bs;
}

static void run_matmul(const struct compute *c, const struct yoke_shape *const *shapes, float *const *data)
{
    const struct yoke_shape *as = shapes[c->in[0]], *bs = shapes[c->in[1]];
    int64_t k = as->dims[as->rank - 1], m = as->dims[as->rank - 2], n = bs->dims[bs->rank - 1];
    int64_t batches = compute_count(as) / (m * k);
    for (int64_t t = 0; t < batches; t++) {
        const float *a = data[c->in[0]] + t * m * k, *b = data[c->in[1]] + (bs->rank == 2 ? 0 : t * k * n);
        for (int64_t i = 0; i < m; i++)
            for (int64_t j = 0; j < n; j++) {
                double v = 0;
                for (int64_t l = 0; l < k; l++)
                    v += (double)a[i * k + l] * (double)b[l * n + j];
                data[c->out][(t * m + i) * n + j] = (float)v;
            }
    }
}

/* Where element i of y stands in an operand that is repeated along axes of size 1. */
static int64_t operand_at(const struct yoke_shape *y, const struct yoke_shape *x, int64_t i)
{
    int64_t at = 0, step = 1;
    for (int d = (int)y->rank - 1, e = (int)x->rank - 1; e >= 0; d--, e--) {
        at += x->dims[e] > 1 ? i % y->dims[d] * step : 0;
        step *= x->dims[e];
        i /= y->dims[d];
    }
    return at;
}

static void run_add(const struct compute *c, const struct yoke_shape *const *shapes, float *const *data)
{
    const struct yoke_shape *as = shapes[c->in[0]], *bs = shapes[c->in[1]], *ys = shapes[c->out];
    const float *a = data[c->in[0]], *b = data[c->in[1]];
    int plain = same_shape(as, bs);
    for (int64_t i = 0, n = compute_count(ys); i < n; i++)
        data[c->out][i] = plain ? a[i] + b[i] : a[operand_at(ys, as, i)] + b[operand_at(ys, bs, i)];
}

void compute_run(const struct compute *c, const struct yoke_shape *const *shapes, float *const *data)
{
    switch (c->kind) {
    case COMPUTE_CONV:
        run_conv(c, shapes, data);
        break;
    case COMPUTE_GEMM:
        run_gemm(c, shapes, data);
        break;
    case COMPUTE_MATMUL:
        run_matmul(c, shapes, data);
        break;
    case COMPUTE_ADD:
        run_add(c, shapes, data);
        break;
    case COMPUTE_RELU:
        for (int64_t i = 0, n = compute_count(shapes[c->out]); i < n; i++) {
            float v = data[c->in[0]][i];
            data[c->out][i] = v < 0 ? 0 : v;
        }
        break;
    default:
        break;
    }
}
