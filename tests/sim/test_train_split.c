/* Training over several agents gives the bits of one device, whatever the split. */
#include "tests/sim/train_site.h"

#include "tests/graphs.h"
#include "tests/mobilenet.h"
#include "tests/tier.h"

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
        /* Agent 0 has more trainers of a weight than the graph has weights. */
        site_train(s, "tied", "set", (struct site_stage[]){{0, 2}, {1, 3}, {0, -1}}, 3, 3, &got);
        site_same(&want, &got, "both weights at both ends");
        site_train(s, "tied", "set", (struct site_stage[]){{0, 2}, {1, 3}, {0, 4}, {2, 5}, {0, -1}}, 5, 4, &got);
        site_same(&want, &got, "three stages of one agent");
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

/* Trains split as given and compares, or finds that this split is refused for a good reason. */
static bool check_cut(struct site *s, const struct site_stage *stages, int n, int depth, const struct site_result *want)
{
    struct site_result got;
    char what[80];
    char *plan = site_plan(s, stages, n, depth);
    int64_t id = site_submit(s, "m", "set", plan);
    bool done = site_wait(s, id, &got);
    snprintf(what, sizeof what, "cut behind node %lld", (long long)stages[0].last);
    if (done) {
        site_same(want, &got, what);
    } else {
        char *error = site_error(s, id);
        if (!strstr(error, "belong together"))
            fail_msg("%s: %s", what, error);
        free(error);
    }
    free(plan);
    return done;
}

static void every_cut_of_the_cnn(void **state)
{
    (void)state;
    struct site *s = site_open(2);
    struct site_result want;
    site_network(s, "m", "cnn", 2, 8);
    site_data(s, "set", 23, 3, (const int64_t[]){2, 8, 8}, 5);
    for (int frozen = 0; frozen < 2; frozen++) {
        int64_t cuts = 0;
        site_learn(s, "m", 8, 3, frozen ? "\"bn\":\"frozen\"" : "\"clip_norm\":1");
        site_train(s, "m", "set", (struct site_stage[]){{0, -1}}, 1, 1, &want);
        for (int64_t cut = 0; cut + 1 < s->forward; cut++)
            cuts += check_cut(
                s, (struct site_stage[]){{(int)cut % 2, cut}, {1 - (int)cut % 2, -1}}, 2, 1 + (int)cut % 3, &want);
        assert_true(cuts >= s->forward * 3 / 4);
    }
    site_close(s);
}

static const struct network {
    const char *kind;
    int64_t channels, size, samples, batch;
    int agents, cuts; /* of the quick tier */
} nets[] = {{"resnet-small", 1, 8, 11, 6, 8, 6}, {"vit-tiny", 3, 32, 4, 4, 2, 1}, {"mobilenet-v2", 3, 32, 8, 4, 2, 2},
    {"resnet34", 3, 32, 4, 4, 2, 1}};

/* Networks whose blocks a cut may go through: over 2, 3, 4 and 8 agents, and with both ends at the source. */
static void sampled(const struct network *net)
{
    static const int counts[] = {3, 2, 3, 4, 8};
    struct yk_rng r;
    struct site *s = site_open(1);
    struct site_result want;
    int done = 0, cuts = tier_full() ? 16 : net->cuts, i;
    uint64_t seed = 4 + tier_seed();
    yk_rng_seed(&r, seed);
    if (strcmp(net->kind, "mobilenet-v2") == 0) {
        struct graph *g = mobilenet_v2(net->size, 5, 4);
        site_model(s, "m", g);
        graph_close(g);
    } else {
        site_network(s, "m", net->kind, net->channels, net->size);
    }
    site_data(s, "set", net->samples, 3, (const int64_t[]){net->channels, net->size, net->size}, 5);
    site_learn(s, "m", net->batch, 2, tier_full() ? "\"lr\":0.01" : "\"lr\":0.01,\"momentum\":0");
    for (s->n_agents = tier_full() ? 8 : net->agents, i = 1; i < s->n_agents;
         i++) /* a plan over them all is not asked for */
        site_start(s, i);
    site_links(s);
    site_train(s, "m", "set", (struct site_stage[]){{0, -1}}, 1, 1, &want);
    for (int round = 0; done < cuts; round++) {
        int n = YK_MIN(counts[round % 5], s->n_agents);
        struct site_stage stages[SITE_STAGES];
        if (round == 4 * cuts)
            fail_msg("seed %llu: of %d splits of %s only %d may be", (unsigned long long)seed, round, net->kind, done);
        for (i = 0; i < n; i++) {
            int64_t part = s->forward / n;
            stages[i] = (struct site_stage){i, i == n - 1 ? -1 : part * i + (int64_t)yk_rng_below(&r, (uint64_t)part)};
        }
        if (n == 3 && round % 5 == 2)
            stages[2].agent = 0;
        done += check_cut(s, stages, n, 1 + (int)yk_rng_below(&r, 5), &want);
    }
    site_close(s);
}

