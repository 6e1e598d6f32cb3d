#include "common/json.h"

#include <math.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static struct json *parse(const char *text)
{
    struct json *doc = NULL;
    struct yk_diag why = {{0}};
    if (json_parse(text, strlen(text), &doc, &why) != YK_OK)
        fail_msg("%s", why.text);
    return doc;
}

static void test_read(void **state)
{
    (void)state;
    struct json *j =
        parse("{\"z\": [1, -2.5, true, null, \"\\u00e9\\n\"], \"a\": {\"b\": 9007199254740993}, \"m\": 3.0}");
    assert_int_equal(json_kind(j), JSON_OBJECT);
    assert_int_equal(json_len(j), 3);
    assert_string_equal(json_key(j, 0), "z"); /* file order */
    assert_string_equal(json_key(j, 1), "a");
    assert_null(json_key(j, 3));
    const struct json *z = json_find(j, "z");
    assert_ptr_equal(z, json_value(j, 0));
    assert_int_equal(json_len(z), 5);
    assert_int_equal(json_i64(json_at(z, 0), 7), 1);
    assert_true(json_f64(json_at(z, 1), 0) == -2.5);
    assert_int_equal(json_i64(json_at(z, 1), 7), 7); /* not integral */
    assert_true(json_bool(json_at(z, 2), false));
    assert_int_equal(json_kind(json_at(z, 3)), JSON_NULL);
    assert_string_equal(json_str(json_at(z, 4), ""), "\xc3\xa9\n");
    assert_null(json_at(z, 5));
    assert_int_equal(json_i64(json_find(json_find(j, "a"), "b"), 0), 9007199254740993);
    assert_int_equal(json_i64(json_find(j, "m"), 0), 3);
    assert_null(json_find(z, "a"));
    assert_null(json_find(NULL, "a"));
    assert_int_equal(json_len(NULL), 0);
    json_free(j);
    json_free(NULL);
    j = parse(" 5 ");
    assert_int_equal(json_i64(j, 0), 5);
    json_free(j);
}

static void test_bad_text(void **state)
{
    (void)state;
    static const char *const bad[] = {"", "{", "[1,]", "{\"a\":1,\"a\":2}", "{a:1}", "[1] x", "\"\\ud800\"", "nan",
        "01", "1e999", "99999999999999999999", "[\"\x01\"]", "\"\xff\"", "'a'", "{\"a\" 1}", "[1 2]", "// c\n1",
        "\"\\u0000\""};
    for (size_t i = 0; i < YK_COUNT(bad); i++) {
        struct json *doc = NULL;
        struct yk_diag why = {{0}};
        assert_int_equal(json_parse(bad[i], strlen(bad[i]), &doc, &why), YK_FORMAT);
        assert_null(doc);
        assert_non_null(strstr(why.text, bad[i][0] ? "line " : "empty"));
    }
    struct json *doc = NULL;
    struct yk_diag why = {{0}};
    assert_int_equal(json_parse("{\n \"a\": tru\n}", 14, &doc, &why), YK_FORMAT);
    assert_memory_equal(why.text, "line 2 column", 13);
    assert_int_equal(json_parse("[1]\0", 4, &doc, &why), YK_FORMAT);
}

static void test_depth(void **state)
{
    (void)state;
    char text[300000];
    struct json *doc = NULL;
    struct yk_diag why = {{0}};
    memset(text, '[', 64);
    memset(text + 64, ']', 64);
    assert_int_equal(json_parse(text, 128, &doc, &why), YK_OK);
    json_free(doc);
    memset(text, '[', 65);
    memset(text + 65, ']', 65);
    assert_int_equal(json_parse(text, 130, &doc, &why), YK_LIMIT);
    assert_non_null(strstr(why.text, "line 1 column 65"));
    memset(text, '[', sizeof text);
    assert_int_equal(json_parse(text, sizeof text, &doc, &why), YK_LIMIT);
    struct json *j =
        parse("[\"[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[\\\"[\"]"); /* text */
    json_free(j);
}

static void test_members(void **state)
{
    (void)state;
    struct json *j = parse("{\"n\": 5, \"x\": 0.5, \"s\": \"hi\", \"b\": true, \"nul\": null, \"big\": 1e300}");
    int64_t n = 1;
    double x = 1;
    bool b = false;
    const char *s = NULL;
    struct yk_diag why = {{0}};
    assert_int_equal(json_get_i64(j, "n", true, 1, 10, &n, &why), YK_OK);
    assert_int_equal(n, 5);
    assert_int_equal(json_get_i64(j, "n", true, 6, 10, &n, &why), YK_INVAL);
    assert_string_equal(why.text, "'n' must be an integer from 6 to 10, not 5");
    assert_int_equal(json_get_i64(j, "s", true, 6, 10, &n, &why), YK_INVAL);
    assert_string_equal(why.text, "'s' must be an integer from 6 to 10, not \"hi\"");
    assert_int_equal(json_get_i64(j, "big", true, INT64_MIN, INT64_MAX, &n, &why), YK_INVAL);
    assert_int_equal(json_get_i64(j, "gone", true, 6, 10, &n, &why), YK_NOTFOUND);
    assert_string_equal(why.text, "'gone' is missing");
    assert_int_equal(json_get_i64(j, "gone", false, 6, 10, &n, &why), YK_OK);
    assert_int_equal(json_get_i64(j, "nul", false, 6, 10, &n, &why), YK_OK);
    assert_int_equal(n, 5);
    assert_int_equal(json_get_f64(j, "x", true, 0, 1, &x, &why), YK_OK);
    assert_true(x == 0.5);
    assert_int_equal(json_get_f64(j, "n", true, 0, 9, &x, &why), YK_OK);
    assert_int_equal(json_get_f64(j, "n", true, 0, 1, &x, &why), YK_INVAL);
    assert_int_equal(json_get_bool(j, "b", true, &b, &why), YK_OK);
    assert_true(b);
    assert_int_equal(json_get_bool(j, "n", true, &b, &why), YK_INVAL);
    assert_int_equal(json_get_str(j, "s", true, &s, &why), YK_OK);
    assert_string_equal(s, "hi");
    assert_int_equal(json_get_str(j, "n", true, &s, &why), YK_INVAL);
    assert_string_equal(why.text, "'n' must be a string, not 5");
    assert_int_equal(json_get_str(json_find(j, "n"), "k", true, &s, &why), YK_INVAL);
    static const char *const some[] = {"n", "x", NULL}, *const all[] = {"n", "x", "s", "b", "nul", "big", NULL};
    assert_int_equal(json_only(j, all, &why), YK_OK);
    assert_int_equal(json_only(j, some, &why), YK_INVAL);
    assert_string_equal(why.text, "unknown key 's' (known: n, x)");
    json_free(j);
}

