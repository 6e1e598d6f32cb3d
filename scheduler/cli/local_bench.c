/* `yoke local bench`: times a model, and with --ops its nodes and kinds of nodes. */
#include "kernels/profile.h"
#include "scheduler/cli/local_infer.h"
#include "scheduler/cli/svg.h"
#include "scheduler/cli/table.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct node_cost {
    double ms;               /* sum over the traced runs */
    double begin_ms, end_ms; /* of the run that is traced now, since it began */
    char form[BACKEND_FORM_MAX];
};

struct bench {
    struct infer f;
    struct node_cost *costs, *best;    /* by node; best: as in the fastest run; NULL: not traced */
    double *times, start, peak_gflops; /* of a core; 0: not measured */
    int n;
};

static double now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

static void on_node(void *arg, int32_t node, const char *form, double ms)
{
    struct bench *b = arg;
    struct node_cost *cost = &b->costs[node];
    cost->ms += ms;
    cost->end_ms = now_ms() - b->start;
    cost->begin_ms = YK_MAX(cost->end_ms - ms, 0);
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

/* ---- what nodes of one op took together ---- */

struct class
{
    const struct op *op;
    int64_t nodes;
    double ms, flops, bytes;
};

static int by_ms(const void *a, const void *b)
{
    const struct class *x = a, *y = b;
    return x->ms > y->ms ? -1 : x->ms < y->ms ? 1 : strcmp(x->op->name, y->op->name);
}

/* Shares are of all cores that the pool has. */
static void put_speed(struct json_out *out, const struct bench *b, double flops, double ms)
{
    double gflops = ms > 0 ? flops / ms * 1e-6 : 0, peak = b->peak_gflops * pool_threads(b->f.l.pool);
    json_put_key(out, "gflops");
    json_put_f64(out, gflops);
    if (b->peak_gflops > 0) {
        json_put_key(out, "peak_frac");
        json_put_f64(out, gflops / peak);
    }
}

static void put_classes(struct json_out *out, const struct bench *b, const struct class *classes, int n)
{
    double all = 0;
    for (int i = 0; i < n; i++)
        all += classes[i].ms;
    json_open(out, '[');
    for (int i = 0; i < n; i++) {
        json_open(out, '{');
        json_put_key(out, "op");
        json_put_str(out, classes[i].op->name);
        json_put_key(out, "nodes");
        json_put_i64(out, classes[i].nodes);
        json_put_key(out, "ms");
        json_put_f64(out, classes[i].ms);
        json_put_key(out, "share_frac");
        json_put_f64(out, all > 0 ? classes[i].ms / all : 0);
        put_speed(out, b, classes[i].flops, classes[i].ms);
        json_put_key(out, "bytes");
        json_put_f64(out, classes[i].bytes);
        json_close(out, '}');
    }
    json_close(out, ']');
}

static void put_node(struct json_out *out, const struct bench *b, int32_t i, double ms, double flops, double bytes)
{
    const struct node *node = &b->f.l.graph->nodes[i];
    json_open(out, '{');
    json_put_key(out, "node");
    json_put_i64(out, i);
    json_put_key(out, "name");
    json_put_str(out, node->name);
    json_put_key(out, "op");
    json_put_str(out, node->op->name);
    json_put_key(out, "form");
    json_put_str(out, b->costs[i].form);
    json_put_key(out, "ms");
    json_put_f64(out, ms);
    put_speed(out, b, flops, ms);
    json_put_key(out, "flops");
    json_put_f64(out, flops);
    json_put_key(out, "bytes");
    json_put_f64(out, bytes);
    json_close(out, '}');
}

/* Nodes into `nodes` and their kinds into `classes` (NULL: not wanted); returns all FLOPs. */
static double put_nodes(const struct bench *b, struct json_out *nodes, struct json_out *classes)
{
    const struct local *l = &b->f.l;
    const struct shapes *shapes = exec_max_shapes(l->exec);
    struct op_ctx *ctx = yk_xalloc(sizeof *ctx);
    struct class *list = yk_xalloc(((size_t)l->graph->n_nodes + 1) * sizeof *list);
    double all = 0;
    int n = 0;
    if (nodes)
        json_open(nodes, '[');
    for (int32_t i = 0; i < l->graph->n_nodes; i++) {
        shapes_node(l->graph, shapes, i, ctx);
        bool known = shapes_known(ctx);
        double flops = known ? op_flops(ctx) : 0, bytes = known ? op_bytes(ctx) : 0;
        all += flops;
        if (!nodes)
            continue;
        double ms = b->costs[i].ms / b->n;
        int k = 0;
        while (k < n && list[k].op != l->graph->nodes[i].op)
            k++;
        n = YK_MAX(n, k + 1);
        list[k].op = l->graph->nodes[i].op;
        list[k].nodes++;
        list[k].ms += ms;
        list[k].flops += flops;
        list[k].bytes += bytes;
        put_node(nodes, b, i, ms, flops, bytes);
    }
    if (nodes) {
        json_close(nodes, ']');
        qsort(list, (size_t)n, sizeof *list, by_ms);
        put_classes(classes, b, list, n);
    }
    free(list);
    free(ctx);
    return all;
}

static yk_err print_rows(const struct yk_buf *text, struct yk_diag *why)
{
    struct json *rows = NULL;
    yk_err err = json_parse((const char *)text->data, text->len, &rows, why);
    if (!err)
        table_print(rows, NULL, "no nodes", stdout);
    if (!err)
        printf("\n");
    json_free(rows);
    return err;
}

static yk_err report(struct cli *c, struct bench *b, struct yk_diag *why)
{
    const struct local *l = &b->f.l;
    double median = b->times[b->n / 2];
    struct yk_buf nodes = {0}, classes = {0}, buf = {0};
    struct json_out node_rows, class_rows, out;
    json_out_init(&node_rows, &nodes, 0);
    json_out_init(&class_rows, &classes, 0);
    json_out_init(&out, &buf, 0);
    double flops = put_nodes(b, c->o.ops ? &node_rows : NULL, c->o.ops ? &class_rows : NULL);
    const struct {
        const char *key;
        double value;
    } sums[] = {{"batch", (double)c->o.batch}, {"threads", pool_threads(l->pool)}, {"ms", median},
        {"min_ms", b->times[0]}, {"max_ms", b->times[b->n - 1]}, {"gflops", flops / median * 1e-6},
        {"peak_gflops", b->peak_gflops * pool_threads(l->pool)},
        {"memory_bytes", (double)exec_plan(l->exec)->total_bytes}};
    json_open(&out, '{');
    for (size_t i = 0; i < YK_COUNT(sums); i++) {
        if (!strcmp(sums[i].key, "peak_gflops") && b->peak_gflops <= 0)
            continue;
        json_put_key(&out, sums[i].key);
        json_put_f64(&out, sums[i].value);
    }
    json_close(&out, '}');
    yk_err err = nodes.failed || classes.failed || buf.failed ? yk_fail(why, YK_NOMEM, "no memory") : YK_OK;
    if (!err && c->o.json) {
        printf("{");
        if (c->o.ops)
            printf("\"nodes\":%.*s,\"classes\":%.*s,", (int)nodes.len, (const char *)nodes.data, (int)classes.len,
                (const char *)classes.data);
        printf("%.*s\n", (int)buf.len - 1, (const char *)buf.data + 1);
    } else if (!err) {
        if (c->o.ops && !(err = print_rows(&nodes, why)))
            err = print_rows(&classes, why);
        printf("%s  batch %" PRId64
               "  threads %d  median %.3f ms  (min %.3f, max %.3f, %d runs)  %.1f GFLOP/s  %.1f MB\n",
            c->args.at[0], c->o.batch, pool_threads(l->pool), median, b->times[0], b->times[b->n - 1], b->n,
            flops / median * 1e-6, (double)exec_plan(l->exec)->total_bytes / 1e6);
    }
    yk_buf_free(&nodes);
    yk_buf_free(&classes);
    yk_buf_free(&buf);
    return err;
}

/* ---- the timeline ---- */

static int32_t find_text(const char **list, int32_t *n, const char *text)
{
    int32_t i = 0;
    while (i < *n && strcmp(list[i], text) != 0)
        i++;
    if (i == *n)
        list[(*n)++] = text;
    return i;
}

/* The fastest run: a row for each kind of node, a colour for each form. */
static yk_err draw(struct cli *c, struct bench *b, struct yk_diag *why)
{
    const struct graph *g = b->f.l.graph;
    const struct shapes *shapes = exec_max_shapes(b->f.l.exec);
    size_t n = (size_t)g->n_nodes + 1;
    const char **rows = yk_xalloc(n * sizeof *rows), **kinds = yk_xalloc(n * sizeof *kinds);
    char(*about)[320] = yk_xalloc(n * sizeof *about);
    struct svg_span *spans = yk_xalloc(n * sizeof *spans);
    struct op_ctx *ctx = yk_xalloc(sizeof *ctx);
    struct svg_timeline t = {.rows = rows, .kinds = kinds, .spans = spans};
    char *title = yk_xasprintf("%s: batch %" PRId64 ", %d threads, %.2f ms", c->args.at[0], c->o.batch,
        pool_threads(b->f.l.pool), b->times[0]);
    t.title = title;
    for (int32_t i = 0; i < g->n_nodes; i++) {
        const struct node_cost *cost = &b->best[i];
        char shape[128] = "";
        if (!cost->form[0])
            continue;
        shapes_node(g, shapes, i, ctx);
        bool known = shapes_known(ctx);
        double ms = cost->end_ms - cost->begin_ms;
        if (known && ctx->n_out > 0 && ctx->out[0].dtype != DT_NONE)
            shape_text(&ctx->out[0], shape, sizeof shape);
        snprintf(about[i], sizeof about[i], "node %d, %s %s\n%.1f GFLOP/s, %.2f MB", (int)i, cost->form, shape,
            known && ms > 0 ? op_flops(ctx) / ms * 1e-6 : 0, known ? op_bytes(ctx) / 1e6 : 0);
        spans[t.n_spans++] = (struct svg_span){find_text(rows, &t.n_rows, g->nodes[i].op->name),
            find_text(kinds, &t.n_kinds, cost->form), cost->begin_ms, cost->end_ms, g->nodes[i].name, about[i]};
    }
    yk_err err = svg_write(c->o.timeline, &t, why);
    free(title);
    free(rows);
    free(kinds);
    free(about);
    free(spans);
    free(ctx);
    return err;
}

/* ---- running ---- */

/* Without files: inputs between -1 and 1, integers 0, at --batch and --size. */
static yk_err make_inputs(struct cli *c, struct infer *f, struct yk_diag *why)
{
    struct local *l = &f->l;
    struct yk_rng rng;
    yk_rng_seed(&rng, 1);
    if (l->batch_dim < 0 && c->o.batch > 1 && c->o.batch != l->fixed_batch)
        return yk_fail(why, YK_INVAL, "--batch=%" PRId64 ": the model's batch is fixed: it takes %" PRId64 " at a time",
            c->o.batch, l->fixed_batch);
    if (l->batch_dim < 0)
        c->o.batch = l->fixed_batch;
    yk_err err = local_all_given(l, why);
    if (err || (err = local_load(l, c->o.batch, why)))
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

static yk_err run_once(struct bench *b, double *ms, struct yk_diag *why)
{
    const struct graph *g = b->f.l.graph;
    struct dyn_value **out = yk_xalloc(((size_t)g->n_outputs + 1) * sizeof(struct dyn_value *));
    b->start = now_ms();
    yk_err err = exec_run_values(b->f.l.exec, b->f.l.sizes, b->f.args, out, 0, why);
    *ms = now_ms() - b->start;
    for (int32_t i = 0; i < g->n_outputs; i++)
        dyn_unref(out[i]);
    free(out);
    return err;
}

static yk_err run_all(struct cli *c, struct bench *b, struct yk_diag *why)
{
    double warm, least = 0;
    size_t bytes = ((size_t)b->f.l.graph->n_nodes + 1) * sizeof *b->costs;
    yk_err err = YK_OK;
    for (int i = 0; i < 2 && !err; i++)
        err = run_once(b, &warm, why);
    if (c->o.ops || c->o.timeline) {
        b->costs = yk_xalloc(bytes);
        b->best = yk_xalloc(bytes);
        b->peak_gflops = profile_peak_gflops();
        exec_trace(b->f.l.exec, on_node, b);
    }
    b->n = (int)c->o.repeat;
    b->times = yk_xalloc((size_t)b->n * sizeof *b->times);
    for (int i = 0; i < b->n && !err; i++) {
        err = run_once(b, &b->times[i], why);
        if (b->costs && (i == 0 || b->times[i] < least)) {
            least = b->times[i];
            memcpy(b->best, b->costs, bytes);
        }
    }
    if (!err)
        qsort(b->times, (size_t)b->n, sizeof *b->times, by_value);
    return err;
}

/* Before anything takes time. What is there stays; a file that is not there is empty until the timeline is drawn. */
static yk_err check_timeline(const char *path, struct yk_diag *why)
{
    FILE *f = path ? fopen(path, "ab") : NULL;
    if (path && !f)
        return yk_fail(why, YK_IO, "--timeline: cannot write %s: %s", path, strerror(errno));
    if (f)
        fclose(f);
    return YK_OK;
}

int cli_local_bench(struct cli *c)
{
    struct yk_diag why = {0};
    struct bench b = {0};
    yk_err err = local_open(c, c->args.at[0], &b.f.l, &why);
    if (!err)
        err = c->o.inputs.n ? local_infer_load(c, &b.f, &why) : make_inputs(c, &b.f, &why);
    if (!err && c->o.inputs.n)
        c->o.batch = b.f.l.batch_dim >= 0 ? b.f.l.sizes[b.f.l.batch_dim] : b.f.l.fixed_batch;
    if (!err)
        err = check_timeline(c->o.timeline, &why);
    if (!err)
        err = run_all(c, &b, &why);
    if (!err)
        err = report(c, &b, &why);
    if (!err && c->o.timeline)
        err = draw(c, &b, &why);
    local_infer_fini(&b.f);
    free(b.costs);
    free(b.best);
    free(b.times);
    return err ? cli_fail(err, &why) : CLI_DONE;
}
