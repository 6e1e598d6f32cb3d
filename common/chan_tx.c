/* Sending: messages first, then chunks of streams by priority, equal ones in turns. */
#include "common/chan_priv.h"

#include <stdlib.h>

#define QUEUE_LIMIT ((size_t)8 << 20)
#define MAX_OUT 32      /* streams of a priority that we have open at once; both together: CHAN_MAX_IN */
#define BODY_IOV 5      /* pieces of a body in one send: head frame 2 + chunk header 1 + these <= 8 */
#define CHUNK_US 100000 /* that a chunk is to take at most */
#define CHUNK_LEAST ((size_t)4 << 10)

static void put_header(uint8_t *p, const struct header *h)
{
    const uint32_t words[2] = {CHAN_MAGIC, h->len};
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
    chan_enter(c);
    c->sending = false;
    c->tx_bytes += bytes;
    if (c->sending_message) {
        chan_free_message(c->sending_message);
        c->sending_message = NULL;
    }
    struct stream_out *s = c->sending_stream;
    c->sending_stream = NULL;
    if (err) {
        struct yk_diag why;
        yk_fail(&why, err, "%s", yk_err_text(err));
        chan_fail(c, err, why.text);
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
            chan_free_stream(s, YK_OK);
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
    bool alive = chan_leave(c);
    if (flushing || (alive && !c->broken))
        chan_tx_go(c);
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

void chan_tx_go(struct chan *c)
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
        iov[n] = (struct net_iov){c->chunk_header, CHAN_HEADER_BYTES};
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
    yk_buf_room(out, CHAN_HEADER_BYTES);
    yk_err err = wire_encode(type, msg, out);
    if (!err && out->failed)
        err = YK_NOMEM;
    if (!err && out->len - CHAN_HEADER_BYTES > c->limit)
        err = YK_LIMIT;
    if (err) {
        yk_buf_free(out);
        return err;
    }
    h.len = (uint32_t)(out->len - CHAN_HEADER_BYTES);
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
    chan_tx_go(c);
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
    chan_tx_go(c);
    return YK_OK;
}
