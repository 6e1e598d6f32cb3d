#include "kernels/plugin_view.h"

#include <stdlib.h>
#include <string.h>

struct maker {
    const struct graph *g;
    struct plugin_view *v;
    struct yoke_value **values;
    struct yoke_node **nodes;
    int32_t n_values;
    bool failed;
};

static void *take(struct maker *m, size_t count, size_t size)
{
    void *p = yk_arena_alloc(m->v->arena, count ? count : 1, size);
    m->failed |= !p;
    return p;
}

static const char *text(struct maker *m, const char *s)
{
    const char *copy = yk_arena_strdup(m->v->arena, s ? s : "");
    m->failed |= !copy;
    return copy;
}

void plugin_view_shape(const struct shape *s, struct yoke_shape *out)
{
    *out = (struct yoke_shape){
        .size = sizeof(*out), .dtype = (uint32_t)dtype_to_onnx(s->dtype), .rank = (uint32_t)YK_MAX(s->rank, 0)};
    for (int i = 0; i < s->rank; i++)
        out->dims[i] = s->dims[i];
}

static bool known(const struct shape *s)
{
    return s->dtype != DT_NONE && s->rank >= 0 && s->rank <= YOKE_MAX_RANK && shape_bytes(s) > 0;
}

/* True if v is a weight's memory under another shape: there is no place to write it to. */
static bool views_weight(const struct graph *g, int32_t v)
{
    while (v >= 0 && g->values[v].kind == VALUE_NODE && g->values[v].producer >= 0) {
        const struct node *n = &g->nodes[g->values[v].producer];
        if (!(n->op->flags & OP_VIEW) || n->n_in < 1)
            return false;
        v = n->in[0];
    }
    return v >= 0 && g->values[v].kind == VALUE_WEIGHT;
}

bool plugin_view_offers(const struct op_ctx *c)
{
    const struct node *n = c->node;
    if (!c->graph || (n->op->flags & (OP_DATA_SHAPE | OP_CONTROL | OP_RANDOM)))
        return false;
    if ((n->op->flags & OP_VIEW) && n->n_in > 0 && views_weight(c->graph, n->in[0]))
        return false;
    for (int i = 0; i < n->n_attr; i++)
        if (n->attr[i].kind == ATTR_TENSOR || n->attr[i].kind == ATTR_GRAPH)
            return false;
    for (int i = 0; i < n->n_in + n->n_out; i++) {
        int32_t v = i < n->n_in ? n->in[i] : n->out[i - n->n_in];
        if (v < 0)
            continue;
        const struct shape *s = i < n->n_in ? c->in[i] : &c->out[i - n->n_in];
        if (c->graph->values[v].type != VALUE_TENSOR || c->graph->values[v].kind == VALUE_CAPTURE || !s || !known(s))
            return false;
    }
    return true;
}

/* Index of value v in the view; it is added if it is new. */
static int32_t index_of(struct maker *m, int32_t v)
{
    for (int32_t i = 0; i < m->n_values; i++)
        if (m->v->ids[i] == v)
            return i;
    struct yoke_value *y = take(m, 1, sizeof(*y));
    struct yoke_shape *s = take(m, 1, sizeof(*s));
    if (!y || !s)
        return -1;
    *y = (struct yoke_value){.size = sizeof(*y), .name = text(m, m->g->values[v].name), .shape = s};
    y->kind = m->g->values[v].kind == VALUE_WEIGHT ? YOKE_VALUE_WEIGHT : YOKE_VALUE_INNER;
    m->v->ids[m->n_values] = v;
    m->values[m->n_values] = y;
    return m->n_values++;
}

static void set_shape(struct maker *m, int32_t index, const struct shape *s)
{
    if (index >= 0 && s)
        plugin_view_shape(s, (struct yoke_shape *)(uintptr_t)m->values[index]->shape);
}

