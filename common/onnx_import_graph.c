/* ONNX import: one GraphProto, its values and nodes. See onnx_import.h for the passes. */
#include "common/onnx_import.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { GRAPH_NODE = 1, GRAPH_NAME = 2, GRAPH_WEIGHT = 5, GRAPH_INPUT = 11, GRAPH_OUTPUT = 12, GRAPH_SPARSE = 15 };
enum { TENSOR_NAME = 8 };

static yk_err malformed(struct onnx_import *im, const struct onnx_scope *scope, const char *what)
{
    return yk_fail(im->why, YK_FORMAT, "%s%s is malformed", scope->path, what);
}

/* ---- names ---- */

/* FNV-1a, stirred with an address so that a file cannot be made to collide. */
static size_t name_hash(const void *stir, const char *s, size_t n)
{
    uint64_t h = 0xcbf29ce484222325u ^ (uint64_t)(uintptr_t)stir;
    for (size_t i = 0; i < n; i++)
        h = (h ^ (uint8_t)s[i]) * 0x100000001b3u;
    h ^= h >> 29;
    return (size_t)(h * 0x9e3779b97f4a7c15u >> 20);
}

static const struct onnx_name *table_find(const struct onnx_names *t, const char *name, size_t len)
{
    if (!t->n_slots)
        return NULL;
    for (size_t i = name_hash(t->slots, name, len);; i++) {
        const struct onnx_name *slot = &t->slots[i & (t->n_slots - 1)];
        if (!slot->name)
            return NULL;
        if (strncmp(slot->name, name, len) == 0 && slot->name[len] == '\0')
            return slot;
    }
}

static void put(struct onnx_names *t, struct onnx_name x)
{
    size_t i = name_hash(t->slots, x.name, strlen(x.name));
    while (t->slots[i & (t->n_slots - 1)].name)
        i++;
    t->slots[i & (t->n_slots - 1)] = x;
}

static bool table_add(struct onnx_names *t, const char *name, int32_t id)
{
    if (t->n_used * 2 >= t->n_slots) {
        struct onnx_names wide = {.n_slots = t->n_slots ? t->n_slots * 2 : 64, .n_used = t->n_used};
        wide.slots = yk_try_alloc(wide.n_slots, sizeof *wide.slots);
        if (!wide.slots)
            return false;
        for (size_t i = 0; i < t->n_slots; i++)
            if (t->slots[i].name)
                put(&wide, t->slots[i]);
        free(t->slots);
        *t = wide;
    }
    put(t, (struct onnx_name){name, id});
    t->n_used++;
    return true;
}

void onnx_import_names_free(struct onnx_names *t)
{
    free(t->slots);
    *t = (struct onnx_names){0};
}

int32_t onnx_import_find(const struct onnx_scope *scope, const char *name, size_t len)
{
    const struct onnx_name *x = table_find(&scope->names, name, len);
    return x ? x->id : YK_ABSENT;
}

yk_err onnx_import_bind(struct onnx_import *im, struct onnx_scope *scope, const char *name, int32_t id)
{
    if (!*name)
        return yk_fail(im->why, YK_FORMAT, "%sa weight or graph input has no name", scope->path);
    if (table_find(&scope->names, name, strlen(name)))
        return yk_fail(im->why, YK_FORMAT, "%svalue '%s' is defined twice", scope->path, name);
    return table_add(&scope->names, name, id) ? YK_OK : onnx_import_nomem(im);
}

/* A name that no value of the whole model has yet; NULL when memory is gone. Values of subgraphs and functions give
 * way: what they define may have the name of a value around them, or of another subgraph. */
static const char *unique_name(struct onnx_import *im, const char *name)
{
    const char *free_one = name;
    size_t size = strlen(name) + 16;
    while (table_find(&im->used, free_one, strlen(free_one))) {
        char *next = yk_arena_alloc(im->root->arena, size, 1);
        if (!next)
            return NULL;
        snprintf(next, size, "%s_%u", name, ++im->n_renamed); /* one count for all, so that many cost no square */
        free_one = next;
    }
    return table_add(&im->used, free_one, 0) ? free_one : NULL;
}

