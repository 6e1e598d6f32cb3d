/* Gathers what a plan needs (profiles, links), takes a snapshot, and has the solver thread make the plan. */
#include "scheduler/sched_priv.h"

#include "common/log.h"
#include "common/metrics.h"
#include "scheduler/busy.h"
#include "scheduler/cold.h"
#include "scheduler/explain.h"
#include "scheduler/infeasible.h"

#include <stdlib.h>
#include <string.h>

#define GATHER_US 90000000 /* profiles and links are waited for this long */
#define SOLVE_BUDGET_MS 2000
#define EXPLAIN_BUDGET_MS 4000
#define REASONS_BUDGET_MS 3000

struct planning {
    struct planning *next, **link;
    struct sched *sched;
    struct planning_request r;
    char *kind, *source;
    bool codec_allowed[3];
    struct plan *forced;
    char **forms;
    int32_t n_forms;
    int64_t *sizes;                 /* of the request */
    struct solve_training training; /* of NULL: none */
    struct grad_info info;          /* of it; what it points to is the graph's */
    char *key; /* with others: the graph at the sizes that it is profiled at; NULL until it is loaded */
    struct wire_size *others;
    size_t n_others;
    struct job_refusal *refused;
    planning_done fn;
    void *arg;
    int64_t started_us;
    bool solving;

    /* For the solver thread. */
    struct view *view;
    int32_t source_index;
    struct plan *plan;
    yk_err err;
    struct yk_diag why;
};

static void planning_free(struct planning *p)
{
    free(p->kind);
    free(p->source);
    free((void *)p->training.of);
    plan_free(p->forced);
    for (int32_t i = 0; i < p->n_forms; i++)
        free(p->forms[i]);
    free(p->forms);
    free(p->sizes);
    free(p->key);
    free(p->others);
    view_free(p->view);
    free(p->refused);
    free(p);
}

static void unlink_planning(struct planning *p)
{
    *p->link = p->next;
    if (p->next)
        p->next->link = p->link;
}

struct planning *planning_start(struct sched *s, const struct planning_request *r, planning_done fn, void *arg)
{
    struct planning *p = yk_xalloc(sizeof *p);
    p->sched = s;
    p->r = *r;
    p->kind = yk_xstrdup(r->kind);
    p->source = r->source ? yk_xstrdup(r->source) : NULL;
    if (r->codec_allowed)
        memcpy(p->codec_allowed, r->codec_allowed, sizeof p->codec_allowed);
    p->forced = r->forced ? plan_copy(r->forced) : NULL;
    if (r->forms && r->model->graph) {
        p->n_forms = r->model->graph->n_nodes;
        p->forms = yk_xalloc(((size_t)p->n_forms + 1) * sizeof *p->forms);
        for (int32_t i = 0; i < p->n_forms; i++)
            p->forms[i] = yk_xstrdup(r->forms[i]);
    }
    if (r->sizes && r->model->graph) {
        p->sizes = yk_xalloc(((size_t)r->model->graph->n_syms + 1) * sizeof *p->sizes);
        memcpy(p->sizes, r->sizes, (size_t)r->model->graph->n_syms * sizeof *p->sizes);
    }
    if (r->training && r->model->graph) {
        size_t n = (size_t)r->model->graph->n_nodes;
        int32_t *of = yk_xalloc((n + 1) * sizeof *of);
        memcpy(of, r->training->of, n * sizeof *of);
        p->training = *r->training;
        p->training.of = of;
        if (r->training->info) { /* the job may end before this does */
            p->info = *r->training->info;
            p->training.info = &p->info;
        }
    }
    if (r->n_refused) {
        p->refused = yk_xalloc((size_t)r->n_refused * sizeof *p->refused);
        memcpy(p->refused, r->refused, (size_t)r->n_refused * sizeof *p->refused);
    }
    p->fn = fn;
    p->arg = arg;
    p->started_us = net_now_us(s->net);
    p->next = s->plannings;
    p->link = &s->plannings;
    if (p->next)
        p->next->link = &p->next;
    s->plannings = p;
    return p;
}

/* ---- the solver thread ---- */

