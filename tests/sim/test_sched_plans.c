/* Plans that a client gives: whatever is in them, they are run exactly or refused by name; and no job keeps the daemon
 * from starting. */
#include "tests/sched_fixture.h"

#include <sys/stat.h>

static void begin(struct here *h)
{
    add_model(h);
    fake_start(&h->pc);
    fake_start(&h->phone);
    run_ms(h, 3000);
    assert_true(h->pc.joined && h->phone.joined);
}

/* text with one `from` made into `to`; free(). */
static char *edit(const char *text, const char *from, const char *to)
{
    const char *at = strstr(text, from);
    if (!at)
        fail_msg("no %s in %s", from, text);
    return yk_xasprintf("%.*s%s%s", (int)(at - text), text, to, at + strlen(from));
}

static void expect_refused(struct here *h, const char *request, const char *says)
{
    sched_submit(h->s, request, strlen(request), on_text, h);
    wait_answer(h, 1000);
    if (h->err != YK_INVAL || !strstr(h->text, says))
        fail_msg("job %s: %s %s, should say %s", request, yk_err_name(h->err), h->text, says);
    sched_plan(h->s, request, strlen(request), on_text, h);
    wait_answer(h, 1000);
    if (h->err != YK_INVAL || !strstr(h->text, says))
        fail_msg("plan %s: %s %s, should say %s", request, yk_err_name(h->err), h->text, says);
    assert_int_equal(sched_jobs_open(h->s), 0);
}

/* As a job and as a question; before it is stored or read by anything. */
static void bad_plans_are_refused(void **state)
{
    struct here *h = *state;
    begin(h);
    char *plan = two_stages(h, "pc", "phone");
    static const struct {
        const char *from, *to, *says;
    } bad[] = {
        {"\"cuts\":[]", "\"cuts\":[],\"forms\":[\"ref@generic\",\"ref@generic\",\"ref@generic\"]", "3 forms"},
        {"\"cuts\":[]", "\"cuts\":[],\"forms\":[]", "0 forms"},
        {"\"nodes\":[[0,", "\"nodes\":[[1,", "node 0 is in no stage"},
        {"\"agent\":\"phone\",\"nodes\":[[", "\"agent\":\"phone\",\"nodes\":[[0,0],[", "node 0 is in stages 0 and 1"},
        {"]]}]}]", "0000]]}]}]", "names node"},
        {"\"cuts\":[]", "\"cuts\":[{\"from\":1,\"to\":0,\"codec\":\"fp16\"}]", "cuts[0]"},
        {"\"cuts\":[]", "\"cuts\":[{\"pipeline\":3,\"from\":0,\"to\":1,\"codec\":\"fp16\"}]", "cuts[0]"},
        {"\"share\":1", "\"share\":0", "share"},
        {"\"share\":1", "\"share\":0.5", "0.5"},
        {"\"use\":\"infer\"", "\"use\":\"train\"", "train"},
        {"\"cuts\":[]", "\"cuts\":[],\"objective\":\"foo\"", "foo"},
        {"\"cuts\":[]", "\"cuts\":[],\"batch\":-1", "batch"},
        {"\"cuts\":[]", "\"cuts\":[],\"source\":\"nobody\"", "nobody"},
    };
    for (size_t i = 0; i < YK_COUNT(bad); i++) {
        char *edited = edit(plan, bad[i].from, bad[i].to);
        char *request = yk_xasprintf(BATCH ",\"plan\":%s}", edited);
        expect_refused(h, request, bad[i].says);
        free(request);
        free(edited);
    }
    expect_refused(h, BATCH ",\"plan\":null}", "JSON object");
    expect_refused(h, BATCH ",\"plan\":[]}", "JSON object");
    char *request = yk_xasprintf(BATCH ",\"microbatch\":4,\"plan\":%s}", plan);
    expect_refused(h, request, "microbatch is 4");
    free(request);
    free(plan);
}