yk_err onnx_import_value(struct onnx_import *im, struct onnx_scope *scope, const char *name, enum value_kind kind,
    enum dtype dtype, int32_t *id)
{
    yk_err err = onnx_import_bind(im, scope, name, YK_ABSENT);
    if (err)
        return err;
    const char *unique = unique_name(im, name);
    *id = unique ? graph_add_value(scope->g, unique, kind, dtype) : YK_ABSENT;
    if (*id == YK_ABSENT)
        return onnx_import_nomem(im);
    ((struct onnx_name *)(uintptr_t)table_find(&scope->names, name, strlen(name)))->id = *id;
    return YK_OK;
}

/* A name that means nothing in this scope or around it, nor to any other value. */
static char *free_name(struct onnx_import *im, struct onnx_scope *scope, const struct onnx_node *n, const char *role)
{
    const char *base = n->n_out > 0 && n->out[0] != YK_ABSENT ? scope->g->values[n->out[0]].name : n->op_type;
    size_t size = strlen(base) + strlen(role) + 32;
    char *name = yk_arena_alloc(im->root->arena, size, 1);
    for (int k = 0; name; k++) {
        if (k == 0)
            snprintf(name, size, "%s/%s", base, role);
        else /* with the node's index, so that taken names do not cost their square */
            snprintf(name, size, "%s/%s_%d_%d", base, role, (int)n->index, k);
        const struct onnx_scope *s = scope;
        while (s && !table_find(&s->names, name, strlen(name)))
            s = s->parent;
        if (!s && !table_find(&im->used, name, strlen(name)))
            break;
    }
    return name;
}

yk_err onnx_import_const(struct onnx_import *im, struct onnx_scope *scope, const struct onnx_node *n, const char *role,
    const struct shape *shape, const void *data, int32_t *id)
{
    size_t bytes = (size_t)shape_bytes(shape);
    char *name = free_name(im, scope, n, role);
    void *copy = yk_arena_alloc(im->root->arena, bytes + 1, 1);
    if (!name || !copy)
        return onnx_import_nomem(im);
    if (bytes)
        memcpy(copy, data, bytes);
    yk_err err = onnx_import_value(im, scope, name, VALUE_WEIGHT, shape->dtype, id);
    if (err)
        return err;
    struct value *v = &scope->g->values[*id];
    v->shape = *shape;
    v->data = copy;
    v->bytes = (int64_t)bytes;
    v->aligned = v->constant = true;
    return YK_OK;
}

yk_err onnx_import_temp(
    struct onnx_import *im, struct onnx_scope *scope, const struct onnx_node *n, const char *role, int32_t *id)
{
    char *name = free_name(im, scope, n, role);
    return name ? onnx_import_value(im, scope, name, VALUE_NODE, DT_NONE, id) : onnx_import_nomem(im);
}

/* The value that a name means here; a value of a graph around becomes a capture of every graph between. */
yk_err onnx_import_resolve(struct onnx_import *im, struct onnx_scope *scope, const char *name, size_t len, int32_t *id)
{
    *id = onnx_import_find(scope, name, len);
    if (*id != YK_ABSENT || !scope->parent)
        return YK_OK;
    int32_t outer;
    yk_err err = onnx_import_resolve(im, scope->parent, name, len, &outer);
    if (err || outer == YK_ABSENT || outer == ONNX_NOT_GIVEN) {
        *id = outer;
        return err;
    }
    const struct value *v = &scope->parent->g->values[outer];
    const struct pb_text text = {name, len};
    char *key = onnx_import_text(im, &text);
    *id = key ? graph_add_value(scope->g, v->name, VALUE_CAPTURE, v->dtype) : YK_ABSENT;
    if (*id == YK_ABSENT)
        return onnx_import_nomem(im);
    scope->g->values[*id].capture = outer;
    return onnx_import_bind(im, scope, key, *id);
}

/* ---- types of inputs and outputs ---- */

