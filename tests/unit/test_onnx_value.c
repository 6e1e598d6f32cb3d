/* Tensors, sequences and optionals as onnx's own writer makes them (tests/golden/make_values.py), and broken ones. */
#include "common/onnx_value.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#define FOLDER YOKE_SOURCE_DIR "/tests/golden/values/"

static struct onnx_value read_value(const char *name, enum value_type type)
{
    struct onnx_value v;
    struct yk_diag why = {""};
    char path[512];
    snprintf(path, sizeof path, FOLDER "%s.pb", name);
    if (onnx_value_load(path, type, &v, &why))
        fail_msg("%s", why.text);
    return v;
}

static void check_tensor(const struct onnx_value *v, struct shape shape, const void *data)
{
    assert_int_equal(v->type, VALUE_TENSOR);
    assert_true(shape_equal(&v->shape, &shape));
    assert_memory_equal(v->data, data, (size_t)shape_bytes(&shape));
}

static void tensors(void **state)
{
    (void)state;
    const struct {
        const char *name;
        struct shape shape;
        const void *data;
    } all[] = {
        {"float_list", {DT_F32, 2, {2, 3}}, (float[]){1, 2, 3, 4, 5, 6}},
        {"float_raw", {DT_F32, 2, {2, 2}}, (float[]){1.5f, -2, INFINITY, 0}},
        {"int64_list", {DT_I64, 1, {3}}, (int64_t[]){-1, 0, INT64_C(1) << 40}},
        {"double_list", {DT_F64, 1, {2}}, (double[]){1e300, -1}},
        {"uint8_list", {DT_U8, 2, {2, 2}}, (uint8_t[]){0, 1, 254, 255}},
        {"bool_list", {DT_BOOL, 1, {3}}, (uint8_t[]){1, 0, 1}},
        {"half_list", {DT_F16, 1, {2}}, (uint16_t[]){0x3c00, 0xb800}},
        {"uint64_list", {DT_U64, 1, {1}}, (uint64_t[]){UINT64_MAX}},
        {"scalar", {DT_I32, 0, {0}}, (int32_t[]){-7}},
        {"empty", {DT_F32, 2, {0, 3}}, ""},
    };
    for (size_t i = 0; i < YK_COUNT(all); i++) {
        struct onnx_value v = read_value(all[i].name, VALUE_TENSOR), again;
        struct yk_buf b = {0};
        check_tensor(&v, all[i].shape, all[i].data);
        assert_int_equal(onnx_value_encode(&v, "x", &b, NULL), YK_OK);
        assert_int_equal(onnx_value_decode(b.data, b.len, VALUE_TENSOR, &again, NULL), YK_OK);
        check_tensor(&again, all[i].shape, all[i].data);
        onnx_value_fini(&again);
        onnx_value_fini(&v);
        yk_buf_free(&b);
    }
}

static void lists(void **state)
{
    (void)state;
    const struct shape a = {DT_F32, 2, {2, 3}}, b = {DT_I64, 1, {4}};
    const float fa[] = {1, 2, 3, 4, 5, 6};
    const int64_t ib[] = {0, 1, 2, 3};
    char text[80];
    struct onnx_value v = read_value("sequence", VALUE_SEQUENCE);
    assert_int_equal(v.n, 2);
    check_tensor(&v.items[0], a, fa);
    check_tensor(&v.items[1], b, ib);
    onnx_value_text(&v, text, sizeof text);
    assert_string_equal(text, "sequence of 2: float32[2,3], ...");
    onnx_value_fini(&v);
    v = read_value("sequence_empty", VALUE_SEQUENCE);
    assert_int_equal(v.n, 0);
    onnx_value_fini(&v);
    v = read_value("sequence_nested", VALUE_SEQUENCE);
    assert_int_equal(v.items[0].type, VALUE_SEQUENCE);
    check_tensor(&v.items[0].items[0], b, ib);
    onnx_value_fini(&v);
    v = read_value("optional_tensor", VALUE_OPTIONAL);
    check_tensor(&v.items[0], a, fa);
    onnx_value_fini(&v);
    v = read_value("optional_empty", VALUE_OPTIONAL);
    assert_int_equal(v.n, 0);
    onnx_value_text(&v, text, sizeof text);
    assert_string_equal(text, "optional, empty");
    onnx_value_fini(&v);
    v = read_value("optional_sequence", VALUE_OPTIONAL);
    assert_int_equal(v.items[0].type, VALUE_SEQUENCE);
    assert_int_equal(v.items[0].n, 2);
    struct yk_buf out = {0};
    struct onnx_value again;
    assert_int_equal(onnx_value_encode(&v, "", &out, NULL), YK_OK);
    assert_int_equal(onnx_value_decode(out.data, out.len, VALUE_OPTIONAL, &again, NULL), YK_OK);
    check_tensor(&again.items[0].items[1], a, fa);
    onnx_value_fini(&again);
    onnx_value_fini(&v);
    yk_buf_free(&out);
}

static void refused(const char *bytes, size_t len, enum value_type type, yk_err err, const char *says)
{
    struct onnx_value v;
    struct yk_diag why = {""};
    assert_int_equal(onnx_value_decode(bytes, len, type, &v, &why), err);
    if (!strstr(why.text, says))
        fail_msg("'%s' does not say '%s'", why.text, says);
}

static void bad_values(void **state)
{
    (void)state;
    struct onnx_value v;
    struct yk_diag why = {""};
    char path[512];
    snprintf(path, sizeof path, FOLDER "strings.pb");
    assert_int_equal(onnx_value_load(path, VALUE_TENSOR, &v, &why), YK_UNSUPPORTED);
    assert_non_null(strstr(why.text, "string"));
    assert_int_equal(onnx_value_load(FOLDER "none.pb", VALUE_TENSOR, &v, &why), YK_NOTFOUND);
    assert_non_null(strstr(why.text, "none.pb"));
#define BYTES(text) text, sizeof(text) - 1
    refused(BYTES("\x08\x04\x10\x01"), VALUE_TENSOR, YK_FORMAT, "0 listed elements");
    refused(BYTES("\x08\xff\xff\xff\xff\xff\xff\xff\xff\x7f\x08\x04\x10\x01"), VALUE_TENSOR, YK_LIMIT, "overflows");
    refused(BYTES("\x08\x02\x10\x01\x4a\x04zzzz"), VALUE_TENSOR, YK_FORMAT, "its shape needs 8");
    refused(BYTES("\x0a\xff"), VALUE_TENSOR, YK_FORMAT, "malformed");
    refused(BYTES("\x0a\xff"), VALUE_SEQUENCE, YK_FORMAT, "malformed");
    refused(BYTES("\x18\x01"), VALUE_SEQUENCE, YK_FORMAT, "malformed");
    refused(BYTES("\x32\x00"), VALUE_SEQUENCE, YK_UNSUPPORTED, "map");
    refused(BYTES("\x22\x00"), VALUE_OPTIONAL, YK_UNSUPPORTED, "sparse");
    refused(BYTES("\x2a\x00\x2a\x00"), VALUE_OPTIONAL, YK_FORMAT, "holds 2 values");
    refused(BYTES("\x1a\x02\x08\x04"), VALUE_SEQUENCE, YK_UNSUPPORTED, "member 0");
    refused(BYTES("\x2a\x08\x2a\x06\x2a\x04\x2a\x02\x2a\x00"), VALUE_SEQUENCE, YK_LIMIT, "nest over 4 deep");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tensors), cmocka_unit_test(lists), cmocka_unit_test(bad_values)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
