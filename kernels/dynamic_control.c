/* If, Loop, Scan and SequenceMap: subgraphs run once per choice, trip or member. */
#include <stdlib.h>
#include <string.h>

#include "kernels/dynamic_priv.h"

static const struct graph *subgraph(const struct node *n, const char *name)
{
    return node_attr(n, name)->graph; /* op_control_check has seen it */
}

static void drop(struct dyn_value **v, int n)
{
    for (int i = 0; i < n; i++) {
        dyn_unref(v[i]);
        v[i] = NULL;
    }
}

/* A growing list of values, users of each. */
struct list {
    struct dyn_value **at;
    int64_t n, cap;
};

static yk_err list_add(struct list *l, struct dyn_value *v, struct yk_diag *why)
{
    if (l->n == l->cap) {
        int64_t cap = YK_MAX(2 * l->cap, 16);
        struct dyn_value **at = yk_try_realloc(l->at, (size_t)cap, sizeof(struct dyn_value *));
        if (!at)
            return yk_fail(why, YK_NOMEM, "no memory for %lld results", (long long)cap);
        l->at = at;
        l->cap = cap;
    }
    l->at[l->n++] = v; /* the list takes the reference */
    return YK_OK;
}

static void lists_free(struct list *l, int n)
{
    for (int i = 0; i < n; i++) {
        for (int64_t k = 0; k < l[i].n; k++)
            dyn_unref(l[i].at[k]);
        free(l[i].at);
    }
}

/* The element type and shape of output k of a body that made no trip: as its shape rules say for these inputs, else as
 * the output is declared, unknown axes empty. */
static yk_err element_of(struct dynamic *d, struct frame *f, const struct graph *body, const struct shape *in, int k,
    struct shape *out, struct yk_diag *why)
{
    const struct value *v = &body->values[body->outputs[k]];
    struct shape shapes[OP_MAX_OUT + 1];
    yk_err err = dynamic_outputs(d, f, body, in, shapes, why);
    if (err)
        return err;
    *out = shapes[k];
    if (shape_bytes(out) >= 0 && out->dtype != DT_NONE)
        return YK_OK;
    if (v->dtype == DT_NONE)
        return yk_fail(why, YK_UNSUPPORTED, "no trip was made, and '%s' has no declared type", v->name);
    *out = (struct shape){.dtype = v->dtype, .rank = YK_MAX(v->rank, 0)};
    for (int i = 0; i < out->rank; i++)
        out->dims[i] = YK_MAX(v->dims[i].value, 0);
    return YK_OK;
}

struct stack { /* how a body's output k is put together */
    struct dynamic *d;
    struct frame *f;
    const struct graph *body;
    const struct shape *in; /* of the body */
};

static yk_err join_none(const struct stack *s, int k, int64_t axis, struct dyn_value **out, struct yk_diag *why)
{
    struct shape one, all;
    int at;
    yk_err err = element_of(s->d, s->f, s->body, s->in, k, &one, why);
    if (err)
        return err;
    all = (struct shape){.dtype = one.dtype, .rank = one.rank + 1};
    if (all.rank > YK_MAX_RANK)
        return yk_fail(why, YK_LIMIT, "it would have %d axes, the limit is %d", all.rank, YK_MAX_RANK);
    if ((err = op_axis(axis, all.rank, &at, why)))
        return err;
    for (int i = 0, from = 0; i < all.rank; i++)
        all.dims[i] = i == at ? 0 : one.dims[from++];
    return dyn_tensor(s->d->heap, &all, out, why);
}

static yk_err join(const struct stack *s, int k, const struct list *l, int64_t axis, bool reverse,
    struct dyn_value **out, struct yk_diag *why)
{
    yk_err err =
        l->n ? dynamic_join(s->d, l->at, l->n, axis, true, reverse, out, why) : join_none(s, k, axis, out, why);
    return err ? yk_wrap(why, err, "stacked output '%s'", s->body->values[s->body->outputs[k]].name) : YK_OK;
}

static struct shape shape_of(const struct dyn_value *v)
{
    return v && v->type == VALUE_TENSOR ? v->tensor.shape : (struct shape){.dtype = DT_NONE, .rank = -1};
}

