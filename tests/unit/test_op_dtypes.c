/* Every integer type and rounding into the small floats against exact arithmetic (tests/golden/op_dtypes.txt), and
 * quantised ops, choice by value, features and losses against ONNX Runtime (op_ort.txt). */
#include "tests/unit/one_op.h"

/* Splits text at c into at most `most` parts. */
static int split(char *text, char c, char **part, int most)
{
    int n = 0;
    while (text && n < most) {
        part[n++] = text;
        text = strchr(text, c);
        if (text)
            *text++ = 0;
    }
    return n;
}

/* A line: op | attributes | inputs | outputs. */
static void golden(const char *path, double rel, int at_least)
{
    FILE *f = fopen(path, "r");
    static char line[16384];
    struct pool *pool;
    int lines = 0, failed = 0;
    assert_non_null(f);
    assert_int_equal(pool_open(2, &pool, NULL), YK_OK);
    while (fgets(line, sizeof line, f)) {
        char *field[4], *in[ONE_MAX] = {NULL}, *out[4];
        line[strcspn(line, "\n")] = 0;
        if (line[0] == '#')
            continue;
        assert_int_equal(split(line, '|', field, 4), 4);
        assert_true(split(field[2], ';', in, ONE_MAX) < ONE_MAX);
        int n = split(field[3], ';', out, 4);
        struct one_op *o =
            one_run(field[0], (const char *const *)in, field[1], strcmp(field[0], "TopK") ? n : 2, 1, pool);
        bool ok = !o->rule && !o->run;
        for (int k = 0; k < n && ok; k++)
            ok = one_equals(o, k, out[k], rel);
        if (!ok)
            print_error("%s %s of %.80s: %s\n", field[0], field[1], in[0], o->why.text);
        failed += !ok;
        one_close(o);
        lines++;
    }
    pool_close(pool);
    fclose(f);
    assert_true(lines >= at_least);
    assert_int_equal(failed, 0);
}

static void test_exact(void **state)
{
    (void)state;
    golden(YOKE_SOURCE_DIR "/tests/golden/op_dtypes.txt", 0, 400);
}

static void test_ort(void **state)
{
    (void)state;
    golden(YOKE_SOURCE_DIR "/tests/golden/op_ort.txt", 1e-5, 180);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_exact), cmocka_unit_test(test_ort)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
