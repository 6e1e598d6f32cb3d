/* A scripted agent that speaks the real wire on a net in memory: it joins, answers probes and profiles, loads stages
 * and feeds results, and can be told to freeze, vanish, stall a load or fail. Its "model" answers sample i with a row
 * whose values are i, so that a test sees from the output which sample went where, and how often. */
#ifndef TESTS_FAKE_AGENT_H
#define TESTS_FAKE_AGENT_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/chan.h"
#include "common/npy.h"
#include "common/onnx.h"

#pragma GCC diagnostic ignored "-Wunused-function" /* no suite needs all of them */

#define FAKE_WIDTH 10 /* values of an output row */
#define FAKE_LOADS 8

struct fake_load {
    int64_t generation;
    char *peers[16]; /* agents on the other end of its edges */
    int n_peers;
    bool busy; /* answers of the load are under way */
};

struct fake {
    struct net *net;
    const char *url; /* of yoked */
    char id[33];
    const char *name, *class_name;
    double node_ms; /* one sample through one node */
    double bytes_per_s, both_factor, rtt_us;
    const char *where; /* the host it can be dialled at; NULL: its name */
    int64_t memory_bytes;
    int64_t samples;                             /* of a NAME it holds */
    const char *isa;                             /* of its backend; NULL: "generic" */
    const char *heat;                            /* it tells; NULL: "nominal" */
    const char *gone;                            /* why it goes without another backend; NULL: it has all */
    int64_t sizes_major;                         /* version it claims; 0: ours */
    struct fake **others;                        /* NULL-ended: a dead or frozen peer stops the pipeline, as it would */
    int fail_probes;                             /* so many more break off */
    bool stall_load, stall_probe, stall_profile; /* say nothing */
    const char *fail_load;                       /* error text */
    int64_t lacking_bytes;                       /* that it says beside */
    int64_t started_late_ms;                     /* so long results overtake run_started */
    bool tells;                                  /* which of the contents it is asked for it has: */
    uint8_t held[8];                             /* a bit for each */
    bool tells_nonsense, stall_blobs;
    int fail_runs;   /* so many runs end with an error */
    int64_t quit_at; /* vanish after this many results; 0: never */

    /* what happened */
    bool joined, refused, frozen, dead;
    char refused_text[512];
    int64_t term, lease_ms, ping_ms;
    int asked_blobs;
    size_t asked_bytes;
    int probes, expects, profiles, loads, runs, unloads, cancels, results, blobs, joins;
    char got_name[64];
    char probed[33]; /* the peer of the first probe since this was cleared */

    struct chan *control, *blob;
    struct net_timer *ping, *step, *redial, *late;
    struct fake_load load[FAKE_LOADS];
    int64_t seq;

    /* graph being fetched for a profile */
    char graph[65];
    int64_t profile_id;
    int64_t profile_sizes[16];
    int n_profile_sizes;
    void *body;
    int64_t body_bytes;
    int32_t n_nodes;

    /* the run */
    bool running;
    int64_t generation, microbatch, count, first, next;
    char job[64];
    bool want_outputs, want_accuracy;
    int64_t *done;
    size_t n_done;
    char data[65];
    bool run_waits; /* for its data blob */
};

struct fake_body {
    void *data;
};

static void fake_dial(void *arg);
static void fake_step(void *arg);

static void fake_init(struct fake *f, struct net *net, const char *url, const char *name)
{
    memset(f, 0, sizeof(*f));
    f->net = net;
    f->url = url;
    f->name = name;
    f->class_name = "workstation";
    f->node_ms = 0.01;
    f->bytes_per_s = 100e6;
    f->both_factor = 2;
    f->rtt_us = 400;
    f->memory_bytes = (int64_t)1 << 30;
    f->samples = 1000;
    uint64_t h = 1469598103934665603u;
    for (const char *p = name; *p; p++)
        h = (h ^ (uint8_t)*p) * 1099511628211u;
    snprintf(f->id, sizeof(f->id), "%016llx%016llx", (unsigned long long)h, (unsigned long long)~h);
}

