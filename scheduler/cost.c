#include "scheduler/cost.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

double cost_now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

bool cost_out_of_time(const struct cost_model *m)
{
    int64_t *looks = m->req->looks;
    if (looks)
        return *looks <= 0 || --*looks == 0;
    return m->stop_ms > 0 && cost_now_ms() > m->stop_ms;
}

/* ---- forms ---- */

static int32_t form_index(const struct view *v, const char *name)
{
    for (int32_t i = 0; i < v->n_forms; i++)
        if (strcmp(v->forms[i], name) == 0)
            return i;
    return -1;
}

void cost_choose_forms(const struct solve_request *req, const struct view *v, int32_t *form)
{
    int32_t n = req->graph->n_nodes;
    const char *const *fixed = req->forms;
    if (req->forced && req->forced->forms)
        fixed = (const char *const *)req->forced->forms;
    bool all = fixed != NULL;
    for (int32_t i = 0; i < n; i++) {
        form[i] = fixed && fixed[i] && fixed[i][0] ? form_index(v, fixed[i]) : -1;
        all = all && fixed[i] && fixed[i][0];
    }
    if (all)
        return;
    /* By node and form: how many agents have it, and its time at the largest size, as a mean. */
    int32_t *have = yk_xalloc(((size_t)v->n_forms + 1) * sizeof *have);
    double *sum = yk_xalloc(((size_t)v->n_forms + 1) * sizeof *sum);
    int32_t *at = yk_xalloc(((size_t)v->n_agents + 1) * sizeof *at); /* profiles are sorted by node */
    for (int32_t i = 0; i < n; i++) {
        memset(have, 0, (size_t)v->n_forms * sizeof *have);
        memset(sum, 0, (size_t)v->n_forms * sizeof *sum);
        for (int32_t a = 0; a < v->n_agents; a++) {
            const struct view_agent *agent = &v->agents[a];
            for (; agent->usable && at[a] < agent->n_times && agent->times[at[a]].node <= i; at[a]++) {
                const struct view_time *t = &agent->times[at[a]];
                const struct view_time *next = at[a] + 1 < agent->n_times ? t + 1 : NULL;
                bool last = !next || next->node != t->node || next->form != t->form;
                if (t->node == i && last) {
                    have[t->form]++;
                    sum[t->form] += t->ms / (double)YK_MAX(t->size, 1);
                }
            }
        }
        bool given = fixed && fixed[i] && fixed[i][0];
        for (int32_t f = 0; f < v->n_forms && !given; f++)
            if (have[f] && (form[i] < 0 || have[f] > have[form[i]] ||
                               (have[f] == have[form[i]] && sum[f] / have[f] < sum[form[i]] / have[form[i]])))
                form[i] = f;
    }
    free(have);
    free(sum);
    free(at);
}

/* ---- node times ---- */

/* Rows of (node, form) are adjacent and sorted by size. */
static const struct view_time *find_rows(const struct view_agent *a, int32_t node, int32_t form, int32_t *n)
{
    int32_t low = 0, high = a->n_times;
    while (low < high) {
        int32_t mid = (low + high) / 2;
        const struct view_time *t = &a->times[mid];
        if (t->node < node || (t->node == node && t->form < form))
            low = mid + 1;
        else
            high = mid;
    }
    int32_t end = low;
    while (end < a->n_times && a->times[end].node == node && a->times[end].form == form)
        end++;
    *n = end - low;
    return &a->times[low];
}

static double interpolate(const struct view_time *t, int32_t n, int64_t size)
{
    if (size <= t[0].size || n == 1) {
        double frac = (double)size / (double)YK_MAX(t[0].size, 1);
        /* Below the smallest measured size a fixed part remains; nobody measured how much: half is taken as fixed. */
        return size < t[0].size ? t[0].ms * (0.5 + 0.5 * frac) : t[0].ms * frac;
    }
    for (int32_t i = 1; i < n; i++)
        if (size <= t[i].size) {
            double f = (double)(size - t[i - 1].size) / (double)(t[i].size - t[i - 1].size);
            return t[i - 1].ms + f * (t[i].ms - t[i - 1].ms);
        }
    return t[n - 1].ms * (double)size / (double)t[n - 1].size;
}

struct node_work { /* of the node that was asked for last */
    struct op_ctx *ctx;
    int32_t node;
    double flops, bytes;
};

