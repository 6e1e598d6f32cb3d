/* Loading goes step by step; each step ends with the next, and an error ends them all: yoked is told and the pipeline
 * is unloaded, once what is under way has come back.
 *
 *   step         thread  from, to
 *   load_start   loop    the command is checked; its graph is fetched: from the cache, or from yoked
 *   import       io      the graph is imported, and the command checked against it
 *   fetch        loop    weights, and what a training goes on from
 *   prepare      runner  execs, or trainers
 *   wire up      loop    slots and edges; those to other agents are dialled
 *   check up     loop    all edges are up: READY, and yoked is told
 *
 * All of it has until load's timeout_ms, or TIMEOUT_MS. */
#include "agent/load_priv.h"

#include "agent/blob.h"
#include "agent/control.h"
#include "agent/edge.h"
#include "agent/peer.h"
#include "agent/runner.h"
#include "agent/source.h"
#include "agent/training.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SKELETON_LIMIT ((int64_t)256 << 20)
#define TIMEOUT_MS 60000

static void fail(struct pipeline *p)
{
    struct yk_diag why = p->why;
    pipeline_fail(p, -1, "", p->err, "%s", why.text);
}

void load_send_error(struct agent *a, int64_t generation, yk_err err, const char *text, int64_t lacking_bytes)
{
    struct wire_loaded w = {
        .generation = generation, .error = yk_err_name(err), .text = text, .memory_bytes = lacking_bytes};
    control_send(a, WIRE_TYPE_loaded, &w);
}

/* ---- import, fetch ---- */

static void import_run(void *arg)
{
    struct pipeline *p = arg;
    p->err = load_take_graph(p);
}

struct need {
    struct pipeline *p;
    size_t cap;
};

static void need_weight(void *arg, const struct value *value)
{
    struct need *n = arg;
    struct pipeline *p = n->p;
    if (value->kind != VALUE_WEIGHT || value->data || !value->has_hash)
        return;
    char hex[HASH_HEX_SIZE];
    yk_hex(value->hash, HASH_BYTES, hex);
    for (size_t i = 0; i < p->n_blobs; i++)
        if (!strcmp(p->blobs[i].hex, hex))
            return;
    if (p->n_blobs == n->cap) {
        n->cap = n->cap ? 2 * n->cap : 64;
        p->blobs = yk_xrealloc(p->blobs, n->cap * sizeof *p->blobs);
    }
    struct load_blob *b = &p->blobs[p->n_blobs++];
    *b = (struct load_blob){.bytes = value->bytes};
    memcpy(b->hex, hex, sizeof hex);
}

/* A training goes on from another content of it than the graph's. */
static bool is_kept(const struct pipeline *p, int32_t v)
{
    for (size_t i = 0; i < p->load->training.kept.n; i++)
        if (p->load->training.kept.at[i].value == v && p->load->training.kept.at[i].slot < 0)
            return true;
    return false;
}

static void need_value(void *arg, int32_t v)
{
    struct need *n = arg;
    if (!is_kept(n->p, v))
        need_weight(arg, &n->p->graph->values[v]);
}

static void prepare(struct pipeline *p);

struct fetching {
    struct pipeline *p;
    size_t at; /* in p->blobs, or in what the training goes on from */
};

/* One of what was fetched is here, or cannot come. */
static void arrived(struct fetching *f, yk_err err, int64_t fetched)
{
    struct pipeline *p = f->p;
    free(f);
    p->fetching--;
    p->fetched_bytes += fetched;
    if (p->state == PIPELINE_LOADING && err) {
        p->err = err;
        fail(p);
    } else if (p->state == PIPELINE_LOADING && p->fetching == 0) {
        prepare(p);
    }
    pipeline_release(p);
}

