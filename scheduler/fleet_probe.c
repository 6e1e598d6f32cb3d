/* Links: one probe at a time, each pair of alive agents once and again after a while. */
#include "scheduler/fleet_priv.h"

#include "common/log.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PROBE_MS 600
#define PROBE_BYTES ((int64_t)64 << 20)
#define PROBE_TIMEOUT_US 8000000
#define PER_MINUTE 60
#define RETRY_US 30000000 /* a pair that could not be measured */

struct fleet_link *fleet_link_find(struct fleet *f, const char *from, const char *to)
{
    for (struct fleet_link *l = f->links; l; l = l->next)
        if (strcmp(l->from, from) == 0 && strcmp(l->to, to) == 0)
            return l;
    return NULL;
}

static struct fleet_link *link_make(struct fleet *f, const char *from, const char *to)
{
    struct fleet_link *l = fleet_link_find(f, from, to);
    if (!l) {
        l = yk_xalloc(sizeof *l);
        snprintf(l->from, sizeof l->from, "%s", from);
        snprintf(l->to, sizeof l->to, "%s", to);
        l->next = f->links;
        f->links = l;
    }
    return l;
}

static void link_save(struct fleet *f, const struct fleet_link *l, const char *url)
{
    struct store_link row = {.from = l->from,
        .to = l->to,
        .duplex = l->half_duplex ? "half" : "full",
        .origin = l->bytes_per_s > 0 ? "measured" : "unknown",
        .url = url,
        .text = l->text,
        .bytes_per_s = l->bytes_per_s,
        .latency_ms = l->latency_ms,
        .cpu_ns_per_byte = l->cpu_ns_per_byte};
    store_put_link(f->config.store, &row);
}

static void restore(void *arg, const struct store_link *row, int64_t age_ms)
{
    struct fleet *f = arg;
    if (strlen(row->from) >= sizeof f->probe.from || strlen(row->to) >= sizeof f->probe.to || !(row->bytes_per_s > 0))
        return;
    struct fleet_link *l = link_make(f, row->from, row->to);
    l->bytes_per_s = row->bytes_per_s;
    l->latency_ms = row->latency_ms;
    l->cpu_ns_per_byte = row->cpu_ns_per_byte;
    l->half_duplex = strcmp(row->duplex, "half") == 0;
    int64_t age = YK_MIN(YK_MAX(age_ms, (int64_t)0), f->config.probe_every_ms + 1) * 1000;
    l->measured_us = net_now_us(f->config.net) - age;
    if (l->measured_us == 0)
        l->measured_us = -1;
}

void fleet_probe_restore(struct fleet *f)
{
    store_load_links(f->config.store, restore, f);
}

/* Does the pair want a probe now? */
static bool due(struct fleet *f, const struct fleet_agent *a, const struct fleet_agent *b)
{
    const struct fleet_link *l = fleet_link_find(f, a->id, b->id);
    if (!l || l->measured_us == 0)
        return true;
    int64_t age = net_now_us(f->config.net) - l->measured_us;
    return l->bytes_per_s > 0 ? age > f->config.probe_every_ms * 1000 : age > RETRY_US;
}

static bool tried(struct fleet *f, const struct fleet_agent *a, const struct fleet_agent *b)
{
    const struct fleet_link *l = fleet_link_find(f, a->id, b->id);
    return l && l->measured_us != 0;
}

static void probe_over(struct fleet *f)
{
    net_timer_cancel(f->probe.timer);
    f->probe.timer = NULL;
    f->probe.id = 0;
}

static void note_failure(struct fleet *f, const char *from, const char *to, const char *text)
{
    const char *const ends[2][2] = {{from, to}, {to, from}};
    for (int i = 0; i < 2; i++) {
        struct fleet_link *l = link_make(f, ends[i][0], ends[i][1]);
        l->bytes_per_s = 0;
        l->measured_us = YK_MAX(net_now_us(f->config.net), (int64_t)1);
        snprintf(l->text, sizeof l->text, "%.150s", text);
        link_save(f, l, "");
    }
    struct fleet_agent *a = fleet_find(f, from), *b = fleet_find(f, to);
    log_warn("the link between %s and %s could not be measured: %s", a ? a->name : from, b ? b->name : to, text);
}

static void on_timeout(void *arg)
{
    struct fleet *f = arg;
    f->probe.timer = NULL;
    f->probe.id = 0;
    note_failure(f, f->probe.from, f->probe.to, "the probe did not end in time");
    fleet_probe_next(f);
}