static void sampled_cuts(void **state)
{
    sampled(*state);
}

/* The parameters take longer to yoked than a job may be silent: it waits for what still comes. */
static void sets_over_a_slow_link(void **state)
{
    (void)state;
    struct site *s = site_open_at(1, 400e3);
    struct site_result want;
    site_network(s, "m", "mlp", 1, 120);
    site_data(s, "set", 16, 3, (const int64_t[]){1, 120, 120}, 5);
    site_learn(s, "m", 8, 4, "");
    int64_t id = site_submit(s, "m", "set", NULL);
    assert_true(site_wait(s, id, &want));
    assert_int_equal(want.n, 2);
    sched_events(s->h->s, id, 0, 0, on_text, s->h);
    wait_answer(s->h, 1000);
    if (strstr(s->h->text, "too long") || !strstr(s->h->text, "is safe"))
        fail_msg("%s", s->h->text);
    site_close(s);
}

/* Activations, weights and checkpoint sets over 50 kB/s: what is large does not hold up what tells that an agent is
 * alive. */
static void slow_links_cost_no_lease(void **state)
{
    (void)state;
    struct site *s = site_open_at(2, 50e3);
    struct site_result want, got;
    site_network(s, "m", "mlp", 1, 40);
    site_data(s, "set", 256, 3, (const int64_t[]){1, 40, 40}, 5);
    site_learn(s, "m", 128, 64, "\"checkpoint_every\":1");
    site_train(s, "m", "set", (struct site_stage[]){{0, -1}}, 1, 1, &want);
    site_train(s, "m", "set", (struct site_stage[]){{0, 0}, {1, -1}}, 2, 2, &got);
    site_same(&want, &got, "sets over a slow link");
    site_train(s, "m", "set", (struct site_stage[]){{1, 0}, {0, -1}}, 2, 3, &got); /* 410 kB of samples at a time */
    site_same(&want, &got, "samples over a slow link");
    for (int64_t id = 1; id <= 3; id++) {
        sched_events(s->h->s, id, 0, 0, on_text, s->h);
        wait_answer(s->h, 1000);
        if (strstr(s->h->text, "lease") || strstr(s->h->text, "\"lost\"") || strstr(s->h->text, "too long"))
            fail_msg("%s", s->h->text);
    }
    site_close(s);
}

/* Several transfers share a link, so the small last microbatch of a step is whole before the large ones ahead of it.
 * Stages run in order all the same: running statistics and sums of gradients are those of one device. */
static void small_microbatches_overtake(void **state)
{
    (void)state;
    static const int64_t sizes[][2] = {{17, 4}, {32, 31}};
    struct site *s = site_open_at(4, 1e6);
    struct site_result want, got;
    site_network(s, "m", "resnet-small", 1, 12);
    site_data(s, "set", 34, 3, (const int64_t[]){1, 12, 12}, 5);
    for (size_t k = 0; k < YK_COUNT(sizes); k++) {
        site_learn(s, "m", sizes[k][0], sizes[k][1], "");
        site_train(s, "m", "set", (struct site_stage[]){{0, -1}}, 1, 1, &want);
        site_train(s, "m", "set", (struct site_stage[]){{0, 8}, {1, 15}, {2, 23}, {3, -1}}, 4, 5, &got);
        site_same(&want, &got, "four agents");
        site_train(s, "m", "set", (struct site_stage[]){{1, 8}, {0, 15}, {2, 23}, {1, -1}}, 4, 5, &got);
        site_same(&want, &got, "a U");
    }
    site_close(s);
}

