/* A training that loses a device, on virtual time with real agents: it goes on within two seconds and what travels. */
#include "tests/sim/train_site.h"

#include <signal.h>
#include <sys/resource.h>

#define LINK_BYTES_PER_S 2e6
#define RESTART_MS 2000

/* Of the newest event of this kind; NULL-ended text, free(). */
static char *event_text(struct site *s, int64_t id, const char *kind)
{
    char *text = NULL;
    sched_events(s->h->s, id, 0, 0, on_text, s->h);
    wait_answer(s->h, 1000);
    struct json *doc = answer_json(s->h);
    const struct json *all = json_find(doc, "events");
    for (size_t i = 0; i < json_len(all); i++)
        if (strcmp(json_str(json_find(json_at(all, i), "kind"), ""), kind) == 0) {
            free(text);
            text = yk_xstrdup(json_str(json_find(json_at(all, i), "text"), ""));
        }
    json_free(doc);
    return text;
}

/* One of the two devices without the data dies at any moment: parameters and losses are those of the
 * undisturbed training, and it runs again after its restart and the time that the link takes for what has to move. */
static void recovers_in_time(void **state)
{
    (void)state;
    struct site *s = site_open_at(3, LINK_BYTES_PER_S);
    struct site_result want, got;
    struct yk_rng r;
    double most_mb = 0;
    yk_rng_seed(&r, 8);
    site_network(s, "m", "mlp", 1, 28);
    site_data(s, "set", 320, 3, (const int64_t[]){1, 28, 28}, 5);
    site_learn(s, "m", 8, 4, "\"momentum\":0.9");
    const struct site_stage stages[] = {{1, 1}, {2, 3}, {0, -1}};
    site_train(s, "m", "set", stages, 3, 3, &want);
    assert_int_equal(want.n, 40);
    for (int round = 0; round < 4; round++) {
        int dies = 1 + round % 2;
        int64_t id, ms = 0, after = 4 + (int64_t)yk_rng_below(&r, 25);
        double seconds, mb;
        char *plan = site_plan(s, stages, 3, 3);
        id = site_submit(s, "m", "set", plan);
        free(plan);
        while (site_steps(s, id) < after && ms++ < 600000)
            run_ms(s->h, 1);
        agent_close(s->agent[dies]);
        s->agent[dies] = NULL;
        int64_t killed = net_now_us(s->h->net), steps = site_steps(s, id);
        assert_true(steps < want.n);
        char *text = NULL;
        for (ms = 0; ms < 60000 && !(text = event_text(s, id, "recovered")); ms++)
            run_ms(s->h, 1);
        double took_ms = (double)(net_now_us(s->h->net) - killed) / 1e3;
        assert_non_null(text);
        const char *at = strstr(text, " s later: ");
        assert_non_null(at);
        while (at > text && at[-1] != ' ')
            at--;
        assert_int_equal(sscanf(at, "%lf s later: %lf MB", &seconds, &mb), 2);
        if (getenv("YOKE_TEST_LOG"))
            printf("a%d died after %lld steps: %.0f ms (%s)\n", dies, (long long)steps, took_ms, text);
        if (took_ms > RESTART_MS + mb * 1e9 / LINK_BYTES_PER_S)
            fail_msg("a%d died after %lld steps: it took %.0f ms (%s)", dies, (long long)steps, took_ms, text);
        most_mb = YK_MAX(most_mb, mb);
        free(text);
        assert_true(site_wait(s, id, &got));
        site_same(&want, &got, "after a loss");
        site_start(s, dies);
        site_links(s);
    }
    assert_true(most_mb > 0.5); /* something had to move */
    site_close(s);
}

static bool until(struct site *s, int64_t id, const char *state, int64_t most_ms)
{
    for (int64_t ms = 0; ms < most_ms && !job_is(s->h, id, state); ms++)
        run_ms(s->h, 1);
    return job_is(s->h, id, state);
}

/* The scheduler is killed and started again: links that it has measured before are not measured first. */
static void scheduler_restarts(void **state)
{
    (void)state;
    struct site *s = site_open_at(6, LINK_BYTES_PER_S / 10); /* all pairs take 9 s and more */
    struct site_result want, got;
    site_network(s, "m", "mlp", 1, 8);
    site_data(s, "set", 320, 3, (const int64_t[]){1, 8, 8}, 5);
    site_learn(s, "m", 8, 4, "\"momentum\":0.9");
    const struct site_stage stages[] = {{1, 1}, {2, 3}, {0, -1}};
    site_train(s, "m", "set", stages, 3, 3, &want);
    char *plan = site_plan(s, stages, 3, 3);
    int64_t id = site_submit(s, "m", "set", plan);
    free(plan);
    while (site_steps(s, id) < 6)
        run_ms(s->h, 1);
    close_sched(s->h);
    open_sched(s->h);
    if (!until(s, id, "running", 2 * RESTART_MS)) {
        char *text = event_text(s, id, "waiting");
        fail_msg("after %d ms it does not run again: %s", 2 * RESTART_MS, text);
    }
    assert_true(site_wait(s, id, &got));
    site_same(&want, &got, "after a restart of the scheduler");
    site_close(s);
}

