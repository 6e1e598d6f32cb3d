/* Decisions about devices, moves and checkpoint sets, on time that the test counts. */
#include "scheduler/policy.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define PING_MS 1500

struct watch { /* a device that is watched: what it was told, and when */
    struct policy_device d;
    struct policy p;
    int64_t now_ms;
    int changes, rests;
    int64_t last_ms;  /* of the last change */
    int64_t least_ms; /* between two changes */
    const char *kind;
    char text[160];
};

static struct watch watch_of(double hot)
{
    struct watch w = {.p = policy_default, .least_ms = INT64_MAX, .last_ms = -1};
    w.p.hot_celsius = hot;
    return w;
}

static bool sense(struct watch *w, const struct policy_sensors *s)
{
    w->now_ms += PING_MS;
    enum policy_mode before = w->d.mode;
    if (!policy_sense(&w->d, &w->p, s, w->now_ms, &w->kind, w->text))
        return false;
    assert_int_not_equal(before, w->d.mode);
    if (w->last_ms >= 0)
        w->least_ms = YK_MIN(w->least_ms, w->now_ms - w->last_ms);
    w->last_ms = w->now_ms;
    w->changes++;
    w->rests += w->d.mode == POLICY_RESTING;
    return true;
}

static bool warm_to(struct watch *w, double celsius)
{
    struct policy_sensors s = {"", celsius, NAN, false};
    return sense(w, &s);
}

static bool battery_to(struct watch *w, double frac, bool charging)
{
    struct policy_sensors s = {"nominal", NAN, frac, charging};
    return sense(w, &s);
}

/* Two hours about the limit, one degree up and down: one transition, and never two within a hold-off. */
static void noise_at_the_limit(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 200; seed++) {
        struct yk_rng r;
        yk_rng_seed(&r, seed);
        struct watch w = watch_of(45);
        warm_to(&w, 44); /* is warm before that */
        w.last_ms = -1;
        w.changes = 0;
        for (int i = 0; i < 4800; i++)
            warm_to(&w, 45 + (double)yk_rng_below(&r, 2001) / 1000 - 1);
        assert_int_equal(w.changes, 1);
        assert_int_equal(w.d.mode, POLICY_RESTING);
    }
    /* Noise wider than the hysteresis: still no more than one in a hold-off. */
    for (uint64_t seed = 1; seed <= 50; seed++) {
        struct yk_rng r;
        yk_rng_seed(&r, seed);
        struct watch w = watch_of(45);
        w.p.warm_celsius = 0;
        for (int i = 0; i < 4800; i++)
            warm_to(&w, 45 + (double)yk_rng_below(&r, 12001) / 1000 - 6);
        assert_true(w.changes > 2);
        assert_true(w.least_ms >= w.p.hold_ms);
    }
}

static void declared_heat_that_flips(void **state)
{
    (void)state;
    struct watch w = watch_of(0);
    for (int i = 0; i < 2400; i++) {
        struct policy_sensors s = {i % 2 ? "serious" : "nominal", NAN, NAN, false};
        sense(&w, &s);
    }
    assert_true(w.least_ms >= w.p.hold_ms);
    assert_true(w.changes >= 2 && w.changes <= 2400 * PING_MS / w.p.hold_ms + 1);
    /* Without a limit of ours degrees say nothing. */
    struct watch hot = watch_of(0);
    assert_false(warm_to(&hot, 120));
    assert_int_equal(hot.d.mode, POLICY_FULL);
}

