/* Forms whose bits are promised to be equal on all processors with a fused multiply-add ("...@fma"): prints a line for
 * each, with a hash of what it gives for seeded inputs. tests/run.sh compares the lines of two processors. Here: each
 * form gives the same bits for every such instruction set of this one. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "kernels/simd.h"
#include "kernels/simd_isa.h"
#include "tests/graphs.h"

struct one {
    const char *domain, *op;
    int64_t x[4], w[4]; /* 0 ends; w: a weight */
    int64_t group, stride;
    const char *activation;
};

static const struct one cases[] = {
    {"", "Conv", {2, 20, 15, 13}, {24, 20, 3, 3}, 1, 1, NULL},
    {"", "Conv", {1, 33, 9, 9}, {40, 33, 3, 3}, 1, 2, NULL},
    {"", "Conv", {1, 40, 7, 7}, {50, 40, 1, 1}, 1, 1, NULL},
    {"", "Conv", {1, 24, 9, 9}, {24, 12, 3, 3}, 2, 1, NULL},
    {"", "Conv", {1, 37, 11, 9}, {37, 1, 3, 3}, 37, 2, NULL},
    {"", "Conv", {1, 48, 11, 9}, {48, 1, 5, 5}, 48, 1, NULL},
    {"ai.yoke", "FusedConv", {1, 24, 9, 9}, {32, 24, 3, 3}, 1, 1, "relu"},
    {"ai.yoke", "FusedConv", {1, 24, 9, 9}, {32, 24, 1, 1}, 1, 1, "silu"},
    {"ai.yoke", "FusedGemm", {13, 300, 0, 0}, {300, 70, 0, 0}, 0, 0, "gelu"},
    {"ai.yoke", "FusedGemm", {13, 30, 0, 0}, {30, 33, 0, 0}, 0, 0, "sigmoid"},
    {"", "MatMul", {3, 17, 40, 0}, {40, 29, 0, 0}, 0, 0, NULL},
    {"", "MatMul", {3, 17, 40, 0}, {0}, 0, 0, NULL},
    {"", "Softmax", {5, 7, 100, 0}, {0}, 0, 0, NULL},
    {"ai.yoke", "Attention", {2, 29, 96, 0}, {0}, 0, 0, NULL},
};

static int rank_of(const int64_t *dims)
{
    int n = 0;
    while (n < 4 && dims[n])
        n++;
    return n;
}

static struct graph *make(const struct one *o)
{
    struct graph *g = graph_open(0);
    struct yk_rng r;
    int32_t in[3];
    int n = 1;
    yk_rng_seed(&r, 5);
    in[0] = graphs_input(g, "x", DT_F32, rank_of(o->x), o->x);
    if (o->w[0])
        in[n++] = graphs_weight(g, "w", DT_F32, rank_of(o->w), o->w, &r);
    if (!strcmp(o->op, "MatMul") && !o->w[0]) {
        const int64_t turned[3] = {o->x[0], o->x[2], o->x[1]};
        in[n++] = graphs_input(g, "z", DT_F32, 3, turned);
    }
    while (!strcmp(o->op, "Attention") && n < 3)
        in[n++] = in[0];
    graphs_output(g, graphs_node(g, o->domain, o->op, "y", in, n));
    struct node *node = &g->nodes[0];
    if (o->group) {
        const int64_t stride[2] = {o->stride, o->stride}, pads[4] = {1, 1, 1, 1};
        graph_set_attr_i(g, node, "group", o->group);
        graph_set_attr_ints(g, node, "strides", stride, 2);
        if (o->w[2] > 1)
            graph_set_attr_ints(g, node, "pads", pads, 4);
    }
    if (o->activation)
        graph_set_attr_s(g, node, "activation", o->activation);
    if (!strcmp(o->op, "Attention")) {
        static const struct {
            const char *name;
            int64_t v;
        } attrs[] = {{"heads", 2}, {"size", 16}, {"v_size", 16}, {"k_at", 32}, {"v_at", 64}};
        for (size_t i = 0; i < YK_COUNT(attrs); i++)
            graph_set_attr_i(g, node, attrs[i].name, attrs[i].v);
    }
    return g;
}

static uint64_t hash_of(const struct one *o, struct backends *b, const char *form)
{
    struct graph *g = make(o);
    struct exec_config c = {.graph = g, .forms = &form, .backends = b};
    struct graphs_io io;
    struct yk_diag why = {""};
    struct exec *e;
    struct yk_rng r;
    uint64_t hash = 14695981039346656037u;
    yk_err err = exec_open(&c, &e, &why);
    if (err)
        print_error("%s: %s\n", form, why.text);
    assert_int_equal(err, YK_OK);
    assert_int_equal(graphs_io_init(&io, e, NULL, &why), YK_OK);
    yk_rng_seed(&r, 6);
    for (int32_t i = 0; i < io.n_in; i++)
        graphs_fill(io.in[i].data, &io.in[i].shape, &r, false);
    assert_int_equal(exec_run(e, NULL, io.in, io.out, 0, &why), YK_OK);
    for (int64_t i = 0; i < tensor_bytes(&io.out[0]); i++)
        hash = (hash ^ ((const uint8_t *)io.out[0].data)[i]) * 1099511628211u;
    graphs_io_fini(&io);
    exec_close(e);
    graph_close(g);
    return hash;
}

/* The forms of a case with these bits, in the static order. */
static int forms_of(const struct one *o, struct backends *b, struct backend_form *out, int max)
{
    struct graph *g = make(o);
    struct op_ctx *c = calloc(1, sizeof *c);
    struct shapes s;
    int n = 0;
    assert_int_equal(shapes_infer(g, NULL, NULL, &s, NULL), YK_OK);
    shapes_node(g, &s, 0, c);
    struct backend_form all[16];
    int found = backends_forms(b, c, all, 16);
    for (int i = 0; i < found && n < max; i++)
        if (strstr(all[i].name, "@fma"))
            out[n++] = all[i];
    shapes_fini(&s);
    free(c);
    graph_close(g);
    return n;
}

static void every_set_gives_the_same(void **state)
{
    (void)state;
    const struct simd_isa *isas[SIMD_ISAS_MAX];
    int n_isas = simd_isas(isas);
    uint64_t first[YK_COUNT(cases)][16];
    struct pool *pool;
    assert_int_equal(pool_open(2, &pool, NULL), YK_OK);
    for (int s = 0; s < n_isas; s++) {
        struct backends b;
        if (strcmp(isas[s]->bits, "fma") != 0)
            continue;
        simd_isa_use(isas[s]);
        assert_int_equal(backends_open("simd", pool, &b, NULL), YK_OK);
        for (size_t i = 0; i < YK_COUNT(cases); i++) {
            struct backend_form forms[16];
            int n = forms_of(&cases[i], &b, forms, 16);
            assert_true(n > 0);
            for (int k = 0; k < n; k++) {
                uint64_t hash = hash_of(&cases[i], &b, forms[k].name);
                if (s == 0) {
                    first[i][k] = hash;
                    print_message(
                        "bits %d %s %s %016llx\n", (int)i, cases[i].op, forms[k].name, (unsigned long long)hash);
                }
                if (hash != first[i][k])
                    print_error("%s in form %s: other bits on %s\n", cases[i].op, forms[k].name, isas[s]->name);
                assert_int_equal(hash, first[i][k]);
            }
        }
        backends_close(&b);
    }
    simd_isa_use(NULL);
    pool_close(pool);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_set_gives_the_same)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
