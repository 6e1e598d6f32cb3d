/* For tests of single ops, written as text: the rule with what it may know, then the ref kernel over outputs of just
 * the size that the rule gave.
 *
 * Tensors: "f32:2,3=1,2,3,4,5,6"; "i64:=7" is a scalar; without "=..." its contents are zeros that the rule does not
 * see; "?" at the end hides given contents from the rule. "-" is absent.
 * Attributes, apart by spaces: "axis=i:1 alpha=f:0.5 mode=s:TF axes=ints:0,2 weights=floats:1,2". */
#ifndef YK_TEST_ONE_OP_H
#define YK_TEST_ONE_OP_H

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "kernels/ref.h"
#include "tests/unit/graph_fixture.h"

#define ONE_MAX 12

struct one_op {
    struct graph *g;
    struct op_ctx *c;
    struct host_call *call;
    struct tensor in[ONE_MAX];
    int64_t content[ONE_MAX][OP_MAX_CONTENT];
    void *data[2 * ONE_MAX + 1]; /* to free */
    struct yk_diag why;
    yk_err rule, run;
};

static inline enum dtype one_dtype(const char *s, size_t n)
{
    static const struct {
        const char *name;
        enum dtype t;
    } names[] = {{"f32", DT_F32}, {"f64", DT_F64}, {"f16", DT_F16}, {"bf16", DT_BF16}, {"i8", DT_I8}, {"i16", DT_I16},
        {"i32", DT_I32}, {"i64", DT_I64}, {"u8", DT_U8}, {"u16", DT_U16}, {"u32", DT_U32}, {"u64", DT_U64},
        {"bool", DT_BOOL}};
    for (size_t i = 0; i < YK_COUNT(names); i++)
        if (strlen(names[i].name) == n && !strncmp(names[i].name, s, n))
            return names[i].t;
    fail_msg("no type in '%s'", s);
    return DT_NONE;
}

/* Parses a tensor into t, whose data is made. Returns whether contents are shown. */
static inline bool one_tensor(const char *text, struct tensor *t)
{
    const char *colon = strchr(text, ':'), *at;
    char *end;
    assert_non_null(colon);
    *t = (struct tensor){.shape = {.dtype = one_dtype(text, (size_t)(colon - text))}};
    for (at = colon + 1; *at && *at != '=' && *at != '?'; at = *end == ',' ? end + 1 : end) {
        t->shape.dims[t->shape.rank++] = strtoll(at, &end, 10);
        assert_true(end != at);
    }
    int64_t bytes = shape_bytes(&t->shape), n = shape_count(&t->shape);
    if (bytes < 0 || bytes > 1 << 20) /* only the rule sees such */
        return false;
    t->data = calloc(1, (size_t)bytes + (bytes == 0));
    if (*at != '=')
        return false;
    at++;
    for (int64_t i = 0; i < n; i++, at = *end == ',' ? end + 1 : end) {
        double d = strtod(at, &end);
        assert_true(end != at);
        if (dtype_is_float(t->shape.dtype)) {
            ref_store_d(t->data, t->shape.dtype, i, 1, &d, 1);
        } else {
            int64_t v = *at == '-' ? strtoll(at, &end, 10) : (int64_t)strtoull(at, &end, 10);
            ref_store_i(t->data, t->shape.dtype, i, 1, &v, 1);
        }
    }
    return *at != '?';
}

