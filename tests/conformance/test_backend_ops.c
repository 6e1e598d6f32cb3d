/* Every op of the table (op_at), every type that its rule takes, odd and empty sizes, broadcasting, special values:
 * each form of each backend against ref, with equal bits for other thread counts. An op without a template fails the
 * test. The reference itself is checked against its own way of running nodes whose shapes depend on data: there no
 * contents are known before. A failure prints its case; YOKE_CASE=N runs that one alone. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/exec.h"
#include "kernels/ref.h"
#include "tests/conformance/op_templates.h"

#define CASES 52 /* of a template: every type four times */
#define IN_MAX 9

struct gen {
    struct yk_rng r;
    enum dtype t;
    bool special;      /* inputs hold NaN, infinities, extremes */
    bool plain;        /* but only the first: what padding gives with an infinite weight is left open */
    int64_t size[128]; /* by letter; -1: not drawn yet */
    struct shape star; /* "*" */
    struct graph *g;
    int n_in;
    struct tensor in[IN_MAX]; /* data NULL: absent */
    bool weight[IN_MAX];
};

static int64_t pick(struct gen *c, int64_t lo, int64_t hi)
{
    return lo + (int64_t)yk_rng_below(&c->r, (uint64_t)(hi - lo + 1));
}

static int64_t size_of(struct gen *c, char letter)
{
    static const int64_t small[] = {1, 2, 3, 4, 5, 7}, odd[] = {1, 3, 8, 13, 17, 33};
    int64_t *s = &c->size[(unsigned char)letter];
    if (*s < 0)
        *s = pick(c, 0, 24) == 0 ? 0 : letter >= 'a' && letter <= 'z' ? odd[pick(c, 0, 5)] : small[pick(c, 0, 5)];
    return *s;
}

/* A number, a letter or both in front of *at. */
static int64_t number(struct gen *c, const char **at)
{
    char *end;
    bool digits = (**at >= '0' && **at <= '9') || **at == '-';
    int64_t v = digits ? strtoll(*at, &end, 10) : 1;
    if (digits)
        *at = end;
    if ((**at >= 'A' && **at <= 'Z') || (**at >= 'a' && **at <= 'z'))
        v *= size_of(c, *(*at)++);
    return v;
}

static enum dtype type_of(struct gen *c, const char *name, size_t n)
{
    static const struct {
        const char *name;
        enum dtype t;
    } names[] = {{"f32", DT_F32}, {"u8", DT_U8}, {"i8", DT_I8}, {"i32", DT_I32}, {"i64", DT_I64}, {"bool", DT_BOOL}};
    if (n == 1 && *name == 'T')
        return c->t;
    if (n == 1 && *name == 'U')
        return pick(c, 0, 1) ? DT_I64 : DT_I32;
    if (n == 1 && *name == 'V')
        return (enum dtype)pick(c, DT_F32, DT_BOOL);
    for (size_t i = 0; i < YK_COUNT(names); i++)
        if (strlen(names[i].name) == n && !strncmp(name, names[i].name, n))
            return names[i].t;
    fail_msg("no type '%.*s'", (int)n, name);
    return DT_NONE;
}

static void fill(struct gen *c, struct tensor *t, const char *contents)
{
    static const double odd[] = {NAN, INFINITY, -INFINITY, 0.0, -0.0, 1e-40, 5e-8};
    static const int64_t extreme[] = {INT64_MAX, INT64_MIN, INT32_MAX, INT32_MIN, 255, 128, 127, -128, 0};
    bool floats = dtype_is_float(t->shape.dtype);
    const char *at = contents;
    int64_t bound = at && (*at == '<' || *at == '[') ? (at++, number(c, &at)) : 0;
    for (int64_t i = 0, n = tensor_count(t); i < n; i++) {
        double d = 4 * yk_rng_unit(&c->r) - 2;
        int64_t v = pick(c, -3, 3);
        if (!contents) {
            if (c->special && !(c->plain && c->n_in > 1) && pick(c, 0, 9) == 0) {
                d = odd[pick(c, 0, 6)];
                v = extreme[pick(c, 0, 8)];
            }
        } else if (*contents == '<' || *contents == '[') {
            v = bound > 0 ? pick(c, *contents == '<' ? -bound : 0, bound - 1) : 0;
        } else if (*contents == 'p') {
            d = 0.05 + yk_rng_unit(&c->r);
            v = pick(c, 1, 3);
        } else {
            char *end;
            d = strtod(at, &end);
            if (end == at || strchr("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz", *end) == NULL || !*end) {
                v = (int64_t)d;
                at = end == at ? at : end;
            }
            if (*at != ',' && *at)
                v = number(c, &at), d = (double)v;
            at += *at == ',';
        }
        if (floats)
            ref_store_d(t->data, t->shape.dtype, i, 1, &d, 1);
        else
            ref_store_i(t->data, t->shape.dtype, i, 1, &v, 1);
    }
}