static void start(struct fleet *f, struct fleet_agent *a, struct fleet_agent *b)
{
    uint8_t ticket[16];
    const char *url = fleet_url(b, a);
    net_random(f->config.net, ticket, sizeof ticket);
    f->probe.id = ++f->next_probe;
    snprintf(f->probe.from, sizeof f->probe.from, "%s", a->id);
    snprintf(f->probe.to, sizeof f->probe.to, "%s", b->id);
    struct wire_expect expect = {.term = f->config.term,
        .purpose = "probe",
        .peer = a->id,
        .ticket = {ticket, sizeof ticket},
        .ttl_ms = PROBE_TIMEOUT_US / 1000};
    struct wire_probe probe = {.id = f->probe.id,
        .term = f->config.term,
        .peer = b->id,
        .urls = {&url, 1},
        .ticket = {ticket, sizeof ticket},
        .budget_ms = PROBE_MS,
        .budget_bytes = PROBE_BYTES};
    fleet_send(b, WIRE_TYPE_expect, &expect);
    fleet_send(a, WIRE_TYPE_probe, &probe);
    f->probe.timer = net_timer(f->config.net, PROBE_TIMEOUT_US, on_timeout, f);
}

void fleet_probe_next(struct fleet *f)
{
    int64_t now = net_now_us(f->config.net);
    if (f->probe.id || !f->config.on->quiet(f->config.arg))
        return;
    if (now - f->minute_us > 60000000) {
        f->minute_us = now;
        f->in_minute = 0;
    }
    if (f->in_minute >= PER_MINUTE)
        return;
    for (struct fleet_agent *a = f->agents; a; a = a->next)
        for (struct fleet_agent *b = a->state == FLEET_ALIVE ? a->next : NULL; b; b = b->next) {
            if (a->state != FLEET_ALIVE || b->state != FLEET_ALIVE || !due(f, a, b))
                continue;
            struct fleet_agent *dialler = b->n_urls ? a : b, *peer = b->n_urls ? b : a;
            if (!peer->n_urls) {
                note_failure(f, a->id, b->id, "neither end can be dialled");
                continue;
            }
            f->in_minute++;
            start(f, dialler, peer);
            return;
        }
}

static double rate_or(double v)
{
    return isfinite(v) && v > 0 ? v : 0;
}

void fleet_probe_result(struct fleet *f, struct fleet_agent *a, const struct wire_probe_result *r)
{
    if (r->id != f->probe.id || strcmp(a->id, f->probe.from) != 0)
        return; /* late: it was given up */
    probe_over(f);
    double to = rate_or(r->to_bytes_per_s), from = rate_or(r->from_bytes_per_s), both = rate_or(r->both_bytes_per_s);
    if (r->error[0] || to <= 0 || from <= 0) {
        note_failure(f, f->probe.from, f->probe.to, r->text[0] ? r->text : "the probe measured nothing");
    } else {
        bool half = both > 0 && both < 1.5 * YK_MIN(to, from);
        for (int i = 0; i < 2; i++) {
            struct fleet_link *l =
                i ? link_make(f, f->probe.to, f->probe.from) : link_make(f, f->probe.from, f->probe.to);
            l->bytes_per_s = i ? from : to;
            l->latency_ms = rate_or(r->rtt_us) / 2000;
            l->cpu_ns_per_byte = rate_or(r->cpu_ns_per_byte);
            l->half_duplex = half;
            l->measured_us = YK_MAX(net_now_us(f->config.net), (int64_t)1);
            l->text[0] = '\0';
            link_save(f, l, i ? "" : r->url);
        }
    }
    fleet_probe_next(f);
}

bool fleet_links_ready(struct fleet *f)
{
    bool ready = true;
    for (struct fleet_agent *a = f->agents; a; a = a->next)
        for (struct fleet_agent *b = a->state == FLEET_ALIVE ? a->next : NULL; b; b = b->next)
            if (a->state == FLEET_ALIVE && b->state == FLEET_ALIVE && !tried(f, a, b))
                ready = false;
    if (!ready)
        fleet_probe_next(f);
    return ready;
}

void fleet_probe_forget(struct fleet *f, struct fleet_agent *a)
{
    if (f->probe.id && (strcmp(a->id, f->probe.from) == 0 || strcmp(a->id, f->probe.to) == 0))
        probe_over(f);
}

void fleet_link_forget(struct fleet *f, const struct fleet_agent *a)
{
    for (struct fleet_link **at = &f->links; *at;) {
        struct fleet_link *l = *at;
        if (strcmp(l->from, a->id) != 0 && strcmp(l->to, a->id) != 0) {
            at = &l->next;
            continue;
        }
        *at = l->next;
        free(l);
    }
}

void fleet_probe_fini(struct fleet *f)
{
    net_timer_cancel(f->probe.timer);
    while (f->links) {
        struct fleet_link *l = f->links;
        f->links = l->next;
        free(l);
    }
}
