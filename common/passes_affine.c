/* Factors and terms by channel that are constant: what exporters leave of scales that a net has learned, of biases and
 * of normalisations. Behind a convolution they go into its weights and bias, in front of one too where its padding
 * allows it (zeros around the input stay zeros under a factor, not under a term). A chain of them that stays becomes
 * one BatchNormalization. All in double, rounded once. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/passes_rewrite.h"

#define CHAIN_MAX 16

struct fold {
    struct graph *g;
    struct pass_probes probes;
    int32_t n_known; /* values that uses, reader and the probes know */
    int32_t *uses, *reader;
    int32_t node;
};

struct chain {
    int32_t nodes[CHAIN_MAX], n;
    struct pass_affine a; /* of all of them */
};

static bool is_op(const struct node *n, const char *name)
{
    return n->op && n->op->domain[0] == 0 && strcmp(n->op->name, name) == 0;
}

static void note_reader(void *arg, int32_t value)
{
    struct fold *f = arg;
    f->reader[value] = f->node;
}

static int32_t only_reader(const struct fold *f, int32_t value)
{
    return value < f->n_known && f->uses[value] == 1 ? f->reader[value] : -1;
}

static struct node *maker(const struct fold *f, int32_t value)
{
    int32_t at = value == YK_ABSENT ? -1 : f->g->values[value].producer;
    return at >= 0 && f->g->nodes[at].op ? &f->g->nodes[at] : NULL;
}

/* A constant that is one number for each channel of something of `rank` axes, or one for all. */
static bool operand(const struct graph *g, int32_t value, int rank, int64_t channels, double *out)
{
    if (!pass_is_const(g, value) || g->values[value].dtype != DT_F32)
        return false;
    const struct value *v = &g->values[value];
    int64_t count = shape_count(&v->shape);
    int axis = v->shape.rank - (rank - 1);
    if (v->shape.rank > rank || (count != 1 && (count != channels || axis < 0 || v->shape.dims[axis] != channels)))
        return false;
    for (int64_t i = 0; i < channels; i++)
        out[i] = (double)pass_f32(v->data, count == 1 ? 0 : i);
    return true;
}

/* What node n does to its input x. */
static yk_err step_of(const struct fold *f, const struct node *n, int32_t x, int rank, int64_t channels,
    struct pass_affine *out, bool *found)
{
    *found = false;
    if (is_op(n, "BatchNormalization")) {
        if (n->in[0] != x || n->n_in != 5 || n->n_out != 1 || node_attr_i(n, "training_mode", 0))
            return YK_OK;
        yk_err err = pass_affine_batchnorm(f->g, n, out, found);
        if (!err && *found && out->n != channels) {
            free(out->scale);
            *found = false;
        }
        return err;
    }
    bool add = is_op(n, "Add"), sub = is_op(n, "Sub"), mul = is_op(n, "Mul"), div = is_op(n, "Div");
    if (!(add || sub || mul || div) || n->in[0] == n->in[1])
        return YK_OK;
    bool first = n->in[0] == x;
    if (div && !first)
        return YK_OK;
    out->n = channels;
    out->scale = yk_try_alloc((size_t)channels * 2, sizeof(double));
    if (!out->scale)
        return YK_NOMEM;
    out->shift = out->scale + channels;
    *found = operand(f->g, n->in[first ? 1 : 0], rank, channels, mul || div ? out->scale : out->shift);
    for (int64_t i = 0; *found && i < channels; i++) {
        if (div)
            out->scale[i] = 1 / out->scale[i];
        else if (!mul)
            out->scale[i] = sub && !first ? -1 : 1;
        if (sub && first)
            out->shift[i] = -out->shift[i];
    }
    if (!*found)
        free(out->scale);
    return YK_OK;
}

static bool finite_all(const struct pass_affine *a)
{
    bool good = true;
    for (int64_t i = 0; i < a->n; i++)
        good = good && isfinite((float)a->scale[i]) && isfinite((float)a->shift[i]);
    return good;
}

static bool has_shift(const struct pass_affine *a)
{
    for (int64_t i = 0; i < a->n; i++)
        if (a->shift[i] != 0)
            return true;
    return false;
}

/* Takes a step into the chain, behind or in front of what is there; its arrays are the chain's or freed. */
static void take(struct chain *c, int32_t node, struct pass_affine *step, bool behind)
{
    if (c->n == 0) {
        c->a = *step;
    } else {
        for (int64_t i = 0; i < c->a.n; i++) {
            double s = c->a.scale[i], t = c->a.shift[i];
            c->a.shift[i] = behind ? step->scale[i] * t + step->shift[i] : s * step->shift[i] + t;
            c->a.scale[i] = s * step->scale[i];
        }
        free(step->scale);
    }
    c->nodes[c->n++] = node;
}

