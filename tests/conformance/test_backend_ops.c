/* Every op of the table (op_at), every type that its rule takes, odd and empty sizes, broadcasting, special values:
 * each form of each backend against ref, with equal bits for other thread counts. An op without a template fails the
 * test. The reference itself is checked against its own way of running nodes whose shapes depend on data: there no
 * contents are known before. A failure prints its case; YOKE_CASE=N runs that one alone. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/exec.h"
#include "kernels/ref.h"
#include "tests/op_gen.h"

#define CASES 52 /* of a template: every type four times */
/* The node over its inputs; hidden: no contents are known before the run. */
static struct graph *make_graph(struct gen *c, const struct op *op, int n_out, bool hidden)
{
    struct graph *g = graph_open(0);
    int32_t ids[GEN_IN_MAX], outs[GEN_OUT_MAX];
    char name[16];
    g->inputs = yk_arena_alloc(g->arena, GEN_IN_MAX, sizeof *g->inputs);
    g->outputs = yk_arena_alloc(g->arena, GEN_OUT_MAX, sizeof *g->outputs);
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
    struct dyn_value *out[GEN_OUT_MAX];
    struct yk_diag why;
};

static void outcome_fini(struct outcome *o)
{
    for (int i = 0; i < GEN_OUT_MAX; i++)
        dyn_unref(o->out[i]);
}

/* form NULL: what the backends choose. */
static void run(struct gen *c, struct graph *g, struct backends *b, const char *form, struct outcome *o)
{
    int64_t none[1] = {1};
    const char *forms[1] = {form};
    struct exec_config config = {.graph = g, .forms = forms, .max_sizes = none, .backends = b};
    struct dyn_value *in[GEN_IN_MAX] = {NULL};
    struct exec *e = NULL;
    memset(o, 0, sizeof *o);
    o->err = exec_open(&config, &e, &o->why);
    for (int32_t i = 0; i < g->n_inputs && !o->err; i++)
        o->err = dyn_borrow(NULL, &c->in[atoi(g->values[g->inputs[i]].name + 1)], &in[i], &o->why);
    if (!o->err)
        o->err = exec_run_values(e, none, in, o->out, 11, &o->why);
    for (int i = 0; i < GEN_IN_MAX; i++)
        dyn_unref(in[i]);
    exec_close(e);
}

/* Winograd may be further away: NMSE 1e-10 against 1e-12. */
static double scale_of(const struct tensor *t, const char *form)
{
    double power = 0;
    int64_t n = strstr(form, "wino") ? tensor_count(t) : 0;
    for (int64_t i = 0; i < n; i++)
        power += isfinite(ref_d(t, i)) ? ref_d(t, i) * ref_d(t, i) : 0;
    return n ? 7 * sqrt(power / (double)n) : 0;
}

static bool same(
    const struct outcome *a, const struct outcome *b, const struct op *op, int n_out, const char *form, bool bits)
{
    if (a->err != b->err)
        return false;
    for (int i = 0; i < n_out && !a->err; i++)
        if (!gen_near(&a->out[i]->tensor, &b->out[i]->tensor, op, bits, scale_of(&b->out[i]->tensor, form)))
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
    for (int k = 0; k < GEN_OUT_MAX && !got->err && !want->err && got->out[k]; k++) {
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
static const char *const names[] = {"simd", "fake",
#ifndef YOKE_WITHOUT_BLAS
    "blas"
#endif
};

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
    c.star.rank = (int)gen_pick(&c, 0, 4);
    for (int k = 0; k < c.star.rank; k++)
        c.star.dims[k] = gen_size(&c, (char)((k % 2 ? 'A' : 'a') + 20 + k));
    for (int i = 0; i < GEN_IN_MAX && t->in[i]; i++)
        gen_input(&c, t->in[i]);
    c.g = make_graph(&c, op, t->n_out, false);
    gen_attrs(&c, &c.g->nodes[0], t->attrs);
    if (shapes_infer(c.g, NULL, NULL, &s, NULL))
        goto out;
    tally->accepted++;
    run(&c, c.g, &refs[0], NULL, &want);
    run(&c, c.g, &refs[1], NULL, &got);
    if (!same(&got, &want, op, t->n_out, "", true)) {
        describe(&c, op, "ref with other threads", number_of_case, &got, &want);
        tally->bad++;
    }
    outcome_fini(&got);
    /* the same, where nothing but shapes is known before */
    struct graph *hidden = make_graph(&c, op, t->n_out, true);
    hidden->nodes[0].attr = c.g->nodes[0].attr;
    hidden->nodes[0].n_attr = c.g->nodes[0].n_attr;
    run(&c, hidden, &refs[0], NULL, &got);
    if (!same(&got, &want, op, t->n_out, "", true)) {
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
            if (!same(&got, &want, op, t->n_out, forms[i].name, false)) {
                describe(&c, op, forms[i].name, number_of_case, &got, &want);
                tally->bad++;
            } else if (!same(&again, &got, op, t->n_out, "", true)) {
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

static void every_op(void **state)
{
    (void)state;
    const char *only = getenv("YOKE_CASE");
    struct tally all = {0, 0, 0};
    int missing = 0, ops = 0;
    for (int i = 0; i < op_count(); i++) {
        const struct op *op = op_at(i);
        struct tally mine = {0, 0, 0};
        if (op->flags & OP_CONTROL || op->flags & OP_VALUES)
            continue;
        const struct op_template *list[16];
        int n = gen_templates(op, list, 16);
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
