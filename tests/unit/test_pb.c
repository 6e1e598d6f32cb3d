/* Protobuf reader and writer, against the vectors of the format's own documentation. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "common/pb.h"

/* The one field of a message, from a heap block of exactly its size. */
static bool one(const void *bytes, size_t n, struct pb_field *f)
{
    struct pb r = pb_over(bytes, n);
    bool bad = false;
    bool ok = pb_next(&r, f, &bad);
    assert_true(ok != bad || n == 0);
    return ok && !pb_next(&r, &(struct pb_field){0}, &bad) && !bad;
}

static void documented_vectors(void **state)
{
    struct pb_field f;
    struct pb_text t;
    uint64_t v[3];
    (void)state;
    assert_true(one("\x08\x96\x01", 3, &f));
    assert_int_equal(f.number, 1);
    assert_int_equal(f.v, 150);
    assert_true(one("\x12\x07testing", 9, &f));
    assert_true(pb_text(&f, &t));
    assert_int_equal(t.n, 7);
    assert_memory_equal(t.s, "testing", 7);
    assert_true(one("\x32\x06\x03\x8e\x02\x9e\xa7\x05", 8, &f)); /* packed 3, 270, 86942 */
    assert_int_equal(pb_count(&f, PB_VARINT), 3);
    assert_true(pb_numbers(&f, PB_VARINT, v));
    assert_int_equal(v[0], 3);
    assert_int_equal(v[1], 270);
    assert_int_equal(v[2], 86942);
    assert_true(one("\x08\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01", 11, &f)); /* -2 */
    assert_int_equal((int64_t)f.v, -2);
    assert_true(one("\x1d\x00\x00\x80\x3f", 5, &f));
    assert_true(pb_f32(f.v) == 1.0f);
    assert_true(one("\x19\x00\x00\x00\x00\x00\x00\xf0\x3f", 9, &f));
    assert_true(pb_f64(f.v) == 1.0);
}

static void malformed(void **state)
{
    static const struct {
        const char *bytes;
        size_t n;
    } cases[] = {
        {"\x08", 1},                                              /* no value */
        {"\x08\x96", 2},                                          /* value cut off */
        {"\x80", 1},                                              /* tag cut off */
        {"\x00\x00", 2},                                          /* field 0 */
        {"\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\x02", 11},     /* 65 bits */
        {"\x08\x80\x80\x80\x80\x80\x80\x80\x80\x80\x80\x00", 12}, /* 11 bytes */
        {"\xf8\xff\xff\xff\x7f\x00", 6},                          /* tag of 35 bits */
        {"\x12\x07testin", 8},                                    /* one byte short */
        {"\x12\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", 11},     /* length -1 */
        {"\x12\xff\xff\xff\xff\x0f", 6},                          /* 4 GiB */
        {"\x1d\x00\x00\x80", 4},                                  /* fixed32 short */
        {"\x19\x00\x00\x80\x00\x00\x00\x00", 8},                  /* fixed64 short */
        {"\x0b\x0c", 2},                                          /* group */
        {"\x0e\x00", 2},                                          /* wire type 6 */
        {"\x0f\x00", 2},                                          /* wire type 7 */
    };
    (void)state;
    for (size_t i = 0; i < YK_COUNT(cases); i++) {
        uint8_t *exact = malloc(cases[i].n);
        struct pb_field f;
        bool bad = false;
        memcpy(exact, cases[i].bytes, cases[i].n);
        struct pb r = pb_over(exact, cases[i].n);
        assert_false(pb_next(&r, &f, &bad));
        assert_true(bad);
        free(exact);
    }
    struct pb empty = pb_over(NULL, 0);
    bool bad = false;
    assert_false(pb_next(&empty, &(struct pb_field){0}, &bad));
    assert_false(bad);
}

