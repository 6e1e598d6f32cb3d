/* ONNX import: nodes and their attributes. */
#include "common/onnx_import.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NODE_INPUT = 1, NODE_OUTPUT = 2, NODE_NAME = 3, NODE_OP = 4, NODE_ATTR = 5, NODE_DOMAIN = 7 };

/* ---- attributes ---- */

enum {
    ATTR_F = 2,
    ATTR_I = 3,
    ATTR_S = 4,
    ATTR_T = 5,
    ATTR_G = 6,
    ATTR_FS = 7,
    ATTR_IS = 8,
    ATTR_SS = 9,
    ATTR_TYPE = 20,
    ATTR_REF = 21
};

/* AttributeProto.type -> the field that holds the value. */
static const uint32_t attr_field[] = {0, ATTR_F, ATTR_I, ATTR_S, ATTR_T, ATTR_G, ATTR_FS, ATTR_IS, ATTR_SS};

static char *attr_string(struct onnx_import *im, const struct pb_field *f)
{
    struct pb_text t = {(const char *)f->data, f->len};
    return onnx_import_text(im, &t);
}

static yk_err read_list(struct onnx_import *im, struct pb r, uint32_t field, size_t n, struct attr *a, const char *what)
{
    struct yk_arena *arena = im->root->arena;
    uint64_t *wide = field != ATTR_SS ? yk_arena_alloc(arena, n + 1, sizeof *wide) : NULL;
    float *floats = field == ATTR_FS ? yk_arena_alloc(arena, n + 1, sizeof *floats) : NULL;
    const char **strings = field == ATTR_SS ? yk_arena_alloc(arena, n + 1, sizeof *strings) : NULL;
    struct pb_field f;
    bool bad = false;
    size_t at = 0;
    if ((field == ATTR_SS && !strings) || (field != ATTR_SS && !wide) || (field == ATTR_FS && !floats))
        return onnx_import_nomem(im);
    while (pb_next(&r, &f, &bad)) {
        if (f.number != field)
            continue;
        if (field == ATTR_SS) {
            if (memchr(f.data, 0, f.len))
                return yk_fail(im->why, YK_FORMAT, "%s holds a string with a NUL inside", what);
            if (!(strings[at++] = attr_string(im, &f)))
                return onnx_import_nomem(im);
            continue;
        }
        enum pb_wire wire = field == ATTR_FS ? PB_FIXED32 : PB_VARINT;
        if (!pb_numbers(&f, wire, wide + at))
            return yk_fail(im->why, YK_FORMAT, "%s is malformed", what);
        at += (size_t)pb_count(&f, wire);
    }
    for (size_t i = 0; i < at && floats; i++)
        floats[i] = pb_f32(wide[i]);
    a->n = at;
    a->ints = (const int64_t *)wide;
    a->floats = floats;
    a->strings = strings;
    a->kind = field == ATTR_IS ? ATTR_INTS : field == ATTR_FS ? ATTR_FLOATS : ATTR_STRINGS;
    if (field != ATTR_IS)
        a->ints = NULL;
    return YK_OK;
}

static yk_err read_subgraph(
    struct onnx_import *im, struct onnx_scope *scope, const char *what, struct pb graph, struct attr *a)
{
    struct onnx_scope inner = {.parent = scope, .depth = scope->depth + 1};
    if (inner.depth > ONNX_MAX_DEPTH)
        return yk_fail(im->why, YK_LIMIT, "graphs inside graphs go deeper than %d", ONNX_MAX_DEPTH);
    size_t size = strlen(what) + 3;
    char *path = yk_arena_alloc(im->root->arena, size, 1);
    inner.g = path ? graph_open_child(scope->g) : NULL;
    if (!inner.g)
        return onnx_import_nomem(im);
    snprintf(path, size, "%s: ", what);
    inner.path = path;
    yk_err err = onnx_import_graph(im, &inner, graph);
    onnx_import_names_free(&inner.names);
    free(inner.read);
    a->kind = ATTR_GRAPH;
    a->graph = inner.g;
    return err;
}

