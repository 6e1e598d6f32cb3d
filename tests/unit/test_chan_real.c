/* Channels over real sockets: order, large streams both ways at once, many streams, peers that vanish. */
#include "common/chan.h"

#include <setjmp.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { MAX_STREAMS = 400 };

struct side {
    struct chan *chan;
    int64_t next_seq;
    int n_messages, n_streams, n_sinks_done, n_closed, n_sent, n_sent_ok, n_whole;
    uint8_t *sinks[MAX_STREAMS];
    size_t lens[MAX_STREAMS];
    yk_err closed_err;
};

static struct net *net;
static struct net_listener *listener;
static struct net_conn *dialled, *accepted;
static struct side a, b;
static uint8_t *bytes; /* bodies are pieces of it */
enum { BYTES = 6000000 };

static yk_err on_message(void *arg, struct chan *c, struct wire_msg *msg)
{
    struct side *s = arg;
    (void)c;
    if (msg->type == WIRE_TYPE_pong)
        assert_int_equal(msg->as.pong.seq, s->next_seq++);
    s->n_messages++;
    return YK_OK;
}

static void on_sink(void *arg, yk_err err)
{
    struct side *s = arg;
    s->n_sinks_done++;
    s->n_whole += err == YK_OK;
}

static yk_err on_stream(void *arg, struct chan *c, struct wire_msg *head, struct chan_sink *sink)
{
    struct side *s = arg;
    (void)c;
    assert_true(s->n_streams < MAX_STREAMS);
    size_t len = (size_t)head->as.probe_data.bytes;
    s->sinks[s->n_streams] = malloc(len + 1);
    s->lens[s->n_streams] = len;
    *sink = (struct chan_sink){s->sinks[s->n_streams++], len, on_sink, s};
    return YK_OK;
}

static void on_closed(void *arg, struct chan *c, yk_err err, const char *why)
{
    struct side *s = arg;
    (void)c, (void)why;
    s->n_closed++;
    s->closed_err = err;
}

static const struct chan_on on = {on_message, on_stream, on_closed};

static void on_sent(void *arg, yk_err err, size_t n)
{
    struct side *s = arg;
    (void)n;
    s->n_sent++;
    s->n_sent_ok += err == YK_OK;
}

static void on_accept(void *arg, struct net_conn *conn)
{
    (void)arg;
    accepted = conn;
}

static void on_dial(void *arg, yk_err err, struct net_conn *conn)
{
    (void)arg;
    assert_int_equal(err, YK_OK);
    dialled = conn;
}

static void on_tick(void *arg)
{
    (void)arg;
    net_stop(net);
}

#define UNTIL(cond)                                     \
    do {                                                \
        for (int i_ = 0; i_ < 10000 && !(cond); i_++) { \
            net_timer(net, 1000, on_tick, NULL);        \
            net_run(net);                               \
        }                                               \
        assert_true(cond);                              \
    } while (0)

static int setup(void **state)
{
    (void)state;
    memset(&a, 0, sizeof a);
    memset(&b, 0, sizeof b);
    dialled = accepted = NULL;
    assert_int_equal(net_nng_open(&net, NULL), YK_OK);
    assert_int_equal(net_listen(net, "tcp://127.0.0.1:0", on_accept, NULL, &listener, NULL), YK_OK);
    net_dial(net, net_listener_url(listener), 5000000, on_dial, NULL);
    UNTIL(dialled && accepted);
    a.chan = chan_open(dialled, &on, &a);
    b.chan = chan_open(accepted, &on, &b);
    chan_trust(a.chan);
    chan_trust(b.chan);
    return 0;
}

static int teardown(void **state)
{
    struct side *sides[] = {&a, &b};
    (void)state;
    chan_close(a.chan, false);
    chan_close(b.chan, false);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(sides[i]->n_sinks_done, sides[i]->n_streams);
        assert_true(sides[i]->n_closed <= 1);
        for (int k = 0; k < sides[i]->n_streams; k++)
            free(sides[i]->sinks[k]);
    }
    net_listener_close(listener);
    net_close(net);
    return 0;
}