static const struct yoke_attr *attribute(struct maker *m, const struct attr *a)
{
    static const uint32_t kinds[] = {[ATTR_INT] = YOKE_ATTR_INT,
        [ATTR_FLOAT] = YOKE_ATTR_FLOAT,
        [ATTR_STRING] = YOKE_ATTR_STRING,
        [ATTR_INTS] = YOKE_ATTR_INTS,
        [ATTR_FLOATS] = YOKE_ATTR_FLOATS,
        [ATTR_STRINGS] = YOKE_ATTR_STRINGS};
    struct yoke_attr *y = take(m, 1, sizeof(*y));
    if (!y)
        return NULL;
    *y = (struct yoke_attr){.size = sizeof(*y), .kind = kinds[a->kind], .name = text(m, a->name)};
    y->i = a->kind == ATTR_INT ? a->i : 0;
    y->f = a->kind == ATTR_FLOAT ? (double)a->f : 0;
    y->s = a->kind == ATTR_STRING ? text(m, a->s) : NULL;
    if (a->kind == ATTR_INTS) {
        int64_t *copy = take(m, a->n, sizeof(*copy));
        if (copy && a->n)
            memcpy(copy, a->ints, a->n * sizeof(*copy));
        y->ints = copy;
        y->n = (int64_t)a->n;
    } else if (a->kind == ATTR_FLOATS) {
        float *copy = take(m, a->n, sizeof(*copy));
        if (copy && a->n)
            memcpy(copy, a->floats, a->n * sizeof(*copy));
        y->floats = copy;
        y->n = (int64_t)a->n;
    } else if (a->kind == ATTR_STRINGS) {
        const char **copy = take(m, a->n, sizeof(*copy));
        for (size_t i = 0; copy && i < a->n; i++)
            copy[i] = text(m, a->strings[i]);
        y->strings = copy;
        y->n = (int64_t)a->n;
    }
    return y;
}

static struct yoke_node *add_node(struct maker *m, const struct node *n)
{
    struct yoke_node *y = take(m, 1, sizeof(*y));
    int32_t *in = take(m, (size_t)n->n_in, sizeof(*in)), *out = take(m, (size_t)n->n_out, sizeof(*out));
    const struct yoke_attr **attr = take(m, (size_t)n->n_attr, sizeof(*attr));
    if (!y || !in || !out || !attr)
        return NULL;
    for (int32_t i = 0; i < n->n_in; i++)
        in[i] = n->in[i] < 0 ? -1 : index_of(m, n->in[i]);
    for (int32_t i = 0; i < n->n_out; i++)
        out[i] = n->out[i] < 0 ? -1 : index_of(m, n->out[i]);
    for (int32_t i = 0; i < n->n_attr; i++)
        attr[i] = attribute(m, &n->attr[i]);
    *y = (struct yoke_node){.size = sizeof(*y),
        .n_in = n->n_in,
        .n_out = n->n_out,
        .n_attr = n->n_attr,
        .domain = text(m, n->op->domain),
        .op = text(m, n->op->name),
        .name = text(m, n->name),
        .in = in,
        .out = out,
        .attr = attr};
    return y;
}

static bool begin(struct maker *m, struct plugin_view *v, const struct graph *g, const struct node *const *nodes, int n)
{
    size_t most = 1;
    *v = (struct plugin_view){.arena = yk_arena_open(0)};
    *m = (struct maker){.g = g, .v = v};
    for (int i = 0; i < n; i++)
        most += (size_t)(nodes[i]->n_in + nodes[i]->n_out);
    v->ids = take(m, most, sizeof(*v->ids));
    m->values = take(m, most, sizeof(*m->values));
    m->nodes = take(m, (size_t)n, sizeof(*m->nodes));
    for (int i = 0; !m->failed && i < n; i++)
        m->nodes[i] = add_node(m, nodes[i]);
    return !m->failed;
}

static void finish(struct maker *m, int32_t n_nodes, const int32_t *in, int32_t n_in, const int32_t *out, int32_t n_out)
{
    int32_t *ins = take(m, (size_t)n_in, sizeof(*ins)), *outs = take(m, (size_t)n_out, sizeof(*outs));
    if (m->failed)
        return;
    for (int32_t i = 0; i < n_in; i++) {
        ins[i] = index_of(m, in[i]);
        if (ins[i] >= 0)
            m->values[ins[i]]->kind = YOKE_VALUE_INPUT;
    }
    for (int32_t i = 0; i < n_out; i++) {
        outs[i] = index_of(m, out[i]);
        if (outs[i] >= 0)
            m->values[outs[i]]->kind = YOKE_VALUE_OUTPUT;
    }
    m->v->segment = (struct yoke_segment){.size = sizeof(struct yoke_segment),
        .n_nodes = n_nodes,
        .n_values = m->n_values,
        .n_in = n_in,
        .n_out = n_out,
        .nodes = (const struct yoke_node *const *)m->nodes,
        .values = (const struct yoke_value *const *)m->values,
        .in = ins,
        .out = outs};
}

