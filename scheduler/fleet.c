#include "scheduler/fleet.h"

#include "common/log.h"
#include "common/metrics.h"
#include "scheduler/fleet_priv.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define HELLO_US 5000000
#define SILENT_US 1000000 /* so long without a hello, a connection gives its place to a new one */
#define SAVE_EVERY_US 5000000
#define MAX_REFUSED 8 /* backends of one agent that are named in the log */
#define MAX_AGENTS 4096

/* A connection that has not said hello yet. */
struct fleet_guest {
    struct fleet *fleet;
    struct fleet_guest *next, **link;
    struct chan *chan;
    struct net_timer *timer;
    int64_t since_us;
};

static const struct chan_on guest_on, control_on, blob_on;

struct fleet_agent *fleet_first(struct fleet *f)
{
    return f->agents;
}

struct fleet_agent *fleet_find(struct fleet *f, const char *name_or_id)
{
    struct fleet_agent *away = NULL;
    for (struct fleet_agent *a = f->agents; a; a = a->next)
        if (strcmp(a->id, name_or_id) == 0 || strcmp(a->name, name_or_id) == 0) {
            if (a->state == FLEET_ALIVE)
                return a;
            away = a;
        }
    return away;
}

int fleet_alive(const struct fleet *f)
{
    int n = 0;
    for (struct fleet_agent *a = f->agents; a; a = a->next)
        n += a->state == FLEET_ALIVE;
    return n;
}

yk_err fleet_send(struct fleet_agent *a, enum wire_type type, const void *msg)
{
    return a->control ? chan_send(a->control, type, msg) : YK_CLOSED;
}

static bool has_isa(const struct fleet *f, const char *isa, size_t n)
{
    bool gone = false;
    for (const struct fleet_agent *a = f->agents; a; a = a->next) {
        gone = gone || a->refused;
        if (strlen(a->backends) + 1 == sizeof a->backends) /* cut off: who knows */
            return true;
        for (const char *at = a->backends; (at = strchr(at, '@')); at++)
            if (strncmp(at + 1, isa, n) == 0 && (at[1 + n] == ',' || !at[1 + n]))
                return true;
    }
    return !gone;
}

bool fleet_has_isa(const struct fleet *f, const char *isa)
{
    for (const char *part = isa; *part;) { /* a node that depends on data has several: "dynamic@a+b" */
        size_t n = strcspn(part, "+");
        if (!has_isa(f, part, n))
            return false;
        part += n + (part[n] == '+');
    }
    return true;
}

const char *fleet_url(const struct fleet_agent *a, const struct fleet_agent *viewer)
{
    (void)viewer; /* one site, one address each: loopback only */
    return a->n_urls ? a->urls[0] : NULL;
}

void fleet_save(struct fleet_agent *a)
{
    struct store_agent row = {.id = a->id,
        .name = a->name,
        .class_name = a->class_name,
        .os = a->os,
        .state = a->state == FLEET_ALIVE ? "alive" : "away",
        .backends = a->backends,
        .heat = a->heat,
        .mode = policy_mode_name(a->device.mode),
        .reason = a->device_text,
        .cores = a->cores,
        .threads = a->threads,
        .memory_bytes = a->memory_bytes,
        .memory_available_bytes = a->memory_available_bytes,
        .jobs = a->loaded,
        .gflops = a->gflops,
        .gbytes_per_s = a->gbytes_per_s,
        .temperature_celsius = a->temperature_celsius,
        .battery_frac = a->battery_frac,
        .load = a->load,
        .slow_factor = a->slow_factor,
        .charging = a->charging,
        .emulated = a->emulated};
    store_put_agent(a->fleet->config.store, &row);
}

static void agent_free(struct fleet_agent *a)
{
    free(a->measured.graph);
    free(a->measured.nodes);
    for (int i = 0; i < a->n_urls; i++)
        free(a->urls[i]);
    free(a->urls);
    free(a);
}

/* ---- leaving ---- */

static void lose(struct fleet_agent *a, const char *why)
{
    struct fleet *f = a->fleet;
    if (a->state != FLEET_ALIVE)
        return;
    a->state = FLEET_AWAY;
    a->alive_us += net_now_us(f->config.net) - a->since_us;
    a->losses++;
    struct chan *control = a->control, *blob = a->blob;
    a->control = a->blob = NULL;
    chan_close(control, false);
    chan_close(blob, false);
    log_info("agent %s is away: %s", a->name, why);
    metrics_add(METRIC_agents_lost_total, 1);
    metrics_set(METRIC_agents, fleet_alive(f));
    fleet_probe_forget(f, a);
    fleet_profile_forget(f, a);
    fleet_blobs_forget(f, a);
    fleet_save(a);
    f->config.on->lost(f->config.arg, a, why);
}