static void test_file(void **state)
{
    (void)state;
    char path[] = "/tmp/yoke-test-json-XXXXXX";
    int fd = mkstemp(path);
    struct json *j = NULL;
    struct yk_diag why = {{0}};
    assert_int_equal(write(fd, "{\"a\": [1,2,3]}", 14), 14);
    assert_int_equal(json_load(path, 14, &j, &why), YK_OK);
    assert_int_equal(json_len(json_find(j, "a")), 3);
    json_free(j);
    assert_int_equal(json_load(path, 13, &j, &why), YK_LIMIT);
    assert_int_equal(json_load("/no/such.json", 13, &j, &why), YK_NOTFOUND);
    assert_int_equal(json_load("/tmp", 1000, &j, &why), YK_INVAL);
    assert_int_equal(ftruncate(fd, 13), 0);
    assert_int_equal(json_load(path, 100, &j, &why), YK_FORMAT);
    assert_memory_equal(why.text, path, strlen(path));
    close(fd);
    unlink(path);
}

static void expect_text(struct yk_buf *b, const char *text)
{
    yk_buf_add(b, "", 1);
    assert_false(b->failed);
    assert_string_equal((char *)b->data, text);
    yk_buf_free(b);
}

static void test_write(void **state)
{
    (void)state;
    struct yk_buf b = {0};
    struct json_out o;
    json_out_init(&o, &b, 0);
    json_open(&o, '{');
    json_put_key(&o, "a\"\\\n\x01");
    json_open(&o, '[');
    json_put_i64(&o, INT64_MIN);
    json_put_f64(&o, 0.1);
    json_put_f64(&o, NAN);
    json_put_f64(&o, -INFINITY);
    json_put_bool(&o, true);
    json_put_null(&o);
    json_put_str(&o, NULL);
    json_put_str(&o, "\xc3\xa9\xff\xed\xa0\x80");
    json_put_raw(&o, "{\"r\":1}", 7);
    json_close(&o, ']');
    json_put_key(&o, "e");
    json_open(&o, '{');
    json_close(&o, '}');
    json_close(&o, '}');
    expect_text(&b, "{\"a\\\"\\\\\\n\\u0001\":[-9223372036854775808,0.1,null,null,true,null,null,"
                    "\"\xc3\xa9\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\",{\"r\":1}],\"e\":{}}");
    json_out_init(&o, &b, 2);
    json_open(&o, '{');
    json_put_key(&o, "a");
    json_open(&o, '[');
    json_put_i64(&o, 1);
    json_put_i64(&o, 2);
    json_close(&o, ']');
    json_put_key(&o, "b");
    json_open(&o, '[');
    json_close(&o, ']');
    json_close(&o, '}');
    expect_text(&b, "{\n  \"a\": [\n    1,\n    2\n  ],\n  \"b\": []\n}");
}

static void test_numbers_survive(void **state)
{
    (void)state;
    struct yk_rng r;
    yk_rng_seed(&r, 3);
    double fixed[] = {0, -0.0, 1, 1e22, 1e300, 5e-324, 123456789012345678.0, 0x1p63, 100000, 1.0 / 3, 0.1 + 0.2};
    for (size_t i = 0; i < 20000; i++) {
        uint64_t bits = yk_rng_next(&r);
        double v;
        memcpy(&v, &bits, sizeof v);
        if (i < YK_COUNT(fixed))
            v = fixed[i];
        if (!isfinite(v))
            continue;
        struct yk_buf b = {0};
        struct json_out o;
        json_out_init(&o, &b, 0);
        json_put_f64(&o, v);
        struct json *j = NULL;
        struct yk_diag why = {{0}};
        if (json_parse((char *)b.data, b.len, &j, &why) != YK_OK)
            fail_msg("%.*s: %s", (int)b.len, (char *)b.data, why.text);
        double back = json_f64(j, NAN);
        assert_memory_equal(&back, &v, sizeof v);
        json_free(j);
        yk_buf_free(&b);
    }
    struct yk_buf b = {0};
    struct json_out o;
    json_out_init(&o, &b, 0);
    json_put_f64(&o, 100000);
    expect_text(&b, "100000");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_read),
        cmocka_unit_test(test_bad_text),
        cmocka_unit_test(test_depth),
        cmocka_unit_test(test_members),
        cmocka_unit_test(test_file),
        cmocka_unit_test(test_write),
        cmocka_unit_test(test_numbers_survive),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
