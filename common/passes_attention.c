/* Attention as exporters write it out: MatMul, a scale, maybe + mask, Softmax, MatMul, with the moves around them that
 * split columns into heads and join them again, becomes one ai.yoke Attention that reads and writes columns. */
#include "common/passes_attention.h"

#include <stdio.h>
#include <stdlib.h>

#define STEPS_BACK 12

/* What a view's axis `dim` walks: count of factors, and the first two of them. */
static int factors_of(const struct view *v, int dim, struct factor *a, struct factor *b)
{
    int n = 0;
    *a = *b = (struct factor){dim, 1, 0};
    for (int i = 0; i < v->n; i++)
        if (v->f[i].dim == dim) {
            if (n < 2)
                *(n ? b : a) = v->f[i];
            n++;
        }
    return n;
}

/* A factor is a whole axis of the tensor, in order; a missing one is an axis of one. */
static bool is_axis(const struct factor *f, const struct shape *s, const int64_t *st, int k)
{
    return f->n == s->dims[k] && (f->n == 1 || f->step == st[k]);
}

struct operand {
    int rank, length, width; /* axes of the operand; those before are batch and heads */
    int64_t size;            /* of the width */
};

/* Whether the operand, seen as v, is heads of columns of a tensor of three axes. */
static bool fits_columns(const struct view *v, const struct operand *o, const struct shape *s, int b, struct found *out)
{
    struct view fine = *v;
    struct factor batch = {0, 1, 0}, heads = {0, 1, 0}, length, width, more;
    int64_t st[YK_MAX_RANK];
    if (s->rank != 3 || !passes_attention_refine(&fine, s))
        return false;
    passes_attention_strides(s, st);
    if (factors_of(&fine, o->length, &length, &more) > 1 || factors_of(&fine, o->width, &width, &more) > 1)
        return false;
    for (int d = 0, seen = 0; d < o->rank; d++) { /* batch, then heads */
        if (d == o->length || d == o->width)
            continue;
        for (int i = 0; i < fine.n; i++) {
            if (fine.f[i].dim != d)
                continue;
            bool column = fine.f[i].step < st[2] * s->dims[2];
            if (column && heads.n == 1)
                heads = fine.f[i];
            else if (!column && !seen && heads.n == 1)
                batch = fine.f[i];
            else
                return false;
            seen = 1;
        }
    }
    bool ordered = (width.n == 1 || width.step == 1) && width.n == o->size && (heads.n == 1 || heads.step == o->size);
    *out = (struct found){.heads = heads.n, .size = o->size, .at = v->offset};
    return ordered && is_axis(&batch, s, st, b) && is_axis(&length, s, st, 1 - b) &&
           v->offset + heads.n * o->size <= s->dims[2];
}

static bool fits_heads(const struct view *v, const struct operand *o, const struct shape *s, struct found *out)
{
    struct view fine = *v;
    int64_t st[YK_MAX_RANK];
    struct factor f, more;
    if (s->rank != 4 || o->rank != 4 || !passes_attention_refine(&fine, s) || v->offset)
        return false;
    passes_attention_strides(s, st);
    *out = (struct found){.heads = s->dims[1], .size = o->size};
    for (int d = 0; d < 4; d++) {
        int k = d == o->length ? 2 : d == o->width ? 3 : d;
        if (factors_of(&fine, d, &f, &more) > 1 || !is_axis(&f, s, st, k))
            return false;
    }
    return true;
}

static bool fits(
    const struct match *m, int probe, int32_t value, const struct operand *o, enum form form, struct found *out)
{
    const struct shape *s = passes_attention_shape(m, probe, value);
    const struct view *v = &m->view[probe];
    if (form == FORM_HEADS)
        return fits_heads(v, o, s, out);
    return fits_columns(v, o, s, form == FORM_TIME ? 1 : 0, out) &&
           (form != FORM_PLAIN || (out->heads == 1 && out->at == 0 && s->dims[2] == out->size));
}

