/* The emulated device's description, and its link on virtual time. */
#include "agent/emulate_net.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static yk_err parse(const char *text, struct agent_emulate *e, struct yk_diag *why)
{
    return emulate_parse(text, strlen(text), e, why);
}

static void reads_what_design_names(void **state)
{
    (void)state;
    struct agent_emulate e;
    struct yk_diag why;
    assert_int_equal(
        parse("{\"gflops\": 1, \"memory_bytes\": 1000, \"link\": {\"bytes_per_s\": 40e6, \"up_latency_ms\": "
              "1.5, \"down_latency_ms\": 2, \"duplex\": \"half\"}, \"heat\": \"fair\", \"battery\": 0.5}",
            &e, &why),
        YK_OK);
    assert_true(e.gflops == 1 && e.memory_bytes == 1000 && e.half_duplex && e.bytes_per_s == 40e6);
    assert_true(e.up_latency_ms == 1.5 && e.down_latency_ms == 2 && e.battery_frac == 0.5);
    assert_string_equal(e.heat, "fair");
    assert_true(fabs(emulate_compute_ms(&e, 4e6) - 4) < 1e-9);
    assert_int_equal(parse("{}", &e, &why), YK_OK);
    assert_true(e.gflops == 0 && e.bytes_per_s == 0 && isnan(e.battery_frac) && !e.heat[0]);
    assert_true(emulate_compute_ms(&e, 1e12) == 0);
    assert_int_equal(parse("{\"stage_ms\": 3}", &e, &why), YK_OK);
    assert_true(emulate_compute_ms(&e, 1e9) == 3);
}

static void the_shipped_examples_load(void **state)
{
    (void)state;
    struct agent_emulate e;
    struct yk_diag why;
    assert_int_equal(emulate_load(YOKE_SOURCE_DIR "/config/emulate/pc.json", &e, &why), YK_OK);
    assert_int_equal(emulate_load(YOKE_SOURCE_DIR "/config/emulate/phone.json", &e, &why), YK_OK);
    assert_int_equal(emulate_load(YOKE_SOURCE_DIR "/config/emulate/none.json", &e, &why), YK_NOTFOUND);
    assert_non_null(strstr(why.text, "none.json"));
}

static void throttling(void **state)
{
    struct agent_emulate e;
    struct emulate_link l = {0};
    (void)state;
    assert_int_equal(
        parse("{\"gflops\":1,\"throttle\":{\"after_s\":10,\"over_s\":100,\"factor\":5},\"link\":{\"bytes_per_s\":"
              "1000000,\"throttle\":{\"after_s\":2,\"factor\":4}}}",
            &e, NULL),
        YK_OK);
    assert_true(emulate_slowdown(&e.throttle, 0) == 1 && emulate_slowdown(&e.throttle, 10) == 1);
    assert_true(fabs(emulate_slowdown(&e.throttle, 60) - 3) < 1e-9);
    assert_true(emulate_slowdown(&e.throttle, 110) == 5 && emulate_slowdown(&e.throttle, 1e9) == 5);
    assert_int_equal(emulate_tx_delay_us(&e, &l, 1000, 1000), 1000);
    assert_int_equal(emulate_rx_delay_us(&e, &l, 3001000, 1000), 4000);
    assert_int_equal(parse("{\"gflops\":1}", &e, NULL), YK_OK);
    assert_true(emulate_slowdown(&e.throttle, 1e9) == 1);
    assert_int_not_equal(parse("{\"throttle\":{\"after_s\":1}}", &e, NULL), YK_OK);
    assert_int_equal(parse("{\"throttle\":{\"factor\":0.5}}", &e, NULL), YK_INVAL);
    assert_int_equal(parse("{\"throttle\":{\"factor\":2,\"cools\":1}}", &e, NULL), YK_INVAL);
    assert_int_equal(parse("{\"throttle\":5}", &e, NULL), YK_INVAL);
}

