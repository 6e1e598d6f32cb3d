#include "agent/source_priv.h"

#include "agent/blob.h"
#include "agent/control.h"
#include "agent/edge.h"
#include "agent/runner.h"
#include "agent/source_judge.h"
#include "agent/spans.h"
#include "agent/training.h"
#include "common/hash.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BLOB_LIMIT ((int64_t)4 << 30)

static void run_free(struct pipeline *p)
{
    struct source_run *r = p->run;
    struct cache *c = p->agent->cache;
    p->run = NULL;
    net_timer_cancel(r->timeout);
    source_data_close(&r->data, c);
    free(r->fetches);
    for (int64_t i = 0; i < r->n_flights; i++)
        free(r->flights[i].labels);
    for (int64_t i = 0; r->sums && i <= r->n_flights; i++)
        free(r->sums[i].loss);
    free(r->sums);
    free(r->flights);
    wire_free(&r->msg);
    wire_free(&r->next);
    free(r);
}

void source_free(struct pipeline *p)
{
    if (p->run)
        run_free(p);
}

static void report(struct pipeline *p)
{
    struct source_run *r = p->run;
    struct wire_run_done w = {.generation = p->generation,
        .job = r->w->job,
        .error = r->err ? yk_err_name(r->err) : "",
        .text = r->err ? r->why.text : "",
        .ms = (double)(net_now_us(p->agent->net) - r->began_us) / 1e3};
    runner_stats(p, true);
    r->reported = control_send(p->agent, WIRE_TYPE_run_done, &w) == YK_OK;
}

/* A run that is over goes when nothing of it flies; then a waiting one begins. */
static void maybe_end(struct pipeline *p)
{
    struct source_run *r = p->run;
    if (!r || !r->over || r->flying || r->opening || r->judging || (!r->reported && p->state == PIPELINE_READY))
        return;
    struct wire_msg next = r->next;
    r->next.arena = NULL;
    run_free(p);
    if (next.arena && p->state == PIPELINE_READY)
        source_start(p, &next);
    else if (next.arena)
        wire_free(&next);
}

void source_end(struct pipeline *p, yk_err err)
{
    struct source_run *r = p->run;
    if (r->over)
        return;
    r->over = true;
    r->err = err;
    net_timer_cancel(r->timeout);
    r->timeout = NULL;
    if (err)
        log_info("job %.40s: run ended: %s", r->w->job, r->why.text);
    report(p);
}

void source_stop(struct pipeline *p, yk_err err, const char *why)
{
    if (!p->run || p->run->over)
        return;
    yk_fail(&p->run->why, err, "%s", why);
    source_end(p, err);
    source_kick(p);
}

void source_halt(struct pipeline *p)
{
    struct source_run *r = p->run;
    if (!r || r->over || !p->training)
        return;
    struct wire_halted w = {.generation = p->generation, .step = r->w->step};
    if (r->open) {
        w.step = (r->at + r->per_step - 1) / r->per_step; /* what is begun is ended */
        r->halt = YK_MIN(r->halt, w.step * r->per_step);
    } else {
        r->halt = 0;
    }
    control_send(p->agent, WIRE_TYPE_halted, &w);
}

void source_abort(struct pipeline *p)
{
    struct source_run *r = p->run;
    if (!r)
        return;
    r->over = r->reported = true;
    net_timer_cancel(r->timeout);
    r->timeout = NULL;
}

/* ---- opening ---- */

static void refuse(struct agent *a, const struct wire_run *w, yk_err err, const char *text)
{
    struct wire_run_done done = {.generation = w->generation, .job = w->job, .error = yk_err_name(err), .text = text};
    control_send(a, WIRE_TYPE_run_done, &done);
}

