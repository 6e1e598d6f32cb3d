#include "common/onnx_value.h"

#include "common/onnx_import.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_DEPTH 4 /* optional(sequence(tensor)) is the deepest that ONNX has */

/* SequenceProto and OptionalProto: the same field holds the same kind of member (the second has one more in front). */
enum { KIND_TENSOR = 1, KIND_SPARSE = 2, KIND_SEQUENCE = 3, KIND_MAP = 4, KIND_OPTIONAL = 5 };
enum { VALUE_NAME = 1, VALUE_KIND = 2, VALUE_FIRST = 3 }; /* fields; members of kind k are in VALUE_FIRST + k - 1 */

static yk_err decode_tensor(struct pb r, struct onnx_value *out, struct yk_diag *why)
{
    struct onnx_mapping *none = NULL;
    struct yk_buf problems = {0};
    struct value v = {.name = "tensor"};
    bool supported = false;
    struct onnx_import im = {.root = graph_open(0), .mappings = &none, .problems = &problems, .why = why};
    if (!im.root)
        return yk_fail(why, YK_NOMEM, "no memory");
    yk_err err = onnx_import_tensor(&im, r, "the tensor", &v, &supported);
    if (!err && !supported) {
        int len = (int)strcspn(problems.data ? (const char *)problems.data : "", "\n");
        err = yk_fail(why, YK_UNSUPPORTED, "%.*s", len, problems.data ? (const char *)problems.data : "");
    } else if (!err && v.has_hash) {
        err = yk_fail(why, YK_FORMAT, "the tensor has no data of its own");
    }
    void *data = err ? NULL : yk_try_aligned((size_t)v.bytes + 1);
    if (!err && !data)
        err = yk_fail(why, YK_NOMEM, "no memory for the %lld bytes of the tensor", (long long)v.bytes);
    if (!err) {
        if (v.bytes)
            memcpy(data, v.data, (size_t)v.bytes);
        *out = (struct onnx_value){.type = VALUE_TENSOR, .shape = v.shape, .data = data};
    }
    yk_buf_free(&problems);
    yk_buf_free(&im.listing);
    graph_close(im.root);
    return err;
}

static yk_err decode(struct pb r, enum value_type type, int depth, struct onnx_value *out, struct yk_diag *why)
{
    struct onnx_value made = {.type = type};
    struct pb_field f;
    bool bad = false;
    yk_err err = YK_OK;
    int64_t n = 0;
    if (type == VALUE_TENSOR)
        return decode_tensor(r, out, why);
    if (depth == MAX_DEPTH)
        return yk_fail(why, YK_LIMIT, "sequences nest over %d deep", MAX_DEPTH);
    for (struct pb at = r; pb_next(&at, &f, &bad);) {
        int kind = (int)f.number - VALUE_FIRST + 1;
        if (kind == KIND_SPARSE || kind == KIND_MAP)
            return yk_fail(why, YK_UNSUPPORTED, "it holds %s",
                kind == KIND_MAP ? "a map (not a type of the IR)" : "a sparse tensor");
        if (kind >= KIND_TENSOR && kind <= KIND_OPTIONAL) {
            bad = bad || f.wire != PB_BYTES;
            n++;
        }
    }
    if (bad)
        return yk_fail(why, YK_FORMAT, "the %s is malformed", type == VALUE_SEQUENCE ? "sequence" : "optional");
    if (type == VALUE_OPTIONAL && n > 1)
        return yk_fail(why, YK_FORMAT, "the optional holds %lld values", (long long)n);
    made.items = yk_try_alloc((size_t)n + 1, sizeof *made.items);
    if (!made.items)
        return yk_fail(why, YK_NOMEM, "no memory for %lld members", (long long)n);
    while (!err && pb_next(&r, &f, &bad)) {
        int kind = (int)f.number - VALUE_FIRST + 1;
        if (kind < KIND_TENSOR || kind > KIND_OPTIONAL)
            continue;
        enum value_type inner = kind == KIND_TENSOR     ? VALUE_TENSOR
                                : kind == KIND_SEQUENCE ? VALUE_SEQUENCE
                                                        : VALUE_OPTIONAL;
        if ((err = decode(pb_of(&f), inner, depth + 1, &made.items[made.n], why)))
            yk_wrap(why, err, "member %lld", (long long)made.n);
        else
            made.n++;
    }
    if (err)
        onnx_value_fini(&made);
    else
        *out = made;
    return err;
}

