/* The planner over published measurements of a host and a phone (tests/replay.h): the figures that are to be reached,
 * and that no cut, depth or microbatch that was reported does better. Computations, no timings. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "scheduler/candidate.h"
#include "tests/replay.h"

#define PROFILE YOKE_SOURCE_DIR "/tests/data/mobilepipe_profile.json"

static struct replay linux_host, mac_host;

static int open_both(void **state)
{
    (void)state;
    struct yk_diag why = {0};
    if (replay_open(&linux_host, PROFILE, "linux", &why) || replay_open(&mac_host, PROFILE, "mac", &why)) {
        print_message("%s\n", why.text);
        return -1;
    }
    return 0;
}

static int close_both(void **state)
{
    (void)state;
    replay_close(&linux_host);
    replay_close(&mac_host);
    return 0;
}

static struct plan *ask(const struct replay *r, int64_t batch, int64_t microbatch)
{
    struct plan *p = NULL;
    struct yk_diag why = {0}, bad = {0};
    yk_err err = microbatch < 0 ? replay_best(r, batch, &p, &why) : replay_plan(r, batch, microbatch, &p, &why);
    if (err)
        fail_msg("%s", why.text);
    if (plan_check(p, r->graph, NULL, &bad))
        fail_msg("%s", bad.text);
    assert_non_null(p->best_single);
    assert_true(p->step_ms <= p->best_single_ms * (1 + 1e-9));
    assert_true(p->bound_ms <= p->cost_ms * (1 + 1e-12) && p->gap >= 0);
    return p;
}

/* Parts and their times are the reported ones again: what the host takes before a cut, and the phone behind it. */
static void times_are_the_reported_ones(void **state)
{
    (void)state;
    const struct replay *r = &linux_host;
    double host[REPLAY_PARTS] = {0}, phone[REPLAY_PARTS] = {0};
    for (int a = 0; a < 2; a++)
        for (int32_t i = 0; i < r->agents[a].n_times; i++) {
            const struct view_time *t = &r->times[a][i];
            if (t->size == 8)
                (a ? phone : host)[r->part[t->node]] += t->ms;
        }
    assert_true(fabs(host[0] - (99.2 + 161.1)) < 1e-9); /* C1, microbatch of 8 */
    assert_true(fabs(host[0] + host[1] - (156.85 + 278.4)) < 1e-9);
    assert_true(fabs(host[0] + host[1] + host[2] - (235.65 + 429.15)) < 1e-9);
    assert_true(phone[0] == 0);
    assert_true(fabs(phone[1] + phone[2] + phone[3] - 203.0) < 1e-9);
    assert_true(fabs(phone[2] + phone[3] - 150.28) < 1e-9 && fabs(phone[3] - 67.7) < 1e-9);
}

static void figures(void **state)
{
    (void)state;
    static const struct {
        bool mac;
        int64_t batch;
        double bar_ms, alone_ms;
    } rows[] = {
        {false, 64, 2190, 6159.0},
        {false, 128, 4380, 12383.0},
        {false, 256, 8610, 25649.9},
        {true, 128, 2870, 9138.5},
        {true, 256, 5730, 17565.6},
    };
    for (size_t i = 0; i < YK_COUNT(rows); i++) {
        const struct replay *r = rows[i].mac ? &mac_host : &linux_host;
        struct plan *p = ask(r, rows[i].batch, -1);
        const struct plan_pipeline *line = &p->pipelines[0];
        print_message("%s, batch %lld: %.0f ms, microbatch %lld, depth %d, %s\n", rows[i].mac ? "mac" : "linux",
            (long long)rows[i].batch, p->step_ms, (long long)p->microbatch, line->depth, p->bottleneck);
        assert_true(p->step_ms <= rows[i].bar_ms && p->step_ms < rows[i].alone_ms);
        assert_int_equal(line->n_stages, 3); /* forward, all of the phone, backward */
        for (int s = 0; s < 3; s++)
            assert_string_equal(line->stages[s].agent, s == 1 ? "phone" : "host");
        for (int32_t k = 0; k < line->stages[1].n_nodes; k++)
            for (int32_t n = line->stages[1].nodes[k].first; n <= line->stages[1].nodes[k].last; n++)
                assert_true(r->part[n] >= 1); /* layer1 is the host's */
        for (int32_t c = 0; c < p->n_cuts; c++)
            assert_int_equal(p->cuts[c].codec, CODEC_FP16);
        plan_free(p);
    }
}

