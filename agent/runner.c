#include "agent/runner.h"

#include "agent/control.h"
#include "agent/edge.h"
#include "agent/machine.h"
#include "agent/spans.h"
#include "agent/training.h"

#include <stdlib.h>
#include <string.h>

#define STATS_US 500000
#define JOINED_US 3000 /* runs nearer than this follow on each other: timers fire late, the pace does not */
#define LATE_FRAC 0.05

struct runner {
    bool busy, handing_over;
    struct stage *stage; /* what runs */
    struct out_slot *out;
    int slot;            /* of a training */
    struct in_slot **in; /* one per edge into the stage */
    int n_in;
    struct tensor *in_t, *out_t;
    struct dyn_value **made; /* by graph output */
    int64_t *sizes;
    yk_err err;
    struct yk_diag why;
    int64_t began_us, took_us; /* on the loop's clock; of the run itself */
    double target_ms;          /* of the emulated device; 0: none */
    int64_t paced_us;          /* when the emulated device ended its last run */
    struct net_timer *pad;
    int64_t busy_us, since_us, opened_us;
    int64_t idle_us; /* when the last run ended */
    int64_t turn_us; /* of the pipeline that ran last, before that */
};

void runner_open(struct agent *a)
{
    a->runner = yk_xalloc(sizeof *a->runner);
    a->runner->since_us = a->runner->opened_us = net_now_us(a->net);
    a->runner->paced_us = a->runner->since_us - 2 * JOINED_US;
}

double runner_load(struct agent *a)
{
    struct runner *r = a->runner;
    int64_t now = net_now_us(a->net), span = now - r->since_us;
    double load = span > 0 ? (double)r->busy_us / (double)span : 0;
    r->busy_us = 0;
    r->since_us = now;
    return YK_MIN(load, 1.0);
}

/* ---- stats ---- */

static void send_stats(struct pipeline *p, struct stage *s)
{
    if (!s->microbatches && !s->sent_bytes)
        return;
    struct wire_stage_stats w = {.generation = p->generation,
        .stage = s->index,
        .microbatches = s->microbatches,
        .compute_ms = s->compute_ms,
        .wait_ms = s->wait_ms,
        .sent_bytes = s->sent_bytes,
        .send_ms = s->send_ms,
        .codec_error = s->codec_error,
        .nonfinite = s->nonfinite,
        .late = s->late};
    control_send(p->agent, WIRE_TYPE_stage_stats, &w);
    s->microbatches = s->sent_bytes = s->nonfinite = s->late = 0;
    s->compute_ms = s->wait_ms = s->send_ms = s->codec_error = 0;
}

static void send_all(struct pipeline *p)
{
    for (int i = 0; i < p->n_stages; i++)
        send_stats(p, &p->stages[i]);
    if (p->is_source)
        send_stats(p, &p->source);
    spans_send(p);
}

static void on_stats(void *arg)
{
    struct pipeline *p = arg;
    p->stats_timer = NULL;
    send_all(p);
}

void runner_stats(struct pipeline *p, bool now)
{
    if (now)
        send_all(p);
    else if (!p->stats_timer && p->state == PIPELINE_READY)
        p->stats_timer = net_timer(p->agent->net, STATS_US, on_stats, p);
}

/* ---- one run ---- */

