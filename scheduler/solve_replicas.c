#include "scheduler/solve_replicas.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define SEEDS 4
#define SETS 400000 /* steps of a search over sets, some 0.1 s */
#define WAYS 200000 /* to share out microbatches among one set, where that is not a matter of time alone */
#define ROUNDS 60   /* of a bisection: as near as doubles are */

/* ---- shares ---- */

struct set {
    const struct solve_part *at[SOLVE_REPLICAS];
    int32_t n, n_shared;
    int64_t microbatches;
};

/* So many microbatches are through by then. */
static int64_t through(const struct solve_part *p, double ms, int64_t most)
{
    if (ms < p->first_ms)
        return 0;
    double n = p->bottleneck_ms > 0 ? floor((ms - p->first_ms) / p->bottleneck_ms * (1 + 1e-12)) + 1 : (double)most;
    return n < (double)most ? (int64_t)n : most;
}

static double cost_of(const struct set *s, const int64_t *counts)
{
    double cost = 0;
    for (int32_t i = 0; i < s->n; i++)
        cost = YK_MAX(cost, s->at[i]->first_ms + (double)(counts[i] - 1) * s->at[i]->bottleneck_ms);
    for (int32_t r = 0; r < s->n_shared; r++) {
        double load = 0;
        for (int32_t i = 0; i < s->n; i++)
            load += (double)counts[i] * s->at[i]->shared[r];
        cost = YK_MAX(cost, load);
    }
    return cost;
}

/* Everybody one microbatch, then those that take the least of the resource first, as far as the time lets them (-1: in
 * their order). False: they are not through by then. */
static bool fill(const struct set *s, double ms, int32_t resource, int64_t *counts)
{
    int64_t left = s->microbatches;
    bool full[SOLVE_REPLICAS] = {false};
    for (int32_t i = 0; i < s->n; i++) {
        counts[i] = 1;
        left--;
        if (s->at[i]->first_ms > ms)
            return false;
    }
    for (int32_t k = 0; k < s->n && left > 0; k++) {
        int32_t least = -1;
        for (int32_t i = 0; i < s->n; i++)
            if (!full[i] &&
                (least < 0 || (resource >= 0 && s->at[i]->shared[resource] < s->at[least]->shared[resource])))
                least = i;
        full[least] = true;
        int64_t more = YK_MIN(through(s->at[least], ms, s->microbatches) - 1, left);
        counts[least] += YK_MAX(more, (int64_t)0);
        left -= YK_MAX(more, (int64_t)0);
    }
    if (left > 0)
        return false;
    double load = 0;
    for (int32_t i = 0; i < s->n && resource >= 0; i++)
        load += (double)counts[i] * s->at[i]->shared[resource];
    return load <= ms * (1 + 1e-12);
}

/* The least time with no other resource in the way, and its counts. */
static double bisect(const struct set *s, int32_t resource, double low, double high, int64_t *counts)
{
    for (int round = 0; round < ROUNDS && high - low > 1e-13 * high; round++) {
        double middle = (low + high) / 2;
        *(fill(s, middle, resource, counts) ? &high : &low) = middle;
    }
    return fill(s, high, resource, counts) ? high : INFINITY;
}

static double try_all(
    const struct set *s, int64_t *now, int32_t at, int64_t left, double best, int64_t *counts, int64_t *effort)
{
    const struct solve_part *p = s->at[at];
    if (++*effort > WAYS)
        return best;
    if (at == s->n - 1) {
        now[at] = left;
        double cost = left > 0 ? cost_of(s, now) : INFINITY;
        if (cost >= best)
            return best;
        memcpy(counts, now, (size_t)s->n * sizeof *counts);
        return cost;
    }
    for (now[at] = 1; now[at] <= left - (s->n - 1 - at); now[at]++) {
        if (p->first_ms + (double)(now[at] - 1) * p->bottleneck_ms >= best)
            break;
        best = try_all(s, now, at + 1, left - now[at], best, counts, effort);
    }
    return best;
}

