/* A scripted yoked on virtual time and the agents that join it: for tests of the agent. It obeys nobody's policy: a
 * test says which load, run or probe is sent, and looks at what came back. */
#ifndef YK_TEST_AGENT_BED_H
#define YK_TEST_AGENT_BED_H

#include "agent/agent.h"
#include "agent/emulate.h"
#include "common/chan.h"
#include "common/cut.h"
#include "common/hash.h"
#include "common/npy.h"
#include "common/onnx.h"
#include "common/passes.h"
#include "kernels/exec.h"
#include "kernels/fold.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#define BED_AGENTS 3
#define BED_BLOBS 64
#define BED_SAMPLES 37
#define BED_MAX_RESULTS 512
#define BED_CLASSES 10
#define BED_PIXELS 784

struct bed;

struct bed_blob {
    char hex[HASH_HEX_SIZE];
    const void *data;
    size_t len;
};

struct bed_agent {
    struct bed *bed;
    struct agent *agent;
    struct storage *storage;
    struct chan *control, *blob;
    char id[33], url[64];
    int joins, pings, leaves, hellos;
    size_t generations; /* that the last ping named */
    int64_t memory_bytes;
    bool emulated;
    enum agent_state state;
    char state_text[512];
};

struct bed_result {
    int64_t microbatch, first, count, correct;
    float *data; /* of the first output */
    int64_t bytes;
};

struct bed {
    struct net *net;
    struct net_listener *listener;
    struct bed_agent agents[BED_AGENTS];
    int64_t term;
    bool refuse, mute, corrupt, huge; /* what this yoked does wrong */
    struct bed_blob blobs[BED_BLOBS];
    int n_blobs, n_gets;
    char root[64];
    /* the model */
    struct graph *graph;
    struct yk_buf skeleton;
    char hex[HASH_HEX_SIZE];
    struct shapes shapes;
    float *x; /* BED_SAMPLES rows */
    int64_t y[BED_SAMPLES];
    /* what came */
    int n_loaded, n_failed, n_done, n_started, n_stats, n_probes, n_profiles;
    int64_t loaded_bytes, fetched_bytes, samples, microbatches, rows;
    char loaded_error[32], loaded_text[512], failed_error[32], failed_text[512], failed_peer[64], done_error[32],
        done_text[512];
    double codec_error, compute_ms, sent_bytes;
    int64_t nonfinite;
    struct bed_result results[BED_MAX_RESULTS];
    int n_results;
    struct wire_probe_result probe;
    char probe_error[32];
};

static inline struct bed_agent *bed_find(struct bed *b, const char *id)
{
    for (int i = 0; i < BED_AGENTS; i++)
        if (!strcmp(b->agents[i].id, id))
            return &b->agents[i];
    return NULL;
}

/* ---- yoked's side of a connection ---- */

static inline void bed_note(char *to, size_t size, const char *from)
{
    snprintf(to, size, "%s", from);
}

static inline void bed_result_message(struct bed *b, const struct wire_result *w)
{
    assert_true(b->n_results < BED_MAX_RESULTS);
    b->results[b->n_results++] = (struct bed_result){w->microbatch, w->first, w->count, w->correct, NULL, 0};
}