static void fake_stop_timers(struct fake *f)
{
    net_timer_cancel(f->ping);
    net_timer_cancel(f->step);
    net_timer_cancel(f->redial);
    net_timer_cancel(f->late);
    f->ping = f->step = f->redial = f->late = NULL;
}

static void fake_forget(struct fake *f)
{
    fake_stop_timers(f);
    f->running = f->run_waits = false;
    for (int i = 0; i < FAKE_LOADS; i++) {
        for (int k = 0; k < f->load[i].n_peers; k++)
            free(f->load[i].peers[k]);
        memset(&f->load[i], 0, sizeof(f->load[i]));
    }
    free(f->done);
    f->done = NULL;
    f->n_done = 0;
}

/* Gone as by SIGKILL: connections end, nothing is said. */
static void fake_kill(struct fake *f)
{
    struct chan *control = f->control, *blob = f->blob;
    f->dead = true;
    f->control = f->blob = NULL;
    f->joined = false;
    fake_forget(f);
    if (blob)
        chan_close(blob, false);
    if (control)
        chan_close(control, false);
    free(f->body);
    f->body = NULL;
}

/* As by SIGSTOP: connections stay, nothing is said or done. */
static void fake_freeze(struct fake *f)
{
    f->frozen = true;
    fake_stop_timers(f);
}

static void fake_start(struct fake *f)
{
    f->dead = f->frozen = false;
    fake_dial(f);
}

/* ---- results ---- */

static bool fake_is_done(const struct fake *f, int64_t microbatch)
{
    for (size_t i = 0; i + 1 < f->n_done; i += 2)
        if (microbatch >= f->done[i] && microbatch <= f->done[i + 1])
            return true;
    return false;
}

static void fake_body_sent(void *arg, yk_err err, size_t bytes)
{
    struct fake_body *b = arg;
    (void)err;
    (void)bytes;
    free(b->data);
    free(b);
}

static void fake_result(struct fake *f, int64_t microbatch)
{
    int64_t first = f->first + microbatch * f->microbatch;
    int64_t count = YK_MIN(f->microbatch, f->first + f->count - first);
    struct wire_result r = {.generation = f->generation,
        .job = f->job,
        .microbatch = microbatch,
        .first = first,
        .count = count,
        .correct = f->want_accuracy ? count - (first == 0) : -1}; /* sample 0 is wrong */
    f->results++;
    if (!f->want_outputs) {
        chan_send(f->control, WIRE_TYPE_result, &r);
        return;
    }
    int64_t dims[2] = {count, FAKE_WIDTH};
    struct wire_tensor t = {.value = 0,
        .dtype = "float32",
        .dims = {dims, 2},
        .codec = "raw",
        .offset = 0,
        .bytes = count * FAKE_WIDTH * 4};
    struct fake_body *b = yk_xalloc(sizeof(*b));
    float *values = b->data = yk_xalloc((size_t)t.bytes);
    for (int64_t i = 0; i < count * FAKE_WIDTH; i++)
        values[i] = (float)(first + i / FAKE_WIDTH);
    r.tensors.at = &t;
    r.tensors.n = 1;
    struct net_iov iov = {values, (size_t)t.bytes};
    if (chan_stream(f->blob, CHAN_DATA, WIRE_TYPE_result, &r, &iov, 1, fake_body_sent, b) != YK_OK)
        fake_body_sent(b, YK_CLOSED, 0);
}

static bool fake_peers_alive(const struct fake *f)
{
    for (int i = 0; i < FAKE_LOADS; i++) {
        if (f->load[i].generation != f->generation)
            continue;
        for (int k = 0; k < f->load[i].n_peers; k++)
            for (struct fake **o = f->others; o && *o; o++)
                if (strcmp((*o)->id, f->load[i].peers[k]) == 0 && ((*o)->dead || (*o)->frozen))
                    return false;
    }
    return true;
}