static inline void one_attrs(struct graph *g, struct node *n, const char *text)
{
    char copy[512], *save = NULL;
    snprintf(copy, sizeof copy, "%s", text);
    for (char *t = strtok_r(copy, " ", &save); t; t = strtok_r(NULL, " ", &save)) {
        char *kind = strchr(t, '='), *value = kind ? strchr(kind, ':') : NULL, *end;
        assert_true(kind && value);
        *kind++ = *value++ = 0;
        if (!strcmp(kind, "i")) {
            graph_set_attr_i(g, n, t, strtoll(value, NULL, 10));
        } else if (!strcmp(kind, "f")) {
            graph_set_attr_f(g, n, t, strtof(value, NULL));
        } else if (!strcmp(kind, "s")) {
            graph_set_attr_s(g, n, t, value);
        } else {
            int64_t ints[64];
            float *floats = yk_arena_alloc(g->arena, 64, sizeof *floats);
            size_t count = 0;
            for (char *at = value; *at && count < 64; at = *end == ',' ? end + 1 : end, count++) {
                ints[count] = strtoll(at, &end, 10);
                floats[count] = strtof(at, &end);
            }
            assert_int_equal(graph_set_attr_ints(g, n, t, ints, count), YK_OK);
            if (!strcmp(kind, "floats")) {
                struct attr *a = (struct attr *)(uintptr_t)node_attr(n, t);
                a->kind = ATTR_FLOATS;
                a->floats = floats;
            }
        }
    }
}

/* Rule, then kernel. in ends with NULL; op may have a domain in front ("ai.yoke.FusedGemm"). */
static inline struct one_op *one_run(
    const char *op, const char *const *in, const char *attrs, int n_out, uint64_t seed, struct pool *pool)
{
    struct one_op *o = yk_xalloc(sizeof *o);
    char name[16], domain[64] = "";
    const char *dot = strrchr(op, '.');
    int32_t ids[ONE_MAX], outs[OP_MAX_OUT];
    int n_in = 0;
    o->g = fx_open();
    o->c = yk_xalloc(sizeof *o->c);
    o->call = yk_xalloc(sizeof *o->call);
    if (dot)
        snprintf(domain, sizeof domain, "%.*s", (int)(dot - op), op);
    const struct op *row = op_find(domain, dot ? dot + 1 : op);
    assert_non_null(row);
    for (; in[n_in]; n_in++) {
        assert_true(n_in < ONE_MAX);
        snprintf(name, sizeof name, "i%d", n_in);
        ids[n_in] = YK_ABSENT;
        if (!strcmp(in[n_in], "-"))
            continue;
        struct tensor *t = &o->in[n_in];
        bool shown = one_tensor(in[n_in], t);
        o->data[n_in] = t->data;
        ids[n_in] = graph_add_value(o->g, name, VALUE_INPUT, t->shape.dtype);
        o->c->in[n_in] = &t->shape;
        if (!shown)
            continue;
        o->c->data[n_in] = t->data;
        int64_t n = shape_count(&t->shape);
        if (n > OP_MAX_CONTENT || dtype_is_float(t->shape.dtype))
            continue;
        for (int64_t i = 0; i < n; i++)
            o->content[n_in][i] = ref_i(t, i);
        o->c->content[n_in] = o->content[n_in];
    }
    for (int i = 0; i < n_out; i++) {
        snprintf(name, sizeof name, "o%d", i);
        outs[i] = graph_add_value(o->g, name, VALUE_NODE, DT_NONE);
    }
    graph_add_node(o->g, "n", row, ids, n_in, outs, n_out);
    one_attrs(o->g, fx_last(o->g), attrs ? attrs : "");

    struct op_ctx *c = o->c;
    c->graph = o->g;
    c->node = fx_last(o->g);
    c->n_in = n_in;
    c->n_out = n_out;
    c->why = &o->why;
    o->rule = op_infer(c);
    if (o->rule)
        return o;
    assert_true(op_flops(c) >= 0);
    struct host_call *call = o->call;
    *call = (struct host_call){.graph = o->g, .node = c->node, .n_in = n_in, .n_out = n_out, .pool = pool};
    call->seed = seed;
    call->why = &o->why;
    for (int i = 0; i < n_in; i++)
        call->in[i] = c->in[i] ? o->in[i] : (struct tensor){.shape = {.dtype = DT_NONE, .rank = -1}};
    for (int i = 0; i < n_out; i++) {
        int64_t count = shape_count(&c->out[i]) < 0 ? c->most[i] : shape_count(&c->out[i]);
        assert_true(count >= 0 && count < 1 << 20);
        size_t bytes = (size_t)count * dtype_bytes(c->out[i].dtype);
        call->out[i] = (struct tensor){c->out[i], malloc(bytes + (bytes == 0))};
        memset(call->out[i].data, 0xa5, bytes);
        o->data[ONE_MAX + i] = call->out[i].data;
    }
    const struct host_kernel *k = ref_kernel(c->node);
    struct backend_form form = {.packed_bytes = 0};
    assert_non_null(k);
    if (k->sizes)
        k->sizes(c, &form);
    call->workspace = o->data[2 * ONE_MAX] = malloc((size_t)form.workspace_bytes + (form.workspace_bytes == 0));
    o->run = k->run(call);
    return o;
}

