#include "common/chan.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAGIC 0x314B4F59u /* "YOK1" */
#define HEADER_BYTES 16
#define RX_BYTES 4096 /* headers and small messages; what of a chunk falls in here is copied */
#define QUEUE_LIMIT ((size_t)8 << 20)
#define PAYLOAD_KEEP ((size_t)64 << 10) /* a larger message's buffer is given back */
#define MAX_IN 64                       /* streams that a peer may have open at once */
#define MAX_OUT 32                      /* streams of a priority that we have open at once; both together: MAX_IN */
#define BODY_IOV 5                      /* pieces of a body in one send: head frame 2 + chunk header 1 + these <= 8 */
#define FLUSH_US 1000000
#define CHUNK_US 100000 /* that a chunk is to take at most */
#define CHUNK_FIRST ((size_t)64 << 10)
#define CHUNK_LEAST ((size_t)4 << 10)

enum frame_kind { FRAME_MESSAGE, FRAME_HEAD, FRAME_CHUNK };
enum { FLAG_LAST = 1 };

struct header {
    uint32_t len, stream;
    uint16_t type;
    uint8_t kind, flags;
};

struct message_out {
    struct message_out *next;
    struct yk_buf bytes; /* header and payload */
};

struct stream_out {
    struct stream_out *next;
    enum chan_prio prio;
    uint32_t id;
    struct yk_buf head; /* header and payload; len 0 once sent */
    struct net_iov *body;
    int n_body, piece; /* piece: where the next chunk begins, at piece_at bytes in */
    size_t piece_at, total, sent;
    size_t turn; /* bytes of its turn that went */
    net_on_io done;
    void *arg;
};

struct stream_in {
    bool used;
    uint32_t id;
    struct chan_sink sink;
    size_t got;
};

enum rx_state { RX_HEADER, RX_PAYLOAD, RX_CHUNK };

struct chan {
    struct net *net;
    struct net_conn *conn; /* NULL once it broke or was closed */
    const struct chan_on *on;
    void *arg;
    size_t limit;
    int busy;  /* depth of callbacks; a close inside frees at the end of the outermost */
    bool dead; /* chan_close was called */
    bool broken;
    int64_t last_rx_us;
    uint64_t tx_bytes, rx_bytes;
    char peer[80];
    struct net_timer *flush_timer;

    enum rx_state state;
    uint8_t rx[RX_BYTES];
    size_t rx_at, rx_len; /* unread bytes in rx */
    struct header head;   /* of the frame being read */
    uint8_t *payload;
    size_t payload_cap, payload_have;
    struct stream_in in[MAX_IN];

    struct message_out *messages, **messages_end;
    size_t queued;
    struct stream_out *streams, **streams_end;
    uint32_t next_stream;
    bool sending;
    struct message_out *sending_message;
    struct stream_out *sending_stream;
    size_t sending_chunk; /* body bytes in flight */
    int64_t sending_us;   /* since when */
    size_t chunk_bytes;   /* the most of the next chunk */
    bool sending_last;
    uint8_t chunk_header[HEADER_BYTES];
};

static void rx_go(struct chan *c);
static void tx_go(struct chan *c);

/* ---- frames ---- */

static void put_header(uint8_t *p, const struct header *h)
{
    const uint32_t words[2] = {MAGIC, h->len};
    for (int w = 0; w < 2; w++)
        for (int i = 0; i < 4; i++)
            p[4 * w + i] = (uint8_t)(words[w] >> (8 * i));
    p[8] = (uint8_t)h->type;
    p[9] = (uint8_t)(h->type >> 8);
    p[10] = h->kind;
    p[11] = h->flags;
    for (int i = 0; i < 4; i++)
        p[12 + i] = (uint8_t)(h->stream >> (8 * i));
}

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
    if (get_u32(p) != MAGIC)
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
    for (int i = 0; i < MAX_IN; i++)
        if (c->in[i].used && c->in[i].id == id)
            return &c->in[i];
    return NULL;
}

/* ---- the end ---- */

static void free_message(struct message_out *m)
{
    yk_buf_free(&m->bytes);
    free(m);
}

