/* The event model against schedules worked out by hand. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "scheduler/schedule.h"

#define BEFORE(...) \
    .before = (const int32_t[]){__VA_ARGS__}, .n_before = (int32_t)(sizeof((int32_t[]){__VA_ARGS__}) / 4)

static struct schedule_result run(const struct schedule *s, double *busy)
{
    struct schedule_result r = {.busy_ms = busy};
    assert_int_equal(schedule_run(s, &r, NULL, NULL), YK_OK);
    return r;
}

static void near(double got, double want)
{
    if (!(fabs(got - want) <= 1e-9 * (1 + fabs(want))))
        fail_msg("got %.17g, want %.17g", got, want);
}

static void one_stage(void **state)
{
    (void)state;
    double busy[1];
    struct schedule_step steps[] = {{.resource = 0, .busy_ms = 3}};
    struct schedule s = {.steps = steps, .n_steps = 1, .n_resources = 1, .microbatches = 5, .depth = 1};
    struct schedule_result r = run(&s, busy);
    near(r.total_ms, 15);
    near(r.steady_ms, 3);
    near(busy[0], 15);
    s.depth = 4; /* nothing to overlap */
    near(run(&s, busy).total_ms, 15);
    s.microbatches = 0;
    near(run(&s, busy).total_ms, 0);
    s.microbatches = 1;
    near(run(&s, NULL).steady_ms, 3);
}

/* Two equal stages of 2 ms: fill once, then one microbatch every 2 ms. */
static void fill(void **state)
{
    (void)state;
    struct schedule_step steps[] = {{.resource = 0, .busy_ms = 2}, {.resource = 1, .busy_ms = 2, BEFORE(0)}};
    struct schedule s = {.steps = steps, .n_steps = 2, .n_resources = 2, .microbatches = 6, .depth = 2};
    double busy[2];
    near(run(&s, busy).total_ms, 2 + 6 * 2);
    near(busy[0], 12);
    near(busy[1], 12);
    s.depth = 1; /* no overlap at all */
    near(run(&s, busy).total_ms, 6 * 4);
    /* the smaller last microbatch: half of everything, behind the others */
    s.depth = 2;
    s.last_frac = 0.5;
    near(run(&s, busy).total_ms, 2 + 5 * 2 + 1);
    near(busy[0], 11);
}

/* Stage 1 ms, link 4 ms of latency alone, stage 1 ms. One microbatch takes 6 ms; depth d lets d of them be inside, so a
 * long run has d microbatches every 6 ms until a stage is the limit. */
static void latency_occupies_nothing(void **state)
{
    (void)state;
    struct schedule_step steps[] = {{.resource = 0, .busy_ms = 1},
        {.resource = 2, .busy_ms = 0, .latency_ms = 4, BEFORE(0)}, {.resource = 1, .busy_ms = 1, BEFORE(1)}};
    struct schedule s = {.steps = steps, .n_steps = 3, .n_resources = 3, .microbatches = 12};
    double busy[3];
    for (s.depth = 1; s.depth <= 6; s.depth++)
        near(run(&s, busy).total_ms, 6.0 * ((12 - 1) / s.depth) + 6 + (12 - 1) % s.depth);
    near(busy[2], 0);
    s.depth = 9;
    near(run(&s, busy).total_ms, 6 + 11);
}

/* Stage 1, link busy 3, stage 1: the link is the bottleneck whatever the depth, once the depth is 2. By hand at depth
 * 2: transfers at 1-4, 4-7, then the third entered when the first was through (5), computed to 6, waits to 7 ... */
static void slow_link(void **state)
{
    (void)state;
    struct schedule_step steps[] = {{.resource = 0, .busy_ms = 1}, {.resource = 2, .busy_ms = 3, BEFORE(0)},
        {.resource = 1, .busy_ms = 1, BEFORE(1)}};
    struct schedule s = {.steps = steps, .n_steps = 3, .n_resources = 3, .microbatches = 4, .depth = 1};
    near(run(&s, NULL).total_ms, 20);
    s.depth = 2;
    near(run(&s, NULL).total_ms, 1 + 4 * 3 + 1);
    near(run(&s, NULL).steady_ms, 3);
}

