/* Verdicts of epochs when yoked dies between an epoch's set and its model, or when its disk is full: they are those of
 * a training that nothing disturbed. */
#include "tests/sim/train_site.h"

#include <signal.h>
#include <sqlite3.h>
#include <sys/resource.h>

static void command(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
static void command(const char *fmt, ...)
{
    char text[600];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    if (system(text) != 0)
        fail_msg("%s", text);
}

static int on_text_of(void *arg, int n, char **values, char **names)
{
    (void)names;
    snprintf(arg, 65536, "%s", n && values[0] ? values[0] : "");
    return 0;
}

/* On the scheduler's database; the first column of the last row. */
static char *sql(struct site *s, const char *text)
{
    static char out[65536];
    sqlite3 *db;
    char *why = NULL;
    out[0] = 0;
    assert_int_equal(sqlite3_open(s->h->path, &db), SQLITE_OK);
    sqlite3_busy_timeout(db, 5000);
    if (sqlite3_exec(db, text, on_text_of, out, &why) != SQLITE_OK)
        fail_msg("%s: %s", text, why);
    sqlite3_close(db);
    return out;
}

/* What v_epochs says of a job but for the times. free() */
static char *verdicts(struct site *s, int64_t id)
{
    struct yk_buf b = {0};
    store_epochs(sched_store(s->h->s), id, on_json, s->h);
    wait_answer(s->h, 1000);
    struct json *doc = answer_json(s->h);
    for (size_t i = 0; i < json_len(doc); i++)
        yk_buf_printf(&b, "%lld: %.17g %.17g; ", (long long)json_i64(json_find(json_at(doc, i), "epoch"), -1),
            json_f64(json_find(json_at(doc, i), "validation_loss"), NAN),
            json_f64(json_find(json_at(doc, i), "validation_accuracy"), NAN));
    yk_buf_add(&b, "", 1);
    json_free(doc);
    return (char *)b.data;
}

/* Sets are made behind each step of four an epoch. The database and the files are as a kill leaves them that comes
 * `late` steps behind the first epoch, while its model is not written. */
static void killed_before_its_model(void **state)
{
    (void)state;
    struct site *s = site_open(2);
    struct site_result want, got;
    site_network(s, "m", "mlp", 1, 8);
    site_data(s, "set", 40, 3, (const int64_t[]){1, 8, 8}, 5);
    site_learn(s, "m", 8, 4, "\"epochs\":3,\"val\":0.2,\"checkpoint_every\":1,\"lr\":0.1");
    const struct site_stage stages[] = {{1, 1}, {0, -1}};
    char *plan = site_plan(s, stages, 2, 2), text[400];
    int64_t id = site_submit(s, "m", "set", plan);
    assert_true(site_wait(s, id, &want));
    assert_int_equal(want.n, 12);
    char *told = verdicts(s, id), dir[80];
    assert_non_null(strstr(told, "3: "));
    snprintf(dir, sizeof dir, "%s/blobs", s->h->dir);
    for (int late = 1; late <= 3; late++) {
        id = site_submit(s, "m", "set", plan);
        snprintf(text, sizeof text, "SELECT parts FROM checkpoints WHERE job = %lld AND step = 4", (long long)id);
        while (!*sql(s, text))
            run_ms(s->h, 1);
        char *row = yk_xasprintf("INSERT OR REPLACE INTO checkpoints VALUES (%lld, 4, 1, '%s', 1);"
                                 "DELETE FROM epochs WHERE job = %lld;"
                                 "DELETE FROM blobs WHERE file LIKE 'job-%lld.epoch-%%'",
            (long long)id, sql(s, text), (long long)id, (long long)id);
        command("mkdir %s/kept && cp -p %s/job-%lld-4-*.set %s/kept", s->h->dir, dir, (long long)id, s->h->dir);
        while (site_steps(s, id) < 4 + late)
            run_ms(s->h, 1);
        assert_true(site_steps(s, id) < 8);
        close_sched(s->h);
        free(sql(s, row) ? row : NULL);
        command(
            "mv %s/kept/* %s; rmdir %s/kept; rm -f %s/job-%lld.epoch-*", s->h->dir, dir, s->h->dir, dir, (long long)id);
        open_sched(s->h);
        assert_true(site_wait(s, id, &got));
        site_same(&want, &got, "after a kill");
        char *now = verdicts(s, id);
        if (strcmp(now, told) != 0)
            fail_msg("killed %d steps behind the epoch: '%s', not '%s'", late, now, told);
        free(now);
        run_ms(s->h, 1000);
        command("test -z \"$(ls %s | grep 'set$\\|epoch')\"", dir);
    }
    free(told);
    free(plan);
    site_close(s);
}

static void disk(bool full)
{
    struct rlimit limit;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &limit), 0);
    limit.rlim_cur = full ? 0 : limit.rlim_max;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
}

/* Nothing can be written from some moment on, be it an epoch's set, its row, its model or its verdict. In every other
 * round yoked is stopped meanwhile. */
static void full_disk(void **state)
{
    (void)state;
    struct site *s = site_open(2);
    struct site_result want, got;
    signal(SIGXFSZ, SIG_IGN);
    site_network(s, "m", "mlp", 1, 8);
    site_data(s, "set", 40, 3, (const int64_t[]){1, 8, 8}, 5);
    site_learn(s, "m", 8, 4, "\"epochs\":3,\"val\":0.2,\"checkpoint_every\":1,\"lr\":0.1");
    const struct site_stage stages[] = {{1, 1}, {0, -1}};
    char *plan = site_plan(s, stages, 2, 2), text[200];
    int64_t id = site_submit(s, "m", "set", plan), took_ms = 0;
    while (!job_is(s->h, id, "running"))
        run_ms(s->h, 1);
    for (; !job_over(s->h, id); took_ms++)
        run_ms(s->h, 1);
    assert_true(site_wait(s, id, &want));
    char *told = verdicts(s, id);
    const int rounds = getenv("YOKE_FULL") ? 100 : 24;
    for (int k = 0; k < rounds; k++) {
        id = site_submit(s, "m", "set", plan);
        while (!job_is(s->h, id, "running"))
            run_ms(s->h, 1);
        int64_t at_ms = took_ms * k / rounds;
        run_ms(s->h, at_ms);
        disk(true);
        run_ms(s->h, 3000);
        if (k % 2)
            close_sched(s->h);
        disk(false);
        if (k % 2)
            open_sched(s->h);
        snprintf(text, sizeof text, "full after %lld of %lld ms", (long long)at_ms, (long long)took_ms);
        if (!site_wait(s, id, &got))
            fail_msg("%s: %s", text, site_error(s, id));
        site_same(&want, &got, text);
        char *now = verdicts(s, id);
        if (strcmp(now, told) != 0)
            fail_msg("%s: '%s', not '%s'", text, now, told);
        free(now);
        run_ms(s->h, 1000);
        command("test -z \"$(ls %s/blobs | grep 'set$\\|epoch')\"", s->h->dir);
    }
    free(told);
    free(plan);
    site_close(s);
}

int main(void)
{
    log_set_level(getenv("YOKE_TEST_LOG") ? LOG_INFO : LOG_ERROR);
    const struct CMUnitTest tests[] = {cmocka_unit_test(killed_before_its_model), cmocka_unit_test(full_disk)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
