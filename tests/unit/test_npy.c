/* Truth: files that NumPy wrote (tests/golden/make_npy.py). */
#include "common/npy.h"

#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static size_t load(const char *name, uint8_t **out)
{
    char path[512];
    snprintf(path, sizeof path, YOKE_SOURCE_DIR "/tests/golden/npy/%s.npy", name);
    FILE *f = fopen(path, "re");
    if (!f)
        fail_msg("cannot open %s", path);
    *out = malloc(65536);
    size_t n = fread(*out, 1, 65536, f);
    fclose(f);
    *out = realloc(*out, n); /* exact, so that the sanitizer sees an overrun */
    return n;
}

static void test_every_dtype(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        enum dtype dtype;
    } cases[] = {{"f2", DT_F16}, {"f4", DT_F32}, {"f8", DT_F64}, {"i1", DT_I8}, {"i2", DT_I16}, {"i4", DT_I32},
        {"i8", DT_I64}, {"u1", DT_U8}, {"u2", DT_U16}, {"u4", DT_U32}, {"u8", DT_U64}};
    for (size_t i = 0; i < YK_COUNT(cases); i++) {
        uint8_t *d;
        size_t n = load(cases[i].name, &d);
        struct npy npy;
        struct yk_diag why = {{0}};
        if (npy_parse(d, n, (int64_t)n, &npy, &why) != YK_OK)
            fail_msg("%s: %s", cases[i].name, why.text);
        assert_int_equal(npy.shape.dtype, cases[i].dtype);
        assert_int_equal(npy.shape.rank, 2);
        assert_int_equal(npy.shape.dims[0], 2);
        assert_int_equal(npy.shape.dims[1], 3);
        assert_int_equal(npy.bytes, 6 * (int64_t)dtype_bytes(cases[i].dtype));
        assert_int_equal(npy.offset + (size_t)npy.bytes, n);
        if (cases[i].dtype == DT_I32) {
            int32_t v[6];
            memcpy(v, d + npy.offset, sizeof v);
            for (int k = 0; k < 6; k++)
                assert_int_equal(v[k], k);
        }
        /* What we write for the same array is NumPy's file, up to the padding rules of its version. */
        struct yk_buf b = {0};
        assert_int_equal(npy_header(&npy.shape, &b), YK_OK);
        assert_int_equal(b.len % 64, 0);
        assert_int_equal(b.len, npy.offset);
        assert_memory_equal(b.data, d, npy.offset);
        yk_buf_free(&b);
        free(d);
    }
}

static void expect(const char *name, yk_err err, const char *text)
{
    uint8_t *d;
    size_t n = load(name, &d);
    struct npy npy;
    struct yk_diag why = {{0}};
    yk_err got = npy_parse(d, n, (int64_t)n, &npy, &why);
    if (got != err)
        fail_msg("%s: %s, expected %s (%s)", name, yk_err_name(got), yk_err_name(err), why.text);
    if (text && !strstr(why.text, text))
        fail_msg("%s: '%s' does not say '%s'", name, why.text, text);
    free(d);
}

static void test_shapes(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        int rank;
        int64_t count;
    } cases[] = {{"scalar", 0, 1}, {"empty", 2, 0}, {"b1", 1, 3}, {"rank8", 8, 16}, {"v2", 1, 4}, {"v3", 1, 4}};
    for (size_t i = 0; i < YK_COUNT(cases); i++) {
        uint8_t *d;
        size_t n = load(cases[i].name, &d);
        struct npy npy;
        struct yk_diag why = {{0}};
        if (npy_parse(d, n, (int64_t)n, &npy, &why) != YK_OK)
            fail_msg("%s: %s", cases[i].name, why.text);
        assert_int_equal(npy.shape.rank, cases[i].rank);
        assert_int_equal(shape_count(&npy.shape), cases[i].count);
        free(d);
    }
}

static void test_refused_by_name(void **state)
{
    (void)state;
    expect("fortran", YK_UNSUPPORTED, "Fortran order");
    expect("big", YK_UNSUPPORTED, "big-endian data ('>f4')");
    expect("complex", YK_UNSUPPORTED, "'<c8'");
    expect("record", YK_UNSUPPORTED, "records");
    expect("text", YK_UNSUPPORTED, "'<U2'");
    expect("rank9", YK_LIMIT, "more than 8 dimensions");
}