/* The best counts, each at least 1. INFINITY: not below limit_ms. *all false: maybe others are better. */
static double share_out(const struct set *s, double limit_ms, int64_t *counts, bool *all)
{
    double low = 0, high = 0, sum = (double)s->microbatches, pace = 0, left = INFINITY;
    int64_t now[SOLVE_REPLICAS];
    if (s->microbatches < s->n)
        return INFINITY;
    for (int32_t i = 0; i < s->n; i++) {
        const struct solve_part *p = s->at[i];
        double b = YK_MAX(p->bottleneck_ms, 1e-12);
        sum += p->first_ms / b - 1;
        pace += 1 / b;
        low = YK_MAX(low, p->first_ms);
        high = YK_MAX(high, p->first_ms + (double)(s->microbatches - 1) * p->bottleneck_ms);
    }
    if (YK_MAX(low, sum / pace * (1 - 1e-9)) >= limit_ms)
        return INFINITY;
    for (int32_t r = 0; r < s->n_shared; r++) {
        double least = INFINITY, most = 0;
        for (int32_t i = 0; i < s->n; i++) {
            least = YK_MIN(least, s->at[i]->shared[r]);
            most = YK_MAX(most, s->at[i]->shared[r]);
        }
        if ((double)s->microbatches * least >= limit_ms)
            return INFINITY;
        high = YK_MAX(high, (double)s->microbatches * most);
    }
    low = YK_MAX(low, sum / pace) * (1 - 1e-9);
    double best = INFINITY, bound = 0;
    for (int32_t r = -1; r < s->n_shared; r++) { /* each alone bounds all together */
        double alone = bisect(s, r, low, high, now), cost = cost_of(s, now);
        bound = YK_MAX(bound, alone * (1 - 1e-9));
        if (cost < best) {
            best = cost;
            memcpy(counts, now, (size_t)s->n * sizeof *counts);
        }
        if (bound >= limit_ms)
            return INFINITY;
        if (best <= bound * (1 + 2e-9)) {
            left = 0;
            break;
        }
    }
    if (left > 0 && best > bound * (1 + 2e-9)) {
        int64_t effort = 0;
        best = try_all(s, now, 0, s->microbatches, best, counts, &effort);
        *all = *all && effort <= WAYS;
    }
    return best < limit_ms ? best : INFINITY;
}

/* ---- sets ---- */

struct search {
    const struct solve_part *parts;
    int32_t *order;   /* parts by their first agent, then by first_ms */
    int32_t from[65]; /* where those of an agent begin */
    int32_t last;     /* agent behind the last */
    struct set set;
    int32_t at[SOLVE_REPLICAS];
    int32_t *chosen, n_chosen;
    int64_t *counts;
    double best;
    int64_t effort;
    bool all;
};

static void look(struct search *s)
{
    int64_t counts[SOLVE_REPLICAS];
    double cost = share_out(&s->set, s->best, counts, &s->all);
    if (cost >= s->best)
        return;
    s->best = cost;
    s->n_chosen = s->set.n;
    memcpy(s->chosen, s->at, (size_t)s->set.n * sizeof *s->at);
    memcpy(s->counts, counts, (size_t)s->set.n * sizeof *counts);
}

static void choose(struct search *s, int32_t agent, uint64_t used)
{
    struct set *set = &s->set;
    if (++s->effort > SETS) {
        s->all = false;
        return;
    }
    if (agent == s->last) {
        if (set->n > 1)
            look(s);
        return;
    }
    for (int32_t i = s->from[agent]; i < s->from[agent + 1] && set->n < SOLVE_REPLICAS; i++) {
        const struct solve_part *p = &s->parts[s->order[i]];
        if (p->first_ms >= s->best || set->n >= set->microbatches)
            break;
        if (p->agents & used)
            continue;
        s->at[set->n] = s->order[i];
        set->at[set->n++] = p;
        choose(s, agent + 1, used | p->agents);
        set->n--;
    }
    choose(s, agent + 1, used);
}

static int32_t first_agent(const struct solve_part *p)
{
    int32_t a = 0;
    while (a < 63 && !(p->agents >> a & 1))
        a++;
    return a;
}

struct keyed {
    int32_t agent, part;
    double first_ms;
};

