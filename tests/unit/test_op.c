/* Shape rules against ONNX's own shape inference (tests/golden/shapes.txt), and what each rule must refuse. */
#include <stdio.h>
#include <stdlib.h>

#include "common/shapes.h"
#include "tests/unit/graph_fixture.h"

/* ---- the golden table ---- */

static int parse_list(const char *s, int64_t *out, int max)
{
    int n = 0;
    while (*s && n < max) {
        char *end;
        out[n++] = strtoll(s, &end, 10);
        s = *end == ',' ? end + 1 : end;
        if (end == s)
            break;
    }
    return n;
}

static bool parse_tensor(char *text, struct shape *s, int64_t *content, int *n_content)
{
    char *colon = strchr(text, ':'), *equals = colon ? strchr(colon, '=') : NULL;
    if (!colon)
        return false;
    *colon = 0;
    *n_content = -1;
    if (equals) {
        *equals = 0;
        *n_content = parse_list(equals + 1, content, OP_MAX_CONTENT);
    }
    s->dtype = dtype_find(text);
    s->rank = parse_list(colon + 1, s->dims, YK_MAX_RANK);
    return s->dtype != DT_NONE;
}

static void add_attr(struct graph *g, struct node *n, char *text)
{
    char *equals = strchr(text, '='), *colon = equals ? strchr(equals, ':') : NULL;
    int64_t list[64];
    assert_true(equals && colon);
    *equals = *colon = 0;
    const char *kind = equals + 1, *value = colon + 1;
    if (strcmp(kind, "i") == 0)
        assert_int_equal(graph_set_attr_i(g, n, text, strtoll(value, NULL, 10)), YK_OK);
    else if (strcmp(kind, "f") == 0)
        assert_int_equal(graph_set_attr_f(g, n, text, strtof(value, NULL)), YK_OK);
    else if (strcmp(kind, "s") == 0)
        assert_int_equal(graph_set_attr_s(g, n, text, value), YK_OK);
    else
        assert_int_equal(graph_set_attr_ints(g, n, text, list, (size_t)parse_list(value, list, 64)), YK_OK);
}

/* Runs one line; returns 0 if our rule says what ONNX says. */
static int run_line(char *line, const char *copy)
{
    struct graph *g = fx_open();
    struct shape want[8];
    int32_t in[OP_MAX_IN], out[8];
    int n_in = 0, n_want = 0, n_out, failed = 0, n_content;
    int64_t content[OP_MAX_CONTENT];
    char *save = NULL, name[16], *attrs[32];
    int n_attrs = 0;
    bool wants_error = false;
    const char *mode = "";
    const struct op *op = op_find("", strtok_r(line, " ", &save));
    assert_non_null(op);
    n_out = atoi(strtok_r(NULL, " ", &save));
    for (char *t; (t = strtok_r(NULL, " ", &save)) != NULL;) {
        struct shape s;
        if (strcmp(t, "in") == 0 || strcmp(t, "attr") == 0 || strcmp(t, "out") == 0) {
            mode = t;
        } else if (strcmp(t, "error") == 0) {
            wants_error = true;
        } else if (strcmp(mode, "attr") == 0) {
            attrs[n_attrs++] = t;
        } else if (strcmp(t, "-") == 0) {
            in[n_in++] = YK_ABSENT;
        } else if (strcmp(mode, "in") == 0) {
            assert_true(parse_tensor(t, &s, content, &n_content));
            snprintf(name, sizeof name, "i%d", n_in);
            if (n_content < 0) {
                in[n_in++] = fx_input(g, name, s.dtype, s.dims, s.rank);
            } else {
                in[n_in] = fx_ints(g, name, content, n_content);
                g->values[in[n_in++]].shape.rank = s.rank;
            }
        } else {
            assert_true(parse_tensor(t, &want[n_want++], content, &n_content));
        }
    }
    for (int i = 0; i < n_out; i++) {
        snprintf(name, sizeof name, "o%d", i);
        out[i] = graph_add_value(g, name, VALUE_NODE, DT_NONE);
    }
    graph_add_node(g, "n", op, in, n_in, out, n_out);
    for (int i = 0; i < n_attrs; i++)
        add_attr(g, fx_last(g), attrs[i]);

    struct shapes shapes;
    struct yk_diag why = {""};
    yk_err err = shapes_infer(g, NULL, NULL, &shapes, &why);
    if (wants_error) {
        failed = err == YK_OK;
        if (failed)
            print_error("accepted: %s\n", copy);
    } else if (err) {
        print_error("refused (%s): %s\n", why.text, copy);
        failed = 1;
    } else {
        for (int i = 0; i < n_want; i++)
            if (!shape_equal(&want[i], &shapes.of[out[i]])) {
                char text[128];
                shape_text(&shapes.of[out[i]], text, sizeof text);
                print_error("output %d is %s: %s\n", i, text, copy);
                failed = 1;
            }
    }
    if (!err) {
        struct op_ctx *c = calloc(1, sizeof *c);
        shapes_node(g, &shapes, 0, c);
        failed |= op_flops(c) < 0 || op_bytes(c) < 0;
        free(c);
        shapes_fini(&shapes);
    }
    graph_close(g);
    return failed;
}