/* The hot car: first less, then nothing; back the same way, a hold-off for each step. */
static void ramp(void **state)
{
    (void)state;
    struct watch w = watch_of(45);
    double t = 30;
    assert_true(policy_share(&w.d, &w.p) == 1);
    for (; t < 45 - w.p.warm_celsius; t += 0.05)
        assert_false(warm_to(&w, t));
    while (!warm_to(&w, t))
        t += 0.05;
    assert_int_equal(w.d.mode, POLICY_WARM);
    assert_string_equal(w.kind, "warm");
    assert_true(policy_share(&w.d, &w.p) == w.p.warm_share);
    assert_true(fabs(t - 40) < 0.1);
    while (!warm_to(&w, t))
        t += 0.05;
    assert_int_equal(w.d.mode, POLICY_RESTING);
    assert_string_equal(w.kind, "hot");
    assert_non_null(strstr(w.text, "the limit is 45.0 (hot-celsius)"));
    assert_true(fabs(t - 45) < 0.1);
    for (; t < 50; t += 0.05)
        assert_false(warm_to(&w, t));
    while (!warm_to(&w, t))
        t -= 0.05;
    assert_int_equal(w.d.mode, POLICY_WARM);
    assert_string_equal(w.kind, "cooled");
    assert_true(t < 42.01);
    while (!warm_to(&w, t))
        t -= 0.05;
    assert_int_equal(w.d.mode, POLICY_FULL);
    assert_true(t < 37.01);
    assert_int_equal(w.changes, 4);
    assert_true(w.least_ms >= w.p.hold_ms);
}

static void critical_does_not_wait(void **state)
{
    (void)state;
    struct watch w = watch_of(45);
    warm_to(&w, 46);
    while (!warm_to(&w, 20))
        ;
    assert_int_equal(w.d.mode, POLICY_FULL);
    assert_false(warm_to(&w, 47)); /* it was just used again */
    assert_true(warm_to(&w, 56));
    assert_int_equal(w.d.mode, POLICY_RESTING);
}

static void battery(void **state)
{
    (void)state;
    struct watch w = watch_of(0);
    double b = 0.9;
    for (; b > 0.301; b -= 0.01)
        assert_false(battery_to(&w, b, false));
    assert_true(battery_to(&w, 0.29, false));
    assert_string_equal(w.kind, "battery");
    assert_int_equal(w.d.mode, POLICY_WARM);
    assert_true(battery_to(&w, 0.19, false));
    assert_int_equal(w.d.mode, POLICY_RESTING);
    assert_non_null(strstr(w.text, "battery at 19 %, the floor is 20 % (battery-floor)"));
    for (int i = 0; i < 100; i++)
        assert_false(battery_to(&w, 0.19 + 0.01 * (i % 5), i % 2)); /* not clearly above the floor */
    assert_true(battery_to(&w, 0.26, true));
    assert_int_equal(w.d.mode, POLICY_FULL);
    assert_string_equal(w.kind, "cooled");
    /* Who has none, and who does not say. */
    struct watch none = watch_of(0);
    assert_false(battery_to(&none, NAN, false));
    assert_false(battery_to(&none, 0, false));
}

/* BOINC#5815: it drains while it is plugged in. */
static void discharge_while_charging(void **state)
{
    (void)state;
    struct watch w = watch_of(0);
    double b = 0.60;
    for (int i = 0; i < 10; i++)
        assert_false(battery_to(&w, b, true));
    assert_false(battery_to(&w, 0.59, true)); /* a percent is nothing */
    assert_true(battery_to(&w, 0.58, true));
    assert_int_equal(w.d.mode, POLICY_WARM);
    assert_non_null(strstr(w.text, "while it is charging"));
    assert_false(battery_to(&w, 0.57, true));
    assert_true(battery_to(&w, 0.56, true));
    assert_int_equal(w.d.mode, POLICY_RESTING);
    for (int i = 0; i < 100; i++)
        assert_false(battery_to(&w, 0.55, true));
    for (b = 0.55; !battery_to(&w, b, true); b += 0.002)
        assert_true(b < 0.65);
    assert_int_equal(w.d.mode, POLICY_FULL);
    assert_true(b > 0.599);
    /* It is measured anew from there. */
    assert_false(battery_to(&w, b - 0.01, true));
    /* Kept between 95 and 100 %: no loss. */
    struct watch full = watch_of(0);
    for (int i = 0; i < 1000; i++)
        assert_false(battery_to(&full, 1 - 0.01 * (i % 6), true));
    /* Off, then on again: what was lost off the mains does not count. */
    struct watch off = watch_of(0);
    assert_false(battery_to(&off, 0.7, true));
    for (b = 0.7; b > 0.5; b -= 0.01)
        assert_false(battery_to(&off, b, false));
    assert_false(battery_to(&off, 0.49, true));
}

