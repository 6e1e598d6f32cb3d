/* ONNX import: model-local functions. A node that calls one is replaced by the function's nodes: a scope of names of
 * its own over the same graph, in which the function's inputs and outputs are those of the call. Cycles are refused,
 * and the nodes that come out of functions are counted, since calls of calls multiply. */
#include "common/onnx_import.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MODEL_FUNCTION = 25 };
enum {
    FUNCTION_NAME = 1,
    FUNCTION_INPUT = 4,
    FUNCTION_OUTPUT = 5,
    FUNCTION_NODE = 7,
    FUNCTION_OPSET = 9,
    FUNCTION_DOMAIN = 10,
    FUNCTION_DEFAULT = 11
};

static int compare(const struct pb_text *a, const struct pb_text *b)
{
    size_t n = YK_MIN(a->n, b->n);
    int c = n ? memcmp(a->s, b->s, n) : 0;
    return c ? c : a->n < b->n ? -1 : a->n > b->n;
}

static int by_name(const void *a, const void *b)
{
    const struct onnx_function *x = a, *y = b;
    int c = compare(&x->domain, &y->domain);
    return c ? c : compare(&x->name, &y->name);
}

static yk_err malformed(struct onnx_import *im)
{
    return yk_fail(im->why, YK_FORMAT, "a function of the model is malformed");
}

yk_err onnx_import_functions(struct onnx_import *im)
{
    struct pb r = im->model;
    struct pb_field f, g;
    bool bad = false;
    size_t n = 0;
    while (pb_next(&r, &f, &bad))
        n += f.number == MODEL_FUNCTION;
    if (n > ONNX_MAX_FUNCTIONS)
        return yk_fail(im->why, YK_LIMIT, "the model has %zu functions, at most %d are read", n, ONNX_MAX_FUNCTIONS);
    im->functions = yk_arena_alloc(im->root->arena, n + 1, sizeof *im->functions);
    if (!im->functions)
        return onnx_import_nomem(im);
    for (r = im->model; pb_next(&r, &f, &bad);) {
        if (f.number != MODEL_FUNCTION)
            continue;
        struct onnx_function *x = &im->functions[im->n_functions++];
        *x = (struct onnx_function){.domain = {"", 0}, .name = {"", 0}};
        if (f.wire != PB_BYTES)
            return malformed(im);
        x->body = pb_of(&f);
        for (struct pb inner = x->body; pb_next(&inner, &g, &bad);)
            if ((g.number == FUNCTION_NAME && !pb_text(&g, &x->name)) ||
                (g.number == FUNCTION_DOMAIN && !pb_text(&g, &x->domain)))
                return malformed(im);
        if (bad || !x->name.n)
            return malformed(im);
        if (x->domain.n == 7 && memcmp(x->domain.s, "ai.onnx", 7) == 0)
            x->domain.n = 0;
    }
    if (im->n_functions)
        qsort(im->functions, im->n_functions, sizeof *im->functions, by_name);
    for (size_t i = 1; i < im->n_functions; i++)
        if (by_name(&im->functions[i - 1], &im->functions[i]) == 0)
            return yk_fail(im->why, YK_FORMAT, "function '%.*s' is defined twice",
                (int)YK_MIN(im->functions[i].name.n, (size_t)100), im->functions[i].name.s);
    return YK_OK;
}

struct onnx_function *onnx_import_function_find(const struct onnx_import *im, const char *domain, const char *name)
{
    struct onnx_function key = {.domain = {domain, strlen(domain)}, .name = {name, strlen(name)}};
    if (!im->n_functions)
        return NULL;
    return bsearch(&key, im->functions, im->n_functions, sizeof key, by_name);
}

int32_t onnx_import_call_output(const struct onnx_scope *scope, const struct pb_text *name)
{
    const struct onnx_call *c = scope->call;
    for (int32_t i = 0; c && i < c->n_out; i++)
        if (compare(&c->outputs[i], name) == 0)
            return c->out[i];
    return YK_ABSENT;
}

/* ---- one call ---- */

struct body {
    struct onnx_import *im;
    struct onnx_scope scope;
    struct onnx_call call;
    const struct onnx_node *n;
    struct pb file;
    const char *what;
};

