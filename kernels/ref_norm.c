/* Normalisations. Statistics in double. */
#include "kernels/ref.h"

#include <math.h>

struct norm_job {
    struct host_call *c;
    int64_t inner; /* elements that share statistics or a channel */
    double epsilon;
};

static void batch_piece(void *arg, int64_t begin, int64_t end)
{
    const struct norm_job *j = arg;
    const struct host_call *c = j->c;
    int64_t channels = c->in[0].shape.dims[1];
    for (int64_t p = begin; p < end; p++) {
        int64_t ch = p % channels;
        double scale = ref_d(&c->in[1], ch) / sqrt(ref_d(&c->in[4], ch) + j->epsilon);
        double shift = ref_d(&c->in[2], ch), mean = ref_d(&c->in[3], ch);
        for (int64_t i = p * j->inner; i < (p + 1) * j->inner; i++) {
            double v = (ref_d(&c->in[0], i) - mean) * scale + shift;
            ref_store_d(c->out[0].data, c->out[0].shape.dtype, i, 1, &v, 1);
        }
    }
}

/* Training: one channel over all samples. The running statistics move by 1 - momentum towards those of the batch, whose
 * variance is that of the population. */
static void batch_train_piece(void *arg, int64_t begin, int64_t end)
{
    const struct norm_job *j = arg;
    struct host_call *c = j->c;
    const struct tensor *x = &c->in[0];
    int64_t n = x->shape.dims[0], channels = x->shape.dims[1];
    double count = (double)(n * j->inner), keep = (double)node_attr_f(c->node, "momentum", 0.9f);
    for (int64_t ch = begin; ch < end; ch++) {
        double sum = 0, squares = 0, stats[2];
        for (int64_t i = 0; i < n * j->inner; i++)
            sum += ref_d(x, (i / j->inner * channels + ch) * j->inner + i % j->inner);
        stats[0] = sum / count;
        for (int64_t i = 0; i < n * j->inner; i++) {
            double d = ref_d(x, (i / j->inner * channels + ch) * j->inner + i % j->inner) - stats[0];
            squares += d * d;
        }
        stats[1] = squares / count;
        double scale = ref_d(&c->in[1], ch) / sqrt(stats[1] + j->epsilon), shift = ref_d(&c->in[2], ch);
        for (int64_t i = 0; i < n * j->inner; i++) {
            int64_t at = (i / j->inner * channels + ch) * j->inner + i % j->inner;
            double v = (ref_d(x, at) - stats[0]) * scale + shift;
            if (!ref_absent(&c->out[0]))
                ref_store_d(c->out[0].data, c->out[0].shape.dtype, at, 1, &v, 1);
        }
        for (int k = 0; k < 2; k++) {
            double v = ref_d(&c->in[3 + k], ch) * keep + stats[k] * (1 - keep);
            if (c->n_out > 1 + k && !ref_absent(&c->out[1 + k]))
                ref_store_d(c->out[1 + k].data, c->out[1 + k].shape.dtype, ch, 1, &v, 1);
        }
    }
}

static yk_err run_batch(struct host_call *c)
{
    const struct shape *x = &c->in[0].shape;
    struct norm_job j = {c, 1, (double)node_attr_f(c->node, "epsilon", 1e-5f)};
    for (int d = 2; d < x->rank; d++)
        j.inner *= x->dims[d];
    if (node_attr_i(c->node, "training_mode", 0)) {
        host_split(c, x->dims[1], 24 * x->dims[0] * j.inner, batch_train_piece, &j);
        return YK_OK;
    }
    host_split(c, x->dims[0] * x->dims[1], 8 * j.inner, batch_piece, &j);
    return YK_OK;
}

/* Mean and 1/sqrt(variance + epsilon) of inner elements at row r. */
static void moments(const struct norm_job *j, int64_t r, double *mean, double *inverse)
{
    const struct tensor *x = &j->c->in[0];
    double sum = 0, squares = 0;
    for (int64_t i = 0; i < j->inner; i++)
        sum += ref_d(x, r * j->inner + i);
    *mean = sum / (double)j->inner;
    for (int64_t i = 0; i < j->inner; i++) {
        double d = ref_d(x, r * j->inner + i) - *mean;
        squares += d * d;
    }
    *inverse = 1 / sqrt(squares / (double)j->inner + j->epsilon);
}

static void layer_piece(void *arg, int64_t begin, int64_t end)
{
    const struct norm_job *j = arg;
    struct host_call *c = j->c;
    for (int64_t r = begin; r < end; r++) {
        double mean, inverse;
        moments(j, r, &mean, &inverse);
        for (int64_t i = 0; i < j->inner; i++) {
            double v = (ref_d(&c->in[0], r * j->inner + i) - mean) * inverse * ref_d(&c->in[1], i);
            if (ref_has(c, 2))
                v += ref_d(&c->in[2], i);
            ref_store_d(c->out[0].data, c->out[0].shape.dtype, r * j->inner + i, 1, &v, 1);
        }
        if (c->n_out > 1 && !ref_absent(&c->out[1]))
            ref_store_d(c->out[1].data, c->out[1].shape.dtype, r, 1, &mean, 1);
        if (c->n_out > 2 && !ref_absent(&c->out[2]))
            ref_store_d(c->out[2].data, c->out[2].shape.dtype, r, 1, &inverse, 1);
    }
}

static yk_err run_layer(struct host_call *c)
{
    const struct shape *x = &c->in[0].shape;
    struct norm_job j = {c, 1, (double)node_attr_f(c->node, "epsilon", 1e-5f)};
    int64_t outer = 1, axis = ref_axis(node_attr_i(c->node, "axis", -1), x->rank);
    for (int d = 0; d < x->rank; d++)
        *(d < axis ? &outer : &j.inner) *= x->dims[d];
    host_split(c, outer, 20 * j.inner, layer_piece, &j);
    return YK_OK;
}

static void instance_piece(void *arg, int64_t begin, int64_t end)
{
    const struct norm_job *j = arg;
    const struct host_call *c = j->c;
    int64_t channels = c->in[0].shape.dims[1];
    for (int64_t r = begin; r < end; r++) {
        double mean, inverse, scale = ref_d(&c->in[1], r % channels), shift = ref_d(&c->in[2], r % channels);
        moments(j, r, &mean, &inverse);
        for (int64_t i = r * j->inner; i < (r + 1) * j->inner; i++) {
            double v = (ref_d(&c->in[0], i) - mean) * inverse * scale + shift;
            ref_store_d(c->out[0].data, c->out[0].shape.dtype, i, 1, &v, 1);
        }
    }
}

static yk_err run_instance(struct host_call *c)
{
    const struct shape *x = &c->in[0].shape;
    struct norm_job j = {c, 1, (double)node_attr_f(c->node, "epsilon", 1e-5f)};
    for (int d = 2; d < x->rank; d++)
        j.inner *= x->dims[d];
    host_split(c, x->dims[0] * x->dims[1], 20 * j.inner, instance_piece, &j);
    return YK_OK;
}

#define ROW(name, fn)                                      \
    {                                                      \
        .domain = "", .op = name, .kind = "ref", .run = fn \
    }
static const struct host_kernel rows[] = {
    ROW("BatchNormalization", run_batch),
    ROW("LayerNormalization", run_layer),
    ROW("InstanceNormalization", run_instance),
};
const struct host_rows ref_norm = {rows, (int)YK_COUNT(rows)};
