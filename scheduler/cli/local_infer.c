/* `yoke local infer` and `yoke local bench`. */
#include "scheduler/cli/local.h"

#include "common/npy.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define INPUT_LIMIT ((size_t)4 << 30)

static double now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

/* ---- infer ---- */

/* Sizes of the named dims from the input's own shape; every declared number must agree. */
static yk_err sizes_from_input(struct local *l, const struct shape *got, struct yk_diag *why)
{
    const struct value *v = &l->graph->values[l->graph->inputs[0]];
    char text[128];
    shape_text(got, text, sizeof text);
    if (v->dtype != got->dtype)
        return yk_fail(why, YK_INVAL, "input '%s' takes %s, the file has %s", v->name, dtype_name(v->dtype), text);
    if (v->rank < 0)
        return YK_OK;
    if (v->rank != got->rank)
        return yk_fail(why, YK_INVAL, "input '%s' takes %d dimensions, the file has %s", v->name, v->rank, text);
    for (int i = 0; i < v->rank; i++) {
        int32_t sym = v->dims[i].sym;
        if (sym >= 0)
            l->sizes[sym] = got->dims[i];
        else if (v->dims[i].value >= 0 && v->dims[i].value != got->dims[i])
            return yk_fail(why, YK_INVAL, "dimension %d of input '%s' is %" PRId64 ", the file has %s", i, v->name,
                v->dims[i].value, text);
    }
    return YK_OK;
}

static yk_err write_npy(const char *path, const struct tensor *t, struct yk_diag *why)
{
    struct yk_buf file = {0};
    yk_err err = npy_header(&t->shape, &file);
    yk_buf_add(&file, t->data, (size_t)tensor_bytes(t));
    if (!err && file.failed)
        err = yk_fail(why, YK_NOMEM, "no memory to write %s", path);
    if (!err)
        err = cli_write_file(path, file.data, file.len, why);
    yk_buf_free(&file);
    return err;
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

int cli_local_infer(struct cli *c)
{
    struct yk_diag why = {0};
    struct local l = {0};
    struct tensor *outputs = NULL;
    uint8_t *file = NULL;
    void *aligned = NULL;
    size_t len = 0;
    struct npy npy;
    if (!c->o.input) {
        fprintf(stderr, "yoke: local infer needs --input=x.npy\n");
        return CLI_USAGE;
    }
    yk_err err = local_open(c, c->args.at[0], &l, &why);
    if (err)
        goto out;
    if (l.graph->n_inputs != 1) {
        err = yk_fail(&why, YK_UNSUPPORTED, "the model has %d inputs; one .npy gives one", l.graph->n_inputs);
        goto out;
    }
    if ((err = cli_read_file(c->o.input, INPUT_LIMIT, &file, &len, &why)) ||
        (err = npy_parse(file, len, (int64_t)len, &npy, &why)) || (err = sizes_from_input(&l, &npy.shape, &why)))
        goto out;
    aligned = yk_try_aligned((size_t)npy.bytes + 1);
    if (!aligned) {
        err = yk_fail(&why, YK_NOMEM, "no memory for the input");
        goto out;
    }
    memcpy(aligned, file + npy.offset, (size_t)npy.bytes);
    int64_t batch = l.batch_dim >= 0 ? l.sizes[l.batch_dim] : l.fixed_batch;
    if ((err = local_load(&l, batch, &why)) || (err = local_outputs_alloc(&l, l.sizes, &outputs, &why)))
        goto out;
    struct tensor in = {.shape = npy.shape, .data = aligned};
    double start = now_ms();
    if ((err = exec_run(l.exec, l.sizes, &in, outputs, 0, &why)))
        goto out;
    double ms = now_ms() - start;
    const struct memplan *plan = exec_plan(l.exec);
    for (int32_t i = 0; i < plan->n_out; i++) {
        print_output(c, l.graph->values[plan->out[i]].name, &outputs[i], ms);
        if (c->o.output && plan->out[i] == l.graph->outputs[0])
            err = write_npy(c->o.output, &outputs[i], &why);
    }
out:
    if (outputs) {
        for (int32_t i = 0; i < exec_plan(l.exec)->n_out; i++)
            free(outputs[i].data);
        free(outputs);
    }
    free(aligned);
    free(file);
    local_close(&l);
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
