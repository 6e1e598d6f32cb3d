#include "common/conf.h"

#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

struct base {
    char *rest;
    bool json;
};
struct opts {
    struct base base;
    int64_t threads, memory, lease_ms;
    double lr;
    bool verbose;
    int mode;
    struct conf_strs roots;
    char *name;
};

static const struct conf_key base_keys[] = {
    {.name = "rest",
        .kind = CONF_STR,
        .otherwise = "http://127.0.0.1:7711",
        .help = "Where the scheduler answers.",
        .offset = offsetof(struct opts, base.rest),
        .value = "URL"},
    {.name = "json", .kind = CONF_BOOL, .help = "Print JSON.", .offset = offsetof(struct opts, base.json)},
};
static const struct conf_table base_table = {.program = "yoke-x", .keys = base_keys, .n_keys = 2};

static const struct conf_key keys[] = {
    {.name = "threads",
        .kind = CONF_I64,
        .otherwise = "0",
        .lo = 0,
        .hi = 1024,
        .help = "Threads; 0 is one per core.",
        .offset = offsetof(struct opts, threads)},
    {.name = "memory",
        .kind = CONF_BYTES,
        .otherwise = "512M",
        .lo = 1 << 20,
        .hi = INT64_MAX,
        .help = "Memory budget.",
        .offset = offsetof(struct opts, memory)},
    {.name = "lease",
        .kind = CONF_DURATION_MS,
        .otherwise = "5s",
        .lo = 100,
        .hi = 600000,
        .help = "How long a silent agent is believed alive.",
        .offset = offsetof(struct opts, lease_ms)},
    {.name = "lr",
        .kind = CONF_F64,
        .otherwise = "0.1",
        .lo = 0,
        .hi = 10,
        .help = "Learning rate.",
        .offset = offsetof(struct opts, lr)},
    {.name = "verbose",
        .kind = CONF_BOOL,
        .otherwise = "true",
        .help = "Say more.",
        .offset = offsetof(struct opts, verbose)},
    {.name = "mode",
        .kind = CONF_ENUM,
        .otherwise = "ref",
        .choices = "auto|ref|blas",
        .help = "Backend.",
        .offset = offsetof(struct opts, mode)},
    {.name = "data-root", .kind = CONF_STRS, .help = "Folder with data sets.", .offset = offsetof(struct opts, roots)},
    {.name = "name", .kind = CONF_STR, .help = "Name.", .offset = offsetof(struct opts, name)},
};
static const struct conf_table table = {
    .program = "yoke-x", .usage = "usage: yoke-x", .keys = keys, .n_keys = YK_COUNT(keys), .base = &base_table};

static yk_err parse(struct opts *o, struct conf_args *a, struct yk_diag *why, const char *const *argv)
{
    char *copy[32] = {"yoke-x"};
    int n = 1;
    for (; argv[n - 1]; n++)
        copy[n] = (char *)argv[n - 1];
    memset(o, 0xa5, sizeof *o);
    return conf_parse(&table, n, copy, o, a, why);
}
#define ARGS(...) ((const char *const[]){__VA_ARGS__, NULL})
#define NO_ARGS ((const char *const[]){NULL})

static void test_defaults(void **state)
{
    (void)state;
    struct opts o;
    struct conf_args a;
    assert_int_equal(parse(&o, &a, NULL, NO_ARGS), YK_OK);
    assert_string_equal(o.base.rest, "http://127.0.0.1:7711");
    assert_false(o.base.json);
    assert_int_equal(o.memory, 512 << 20);
    assert_int_equal(o.lease_ms, 5000);
    assert_true(o.lr == 0.1);
    assert_true(o.verbose);
    assert_int_equal(o.mode, 1);
    assert_int_equal(o.roots.n, 0);
    assert_null(o.name);
    assert_int_equal(a.n, 0);
    conf_fini(&table, &o, &a);
}