static yk_err read_dim(
    struct onnx_import *im, struct onnx_scope *scope, struct pb r, struct dim *d, const char *name, int k)
{
    struct pb_text param = {"", 0};
    struct pb_field f;
    bool bad = false, input = name != NULL;
    *d = (struct dim){.value = -1, .sym = -1};
    while (pb_next(&r, &f, &bad)) {
        if (f.number == 1) { /* dim_value and dim_param are one choice: the last one counts */
            if (f.wire != PB_VARINT)
                return malformed(im, scope, "a dimension");
            if ((int64_t)f.v < 0)
                return yk_fail(im->why, YK_FORMAT, "%sa dimension of an input or output is negative", scope->path);
            d->value = (int64_t)f.v;
            param.n = 0;
        } else if (f.number == 2) {
            if (!pb_text(&f, &param))
                return malformed(im, scope, "the name of a dimension");
            d->value = -1;
        }
    }
    if (bad)
        return malformed(im, scope, "a dimension");
    if (d->value >= 0 || scope->parent || (!param.n && !input))
        return YK_OK;
    char *sym = NULL;
    if (param.n) {
        sym = onnx_import_text(im, &param);
    } else {
        size_t size = strlen(name) + 24;
        sym = yk_arena_alloc(im->root->arena, size, 1);
        for (int again = 0; sym; again++) { /* a name that nobody gave */
            snprintf(sym, size, again ? "%s_dim%d_%d" : "%s_dim%d", name, k, again);
            if (graph_find_sym(scope->g, sym) < 0)
                break;
        }
    }
    if (sym && scope->g->n_syms >= ONNX_MAX_SYMS && graph_find_sym(scope->g, sym) < 0)
        return yk_fail(im->why, YK_LIMIT, "the model has more than %d named dimensions", ONNX_MAX_SYMS);
    d->sym = sym ? graph_sym(scope->g, sym) : YK_ABSENT;
    return d->sym < 0 ? onnx_import_nomem(im) : YK_OK;
}

static yk_err read_shape(
    struct onnx_import *im, struct onnx_scope *scope, struct pb shape, int32_t id, const char *name)
{
    struct pb r = shape;
    struct pb_field f;
    bool bad = false;
    int32_t rank = 0, k = 0;
    while (pb_next(&r, &f, &bad))
        if (f.number == 1 && (f.wire != PB_BYTES || ++rank > YK_MAX_RANK))
            return f.wire != PB_BYTES ? malformed(im, scope, "a shape")
                                      : yk_fail(im->why, YK_LIMIT, "%svalue '%s' has more than %d dimensions",
                                            scope->path, scope->g->values[id].name, YK_MAX_RANK);
    if (bad)
        return malformed(im, scope, "a shape");
    struct dim *dims = yk_arena_alloc(im->root->arena, (size_t)rank + 1, sizeof *dims);
    if (!dims)
        return onnx_import_nomem(im);
    yk_err err = YK_OK;
    for (r = shape; !err && pb_next(&r, &f, &bad);)
        if (f.number == 1) {
            err = read_dim(im, scope, pb_of(&f), &dims[k], name, k);
            k++;
        }
    scope->g->values[id].rank = rank;
    scope->g->values[id].dims = dims;
    return err;
}

/* TypeProto. input: the name under which unnamed dimensions go, NULL to leave them unknown. */
static yk_err read_type(struct onnx_import *im, struct onnx_scope *scope, struct pb type, int32_t id, const char *input)
{
    for (int depth = 0; depth < 4; depth++) { /* optional(sequence(tensor)) is the deepest that ONNX has */
        struct pb r = type, inner = pb_over(NULL, 0);
        struct pb_field f;
        uint32_t kind = 0;
        bool bad = false;
        while (pb_next(&r, &f, &bad))
            if (f.number == 1 || f.number == 4 || f.number == 5 || f.number == 8 || f.number == 9) {
                kind = f.number;
                inner = pb_of(&f);
            }
        if (bad)
            return malformed(im, scope, "a type");
        struct value *v = &scope->g->values[id];
        if (kind == 0)
            return YK_OK;
        if (kind == 5 || kind == 8) {
            onnx_import_problem(im, "%svalue '%s' is a %s", scope->path, v->name, kind == 5 ? "map" : "sparse tensor");
            return YK_OK;
        }
        if (kind == 1) {
            int64_t elem = 0;
            bool has_shape = false;
            struct pb shape = inner;
            while (pb_next(&inner, &f, &bad)) {
                if (f.number == 1 && f.wire == PB_VARINT)
                    elem = (int64_t)f.v;
                if (f.number == 2) {
                    shape = pb_of(&f);
                    has_shape = true;
                }
            }
            if (bad)
                return malformed(im, scope, "a tensor type");
            enum dtype t = dtype_from_onnx(elem);
            if (t == DT_NONE && elem != 0)
                onnx_import_problem(im, "%svalue '%s' has element type %" PRId64 "%s", scope->path, v->name, elem,
                    elem == 8 ? " (string)" : "");
            v->dtype = t; /* of an output: what the file says, for export; shape rules find out for themselves */
            return has_shape && v->type == VALUE_TENSOR ? read_shape(im, scope, shape, id, input) : YK_OK;
        }
        if (v->type == VALUE_TENSOR)
            v->type = kind == 4 ? VALUE_SEQUENCE : VALUE_OPTIONAL;
        for (type = pb_over(NULL, 0); pb_next(&inner, &f, &bad);)
            if (f.number == 1)
                type = pb_of(&f);
        if (bad)
            return malformed(im, scope, "a type");
    }
    return yk_fail(
        im->why, YK_LIMIT, "%svalue '%s' has a type that nests too deep", scope->path, scope->g->values[id].name);
}

