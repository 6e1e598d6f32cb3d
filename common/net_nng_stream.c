/* Streams of the real net, over nng_stream.
 *
 * nng runs its own threads. Their completion callbacks touch nothing of ours except the operation that completed, and
 * hand it to the loop through the mailbox; everything else here runs on the loop thread. An operation is `busy` from
 * its start until the loop has taken it out of the mailbox again. Closing stops the aio (nng then guarantees that its
 * callback has run), so exactly one mailbox entry is left per busy operation: the object stays in memory as a zombie
 * until those have passed, and they call nobody.
 *
 * A partial write is continued from nng's callback, since a detour over the loop would cost a wake-up per socket
 * buffer. Schemes: a row of `schemes` each, all through nng_stream. */
#include "common/log.h"
#include "common/metrics.h"
#include "common/net_nng.h"

#include <arpa/inet.h>
#include <nng/nng.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define IOV_LIMIT 8
#define ACCEPT_RETRY_US 100000 /* after running out of descriptors */

struct op {
    nng_aio *aio;
    struct real *real;
    struct zombie *owner;
    net_fn on_loop; /* what the loop does when it has completed */
    void *arg;
    int rv; /* of nng */
    size_t count;
};

struct conn {
    struct net_conn base;
    struct zombie zombie;
    nng_stream *stream;
    struct op recv, send;
    net_on_io recv_fn, send_fn;
    void *recv_arg, *send_arg;
    nng_iov iov[IOV_LIMIT]; /* what is left to send; nng's callback moves it on */
    unsigned iov_n;
    size_t sent, total;
    char peer[64];
};

struct listener {
    struct net_listener base;
    struct zombie zombie;
    nng_stream_listener *listener;
    struct op accept;
    net_on_accept fn;
    void *arg;
    struct net_timer *retry;
    char *url;
};

struct dial {
    struct zombie zombie;
    struct real *real;
    nng_stream_dialer *dialer;
    struct op op;
    net_on_dial fn;
    void *arg;
    int64_t until_us;
    nng_stream *stream; /* said to be connected, not yet confirmed */
    yk_err err;         /* known before anything was dialled */
};

static yk_err from_nng(int rv)
{
    switch (rv) {
    case 0:
        return YK_OK;
    case NNG_ENOMEM:
        return YK_NOMEM;
    case NNG_EINVAL:
    case NNG_EADDRINVAL:
        return YK_INVAL;
    case NNG_EBUSY:
    case NNG_EADDRINUSE:
    case NNG_EAGAIN:
        return YK_BUSY;
    case NNG_ETIMEDOUT:
        return YK_TIMEOUT;
    case NNG_ECONNREFUSED:
        return YK_REFUSED;
    case NNG_ECLOSED:
    case NNG_ECONNABORTED:
    case NNG_ECONNRESET:
    case NNG_ECONNSHUT:
        return YK_CLOSED;
    case NNG_ECANCELED:
        return YK_CANCELED;
    case NNG_EPERM:
        return YK_PERM;
    case NNG_ENOTSUP:
        return YK_UNSUPPORTED;
    case NNG_EUNREACHABLE:
        return YK_NOTFOUND;
    case NNG_ENOFILES:
        return YK_LIMIT;
    case NNG_ENOSPC:
        return YK_NOSPC;
    case NNG_EPEERAUTH:
    case NNG_ECRYPTO:
        return YK_AUTH;
    default:
        return (rv & NNG_ESYSERR) ? yk_err_from_errno(rv & ~NNG_ESYSERR) : YK_IO;
    }
}

/* ---- objects that outlive their close ---- */

static void list_add(struct zombie *head, struct zombie *z)
{
    z->prev = head;
    z->next = head->next;
    if (z->next)
        z->next->prev = z;
    head->next = z;
}

static void list_remove(struct zombie *z)
{
    z->prev->next = z->next;
    if (z->next)
        z->next->prev = z->prev;
}

static void zombie_close(struct real *r, struct zombie *z)
{
    z->closed = true;
    if (z->busy == 0)
        free(z->whole);
    else
        list_add(&r->zombies, z);
}

