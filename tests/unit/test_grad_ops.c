/* No op of the table brings grad down: each has a gradient of the right shape that runs, or an error that says why not.
 */
#include "tests/op_gen.h"
#include "tests/unit/grad_run.h"

static bool one_graph(const struct op *op, const struct op_template *t, uint64_t seed, int *built)
{
    struct gen c = {.t = DT_F32, .special = seed % 4 == 3, .small = true};
    int32_t ids[GEN_IN_MAX], outs[GEN_OUT_MAX];
    struct grad_options o;
    struct grad_info info;
    struct graph *train = NULL;
    struct yk_diag why = {""};
    struct shapes s;
    char name[16];
    bool ok = true;
    yk_rng_seed(&c.r, seed);
    memset(c.size, -1, sizeof c.size);
    c.star.rank = (int)gen_pick(&c, 0, 4);
    for (int k = 0; k < c.star.rank; k++)
        c.star.dims[k] = gen_size(&c, (char)((k % 2 ? 'A' : 'a') + 20 + k));
    for (int i = 0; i < GEN_IN_MAX && t->in[i]; i++)
        gen_input(&c, t->in[i]);
    struct graph *g = c.g = fx_open();
    for (int i = 0; i < c.n_in; i++) {
        snprintf(name, sizeof name, "i%d", i);
        ids[i] = c.in[i].data ? graph_add_weight(g, name, &c.in[i].shape, c.in[i].data) : YK_ABSENT;
    }
    for (int k = 0; k < t->n_out; k++) {
        snprintf(name, sizeof name, "o%d", k);
        outs[k] = graph_add_value(g, name, VALUE_NODE, DT_NONE);
    }
    assert_true(graph_add_node(g, "n", op, ids, c.n_in, outs, t->n_out) >= 0);
    gen_attrs(&c, fx_last(g), t->attrs);
    fx_output(g, outs[0]);
    grad_options_init(&o);
    o.loss = (enum grad_loss)(seed % GRAD_LOSS_COUNT);
    o.recompute = seed % 2;
    if (shapes_infer(g, NULL, NULL, &s, NULL))
        goto out;
    shapes_fini(&s);
    yk_err err = grad_build(g, &o, &train, &info, &why);
    if (err) {
        ok = (err == YK_INVAL || err == YK_UNSUPPORTED) && why.text[0];
        if (!ok)
            print_error("%s seed %llu: %s '%s'\n", op->name, (unsigned long long)seed, yk_err_name(err), why.text);
        goto out;
    }
    int64_t sizes[8] = {1, 1, 1, 1, 1, 1, 1, 1};
    struct grad_run r = {0};
    err = grad_run_open(&r, train, sizes);
    for (int32_t i = 0; i < train->n_inputs && !err; i++) {
        int32_t v = train->inputs[i];
        r.data[v] = calloc(1, (size_t)shape_bytes(&r.shapes.of[v]) + 1);
        r.owned[v] = 1;
        double one = 1;
        if (i == info.divisor_input)
            ref_store_d(r.data[v], r.shapes.of[v].dtype, 0, 1, &one, 1);
    }
    bool runs = !err && !grad_run_nodes(&r, info.first_loss, seed); /* what the op itself refuses is not ours */
    if (runs)
        err = grad_run_nodes(&r, train->n_nodes, seed);
    for (int32_t p = 0; p < info.n_params && !err; p++)
        for (int32_t u = 0; u < info.params[p].n_uses; u++)
            if (!shape_equal(
                    &r.shapes.of[train->outputs[info.params[p].uses[u]]], &train->values[info.params[p].value].shape)) {
                print_error("%s seed %llu: the gradient of '%s' has another shape\n", op->name,
                    (unsigned long long)seed, info.params[p].name);
                ok = false;
            }
    if (err && !strstr(r.why.text, "class") && !strstr(r.why.text, "values per channel")) {
        print_error("%s seed %llu: %s '%s'\n", op->name, (unsigned long long)seed, yk_err_name(err), r.why.text);
        ok = false;
    }
    (*built)++;
    grad_run_close(&r);
    graph_close(train);
out:
    for (int i = 0; i < c.n_in; i++)
        free(c.in[i].data);
    graph_close(g);
    return ok;
}

static void test_every_op(void **state)
{
    const char *full = getenv("YOKE_FULL");
    int failed = 0, built = 0, rounds = full && *full == '1' ? 200 : 12;
    (void)state;
    for (int i = 0; i < op_count(); i++) {
        const struct op *op = op_at(i);
        const struct op_template *list[16];
        if (op->flags & (OP_CONTROL | OP_VALUES))
            continue;
        int n = gen_templates(op, list, 16), mine = 0;
        bool ruled = grad_has_rule(op->domain, op->name);
        for (int k = 0; k < n; k++)
            for (int j = 0; j < rounds || (ruled && mine == 0 && j < 400); j++)
                failed += !one_graph(op, list[k], (uint64_t)((i * 16 + k) * 1000 + j), &mine);
        if (mine == 0 && ruled) {
            print_error("%s has a rule, but no case of it was built\n", op->name);
            failed++;
        }
        built += mine;
    }
    assert_int_equal(failed, 0);
    assert_true(built > 800);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_every_op)};
    return cmocka_run_group_tests(tests, grad_setup, grad_teardown);
}
