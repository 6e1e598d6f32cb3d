/* The picture of a loss curve: well-formed for any numbers, bounded in size, everything inside the frame. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "scheduler/cli/plot.h"

static char *draw(const struct plot *p)
{
    struct yk_buf out = {0};
    assert_int_equal(plot_svg(p, &out, NULL), YK_OK);
    yk_buf_add(&out, "", 1);
    assert_int_equal(strncmp((char *)out.data, "<svg ", 5), 0);
    assert_string_equal((char *)out.data + out.len - 1 - 7, "</svg>\n");
    return (char *)out.data;
}

/* Coordinates of the paths lie in the picture. */
static void check_inside(const char *text)
{
    for (const char *d = strstr(text, " d=\""); d; d = strstr(d + 1, " d=\""))
        for (const char *at = d + 4; *at != '"';) {
            char *end;
            assert_true(*at == 'M' || *at == 'L');
            double x = strtod(at + 1, &end), y = strtod(end, &end);
            assert_true(x >= 0 && x <= 900 && y >= 0 && y <= 420);
            at = end;
        }
    assert_null(strstr(text, "nan"));
    assert_null(strstr(text, "inf"));
}

static void draws_every_step(void **state)
{
    (void)state;
    float y[] = {3, 2, 1.5f, 1}, marks[] = {0.5f, NAN};
    struct plot p = {"a <b> & c", y, 4, marks, 2, 2};
    char *text = draw(&p), *again = draw(&p);
    check_inside(text);
    assert_string_equal(text, again);
    assert_non_null(strstr(text, "a &#60;b&#62; &#38; c"));
    int points = 0, circles = 0;
    for (const char *at = strchr(strstr(text, "#56b4e9"), 'M'); *at != '"'; at++)
        points += *at == 'M' || *at == 'L';
    for (const char *at = strstr(text, "<circle"); at; at = strstr(at + 1, "<circle"))
        circles++;
    assert_int_equal(points, 4);
    assert_int_equal(circles, 1);
    free(text);
    free(again);
}

static void draws_anything(void **state)
{
    (void)state;
    int64_t sizes[] = {0, 1, 2, 759, 761, 100000};
    for (size_t s = 0; s < YK_COUNT(sizes); s++)
        for (int kind = 0; kind < 5; kind++) {
            float *y = malloc((size_t)(sizes[s] + 1) * sizeof *y);
            for (int64_t i = 0; i < sizes[s]; i++)
                y[i] = kind == 0   ? 2.5f
                       : kind == 1 ? 1 / (float)(i + 1)
                       : kind == 2 ? (i % 3 ? NAN : INFINITY)
                       : kind == 3 ? (i % 2 ? 3e38f : -3e38f)
                                   : (float)(i % 5) * 1e-40f;
            struct plot p = {"x", y, sizes[s], NULL, 0, 1};
            char *text = draw(&p);
            check_inside(text);
            assert_true(strlen(text) < 80000);
            free(text);
            free(y);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(draws_every_step), cmocka_unit_test(draws_anything)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
