/* The passes in order, and what they share. */
#include "common/passes.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/passes_rewrite.h"

#define INLINE_ROUNDS 20

yk_err pass_fold_and_inline(struct graph *g, bool train, passes_eval eval, void *arg, struct yk_diag *why)
{
    yk_err err = pass_fold_constants(g, train, eval, arg, why);
    for (int round = 0; round < INLINE_ROUNDS && !err; round++) { /* a branch may hold another If */
        bool changed = false;
        err = pass_inline_ifs(g, &changed, why);
        if (err || !changed)
            break;
        err = pass_fold_constants(g, train, eval, arg, why);
    }
    if (!err && pass_hoist_weights(g))
        err = yk_fail(why, YK_NOMEM, "no memory for the weights of subgraphs");
    return err;
}

yk_err passes_infer(struct graph *g, passes_eval eval, void *arg, struct yk_diag *why)
{
    yk_err err = pass_fold_and_inline(g, false, eval, arg, why);
    if (!err)
        err = passes_fold_batchnorm(g, why);
    if (!err)
        err = pass_fold_affine(g, why);
    if (!err)
        err = pass_fuse_layernorm(g, why);
    if (!err)
        err = pass_fuse_attention(g, why);
    if (!err)
        err = passes_fuse(g, why);
    if (!err)
        err = pass_merge_affine(g, why);
    if (!err)
        err = pass_fuse_preact(g, why);
    return err ? err : pass_compact(g, why);
}

/* ---- uses ---- */

struct uses {
    int32_t *count, n;
};

static void add_use(void *arg, int32_t value)
{
    struct uses *u = arg;
    if (value >= 0 && value < u->n && u->count[value] < INT32_MAX)
        u->count[value]++;
}

int32_t *pass_uses(const struct graph *g)
{
    struct uses u = {.count = yk_try_alloc((size_t)g->n_values + 1, sizeof *u.count), .n = g->n_values};
    if (!u.count)
        return NULL;
    for (int32_t i = 0; i < g->n_nodes; i++)
        if (g->nodes[i].op)
            node_each_use(&g->nodes[i], add_use, &u);
    for (int32_t i = 0; i < g->n_outputs; i++)
        add_use(&u, g->outputs[i]);
    return u.count;
}

uint8_t *pass_outputs(const struct graph *g)
{
    uint8_t *is = yk_try_alloc((size_t)g->n_values + 1, 1);
    for (int32_t i = 0; is && i < g->n_outputs; i++)
        is[g->outputs[i]] = 1;
    return is;
}

bool pass_is_const(const struct graph *g, int32_t value)
{
    if (value == YK_ABSENT || g->values[value].kind != VALUE_WEIGHT)
        return false;
    return g->values[value].data || g->values[value].bytes == 0;
}

int32_t pass_resolve(const int32_t *to, int32_t value)
{
    while (value != YK_ABSENT && to[value] != value)
        value = to[value];
    return value;
}

void pass_replace_uses(struct graph *g, const int32_t *to)
{
    for (int32_t i = 0; i < g->n_nodes; i++) {
        struct node *n = &g->nodes[i];
        for (int32_t k = 0; k < n->n_in; k++)
            n->in[k] = pass_resolve(to, n->in[k]);
        for (int32_t a = 0; a < n->n_attr; a++) {
            struct graph *sub = n->attr[a].kind == ATTR_GRAPH ? n->attr[a].graph : NULL;
            for (int32_t k = 0; sub && k < sub->n_values; k++)
                if (sub->values[k].kind == VALUE_CAPTURE)
                    sub->values[k].capture = pass_resolve(to, sub->values[k].capture);
        }
    }
}

yk_err pass_compact(struct graph *g, struct yk_diag *why)
{
    int32_t n = 0;
    for (int32_t i = 0; i < g->n_nodes; i++)
        if (g->nodes[i].op)
            g->nodes[n++] = g->nodes[i];
    g->n_nodes = n;
    yk_err err = graph_sort(g, why);
    return err ? err : graph_prune(g);
}

/* ---- weights that passes make ---- */

void pass_make_const(struct graph *g, int32_t value, const struct shape *shape, const void *data)
{
    struct value *v = &g->values[value];
    struct node *n = v->producer >= 0 ? &g->nodes[v->producer] : NULL;
    size_t align = dtype_bytes(shape->dtype);
    for (int32_t k = 0; n && k < n->n_out; k++)
        if (n->out[k] == value)
            n->out[k] = YK_ABSENT;
    v->kind = VALUE_WEIGHT;
    v->dtype = shape->dtype;
    v->shape = *shape;
    v->data = data;
    v->bytes = shape_bytes(shape);
    v->aligned = (uintptr_t)data % align == 0;
    v->has_hash = false;
    v->constant = true;
    v->producer = -1;
    bool used = false;
    for (int32_t k = 0; n && k < n->n_out; k++)
        used = used || n->out[k] != YK_ABSENT;
    if (n && !used)
        n->op = NULL;
}