static inline yk_err bed_on_message(void *arg, struct chan *c, struct wire_msg *m)
{
    struct bed_agent *a = arg;
    struct bed *b = a->bed;
    switch (m->type) {
    case WIRE_TYPE_ping: {
        struct wire_pong pong = {.seq = m->as.ping.seq, .term = b->term};
        a->pings++;
        a->generations = m->as.ping.generations.n;
        if (!b->mute)
            chan_send(c, WIRE_TYPE_pong, &pong);
        break;
    }
    case WIRE_TYPE_leave:
        a->leaves++;
        break;
    case WIRE_TYPE_loaded:
        b->n_loaded++;
        b->loaded_bytes = m->as.loaded.memory_bytes;
        b->fetched_bytes += m->as.loaded.fetched_bytes;
        if (m->as.loaded.error[0]) {
            bed_note(b->loaded_error, sizeof b->loaded_error, m->as.loaded.error);
            bed_note(b->loaded_text, sizeof b->loaded_text, m->as.loaded.text);
        }
        break;
    case WIRE_TYPE_stage_failed:
        b->n_failed++;
        bed_note(b->failed_error, sizeof b->failed_error, m->as.stage_failed.error);
        bed_note(b->failed_text, sizeof b->failed_text, m->as.stage_failed.text);
        bed_note(b->failed_peer, sizeof b->failed_peer, m->as.stage_failed.peer);
        break;
    case WIRE_TYPE_run_started:
        b->n_started++;
        b->samples = m->as.run_started.samples;
        b->microbatches = m->as.run_started.microbatches;
        break;
    case WIRE_TYPE_run_done:
        b->n_done++;
        bed_note(b->done_error, sizeof b->done_error, m->as.run_done.error);
        bed_note(b->done_text, sizeof b->done_text, m->as.run_done.text);
        break;
    case WIRE_TYPE_result:
        bed_result_message(b, &m->as.result);
        break;
    case WIRE_TYPE_stage_stats:
        b->n_stats++;
        b->codec_error = YK_MAX(b->codec_error, m->as.stage_stats.codec_error);
        b->nonfinite += m->as.stage_stats.nonfinite;
        b->compute_ms += m->as.stage_stats.compute_ms;
        b->sent_bytes += (double)m->as.stage_stats.sent_bytes;
        break;
    case WIRE_TYPE_probe_result:
        b->n_probes++;
        b->probe = m->as.probe_result;
        bed_note(b->probe_error, sizeof b->probe_error, m->as.probe_result.error);
        break;
    case WIRE_TYPE_profile_result:
        b->rows += (int64_t)m->as.profile_result.times.n;
        for (size_t i = 0; i < m->as.profile_result.times.n; i++)
            assert_true(m->as.profile_result.times.at[i].ms > 0 && m->as.profile_result.times.at[i].form[0]);
        if (!m->as.profile_result.more)
            b->n_profiles++;
        bed_note(b->done_error, sizeof b->done_error, m->as.profile_result.error);
        break;
    case WIRE_TYPE_blob_get: {
        struct wire_blob_refused no = {
            .id = m->as.blob_get.id, .hash = m->as.blob_get.hash, .error = "NOTFOUND", .text = "no such blob"};
        b->n_gets++;
        for (int i = 0; i < b->n_blobs; i++)
            if (!strcmp(b->blobs[i].hex, m->as.blob_get.hash)) {
                static const char wrong[1 << 20];
                const struct bed_blob *k = &b->blobs[i];
                size_t len = b->huge ? sizeof wrong : k->len;
                struct wire_blob head = {.id = m->as.blob_get.id, .hash = k->hex, .bytes = (int64_t)len};
                struct net_iov iov = {b->corrupt || b->huge ? wrong : k->data, len};
                return chan_stream(c, CHAN_BULK, WIRE_TYPE_blob, &head, &iov, 1, NULL, NULL);
            }
        return chan_send(c, WIRE_TYPE_blob_refused, &no);
    }
    default:
        break;
    }
    return YK_OK;
}

static inline void bed_got_result(void *arg, yk_err err)
{
    struct bed_result *r = arg;
    if (err)
        r->microbatch = -1; /* did not arrive */
}

static inline yk_err bed_on_stream(void *arg, struct chan *c, struct wire_msg *m, struct chan_sink *sink)
{
    (void)c;
    struct bed *b = ((struct bed_agent *)arg)->bed;
    assert_int_equal(m->type, WIRE_TYPE_result);
    const struct wire_result *w = &m->as.result;
    assert_int_equal(w->tensors.n, 1);
    assert_int_equal(w->tensors.at[0].offset, 0);
    assert_int_equal(w->tensors.at[0].dims.at[0], w->count);
    bed_result_message(b, w);
    struct bed_result *r = &b->results[b->n_results - 1];
    r->bytes = w->tensors.at[0].bytes;
    r->data = malloc((size_t)r->bytes);
    *sink = (struct chan_sink){r->data, (size_t)r->bytes, bed_got_result, r};
    return YK_OK;
}

static inline void bed_on_closed(void *arg, struct chan *c, yk_err err, const char *why)
{
    (void)err, (void)why;
    struct bed_agent *a = arg;
    if (a->control == c)
        a->control = NULL;
    if (a->blob == c)
        a->blob = NULL;
    chan_close(c, false);
}

static const struct chan_on bed_on = {bed_on_message, bed_on_stream, bed_on_closed};

