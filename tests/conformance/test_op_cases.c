/* Single nodes against ONNX Runtime (tests/golden/op_cases.txt, most of them compared with PyTorch too when they were
 * made) and gradients against PyTorch (op_grad.txt), on the reference and on the fast backends; and what kernels say to
 * data that a shape rule cannot see. */
#include "kernels/exec.h"
#include "tests/unit/op_line.h"

/* Input k of a line: its contents, or by formula as make_op_cases.py makes it. */
static void fill(struct tensor *t, int k)
{
    for (int64_t i = 0, n = tensor_count(t); i < n; i++) {
        float v = (float)((i * 7919 + k * 104729 + 17) % 2003 - 1001) / 1024.0f;
        if (t->shape.dtype == DT_F64)
            ((double *)t->data)[i] = (double)v;
        else
            ((float *)t->data)[i] = v;
    }
}

/* Runs the line on backends spec into out (its data to be freed). */
static yk_err run_line(struct op_line *l, const char *spec, int threads, struct tensor *out, struct yk_diag *why)
{
    struct tensor in[16], given[8] = {{.data = NULL}};
    struct pool *pool = NULL;
    struct backends b = {.n = 0};
    struct exec *e = NULL;
    const struct shapes *s;
    int64_t none[1] = {1};
    assert_int_equal(pool_open(threads, &pool, NULL), YK_OK);
    assert_int_equal(backends_open(spec, pool, &b, NULL), YK_OK);
    memset(in, 0, sizeof in);
    memset(out, 0, 8 * sizeof *out);
    struct exec_config c = {.graph = l->g, .max_sizes = none, .backends = &b};
    yk_err err = exec_open(&c, &e, why);
    if (err)
        goto out;
    const struct memplan *m = exec_plan(e);
    assert_int_equal(exec_sizes(e, none, &s, why), YK_OK);
    for (int32_t i = 0; i < m->n_in; i++) {
        in[i].shape = s->of[m->in[i]];
        in[i].data = calloc(1, (size_t)tensor_bytes(&in[i]) + 1);
        fill(&in[i], atoi(l->g->values[m->in[i]].name + 1));
    }
    for (int32_t i = 0; i < m->n_out; i++) {
        given[i].shape = s->of[m->out[i]];
        given[i].data = calloc(1, (size_t)tensor_bytes(&given[i]) + 1);
    }
    err = exec_run(e, none, in, given, 0, why);
    for (int32_t i = 0; i < m->n_out; i++)
        for (int k = 0; k < l->n_out; k++)
            if (m->out[i] == l->out[k])
                out[k] = given[i];
out:
    for (int i = 0; i < 16; i++)
        free(in[i].data);
    exec_close(e);
    backends_close(&b);
    pool_close(pool);
    return err;
}

/* "= 2,3 : v v v" against t. */
static bool same(const char *text, const struct tensor *t)
{
    int64_t dims[8];
    int rank = op_line_ints(text + 2, dims, 8);
    if (rank != t->shape.rank || memcmp(dims, t->shape.dims, (size_t)rank * sizeof *dims) != 0)
        return false;
    struct tensor want = {t->shape, calloc(1, (size_t)tensor_bytes(t) + 1)};
    const char *at = strchr(text, ':') + 1;
    for (int64_t i = 0, n = tensor_count(t); i < n; i++) {
        char *end;
        double v = strtod(at, &end);
        assert_true(end != at);
        at = end;
        if (t->shape.dtype == DT_F64)
            ((double *)want.data)[i] = v;
        else
            ((float *)want.data)[i] = (float)v;
    }
    double far = tensor_relative(t, &want);
    free(want.data);
    if (!(far <= 1e-5))
        print_error("relative difference %g\n", far);
    return far <= 1e-5;
}