static void refuses_what_it_does_not_know(void **state)
{
    (void)state;
    static const char *const bad[] = {"{\"speed\": 1}", "{\"gflops\": 0}", "{\"gflops\": \"2\"}",
        "{\"memory_bytes\": 0}", "{\"link\": {\"rate\": 1}}", "{\"link\": 3}", "{\"link\": {\"duplex\": \"both\"}}",
        "{\"heat\": \"hot\"}", "{\"battery\": 2}", "{\"stage_ms\": -1}", "{\"stage_ms\": 1, \"gflops\": 1}", "[]", "{",
        "{\"link\": {\"bytes_per_s\": -5}}"};
    struct agent_emulate e;
    for (size_t i = 0; i < YK_COUNT(bad); i++) {
        struct yk_diag why = {0};
        if (parse(bad[i], &e, &why) == YK_OK || !why.text[0])
            fail_msg("took %s", bad[i]);
    }
}

/* ---- the link ---- */

#define BULK 4000000

struct side {
    struct net *net;
    struct net_conn *conn;
    uint8_t *out, *in;
    size_t sent, got, want, total;
    int64_t first_us, last_us;
    bool ended;
};

static void send_more(struct side *s);

static void on_sent(void *arg, yk_err err, size_t n)
{
    struct side *s = arg;
    if (err)
        return;
    s->sent += n;
    send_more(s);
}

static void send_more(struct side *s)
{
    size_t n = YK_MIN(s->total - s->sent, (size_t)100000);
    if (!n)
        return;
    struct net_iov iov[2] = {{s->out + s->sent, n / 3}, {s->out + s->sent + n / 3, n - n / 3}};
    net_send(s->conn, iov, 2, on_sent, s);
}

static void on_got(void *arg, yk_err err, size_t n)
{
    struct side *s = arg;
    if (err) {
        s->ended = true;
        return;
    }
    if (!s->got)
        s->first_us = net_now_us(s->net);
    s->got += n;
    s->last_us = net_now_us(s->net);
    if (s->got < s->want)
        net_recv(s->conn, s->in + s->got, s->want - s->got, on_got, s);
}

static void on_accept(void *arg, struct net_conn *c)
{
    struct side *s = arg;
    s->conn = c;
    send_more(s);
    if (s->want)
        net_recv(s->conn, s->in, s->want, on_got, s);
}

static void on_dial(void *arg, yk_err err, struct net_conn *c)
{
    assert_int_equal(err, YK_OK);
    on_accept(arg, c);
}

struct bed {
    struct net *mem, *emu;
    struct net_listener *listener;
    struct side a, b; /* a is the emulated device, b its peer */
};

static void bed_open(struct bed *t, const char *link, size_t up, size_t down)
{
    struct agent_emulate e;
    struct yk_diag why;
    char text[256];
    memset(t, 0, sizeof *t);
    snprintf(text, sizeof text, "{\"link\": %s}", link);
    assert_int_equal(parse(text, &e, &why), YK_OK);
    assert_int_equal(net_mem_open(3, &t->mem), YK_OK);
    assert_int_equal(emulate_net_open(t->mem, &e, &t->emu), YK_OK);
    for (int i = 0; i < 2; i++) {
        struct side *s = i ? &t->b : &t->a;
        s->net = i ? t->mem : t->emu;
        s->total = i ? down : up;
        s->want = i ? up : down;
        s->out = malloc(BULK);
        s->in = calloc(1, BULK);
        for (int k = 0; k < BULK; k++)
            s->out[k] = (uint8_t)(k * 31 + i + k / 977);
    }
    assert_int_equal(net_listen(t->mem, "mem://b", on_accept, &t->b, &t->listener, &why), YK_OK);
    net_dial(t->emu, "mem://b", 1000000, on_dial, &t->a);
}

