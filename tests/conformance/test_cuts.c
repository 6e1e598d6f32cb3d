/* Split equals unsplit, bit for bit: every prefix cut of every golden model as two execs, against one exec of the whole
 * graph, at one and two threads. Models come from $YOKE_MODELS (tests/golden/make_models.py); the Fashion-MNIST CNN is
 * always there. Under sanitizers large graphs are sampled. */
#include "common/npy.h"
#include "common/onnx.h"
#include "common/passes.h"
#include "kernels/exec.h"
#include "kernels/fold.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct run {
    struct exec *exec;
    struct tensor *in, *out;
};

static uint8_t *read_file(const char *path, size_t *len)
{
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    fseek(f, 0, SEEK_END);
    *len = (size_t)ftell(f);
    rewind(f);
    uint8_t *data = malloc(*len + 1);
    assert_int_equal(fread(data, 1, *len, f), *len);
    fclose(f);
    return data;
}

static void open_stage(
    struct run *r, const struct graph *g, const uint8_t *in_stage, int64_t *sizes, struct backends *b)
{
    struct yk_diag why = {0};
    struct exec_config config = {.graph = g, .in_stage = in_stage, .max_sizes = sizes, .backends = b};
    if (exec_open(&config, &r->exec, &why))
        fail_msg("%s", why.text);
    const struct memplan *plan = exec_plan(r->exec);
    r->in = calloc((size_t)plan->n_in + 1, sizeof *r->in);
    r->out = calloc((size_t)plan->n_out + 1, sizeof *r->out);
    const struct shapes *shapes = exec_max_shapes(r->exec);
    for (int32_t i = 0; i < plan->n_out; i++) {
        r->out[i].shape = shapes->of[plan->out[i]];
        r->out[i].data = yk_try_aligned((size_t)tensor_bytes(&r->out[i]) + 1);
    }
}

static void close_stage(struct run *r)
{
    for (int32_t i = 0; i < exec_plan(r->exec)->n_out; i++)
        free(r->out[i].data);
    free(r->in);
    free(r->out);
    exec_close(r->exec);
}

/* Inputs of r by value id: from the graph input x, or the outputs of an earlier stage. */
static void wire(struct run *r, int32_t x_value, const struct tensor *x, const struct run *before)
{
    const struct memplan *plan = exec_plan(r->exec);
    for (int32_t i = 0; i < plan->n_in; i++) {
        if (plan->in[i] == x_value) {
            r->in[i] = *x;
            continue;
        }
        const struct memplan *from = exec_plan(before->exec);
        for (int32_t k = 0; k < from->n_out; k++)
            if (from->out[k] == plan->in[i])
                r->in[i] = before->out[k];
        assert_non_null(r->in[i].data);
    }
}

static const void *find_output(const struct run *r, int32_t value, int64_t *bytes)
{
    const struct memplan *plan = exec_plan(r->exec);
    for (int32_t i = 0; i < plan->n_out; i++)
        if (plan->out[i] == value) {
            *bytes = tensor_bytes(&r->out[i]);
            return r->out[i].data;
        }
    return NULL;
}

static void check_cut(const struct graph *g, int32_t after, const struct tensor *x, int64_t *sizes,
    struct backends *backends, const struct run *whole)
{
    struct yk_diag why = {0};
    struct run first = {0}, second = {0};
    uint8_t *stage = calloc((size_t)g->n_nodes + 1, 1);
    for (int32_t i = 0; i < g->n_nodes; i++)
        stage[i] = i <= after;
    open_stage(&first, g, stage, sizes, backends);
    for (int32_t i = 0; i < g->n_nodes; i++)
        stage[i] = i > after;
    open_stage(&second, g, stage, sizes, backends);
    wire(&first, g->inputs[0], x, NULL);
    if (exec_run(first.exec, sizes, first.in, first.out, 0, &why))
        fail_msg("first stage, cut after %d: %s", after, why.text);
    wire(&second, g->inputs[0], x, &first);
    if (exec_run(second.exec, sizes, second.in, second.out, 0, &why))
        fail_msg("second stage, cut after %d: %s", after, why.text);
    for (int32_t k = 0; k < g->n_outputs; k++) {
        int64_t bytes = -1, expected = -2;
        const void *want = find_output(whole, g->outputs[k], &expected);
        const void *got = find_output(&second, g->outputs[k], &bytes);
        if (!got)
            got = find_output(&first, g->outputs[k], &bytes);
        assert_true(got && want && bytes == expected);
        if (memcmp(got, want, (size_t)bytes) != 0)
            fail_msg("cut after node %d (%s) differs from the unsplit run", after, g->nodes[after].name);
    }
    close_stage(&first);
    close_stage(&second);
    free(stage);
}