/* The steps behind `value`, each the only reader of the one before; *out: what the last one makes. */
static yk_err chain_behind(
    const struct fold *f, int32_t value, int rank, int64_t channels, struct chain *c, int32_t *out)
{
    yk_err err = YK_OK;
    *out = value;
    while (c->n < CHAIN_MAX) {
        int32_t next = only_reader(f, *out);
        struct pass_affine step;
        bool found = false;
        if (next < 0 || !f->g->nodes[next].op)
            break;
        err = step_of(f, &f->g->nodes[next], *out, rank, channels, &step, &found);
        if (err || !found)
            break;
        take(c, next, &step, true);
        *out = f->g->nodes[next].out[0];
    }
    return err;
}

static void drop(struct fold *f, const struct chain *c)
{
    for (int32_t i = 0; i < c->n; i++)
        f->g->nodes[c->nodes[i]].op = NULL;
}

static yk_err fold_behind(struct fold *f, int32_t index)
{
    struct node *conv = &f->g->nodes[index];
    const struct shape *w = conv->in[1] == YK_ABSENT ? NULL : &f->g->values[conv->in[1]].shape;
    bool deconv = is_op(conv, "ConvTranspose"), folded = false;
    if (!w || !pass_is_const(f->g, conv->in[1]) || w->rank < 3)
        return YK_OK;
    struct chain c = {.n = 0};
    int32_t out;
    yk_err err = chain_behind(f, conv->out[0], w->rank, w->dims[deconv ? 1 : 0], &c, &out);
    if (!err && c.n > 0 && finite_all(&c.a))
        err = pass_affine_fold(f->g, conv, &c.a, &folded);
    if (folded) {
        drop(f, &c);
        conv->out[0] = out;
        f->g->values[out].producer = index;
    }
    if (c.n > 0)
        free(c.a.scale);
    return err;
}

static bool padded(const struct node *conv)
{
    const struct attr *pads = node_attr_ints(conv, "pads");
    const char *automatic = node_attr_s(conv, "auto_pad", "NOTSET");
    if (strcmp(automatic, "NOTSET") != 0 && strcmp(automatic, "VALID") != 0 && automatic[0])
        return true;
    for (size_t i = 0; pads && i < pads->n; i++)
        if (pads->ints[i] != 0)
            return true;
    return false;
}

/* New weights and bias of a Conv whose input was scale * x + shift. */
static yk_err absorb(struct graph *g, struct node *conv, const struct pass_affine *a)
{
    const struct value *w = &g->values[conv->in[1]];
    struct shape shape = w->shape, bias_shape = {.dtype = DT_F32, .rank = 1, .dims = {shape.dims[0]}};
    const void *from = w->data, *old = conv->n_in > 2 && conv->in[2] != YK_ABSENT ? g->values[conv->in[2]].data : NULL;
    int64_t oc = shape.dims[0], ic = shape.dims[1], groups = a->n / ic, taps = shape_count(&shape) / (oc * ic);
    void *to, *bias;
    int32_t weight = pass_new_weight(g, w->name, &shape, &to);
    int32_t bias_id =
        weight == YK_ABSENT ? YK_ABSENT : pass_new_weight(g, g->values[conv->out[0]].name, &bias_shape, &bias);
    int32_t *in = yk_arena_alloc(g->arena, 3, sizeof *in);
    if (bias_id == YK_ABSENT || !in)
        return YK_NOMEM;
    for (int64_t o = 0; o < oc; o++) {
        double sum = old ? (double)pass_f32(old, o) : 0;
        for (int64_t i = 0; i < ic; i++) {
            int64_t channel = o / (oc / groups) * ic + i;
            for (int64_t t = 0; t < taps; t++) {
                int64_t e = (o * ic + i) * taps + t;
                double v = (double)pass_f32(from, e);
                ((float *)to)[e] = (float)(v * a->scale[channel]);
                sum += v * a->shift[channel];
            }
        }
        ((float *)bias)[o] = (float)sum;
    }
    in[0] = conv->in[0];
    in[1] = weight;
    in[2] = bias_id;
    conv->in = in;
    conv->n_in = 3;
    return YK_OK;
}

static bool const_weights(const struct graph *g, const struct node *conv)
{
    for (int k = 1; k < conv->n_in; k++)
        if (conv->in[k] != YK_ABSENT && (!pass_is_const(g, conv->in[k]) || g->values[conv->in[k]].dtype != DT_F32))
            return false;
    return conv->in[0] != YK_ABSENT && conv->in[1] != YK_ABSENT;
}