/* ---- If ---- */

static yk_err run_if(struct dynamic *d, struct frame *f, const struct node *n, struct dyn_value *const *in,
    struct dyn_value **out, struct yk_diag *why)
{
    int64_t condition = 0;
    yk_err err = dynamic_int(in, 0, "the condition", &condition, why);
    if (err)
        return err;
    return dynamic_graph_run(
        d, f, subgraph(n, condition ? "then_branch" : "else_branch"), condition ? 1 : 0, NULL, out, why);
}

/* ---- Loop ---- */

struct trip { /* a body's inputs and outputs */
    struct dyn_value *in[OP_MAX_IN + 2], *out[OP_MAX_OUT + 2];
};

static int scalar_rank(const struct graph *body, int k)
{
    return body->values[body->inputs[k]].rank == 1 ? 1 : 0;
}

static yk_err run_loop(struct dynamic *d, struct frame *f, const struct node *n, struct dyn_value *const *in,
    struct dyn_value **out, struct yk_diag *why)
{
    const struct graph *body = subgraph(n, "body");
    int carried = n->n_in - 2, stacked = n->n_out - carried;
    struct list lists[OP_MAX_OUT] = {{0}};
    struct trip t = {{NULL}, {NULL}};
    int64_t most = INT64_MAX, going = 1;
    yk_err err = in[0] ? dynamic_int(in, 0, "the number of trips", &most, why) : YK_OK;
    if (!err && in[1])
        err = dynamic_int(in, 1, "the condition", &going, why);
    for (int i = 0; i < carried && !err; i++)
        t.in[2 + i] = dyn_ref(in[2 + i]);
    for (int64_t k = 0; k < most && going && !err; k++) {
        drop(t.in, 2);
        if ((err = dynamic_scalar(d, DT_I64, scalar_rank(body, 0), k, &t.in[0], why)) ||
            (err = dynamic_scalar(d, DT_BOOL, scalar_rank(body, 1), 1, &t.in[1], why)) ||
            (err = dynamic_graph_run(d, f, body, k, t.in, t.out, why)))
            break;
        int64_t goes_on = 1;
        err = dynamic_int(t.out, 0, "the body's condition", &goes_on, why);
        if (in[1]) /* without a condition to start with, the body's is ignored */
            going = goes_on;
        for (int i = 0; i < carried && !err; i++) {
            dyn_unref(t.in[2 + i]);
            t.in[2 + i] = t.out[1 + i];
            t.out[1 + i] = NULL;
        }
        for (int i = 0; i < stacked && !err; i++) {
            struct dyn_value *v = t.out[1 + carried + i];
            if (n->out[carried + i] == YK_ABSENT)
                continue;
            t.out[1 + carried + i] = NULL;
            if ((err = list_add(&lists[i], v, why)))
                dyn_unref(v);
        }
        drop(t.out, 1 + n->n_out);
    }
    for (int i = 0; i < carried && !err; i++)
        out[i] = dyn_ref(t.in[2 + i]);
    struct shape shapes[OP_MAX_IN + 2] = {{.dtype = DT_I64, .rank = scalar_rank(body, 0), .dims = {1}},
        {.dtype = DT_BOOL, .rank = scalar_rank(body, 1), .dims = {1}}};
    for (int i = 0; i < carried; i++)
        shapes[2 + i] = shape_of(t.in[2 + i]);
    struct stack s = {d, f, body, shapes};
    for (int i = 0; i < stacked && !err; i++)
        if (n->out[carried + i] != YK_ABSENT)
            err = join(&s, 1 + carried + i, &lists[i], 0, false, &out[carried + i], why);
    drop(t.in, 2 + carried);
    drop(t.out, 1 + n->n_out);
    lists_free(lists, stacked);
    return err;
}

/* ---- Scan ---- */

struct scan {
    struct dynamic *d;
    struct frame *f;
    const struct node *n;
    const struct graph *body;
    struct scan_dims dims;
    int axis[OP_SCAN_MAX];
    struct shape in[OP_MAX_IN]; /* of the body */
};

static struct stack stack_of(const struct scan *s)
{
    return (struct stack){s->d, s->f, s->body, s->in};
}

