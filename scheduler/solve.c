/* The frame around the solvers: forms, microbatch sizes, sources; scoring by the event model. */
#include "scheduler/solve.h"

#include "common/op.h"
#include "scheduler/solve_large.h"
#include "scheduler/solve_pool.h"
#include "scheduler/solve_replicas.h"
#include "scheduler/solve_sets.h"
#include "scheduler/solve_train.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define DEEPEST 64

static const char *const objective_names[] = {"latency", "throughput", "cloud-cost"};

const char *solve_objective_name(enum solve_objective o)
{
    return objective_names[o];
}

bool solve_objective_find(const char *name, enum solve_objective *out)
{
    for (size_t i = 0; i < YK_COUNT(objective_names); i++)
        if (strcmp(name, objective_names[i]) == 0) {
            *out = (enum solve_objective)i;
            return true;
        }
    return false;
}

/* ---- candidates ---- */

/* Statistics of few samples train another network than those of the batch: only a user asks for fewer. */
#define BATCH_NORM_LEAST 16

static bool has_batch_norm(const struct graph *g)
{
    for (int32_t i = 0; i < g->n_nodes; i++)
        if (strcmp(g->nodes[i].op->name, "BatchNormTrain") == 0)
            return true;
    return false;
}

int32_t solve_sizes(const struct solve_request *req, int64_t *sizes)
{
    int64_t fixed, batch = YK_MAX(req->batch, (int64_t)1);
    int32_t n = 0;
    if (graph_batch_dim(req->graph, &fixed) < 0) {
        sizes[n++] = fixed;
        return n;
    }
    if (req->microbatch > 0) {
        sizes[n++] = req->microbatch;
        return n;
    }
    /* A single request stays whole: its split would change the bits of forms whose tiles follow the batch. */
    if (strcmp(req->job, "infer") == 0) {
        sizes[n++] = batch;
        return n;
    }
    for (int64_t m = req->training && has_batch_norm(req->graph) ? BATCH_NORM_LEAST : 1;
         m < batch && n < SOLVE_SIZES - 1; m *= 2)
        sizes[n++] = m;
    sizes[n++] = batch;
    return n;
}

/* With as many microbatches inside as one takes bottlenecks to come through, none waits for another to leave. */
static int32_t most_depth(const struct candidate *c)
{
    double most = SOLVE_DEPTH;
    for (int32_t i = 0; i < c->n_lines; i++)
        if (c->lines[i].bottleneck_ms > 0)
            most = YK_MAX(most, ceil(c->lines[i].first_ms / c->lines[i].bottleneck_ms) + 1);
    return (int32_t)YK_MIN(most, (double)DEEPEST);
}

/* Once for each candidate. */
static void score(struct pool *pool, const struct size_pool *p, struct candidate *c)
{
    c->left_out = candidate_score(&p->model, c, most_depth(c), 0, NULL) != YK_OK; /* it does not fit */
    if (!c->left_out)
        pool->least_step = YK_MIN(pool->least_step, c->step_ms);
}

/* Those from `first` on. A search that is stopped has a beginning of what it finds with more time: for its plan never
 * to be better, nothing of that is left out but what is worse for sure: up to `last`. */
static void score_new(struct pool *pool, struct size_pool *p, int32_t first, int32_t last)
{
    const struct solve_request *req = p->model.req;
    double count = (double)YK_MAX(p->model.count, (int64_t)1);
    for (int32_t k = first; k < p->n; k++) { /* the best first: behind `last` they are in order, before it found last */
        int32_t behind = p->n - last, i = k - first < behind ? last + k - first : last - 1 - (k - first - behind);
        struct candidate *c = &p->at[i];
        double least = c->cost_ms * (1 - 1 / count); /* of the last microbatch's time at most one is counted too much */
        if (i < last)
            least = c->n_lines == 1 ? (count - 1) * c->lines[0].bottleneck_ms * (1 - 1e-9) : 0;
        bool optimum = c->cost_ms <= pool->least_ms * (1 + 1e-9); /* of the closed form, so far */
        c->left_out = !req->closed_form && !optimum && !solve_pool_single(c) && least > pool->least_step;
        if (!c->left_out)
            score(pool, p, c);
    }
}

static bool may_be_source(const struct solve_request *req, const struct view *v, int32_t source)
{
    return req->source >= 0 ? source == req->source : v->agents[source].usable;
}