/* Batches and microbatches that do not divide, fewer microbatches than stages, one sample, alone. */
static void sizes(void **state)
{
    (void)state;
    struct site *s = site_open(4);
    struct site_result want, got;
    int at = 0;
    site_network(s, "m", "cnn", 1, 6);
    site_data(s, "set", 19, 3, (const int64_t[]){1, 6, 6}, 5);
    for (int64_t batch = 1; batch <= 17; batch++)
        for (int64_t microbatch = 1; microbatch <= YK_MIN(batch, 5); microbatch++) {
            if (!tier_full() && at++ % 9 != 0 && batch != 17)
                continue;
            site_learn(s, "m", batch, microbatch, "\"bn\":\"frozen\"");
            site_train(s, "m", "set", (struct site_stage[]){{0, -1}}, 1, 1, &want);
            assert_int_equal(want.n, (19 + batch - 1) / batch);
            for (int stages = 1; stages <= 4; stages++) {
                struct site_stage split[4] = {{1, 0}, {0, 3}, {2, 8}, {3, -1}};
                split[stages - 1].last = -1;
                site_train(s, "m", "set", split, stages, 1 + (int)(batch + microbatch) % 4, &got);
                site_same(&want, &got, "sizes");
            }
        }
    site_close(s);
}

/* Several trainings of one agent at once and one behind another: each as if it were alone. */
static void side_by_side(void **state)
{
    (void)state;
    struct site *s = site_open(3);
    struct site_result want[2], got;
    int64_t id[4];
    site_network(s, "m", "cnn", 1, 8);
    site_data(s, "set", 40, 3, (const int64_t[]){1, 8, 8}, 5);
    site_data(s, "other", 13, 3, (const int64_t[]){1, 8, 8}, 5);
    site_learn(s, "m", 8, 4, "\"bn\":\"frozen\"");
    static const char *const sets[] = {"set", "other"};
    for (int k = 0; k < 2; k++)
        site_train(s, "m", sets[k], (struct site_stage[]){{0, -1}}, 1, 1, &want[k]);
    char *plan = site_plan(s, (struct site_stage[]){{0, 2}, {1, 5}, {2, -1}}, 3, 3);
    for (int k = 0; k < 4; k++)
        id[k] = site_submit(s, "m", sets[k % 2], plan);
    for (int k = 0; k < 4; k++) {
        assert_true(site_wait(s, id[k], &got));
        site_same(&want[k % 2], &got, "side by side");
    }
    free(plan);
    site_close(s);
}

static void expect_refusal(struct site *s, const char *plan, const char *says)
{
    struct site_result got;
    int64_t id = site_submit(s, "m", "set", plan);
    assert_false(site_wait(s, id, &got));
    char *error = site_error(s, id);
    if (!strstr(error, says))
        fail_msg("'%s' does not say '%s'", error, says);
    assert_int_equal(site_steps(s, id), 0);
    free(error);
}

/* bn=train with one value per channel somewhere, be it in the last batch only: refused before the first step. */
static void few_values_per_channel(void **state)
{
    (void)state;
    struct site *s = site_open(2);
    struct graph *g = graph_open(0);
    struct yk_rng r;
    struct site_result want, got;
    yk_rng_seed(&r, 3);
    int32_t x = graphs_input(g, "x", DT_F32, 2, (const int64_t[]){-1, 6});
    int32_t y = graphs_node(g, "", "MatMul", "first",
        (const int32_t[]){x, graphs_weight(g, "w", DT_F32, 2, (const int64_t[]){6, 5}, &r)}, 2);
    int32_t in[5] = {y};
    static const char *const names[] = {"bn.weight", "bn.bias", "bn.running_mean", "bn.running_var"};
    for (int i = 0; i < 4; i++) {
        in[1 + i] = graphs_weight(g, names[i], DT_F32, 1, (const int64_t[]){5}, &r);
        for (int k = 0; k < 5; k++)
            ((float *)(uintptr_t)g->values[in[1 + i]].data)[k] = i % 3 == 0 ? 1.0f : 0.0f;
    }
    int32_t out[3] = {graph_add_value(g, "normal", VALUE_NODE, DT_NONE),
        graph_add_value(g, "next_mean", VALUE_NODE, DT_NONE), graph_add_value(g, "next_var", VALUE_NODE, DT_NONE)};
    int32_t bn = graph_add_node(g, "layer.bn", op_find("", "BatchNormalization"), in, 5, out, 3);
    assert_true(bn >= 0);
    assert_int_equal(graph_set_attr_i(g, &g->nodes[bn], "training_mode", 1), YK_OK);
    y = graphs_node(g, "", "Relu", "relu", &out[0], 1);
    graphs_output(g, y);
    site_model(s, "m", g);
    graph_close(g);
    site_data(s, "set", 21, 1, (const int64_t[]){6}, 5);
    site_learn(s, "m", 6, 3, ""); /* 21 = 3 * 6 + 3 */
    site_train(s, "m", "set", (struct site_stage[]){{0, -1}}, 1, 1, &want);
    site_train(s, "m", "set", (struct site_stage[]){{0, 0}, {1, -1}}, 2, 2, &got);
    site_same(&want, &got, "batch normalisation");
    for (int k = 0; k < 2; k++) {
        site_learn(s, "m", k ? 5 : 7, k ? 5 : 3, ""); /* 7 = 2 * 3 + 1, 21 = 4 * 5 + 1 */
        char *plan = site_plan(s, (struct site_stage[]){{0, 0}, {1, -1}}, 2, 2);
        expect_refusal(s, plan, "layer.bn");
        free(plan);
    }
    site_close(s);
}

