/* What comes back to the source: results to yoked, with their outputs or without, and steps of a training. */
#include "agent/source_priv.h"

#include "agent/blob.h"
#include "agent/control.h"
#include "agent/edge.h"
#include "agent/training.h"

#include <stdlib.h>
#include <string.h>

#define ALIGN 64
#define MAX_TRIES 5

static void consume(struct pipeline *p, int64_t microbatch)
{
    for (int i = 0; i < p->n_edges; i++) {
        struct in_slot *s = p->edges[i].to == &p->source ? edge_ready(&p->edges[i], &p->source, microbatch) : NULL;
        if (s)
            edge_consumed(s, &p->source);
    }
}

/* How many of the samples have their label as the largest entry of the first output, or of the scores. */
static int64_t count_correct(struct pipeline *p, const struct flight *f)
{
    const struct stage_input *in = &p->source.inputs[p->training ? p->training->scores : 0];
    if (!f->labels || !in->edge)
        return -1;
    const struct tensor *t = &edge_ready(in->edge, &p->source, f->microbatch)->t[in->position];
    int64_t n = shape_count(&t->shape);
    if (t->shape.dtype != DT_F32 || t->shape.rank < 2 || t->shape.dims[0] < f->count || n <= 0)
        return -1;
    int64_t classes = n / t->shape.dims[0], correct = 0;
    const float *x = t->data;
    for (int64_t i = 0; i < f->count; i++, x += classes) {
        int64_t best = 0;
        for (int64_t c = 1; c < classes; c++)
            if (x[c] > x[best])
                best = c;
        correct += best == f->labels[i];
    }
    return correct;
}

static void landed(struct pipeline *p, struct flight *f)
{
    consume(p, f->microbatch);
    source_drop(p, f);
}

/* Output i of a flight that has landed. An output that no stage makes is an input or a weight. */
static struct tensor output_of(struct pipeline *p, const struct flight *f, int32_t i)
{
    const struct stage_input *in = &p->source.inputs[i];
    int32_t v = p->graph->outputs[i];
    const struct value *value = &p->graph->values[v];
    if (in->edge)
        return edge_ready(in->edge, &p->source, f->microbatch)->t[in->position];
    for (int32_t k = 0; value->kind == VALUE_INPUT && k < p->graph->n_inputs; k++)
        if (p->graph->inputs[k] == v)
            return f->slot->t[k];
    return (struct tensor){value->shape, (void *)(uintptr_t)(value->data ? value->data : p->weight[v])};
}

static void free_result(struct pipeline *p, struct flight *f)
{
    for (int32_t i = 0; f->tensors && i < p->graph->n_outputs; i++)
        free(f->tensors[i].dims.at);
    free(f->tensors);
    free(f->iov);
    f->tensors = NULL;
    f->iov = NULL;
}

static void on_sent(void *arg, yk_err err, size_t bytes)
{
    (void)bytes;
    struct flight *f = arg;
    struct pipeline *p = f->p;
    free_result(p, f);
    if (err && !p->run->over && ++f->tries == MAX_TRIES) {
        yk_fail(&p->run->why, err, "the outputs of microbatch %lld were not taken: %s", (long long)f->microbatch,
            yk_err_text(err));
        source_end(p, err);
    }
    if (err && p->state == PIPELINE_READY && !p->run->over)
        f->state = FLIGHT_FLYING; /* once more when the connection is back */
    else
        landed(p, f);
    source_kick(p);
    pipeline_release(p);
}

