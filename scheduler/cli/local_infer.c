/* `yoke local infer` and `yoke local bench`. */
#include "scheduler/cli/local.h"

#include "scheduler/cli/images.h"
#include "scheduler/cli/tensors.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static double now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

/* ---- infer ---- */

struct infer {
    struct local l;
    int n_in, n_out;             /* of the graph */
    const char **names;          /* of inputs, then of outputs */
    const char **in_paths;       /* by input */
    char **out_paths;            /* by output; NULL entries: not written */
    struct tensor *in;           /* by input of the graph */
    const struct shape **shapes; /* theirs */
    struct images *images;       /* by input; zeroed where a file is none. They own the tensor's data */
    bool pictured;               /* there is one */
    struct dyn_value **args, **results;
};

static void print_output(struct cli *c, const char *name, const struct dyn_value *v, double ms)
{
    char text[128];
    dyn_text(v, text, sizeof text);
    if (!c->o.json) {
        printf("%s %s  %.2f ms\n", name, text, ms);
        return;
    }
    struct yk_buf buf = {0};
    struct json_out out;
    json_out_init(&out, &buf, 0);
    json_open(&out, '{');
    json_put_key(&out, "output");
    json_put_str(&out, name);
    if (v->type == VALUE_TENSOR) {
        json_put_key(&out, "shape");
        json_open(&out, '[');
        for (int i = 0; i < v->tensor.shape.rank; i++)
            json_put_i64(&out, v->tensor.shape.dims[i]);
        json_close(&out, ']');
    }
    json_put_key(&out, "type");
    json_put_str(&out, text);
    json_put_key(&out, "ms");
    json_put_f64(&out, ms);
    json_close(&out, '}');
    printf("%.*s\n", (int)buf.len, (const char *)buf.data);
    yk_buf_free(&buf);
}

/* Names of inputs and outputs, and which file belongs to which. */
static yk_err pair_files(struct cli *c, struct infer *f, struct yk_diag *why)
{
    const struct graph *g = f->l.graph;
    f->n_in = g->n_inputs;
    f->n_out = g->n_outputs;
    f->names = yk_xalloc(((size_t)f->n_in + (size_t)f->n_out + 1) * sizeof *f->names);
    f->in_paths = yk_xalloc(((size_t)f->n_in + 1) * sizeof *f->in_paths);
    f->out_paths = yk_xalloc(((size_t)f->n_out + 1) * sizeof *f->out_paths);
    f->in = yk_xalloc(((size_t)f->n_in + 1) * sizeof *f->in);
    f->images = yk_xalloc(((size_t)f->n_in + 1) * sizeof *f->images);
    f->args = yk_xalloc(((size_t)f->n_in + 1) * sizeof(struct dyn_value *));
    f->results = yk_xalloc(((size_t)f->n_out + 1) * sizeof(struct dyn_value *));
    f->shapes = yk_xalloc(((size_t)f->n_in + 1) * sizeof *f->shapes);
    for (int i = 0; i < f->n_in; i++)
        f->names[i] = g->values[g->inputs[i]].name;
    for (int i = 0; i < f->n_out; i++)
        f->names[f->n_in + i] = g->values[g->outputs[i]].name;
    yk_err err = tensors_inputs(&c->o.inputs, f->names, f->n_in, f->in_paths, why);
    return err ? err : tensors_outputs(&c->o.outputs, f->names + f->n_in, f->n_out, f->out_paths, why);
}

static yk_err read_input(struct cli *c, struct infer *f, int i, struct yk_diag *why)
{
    struct data_target target;
    if (!data_holds_images(f->in_paths[i]))
        return tensors_read(f->in_paths[i], &f->in[i].shape, &f->in[i].data, why);
    data_target_of(f->l.graph, f->l.graph->inputs[i], &target);
    yk_err err = images_read(c, f->in_paths[i], &target, NULL, &f->images[i], why);
    if (!err) {
        f->in[i] = (struct tensor){f->images[i].shape, f->images[i].data};
        f->pictured = true;
    }
    return err;
}

