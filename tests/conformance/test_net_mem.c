/* What only the net in memory has: exact virtual time, cuts, a seed. */
#include "tests/conformance/net_fixture.h"

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

int main(void)
{
    signal(SIGPIPE, SIG_DFL); /* a peer that is gone must not kill the process */
    log_set_level(LOG_ERROR);
    const struct CMUnitTest tests[] = {
        NET_MEM(test_mem_latency_and_rate),
        NET_MEM(test_mem_cut),
        NET_MEM(test_mem_run_for),
        NET_MEM(test_mem_seed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