/* Notes in which forms the value can be read as the operand, the same at every size. */
static void note_forms(struct match *m, int32_t value, enum role role, double scale)
{
    for (int form = 0; form < FORMS; form++) {
        struct found all = {0}, one;
        bool ok = true;
        for (int p = 0; ok && p < m->p.n; p++) {
            const struct shape *s = passes_attention_shape(
                m, p, role == ROLE_V ? m->g->nodes[m->product].in[1] : m->g->nodes[m->scores].in[role == ROLE_K]);
            int width = role == ROLE_K ? s->rank - 2 : s->rank - 1;
            struct operand o = {s->rank, 2 * s->rank - 3 - width, width, s->dims[width]};
            ok = fits(m, p, value, &o, (enum form)form, &one) &&
                 (p == 0 || form == FORM_HEADS || (one.heads == all.heads && one.size == all.size && one.at == all.at));
            all = one;
        }
        if (!ok)
            continue;
        all.value = value;
        all.scale = scale;
        m->found[role][form] = all;
    }
}

static bool follow(struct match *m, int32_t value, enum role role)
{
    double scale = 1;
    for (int form = 0; form < FORMS; form++)
        m->found[role][form] = (struct found){.value = YK_ABSENT};
    if (value >= m->n_probed || passes_attention_shape(m, 0, value)->dtype != DT_F32 ||
        !passes_attention_begin(m, value, m->view))
        return false;
    for (int back = 0; back < STEPS_BACK; back++) {
        note_forms(m, value, role, scale);
        int32_t node = m->g->values[value].producer;
        const struct node *n = node < 0 ? NULL : &m->g->nodes[node];
        if (!n || !n->op || m->g->values[value].kind != VALUE_NODE)
            break;
        double next = scale;
        bool ok = true;
        for (int p = 0; ok && p < m->p.n; p++) {
            next = scale;
            ok = passes_attention_through(m, p, node, value, &m->view[p], &next);
        }
        if (!ok || (role == ROLE_V && next != 1))
            break;
        scale = next;
        value = n->in[0];
    }
    return true;
}

/* ---- the other side: how the result is joined ---- */

static int32_t only_reader(const struct match *m, int32_t value)
{
    return value < m->n_probed && m->uses[value] == 1 ? m->reader[value] : -1;
}

static void put(struct view *v, int dim, int64_t n, int64_t step)
{
    if (n > 1)
        v->f[v->n++] = (struct factor){dim, n, step};
}

/* Factors that continue one another become one. */
static void merge(struct view *v)
{
    int n = 0;
    for (int i = 0; i < v->n; i++) {
        struct factor *last = n ? &v->f[n - 1] : NULL;
        if (last && last->step == v->f[i].n * v->f[i].step)
            *last = (struct factor){0, last->n * v->f[i].n, v->f[i].step};
        else
            v->f[n++] = (struct factor){0, v->f[i].n, v->f[i].step};
    }
    v->n = n;
}

/* Whether the elements of `value`, which is made of what the last product gave, are in the order of Attention's. */
static bool in_order(struct match *m, int32_t value, int32_t made, enum form form, int64_t heads)
{
    for (int p = 0; p < m->p.n; p++) {
        const struct shape *o = passes_attention_shape(m, p, made);
        struct view v = {.n = 1, .f = {{0, shape_count(o), 1}}}, want = {0};
        double scale = 1;
        int64_t st[YK_MAX_RANK], lq = o->dims[o->rank - 2], dv = o->dims[o->rank - 1];
        if (shape_count(o) <= 1 || shape_count(o) != shape_count(passes_attention_shape(m, p, value)))
            return false;
        for (int32_t at = value; at != made;) {
            int32_t node = m->g->values[at].producer;
            if (!passes_attention_through(m, p, node, at, &v, &scale) || scale != 1)
                return false;
            at = m->g->nodes[node].in[0];
        }
        if (!passes_attention_refine(&v, o))
            return false;
        passes_attention_strides(o, st);
        int64_t head = lq * dv, batch = shape_count(o) / (head * heads);
        if (form == FORM_ROWS)
            put(&want, 0, batch, head * heads);
        put(&want, 0, lq, dv);
        if (form == FORM_TIME)
            put(&want, 0, batch, head * heads);
        put(&want, 0, heads, head);
        put(&want, 0, dv, 1);
        merge(&v);
        merge(&want);
        if (v.n != want.n || v.offset)
            return false;
        for (int i = 0; i < v.n; i++)
            if (v.f[i].n != want.f[i].n || v.f[i].step != want.f[i].step)
                return false;
    }
    return true;
}

