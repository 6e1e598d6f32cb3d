#include "scheduler/solve_search.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define COARSE 12   /* cuts of the first pass */
#define SLACK 0.25  /* chains that cost so much more than the best are not kept beside it */
#define NEAR 4      /* chains around whose cuts finer ones are looked at */
#define STEP 0.01   /* how far bottlenecks are apart whose bounds are made, if they tell enough */
#define CLOSE 0.005 /* if they tell less */
#define LEAF 0.01   /* then bottlenecks so near are searched together */
#define ROUGH 0.02  /* all of that in a pass that only looks for good chains */

/* ---- labels ---- */

static double *loads_of(const struct search *s, int32_t label)
{
    return s->loads + (size_t)label * (size_t)s->n_grow;
}

static int8_t *owners_of(const struct search *s, int32_t label)
{
    return s->owners + (size_t)label * (size_t)s->max_live;
}

static int8_t *keys_of(const struct search *s, int32_t label)
{
    return s->keys + (size_t)label * (size_t)s->max_live;
}

static int32_t new_label(struct search *s)
{
    if (s->n_labels == s->cap_labels) {
        s->cap_labels = s->cap_labels ? 2 * s->cap_labels : 1024;
        size_t cap = (size_t)s->cap_labels;
        s->labels = yk_xrealloc(s->labels, cap * sizeof *s->labels);
        s->loads = yk_xrealloc(s->loads, (cap * (size_t)s->n_grow + 1) * sizeof *s->loads);
        s->owners = yk_xrealloc(s->owners, cap * (size_t)s->max_live);
        s->keys = yk_xrealloc(s->keys, cap * (size_t)s->max_live);
    }
    return s->n_labels++;
}

/* Sum and loads of a label that is being made. */
struct tally {
    double sum, top;
    double *loads; /* of what grows */
};

static void add_load(const struct search *s, struct tally *t, int32_t resource, double ms)
{
    int32_t place = s->grows[resource];
    double load = place >= 0 ? t->loads[place] += ms : ms;
    t->top = YK_MAX(t->top, load);
}

/* One end of a message. */
static void message(const struct search *s, struct tally *t, int32_t agent)
{
    double ms = agent >= 0 ? s->m->view->agents[agent].message_ms : 0;
    if (ms > 0) {
        t->sum += ms;
        add_load(s, t, agent, ms);
    }
}

/* Adds an edge of bytes, on a link that takes before_ms in this step already; false if there is no link. */
static bool transfer(
    const struct search *s, struct tally *t, int32_t from, int32_t to, int64_t bytes, double *before_ms)
{
    if (from == to)
        return true;
    const struct pair *pair = solve_search_pair(s, from, to);
    if (!pair->there)
        return false;
    double busy = (double)(bytes + COST_HEADER_BYTES) * pair->per_byte_ms;
    t->sum += busy + pair->latency_ms;
    add_load(s, t, pair->resource, busy + (s->grows[pair->resource] < 0 ? *before_ms : 0));
    *before_ms += busy;
    message(s, t, from);
    message(s, t, to);
    return true;
}

/* What a stage on the agent that takes the first n_live values of the cut gets from each owner. */
static bool take_inputs(struct search *s, int32_t from, int32_t agent, int32_t n_live, struct tally *t)
{
    const struct label *l = &s->labels[from];
    const struct cut *cut = &s->cuts.at[l->pos];
    const struct live *live = s->live + s->live_at[l->pos];
    const int8_t *owner = owners_of(s, from);
    int64_t bytes[SOLVE_DP_AGENTS + 1];
    uint32_t any = 0;
    double on_source = 0, on_other;
    t->sum = l->sum;
    t->top = l->top;
    if (s->n_grow)
        memcpy(t->loads, loads_of(s, from), (size_t)s->n_grow * sizeof *t->loads);
    for (int32_t k = 0; k < n_live; k++) {
        int32_t o = owner[live[k].k] + 1;
        bytes[o] = (any >> o & 1 ? bytes[o] : 0) + s->bytes[cut->values[live[k].k]];
        any |= 1u << o;
    }
    for (int32_t o = 0; any >> o; o++) {
        int32_t a = o == 0 ? s->source : o - 1;
        on_other = 0;
        if ((any >> o & 1) && !transfer(s, t, a, agent, bytes[o], a == s->source ? &on_source : &on_other))
            return false;
    }
    return true;
}

