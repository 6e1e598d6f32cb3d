/* Links: one probe at a time, each pair of alive agents once and again after a while. What is known of an agent that
 * joins again is used for the plans that cannot wait, and measured again as soon as nothing is disturbed: it may be on
 * another network now. Pairs of which nothing is known go first. */
#include "scheduler/fleet_priv.h"

#include "common/hash.h"
#include "common/log.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define PROBE_MS 600
#define PROBE_BYTES ((int64_t)64 << 20)
#define PROBE_TIMEOUT_US 8000000
#define YOKED ""      /* as an end of a link */
#define UPLINK_MS 250 /* it ranks sources, and need not be exact */
#define UPLINK_BYTES ((int64_t)8 << 20)
#define PER_MINUTE 60
#define RETRY_US 30000000     /* a pair that could not be measured */
#define RETRY_FIRST_US 500000 /* where that may pass, the first time; then twice as long */
#define RETRY_SOON 4          /* so often, and plans wait for it; then as for others */

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

static void link_save(struct fleet *f, const struct fleet_link *l)
{
    struct store_link row = {.from = l->from,
        .to = l->to,
        .duplex = l->half_duplex ? "half" : "full",
        .origin = l->bytes_per_s > 0 ? "measured" : "unknown",
        .url = l->url,
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
    l->provisional = true;
    snprintf(l->url, sizeof l->url, "%s", row->url);
    int64_t age = YK_MIN(YK_MAX(age_ms, (int64_t)0), f->config.probe_every_ms + 1) * 1000;
    l->measured_us = net_now_us(f->config.net) - age;
    if (l->measured_us == 0)
        l->measured_us = -1;
}

void fleet_probe_restore(struct fleet *f)
{
    store_load_links(f->config.store, restore, f);
}

/* It could not be measured, and will be tried again soon. */
static bool failed_just_now(const struct fleet_link *l)
{
    return !(l->bytes_per_s > 0) && l->measured_us != 0 && l->failures > 0 && l->failures < RETRY_SOON;
}

static int64_t retry_us(const struct fleet_link *l)
{
    return failed_just_now(l) ? (int64_t)RETRY_FIRST_US << (l->failures - 1) : RETRY_US;
}

/* Does the pair want a probe now? b NULL: with yoked. */
static bool due(struct fleet *f, const struct fleet_agent *a, const struct fleet_agent *b)
{
    const struct fleet_link *l = fleet_link_find(f, a->id, b ? b->id : YOKED);
    if (!l || l->measured_us == 0)
        return true;
    int64_t age = net_now_us(f->config.net) - l->measured_us;
    return l->provisional || (l->bytes_per_s > 0 ? age > f->config.probe_every_ms * 1000 : age > retry_us(l));
}

static bool tried(struct fleet *f, const struct fleet_agent *a, const struct fleet_agent *b)
{
    const struct fleet_link *l = fleet_link_find(f, a->id, b ? b->id : YOKED);
    return l && l->measured_us != 0;
}

static const char *name_of(struct fleet *f, const char *id)
{
    const struct fleet_agent *a = id[0] ? fleet_find(f, id) : NULL;
    return a ? a->name : id[0] ? id : "yoked";
}

static void probe_over(struct fleet *f)
{
    net_timer_cancel(f->probe.timer);
    f->probe.timer = NULL;
    f->probe.id = 0;
}

/* passes: it broke off, as it does when a device is busy or restarts. */
static void note_failure(struct fleet *f, const char *from, const char *to, const char *text, bool passes)
{
    const char *const ends[2][2] = {{from, to}, {to, from}};
    for (int i = 0; i < 2; i++) {
        struct fleet_link *l = link_make(f, ends[i][0], ends[i][1]);
        l->bytes_per_s = 0;
        l->provisional = false;
        l->failures = passes ? YK_MIN(l->failures + 1, RETRY_SOON) : 0;
        l->measured_us = YK_MAX(net_now_us(f->config.net), (int64_t)1);
        snprintf(l->text, sizeof l->text, "%.150s", text);
        link_save(f, l);
    }
    log_warn("the link between %s and %s could not be measured: %s", name_of(f, from), name_of(f, to), text);
}

static void on_timeout(void *arg)
{
    struct fleet *f = arg;
    f->probe.timer = NULL;
    f->probe.id = 0;
    note_failure(f, f->probe.from, f->probe.to, "the probe did not end in time", false);
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

/* The agent dials yoked, which serves it (fleet_probe_adopt). */
static void start_uplink(struct fleet *f, struct fleet_agent *a)
{
    net_random(f->config.net, f->probe.ticket, sizeof f->probe.ticket);
    f->probe.id = ++f->next_probe;
    snprintf(f->probe.from, sizeof f->probe.from, "%s", a->id);
    f->probe.to[0] = '\0'; /* yoked */
    struct wire_probe probe = {.id = f->probe.id,
        .term = f->config.term,
        .peer = "yoked",
        .ticket = {f->probe.ticket, sizeof f->probe.ticket},
        .budget_ms = UPLINK_MS,
        .budget_bytes = UPLINK_BYTES};
    fleet_send(a, WIRE_TYPE_probe, &probe);
    f->probe.timer = net_timer(f->config.net, PROBE_TIMEOUT_US, on_timeout, f);
}

static int64_t cpu_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (int64_t)t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

static void served_closed(void *arg, yk_err err, const char *why)
{
    struct fleet *f = arg;
    (void)err;
    (void)why;
    probe_end_close(f->served);
    f->served = NULL;
}

static const struct probe_end_on on_served = {NULL, served_closed};

bool fleet_probe_adopt(struct fleet *f, struct chan *c, const struct wire_hello *h)
{
    if (!f->probe.id || f->probe.to[0] || strcmp(h->agent, f->probe.from) != 0 ||
        h->ticket.len != sizeof f->probe.ticket || !hash_same(h->ticket.data, f->probe.ticket, sizeof f->probe.ticket))
        return false;
    net_random(f->config.net, f->probe.ticket, sizeof f->probe.ticket); /* one use */
    probe_end_close(f->served);
    f->served = probe_end_open(f->config.net, c, cpu_us, &on_served, f);
    return true;
}

/* Whom to probe now: a pair of which nothing is known, else one that is due. *other NULL: with yoked. */
static bool choose(struct fleet *f, struct fleet_agent **one, struct fleet_agent **other)
{
    *one = *other = NULL;
    for (struct fleet_agent *a = f->agents; a; a = a->next) {
        struct fleet_agent *b = NULL; /* yoked first: that is soon done */
        do {
            bool can = a->state == FLEET_ALIVE && (b ? b->state == FLEET_ALIVE : a->uplinks) && due(f, a, b);
            bool known = can && tried(f, a, b);
            if (can && (!known || !*one)) {
                *one = a;
                *other = b;
                if (!known)
                    return true;
            }
            b = b ? b->next : a->next;
        } while (b && a->state == FLEET_ALIVE);
    }
    return *one != NULL;
}

void fleet_probe_next(struct fleet *f)
{
    int64_t now = net_now_us(f->config.net);
    struct fleet_agent *a, *b;
    if (f->probe.id || !f->config.on->quiet(f->config.arg))
        return;
    if (now - f->minute_us > 60000000) {
        f->minute_us = now;
        f->in_minute = 0;
    }
    while (f->in_minute < PER_MINUTE && choose(f, &a, &b)) {
        if (!b) {
            f->in_minute++;
            start_uplink(f, a);
            return;
        }
        struct fleet_agent *dialler = b->n_urls ? a : b, *peer = b->n_urls ? b : a;
        if (!peer->n_urls) {
            note_failure(f, a->id, b->id, "neither end can be dialled", false);
            continue;
        }
        f->in_minute++;
        start(f, dialler, peer);
        return;
    }
}

/* What is known of it now against what plans took it for. */
static bool is_far(double before, double now)
{
    return now > before * FLEET_LINK_FAR || now * FLEET_LINK_FAR < before;
}

static void tell_change(struct fleet *f, const struct fleet_link *before, const struct fleet_link *now)
{
    struct fleet_agent *a = fleet_find(f, now->from), *b = fleet_find(f, now->to); /* NULL: yoked, of new plans only */
    bool late = is_far(before->latency_ms, now->latency_ms) &&
                fabs(before->latency_ms - now->latency_ms) >= FLEET_LATENCY_FAR_MS;
    bool rate = is_far(before->bytes_per_s, now->bytes_per_s);
    char text[200];
    if (!(before->bytes_per_s > 0) || !a || !b || (!late && !rate))
        return;
    snprintf(text, sizeof text, "%.4g MB/s and %.3g ms, was taken for %.4g MB/s and %.3g ms", now->bytes_per_s / 1e6,
        now->latency_ms, before->bytes_per_s / 1e6, before->latency_ms);
    log_info("the link between %s and %s is another now: %s", a->name, b->name, text);
    f->config.on->relinked(f->config.arg, a, b,
        rate ? now->bytes_per_s > before->bytes_per_s : now->latency_ms < before->latency_ms, text);
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
        note_failure(f, f->probe.from, f->probe.to, r->text[0] ? r->text : "the probe measured nothing",
            strcmp(r->error, yk_err_name(YK_CLOSED)) == 0);
    } else {
        bool half = both > 0 && both < 1.5 * YK_MIN(to, from);
        struct fleet_link *links[2] = {
            link_make(f, f->probe.from, f->probe.to), link_make(f, f->probe.to, f->probe.from)};
        struct fleet_link before[2] = {*links[0], *links[1]};
        for (int i = 0; i < 2; i++) {
            struct fleet_link *l = links[i];
            l->bytes_per_s = i ? from : to;
            l->latency_ms = rate_or(r->rtt_us) / 2000;
            l->cpu_ns_per_byte = rate_or(r->cpu_ns_per_byte);
            l->half_duplex = half;
            l->measured_us = YK_MAX(net_now_us(f->config.net), (int64_t)1);
            l->provisional = false;
            l->failures = 0;
            l->text[0] = '\0';
            snprintf(l->url, sizeof l->url, "%s", i ? "" : r->url);
            link_save(f, l);
        }
        int worse = links[1]->bytes_per_s < links[0]->bytes_per_s; /* one is told for both */
        tell_change(f, &before[worse], links[worse]);
    }
    fleet_probe_next(f);
}

static bool links_ready(struct fleet *f, bool fresh)
{
    bool ready = true;
    for (struct fleet_agent *a = f->agents; a && ready; a = a->next)
        for (struct fleet_agent *b = a->state == FLEET_ALIVE ? a->next : NULL; b && ready; b = b->next) {
            if (b->state != FLEET_ALIVE)
                continue;
            const struct fleet_link *l = fleet_link_find(f, a->id, b->id);
            ready = l && l->measured_us != 0 && !(fresh && l->provisional) &&
                    !(failed_just_now(l) && f->config.on->quiet(f->config.arg));
        }
    if (!ready)
        fleet_probe_next(f);
    return ready;
}

bool fleet_links_ready(struct fleet *f)
{
    return links_ready(f, false);
}

bool fleet_links_fresh(struct fleet *f)
{
    return links_ready(f, true);
}

bool fleet_uplinks_ready(struct fleet *f)
{
    bool ready = true;
    int n = 0;
    for (struct fleet_agent *a = f->agents; a; a = a->next) {
        if (a->state != FLEET_ALIVE)
            continue;
        n++;
        ready = ready && (!a->uplinks || tried(f, a, NULL));
    }
    if (ready || n < 2)
        return true;
    fleet_probe_next(f);
    return !f->config.on->quiet(f->config.arg);
}

/* ---- joining ---- */

/* "tcp://10.0.0.5:4000", "10.0.0.5:4000" -> "10.0.0.5" */
static void host_of(const char *url, char *out, size_t size)
{
    const char *at = strstr(url, "://"), *from = at ? at + 3 : url, *colon = strrchr(from, ':');
    size_t n = strcspn(from, "/");
    if (colon && (size_t)(colon - from) < n && !strchr(colon, ']'))
        n = (size_t)(colon - from);
    snprintf(out, size, "%.*s", (int)YK_MIN(n, size - 1), from);
}

static void put_address(const struct fleet_agent *a, char *out, size_t size)
{
    char host[80] = "";
    const char *peer = chan_peer(a->control);
    if (strchr(peer, ':')) /* else it names a connection, not a place */
        host_of(peer, host, sizeof host);
    size_t used = (size_t)snprintf(out, size, "%s", host);
    for (int i = 0; i < a->n_urls && used + sizeof host + 1 < size; i++) {
        host_of(a->urls[i], host, sizeof host);
        used += (size_t)snprintf(out + used, size - used, " %s", host);
    }
}

/* Of a link from before yoked started: whether its end is still at the host where it was dialled. */
static bool same_place(const struct fleet_agent *a, const struct fleet_link *l)
{
    char was[80], is[80];
    bool same = a->n_urls == 0;
    host_of(l->url, was, sizeof was);
    for (int i = 0; i < a->n_urls; i++) {
        host_of(a->urls[i], is, sizeof is);
        same = same || strcmp(was, is) == 0;
    }
    return same;
}

void fleet_probe_joined(struct fleet *f, struct fleet_agent *a)
{
    char address[sizeof a->address];
    put_address(a, address, sizeof address);
    bool moved = a->address[0] && strcmp(a->address, address) != 0;
    for (struct fleet_link *l = f->links; l && !a->address[0]; l = l->next)
        moved = moved || (strcmp(l->to, a->id) == 0 && l->url[0] && !same_place(a, l));
    for (struct fleet_link *l = f->links; l; l = l->next) {
        if (strcmp(l->from, a->id) != 0 && strcmp(l->to, a->id) != 0)
            continue;
        l->provisional = l->bytes_per_s > 0;
        l->failures = 0;
        if (!(l->bytes_per_s > 0))
            l->measured_us = 0; /* it is tried as if it had not been */
        if (!moved || l->measured_us == 0)
            continue;
        l->measured_us = 0;
        l->bytes_per_s = 0;
        l->provisional = false;
        l->url[0] = '\0';
        snprintf(l->text, sizeof l->text, "%.40s came back at another address: it is measured again", a->name);
        link_save(f, l);
    }
    if (moved)
        log_info("agent %s is at another address than before (%s): its links are measured again", a->name, address);
    snprintf(a->address, sizeof a->address, "%s", address);
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
    probe_end_close(f->served);
    f->served = NULL;
    while (f->links) {
        struct fleet_link *l = f->links;
        f->links = l->next;
        free(l);
    }
}