static void add_singles(struct pool *pool, struct size_pool *p, struct yk_buf *reasons)
{
    const struct view *v = p->model.view;
    for (int32_t source = 0; source < v->n_agents; source++)
        if (may_be_source(p->model.req, v, source))
            solve_pool_singles(p, source, reasons);
    for (int32_t i = 0; i < p->n; i++)
        pool->least_ms = YK_MIN(pool->least_ms, p->at[i].cost_ms);
    score_new(pool, p, 0, p->n);
}

/* What is known to be good. Its agents may have no link where others of their kind have. */
static void add_hints(struct pool *pool, struct size_pool *p, const struct solve_hints *hints)
{
    int32_t first = p->n;
    for (int32_t i = 0; i < hints->n; i++)
        if (may_be_source(p->model.req, p->model.view, hints->chains[i].source) &&
            hints->microbatch[i] == p->model.microbatch && hints->chains[i].n_stages > 1 &&
            !solve_pool_chain(p, &hints->chains[i], NULL))
            pool->least_ms = YK_MIN(pool->least_ms, p->at[p->n - 1].cost_ms);
    score_new(pool, p, first, p->n);
}

static yk_err search_chains(struct pool *pool, struct size_pool *p, int32_t source, struct yk_diag *why)
{
    struct solve_chain chains[SOLVE_POOL_CHAINS];
    int32_t n = 0, before = pool->trail.n, first = p->n;
    double bound;
    pool->trail.least_ms = pool->least_ms;
    yk_err err =
        solve_dp_chains(&p->model, source, pool->least_ms, &bound, chains, SOLVE_POOL_CHAINS, &n, &pool->trail, why);
    if (err)
        return err;
    pool->bound_ms = YK_MIN(pool->bound_ms, bound);
    pool->stopped = pool->stopped || cost_out_of_time(&p->model);
    for (int32_t i = before; i < pool->trail.n && !err; i++)
        if (pool->trail.at[i].n_stages > 1)
            err = solve_pool_chain(p, &pool->trail.at[i], why);
    if (!err && p->model.req->objective == SOLVE_LATENCY && p->model.count == 1 && solve_sets_pays(p->model.graph)) {
        for (int32_t i = 0; i < n; i++)
            pool->least_ms = YK_MIN(pool->least_ms, chains[i].cost_ms);
        err = solve_pool_sets(pool, p, source, why);
    }
    int32_t last = p->n;
    for (int32_t i = 0; i < n && !err; i++) {
        bool known = false;
        for (int32_t k = before; k < pool->trail.n; k++)
            known = known || solve_dp_same(&chains[i], &pool->trail.at[k]);
        if (chains[i].n_stages > 1 && !known && (!pool->stopped || p->model.req->closed_form))
            err = solve_pool_chain(p, &chains[i], why);
        pool->least_ms = YK_MIN(pool->least_ms, chains[i].cost_ms);
    }
    if (!err && pool->limit_ms < INFINITY)
        err = solve_pool_thrift(pool, p, source, why);
    else if (!err)
        score_new(pool, p, first, last);
    return err;
}

static yk_err search_size(struct pool *pool, struct size_pool *p, const struct solve_hints *hints, struct yk_diag *why)
{
    const struct solve_request *req = p->model.req;
    const struct view *v = p->model.view;
    int64_t sizes[SOLVE_SIZES];
    int32_t n_searches = solve_sizes(req, sizes) * (req->source >= 0 ? 1 : v->n_agents);
    bool search = !hints || (hints->search && v->n_agents <= SOLVE_DP_AGENTS);
    yk_err err = YK_OK;
    for (int32_t source = 0; source < v->n_agents && !err; source++)
        if (may_be_source(req, v, source))
            err = req->training ? solve_pool_splits(pool, p, source, n_searches, why)
                  : search      ? search_chains(pool, p, source, why)
                                : YK_OK;
    return err;
}

static int by_cost(const void *a, const void *b)
{
    const struct candidate *x = *(const struct candidate *const *)a, *y = *(const struct candidate *const *)b;
    return x->cost_ms < y->cost_ms ? -1 : x->cost_ms > y->cost_ms;
}

static int by_step(const void *a, const void *b)
{
    const struct candidate *x = *(const struct candidate *const *)a, *y = *(const struct candidate *const *)b;
    if (fabs(x->step_ms - y->step_ms) > 1e-9 * x->step_ms)
        return x->step_ms < y->step_ms ? -1 : 1;
    int32_t n = x->lines[0].n_stages - y->lines[0].n_stages; /* of equals the simpler */
    return n ? n : x->cost_ms < y->cost_ms ? -1 : x->cost_ms > y->cost_ms;
}