static bool has_shape(const struct match *m, int32_t value, int32_t made, enum form form, int64_t heads)
{
    for (int p = 0; p < m->p.n; p++) {
        const struct shape *s = passes_attention_shape(m, p, value), *o = passes_attention_shape(m, p, made);
        int64_t lq = o->dims[o->rank - 2], dv = o->dims[o->rank - 1], batch = shape_count(o) / (lq * dv * heads);
        int b = form == FORM_TIME ? 1 : 0;
        if (s->rank != 3 || s->dims[b] != batch || s->dims[1 - b] != lq || s->dims[2] != heads * dv)
            return false;
    }
    return true;
}

/* A Reshape whose target means the same for any input of so many elements. */
static bool plain_reshape(const struct match *m, const struct node *n)
{
    if (!passes_attention_is(n, "Reshape") || n->in[1] >= m->n_probed)
        return false;
    for (int p = 0; p < m->p.n; p++) {
        const int64_t *v = m->p.at[p].content[n->in[1]];
        if (!v)
            return false;
        for (int64_t i = 0; i < shape_count(passes_attention_shape(m, p, n->in[1])); i++)
            if (v[i] == 0)
                return false;
    }
    return true;
}

struct ending {
    int32_t value; /* that Attention makes, or a Reshape right behind it */
    bool reshaped;
};

static bool find_ending(struct match *m, int32_t made, enum form form, int64_t heads, struct ending *out)
{
    *out = (struct ending){.value = YK_ABSENT};
    if (form == FORM_HEADS || form == FORM_PLAIN) {
        out->value = made;
        return true;
    }
    int32_t value = made;
    for (int i = 0; i < 4; i++) {
        int32_t next = only_reader(m, value);
        const struct node *n = next < 0 ? NULL : &m->g->nodes[next];
        if (!n || n->in[0] != value || !(passes_attention_is(n, "Reshape") || passes_attention_is(n, "Transpose")) ||
            n->out[0] >= m->n_probed)
            break;
        value = n->out[0];
        if (!in_order(m, value, made, form, heads))
            continue;
        bool direct = has_shape(m, value, made, form, heads);
        if (direct || plain_reshape(m, n))
            *out = (struct ending){value, !direct};
    }
    return out->value != YK_ABSENT;
}

/* ---- putting it together ---- */

/* From Softmax back to the first product: one addition at most, before it scalar factors. */
static bool match_scores(struct match *m, int32_t value, int left)
{
    const struct graph *g = m->g;
    int32_t node = value < m->n_probed && m->uses[value] == 1 ? g->values[value].producer : -1;
    const struct node *n = node < 0 ? NULL : &g->nodes[node];
    float c;
    if (!n || !n->op || left == 0)
        return false;
    if (passes_attention_is(n, "MatMul")) {
        m->scores = node;
        return true;
    }
    if ((passes_attention_is(n, "Mul") || passes_attention_is(n, "Div")) && pass_const_f32(g, n->in[1], &c) && c != 0 &&
        pass_same_shape(&m->p, value, n->in[0])) {
        m->scale = passes_attention_is(n, "Mul") ? m->scale * (double)c : m->scale / (double)c;
        return match_scores(m, n->in[0], left - 1);
    }
    if (!passes_attention_is(n, "Add") || m->mask != YK_ABSENT || m->scale != 1 || n->in[0] == n->in[1])
        return false;
    for (int i = 0; i < 2; i++) {
        m->mask = n->in[1 - i];
        m->scale = 1;
        if (m->mask < m->n_probed && passes_attention_shape(m, 0, m->mask)->dtype == DT_F32 && n->in[i] < m->n_probed &&
            pass_same_shape(&m->p, value, n->in[i]) && match_scores(m, n->in[i], left - 1))
            return true;
    }
    return false;
}

/* The mask lies on (batch, heads, queries, keys) as Attention has it. */
static bool mask_fits(const struct match *m, int32_t scores, int64_t heads, enum form form)
{
    for (int p = 0; m->mask != YK_ABSENT && p < m->p.n; p++) {
        const struct shape *k = passes_attention_shape(m, p, m->mask), *s = passes_attention_shape(m, p, scores);
        if (k->rank < 0 || k->rank > s->rank || (s->rank == 3 && k->rank == 3 && k->dims[0] != 1))
            return false;
        if (s->rank == 4 && k->rank >= 3 && form != FORM_HEADS && s->dims[1] != heads)
            return false;
    }
    return true;
}