/* The shapes that a trip has: states as they are, scanned inputs without their axis. */
static void note_shapes(struct scan *s, struct dyn_value *const *state, struct tensor *const *scanned)
{
    for (int i = 0; i < s->dims.n_state; i++)
        s->in[i] = shape_of(state[i]);
    for (int i = 0; i < s->dims.n_in; i++) {
        struct shape *x = &s->in[s->dims.n_state + i];
        *x = scanned[i]->shape;
        x->rank--;
        for (int k = s->axis[i]; k < x->rank; k++)
            x->dims[k] = x->dims[k + 1];
    }
}

/* Trips along the scanned inputs; state: n_state values that the call replaces; lists: one per stacked output. */
static yk_err scan_trips(struct scan *s, struct tensor *const *scanned, int64_t trips, struct dyn_value **state,
    struct list *lists, struct yk_diag *why)
{
    const struct scan_dims *m = &s->dims;
    struct trip t = {{NULL}, {NULL}};
    yk_err err = YK_OK;
    note_shapes(s, state, scanned);
    for (int64_t k = 0; k < trips && !err; k++) {
        for (int i = 0; i < m->n_state; i++)
            t.in[i] = dyn_ref(state[i]);
        for (int i = 0; i < m->n_in && !err; i++) {
            int64_t at = m->in_reverse[i] ? scanned[i]->shape.dims[s->axis[i]] - 1 - k : k;
            err = dynamic_slice(s->d, scanned[i], s->axis[i], at, 1, false, &t.in[m->n_state + i], why);
        }
        if (!err)
            err = dynamic_graph_run(s->d, s->f, s->body, k, t.in, t.out, why);
        drop(t.in, m->n_state + m->n_in);
        for (int i = 0; i < m->n_state && !err; i++) {
            dyn_unref(state[i]);
            state[i] = t.out[i];
            t.out[i] = NULL;
        }
        for (int i = 0; i < m->n_out && !err; i++) {
            struct dyn_value *v = t.out[m->n_state + i];
            t.out[m->n_state + i] = NULL;
            if ((err = list_add(&lists[i], v, why)))
                dyn_unref(v);
        }
        drop(t.out, m->n_state + m->n_out);
    }
    return err;
}

static yk_err run_scan(struct scan *s, struct dyn_value *const *in, struct dyn_value **out, struct yk_diag *why)
{
    const struct scan_dims *m = &s->dims;
    struct list lists[OP_MAX_OUT] = {{0}};
    struct dyn_value *state[OP_MAX_IN] = {NULL};
    struct tensor *scanned[OP_MAX_IN];
    int64_t trips = -1;
    yk_err err = YK_OK;
    for (int i = 0; i < m->n_in && !err; i++) {
        if ((err = dynamic_tensor(in, m->n_state + i, "to scan", &scanned[i], why)) ||
            (err = op_axis(m->in_axis[i], scanned[i]->shape.rank, &s->axis[i], why)))
            break;
        int64_t dim = scanned[i]->shape.dims[s->axis[i]];
        if (trips >= 0 && dim != trips)
            err = yk_fail(why, YK_INVAL, "the scanned inputs have %lld and %lld elements along their axes",
                (long long)trips, (long long)dim);
        trips = dim;
    }
    for (int i = 0; i < m->n_state && !err; i++)
        state[i] = dyn_ref(in[i]);
    if (!err)
        err = scan_trips(s, scanned, trips, state, lists, why);
    for (int i = 0; i < m->n_state && !err; i++)
        out[i] = dyn_ref(state[i]);
    struct stack stack = stack_of(s);
    for (int i = 0; i < m->n_out && !err; i++)
        if (s->n->out[m->n_state + i] != YK_ABSENT)
            err = join(&stack, m->n_state + i, &lists[i], m->out_axis[i], m->out_reverse[i], &out[m->n_state + i], why);
    drop(state, m->n_state);
    lists_free(lists, m->n_out);
    return err;
}

/* Opset 8: every axis has the batch in front of it, every sample its own number of trips; what a shorter sample does
 * not fill is zero. */
