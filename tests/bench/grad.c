/* The gradients of convolutions held open for compare.py: reads how often to run all of them, a number a line, and
 * answers with the milliseconds of each run on one line. After the first run the gradients are in OUT.
 * Usage: bench_grad CONVS.txt THREADS X.bin OUT.bin   A line of CONVS is `n c h w oc kernel stride padding`; X.bin has
 * input, weights and gradient of the output of each convolution, OUT.bin the gradients of input and weights, all dense
 * NCHW f32, one behind the other. Weights vary, as in training. OPS=1 in the environment: milliseconds of each node. */
#include <time.h>

#include "tests/graphs.h"

#define CONVS_MAX 256

static double now_ms(void)
{
    struct timespec t;
    clock_gettime(getenv("CPU") ? CLOCK_PROCESS_CPUTIME_ID : CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

struct conv {
    int64_t n, c, h, w, oc, k, stride, pad;
    int32_t x, weight, dy, dx, dw;
};

static int32_t input(struct graph *g, const char *kind, int i, const int64_t *dims)
{
    char name[32];
    snprintf(name, sizeof(name), "%s%d", kind, i);
    int32_t id = graph_add_value(g, name, VALUE_INPUT, DT_F32);
    struct value *v = &g->values[id];
    v->rank = 4;
    v->dims = yk_arena_alloc(g->arena, 4, sizeof(*v->dims));
    for (int k = 0; k < 4; k++)
        v->dims[k] = (struct dim){.value = dims[k], .sym = -1};
    g->inputs[g->n_inputs++] = id;
    return id;
}

static int32_t output(struct graph *g, const char *kind, int i)
{
    char name[32];
    snprintf(name, sizeof(name), "%s%d", kind, i);
    g->outputs[g->n_outputs] = graph_add_value(g, name, VALUE_NODE, DT_NONE);
    return g->outputs[g->n_outputs++];
}

static void node(struct graph *g, struct conv *v, const char *op, const int32_t *in, int n_in, int32_t out)
{
    int64_t pads[4] = {v->pad, v->pad, v->pad, v->pad}, two[2] = {v->stride, v->stride}, kernel[2] = {v->k, v->k};
    char name[64];
    snprintf(name, sizeof(name), "%s %lldx%lldx%lld->%lld k%lld s%lld", op, (long long)v->c, (long long)v->h,
        (long long)v->w, (long long)v->oc, (long long)v->k, (long long)v->stride);
    int32_t index = graph_add_node(g, name, op_find("ai.yoke", op), in, n_in, &out, 1);
    struct node *n = &g->nodes[index];
    graph_set_attr_ints(g, n, "pads", pads, 4);
    graph_set_attr_ints(g, n, "strides", two, 2);
    graph_set_attr_ints(g, n, "kernel_shape", kernel, 2);
}

static void add(struct graph *g, struct conv *v, int i)
{
    int64_t oh = (v->h + 2 * v->pad - v->k) / v->stride + 1, ow = (v->w + 2 * v->pad - v->k) / v->stride + 1;
    struct shape w = {.dtype = DT_F32, .rank = 4, .dims = {v->oc, v->c, v->k, v->k}};
    struct shape list = {.dtype = DT_I64, .rank = 1, .dims = {4}};
    int64_t *x = graph_alloc_data(g, 4 * sizeof(*x));
    char name[32];
    memcpy(x, (int64_t[]){v->n, v->c, v->h, v->w}, 4 * sizeof(*x));
    v->x = input(g, "x", i, x);
    v->dy = input(g, "dy", i, (int64_t[]){v->n, v->oc, oh, ow});
    snprintf(name, sizeof(name), "w%d", i);
    v->weight = graph_add_weight(g, name, &w, graph_alloc_data(g, shape_bytes(&w)));
    snprintf(name, sizeof(name), "shape%d", i);
    int32_t shape = graph_add_weight(g, name, &list, x);
    v->dx = output(g, "dx", i);
    v->dw = output(g, "dw", i);
    node(g, v, "ConvGradInput", (int32_t[]){v->dy, v->weight, shape}, 3, v->dx);
    node(g, v, "ConvGradWeight", (int32_t[]){v->x, v->dy}, 2, v->dw);
}

static struct tensor *find(struct graphs_io *io, const struct exec *e, int32_t value)
{
    const struct memplan *m = exec_plan(e);
    for (int32_t i = 0; i < m->n_in; i++)
        if (m->in[i] == value)
            return &io->in[i];
    for (int32_t i = 0; i < m->n_out; i++)
        if (m->out[i] == value)
            return &io->out[i];
    return NULL;
}

static int move(FILE *f, bool in, void *data, int64_t bytes)
{
    return (in ? fread(data, 1, (size_t)bytes, f) : fwrite(data, 1, (size_t)bytes, f)) != (size_t)bytes;
}

static void on_node(void *arg, int32_t n, const char *form, double ms)
{
    fprintf(stderr, "%8.3f ms  %s  %s\n", ms, ((struct graph *)arg)->nodes[n].name, form);
}

int main(int argc, char **argv)
{
    static struct conv convs[CONVS_MAX];
    struct yk_diag why = {""};
    struct pool *pool;
    struct backends b;
    struct exec *e;
    struct graphs_io io;
    int n = 0, bad = 0;
    if (argc != 5) {
        fprintf(stderr, "usage: %s CONVS.txt THREADS X.bin OUT.bin\n", argv[0]);
        return 2;
    }
    struct graph *g = graph_open(0);
    g->inputs = yk_arena_alloc(g->arena, 2 * CONVS_MAX, sizeof(*g->inputs));
    g->outputs = yk_arena_alloc(g->arena, 2 * CONVS_MAX, sizeof(*g->outputs));
    FILE *f = fopen(argv[1], "r");
    long long v[8];
    while (f && n < CONVS_MAX &&
           fscanf(f, "%lld%lld%lld%lld%lld%lld%lld%lld", &v[0], &v[1], &v[2], &v[3], &v[4], &v[5], &v[6], &v[7]) == 8) {
        convs[n] = (struct conv){v[0], v[1], v[2], v[3], v[4], v[5], v[6], v[7], 0, 0, 0, 0, 0};
        add(g, &convs[n], n);
        n++;
    }
    if (!n) {
        fprintf(stderr, "%s: no convolutions\n", argv[1]);
        return 1;
    }
    fclose(f);
    f = fopen(argv[3], "rb");
    void **vary = yk_xalloc((size_t)g->n_values * sizeof(*vary));
    for (int i = 0; i < n; i++)
        vary[convs[i].weight] = (void *)(uintptr_t)g->values[convs[i].weight].data;
    struct exec_config c = {.graph = g, .backends = &b, .variable = vary};
    if (!f || pool_open(atoi(argv[2]), &pool, &why) || backends_open("auto", pool, &b, &why) ||
        exec_open(&c, &e, &why) || graphs_io_init(&io, e, NULL, &why)) {
        fprintf(stderr, "%s: %s\n", argv[1], why.text);
        return 1;
    }
    for (int i = 0; i < n && !bad; i++) {
        const struct value *w = &g->values[convs[i].weight];
        const struct tensor *x = find(&io, e, convs[i].x), *dy = find(&io, e, convs[i].dy);
        bad = move(f, true, x->data, tensor_bytes(x)) || move(f, true, (void *)(uintptr_t)w->data, w->bytes) ||
              move(f, true, dy->data, tensor_bytes(dy));
    }
    fclose(f);
    if (bad) {
        fprintf(stderr, "%s: too short\n", argv[3]);
        return 1;
    }
    char line[64];
    if (getenv("OPS"))
        exec_trace(e, on_node, g);
    for (bool first = true; fgets(line, sizeof(line), stdin); first = false) {
        for (int k = atoi(line); k > 0; k--) {
            double before = now_ms();
            if (exec_run(e, NULL, io.in, io.out, 0, &why)) {
                fprintf(stderr, "%s: %s\n", argv[1], why.text);
                return 1;
            }
            printf("%.4f%s", now_ms() - before, k > 1 ? " " : "\n");
        }
        f = first ? fopen(argv[4], "wb") : NULL;
        for (int i = 0; f && i < n; i++) {
            struct tensor *dx = find(&io, e, convs[i].dx), *dw = find(&io, e, convs[i].dw);
            bad |= move(f, false, dx->data, tensor_bytes(dx)) || move(f, false, dw->data, tensor_bytes(dw));
        }
        if (first && (!f || fclose(f) || bad)) {
            fprintf(stderr, "%s: cannot write it\n", argv[4]);
            return 1;
        }
        fflush(stdout);
    }
    free(vary);
    graphs_io_fini(&io);
    exec_close(e);
    backends_close(&b);
    pool_close(pool);
    graph_close(g);
    return 0;
}
