/* Streams of the net in memory.
 *
 * A direction of a connection carries segments: each takes the link of the listening name for bytes / rate, arrives
 * after the latency and waits in the receiver's buffer. A sender may be ahead of the reader by a window; then it
 * waits, as with TCP. While a name is cut its segments and dials are held; after the cut they go on (as if sent again),
 * so a stream never has a hole. Half-open streams are not modelled: the end of one direction ends both. */
#include "common/net_mem.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SEGMENT_BYTES ((size_t)64 * 1024)
#define WINDOW_BYTES ((size_t)1024 * 1024)
#define PREFIX "mem://"

/* What a listening name is known for; made on first use, kept until the net closes. */
struct place {
    struct place *next;
    char *name;
    int64_t latency_us;
    double rate;        /* bytes/s, 0: no limit */
    int64_t free_us[2]; /* when each direction's link is free again; 0: towards the listener */
    bool cut;
    struct listener *listener;
};

struct listener {
    struct net_listener base;
    struct place *place;
    net_on_accept fn;
    void *arg;
    char *url;
};

struct segment {
    struct segment *next;
    size_t len, read;
    bool fin; /* no bytes: the sender closed */
    bool arrived;
    uint8_t data[];
};

/* One end of a connection, and the direction towards it. */
struct end {
    struct net_conn base;
    struct pair *pair;
    struct end *other;
    int side;    /* 0: the dialler, 1: the accepted */
    bool closed; /* by its owner */
    bool gone;   /* the other side's end has arrived: sends fail; reads still find what came before */
    int held;    /* arrivals that a cut keeps back */
    char peer[80];

    struct segment *first, **last; /* on the way to us or waiting to be read */
    size_t queued;                 /* bytes of them */

    void *recv_buf;
    size_t recv_len;
    net_on_io recv_fn;
    void *recv_arg;
    struct event *recv_event;

    struct net_iov iov[8];
    int iov_n;
    size_t sent;
    net_on_io send_fn;
    void *send_arg;
    struct event *send_event;
};

struct pair {
    struct pair *next, *prev;
    struct place *place;
    struct end end[2];
    int refs; /* open ends and events on the way */
};

struct dial {
    struct dial *next, *prev;
    struct mem *mem;
    struct place *place;
    net_on_dial fn;
    void *arg;
    struct event *timeout, *step;
    bool held;       /* by a cut */
    struct end *end; /* ours, once the listener has taken the other one */
};

/* ---- names ---- */

static const char *name_of(const char *text)
{
    return strncmp(text, PREFIX, strlen(PREFIX)) == 0 ? text + strlen(PREFIX) : text;
}

static struct place *place_get(struct mem *m, const char *name)
{
    for (struct place *p = m->places; p; p = p->next)
        if (strcmp(p->name, name) == 0)
            return p;
    struct place *p = yk_xalloc(sizeof *p);
    p->name = yk_xstrdup(name);
    p->next = m->places;
    m->places = p;
    return p;
}

yk_err net_mem_listen(
    struct net *net, const char *url, net_on_accept fn, void *arg, struct net_listener **out, struct yk_diag *why)
{
    struct mem *m = net_mem_of(net);
    if (strncmp(url, PREFIX, strlen(PREFIX)) != 0)
        return yk_fail(why, YK_UNSUPPORTED, "cannot listen at '%s': the in-memory net knows mem://NAME", url);
    struct place *p = place_get(m, name_of(url));
    if (p->listener)
        return yk_fail(why, YK_BUSY, "cannot listen at '%s': the address is in use", url);
    struct listener *l = yk_xalloc(sizeof *l);
    l->base.net = net;
    l->place = p;
    l->fn = fn;
    l->arg = arg;
    l->url = yk_xstrdup(url);
    p->listener = l;
    *out = &l->base;
    return YK_OK;
}

const char *net_mem_listener_url(struct net_listener *base)
{
    return ((struct listener *)base)->url;
}

void net_mem_listener_close(struct net_listener *base)
{
    struct listener *l = (struct listener *)base;
    l->place->listener = NULL;
    free(l->url);
    free(l);
}

/* ---- connections ---- */

static struct mem *end_mem(struct end *e)
{
    return net_mem_of(e->base.net);
}

static void pair_release(struct pair *p)
{
    if (--p->refs)
        return;
    for (int i = 0; i < 2; i++)
        for (struct segment *s = p->end[i].first, *next; s; s = next) {
            next = s->next;
            free(s);
        }
    struct mem *m = end_mem(&p->end[0]);
    if (p->prev)
        p->prev->next = p->next;
    else
        m->pairs = p->next;
    if (p->next)
        p->next->prev = p->prev;
    free(p);
}

static struct segment *segment_add(struct end *to, size_t len)
{
    struct segment *s = yk_xalloc(sizeof *s + len);
    s->len = len;
    if (to->first)
        *to->last = s;
    else
        to->first = s;
    to->last = &s->next;
    to->queued += len;
    return s;
}

static void on_arrive(void *arg);

