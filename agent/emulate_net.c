/* The emulated link. One medium for all connections (two, one per direction, if full duplex): a packet takes it from
 * max(now, free) for bytes / rate, and arrives a latency later. The moment that the medium is free is reckoned, not
 * observed, and the next packet is taken AHEAD_US early, so timers that fire late cost no rate. */
#include "agent/emulate_net.h"

#include <stdlib.h>
#include <string.h>

#define AHEAD_US 5000
#define READ_BYTES ((size_t)64 * 1024)
#define READ_LEAST ((size_t)2 * 1024)
#define READ_S 0.05                       /* that a piece takes the medium at most: connections share it */
#define QUEUE_BYTES ((size_t)1024 * 1024) /* plus what is in the air during the latency */
#define LINGER_US 1000000

enum { UP, DOWN };

struct packet {
    struct packet *next;
    int64_t ready_us;
    size_t len, at;
    uint8_t data[];
};

struct queue {
    struct packet *first, **end;
    size_t bytes;
};

struct emu;

struct accept_arg {
    struct accept_arg *next;
    struct emu *emu;
    net_on_accept fn;
    void *arg;
};

struct dial_arg {
    struct dial_arg *next;
    struct emu *emu; /* NULL once it closed */
    net_on_dial fn;
    void *arg;
};

struct emu_conn {
    struct net_conn base;
    struct emu *emu;
    struct emu_conn *prev, *next;
    struct net_conn *inner;
    bool closed; /* the owner is gone; what was sent still goes out */
    struct net_timer *linger;

    struct queue tx;
    bool tx_busy; /* inner sends the first packet */
    yk_err tx_err;
    struct net_timer *tx_timer;   /* the first packet has arrived */
    struct net_timer *sent_timer; /* answers the owner's send */
    bool sent_waits;              /* its time is over, the queue is full */
    net_on_io sent_fn;
    void *sent_arg;
    size_t sent_len;

    struct queue rx;
    struct packet *reading; /* inner reads into it */
    yk_err rx_err;
    struct net_timer *rx_timer, *read_timer;
    net_on_io got_fn;
    void *got_arg;
    uint8_t *got_buf;
    size_t got_len;
};

struct emu {
    struct net base;
    struct net *inner;
    struct agent_emulate device;
    struct emulate_link link;
    int64_t latency_us[2];
    struct emu_conn *conns;
    struct accept_arg *accepts;
    struct dial_arg *dials; /* not yet answered */
    bool orphan;            /* closed; goes with its last connection */
};

static struct emu *emu_of(struct net *net)
{
    return (struct emu *)net;
}

static void queue_add(struct queue *q, struct packet *p)
{
    p->next = NULL;
    if (q->first)
        *q->end = p;
    else
        q->first = p;
    q->end = &p->next;
    q->bytes += p->len;
}

static void queue_pop(struct queue *q)
{
    struct packet *p = q->first;
    q->first = p->next;
    q->bytes -= p->len;
    free(p);
}

/* When the medium is free for the next packet. */
static int64_t free_us(const struct emu *e, int direction)
{
    return direction == UP || e->device.half_duplex ? e->link.tx_free_us : e->link.rx_free_us;
}

/* Takes the medium for len bytes; returns when they have arrived. */
static int64_t take(struct emu *e, int direction, size_t len)
{
    int64_t now = net_now_us(e->inner);
    return now + (direction == UP ? emulate_tx_delay_us : emulate_rx_delay_us)(&e->device, &e->link, now, (int64_t)len);
}

static size_t read_bytes(const struct emu *e)
{
    double piece = e->device.bytes_per_s > 0 ? e->device.bytes_per_s * READ_S : (double)READ_BYTES;
    return piece < (double)READ_LEAST ? READ_LEAST : piece < (double)READ_BYTES ? (size_t)piece : READ_BYTES;
}

static size_t queue_limit(const struct emu *e, int direction)
{
    double air = e->device.bytes_per_s > 0 ? e->device.bytes_per_s * (double)e->latency_us[direction] / 1e6 : 64e6;
    return QUEUE_BYTES + (size_t)YK_MIN(air, 64e6);
}

