#include "agent/link.h"

#include "agent/control.h"
#include "agent/machine.h"
#include "agent/peer.h"
#include "common/hash.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PIECE_MAX ((int64_t)WIRE_CHUNK_BYTES)
#define PIECE_MIN 16384
#define WINDOW_FIRST 65536
#define WINDOW_MAX ((int64_t)64 << 20)
#define MARKS 2048
#define PINGS 9 /* the first warms up */
#define BUDGET_MS 200
#define BUDGET_MS_MAX 5000
#define BUDGET_BYTES ((int64_t)64 << 20)
#define GRACE_US 5000000
#define MAX_SERVED 8
#define MAX_WAITING 256
#define MAX_TICKETS 1024

struct mark {
    int64_t at_us, bytes;
};

/* One end of a probe connection; both ends may send and receive. */
struct end {
    struct end *next;
    struct agent *agent;
    struct chan *chan;
    struct net_timer *timer;
    uint8_t *scratch; /* what is sent and where it is received: nobody reads it */

    bool sending, send_over; /* over: no more pieces, some may be unacknowledged */
    int64_t window, flying, sent, budget_bytes, deadline_us, base_us;
    struct mark asked[MARKS]; /* when the pieces that fly were sent */
    int first_asked, n_asked;

    bool receiving;
    char dir[8];
    struct mark marks[MARKS];
    int n_marks, skip, skipped;
    int64_t got, cpu_us;

    struct prober *prober; /* the dialling end */
};

enum phase { PHASE_PING, PHASE_TO, PHASE_FROM, PHASE_BOTH };
static const char *const dirs[] = {"", "to", "from", "both"};

struct prober {
    struct prober *next;
    struct agent *agent;
    struct wire_msg msg; /* the request */
    const struct wire_probe *w;
    struct core_dial *dial;
    struct end *end;
    struct net_timer *timer;
    enum phase phase;
    char url[200];
    int pings;
    int64_t ping_us, rtt_us[PINGS];
    bool mine, theirs, summed; /* of PHASE_BOTH: what has ended */
    double there_bytes_per_s;  /* of what we sent */
    struct wire_probe_result result;
};

struct ticket {
    struct ticket *next;
    uint8_t bytes[32];
    size_t len;
    char peer[33];
    int64_t until_us;
};

struct link_state {
    struct prober *probers; /* the first one runs */
    int n_probers;
    struct end *served;
    int n_served;
    struct ticket *tickets;
    int n_tickets;
};

static void send_more(struct end *e);
static void phase_go(struct prober *p);
static void prober_end(struct prober *p, yk_err err, const char *text);

/* ---- rates ---- */

static void add_mark(struct end *e, int64_t bytes)
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
    e->marks[e->n_marks++] = (struct mark){net_now_us(e->agent->net), e->got};
}

/* From the marks behind the first third of the time, when the window has grown. */
static double rate(const struct end *e)
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

static void begin_receiving(struct end *e, const char *dir)
{
    snprintf(e->dir, sizeof e->dir, "%s", dir);
    e->receiving = true;
    e->n_marks = e->skip = e->skipped = 0;
    e->got = 0;
    e->cpu_us = machine_cpu_us();
}

static void begin_sending(struct end *e, int64_t budget_ms, int64_t budget_bytes)
{
    e->sending = true;
    e->send_over = false;
    e->window = WINDOW_FIRST;
    e->flying = e->sent = 0;
    e->base_us = INT64_MAX;
    e->n_asked = e->first_asked = 0;
    e->budget_bytes = budget_bytes;
    e->deadline_us = net_now_us(e->agent->net) + budget_ms * 1000;
    e->cpu_us = machine_cpu_us();
    send_more(e);
}

