/* Follows the batch axis through the graph. Shapes at two batches tell where it is; a table of ops tells which axes an
 * op mixes. What the table does not know mixes. */
#include "common/samples.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* Of a value. ROWS: axis `axis` counts pre * batch * m entries, in this order, and what belongs to sample i follows
 * from sample i alone. SIZES: numbers that follow from the size of the batch. */
enum kind { NONE, SIZES, ROWS, MIXED };
struct state {
    enum kind kind;
    int axis;
    int64_t pre, m;
};

#define FIRST 2 /* the two batches; both prime, so that they are not met by chance */
#define SECOND 3

struct walk {
    const struct graph *g;
    struct shapes at[2];
    struct state *of; /* by value */
    struct op_ctx *c;
};

static const struct shape *shape_of(const struct walk *w, int32_t value)
{
    return &w->at[0].of[value];
}

/* Where the batch is in a value if `before` entries stand before it in row-major order; 0: as few as may be. */
static bool find_axis(const struct walk *w, int32_t value, int64_t before, struct state *out)
{
    const struct shape *a = &w->at[0].of[value], *b = &w->at[1].of[value];
    int64_t p = 1;
    int k = 0;
    if (a->rank != b->rank)
        return false;
    for (; k < a->rank && a->dims[k] == b->dims[k]; k++)
        p *= a->dims[k];
    if (k == a->rank || p < 1 || (before && before % p))
        return false;
    for (int i = k + 1; i < a->rank; i++)
        if (a->dims[i] != b->dims[i])
            return false;
    int64_t pre = before ? before / p : 1;
    *out = (struct state){ROWS, k, pre, a->dims[k] / (pre * FIRST)};
    return a->dims[k] == pre * FIRST * out->m && b->dims[k] == pre * SECOND * out->m;
}

static bool same_split(struct state a, struct state b)
{
    return a.pre == b.pre && a.m == b.m;
}

static bool one_of(const char *name, const char *const *list)
{
    for (; *list; list++)
        if (strcmp(name, *list) == 0)
            return true;
    return false;
}

static struct state in_state(const struct walk *w, const struct node *n, int i)
{
    return i < n->n_in && n->in[i] >= 0 ? w->of[n->in[i]] : (struct state){NONE, 0, 0, 0};
}

static bool only_none(const struct walk *w, const struct node *n, int from)
{
    for (int i = from; i < n->n_in; i++)
        if (in_state(w, n, i).kind != NONE)
            return false;
    return true;
}

static const struct state mixed = {MIXED, 0, 0, 0};

/* Inputs are aligned at their last axes: those of the batch must lie on each other, others must not have that axis. */
static struct state broadcast(const struct walk *w, const struct node *n, int n_in)
{
    int rank = shape_of(w, n->out[0])->rank, behind = -1;
    struct state out = {ROWS, 0, 0, 0};
    for (int i = 0; i < n_in; i++) {
        struct state s = in_state(w, n, i);
        if (s.kind == SIZES || s.kind == MIXED)
            return mixed;
        if (s.kind != ROWS)
            continue;
        int k = shape_of(w, n->in[i])->rank - s.axis;
        if (behind >= 0 && (k != behind || !same_split(s, out)))
            return mixed;
        behind = k;
        out = s;
    }
    for (int i = 0; i < n_in; i++) {
        if (n->in[i] < 0 || in_state(w, n, i).kind == ROWS)
            continue;
        const struct shape *s = shape_of(w, n->in[i]);
        if (s->rank >= behind && s->dims[s->rank - behind] != 1)
            return mixed;
    }
    out.axis = rank - behind;
    return out;
}

