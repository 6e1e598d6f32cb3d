/* A long job on devices whose speed changes, on time that the test counts: the planner, the measured pace and the
 * decision to move together, against an oracle that knows every speed at once and moves for nothing. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "scheduler/policy.h"
#include "tests/unit/plan_fleet.h"

#define NODES 24
#define BATCH 64
#define MICROBATCH 8
#define MOVE_MS 800

struct world {
    struct pf f;
    struct graph *g;
    double ms[2][NODES];
};

static void world_init(struct world *w, double a_ms, double b_ms)
{
    pf_init(&w->f);
    pf_agent(&w->f, "a", 1, (int64_t)1 << 30);
    pf_agent(&w->f, "b", 1, (int64_t)1 << 30);
    pf_both(&w->f, 0, 1, 1e9, 0.1);
    w->g = pf_chain(NODES, 256);
    for (int i = 0; i < NODES; i++) {
        w->ms[0][i] = a_ms;
        w->ms[1][i] = b_ms;
    }
    pf_profile(&w->f, 0, w->ms[0], NODES);
    pf_profile(&w->f, 1, w->ms[1], NODES);
}

static void world_fini(struct world *w)
{
    pf_fini(&w->f);
    graph_close(w->g);
}

/* forced NULL: the best plan; else what that one takes. slow: of b. */
static struct plan *plan_at(struct world *w, double slow, bool usable, const struct plan *forced)
{
    const bool fp32[3] = {true, false, false};
    struct solve_request r = {.graph = w->g,
        .model = "m",
        .job = "batch",
        .objective = SOLVE_THROUGHPUT,
        .batch = BATCH,
        .microbatch = MICROBATCH,
        .source = 0,
        .codec_allowed = fp32,
        .forced = forced};
    struct plan *p = NULL;
    struct yk_diag why = {0};
    w->f.agents[1].slow_factor = slow;
    w->f.agents[1].usable = usable;
    if (solve_plan(&r, &w->f.view, &p, &why))
        fail_msg("%s", why.text);
    return p;
}

static double step_ms(struct world *w, double slow, const struct plan *plan)
{
    struct plan *p = plan_at(w, slow, true, plan);
    double ms = p->step_ms;
    plan_free(p);
    return ms;
}

static bool uses_b(const struct plan *p)
{
    for (int32_t k = 0; k < p->pipelines[0].n_stages; k++)
        if (strcmp(p->pipelines[0].stages[k].agent, "b") == 0)
            return true;
    return false;
}

struct outcome {
    double took_ms, oracle_ms, still_ms; /* as decided, known at once, never moved */
    int moves, first_move;               /* the first, in steps; -1 */
};

/* slow(t): how much slower b is than its profile, t in ms of the run as decided. */
static struct outcome run(struct world *w, int steps, double (*slow)(double t))
{
    struct outcome o = {.first_move = -1};
    struct policy_pace pace = {0};
    double believed = 1;
    int64_t dwell_until = 0;
    bool wanted = false;
    struct plan *plan = plan_at(w, 1, true, NULL), *first = plan_copy(plan);
    for (int i = 0; i < steps; i++) {
        double t = o.took_ms, now = slow(t), ms = step_ms(w, now, plan);
        o.took_ms += ms;
        o.still_ms += step_ms(w, now, first);
        struct plan *best = plan_at(w, now, true, NULL);
        o.oracle_ms += best->step_ms;
        plan_free(best);
        /* What dispatch_stats.c does with every eight microbatches, and jobs_review.c with what comes of it. */
        if (uses_b(plan))
            wanted = policy_pace_add(&pace, &policy_default, now, (int64_t)t, &believed) || wanted;
        else
            wanted = policy_pace_forget(&pace, &policy_default, (int64_t)t, &believed) || wanted;
        if (!wanted || o.took_ms < (double)dwell_until)
            continue;
        wanted = false;
        struct plan *other = plan_at(w, believed, true, NULL);
        if (policy_pays(&policy_default, step_ms(w, believed, plan), other->step_ms, ms, steps - i - 1, MOVE_MS)) {
            plan_free(plan);
            plan = other;
            o.took_ms += MOVE_MS;
            o.moves++;
            o.first_move = o.first_move < 0 ? i : o.first_move;
            dwell_until = (int64_t)o.took_ms + policy_default.dwell_ms;
        } else {
            plan_free(other);
        }
    }
    plan_free(plan);
    plan_free(first);
    return o;
}

static double steady(double t)
{
    (void)t;
    return 1;
}

