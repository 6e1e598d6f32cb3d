/* A folder of a test's own, `root`: folder_open before its tests, folder_close behind them removes it with all in it.
 */
#ifndef YK_TEST_FOLDER_H
#define YK_TEST_FOLDER_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

static char root[] = "/tmp/yoke-test-XXXXXX";

/* A shell command, which has to go well. */
__attribute__((format(printf, 1, 2))) static inline void run(const char *fmt, ...)
{
    char text[2048];
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    assert_in_range(n, 1, sizeof text - 1);
    assert_int_equal(system(text), 0);
}

static inline int folder_open(void **state)
{
    (void)state;
    return mkdtemp(root) ? 0 : -1;
}

static inline int folder_close(void **state)
{
    (void)state;
    run("rm -rf '%s'", root);
    return 0;
}

#endif