/* What the stage made on its heap, into the slot. */
static yk_err keep_made(struct runner *r)
{
    const struct stage *s = r->stage;
    const struct graph *g = s->p->graph;
    for (int32_t i = s->n_planned; i < s->n_out; i++) {
        const struct dyn_value *v = NULL;
        struct made *m = &r->out->made[i - s->n_planned];
        const char *name = g->values[s->out_values[i]].name;
        for (int32_t k = 0; k < g->n_outputs && !v; k++)
            v = g->outputs[k] == s->out_values[i] ? r->made[k] : NULL;
        int64_t bytes = v && v->type == VALUE_TENSOR ? shape_bytes(&v->tensor.shape) : -1;
        if (bytes < 0)
            return yk_fail(&r->why, YK_UNSUPPORTED, "output '%.80s' is no tensor: only `yoke local` returns it", name);
        if (bytes > PIPELINE_MADE_LIMIT)
            return yk_fail(&r->why, YK_LIMIT, "output '%.80s' has %lld bytes; the limit is %lld", name,
                (long long)bytes, (long long)PIPELINE_MADE_LIMIT);
        if (!m->mem || bytes > m->cap) {
            free(m->mem);
            m->cap = 0;
            if (!(m->mem = yk_try_aligned((size_t)bytes + MEMPLAN_ALIGN)))
                return yk_fail(&r->why, YK_NOMEM, "no memory for %lld bytes of output '%.80s'", (long long)bytes, name);
            m->cap = bytes;
        }
        if (bytes)
            memcpy(m->mem, v->tensor.data, (size_t)bytes);
        r->out->t[i] = (struct tensor){v->tensor.shape, m->mem};
    }
    return YK_OK;
}

static void compute_run(void *arg)
{
    struct agent *a = arg;
    struct runner *r = a->runner;
    int64_t began = machine_monotonic_us();
    if (r->stage->half) {
        r->err = training_run(r->stage, r->slot, &r->out->micro, r->sizes, r->in_t, r->out_t, &r->why);
        r->took_us = machine_monotonic_us() - began;
        return;
    }
    r->err = exec_run_made(r->stage->exec, r->sizes, r->in_t, r->out_t, r->made, (uint64_t)r->out->microbatch, &r->why);
    if (!r->err)
        r->err = keep_made(r);
    for (int32_t k = 0; k < r->stage->p->graph->n_outputs; k++)
        dyn_unref(r->made[k]);
    r->took_us = machine_monotonic_us() - began;
}

/* What ran, and that nothing did before. */
static void note(const struct runner *r, int64_t now)
{
    const struct stage *s = r->stage;
    const struct out_slot *o = r->out;
    if (r->idle_us && r->began_us > r->idle_us)
        spans_add(s->p, SPAN_WAIT, s->index, "", &o->micro, o->microbatch, r->idle_us, r->began_us);
    spans_add(
        s->p, s->half ? training_kind(s) : SPAN_FORWARD, s->index, "", &o->micro, o->microbatch, r->began_us, now);
}

static void finish(struct agent *a)
{
    struct runner *r = a->runner;
    struct stage *s = r->stage;
    struct pipeline *p = s->p;
    struct out_slot *out = r->out;
    struct in_slot **in = r->in;
    int n_in = r->n_in;
    int64_t now = net_now_us(a->net);
    if (s->half && !r->err) /* of the forward half it is the trainer's memory */
        memcpy(out->t, r->out_t, (size_t)s->n_out * sizeof *out->t);
    note(r, now);
    r->idle_us = now;
    p->turn_us = r->turn_us + (now - r->began_us);
    r->busy = false;
    r->stage = NULL;
    r->in = NULL;
    r->busy_us += now - YK_MAX(r->began_us, r->since_us);
    free(r->in_t);
    free(r->out_t);
    free(r->made);
    free(r->sizes);
    s->running = false;
    s->idle_since_us = now;
    if (!r->err) {
        s->microbatches++;
        s->compute_ms += YK_MAX((double)r->took_us / 1e3, r->target_ms);
        p->used_us = now;
    }
    if (r->err && p->state == PIPELINE_READY)
        pipeline_fail(p, s->index, "", r->err, "microbatch %lld: %s", (long long)out->microbatch,
            r->why.text[0] ? r->why.text : yk_err_text(r->err));
    if (p->state == PIPELINE_READY) {
        r->handing_over = true; /* a stage here that reads of it wakes before the inputs are given back */
        if (s->half)
            training_tell(s);
        out->users = 1; /* ours, until all edges have it */
        for (int i = 0; i < p->n_edges; i++)
            if (p->edges[i].from == s && !p->edges[i].sums) {
                out->users++;
                edge_push(&p->edges[i], out);
            }
        for (int i = 0; i < n_in; i++)
            edge_consumed(in[i], s);
        if (s->half)
            training_ran(s, r->slot, &out->micro);
        edge_out_release(out);
        r->handing_over = false;
        runner_stats(p, false);
    }
    free(in);
    pipeline_release(p);
    runner_kick(a);
    control_check_backends(a);
}