static void test_golden(void **state)
{
    (void)state;
    FILE *f = fopen(YOKE_SOURCE_DIR "/tests/golden/shapes.txt", "r");
    char line[2048], copy[2048];
    int lines = 0, failed = 0;
    assert_non_null(f);
    while (fgets(line, sizeof line, f)) {
        line[strcspn(line, "\n")] = 0;
        if (line[0] == '#' || !line[0])
            continue;
        memcpy(copy, line, sizeof copy);
        failed += run_line(line, copy);
        lines++;
    }
    fclose(f);
    assert_true(lines > 900);
    assert_int_equal(failed, 0);
}

/* ---- the table itself ---- */

static void test_table(void **state)
{
    (void)state;
    assert_true(op_count() > 80);
    for (int i = 0; i < op_count(); i++) {
        const struct op *op = op_at(i);
        assert_ptr_equal(op_find(op->domain, op->name), op); /* no name twice */
        assert_true(op->infer && op->min_in <= op->max_in && op->max_in <= OP_MAX_IN);
        assert_true(op->min_out >= 1 && op->min_out <= op->max_out && op->max_out <= OP_MAX_OUT);
    }
    assert_null(op_at(-1));
    assert_null(op_at(op_count()));
    assert_null(op_find("", "NoSuchOp"));
    assert_null(op_find("", "FusedConv"));
    assert_non_null(op_find("ai.onnx", "Conv"));
    assert_non_null(op_find("ai.yoke", "FusedConv"));
}

/* ---- refusals: one node over given inputs ---- */

struct one {
    struct graph *g;
    int32_t in[8];
    int n_in;
    struct yk_diag why;
    struct shape out;
};

static struct one one_open(void)
{
    return (struct one){.g = fx_open()};
}

static void add_in(struct one *o, enum dtype t, const int64_t *dims, int rank)
{
    char name[16];
    snprintf(name, sizeof name, "i%d", o->n_in);
    o->in[o->n_in++] = fx_input(o->g, name, t, dims, rank);
}

static void add_ints(struct one *o, const int64_t *v, int n)
{
    char name[16];
    snprintf(name, sizeof name, "i%d", o->n_in);
    o->in[o->n_in++] = fx_ints(o->g, name, v, n);
}

static struct node *one_node(struct one *o, const char *op)
{
    fx_node(o->g, op, "out", o->in, o->n_in);
    return fx_last(o->g);
}

