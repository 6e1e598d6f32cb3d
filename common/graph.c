/* The graph: types, life, builders, look-ups.
 * All arrays live in the outermost graph's arena. An array that grows leaves its old copy there; it doubles, so the
 * waste is bounded by what is used. */
#include "common/graph.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SMALL_PIXELS 1024

struct graph_block {
    struct graph_block *next;
    void *data;
    bool used;
};

/* ---- dtypes and shapes ---- */

static const struct {
    const char *name;
    size_t bytes;
} dtypes[DT_COUNT] = {
#define X(name, text, bytes) [DT_##name] = {text, bytes},
    YK_DTYPES(X)
#undef X
};

/* By dtype: TensorProto.DataType. */
static const int64_t onnx_types[DT_COUNT] = {[DT_F32] = 1,
    [DT_U8] = 2,
    [DT_I8] = 3,
    [DT_U16] = 4,
    [DT_I16] = 5,
    [DT_I32] = 6,
    [DT_I64] = 7,
    [DT_BOOL] = 9,
    [DT_F16] = 10,
    [DT_F64] = 11,
    [DT_U32] = 12,
    [DT_U64] = 13,
    [DT_BF16] = 16};

size_t dtype_bytes(enum dtype t)
{
    return (unsigned)t < DT_COUNT ? dtypes[t].bytes : 0;
}

const char *dtype_name(enum dtype t)
{
    return (unsigned)t < DT_COUNT ? dtypes[t].name : "none";
}

enum dtype dtype_find(const char *name)
{
    for (int t = 1; t < DT_COUNT; t++)
        if (strcmp(dtypes[t].name, name) == 0)
            return (enum dtype)t;
    return DT_NONE;
}

bool dtype_is_float(enum dtype t)
{
    return t == DT_F32 || t == DT_F64 || t == DT_F16 || t == DT_BF16;
}

bool dtype_is_int(enum dtype t)
{
    return t >= DT_I8 && t <= DT_U64;
}

enum dtype dtype_from_onnx(int64_t data_type)
{
    for (int t = 1; t < DT_COUNT; t++)
        if (onnx_types[t] == data_type)
            return (enum dtype)t;
    return DT_NONE;
}

int64_t dtype_to_onnx(enum dtype t)
{
    return (unsigned)t < DT_COUNT ? onnx_types[t] : 0;
}

int64_t dtype_read_int(enum dtype t, const void *data, int64_t i)
{
    const uint8_t *p = (const uint8_t *)data + (size_t)i * dtype_bytes(t);
    uint64_t v = 0;
    for (size_t k = dtype_bytes(t); k-- > 0;)
        v = v << 8 | p[k];
    switch (t) {
    case DT_I8:
        return (int8_t)v;
    case DT_I16:
        return (int16_t)v;
    case DT_I32:
        return (int32_t)v;
    case DT_BOOL:
        return v != 0;
    default:
        return (int64_t)v;
    }
}

int64_t shape_count(const struct shape *s)
{
    /* The product of max(d, 1) is bounded too, so that strides of an empty tensor never overflow; the bound leaves room
     * for sums of sizes, pads and strides. */
    int64_t n = 1;
    bool empty = false;
    if (s->rank < 0 || s->rank > YK_MAX_RANK)
        return -1;
    for (int i = 0; i < s->rank; i++) {
        if (s->dims[i] < 0)
            return -1;
        if (s->dims[i] == 0)
            empty = true;
        else if (!yk_mul_i64(n, s->dims[i], &n) || n > YK_MAX_COUNT)
            return -1;
    }
    return empty ? 0 : n;
}

int64_t shape_bytes(const struct shape *s)
{
    int64_t n = shape_count(s), bytes;
    return n >= 0 && yk_mul_i64(n, (int64_t)dtype_bytes(s->dtype), &bytes) ? bytes : -1;
}

bool shape_equal(const struct shape *a, const struct shape *b)
{
    if (a->dtype != b->dtype || a->rank != b->rank)
        return false;
    for (int i = 0; i < a->rank; i++)
        if (a->dims[i] != b->dims[i])
            return false;
    return true;
}

void shape_text(const struct shape *s, char *out, size_t size)
{
    size_t n = (size_t)snprintf(out, size, "%s[", dtype_name(s->dtype));
    if (s->rank < 0 && n < size)
        n += (size_t)snprintf(out + n, size - n, "...");
    for (int i = 0; i < s->rank && n < size; i++)
        n += s->dims[i] < 0 ? (size_t)snprintf(out + n, size - n, "%s?", i ? "," : "")
                            : (size_t)snprintf(out + n, size - n, "%s%lld", i ? "," : "", (long long)s->dims[i]);
    if (n < size)
        snprintf(out + n, size - n, "]");
}

/* ---- life ---- */

