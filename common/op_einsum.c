/* Grammar: terms of letters and at most one "..." each, separated by commas; blanks do not count; "->" and the output
 * term, or without it the ellipsis and the letters that come once, in alphabetical order (capitals first). Axes of an
 * ellipsis align at the right and broadcast, and so does a label of size 1. An ellipsis that the output does not have
 * is summed over, as in PyTorch. */
#include "common/op_einsum.h"

#include <string.h>

#include "common/op_rules.h"

struct parse {
    const char *at;
    int dots;                    /* axes of the widest ellipsis */
    int used[EINSUM_LABELS];     /* axes that have the label */
    int64_t size[EINSUM_LABELS]; /* -1: not seen */
    struct yk_diag *why;
};

static int letter(char c)
{
    return c >= 'A' && c <= 'Z' ? c - 'A' : c >= 'a' && c <= 'z' ? 26 + (c - 'a') : -1;
}

static void blanks(struct parse *p)
{
    while (*p->at == ' ' || *p->at == '\t')
        p->at++;
}

/* One term up to ',', "->" or the end: letters into list (-1: the ellipsis). */
static yk_err term(struct parse *p, int *list, int most, int *count, const char *what)
{
    bool dots = false;
    *count = 0;
    for (;;) {
        blanks(p);
        if (*p->at == 0 || *p->at == ',' || (p->at[0] == '-' && p->at[1] == '>'))
            return YK_OK;
        int l = letter(*p->at);
        if (l < 0 && (dots || strncmp(p->at, "...", 3) != 0))
            return yk_fail(p->why, YK_INVAL, "equation: unexpected '%.8s'", p->at);
        if (*count == most)
            return yk_fail(p->why, YK_INVAL, "equation: %s has more than %d labels", what, most);
        dots |= l < 0;
        list[(*count)++] = l;
        p->at += l < 0 ? 3 : 1;
    }
}

static yk_err see(struct parse *p, int label, int64_t size)
{
    int64_t *have = &p->size[label];
    p->used[label]++;
    if (*have < 0 || *have == 1)
        *have = size;
    else if (size != 1 && size != *have)
        return yk_fail(
            p->why, YK_INVAL, "equation: one label has sizes %lld and %lld", (long long)*have, (long long)size);
    return YK_OK;
}

/* Labels of the ellipsis are 52 ..: the last of its axes is 52 + YK_MAX_RANK - 1. */
static yk_err input(struct parse *p, const struct shape *s, int i, struct einsum *e)
{
    int list[YK_MAX_RANK + 1], count, axis = 0;
    yk_err err = term(p, list, YK_MAX_RANK + 1, &count, "a term");
    if (err)
        return err;
    bool dots = false;
    for (int k = 0; k < count; k++)
        dots |= list[k] < 0;
    int rest = s->rank - (count - dots);
    if (rest < 0 || (!dots && rest != 0))
        return yk_fail(p->why, YK_INVAL, "equation: term %d has %d labels for %d axes", i, count - dots, s->rank);
    p->dots = YK_MAX(p->dots, dots ? rest : 0);
    e->rank[i] = s->rank;
    for (int k = 0; k < count; k++) {
        int n = list[k] < 0 ? rest : 1;
        for (int r = 0; r < n; r++, axis++) {
            int label = list[k] < 0 ? 52 + YK_MAX_RANK - rest + r : list[k];
            e->label[i][axis] = label;
            if ((err = see(p, label, s->dims[axis])) != YK_OK)
                return err;
        }
    }
    /* A diagonal needs equal sizes: a 1 beside an n would read outside. */
    for (int a = 0; a < s->rank; a++)
        for (int b = a + 1; b < s->rank; b++)
            if (e->label[i][a] == e->label[i][b] && s->dims[a] != s->dims[b])
                return yk_fail(p->why, YK_INVAL, "equation: a diagonal over sizes %lld and %lld", (long long)s->dims[a],
                    (long long)s->dims[b]);
    return YK_OK;
}

