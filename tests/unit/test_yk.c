#include "common/log.h"
#include "common/metrics.h"
#include "common/yk.h"

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

static void test_errors(void **state)
{
    (void)state;
    assert_string_equal(yk_err_name(YK_OK), "OK");
    assert_string_equal(yk_err_name(YK_INFEASIBLE), "INFEASIBLE");
    assert_string_equal(yk_err_name((yk_err)999), "UNKNOWN");
    for (int e = YK_OK; e <= YK_INTERNAL; e++)
        assert_int_equal(yk_err_from_name(yk_err_name((yk_err)e)), e);
    assert_int_equal(yk_err_from_name("nonsense"), YK_INTERNAL);
    assert_int_equal(yk_err_from_name(NULL), YK_INTERNAL);
    assert_int_equal(yk_err_from_errno(ENOSPC), YK_NOSPC);
    assert_int_equal(yk_err_from_errno(EACCES), YK_PERM);
    assert_int_equal(yk_err_from_errno(0), YK_OK);
    assert_int_equal(yk_err_from_errno(123456), YK_IO);
}

static void test_diag(void **state)
{
    (void)state;
    struct yk_diag why = {{0}};
    assert_int_equal(yk_fail(NULL, YK_BUSY, "x"), YK_BUSY);
    assert_int_equal(yk_fail(&why, YK_LIMIT, "%d of %d", 3, 2), YK_LIMIT);
    assert_string_equal(why.text, "3 of 2");
    assert_int_equal(yk_wrap(&why, YK_LIMIT, "file '%s'", "a"), YK_LIMIT);
    assert_string_equal(why.text, "file 'a': 3 of 2");
    yk_fail(&why, YK_LIMIT, "again: %s", why.text);
    assert_string_equal(why.text, "again: file 'a': 3 of 2");
    struct yk_diag none = {{0}};
    yk_wrap(&none, YK_NOMEM, "load");
    assert_string_equal(none.text, "load: out of memory");
    for (int i = 0; i < 200; i++)
        yk_wrap(&why, YK_LIMIT, "a long context that fills it");
    assert_int_equal(strlen(why.text), sizeof why.text - 1);
}

static void test_alloc(void **state)
{
    (void)state;
    assert_null(yk_try_alloc(SIZE_MAX / 2, 3));
    assert_null(yk_try_alloc(SIZE_MAX, 1));
    assert_null(yk_try_realloc(NULL, SIZE_MAX / 8, 16));
    assert_null(yk_try_aligned(SIZE_MAX - 10));
    char *p = yk_try_aligned(100);
    assert_int_equal((uintptr_t)p % 64, 0);
    free(p);
    p = yk_try_alloc(0, 8);
    assert_non_null(p);
    free(p);
    char *s = yk_xasprintf("%s-%d", "a", 7);
    assert_string_equal(s, "a-7");
    free(s);
    int64_t v = 5;
    assert_false(yk_mul_i64(INT64_MAX, 2, &v));
    assert_false(yk_add_i64(INT64_MAX, 1, &v));
    assert_true(yk_mul_i64(-3, 4, &v) && v == -12);
}

static void test_arena(void **state)
{
    (void)state;
    struct yk_arena *a = yk_arena_open(1 << 20);
    uint8_t *at[300];
    for (int i = 0; i < 300; i++) {
        size_t n = (size_t)(i * 37 % 500);
        at[i] = yk_arena_alloc(a, n, 1);
        assert_non_null(at[i]);
        assert_int_equal((uintptr_t)at[i] % 16, 0);
        for (size_t k = 0; k < n; k++)
            assert_int_equal(at[i][k], 0);
        memset(at[i], i & 255, n);
    }
    for (int i = 0; i < 300; i++)
        for (size_t k = 0; k < (size_t)(i * 37 % 500); k++)
            assert_int_equal(at[i][k], i & 255);
    assert_string_equal(yk_arena_strndup(a, "abcdef", 3), "abc");
    assert_non_null(yk_arena_alloc(a, 500000, 1));
    assert_null(yk_arena_alloc(a, 600000, 1)); /* over the limit */
    assert_null(yk_arena_alloc(a, SIZE_MAX / 4, 8));
    assert_true(yk_arena_bytes(a) <= 1 << 20);
    assert_string_equal(yk_arena_strdup(a, ""), ""); /* and it still serves */
    yk_arena_close(a);
    yk_arena_close(NULL);
}