/* Objective cloud-cost: what is in time, and takes the least of the cloud. */
static int by_cloud(const struct candidate *x, const struct candidate *y)
{
    if (x->late != y->late)
        return x->late ? 1 : -1;
    if (x->late || fabs(x->cloud_ms - y->cloud_ms) <= 1e-9 * x->cloud_ms)
        return 0;
    return x->cloud_ms < y->cloud_ms ? -1 : 1;
}

static int by_cloud_and_cost(const void *a, const void *b)
{
    int order = by_cloud(*(const struct candidate *const *)a, *(const struct candidate *const *)b);
    return order ? order : by_cost(a, b);
}

static int by_cloud_and_step(const void *a, const void *b)
{
    int order = by_cloud(*(const struct candidate *const *)a, *(const struct candidate *const *)b);
    return order ? order : by_step(a, b);
}

/* ---- the search ---- */

#define SCORED 24
#define SHOWN 4

/* Says how far the plan may be from the best, and what was not looked at. */
static void explain_limits(const struct solve_request *req, bool stopped, struct plan *p)
{
    char *text = p->explanation;
    double above = p->bound_ms > 0 ? 100 * (p->cost_ms / p->bound_ms - 1) : 0;
    p->explanation =
        yk_xasprintf("%s\nNo plan costs less than %.4g ms by the closed form: this one is at most %.*f %% above it.",
            text, p->bound_ms, above >= 10 || above < 0.005 ? 0 : 2, above);
    free(text);
    text = p->explanation;
    if (req->graph->n_nodes > SOLVE_DP_FINE) {
        p->explanation =
            yk_xasprintf("%s\nThe graph has %d nodes, over %d: besides single devices only coarse cuts were looked at.",
                text, req->graph->n_nodes, SOLVE_DP_FINE);
        free(text);
        text = p->explanation;
    }
    if (stopped) {
        p->explanation = yk_xasprintf(
            "%s\nThe search was stopped after %g ms: this is the best that it had found.", text, req->budget_ms);
        free(text);
    }
}

/* Several pipelines share the work in more ways than were looked at. */
static void explain_cloud(const struct solve_request *req, const struct pool *pool, struct plan *p)
{
    double bound = p->n_pipelines > 1 || req->replicas ? 0 : YK_MIN(pool->cloud_ms, p->cloud_ms);
    char *text = p->explanation;
    p->gap = p->cloud_ms > 0 ? (p->cloud_ms - bound) / p->cloud_ms : 0;
    p->explanation = yk_xasprintf(
        "%s\nObjective cloud-cost: %.4g ms of a step are compute on class cloud; within the deadline, %.4g ms a "
        "step, no chain takes less than %.4g ms.",
        text, p->cloud_ms, pool->limit_ms, bound);
    free(text);
}

/* The deadline is of the whole job: of its samples where their number is known, else of one batch. */
static double batches_of(const struct solve_request *req)
{
    return req->samples > req->batch ? (double)req->samples / (double)YK_MAX(req->batch, (int64_t)1) : 1;
}

static yk_err check_deadline(
    const struct solve_request *req, double step_ms, const char *bottleneck, struct yk_diag *why)
{
    double batches = batches_of(req), ms = step_ms * batches;
    const char *plan = req->forced ? "the given plan" : "the best plan";
    const char *mend = req->forced ? ": allow as much, or leave out the plan" : "";
    if (req->deadline_ms <= 0 || ms <= req->deadline_ms)
        return YK_OK;
    if (batches > 1)
        return yk_fail(why, YK_INFEASIBLE,
            "the deadline of the job is %g ms; %s needs %.4g ms for %lld samples, bottleneck %s%s", req->deadline_ms,
            plan, ms, (long long)req->samples, bottleneck, mend);
    return yk_fail(why, YK_INFEASIBLE, "the deadline is %g ms; %s needs %.4g ms, bottleneck %s%s", req->deadline_ms,
        plan, ms, bottleneck, mend);
}

/* Several pipelines, of every size: of single devices before anything is searched for, so that it is there whenever the
 * search is stopped; then, if the best are not known by that, of everything. */
