/* Random valid graphs of 1 to 12 nodes, run by ref and by every other backend.
 * Each node has inputs of its op's template: an earlier value that fits, or a new one. Then, for each backend: a run,
 * the same run with every value as an output, and the run in two stages give the same bits; and every node gives what
 * ref makes of the very inputs it had (the same bits, if it ran in ref's form). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/op_gen.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { NODES = 12, VALUES = 192, OUTS = 64, LARGEST = 1 << 14, SEED = 11 };
static const double most_flops = 2e5;

/* ---- making a graph ---- */

struct build {
    struct gen c;
    struct graph *g;
    struct shapes s;
    struct tensor data[VALUES]; /* of inputs and weights, by value */
    int32_t inputs[VALUES], outputs[OUTS], taps[OUTS];
    int32_t n_taps, n_known; /* values with a shape in s */
};

static bool known(const struct shape *s)
{
    return s->rank >= 0 && shape_bytes(s) >= 0;
}

/* Whether a value of that shape can be the input that text asks for; what the template left open is then settled. */
static bool fits(struct gen *c, const char *text, const struct shape *s)
{
    text += *text == '?';
    const char *at = strchr(text, ':');
    if (*text == '!' || !at || strchr(at, '=') || s->dtype == DT_NONE)
        return false;
    size_t n = (size_t)(at - text);
    if (n == 1 && *text == 'T') {
        if (c->t != DT_NONE && c->t != s->dtype)
            return false;
        c->t = s->dtype;
    } else if (n == 1 && *text == 'U') {
        if (s->dtype != DT_I32 && s->dtype != DT_I64)
            return false;
    } else if (!(n == 1 && *text == 'V') && gen_type(c, text, n) != s->dtype) {
        return false;
    }
    at++;
    if (*at == '*') {
        if (c->star.rank >= 0)
            return false;
        c->star = *s;
        if (!known(s))
            c->star.rank = 0;
        return true;
    }
    if (!known(s))
        return false;
    if (*at == '~') {
        if (s->rank > c->star.rank)
            return false;
        for (int k = 0; k < s->rank; k++)
            if (s->dims[k] != 1 && s->dims[k] != c->star.dims[k + c->star.rank - s->rank])
                return false;
        return true;
    }
    int rank = 0;
    for (; *at; at += *at == ',', rank++) {
        char *end;
        int64_t v = *at >= '0' && *at <= '9' ? strtoll(at, &end, 10) : (end = (char *)(uintptr_t)at, 1);
        at = end;
        if (rank >= s->rank)
            return false;
        if (*at && *at != ',') {
            int64_t *size = &c->size[(unsigned char)*at++];
            if (*size < 0 && s->dims[rank] % v == 0)
                *size = s->dims[rank] / v;
            v *= *size;
        }
        if (s->dims[rank] != v)
            return false;
    }
    return rank == s->rank;
}

static int32_t earlier(struct build *b, const char *text)
{
    for (int tries = 0; tries < 5 && b->n_known; tries++) {
        int32_t v = b->n_known - 1 - (int32_t)gen_pick(&b->c, 0, YK_MIN(b->n_known, 48) - 1);
        struct gen before = b->c;
        if (b->g->values[v].kind != VALUE_WEIGHT && fits(&b->c, text, &b->s.of[v]))
            return v;
        before.bytes = b->c.bytes;
        before.left = b->c.left;
        before.r = b->c.r;
        b->c = before;
    }
    return YK_ABSENT;
}