/* One sample of the set is no number, or the rate is far too high: the job ends with the tensor, its stage and agent.
 */
static void names_what_is_no_number(void **state)
{
    (void)state;
    struct site *s = site_open(2);
    struct site_result got;
    site_network(s, "m", "mlp", 1, 4);
    site_data(s, "set", 40, 3, (const int64_t[]){1, 4, 4}, 5);
    static const struct {
        const char *train, *says[3];
    } cases[] = {
        {"\"lr\":1e30", {"step", "in stage", "on agent a"}},
        {"\"lr\":1e6,\"epochs\":2", {"holds a", "lower the learning rate", "on agent a"}},
        {"\"lr\":1e30,\"clip_norm\":1e30", {"step", "", ""}},
    };
    for (size_t k = 0; k < YK_COUNT(cases); k++) {
        site_learn(s, "m", 8, 4, cases[k].train);
        char *plan = site_plan(s, (struct site_stage[]){{0, 1}, {1, -1}}, 2, 2);
        int64_t id = site_submit(s, "m", "set", plan);
        assert_false(site_wait(s, id, &got));
        char *error = site_error(s, id);
        if (getenv("YOKE_TEST_LOG"))
            printf("%s\n", error);
        for (int i = 0; i < 3; i++)
            if (!strstr(error, cases[k].says[i]))
                fail_msg("'%s' does not say '%s'", error, cases[k].says[i]);
        free(error);
        free(plan);
    }
    site_close(s);
}

/* What came in bad is not the learning rate's fault; steps count from 1. */
static void names_bad_data(void **state)
{
    (void)state;
    struct site *s = site_open(2);
    struct site_result got;
    char path[160];
    site_network(s, "m", "mlp", 1, 4);
    site_data(s, "set", 8, 3, (const int64_t[]){1, 4, 4}, 5);
    snprintf(path, sizeof path, "%s/set/x.npy", s->root);
    FILE *f = fopen(path, "r+b");
    const float nan = NAN;
    assert_non_null(f);
    assert_int_equal(fseek(f, -(long)sizeof nan, SEEK_END), 0);
    assert_int_equal(fwrite(&nan, sizeof nan, 1, f), 1);
    fclose(f);
    static const char *const trains[] = {"", "\"clip_norm\":1.0"};
    for (int k = 0; k < 2; k++) {
        site_learn(s, "m", 8, 4, trains[k]);
        char *plan = site_plan(s, (struct site_stage[]){{0, 1}, {1, -1}}, 2, 2);
        int64_t id = site_submit(s, "m", "set", plan);
        assert_false(site_wait(s, id, &got));
        char *error = site_error(s, id);
        if (!strstr(error, "step 1") || strstr(error, "step 0") || !strstr(error, "input '") ||
            !strstr(error, "look at the samples") || strstr(error, "learning rate"))
            fail_msg("'%s'", error);
        free(error);
        free(plan);
    }
    site_close(s);
}

static double mean(const double *x, int n)
{
    double sum = 0;
    for (int i = 0; i < n; i++)
        sum += x[i] / n;
    return sum;
}

