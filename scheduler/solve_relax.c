/* A relaxation of the search: an agent may be used again, but each stage on it pays a rent, and the rents of all agents
 * are paid back once (of the source twice, where chains may end there again; then its time has a price too, paid back
 * for as long as a bottleneck). For any rents the least sum of stages and transfers is then a bound from below; rents
 * that make paths use each agent about once make it a close one. By dynamic programming from the end; values of which
 * it is not known who made them come over the best link into their reader.
 *
 * A pass runs over groups of cuts, or, for bounds of labels, over the cuts themselves (solve_grid.c). */
#include "scheduler/solve_search.h"

#include <math.h>
#include <string.h>

#define LONGER 1.5  /* changes of rents, after one that helped */
#define SHORTER 0.5 /* after one that did not */
#define SHORTEST 0.02
#define ROUNDS 1 /* of better rents */

static double exit_ms(const struct search *s, int32_t agent, int32_t p, int32_t q)
{
    if (agent == s->source || s->returns[q] == s->returns[p])
        return 0;
    const struct pair *pair = solve_search_pair(s, agent, s->source);
    if (!pair->there || (double)(s->back[q] - s->back[p] + COST_HEADER_BYTES) * pair->per_byte_ms > s->high)
        return INFINITY;
    return (double)(s->back[q] - s->back[p] + COST_HEADER_BYTES) * pair->per_byte_ms + pair->latency_ms +
           solve_search_message_ms(s, agent) + solve_search_message_ms(s, s->source);
}

/* ---- a pass ---- */

/* A kind of agents while a pass runs. */
struct front {
    int32_t agent, twin; /* twin: the other of its kind, for the link between them; itself: of many; -1: alone */
    const double *ms, *priced;
    const int32_t *runs_to, *way_of; /* way_of: [from * n_agents] */
    const struct way *ways;
    double *ends[2], *blocks[2], *relaxed, *then; /* ends, blocks: by apart */
    int32_t *last_end;
    /* at the place where the pass is */
    double best;                    /* of stages that begin there, over the best link */
    double least[SOLVE_PARTS];      /* by the parts that they read: their times, what follows, what the source sends */
    double way[SOLVE_DP_AGENTS];    /* [k]: the least of them with what comes over the k-th way into the agent */
    double apart[SOLVE_DP_AGENTS];  /* [k]: the same where older values come apart */
    int32_t known[SOLVE_DP_AGENTS]; /* [k]: the place that those two are of */
};

static bool representative(const struct search *s, int32_t agent)
{
    return s->alike[agent] < 0;
}

/* The other of two agents of a kind; itself if it stands for many. */
static int32_t twin_of(const struct search *s, int32_t agent)
{
    for (int32_t a = agent + 1; a < s->n_agents; a++)
        if (s->first_alike[a] == agent)
            return a;
    return agent;
}

static void begin_front(const struct search *s, const struct grid *g, int32_t agent, struct front *f)
{
    const struct relaxation *r = &s->now;
    size_t a = (size_t)agent, row = (size_t)s->n + 1, blocks = (size_t)s->n / SOLVE_BLOCK + 1;
    *f = (struct front){.agent = agent,
        .twin = s->twin[agent] ? twin_of(s, agent) : -1,
        .ms = s->prefix + a * row,
        .priced = solve_search_priced(s, agent),
        .runs_to = s->runs_to + a * row,
        .way_of = s->way_of + a,
        .ways = s->ways + a * (size_t)s->n_agents,
        .ends = {r->ends + 2 * a * row, r->ends + (2 * a + 1) * row},
        .blocks = {r->blocks + 2 * a * blocks, r->blocks + (2 * a + 1) * blocks},
        .relaxed = r->relaxed + a * row,
        .then = r->then + a * row,
        .last_end = r->last_end + a * row};
    memset(f->known, 0xff, sizeof f->known);
    f->last_end[g->n] = g->n;
}

