/* ONNX import: the file and the model around its graph. */
#include "common/onnx_import.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/hash.h"

enum { MODEL_GRAPH = 7, MODEL_OPSET = 8, MODEL_METADATA = 14 };

void onnx_import_problem(struct onnx_import *im, const char *fmt, ...)
{
    char line[512];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(line, sizeof line, fmt, ap);
    va_end(ap);
    if (im->n_problems++ >= ONNX_MAX_PROBLEMS)
        return;
    if (im->problems)
        yk_buf_printf(im->problems, "%s\n", line);
    yk_buf_printf(&im->listing, "%s%s", im->n_problems > 1 ? "; " : "", line);
}

yk_err onnx_import_nomem(struct onnx_import *im)
{
    return yk_fail(im->why, YK_NOMEM,
        "no memory for the model, or it needs more than a file of its size may (%zu bytes)",
        (size_t)(im->model.end - im->model.p));
}

char *onnx_import_text(struct onnx_import *im, const struct pb_text *t)
{
    return yk_arena_strndup(im->root->arena, t->s, t->n);
}

static bool text_is(const struct pb_text *t, const char *s)
{
    return t->n == strlen(s) && memcmp(t->s, s, t->n) == 0;
}

static yk_err malformed(struct onnx_import *im, const char *what)
{
    return yk_fail(im->why, YK_FORMAT, "%s is malformed: this is not an ONNX model, or it is cut off", what);
}

/* ---- the model ---- */

yk_err onnx_import_opset(struct onnx_import *im, struct pb r)
{
    struct onnx_opset o = {.domain = {"", 0}};
    struct pb_field f;
    bool bad = false;
    while (pb_next(&r, &f, &bad)) {
        if (f.number == 1 && !pb_text(&f, &o.domain))
            return malformed(im, "an opset import");
        if (f.number == 2 && f.wire != PB_VARINT)
            return malformed(im, "an opset import");
        if (f.number == 2)
            o.version = (int64_t)f.v;
    }
    if (bad)
        return malformed(im, "an opset import");
    if (text_is(&o.domain, "ai.onnx"))
        o.domain.n = 0;
    for (size_t i = 0; i < im->n_opsets; i++)
        if (im->opsets[i].domain.n == o.domain.n && memcmp(im->opsets[i].domain.s, o.domain.s, o.domain.n) == 0 &&
            im->opsets[i].version != o.version)
            return yk_fail(im->why, YK_FORMAT, "opset domain '%.*s' is imported twice, as %lld and %lld",
                (int)YK_MIN(o.domain.n, (size_t)64), o.domain.s, (long long)im->opsets[i].version,
                (long long)o.version);
    im->opsets[im->n_opsets++] = o;
    return YK_OK;
}

void onnx_import_bad_opset(struct onnx_import *im, int64_t version)
{
    if (im->bad_opset)
        return;
    im->bad_opset = true;
    onnx_import_problem(im, "the model has opset %lld; %d to %d are supported: export it again with opset_version=%d",
        (long long)version, ONNX_OPSET_MIN, ONNX_OPSET_MAX, ONNX_OPSET_MAX);
}

/* Of older models, nodes whose form has not changed since are taken; the others are noted as they come. */
yk_err onnx_import_check_opset(struct onnx_import *im, const char *what)
{
    int64_t version = 1; /* what the specification says of a model that names none */
    for (size_t i = 0; i < im->n_opsets; i++)
        if (im->opsets[i].domain.n == 0)
            version = im->opsets[i].version;
    if (version < 1 || version > ONNX_OPSET_MAX) {
        if (what)
            onnx_import_problem(im, "%s: its function has opset %lld; %d to %d are supported", what, (long long)version,
                ONNX_OPSET_MIN, ONNX_OPSET_MAX);
        else
            onnx_import_bad_opset(im, version);
        version = 0;
    }
    im->opset = version;
    return YK_OK;
}

static yk_err read_metadata(struct onnx_import *im, struct pb r, struct pb_text *ids)
{
    struct pb_text key = {"", 0}, value = {"", 0};
    struct pb_field f;
    bool bad = false;
    while (pb_next(&r, &f, &bad))
        if ((f.number == 1 && !pb_text(&f, &key)) || (f.number == 2 && !pb_text(&f, &value)))
            return YK_OK; /* somebody else's bytes: not ours to judge */
    if (bad)
        return malformed(im, "a metadata entry");
    if (text_is(&key, ONNX_MARK))
        im->skeleton = true;
    if (text_is(&key, ONNX_IDS))
        *ids = value;
    return YK_OK;
}