static yk_err read_inputs(struct cli *c, struct infer *f, struct yk_diag *why)
{
    const struct graph *g = f->l.graph;
    yk_err err = YK_OK;
    for (int i = 0; !err && i < f->n_in; i++) {
        struct shape *shape = &f->in[i].shape;
        err = read_input(c, f, i, why);
        if (!err && g->values[g->inputs[i]].dtype == DT_BF16 && shape->dtype == DT_U16)
            shape->dtype = DT_BF16; /* as tensors_write has it */
        if (!err && g->values[g->inputs[i]].dtype == DT_F32 && shape->dtype == DT_U8 && shape->rank >= 3)
            err = tensors_pixels(shape, &f->in[i].data, why);
        f->shapes[i] = shape;
    }
    return err ? err : local_sizes(g, f->shapes, f->l.sizes, why);
}

/* For people who gave a picture and no file for the answer. */
static yk_err show_classes(
    struct cli *c, const struct infer *f, const char *name, const struct tensor *t, bool *shown, struct yk_diag *why)
{
    if (*shown || c->o.json || c->o.outputs.n || !(f->pictured || c->o.labels) || !images_scores(t))
        return YK_OK;
    *shown = true;
    int i = 0;
    while (i + 1 < f->n_in && !f->images[i].set)
        i++;
    return images_print_top(c->o.labels, &f->images[i], name, t, why);
}

/* Reads the files and loads the opened model for their sizes. */
static yk_err load_inputs(struct cli *c, struct infer *f, struct yk_diag *why)
{
    struct local *l = &f->l;
    yk_err err = pair_files(c, f, why);
    if (err || (err = read_inputs(c, f, why)))
        return err;
    l->input_shapes = f->shapes;
    if ((err = local_load(l, l->batch_dim >= 0 ? l->sizes[l->batch_dim] : l->fixed_batch, why)))
        return err;
    for (int i = 0; i < f->n_in; i++)
        if ((err = dyn_borrow(NULL, &f->in[i], &f->args[i], why)))
            return err;
    return YK_OK;
}

static yk_err infer(struct cli *c, struct infer *f, struct yk_diag *why)
{
    struct local *l = &f->l;
    yk_err err = local_open(c, c->args.at[0], l, why);
    if (err || (err = load_inputs(c, f, why)))
        return err;
    double start = now_ms();
    if ((err = exec_run_values(l->exec, l->sizes, f->args, f->results, 0, why)))
        return err;
    double ms = now_ms() - start;
    bool shown = false;
    for (int i = 0; !err && i < f->n_out; i++) {
        const struct dyn_value *v = f->results[i];
        print_output(c, f->names[f->n_in + i], v, ms);
        if (v->type == VALUE_TENSOR && (err = show_classes(c, f, f->names[f->n_in + i], &v->tensor, &shown, why)))
            return err;
        if (f->out_paths[i] && v->type != VALUE_TENSOR)
            err = yk_fail(
                why, YK_UNSUPPORTED, "output '%s' is no tensor: a .npy file cannot hold it", f->names[f->n_in + i]);
        else if (f->out_paths[i])
            err = tensors_write(f->out_paths[i], &v->tensor.shape, v->tensor.data, why);
    }
    return err;
}

static void infer_fini(struct infer *f)
{
    for (int i = 0; i < f->n_in; i++) {
        dyn_unref(f->args[i]);
        if (!f->images[i].set)
            free(f->in[i].data);
        images_free(&f->images[i]);
    }
    for (int i = 0; i < f->n_out; i++) {
        dyn_unref(f->results[i]);
        free(f->out_paths[i]);
    }
    free(f->results);
    free(f->args);
    free(f->in);
    free(f->shapes);
    free(f->images);
    free(f->in_paths);
    free(f->out_paths);
    free(f->names);
    local_close(&f->l);
}