/* What work of ms, alone on an agent as it was profiled, takes today. */
static double agent_ms(const struct view_agent *a, double ms)
{
    double idle = 1 - YK_MIN(YK_MAX(a->busy_frac, 0.0), 0.95);
    return ms * (a->slow_factor > 0 ? a->slow_factor : 1) / idle;
}

static double node_time(
    struct cost_model *m, int32_t agent, int32_t node, struct node_work *work, enum view_origin *origin)
{
    const struct view_agent *a = &m->view->agents[agent];
    double ms = NAN;
    int32_t n = 0;
    if (a->n_times) {
        int32_t form = m->form[node];
        const struct view_time *rows = form >= 0 ? find_rows(a, node, form, &n) : NULL;
        if (n) {
            ms = interpolate(rows, n, m->microbatch);
            ms *= rows->extra > 0 ? rows->extra : 1;
            *origin = VIEW_PROFILE;
            m->table[node].packed_bytes = YK_MAX(m->table[node].packed_bytes, rows[n - 1].packed_bytes);
            m->table[node].workspace_bytes = YK_MAX(m->table[node].workspace_bytes, rows[n - 1].workspace_bytes);
        }
    } else if (a->gflops > 0) {
        if (work->node != node) {
            shapes_node(m->graph, &m->shapes, node, work->ctx);
            *work = (struct node_work){work->ctx, node, op_flops(work->ctx), op_bytes(work->ctx)};
        }
        ms = work->flops / a->gflops * 1e-6 + (a->gbytes_per_s > 0 ? work->bytes / a->gbytes_per_s * 1e-6 : 0);
        *origin = VIEW_ROOFLINE;
    }
    return agent_ms(a, ms);
}

/* Adds to node_ms what agents do with gradients, which no profile has: nodes are timed one by one. */
static void add_gradients(struct cost_model *m)
{
    const struct solve_training *t = m->req->training;
    const struct grad_info *info = t ? t->info : NULL;
    double n = (double)m->count, moved = 2 * (n - 1) + 3 + 2 * (t ? (double)t->state_bytes : 0);
    for (int32_t i = 0; info && i < info->n_params; i++)
        for (int32_t u = 0; info->params[i].trainable && u < info->params[i].n_uses; u++) {
            int32_t value = m->graph->outputs[info->params[i].uses[u]], node = m->graph->values[value].producer;
            double bytes = (double)YK_MAX(shape_bytes(&m->shapes.of[value]), 0) * moved / n;
            for (int32_t a = 0; node >= 0 && a < m->view->n_agents; a++) {
                const struct view_agent *v = &m->view->agents[a];
                if (v->gbytes_per_s > 0)
                    m->node_ms[(size_t)a * (size_t)m->graph->n_nodes + (size_t)node] +=
                        agent_ms(v, bytes / v->gbytes_per_s * 1e-6);
            }
        }
}

/* ---- the model ---- */

static void index_links(struct cost_model *m)
{
    const struct view *v = m->view;
    size_t n = (size_t)v->n_agents + 1;
    m->link = yk_xalloc(n * n * sizeof *m->link);
    for (size_t i = 0; i < n * n; i++)
        m->link[i] = -1;
    m->link_resource = yk_xalloc(((size_t)v->n_links + 1) * sizeof *m->link_resource);
    int32_t most = -1, media = 0;
    for (int32_t i = 0; i < v->n_links; i++)
        most = YK_MAX(most, v->links[i].shared);
    /* Numbered anew: in a part of a large fleet few of its media are left. 0: not met yet. */
    int32_t *number = yk_xalloc(((size_t)most + 1) * sizeof *number);
    for (int32_t i = 0; i < v->n_links; i++) {
        const struct view_link *l = &v->links[i];
        if (l->shared >= 0 && !number[l->shared])
            number[l->shared] = ++media;
        m->link_resource[i] = v->n_agents + (l->shared >= 0 ? v->n_links + number[l->shared] - 1 : i);
        if (l->origin == VIEW_UNKNOWN || !(l->bytes_per_s > 0) || l->from < -1 || l->to < -1 ||
            l->from >= v->n_agents || l->to >= v->n_agents)
            continue;
        /* Two links of one pair (cable and Wi-Fi): the faster one for large transfers. */
        int32_t *slot = &m->link[(size_t)(l->from + 1) * n + (size_t)(l->to + 1)];
        if (*slot < 0 || v->links[*slot].bytes_per_s < l->bytes_per_s)
            *slot = i;
    }
    free(number);
    m->n_resources = v->n_agents + v->n_links + media;
}