static void on_blob(void *arg, yk_err err, const char *why, struct cache_entry *e, int64_t fetched)
{
    struct fetching *f = arg;
    struct pipeline *p = f->p;
    struct load_blob *b = &p->blobs[f->at];
    if (err)
        yk_fail(&p->why, err, "%s", why);
    else
        b->entry = e; /* load_free releases it */
    if (!err && (int64_t)cache_len(e) != b->bytes)
        err = yk_fail(&p->why, YK_FORMAT, "weight %.12s has %zu bytes, the graph says %lld", b->hex, cache_len(e),
            (long long)b->bytes);
    arrived(f, err, fetched);
}

static void on_kept(void *arg, yk_err err, const char *why, struct cache_entry *e, int64_t fetched)
{
    struct fetching *f = arg;
    if (err)
        yk_fail(&f->p->why, err, "checkpoint: %s", why);
    else
        f->p->training->kept[f->at].entry = e; /* training_free_all releases it */
    arrived(f, err, fetched);
}

/* What a training goes on from, as far as it is needed here. */
static void fetch_kept(struct pipeline *p)
{
    struct pipeline_training *t = p->training;
    if (!t)
        return;
    t->kept = yk_xalloc((p->load->training.kept.n + 1) * sizeof *t->kept);
    for (size_t i = 0; i < p->load->training.kept.n; i++) {
        const struct wire_kept *k = &p->load->training.kept.at[i];
        if (!training_needs(p, k))
            continue;
        struct fetching *f = yk_xalloc(sizeof *f);
        *f = (struct fetching){p, t->n_kept};
        t->kept[t->n_kept++] = (struct load_kept){.value = (int32_t)k->value, .slot = (int32_t)k->slot};
        p->fetching++;
        p->busy++;
        blob_fetch(p->agent, k->hash, k->bytes, on_kept, f);
    }
}

static void import_done(void *arg)
{
    struct pipeline *p = arg;
    if (p->state == PIPELINE_LOADING && p->err) {
        fail(p);
    } else if (p->state == PIPELINE_LOADING) {
        struct need n = {p, 0};
        for (int i = 0; i < p->n_stages; i++)
            for (int32_t k = 0; k < p->graph->n_nodes; k++)
                if (p->stages[i].in_stage[k]) {
                    node_each_use(&p->graph->nodes[k], need_value, &n);
                    node_each_inner_weight(&p->graph->nodes[k], need_weight, &n);
                }
        for (int32_t k = 0; p->is_source && k < p->graph->n_outputs; k++)
            need_value(&n, p->graph->outputs[k]);
        fetch_kept(p);
        p->fetching += p->n_blobs;
        for (size_t i = 0; i < p->n_blobs; i++) {
            struct fetching *f = yk_xalloc(sizeof *f);
            *f = (struct fetching){p, i};
            p->busy++;
            blob_fetch(p->agent, p->blobs[i].hex, p->blobs[i].bytes, on_blob, f);
        }
        if (!p->fetching)
            prepare(p);
    }
    pipeline_release(p);
}

/* ---- prepare, wire up ---- */

yk_err load_weight(void *arg, int32_t v, const void **data, struct yk_diag *why)
{
    struct pipeline *p = arg;
    if (v < 0 || v >= p->graph->n_values || !p->weight[v])
        return yk_fail(why, YK_NOTFOUND, "weight %d is not here", v);
    *data = p->weight[v];
    return YK_OK;
}

static const void *blob_data(const struct pipeline *p, const struct value *weight)
{
    char hex[HASH_HEX_SIZE];
    if (!weight->has_hash)
        return NULL;
    yk_hex(weight->hash, HASH_BYTES, hex);
    for (size_t i = 0; i < p->n_blobs; i++)
        if (!strcmp(p->blobs[i].hex, hex))
            return cache_data(p->blobs[i].entry);
    return NULL;
}

static yk_err inner_weight_data(void *arg, const struct value *weight, const void **data, struct yk_diag *why)
{
    *data = blob_data(arg, weight);
    return *data ? YK_OK : yk_fail(why, YK_NOTFOUND, "weight '%.80s' of a subgraph is not here", weight->name);
}