/* The list of strings of one field, in the arena. */
static yk_err read_names(struct body *b, uint32_t field, struct pb_text **out, int32_t *n)
{
    struct pb r = b->file;
    struct pb_field f;
    bool bad = false;
    int32_t count = 0;
    while (pb_next(&r, &f, &bad))
        count += f.number == field && count < INT32_MAX / 2;
    *out = yk_arena_alloc(b->im->root->arena, (size_t)count + 1, sizeof **out);
    if (!*out)
        return onnx_import_nomem(b->im);
    *n = 0;
    for (r = b->file; pb_next(&r, &f, &bad);)
        if (f.number == field && !pb_text(&f, &(*out)[(*n)++]))
            return malformed(b->im);
    return bad ? malformed(b->im) : YK_OK;
}

static yk_err bind_inputs(struct body *b)
{
    struct pb_text *names;
    int32_t n;
    yk_err err = read_names(b, FUNCTION_INPUT, &names, &n);
    if (!err && b->n->n_in > n)
        err =
            yk_fail(b->im->why, YK_FORMAT, "%s has %d inputs, the function takes %d", b->what, (int)b->n->n_in, (int)n);
    for (int32_t i = 0; i < n && !err; i++) {
        char *name = onnx_import_text(b->im, &names[i]);
        int32_t id = i < b->n->n_in && b->n->in[i] != YK_ABSENT ? b->n->in[i] : ONNX_NOT_GIVEN;
        err = name ? onnx_import_bind(b->im, &b->scope, name, id) : onnx_import_nomem(b->im);
    }
    return err;
}

/* The call's attributes, and the function's defaults for those it leaves out. */
static yk_err bind_attributes(struct body *b)
{
    struct pb r = b->file;
    struct pb_field f;
    bool bad = false, skip;
    size_t n = (size_t)b->n->n_attr;
    while (pb_next(&r, &f, &bad))
        n += f.number == FUNCTION_DEFAULT;
    struct attr *list = yk_arena_alloc(b->im->root->arena, n + 1, sizeof *list);
    if (!list)
        return onnx_import_nomem(b->im);
    int32_t have = b->n->n_attr;
    if (have)
        memcpy(list, b->n->attr, (size_t)have * sizeof *list);
    for (r = b->file; pb_next(&r, &f, &bad);) {
        if (f.number != FUNCTION_DEFAULT)
            continue;
        if (f.wire != PB_BYTES)
            return malformed(b->im);
        yk_err err = onnx_import_attr(b->im, &b->scope, b->n, pb_of(&f), &list[have], &skip);
        if (err)
            return err;
        for (int32_t i = 0; i < b->n->n_attr && !skip; i++)
            skip = strcmp(list[i].name, list[have].name) == 0;
        have += !skip;
    }
    b->call.attr = list;
    b->call.n_attr = have;
    return bad ? malformed(b->im) : YK_OK;
}

static yk_err read_opsets(struct body *b)
{
    struct onnx_import *im = b->im;
    struct pb r = b->file;
    struct pb_field f;
    bool bad = false;
    size_t n = 0;
    while (pb_next(&r, &f, &bad))
        n += f.number == FUNCTION_OPSET;
    if (bad)
        return malformed(im);
    if (n > ONNX_MAX_OPSETS)
        return yk_fail(
            im->why, YK_LIMIT, "%s: the function imports %zu opsets, at most %d are read", b->what, n, ONNX_MAX_OPSETS);
    if (n == 0) /* old writers: the model's */
        return YK_OK;
    im->opsets = yk_arena_alloc(im->root->arena, n + 1, sizeof *im->opsets);
    im->n_opsets = 0;
    if (!im->opsets)
        return onnx_import_nomem(im);
    yk_err err = YK_OK;
    for (r = b->file; !err && pb_next(&r, &f, &bad);)
        if (f.number == FUNCTION_OPSET)
            err = f.wire == PB_BYTES ? onnx_import_opset(im, pb_of(&f)) : malformed(im);
    bool names_onnx = false; /* a function of calls alone need not */
    for (size_t i = 0; i < im->n_opsets; i++)
        names_onnx |= im->opsets[i].domain.n == 0;
    return err || !names_onnx ? err : onnx_import_check_opset(im, b->what);
}

