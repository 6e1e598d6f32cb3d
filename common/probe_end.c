#include "common/probe_end.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PIECE_MAX ((int64_t)WIRE_CHUNK_BYTES)
#define PIECE_MIN 16384
#define WINDOW_FIRST 65536
#define WINDOW_MAX ((int64_t)64 << 20)
#define MARKS 2048

struct mark {
    int64_t at_us, bytes;
};

struct probe_end {
    struct net *net;
    struct chan *chan;
    int64_t (*cpu)(void);
    const struct probe_end_on *on;
    void *arg;
    uint8_t *scratch; /* what is sent and where it is received: nobody reads it */

    bool sending, send_over; /* over: no more pieces, some may be unacknowledged */
    int64_t window_max, window, flying, sent, budget_bytes, deadline_us, base_us;
    struct mark asked[MARKS]; /* when the pieces that fly were sent */
    int first_asked, n_asked;

    bool receiving;
    char dir[8];
    struct mark marks[MARKS];
    int n_marks, skip, skipped;
    int64_t got, cpu_us;
};

static void send_more(struct probe_end *e);

/* ---- rates ---- */

static void add_mark(struct probe_end *e, int64_t bytes)
{
    e->got += bytes;
    if (e->n_marks && e->skipped < e->skip) { /* coarser and coarser on a fast link */
        e->skipped++;
        return;
    }
    e->skipped = 0;
    if (e->n_marks == MARKS) {
        for (int i = 0; i < MARKS / 2; i++)
            e->marks[i] = e->marks[2 * i];
        e->n_marks = MARKS / 2;
        e->skip = 2 * e->skip + 1;
    }
    e->marks[e->n_marks++] = (struct mark){net_now_us(e->net), e->got};
}

/* From the marks behind the first third of the time, when the window has grown. */
double probe_end_rate(const struct probe_end *e)
{
    if (e->n_marks < 2)
        return 0;
    const struct mark *last = &e->marks[e->n_marks - 1], *from = &e->marks[0];
    int64_t warm = from->at_us + (last->at_us - from->at_us) / 3;
    for (int i = 1; i < e->n_marks - 1 && from->at_us < warm; i++)
        from = &e->marks[i];
    int64_t us = last->at_us - from->at_us;
    return us > 0 ? (double)(last->bytes - from->bytes) * 1e6 / (double)us : 0;
}

void probe_end_receive(struct probe_end *e, const char *dir)
{
    snprintf(e->dir, sizeof e->dir, "%s", dir);
    e->receiving = true;
    e->n_marks = e->skip = e->skipped = 0;
    e->got = 0;
    e->cpu_us = e->cpu();
}

void probe_end_send(struct probe_end *e, int64_t budget_ms, int64_t budget_bytes)
{
    e->sending = true;
    e->send_over = false;
    e->window = WINDOW_FIRST;
    e->flying = e->sent = 0;
    e->base_us = INT64_MAX;
    e->n_asked = e->first_asked = 0;
    e->budget_bytes = budget_bytes;
    e->deadline_us = net_now_us(e->net) + budget_ms * 1000;
    e->cpu_us = e->cpu();
    send_more(e);
}

static void send_more(struct probe_end *e)
{
    while (e->sending && !e->send_over) {
        if (e->sent >= e->budget_bytes || net_now_us(e->net) >= e->deadline_us) {
            e->send_over = true;
            break;
        }
        int64_t piece = YK_MIN(YK_MAX(e->window / 8, PIECE_MIN), PIECE_MAX);
        if (e->flying && (e->flying + piece > e->window || e->n_asked == MARKS))
            break;
        struct wire_probe_data head = {.bytes = piece};
        struct net_iov iov = {e->scratch, (size_t)piece};
        if (chan_stream(e->chan, CHAN_DATA, WIRE_TYPE_probe_data, &head, &iov, 1, NULL, NULL) != YK_OK)
            return; /* `closed` comes */
        e->asked[(e->first_asked + e->n_asked++) % MARKS] = (struct mark){net_now_us(e->net), piece};
        e->flying += piece;
        e->sent += piece;
    }
    if (e->sending && e->send_over && e->flying == 0) {
        e->sending = false;
        struct wire_probe_sum end = {.dir = "end", .bytes = e->sent};
        chan_send(e->chan, WIRE_TYPE_probe_sum, &end);
    }
}

static yk_err on_ack(struct probe_end *e, int64_t bytes)
{
    if (!e->n_asked || bytes != e->asked[e->first_asked].bytes)
        return YK_FORMAT;
    int64_t took = net_now_us(e->net) - e->asked[e->first_asked].at_us;
    e->first_asked = (e->first_asked + 1) % MARKS;
    e->n_asked--;
    e->flying -= bytes;
    e->base_us = YK_MIN(e->base_us, took);
    if (took < 4 * e->base_us + 20000)
        e->window = YK_MIN(e->window + bytes, e->window_max);
    send_more(e);
    return YK_OK;
}

