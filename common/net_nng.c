/* The real net: the libevent loop, timers, signals and the mailbox. Streams are in net_nng_stream.c. */
#include "common/net_nng.h"

#include <event2/event.h>
#include <stdlib.h>
#include <sys/random.h>
#include <time.h>

struct timer {
    struct net_timer base;
    struct event *event;
    net_fn fn;
    void *arg;
};

struct watch { /* a signal */
    struct watch *next;
    struct event *event;
    net_fn fn;
    void *arg;
};

int64_t net_nng_now_us(struct net *net)
{
    (void)net;
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

static void timer_fire(evutil_socket_t fd, short what, void *arg)
{
    (void)fd;
    (void)what;
    struct timer *t = arg;
    net_fn fn = t->fn;
    void *fn_arg = t->arg;
    event_free(t->event);
    free(t);
    fn(fn_arg);
}

static struct net_timer *real_timer(struct net *net, int64_t delay_us, net_fn fn, void *arg)
{
    struct real *r = net_nng_of(net);
    struct timer *t = yk_xalloc(sizeof *t);
    t->base.net = net;
    t->fn = fn;
    t->arg = arg;
    t->event = event_new(r->events, -1, 0, timer_fire, t);
    delay_us = YK_MIN(YK_MAX(delay_us, (int64_t)0), (int64_t)1000000 * 86400 * 365);
    struct timeval tv = {.tv_sec = delay_us / 1000000, .tv_usec = delay_us % 1000000};
    if (!t->event || event_add(t->event, &tv) != 0)
        abort(); /* bookkeeping memory is gone, as in yk_xalloc */
    return &t->base;
}

static void real_timer_cancel(struct net_timer *base)
{
    struct timer *t = (struct timer *)base;
    event_free(t->event);
    free(t);
}

static void real_post(struct net *net, net_fn fn, void *arg)
{
    mailbox_post(net_nng_of(net)->mailbox, fn, arg);
}

static void real_random(struct net *net, void *buf, size_t len)
{
    (void)net;
    for (uint8_t *p = buf; len;) {
        ssize_t n = getrandom(p, len, 0);
        if (n > 0) {
            p += n;
            len -= (size_t)n;
        }
    }
}

static void on_wake(evutil_socket_t fd, short what, void *arg)
{
    (void)fd;
    (void)what;
    mailbox_run(((struct real *)arg)->mailbox);
}

static void on_signal(evutil_socket_t signum, short what, void *arg)
{
    (void)signum;
    (void)what;
    struct watch *w = arg;
    w->fn(w->arg);
}

yk_err net_nng_on_signal(struct net *net, int signum, net_fn fn, void *arg)
{
    struct real *r = net_nng_of(net);
    struct watch *w = yk_xalloc(sizeof *w);
    w->fn = fn;
    w->arg = arg;
    w->event = evsignal_new(r->events, signum, on_signal, w);
    if (!w->event || event_add(w->event, NULL) != 0) {
        if (w->event)
            event_free(w->event);
        free(w);
        return YK_INTERNAL;
    }
    w->next = r->watches;
    r->watches = w;
    return YK_OK;
}

static void real_run(struct net *net)
{
    event_base_loop(net_nng_of(net)->events, EVLOOP_NO_EXIT_ON_EMPTY);
}

static void real_stop(struct net *net)
{
    event_base_loopbreak(net_nng_of(net)->events);
}

static void real_close(struct net *net)
{
    struct real *r = net_nng_of(net);
    net_nng_streams_fini(r);
    while (r->watches) {
        struct watch *w = r->watches;
        r->watches = w->next;
        event_free(w->event);
        free(w);
    }
    if (r->wake)
        event_free(r->wake);
    if (r->events)
        event_base_free(r->events);
    mailbox_close(r->mailbox);
    free(r);
}

static const struct net_ops real_ops = {
    .name = "nng",
    .now_us = net_nng_now_us,
    .timer = real_timer,
    .timer_cancel = real_timer_cancel,
    .post = real_post,
    .random = real_random,
    .listen = net_nng_listen,
    .listener_url = net_nng_listener_url,
    .listener_close = net_nng_listener_close,
    .dial = net_nng_dial,
    .recv = net_nng_recv,
    .send = net_nng_send,
    .conn_close = net_nng_conn_close,
    .peer = net_nng_peer,
    .run = real_run,
    .stop = real_stop,
    .close = real_close,
};

yk_err net_nng_open(struct net **out, struct yk_diag *why)
{
    struct real *r = yk_xalloc(sizeof *r);
    r->base.ops = &real_ops;
    yk_err err = mailbox_open(&r->mailbox);
    if (err) {
        free(r);
        return yk_fail(why, err, "cannot open an eventfd: %s", yk_err_text(err));
    }
    struct event_config *config = event_config_new();
    if (config) {
        event_config_set_flag(config, EVENT_BASE_FLAG_NOLOCK | EVENT_BASE_FLAG_PRECISE_TIMER);
        r->events = event_base_new_with_config(config);
        event_config_free(config);
    }
    if (r->events)
        r->wake = event_new(r->events, mailbox_fd(r->mailbox), EV_READ | EV_PERSIST, on_wake, r);
    if (!r->wake || event_add(r->wake, NULL) != 0) {
        real_close(&r->base);
        return yk_fail(why, YK_IO, "cannot open the event loop; raise the limit of open files");
    }
    *out = &r->base;
    return YK_OK;
}