static yk_err ended(struct maker *m, struct yk_diag *why)
{
    if (!m->failed)
        return YK_OK;
    plugin_view_fini(m->v);
    return yk_fail(why, YK_NOMEM, "no memory to describe a segment");
}

yk_err plugin_view_node(const struct op_ctx *c, struct plugin_view *out, struct yk_diag *why)
{
    struct maker m;
    int32_t ins[OP_MAX_IN], outs[OP_MAX_OUT], n_in = 0, n_out = 0;
    if (begin(&m, out, c->graph, &c->node, 1)) {
        for (int i = 0; i < c->node->n_in; i++) {
            int32_t v = c->node->in[i], k = m.nodes[0]->in[i];
            if (v < 0 || k < 0)
                continue;
            set_shape(&m, k, c->in[i]);
            if (m.values[k]->kind == YOKE_VALUE_WEIGHT) {
                const struct value *w = &c->graph->values[v];
                size_t size = dtype_bytes(w->dtype == DT_NONE ? w->shape.dtype : w->dtype);
                m.values[k]->data = w->data && size && (uintptr_t)w->data % size == 0 ? w->data : NULL;
            } else if (m.values[k]->kind == YOKE_VALUE_INNER) {
                m.values[k]->kind = YOKE_VALUE_INPUT;
                ins[n_in++] = v;
            }
        }
        for (int i = 0; i < c->node->n_out; i++)
            if (c->node->out[i] >= 0) {
                set_shape(&m, m.nodes[0]->out[i], &c->out[i]);
                outs[n_out++] = c->node->out[i];
            }
        finish(&m, 1, ins, n_in, outs, n_out);
    }
    return ended(&m, why);
}

yk_err plugin_view_segment(
    const struct backend_segment *seg, const struct shapes *shapes, struct plugin_view *out, struct yk_diag *why)
{
    struct maker m;
    const struct node **nodes = yk_try_alloc((size_t)seg->n_nodes + 1, sizeof(*nodes));
    if (!nodes)
        return yk_fail(why, YK_NOMEM, "no memory to describe a segment");
    for (int32_t i = 0; i < seg->n_nodes; i++)
        nodes[i] = &seg->graph->nodes[seg->nodes[i]];
    if (begin(&m, out, seg->graph, nodes, seg->n_nodes)) {
        out->data = yk_arena_open(0);
        finish(&m, seg->n_nodes, seg->in, seg->n_in, seg->out, seg->n_out);
        for (int32_t i = 0; !m.failed && i < m.n_values; i++) {
            int32_t v = out->ids[i];
            set_shape(&m, i, &shapes->of[v]);
            if (m.values[i]->kind != YOKE_VALUE_WEIGHT || !seg->weights[v])
                continue;
            int64_t bytes = shape_bytes(&shapes->of[v]);
            void *copy = yk_arena_alloc(out->data, (size_t)YK_MAX(bytes, 1), 1);
            m.failed |= !copy;
            if (copy && bytes > 0)
                memcpy(copy, seg->weights[v], (size_t)bytes);
            m.values[i]->data = copy;
        }
        out->segment.weights_variable = seg->weights_variable;
    }
    free(nodes);
    return ended(&m, why);
}

void plugin_view_drop_data(struct plugin_view *v)
{
    for (int32_t i = 0; v->data && i < v->segment.n_values; i++)
        ((struct yoke_value *)(uintptr_t)v->segment.values[i])->data = NULL;
    yk_arena_close(v->data);
    v->data = NULL;
}

void plugin_view_fini(struct plugin_view *v)
{
    yk_arena_close(v->data);
    yk_arena_close(v->arena);
    *v = (struct plugin_view){.arena = NULL};
}
