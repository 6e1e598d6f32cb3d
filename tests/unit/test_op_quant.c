/* Quantised ops: values (from PyTorch's float convolutions and products of the shifted integers), and refusals. */
#include "tests/unit/one_op.h"

static const struct one_value values[] = {
    /* half to even, saturation, zero points */
    {"QuantizeLinear", {"f32:6=0.5,1.5,2.5,-0.5,300,-300", "f32:=1"}, NULL, {"u8:6=0,2,2,0,255,0"}},
    {"QuantizeLinear", {"f32:6=0.5,1.5,2.5,-0.5,300,-300", "f32:=1", "i8:=1"}, NULL, {"i8:6=1,3,3,1,127,-128"}},
    {"QuantizeLinear", {"f32:4=nan,inf,-inf,0", "f32:1=0.5", "u8:1=7"}, NULL, {"u8:4=7,255,0,7"}},
    {"QuantizeLinear", {"i32:3=3,5,-7", "f32:=2", "i8:=0"}, NULL, {"i8:3=2,2,-4"}},
    {"QuantizeLinear", {"f32:2,3=1,2,3,1,2,3", "f32:3=1,2,4", "u8:3=0,10,20"}, NULL, {"u8:2,3=1,11,21,1,11,21"}},
    {"QuantizeLinear", {"f32:2,3=1,2,3,1,2,3", "f32:2=1,0.5"}, "axis=i:-2", {"u8:2,3=1,2,3,2,4,6"}},
    {"QuantizeLinear", {"f32:0,3", "f32:3=1,2,4"}, NULL, {"u8:0,3"}},
    {"DequantizeLinear", {"u8:3=0,128,255", "f32:=0.5", "u8:=128"}, NULL, {"f32:3=-64,0,63.5"}},
    {"DequantizeLinear", {"i8:2,2=-128,127,1,2", "f32:2=1,2", "i8:2=1,0"}, NULL, {"f32:2,2=-129,254,0,4"}},
    {"DequantizeLinear", {"i32:2=-2147483648,5", "f32:=0.25"}, NULL, {"f32:2=-536870912,1.25"}},
    {"DynamicQuantizeLinear", {"f32:6=0,2,-3,-2.5,1.34,0.5"}, NULL,
        {"u8:6=153,255,0,26,221,179", "f32:=0.0196078438", "u8:=153"}},
    {"DynamicQuantizeLinear", {"f32:2=0,0"}, NULL, {"u8:2=0,0", "f32:=1", "u8:=0"}},
    {"DynamicQuantizeLinear", {"f32:0"}, NULL, {"u8:0", "f32:=1", "u8:=0"}},
    {"MatMulInteger", {"u8:2,3=1,250,3,7,8,9", "i8:3,2=-128,5,127,0,1,2", "u8:2=1,128", "i8:2=0,3"}, NULL,
        {"i32:2,2=31625,-749,129,237"}},
    {"MatMulInteger", {"u8:2,3=1,250,3,7,8,9", "i8:3,2=-128,5,127,0,1,2", "u8:2,1=1,128", "i8:1,2=0,3"}, NULL,
        {"i32:2,2=31625,-749,129,237"}},
    {"MatMulInteger", {"u8:3=1,2,3", "u8:3=4,5,6"}, NULL, {"i32:=32"}},
    {"MatMulInteger", {"u8:2,0", "u8:0,1"}, NULL, {"i32:2,1=0,0"}},
    {"MatMulInteger", {"u8:2,1,2=1,2,3,4", "u8:2,1=1,1", "u8:2,1,1=1,2"}, NULL, {"i32:2,1,1=1,3"}},
    {"QLinearMatMul",
        {"u8:2,3=1,250,3,7,8,9", "f32:2=0.1,0.2", "u8:2=1,128", "i8:3,2=-128,5,127,0,1,2", "f32:2=0.5,0.25", "i8:2=0,3",
            "f32:=2", "u8:=128"},
        NULL, {"u8:2,2=255,119,134,134"}},
    {"ConvInteger", {"u8:1,1,3,3=1,2,3,4,5,6,7,8,9", "i8:2,1,2,2=1,-1,2,0,1,3,1,1", "u8:=1", "i8:2=0,1"},
        "pads=ints:1,0,0,1", {"i32:1,2,3,3=0,2,4,5,7,12,11,13,21,0,0,0,2,4,0,8,10,0"}},
    {"QLinearConv",
        {"u8:1,1,3,3=1,2,3,4,5,6,7,8,9", "f32:=0.5", "u8:=1", "i8:2,1,2,2=1,-1,2,0,1,3,1,1", "f32:2=0.25,1", "i8:2=0,1",
            "f32:=0.7", "i8:=3", "i32:2=10,-3"},
        "pads=ints:1,0,0,1", {"i8:1,2,3,3=5,5,6,6,6,7,7,7,9,1,1,1,2,4,1,7,8,1"}},
};

#define BAD(say) 1, YK_INVAL, false, say

