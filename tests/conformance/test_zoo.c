/* Many architectures (tests/golden/make_zoo.py, make_public.py): folders of $YOKE_ZOO in the layout of ONNX test data.
 * Each imports, runs within 1e-5 relative of the golden outputs, and gives the same bits when it is cut in two: ten
 * cuts, the best-balanced ones included, at one and two threads. Under sanitizers one cut each. */
#include "common/cut.h"
#include "common/onnx.h"
#include "common/onnx_value.h"
#include "common/passes.h"
#include "kernels/exec.h"
#include "kernels/fold.h"
#include "scheduler/cli/local.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define BOUND 1e-5
#define MAX_IO 64

struct zoo {
    const char *name;
    struct graph *graph;
    struct onnx_value in[MAX_IO], want[MAX_IO];
    struct dyn_value *args[MAX_IO], *got[MAX_IO];
    const struct shape *given[MAX_IO];
    int64_t *sizes;
    struct backends *backends[2]; /* one thread, two threads */
    double bound;                 /* BOUND, or what a file `bound` says: its script says why */
};

static void load_set(const char *folder, int set, const char *what, const struct graph *g, const int32_t *ids,
    int32_t n, struct onnx_value *out)
{
    for (int32_t i = 0; i < n; i++) {
        char path[700];
        struct yk_diag why = {""};
        snprintf(path, sizeof path, "%s/test_data_set_%d/%s_%d.pb", folder, set, what, (int)i);
        if (onnx_value_load(path, g->values[ids[i]].type, &out[i], &why))
            fail_msg("%s", why.text);
        assert_int_equal(out[i].type, VALUE_TENSOR);
    }
}

static yk_err open_stage(struct zoo *z, int threads, const uint8_t *in_stage, struct exec **out, struct yk_diag *why)
{
    struct exec_config config = {.graph = z->graph,
        .in_stage = in_stage,
        .max_sizes = z->sizes,
        .input_shapes = z->given,
        .backends = z->backends[threads]};
    return exec_open(&config, out, why);
}

/* Outputs near the golden ones; integers, shapes and dtypes exactly. */
static bool near_golden(const struct zoo *z)
{
    bool good = true;
    for (int32_t i = 0; i < z->graph->n_outputs; i++) {
        struct tensor want = {z->want[i].shape, z->want[i].data};
        const char *name = z->graph->values[z->graph->outputs[i]].name;
        char a[128], b[128];
        dyn_text(z->got[i], a, sizeof a);
        shape_text(&want.shape, b, sizeof b);
        double error = 1e9;
        if (z->got[i]->type == VALUE_TENSOR && shape_equal(&z->got[i]->tensor.shape, &want.shape))
            error = tensor_relative(&z->got[i]->tensor, &want);
        print_message("%s: output '%s' %s: %.1e\n", z->name, name, a, error);
        if (!(error <= z->bound)) {
            print_error("%s: output '%s' is %s, expected %s, error %g\n", z->name, name, a, b, error);
            good = false;
        }
    }
    return good;
}

/* ---- cuts ---- */

/* Nodes [first, last) at `threads`, from and into `have` by value id (owned where a stage made it). */
static void run_part(struct zoo *z, int threads, int32_t first, int32_t last, struct tensor *have)
{
    const struct graph *g = z->graph;
    struct yk_diag why = {""};
    struct exec *e = NULL;
    const struct shapes *shapes;
    uint8_t *stage = calloc((size_t)g->n_nodes + 1, 1);
    memset(stage + first, 1, (size_t)(last - first));
    if (open_stage(z, threads, stage, &e, &why) || exec_sizes(e, z->sizes, &shapes, &why))
        fail_msg("%s, nodes %d to %d: %s", z->name, (int)first, (int)last, why.text);
    const struct memplan *m = exec_plan(e);
    struct tensor *in = calloc((size_t)m->n_in + 1, sizeof *in), *out = calloc((size_t)m->n_out + 1, sizeof *out);
    for (int32_t i = 0; i < m->n_in; i++) {
        in[i] = have[m->in[i]];
        if (!in[i].data)
            fail_msg("%s, cut at %d: '%s' did not cross", z->name, (int)first, g->values[m->in[i]].name);
    }
    for (int32_t i = 0; i < m->n_out; i++) {
        out[i].shape = shapes->of[m->out[i]];
        out[i].data = yk_try_aligned((size_t)tensor_bytes(&out[i]) + 1);
        assert_null(have[m->out[i]].data);
        have[m->out[i]] = out[i];
    }
    if (exec_run(e, z->sizes, in, out, 0, &why))
        fail_msg("%s, nodes %d to %d: %s", z->name, (int)first, (int)last, why.text);
    free(in);
    free(out);
    free(stage);
    exec_close(e);
}