static void test_flags(void **state)
{
    (void)state;
    struct opts o;
    struct conf_args a;
    assert_int_equal(parse(&o, &a, NULL,
                         ARGS("infer", "--threads=4", "--memory", "2G", "--lease=250ms", "--no-verbose", "--json",
                             "m.onnx", "--mode=blas", "--data-root=/a", "--data-root", "/b=c", "--name=", "--lr=1e-3",
                             "-", "--", "--threads=9")),
        YK_OK);
    assert_int_equal(o.threads, 4);
    assert_int_equal(o.memory, (int64_t)2 << 30);
    assert_int_equal(o.lease_ms, 250);
    assert_false(o.verbose);
    assert_true(o.base.json);
    assert_int_equal(o.mode, 2);
    assert_int_equal(o.roots.n, 2);
    assert_string_equal(o.roots.at[1], "/b=c");
    assert_string_equal(o.name, "");
    assert_int_equal(a.n, 4);
    assert_string_equal(a.at[0], "infer");
    assert_string_equal(a.at[1], "m.onnx");
    assert_string_equal(a.at[2], "-");
    assert_string_equal(a.at[3], "--threads=9");
    conf_fini(&table, &o, &a);
    assert_int_equal(parse(&o, &a, NULL, ARGS("--threads=4", "--threads=5", "--verbose=off", "--json=yes")), YK_OK);
    assert_int_equal(o.threads, 5);
    assert_false(o.verbose);
    assert_true(o.base.json);
    conf_fini(&table, &o, &a);
}

/* What the command line itself says, as against a default, the environment or a file that says the same. */
static void test_given(void **state)
{
    (void)state;
    struct opts o;
    struct conf_args a;
    assert_int_equal(setenv("YOKE_X_NAME", "env", 1), 0);
    assert_int_equal(parse(&o, &a, NULL,
                         ARGS("--threads=4", "--data-root=/a", "--data-root=/b", "--no-verbose", "--json", "--mode=ref",
                             "--", "--lr=1")),
        YK_OK);
    assert_int_equal(unsetenv("YOKE_X_NAME"), 0);
    assert_string_equal(o.name, "env");
    static const char *const given[] = {"threads", "data-root", "verbose", "json", "mode"}, *const not_given[] = {
                                                                                                "name", "lr", "memory",
                                                                                                "rest", "thread",
                                                                                                "no-verbose", ""};
    for (size_t i = 0; i < YK_COUNT(given); i++)
        assert_true(conf_given(&a, given[i]));
    for (size_t i = 0; i < YK_COUNT(not_given); i++)
        assert_false(conf_given(&a, not_given[i]));
    assert_int_equal(a.n_given, 5);
    conf_fini(&table, &o, &a);
    assert_false(conf_given(&a, "threads"));
}

static void test_bad_flags(void **state)
{
    (void)state;
    static const struct {
        const char *arg, *text;
    } cases[] = {
        {"--theads=4", "unknown flag '--theads', did you mean '--threads'?"},
        {"--dataroot=/x", "unknown flag '--dataroot', did you mean '--data-root'?"},
        {"--mem=4", "unknown flag '--mem', did you mean '--memory'?"},
        {"--hlep", "unknown flag '--hlep', did you mean '--help'?"},
        {"--xyzzyplugh", "unknown flag '--xyzzyplugh'"},
        {"-t", "unknown flag '-t' (flags begin with --)"},
        {"--threads=1025", "--threads must be an integer from 0 to 1024, not '1025'"},
        {"--threads=-1", "--threads must be an integer from 0 to 1024, not '-1'"},
        {"--threads=4x", "--threads must be an integer from 0 to 1024, not '4x'"},
        {"--threads=", "--threads must be an integer from 0 to 1024, not ''"},
        {"--threads", "--threads needs a value"},
        {"--threads=99999999999999999999", "--threads must be an integer"},
        {"--memory=1K", "--memory must be a number of bytes of at least 1048576, not '1K'"},
        {"--memory=-5M", "--memory must be a number of bytes (64K, 512M, 2G) of at least 1048576, not '-5M'"},
        {"--memory=nan", "--memory must be"},
        {"--memory=9999999999T", "--memory must be"},
        {"--memory=5X", "--memory must be"},
        {"--lease=1ms", "--lease must be a time in ms from 100 to 600000, not '1ms'"},
        {"--lr=inf", "--lr must be a number from 0 to 10, not 'inf'"},
        {"--lr=11", "--lr must be a number from 0 to 10, not '11'"},
        {"--mode=cuda", "--mode must be one of auto|ref|blas, not 'cuda'"},
        {"--json=maybe", "--json must be true or false, not 'maybe'"},
        {"--no-json=1", "--no-json takes no value"},
        {"--no-threads", "unknown flag '--no-threads'"},
        {"--config", "--config needs a file"},
        {"--config=/no/such/file", "cannot open configuration file '/no/such/file'"},
    };
    for (size_t i = 0; i < YK_COUNT(cases); i++) {
        struct opts o;
        struct conf_args a;
        struct yk_diag why = {{0}};
        if (parse(&o, &a, &why, ARGS("--data-root=/x", cases[i].arg)) == YK_OK)
            fail_msg("%s was taken", cases[i].arg);
        if (strncmp(why.text, cases[i].text, strlen(cases[i].text)) != 0)
            fail_msg("%s: '%s' is not '%s'", cases[i].arg, why.text, cases[i].text);
    }
}