yk_err cost_init(struct cost_model *m, const struct solve_request *req, const struct view *v, const int32_t *form,
    int64_t microbatch, struct yk_diag *why)
{
    const struct graph *g = req->graph;
    int64_t *sizes = yk_xalloc(((size_t)g->n_syms + 1) * sizeof *sizes);
    *m = (struct cost_model){.req = req, .view = v, .graph = g, .microbatch = microbatch};
    m->count = req->batch > 0 ? (req->batch + microbatch - 1) / microbatch : 1;
    graph_sizes(g, req->sizes, microbatch, sizes);
    yk_err err = shapes_infer(g, sizes, NULL, &m->shapes, why);
    free(sizes);
    if (err) {
        *m = (struct cost_model){0};
        return err;
    }
    size_t nodes = (size_t)g->n_nodes + 1;
    m->form = yk_xalloc(nodes * sizeof *m->form);
    memcpy(m->form, form, (size_t)g->n_nodes * sizeof *form);
    m->table = yk_xalloc(nodes * sizeof *m->table);
    m->node_ms = yk_xalloc(((size_t)v->n_agents + 1) * nodes * sizeof *m->node_ms);
    m->origin = yk_xalloc(((size_t)v->n_agents + 1) * sizeof *m->origin);
    struct node_work work = {.ctx = yk_xalloc(sizeof *work.ctx), .node = -1};
    for (int32_t a = 0; a < v->n_agents; a++)
        m->origin[a] = VIEW_PROFILE;
    for (int32_t i = 0; i < g->n_nodes; i++)
        for (int32_t a = 0; a < v->n_agents; a++) {
            enum view_origin origin = VIEW_UNKNOWN;
            m->node_ms[(size_t)a * (size_t)g->n_nodes + (size_t)i] = node_time(m, a, i, &work, &origin);
            m->origin[a] = YK_MIN(m->origin[a], origin);
        }
    free(work.ctx);
    add_gradients(m);
    index_links(m);
    return YK_OK;
}

void cost_fini(struct cost_model *m)
{
    shapes_fini(&m->shapes);
    free(m->form);
    free(m->table);
    free(m->node_ms);
    free(m->origin);
    free(m->link);
    free(m->link_resource);
    *m = (struct cost_model){0};
}

int32_t cost_link(const struct cost_model *m, int32_t from, int32_t to)
{
    return m->link[(size_t)(from + 1) * ((size_t)m->view->n_agents + 1) + (size_t)(to + 1)];
}

double cost_extra(const struct cost_model *m, int32_t agent, int32_t node)
{
    int32_t n = 0;
    const struct view_agent *a = &m->view->agents[agent];
    const struct view_time *rows = m->form[node] >= 0 && a->n_times ? find_rows(a, node, m->form[node], &n) : NULL;
    return n && rows->extra > 0 ? rows->extra : 1;
}

double cost_prepare_ms(const struct cost_model *m, int32_t agent, int32_t node)
{
    int32_t n = 0;
    const struct view_agent *a = &m->view->agents[agent];
    const struct view_time *rows = m->form[node] >= 0 && a->n_times ? find_rows(a, node, m->form[node], &n) : NULL;
    return n ? YK_MAX(rows[n - 1].prepare_ms, 0.0) : 0;
}

enum plan_codec cost_codec(const struct cost_model *m)
{
    const bool *allowed = m->req->codec_allowed;
    return allowed && allowed[CODEC_INT8] ? CODEC_INT8 : allowed && allowed[CODEC_FP16] ? CODEC_FP16 : CODEC_FP32;
}

int64_t cost_value_bytes(const struct cost_model *m, int32_t value, enum plan_codec codec)
{
    const struct shape *s = &m->shapes.of[value];
    int64_t bytes = shape_bytes(s);
    if (bytes < 0)
        return 0;
    if (s->dtype == DT_F32 && codec != CODEC_FP32)
        bytes = codec == CODEC_FP16 ? bytes / 2 : bytes / 4;
    return bytes;
}

