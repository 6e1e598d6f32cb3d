/* A relaxation of the search: an agent may be used again, but each stage on it pays a rent, and the rents of all agents
 * are paid back once (of the source twice, where chains may end there again; then its time has a price too, paid back
 * for as long as a bottleneck). For any rents the least sum of stages and transfers is then a bound from below; rents
 * that make paths use each agent about once make it a close one. By dynamic programming from the end; values of which
 * it is not known who made them come over the best link into their reader.
 *
 * A pass runs over groups of cuts with hardly any work between them, each with the least that crosses one of them, or,
 * for bounds of labels, over the cuts themselves. */
#include "scheduler/solve_search.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define ROUNDS 2       /* of better rents */
#define BETWEEN 5e-5   /* of an agent's time of all nodes: as much may be within a group */
#define GROUPS_PAY 0.7 /* if there are so many less than cuts */

static double message_ms(const struct search *s, int32_t agent)
{
    return YK_MAX(s->m->view->agents[agent].message_ms, 0.0);
}

static double exit_ms(const struct search *s, int32_t agent, int32_t p, int32_t q)
{
    if (agent == s->source || s->returns[q] == s->returns[p])
        return 0;
    const struct pair *pair = solve_search_pair(s, agent, s->source);
    if (!pair->there || (double)(s->back[q] - s->back[p] + COST_HEADER_BYTES) * pair->per_byte_ms > s->high)
        return INFINITY;
    return (double)(s->back[q] - s->back[p] + COST_HEADER_BYTES) * pair->per_byte_ms + pair->latency_ms +
           message_ms(s, agent) + message_ms(s, s->source);
}

/* Least of ranges of stops, while stops get their values from the last to the first. */
static double *level_of(const struct search *s, int32_t agent, int32_t apart, int32_t level)
{
    return s->least_of + (((size_t)agent * 2 + (size_t)apart) * (size_t)s->levels + (size_t)level) * ((size_t)s->n + 1);
}

static void set_value(struct search *s, int32_t agent, int32_t apart, int32_t t, int32_t last, double value)
{
    level_of(s, agent, apart, 0)[t] = value;
    for (int32_t l = 1; l < s->levels && t + (1 << l) <= last + 1; l++) {
        const double *below = level_of(s, agent, apart, l - 1);
        double x = below[t], y = below[t + (1 << (l - 1))];
        level_of(s, agent, apart, l)[t] = x < y ? x : y;
    }
}

static double least_value(const struct search *s, int32_t agent, int32_t apart, int32_t from, int32_t to)
{
    if (from >= to)
        return INFINITY;
    int32_t l = YK_MIN(31 - __builtin_clz((uint32_t)(to - from)), s->levels - 1);
    const double *level = level_of(s, agent, apart, l);
    double least = level[to - (1 << l)];
    for (; from + (1 << l) < to; from += 1 << l)
        least = level[from] < least ? level[from] : least;
    return least;
}

static void find_parts(const struct search *s, int32_t p, struct parts *out)
{
    const struct cut *cut = &s->cuts.at[p];
    const struct live *live = s->live + s->live_at[p];
    const struct value *values = s->m->graph->values;
    *out = (struct parts){0};
    for (int32_t k = 0, from = s->stop_of[p] + 1; from <= s->n_stops && out->n < SOLVE_PARTS;) {
        int32_t at = out->n++;
        if (at) {
            out->fresh[at] = out->fresh[at - 1];
            out->older[at] = out->older[at - 1];
            out->input[at] = out->input[at - 1];
            out->any[at] = out->any[at - 1];
        }
        out->from[at] = from;
        for (; k < cut->n_values && live[k].use < s->stop[from]; k++) {
            int32_t v = cut->values[live[k].k];
            bool input = values[v].kind == VALUE_INPUT, fresh = !input && values[v].producer == p - 1;
            *(input ? &out->input[at] : fresh ? &out->fresh[at] : &out->older[at]) += (double)s->bytes[v];
            out->any[at] |= input ? 4 : fresh ? 1 : 2;
        }
        if (k == cut->n_values) /* of many parts the last are taken to cost no more than those before */
            break;
        from = s->stop_of[live[k].use + 1];
    }
}

