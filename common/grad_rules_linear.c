/* Rules of contractions. Gradients of matrices are matrix products again, with leading axes that only one operand has
 * taken as rows, so that sums over the batch happen inside the product. */
#include <stdio.h>
#include <string.h>

#include "common/grad_priv.h"
#include "common/op_einsum.h"

/* ---- convolution ---- */

/* The sum over all axes but channels. */
static int32_t channel_sum(struct grad *r, int32_t d, int rank)
{
    int64_t axes[YK_MAX_RANK];
    int count = 0;
    for (int k = 0; k < rank; k++)
        if (k != 1)
            axes[count++] = k;
    d = grad_op2(r, "ReduceSum", d, grad_ints(r, axes, count));
    grad_attr_i(r, "keepdims", 0);
    return d;
}

/* The spatial sizes of a weight, which shape rules of gradients cannot see. */
static void set_kernel_shape(struct grad *r, const struct node *n)
{
    const struct shape *w = grad_static(r, n->in[1]);
    if (w && w->rank > 2)
        grad_attr_ints(r, "kernel_shape", w->dims + 2, w->rank - 2);
    else
        grad_fail(r, YK_UNSUPPORTED, "the size of its weight varies");
}

static void conv(struct grad *r, const struct node *n, const int32_t *dy, int32_t *dx)
{
    if (grad_needs(r, n, 0)) {
        dx[0] = grad_op3(r, "ai.yoke.ConvGradInput", dy[0], grad_in(r, n, 1), grad_shape(r, n->in[0]));
        grad_attr_copy(r, n);
    }
    if (grad_needs(r, n, 1)) {
        dx[1] = grad_op2(r, "ai.yoke.ConvGradWeight", grad_in(r, n, 0), dy[0]);
        grad_attr_copy(r, n);
        set_kernel_shape(r, n);
    }
    if (grad_needs(r, n, 2))
        dx[2] = channel_sum(r, dy[0], grad_rank(r, n->in[0]));
}

/* Attributes of the convolution that a transposed one is the gradient of. */
static void deconv_attrs(struct grad *r, const struct node *n)
{
    int spatial = grad_rank(r, n->in[0]) - 2;
    struct conv_dims d, other;
    int64_t pads[6];
    for (int i = 0; i < r->p->n && !r->err; i++) {
        const struct shape *of = r->p->at[i].of;
        if (op_deconv_dims(n, &of[n->in[0]], &of[n->in[1]], &other, NULL)) {
            grad_fail(r, YK_UNSUPPORTED, "its sizes are not known");
            return;
        }
        if (i == 0)
            d = other;
        for (int k = 0; k < spatial; k++)
            if (other.pad_begin[k] != d.pad_begin[k] || other.pad_end[k] != d.pad_end[k]) {
                grad_fail(r, YK_UNSUPPORTED, "its pads vary with the sizes");
                return;
            }
    }
    if (r->err)
        return;
    for (int k = 0; k < spatial; k++) {
        /* Pads so that as many windows fit as the input has elements, no more. */
        int64_t reach = (d.k[k] - 1) * d.dilation[k] + 1;
        pads[k] = d.pad_begin[k];
        pads[spatial + k] = d.pad_end[k];
        if (pads[k] < 0 || pads[spatial + k] < 0 ||
            (d.out[k] + pads[k] + pads[spatial + k] - reach) / d.stride[k] + 1 != d.in[k]) {
            grad_fail(r, YK_UNSUPPORTED, "pads %lld and %lld of axis %d", (long long)pads[k],
                (long long)pads[spatial + k], k);
            return;
        }
    }
    grad_attr_ints(r, "kernel_shape", d.k, spatial);
    grad_attr_ints(r, "strides", d.stride, spatial);
    grad_attr_ints(r, "dilations", d.dilation, spatial);
    grad_attr_ints(r, "pads", pads, 2 * spatial);
    grad_attr_i(r, "group", d.group);
}

static void deconv(struct grad *r, const struct node *n, const int32_t *dy, int32_t *dx)
{
    if (grad_needs(r, n, 0)) {
        dx[0] = grad_op2(r, "Conv", dy[0], grad_in(r, n, 1));
        deconv_attrs(r, n);
    }
    if (grad_needs(r, n, 1)) {
        dx[1] = grad_op2(r, "ai.yoke.ConvGradWeight", dy[0], grad_in(r, n, 0));
        deconv_attrs(r, n);
    }
    if (grad_needs(r, n, 2))
        dx[2] = channel_sum(r, dy[0], grad_rank(r, n->in[0]));
}

/* ---- matrices ---- */