/* 24 -> 5 frames a second within minutes. */
static double five_times_slower(double t)
{
    double part = (t - 60000) / 300000;
    return 1 + 4 * YK_MIN(YK_MAX(part, 0.0), 1.0);
}

static double at_once(double t)
{
    return t < 60000 ? 1 : 5;
}

static double for_a_while(double t)
{
    return t > 60000 && t < 360000 ? 5 : 1;
}

static double noisy(double t)
{
    return 1 + 0.15 * sin(t * 12.9898);
}

static void nothing_changes(void **state)
{
    (void)state;
    struct world w;
    world_init(&w, 1, 1);
    struct outcome o = run(&w, 400, steady);
    assert_int_equal(o.moves, 0);
    assert_true(fabs(o.took_ms - o.oracle_ms) < 1e-6 * o.oracle_ms);
    o = run(&w, 400, noisy);
    assert_int_equal(o.moves, 0);
    assert_true(o.took_ms < 1.1 * o.oracle_ms);
    world_fini(&w);
}

/* A device that slows down 5 times over five minutes: near the oracle, far below staying where it was. */
static void slows_down(void **state)
{
    (void)state;
    struct world w;
    world_init(&w, 4, 2);
    struct outcome o = run(&w, 700, five_times_slower);
    print_message("ramp: %d moves, %.1f s, oracle %.1f s, never moved %.1f s\n", o.moves, o.took_ms / 1e3,
        o.oracle_ms / 1e3, o.still_ms / 1e3);
    assert_true(o.moves >= 1 && o.moves <= 8);
    assert_true(o.took_ms <= 1.1 * o.oracle_ms);
    assert_true(o.still_ms >= 1.5 * o.took_ms);
    world_fini(&w);
}

static void slow_at_once(void **state)
{
    (void)state;
    struct world w;
    world_init(&w, 4, 2);
    struct plan *p = plan_at(&w, 1, true, NULL);
    double before = 60000 / p->step_ms;
    plan_free(p);
    struct outcome o = run(&w, 700, at_once);
    assert_int_equal(o.moves, 1);
    assert_true(o.first_move - before <= POLICY_WINDOWS + 1); /* in steps */
    assert_true(o.took_ms <= 1.05 * o.oracle_ms);
    world_fini(&w);
}

/* It gets well again without anybody measuring it: it is tried after a hold-off, each time later, and then kept. */
static void comes_back(void **state)
{
    (void)state;
    struct world w;
    world_init(&w, 5, 0.75); /* alone five times slower it is no use */
    struct outcome o = run(&w, 1200, for_a_while);
    print_message("back: %d moves, %.1f s, oracle %.1f s\n", o.moves, o.took_ms / 1e3, o.oracle_ms / 1e3);
    assert_true(o.took_ms <= 1.15 * o.oracle_ms);
    assert_true(o.moves >= 2 && o.moves <= 10);
    world_fini(&w);
}

/* The ambient ramp: its share shrinks, then it has none. */
static void share_shrinks_then_none(void **state)
{
    (void)state;
    struct world w;
    world_init(&w, 1, 1);
    struct policy p = policy_default;
    struct policy_device d = {0};
    p.hot_celsius = 45;
    const char *kind;
    char text[160];
    int32_t nodes[3] = {0}, seen = 0;
    for (double t = 30; t < 50; t += 0.1) {
        struct policy_sensors s = {"", t, NAN, false};
        if (t > 30.05 && !policy_sense(&d, &p, &s, (int64_t)(t * 60000), &kind, text))
            continue;
        struct plan *plan = plan_at(&w, 1 / policy_share(&d, &p), d.mode != POLICY_RESTING, NULL);
        for (int32_t k = 0; k < plan->pipelines[0].n_stages; k++) {
            const struct plan_stage *st = &plan->pipelines[0].stages[k];
            for (int32_t r = 0; strcmp(st->agent, "b") == 0 && r < st->n_nodes; r++)
                nodes[seen] += st->nodes[r].last - st->nodes[r].first + 1;
        }
        seen++;
        plan_free(plan);
    }
    assert_int_equal(seen, 3);
    assert_int_equal(nodes[0], NODES / 2);
    assert_true(nodes[1] < nodes[0] && nodes[1] > 0);
    assert_int_equal(nodes[2], 0);
    world_fini(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nothing_changes),
        cmocka_unit_test(slows_down),
        cmocka_unit_test(slow_at_once),
        cmocka_unit_test(comes_back),
        cmocka_unit_test(share_shrinks_then_none),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
