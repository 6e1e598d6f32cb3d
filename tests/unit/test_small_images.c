/* Forms of the forward part of a training by the size of its images: those that round far are not listed for small
 * ones, but stay for who names them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "common/passes.h"
#include "kernels/fold.h"
#include "kernels/profile.h"
#include "kernels/simd_isa.h"
#include "kernels/train.h"
#include "scheduler/cli/networks.h"
#include "tests/graphs.h"

struct found {
    int forward, backward; /* nodes that have tiles of 4 or 2 */
    int listed[2];         /* of them, those that list tiles of 4 */
    int named;             /* forward nodes that have them by name */
    bool small;
};

static struct found look(int size, bool vary)
{
    struct networks_options n = {.classes = 5, .channels = 3, .height = size, .width = size, .seed = 4};
    struct found out = {0};
    struct grad_options o;
    struct grad_info info;
    struct graph *fwd, *g;
    struct pool *pool;
    struct backends b;
    struct shapes shapes;
    struct yk_diag why = {""};
    struct op_ctx *c = calloc(1, sizeof *c);
    int64_t sizes[8] = {3, 3, 3, 3, 3, 3, 3, 3};
    grad_options_init(&o);
    if (networks_make("resnet-small", &n, &fwd, &why) || passes_train(fwd, fold_eval, NULL, &why) ||
        grad_build(fwd, &o, &g, &info, &why) || pool_open(1, &pool, &why) || backends_open("simd", pool, &b, &why) ||
        shapes_infer(g, sizes, NULL, &shapes, &why))
        fail_msg("%s", why.text);
    out.small = graph_small_images(g);
    const char *isa = simd_isa_best()->bits;
    char name[2][BACKEND_FORM_MAX];
    for (int i = 0; i < 2; i++)
        snprintf(name[i], sizeof name[i], "conv.wino%d@%s", i ? 2 : 4, isa);
    for (int32_t i = 0; i < g->n_nodes; i++) {
        const struct op *op = g->nodes[i].op;
        bool forward = strcmp(op->name, "Conv") == 0, backward = strcmp(op->name, "ConvGradInput") == 0;
        struct backend_form forms[16], one;
        if (!forward && !backward)
            continue;
        shapes_node(g, &shapes, i, c);
        c->weights_vary = vary;
        int listed = backends_forms(&b, c, forms, (int)YK_COUNT(forms)), has[2] = {0};
        assert_true(listed > 0);
        for (int k = 0; k < listed; k++)
            for (int s = 0; s < 2; s++)
                has[s] += strcmp(forms[k].name, name[s]) == 0;
        if (!has[1])
            continue;
        out.forward += forward;
        out.backward += backward;
        out.listed[backward] += has[0];
        if (forward && backends_form_find(&b, c, name[0], &one)) {
            assert_string_equal(one.name, name[0]);
            out.named++;
        }
        assert_null(backends_form_find(&b, c, "conv.wino9@fma", &one));
    }
    shapes_fini(&shapes);
    backends_close(&b);
    pool_close(pool);
    graph_close(g);
    graph_close(fwd);
    free(c);
    return out;
}

static void small_images_list_what_rounds_little(void **state)
{
    (void)state;
    struct found f = look(32, true);
    print_message("%d convolutions forward, %d backward\n", f.forward, f.backward);
    assert_true(f.small && f.forward >= 9 && f.backward >= 9);
    assert_int_equal(f.listed[0], 0);
    assert_int_equal(f.named, f.forward);
    assert_int_equal(f.listed[1], f.backward); /* rounding there moves no ReLU */
    f = look(32, false);                       /* nothing is trained */
    assert_int_equal(f.listed[0], f.forward);
    f = look(33, true);
    assert_true(!f.small && f.forward >= 9);
    assert_int_equal(f.listed[0], f.forward);
}

static void what_small_images_are(void **state)
{
    (void)state;
    static const struct {
        int64_t dims[4];
        int rank;
        bool small;
    } cases[] = {{{8, 3, 32, 32}, 4, true}, {{8, 1, 28, 28}, 4, true}, {{1, 3, 16, 64}, 4, true},
        {{1, 3, 16, 65}, 4, false}, {{1, 3, 224, 224}, 4, false}, {{1, 3, INT64_MAX, INT64_MAX}, 4, false},
        {{8, 1024}, 2, false}, {{8, 4, 4}, 3, false}};
    for (size_t i = 0; i < YK_COUNT(cases); i++) {
        struct graph *g = graph_open(0);
        graphs_input(g, "x", DT_F32, cases[i].rank, cases[i].dims);
        graphs_input(g, "y", DT_I64, 1, cases[i].dims);
        assert_int_equal(graph_small_images(g), cases[i].small);
        if (cases[i].small) { /* one of several that is not */
            int64_t big[4] = {1, 3, 40, 40};
            graphs_input(g, "z", DT_F32, 4, big);
            assert_false(graph_small_images(g));
        }
        graph_close(g);
    }
    struct graph *none = graph_open(0);
    assert_false(graph_small_images(none));
    int64_t dims[4] = {1, 3, 8, 8};
    int32_t v = graphs_input(none, "x", DT_F32, 4, dims);
    assert_true(graph_small_images(none));
    none->values[v].dims[3] = (struct dim){.value = -1, .sym = graph_sym(none, "W")};
    assert_false(graph_small_images(none));
    graph_close(none);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(small_images_list_what_rounds_little), cmocka_unit_test(what_small_images_are)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