static void fake_run_end(struct fake *f, const char *error, const char *text)
{
    struct wire_run_done d = {.generation = f->generation, .job = f->job, .error = error, .text = text, .ms = 1};
    f->running = false;
    chan_send(f->control, WIRE_TYPE_run_done, &d);
}

static void fake_step(void *arg)
{
    struct fake *f = arg;
    f->step = NULL;
    if (!f->running || !f->control)
        return;
    int64_t n = (f->count + f->microbatch - 1) / f->microbatch;
    while (f->next < n && fake_is_done(f, f->next))
        f->next++;
    if (f->next >= n) {
        fake_run_end(f, "", "");
        return;
    }
    if (!fake_peers_alive(f))
        return; /* wedged: the lease must find it */
    if (f->quit_at && f->results >= f->quit_at) {
        f->quit_at = 0;
        fake_kill(f);
        return;
    }
    fake_result(f, f->next++);
    double ms = f->node_ms * (double)f->microbatch * YK_MAX(f->n_nodes, 1);
    f->step = net_timer(f->net, (int64_t)(ms * 1000) + 1, fake_step, f);
}

static void fake_run_started(void *arg)
{
    struct fake *f = arg;
    struct wire_run_started s = {.generation = f->generation,
        .job = f->job,
        .samples = f->count,
        .microbatches = (f->count + f->microbatch - 1) / f->microbatch};
    f->late = NULL;
    if (f->control)
        chan_send(f->control, WIRE_TYPE_run_started, &s);
}

static void fake_run_begin(struct fake *f)
{
    if (f->fail_runs > 0) {
        f->fail_runs--;
        fake_run_end(f, "IO", "the data set is broken");
        return;
    }
    f->running = true;
    f->next = 0;
    net_timer_cancel(f->late);
    f->late = NULL;
    if (f->started_late_ms)
        f->late = net_timer(f->net, f->started_late_ms * 1000, fake_run_started, f);
    else
        fake_run_started(f);
    net_timer_cancel(f->step);
    f->step = net_timer(f->net, 1000, fake_step, f);
}

static void fake_blob_get(struct fake *f, const char *hash)
{
    struct wire_blob_get g = {.id = ++f->seq, .hash = hash};
    if (f->blob)
        chan_send(f->blob, WIRE_TYPE_blob_get, &g);
}

/* ---- answers ---- */

static void fake_send_profile(struct fake *f)
{
    struct wire_node_time t[256];
    size_t n = 0;
    for (int32_t node = 0; node < f->n_nodes; node++) {
        for (int s = 0; s < f->n_profile_sizes && n < YK_COUNT(t); s++) {
            t[n++] = (struct wire_node_time){.node = node,
                .form = "ref@generic",
                .size = f->profile_sizes[s],
                .ms = f->node_ms * (double)f->profile_sizes[s],
                .prepare_ms = 0.1,
                .packed_bytes = 0,
                .workspace_bytes = 64};
        }
    }
    struct wire_profile_result r = {
        .id = f->profile_id, .graph = f->graph, .error = "", .text = "", .times = {t, n}, .more = false};
    f->profile_id = 0;
    chan_send(f->control, WIRE_TYPE_profile_result, &r);
}

static void fake_got_blob(void *arg, yk_err err)
{
    struct fake *f = arg;
    if (err || !f->body)
        return;
    f->blobs++;
    struct graph *g = NULL;
    struct npy npy;
    if (f->profile_id && onnx_import_memory(f->body, (size_t)f->body_bytes, &g, NULL, NULL) == YK_OK) {
        f->n_nodes = g->n_nodes;
        graph_close(g);
        fake_send_profile(f);
    } else if (f->run_waits && npy_parse(f->body, (size_t)f->body_bytes, f->body_bytes, &npy, NULL) == YK_OK) {
        f->run_waits = false;
        f->count = npy.shape.dims[0];
        fake_run_begin(f);
    }
    free(f->body);
    f->body = NULL;
}