/* The attribute of the call that a node of a function's body refers to. */
static yk_err referred_attr(struct onnx_import *im, const struct onnx_scope *scope, const char *what,
    const struct pb_text *name, const struct pb_text *ref, int64_t type, struct attr *a, bool *skip)
{
    static const int64_t types[] = {[ATTR_INT] = 2,
        [ATTR_FLOAT] = 1,
        [ATTR_STRING] = 3,
        [ATTR_INTS] = 7,
        [ATTR_FLOATS] = 6,
        [ATTR_STRINGS] = 8,
        [ATTR_TENSOR] = 4,
        [ATTR_GRAPH] = 5};
    const struct onnx_call *call = NULL;
    for (const struct onnx_scope *s = scope; s && !call; s = s->parent)
        call = s->call;
    if (!call)
        return yk_fail(im->why, YK_FORMAT, "%s refers to an attribute of a function, outside of one", what);
    *skip = true;
    for (int32_t i = 0; i < call->n_attr; i++) {
        const struct attr *given = &call->attr[i];
        if (strlen(given->name) != ref->n || memcmp(given->name, ref->s, ref->n) != 0)
            continue;
        if (type != 0 && type != types[given->kind])
            return yk_fail(
                im->why, YK_FORMAT, "%s refers to '%s', which has another type in the call", what, given->name);
        if (given->kind == ATTR_GRAPH) { /* one graph cannot stand in two places */
            onnx_import_problem(im, "%s: a subgraph handed to a function is not supported", what);
            return YK_OK;
        }
        *skip = false;
        *a = *given;
        a->name = onnx_import_text(im, name);
        return a->name ? YK_OK : onnx_import_nomem(im);
    }
    return YK_OK; /* left out in the call: then it is left out here */
}

yk_err onnx_import_attr(struct onnx_import *im, struct onnx_scope *scope, const struct onnx_node *n, struct pb r,
    struct attr *a, bool *skip)
{
    static const enum pb_wire wires[] = {
        [ATTR_F] = PB_FIXED32, [ATTR_I] = PB_VARINT, [ATTR_S] = PB_BYTES, [ATTR_T] = PB_BYTES, [ATTR_G] = PB_BYTES};
    struct pb whole = r;
    struct pb_text name = {"", 0}, ref = {"", 0};
    struct pb_field f, last[ATTR_SS + 1] = {0};
    int64_t counts[ATTR_SS + 1] = {0}, type = 0;
    char label[200], what[400];
    bool bad = false, supported = true, other = false;
    onnx_import_node_text(scope, n, label, sizeof label);
    while (pb_next(&r, &f, &bad)) {
        if (f.number == 1) {
            bad = !pb_text(&f, &name);
        } else if (f.number == ATTR_TYPE) {
            bad = f.wire != PB_VARINT;
            type = (int64_t)f.v;
        } else if (f.number == ATTR_REF) {
            bad = !pb_text(&f, &ref);
        } else if (f.number == 10 || f.number == 11 || f.number == 14 || f.number == 15 || f.number == 22) {
            other = true;
        } else if (f.number >= ATTR_F && f.number <= ATTR_G) {
            bad = f.wire != wires[f.number];
            last[f.number] = f;
            counts[f.number] = 1;
        } else if (f.number >= ATTR_FS && f.number <= ATTR_SS) {
            int64_t k = f.number == ATTR_SS ? (f.wire == PB_BYTES ? 1 : -1)
                                            : pb_count(&f, f.number == ATTR_FS ? PB_FIXED32 : PB_VARINT);
            bad = k < 0;
            counts[f.number] += k;
        }
        if (bad)
            break;
    }
    snprintf(what, sizeof what, "%s attribute '%.*s'", label, (int)YK_MIN(name.n, (size_t)100), name.s);
    if (bad || !name.n)
        return yk_fail(im->why, YK_FORMAT, "%s is malformed", what);
    if (ref.n)
        return referred_attr(im, scope, what, &name, &ref, type, a, skip);
    *skip = false;
    uint32_t field = type >= 1 && type <= 8 ? attr_field[type] : 0;
    for (uint32_t k = ATTR_F; type == 0 && !field && k <= ATTR_SS; k++) /* old files leave the type out */
        if (counts[k] > 0)
            field = k;
    if (type == 0 && !field)
        field = ATTR_IS; /* an empty list: nothing tells of what */
    if (other || type > 8 || type < 0) {
        *skip = true;
        /* what an empty optional would hold: the interpreter does not ask */
        if (name.n == 4 && memcmp(name.s, "type", 4) == 0 && strcmp(n->op_type, "Optional") == 0)
            return YK_OK;
        onnx_import_problem(im, "%s: attributes of its type (%" PRId64 ") are not supported", what, type);
        return YK_OK;
    }
    *a = (struct attr){.name = onnx_import_text(im, &name)};
    if (!a->name)
        return onnx_import_nomem(im);
    switch (field) {
    case ATTR_F: /* proto3 writers leave out zeros */
        a->kind = ATTR_FLOAT;
        a->f = pb_f32(last[ATTR_F].v);
        return YK_OK;
    case ATTR_I:
        a->kind = ATTR_INT;
        a->i = (int64_t)last[ATTR_I].v;
        return YK_OK;
    case ATTR_S:
        a->kind = ATTR_STRING;
        if (last[ATTR_S].len && memchr(last[ATTR_S].data, 0, last[ATTR_S].len))
            return yk_fail(im->why, YK_FORMAT, "%s holds a string with a NUL inside", what);
        a->s = attr_string(im, &last[ATTR_S]);
        return a->s ? YK_OK : onnx_import_nomem(im);
    case ATTR_T: {
        struct value *v = counts[ATTR_T] ? yk_arena_alloc(im->root->arena, 1, sizeof *v) : NULL;
        if (!counts[ATTR_T])
            return yk_fail(im->why, YK_FORMAT, "%s has no tensor", what);
        if (!v)
            return onnx_import_nomem(im);
        *v = (struct value){.name = "", .producer = -1, .rank = -1, .capture = YK_ABSENT};
        a->kind = ATTR_TENSOR;
        a->tensor = v;
        yk_err err = onnx_import_tensor(im, pb_of(&last[ATTR_T]), what, v, &supported);
        *skip = !supported;
        return err;
    }
    case ATTR_G:
        if (!counts[ATTR_G])
            return yk_fail(im->why, YK_FORMAT, "%s has no graph", what);
        return read_subgraph(im, scope, what, pb_of(&last[ATTR_G]), a);
    default:
        return read_list(im, whole, field, (size_t)counts[field], a, what);
    }
}

