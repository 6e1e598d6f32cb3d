/* What running pipelines take of a snapshot. */
#include <math.h>

#include "scheduler/busy.h"
#include "tests/unit/plan_fleet.h"

static struct plan_stage on(const char *agent, double ms)
{
    return (struct plan_stage){.agent = (char *)agent, .predicted_ms = ms};
}

static bool near(double a, double b)
{
    return fabs(a - b) < 1e-12;
}

/* 16 samples in 4 microbatches, 40 ms a step: the first stage takes 4 x 8 of 40 ms, the second 4 x 2, a transfer 4 x 3.
 */
static void what_a_plan_takes(void **state)
{
    (void)state;
    struct pf f;
    struct busy b;
    struct plan_stage stages[2] = {on("phone", 8), on("id-pc", 2)};
    struct plan_pipeline line = {.share = 1, .depth = 2, .stages = stages, .n_stages = 2};
    struct plan_cut cuts[] = {{.from = 0, .to = 1, .predicted_ms = 3.5}, {.from = 1, .to = -1, .predicted_ms = 0.5},
        {.from = 7, .to = 9, .predicted_ms = 1}, {.pipeline = 3, .from = 0, .to = 1, .predicted_ms = 9}};
    struct plan p = {.microbatch = 4, .batch = 16, .pipelines = &line, .n_pipelines = 1, .cuts = cuts, .n_cuts = 4};
    p.source = (char *)"phone";
    p.step_ms = 40;
    for (int half = 0; half < 2; half++) {
        pf_init(&f);
        pf_agent(&f, "phone", 1, 1 << 20);
        pf_agent(&f, "pc", 1, 1 << 20);
        pf_agent(&f, "idle", 1, 1 << 20);
        pf_link(&f, 0, 1, 100, 0.5)->shared = half ? 3 : -1;
        pf_link(&f, 1, 0, 100, 0.5)->shared = half ? 3 : -1;
        pf_link(&f, 0, 2, 100, 0.5);
        busy_init(&b, &f.view);
        busy_add(&b, &f.view, &p, 0);
        busy_apply(&b, &f.view);
        assert_true(near(f.agents[0].busy_frac, 0.5)); /* 0.8, but one of two gets half */
        assert_true(near(f.agents[1].busy_frac, 0.2) && near(f.agents[2].busy_frac, 0));
        assert_true(near(f.links[0].bytes_per_s, 70) && near(f.links[1].bytes_per_s, half ? 70 : 100));
        assert_true(near(f.links[2].bytes_per_s, 100));
        pf_fini(&f);
    }
}

static void pipelines_add_up(void **state)
{
    (void)state;
    struct pf f;
    struct busy b;
    struct plan_stage one[1] = {on("pc", 10)}, two[1] = {on("pc", 6)};
    struct plan_pipeline lines[2] = {
        {.share = 0.5, .stages = one, .n_stages = 1}, {.share = 0.5, .stages = two, .n_stages = 1}};
    struct plan p = {.microbatch = 1, .batch = 4, .pipelines = lines, .n_pipelines = 2, .step_ms = 100};
    struct plan gone = {.microbatch = 1, .batch = 4, .pipelines = lines, .n_pipelines = 2}; /* nothing was predicted */
    pf_init(&f);
    pf_agent(&f, "pc", 1, 1 << 20);
    busy_init(&b, &f.view);
    busy_add(&b, &f.view, &p, 0);
    busy_add(&b, &f.view, &p, 1);
    busy_add(&b, &f.view, &gone, 0);
    busy_apply(&b, &f.view);
    assert_true(near(f.agents[0].busy_frac, 0.2 + 0.12));
    p.step_ms = 1; /* far too much: of three each gets a third */
    busy_init(&b, &f.view);
    busy_add(&b, &f.view, &p, 0);
    busy_add(&b, &f.view, &p, 1);
    busy_apply(&b, &f.view);
    assert_true(near(f.agents[0].busy_frac, 2.0 / 3));
    pf_fini(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_a_plan_takes),
        cmocka_unit_test(pipelines_add_up),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