yk_err onnx_value_decode(
    const void *data, size_t len, enum value_type type, struct onnx_value *out, struct yk_diag *why)
{
    return decode(pb_over(data, len), type, 0, out, why);
}

yk_err onnx_value_load(const char *path, enum value_type type, struct onnx_value *out, struct yk_diag *why)
{
    struct onnx_mapping *m = NULL;
    yk_err err = onnx_import_map(path, &m, why);
    if (!err) {
        err = onnx_value_decode(m->data, m->len, type, out, why);
        onnx_import_unmap(m);
    }
    return err ? yk_wrap(why, err, "%s", path) : YK_OK;
}

static yk_err encode(const struct onnx_value *v, const char *name, int depth, struct yk_buf *b, struct yk_diag *why)
{
    if (v->type == VALUE_TENSOR) {
        int64_t type = dtype_to_onnx(v->shape.dtype), bytes = shape_bytes(&v->shape);
        if (type == 0 || bytes < 0)
            return yk_fail(why, YK_INVAL, "a tensor without dtype or size cannot be written");
        if (bytes > ONNX_VALUE_MAX_BYTES - (int64_t)b->len)
            return yk_fail(
                why, YK_LIMIT, "over %lld bytes do not fit a protobuf message", (long long)ONNX_VALUE_MAX_BYTES);
        pb_put_packed(b, 1, v->shape.dims, (size_t)v->shape.rank);
        pb_put_varint(b, 2, (uint64_t)type);
        if (*name)
            pb_put_text(b, 8, name);
        pb_put_bytes(b, 9, v->data, (size_t)bytes);
        return YK_OK;
    }
    if (depth == MAX_DEPTH)
        return yk_fail(why, YK_INVAL, "sequences nest over %d deep", MAX_DEPTH);
    if (*name)
        pb_put_text(b, VALUE_NAME, name);
    for (int64_t i = 0; i < v->n; i++) {
        enum value_type inner = v->items[i].type;
        int kind = inner == VALUE_TENSOR ? KIND_TENSOR : inner == VALUE_SEQUENCE ? KIND_SEQUENCE : KIND_OPTIONAL;
        if (i == 0)
            pb_put_varint(b, VALUE_KIND, (uint64_t)kind);
        size_t begun = pb_begin(b, (uint32_t)(VALUE_FIRST + kind - 1));
        yk_err err = encode(&v->items[i], "", depth + 1, b, why);
        if (err)
            return err;
        pb_end(b, begun);
    }
    return YK_OK;
}

yk_err onnx_value_encode(const struct onnx_value *v, const char *name, struct yk_buf *out, struct yk_diag *why)
{
    yk_err err = encode(v, name, 0, out, why);
    return err ? err : out->failed ? yk_fail(why, YK_NOMEM, "no memory") : YK_OK;
}

void onnx_value_fini(struct onnx_value *v)
{
    for (int64_t i = 0; i < v->n; i++)
        onnx_value_fini(&v->items[i]); /* as deep as decode goes */
    free(v->items);
    free(v->data);
    *v = (struct onnx_value){.type = VALUE_TENSOR};
}

void onnx_value_text(const struct onnx_value *v, char *out, size_t size)
{
    char inner[128] = "";
    if (v->type == VALUE_TENSOR) {
        shape_text(&v->shape, out, size);
        return;
    }
    if (v->n)
        onnx_value_text(&v->items[0], inner, sizeof inner);
    if (v->type == VALUE_SEQUENCE)
        snprintf(
            out, size, "sequence of %lld%s%s%s", (long long)v->n, v->n ? ": " : "", inner, v->n > 1 ? ", ..." : "");
    else
        snprintf(out, size, "optional%s%s", v->n ? " " : ", empty", inner);
}
