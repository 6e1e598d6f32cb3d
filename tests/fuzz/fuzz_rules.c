/* Single nodes with anything for inputs and attributes: templates of every op, with types, sizes, contents and
 * attributes changed. The rule refuses, or the node runs in every backend inside of its tensors, which have exactly the
 * bytes that the rule said. Also: what a rule says without contents it still says with them; sizes beyond memory are
 * refused or counted without overflow by rule, cost and forms. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/node_run.h"
#include "tests/op_gen.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Memory beyond the machine's is no finding: NULL is an answer. */
const char *__asan_default_options(void);
const char *__asan_default_options(void)
{
    return "allocator_may_return_null=1:max_allocation_size_mb=1024";
}

enum { OUTS = 5, LARGEST = 1 << 16, INS = GEN_IN_MAX + 1 };
static const double most_flops = 3e6;

struct attack {
    struct gen c;
    const struct op *op;
    struct tensor in[INS]; /* dtype DT_NONE: absent */
    bool weight[INS];
    int n_in, n_out;
    struct graph *g;
    int32_t inputs[INS], outputs[OUTS];
};

static struct pool *pool;
static struct backends ref, with[3];
static const char *const specs[] = {"simd", "blas", "auto"};
static long cases, refused, ran, failed;

static void report(void)
{
    fprintf(stderr, "%ld nodes: %ld refused by the rule, %ld run, of which %ld ended with an error\n", cases, refused,
        ran, failed);
}

static void setup(void)
{
    if (pool_open(1, &pool, NULL) || backends_open("ref", pool, &ref, NULL))
        abort();
    for (size_t k = 0; k < YK_COUNT(specs); k++)
        if (backends_open(specs[k], pool, &with[k], NULL))
            abort();
    if (getenv("YOKE_COUNT"))
        atexit(report);
}

/* ---- making a node ---- */

static int64_t odd_number(struct gen *c)
{
    static const int64_t odd[] = {0, 1, -1, 2, -2, 3, 4, 5, 7, 8, 9, 16, 17, 31, 32, 33, 63, 64, 65, 127, -128, 255,
        256, 1000, 65535, 65536, INT32_MAX, INT32_MIN, (int64_t)1 << 31, (int64_t)1 << 32, (int64_t)1 << 40,
        (int64_t)1 << 62, INT64_MAX, INT64_MIN, INT64_MAX - 1, INT64_MIN + 1, -3, -4, -5, -9};
    return odd[gen_pick(c, 0, (int64_t)YK_COUNT(odd) - 1)];
}

static void change_shape(struct gen *c, struct shape *s)
{
    switch (gen_pick(c, 0, 5)) {
    case 0:
        s->dtype = (enum dtype)gen_pick(c, DT_F32, DT_BOOL);
        break;
    case 1:
        if (s->rank < YK_MAX_RANK)
            s->dims[s->rank++] = gen_pick(c, 0, 3);
        break;
    case 2:
        if (s->rank > 0)
            s->rank--;
        break;
    case 3:
        s->rank = (int)gen_pick(c, 0, 3);
        for (int k = 0; k < s->rank; k++)
            s->dims[k] = gen_pick(c, 0, 4);
        break;
    default:
        if (s->rank > 0)
            s->dims[gen_pick(c, 0, s->rank - 1)] = gen_pick(c, 0, 9);
        break;
    }
}

static void change_contents(struct gen *c, struct tensor *t)
{
    static const double odd[] = {0, -1, 1, 0.5, 1e30, -1e30, NAN, INFINITY, -INFINITY, 1e-30, 65536, 4294967296.0, 3};
    for (int64_t i = 0, n = YK_MIN(tensor_count(t), 16); i < n; i++) {
        int64_t v = odd_number(c);
        double d = odd[gen_pick(c, 0, (int64_t)YK_COUNT(odd) - 1)];
        if (gen_pick(c, 0, 1))
            continue;
        if (dtype_is_float(t->shape.dtype))
            ref_store_d(t->data, t->shape.dtype, i, 1, &d, 1);
        else
            ref_store_i(t->data, t->shape.dtype, i, 1, &v, 1);
    }
}