static void solve_run(void *arg)
{
    struct planning *p = arg;
    struct solve_request req = {.graph = p->r.model->graph,
        .model = p->r.model->name,
        .job = p->kind,
        .objective = p->r.objective,
        .sizes = p->sizes,
        .batch = p->r.batch,
        .microbatch = p->r.microbatch,
        .source = p->source_index,
        .upload_frac = p->r.upload_frac,
        .answers = p->r.answers,
        .samples = p->r.samples,
        .deadline_ms = p->r.deadline_ms,
        .codec_allowed = p->codec_allowed,
        .pin_first = p->r.pin_first,
        .pin_last = p->r.pin_last,
        .replicas = p->r.replicas,
        .forced = p->forced,
        .forms = (const char *const *)p->forms,
        .training = p->training.of ? &p->training : NULL,
        .budget_ms = SOLVE_BUDGET_MS};
    const struct explain_options more = {.changes = p->r.want_changes, .budget_ms = EXPLAIN_BUDGET_MS};
    p->err = cold_plan(&req, p->view, &p->plan, &p->why);
    if (p->err == YK_INFEASIBLE && p->r.want_reasons)
        infeasible_explain(&req, p->view, REASONS_BUDGET_MS, &p->why);
    if (!p->err && (p->r.want_changes || p->r.want_bars))
        explain_plan(&req, p->view, &more, p->plan);
}

static void solve_done(void *arg)
{
    struct planning *p = arg;
    struct sched *s = p->sched;
    unlink_planning(p);
    metrics_observe_us(METRIC_plan_seconds, net_now_us(s->net) - p->started_us);
    p->fn(p->arg, p->err, p->why.text, p->plan);
    planning_free(p);
    if (!s->closing)
        planning_step(s); /* the next one counts with what this one takes */
}

/* ---- gathering ---- */

static void give_up(struct planning *p, yk_err err, const char *why)
{
    unlink_planning(p);
    p->fn(p->arg, err, why, NULL);
    planning_free(p);
}

/* Sizes to profile at: what microbatches may be, up to the batch. */
static int profile_sizes(const struct planning *p, int64_t *sizes)
{
    int64_t fixed, most = YK_MAX(p->r.batch, p->r.microbatch);
    int n = 0;
    if (p->forced)
        most = YK_MAX(most, p->forced->microbatch);
    if (graph_batch_dim(p->r.model->graph, &fixed) < 0) {
        sizes[n++] = fixed;
        return n;
    }
    sizes[n++] = 1;
    if (most > 1)
        sizes[n++] = YK_MIN(most, (int64_t)8);
    if (most > 32)
        sizes[n++] = YK_MIN(most, (int64_t)64);
    return n;
}

/* Profiles are of quarter octaves (4, 5, 6, 7, 8, 10 ...), so that requests of many lengths share them; what is between
 * is estimated from the next larger one. */
static int64_t profiled_size(int64_t size)
{
    int64_t step = 1;
    while (size > 8 * step)
        step *= 2;
    return (size + step - 1) / step * step;
}

static void name_profile(struct planning *p)
{
    const struct graph *g = p->r.model->graph;
    struct yk_buf key = {0};
    int64_t fixed;
    int32_t batch = graph_batch_dim(g, &fixed);
    p->others = yk_xalloc(((size_t)g->n_syms + 1) * sizeof *p->others);
    yk_buf_printf(&key, "%s", p->r.model->graph_hash);
    for (int32_t i = 0; p->sizes && i < g->n_syms; i++)
        if (i != batch && p->sizes[i] > 1) {
            p->others[p->n_others] = (struct wire_size){g->syms[i], profiled_size(p->sizes[i])};
            yk_buf_printf(
                &key, "%c%s=%lld", p->n_others ? ',' : ':', g->syms[i], (long long)p->others[p->n_others].value);
            p->n_others++;
        }
    if (p->training.of)
        yk_buf_printf(&key, ",train");
    yk_buf_add(&key, "", 1);
    p->key = key.failed ? yk_xstrdup(p->r.model->graph_hash) : (char *)key.data;
}

