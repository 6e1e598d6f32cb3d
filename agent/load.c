#include "agent/load.h"

#include "agent/blob.h"
#include "agent/control.h"
#include "agent/edge.h"
#include "agent/peer.h"
#include "agent/runner.h"
#include "agent/source.h"
#include "agent/training.h"
#include "common/onnx.h"

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

/* ---- checks that need no graph ---- */

static struct stage *stage_here(struct pipeline *p, int64_t index)
{
    if (index == -1)
        return p->is_source ? &p->source : NULL;
    for (int i = 0; i < p->n_stages; i++)
        if (p->stages[i].index == index)
            return &p->stages[i];
    return NULL;
}

static yk_err check_command(struct pipeline *p)
{
    const struct wire_load *w = p->load;
    struct yk_diag *why = &p->why;
    bool train = strcmp(w->kind, "train") == 0;
    if (strcmp(w->kind, "infer") != 0 && strcmp(w->kind, "batch") != 0 && !train && w->kind[0])
        return yk_fail(why, YK_UNSUPPORTED, "jobs of kind '%.40s' do not run here (infer, batch, train)", w->kind);
    if (train != (w->training.config[0] != 0))
        return yk_fail(why, YK_FORMAT, "a job of kind '%.40s' %s a training", w->kind, train ? "without" : "with");
    if (!hash_is_hex(w->graph))
        return yk_fail(why, YK_FORMAT, "the graph's hash is malformed");
    if (w->stages.n > PIPELINE_MAX_STAGES || w->edges.n > PIPELINE_MAX_EDGES)
        return yk_fail(why, YK_LIMIT, "%zu stages and %zu edges; the limits are %d and %d", w->stages.n, w->edges.n,
            PIPELINE_MAX_STAGES, PIPELINE_MAX_EDGES);
    if (!w->stages.n && !p->is_source)
        return yk_fail(why, YK_INVAL, "no stage for this agent");
    for (size_t i = 0; i < w->stages.n; i++) {
        const struct wire_stage *s = &w->stages.at[i];
        if (s->index < 0 || s->index >= CUT_MAX_STAGES || s->depth < 0 || s->depth > PIPELINE_MAX_SLOTS)
            return yk_fail(why, YK_INVAL, "stage %lld with depth %lld; the limits are %d stages and a depth of %d",
                (long long)s->index, (long long)s->depth, CUT_MAX_STAGES, PIPELINE_MAX_SLOTS);
        for (size_t k = 0; k < i; k++)
            if (w->stages.at[k].index == s->index)
                return yk_fail(why, YK_INVAL, "stage %lld comes twice", (long long)s->index);
    }
    for (size_t i = 0; i < w->edges.n; i++) {
        const struct wire_edge *e = &w->edges.at[i];
        enum plan_codec codec;
        if (!plan_codec_find(e->codec, &codec))
            return yk_fail(why, YK_UNSUPPORTED, "edge %lld has codec '%.20s'", (long long)e->id, e->codec);
        if (e->credits < 1 || e->credits > PIPELINE_MAX_SLOTS || !e->values.n)
            return yk_fail(why, YK_INVAL, "edge %lld has %lld credits and %zu values", (long long)e->id,
                (long long)e->credits, e->values.n);
        if (e->sums && (!train || e->from < 0 || e->to < 0 || e->also.n || codec != CODEC_FP32))
            return yk_fail(why, YK_INVAL, "edge %lld carries sums of gradients: from a stage of a training to another",
                (long long)e->id);
        for (size_t k = 0; k < i; k++)
            if (w->edges.at[k].id == e->id)
                return yk_fail(why, YK_INVAL, "edge %lld comes twice", (long long)e->id);
        for (size_t k = 1; k < e->values.n; k++)
            if (e->values.at[k] <= e->values.at[k - 1])
                return yk_fail(why, YK_INVAL, "the values of edge %lld do not ascend", (long long)e->id);
    }
    return YK_OK;
}

/* ---- graph (io worker) ---- */

