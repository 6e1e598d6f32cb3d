/* Shape rules of ops over features: local and Lp normalisation, Hardmax, determinants, n-gram counts. */
#include <string.h>

#include "common/op_rules.h"

/* LRN-13: over neighbouring channels. */
yk_err op_rule_lrn(struct op_ctx *c)
{
    int64_t size;
    float f;
    yk_err err;
    if ((err = op_want(c, 0, OP_FLOATS)) != YK_OK || (err = op_want_rank(c, 0, 2, YK_MAX_RANK)) != YK_OK ||
        (err = op_attr_i(c, "size", 0, &size)) != YK_OK || (err = op_attr_f(c, "alpha", 1e-4f, &f)) != YK_OK ||
        (err = op_attr_f(c, "beta", 0.75f, &f)) != YK_OK || (err = op_attr_f(c, "bias", 1, &f)) != YK_OK)
        return err;
    if (size < 1 || size > INT32_MAX)
        return yk_fail(c->why, YK_INVAL, "attribute size is %lld, allowed are 1 to %d", (long long)size, INT32_MAX);
    op_out_like(c, 0, c->in[0], c->in[0]->dtype);
    return YK_OK;
}

double op_flops_lrn(const struct op_ctx *c)
{
    int64_t size = node_attr_i(c->node, "size", 1);
    return (double)shape_count(c->in[0]) * (2 * (double)YK_MIN(size, c->in[0]->dims[1]) + 4);
}

/* Which axes MeanVarianceNormalization goes over. */
yk_err op_rule_mvn(struct op_ctx *c)
{
    static const int64_t usual[] = {0, 2, 3};
    const struct attr *a = node_attr(c->node, "axes");
    const struct shape *x = c->in[0];
    bool seen[YK_MAX_RANK] = {false};
    yk_err err = op_want(c, 0, OP_FLOATS);
    if (err)
        return err;
    if (a && (a->kind != ATTR_INTS || a->n > YK_MAX_RANK))
        return yk_fail(c->why, YK_INVAL, "attribute axes is not a list of at most %d axes", YK_MAX_RANK);
    for (size_t i = 0; i < (a ? a->n : YK_COUNT(usual)); i++) {
        int axis;
        if ((err = op_axis(a ? a->ints[i] : usual[i], x->rank, &axis, c->why)) != YK_OK)
            return err;
        if (seen[axis])
            return yk_fail(c->why, YK_INVAL, "axis %d comes twice", axis);
        seen[axis] = true;
    }
    op_out_like(c, 0, x, x->dtype);
    return YK_OK;
}

/* LpNormalization-1 */
yk_err op_rule_lp_normalization(struct op_ctx *c)
{
    int64_t p;
    int axis;
    yk_err err;
    if ((err = op_want(c, 0, OP_FLOATS)) != YK_OK || (err = op_attr_axis(c, -1, c->in[0]->rank, &axis)) != YK_OK ||
        (err = op_attr_i(c, "p", 2, &p)) != YK_OK)
        return err;
    if (p != 1 && p != 2)
        return yk_fail(c->why, YK_INVAL, "attribute p is %lld, allowed are 1 and 2", (long long)p);
    op_out_like(c, 0, c->in[0], c->in[0]->dtype);
    return YK_OK;
}

/* Det-11: of the last two axes. */
yk_err op_rule_det(struct op_ctx *c)
{
    const struct shape *x = c->in[0];
    int64_t square;
    yk_err err;
    if ((err = op_want(c, 0, OP_FLOATS)) != YK_OK || (err = op_want_rank(c, 0, 2, YK_MAX_RANK)) != YK_OK)
        return err;
    int64_t n = x->dims[x->rank - 1];
    if (x->dims[x->rank - 2] != n)
        return yk_fail(
            c->why, YK_INVAL, "matrices of %lld x %lld are not square", (long long)x->dims[x->rank - 2], (long long)n);
    if (!yk_mul_i64(n, n, &square) || square > YK_MAX_COUNT / 8)
        return yk_fail(c->why, YK_LIMIT, "matrices of %lld x %lld are too large", (long long)n, (long long)n);
    op_out(c, 0, x->dtype, x->rank - 2, x->dims);
    return YK_OK;
}