/* ValueInfoProto: its name (in the arena) and type. */
static yk_err read_info(struct onnx_import *im, struct onnx_scope *scope, struct pb r, char **name, struct pb *type)
{
    struct pb_text text = {"", 0};
    struct pb_field f;
    bool bad = false;
    *type = pb_over(NULL, 0);
    while (pb_next(&r, &f, &bad)) {
        if (f.number == 1 && !pb_text(&f, &text))
            return malformed(im, scope, "the name of an input or output");
        if (f.number == 2)
            *type = pb_of(&f);
    }
    if (bad)
        return malformed(im, scope, "an input or output");
    *name = onnx_import_text(im, &text);
    return *name ? YK_OK : onnx_import_nomem(im);
}

/* ---- weights, inputs, outputs ---- */

static yk_err read_weight(struct onnx_import *im, struct onnx_scope *scope, struct pb tensor)
{
    struct pb r = tensor;
    struct pb_text text = {"", 0};
    struct pb_field f;
    bool bad = false, supported;
    char what[256];
    int32_t id;
    while (pb_next(&r, &f, &bad))
        if (f.number == TENSOR_NAME && !pb_text(&f, &text))
            return malformed(im, scope, "the name of a weight");
    if (bad)
        return malformed(im, scope, "a weight");
    char *name = onnx_import_text(im, &text);
    if (!name)
        return onnx_import_nomem(im);
    yk_err err = onnx_import_value(im, scope, name, VALUE_WEIGHT, DT_NONE, &id);
    if (err)
        return err;
    snprintf(what, sizeof what, "%sweight '%.150s'", scope->path, name);
    return onnx_import_tensor(im, tensor, what, &scope->g->values[id], &supported);
}

static yk_err read_input(struct onnx_import *im, struct onnx_scope *scope, struct pb info)
{
    struct pb type;
    char *name;
    yk_err err = read_info(im, scope, info, &name, &type);
    if (err)
        return err;
    int32_t id = onnx_import_find(scope, name, strlen(name));
    if (id != YK_ABSENT && scope->g->values[id].kind == VALUE_WEIGHT)
        return YK_OK; /* before IR version 4, weights were listed as inputs too */
    err = onnx_import_value(im, scope, name, VALUE_INPUT, DT_NONE, &id);
    if (!err)
        err = read_type(im, scope, type, id, name);
    if (err)
        return err;
    const struct value *v = &scope->g->values[id];
    if (!scope->parent && v->dtype == DT_NONE && v->type == VALUE_TENSOR && im->n_problems == 0)
        return yk_fail(im->why, YK_FORMAT, "graph input '%s' has no element type", name);
    scope->g->inputs[scope->g->n_inputs++] = id;
    return YK_OK;
}

