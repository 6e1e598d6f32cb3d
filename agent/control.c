#include "agent/control.h"

#include "agent/blob.h"
#include "agent/link.h"
#include "agent/load.h"
#include "agent/peer.h"
#include "agent/probe.h"
#include "agent/runner.h"
#include "agent/source.h"
#include "agent/source_judge.h"
#include "agent/spans.h"
#include "agent/training.h"
#include "common/hash.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define RETRY_FIRST_US 200000
#define RETRY_MAX_US 5000000
#define HELLO_US 10000000
#define LEASE_MS 6000
#define PING_MS 1000
#define STALE_WELCOMES 5 /* so often in a row an older term is refused; then its scheduler was set up anew */

static void dial(struct agent *a);

yk_err control_send(struct agent *a, enum wire_type type, const void *msg)
{
    return a->joined ? chan_send(a->control, type, msg) : YK_CLOSED;
}

/* ---- losing it ---- */

static void on_retry(void *arg)
{
    struct agent *a = arg;
    a->retry_timer = NULL;
    dial(a);
}

static void retry_later(struct agent *a)
{
    if (!a->scheduler_url || a->closing || a->state == AGENT_SUSPENDED || a->retry_timer)
        return;
    double jitter = 0.75 + 0.5 * yk_rng_unit(&a->rng);
    a->retry_timer = net_timer(a->net, (int64_t)((double)a->retry_us * jitter), on_retry, a);
    a->retry_us = YK_MIN(2 * a->retry_us, RETRY_MAX_US);
}

/* The lease is over and yoked did not come back: nobody will ask for what is loaded. */
static void on_lease(void *arg)
{
    struct agent *a = arg;
    a->lease_timer = NULL;
    if (a->pipelines)
        log_info("no scheduler for a lease: unloading everything");
    while (a->pipelines)
        pipeline_unload(a->pipelines);
}

/* Closes what there is of a control connection. */
static void drop(struct agent *a, const char *leave)
{
    struct chan *c = a->control;
    bool joined = a->joined;
    if (c && leave) {
        struct wire_leave w = {.text = leave};
        control_send(a, WIRE_TYPE_leave, &w);
    }
    a->control = NULL;
    a->joined = false;
    core_dial_cancel(a->dialing);
    a->dialing = NULL;
    net_timer_cancel(a->ping_timer);
    net_timer_cancel(a->hello_timer);
    a->ping_timer = a->hello_timer = NULL;
    if (c)
        chan_close(c, leave != NULL);
    if (joined && !a->lease_timer && !a->closing)
        a->lease_timer = net_timer(a->net, a->lease_ms * 1000, on_lease, a);
}

static void lost(struct agent *a, const char *why)
{
    drop(a, NULL);
    core_state(a, AGENT_CONNECTING, "%s", why);
    retry_later(a);
}

static void on_hello_timer(void *arg)
{
    struct agent *a = arg;
    a->hello_timer = NULL;
    lost(a, "the scheduler did not answer the hello");
}

static void on_ping(void *arg)
{
    struct agent *a = arg;
    a->ping_timer = NULL;
    control_check_backends(a);
    if (!a->joined)
        return;
    int64_t heard_us = YK_MAX(chan_last_rx_us(a->control), blob_last_rx_us(a));
    if (net_now_us(a->net) - heard_us > a->lease_ms * 1000) {
        blob_drop(a);
        lost(a, "the scheduler is silent");
        return;
    }
    int64_t generations[64];
    struct wire_ping w = {.seq = ++a->ping_seq, .term = a->term};
    core_sensors(a, &w.sensors);
    w.sensors.load = runner_load(a);
    w.generations.at = generations;
    for (struct pipeline *p = a->pipelines; p && w.generations.n < YK_COUNT(generations); p = p->next)
        generations[w.generations.n++] = p->generation;
    spans_pinged(a);
    control_send(a, WIRE_TYPE_ping, &w);
    a->ping_timer = net_timer(a->net, a->ping_ms * 1000, on_ping, a);
    source_retry(a);
    pipeline_expire(a);
}