/* ---- dominance ---- */

/* Owners by name: agents from which everything costs the same for every reader are told apart only as far as they own
 * different values. */
static void set_owners(struct search *s, int32_t from, int32_t label)
{
    const struct label *l = &s->labels[label];
    int32_t p = s->labels[from].pos;
    const struct cut *before = &s->cuts.at[p], *after = &s->cuts.at[l->pos];
    const int8_t *old = owners_of(s, from);
    int8_t *owner = owners_of(s, label), *key = keys_of(s, label);
    int8_t name[SOLVE_DP_AGENTS];
    uint32_t named = 0, taken = 0;
    for (int32_t k = 0, b = 0; k < after->n_values; k++) {
        while (b < before->n_values && before->values[b] < after->values[k])
            b++;
        bool known = b < before->n_values && before->values[b] == after->values[k];
        int32_t o = known ? old[b] : l->agent;
        owner[k] = key[k] = (int8_t)o;
        if (o < 0)
            continue;
        if (!(named >> o & 1)) {
            int32_t as = s->speaks[o];
            while (s->speaks[as] != s->speaks[o] || (taken >> as & 1))
                as++;
            name[o] = (int8_t)as;
            named |= 1u << o;
            taken |= 1u << as;
        }
        key[k] = name[o];
    }
}

/* For labels of one state: of a load that cannot grow only the largest counts. */
static bool no_worse(const struct search *s, int32_t a, int32_t b)
{
    const struct label *x = &s->labels[a], *y = &s->labels[b];
    if (x->sum > y->sum)
        return false;
    if (s->m->count <= 1)
        return true;
    if (x->top > y->top && x->top > s->low)
        return false;
    if (!s->n_grow)
        return true;
    const double *u = loads_of(s, a), *v = loads_of(s, b);
    for (int32_t i = 0; i < s->n_grow; i++)
        if (!s->grow_agent[i] && u[i] > v[i])
            return false;
    const int8_t *own = owners_of(s, a), *owned = owners_of(s, b);
    for (int32_t k = 0; k < s->cuts.at[x->pos].n_values; k++) { /* they will send */
        int32_t i = own[k] < 0 ? -1 : s->grows[own[k]];
        if (i >= 0 && u[i] > v[s->grows[owned[k]]])
            return false;
    }
    return true;
}

static uint32_t hash_of(const struct search *s, int32_t label)
{
    const struct label *l = &s->labels[label];
    const int8_t *key = keys_of(s, label);
    uint32_t h = (uint32_t)l->pos * 2654435761u ^ l->used * 2246822519u;
    for (int32_t k = 0; k < s->cuts.at[l->pos].n_values; k++)
        h = (h ^ (uint8_t)key[k]) * 16777619u;
    return h ^ h >> 15;
}

static bool same_state(const struct search *s, int32_t a, int32_t b)
{
    const struct label *x = &s->labels[a], *y = &s->labels[b];
    return x->pos == y->pos && x->used == y->used &&
           memcmp(keys_of(s, a), keys_of(s, b), (size_t)s->cuts.at[x->pos].n_values) == 0;
}

static int32_t *find_state(struct search *s, int32_t label)
{
    uint32_t slot = hash_of(s, label) & (uint32_t)(s->state_slots - 1);
    while (s->state[slot] >= 0 && !same_state(s, s->state[slot], label))
        slot = (slot + 1) & (uint32_t)(s->state_slots - 1);
    return &s->state[slot];
}

