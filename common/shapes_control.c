/* Shapes of what If, Loop and Scan make. A subgraph is inferred once, from the shapes of what it captures and gets:
 * If: both branches agree, or the condition is known. Loop, Scan: every carried value comes out of the body with the
 * shape that it came in with, so by induction it keeps it; the number of trips of a Loop is known if M is and the body
 * never lowers the condition. A subgraph that cannot be inferred is no error here: it may never run. */
#include <string.h>

#include "common/shapes_priv.h"

/* Shapes of a subgraph from its parent's; inputs are set by the caller between start and walk. */
static yk_err start_child(const struct graph *child, const struct shapes *parent, struct shapes *c, struct yk_diag *why)
{
    yk_err err = shapes_start(child, c, why);
    for (int32_t v = 0; !err && v < child->n_values; v++) {
        const struct value *x = &child->values[v];
        if (x->kind != VALUE_CAPTURE || x->capture == YK_ABSENT)
            continue;
        c->of[v] = parent->of[x->capture];
        const int64_t *known = parent->content[x->capture];
        if (known && !shapes_set_content(c, v, known, shape_count(&c->of[v])))
            err = yk_fail(why, YK_NOMEM, "no memory for shapes");
    }
    return err;
}

/* Walks; a graph that does not fit gives unknown outputs. */
static yk_err walk_child(const struct graph *child, struct shapes *c, struct yk_diag *why, bool *fits)
{
    yk_err err = shapes_walk(child, c, NULL);
    *fits = err == YK_OK;
    return err == YK_NOMEM ? yk_fail(why, err, "no memory for shapes") : YK_OK;
}

yk_err shapes_subgraph(const struct graph *sub, const struct shape *in,
    void (*capture)(void *arg, int32_t value, struct shape *out), void *arg, struct shape *out, struct yk_diag *why)
{
    struct shapes c;
    bool fits = false;
    yk_err err = shapes_start(sub, &c, why);
    for (int32_t v = 0; !err && v < sub->n_values; v++)
        if (sub->values[v].kind == VALUE_CAPTURE && sub->values[v].capture != YK_ABSENT)
            capture(arg, sub->values[v].capture, &c.of[v]);
    for (int32_t k = 0; !err && k < sub->n_inputs; k++)
        c.of[sub->inputs[k]] = in[k];
    if (!err)
        err = walk_child(sub, &c, why, &fits);
    for (int32_t k = 0; !err && k < sub->n_outputs; k++)
        out[k] = fits ? c.of[sub->outputs[k]] : (struct shape){.dtype = DT_NONE, .rank = -1};
    shapes_fini(&c);
    return err;
}

static const struct graph *subgraph(const struct node *n, const char *name)
{
    const struct attr *a = node_attr(n, name);
    return a && a->kind == ATTR_GRAPH ? a->graph : NULL;
}

static yk_err give(struct shapes *s, int32_t to, const struct shapes *c, int32_t from, struct yk_diag *why)
{
    s->of[to] = c->of[from];
    const int64_t *known = c->content[from];
    if (known && !shapes_set_content(s, to, known, shape_count(&s->of[to])))
        return yk_fail(why, YK_NOMEM, "no memory for shapes");
    return YK_OK;
}

static yk_err infer_if(struct shapes *s, const struct node *n, struct yk_diag *why)
{
    static const char *const names[] = {"then_branch", "else_branch"};
    const int64_t *condition = s->content[n->in[0]] && shape_count(&s->of[n->in[0]]) == 1 ? s->content[n->in[0]] : NULL;
    struct shapes c[2] = {{0}};
    const struct graph *g[2];
    bool fits[2] = {false, false};
    yk_err err = YK_OK;
    for (int b = 0; b < 2 && !err; b++) {
        g[b] = subgraph(n, names[b]);
        if (condition && (*condition != 0) == (b == 1))
            continue;
        if (!(err = start_child(g[b], s, &c[b], why)))
            err = walk_child(g[b], &c[b], why, &fits[b]);
    }
    for (int32_t i = 0; i < n->n_out && !err; i++) {
        int32_t v = n->out[i];
        if (v == YK_ABSENT)
            continue;
        if (condition) {
            int b = *condition ? 0 : 1;
            if (fits[b])
                err = give(s, v, &c[b], g[b]->outputs[i], why);
        } else if (fits[0] && fits[1]) {
            const struct shape *x = &c[0].of[g[0]->outputs[i]], *y = &c[1].of[g[1]->outputs[i]];
            if (shape_equal(x, y))
                s->of[v] = *x;
            else if (x->dtype == y->dtype)
                s->of[v].dtype = x->dtype;
        }
    }
    for (int b = 0; b < 2; b++)
        shapes_fini(&c[b]);
    return err;
}

/* A body input that the op makes itself: a scalar, or one element if the body declares an axis. */
static struct shape scalar_input(const struct graph *body, int k, enum dtype dtype)
{
    struct shape s = {.dtype = dtype, .rank = body->values[body->inputs[k]].rank == 1 ? 1 : 0};
    s.dims[0] = 1;
    return s;
}

static bool keeps_shape(const struct shapes *c, const struct shape *before, int32_t after)
{
    return before->rank >= 0 && shapes_has(c, after) && shape_equal(before, &c->of[after]);
}