/* There (2 ms) and back (2 ms): over two directions they overlap, over one medium they add up. */
static void half_duplex(void **state)
{
    (void)state;
    struct schedule_step steps[] = {{.resource = 1, .busy_ms = 2}, {.resource = 0, .busy_ms = 1, BEFORE(0)},
        {.resource = 2, .busy_ms = 2, BEFORE(1)}};
    struct schedule s = {.steps = steps, .n_steps = 3, .n_resources = 3, .microbatches = 40, .depth = 8};
    near(run(&s, NULL).total_ms, 5 + 39 * 2);
    steps[2].resource = 1;
    struct schedule_result r = run(&s, NULL);
    near(r.total_ms, 40 * 4); /* the medium never rests: one goes back while another computes */
}

struct trace {
    int n;
    int32_t step[64];
    int64_t mb[64];
    double at[64], end[64];
};

static void note(void *arg, int64_t mb, int32_t step, double start, double end)
{
    struct trace *t = arg;
    assert_true(t->n < 64);
    t->mb[t->n] = mb;
    t->step[t->n] = step;
    t->at[t->n] = start;
    t->end[t->n++] = end;
}

static double start_of(const struct trace *t, int64_t mb, int32_t step)
{
    for (int i = 0; i < t->n; i++)
        if (t->mb[i] == mb && t->step[i] == step)
            return t->at[i];
    fail_msg("microbatch %lld never ran step %d", (long long)mb, step);
    return 0;
}

/* F0 F1 B1 B0 of 1 ms each on two devices, two microbatches inside. Forward first: device 0 is at F of microbatch 1
 * (1-2), device 1 takes F of microbatch 1 at 2 although B of microbatch 0 waits too (GPipe); backward first: B goes
 * at 2. */
static void order(void **state)
{
    (void)state;
    struct schedule_step steps[] = {{.resource = 0, .busy_ms = 1}, {.resource = 1, .busy_ms = 1, BEFORE(0)},
        {.resource = 1, .busy_ms = 1, .backward = true, BEFORE(1)},
        {.resource = 0, .busy_ms = 1, .backward = true, BEFORE(2)}};
    struct schedule s = {.steps = steps, .n_steps = 4, .n_resources = 2, .microbatches = 2, .depth = 2};
    struct trace gpipe = {0}, one = {0};
    struct schedule_result r = {0};
    assert_int_equal(schedule_run(&s, &r, note, &gpipe), YK_OK);
    near(start_of(&gpipe, 1, 1), 2);
    near(start_of(&gpipe, 0, 2), 3);
    near(r.total_ms, 6);
    s.order = SCHEDULE_BACKWARD_FIRST;
    assert_int_equal(schedule_run(&s, &r, note, &one), YK_OK);
    near(start_of(&one, 0, 2), 2);
    near(start_of(&one, 1, 1), 3);
    near(r.total_ms, 6);
    /* no device does two things at once, and nothing comes before what it needs */
    for (int i = 0; i < one.n; i++)
        for (int k = 0; k < i; k++)
            if (steps[one.step[i]].resource == steps[one.step[k]].resource)
                assert_true(one.at[i] >= one.end[k] || one.at[k] >= one.end[i]);
}

static void refuses(void **state)
{
    (void)state;
    struct schedule_result r = {0};
    struct schedule_step cycle[] = {{.resource = 0, .busy_ms = 1, BEFORE(1)}, {.resource = 0, .busy_ms = 1, BEFORE(0)}};
    struct schedule s = {.steps = cycle, .n_steps = 2, .n_resources = 1, .microbatches = 3, .depth = 1};
    assert_int_equal(schedule_run(&s, &r, NULL, NULL), YK_INVAL);
    struct schedule_step half[] = {{.resource = 0, .busy_ms = 1}, {.resource = 0, .busy_ms = 1, BEFORE(1)}};
    s.steps = half; /* one step runs, the other waits for itself */
    assert_int_equal(schedule_run(&s, &r, NULL, NULL), YK_INVAL);
    struct schedule_step good[] = {{.resource = 0, .busy_ms = 1}};
    s = (struct schedule){.steps = good, .n_steps = 1, .n_resources = 1, .microbatches = 3, .depth = 0};
    assert_int_equal(schedule_run(&s, &r, NULL, NULL), YK_INVAL);
    s.depth = 1;
    good[0].busy_ms = -1;
    assert_int_equal(schedule_run(&s, &r, NULL, NULL), YK_INVAL);
    good[0].busy_ms = NAN;
    assert_int_equal(schedule_run(&s, &r, NULL, NULL), YK_INVAL);
    good[0] = (struct schedule_step){.resource = 0, .latency_ms = -1};
    assert_int_equal(schedule_run(&s, &r, NULL, NULL), YK_INVAL);
    good[0] = (struct schedule_step){.resource = 1, .busy_ms = 1};
    assert_int_equal(schedule_run(&s, &r, NULL, NULL), YK_INVAL);
    good[0] = (struct schedule_step){.resource = 0, .busy_ms = 1, BEFORE(7)};
    assert_int_equal(schedule_run(&s, &r, NULL, NULL), YK_INVAL);
    s.n_steps = 0;
    assert_int_equal(schedule_run(&s, &r, NULL, NULL), YK_INVAL);
}

