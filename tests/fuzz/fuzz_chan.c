/* Bytes of a peer into a channel over the net in memory. Every sink must end exactly once, whatever comes. The length
 * chooses trust, the size of the pieces and what the callbacks do. */
#include "common/chan.h"

#include <stdlib.h>
#include <string.h>

struct sink {
    struct side *side;
    uint8_t *buf;
    int done;
};

struct side {
    struct chan *chan;
    struct sink sinks[256];
    int n;
    int closed, mode;
};

static struct net_conn *dialled, *accepted;

static void on_sink(void *arg, yk_err err)
{
    struct sink *s = arg;
    (void)err;
    if (s->done++)
        abort();
    free(s->buf);
    if (s->side->mode & 8) {
        chan_close(s->side->chan, true);
        s->side->chan = NULL;
    }
}

static yk_err on_message(void *arg, struct chan *c, struct wire_msg *msg)
{
    struct side *s = arg;
    if (msg->type == WIRE_TYPE_ping)
        chan_send(c, WIRE_TYPE_pong, &(struct wire_pong){.seq = msg->as.ping.seq});
    if (msg->type == WIRE_TYPE_leave && s->mode & 4) {
        chan_close(c, true);
        s->chan = NULL;
    }
    return YK_OK;
}

static yk_err on_stream(void *arg, struct chan *c, struct wire_msg *head, struct chan_sink *sink)
{
    struct side *s = arg;
    (void)c;
    int64_t bytes = head->type == WIRE_TYPE_microbatch ? head->as.microbatch.body_bytes : 64;
    if (bytes < 0 || bytes > 1 << 20)
        return YK_LIMIT;
    if (s->n == (int)YK_COUNT(s->sinks))
        return YK_BUSY;
    struct sink *k = &s->sinks[s->n++];
    *k = (struct sink){.side = s, .buf = malloc((size_t)bytes + 1)}; /* + 1: never NULL */
    *sink = (struct chan_sink){k->buf, (size_t)bytes, on_sink, k};
    return YK_OK;
}

static void on_closed(void *arg, struct chan *c, yk_err err, const char *why)
{
    struct side *s = arg;
    (void)c;
    if (s->closed++ || err == YK_OK || !why[0])
        abort();
}

static const struct chan_on on = {on_message, on_stream, on_closed};

static void on_accept(void *arg, struct net_conn *conn)
{
    (void)arg;
    accepted = conn;
}

static void on_dial(void *arg, yk_err err, struct net_conn *conn)
{
    (void)arg, (void)err;
    dialled = conn;
}

static void on_sent(void *arg, yk_err err, size_t n)
{
    (void)err, (void)n;
    *(bool *)arg = true;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct net *net;
    struct net_listener *listener;
    struct side s = {0};
    bool sent = true;
    if (net_mem_open(1, &net) || net_listen(net, "mem://x", on_accept, NULL, &listener, NULL))
        abort();
    net_dial(net, "mem://x", 1000, on_dial, NULL);
    net_mem_run_for(net, 10);
    /* The length picks the mode: the bytes stay what a peer would send. */
    s.mode = (int)(size & 15);
    s.chan = chan_open(accepted, &on, &s);
    if (s.mode & 1)
        chan_trust(s.chan);
    size_t step = s.mode & 2 ? 7 : size + 1;
    for (size_t at = 0; at < size && sent; at += step) {
        sent = false;
        net_send(dialled, &(struct net_iov){data + at, YK_MIN(step, size - at)}, 1, on_sent, &sent);
        net_mem_run_for(net, 10);
    }
    net_conn_close(dialled);
    net_mem_run_for(net, 2000000);
    chan_close(s.chan, false);
    for (int i = 0; i < s.n; i++)
        if (s.sinks[i].done != 1)
            abort();
    net_listener_close(listener);
    net_close(net);
    return 0;
}
