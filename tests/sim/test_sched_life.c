/* A job and the devices that get hot or are lost under it, on virtual time with scripted agents: where it goes, when,
 * and that every sample is answered once. */
#include "tests/sched_fixture.h"

#include <math.h>

#define LEASE_MS 6000
#define RESTART_MS 2000 /* from knowing of a loss to running again, without what travels */
#define HOLD_MS 60000   /* policy.hold_ms */

static void begin(struct here *h, double pc_ms, double phone_ms, int64_t samples)
{
    add_model(h);
    h->pc.node_ms = pc_ms;
    h->phone.node_ms = phone_ms;
    h->pc.samples = samples;
    fake_start(&h->pc);
    fake_start(&h->phone);
    run_ms(h, 3000);
    assert_true(h->pc.joined && h->phone.joined);
}

static int loaded(const struct fake *f)
{
    int n = 0;
    for (int i = 0; i < FAKE_LOADS; i++)
        n += f->load[i].generation != 0;
    return n;
}

/* How often the job's events have this kind, and a text with these words. */
static int count_events(struct here *h, int64_t id, const char *kind, const char *says)
{
    int n = 0;
    sched_events(h->s, id, 0, 0, on_text, h);
    wait_answer(h, 1000);
    struct json *doc = answer_json(h);
    const struct json *all = json_find(doc, "events");
    for (size_t i = 0; i < json_len(all); i++)
        n += strcmp(json_str(json_find(json_at(all, i), "kind"), ""), kind) == 0 &&
             strstr(json_str(json_find(json_at(all, i), "text"), ""), says) != NULL;
    json_free(doc);
    return n;
}

static void expect_events(struct here *h, int64_t id, const char *kind, const char *says, int n)
{
    int got = count_events(h, id, kind, says);
    if (got != n) {
        sched_events(h->s, id, 0, 0, on_text, h);
        wait_answer(h, 1000);
        fail_msg("%d events '%s' with '%s', not %d: %s", got, kind, says, n, h->text);
    }
}

/* The phone, which does most of a batch, gets hot: within seconds it has nothing to do with it, and it is used again
 * once it has been cool for long enough. Every sample is answered, and once. */
static void a_batch_leaves_a_hot_device(void **state)
{
    struct here *h = *state;
    begin(h, 1.0, 0.4, 60000);
    int64_t id = submit(h, BATCH "}");
    wait_results(h, &h->pc, 100, 60000);
    assert_int_equal(loaded(&h->phone), 1);
    h->phone.heat = "serious";
    for (int ms = 0; ms < 5000 && loaded(&h->phone); ms += 10)
        run_ms(h, 10);
    assert_int_equal(loaded(&h->phone), 0); /* the next ping told it */
    expect_events(h, id, "hot", "phone", 1);
    int results = h->pc.results, loads = h->phone.loads;
    run_ms(h, HOLD_MS / 2);
    assert_true(h->pc.results > results); /* it goes on, without the phone */
    expect_events(h, id, "migrated", "pc", 1);
    h->phone.heat = "nominal";
    run_ms(h, 10000);
    assert_false(job_over(h, id));
    assert_int_equal(h->phone.loads, loads); /* it was hot a moment ago */
    for (int ms = 0; ms < 3 * HOLD_MS && !loaded(&h->phone); ms += 100)
        run_ms(h, 100);
    assert_int_equal(loaded(&h->phone), 1);
    expect_events(h, id, "cooled", "phone", 1);
    wait_over(h, id, 3600000);
    expect_done(h, id, 60000);
    expect_output(h, id, 60000);
    expect_events(h, id, "migrated", "", 2);
    expect_events(h, id, "lost", "", 0);
    expect_events(h, id, "hot", "", 1);
}

