#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "scheduler/cli/timeline.h"

static char *text_of(const struct timeline *t, int32_t width)
{
    struct yk_buf b = {0};
    struct yk_diag why = {0};
    if (timeline_text(t, width, &b, &why))
        fail_msg("%s", why.text);
    yk_buf_add(&b, "", 1);
    assert_false(b.failed);
    return (char *)b.data;
}

/* A row of 100 columns over 100 ms: a column is a millisecond, so the text can be counted. */
static void a_column_is_what_takes_most_of_it(void **state)
{
    (void)state;
    struct timeline *t = timeline_open("step");
    int32_t pc = timeline_row(t, "agent pc"), link = timeline_row(t, "link");
    int32_t f = timeline_kind(t, "forward"), b = timeline_kind(t, "backward");
    assert_int_equal(timeline_row(t, "agent pc"), pc);
    timeline_add(t, pc, f, 0, 10, "F0", NULL);
    timeline_add(t, pc, b, 10, 12, "B0", NULL);      /* no room for a label and a column of the bar */
    timeline_add(t, link, f, 20.4, 20.6, "x", NULL); /* less than half of a column */
    timeline_add(t, link, f, 40, 40.3, "x", NULL);   /* two that fill half of it */
    timeline_add(t, link, f, 40.5, 40.8, "x", NULL);
    timeline_add(t, pc, f, 90, 100, "a label too long", NULL);
    assert_int_equal(timeline_bars(t), 6);
    char *text = text_of(t, 8 + 3 + 100);
    char want[256];
    snprintf(want, sizeof want, "agent pc |F0========--%78s==========|\nlink     |%40s=%59s|\n", "", "", "");
    if (strncmp(text, want, strlen(want)) != 0)
        fail_msg("\n%s", text);
    char bottom[256];
    snprintf(bottom, sizeof bottom, "%10s0%93s100 ms\n%10s= forward - backward\n", "", "", "");
    assert_string_equal(text + strlen(want), bottom);
    free(text);
    timeline_close(t);
}

/* Whatever the names are, the lines are printable and of the width that was asked for. */
static void names_of_any_bytes(void **state)
{
    (void)state;
    struct timeline *t = timeline_open(NULL);
    int32_t row = timeline_row(t, "\x1b[31mred \xff and much longer than a row's name may be");
    for (int k = 0; k < 20; k++) {
        char name[32];
        snprintf(name, sizeof name, "kind\n%d", k);
        timeline_add(t, row, timeline_kind(t, name), k, k + 1, "\x07", "about");
    }
    static const int32_t widths[] = {-5, 0, 60, 80, 100000};
    for (size_t w = 0; w < YK_COUNT(widths); w++) {
        char *text = text_of(t, widths[w]);
        size_t width = (size_t)YK_MIN(YK_MAX(widths[w], 40), 1000);
        assert_int_equal(strcspn(text, "\n"), width);
        for (const char *p = text; *p; p++)
            assert_true(*p == '\n' || (*p >= 0x20 && *p < 0x7f));
        for (const char *p = text; *p; p += strcspn(p, "\n") + 1)
            assert_true(strcspn(p, "\n") <= width + 20);
        free(text);
    }
    timeline_close(t);
}

static yk_err read_text(struct timeline *t, const char *text, struct yk_diag *why)
{
    struct json *j = NULL;
    assert_int_equal(json_parse(text, strlen(text), &j, why), YK_OK);
    yk_err err = timeline_read(t, j, why);
    json_free(j);
    return err;
}

static void from_json(void **state)
{
    (void)state;
    struct yk_diag why = {0};
    struct timeline *t = timeline_open("plan");
    assert_int_equal(read_text(t,
                         "{\"rows\":[\"agent a\",\"link a->b\"],\"more\":1,\"events\":["
                         "{\"row\":0,\"kind\":\"compute\",\"start_ms\":0,\"end_ms\":5,\"label\":\"0\"},"
                         "{\"row\":1,\"kind\":\"transfer\",\"start_ms\":5,\"end_ms\":10,\"about\":\"1 MB\"}]}",
                         &why),
        YK_OK);
    assert_int_equal(timeline_bars(t), 2);
    char *text = text_of(t, 9 + 3 + 40);
    assert_int_equal(strncmp(text,
                         "agent a   |0===================                    |\n"
                         "link a->b |                    --------------------|\n",
                         100),
        0);
    free(text);
    /* The same picture as SVG. */
    char path[] = "/tmp/yk_timeline_XXXXXX", line[64] = "";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    assert_int_equal(timeline_write_svg(t, path, &why), YK_OK);
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    assert_non_null(fgets(line, sizeof line, f));
    assert_int_equal(strncmp(line, "<svg ", 5), 0);
    fclose(f);
    unlink(path);
    assert_int_not_equal(timeline_write_svg(t, "/nowhere/x.svg", &why), YK_OK);
    timeline_close(t);
}

static void bad_json(void **state)
{
    (void)state;
    static const struct {
        const char *text, *say;
    } bad[] = {
        {"[]", "`rows`"},
        {"{\"rows\":[],\"events\":{}}", "`events`"},
        {"{\"rows\":[1],\"events\":[]}", "rows[0]"},
        {"{\"rows\":[\"a\"],\"events\":[{\"row\":1,\"kind\":\"x\",\"start_ms\":0,\"end_ms\":1}]}", "events[0]"},
        {"{\"rows\":[\"a\"],\"events\":[{\"row\":0,\"start_ms\":0,\"end_ms\":1}]}", "kind"},
        {"{\"rows\":[\"a\"],\"events\":[{\"row\":0,\"kind\":\"x\",\"start_ms\":\"0\",\"end_ms\":1}]}", "start_ms"},
        {"{\"rows\":[\"a\"],\"events\":[{\"row\":0,\"kind\":\"x\",\"start_ms\":2,\"end_ms\":1}]}", "ends at 1"},
        {"{\"rows\":[],\"events\":[{\"row\":0,\"kind\":\"x\",\"start_ms\":0,\"end_ms\":1}]}", "row"},
    };
    for (size_t i = 0; i < YK_COUNT(bad); i++) {
        struct yk_diag why = {0};
        struct timeline *t = timeline_open("");
        assert_int_equal(read_text(t, bad[i].text, &why), YK_INVAL);
        if (!strstr(why.text, bad[i].say))
            fail_msg("%s: %s", bad[i].text, why.text);
        timeline_close(t);
    }
    struct timeline *t = timeline_open("");
    struct yk_buf b = {0};
    struct yk_diag why = {0};
    assert_int_equal(timeline_text(t, 80, &b, &why), YK_OK); /* nothing at all */
    timeline_add(t, 0, 0, 0, 1, NULL, NULL);                 /* a row that is not there */
    assert_int_equal(timeline_text(t, 80, &b, &why), YK_INVAL);
    timeline_row(t, "a");
    timeline_kind(t, "k");
    assert_int_equal(timeline_text(t, 80, &b, &why), YK_OK);
    timeline_add(t, 0, 0, NAN, 1, NULL, NULL);
    assert_int_equal(timeline_text(t, 80, &b, &why), YK_INVAL);
    timeline_close(t);
    timeline_close(NULL);
    yk_buf_free(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_column_is_what_takes_most_of_it),
        cmocka_unit_test(names_of_any_bytes),
        cmocka_unit_test(from_json),
        cmocka_unit_test(bad_json),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