static void grow_states(struct search *s)
{
    int32_t *old = s->state, n = s->state_slots;
    s->state_slots = n ? 4 * n : 4096;
    s->state = yk_xalloc((size_t)s->state_slots * sizeof *s->state);
    memset(s->state, 0xff, (size_t)s->state_slots * sizeof *s->state);
    for (int32_t i = 0; i < n; i++)
        if (old[i] >= 0)
            *find_state(s, old[i]) = old[i];
    free(old);
}

/* Keeps the newest label if nobody of its state makes it useless; drops those that it makes useless. */
static bool keep(struct search *s, int32_t label)
{
    struct label *l = &s->labels[label];
    int32_t *first = find_state(s, label), *link = first;
    while (*link >= 0) {
        struct label *o = &s->labels[*link];
        s->effort++;
        if (no_worse(s, *link, label))
            return false;
        if (no_worse(s, label, *link)) {
            o->dead = true;
            *link = o->next;
        } else {
            link = &o->next;
        }
    }
    s->n_states += *first < 0;
    l->next = *first;
    *first = label;
    l->next_at = s->head[l->pos];
    s->head[l->pos] = label;
    if (s->n_states > s->state_slots / 2)
        grow_states(s);
    return true;
}

/* ---- the search ---- */

static double cost_of(const struct search *s, double sum, double top)
{
    return sum + (double)(s->m->count - 1) * top;
}

static void record(struct search *s, int32_t from, int32_t agent, double cost)
{
    struct solve_chain c = {.source = s->source, .n_stages = s->labels[from].stages + 1, .cost_ms = cost};
    c.agent[c.n_stages - 1] = agent;
    c.end[c.n_stages - 1] = s->n;
    for (int32_t k = from, i = c.n_stages - 2; i >= 0; i--, k = s->labels[k].parent) {
        c.agent[i] = s->labels[k].agent;
        c.end[i] = s->labels[k].pos;
    }
    for (int32_t i = 0; i < s->n_best; i++) { /* found by an earlier pass */
        const struct solve_chain *b = &s->best[i];
        if (b->n_stages == c.n_stages && memcmp(b->agent, c.agent, (size_t)c.n_stages * sizeof c.agent[0]) == 0 &&
            memcmp(b->end, c.end, (size_t)c.n_stages * sizeof c.end[0]) == 0)
            return;
    }
    int32_t at = s->n_best < s->most ? s->n_best++ : s->most - 1;
    for (; at > 0 && s->best[at - 1].cost_ms > c.cost_ms; at--)
        s->best[at] = s->best[at - 1];
    s->best[at] = c;
    s->limit = YK_MIN(s->limit, s->best[0].cost_ms);
}

static bool of_interest(const struct search *s, double cost)
{
    if (s->n_best == 0)
        return cost < s->limit;
    return cost < s->best[0].cost_ms * (1 + SLACK) && (s->n_best < s->most || cost < s->best[s->most - 1].cost_ms);
}

