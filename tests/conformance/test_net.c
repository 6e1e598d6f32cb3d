/* One suite for every net: each case runs on net_nng over loopback and on net_mem. Then what only one of them has. */
#include "common/log.h"
#include "common/net.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

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

/* ---- time ---- */

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

static void test_timers(void **state)
{
    struct fixture *f = *state;
    struct trace t = {.f = f};
    struct mark m[] = {{&t, 'a'}, {&t, 'b'}, {&t, 'c'}, {&t, 'k'}, {&t, 'x'}, {&t, '.'}};
    int64_t start = net_now_us(f->net);
    net_timer(f->net, 30000, on_mark, &m[2]);
    net_timer(f->net, 10000, on_mark, &m[0]);
    net_timer(f->net, 20000, on_mark, &m[1]);
    net_timer(f->net, 40000, on_mark, &m[3]);
    t.victim = net_timer(f->net, 50000, on_mark, &m[4]);
    net_timer(f->net, 70000, on_mark, &m[5]);
    net_timer_cancel(net_timer(f->net, 1000, on_mark, &m[4]));
    net_timer_cancel(NULL);
    net_run(f->net);
    assert_string_equal(t.text, "abck.");
    int64_t took = net_now_us(f->net) - start;
    assert_true(took >= 70000 && took < (f->real ? 5000000 : 70001));
}

static void test_timer_due_at_once(void **state)
{
    struct fixture *f = *state;
    struct answer a = {.f = f}, b = {.f = f};
    net_timer(f->net, 0, on_flag, &a);
    net_timer(f->net, -5, on_flag, &b);
    assert_false(a.there || b.there);
    wait_for(f, &a.there);
    wait_for(f, &b.there);
}

static void test_posts_keep_order(void **state)
{
    struct fixture *f = *state;
    struct trace t = {.f = f};
    struct mark m[] = {{&t, 'a'}, {&t, 'b'}, {&t, 'c'}, {&t, 'd'}, {&t, '.'}};
    for (int i = 0; i < 5; i++)
        net_post(f->net, on_mark, &m[i]);
    assert_string_equal(t.text, "");
    net_run(f->net);
    assert_string_equal(t.text, "abcd.");
}

static void test_random(void **state)
{
    struct fixture *f = *state;
    uint8_t a[32] = {0}, b[32] = {0};
    net_random(f->net, a, sizeof a);
    net_random(f->net, b, sizeof b);
    assert_memory_not_equal(a, b, sizeof a);
}

/* ---- streams ---- */

static void test_echo(void **state)
{
    struct fixture *f = *state;
    struct net_listener *l = listen_at(f);
    struct net_conn *a, *b;
    connect_both(f, l, &a, &b);
    assert_true(strlen(net_peer(a)) > 0 && strlen(net_peer(b)) > 0);
    char buf[64];
    size_t got;
    struct answer r = {.f = f};
    start_recv(&r, b, buf, sizeof buf); /* before anything was sent */
    assert_int_equal(send_all(f, a, "hello", 5), YK_OK);
    wait_for(f, &r.there);
    assert_int_equal(r.err, YK_OK);
    assert_memory_equal(buf, "hello", r.bytes);
    assert_int_equal(send_all(f, b, "you too", 7), YK_OK);
    memset(buf, 0, sizeof buf);
    assert_int_equal(recv_some(f, a, buf, 3, &got), YK_OK);
    assert_int_equal(got, 3);
    assert_int_equal(recv_some(f, a, buf + 3, 60, &got), YK_OK);
    assert_string_equal(buf, "you too");
    assert_int_equal(send_all(f, b, NULL, 0), YK_OK);
    net_conn_close(a);
    net_conn_close(b);
    net_listener_close(l);
}

/* Both directions at once, each in sends of three pieces (one empty) that are larger than any buffer of the kernel. */
struct flow {
    struct fixture *f;
    struct net_conn *from, *to;
    uint8_t *data, *back;
    size_t len, sent, got;
    int *open;
};