int32_t pass_new_weight(struct graph *g, const char *stem, const struct shape *shape, void **data)
{
    char name[256];
    snprintf(name, sizeof name, "%.200s", stem);
    for (int i = 2; graph_find_value(g, name) != YK_ABSENT; i++)
        snprintf(name, sizeof name, "%.200s.%d", stem, i);
    *data = graph_alloc_data(g, shape_bytes(shape));
    int32_t id = *data ? graph_add_weight(g, name, shape, *data) : YK_ABSENT;
    if (id != YK_ABSENT)
        g->values[id].constant = true;
    return id;
}

int32_t pass_new_ints(struct graph *g, const char *stem, const int64_t *v, int n)
{
    struct shape s = {.dtype = DT_I64, .rank = 1, .dims = {n}};
    void *data;
    int32_t id = pass_new_weight(g, stem, &s, &data);
    if (id != YK_ABSENT && n > 0)
        memcpy(data, v, (size_t)n * sizeof *v);
    return id;
}

void pass_write_int(enum dtype t, void *data, int64_t i, int64_t v)
{
    size_t bytes = dtype_bytes(t);
    uint8_t *p = (uint8_t *)data + (size_t)i * bytes;
    for (size_t k = 0; k < bytes; k++)
        p[k] = (uint8_t)((uint64_t)v >> (8 * k));
}

float pass_f32(const void *data, int64_t i)
{
    float f;
    memcpy(&f, (const uint8_t *)data + (size_t)i * sizeof f, sizeof f);
    return f;
}

bool pass_const_f32(const struct graph *g, int32_t value, float *out)
{
    if (!pass_is_const(g, value) || g->values[value].dtype != DT_F32 || shape_count(&g->values[value].shape) != 1)
        return false;
    *out = pass_f32(g->values[value].data, 0);
    return true;
}

/* ---- probes ---- */

static int64_t probe_size(int probe, int32_t sym)
{
    static const int primes[] = {7, 11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47};
    int n = (int)YK_COUNT(primes);
    int64_t wrap = sym / n; /* more dimensions than primes: shift, so that they stay distinct */
    switch (probe) {
    case 0:
        return primes[sym % n] + 50 * wrap;
    case 1:
        return primes[(sym + 5) % n] + 59 + 50 * wrap;
    case 2:
        return 1;
    case 3:
        return 1021 + 6 * (int64_t)sym;
    case 4:
        return 64 * ((int64_t)sym + 1);
    case 5:
        return 416 + 160 * (int64_t)sym;
    case 6:
        return 224 + 96 * (int64_t)sym;
    case 7:
        return 2 + sym;
    case 8:
        return 3 + 2 * (int64_t)sym;
    default:
        return 8 - sym % 5;
    }
}

yk_err pass_probes_open(const struct graph *g, struct pass_probes *out, struct yk_diag *why)
{
    struct pass_probes p = {0};
    int64_t *sizes = yk_try_alloc((size_t)g->n_syms + 1, sizeof *sizes);
    yk_err err = sizes ? YK_OK : YK_NOMEM;
    int want = g->n_syms == 0 ? 1 : PASS_PROBES;
    for (int i = 0; !err && i < want; i++) {
        if (i == PASS_PROBES - PASS_PROBES_SMALL && p.n >= 3)
            break;
        for (int32_t s = 0; s < g->n_syms; s++)
            sizes[s] = probe_size(i, s);
        yk_err e = shapes_infer(g, sizes, NULL, &p.at[p.n], NULL);
        if (!e)
            p.n++;
        else if (e == YK_NOMEM)
            err = e;
    }
    free(sizes);
    if (err) {
        pass_probes_close(&p);
        return yk_fail(why, err, "no memory for shapes");
    }
    if (p.n < YK_MIN(want, 3))
        pass_probes_close(&p);
    *out = p;
    return YK_OK;
}

void pass_probes_close(struct pass_probes *p)
{
    for (int i = 0; i < p->n; i++)
        shapes_fini(&p->at[i]);
    p->n = 0;
}

bool pass_same_shape(const struct pass_probes *p, int32_t a, int32_t b)
{
    for (int i = 0; i < p->n; i++)
        if (!shapes_has(&p->at[i], a) || !shape_equal(&p->at[i].of[a], &p->at[i].of[b]))
            return false;
    return p->n > 0;
}

const int64_t *pass_same_content(const struct pass_probes *p, int32_t value)
{
    const int64_t *first = p->n > 0 ? p->at[0].content[value] : NULL;
    const struct shape *s = p->n > 0 ? &p->at[0].of[value] : NULL;
    for (int i = 1; first && i < p->n; i++) {
        const int64_t *c = p->at[i].content[value];
        if (!c || !shape_equal(s, &p->at[i].of[value]) || memcmp(c, first, (size_t)shape_count(s) * sizeof *c) != 0)
            return NULL;
    }
    return first;
}