struct graph *graph_open(size_t arena_limit_bytes)
{
    struct yk_arena *arena = yk_arena_open(arena_limit_bytes);
    struct graph *g = arena ? yk_arena_alloc(arena, 1, sizeof *g) : NULL;
    if (!g) {
        yk_arena_close(arena);
        return NULL;
    }
    g->arena = arena;
    g->name = "";
    return g;
}

struct graph *graph_open_child(struct graph *parent)
{
    struct graph *g = yk_arena_alloc(parent->arena, 1, sizeof *g);
    if (!g)
        return NULL;
    g->arena = parent->arena;
    g->parent = parent;
    g->name = "";
    return g;
}

void graph_close(struct graph *g)
{
    if (!g || g->parent) /* a subgraph ends with its outermost graph */
        return;
    struct yk_arena *arena = g->arena;
    while (g->blocks) {
        struct graph_block *b = g->blocks;
        g->blocks = b->next;
        free(b->data);
        free(b);
    }
    if (g->backing_close)
        g->backing_close(g->backing);
    yk_arena_close(arena);
}

static struct graph *outermost(struct graph *g)
{
    while (g->parent)
        g = g->parent;
    return g;
}

void graph_idle(const struct graph *g, const void *data, int64_t bytes)
{
    while (g->parent)
        g = g->parent;
    if (g->backing_idle)
        g->backing_idle(g->backing, data, bytes);
}

void *graph_alloc_data(struct graph *g, int64_t bytes)
{
    struct graph_block *b = bytes >= 0 ? yk_try_alloc(1, sizeof *b) : NULL;
    if (!b)
        return NULL;
    b->data = yk_try_aligned(bytes > 0 ? (size_t)bytes : 1);
    if (!b->data) {
        free(b);
        return NULL;
    }
    memset(b->data, 0, (size_t)bytes);
    g = outermost(g);
    b->next = g->blocks;
    g->blocks = b;
    return b->data;
}

struct block_list { /* sorted by address */
    struct graph_block **at;
    size_t n;
};

static int by_address(const void *a, const void *b)
{
    uintptr_t x = (uintptr_t)(*(struct graph_block *const *)a)->data;
    uintptr_t y = (uintptr_t)(*(struct graph_block *const *)b)->data;
    return x < y ? -1 : x > y;
}

static void mark_block(const struct block_list *l, const void *data)
{
    size_t lo = 0, hi = l->n;
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        if ((uintptr_t)l->at[mid]->data < (uintptr_t)data)
            lo = mid + 1;
        else
            hi = mid;
    }
    if (lo < l->n && l->at[lo]->data == data)
        l->at[lo]->used = true;
}

static void mark_blocks(const struct block_list *l, const struct graph *g)
{
    for (int32_t i = 0; i < g->n_values; i++)
        mark_block(l, g->values[i].data);
    for (int32_t i = 0; i < g->n_nodes; i++)
        for (int32_t k = 0; k < g->nodes[i].n_attr; k++) {
            const struct attr *a = &g->nodes[i].attr[k];
            if (a->kind == ATTR_TENSOR && a->tensor)
                mark_block(l, a->tensor->data);
            if (a->kind == ATTR_GRAPH && a->graph)
                mark_blocks(l, a->graph);
        }
}

void graph_sweep_data(struct graph *top)
{
    struct block_list l = {0};
    for (struct graph_block *b = top->blocks; b; b = b->next)
        l.n++;
    l.at = l.n ? yk_try_alloc(l.n, sizeof(struct graph_block *)) : NULL;
    if (!l.at) /* without memory to look, everything stays until the graph ends */
        return;
    l.n = 0;
    for (struct graph_block *b = top->blocks; b; b = b->next) {
        b->used = false;
        l.at[l.n++] = b;
    }
    qsort(l.at, l.n, sizeof(struct graph_block *), by_address);
    mark_blocks(&l, top);
    free(l.at);
    for (struct graph_block **at = &top->blocks; *at;) {
        struct graph_block *b = *at;
        if (b->used) {
            at = &b->next;
            continue;
        }
        *at = b->next;
        free(b->data);
        free(b);
    }
}

/* ---- builders ---- */

/* Room for one more element of an array in the arena. */
static void *grow(struct graph *g, void *at, int32_t n, int32_t *cap, size_t size)
{
    if (n < *cap)
        return at;
    if (*cap > INT32_MAX / 2)
        return NULL;
    int32_t wider = *cap ? *cap * 2 : 16;
    void *p = yk_arena_alloc(g->arena, (size_t)wider, size);
    if (!p)
        return NULL;
    if (n)
        memcpy(p, at, (size_t)n * size);
    *cap = wider;
    return p;
}