static int with(const char *spec, const char *path)
{
    FILE *f = fopen(path, "r");
    char *line = NULL, copy[1024] = "";
    size_t size = 0;
    struct tensor out[8];
    int cases = 0, wrong = 0, k = 0;
    assert_non_null(f);
    memset(out, 0, sizeof out);
    while (getline(&line, &size, f) > 0) {
        line[strcspn(line, "\n")] = 0;
        if (strncmp(line, "case ", 5) == 0) {
            struct yk_diag why = {""};
            struct op_line l = op_line_open(line + 5);
            for (int i = 0; i < 8; i++)
                free(out[i].data);
            yk_err err = run_line(&l, spec, 2, out, &why);
            if (err)
                print_error("%s: %s\n", line, why.text);
            assert_int_equal(err, YK_OK);
            snprintf(copy, sizeof copy, "%s", line);
            cases++;
            k = 0;
            graph_close(l.g);
        } else if (line[0] == '=') {
            if (!same(line, &out[k])) {
                print_error("%s: output %d of %s\n", spec, k, copy);
                wrong++;
            }
            k++;
        }
    }
    for (int i = 0; i < 8; i++)
        free(out[i].data);
    free(line);
    fclose(f);
    print_message("%s: %d cases, %d outputs wrong\n", spec, cases, wrong);
    assert_int_equal(wrong, 0);
    return cases;
}

#define CASES YOKE_SOURCE_DIR "/tests/golden/op_cases.txt"
#define GRADIENTS YOKE_SOURCE_DIR "/tests/golden/op_grad.txt" /* by PyTorch: make_op_grad.py */

static void test_ref(void **state)
{
    (void)state;
    assert_true(with("ref", CASES) > 300);
    assert_true(with("ref", GRADIENTS) > 60);
}

static void test_auto(void **state)
{
    (void)state;
    assert_true(with("auto", CASES) > 300);
    assert_true(with("auto", GRADIENTS) > 60);
}

/* ---- data that a kernel refuses ---- */

static const struct {
    const char *line, *word;
} bad_data[] = {
    {"LSTM 3 in float32:5,2,4 float32:1,12,4 float32:1,12,3 - int32:2=5,6", "sequence_lens[1]"},
    {"GRU 2 in float32:5,2,4 float32:1,9,4 float32:1,9,3 - int32:2=-1,5", "sequence_lens[0]"},
    {"RoiAlign 1 in float32:2,3,4,4 float32:2,4=0,0,2,2,1,1,3,3 int64:2=0,2", "batch_indices[1]"},
    {"RoiAlign 1 in float32:2,3,4,4 float32:2,4=0,0,2,2,1,1,3,3 int64:2=-1,0", "batch_indices[0]"},
    {"RoiAlign 1 in float32:2,3,4,4 float32:1,4=0,0,nan,2 int64:1=0", "region 0"},
    {"RoiAlign 1 in float32:2,3,4,4 float32:1,4=0,0,1e30,2 int64:1=0", "sampling_ratio"},
    {"MaxRoiPool 1 in float32:2,3,4,4 float32:1,5=2,0,0,3,3 attr pooled_shape=ints:2,2", "region 0"},
    {"MaxRoiPool 1 in float32:2,3,4,4 float32:1,5=-1,0,0,3,3 attr pooled_shape=ints:2,2", "region 0"},
    {"MaxRoiPool 1 in float32:2,3,4,4 float32:1,5=0,0,inf,3,3 attr pooled_shape=ints:2,2", "region 0"},
    {"MaxUnpool 1 in float32:1,1,1,2 int64:1,1,1,2=0,8 attr kernel_shape=ints:2,2 strides=ints:2,2", "index 8"},
    {"MaxUnpool 1 in float32:1,1,1,2 int64:1,1,1,2=0,-1 attr kernel_shape=ints:2,2 strides=ints:2,2", "index -1"},
    {"ReverseSequence 1 in float32:4,2 int64:2=4,5", "sequence_lens[1]"},
    {"ReverseSequence 1 in float32:4,2 int64:2=-4,1", "sequence_lens[0]"},
    {"MelWeightMatrix 1 in int64:=8 int64:=16 int64:=0 float32:1=0 float32:1=4096", "sample_rate"},
    {"MelWeightMatrix 1 in int64:=8 int64:=16 int64:=8192 float32:1=-9999 float32:1=4096", "band"},
};