static int32_t product(struct grad *r, int32_t a, bool ta, int32_t b, bool tb, float alpha)
{
    int32_t y = grad_op2(r, "Gemm", a, b);
    if (ta)
        grad_attr_i(r, "transA", 1);
    if (tb)
        grad_attr_i(r, "transB", 1);
    if (alpha != 1)
        grad_attr_f(r, "alpha", alpha);
    return y;
}

static void gemm_bias(struct grad *r, const struct node *n, int32_t dy, int32_t *dx)
{
    float beta = node_attr_f(n, "beta", 1);
    dx[2] = grad_sum_to(r, dy, n->out[0], n->in[2]);
    if (beta != 1)
        dx[2] = grad_op2(r, "Mul", dx[2], grad_scalar(r, grad_type(r, n->out[0]), (double)beta));
}

/* Y = alpha A' B' + beta C */
static void gemm(struct grad *r, const struct node *n, const int32_t *dy, int32_t *dx)
{
    float alpha = node_attr_f(n, "alpha", 1);
    bool ta = node_attr_i(n, "transA", 0), tb = node_attr_i(n, "transB", 0);
    if (grad_needs(r, n, 0)) {
        int32_t b = grad_in(r, n, 1);
        dx[0] = ta ? product(r, b, tb, dy[0], true, alpha) : product(r, dy[0], false, b, !tb, alpha);
    }
    if (grad_needs(r, n, 1)) {
        int32_t a = grad_in(r, n, 0);
        dx[1] = tb ? product(r, dy[0], true, a, ta, alpha) : product(r, a, !ta, dy[0], false, alpha);
    }
    if (grad_needs(r, n, 2))
        gemm_bias(r, n, dy[0], dx);
}

/* As passes_train makes it: without activation, A with leading axes that are rows. */
static void fused_gemm(struct grad *r, const struct node *n, const int32_t *dy, int32_t *dx)
{
    bool ta = node_attr_i(n, "transA", 0), tb = node_attr_i(n, "transB", 0);
    float alpha = node_attr_f(n, "alpha", 1);
    const struct shape *w = grad_static(r, n->in[1]);
    if (ta || !w || w->dims[0] == 0 || w->dims[1] == 0 || strcmp(node_attr_s(n, "activation", "none"), "none") != 0) {
        grad_fail(r, YK_UNSUPPORTED, "an activation inside, or operands that vary in size");
        return;
    }
    int64_t in_rows[] = {-1, w->dims[tb]}, out_rows[] = {-1, w->dims[!tb]};
    int32_t d = YK_ABSENT;
    if (grad_needs(r, n, 0) || grad_needs(r, n, 1))
        d = grad_reshape(r, dy[0], out_rows, 2);
    if (grad_needs(r, n, 0))
        dx[0] = grad_like(r, product(r, d, false, grad_in(r, n, 1), !tb, alpha), n->in[0]);
    if (grad_needs(r, n, 1)) {
        int32_t a = grad_reshape(r, grad_in(r, n, 0), in_rows, 2);
        dx[1] = tb ? product(r, d, true, a, false, alpha) : product(r, a, true, d, false, alpha);
    }
    if (grad_needs(r, n, 2))
        gemm_bias(r, n, dy[0], dx);
}

/* Transposed in its last two axes. What is itself a transposition of something is taken from there. */
static int32_t swapped(struct grad *r, int32_t value)
{
    int rank = grad_rank(r, value);
    const struct node *made = NULL;
    int64_t perm[YK_MAX_RANK];
    int32_t maker = r->fwd->values[value].producer, from = value;
    const struct attr *a = NULL;
    if (maker >= 0) {
        made = &r->fwd->nodes[maker];
        a = strcmp(made->op->name, "Transpose") == 0 ? node_attr_ints(made, "perm") : NULL;
    }
    for (int k = 0; k < rank; k++)
        perm[k] = k;
    if (a && (int)a->n == rank) {
        from = made->in[0];
        memcpy(perm, a->ints, (size_t)rank * sizeof *perm);
    }
    int64_t last = perm[rank - 1];
    perm[rank - 1] = perm[rank - 2];
    perm[rank - 2] = last;
    bool same = true;
    for (int k = 0; k < rank; k++)
        same = same && perm[k] == k;
    from = grad_keep(r, from);
    return same ? from : grad_transpose(r, from, perm, rank);
}

