/* Two agents in one process under a scripted yoked: joining, loading, running, leaving. */
#include "tests/sim/agent_bed.h"

static void joins_and_stays(void **state)
{
    (void)state;
    struct bed *b = bed_open(2);
    BED_UNTIL(b, 2000, bed_joined(b, 2));
    assert_true(strcmp(b->agents[0].id, b->agents[1].id) != 0);
    assert_string_equal(b->agents[1].url, "mem://agent1");
    assert_int_equal(b->agents[0].memory_bytes, (int64_t)1 << 30);
    assert_int_equal(b->agents[0].state, AGENT_JOINED);
    net_mem_run_for(b->net, 5000000);
    assert_true(b->agents[0].pings >= 18 && b->agents[0].joins == 1);
    bed_stop(b, 0);
    net_mem_run_for(b->net, 100000);
    assert_int_equal(b->agents[0].leaves, 1);
    assert_null(b->agents[0].control);
    bed_start(b, 0, NULL, 0); /* from its storage: the same identity, which the hello checks */
    BED_UNTIL(b, 2000, b->agents[0].joins == 2);
    bed_close(b);
}

static void split_equals_unsplit(void **state)
{
    (void)state;
    struct bed *b = bed_open(2);
    BED_UNTIL(b, 2000, bed_joined(b, 2));
    struct bed_plan p = bed_two_stages;
    for (int turn = 0; turn < b->graph->n_nodes - 1; turn++) { /* every cut */
        p.generation = 1 + turn;
        p.last[0] = turn;
        p.receiver_dials = turn % 2;
        bed_load_ok(b, &p);
        assert_true(b->loaded_bytes > 0);
        for (int again = 0; again < 2; again++) { /* a second job skips the load */
            b->n_done = b->n_started = 0;
            bed_forget_results(b);
            bed_run(b, &p, &(struct wire_run){.want_outputs = true, .want_accuracy = true});
            BED_UNTIL(b, 10000, b->n_done == 1 && b->n_results == 8);
            net_mem_run_for(b->net, 50000);
            assert_string_equal(b->done_error, "");
            assert_int_equal(b->samples, BED_SAMPLES);
            assert_int_equal(b->microbatches, 8);
            bed_check_outputs(b, 5, BED_SAMPLES);
        }
        int64_t correct = 0, want = 0;
        for (int i = 0; i < b->n_results; i++)
            correct += b->results[i].correct;
        for (int64_t i = 0; i < BED_SAMPLES; i++) {
            float y[BED_CLASSES];
            int best = 0;
            bed_reference(b, i, 1, y);
            for (int c = 1; c < BED_CLASSES; c++)
                best = y[c] > y[best] ? c : best;
            want += best == b->y[i];
        }
        assert_int_equal(correct, want);
        bed_unload(b, &p);
    }
    assert_true(b->n_stats > 0 && b->compute_ms > 0 && b->sent_bytes > 0);
    assert_int_equal(b->n_failed, 0);
    assert_true(b->n_gets <= 2 * b->n_blobs); /* each blob once per agent: the cache holds */
    bed_close(b);
}

static void any_placement(void **state)
{
    (void)state;
    struct bed *b = bed_open(3);
    BED_UNTIL(b, 2000, bed_joined(b, 3));
    static const struct {
        int n, last[4], agent[4], source;
    } plans[] = {
        {1, {0}, {0}, 0},                /* all at the source */
        {1, {0}, {1}, 0},                /* the raw input goes away */
        {2, {2}, {0, 0}, 0},             /* two stages here */
        {3, {0, 3}, {0, 1, 0}, 0},       /* there and back */
        {3, {1, 3}, {1, 2, 0}, 0},       /* a ring */
        {4, {0, 1, 3}, {1, 2, 1, 2}, 0}, /* the source only feeds */
    };
    for (size_t i = 0; i < YK_COUNT(plans); i++)
        for (int small = 0; small < 2; small++) { /* one slot of everything, or several */
            struct bed_plan p = bed_two_stages;
            p.generation = (int64_t)(10 + 2 * i) + small;
            p.n_stages = plans[i].n;
            memcpy(p.last, plans[i].last, sizeof p.last);
            memcpy(p.agent, plans[i].agent, sizeof p.agent);
            p.depth = small ? 1 : 4;
            p.credits = small ? 1 : 3;
            bed_load_ok(b, &p);
            b->n_done = 0;
            bed_forget_results(b);
            bed_run(b, &p, &(struct wire_run){.want_outputs = true});
            BED_UNTIL(b, 10000, b->n_done == 1 && b->n_results == 8);
            bed_check_outputs(b, 5, BED_SAMPLES);
            bed_unload(b, &p);
        }
    bed_close(b);
}