static inline yk_err bed_on_hello(void *arg, struct chan *c, struct wire_msg *m)
{
    struct bed *b = arg;
    if (m->type != WIRE_TYPE_hello)
        return YK_FORMAT;
    const struct wire_hello *h = &m->as.hello;
    struct bed_agent *a = bed_find(b, h->agent);
    if (!strcmp(h->kind, "data")) {
        assert_string_equal(h->purpose, "blob");
        if (!a)
            return YK_AUTH;
        a->blob = c;
        chan_trust(c);
        chan_set(c, &bed_on, a);
        return YK_OK;
    }
    assert_int_equal(h->version_major, WIRE_VERSION_MAJOR);
    int at = h->name[strlen(h->name) - 1] - '0';
    assert_true(at >= 0 && at < BED_AGENTS);
    a = &b->agents[at];
    a->hellos++;
    if (b->refuse) {
        struct wire_refuse r = {.error = "VERSION", .text = "this yoked speaks 9.0, the agent 1.0", .version_major = 9};
        chan_send(c, WIRE_TYPE_refuse, &r);
        chan_close(c, true);
        return YK_OK;
    }
    if (a->joins)
        assert_string_equal(a->id, h->agent); /* the same identity for ever */
    snprintf(a->id, sizeof a->id, "%s", h->agent);
    snprintf(a->url, sizeof a->url, "%s", h->urls.n ? h->urls.at[0] : "");
    a->memory_bytes = h->device.memory_bytes;
    a->emulated = h->device.emulated;
    assert_true(h->device.backends.n >= 1);
    if (a->control)
        chan_close(a->control, false);
    a->control = c;
    a->joins++;
    chan_trust(c);
    chan_set(c, &bed_on, a);
    struct wire_welcome w = {.version_major = WIRE_VERSION_MAJOR,
        .nonce = h->nonce,
        .term = b->term,
        .lease_ms = 2000,
        .ping_ms = 250,
        .name = h->name};
    chan_send(c, WIRE_TYPE_welcome, &w);
    return YK_OK;
}

static inline void bed_on_stranger_closed(void *arg, struct chan *c, yk_err err, const char *why)
{
    (void)arg, (void)err, (void)why;
    chan_close(c, false);
}

static const struct chan_on bed_stranger = {bed_on_hello, NULL, bed_on_stranger_closed};

static inline void bed_accept(void *arg, struct net_conn *conn)
{
    chan_open(conn, &bed_stranger, arg);
}

/* ---- the model and the data ---- */

static inline void bed_add_blob(struct bed *b, const char *hex, const void *data, size_t len)
{
    assert_true(b->n_blobs < BED_BLOBS);
    struct bed_blob *k = &b->blobs[b->n_blobs++];
    snprintf(k->hex, sizeof k->hex, "%s", hex);
    k->data = data;
    k->len = len;
}

static inline void bed_put_npy(const char *path, enum dtype t, int rank, const int64_t *dims, const void *data)
{
    struct shape s = {.dtype = t, .rank = rank};
    struct yk_buf buf = {0};
    memcpy(s.dims, dims, (size_t)rank * sizeof *dims);
    assert_int_equal(npy_header(&s, &buf), YK_OK);
    yk_buf_add(&buf, data, (size_t)shape_bytes(&s));
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(buf.data, 1, buf.len, f), buf.len);
    fclose(f);
    yk_buf_free(&buf);
}