double cost_transfer_ms(const struct cost_model *m, int32_t link, int64_t bytes, double *latency_ms)
{
    const struct view_link *l = &m->view->links[link];
    double all = (double)(bytes + COST_HEADER_BYTES);
    *latency_ms = l->latency_ms;
    return all / l->bytes_per_s * 1e3 + all * l->cpu_ns_per_byte * 1e-6;
}

static bool way(const struct cost_model *m, bool back, int32_t source, const int32_t *values, int32_t n, double frac,
    struct cost_edge *out)
{
    int32_t link = m->req->source >= 0 ? -1 : back ? cost_link(m, source, -1) : cost_link(m, -1, source);
    int64_t bytes = 0;
    if (link < 0)
        return false;
    for (int32_t i = 0; i < n; i++)
        bytes += cost_value_bytes(m, values[i], CODEC_FP32); /* nothing encodes it */
    *out = (struct cost_edge){
        .from = back ? -1 : -2, .to = back ? -2 : -1, .bytes = bytes, .resource = m->link_resource[link]};
    out->busy_ms = frac * cost_transfer_ms(m, link, bytes, &out->latency_ms);
    out->latency_ms *= frac;
    return true;
}

bool cost_upload(const struct cost_model *m, int32_t source, struct cost_edge *out)
{
    double frac = m->req->upload_frac > 0 ? m->req->upload_frac : 1;
    return way(m, false, source, m->graph->inputs, m->graph->n_inputs, frac, out);
}

bool cost_answer(const struct cost_model *m, int32_t source, struct cost_edge *out)
{
    return m->req->answers &&
           way(m, true, source, m->graph->outputs, m->graph->n_outputs - m->graph->n_staying, 1, out);
}

double cost_fetch_ms(const struct cost_model *m, int32_t agent, int64_t bytes)
{
    int32_t link = cost_link(m, -1, agent);
    double latency;
    for (int32_t from = link < 0 ? 0 : m->view->n_agents; from < m->view->n_agents; from++) {
        int32_t way = from == agent ? -1 : cost_link(m, from, agent);
        if (way >= 0 && (link < 0 || m->view->links[way].bytes_per_s > m->view->links[link].bytes_per_s))
            link = way;
    }
    if (link < 0 || bytes <= 0)
        return 0;
    return cost_transfer_ms(m, link, bytes, &latency) + 2 * latency; /* it asks first */
}

static const char *agent_name(const struct cost_model *m, int32_t agent)
{
    return agent < 0 ? "yoked" : m->view->agents[agent].name;
}

void cost_resource_name(const struct cost_model *m, int32_t resource, char *out)
{
    const struct view *v = m->view;
    if (resource < 0) {
        snprintf(out, 160, "nothing");
    } else if (resource < v->n_agents) {
        snprintf(out, 160, "agent %s", v->agents[resource].name);
    } else if (resource < v->n_agents + v->n_links) {
        const struct view_link *l = &v->links[resource - v->n_agents];
        snprintf(out, 160, "link %s->%s", agent_name(m, l->from), agent_name(m, l->to));
    } else {
        for (int32_t i = 0; i < v->n_links; i++)
            if (m->link_resource[i] == resource) {
                snprintf(out, 160, "link %s<->%s", agent_name(m, v->links[i].from), agent_name(m, v->links[i].to));
                return;
            }
        snprintf(out, 160, "a medium");
    }
}

yk_err cost_memory_parts(
    const struct cost_model *m, const uint8_t *in_stage, int64_t *fixed, int64_t *each, struct yk_diag *why)
{
    struct memplan plan;
    yk_err err = memplan_make(m->graph, &m->shapes, in_stage, m->table, 1, &plan, why);
    if (err)
        return err;
    *each = plan.in_bytes + plan.out_bytes;
    *fixed = plan.total_bytes - *each;
    if (m->req->training) /* what the optimizer keeps for each gradient that stays */
        *fixed += plan.stay_bytes * m->req->training->state_bytes;
    memplan_fini(&plan);
    return YK_OK;
}

yk_err cost_memory_unit(
    const struct cost_model *m, const uint8_t *in_stage, bool whole, struct memtrain_part half[2], struct yk_diag *why)
{
    const struct solve_training *t = m->req->training;
    struct memtrain_config c = {.graph = m->graph,
        .shapes = &m->shapes,
        .info = t->info,
        .in_stage = in_stage,
        .table = m->table,
        .slots = (int32_t)t->state_bytes,
        .whole = whole,
        .several = m->count > 1};
    return memtrain_make(&c, half, why);
}