/* Runs beyond 256 microbatches are extrapolated. Two ways of 1,003 ms-exact truth: formulas. */
static void extrapolates(void **state)
{
    (void)state;
    double busy[3];
    struct schedule_step steps[] = {{.resource = 0, .busy_ms = 1},
        {.resource = 2, .busy_ms = 3, .latency_ms = 5, BEFORE(0)}, {.resource = 1, .busy_ms = 2, BEFORE(1)}};
    struct schedule s = {.steps = steps, .n_steps = 3, .n_resources = 3, .microbatches = 1003, .depth = 8};
    near(run(&s, busy).total_ms, 1 + 3 + 5 + 2 + 1002 * 3);
    near(busy[2], 3009);
    s.last_frac = 0.25;
    near(run(&s, busy).total_ms, 1 + 1002 * 3 + 5 + 2 + 0.5); /* it waits for the one before it */
    near(busy[2], 3 * 1002.25);
    s.last_frac = 0;
    /* limited by depth: d microbatches every 11 ms, in bursts 3 ms apart */
    for (s.depth = 1; s.depth <= 3; s.depth++)
        for (s.microbatches = 300; s.microbatches < 312; s.microbatches++)
            near(run(&s, busy).total_ms,
                11.0 * (double)((s.microbatches - 1) / s.depth) + 11 + 3.0 * (double)((s.microbatches - 1) % s.depth));
    /* a depth over all bounds is no reason to allocate by it */
    s.depth = INT32_MAX;
    s.microbatches = (int64_t)1 << 40;
    near(run(&s, busy).total_ms, 8 + 3.0 * (double)s.microbatches);
}

/* Seeded pipelines of up to four devices, there and back: what the model says of 256 + k microbatches by extrapolation
 * goes on where the simulation of up to 256 leads. */
static void extrapolates_any(void **state)
{
    (void)state;
    struct yk_rng rng;
    yk_rng_seed(&rng, 7);
    for (int round = 0; round < 300; round++) {
        struct schedule_step steps[9];
        int32_t before[9][1], n = (int32_t)(1 + 2 * yk_rng_below(&rng, 5));
        for (int32_t i = 0; i < n; i++) {
            before[i][0] = i - 1;
            steps[i] = (struct schedule_step){.resource = i,
                .busy_ms = (double)yk_rng_below(&rng, 9),
                .latency_ms = i % 2 ? (double)yk_rng_below(&rng, 20) : 0,
                .n_before = i > 0,
                .before = before[i]};
        }
        struct schedule s = {
            .steps = steps, .n_steps = n, .n_resources = n, .depth = 1 + (int32_t)yk_rng_below(&rng, 8)};
        s.last_frac = yk_rng_below(&rng, 2) ? 0.5 : 0;
        /* straight pipelines of single-server resources repeat after `depth` microbatches: 240 of them are exact */
        s.microbatches = 240 - 240 % s.depth;
        double a = run(&s, NULL).total_ms;
        s.microbatches -= s.depth * 10;
        double b = run(&s, NULL).total_ms;
        s.microbatches += s.depth * 10 * 30;
        double c = run(&s, NULL).total_ms;
        if (fabs(c - (a + 29 * (a - b))) > 1e-6 * c)
            fail_msg("round %d: %.9g, not %.9g", round, c, a + 29 * (a - b));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_stage),
        cmocka_unit_test(fill),
        cmocka_unit_test(latency_occupies_nothing),
        cmocka_unit_test(slow_link),
        cmocka_unit_test(half_duplex),
        cmocka_unit_test(order),
        cmocka_unit_test(refuses),
        cmocka_unit_test(extrapolates),
        cmocka_unit_test(extrapolates_any),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
