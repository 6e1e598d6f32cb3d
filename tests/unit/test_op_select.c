/* Ops that choose by value: results as numpy and PyTorch give them, outputs of unknown size in the room that the rule
 * promised, and refusals. */
#include "tests/unit/one_op.h"

#define BOXES "f32:1,6,4=0,0,1,1,0,0.1,1,1.1,0,-0.1,1,0.9,0,10,1,11,0,10.1,1,11.1,0,100,1,101"
#define SCORES "f32:1,1,6=0.9,0.75,0.6,0.95,0.5,0.3"

static const struct one_value values[] = {
    {"NonZero", {"bool:2,2=1,0,1,1"}, NULL, {"i64:2,3=0,1,1,0,0,1"}},
    {"NonZero", {"f32:2,3=0,-0,nan,1e-40,0,2"}, NULL, {"i64:2,3=0,1,1,2,0,2"}},
    {"NonZero", {"i64:3"}, NULL, {"i64:1,0"}},
    {"NonZero", {"i64:=5"}, NULL, {"i64:0,0"}},
    {"NonZero", {"i64:0,4"}, NULL, {"i64:2,0"}},
    {"Compress", {"f32:3,2=1,2,3,4,5,6", "bool:3=0,1,1?"}, "axis=i:0", {"f32:2,2=3,4,5,6"}},
    {"Compress", {"f32:3,2=1,2,3,4,5,6", "bool:2=0,1?"}, "axis=i:-1", {"f32:3,1=2,4,6"}},
    {"Compress", {"f32:3,2=1,2,3,4,5,6", "bool:5=0,1,0,0,1?"}, NULL, {"f32:2=2,5"}},
    {"Compress", {"u8:3,2=1,2,3,4,5,6", "bool:1=1"}, "axis=i:0", {"u8:1,2=1,2"}},
    {"Compress", {"u8:3,2=1,2,3,4,5,6", "bool:3=0,0,0?"}, "axis=i:0", {"u8:0,2"}},
    {"Compress", {"u8:3,2=1,2,3,4,5,6", "bool:0"}, NULL, {"u8:0"}},
    {"Unique", {"f32:3,3=3,1,2,1,1,3,3,1,2"}, NULL,
        {"f32:3=1,2,3", "i64:3=1,2,0", "i64:9=2,0,1,0,0,2,2,0,1", "i64:3=4,2,3"}},
    {"Unique", {"f32:3,3=3,1,2,1,1,3,3,1,2"}, "axis=i:0",
        {"f32:2,3=1,1,3,3,1,2", "i64:2=1,0", "i64:3=1,0,1", "i64:2=1,2"}},
    {"Unique", {"f32:3,3=3,1,2,1,1,3,3,1,2"}, "axis=i:-1",
        {"f32:3,3=1,2,3,1,3,1,1,2,3", "i64:3=1,2,0", "i64:3=2,0,1", "i64:3=1,1,1"}},
    {"Unique", {"i32:7=2,1,1,3,4,3,2"}, "sorted=i:0",
        {"i32:4=2,1,3,4", "i64:4=0,1,3,4", "i64:7=0,1,1,2,3,2,0", "i64:4=2,2,2,1"}},
    {"Unique", {"u64:4=9223372036854775813,3,9223372036854775813,1"}, NULL,
        {"u64:3=1,3,9223372036854775813", "i64:3=3,1,0", "i64:4=2,1,2,0", "i64:3=1,1,2"}},
    {"Unique", {"f32:4=nan,1,nan,-inf"}, NULL, {"f32:3=-inf,1,nan", "i64:3=3,1,0", "i64:4=2,1,2,0", "i64:3=1,1,2"}},
    {"Unique", {"i8:0"}, NULL, {"i8:0", "i64:0", "i64:0", "i64:0"}},
    {"Unique", {"bool:=1"}, NULL, {"bool:1=1", "i64:1=0", "i64:1=0", "i64:1=1"}},
    {"TopK", {"f32:2,3=1,5,3,2,2,9", "i64:1=2"}, "axis=i:0", {"f32:2,3=2,5,9,1,2,3", "i64:2,3=1,0,1,0,1,0"}},
    {"TopK", {"f32:2,3=1,5,3,2,2,9", "i64:1=2"}, NULL, {"f32:2,2=5,3,9,2", "i64:2,2=1,2,2,0"}},
    {"TopK", {"f32:2,3=1,5,3,2,2,9", "i64:1=2"}, "largest=i:0", {"f32:2,2=1,3,2,2", "i64:2,2=0,2,0,1"}},
    {"TopK", {"f32:5=1,nan,3,inf,-inf", "i64:1=3"}, NULL, {"f32:3=nan,inf,3", "i64:3=1,3,2"}},
    {"TopK", {"u64:3=1,18446744073709551615,3", "i64:1=1"}, NULL, {"u64:1=18446744073709551615", "i64:1=1"}},
    {"TopK", {"i64:3=-9007199254740993,-9007199254740992,-9007199254740994", "i64:1=3"}, NULL,
        {"i64:3=-9007199254740992,-9007199254740993,-9007199254740994", "i64:3=1,0,2"}},
    {"TopK", {"f32:2,3", "i64:1=0"}, NULL, {"f32:2,0", "i64:2,0"}},
    {"NonMaxSuppression", {BOXES, SCORES, "i64:1=3", "f32:1=0.5", "f32:1=0"}, NULL, {"i64:3,3=0,0,3,0,0,0,0,0,5"}},
    {"NonMaxSuppression", {BOXES, SCORES, "i64:1=3", "f32:1=0.5", "f32:1=0.4"}, NULL, {"i64:2,3=0,0,3,0,0,0"}},
    {"NonMaxSuppression", {BOXES, SCORES, "i64:1=1?", "f32:=0.5"}, NULL, {"i64:1,3=0,0,3"}},
    {"NonMaxSuppression", {BOXES, SCORES}, NULL, {"i64:0,3"}},
    {"NonMaxSuppression", {BOXES, SCORES, "i64:=-1"}, NULL, {"i64:0,3"}},
    {"NonMaxSuppression", {BOXES, "f32:1,1,6=nan,0.75,0.6,nan,0.5,0.3", "i64:=9223372036854775807", "f32:=0.5"}, NULL,
        {"i64:3,3=0,0,1,0,0,4,0,0,5"}},
    {"NonMaxSuppression", {"f32:1,0,4", "f32:1,2,0", "i64:=3"}, NULL, {"i64:0,3"}},
};