static yk_err batch_sample(struct scan *s, struct dyn_value *const *in, int64_t sample, int64_t length,
    struct list *results, struct yk_diag *why)
{
    const struct scan_dims *m = &s->dims;
    struct list lists[OP_MAX_OUT] = {{0}};
    struct dyn_value *state[OP_MAX_IN] = {NULL}, *cut[OP_MAX_IN] = {NULL};
    struct tensor *scanned[OP_MAX_IN];
    yk_err err = YK_OK;
    for (int i = 0; i < m->n_state && !err; i++)
        err = dynamic_slice(s->d, &in[1 + i]->tensor, 0, sample, 1, false, &state[i], why);
    for (int i = 0; i < m->n_in && !err; i++) {
        err = dynamic_slice(s->d, &in[1 + m->n_state + i]->tensor, 0, sample, 1, false, &cut[i], why);
        if (err)
            break;
        struct dyn_value *head = NULL; /* of `length`, so that a reversed scan starts at the sample's own end */
        if ((err = dynamic_slice(s->d, &cut[i]->tensor, 0, 0, length, true, &head, why)))
            break;
        dyn_unref(cut[i]);
        cut[i] = head;
        scanned[i] = &head->tensor;
    }
    if (!err)
        err = scan_trips(s, scanned, length, state, lists, why);
    for (int i = 0; i < m->n_state && !err; i++) {
        err = list_add(&results[i], state[i], why);
        if (!err)
            state[i] = NULL;
    }
    struct stack stack = stack_of(s);
    for (int i = 0; i < m->n_out && !err; i++) {
        struct dyn_value *v = NULL;
        err = join(&stack, m->n_state + i, &lists[i], 0, false, &v, why);
        if (!err && (err = list_add(&results[m->n_state + i], v, why)))
            dyn_unref(v);
    }
    drop(state, m->n_state);
    drop(cut, m->n_in);
    lists_free(lists, m->n_out);
    return err;
}

/* Makes axis 0 of each as long as `length`, with zeros. */
static yk_err pad_all(struct dynamic *d, struct list *l, int64_t length, struct yk_diag *why)
{
    for (int64_t i = 0; i < l->n; i++) {
        const struct tensor *t = &l->at[i]->tensor;
        struct shape s = t->shape;
        struct dyn_value *wide = NULL;
        if (s.dims[0] == length)
            continue;
        s.dims[0] = length;
        yk_err err = dyn_tensor(d->heap, &s, &wide, why);
        if (err)
            return err;
        size_t have = (size_t)tensor_bytes(t), all = (size_t)tensor_bytes(&wide->tensor);
        memcpy(wide->tensor.data, t->data, have);
        memset((char *)wide->tensor.data + have, 0, all - have);
        dyn_unref(l->at[i]);
        l->at[i] = wide;
    }
    return YK_OK;
}

static yk_err batch_sizes(struct scan *s, struct dyn_value *const *in, int64_t *batch, int64_t *length,
    struct tensor **lengths, struct yk_diag *why)
{
    const struct scan_dims *m = &s->dims;
    struct tensor *t = NULL;
    yk_err err;
    *batch = *length = -1;
    for (int i = 0; i < m->n_state + m->n_in; i++) {
        int axes = i < m->n_state ? 1 : 2;
        if ((err = dynamic_tensor(in, 1 + i, "a state or scanned input", &t, why)))
            return err;
        if (t->shape.rank < axes || (*batch >= 0 && t->shape.dims[0] != *batch) ||
            (axes == 2 && *length >= 0 && t->shape.dims[1] != *length))
            return yk_fail(why, YK_INVAL, "input %d has another batch or length than the others", 1 + i);
        *batch = t->shape.dims[0];
        if (axes == 2)
            *length = t->shape.dims[1];
    }
    *lengths = NULL;
    if (!in[0])
        return YK_OK;
    if ((err = dynamic_tensor(in, 0, "lengths", lengths, why)))
        return err;
    if ((*lengths)->shape.dtype != DT_I64 || tensor_count(*lengths) != *batch)
        return yk_fail(why, YK_INVAL, "the lengths are not int64[%lld]", (long long)*batch);
    return YK_OK;
}