static void bed_close(struct bed *t)
{
    net_conn_close(t->a.conn);
    net_conn_close(t->b.conn);
    net_listener_close(t->listener);
    net_close(t->emu);
    net_mem_run_for(t->mem, 3000000); /* what lingers ends */
    net_close(t->mem);
    for (int i = 0; i < 2; i++) {
        struct side *s = i ? &t->b : &t->a;
        free(s->out);
        free(s->in);
    }
}

static void near(double got, double want, double frac)
{
    if (!(fabs(got - want) <= want * frac))
        fail_msg("got %g, expected %g within %g", got, want, frac);
}

static void one_way_has_rate_and_latency(void **state)
{
    (void)state;
    for (int up = 0; up < 2; up++) {
        struct bed t;
        bed_open(
            &t, "{\"bytes_per_s\": 40e6, \"up_latency_ms\": 7, \"down_latency_ms\": 3}", up ? BULK : 0, up ? 0 : BULK);
        int64_t begin = net_now_us(t.mem);
        net_mem_run_for(t.mem, 1000000);
        struct side *r = up ? &t.b : &t.a;
        assert_int_equal(r->got, BULK);
        assert_memory_equal(r->in, up ? t.a.out : t.b.out, BULK);
        near((double)(r->last_us - begin), 100000 + (up ? 7000 : 3000), 0.03);
        bed_close(&t);
    }
}

static void half_duplex_shares_the_rate(void **state)
{
    (void)state;
    for (int half = 0; half < 2; half++) {
        struct bed t;
        bed_open(&t, half ? "{\"bytes_per_s\": 40e6, \"duplex\": \"half\"}" : "{\"bytes_per_s\": 40e6}", BULK, BULK);
        int64_t begin = net_now_us(t.mem);
        net_mem_run_for(t.mem, 1000000);
        assert_int_equal(t.a.got, BULK);
        assert_int_equal(t.b.got, BULK);
        near((double)(YK_MAX(t.a.last_us, t.b.last_us) - begin), half ? 200000 : 100000, 0.03);
        /* Both directions make progress at once: neither waits for the other's end. */
        assert_true(t.a.first_us - begin < 30000 && t.b.first_us - begin < 30000);
        bed_close(&t);
    }
}

static void what_was_sent_arrives_after_close(void **state)
{
    (void)state;
    for (int whole = 0; whole < 2; whole++) { /* the net itself may be closed, too */
        struct bed t;
        bed_open(&t, "{\"bytes_per_s\": 1e6, \"up_latency_ms\": 50}", 1000, 0);
        net_mem_run_for(t.mem, 3000); /* taken, still in the air */
        assert_int_equal(t.a.sent, 1000);
        assert_int_equal(t.b.got, 0);
        net_conn_close(t.a.conn);
        t.a.conn = NULL;
        if (whole) {
            net_close(t.emu);
            t.emu = NULL;
        }
        net_mem_run_for(t.mem, 100000);
        assert_int_equal(t.b.got, 1000);
        bed_close(&t);
    }
}

static void an_end_reaches_the_reader(void **state)
{
    (void)state;
    struct bed t;
    bed_open(&t, "{\"bytes_per_s\": 1e6, \"down_latency_ms\": 5}", 0, 1000);
    t.a.want = 2000;
    net_mem_run_for(t.mem, 2000);
    net_conn_close(t.b.conn);
    t.b.conn = NULL;
    net_mem_run_for(t.mem, 100000);
    assert_int_equal(t.a.got, 1000);
    assert_true(t.a.ended);
    bed_close(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(throttling),
        cmocka_unit_test(reads_what_design_names),
        cmocka_unit_test(the_shipped_examples_load),
        cmocka_unit_test(refuses_what_it_does_not_know),
        cmocka_unit_test(one_way_has_rate_and_latency),
        cmocka_unit_test(half_duplex_shares_the_rate),
        cmocka_unit_test(what_was_sent_arrives_after_close),
        cmocka_unit_test(an_end_reaches_the_reader),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