static yk_err one_infer(struct one *o)
{
    struct shapes s;
    yk_err err = shapes_infer(o->g, NULL, NULL, &s, &o->why);
    if (!err) {
        o->out = s.of[graph_find_value(o->g, "out")];
        err = s.n_dynamic ? YK_DEPENDS : YK_OK;
        shapes_fini(&s);
    }
    graph_close(o->g);
    return err;
}

static yk_err conv(const int64_t *x, const int64_t *w, const char *attr, const int64_t *v, int n)
{
    struct one o = one_open();
    add_in(&o, DT_F32, x, 4);
    add_in(&o, DT_F32, w, 4);
    struct node *node = one_node(&o, "Conv");
    if (attr && n == 1 && strcmp(attr, "group") == 0)
        graph_set_attr_i(o.g, node, attr, v[0]);
    else if (attr)
        graph_set_attr_ints(o.g, node, attr, v, (size_t)n);
    return one_infer(&o);
}

static void test_conv_bad(void **state)
{
    (void)state;
    const int64_t x[] = {1, 4, 8, 8}, w[] = {6, 2, 3, 3}, plain[] = {6, 4, 3, 3}, huge[] = {1, 4, 2, 8};
    assert_int_equal(conv(x, plain, NULL, NULL, 0), YK_OK);
    assert_int_equal(conv(x, w, NULL, NULL, 0), YK_INVAL);     /* channels */
    assert_int_equal(conv(x, w, "group", INTS(2)), YK_OK);     /* two groups fit */
    assert_int_equal(conv(x, w, "group", INTS(0)), YK_INVAL);  /* no groups */
    assert_int_equal(conv(x, w, "group", INTS(-2)), YK_INVAL); /* negative */
    assert_int_equal(conv(x, w, "group", INTS(4)), YK_INVAL);  /* 6 % 4 */
    assert_int_equal(conv(x, plain, "strides", INTS(0, 1)), YK_INVAL);
    assert_int_equal(conv(x, plain, "strides", INTS(1)), YK_INVAL); /* too few */
    assert_int_equal(conv(x, plain, "strides", INTS((int64_t)1 << 40, 1)), YK_INVAL);
    assert_int_equal(conv(x, plain, "dilations", INTS(0, 1)), YK_INVAL);
    assert_int_equal(conv(x, plain, "dilations", INTS(4, 1)), YK_INVAL); /* reaches over the edge */
    assert_int_equal(conv(x, plain, "pads", INTS(-1, 0, 0, 0)), YK_INVAL);
    assert_int_equal(conv(x, plain, "pads", INTS(1, 1)), YK_INVAL);
    assert_int_equal(conv(x, plain, "kernel_shape", INTS(3, 5)), YK_INVAL);
    assert_int_equal(conv(huge, plain, NULL, NULL, 0), YK_INVAL);                       /* kernel over the input */
    assert_int_equal(conv((const int64_t[]){0, 4, 8, 8}, plain, NULL, NULL, 0), YK_OK); /* an empty batch is legal */
    assert_int_equal(conv(x, (const int64_t[]){0, 4, 3, 3}, NULL, NULL, 0), YK_INVAL);
    assert_int_equal(conv(x, (const int64_t[]){6, 4, 0, 3}, NULL, NULL, 0), YK_INVAL);
}

static void test_fused_conv(void **state)
{
    (void)state;
    for (int kind = 0; kind < 7; kind++) {
        struct one o = one_open();
        add_in(&o, DT_F32, INTS(2, 3, 8, 8));
        add_in(&o, DT_F32, INTS(5, 3, 1, 1));
        o.in[o.n_in++] = YK_ABSENT;
        add_in(&o, DT_F32, (const int64_t[]){kind == 1 ? 1 : 2, 5, 8, 8}, 4); /* a residual does not broadcast */
        struct node *n = one_node(&o, "ai.yoke.FusedConv");
        if (kind == 2)
            graph_set_attr_s(o.g, n, "activation", "swish");
        if (kind == 3 || kind == 4)
            graph_set_attr_s(o.g, n, "activation", "clip");
        if (kind >= 5)
            graph_set_attr_s(o.g, n, "activation", "hard_swish");
        if (kind >= 5)
            graph_set_attr_f(o.g, n, "act_alpha", 0.25f);
        if (kind == 6)
            graph_set_attr_f(o.g, n, "act_beta", 0.5f);
        if (kind == 4) {
            graph_set_attr_f(o.g, n, "min", 0);
            graph_set_attr_f(o.g, n, "max", 6);
        }
        assert_int_equal(one_infer(&o), kind == 0 || kind == 4 || kind == 6 ? YK_OK : YK_INVAL);
    }
}