static void renumber(int32_t *list, int32_t n, const int32_t *id)
{
    for (int32_t i = 0; i < n; i++)
        if (list[i] != YK_ABSENT)
            list[i] = id[list[i]];
}

/* Gives values the ids that they had when the skeleton was written. */
static yk_err apply_ids(struct onnx_import *im, const struct pb_text *ids)
{
    struct graph *g = im->root;
    size_t n = (size_t)g->n_values, at = 0;
    int32_t *id = yk_try_alloc(n + 1, sizeof *id);
    struct value *values = yk_arena_alloc(g->arena, n + 1, sizeof *values);
    uint8_t *seen = yk_try_alloc(n + 1, 1);
    yk_err err = id && values && seen ? YK_OK : onnx_import_nomem(im);
    for (size_t k = 0; k < n && !err; k++) {
        int64_t v = 0;
        size_t begun = at;
        while (at < ids->n && ids->s[at] >= '0' && ids->s[at] <= '9' && at - begun < 10)
            v = v * 10 + (ids->s[at++] - '0');
        if (at == begun || v >= (int64_t)n || seen[v] || (k + 1 < n && (at >= ids->n || ids->s[at++] != ' ')) ||
            (k + 1 == n && at != ids->n))
            err = yk_fail(im->why, YK_FORMAT, "the model's '%s' is no permutation of its %zu values", ONNX_IDS, n);
        else {
            seen[v] = 1;
            id[k] = (int32_t)v;
            values[v] = g->values[k];
        }
    }
    if (!err) {
        g->values = values;
        g->cap_values = g->n_values;
        graph_index_renew(g);
        renumber(g->inputs, g->n_inputs, id);
        renumber(g->outputs, g->n_outputs, id);
        for (int32_t i = 0; i < g->n_nodes; i++) {
            struct node *node = &g->nodes[i];
            renumber(node->in, node->n_in, id);
            renumber(node->out, node->n_out, id);
            for (int32_t a = 0; a < node->n_attr; a++) {
                struct graph *sub = node->attr[a].kind == ATTR_GRAPH ? node->attr[a].graph : NULL;
                for (int32_t k = 0; sub && k < sub->n_values; k++)
                    if (sub->values[k].kind == VALUE_CAPTURE)
                        sub->values[k].capture = id[sub->values[k].capture];
            }
        }
    }
    free(id);
    free(seen);
    return err;
}

static yk_err read_model(struct onnx_import *im)
{
    struct pb r = im->model, graph = pb_over(NULL, 0);
    struct pb_text ids = {"", 0};
    struct pb_field f;
    bool bad = false, found = false;
    size_t n_opsets = 0;
    yk_err err = YK_OK;
    while (pb_next(&r, &f, &bad))
        n_opsets += f.number == MODEL_OPSET;
    if (bad)
        return malformed(im, "the file");
    if (n_opsets > ONNX_MAX_OPSETS)
        return yk_fail(
            im->why, YK_LIMIT, "the model imports %zu opsets, at most %d are read", n_opsets, ONNX_MAX_OPSETS);
    im->opsets = yk_arena_alloc(im->root->arena, n_opsets + 1, sizeof *im->opsets);
    if (!im->opsets)
        return onnx_import_nomem(im);
    r = im->model;
    while (!err && pb_next(&r, &f, &bad)) {
        if (f.number != MODEL_GRAPH && f.number != MODEL_OPSET && f.number != MODEL_METADATA)
            continue;
        if (f.wire != PB_BYTES)
            return malformed(im, "the model");
        if (f.number == MODEL_GRAPH) {
            graph = pb_of(&f);
            found = true;
        } else if (f.number == MODEL_OPSET) {
            err = onnx_import_opset(im, pb_of(&f));
        } else {
            err = read_metadata(im, pb_of(&f), &ids);
        }
    }
    if (err)
        return err;
    if (!found)
        return yk_fail(im->why, YK_FORMAT, "this is not an ONNX model: it has no graph");
    err = onnx_import_check_opset(im, NULL);
    if (!err)
        err = onnx_import_functions(im);
    struct onnx_scope scope = {.g = im->root, .path = ""};
    if (!err)
        err = onnx_import_graph(im, &scope, graph);
    onnx_import_names_free(&scope.names);
    onnx_import_names_free(&im->used);
    free(scope.read);
    if (!err && im->n_problems == 0 && im->skeleton && ids.n)
        err = apply_ids(im, &ids);
    return err;
}