/* One input of a template. */
static void make_input(struct gen *c, const char *text)
{
    struct tensor *t = &c->in[c->n_in];
    bool optional = *text == '?';
    text += optional;
    bool known = *text == '!';
    text += known;
    *t = (struct tensor){.shape = {.dtype = DT_NONE}};
    c->weight[c->n_in] = known || (c->n_in > 0 && pick(c, 0, 1));
    c->n_in++;
    if (*text == '-' || (optional && pick(c, 0, 1)))
        return;
    const char *at = strchr(text, ':');
    assert_non_null(at);
    t->shape.dtype = type_of(c, text, (size_t)(at - text));
    at++;
    if (*at == '*' || *at == '~') {
        int skip = *at == '~' ? (int)pick(c, 0, c->star.rank) : 0;
        for (int k = skip; k < c->star.rank; k++)
            t->shape.dims[t->shape.rank++] = *at == '~' && pick(c, 0, 2) == 0 ? 1 : c->star.dims[k];
        at++;
    }
    while (*at && *at != '=') {
        t->shape.dims[t->shape.rank++] = number(c, &at);
        at += *at == ',';
    }
    t->data = yk_try_aligned((size_t)shape_bytes(&t->shape) + 1);
    assert_non_null(t->data);
    fill(c, t, *at == '=' ? at + 1 : NULL);
}

static void make_attrs(struct gen *c, struct node *n, const char *text)
{
    char copy[512], *save = NULL;
    snprintf(copy, sizeof copy, "%s", text);
    for (char *a = strtok_r(copy, " ", &save); a; a = strtok_r(NULL, " ", &save)) {
        char *kind = strchr(a, '='), *value = kind ? strchr(kind, ':') : NULL, *way[16];
        int ways = 0;
        assert_true(kind && value);
        *kind++ = *value++ = 0;
        for (char *s = value; s && ways < 16; s = strchr(s, '/') ? strchr(s, '/') + 1 : NULL)
            way[ways++] = s;
        const char *at = way[pick(c, 0, ways - 1)];
        size_t length = strcspn(at, "/"), count = 0;
        char one[128];
        snprintf(one, sizeof one, "%.*s", (int)length, at);
        at = one;
        if (!strcmp(kind, "i")) {
            graph_set_attr_i(c->g, n, a, number(c, &at));
        } else if (!strcmp(kind, "f")) {
            graph_set_attr_f(c->g, n, a, strtof(one, NULL));
        } else if (!strcmp(kind, "s")) {
            graph_set_attr_s(c->g, n, a, one);
        } else {
            int64_t ints[32];
            float *floats = yk_arena_alloc(c->g->arena, 32, sizeof *floats);
            for (; *at; at += *at == ',', count++) {
                ints[count] = number(c, &at);
                floats[count] = (float)ints[count];
            }
            graph_set_attr_ints(c->g, n, a, ints, count);
            struct attr *made = (struct attr *)(uintptr_t)node_attr(n, a);
            if (!strcmp(kind, "floats")) {
                made->kind = ATTR_FLOATS;
                made->floats = floats;
            }
        }
    }
}

