/* The passes of the exact solver: over few cuts first, then near what they found, then over all, from the largest
 * bottleneck down; and the same for chains that end on the source again. */
#include "scheduler/solve_search.h"

#include <math.h>
#include <string.h>

#define COARSE 12   /* cuts of the first pass */
#define NEAR 4      /* chains around whose cuts finer ones are looked at */
#define STEP 0.01   /* how far bottlenecks are apart whose bounds are made, if they tell enough */
#define CLOSE 0.005 /* if they tell less */
#define LEAF 0.01   /* then bottlenecks so near are searched together */
#define ROUGH 0.02  /* all of that in a pass that only looks for good chains */
#define FAR 0.06    /* and how far bottlenecks are apart of which it takes the one that promises most */
#define FEW_AGENTS 5
#define FEW_NODES 64
#define PATIENCE 250000 /* steps; with more agents and nodes, chains around are then looked for less closely */
#define NARROW 0.02     /* chains around are looked for in all cuts at once, if the bounds leave so little */

/* All nodes at least, for bottlenecks up to high; wanted_ms is enough. */
static double bound_of(struct search *s, double high, double wanted_ms)
{
    solve_search_bound(s, high, wanted_ms);
    return s->labels[0].sum + solve_search_rest(s, solve_search_row(s, 0), 0, 0);
}

/* Searches where the bounds promise most, and for larger bottlenecks until there is a chain. */
static void search_best(struct search *s, double low, double high)
{
    double rate = (double)(s->m->count - 1), best = INFINITY, at = high, limit = s->limit;
    int32_t found = s->n_best;
    for (double top = high; top > low;) {
        double sum = bound_of(s, top, 0);
        if (sum + rate * top < best) {
            best = sum + rate * top;
            at = top;
        }
        if (sum + rate * low >= s->limit)
            break;
        top = YK_MIN(top, (s->limit - sum) / rate) * (1 - FAR);
    }
    if (best == INFINITY)
        return;
    for (double from = at * (1 - 2 * ROUGH), to = at * (1 + ROUGH); s->n_best == found && s->limit >= limit;) {
        to = YK_MIN(to, high);
        double sum = bound_of(s, to, 0);
        if (sum + rate * from < s->limit) {
            solve_search_bound_labels(s);
            solve_search_interval(s, YK_MAX(from, low));
        }
        if (to >= high)
            return;
        from = to;
        to *= 1 + FAR;
    }
}

/* From the largest bottleneck that may pay down to low. The bound of one says how far the next can be away: chains with
 * bottlenecks between cost too much. */
static void search_down(struct search *s, double low, double high)
{
    double rate = (double)(s->m->count - 1), least = 0, limit = s->limit;
    int32_t found = s->n_best;
    if (isinf(high) || s->thrift) { /* nothing is known to be possible; or cost is not what counts */
        least = bound_of(s, high, 0) + rate * low;
        solve_search_bound_labels(s);
        solve_search_interval(s, low);
        if (s->effort >= SOLVE_EFFORT)
            s->left = YK_MIN(s->left, least);
        return;
    }
    if (s->rough && rate > 0)
        search_best(s, low, high);
    if (s->rough && (s->n_best > found || s->limit < limit))
        return;
    for (bool first = true; (first || high > low) && s->effort < SOLVE_EFFORT; first = false) {
        double step = s->rough ? ROUGH : STEP, close = s->rough ? ROUGH : CLOSE, leaf = s->rough ? ROUGH : LEAF;
        double sum = bound_of(s, high, s->limit - rate * YK_MAX(low, high * (1 - step)));
        double next = rate > 0 ? (s->limit - sum) / rate * (1 + 1e-9) : 0;
        least = sum + rate * low;
        if (least >= s->limit)
            return;
        if (rate > 0 && next < high * (1 - close)) {
            high = next;
            continue;
        }
        next = YK_MAX(low, high * (1 - leaf));
        solve_search_bound_labels(s);
        solve_search_interval(s, rate > 0 ? next : 0);
        if (rate <= 0)
            break;
        high = s->effort < SOLVE_EFFORT ? next : high;
    }
    if (s->effort >= SOLVE_EFFORT)
        s->left = YK_MIN(s->left, least);
}