/* A plan of another graph says so, whatever its other keys hold. */
static void of_another_graph(void **state)
{
    struct here *h = *state;
    begin(h);
    char *plan = two_stages(h, "pc", "phone"), *hash = strstr(plan, "\"hash\":\"") + 8;
    hash[0] = hash[0] == '0' ? '1' : '0';
    char *edited = edit(plan, "\"cuts\":[]", "\"cuts\":[],\"forms\":[\"x\",\"y\"]");
    char *request = yk_xasprintf(BATCH ",\"plan\":%s}", edited);
    expect_refused(h, request, "plan it again");
    free(request);
    free(edited);
    free(plan);
}

/* The plan's own source is used where the request names none; pins hold for a given plan too. */
static void source_and_pins(void **state)
{
    struct here *h = *state;
    begin(h);
    char *plan = two_stages(h, "pc", "phone"), *edited = edit(plan, "\"cuts\":[]", "\"cuts\":[],\"source\":\"phone\"");
    char *request = yk_xasprintf("{\"kind\":\"batch\",\"model\":\"mnist\",\"batch\":64,\"plan\":%s}", edited);
    sched_plan(h->s, request, strlen(request), on_text, h);
    wait_answer(h, 60000);
    struct json *doc = answer_json(h);
    assert_string_equal(json_str(json_find(doc, "source"), ""), "phone");
    json_free(doc);
    free(request);
    free(edited);
    edited = edit(plan, "\"cuts\":[]", "\"cuts\":[],\"source\":\"nobody\"");
    request = yk_xasprintf("{\"kind\":\"batch\",\"model\":\"mnist\",\"batch\":64,\"plan\":%s}", edited);
    sched_plan(h->s, request, strlen(request), on_text, h);
    wait_answer(h, 60000);
    assert_true(h->err && strstr(h->text, "nobody"));
    free(request);
    free(edited);
    request = yk_xasprintf(BATCH ",\"pin\":[\"first\",\"last\"],\"plan\":%s}", plan);
    sched_plan(h->s, request, strlen(request), on_text, h);
    wait_answer(h, 60000);
    if (h->err != YK_INVAL || !strstr(h->text, "--pin=last") || !strstr(h->text, "phone"))
        fail_msg("%s", h->text);
    free(request);
    request = yk_xasprintf(BATCH ",\"pin\":[\"first\"],\"plan\":%s}", plan);
    sched_plan(h->s, request, strlen(request), on_text, h);
    wait_answer(h, 60000);
    json_free(answer_json(h));
    free(request);
    free(plan);
}

/* An uploaded job whose source is nobody fails and says so, instead of going elsewhere. */
static void unknown_source(void **state)
{
    struct here *h = *state;
    begin(h);
    struct yk_buf b = {0};
    struct shape s = {DT_F32, 4, {2, 1, 28, 28}};
    char hash[65];
    assert_int_equal(npy_header(&s, &b), YK_OK);
    memset(yk_buf_room(&b, 2 * 784 * 4), 0, 2 * 784 * 4);
    upload(h, b.data, b.len, hash);
    yk_buf_free(&b);
    char *request =
        yk_xasprintf("{\"kind\":\"infer\",\"model\":\"mnist\",\"source\":\"nobody\",\"data\":{\"blob\":\"%s\"}}", hash);
    int64_t id = submit(h, request);
    free(request);
    wait_over(h, id, 60000);
    expect_state(h, id, "failed");
    struct json *doc;
    assert_non_null(strstr(json_str(json_find(job_row(h, id, &doc), "error"), ""), "nobody"));
    json_free(doc);
}