static void pace(void **state)
{
    (void)state;
    struct policy_pace p = {0};
    double slow = 1;
    struct yk_rng r;
    yk_rng_seed(&r, 7);
    for (int i = 0; i < 1000; i++)
        assert_false(
            policy_pace_add(&p, &policy_default, 1 + ((double)yk_rng_below(&r, 2001) / 1000 - 1) * 0.1, i, &slow));
    assert_true(fabs(slow - 1) < 0.1);
    assert_false(policy_pace_add(&p, &policy_default, 20, 1000, &slow)); /* one hiccup */
    slow = 1;
    for (int i = 0; i < POLICY_WINDOWS; i++)
        assert_false(policy_pace_add(&p, &policy_default, 1, 1001, &slow));
    /* Five times slower: believed at the third. */
    slow = 1;
    bool jumped = false;
    for (int i = 0; i < POLICY_WINDOWS && !jumped; i++)
        jumped = policy_pace_add(&p, &policy_default, 5, 2000, &slow);
    assert_true(jumped);
    assert_true(fabs(slow - 5) < 1e-9);
    /* Nothing runs there: after a hold-off it may be well again; who is not waits twice as long. */
    int64_t hold = policy_default.hold_ms, now = 2000;
    assert_false(policy_pace_forget(&p, &policy_default, now + hold - 1, &slow));
    assert_true(policy_pace_forget(&p, &policy_default, now + hold, &slow));
    assert_true(slow == 1);
    now += hold;
    for (int i = 0; i < POLICY_WINDOWS; i++)
        policy_pace_add(&p, &policy_default, 5, now, &slow);
    assert_true(slow > 4.9);
    assert_false(policy_pace_forget(&p, &policy_default, now + 2 * hold - 1, &slow));
    assert_true(policy_pace_forget(&p, &policy_default, now + 2 * hold, &slow));
    for (int i = 0; i < POLICY_WINDOWS; i++)
        policy_pace_add(&p, &policy_default, 1, now, &slow);
    assert_int_equal(p.relapses, 0);
}

/* A shared device that is fast and slow in turn: told once, and then only of what lasts. */
static void pace_that_flaps(void **state)
{
    (void)state;
    const struct policy *policy = &policy_default;
    struct policy_pace p = {0};
    double slow = 1;
    int64_t now = 1000, dwell = policy->dwell_ms;
    int told = 0;
    for (int turn = 0; turn < 40; turn++) /* of 10 s: each is believed, and most are not told */
        for (int i = 0; i < 10; i++, now += 1000)
            told += policy_pace_add(&p, policy, turn % 2 ? 0.5 : 3.5, now, &slow);
    if (told < 1 || told > 1 + 400000 / (POLICY_QUIET * dwell))
        fail_msg("told %d times", told);
    assert_true(fabs(slow - 0.5) < 1e-9);
    /* What lasts is told once, and not again. */
    int64_t began = now, at = 0;
    for (told = 0; now < began + 10 * dwell; now += 1000)
        if (policy_pace_add(&p, policy, 9, now, &slow)) {
            told++;
            at = now;
        }
    assert_int_equal(told, 1);
    assert_true(at <= began + dwell + 3000);
    /* Nothing for a long time: at once again. */
    for (int i = 0; i < POLICY_WINDOWS; i++)
        told += policy_pace_add(&p, policy, 1, now, &slow);
    assert_int_equal(told, 2);
    /* Slowly there and back, around the limit. */
    p = (struct policy_pace){0};
    slow = 1;
    for (told = 0, began = now; now < began + 100 * dwell; now += 1000)
        told += policy_pace_add(&p, policy, 1.25 + 0.02 * sin((double)now / 9000), now, &slow);
    assert_true(told <= 1);
}

