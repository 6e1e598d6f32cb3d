#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "scheduler/cli/svg.h"

static const char *const rows[] = {"desk", "pho<ne>"};
static const char *const kinds[] = {"forward", "backward"};

static char *draw(const struct svg_timeline *t)
{
    struct yk_buf b = {0};
    struct yk_diag why = {0};
    assert_int_equal(svg_timeline(t, &b, &why), YK_OK);
    yk_buf_add(&b, "", 1);
    return (char *)b.data;
}

static int count(const char *text, const char *what)
{
    int n = 0;
    for (const char *p = text; (p = strstr(p, what)); p++)
        n++;
    return n;
}

/* Every tag that opens closes, and text has no bare marks: what an XML reader asks. */
static void check_xml(const char *text)
{
    char open[16][16];
    int depth = 0;
    for (const char *p = text; *p; p++) {
        assert_true((unsigned char)*p >= 0x20 || *p == '\n');
        if (*p == '&')
            assert_true(p[1] == '#');
        if (*p != '<')
            continue;
        const char *end = strchr(p, '>');
        assert_non_null(end);
        size_t n = strcspn(p + 1 + (p[1] == '/'), " >/");
        assert_true(n > 0 && n < 16);
        if (p[1] == '/') {
            assert_true(depth > 0);
            depth--;
            assert_int_equal(strlen(open[depth]), n);
            assert_memory_equal(open[depth], p + 2, n);
        } else if (end[-1] != '/') {
            assert_true(depth < 16);
            memcpy(open[depth], p + 1, n);
            open[depth++][n] = 0;
        }
        p = end;
    }
    assert_int_equal(depth, 0);
}

static void spans_stand_where_their_times_are(void **state)
{
    (void)state;
    const struct svg_span spans[] = {{0, 0, 10, 20, "a long first one", NULL}, {1, 1, 20, 30, "b", "node 7"}};
    struct svg_timeline t = {"step", rows, 2, kinds, 2, spans, 2};
    char *text = draw(&t);
    check_xml(text);
    assert_int_equal(count(text, "class=\"b\""), 2);
    assert_non_null(strstr(text, ">a long first one</text>"));
    assert_non_null(strstr(text, "pho&#60;ne&#62;"));
    assert_non_null(strstr(text, "b: 10.000 ms, at 10.000 ms\nnode 7</title>"));
    double x[2], w[2];
    const char *p = text;
    for (int i = 0; i < 2; i++) {
        p = strstr(p, "class=\"b\" x=\"");
        assert_non_null(p);
        p += 13;
        x[i] = strtod(p, NULL);
        w[i] = strtod(strstr(p, "width=\"") + 7, NULL);
    }
    assert_true(fabs(x[0] + w[0] - x[1]) < 0.02 && fabs(w[0] - w[1]) < 0.02);
    assert_true(x[1] + w[1] <= 1200);
    free(text);
}

static void names_of_any_bytes(void **state)
{
    (void)state;
    const struct svg_span spans[] = {
        {0, 0, 0, 1, "\x01 \xff\xfe </text> & \"q\" \xc3\xa9 \xed\xa0\x80 \xf0", "\x1b[0m"}, {0, 0, 1, 1, NULL, NULL},
        {0, 0, 1, 1.0000001, "a name that does not fit", NULL}};
    struct svg_timeline t = {"\xc3", rows, 1, NULL, 0, spans, 3};
    char *text = draw(&t);
    check_xml(text);
    assert_non_null(strstr(text, "? ?? &#60;/text&#62; &#38; &#34;q&#34; \xc3\xa9 ??? ?"));
    assert_int_equal(count(text, "class=\"l\""), 1);
    free(text);
}

static void nothing_is_a_picture_too(void **state)
{
    (void)state;
    struct svg_timeline t = {"none", NULL, 0, NULL, 0, NULL, 0};
    char *text = draw(&t);
    check_xml(text);
    free(text);
}

static void many_kinds_take_lines(void **state)
{
    (void)state;
    const char *names[60];
    for (int i = 0; i < 60; i++)
        names[i] = "a kind of ops";
    const struct svg_span span = {0, 59, 0, 1, "x", NULL};
    struct svg_timeline t = {"kinds", rows, 1, names, 60, &span, 1};
    char *text = draw(&t);
    check_xml(text);
    assert_int_equal(count(text, ">a kind of ops<"), 60);
    free(text);
}

static void refused(void **state)
{
    (void)state;
    const struct svg_span bad[] = {{0, 0, 1, 0, "", NULL}, {0, 0, 0, INFINITY, "", NULL}, {0, 0, NAN, 1, "", NULL},
        {2, 0, 0, 1, "", NULL}, {-1, 0, 0, 1, "", NULL}, {0, 2, 0, 1, "", NULL}, {0, -1, 0, 1, "", NULL}};
    struct yk_buf b = {0};
    struct yk_diag why = {0};
    for (size_t i = 0; i < YK_COUNT(bad); i++) {
        struct svg_timeline t = {"bad", rows, 2, kinds, 2, &bad[i], 1};
        assert_int_equal(svg_timeline(&t, &b, &why), YK_INVAL);
        assert_non_null(strstr(why.text, "span 0"));
    }
    struct svg_timeline many = {"many", rows, SVG_ROWS_MAX + 1, kinds, 2, bad, 0};
    assert_int_equal(svg_timeline(&many, &b, &why), YK_LIMIT);
    assert_int_equal(
        svg_write("/nowhere/x.svg", &(struct svg_timeline){"t", rows, 1, NULL, 0, NULL, 0}, &why), YK_NOTFOUND);
    yk_buf_free(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(spans_stand_where_their_times_are),
        cmocka_unit_test(names_of_any_bytes),
        cmocka_unit_test(nothing_is_a_picture_too),
        cmocka_unit_test(many_kinds_take_lines),
        cmocka_unit_test(refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