static void on_pad(void *arg)
{
    struct agent *a = arg;
    a->runner->pad = NULL;
    finish(a);
}

void runner_stop(struct agent *a)
{
    if (!a->runner || !a->runner->pad)
        return;
    net_timer_cancel(a->runner->pad);
    on_pad(a);
}

void runner_close(struct agent *a)
{
    free(a->runner);
    a->runner = NULL;
}

static void compute_done(void *arg)
{
    struct agent *a = arg;
    struct runner *r = a->runner;
    if (r->target_ms <= 0 || r->err || r->stage->p->state != PIPELINE_READY || a->closing) {
        finish(a);
        return;
    }
    int64_t now = net_now_us(a->net), target = (int64_t)(r->target_ms * 1e3);
    int64_t start = r->began_us - r->paced_us < JOINED_US ? YK_MIN(r->paced_us, r->began_us) : r->began_us;
    r->paced_us = start + target;
    if (r->paced_us > now) {
        r->pad = net_timer(a->net, r->paced_us - now, on_pad, a);
        return;
    }
    if ((double)(now - r->paced_us) > LATE_FRAC * (double)target)
        r->stage->late++;
    r->paced_us = now;
    finish(a);
}

static void start(struct agent *a, struct stage *s, int stage_at, int64_t microbatch, struct out_slot *out)
{
    struct runner *r = a->runner;
    struct pipeline *p = s->p;
    struct yk_diag why = {0};
    r->in = yk_xalloc((size_t)p->n_edges * sizeof *r->in + 1);
    r->n_in = 0;
    for (int i = 0; i < p->n_edges; i++)
        if (edge_feeds(&p->edges[i], s))
            r->in[r->n_in++] = edge_ready(&p->edges[i], s, microbatch);
    int64_t count = r->in[0]->count;
    const struct pipeline_shapes *at = pipeline_shapes(p, count, &why);
    for (int i = 0; i < r->n_in; i++)
        if (r->in[i]->count != count)
            at = NULL;
    if (!at) {
        free(r->in);
        r->in = NULL;
        pipeline_fail(
            p, s->index, "", YK_FORMAT, "microbatch %lld: its parts do not fit each other", (long long)microbatch);
        return;
    }
    r->in_t = yk_xalloc((size_t)s->n_in * sizeof *r->in_t + 1);
    r->out_t = yk_xalloc((size_t)s->n_out * sizeof *r->out_t + 1);
    r->made = yk_xalloc((size_t)p->graph->n_outputs * sizeof(struct dyn_value *) + 1);
    r->sizes = yk_xalloc((size_t)p->graph->n_syms * sizeof *r->sizes + 1);
    for (int32_t i = 0; i < p->graph->n_syms; i++)
        r->sizes[i] = i == p->batch_sym ? count : p->sizes[i];
    for (int32_t i = 0; i < s->n_in; i++)
        r->in_t[i] = edge_ready(s->inputs[i].edge, s, microbatch)->t[s->inputs[i].position];
    for (int32_t i = 0; i < s->n_planned; i++) {
        out->t[i].shape = at->shapes.of[s->out_values[i]];
        r->out_t[i] = out->t[i];
    }
    out->busy = true;
    out->microbatch = microbatch;
    out->count = count;
    out->micro = r->in[0]->micro;
    if (s->half)
        training_begun(s, r->slot, microbatch);
    r->busy = true;
    r->stage = s;
    r->out = out;
    r->err = YK_OK;
    r->why.text[0] = 0;
    r->began_us = net_now_us(a->net);
    r->target_ms = a->emulate && at->flops ? emulate_compute_ms(a->emulate, at->flops[stage_at]) : 0;
    if (r->target_ms > 0)
        r->target_ms *= emulate_slowdown(&a->emulate->throttle, (double)(r->began_us - r->opened_us) / 1e6);
    if (s->idle_since_us)
        s->wait_ms += (double)(r->began_us - s->idle_since_us) / 1e3;
    s->running = true;
    p->busy++;
    worker_post(a->runner_thread, compute_run, compute_done, a);
}