/* Which of the samples it is about. */
static yk_err take_steps(struct source_run *r)
{
    const struct sampler *s = &r->data.batches.sampler;
    const struct train_config *c = &r->p->training->config;
    r->samples = r->data.samples;
    if (!yk_mul_i64(sampler_steps(s), c->epochs, &r->steps))
        return yk_fail(
            &r->why, YK_LIMIT, "%lld epochs of %lld steps", (long long)c->epochs, (long long)sampler_steps(s));
    if (c->warmup > 0 && c->warmup >= r->steps)
        return yk_fail(
            &r->why, YK_INVAL, "--warmup=%lld steps; the training has %lld", (long long)c->warmup, (long long)r->steps);
    r->per_step = (r->w->batch + r->w->microbatch - 1) / r->w->microbatch;
    r->microbatches = r->steps * r->per_step;
    if (r->w->step < 0 || r->w->step > r->steps)
        return yk_fail(
            &r->why, YK_INVAL, "step %lld of a training of %lld", (long long)r->w->step, (long long)r->steps);
    r->at = r->w->step * r->per_step;
    return YK_OK;
}

static yk_err take_samples(struct source_run *r)
{
    if (r->p->training)
        return take_steps(r);
    int64_t total = r->data.samples, first = r->w->first;
    if (first < 0 || first > total || r->w->count < 0 || r->w->count > total - first)
        return yk_fail(&r->why, YK_INVAL, "samples %lld to %lld of %lld", (long long)first,
            (long long)(first + r->w->count), (long long)total);
    r->samples = r->w->count ? r->w->count : total - first;
    r->microbatches = (r->samples + r->w->microbatch - 1) / r->w->microbatch;
    return YK_OK;
}

static void open_run(void *arg)
{
    struct source_run *r = arg;
    r->err = source_data_open(&r->data, r->p, r->w, &r->why);
    if (!r->err)
        r->err = take_samples(r);
}

/* The sizes of microbatches that will come, before the first step: a layer may refuse one. */
static yk_err check_sizes(struct source_run *r)
{
    struct pipeline *p = r->p;
    if (!p->training || p->batch_sym < 0 || r->samples < 1)
        return YK_OK;
    int64_t batch = YK_MIN(r->w->batch, r->samples), m = r->w->microbatch, last = r->samples % batch;
    const int64_t counts[] = {batch % m, last % m, last >= m || batch >= m ? m : 0};
    for (size_t i = 0; i < YK_COUNT(counts); i++)
        if (counts[i] > 0 && !pipeline_shapes(p, counts[i], &r->why))
            return yk_wrap(&r->why, YK_INVAL, "%lld samples in batches of %lld and microbatches of %lld: one of %lld",
                (long long)r->samples, (long long)r->w->batch, (long long)m, (long long)counts[i]);
    return YK_OK;
}

static void open_done(void *arg)
{
    struct source_run *r = arg;
    struct pipeline *p = r->p;
    r->opening--;
    if (!r->over && !r->err && p->state == PIPELINE_READY)
        r->err = check_sizes(r);
    if (!r->over && r->err) {
        source_end(p, r->err);
    } else if (!r->over) {
        struct wire_run_started w = {.generation = p->generation,
            .job = r->w->job,
            .samples = r->samples,
            .microbatches = r->microbatches,
            .steps = r->steps,
            .epoch_steps = p->training ? sampler_steps(&r->data.batches.sampler) : 0,
            .note = r->data.note,
            .no_test = p->training && !data_has_test(r->data.batches.set)};
        r->open = true;
        if (r->data.images && pipeline_spare(p))
            r->n_flights++;
        control_send(p->agent, WIRE_TYPE_run_started, &w);
    }
    source_kick(p);
    pipeline_release(p);
}

static void start_open(struct source_run *r)
{
    r->opening++;
    r->p->busy++;
    worker_post(r->p->agent->data, open_run, open_done, r);
}

static void on_blob(void *arg, yk_err err, const char *why, struct cache_entry *e, int64_t fetched)
{
    (void)fetched;
    struct fetch *f = arg;
    struct source_run *r = f->run;
    struct pipeline *p = r->p;
    r->opening--;
    *f->into = e;
    if (err && !r->over) {
        yk_fail(&r->why, err, "%s", why);
        source_end(p, err);
    } else if (!r->over && !r->opening) {
        start_open(r);
    }
    source_kick(p);
    pipeline_release(p);
}

