/* The loop, the clock, timers, threads' way in, randomness and byte streams: all that the core knows of the outside.
 * Two implementations: net_nng (real: libevent loop, nng_stream for tcp) and net_mem (in memory, on virtual time, one
 * thread, seeded). Both pass tests/conformance/test_net.c. A daemon's state is owned by the loop thread: every callback
 * below runs there, and every function except net_post must be called there (or before net_run). */
#ifndef YK_NET_H
#define YK_NET_H

#include "common/yk.h"

struct net;
struct net_timer;
struct net_conn;
struct net_listener;

struct net_iov {
    const void *data;
    size_t len;
};

typedef void (*net_fn)(void *arg);
typedef void (*net_on_accept)(void *arg, struct net_conn *conn);           /* takes ownership of conn */
typedef void (*net_on_dial)(void *arg, yk_err err, struct net_conn *conn); /* conn is NULL on error; takes ownership */
typedef void (*net_on_io)(void *arg, yk_err err, size_t bytes);

struct net_ops {
    const char *name;
    /* Monotonic microseconds; never goes back. */
    int64_t (*now_us)(struct net *net);
    /* One shot. The timer is freed after fn ran; cancel it before that or never. delay <= 0 fires on the next turn. */
    struct net_timer *(*timer)(struct net *net, int64_t delay_us, net_fn fn, void *arg);
    void (*timer_cancel)(struct net_timer *t);
    /* Runs fn(arg) on the loop. The only function that any thread may call. In order per caller. */
    void (*post)(struct net *net, net_fn fn, void *arg);
    /* Fills buf; the in-memory net is seeded. */
    void (*random)(struct net *net, void *buf, size_t len);
    /* url: "tcp://127.0.0.1:0" (port 0 picks one; listener_url tells). Errors name the url (busy port, no permission).
     */
    yk_err (*listen)(
        struct net *net, const char *url, net_on_accept fn, void *arg, struct net_listener **out, struct yk_diag *why);
    const char *(*listener_url)(struct net_listener *l);
    void (*listener_close)(struct net_listener *l); /* no accept after it returns; accepted connections live on */
    /* Always answers once, never from inside the call; timeout covers name, connect and handshake. */
    void (*dial)(struct net *net, const char *url, int64_t timeout_us, net_on_dial fn, void *arg);
    /* At most one recv and one send in flight per connection. recv answers with 1..len bytes; send with all of them.
     * Buffers are borrowed until the answer or until close returns. Never answers from inside the call. */
    void (*recv)(struct net_conn *c, void *buf, size_t len, net_on_io fn, void *arg);
    void (*send)(struct net_conn *c, const struct net_iov *iov, int n, net_on_io fn, void *arg); /* n <= 8 */
    /* After close returns no callback of this connection runs and no buffer of it is touched. */
    void (*conn_close)(struct net_conn *c);
    const char *(*peer)(struct net_conn *c); /* for messages: "127.0.0.1:4711" */
    /* Runs until net_stop (from a callback or a post). net_mem: also returns when nothing is left to happen. */
    void (*run)(struct net *net);
    void (*stop)(struct net *net);
    void (*close)(struct net *net); /* connections and listeners must be closed before */
};

struct net {
    const struct net_ops *ops;
};

/* Every net_timer, net_conn and net_listener starts with a pointer to its net. */
struct net_timer {
    struct net *net;
};
struct net_conn {
    struct net *net;
};
struct net_listener {
    struct net *net;
};

yk_err net_nng_open(struct net **out, struct yk_diag *why);
/* Lets a program handle a signal on the loop (SIGTERM, SIGINT, SIGCHLD). Real net only. */
yk_err net_nng_on_signal(struct net *net, int signum, net_fn fn, void *arg);

/* Virtual time: streams carry bytes after latency, at a rate; 0 means none / no limit. Every address is "mem://name".
 * The seed drives random() and the order of simultaneous events. */
yk_err net_mem_open(uint64_t seed, struct net **out);
/* Link character between listening name and everybody who dials it, and faults for tests. */
void net_mem_set_link(struct net *net, const char *name, int64_t latency_us, double bytes_per_s);
void net_mem_cut(struct net *net, const char *name, bool cut); /* true: bytes vanish silently, dials time out */
void net_mem_run_for(struct net *net, int64_t us);             /* advances virtual time by exactly us */

static inline int64_t net_now_us(struct net *n)
{
    return n->ops->now_us(n);
}
static inline int64_t net_now_ms(struct net *n)
{
    return n->ops->now_us(n) / 1000;
}
static inline struct net_timer *net_timer(struct net *n, int64_t delay_us, net_fn fn, void *arg)
{
    return n->ops->timer(n, delay_us, fn, arg);
}
static inline void net_timer_cancel(struct net_timer *t) /* NULL allowed */
{
    if (t)
        t->net->ops->timer_cancel(t);
}
static inline void net_post(struct net *n, net_fn fn, void *arg)
{
    n->ops->post(n, fn, arg);
}
static inline void net_random(struct net *n, void *buf, size_t len)
{
    n->ops->random(n, buf, len);
}
static inline yk_err net_listen(
    struct net *n, const char *url, net_on_accept fn, void *arg, struct net_listener **out, struct yk_diag *why)
{
    return n->ops->listen(n, url, fn, arg, out, why);
}
static inline const char *net_listener_url(struct net_listener *l)
{
    return l->net->ops->listener_url(l);
}
static inline void net_listener_close(struct net_listener *l) /* NULL allowed */
{
    if (l)
        l->net->ops->listener_close(l);
}
static inline void net_dial(struct net *n, const char *url, int64_t timeout_us, net_on_dial fn, void *arg)
{
    n->ops->dial(n, url, timeout_us, fn, arg);
}
static inline void net_recv(struct net_conn *c, void *buf, size_t len, net_on_io fn, void *arg)
{
    c->net->ops->recv(c, buf, len, fn, arg);
}
static inline void net_send(struct net_conn *c, const struct net_iov *iov, int n, net_on_io fn, void *arg)
{
    c->net->ops->send(c, iov, n, fn, arg);
}
static inline void net_conn_close(struct net_conn *c) /* NULL allowed */
{
    if (c)
        c->net->ops->conn_close(c);
}
static inline const char *net_peer(struct net_conn *c)
{
    return c->net->ops->peer(c);
}
static inline void net_run(struct net *n)
{
    n->ops->run(n);
}
static inline void net_stop(struct net *n)
{
    n->ops->stop(n);
}
static inline void net_close(struct net *n) /* NULL allowed */
{
    if (n)
        n->ops->close(n);
}

#endif