static yk_err take_sizes(struct pipeline *p)
{
    struct graph *g = p->graph;
    int64_t fixed;
    p->sizes = yk_xalloc((size_t)g->n_syms * sizeof *p->sizes + 1);
    p->batch_sym = graph_batch_dim(g, &fixed);
    for (int32_t i = 0; i < g->n_syms; i++)
        p->sizes[i] = -1;
    for (size_t k = 0; k < p->load->sizes.n; k++) {
        const struct wire_size *s = &p->load->sizes.at[k];
        int32_t sym = graph_find_sym(g, s->name);
        if (sym >= 0 && (s->value < 1 || s->value > YK_MAX_COUNT))
            return yk_fail(&p->why, YK_INVAL, "dimension %.60s has size %lld", s->name, (long long)s->value);
        if (sym >= 0)
            p->sizes[sym] = s->value;
    }
    p->full = p->batch_sym >= 0 ? p->sizes[p->batch_sym] : fixed;
    if (p->full < 1)
        return yk_fail(&p->why, YK_INVAL, "no size for the batch dimension '%.60s'",
            p->batch_sym >= 0 ? g->syms[p->batch_sym] : "");
    return YK_OK;
}

static yk_err take_stage(struct pipeline *p, struct stage *s)
{
    const struct graph *g = p->graph;
    const struct wire_stage *w = s->w;
    int64_t last = -1, nodes = 0;
    s->in_stage = yk_xalloc((size_t)g->n_nodes + 1);
    for (size_t i = 0; i < w->nodes.n; i++) {
        const struct wire_range *r = &w->nodes.at[i];
        if (r->first <= last || r->last < r->first || r->last >= g->n_nodes)
            return yk_fail(&p->why, YK_INVAL, "stage %lld: nodes %lld..%lld of a graph of %d", (long long)s->index,
                (long long)r->first, (long long)r->last, g->n_nodes);
        for (int64_t n = r->first; n <= r->last; n++, nodes++)
            s->in_stage[n] = 1;
        last = r->last;
    }
    if (!nodes)
        return yk_fail(&p->why, YK_INVAL, "stage %lld has no nodes", (long long)s->index);
    if (w->forms.n && (int64_t)w->forms.n != g->n_nodes)
        return yk_fail(
            &p->why, YK_INVAL, "stage %lld names %zu forms for %d nodes", (long long)s->index, w->forms.n, g->n_nodes);
    if (w->forms.n) {
        s->forms = yk_xalloc((size_t)g->n_nodes * sizeof *s->forms + 1);
        for (int32_t n = 0; n < g->n_nodes; n++)
            s->forms[n] = w->forms.at[n][0] ? w->forms.at[n] : NULL;
    }
    struct memplan plan;
    yk_err err = memplan_make(g, &p->at[0].shapes, s->in_stage, NULL, (int32_t)s->depth, &plan, &p->why);
    if (err)
        return err;
    int64_t budget = p->agent->memory_bytes;
    if (budget > 0 && plan.total_bytes > budget) {
        p->lacking_bytes = plan.total_bytes - budget;
        err = yk_fail(&p->why, YK_NOMEM, "stage %lld needs at least %lld bytes; this agent's budget is %lld",
            (long long)s->index, (long long)plan.total_bytes, (long long)budget);
    }
    memplan_fini(&plan);
    return err;
}

/* Position of a value in a list, -1 if it is not there. */
static int find_value(const int32_t *list, int32_t n, int64_t v)
{
    for (int32_t i = 0; i < n; i++)
        if (list[i] == v)
            return i;
    return -1;
}