/* Puts bytes on the link towards `to`; returns when they have left the sender. */
static int64_t link_take(struct end *to, size_t bytes)
{
    struct mem *m = end_mem(to);
    struct place *p = to->pair->place;
    int64_t *free_us = &p->free_us[to->side == 1 ? 0 : 1];
    int64_t start = YK_MAX(m->now_us, *free_us);
    *free_us = net_mem_later(start, p->rate > 0 ? (int64_t)((double)bytes / p->rate * 1e6) : 0);
    to->pair->refs++;
    net_mem_event_add(m, net_mem_later(*free_us, p->latency_us), on_arrive, to);
    return *free_us;
}

static void on_sent(void *arg)
{
    struct end *e = arg;
    e->send_event = NULL;
    net_on_io fn = e->send_fn;
    e->send_fn = NULL;
    fn(e->send_arg, e->gone ? YK_CLOSED : YK_OK, e->gone ? 0 : e->sent);
}

static void send_answer(struct end *e, int64_t at_us)
{
    if (e->send_fn && !e->send_event)
        e->send_event = net_mem_event_add(end_mem(e), at_us, on_sent, e);
}

/* Copies as much of the sender's buffers as the window allows onto the link. */
static void pump(struct end *from)
{
    struct end *to = from->other;
    struct place *p = to->pair->place;
    size_t window = WINDOW_BYTES + (size_t)YK_MIN(2e-6 * (double)p->latency_us * p->rate, 1e9), skip = from->sent;
    int i = 0;
    int64_t left_us = end_mem(from)->now_us;
    if (!from->send_fn || from->send_event)
        return;
    while (i < from->iov_n && skip >= from->iov[i].len)
        skip -= from->iov[i++].len;
    while (i < from->iov_n && to->queued < window) {
        size_t n = YK_MIN(from->iov[i].len - skip, SEGMENT_BYTES);
        if (n) {
            struct segment *s = segment_add(to, n);
            memcpy(s->data, (const uint8_t *)from->iov[i].data + skip, n);
            left_us = link_take(to, n);
        }
        from->sent += n;
        skip += n;
        if (skip == from->iov[i].len) {
            i++;
            skip = 0;
        }
    }
    if (i == from->iov_n)
        send_answer(from, left_us);
}

static void on_recv(void *arg)
{
    struct end *e = arg;
    e->recv_event = NULL;
    size_t got = 0;
    struct segment *s;
    while (got < e->recv_len && (s = e->first) != NULL && s->arrived && !s->fin) {
        size_t n = YK_MIN(s->len - s->read, e->recv_len - got);
        memcpy((uint8_t *)e->recv_buf + got, s->data + s->read, n);
        got += n;
        s->read += n;
        if (s->read < s->len)
            break;
        e->first = s->next;
        free(s);
    }
    e->queued -= got;
    net_on_io fn = e->recv_fn;
    e->recv_fn = NULL;
    if (got && !e->other->closed)
        pump(e->other); /* the window opened */
    fn(e->recv_arg, got ? YK_OK : YK_CLOSED, got);
}

static void recv_try(struct end *e)
{
    if (e->recv_fn && !e->recv_event && e->first && e->first->arrived)
        e->recv_event = net_mem_event_add(end_mem(e), end_mem(e)->now_us, on_recv, e);
}

/* The oldest segment on its way to this end is there, unless a cut holds it. */
static void on_arrive(void *arg)
{
    struct end *to = arg;
    if (to->pair->place->cut) {
        to->held++;
        return;
    }
    struct segment *s = to->first;
    while (s && s->arrived)
        s = s->next;
    if (s && !to->closed) {
        s->arrived = true;
        if (s->fin) {
            to->gone = true;
            send_answer(to, end_mem(to)->now_us);
        }
        recv_try(to);
    }
    pair_release(to->pair);
}

void net_mem_recv(struct net_conn *c, void *buf, size_t len, net_on_io fn, void *arg)
{
    struct end *e = (struct end *)c;
    e->recv_buf = buf;
    e->recv_len = len;
    e->recv_fn = fn;
    e->recv_arg = arg;
    recv_try(e);
}

void net_mem_send(struct net_conn *c, const struct net_iov *iov, int n, net_on_io fn, void *arg)
{
    struct end *e = (struct end *)c;
    e->iov_n = YK_MIN(n, (int)YK_COUNT(e->iov));
    memcpy(e->iov, iov, (size_t)e->iov_n * sizeof *iov);
    e->sent = 0;
    e->send_fn = fn;
    e->send_arg = arg;
    if (e->gone)
        send_answer(e, end_mem(e)->now_us);
    else
        pump(e);
}

void net_mem_conn_close(struct net_conn *c)
{
    struct end *e = (struct end *)c;
    net_mem_event_cancel(e->recv_event);
    net_mem_event_cancel(e->send_event);
    e->recv_event = e->send_event = NULL;
    e->recv_fn = e->send_fn = NULL;
    e->closed = true;
    if (!e->other->closed) {
        segment_add(e->other, 0)->fin = true;
        link_take(e->other, 0);
    }
    pair_release(e->pair);
}

