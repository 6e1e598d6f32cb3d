/* ONNX export: the whole model, or its skeleton with weights by hash. Same graph, same bytes: fields are written in one
 * fixed order, and nothing depends on addresses or time. Whoever reads a file numbers its values as they stand in it
 * (weights, inputs, what nodes make); a skeleton whose graph is numbered otherwise carries the ids as metadata. */
#include "common/hash.h"
#include "common/onnx.h"
#include "common/onnx_import.h"

#include <stdlib.h>
#include <string.h>

#define FLOAT_INLINE_BYTES 64
#define EXPORT_LIMIT_BYTES (((int64_t)1 << 31) - 1)

struct writer {
    struct yk_buf b;
    bool skeleton;
    bool own_ops;
    struct yk_diag *why;
};

static yk_err write_graph(struct writer *w, uint32_t field, const struct graph *g);

/* A capture goes by the name of what it captures. */
static const char *name_of(const struct graph *g, int32_t id)
{
    while (g->values[id].kind == VALUE_CAPTURE && g->parent) {
        id = g->values[id].capture;
        g = g->parent;
    }
    return g->values[id].name;
}

static bool by_hash(const struct value *v)
{
    return v->bytes > (dtype_is_float(v->dtype) ? FLOAT_INLINE_BYTES : ONNX_INLINE_BYTES);
}

static void write_pair(struct yk_buf *b, uint32_t field, const char *key, const char *value)
{
    size_t entry = pb_begin(b, field);
    pb_put_text(b, 1, key);
    pb_put_text(b, 2, value);
    pb_end(b, entry);
}

static yk_err write_tensor(struct writer *w, uint32_t field, const char *name, const struct value *v)
{
    bool reference = w->skeleton && v->has_hash && (by_hash(v) || !v->data);
    if (!reference && !v->data)
        return yk_fail(w->why, YK_STATE, "the data of weight '%s' is not here, only its hash", name);
    size_t tensor = pb_begin(&w->b, field);
    pb_put_packed(&w->b, 1, v->shape.dims, (size_t)YK_MAX(v->shape.rank, 0));
    pb_put_varint(&w->b, 2, (uint64_t)dtype_to_onnx(v->dtype));
    if (*name)
        pb_put_text(&w->b, 8, name);
    if (reference) {
        char location[7 + HASH_HEX_SIZE] = "sha256:";
        yk_hex(v->hash, HASH_BYTES, location + 7);
        write_pair(&w->b, 13, "location", location);
        pb_put_varint(&w->b, 14, 1);
    } else if (v->bytes > 0) {
        pb_put_bytes(&w->b, 9, v->data, (size_t)v->bytes);
    }
    pb_end(&w->b, tensor);
    return YK_OK;
}

static void write_info(struct writer *w, uint32_t field, const struct graph *g, int32_t id)
{
    struct yk_buf *b = &w->b;
    const struct value *v = &g->values[id];
    size_t info = pb_begin(b, field), outer = 0;
    pb_put_text(b, 1, name_of(g, id));
    enum dtype t = v->dtype;
    if (t != DT_NONE || v->rank >= 0 || v->type != VALUE_TENSOR) {
        size_t type = pb_begin(b, 2), inner = 0;
        if (v->type != VALUE_TENSOR) { /* sequence or optional of tensors: TypeProto {kind {elem_type: TypeProto}} */
            outer = pb_begin(b, v->type == VALUE_SEQUENCE ? 4 : 9);
            inner = pb_begin(b, 1);
        }
        size_t tensor = pb_begin(b, 1);
        if (t != DT_NONE)
            pb_put_varint(b, 1, (uint64_t)dtype_to_onnx(t));
        if (v->rank >= 0 || v->kind == VALUE_WEIGHT) {
            size_t shape = pb_begin(b, 2);
            int rank = v->kind == VALUE_WEIGHT ? v->shape.rank : v->rank;
            for (int i = 0; i < rank; i++) {
                size_t dim = pb_begin(b, 1);
                if (v->kind == VALUE_WEIGHT)
                    pb_put_varint(b, 1, (uint64_t)v->shape.dims[i]);
                else if (v->dims[i].sym >= 0)
                    pb_put_text(b, 2, g->syms[v->dims[i].sym]);
                else if (v->dims[i].value >= 0)
                    pb_put_varint(b, 1, (uint64_t)v->dims[i].value);
                pb_end(b, dim);
            }
            pb_end(b, shape);
        }
        pb_end(b, tensor);
        if (v->type != VALUE_TENSOR) {
            pb_end(b, inner);
            pb_end(b, outer);
        }
        pb_end(b, type);
    }
    pb_end(b, info);
}