static inline void bed_model(struct bed *b)
{
    struct yk_diag why = {0};
    if (onnx_import(YOKE_SOURCE_DIR "/tests/data/fmnist_cnn.onnx", &b->graph, NULL, &why) ||
        passes_infer(b->graph, fold_eval, NULL, &why) || onnx_export_skeleton(b->graph, &b->skeleton, &why))
        fail_msg("%s", why.text);
    hash_hex(b->skeleton.data, b->skeleton.len, b->hex);
    bed_add_blob(b, b->hex, b->skeleton.data, b->skeleton.len);
    for (int32_t v = 0; v < b->graph->n_values; v++) {
        const struct value *w = &b->graph->values[v];
        char hex[HASH_HEX_SIZE];
        if (w->kind != VALUE_WEIGHT || !w->has_hash)
            continue;
        yk_hex(w->hash, HASH_BYTES, hex);
        bed_add_blob(b, hex, w->data, (size_t)w->bytes);
    }
    int64_t size = 5, dims[4] = {BED_SAMPLES, 1, 28, 28};
    assert_int_equal(shapes_infer(b->graph, &size, NULL, &b->shapes, &why), YK_OK);
    struct yk_rng rng;
    yk_rng_seed(&rng, 11);
    b->x = yk_try_aligned(sizeof(float) * BED_SAMPLES * BED_PIXELS);
    for (int i = 0; i < BED_SAMPLES * BED_PIXELS; i++)
        b->x[i] = (float)yk_rng_unit(&rng);
    for (int i = 0; i < BED_SAMPLES; i++)
        b->y[i] = (int64_t)yk_rng_below(&rng, BED_CLASSES);
    char path[128];
    snprintf(path, sizeof path, "%s/set", b->root);
    assert_int_equal(mkdir(path, 0700), 0);
    snprintf(path, sizeof path, "%s/set/x.npy", b->root);
    bed_put_npy(path, DT_F32, 4, dims, b->x);
    snprintf(path, sizeof path, "%s/set/y.npy", b->root);
    bed_put_npy(path, DT_I64, 1, dims, b->y);
}

/* What one device says to samples [first, first + count), as one microbatch. */
static inline void bed_reference(struct bed *b, int64_t first, int64_t count, float *out)
{
    static struct pool *pool;
    static struct backends backends;
    struct yk_diag why = {0};
    struct exec *e;
    int64_t max = 5;
    if (!pool) {
        assert_int_equal(pool_open(1, &pool, &why), YK_OK);
        assert_int_equal(backends_open("auto", pool, &backends, &why), YK_OK);
    }
    struct exec_config c = {.graph = b->graph, .max_sizes = &max, .backends = &backends};
    if (exec_open(&c, &e, &why))
        fail_msg("%s", why.text);
    struct tensor in = {{DT_F32, 4, {count, 1, 28, 28}}, b->x + first * BED_PIXELS};
    struct tensor o = {{DT_F32, 2, {count, BED_CLASSES}}, out};
    if (exec_run(e, &count, &in, &o, 0, &why))
        fail_msg("%s", why.text);
    exec_close(e);
}

/* ---- life ---- */

static inline void bed_on_state(void *arg, enum agent_state state, const char *text)
{
    struct bed_agent *a = arg;
    a->state = state;
    snprintf(a->state_text, sizeof a->state_text, "%s", text);
}

static inline void bed_start(struct bed *b, int i, const struct agent_emulate *emulate, int64_t memory)
{
    struct bed_agent *a = &b->agents[i];
    char name[32], listen[32];
    const char *roots[] = {b->root, NULL};
    snprintf(name, sizeof name, "agent%d", i);
    snprintf(listen, sizeof listen, "mem://agent%d", i);
    a->bed = b;
    if (!a->storage)
        assert_int_equal(storage_mem_open(&a->storage), YK_OK);
    struct agent_config c = {.net = b->net,
        .storage = a->storage,
        .scheduler_url = "mem://yoked",
        .listen_url = listen,
        .name = name,
        .memory_bytes = memory ? memory : (int64_t)1 << 30,
        .data_roots = roots,
        .emulate = emulate,
        .on_state = bed_on_state,
        .arg = a};
    struct yk_diag why = {0};
    if (agent_open(&c, &a->agent, &why))
        fail_msg("%s", why.text);
}

static inline void bed_stop(struct bed *b, int i)
{
    agent_close(b->agents[i].agent);
    b->agents[i].agent = NULL;
}

static inline struct bed *bed_open(int agents)
{
    struct bed *b = yk_xalloc(sizeof *b);
    struct yk_diag why;
    b->term = 3;
    snprintf(b->root, sizeof b->root, "/tmp/yoke-agent-XXXXXX");
    assert_non_null(mkdtemp(b->root));
    assert_int_equal(net_mem_open(5, &b->net), YK_OK);
    assert_int_equal(net_listen(b->net, "mem://yoked", bed_accept, b, &b->listener, &why), YK_OK);
    bed_model(b);
    for (int i = 0; i < agents; i++)
        bed_start(b, i, NULL, 0);
    return b;
}

static inline void bed_forget_results(struct bed *b)
{
    for (int i = 0; i < b->n_results; i++)
        free(b->results[i].data);
    b->n_results = 0;
}