static yk_err take_graph(struct pipeline *p)
{
    char hex[HASH_HEX_SIZE];
    yk_err err = onnx_import_memory(cache_data(p->skeleton), cache_len(p->skeleton), &p->graph, NULL, &p->why);
    if (err)
        return yk_wrap(&p->why, err, "graph %.12s", p->load->graph);
    if (p->graph->has_hash) {
        yk_hex(p->graph->hash, HASH_BYTES, hex);
        if (strcmp(hex, p->load->graph) != 0)
            return yk_fail(&p->why, YK_FORMAT, "graph %.12s has the hash %.12s", p->load->graph, hex);
    }
    if (p->load->training.config[0] && (err = training_take(p, &p->why)))
        return err;
    if ((err = take_sizes(p)) || (err = shapes_infer(p->graph, p->sizes, NULL, &p->at[0].shapes, &p->why)))
        return err;
    p->at[0].count = p->full;
    for (int i = 0; i < p->n_stages && !err; i++)
        err = take_stage(p, &p->stages[i]);
    for (int i = 0; i < p->n_edges && !err; i++) {
        const struct wire_edge *w = p->edges[i].w;
        for (size_t k = 0; k < w->values.n && !err; k++) {
            int64_t v = w->values.at[k];
            bool made = v >= 0 && v < p->graph->n_values && w->to == -1 && p->graph->values[v].type == VALUE_TENSOR &&
                        find_value(p->graph->outputs, p->graph->n_outputs, v) >= 0;
            if (v < 0 || v >= p->graph->n_values || p->graph->values[v].kind == VALUE_WEIGHT ||
                (shape_bytes(&p->at[0].shapes.of[v]) < 0 && !made))
                err = yk_fail(&p->why, YK_INVAL, "value %lld cannot cross edge %lld", (long long)v, (long long)w->id);
        }
    }
    return err;
}

static void import_run(void *arg)
{
    struct pipeline *p = arg;
    p->err = take_graph(p);
}

/* ---- weights ---- */

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
    size_t blob;
};

static void on_blob(void *arg, yk_err err, const char *why, struct cache_entry *e, int64_t fetched)
{
    struct fetching f = *(struct fetching *)arg;
    struct pipeline *p = f.p;
    struct load_blob *b = &p->blobs[f.blob];
    free(arg);
    p->fetching--;
    p->fetched_bytes += fetched;
    if (!err)
        b->entry = e; /* load_free releases it */
    if (!err && (int64_t)cache_len(e) != b->bytes)
        err = yk_fail(&p->why, YK_FORMAT, "weight %.12s has %zu bytes, the graph says %lld", b->hex, cache_len(e),
            (long long)b->bytes);
    else if (err)
        yk_fail(&p->why, err, "%s", why);
    if (p->state == PIPELINE_LOADING && err) {
        p->err = err;
        fail(p);
    } else if (p->state == PIPELINE_LOADING && p->fetching == 0) {
        prepare(p);
    }
    pipeline_release(p);
}

static void on_kept(void *arg, yk_err err, const char *why, struct cache_entry *e, int64_t fetched)
{
    struct fetching f = *(struct fetching *)arg;
    struct pipeline *p = f.p;
    free(arg);
    p->fetching--;
    p->fetched_bytes += fetched;
    if (!err)
        p->training->kept[f.blob].entry = e;
    if (p->state == PIPELINE_LOADING && err) {
        p->err = yk_fail(&p->why, err, "checkpoint: %s", why);
        fail(p);
    } else if (p->state == PIPELINE_LOADING && p->fetching == 0) {
        prepare(p);
    }
    pipeline_release(p);
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

/* ---- execs (runner worker) ---- */

static yk_err weight_data(void *arg, int32_t v, const void **data, struct yk_diag *why)
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
            .weight = weight_data,
            .inner_weight = inner_weight_data,
            .weight_arg = p};
        p->err = exec_open(&c, &s->exec, &p->why);
        if (p->err)
            yk_wrap(&p->why, p->err, "stage %lld", (long long)s->index);
    }
    if (p->agent->stop && !p->err)
        p->err = YK_CANCELED;
}

/* Which edge brings input i of s. */
static yk_err find_input(struct pipeline *p, struct stage *s, int32_t i)
{
    int64_t v = s->in_values[i];
    for (int k = 0; k < p->n_edges; k++) {
        struct edge *e = &p->edges[k];
        for (size_t j = 0; edge_feeds(e, s) && j < e->w->values.n; j++)
            if (e->w->values.at[j] == v) {
                s->inputs[i] = (struct stage_input){e, (int)j};
                return YK_OK;
            }
    }
    const struct value *value = &p->graph->values[v];
    if (s == &p->source &&
        (value->kind == VALUE_INPUT || (value->kind == VALUE_WEIGHT && (value->data || p->weight[v] || !value->bytes))))
        return YK_OK; /* the source has it */
    return yk_fail(
        &p->why, YK_INVAL, "no edge brings '%.80s' to stage %lld", p->graph->values[v].name, (long long)s->index);
}

