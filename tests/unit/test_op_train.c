/* Features, losses, optimisers, gradients and random numbers: values from PyTorch, the generator's published vectors,
 * the distributions, and refusals. */
#include "kernels/random.h"
#include "tests/unit/one_op.h"

#define ADAM "ai.onnx.preview.training.Adam"
#define ADAGRAD "ai.onnx.preview.training.Adagrad"
#define MOMENTUM "ai.onnx.preview.training.Momentum"
#define GRAD_INPUT "ai.yoke.ConvGradInput"
#define GRAD_WEIGHT "ai.yoke.ConvGradWeight"
#define POOL_GRAD "ai.yoke.MaxPoolGrad"
#define AVERAGE_GRAD "ai.yoke.AveragePoolGrad"
#define BN_TRAIN "ai.yoke.BatchNormTrain"
#define BN_GRAD "ai.yoke.BatchNormGrad"
#define RELU_GRAD "ai.yoke.ReluGrad"
#define S3 "f32:1,3,2=1,2,0.5,-1,3,0"

static const struct one_value values[] = {
    {"LRN", {"f32:1,3,2,2=-4,-3,-2,-1,0,1,2,3,4,5,6,7"}, "size=i:3 alpha=f:0.5",
        {"f32:1,3,2,2=-1.50958097,-1.43762207,-1.05936933,-0.479207337,0,0.236605883,0.407770604,0.502400041,1."
         "50958097,"
         "1.42469192,1.30225587,1.18597758"}},
    {"LRN", {"f32:1,3=1,2,3"}, "size=i:2 alpha=f:2 beta=f:1 bias=f:0", {"f32:1,3=0.2,0.153846154,0.333333333"}},
    {"LpNormalization", {"f32:2,2=3,4,0,0"}, NULL, {"f32:2,2=0.6,0.8,0,0"}},
    {"LpNormalization", {"f32:2,2=3,0,-1,0"}, "p=i:1 axis=i:0", {"f32:2,2=0.75,0,-0.25,0"}},
    {"GlobalLpPool", {"f32:1,2,2=3,-4,1,2"}, NULL, {"f32:1,2,1=5,2.23606798"}},
    {"GlobalLpPool", {"f64:1,2,2=3,-4,1,2"}, "p=i:1", {"f64:1,2,1=7,3"}},
    {"GlobalLpPool", {"f32:1,1,2=1,2"}, "p=i:3", {"f32:1,1,1=2.08008382"}},
    {"MeanVarianceNormalization", {"f32:2,3=1,2,3,4,6,8"}, "axes=ints:1",
        {"f32:2,3=-1.22474487,0,1.22474487,-1.22474487,0,1.22474487"}},
    {"Hardmax", {"f32:2,3=1,3,3,nan,5,nan"}, NULL, {"f32:2,3=0,1,0,1,0,0"}},
    {"Hardmax", {"f32:2,2=1,3,3,1"}, "axis=i:0", {"f32:2,2=0,1,1,0"}},
    {"Hardmax", {"f32:2,0"}, NULL, {"f32:2,0"}},
    {"Det", {"f32:2,2,2=2,1,4,3,1,2,3,4"}, NULL, {"f32:2=2,-2"}},
    {"Det", {"f32:3,3=0,2,1,3,0,-1,1,4,2"}, NULL, {"f32:=-2"}},
    {"Det", {"f64:2,2=1,2,2,4"}, NULL, {"f64:=0"}},
    {"Det", {"f64:3,0,0"}, NULL, {"f64:3=1,1,1"}},
    {"TfIdfVectorizer", {"i32:6=1,1,3,3,3,7"},
        "max_gram_length=i:2 min_gram_length=i:1 max_skip_count=i:1 mode=s:TFIDF ngram_counts=ints:0,2 "
        "ngram_indexes=ints:0,1,2 pool_int64s=ints:1,3,3,7 weights=floats:2,1,0.5",
        {"f32:3=4,3,1"}}, /* 1 twice, 3 three times, (3, 7) next to each other and with one between */
    {"TfIdfVectorizer", {"i64:2,2=5,6,6,5"},
        "max_gram_length=i:2 min_gram_length=i:2 max_skip_count=i:9223372036854775807 mode=s:IDF ngram_counts=ints:0,0 "
        "ngram_indexes=ints:1 pool_int64s=ints:5,6",
        {"f32:2,2=0,1,0,0"}},
    {"NegativeLogLikelihoodLoss", {S3, "i64:1,2=2,1", "f32:3=0.5,2,1"}, NULL, {"f32:=-0.333333333"}},
    {"NegativeLogLikelihoodLoss", {S3, "i64:1,2=2,1", "f32:3=0.5,2,1"}, "reduction=s:sum", {"f32:=-1"}},
    {"NegativeLogLikelihoodLoss", {S3, "i32:1,2=2,1", "f32:3=0.5,2,1"}, "reduction=s:none", {"f32:1,2=-3,2"}},
    {"SoftmaxCrossEntropyLoss", {S3, "i64:1,2=2,1", "f32:3=0.5,2,1"}, NULL,
        {"f32:=2.17880869", "f32:1,3,2=-2.19673419,-0.169846043,-2.69673419,-3.16984605,-0.196734145,-2.16984605"}},
    {"SoftmaxCrossEntropyLoss", {S3, "i64:1,2=2,1", "f32:3=0.5,2,1"}, "ignore_index=i:1", {"f32:=0.196734145"}},
    {"SoftmaxCrossEntropyLoss", {S3, "i64:1,2=2,-100"}, "ignore_index=i:-100 reduction=s:none",
        {"f32:1,2=0.196734145,0"}},
    {"SoftmaxCrossEntropyLoss", {S3, "i64:1,2=5,5"}, "ignore_index=i:5", {"f32:=nan"}},
    {"SoftmaxCrossEntropyLoss", {"f32:1,2=1e30,-1e30", "i64:1=0"}, NULL, {"f32:=0", "f32:1,2=0,-2e30"}},
    {ADAM,
        {"f32:=0.1", "i64:=2", "f32:2=0.899999976,-2.0999999", "f32:2=1,6", "f32:2=0.375,1.25",
            "f32:2=0.140625,1.5625"},
        "epsilon=f:0 alpha=f:0.5 beta=f:0.75 norm_coefficient=f:0.25",
        {"f32:2=0.798231184,-2.20073628", "f32:2=0.800000012,3.3624999", "f32:2=0.480625004,8.66578102"}},
    {ADAGRAD, {"f32:=0.1", "i64:=0", "f32:2=1,-2", "f32:2=0.5,3", "f32:2=0.25,0.25"}, "norm_coefficient=f:0.01",
        {"f32:2=0.928592801,-2.09862137", "f32:2=0.510100007,9.1303997"}},
    {MOMENTUM, {"f32:=0.1", "i64:=0", "f32:2=1,-2", "f32:2=0.5,3", "f32:2=0,0"},
        "mode=s:standard norm_coefficient=f:0.01 alpha=f:0.9 beta=f:7",
        {"f32:2=0.949000001,-2.2980001", "f32:2=0.51,2.98"}},
    {MOMENTUM, {"f32:=0.1", "i64:=1", "f32:2=0.949,-2.298", "f32:2=0.5,3", "f32:2=0.51,2.98"},
        "mode=s:standard norm_coefficient=f:0.01 alpha=f:0.9 beta=f:1",
        {"f32:2=0.852150977,-2.8639021", "f32:2=0.968490005,5.65901995"}},
    {MOMENTUM, {"f32:=0.1", "i64:=0", "f32:2=1,-2", "f32:2=0.5,3", "f32:2=0,0"},
        "mode=s:nesterov norm_coefficient=f:0.01 alpha=f:0.9 beta=f:1",
        {"f32:2=0.903100014,-2.56620002", "f32:2=0.51,2.98"}},
    {"BatchNormalization", {"f32:3,2=1,2,3,-1,5,0", "f32:2=2,0.5", "f32:2=0,1", "f32:2=0,0", "f32:2=1,1"},
        "training_mode=i:1 momentum=f:0.75",
        {"f32:3,2=-2.4494853,1.6681509,0,0.465479195,2.4494848,0.86636978", "f32:2=0.75,0.0833333333",
            "f32:2=1.41666667,1.13888889"}},
    {"Dropout", {"f32:3=1,2,3", "f32:=0.9"}, NULL, {"f32:3=1,2,3", "bool:3=1,1,1"}},
    {"Dropout", {"f32:3=1,2,3", "f32:=0", "bool:=1"}, NULL, {"f32:3=1,2,3", "bool:3=1,1,1"}},
    /* ties: the first of a window; windows that overlap add up */
    {POOL_GRAD, {"f32:1,1,3=1,10,100", "f32:1,1,4=2,2,2,5"}, "kernel_shape=ints:2", {"f32:1,1,4=1,10,0,100"}},
    {POOL_GRAD, {"f32:1,1,3=1,10,100", "f32:1,1,3=0,7,0"}, "kernel_shape=ints:3 pads=ints:1,1", {"f32:1,1,3=0,111,0"}},
    {POOL_GRAD, {"f32:1,1,1=3", "f32:1,1,2=-inf,-inf"}, "kernel_shape=ints:2", {"f32:1,1,2=3,0"}},
    {AVERAGE_GRAD, {"f32:1,1,2=3,12", "i64:3=1,1,2"}, "kernel_shape=ints:3 pads=ints:1,2 strides=ints:2",
        {"f32:1,1,2=1.5,13.5"}},
    {RELU_GRAD, {"f32:5=1,2,3,4,5", "f32:5=-1,0,-0,2,nan"}, NULL, {"f32:5=0,0,0,4,5"}},
    {GRAD_INPUT, {"f32:1,2,1", "f32:2,3,1", "i64:3=1,3,1"}, NULL, {"f32:1,3,1=0,0,0"}},
    {GRAD_WEIGHT, {"f32:0,3,4", "f32:0,2,4"}, "kernel_shape=ints:1", {"f32:2,3,1=0,0,0,0,0,0"}},
};

