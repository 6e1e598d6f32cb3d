/* Where stages may begin and end in a pass, and what crosses there: all cuts of the pass, and groups of cuts with
 * hardly any work between them, each with the least that crosses one of them. Values of which it is not known who made
 * them come over the best link into their reader. */
#include "scheduler/solve_search.h"

#include <math.h>
#include <string.h>

#define BETWEEN 5e-5   /* of an agent's time of all nodes: as much may be within a group */
#define GROUPS_PAY 0.7 /* if there are so many less than cuts */

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

/* ---- what it costs to get in ---- */

double solve_search_input_ms(const struct search *s, int32_t agent, double bytes)
{
    const struct pair *pair = solve_search_pair(s, s->source, agent);
    if (agent == s->source)
        return 0;
    if (!pair->there)
        return INFINITY;
    return (bytes + COST_HEADER_BYTES) * pair->per_byte_ms + pair->latency_ms + solve_search_message_ms(s, agent) +
           solve_search_message_ms(s, s->source);
}

bool solve_search_barred(const struct search *s, int32_t agent, const struct parts *in, int32_t k)
{
    return (in->any[k] & 4) && agent != s->source &&
           (in->input[k] + COST_HEADER_BYTES) * solve_search_pair(s, s->source, agent)->per_byte_ms > s->high;
}

double solve_search_entry_ms(const struct search *s, int32_t agent, const struct parts *in, int32_t k)
{
    double ms = in->any[k] & 4 ? solve_search_input_ms(s, agent, in->input[k]) : 0;
    bool there = solve_search_has_older(s, agent);
    if (in->any[k] & (there ? 1 : 3))
        ms += (in->fresh[k] + (there ? 0 : in->older[k]) + COST_HEADER_BYTES) * s->in_per_byte[agent] +
              s->in_latency[agent] + solve_search_message_ms(s, agent);
    return ms;
}

double solve_search_older_ms(const struct search *s, int32_t agent, const struct parts *in, int32_t k)
{
    if (!(in->any[k] & 2) || solve_search_has_older(s, agent))
        return 0;
    return (in->older[k] + COST_HEADER_BYTES) * s->in_per_byte[agent] + s->in_latency[agent] +
           solve_search_message_ms(s, agent);
}

double solve_search_entry_from_ms(
    const struct search *s, int32_t from, int32_t agent, const struct parts *in, int32_t k, bool apart)
{
    double ms = in->any[k] & 4 ? solve_search_input_ms(s, agent, in->input[k]) : 0;
    int32_t way = s->way_of[(size_t)from * (size_t)s->n_agents + (size_t)agent];
    if (solve_search_barred(s, agent, in, k))
        return INFINITY;
    ms += solve_search_way_ms(s, solve_search_ways(s, agent) + way, in, k, apart);
    return apart ? ms + solve_search_older_ms(s, agent, in, k) : ms;
}

/* Ways into each agent that cost the same are one. */
static void find_ways(struct search *s)
{
    for (int32_t to = 0; to < s->n_agents; to++) {
        struct way *ways = s->ways + (size_t)to * (size_t)s->n_agents;
        int32_t n = 0;
        for (int32_t from = 0; from < s->n_agents; from++) {
            const struct pair *pair = solve_search_pair(s, from, to);
            struct way w = {pair->per_byte_ms, pair->latency_ms};
            int32_t k = 0;
            w.fixed_ms += solve_search_message_ms(s, to) + solve_search_message_ms(s, from);
            if (!pair->there)
                w = (struct way){INFINITY, INFINITY};
            while (k < n && (ways[k].per_byte_ms != w.per_byte_ms || ways[k].fixed_ms != w.fixed_ms))
                k++;
            ways[k] = w;
            n += k == n;
            s->way_of[(size_t)from * (size_t)s->n_agents + (size_t)to] = k;
        }
    }
}

/* ---- groups ---- */

static void set_entries(const struct search *s, struct grid *g, int32_t t)
{
    for (int32_t k = 0; k < s->n_by_pace; k++)
        for (int32_t i = 0; i < g->parts[t].n; i++)
            g->entry[((size_t)t * (size_t)s->n_agents + (size_t)s->by_pace[k]) * SOLVE_PARTS + (size_t)i] =
                solve_search_entry_ms(s, s->by_pace[k], &g->parts[t], i);
}

/* Values older than the stage before come apart if that began behind their makers. By place: the first place behind
 * where a stage that begins at it may have made them itself. */
static void find_apart(const struct search *s, struct grid *g)
{
    int32_t *made = s->made_at; /* by place: behind it no older value of any of its cuts was made */
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

void solve_search_stops(struct search *s)
{
    struct grid *g = &s->fine;
    find_ways(s);
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
            least = YK_MIN(least, solve_search_entry_ms(s, s->by_pace[k], &in, 0));
        least = YK_MIN(least, s->enter_least[p]);
        for (; p > s->stop[t]; p--) /* no stage begins between */
            s->enter_least[p - 1] = s->enter_least[p];
        s->enter_least[p] = least;
    }
    make_groups(s);
}
