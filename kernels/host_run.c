/* Runs of a segment: step by step, or a chain of them at once. */
#include "kernels/host_priv.h"

#include "kernels/chain.h"

#include <time.h>

static double now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

static void *address(const struct slot *s, const struct backend_run *run)
{
    switch (s->kind) {
    case SLOT_ABSENT:
        return NULL;
    case SLOT_WEIGHT:
        return (void *)(uintptr_t)s->data; /* kernels do not write to inputs */
    case SLOT_IN:
        return run->in[s->at]->host;
    case SLOT_OUT:
        return run->out[s->at]->host;
    case SLOT_PLACE:
        return (char *)run->scratch + s->at;
    }
    return NULL;
}

static void fill_tensor(struct tensor *t, const struct slot *s, const struct backend_run *run)
{
    if (s->kind == SLOT_ABSENT) {
        t->shape.dtype = DT_NONE;
        t->shape.rank = -1;
        t->data = NULL;
        return;
    }
    t->shape = run->shapes->of[s->value];
    t->data = address(s, run);
}

/* What step st gets; false if it has nothing to make. */
static bool fill_call(
    struct host *h, struct segment *s, struct step *st, const struct backend_run *run, struct host_call *c)
{
    const struct node *n = &s->graph->nodes[st->node];
    c->graph = s->graph;
    c->node = n;
    c->n_in = n->n_in;
    c->n_out = n->n_out;
    c->packed = st->packed;
    c->last_in = st->last_in;
    c->last_out = st->last_out;
    c->workspace = run->scratch ? (char *)run->scratch + s->workspace_offset : NULL;
    c->pool = h->pool;
    c->seed = run->seed;
    c->why = &s->why;
    bool work = false;
    for (int k = 0; k < n->n_in; k++)
        fill_tensor(&c->in[k], &st->in[k], run);
    for (int k = 0; k < n->n_out; k++) {
        fill_tensor(&c->out[k], &st->out[k], run);
        work |= c->out[k].shape.dtype != DT_NONE && tensor_count(&c->out[k]) > 0;
    }
    return work;
}

static yk_err run_step(struct host *h, struct segment *s, struct step *st, const struct backend_run *run)
{
    if (!fill_call(h, s, st, run, &s->call))
        return YK_OK;
    s->why.text[0] = 0;
    yk_err err = st->kernel->run(&s->call);
    if (err)
        yk_wrap(&s->why, err, "node %d '%s' (%s)", (int)st->node, s->call.node->name, s->call.node->op->name);
    return err;
}

/* Runs the chain that begins with step i; false: its steps run one by one. */
static bool run_chain(struct host *h, struct segment *s, int32_t i, const struct backend_run *run)
{
    struct step *st = &s->steps[i];
    for (int k = 0; k < st->span; k++)
        if (!fill_call(h, s, st + k, run, &s->calls[k]))
            return false;
    return chain_run(s->calls, s->kernels + i, st->span, st->unread);
}

void host_submit(struct backend *b, void *handle, const struct backend_run *run,
    void (*done)(void *arg, yk_err err, const char *why), void *arg)
{
    struct host *h = (struct host *)b;
    struct segment *s = handle;
    yk_err err = YK_OK;
    /* A cancel that came too late for the last run is not meant for this one. */
    atomic_store(&s->canceled, false);
    double before = run->trace ? now_ms() : 0;
    for (int32_t i = 0; i < s->n_steps && !err;) {
        if (atomic_load_explicit(&s->canceled, memory_order_relaxed)) {
            err = yk_fail(&s->why, YK_CANCELED, "canceled");
            break;
        }
        /* A traced run takes nodes one by one: each has a time of its own, and its values where they belong. */
        int span = s->steps[i].span;
        if (run->trace || span == 1 || !run_chain(h, s, i, run)) {
            span = 1;
            err = run_step(h, s, &s->steps[i], run);
        }
        double after = run->trace ? now_ms() : 0;
        if (run->trace)
            run->trace(run->trace_arg, s->steps[i].node, after - before);
        for (int k = 0; k < span && !err && run->made; k++)
            run->made(run->made_arg, s->steps[i + k].node);
        before = run->trace ? now_ms() : 0;
        i += span;
    }
    done(arg, err, err ? s->why.text : "");
}

void host_cancel(struct backend *b, void *handle)
{
    (void)b;
    atomic_store(&((struct segment *)handle)->canceled, true);
}