/* The lowest microbatch that s could run now, -1 if none. */
static int64_t runnable(struct stage *s)
{
    struct pipeline *p = s->p;
    struct edge *first = s->n_in ? s->inputs[0].edge : NULL;
    int64_t best = -1;
    for (int64_t k = 0; first && k < first->w->credits; k++) {
        int64_t m = first->in[k].microbatch;
        bool all = first->in[k].state == IN_READY && (best < 0 || m < best);
        for (int i = 0; all && i < p->n_edges; i++)
            if (edge_feeds(&p->edges[i], s) && !edge_ready(&p->edges[i], s, m))
                all = false;
        if (all)
            best = m;
    }
    return best;
}

/* Where the outputs of a microbatch of s can go; NULL if it cannot run now. */
static struct out_slot *free_out(struct stage *s, int64_t microbatch)
{
    if (microbatch < 0)
        return NULL;
    if (s->half) {
        int slot;
        const struct in_slot *in = edge_ready(s->inputs[0].edge, s, microbatch);
        return training_ready(s, microbatch, &in->micro, &slot) ? &s->outs[slot] : NULL;
    }
    for (int64_t k = 0; k < s->depth; k++)
        if (!s->outs[k].busy)
            return &s->outs[k];
    return NULL;
}

/* The stage of p that is next, and its microbatch; -1: none can run. */
static int next_stage(struct pipeline *p, int64_t *microbatch)
{
    int at = -1;
    for (int i = 0; p->state == PIPELINE_READY && i < p->n_stages; i++) {
        int64_t m = runnable(&p->stages[i]);
        if (free_out(&p->stages[i], m) &&
            (at < 0 || m < *microbatch || (m == *microbatch && p->stages[i].index > p->stages[at].index))) {
            at = i;
            *microbatch = m;
        }
    }
    return at;
}

/* Pipelines have equal parts of the time: the one that had least goes first. Who could not run meanwhile saves nothing
 * up by that.
 * Source: P. Goyal, H. M. Vin, H. Cheng, Start-time fair queuing, SIGCOMM 1996. */
void runner_kick(struct agent *a)
{
    struct runner *r = a->runner;
    while (!r->busy && !r->handing_over && !a->closing) {
        struct pipeline *next = NULL;
        int64_t microbatch = 0, m = 0, first = 0;
        int at = -1;
        for (struct pipeline *p = a->pipelines; p; p = p->next) {
            int64_t turn = YK_MAX(p->turn_us, r->turn_us);
            int stage = next && turn >= first ? -1 : next_stage(p, &m);
            if (stage < 0)
                continue;
            next = p;
            at = stage;
            microbatch = m;
            first = turn;
        }
        if (!next)
            return;
        struct out_slot *out = free_out(&next->stages[at], microbatch);
        r->slot = (int)(out - next->stages[at].outs);
        r->turn_us = first;
        start(a, &next->stages[at], at, microbatch, out);
    }
}

void runner_forget(struct agent *a, struct pipeline *p)
{
    struct runner *r = a->runner;
    if (!r || !r->busy || r->stage->p != p)
        return;
    if (r->stage->half)
        training_cancel(r->stage);
    else
        exec_cancel(r->stage->exec);
    if (r->pad) { /* only the pace was left to wait for */
        net_timer_cancel(r->pad);
        r->pad = net_timer(a->net, 0, on_pad, a);
    }
}