/* A new input or weight; YK_ABSENT if the template has none. */
static int32_t fresh(struct build *b, const char *text)
{
    struct gen *c = &b->c;
    char name[16];
    c->n_in = c->n_in > 0; /* gen_input: the first one is special */
    int k = c->n_in;
    gen_input(c, text);
    struct tensor t = c->in[k];
    if (!t.data)
        return YK_ABSENT;
    snprintf(name, sizeof name, "v%d", b->g->n_values);
    int32_t v;
    if (c->weight[k]) {
        v = graph_add_weight(b->g, name, &t.shape, t.data);
    } else {
        v = graph_add_value(b->g, name, VALUE_INPUT, t.shape.dtype);
        struct value *value = &b->g->values[v];
        value->rank = t.shape.rank;
        value->dims = yk_arena_alloc(b->g->arena, (size_t)t.shape.rank + 1, sizeof *value->dims);
        for (int i = 0; i < t.shape.rank; i++)
            value->dims[i] = (struct dim){.value = t.shape.dims[i], .sym = -1};
        b->g->inputs[b->g->n_inputs++] = v;
    }
    b->data[v] = t;
    return v;
}

/* Not too much work; and where the sizes of its inputs depend on data, the rule takes the node with some. */
static bool suits(struct build *b, int32_t node, const struct shapes *s)
{
    struct op_ctx *ctx = calloc(1, sizeof *ctx);
    const struct node *n = &b->g->nodes[node];
    struct shape some[GEN_IN_MAX];
    bool ok = ctx != NULL;
    if (ok)
        shapes_node(b->g, s, node, ctx);
    if (ok && !s->dynamic[node])
        ok = op_flops(ctx) <= most_flops;
    for (int k = 0; ok && k < n->n_out; k++)
        ok = !known(&s->of[n->out[k]]) || shape_count(&s->of[n->out[k]]) <= LARGEST;
    bool open = false;
    for (int k = 0; ok && k < n->n_in; k++) {
        if (n->in[k] < 0 || known(&s->of[n->in[k]]))
            continue;
        some[k] = s->of[n->in[k]];
        some[k].rank = some[k].rank < 0 ? 1 : some[k].rank;
        for (int d = 0; d < some[k].rank; d++)
            some[k].dims[d] = s->of[n->in[k]].rank < 0 || some[k].dims[d] < 0 ? 2 : some[k].dims[d];
        ctx->in[k] = &some[k];
        open = true;
    }
    if (open) {
        yk_err err = op_infer(ctx);
        ok = err == YK_OK || err == YK_DEPENDS;
    }
    free(ctx);
    return ok;
}

static bool add_node(struct build *b)
{
    const struct op_template *list[16];
    struct gen *c = &b->c;
    struct graph *g = b->g;
    const struct op *op = op_at((int)gen_pick(c, 0, op_count() - 1));
    int32_t n_values = g->n_values, n_inputs = g->n_inputs, ids[GEN_IN_MAX], outs[GEN_OUT_MAX];
    int n = op->flags & (OP_CONTROL | OP_VALUES) ? 0 : gen_templates(op, list, 16), n_in = 0;
    char name[16];
    if (!n)
        return false;
    const struct op_template *t = list[gen_pick(c, 0, n - 1)];
    c->t = DT_NONE;
    memset(c->size, -1, sizeof c->size);
    c->star.rank = -1;
    c->plain = op->flags & OP_CONTRACTION;
    c->n_in = 0;
    for (; n_in < GEN_IN_MAX && t->in[n_in]; n_in++) {
        const char *text = t->in[n_in];
        ids[n_in] = gen_pick(c, 0, 3) ? earlier(b, text) : YK_ABSENT;
        if (ids[n_in] == YK_ABSENT) {
            if (strpbrk(text, "*~") && c->star.rank < 0) {
                c->star.rank = (int)gen_pick(c, 0, 4);
                for (int k = 0; k < c->star.rank; k++)
                    c->star.dims[k] = gen_size(c, (char)((k % 2 ? 'A' : 'a') + 20 + k));
            }
            ids[n_in] = fresh(b, text);
        }
        c->n_in = 1;
    }
    for (int k = 0; k < t->n_out; k++) {
        snprintf(name, sizeof name, "v%d", g->n_values);
        outs[k] = graph_add_value(g, name, VALUE_NODE, DT_NONE);
    }
    snprintf(name, sizeof name, "n%d", g->n_nodes);
    int32_t node = graph_add_node(g, name, op, ids, n_in, outs, t->n_out);
    c->g = g;
    gen_attrs(c, &g->nodes[node], t->attrs);
    struct shapes s;
    g->outputs = b->taps;
    g->n_outputs = 0;
    bool ok = shapes_infer(g, NULL, NULL, &s, NULL) == YK_OK;
    if (ok && (!suits(b, node, &s) || g->n_values + 16 > VALUES || b->n_taps + 8 > OUTS)) {
        shapes_fini(&s);
        ok = false;
    }
    if (ok) {
        shapes_fini(&b->s);
        b->s = s;
        b->n_known = g->n_values;
        for (int k = 0; k < t->n_out; k++)
            b->taps[b->n_taps++] = outs[k];
        return true;
    }
    for (int32_t v = n_values; v < g->n_values; v++) {
        free(b->data[v].data);
        b->data[v].data = NULL;
    }
    g->n_nodes--;
    g->n_values = n_values;
    g->n_inputs = n_inputs;
    graph_index_renew(g);
    return false;
}