/* On the loop: the operation is back. */
static void op_take(void *arg)
{
    struct op *op = arg;
    struct zombie *z = op->owner;
    z->busy--;
    if (!z->closed) {
        op->on_loop(op->arg);
    } else if (z->busy == 0) {
        list_remove(z);
        free(z->whole);
    }
}

/* On a thread of nng. */
static void op_done(void *arg)
{
    struct op *op = arg;
    op->rv = nng_aio_result(op->aio);
    op->count = nng_aio_count(op->aio);
    mailbox_post(op->real->mailbox, op_take, op);
}

static yk_err op_init(
    struct op *op, struct real *r, struct zombie *owner, void (*done)(void *), net_fn on_loop, void *arg)
{
    op->real = r;
    op->owner = owner;
    op->on_loop = on_loop;
    op->arg = arg;
    yk_err err = from_nng(nng_aio_alloc(&op->aio, done, op));
    if (!err)
        nng_aio_set_timeout(op->aio, NNG_DURATION_INFINITE);
    return err;
}

static void op_free(struct op *op)
{
    if (op->aio)
        nng_aio_free(op->aio);
    op->aio = NULL;
}

/* ---- connections ---- */

static void conn_recv_done(void *arg)
{
    struct conn *c = arg;
    size_t got = c->recv.rv == 0 ? c->recv.count : 0;
    yk_err err = c->recv.rv ? from_nng(c->recv.rv) : got ? YK_OK : YK_CLOSED;
    metrics_add(METRIC_net_rx_bytes_total, (int64_t)got);
    c->recv_fn(c->recv_arg, err, got);
}

static void conn_send_done(void *arg)
{
    struct conn *c = arg;
    metrics_add(METRIC_net_tx_bytes_total, (int64_t)c->sent);
    c->send_fn(c->send_arg, from_nng(c->send.rv), c->sent);
}

/* On a thread of nng: goes on until everything is with the kernel. */
static void conn_send_step(void *arg)
{
    struct op *op = arg;
    struct conn *c = op->arg;
    if (nng_aio_result(op->aio) == 0) {
        size_t n = nng_aio_count(op->aio);
        c->sent += n;
        while (c->iov_n && n >= c->iov[0].iov_len) {
            n -= c->iov[0].iov_len;
            memmove(c->iov, c->iov + 1, --c->iov_n * sizeof c->iov[0]);
        }
        if (c->iov_n) {
            c->iov[0].iov_buf = (uint8_t *)c->iov[0].iov_buf + n;
            c->iov[0].iov_len -= n;
            nng_aio_set_iov(op->aio, c->iov_n, c->iov);
            nng_stream_send(c->stream, op->aio);
            return;
        }
    }
    op_done(op);
}

static void peer_text(nng_stream *stream, char *out, size_t size)
{
    nng_sockaddr sa;
    char host[INET6_ADDRSTRLEN];
    if (nng_stream_get_addr(stream, NNG_OPT_REMADDR, &sa) != 0) {
        snprintf(out, size, "unknown");
    } else if (sa.s_family == NNG_AF_INET) {
        inet_ntop(AF_INET, &sa.s_in.sa_addr, host, sizeof host);
        snprintf(out, size, "%s:%u", host, ntohs(sa.s_in.sa_port));
    } else if (sa.s_family == NNG_AF_INET6) {
        inet_ntop(AF_INET6, sa.s_in6.sa_addr, host, sizeof host);
        snprintf(out, size, "[%s]:%u", host, ntohs(sa.s_in6.sa_port));
    } else {
        snprintf(out, size, "local");
    }
}

