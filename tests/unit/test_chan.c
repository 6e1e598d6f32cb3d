/* Channels over the net in memory: order, priorities, streams, broken peers, closing at any moment. */
#include "common/chan.h"

#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { MAX_STREAMS = 80, MAX_LOG = 4096 };

struct body {
    struct side *side;
    uint8_t *data;
    size_t len;
    int done;
    yk_err err;
    size_t bytes;
};

/* One end: a channel with a log of what happened, or a bare connection. */
struct side {
    struct net *net;
    struct net_conn *conn;
    struct chan *chan;
    int64_t seqs[MAX_LOG];
    int n_messages, n_streams, n_sinks_open, n_closed, n_done;
    struct body in[MAX_STREAMS];
    yk_err refuse_message, refuse_stream, closed_err;
    char closed_why[200];
    size_t sink_len; /* 0: what the head says */
    enum { NEVER, IN_MESSAGE, IN_STREAM, IN_SINK_DONE, IN_SEND_DONE, IN_CLOSED } close_in;
    bool keep_messages, flush;
    struct wire_msg kept;
    struct yk_buf raw;
    uint8_t piece[65536];
    bool raw_ended;
};

static struct net *net;
static struct net_listener *listener;
static struct side a, b; /* a dials, b accepts */

static void end_side(struct side *s)
{
    chan_close(s->chan, s->flush);
    s->chan = NULL;
}

static void on_sink_done(void *arg, yk_err err)
{
    struct body *in = arg;
    in->done++;
    in->err = err;
    in->side->n_sinks_open--;
    if (in->side->close_in == IN_SINK_DONE)
        end_side(in->side);
}

static yk_err on_message(void *arg, struct chan *c, struct wire_msg *msg)
{
    struct side *s = arg;
    assert_ptr_equal(c, s->chan);
    if (s->n_messages < MAX_LOG)
        s->seqs[s->n_messages] = msg->type == WIRE_TYPE_pong ? msg->as.pong.seq : -(int64_t)msg->type;
    s->n_messages++;
    if (s->keep_messages) {
        wire_free(&s->kept);
        s->kept = *msg;
        msg->arena = NULL;
    }
    if (s->close_in == IN_MESSAGE)
        end_side(s);
    return s->refuse_message;
}

static yk_err on_stream(void *arg, struct chan *c, struct wire_msg *head, struct chan_sink *sink)
{
    struct side *s = arg;
    assert_ptr_equal(c, s->chan);
    assert_int_equal(head->type, WIRE_TYPE_probe_data);
    if (s->refuse_stream)
        return s->refuse_stream;
    assert_true(s->n_streams < MAX_STREAMS);
    struct body *in = &s->in[s->n_streams++];
    in->side = s;
    in->len = s->sink_len ? s->sink_len : (size_t)head->as.probe_data.bytes;
    in->data = malloc(in->len + 1);
    s->n_sinks_open++;
    *sink = (struct chan_sink){in->data, in->len, on_sink_done, in};
    if (s->close_in == IN_STREAM)
        end_side(s);
    return YK_OK;
}

static void on_closed(void *arg, struct chan *c, yk_err err, const char *why)
{
    struct side *s = arg;
    assert_ptr_equal(c, s->chan);
    assert_int_equal(s->n_sinks_open, 0); /* sinks end before */
    assert_int_equal(chan_send(c, WIRE_TYPE_pong, &(struct wire_pong){0}), YK_CLOSED);
    s->n_closed++;
    s->closed_err = err;
    snprintf(s->closed_why, sizeof s->closed_why, "%s", why);
    if (s->close_in == IN_CLOSED)
        end_side(s);
}

static const struct chan_on on = {on_message, on_stream, on_closed};

static void on_body_done(void *arg, yk_err err, size_t bytes)
{
    struct body *out = arg;
    out->done++;
    out->err = err;
    out->bytes = bytes;
    out->side->n_done++;
    if (out->side->close_in == IN_SEND_DONE)
        end_side(out->side);
}

static void on_raw(void *arg, yk_err err, size_t n)
{
    struct side *s = arg;
    if (err) {
        s->raw_ended = true;
        return;
    }
    yk_buf_add(&s->raw, s->piece, n);
    net_recv(s->conn, s->piece, sizeof s->piece, on_raw, s);
}