/* What inputs of the graph take into an agent; INFINITY: there is no link. */
static double input_ms(const struct search *s, int32_t agent, double bytes)
{
    const struct pair *pair = solve_search_pair(s, s->source, agent);
    if (agent == s->source)
        return 0;
    if (!pair->there)
        return INFINITY;
    return (bytes + COST_HEADER_BYTES) * pair->per_byte_ms + pair->latency_ms + message_ms(s, agent) +
           message_ms(s, s->source);
}

/* The link from the source is busy for longer than any resource may be. */
static bool input_barred(const struct search *s, int32_t agent, const struct parts *in, int32_t k)
{
    return (in->any[k] & 4) && agent != s->source &&
           (in->input[k] + COST_HEADER_BYTES) * solve_search_pair(s, s->source, agent)->per_byte_ms > s->high;
}

/* A last stage on the source may find there what the first one made. */
static bool has_older(const struct search *s, int32_t agent)
{
    return s->turns[agent] > s->weight[agent];
}

/* From whoever made them, over the best link. */
static double entry_ms(const struct search *s, int32_t agent, const struct parts *in, int32_t k)
{
    double ms = in->any[k] & 4 ? input_ms(s, agent, in->input[k]) : 0;
    bool there = has_older(s, agent);
    if (in->any[k] & (there ? 1 : 3))
        ms += (in->fresh[k] + (there ? 0 : in->older[k]) + COST_HEADER_BYTES) * s->in_per_byte[agent] +
              s->in_latency[agent] + message_ms(s, agent);
    return ms;
}

/* The same behind a stage on agent `from`, which made the fresh ones, and the older ones too unless they come apart. */
static double entry_from_ms(
    const struct search *s, int32_t from, int32_t agent, const struct parts *in, int32_t k, bool apart)
{
    double ms = in->any[k] & 4 ? input_ms(s, agent, in->input[k]) : 0;
    uint8_t mine = apart ? in->any[k] & 1 : in->any[k] & 3;
    if (input_barred(s, agent, in, k))
        return INFINITY;
    if (mine) {
        const struct pair *pair = solve_search_pair(s, from, agent);
        double bytes = COST_HEADER_BYTES + in->fresh[k] + (apart ? 0 : in->older[k]);
        if (!pair->there || bytes * pair->per_byte_ms > s->high)
            return INFINITY;
        ms += bytes * pair->per_byte_ms + pair->latency_ms + message_ms(s, agent) + message_ms(s, from);
    }
    if (apart && (in->any[k] & 2) && !has_older(s, agent))
        ms += (in->older[k] + COST_HEADER_BYTES) * s->in_per_byte[agent] + s->in_latency[agent] + message_ms(s, agent);
    return ms;
}

/* ---- groups ---- */

static const double *entries(const struct search *s, const struct grid *g, int32_t t, int32_t agent)
{
    return g->entry + ((size_t)t * (size_t)s->n_agents + (size_t)agent) * SOLVE_PARTS;
}

static void set_entries(const struct search *s, struct grid *g, int32_t t)
{
    for (int32_t k = 0; k < s->n_by_pace; k++)
        for (int32_t i = 0; i < g->parts[t].n; i++)
            g->entry[((size_t)t * (size_t)s->n_agents + (size_t)s->by_pace[k]) * SOLVE_PARTS + (size_t)i] =
                entry_ms(s, s->by_pace[k], &g->parts[t], i);
}

/* Values older than the stage before come apart if that began behind their makers. By place: the first place behind
 * where a stage that begins at it may have made them itself. */
static void find_apart(const struct search *s, struct grid *g)
{
    int32_t *made = s->last_end_at; /* by place: behind it no older value of any of its cuts was made */
    for (int32_t t = 1; t <= g->n; t++) {
        made[t] = -1;
        for (int32_t p = g->first[t]; p <= g->last[t] && p < s->n; p++) {
            const struct cut *cut = &s->cuts.at[p];
            for (int32_t k = 0; k < cut->n_values; k++) {
                const struct value *v = &s->m->graph->values[cut->values[k]];
                if (v->kind != VALUE_INPUT && v->producer != p - 1)
                    made[t] = YK_MAX(made[t], v->producer);
            }
        }
    }
    for (int32_t t = 0; t < g->n; t++) {
        int32_t e = t + 1;
        while (e <= g->n && made[e] < g->first[t])
            e++;
        g->apart[t] = e;
    }
}