/* Outputs: what nobody reads, and some more. */
static int32_t choose_outputs(struct build *b)
{
    bool read[VALUES] = {false};
    int32_t n = 0;
    for (int32_t i = 0; i < b->g->n_nodes; i++)
        for (int k = 0; k < b->g->nodes[i].n_in; k++)
            if (b->g->nodes[i].in[k] >= 0)
                read[b->g->nodes[i].in[k]] = true;
    for (int32_t i = 0; i < b->n_taps; i++)
        if (!read[b->taps[i]] || gen_pick(&b->c, 0, 3) == 3)
            b->outputs[n++] = b->taps[i];
    return n;
}

/* ---- running it ---- */

struct outcome {
    yk_err err;
    struct dyn_value *out[OUTS];
    char form[NODES][BACKEND_FORM_MAX];
    struct yk_diag why;
};

static void outcome_fini(struct outcome *o)
{
    for (int i = 0; i < OUTS; i++)
        dyn_unref(o->out[i]);
}

static struct pool *pools[2]; /* of 1 and of 3 threads */
static struct backends ref, tested[5][2];
static const char *const specs[] = {"ref", "simd", "blas", "fake", "auto"};
static long graphs, nodes, runs, compared, cuts, refused;

static void report(void)
{
    fprintf(stderr, "%ld graphs of %ld nodes; %ld runs, %ld nodes compared, %ld cuts; %ld graphs refused at run time\n",
        graphs, nodes, runs, compared, cuts, refused);
}

static void setup(void)
{
    for (int t = 0; t < 2; t++)
        if (pool_open(t ? 3 : 1, &pools[t], NULL))
            abort();
    if (backends_open("ref", pools[0], &ref, NULL))
        abort();
    for (size_t k = 0; k < YK_COUNT(specs); k++)
        for (int t = 0; t < 2; t++)
            if (backends_open(specs[k], pools[t], &tested[k][t], NULL))
                abort();
    if (getenv("YOKE_COUNT"))
        atexit(report);
}

static const int64_t no_sizes[1] = {1};

static void show(const struct build *b)
{
    char text[128];
    for (int32_t i = 0; i < b->g->n_nodes; i++) {
        const struct node *n = &b->g->nodes[i];
        fprintf(stderr, "%s %s(", n->name, n->op->name);
        for (int k = 0; k < n->n_in; k++)
            if (n->in[k] >= 0) {
                shape_text(&b->s.of[n->in[k]], text, sizeof text);
                fprintf(stderr, " %s%s %s", b->g->values[n->in[k]].name,
                    b->g->values[n->in[k]].kind == VALUE_WEIGHT ? "=" : "", text);
            } else {
                fprintf(stderr, " -");
            }
        fprintf(stderr, " ) ->");
        for (int k = 0; k < n->n_out; k++) {
            shape_text(&b->s.of[n->out[k]], text, sizeof text);
            fprintf(stderr, " %s %s", b->g->values[n->out[k]].name, text);
        }
        for (int k = 0; k < n->n_attr; k++) {
            const struct attr *a = &n->attr[k];
            fprintf(stderr, "; %s=", a->name);
            if (a->kind == ATTR_INT)
                fprintf(stderr, "%lld", (long long)a->i);
            else if (a->kind == ATTR_FLOAT)
                fprintf(stderr, "%g", (double)a->f);
            else if (a->kind == ATTR_STRING)
                fprintf(stderr, "%s", a->s);
            for (size_t j = 0; a->kind == ATTR_INTS && j < a->n; j++)
                fprintf(stderr, "%lld,", (long long)a->ints[j]);
        }
        fprintf(stderr, "\n");
    }
}