static void prepare_run(void *arg)
{
    struct pipeline *p = arg;
    if (p->training)
        p->err = training_open(p, &p->why);
    for (int i = 0; i < p->n_stages && !p->err && !p->training && !p->agent->stop; i++) {
        struct stage *s = &p->stages[i];
        struct exec_config c = {.graph = p->graph,
            .in_stage = s->in_stage,
            .forms = s->forms,
            .max_sizes = p->sizes,
            .backends = &p->agent->backends,
            .weight = load_weight,
            .inner_weight = inner_weight_data,
            .weight_arg = p};
        p->err = exec_open(&c, &s->exec, &p->why);
        if (p->err)
            yk_wrap(&p->why, p->err, "stage %lld", (long long)s->index);
    }
    if (p->agent->stop && !p->err)
        p->err = YK_CANCELED;
}

static void prepare_done(void *arg)
{
    struct pipeline *p = arg;
    struct agent *a = p->agent;
    if (p->state == PIPELINE_LOADING) {
        if (!p->err)
            p->err = load_wire_up(p);
        if (p->err) {
            fail(p);
        } else {
            p->wired = true;
            edge_connect(p);
            peer_retry(a);
            load_check_up(p);
        }
    }
    pipeline_release(p);
}

static void prepare(struct pipeline *p)
{
    p->weight = yk_xalloc((size_t)p->graph->n_values * sizeof *p->weight + 1);
    for (int32_t v = 0; v < p->graph->n_values; v++) {
        const struct value *value = &p->graph->values[v];
        if (value->kind == VALUE_WEIGHT && !value->data)
            p->weight[v] = blob_data(p, value);
    }
    for (size_t i = 0; p->training && i < p->training->n_kept; i++) {
        const struct load_kept *k = &p->training->kept[i];
        if (k->slot < 0 && k->entry && (int64_t)cache_len(k->entry) == p->graph->values[k->value].bytes)
            p->weight[k->value] = cache_data(k->entry);
    }
    p->busy++;
    worker_post(p->agent->runner_thread, prepare_run, prepare_done, p);
}

void load_check_up(struct pipeline *p)
{
    if (p->state != PIPELINE_LOADING || !p->wired || !edge_all_up(p))
        return;
    p->state = PIPELINE_READY;
    net_timer_cancel(p->timeout);
    p->timeout = NULL;
    p->used_us = net_now_us(p->agent->net);
    struct wire_loaded w = {.generation = p->generation,
        .memory_bytes = p->memory_bytes,
        .ms = (double)(p->used_us - p->began_us) / 1e3,
        .fetched_bytes = p->fetched_bytes};
    log_info("generation %lld is loaded: %d stages, %lld bytes, %.0f ms", (long long)p->generation, p->n_stages,
        (long long)p->memory_bytes, w.ms);
    control_send(p->agent, WIRE_TYPE_loaded, &w);
}

/* ---- start and end ---- */

static void on_skeleton(void *arg, yk_err err, const char *why, struct cache_entry *e, int64_t fetched)
{
    struct pipeline *p = arg;
    if (!err)
        p->skeleton = e;
    p->fetched_bytes += fetched;
    if (p->state == PIPELINE_LOADING && err) {
        p->err = err;
        yk_fail(&p->why, err, "graph %.12s: %s", p->load->graph, why);
        fail(p);
    } else if (p->state == PIPELINE_LOADING) {
        p->busy++;
        worker_post(p->agent->io, import_run, import_done, p);
    }
    pipeline_release(p);
}

static void on_timeout(void *arg)
{
    struct pipeline *p = arg;
    p->timeout = NULL;
    char missing[400] = "";
    for (int i = 0; p->wired && i < p->n_edges; i++)
        if (!p->edges[i].up) {
            size_t n = strlen(missing);
            snprintf(missing + n, sizeof missing - n, "%s edge %lld to agent %.32s", n ? "," : ":",
                (long long)p->edges[i].w->id, p->edges[i].w->peer);
        }
    char last[200] = "";
    if (p->wired && p->why.text[0])
        snprintf(last, sizeof last, " (%.190s)", p->why.text);
    pipeline_fail(
        p, -1, "", YK_TIMEOUT, "not loaded in time%s%s", p->wired ? missing : ": graph or weights are missing", last);
}

