/* The fast forms of convolutions and their gradients on shapes that take every way through them: against the reference,
 * per contraction NMSE <= 1e-12, 1e-10 with Winograd; the same bits whatever the threads, whether weights are packed
 * before or by the run, at any layout of the operands; and workspaces that suffice for every smaller batch. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/graphs.h"

struct conv_case {
    int64_t n, c, h, w, oc, kh, kw, stride, pad, dilation, group;
};

static const struct conv_case cases[] = {
    {2, 16, 9, 11, 24, 3, 3, 1, 1, 1, 1}, {1, 8, 5, 5, 8, 3, 3, 1, 0, 1, 1}, {1, 40, 7, 6, 50, 3, 3, 1, 2, 1, 1},
    {9, 24, 13, 13, 33, 3, 3, 1, 1, 1, 1}, {40, 8, 12, 12, 16, 3, 3, 1, 1, 1, 1}, /* many blocks of tiles */
    {3, 64, 2, 2, 64, 3, 3, 1, 1, 1, 1}, {5, 64, 1, 1, 32, 3, 3, 1, 1, 1, 1},
    {1, 9, 6, 6, 17, 3, 3, 1, 3, 1, 1}, /* padding beyond the kernel's reach */
    {2, 3, 17, 18, 16, 7, 7, 2, 3, 1, 1}, {2, 24, 10, 9, 40, 3, 3, 2, 1, 1, 1}, {2, 20, 9, 9, 33, 1, 1, 2, 0, 1, 1},
    {2, 36, 9, 9, 33, 1, 1, 1, 0, 1, 1}, {3, 5, 11, 12, 7, 5, 3, 3, 2, 1, 1}, {1, 6, 12, 12, 9, 3, 2, 1, 2, 2, 1},
    {1, 6, 12, 12, 9, 3, 3, 2, 2, 3, 1}, {2, 32, 8, 8, 48, 3, 3, 1, 1, 1, 4}, {2, 12, 9, 9, 6, 3, 3, 2, 1, 1, 3},
    {2, 70, 9, 8, 70, 3, 3, 1, 1, 1, 70}, {2, 19, 9, 8, 19, 5, 5, 2, 2, 1, 19}, {2, 4, 9, 8, 8, 3, 3, 1, 1, 1, 4},
    {64, 1, 14, 14, 16, 5, 5, 1, 2, 1, 1}, /* parts of the pixels */
    {1, 520, 5, 5, 176, 3, 3, 1, 1, 1, 1}, /* weights that are transformed on the fly */
    {2, 176, 3, 3, 168, 3, 3, 1, 1, 1, 1}, /* and because there are few tiles */
};
static const struct conv_case large[] = {{1, 176, 30, 30, 168, 3, 3, 1, 1, 1, 1}}; /* few tiles up to a batch of 2 */

/* A ring: X -> Relu -> conv or gradient -> Relu, so that a segment may store the operands as it likes; inner: without
 * the Relus. op: 0 Conv, 1 ConvGradInput, 2 ConvGradWeight. */
static struct graph *make(const struct conv_case *k, int op, bool inner, struct yk_rng *r)
{
    static const char *const names[] = {"Conv", "ConvGradInput", "ConvGradWeight"};
    struct graph *g = graph_open(0);
    int64_t reach_h = (k->kh - 1) * k->dilation + 1, reach_w = (k->kw - 1) * k->dilation + 1;
    int64_t oh = (k->h + 2 * k->pad - reach_h) / k->stride + 1, ow = (k->w + 2 * k->pad - reach_w) / k->stride + 1;
    int64_t x[4] = {k->n, k->c, k->h, k->w}, y[4] = {k->n, k->oc, oh, ow};
    int64_t w[4] = {k->oc, k->c / k->group, k->kh, k->kw};
    int32_t in[3] = {graphs_input(g, "a", DT_F32, 4, op == 1 ? y : x), 0, 0};
    if (inner)
        in[0] = graphs_node(g, "", "Relu", "ra", in, 1);
    if (op == 2) {
        in[1] = graphs_input(g, "b", DT_F32, 4, y);
        if (inner)
            in[1] = graphs_node(g, "", "Relu", "rb", &in[1], 1);
    } else {
        in[1] = graphs_weight(g, "w", DT_F32, 4, w, r);
        in[2] = graphs_ints(g, "shape", x, 4);
    }
    int32_t out = graphs_node(g, op ? "ai.yoke" : "", names[op], "y", in, op == 1 ? 3 : 2);
    struct node *n = &g->nodes[g->n_nodes - 1];
    graph_set_attr_ints(g, n, "pads", (int64_t[]){k->pad, k->pad, k->pad, k->pad}, 4);
    graph_set_attr_ints(g, n, "strides", (int64_t[]){k->stride, k->stride}, 2);
    graph_set_attr_ints(g, n, "dilations", (int64_t[]){k->dilation, k->dilation}, 2);
    graph_set_attr_ints(g, n, "kernel_shape", w + 2, 2);
    graph_set_attr_i(g, n, "group", k->group);
    if (inner)
        out = graphs_node(g, "", "Relu", "ry", &out, 1);
    graphs_output(g, out);
    return g;
}