static yk_err search_replicas(struct pool *pool, bool thrift, bool *all, struct yk_diag *why)
{
    yk_err err = YK_OK;
    for (int32_t i = 0; i < pool->n && !err; i++) {
        struct size_pool *p = &pool->sizes[i];
        const struct view *v = p->model.view;
        int32_t first = p->n;
        for (int32_t source = 0; source < v->n_agents && !err; source++) {
            bool best = false;
            if (!may_be_source(p->model.req, v, source))
                continue;
            err = solve_pool_replicas(pool, p, source, false, &best, why);
            if (!err && thrift)
                err = solve_pool_replicas(pool, p, source, true, &best, why);
            *all = *all && best && !thrift;
        }
        if (!err && !thrift)
            score_new(pool, p, first, p->n);
    }
    return err;
}

/* Of the sizes that there was no time for, from first on: only their work is known. */
static void bound_rest(struct pool *pool, int32_t first)
{
    for (int32_t i = first; i < pool->n; i++)
        pool->bound_ms = YK_MIN(pool->bound_ms, solve_train_bound(&pool->sizes[i].model));
}

static int32_t count_all(const struct pool *pool)
{
    int32_t n = 0;
    for (int32_t i = 0; i < pool->n; i++)
        n += pool->sizes[i].n;
    return n;
}

yk_err solve_search(const struct solve_request *req, const struct view *v, const struct solve_hints *hints,
    struct plan **out, struct yk_diag *why)
{
    struct pool *pool = yk_xalloc(sizeof *pool);
    struct yk_buf reasons = {0};
    int64_t sizes[SOLVE_SIZES];
    int32_t n_sizes = solve_sizes(req, sizes), n = 0, n_scored = 0;
    int32_t *form = yk_xalloc(((size_t)req->graph->n_nodes + 1) * sizeof *form);
    struct candidate **all = NULL, *single = NULL;
    yk_err err = YK_OK;
    bool thrift = req->objective == SOLVE_CLOUD_COST && req->deadline_ms > 0;
    bool several = req->replicas && !req->training && !req->pin_first && !req->pin_last, all_several = true;
    pool->least_ms = pool->bound_ms = pool->cloud_ms = pool->least_step = INFINITY;
    pool->limit_ms = thrift ? req->deadline_ms / batches_of(req) : INFINITY;
    pool->stop_ms = req->budget_ms > 0 ? cost_now_ms() + req->budget_ms : 0;
    cost_choose_forms(req, v, form);
    for (int32_t i = 0; i < n_sizes && !err; i++) {
        struct size_pool *p = &pool->sizes[pool->n++];
        if ((err = cost_init(&p->model, req, v, form, sizes[i], why)))
            break;
        p->ready = true;
        p->model.stop_ms = pool->stop_ms;
        /* Nothing needs less memory than the smallest size: its reasons are the ones to tell. */
        size_t told = reasons.len;
        add_singles(pool, p, &reasons);
        reasons.len = i ? told : reasons.len;
    }
    if (several && !err && !thrift)
        err = search_replicas(pool, false, &all_several, why);
    for (int32_t i = 0; i < n_sizes && hints && !err; i++)
        add_hints(pool, &pool->sizes[i], hints);
    for (int32_t i = 0; i < n_sizes && !err; i++) {
        err = search_size(pool, &pool->sizes[i], hints, why);
        pool->stopped = pool->stopped || (!err && cost_out_of_time(&pool->sizes[i].model));
        if (!err && count_all(pool) > 0 && pool->stopped) {
            bound_rest(pool, i + 1);
            break;
        }
    }
    if (several && !err && (thrift || !(all_several || pool->stopped)))
        err = search_replicas(pool, thrift, &all_several, why);
    if (err)
        goto out;
    n = count_all(pool);
    if (n == 0) {
        yk_buf_add(&reasons, "", 1);
        err = yk_fail(why, YK_INFEASIBLE, "no plan for %s: %s", req->model ? req->model : "the model",
            reasons.len > 2 && !reasons.failed ? (char *)reasons.data + 2 : "the fleet has no agents");
        goto out;
    }
    all = yk_xalloc((size_t)n * sizeof *all);
    for (int32_t i = 0, k = 0; i < pool->n; i++)
        for (int32_t c = 0; c < pool->sizes[i].n; c++)
            all[k++] = &pool->sizes[i].at[c];
    double least_cost = INFINITY;
    for (int32_t i = 0; i < n; i++) {
        least_cost = YK_MIN(least_cost, all[i]->cost_ms);
        all[i]->late = thrift && all[i]->cost_ms > pool->limit_ms;
    }
    qsort(all, (size_t)n, sizeof *all, thrift ? by_cloud_and_cost : by_cost);
    /* Of what was not scored when it was found the best few of the closed form. */
    for (int32_t i = 0, more = 0; i < n; i++) {
        struct candidate *c = all[i];
        for (int32_t k = 0; k < pool->n && c->depth == 0 && !c->left_out && more < SCORED; k++)
            if (c >= pool->sizes[k].at && c < pool->sizes[k].at + pool->sizes[k].n) {
                score(pool, &pool->sizes[k], c);
                more++;
                break;
            }
        if (c->depth == 0 || c->left_out)
            continue;
        all[i] = all[n_scored];
        all[n_scored++] = c;
        if (solve_pool_single(c) && (!single || by_step(&c, &single) < 0))
            single = c;
    }
    if (n_scored == 0) {
        err = yk_fail(
            why, YK_INFEASIBLE, "no plan for %s fits the fleet's memory", req->model ? req->model : "the model");
        goto out;
    }
    for (int32_t i = 0; i < n_scored && !req->closed_form; i++)
        all[i]->late = thrift && all[i]->step_ms > pool->limit_ms;
    if (thrift)
        qsort(all, (size_t)n_scored, sizeof *all, req->closed_form ? by_cloud_and_cost : by_cloud_and_step);
    else
        qsort(all, (size_t)n_scored, sizeof *all, req->closed_form ? by_cost : by_step);
    struct candidate *chosen = all[0];
    if ((err = check_deadline(req, chosen->step_ms, chosen->bottleneck, why)))
        goto out;
    const struct cost_model *m = NULL;
    for (int32_t k = 0; k < pool->n; k++)
        if (chosen >= pool->sizes[k].at && chosen < pool->sizes[k].at + pool->sizes[k].n)
            m = &pool->sizes[k].model;
    *out = solve_pool_plan(req, m, chosen, single, (const struct candidate *const *)all + 1,
        YK_MIN(n_scored - 1, SHOWN), hints ? hints->solver : "dp");
    /* Of the closed form; the event model may prefer one that costs a little more. */
    (*out)->bound_ms =
        YK_MIN(hints ? YK_MIN(hints->bound_ms, pool->bound_ms) : pool->bound_ms, YK_MIN(least_cost, chosen->cost_ms));
    (*out)->gap = chosen->cost_ms > 0 ? (chosen->cost_ms - (*out)->bound_ms) / chosen->cost_ms : 0;
    if (thrift)
        explain_cloud(req, pool, *out);
    explain_limits(req, pool->stopped, *out);
out:
    free(all);
    free(form);
    yk_buf_free(&reasons);
    solve_pool_fini(pool);
    free(pool);
    return err;
}

