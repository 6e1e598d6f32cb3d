#include "agent/peer.h"

#include "agent/control.h"
#include "agent/edge.h"
#include "agent/link.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define HELLO_US 5000000
#define WAIT_US 120000000 /* for the load or the ticket that a peer was faster than; so long may a job be loading */
#define MAX_STRANGERS 64

/* A connection that has not said what it is, or whose ticket is not known yet. */
struct stranger {
    struct stranger *next;
    struct agent *agent;
    struct chan *chan;
    struct net_timer *timer;
    struct wire_msg hello; /* arena NULL: none yet */
};

struct peer_server {
    struct net_listener *listener;
    struct stranger *strangers;
    int n;
};

static void forget(struct stranger *s)
{
    struct peer_server *srv = s->agent->peer;
    struct stranger **p = &srv->strangers;
    while (*p != s)
        p = &(*p)->next;
    *p = s->next;
    srv->n--;
    net_timer_cancel(s->timer);
    wire_free(&s->hello);
    free(s);
}

void peer_refuse(struct chan *c, yk_err err, const char *text)
{
    struct wire_refuse r = {.error = yk_err_name(err),
        .text = text,
        .version_major = WIRE_VERSION_MAJOR,
        .version_minor = WIRE_VERSION_MINOR};
    log_debug("refused %s: %s", chan_peer(c), text);
    chan_send(c, WIRE_TYPE_refuse, &r);
    chan_close(c, true);
}

void peer_hello(struct agent *a, struct chan *c, const char *purpose, struct wire_bin ticket)
{
    struct wire_hello h = {.kind = "data",
        .version_major = WIRE_VERSION_MAJOR,
        .version_minor = WIRE_VERSION_MINOR,
        .agent = a->id,
        .name = a->name,
        .purpose = purpose,
        .ticket = ticket};
    chan_send(c, WIRE_TYPE_hello, &h);
}

/* True if the connection found its place, or was refused. */
static bool place(struct agent *a, struct chan *c, const struct wire_hello *h)
{
    if (h->version_major != WIRE_VERSION_MAJOR) {
        char text[160];
        snprintf(text, sizeof text, "version %lld.%lld does not work with version %d.%d", (long long)h->version_major,
            (long long)h->version_minor, WIRE_VERSION_MAJOR, WIRE_VERSION_MINOR);
        peer_refuse(c, YK_VERSION, text);
        return true;
    }
    if (!strcmp(h->kind, "control")) {
        if (a->scheduler_url)
            peer_refuse(c, YK_STATE, "this agent dials its scheduler itself");
        else
            control_adopt(a, c);
        return true;
    }
    if (!strcmp(h->kind, "data") && !strcmp(h->purpose, "edge"))
        return edge_adopt(a, c, h);
    if (!strcmp(h->kind, "data") && !strcmp(h->purpose, "probe"))
        return link_adopt(a, c, h);
    peer_refuse(c, YK_UNSUPPORTED, "this connection's purpose is not served here");
    return true;
}

static void on_timer(void *arg)
{
    struct stranger *s = arg;
    struct chan *c = s->chan;
    bool said = s->hello.arena != NULL;
    s->timer = NULL;
    forget(s);
    peer_refuse(c, said ? YK_AUTH : YK_TIMEOUT, said ? "nobody announced this ticket" : "no hello in time");
}

static yk_err on_message(void *arg, struct chan *c, struct wire_msg *m)
{
    struct stranger *s = arg;
    struct agent *a = s->agent;
    if (m->type != WIRE_TYPE_hello || s->hello.arena)
        return YK_FORMAT;
    if (place(a, c, &m->as.hello)) {
        forget(s);
        return YK_OK;
    }
    s->hello = *m;
    m->arena = NULL;
    net_timer_cancel(s->timer);
    s->timer = net_timer(a->net, WAIT_US, on_timer, s);
    return YK_OK;
}

static yk_err on_stream(void *arg, struct chan *c, struct wire_msg *m, struct chan_sink *sink)
{
    (void)arg, (void)c, (void)m, (void)sink;
    return YK_FORMAT;
}

static void on_closed(void *arg, struct chan *c, yk_err err, const char *why)
{
    (void)err, (void)why;
    forget(arg);
    chan_close(c, false);
}

static const struct chan_on on_stranger = {on_message, on_stream, on_closed};

static void on_accept(void *arg, struct net_conn *conn)
{
    struct agent *a = arg;
    struct peer_server *srv = a->peer;
    if (srv->n >= MAX_STRANGERS) {
        net_conn_close(conn);
        return;
    }
    struct stranger *s = yk_xalloc(sizeof *s);
    s->agent = a;
    s->next = srv->strangers;
    srv->strangers = s;
    srv->n++;
    s->chan = chan_open(conn, &on_stranger, s);
    s->timer = net_timer(a->net, HELLO_US, on_timer, s);
}

void peer_retry(struct agent *a)
{
    for (struct stranger *s = a->peer ? a->peer->strangers : NULL, *next; s; s = next) {
        next = s->next;
        if (s->hello.arena && place(a, s->chan, &s->hello.as.hello)) {
            forget(s);
            next = a->peer->strangers; /* placing may have ended others */
        }
    }
}

yk_err peer_open(struct agent *a, struct yk_diag *why)
{
    a->peer = yk_xalloc(sizeof *a->peer);
    yk_err err = net_listen(a->net, a->listen_url, on_accept, a, &a->peer->listener, why);
    if (err) {
        free(a->peer);
        a->peer = NULL;
        return err;
    }
    free(a->bound_url);
    a->bound_url = yk_xstrdup(net_listener_url(a->peer->listener));
    return YK_OK;
}

void peer_close(struct agent *a)
{
    if (!a->peer)
        return;
    net_listener_close(a->peer->listener);
    while (a->peer->strangers) {
        struct chan *c = a->peer->strangers->chan;
        forget(a->peer->strangers);
        chan_close(c, false);
    }
    free(a->peer);
    a->peer = NULL;
}