#define BAD(say) 1, YK_INVAL, false, say

static const struct one_refusal refusals[] = {
    {"LRN", {"f32:1,3"}, NULL, BAD("attribute size is 0")},
    {"LRN", {"f32:3"}, "size=i:3", BAD("1 axes")},
    {"LRN", {"f32:1,3"}, "size=i:3 alpha=i:1", BAD("attribute alpha is not a float")},
    {"LRN", {"i32:1,3"}, "size=i:3", BAD("int32")},
    {"MeanVarianceNormalization", {"f32:2,3"}, NULL, BAD("axis 2 is out of range")},
    {"MeanVarianceNormalization", {"f32:2,3"}, "axes=ints:1,-1", BAD("axis 1 comes twice")},
    {"MeanVarianceNormalization", {"f32:2,3"}, "axes=ints:0,0,0,0,0,0,0,0,0", BAD("at most 8")},
    {"LpNormalization", {"f32:2"}, "p=i:3", BAD("attribute p is 3")},
    {"LpNormalization", {"f32:2"}, "axis=i:1", BAD("axis 1 is out of range")},
    {"GlobalLpPool", {"f32:2,3,4"}, "p=i:0", BAD("attribute p is 0")},
    {"Hardmax", {"f32:"}, NULL, BAD("axis -1 is out of range")},
    {"Det", {"f32:2,3"}, NULL, BAD("2 x 3 are not square")},
    {"Det", {"f32:3"}, NULL, BAD("1 axes")},
    {"TfIdfVectorizer", {"i32:6"}, "mode=s:TF pool_strings=s:a", 1, YK_UNSUPPORTED, false, "strings"},
    {"TfIdfVectorizer", {"i32:6"}, "mode=s:TF", BAD("ngram_counts")},
    {"TfIdfVectorizer", {"i32:6"},
        "max_gram_length=i:1 min_gram_length=i:1 mode=s:XX ngram_counts=ints:0 ngram_indexes=ints:0 pool_int64s=ints:1",
        BAD("mode is none of TF, IDF, TFIDF")},
    {"TfIdfVectorizer", {"i32:6"},
        "max_gram_length=i:2 min_gram_length=i:1 mode=s:TF ngram_counts=ints:0,9 ngram_indexes=ints:0 "
        "pool_int64s=ints:1",
        BAD("numbers 0 to 9 of a pool of 1")},
    {"TfIdfVectorizer", {"i32:6"},
        "max_gram_length=i:1 min_gram_length=i:1 mode=s:TF ngram_counts=ints:0 ngram_indexes=ints:-1 "
        "pool_int64s=ints:1",
        BAD("ngram_indexes[0] is -1")},
    {"TfIdfVectorizer", {"i32:6"},
        "max_gram_length=i:1 min_gram_length=i:1 mode=s:TF ngram_counts=ints:0 ngram_indexes=ints:0,1 "
        "pool_int64s=ints:1",
        BAD("2 ngram_indexes for 1 n-grams")},
    {"NegativeLogLikelihoodLoss", {"f32:2,3", "i64:3"}, NULL, BAD("class ids (input 1)")},
    {"NegativeLogLikelihoodLoss", {"f32:2,3", "f32:2"}, NULL, BAD("float32")},
    {"NegativeLogLikelihoodLoss", {"f32:2,3", "i64:2", "f32:2"}, NULL, BAD("each of 3 classes")},
    {"NegativeLogLikelihoodLoss", {"f32:2,3", "i64:2", "f64:3"}, NULL, BAD("differ in type")},
    {"NegativeLogLikelihoodLoss", {"f32:2,0", "i64:2"}, NULL, BAD("no classes")},
    {"NegativeLogLikelihoodLoss", {"f32:2,3", "i64:2"}, "reduction=s:max", BAD("none of mean, sum, none")},
    {"NegativeLogLikelihoodLoss", {"f32:2,3", "i64:2=0,3"}, NULL, 1, YK_INVAL, true,
        "class id 3 (element 1) is outside 3 classes"},
    {"SoftmaxCrossEntropyLoss", {"f32:2,3", "i64:2=-1,0"}, NULL, 1, YK_INVAL, true, "class id -1 (element 0)"},
    {ADAM, {"f32:", "i64:", "f32:2", "f32:2", "f32:2"}, NULL, BAD("wants 6")},
    {ADAGRAD, {"f32:", "i64:", "f32:2", "f32:2", "f32:3"}, NULL,
        BAD("input 4 does not have type and shape of input 2")},
    {ADAGRAD, {"f32:", "i64:", "f32:2", "f32:2", "f32:2", "f32:2"}, NULL, BAD("6 inputs")},
    {ADAGRAD, {"f32:2", "i64:", "f32:2", "f32:2", "f32:2"}, NULL, BAD("input 0 is not a scalar")},
    {MOMENTUM, {"f32:", "i64:", "f32:2", "f32:2", "f32:2"}, "alpha=f:1 beta=f:1 norm_coefficient=f:0", BAD("mode")},
    {MOMENTUM, {"f32:", "i64:", "f32:2", "f32:2", "f32:2"}, "alpha=f:1 mode=s:nesterov",
        BAD("attribute beta is missing")},
    {"BatchNormalization", {"f32:2,3", "f32:3", "f32:3", "f32:3", "f32:3"}, NULL, 3, YK_INVAL, false,
        "3 outputs without training_mode"},
    {"Dropout", {"f32:3", "f32:2"}, NULL, BAD("input 1 is not a scalar")},
    {"Dropout", {"f32:3", "f32:", "i64:"}, NULL, BAD("int64")},
    {"Dropout", {"f32:3", "f32:=1", "bool:=1"}, NULL, 1, YK_INVAL, true, "ratio is 1, allowed are 0 to less than 1"},
    {GRAD_INPUT, {"f32:1,2,3", "f32:2,3,1", "i64:3=1,3,4"}, NULL,
        BAD("the gradient (input 0) is float32[1,2,3], the output it is of float32[1,2,4]")},
    {GRAD_INPUT, {"f32:1,2,3", "f32:2,3,1", "i64:3=1,-3,3"}, NULL, BAD("size 1 of the shape (input 2) is -3")},
    {GRAD_INPUT, {"f32:1,2,3", "f32:2,3,1", "i64:9=1,1,1,1,1,1,1,1,1"}, NULL, 1, YK_LIMIT, false, "9 axes"},
    {GRAD_INPUT, {"f32:1,2,3", "f32:2,3,1", "i64:3=4611686018427387904,3,3"}, NULL, 1, YK_LIMIT, false, "too large"},
    {GRAD_INPUT, {"f32:1,2,3", "f64:2,3,1", "i64:3=1,3,3"}, NULL, BAD("differ in type")},
    {GRAD_INPUT, {"f32:1,2,3", "f32:2,3,1", "f32:3=1,3,3"}, NULL, BAD("not a list of integers")},
    {GRAD_INPUT, {"f32:1,2,3", "f32:2,3,1", "i64:3=1,3,3"}, "group=i:2", BAD("the weight wants 3 x 2 groups")},
    {GRAD_WEIGHT, {"f32:1,3,4", "f32:1,2,4"}, NULL, BAD("attribute kernel_shape is not a list of 1 integers")},
    {GRAD_WEIGHT, {"f32:1,3,4", "f32:1,2,4"}, "kernel_shape=ints:0", BAD("kernel_shape has 0")},
    {GRAD_WEIGHT, {"f32:1,3,4", "f32:1,2,4"}, "kernel_shape=ints:1 group=i:2", BAD("3 channels in 2 groups")},
    {GRAD_WEIGHT, {"f32:1,3,4", "f32:2,2,4"}, "kernel_shape=ints:1", BAD("float32[2,2,4]")},
    {GRAD_WEIGHT, {"f32:1,3,4", "f32:1,2,4,1"}, "kernel_shape=ints:1", BAD("4 axes")},
    {GRAD_WEIGHT, {"f32:3,4", "f32:2,4"}, "kernel_shape=ints:1", BAD("2 axes")},
    {POOL_GRAD, {"f32:1,3,4", "f32:1,3,4"}, "kernel_shape=ints:2", BAD("float32[1,3,3]")},
    {AVERAGE_GRAD, {"f32:1,3,4", "i64:3=1,3,4"}, "kernel_shape=ints:2", BAD("float32[1,3,3]")},
    {BN_TRAIN, {"f32:1,3", "f32:3", "f32:3", "f32:3", "f32:3"}, NULL, BAD("1 values per channel: batch-norm")},
    {BN_TRAIN, {"f32:1,3,1,1", "f32:3", "f32:3", "f32:3", "f32:3"}, NULL, BAD("wants 2 or more")},
    {BN_TRAIN, {"f32:2,3", "f32:3", "f32:2", "f32:3", "f32:3"}, NULL, BAD("input 2 does not have one element")},
    {BN_TRAIN, {"f32:2,3", "f32:3", "f32:3", "f32:3", "f32:3"}, "momentum=i:1", BAD("momentum is not a float")},
    {BN_GRAD, {"f32:2,3", "f32:3,3", "f32:3", "f32:3", "f32:3"}, NULL, BAD("does not have the shape of the input")},
    {BN_GRAD, {"f32:1,3", "f32:1,3", "f32:3", "f32:3", "f32:3"}, NULL, BAD("1 values per channel")},
    {RELU_GRAD, {"f32:2,3", "f32:3"}, NULL, BAD("does not have the shape of the output")},
    {RELU_GRAD, {"i32:3", "i32:3"}, NULL, BAD("int32")},
    {"RandomUniform", {NULL}, NULL, BAD("attribute shape")},
    {"RandomUniform", {NULL}, "shape=ints:2,-1", BAD("size 1 of attribute shape is -1")},
    {"RandomUniform", {NULL}, "shape=ints:2 dtype=i:7", BAD("dtype is 7 (int64)")},
    {"RandomUniform", {NULL}, "shape=ints:2 dtype=i:99", BAD("dtype is 99")},
    {"RandomUniform", {NULL}, "shape=ints:1099511627776,1099511627776", 1, YK_LIMIT, false, "too large"},
    {"RandomNormal", {NULL}, "shape=ints:1,1,1,1,1,1,1,1,1", 1, YK_LIMIT, false, "9 axes"},
    {"RandomNormalLike", {"i64:3"}, NULL, BAD("int64")},
    {"Bernoulli", {"i64:3"}, NULL, BAD("int64")},
    {"Multinomial", {"f32:3"}, NULL, BAD("1 axes")},
    {"Multinomial", {"f32:3,0"}, NULL, BAD("no classes")},
    {"Multinomial", {"f32:3,2"}, "sample_size=i:0", BAD("sample_size is 0")},
    {"Multinomial", {"f32:1,2=0,nan"}, NULL, 1, YK_INVAL, true, "class 1 in row 0 is nan"},
    {"Multinomial", {"f32:1,2=-inf,-inf"}, NULL, 1, YK_INVAL, true, "no class of row 0"},
};

