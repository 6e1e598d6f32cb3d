/* Receiving: headers and messages through a small buffer, chunks of streams into their sinks. */
#include "common/chan_priv.h"

#include <stdlib.h>
#include <string.h>

#define PAYLOAD_KEEP ((size_t)64 << 10) /* a larger message's buffer is given back */

static uint32_t get_u32(const uint8_t *p)
{
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

static yk_err get_header(struct chan *c, const uint8_t *p, struct yk_diag *why)
{
    struct header *h = &c->head;
    *h = (struct header){.len = get_u32(p + 4),
        .type = (uint16_t)(p[8] | p[9] << 8),
        .kind = p[10],
        .flags = p[11],
        .stream = get_u32(p + 12)};
    if (get_u32(p) != CHAN_MAGIC)
        return yk_fail(why, YK_FORMAT, "not a frame of ours (magic %08x)", get_u32(p));
    if (h->kind > FRAME_CHUNK)
        return yk_fail(why, YK_FORMAT, "frame kind %d is not known", h->kind);
    size_t limit = h->kind == FRAME_CHUNK ? WIRE_CHUNK_BYTES : c->limit;
    if (h->len > limit)
        return yk_fail(why, YK_LIMIT, "a frame of %u bytes; the limit is %zu", h->len, limit);
    if (h->len == 0 && (h->kind != FRAME_CHUNK || h->flags == 0))
        return yk_fail(why, YK_FORMAT, "an empty frame");
    if (h->flags & ~(h->kind == FRAME_CHUNK ? FLAG_LAST : 0))
        return yk_fail(why, YK_FORMAT, "frame flags %02x are not known", h->flags);
    if ((h->stream != 0) != (h->kind != FRAME_MESSAGE))
        return yk_fail(why, YK_FORMAT, "a frame of kind %d with stream %u", h->kind, h->stream);
    return YK_OK;
}

static struct stream_in *find_in(struct chan *c, uint32_t id)
{
    for (int i = 0; i < CHAN_MAX_IN; i++)
        if (c->in[i].used && c->in[i].id == id)
            return &c->in[i];
    return NULL;
}

/* A whole message or stream head is in payload. */
static yk_err deliver(struct chan *c, struct yk_diag *why)
{
    struct wire_msg msg;
    yk_err err = wire_decode(c->head.type, c->payload, c->head.len, &msg, why);
    if (err == YK_UNSUPPORTED && c->head.kind == FRAME_MESSAGE)
        return YK_OK; /* a newer minor's message */
    if (err)
        return err;
    if (c->head.kind == FRAME_MESSAGE) {
        err = c->on->message(c->arg, c, &msg);
        wire_free(&msg);
        return err ? yk_fail(why, err, "%s refused: %s", wire_name(c->head.type), yk_err_text(err)) : YK_OK;
    }
    struct stream_in *s = NULL;
    for (int i = 0; i < CHAN_MAX_IN && !s; i++)
        if (!c->in[i].used)
            s = &c->in[i];
    if (!s || find_in(c, c->head.stream)) {
        wire_free(&msg);
        return s ? yk_fail(why, YK_FORMAT, "stream %u begins twice", c->head.stream)
                 : yk_fail(why, YK_LIMIT, "more than %d streams at once", CHAN_MAX_IN);
    }
    struct chan_sink sink = {0};
    err = c->on->stream(c->arg, c, &msg, &sink);
    wire_free(&msg);
    if (err)
        return yk_fail(why, err, "stream %s refused: %s", wire_name(c->head.type), yk_err_text(err));
    if (c->dead || c->broken) {
        if (sink.done)
            sink.done(sink.arg, YK_CLOSED);
        return YK_OK;
    }
    *s = (struct stream_in){.used = true, .id = c->head.stream, .sink = sink};
    return sink.len && !sink.buf ? yk_fail(why, YK_INTERNAL, "no buffer for stream %u", s->id) : YK_OK;
}

/* The chunk in head is whole (or was empty). */
static yk_err chunk_done(struct chan *c, struct stream_in *s, struct yk_diag *why)
{
    if (!(c->head.flags & FLAG_LAST))
        return s->got < s->sink.len ? YK_OK : yk_fail(why, YK_FORMAT, "stream %u does not end with its bytes", s->id);
    if (s->got != s->sink.len)
        return yk_fail(why, YK_FORMAT, "stream %u ended after %zu of %zu bytes", s->id, s->got, s->sink.len);
    s->used = false;
    if (s->sink.done)
        s->sink.done(s->sink.arg, YK_OK);
    return YK_OK;
}

static yk_err begin_frame(struct chan *c, struct yk_diag *why)
{
    yk_err err = get_header(c, c->rx + c->rx_at, why);
    if (err)
        return err;
    c->rx_at += CHAN_HEADER_BYTES;
    c->rx_len -= CHAN_HEADER_BYTES;
    c->payload_have = 0;
    if (c->head.kind == FRAME_CHUNK) {
        struct stream_in *s = find_in(c, c->head.stream);
        if (!s)
            return yk_fail(why, YK_FORMAT, "a chunk of stream %u, which is not open", c->head.stream);
        if (c->head.len > s->sink.len - s->got)
            return yk_fail(why, YK_LIMIT, "stream %u is longer than its %zu bytes", s->id, s->sink.len);
        c->state = RX_CHUNK;
        return YK_OK;
    }
    if (c->head.len > c->payload_cap) {
        uint8_t *grown = yk_try_realloc(c->payload, c->head.len, 1);
        if (!grown)
            return yk_fail(why, YK_NOMEM, "no memory for a message of %u bytes", c->head.len);
        c->payload = grown;
        c->payload_cap = c->head.len;
    }
    c->state = RX_PAYLOAD;
    return YK_OK;
}

/* Takes what rx holds as far as it goes. On return more bytes are needed, or the channel is dead or broken. */
static yk_err consume(struct chan *c, struct yk_diag *why)
{
    while (!c->dead && !c->broken) {
        if (c->state == RX_HEADER) {
            if (c->rx_len < CHAN_HEADER_BYTES)
                return YK_OK;
            yk_err err = begin_frame(c, why);
            if (err)
                return err;
        }
        struct stream_in *s = c->state == RX_CHUNK ? find_in(c, c->head.stream) : NULL;
        size_t take = YK_MIN(c->head.len - c->payload_have, c->rx_len);
        if (take)
            memcpy(s ? (uint8_t *)s->sink.buf + s->got : c->payload + c->payload_have, c->rx + c->rx_at, take);
        c->rx_at += take;
        c->rx_len -= take;
        c->payload_have += take;
        if (s)
            s->got += take;
        if (c->payload_have < c->head.len)
            return YK_OK;
        c->state = RX_HEADER;
        yk_err err = s ? chunk_done(c, s, why) : deliver(c, why);
        if (err)
            return err;
        if (c->payload_cap > PAYLOAD_KEEP) {
            free(c->payload);
            c->payload = NULL;
            c->payload_cap = 0;
        }
    }
    return YK_OK;
}

static void on_rx(void *arg, yk_err err, size_t bytes)
{
    struct chan *c = arg;
    struct yk_diag why = {0};
    chan_enter(c);
    if (!err) {
        c->last_rx_us = net_now_us(c->net);
        c->rx_bytes += bytes;
        bool direct = c->state != RX_HEADER; /* rx_go read into the frame itself */
        if (direct) {
            c->payload_have += bytes;
            if (c->state == RX_CHUNK)
                find_in(c, c->head.stream)->got += bytes;
        } else {
            c->rx_len += bytes;
        }
        err = consume(c, &why);
        if (c->dead)
            err = YK_OK; /* closed by the callback that failed: what it wanted flushed still goes */
    } else {
        yk_fail(&why, err, "%s", yk_err_text(err));
    }
    if (err)
        chan_fail(c, err, why.text);
    if (chan_leave(c) && !c->broken)
        chan_rx_go(c);
}

void chan_rx_go(struct chan *c)
{
    if (c->state == RX_HEADER) {
        if (c->rx_len)
            memmove(c->rx, c->rx + c->rx_at, c->rx_len);
        c->rx_at = 0;
        net_recv(c->conn, c->rx + c->rx_len, sizeof c->rx - c->rx_len, on_rx, c);
        return;
    }
    struct stream_in *s = c->state == RX_CHUNK ? find_in(c, c->head.stream) : NULL;
    uint8_t *to = s ? (uint8_t *)s->sink.buf + s->got : c->payload + c->payload_have;
    net_recv(c->conn, to, c->head.len - c->payload_have, on_rx, c);
}