void load_start(struct agent *a, struct wire_msg *msg)
{
    struct pipeline *p = yk_xalloc(sizeof *p), **tail = &a->pipelines;
    p->agent = a;
    p->msg = *msg;
    msg->arena = NULL;
    p->load = &p->msg.as.load;
    p->generation = p->load->generation;
    p->term = p->load->term;
    p->is_source = !strcmp(p->load->source, a->id);
    p->began_us = net_now_us(a->net);
    p->batch_sym = -1;
    while (*tail)
        tail = &(*tail)->next;
    *tail = p;
    p->err = load_check_command(p);
    if (p->err) {
        fail(p);
        return;
    }
    p->n_stages = (int)p->load->stages.n;
    p->stages = yk_xalloc((size_t)p->n_stages * sizeof *p->stages + 1);
    for (int i = 0; i < p->n_stages; i++) {
        const struct wire_stage *w = &p->load->stages.at[i];
        p->stages[i] = (struct stage){.p = p, .w = w, .index = w->index, .depth = YK_MAX(w->depth, 1)};
    }
    int64_t depth = YK_MIN(YK_MAX(p->load->depth, 1), PIPELINE_MAX_SLOTS);
    p->source = (struct stage){.p = p, .index = -1, .depth = depth};
    p->n_edges = (int)p->load->edges.n;
    p->edges = yk_xalloc((size_t)p->n_edges * sizeof *p->edges + 1);
    for (int i = 0; i < p->n_edges && !p->err; i++) {
        struct edge *e = &p->edges[i];
        e->p = p;
        e->w = &p->load->edges.at[i];
        plan_codec_find(e->w->codec, &e->codec);
        e->from = pipeline_stage(p, e->w->from);
        e->to = pipeline_stage(p, e->w->to);
        e->local = e->from && e->to;
        e->sums = e->w->sums;
        p->err = load_take_readers(p, e);
    }
    if (p->err) {
        fail(p);
        return;
    }
    int64_t ms = p->load->timeout_ms > 0 ? p->load->timeout_ms : TIMEOUT_MS;
    p->timeout = net_timer(a->net, YK_MIN(ms, 3600 * 1000) * 1000, on_timeout, p);
    p->busy++;
    blob_fetch(a, p->load->graph, SKELETON_LIMIT, on_skeleton, p);
}

static void stage_free(struct stage *s)
{
    for (int64_t k = 0; s->outs && k <= s->depth; k++) {
        for (int32_t i = 0; s->outs[k].made && i < s->n_out - s->n_planned; i++)
            free(s->outs[k].made[i].mem);
        free(s->outs[k].made);
        free(s->outs[k].t);
        free(s->outs[k].mem);
    }
    free(s->outs);
    free(s->own_out);
    free(s->inputs);
    free(s->in_stage);
    free(s->forms);
}

void load_free(struct pipeline *p)
{
    struct cache *c = p->agent->cache;
    source_free(p);
    for (int i = 0; i < p->n_edges; i++)
        edge_free(&p->edges[i]);
    for (int i = 0; i < p->n_stages; i++)
        stage_free(&p->stages[i]);
    stage_free(&p->source);
    for (int i = 0; i < 2; i++) {
        if (p->at[i].count)
            shapes_fini(&p->at[i].shapes);
        free(p->at[i].flops);
    }
    training_free_all(p);
    spans_free(p);
    graph_close(p->graph);
    if (p->skeleton)
        cache_release(c, p->skeleton);
    for (size_t i = 0; i < p->n_blobs; i++)
        if (p->blobs[i].entry)
            cache_release(c, p->blobs[i].entry);
    free(p->blobs);
    free(p->weight);
    free(p->sizes);
    free(p->edges);
    free(p->stages);
    wire_free(&p->msg);
    free(p);
}
