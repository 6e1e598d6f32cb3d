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
    int n_in, n_out;               /* of the graph */
    const char **names;            /* of inputs, then of outputs */
    const char **in_paths;         /* by input */
    char **out_paths;              /* by output; NULL entries: not written */
    struct tensor *in;             /* by input of the graph */
    struct images *images;         /* by input; zeroed where a file is none. They own the tensor's data */
    bool pictured;                 /* there is one */
    struct tensor *args, *results; /* by boundary value of the plan */
};

static int32_t position(const int32_t *ids, int32_t n, int32_t id)
{
    for (int32_t i = 0; i < n; i++)
        if (ids[i] == id)
            return i;
    return -1;
}

/* Sizes of the named dims from the inputs' own shapes; every declared number must agree, and one input with another. */
static yk_err sizes_from_input(struct infer *f, int input, bool *known, struct yk_diag *why)
{
    const struct value *v = &f->l.graph->values[f->l.graph->inputs[input]];
    const struct shape *got = &f->in[input].shape;
    char text[128];
    shape_text(got, text, sizeof text);
    if (v->dtype != got->dtype && !(v->dtype == DT_BF16 && got->dtype == DT_U16))
        return yk_fail(
            why, YK_INVAL, "input '%s' takes %s, %s has %s", v->name, dtype_name(v->dtype), f->in_paths[input], text);
    f->in[input].shape.dtype = v->dtype;
    if (v->rank < 0)
        return YK_OK;
    if (v->rank != got->rank)
        return yk_fail(
            why, YK_INVAL, "input '%s' takes %d dimensions, %s has %s", v->name, v->rank, f->in_paths[input], text);
    for (int i = 0; i < v->rank; i++) {
        int32_t sym = v->dims[i].sym;
        if (sym >= 0 && known[sym] && f->l.sizes[sym] != got->dims[i])
            return yk_fail(why, YK_INVAL,
                "dimension %d of input '%s' is '%s', %" PRId64 " in an earlier input, but %s has %s", i, v->name,
                f->l.graph->syms[sym], f->l.sizes[sym], f->in_paths[input], text);
        if (sym >= 0) {
            f->l.sizes[sym] = got->dims[i];
            known[sym] = true;
        } else if (v->dims[i].value >= 0 && v->dims[i].value != got->dims[i]) {
            return yk_fail(why, YK_INVAL, "dimension %d of input '%s' is %" PRId64 ", %s has %s", i, v->name,
                v->dims[i].value, f->in_paths[input], text);
        }
    }
    return YK_OK;
}