static yk_err write_attr(struct writer *w, const struct attr *a)
{
    /* By enum attr_kind: AttributeProto.type. */
    static const uint8_t types[] = {[ATTR_INT] = 2,
        [ATTR_FLOAT] = 1,
        [ATTR_STRING] = 3,
        [ATTR_INTS] = 7,
        [ATTR_FLOATS] = 6,
        [ATTR_STRINGS] = 8,
        [ATTR_TENSOR] = 4,
        [ATTR_GRAPH] = 5};
    struct yk_buf *b = &w->b;
    yk_err err = YK_OK;
    size_t attr = pb_begin(b, 5);
    pb_put_text(b, 1, a->name);
    switch (a->kind) {
    case ATTR_INT:
        pb_put_varint(b, 3, (uint64_t)a->i);
        break;
    case ATTR_FLOAT:
        pb_put_f32(b, 2, a->f);
        break;
    case ATTR_STRING:
        pb_put_text(b, 4, a->s);
        break;
    case ATTR_INTS:
        pb_put_packed(b, 8, a->ints, a->n);
        break;
    case ATTR_FLOATS:
        for (size_t i = 0; i < a->n; i++)
            pb_put_f32(b, 7, a->floats[i]);
        break;
    case ATTR_STRINGS:
        for (size_t i = 0; i < a->n; i++)
            pb_put_text(b, 9, a->strings[i]);
        break;
    case ATTR_TENSOR:
        err = write_tensor(w, 5, a->tensor->name ? a->tensor->name : "", a->tensor);
        break;
    case ATTR_GRAPH:
        err = write_graph(w, 6, a->graph);
        break;
    }
    pb_put_varint(b, 20, types[a->kind]);
    pb_end(b, attr);
    return err;
}

static yk_err write_node(struct writer *w, const struct graph *g, const struct node *n)
{
    struct yk_buf *b = &w->b;
    yk_err err = YK_OK;
    size_t node = pb_begin(b, 1);
    for (int32_t i = 0; i < n->n_in; i++)
        pb_put_text(b, 1, n->in[i] == YK_ABSENT ? "" : name_of(g, n->in[i]));
    for (int32_t i = 0; i < n->n_out; i++)
        pb_put_text(b, 2, n->out[i] == YK_ABSENT ? "" : g->values[n->out[i]].name);
    if (*n->name)
        pb_put_text(b, 3, n->name);
    pb_put_text(b, 4, n->op->name);
    for (int32_t i = 0; i < n->n_attr && !err; i++)
        err = write_attr(w, &n->attr[i]);
    if (*n->op->domain) {
        pb_put_text(b, 7, n->op->domain);
        w->own_ops = true;
    }
    pb_end(b, node);
    return err;
}

static yk_err write_graph(struct writer *w, uint32_t field, const struct graph *g)
{
    yk_err err = YK_OK;
    size_t graph = pb_begin(&w->b, field);
    for (int32_t i = 0; i < g->n_nodes && !err; i++)
        err = write_node(w, g, &g->nodes[i]);
    pb_put_text(&w->b, 2, *g->name ? g->name : "graph"); /* ONNX wants one */
    for (int32_t i = 0; i < g->n_values && !err; i++)
        if (g->values[i].kind == VALUE_WEIGHT)
            err = write_tensor(w, 5, g->values[i].name, &g->values[i]);
    for (int32_t i = 0; i < g->n_inputs; i++)
        write_info(w, 11, g, g->inputs[i]);
    for (int32_t i = 0; i < g->n_outputs; i++)
        write_info(w, 12, g, g->outputs[i]);
    pb_end(&w->b, graph);
    return err;
}

/* The ids in the order in which a reader meets the values, as text; "" if that is how they are numbered. */
static yk_err write_ids(struct writer *w, const struct graph *g, struct yk_buf *text)
{
    int32_t *order = yk_try_alloc((size_t)g->n_values + 1, sizeof *order), n = 0;
    bool plain = true;
    if (!order)
        return yk_fail(w->why, YK_NOMEM, "no memory for %d values", g->n_values);
    int64_t met = 0;
    for (int32_t i = 0; i < g->n_values; i++)
        if (g->values[i].kind == VALUE_WEIGHT && met++ < g->n_values)
            order[n++] = i;
    for (int32_t i = 0; i < g->n_inputs; i++)
        if (met++ < g->n_values)
            order[n++] = g->inputs[i];
    for (int32_t i = 0; i < g->n_nodes; i++)
        for (int32_t k = 0; k < g->nodes[i].n_out; k++)
            if (g->nodes[i].out[k] != YK_ABSENT && met++ < g->n_values)
                order[n++] = g->nodes[i].out[k];
    if (met != g->n_values) {
        free(order);
        return yk_fail(w->why, YK_STATE, "the graph has values that nobody makes (%d of %d are used): prune it first",
            (int)met, g->n_values);
    }
    for (int32_t i = 0; i < n; i++)
        plain = plain && order[i] == i;
    for (int32_t i = 0; i < n && !plain; i++)
        yk_buf_printf(text, i ? " %d" : "%d", order[i]);
    free(order);
    return YK_OK;
}