static void change_input(struct gen *c, struct tensor *t)
{
    if (gen_pick(c, 0, 7) == 7) {
        free(t->data);
        *t = (struct tensor){.shape = {.dtype = DT_NONE}};
        return;
    }
    if (t->shape.dtype == DT_NONE)
        t->shape = (struct shape){.dtype = c->t, .rank = 0};
    else if (gen_pick(c, 0, 1)) {
        change_contents(c, t);
        return;
    }
    change_shape(c, &t->shape);
    free(t->data);
    t->data = yk_try_aligned((size_t)shape_bytes(&t->shape));
    if (!t->data)
        abort();
    gen_fill(c, t, NULL);
}

static void change_attr(struct gen *c, struct attr *a)
{
    static const float odd[] = {0, -1, 1, 0.5f, 1e30f, -1e30f, 1e-30f, 4294967296.0f, NAN, INFINITY, -INFINITY};
    int64_t *ints = yk_arena_alloc(c->g->arena, 16, sizeof *ints);
    switch (gen_pick(c, 0, 3)) {
    case 0:
        a->kind = (enum attr_kind)gen_pick(c, ATTR_INT, ATTR_FLOATS);
        a->s = a->s ? a->s : "none";
        a->n = a->ints && a->floats ? a->n : 0;
        break;
    case 1: /* a list of another length */
        a->n = (size_t)gen_pick(c, 0, 8);
        a->floats = yk_arena_alloc(c->g->arena, 16, sizeof *a->floats);
        for (size_t k = 0; k < a->n; k++)
            ints[k] = gen_pick(c, 0, 3);
        a->ints = ints;
        break;
    default:
        a->i = odd_number(c);
        a->f = odd[gen_pick(c, 0, (int64_t)YK_COUNT(odd) - 1)];
        if (a->kind == ATTR_INTS && a->n > 0 && a->n <= 16) {
            memcpy(ints, a->ints, a->n * sizeof *ints);
            ints[gen_pick(c, 0, (int64_t)a->n - 1)] = gen_pick(c, 0, 1) ? a->i : gen_pick(c, -3, 9);
            a->ints = ints;
        }
        break;
    }
}

static void add_attr(struct attack *a)
{
    static const char *const names[] = {"axis", "axes", "group", "pads", "strides", "dilations", "kernel_shape",
        "auto_pad", "output_padding", "output_shape", "ceil_mode", "storage_order", "count_include_pad", "keepdims",
        "p", "perm", "blocksize", "batch_dims", "to", "dtype", "shape", "value_int", "hidden_size", "direction",
        "layout", "clip", "batch_axis", "time_axis", "epsilon", "alpha", "sampling_ratio", "spatial_scale",
        "num_outputs", "k", "coordinate_transformation_mode", "nearest_mode", "exclude_outside", "cubic_coeff_a",
        "onesided", "inverse", "seed", "sample_size", "size", "activations", "stash_type", "allowzero", "start", "end",
        "reduction", "mode"};
    static const char *const words[] = {"", "SAME_UPPER", "SAME_LOWER", "VALID", "NOTSET", "bidirectional", "reverse",
        "align_corners", "asymmetric", "tf_crop_and_resize", "reflect", "edge", "wrap", "mean", "sum", "none", "max"};
    struct gen *c = &a->c;
    struct node *n = &a->g->nodes[0];
    const char *name = names[gen_pick(c, 0, (int64_t)YK_COUNT(names) - 1)];
    int64_t ints[8], count = gen_pick(c, 0, 6);
    switch (gen_pick(c, 0, 3)) {
    case 0:
        graph_set_attr_s(a->g, n, name, words[gen_pick(c, 0, (int64_t)YK_COUNT(words) - 1)]);
        break;
    case 1:
        for (int64_t k = 0; k < count; k++)
            ints[k] = gen_pick(c, 0, 3) ? gen_pick(c, -2, 4) : odd_number(c);
        graph_set_attr_ints(a->g, n, name, ints, (size_t)count);
        break;
    default:
        graph_set_attr_i(a->g, n, name, gen_pick(c, 0, 1) ? gen_pick(c, -2, 4) : odd_number(c));
        break;
    }
}