static void done_ranges_and_parts(void **state)
{
    (void)state;
    struct bed *b = bed_open(2);
    BED_UNTIL(b, 2000, bed_joined(b, 2));
    bed_load_ok(b, &bed_two_stages);
    int64_t done[] = {0, 2, 5, 5};
    bed_run(b, &bed_two_stages, &(struct wire_run){.done = {done, 4}});
    BED_UNTIL(b, 5000, b->n_done == 1);
    assert_int_equal(b->n_results, 4);
    for (int i = 0; i < b->n_results; i++) {
        int64_t m = b->results[i].microbatch;
        assert_true(m == 3 || m == 4 || m == 6 || m == 7);
        assert_int_equal(b->results[i].correct, -1); /* was not asked */
    }
    bed_forget_results(b);
    bed_run(b, &bed_two_stages, &(struct wire_run){.first = 30, .count = 4, .microbatch = 3, .want_accuracy = true});
    BED_UNTIL(b, 5000, b->n_done == 2);
    assert_int_equal(b->n_results, 2);
    assert_int_equal(b->samples, 4);
    int64_t all[] = {0, 7};
    bed_run(b, &bed_two_stages, &(struct wire_run){.done = {all, 2}});
    BED_UNTIL(b, 5000, b->n_done == 3); /* nothing left to do */
    assert_int_equal(b->n_results, 2);
    bed_close(b);
}

static void uploaded_data(void **state)
{
    (void)state;
    struct bed *b = bed_open(2);
    BED_UNTIL(b, 2000, bed_joined(b, 2));
    bed_load_ok(b, &bed_two_stages);
    struct yk_buf x = {0}, y = {0};
    struct shape sx = {DT_F32, 4, {BED_SAMPLES, 1, 28, 28}}, sy = {DT_I64, 1, {BED_SAMPLES}};
    char hx[HASH_HEX_SIZE], hy[HASH_HEX_SIZE];
    npy_header(&sx, &x);
    yk_buf_add(&x, b->x, (size_t)shape_bytes(&sx));
    npy_header(&sy, &y);
    yk_buf_add(&y, b->y, (size_t)shape_bytes(&sy));
    hash_hex(x.data, x.len, hx);
    hash_hex(y.data, y.len, hy);
    bed_add_blob(b, hx, x.data, x.len);
    bed_add_blob(b, hy, y.data, y.len);
    bed_run(b, &bed_two_stages, &(struct wire_run){.data = hx, .blob = true, .want_outputs = true});
    BED_UNTIL(b, 5000, b->n_done == 1 && b->n_results == 8);
    bed_check_outputs(b, 5, BED_SAMPLES);
    assert_int_equal(b->results[0].correct, -1);
    bed_forget_results(b);
    bed_run(b, &bed_two_stages, &(struct wire_run){.data = hx, .blob = true, .labels = hy, .want_accuracy = true});
    BED_UNTIL(b, 5000, b->n_done == 2 && b->n_results == 8);
    assert_true(b->results[0].correct >= 0);
    char none[HASH_HEX_SIZE];
    memset(none, '0', 64);
    none[64] = 0;
    bed_run(b, &bed_two_stages, &(struct wire_run){.data = none, .blob = true});
    BED_UNTIL(b, 5000, b->n_done == 3);
    assert_string_equal(b->done_error, "NOTFOUND");
    bed_close(b);
    yk_buf_free(&x);
    yk_buf_free(&y);
}