/* The labels of the output in its order. */
static yk_err output(struct parse *p, int *order, int *count)
{
    int list[EINSUM_LABELS], n;
    *count = 0;
    blanks(p);
    if (*p->at == 0) {
        for (int k = 0; k < p->dots; k++)
            order[(*count)++] = 52 + YK_MAX_RANK - p->dots + k;
        for (int l = 0; l < 52; l++)
            if (p->used[l] == 1)
                order[(*count)++] = l;
        return YK_OK;
    }
    p->at += 2; /* the caller stopped at "->" */
    yk_err err = term(p, list, EINSUM_LABELS, &n, "the output");
    if (err)
        return err;
    if (*p->at)
        return yk_fail(p->why, YK_INVAL, "equation: unexpected '%.8s' behind the output", p->at);
    for (int k = 0; k < n; k++) {
        if (list[k] < 0) {
            for (int r = 0; r < p->dots; r++)
                order[(*count)++] = 52 + YK_MAX_RANK - p->dots + r;
            continue;
        }
        for (int b = 0; b < k; b++)
            if (list[b] == list[k])
                return yk_fail(p->why, YK_INVAL, "equation: a label comes twice in the output");
        if (p->used[list[k]] == 0)
            return yk_fail(p->why, YK_INVAL, "equation: a label of the output is in no input");
        order[(*count)++] = list[k];
    }
    return YK_OK;
}

yk_err op_einsum(const struct node *n, const struct shape *const *in, int n_in, struct einsum *out, struct yk_diag *why)
{
    const struct attr *a = node_attr(n, "equation");
    struct parse p = {.why = why};
    int order[EINSUM_LABELS], number[EINSUM_LABELS];
    yk_err err;
    if (!a || a->kind != ATTR_STRING)
        return yk_fail(why, YK_INVAL, "attribute equation is missing");
    memset(out, 0, sizeof *out);
    p.at = a->s;
    for (int l = 0; l < EINSUM_LABELS; l++)
        p.size[l] = number[l] = -1;
    out->n_in = n_in;
    for (int i = 0; i < n_in; i++) {
        if (i > 0 && *p.at++ != ',')
            return yk_fail(why, YK_INVAL, "equation: %d terms for %d inputs", i, n_in);
        if ((err = input(&p, in[i], i, out)) != YK_OK)
            return err;
    }
    if (*p.at == ',')
        return yk_fail(why, YK_INVAL, "equation: more terms than the %d inputs", n_in);
    if ((err = output(&p, order, &out->n_out)) != YK_OK)
        return err;
    for (int k = 0; k < out->n_out; k++)
        number[order[k]] = out->n_labels++;
    int64_t total = 1;
    for (int l = 0; l < EINSUM_LABELS; l++) {
        if (p.used[l] == 0)
            continue;
        if (number[l] < 0)
            number[l] = out->n_labels++;
        out->size[number[l]] = p.size[l];
        if (p.size[l] > 0 && (!yk_mul_i64(total, p.size[l], &total) || total > YK_MAX_COUNT))
            return yk_fail(why, YK_LIMIT, "equation: more than 2^56 products");
    }
    for (int i = 0; i < n_in; i++)
        for (int k = 0; k < out->rank[i]; k++)
            out->label[i][k] = number[out->label[i][k]];
    return YK_OK;
}

yk_err op_rule_einsum(struct op_ctx *c)
{
    struct einsum e;
    yk_err err;
    for (int i = 0; i < c->n_in; i++)
        if ((err = op_want(c, i, OP_NUMERIC)) != YK_OK || (err = op_want_same(c, 0, i)) != YK_OK)
            return err;
    if ((err = op_einsum(c->node, c->in, c->n_in, &e, c->why)) != YK_OK)
        return err;
    if (e.n_out > YK_MAX_RANK)
        return yk_fail(c->why, YK_LIMIT, "the output would have %d axes, the limit is %d", e.n_out, YK_MAX_RANK);
    op_out(c, 0, c->in[0]->dtype, e.n_out, e.size);
    return YK_OK;
}

double op_flops_einsum(const struct op_ctx *c)
{
    struct einsum e;
    if (op_einsum(c->node, c->in, c->n_in, &e, NULL))
        return 0;
    double n = c->n_in;
    for (int l = 0; l < e.n_labels; l++)
        n *= (double)e.size[l];
    return n;
}
