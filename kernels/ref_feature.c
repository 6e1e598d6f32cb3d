/* Ops over features: LRN, MeanVarianceNormalization, LpNormalization, Hardmax, Det, TfIdfVectorizer. */
#include "kernels/ref.h"

#include <math.h>
#include <string.h>

static void outer_inner(const struct shape *s, int64_t axis, int64_t *outer, int64_t *inner)
{
    *outer = *inner = 1;
    for (int d = 0; d < axis; d++)
        *outer *= s->dims[d];
    for (int d = (int)axis + 1; d < s->rank; d++)
        *inner *= s->dims[d];
}

static void put(struct tensor *y, int64_t at, double v)
{
    ref_store_d(y->data, y->shape.dtype, at, 1, &v, 1);
}

/* Channel i is divided by what channels i - (size-1)/2 to i + size/2 hold. */
static void lrn_piece(void *arg, int64_t begin, int64_t end)
{
    struct host_call *c = arg;
    const struct shape *x = &c->in[0].shape;
    int64_t size = node_attr_i(c->node, "size", 1), outer, inner, channels = x->dims[1];
    double alpha = (double)node_attr_f(c->node, "alpha", 1e-4f), beta = (double)node_attr_f(c->node, "beta", 0.75f);
    double bias = (double)node_attr_f(c->node, "bias", 1);
    outer_inner(x, 1, &outer, &inner);
    for (int64_t i = begin; i < end; i++) {
        int64_t ch = i / inner % channels, first = i - ch * inner;
        double sum = 0;
        for (int64_t k = YK_MAX(ch - (size - 1) / 2, 0); k <= YK_MIN(ch + size / 2, channels - 1); k++) {
            double v = ref_d(&c->in[0], first + k * inner);
            sum += v * v;
        }
        put(&c->out[0], i, ref_d(&c->in[0], i) / pow(bias + alpha / (double)size * sum, beta));
    }
}

static yk_err run_lrn(struct host_call *c)
{
    int64_t size = node_attr_i(c->node, "size", 1);
    host_split(c, tensor_count(&c->in[0]), 50 + 3 * YK_MIN(size, c->in[0].shape.dims[1]), lrn_piece, c);
    return YK_OK;
}

/* The axes that are left are walked; over the others the mean is 0 and the deviation 1 afterwards. */
static yk_err run_mvn(struct host_call *c)
{
    static const int64_t usual[] = {0, 2, 3};
    const struct attr *a = node_attr_ints(c->node, "axes");
    const struct tensor *x = &c->in[0];
    int rank = x->shape.rank;
    bool over[YK_MAX_RANK] = {false};
    int64_t step[YK_MAX_RANK], keep = 1, count = 1, at = 1;
    for (size_t i = 0; i < (a ? a->n : YK_COUNT(usual)); i++)
        over[ref_axis(a ? a->ints[i] : usual[i], rank)] = true;
    for (int d = rank - 1; d >= 0; d--) {
        step[d] = at;
        at *= x->shape.dims[d];
        *(over[d] ? &count : &keep) *= x->shape.dims[d];
    }
    for (int64_t k = 0; k < keep; k++) {
        double sum = 0, squares = 0;
        for (int pass = 0; pass < 3; pass++)
            for (int64_t i = 0; i < count; i++) {
                int64_t left = i, kept = k, pos = 0;
                for (int d = rank - 1; d >= 0; d--) {
                    int64_t *from = over[d] ? &left : &kept;
                    pos += *from % x->shape.dims[d] * step[d];
                    *from /= x->shape.dims[d];
                }
                double v = ref_d(x, pos), off = v - sum / (double)count;
                if (pass == 0)
                    sum += v;
                else if (pass == 1)
                    squares += off * off;
                else
                    put(&c->out[0], pos, off / (sqrt(squares / (double)count) + 1e-9));
            }
    }
    return YK_OK;
}

/* A row whose norm is 0 stays 0. */
static yk_err run_lp_normalization(struct host_call *c)
{
    const struct tensor *x = &c->in[0];
    int64_t axis = ref_axis(node_attr_i(c->node, "axis", -1), x->shape.rank), outer, inner;
    int64_t n = x->shape.dims[axis];
    bool absolute = node_attr_i(c->node, "p", 2) == 1;
    outer_inner(&x->shape, axis, &outer, &inner);
    for (int64_t r = 0; r < outer * inner; r++) {
        int64_t base = r / inner * n * inner + r % inner;
        double sum = 0;
        for (int64_t i = 0; i < n; i++) {
            double v = ref_d(x, base + i * inner);
            sum += absolute ? fabs(v) : v * v;
        }
        double norm = absolute ? sum : sqrt(sum);
        for (int64_t i = 0; i < n; i++)
            put(&c->out[0], base + i * inner, norm == 0 ? 0 : ref_d(x, base + i * inner) / norm);
    }
    return YK_OK;
}