static void destroy(struct emu_conn *c)
{
    struct emu *e = c->emu;
    net_timer_cancel(c->linger);
    net_timer_cancel(c->tx_timer);
    net_timer_cancel(c->sent_timer);
    net_timer_cancel(c->rx_timer);
    net_timer_cancel(c->read_timer);
    net_conn_close(c->inner);
    while (c->tx.first)
        queue_pop(&c->tx);
    while (c->rx.first)
        queue_pop(&c->rx);
    free(c->reading);
    if (c->prev)
        c->prev->next = c->next;
    else
        e->conns = c->next;
    if (c->next)
        c->next->prev = c->prev;
    free(c);
    if (e->orphan && !e->conns)
        free(e);
}

static void on_linger(void *arg)
{
    struct emu_conn *c = arg;
    c->linger = NULL;
    destroy(c);
}

/* ---- sending ---- */

static void tx_go(struct emu_conn *c);

static void answer_send(struct emu_conn *c)
{
    net_on_io fn = c->sent_fn;
    c->sent_fn = NULL;
    c->sent_waits = false;
    fn(c->sent_arg, c->tx_err, c->tx_err ? 0 : c->sent_len);
}

static void on_sent_timer(void *arg)
{
    struct emu_conn *c = arg;
    c->sent_timer = NULL;
    if (!c->tx_err && c->tx.bytes > queue_limit(c->emu, UP))
        c->sent_waits = true;
    else
        answer_send(c);
}

static void on_inner_sent(void *arg, yk_err err, size_t bytes)
{
    (void)bytes;
    struct emu_conn *c = arg;
    c->tx_busy = false;
    if (err)
        c->tx_err = err;
    else
        queue_pop(&c->tx);
    if (c->closed && (err || !c->tx.first)) {
        destroy(c);
        return;
    }
    if (!err)
        tx_go(c);
    if (c->sent_waits && (err || c->tx.bytes <= queue_limit(c->emu, UP)))
        answer_send(c);
}

static void on_tx_timer(void *arg)
{
    struct emu_conn *c = arg;
    c->tx_timer = NULL;
    tx_go(c);
}

static void tx_go(struct emu_conn *c)
{
    struct packet *p = c->tx.first;
    if (!p || c->tx_busy || c->tx_timer || c->tx_err)
        return;
    int64_t wait = p->ready_us - net_now_us(c->emu->inner);
    if (wait > 0) {
        c->tx_timer = net_timer(c->emu->inner, wait, on_tx_timer, c);
        return;
    }
    struct net_iov iov = {p->data, p->len};
    c->tx_busy = true;
    net_send(c->inner, &iov, 1, on_inner_sent, c);
}

static void emu_send(struct net_conn *conn, const struct net_iov *iov, int n, net_on_io fn, void *arg)
{
    struct emu_conn *c = (struct emu_conn *)conn;
    struct emu *e = c->emu;
    size_t len = 0;
    for (int i = 0; i < n; i++)
        len += iov[i].len;
    c->sent_fn = fn;
    c->sent_arg = arg;
    c->sent_len = len;
    struct packet *p = malloc(sizeof *p + len);
    if (!p)
        c->tx_err = YK_NOMEM;
    if (!p || c->tx_err || len == 0) {
        free(p);
        c->sent_timer = net_timer(e->inner, 0, on_sent_timer, c);
        return;
    }
    p->len = p->at = 0;
    for (int i = 0; i < n; i++) {
        if (iov[i].len)
            memcpy(p->data + p->len, iov[i].data, iov[i].len);
        p->len += iov[i].len;
    }
    p->ready_us = take(e, UP, len);
    int64_t passed = p->ready_us - e->latency_us[UP];
    queue_add(&c->tx, p);
    tx_go(c);
    c->sent_timer = net_timer(e->inner, passed - AHEAD_US - net_now_us(e->inner), on_sent_timer, c);
}

/* ---- receiving ---- */

static void rx_go(struct emu_conn *c);
static void read_go(struct emu_conn *c);

static void on_read_timer(void *arg)
{
    struct emu_conn *c = arg;
    c->read_timer = NULL;
    read_go(c);
}

