/* What a flag may hold as an address. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <string.h>

#include "common/net_url.h"

static void addresses(void **state)
{
    (void)state;
    static const struct {
        const char *scheme, *url;
        yk_err want;
    } cases[] = {{"tcp", NULL, YK_OK}, {"tcp", "tcp://127.0.0.1:7712", YK_OK}, {"tcp", "tcp://127.1.2.3:0", YK_OK},
        {"tcp", "tcp://localhost:1", YK_OK}, {"http", "http://[::1]:7711", YK_OK}, {"tcp", "", YK_INVAL},
        {"tcp", "foo", YK_INVAL}, {"tcp", "tcp://", YK_INVAL}, {"tcp", "tcp://127.0.0.1", YK_INVAL},
        {"tcp", "tcp://:7712", YK_INVAL}, {"tcp", "tcp://127.0.0.1:", YK_INVAL}, {"tcp", "tcp://127.0.0.1:x", YK_INVAL},
        {"tcp", "tcp://127.0.0.1:65536", YK_INVAL}, {"tcp", "tcp://127.0.0.1:-1", YK_INVAL},
        {"tcp", "http://127.0.0.1:7711", YK_INVAL}, {"tcp", "tcp://0.0.0.0:0", YK_PERM},
        {"tcp", "tcp://10.0.0.1:7712", YK_PERM}, {"tcp", "tcp://127.0.0.1.example.org:7712", YK_PERM},
        {"http", "http://localhost.example.org:80", YK_PERM}, {"http", "http://[::]:80", YK_PERM}};
    for (size_t i = 0; i < YK_COUNT(cases); i++) {
        struct yk_diag why = {0};
        yk_err err = net_url_check("flag", cases[i].scheme, cases[i].url, &why);
        if (err != cases[i].want)
            fail_msg("%s: %s, %s", cases[i].url, yk_err_name(err), why.text);
        assert_true(!err || (strstr(why.text, "--flag=") && strstr(why.text, cases[i].url)));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(addresses)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