static void check_cut(struct zoo *z, int32_t after, int threads)
{
    const struct graph *g = z->graph;
    struct tensor *have = calloc((size_t)g->n_values + 1, sizeof *have);
    for (int32_t i = 0; i < g->n_inputs; i++)
        have[g->inputs[i]] = z->args[i]->tensor;
    run_part(z, threads, 0, after + 1, have);
    run_part(z, !threads, after + 1, g->n_nodes, have);
    for (int32_t i = 0; i < g->n_outputs; i++) {
        const struct value *v = &g->values[g->outputs[i]];
        const struct tensor *whole = &z->got[i]->tensor, *cut = &have[g->outputs[i]];
        if (v->kind != VALUE_NODE)
            continue; /* a constant or an input */
        assert_true(cut->data && shape_equal(&cut->shape, &whole->shape));
        if (memcmp(cut->data, whole->data, (size_t)tensor_bytes(whole)) != 0)
            fail_msg("%s: cut after node %d '%s' changes '%s'", z->name, (int)after, g->nodes[after].name, v->name);
    }
    for (int32_t i = 0; i < g->n_inputs; i++)
        have[g->inputs[i]].data = NULL;
    for (int32_t i = 0; i < g->n_values; i++)
        free(have[i].data);
    free(have);
}

/* The allowed cuts that balance the FLOPs best, then what is nearest to even parts of the nodes. */
static int pick_cuts(const struct zoo *z, const struct shapes *s, int32_t *out, int max)
{
    const struct graph *g = z->graph;
    struct cuts cuts;
    struct yk_diag why = {""};
    struct op_ctx *ctx = calloc(1, sizeof *ctx);
    double *before = calloc((size_t)g->n_nodes + 2, sizeof *before); /* FLOPs of nodes 0..i-1 */
    bool *allowed = calloc((size_t)g->n_nodes + 2, sizeof *allowed);
    int n = 0;
    if (cut_all(g, s, &cuts, &why))
        fail_msg("%s: %s", z->name, why.text);
    for (int32_t i = 0; i < g->n_nodes; i++) {
        shapes_node(g, s, i, ctx);
        before[i + 1] = before[i] + op_flops(ctx);
    }
    for (int32_t i = 1; i < cuts.n - 1; i++)
        allowed[cuts.at[i].after] = !cuts.at[i].forbidden;
    for (int k = 0; k < max; k++) {
        int32_t best = -1;
        double least = 0;
        for (int32_t i = 0; i + 1 < g->n_nodes; i++) {
            double off =
                k < 3 ? before[i + 1] / before[g->n_nodes] - 0.5 : (i + 1.0) / g->n_nodes - (k - 2.0) / (max - 2.0);
            off = off < 0 ? -off : off;
            if (allowed[i] && (best < 0 || off < least)) {
                best = i;
                least = off;
            }
        }
        if (best < 0)
            break;
        allowed[best] = false;
        out[n++] = best;
    }
    cuts_fini(&cuts);
    free(before);
    free(allowed);
    free(ctx);
    return n;
}

static void check_cuts(struct zoo *z, int max)
{
    struct yk_diag why = {""};
    struct shapes s;
    int32_t cuts[10];
    if (shapes_infer(z->graph, z->sizes, z->given, &s, &why))
        fail_msg("%s: %s", z->name, why.text);
    for (int32_t i = 0; i < z->graph->n_outputs; i++)
        if (shape_count(&s.of[z->graph->outputs[i]]) < 0) {
            print_message("%s: an output's shape depends on data: one stage\n", z->name);
            shapes_fini(&s);
            return;
        }
    int n = pick_cuts(z, &s, cuts, max);
    for (int i = 0; i < n; i++)
        check_cut(z, cuts[i], i % 2);
    print_message("%s: %d nodes, %d cuts equal\n", z->name, (int)z->graph->n_nodes, n);
    shapes_fini(&s);
}

/* ---- all of them ---- */