double op_flops_det(const struct op_ctx *c)
{
    double n = (double)c->in[0]->dims[c->in[0]->rank - 1];
    return (double)shape_count(&c->out[0]) * n * n * n * 2 / 3;
}

/* ---- TfIdfVectorizer-9, of integers ---- */

static yk_err ints(const struct op_ctx *c, const char *name, const struct attr **out)
{
    *out = node_attr_ints(c->node, name);
    return *out ? YK_OK : yk_fail(c->why, YK_INVAL, "attribute %s is not a list of integers", name);
}

yk_err op_rule_tfidf(struct op_ctx *c)
{
    static const char *const modes[] = {"TF", "IDF", "TFIDF"};
    const struct attr *counts, *indexes, *pool, *weights = node_attr(c->node, "weights");
    const struct shape *x = c->in[0];
    int64_t lo, hi, skip, grams = 0, columns = 0;
    int mode;
    yk_err err;
    if (node_attr(c->node, "pool_strings"))
        return yk_fail(c->why, YK_UNSUPPORTED, "strings (attribute pool_strings)");
    if ((err = op_want(c, 0, OP_INDEX)) != YK_OK || (err = op_want_rank(c, 0, 1, 2)) != YK_OK ||
        (err = op_attr_i(c, "min_gram_length", 0, &lo)) != YK_OK ||
        (err = op_attr_i(c, "max_gram_length", 0, &hi)) != YK_OK ||
        (err = op_attr_i(c, "max_skip_count", 0, &skip)) != YK_OK ||
        (err = op_attr_word(c, "mode", modes, 3, -1, &mode)) != YK_OK ||
        (err = ints(c, "ngram_counts", &counts)) != YK_OK || (err = ints(c, "ngram_indexes", &indexes)) != YK_OK ||
        (err = ints(c, "pool_int64s", &pool)) != YK_OK)
        return err;
    if (lo < 1 || hi < lo || skip < 0)
        return yk_fail(c->why, YK_INVAL, "n-grams of %lld to %lld with up to %lld skips", (long long)lo, (long long)hi,
            (long long)skip);
    for (size_t n = 0; n < counts->n; n++) {
        int64_t begin = counts->ints[n], end = n + 1 < counts->n ? counts->ints[n + 1] : (int64_t)pool->n;
        if (begin < 0 || end < begin || end > (int64_t)pool->n || (end - begin) % (int64_t)(n + 1) != 0)
            return yk_fail(c->why, YK_INVAL, "ngram_counts[%zu] gives numbers %lld to %lld of a pool of %zu", n,
                (long long)begin, (long long)end, pool->n);
        grams += (end - begin) / (int64_t)(n + 1);
    }
    if (grams != (int64_t)indexes->n)
        return yk_fail(c->why, YK_INVAL, "%zu ngram_indexes for %lld n-grams", indexes->n, (long long)grams);
    if (weights && (weights->kind != ATTR_FLOATS || weights->n != indexes->n))
        return yk_fail(c->why, YK_INVAL, "attribute weights is not a list of %zu numbers", indexes->n);
    for (size_t i = 0; i < indexes->n; i++) {
        if (indexes->ints[i] < 0 || indexes->ints[i] >= INT32_MAX)
            return yk_fail(c->why, YK_INVAL, "ngram_indexes[%zu] is %lld, allowed are 0 to %d", i,
                (long long)indexes->ints[i], INT32_MAX - 1);
        columns = YK_MAX(columns, indexes->ints[i] + 1);
    }
    int64_t dims[2] = {x->dims[0], columns};
    op_out(c, 0, DT_F32, x->rank, x->rank == 2 ? dims : dims + 1);
    return YK_OK;
}