static yk_err solve_exact(const struct solve_request *req, const struct view *v, struct plan **out, struct yk_diag *why)
{
    return solve_search(req, v, NULL, out, why);
}

static const struct solver solver_dp = {"dp", solve_exact}, solver_kinds = {"kinds", solve_large};

const struct solver *const solvers[] = {&solver_dp, &solver_kinds, NULL};

const struct solver *solver_find(const char *name)
{
    for (int i = 0; solvers[i]; i++)
        if (strcmp(solvers[i]->name, name) == 0)
            return solvers[i];
    return NULL;
}

yk_err solve_plan(const struct solve_request *req, const struct view *view, struct plan **out, struct yk_diag *why)
{
    double start = cost_now_ms();
    if (view->n_agents == 0)
        return yk_fail(why, YK_INFEASIBLE, "the fleet has no agents");
    if (req->source >= view->n_agents)
        return yk_fail(why, YK_INVAL, "the source is not an agent of the fleet");
    struct solve_request completed = *req;
    struct plan *forced = NULL;
    if (req->forced && req->training) {
        completed.forced = forced = plan_copy(req->forced);
        yk_err err = solve_train_complete(req->training, req->graph, forced, why);
        if (err) {
            plan_free(forced);
            return err;
        }
        req = &completed;
    }
    yk_err err = req->forced                        ? solve_pool_given(req, view, out, why)
                 : view->n_agents > SOLVE_DP_AGENTS ? solve_large(req, view, out, why)
                                                    : solvers[0]->solve(req, view, out, why);
    if (!err && req->forced && (err = check_deadline(req, (*out)->step_ms, (*out)->bottleneck, why))) {
        plan_free(*out);
        *out = NULL;
    }
    plan_free(forced);
    if (!err)
        (*out)->solver_ms = cost_now_ms() - start;
    if (!err && req->training)
        (*out)->forward_nodes = req->training->first_loss;
    return err;
}