#define BAD(say) 1, YK_INVAL, false, say

static const struct one_refusal refusals[] = {
    {"Compress", {"f32:3", "i64:3"}, NULL, BAD("int64")},
    {"Compress", {"f32:3", "bool:1,3"}, NULL, BAD("2 axes")},
    {"Compress", {"f32:3", "bool:4"}, NULL, BAD("4 elements for 3")},
    {"Compress", {"f32:3,2", "bool:3"}, "axis=i:1", BAD("3 elements for 2")},
    {"Compress", {"f32:3", "bool:3"}, "axis=i:1", BAD("axis 1 is out of range")},
    {"Unique", {"f32:3"}, "axis=i:1", BAD("axis 1 is out of range")},
    {"Unique", {"f32:3"}, "sorted=s:yes", BAD("attribute sorted is not an integer")},
    {"TopK", {"f32:3", "i64:1=4"}, NULL, 2, YK_INVAL, false, "K is 4 for axis 0 of 3"},
    {"TopK", {"f32:3", "i64:1=-1"}, NULL, 2, YK_INVAL, false, "K is -1"},
    {"TopK", {"f32:3", "i64:2=1,1"}, NULL, 2, YK_INVAL, false, "not one integer"},
    {"TopK", {"f32:3", "i64:1"}, NULL, 2, YK_DEPENDS, false, "K (input 1) depends on data"},
    {"TopK", {"f32:3", "i32:1=1"}, NULL, 2, YK_INVAL, false, "int32"},
    {"TopK", {"f32:", "i64:1=1"}, NULL, 2, YK_INVAL, false, "axis -1"},
    {"NonMaxSuppression", {"f32:1,6,5", "f32:1,1,6"}, NULL, BAD("5 numbers")},
    {"NonMaxSuppression", {"f32:1,6,4", "f32:1,1,5"}, NULL, BAD("1 x 6 boxes")},
    {"NonMaxSuppression", {"f32:2,6,4", "f32:1,1,6"}, NULL, BAD("2 x 6 boxes")},
    {"NonMaxSuppression", {"f32:6,4", "f32:1,1,6"}, NULL, BAD("2 axes")},
    {"NonMaxSuppression", {"f32:1,6,4", "f32:1,1,6", "i32:"}, NULL, BAD("int32")},
    {"NonMaxSuppression", {"f32:1,6,4", "f32:1,1,6", "i64:2"}, NULL, BAD("input 2 is not a scalar")},
    {"NonMaxSuppression", {"f32:1,6,4", "f32:1,1,6"}, "center_point_box=i:2", BAD("center_point_box")},
    {"NonMaxSuppression", {BOXES, SCORES, "i64:=3", "f32:=1.5"}, NULL, 1, YK_INVAL, true,
        "iou_threshold is 1.5, allowed are 0 to 1"},
    {"NonMaxSuppression", {BOXES, SCORES, "i64:=3", "f32:=nan"}, NULL, 1, YK_INVAL, true, "iou_threshold"},
    {"NonZero", {"f32:36028797018963968,2"}, NULL, 1, YK_LIMIT, false, "too large"},
};