/* Activations and gradients as fp16: the loss stays where five seeds of the data's order put it. */
static void fp16_within_the_noise(void **state)
{
    (void)state;
    enum { SEEDS = 5 };
    struct site *s = site_open(2);
    struct site_result got;
    double exact[SEEDS], lossy[SEEDS], least = INFINITY, most = -INFINITY;
    bool differs = false;
    site_network(s, "m", "cnn", 1, 8);
    site_data(s, "set", 160, 3, (const int64_t[]){1, 8, 8}, 5);
    for (int seed = 0; seed < SEEDS; seed++) {
        char train[120], first[65];
        snprintf(train, sizeof train, "\"epochs\":15,\"lr\":0.02,\"seed\":%d", seed);
        s->codec[0] = 0;
        site_learn(s, "m", 16, 8, train);
        site_train(s, "m", "set", (struct site_stage[]){{0, 3}, {1, -1}}, 2, 3, &got);
        int from = got.n / 4; /* the curve behind its steepest part */
        exact[seed] = mean(got.loss + from, got.n - from);
        if (exact[seed] > 0.9 * mean(got.loss, 5))
            fail_msg("it learns nothing: %g to %g", mean(got.loss, 5), exact[seed]);
        memcpy(first, got.digest, sizeof first);
        strcpy(s->codec, "fp16");
        site_train(s, "m", "set", (struct site_stage[]){{0, 3}, {1, -1}}, 2, 3, &got);
        lossy[seed] = mean(got.loss + from, got.n - from);
        differs = differs || strcmp(first, got.digest) != 0;
        least = YK_MIN(least, exact[seed]);
        most = YK_MAX(most, exact[seed]);
    }
    if (getenv("YOKE_TEST_LOG"))
        for (int seed = 0; seed < SEEDS; seed++)
            printf("seed %d: %g, %g with fp16\n", seed, exact[seed], lossy[seed]);
    assert_true(differs); /* the codec was used */
    for (int seed = 0; seed < SEEDS; seed++)
        if (fabs(lossy[seed] - exact[seed]) > most - least)
            fail_msg("seed %d: %g with fp16, %g without; the seeds lie between %g and %g", seed, lossy[seed],
                exact[seed], least, most);
    site_close(s);
}

/* A plan with a codec that the job does not allow is refused, as is one that nobody knows. */
static void codecs_are_allowed_or_refused(void **state)
{
    (void)state;
    struct site *s = site_open(2);
    site_network(s, "m", "mlp", 1, 4);
    site_data(s, "set", 20, 3, (const int64_t[]){1, 4, 4}, 5);
    site_learn(s, "m", 8, 4, "");
    strcpy(s->codec, "fp16");
    char *plan = site_plan(s, (struct site_stage[]){{0, 1}, {1, -1}}, 2, 2);
    s->codec[0] = 0;
    struct site_result got;
    char *request = site_request(s, "m", "set", plan);
    sched_submit(s->h->s, request, strlen(request), on_text, s->h);
    wait_answer(s->h, 1000);
    if (!s->h->err) {
        struct json *doc = answer_json(s->h);
        int64_t id = json_i64(json_find(doc, "job"), 0);
        json_free(doc);
        assert_false(site_wait(s, id, &got));
        char *error = site_error(s, id);
        assert_non_null(strstr(error, "fp16"));
        free(error);
    } else {
        assert_non_null(strstr(s->h->text, "fp16"));
    }
    free(request);
    free(plan);
    site_close(s);
}

/* site_plan with these cuts instead of its own. free(). */
static char *plan_with_cuts(struct site *s, const struct site_stage *stages, int n, const char *cuts)
{
    char *plan = site_plan(s, stages, n, n), *at = strstr(plan, "\"cuts\":[");
    assert_non_null(at);
    *at = 0;
    char *out = yk_xasprintf("%s\"cuts\":[%s]}", plan, cuts);
    free(plan);
    return out;
}

/* The stages of a plan were edited, its cuts still are those of the stages before: fp32 says nothing, fp16 is refused.
 */
