/* What our tests use of cmocka, for cross builds, where the library is not: the first failure of a test ends it. */
#ifndef TESTS_CROSS_CMOCKA_H
#define TESTS_CROSS_CMOCKA_H

#include <inttypes.h>
#include <setjmp.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

typedef int cross_fixture(void **state);
struct CMUnitTest {
    const char *name;
    void (*run)(void **state);
};
#define cmocka_unit_test(f) \
    {                       \
#f, f               \
    }

enum { CROSS_FAILED = 1, CROSS_SKIPPED };
static jmp_buf cross_out;

static inline void cross_fail(const char *file, int line, const char *what)
{
    fprintf(stderr, "%s:%d: error: %s\n", file, line, what);
    longjmp(cross_out, CROSS_FAILED);
}
static inline void cross_equal(const char *file, int line, const char *what, uint64_t a, uint64_t b)
{
    if (a == b)
        return;
    fprintf(stderr, "%" PRId64 " and %" PRId64 "\n", (int64_t)a, (int64_t)b);
    cross_fail(file, line, what);
}

#define CROSS_CHECK(ok, text) ((ok) ? (void)0 : cross_fail(__FILE__, __LINE__, text))
#define assert_true(x) CROSS_CHECK(x, #x)
#define assert_false(x) CROSS_CHECK(!(x), "not " #x)
#define assert_null(x) CROSS_CHECK(!(x), #x " is not NULL")
#define assert_non_null(x) CROSS_CHECK(x, #x " is NULL")
#define assert_ptr_equal(a, b) CROSS_CHECK((const void *)(a) == (const void *)(b), #a " is not " #b)
#define assert_int_equal(a, b) \
    cross_equal(__FILE__, __LINE__, #a " is not " #b, (uint64_t)(int64_t)(a), (uint64_t)(int64_t)(b))
#define assert_int_not_equal(a, b) CROSS_CHECK((int64_t)(a) != (int64_t)(b), #a " is " #b)
#define assert_string_equal(a, b) CROSS_CHECK(!strcmp(a, b), #a " is not " #b)
#define assert_memory_equal(a, b, n) CROSS_CHECK(!memcmp(a, b, n), #a " is not " #b)
#define print_error(...) fprintf(stderr, __VA_ARGS__)
#define print_message(...) printf(__VA_ARGS__)
#define fail_msg(...) (fprintf(stderr, __VA_ARGS__), cross_fail(__FILE__, __LINE__, ""))
#define fail() cross_fail(__FILE__, __LINE__, "")
#define skip() longjmp(cross_out, CROSS_SKIPPED)

static inline int cross_run(
    const char *group, const struct CMUnitTest *tests, size_t n, cross_fixture *setup, cross_fixture *teardown)
{
    void *state = NULL;
    setvbuf(stdout, NULL, _IOLBF, 0);
    volatile int failed = 0;
    if (setup && setup(&state)) {
        printf("[  FAILED  ] setup of %s\n", group);
        return (int)n;
    }
    for (volatile size_t i = 0; i < n; i++) {
        int ended = setjmp(cross_out);
        if (ended == 0)
            tests[i].run(&state);
        printf("[  %s ] %s.%s\n",
            ended == 0               ? "     OK"
            : ended == CROSS_SKIPPED ? "SKIPPED"
                                     : " FAILED",
            group, tests[i].name);
        failed += ended == CROSS_FAILED;
    }
    if (teardown)
        teardown(&state);
    return failed;
}
#define cmocka_run_group_tests_name(name, tests, setup, teardown) \
    cross_run(name, tests, sizeof(tests) / sizeof(*(tests)), setup, teardown)
#define cmocka_run_group_tests(tests, setup, teardown) cmocka_run_group_tests_name(#tests, tests, setup, teardown)

#endif