/* ---- nodes ---- */

void onnx_import_node_text(const struct onnx_scope *scope, const struct onnx_node *n, char *out, size_t size)
{
    snprintf(out, size, "%snode %d '%.80s' (%.80s)", scope->path, (int)n->index, n->name, n->op_type);
}

/* Names and counts of a NodeProto; ids and attributes are left to the passes. */
static yk_err read_head(struct onnx_import *im, const struct onnx_scope *scope, struct pb r, struct onnx_node *n)
{
    struct pb_text name = {"", 0}, op = {"", 0}, domain = {"", 0}, any;
    struct pb_field f;
    bool bad = false;
    n->n_in = n->n_out = n->n_attr = 0;
    while (pb_next(&r, &f, &bad)) {
        bool ok = true;
        switch (f.number) {
        case NODE_INPUT:
            ok = pb_text(&f, &any) && ++n->n_in < INT32_MAX / 2;
            break;
        case NODE_OUTPUT:
            ok = pb_text(&f, &any) && ++n->n_out < INT32_MAX / 2;
            break;
        case NODE_NAME:
            ok = pb_text(&f, &name);
            break;
        case NODE_OP:
            ok = pb_text(&f, &op);
            break;
        case NODE_DOMAIN:
            ok = pb_text(&f, &domain);
            break;
        case NODE_ATTR:
            ok = f.wire == PB_BYTES && ++n->n_attr < INT32_MAX / 2;
            break;
        default:
            break;
        }
        if (!ok) {
            bad = true;
            break;
        }
    }
    if (bad)
        return yk_fail(im->why, YK_FORMAT, "%snode %d is malformed", scope->path, (int)n->index);
    if (!op.n)
        return yk_fail(im->why, YK_FORMAT, "%snode %d has no op", scope->path, (int)n->index);
    n->name = onnx_import_text(im, &name);
    n->op_type = onnx_import_text(im, &op);
    n->domain = onnx_import_text(im, &domain);
    if (!n->name || !n->op_type || !n->domain)
        return onnx_import_nomem(im);
    if (strcmp(n->domain, "ai.onnx") == 0)
        n->domain = "";
    return YK_OK;
}