static void test_pool_bad(void **state)
{
    (void)state;
    static const struct {
        int64_t k, pad, ceil, stride;
        yk_err err;
        int64_t out;
    } cases[] = {
        {2, 0, 0, 2, YK_OK, 2}, {2, 1, 0, 2, YK_OK, 3}, {2, 2, 0, 2, YK_INVAL, 0}, /* a window of padding only */
        {0, 0, 0, 1, YK_INVAL, 0}, {6, 0, 0, 1, YK_INVAL, 0}, {2, 0, 1, 3, YK_OK, 2}, {1, 0, 1, 4, YK_OK, 2},
        {2, 1, 1, 6, YK_OK, 1}, /* the second window would start at 5, behind the input */
    };
    for (size_t i = 0; i < YK_COUNT(cases); i++) {
        struct one o = one_open();
        add_in(&o, DT_F32, INTS(1, 2, 5));
        struct node *n = one_node(&o, "MaxPool");
        graph_set_attr_ints(o.g, n, "kernel_shape", &cases[i].k, 1);
        graph_set_attr_ints(o.g, n, "strides", &cases[i].stride, 1);
        graph_set_attr_ints(o.g, n, "pads", (const int64_t[]){cases[i].pad, cases[i].pad}, 2);
        graph_set_attr_i(o.g, n, "ceil_mode", cases[i].ceil);
        assert_int_equal(one_infer(&o), cases[i].err);
        if (!cases[i].err)
            assert_int_equal(o.out.dims[2], cases[i].out);
    }
    struct one o = one_open();
    add_in(&o, DT_F32, INTS(1, 2, 5));
    one_node(&o, "AveragePool"); /* no kernel_shape */
    assert_int_equal(one_infer(&o), YK_INVAL);
}

static yk_err with_ints(const char *op, const int64_t *dims, int rank, const int64_t *v, int n)
{
    struct one o = one_open();
    add_in(&o, DT_F32, dims, rank);
    add_ints(&o, v, n);
    struct node *node = one_node(&o, op);
    if (strcmp(op, "Concat") == 0)
        graph_set_attr_i(o.g, node, "axis", 0);
    return one_infer(&o);
}

