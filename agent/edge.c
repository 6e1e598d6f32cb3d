#include "agent/edge.h"

#include "agent/codec.h"
#include "agent/load.h"
#include "agent/peer.h"
#include "agent/runner.h"
#include "agent/source.h"
#include "agent/spans.h"
#include "agent/training.h"
#include "common/hash.h"

#include <stdlib.h>
#include <string.h>

#define ALIGN 64
#define EDGE_MAX_SCALES 131072    /* what a head carries; beyond that a tensor goes raw */
#define RECEIVER_DIALS_US 1500000 /* how long a receiver that could dial leaves it to the sender */
#define UNLOADED_US 1000000       /* a peer that unloads is a little faster than our own unload */

static const uint8_t padding[ALIGN];

static int64_t align_up(int64_t n)
{
    return (n + ALIGN - 1) / ALIGN * ALIGN;
}

/* ---- slots ---- */

yk_err edge_alloc(struct pipeline *p, struct yk_diag *why)
{
    const struct shapes *max = &p->at[0].shapes;
    for (int i = 0; i < p->n_edges; i++) {
        struct edge *e = &p->edges[i];
        size_t n = e->w->values.n;
        for (size_t k = 0; k < n; k++)
            e->body_max += align_up(YK_MAX(shape_bytes(&max->of[e->w->values.at[k]]), 0));
        bool lossy = e->codec != CODEC_FP32 && !e->local;
        if (e->from && lossy)
            for (int k = 0; k < 2; k++)
                if (!(e->encode[k] = yk_try_aligned((size_t)e->body_max + ALIGN)))
                    return yk_fail(why, YK_NOMEM, "no memory for %lld bytes of edge %lld", (long long)e->body_max,
                        (long long)e->w->id);
        if (!e->to)
            continue;
        e->in = yk_xalloc((size_t)e->w->credits * sizeof *e->in);
        for (int64_t k = 0; k < e->w->credits; k++) {
            struct in_slot *s = &e->in[k];
            s->edge = e;
            s->t = yk_xalloc(n * sizeof *s->t + 1);
            s->body_cap = e->body_max;
            if (!e->local && (!(s->body = yk_try_aligned((size_t)e->body_max + ALIGN)) ||
                                 (lossy && !(s->decoded = yk_try_aligned((size_t)e->body_max + ALIGN)))))
                return yk_fail(why, YK_NOMEM, "no memory for %lld slots of %lld bytes of edge %lld",
                    (long long)e->w->credits, (long long)e->body_max, (long long)e->w->id);
        }
    }
    return YK_OK;
}

void edge_free(struct edge *e)
{
    for (int64_t k = 0; e->in && k < e->w->credits; k++) {
        wire_free(&e->in[k].head);
        free(e->in[k].t);
        free(e->in[k].body);
        free(e->in[k].decoded);
    }
    free(e->in);
    free(e->encode[0]);
    free(e->encode[1]);
    free(e->position);
}

/* Its place among the readers; n_readers if it is none. */
static int reader_at(const struct edge *e, const struct stage *reader)
{
    int k = 0;
    while (k < e->n_readers && e->readers[k] != reader)
        k++;
    return k;
}

bool edge_feeds(const struct edge *e, const struct stage *reader)
{
    return !e->sums && reader_at(e, reader) < e->n_readers;
}

struct in_slot *edge_ready(struct edge *e, const struct stage *reader, int64_t microbatch)
{
    uint32_t bit = 1u << reader_at(e, reader);
    for (int64_t k = 0; k < e->w->credits; k++)
        if (e->in[k].state == IN_READY && e->in[k].microbatch == microbatch && !(e->in[k].taken & bit))
            return &e->in[k];
    return NULL;
}

static struct in_slot *free_slot(struct edge *e)
{
    for (int64_t k = 0; k < e->w->credits; k++)
        if (e->in[k].state == IN_FREE)
            return &e->in[k];
    return NULL;
}

static void wake_reader(struct edge *e)
{
    if (e->sums)
        training_wake(e->to->half);
    else if (e->to == &e->p->source)
        source_kick(e->p);
    else
        runner_kick(e->p->agent);
}

void edge_out_release(struct out_slot *s)
{
    if (--s->users > 0)
        return;
    s->busy = false;
    struct pipeline *p = s->stage->p;
    if (p->state != PIPELINE_READY)
        return;
    if (s->unit)
        training_wake(s->stage->half);
    else if (s->stage == &p->source)
        source_kick(p);
    else
        runner_kick(p->agent);
}