static yk_err read_attrs(struct onnx_import *im, struct onnx_scope *scope, struct pb r, struct onnx_node *n)
{
    struct pb_field f;
    bool bad = false, skip;
    n->attr = yk_arena_alloc(im->root->arena, (size_t)n->n_attr + 1, sizeof *n->attr);
    if (!n->attr)
        return onnx_import_nomem(im);
    n->n_attr = 0;
    while (pb_next(&r, &f, &bad)) {
        if (f.number != NODE_ATTR)
            continue;
        struct attr *a = &n->attr[n->n_attr];
        yk_err err = onnx_import_attr(im, scope, n, pb_of(&f), a, &skip);
        if (err)
            return err;
        if (skip)
            continue;
        for (int32_t i = 0; i < n->n_attr; i++)
            if (strcmp(n->attr[i].name, a->name) == 0)
                return yk_fail(im->why, YK_FORMAT, "%snode %d '%s' (%s) has attribute '%s' twice", scope->path,
                    (int)n->index, n->name, n->op_type, a->name);
        if (++n->n_attr > 1000)
            return yk_fail(
                im->why, YK_LIMIT, "%snode %d '%s' has more than 1000 attributes", scope->path, (int)n->index, n->name);
    }
    return YK_OK;
}

static bool is_constant(const struct onnx_node *n)
{
    return strcmp(n->op_type, "Constant") == 0 && !*n->domain;
}

/* A Constant node is a weight. */
static yk_err read_constant(
    struct onnx_import *im, struct onnx_scope *scope, struct pb r, struct onnx_node *n, int32_t id)
{
    char what[200];
    onnx_import_node_text(scope, n, what, sizeof what);
    int before = im->n_problems;
    yk_err err = read_attrs(im, scope, r, n);
    if (err || im->n_problems > before)
        return err;
    if (n->n_attr != 1)
        return yk_fail(im->why, YK_FORMAT, "%s has %d attributes; one is its value", what, (int)n->n_attr);
    const struct attr *a = &n->attr[0];
    struct value *v = &scope->g->values[id];
    if (strcmp(a->name, "value") != 0 && strncmp(a->name, "value_", 6) != 0)
        return yk_fail(im->why, YK_FORMAT, "%s has attribute '%s' in place of a value", what, a->name);
    if (a->kind == ATTR_STRING || a->kind == ATTR_STRINGS) {
        onnx_import_problem(im, "%s: strings are not supported", what);
        return YK_OK;
    }
    if (a->kind == ATTR_TENSOR) {
        struct value copy = *a->tensor;
        copy.name = v->name;
        *v = copy;
    } else if ((err = onnx_import_scalar(im, a, what, v)) != YK_OK) {
        return err;
    }
    v->constant = true;
    return YK_OK;
}

/* Pass over the nodes before any input is resolved: what they make gets its id. */
yk_err onnx_import_node_outputs(struct onnx_import *im, struct onnx_scope *scope, struct pb node, int32_t index)
{
    struct onnx_node n = {.index = index};
    struct pb_text text;
    struct pb_field f;
    bool bad = false;
    yk_err err = read_head(im, scope, node, &n);
    if (err)
        return err;
    bool constant = is_constant(&n);
    if (constant && n.n_out != 1)
        return yk_fail(im->why, YK_FORMAT, "%snode %d '%s' (Constant) has %d outputs", scope->path, (int)index, n.name,
            (int)n.n_out);
    for (struct pb r = node; !err && pb_next(&r, &f, &bad);) {
        int32_t id;
        if (f.number != NODE_OUTPUT || !pb_text(&f, &text) || !text.n)
            continue;
        char *name = onnx_import_text(im, &text);
        if (!name)
            return onnx_import_nomem(im);
        id = constant ? YK_ABSENT : onnx_import_call_output(scope, &text);
        if (id != YK_ABSENT)
            err = onnx_import_bind(im, scope, name, id);
        else
            err = onnx_import_value(im, scope, name, constant ? VALUE_WEIGHT : VALUE_NODE, DT_NONE, &id);
        if (!err && constant)
            err = read_constant(im, scope, node, &n, id);
    }
    return err;
}