static void on_accept(void *arg, struct net_conn *conn)
{
    (void)arg;
    b.conn = conn;
}

static void on_dial(void *arg, yk_err err, struct net_conn *conn)
{
    (void)arg;
    assert_int_equal(err, YK_OK);
    a.conn = conn;
}

static void to_chan(struct side *s)
{
    s->chan = chan_open(s->conn, &on, s);
    s->conn = NULL;
}

static void to_raw(struct side *s)
{
    net_recv(s->conn, s->piece, sizeof s->piece, on_raw, s);
}

static int setup(void **state)
{
    (void)state;
    memset(&a, 0, sizeof a);
    memset(&b, 0, sizeof b);
    assert_int_equal(net_mem_open(11, &net), YK_OK);
    a.net = b.net = net;
    assert_int_equal(net_listen(net, "mem://b", on_accept, NULL, &listener, NULL), YK_OK);
    net_dial(net, "mem://b", 1000000, on_dial, NULL);
    net_mem_run_for(net, 1000);
    assert_non_null(a.conn);
    assert_non_null(b.conn);
    return 0;
}

static int teardown(void **state)
{
    struct side *sides[] = {&a, &b};
    (void)state;
    for (int i = 0; i < 2; i++) {
        struct side *s = sides[i];
        chan_close(s->chan, false);
        net_conn_close(s->conn);
        wire_free(&s->kept);
        yk_buf_free(&s->raw);
        assert_int_equal(s->n_sinks_open, 0);
        for (int k = 0; k < s->n_streams; k++) {
            assert_int_equal(s->in[k].done, 1);
            free(s->in[k].data);
        }
        assert_true(s->n_closed <= 1);
    }
    net_listener_close(listener);
    net_close(net);
    return 0;
}

static void run(void)
{
    net_mem_run_for(net, 30000000);
}

static yk_err pong(struct side *s, int64_t seq)
{
    return chan_send(s->chan, WIRE_TYPE_pong, &(struct wire_pong){.seq = seq});
}

static void fill(struct body *out, struct side *s, size_t len, uint64_t seed)
{
    struct yk_rng r;
    yk_rng_seed(&r, seed);
    *out = (struct body){.side = s, .len = len, .data = malloc(len + 1)};
    for (size_t i = 0; i < len; i++)
        out->data[i] = (uint8_t)yk_rng_next(&r);
}

static yk_err stream(struct side *s, enum chan_prio prio, struct body *out)
{
    struct net_iov iov = {out->data, out->len};
    return chan_stream(s->chan, prio, WIRE_TYPE_probe_data, &(struct wire_probe_data){.bytes = (int64_t)out->len}, &iov,
        1, on_body_done, out);
}

/* ---- frames by hand ---- */

static void put(struct yk_buf *buf, uint32_t magic, uint32_t len, int type, int kind, int flags, uint32_t id)
{
    uint8_t h[16];
    for (int i = 0; i < 4; i++) {
        h[i] = (uint8_t)(magic >> 8 * i);
        h[4 + i] = (uint8_t)(len >> 8 * i);
        h[12 + i] = (uint8_t)(id >> 8 * i);
    }
    h[8] = (uint8_t)type;
    h[9] = (uint8_t)(type >> 8);
    h[10] = (uint8_t)kind;
    h[11] = (uint8_t)flags;
    yk_buf_add(buf, h, 16);
}
#define MAGIC 0x314B4F59u

static void put_message(struct yk_buf *buf, int kind, uint32_t id, enum wire_type type, const void *m)
{
    struct yk_buf payload = {0};
    assert_int_equal(wire_encode(type, m, &payload), YK_OK);
    put(buf, MAGIC, (uint32_t)payload.len, (int)type, kind, 0, id);
    yk_buf_add(buf, payload.data, payload.len);
    yk_buf_free(&payload);
}

static void put_head(struct yk_buf *buf, uint32_t id, int64_t bytes)
{
    put_message(buf, 1, id, WIRE_TYPE_probe_data, &(struct wire_probe_data){.bytes = bytes});
}

static void put_chunk(struct yk_buf *buf, uint32_t id, size_t len, bool last)
{
    put(buf, MAGIC, (uint32_t)len, 0, 2, last, id);
    memset(yk_buf_room(buf, len), 'x', len);
}