static bool hardly_any(const struct search *s, int32_t p, int32_t q)
{
    for (int32_t k = 0; k < s->n_by_pace; k++) {
        int32_t a = s->by_pace[k];
        if (solve_search_ms(s, a, p, q) > BETWEEN / s->pace[a])
            return false;
    }
    return true;
}

/* The least of each kind of bytes that stops from..to - 1 need of what crosses them, for stages that reach group
 * `ends` at least. */
static void least_part(const struct search *s, int32_t from, int32_t to, int32_t end_stop, struct parts *out)
{
    int32_t at = out->n - 1;
    double all = INFINITY;
    out->fresh[at] = out->older[at] = out->input[at] = INFINITY;
    out->any[at] = 7;
    for (int32_t t = from; t < to; t++) {
        const struct parts *in = &s->fine.parts[t];
        int32_t k = 0;
        while (k + 1 < in->n && in->from[k + 1] <= end_stop)
            k++;
        uint8_t any = in->any[k];
        all = YK_MIN(all, in->fresh[k] + in->older[k]);
        out->fresh[at] = YK_MIN(out->fresh[at], in->fresh[k]);
        out->older[at] = YK_MIN(out->older[at], in->older[k]);
        out->input[at] = YK_MIN(out->input[at], in->input[k]);
        if (!(any & out->any[at] & 3) && (any & 3) && (out->any[at] & 3)) /* one fresh, one older: older for both */
            any = (any & 4) | 2, out->any[at] = (uint8_t)((out->any[at] & 4) | 2);
        out->any[at] &= any;
    }
    if (!(out->any[at] & 1)) { /* whoever made them */
        out->older[at] = out->any[at] & 2 ? all : 0;
        out->fresh[at] = 0;
    }
    if (!(out->any[at] & 4))
        out->input[at] = 0;
}

static void group_parts(const struct search *s, struct grid *g, int32_t i, int32_t from, int32_t to)
{
    struct parts *out = &g->parts[i];
    out->n = 0;
    for (int32_t next = i + 1; next <= g->n && out->n < SOLVE_PARTS;) {
        int32_t more = g->n + 1, end = s->stop_of[g->first[next]];
        out->from[out->n++] = next;
        least_part(s, from, to, end, out);
        for (int32_t t = from; t < to; t++) { /* where one of them needs more */
            const struct parts *in = &s->fine.parts[t];
            for (int32_t k = 0; k < in->n; k++)
                if (in->from[k] > end)
                    more = YK_MIN(
                        more, s->group_of[in->from[k]] + (g->first[s->group_of[in->from[k]]] < s->stop[in->from[k]]));
        }
        next = YK_MAX(more, next + 1);
    }
}

static void make_groups(struct search *s)
{
    struct grid *g = &s->groups;
    int32_t n = 0, from[2] = {0, 0};
    for (int32_t t = 0; t <= s->n_stops; t++) {
        bool begins = t < 2 || t == s->n_stops || !hardly_any(s, g->first[n - 1], s->stop[t]);
        if (begins)
            g->first[n++] = s->stop[t];
        g->last[n - 1] = s->stop[t];
        s->group_of[t] = n - 1;
    }
    g->n = n - 1;
    s->grouped = g->n < GROUPS_PAY * s->n_stops;
    for (int32_t t = 0; t < s->n_stops && s->grouped; t = from[1]) {
        from[0] = t;
        for (from[1] = t + 1; s->group_of[from[1]] == s->group_of[t];)
            from[1]++;
        group_parts(s, g, s->group_of[t], from[0], from[1]);
        set_entries(s, g, s->group_of[t]);
    }
    if (s->grouped)
        find_apart(s, g);
}

/* ---- a pass ---- */

static bool too_large(struct search *s, int32_t agent, int32_t p, int32_t q)
{
    return solve_search_never_fits(s, agent, p, q) || (s->strict && !solve_search_fits(s, agent, p, q));
}

/* The last place where a stage on the agent that begins at place t can end; `end` is that of the place behind. */
static int32_t last_end(struct search *s, const struct grid *g, int32_t agent, int32_t t, int32_t end)
{
    int32_t p = g->last[t], most = s->runs_to[(size_t)agent * ((size_t)s->n + 1) + (size_t)p];
    while (end > t && (g->first[end] > most || solve_search_ms(s, agent, p, g->first[end]) > s->high ||
                          too_large(s, agent, p, g->first[end])))
        end--;
    return end;
}

