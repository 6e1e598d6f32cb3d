#include "agent/link.h"

#include "agent/control.h"
#include "agent/machine.h"
#include "agent/peer.h"
#include "agent/probe.h"
#include "common/hash.h"
#include "common/probe_end.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LINK_YOKED "yoked" /* for a peer */
#define PINGS 9            /* the first warms up */
#define BUDGET_MS 200
#define BUDGET_BYTES ((int64_t)64 << 20)
#define GRACE_US 5000000
#define MAX_SERVED 8
#define MAX_WAITING 256
#define MAX_TICKETS 1024

/* That was dialled. */
struct served {
    struct served *next;
    struct agent *agent;
    struct probe_end *end;
    struct net_timer *timer;
};

enum phase { PHASE_PING, PHASE_TO, PHASE_FROM, PHASE_BOTH };
static const char *const dirs[] = {"", "to", "from", "both"};

struct prober {
    struct prober *next;
    struct agent *agent;
    struct wire_msg msg; /* the request */
    const struct wire_probe *w;
    struct core_dial *dial;
    struct probe_end *end;
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
    struct served *served;
    int n_served;
    struct ticket *tickets;
    int n_tickets;
};

static void phase_go(struct prober *p);
static void prober_end(struct prober *p, yk_err err, const char *text);

/* ---- the end that was dialled ---- */

static void served_free(struct served *e)
{
    struct link_state *l = e->agent->link;
    struct served **at = &l->served;
    while (*at != e)
        at = &(*at)->next;
    *at = e->next;
    l->n_served--;
    net_timer_cancel(e->timer);
    probe_end_close(e->end);
    free(e);
}

static void on_served_timer(void *arg)
{
    struct served *e = arg;
    e->timer = NULL;
    served_free(e);
}

static void on_served_closed(void *arg, yk_err err, const char *why)
{
    (void)err;
    (void)why;
    served_free(arg);
}

static const struct probe_end_on on_served = {NULL, on_served_closed};

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
        struct served *e = yk_xalloc(sizeof *e);
        e->agent = a;
        e->next = l->served;
        l->served = e;
        l->n_served++;
        e->end = probe_end_open(a->net, c, machine_cpu_us, &on_served, e);
        probe_end_room(e->end, probe_room(a->memory_bytes) / 2);
        e->timer = net_timer(a->net, 4 * PROBE_END_BUDGET_MS * 1000 + GRACE_US, on_served_timer, e);
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
    probe_end_close(p->end);
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
    chan_send(probe_end_chan(p->end), WIRE_TYPE_ping, &w);
}

static int64_t budget_ms(const struct wire_probe *w)
{
    return w->budget_ms > 0 ? YK_MIN(w->budget_ms, PROBE_END_BUDGET_MS) : BUDGET_MS;
}

static int64_t budget_bytes(const struct wire_probe *w)
{
    return w->budget_bytes > 0 ? w->budget_bytes : BUDGET_BYTES;
}

static void phase_go(struct prober *p)
{
    struct probe_end *e = p->end;
    struct wire_probe_start w = {
        .dir = dirs[p->phase], .budget_ms = budget_ms(p->w), .budget_bytes = budget_bytes(p->w)};
    p->mine = p->theirs = p->summed = false;
    chan_send(probe_end_chan(e), WIRE_TYPE_probe_start, &w);
    probe_end_receive(e, dirs[p->phase]);
    if (p->phase != PHASE_FROM)
        probe_end_send(e, w.budget_ms, w.budget_bytes);
}

static void phase_over(struct prober *p)
{
    const struct probe_end *e = p->end;
    if (p->phase == PHASE_TO)
        p->result.to_bytes_per_s = p->there_bytes_per_s;
    else if (p->phase == PHASE_FROM)
        p->result.from_bytes_per_s = probe_end_rate(e);
    else {
        double back = probe_end_rate(e);
        p->result.both_bytes_per_s = back > 0 && p->there_bytes_per_s > 0 ? back + p->there_bytes_per_s : 0;
        prober_end(p, YK_OK, "");
        return;
    }
    p->phase++;
    phase_go(p);
}

static yk_err prober_message(void *arg, struct wire_msg *m)
{
    struct prober *p = arg;
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
            if (p->phase == PHASE_TO && probe_end_sent(p->end) > 0)
                p->result.cpu_ns_per_byte = w->cpu_ns_per_byte + probe_end_cpu_ns(p->end, probe_end_sent(p->end));
            p->summed = true;
        }
        bool over = p->phase == PHASE_TO ? p->summed : p->phase == PHASE_FROM ? p->theirs : p->theirs && p->summed;
        if (over)
            phase_over(p);
    }
    return YK_OK;
}

static void prober_closed(void *arg, yk_err err, const char *why)
{
    prober_end(arg, err, why);
}

static const struct probe_end_on on_prober = {prober_message, prober_closed};

static const struct chan_on nobody = {0};

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
    struct chan *c = chan_open(conn, &nobody, NULL); /* no callback runs before the next line */
    p->end = probe_end_open(p->agent->net, c, machine_cpu_us, &on_prober, p);
    probe_end_room(p->end, probe_room(p->agent->memory_bytes) / 2);
    peer_hello(p->agent, c, "probe", p->w->ticket);
    ping(p);
}

static void prober_start(struct prober *p)
{
    struct agent *a = p->agent;
    const char **urls = p->w->urls.at, *yoked = a->scheduler_url;
    size_t n = p->w->urls.n;
    if (!strcmp(p->w->peer, LINK_YOKED) && yoked) { /* we know where that is */
        urls = &yoked;
        n = 1;
    }
    p->timer =
        net_timer(a->net, 3 * budget_ms(p->w) * 1000 + CORE_DIAL_US * YK_MAX((int64_t)n, 1) + GRACE_US, on_timer, p);
    p->dial = core_dial(a, urls, n, CORE_DIAL_US, on_dialled, p);
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
        served_free(l->served);
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