/* Whatever comes from it tells that it is there: over a slow link a part of a set or a result may take longer than the
 * lease, and the pings wait behind it. */
static int64_t seen_us(const struct fleet_agent *a)
{
    int64_t us = a->last_seen_us;
    if (a->control)
        us = YK_MAX(us, chan_last_rx_us(a->control));
    if (a->blob)
        us = YK_MAX(us, chan_last_rx_us(a->blob));
    return us;
}

static void check_leases(void *arg)
{
    struct fleet *f = arg;
    int64_t now = net_now_us(f->config.net);
    f->lease_timer = net_timer(f->config.net, f->config.lease_ms * 1000 / 8, check_leases, f);
    for (struct fleet_agent *a = f->agents; a; a = a->next) {
        if (a->state != FLEET_ALIVE)
            continue;
        if (now - seen_us(a) > f->config.lease_ms * 1000)
            lose(a, "silent for longer than its lease");
    }
    if (now - f->saved_us > SAVE_EVERY_US) {
        f->saved_us = now;
        for (struct fleet_agent *a = f->agents; a; a = a->next)
            if (a->state == FLEET_ALIVE)
                fleet_save(a);
    }
    fleet_health_tick(f);
    fleet_probe_next(f);
}

/* ---- joining ---- */

static void copy(char *to, size_t size, const char *from, const char *otherwise)
{
    snprintf(to, size, "%s", from[0] ? from : otherwise);
}

static void take_sensors(struct fleet_agent *a, const struct wire_sensors *s)
{
    copy(a->heat, sizeof a->heat, s->heat, "");
    a->temperature_celsius = s->temperature_celsius;
    a->battery_frac = s->battery_frac;
    a->charging = s->charging;
    a->memory_available_bytes = s->memory_available_bytes;
    a->load = s->load;
}

static bool has_feature(const struct wire_hello *h, const char *name)
{
    for (size_t i = 0; i < h->features.n; i++)
        if (strcmp(h->features.at[i], name) == 0)
            return true;
    return false;
}

static void take_device(struct fleet_agent *a, const struct wire_hello *h)
{
    const struct wire_device *d = &h->device;
    size_t used = 0;
    copy(a->class_name, sizeof a->class_name, d->class_name, "workstation");
    copy(a->os, sizeof a->os, d->os, "");
    a->cores = d->cores;
    a->threads = d->threads;
    a->memory_bytes = d->memory_bytes;
    a->emulated = d->emulated;
    a->refused = d->refused.n > 0;
    a->judges = has_feature(h, "judge");
    a->uplinks = has_feature(h, "uplink");
    a->tells_blobs = has_feature(h, "blobs");
    a->gflops = a->gbytes_per_s = 0;
    a->backends[0] = '\0';
    for (size_t i = 0; i < d->backends.n; i++) {
        const struct wire_backend *b = &d->backends.at[i];
        if (b->gflops > a->gflops) {
            a->gflops = b->gflops;
            a->gbytes_per_s = b->gbytes_per_s;
        }
        int n = snprintf(a->backends + used, sizeof a->backends - used, "%s%.20s@%.60s", i ? "," : "", b->name, b->isa);
        used = n > 0 ? YK_MIN(used + (size_t)n, sizeof a->backends - 1) : used;
    }
    for (int i = 0; i < a->n_urls; i++)
        free(a->urls[i]);
    free(a->urls);
    a->n_urls = (int)YK_MIN(h->urls.n, (size_t)8);
    a->urls = yk_xalloc(((size_t)a->n_urls + 1) * sizeof *a->urls);
    for (int i = 0; i < a->n_urls; i++)
        a->urls[i] = yk_xstrdup(h->urls.at[i]);
    take_sensors(a, &h->sensors);
}