/* More inside than there are stages: the link's latency and its sharing want it. */
static void depth_above_two(void **state)
{
    (void)state;
    struct plan *p = ask(&linux_host, 64, 8);
    assert_true(fabs(p->step_ms - 2082.4) < 0.1); /* 8 times what the host computes: nothing takes less at this cut */
    assert_int_equal(p->pipelines[0].depth, 6);
    plan_free(p);
    for (int i = 0; i < 2; i++) {
        p = ask(i ? &mac_host : &linux_host, 128, -1);
        assert_true(p->pipelines[0].depth > 2);
        plan_free(p);
    }
}

/* The planner's own choice of the microbatch: not below what batch normalisation is trained on unless asked. */
static void microbatch_of_its_own(void **state)
{
    (void)state;
    struct plan *p = ask(&linux_host, 256, 0);
    assert_true(p->microbatch >= 16 && p->pipelines[0].depth > 2);
    assert_true(p->step_ms < 14242.8); /* what their system took */
    plan_free(p);
}

/* Every cut of the chain, priced and scored one by one: none is better by a thousandth than what the planner found by
 * the closed form. */
static double best_cut(const struct replay *r, int64_t batch, int64_t microbatch)
{
    static const bool codecs[] = {true, true, false};
    const struct graph *g = r->graph;
    const struct solve_training *t = &r->training;
    struct solve_request q = {.graph = g,
        .job = "train",
        .batch = batch,
        .microbatch = microbatch,
        .source = 0,
        .codec_allowed = codecs,
        .training = t};
    struct cost_model m;
    struct yk_diag why = {0};
    int32_t *form = calloc((size_t)g->n_nodes, sizeof *form), *stage_of = calloc((size_t)g->n_nodes, sizeof *stage_of);
    double best = INFINITY;
    if (cost_init(&m, &q, &r->view, form, microbatch, &why))
        fail_msg("%s", why.text);
    for (int32_t cut = 1; cut < t->n_forward; cut++) {
        struct candidate c = {.microbatch = microbatch, .count = m.count, .n_lines = 1};
        for (int32_t i = 0; i < g->n_nodes; i++)
            stage_of[i] = t->of[i] >= cut ? 1 : i < t->first_backward ? 0 : 2;
        c.lines = calloc(1, sizeof *c.lines);
        c.shares = calloc(1, sizeof *c.shares);
        c.shares[0] = 1;
        if (cost_price(&m, 0, (const int32_t[]){0, 1, 0}, 3, stage_of, NULL, 0, &c.lines[0], &why) == YK_OK) {
            c.cost_ms = c.lines[0].cost_ms;
            if (candidate_score(&m, &c, 16, 0, &why) == YK_OK)
                best = YK_MIN(best, c.step_ms);
        }
        candidate_fini(&c);
    }
    cost_fini(&m);
    free(form);
    free(stage_of);
    return best;
}

static void no_cut_is_better(void **state)
{
    (void)state;
    static const int64_t cases[][2] = {{64, 8}, {256, 32}};
    for (size_t i = 0; i < YK_COUNT(cases); i++)
        for (int k = 0; k < 2; k++) {
            const struct replay *r = k ? &mac_host : &linux_host;
            struct plan *p = ask(r, cases[i][0], cases[i][1]);
            double best = best_cut(r, cases[i][0], cases[i][1]);
            if (p->step_ms > best * 1.001)
                fail_msg("%s, batch %lld by %lld: %.2f ms planned, %.2f ms is there", k ? "mac" : "linux",
                    (long long)cases[i][0], (long long)cases[i][1], p->step_ms, best);
            plan_free(p);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(times_are_the_reported_ones),
        cmocka_unit_test(figures),
        cmocka_unit_test(depth_above_two),
        cmocka_unit_test(microbatch_of_its_own),
        cmocka_unit_test(no_cut_is_better),
    };
    return cmocka_run_group_tests(tests, open_both, close_both);
}