/* The node over its inputs; hidden: no contents are known before the run. */
static struct graph *make_graph(struct gen *c, const struct op *op, int n_out, bool hidden)
{
    struct graph *g = graph_open(0);
    int32_t ids[IN_MAX], outs[4];
    char name[16];
    g->inputs = yk_arena_alloc(g->arena, IN_MAX, sizeof *g->inputs);
    g->outputs = yk_arena_alloc(g->arena, 4, sizeof *g->outputs);
    for (int i = 0; i < c->n_in; i++) {
        const struct shape *s = &c->in[i].shape;
        snprintf(name, sizeof name, "i%d", i);
        ids[i] = YK_ABSENT;
        if (!c->in[i].data)
            continue;
        if (c->weight[i] && !hidden) {
            ids[i] = graph_add_weight(g, name, s, c->in[i].data);
            g->values[ids[i]].bytes = shape_bytes(s);
            g->values[ids[i]].aligned = true;
            continue;
        }
        ids[i] = graph_add_value(g, name, VALUE_INPUT, s->dtype);
        struct value *v = &g->values[ids[i]];
        v->rank = s->rank;
        v->dims = yk_arena_alloc(g->arena, (size_t)s->rank + 1, sizeof *v->dims);
        for (int k = 0; k < s->rank; k++)
            v->dims[k] = (struct dim){.value = s->dims[k], .sym = -1};
        g->inputs[g->n_inputs++] = ids[i];
    }
    for (int i = 0; i < n_out; i++) {
        snprintf(name, sizeof name, "o%d", i);
        outs[i] = graph_add_value(g, name, VALUE_NODE, DT_NONE);
        g->outputs[g->n_outputs++] = outs[i];
    }
    assert_true(graph_add_node(g, "n", op, ids, c->n_in, outs, n_out) >= 0);
    return g;
}

struct outcome {
    yk_err err;
    struct dyn_value *out[4];
    struct yk_diag why;
};

static void outcome_fini(struct outcome *o)
{
    for (int i = 0; i < 4; i++)
        dyn_unref(o->out[i]);
}

/* form NULL: what the backends choose. */
static void run(struct gen *c, struct graph *g, struct backends *b, const char *form, struct outcome *o)
{
    int64_t none[1] = {1};
    const char *forms[1] = {form};
    struct exec_config config = {.graph = g, .forms = forms, .max_sizes = none, .backends = b};
    struct dyn_value *in[IN_MAX] = {NULL};
    struct exec *e = NULL;
    memset(o, 0, sizeof *o);
    o->err = exec_open(&config, &e, &o->why);
    for (int32_t i = 0; i < g->n_inputs && !o->err; i++)
        o->err = dyn_borrow(NULL, &c->in[atoi(g->values[g->inputs[i]].name + 1)], &in[i], &o->why);
    if (!o->err)
        o->err = exec_run_values(e, none, in, o->out, 11, &o->why);
    for (int i = 0; i < IN_MAX; i++)
        dyn_unref(in[i]);
    exec_close(e);
}

/* Types and shapes equal; integers and what only moves exact; floats near, NaN and infinities in the same places. */
static bool near_enough(const struct tensor *a, const struct tensor *b, const struct op *op, bool bits)
{
    if (!shape_equal(&a->shape, &b->shape))
        return false;
    if (bits || !dtype_is_float(a->shape.dtype) || op->flags & OP_SHAPE)
        return memcmp(a->data, b->data, (size_t)tensor_bytes(a)) == 0;
    enum dtype t = a->shape.dtype;
    double ulp = t == DT_F64 ? 1e-12 : t == DT_F32 ? 4e-7 : t == DT_F16 ? 2e-3 : 2e-2, diff = 0, power = 0;
    int64_t n = tensor_count(a);
    for (int64_t i = 0; i < n; i++) {
        double x = ref_d(a, i), y = ref_d(b, i);
        if (isnan(x) || isnan(y) || isinf(x) || isinf(y)) {
            if (!(isnan(x) && isnan(y)) && x != y)
                return false;
            continue;
        }
        if (op->flags & OP_ELEMENTWISE && fabs(x - y) > ulp * fabs(y) + ulp / 2)
            return false;
        diff += (x - y) * (x - y);
        power += y * y;
    }
    return diff <= ulp * ulp * 10 * (power + 1e-2 * (double)YK_MAX(n, 1));
}

static bool same(const struct outcome *a, const struct outcome *b, const struct op *op, int n_out, bool bits)
{
    if (a->err != b->err)
        return false;
    for (int i = 0; i < n_out && !a->err; i++)
        if (!near_enough(&a->out[i]->tensor, &b->out[i]->tensor, op, bits))
            return false;
    return true;
}