/* The outputs at 64-byte steps, without the rows that only filled up a fixed batch. */
static yk_err send_outputs(struct pipeline *p, struct flight *f, struct wire_result *w)
{
    static const uint8_t padding[ALIGN];
    int32_t n = p->graph->n_outputs;
    int n_iov = 0;
    int64_t offset = 0;
    f->tensors = yk_xalloc((size_t)n * sizeof *f->tensors);
    f->iov = yk_xalloc(2 * (size_t)n * sizeof *f->iov);
    for (int32_t i = 0; i < n; i++) {
        struct tensor t = output_of(p, f, i);
        bool made = shape_bytes(&p->at[0].shapes.of[p->graph->outputs[i]]) < 0;
        if (p->batch_sym < 0 && !made && t.shape.rank > 0 && t.shape.dims[0] == p->full)
            t.shape.dims[0] = f->count;
        struct wire_tensor *o = &f->tensors[i];
        o->value = p->graph->outputs[i];
        o->dtype = dtype_name(t.shape.dtype);
        o->dims.n = (size_t)t.shape.rank;
        o->dims.at = yk_xalloc(YK_MAX_RANK * sizeof *o->dims.at);
        memcpy(o->dims.at, t.shape.dims, o->dims.n * sizeof *o->dims.at);
        int64_t pad = (ALIGN - offset % ALIGN) % ALIGN;
        if (pad)
            f->iov[n_iov++] = (struct net_iov){padding, (size_t)pad};
        o->codec = "raw";
        o->offset = offset + pad;
        o->bytes = shape_bytes(&t.shape);
        if (o->bytes)
            f->iov[n_iov++] = (struct net_iov){t.data, (size_t)o->bytes};
        offset = o->offset + o->bytes;
    }
    w->tensors.at = f->tensors;
    w->tensors.n = (size_t)n;
    f->state = FLIGHT_SENDING;
    p->busy++;
    yk_err err = blob_result(p->agent, w, f->iov, n_iov, on_sent, f);
    if (err) {
        f->state = FLIGHT_FLYING;
        free_result(p, f);
        p->busy--; /* was not the last: the caller holds the pipeline */
    }
    return err;
}

/* ---- steps ---- */

static struct step_sum *sum_of(struct source_run *r, const struct micro *m)
{
    struct step_sum *free_one = NULL;
    for (int64_t i = 0; i <= r->n_flights; i++) {
        if (r->sums[i].of && r->sums[i].step == m->step)
            return &r->sums[i];
        if (!r->sums[i].of)
            free_one = &r->sums[i];
    }
    *free_one = (struct step_sum){.step = m->step, .of = m->of, .loss = yk_xalloc((size_t)m->of * sizeof(float))};
    return free_one;
}

/* Adds a microbatch to its step; the last of them sends what the step gave, and stays until yoked can be told. */
static void collect_step(struct pipeline *p, struct flight *f)
{
    struct source_run *r = p->run;
    struct step_sum *s = sum_of(r, &f->micro);
    const struct stage_input *in = &p->source.inputs[p->training->loss];
    if (!f->summed) {
        int64_t correct = count_correct(p, f);
        s->loss[f->micro.index] = *(const float *)edge_ready(in->edge, &p->source, f->microbatch)->t[in->position].data;
        s->samples += f->count;
        s->correct = correct < 0 || s->correct < 0 ? -1 : s->correct + correct;
        s->landed++;
        f->summed = true;
    }
    if (s->landed < s->of) {
        landed(p, f);
        return;
    }
    int64_t now = net_now_us(p->agent->net);
    struct wire_step w = {.generation = p->generation,
        .job = r->w->job,
        .step = s->step,
        .samples = s->samples,
        .correct = s->correct,
        .ms = (double)(now - (r->summed_us ? r->summed_us : r->began_us)) / 1e3};
    for (int64_t i = 0; i < s->of; i++)
        w.loss += (double)s->loss[i];
    if (control_send(p->agent, WIRE_TYPE_step, &w) != YK_OK)
        return;
    r->summed_us = now;
    free(s->loss);
    *s = (struct step_sum){0};
    landed(p, f);
}

void source_collect(struct pipeline *p, struct flight *f)
{
    struct source_run *r = p->run;
    if (r->over) {
        landed(p, f);
        return;
    }
    if (p->training) {
        collect_step(p, f);
        return;
    }
    if (r->w->want_accuracy && f->correct < 0)
        f->correct = count_correct(p, f);
    struct wire_result w = {.generation = p->generation,
        .job = r->w->job,
        .microbatch = f->microbatch,
        .first = f->first,
        .count = f->count,
        .correct = f->correct};
    if (!r->w->want_outputs) {
        if (control_send(p->agent, WIRE_TYPE_result, &w) == YK_OK)
            landed(p, f); /* else it stays until yoked is there again */
        return;
    }
    send_outputs(p, f, &w);
}