/* A name that no other alive agent has: "pc", "pc-2", ... */
static void unique_name(struct fleet *f, struct fleet_agent *self, const char *wanted)
{
    char clean[48];
    size_t n = 0;
    for (const char *p = wanted; *p && n + 1 < sizeof clean; p++)
        clean[n++] = (*p >= '0' && *p <= '9') || (*p >= 'a' && *p <= 'z') || (*p >= 'A' && *p <= 'Z') || *p == '.' ||
                             *p == '_' || *p == '-'
                         ? *p
                         : '-';
    clean[n] = '\0';
    if (!n)
        snprintf(clean, sizeof clean, "agent-%.8s", self->id);
    for (int k = 1;; k++) {
        bool taken = false;
        if (k < 10)
            snprintf(self->name, sizeof self->name, k > 1 ? "%s-%d" : "%s", clean, k);
        else
            snprintf(self->name, sizeof self->name, "%.16s-%s-%d", clean, self->id, k);
        for (struct fleet_agent *a = f->agents; a; a = a->next)
            taken = taken || (a != self && strcmp(a->name, self->name) == 0);
        if (!taken)
            return;
    }
}

static void refuse(struct chan *c, const char *error, const char *text)
{
    struct wire_refuse r = {
        .error = error, .text = text, .version_major = WIRE_VERSION_MAJOR, .version_minor = WIRE_VERSION_MINOR};
    chan_send(c, WIRE_TYPE_refuse, &r);
    metrics_add(METRIC_wire_refused_total, 1);
    chan_close(c, true);
}

static bool valid_id(const char *id)
{
    uint8_t bytes[16];
    return yk_unhex(id, sizeof bytes, bytes);
}

/* Identities are free for anybody who can connect: those that are away are forgotten when there are too many. */
static bool make_room(struct fleet *f)
{
    struct fleet_agent **oldest = NULL;
    int n = 0;
    for (struct fleet_agent **p = &f->agents; *p; p = &(*p)->next, n++)
        if ((*p)->state == FLEET_AWAY && !(*p)->loaded && (!oldest || (*p)->last_seen_us < (*oldest)->last_seen_us))
            oldest = p;
    if (n < MAX_AGENTS)
        return true;
    if (!oldest)
        return false;
    struct fleet_agent *a = *oldest;
    *oldest = a->next;
    fleet_link_forget(f, a);
    agent_free(a);
    return true;
}

static void send_welcome(struct fleet *f, struct chan *c, const struct wire_hello *h, const struct fleet_agent *a)
{
    struct wire_welcome w = {.version_major = WIRE_VERSION_MAJOR,
        .version_minor = WIRE_VERSION_MINOR,
        .nonce = h->nonce,
        .term = f->config.term,
        .lease_ms = f->config.lease_ms,
        .ping_ms = f->config.lease_ms / 4,
        .name = a->name};
    chan_send(c, WIRE_TYPE_welcome, &w);
}

static void join_control(struct fleet *f, struct chan *c, const struct wire_hello *h)
{
    struct fleet_agent *a = NULL;
    for (struct fleet_agent *k = f->agents; k && !a; k = k->next)
        if (strcmp(k->id, h->agent) == 0)
            a = k;
    if (a && a->state == FLEET_ALIVE)
        lose(a, "joined again on another connection");
    if (!a && !make_room(f)) {
        refuse(c, "LIMIT", "this yoked knows as many agents as it can");
        return;
    }
    if (!a) {
        a = yk_xalloc(sizeof *a);
        a->fleet = f;
        a->slow_factor = 1;
        snprintf(a->id, sizeof a->id, "%s", h->agent);
        a->next = f->agents;
        f->agents = a;
    }
    unique_name(f, a, h->name);
    take_device(a, h);
    a->state = FLEET_ALIVE;
    a->control = c;
    a->last_seen_us = a->since_us = net_now_us(f->config.net);
    chan_trust(c);
    chan_set(c, &control_on, a);
    send_welcome(f, c, h, a);
    log_info("agent %s (%s) joined from %s: %s, %lld cores, %.1f GFLOP/s", a->name, a->class_name, chan_peer(c),
        a->backends, (long long)a->cores, a->gflops);
    for (size_t i = 0; i < h->device.refused.n && i < MAX_REFUSED; i++)
        log_warn("agent %s goes without: %.480s", a->name, h->device.refused.at[i]);
    metrics_add(METRIC_agents_joined_total, 1);
    metrics_set(METRIC_agents, fleet_alive(f));
    fleet_save(a);
    fleet_sense(a);
    fleet_probe_joined(f, a);
    fleet_probe_next(f);
    f->config.on->joined(f->config.arg, a);
}