static void describe(struct gen *c, const struct op *op, const char *what, int number_of_case,
    const struct outcome *got, const struct outcome *want)
{
    char text[128];
    print_error("%s, %s, YOKE_CASE=%d: %s %s, wants %s %s\n", op->name, what, number_of_case, yk_err_name(got->err),
        got->why.text, yk_err_name(want->err), want->why.text);
    for (int i = 0; i < c->n_in; i++) {
        if (!c->in[i].data)
            continue;
        shape_text(&c->in[i].shape, text, sizeof text);
        print_error("  in %d: %s%s\n", i, text, c->weight[i] ? ", weight" : "");
    }
    for (int k = 0; k < 4 && !got->err && !want->err && got->out[k]; k++) {
        const struct tensor *x = &got->out[k]->tensor, *y = &want->out[k]->tensor;
        shape_text(&x->shape, text, sizeof text);
        print_error("  out %d: %s\n", k, text);
        for (int64_t i = 0, shown = 0; shape_equal(&x->shape, &y->shape) && i < tensor_count(x) && shown < 4; i++)
            if (ref_d(x, i) != ref_d(y, i) && !(isnan(ref_d(x, i)) && isnan(ref_d(y, i)))) {
                print_error("    [%lld] %.9g, wants %.9g\n", (long long)i, ref_d(x, i), ref_d(y, i));
                shown++;
            }
    }
}

/* ---- one case ---- */

static struct pool *pools[2]; /* of 1 and of 3 threads */
static struct backends refs[2], tested[8][2];
static const char *const names[] = {"simd", "blas", "fake"};

struct tally {
    int accepted, forms, bad;
};

static void check_case(const struct op *op, const struct op_template *t, int number_of_case, struct tally *tally)
{
    struct gen c = {
        .t = (enum dtype)(DT_F32 + number_of_case % (DT_COUNT - DT_F32)), .special = number_of_case % 4 == 3};
    struct outcome want, got;
    struct shapes s;
    c.plain = op->flags & OP_CONTRACTION;
    yk_rng_seed(&c.r, (uint64_t)number_of_case);
    memset(c.size, -1, sizeof c.size);
    c.star.rank = (int)pick(&c, 0, 4);
    for (int k = 0; k < c.star.rank; k++)
        c.star.dims[k] = size_of(&c, (char)((k % 2 ? 'A' : 'a') + 20 + k));
    for (int i = 0; i < IN_MAX && t->in[i]; i++)
        make_input(&c, t->in[i]);
    c.g = make_graph(&c, op, t->n_out, false);
    make_attrs(&c, &c.g->nodes[0], t->attrs);
    if (shapes_infer(c.g, NULL, NULL, &s, NULL))
        goto out;
    tally->accepted++;
    run(&c, c.g, &refs[0], NULL, &want);
    run(&c, c.g, &refs[1], NULL, &got);
    if (!same(&got, &want, op, t->n_out, true)) {
        describe(&c, op, "ref with other threads", number_of_case, &got, &want);
        tally->bad++;
    }
    outcome_fini(&got);
    /* the same, where nothing but shapes is known before */
    struct graph *hidden = make_graph(&c, op, t->n_out, true);
    hidden->nodes[0].attr = c.g->nodes[0].attr;
    hidden->nodes[0].n_attr = c.g->nodes[0].n_attr;
    run(&c, hidden, &refs[0], NULL, &got);
    if (!same(&got, &want, op, t->n_out, true)) {
        describe(&c, op, "ref by actual inputs", number_of_case, &got, &want);
        tally->bad++;
    }
    outcome_fini(&got);
    graph_close(hidden);
    struct op_ctx *ctx = calloc(1, sizeof *ctx);
    shapes_node(c.g, &s, 0, ctx);
    for (size_t k = 0; k < YK_COUNT(names); k++) {
        struct backend_form forms[8];
        struct backend *b = tested[k][0].n ? tested[k][0].at[0] : NULL;
        int n = b && !s.dynamic[0] ? b->ops->forms(b, ctx, forms, 8) : 0;
        for (int i = 0; i < n; i++) {
            struct outcome again;
            tally->forms++;
            run(&c, c.g, &tested[k][0], forms[i].name, &got);
            run(&c, c.g, &tested[k][1], forms[i].name, &again);
            if (!same(&got, &want, op, t->n_out, false)) {
                describe(&c, op, forms[i].name, number_of_case, &got, &want);
                tally->bad++;
            } else if (!same(&again, &got, op, t->n_out, true)) {
                describe(&c, op, "other threads", number_of_case, &again, &got);
                tally->bad++;
            }
            outcome_fini(&got);
            outcome_fini(&again);
        }
    }
    free(ctx);
    shapes_fini(&s);
    outcome_fini(&want);
out:
    graph_close(c.g);
    for (int i = 0; i < c.n_in; i++)
        free(c.in[i].data);
}