static const struct one_refusal refusals[] = {
    {"QuantizeLinear", {"f64:3", "f32:"}, NULL, BAD("input 0 has type float64")},
    {"QuantizeLinear", {"f32:3", "f64:"}, NULL, BAD("input 1 has type float64")},
    {"QuantizeLinear", {"f32:3", "f32:", "i32:"}, NULL, BAD("input 2 has type int32")},
    {"QuantizeLinear", {"f32:2,3", "f32:2"}, NULL, BAD("2 scales (input 1) for axis 1 of 3")},
    {"QuantizeLinear", {"f32:2,3", "f32:3,1"}, NULL, BAD("2 axes")},
    {"QuantizeLinear", {"f32:2,3", "f32:3", "u8:2"}, NULL, BAD("differ in shape")},
    {"QuantizeLinear", {"f32:2,3", "f32:3", "u8:"}, NULL, BAD("differ in shape")},
    {"QuantizeLinear", {"f32:2,3", "f32:3"}, "axis=i:2", BAD("axis 2 is out of range")},
    {"DequantizeLinear", {"u8:3", "f32:", "i8:"}, NULL, BAD("differ in type")},
    {"DequantizeLinear", {"f32:3", "f32:"}, NULL, BAD("float32")},
    {"DynamicQuantizeLinear", {"i32:3"}, NULL, 3, YK_INVAL, false, "int32"},
    {"MatMulInteger", {"u8:2,3", "u8:2,3"}, NULL, BAD("inner sizes are 3 and 2")},
    {"MatMulInteger", {"f32:2,3", "u8:3,2"}, NULL, BAD("float32")},
    {"MatMulInteger", {"u8:2,3", "u8:3,2", "i8:"}, NULL, BAD("differ in type")},
    {"MatMulInteger", {"u8:2,3", "u8:3,4", "u8:3"}, NULL, BAD("input 2 is neither a scalar nor")},
    {"MatMulInteger", {"u8:2,3", "u8:3,4", "-", "u8:3"}, NULL, BAD("input 3 is neither a scalar nor")},
    {"MatMulInteger", {"u8:3", "u8:3,4", "u8:3"}, NULL, BAD("input 2")},
    {"MatMulInteger", {"u8:2,3", "u8:3,4", "u8:1,2"}, NULL, BAD("input 2")},
    {"MatMulInteger", {"u8:3,2,3", "u8:2,3,4"}, NULL, BAD("cannot broadcast")},
    {"QLinearMatMul", {"u8:2,3", "f32:2", "u8:2", "u8:3,2", "f32:", "u8:", "f32:3", "u8:3"}, NULL, BAD("input 6")},
    {"QLinearMatMul", {"u8:2,2,3", "f32:", "u8:", "u8:3", "f32:", "u8:", "f32:2", "u8:2"}, NULL, BAD("input 6")},
    {"QLinearMatMul", {"u8:2,3", "f32:2", "u8:", "u8:3,2", "f32:", "u8:", "f32:", "u8:"}, NULL, BAD("differ in shape")},
    {"QLinearMatMul", {"u8:2,3", "f32:", "u8:", "u8:3,2", "f32:", "u8:", "f32:", "i32:"}, NULL, BAD("int32")},
    {"ConvInteger", {"u8:1,2,3,3", "u8:1,1,2,2"}, NULL, BAD("channels")},
    {"ConvInteger", {"u8:1,1,3,3", "u8:2,1,2,2", "u8:2"}, NULL, BAD("input 2 is not a scalar")},
    {"ConvInteger", {"u8:1,1,3,3", "u8:2,1,2,2", "u8:", "u8:3"}, NULL, BAD("each of 2 channels")},
    {"ConvInteger", {"u8:1,1,3,3", "u8:2,1,4,2"}, NULL, BAD("")},
    {"QLinearConv", {"u8:1,1,3,3", "f32:", "u8:", "u8:2,1,2,2", "f32:3", "u8:", "f32:", "u8:"}, NULL, BAD("input 4")},
    {"QLinearConv", {"u8:1,1,3,3", "f32:2", "u8:2", "u8:2,1,2,2", "f32:", "u8:", "f32:", "u8:"}, NULL, BAD("input 1")},
    {"QLinearConv", {"u8:1,1,3,3", "f32:", "u8:", "u8:2,1,2,2", "f32:", "u8:", "f32:", "u8:", "i32:3"}, NULL,
        BAD("bias (input 8)")},
    {"QLinearConv", {"u8:1,1,3,3", "f32:", "u8:", "u8:2,1,2,2", "f32:", "u8:", "f32:", "u8:", "f32:2"}, NULL,
        BAD("input 8")},
};

static void test_values(void **state)
{
    (void)state;
    one_values(values, YK_COUNT(values), 1e-6);
}

static void test_refusals(void **state)
{
    (void)state;
    one_refusals(refusals, YK_COUNT(refusals));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_values), cmocka_unit_test(test_refusals)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
