/* Every integer type, and rounding into the small floats, against exact arithmetic (tests/golden/op_dtypes.txt). */
#include "tests/unit/one_op.h"

static void test_golden(void **state)
{
    (void)state;
    FILE *f = fopen(YOKE_SOURCE_DIR "/tests/golden/op_dtypes.txt", "r");
    static char line[16384];
    struct pool *pool;
    int lines = 0, failed = 0;
    assert_non_null(f);
    assert_int_equal(pool_open(2, &pool, NULL), YK_OK);
    while (fgets(line, sizeof line, f)) {
        char *field[4] = {line}, *save = NULL;
        const char *in[ONE_MAX] = {NULL};
        int n = 0;
        line[strcspn(line, "\n")] = 0;
        if (line[0] == '#')
            continue;
        for (int i = 1; i < 4; i++) {
            char *bar = strchr(field[i - 1], '|');
            assert_non_null(bar);
            *bar = 0;
            field[i] = bar + 1;
        }
        for (char *t = strtok_r(field[2], ";", &save); t; t = strtok_r(NULL, ";", &save))
            in[n++] = t;
        struct one_op *o = one_run(field[0], in, field[1], strcmp(field[0], "TopK") ? 1 : 2, 1, pool);
        if (o->rule || o->run || !one_equals(o, 0, field[3], 0)) {
            print_error("%s %s of %.80s: %s\n", field[0], field[1], in[0], o->why.text);
            failed++;
        }
        one_close(o);
        lines++;
    }
    pool_close(pool);
    fclose(f);
    assert_true(lines > 400);
    assert_int_equal(failed, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_golden)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