static void fake_loaded(void *arg)
{
    struct fake *f = arg;
    if (!f->control || f->dead || f->frozen)
        return;
    for (int i = 0; i < FAKE_LOADS; i++) {
        if (!f->load[i].busy)
            continue;
        f->load[i].busy = false;
        struct wire_loaded l = {.generation = f->load[i].generation,
            .error = f->fail_load ? "NOMEM" : "",
            .text = f->fail_load ? f->fail_load : "",
            .memory_bytes = f->fail_load ? f->lacking_bytes : 1 << 20,
            .ms = 5};
        chan_send(f->control, WIRE_TYPE_loaded, &l);
    }
}

static void fake_on_load(struct fake *f, const struct wire_load *l)
{
    f->loads++;
    int at = 0;
    while (at < FAKE_LOADS - 1 && f->load[at].generation)
        at++;
    struct fake_load *slot = &f->load[at];
    slot->generation = l->generation;
    for (size_t i = 0; i < l->edges.n && slot->n_peers < 16; i++)
        slot->peers[slot->n_peers++] = yk_xstrdup(l->edges.at[i].peer);
    if (f->stall_load)
        return;
    slot->busy = true;
    net_timer(f->net, 5000, fake_loaded, f);
}

static void fake_on_unload(struct fake *f, int64_t generation)
{
    f->unloads++;
    for (int i = 0; i < FAKE_LOADS; i++) {
        if (f->load[i].generation != generation)
            continue;
        for (int k = 0; k < f->load[i].n_peers; k++)
            free(f->load[i].peers[k]);
        memset(&f->load[i], 0, sizeof(f->load[i]));
    }
    if (f->running && f->generation == generation)
        f->running = false;
}

static void fake_on_run(struct fake *f, const struct wire_run *r)
{
    f->runs++;
    f->generation = r->generation;
    snprintf(f->job, sizeof(f->job), "%s", r->job);
    f->microbatch = r->microbatch;
    f->first = r->first;
    f->count = r->count ? r->count : f->samples;
    f->want_outputs = r->want_outputs;
    f->want_accuracy = r->want_accuracy;
    free(f->done);
    f->n_done = r->done.n;
    f->done = yk_xalloc((r->done.n + 1) * sizeof(int64_t));
    if (r->done.n)
        memcpy(f->done, r->done.at, r->done.n * sizeof(int64_t));
    if (r->blob) {
        f->run_waits = true;
        fake_blob_get(f, r->data);
    } else {
        fake_run_begin(f);
    }
}

static void fake_on_probe(struct fake *f, const struct wire_probe *p)
{
    f->probes++;
    if (!f->probed[0])
        snprintf(f->probed, sizeof(f->probed), "%s", p->peer);
    if (f->stall_probe)
        return;
    if (f->fail_probes > 0) {
        struct wire_probe_result broken = {
            .id = p->id, .peer = p->peer, .error = yk_err_name(YK_CLOSED), .text = "connection closed", .url = ""};
        f->fail_probes--;
        chan_send(f->control, WIRE_TYPE_probe_result, &broken);
        return;
    }
    double peer_rate = f->bytes_per_s;
    for (struct fake **o = f->others; o && *o; o++)
        if (strcmp((*o)->id, p->peer) == 0)
            peer_rate = (*o)->bytes_per_s;
    double rate = YK_MIN(f->bytes_per_s, peer_rate);
    struct wire_probe_result r = {.id = p->id,
        .peer = p->peer,
        .error = "",
        .text = "",
        .url = p->urls.n ? p->urls.at[0] : "",
        .to_bytes_per_s = rate,
        .from_bytes_per_s = rate,
        .both_bytes_per_s = rate * f->both_factor,
        .rtt_us = f->rtt_us,
        .cpu_ns_per_byte = 0.5};
    chan_send(f->control, WIRE_TYPE_probe_result, &r);
}