/* Of so many cuts each the one that the fewest bytes cross; reach > 0: only so far around those of the best chains. */
static void choose_stops(struct search *s, int32_t stride, int32_t reach)
{
    int32_t chains = YK_MIN(s->n_best, NEAR);
    memset(s->in_stage, chains == 0 || reach == 0, (size_t)s->n + 1);
    for (int32_t c = 0; c < chains && reach > 0; c++)
        for (int32_t k = 0; k < s->best[c].n_stages; k++) {
            int32_t end = s->best[c].end[k], from = YK_MAX(end - reach, 0);
            memset(s->in_stage + from, 1, (size_t)(YK_MIN(end + reach, s->n) - from) + 1);
        }
    s->n_stops = 0;
    s->stop[s->n_stops++] = 0;
    for (int32_t from = 1; from < s->n; from += stride) {
        int32_t least = -1;
        for (int32_t i = from; i < s->n && i < from + stride; i++)
            if (s->in_stage[i] && !s->cuts.at[i].forbidden &&
                (least < 0 || stride <= 4 || s->cuts.at[i].bytes < s->cuts.at[least].bytes))
                least = i;
        if (least >= 0)
            s->stop[s->n_stops++] = least;
    }
    s->stop[s->n_stops] = s->n;
    for (int32_t i = 0, t = 0; i <= s->n; i++) {
        t += s->stop[t] < i;
        s->stop_of[i] = t;
    }
}

static void run_pass(struct search *s, int32_t stride, int32_t reach)
{
    choose_stops(s, stride, reach);
    solve_search_stops(s);
    s->n_labels = 0;
    s->left = INFINITY;
    solve_search_root(s);
    solve_search_bound(s, INFINITY, 0);
    const struct bound_row *row = solve_search_row(s, 0);
    double sum = s->labels[0].sum + solve_search_rest(s, row, 0, 0), high = INFINITY;
    double top = YK_MAX(s->work[0] * row->top_factor, s->labels[0].top);
    double least = solve_search_cost(s, sum, top);
    if (least >= s->limit || isinf(sum))
        return;
    if (s->m->count > 1)
        high = (s->limit - sum) / (double)(s->m->count - 1) * (1 + 1e-9);
    search_down(s, s->m->count > 1 ? top : 0, high);
    if (s->effort >= SOLVE_EFFORT)
        s->left = YK_MAX(s->left, least);
}

/* Few cuts first, then more near the best: what they find bounds the search among all of them. False: not all cuts
 * were looked at. */
static bool run_passes(struct search *s, double limit_ms)
{
    s->rough = true;
    s->limit = limit_ms * (1 + SOLVE_SLACK);
    for (int32_t stride = s->n / COARSE, reach = 0; stride > 1; reach = stride, stride = stride > 4 ? stride / 4 : 1) {
        run_pass(s, stride, reach);
        if (s->n > SOLVE_DP_FINE || s->effort >= SOLVE_EFFORT)
            return false;
        if (stride <= 4) {
            run_pass(s, 1, stride);
            break;
        }
    }
    s->rough = false;
    if (s->n > 2 * COARSE) /* else chains beside the best are found by the way */
        s->limit = s->n_best ? YK_MIN(limit_ms, s->best[0].cost_ms) : limit_ms;
    if (s->effort < SOLVE_EFFORT)
        run_pass(s, 1, 0);
    return true;
}

/* No chain costs less, for the cuts of the last pass. */
static double least_of_all(struct search *s)
{
    s->n_labels = 0;
    solve_search_root(s);
    solve_search_bound(s, INFINITY, 0);
    const struct bound_row *row = solve_search_row(s, 0);
    return solve_search_cost(
        s, s->labels[0].sum + solve_search_rest(s, row, 0, 0), YK_MAX(s->work[0] * row->top_factor, s->labels[0].top));
}

/* Chains that begin and end on the source, where the bounds leave room for any. */
static bool run_around(struct search *s)
{
    int32_t stride = s->n / COARSE;
    solve_search_around(s);
    s->left = INFINITY;
    if (s->effort >= SOLVE_EFFORT && !cost_out_of_time(s->m))
        s->effort = SOLVE_EFFORT / 2;
    s->rough = true;
    choose_stops(s, s->n > SOLVE_DP_FINE ? stride : 1, 0);
    solve_search_stops(s);
    double least_ms = least_of_all(s);
    if (least_ms >= s->limit)
        return s->n <= SOLVE_DP_FINE;
    if (least_ms * (1 + NARROW) < s->limit)
        for (int32_t reach = 0; stride > 1; reach = stride, stride = stride > 4 ? stride / 4 : 1) {
            run_pass(s, stride, reach);
            if (s->n > SOLVE_DP_FINE || s->effort >= SOLVE_EFFORT)
                return false;
        }
    s->rough = false;
    s->patience = s->n_agents > FEW_AGENTS && s->n > FEW_NODES ? s->effort + PATIENCE : INT64_MAX;
    run_pass(s, 1, 0);
    if (s->impatient)
        s->left = YK_MIN(s->left, YK_MAX(s->limit, least_ms));
    return true;
}