/* What an end at place t leads to; places get that from the last, n, to the first. */
static void set_end(struct front *f, int32_t apart, int32_t t, int32_t n, double value)
{
    double *block = &f->blocks[apart][(uint32_t)t / SOLVE_BLOCK];
    f->ends[apart][t] = value;
    if (t == n || (uint32_t)t % SOLVE_BLOCK == SOLVE_BLOCK - 1 || value < *block)
        *block = value;
}

static double least_end(const struct front *f, int32_t apart, int32_t from, int32_t to)
{
    const double *ends = f->ends[apart], *blocks = f->blocks[apart];
    double ms = INFINITY;
    uint32_t t = (uint32_t)from, end = (uint32_t)to, first = (t + SOLVE_BLOCK - 1) / SOLVE_BLOCK;
    if (first < end / SOLVE_BLOCK) {
        for (; t < first * SOLVE_BLOCK; t++)
            ms = ends[t] < ms ? ends[t] : ms;
        for (; first < end / SOLVE_BLOCK; first++)
            ms = blocks[first] < ms ? blocks[first] : ms;
        t = first * SOLVE_BLOCK;
    }
    for (; t < end; t++)
        ms = ends[t] < ms ? ends[t] : ms;
    return ms;
}

static bool too_large(struct search *s, int32_t agent, int32_t p, int32_t q)
{
    return solve_search_never_fits(s, agent, p, q) || (s->strict && !solve_search_fits(s, agent, p, q));
}

/* The last place where a stage on the agent that begins at place t can end; that of the place behind is known. */
static int32_t last_end(struct search *s, const struct grid *g, const struct front *f, int32_t t)
{
    int32_t p = g->last[t], most = f->runs_to[p], end = f->last_end[t + 1];
    double high = s->high;
    while (end > t &&
           (f->ms[g->first[end]] - f->ms[p] > high || g->first[end] > most || too_large(s, f->agent, p, g->first[end])))
        end--;
    return end;
}

/* Stages that begin at place t. */
static void find_front(const struct search *s, const struct grid *g, int32_t t, struct front *f)
{
    const struct parts *in = &g->parts[t];
    const double *entry = g->entry + ((size_t)t * (size_t)s->n_agents + (size_t)f->agent) * SOLVE_PARTS;
    double at = f->priced[g->last[t]] - s->rent[f->agent], best = INFINITY;
    int32_t end = f->last_end[t] + 1, apart = YK_MIN(g->apart[t], end);
    for (int32_t k = 0; k < in->n; k++) {
        int32_t from = in->from[k], to = k + 1 < in->n ? YK_MIN(in->from[k + 1], end) : end;
        double ms = INFINITY;
        if (from < apart)
            ms = least_end(f, 1, from, YK_MIN(to, apart));
        if (to > apart) {
            double far = least_end(f, 0, YK_MAX(from, apart), to);
            ms = YK_MIN(ms, far);
        }
        ms -= at;
        if (in->any[k] & 4) {
            bool barred = solve_search_barred(s, f->agent, in, k);
            best = barred ? best : YK_MIN(best, ms + entry[k]);
            ms = barred ? INFINITY : ms + solve_search_input_ms(s, f->agent, in->input[k]);
        } else {
            best = YK_MIN(best, ms + entry[k]);
        }
        f->least[k] = ms;
    }
    f->best = best;
}

static void find_way(const struct search *s, const struct parts *in, int32_t k, struct front *f)
{
    double best = INFINITY, apart = INFINITY;
    for (int32_t i = 0; i < in->n; i++) {
        double ms = f->least[i] + solve_search_way_ms(s, &f->ways[k], in, i, true);
        if (in->any[i] & 2) {
            double joint = f->least[i] + solve_search_way_ms(s, &f->ways[k], in, i, false);
            ms += solve_search_older_ms(s, f->agent, in, i);
            best = YK_MIN(best, joint);
        }
        apart = YK_MIN(apart, ms);
    }
    f->apart[k] = apart;
    f->way[k] = YK_MIN(best, apart);
}