static void on_inner_got(void *arg, yk_err err, size_t bytes)
{
    struct emu_conn *c = arg;
    struct packet *p = c->reading;
    c->reading = NULL;
    if (err) {
        free(p);
        c->rx_err = err;
    } else {
        struct packet *small = bytes < read_bytes(c->emu) / 2 ? realloc(p, sizeof *p + bytes) : NULL;
        p = small ? small : p;
        p->len = bytes;
        p->at = 0;
        p->ready_us = take(c->emu, DOWN, bytes);
        queue_add(&c->rx, p);
        read_go(c);
    }
    rx_go(c);
}

static void read_go(struct emu_conn *c)
{
    struct emu *e = c->emu;
    if (c->reading || c->read_timer || c->rx_err || c->closed || c->rx.bytes > queue_limit(e, DOWN))
        return;
    int64_t wait = free_us(e, DOWN) - AHEAD_US - net_now_us(e->inner);
    if (wait > 0) {
        c->read_timer = net_timer(e->inner, wait, on_read_timer, c);
        return;
    }
    size_t len = read_bytes(e);
    c->reading = malloc(sizeof *c->reading + len);
    if (!c->reading) {
        c->rx_err = YK_NOMEM;
        return;
    }
    net_recv(c->inner, c->reading->data, len, on_inner_got, c);
}

static void on_rx_timer(void *arg)
{
    struct emu_conn *c = arg;
    c->rx_timer = NULL;
    if (!c->got_fn)
        return;
    size_t got = 0;
    int64_t now = net_now_us(c->emu->inner);
    while (c->rx.first && got < c->got_len && c->rx.first->ready_us <= now) {
        struct packet *p = c->rx.first;
        size_t n = YK_MIN(p->len - p->at, c->got_len - got);
        memcpy(c->got_buf + got, p->data + p->at, n);
        p->at += n;
        got += n;
        if (p->at == p->len)
            queue_pop(&c->rx);
    }
    if (!got && !(c->rx_err && !c->rx.first)) {
        rx_go(c);
        return;
    }
    net_on_io fn = c->got_fn;
    c->got_fn = NULL;
    if (!c->rx_err)
        read_go(c);
    fn(c->got_arg, got ? YK_OK : c->rx_err, got); /* may close c */
}

static void rx_go(struct emu_conn *c)
{
    if (!c->got_fn || c->rx_timer)
        return;
    if (c->rx.first) {
        int64_t wait = c->rx.first->ready_us - net_now_us(c->emu->inner);
        c->rx_timer = net_timer(c->emu->inner, YK_MAX(wait, 0), on_rx_timer, c);
    } else if (c->rx_err) {
        c->rx_timer = net_timer(c->emu->inner, 0, on_rx_timer, c);
    }
}

static void emu_recv(struct net_conn *conn, void *buf, size_t len, net_on_io fn, void *arg)
{
    struct emu_conn *c = (struct emu_conn *)conn;
    c->got_fn = fn;
    c->got_arg = arg;
    c->got_buf = buf;
    c->got_len = len;
    read_go(c);
    rx_go(c);
}

/* ---- connections ---- */

static struct net_conn *wrap(struct emu *e, struct net_conn *inner)
{
    struct emu_conn *c = yk_xalloc(sizeof *c);
    c->base.net = &e->base;
    c->emu = e;
    c->inner = inner;
    c->next = e->conns;
    if (c->next)
        c->next->prev = c;
    e->conns = c;
    return &c->base;
}

static void emu_conn_close(struct net_conn *conn)
{
    struct emu_conn *c = (struct emu_conn *)conn;
    if (c->tx_err || !c->tx.first) {
        destroy(c);
        return;
    }
    /* What the owner saw as sent is still on its way. */
    c->closed = true;
    c->got_fn = NULL;
    c->sent_waits = false;
    net_timer_cancel(c->sent_timer);
    net_timer_cancel(c->rx_timer);
    net_timer_cancel(c->read_timer);
    c->sent_timer = c->rx_timer = c->read_timer = NULL;
    c->linger = net_timer(c->emu->inner, LINGER_US + c->emu->latency_us[UP], on_linger, c);
}

static const char *emu_peer(struct net_conn *conn)
{
    return net_peer(((struct emu_conn *)conn)->inner);
}

static void on_accept(void *arg, struct net_conn *conn)
{
    struct accept_arg *a = arg;
    a->fn(a->arg, wrap(a->emu, conn));
}