static yk_err fold_before(struct fold *f, int32_t index)
{
    struct graph *g = f->g;
    struct node *conv = &g->nodes[index];
    if (!const_weights(g, conv))
        return YK_OK;
    const struct shape *w = &g->values[conv->in[1]].shape;
    int64_t group = node_attr_i(conv, "group", 1), channels;
    if (w->rank < 3 || shape_count(w) < 1 || group < 1 || w->dims[0] % group ||
        !yk_mul_i64(w->dims[1], group, &channels))
        return YK_OK;
    struct chain c = {.n = 0};
    int32_t x = conv->in[0];
    yk_err err = YK_OK;
    bool pads = padded(conv);
    while (c.n < CHAIN_MAX && only_reader(f, x) >= 0) {
        struct node *n = maker(f, x);
        struct pass_affine step;
        bool found = false;
        int k = !n || n->n_in < 1 ? -1 : n->n_in == 2 && pass_is_const(g, n->in[0]) ? 1 : 0;
        int32_t before = k < 0 ? YK_ABSENT : n->in[k];
        if (before == YK_ABSENT || before >= f->n_known || !pass_same_shape(&f->probes, before, conv->in[0]))
            break;
        err = step_of(f, n, before, w->rank, channels, &step, &found);
        if (err || !found)
            break;
        if (!finite_all(&step) || (pads && has_shift(&step))) {
            free(step.scale);
            break;
        }
        take(&c, (int32_t)(n - g->nodes), &step, false);
        x = before;
    }
    if (!err && c.n > 0 && finite_all(&c.a) && (err = absorb(g, conv, &c.a)) == YK_OK) {
        drop(f, &c);
        conv->in[0] = x;
        f->reader[x] = index;
    }
    if (c.n > 0)
        free(c.a.scale);
    return err;
}

static bool is_number(const struct graph *g, int32_t value, double want)
{
    float v;
    return value != YK_ABSENT && pass_const_f32(g, value, &v) && fabs((double)v - want) <= 1e-6 * fabs(want);
}

/* x * clip(x + 3, 0, 6) / 6, as exporters without the op write it; the values between are read here alone. */
static void write_hard_swish(struct fold *f, int32_t index)
{
    struct graph *g = f->g;
    struct node *last = &g->nodes[index];
    bool div = is_op(last, "Div");
    if (!div && !is_op(last, "Mul"))
        return;
    int side = div || !pass_is_const(g, last->in[0]) ? 0 : 1;
    if (!is_number(g, last->in[1 - side], div ? 6 : 1.0 / 6))
        return;
    struct node *mul = only_reader(f, last->in[side]) >= 0 ? maker(f, last->in[side]) : NULL;
    if (!mul || !is_op(mul, "Mul"))
        return;
    for (int k = 0; k < 2; k++) {
        struct node *clip = only_reader(f, mul->in[k]) >= 0 ? maker(f, mul->in[k]) : NULL;
        if (!clip || !is_op(clip, "Clip") || clip->n_in != 3 || !is_number(g, clip->in[1], 0) ||
            !is_number(g, clip->in[2], 6))
            continue;
        struct node *add = only_reader(f, clip->in[0]) >= 0 ? maker(f, clip->in[0]) : NULL;
        int32_t x = mul->in[1 - k];
        if (!add || !is_op(add, "Add") || x == YK_ABSENT || x >= f->n_known ||
            !pass_same_shape(&f->probes, x, last->out[0]))
            continue;
        int at = add->in[0] == x ? 0 : 1;
        if (add->in[at] != x || !is_number(g, add->in[1 - at], 3))
            continue;
        add->op = clip->op = mul->op = NULL;
        last->op = op_find("", "HardSwish");
        last->in[0] = x;
        last->n_in = 1;
        f->uses[x]--; /* one node reads it where two did */
        f->reader[x] = index;
        return;
    }
}

static yk_err open_fold(struct fold *f, struct graph *g, struct yk_diag *why)
{
    *f = (struct fold){.g = g, .n_known = g->n_values};
    yk_err err = graph_sort(g, why);
    if (err || (err = pass_probes_open(g, &f->probes, why)) != YK_OK)
        return err;
    f->uses = pass_uses(g);
    f->reader = yk_try_alloc((size_t)g->n_values + 1, sizeof *f->reader);
    if (!f->uses || !f->reader)
        return YK_NOMEM;
    for (int32_t v = 0; v < g->n_values; v++)
        f->reader[v] = -1;
    for (f->node = 0; f->node < g->n_nodes; f->node++)
        node_each_use(&g->nodes[f->node], note_reader, f);
    return YK_OK;
}