static void moves(void **state)
{
    (void)state;
    const struct policy *p = &policy_default;
    assert_true(policy_pays(p, 1000, 500, 0, 100, 1000));
    assert_false(policy_pays(p, 1000, 500, 0, 3, 1000)); /* 1.5 s gained, two asked for */
    assert_false(policy_pays(p, 1000, 950, 0, 1e6, 10)); /* too little to be sure of */
    assert_false(policy_pays(p, 1000, 1000, 0, 1e6, 0));
    assert_true(policy_pays(p, 1000, 500, 4000, 3, 1000)); /* it takes longer than predicted */
    assert_false(policy_pays(p, 1000, 500, 0, 0, 0));
    assert_true(policy_pays(p, HUGE_VAL, 500, 800, 10, 1000)); /* cannot go on as it is */
    assert_false(policy_pays(p, NAN, 500, 0, 10, 0));
    assert_false(policy_pays(p, 1000, NAN, 0, 10, 0));
    assert_false(policy_pays(p, 0, 0, 0, 10, 0));
    assert_true(policy_middle((double[]){900, 10, 12, 11}, 4) == 11);
    assert_true(policy_middle((double[]){900}, 1) == 900);
    assert_true(isnan(policy_middle(NULL, 0)));
}

/* What a set every t costs on average: the sets, and half an interval done again for each loss. */
static double waste(double t, double cost, double mtbf)
{
    return cost / t + t / (2 * mtbf);
}

static void intervals(void **state)
{
    (void)state;
    struct policy p = policy_default;
    p.set_min_ms = 1;
    p.set_max_ms = INT64_MAX / 2;
    for (double cost = 10; cost < 1e5; cost *= 7)
        for (double mtbf = 6e4; mtbf < 1e9; mtbf *= 13) {
            double best = cost;
            for (double t = cost; t < 1e9; t *= 1.001)
                best = waste(t, cost, mtbf) < waste(best, cost, mtbf) ? t : best;
            double got = policy_set_interval(&p, cost, mtbf, 0);
            assert_true(waste(got, cost, mtbf) <= waste(best, cost, mtbf) * 1.0001);
        }
    assert_true(policy_set_interval(&policy_default, 1, 1000, 0) == (double)policy_default.set_min_ms);
    assert_true(policy_set_interval(&policy_default, 1e6, 1e12, 0) == (double)policy_default.set_max_ms);
    /* A set that takes 30 s of a link may come every ten minutes, whatever the rest says. */
    assert_true(fabs(policy_set_interval(&policy_default, 1, 1000, 30000) - 600000) < 1e-6);
    assert_true(policy_mtbf(&policy_default, 0, 0) == (double)policy_default.mtbf_ms);
    assert_true(policy_mtbf(&policy_default, 3.6e6, 1) == (double)policy_default.mtbf_ms);
    assert_true(policy_mtbf(&policy_default, 1000, 9) < (double)policy_default.mtbf_ms / 9);
}

/* An interval is told of when the seconds change, not when steps take a little more or less. */
static void interval_events(void **state)
{
    (void)state;
    double told = 0;
    int events = 0;
    for (int i = 0; i < 60; i++) { /* between 16 and 19 s */
        double ms = 17500 + 1500 * sin(i);
        if (policy_interval_differs(told, ms)) {
            told = ms;
            events++;
        }
    }
    assert_int_equal(events, 1);
    assert_true(policy_interval_differs(told, 1.3 * told) && policy_interval_differs(told, told / 1.3));
    assert_true(policy_interval_differs(told, INFINITY) && policy_interval_differs(told, NAN));
    assert_false(policy_interval_differs(told, 1.2 * told) || policy_interval_differs(told, told / 1.2));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(noise_at_the_limit),
        cmocka_unit_test(declared_heat_that_flips),
        cmocka_unit_test(ramp),
        cmocka_unit_test(critical_does_not_wait),
        cmocka_unit_test(battery),
        cmocka_unit_test(discharge_while_charging),
        cmocka_unit_test(pace),
        cmocka_unit_test(pace_that_flaps),
        cmocka_unit_test(moves),
        cmocka_unit_test(intervals),
        cmocka_unit_test(interval_events),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