static void cuts_of_other_stages(void **state)
{
    (void)state;
    static const char *const fp32 = "{\"from\":-1,\"to\":1},{\"from\":0,\"to\":1},{\"from\":1,\"to\":2},"
                                    "{\"from\":2,\"to\":3},{\"from\":3,\"to\":4},{\"from\":0,\"to\":4},"
                                    "{\"from\":1,\"to\":3}";
    struct site *s = site_open(3);
    struct site_result want, got;
    site_network(s, "m", "mlp", 1, 4);
    site_data(s, "set", 20, 3, (const int64_t[]){1, 4, 4}, 5);
    site_learn(s, "m", 8, 4, "");
    site_train(s, "m", "set", (struct site_stage[]){{0, -1}}, 1, 1, &want);
    const struct site_stage three[] = {{0, 1}, {1, 2}, {2, -1}}, two[] = {{0, 1}, {1, -1}};
    char *plan = plan_with_cuts(s, three, 3, fp32);
    assert_true(site_wait(s, site_submit(s, "m", "set", plan), &got));
    site_same(&want, &got, "fp32 cuts of other stages");
    free(plan);
    plan = plan_with_cuts(s, three, 3, "{\"from\":0,\"to\":1},{\"from\":3,\"to\":4,\"codec\":\"fp16\"}");
    expect_refusal(s, plan, "cuts[1] names codec fp16 from stage 3 to stage 4 of pipeline 0, whose stages are 0..2");
    free(plan);
    plan = plan_with_cuts(s, two, 2, "{\"from\":1,\"to\":0,\"codec\":\"fp16\"}");
    expect_refusal(s, plan, "leave it out");
    free(plan);
    strcpy(s->codec, "fp16"); /* the way back has the codec of the way there, whatever was there before */
    plan = plan_with_cuts(s, two, 2, "{\"from\":0,\"to\":1,\"codec\":\"fp16\"},{\"from\":1,\"to\":2}");
    assert_true(site_wait(s, site_submit(s, "m", "set", plan), &got));
    free(plan);
    site_train(s, "m", "set", two, 2, 2, &want);
    site_same(&want, &got, "fp16 and a cut of other stages");
    site_close(s);
}

/* Classes of a text: token ids go in at the front, their mask there and again close to the end. rows: the mask's first
 * axis is the batch. */
static struct graph *masked(bool rows)
{
    struct graph *g = graph_open(0);
    struct yk_rng r;
    yk_rng_seed(&r, 3);
    int32_t ids = graphs_input(g, "ids", DT_I64, 2, (const int64_t[]){-1, 6});
    int32_t mask = graphs_input(g, "mask", DT_F32, 3, (const int64_t[]){rows ? -1 : 1, 6, 1});
    int32_t w = graphs_weight(g, "embed", DT_F32, 2, (const int64_t[]){12, 8}, &r);
    int32_t y = graphs_node(g, "", "Gather", "tokens", (const int32_t[]){w, ids}, 2);
    for (int i = 0; i < 3; i++) {
        static const char *const names[][3] = {{"m0", "w0", "t0"}, {"m1", "w1", "t1"}, {"m2", "w2", "t2"}};
        w = graphs_weight(g, names[i][1], DT_F32, 2, (const int64_t[]){8, 8}, &r);
        if (i != 1)
            y = graphs_node(g, "", "Mul", i ? "hidden" : "shown", (const int32_t[]){y, mask}, 2);
        y = graphs_node(g, "", "MatMul", names[i][0], (const int32_t[]){y, w}, 2);
        y = graphs_node(g, "", "Tanh", names[i][2], &y, 1);
    }
    y = graphs_node(g, "", "Flatten", "flat", &y, 1);
    w = graphs_weight(g, "out", DT_F32, 2, (const int64_t[]){48, 5}, &r);
    graphs_output(g, graphs_node(g, "", "MatMul", "logits", (const int32_t[]){y, w}, 2));
    return g;
}

static void masked_data(const struct site *s, const char *name, int64_t n, int64_t masks)
{
    struct shape ids = {.dtype = DT_I64, .rank = 2, .dims = {n, 6}}, y = {.dtype = DT_I64, .rank = 1, .dims = {n}};
    struct shape mask = {.dtype = DT_F32, .rank = 3, .dims = {masks, 6, 1}};
    int64_t *token = yk_xalloc((size_t)shape_bytes(&ids)), *class = yk_xalloc((size_t)shape_bytes(&y));
    float *shown = yk_xalloc((size_t)shape_bytes(&mask));
    struct yk_rng r;
    yk_rng_seed(&r, 5);
    for (int64_t i = 0; i < n * 6; i++)
        token[i] = (int64_t)yk_rng_below(&r, 12);
    for (int64_t i = 0; i < n; i++)
        class[i] = token[i * 6] % 5;
    for (int64_t i = 0; i < masks * 6; i++)
        shown[i] = i % 6 == 0 || yk_rng_below(&r, 3) > 0 ? 1.0f : 0.0f;
    site_npy(s, name, "ids", &ids, token);
    site_npy(s, name, "y", &y, class);
    if (masks)
        site_npy(s, name, "mask", &mask, shown);
    free(token);
    free(class);
    free(shown);
}