static void send_more(struct end *e)
{
    while (e->sending && !e->send_over) {
        if (e->sent >= e->budget_bytes || net_now_us(e->agent->net) >= e->deadline_us) {
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
        e->asked[(e->first_asked + e->n_asked++) % MARKS] = (struct mark){net_now_us(e->agent->net), piece};
        e->flying += piece;
        e->sent += piece;
    }
    if (e->sending && e->send_over && e->flying == 0) {
        e->sending = false;
        struct wire_probe_sum end = {.dir = "end", .bytes = e->sent};
        chan_send(e->chan, WIRE_TYPE_probe_sum, &end);
    }
}

static yk_err on_ack(struct end *e, int64_t bytes)
{
    if (!e->n_asked || bytes != e->asked[e->first_asked].bytes)
        return YK_FORMAT;
    int64_t took = net_now_us(e->agent->net) - e->asked[e->first_asked].at_us;
    e->first_asked = (e->first_asked + 1) % MARKS;
    e->n_asked--;
    e->flying -= bytes;
    e->base_us = YK_MIN(e->base_us, took);
    if (took < 4 * e->base_us + 20000)
        e->window = YK_MIN(e->window + bytes, WINDOW_MAX);
    send_more(e);
    return YK_OK;
}

/* ---- both ends' channel ---- */

static void end_free(struct end *e)
{
    struct link_state *l = e->agent->link;
    struct end **at = &l->served;
    while (*at && *at != e)
        at = &(*at)->next;
    if (*at) {
        *at = e->next;
        l->n_served--;
    }
    net_timer_cancel(e->timer);
    chan_close(e->chan, false);
    free(e->scratch);
    free(e);
}

static struct end *end_new(struct agent *a, struct chan *c)
{
    struct end *e = yk_xalloc(sizeof *e);
    e->agent = a;
    e->chan = c;
    e->scratch = yk_xalloc((size_t)PIECE_MAX);
    chan_trust(c);
    return e;
}

struct piece {
    struct end *end;
    int64_t bytes;
};

static void on_piece(void *arg, yk_err err)
{
    struct piece p = *(struct piece *)arg;
    struct end *e = p.end;
    free(arg);
    if (err)
        return;
    /* While both ways are measured, only what came while we sent ourselves counts. */
    if (strcmp(e->dir, "both") != 0 || e->sending)
        add_mark(e, p.bytes);
    struct wire_credit credit = {.n = p.bytes};
    chan_send(e->chan, WIRE_TYPE_credit, &credit);
}

static yk_err served_message(struct end *e, struct wire_msg *m);
static yk_err prober_message(struct prober *p, struct wire_msg *m);

static yk_err on_message(void *arg, struct chan *c, struct wire_msg *m)
{
    struct end *e = arg;
    if (m->type == WIRE_TYPE_ping) {
        struct wire_pong pong = {.seq = m->as.ping.seq};
        chan_send(c, WIRE_TYPE_pong, &pong);
        return YK_OK;
    }
    if (m->type == WIRE_TYPE_credit)
        return on_ack(e, m->as.credit.n);
    return e->prober ? prober_message(e->prober, m) : served_message(e, m);
}

static yk_err on_stream(void *arg, struct chan *c, struct wire_msg *m, struct chan_sink *sink)
{
    (void)c;
    struct end *e = arg;
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
    struct end *e = arg;
    if (e->prober)
        prober_end(e->prober, err, why);
    else
        end_free(e);
}

static const struct chan_on on_end = {on_message, on_stream, on_closed};

/* ---- the end that was dialled ---- */

static yk_err served_message(struct end *e, struct wire_msg *m)
{
    if (m->type == WIRE_TYPE_probe_start) {
        const struct wire_probe_start *w = &m->as.probe_start;
        bool to = !strcmp(w->dir, "to"), from = !strcmp(w->dir, "from"), both = !strcmp(w->dir, "both");
        if (e->sending || (!to && !from && !both) || w->budget_ms < 1 || w->budget_ms > BUDGET_MS_MAX ||
            w->budget_bytes < 1)
            return YK_FORMAT;
        begin_receiving(e, w->dir);
        if (!to)
            begin_sending(e, w->budget_ms, w->budget_bytes);
    } else if (m->type == WIRE_TYPE_probe_sum && !strcmp(m->as.probe_sum.dir, "end")) {
        int64_t span = e->n_marks ? e->marks[e->n_marks - 1].at_us - e->marks[0].at_us : 0;
        double r = rate(e);
        struct wire_probe_sum sum = {.dir = e->dir,
            .bytes = (int64_t)(r * (double)span / 1e6),
            .ms = (double)span / 1e3,
            .cpu_ns_per_byte = e->got > 0 ? (double)(machine_cpu_us() - e->cpu_us) * 1e3 / (double)e->got : 0};
        chan_send(e->chan, WIRE_TYPE_probe_sum, &sum);
    }
    return YK_OK;
}

static void on_served_timer(void *arg)
{
    struct end *e = arg;
    e->timer = NULL;
    end_free(e);
}

bool link_adopt(struct agent *a, struct chan *c, const struct wire_hello *h)
{
    struct link_state *l = a->link;
    int64_t now = net_now_us(a->net);
    for (struct ticket **at = &l->tickets; *at;) {
        struct ticket *t = *at;
        bool gone = t->until_us < now;
        bool match = !gone && h->ticket.len == t->len && hash_same(h->ticket.data, t->bytes, t->len) &&
                     (!t->peer[0] || !strcmp(h->agent, t->peer));
        if (!gone && !match) {
            at = &t->next;
            continue;
        }
        *at = t->next; /* one use */
        free(t);
        l->n_tickets--;
        if (!match)
            continue;
        if (l->n_served >= MAX_SERVED) {
            peer_refuse(c, YK_BUSY, "too many probes at once");
            return true;
        }
        struct end *e = end_new(a, c);
        e->next = l->served;
        l->served = e;
        l->n_served++;
        chan_set(c, &on_end, e);
        e->timer = net_timer(a->net, 4 * BUDGET_MS_MAX * 1000 + GRACE_US, on_served_timer, e);
        return true;
    }
    return false;
}

void link_expect(struct agent *a, const struct wire_expect *w)
{
    struct link_state *l = a->link;
    if (strcmp(w->purpose, "probe") != 0 || w->ticket.len < 16 || w->ticket.len > 32 || l->n_tickets >= MAX_TICKETS)
        return; /* edges bring their tickets with load */
    struct ticket *t = yk_xalloc(sizeof *t);
    memcpy(t->bytes, w->ticket.data, w->ticket.len);
    t->len = w->ticket.len;
    snprintf(t->peer, sizeof t->peer, "%s", w->peer);
    t->until_us = net_now_us(a->net) + YK_MIN(YK_MAX(w->ttl_ms, 1000), 600000) * 1000;
    t->next = l->tickets;
    l->tickets = t;
    l->n_tickets++;
    peer_retry(a);
}

/* ---- the end that dials ---- */

static int compare(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return x < y ? -1 : x > y;
}

static void prober_free(struct prober *p)
{
    core_dial_cancel(p->dial);
    net_timer_cancel(p->timer);
    if (p->end)
        end_free(p->end);
    wire_free(&p->msg);
    free(p);
}

static void prober_start(struct prober *p);

static void prober_end(struct prober *p, yk_err err, const char *text)
{
    struct agent *a = p->agent;
    struct link_state *l = a->link;
    struct wire_probe_result *r = &p->result;
    r->id = p->w->id;
    r->peer = p->w->peer;
    r->url = p->url;
    r->error = err ? yk_err_name(err) : "";
    r->text = err ? text : "";
    if (err)
        log_info("probe of agent %s: %s", p->w->peer, text);
    control_send(a, WIRE_TYPE_probe_result, r);
    l->probers = p->next;
    l->n_probers--;
    prober_free(p);
    if (l->probers)
        prober_start(l->probers);
}

static void on_timer(void *arg)
{
    struct prober *p = arg;
    p->timer = NULL;
    prober_end(p, YK_TIMEOUT, "the probe took too long");
}

static void ping(struct prober *p)
{
    struct wire_ping w = {.seq = p->pings};
    p->ping_us = net_now_us(p->agent->net);
    chan_send(p->end->chan, WIRE_TYPE_ping, &w);
}

static int64_t budget_ms(const struct wire_probe *w)
{
    return w->budget_ms > 0 ? YK_MIN(w->budget_ms, BUDGET_MS_MAX) : BUDGET_MS;
}

static int64_t budget_bytes(const struct wire_probe *w)
{
    return w->budget_bytes > 0 ? w->budget_bytes : BUDGET_BYTES;
}

static void phase_go(struct prober *p)
{
    struct end *e = p->end;
    struct wire_probe_start w = {
        .dir = dirs[p->phase], .budget_ms = budget_ms(p->w), .budget_bytes = budget_bytes(p->w)};
    p->mine = p->theirs = p->summed = false;
    chan_send(e->chan, WIRE_TYPE_probe_start, &w);
    begin_receiving(e, dirs[p->phase]);
    if (p->phase != PHASE_FROM)
        begin_sending(e, w.budget_ms, w.budget_bytes);
}

static void phase_over(struct prober *p)
{
    struct end *e = p->end;
    if (p->phase == PHASE_TO)
        p->result.to_bytes_per_s = p->there_bytes_per_s;
    else if (p->phase == PHASE_FROM)
        p->result.from_bytes_per_s = rate(e);
    else {
        double back = rate(e);
        p->result.both_bytes_per_s = back > 0 && p->there_bytes_per_s > 0 ? back + p->there_bytes_per_s : 0;
        prober_end(p, YK_OK, "");
        return;
    }
    p->phase++;
    phase_go(p);
}

static yk_err prober_message(struct prober *p, struct wire_msg *m)
{
    struct end *e = p->end;
    if (m->type == WIRE_TYPE_refuse) {
        char text[300];
        snprintf(text, sizeof text, "refused: %.280s", m->as.refuse.text);
        prober_end(p, YK_REFUSED, text);
    } else if (m->type == WIRE_TYPE_pong && p->phase == PHASE_PING && m->as.pong.seq == p->pings) {
        p->rtt_us[p->pings++] = net_now_us(p->agent->net) - p->ping_us;
        if (p->pings < PINGS) {
            ping(p);
            return YK_OK;
        }
        qsort(p->rtt_us + 1, PINGS - 1, sizeof p->rtt_us[0], compare);
        p->result.rtt_us = (double)(p->rtt_us[PINGS / 2] + p->rtt_us[PINGS / 2 + 1]) / 2;
        p->phase = PHASE_TO;
        phase_go(p);
    } else if (m->type == WIRE_TYPE_probe_sum && p->phase != PHASE_PING) {
        const struct wire_probe_sum *w = &m->as.probe_sum;
        if (!strcmp(w->dir, "end")) {
            p->theirs = true;
        } else {
            p->there_bytes_per_s = w->ms > 0 && w->bytes > 0 ? (double)w->bytes * 1e3 / w->ms : 0;
            if (p->phase == PHASE_TO && e->sent > 0)
                p->result.cpu_ns_per_byte =
                    w->cpu_ns_per_byte + (double)(machine_cpu_us() - e->cpu_us) * 1e3 / (double)e->sent;
            p->summed = true;
        }
        bool over = p->phase == PHASE_TO ? p->summed : p->phase == PHASE_FROM ? p->theirs : p->theirs && p->summed;
        if (over)
            phase_over(p);
    }
    return YK_OK;
}

static void on_dialled(void *arg, yk_err err, struct net_conn *conn, const char *url)
{
    struct prober *p = arg;
    p->dial = NULL;
    snprintf(p->url, sizeof p->url, "%s", url);
    if (err) {
        char text[300];
        snprintf(text, sizeof text, "cannot dial %s: %s", url[0] ? url : "it (no address)", yk_err_text(err));
        prober_end(p, err, text);
        return;
    }
    struct chan *c = chan_open(conn, &on_end, NULL);
    p->end = end_new(p->agent, c);
    p->end->prober = p;
    chan_set(c, &on_end, p->end);
    peer_hello(p->agent, c, "probe", p->w->ticket);
    ping(p);
}

static void prober_start(struct prober *p)
{
    struct agent *a = p->agent;
    p->timer = net_timer(
        a->net, 3 * budget_ms(p->w) * 1000 + CORE_DIAL_US * YK_MAX((int64_t)p->w->urls.n, 1) + GRACE_US, on_timer, p);
    p->dial = core_dial(a, p->w->urls.at, p->w->urls.n, CORE_DIAL_US, on_dialled, p);
}

void link_probe(struct agent *a, struct wire_msg *msg)
{
    struct link_state *l = a->link;
    if (l->n_probers >= MAX_WAITING) {
        struct wire_probe_result r = {.id = msg->as.probe.id,
            .peer = msg->as.probe.peer,
            .error = yk_err_name(YK_BUSY),
            .text = "too many probes wait"};
        control_send(a, WIRE_TYPE_probe_result, &r);
        return;
    }
    struct prober *p = yk_xalloc(sizeof *p), **at = &l->probers;
    p->agent = a;
    p->msg = *msg;
    msg->arena = NULL;
    p->w = &p->msg.as.probe;
    while (*at)
        at = &(*at)->next;
    *at = p;
    if (l->n_probers++ == 0)
        prober_start(p);
}

/* ---- life ---- */

void link_open(struct agent *a)
{
    a->link = yk_xalloc(sizeof *a->link);
}

void link_drop(struct agent *a)
{
    struct link_state *l = a->link;
    while (l->probers) {
        struct prober *p = l->probers;
        l->probers = p->next;
        prober_free(p);
    }
    l->n_probers = 0;
    while (l->served)
        end_free(l->served);
    while (l->tickets) {
        struct ticket *t = l->tickets;
        l->tickets = t->next;
        free(t);
    }
    l->n_tickets = 0;
}

void link_close(struct agent *a)
{
    if (!a->link)
        return;
    link_drop(a);
    free(a->link);
    a->link = NULL;
}
