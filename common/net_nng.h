/* Between the two files of the real net: the libevent loop (net_nng.c) and the nng streams (net_nng_stream.c). */
#ifndef YK_NET_NNG_H
#define YK_NET_NNG_H

#include "common/mailbox.h"
#include "common/net.h"

struct event;
struct event_base;

/* What can be closed while mailbox entries point to it. */
struct zombie {
    struct zombie *next, *prev;
    void *whole; /* the object, for free() */
    int busy;    /* operations the loop has not taken back */
    bool closed; /* by its owner */
};

struct watch;

struct real {
    struct net base;
    struct event_base *events;
    struct mailbox *mailbox;
    struct event *wake;
    struct watch *watches;
    struct zombie dials, zombies; /* list heads */
};

static inline struct real *net_nng_of(struct net *net)
{
    return (struct real *)net;
}

int64_t net_nng_now_us(struct net *net);

yk_err net_nng_listen(
    struct net *net, const char *url, net_on_accept fn, void *arg, struct net_listener **out, struct yk_diag *why);
const char *net_nng_listener_url(struct net_listener *l);
void net_nng_listener_close(struct net_listener *l);
void net_nng_dial(struct net *net, const char *url, int64_t timeout_us, net_on_dial fn, void *arg);
void net_nng_recv(struct net_conn *c, void *buf, size_t len, net_on_io fn, void *arg);
void net_nng_send(struct net_conn *c, const struct net_iov *iov, int n, net_on_io fn, void *arg);
void net_nng_conn_close(struct net_conn *c);
const char *net_nng_peer(struct net_conn *c);
void net_nng_streams_fini(struct real *r); /* dials that are under way, zombies; before the mailbox closes */

#endif