/* An output that a Constant or no node at all makes is copied to the call's. */
static yk_err finish_outputs(struct body *b)
{
    yk_err err = YK_OK;
    for (int32_t i = 0; i < b->call.n_out && !err; i++) {
        const struct pb_text *name = &b->call.outputs[i];
        int32_t want = b->call.out[i], have = onnx_import_find(&b->scope, name->s, name->n);
        if (want == YK_ABSENT || have == want)
            continue;
        if (have < 0)
            return yk_fail(b->im->why, YK_FORMAT, "%s: no node of the function makes its output '%.*s'", b->what,
                (int)YK_MIN(name->n, (size_t)100), name->s);
        struct onnx_node copy = {.index = b->n->index,
            .name = "",
            .op_type = "Identity",
            .domain = "",
            .in = &have,
            .n_in = 1,
            .out = &want,
            .n_out = 1};
        err = onnx_import_emit(b->im, &b->scope, &copy);
    }
    return err;
}

static yk_err read_body(struct body *b)
{
    struct onnx_import *im = b->im;
    struct pb_text *outputs;
    int32_t n_out;
    yk_err err = read_names(b, FUNCTION_OUTPUT, &outputs, &n_out);
    if (!err && b->n->n_out > n_out)
        err = yk_fail(
            im->why, YK_FORMAT, "%s has %d outputs, the function makes %d", b->what, (int)b->n->n_out, (int)n_out);
    if (err || (err = bind_inputs(b)) || (err = bind_attributes(b)) || (err = read_opsets(b)))
        return err;
    b->call.outputs = outputs;
    b->call.out = b->n->out;
    b->call.n_out = b->n->n_out;
    b->scope.call = &b->call;
    for (int pass = 0; pass < 2 && !err; pass++) {
        struct pb r = b->file;
        struct pb_field f;
        bool bad = false;
        int32_t index = 0;
        while (!err && pb_next(&r, &f, &bad)) {
            if (f.number != FUNCTION_NODE)
                continue;
            if (f.wire != PB_BYTES)
                return malformed(im);
            if (pass == 0 && ++im->n_inlined > ONNX_MAX_INLINED)
                return yk_fail(im->why, YK_LIMIT, "the model's functions become more than %d nodes", ONNX_MAX_INLINED);
            err = pass == 0 ? onnx_import_node_outputs(im, &b->scope, pb_of(&f), index)
                            : onnx_import_node(im, &b->scope, pb_of(&f), index);
            index++;
        }
    }
    return err ? err : finish_outputs(b);
}

yk_err onnx_import_call(
    struct onnx_import *im, struct onnx_scope *scope, const struct onnx_node *n, struct onnx_function *f)
{
    char what[400];
    struct onnx_opset *opsets = im->opsets;
    size_t n_opsets = im->n_opsets;
    int64_t opset = im->opset;
    onnx_import_node_text(scope, n, what, sizeof what);
    if (f->open)
        return yk_fail(im->why, YK_FORMAT, "%s: the function calls itself", what);
    if (scope->depth >= ONNX_MAX_DEPTH)
        return yk_fail(
            im->why, YK_LIMIT, "%s: functions and graphs inside each other go deeper than %d", what, ONNX_MAX_DEPTH);
    size_t size = strlen(what) + 3;
    char *path = yk_arena_alloc(im->root->arena, size, 1);
    if (!path)
        return onnx_import_nomem(im);
    snprintf(path, size, "%s: ", what);
    struct body b = {.im = im, .n = n, .file = f->body, .what = what};
    b.scope = (struct onnx_scope){.g = scope->g, .path = path, .depth = scope->depth + 1, .file = f->body};
    f->open = true;
    yk_err err = read_body(&b);
    f->open = false;
    im->opsets = opsets;
    im->n_opsets = n_opsets;
    im->opset = opset;
    onnx_import_names_free(&b.scope.names);
    free(b.scope.read);
    return err;
}