/* A model of two inputs: every stage that reads one gets it, and any split trains to the same bits. What a data set
 * cannot give, or does not, is refused by name. */
static void several_inputs(void **state)
{
    (void)state;
    struct site *s = site_open(3);
    struct site_result want, got;
    struct graph *g = masked(true);
    site_model(s, "m", g);
    graph_close(g);
    masked_data(s, "set", 23, 23);
    masked_data(s, "few", 23, 22);
    masked_data(s, "none", 23, 0);
    site_learn(s, "m", 8, 3, "\"momentum\":0.9,\"lr\":0.1,\"epochs\":2,\"val\":0.2");
    site_train(s, "m", "set", (struct site_stage[]){{0, -1}}, 1, 1, &want);
    assert_int_equal(want.n, 6);
    assert_true(isfinite(want.loss[5]) && want.loss[5] != want.loss[0]);
    for (int64_t cut = 0; cut + 1 < s->forward; cut++) {
        site_train(s, "m", "set", (struct site_stage[]){{(int)cut % 2, cut}, {1 - (int)cut % 2, -1}}, 2,
            1 + (int)cut % 3, &got);
        site_same(&want, &got, "two agents");
    }
    site_train(s, "m", "set", (struct site_stage[]){{1, 2}, {2, 5}, {0, -1}}, 3, 3, &got);
    site_same(&want, &got, "three agents");
    site_train(s, "m", "set", (struct site_stage[]){{0, 1}, {1, 6}, {0, -1}}, 3, 2, &got);
    site_same(&want, &got, "a U");
    int64_t id = site_submit(s, "m", "set", NULL);
    assert_true(site_wait(s, id, &got));
    site_same(&want, &got, "the planner's choice");

    char *plan = site_plan(s, (struct site_stage[]){{0, 3}, {1, -1}}, 2, 2);
    static const char *const sets[][2] = {{"few", "'mask' has 22"}, {"none", "no 'mask.npy'"}};
    for (size_t k = 0; k < YK_COUNT(sets); k++) {
        id = site_submit(s, "m", sets[k][0], plan);
        assert_false(site_wait(s, id, &got));
        char *error = site_error(s, id);
        if (!strstr(error, sets[k][1]))
            fail_msg("'%s' does not say '%s'", error, sets[k][1]);
        free(error);
    }
    free(plan);
    g = masked(false);
    site_model(s, "fixed", g);
    graph_close(g);
    char *request = site_request(s, "fixed", "", NULL);
    sched_plan(s->h->s, request, strlen(request), on_text, s->h);
    wait_answer(s->h, 60000);
    assert_true(s->h->err != YK_OK);
    if (!strstr(s->h->text, "'mask'") || !strstr(s->h->text, "'ids'"))
        fail_msg("%s", s->h->text);
    free(request);
    site_close(s);
}

#define SAMPLED(k)                                                                \
    {                                                                             \
        "sampled_cuts_" #k, sampled_cuts, NULL, NULL, (void *)(uintptr_t)&nets[k] \
    }

int main(int argc, char **argv)
{
    log_set_level(getenv("YOKE_TEST_LOG") ? LOG_INFO : LOG_ERROR);
    const struct CMUnitTest tests[] = {cmocka_unit_test(shared_weights), cmocka_unit_test(shared_weights_after_a_loss),
        cmocka_unit_test(every_cut_of_the_cnn), SAMPLED(0), SAMPLED(1), SAMPLED(2), SAMPLED(3),
        cmocka_unit_test(sets_over_a_slow_link), cmocka_unit_test(slow_links_cost_no_lease),
        cmocka_unit_test(small_microbatches_overtake), cmocka_unit_test(sizes), cmocka_unit_test(side_by_side),
        cmocka_unit_test(few_values_per_channel), cmocka_unit_test(names_what_is_no_number),
        cmocka_unit_test(names_bad_data), cmocka_unit_test(fp16_within_the_noise),
        cmocka_unit_test(codecs_are_allowed_or_refused), cmocka_unit_test(cuts_of_other_stages),
        cmocka_unit_test(several_inputs)};
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