/* A job that ends while its planning waits for something takes nothing with it that the planning reads. */
static void canceled_while_planned(void **state)
{
    (void)state;
    struct site *s = site_open_at(2, LINK_BYTES_PER_S);
    struct site_result got;
    struct yk_diag why = {0};
    site_network(s, "m", "mlp", 1, 8);
    site_data(s, "set", 16, 3, (const int64_t[]){1, 8, 8}, 5);
    site_learn(s, "m", 8, 4, "");
    s->n_agents = 3;
    site_start(s, 2);
    for (int ms = 0; ms < 5000 && fleet_alive(sched_fleet(s->h->s)) < 3; ms++)
        run_ms(s->h, 1);
    int64_t id = site_submit(s, "m", "set", NULL);
    assert_true(until(s, id, "planning", 5000));
    run_ms(s->h, 100);
    assert_false(fleet_links_ready(sched_fleet(s->h->s)));
    assert_int_equal(sched_cancel(s->h->s, id, &why), YK_OK);
    site_links(s);
    run_ms(s->h, 2000);
    id = site_submit(s, "m", "set", NULL);
    assert_true(site_wait(s, id, &got));
    site_close(s);
}

static void disk(bool full)
{
    struct rlimit limit;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &limit), 0);
    limit.rlim_cur = full ? 0 : limit.rlim_max;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
}

/* As REST shows it: its row may be older. */
static char *shown(struct site *s, int64_t id, char *state, size_t size)
{
    sched_jobs_list(s->h->s, id, on_json, s->h);
    wait_answer(s->h, 1000);
    struct json *doc = answer_json(s->h);
    assert_int_equal(json_len(doc), 1);
    snprintf(state, size, "%s", json_str(json_find(json_at(doc, 0), "state"), ""));
    char *error = yk_xstrdup(json_str(json_find(json_at(doc, 0), "error"), ""));
    json_free(doc);
    return error;
}

/* Another program fills the disk of yoked for minutes, also where the last set is written: nothing that is trained is
 * lost, and once there is room it goes on to the same bits. */
static void full_disk(void **state)
{
    (void)state;
    struct site *s = site_open(2);
    struct site_result want, got;
    signal(SIGXFSZ, SIG_IGN);
    site_network(s, "m", "mlp", 1, 8);
    site_data(s, "set", 160, 3, (const int64_t[]){1, 8, 8}, 5);
    site_learn(s, "m", 8, 4, "\"momentum\":0.9,\"checkpoint_every\":4");
    const struct site_stage stages[] = {{0, 1}, {1, -1}};
    site_train(s, "m", "set", stages, 2, 2, &want);
    char *plan = site_plan(s, stages, 2, 2);
    for (int k = 0; k < 2; k++) {
        char now[16] = "";
        int64_t id = site_submit(s, "m", "set", plan);
        for (int64_t ms = 0; ms < 600000 && site_steps(s, id) < (k ? 19 : 10); ms++)
            run_ms(s->h, 1);
        disk(true);
        for (int ms = 0; ms < 240000; ms += 1000) /* longer than source_wait_ms */
            run_ms(s->h, 1000);
        char *error = shown(s, id, now, sizeof now);
        disk(false);
        if (strcmp(now, "waiting") != 0 || !strstr(error, "make room there"))
            fail_msg("after step %d it is %s: %s", k ? 19 : 10, now, error);
        free(error);
        if (!site_wait(s, id, &got))
            fail_msg("%s", site_error(s, id));
        site_same(&want, &got, "after a full disk");
        char *resumed = event_text(s, id, "resumed");
        assert_non_null(resumed);
        assert_non_null(strstr(resumed, "goes on behind step "));
        free(resumed);
    }
    free(plan);
    site_close(s);
}

static void expect_waiting(struct site *s, int64_t id, const char *says)
{
    until(s, id, "waiting", 30000);
    run_ms(s->h, 2000); /* and goes on to */
    char *error = site_error(s, id);
    if (!job_is(s->h, id, "waiting") || !strstr(error, says))
        fail_msg("it should wait and say '%s', and says '%s'", says, error);
    free(error);
}