static void free_stream(struct stream_out *s, yk_err err)
{
    net_on_io done = s->done;
    void *arg = s->arg;
    size_t sent = s->sent;
    yk_buf_free(&s->head);
    free(s->body);
    free(s);
    if (done)
        done(arg, err, sent);
}

/* Ends every borrowed body and sink. The connection must be closed. */
static void release_all(struct chan *c, yk_err err)
{
    while (c->streams) {
        struct stream_out *s = c->streams;
        c->streams = s->next;
        free_stream(s, err);
    }
    c->streams_end = &c->streams;
    c->sending_stream = NULL;
    for (int i = 0; i < MAX_IN; i++) {
        if (!c->in[i].used)
            continue;
        c->in[i].used = false;
        if (c->in[i].sink.done)
            c->in[i].sink.done(c->in[i].sink.arg, err);
    }
}

static void destroy(struct chan *c)
{
    net_timer_cancel(c->flush_timer);
    net_conn_close(c->conn);
    c->conn = NULL;
    release_all(c, YK_CLOSED);
    while (c->messages) {
        struct message_out *m = c->messages;
        c->messages = m->next;
        free_message(m);
    }
    if (c->sending_message)
        free_message(c->sending_message);
    free(c->payload);
    free(c);
}

static void enter(struct chan *c)
{
    c->busy++;
}

/* False if the channel is gone now. */
static bool leave(struct chan *c)
{
    c->busy--;
    if (!c->dead)
        return true;
    if (c->busy == 0 && !c->flush_timer)
        destroy(c);
    return false;
}

static void fail(struct chan *c, yk_err err, const char *text)
{
    if (c->broken)
        return;
    c->broken = true;
    net_conn_close(c->conn);
    c->conn = NULL;
    enter(c);
    if (c->flush_timer) { /* closing anyway */
        net_timer_cancel(c->flush_timer);
        c->flush_timer = NULL;
    }
    release_all(c, err);
    if (!c->dead && c->on->closed)
        c->on->closed(c->arg, c, err, text);
    leave(c);
}

/* ---- receiving ---- */

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
    for (int i = 0; i < MAX_IN && !s; i++)
        if (!c->in[i].used)
            s = &c->in[i];
    if (!s || find_in(c, c->head.stream)) {
        wire_free(&msg);
        return s ? yk_fail(why, YK_FORMAT, "stream %u begins twice", c->head.stream)
                 : yk_fail(why, YK_LIMIT, "more than %d streams at once", MAX_IN);
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
    c->rx_at += HEADER_BYTES;
    c->rx_len -= HEADER_BYTES;
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
            if (c->rx_len < HEADER_BYTES)
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
    enter(c);
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
        fail(c, err, why.text);
    if (leave(c) && !c->broken)
        rx_go(c);
}

static void rx_go(struct chan *c)
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

/* ---- sending ---- */

static void unlink_stream(struct chan *c, struct stream_out *s)
{
    struct stream_out **p = &c->streams;
    while (*p != s)
        p = &(*p)->next;
    *p = s->next;
    if (c->streams_end == &s->next)
        c->streams_end = p;
    s->next = NULL;
}

/* What a chunk is to be behind one that took so long: what goes in CHUNK_US, but at most twice and at least half of
 * what it was, for the link may only have hesitated. */
static size_t next_chunk(size_t was, size_t sent, int64_t us)
{
    double fits = us > 0 ? (double)sent * CHUNK_US / (double)us : WIRE_CHUNK_BYTES;
    size_t least = YK_MAX(was / 2, CHUNK_LEAST), most = YK_MIN(2 * was, (size_t)WIRE_CHUNK_BYTES);
    return fits < (double)least ? least : fits < (double)most ? (size_t)fits : most;
}