/* Takes stream, also on error. */
static yk_err conn_open(struct real *r, nng_stream *stream, struct conn **out)
{
    struct conn *c = yk_try_alloc(1, sizeof *c);
    yk_err err = YK_NOMEM;
    if (c) {
        c->base.net = &r->base;
        c->zombie.whole = c;
        c->stream = stream;
        err = op_init(&c->recv, r, &c->zombie, op_done, conn_recv_done, c);
        if (!err)
            err = op_init(&c->send, r, &c->zombie, conn_send_step, conn_send_done, c);
    }
    if (err) {
        if (c) {
            op_free(&c->recv);
            op_free(&c->send);
        }
        free(c);
        nng_stream_free(stream);
        return err;
    }
    peer_text(stream, c->peer, sizeof c->peer);
    metrics_add(METRIC_net_connections, 1);
    *out = c;
    return YK_OK;
}

void net_nng_recv(struct net_conn *base, void *buf, size_t len, net_on_io fn, void *arg)
{
    struct conn *c = (struct conn *)base;
    nng_iov iov = {.iov_buf = buf, .iov_len = len};
    c->recv_fn = fn;
    c->recv_arg = arg;
    c->zombie.busy++;
    nng_aio_set_iov(c->recv.aio, 1, &iov);
    nng_stream_recv(c->stream, c->recv.aio);
}

void net_nng_send(struct net_conn *base, const struct net_iov *iov, int n, net_on_io fn, void *arg)
{
    struct conn *c = (struct conn *)base;
    c->send_fn = fn;
    c->send_arg = arg;
    c->zombie.busy++;
    c->sent = 0;
    c->iov_n = 0;
    for (int i = 0; i < n && i < IOV_LIMIT; i++)
        if (iov[i].len)
            c->iov[c->iov_n++] = (nng_iov){.iov_buf = (void *)iov[i].data, .iov_len = iov[i].len};
    if (c->iov_n == 0) {
        c->send.rv = 0;
        mailbox_post(c->send.real->mailbox, op_take, &c->send);
        return;
    }
    nng_aio_set_iov(c->send.aio, c->iov_n, c->iov);
    nng_stream_send(c->stream, c->send.aio);
}

void net_nng_conn_close(struct net_conn *base)
{
    struct conn *c = (struct conn *)base;
    struct real *r = net_nng_of(base->net);
    nng_stream_close(c->stream);
    nng_aio_stop(c->recv.aio);
    nng_aio_stop(c->send.aio);
    op_free(&c->recv);
    op_free(&c->send);
    nng_stream_free(c->stream);
    metrics_add(METRIC_net_connections, -1);
    zombie_close(r, &c->zombie);
}

const char *net_nng_peer(struct net_conn *base)
{
    return ((struct conn *)base)->peer;
}

/* ---- addresses ---- */

static const char *const schemes[] = {"tcp"};

/* Splits and checks "scheme://host:port". host and port stay with *parsed (nng_url_free). */
static yk_err url_check(const char *url, bool dialled, nng_url **parsed, struct yk_diag *why)
{
    nng_url *u = NULL;
    if (nng_url_parse(&u, url) != 0)
        return yk_fail(why, YK_INVAL, "'%s' is not an address; an example is tcp://127.0.0.1:7712", url);
    yk_err err = YK_UNSUPPORTED;
    for (size_t i = 0; i < YK_COUNT(schemes); i++)
        if (u->u_scheme && strcmp(u->u_scheme, schemes[i]) == 0)
            err = YK_OK;
    if (err) {
        yk_fail(why, err, "'%s' is not supported: addresses begin with tcp://", url);
    } else {
        char *end = NULL;
        long port = u->u_port && *u->u_port ? strtol(u->u_port, &end, 10) : -1;
        if (!end || *end || port < (dialled ? 1 : 0) || port > 65535)
            err = yk_fail(why, YK_INVAL, "'%s' needs a port from %d to 65535", url, dialled ? 1 : 0);
        else if (u->u_path && *u->u_path)
            err = yk_fail(why, YK_INVAL, "'%s' must end with the port", url);
        else if (dialled && (!u->u_hostname || !*u->u_hostname))
            err = yk_fail(why, YK_INVAL, "'%s' needs a host", url);
    }
    if (err)
        nng_url_free(u);
    else
        *parsed = u;
    return err;
}

/* ---- listening ---- */