/* What nodes behind place t take behind a stage on b, if the fronts are in order of their best; *apart_ms: if older
 * values come apart. */
static double find_then(const struct search *s, const struct front *b, int32_t t, const struct parts *in,
    struct front *const *order, int32_t n, double *apart_ms)
{
    double best = INFINITY, apart = INFINITY;
    for (int32_t j = 0; j < n && order[j]->best < apart; j++) {
        struct front *f = order[j];
        int32_t from = f == b ? f->twin : b->agent; /* twins change places */
        if (from < 0)
            continue;
        int32_t way = f->way_of[(size_t)from * (size_t)s->n_agents];
        if (f->known[way] != t)
            find_way(s, in, way, f);
        f->known[way] = t;
        apart = YK_MIN(apart, f->apart[way]);
        best = YK_MIN(best, f->way[way]);
    }
    *apart_ms = apart;
    return best;
}

/* Relaxed and then at the last cut of each place, with the rents as they are. */
static void relax_all(struct search *s, const struct grid *g)
{
    struct front fronts[SOLVE_DP_AGENTS], *order[SOLVE_DP_AGENTS];
    int32_t n = 0;
    for (int32_t k = 0; k < s->n_by_pace; k++) {
        int32_t a = s->by_pace[k];
        if (!representative(s, a))
            continue;
        struct front *f = &fronts[n++];
        bool home = s->m->req->pin_last || s->around;
        double last = home && a != s->source ? INFINITY : exit_ms(s, a, s->n - 1, s->n);
        begin_front(s, g, a, f);
        f->then[s->n] = last;
        set_end(f, 0, g->n, g->n, f->priced[s->n] + last);
        set_end(f, 1, g->n, g->n, f->priced[s->n] + last);
    }
    for (int32_t t = g->n - 1; t >= 0; t--) {
        int32_t p = g->last[t];
        for (int32_t k = 0; k < n; k++) {
            struct front *f = &fronts[k];
            int32_t place = k;
            f->last_end[t] = last_end(s, g, f, t);
            find_front(s, g, t, f);
            f->relaxed[p] = f->best;
            for (; place > 0 && order[place - 1]->best > f->best; place--)
                order[place] = order[place - 1];
            order[place] = f;
        }
        for (int32_t k = 0; k < n && t > 0; k++) {
            struct front *f = &fronts[k];
            double at = f->priced[g->first[t]], apart;
            double best = f->then[p] = find_then(s, f, t, &g->parts[t], order, n, &apart);
            set_end(f, 0, t, g->n, at + best);
            set_end(f, 1, t, g->n, at + apart);
        }
    }
}

/* ---- rents ---- */

static void set_toll(struct search *s, double toll)
{
    const double *ms = s->prefix + (size_t)s->source * ((size_t)s->n + 1);
    s->toll = s->high < INFINITY ? YK_MAX(toll, 0.0) : 0;
    for (int32_t i = 0; i <= s->n && s->toll > 0; i++)
        s->tolled[i] = ms[i] * (1 + s->toll / s->high);
}

/* What an agent earns above the slowest that is needed, if work flows to the fastest first. */
static void first_rents(struct search *s)
{
    double left = s->work[0], price = 0, enter = isinf(s->enter_least[0]) ? 0 : s->enter_least[0];
    for (int32_t k = 0; k < s->n_by_pace && left > 0 && s->high < INFINITY; k++) {
        int32_t a = s->by_pace[k];
        left -= s->high * s->pace[a] * s->weight[a];
        price = (s->high + enter) / (s->high * s->pace[a]);
    }
    for (int32_t a = 0; a < s->n_agents; a++)
        s->fair[a] = s->pace[a] > 0 && price > 0 ? YK_MAX(s->high * (s->pace[a] * price - 1) - enter, 0.0) : 0;
}