const char *net_mem_peer(struct net_conn *c)
{
    return ((struct end *)c)->peer;
}

/* ---- dialling ---- */

static struct pair *pair_open(struct mem *m, struct place *place)
{
    struct pair *p = yk_xalloc(sizeof *p);
    p->place = place;
    p->refs = 2;
    for (int i = 0; i < 2; i++) {
        p->end[i].base.net = &m->base;
        p->end[i].pair = p;
        p->end[i].other = &p->end[1 - i];
        p->end[i].side = i;
    }
    snprintf(p->end[0].peer, sizeof p->end[0].peer, PREFIX "%.70s", place->name);
    snprintf(p->end[1].peer, sizeof p->end[1].peer, "mem-%d", ++m->accepted);
    p->next = m->pairs;
    if (m->pairs)
        m->pairs->prev = p;
    m->pairs = p;
    return p;
}

static void dial_remove(struct dial *d)
{
    net_mem_event_cancel(d->timeout);
    net_mem_event_cancel(d->step);
    if (d->prev)
        d->prev->next = d->next;
    else
        d->mem->dials = d->next;
    if (d->next)
        d->next->prev = d->prev;
    free(d);
}

static void dial_answer(struct dial *d, yk_err err)
{
    net_on_dial fn = d->fn;
    void *arg = d->arg;
    struct end *end = d->end;
    dial_remove(d);
    if (err && end) {
        net_mem_conn_close(&end->base);
        end = NULL;
    }
    fn(arg, err, end ? &end->base : NULL);
}

static void on_dial_timeout(void *arg)
{
    struct dial *d = arg;
    d->timeout = NULL;
    dial_answer(d, YK_TIMEOUT);
}

static void on_dial_end(void *arg) /* the listener's answer, or a refusal, is back */
{
    struct dial *d = arg;
    d->step = NULL;
    dial_answer(d, d->end ? YK_OK : YK_REFUSED);
}

static void on_dial_arrive(void *arg)
{
    struct dial *d = arg;
    struct mem *m = d->mem;
    d->step = NULL;
    if (d->place->cut) {
        d->held = true;
        return;
    }
    d->step = net_mem_event_add(m, net_mem_later(m->now_us, d->place->latency_us), on_dial_end, d);
    struct listener *l = d->place->listener;
    if (l) {
        struct pair *p = pair_open(m, d->place);
        d->end = &p->end[0];
        l->fn(l->arg, &p->end[1].base); /* may do anything, also close the listener */
    }
}

static void on_bad_dial(void *arg)
{
    struct dial *d = arg;
    d->step = NULL;
    dial_answer(d, YK_UNSUPPORTED);
}

void net_mem_dial(struct net *net, const char *url, int64_t timeout_us, net_on_dial fn, void *arg)
{
    struct mem *m = net_mem_of(net);
    struct dial *d = yk_xalloc(sizeof *d);
    d->mem = m;
    d->fn = fn;
    d->arg = arg;
    d->next = m->dials;
    if (m->dials)
        m->dials->prev = d;
    m->dials = d;
    if (strncmp(url, PREFIX, strlen(PREFIX)) != 0) {
        d->step = net_mem_event_add(m, m->now_us, on_bad_dial, d);
        return;
    }
    d->place = place_get(m, name_of(url));
    d->timeout = net_mem_event_add(m, net_mem_later(m->now_us, timeout_us), on_dial_timeout, d);
    d->step = net_mem_event_add(m, net_mem_later(m->now_us, d->place->latency_us), on_dial_arrive, d);
}

void net_mem_set_link(struct net *net, const char *name, int64_t latency_us, double bytes_per_s)
{
    struct place *p = place_get(net_mem_of(net), name_of(name));
    p->latency_us = YK_MAX(latency_us, (int64_t)0);
    p->rate = bytes_per_s > 0 ? bytes_per_s : 0;
}

void net_mem_cut(struct net *net, const char *name, bool cut)
{
    struct mem *m = net_mem_of(net);
    struct place *p = place_get(m, name_of(name));
    p->cut = cut;
    if (cut)
        return;
    for (struct pair *pair = m->pairs; pair; pair = pair->next)
        for (int i = 0; pair->place == p && i < 2; i++)
            for (struct end *e = &pair->end[i]; e->held > 0; e->held--)
                net_mem_event_add(m, m->now_us, on_arrive, e);
    for (struct dial *d = m->dials; d; d = d->next)
        if (d->place == p && d->held) {
            d->held = false;
            d->step = net_mem_event_add(m, net_mem_later(m->now_us, p->latency_us), on_dial_arrive, d);
        }
}

void net_mem_streams_fini(struct mem *m)
{
    while (m->dials)
        dial_remove(m->dials);
    while (m->pairs) {
        m->pairs->refs = 1;
        pair_release(m->pairs);
    }
    for (struct place *p = m->places, *next; p; p = next) {
        next = p->next;
        if (p->listener)
            net_mem_listener_close(&p->listener->base);
        free(p->name);
        free(p);
    }
}