static void test_values(void **state)
{
    (void)state;
    one_values(values, YK_COUNT(values), 2e-6);
}

static void test_refusals(void **state)
{
    (void)state;
    one_refusals(refusals, YK_COUNT(refusals));
}

/* The vectors that the authors of Philox4x32-10 publish. */
static void test_philox(void **state)
{
    (void)state;
    static const struct {
        struct random r;
        uint64_t i;
        uint32_t want[4];
    } vectors[] = {
        {{0, 0}, 0, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {{UINT64_MAX, UINT64_MAX}, UINT64_MAX, {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {{0x299f31d0a4093822, 0x0370734413198a2e}, 0x85a308d3243f6a88,
            {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
    };
    for (size_t i = 0; i < YK_COUNT(vectors); i++) {
        uint32_t got[4];
        random_bits(&vectors[i].r, vectors[i].i, got);
        assert_memory_equal(got, vectors[i].want, sizeof got);
    }
}

static double mean_of(const struct one_op *o, double *variance)
{
    const struct tensor *y = &o->call->out[0];
    int64_t n = tensor_count(y);
    double sum = 0, squares = 0;
    for (int64_t i = 0; i < n; i++)
        sum += ref_d(y, i);
    for (int64_t i = 0; i < n; i++)
        squares += (ref_d(y, i) - sum / (double)n) * (ref_d(y, i) - sum / (double)n);
    *variance = squares / (double)n;
    return sum / (double)n;
}

/* Mean and variance within five standard errors; a run is a function of its seed, whatever the threads. */
static void test_random(void **state)
{
    (void)state;
    static const struct {
        const char *op, *in, *attrs;
        double mean, variance;
    } cases[] = {
        {"RandomUniform", NULL, "shape=ints:100,100 low=f:-1 high=f:3", 1, 16.0 / 12},
        {"RandomNormal", NULL, "shape=ints:10000 mean=f:2 scale=f:3 seed=f:1", 2, 9},
        {"RandomNormal", NULL, "shape=ints:10000 dtype=i:11", 0, 1},
        {"RandomUniformLike", "f16:10000", NULL, 0.5, 1.0 / 12},
        {"RandomNormalLike", "i32:10000", "dtype=i:1", 0, 1},
    };
    struct pool *pool[2];
    assert_int_equal(pool_open(1, &pool[0], NULL), YK_OK);
    assert_int_equal(pool_open(3, &pool[1], NULL), YK_OK);
    for (size_t i = 0; i < YK_COUNT(cases); i++) {
        struct one_op *o[3];
        double variance;
        for (int k = 0; k < 3; k++) {
            o[k] = one_run(
                cases[i].op, (const char *[]){cases[i].in, NULL}, cases[i].attrs, 1, k == 2 ? 8 : 7, pool[k > 0]);
            assert_int_equal(o[k]->rule | o[k]->run, YK_OK);
        }
        size_t bytes = (size_t)tensor_bytes(&o[0]->call->out[0]);
        assert_memory_equal(o[0]->call->out[0].data, o[1]->call->out[0].data, bytes);
        assert_memory_not_equal(o[0]->call->out[0].data, o[2]->call->out[0].data, bytes);
        double mean = mean_of(o[0], &variance);
        assert_true(fabs(mean - cases[i].mean) < 5 * sqrt(cases[i].variance / 10000));
        assert_true(fabs(variance - cases[i].variance) < 0.1 * cases[i].variance);
        for (int k = 0; k < 3; k++)
            one_close(o[k]);
    }
    pool_close(pool[0]);
    pool_close(pool[1]);
}

/* Draws that count: how often, against the probability, within five standard errors. */
static void test_draws(void **state)
{
    (void)state;
    struct pool *pool;
    double variance, n = 10000;
    assert_int_equal(pool_open(2, &pool, NULL), YK_OK);
    struct one_op *o = one_run("Multinomial", (const char *[]){"f32:2,3=0,-inf,1.0986123,7,7,-inf", NULL},
        "sample_size=i:10000 dtype=i:7", 1, 3, pool);
    assert_int_equal(o->rule | o->run, YK_OK);
    int64_t counts[2][3] = {{0}};
    for (int64_t i = 0; i < 20000; i++)
        counts[i / 10000][ref_i(&o->call->out[0], i)]++;
    assert_true(counts[0][1] == 0 && counts[1][2] == 0);
    assert_true(fabs((double)counts[0][2] - 0.75 * n) < 5 * sqrt(n * 0.75 * 0.25));
    assert_true(fabs((double)counts[1][0] - 0.5 * n) < 5 * sqrt(n * 0.25));
    one_close(o);

    char x[64];
    snprintf(x, sizeof x, "f64:10000");
    o = one_run("Bernoulli", (const char *[]){x, NULL}, "dtype=i:6", 1, 3, pool); /* probability 0 */
    assert_true(mean_of(o, &variance) == 0);
    one_close(o);

    o = one_run("Dropout", (const char *[]){"f32:10000", "f32:=0.25", "bool:=1?", NULL}, NULL, 2, 3, pool);
    int64_t kept = 0;
    for (int64_t i = 0; i < 10000; i++)
        kept += ref_i(&o->call->out[1], i);
    assert_true(fabs((double)kept - 0.75 * n) < 5 * sqrt(n * 0.75 * 0.25));
    one_close(o);

    o = one_run("Dropout", (const char *[]){"f32:4=1,2,3,4", "f32:=0.5", "bool:=1?", NULL}, NULL, 2, 9, pool);
    for (int64_t i = 0; i < 4; i++)
        assert_true(ref_d(&o->call->out[0], i) == (ref_i(&o->call->out[1], i) ? 2.0 * (double)(i + 1) : 0));
    one_close(o);
    pool_close(pool);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_values), cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_philox), cmocka_unit_test(test_random), cmocka_unit_test(test_draws)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