static void on_raw_sent(void *arg, yk_err err, size_t n)
{
    (void)err, (void)n;
    *(bool *)arg = true;
}

static void send_raw(struct side *s, const struct yk_buf *buf, size_t step)
{
    for (size_t at = 0; at < buf->len; at += step) {
        bool sent = false;
        struct net_iov iov = {buf->data + at, YK_MIN(step, buf->len - at)};
        net_send(s->conn, &iov, 1, on_raw_sent, &sent);
        net_mem_run_for(net, 10);
        assert_true(sent);
    }
}

/* ---- good peers ---- */

static void messages_keep_their_order(void **state)
{
    (void)state;
    to_chan(&a);
    to_chan(&b);
    for (int i = 0; i < 1000; i++) {
        assert_int_equal(pong(&a, i), YK_OK);
        assert_int_equal(pong(&b, 5000 + i), YK_OK);
    }
    assert_int_equal(b.n_messages, 0); /* nothing from inside a call */
    run();
    assert_int_equal(a.n_messages, 1000);
    assert_int_equal(b.n_messages, 1000);
    for (int i = 0; i < 1000; i++) {
        assert_true(b.seqs[i] == i);
        assert_true(a.seqs[i] == 5000 + i);
    }
    assert_true(chan_tx_bytes(a.chan) == chan_rx_bytes(b.chan));
    assert_string_equal(chan_peer(a.chan), "mem://b");
}

static void streams_arrive_whole(void **state)
{
    static const size_t sizes[] = {0, 1, 15, 16, 4079, 4080, 4096, 262143, 262144, 262145, 3000000};
    struct body out[YK_COUNT(sizes)];
    (void)state;
    to_chan(&a);
    to_chan(&b);
    for (size_t i = 0; i < YK_COUNT(sizes); i++) {
        fill(&out[i], &a, sizes[i], i);
        assert_int_equal(stream(&a, i % 2 ? CHAN_DATA : CHAN_BULK, &out[i]), YK_OK);
    }
    assert_int_equal(a.n_done, 0);
    run();
    assert_int_equal(b.n_streams, YK_COUNT(sizes));
    for (int k = 0; k < b.n_streams; k++) {
        size_t i = 0;
        while (sizes[i] != b.in[k].len)
            i++;
        assert_int_equal(b.in[k].done, 1);
        assert_int_equal(b.in[k].err, YK_OK);
        assert_memory_equal(b.in[k].data, out[i].data, sizes[i]);
    }
    for (size_t i = 0; i < YK_COUNT(sizes); i++) {
        assert_int_equal(out[i].done, 1);
        assert_int_equal(out[i].err, YK_OK);
        assert_int_equal(out[i].bytes, sizes[i]);
        free(out[i].data);
    }
}

static void a_body_may_be_in_many_pieces(void **state)
{
    struct body out;
    struct net_iov iov[40];
    size_t at = 0;
    (void)state;
    to_chan(&a);
    to_chan(&b);
    fill(&out, &a, 1000000, 1);
    for (int i = 0; i < 40; i++) {
        size_t len = i == 39 ? out.len - at : i % 5 == 0 ? 0 : (size_t)i * 1000;
        iov[i] = (struct net_iov){out.data + at, len};
        at += len;
    }
    assert_int_equal(chan_stream(a.chan, CHAN_DATA, WIRE_TYPE_probe_data,
                         &(struct wire_probe_data){.bytes = (int64_t)out.len}, iov, 40, on_body_done, &out),
        YK_OK);
    memset(iov, 0xff, sizeof iov); /* the list is copied, only the bytes are borrowed */
    run();
    assert_int_equal(b.n_streams, 1);
    assert_memory_equal(b.in[0].data, out.data, out.len);
    assert_int_equal(out.done, 1);
    free(out.data);
}