static void make_node(struct attack *a, const struct op_template *t)
{
    struct gen *c = &a->c;
    int32_t ids[INS];
    char name[16];
    for (int k = 0; k < a->n_in; k++) {
        const struct shape *s = &a->in[k].shape;
        ids[k] = YK_ABSENT;
        if (s->dtype == DT_NONE)
            continue;
        snprintf(name, sizeof name, "i%d", k);
        if (a->weight[k]) {
            ids[k] = graph_add_weight(a->g, name, s, a->in[k].data);
            continue;
        }
        ids[k] = graph_add_value(a->g, name, VALUE_INPUT, s->dtype);
        struct value *v = &a->g->values[ids[k]];
        v->rank = s->rank;
        v->dims = yk_arena_alloc(a->g->arena, (size_t)s->rank + 1, sizeof *v->dims);
        for (int i = 0; i < s->rank; i++)
            v->dims[i] = (struct dim){.value = s->dims[i], .sym = -1};
        a->inputs[a->g->n_inputs++] = ids[k];
    }
    for (int k = 0; k < a->n_out; k++) {
        snprintf(name, sizeof name, "o%d", k);
        a->outputs[k] = graph_add_value(a->g, name, VALUE_NODE, DT_NONE);
    }
    a->g->inputs = a->inputs;
    a->g->outputs = a->outputs;
    a->g->n_outputs = a->n_out;
    if (graph_add_node(a->g, "n", a->op, ids, a->n_in, a->outputs, a->n_out) < 0)
        abort();
    struct node *n = &a->g->nodes[0];
    c->g = a->g;
    gen_attrs(c, n, t->attrs);
    for (int k = 0; k < n->n_attr; k++)
        if (gen_pick(c, 0, 3) == 3)
            change_attr(c, &n->attr[k]);
    if (gen_pick(c, 0, 2) == 2)
        add_attr(a);
}

static bool draw(struct attack *a)
{
    const struct op_template *list[16];
    struct gen *c = &a->c;
    a->op = op_at((int)gen_pick(c, 0, op_count() - 1));
    int n = a->op->flags & (OP_CONTROL | OP_VALUES) ? 0 : gen_templates(a->op, list, 16);
    if (!n)
        return false;
    const struct op_template *t = list[gen_pick(c, 0, n - 1)];
    memset(c->size, -1, sizeof c->size);
    c->star.rank = (int)gen_pick(c, 0, 4);
    for (int k = 0; k < c->star.rank; k++)
        c->star.dims[k] = gen_size(c, (char)((k % 2 ? 'A' : 'a') + 20 + k));
    for (int i = 0; i < GEN_IN_MAX && t->in[i]; i++)
        gen_input(c, t->in[i]);
    (void)gen_type(c, "T", 1);
    a->n_in = c->n_in;
    a->n_out = t->n_out;
    memcpy(a->in, c->in, sizeof c->in);
    memcpy(a->weight, c->weight, sizeof c->weight);
    for (int i = 0; i < a->n_in; i++)
        if (gen_pick(c, 0, 3) == 3)
            change_input(c, &a->in[i]);
    int64_t arity = gen_pick(c, 0, 15);
    if (arity == 15 && a->n_in < INS)
        change_input(c, &a->in[a->n_in++]);
    if (arity == 14 && a->n_in > 0)
        free(a->in[--a->n_in].data);
    if (gen_pick(c, 0, 15) == 15)
        a->n_out = (int)gen_pick(c, 1, OUTS);
    make_node(a, t);
    return true;
}

/* ---- what must hold ---- */