static void flow_send(struct flow *w);
static void on_flow_sent(void *arg, yk_err err, size_t bytes)
{
    struct flow *w = arg;
    assert_int_equal(err, YK_OK);
    w->sent += bytes;
    flow_send(w);
}

static void flow_send(struct flow *w)
{
    if (w->sent == w->len)
        return;
    size_t n = YK_MIN(w->len - w->sent, (size_t)5000000), third = n / 3;
    uint8_t *p = w->data + w->sent;
    struct net_iov iov[] = {{p, third}, {NULL, 0}, {p + third, n - third}};
    net_send(w->from, iov, 3, on_flow_sent, w);
}

static void on_flow_got(void *arg, yk_err err, size_t bytes)
{
    struct flow *w = arg;
    assert_int_equal(err, YK_OK);
    w->got += bytes;
    if (w->got == w->len) {
        if (--*w->open == 0)
            net_stop(w->f->net);
        return;
    }
    net_recv(w->to, w->back + w->got, YK_MIN(w->len - w->got, (size_t)100000), on_flow_got, w);
}

static void test_bulk_both_ways(void **state)
{
    struct fixture *f = *state;
    struct net_listener *l = listen_at(f);
    struct net_conn *a, *b;
    connect_both(f, l, &a, &b);
    int open = 2;
    struct flow w[2];
    for (int i = 0; i < 2; i++) {
        w[i] = (struct flow){.f = f, .from = i ? b : a, .to = i ? a : b, .len = 12345678, .open = &open};
        w[i].data = malloc(w[i].len);
        w[i].back = calloc(1, w[i].len);
        for (size_t k = 0; k < w[i].len; k++)
            w[i].data[k] = (uint8_t)(k * 2654435761u >> 13 ^ (unsigned)i);
        flow_send(&w[i]);
        net_recv(w[i].to, w[i].back, 100000, on_flow_got, &w[i]);
    }
    struct net_timer *late = net_timer(f->net, 60000000, on_late, NULL);
    while (open)
        net_run(f->net);
    net_timer_cancel(late);
    net_conn_close(a);
    net_conn_close(b);
    for (int i = 0; i < 2; i++) {
        assert_memory_equal(w[i].data, w[i].back, w[i].len);
        free(w[i].data);
        free(w[i].back);
    }
    net_listener_close(l);
}

static void test_end_of_stream(void **state)
{
    struct fixture *f = *state;
    struct net_listener *l = listen_at(f);
    struct net_conn *a, *b;
    connect_both(f, l, &a, &b);
    assert_int_equal(send_all(f, a, "last words", 10), YK_OK);
    net_conn_close(a);
    char buf[64];
    size_t got, n = 0;
    while (n < 10) {
        assert_int_equal(recv_some(f, b, buf + n, sizeof buf - n, &got), YK_OK);
        n += got;
    }
    assert_memory_equal(buf, "last words", 10);
    assert_int_equal(recv_some(f, b, buf, sizeof buf, &got), YK_CLOSED);
    assert_int_equal(recv_some(f, b, buf, sizeof buf, &got), YK_CLOSED); /* and it stays so */
    yk_err err = YK_OK;
    for (int i = 0; i < 50 && !err; i++) {
        err = send_all(f, b, buf, sizeof buf); /* the first may still fit a buffer */
        let_pass(f, 2000);
    }
    assert_int_equal(err, YK_CLOSED);
    net_conn_close(b);
    net_listener_close(l);
}

static void on_never(void *arg, yk_err err, size_t bytes)
{
    (void)arg;
    (void)err;
    (void)bytes;
    fail_msg("a callback ran after close");
}

