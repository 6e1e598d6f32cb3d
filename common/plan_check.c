/* A plan against its graph: nothing reads a plan that a user gave before this has passed. */
#include "common/plan.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define MEND "leave it out, or all of \"cuts\": they only name codecs"

yk_err plan_stage_of(const struct plan *p, int32_t pipeline, int32_t n_nodes, int32_t *stage_of, struct yk_diag *why)
{
    const struct plan_pipeline *line = &p->pipelines[pipeline];
    for (int32_t i = 0; i < n_nodes; i++)
        stage_of[i] = -1;
    for (int32_t k = 0; k < line->n_stages; k++)
        for (int32_t r = 0; r < line->stages[k].n_nodes; r++) {
            struct cut_range range = line->stages[k].nodes[r];
            if (range.last >= n_nodes)
                return yk_fail(why, YK_INVAL, "pipelines[%d].stages[%d] names node %d, the graph has 0..%d", pipeline,
                    k, range.last, n_nodes - 1);
            for (int32_t i = range.first; i <= range.last; i++) {
                if (stage_of[i] >= 0)
                    return yk_fail(
                        why, YK_INVAL, "pipelines[%d]: node %d is in stages %d and %d", pipeline, i, stage_of[i], k);
                stage_of[i] = k;
            }
        }
    for (int32_t i = 0; i < n_nodes; i++)
        if (stage_of[i] < 0)
            return yk_fail(why, YK_INVAL, "pipelines[%d]: node %d is in no stage", pipeline, i);
    return YK_OK;
}

static int by_ends(const void *a, const void *b)
{
    const struct cut_edge *x = a, *y = b;
    return x->from != y->from ? (x->from > y->from) - (x->from < y->from) : (x->to > y->to) - (x->to < y->to);
}

/* Cuts only name codecs. One that names fp32 where nothing crosses says nothing: it is left from stages that the plan
 * had before it was edited. A codec that loses bits has to be of an edge of pipeline `which`, which has one. */
static yk_err check_cuts(const struct plan *p, int32_t which, const struct cut_edges *edges, struct yk_diag *why)
{
    yk_err err = YK_OK;
    int32_t *seen = yk_xalloc(((size_t)edges->n + 1) * sizeof *seen); /* by edge: 1 + the first cut that names it */
    for (int32_t k = 0; !err && k < p->n_cuts; k++) {
        const struct plan_cut *c = &p->cuts[k];
        const struct cut_edge key = {.from = c->from, .to = c->to}, *e = NULL;
        if (c->pipeline != which)
            continue;
        if (edges->n)
            e = bsearch(&key, edges->at, (size_t)edges->n, sizeof *edges->at, by_ends);
        int32_t *first = e ? &seen[e - edges->at] : NULL;
        if (!e && c->codec != CODEC_FP32)
            err = yk_fail(why, YK_INVAL,
                "cuts[%d] names codec %s from stage %d to stage %d of pipeline %d, where nothing crosses: " MEND, k,
                plan_codec_name(c->codec), c->from, c->to, which);
        else if (e && *first && p->cuts[*first - 1].codec != c->codec)
            err = yk_fail(why, YK_INVAL,
                "cuts[%d] and cuts[%d] name codecs %s and %s from stage %d to stage %d of pipeline %d: leave out one",
                *first - 1, k, plan_codec_name(p->cuts[*first - 1].codec), plan_codec_name(c->codec), c->from, c->to,
                which);
        else if (e)
            *first = k + 1;
    }
    free(seen);
    return err;
}

static yk_err check_pipeline(
    const struct plan *p, int32_t i, const struct graph *g, const struct shapes *s, struct yk_diag *why)
{
    struct cut_edges edges = {0};
    int32_t *stage_of = yk_xalloc(((size_t)g->n_nodes + 1) * sizeof *stage_of);
    yk_err err = plan_stage_of(p, i, g->n_nodes, stage_of, why);
    if (!err && (err = cut_check(g, s, stage_of, p->pipelines[i].n_stages, why)))
        yk_wrap(why, err, "pipelines[%d]", i);
    if (!err)
        err = cut_edges_find(g, s, stage_of, p->pipelines[i].n_stages, &edges, why);
    if (!err)
        err = check_cuts(p, i, &edges, why);
    cut_edges_fini(&edges);
    free(stage_of);
    return err;
}

yk_err plan_check_graph(const struct plan *p, const struct graph *g, struct yk_diag *why)
{
    char hash[65];
    yk_hex(g->hash, sizeof g->hash, hash);
    if (g->has_hash && strcmp(hash, p->graph_hash) != 0)
        return yk_fail(why, YK_INVAL, "the plan is of graph %.12s..., this is %.12s...: plan it again%s", p->graph_hash,
            hash, g->n_staying > 0 ? ", with the flags of this training" : "");
    const char *use = g->n_staying > 0 ? "train" : "infer";
    if (p->graph_use && strcmp(p->graph_use, use) != 0)
        return yk_fail(why, YK_INVAL, "the plan is of a graph to '%.40s', this one is to %s", p->graph_use, use);
    if (p->forms && p->n_forms != g->n_nodes)
        return yk_fail(why, YK_INVAL,
            "the plan names %d forms, the graph has %d nodes: give one for each, or leave \"forms\" out", p->n_forms,
            g->n_nodes);
    return YK_OK;
}

yk_err plan_check(const struct plan *p, const struct graph *g, const struct shapes *s, struct yk_diag *why)
{
    int64_t fixed;
    double shares = 0;
    yk_err err = plan_check_graph(p, g, why);
    if (err)
        return err;
    if (p->microbatch < 1)
        return yk_fail(why, YK_INVAL, "microbatch is %lld, at least 1 is needed", (long long)p->microbatch);
    if (graph_batch_dim(g, &fixed) < 0 && p->microbatch != fixed)
        return yk_fail(
            why, YK_INVAL, "microbatch is %lld, the model takes %lld only", (long long)p->microbatch, (long long)fixed);
    if (p->n_pipelines < 1)
        return yk_fail(why, YK_INVAL, "the plan has no pipelines");
    for (int32_t i = 0; i < p->n_cuts; i++)
        if (p->cuts[i].codec != CODEC_FP32 && (p->cuts[i].pipeline < 0 || p->cuts[i].pipeline >= p->n_pipelines))
            return yk_fail(why, YK_INVAL, "cuts[%d] names codec %s in pipeline %d, the pipelines are 0..%d: " MEND, i,
                plan_codec_name(p->cuts[i].codec), p->cuts[i].pipeline, p->n_pipelines - 1);
    for (int32_t i = 0; i < p->n_pipelines; i++) {
        shares += p->pipelines[i].share;
        if (!(p->pipelines[i].share > 0))
            return yk_fail(why, YK_INVAL, "pipelines[%d].share is %g: a pipeline gets more than 0 of the microbatches",
                i, p->pipelines[i].share);
        if ((err = check_pipeline(p, i, g, s, why)))
            return err;
    }
    if (fabs(shares - 1) > 1e-6)
        return yk_fail(why, YK_INVAL, "the pipelines' shares add up to %g, not 1", shares);
    return YK_OK;
}