/* Fetches what was uploaded: the inputs and their labels. */
static void start_fetch(struct source_run *r)
{
    struct agent *a = r->p->agent;
    const struct wire_run *w = r->w;
    int64_t limit = a->memory_bytes > 0 ? YK_MIN(BLOB_LIMIT, a->memory_bytes) : BLOB_LIMIT;
    int n = 0, total = r->data.n + (w->labels[0] != 0);
    r->fetches = yk_xalloc((size_t)total * sizeof *r->fetches + 1);
    r->opening += total;
    r->p->busy += total;
    for (; n < r->data.n; n++) {
        r->fetches[n] = (struct fetch){r, &r->data.at[n].blob};
        blob_fetch(a, w->inputs.n ? w->inputs.at[n].data : w->data, limit, on_blob, &r->fetches[n]);
    }
    if (n < total) {
        r->fetches[n] = (struct fetch){r, &r->data.labels};
        blob_fetch(a, w->labels, limit, on_blob, &r->fetches[n]);
    }
}

static void on_timeout(void *arg)
{
    struct pipeline *p = arg;
    p->run->timeout = NULL;
    source_stop(p, YK_TIMEOUT, "the run took longer than it may");
}

static yk_err check_run(struct pipeline *p, const struct wire_run *w, struct yk_diag *why)
{
    if (!p->is_source)
        return yk_fail(why, YK_INVAL, "this agent is not the source of generation %lld", (long long)p->generation);
    if (w->microbatch < 1 || w->microbatch > p->full || (p->batch_sym < 0 && w->microbatch != p->full))
        return yk_fail(why, YK_INVAL, "microbatch %lld; the pipeline is loaded for %lld", (long long)w->microbatch,
            (long long)p->full);
    if (w->blob && ((!w->inputs.n && !hash_is_hex(w->data)) || (w->labels[0] && !hash_is_hex(w->labels))))
        return yk_fail(why, YK_FORMAT, "the hash of the data is malformed");
    if (p->training && w->batch < 1)
        return yk_fail(why, YK_INVAL, "a training in batches of %lld samples", (long long)w->batch);
    if (w->done.n % 2)
        return yk_fail(why, YK_FORMAT, "done is not a list of pairs");
    return YK_OK;
}

void source_start(struct pipeline *p, struct wire_msg *msg)
{
    const struct wire_run *given = &msg->as.run;
    struct agent *a = p->agent;
    struct yk_diag why = {0};
    struct source_data data = {0};
    yk_err err = check_run(p, given, &why);
    if (!err)
        err = source_data_plan(&data, p, given, &why);
    if (!err && p->run && (!p->run->over || p->run->next.arena))
        err = yk_fail(&why, YK_BUSY, "generation %lld is running job %.40s", (long long)p->generation, p->run->w->job);
    if (err || p->run)
        source_data_close(&data, a->cache);
    if (err) {
        refuse(a, given, err, why.text);
        wire_free(msg);
        msg->arena = NULL;
        return;
    }
    if (p->run) { /* the last run drains */
        p->run->next = *msg;
        msg->arena = NULL;
        return;
    }
    struct source_run *r = yk_xalloc(sizeof *r);
    p->run = r;
    r->p = p;
    r->msg = *msg;
    msg->arena = NULL;
    r->w = &r->msg.as.run;
    r->data = data;
    r->began_us = net_now_us(a->net);
    r->halt = INT64_MAX;
    r->n_flights = p->source.depth;
    r->flights = yk_xalloc(((size_t)r->n_flights + 1) * sizeof *r->flights);
    for (int64_t i = 0; i <= r->n_flights; i++)
        r->flights[i].p = p;
    if (p->training)
        r->sums = yk_xalloc(((size_t)r->n_flights + 2) * sizeof *r->sums);
    if (r->w->timeout_ms > 0)
        r->timeout = net_timer(a->net, YK_MIN(r->w->timeout_ms, (int64_t)1 << 40) * 1000, on_timeout, p);
    if (r->w->blob)
        start_fetch(r);
    else
        start_open(r);
}

