/* The sending end: microbatches in their order against the receiver's credits, each as one stream whose tensors lie at
 * multiples of MEMPLAN_ALIGN. What a lossy codec makes is encoded on the io worker, one microbatch ahead of the one
 * that is sent; a local edge hands over the slot itself. */
#include "agent/edge_priv.h"

#include "agent/codec.h"
#include "agent/spans.h"

#include <stdlib.h>
#include <string.h>

#define EDGE_MAX_SCALES 131072 /* what a head carries; beyond that a tensor goes raw */

static const uint8_t padding[MEMPLAN_ALIGN];

static struct sending *sending_new(struct edge *e, struct out_slot *s)
{
    size_t n = e->w->values.n;
    struct sending *m = yk_xalloc(sizeof *m);
    m->edge = e;
    m->from = s;
    m->buffer = -1;
    m->tensors = yk_xalloc(n * sizeof *m->tensors + 1);
    m->scales = yk_xalloc(n * sizeof *m->scales + 1);
    m->iov = yk_xalloc((2 * n + 1) * sizeof *m->iov);
    return m;
}

static void sending_free(struct sending *m)
{
    for (size_t k = 0; k < m->edge->w->values.n; k++) {
        free(m->scales[k]);
        free(m->tensors[k].dims.at);
    }
    free(m->tensors);
    free(m->scales);
    free(m->iov);
    free(m);
}

/* Lays tensor k out: its header entry and its bytes (borrowed). */
static void sending_add(struct sending *m, size_t k, const struct tensor *t, enum plan_codec codec, const void *data,
    int64_t bytes, int64_t n_scales)
{
    struct wire_tensor *w = &m->tensors[k];
    w->value = m->edge->w->values.at[k];
    w->dtype = dtype_name(t->shape.dtype);
    w->dims.n = (size_t)t->shape.rank;
    w->dims.at = yk_xalloc(YK_MAX_RANK * sizeof(int64_t));
    memcpy(w->dims.at, t->shape.dims, w->dims.n * sizeof(int64_t));
    w->codec = codec == CODEC_FP32 ? "raw" : plan_codec_name(codec);
    w->scales.at = m->scales[k];
    w->scales.n = codec == CODEC_FP32 ? 0 : (size_t)n_scales;
    w->offset = m->bytes;
    w->bytes = bytes;
    if (bytes)
        m->iov[m->n_iov++] = (struct net_iov){data, (size_t)bytes};
    int64_t pad = memplan_align(bytes) - bytes;
    if (pad)
        m->iov[m->n_iov++] = (struct net_iov){padding, (size_t)pad};
    m->bytes += bytes + pad;
}

static void sent(struct sending *m)
{
    struct edge *e = m->edge;
    struct out_slot *from = m->from;
    if (m->buffer >= 0)
        e->encode[m->buffer] = m->buf;
    sending_free(m);
    edge_out_release(from);
    if (e->p->state == PIPELINE_READY)
        edge_go(e);
}

static void on_sent(void *arg, yk_err err, size_t bytes)
{
    struct sending *m = arg;
    struct edge *e = m->edge;
    if (!err) {
        const struct out_slot *o = m->from;
        spans_add(e->p, SPAN_SEND, e->from->index, e->w->peer, &o->micro, o->microbatch, m->began_us,
            net_now_us(e->p->agent->net));
        e->from->sent_bytes += (int64_t)bytes;
        e->from->send_ms += (double)(net_now_us(e->p->agent->net) - m->began_us) / 1e3;
    }
    sent(m);
}

static void send_now(struct sending *m)
{
    struct edge *e = m->edge;
    struct pipeline *p = e->p;
    struct wire_size *sizes = yk_xalloc((size_t)p->graph->n_syms * sizeof *sizes + 1);
    for (int32_t i = 0; i < p->graph->n_syms; i++)
        sizes[i] = (struct wire_size){p->graph->syms[i], i == p->batch_sym ? m->from->count : p->sizes[i]};
    struct wire_microbatch head = {.generation = p->generation,
        .edge = e->w->id,
        .microbatch = m->from->microbatch,
        .count = m->from->count,
        .body_bytes = m->bytes,
        .step = m->from->micro.step,
        .index = m->from->micro.index,
        .of = m->from->micro.of,
        .steps = m->from->micro.steps};
    head.sizes.at = sizes;
    head.sizes.n = (size_t)p->graph->n_syms;
    head.tensors.at = m->tensors;
    head.tensors.n = e->w->values.n;
    e->from->nonfinite += m->nonfinite;
    e->from->codec_error = YK_MAX(e->from->codec_error, m->error);
    m->began_us = net_now_us(p->agent->net);
    yk_err err = e->chan ? chan_stream(e->chan, CHAN_DATA, WIRE_TYPE_microbatch, &head, m->iov, m->n_iov, on_sent, m)
                         : YK_CLOSED;
    free(sizes);
    if (!err)
        return;
    struct stage *from = e->from;
    sent(m);
    if (err != YK_CLOSED) /* a lost connection is told by its own event */
        pipeline_fail(
            p, from->index, e->w->peer, err, "cannot send over edge %lld: %s", (long long)e->w->id, yk_err_text(err));
}