static yk_err emu_listen(
    struct net *net, const char *url, net_on_accept fn, void *arg, struct net_listener **out, struct yk_diag *why)
{
    struct emu *e = emu_of(net);
    struct accept_arg *a = yk_xalloc(sizeof *a);
    *a = (struct accept_arg){.next = e->accepts, .emu = e, .fn = fn, .arg = arg};
    yk_err err = net_listen(e->inner, url, on_accept, a, out, why);
    if (err)
        free(a);
    else
        e->accepts = a; /* the listener is inner's own; what it calls with lives until this net closes */
    return err;
}

static void on_dial(void *arg, yk_err err, struct net_conn *conn)
{
    struct dial_arg d = *(struct dial_arg *)arg;
    if (d.emu) {
        struct dial_arg **p = &d.emu->dials;
        while (*p != arg)
            p = &(*p)->next;
        *p = d.next;
    }
    free(arg);
    if (!d.emu && !err) {
        net_conn_close(conn);
        err = YK_CLOSED;
    }
    d.fn(d.arg, err, err ? NULL : wrap(d.emu, conn));
}

static void emu_dial(struct net *net, const char *url, int64_t timeout_us, net_on_dial fn, void *arg)
{
    struct dial_arg *d = yk_xalloc(sizeof *d);
    *d = (struct dial_arg){emu_of(net)->dials, emu_of(net), fn, arg};
    emu_of(net)->dials = d;
    net_dial(emu_of(net)->inner, url, timeout_us, on_dial, d);
}

/* ---- the rest is inner's ---- */

static int64_t emu_now_us(struct net *net)
{
    return net_now_us(emu_of(net)->inner);
}

static struct net_timer *emu_timer(struct net *net, int64_t delay_us, net_fn fn, void *arg)
{
    return net_timer(emu_of(net)->inner, delay_us, fn, arg);
}

static void emu_timer_cancel(struct net_timer *t)
{
    net_timer_cancel(t);
}

static void emu_post(struct net *net, net_fn fn, void *arg)
{
    net_post(emu_of(net)->inner, fn, arg);
}

static void emu_random(struct net *net, void *buf, size_t len)
{
    net_random(emu_of(net)->inner, buf, len);
}

static const char *emu_listener_url(struct net_listener *l)
{
    return net_listener_url(l);
}

static void emu_listener_close(struct net_listener *l)
{
    net_listener_close(l);
}

static void emu_run(struct net *net)
{
    net_run(emu_of(net)->inner);
}

static void emu_stop(struct net *net)
{
    net_stop(emu_of(net)->inner);
}

static void emu_close(struct net *net)
{
    struct emu *e = emu_of(net);
    for (struct dial_arg *d = e->dials; d; d = d->next)
        d->emu = NULL;
    while (e->accepts) {
        struct accept_arg *a = e->accepts;
        e->accepts = a->next;
        free(a);
    }
    e->orphan = true; /* a channel may still be flushing its last message */
    if (!e->conns)
        free(e);
}

static struct net_ops ops_like(const struct net_ops *inner)
{
    return (struct net_ops){
        .name = inner->name, /* what depends on it (threads or not) stays true */
        .now_us = emu_now_us,
        .timer = emu_timer,
        .timer_cancel = emu_timer_cancel,
        .post = emu_post,
        .random = emu_random,
        .listen = emu_listen,
        .listener_url = emu_listener_url,
        .listener_close = emu_listener_close,
        .dial = emu_dial,
        .recv = emu_recv,
        .send = emu_send,
        .conn_close = emu_conn_close,
        .peer = emu_peer,
        .run = emu_run,
        .stop = emu_stop,
        .close = emu_close,
    };
}

struct emu_with_ops {
    struct emu emu;
    struct net_ops ops;
};

yk_err emulate_net_open(struct net *inner, const struct agent_emulate *e, struct net **out)
{
    struct emu_with_ops *made = yk_xalloc(sizeof *made);
    made->ops = ops_like(inner->ops);
    made->emu.base.ops = &made->ops;
    made->emu.inner = inner;
    made->emu.device = *e;
    made->emu.latency_us[UP] = (int64_t)(e->up_latency_ms * 1000);
    made->emu.latency_us[DOWN] = (int64_t)(e->down_latency_ms * 1000);
    *out = &made->emu.base;
    return YK_OK;
}