static double all_rents(const struct search *s, const double *rent)
{
    double all = 0;
    for (int32_t k = 0; k < s->n_by_pace; k++)
        all += s->turns[s->by_pace[k]] * rent[s->first_alike[s->by_pace[k]]];
    return all;
}

/* The least sum of all by the last pass; and how often its path takes an agent of each kind. */
static double root_ms(const struct search *s)
{
    double best = INFINITY;
    for (int32_t k = 0; k < s->n_by_pace; k++) {
        int32_t a = s->first_alike[s->by_pace[k]];
        if ((!s->m->req->pin_first && !s->around) || a == s->source)
            best = YK_MIN(best, s->now.relaxed[(size_t)a * ((size_t)s->n + 1)]);
    }
    return best - all_rents(s, s->rent) - s->toll;
}

/* The stage that the path takes behind one on `before` (-1: first) that ends at place t. */
static int32_t next_stage(
    struct search *s, const struct grid *g, int32_t before, bool apart_before, int32_t t, int32_t *end)
{
    size_t row = (size_t)s->n + 1;
    const struct parts *in = &g->parts[t];
    double best = INFINITY;
    int32_t agent = -1, p = g->last[t];
    for (int32_t k = 0; k < s->n_by_pace; k++) {
        int32_t a = s->by_pace[k];
        if (!representative(s, a) || (a == before && !s->twin[a]) ||
            (p == 0 && (s->m->req->pin_first || s->around) && a != s->source))
            continue;
        const double *at = s->prefix + (size_t)a * row, *then = s->now.then + (size_t)a * row;
        const double *priced = solve_search_priced(s, a), *apart_ends = s->now.ends + (2 * (size_t)a + 1) * row;
        int32_t to = a == before ? twin_of(s, a) : a, last = s->runs_to[(size_t)a * row + (size_t)p];
        double in_ms = 0;
        for (int32_t e = t + 1, i = -1; e <= g->n && g->first[e] <= last; e++) {
            double ms = at[g->first[e]] - at[p];
            if (ms > s->high || too_large(s, a, p, g->first[e]))
                break;
            if (i + 1 < in->n && e >= in->from[i + 1]) {
                i++;
                in_ms = before >= 0 ? solve_search_entry_from_ms(s, before, to, in, i, apart_before)
                        : solve_search_barred(s, a, in, i) ? INFINITY
                                                           : solve_search_entry_ms(s, a, in, i);
            }
            double rest = e < g->apart[t] ? apart_ends[e] - priced[g->first[e]] : then[g->last[e]];
            rest += priced[g->first[e]] - priced[p] + s->rent[a];
            if (in_ms + rest < best) {
                best = in_ms + rest;
                agent = a;
                *end = e;
            }
        }
    }
    return agent;
}

static void swap_relaxations(struct search *s)
{
    struct relaxation now = s->now;
    s->now = s->spare;
    s->spare = now;
}