static yk_err infer_loop(struct shapes *s, const struct node *n, struct yk_diag *why)
{
    const struct graph *body = subgraph(n, "body");
    int carried = n->n_in - 2;
    const int64_t *most = n->in[0] != YK_ABSENT && shape_count(&s->of[n->in[0]]) == 1 ? s->content[n->in[0]] : NULL;
    bool ends = n->in[1] != YK_ABSENT &&
                (!s->content[n->in[1]] || shape_count(&s->of[n->in[1]]) != 1 || s->content[n->in[1]][0] == 0);
    struct shapes c = {0};
    bool fits = false;
    static const int64_t one = 1;
    yk_err err = start_child(body, s, &c, why);
    if (!err) {
        c.of[body->inputs[0]] = scalar_input(body, 0, DT_I64);
        c.of[body->inputs[1]] = scalar_input(body, 1, DT_BOOL);
        /* Whenever the body runs, the condition was true. */
        if (!shapes_set_content(&c, body->inputs[1], &one, 1))
            err = yk_fail(why, YK_NOMEM, "no memory for shapes");
    }
    for (int i = 0; i < carried && !err; i++)
        c.of[body->inputs[2 + i]] = s->of[n->in[2 + i]];
    if (!err)
        err = walk_child(body, &c, why, &fits);
    for (int i = 0; i < carried && fits; i++)
        fits = keeps_shape(&c, &s->of[n->in[2 + i]], body->outputs[1 + i]);
    /* Without a condition to start with, what the body says of it is ignored. */
    const int64_t *goes_on = fits ? c.content[body->outputs[0]] : NULL;
    bool lasts = n->in[1] == YK_ABSENT || (goes_on && shape_count(&c.of[body->outputs[0]]) == 1 && goes_on[0] != 0);
    bool counted = most && !ends && lasts;
    for (int i = 0; i < n->n_out && !err && fits; i++) {
        int32_t v = n->out[i];
        const struct shape *made = &c.of[body->outputs[1 + i]];
        if (v == YK_ABSENT)
            continue;
        if (i < carried) {
            s->of[v] = *made;
        } else {
            s->of[v].dtype = made->dtype;
            if (!counted || shape_bytes(made) < 0 || made->rank >= YK_MAX_RANK)
                continue;
            struct shape out = {.dtype = made->dtype, .rank = made->rank + 1, .dims = {YK_MAX(*most, 0)}};
            memcpy(out.dims + 1, made->dims, (size_t)made->rank * sizeof(*made->dims));
            s->of[v] = out;
        }
    }
    shapes_fini(&c);
    return err;
}

static yk_err infer_scan(struct shapes *s, const struct node *n, struct yk_diag *why)
{
    const struct graph *body = subgraph(n, "body");
    struct scan_dims d;
    struct shapes c = {0};
    bool fits = true;
    int64_t trips = -1;
    yk_err err = op_scan_dims(n, &d, why);
    if (err || d.batched) /* each sample has its own length: the interpreter finds out */
        return err;
    err = start_child(body, s, &c, why);
    for (int i = 0; i < d.n_state && !err; i++)
        c.of[body->inputs[i]] = s->of[n->in[i]];
    for (int i = 0; i < d.n_in && !err && fits; i++) {
        const struct shape *x = &s->of[n->in[d.n_state + i]];
        struct shape *slice = &c.of[body->inputs[d.n_state + i]];
        int axis;
        fits = shape_bytes(x) >= 0 && x->rank > 0 && op_axis(d.in_axis[i], x->rank, &axis, NULL) == YK_OK;
        if (!fits)
            break;
        fits = trips < 0 || trips == x->dims[axis];
        trips = x->dims[axis];
        *slice = (struct shape){.dtype = x->dtype, .rank = x->rank - 1};
        for (int k = 0, at = 0; k < x->rank; k++)
            if (k != axis)
                slice->dims[at++] = x->dims[k];
    }
    if (!err && fits)
        err = walk_child(body, &c, why, &fits);
    for (int i = 0; i < d.n_state && fits && !err; i++)
        fits = keeps_shape(&c, &s->of[n->in[i]], body->outputs[i]);
    for (int i = 0; i < n->n_out && fits && !err; i++) {
        int32_t v = n->out[i];
        const struct shape *made = &c.of[body->outputs[i]];
        int axis;
        if (v == YK_ABSENT)
            continue;
        if (i < d.n_state) {
            s->of[v] = *made;
            continue;
        }
        s->of[v].dtype = made->dtype;
        if (shape_bytes(made) < 0 || made->rank >= YK_MAX_RANK ||
            op_axis(d.out_axis[i - d.n_state], made->rank + 1, &axis, NULL))
            continue;
        struct shape out = {.dtype = made->dtype, .rank = made->rank + 1};
        for (int k = 0, at = 0; k < out.rank; k++)
            out.dims[k] = k == axis ? trips : made->dims[at++];
        s->of[v] = out;
    }
    shapes_fini(&c);
    return err;
}

yk_err shapes_control(const struct graph *g, struct shapes *s, int32_t node, struct yk_diag *why)
{
    const struct node *n = &g->nodes[node];
    const char *name = n->op->name;
    yk_err err = op_control_check(n, why);
    if (err)
        return err;
    if (strcmp(name, "If") == 0)
        return infer_if(s, n, why);
    if (strcmp(name, "Loop") == 0)
        return infer_loop(s, n, why);
    if (strcmp(name, "Scan") == 0)
        return infer_scan(s, n, why);
    return YK_OK;
}