static void test_shape_inputs_bad(void **state)
{
    (void)state;
    assert_int_equal(with_ints("Reshape", INTS(2, 6), INTS(3, 4)), YK_OK);
    assert_int_equal(with_ints("Reshape", INTS(2, 6), INTS(-1, -1)), YK_INVAL);
    assert_int_equal(with_ints("Reshape", INTS(2, 6), INTS(-2, 6)), YK_INVAL);
    assert_int_equal(with_ints("Reshape", INTS(2, 6), INTS(5, -1)), YK_INVAL);
    assert_int_equal(with_ints("Reshape", INTS(2, 6), INTS(12, 1, 0)), YK_INVAL); /* copies an axis that is not there */
    assert_int_equal(with_ints("Reshape", INTS(2, 6), INTS((int64_t)1 << 40, (int64_t)1 << 40, 16)), YK_LIMIT);
    assert_int_equal(with_ints("Reshape", INTS(2, 6), INTS(1, 1, 1, 1, 1, 1, 1, 1, 12)), YK_LIMIT); /* nine axes */
    assert_int_equal(with_ints("Expand", INTS(2, 1), INTS(2, -1)), YK_INVAL);
    assert_int_equal(with_ints("Expand", INTS(2, 1), INTS(2, (int64_t)1 << 60)), YK_LIMIT);
    assert_int_equal(with_ints("Tile", INTS(2, 1), INTS(2, -1)), YK_INVAL);
    assert_int_equal(with_ints("Tile", INTS(2, 1), INTS(2)), YK_INVAL);
    assert_int_equal(with_ints("Tile", INTS(4, 4), INTS(INT64_MAX, 2)), YK_INVAL);
    assert_int_equal(with_ints("Unsqueeze", INTS(2, 1), INTS(0, 0)), YK_INVAL);
    assert_int_equal(with_ints("Unsqueeze", INTS(2, 1), INTS(4)), YK_INVAL);
    assert_int_equal(with_ints("Squeeze", INTS(2, 1), INTS(0)), YK_INVAL);
    assert_int_equal(with_ints("Squeeze", INTS(2, 1), INTS(1, -1)), YK_INVAL);
    assert_int_equal(with_ints("Pad", INTS(2, 1), INTS(0, 0, 0)), YK_INVAL);
    assert_int_equal(with_ints("Pad", INTS(2, 1), INTS(-3, 0, 0, 0)), YK_INVAL);
    assert_int_equal(with_ints("Pad", INTS(2, 1), INTS(INT64_MAX, 0, 1, 0)), YK_LIMIT);
    assert_int_equal(with_ints("Pad", INTS(3, 1), INTS(-1, 0, -1, 2)), YK_OK);
    assert_int_equal(with_ints("ReduceSum", INTS(2, 3), INTS(0, -2)), YK_INVAL);
    assert_int_equal(with_ints("ReduceSum", INTS(2, 3), INTS(2)), YK_INVAL);
    assert_int_equal(with_ints("ReduceSum", INTS(0, 3), INTS(0)), YK_OK); /* an empty sum is 0 */
    assert_int_equal(with_ints("Gather", INTS(4, 2), INTS(3, -4)), YK_OK);
    assert_int_equal(with_ints("Gather", INTS(4, 2), INTS(4)), YK_INVAL);
    assert_int_equal(with_ints("Gather", INTS(4, 2), INTS(-5)), YK_INVAL);
    assert_int_equal(with_ints("Gather", INTS(0, 2), INTS(0)), YK_INVAL);
    assert_int_equal(with_ints("Concat", INTS(4), INTS(4)), YK_INVAL); /* types differ */
    assert_int_equal(with_ints("Add", INTS(4), INTS(4, 4, 4, 4)), YK_INVAL);
    assert_int_equal(with_ints("CumSum", INTS(4), INTS(1)), YK_INVAL);
}