static void test_values(void **state)
{
    (void)state;
    one_values(values, YK_COUNT(values), 0);
}

static void test_refusals(void **state)
{
    (void)state;
    one_refusals(refusals, YK_COUNT(refusals));
}

/* TopK and Unique against a sort by hand, over many rows with equal elements. */
static void test_brute(void **state)
{
    (void)state;
    struct pool *pool;
    struct yk_rng r;
    assert_int_equal(pool_open(1, &pool, NULL), YK_OK);
    yk_rng_seed(&r, 5);
    for (int round = 0; round < 300; round++) {
        char x[1024], k_text[32];
        int64_t v[60];
        int n = 1 + (int)yk_rng_below(&r, 60), k = (int)yk_rng_below(&r, (uint64_t)n + 1), at;
        at = snprintf(x, sizeof x, "i32:%d=", n);
        for (int i = 0; i < n; i++) {
            v[i] = (int64_t)yk_rng_below(&r, 12) - 6;
            at += snprintf(x + at, sizeof x - (size_t)at, "%s%d", i ? "," : "", (int)v[i]);
        }
        snprintf(k_text, sizeof k_text, "i64:1=%d", k);
        struct one_op *top = one_run("TopK", (const char *[]){x, k_text, NULL}, NULL, 2, 0, pool);
        struct one_op *unique = one_run("Unique", (const char *[]){x, NULL}, NULL, 4, 0, pool);
        assert_int_equal(top->rule | top->run | unique->rule | unique->run, 0);
        bool used[60] = {false};
        for (int i = 0; i < k; i++) {
            int best = -1;
            for (int j = 0; j < n; j++)
                if (!used[j] && (best < 0 || v[j] > v[best]))
                    best = j;
            used[best] = true;
            assert_int_equal(ref_i(&top->call->out[1], i), best);
            assert_int_equal(ref_i(&top->call->out[0], i), v[best]);
        }
        int64_t groups = unique->call->out[0].shape.dims[0], total = 0;
        for (int64_t i = 0; i < groups; i++) {
            if (i)
                assert_true(ref_i(&unique->call->out[0], i - 1) < ref_i(&unique->call->out[0], i));
            total += ref_i(&unique->call->out[3], i);
            int64_t first = ref_i(&unique->call->out[1], i);
            for (int64_t j = 0; j < first; j++)
                assert_true(v[j] != v[first]);
        }
        assert_int_equal(total, n);
        for (int i = 0; i < n; i++)
            assert_int_equal(ref_i(&unique->call->out[0], ref_i(&unique->call->out[2], i)), v[i]);
        one_close(top);
        one_close(unique);
    }
    pool_close(pool);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_values), cmocka_unit_test(test_refusals), cmocka_unit_test(test_brute)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