/* Of stages on the agent that begin at p: by the parts that they read, the least of their times and what follows. */
static void relax(
    const struct search *s, int32_t agent, int32_t p, int32_t apart, const struct parts *in, double *least)
{
    double at = solve_search_priced(s, agent)[p] - s->rent[agent];
    int32_t end = s->last_end[agent] + 1;
    for (int32_t k = 0; k < in->n; k++) {
        int32_t to = k + 1 < in->n ? YK_MIN(in->from[k + 1], end) : end;
        double near = least_value(s, agent, 1, in->from[k], YK_MIN(to, apart));
        double far = least_value(s, agent, 0, YK_MAX(in->from[k], apart), to);
        least[k] = YK_MIN(near, far) - at;
    }
}

static bool representative(const struct search *s, int32_t agent)
{
    return s->alike[agent] < 0;
}

/* The other of two agents of a kind, for the link between them; itself if it stands for many. */
static int32_t twin_of(const struct search *s, int32_t agent)
{
    for (int32_t a = agent + 1; a < s->n_agents; a++)
        if (s->first_alike[a] == agent)
            return a;
    return agent;
}

/* What nodes behind p take behind a stage on b, if `order` has the agents by what relaxed says of them; *apart_ms: if
 * older values come apart. */
static double find_then(const struct search *s, int32_t b, int32_t p, const struct parts *in, const int32_t *order,
    int32_t n, double least[][SOLVE_PARTS], double *apart_ms)
{
    size_t row = (size_t)s->n + 1;
    double best = INFINITY, apart = INFINITY;
    for (int32_t j = 0; j < n && s->relaxed[(size_t)order[j] * row + (size_t)p] < apart; j++) {
        int32_t a = order[j], to = a;
        if (a == b && !s->twin[a])
            continue;
        if (a == b)
            to = twin_of(s, a);
        for (int32_t i = 0; i < in->n; i++) {
            if (least[a][i] >= apart)
                continue;
            double ms = least[a][i] + entry_from_ms(s, b, to, in, i, true);
            apart = YK_MIN(apart, ms);
            best = YK_MIN(best, in->any[i] & 2 ? least[a][i] + entry_from_ms(s, b, to, in, i, false) : ms);
        }
    }
    *apart_ms = apart;
    return YK_MIN(best, apart);
}