/* A with leading axes of any rank, B a matrix of known size. */
static void matmul_rows(struct grad *r, const struct node *n, int32_t dy, int32_t *dx)
{
    const struct shape *w = grad_static(r, n->in[1]);
    int64_t in_rows[] = {-1, w->dims[0]}, out_rows[] = {-1, w->dims[1]};
    int32_t d = grad_reshape(r, dy, out_rows, 2);
    if (grad_needs(r, n, 0))
        dx[0] = grad_like(r, product(r, d, false, grad_in(r, n, 1), true, 1), n->in[0]);
    if (grad_needs(r, n, 1))
        dx[1] = product(r, grad_reshape(r, grad_in(r, n, 0), in_rows, 2), true, d, false, 1);
}

/* d is the gradient of `to` before broadcasting over leading axes is undone. */
static int32_t sum_leading(struct grad *r, int32_t d, int32_t to, int32_t y)
{
    int rank = grad_rank(r, to);
    bool same = rank == grad_rank(r, y);
    for (int i = 0; same && i < r->p->n; i++)
        for (int k = 0; same && k < rank - 2; k++)
            same = r->p->at[i].of[to].dims[k] == r->p->at[i].of[y].dims[k];
    return same ? d : grad_op2(r, "ai.yoke.SumTo", d, grad_shape(r, to));
}

/* A vector is a row in front or a column behind; Y lacks that axis. */
static void matmul_any(struct grad *r, const struct node *n, int32_t dy, int32_t *dx)
{
    static const int64_t first = 0, second = 1, last = -1, before = -2;
    int ra = grad_rank(r, n->in[0]), rb = grad_rank(r, n->in[1]);
    if (rb == 1)
        dy = grad_op2(r, "Unsqueeze", dy, grad_ints(r, &last, 1));
    if (ra == 1)
        dy = grad_op2(r, "Unsqueeze", dy, grad_ints(r, &before, 1));
    if (grad_needs(r, n, 0)) {
        int32_t b =
            rb == 1 ? grad_op2(r, "Unsqueeze", grad_in(r, n, 1), grad_ints(r, &first, 1)) : swapped(r, n->in[1]);
        int32_t d = grad_op2(r, "MatMul", dy, b);
        dx[0] = ra == 1 ? grad_op2(r, "ai.yoke.SumTo", d, grad_shape(r, n->in[0]))
                        : sum_leading(r, d, n->in[0], rb == 1 ? n->in[0] : n->out[0]);
    }
    if (grad_needs(r, n, 1)) {
        int32_t a =
            ra == 1 ? grad_op2(r, "Unsqueeze", grad_in(r, n, 0), grad_ints(r, &second, 1)) : swapped(r, n->in[0]);
        int32_t d = grad_op2(r, "MatMul", a, dy);
        if (rb == 1)
            d = grad_op2(r, "Squeeze", d, grad_ints(r, &last, 1));
        if (rb == 1 && ra > 2)
            d = grad_op2(r, "ai.yoke.SumTo", d, grad_shape(r, n->in[1]));
        dx[1] = rb == 1 ? d : sum_leading(r, d, n->in[1], ra == 1 ? n->in[1] : n->out[0]);
    }
}

static void matmul(struct grad *r, const struct node *n, const int32_t *dy, int32_t *dx)
{
    const struct shape *w = grad_rank(r, n->in[1]) == 2 ? grad_static(r, n->in[1]) : NULL;
    if (w && w->dims[0] > 0 && w->dims[1] > 0 && grad_rank(r, n->in[0]) >= 2)
        matmul_rows(r, n, dy[0], dx);
    else
        matmul_any(r, n, dy[0], dx);
}

/* ---- Einsum ---- */

struct equation {
    char text[512];
    size_t len;
    bool over;
};

static void put(struct equation *e, const char *s, size_t n)
{
    e->over = e->over || e->len + n >= sizeof e->text;
    if (!e->over) {
        memcpy(e->text + e->len, s, n);
        e->len += n;
        e->text[e->len] = 0;
    }
}

static void put_label(struct equation *e, int label)
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
    if (label < 52)
        put(e, &letters[label], 1);
    else
        e->over = true;
}

/* Whether a label is an axis of the output or of an operand other than k. */
static bool is_elsewhere(const struct einsum *e, int k, int label)
{
    bool found = label < e->n_out;
    for (int i = 0; i < e->n_in; i++)
        for (int a = 0; i != k && a < e->rank[i]; a++)
            found = found || e->label[i][a] == label;
    return found;
}

