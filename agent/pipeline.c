#include "agent/pipeline.h"

#include "agent/control.h"
#include "agent/edge.h"
#include "agent/load.h"
#include "agent/runner.h"
#include "agent/source.h"
#include "agent/training.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FAILED_US 30000000           /* whoever was told of a failure unloads; if not, this ends it */
#define IDLE_US ((int64_t)900000000) /* yoked unloads much earlier */

struct pipeline *pipeline_find(struct agent *a, int64_t generation)
{
    struct pipeline *p = a->pipelines;
    while (p && p->generation != generation)
        p = p->next;
    return p;
}

struct stage *pipeline_stage(struct pipeline *p, int64_t index)
{
    if (index == -1)
        return p->is_source ? &p->source : NULL;
    for (int i = 0; i < p->n_stages; i++)
        if (p->stages[i].index == index)
            return &p->stages[i];
    return NULL;
}

/* FLOPs of each stage here, for the pace of an emulated device. */
static void count_flops(struct pipeline *p, struct pipeline_shapes *at)
{
    struct op_ctx *c = yk_xalloc(sizeof *c);
    free(at->flops);
    at->flops = yk_xalloc((size_t)p->n_stages * sizeof *at->flops + 1);
    for (int i = 0; i < p->n_stages; i++)
        for (int32_t n = 0; n < p->graph->n_nodes; n++)
            if (p->stages[i].in_stage[n]) {
                memset(c, 0, sizeof *c);
                shapes_node(p->graph, &at->shapes, n, c);
                at->flops[i] += op_flops(c);
            }
    free(c);
}

const struct pipeline_shapes *pipeline_shapes(struct pipeline *p, int64_t count, struct yk_diag *why)
{
    bool full = count == p->full || p->batch_sym < 0;
    struct pipeline_shapes *at = &p->at[full ? 0 : 1];
    if (!full && at->count != count) {
        struct shapes made;
        int64_t *sizes = yk_xalloc((size_t)p->graph->n_syms * sizeof *sizes + 1);
        memcpy(sizes, p->sizes, (size_t)p->graph->n_syms * sizeof *sizes);
        sizes[p->batch_sym] = count;
        yk_err err = shapes_infer(p->graph, sizes, NULL, &made, why);
        free(sizes);
        if (err)
            return NULL;
        if (at->count)
            shapes_fini(&at->shapes);
        at->shapes = made;
        at->count = count;
        free(at->flops);
        at->flops = NULL;
    }
    if (p->agent->emulate && !at->flops)
        count_flops(p, at);
    return at;
}

void pipeline_fail(struct pipeline *p, int64_t stage, const char *peer, yk_err err, const char *fmt, ...)
{
    struct yk_diag why;
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(why.text, sizeof why.text, fmt, ap);
    va_end(ap);
    if (p->state == PIPELINE_LOADING) {
        log_warn("generation %lld cannot be loaded: %s", (long long)p->generation, why.text);
        load_send_error(p->agent, p->generation, err, why.text, p->lacking_bytes);
        pipeline_unload(p);
    } else if (p->state == PIPELINE_READY) {
        log_warn("generation %lld, stage %lld failed: %s", (long long)p->generation, (long long)stage, why.text);
        p->state = PIPELINE_FAILED;
        struct wire_stage_failed w = {.generation = p->generation,
            .stage = stage,
            .peer = peer ? peer : "",
            .error = yk_err_name(err),
            .text = why.text};
        control_send(p->agent, WIRE_TYPE_stage_failed, &w);
        source_stop(p, err, why.text);
        runner_forget(p->agent, p);
        p->used_us = net_now_us(p->agent->net);
    }
}

void pipeline_expire(struct agent *a)
{
    int64_t now = net_now_us(a->net);
    for (struct pipeline *p = a->pipelines, *next; p; p = next) {
        next = p->next;
        int64_t rest = now - p->used_us;
        if (p->state == PIPELINE_READY && !p->run && rest > IDLE_US)
            pipeline_fail(p, -1, "", YK_TIMEOUT, "nobody used it for %lld s", (long long)(rest / 1000000));
        else if (p->state != PIPELINE_FAILED || rest < FAILED_US)
            continue;
        pipeline_unload(p);
    }
}

/* ---- the end ---- */

static void close_run(void *arg)
{
    struct pipeline *p = arg;
    for (int i = 0; i < p->n_stages; i++) {
        exec_close(p->stages[i].exec);
        p->stages[i].exec = NULL;
    }
    training_close(p);
}

static void close_done(void *arg)
{
    load_free(arg);
}

void pipeline_release(struct pipeline *p)
{
    if (--p->busy == 0 && p->state == PIPELINE_DYING)
        worker_post(p->agent->runner_thread, close_run, close_done, p);
}

void pipeline_unload(struct pipeline *p)
{
    if (p->state == PIPELINE_DYING)
        return;
    struct pipeline **at = &p->agent->pipelines;
    p->busy++;
    if (p->state == PIPELINE_READY)
        runner_stats(p, true);
    p->state = PIPELINE_DYING;
    while (*at != p)
        at = &(*at)->next;
    *at = p->next;
    net_timer_cancel(p->timeout);
    net_timer_cancel(p->stats_timer);
    p->timeout = p->stats_timer = NULL;
    source_abort(p);
    runner_forget(p->agent, p);
    for (int i = 0; i < p->n_edges; i++)
        edge_close(&p->edges[i]);
    pipeline_release(p);
}

bool pipeline_spare(struct pipeline *p)
{
    struct stage *s = &p->source;
    const struct out_slot *like = &s->outs[0];
    struct out_slot *o = &s->outs[s->depth];
    int64_t bytes = 0;
    if (o->mem)
        return true;
    for (int32_t i = 0; i < s->n_out; i++) {
        struct shape full = p->at[0].shapes.of[s->out_values[i]];
        int64_t at = (const uint8_t *)like->t[i].data - like->mem;
        bytes = YK_MAX(bytes, at + shape_bytes(&full));
    }
    int64_t held = bytes;
    for (const struct pipeline *q = p->agent->pipelines; q; q = q->next)
        held += q->memory_bytes;
    if (p->agent->memory_bytes > 0 && held > p->agent->memory_bytes)
        return false;
    uint8_t *mem = yk_try_aligned((size_t)bytes + MEMPLAN_ALIGN);
    if (!mem)
        return false;
    p->memory_bytes += bytes;
    o->stage = s;
    o->mem = mem;
    o->t = yk_xalloc((size_t)s->n_out * sizeof *o->t + 1);
    for (int32_t i = 0; i < s->n_out; i++) {
        o->t[i] = like->t[i];
        o->t[i].data = mem + ((const uint8_t *)like->t[i].data - like->mem);
    }
    return true;
}