/* After close no callback runs and no buffer is touched: the buffers are freed at once, which the sanitizer watches. */
static void test_close_in_flight(void **state)
{
    struct fixture *f = *state;
    struct net_listener *l = listen_at(f);
    for (int round = 0; round < 20; round++) {
        struct net_conn *a, *b;
        connect_both(f, l, &a, &b);
        f->n_accepted = 0;
        size_t len = (size_t)20 << 20;
        char *out = malloc(len), *in = malloc(4096);
        memset(out, round, len);
        struct net_iov iov = {out, len};
        net_send(a, &iov, 1, on_never, NULL); /* far more than buffers hold, and nobody reads */
        net_recv(a, in, 4096, on_never, NULL);
        if (round % 2)
            let_pass(f, 1000);
        struct net_iov x = {"x", 1};
        if (round % 4 >= 2) { /* an answer is on its way to the loop */
            net_send(b, &x, 1, on_never, NULL);
            usleep(f->real ? 2000 : 0);
            net_conn_close(b);
        } else {
            net_conn_close(b);
        }
        net_conn_close(a);
        free(out);
        free(in);
    }
    let_pass(f, 10000);
    net_listener_close(l);
}

static void on_io_close(void *arg, yk_err err, size_t bytes)
{
    struct answer *a = arg;
    net_conn_close(a->conn);
    a->conn = NULL;
    on_io(a, err, bytes);
}

static void test_close_from_callback(void **state)
{
    struct fixture *f = *state;
    struct net_listener *l = listen_at(f);
    struct net_conn *a, *b;
    connect_both(f, l, &a, &b);
    char buf[16], other[16];
    struct answer r = {.f = f, .conn = b}, s = {.f = f};
    net_recv(b, buf, sizeof buf, on_io_close, &r);
    start_recv(&s, a, other, sizeof other);
    assert_int_equal(send_all(f, a, "bye", 3), YK_OK);
    wait_for(f, &r.there);
    wait_for(f, &s.there);
    assert_int_equal(s.err, YK_CLOSED);
    net_conn_close(a);
    net_listener_close(l);
}

/* ---- addresses ---- */

static void test_refused(void **state)
{
    struct fixture *f = *state;
    struct net_conn *c;
    struct net_listener *l = listen_at(f);
    char url[128];
    snprintf(url, sizeof url, "%s", net_listener_url(l));
    net_listener_close(l);
    assert_int_equal(dial(f, url, 5000000, &c), YK_REFUSED);
    assert_int_equal(dial(f, "carrier-pigeon://loft:1", 5000000, &c), YK_UNSUPPORTED);
    if (f->real) {
        assert_int_equal(dial(f, "tcp://127.0.0.1", 5000000, &c), YK_INVAL);
        assert_int_equal(dial(f, "tcp://127.0.0.1:0", 5000000, &c), YK_INVAL);
        assert_int_equal(dial(f, "tcp://127.0.0.1:99999", 5000000, &c), YK_INVAL);
        assert_int_equal(dial(f, "tcp://127.0.0.1:70x", 5000000, &c), YK_INVAL);
        assert_int_equal(dial(f, "nonsense", 5000000, &c), YK_INVAL);
    }
}

static void test_address_in_use(void **state)
{
    struct fixture *f = *state;
    struct net_listener *l = listen_at(f), *again = NULL;
    struct yk_diag why = {{0}};
    char url[128];
    snprintf(url, sizeof url, "%s", net_listener_url(l));
    assert_null(strstr(url, ":0"));
    assert_int_equal(net_listen(f->net, url, on_accept, f, &again, &why), YK_BUSY);
    assert_non_null(strstr(why.text, url));
    assert_null(again);
    net_listener_close(l);
    assert_int_equal(net_listen(f->net, url, on_accept, f, &again, &why), YK_OK); /* free again at once */
    assert_string_equal(net_listener_url(again), url);
    net_listener_close(again);
    assert_int_equal(net_listen(f->net, "carrier-pigeon://loft:1", on_accept, f, &again, &why), YK_UNSUPPORTED);
    assert_non_null(strstr(why.text, "carrier-pigeon"));
}

static void test_listener_close_keeps_connections(void **state)
{
    struct fixture *f = *state;
    struct net_listener *l = listen_at(f);
    struct net_conn *a, *b;
    connect_both(f, l, &a, &b);
    net_listener_close(l);
    char buf[8];
    size_t got;
    assert_int_equal(send_all(f, a, "still", 5), YK_OK);
    assert_int_equal(recv_some(f, b, buf, sizeof buf, &got), YK_OK);
    net_conn_close(b);
    net_conn_close(a);
}