/* ---- feeding ---- */

static bool is_done(const struct wire_run *w, int64_t m)
{
    for (size_t i = 0; i + 1 < w->done.n; i += 2)
        if (m >= w->done.at[i] && m <= w->done.at[i + 1])
            return true;
    return false;
}

static void read_run(void *arg)
{
    struct flight *f = arg;
    struct pipeline *p = f->p;
    struct source_run *r = p->run;
    /* A fixed batch is filled up; the results of what fills it are dropped. */
    int64_t full = p->batch_sym < 0 ? p->full : f->count;
    if (p->training) {
        f->err = source_data_read_step(&r->data, p, f->micro.step, f->first, f->count, f->slot->t, f->labels, &f->why);
        return;
    }
    f->err = source_data_read(&r->data, f->first, f->count, full, f->slot->t, f->labels, &f->why);
}

static void read_done(void *arg)
{
    struct flight *f = arg;
    struct pipeline *p = f->p;
    struct source_run *r = p->run;
    f->state = FLIGHT_READ;
    spans_add(p, SPAN_READ, -1, "", &f->micro, f->microbatch, f->read_us, net_now_us(p->agent->net));
    if (f->err && !r->over) {
        r->why = f->why;
        source_end(p, f->err);
    }
    source_kick(p);
    pipeline_release(p);
}

/* The flight is over: its slot, if it has one still, is free for the next. */
void source_drop(struct pipeline *p, struct flight *f)
{
    struct out_slot *slot = f->slot;
    f->slot = NULL;
    f->state = FLIGHT_FREE;
    p->run->flying--;
    if (slot)
        edge_out_release(slot);
}

/* An output is one of the inputs. */
static bool passes_input(const struct pipeline *p)
{
    for (int32_t i = 0; i < p->graph->n_outputs - p->graph->n_staying; i++)
        if (p->graph->values[p->graph->outputs[i]].kind == VALUE_INPUT)
            return true;
    return false;
}

/* What was read goes off in order, as many as the plan has in flight; one more may lie ready. */
static void launch(struct pipeline *p)
{
    struct source_run *r = p->run;
    for (;;) {
        struct flight *next = NULL;
        int64_t under_way = 0;
        for (int64_t i = 0; i < r->n_flights; i++) {
            struct flight *f = &r->flights[i];
            under_way += f->state == FLIGHT_FLYING || f->state == FLIGHT_SENDING;
            if (f->state == FLIGHT_READ && (!next || f->microbatch < next->microbatch))
                next = f;
        }
        if (!next || under_way >= p->source.depth)
            return;
        struct out_slot *slot = next->slot;
        bool keep = passes_input(p);
        next->slot = keep ? slot : NULL;
        next->state = FLIGHT_FLYING;
        for (int i = 0; i < p->n_edges; i++)
            if (p->edges[i].from == &p->source) {
                slot->users++;
                edge_push(&p->edges[i], slot);
            }
        if (!keep)
            edge_out_release(slot);
        runner_stats(p, false);
    }
}

static struct out_slot *free_slot(struct pipeline *p)
{
    for (int64_t k = 0; k <= p->source.depth; k++)
        if (p->source.outs[k].mem && !p->source.outs[k].busy)
            return &p->source.outs[k];
    return NULL;
}

/* Where microbatch r->at of a training lies; false: a smaller batch has none of this number. */
static bool place(struct source_run *r, struct flight *f)
{
    int64_t step = r->at / r->per_step, index = r->at % r->per_step, m = r->w->microbatch;
    struct sampler_batch b = sampler_batch(&r->data.batches.sampler, step);
    f->micro = (struct micro){.step = step, .index = index, .of = (b.count + m - 1) / m, .steps = r->steps};
    f->first = index * m;
    f->count = YK_MIN(m, b.count - f->first);
    f->summed = false;
    return index < f->micro.of;
}