static bool gathered(struct planning *p)
{
    struct fleet *f = p->sched->fleet;
    struct fleet_graph graph = {p->key, p->r.model->graph_hash, p->others, p->n_others, p->training.of != NULL};
    int64_t sizes[4];
    int n = profile_sizes(p, sizes);
    bool ready = true;
    for (struct fleet_agent *a = fleet_first(f); a; a = a->next)
        if (a->state == FLEET_ALIVE) {
            bool profiled = fleet_profile_ready(a, &graph, sizes, n);
            bool told = !p->r.fetches || fleet_blobs_ready(a, p->r.model->graph_hash, p->r.model->graph);
            ready = ready && profiled && told;
        }
    /* A job that runs has time: it is not moved for what a link was before. */
    if (!p->source && !p->r.job && !fleet_uplinks_ready(f))
        ready = false;
    return (p->r.job ? fleet_links_fresh(f) : fleet_links_ready(f)) && ready;
}

/* What of the job's own runs now will be unloaded before the plan is loaded. */
static void give_back(struct planning *p)
{
    for (struct generation *g = p->sched->generations; p->r.job && g; g = g->next)
        for (int i = 0; g->job_id == p->r.job && i < g->n_agents; i++)
            for (int32_t k = 0; k < p->view->n_agents; k++)
                if (strcmp(p->view->agents[k].id, g->agents[i].id) == 0 && p->view->agents[k].memory_bytes > 0)
                    p->view->agents[k].memory_bytes += g->agents[i].reserved_bytes;
}

/* Other jobs' pipelines go on beside this one. */
static void count_busy(struct planning *p)
{
    struct busy busy;
    busy_init(&busy, p->view);
    for (const struct generation *g = p->sched->generations; g; g = g->next)
        if (g->job && g->job->id != p->r.job &&
            (g->job->state == JOB_LOADING || (g->running && g->job->state == JOB_RUNNING)))
            busy_add(&busy, p->view, g->plan, g->pipeline);
    busy_apply(&busy, p->view);
}

static void try_solve(struct planning *p)
{
    struct sched *s = p->sched;
    struct yk_diag why = {0};
    yk_err err = model_load(p->r.model, s->blobs, &why);
    if (err) {
        give_up(p, err, why.text);
        return;
    }
    if (fleet_alive(s->fleet) == 0) {
        give_up(p, YK_INFEASIBLE, PLANNING_NOBODY);
        return;
    }
    if (!p->key)
        name_profile(p);
    if (!gathered(p) && net_now_us(s->net) - p->started_us < GATHER_US)
        return;
    for (const struct planning *other = s->plannings; other; other = other->next)
        if (other->solving) /* there is one solver */
            return;
    p->view = fleet_view(s->fleet, p->key);
    if (p->r.fetches)
        fleet_blobs_view(s->fleet, p->view, p->r.model->graph_hash);
    give_back(p);
    jobs_refused_apply(p->refused, p->r.n_refused, p->view);
    count_busy(p);
    if (p->training.of) /* the rest is for checkpoint sets */
        for (int32_t i = 0; i < p->view->n_links; i++)
            p->view->links[i].bytes_per_s *= 1 - s->config.policy.set_share;
    p->source_index = -1;
    for (int32_t i = 0; p->source && i < p->view->n_agents; i++)
        if (strcmp(p->view->agents[i].name, p->source) == 0 || strcmp(p->view->agents[i].id, p->source) == 0)
            p->source_index = i;
    if (p->source && p->source_index < 0) {
        char *text = yk_xasprintf("source '%s' is not an agent that is alive (`yoke agents` lists them)", p->source);
        give_up(p, YK_INFEASIBLE, text);
        free(text);
        return;
    }
    p->solving = true;
    worker_post(s->solver, solve_run, solve_done, p);
}

bool planning_reviews(const struct sched *s)
{
    for (const struct planning *p = s->plannings; p; p = p->next)
        if (p->r.job && !p->solving)
            return true;
    return false;
}

void planning_step(struct sched *s)
{
    for (struct planning *p = s->plannings, *next; p; p = next) {
        next = p->next;
        if (!p->solving)
            try_solve(p);
    }
}

void planning_fini(struct sched *s)
{
    while (s->plannings)
        give_up(s->plannings, YK_CANCELED, "yoked stops");
}