static void test_many_connections(void **state)
{
    struct fixture *f = *state;
    struct net_listener *l = listen_at(f);
    struct net_conn *a[30], *b[30];
    for (int i = 0; i < 30; i++)
        connect_both(f, l, &a[i], &b[i]);
    for (int i = 0; i < 30; i++) {
        uint8_t out = (uint8_t)i, in = 0xff;
        size_t got;
        assert_int_equal(send_all(f, b[i], &out, 1), YK_OK);
        assert_int_equal(recv_some(f, a[i], &in, 1, &got), YK_OK);
        assert_in_range(in, 0, 29); /* accepts may come in another order than dials */
    }
    for (int i = 0; i < 30; i++) {
        net_conn_close(a[i]);
        net_conn_close(b[i]);
    }
    net_listener_close(l);
}

/* ---- only the real net ---- */

struct poster {
    struct fixture *f;
    struct answer *done;
    int next[4], wrong, seen;
};
struct posted {
    struct poster *p;
    int thread, number;
};

static void on_posted(void *arg)
{
    struct posted *x = arg;
    if (x->number != x->p->next[x->thread]++)
        x->p->wrong++;
    if (++x->p->seen == 4 * 5000)
        on_flag(x->p->done);
    free(x);
}

static void *post_many(void *arg)
{
    struct posted *first = arg;
    for (int i = 0; i < 5000; i++) {
        struct posted *x = yk_xalloc(sizeof *x);
        *x = (struct posted){first->p, first->thread, i};
        net_post(first->p->f->net, on_posted, x);
    }
    return NULL;
}

static void test_post_from_threads(void **state)
{
    struct fixture *f = *state;
    struct answer done = {.f = f};
    struct poster p = {.f = f, .done = &done};
    struct posted start[4];
    pthread_t threads[4];
    for (int i = 0; i < 4; i++) {
        start[i] = (struct posted){&p, i, 0};
        pthread_create(&threads[i], NULL, post_many, &start[i]);
    }
    wait_for(f, &done.there);
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    assert_int_equal(p.seen, 20000);
    assert_int_equal(p.wrong, 0);
}

static int raw_socket(const char *url, bool connect_it)
{
    struct sockaddr_in sa = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    if (url)
        sa.sin_port = htons((uint16_t)atoi(strrchr(url, ':') + 1));
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    if (connect_it)
        assert_int_equal(connect(fd, (struct sockaddr *)&sa, sizeof sa), 0);
    else
        assert_int_equal(bind(fd, (struct sockaddr *)&sa, sizeof sa), 0);
    return fd;
}

/* A peer whose accept queue is full drops connection requests: the dial must end by its own clock. */
static void test_dial_timeout(void **state)
{
    struct fixture *f = *state;
    int fd = raw_socket(NULL, false);
    assert_int_equal(listen(fd, 0), 0);
    struct sockaddr_in sa;
    socklen_t len = sizeof sa;
    getsockname(fd, (struct sockaddr *)&sa, &len);
    int filler[4];
    for (int i = 0; i < 4; i++) {
        filler[i] = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
        (void)!connect(filler[i], (struct sockaddr *)&sa, sizeof sa);
    }
    usleep(100000); /* a handshake may still be on its way on a busy machine */
    char url[64];
    snprintf(url, sizeof url, "tcp://127.0.0.1:%d", ntohs(sa.sin_port));
    struct net_conn *c = NULL;
    for (int i = 0; i < 15; i++) {
        int64_t start = net_now_us(f->net);
        assert_int_equal(dial(f, url, 50000, &c), YK_TIMEOUT);
        assert_in_range(net_now_us(f->net) - start, 45000, 3000000);
    }
    for (int i = 0; i < 4; i++)
        close(filler[i]);
    close(fd);
}

static void on_accept_read(void *arg, struct net_conn *conn);
struct visitor {
    struct fixture *f;
    struct net_conn *conn;
    uint8_t buf[4096];
};

