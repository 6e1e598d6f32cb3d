/* What the suites of the nets share: a net, and calls that run its loop until they are answered. Included once a
 * program. */
#ifndef YK_NET_FIXTURE_H
#define YK_NET_FIXTURE_H

#include "common/log.h"
#include "common/net.h"

#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#pragma GCC diagnostic ignored "-Wunused-function" /* no suite needs all of them */

struct fixture {
    struct net *net;
    bool real;
    const char *url;
    struct net_conn *accepted[64];
    int n_accepted;
    bool inside; /* a call into the net is on the stack: no callback may run */
};

struct answer {
    struct fixture *f;
    bool there;
    yk_err err;
    size_t bytes;
    struct net_conn *conn;
};

static int setup_real(void **state)
{
    struct fixture *f = yk_xalloc(sizeof *f);
    f->real = true;
    f->url = "tcp://127.0.0.1:0";
    assert_int_equal(net_nng_open(&f->net, NULL), YK_OK);
    *state = f;
    return 0;
}

static int setup_mem(void **state)
{
    struct fixture *f = yk_xalloc(sizeof *f);
    f->url = "mem://place";
    assert_int_equal(net_mem_open(7, &f->net), YK_OK);
    *state = f;
    return 0;
}

static int teardown(void **state)
{
    struct fixture *f = *state;
    net_close(f->net);
    free(f);
    return 0;
}

static void on_late(void *arg)
{
    (void)arg;
    fail_msg("nothing happened for 20 s");
}

static void wait_for(struct fixture *f, const bool *flag)
{
    struct net_timer *late = net_timer(f->net, 20000000, on_late, NULL);
    while (!*flag)
        net_run(f->net);
    net_timer_cancel(late);
}

static void on_flag(void *arg)
{
    struct answer *a = arg;
    a->there = true;
    net_stop(a->f->net);
}

static void let_pass(struct fixture *f, int64_t us)
{
    struct answer a = {.f = f};
    net_timer(f->net, us, on_flag, &a);
    wait_for(f, &a.there);
}

static void on_accept(void *arg, struct net_conn *conn)
{
    struct fixture *f = arg;
    assert_true(f->n_accepted < 64);
    f->accepted[f->n_accepted++] = conn;
    net_stop(f->net);
}

static void on_dial(void *arg, yk_err err, struct net_conn *conn)
{
    struct answer *a = arg;
    assert_false(a->f->inside);
    assert_false(a->there);
    assert_true((err == YK_OK) == (conn != NULL));
    a->there = true;
    a->err = err;
    a->conn = conn;
    net_stop(a->f->net);
}

static void on_io(void *arg, yk_err err, size_t bytes)
{
    struct answer *a = arg;
    assert_false(a->f->inside);
    assert_false(a->there);
    a->there = true;
    a->err = err;
    a->bytes = bytes;
    net_stop(a->f->net);
}

static struct net_listener *listen_at(struct fixture *f)
{
    struct net_listener *l = NULL;
    struct yk_diag why = {{0}};
    if (net_listen(f->net, f->url, on_accept, f, &l, &why) != YK_OK)
        fail_msg("%s", why.text);
    return l;
}

static yk_err dial(struct fixture *f, const char *url, int64_t timeout_us, struct net_conn **out)
{
    struct answer a = {.f = f};
    f->inside = true;
    net_dial(f->net, url, timeout_us, on_dial, &a);
    f->inside = false;
    wait_for(f, &a.there);
    *out = a.conn;
    return a.err;
}

static void connect_both(struct fixture *f, struct net_listener *l, struct net_conn **a, struct net_conn **b)
{
    int had = f->n_accepted;
    assert_int_equal(dial(f, net_listener_url(l), 5000000, a), YK_OK);
    while (f->n_accepted == had)
        let_pass(f, 1000);
    *b = f->accepted[had];
}

static void start_send(struct answer *a, struct net_conn *c, const void *data, size_t len)
{
    struct net_iov iov = {data, len};
    a->f->inside = true;
    net_send(c, &iov, 1, on_io, a);
    a->f->inside = false;
}

static void start_recv(struct answer *a, struct net_conn *c, void *buf, size_t len)
{
    a->f->inside = true;
    net_recv(c, buf, len, on_io, a);
    a->f->inside = false;
}

static yk_err send_all(struct fixture *f, struct net_conn *c, const void *data, size_t len)
{
    struct answer a = {.f = f};
    start_send(&a, c, data, len);
    wait_for(f, &a.there);
    if (!a.err)
        assert_int_equal(a.bytes, len);
    return a.err;
}

static yk_err recv_some(struct fixture *f, struct net_conn *c, void *buf, size_t len, size_t *got)
{
    struct answer a = {.f = f};
    start_recv(&a, c, buf, len);
    wait_for(f, &a.there);
    *got = a.bytes;
    if (!a.err)
        assert_in_range(a.bytes, 1, len);
    return a.err;
}

struct trace {
    struct fixture *f;
    char text[64];
    struct net_timer *victim;
};
struct mark {
    struct trace *t;
    char c;
};

static void on_mark(void *arg)
{
    struct mark *m = arg;
    size_t n = strlen(m->t->text);
    m->t->text[n] = m->c;
    if (m->c == 'k')
        net_timer_cancel(m->t->victim);
    if (m->c == '.')
        net_stop(m->t->f->net);
}

#define NET_REAL(fn)                                 \
    {                                                \
#fn " (nng)", fn, setup_real, teardown, NULL \
    }
#define NET_MEM(fn)                                 \
    {                                               \
#fn " (mem)", fn, setup_mem, teardown, NULL \
    }
#define NET_BOTH(fn) NET_REAL(fn), NET_MEM(fn)

#endif