void control_check_backends(struct agent *a)
{
    if (!a->joined || a->closing || core_lost(a) == a->n_lost)
        return;
    log_warn("joining again without the backend that was taken out");
    a->retry_us = RETRY_FIRST_US;
    lost(a, "joining again: a backend was taken out");
}

/* ---- joining ---- */

static yk_err on_welcome(struct agent *a, const struct wire_welcome *w)
{
    if (w->version_major != WIRE_VERSION_MAJOR) {
        char text[160];
        snprintf(text, sizeof text, "the scheduler speaks version %lld.%lld, this agent %d.%d",
            (long long)w->version_major, (long long)w->version_minor, WIRE_VERSION_MAJOR, WIRE_VERSION_MINOR);
        drop(a, NULL);
        core_state(a, AGENT_REFUSED, "%s", text);
        retry_later(a);
        return YK_OK;
    }
    if (w->nonce.len != sizeof a->nonce || !hash_same(w->nonce.data, a->nonce, sizeof a->nonce))
        return YK_AUTH; /* not an answer to our hello */
    if (w->term < a->term && ++a->stale_welcomes < STALE_WELCOMES) {
        log_warn(
            "refusing a scheduler of term %lld: term %lld was obeyed before", (long long)w->term, (long long)a->term);
        return YK_STALE;
    }
    if (w->term != a->term) /* its generations are of another life */
        while (a->pipelines)
            pipeline_unload(a->pipelines);
    a->stale_welcomes = 0;
    a->term = w->term;
    a->lease_ms = w->lease_ms > 0 ? YK_MIN(YK_MAX(w->lease_ms, 100), 3600000) : LEASE_MS;
    a->ping_ms = w->ping_ms > 0 ? YK_MIN(YK_MAX(w->ping_ms, 20), a->lease_ms) : PING_MS;
    a->joined = true;
    a->retry_us = RETRY_FIRST_US;
    net_timer_cancel(a->hello_timer);
    net_timer_cancel(a->lease_timer);
    a->hello_timer = a->lease_timer = NULL;
    chan_trust(a->control);
    if (w->name[0])
        snprintf(a->name, sizeof a->name, "%s", w->name);
    a->ping_timer = net_timer(a->net, 0, on_ping, a);
    core_state(a, AGENT_JOINED, "joined %s as %s, term %lld", a->scheduler_url ? a->scheduler_url : "the scheduler",
        a->name, (long long)a->term);
    source_retry(a);
    return YK_OK;
}

/* The term of a command; -1 if the message has none. */
static int64_t term_of(const struct wire_msg *m)
{
    switch (m->type) {
    case WIRE_TYPE_probe:
        return m->as.probe.term;
    case WIRE_TYPE_expect:
        return m->as.expect.term;
    case WIRE_TYPE_profile:
        return m->as.profile.term;
    case WIRE_TYPE_load:
        return m->as.load.term;
    case WIRE_TYPE_unload:
        return m->as.unload.term;
    case WIRE_TYPE_run:
        return m->as.run.term;
    case WIRE_TYPE_cancel:
        return m->as.cancel.term;
    case WIRE_TYPE_norm:
        return m->as.norm.term;
    case WIRE_TYPE_halt:
        return m->as.halt.term;
    case WIRE_TYPE_keep:
        return m->as.keep.term;
    case WIRE_TYPE_judge:
        return m->as.judge.term;
    case WIRE_TYPE_blobs_ask:
        return m->as.blobs_ask.term;
    default:
        return -1;
    }
}

static void on_run(struct agent *a, struct wire_msg *m)
{
    const struct wire_run *w = &m->as.run;
    struct pipeline *p = pipeline_find(a, w->generation);
    if (p && p->state == PIPELINE_READY) {
        source_start(p, m);
        return;
    }
    struct wire_run_done done = {.generation = w->generation,
        .job = w->job,
        .error = yk_err_name(p ? YK_STATE : YK_NOTFOUND),
        .text = p ? "the generation is not ready" : "the generation is not loaded here"};
    control_send(a, WIRE_TYPE_run_done, &done);
}