int32_t graph_add_value(struct graph *g, const char *name, enum value_kind kind, enum dtype dtype)
{
    const char *copy = yk_arena_strdup(g->arena, name);
    struct value *values = grow(g, g->values, g->n_values, &g->cap_values, sizeof *values);
    if (!copy || !values)
        return YK_ABSENT;
    g->values = values;
    struct value *v = &values[g->n_values];
    memset(v, 0, sizeof *v);
    v->name = copy;
    v->kind = kind;
    v->type = VALUE_TENSOR;
    v->dtype = dtype;
    v->rank = -1;
    v->producer = -1;
    v->capture = YK_ABSENT;
    v->shape.rank = -1;
    v->shape.dtype = dtype;
    return graph_index_add(g, g->n_values) ? g->n_values++ : YK_ABSENT;
}

int32_t graph_add_weight(struct graph *g, const char *name, const struct shape *shape, const void *data)
{
    int32_t id = graph_add_value(g, name, VALUE_WEIGHT, shape->dtype);
    if (id == YK_ABSENT)
        return id;
    struct value *v = &g->values[id];
    size_t align = dtype_bytes(shape->dtype);
    v->shape = *shape;
    v->data = data;
    v->bytes = shape_bytes(shape);
    v->aligned = align == 0 || (uintptr_t)data % align == 0;
    return id;
}

int32_t graph_add_node(struct graph *g, const char *name, const struct op *op, const int32_t *in, int32_t n_in,
    const int32_t *out, int32_t n_out)
{
    const char *copy = yk_arena_strdup(g->arena, name);
    struct node *nodes = grow(g, g->nodes, g->n_nodes, &g->cap_nodes, sizeof *nodes);
    int32_t *ids = yk_arena_alloc(g->arena, (size_t)n_in + (size_t)n_out + 1, sizeof *ids);
    if (!copy || !nodes || !ids)
        return YK_ABSENT;
    g->nodes = nodes;
    struct node *n = &nodes[g->n_nodes];
    *n = (struct node){.name = copy, .op = op, .n_in = n_in, .n_out = n_out, .in = ids, .out = ids + n_in};
    if (n_in)
        memcpy(n->in, in, (size_t)n_in * sizeof *ids);
    if (n_out)
        memcpy(n->out, out, (size_t)n_out * sizeof *ids);
    for (int32_t i = 0; i < n_out; i++)
        if (out[i] >= 0 && out[i] < g->n_values)
            g->values[out[i]].producer = g->n_nodes;
    return g->n_nodes++;
}

/* The attribute of that name, made if it is not there; its old contents are cleared. */
static struct attr *attr_slot(struct graph *g, struct node *n, const char *name, enum attr_kind kind)
{
    struct attr *a = NULL;
    for (int32_t i = 0; i < n->n_attr && !a; i++)
        if (strcmp(n->attr[i].name, name) == 0)
            a = &n->attr[i];
    if (!a) {
        struct attr *list = yk_arena_alloc(g->arena, (size_t)n->n_attr + 1, sizeof *list);
        const char *copy = yk_arena_strdup(g->arena, name);
        if (!list || !copy)
            return NULL;
        if (n->n_attr)
            memcpy(list, n->attr, (size_t)n->n_attr * sizeof *list);
        n->attr = list;
        a = &list[n->n_attr++];
        a->name = copy;
    }
    *a = (struct attr){.name = a->name, .kind = kind};
    return a;
}

yk_err graph_set_attr_i(struct graph *g, struct node *n, const char *name, int64_t v)
{
    struct attr *a = attr_slot(g, n, name, ATTR_INT);
    if (!a)
        return YK_NOMEM;
    a->i = v;
    return YK_OK;
}

yk_err graph_set_attr_f(struct graph *g, struct node *n, const char *name, float v)
{
    struct attr *a = attr_slot(g, n, name, ATTR_FLOAT);
    if (!a)
        return YK_NOMEM;
    a->f = v;
    return YK_OK;
}

yk_err graph_set_attr_s(struct graph *g, struct node *n, const char *name, const char *v)
{
    const char *copy = yk_arena_strdup(g->arena, v);
    struct attr *a = copy ? attr_slot(g, n, name, ATTR_STRING) : NULL;
    if (!a)
        return YK_NOMEM;
    a->s = copy;
    return YK_OK;
}

yk_err graph_set_attr_ints(struct graph *g, struct node *n, const char *name, const int64_t *v, size_t count)
{
    int64_t *copy = yk_arena_alloc(g->arena, count + 1, sizeof *copy);
    if (!copy)
        return YK_NOMEM;
    if (count)
        memcpy(copy, v, count * sizeof *copy);
    struct attr *a = attr_slot(g, n, name, ATTR_INTS);
    if (!a)
        return YK_NOMEM;
    a->ints = copy;
    a->n = count;
    return YK_OK;
}