static void on_visitor(void *arg, yk_err err, size_t bytes)
{
    struct visitor *v = arg;
    (void)bytes;
    if (!err) {
        net_recv(v->conn, v->buf, sizeof v->buf, on_visitor, v);
        return;
    }
    net_conn_close(v->conn);
    v->f->n_accepted++;
    net_stop(v->f->net);
    free(v);
}

static void on_accept_read(void *arg, struct net_conn *conn)
{
    struct visitor *v = yk_xalloc(sizeof *v);
    v->f = arg;
    v->conn = conn;
    net_recv(conn, v->buf, sizeof v->buf, on_visitor, v);
}

static long resident_kib(void)
{
    long pages = 0, rss = 0;
    FILE *s = fopen("/proc/self/statm", "re");
    assert_non_null(s);
    assert_int_equal(fscanf(s, "%ld %ld", &pages, &rss), 2);
    fclose(s);
    return rss * (sysconf(_SC_PAGESIZE) / 1024);
}

static int open_fds(void)
{
    int n = 0;
    for (int fd = 0; fd < 1024; fd++)
        n += fcntl(fd, F_GETFD) != -1;
    return n;
}

static void visit(struct fixture *f, const char *url, int times)
{
    f->n_accepted = 0;
    for (int i = 0; i < times; i++) {
        int fd = raw_socket(url, true);
        if (i % 3)
            (void)!write(fd, "YOK1 and then nothing", (size_t)(i % 20) + 1);
        if (i % 5 == 0) { /* a reset instead of an orderly end */
            struct linger hard = {1, 0};
            setsockopt(fd, SOL_SOCKET, SO_LINGER, &hard, sizeof hard);
        }
        close(fd);
        struct net_timer *late = net_timer(f->net, 20000000, on_late, NULL);
        while (f->n_accepted <= i)
            net_run(f->net);
        net_timer_cancel(late);
    }
}

static void test_visitors_leave_nothing(void **state)
{
    struct fixture *f = *state;
    struct net_listener *l = NULL;
    assert_int_equal(net_listen(f->net, f->url, on_accept_read, f, &l, NULL), YK_OK);
    visit(f, net_listener_url(l), 300);
    let_pass(f, 50000);
    int fds = open_fds();
    long before = resident_kib();
    visit(f, net_listener_url(l), 2000);
    let_pass(f, 50000);
    assert_true(open_fds() <= fds + 1);                             /* nng reaps the last one in its own time */
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) /* which keep freed memory on purpose */
    assert_true(resident_kib() - before < 512);
#endif
    (void)before;
    net_listener_close(l);
}

/* Out of descriptors: nobody is accepted, the loop does not spin, and it goes on when there are some again. */
static void test_out_of_descriptors(void **state)
{
    struct fixture *f = *state;
    struct net_listener *l = listen_at(f);
    struct sockaddr_in sa = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    sa.sin_port = htons((uint16_t)atoi(strrchr(net_listener_url(l), ':') + 1));
    let_pass(f, 20000); /* what earlier cases left is reaped */
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct rlimit was, tight;
    getrlimit(RLIMIT_NOFILE, &was);
    tight = was;
    tight.rlim_cur = (rlim_t)fd + 1; /* the lowest free number is beyond it: all below are taken */
    for (int k = 0; k < fd; k++)
        assert_int_not_equal(fcntl(k, F_GETFD), -1);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &tight), 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&sa, sizeof sa), 0);
    struct timespec before, after;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &before);
    let_pass(f, 300000);
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &after);
    setrlimit(RLIMIT_NOFILE, &was);
    assert_int_equal(f->n_accepted, 0);
    double cpu_s = (double)(after.tv_sec - before.tv_sec) + (double)(after.tv_nsec - before.tv_nsec) * 1e-9;
    assert_true(cpu_s < 0.15);
    for (int i = 0; i < 100 && f->n_accepted == 0; i++)
        let_pass(f, 50000);
    assert_int_equal(f->n_accepted, 1);
    net_conn_close(f->accepted[0]);
    close(fd);
    net_listener_close(l);
}