static void extend(struct search *s, int32_t from, int32_t agent)
{
    const struct label l = s->labels[from];
    const struct solve_request *req = s->m->req;
    const struct live *live = s->live + s->live_at[l.pos];
    uint32_t used = l.used | 1u << agent;
    int32_t n_live = s->cuts.at[l.pos].n_values, taken = -1;
    int32_t end = s->runs_to[(size_t)agent * ((size_t)s->n + 1) + (size_t)l.pos];
    struct tally in = {.loads = s->inbound};
    struct bound_row row = solve_search_row(s, used);
    const double *then = s->then + (size_t)s->first_alike[agent] * ((size_t)s->n + 1);
    if (l.pos == 0 && req->pin_first && agent != s->source)
        return;
    for (int32_t e = solve_search_earliest(s, &row, s->stop_of[l.pos] + 1); e <= s->n_stops && s->effort < SOLVE_EFFORT;
         e++) {
        int32_t q = s->stop[e];
        if (q > end || solve_search_never_fits(s, agent, l.pos, q))
            return;
        if (taken < 0 || (taken < n_live && live[taken].use < q)) {
            for (taken = YK_MAX(taken, 0); taken < n_live && live[taken].use < q;)
                taken++;
            if (!take_inputs(s, from, agent, taken, &in) || in.top > s->high)
                return;
        }
        double ms = solve_search_ms(s, agent, l.pos, q);
        if (ms > s->high)
            return;
        s->effort++;
        if (cost_of(s, in.sum + ms + then[q] - row.rents, YK_MAX(YK_MAX(in.top, ms), s->low)) * (1 - 1e-11) >=
            s->limit * (s->n_best ? 1 + SLACK : 1))
            continue;
        if (q == s->n && req->pin_last && agent != s->source)
            continue;
        struct tally t = {.sum = in.sum + ms, .top = in.top, .loads = s->loaded};
        double none = 0;
        s->effort++;
        if (s->n_grow)
            memcpy(t.loads, in.loads, (size_t)s->n_grow * sizeof *t.loads);
        add_load(s, &t, agent, ms);
        if (s->returns[q] != s->returns[l.pos] &&
            !transfer(s, &t, agent, s->source, s->back[q] - s->back[l.pos], &none))
            return;
        if (t.top > s->high)
            return;
        if (q == s->n) {
            double cost = cost_of(s, t.sum, t.top);
            if (of_interest(s, cost) && solve_search_fits(s, agent, l.pos, q))
                record(s, from, agent, cost);
            continue;
        }
        double rest = solve_search_rest(s, &row, q);
        double top = YK_MAX(YK_MAX(t.top, s->work[q] * row.top_factor), s->low);
        if (cost_of(s, t.sum + rest, top) >= s->limit || !solve_search_fits(s, agent, l.pos, q))
            continue;
        int32_t label = new_label(s);
        s->labels[label] = (struct label){.parent = from,
            .next = -1,
            .next_at = -1,
            .pos = q,
            .agent = agent,
            .stages = l.stages + 1,
            .used = used,
            .sum = t.sum,
            .top = t.top};
        if (s->n_grow)
            memcpy(loads_of(s, label), t.loads, (size_t)s->n_grow * sizeof *t.loads);
        set_owners(s, from, label);
        if (!keep(s, label))
            s->n_labels--;
    }
}

static void make_root(struct search *s)
{
    int32_t root = new_label(s);
    struct tally t = {.loads = loads_of(s, root)};
    for (int32_t i = 0; i < s->n_grow; i++)
        t.loads[i] = 0;
    memset(owners_of(s, root), 0xff, (size_t)s->max_live);
    message(s, &t, s->source);
    if (s->m->req->source < 0 && solve_search_pair(s, -1, s->source)->there) {
        int64_t bytes = 0;
        double none = 0;
        for (int32_t i = 0; i < s->m->graph->n_inputs; i++)
            bytes += cost_value_bytes(s->m, s->m->graph->inputs[i], CODEC_FP32);
        transfer(s, &t, -1, s->source, bytes, &none);
    }
    s->labels[root] = (struct label){.parent = -1, .next = -1, .next_at = -1, .agent = -1, .sum = t.sum, .top = t.top};
}

static double label_bound(struct search *s, int32_t label)
{
    const struct label *l = &s->labels[label];
    struct bound_row row = solve_search_row(s, l->used);
    double top = YK_MAX(YK_MAX(l->top, s->work[l->pos] * row.top_factor), s->low);
    return cost_of(s, l->sum + solve_search_rest(s, &row, l->pos), top);
}

/* All chains whose bottleneck is in the interval and that may cost less than the limit; the bounds are made. */
static void run_interval(struct search *s, double low)
{
    s->low = low;
    s->n_labels = s->n_states = 0;
    for (int32_t i = 0; i <= s->n; i++)
        s->head[i] = -1;
    if (!s->state)
        grow_states(s);
    memset(s->state, 0xff, (size_t)s->state_slots * sizeof *s->state);
    make_root(s);
    s->head[0] = 0;
    for (int32_t t = 0; t < s->n_stops; t++)
        for (int32_t k = s->head[s->stop[t]]; k >= 0 && s->effort < SOLVE_EFFORT; k = s->labels[k].next_at) {
            if (s->labels[k].dead || label_bound(s, k) >= s->limit)
                continue;
            if (cost_out_of_time(s->m))
                s->effort = SOLVE_EFFORT;
            for (int32_t a = 0; a < s->n_agents; a++)
                if (!(s->labels[k].used >> a & 1) && s->pace[a] > 0 &&
                    (s->alike[a] < 0 || (s->labels[k].used >> s->alike[a] & 1)))
                    extend(s, k, a);
        }
}