static void test_buf(void **state)
{
    (void)state;
    struct yk_buf b = {0};
    yk_buf_add(&b, NULL, 0);
    yk_buf_printf(&b, "%s", "");
    yk_buf_printf(&b, "%d,", 42);
    char big[1000];
    memset(big, 'x', 999);
    big[999] = 0;
    yk_buf_printf(&b, "%s", big);
    assert_int_equal(b.len, 3 + 999);
    assert_memory_equal(b.data, "42,xxx", 6);
    assert_null(yk_buf_room(&b, SIZE_MAX - 5));
    assert_true(b.failed);
    yk_buf_add(&b, "y", 1);
    assert_int_equal(b.len, 3 + 999);
    yk_buf_free(&b);
    assert_false(b.failed);
}

static void test_hex(void **state)
{
    (void)state;
    uint8_t in[] = {0x00, 0xff, 0x1a}, out[3] = {9, 9, 9};
    char text[7];
    yk_hex(in, 3, text);
    assert_string_equal(text, "00ff1a");
    assert_true(yk_unhex("00FF1a", 3, out));
    assert_memory_equal(in, out, 3);
    uint8_t keep[3] = {1, 2, 3};
    assert_false(yk_unhex("00ff1", 3, keep));
    assert_false(yk_unhex("00ff1a0", 3, keep));
    assert_false(yk_unhex("00fg1a", 3, keep));
    assert_false(yk_unhex("", 3, keep));
    assert_int_equal(keep[0], 1);
}

static void test_rng(void **state)
{
    (void)state;
    struct yk_rng a, b;
    yk_rng_seed(&a, 5);
    yk_rng_seed(&b, 5);
    double sum = 0;
    int seen[7] = {0};
    for (int i = 0; i < 70000; i++) {
        assert_true(yk_rng_next(&a) == yk_rng_next(&b));
        seen[yk_rng_below(&a, 7)]++;
        yk_rng_below(&b, 7);
        double u = yk_rng_unit(&a);
        yk_rng_unit(&b);
        assert_true(u >= 0 && u < 1);
        sum += u;
    }
    for (int i = 0; i < 7; i++)
        assert_in_range(seen[i], 9600, 10400); /* 4 sigma */
    assert_true(sum / 70000 > 0.495 && sum / 70000 < 0.505);
    assert_int_equal(yk_rng_below(&a, 1), 0);
    /* The published xoshiro256** from the state 1, 2, 3, 4. */
    struct yk_rng r = {{1, 2, 3, 4}};
    assert_true(yk_rng_next(&r) == 11520);
    assert_true(yk_rng_next(&r) == 0);
    assert_true(yk_rng_next(&r) == 1509978240);
    assert_true(yk_rng_next(&r) == 1215971899390074240u);
}

/* ---- log ---- */

static void read_file(const char *path, char *out, size_t size)
{
    FILE *f = fopen(path, "re");
    assert_non_null(f);
    size_t n = fread(out, 1, size - 1, f);
    out[n] = 0;
    fclose(f);
}

