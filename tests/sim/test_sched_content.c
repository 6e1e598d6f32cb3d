/* Content that goes by itself: models that somebody needed for a while, and files of trainings that no row refers to.
 */
#include "tests/sched_fixture.h"

#include <sys/stat.h>

#define MINUTES(n) ((int64_t)(n)*60000)

static void add_temporary(struct here *h, const char *name)
{
    size_t len;
    char hash[65];
    uint8_t *data = slurp(YOKE_SOURCE_DIR "/tests/data/fmnist_cnn.onnx", &len);
    upload(h, data, len, hash);
    free(data);
    sched_model_add(h->s, name, hash, NULL, true, on_text, h);
    wait_answer(h, 1000);
    json_free(answer_json(h));
}

static bool has_model(struct here *h, const char *name)
{
    bool is = false;
    store_list(sched_store(h->s), "models", 0, on_json, h);
    wait_answer(h, 1000);
    struct json *doc = answer_json(h);
    for (size_t i = 0; i < json_len(doc); i++)
        is = is || strcmp(json_str(json_find(json_at(doc, i), "model"), ""), name) == 0;
    json_free(doc);
    return is;
}

static bool is_file(const struct here *h, const char *name)
{
    struct stat st;
    char path[256];
    snprintf(path, sizeof path, "%s/blobs/%s", h->dir, name);
    return stat(path, &st) == 0;
}

static void put_file(const struct here *h, const char *name)
{
    char path[256];
    snprintf(path, sizeof path, "%s/blobs/%s", h->dir, name);
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    fputs("abc", f);
    fclose(f);
}

/* Who made it died before removing it: it goes a while after its last use, whatever restarts in between. */
static void temporary_models_go(void **state)
{
    struct here *h = *state;
    struct yk_buf about = {0};
    add_temporary(h, "t@1");
    add_temporary(h, "asked@1");
    add_model(h);
    run_ms(h, MINUTES(14));
    assert_true(has_model(h, "t@1") && has_model(h, "asked@1"));
    assert_int_equal(sched_model_describe(h->s, "asked@1", &about, NULL), YK_OK);
    yk_buf_free(&about);
    run_ms(h, MINUTES(2));
    assert_true(!has_model(h, "t@1") && has_model(h, "asked@1") && has_model(h, "mnist"));
    close_sched(h);
    run_ms(h, MINUTES(60));
    open_sched(h);
    run_ms(h, MINUTES(14));
    assert_true(has_model(h, "asked@1"));
    run_ms(h, MINUTES(2));
    assert_true(!has_model(h, "asked@1") && has_model(h, "mnist"));
    /* What they shared with the one that stays is still good. */
    fake_start(&h->pc);
    run_ms(h, 3000);
    int64_t id = submit(h, BATCH "}");
    wait_over(h, id, 600000);
    expect_done(h, id, 1000);
}

/* One that is in use is not old, however long that takes. */
static void temporary_models_wait_for_jobs(void **state)
{
    struct here *h = *state;
    add_temporary(h, "t@1");
    h->pc.node_ms = 200;
    fake_start(&h->pc);
    run_ms(h, 3000);
    int64_t id = submit(h, "{\"kind\":\"batch\",\"model\":\"t@1\",\"data\":{\"name\":\"d\"},\"source\":\"pc\","
                           "\"batch\":8,\"microbatch\":8}");
    int64_t ms = 0;
    for (; ms < MINUTES(300) && !job_over(h, id); ms += 10000)
        run_ms(h, 10000);
    expect_done(h, id, 1000);
    assert_true(ms > MINUTES(15));
    run_ms(h, MINUTES(14));
    assert_true(has_model(h, "t@1"));
    run_ms(h, MINUTES(2));
    assert_false(has_model(h, "t@1"));
    char command[160];
    snprintf(command, sizeof command, "test -z \"$(ls %s/blobs | grep -v ^job-)\"", h->dir);
    run_ms(h, 1000);
    assert_int_equal(system(command), 0); /* nor is anything of it left */
}

/* yoked died between a file and its row, or between a row and its file. */
static void what_no_row_refers_to_goes(void **state)
{
    static const char hash[] = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
    struct here *h = *state;
    char own[40], set[40], row[120];
    add_model(h);
    int64_t id = submit(h, BATCH "}"); /* open: nobody is there who could run it */
    snprintf(own, sizeof own, "job-%lld.epoch-2", (long long)id);
    snprintf(set, sizeof set, "job-%lld-5-0123abcd.set", (long long)id);
    snprintf(row, sizeof row, "job-77.epoch-1.%s", hash);
    store_put_blob(sched_store(h->s), hash, row, 0, 3);
    run_ms(h, 100);
    close_sched(h);
    const char *gone[] = {row, own, "job-77.epoch-3", "job-77-5-0123abcd.set"};
    const char *stays[] = {set, "job-77.npy", "job-77.onnx", "notes.txt", "job-x.txt"};
    for (size_t i = 0; i < YK_COUNT(gone); i++)
        put_file(h, gone[i]);
    for (size_t i = 0; i < YK_COUNT(stays); i++)
        put_file(h, stays[i]);
    open_sched(h);
    run_ms(h, 1000);
    for (size_t i = 0; i < YK_COUNT(gone); i++)
        if (is_file(h, gone[i]))
            fail_msg("%s is left", gone[i]);
    for (size_t i = 0; i < YK_COUNT(stays); i++)
        if (!is_file(h, stays[i]))
            fail_msg("%s is gone", stays[i]);
    assert_false(blobs_find(sched_blobs(h->s), hash, NULL));
    close_sched(h);
    open_sched(h);
    assert_false(blobs_find(sched_blobs(h->s), hash, NULL));
    fake_start(&h->pc); /* and what stays is good */
    wait_over(h, id, 600000);
    expect_done(h, id, 1000);
}

int main(void)
{
    log_set_level(getenv("YOKE_TEST_LOG") ? LOG_INFO : LOG_ERROR);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(temporary_models_go, setup, teardown),
        cmocka_unit_test_setup_teardown(temporary_models_wait_for_jobs, setup, teardown),
        cmocka_unit_test_setup_teardown(what_no_row_refers_to_goes, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
