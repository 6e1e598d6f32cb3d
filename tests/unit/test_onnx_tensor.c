/* ONNX import: tensors and external data. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/hash.h"
#include "tests/unit/onnx_held.h"

static struct graph *with_weight(struct held *h, struct yk_buf *weight)
{
    struct yk_buf b = {0};
    size_t m = make_model(&b, 17);
    yk_buf_add(&b, weight->data, weight->len);
    yk_buf_free(weight);
    make_value(&b, 12, "w", 1, "-");
    make_end(&b, m);
    yk_err err = load(h, &b);
    return err ? NULL : h->g;
}

static void typed_data(void **state)
{
    static const struct {
        int elem;
        enum dtype dtype;
        uint32_t field;
        int64_t v[3];
        uint8_t want[24];
        size_t size;
    } cases[] = {
        {2, DT_U8, 5, {0, 1, 255}, {0, 1, 255}, 1},
        {3, DT_I8, 5, {-128, -1, 127}, {0x80, 0xff, 0x7f}, 1},
        {4, DT_U16, 5, {0, 1, 65535}, {0, 0, 1, 0, 0xff, 0xff}, 2},
        {5, DT_I16, 5, {-2, 1, 258}, {0xfe, 0xff, 1, 0, 2, 1}, 2},
        {6, DT_I32, 5, {-2, 1, 258}, {0xfe, 0xff, 0xff, 0xff, 1, 0, 0, 0, 2, 1, 0, 0}, 4},
        {7, DT_I64, 7, {-1, 1, 258}, {0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1, 0, 0, 0, 0, 0, 0, 0, 2, 1}, 8},
        {9, DT_BOOL, 5, {0, 1, 5}, {0, 1, 1}, 1},
        {10, DT_F16, 5, {0x3c00, 0, 0xffff}, {0, 0x3c, 0, 0, 0xff, 0xff}, 2},
        {16, DT_BF16, 5, {0x3f80, 0, 1}, {0x80, 0x3f, 0, 0, 1, 0}, 2},
        {12, DT_U32, 11, {0, 1, 4294967295}, {0, 0, 0, 0, 1, 0, 0, 0, 255, 255, 255, 255}, 4},
        {13, DT_U64, 11, {0, 1, -1},
            {0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 255, 255, 255, 255, 255, 255, 255, 255}, 8},
    };
    const int64_t three = 3;
    (void)state;
    for (size_t i = 0; i < YK_COUNT(cases); i++)
        for (int packed = 0; packed < 2; packed++) {
            struct yk_buf w = {0};
            struct held h;
            size_t t = make_tensor(&w, 5, "w", cases[i].elem, &three, 1);
            if (packed)
                pb_put_packed(&w, cases[i].field, cases[i].v, 3);
            for (int k = 0; k < 3 && !packed; k++)
                pb_put_varint(&w, cases[i].field, (uint64_t)cases[i].v[k]);
            pb_end(&w, t);
            struct graph *g = with_weight(&h, &w);
            if (!g)
                fail_msg("element type %d: %s", cases[i].elem, why.text);
            const struct value *v = value(g, "w");
            assert_int_equal(v->dtype, cases[i].dtype);
            assert_int_equal(v->bytes, 3 * cases[i].size);
            assert_memory_equal(v->data, cases[i].want, 3 * cases[i].size);
            drop(&h);
        }
}

static void float_lists(void **state)
{
    const float v[] = {1.5f, -2, 3};
    const double d[] = {0.1, -0.2, 1e300};
    const int64_t three = 3, dims[] = {2, 3};
    struct yk_buf w = {0};
    struct held h;
    (void)state;
    size_t t = make_tensor(&w, 5, "w", 1, &three, 1); /* packed, one piece: in place */
    pb_put_bytes(&w, 4, v, sizeof v);
    pb_end(&w, t);
    struct graph *g = with_weight(&h, &w);
    assert_memory_equal(value(g, "w")->data, v, sizeof v);
    drop(&h);
    t = make_tensor(&w, 5, "w", 1, dims, 2); /* two pieces, packed and not */
    pb_put_bytes(&w, 4, v, sizeof v);
    for (int i = 0; i < 3; i++)
        pb_put_f32(&w, 4, v[i]);
    pb_end(&w, t);
    g = with_weight(&h, &w);
    assert_memory_equal(value(g, "w")->data, v, sizeof v);
    assert_memory_equal((const char *)value(g, "w")->data + sizeof v, v, sizeof v);
    drop(&h);
    t = make_tensor(&w, 5, "w", 11, &three, 1);
    pb_put_bytes(&w, 10, d, sizeof d);
    pb_end(&w, t);
    g = with_weight(&h, &w);
    assert_int_equal(value(g, "w")->dtype, DT_F64);
    assert_memory_equal(value(g, "w")->data, d, sizeof d);
    drop(&h);
    const int64_t none[] = {0, 5};
    t = make_tensor(&w, 5, "w", 1, none, 2);
    pb_end(&w, t);
    g = with_weight(&h, &w);
    assert_int_equal(value(g, "w")->bytes, 0);
    assert_non_null(value(g, "w")->data);
    drop(&h);
}