static void fake_on_profile(struct fake *f, const struct wire_profile *p)
{
    f->profiles++;
    if (f->stall_profile)
        return;
    f->profile_id = p->id;
    snprintf(f->graph, sizeof(f->graph), "%s", p->graph);
    f->n_profile_sizes = 0;
    for (size_t i = 0; i < p->sizes.n && i < YK_COUNT(f->profile_sizes); i++)
        f->profile_sizes[f->n_profile_sizes++] = p->sizes.at[i];
    fake_blob_get(f, p->graph);
}

/* ---- connections ---- */

static void fake_ping(void *arg)
{
    struct fake *f = arg;
    struct wire_ping p = {.seq = ++f->seq, .term = f->term, .sensors = {.heat = f->heat ? f->heat : "nominal"}};
    f->ping = NULL;
    if (!f->control)
        return;
    chan_send(f->control, WIRE_TYPE_ping, &p);
    f->ping = net_timer(f->net, f->ping_ms * 1000, fake_ping, f);
}

static yk_err fake_message(void *arg, struct chan *c, struct wire_msg *m)
{
    struct fake *f = arg;
    if (f->frozen || f->dead)
        return YK_OK;
    switch (m->type) {
    case WIRE_TYPE_ping: {
        struct wire_pong p = {.seq = m->as.ping.seq, .term = f->term};
        chan_send(c, WIRE_TYPE_pong, &p);
        break;
    }
    case WIRE_TYPE_probe:
        fake_on_probe(f, &m->as.probe);
        break;
    case WIRE_TYPE_expect:
        f->expects++;
        break;
    case WIRE_TYPE_profile:
        fake_on_profile(f, &m->as.profile);
        break;
    case WIRE_TYPE_blobs_ask:
        f->asked_blobs++;
        f->asked_bytes = m->as.blobs_ask.hashes.len;
        if (!f->stall_blobs) {
            size_t n = m->as.blobs_ask.hashes.len / 32;
            struct wire_blobs_held held = {
                .id = m->as.blobs_ask.id, .held = {f->held, f->tells_nonsense ? 1 : (n + 7) / 8}};
            chan_send(c, WIRE_TYPE_blobs_held, &held);
        }
        break;
    case WIRE_TYPE_load:
        fake_on_load(f, &m->as.load);
        break;
    case WIRE_TYPE_unload:
        fake_on_unload(f, m->as.unload.generation);
        break;
    case WIRE_TYPE_run:
        fake_on_run(f, &m->as.run);
        break;
    case WIRE_TYPE_cancel:
        f->cancels++;
        if (f->running && f->generation == m->as.cancel.generation)
            fake_run_end(f, "CANCELED", "canceled");
        break;
    default:
        break;
    }
    return YK_OK;
}

static yk_err fake_stream(void *arg, struct chan *c, struct wire_msg *head, struct chan_sink *sink)
{
    struct fake *f = arg;
    (void)c;
    if (head->type != WIRE_TYPE_blob || f->body)
        return YK_FORMAT;
    f->body_bytes = head->as.blob.bytes;
    f->body = malloc((size_t)f->body_bytes + 1);
    *sink = (struct chan_sink){.buf = f->body, .len = (size_t)f->body_bytes, .done = fake_got_blob, .arg = f};
    return YK_OK;
}

static void fake_closed(void *arg, struct chan *c, yk_err err, const char *why)
{
    struct fake *f = arg;
    (void)err;
    (void)why;
    bool control = c == f->control;
    if (control)
        f->control = NULL;
    if (c == f->blob)
        f->blob = NULL;
    chan_close(c, false);
    if (!control || f->dead)
        return;
    f->joined = false;
    fake_forget(f);
    if (f->blob) {
        struct chan *blob = f->blob;
        f->blob = NULL;
        chan_close(blob, false);
    }
    if (!f->frozen && !f->refused)
        f->redial = net_timer(f->net, 300000, fake_dial, f);
}