int cli_local_infer(struct cli *c)
{
    struct yk_diag why = {0};
    struct infer f = {0};
    yk_err err = infer(c, &f, &why);
    infer_fini(&f);
    return err ? cli_fail(err, &why) : CLI_DONE;
}

/* ---- bench ---- */

struct node_cost {
    double ms; /* sum over the traced runs */
    char form[BACKEND_FORM_MAX];
};

static void on_node(void *arg, int32_t node, const char *form, double ms)
{
    struct node_cost *cost = (struct node_cost *)arg + node;
    cost->ms += ms;
    snprintf(cost->form, sizeof cost->form, "%s", form);
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

/* What a node costs is known where no shape depends on data. */
static bool shapes_known(const struct op_ctx *x)
{
    for (int i = 0; i < x->n_in; i++)
        if (x->in[i] && shape_count(x->in[i]) < 0)
            return false;
    for (int i = 0; i < x->n_out; i++)
        if (x->out[i].dtype != DT_NONE && shape_count(&x->out[i]) < 0)
            return false;
    return true;
}

static void bench_report(struct cli *c, struct local *l, const double *sorted, int n, const struct node_cost *costs)
{
    const struct shapes *shapes = exec_max_shapes(l->exec);
    const struct memplan *plan = exec_plan(l->exec);
    double flops = 0, median = sorted[n / 2];
    struct op_ctx *ctx = yk_xalloc(sizeof *ctx);
    struct yk_buf buf = {0};
    struct json_out out;
    json_out_init(&out, &buf, 0);
    json_open(&out, '{');
    if (c->o.ops) {
        json_put_key(&out, "nodes");
        json_open(&out, '[');
        if (!c->o.json)
            printf("%5s  %-34s %-20s %-40s %10s %9s\n", "node", "name", "op", "form", "ms", "GFLOP/s");
    }
    for (int32_t i = 0; i < l->graph->n_nodes; i++) {
        const struct node *node = &l->graph->nodes[i];
        shapes_node(l->graph, shapes, i, ctx);
        double f = shapes_known(ctx) ? op_flops(ctx) : 0, ms = costs ? costs[i].ms / n : 0;
        flops += f;
        if (!c->o.ops)
            continue;
        if (!c->o.json)
            printf("%5d  %-34.34s %-20s %-40s %10.4f %9.2f\n", i, node->name, node->op->name, costs[i].form, ms,
                ms > 0 ? f / ms * 1e-6 : 0);
        json_open(&out, '{');
        json_put_key(&out, "node");
        json_put_i64(&out, i);
        json_put_key(&out, "name");
        json_put_str(&out, node->name);
        json_put_key(&out, "op");
        json_put_str(&out, node->op->name);
        json_put_key(&out, "form");
        json_put_str(&out, costs[i].form);
        json_put_key(&out, "ms");
        json_put_f64(&out, ms);
        json_put_key(&out, "flops");
        json_put_f64(&out, f);
        json_put_key(&out, "bytes");
        json_put_f64(&out, shapes_known(ctx) ? op_bytes(ctx) : 0);
        json_close(&out, '}');
    }
    if (c->o.ops)
        json_close(&out, ']');
    const struct {
        const char *key;
        double value;
    } sums[] = {{"batch", (double)c->o.batch}, {"threads", pool_threads(l->pool)}, {"ms", median},
        {"min_ms", sorted[0]}, {"max_ms", sorted[n - 1]}, {"gflops", flops / median * 1e-6},
        {"memory_bytes", (double)plan->total_bytes}};
    for (size_t i = 0; i < YK_COUNT(sums); i++) {
        json_put_key(&out, sums[i].key);
        json_put_f64(&out, sums[i].value);
    }
    json_close(&out, '}');
    if (c->o.json)
        printf("%.*s\n", (int)buf.len, (const char *)buf.data);
    else
        printf("%s  batch %" PRId64
               "  threads %d  median %.3f ms  (min %.3f, max %.3f, %d runs)  %.1f GFLOP/s  %.1f MB\n",
            c->args.at[0], c->o.batch, pool_threads(l->pool), median, sorted[0], sorted[n - 1], n,
            flops / median * 1e-6, (double)plan->total_bytes / 1e6);
    yk_buf_free(&buf);
    free(ctx);
}

/* Without files: inputs between -1 and 1, integers 0, at --batch and 1 for every other named dimension. */
static yk_err make_inputs(struct cli *c, struct infer *f, struct yk_diag *why)
{
    struct local *l = &f->l;
    struct yk_rng rng;
    yk_rng_seed(&rng, 1);
    if (l->batch_dim < 0)
        c->o.batch = l->fixed_batch;
    yk_err err = local_load(l, c->o.batch, why);
    if (err)
        return err;
    f->args = yk_xalloc(((size_t)l->graph->n_inputs + 1) * sizeof(struct dyn_value *));
    f->in = yk_xalloc(((size_t)l->graph->n_inputs + 1) * sizeof *f->in);
    f->images = yk_xalloc(((size_t)l->graph->n_inputs + 1) * sizeof *f->images);
    for (f->n_in = 0; f->n_in < l->graph->n_inputs; f->n_in++) {
        const struct value *v = &l->graph->values[l->graph->inputs[f->n_in]];
        if (v->type != VALUE_TENSOR)
            return yk_fail(why, YK_UNSUPPORTED, "input '%s' is no tensor: bench cannot make one", v->name);
        const struct shape *shape = &exec_max_shapes(l->exec)->of[l->graph->inputs[f->n_in]];
        if ((err = dyn_tensor(NULL, shape, &f->args[f->n_in], why)))
            return err;
        struct tensor *t = &f->args[f->n_in]->tensor;
        memset(t->data, 0, (size_t)tensor_bytes(t));
        for (int64_t k = 0; t->shape.dtype == DT_F32 && k < tensor_count(t); k++)
            ((float *)t->data)[k] = (float)(yk_rng_unit(&rng) * 2 - 1);
    }
    return YK_OK;
}

static yk_err bench_run(struct infer *f, double *ms, struct yk_diag *why)
{
    const struct graph *g = f->l.graph;
    struct dyn_value **out = yk_xalloc(((size_t)g->n_outputs + 1) * sizeof(struct dyn_value *));
    double start = now_ms();
    yk_err err = exec_run_values(f->l.exec, f->l.sizes, f->args, out, 0, why);
    *ms = now_ms() - start;
    for (int32_t i = 0; i < g->n_outputs; i++)
        dyn_unref(out[i]);
    free(out);
    return err;
}

int cli_local_bench(struct cli *c)
{
    struct yk_diag why = {0};
    struct infer f = {0};
    struct node_cost *costs = NULL;
    double *times = NULL, warm;
    int n = (int)c->o.repeat;
    yk_err err = local_open(c, c->args.at[0], &f.l, &why);
    if (!err)
        err = c->o.inputs.n ? load_inputs(c, &f, &why) : make_inputs(c, &f, &why);
    if (!err && c->o.inputs.n)
        c->o.batch = f.l.batch_dim >= 0 ? f.l.sizes[f.l.batch_dim] : f.l.fixed_batch;
    for (int i = 0; i < 2 && !err; i++)
        err = bench_run(&f, &warm, &why);
    if (err)
        goto out;
    if (c->o.ops) {
        costs = yk_xalloc(((size_t)f.l.graph->n_nodes + 1) * sizeof *costs);
        exec_trace(f.l.exec, on_node, costs);
    }
    times = yk_xalloc((size_t)n * sizeof *times);
    for (int i = 0; i < n && !err; i++)
        err = bench_run(&f, &times[i], &why);
    if (err)
        goto out;
    qsort(times, (size_t)n, sizeof *times, by_value);
    bench_report(c, &f.l, times, n, costs);
out:
    infer_fini(&f);
    free(costs);
    free(times);
    return err ? cli_fail(err, &why) : CLI_DONE;
}