static void print_output(struct cli *c, const char *name, const struct tensor *t, double ms)
{
    char text[128];
    shape_text(&t->shape, text, sizeof text);
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
    json_put_key(&out, "shape");
    json_open(&out, '[');
    for (int i = 0; i < t->shape.rank; i++)
        json_put_i64(&out, t->shape.dims[i]);
    json_close(&out, ']');
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
    bool *known = yk_xalloc((size_t)f->l.graph->n_syms + 1);
    yk_err err = YK_OK;
    for (int i = 0; !err && i < f->n_in; i++)
        if (!(err = read_input(c, f, i, why)))
            err = sizes_from_input(f, i, known, why);
    free(known);
    return err;
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

/* The tensor of a graph output: made by the run, or a constant, or an input that is passed on. */
static yk_err output_tensor(const struct infer *f, int output, struct tensor *t, struct yk_diag *why)
{
    const struct memplan *plan = exec_plan(f->l.exec);
    int32_t id = f->l.graph->outputs[output], at = position(plan->out, plan->n_out, id);
    const struct value *v = &f->l.graph->values[id];
    if (at >= 0)
        *t = f->results[at];
    else if (v->kind == VALUE_WEIGHT && (v->data || v->bytes == 0))
        *t = (struct tensor){v->shape, (void *)(uintptr_t)v->data};
    else if (v->kind == VALUE_INPUT)
        *t = f->in[position(f->l.graph->inputs, f->n_in, id)];
    else
        return yk_fail(why, YK_INTERNAL, "nothing makes output '%s'", v->name);
    return YK_OK;
}

static yk_err infer(struct cli *c, struct infer *f, struct yk_diag *why)
{
    struct local *l = &f->l;
    const struct shape **shapes = NULL;
    yk_err err = local_open(c, c->args.at[0], l, why);
    if (err || (err = pair_files(c, f, why)) || (err = read_inputs(c, f, why)))
        goto out;
    shapes = yk_xalloc(((size_t)f->n_in + 1) * sizeof *shapes);
    for (int i = 0; i < f->n_in; i++)
        shapes[i] = &f->in[i].shape;
    l->input_shapes = shapes;
    int64_t batch = l->batch_dim >= 0 ? l->sizes[l->batch_dim] : l->fixed_batch;
    if ((err = local_load(l, batch, why)) || (err = local_outputs_alloc(l, l->sizes, &f->results, why)))
        goto out;
    const struct memplan *plan = exec_plan(l->exec);
    f->args = yk_xalloc(((size_t)plan->n_in + 1) * sizeof *f->args);
    for (int32_t i = 0; i < plan->n_in; i++)
        f->args[i] = f->in[position(l->graph->inputs, f->n_in, plan->in[i])];
    double start = now_ms();
    if ((err = exec_run(l->exec, l->sizes, f->args, f->results, 0, why)))
        goto out;
    double ms = now_ms() - start;
    bool shown = false;
    for (int i = 0; !err && i < f->n_out; i++) {
        struct tensor t;
        if ((err = output_tensor(f, i, &t, why)))
            goto out;
        print_output(c, f->names[f->n_in + i], &t, ms);
        err = show_classes(c, f, f->names[f->n_in + i], &t, &shown, why);
        if (!err && f->out_paths[i])
            err = tensors_write(f->out_paths[i], &t.shape, t.data, why);
    }
out:
    free(shapes);
    return err;
}

int cli_local_infer(struct cli *c)
{
    struct yk_diag why = {0};
    struct infer f = {0};
    yk_err err = infer(c, &f, &why);
    for (int32_t i = 0; f.results && i < exec_plan(f.l.exec)->n_out; i++)
        free(f.results[i].data);
    for (int i = 0; i < f.n_in; i++) {
        if (!f.images[i].set)
            free(f.in[i].data);
        images_free(&f.images[i]);
    }
    for (int i = 0; i < f.n_out; i++)
        free(f.out_paths[i]);
    free(f.results);
    free(f.args);
    free(f.in);
    free(f.images);
    free(f.in_paths);
    free(f.out_paths);
    free(f.names);
    local_close(&f.l);
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
        double f = op_flops(ctx), ms = costs ? costs[i].ms / n : 0;
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
        json_put_f64(&out, op_bytes(ctx));
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

int cli_local_bench(struct cli *c)
{
    struct yk_diag why = {0};
    struct local l = {0};
    struct tensor *in = NULL, *outputs = NULL;
    struct node_cost *costs = NULL;
    double *times = NULL;
    struct yk_rng rng;
    yk_rng_seed(&rng, 1);
    yk_err err = local_open(c, c->args.at[0], &l, &why);
    if (!err && l.batch_dim < 0)
        c->o.batch = l.fixed_batch;
    if (err || (err = local_load(&l, c->o.batch, &why)) || (err = local_outputs_alloc(&l, l.sizes, &outputs, &why)))
        goto out;
    const struct memplan *plan = exec_plan(l.exec);
    in = yk_xalloc(((size_t)plan->n_in + 1) * sizeof *in);
    for (int32_t i = 0; i < plan->n_in; i++) {
        in[i].shape = exec_max_shapes(l.exec)->of[plan->in[i]];
        size_t bytes = (size_t)tensor_bytes(&in[i]);
        in[i].data = yk_try_aligned(bytes + 1);
        if (!in[i].data) {
            err = yk_fail(&why, YK_NOMEM, "no memory for the inputs");
            goto out;
        }
        memset(in[i].data, 0, bytes);
        for (int64_t k = 0; in[i].shape.dtype == DT_F32 && k < tensor_count(&in[i]); k++)
            ((float *)in[i].data)[k] = (float)(yk_rng_unit(&rng) * 2 - 1);
    }
    for (int i = 0; i < 2 && !err; i++)
        err = exec_run(l.exec, l.sizes, in, outputs, 0, &why);
    if (err)
        goto out;
    if (c->o.ops) {
        costs = yk_xalloc(((size_t)l.graph->n_nodes + 1) * sizeof *costs);
        exec_trace(l.exec, on_node, costs);
    }
    int n = (int)c->o.repeat;
    times = yk_xalloc((size_t)n * sizeof *times);
    for (int i = 0; i < n && !err; i++) {
        double start = now_ms();
        err = exec_run(l.exec, l.sizes, in, outputs, 0, &why);
        times[i] = now_ms() - start;
    }
    if (err)
        goto out;
    qsort(times, (size_t)n, sizeof *times, by_value);
    bench_report(c, &l, times, n, costs);
out:
    for (int32_t i = 0; l.exec && in && i < exec_plan(l.exec)->n_in; i++)
        free(in[i].data);
    for (int32_t i = 0; l.exec && outputs && i < exec_plan(l.exec)->n_out; i++)
        free(outputs[i].data);
    free(in);
    free(outputs);
    free(costs);
    free(times);
    local_close(&l);
    return err ? cli_fail(err, &why) : CLI_DONE;
}