static void differ(const struct build *b, const char *backend, const char *what, int32_t node, const char *form,
    const struct tensor *got, const struct tensor *want)
{
    show(b);
    fprintf(stderr, "%s: %s, node %d, form %s\n", backend, what, (int)node, form ? form : "-");
    for (int64_t i = 0, n = 0; got && want && shape_equal(&got->shape, &want->shape) && i < tensor_count(got); i++) {
        size_t size = dtype_bytes(got->shape.dtype);
        if (memcmp((char *)got->data + (size_t)i * size, (char *)want->data + (size_t)i * size, size) && n++ < 6)
            fprintf(stderr, "  [%lld] %.9g, wants %.9g\n", (long long)i, ref_d(got, i), ref_d(want, i));
    }
    abort();
}

static struct exec *open_stage(
    struct build *b, struct backends *with, const struct outcome *forms, const uint8_t *in_stage, struct outcome *o)
{
    const char *names[NODES];
    struct exec *e = NULL;
    for (int32_t i = 0; i < b->g->n_nodes; i++)
        names[i] = forms && forms->form[i][0] ? forms->form[i] : NULL;
    struct exec_config config = {.graph = b->g,
        .in_stage = in_stage,
        .forms = names,
        .max_sizes = no_sizes,
        .backends = with,
        .heap_limit = 1 << 26};
    o->err = exec_open(&config, &e, &o->why);
    return e;
}

static void run_whole(struct build *b, struct backends *with, const struct outcome *forms, struct outcome *o)
{
    struct dyn_value *in[VALUES] = {NULL};
    memset(o, 0, sizeof *o);
    struct exec *e = open_stage(b, with, forms, NULL, o);
    for (int32_t i = 0; i < b->g->n_nodes && !o->err; i++)
        snprintf(o->form[i], sizeof o->form[i], "%s", exec_form(e, i) ? exec_form(e, i) : "");
    for (int32_t i = 0; i < b->g->n_inputs && !o->err; i++)
        o->err = dyn_borrow(NULL, &b->data[b->g->inputs[i]], &in[i], &o->why);
    if (!o->err)
        o->err = exec_run_values(e, no_sizes, in, o->out, SEED, &o->why);
    for (int32_t i = 0; i < b->g->n_inputs; i++)
        dyn_unref(in[i]);
    exec_close(e);
    runs++;
}

/* Runs a part of the nodes; have: by value what is there, what it gives is added (data to be freed). */
static yk_err run_part(struct build *b, struct backends *with, const struct outcome *forms, const uint8_t *in_stage,
    struct tensor *have, struct outcome *o)
{
    struct tensor in[VALUES], out[VALUES];
    struct exec *e = open_stage(b, with, forms, in_stage, o);
    if (o->err)
        return o->err;
    const struct memplan *plan = exec_plan(e);
    for (int32_t i = 0; i < plan->n_in; i++)
        in[i] = have[plan->in[i]];
    for (int32_t i = 0; i < plan->n_out; i++) {
        out[i].shape = exec_max_shapes(e)->of[plan->out[i]];
        out[i].data = yk_try_aligned((size_t)tensor_bytes(&out[i]));
        have[plan->out[i]] = out[i];
    }
    o->err = exec_run(e, no_sizes, in, out, SEED, &o->why);
    exec_close(e);
    return o->err;
}