static void encode_run(void *arg)
{
    struct sending *m = arg;
    struct edge *e = m->edge;
    int64_t used = 0; /* of the buffer, which has no room for what is sent as it lies */
    for (size_t k = 0; k < e->w->values.n; k++) {
        const struct tensor *t = &m->from->t[e->position[k]];
        bool planned = e->position[k] < e->from->n_planned;
        enum plan_codec codec = t->shape.dtype == DT_F32 && planned ? e->codec : CODEC_FP32;
        int64_t n_scales = codec == CODEC_FP32 ? 0 : codec_scales(codec, &t->shape);
        if (shape_count(&t->shape) <= 0 || n_scales > EDGE_MAX_SCALES)
            codec = CODEC_FP32;
        if (codec != CODEC_FP32) {
            double error = 0;
            m->scales[k] = yk_xalloc((size_t)n_scales * sizeof(double) + 1);
            if (codec_encode(codec, &t->shape, t->data, m->buf + used, m->scales[k], &error) == YK_OK) {
                sending_add(m, k, t, codec, m->buf + used, codec_bytes(codec, &t->shape), n_scales);
                used += memplan_align(codec_bytes(codec, &t->shape));
                m->error = YK_MAX(m->error, error);
                continue;
            }
            m->nonfinite++;
        }
        sending_add(m, k, t, CODEC_FP32, t->data, shape_bytes(&t->shape), 0);
    }
}

static void encode_done(void *arg)
{
    struct sending *m = arg;
    struct edge *e = m->edge;
    struct pipeline *p = e->p;
    e->encoding = false;
    if (p->state == PIPELINE_READY)
        send_now(m);
    else
        sent(m);
    if (p->state == PIPELINE_READY)
        edge_go(e);
    pipeline_release(p);
}

/* Hands the slot itself to the reader on this agent. */
static void hand_over(struct edge *e, struct out_slot *s)
{
    struct in_slot *in = edge_free_slot(e);
    in->state = IN_READY;
    in->microbatch = s->microbatch;
    in->count = s->count;
    in->micro = s->micro;
    in->from = s;
    for (size_t k = 0; k < e->w->values.n; k++)
        in->t[k] = s->t[e->position[k]];
    edge_wake_reader(e);
}

void edge_go(struct edge *e)
{
    while (e->n_queue && e->credits > 0 && e->p->state == PIPELINE_READY) {
        bool lossy = e->codec != CODEC_FP32 && !e->local;
        int buffer = !lossy ? -1 : e->encode[0] ? 0 : e->encode[1] ? 1 : -2;
        if (buffer == -2 || (lossy && e->encoding) || (!e->local && !e->chan))
            return;
        struct out_slot *s = e->queue[0];
        e->n_queue--;
        memmove(e->queue, e->queue + 1, (size_t)e->n_queue * sizeof *e->queue);
        e->credits--;
        if (e->local) {
            hand_over(e, s);
            continue;
        }
        struct sending *m = sending_new(e, s);
        if (!lossy) {
            for (size_t k = 0; k < e->w->values.n; k++) {
                const struct tensor *t = &s->t[e->position[k]];
                sending_add(m, k, t, CODEC_FP32, t->data, shape_bytes(&t->shape), 0);
            }
            send_now(m);
            continue;
        }
        m->buffer = buffer;
        m->buf = e->encode[buffer];
        e->encode[buffer] = NULL;
        e->encoding = true;
        e->p->busy++;
        worker_post(e->p->agent->io, encode_run, encode_done, m);
    }
}

void edge_push(struct edge *e, struct out_slot *s)
{
    e->queue[e->n_queue++] = s; /* a producer has at most PIPELINE_MAX_SLOTS slots */
    edge_go(e);
}