/* Hot, cool and hot again within the hold-off: it has left once. */
static void heat_that_flickers(void **state)
{
    struct here *h = *state;
    begin(h, 1.0, 0.4, 20000);
    int64_t id = submit(h, BATCH "}");
    wait_results(h, &h->pc, 100, 60000);
    for (int i = 0; i < 20; i++) {
        h->phone.heat = i % 2 ? "fair" : "critical";
        run_ms(h, 2000);
    }
    assert_int_equal(loaded(&h->phone), 0);
    expect_events(h, id, "hot", "phone", 1);
    h->phone.heat = "critical";
    wait_over(h, id, 3600000);
    expect_done(h, id, 20000);
    expect_output(h, id, 20000);
    expect_events(h, id, "migrated", "", 1);
    expect_events(h, id, "cooled", "", 0);
}

/* The device that does most of a batch goes away and comes back, once over a line that is too slow for the job and once
 * over the old one: what was measured before it went moves nothing, its links are measured again first. */
static void comes_back_over_another_line(void **state)
{
    struct here *h = *state;
    begin(h, 1.0, 0.4, 200000);
    int64_t id = submit(h, BATCH "}");
    wait_results(h, &h->pc, 100, 60000);
    assert_int_equal(loaded(&h->phone), 1);
    for (int slow = 1; slow >= 0; slow--) {
        fake_kill(&h->phone);
        run_ms(h, 5000);
        int loads = h->phone.loads, probes = h->pc.probes + h->phone.probes, results = h->pc.results;
        h->phone.bytes_per_s = slow ? 20e3 : 100e6;
        fake_start(&h->phone);
        for (int ms = 0; ms < 3 * HOLD_MS && !loaded(&h->phone); ms += 100)
            run_ms(h, 100);
        assert_true(h->pc.results > results);
        assert_int_equal(h->pc.probes + h->phone.probes, probes + 1);
        assert_int_equal(h->phone.loads, loads + !slow);
        assert_int_equal(loaded(&h->phone), !slow);
        expect_events(h, id, "kept", "phone is back", 1);
    }
    assert_false(job_over(h, id));
    expect_events(h, id, "lost", "", 1); /* the second time it had nothing of the job */
    assert_int_equal(sched_cancel(h->s, id, NULL), YK_OK);
    run_ms(h, 1000);
}

/* The first probes of a pair break off, as on machines that are just starting: they are repeated at once, and a job
 * whose source needs the link waits for it; what stays broken is given up, and not tried without end. */
static void probes_that_break_off(void **state)
{
    struct here *h = *state;
    for (int broken = 2; broken <= 200; broken += 198) {
        h->pc.fail_probes = h->phone.fail_probes = broken;
        if (broken == 2) {
            add_model(h);
            h->pc.node_ms = 1.0; /* the phone is worth its link */
            h->phone.node_ms = 0.1;
            h->pc.samples = 2000;
            fake_start(&h->pc);
        } else {
            fake_kill(&h->phone);
            run_ms(h, 5000);
        }
        fake_start(&h->phone);
        int probes = h->pc.probes + h->phone.probes, loads = h->phone.loads;
        run_ms(h, 300);
        assert_true(h->pc.joined && h->phone.joined);
        int64_t id = submit(h, BATCH "}");
        wait_over(h, id, 600000);
        expect_done(h, id, 2000);
        assert_true(h->pc.fail_probes + h->phone.fail_probes < 2 * broken);
        if (broken == 2) {
            assert_true(h->phone.loads > loads);
        } else {
            assert_int_equal(h->phone.loads, loads);
            run_ms(h, 60000);
            assert_in_range(h->pc.probes + h->phone.probes - probes, 4, 12);
        }
    }
}

/* A device falls silent at any moment of a job: nobody hangs up, the lease tells. The next result is there within the
 * lease and two seconds of it. */