static void test_log(void **state)
{
    (void)state;
    char path[] = "/tmp/yoke-test-log-XXXXXX", text[20000], env[64];
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    unsetenv("JOURNAL_STREAM");
    assert_int_equal(log_open("tester", LOG_INFO, path, NULL), YK_OK);
    log_info(
        "peer says %s", "hi\n2026-01-01T00:00:00.000Z ERROR forged\r\x1b[31m\xff\xc2\x9b\xe2\x80\xae tail \xc3\xa9");
    log_debug("not shown");
    assert_false(log_on(LOG_DEBUG));
    read_file(path, text, sizeof text);
    assert_int_equal(strchr(text, '\n') - text, (long)strlen(text) - 1); /* one line */
    assert_non_null(strstr(text, "Z INFO  tester: peer says hi\\n2026-01-01T00:00:00.000Z ERROR forged\\r\\x1b[31m\\xff"
                                 "\\xc2\\x9b\\xe2\\x80\\xae tail \xc3\xa9\n"));
    int y, mo, d, h, mi, s, ms;
    assert_int_equal(sscanf(text, "%4d-%2d-%2dT%2d:%2d:%2d.%3dZ", &y, &mo, &d, &h, &mi, &s, &ms), 7);

    char *big = yk_xalloc(5000);
    memset(big, '\n', 4999);
    log_error("%s", big);
    free(big);
    read_file(path, text, sizeof text);
    assert_non_null(strstr(text, " [cut]\n"));

    /* As a service: the journal's own stream gets priorities. */
    struct stat st;
    fstat(fd, &st);
    snprintf(env, sizeof env, "%llu:%llu", (unsigned long long)st.st_dev, (unsigned long long)st.st_ino);
    setenv("JOURNAL_STREAM", env, 1);
    assert_int_equal(ftruncate(fd, 0), 0);
    assert_int_equal(log_open("tester", LOG_DEBUG, path, NULL), YK_OK);
    log_warn("w");
    log_debug("d");
    read_file(path, text, sizeof text);
    assert_memory_equal(text, "<4>", 3);
    assert_non_null(strstr(text, "\n<7>"));
    setenv("JOURNAL_STREAM", "1:2", 1); /* somebody else's */
    assert_int_equal(ftruncate(fd, 0), 0);
    assert_int_equal(log_open("tester", LOG_INFO, path, NULL), YK_OK);
    log_warn("w");
    read_file(path, text, sizeof text);
    assert_int_equal(text[0], '2');
    unsetenv("JOURNAL_STREAM");

    struct yk_diag why = {{0}};
    assert_int_equal(log_open("tester", LOG_INFO, "/no/such/folder/x.log", &why), YK_NOTFOUND);
    assert_non_null(strstr(why.text, "/no/such/folder/x.log"));
    log_close();
    close(fd);
    unlink(path);
}

static void test_escape_fits(void **state)
{
    (void)state;
    char out[8];
    assert_int_equal(log_escape("abcdefghij", 10, out, sizeof out), 7);
    assert_string_equal(out, "abcdefg");
    assert_int_equal(log_escape("abcdef\x01", 7, out, sizeof out), 6); /* no half of an escape */
    assert_int_equal(log_escape("abcde\xe2\x82\xac", 8, out, sizeof out), 5);
    assert_int_equal(log_escape("a\0b", 3, out, sizeof out), 6);
    assert_string_equal(out, "a\\x00b");
}

/* ---- metrics ---- */

static void test_metrics(void **state)
{
    (void)state;
    metrics_add(METRIC_jobs_done_total, 2);
    metrics_set(METRIC_agents, 5);
    metrics_add(METRIC_agents, -1);
    metrics_observe_us(METRIC_plan_seconds, 100);
    metrics_observe_us(METRIC_plan_seconds, 101);
    metrics_observe_us(METRIC_plan_seconds, (int64_t)86400 * 1000000);
    assert_int_equal(metrics_get(METRIC_jobs_done_total), 2);
    assert_int_equal(metrics_get(METRIC_plan_seconds), 3);
    struct yk_buf b = {0};
    metrics_print(&b);
    yk_buf_add(&b, "", 1);
    const char *text = (const char *)b.data;
    assert_non_null(strstr(text, "# TYPE yoke_jobs_done_total counter\nyoke_jobs_done_total 2\n"));
    assert_non_null(strstr(text, "# TYPE yoke_agents gauge\nyoke_agents 4\n"));
    assert_non_null(strstr(text, "yoke_plan_seconds_bucket{le=\"0.0001\"} 1\n"));
    assert_non_null(strstr(text, "yoke_plan_seconds_bucket{le=\"0.0004\"} 2\n"));
    assert_non_null(strstr(text, "yoke_plan_seconds_bucket{le=\"+Inf\"} 3\n"));
    assert_non_null(strstr(text, "yoke_plan_seconds_sum 86400.000201\n"));
    assert_non_null(strstr(text, "yoke_plan_seconds_count 3\n"));
    yk_buf_free(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_errors),
        cmocka_unit_test(test_diag),
        cmocka_unit_test(test_alloc),
        cmocka_unit_test(test_arena),
        cmocka_unit_test(test_buf),
        cmocka_unit_test(test_hex),
        cmocka_unit_test(test_rng),
        cmocka_unit_test(test_log),
        cmocka_unit_test(test_escape_fits),
        cmocka_unit_test(test_metrics),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
