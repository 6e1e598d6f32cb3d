#include "common/passes_attention.h"

void passes_attention_strides(const struct shape *s, int64_t *step)
{
    int64_t at = 1;
    for (int i = s->rank - 1; i >= 0; i--) {
        step[i] = at;
        at *= s->dims[i];
    }
}

/* The axis of a tensor in which addresses of this step move. */
static int axis_of_step(const struct shape *s, const int64_t *st, int64_t step)
{
    for (int k = s->rank - 1; k >= 0; k--)
        if (s->dims[k] > 1 && step >= st[k] && step < st[k] * s->dims[k])
            return step % st[k] == 0 ? k : -1;
    return -1;
}

bool passes_attention_refine(struct view *v, const struct shape *s)
{
    int64_t st[YK_MAX_RANK];
    passes_attention_strides(s, st);
    for (int i = 0; i < v->n;) {
        struct factor f = v->f[i];
        int k = axis_of_step(s, st, f.step);
        int64_t m = k < 0 ? 0 : f.step / st[k];
        if (k < 0)
            return false;
        if ((f.n - 1) * m < s->dims[k]) {
            i++;
            continue;
        }
        int64_t inner = s->dims[k] / m;
        if (s->dims[k] % m || inner < 2 || f.n % inner || v->n == ATTENTION_FACTORS)
            return false;
        memmove(&v->f[i + 1], &v->f[i], (size_t)(v->n - i) * sizeof *v->f);
        v->n++;
        v->f[i + 1].n = inner;
        v->f[i] = (struct factor){f.dim, f.n / inner, st[k] * s->dims[k]};
    }
    return true;
}

/* Addresses in a tensor of shape `from` become addresses in one of shape `to`: axis k of `from` is axis axis[k] of it,
 * and begins at start[k] there. */
static bool move(
    struct view *v, const struct shape *from, const struct shape *to, const int *axis, const int64_t *start)
{
    int64_t st[YK_MAX_RANK], target[YK_MAX_RANK], offset = 0;
    if (!passes_attention_refine(v, from))
        return false;
    passes_attention_strides(from, st);
    passes_attention_strides(to, target);
    for (int k = 0; k < from->rank; k++)
        offset += (v->offset / st[k] % from->dims[k] + start[k]) * target[axis[k]];
    for (int i = 0; i < v->n; i++) {
        int k = axis_of_step(from, st, v->f[i].step);
        v->f[i].step = v->f[i].step / st[k] * target[axis[k]];
    }
    v->offset = offset;
    return true;
}

bool passes_attention_begin(const struct match *m, int32_t value, struct view *out)
{
    for (int p = 0; p < m->p.n; p++) {
        const struct shape *s = passes_attention_shape(m, p, value);
        int64_t st[YK_MAX_RANK];
        if (s->rank < 0 || shape_count(s) <= 0)
            return false;
        passes_attention_strides(s, st);
        out[p] = (struct view){0};
        for (int k = 0; k < s->rank; k++)
            if (s->dims[k] > 1)
                out[p].f[out[p].n++] = (struct factor){k, s->dims[k], st[k]};
    }
    return true;
}

static bool gathered(const struct match *m, int probe, const struct node *n, int *axis, int64_t *index)
{
    const struct shape *x = passes_attention_shape(m, probe, n->in[0]), *i = passes_attention_shape(m, probe, n->in[1]);
    const int64_t *content = m->p.at[probe].content[n->in[1]];
    int64_t a = node_attr_i(n, "axis", 0);
    *axis = (int)(a < 0 ? a + x->rank : a);
    if (i->rank != 0 || !content || *axis < 0 || *axis >= x->rank)
        return false;
    *index = content[0] < 0 ? content[0] + x->dims[*axis] : content[0];
    return *index >= 0 && *index < x->dims[*axis];
}

bool passes_attention_through(struct match *m, int probe, int32_t node, int32_t value, struct view *v, double *scale)
{
    const struct node *n = &m->g->nodes[node];
    const struct shape *from = passes_attention_shape(m, probe, value), *to;
    int axis[YK_MAX_RANK];
    int64_t start[YK_MAX_RANK] = {0}, index;
    for (int k = 0; k < YK_MAX_RANK; k++)
        axis[k] = k;
    if (n->n_in < 1 || n->in[0] == YK_ABSENT || n->in[0] >= m->n_probed)
        return false;
    to = passes_attention_shape(m, probe, n->in[0]);
    if (to->rank < 0 || to->dtype != DT_F32)
        return false;
    if (passes_attention_is(n, "Reshape") || passes_attention_is(n, "Squeeze") || passes_attention_is(n, "Unsqueeze") ||
        passes_attention_is(n, "Flatten"))
        return true;
    if (passes_attention_is(n, "Mul") || passes_attention_is(n, "Div")) {
        float c;
        if (!pass_const_f32(m->g, n->in[1], &c) || c == 0 || !shape_equal(from, to))
            return false;
        *scale = passes_attention_is(n, "Mul") ? *scale * (double)c : *scale / (double)c;
        return true;
    }
    if (passes_attention_is(n, "Transpose")) {
        const struct attr *perm = node_attr_ints(n, "perm");
        for (int k = 0; k < from->rank; k++)
            axis[k] = perm ? (int)perm->ints[k] : from->rank - 1 - k;
    } else if (passes_attention_is(n, "Slice")) {
        struct slice_dims d;
        shapes_node(m->g, &m->p.at[probe], node, m->x);
        m->x->why = NULL;
        if (op_slice_dims(m->x, &d))
            return false;
        for (int k = 0; k < from->rank; k++) {
            start[k] = d.start[k];
            if (d.step[k] != 1 && d.count[k] > 1)
                return false;
        }
    } else if (passes_attention_is(n, "Split")) {
        int64_t a = node_attr_i(n, "axis", 0);
        a = a < 0 ? a + from->rank : a;
        for (int k = 0; n->out[k] != value; k++) {
            if (n->out[k] == YK_ABSENT)
                return false;
            start[a] += passes_attention_shape(m, probe, n->out[k])->dims[a];
        }
    } else if (passes_attention_is(n, "Gather")) {
        int gone;
        int64_t st[YK_MAX_RANK];
        if (!gathered(m, probe, n, &gone, &index))
            return false;
        for (int k = gone; k < from->rank; k++)
            axis[k] = k + 1;
        if (!move(v, from, to, axis, start))
            return false;
        passes_attention_strides(to, st);
        v->offset += index * st[gone];
        return true;
    } else {
        return false;
    }
    return move(v, from, to, axis, start);
}