/* An output goes when its owner says so, and not before the job has ended; the job stays in the list. */
static void outputs_are_removed(void **state)
{
    struct here *h = *state;
    begin(h);
    int64_t id = submit(h, BATCH "}");
    sched_outputs_remove(h->s, id, on_text, h);
    wait_answer(h, 1000);
    assert_true(h->err == YK_STATE && strstr(h->text, "yoke cancel"));
    sched_outputs_remove(h->s, id + 1, on_text, h);
    wait_answer(h, 1000);
    assert_int_equal(h->err, YK_NOTFOUND);
    wait_over(h, id, 600000);
    expect_done(h, id, 1000);
    expect_output(h, id, 1000);
    run_ms(h, 5000);
    char file[40];
    snprintf(file, sizeof file, "job-%lld.npy", (long long)id);
    char *path = sched_output_path(h->s, file);
    sched_outputs_remove(h->s, id, on_text, h);
    wait_answer(h, 1000);
    struct json *doc = answer_json(h);
    assert_int_equal(json_i64(json_find(doc, "files"), 0), 1);
    json_free(doc);
    for (int ms = 0; ms < 2000 && access(path, F_OK) == 0; ms += 10)
        run_ms(h, 10);
    assert_int_not_equal(access(path, F_OK), 0);
    free(path);
    sched_outputs(h->s, id, on_json, h);
    wait_answer(h, 1000);
    assert_int_equal(h->err, YK_NOTFOUND);
    sched_outputs_remove(h->s, id, on_text, h);
    wait_answer(h, 1000);
    assert_true(h->err == YK_NOTFOUND && strstr(h->text, "keeps no output"));
    expect_done(h, id, 1000);
}

/* ---- a daemon that dies ---- */

static void copy_db(const char *from, const char *to)
{
    char *command =
        yk_xasprintf("cp %s/yoke.db %s/yoke.db && { rm -f %s/yoke.db-*; cp %s/yoke.db-wal %s 2>/dev/null; true; }",
            from, to, to, from, to);
    assert_int_equal(system(command), 0);
    free(command);
}

/* As by SIGKILL: what the database holds now is all that the next start finds. */
static void die_and_start(struct here *h)
{
    char kept[80];
    snprintf(kept, sizeof kept, "%s/kept", h->dir);
    mkdir(kept, 0700);
    copy_db(h->dir, kept);
    close_sched(h);
    copy_db(kept, h->dir);
    open_sched(h);
}

static void dies_while_planning(void **state)
{
    struct here *h = *state;
    begin(h);
    h->pc.stall_profile = true;
    int64_t ids[2] = {submit(h, BATCH "}"), submit(h, BATCH "}")};
    int deaths = 0;
    while (!job_is(h, ids[0], "failed") && !job_is(h, ids[1], "failed")) {
        run_ms(h, 10000);
        /* Of two that may be why, one is planned at a time. */
        assert_int_equal(job_is(h, ids[0], "planning") + job_is(h, ids[1], "planning"), deaths ? 1 : 2);
        assert_true(++deaths < 6);
        die_and_start(h);
        run_ms(h, 100);
    }
    int failed = job_is(h, ids[1], "failed");
    struct json *doc;
    assert_non_null(strstr(json_str(json_find(job_row(h, ids[failed], &doc), "error"), ""), "3 times"));
    json_free(doc);
    h->pc.stall_profile = false;
    fake_kill(&h->pc);
    fake_start(&h->pc);
    wait_over(h, ids[!failed], 300000);
    expect_done(h, ids[!failed], 1000);
}

/* A stop is no death, however often. */
static void stops_while_planning(void **state)
{
    struct here *h = *state;
    begin(h);
    h->pc.stall_profile = true;
    int64_t id = submit(h, BATCH "}");
    for (int stop = 1; stop <= 5; stop++) {
        run_ms(h, 10000);
        assert_true(job_is(h, id, "planning"));
        close_sched(h);
        open_sched(h);
    }
    h->pc.stall_profile = false;
    fake_kill(&h->pc);
    fake_start(&h->pc);
    wait_over(h, id, 300000);
    expect_done(h, id, 1000);
}

int main(void)
{
    log_set_level(getenv("YOKE_TEST_LOG") ? LOG_INFO : LOG_ERROR);
#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        T(bad_plans_are_refused),
        T(of_another_graph),
        T(source_and_pins),
        T(unknown_source),
        T(outputs_are_removed),
        T(dies_while_planning),
        T(stops_while_planning),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