static bool template_is_of(const struct op_template *t, const struct op *op)
{
    const char *dot = strrchr(t->op, '.');
    size_t n = dot ? (size_t)(dot - t->op) : 0;
    return !strcmp(dot ? dot + 1 : t->op, op->name) && strlen(op->domain) == n && !strncmp(op->domain, t->op, n);
}

static void every_op(void **state)
{
    (void)state;
    static const struct op_template usual[] = {
        {"one input", 1, {"T:*"}, ""},
        {"two inputs", 1, {"T:*", "T:~"}, ""},
        {"any inputs", 1, {"T:~", "T:*", "T:~"}, ""},
        {"reduction", 1, {"T:*"}, "keepdims=i:0/1"},
        {"reduction", 1, {"T:A,b,c"}, "keepdims=i:0/1 axes=ints:1/0,2/-1"},
    };
    const char *only = getenv("YOKE_CASE");
    struct tally all = {0, 0, 0};
    int missing = 0, ops = 0;
    for (int i = 0; i < op_count(); i++) {
        const struct op *op = op_at(i);
        struct tally mine = {0, 0, 0};
        if (op->flags & OP_CONTROL || op->flags & OP_VALUES)
            continue;
        const struct op_template *list[16];
        int n = 0;
        for (size_t k = 0; k < YK_COUNT(op_templates) && n < 16; k++)
            if (template_is_of(&op_templates[k], op))
                list[n++] = &op_templates[k];
        if (!n && op->flags & OP_ELEMENTWISE)
            list[n++] = &usual[YK_MIN(op->max_in, 3) - 1];
        if (!n && !strncmp(op->name, "Reduce", 6)) {
            list[n++] = &usual[3];
            list[n++] = &usual[4];
        }
        for (int k = 0; k < n; k++)
            for (int j = 0; j < CASES; j++) {
                int number_of_case = (i * 16 + k) * CASES + j;
                if (!only || atoi(only) == number_of_case)
                    check_case(op, list[k], number_of_case, &mine);
            }
        if (!only && mine.accepted < (op->min_in ? 3 : 1)) {
            print_error("%s: %d templates, %d cases that its rule takes: give it one in op_templates.h\n", op->name, n,
                mine.accepted);
            missing++;
        }
        ops++;
        all.accepted += mine.accepted;
        all.forms += mine.forms;
        all.bad += mine.bad;
    }
    print_message("%d ops, %d cases, %d of them also in a form of another backend; %d wrong\n", ops, all.accepted,
        all.forms, all.bad);
    assert_int_equal(all.bad, 0);
    assert_int_equal(missing, 0);
    assert_true(only || (all.accepted > 3000 && all.forms > 300));
}

static int setup(void **state)
{
    (void)state;
    for (int t = 0; t < 2; t++) {
        if (pool_open(t ? 3 : 1, &pools[t], NULL) || backends_open("ref", pools[t], &refs[t], NULL))
            return 1;
        for (size_t k = 0; k < YK_COUNT(names); k++)
            if (backends_open(names[k], pools[t], &tested[k][t], NULL))
                return 1;
    }
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    for (int t = 0; t < 2; t++) {
        backends_close(&refs[t]);
        for (size_t k = 0; k < YK_COUNT(names); k++)
            backends_close(&tested[k][t]);
        pool_close(pools[t]);
    }
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_op)};
    return cmocka_run_group_tests(tests, setup, teardown);
}
