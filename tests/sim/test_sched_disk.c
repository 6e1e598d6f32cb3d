/* A disk that takes no more: jobs end with the reason, whoever follows them hears it, and the rows say so once the disk
 * takes writes again. A limit on the size of files stands in for a full disk. */
#include "tests/sched_fixture.h"

#include <signal.h>
#include <sys/resource.h>

static void begin(struct here *h)
{
    add_model(h);
    h->pc.node_ms = h->phone.node_ms = 0.2;
    fake_start(&h->pc);
    fake_start(&h->phone);
    run_ms(h, 3000);
    assert_true(h->pc.joined && h->phone.joined);
}

static void disk(bool full)
{
    struct rlimit limit;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &limit), 0);
    limit.rlim_cur = full ? 0 : limit.rlim_max;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
}

/* As REST shows it. */
static const struct json *shown(struct here *h, int64_t id, struct json **doc)
{
    sched_jobs_list(h->s, id, on_json, h);
    wait_answer(h, 1000);
    *doc = answer_json(h);
    assert_int_equal(json_len(*doc), 1);
    return json_at(*doc, 0);
}

static void expect_shown(struct here *h, int64_t id, const char *state)
{
    struct json *doc;
    const struct json *row = shown(h, id, &doc);
    assert_string_equal(json_str(json_find(row, "state"), ""), state);
    assert_true(strlen(json_str(json_find(row, "error"), "")) > 5);
    json_free(doc);
}

static void running_job(void **state)
{
    struct here *h = *state;
    begin(h);
    int64_t id = submit_forced(h, "pc", "phone");
    wait_results(h, &h->pc, 20, 60000);
    disk(true);
    run_ms(h, 2000);
    assert_int_equal(sched_jobs_open(h->s), 0);
    bool row_is_old = job_is(h, id, "running");
    expect_shown(h, id, "failed");
    sched_jobs_list(h->s, 0, on_json, h); /* once in the list of all */
    wait_answer(h, 1000);
    struct json *doc = answer_json(h);
    assert_int_equal(json_len(doc), 1);
    assert_string_equal(json_str(json_find(json_at(doc, 0), "state"), ""), "failed");
    json_free(doc);
    struct yk_diag why = {0};
    assert_int_equal(sched_cancel(h->s, id, &why), YK_STATE);
    /* What is told from memory has the columns of the listing. */
    struct json *memory, *table;
    const struct json *a = shown(h, id, &memory);
    disk(false);
    assert_true(row_is_old);
    run_ms(h, 5000);
    expect_state(h, id, "failed");
    const struct json *b = job_row(h, id, &table);
    assert_int_equal(json_len(a), json_len(b));
    for (size_t i = 0; i < json_len(a); i++) {
        assert_string_equal(json_key(a, i), json_key(b, i));
        assert_int_equal(json_kind(json_value(a, i)), json_kind(json_value(b, i)));
    }
    assert_string_equal(json_str(json_find(a, "ended_at"), "a"), json_str(json_find(b, "ended_at"), "b"));
    assert_string_equal(json_str(json_find(a, "error"), "a"), json_str(json_find(b, "error"), "b"));
    json_free(memory);
    json_free(table);
    /* A stop and a start find it ended. */
    close_sched(h);
    open_sched(h);
    run_ms(h, 100);
    assert_int_equal(sched_jobs_open(h->s), 0);
    expect_state(h, id, "failed");
    run_ms(h, 3000);
    id = submit(h, BATCH "}");
    wait_over(h, id, 120000);
    expect_done(h, id, 1000);
}

/* A job that has no row is none: its sender hears of the disk. */
static void submitted_on_a_full_disk(void **state)
{
    struct here *h = *state;
    begin(h);
    disk(true);
    sched_submit(h->s, BATCH "}", strlen(BATCH "}"), on_text, h);
    wait_answer(h, 5000);
    disk(false);
    assert_true(h->err == YK_IO || h->err == YK_NOSPC);
    assert_non_null(strstr(h->text, "database"));
    assert_int_equal(sched_jobs_open(h->s), 0);
    run_ms(h, 5000);
    sched_jobs_list(h->s, 0, on_json, h);
    wait_answer(h, 1000);
    assert_string_equal(h->text, "[]");
    int64_t id = submit(h, BATCH "}");
    wait_over(h, id, 120000);
    expect_done(h, id, 1000);
}

int main(void)
{
    log_set_level(getenv("YOKE_TEST_LOG") ? LOG_INFO : LOG_ERROR);
    signal(SIGXFSZ, SIG_IGN);
#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        T(running_job),
        T(submitted_on_a_full_disk),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