static yk_err close_fold(struct fold *f, yk_err err, struct yk_diag *why)
{
    free(f->uses);
    free(f->reader);
    pass_probes_close(&f->probes);
    return err ? yk_fail(why, err, "no memory to fold factors") : pass_compact(f->g, why);
}

yk_err pass_fold_affine(struct graph *g, struct yk_diag *why)
{
    struct fold f;
    yk_err err = open_fold(&f, g, why);
    for (int32_t i = 0; !err && i < g->n_nodes; i++)
        if (g->nodes[i].op && g->nodes[i].n_in == 2 && g->nodes[i].n_out == 1)
            write_hard_swish(&f, i);
    for (int32_t i = 0; !err && i < g->n_nodes; i++)
        if (is_op(&g->nodes[i], "Conv") || is_op(&g->nodes[i], "ConvTranspose"))
            err = fold_behind(&f, i);
    for (int32_t i = 0; !err && i < g->n_nodes; i++)
        if (is_op(&g->nodes[i], "Conv"))
            err = fold_before(&f, i);
    return close_fold(&f, err, why);
}

/* ---- chains that stay ---- */

/* Channels of an f32 value of four axes, the same at every size; -1 otherwise. */
static int64_t channels_of(const struct fold *f, int32_t value)
{
    int64_t channels = -1;
    for (int i = 0; i < f->probes.n; i++) {
        const struct shape *s = &f->probes.at[i].of[value];
        if (!shapes_has(&f->probes.at[i], value) || s->dtype != DT_F32 || s->rank != 4 ||
            (i > 0 && s->dims[1] != channels))
            return -1;
        channels = s->dims[1];
    }
    return channels;
}

static int32_t filled(struct graph *g, const char *stem, int64_t n, const double *from, double otherwise)
{
    struct shape shape = {.dtype = DT_F32, .rank = 1, .dims = {n}};
    void *data;
    int32_t id = pass_new_weight(g, stem, &shape, &data);
    for (int64_t i = 0; id != YK_ABSENT && i < n; i++)
        ((float *)data)[i] = (float)(from ? from[i] : otherwise);
    return id;
}

static yk_err merge(struct fold *f, int32_t index)
{
    struct graph *g = f->g;
    const struct node *n = &g->nodes[index];
    if (n->n_out != 1 || n->n_in < 2 || n->out[0] >= f->n_known)
        return YK_OK;
    int32_t x = n->in[n->n_in == 2 && pass_is_const(g, n->in[0]) ? 1 : 0], out;
    int64_t channels = x == YK_ABSENT || x >= f->n_known ? -1 : channels_of(f, x);
    struct chain c = {.n = 0};
    struct pass_affine step;
    bool found = false;
    if (channels < 1 || !pass_same_shape(&f->probes, x, n->out[0]))
        return YK_OK;
    yk_err err = step_of(f, n, x, 4, channels, &step, &found);
    if (err || !found)
        return err;
    take(&c, index, &step, true);
    err = chain_behind(f, n->out[0], 4, channels, &c, &out);
    if (!err && c.n > 1 && finite_all(&c.a)) {
        const char *stem = g->values[out].name;
        int32_t *ids = yk_arena_alloc(g->arena, 6, sizeof *ids);
        if (!ids) {
            free(c.a.scale);
            return YK_NOMEM;
        }
        ids[0] = x;
        ids[1] = filled(g, stem, channels, c.a.scale, 0);
        ids[2] = ids[1] == YK_ABSENT ? YK_ABSENT : filled(g, stem, channels, c.a.shift, 0);
        ids[3] = ids[2] == YK_ABSENT ? YK_ABSENT : filled(g, stem, channels, NULL, 0);
        ids[4] = ids[3] == YK_ABSENT ? YK_ABSENT : filled(g, stem, channels, NULL, 1);
        ids[5] = out;
        struct node made = {.name = g->nodes[index].name, .op = op_find("", "BatchNormalization")};
        made.n_in = 5;
        made.n_out = 1;
        made.in = ids;
        made.out = ids + 5;
        err = ids[4] == YK_ABSENT ? YK_NOMEM : graph_set_attr_f(g, &made, "epsilon", 0);
        if (!err) {
            int32_t last = c.nodes[c.n - 1];
            drop(f, &c);
            g->nodes[last] = made;
            g->values[out].producer = last;
            f->reader[x] = last;
        }
    }
    free(c.a.scale);
    return err;
}

yk_err pass_merge_affine(struct graph *g, struct yk_diag *why)
{
    struct fold f;
    yk_err err = open_fold(&f, g, why);
    for (int32_t i = 0; !err && i < g->n_nodes; i++)
        if (g->nodes[i].op)
            err = merge(&f, i);
    return close_fold(&f, err, why);
}