static struct state matmul(const struct walk *w, const struct node *n, int second)
{
    struct state a = in_state(w, n, 0), b = in_state(w, n, second);
    int ra = shape_of(w, n->in[0])->rank, rb = shape_of(w, n->in[second])->rank, rank = shape_of(w, n->out[0])->rank;
    if (a.kind == ROWS && b.kind == NONE && rb <= 2)
        return a.axis < ra - 1 ? a : mixed;
    if (a.kind == NONE && b.kind == ROWS && ra <= 2)
        return rb >= 3 && b.axis < rb - 2 ? (struct state){ROWS, b.axis + rank - rb, b.pre, b.m} : mixed;
    if (a.kind != ROWS || b.kind != ROWS || a.axis >= ra - 2 || b.axis >= rb - 2 || ra - a.axis != rb - b.axis ||
        !same_split(a, b))
        return mixed;
    return (struct state){ROWS, a.axis + rank - ra, a.pre, a.m};
}

/* The axis that an attribute names, or input `i`; rank when it is not known. */
static int axis_of(const struct walk *w, const struct node *n, int64_t otherwise, int rank)
{
    (void)w;
    int64_t axis = node_attr_i(n, "axis", otherwise);
    return (int)(axis < 0 ? axis + rank : axis);
}

static struct state reduce(const struct walk *w, const struct node *n, struct state s)
{
    bool gone[YK_MAX_RANK] = {false};
    int before = 0;
    if (strncmp(n->op->name, "Arg", 3) == 0)
        gone[axis_of(w, n, 0, shape_of(w, n->in[0])->rank) % YK_MAX_RANK] = true;
    else if (op_reduce_axes(w->c, gone))
        return mixed;
    if (gone[s.axis])
        return mixed;
    for (int k = 0; k < s.axis && !node_attr_i(n, "keepdims", 1); k++)
        before += gone[k];
    return (struct state){ROWS, s.axis - before, s.pre, s.m};
}

static struct state gather(const struct walk *w, const struct node *n)
{
    struct state data = in_state(w, n, 0), index = in_state(w, n, 1);
    int rank = shape_of(w, n->in[0])->rank, axis = axis_of(w, n, 0, rank), more = shape_of(w, n->in[1])->rank - 1;
    if (data.kind == ROWS && index.kind == NONE && axis != data.axis)
        return (struct state){ROWS, data.axis < axis ? data.axis : data.axis + more, data.pre, data.m};
    if (data.kind == NONE && index.kind == ROWS)
        return (struct state){ROWS, axis + index.axis, index.pre, index.m};
    return mixed;
}

static struct state recurrent(const struct walk *w, const struct node *n, int output)
{
    struct state x = in_state(w, n, 0);
    if (node_attr_i(n, "layout", 0) != 0 || x.kind != ROWS || x.axis != 1 || x.pre != 1 || x.m != 1)
        return mixed;
    for (int i = 1; i < n->n_in; i++) {
        struct state s = in_state(w, n, i);
        bool states = i >= 5 && s.kind == ROWS && s.axis == 1 && s.pre == 1 &&
                      s.m == 1; /* initial h and c: [dirs, batch, hidden] */
        if (s.kind != NONE && !states)
            return mixed;
    }
    return (struct state){ROWS, output == 0 ? 2 : 1, 1, 1};
}