static int by_key(const void *a, const void *b)
{
    const struct keyed *x = a, *y = b;
    if (x->agent != y->agent)
        return x->agent - y->agent;
    if (x->first_ms < y->first_ms || x->first_ms > y->first_ms)
        return x->first_ms < y->first_ms ? -1 : 1;
    return x->part - y->part;
}

int32_t solve_replicas_sets(const struct solve_part *parts, int32_t n, int32_t n_shared, int64_t microbatches,
    int32_t *chosen, int64_t *counts, double *cost_ms, bool *all)
{
    struct search s = {.parts = parts,
        .set = {.n_shared = n_shared, .microbatches = microbatches},
        .chosen = chosen,
        .counts = counts,
        .best = *cost_ms,
        .all = true};
    struct keyed *keys = yk_xalloc(((size_t)n + 1) * sizeof *keys);
    s.order = yk_xalloc(((size_t)n + 1) * sizeof *s.order);
    for (int32_t i = 0; i < n; i++)
        keys[i] = (struct keyed){first_agent(&parts[i]), i, parts[i].first_ms};
    qsort(keys, (size_t)n, sizeof *keys, by_key);
    for (int32_t i = 0, a = 0; a <= 64; a++) {
        s.from[a] = i;
        for (; i < n && keys[i].agent == a; i++) {
            s.order[i] = keys[i].part;
            s.last = a + 1;
        }
    }
    choose(&s, 0, 0);
    free(keys);
    free(s.order);
    *all = s.all;
    *cost_ms = s.best;
    return s.n_chosen;
}

struct medium {
    bool seen, listed;
    int32_t end[2]; /* agents that are an end of all its links; -1 none, nor the source */
};

/* A medium whose links all have one agent at an end, not the source, is of the pipeline that has this agent: what it
 * carries is in that pipeline's times already. */
bool solve_replicas_shared(const struct cost_model *m, int32_t source, int32_t *resource, int32_t *n)
{
    const struct view *v = m->view;
    int32_t media = v->n_agents + v->n_links;
    struct cost_edge e;
    struct medium *of = yk_xalloc(((size_t)(m->n_resources - media) + 1) * sizeof *of);
    bool all = true;
    *n = 0;
    resource[(*n)++] = source;
    if (cost_upload(m, source, &e) && e.resource < media)
        resource[(*n)++] = e.resource;
    if (cost_answer(m, source, &e) && e.resource < media)
        resource[(*n)++] = e.resource;
    for (int32_t i = 0; i < v->n_links; i++) {
        const struct view_link *l = &v->links[i];
        struct medium *at = m->link_resource[i] >= media ? &of[m->link_resource[i] - media] : NULL;
        for (int k = 0; k < 2 && at; k++) {
            int32_t end = at->seen ? at->end[k] : k ? l->to : l->from;
            at->end[k] = end != source && (end == l->from || end == l->to) ? end : -1;
        }
        if (at)
            at->seen = true;
    }
    for (int32_t i = 0; i < v->n_links; i++) {
        struct medium *at = m->link_resource[i] >= media ? &of[m->link_resource[i] - media] : NULL;
        if (!at || at->listed || at->end[0] >= 0 || at->end[1] >= 0)
            continue;
        at->listed = true;
        all = all && *n < SOLVE_SHARED;
        if (all)
            resource[(*n)++] = m->link_resource[i];
    }
    free(of);
    return all;
}

/* ---- of the pipelines that were found ---- */

static struct solve_part part_of(const struct cost_line *l, const int32_t *resource, int32_t n_shared)
{
    struct solve_part p = {.first_ms = l->first_ms, .bottleneck_ms = l->bottleneck_ms};
    for (int32_t s = 0; s < l->n_stages; s++)
        if (l->stages[s].agent < 64)
            p.agents |= (uint64_t)1 << l->stages[s].agent;
    for (int32_t r = 0; r < n_shared; r++)
        p.shared[r] = cost_line_load(l, resource[r]);
    return p;
}

static bool apart(const struct cost_line *a, const struct cost_line *b)
{
    for (int32_t i = 0; i < a->n_stages; i++)
        for (int32_t k = 0; k < b->n_stages; k++)
            if (a->stages[i].agent == b->stages[k].agent)
                return false;
    return true;
}

struct choice {
    struct set set;
    int32_t at[SOLVE_REPLICAS];
    int64_t counts[SOLVE_REPLICAS];
    double cost_ms;
};