static void refused_tensors(void **state)
{
    const int64_t three = 3, minus = -3, huge[] = {1LL << 40, 1LL << 40}, big = 1LL << 50,
                  nine[] = {1, 1, 1, 1, 1, 1, 1, 1, 1};
    const float v[] = {1, 2, 3};
    struct held h;
    (void)state;
#define TENSOR(want, reason, elem, dims, rank, ...)                                       \
    do {                                                                                  \
        struct yk_buf w = {0};                                                            \
        size_t t = make_tensor(&w, 5, "w", elem, dims, rank);                             \
        __VA_ARGS__                                                                       \
        pb_end(&w, t);                                                                    \
        struct graph *g = with_weight(&h, &w);                                            \
        if (g || h.err != want || !strstr(why.text, reason))                              \
            fail_msg("expected '%s', got %s '%s'", reason, yk_err_name(h.err), why.text); \
        drop(&h);                                                                         \
    } while (0)
    TENSOR(YK_FORMAT, "8 bytes of data, its shape needs 12", 1, &three, 1, pb_put_bytes(&w, 9, v, 8););
    TENSOR(YK_FORMAT, "0 listed elements, its shape needs 3", 1, &three, 1, );
    TENSOR(YK_FORMAT, "0 listed elements", 1, &three, 1, pb_put_packed(&w, 7, huge, 2);); /* the wrong list */
    TENSOR(YK_FORMAT, "beside its raw data", 1, &three, 1, pb_put_bytes(&w, 9, v, 12); pb_put_bytes(&w, 4, v, 12););
    TENSOR(YK_FORMAT, "negative dimension", 1, &minus, 1, );
    TENSOR(YK_LIMIT, "overflows", 1, huge, 2, );
    TENSOR(YK_FORMAT, "its shape needs 1125899906842624", 1, &big, 1,
           pb_put_f32(&w, 4, 1);); /* a petabyte is not allocated */
    TENSOR(YK_LIMIT, "more than 8 dimensions", 1, nine, 9, );
    TENSOR(YK_FORMAT, "out of range for int8", 3, &three, 1, for (int i = 0; i < 3; i++) pb_put_varint(&w, 5, 128););
    TENSOR(
        YK_FORMAT, "out of range for float16", 10, &three, 1, for (int i = 0; i < 3; i++) pb_put_varint(&w, 5, 65536););
    TENSOR(YK_FORMAT, "malformed", 1, &three, 1, pb_put_bytes(&w, 4, v, 7););
    TENSOR(YK_UNSUPPORTED, "element type 14 (complex)", 14, &three, 1, );
    TENSOR(YK_UNSUPPORTED, "element type 99", 99, &three, 1, );
    TENSOR(YK_UNSUPPORTED, "segments", 1, &three, 1, pb_end(&w, pb_begin(&w, 3)););
    TENSOR(YK_FORMAT, "data location 7", 1, &three, 1, pb_put_varint(&w, 14, 7););
    TENSOR(YK_FORMAT, "without a location", 1, &three, 1, pb_put_varint(&w, 14, 1););
}

/* ---- external data ---- */

static char folder[] = "/tmp/yoke-onnx-XXXXXX";

static void write_file(const char *name, const void *data, size_t n)
{
    char path[256];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(data, 1, n, f), n);
    fclose(f);
}

/* A model in the folder whose weight of three floats lies in `location`. */
static yk_err import_external(const char *location, const char *offset, const char *length, struct graph **g)
{
    struct yk_buf b = {0};
    const int64_t three = 3;
    char path[256];
    size_t m = make_model(&b, 17), t = make_tensor(&b, 5, "w", 1, &three, 1);
    pb_put_varint(&b, 14, 1);
    make_pair(&b, 13, "location", location);
    if (offset)
        make_pair(&b, 13, "offset", offset);
    if (length)
        make_pair(&b, 13, "length", length);
    make_pair(&b, 13, "checksum", "whatever");
    pb_end(&b, t);
    make_value(&b, 12, "w", 1, "-");
    make_end(&b, m);
    write_file("m/model.onnx", b.data, b.len);
    yk_buf_free(&b);
    snprintf(path, sizeof path, "%s/m/model.onnx", folder);
    why.text[0] = '\0';
    return onnx_import(path, g, NULL, &why);
}