/* Rents for which the least sum is larger: agents that the path takes too often become dearer. */
static void raise_rents(struct search *s, const struct grid *g, int32_t rounds, double wanted_ms)
{
    int32_t uses[SOLVE_DP_AGENTS];
    double rent[SOLVE_DP_AGENTS], best = root_ms(s), now = best, toll;
    bool tolls = s->turns[s->source] > s->weight[s->source] && s->high < INFINITY, apart = false;
    for (int32_t round = 0; round < rounds && now < wanted_ms; round++) {
        int32_t before = -1;
        double square = 0, over = 0;
        memset(uses, 0, sizeof uses);
        apart = false;
        for (int32_t t = 0, e = 0; t < g->n; t = e) {
            before = next_stage(s, g, before, apart, t, &e);
            if (before < 0)
                break;
            apart = e < g->apart[t];
            uses[before]++;
            over += tolls && before == s->source ? solve_search_ms(s, before, g->last[t], g->first[e]) / s->high : 0;
        }
        over = tolls && (over > 1 || s->toll > 0) ? over - 1 : 0;
        square += over * over;
        for (int32_t k = 0; k < s->n_by_pace; k++)
            uses[s->first_alike[s->by_pace[k]]] -= s->turns[s->by_pace[k]];
        for (int32_t a = 0; a < s->n_agents; a++) {
            uses[a] = uses[a] < 0 && s->rent[a] <= 0 ? 0 : uses[a];
            square += uses[a] * uses[a];
        }
        if (square <= 0 || before < 0)
            break;
        memcpy(rent, s->rent, (size_t)s->n_agents * sizeof *rent);
        toll = s->toll;
        double step = s->stride * (wanted_ms - now) / square;
        for (int32_t a = 0; a < s->n_agents; a++)
            s->rent[a] = YK_MAX(s->rent[a] + step * uses[a], 0.0);
        set_toll(s, s->toll + step * over);
        swap_relaxations(s); /* the best stays */
        relax_all(s, g);
        now = root_ms(s);
        if (now > best) {
            best = now;
            s->stride = YK_MIN(s->stride * LONGER, 1.0);
            continue;
        }
        memcpy(s->rent, rent, (size_t)s->n_agents * sizeof *rent);
        set_toll(s, toll);
        swap_relaxations(s);
        now = best;
        s->stride = YK_MAX(s->stride * SHORTER, SHORTEST);
    }
}

bool solve_search_path(struct search *s, struct solve_chain *path, double *sum_ms, double *top_ms)
{
    const struct grid *g = &s->fine;
    int32_t before = -1;
    bool apart = false;
    *path = (struct solve_chain){.source = s->source};
    *sum_ms = *top_ms = 0;
    for (int32_t t = 0, e = 0; t < g->n; t = e) {
        int32_t a = next_stage(s, g, before, apart, t, &e), k = 0;
        const struct parts *in = &g->parts[t];
        if (a < 0 || path->n_stages == SOLVE_CHAIN_STAGES)
            return false;
        while (k + 1 < in->n && in->from[k + 1] <= e)
            k++;
        double ms = solve_search_ms(s, a, s->stop[t], s->stop[e]);
        const struct pair *pair = solve_search_pair(s, before, a);
        *sum_ms += ms + (before < 0 ? solve_search_entry_ms(s, a, in, k)
                                    : solve_search_entry_from_ms(s, before, a, in, k, apart));
        *top_ms = YK_MAX(*top_ms, ms);
        if (before >= 0)
            *top_ms =
                YK_MAX(*top_ms, (in->fresh[k] + (apart ? 0 : in->older[k]) + COST_HEADER_BYTES) * pair->per_byte_ms);
        if ((in->any[k] & 4) && a != s->source)
            *top_ms =
                YK_MAX(*top_ms, (in->input[k] + COST_HEADER_BYTES) * solve_search_pair(s, s->source, a)->per_byte_ms);
        apart = e < g->apart[t];
        path->agent[path->n_stages] = before = a;
        path->end[path->n_stages++] = s->stop[e];
    }
    *sum_ms += exit_ms(s, before, s->n - 1, s->n);
    return true;
}

void solve_search_bound(struct search *s, double high, double wanted_ms)
{
    const struct grid *g = s->grouped ? &s->groups : &s->fine;
    double old[SOLVE_DP_AGENTS];
    s->high = high;
    memcpy(old, s->fair, (size_t)s->n_agents * sizeof *old);
    first_rents(s);
    for (int32_t a = 0; a < s->n_agents; a++) /* what earlier bounds learnt stays */
        s->rent[a] = YK_MAX(s->rent[a] + s->fair[a] - old[a], 0.0);
    set_toll(s, s->toll);
    relax_all(s, g);
    raise_rents(s, g, s->rough ? 0 : ROUNDS, wanted_ms);
    solve_search_forget_rows(s);
}

void solve_search_bound_labels(struct search *s)
{
    if (s->grouped)
        relax_all(s, &s->fine);
    solve_search_forget_rows(s);
}
