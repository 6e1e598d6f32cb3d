#include "scheduler/solve_kinds.h"

#include "scheduler/solve_search.h"

#include <math.h>
#include <string.h>

#define STEP 0.02 /* how far bottlenecks are apart that are looked at */
#define ROUNDS 6  /* of rents, until a path takes no kind too often */
#define MORE 1.03 /* than the least sum: what rents aim at */

static bool enough_agents(const struct search *s, const struct solve_chain *c)
{
    int32_t uses[SOLVE_DP_AGENTS] = {0};
    for (int32_t i = 0; i < c->n_stages; i++)
        if (++uses[c->agent[i]] > s->weight[c->agent[i]] && (c->agent[i] != s->source || i + 1 < c->n_stages))
            return false;
    return uses[s->source] <= 1 || (uses[s->source] == 2 && c->agent[0] == s->source);
}

static bool ends_home(const struct search *s, const struct solve_chain *c)
{
    return c->n_stages > 2 && c->agent[0] == s->source && c->agent[c->n_stages - 1] == s->source;
}

static bool fits(struct search *s, const struct solve_chain *c)
{
    if (ends_home(s, c)) {
        int32_t q = c->end[0], r = c->end[c->n_stages - 2];
        if (!solve_search_fits_both(s, solve_search_held(s, 0, q, r), 0, q, r))
            return false;
    }
    for (int32_t i = 0, p = 0; i < c->n_stages; p = c->end[i++])
        if (!solve_search_fits(s, c->agent[i], p, c->end[i]))
            return false;
    return true;
}

static void keep(struct solve_chain *best, int32_t most, int32_t *n, const struct solve_chain *c)
{
    for (int32_t i = 0; i < *n; i++)
        if (solve_dp_same(&best[i], c))
            return;
    if (*n == most && best[most - 1].cost_ms <= c->cost_ms)
        return;
    int32_t at = *n < most ? (*n)++ : most - 1;
    for (; at > 0 && best[at - 1].cost_ms > c->cost_ms; at--)
        best[at] = best[at - 1];
    best[at] = *c;
}

/* A chain at the bottleneck of the last bounds; INFINITY: none was found. Raises the least sum of all nodes. */
static double find_chain(struct search *s, double root_ms, double high, struct solve_chain *c, double *sum_ms)
{
    for (int32_t round = 0; round < ROUNDS; round++) {
        double sum, top;
        solve_search_bound_labels(s);
        if (!solve_search_path(s, c, &sum, &top))
            break;
        if (!fits(s, c)) {
            s->strict = true;
            solve_search_bound_labels(s);
            bool found = solve_search_path(s, c, &sum, &top);
            s->strict = false;
            if (!found || !fits(s, c))
                break;
        }
        if (enough_agents(s, c)) {
            if (ends_home(s, c))
                top = YK_MAX(top, solve_search_ms(s, s->source, 0, c->end[0]) +
                                      solve_search_ms(s, s->source, c->end[c->n_stages - 2], s->n));
            c->cost_ms = root_ms + sum + (double)(s->m->count - 1) * top;
            return c->cost_ms;
        }
        solve_search_bound(s, high, sum * MORE);
        *sum_ms = YK_MAX(*sum_ms, root_ms + solve_search_rest(s, solve_search_row(s, 0), 0, 0));
    }
    return INFINITY;
}

static void run(struct search *s, double root_ms, double tolerance, double *least_ms, double *bound_ms,
    struct solve_chain *best, int32_t most, int32_t *n, struct solve_trail *trail)
{
    double rate = (double)(s->m->count - 1), bound = INFINITY, high = INFINITY, pace = 0;
    for (int32_t k = 0; k < s->n_by_pace; k++)
        pace += s->pace[s->by_pace[k]] * s->weight[s->by_pace[k]];
    double low = rate > 0 && pace > 0 ? s->work[0] / pace * (1 - 1e-9) : 0;
    for (bool first = true; (first || high > low) && !cost_out_of_time(s->m); first = false) {
        struct solve_chain c;
        double wanted = *least_ms * (1 - tolerance), step = YK_MAX(low, high * (1 - STEP));
        solve_search_bound(s, high, isinf(high) ? 0 : wanted - rate * step);
        double sum = root_ms + solve_search_rest(s, solve_search_row(s, 0), 0, 0);
        if (sum + rate * low >= wanted)
            break;
        if (rate > 0 && (wanted - sum) / rate < step) {
            high = (wanted - sum) / rate;
            continue;
        }
        double cost = find_chain(s, root_ms, high, &c, &sum);
        if (cost < INFINITY) {
            keep(best, most, n, &c);
            solve_dp_trail_add(trail, &c);
        }
        *least_ms = YK_MIN(*least_ms, cost);
        if (rate <= 0 || isinf(step)) {
            bound = YK_MIN(bound, sum + rate * low);
            if (rate <= 0)
                break;
            high = (*least_ms - sum) / rate;
            bound = INFINITY;
            if (isinf(high)) { /* nothing fits as far as is known */
                bound = sum + rate * low;
                break;
            }
            continue;
        }
        /* What is between costs no less than this. */
        if (sum + rate * step < *least_ms * (1 - tolerance))
            bound = YK_MIN(bound, sum + rate * step);
        high = step;
    }
    if (cost_out_of_time(s->m))
        bound = YK_MIN(bound, root_ms + rate * low);
    *bound_ms = YK_MIN(*bound_ms, YK_MIN(bound, *least_ms * (1 - tolerance)));
}

yk_err solve_kinds_chains(const struct cost_model *m, int32_t source, const int32_t *count, double tolerance,
    double *least_ms, double *bound_ms, struct solve_chain *best, int32_t most, int32_t *n, struct solve_trail *trail,
    struct yk_diag *why)
{
    struct search s = {.m = m, .source = source, .n = m->graph->n_nodes, .n_agents = m->view->n_agents, .most = 0};
    *n = 0;
    yk_err err = solve_search_index(&s, why);
    if (!err) {
        double root_ms = m->view->agents[source].message_ms;
        struct cost_edge e;
        for (int32_t a = 0; a < s.n_agents; a++) {
            s.weight[a] = count[a];
            s.turns[a] = count[a] + (a == source);
            s.twin[a] = count[a] > 1 && solve_search_pair(&s, a, a)->there;
        }
        if (cost_upload(m, source, &e))
            root_ms += e.busy_ms + e.latency_ms + m->view->agents[source].message_ms;
        if (cost_answer(m, source, &e))
            root_ms += e.busy_ms + e.latency_ms;
        for (int32_t i = 0; i <= s.n; i++) {
            s.stop_of[i] = s.n_stops;
            if (i == 0 || i == s.n || !s.cuts.at[i].forbidden)
                s.stop[s.n_stops++] = i;
        }
        s.n_stops--;
        solve_search_stops(&s);
        run(&s, root_ms, tolerance, least_ms, bound_ms, best, most, n, trail);
    }
    solve_search_fini(&s);
    return err;
}