static void test_misc_bad(void **state)
{
    (void)state;
    struct one o = one_open(); /* a shape that is computed from data */
    add_in(&o, DT_F32, INTS(2, 6));
    add_in(&o, DT_I64, INTS(2));
    one_node(&o, "Reshape");
    assert_int_equal(one_infer(&o), YK_DEPENDS);

    o = one_open(); /* arity */
    add_in(&o, DT_F32, INTS(2, 6));
    one_node(&o, "Add");
    assert_int_equal(one_infer(&o), YK_INVAL);

    o = one_open(); /* a required input left out */
    o.in[o.n_in++] = YK_ABSENT;
    add_in(&o, DT_F32, INTS(2, 6));
    one_node(&o, "Add");
    assert_int_equal(one_infer(&o), YK_INVAL);

    o = one_open();
    add_in(&o, DT_F32, INTS(2, 0));
    one_node(&o, "ReduceMax"); /* nothing to take the largest of */
    assert_int_equal(one_infer(&o), YK_INVAL);

    o = one_open();
    add_in(&o, DT_F32, INTS(2, 3));
    graph_set_attr_ints(o.g, one_node(&o, "Transpose"), "perm", (const int64_t[]){0, 0}, 2);
    assert_int_equal(one_infer(&o), YK_INVAL);

    o = one_open();
    add_in(&o, DT_F32, INTS(2, 3));
    graph_set_attr_i(o.g, one_node(&o, "Cast"), "to", 8); /* strings */
    assert_int_equal(one_infer(&o), YK_UNSUPPORTED);

    o = one_open();
    add_in(&o, DT_F32, INTS(2, 3));
    graph_set_attr_f(o.g, one_node(&o, "Softmax"), "axis", 1); /* a number of the wrong kind */
    assert_int_equal(one_infer(&o), YK_INVAL);

    o = one_open();
    add_in(&o, DT_BOOL, INTS(2, 3));
    one_node(&o, "Relu");
    assert_int_equal(one_infer(&o), YK_INVAL);

    o = one_open(); /* nine axes from two legal inputs */
    add_in(&o, DT_F32, INTS(1, 1, 1, 1, 1));
    add_in(&o, DT_I64, INTS(1, 1, 1, 1, 1));
    one_node(&o, "Gather");
    assert_int_equal(one_infer(&o), YK_LIMIT);

    o = one_open(); /* each input fits, the product does not */
    add_in(&o, DT_F32, INTS((int64_t)1 << 40, 1));
    add_in(&o, DT_F32, INTS(1, (int64_t)1 << 40));
    one_node(&o, "MatMul");
    assert_int_equal(one_infer(&o), YK_LIMIT);
}

/* ---- hostile nodes: whatever a rule lets through is sane, and no input breaks a rule (sanitizers watch) ---- */

static int64_t hostile_int(struct yk_rng *r)
{
    static const int64_t odd[] = {0, 1, -1, 2, -2, 3, INT64_MAX, INT64_MIN, INT64_MAX - 1, (int64_t)1 << 31, INT32_MAX,
        (int64_t)1 << 56, (int64_t)1 << 62, -((int64_t)1 << 62)};
    return yk_rng_below(r, 3) ? (int64_t)yk_rng_below(r, 9) - 2 : odd[yk_rng_below(r, YK_COUNT(odd))];
}

static void hostile_attrs(struct yk_rng *r, struct graph *g, struct node *n)
{
    static const char *const names[] = {"axis", "axes", "group", "kernel_shape", "strides", "pads", "dilations",
        "ceil_mode", "keepdims", "perm", "to", "start", "end", "transA", "transB", "allowzero", "auto_pad", "mode",
        "activation", "fmod", "noop_with_empty_axes", "value_int", "value_ints", "size", "p", "shape", "dtype",
        "sample_size", "training_mode", "center_point_box", "sorted", "ngram_counts"};
    for (int i = (int)yk_rng_below(r, 5); i > 0; i--) {
        const char *name = names[yk_rng_below(r, YK_COUNT(names))];
        int64_t list[10];
        size_t count = yk_rng_below(r, 9);
        for (size_t k = 0; k < count; k++)
            list[k] = hostile_int(r);
        switch (yk_rng_below(r, 4)) {
        case 0:
            graph_set_attr_ints(g, n, name, list, count);
            break;
        case 1:
            graph_set_attr_s(g, n, name, yk_rng_below(r, 2) ? "SAME_UPPER" : "reflect");
            break;
        default:
            graph_set_attr_i(g, n, name, hostile_int(r));
        }
    }
}