static void bytes_may_come_one_by_one(void **state)
{
    struct yk_buf buf = {0};
    (void)state;
    to_chan(&a);
    put_message(&buf, 0, 0, WIRE_TYPE_pong, &(struct wire_pong){.seq = 1});
    put_head(&buf, 7, 20);
    put_chunk(&buf, 7, 12, false);
    put_message(&buf, 0, 0, WIRE_TYPE_pong, &(struct wire_pong){.seq = 2});
    put_chunk(&buf, 7, 8, true);
    send_raw(&b, &buf, 1);
    assert_int_equal(a.n_messages, 2);
    assert_true(a.seqs[1] == 2);
    assert_int_equal(a.in[0].done, 1);
    assert_int_equal(a.in[0].err, YK_OK);
    assert_memory_equal(a.in[0].data, "xxxxxxxxxxxxxxxxxxxx", 20);
    buf.len = 0;
    put_head(&buf, 7, 0); /* the id is free again */
    put_chunk(&buf, 7, 0, true);
    send_raw(&b, &buf, buf.len);
    assert_int_equal(a.in[1].done, 1);
    assert_int_equal(a.n_closed, 0);
    yk_buf_free(&buf);
}

/* What goes on the wire, chunks of a stream that follow each other as one: messages overtake chunks, DATA overtakes
 * BULK, equals take turns of 256 KiB. */
static void the_order_on_the_wire(void **state)
{
    struct body out[4];
    char order[256] = "  ";
    size_t turn = 0;
    (void)state;
    net_mem_set_link(net, "b", 100, 1e6); /* the first chunk takes a quarter of a second */
    to_chan(&a);
    to_raw(&b);
    for (int i = 0; i < 4; i++)
        fill(&out[i], &a, 3 * 262144, (uint64_t)i);
    assert_int_equal(stream(&a, CHAN_BULK, &out[0]), YK_OK);
    net_mem_run_for(net, 1000);
    assert_int_equal(stream(&a, CHAN_BULK, &out[1]), YK_OK);
    assert_int_equal(stream(&a, CHAN_DATA, &out[2]), YK_OK);
    assert_int_equal(stream(&a, CHAN_DATA, &out[3]), YK_OK);
    assert_int_equal(pong(&a, 1), YK_OK);
    run();
    size_t at = 0;
    while (at + 16 <= b.raw.len) {
        const uint8_t *h = b.raw.data + at;
        uint32_t len = (uint32_t)(h[4] | h[5] << 8 | h[6] << 16 | h[7] << 24);
        char text[3] = {"mHc"[h[10]], (char)('0' + h[12]), 0};
        if (h[10] != 2 || strcmp(order + strlen(order) - 2, text) != 0) {
            strcat(order, text);
            turn = 0;
        }
        turn += len;
        assert_true(turn <= WIRE_CHUNK_BYTES || h[10] != 2);
        strcat(order, h[11] ? "." : "");
        at += 16 + len;
    }
    assert_int_equal(at, b.raw.len);
    /* 1 was overtaken in the middle of its first turn and goes on with it. */
    assert_string_equal(order + 2, "H1c1m0H3c3H4c4c3c4c3.c4.c1H2c2c1c2c1.c2.");
    for (int i = 0; i < 4; i++) {
        assert_int_equal(out[i].done, 1);
        free(out[i].data);
    }
}

/* A chunk is what the link takes in a tenth of a second: small ones where it is slow, the largest soon where it is not,
 * and a link that has changed is noticed. */
static void chunks_suit_the_link(void **state)
{
    static const struct {
        double bytes_per_s;
        size_t least, most; /* of the last chunks */
    } links[] = {{200e3, 10000, 20000}, {2e6, 131072, 262144}, {2e8, 262144, 262144}, {2e5, 10000, 20000}};
    (void)state;
    to_chan(&a);
    to_raw(&b);
    for (size_t k = 0; k < YK_COUNT(links); k++) {
        struct body out;
        size_t largest = 0;
        net_mem_set_link(net, "b", 100, links[k].bytes_per_s);
        fill(&out, &a, 3 << 20, k);
        b.raw.len = 0;
        assert_int_equal(stream(&a, CHAN_BULK, &out), YK_OK);
        run();
        for (size_t at = 0, from = (size_t)2 << 20; at + 16 <= b.raw.len;) {
            const uint8_t *h = b.raw.data + at;
            size_t len = (size_t)h[4] | (size_t)h[5] << 8 | (size_t)h[6] << 16;
            if (at > from && h[10] == 2)
                largest = YK_MAX(largest, len);
            at += 16 + len;
        }
        if (largest < links[k].least || largest > links[k].most)
            fail_msg("link %zu: a chunk of %zu", k, largest);
        assert_int_equal(out.done, 1);
        free(out.data);
    }
}