static void test_names_and_ipv6(void **state)
{
    struct fixture *f = *state;
    static const char *const urls[] = {"tcp://localhost:0", "tcp://[::1]:0", "tcp://0.0.0.0:0"};
    for (size_t i = 0; i < YK_COUNT(urls); i++) {
        struct net_listener *l = NULL;
        struct net_conn *a, *b;
        struct yk_diag why = {{0}};
        yk_err err = net_listen(f->net, urls[i], on_accept, f, &l, &why);
        if (err && i == 1)
            continue; /* a machine without IPv6 */
        if (err)
            fail_msg("%s", why.text);
        f->n_accepted = 0;
        connect_both(f, l, &a, &b);
        assert_non_null(strchr(net_peer(b), ':'));
        net_conn_close(a);
        net_conn_close(b);
        net_listener_close(l);
    }
    struct net_listener *l = NULL;
    struct yk_diag why = {{0}};
    assert_int_not_equal(net_listen(f->net, "tcp://192.0.2.1:0", on_accept, f, &l, &why), YK_OK);
    assert_non_null(strstr(why.text, "192.0.2.1"));
}

static void test_signal(void **state)
{
    struct fixture *f = *state;
    struct answer a = {.f = f};
    assert_int_equal(net_nng_on_signal(f->net, SIGUSR1, on_flag, &a), YK_OK);
    raise(SIGUSR1);
    wait_for(f, &a.there);
}

static void on_dial_never(void *arg, yk_err err, struct net_conn *conn)
{
    (void)arg;
    (void)err;
    (void)conn;
    fail_msg("a dial answered while the net was closing");
}

static void test_close_while_dialling(void **state)
{
    struct fixture *f = *state;
    struct net_listener *l = listen_at(f);
    for (int i = 0; i < 5; i++)
        net_dial(f->net, net_listener_url(l), 1000000, on_dial_never, NULL);
    usleep(20000);
    net_listener_close(l); /* teardown closes the net with answers in the mailbox */
}

/* ---- only the net in memory ---- */

static void test_mem_latency_and_rate(void **state)
{
    struct fixture *f = *state;
    net_mem_set_link(f->net, f->url, 5000, 40e6);
    struct net_listener *l = listen_at(f);
    struct net_conn *a, *b;
    int64_t start = net_now_us(f->net);
    connect_both(f, l, &a, &b);
    assert_int_equal(net_now_us(f->net) - start, 10000); /* one round trip */
    size_t len = 4000000, n = 0, got;
    uint8_t *data = yk_xalloc(len), *back = yk_xalloc(len);
    struct answer s = {.f = f};
    start = net_now_us(f->net);
    start_send(&s, a, data, len);
    while (n < len) {
        assert_int_equal(recv_some(f, b, back + n, len - n, &got), YK_OK);
        n += got;
    }
    int64_t took = net_now_us(f->net) - start;
    assert_in_range(took, 105000 - 100, 105000 + 100); /* 4 MB at 40 MB/s, and the latency */
    assert_true(s.there);
    start = net_now_us(f->net);
    assert_int_equal(send_all(f, b, "x", 1), YK_OK);
    assert_int_equal(recv_some(f, a, back, 8, &got), YK_OK);
    assert_in_range(net_now_us(f->net) - start, 5000, 5001);
    net_conn_close(a);
    net_conn_close(b);
    net_listener_close(l);
    free(data);
    free(back);
}

