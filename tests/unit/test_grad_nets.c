/* Whole small networks against PyTorch's autograd in float64: tests/golden/make_grad.py exported them in float64 too,
 * so that loss, every gradient and every running statistic agree but for attributes, which ONNX keeps as float32. */
#include "common/onnx.h"
#include "kernels/fold.h"
#include "tests/unit/grad_run.h"

#define GOLDEN YOKE_SOURCE_DIR "/tests/golden/grad/"
#define NEAR 2e-7

struct facts {
    char *text;
    struct grad_options o;
    char *input, *target; /* "TYPE SIZES VALUES" */
    double divisor, loss;
};

static char *line_of(char *text, const char *start, size_t *length)
{
    size_t n = strlen(start);
    *length = 0;
    for (char *at = text; at && *at; at = strchr(at, '\n') ? strchr(at, '\n') + 1 : NULL)
        if (!strncmp(at, start, n)) {
            *length = strcspn(at + n, "\n");
            return at + n;
        }
    return NULL;
}

static double number_of(struct facts *f, const char *start)
{
    size_t n = 0;
    char *at = line_of(f->text, start, &n);
    assert_non_null(at);
    return strtod(at, NULL);
}

static void read_facts(const char *name, struct facts *f)
{
    char path[256], kind[32];
    size_t n = 0;
    snprintf(path, sizeof path, GOLDEN "%s.txt", name);
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    *f = (struct facts){.text = yk_xalloc(1 << 20)};
    assert_true(fread(f->text, 1, (1 << 20) - 1, file) > 0);
    fclose(file);
    grad_options_init(&f->o);
    char *loss = line_of(f->text, "option loss ", &n);
    snprintf(kind, sizeof kind, "%.*s", (int)n, loss);
    assert_true(grad_loss_find(kind, &f->o.loss));
    f->o.label_smoothing = (float)number_of(f, "option smoothing ");
    f->o.ignore_index = (int64_t)number_of(f, "option ignore ");
    f->o.bn_frozen = number_of(f, "option frozen ") != 0;
    f->input = line_of(f->text, "input x ", &n);
    f->target = line_of(f->text, "target ", &n);
    f->divisor = number_of(f, "divisor ");
    f->loss = number_of(f, "loss ");
}

/* Fills the graph input; its first size is returned. */
static int64_t set_input(struct grad_run *r, int32_t v, const char *text)
{
    char *end = NULL;
    const char *at = text + 4;
    int64_t first = strtoll(at, NULL, 10);
    at = strchr(at, ' ');
    const struct shape *s = &r->shapes.of[v];
    r->data[v] = malloc((size_t)shape_bytes(s) + 1);
    r->owned[v] = 1;
    for (int64_t i = 0; i < shape_count(s); i++, at = end) {
        double d = strtod(at, &end);
        assert_true(end != at);
        ref_store_d(r->data[v], s->dtype, i, 1, &d, 1);
    }
    return first;
}

/* "COUNT SQUARES VALUES" against a sum of graph outputs. */
static bool same(const struct grad_run *r, const char *text, const int32_t *values, int n_values, const char *what)
{
    char *end;
    int64_t count = strtoll(text, &end, 10), step = YK_MAX(1, (count + 47) / 48);
    double squares = strtod(end, &end), sum = 0, scale = sqrt(squares / (double)YK_MAX(count, 1)) + 1e-9;
    assert_int_equal(shape_count(&r->shapes.of[values[0]]), count);
    for (int64_t i = 0; i < count; i++) {
        double v = 0;
        for (int u = 0; u < n_values; u++)
            v += grad_run_number(r, values[u], i);
        sum += v * v;
        if (i % step)
            continue;
        double want = strtod(end, &end);
        if (!(fabs(v - want) <= NEAR * (fabs(want) + scale))) {
            print_error("%s[%lld] is %.15g, PyTorch's %.15g\n", what, (long long)i, v, want);
            return false;
        }
    }
    if (!(fabs(sum - squares) <= 4 * NEAR * squares + 1e-20)) {
        print_error("%s: the sum of squares is %.15g, PyTorch's %.15g\n", what, sum, squares);
        return false;
    }
    return true;
}

static int32_t listed(const struct graph *g, int32_t output)
{
    assert_true(output >= 0 && output < g->n_outputs);
    return g->outputs[output];
}