static bool may_join(const struct cost_line *const *lines, int32_t i, const struct choice *c)
{
    for (int32_t k = 0; k < c->set.n; k++)
        if (!apart(lines[c->at[k]], lines[i]))
            return false;
    return true;
}

static void join(const struct solve_part *parts, int32_t i, struct choice *c)
{
    c->at[c->set.n] = i;
    c->set.at[c->set.n++] = &parts[i];
}

/* Whatever helps most; where nothing does, what is through first: of equal pipelines four take as long for 16
 * microbatches as five do, and six less. */
static void add_best(const struct cost_line *const *lines, const struct solve_part *parts, int32_t n, struct choice *c)
{
    struct choice now = *c;
    while (now.set.n < YK_MIN((int64_t)SOLVE_REPLICAS, now.set.microbatches)) {
        struct choice best = now;
        int32_t first = -1;
        bool all = true;
        best.cost_ms = c->cost_ms;
        for (int32_t i = 0; i < n; i++) {
            struct choice more = now;
            if (!may_join(lines, i, &now))
                continue;
            join(parts, i, &more);
            first = first < 0 || parts[i].first_ms < parts[first].first_ms ? i : first;
            more.cost_ms = share_out(&more.set, best.cost_ms * (1 - 1e-6), more.counts, &all);
            if (more.cost_ms < best.cost_ms)
                best = more;
        }
        if (first < 0)
            return;
        if (best.set.n > now.set.n)
            now = *c = best;
        else
            join(parts, first, &now);
    }
}

/* Begins with each of the best few and adds whatever helps most. */
static void choose_some(const struct cost_model *m, const struct cost_line *const *lines,
    const struct solve_part *parts, int32_t n, int32_t n_shared, struct choice *best)
{
    bool *seed = yk_xalloc((size_t)n + 1);
    for (int32_t round = 0; round <= SEEDS && round <= n && m->count > 1; round++) {
        int32_t first = -1;
        for (int32_t i = 0; i < n; i++)
            if (!seed[i] && (round > 0 || lines[i]->n_stages == 1) && /* whole copies first */
                (first < 0 || lines[i]->cost_ms < lines[first]->cost_ms))
                first = i;
        if (first < 0)
            continue;
        struct choice c = {.set = {.n = 1, .at = {&parts[first]}, .n_shared = n_shared, .microbatches = m->count},
            .at = {first},
            .counts = {m->count},
            .cost_ms = lines[first]->cost_ms};
        seed[first] = true;
        add_best(lines, parts, n, &c);
        if (c.cost_ms < best->cost_ms)
            *best = c;
    }
    free(seed);
}

int32_t solve_replicas_choose(const struct cost_model *m, const struct cost_line *const *lines, int32_t n,
    int32_t *chosen, int64_t *counts, double *cost_ms)
{
    struct choice best = {.cost_ms = INFINITY};
    int32_t resource[SOLVE_SHARED], n_shared;
    if (n == 0 || m->count < 2)
        return 0;
    solve_replicas_shared(m, lines[0]->source, resource, &n_shared); /* what is not among them their price has */
    struct solve_part *parts = yk_xalloc(((size_t)n + 1) * sizeof *parts);
    for (int32_t i = 0; i < n; i++)
        parts[i] = part_of(lines[i], resource, n_shared);
    if (m->view->n_agents <= SOLVE_REPLICAS_AGENTS) {
        bool all;
        for (int32_t i = 0; i < n; i++)
            best.cost_ms = YK_MIN(best.cost_ms, lines[i]->cost_ms * (1 - 1e-6));
        best.set.n = solve_replicas_sets(parts, n, n_shared, m->count, best.at, best.counts, &best.cost_ms, &all);
    } else {
        choose_some(m, lines, parts, n, n_shared, &best);
    }
    free(parts);
    memcpy(chosen, best.at, sizeof best.at);
    memcpy(counts, best.counts, sizeof best.counts);
    *cost_ms = best.cost_ms;
    return best.set.n;
}

/* ---- a floor ---- */

static void mark_use(void *arg, int32_t value)
{
    bool *used = arg;
    used[value] = true;
}