/* One data set; the first one is cut, too. */
static bool check_set(struct zoo *z, const char *folder, int set)
{
    struct graph *g = z->graph;
    struct yk_diag why = {""};
    struct exec *e = NULL;
    load_set(folder, set, "input", g, g->inputs, g->n_inputs, z->in);
    load_set(folder, set, "output", g, g->outputs, g->n_outputs, z->want);
    for (int32_t i = 0; i < g->n_inputs; i++) {
        struct tensor t = {z->in[i].shape, z->in[i].data};
        assert_int_equal(dyn_borrow(NULL, &t, &z->args[i], NULL), YK_OK);
        z->given[i] = &z->in[i].shape;
    }
    if (local_sizes(g, z->given, z->sizes, &why) || open_stage(z, 0, NULL, &e, &why) ||
        exec_run_values(e, z->sizes, z->args, z->got, 0, &why))
        fail_msg("%s: %s", z->name, why.text);
    exec_close(e);
    bool good = near_golden(z);
    if (good && set == 0)
        check_cuts(z, getenv("YOKE_SANITIZED") ? 1 : 10);
    for (int32_t i = 0; i < g->n_inputs; i++) {
        dyn_unref(z->args[i]);
        onnx_value_fini(&z->in[i]);
    }
    for (int32_t i = 0; i < g->n_outputs; i++) {
        dyn_unref(z->got[i]);
        onnx_value_fini(&z->want[i]);
    }
    return good;
}

static bool check_model(const char *folder, const char *name, struct backends *one, struct backends *two)
{
    struct zoo *z = calloc(1, sizeof *z);
    struct yk_diag why = {""};
    char path[600], file[700], bound_path[700];
    bool good = true;
    snprintf(path, sizeof path, "%.300s/%.200s", folder, name);
    snprintf(file, sizeof file, "%s/model.onnx", path);
    snprintf(bound_path, sizeof bound_path, "%s/bound", path);
    z->name = name;
    z->bound = BOUND;
    FILE *f = fopen(bound_path, "r");
    if (f) {
        assert_int_equal(fscanf(f, "%lf", &z->bound), 1);
        fclose(f);
    }
    z->backends[0] = one;
    z->backends[1] = two;
    if (onnx_import(file, &z->graph, NULL, &why) || passes_infer(z->graph, fold_eval, NULL, &why))
        fail_msg("%s", why.text);
    assert_true(z->graph->n_inputs <= MAX_IO && z->graph->n_outputs <= MAX_IO);
    z->sizes = calloc((size_t)z->graph->n_syms + 1, sizeof *z->sizes);
    for (int set = 0;; set++) {
        snprintf(file, sizeof file, "%s/test_data_set_%d", path, set);
        if (access(file, R_OK) != 0)
            break;
        good &= check_set(z, path, set);
    }
    free(z->sizes);
    graph_close(z->graph);
    free(z);
    return good;
}

static void zoo(void **state)
{
    (void)state;
    const char *folder = getenv("YOKE_ZOO"), *only = getenv("YOKE_ZOO_ONLY");
    struct dirent **names;
    int n = folder ? scandir(folder, &names, NULL, alphasort) : 0, bad = 0, all = 0;
    struct pool *pool[2];
    struct backends b[2];
    if (n <= 0) {
        print_message("YOKE_ZOO names no folder: run tests/golden/make_zoo.py FOLDER and set it\n");
        skip();
    }
    for (int t = 0; t < 2; t++) {
        assert_int_equal(pool_open(t + 1, &pool[t], NULL), YK_OK);
        assert_int_equal(backends_open("auto", pool[t], &b[t], NULL), YK_OK);
    }
    for (int i = 0; i < n; i++) {
        char path[700];
        snprintf(path, sizeof path, "%.300s/%.200s/stamp", folder, names[i]->d_name);
        if (access(path, R_OK) == 0 && (!only || strcmp(only, names[i]->d_name) == 0)) {
            bad += !check_model(folder, names[i]->d_name, &b[0], &b[1]);
            all++;
        }
        free(names[i]);
    }
    free(names);
    for (int t = 0; t < 2; t++) {
        backends_close(&b[t]);
        pool_close(pool[t]);
    }
    print_message("%d architectures, %d of them wrong\n", all, bad);
    assert_int_equal(bad, 0);
    assert_true(all > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(zoo)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
