#include "scheduler/solve_replicas.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define SEEDS 4

struct choice {
    int32_t n, at[SOLVE_REPLICAS];
    int64_t counts[SOLVE_REPLICAS];
    double cost_ms;
};

static int64_t through(const struct cost_line *l, double ms, int64_t most)
{
    if (ms < l->first_ms)
        return 0;
    double n = l->bottleneck_ms > 0 ? floor((ms - l->first_ms) / l->bottleneck_ms * (1 + 1e-12)) + 1 : (double)most;
    return n < (double)most ? (int64_t)n : most;
}

/* The counts with which the last pipeline ends earliest. False: a pipeline is of no use. */
static bool share_out(const struct cost_model *m, const struct cost_line *const *lines, struct choice *c, double *load)
{
    double low = 0, high = INFINITY;
    int64_t left = m->count;
    for (int32_t i = 0; i < c->n; i++)
        high = YK_MIN(high, lines[c->at[i]]->first_ms + (double)(m->count - 1) * lines[c->at[i]]->bottleneck_ms);
    for (int round = 0; round < 50; round++) {
        double middle = (low + high) / 2;
        int64_t all = 0;
        for (int32_t i = 0; i < c->n; i++)
            all += through(lines[c->at[i]], middle, m->count);
        *(all >= m->count ? &high : &low) = middle;
    }
    for (int32_t i = 0; i < c->n; i++) {
        c->counts[i] = YK_MIN(through(lines[c->at[i]], high, m->count), left);
        left -= c->counts[i];
        if (c->counts[i] == 0)
            return false;
    }
    if (left > 0) /* rounding */
        c->counts[0] += left;
    c->cost_ms = 0;
    memset(load, 0, (size_t)m->n_resources * sizeof *load);
    for (int32_t i = 0; i < c->n; i++) {
        const struct cost_line *l = lines[c->at[i]];
        double n = (double)c->counts[i];
        c->cost_ms = YK_MAX(c->cost_ms, l->first_ms + (n - 1) * l->bottleneck_ms);
        for (int32_t s = 0; s < l->n_stages; s++)
            load[l->stages[s].agent] += n * (l->stages[s].ms + l->stages[s].message_ms);
        for (int32_t e = 0; e < l->n_edges; e++)
            if (l->edges[e].resource >= 0)
                load[l->edges[e].resource] += n * l->edges[e].busy_ms;
    }
    for (int32_t r = 0; r < m->n_resources; r++)
        c->cost_ms = YK_MAX(c->cost_ms, load[r]);
    return true;
}

static bool apart(const struct cost_line *a, const struct cost_line *b)
{
    for (int32_t i = 0; i < a->n_stages; i++)
        for (int32_t k = 0; k < b->n_stages; k++)
            if (a->stages[i].agent == b->stages[k].agent)
                return false;
    return true;
}

static void add_best(
    const struct cost_model *m, const struct cost_line *const *lines, int32_t n, struct choice *c, double *load)
{
    while (c->n < SOLVE_REPLICAS) {
        struct choice best = *c;
        for (int32_t i = 0; i < n; i++) {
            struct choice more = *c;
            bool free_agents = true;
            for (int32_t k = 0; k < c->n && free_agents; k++)
                free_agents = apart(lines[c->at[k]], lines[i]);
            if (!free_agents)
                continue;
            more.at[more.n++] = i;
            if (share_out(m, lines, &more, load) && more.cost_ms < best.cost_ms * (1 - 1e-6))
                best = more;
        }
        if (best.n == c->n)
            return;
        *c = best;
    }
}

int32_t solve_replicas_choose(const struct cost_model *m, const struct cost_line *const *lines, int32_t n,
    int32_t *chosen, int64_t *counts, double *cost_ms)
{
    struct choice best = {.cost_ms = INFINITY};
    double *load = yk_xalloc(((size_t)m->n_resources + 1) * sizeof *load);
    bool *seed = yk_xalloc((size_t)n + 1);
    for (int32_t round = 0; round <= SEEDS && round <= n && m->count > 1; round++) {
        int32_t first = -1;
        for (int32_t i = 0; i < n; i++)
            if (!seed[i] && (round > 0 || lines[i]->n_stages == 1) && /* whole copies first */
                (first < 0 || lines[i]->cost_ms < lines[first]->cost_ms))
                first = i;
        if (first < 0)
            continue;
        struct choice c = {.n = 1, .at = {first}, .counts = {m->count}, .cost_ms = lines[first]->cost_ms};
        seed[first] = true;
        add_best(m, lines, n, &c, load);
        if (c.cost_ms < best.cost_ms)
            best = c;
    }
    free(seed);
    free(load);
    memcpy(chosen, best.at, sizeof best.at);
    memcpy(counts, best.counts, sizeof best.counts);
    *cost_ms = best.cost_ms;
    return best.n;
}

double solve_replicas_bound(const struct cost_model *m)
{
    double work, least = cost_floor(m, &work);
    return YK_MAX(least, (double)m->count * work) * (1 - 1e-9);
}