/* What output `o` of a node is of which some input is by sample and none is mixed. */
static struct state follow(const struct walk *w, const struct node *n, int o)
{
    static const char *const per_sample[] = {"Conv", "FusedConv", "ConvTranspose", "MaxPool", "AveragePool",
        "GlobalAveragePool", "GlobalMaxPool", "LpPool", "GlobalLpPool", "InstanceNormalization", "LRN", "DepthToSpace",
        "SpaceToDepth", "ConvInteger", "QLinearConv", "Resize", NULL};
    static const char *const along[] = {"Softmax", "LogSoftmax", "Hardmax", "LpNormalization", "TopK", NULL};
    static const char *const views[] = {"Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity", "Dropout", NULL};
    static const char *const spread[] = {"Expand", "Tile", NULL};
    const char *op = n->op->name;
    struct state s = in_state(w, n, 0);
    const struct shape *x = n->n_in > 0 && n->in[0] >= 0 ? shape_of(w, n->in[0]) : NULL;
    struct state there;
    if (n->op->flags & OP_ELEMENTWISE)
        return broadcast(w, n, n->n_in);
    if (strcmp(op, "Gather") == 0)
        return gather(w, n);
    if (strcmp(op, "MatMul") == 0 || strcmp(op, "MatMulInteger") == 0)
        return only_none(w, n, 2) ? matmul(w, n, 1) : mixed;
    if (strcmp(op, "QLinearMatMul") == 0)
        return matmul(w, n, 3);
    if (strcmp(op, "LSTM") == 0 || strcmp(op, "GRU") == 0 || strcmp(op, "RNN") == 0)
        return recurrent(w, n, o);
    if (strcmp(op, "Concat") == 0) {
        for (int i = 0; i < n->n_in; i++) {
            struct state k = in_state(w, n, i);
            if (k.kind != ROWS || k.axis != s.axis || !same_split(k, s))
                return mixed;
        }
        return axis_of(w, n, 0, x->rank) == s.axis ? mixed : s;
    }
    if (s.kind != ROWS)
        return mixed;
    int64_t before = s.pre;
    for (int k = 0; k < s.axis; k++)
        before *= x->dims[k];
    if (one_of(op, per_sample)) {
        bool residual = strcmp(op, "FusedConv") == 0 && n->n_in > 3 && in_state(w, n, 3).kind == ROWS;
        for (int i = 1; i < n->n_in; i++)
            if (in_state(w, n, i).kind != NONE && !(residual && i == 3 && in_state(w, n, i).axis == 0))
                return mixed;
        return s.axis == 0 ? s : mixed;
    }
    if (strcmp(op, "PreactConv") == 0) {
        for (int i = 1; i < n->n_in; i++) {
            struct state k = in_state(w, n, i);
            if (op_is_preact_input(i) ? k.kind != ROWS || k.axis != 0 || !same_split(k, s) : k.kind != NONE)
                return mixed;
        }
        return s.axis == 0 ? s : mixed;
    }
    if (strcmp(op, "Gemm") == 0 || strcmp(op, "FusedGemm") == 0) {
        bool rows = s.axis < x->rank - 1 && !node_attr_i(n, "transA", 0) && only_none(w, n, 1);
        const struct shape *c = n->n_in > 2 && n->in[2] >= 0 ? shape_of(w, n->in[2]) : NULL;
        return rows && (!c || c->rank < 2 || c->dims[0] == 1) ? s : mixed;
    }
    if (strcmp(op, "Attention") == 0) {
        const char *layout = node_attr_s(n, "layout", "rows");
        struct state k = in_state(w, n, 1), v = in_state(w, n, 2), m = in_state(w, n, 3);
        int batch = strcmp(layout, "time") == 0 ? 1 : 0;
        bool same = k.kind == ROWS && v.kind == ROWS && k.axis == batch && v.axis == batch && s.axis == batch &&
                    same_split(k, s) && same_split(v, s);
        const struct shape *mask = n->n_in > 3 && n->in[3] >= 0 ? shape_of(w, n->in[3]) : NULL;
        bool apart = m.kind == NONE || (m.kind == ROWS && m.axis == 0 && mask && mask->rank == 4 && same_split(m, s));
        return same && apart ? s : mixed;
    }
    if (one_of(op, views)) {
        if (strcmp(op, "Dropout") == 0 && !only_none(w, n, 1))
            return mixed;
        return find_axis(w, n->out[o], before, &there) ? there : mixed;
    }
    if (strcmp(op, "BatchNormalization") == 0)
        return s.axis == 0 && !node_attr_i(n, "training_mode", 0) && only_none(w, n, 1) ? s : mixed;
    if (strncmp(op, "Reduce", 6) == 0 || strncmp(op, "Arg", 3) == 0)
        return only_none(w, n, 1) ? reduce(w, n, s) : mixed;
    if (one_of(op, along))
        return axis_of(w, n, -1, x->rank) != s.axis && only_none(w, n, 1) ? s : mixed;
    if (strcmp(op, "LayerNormalization") == 0)
        return axis_of(w, n, -1, x->rank) > s.axis && only_none(w, n, 1) ? s : mixed;
    if (strcmp(op, "Split") == 0)
        return axis_of(w, n, 0, x->rank) != s.axis ? s : mixed;
    if (strcmp(op, "Transpose") == 0) {
        const struct attr *perm = node_attr_ints(n, "perm");
        for (int k = 0; k < x->rank; k++)
            if ((perm ? perm->ints[k] : x->rank - 1 - k) == s.axis)
                return (struct state){ROWS, k, s.pre, s.m};
        return mixed;
    }
    if (strcmp(op, "Slice") == 0) {
        struct slice_dims d;
        return op_slice_dims(w->c, &d) == YK_OK && d.start[s.axis] == 0 && d.step[s.axis] == 1 &&
                       d.count[s.axis] == x->dims[s.axis]
                   ? s
                   : mixed;
    }
    const struct shape *y = shape_of(w, n->out[o]);
    if (strcmp(op, "Pad") == 0)
        return w->c->content[1] && n->n_in < 4 && w->c->content[1][s.axis] == 0 && y->dims[s.axis] == x->dims[s.axis]
                   ? s
                   : mixed;
    if (one_of(op, spread)) {
        int axis = y->rank - x->rank + s.axis;
        return y->dims[axis] == x->dims[s.axis] ? (struct state){ROWS, axis, s.pre, s.m} : mixed;
    }
    if ((strcmp(op, "QuantizeLinear") == 0 || strcmp(op, "DequantizeLinear") == 0) && only_none(w, n, 1))
        return shape_count(shape_of(w, n->in[1])) == 1 || axis_of(w, n, 1, x->rank) != s.axis ? s : mixed;
    return mixed;
}