static void leave(struct site *s, int i)
{
    agent_close(s->agent[i]);
    s->agent[i] = NULL;
}

/* Agents that go away before the first plan are waited for, as later ones are; one that nobody knows is not. */
static void agents_leave_before_the_first_plan(void **state)
{
    (void)state;
    struct site *s = site_open(2);
    struct site_result want, got;
    site_network(s, "m", "mlp", 1, 8);
    site_data(s, "set", 16, 3, (const int64_t[]){1, 8, 8}, 5);
    site_learn(s, "m", 8, 4, "");
    const struct site_stage stages[] = {{0, 1}, {1, -1}};
    site_train(s, "m", "set", stages, 2, 2, &want);
    char *plan = site_plan(s, stages, 2, 2);
    for (int k = 0; k < 3; k++) { /* all in the middle of it; one that the plan names; that one before it */
        if (k < 2) {              /* planning waits for the links of a new one */
            site_start(s, 2 + k);
            for (int ms = 0; ms < 5000 && fleet_alive(sched_fleet(s->h->s)) < 3 + k; ms++)
                run_ms(s->h, 1);
        } else {
            leave(s, 1);
            run_ms(s->h, 20000); /* past its lease */
        }
        int64_t id = site_submit(s, "m", "set", k ? plan : NULL);
        assert_true(k == 2 || until(s, id, "planning", 5000));
        for (int i = 0; k == 0 && i < 3; i += 2)
            leave(s, i);
        if (k < 2)
            leave(s, 1);
        expect_waiting(s, id, k ? "agent a1, which the plan names, is away" : "away");
        for (int i = 0; k == 0 && i < 3; i += 2)
            site_start(s, i);
        site_start(s, 1);
        if (!site_wait(s, id, &got)) {
            char *error = site_error(s, id);
            fail_msg("round %d: %s", k, error);
        }
        if (k) /* else the forms are those of its own plan */
            site_same(&want, &got, "after agents had left before the first plan");
        site_links(s);
    }
    free(plan);
    plan = site_plan(s, (struct site_stage[]){{0, 1}, {7, -1}}, 2, 2);
    int64_t id = site_submit(s, "m", "set", plan);
    assert_false(site_wait(s, id, &got));
    char *error = site_error(s, id);
    assert_non_null(strstr(error, "'a7', which is not in the fleet"));
    free(error);
    free(plan);
    site_close(s);
}

/* So many agents that know a training of the set "set" of size x size pictures: its plan over a1 and a0, and what it
 * gives undisturbed. free(*plan). */
static struct site *two_on_two(int agents, int64_t size, int64_t samples, struct site_result *want, char **plan)
{
    static const struct site_stage stages[] = {{1, 1}, {0, -1}};
    struct site *s = site_open(agents);
    site_network(s, "m", "mlp", 1, size);
    site_data(s, "set", samples, 3, (const int64_t[]){1, size, size}, 5);
    site_learn(s, "m", 8, 4, "");
    site_train(s, "m", "set", stages, 2, 2, want);
    *plan = site_plan(s, stages, 2, 2);
    return s;
}

/* All devices rest, so no plan does: the training is planned every second, and goes on once. */
static void resumed_once(void **state)
{
    (void)state;
    struct site_result want, got;
    char *plan;
    struct site *s = two_on_two(2, 28, 320, &want, &plan);
    int64_t id = site_submit(s, "m", "set", plan);
    free(plan);
    for (int64_t ms = 0; ms < 600000 && site_steps(s, id) < 6; ms++)
        run_ms(s->h, 1);
    struct agent_sensors heat = {.heat = "critical", .temperature_celsius = NAN, .battery_frac = NAN};
    for (int i = 0; i < 2; i++)
        agent_push_sensor(s->agent[i], &heat);
    run_ms(s->h, 15000);
    assert_true(job_is(s->h, id, "waiting"));
    heat.heat = "nominal";
    for (int i = 0; i < 2; i++)
        agent_push_sensor(s->agent[i], &heat);
    assert_true(until(s, id, "running", 120000));
    char *error = site_error(s, id); /* of before: it is in the events */
    assert_string_equal(error, "");
    free(error);
    assert_true(site_wait(s, id, &got));
    site_same(&want, &got, "after a wait");
    sched_events(s->h->s, id, 0, 0, on_text, s->h);
    wait_answer(s->h, 1000);
    int n = 0;
    for (const char *at = s->h->text; (at = strstr(at, "\"resumed\"")); at++)
        n++;
    assert_int_equal(n, 1);
    site_close(s);
}