/* A peer keeps 64 streams; more wait at the sender, and those of BULK do not keep DATA from beginning. */
static void more_streams_than_a_peer_keeps(void **state)
{
    struct body out[78], urgent;
    (void)state;
    net_mem_set_link(net, "b", 100, 1e7);
    to_chan(&a);
    to_chan(&b);
    for (int i = 0; i < 78; i++) {
        fill(&out[i], &a, 300000, (uint64_t)i);
        assert_int_equal(stream(&a, CHAN_BULK, &out[i]), YK_OK);
    }
    for (int ms = 0; ms < 1000; ms++) { /* ten megabytes: every open stream has sent a chunk */
        net_mem_run_for(net, 1000);
        assert_true(b.n_sinks_open <= 32);
    }
    assert_in_range(b.n_streams, 32, 77);
    fill(&urgent, &a, 300000, 99);
    assert_int_equal(stream(&a, CHAN_DATA, &urgent), YK_OK);
    net_mem_run_for(net, 200000);
    assert_int_equal(urgent.done, 1);
    run();
    assert_int_equal(b.n_closed, 0);
    assert_int_equal(b.n_streams, 79);
    int whole = 0;
    for (int k = 0; k < b.n_streams; k++)
        for (int i = 0; i < 78 && b.in[k].err == YK_OK; i++)
            whole += memcmp(b.in[k].data, out[i].data, 300000) == 0;
    assert_int_equal(whole, 78);
    for (int i = 0; i < 78; i++) {
        assert_int_equal(out[i].done, 1);
        assert_int_equal(out[i].err, YK_OK);
        free(out[i].data);
    }
    free(urgent.data);
}

static void a_message_may_be_taken_and_the_callbacks_handed_over(void **state)
{
    struct side other = {.net = net};
    (void)state;
    to_chan(&a);
    to_chan(&b);
    b.keep_messages = true;
    assert_int_equal(chan_send(a.chan, WIRE_TYPE_leave, &(struct wire_leave){.text = "bye"}), YK_OK);
    run();
    assert_string_equal(b.kept.as.leave.text, "bye");
    other.chan = b.chan;
    chan_set(b.chan, &on, &other);
    assert_int_equal(pong(&a, 4), YK_OK);
    run();
    assert_int_equal(b.n_messages, 1);
    assert_int_equal(other.n_messages, 1);
    assert_true(chan_last_rx_us(other.chan) > 0);
    chan_set(b.chan, &on, &b);
}

static void messages_of_a_newer_minor_are_passed_over(void **state)
{
    struct yk_buf buf = {0};
    (void)state;
    to_chan(&a);
    put(&buf, MAGIC, 3, 999, 0, 0, 0);
    yk_buf_add(&buf, "\x81\xa0\x01", 3);
    put_message(&buf, 0, 0, WIRE_TYPE_pong, &(struct wire_pong){.seq = 1});
    send_raw(&b, &buf, buf.len);
    assert_int_equal(a.n_messages, 1);
    assert_int_equal(a.n_closed, 0);
    yk_buf_free(&buf);
}

/* ---- broken peers ---- */

static void cut_off(const struct yk_buf *buf, yk_err want)
{
    setup(NULL);
    to_chan(&a);
    to_raw(&b);
    send_raw(&b, buf, buf->len);
    run();
    assert_int_equal(a.n_closed, 1);
    assert_int_equal(a.closed_err, want);
    assert_true(a.closed_why[0]);
    assert_true(b.raw_ended);
    teardown(NULL);
}