/* Every prefix, and every single changed byte of the header: an answer, never a read outside. */
static void test_damage(void **state)
{
    (void)state;
    uint8_t *d;
    size_t n = load("v2", &d);
    struct npy npy;
    for (size_t len = 0; len < n; len++) {
        uint8_t *copy = malloc(len ? len : 1);
        memcpy(copy, d, len);
        assert_int_not_equal(npy_parse(copy, len, (int64_t)len, &npy, NULL), YK_OK);
        free(copy);
    }
    struct yk_rng r;
    yk_rng_seed(&r, 1);
    for (int i = 0; i < 20000; i++) {
        uint8_t *copy = malloc(n);
        memcpy(copy, d, n);
        for (uint64_t k = yk_rng_below(&r, 3) + 1; k; k--)
            copy[yk_rng_below(&r, 140)] = (uint8_t)yk_rng_next(&r);
        if (npy_parse(copy, n, (int64_t)n, &npy, NULL) == YK_OK)
            assert_int_equal(npy.offset + (size_t)npy.bytes, n);
        free(copy);
    }
    struct yk_diag why = {{0}};
    assert_int_equal(npy_parse(d, n, (int64_t)n + 1, &npy, &why), YK_FORMAT);
    assert_non_null(strstr(why.text, "17 bytes, but float32[4] needs 16"));
    free(d);
}

static yk_err parse_text(const char *text, struct yk_diag *why)
{
    size_t n = strlen(text), head = n + 10;
    uint8_t *d = malloc(head);
    memcpy(d, "\x93NUMPY\x01\x00", 8);
    d[8] = (uint8_t)n;
    d[9] = (uint8_t)(n >> 8);
    memcpy(d + 10, text, n);
    struct npy npy;
    yk_err err = npy_parse(d, head, (int64_t)head, &npy, why);
    free(d);
    return err;
}

static void test_hostile_headers(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        yk_err err;
    } cases[] = {
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (0,), }\n", YK_OK},
        {"{'shape': (0L,), \"descr\": \"<f4\", 'fortran_order': False}", YK_OK},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (4294967296, 4294967296), }", YK_LIMIT},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999999999999,), }", YK_LIMIT},
        {"{'descr': '<f8', 'fortran_order': False, 'shape': (1152921504606846976,), }", YK_LIMIT},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (1000000,), }", YK_FORMAT},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (-1,), }", YK_FORMAT},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (0 0), }", YK_FORMAT},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (0,", YK_FORMAT},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': 0, }", YK_FORMAT},
        {"{'descr': '<f4', 'fortran_order': Maybe, 'shape': (0,), }", YK_FORMAT},
        {"{'descr': '<f4', 'fortran_order': False, }", YK_FORMAT},
        {"{'descr': '<f4', 'descr': '<f8', 'fortran_order': False, 'shape': (0,), }", YK_FORMAT},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (0,), 'x': 1}", YK_FORMAT},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (0,), } import os", YK_FORMAT},
        {"{'descr': '', 'fortran_order': False, 'shape': (0,), }", YK_FORMAT},
        {"{'descr': '<f4", YK_FORMAT},
        {"{'descr': '|O', 'fortran_order': False, 'shape': (0,), }", YK_UNSUPPORTED},
        {"", YK_FORMAT},
        {"[]", YK_FORMAT},
    };
    for (size_t i = 0; i < YK_COUNT(cases); i++) {
        struct yk_diag why = {{0}};
        yk_err err = parse_text(cases[i].text, &why);
        if (err != cases[i].err)
            fail_msg("%s: %s (%s)", cases[i].text, yk_err_name(err), why.text);
    }
    uint8_t big[12] = "\x93NUMPY\x02\x00\xff\xff\xff\xff";
    struct npy npy;
    assert_int_equal(npy_parse(big, 12, 12, &npy, NULL), YK_LIMIT);
    big[6] = 9;
    assert_int_equal(npy_parse(big, 12, 12, &npy, NULL), YK_VERSION);
    struct shape s = {.dtype = DT_BF16, .rank = 1, .dims = {3}};
    struct yk_buf b = {0};
    assert_int_equal(npy_header(&s, &b), YK_UNSUPPORTED);
    s.dtype = DT_F32;
    s.dims[0] = -1;
    assert_int_equal(npy_header(&s, &b), YK_INVAL);
    yk_buf_free(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_dtype),
        cmocka_unit_test(test_shapes),
        cmocka_unit_test(test_refused_by_name),
        cmocka_unit_test(test_damage),
        cmocka_unit_test(test_hostile_headers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