static int count_events(struct site *s, int64_t id, const char *kind, const char *says)
{
    int n = 0;
    sched_events(s->h->s, id, 0, 0, on_text, s->h);
    wait_answer(s->h, 1000);
    struct json *doc = answer_json(s->h);
    const struct json *all = json_find(doc, "events");
    for (size_t i = 0; i < json_len(all); i++)
        n += strcmp(json_str(json_find(json_at(all, i), "kind"), ""), kind) == 0 &&
             strstr(json_str(json_find(json_at(all, i), "text"), ""), says) != NULL;
    json_free(doc);
    return n;
}

static void expect_events(struct site *s, int64_t id, const char *kind, const char *says, int n)
{
    int got = count_events(s, id, kind, says);
    if (got != n) {
        sched_events(s->h->s, id, 0, 0, on_text, s->h);
        wait_answer(s->h, 1000);
        fail_msg("%d events '%s' with '%s', not %d: %s", got, kind, says, n, s->h->text);
    }
}

/* What is asked for when no agent is there waits, says so, and fails with that; one that comes is used. */
static void before_any_agent(void **state)
{
    (void)state;
    static const char nobody[] = "no agent is alive: start one with `yoke-agent --scheduler=URL`";
    struct site_result want, got;
    char *plan;
    struct site *s = two_on_two(2, 8, 16, &want, &plan);
    for (int away = 0; away < 2; away++) { /* nobody knows them; they are known */
        leave(s, 0);
        leave(s, 1);
        if (!away) {
            close_sched(s->h);
            open_sched(s->h);
        }
        run_ms(s->h, 20000);
        for (int forced = 0; forced < 2; forced++) {
            int64_t id = site_submit(s, "m", "set", forced ? plan : NULL);
            expect_waiting(s, id, away ? "source a0, which holds the data, is away" : nobody);
            for (int64_t ms = 0; ms < s->h->wait_ms - 3000; ms += 100)
                run_ms(s->h, 100);
            assert_true(job_is(s->h, id, "waiting"));
            assert_false(site_wait(s, id, &got));
            char *error = site_error(s, id);
            assert_non_null(strstr(error, away ? "source a0, which holds the data, is away" : nobody));
            free(error);
        }
        int64_t id = site_submit(s, "m", "set", plan);
        run_ms(s->h, 3000);
        site_start(s, 1); /* not the one with the data: that one is waited for */
        run_ms(s->h, 3000);
        char *error = site_error(s, id);
        assert_non_null(strstr(error, away ? "source a0" : "source 'a0' is not an agent of this fleet"));
        free(error);
        expect_events(s, id, "waiting", "", away ? 1 : 2);
        site_start(s, 0);
        assert_true(site_wait(s, id, &got));
        site_same(&want, &got, "after it had waited for any agent");
        site_links(s);
    }
    free(plan);
    site_close(s);
}

/* One that the given plan names is gone and back before the planner has answered. */
static void gone_and_back_while_planned(void **state)
{
    (void)state;
    struct site_result want, got;
    char *plan;
    struct site *s = two_on_two(3, 8, 16, &want, &plan);
    for (int ms = 0; ms < 12; ms += 2) {
        int64_t id = site_submit(s, "m", "set", plan);
        run_ms(s->h, ms / 3);
        leave(s, 1);
        run_ms(s->h, 1 + ms % 3);
        site_start(s, 1);
        if (!site_wait(s, id, &got)) {
            char *error = site_error(s, id);
            fail_msg("gone after %d ms, back after %d: %s", ms / 3, 1 + ms % 3, error);
        }
        site_same(&want, &got, "with an agent that was gone for a moment");
        site_links(s);
    }
    free(plan);
    plan = site_plan(s, (struct site_stage[]){{1, 1}, {7, -1}}, 2, 2);
    leave(s, 1); /* one is away, the other is not known: no wait helps */
    run_ms(s->h, 20000);
    int64_t id = site_submit(s, "m", "set", plan);
    run_ms(s->h, 1000);
    assert_true(job_is(s->h, id, "failed"));
    char *error = site_error(s, id);
    assert_non_null(strstr(error, "'a7', which is not in the fleet"));
    free(error);
    free(plan);
    site_close(s);
}

int main(void)
{
    log_set_level(getenv("YOKE_TEST_LOG") ? LOG_INFO : LOG_ERROR);
    const struct CMUnitTest tests[] = {cmocka_unit_test(recovers_in_time), cmocka_unit_test(scheduler_restarts),
        cmocka_unit_test(canceled_while_planned), cmocka_unit_test(agents_leave_before_the_first_plan),
        cmocka_unit_test(full_disk), cmocka_unit_test(resumed_once), cmocka_unit_test(before_any_agent),
        cmocka_unit_test(gone_and_back_while_planned)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