static void check_cut(struct build *b, const char *name, struct backends *with, const struct outcome *whole)
{
    struct tensor have[VALUES];
    struct outcome o = {.err = YK_OK};
    uint8_t first[NODES] = {0}, second[NODES] = {0};
    int32_t after = (int32_t)gen_pick(&b->c, 0, b->g->n_nodes - 2);
    memcpy(have, b->data, sizeof have);
    for (int32_t i = 0; i < b->g->n_nodes; i++) {
        first[i] = i <= after;
        second[i] = i > after;
    }
    yk_err err = run_part(b, with, whole, first, have, &o);
    err = err ? err : run_part(b, with, whole, second, have, &o);
    if (err && !(err == YK_UNSUPPORTED && b->s.n_dynamic)) {
        fprintf(stderr, "%s\n", o.why.text);
        differ(b, name, "the cut cannot run", after, NULL, NULL, NULL);
    }
    for (int32_t k = 0; k < b->g->n_outputs && !err; k++) {
        const struct tensor *got = &have[b->g->outputs[k]], *want = &whole->out[k]->tensor;
        if (!shape_equal(&got->shape, &want->shape) || memcmp(got->data, want->data, (size_t)tensor_bytes(want)))
            differ(b, name, "other bits in two stages", after, NULL, got, want);
    }
    cuts += !err;
    for (int32_t v = 0; v < b->g->n_values; v++)
        if (have[v].data != b->data[v].data)
            free(have[v].data);
}

/* The node alone, by ref, on tensors by value. */
static void run_alone(struct build *b, int32_t node, const struct tensor *have, struct outcome *o)
{
    const struct node *n = &b->g->nodes[node];
    struct build one = {.g = graph_open(0)};
    int32_t ids[GEN_IN_MAX], outs[GEN_OUT_MAX];
    char name[16];
    if (!one.g)
        abort();
    one.g->inputs = one.inputs;
    one.g->outputs = outs;
    for (int k = 0; k < n->n_in; k++) {
        ids[k] = YK_ABSENT;
        if (n->in[k] < 0)
            continue;
        const struct shape *s = &have[n->in[k]].shape;
        snprintf(name, sizeof name, "i%d", k);
        ids[k] = graph_add_value(one.g, name, VALUE_INPUT, s->dtype);
        struct value *v = &one.g->values[ids[k]];
        v->rank = s->rank;
        v->dims = yk_arena_alloc(one.g->arena, (size_t)s->rank + 1, sizeof *v->dims);
        for (int i = 0; i < s->rank; i++)
            v->dims[i] = (struct dim){.value = s->dims[i], .sym = -1};
        one.data[ids[k]] = have[n->in[k]];
        one.g->inputs[one.g->n_inputs++] = ids[k];
    }
    for (int k = 0; k < n->n_out; k++) {
        snprintf(name, sizeof name, "o%d", k);
        outs[one.g->n_outputs++] = graph_add_value(one.g, name, VALUE_NODE, DT_NONE);
    }
    graph_add_node(one.g, n->name, n->op, ids, n->n_in, outs, n->n_out);
    one.g->nodes[0].attr = n->attr;
    one.g->nodes[0].n_attr = n->n_attr;
    run_whole(&one, &ref, NULL, o);
    graph_close(one.g);
}