static inline void bed_close(struct bed *b)
{
    for (int i = 0; i < BED_AGENTS; i++) {
        if (b->agents[i].agent)
            bed_stop(b, i);
        if (b->agents[i].control)
            chan_close(b->agents[i].control, false);
        if (b->agents[i].blob)
            chan_close(b->agents[i].blob, false);
        b->agents[i].control = b->agents[i].blob = NULL;
        if (b->agents[i].storage)
            b->agents[i].storage->ops->close(b->agents[i].storage);
    }
    net_listener_close(b->listener);
    net_mem_run_for(b->net, 2000000); /* what flushes ends */
    net_close(b->net);
    bed_forget_results(b);
    graph_close(b->graph);
    shapes_fini(&b->shapes);
    yk_buf_free(&b->skeleton);
    free(b->x);
    char path[128];
    snprintf(path, sizeof path, "%s/set/x.npy", b->root);
    unlink(path);
    snprintf(path, sizeof path, "%s/set/y.npy", b->root);
    unlink(path);
    snprintf(path, sizeof path, "%s/set", b->root);
    rmdir(path);
    rmdir(b->root);
    free(b);
}

/* Lets virtual time pass until the condition holds; fails after `ms`. */
#define BED_UNTIL(b, ms, condition)                              \
    do {                                                         \
        int64_t left_ = (ms);                                    \
        while (!(condition) && left_-- > 0)                      \
            net_mem_run_for((b)->net, 1000);                     \
        if (!(condition))                                        \
            fail_msg("not in %d ms: %s", (int)(ms), #condition); \
    } while (0)

static inline bool bed_joined(struct bed *b, int n)
{
    for (int i = 0; i < n; i++)
        if (!b->agents[i].joins || !b->agents[i].control)
            return false;
    return true;
}

/* ---- plans ---- */

struct bed_plan {
    int64_t generation, term, microbatch, depth, credits;
    const char *codec;
    int n_stages, last[4]; /* node after which stage i ends (the last one ends the graph) */
    int agent[4], source;
    int64_t timeout_ms;
    bool receiver_dials; /* edges' urls are given to the receiving end only */
};

static const struct bed_plan bed_two_stages = {.generation = 1,
    .term = 3,
    .microbatch = 5,
    .depth = 3,
    .credits = 2,
    .codec = "fp32",
    .n_stages = 2,
    .last = {1},
    .agent = {0, 1},
    .source = 0,
    .timeout_ms = 20000};

static inline int bed_holder(const struct bed_plan *p, int stage)
{
    return stage < 0 ? p->source : p->agent[stage];
}

/* Sends every agent of the plan its part. `change` may edit a message first (to be wrong on purpose). */
static inline void bed_load(struct bed *b, const struct bed_plan *p, void (*change)(struct wire_load *w, int agent))
{
    struct graph *g = b->graph;
    struct yk_diag why = {0};
    struct cut_edges edges;
    int32_t *stage_of = yk_xalloc((size_t)g->n_nodes * sizeof *stage_of);
    for (int32_t n = 0; n < g->n_nodes; n++)
        while (stage_of[n] < p->n_stages - 1 && n > p->last[stage_of[n]])
            stage_of[n]++;
    assert_int_equal(cut_check(g, &b->shapes, stage_of, p->n_stages, &why), YK_OK);
    assert_int_equal(cut_edges_find(g, &b->shapes, stage_of, p->n_stages, &edges, &why), YK_OK);
    for (int a = 0; a < BED_AGENTS; a++) {
        struct wire_load w = {.term = p->term,
            .generation = p->generation,
            .job = "job",
            .kind = "batch",
            .graph = b->hex,
            .source = b->agents[p->source].id,
            .depth = p->depth,
            .timeout_ms = p->timeout_ms};
        struct wire_size size = {"N", p->microbatch};
        struct wire_stage stages[4];
        struct wire_range ranges[4];
        struct wire_edge wires[16];
        const char *urls[16];
        uint8_t tickets[16][16];
        int64_t values[16][8];
        w.sizes.at = &size;
        w.sizes.n = 1;
        w.stages.at = stages;
        w.edges.at = wires;
        for (int s = 0; s < p->n_stages; s++) {
            if (p->agent[s] != a)
                continue;
            struct wire_range *r = &ranges[w.stages.n];
            *r = (struct wire_range){s ? p->last[s - 1] + 1 : 0, s == p->n_stages - 1 ? g->n_nodes - 1 : p->last[s]};
            stages[w.stages.n] = (struct wire_stage){.index = s, .nodes = {r, 1}, .depth = p->depth};
            w.stages.n++;
        }
        for (int32_t k = 0; k < edges.n; k++) {
            int from = bed_holder(p, edges.at[k].from), to = bed_holder(p, edges.at[k].to);
            if (from != a && to != a)
                continue;
            size_t at = w.edges.n++;
            int peer = from == a ? to : from;
            memset(tickets[at], 16 + k, 16);
            urls[at] = b->agents[peer].url;
            for (int32_t v = 0; v < edges.at[k].n_values; v++)
                values[at][v] = edges.at[k].values[v];
            bool dials = (to == a) == p->receiver_dials;
            wires[at] = (struct wire_edge){.id = k,
                .from = edges.at[k].from,
                .to = edges.at[k].to,
                .values = {values[at], (size_t)edges.at[k].n_values},
                .codec = p->codec,
                .peer = b->agents[peer].id,
                .urls = {&urls[at], from == to || !dials ? 0 : 1},
                .ticket = {tickets[at], 16},
                .credits = p->credits};
        }
        if (!w.stages.n && a != p->source)
            continue;
        if (change)
            change(&w, a);
        assert_int_equal(chan_send(b->agents[a].control, WIRE_TYPE_load, &w), YK_OK);
    }
    cut_edges_fini(&edges);
    free(stage_of);
}

static inline void bed_run(struct bed *b, const struct bed_plan *p, const struct wire_run *like)
{
    struct wire_run w = *like;
    w.term = p->term;
    w.generation = p->generation;
    w.job = "job";
    if (!w.data)
        w.data = "set";
    if (!w.microbatch)
        w.microbatch = p->microbatch;
    assert_int_equal(chan_send(b->agents[p->source].control, WIRE_TYPE_run, &w), YK_OK);
}

static inline void bed_unload(struct bed *b, const struct bed_plan *p)
{
    for (int a = 0; a < BED_AGENTS; a++) {
        struct wire_unload w = {.term = p->term, .generation = p->generation};
        if (b->agents[a].control)
            chan_send(b->agents[a].control, WIRE_TYPE_unload, &w);
    }
    net_mem_run_for(b->net, 20000);
    b->n_loaded = 0;
}

static inline int bed_members(const struct bed_plan *p)
{
    bool in[BED_AGENTS] = {false};
    int n = 0;
    in[p->source] = true;
    for (int s = 0; s < p->n_stages; s++)
        in[p->agent[s]] = true;
    for (int a = 0; a < BED_AGENTS; a++)
        n += in[a];
    return n;
}

static inline void bed_load_ok(struct bed *b, const struct bed_plan *p)
{
    b->n_loaded = 0;
    b->loaded_error[0] = 0;
    bed_load(b, p, NULL);
    BED_UNTIL(b, 10000, b->n_loaded == bed_members(p));
    if (b->loaded_error[0])
        fail_msg("%s: %s", b->loaded_error, b->loaded_text);
}

/* Every microbatch once, each equal to the single device to the bit. */
static inline void bed_check_outputs(struct bed *b, int64_t microbatch, int64_t count)
{
    bool seen[BED_SAMPLES] = {false};
    assert_int_equal(b->n_results, (count + microbatch - 1) / microbatch);
    for (int i = 0; i < b->n_results; i++) {
        const struct bed_result *r = &b->results[i];
        float want[5 * BED_CLASSES];
        assert_true(r->microbatch >= 0 && r->count >= 1 && r->count <= microbatch && !seen[r->first]);
        assert_int_equal(r->first, r->microbatch * microbatch);
        assert_int_equal(r->bytes, r->count * BED_CLASSES * (int64_t)sizeof(float));
        for (int64_t k = 0; k < r->count; k++)
            seen[r->first + k] = true;
        bed_reference(b, r->first, r->count, want);
        assert_memory_equal(r->data, want, (size_t)r->bytes);
    }
    for (int64_t k = 0; k < count; k++)
        assert_true(seen[k]);
}

#endif