static const struct chan_on fake_on = {fake_message, fake_stream, fake_closed};

static void fake_hello(struct fake *f, struct chan *c, const char *kind, const char *purpose)
{
    static const char *const ops[] = {"*"};
    static const char *const kinds[] = {"infer", "batch"};
    const char *urls[1], *features[] = {"blobs"};
    char url[80];
    snprintf(url, sizeof(url), "mem://%s", f->where ? f->where : f->name);
    urls[0] = url;
    struct wire_backend b = {.name = "ref",
        .isa = f->isa ? f->isa : "generic",
        .exact = true,
        .gflops = 1 / f->node_ms,
        .gbytes_per_s = 10,
        .ops = {(const char **)(uintptr_t)ops, 1}};
    struct wire_hello h = {.kind = kind,
        .version_major = f->sizes_major ? f->sizes_major : WIRE_VERSION_MAJOR,
        .version_minor = WIRE_VERSION_MINOR,
        .features = {features, f->tells},
        .job_kinds = {(const char **)(uintptr_t)kinds, 2},
        .agent = f->id,
        .name = f->name,
        .nonce = {(const uint8_t *)"0123456789abcdef", 16},
        .urls = {urls, 1},
        .device = {.class_name = f->class_name,
            .os = "test",
            .cores = 1,
            .threads = 1,
            .memory_bytes = f->memory_bytes,
            .backends = {&b, 1},
            .refused = {&f->gone, f->gone ? 1 : 0}},
        .sensors = {.heat = "nominal", .memory_available_bytes = f->memory_bytes},
        .term = f->term,
        .purpose = purpose};
    chan_send(c, WIRE_TYPE_hello, &h);
}

static void fake_blob_dialled(void *arg, yk_err err, struct net_conn *conn)
{
    struct fake *f = arg;
    if (err)
        return;
    if (f->dead || !f->control || f->blob) {
        net_conn_close(conn);
        return;
    }
    f->blob = chan_open(conn, &fake_on, f);
    chan_trust(f->blob);
    fake_hello(f, f->blob, "data", "blob");
}

static yk_err fake_first(void *arg, struct chan *c, struct wire_msg *m)
{
    struct fake *f = arg;
    if (m->type == WIRE_TYPE_refuse) {
        f->refused = true;
        snprintf(f->refused_text, sizeof(f->refused_text), "%s", m->as.refuse.text);
        return YK_OK;
    }
    if (m->type != WIRE_TYPE_welcome)
        return YK_FORMAT;
    f->joined = true;
    f->joins++;
    f->term = m->as.welcome.term;
    f->lease_ms = m->as.welcome.lease_ms;
    f->ping_ms = m->as.welcome.ping_ms;
    snprintf(f->got_name, sizeof(f->got_name), "%s", m->as.welcome.name);
    chan_set(c, &fake_on, f);
    chan_trust(c);
    fake_ping(f);
    net_dial(f->net, f->url, 5000000, fake_blob_dialled, f);
    return YK_OK;
}

static const struct chan_on fake_first_on = {fake_first, fake_stream, fake_closed};

static void fake_dialled(void *arg, yk_err err, struct net_conn *conn)
{
    struct fake *f = arg;
    if (err) {
        if (!f->dead && !f->redial)
            f->redial = net_timer(f->net, 300000, fake_dial, f);
        return;
    }
    if (f->dead) {
        net_conn_close(conn);
        return;
    }
    f->control = chan_open(conn, &fake_first_on, f);
    fake_hello(f, f->control, "control", "");
}

static void fake_dial(void *arg)
{
    struct fake *f = arg;
    f->redial = NULL;
    if (f->dead || f->frozen)
        return;
    net_dial(f->net, f->url, 5000000, fake_dialled, f);
}

#endif