static void silent_for_a_lease(void **state)
{
    struct here *h = *state;
    struct yk_rng r;
    int64_t longest = 0, least = INT64_MAX;
    yk_rng_seed(&r, 3);
    begin(h, 1.0, 0.4, 4000);
    for (int round = 0; round < 5; round++) {
        int64_t id = submit_forced(h, "pc", "phone");
        wait_results(h, &h->pc, h->pc.results + 20, 60000);
        run_ms(h, (int64_t)yk_rng_below(&r, 3000));
        fake_freeze(&h->phone);
        run_ms(h, 500); /* what was under way has come */
        int results = h->pc.results;
        int64_t ms = 500;
        for (; ms < 60000 && h->pc.results == results; ms++)
            run_ms(h, 1);
        longest = YK_MAX(longest, ms);
        least = YK_MIN(least, ms);
        expect_events(h, id, "recovered", "on pc", 1);
        wait_over(h, id, 600000);
        expect_done(h, id, 4000);
        expect_output(h, id, 4000);
        fake_kill(&h->phone);
        h->phone.frozen = false;
        fake_start(&h->phone);
        run_ms(h, 5000);
        assert_true(h->phone.joined);
    }
    print_message("results came again after %lld to %lld ms\n", (long long)least, (long long)longest);
    if (longest > LEASE_MS + RESTART_MS || least < LEASE_MS / 2)
        fail_msg("results came again after %lld to %lld ms", (long long)least, (long long)longest);
}

/* That a job waits, and how long it is waited for, is told when it does: not where it goes on at once. */
static void waiting_is_told_of_who_waits(void **state)
{
    struct here *h = *state;
    begin(h, 1.0, 0.4, 4000);
    run_ms(h, LEASE_MS); /* in which a scheduler that starts waits for its fleet */
    int64_t id = submit_forced(h, "pc", "phone");
    wait_results(h, &h->pc, 20, 60000);
    fake_kill(&h->phone);
    int results = h->pc.results;
    wait_results(h, &h->pc, results + 10, 20000);
    expect_events(h, id, "again", "agent phone went away", 1);
    expect_events(h, id, "waiting", "", 0);
    fake_kill(&h->pc);
    run_ms(h, 5000);
    expect_state(h, id, "waiting");
    expect_events(h, id, "again", "", 1);
    expect_events(h, id, "waiting", "agent pc went away; it is waited for at most 20 s (source_wait_ms)", 1);
    fake_start(&h->pc);
    wait_over(h, id, 600000);
    expect_done(h, id, 4000);
    expect_output(h, id, 4000);
    expect_events(h, id, "waiting", "", 1);
}

static bool failed(struct here *h, int64_t id, const char *says)
{
    struct json *doc;
    const struct json *row = job_row(h, id, &doc);
    bool is = strcmp(json_str(json_find(row, "state"), ""), "failed") == 0 &&
              strstr(json_str(json_find(row, "error"), ""), says) != NULL;
    json_free(doc);
    return is;
}

/* What an agent has no memory for is not tried again there, whoever made the plan, while others have room. */
static void refused_for_memory(void **state)
{
    struct here *h = *state;
    begin(h, 4.0, 0.1, 2000);
    h->phone.fail_load = "needs 3493928 bytes; the budget is 3000000";
    for (int forced = 0; forced < 2; forced++)
        for (int known = 0; known < 2; known++) {
            h->phone.lacking_bytes = known ? 1 << 29 : 0;
            int loads = h->phone.loads;
            int64_t id = forced ? submit_forced(h, "pc", "phone") : submit(h, BATCH "}");
            wait_over(h, id, 600000);
            expect_done(h, id, 2000);
            expect_output(h, id, 2000);
            int tried = h->phone.loads - loads;
            if (tried < 1 || tried > (known ? 1 : 4))
                fail_msg("tried %d times there", tried);
            expect_events(h, id, "waiting", "", 0);
            expect_events(h, id, "again", known ? "other plans leave phone out" : "needs 3493928", tried);
        }
    /* Nobody has room: it ends, and says what was lacking. */
    h->pc.fail_load = "needs 5 bytes; the budget is 4";
    h->pc.lacking_bytes = h->phone.lacking_bytes = 1 << 29;
    int loads = h->phone.loads + h->pc.loads;
    int64_t id = submit(h, BATCH "}");
    wait_over(h, id, 600000);
    assert_true(failed(h, id, "could not load"));
    assert_true(h->phone.loads + h->pc.loads - loads <= 20);
    /* One that comes back has another budget. */
    h->pc.fail_load = NULL;
    h->pc.samples = 60000;
    id = submit(h, BATCH "}");
    wait_results(h, &h->pc, h->pc.results + 20, 60000);
    fake_kill(&h->phone);
    h->phone.fail_load = NULL;
    loads = h->phone.loads;
    fake_start(&h->phone);
    for (int ms = 0; ms < 60000 && h->phone.loads == loads; ms += 10)
        run_ms(h, 10);
    assert_true(h->phone.loads > loads);
}