yk_err onnx_import_emit(struct onnx_import *im, struct onnx_scope *scope, const struct onnx_node *n)
{
    char what[400];
    const struct op *op = op_find(n->domain, n->op_type);
    onnx_import_node_text(scope, n, what, sizeof what);
    if (!op) {
        int64_t version = im->opset;
        for (size_t i = 0; i < im->n_opsets; i++)
            if (im->opsets[i].domain.n == strlen(n->domain) &&
                memcmp(im->opsets[i].domain.s, n->domain, im->opsets[i].domain.n) == 0)
                version = im->opsets[i].version;
        onnx_import_problem(
            im, "%s: op %s.%s, opset %" PRId64, what, *n->domain ? n->domain : "ai.onnx", n->op_type, version);
        return YK_OK;
    }
    if (im->opset < ONNX_OPSET_MIN && !*n->domain && op->since > im->opset)
        onnx_import_bad_opset(im, im->opset);
    if (!im->opset)
        return YK_OK; /* only listed */
    int32_t n_in = n->n_in, n_out = n->n_out;
    while (n_in > 0 && n_in > op->min_in && n->in[n_in - 1] == YK_ABSENT)
        n_in--;
    while (n_out > 0 && n_out > op->min_out && n->out[n_out - 1] == YK_ABSENT)
        n_out--;
    int most_in = YK_MIN(op->max_in, OP_MAX_IN), most_out = YK_MIN(op->max_out, OP_MAX_OUT);
    if (n_in < op->min_in || n_in > most_in)
        return yk_fail(im->why, n_in > OP_MAX_IN ? YK_LIMIT : YK_FORMAT, "%s has %d inputs, it takes %d to %d", what,
            (int)n_in, op->min_in, most_in);
    if (n_out < op->min_out || n_out > most_out)
        return yk_fail(im->why, n_out > OP_MAX_OUT ? YK_LIMIT : YK_FORMAT, "%s has %d outputs, it makes %d to %d", what,
            (int)n_out, op->min_out, most_out);
    struct node made = {.op = op, .n_in = n_in, .n_out = n_out, .in = n->in, .out = n->out};
    made.attr = n->attr;
    made.n_attr = n->n_attr;
    yk_err err = op->flags & OP_CONTROL && im->n_problems == 0 ? op_control_check(&made, im->why) : YK_OK;
    if (err)
        return yk_wrap(im->why, err, "%s", what);
    int32_t at = graph_add_node(scope->g, n->name, op, n->in, n_in, n->out, n_out);
    if (at == YK_ABSENT)
        return onnx_import_nomem(im);
    scope->g->nodes[at].attr = made.attr;
    scope->g->nodes[at].n_attr = made.n_attr;
    return YK_OK;
}

yk_err onnx_import_node(struct onnx_import *im, struct onnx_scope *scope, struct pb node, int32_t index)
{
    struct onnx_node n = {.index = index};
    struct pb_text text;
    struct pb_field f;
    bool bad = false;
    int32_t in = 0, out = 0;
    yk_err err = read_head(im, scope, node, &n);
    if (err || is_constant(&n))
        return err;
    /* Room for the inputs that upgrading adds. */
    int32_t *ids = yk_try_alloc((size_t)n.n_in + (size_t)n.n_out + 8, sizeof *ids);
    if (!ids)
        return onnx_import_nomem(im);
    n.in = ids;
    n.out = ids + n.n_in + 8;
    for (struct pb r = node; !err && pb_next(&r, &f, &bad);) {
        if ((f.number != NODE_INPUT && f.number != NODE_OUTPUT) || !pb_text(&f, &text))
            continue;
        int32_t id = YK_ABSENT;
        if (text.n && f.number == NODE_OUTPUT)
            id = onnx_import_find(scope, text.s, text.n);
        if (text.n && f.number == NODE_INPUT) {
            err = onnx_import_resolve(im, scope, text.s, text.n, &id);
            if (!err && id == YK_ABSENT)
                err = yk_fail(im->why, YK_FORMAT, "%snode %d '%s' (%s) reads '%.*s', which nobody makes", scope->path,
                    (int)index, n.name, n.op_type, (int)YK_MIN(text.n, (size_t)100), text.s);
            if (id == ONNX_NOT_GIVEN)
                id = YK_ABSENT;
        }
        if (f.number == NODE_INPUT)
            n.in[in++] = id;
        else
            n.out[out++] = id;
    }
    if (!err)
        err = read_attrs(im, scope, node, &n);
    struct onnx_function *f_called = err ? NULL : onnx_import_function_find(im, n.domain, n.op_type);
    if (f_called)
        err = onnx_import_call(im, scope, &n, f_called);
    else if (!err)
        err = onnx_import_upgrade(im, scope, &n);
    free(ids);
    return err;
}
