/* Training over several agents gives the bits of one device, whatever the split. */
#include "tests/sim/train_site.h"

#include "tests/graphs.h"

/* Logits of a bag of words with the embedding as the output's matrix: its uses stand at both ends. */
static struct graph *tied(void)
{
    struct graph *g = graph_open(0);
    struct yk_rng r;
    yk_rng_seed(&r, 2);
    int32_t x = graphs_input(g, "x", DT_F32, 2, (const int64_t[]){-1, 12});
    int32_t w = graphs_weight(g, "embed.weight", DT_F32, 2, (const int64_t[]){12, 9}, &r);
    int32_t m = graphs_weight(g, "middle.weight", DT_F32, 2, (const int64_t[]){9, 9}, &r);
    int32_t y = graphs_node(g, "", "MatMul", "embed", (const int32_t[]){x, w}, 2);
    y = graphs_node(g, "", "Tanh", "t0", &y, 1);
    for (int i = 0; i < 2; i++) {
        y = graphs_node(g, "", "MatMul", i ? "m1" : "m0", (const int32_t[]){y, m}, 2);
        y = graphs_node(g, "", "Tanh", i ? "t2" : "t1", &y, 1);
    }
    int32_t back = graphs_node(g, "", "Transpose", "turned", &w, 1);
    y = graphs_node(g, "", "MatMul", "logits", (const int32_t[]){y, back}, 2);
    graphs_output(g, y);
    return g;
}

static void shared_weights(void **state)
{
    (void)state;
    struct site *s = site_open(4);
    struct site_result want, got;
    struct graph *g = tied();
    site_model(s, "tied", g);
    graph_close(g);
    site_data(s, "set", 50, 1, (const int64_t[]){12}, 12);
    static const char *const trains[] = {
        "\"momentum\":0.9", "\"optimizer\":\"adamw\",\"clip_norm\":0.1", "\"nesterov\":true,\"weight_decay\":0.01"};
    for (size_t k = 0; k < YK_COUNT(trains); k++) {
        site_learn(s, "tied", 9, 2, trains[k]);
        site_train(s, "tied", "set", (struct site_stage[]){{0, -1}}, 1, 1, &want);
        assert_int_equal(want.n, 6);
        assert_true(isfinite(want.loss[5]) && want.loss[5] != want.loss[0]);
        for (int64_t cut = 0; cut + 1 < s->forward; cut++) {
            site_train(s, "tied", "set", (struct site_stage[]){{0, cut}, {1, -1}}, 2, 1 + (int)cut % 4, &got);
            site_same(&want, &got, "two agents");
        }
        site_train(s, "tied", "set", (struct site_stage[]){{0, 0}, {1, 2}, {2, 4}, {3, -1}}, 4, 5, &got);
        site_same(&want, &got, "four agents");
        site_train(s, "tied", "set", (struct site_stage[]){{0, 1}, {1, 4}, {0, -1}}, 3, 2, &got);
        site_same(&want, &got, "a U");
    }
    site_close(s);
}

/* An agent with one end of the weight dies; the set that the job goes on from holds the weight once. */
static void shared_weights_after_a_loss(void **state)
{
    (void)state;
    struct site *s = site_open(3);
    struct site_result want, got;
    struct graph *g = tied();
    site_model(s, "tied", g);
    graph_close(g);
    site_data(s, "set", 200, 1, (const int64_t[]){12}, 12);
    site_learn(s, "tied", 8, 3, "\"optimizer\":\"adamw\",\"clip_norm\":0.3");
    const struct site_stage stages[] = {{0, 1}, {1, 5}, {2, -1}};
    site_train(s, "tied", "set", stages, 3, 3, &want);
    char *plan = site_plan(s, stages, 3, 3);
    int64_t id = site_submit(s, "tied", "set", plan);
    for (int ms = 0; ms < 60000 && site_steps(s, id) < 8; ms += 10)
        run_ms(s->h, 10);
    assert_true(site_steps(s, id) < want.n);
    agent_close(s->agent[2]);
    s->agent[2] = NULL;
    assert_true(site_wait(s, id, &got));
    site_same(&want, &got, "after a loss");
    free(plan);
    site_close(s);
}

int main(void)
{
    log_set_level(getenv("YOKE_TEST_LOG") ? LOG_INFO : LOG_ERROR);
    const struct CMUnitTest tests[] = {cmocka_unit_test(shared_weights), cmocka_unit_test(shared_weights_after_a_loss)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