static void accept_next(void *arg)
{
    struct listener *l = arg;
    l->retry = NULL;
    l->zombie.busy++;
    nng_stream_listener_accept(l->listener, l->accept.aio);
}

static void accept_done(void *arg)
{
    struct listener *l = arg;
    struct net *net = l->base.net;
    if (l->accept.rv) {
        yk_err err = from_nng(l->accept.rv);
        bool short_of = err == YK_LIMIT || err == YK_NOMEM;
        if (short_of)
            log_warn("cannot accept at %s: %s; raise the limit of open files", l->url, nng_strerror(l->accept.rv));
        l->retry = net_timer(net, short_of ? ACCEPT_RETRY_US : 1000, accept_next, l);
        return;
    }
    nng_stream *stream = nng_aio_get_output(l->accept.aio, 0);
    struct conn *c;
    net_on_accept fn = l->fn;
    void *fn_arg = l->arg;
    accept_next(l); /* first, because fn may close the listener */
    if (conn_open(net_nng_of(net), stream, &c) == YK_OK) {
        metrics_add(METRIC_net_accepted_total, 1);
        fn(fn_arg, &c->base);
    }
}

static void listener_free(struct listener *l)
{
    nng_stream_listener_close(l->listener);
    if (l->accept.aio) {
        nng_aio_stop(l->accept.aio);
        if (l->zombie.busy && nng_aio_result(l->accept.aio) == 0)
            nng_stream_free(nng_aio_get_output(l->accept.aio, 0)); /* accepted, not yet taken */
        op_free(&l->accept);
    }
    nng_stream_listener_free(l->listener);
    net_timer_cancel(l->retry);
    free(l->url);
    zombie_close(net_nng_of(l->base.net), &l->zombie);
}

void net_nng_listener_close(struct net_listener *base)
{
    listener_free((struct listener *)base);
}

yk_err net_nng_listen(
    struct net *net, const char *url, net_on_accept fn, void *arg, struct net_listener **out, struct yk_diag *why)
{
    nng_url *parsed;
    yk_err err = url_check(url, false, &parsed, why);
    if (err)
        return err;
    struct listener *l = yk_xalloc(sizeof *l);
    l->base.net = net;
    l->zombie.whole = l;
    l->fn = fn;
    l->arg = arg;
    int rv = nng_stream_listener_alloc(&l->listener, url), port = 0;
    if (rv) {
        free(l);
        nng_url_free(parsed);
        return yk_fail(why, from_nng(rv), "cannot listen at '%s': %s", url, nng_strerror(rv));
    }
    nng_stream_listener_set_bool(l->listener, NNG_OPT_TCP_NODELAY, true);
    rv = nng_stream_listener_listen(l->listener);
    if (rv == 0)
        rv = nng_stream_listener_get_int(l->listener, NNG_OPT_TCP_BOUND_PORT, &port);
    if (rv == 0) {
        l->url = yk_xasprintf(strchr(parsed->u_hostname, ':') ? "%s://[%s]:%d" : "%s://%s:%d", parsed->u_scheme,
            *parsed->u_hostname ? parsed->u_hostname : "0.0.0.0", port);
        err = op_init(&l->accept, net_nng_of(net), &l->zombie, op_done, accept_done, l);
    } else {
        err = yk_fail(why, from_nng(rv), "cannot listen at '%s': %s", url, nng_strerror(rv));
    }
    nng_url_free(parsed);
    if (err) {
        listener_free(l);
        return err;
    }
    accept_next(l);
    *out = &l->base;
    return YK_OK;
}

const char *net_nng_listener_url(struct net_listener *base)
{
    return ((struct listener *)base)->url;
}

/* ---- dialling ---- */

/* Ends the dial and says how; the stream is the caller's. */
static void dial_answer(struct dial *d, yk_err err, nng_stream *stream)
{
    struct real *r = d->real;
    net_on_dial fn = d->fn;
    void *arg = d->arg;
    struct conn *c = NULL;
    list_remove(&d->zombie);
    op_free(&d->op);
    if (d->dialer)
        nng_stream_dialer_free(d->dialer);
    free(d);
    if (!err)
        err = conn_open(r, stream, &c);
    metrics_add(err ? METRIC_net_dial_failed_total : METRIC_net_dialed_total, 1);
    fn(arg, err, err ? NULL : &c->base);
}