static void on_tx(void *arg, yk_err err, size_t bytes)
{
    struct chan *c = arg;
    enter(c);
    c->sending = false;
    c->tx_bytes += bytes;
    if (c->sending_message) {
        free_message(c->sending_message);
        c->sending_message = NULL;
    }
    struct stream_out *s = c->sending_stream;
    c->sending_stream = NULL;
    if (err) {
        struct yk_diag why;
        yk_fail(&why, err, "%s", yk_err_text(err));
        fail(c, err, why.text);
    } else if (s) {
        s->head.len = 0;
        s->sent += c->sending_chunk;
        int64_t took_us = net_now_us(c->net) - c->sending_us;
        if (c->sending_chunk == c->chunk_bytes || took_us > CHUNK_US)
            c->chunk_bytes = next_chunk(c->chunk_bytes, c->sending_chunk, took_us);
        s->turn += c->sending_chunk;
        bool turned = s->turn >= WIRE_CHUNK_BYTES;
        if (c->sending_last || turned)
            unlink_stream(c, s);
        if (c->sending_last) {
            free_stream(s, YK_OK);
        } else if (turned) { /* equal priorities take turns: to the end of the list */
            s->turn = 0;
            *c->streams_end = s;
            c->streams_end = &s->next;
        }
    }
    if (c->dead && !c->broken && !c->messages && c->flush_timer) {
        net_timer_cancel(c->flush_timer);
        c->flush_timer = NULL;
    }
    bool flushing = c->dead && !c->broken && c->flush_timer; /* then leave does not free it */
    bool alive = leave(c);
    if (flushing || (alive && !c->broken))
        tx_go(c);
}

/* Streams beyond MAX_OUT wait before their head: the peer would cut us off for more than it keeps. */
static struct stream_out *next_stream(struct chan *c)
{
    struct stream_out *best = NULL;
    int open[2] = {0};
    for (struct stream_out *s = c->streams; s; s = s->next)
        open[s->prio] += s->head.len == 0;
    for (struct stream_out *s = c->streams; s; s = s->next)
        if ((!best || s->prio > best->prio) && (s->head.len == 0 || open[s->prio] < MAX_OUT))
            best = s;
    return best;
}

/* The next chunk's pieces of the body; at most BODY_IOV of them and `most` bytes. */
static int take_body(struct stream_out *s, size_t most, struct net_iov *iov, size_t *len)
{
    int n = 0;
    *len = 0;
    while (s->piece < s->n_body && n < BODY_IOV && *len < most) {
        const struct net_iov *b = &s->body[s->piece];
        size_t take = YK_MIN(b->len - s->piece_at, most - *len);
        if (take) {
            iov[n++] = (struct net_iov){(const uint8_t *)b->data + s->piece_at, take};
            *len += take;
            s->piece_at += take;
        }
        if (s->piece_at == b->len) {
            s->piece++;
            s->piece_at = 0;
        }
    }
    return n;
}

static void tx_go(struct chan *c)
{
    struct net_iov iov[8];
    int n = 0;
    if (c->sending || !c->conn)
        return;
    if (c->messages) {
        struct message_out *m = c->messages;
        c->messages = m->next;
        if (!c->messages)
            c->messages_end = &c->messages;
        c->queued -= m->bytes.len;
        c->sending_message = m;
        iov[n++] = (struct net_iov){m->bytes.data, m->bytes.len};
    } else {
        struct stream_out *s = next_stream(c);
        if (!s)
            return;
        if (s->head.len)
            iov[n++] = (struct net_iov){s->head.data, s->head.len};
        size_t len;
        int body = take_body(s, YK_MIN(c->chunk_bytes, WIRE_CHUNK_BYTES - s->turn), iov + n + 1, &len);
        c->sending_chunk = len;
        c->sending_last = s->sent + len == s->total;
        struct header h = {
            .len = (uint32_t)len, .stream = s->id, .kind = FRAME_CHUNK, .flags = c->sending_last ? FLAG_LAST : 0};
        put_header(c->chunk_header, &h);
        iov[n] = (struct net_iov){c->chunk_header, HEADER_BYTES};
        n += 1 + body;
        c->sending_stream = s;
    }
    c->sending = true;
    c->sending_us = net_now_us(c->net);
    net_send(c->conn, iov, n, on_tx, c);
}

static yk_err encode(
    struct chan *c, enum wire_type type, const void *msg, const struct header *like, struct yk_buf *out)
{
    struct header h = *like;
    yk_buf_room(out, HEADER_BYTES);
    yk_err err = wire_encode(type, msg, out);
    if (!err && out->failed)
        err = YK_NOMEM;
    if (!err && out->len - HEADER_BYTES > c->limit)
        err = YK_LIMIT;
    if (err) {
        yk_buf_free(out);
        return err;
    }
    h.len = (uint32_t)(out->len - HEADER_BYTES);
    h.type = (uint16_t)type;
    put_header(out->data, &h);
    return YK_OK;
}