yk_err cost_memory(
    const struct cost_model *m, const uint8_t *in_stage, int32_t depth, int64_t *out, struct yk_diag *why)
{
    struct memplan plan;
    yk_err err = memplan_make(m->graph, &m->shapes, in_stage, m->table, depth, &plan, why);
    if (err)
        return err;
    *out = plan.total_bytes + (m->req->training ? plan.stay_bytes * m->req->training->state_bytes : 0);
    memplan_fini(&plan);
    return YK_OK;
}

double cost_floor(const struct cost_model *m, double *work_ms)
{
    const struct view *v = m->view;
    int32_t n = m->graph->n_nodes;
    double *pace = yk_xalloc(((size_t)v->n_agents + 1) * sizeof *pace), all = 0, sum = 0, work = 0;
    for (int32_t a = 0; a < v->n_agents; a++) {
        double ms = 0;
        for (int32_t i = 0; i < n; i++) { /* an agent that cannot run a node may still run the others */
            double node = m->node_ms[(size_t)a * (size_t)n + (size_t)i];
            ms += isnan(node) ? 0 : node;
        }
        pace[a] = v->agents[a].usable ? 1 / YK_MAX(ms, 1e-9) : 0;
        all += pace[a];
    }
    for (int32_t i = 0; i < n; i++) {
        double least = INFINITY, part = INFINITY;
        for (int32_t a = 0; a < v->n_agents; a++) {
            double node = m->node_ms[(size_t)a * (size_t)n + (size_t)i];
            if (isnan(node) || pace[a] <= 0)
                continue;
            least = YK_MIN(least, node);
            part = YK_MIN(part, node * pace[a]);
        }
        sum += least;
        work += part;
    }
    free(pace);
    *work_ms = all > 0 ? work / all : 0;
    return sum;
}

/* ---- a pipeline's price ---- */

void cost_line_fini(struct cost_line *l)
{
    free(l->stages);
    free(l->edges);
    free(l->stage_of);
    *l = (struct cost_line){0};
}

/* One end of a message. */
static void add_message(const struct cost_model *m, struct cost_line *l, int32_t agent, double *load)
{
    double ms = agent >= 0 ? m->view->agents[agent].message_ms : 0;
    if (!(ms > 0))
        return;
    load[agent] += ms;
    l->first_ms += ms;
    for (int32_t s = 0; s < l->n_stages; s++)
        if (l->stages[s].agent == agent) {
            l->stages[s].message_ms += ms;
            return;
        }
    l->source_ms += ms;
}

double cost_line_load(const struct cost_line *l, int32_t resource)
{
    double ms = resource == l->source ? l->source_ms : 0;
    for (int32_t s = 0; s < l->n_stages; s++)
        if (l->stages[s].agent == resource)
            ms += l->stages[s].ms + l->stages[s].message_ms;
    for (int32_t e = 0; e < l->n_edges; e++)
        if (l->edges[e].resource == resource)
            ms += l->edges[e].busy_ms;
    return ms;
}

static yk_err add_edge(const struct cost_model *m, struct cost_line *l, int32_t from, int32_t to, int32_t from_agent,
    int32_t to_agent, int64_t bytes, enum plan_codec codec, double *load, struct yk_diag *why)
{
    struct cost_edge *e = &l->edges[l->n_edges++];
    *e = (struct cost_edge){.from = from, .to = to, .bytes = bytes, .codec = codec, .resource = -1};
    if (from_agent == to_agent)
        return YK_OK;
    int32_t link = cost_link(m, from_agent, to_agent);
    if (link < 0)
        return yk_fail(why, YK_INFEASIBLE,
            "link %s->%s is not measured, and a plan needs it: `yoke links` tells why; it is tried again in half a "
            "minute at the latest while no job runs, or leave out one of the two",
            agent_name(m, from_agent), agent_name(m, to_agent));
    e->busy_ms = cost_transfer_ms(m, link, bytes, &e->latency_ms);
    e->resource = m->link_resource[link];
    load[e->resource] += e->busy_ms;
    l->first_ms += e->busy_ms + e->latency_ms;
    add_message(m, l, from_agent, load);
    add_message(m, l, to_agent, load);
    return YK_OK;
}