static double planned_ms(struct here *h, int64_t id)
{
    double ms = NAN;
    sched_events(h->s, id, 0, 0, on_text, h);
    wait_answer(h, 1000);
    struct json *doc = answer_json(h);
    const struct json *all = json_find(doc, "events");
    for (size_t i = 0; i < json_len(all); i++)
        if (strcmp(json_str(json_find(json_at(all, i), "kind"), ""), "planned") == 0)
            ms = strtod(json_str(json_find(json_at(all, i), "text"), ""), NULL);
    json_free(doc);
    return ms;
}

/* Two jobs in the same moment: the second plan counts with what the first takes, as one made later would. */
static void planned_at_the_same_time(void **state)
{
    struct here *h = *state;
    begin(h, 1.0, 0.4, 20000);
    int64_t alone = submit(h, BATCH "}");
    wait_results(h, &h->pc, 20, 60000);
    int64_t later = submit(h, BATCH "}");
    wait_over(h, alone, 3600000);
    wait_over(h, later, 3600000);
    run_ms(h, 60000); /* what was measured of them is forgotten */
    int64_t id[2];
    for (int i = 0; i < 2; i++) {
        sched_submit(h->s, BATCH "}", strlen(BATCH "}"), on_text, h);
        id[i] = later + 1 + i;
    }
    for (int ms = 0; ms < 60000 && !(planned_ms(h, id[0]) > 0 && planned_ms(h, id[1]) > 0); ms += 10)
        run_ms(h, 10);
    double first = planned_ms(h, id[0]), second = planned_ms(h, id[1]), least = YK_MIN(first, second),
           most = YK_MAX(first, second);
    if (!(most > 1.5 * least) || fabs(most / least / (planned_ms(h, later) / planned_ms(h, alone)) - 1) > 0.05)
        fail_msg("planned at once: %g and %g ms; one after the other: %g and %g", least, most, planned_ms(h, alone),
            planned_ms(h, later));
    for (int i = 0; i < 2; i++) {
        wait_over(h, id[i], 3600000);
        expect_done(h, id[i], 20000);
    }
}

int main(void)
{
    log_set_level(getenv("YOKE_TEST_LOG") ? LOG_INFO : LOG_ERROR);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_batch_leaves_a_hot_device, setup, teardown),
        cmocka_unit_test_setup_teardown(heat_that_flickers, setup, teardown),
        cmocka_unit_test_setup_teardown(comes_back_over_another_line, setup, teardown),
        cmocka_unit_test_setup_teardown(probes_that_break_off, setup, teardown),
        cmocka_unit_test_setup_teardown(silent_for_a_lease, setup, teardown),
        cmocka_unit_test_setup_teardown(waiting_is_told_of_who_waits, setup, teardown),
        cmocka_unit_test_setup_teardown(refused_for_memory, setup, teardown),
        cmocka_unit_test_setup_teardown(planned_at_the_same_time, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