/* What a stage gives: what its plan has places for, then graph outputs whose shape depends on data. */
static void take_outputs(struct pipeline *p, struct stage *s)
{
    const struct memplan *m = exec_plan(s->exec);
    const struct graph *g = p->graph;
    s->own_out = yk_xalloc(((size_t)m->n_out + (size_t)g->n_outputs + 1) * sizeof *s->own_out);
    memcpy(s->own_out, m->out, (size_t)m->n_out * sizeof *s->own_out);
    s->out_values = s->own_out;
    s->n_planned = s->n_out = m->n_out;
    for (int32_t k = 0; k < g->n_outputs; k++) {
        int32_t v = g->outputs[k], producer = g->values[v].producer;
        if (g->values[v].kind == VALUE_NODE && producer >= 0 && s->in_stage[producer] &&
            find_value(s->own_out, s->n_out, v) < 0)
            s->own_out[s->n_out++] = v;
    }
}

static yk_err wire_stage(struct pipeline *p, struct stage *s, int64_t *bytes)
{
    const struct shapes *max = &p->at[0].shapes;
    if (s->half) {
        const struct trainer_border *b = training_border(s);
        s->n_in = b->n_in;
        s->in_values = b->in;
        s->n_out = s->n_planned = b->n_out;
        s->out_values = b->out;
    } else if (s == &p->source) {
        s->n_in = p->graph->n_outputs - p->graph->n_staying;
        s->in_values = p->graph->outputs;
        s->n_out = s->n_planned = p->graph->n_inputs;
        s->out_values = p->graph->inputs;
    } else {
        const struct memplan *m = exec_plan(s->exec);
        s->n_in = m->n_in;
        s->in_values = m->in;
        take_outputs(p, s);
    }
    s->inputs = yk_xalloc((size_t)s->n_in * sizeof *s->inputs + 1);
    for (int32_t i = 0; i < s->n_in; i++) {
        yk_err err = find_input(p, s, i);
        if (err)
            return err;
    }
    int64_t each = 0;
    for (int32_t i = 0; i < s->n_planned; i++) {
        int64_t n = shape_bytes(&max->of[s->out_values[i]]);
        if (n < 0)
            return yk_fail(
                &p->why, YK_INVAL, "the shape of '%.80s' is not known", p->graph->values[s->out_values[i]].name);
        each += (n + MEMPLAN_ALIGN - 1) / MEMPLAN_ALIGN * MEMPLAN_ALIGN;
    }
    if (s->half && s->w->pair != s->index)
        each = 0; /* the trainer's memory */
    s->outs = yk_xalloc(((size_t)s->depth + 1) * sizeof *s->outs);
    for (int64_t k = 0; k < s->depth; k++) {
        struct out_slot *o = &s->outs[k];
        o->stage = s;
        o->t = yk_xalloc((size_t)s->n_out * sizeof *o->t + 1);
        o->made = yk_xalloc((size_t)(s->n_out - s->n_planned) * sizeof *o->made + 1);
        o->mem = yk_try_aligned((size_t)each + MEMPLAN_ALIGN);
        if (!o->mem)
            return yk_fail(&p->why, YK_NOMEM, "no memory for %lld output slots of %lld bytes", (long long)s->depth,
                (long long)each);
        int64_t at = 0;
        for (int32_t i = 0; i < s->n_planned && each > 0; i++) {
            o->t[i] = (struct tensor){max->of[s->out_values[i]], o->mem + at};
            at += (shape_bytes(&o->t[i].shape) + MEMPLAN_ALIGN - 1) / MEMPLAN_ALIGN * MEMPLAN_ALIGN;
        }
    }
    *bytes += s->depth * each;
    return YK_OK;
}