static void complain(const struct attack *a, const char *what, const char *who)
{
    char text[128];
    const struct node *n = &a->g->nodes[0];
    fprintf(stderr, "%s: %s, %s\n", n->op->name, what, who);
    for (int k = 0; k < a->n_in; k++) {
        shape_text(&a->in[k].shape, text, sizeof text);
        fprintf(stderr, "  in %d: %s%s\n", k, text, a->weight[k] ? ", weight" : "");
    }
    for (int k = 0; k < n->n_attr; k++) {
        const struct attr *t = &n->attr[k];
        fprintf(stderr, "  %s: kind %d, %lld, %g, %s, %zu:", t->name, (int)t->kind, (long long)t->i, (double)t->f,
            t->kind == ATTR_STRING ? t->s : "-", t->n);
        for (size_t i = 0; t->kind == ATTR_INTS && i < t->n; i++)
            fprintf(stderr, " %lld", (long long)t->ints[i]);
        fprintf(stderr, "\n");
    }
    abort();
}

static bool small_enough(const struct op_ctx *c)
{
    for (int k = 0; k < c->n_out; k++) {
        int64_t count = shape_count(&c->out[k]);
        if ((count < 0 ? c->most[k] : count) > LARGEST)
            return false;
    }
    return op_flops(c) <= most_flops;
}

/* The rule where no contents are known, and where sizes are beyond memory. */
static void blind(struct attack *a, const struct op_ctx *seen, yk_err err)
{
    struct op_ctx *c = calloc(1, sizeof *c);
    struct shape huge[INS];
    struct backend_form forms[16];
    if (!c)
        abort();
    c->graph = a->g;
    c->node = &a->g->nodes[0];
    c->n_in = a->n_in;
    c->n_out = a->n_out;
    for (int k = 0; k < a->n_in; k++)
        c->in[k] = a->in[k].shape.dtype == DT_NONE ? NULL : &a->in[k].shape;
    if (op_infer(c) == YK_OK && err == YK_OK)
        for (int k = 0; k < a->n_out; k++)
            if (shape_count(&c->out[k]) >= 0 && shape_count(&seen->out[k]) >= 0 &&
                !shape_equal(&c->out[k], &seen->out[k]))
                complain(a, "another shape without contents", "rule");
    for (int k = 0; k < a->n_in; k++) {
        huge[k] = a->in[k].shape;
        if (!c->in[k])
            continue;
        for (int d = 0; d < huge[k].rank; d++)
            if (gen_pick(&a->c, 0, 3) == 3) {
                int64_t v = huge[k].dims[d] * gen_pick(&a->c, 1, 8) << gen_pick(&a->c, 0, 45);
                huge[k].dims[d] = v;
            }
        if (shape_bytes(&huge[k]) < 0)
            huge[k] = a->in[k].shape;
        c->in[k] = &huge[k];
    }
    if (op_infer(c) == YK_OK) {
        bool sized = true;
        for (int k = 0; k < a->n_out; k++)
            sized = sized && shape_count(&c->out[k]) >= 0;
        if (!(op_flops(c) >= 0) || !(op_bytes(c) >= 0))
            complain(a, "costs", "rule");
        for (size_t k = 0; k < YK_COUNT(specs) && sized; k++) {
            int n = backends_forms(&with[k], c, forms, 16);
            for (int i = 0; i < n; i++)
                if (forms[i].packed_bytes < 0 || forms[i].workspace_bytes < 0)
                    complain(a, "a form of negative size", forms[i].name);
        }
    }
    free(c);
}