yk_err solve_dp_chains(const struct cost_model *m, int32_t source, double limit_ms, double *bound_ms,
    struct solve_chain *best, int32_t most, int32_t *n, struct solve_trail *trail, struct yk_diag *why)
{
    struct search s = {.m = m, .source = source, .n = m->graph->n_nodes, .limit = limit_ms, .best = best, .most = most};
    s.trail = trail;
    s.patience = INT64_MAX;
    s.n_agents = m->view->n_agents;
    *n = 0;
    if (s.n_agents > SOLVE_DP_AGENTS)
        return yk_fail(why, YK_LIMIT, "%d agents; the exact solver takes %d", s.n_agents, SOLVE_DP_AGENTS);
    if (s.n == 0)
        return yk_fail(why, YK_INVAL, "the graph has no nodes to place");
    yk_err err = solve_search_index(&s, why);
    if (!err) {
        s.left = 0;
        bool all_cuts = run_passes(&s, limit_ms);
        double left = s.left;
        if (s.n_agents > 1) {
            s.limit = YK_MIN(limit_ms, s.n_best ? s.best[0].cost_ms : INFINITY);
            all_cuts = run_around(&s) && all_cuts;
            left = YK_MIN(left, s.left);
        }
        s.left = left;
        if (!all_cuts || s.left == 0) { /* of the cuts that were left out only the work is known */
            double all = 0;
            for (int32_t k = 0; k < s.n_by_pace; k++)
                all += s.pace[s.by_pace[k]];
            s.left = all > 0 ? solve_search_cost(&s, s.work[0] / s.pace[s.by_pace[0]], s.work[0] / all) * (1 - 1e-9)
                             : INFINITY;
        }
        *n = s.n_best;
        if (bound_ms)
            *bound_ms = YK_MIN(YK_MIN(s.left, limit_ms), s.n_best ? s.best[0].cost_ms : INFINITY);
    }
    solve_search_fini(&s);
    return err;
}

/* ---- least of the cloud ---- */

static void index_paid(struct search *s)
{
    size_t row = (size_t)s->n + 1;
    s->paid = yk_xalloc(SOLVE_PRICES * row * sizeof *s->paid);
    for (int k = 0; k < SOLVE_PRICES; k++)
        for (int32_t i = s->n - 1; i >= 0; i--) {
            double least = INFINITY;
            for (int32_t j = 0; j < s->n_by_pace; j++) {
                int32_t a = s->by_pace[j];
                double ms = s->m->node_ms[(size_t)a * (size_t)s->n + (size_t)i];
                double paid = ms * (solve_prices[k] + (solve_search_is_cloud(s, a) ? 1 : 0));
                if (paid < least) /* not where it cannot run there */
                    least = paid;
            }
            s->paid[(size_t)k * row + (size_t)i] = s->paid[(size_t)k * row + (size_t)i + 1] + least;
        }
}

yk_err solve_dp_thrift(const struct cost_model *m, int32_t source, double deadline_ms, double *cloud_ms,
    struct solve_chain *best, int32_t most, int32_t *n, struct yk_diag *why)
{
    struct search s = {.m = m, .source = source, .n = m->graph->n_nodes, .best = best, .most = most, .thrift = true};
    s.patience = INT64_MAX;
    s.n_agents = m->view->n_agents;
    *n = 0;
    if (s.n_agents > SOLVE_DP_AGENTS)
        return yk_fail(why, YK_LIMIT, "%d agents; the exact solver takes %d", s.n_agents, SOLVE_DP_AGENTS);
    if (s.n == 0)
        return yk_fail(why, YK_INVAL, "the graph has no nodes to place");
    yk_err err = solve_search_index(&s, why);
    if (!err) {
        bool all_cuts = s.n <= SOLVE_DP_FINE;
        index_paid(&s);
        s.limit = deadline_ms * (1 + 1e-12);
        for (int around = 0; around < 2 && (!around || s.n_agents > 1); around++) {
            if (around)
                solve_search_around(&s);
            for (int32_t stride = s.n / COARSE; stride > 1 && s.effort < SOLVE_EFFORT / 2; stride /= 4)
                run_pass(&s, stride, 0);
            if (all_cuts && s.effort < SOLVE_EFFORT)
                run_pass(&s, 1, 0);
        }
        *n = s.n_best;
        *cloud_ms = !all_cuts || s.effort >= SOLVE_EFFORT ? 0 : s.n_best ? s.best[0].cloud_ms : INFINITY;
    }
    solve_search_fini(&s);
    return err;
}