int32_t graph_sym(struct graph *g, const char *name)
{
    int32_t found = graph_find_sym(g, name);
    if (found >= 0)
        return found;
    const char **syms = yk_arena_alloc(g->arena, (size_t)g->n_syms + 1, sizeof *syms);
    const char *copy = yk_arena_strdup(g->arena, name);
    if (!syms || !copy)
        return YK_ABSENT;
    if (g->n_syms)
        memcpy(syms, g->syms, (size_t)g->n_syms * sizeof *syms);
    syms[g->n_syms] = copy;
    g->syms = syms;
    return g->n_syms++;
}

/* ---- look-ups ---- */

int32_t graph_find_sym(const struct graph *g, const char *name)
{
    for (int32_t i = 0; i < g->n_syms; i++)
        if (strcmp(g->syms[i], name) == 0)
            return i;
    return YK_ABSENT;
}

const struct attr *node_attr(const struct node *n, const char *name)
{
    for (int32_t i = 0; i < n->n_attr; i++)
        if (strcmp(n->attr[i].name, name) == 0)
            return &n->attr[i];
    return NULL;
}

int64_t node_attr_i(const struct node *n, const char *name, int64_t otherwise)
{
    const struct attr *a = node_attr(n, name);
    return a && a->kind == ATTR_INT ? a->i : otherwise;
}

float node_attr_f(const struct node *n, const char *name, float otherwise)
{
    const struct attr *a = node_attr(n, name);
    return a && a->kind == ATTR_FLOAT ? a->f : otherwise;
}

const char *node_attr_s(const struct node *n, const char *name, const char *otherwise)
{
    const struct attr *a = node_attr(n, name);
    return a && a->kind == ATTR_STRING ? a->s : otherwise;
}

const struct attr *node_attr_ints(const struct node *n, const char *name)
{
    const struct attr *a = node_attr(n, name);
    return a && a->kind == ATTR_INTS ? a : NULL;
}

void node_each_use(const struct node *n, void (*fn)(void *arg, int32_t value), void *arg)
{
    for (int32_t i = 0; i < n->n_in; i++)
        if (n->in[i] != YK_ABSENT)
            fn(arg, n->in[i]);
    for (int32_t i = 0; i < n->n_attr; i++) {
        const struct graph *sub = n->attr[i].kind == ATTR_GRAPH ? n->attr[i].graph : NULL;
        for (int32_t k = 0; sub && k < sub->n_values; k++)
            if (sub->values[k].kind == VALUE_CAPTURE && sub->values[k].capture != YK_ABSENT)
                fn(arg, sub->values[k].capture);
    }
}

void node_each_inner_weight(const struct node *n, void (*fn)(void *arg, const struct value *weight), void *arg)
{
    for (int32_t i = 0; i < n->n_attr; i++) {
        const struct graph *sub = n->attr[i].kind == ATTR_GRAPH ? n->attr[i].graph : NULL;
        for (int32_t k = 0; sub && k < sub->n_values; k++)
            if (sub->values[k].kind == VALUE_WEIGHT)
                fn(arg, &sub->values[k]);
        for (int32_t k = 0; sub && k < sub->n_nodes; k++)
            node_each_inner_weight(&sub->nodes[k], fn, arg);
    }
}

int32_t graph_batch_dim(const struct graph *g, int64_t *fixed)
{
    const struct value *first = g->n_inputs > 0 ? &g->values[g->inputs[0]] : NULL;
    *fixed = 1;
    if (!first || first->rank <= 0)
        return -1;
    int32_t sym = first->dims[0].sym;
    if (sym < 0) {
        if (first->dims[0].value > 0)
            *fixed = first->dims[0].value;
        return -1;
    }
    for (int32_t i = 0; i < g->n_inputs; i++) {
        const struct value *v = &g->values[g->inputs[i]];
        for (int32_t d = 1; d < v->rank; d++)
            if (v->dims[d].sym == sym)
                return -1;
    }
    return sym;
}

bool graph_small_images(const struct graph *g)
{
    bool any = false;
    for (int32_t i = 0; i < g->n_inputs; i++) {
        const struct value *v = &g->values[g->inputs[i]];
        if (v->type != VALUE_TENSOR || v->rank != 4)
            continue;
        for (int32_t d = 1; d < 4; d++)
            if (v->dims[d].sym >= 0 || v->dims[d].value < 1 || v->dims[d].value > YK_MAX_COUNT)
                return false;
        if (v->dims[2].value > SMALL_PIXELS / v->dims[3].value)
            return false;
        any = true;
    }
    return any;
}

void graph_sizes(const struct graph *g, const int64_t *given, int64_t batch, int64_t *out)
{
    int64_t fixed;
    int32_t sym = graph_batch_dim(g, &fixed);
    for (int32_t i = 0; i < g->n_syms; i++)
        out[i] = i == sym ? batch : given && given[i] > 0 ? given[i] : 1;
}