static void bad_frames_cut_off(void **state)
{
    static const struct {
        uint32_t magic, len;
        int type, kind, flags;
        uint32_t id;
        yk_err want;
    } bad[] = {
        {0x20544547, 16, 4, 0, 0, 0, YK_FORMAT}, /* "GET " */
        {MAGIC + 1, 16, 4, 0, 0, 0, YK_FORMAT},
        {MAGIC, 16, 4, 3, 0, 0, YK_FORMAT},
        {MAGIC, 16, 4, 255, 0, 0, YK_FORMAT},
        {MAGIC, 0, 4, 0, 0, 0, YK_FORMAT},
        {MAGIC, 16, 4, 0, 1, 0, YK_FORMAT},
        {MAGIC, 16, 4, 0, 2, 0, YK_FORMAT},
        {MAGIC, 16, 4, 0, 0, 1, YK_FORMAT},
        {MAGIC, 16, 51, 1, 0, 0, YK_FORMAT},
        {MAGIC, 16, 999, 1, 0, 3, YK_UNSUPPORTED},
        {MAGIC, 16, 5, 0, 0, 0, YK_FORMAT},
        {MAGIC, 16, 0, 2, 1, 5, YK_FORMAT}, /* no such stream */
        {MAGIC, WIRE_CONTROL_LIMIT + 1, 4, 0, 0, 0, YK_LIMIT},
        {MAGIC, UINT32_MAX, 4, 0, 0, 0, YK_LIMIT},
        {MAGIC, WIRE_CONTROL_LIMIT + 1, 51, 1, 0, 1, YK_LIMIT},
        {MAGIC, WIRE_CHUNK_BYTES + 1, 0, 2, 1, 1, YK_LIMIT},
    };
    (void)state;
    for (size_t i = 0; i < YK_COUNT(bad); i++) {
        struct yk_buf buf = {0};
        put(&buf, bad[i].magic, bad[i].len, bad[i].type, bad[i].kind, bad[i].flags, bad[i].id);
        memset(yk_buf_room(&buf, 16), 0xc1, 16);
        cut_off(&buf, bad[i].want);
        yk_buf_free(&buf);
    }
}

static void streams_of_the_wrong_length_cut_off(void **state)
{
    static const struct {
        int64_t bytes;
        size_t chunks[3];
        int last; /* index of the chunk that says so, -1: none */
        yk_err want;
    } bad[] = {
        {10, {11}, 0, YK_LIMIT},     /* too long */
        {10, {5, 6}, 1, YK_LIMIT},   /* too long by the second */
        {10, {9}, 0, YK_FORMAT},     /* too short */
        {10, {10}, -1, YK_FORMAT},   /* whole, but not the last */
        {10, {10, 1}, 1, YK_FORMAT}, /* and more behind */
        {0, {1}, 0, YK_LIMIT},
    };
    struct yk_buf buf = {0};
    (void)state;
    for (size_t i = 0; i < YK_COUNT(bad); i++) {
        buf.len = 0;
        put_head(&buf, 1, bad[i].bytes);
        for (int k = 0; k < 3 && bad[i].chunks[k]; k++)
            put_chunk(&buf, 1, bad[i].chunks[k], k == bad[i].last);
        cut_off(&buf, bad[i].want);
    }
    buf.len = 0;
    put_head(&buf, 1, 10);
    put_chunk(&buf, 1, 0, false); /* an empty chunk goes nowhere */
    cut_off(&buf, YK_FORMAT);
    buf.len = 0;
    put_head(&buf, 1, 10);
    put_head(&buf, 1, 10); /* begins twice */
    cut_off(&buf, YK_FORMAT);
    buf.len = 0;
    for (uint32_t i = 1; i <= 65; i++)
        put_head(&buf, i, 10); /* more at once than anybody needs */
    cut_off(&buf, YK_LIMIT);
    yk_buf_free(&buf);
}

static void a_refused_head_or_message_cuts_off(void **state)
{
    (void)state;
    struct body out;
    to_chan(&a);
    to_chan(&b);
    fill(&out, &a, 1000000, 1);
    b.refuse_stream = YK_AUTH;
    assert_int_equal(stream(&a, CHAN_DATA, &out), YK_OK);
    run();
    assert_int_equal(b.n_closed, 1);
    assert_int_equal(b.closed_err, YK_AUTH);
    assert_int_equal(a.n_closed, 1);
    assert_int_equal(out.done, 1);
    free(out.data);
    teardown(NULL);
    setup(NULL);
    to_chan(&a);
    to_chan(&b);
    b.refuse_message = YK_STALE;
    assert_int_equal(pong(&a, 1), YK_OK);
    assert_int_equal(pong(&a, 2), YK_OK);
    run();
    assert_int_equal(b.n_messages, 1);
    assert_int_equal(b.closed_err, YK_STALE);
    assert_int_equal(a.closed_err, YK_CLOSED);
}