static void test_bad_data(void **state)
{
    (void)state;
    for (size_t i = 0; i < YK_COUNT(bad_data); i++) {
        struct yk_diag why = {""};
        struct tensor out[8];
        struct op_line l = op_line_open(bad_data[i].line);
        yk_err err = run_line(&l, "ref", 1, out, &why);
        if (!err || !strstr(why.text, bad_data[i].word))
            print_error("%s: %d '%s'\n", bad_data[i].line, err, why.text);
        assert_true(err == YK_INVAL || err == YK_LIMIT);
        assert_non_null(strstr(why.text, bad_data[i].word));
        for (int k = 0; k < 8; k++)
            free(out[k].data);
        graph_close(l.g);
    }
}

/* Places far away, infinite or NaN read nothing outside (under the sanitizers) and give finite numbers or NaN. */
static void test_odd_places(void **state)
{
    (void)state;
    static const char *const lines[] = {
        "GridSample 1 in float32:1,2,3,3 float32:1,1,4,2=nan,0,inf,-inf,1e30,-1e30,0,nan attr mode=s:bilinear",
        "GridSample 1 in float32:1,2,3,3 float32:1,1,4,2=nan,0,inf,-inf,1e30,-1e30,0,nan attr mode=s:nearest "
        "padding_mode=s:border",
        "GridSample 1 in float32:1,2,3,3 float32:1,1,4,2=nan,0,inf,-inf,1e30,-1e30,0,nan attr mode=s:bicubic "
        "padding_mode=s:reflection",
        "GridSample 1 in float32:1,2,1,1 float32:1,1,4,2=nan,0,inf,-inf,1e30,-1e30,0,nan attr align_corners=i:1 "
        "padding_mode=s:reflection",
        "Resize 1 in float32:1,1,3,3 float32:8=0,0,nan,-1e30,1,1,inf,1e30 - int64:4=1,1,4,5 attr mode=s:linear "
        "coordinate_transformation_mode=s:tf_crop_and_resize",
        "Resize 1 in float32:1,1,3,3 float32:8=0,0,nan,-1e30,1,1,inf,1e30 - int64:4=1,1,4,5 attr mode=s:cubic "
        "coordinate_transformation_mode=s:tf_crop_and_resize",
        "Resize 1 in float32:1,1,3,3 float32:8=0,0,nan,-1e30,1,1,inf,1e30 - int64:4=1,1,4,5 attr mode=s:nearest "
        "coordinate_transformation_mode=s:tf_crop_and_resize",
        "Resize 1 in float32:1,1,3,3 - float32:4=1,1,1e-30,1e5 attr mode=s:linear",
        "RoiAlign 1 in float32:1,1,3,3 float32:2,4=-1e30,-1e30,-1e30,-1e30,3,3,1,1 int64:2=0,0",
        "MaxRoiPool 1 in float32:1,1,3,3 float32:2,5=0,-1e30,-1e30,1e30,1e30,0,2,2,0,0 attr pooled_shape=ints:2,2",
        "LSTM 3 in float32:3,2,0 float32:1,8,0 float32:1,8,2 - int32:2=0,3",
        "Einsum 1 in float32:0,3 float32:3,0 attr equation=s:ij,jk->ik",
        "Einsum 1 in float32:2,0 float32:0,3 attr equation=s:ij,jk->ik",
        "DFT 1 in float32:2,0,1 int64:=3",
        "HannWindow 1 in int64:=1 attr periodic=i:0",
    };
    for (size_t i = 0; i < YK_COUNT(lines); i++)
        for (int fast = 0; fast < 2; fast++) {
            struct yk_diag why = {""};
            struct tensor out[8];
            struct op_line l = op_line_open(lines[i]);
            yk_err err = run_line(&l, fast ? "auto" : "ref", 2, out, &why);
            if (err)
                print_error("%s: %s\n", lines[i], why.text);
            assert_int_equal(err, YK_OK);
            for (int k = 0; k < 8; k++)
                free(out[k].data);
            graph_close(l.g);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_ref), cmocka_unit_test(test_auto),
        cmocka_unit_test(test_bad_data), cmocka_unit_test(test_odd_places)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