static void join_blob(struct fleet *f, struct chan *c, const struct wire_hello *h)
{
    struct fleet_agent *a = fleet_find(f, h->agent);
    if (!a || a->state != FLEET_ALIVE) {
        refuse(c, "AUTH", "join with a control connection first");
        return;
    }
    chan_close(a->blob, false);
    a->blob = c;
    chan_trust(c);
    chan_set(c, &blob_on, a);
    send_welcome(f, c, h, a);
}

static void guest_free(struct fleet_guest *g)
{
    *g->link = g->next;
    if (g->next)
        g->next->link = g->link;
    net_timer_cancel(g->timer);
    g->fleet->guests_n--;
    free(g);
}

static yk_err guest_message(void *arg, struct chan *c, struct wire_msg *msg)
{
    struct fleet_guest *g = arg;
    struct fleet *f = g->fleet;
    char text[200];
    if (msg->type != WIRE_TYPE_hello)
        return YK_STATE;
    guest_free(g);
    const struct wire_hello *h = &msg->as.hello;
    if (h->version_major != WIRE_VERSION_MAJOR) {
        snprintf(text, sizeof text, "this yoked speaks protocol %d.%d, the agent %lld.%lld: use matching versions",
            WIRE_VERSION_MAJOR, WIRE_VERSION_MINOR, (long long)h->version_major, (long long)h->version_minor);
        refuse(c, "VERSION", text);
    } else if (!valid_id(h->agent)) {
        refuse(c, "INVAL", "the agent id is not 32 hex digits");
    } else if (strcmp(h->kind, "control") == 0) {
        join_control(f, c, h);
    } else if (strcmp(h->kind, "data") == 0 && strcmp(h->purpose, "blob") == 0) {
        join_blob(f, c, h);
    } else if (strcmp(h->kind, "data") == 0 && strcmp(h->purpose, "probe") == 0) {
        if (!fleet_probe_adopt(f, c, h))
            refuse(c, "AUTH", "yoked asked for no such probe, or not any more");
    } else {
        refuse(c, "INVAL", "yoked takes control connections and data connections for blobs and probes");
    }
    return YK_OK;
}

static yk_err no_stream(void *arg, struct chan *c, struct wire_msg *head, struct chan_sink *sink)
{
    (void)arg;
    (void)c;
    (void)head;
    (void)sink;
    return YK_STATE;
}

static void guest_closed(void *arg, struct chan *c, yk_err err, const char *why)
{
    (void)err;
    log_debug("connection from %s ended before its hello: %s", chan_peer(c), why);
    guest_free(arg);
    chan_close(c, false);
}

static void guest_timeout(void *arg)
{
    struct fleet_guest *g = arg;
    struct chan *c = g->chan;
    g->timer = NULL;
    guest_free(g);
    chan_close(c, false);
}

static const struct chan_on guest_on = {guest_message, no_stream, guest_closed};

#define MAX_GUESTS 256

void fleet_accept(void *fleet, struct net_conn *conn)
{
    struct fleet *f = fleet;
    struct fleet_guest *oldest = f->guests;
    while (oldest && oldest->next)
        oldest = oldest->next;
    if (f->guests_n >= MAX_GUESTS && net_now_us(f->config.net) - oldest->since_us >= SILENT_US) {
        net_timer_cancel(oldest->timer);
        guest_timeout(oldest);
    }
    if (f->guests_n >= MAX_GUESTS) {
        net_conn_close(conn);
        return;
    }
    struct fleet_guest *g = yk_xalloc(sizeof *g);
    g->fleet = f;
    g->next = f->guests;
    g->link = &f->guests;
    if (g->next)
        g->next->link = &g->next;
    f->guests = g;
    f->guests_n++;
    g->since_us = net_now_us(f->config.net);
    g->timer = net_timer(f->config.net, HELLO_US, guest_timeout, g);
    g->chan = chan_open(conn, &guest_on, g);
}

/* ---- the control connection ---- */