static yk_err wire_edges(struct pipeline *p, int64_t *bytes)
{
    for (int i = 0; i < p->n_edges; i++) {
        struct edge *e = &p->edges[i];
        size_t n = e->w->values.n;
        if (!e->from)
            continue;
        e->position = yk_xalloc(n * sizeof *e->position);
        for (size_t k = 0; k < n; k++) {
            e->position[k] = e->sums ? (int)k : find_value(e->from->out_values, e->from->n_out, e->w->values.at[k]);
            if (e->position[k] < 0)
                return yk_fail(&p->why, YK_INVAL, "stage %lld does not make '%.80s' of edge %lld",
                    (long long)e->from->index, p->graph->values[e->w->values.at[k]].name, (long long)e->w->id);
        }
    }
    yk_err err = p->training ? training_shared_open(p, &p->why) : YK_OK;
    if (!err)
        err = edge_alloc(p, &p->why);
    for (int i = 0; i < p->n_edges && !err; i++) {
        struct edge *e = &p->edges[i];
        bool lossy = e->codec != CODEC_FP32;
        if (!e->local)
            *bytes += e->body_max * ((e->to ? e->w->credits * (lossy ? 2 : 1) : 0) + (e->from && lossy ? 2 : 0));
    }
    return err;
}

/* The execs are there: slots, what goes where, memory. */
static yk_err wire_up(struct pipeline *p)
{
    int64_t bytes = 0, others = 0;
    yk_err err = YK_OK;
    if (p->training)
        bytes += training_bytes(p);
    for (int i = 0; i < p->n_stages && !err; i++) {
        const struct memplan *m = p->training ? NULL : exec_plan(p->stages[i].exec);
        bytes += m ? m->arena_bytes + m->weight_bytes + m->packed_bytes : 0;
        err = wire_stage(p, &p->stages[i], &bytes);
    }
    if (!err && p->is_source)
        err = wire_stage(p, &p->source, &bytes);
    for (int32_t i = 0; !err && p->is_source && p->training && i < p->graph->n_inputs; i++)
        if (i != p->training->divisor) /* a batch as it is read */
            bytes += shape_bytes(&p->at[0].shapes.of[p->graph->inputs[i]]) / p->full * p->load->training.batch;
    if (!err)
        err = wire_edges(p, &bytes);
    if (err)
        return err;
    for (struct pipeline *o = p->agent->pipelines; o; o = o->next)
        if (o != p)
            others += o->memory_bytes;
    if (p->agent->memory_bytes > 0 && bytes > p->agent->memory_bytes - others) {
        p->lacking_bytes = bytes - (p->agent->memory_bytes - others);
        return yk_fail(&p->why, YK_NOMEM, "needs %lld bytes; the budget is %lld, of which other pipelines hold %lld",
            (long long)bytes, (long long)p->agent->memory_bytes, (long long)others);
    }
    p->memory_bytes = bytes;
    return YK_OK;
}

static void prepare_done(void *arg)
{
    struct pipeline *p = arg;
    struct agent *a = p->agent;
    if (p->state == PIPELINE_LOADING) {
        if (!p->err)
            p->err = wire_up(p);
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

/* Who reads of an edge that ends here. */
static yk_err take_readers(struct pipeline *p, struct edge *e)
{
    long long id = e->w->id;
    if (!e->from && !e->to)
        return yk_fail(&p->why, YK_INVAL, "edge %lld neither begins nor ends here", id);
    if (!e->to)
        return YK_OK;
    if (e->w->also.n >= PIPELINE_MAX_READERS || (e->w->also.n && e->to == &p->source))
        return yk_fail(&p->why, YK_LIMIT, "edge %lld has %zu readers; the limit is %d, and the source reads alone", id,
            e->w->also.n + 1, PIPELINE_MAX_READERS);
    e->readers[e->n_readers++] = e->to;
    for (size_t k = 0; k < e->w->also.n; k++) {
        struct stage *s = stage_here(p, e->w->also.at[k]);
        if (!s || s == &p->source || edge_feeds(e, s))
            return yk_fail(&p->why, YK_INVAL, "edge %lld is also read by stage %lld, which is not here or comes twice",
                id, (long long)e->w->also.at[k]);
        e->readers[e->n_readers++] = s;
    }
    return YK_OK;
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
    p->err = check_command(p);
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
        e->from = stage_here(p, e->w->from);
        e->to = stage_here(p, e->w->to);
        e->local = e->from && e->to;
        e->sums = e->w->sums;
        p->err = take_readers(p, e);
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