/* All nodes at least, for bottlenecks up to high; wanted_ms is enough. */
static double bound_of(struct search *s, double high, double wanted_ms)
{
    struct bound_row row;
    solve_search_bound(s, high, wanted_ms);
    row = solve_search_row(s, 0);
    return s->labels[0].sum + solve_search_rest(s, &row, 0);
}

/* Searches where the bounds promise most. */
static void search_best(struct search *s, double low, double high)
{
    double rate = (double)(s->m->count - 1), best = INFINITY, at = high;
    for (double top = high; top > low;) {
        double sum = bound_of(s, top, 0);
        if (sum + rate * top < best) {
            best = sum + rate * top;
            at = top;
        }
        if (sum + rate * low >= s->limit)
            break;
        top = YK_MIN(top, (s->limit - sum) / rate) * (1 - STEP);
    }
    if (best == INFINITY)
        return;
    bound_of(s, YK_MIN(at * (1 + ROUGH), high), 0);
    solve_search_bound_labels(s);
    run_interval(s, YK_MAX(at * (1 - 2 * ROUGH), low));
}

/* From the largest bottleneck that may pay down to low. The bound of one says how far the next can be away: chains with
 * bottlenecks between cost too much. */
static void search_down(struct search *s, double low, double high)
{
    double rate = (double)(s->m->count - 1), least = 0, limit = s->limit;
    int32_t found = s->n_best;
    if (isinf(high)) { /* nothing is known to be possible */
        least = bound_of(s, high, 0) + rate * low;
        solve_search_bound_labels(s);
        run_interval(s, low);
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
        run_interval(s, rate > 0 ? next : 0);
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
    make_root(s);
    solve_search_bound(s, INFINITY, 0);
    struct bound_row row = solve_search_row(s, 0);
    double sum = s->labels[0].sum + solve_search_rest(s, &row, 0), high = INFINITY;
    double top = YK_MAX(s->work[0] * row.top_factor, s->labels[0].top);
    double least = cost_of(s, sum, top);
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
    s->limit = limit_ms * (1 + SLACK);
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

yk_err solve_dp_chains(const struct cost_model *m, int32_t source, double limit_ms, double *bound_ms,
    struct solve_chain *best, int32_t most, int32_t *n, struct yk_diag *why)
{
    struct search s = {.m = m, .source = source, .n = m->graph->n_nodes, .limit = limit_ms, .best = best, .most = most};
    s.n_agents = m->view->n_agents;
    *n = 0;
    if (s.n_agents > SOLVE_DP_AGENTS)
        return yk_fail(why, YK_LIMIT, "%d agents; the exact solver takes %d", s.n_agents, SOLVE_DP_AGENTS);
    if (s.n == 0)
        return yk_fail(why, YK_INVAL, "the graph has no nodes to place");
    yk_err err = solve_search_index(&s, why);
    if (!err) {
        s.left = 0;
        if (!run_passes(&s, limit_ms) || s.left == 0) { /* of the cuts that were left out only the work is known */
            double all = 0;
            for (int32_t k = 0; k < s.n_by_pace; k++)
                all += s.pace[s.by_pace[k]];
            s.left = all > 0 ? cost_of(&s, s.work[0] / s.pace[s.by_pace[0]], s.work[0] / all) * (1 - 1e-9) : INFINITY;
        }
        *n = s.n_best;
        if (bound_ms)
            *bound_ms = YK_MIN(YK_MIN(s.left, limit_ms), s.n_best ? s.best[0].cost_ms : INFINITY);
    }
    solve_search_fini(&s);
    return err;
}