static void numbers_packed_or_not(void **state)
{
    struct pb_field f;
    uint64_t v[2];
    (void)state;
    assert_true(one("\x08\x05", 2, &f));
    assert_int_equal(pb_count(&f, PB_VARINT), 1);
    assert_true(pb_numbers(&f, PB_VARINT, v));
    assert_int_equal(v[0], 5);
    assert_int_equal(pb_count(&f, PB_FIXED32), -1); /* another wire type */
    assert_true(one("\x0a\x02\x05\x80", 4, &f));    /* ends inside a number */
    assert_int_equal(pb_count(&f, PB_VARINT), -1);
    assert_true(one("\x0a\x05\x00\x00\x80\x3f\x00", 7, &f));
    assert_int_equal(pb_count(&f, PB_FIXED32), -1); /* not a multiple of 4 */
    assert_true(one("\x0a\x08\x00\x00\x80\x3f\x00\x00\x00\x40", 10, &f));
    assert_int_equal(pb_count(&f, PB_FIXED32), 2);
    assert_true(pb_numbers(&f, PB_FIXED32, v));
    assert_true(pb_f32(v[0]) == 1.0f && pb_f32(v[1]) == 2.0f);
    assert_true(one("\x0a\x0c\x80\x80\x80\x80\x80\x80\x80\x80\x80\x80\x80\x01", 14, &f)); /* one number too long */
    assert_int_equal(pb_count(&f, PB_VARINT), 1);
    assert_false(pb_numbers(&f, PB_VARINT, v));
    assert_true(one("\x0a\x00", 2, &f));
    assert_int_equal(pb_count(&f, PB_VARINT), 0);
}

static void text(void **state)
{
    static const char *const good[] = {"", "x", "/layer.0/Conv", "größe", "名前", "🙂"};
    static const char *const bad[] = {
        "\xff", "\xc3", "\xc0\xaf", "\xe2\x82", "\xed\xa0\x80", "\xf4\x90\x80\x80", "a\x80"};
    struct pb_text t;
    (void)state;
    for (size_t i = 0; i < YK_COUNT(good); i++) {
        struct pb_field f = {.wire = PB_BYTES, .data = (const uint8_t *)good[i], .len = strlen(good[i])};
        assert_true(pb_text(&f, &t));
    }
    for (size_t i = 0; i < YK_COUNT(bad); i++) {
        struct pb_field f = {.wire = PB_BYTES, .data = (const uint8_t *)bad[i], .len = strlen(bad[i])};
        assert_false(pb_text(&f, &t));
    }
    struct pb_field nul = {.wire = PB_BYTES, .data = (const uint8_t *)"a\0b", .len = 3};
    assert_false(pb_text(&nul, &t));
    struct pb_field number = {.wire = PB_VARINT};
    assert_false(pb_text(&number, &t));
}

static void writer_makes_the_documented_bytes(void **state)
{
    struct yk_buf b = {0};
    const int64_t packed[] = {3, 270, 86942};
    (void)state;
    pb_put_varint(&b, 1, 150);
    pb_put_text(&b, 2, "testing");
    pb_put_packed(&b, 6, packed, 3);
    pb_put_packed(&b, 6, packed, 0);
    pb_put_f32(&b, 3, 1.0f);
    assert_int_equal(b.len, 3 + 9 + 8 + 5);
    assert_memory_equal(
        b.data, "\x08\x96\x01\x12\x07testing\x32\x06\x03\x8e\x02\x9e\xa7\x05\x1d\x00\x00\x80\x3f", b.len);
    yk_buf_free(&b);
}

/* Lengths of one, two and three bytes, nested. */
static void writer_nests(void **state)
{
    static const size_t sizes[] = {0, 1, 120, 127, 128, 16000, 16384, 70000};
    (void)state;
    for (size_t i = 0; i < YK_COUNT(sizes); i++) {
        struct yk_buf b = {0};
        uint8_t *body = calloc(1, sizes[i] + 1);
        struct pb_field f, g;
        memset(body, 7, sizes[i]);
        size_t outer = pb_begin(&b, 5), inner = pb_begin(&b, 6);
        pb_put_bytes(&b, 7, body, sizes[i]);
        pb_end(&b, inner);
        pb_put_varint(&b, 8, 1);
        pb_end(&b, outer);
        assert_true(one(b.data, b.len, &f));
        assert_int_equal(f.number, 5);
        struct pb r = pb_of(&f);
        bool bad = false;
        assert_true(pb_next(&r, &g, &bad));
        assert_int_equal(g.number, 6);
        assert_true(one(g.data, g.len, &f));
        assert_int_equal(f.number, 7);
        assert_int_equal(f.len, sizes[i]);
        assert_memory_equal(f.data, body, sizes[i]);
        assert_true(pb_next(&r, &g, &bad));
        assert_int_equal(g.number, 8);
        assert_false(pb_next(&r, &g, &bad));
        assert_false(bad);
        free(body);
        yk_buf_free(&b);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(documented_vectors),
        cmocka_unit_test(malformed),
        cmocka_unit_test(numbers_packed_or_not),
        cmocka_unit_test(text),
        cmocka_unit_test(writer_makes_the_documented_bytes),
        cmocka_unit_test(writer_nests),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