static void on_blobs_ask(struct agent *a, const struct wire_blobs_ask *w)
{
    size_t n = w->hashes.len / HASH_BYTES, bytes = (n + 7) / 8;
    uint8_t *held = yk_xalloc(bytes + 1);
    char hex[HASH_HEX_SIZE];
    for (size_t i = 0; i < n; i++) {
        yk_hex(w->hashes.data + i * HASH_BYTES, HASH_BYTES, hex);
        held[i / 8] |= (uint8_t)(cache_has(a->cache, hex) << i % 8);
    }
    struct wire_blobs_held answer = {.id = w->id, .held = {held, bytes}};
    control_send(a, WIRE_TYPE_blobs_held, &answer);
    free(held);
}

static void command(struct agent *a, struct wire_msg *m)
{
    struct pipeline *p;
    switch (m->type) {
    case WIRE_TYPE_probe:
        link_probe(a, m);
        break;
    case WIRE_TYPE_expect:
        link_expect(a, &m->as.expect);
        break;
    case WIRE_TYPE_profile:
        probe_model(a, m);
        break;
    case WIRE_TYPE_load:
        if (pipeline_find(a, m->as.load.generation))
            load_send_error(a, m->as.load.generation, YK_EXISTS, "the generation is loaded already", 0);
        else
            load_start(a, m);
        break;
    case WIRE_TYPE_unload:
        p = pipeline_find(a, m->as.unload.generation);
        if (p)
            pipeline_unload(p);
        break;
    case WIRE_TYPE_run:
        on_run(a, m);
        break;
    case WIRE_TYPE_cancel:
        p = pipeline_find(a, m->as.cancel.generation);
        if (p)
            source_stop(p, YK_CANCELED, "the job was cancelled");
        break;
    case WIRE_TYPE_norm:
        p = pipeline_find(a, m->as.norm.generation);
        if (p)
            training_norm(p, &m->as.norm);
        break;
    case WIRE_TYPE_halt:
        p = pipeline_find(a, m->as.halt.generation);
        if (p)
            source_halt(p);
        break;
    case WIRE_TYPE_keep:
        p = pipeline_find(a, m->as.keep.generation);
        if (p)
            training_keep(p, &m->as.keep);
        break;
    case WIRE_TYPE_judge:
        source_judge(a, &m->as.judge);
        break;
    case WIRE_TYPE_blobs_ask:
        on_blobs_ask(a, &m->as.blobs_ask);
        break;
    default:
        break; /* a newer minor's, or nothing for us */
    }
}

static yk_err on_message(void *arg, struct chan *c, struct wire_msg *m)
{
    struct agent *a = arg;
    if (m->type == WIRE_TYPE_refuse) {
        char text[400];
        snprintf(text, sizeof text, "the scheduler refused: %.300s", m->as.refuse.text);
        drop(a, NULL);
        a->retry_us = RETRY_MAX_US;
        core_state(a, AGENT_REFUSED, "%s", text);
        retry_later(a);
        return YK_OK;
    }
    if (a->joined && m->type == WIRE_TYPE_pong)
        spans_pong(a, &m->as.pong);
    if (!a->joined)
        return m->type == WIRE_TYPE_welcome ? on_welcome(a, &m->as.welcome) : YK_FORMAT;
    if (m->type == WIRE_TYPE_ping) {
        struct wire_pong w = {.seq = m->as.ping.seq, .term = a->term};
        chan_send(c, WIRE_TYPE_pong, &w);
        return YK_OK;
    }
    int64_t term = term_of(m);
    if (term >= 0 && term < a->term) {
        log_warn("dropped a %s of term %lld: this agent obeys term %lld", wire_name(m->type), (long long)term,
            (long long)a->term);
        return YK_OK;
    }
    a->term = YK_MAX(a->term, term);
    command(a, m);
    return YK_OK;
}