static void check_nodes(struct build *b, const char *name, bool is_ref, const struct outcome *tapped)
{
    struct tensor have[VALUES];
    struct outcome alone;
    memcpy(have, b->data, sizeof have);
    for (int32_t k = 0; k < b->n_taps; k++)
        have[b->taps[k]] = tapped->out[k]->tensor;
    for (int32_t i = 0; i < b->g->n_nodes; i++) {
        const struct node *n = &b->g->nodes[i];
        bool own = strcmp(tapped->form[i], "ref@generic") == 0;
        if (n->op->flags & OP_RANDOM || (own && !is_ref))
            continue;
        struct tensor in[GEN_IN_MAX];
        for (int k = 0; k < n->n_in; k++)
            in[k] = n->in[k] >= 0 ? have[n->in[k]] : (struct tensor){.shape = {.dtype = DT_NONE}};
        double scale = own ? 0 : gen_scale(n->op, in, n->n_in);
        if (!(scale < 1e36))
            continue;
        run_alone(b, i, have, &alone);
        if (alone.err) {
            fprintf(stderr, "%s\n", alone.why.text);
            differ(b, name, "ref refuses it alone", i, tapped->form[i], NULL, NULL);
        }
        for (int k = 0; k < n->n_out; k++)
            if (!gen_near(&have[n->out[k]], &alone.out[k]->tensor, n->op, own, scale))
                differ(b, name, "not what ref gives", i, tapped->form[i], &have[n->out[k]], &alone.out[k]->tensor);
        outcome_fini(&alone);
        compared++;
    }
}

static yk_err check_backend(struct build *b, size_t which, yk_err want)
{
    struct backends *with = &tested[which][gen_pick(&b->c, 0, 15) == 15];
    struct outcome whole, tapped;
    int32_t n_outputs = choose_outputs(b);
    b->g->outputs = b->outputs;
    b->g->n_outputs = n_outputs;
    run_whole(b, with, NULL, &whole);
    if (which > 0 && whole.err != want) {
        fprintf(stderr, "%s: %s\n", yk_err_name(whole.err), whole.why.text);
        differ(b, specs[which], "another end than ref's", -1, NULL, NULL, NULL);
    }
    if (!whole.err) {
        if (b->g->n_nodes > 1 && gen_pick(&b->c, 0, 1))
            check_cut(b, specs[which], with, &whole);
        b->g->outputs = b->taps;
        b->g->n_outputs = b->n_taps;
        run_whole(b, with, &whole, &tapped);
        if (tapped.err) {
            fprintf(stderr, "%s\n", tapped.why.text);
            differ(b, specs[which], "refused with all outputs", -1, NULL, NULL, NULL);
        }
        for (int32_t k = 0, j = 0; k < b->n_taps && j < n_outputs; k++) {
            if (b->taps[k] != b->outputs[j])
                continue;
            const struct tensor *got = &tapped.out[k]->tensor, *to = &whole.out[j++]->tensor;
            if (!shape_equal(&got->shape, &to->shape) || memcmp(got->data, to->data, (size_t)tensor_bytes(to)))
                differ(
                    b, specs[which], "other bits with all outputs", b->g->values[b->taps[k]].producer, NULL, got, to);
        }
        if (which > 0 || gen_pick(&b->c, 0, 2) == 2)
            check_nodes(b, specs[which], which == 0, &tapped);
        outcome_fini(&tapped);
    }
    yk_err err = whole.err;
    if (err && which == 0 && getenv("YOKE_COUNT") && *getenv("YOKE_COUNT") == 'v')
        fprintf(stderr, "%s\n", whole.why.text);
    outcome_fini(&whole);
    return err;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct build *b = calloc(1, sizeof *b);
    if (!pools[0])
        setup();
    if (!b || !(b->g = graph_open(0)))
        abort();
    gen_begin(&b->c, data, size);
    b->g->inputs = b->inputs;
    for (int64_t n = gen_pick(&b->c, 1, NODES), tries = 0; b->g->n_nodes < n && tries < 3 * NODES; tries++)
        add_node(b);
    if (b->g->n_nodes) {
        yk_err by_ref = check_backend(b, 0, YK_OK);
        for (size_t k = 1; k < YK_COUNT(specs); k++)
            check_backend(b, k, by_ref);
        graphs++;
        nodes += b->g->n_nodes;
        refused += by_ref != YK_OK;
    }
    shapes_fini(&b->s);
    for (int32_t v = 0; v < b->g->n_values; v++)
        free(b->data[v].data);
    graph_close(b->g);
    free(b);
    return 0;
}