/* 1 where the first of the largest is; NaN is larger than any number. */
static yk_err run_hardmax(struct host_call *c)
{
    const struct tensor *x = &c->in[0];
    int64_t axis = ref_axis(node_attr_i(c->node, "axis", -1), x->shape.rank), outer, inner;
    int64_t n = x->shape.dims[axis];
    outer_inner(&x->shape, axis, &outer, &inner);
    for (int64_t r = 0; n > 0 && r < outer * inner; r++) {
        int64_t base = r / inner * n * inner + r % inner, best = 0;
        double top = ref_d(x, base);
        for (int64_t i = 1; i < n && !isnan(top); i++) {
            double v = ref_d(x, base + i * inner);
            if (v > top || isnan(v)) {
                top = v;
                best = i;
            }
        }
        for (int64_t i = 0; i < n; i++)
            put(&c->out[0], base + i * inner, i == best ? 1 : 0);
    }
    return YK_OK;
}

static void sizes_det(const struct op_ctx *c, struct backend_form *f)
{
    int64_t n = c->in[0]->dims[c->in[0]->rank - 1];
    f->workspace_bytes = n * n * (int64_t)sizeof(double);
}

/* Gauss with the largest of the column as pivot. */
static double determinant(double *a, int64_t n)
{
    double det = 1;
    for (int64_t k = 0; k < n; k++) {
        int64_t pivot = k;
        for (int64_t r = k + 1; r < n; r++)
            if (fabs(a[r * n + k]) > fabs(a[pivot * n + k]))
                pivot = r;
        if (a[pivot * n + k] == 0)
            return 0;
        for (int64_t i = k; i < n && pivot != k; i++) {
            double t = a[k * n + i];
            a[k * n + i] = a[pivot * n + i];
            a[pivot * n + i] = t;
        }
        det *= pivot != k ? -a[k * n + k] : a[k * n + k];
        for (int64_t r = k + 1; r < n; r++) {
            double f = a[r * n + k] / a[k * n + k];
            for (int64_t i = k + 1; i < n; i++)
                a[r * n + i] -= f * a[k * n + i];
        }
    }
    return det;
}

static yk_err run_det(struct host_call *c)
{
    const struct tensor *x = &c->in[0];
    int64_t n = x->shape.dims[x->shape.rank - 1];
    for (int64_t r = 0, count = tensor_count(&c->out[0]); r < count; r++) {
        if (n > 0)
            ref_load_d(c->workspace, x->data, x->shape.dtype, r * n * n, 1, n * n);
        put(&c->out[0], r, determinant(c->workspace, n));
    }
    return YK_OK;
}

/* How often the n numbers of a gram come in a row, with 0 to `skips` numbers between two of them. */
static int64_t gram_count(
    const struct tensor *x, int64_t row, int64_t length, const int64_t *gram, int64_t n, int64_t skips)
{
    int64_t found = 0;
    for (int64_t step = 1; step - 1 <= (n == 1 ? 0 : skips) && (n - 1) * step < length; step++)
        for (int64_t i = 0; i + (n - 1) * step < length; i++) {
            int64_t k = 0;
            while (k < n && ref_i(x, row * length + i + k * step) == gram[k])
                k++;
            found += k == n;
        }
    return found;
}

static yk_err run_tfidf(struct host_call *c)
{
    const struct attr *counts = node_attr_ints(c->node, "ngram_counts"), *pool = node_attr_ints(c->node, "pool_int64s"),
                      *indexes = node_attr_ints(c->node, "ngram_indexes"), *weights = node_attr(c->node, "weights");
    const struct shape *x = &c->in[0].shape, *y = &c->out[0].shape;
    const char *mode = node_attr_s(c->node, "mode", "TF");
    int64_t length = x->dims[x->rank - 1], rows_n = x->rank == 2 ? x->dims[0] : 1, columns = y->dims[y->rank - 1];
    int64_t lo = node_attr_i(c->node, "min_gram_length", 1), hi = node_attr_i(c->node, "max_gram_length", 1);
    float *out = c->out[0].data;
    memset(out, 0, (size_t)tensor_bytes(&c->out[0]));
    for (int64_t r = 0; r < rows_n; r++) {
        size_t gram = 0;
        for (int64_t n = 1; n <= (int64_t)counts->n; n++) {
            int64_t end = n < (int64_t)counts->n ? counts->ints[n] : (int64_t)pool->n;
            for (int64_t at = counts->ints[n - 1]; at < end; at += n, gram++) {
                if (n < lo || n > hi)
                    continue;
                int64_t found =
                    gram_count(&c->in[0], r, length, pool->ints + at, n, node_attr_i(c->node, "max_skip_count", 0));
                float w = weights && strcmp(mode, "TF") != 0 ? weights->floats[gram] : 1;
                float *place = out + r * columns + indexes->ints[gram];
                if (!strcmp(mode, "IDF"))
                    *place = found ? w : *place;
                else
                    *place += (float)found * w;
            }
        }
    }
    return YK_OK;
}

#define ROW(name, size_fn, fn)                                               \
    {                                                                        \
        .domain = "", .op = name, .kind = "ref", .sizes = size_fn, .run = fn \
    }
static const struct host_kernel rows[] = {
    ROW("LRN", NULL, run_lrn),
    ROW("MeanVarianceNormalization", NULL, run_mvn),
    ROW("LpNormalization", NULL, run_lp_normalization),
    ROW("Hardmax", NULL, run_hardmax),
    ROW("Det", sizes_det, run_det),
    ROW("TfIdfVectorizer", NULL, run_tfidf),
};
const struct host_rows ref_feature = {rows, (int)YK_COUNT(rows)};