struct uses {
    const struct walk *w;
    enum kind worst;
};

static void note_use(void *arg, int32_t value)
{
    struct uses *u = arg;
    u->worst = YK_MAX(u->worst, u->w->of[value].kind);
}

/* Numbers that are the same at both batches do not follow from its size. */
static bool same_numbers(const struct walk *w, int32_t value)
{
    const int64_t *a = w->at[0].content[value], *b = w->at[1].content[value];
    if (!a || !b || !shape_equal(&w->at[0].of[value], &w->at[1].of[value]))
        return false;
    return memcmp(a, b, (size_t)shape_count(&w->at[0].of[value]) * sizeof *a) == 0;
}

static struct state next(struct walk *w, int32_t index, int o)
{
    const struct node *n = &w->g->nodes[index];
    const char *op = n->op->name;
    struct uses u = {w, NONE};
    struct state there;
    node_each_use(n, note_use, &u);
    if (u.worst == MIXED || n->op->flags & OP_RANDOM)
        return mixed;
    if (u.worst == NONE)
        return (struct state){NONE, 0, 0, 0};
    if (w->at[0].dynamic[index] || w->at[1].dynamic[index] || n->op->flags & OP_CONTROL)
        return mixed;
    if (strcmp(op, "Shape") == 0 || strcmp(op, "Size") == 0)
        return same_numbers(w, n->out[o]) ? (struct state){NONE, 0, 0, 0} : (struct state){SIZES, 0, 0, 0};
    if (u.worst == SIZES) {
        bool filled =
            strcmp(op, "ConstantOfShape") == 0 || (strcmp(op, "Expand") == 0 && in_state(w, n, 0).kind == NONE);
        if (filled &&
            find_axis(w, n->out[o], 0, &there)) { /* every row alike, if it is of an input without that axis */
            const struct shape *x = shape_of(w, n->in[0]);
            int behind = shape_of(w, n->out[o])->rank - there.axis;
            bool own = strcmp(op, "Expand") == 0 && x->rank >= behind && x->dims[x->rank - behind] != 1;
            return own ? mixed : there;
        }
        return same_numbers(w, n->out[o]) ? (struct state){NONE, 0, 0, 0} : (struct state){SIZES, 0, 0, 0};
    }
    shapes_node(w->g, &w->at[0], index, w->c);
    return follow(w, n, o);
}