static void dial_timeout(struct dial *d)
{
    int64_t ms = (d->until_us - net_nng_now_us(NULL) + 999) / 1000;
    nng_aio_set_timeout(d->op.aio, (nng_duration)YK_MIN(YK_MAX(ms, (int64_t)1), (int64_t)INT32_MAX));
}

static void dial_confirmed(void *arg)
{
    struct dial *d = arg;
    if (d->op.rv)
        nng_stream_free(d->stream);
    dial_answer(d, from_nng(d->op.rv), d->op.rv ? NULL : d->stream);
}

/* nng 1.5.2 can report a TCP connection that is still being made: its poller sees the hang-up of the socket as it was
 * before connect(2), finds no error and calls that success. Such a socket has no peer name yet. A send of no bytes then
 * ends when the connection stands, fails or takes too long. */
static void dial_done(void *arg)
{
    struct dial *d = arg;
    nng_sockaddr sa;
    yk_err err = d->err ? d->err : from_nng(d->op.rv);
    nng_stream *stream = err ? NULL : nng_aio_get_output(d->op.aio, 0);
    if (err || nng_stream_get_addr(stream, NNG_OPT_REMADDR, &sa) == 0) {
        dial_answer(d, err, stream);
        return;
    }
    nng_iov none = {.iov_buf = d, .iov_len = 0};
    d->stream = stream;
    d->op.on_loop = dial_confirmed;
    d->zombie.busy++;
    dial_timeout(d);
    nng_aio_set_iov(d->op.aio, 1, &none);
    nng_stream_send(stream, d->op.aio);
}

void net_nng_dial(struct net *net, const char *url, int64_t timeout_us, net_on_dial fn, void *arg)
{
    struct real *r = net_nng_of(net);
    struct dial *d = yk_xalloc(sizeof *d);
    nng_url *parsed;
    d->real = r;
    d->fn = fn;
    d->arg = arg;
    d->until_us = net_nng_now_us(net) + YK_MIN(YK_MAX(timeout_us, (int64_t)0), (int64_t)INT32_MAX * 1000);
    d->zombie.whole = d;
    list_add(&r->dials, &d->zombie);
    d->op = (struct op){.real = r, .owner = &d->zombie, .on_loop = dial_done, .arg = d};
    d->zombie.busy++;
    d->err = url_check(url, true, &parsed, NULL);
    if (!d->err) {
        nng_url_free(parsed);
        d->err = from_nng(nng_stream_dialer_alloc(&d->dialer, url));
    }
    if (!d->err)
        d->err = op_init(&d->op, r, &d->zombie, op_done, dial_done, d);
    if (d->err) {
        mailbox_post(r->mailbox, op_take, &d->op);
        return;
    }
    nng_stream_dialer_set_bool(d->dialer, NNG_OPT_TCP_NODELAY, true);
    dial_timeout(d);
    nng_stream_dialer_dial(d->dialer, d->op.aio);
}

/* Dials that are still under way end without an answer: nobody may be left who could take it. */
void net_nng_streams_fini(struct real *r)
{
    while (r->dials.next) {
        struct dial *d = r->dials.next->whole;
        list_remove(&d->zombie);
        if (d->op.aio) {
            nng_aio_stop(d->op.aio);
            if (d->stream)
                nng_stream_free(d->stream);
            else if (nng_aio_result(d->op.aio) == 0)
                nng_stream_free(nng_aio_get_output(d->op.aio, 0));
            op_free(&d->op);
        }
        if (d->dialer)
            nng_stream_dialer_free(d->dialer);
        free(d);
    }
    while (r->zombies.next) {
        struct zombie *z = r->zombies.next;
        list_remove(z);
        free(z->whole);
    }
}