static void edge_go(struct edge *e);

void edge_consumed(struct in_slot *s, const struct stage *reader)
{
    struct edge *e = s->edge;
    struct out_slot *from = s->from;
    s->taken |= 1u << reader_at(e, reader);
    if (s->taken != (1u << e->n_readers) - 1)
        return;
    s->state = IN_FREE;
    s->taken = 0;
    s->from = NULL;
    if (e->local) {
        e->credits++;
        if (from)
            edge_out_release(from);
        if (e->p->state == PIPELINE_READY)
            edge_go(e);
    } else if (e->chan && e->p->state == PIPELINE_READY) {
        struct wire_credit c = {.generation = e->p->generation, .edge = e->w->id, .n = 1};
        chan_send(e->chan, WIRE_TYPE_credit, &c);
    }
}

/* ---- sending ---- */

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
    int64_t pad = align_up(bytes) - bytes;
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
                used += align_up(codec_bytes(codec, &t->shape));
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
    struct in_slot *in = free_slot(e);
    in->state = IN_READY;
    in->microbatch = s->microbatch;
    in->count = s->count;
    in->micro = s->micro;
    in->from = s;
    for (size_t k = 0; k < e->w->values.n; k++)
        in->t[k] = s->t[e->position[k]];
    wake_reader(e);
}

static void edge_go(struct edge *e)
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

/* ---- receiving ---- */

/* The shape of a value whose shape depends on data, as it came. */
static yk_err made_shape(const struct wire_tensor *t, const char *name, struct shape *shape, struct yk_diag *why)
{
    struct shape got = {.dtype = dtype_find(t->dtype), .rank = (int)t->dims.n};
    bool fits = t->dims.n <= YK_MAX_RANK && got.dtype != DT_NONE && dtype_bytes(got.dtype) > 0 &&
                (shape->dtype == DT_NONE || shape->dtype == got.dtype) && (shape->rank < 0 || shape->rank == got.rank);
    for (int i = 0; fits && i < got.rank; i++) {
        got.dims[i] = t->dims.at[i];
        fits = got.dims[i] >= 0 && (shape->rank < 0 || shape->dims[i] < 0 || shape->dims[i] == got.dims[i]);
    }
    int64_t bytes = fits ? shape_bytes(&got) : -1;
    if (bytes < 0 || bytes > PIPELINE_MADE_LIMIT)
        return yk_fail(why, YK_FORMAT, "tensor '%.80s' has a shape that it cannot have, or more than %lld bytes", name,
            (long long)PIPELINE_MADE_LIMIT);
    if (strcmp(t->codec, "raw") != 0)
        return yk_fail(
            why, YK_FORMAT, "tensor '%.80s' of a shape that depends on data has codec '%.20s'", name, t->codec);
    *shape = got;
    return YK_OK;
}

/* Room for a body and where its tensors lie in it. */
static yk_err place_body(struct in_slot *s, const struct wire_microbatch *w, struct yk_diag *why)
{
    if (w->body_bytes > s->body_cap) {
        free(s->body);
        s->body_cap = 0;
        if (!(s->body = yk_try_aligned((size_t)w->body_bytes + ALIGN)))
            return yk_fail(why, YK_NOMEM, "no memory for a body of %lld bytes", (long long)w->body_bytes);
        s->body_cap = w->body_bytes;
    }
    for (size_t k = 0; k < w->tensors.n; k++)
        s->t[k].data = s->body + w->tensors.at[k].offset;
    return YK_OK;
}