static yk_err open_walk(struct walk *w, const int64_t *given, struct yk_diag *why)
{
    const struct graph *g = w->g;
    int64_t fixed, *sizes = yk_xalloc(((size_t)g->n_syms + 1) * sizeof *sizes);
    int32_t batch = graph_batch_dim(g, &fixed);
    yk_err err = YK_OK;
    for (int i = 0; i < 2 && !err; i++) {
        graph_sizes(g, given, i ? SECOND : FIRST, sizes);
        err = shapes_infer(g, sizes, NULL, &w->at[i], why);
    }
    free(sizes);
    w->of = yk_xalloc(((size_t)g->n_values + 1) * sizeof *w->of);
    w->c = yk_xalloc(sizeof *w->c);
    for (int32_t i = 0; i < g->n_inputs; i++) {
        const struct value *v = &g->values[g->inputs[i]];
        if (v->rank > 0 && v->dims[0].sym == batch)
            w->of[g->inputs[i]] = (struct state){ROWS, 0, 1, 1};
    }
    return err;
}

bool samples_independent(const struct graph *g, const int64_t *sizes, struct yk_diag *why)
{
    struct walk w = {.g = g};
    int64_t fixed;
    if (graph_batch_dim(g, &fixed) < 0)
        return true;
    int32_t culprit = -1;
    bool good = open_walk(&w, sizes, why) == YK_OK;
    for (int32_t i = 0; good && i < g->n_nodes; i++)
        for (int32_t o = 0; o < g->nodes[i].n_out; o++) {
            int32_t v = g->nodes[i].out[o];
            if (v < 0)
                continue;
            w.of[v] = next(&w, i, o);
            if (w.of[v].kind == MIXED && culprit < 0)
                culprit = i;
        }
    for (int32_t i = 0; good && i < g->n_outputs; i++) {
        struct state s = w.of[g->outputs[i]];
        if (s.kind == NONE || s.kind == SIZES || (s.kind == ROWS && s.axis == 0 && s.pre == 1 && s.m == 1))
            continue;
        good = false;
        if (s.kind == MIXED && culprit >= 0)
            yk_fail(why, YK_INVAL, "node %d '%s' (%s) may mix samples", culprit, g->nodes[culprit].name,
                g->nodes[culprit].op->name);
        else
            yk_fail(why, YK_INVAL, "output '%s' does not have one row for each sample", g->values[g->outputs[i]].name);
    }
    for (int i = 0; i < 2; i++)
        if (w.at[i].arena)
            shapes_fini(&w.at[i]);
    free(w.of);
    free(w.c);
    return good;
}

yk_err samples_in_front(const struct graph *g, struct yk_diag *why)
{
    int64_t fixed;
    int32_t batch = graph_batch_dim(g, &fixed);
    if (g->n_inputs < 1)
        return yk_fail(why, YK_UNSUPPORTED, "the model has no input");
    for (int32_t i = 0; g->n_inputs > 1 && i < g->n_inputs; i++) {
        const struct value *v = &g->values[g->inputs[i]];
        const struct dim *first = v->rank > 0 ? &v->dims[0] : NULL;
        if (first && (batch >= 0 ? first->sym == batch : first->sym < 0 && first->value == fixed))
            continue;
        return yk_fail(why, YK_UNSUPPORTED,
            "input '%.60s' of the model's %d does not have the batch of '%.60s' as its first axis: a data set gives "
            "samples; make it a weight",
            v->name, (int)g->n_inputs, g->values[g->inputs[0]].name);
    }
    return YK_OK;
}

yk_err samples_split_check(int64_t batch, int64_t asked, int64_t fixed, struct yk_diag *why)
{
    if (asked && fixed > 0 && asked != fixed)
        return yk_fail(why, YK_INVAL,
            "the model takes exactly %" PRId64 " samples at a time, not --microbatch=%" PRId64
            " (REST: \"microbatch\"): leave that out, or export the model with a dynamic batch",
            fixed, asked);
    if (asked > batch && fixed <= 0)
        return yk_fail(why, YK_INVAL,
            "--microbatch=%" PRId64 " is more than the batch of %" PRId64 " that it is cut from: give --batch=%" PRId64
            " or more, or a microbatch up to %" PRId64 " (REST: \"microbatch\", \"batch\")",
            asked, batch, asked, batch);
    return YK_OK;
}