static void test_precedence(void **state)
{
    (void)state;
    char path[] = "/tmp/yoke-test-conf-XXXXXX", flag[64];
    int fd = mkstemp(path);
    const char *text =
        "# a comment\n\n  threads = 2\nname=from file \t\r\nmode = auto\ndata-root = /f1\ndata-root = /f2\n";
    assert_int_equal(write(fd, text, strlen(text)), (long)strlen(text));
    snprintf(flag, sizeof flag, "--config=%s", path);
    setenv("YOKE_X_NAME", "from env", 1);
    setenv("YOKE_X_DATA_ROOT", "/e", 1);
    setenv("YOKE_X_LEASE", "", 1); /* empty: not set */
    setenv("YOKE_X_REST", "http://h:1", 1);
    struct opts o;
    struct conf_args a;
    struct yk_diag why = {{0}};
    if (parse(&o, &a, &why, ARGS(flag, "--mode=blas")) != YK_OK)
        fail_msg("%s", why.text);
    assert_string_equal(a.config, path);
    assert_int_equal(o.threads, 2);
    assert_string_equal(o.name, "from env");
    assert_string_equal(o.base.rest, "http://h:1");
    assert_int_equal(o.mode, 2);
    assert_int_equal(o.lease_ms, 5000);
    assert_int_equal(o.roots.n, 1); /* the later source replaces the list */
    assert_string_equal(o.roots.at[0], "/e");
    conf_fini(&table, &o, &a);
    unsetenv("YOKE_X_NAME");
    unsetenv("YOKE_X_DATA_ROOT");
    assert_int_equal(parse(&o, &a, &why, ARGS(flag)), YK_OK);
    assert_string_equal(o.name, "from file");
    assert_int_equal(o.roots.n, 2);
    conf_fini(&table, &o, &a);
    setenv("YOKE_X_THREADS", "many", 1);
    assert_int_equal(parse(&o, &a, &why, NO_ARGS), YK_INVAL);
    assert_string_equal(why.text, "YOKE_X_THREADS must be an integer from 0 to 1024, not 'many'");
    unsetenv("YOKE_X_THREADS");
    unsetenv("YOKE_X_REST");
    unsetenv("YOKE_X_LEASE");
    close(fd);
    unlink(path);
}

static void test_bad_files(void **state)
{
    (void)state;
    static const struct {
        const char *text, *message;
    } cases[] = {
        {"threads = 2\nnonsense\n", "f.conf:2: expected key = value"},
        {"\n\ntreads = 2", "f.conf:3: unknown key 'treads', did you mean 'threads'?"},
        {"threads = 2\nthreads = 3\n", "f.conf:2: 'threads' is given twice"},
        {"mode = gpu\n", "f.conf:1: 'mode' must be one of auto|ref|blas, not 'gpu'"},
        {"memory = 1\n", "f.conf:1: 'memory' must be a number of bytes of at least 1048576, not '1'"},
        {"= 3\n", "f.conf:1: unknown key ''"},
    };
    struct opts o;
    struct conf_args a;
    struct yk_diag why = {{0}};
    assert_int_equal(parse(&o, &a, NULL, NO_ARGS), YK_OK);
    for (size_t i = 0; i < YK_COUNT(cases); i++) {
        assert_int_not_equal(conf_load(&table, "f.conf", cases[i].text, strlen(cases[i].text), &o, &why), YK_OK);
        if (strcmp(why.text, cases[i].message) != 0)
            fail_msg("'%s' is not '%s'", why.text, cases[i].message);
    }
    assert_int_equal(conf_load(&table, "f", "name = a\0b\n", 11, &o, &why), YK_FORMAT);
    char *longer = yk_xalloc(6000);
    memset(longer, 'a', 6000);
    assert_int_equal(conf_load(&table, "f", longer, 6000, &o, &why), YK_LIMIT);
    free(longer);
    struct yk_rng r;
    yk_rng_seed(&r, 9);
    for (int i = 0; i < 3000; i++) { /* any bytes: an answer */
        char noise[200];
        static const char some[] = "threads =\n#mode data-root\0\xff";
        for (size_t k = 0; k < sizeof noise; k++)
            noise[k] = some[yk_rng_below(&r, sizeof some)];
        conf_load(&table, "f", noise, sizeof noise, &o, NULL);
    }
    conf_fini(&table, &o, &a);
}