static void all_cuts(const char *model, const char *input, int32_t step, int threads)
{
    struct yk_diag why = {0};
    struct graph *g = NULL;
    if (onnx_import(model, &g, NULL, &why) || passes_infer(g, fold_eval, NULL, &why))
        fail_msg("%s: %s", model, why.text);
    size_t len;
    struct npy npy;
    uint8_t *file = read_file(input, &len);
    assert_int_equal(npy_parse(file, len, (int64_t)len, &npy, &why), YK_OK);
    struct tensor x = {.shape = npy.shape, .data = yk_try_aligned((size_t)npy.bytes)};
    memcpy(x.data, file + npy.offset, (size_t)npy.bytes);
    int64_t *sizes = calloc((size_t)g->n_syms + 1, sizeof *sizes), fixed;
    for (int32_t i = 0; i < g->n_syms; i++)
        sizes[i] = 1;
    int32_t batch = graph_batch_dim(g, &fixed);
    assert_true(batch >= 0);
    sizes[batch] = x.shape.dims[0];

    struct pool *pool;
    struct backends backends;
    assert_int_equal(pool_open(threads, &pool, &why), YK_OK);
    assert_int_equal(backends_open("auto", pool, &backends, &why), YK_OK);
    struct run whole = {0};
    open_stage(&whole, g, NULL, sizes, &backends);
    wire(&whole, g->inputs[0], &x, NULL);
    if (exec_run(whole.exec, sizes, whole.in, whole.out, 0, &why))
        fail_msg("%s", why.text);
    int cuts = 0;
    for (int32_t after = 0; after + 1 < g->n_nodes; after += step, cuts++)
        check_cut(g, after, &x, sizes, &backends, &whole);
    print_message("%s: %d cuts of %d nodes equal, %d threads\n", model, cuts, g->n_nodes, threads);
    close_stage(&whole);
    backends_close(&backends);
    pool_close(pool);
    free(sizes);
    free(x.data);
    free(file);
    graph_close(g);
}

static void test_fmnist(void **state)
{
    (void)state;
    for (int threads = 1; threads <= 3; threads++)
        all_cuts(
            YOKE_SOURCE_DIR "/tests/data/fmnist_cnn.onnx", YOKE_SOURCE_DIR "/tests/golden/fmnist_x.npy", 1, threads);
}

static void test_models(void **state)
{
    (void)state;
    static const char *const names[] = {"resnet34", "regnet_y_400mf", "mobilenet_v2", "encoder_6x384"};
    const char *folder = getenv("YOKE_MODELS"), *full = getenv("YOKE_FULL");
    bool sanitized = getenv("YOKE_SANITIZED") != NULL, everything = full && strcmp(full, "1") == 0;
    if (!folder) {
        print_message("YOKE_MODELS is not set: run tests/golden/make_models.py FOLDER and set it\n");
        skip();
    }
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        char model[512], input[512];
        const char *size = strncmp(names[i], "encoder", 7) == 0 ? "" : everything && !sanitized ? "_224" : "_64";
        snprintf(model, sizeof model, "%s/%s%s.onnx", folder, names[i], size);
        snprintf(input, sizeof input, "%s/%s%s.x.npy", folder, names[i], size);
        if (access(model, R_OK) != 0)
            fail_msg("%s is missing", model);
        all_cuts(model, input, sanitized ? 23 : 1, 2);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_fmnist), cmocka_unit_test(test_models)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