/* Checks a head against this agent's own graph; fills the slot's tensors. */
static yk_err check_head(struct edge *e, const struct wire_microbatch *w, struct in_slot *s, struct yk_diag *why)
{
    struct pipeline *p = e->p;
    if (w->generation != p->generation || w->edge != e->w->id || w->backward || w->microbatch < 0)
        return yk_fail(why, YK_FORMAT, "a microbatch of another edge");
    if (w->count < 1 || w->count > p->full)
        return yk_fail(
            why, YK_LIMIT, "%lld samples; the stage is loaded for %lld", (long long)w->count, (long long)p->full);
    for (size_t i = 0; i < w->sizes.n; i++) {
        int32_t sym = graph_find_sym(p->graph, w->sizes.at[i].name);
        if (sym >= 0 && w->sizes.at[i].value != (sym == p->batch_sym ? w->count : p->sizes[sym]))
            return yk_fail(
                why, YK_FORMAT, "dimension %.60s is %lld", w->sizes.at[i].name, (long long)w->sizes.at[i].value);
    }
    if (w->tensors.n != e->w->values.n)
        return yk_fail(why, YK_FORMAT, "%zu tensors instead of %zu", w->tensors.n, e->w->values.n);
    const struct pipeline_shapes *at = pipeline_shapes(p, w->count, why);
    if (!at)
        return YK_INVAL;
    int64_t offset = 0, made = 0;
    for (size_t k = 0; k < w->tensors.n; k++) {
        const struct wire_tensor *t = &w->tensors.at[k];
        struct shape shape = at->shapes.of[e->w->values.at[k]];
        const char *name = p->graph->values[e->w->values.at[k]].name;
        if (shape_bytes(&shape) < 0) {
            yk_err err = made_shape(t, name, &shape, why);
            if (err)
                return err;
            made += align_up(shape_bytes(&shape));
        }
        if (t->value != e->w->values.at[k] || dtype_find(t->dtype) != shape.dtype || (int64_t)t->dims.n != shape.rank ||
            memcmp(t->dims.at, shape.dims, t->dims.n * sizeof(int64_t)) != 0) {
            char text[160];
            shape_text(&shape, text, sizeof text);
            return yk_fail(why, YK_FORMAT, "tensor '%.80s' has another shape or type than %s", name, text);
        }
        enum plan_codec codec = CODEC_FP32;
        if (strcmp(t->codec, "raw") != 0 &&
            (!plan_codec_find(t->codec, &codec) || codec != e->codec || shape.dtype != DT_F32))
            return yk_fail(why, YK_FORMAT, "tensor '%.80s' has codec '%.20s' on an edge with %s", name, t->codec,
                plan_codec_name(e->codec));
        int64_t bytes = codec == CODEC_FP32 ? shape_bytes(&shape) : codec_bytes(codec, &shape);
        int64_t n_scales = codec == CODEC_FP32 ? 0 : codec_scales(codec, &shape);
        if (t->offset != offset || t->bytes != bytes || (int64_t)t->scales.n != n_scales)
            return yk_fail(why, YK_FORMAT,
                "tensor '%.80s' is at %lld with %lld bytes and %zu scales, not at %lld with "
                "%lld and %lld",
                name, (long long)t->offset, (long long)t->bytes, t->scales.n, (long long)offset, (long long)bytes,
                (long long)n_scales);
        for (size_t i = 0; i < t->scales.n; i++)
            if (!(t->scales.at[i] > 0 && t->scales.at[i] < 1e300))
                return yk_fail(why, YK_FORMAT, "tensor '%.80s' has a scale that is no positive number", name);
        s->t[k].shape = shape;
        offset += align_up(bytes);
    }
    if (w->body_bytes != offset || offset - made > e->body_max)
        return yk_fail(
            why, YK_LIMIT, "a body of %lld bytes instead of %lld", (long long)w->body_bytes, (long long)offset);
    return place_body(s, w, why);
}

static void decode_run(void *arg)
{
    struct in_slot *s = arg;
    const struct wire_microbatch *w = &s->head.as.microbatch;
    int64_t at = 0;
    for (size_t k = 0; k < w->tensors.n; k++) {
        const struct wire_tensor *t = &w->tensors.at[k];
        enum plan_codec codec;
        if (!strcmp(t->codec, "raw") || !plan_codec_find(t->codec, &codec))
            continue; /* is used where it lies */
        codec_decode(codec, &s->t[k].shape, s->body + t->offset, t->scales.at, (float *)(s->decoded + at));
        s->t[k].data = s->decoded + at;
        at += align_up(shape_bytes(&s->t[k].shape));
    }
}

static void slot_ready(struct in_slot *s)
{
    wire_free(&s->head);
    s->head = (struct wire_msg){0};
    s->state = IN_READY;
    wake_reader(s->edge);
}

static void decode_done(void *arg)
{
    struct in_slot *s = arg;
    struct pipeline *p = s->edge->p;
    if (p->state == PIPELINE_READY)
        slot_ready(s);
    pipeline_release(p);
}