static bool is_left_out(struct source_run *r, struct flight *f)
{
    if (r->p->training)
        return !place(r, f);
    f->first = r->w->first + r->at * r->w->microbatch;
    f->count = YK_MIN(r->w->microbatch, r->w->first + r->samples - f->first);
    return is_done(r->w, r->at);
}

/* Of a training's microbatch the ids are wanted where the scores tell a class. */
static bool wants_ids(const struct pipeline *p)
{
    const struct shape *target = &p->at[0].shapes.of[p->graph->inputs[p->training->target]];
    return target->dtype == DT_I64 && target->rank == 1;
}

static void feed(struct pipeline *p)
{
    struct source_run *r = p->run;
    for (int64_t i = 0; i < r->n_flights && !r->over; i++) {
        struct flight *f = &r->flights[i];
        if (f->state != FLIGHT_FREE)
            continue;
        while (r->at < r->microbatches && is_left_out(r, f))
            r->at++;
        struct out_slot *slot = free_slot(p);
        if (r->at == r->microbatches || r->at >= r->halt || !slot)
            return;
        f->microbatch = r->at++;
        int64_t count = p->batch_sym < 0 ? p->full : f->count;
        const struct pipeline_shapes *at = pipeline_shapes(p, count, &r->why);
        if (!at) {
            source_end(p, YK_INVAL);
            return;
        }
        f->state = FLIGHT_READING;
        f->read_us = net_now_us(p->agent->net);
        f->correct = -1;
        f->tries = 0;
        free(f->labels);
        f->labels = NULL;
        if (p->training ? wants_ids(p) : r->w->want_accuracy && r->data.labelled)
            f->labels = yk_xalloc((size_t)f->count * sizeof *f->labels);
        f->slot = slot;
        slot->busy = true;
        slot->users = 1;
        slot->microbatch = f->microbatch;
        slot->count = count;
        slot->micro = f->micro;
        for (int32_t k = 0; k < p->graph->n_inputs; k++)
            slot->t[k].shape = at->shapes.of[p->graph->inputs[k]];
        r->flying++;
        p->busy++;
        worker_post(p->agent->data, read_run, read_done, f);
    }
}

/* ---- what has come back ---- */

static bool all_here(struct pipeline *p, int64_t microbatch)
{
    for (int i = 0; i < p->n_edges; i++)
        if (p->edges[i].to == &p->source && !edge_ready(&p->edges[i], &p->source, microbatch))
            return false;
    return true;
}

void source_kick(struct pipeline *p)
{
    struct source_run *r = p->run;
    if (!r || r->kicking) {
        if (r)
            r->again = true;
        return;
    }
    r->kicking = true;
    do {
        r->again = false;
        for (int64_t i = 0; i < r->n_flights; i++) {
            struct flight *f = &r->flights[i];
            if (f->state == FLIGHT_READ && (r->over || p->state != PIPELINE_READY)) {
                source_drop(p, f);
            } else if (f->state == FLIGHT_FLYING && p->state != PIPELINE_READY) {
                source_drop(p, f); /* what flew is lost with the pipeline */
            } else if (f->state == FLIGHT_FLYING && all_here(p, f->microbatch)) {
                source_collect(p, f);
            }
        }
        if (r->open && !r->over && p->state == PIPELINE_READY) {
            launch(p);
            feed(p);
        }
        if (r->open && !r->over && r->at == r->microbatches && !r->flying && !source_judge_awaited(p))
            source_end(p, YK_OK);
    } while (r->again);
    r->kicking = false;
    maybe_end(p);
}

void source_retry(struct agent *a)
{
    for (struct pipeline *p = a->pipelines, *next; p; p = next) {
        next = p->next;
        training_retry(p);
        if (!p->run)
            continue;
        if (p->run->over && !p->run->reported)
            report(p);
        source_kick(p);
    }
}