/* Relaxed and then at the last cut of each place, with the rents as they are. */
static void relax_all(struct search *s, const struct grid *g)
{
    size_t row = (size_t)s->n + 1;
    double least[SOLVE_DP_AGENTS][SOLVE_PARTS];
    int32_t kinds[SOLVE_DP_AGENTS], order[SOLVE_DP_AGENTS], n = 0;
    for (int32_t k = 0; k < s->n_by_pace; k++)
        if (representative(s, s->by_pace[k]))
            kinds[n++] = s->by_pace[k];
    for (int32_t k = 0; k < n; k++) {
        int32_t b = kinds[k];
        bool home = s->m->req->pin_last || s->around;
        double last = home && b != s->source ? INFINITY : exit_ms(s, b, s->n - 1, s->n);
        s->last_end[b] = g->n;
        s->then[(size_t)b * row + (size_t)s->n] = last;
        for (int32_t i = 0; i < 2; i++)
            set_value(s, b, i, g->n, g->n, solve_search_priced(s, b)[s->n] + last);
    }
    for (int32_t t = g->n - 1; t >= 0; t--) {
        int32_t p = g->last[t];
        const struct parts *in = &g->parts[t];
        for (int32_t k = 0; k < n; k++) {
            int32_t a = kinds[k], place = k;
            const double *entry = entries(s, g, t, a);
            double best = INFINITY;
            s->last_end[a] = last_end(s, g, a, t, s->last_end[a]);
            relax(s, a, p, g->apart[t], in, least[a]);
            for (int32_t i = 0; i < in->n; i++)
                if (!input_barred(s, a, in, i))
                    best = YK_MIN(best, least[a][i] + entry[i]);
            s->relaxed[(size_t)a * row + (size_t)p] = best;
            for (; place > 0 && s->relaxed[(size_t)order[place - 1] * row + (size_t)p] > best; place--)
                order[place] = order[place - 1];
            order[place] = a;
        }
        for (int32_t k = 0; k < n && t > 0; k++) {
            double at = solve_search_priced(s, kinds[k])[g->first[t]], apart;
            double best = find_then(s, kinds[k], p, in, order, n, least, &apart);
            s->then[(size_t)kinds[k] * row + (size_t)p] = best;
            set_value(s, kinds[k], 0, t, g->n, at + best);
            set_value(s, kinds[k], 1, t, g->n, at + apart);
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
            best = YK_MIN(best, s->relaxed[(size_t)a * ((size_t)s->n + 1)]);
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
        const double *at = s->prefix + (size_t)a * row, *then = s->then + (size_t)a * row;
        const double *priced = solve_search_priced(s, a);
        int32_t to = a == before ? twin_of(s, a) : a, last = s->runs_to[(size_t)a * row + (size_t)p];
        double in_ms = 0;
        for (int32_t e = t + 1, i = -1; e <= g->n && g->first[e] <= last; e++) {
            double ms = at[g->first[e]] - at[p];
            if (ms > s->high || too_large(s, a, p, g->first[e]))
                break;
            if (i + 1 < in->n && e >= in->from[i + 1]) {
                i++;
                in_ms = before >= 0                 ? entry_from_ms(s, before, to, in, i, apart_before)
                        : input_barred(s, a, in, i) ? INFINITY
                                                    : entry_ms(s, a, in, i);
            }
            double rest = e < g->apart[t] ? level_of(s, a, 1, 0)[e] - priced[g->first[e]] : then[g->last[e]];
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

/* Rents for which the least sum is larger: agents that the path takes too often become dearer. */
static void raise_rents(struct search *s, const struct grid *g, int32_t rounds, double wanted_ms)
{
    int32_t uses[SOLVE_DP_AGENTS];
    double rent[SOLVE_DP_AGENTS], best = root_ms(s), now = best, toll = s->toll;
    bool tolls = s->turns[s->source] > s->weight[s->source] && s->high < INFINITY;
    memcpy(rent, s->rent, (size_t)s->n_agents * sizeof *rent);
    for (int32_t round = 0; round < rounds && now < wanted_ms; round++) {
        int32_t before = -1;
        double square = 0, over = 0;
        memset(uses, 0, sizeof uses);
        bool apart = false;
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
        for (int32_t a = 0; a < s->n_agents; a++)
            s->rent[a] = YK_MAX(s->rent[a] + (wanted_ms - now) / square * uses[a], 0.0);
        set_toll(s, s->toll + (wanted_ms - now) / square * over);
        relax_all(s, g);
        now = root_ms(s);
        if (now > best) {
            best = now;
            toll = s->toll;
            memcpy(rent, s->rent, (size_t)s->n_agents * sizeof *rent);
        }
    }
    if (now < best) {
        memcpy(s->rent, rent, (size_t)s->n_agents * sizeof *rent);
        set_toll(s, toll);
        relax_all(s, g);
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
        *sum_ms += ms + (before < 0 ? entry_ms(s, a, in, k) : entry_from_ms(s, before, a, in, k, apart));
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

void solve_search_stops(struct search *s)
{
    struct grid *g = &s->fine;
    *g = (struct grid){s->n_stops, s->stop, s->stop, g->apart, g->parts, g->entry};
    find_apart(s, g);
    s->enter_least[s->n] = INFINITY;
    for (int32_t t = s->n_stops - 1, p = s->n; t >= 0; t--) {
        struct parts in;
        double least = INFINITY;
        find_parts(s, s->stop[t], &g->parts[t]);
        set_entries(s, g, t);
        in = g->parts[t];
        in.any[0] &= 3;
        for (int32_t k = 0; k < s->n_by_pace; k++)
            least = YK_MIN(least, entry_ms(s, s->by_pace[k], &in, 0));
        least = YK_MIN(least, s->enter_least[p]);
        for (; p > s->stop[t]; p--) /* no stage begins between */
            s->enter_least[p - 1] = s->enter_least[p];
        s->enter_least[p] = least;
    }
    make_groups(s);
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
