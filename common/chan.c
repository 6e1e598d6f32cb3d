#include "common/chan_priv.h"

#include <stdio.h>
#include <stdlib.h>

#define FLUSH_US 1000000
#define CHUNK_FIRST ((size_t)64 << 10)

/* ---- the end ---- */

void chan_free_message(struct message_out *m)
{
    yk_buf_free(&m->bytes);
    free(m);
}

void chan_free_stream(struct stream_out *s, yk_err err)
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
        chan_free_stream(s, err);
    }
    c->streams_end = &c->streams;
    c->sending_stream = NULL;
    for (int i = 0; i < CHAN_MAX_IN; i++) {
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
        chan_free_message(m);
    }
    if (c->sending_message)
        chan_free_message(c->sending_message);
    free(c->payload);
    free(c);
}

void chan_enter(struct chan *c)
{
    c->busy++;
}

bool chan_leave(struct chan *c)
{
    c->busy--;
    if (!c->dead)
        return true;
    if (c->busy == 0 && !c->flush_timer)
        destroy(c);
    return false;
}

void chan_fail(struct chan *c, yk_err err, const char *text)
{
    if (c->broken)
        return;
    c->broken = true;
    net_conn_close(c->conn);
    c->conn = NULL;
    chan_enter(c);
    if (c->flush_timer) { /* closing anyway */
        net_timer_cancel(c->flush_timer);
        c->flush_timer = NULL;
    }
    release_all(c, err);
    if (!c->dead && c->on->closed)
        c->on->closed(c->arg, c, err, text);
    chan_leave(c);
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
    chan_rx_go(c);
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
        chan_enter(c);
        release_all(c, YK_CLOSED);
        c->busy--;
        return;
    }
    c->broken = true;
    net_conn_close(c->conn);
    c->conn = NULL;
    chan_enter(c);
    release_all(c, YK_CLOSED);
    c->busy--;
    if (c->busy == 0)
        destroy(c);
}