static void lossy_edges(void **state)
{
    (void)state;
    struct bed *b = bed_open(2);
    BED_UNTIL(b, 2000, bed_joined(b, 2));
    static const char *const codecs[] = {"fp16", "int8"};
    for (int k = 0; k < 2; k++) {
        struct bed_plan p = bed_two_stages;
        p.codec = codecs[k];
        p.generation = 5 + k;
        b->codec_error = 0;
        bed_load_ok(b, &p);
        b->n_done = 0;
        bed_forget_results(b);
        bed_run(b, &p, &(struct wire_run){.want_outputs = true});
        BED_UNTIL(b, 5000, b->n_done == 1 && b->n_results == 8);
        for (int i = 0; i < b->n_results; i++) {
            float want[5 * BED_CLASSES], worst = 0, most = 0;
            bed_reference(b, b->results[i].first, b->results[i].count, want);
            for (int64_t j = 0; j < b->results[i].count * BED_CLASSES; j++) {
                worst = fmaxf(worst, fabsf(want[j] - b->results[i].data[j]));
                most = fmaxf(most, fabsf(want[j]));
            }
            assert_true(worst / most < (k ? 0.05f : 2e-3f));
        }
        bed_unload(b, &p);
        assert_true(b->codec_error > 1e-6 && b->codec_error < (k ? 0.02 : 5e-4));
    }
    bed_close(b);
}

static void cancel_ends_a_run(void **state)
{
    (void)state;
    struct bed *b = bed_open(2);
    net_mem_set_link(b->net, "agent1", 1000, 1e6); /* slow enough to be in the middle */
    BED_UNTIL(b, 2000, bed_joined(b, 2));
    bed_load_ok(b, &bed_two_stages);
    bed_run(b, &bed_two_stages, &(struct wire_run){.want_outputs = true});
    BED_UNTIL(b, 5000, b->n_results >= 1);
    struct wire_cancel w = {.term = 3, .generation = 1, .job = "job"};
    chan_send(b->agents[0].control, WIRE_TYPE_cancel, &w);
    BED_UNTIL(b, 100, b->n_done == 1);
    assert_string_equal(b->done_error, "CANCELED");
    bed_forget_results(b);
    bed_run(b, &bed_two_stages, &(struct wire_run){.want_outputs = true}); /* while the last one drains */
    BED_UNTIL(b, 10000, b->n_done == 2);
    assert_string_equal(b->done_error, "");
    BED_UNTIL(b, 1000, b->n_results == 8);
    bed_check_outputs(b, 5, BED_SAMPLES);
    bed_forget_results(b);
    b->n_done = 0;
    bed_run(b, &bed_two_stages, &(struct wire_run){.want_outputs = true});
    BED_UNTIL(b, 5000, b->n_results >= 1);
    bed_unload(b, &bed_two_stages); /* in the middle of a run */
    bed_load_ok(b, &bed_two_stages);
    bed_close(b);
}

