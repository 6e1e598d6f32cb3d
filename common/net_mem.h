/* Between the two files of the net in memory: the loop on virtual time (net_mem.c) and the streams (net_mem_stream.c).
 */
#ifndef YK_NET_MEM_H
#define YK_NET_MEM_H

#include "common/net.h"

struct place;
struct pair;
struct dial;

struct event {
    struct net_timer base; /* a timer is an event */
    int64_t at_us;
    uint64_t tie, seq;
    size_t slot; /* in the heap */
    net_fn fn;
    void *arg;
};

struct post {
    struct post *next;
    net_fn fn;
    void *arg;
};

struct mem {
    struct net base;
    struct yk_rng ties, numbers;
    int64_t now_us;
    uint64_t seq;
    struct event **heap;
    size_t n, cap;
    struct place *places;
    struct pair *pairs;
    struct dial *dials;
    struct post *posts, **posts_end;
    int accepted;
    bool stopped;
};

static inline struct mem *net_mem_of(struct net *net)
{
    return (struct mem *)net;
}

int64_t net_mem_later(int64_t now_us, int64_t delay_us); /* without overflow */
struct event *net_mem_event_add(struct mem *m, int64_t at_us, net_fn fn, void *arg);
void net_mem_event_cancel(struct event *e); /* NULL allowed */

yk_err net_mem_listen(
    struct net *net, const char *url, net_on_accept fn, void *arg, struct net_listener **out, struct yk_diag *why);
const char *net_mem_listener_url(struct net_listener *l);
void net_mem_listener_close(struct net_listener *l);
void net_mem_dial(struct net *net, const char *url, int64_t timeout_us, net_on_dial fn, void *arg);
void net_mem_recv(struct net_conn *c, void *buf, size_t len, net_on_io fn, void *arg);
void net_mem_send(struct net_conn *c, const struct net_iov *iov, int n, net_on_io fn, void *arg);
void net_mem_conn_close(struct net_conn *c);
const char *net_mem_peer(struct net_conn *c);
void net_mem_streams_fini(struct mem *m); /* before the events end */

#endif