static void test_mem_cut(void **state)
{
    struct fixture *f = *state;
    net_mem_set_link(f->net, f->url, 1000, 0);
    struct net_listener *l = listen_at(f);
    struct net_conn *a, *b, *c;
    connect_both(f, l, &a, &b);
    net_mem_cut(f->net, "place", true);
    char buf[16] = {0};
    struct answer r = {.f = f};
    start_recv(&r, b, buf, sizeof buf);
    assert_int_equal(send_all(f, a, "lost?", 5), YK_OK); /* the sender notices nothing */
    int64_t start = net_now_us(f->net);
    assert_int_equal(dial(f, f->url, 300000, &c), YK_TIMEOUT);
    assert_int_equal(net_now_us(f->net) - start, 300000);
    net_mem_run_for(f->net, 60000000);
    assert_false(r.there);
    net_mem_cut(f->net, "place", false);
    wait_for(f, &r.there);
    assert_int_equal(r.bytes, 5);
    assert_string_equal(buf, "lost?");
    net_mem_cut(f->net, "place", true);
    net_conn_close(a); /* an end that the other side cannot hear of */
    struct answer s = {.f = f};
    start_recv(&s, b, buf, sizeof buf);
    net_mem_run_for(f->net, 60000000);
    assert_false(s.there);
    net_conn_close(b);
    net_listener_close(l);
}

static void test_mem_run_for(void **state)
{
    struct fixture *f = *state;
    struct trace t = {.f = f};
    struct mark m[] = {{&t, 'a'}, {&t, 'b'}};
    net_timer(f->net, 1000, on_mark, &m[0]);
    net_timer(f->net, 3000, on_mark, &m[1]);
    net_mem_run_for(f->net, 2000);
    assert_int_equal(net_now_us(f->net), 2000);
    assert_string_equal(t.text, "a");
    net_mem_run_for(f->net, 1000);
    assert_string_equal(t.text, "ab");
    net_run(f->net); /* nothing is left: returns */
    assert_int_equal(net_now_us(f->net), 3000);
}

/* The order of simultaneous timers is the seed's. */
static void order_of(uint64_t seed, char out[64])
{
    struct fixture f = {0};
    struct trace t = {.f = &f};
    struct mark m[12];
    assert_int_equal(net_mem_open(seed, &f.net), YK_OK);
    for (int i = 0; i < 12; i++) {
        m[i] = (struct mark){&t, (char)('l' + i)};
        net_timer(f.net, 100, on_mark, &m[i]);
    }
    net_run(f.net);
    uint8_t r[8];
    net_random(f.net, r, 8);
    yk_hex(r, 8, t.text + 12);
    strcpy(out, t.text);
    net_close(f.net);
}

static void test_mem_seed(void **state)
{
    (void)state;
    char a[64], b[64], c[64];
    order_of(1, a);
    order_of(1, b);
    order_of(2, c);
    assert_string_equal(a, b);
    assert_memory_not_equal(a, c, 12);
    assert_string_not_equal(a + 12, c + 12);
}

#define BOTH(fn)                                    \
    {#fn " (nng)", fn, setup_real, teardown, NULL}, \
    {                                               \
#fn " (mem)", fn, setup_mem, teardown, NULL \
    }
#define REAL(fn)                            \
    {                                       \
#fn, fn, setup_real, teardown, NULL \
    }
#define MEM(fn)                            \
    {                                      \
#fn, fn, setup_mem, teardown, NULL \
    }

int main(void)
{
    signal(SIGPIPE, SIG_DFL); /* a peer that is gone must not kill the process */
    log_set_level(LOG_ERROR);
    const struct CMUnitTest tests[] = {
        BOTH(test_timers),
        BOTH(test_timer_due_at_once),
        BOTH(test_posts_keep_order),
        BOTH(test_random),
        BOTH(test_echo),
        BOTH(test_bulk_both_ways),
        BOTH(test_end_of_stream),
        BOTH(test_close_in_flight),
        BOTH(test_close_from_callback),
        BOTH(test_refused),
        BOTH(test_address_in_use),
        BOTH(test_listener_close_keeps_connections),
        BOTH(test_many_connections),
        REAL(test_post_from_threads),
        REAL(test_dial_timeout),
        REAL(test_visitors_leave_nothing),
        REAL(test_out_of_descriptors),
        REAL(test_names_and_ipv6),
        REAL(test_signal),
        REAL(test_close_while_dialling),
        MEM(test_mem_latency_and_rate),
        MEM(test_mem_cut),
        MEM(test_mem_run_for),
        MEM(test_mem_seed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