static yk_err build(struct match *m, enum form form, const struct ending *end, int32_t made)
{
    static const char *const layouts[] = {"rows", "time", "heads", "rows"};
    struct graph *g = m->g;
    const struct found *q = &m->found[ROLE_Q][form], *k = &m->found[ROLE_K][form], *v = &m->found[ROLE_V][form];
    int32_t *ids = yk_arena_alloc(g->arena, 5, sizeof *ids), y = end->value;
    struct node n = {.name = g->nodes[m->softmax].name, .op = op_find("ai.yoke", "Attention"), .n_out = 1};
    if (!ids)
        return YK_NOMEM;
    if (end->reshaped) {
        char name[300];
        snprintf(name, sizeof name, "%.200s.attention", g->values[end->value].name);
        for (int i = 2; graph_find_value(g, name) != YK_ABSENT; i++)
            snprintf(name, sizeof name, "%.200s.attention.%d", g->values[end->value].name, i);
        y = graph_add_value(g, name, VALUE_NODE, DT_F32);
        if (y == YK_ABSENT)
            return YK_NOMEM;
    }
    for (int32_t at = end->value; at != made;) { /* the moves between */
        struct node *move = &g->nodes[g->values[at].producer];
        at = move->in[0];
        if (end->reshaped && move->out[0] == end->value)
            move->in[0] = y;
        else
            move->op = NULL;
    }
    ids[0] = q->value;
    ids[1] = k->value;
    ids[2] = v->value;
    ids[3] = m->mask;
    ids[4] = y;
    n.in = ids;
    n.out = ids + 4;
    n.n_in = m->mask == YK_ABSENT ? 3 : 4;
    yk_err err = graph_set_attr_s(g, &n, "layout", layouts[form]);
    if (!err)
        err = graph_set_attr_f(g, &n, "scale", (float)(m->scale * q->scale * k->scale));
    const struct {
        const char *name;
        int64_t value;
    } ints[] = {
        {"heads", q->heads}, {"size", q->size}, {"v_size", v->size}, {"q_at", q->at}, {"k_at", k->at}, {"v_at", v->at}};
    for (size_t i = 0; !err && form != FORM_HEADS && i < YK_COUNT(ints); i++)
        err = graph_set_attr_i(g, &n, ints[i].name, ints[i].value);
    if (err)
        return err;
    for (int32_t at = g->nodes[m->softmax].in[0]; g->values[at].producer != m->scores;) {
        struct node *between = &g->nodes[g->values[at].producer];
        at = between->in[0] == m->mask ? between->in[1] : between->in[0];
        between->op = NULL;
    }
    g->nodes[m->scores].op = NULL;
    g->nodes[m->softmax].op = NULL;
    g->nodes[m->product] = n;
    g->values[y].producer = m->product;
    return YK_OK;
}

/* Before opset 13 Softmax took rows: Flatten, Softmax, Reshape back. Along the last axis that is Softmax alone. */
static yk_err unflatten(struct match *m, int32_t softmax)
{
    struct graph *g = m->g;
    struct node *s = &g->nodes[softmax];
    int32_t rows = s->in[0], at = rows < m->n_probed && m->uses[rows] == 1 ? g->values[rows].producer : -1;
    int32_t back = s->out[0] < m->n_probed ? only_reader(m, s->out[0]) : -1;
    struct node *flat = at < 0 ? NULL : &g->nodes[at];
    if (!flat || back < 0 || !passes_attention_is(flat, "Flatten") ||
        !passes_attention_is(&g->nodes[back], "Reshape") || !pass_same_shape(&m->p, flat->in[0], g->nodes[back].out[0]))
        return YK_OK;
    int rank = passes_attention_shape(m, 0, flat->in[0])->rank;
    int64_t axis = node_attr_i(flat, "axis", 1), along = node_attr_i(s, "axis", -1);
    if (rank < 1 || (axis != rank - 1 && axis != -1) || (along != -1 && along != 1))
        return YK_OK;
    s->in[0] = flat->in[0];
    s->out[0] = g->nodes[back].out[0];
    g->values[s->out[0]].producer = softmax;
    int32_t target = g->nodes[back].in[1], by = target < m->n_probed ? g->values[target].producer : -1;
    if (by >= 0 && passes_attention_is(&g->nodes[by], "Shape") && m->uses[target] == 1 &&
        g->nodes[by].in[0] == s->in[0]) {
        g->nodes[by].op = NULL;
        m->uses[s->in[0]]--;
    }
    m->reader[s->in[0]] = softmax;
    flat->op = NULL;
    g->nodes[back].op = NULL;
    return graph_set_attr_i(g, s, "axis", -1);
}