static void on_body(void *arg, yk_err err)
{
    struct in_slot *s = arg;
    struct pipeline *p = s->edge->p;
    if (err || p->state != PIPELINE_READY) {
        wire_free(&s->head);
        s->head = (struct wire_msg){0};
        s->state = IN_FREE;
        return;
    }
    spans_add(p, SPAN_RECEIVE, s->edge->w->from, s->edge->w->peer, &s->micro, s->microbatch, s->began_us,
        net_now_us(p->agent->net));
    if (!s->decoded) {
        slot_ready(s);
        return;
    }
    s->state = IN_DECODING;
    p->busy++;
    worker_post(p->agent->io, decode_run, decode_done, s);
}

static yk_err on_stream(void *arg, struct chan *c, struct wire_msg *m, struct chan_sink *sink)
{
    (void)c;
    struct edge *e = arg;
    struct pipeline *p = e->p;
    struct yk_diag why = {0};
    if (m->type != WIRE_TYPE_microbatch || !e->to || p->state == PIPELINE_DYING)
        return YK_FORMAT;
    if (m->as.microbatch.generation < p->generation)
        return YK_STALE;
    struct in_slot *s = free_slot(e);
    yk_err err = YK_OK;
    if (!s)
        err = yk_fail(&why, YK_LIMIT, "a microbatch without credit");
    for (int64_t k = 0; !err && k < e->w->credits; k++)
        if (e->in[k].state != IN_FREE && e->in[k].microbatch == m->as.microbatch.microbatch)
            err = yk_fail(&why, YK_FORMAT, "microbatch %lld came twice", (long long)m->as.microbatch.microbatch);
    if (!err)
        err = check_head(e, &m->as.microbatch, s, &why);
    if (err) {
        pipeline_fail(p, e->to->index, e->w->peer, err, "edge %lld: %s", (long long)e->w->id, why.text);
        return err;
    }
    s->state = IN_RECEIVING;
    s->began_us = net_now_us(p->agent->net);
    s->microbatch = m->as.microbatch.microbatch;
    s->count = m->as.microbatch.count;
    s->micro =
        (struct micro){m->as.microbatch.step, m->as.microbatch.index, m->as.microbatch.of, m->as.microbatch.steps};
    s->from = NULL;
    *sink = (struct chan_sink){s->body, (size_t)m->as.microbatch.body_bytes, on_body, s};
    s->head = *m;
    m->arena = NULL;
    return YK_OK;
}

/* ---- connecting ---- */

static void came_up(struct edge *e)
{
    if (e->up)
        return;
    e->up = true;
    net_timer_cancel(e->dial_timer);
    e->dial_timer = NULL;
    load_check_up(e->p);
}

static yk_err on_message(void *arg, struct chan *c, struct wire_msg *m)
{
    (void)c;
    struct edge *e = arg;
    struct pipeline *p = e->p;
    if (m->type == WIRE_TYPE_refuse && e->up && yk_err_from_name(m->as.refuse.error) == YK_CANCELED) {
        e->closing = true;
        return YK_OK;
    }
    if (m->type == WIRE_TYPE_refuse) {
        pipeline_fail(p, e->from ? e->from->index : e->to->index, e->w->peer, yk_err_from_name(m->as.refuse.error),
            "agent %s refused edge %lld: %.300s", e->w->peer, (long long)e->w->id, m->as.refuse.text);
        return YK_OK;
    }
    if (m->type != WIRE_TYPE_credit)
        return YK_OK; /* a newer minor's */
    const struct wire_credit *w = &m->as.credit;
    if (!e->from || w->generation != p->generation || w->edge != e->w->id || w->n < 1 ||
        w->n > PIPELINE_MAX_SLOTS - e->credits)
        return YK_FORMAT;
    e->credits += w->n;
    came_up(e);
    if (p->state == PIPELINE_READY)
        edge_go(e);
    return YK_OK;
}

static void on_unloaded(void *arg)
{
    struct edge *e = arg;
    e->dial_timer = NULL;
    if (e->p->state == PIPELINE_READY)
        pipeline_fail(e->p, e->from ? e->from->index : e->to->index, e->w->peer, YK_CLOSED,
            "agent %s unloaded its end of edge %lld", e->w->peer, (long long)e->w->id);
}

static void on_closed(void *arg, struct chan *c, yk_err err, const char *why)
{
    struct edge *e = arg;
    chan_close(c, false);
    if (e->chan != c)
        return;
    e->chan = NULL;
    if (e->closing && e->p->state == PIPELINE_READY)
        e->dial_timer = net_timer(e->p->agent->net, UNLOADED_US, on_unloaded, e);
    else if (e->p->state == PIPELINE_LOADING || e->p->state == PIPELINE_READY)
        pipeline_fail(e->p, e->from ? e->from->index : e->to->index, e->w->peer, err,
            "edge %lld to agent %s was lost: %s", (long long)e->w->id, e->w->peer, why);
}