static int64_t weight_bytes(const struct graph *g)
{
    int64_t sum = 0;
    for (int32_t i = 0; i < g->n_values; i++)
        if (g->values[i].kind == VALUE_WEIGHT && !yk_add_i64(sum, g->values[i].bytes, &sum))
            return INT64_MAX;
    return sum;
}

static yk_err write_model(struct writer *w, const struct graph *g)
{
    struct yk_buf ids = {0}, *b = &w->b;
    yk_err err = YK_OK;
    pb_put_varint(b, 1, 8); /* the IR version that goes with opset 17 */
    pb_put_text(b, 2, "yoke");
    err = write_graph(w, 7, g);
    if (err)
        return err;
    for (int own = 0; own <= (w->own_ops ? 1 : 0); own++) {
        size_t opset = pb_begin(b, 8);
        pb_put_text(b, 1, own ? "ai.yoke" : "");
        pb_put_varint(b, 2, own ? 1 : ONNX_OPSET_MAX);
        pb_end(b, opset);
    }
    if (w->skeleton) {
        write_pair(b, 14, ONNX_MARK, "1");
        err = write_ids(w, g, &ids);
        if (!err && ids.len) {
            yk_buf_add(&ids, "", 1);
            if (!ids.failed)
                write_pair(b, 14, ONNX_IDS, (const char *)ids.data);
        }
        if (!err && ids.failed)
            err = yk_fail(w->why, YK_NOMEM, "no memory for the skeleton");
        yk_buf_free(&ids);
    }
    if (!err && b->failed)
        err = yk_fail(w->why, YK_NOMEM, "no memory for the exported model");
    if (!err && b->len > (size_t)EXPORT_LIMIT_BYTES)
        err = yk_fail(w->why, YK_LIMIT, "the exported model has %zu bytes; an ONNX file holds at most %lld", b->len,
            (long long)EXPORT_LIMIT_BYTES);
    return err;
}

/* Hands the bytes over; out may hold something already. */
static void give(struct writer *w, struct yk_buf *out)
{
    if (out->data || out->failed) {
        yk_buf_add(out, w->b.data, w->b.len);
        yk_buf_free(&w->b);
    } else {
        *out = w->b;
    }
}

yk_err onnx_export(const struct graph *g, struct yk_buf *out, struct yk_diag *why)
{
    struct writer w = {.why = why};
    int64_t bytes = weight_bytes(g);
    if (bytes > EXPORT_LIMIT_BYTES)
        return yk_fail(why, YK_LIMIT, "the model has %lld bytes of weights; an ONNX file holds at most %lld",
            (long long)bytes, (long long)EXPORT_LIMIT_BYTES);
    yk_err err = write_model(&w, g);
    if (err)
        yk_buf_free(&w.b);
    else
        give(&w, out);
    return err;
}

static void hash_missing(const struct graph *g)
{
    for (int32_t i = 0; i < g->n_values; i++) {
        struct value *v = &g->values[i];
        if (v->kind == VALUE_WEIGHT && v->data && !v->has_hash && by_hash(v)) {
            hash_bytes(v->data, (size_t)v->bytes, v->hash);
            v->has_hash = true;
        }
    }
    for (int32_t i = 0; i < g->n_nodes; i++)
        for (int32_t k = 0; k < g->nodes[i].n_attr; k++)
            if (g->nodes[i].attr[k].kind == ATTR_GRAPH)
                hash_missing(g->nodes[i].attr[k].graph);
}

yk_err onnx_export_skeleton(struct graph *g, struct yk_buf *out, struct yk_diag *why)
{
    struct writer w = {.skeleton = true, .why = why};
    hash_missing(g);
    yk_err err = write_model(&w, g);
    if (err) {
        yk_buf_free(&w.b);
        return err;
    }
    hash_bytes(w.b.data, w.b.len, g->hash);
    g->has_hash = true;
    give(&w, out);
    return YK_OK;
}