yk_err chan_send(struct chan *c, enum wire_type type, const void *msg)
{
    if (c->broken || c->dead)
        return YK_CLOSED;
    if (c->queued > QUEUE_LIMIT)
        return YK_BUSY;
    struct message_out *m = yk_xalloc(sizeof *m);
    struct header h = {.kind = FRAME_MESSAGE};
    yk_err err = encode(c, type, msg, &h, &m->bytes);
    if (err) {
        free(m);
        return err;
    }
    *c->messages_end = m;
    c->messages_end = &m->next;
    c->queued += m->bytes.len;
    tx_go(c);
    return YK_OK;
}

yk_err chan_stream(struct chan *c, enum chan_prio prio, enum wire_type type, const void *head,
    const struct net_iov *body, int n, net_on_io done, void *arg)
{
    if (c->broken || c->dead)
        return YK_CLOSED;
    struct stream_out *s = yk_xalloc(sizeof *s);
    c->next_stream += c->next_stream == UINT32_MAX ? 2 : 1; /* 0 is for messages */
    struct header h = {.kind = FRAME_HEAD, .stream = c->next_stream};
    yk_err err = encode(c, type, head, &h, &s->head);
    if (err) {
        free(s);
        return err;
    }
    s->body = yk_xalloc(((size_t)n + 1) * sizeof *s->body);
    for (int i = 0; i < n; i++) {
        s->body[i] = body[i];
        s->total += body[i].len;
    }
    s->id = h.stream;
    s->prio = prio;
    s->n_body = n;
    s->done = done;
    s->arg = arg;
    *c->streams_end = s;
    c->streams_end = &s->next;
    tx_go(c);
    return YK_OK;
}

/* ---- life ---- */

struct chan *chan_open(struct net_conn *conn, const struct chan_on *on, void *arg)
{
    struct chan *c = yk_xalloc(sizeof *c);
    c->net = conn->net;
    c->conn = conn;
    c->on = on;
    c->arg = arg;
    c->limit = WIRE_CONTROL_LIMIT;
    c->chunk_bytes = CHUNK_FIRST;
    c->messages_end = &c->messages;
    c->streams_end = &c->streams;
    c->last_rx_us = net_now_us(c->net);
    snprintf(c->peer, sizeof c->peer, "%s", net_peer(conn));
    rx_go(c);
    return c;
}

void chan_set(struct chan *c, const struct chan_on *on, void *arg)
{
    c->on = on;
    c->arg = arg;
}

void chan_trust(struct chan *c)
{
    c->limit = WIRE_MESSAGE_LIMIT;
}

int64_t chan_last_rx_us(const struct chan *c)
{
    return c->last_rx_us;
}

uint64_t chan_tx_bytes(const struct chan *c)
{
    return c->tx_bytes;
}

uint64_t chan_rx_bytes(const struct chan *c)
{
    return c->rx_bytes;
}

const char *chan_peer(const struct chan *c)
{
    return c->peer;
}

static void flush_over(void *arg)
{
    struct chan *c = arg;
    c->flush_timer = NULL;
    if (c->busy == 0)
        destroy(c);
}

void chan_close(struct chan *c, bool flush)
{
    if (!c || c->dead)
        return;
    c->dead = true;
    bool queued = c->messages || c->sending_message;
    /* A stream in flight or a sink being filled borrows memory that the caller may free next: then it ends at once. */
    if (flush && !c->broken && queued && !c->sending_stream && c->state != RX_CHUNK) {
        c->flush_timer = net_timer(c->net, FLUSH_US, flush_over, c);
        enter(c);
        release_all(c, YK_CLOSED);
        c->busy--;
        return;
    }
    c->broken = true;
    net_conn_close(c->conn);
    c->conn = NULL;
    enter(c);
    release_all(c, YK_CLOSED);
    c->busy--;
    if (c->busy == 0)
        destroy(c);
}