static void suspended_and_resumed(void **state)
{
    (void)state;
    struct bed *b = bed_open(2);
    BED_UNTIL(b, 2000, bed_joined(b, 2));
    bed_load_ok(b, &bed_two_stages);
    net_mem_set_link(b->net, "agent1", 1000, 1e6);
    bed_run(b, &bed_two_stages, &(struct wire_run){0});
    BED_UNTIL(b, 5000, b->n_results >= 1);
    agent_suspend(b->agents[1].agent);
    BED_UNTIL(b, 3000, b->agents[1].leaves == 1 && !b->agents[1].control);
    BED_UNTIL(b, 3000, b->n_failed == 1); /* the other one tells */
    assert_string_equal(b->failed_peer, b->agents[1].id);
    assert_int_equal(b->agents[0].joins, 1);
    net_mem_run_for(b->net, 10000000);
    assert_int_equal(b->agents[1].joins, 1); /* a suspended agent is quiet */
    agent_resume(b->agents[1].agent);
    BED_UNTIL(b, 3000, b->agents[1].joins == 2);
    bed_unload(b, &bed_two_stages);
    struct bed_plan p = bed_two_stages;
    p.generation = 2;
    bed_load_ok(b, &p);
    b->n_done = 0;
    bed_forget_results(b);
    bed_run(b, &p, &(struct wire_run){.want_outputs = true});
    BED_UNTIL(b, 5000, b->n_done == 1 && b->n_results == 8);
    bed_check_outputs(b, 5, BED_SAMPLES);
    bed_close(b);
}

static void profiles_once(void **state)
{
    (void)state;
    struct bed *b = bed_open(1);
    BED_UNTIL(b, 2000, bed_joined(b, 1));
    int64_t sizes[] = {1, 4};
    struct wire_profile w = {.id = 9, .term = 3, .graph = b->hex, .sizes = {sizes, 2}, .budget_ms = 600000};
    chan_send(b->agents[0].control, WIRE_TYPE_profile, &w);
    BED_UNTIL(b, 5000, b->n_profiles == 1);
    assert_string_equal(b->done_error, "");
    assert_true(b->rows >= 2 * b->graph->n_nodes);
    int64_t rows = b->rows;
    w.sizes.n = 1; /* a part of what is known */
    chan_send(b->agents[0].control, WIRE_TYPE_profile, &w);
    BED_UNTIL(b, 5000, b->n_profiles == 2);
    assert_true(b->rows - rows < rows && b->rows > rows);
    w.graph = "nonsense";
    chan_send(b->agents[0].control, WIRE_TYPE_profile, &w);
    BED_UNTIL(b, 5000, b->n_profiles == 3);
    assert_string_equal(b->done_error, "INVAL");
    bed_close(b);
}

static void an_emulated_device_keeps_its_pace(void **state)
{
    (void)state;
    struct bed *b = bed_open(0);
    struct agent_emulate e = {.gflops = 0.02, .battery_frac = NAN, .memory_bytes = 50000000};
    bed_start(b, 0, &e, 0);
    BED_UNTIL(b, 2000, bed_joined(b, 1));
    assert_true(b->agents[0].emulated && b->agents[0].memory_bytes == 50000000);
    struct bed_plan p = bed_two_stages;
    p.n_stages = 1;
    bed_load_ok(b, &p);
    double flops = 0;
    struct op_ctx c;
    for (int32_t n = 0; n < b->graph->n_nodes; n++) {
        memset(&c, 0, sizeof c);
        shapes_node(b->graph, &b->shapes, n, &c);
        flops += op_flops(&c);
    }
    double want_us = flops / 5 * BED_SAMPLES / 0.02 * 1e-3;
    int64_t begin = net_now_us(b->net);
    bed_run(b, &p, &(struct wire_run){0});
    BED_UNTIL(b, 60000, b->n_done == 1);
    double took = (double)(net_now_us(b->net) - begin);
    if (took < want_us || took > want_us * 1.05 + 10000)
        fail_msg("took %.0f us, expected %.0f", took, want_us);
    bed_close(b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(joins_and_stays),
        cmocka_unit_test(split_equals_unsplit),
        cmocka_unit_test(any_placement),
        cmocka_unit_test(done_ranges_and_parts),
        cmocka_unit_test(uploaded_data),
        cmocka_unit_test(lossy_edges),
        cmocka_unit_test(cancel_ends_a_run),
        cmocka_unit_test(suspended_and_resumed),
        cmocka_unit_test(profiles_once),
        cmocka_unit_test(an_emulated_device_keeps_its_pace),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