/* By one kernel without packed weights, on blocks of exactly the bytes. */
static void run_kernel(struct attack *a, struct backend *b, const char *who, struct tensor *want, yk_err *end)
{
    struct node_run *r = node_run_open(1 << 26);
    struct backend_form form = {.packed_bytes = 0};
    struct yk_diag why;
    const struct host_kernel *k;
    if (!r || node_run_inputs(r, a->g, &a->g->nodes[0], a->in, &why) || !(k = host_kernel_of(b, &r->ctx, &form))) {
        node_run_close(r);
        return;
    }
    for (int i = 0; i < a->n_out; i++) {
        struct tensor *t = &r->call.out[i];
        t->shape = r->ctx.out[i];
        int64_t count = shape_count(&t->shape);
        size_t bytes = (size_t)(count < 0 ? r->ctx.most[i] : count) * dtype_bytes(t->shape.dtype);
        t->data = yk_try_aligned(bytes);
        if (!t->data)
            abort();
        memset(t->data, 0xa5, bytes);
    }
    yk_err err = node_run_kernel(r, k, &form, pool, 11, &why);
    ran++;
    failed += err != YK_OK;
    if (!want[0].data) {
        memcpy(want, r->call.out, (size_t)a->n_out * sizeof *want);
        *end = err;
        node_run_close(r);
        return;
    }
    if (err != *end)
        complain(a, err ? why.text : "no error", who);
    double scale = gen_scale(a->op, a->in, a->n_in);
    for (int i = 0; i < a->n_out; i++) {
        if (!err && scale < 1e36 && !(a->op->flags & OP_RANDOM) &&
            !gen_near(&r->call.out[i], &want[i], a->op, false, scale))
            complain(a, "not what ref gives", who);
        free(r->call.out[i].data);
    }
    node_run_close(r);
}

/* Through exec: packed weights, arenas, the device. */
static void run_exec(struct attack *a, size_t which, const struct tensor *want, yk_err end)
{
    static const int64_t no_sizes[1] = {1};
    struct exec_config config = {
        .graph = a->g, .max_sizes = no_sizes, .backends = &with[which], .heap_limit = 1 << 26, .step_limit = 1000};
    struct dyn_value *in[INS] = {NULL}, *out[OUTS] = {NULL};
    struct exec *e = NULL;
    struct yk_diag why = {0};
    yk_err err = exec_open(&config, &e, &why);
    if (err == YK_NOMEM && getenv("YOKE_VERBOSE"))
        complain(a, why.text, "exec");
    if (err == YK_NOMEM) /* a form that works on more than there is */
        goto out;
    for (int i = 0; i < a->g->n_inputs && !err; i++)
        err = dyn_borrow(NULL, &a->in[atoi(a->g->values[a->inputs[i]].name + 1)], &in[i], &why);
    err = err ? err : exec_run_values(e, no_sizes, in, out, 11, &why);
    if (err != end)
        complain(a, err ? why.text : "no error", specs[which]);
    double scale = gen_scale(a->op, a->in, a->n_in);
    for (int i = 0; i < a->n_out; i++) {
        if (!err && scale < 1e36 && !(a->op->flags & OP_RANDOM) &&
            !gen_near(&out[i]->tensor, &want[i], a->op, false, scale))
            complain(a, "exec: not what ref gives", specs[which]);
        dyn_unref(out[i]);
    }
out:
    for (int i = 0; i < a->g->n_inputs; i++)
        dyn_unref(in[i]);
    exec_close(e);
}

static void check(struct attack *a)
{
    struct node_run *r = node_run_open(1 << 26);
    struct yk_diag why;
    if (!r)
        abort();
    yk_err err = node_run_inputs(r, a->g, &a->g->nodes[0], a->in, &why);
    cases++;
    refused += err != YK_OK;
    blind(a, &r->ctx, err);
    if (!err && small_enough(&r->ctx)) {
        struct tensor want[OUTS] = {{.data = NULL}};
        run_kernel(a, ref.at[0], "ref", want, &err);
        if (!want[0].data)
            complain(a, "ref has no kernel", "ref");
        run_kernel(a, with[0].at[0], "simd", want, &err);
        run_kernel(a, with[1].at[0], "blas", want, &err);
        run_exec(a, (size_t)gen_pick(&a->c, 0, 2), want, err);
        for (int k = 0; k < a->n_out; k++)
            free(want[k].data);
    }
    node_run_close(r);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct attack *a = calloc(1, sizeof *a);
    if (!pool)
        setup();
    if (!a || !(a->g = graph_open(0)))
        abort();
    gen_begin(&a->c, data, size);
    a->c.plain = true;
    if (draw(a))
        check(a);
    for (int k = 0; k < a->n_in; k++)
        free(a->in[k].data);
    graph_close(a->g);
    free(a);
    return 0;
}