static yk_err run_batch_scan(struct scan *s, struct dyn_value *const *in, struct dyn_value **out, struct yk_diag *why)
{
    const struct scan_dims *m = &s->dims;
    struct list results[OP_MAX_OUT] = {{0}};
    struct tensor *lengths = NULL;
    int64_t batch = 0, most = 0;
    yk_err err = batch_sizes(s, in, &batch, &most, &lengths, why);
    for (int64_t b = 0; b < batch && !err; b++) {
        int64_t length = lengths ? dtype_read_int(DT_I64, lengths->data, b) : most;
        if (length < 0 || length > most)
            err = yk_fail(why, YK_INVAL, "length %lld of sample %lld is outside 0..%lld", (long long)length,
                (long long)b, (long long)most);
        if (!err)
            err = batch_sample(s, in, b, length, results, why);
    }
    for (int i = 0; i < m->n_out && !err; i++)
        err = pad_all(s->d, &results[m->n_state + i], most, why);
    if (!err && batch == 0)
        err = yk_fail(why, YK_INVAL, "the batch is empty");
    struct stack stack = stack_of(s);
    for (int i = 0; i < m->n_state + m->n_out && !err; i++)
        if (s->n->out[i] != YK_ABSENT)
            err = join(&stack, i, &results[i], 0, false, &out[i], why);
    lists_free(results, m->n_state + m->n_out);
    return err;
}

/* ---- SequenceMap ---- */

static yk_err run_map(struct dynamic *d, struct frame *f, const struct node *n, struct dyn_value *const *in,
    struct dyn_value **out, struct yk_diag *why)
{
    const struct graph *body = subgraph(n, "body");
    struct list lists[OP_MAX_OUT] = {{0}};
    struct trip t = {{NULL}, {NULL}};
    yk_err err = YK_OK;
    if (in[0]->type != VALUE_SEQUENCE)
        return yk_fail(why, YK_INVAL, "input 0 is no sequence");
    for (int i = 1; i < n->n_in; i++)
        if (in[i]->type == VALUE_SEQUENCE && in[i]->n != in[0]->n)
            return yk_fail(why, YK_INVAL, "input %d has %lld members, input 0 has %lld", i, (long long)in[i]->n,
                (long long)in[0]->n);
    for (int64_t k = 0; k < in[0]->n && !err; k++) {
        for (int i = 0; i < n->n_in; i++)
            t.in[i] = in[i]->type == VALUE_SEQUENCE ? in[i]->items[k] : in[i]; /* borrowed */
        err = dynamic_graph_run(d, f, body, k, t.in, t.out, why);
        for (int i = 0; i < n->n_out && !err; i++) {
            if (t.out[i]->type != VALUE_TENSOR)
                err = yk_fail(why, YK_INVAL, "output %d of its body is no tensor", i);
            else if (!(err = list_add(&lists[i], t.out[i], why)))
                t.out[i] = NULL;
        }
        drop(t.out, n->n_out);
    }
    for (int i = 0; i < n->n_out && !err; i++) {
        enum dtype dtype = lists[i].n ? lists[i].at[0]->tensor.shape.dtype : body->values[body->outputs[i]].dtype;
        err = dyn_list(d->heap, VALUE_SEQUENCE, dtype, lists[i].at, lists[i].n, &out[i], why);
    }
    lists_free(lists, n->n_out);
    return err;
}

yk_err dynamic_control(struct dynamic *d, struct frame *f, const struct node *n, struct dyn_value *const *in,
    struct dyn_value **out, struct yk_diag *why)
{
    const char *name = n->op->name;
    yk_err err = op_control_check(n, why);
    if (err)
        return err;
    if (strcmp(name, "If") == 0)
        return run_if(d, f, n, in, out, why);
    if (strcmp(name, "Loop") == 0)
        return run_loop(d, f, n, in, out, why);
    if (strcmp(name, "SequenceMap") == 0)
        return run_map(d, f, n, in, out, why);
    struct scan s = {.d = d, .f = f, .n = n, .body = subgraph(n, "body")};
    if ((err = op_scan_dims(n, &s.dims, why)))
        return err;
    return s.dims.batched ? run_batch_scan(&s, in, out, why) : run_scan(&s, in, out, why);
}