static int32_t node_of(const struct graph *g)
{
    for (int32_t i = 0; i < g->n_nodes; i++)
        if (strcmp(g->nodes[i].op->name, "Relu") != 0)
            return i;
    return -1;
}

static struct pool *pools[3];
static struct backends refs, all[3]; /* all: of 1, 2 and 3 threads */

/* The output; freed by the caller. */
static void run(struct graph *g, struct backends *b, const char *form, bool vary, struct tensor *y)
{
    struct yk_diag why = {""};
    struct exec *e;
    struct graphs_io io;
    struct yk_rng r;
    const char **forms = yk_xalloc((size_t)g->n_nodes * sizeof(*forms));
    void **variable = yk_xalloc((size_t)g->n_values * sizeof(*variable));
    for (int32_t v = 0; v < g->n_values; v++)
        if (g->values[v].kind == VALUE_WEIGHT && g->values[v].dtype == DT_F32)
            variable[v] = (void *)(uintptr_t)g->values[v].data;
    forms[node_of(g)] = form;
    struct exec_config c = {.graph = g, .forms = forms, .backends = b, .variable = vary ? variable : NULL};
    yk_err err = exec_open(&c, &e, &why);
    if (err)
        print_error("%s: %s\n", form, why.text);
    assert_int_equal(err, YK_OK);
    assert_int_equal(graphs_io_init(&io, e, NULL, &why), YK_OK);
    yk_rng_seed(&r, 5);
    for (int32_t i = 0; i < io.n_in; i++)
        graphs_fill(io.in[i].data, &io.in[i].shape, &r, false);
    assert_int_equal(exec_run(e, NULL, io.in, io.out, 0, &why), YK_OK);
    *y = io.out[0];
    io.out[0].data = NULL;
    graphs_io_fini(&io);
    exec_close(e);
    free(forms);
    free(variable);
}

static double nmse(const struct tensor *a, const struct tensor *b)
{
    double diff = 0, power = 0;
    for (int64_t i = 0, n = tensor_count(a); i < n; i++) {
        double x = (double)((float *)a->data)[i], y = (double)((float *)b->data)[i];
        diff += (x - y) * (x - y);
        power += y * y;
    }
    return diff / (power > 0 ? power : 1);
}

static bool equal(const struct tensor *a, const struct tensor *b)
{
    return memcmp(a->data, b->data, (size_t)tensor_bytes(a)) == 0;
}

/* Returns how many forms there were. */
static int check(const struct conv_case *k, int op, struct yk_rng *r)
{
    struct graph *g = make(k, op, false, r);
    struct graph *inner = make(k, op, true, r);
    struct shapes s;
    struct op_ctx *c = yk_xalloc(sizeof(*c));
    struct backend_form forms[8];
    struct tensor want, want_inner, got, again;
    assert_int_equal(shapes_infer(g, NULL, NULL, &s, NULL), YK_OK);
    shapes_node(g, &s, 0, c);
    int n = backends_forms(&all[0], c, forms, 8), bad = 0, fixed = n;
    struct backend_form more[8];
    c->weights_vary = true;
    for (int i = 0, m = backends_forms(&all[0], c, more, 8); i < m; i++) { /* those for weights that vary only */
        int at = 0;
        while (at < fixed && strcmp(forms[at].name, more[i].name) != 0)
            at++;
        if (at == fixed && n < 8)
            forms[n++] = more[i];
    }
    run(g, &refs, NULL, false, &want);
    run(inner, &refs, NULL, false, &want_inner);
    for (int i = 0; i < n; i++) {
        const char *form = forms[i].name;
        double bound = strstr(form, "wino") ? 1e-10 : 1e-12;
        run(g, &all[0], form, i >= fixed, &got);
        double far = nmse(&got, &want);
        if (!(far <= bound)) {
            print_error("%s: NMSE %g\n", form, far);
            bad++;
        }
        for (int t = 0; t < 3; t++) {
            run(g, &all[t], form, true, &again);
            if (!equal(&again, &got)) {
                print_error("%s: other bits with %d threads and weights that vary\n", form, t + 1);
                bad++;
            }
            free(again.data);
        }
        free(got.data);
        run(inner, &all[1], form, true, &got);
        far = nmse(&got, &want_inner);
        if (!(far <= bound)) {
            print_error("%s inside a segment: NMSE %g\n", form, far);
            bad++;
        }
        free(got.data);
    }
    if (bad)
        print_error("op %d of %lldx%lldx%lldx%lld -> %lld, kernel %lldx%lld, stride %lld, pad %lld, group %lld\n", op,
            (long long)k->n, (long long)k->c, (long long)k->h, (long long)k->w, (long long)k->oc, (long long)k->kh,
            (long long)k->kw, (long long)k->stride, (long long)k->pad, (long long)k->group);
    assert_int_equal(bad, 0);
    free(want.data);
    free(want_inner.data);
    free(c);
    shapes_fini(&s);
    graph_close(g);
    graph_close(inner);
    return n;
}

