/* One node written as a line, for tables of cases:
 *   Op OUTPUTS in TENSOR... [attr NAME=KIND:VALUES...]
 * TENSOR is "-" (absent), "float32:2,3" (an input), "int64:2=4,5" (known contents, 1-D or, with "int64:=4", a scalar).
 * KIND is i, f, s, ints, floats or strings. An op of another domain than ONNX's is written domain.Op. */
#ifndef YK_TEST_OP_LINE_H
#define YK_TEST_OP_LINE_H

#include <stdio.h>
#include <stdlib.h>

#include "common/shapes.h"
#include "tests/unit/graph_fixture.h"

struct op_line {
    struct graph *g;
    int n_in, n_out;
    int32_t in[16], out[8];
};

static inline int op_line_ints(const char *s, int64_t *out, int max)
{
    int n = 0;
    while (*s && n < max) {
        char *end;
        out[n] = strtoll(s, &end, 10);
        if (end == s)
            break;
        n++;
        s = *end == ',' ? end + 1 : end;
    }
    return n;
}

static inline int op_line_floats(const char *s, float *out, int max)
{
    int n = 0;
    while (*s && n < max) {
        char *end;
        out[n] = strtof(s, &end);
        if (end == s)
            break;
        n++;
        s = *end == ',' ? end + 1 : end;
    }
    return n;
}

static inline int32_t op_line_tensor(struct graph *g, char *text, int k)
{
    char *colon = strchr(text, ':'), *equals = colon ? strchr(colon, '=') : NULL, name[16];
    int64_t dims[16], ints[64];
    float floats[64];
    if (strcmp(text, "-") == 0)
        return YK_ABSENT;
    assert_non_null(colon);
    *colon = 0;
    if (equals)
        *equals = 0;
    int rank = op_line_ints(colon + 1, dims, 16);
    enum dtype t = dtype_find(text);
    assert_true(t != DT_NONE);
    snprintf(name, sizeof name, "i%d", k);
    if (!equals)
        return fx_input(g, name, t, dims, rank);
    int32_t id = dtype_is_float(t) ? fx_floats(g, name, floats, op_line_floats(equals + 1, floats, 64))
                                   : fx_ints(g, name, ints, op_line_ints(equals + 1, ints, 64));
    if (t == DT_I32) { /* narrow in place: the data are this graph's own */
        struct value *v = &g->values[id];
        for (int64_t i = 0, n = shape_count(&v->shape); i < n; i++)
            ((int32_t *)(uintptr_t)v->data)[i] = (int32_t)ints[i];
        v->dtype = v->shape.dtype = DT_I32;
        v->bytes /= 2;
    }
    g->values[id].shape.rank = rank;
    for (int i = 0; i < rank; i++)
        g->values[id].shape.dims[i] = dims[i];
    return id;
}

static inline void op_line_attr(struct graph *g, struct node *n, char *text)
{
    char *equals = strchr(text, '='), *colon = equals ? strchr(equals, ':') : NULL;
    int64_t ints[64];
    assert_true(equals && colon);
    *equals = *colon = 0;
    const char *kind = equals + 1, *v = colon + 1;
    if (strcmp(kind, "i") == 0) {
        assert_int_equal(graph_set_attr_i(g, n, text, strtoll(v, NULL, 10)), YK_OK);
    } else if (strcmp(kind, "f") == 0) {
        assert_int_equal(graph_set_attr_f(g, n, text, strtof(v, NULL)), YK_OK);
    } else if (strcmp(kind, "s") == 0) {
        assert_int_equal(graph_set_attr_s(g, n, text, v), YK_OK);
    } else if (strcmp(kind, "ints") == 0) {
        assert_int_equal(graph_set_attr_ints(g, n, text, ints, (size_t)op_line_ints(v, ints, 64)), YK_OK);
    } else { /* there is no builder for these */
        assert_int_equal(graph_set_attr_i(g, n, text, 0), YK_OK);
        struct attr *a = (struct attr *)(uintptr_t)node_attr(n, text);
        if (strcmp(kind, "floats") == 0) {
            float *list = yk_arena_alloc(g->arena, 64, sizeof *list);
            a->kind = ATTR_FLOATS;
            a->n = (size_t)op_line_floats(v, list, 64);
            a->floats = list;
        } else {
            assert_string_equal(kind, "strings");
            const char **list = yk_arena_alloc(g->arena, 64, sizeof *list);
            char *save = NULL, *copy = yk_arena_strdup(g->arena, v);
            a->kind = ATTR_STRINGS;
            a->strings = list;
            for (char *t = strtok_r(copy, ",", &save); t; t = strtok_r(NULL, ",", &save))
                list[a->n++] = t;
        }
    }
}

/* The graph of the line; outputs are named o0, o1 ... Ended by graph_close. */
static inline struct op_line op_line_open(const char *line)
{
    struct op_line l = {.g = fx_open()};
    char copy[1024], *save = NULL, *attrs[24], name[16];
    int n_attrs = 0;
    bool in_attrs = false;
    assert_true(strlen(line) < sizeof copy);
    strcpy(copy, line);
    const char *op_name = strtok_r(copy, " ", &save);
    const char *dot = strrchr(op_name, '.');
    char domain[32] = "";
    if (dot)
        snprintf(domain, sizeof domain, "%.*s", (int)(dot - op_name), op_name);
    const struct op *op = op_find(domain, dot ? dot + 1 : op_name);
    if (!op)
        print_error("no op %s\n", op_name);
    assert_non_null(op);
    l.n_out = atoi(strtok_r(NULL, " ", &save));
    for (char *t; (t = strtok_r(NULL, " ", &save)) != NULL;) {
        if (strcmp(t, "in") == 0)
            continue;
        if (strcmp(t, "attr") == 0) {
            in_attrs = true;
            continue;
        }
        if (in_attrs)
            attrs[n_attrs++] = t;
        else
            l.in[l.n_in] = op_line_tensor(l.g, t, l.n_in), l.n_in++;
    }
    for (int i = 0; i < l.n_out; i++) {
        snprintf(name, sizeof name, "o%d", i);
        l.out[i] = graph_add_value(l.g, name, VALUE_NODE, DT_NONE);
        fx_output(l.g, l.out[i]);
    }
    assert_true(graph_add_node(l.g, "n", op, l.in, l.n_in, l.out, l.n_out) >= 0);
    for (int i = 0; i < n_attrs; i++)
        op_line_attr(l.g, fx_last(l.g), attrs[i]);
    return l;
}

/* What the shape rule says about the line. */
static inline yk_err op_line_infer(const char *line, struct yk_diag *why)
{
    struct op_line l = op_line_open(line);
    struct shapes s;
    yk_err err = shapes_infer(l.g, NULL, NULL, &s, why);
    if (!err) {
        err = s.of[l.out[0]].rank < 0 ? YK_DEPENDS : YK_OK; /* the text of the rule is still in why */
        shapes_fini(&s);
    }
    graph_close(l.g);
    return err;
}

#endif