static void test_print_is_loadable(void **state)
{
    (void)state;
    char *text = NULL;
    size_t len = 0;
    FILE *f = open_memstream(&text, &len);
    conf_print(&table, f);
    fclose(f);
    struct opts o;
    struct conf_args a;
    struct yk_diag why = {{0}};
    assert_int_equal(parse(&o, &a, NULL, NO_ARGS), YK_OK);
    if (conf_load(&table, "printed", text, len, &o, &why) != YK_OK)
        fail_msg("%s", why.text);
    assert_int_equal(o.memory, 512 << 20);
    assert_string_equal(o.base.rest, "http://127.0.0.1:7711");
    for (size_t i = 0; i < YK_COUNT(keys); i++) {
        assert_non_null(strstr(text, keys[i].name));
        assert_non_null(strstr(text, keys[i].help));
    }
    assert_non_null(strstr(text, "YOKE_X_DATA_ROOT"));
    free(text);
    f = open_memstream(&text, &len);
    conf_help(&table, f);
    fclose(f);
    assert_non_null(strstr(text, "--mode=auto|ref|blas"));
    assert_non_null(strstr(text, "--json"));
    assert_non_null(strstr(text, "[512M]"));
    free(text);
    conf_fini(&table, &o, &a);
}

static void test_built_in(void **state)
{
    (void)state;
    struct opts o;
    struct conf_args a;
    assert_int_equal(parse(&o, &a, NULL, ARGS("--help", "--threads=wrong")), YK_OK);
    assert_true(a.help && !a.version);
    conf_fini(&table, &o, &a);
    assert_int_equal(parse(&o, &a, NULL, ARGS("--version")), YK_OK);
    assert_true(a.version);
    conf_fini(&table, &o, &a);
    assert_int_equal(parse(&o, &a, NULL, ARGS("--print-config")), YK_OK);
    assert_true(a.print_config);
    conf_fini(&table, &o, &a);
    char *argv[] = {"yoke-x", "--rest", "http://x", "--json", "agents", "more", NULL};
    assert_string_equal(conf_command(&base_table, 6, argv), "agents");
    assert_null(conf_command(&base_table, 4, argv));
}

static void test_bytes(void **state)
{
    (void)state;
    int64_t v;
    assert_true(conf_bytes("64K", &v) && v == 65536);
    assert_true(conf_bytes("1.5G", &v) && v == 1610612736);
    assert_true(conf_bytes("0", &v) && v == 0);
    assert_true(conf_bytes("9223372036854775807", &v) && v == INT64_MAX);
    assert_true(conf_bytes("3MiB", &v) && v == 3145728);
    const char *bad[] = {"", "K", "1 K", " 1K", "1KK", "0x10", "inf", "nan", "9223372036854775808", "1e", "9000000T"};
    for (size_t i = 0; i < YK_COUNT(bad); i++)
        if (conf_bytes(bad[i], &v))
            fail_msg("'%s' was read as %lld", bad[i], (long long)v);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_defaults),
        cmocka_unit_test(test_flags),
        cmocka_unit_test(test_given),
        cmocka_unit_test(test_bad_flags),
        cmocka_unit_test(test_precedence),
        cmocka_unit_test(test_bad_files),
        cmocka_unit_test(test_print_is_loadable),
        cmocka_unit_test(test_built_in),
        cmocka_unit_test(test_bytes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