static void test_forms(void **state)
{
    (void)state;
    struct yk_rng r;
    int forms = 0;
    yk_rng_seed(&r, 1);
    for (size_t i = 0; i < YK_COUNT(cases); i++)
        for (int op = 0; op < 3; op++)
            forms += check(&cases[i], op, &r);
    print_message("%d forms\n", forms);
    assert_true(forms > 120);
}

/* Those that are listed for this use, and those that only who names them gets. */
static int forms_of(struct op_ctx *c, bool vary, struct backend_form forms[8])
{
    struct backend_form fixed[8];
    c->weights_vary = false;
    int n_fixed = backends_forms(&all[0], c, fixed, 8);
    c->weights_vary = vary;
    int n = backends_forms(&all[0], c, forms, 8), listed = n;
    for (int i = 0; i < n_fixed && n < 8; i++) {
        int at = 0;
        while (at < listed && strcmp(forms[at].name, fixed[i].name) != 0)
            at++;
        n += at == listed && backends_form_find(&all[0], c, fixed[i].name, &forms[n]) != NULL;
    }
    return n;
}

/* A stage is loaded for its largest batch: what a form asks for there is enough for every smaller one. */
static void check_workspaces(struct conv_case k, int op, bool vary)
{
    struct op_ctx *c = yk_xalloc(sizeof(*c));
    struct backend_form before[8], forms[8];
    struct yk_rng r;
    int n_before = 0;
    yk_rng_seed(&r, 1);
    for (k.n = 1; k.n < (k.c > 100 ? 4 : 70); k.n++) {
        struct shapes s;
        struct graph *g = make(&k, op, false, &r);
        assert_int_equal(shapes_infer(g, NULL, NULL, &s, NULL), YK_OK);
        shapes_node(g, &s, 0, c);
        int count = forms_of(c, vary, forms);
        for (int a = 0; a < count; a++)
            for (int b = 0; b < n_before; b++)
                if (!strcmp(forms[a].name, before[b].name) && forms[a].workspace_bytes + forms[a].packed_bytes <
                                                                  before[b].workspace_bytes + before[b].packed_bytes) {
                    print_error("%lld channels of %lldx%lld, op %d, %s: %lld bytes for a batch of %lld, %lld for one "
                                "less\n",
                        (long long)k.c, (long long)k.h, (long long)k.w, op, forms[a].name,
                        (long long)forms[a].workspace_bytes, (long long)k.n, (long long)before[b].workspace_bytes);
                    assert_true(false);
                }
        memcpy(before, forms, sizeof(before));
        n_before = count;
        shapes_fini(&s);
        graph_close(g);
    }
    free(c);
}

static void test_workspaces(void **state)
{
    (void)state;
    for (int op = 0; op < 3; op++)
        for (int vary = 0; vary < 2; vary++) {
            for (size_t i = 0; i < YK_COUNT(cases); i++)
                check_workspaces(cases[i], op, vary);
            for (size_t i = 0; i < YK_COUNT(large); i++)
                check_workspaces(large[i], op, vary);
        }
}

static int setup(void **state)
{
    (void)state;
    for (int t = 0; t < 3; t++)
        if (pool_open(t + 1, &pools[t], NULL) || backends_open("auto", pools[t], &all[t], NULL))
            return 1;
    return backends_open("ref", pools[0], &refs, NULL) != YK_OK;
}

static int teardown(void **state)
{
    (void)state;
    backends_close(&refs);
    for (int t = 0; t < 3; t++) {
        backends_close(&all[t]);
        pool_close(pools[t]);
    }
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_forms), cmocka_unit_test(test_workspaces)};
    return cmocka_run_group_tests(tests, setup, teardown);
}