static yk_err on_stream(void *arg, struct chan *c, struct wire_msg *m, struct chan_sink *sink)
{
    (void)arg, (void)c, (void)m, (void)sink;
    return YK_FORMAT; /* tensors have connections of their own */
}

static void on_closed(void *arg, struct chan *c, yk_err err, const char *why)
{
    (void)err;
    struct agent *a = arg;
    char text[300];
    if (a->control != c) {
        chan_close(c, false);
        return;
    }
    snprintf(text, sizeof text, "lost the scheduler: %.250s", why);
    lost(a, text);
}

static const struct chan_on on_control = {on_message, on_stream, on_closed};

static void say_hello(struct agent *a)
{
    static const char *features[] = {CORE_FEATURES};
    static const char *kinds[] = {"infer", "batch", "train"};
    struct yk_arena *arena = yk_arena_open(0);
    const char *url = a->bound_url ? a->bound_url : "";
    struct wire_hello h = {.kind = "control",
        .version_major = WIRE_VERSION_MAJOR,
        .version_minor = WIRE_VERSION_MINOR,
        .agent = a->id,
        .name = a->name,
        .nonce = {a->nonce, sizeof a->nonce},
        .term = a->term};
    net_random(a->net, a->nonce, sizeof a->nonce);
    h.features.at = features;
    h.features.n = YK_COUNT(features);
    h.job_kinds.at = kinds;
    h.job_kinds.n = YK_COUNT(kinds);
    h.urls.at = &url;
    h.urls.n = a->bound_url ? 1 : 0;
    a->n_lost = core_lost(a);
    core_device(a, arena, &h.device);
    core_sensors(a, &h.sensors);
    yk_err err = chan_send(a->control, WIRE_TYPE_hello, &h);
    if (err)
        log_error("cannot say hello: %s", yk_err_text(err));
    yk_arena_close(arena);
    a->hello_timer = net_timer(a->net, HELLO_US, on_hello_timer, a);
}

static void on_dialled(void *arg, yk_err err, struct net_conn *conn, const char *url)
{
    struct agent *a = arg;
    a->dialing = NULL;
    if (err) {
        log_at(a->retry_us == RETRY_FIRST_US ? LOG_WARN : LOG_DEBUG, "cannot reach %s: %s; trying again", url,
            yk_err_text(err));
        retry_later(a);
        return;
    }
    a->control = chan_open(conn, &on_control, a);
    say_hello(a);
}

static void dial(struct agent *a)
{
    const char *url = a->scheduler_url;
    if (!a->dialing && !a->control && url)
        a->dialing = core_dial(a, &url, 1, CORE_DIAL_US, on_dialled, a);
}

void control_adopt(struct agent *a, struct chan *c)
{
    if (a->control || !a->probed || a->state == AGENT_SUSPENDED) {
        peer_refuse(c, YK_BUSY, a->control ? "this agent has a scheduler" : "this agent is not ready");
        return;
    }
    a->control = c;
    chan_set(c, &on_control, a);
    say_hello(a);
}

static void on_probed(struct agent *a)
{
    a->probing = false;
    a->probed = true;
    if (a->state != AGENT_SUSPENDED)
        control_start(a);
}

void control_start(struct agent *a)
{
    a->retry_us = RETRY_FIRST_US;
    if (a->probed) {
        core_state(a, AGENT_CONNECTING, "%s %s", a->scheduler_url ? "connecting to" : "waiting to be dialled at",
            a->scheduler_url ? a->scheduler_url : a->bound_url);
        dial(a);
    } else if (!a->probing) {
        a->probing = true;
        probe_device(a, on_probed);
    }
}

void control_stop(struct agent *a, const char *leave)
{
    drop(a, leave);
    net_timer_cancel(a->retry_timer);
    net_timer_cancel(a->lease_timer);
    a->retry_timer = a->lease_timer = NULL;
}