static yk_err try_softmax(struct match *m, int32_t softmax)
{
    const struct graph *g = m->g;
    const struct node *s = &g->nodes[softmax];
    if (s->in[0] >= m->n_probed || s->out[0] >= m->n_probed || passes_attention_shape(m, 0, s->in[0])->rank < 3 ||
        passes_attention_shape(m, 0, s->in[0])->rank > 4)
        return YK_OK;
    int rank = passes_attention_shape(m, 0, s->in[0])->rank;
    int64_t axis = node_attr_i(s, "axis", -1);
    m->softmax = softmax;
    m->mask = YK_ABSENT;
    m->scale = 1;
    m->product = only_reader(m, s->out[0]);
    if ((axis != -1 && axis != rank - 1) || m->product < 0 || !passes_attention_is(&g->nodes[m->product], "MatMul") ||
        g->nodes[m->product].in[0] != s->out[0] || !match_scores(m, s->in[0], 4))
        return YK_OK;
    const struct node *qk = &g->nodes[m->scores], *pv = &g->nodes[m->product];
    int32_t made = pv->out[0];
    if (made >= m->n_probed || pv->in[1] == s->out[0] || !follow(m, qk->in[0], ROLE_Q) ||
        !follow(m, qk->in[1], ROLE_K) || !follow(m, pv->in[1], ROLE_V))
        return YK_OK;
    for (int p = 0; p < m->p.n; p++) /* nothing repeats */
        for (int i = 0; i < rank - 2; i++)
            if (passes_attention_shape(m, p, qk->in[0])->rank != rank ||
                passes_attention_shape(m, p, qk->in[1])->rank != rank ||
                passes_attention_shape(m, p, pv->in[1])->rank != rank ||
                passes_attention_shape(m, p, qk->in[0])->dims[i] != passes_attention_shape(m, p, qk->in[1])->dims[i] ||
                passes_attention_shape(m, p, qk->in[0])->dims[i] != passes_attention_shape(m, p, pv->in[1])->dims[i])
                return YK_OK;
    for (int form = 0; form < FORMS; form++) {
        const struct found *q = &m->found[ROLE_Q][form], *k = &m->found[ROLE_K][form], *v = &m->found[ROLE_V][form];
        struct ending end;
        bool all = q->value != YK_ABSENT && k->value != YK_ABSENT && v->value != YK_ABSENT;
        if (all && (form == FORM_HEADS || (q->heads == k->heads && q->heads == v->heads)) &&
            mask_fits(m, qk->out[0], q->heads, (enum form)form) &&
            find_ending(m, made, (enum form)form, q->heads, &end))
            return build(m, (enum form)form, &end, made);
    }
    return YK_OK;
}

static void note_reader(void *arg, int32_t value)
{
    struct match *m = arg;
    m->reader[value] = m->node;
}

yk_err pass_fuse_attention(struct graph *g, struct yk_diag *why)
{
    struct match *m = yk_try_alloc(1, sizeof *m);
    yk_err err = m ? graph_sort(g, why) : yk_fail(why, YK_NOMEM, "no memory to fuse");
    if (err || (err = pass_probes_open(g, &m->p, why)) != YK_OK) {
        free(m);
        return err;
    }
    m->g = g;
    m->n_probed = g->n_values;
    m->uses = pass_uses(g);
    m->reader = yk_try_alloc((size_t)g->n_values + 1, sizeof *m->reader);
    m->x = yk_try_alloc(1, sizeof *m->x);
    if (!m->uses || !m->reader || !m->x)
        err = YK_NOMEM;
    for (int32_t v = 0; !err && v < g->n_values; v++)
        m->reader[v] = -1;
    for (m->node = 0; !err && m->node < g->n_nodes; m->node++)
        node_each_use(&g->nodes[m->node], note_reader, m);
    for (int32_t i = 0; !err && m->p.n > 0 && i < g->n_nodes; i++)
        if (passes_attention_is(&g->nodes[i], "Softmax") && !(err = unflatten(m, i)))
            err = try_softmax(m, i);
    free(m->uses);
    free(m->reader);
    free(m->x);
    pass_probes_close(&m->p);
    free(m);
    return err ? yk_fail(why, err, "no memory to fuse") : pass_compact(g, why);
}