static void pong(struct side *s, int64_t seq)
{
    assert_int_equal(chan_send(s->chan, WIRE_TYPE_pong, &(struct wire_pong){.seq = seq}), YK_OK);
}

/* A body in n pieces from the beginning of bytes. */
static void stream(struct side *s, enum chan_prio prio, size_t len, int n)
{
    struct net_iov iov[16];
    size_t at = 0;
    for (int i = 0; i < n; i++) {
        size_t take = i == n - 1 ? len - at : len / (size_t)n;
        iov[i] = (struct net_iov){bytes + at, take};
        at += take;
    }
    assert_int_equal(chan_stream(s->chan, prio, WIRE_TYPE_probe_data, &(struct wire_probe_data){.bytes = (int64_t)len},
                         iov, n, on_sent, s),
        YK_OK);
}

static void messages_and_streams_both_ways(void **state)
{
    static const size_t sizes[] = {0, 1, 4096, 262143, 262145, BYTES};
    (void)state;
    for (int i = 0; i < 300; i++) {
        pong(&a, i);
        pong(&b, i);
        if (i % 50 == 0) {
            stream(&a, i % 100 ? CHAN_DATA : CHAN_BULK, sizes[i / 50], 1 + i / 50 * 3);
            stream(&b, i % 100 ? CHAN_BULK : CHAN_DATA, sizes[i / 50], 1 + i / 50 * 3);
        }
    }
    UNTIL(a.n_whole == 6 && b.n_whole == 6 && a.n_messages == 300 && b.n_messages == 300 && a.n_sent_ok == 6 &&
          b.n_sent_ok == 6);
    struct side *sides[] = {&a, &b};
    for (int i = 0; i < 2; i++)
        for (int k = 0; k < 6; k++)
            assert_memory_equal(sides[i]->sinks[k], bytes, sides[i]->lens[k]);
    assert_true(chan_tx_bytes(a.chan) == chan_rx_bytes(b.chan));
}

/* More streams than a peer takes at once: they queue at the sender. */
static void hundreds_of_streams(void **state)
{
    (void)state;
    for (int i = 0; i < 200; i++) {
        stream(&a, CHAN_BULK, 300000, 1);
        stream(&a, CHAN_DATA, 300000, 1);
    }
    UNTIL(b.n_whole == 400 && a.n_sent_ok == 400);
    assert_int_equal(b.n_closed, 0);
}

static void a_peer_that_vanishes(void **state)
{
    (void)state;
    for (int i = 0; i < 40; i++)
        stream(&a, CHAN_DATA, BYTES, 1);
    UNTIL(b.n_whole >= 1 || chan_rx_bytes(b.chan) > 1000000);
    chan_close(b.chan, false);
    b.chan = NULL;
    UNTIL(a.n_closed == 1);
    assert_int_equal(a.closed_err, YK_CLOSED);
    assert_int_equal(a.n_sent, 40);
    assert_true(a.n_sent_ok < 40);
    assert_int_equal(chan_send(a.chan, WIRE_TYPE_pong, &(struct wire_pong){0}), YK_CLOSED);
}

static void a_flush_delivers(void **state)
{
    (void)state;
    for (int i = 0; i < 200; i++)
        pong(&a, i);
    chan_close(a.chan, true);
    a.chan = NULL;
    UNTIL(b.n_closed == 1);
    assert_int_equal(b.n_messages, 200);
    assert_int_equal(b.closed_err, YK_CLOSED);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(messages_and_streams_both_ways),
        TEST(hundreds_of_streams),
        TEST(a_peer_that_vanishes),
        TEST(a_flush_delivers),
    };
    struct yk_rng rng;
    yk_rng_seed(&rng, 1);
    bytes = malloc(BYTES);
    for (size_t i = 0; i < BYTES; i++)
        bytes[i] = (uint8_t)yk_rng_next(&rng);
    int rc = cmocka_run_group_tests(tests, NULL, NULL);
    free(bytes);
    return rc;
}
