/* One suite for every net: each case runs on net_nng over loopback and on net_mem. */
#include "tests/conformance/net_fixture.h"

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

int main(void)
{
    signal(SIGPIPE, SIG_DFL); /* a peer that is gone must not kill the process */
    log_set_level(LOG_ERROR);
    const struct CMUnitTest tests[] = {
        NET_BOTH(test_timers),
        NET_BOTH(test_timer_due_at_once),
        NET_BOTH(test_posts_keep_order),
        NET_BOTH(test_random),
        NET_BOTH(test_echo),
        NET_BOTH(test_bulk_both_ways),
        NET_BOTH(test_end_of_stream),
        NET_BOTH(test_close_in_flight),
        NET_BOTH(test_close_from_callback),
        NET_BOTH(test_refused),
        NET_BOTH(test_address_in_use),
        NET_BOTH(test_listener_close_keeps_connections),
        NET_BOTH(test_many_connections),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
