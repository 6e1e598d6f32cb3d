/* What a load command says, against limits and then against the graph that it names: nothing of it is trusted. */
#include "agent/load_priv.h"

#include "agent/edge.h"
#include "agent/training.h"
#include "common/onnx.h"

#include <string.h>

/* ---- checks that need no graph ---- */

static yk_err check_stage(const struct wire_load *w, size_t i, struct yk_diag *why)
{
    const struct wire_stage *s = &w->stages.at[i];
    if (s->index < 0 || s->index >= CUT_MAX_STAGES || s->depth < 0 || s->depth > PIPELINE_MAX_SLOTS)
        return yk_fail(why, YK_INVAL, "stage %lld with depth %lld; the limits are %d stages and a depth of %d",
            (long long)s->index, (long long)s->depth, CUT_MAX_STAGES, PIPELINE_MAX_SLOTS);
    for (size_t k = 0; k < i; k++)
        if (w->stages.at[k].index == s->index)
            return yk_fail(why, YK_INVAL, "stage %lld comes twice", (long long)s->index);
    return YK_OK;
}

static yk_err check_edge(const struct wire_load *w, size_t i, bool train, struct yk_diag *why)
{
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
    return YK_OK;
}

yk_err load_check_command(struct pipeline *p)
{
    const struct wire_load *w = p->load;
    struct yk_diag *why = &p->why;
    bool train = strcmp(w->kind, "train") == 0;
    yk_err err = YK_OK;
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
    for (size_t i = 0; i < w->stages.n && !err; i++)
        err = check_stage(w, i, why);
    for (size_t i = 0; i < w->edges.n && !err; i++)
        err = check_edge(w, i, train, why);
    return err;
}

yk_err load_take_readers(struct pipeline *p, struct edge *e)
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
        struct stage *s = pipeline_stage(p, e->w->also.at[k]);
        if (!s || s == &p->source || edge_feeds(e, s))
            return yk_fail(&p->why, YK_INVAL, "edge %lld is also read by stage %lld, which is not here or comes twice",
                id, (long long)e->w->also.at[k]);
        e->readers[e->n_readers++] = s;
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

/* That the values of an edge can travel: no weights, and of a shape that is known unless it goes to the source as an
 * output whose shape depends on data. */
static yk_err check_values(struct pipeline *p, const struct wire_edge *w)
{
    const struct graph *g = p->graph;
    for (size_t k = 0; k < w->values.n; k++) {
        int64_t v = w->values.at[k];
        bool known = v >= 0 && v < g->n_values && g->values[v].kind != VALUE_WEIGHT;
        bool made = known && w->to == -1 && g->values[v].type == VALUE_TENSOR &&
                    load_position(g->outputs, g->n_outputs, v) >= 0;
        if (!known || (shape_bytes(&p->at[0].shapes.of[v]) < 0 && !made))
            return yk_fail(&p->why, YK_INVAL, "value %lld cannot cross edge %lld", (long long)v, (long long)w->id);
    }
    return YK_OK;
}

yk_err load_take_graph(struct pipeline *p)
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
    for (int i = 0; i < p->n_edges && !err; i++)
        err = check_values(p, p->edges[i].w);
    return err;
}