static void the_limit_rises_with_trust(void **state)
{
    size_t n = WIRE_CONTROL_LIMIT;
    char *text = malloc(WIRE_MESSAGE_LIMIT + 1);
    (void)state;
    to_chan(&a);
    to_chan(&b);
    memset(text, 'x', WIRE_MESSAGE_LIMIT);
    text[WIRE_MESSAGE_LIMIT] = '\0';
    struct wire_leave m = {.text = text + WIRE_MESSAGE_LIMIT - n};
    assert_int_equal(chan_send(a.chan, WIRE_TYPE_leave, &m), YK_LIMIT); /* with its key it is longer */
    m.text += 20;
    assert_int_equal(chan_send(a.chan, WIRE_TYPE_leave, &m), YK_OK);
    run();
    assert_int_equal(b.n_messages, 1);
    chan_trust(a.chan);
    chan_trust(b.chan);
    m.text = text + 20;
    assert_int_equal(chan_send(a.chan, WIRE_TYPE_leave, &m), YK_OK);
    m.text = text;
    assert_int_equal(chan_send(a.chan, WIRE_TYPE_leave, &m), YK_LIMIT);
    struct body out;
    fill(&out, &a, 1, 1);
    struct net_iov iov = {out.data, 1};
    assert_int_equal(chan_stream(a.chan, CHAN_DATA, WIRE_TYPE_leave, &m, &iov, 1, on_body_done, &out), YK_LIMIT);
    run();
    assert_int_equal(out.done, 0); /* a refused stream leaves the body with its owner */
    assert_int_equal(b.n_messages, 2);
    assert_int_equal(b.n_closed, 0);
    free(out.data);
    free(text);
}

static void a_peer_that_does_not_read_makes_us_busy(void **state)
{
    char text[60001];
    int sent = 0;
    yk_err err;
    (void)state;
    to_chan(&a); /* b's connection is open but nobody reads */
    memset(text, 'x', sizeof text - 1);
    text[sizeof text - 1] = '\0';
    while ((err = chan_send(a.chan, WIRE_TYPE_leave, &(struct wire_leave){.text = text})) == YK_OK) {
        assert_true(++sent < 1000);
        net_mem_run_for(net, 1000);
    }
    assert_int_equal(err, YK_BUSY);
    assert_true((size_t)sent * sizeof text >= ((size_t)8 << 20));
    to_chan(&b); /* now it does */
    run();
    assert_int_equal(b.n_messages, sent);
    assert_int_equal(pong(&a, 1), YK_OK);
    run();
    assert_int_equal(b.n_messages, sent + 1);
}

static void a_peer_that_vanishes_mid_stream(void **state)
{
    struct body out[3], in;
    struct yk_buf buf = {0};
    (void)state;
    net_mem_set_link(net, "b", 1000, 1e6);
    to_chan(&a);
    for (int i = 0; i < 3; i++) {
        fill(&out[i], &a, 1000000, 1);
        assert_int_equal(stream(&a, CHAN_DATA, &out[i]), YK_OK);
    }
    fill(&in, &a, 1, 1);
    put_head(&buf, 1, 100);
    put_chunk(&buf, 1, 40, false);
    put_head(&buf, 2, 100);
    bool sent = false;
    net_send(b.conn, &(struct net_iov){buf.data, buf.len}, 1, on_raw_sent, &sent);
    net_mem_run_for(net, 100000);
    assert_true(sent);
    assert_int_equal(a.n_streams, 2);
    net_conn_close(b.conn);
    b.conn = NULL;
    run();
    assert_int_equal(a.n_closed, 1);
    assert_int_equal(a.closed_err, YK_CLOSED);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(out[i].done, 1);
        assert_int_equal(out[i].err, YK_CLOSED);
        free(out[i].data);
    }
    for (int i = 0; i < 2; i++) {
        assert_int_equal(a.in[i].done, 1);
        assert_int_equal(a.in[i].err, YK_CLOSED);
    }
    assert_int_equal(pong(&a, 1), YK_CLOSED);
    assert_int_equal(stream(&a, CHAN_DATA, &in), YK_CLOSED);
    free(in.data);
    yk_buf_free(&buf);
}

/* ---- closing ---- */