/* Of the next edge, which is set. */
static void add_way(struct cost_line *l, double *load)
{
    const struct cost_edge *e = &l->edges[l->n_edges++];
    load[e->resource] += e->busy_ms;
    l->first_ms += e->busy_ms + e->latency_ms;
}

static yk_err price_edges(const struct cost_model *m, struct cost_line *l, const struct plan *forced, int32_t which,
    double *load, struct yk_diag *why)
{
    struct cut_edges edges;
    yk_err err = cut_edges_find(m->graph, &m->shapes, l->stage_of, l->n_stages, &edges, why);
    if (err)
        return err;
    int32_t *agent_of = yk_xalloc(((size_t)l->n_stages + 1) * sizeof *agent_of);
    for (int32_t s = 0; s < l->n_stages; s++)
        agent_of[s] = l->stages[s].agent;
    err = cut_edges_join(&edges, &m->shapes, agent_of, l->n_stages, why);
    free(agent_of);
    l->edges = yk_xalloc(((size_t)edges.n + 3) * sizeof *l->edges);
    if (!err && cost_upload(m, l->source, &l->edges[l->n_edges])) {
        add_way(l, load);
        add_message(m, l, l->source, load);
    }
    for (int32_t i = 0; i < edges.n && !err; i++) {
        const struct cut_edge *e = &edges.at[i];
        int32_t from = e->from < 0 ? l->source : l->stages[e->from].agent;
        int32_t to = e->to < 0 ? l->source : l->stages[e->to].agent;
        enum plan_codec codec = forced ? plan_codec_of(forced, which, e->from, e->to) : cost_codec(m);
        if (from == to)
            codec = CODEC_FP32;
        int64_t bytes = 0;
        for (int32_t k = 0; k < e->n_values; k++)
            bytes += cost_value_bytes(m, e->values[k], codec);
        err = add_edge(m, l, e->from, e->to, from, to, bytes, codec, load, why);
    }
    if (!err && cost_answer(m, l->source, &l->edges[l->n_edges]))
        add_way(l, load);
    cut_edges_fini(&edges);
    return err;
}

yk_err cost_price(const struct cost_model *m, int32_t source, const int32_t *agents, int32_t n_stages,
    const int32_t *stage_of, const struct plan *forced, int32_t which, struct cost_line *out, struct yk_diag *why)
{
    int32_t n = m->graph->n_nodes;
    struct cost_line l = {.n_stages = n_stages, .source = source, .bottleneck = -1};
    double *load = yk_xalloc(((size_t)m->n_resources + 1) * sizeof *load);
    l.stages = yk_xalloc(((size_t)n_stages + 1) * sizeof *l.stages);
    l.stage_of = yk_xalloc(((size_t)n + 1) * sizeof *l.stage_of);
    memcpy(l.stage_of, stage_of, (size_t)n * sizeof *stage_of);
    for (int32_t s = 0; s < n_stages; s++)
        l.stages[s].agent = agents[s];
    yk_err err = YK_OK;
    for (int32_t i = 0; i < n && !err; i++) {
        struct cost_stage *s = &l.stages[stage_of[i]];
        double ms = m->node_ms[(size_t)s->agent * (size_t)n + (size_t)i];
        if (isnan(ms))
            err = yk_fail(why, YK_INFEASIBLE, "agent %s cannot run node %d '%s' (%s)%s%s", agent_name(m, s->agent), i,
                m->graph->nodes[i].name, m->graph->nodes[i].op->name, m->form[i] >= 0 ? " in form " : "",
                m->form[i] >= 0 ? m->view->forms[m->form[i]] : "");
        s->ms += ms;
    }
    for (int32_t s = 0; s < n_stages; s++) {
        load[agents[s]] += l.stages[s].ms;
        l.cloud_ms += strcmp(m->view->agents[agents[s]].class_name, "cloud") == 0 ? l.stages[s].ms : 0;
        l.first_ms += l.stages[s].ms;
    }
    add_message(m, &l, source, load);
    if (!err)
        err = price_edges(m, &l, forced, which, load, why);
    for (int32_t r = 0; r < m->n_resources && !err; r++)
        if (load[r] > l.bottleneck_ms || l.bottleneck < 0) {
            l.bottleneck_ms = load[r];
            l.bottleneck = r;
        }
    l.cost_ms = l.first_ms + (double)(m->count - 1) * l.bottleneck_ms;
    free(load);
    if (err)
        cost_line_fini(&l);
    else
        *out = l;
    return err;
}
