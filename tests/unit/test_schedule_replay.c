/* Replay of published measurements: ResNet-34 training steps of a host with a phone as second stage over USB. The event
 * model gets the measured stage times (medians, ms by microbatch size) and the link, and must tell the measured steps;
 * then it says what other cuts, codecs and depths would have given.
 * Source: mobilepipe_profile.json of the project's shared data (repository AlxV07/mobilepipe-isef, commit 841cddc). */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "scheduler/schedule.h"

#define RATE 39e6 /* bytes/s, both directions share it */
#define TO_MS 18.0
#define BACK_MS 5.0

struct times {
    int64_t microbatch;
    double forward, backward, phone; /* phone: forward, loss and backward in one call */
    double image_bytes;              /* boundary of one image, fp32 */
};

/* Host forward, link, phone, link, host backward; GPipe or 1F1B at a depth. */
static double step_ms(
    const struct times *t, int64_t batch, double bytes_per_element, int32_t depth, enum schedule_order order)
{
    double x = t->image_bytes * (double)t->microbatch * bytes_per_element / 4 / RATE * 1e3;
    static const int32_t before[] = {0, 1, 2, 3};
    const struct schedule_step steps[] = {
        {.resource = 0, .busy_ms = t->forward},
        {.resource = 2, .busy_ms = x, .latency_ms = TO_MS, .n_before = 1, .before = &before[0]},
        {.resource = 1, .busy_ms = t->phone, .n_before = 1, .before = &before[1]},
        {.resource = 2, .busy_ms = x, .latency_ms = BACK_MS, .backward = true, .n_before = 1, .before = &before[2]},
        {.resource = 0, .busy_ms = t->backward, .backward = true, .n_before = 1, .before = &before[3]},
    };
    const struct schedule s = {.steps = steps,
        .n_steps = 5,
        .n_resources = 3,
        .microbatches = batch / t->microbatch,
        .depth = depth,
        .order = order};
    struct schedule_result r = {.busy_ms = NULL};
    assert_int_equal(schedule_run(&s, &r, NULL, NULL), YK_OK);
    return r.total_ms;
}

static double best_ms(
    const struct times *t, int64_t batch, double bytes_per_element, int32_t max_depth, int32_t *best_depth)
{
    double best = INFINITY;
    for (int32_t d = 1; d <= max_depth; d++)
        for (int k = 0; k < 2; k++) {
            double ms = step_ms(t, batch, bytes_per_element, d, (enum schedule_order)k);
            if (ms < best * (1 - 1e-9)) {
                best = ms;
                *best_depth = d;
            }
        }
    return best;
}

/* What they measured, with every microbatch sent as soon as it is ready: within 5 %, half of them 2 %. */
static void measured_steps(void **state)
{
    (void)state;
    static const struct {
        struct times t;
        int64_t batch;
        double measured_ms;
    } steps[] = {
        {{2, 39.4, 65.45, 60.65, 401408}, 64, 3332.6}, /* Linux host, behind layer2 */
        {{4, 76.8, 132.8, 87.5, 401408}, 64, 3361.7},
        {{8, 156.85, 278.4, 150.28, 401408}, 32, 1768.4},
        {{8, 156.85, 278.4, 150.28, 401408}, 64, 3420.5},
        {{16, 321.4, 584.8, 252.88, 401408}, 64, 3481.2},
        {{32, 638.55, 1148.8, 452.1, 401408}, 128, 6922.6},
        {{64, 1359.8, 2317.45, 907.65, 401408}, 256, 14242.8},
        {{8, 105.6, 135.9, 67.7, 200704}, 64, 1932.4}, /* Mac host, behind layer3 */
        {{8, 105.6, 135.9, 67.7, 200704}, 128, 3947.3},
        {{8, 105.6, 135.9, 67.7, 200704}, 32, 937.7},
    };
    int close = 0;
    for (size_t i = 0; i < YK_COUNT(steps); i++) {
        int32_t depth = 0;
        double ms = best_ms(&steps[i].t, steps[i].batch, 4, 32, &depth), off = ms / steps[i].measured_ms - 1;
        print_message("microbatch %lld of %lld: %.0f ms by the model, %.0f ms measured, %+.1f %%\n",
            (long long)steps[i].t.microbatch, (long long)steps[i].batch, ms, steps[i].measured_ms, 100 * off);
        assert_true(fabs(off) <= 0.05);
        close += fabs(off) <= 0.02;
    }
    assert_true(2 * close >= (int)YK_COUNT(steps));
}

/* Behind layer1 in fp16: the optimum of 2.08 s, at depth 6; the number of stages as depth takes two fifths longer. */
static void best_depth(void **state)
{
    (void)state;
    const struct times t = {8, 99.2, 161.1, 203.0, 802816};
    int32_t depth = 0;
    double best = best_ms(&t, 64, 2, 16, &depth), two = INFINITY, five;
    assert_true(fabs(best - 2082) < 1);
    assert_int_equal(depth, 6);
    two = best_ms(&t, 64, 2, 2, &depth);
    five = best_ms(&t, 64, 2, 5, &depth);
    assert_true(two > 1.4 * best && five < 1.04 * best);
    /* over the slow link in fp32 as well: one microbatch at a time, as many as stages, and enough of them */
    double one = best_ms(&t, 64, 4, 1, &depth), wide;
    two = best_ms(&t, 64, 4, 2, &depth);
    wide = best_ms(&t, 64, 4, 16, &depth);
    assert_true(one > 1.7 * two && two > 1.2 * wide);
    assert_true(depth > 2);
    /* at the optimum the host never waits but for the first of all: its compute is the step */
    assert_true(fabs(best - 8 * (t.forward + t.backward)) < 1e-6 && wide > best);
}

/* The host alone takes 6159 ms for 64 images; the phone brings a third of that in their cut and two thirds in ours. */
static void against_the_host_alone(void **state)
{
    (void)state;
    const struct times theirs = {2, 39.4, 65.45, 60.65, 401408}, ours = {8, 99.2, 161.1, 203.0, 802816};
    int32_t depth;
    double a = best_ms(&theirs, 64, 4, 8, &depth), b = best_ms(&ours, 64, 2, 8, &depth);
    assert_true(a / 6159.0 < 0.56 && b / 6159.0 < 0.35);
    assert_true(b <= 2190); /* the bar for a replay */
}

/* A microbatch more never makes a step shorter, and neither does a slower link. */
static void monotone(void **state)
{
    (void)state;
    const struct times t = {2, 24.5, 38.3, 77.6, 802816};
    for (int32_t d = 1; d <= 8; d++)
        for (int k = 0; k < 2; k++) {
            double last = 0;
            for (int64_t batch = 2; batch <= 80; batch += 2) {
                double ms = step_ms(&t, batch, 4, d, (enum schedule_order)k);
                assert_true(ms >= last);
                last = ms;
            }
            assert_true(step_ms(&t, 64, 8, d, (enum schedule_order)k) >= step_ms(&t, 64, 2, d, (enum schedule_order)k));
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(measured_steps),
        cmocka_unit_test(best_depth),
        cmocka_unit_test(against_the_host_alone),
        cmocka_unit_test(monotone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