static void external_data(void **state)
{
    static const struct {
        const char *location, *offset, *length;
        yk_err err;
        const char *text;
    } bad[] = {
        {"../outside.bin", NULL, NULL, YK_PERM, "not inside"},
        {"sub/../../outside.bin", NULL, NULL, YK_PERM, "not inside"},
        {"/etc/passwd", NULL, NULL, YK_PERM, "not inside"},
        {"", NULL, NULL, YK_PERM, "not inside"},
        {"sub//w.bin", NULL, NULL, YK_PERM, "not inside"},
        {"..\\w.bin", NULL, NULL, YK_PERM, "not inside"},
        {"escape.bin", NULL, NULL, YK_PERM, "link out of"},
        {"out/outside.bin", NULL, NULL, YK_PERM, "link out of"},
        {"missing.bin", NULL, NULL, YK_NOTFOUND, "missing.bin"},
        {"sub", NULL, NULL, YK_INVAL, "not a regular file"},
        {"fifo", NULL, NULL, YK_INVAL, "not a regular file"},
        {"w.bin", "16", NULL, YK_FORMAT, "outside"},
        {"w.bin", "99999999999999999999", NULL, YK_FORMAT, "no number"},
        {"w.bin", "-4", NULL, YK_FORMAT, "no number"},
        {"w.bin", "0", "16", YK_FORMAT, "16 bytes"},
        {"w.bin", "9223372036854775807", NULL, YK_FORMAT, "outside"},
        {"sha256:xyz", NULL, NULL, YK_FORMAT, "no SHA-256"},
    };
    const float v[] = {0, 1, 2, 3, 4, 5};
    char path[256], target[256];
    struct graph *g;
    (void)state;
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/m", folder);
    assert_int_equal(mkdir(path, 0700), 0);
    snprintf(path, sizeof path, "%s/m/sub", folder);
    assert_int_equal(mkdir(path, 0700), 0);
    write_file("outside.bin", v, sizeof v);
    write_file("m/w.bin", v, sizeof v);
    write_file("m/sub/w.bin", v, sizeof v);
    snprintf(path, sizeof path, "%s/m/escape.bin", folder);
    snprintf(target, sizeof target, "%s/outside.bin", folder);
    assert_int_equal(symlink(target, path), 0);
    snprintf(path, sizeof path, "%s/m/out", folder);
    assert_int_equal(symlink("..", path), 0);
    snprintf(path, sizeof path, "%s/m/fifo", folder);
    assert_int_equal(mkfifo(path, 0600), 0);

    assert_int_equal(import_external("w.bin", "4", "12", &g), YK_OK);
    assert_memory_equal(value(g, "w")->data, v + 1, 12);
    graph_close(g);
    assert_int_equal(import_external("sub/w.bin", "12", NULL, &g), YK_OK);
    assert_memory_equal(value(g, "w")->data, v + 3, 12);
    graph_close(g);
    for (size_t i = 0; i < YK_COUNT(bad); i++) {
        g = NULL;
        yk_err err = import_external(bad[i].location, bad[i].offset, bad[i].length, &g);
        if (err != bad[i].err || !strstr(why.text, bad[i].text))
            fail_msg("'%s': expected %s '%s', got %s: %s", bad[i].location, yk_err_name(bad[i].err), bad[i].text,
                yk_err_name(err), why.text);
        assert_null(g);
    }
    /* From memory there is no folder. */
    snprintf(path, sizeof path, "%s/m/model.onnx", folder);
    assert_int_not_equal(import_external("w.bin", "99", NULL, &g), YK_OK);
    size_t n;
    uint8_t *bytes = read_all(path, &n);
    assert_int_equal(onnx_import_memory(bytes, n, &g, NULL, &why), YK_PERM);
    free(bytes);
    snprintf(path, sizeof path, "rm -rf %s", folder);
    assert_int_equal(system(path), 0);
}

static void skeleton_weight(void **state)
{
    struct yk_buf w = {0};
    const int64_t three = 3;
    struct held h;
    char location[7 + HASH_HEX_SIZE] = "sha256:";
    uint8_t hash[HASH_BYTES];
    (void)state;
    hash_bytes("abc", 3, hash);
    yk_hex(hash, HASH_BYTES, location + 7);
    size_t t = make_tensor(&w, 5, "w", 1, &three, 1);
    make_pair(&w, 13, "location", location);
    pb_put_varint(&w, 14, 1);
    pb_end(&w, t);
    struct graph *g = with_weight(&h, &w);
    assert_non_null(g);
    assert_true(value(g, "w")->has_hash);
    assert_null(value(g, "w")->data);
    assert_int_equal(value(g, "w")->bytes, 12);
    assert_memory_equal(value(g, "w")->hash, hash, sizeof hash);
    assert_true(g->has_hash);
    drop(&h);
}

static void bad_paths(void **state)
{
    struct graph *g;
    (void)state;
    assert_int_equal(onnx_import("/nonexistent/model.onnx", &g, NULL, &why), YK_NOTFOUND);
    assert_int_equal(onnx_import("/tmp", &g, NULL, &why), YK_INVAL);
    assert_int_equal(onnx_import("/dev/null", &g, NULL, &why), YK_INVAL);
    assert_non_null(strstr(why.text, "/dev/null"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(typed_data),
        cmocka_unit_test(float_lists),
        cmocka_unit_test(refused_tensors),
        cmocka_unit_test(external_data),
        cmocka_unit_test(skeleton_weight),
        cmocka_unit_test(bad_paths),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