/* Weights stay in the file, so that what the arena holds is names, nodes and decoded number lists. A small node of a
 * dozen bytes becomes under 100 times that; a list of one-byte numbers eight times. */
static size_t arena_limit(size_t len)
{
    size_t most = YK_MAX((size_t)2 << 30, len > SIZE_MAX / 16 ? SIZE_MAX / 2 : 9 * len);
    return ((size_t)64 << 20) + YK_MIN(len > SIZE_MAX / 128 ? most : 100 * len, most);
}

static void close_backing(void *backing)
{
    struct onnx_mapping **list = backing;
    onnx_import_unmap(*list);
    free(list);
}

static void idle_backing(void *backing, const void *data, int64_t bytes)
{
    onnx_import_idle(*(struct onnx_mapping *const *)backing, data, bytes);
}

static yk_err import(const void *data, size_t len, const char *folder, struct onnx_mapping *mapping, struct graph **out,
    struct yk_buf *problems, struct yk_diag *why)
{
    struct onnx_mapping **list = yk_try_alloc(1, sizeof *list);
    struct onnx_import im = {.folder = folder, .mappings = list, .problems = problems, .why = why};
    im.model = pb_over(data, len);
    im.root = list ? graph_open(arena_limit(len)) : NULL;
    if (!im.root) {
        free(list);
        onnx_import_unmap(mapping);
        return yk_fail(why, YK_NOMEM, "no memory for a model");
    }
    *list = mapping;
    im.root->backing = list;
    im.root->backing_close = close_backing;
    im.root->backing_idle = mapping ? idle_backing : NULL;
    yk_err err = read_model(&im);
    if (!err && im.n_problems > 0) {
        int hidden = YK_MAX(im.n_problems - ONNX_MAX_PROBLEMS, 0);
        if (hidden && problems)
            yk_buf_printf(problems, "... and %d more\n", hidden);
        err = yk_fail(why, YK_UNSUPPORTED,
            "%d thing%s in this model %s not supported (opsets %d to %d are, with the ops "
            "that `yoke local ops` lists): %.*s",
            im.n_problems, im.n_problems > 1 ? "s" : "", im.n_problems > 1 ? "are" : "is", ONNX_OPSET_MIN,
            ONNX_OPSET_MAX, (int)YK_MIN(im.listing.len, (size_t)850),
            im.listing.data ? (const char *)im.listing.data : "");
    }
    if (!err && im.skeleton) {
        hash_bytes(data, len, im.root->hash);
        im.root->has_hash = true;
    }
    yk_buf_free(&im.listing);
    if (err)
        graph_close(im.root);
    else
        *out = im.root;
    return err;
}

yk_err onnx_import_memory(
    const void *data, size_t len, struct graph **out, struct yk_buf *problems, struct yk_diag *why)
{
    return import(data, len, NULL, NULL, out, problems, why);
}

yk_err onnx_import(const char *path, struct graph **out, struct yk_buf *problems, struct yk_diag *why)
{
    struct onnx_mapping *mapping = NULL;
    char folder[PATH_MAX];
    const char *slash = strrchr(path, '/');
    size_t n = slash ? (size_t)(slash - path) + 1 : 0;
    if (n >= sizeof folder)
        return yk_fail(why, YK_INVAL, "the path of the model is too long");
    memcpy(folder, n ? path : "./", n ? n : 2);
    folder[n ? n : 2] = '\0';
    yk_err err = onnx_import_map(path, &mapping, why);
    if (err)
        return yk_wrap(why, err, "%s", path);
    char *real = realpath(folder, NULL);
    if (!real) {
        onnx_import_unmap(mapping);
        return yk_fail(why, YK_IO, "%s: cannot resolve its folder", path);
    }
    err = import(mapping->data, mapping->len, real, mapping, out, problems, why);
    free(real);
    return err ? yk_wrap(why, err, "%s", path) : YK_OK;
}