static yk_err control_message(void *arg, struct chan *c, struct wire_msg *msg)
{
    struct fleet_agent *a = arg;
    struct fleet *f = a->fleet;
    a->last_seen_us = net_now_us(f->config.net);
    switch (msg->type) {
    case WIRE_TYPE_ping: {
        struct wire_pong pong = {.seq = msg->as.ping.seq, .term = f->config.term, .now_us = net_now_us(f->config.net)};
        take_sensors(a, &msg->as.ping.sensors);
        fleet_sense(a);
        if (chan_send(c, WIRE_TYPE_pong, &pong) == YK_BUSY)
            return YK_BUSY;
        return msg->as.ping.generations.n ? f->config.on->message(f->config.arg, a, msg) : YK_OK;
    }
    case WIRE_TYPE_pong:
        return YK_OK;
    case WIRE_TYPE_probe_result:
        fleet_probe_result(f, a, &msg->as.probe_result);
        return YK_OK;
    case WIRE_TYPE_profile_result:
        fleet_profile_result(a, &msg->as.profile_result);
        return YK_OK;
    case WIRE_TYPE_blobs_held:
        fleet_blobs_answer(a, &msg->as.blobs_held);
        return YK_OK;
    case WIRE_TYPE_leave:
        lose(a, msg->as.leave.text[0] ? msg->as.leave.text : "left");
        return YK_OK;
    default:
        return f->config.on->message(f->config.arg, a, msg);
    }
}

static void control_closed(void *arg, struct chan *c, yk_err err, const char *why)
{
    struct fleet_agent *a = arg;
    (void)err;
    if (a->control == c)
        lose(a, why);
    else
        chan_close(c, false);
}

static const struct chan_on control_on = {control_message, no_stream, control_closed};

/* ---- the blob connection ---- */

static yk_err blob_message(void *arg, struct chan *c, struct wire_msg *msg)
{
    struct fleet_agent *a = arg;
    struct fleet *f = a->fleet;
    struct yk_diag why = {0};
    const uint8_t *data;
    int64_t bytes;
    if (msg->type == WIRE_TYPE_ping || msg->type == WIRE_TYPE_pong)
        return YK_OK;
    if (msg->type != WIRE_TYPE_blob_get)
        return f->config.on->message(f->config.arg, a, msg);
    const struct wire_blob_get *get = &msg->as.blob_get;
    yk_err err = f->config.on->blob(f->config.arg, get->hash, &data, &bytes, &why);
    if (err) {
        struct wire_blob_refused r = {.id = get->id, .hash = get->hash, .error = yk_err_name(err), .text = why.text};
        return chan_send(c, WIRE_TYPE_blob_refused, &r);
    }
    struct wire_blob head = {.id = get->id, .hash = get->hash, .bytes = bytes};
    struct net_iov body = {data, (size_t)bytes};
    return chan_stream(c, CHAN_BULK, WIRE_TYPE_blob, &head, &body, 1, NULL, NULL);
}

static yk_err blob_stream(void *arg, struct chan *c, struct wire_msg *head, struct chan_sink *sink)
{
    struct fleet_agent *a = arg;
    (void)c;
    a->last_seen_us = net_now_us(a->fleet->config.net);
    return a->fleet->config.on->stream(a->fleet->config.arg, a, head, sink);
}

static void blob_closed(void *arg, struct chan *c, yk_err err, const char *why)
{
    struct fleet_agent *a = arg;
    (void)err;
    log_debug("blob connection of %s ended: %s", a->name, why);
    if (a->blob == c)
        a->blob = NULL;
    chan_close(c, false);
}

static const struct chan_on blob_on = {blob_message, blob_stream, blob_closed};

/* ---- open and close ---- */

struct fleet *fleet_open(const struct fleet_config *c)
{
    struct fleet *f = yk_xalloc(sizeof *f);
    f->config = *c;
    if (!f->config.probe_every_ms)
        f->config.probe_every_ms = 600000;
    if (!f->config.policy)
        f->config.policy = &policy_default;
    f->lease_timer = net_timer(c->net, c->lease_ms * 1000 / 8, check_leases, f);
    fleet_probe_restore(f);
    return f;
}

void fleet_close(struct fleet *f)
{
    if (!f)
        return;
    net_timer_cancel(f->lease_timer);
    while (f->guests) {
        struct chan *c = f->guests->chan;
        guest_free(f->guests);
        chan_close(c, false);
    }
    while (f->agents) {
        struct fleet_agent *a = f->agents;
        f->agents = a->next;
        chan_close(a->control, false);
        chan_close(a->blob, false);
        agent_free(a);
    }
    fleet_probe_fini(f);
    fleet_profile_fini(f);
    fleet_blobs_fini(f);
    free(f);
}