/* Whether an axis of operand k has size 1 where the product is larger, or the other way round. */
static void einsum_sizes(const struct node *n, const struct shape *const *shapes, int k, bool *broadcast, bool *grown)
{
    struct einsum e;
    if (op_einsum(n, shapes, n->n_in, &e, NULL))
        return;
    for (int a = 0; a < e.rank[k]; a++) {
        int label = e.label[k][a];
        int64_t others = label < e.n_out ? e.size[label] : 1;
        for (int i = 0; i < e.n_in; i++)
            for (int b = 0; i != k && b < e.rank[i]; b++)
                others = e.label[i][b] == label ? YK_MAX(others, shapes[i]->dims[b]) : others;
        *broadcast = *broadcast || others > shapes[k]->dims[a];
        *grown = *grown || others < shapes[k]->dims[a];
    }
}

/* The gradient of operand k: the product of dY and the other operands, summed over the axes that k lacks. Axes that k
 * alone has were summed over: they repeat it. Axes of k of size 1 that broadcast are summed up. */
static void einsum_input(struct grad *r, const struct node *n, const struct einsum *e, int k, int32_t dy, int32_t *dx)
{
    struct equation q = {.len = 0};
    int32_t in[OP_MAX_IN + 1] = {dy};
    int64_t missing[YK_MAX_RANK];
    int n_in = 1, n_missing = 0;
    for (int a = 0; a < e->rank[k]; a++)
        for (int b = a + 1; b < e->rank[k]; b++)
            if (e->label[k][a] == e->label[k][b]) {
                grad_fail(r, YK_UNSUPPORTED, "the diagonal of input %d", k);
                return;
            }
    if (n->n_in >= OP_MAX_IN) {
        grad_fail(r, YK_UNSUPPORTED, "%d inputs", n->n_in);
        return;
    }
    for (int l = 0; l < e->n_out; l++)
        put_label(&q, l);
    for (int i = 0; i < e->n_in; i++) {
        if (i == k)
            continue;
        put(&q, ",", 1);
        for (int a = 0; a < e->rank[i]; a++)
            put_label(&q, e->label[i][a]);
        in[n_in++] = grad_in(r, n, i);
    }
    put(&q, "->", 2);
    for (int a = 0; a < e->rank[k]; a++) {
        if (is_elsewhere(e, k, e->label[k][a]))
            put_label(&q, e->label[k][a]);
        else
            missing[n_missing++] = a;
    }
    if (q.over) {
        grad_fail(r, YK_UNSUPPORTED, "more than 52 labels");
        return;
    }
    int32_t d = 0;
    grad_node(r, "Einsum", in, n_in, &d, 1);
    grad_attr_s(r, "equation", q.text);
    bool broadcast = false, grown = n_missing > 0;
    for (int i = 0; i < r->p->n && !r->err; i++) {
        const struct shape *shapes[OP_MAX_IN];
        for (int j = 0; j < n->n_in; j++)
            shapes[j] = &r->p->at[i].of[n->in[j]];
        einsum_sizes(n, shapes, k, &broadcast, &grown);
    }
    if (broadcast && grown) {
        grad_fail(r, YK_UNSUPPORTED, "axes of size 1 of input %d beside others that it alone has", k);
        return;
    }
    if (n_missing > 0)
        d = grad_op2(r, "Unsqueeze", d, grad_ints(r, missing, n_missing));
    if (broadcast)
        d = grad_op2(r, "ai.yoke.SumTo", d, grad_shape(r, n->in[k]));
    if (grown)
        d = grad_op2(r, "Expand", d, grad_shape(r, n->in[k]));
    dx[k] = d;
}

static void einsum(struct grad *r, const struct node *n, const int32_t *dy, int32_t *dx)
{
    const struct shape *shapes[OP_MAX_IN];
    struct einsum e;
    struct yk_diag why = {.text = ""};
    for (int i = 0; i < n->n_in; i++)
        shapes[i] = &r->p->at[0].of[n->in[i]];
    yk_err err = op_einsum(n, shapes, n->n_in, &e, &why);
    if (err) {
        grad_fail(r, err, "%s", why.text);
        return;
    }
    for (int k = 0; k < n->n_in && !r->err; k++)
        if (grad_needs(r, n, k))
            einsum_input(r, n, &e, k, dy[0], dx);
}

static const struct grad_rule rows[] = {
    {"Conv", "", 7u, 1u, conv},
    {"ConvTranspose", "", 7u, 1u, deconv},
    {"Gemm", "", 7u, 1u, gemm},
    {"FusedGemm", "ai.yoke", 7u, 1u, fused_gemm},
    {"MatMul", "", 3u, 1u, matmul},
    {"Einsum", "", GRAD_ALL_INPUTS, 1u, einsum},
};
const struct grad_rules grad_rules_linear = {rows, (int)YK_COUNT(rows)};
