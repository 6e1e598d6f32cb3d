/* Profiles of graphs whose weights change: forms do in each run what they do in training, and take the memory that a
 * training plans for them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "common/passes.h"
#include "kernels/fold.h"
#include "kernels/profile.h"
#include "kernels/train.h"
#include "scheduler/cli/networks.h"
#include "tests/graphs.h"

struct seen {
    const struct graph *g;
    const struct shapes *shapes;
    struct backends *b;
    bool training;
    int entries;
    int64_t packed, workspace; /* all together */
};

/* Memory is what the backend says of the node for this use. */
static void on_entry(void *arg, const struct profile_entry *e)
{
    struct seen *s = arg;
    struct op_ctx *c = calloc(1, sizeof *c);
    struct backend_form form;
    shapes_node(s->g, s->shapes, e->node, c);
    c->weights_vary = s->training;
    struct backend *b = backends_form_find(s->b, c, e->form, &form);
    assert_non_null(b);
    assert_int_equal(e->workspace_bytes, form.workspace_bytes);
    assert_int_equal(e->packed_bytes, form.packed_bytes);
    assert_true(e->ms >= 0);
    s->entries++;
    s->packed += e->packed_bytes;
    s->workspace += e->workspace_bytes;
    free(c);
}

static void training_packs_in_each_run(void **state)
{
    (void)state;
    struct networks_options n = {.classes = 5, .channels = 8, .height = 12, .width = 12, .seed = 4};
    struct grad_options o;
    struct grad_info info;
    struct graph *fwd, *g;
    struct pool *pool;
    struct backends b;
    struct shapes shapes;
    struct seen seen[2];
    struct yk_diag why = {""};
    int64_t sizes[8] = {3, 3, 3, 3, 3, 3, 3, 3};
    grad_options_init(&o);
    if (networks_make("resnet-small", &n, &fwd, &why) || passes_train(fwd, fold_eval, NULL, &why) ||
        grad_build(fwd, &o, &g, &info, &why) || pool_open(1, &pool, &why) || backends_open("simd", pool, &b, &why) ||
        shapes_infer(g, sizes, NULL, &shapes, &why))
        fail_msg("%s", why.text);
    for (int training = 0; training < 2; training++) {
        seen[training] = (struct seen){.g = g, .shapes = &shapes, .b = &b, .training = training};
        if (profile_graph(g, &b, sizes, 1, sizes, training, 0, 0, NULL, on_entry, &seen[training], &why))
            fail_msg("%s", why.text);
        assert_true(seen[training].entries >= g->n_nodes);
    }
    assert_true(seen[0].packed > 0);
    assert_true(seen[1].packed < seen[0].packed);
    assert_true(seen[1].workspace > seen[0].workspace);
    /* What the trainer runs is what was timed. */
    struct trainer *t;
    struct trainer_config c = {
        .graph = g, .info = &info, .max_sizes = sizes, .backends = &b, .pool = pool, .optim = optim_default(OPTIM_SGD)};
    if (trainer_open(&c, &t, &why))
        fail_msg("%s", why.text);
    for (int32_t i = 0; i < g->n_nodes; i++) {
        struct op_ctx *x = calloc(1, sizeof *x);
        struct backend_form form;
        shapes_node(g, &shapes, i, x);
        x->weights_vary = true;
        assert_int_equal(backends_forms(&b, x, &form, 1), 1);
        assert_string_equal(trainer_form(t, i), form.name);
        free(x);
    }
    trainer_close(t);
    shapes_fini(&shapes);
    backends_close(&b);
    pool_close(pool);
    graph_close(g);
    graph_close(fwd);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(training_packs_in_each_run)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