static yk_err read_output(struct onnx_import *im, struct onnx_scope *scope, struct pb info)
{
    struct graph *g = scope->g;
    struct pb type;
    char *name;
    int32_t id;
    yk_err err = read_info(im, scope, info, &name, &type);
    if (!err)
        err = onnx_import_resolve(im, scope, name, strlen(name), &id);
    if (err)
        return err;
    if (id < 0)
        return yk_fail(im->why, YK_FORMAT, "%sgraph output '%s' is made by no node", scope->path, name);
    g->outputs[g->n_outputs++] = id;
    return g->values[id].kind == VALUE_NODE ? read_type(im, scope, type, id, NULL) : YK_OK;
}

/* Twice the same output would give two results one name. */
static yk_err check_outputs(struct onnx_import *im, const struct onnx_scope *scope)
{
    const struct graph *g = scope->g;
    uint8_t *seen = yk_try_alloc((size_t)g->n_values + 1, 1);
    yk_err err = seen ? YK_OK : onnx_import_nomem(im);
    for (int32_t i = 0; i < g->n_outputs && !err; i++) {
        if (seen[g->outputs[i]] && !scope->parent)
            err = yk_fail(im->why, YK_FORMAT, "graph output '%s' is listed twice", g->values[g->outputs[i]].name);
        else
            seen[g->outputs[i]] = 1;
    }
    free(seen);
    return err;
}

/* ---- the graph ---- */

yk_err onnx_import_graph(struct onnx_import *im, struct onnx_scope *scope, struct pb graph)
{
    static const uint32_t passes[] = {GRAPH_WEIGHT, GRAPH_INPUT, GRAPH_NODE, GRAPH_NODE, GRAPH_OUTPUT};
    struct graph *g = scope->g;
    struct pb r = scope->file = graph;
    struct pb_text name = {"", 0};
    struct pb_field f;
    bool bad = false;
    size_t n_inputs = 0, n_outputs = 0, n_nodes = 0;
    while (pb_next(&r, &f, &bad)) {
        if (f.number == GRAPH_NAME && !pb_text(&f, &name))
            return malformed(im, scope, "the name of a graph");
        bool message =
            f.number == GRAPH_WEIGHT || f.number == GRAPH_INPUT || f.number == GRAPH_NODE || f.number == GRAPH_OUTPUT;
        if (message && f.wire != PB_BYTES)
            return malformed(im, scope, "a graph");
        n_inputs += f.number == GRAPH_INPUT;
        n_outputs += f.number == GRAPH_OUTPUT;
        n_nodes += f.number == GRAPH_NODE;
        if (f.number == GRAPH_SPARSE)
            onnx_import_problem(im, "%sthe graph has a sparse weight", scope->path);
    }
    if (bad)
        return malformed(im, scope, "a graph");
    if (n_outputs == 0)
        return yk_fail(im->why, YK_FORMAT, "%sthe graph has no outputs", scope->path);
    if (n_nodes > INT32_MAX / 2)
        return yk_fail(im->why, YK_LIMIT, "%sthe graph has %zu nodes", scope->path, n_nodes);
    g->name = onnx_import_text(im, &name);
    g->inputs = yk_arena_alloc(g->arena, n_inputs + 1, sizeof *g->inputs);
    g->outputs = yk_arena_alloc(g->arena, n_outputs + 1, sizeof *g->outputs);
    if (!g->name || !g->inputs || !g->outputs)
        return onnx_import_nomem(im);
    for (int pass = 0; pass < (int)YK_COUNT(passes); pass++) {
        int32_t index = 0;
        r = graph;
        while (pb_next(&r, &f, &bad)) {
            yk_err err = YK_OK;
            if (f.number != passes[pass])
                continue;
            if (pass == 0)
                err = read_weight(im, scope, pb_of(&f));
            else if (pass == 1)
                err = read_input(im, scope, pb_of(&f));
            else if (pass == 2)
                err = onnx_import_node_outputs(im, scope, pb_of(&f), index++);
            else if (pass == 3)
                err = onnx_import_node(im, scope, pb_of(&f), index++);
            else
                err = read_output(im, scope, pb_of(&f));
            if (err)
                return err;
        }
    }
    yk_err err = check_outputs(im, scope);
    if (err || im->n_problems > 0)
        return err;
    err = graph_sort(g, im->why);
    return err && *scope->path ? yk_wrap(im->why, err, "%s", scope->path) : err;
}