static const struct chan_on on_edge = {on_message, on_stream, on_closed};

/* The connection is ours; the receiver grants its slots. */
static void adopt(struct edge *e, struct chan *c)
{
    e->adopted = true;
    e->chan = c;
    core_dial_cancel(e->dialing);
    e->dialing = NULL;
    chan_set(c, &on_edge, e);
    chan_trust(c);
    if (!e->to)
        return;
    struct wire_credit credit = {.generation = e->p->generation, .edge = e->w->id, .n = e->w->credits};
    chan_send(c, WIRE_TYPE_credit, &credit);
    came_up(e);
}

bool edge_adopt(struct agent *a, struct chan *c, const struct wire_hello *h)
{
    struct pipeline *p = pipeline_find(a, h->generation);
    if (!p || (p->state == PIPELINE_LOADING && !p->wired))
        return false;
    struct edge *e = NULL;
    for (int i = 0; i < p->n_edges && !e; i++)
        if (p->edges[i].w->id == h->edge && !p->edges[i].local)
            e = &p->edges[i];
    bool right = e && h->ticket.len == e->w->ticket.len && h->ticket.len >= 16 &&
                 hash_same(h->ticket.data, e->w->ticket.data, h->ticket.len) && !strcmp(h->agent, e->w->peer);
    if (!right)
        peer_refuse(c, YK_AUTH, "the ticket is not for this edge");
    else if (e->adopted)
        peer_refuse(c, YK_AUTH, "the ticket was used");
    else if (p->state != PIPELINE_LOADING)
        peer_refuse(c, YK_STATE, "the pipeline is not waiting for this edge");
    else
        adopt(e, c);
    return true;
}

static void on_dialled(void *arg, yk_err err, struct net_conn *conn, const char *url)
{
    struct edge *e = arg;
    struct pipeline *p = e->p;
    e->dialing = NULL;
    if (err) {
        log_warn("edge %lld: cannot reach agent %s at %s: %s; waiting for its dial", (long long)e->w->id, e->w->peer,
            url, yk_err_text(err));
        yk_fail(&p->why, err, "cannot reach agent %s at %s: %s", e->w->peer, url, yk_err_text(err));
        return;
    }
    struct chan *c = chan_open(conn, &on_edge, e);
    struct wire_hello h = {.kind = "data",
        .version_major = WIRE_VERSION_MAJOR,
        .version_minor = WIRE_VERSION_MINOR,
        .agent = p->agent->id,
        .name = p->agent->name,
        .purpose = "edge",
        .ticket = e->w->ticket,
        .generation = p->generation,
        .edge = e->w->id};
    chan_send(c, WIRE_TYPE_hello, &h);
    adopt(e, c);
}

static void dial(struct edge *e)
{
    e->dialing = core_dial(e->p->agent, e->w->urls.at, e->w->urls.n, CORE_DIAL_US, on_dialled, e);
}

static void on_dial_timer(void *arg)
{
    struct edge *e = arg;
    e->dial_timer = NULL;
    if (!e->adopted)
        dial(e);
}

void edge_connect(struct pipeline *p)
{
    for (int i = 0; i < p->n_edges; i++) {
        struct edge *e = &p->edges[i];
        if (e->local) {
            e->credits = e->w->credits;
            e->up = true;
        } else if (e->adopted || !e->w->urls.n) {
            continue;
        } else if (e->from) {
            dial(e);
        } else {
            e->dial_timer = net_timer(p->agent->net, RECEIVER_DIALS_US, on_dial_timer, e);
        }
    }
}

bool edge_all_up(const struct pipeline *p)
{
    for (int i = 0; i < p->n_edges; i++)
        if (!p->edges[i].up)
            return false;
    return true;
}

void edge_close(struct edge *e)
{
    core_dial_cancel(e->dialing);
    e->dialing = NULL;
    net_timer_cancel(e->dial_timer);
    e->dial_timer = NULL;
    struct chan *c = e->chan;
    e->chan = NULL;
    if (c && e->up) {
        struct wire_refuse r = {.error = yk_err_name(YK_CANCELED), .text = "unloaded"};
        chan_send(c, WIRE_TYPE_refuse, &r);
    }
    if (c)
        chan_close(c, true);
    e->n_queue = 0;
}