int64_t probe_end_sent(const struct probe_end *e)
{
    return e->sent;
}

double probe_end_cpu_ns(const struct probe_end *e, int64_t bytes)
{
    return bytes > 0 ? (double)(e->cpu() - e->cpu_us) * 1e3 / (double)bytes : 0;
}

/* ---- the channel ---- */

struct piece {
    struct probe_end *end;
    int64_t bytes;
};

static void on_piece(void *arg, yk_err err)
{
    struct piece p = *(struct piece *)arg;
    struct probe_end *e = p.end;
    free(arg);
    if (err)
        return;
    /* While both ways are measured, only what came while we sent ourselves counts. */
    if (strcmp(e->dir, "both") != 0 || e->sending)
        add_mark(e, p.bytes);
    struct wire_credit credit = {.n = p.bytes};
    chan_send(e->chan, WIRE_TYPE_credit, &credit);
}

/* Of the end that was dialled. */
static yk_err serve(struct probe_end *e, const struct wire_msg *m)
{
    if (m->type == WIRE_TYPE_probe_start) {
        const struct wire_probe_start *w = &m->as.probe_start;
        bool to = !strcmp(w->dir, "to"), from = !strcmp(w->dir, "from"), both = !strcmp(w->dir, "both");
        if (e->sending || (!to && !from && !both) || w->budget_ms < 1 || w->budget_ms > PROBE_END_BUDGET_MS ||
            w->budget_bytes < 1)
            return YK_FORMAT;
        probe_end_receive(e, w->dir);
        if (!to)
            probe_end_send(e, w->budget_ms, w->budget_bytes);
    } else if (m->type == WIRE_TYPE_probe_sum && !strcmp(m->as.probe_sum.dir, "end")) {
        int64_t span = e->n_marks ? e->marks[e->n_marks - 1].at_us - e->marks[0].at_us : 0;
        struct wire_probe_sum sum = {.dir = e->dir,
            .bytes = (int64_t)(probe_end_rate(e) * (double)span / 1e6),
            .ms = (double)span / 1e3,
            .cpu_ns_per_byte = probe_end_cpu_ns(e, e->got)};
        chan_send(e->chan, WIRE_TYPE_probe_sum, &sum);
    }
    return YK_OK;
}

static yk_err on_message(void *arg, struct chan *c, struct wire_msg *m)
{
    struct probe_end *e = arg;
    if (m->type == WIRE_TYPE_ping) {
        struct wire_pong pong = {.seq = m->as.ping.seq};
        chan_send(c, WIRE_TYPE_pong, &pong);
        return YK_OK;
    }
    if (m->type == WIRE_TYPE_credit)
        return on_ack(e, m->as.credit.n);
    return e->on->message ? e->on->message(e->arg, m) : serve(e, m);
}

static yk_err on_stream(void *arg, struct chan *c, struct wire_msg *m, struct chan_sink *sink)
{
    (void)c;
    struct probe_end *e = arg;
    if (m->type != WIRE_TYPE_probe_data || !e->receiving)
        return YK_FORMAT;
    if (m->as.probe_data.bytes < 1 || m->as.probe_data.bytes > PIECE_MAX)
        return YK_LIMIT;
    struct piece *p = yk_xalloc(sizeof *p);
    *p = (struct piece){e, m->as.probe_data.bytes};
    *sink = (struct chan_sink){e->scratch, (size_t)p->bytes, on_piece, p};
    return YK_OK;
}

static void on_closed(void *arg, struct chan *c, yk_err err, const char *why)
{
    (void)c;
    struct probe_end *e = arg;
    e->on->closed(e->arg, err, why);
}

static const struct chan_on on_end = {on_message, on_stream, on_closed};

/* ---- life ---- */

struct probe_end *probe_end_open(
    struct net *net, struct chan *c, int64_t (*cpu_us)(void), const struct probe_end_on *on, void *arg)
{
    struct probe_end *e = yk_xalloc(sizeof *e);
    e->net = net;
    e->chan = c;
    e->cpu = cpu_us;
    e->on = on;
    e->arg = arg;
    e->window_max = WINDOW_MAX;
    e->scratch = yk_xalloc((size_t)PIECE_MAX);
    chan_trust(c);
    chan_set(c, &on_end, e);
    return e;
}

void probe_end_close(struct probe_end *e)
{
    if (!e)
        return;
    chan_close(e->chan, false);
    free(e->scratch);
    free(e);
}

void probe_end_room(struct probe_end *e, int64_t bytes)
{
    e->window_max = YK_MIN(YK_MAX(bytes, (int64_t)WINDOW_FIRST), WINDOW_MAX);
}

struct chan *probe_end_chan(struct probe_end *e)
{
    return e->chan;
}