static void closing_ends_what_was_borrowed(void **state)
{
    struct body out[2];
    (void)state;
    net_mem_set_link(net, "b", 100, 1e6);
    to_chan(&a);
    to_chan(&b);
    for (int i = 0; i < 2; i++) {
        fill(&out[i], &a, 5000000, 1);
        assert_int_equal(stream(&a, CHAN_DATA, &out[i]), YK_OK);
    }
    assert_int_equal(pong(&a, 1), YK_OK);
    net_mem_run_for(net, 1);
    chan_close(a.chan, false);
    a.chan = NULL;
    for (int i = 0; i < 2; i++) {
        assert_int_equal(out[i].done, 1);
        assert_int_equal(out[i].err, YK_CLOSED);
        free(out[i].data); /* nobody may look at it any more */
    }
    assert_int_equal(a.n_closed, 0);
    run();
    assert_int_equal(b.n_closed, 1);
}

static void closing_inside_any_callback(void **state)
{
    (void)state;
    for (int where = IN_MESSAGE; where <= IN_CLOSED; where++)
        for (int flush = 0; flush < 2; flush++) {
            struct body out[3], back;
            if (where != IN_MESSAGE || flush) {
                teardown(NULL);
                setup(NULL);
            }
            to_chan(&a);
            to_chan(&b);
            for (int i = 0; i < 3; i++)
                fill(&out[i], &a, 600000, 1);
            fill(&back, &b, 600000, 2);
            b.close_in = where;
            b.flush = flush;
            stream(&a, CHAN_DATA, &out[0]);
            stream(&a, CHAN_DATA, &out[1]);
            pong(&a, 1);
            pong(&a, 2);
            stream(&b, CHAN_DATA, &back);
            pong(&b, 3);
            net_mem_run_for(net, 100000);
            if (where == IN_CLOSED)
                end_side(&a);
            run();
            assert_null(b.chan);
            assert_int_equal(b.n_closed, where == IN_CLOSED);
            assert_int_equal(out[0].done + out[1].done, 2);
            assert_int_equal(back.done, 1);
            for (int i = 0; i < 3; i++)
                free(out[i].data);
            free(back.data);
        }
}

static void a_flush_delivers_and_is_bounded(void **state)
{
    (void)state;
    to_chan(&a);
    to_chan(&b);
    for (int i = 0; i < 5; i++)
        pong(&a, i);
    chan_close(a.chan, true);
    a.chan = NULL;
    run();
    assert_int_equal(b.n_messages, 5);
    assert_int_equal(b.n_closed, 1);
    assert_int_equal(b.closed_err, YK_CLOSED);
    teardown(NULL);
    /* A refusal is sent, flushed, and the callback fails: it still goes out. */
    setup(NULL);
    to_chan(&a);
    to_chan(&b);
    b.close_in = IN_MESSAGE;
    b.flush = true;
    b.refuse_message = YK_AUTH;
    pong(&b, 77);
    pong(&b, 78);
    pong(&a, 1);
    run();
    assert_int_equal(a.n_messages, 2);
    assert_int_equal(b.n_closed, 0);
    teardown(NULL);
    /* Nobody reads: the memory is given back after a second all the same (the sanitizer would tell). */
    setup(NULL);
    to_chan(&a);
    char text[60001];
    memset(text, 'x', sizeof text - 1);
    text[sizeof text - 1] = '\0';
    for (int i = 0; i < 40; i++)
        assert_int_equal(chan_send(a.chan, WIRE_TYPE_leave, &(struct wire_leave){.text = text}), YK_OK);
    chan_close(a.chan, true);
    a.chan = NULL;
    int64_t before_us = net_now_us(net);
    net_mem_run_for(net, 1100000);
    assert_true(net_now_us(net) - before_us >= 1000000);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(messages_keep_their_order),
        TEST(streams_arrive_whole),
        TEST(a_body_may_be_in_many_pieces),
        TEST(bytes_may_come_one_by_one),
        TEST(the_order_on_the_wire),
        TEST(chunks_suit_the_link),
        TEST(more_streams_than_a_peer_keeps),
        TEST(a_message_may_be_taken_and_the_callbacks_handed_over),
        TEST(messages_of_a_newer_minor_are_passed_over),
        cmocka_unit_test(bad_frames_cut_off),
        cmocka_unit_test(streams_of_the_wrong_length_cut_off),
        TEST(a_refused_head_or_message_cuts_off),
        TEST(the_limit_rises_with_trust),
        TEST(a_peer_that_does_not_read_makes_us_busy),
        TEST(a_peer_that_vanishes_mid_stream),
        TEST(closing_ends_what_was_borrowed),
        TEST(closing_inside_any_callback),
        TEST(a_flush_delivers_and_is_bounded),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