/* What the way from the source takes at least where no stage is on it. */
static double way_ms(const struct cost_model *m)
{
    const struct graph *g = m->graph;
    bool *used = yk_xalloc(((size_t)g->n_values + 1) * sizeof *used), any = false;
    double best = INFINITY;
    int64_t bytes = 0;
    for (int32_t i = 0; i < g->n_nodes; i++)
        node_each_use(&g->nodes[i], mark_use, used);
    for (int32_t i = 0; i < g->n_inputs; i++) {
        any = any || used[g->inputs[i]];
        bytes += used[g->inputs[i]] ? cost_value_bytes(m, g->inputs[i], cost_codec(m)) : 0;
    }
    for (int32_t a = 0; a < m->view->n_agents && any; a++) {
        double latency = 0;
        int32_t link = a == m->req->source ? -1 : cost_link(m, m->req->source, a);
        if (link >= 0)
            best = YK_MIN(best, cost_transfer_ms(m, link, bytes, &latency) + latency);
    }
    free(used);
    return any ? best : 0;
}

/* Agents but for the source, the fastest first. */
struct ranked {
    int32_t agent;
    double ms;
};

static int by_speed(const void *a, const void *b)
{
    const struct ranked *x = a, *y = b;
    return x->ms < y->ms ? -1 : x->ms > y->ms;
}

/* first_ms[k]: of k pipelines without an agent in common, nor the source, one takes so much for a microbatch: in it the
 * fastest agent is the k-th at best. INFINITY: there cannot be so many. */
static void rank_pipelines(const struct cost_model *m, int32_t most, double *first_ms)
{
    int32_t nodes = m->graph->n_nodes, n = 0;
    struct ranked *rank = yk_xalloc(((size_t)m->view->n_agents + 1) * sizeof *rank);
    double *least = yk_xalloc(((size_t)nodes + 1) * sizeof *least);
    for (int32_t a = 0; a < m->view->n_agents; a++) {
        if (!m->view->agents[a].usable || a == m->req->source)
            continue;
        rank[n] = (struct ranked){.agent = a};
        for (int32_t i = 0; i < nodes; i++) {
            double ms = m->node_ms[(size_t)a * (size_t)nodes + (size_t)i];
            rank[n].ms += isnan(ms) ? 0 : ms;
        }
        n++;
    }
    qsort(rank, (size_t)n, sizeof *rank, by_speed);
    for (int32_t i = 0; i < nodes; i++)
        least[i] = INFINITY;
    for (int32_t k = 0; k <= most; k++)
        first_ms[k] = k == 0 ? 0 : INFINITY;
    for (int32_t k = n; k >= 1; k--) {
        double sum = 0;
        for (int32_t i = 0; i < nodes; i++) {
            double ms = m->node_ms[(size_t)rank[k - 1].agent * (size_t)nodes + (size_t)i];
            least[i] = ms < least[i] ? ms : least[i]; /* not where it cannot run there */
            sum += least[i];
        }
        if (k <= most)
            first_ms[k] = sum;
    }
    free(rank);
    free(least);
}

/* With P pipelines the slowest takes a while for its first microbatch (all but one of them without the source). What
 * each has to do besides its first, for all agents: (n_p - 1) * work <= (cost - first) * its agents' pace, and so for
 * the sum over all of them: no less than the fastest first and (M - P) times the work of all. */
double solve_replicas_bound(const struct cost_model *m)
{
    double work, least = cost_floor(m, &work), best = INFINITY;
    int32_t most = (int32_t)YK_MIN(m->count, (int64_t)m->view->n_agents + 1), known = m->req->source >= 0;
    double *first_ms = yk_xalloc(((size_t)most + 2) * sizeof *first_ms), way = known ? way_ms(m) : 0;
    rank_pipelines(m, most, first_ms);
    for (int32_t p = 1; p <= most; p++) {
        int32_t others = p - known;
        double first = others > 0 ? first_ms[others] + way : 0;
        best = YK_MIN(best, YK_MAX(first, least + (double)(m->count - p) * work));
    }
    free(first_ms);
    return YK_MAX(YK_MAX(least, best), (double)m->count * work) * (1 - 1e-9);
}