static void test_hostile(void **state)
{
    (void)state;
    struct yk_rng r;
    struct op_ctx *c = calloc(1, sizeof *c);
    int accepted = 0;
    for (uint64_t seed = 1; seed <= 40000; seed++) {
        yk_rng_seed(&r, seed);
        const struct op *op = op_at((int)yk_rng_below(&r, (uint64_t)op_count()));
        struct graph *g = fx_open();
        struct shapes s;
        struct yk_diag why;
        int32_t in[8], out[4];
        int n_in = op->min_in + (int)yk_rng_below(&r, 3), n_out = op->min_out + (int)yk_rng_below(&r, 2);
        n_in = YK_MIN(n_in, 8);
        char name[16];
        for (int i = 0; i < n_in; i++) {
            snprintf(name, sizeof name, "i%d", i);
            int64_t v[8];
            int rank = (int)yk_rng_below(&r, 6);
            if (i > 0 && yk_rng_below(&r, 2)) {
                for (int k = 0; k < rank; k++)
                    v[k] = hostile_int(&r);
                in[i] = fx_ints(g, name, v, rank);
                continue;
            }
            for (int k = 0; k < rank; k++)
                v[k] = yk_rng_below(&r, 12) ? (int64_t)yk_rng_below(&r, 6) : (int64_t)1 << yk_rng_below(&r, 60);
            in[i] = fx_input(
                g, name, yk_rng_below(&r, 4) ? DT_F32 : (enum dtype)(1 + yk_rng_below(&r, DT_COUNT - 1)), v, rank);
            if (yk_rng_below(&r, 16) == 0)
                in[i] = YK_ABSENT;
        }
        for (int i = 0; i < n_out; i++) {
            snprintf(name, sizeof name, "o%d", i);
            out[i] = graph_add_value(g, name, VALUE_NODE, DT_NONE);
        }
        graph_add_node(g, "n", op, in, n_in, out, n_out);
        hostile_attrs(&r, g, fx_last(g));
        if (shapes_infer(g, NULL, NULL, &s, &why) == YK_OK) {
            accepted++;
            for (int i = 0; i < n_out; i++)
                assert_true(s.dynamic[0] || shape_bytes(&s.of[out[i]]) >= 0);
            shapes_node(g, &s, 0, c);
            assert_true(op_flops(c) >= 0 && op_bytes(c) >= 0);
            shapes_fini(&s);
        }
        graph_close(g);
    }
    free(c);
    assert_true(accepted > 2000);
}

static void test_flops(void **state)
{
    (void)state;
    struct graph *g = fx_open();
    struct shapes s;
    int32_t x = fx_input(g, "x", DT_F32, INTS(2, 4, 8, 8)), w = fx_weight(g, "w", INTS(6, 2, 3, 3));
    fx_node(g, "Conv", "y", IDS(x, w));
    graph_set_attr_i(g, fx_last(g), "group", 2);
    graph_set_attr_ints(g, fx_last(g), "pads", (const int64_t[]){1, 1, 1, 1}, 4);
    int32_t a = fx_input(g, "a", DT_F32, INTS(3, 5, 7)), b = fx_weight(g, "b", INTS(7, 11));
    fx_node(g, "MatMul", "m", IDS(a, b));
    fx_node(g, "Identity", "i", IDS(a));
    assert_int_equal(shapes_infer(g, NULL, NULL, &s, NULL), YK_OK);
    struct op_ctx *c = calloc(1, sizeof *c);
    shapes_node(g, &s, 0, c);
    assert_true(op_flops(c) == 2.0 * 2 * 6 * 8 * 8 * 2 * 3 * 3);
    assert_true(op_bytes(c) == 4.0 * (2 * 4 * 64 + 6 * 2 * 9 + 2 * 6 * 64));
    shapes_node(g, &s, 1, c);
    assert_true(op_flops(c) == 2.0 * 3 * 5 * 7 * 11);
    shapes_node(g, &s, 2, c);
    assert_true(op_flops(c) == 0 && op_bytes(c) == 0);
    free(c);
    shapes_fini(&s);
    graph_close(g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_golden), cmocka_unit_test(test_table),
        cmocka_unit_test(test_conv_bad), cmocka_unit_test(test_fused_conv), cmocka_unit_test(test_pool_bad),
        cmocka_unit_test(test_shape_inputs_bad), cmocka_unit_test(test_misc_bad), cmocka_unit_test(test_hostile),
        cmocka_unit_test(test_flops)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