static bool check_net(const char *name, bool recompute)
{
    char path[256], key[256];
    struct graph *g, *train;
    struct grad_info info;
    struct facts f;
    struct grad_run r;
    struct yk_diag why = {""};
    int64_t sizes[4] = {0};
    bool ok = true;
    snprintf(path, sizeof path, GOLDEN "%s.onnx", name);
    read_facts(name, &f);
    f.o.recompute = recompute;
    yk_err err = onnx_import(path, &g, NULL, &why);
    if (!err)
        err = passes_train(g, fold_eval, NULL, &why);
    if (!err)
        err = grad_build(g, &f.o, &train, &info, &why);
    if (err) {
        print_error("%s: %s\n", name, why.text);
        free(f.text);
        return false;
    }
    const struct value *x = &train->values[train->inputs[0]];
    char *size_at = f.input + 4;
    for (int32_t d = 0; d < x->rank; d++, size_at++) {
        int64_t size = strtoll(size_at, &size_at, 10);
        assert_true(x->dims[d].sym < 4);
        if (x->dims[d].sym >= 0)
            sizes[x->dims[d].sym] = size;
    }
    assert_true(train->n_syms <= 4);
    err = grad_run_open(&r, train, sizes);
    if (!err) {
        set_input(&r, train->inputs[0], f.input);
        set_input(&r, train->inputs[info.target_input], f.target);
        char divisor[64];
        snprintf(divisor, sizeof divisor, "f64  %.17g", f.divisor);
        set_input(&r, train->inputs[info.divisor_input], divisor);
        err = grad_run_nodes(&r, train->n_nodes, 1);
    }
    if (err) {
        print_error("%s: %s\n", name, r.why.text);
        ok = false;
        goto out;
    }
    double loss = grad_run_number(&r, listed(train, info.loss_output), 0);
    if (!(fabs(loss - f.loss) <= NEAR * fabs(f.loss))) {
        print_error("%s: the loss is %.15g, PyTorch's %.15g\n", name, loss, f.loss);
        ok = false;
    }
    int found = 0, wanted = 0;
    for (const char *at = f.text; (at = strstr(at, "\ngrad ")); at++)
        wanted++;
    for (int32_t p = 0; p < info.n_params; p++) {
        const struct grad_param *param = &info.params[p];
        int32_t values[8];
        size_t n;
        snprintf(key, sizeof key, "grad %s ", param->name);
        char *text = line_of(f.text, key, &n);
        if (!text && strncmp(param->name, "onnx::", 6) != 0)
            print_error("%s: PyTorch has no parameter '%s'\n", name, param->name), ok = false;
        if (!text)
            continue;
        found++;
        assert_true(param->n_uses >= 1 && param->n_uses <= 8);
        for (int32_t u = 0; u < param->n_uses; u++)
            values[u] = listed(train, param->uses[u]);
        snprintf(key, sizeof key, "%s: gradient of %s", name, param->name);
        ok = same(&r, text, values, param->n_uses, key) && ok;
    }
    for (const char *at = f.text; (at = strstr(at, "\nstate ")); at++)
        wanted++;
    for (int32_t s = 0; s < info.n_states; s++) {
        size_t n;
        int32_t value = listed(train, info.states[s].output);
        snprintf(key, sizeof key, "state %s ", train->values[info.states[s].value].name);
        char *text = line_of(f.text, key, &n);
        if (!text)
            print_error("%s: no %s\n", name, key), ok = false;
        else
            found++, ok = same(&r, text, &value, 1, key) && ok;
    }
    if (found != wanted) {
        print_error("%s: %d of PyTorch's %d gradients and statistics\n", name, found, wanted);
        ok = false;
    }
    if ((info.warning != NULL) != (strcmp(name, "cnn_folded") == 0)) {
        print_error("%s: warning '%s'\n", name, info.warning ? info.warning : "");
        ok = false;
    }
out:
    grad_run_close(&r);
    graph_close(train);
    graph_close(g);
    free(f.text);
    return ok;
}

static const char *const nets[] = {"mlp", "mlp_smooth", "mlp_nll", "mlp_mse", "mlp_l1", "mlp_bce", "cnn", "cnn_frozen",
    "cnn_folded", "cnn_opset9", "residual", "mobile", "attention", "attention_opset11", "vit", "language", "sequence",
    "unet", "recycled"};

static void test_nets(void **state)
{
    int failed = 0;
    (void)state;
    for (size_t i = 0; i < YK_COUNT(nets); i++)
        failed += !check_net(nets[i], false);
    assert_int_equal(failed, 0);
}

static void test_recompute(void **state)
{
    int failed = 0;
    (void)state;
    for (size_t i = 0; i < YK_COUNT(nets); i++)
        failed += !check_net(nets[i], true);
    assert_int_equal(failed, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_nets), cmocka_unit_test(test_recompute)};
    return cmocka_run_group_tests(tests, grad_setup, grad_teardown);
}
