/* The receiving end: a head is checked against this agent's own graph before a byte of its body is read into a slot;
 * decoding is the io worker's. */
#include "agent/edge_priv.h"

#include "agent/codec.h"
#include "agent/spans.h"

#include <stdlib.h>
#include <string.h>

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
        if (!(s->body = yk_try_aligned((size_t)w->body_bytes + MEMPLAN_ALIGN)))
            return yk_fail(why, YK_NOMEM, "no memory for a body of %lld bytes", (long long)w->body_bytes);
        s->body_cap = w->body_bytes;
    }
    for (size_t k = 0; k < w->tensors.n; k++)
        s->t[k].data = s->body + w->tensors.at[k].offset;
    return YK_OK;
}

/* A tensor of a head whose bytes are to lie at `offset`: its shape is the graph's at this number of samples (filled in
 * where that depends on data), its codec the edge's or none, its bytes and scales as many as follow from them. */
static yk_err check_tensor(const struct edge *e, const struct wire_tensor *t, int64_t value, int64_t offset,
    struct shape *shape, struct yk_diag *why)
{
    const char *name = e->p->graph->values[value].name;
    enum plan_codec codec = CODEC_FP32;
    yk_err err = shape_bytes(shape) < 0 ? made_shape(t, name, shape, why) : YK_OK;
    if (err)
        return err;
    if (t->value != value || dtype_find(t->dtype) != shape->dtype || (int64_t)t->dims.n != shape->rank ||
        memcmp(t->dims.at, shape->dims, t->dims.n * sizeof(int64_t)) != 0) {
        char text[160];
        shape_text(shape, text, sizeof text);
        return yk_fail(why, YK_FORMAT, "tensor '%.80s' has another shape or type than %s", name, text);
    }
    if (strcmp(t->codec, "raw") != 0 &&
        (!plan_codec_find(t->codec, &codec) || codec != e->codec || shape->dtype != DT_F32))
        return yk_fail(why, YK_FORMAT, "tensor '%.80s' has codec '%.20s' on an edge with %s", name, t->codec,
            plan_codec_name(e->codec));
    int64_t bytes = codec == CODEC_FP32 ? shape_bytes(shape) : codec_bytes(codec, shape);
    int64_t n_scales = codec == CODEC_FP32 ? 0 : codec_scales(codec, shape);
    if (t->offset != offset || t->bytes != bytes || (int64_t)t->scales.n != n_scales)
        return yk_fail(why, YK_FORMAT,
            "tensor '%.80s' is at %lld with %lld bytes and %zu scales, not at %lld with %lld and %lld", name,
            (long long)t->offset, (long long)t->bytes, t->scales.n, (long long)offset, (long long)bytes,
            (long long)n_scales);
    for (size_t i = 0; i < t->scales.n; i++)
        if (!(t->scales.at[i] > 0 && t->scales.at[i] < 1e300))
            return yk_fail(why, YK_FORMAT, "tensor '%.80s' has a scale that is no positive number", name);
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
    int64_t offset = 0, made = 0; /* made: of it what no slot has room for beforehand */
    for (size_t k = 0; k < w->tensors.n; k++) {
        int64_t value = e->w->values.at[k], begin = offset;
        struct shape shape = at->shapes.of[value];
        bool planned = shape_bytes(&shape) >= 0;
        yk_err err = check_tensor(e, &w->tensors.at[k], value, offset, &shape, why);
        if (err)
            return err;
        s->t[k].shape = shape;
        offset += memplan_align(w->tensors.at[k].bytes);
        made += planned ? 0 : offset - begin;
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
        at += memplan_align(shape_bytes(&s->t[k].shape));
    }
}

static void slot_ready(struct in_slot *s)
{
    wire_free(&s->head);
    s->head = (struct wire_msg){0};
    s->state = IN_READY;
    edge_wake_reader(s->edge);
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

yk_err edge_on_stream(void *arg, struct chan *c, struct wire_msg *m, struct chan_sink *sink)
{
    (void)c;
    struct edge *e = arg;
    struct pipeline *p = e->p;
    struct yk_diag why = {0};
    if (m->type != WIRE_TYPE_microbatch || !e->to || p->state == PIPELINE_DYING)
        return YK_FORMAT;
    if (m->as.microbatch.generation < p->generation)
        return YK_STALE;
    struct in_slot *s = edge_free_slot(e);
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