static inline void one_close(struct one_op *o)
{
    for (size_t i = 0; i < YK_COUNT(o->data); i++)
        free(o->data[i]);
    free(o->call);
    free(o->c);
    graph_close(o->g);
    free(o);
}

/* Shape, type and elements of output i; floats within rel of the wanted ones. */
static inline bool one_equals(const struct one_op *o, int i, const char *text, double rel)
{
    const struct tensor *y = &o->call->out[i];
    struct tensor want;
    bool same = true;
    one_tensor(text, &want);
    same = shape_equal(&y->shape, &want.shape);
    for (int64_t k = 0; same && k < tensor_count(&want); k++) {
        if (!dtype_is_float(want.shape.dtype)) {
            same = ref_i(y, k) == ref_i(&want, k);
            continue;
        }
        double a = ref_d(y, k), b = ref_d(&want, k);
        same = isnan(a) || isnan(b) ? isnan(a) && isnan(b) : a == b || fabs(a - b) <= rel * fabs(b);
    }
    if (!same) {
        char s[128];
        shape_text(&y->shape, s, sizeof s);
        print_error("output %d is %s:", i, s);
        for (int64_t k = 0; k < tensor_count(y) && k < 40; k++)
            print_error(" %.9g", ref_d(y, k));
        print_error(", wants %s\n", text);
    }
    free(want.data);
    return same;
}

/* Lines of tables: what comes out, and what is refused. */
struct one_value {
    const char *op;
    const char *in[ONE_MAX];
    const char *attrs;
    const char *out[4];
};

struct one_refusal {
    const char *op;
    const char *in[ONE_MAX];
    const char *attrs;
    int n_out;
    yk_err err;  /* of the rule, or */
    bool at_run; /* of the kernel */
    const char *say;
};

static inline void one_values(const struct one_value *cases, size_t n, double rel)
{
    struct pool *pool;
    int failed = 0;
    assert_int_equal(pool_open(2, &pool, NULL), YK_OK);
    for (size_t i = 0; i < n; i++) {
        const struct one_value *t = &cases[i];
        int n_out = 0;
        while (n_out < 4 && t->out[n_out])
            n_out++;
        struct one_op *o = one_run(t->op, t->in, t->attrs, n_out, 1, pool);
        bool ok = !o->rule && !o->run;
        for (int k = 0; ok && k < n_out; k++)
            ok = one_equals(o, k, t->out[k], rel);
        if (!ok)
            print_error("case %zu, %s: %s\n", i, t->op, o->why.text);
        failed += !ok;
        one_close(o);
    }
    pool_close(pool);
    assert_int_equal(failed, 0);
}

static inline void one_refusals(const struct one_refusal *cases, size_t n)
{
    struct pool *pool;
    int failed = 0;
    assert_int_equal(pool_open(2, &pool, NULL), YK_OK);
    for (size_t i = 0; i < n; i++) {
        const struct one_refusal *t = &cases[i];
        struct one_op *o = one_run(t->op, t->in, t->attrs, t->n_out, 1, pool);
        bool ok = o->rule == (t->at_run ? YK_OK : t->err) && o->run == (t->at_run ? t->err : YK_OK) &&
                  strstr(o->why.text, t->say);
        if (!ok)
            print_error("case %zu, %s: rule %s, kernel %s: '%s' without '%s'\n", i, t->op, yk_err_name(o->rule),
                yk_err_name(o->run), o->why.text, t->say);
        failed += !ok;
        one_close(o);
    }
    pool_close(pool);
    assert_int_equal(failed, 0);
}

#endif
