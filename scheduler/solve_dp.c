/* The search of the exact solver for one interval of bottlenecks: labels, which of them are no worse than others, and
 * how they grow. */
#include "scheduler/solve_search.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

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
    if (x->sum > y->sum || x->held > y->held || x->cloud > y->cloud)
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

/* ---- the queue ---- */

static bool sooner(struct waiting a, struct waiting b)
{
    return a.key < b.key || (a.key <= b.key && a.label > b.label);
}

/* The label that promises most comes first; where compute on the cloud counts, not the cost, that of the least place.
 */
static void push(struct search *s, int32_t label)
{
    struct waiting w = {s->thrift ? s->labels[label].pos : s->labels[label].least, label};
    if (s->n_queue == s->cap_queue) {
        s->cap_queue = s->cap_queue ? 2 * s->cap_queue : 1024;
        s->queue = yk_xrealloc(s->queue, (size_t)s->cap_queue * sizeof *s->queue);
    }
    int32_t at = s->n_queue++;
    for (; at > 0 && sooner(w, s->queue[(at - 1) / 2]); at = (at - 1) / 2)
        s->queue[at] = s->queue[(at - 1) / 2];
    s->queue[at] = w;
}

static int32_t pop(struct search *s)
{
    struct waiting first = s->queue[0], last = s->queue[--s->n_queue];
    int32_t at = 0;
    for (int32_t next; (next = 2 * at + 1) < s->n_queue; at = next) {
        next += next + 1 < s->n_queue && sooner(s->queue[next + 1], s->queue[next]);
        if (!sooner(s->queue[next], last))
            break;
        s->queue[at] = s->queue[next];
    }
    s->queue[at] = last;
    return first.label;
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
    push(s, label);
    if (s->n_states > s->state_slots / 2)
        grow_states(s);
    return true;
}

/* ---- the search ---- */

void solve_dp_trail_add(struct solve_trail *t, const struct solve_chain *c)
{
    if (c->cost_ms >= t->least_ms * (1 - SOLVE_TRAIL_STEP))
        return;
    t->at = yk_xrealloc(t->at, ((size_t)t->n + 1) * sizeof *t->at);
    t->at[t->n++] = *c;
    t->least_ms = c->cost_ms;
}

bool solve_dp_same(const struct solve_chain *a, const struct solve_chain *b)
{
    size_t n = (size_t)a->n_stages;
    return a->n_stages == b->n_stages && a->source == b->source &&
           memcmp(a->agent, b->agent, n * sizeof a->agent[0]) == 0 && memcmp(a->end, b->end, n * sizeof a->end[0]) == 0;
}

/* Thrift: sums of the same stages differ by their order. */
static bool less_cloud(double a, double b)
{
    return a < b * (1 - 1e-12);
}

static bool better(const struct search *s, const struct solve_chain *a, const struct solve_chain *b)
{
    if (s->thrift && (less_cloud(a->cloud_ms, b->cloud_ms) || less_cloud(b->cloud_ms, a->cloud_ms)))
        return a->cloud_ms < b->cloud_ms;
    return a->cost_ms < b->cost_ms;
}

static void record(struct search *s, int32_t from, int32_t agent, double cost, double cloud)
{
    struct solve_chain c = {.source = s->source, .n_stages = s->labels[from].stages + 1, .cost_ms = cost};
    c.cloud_ms = cloud;
    c.agent[c.n_stages - 1] = agent;
    c.end[c.n_stages - 1] = s->n;
    for (int32_t k = from, i = c.n_stages - 2; i >= 0; i--, k = s->labels[k].parent) {
        c.agent[i] = s->labels[k].agent;
        c.end[i] = s->labels[k].pos;
    }
    for (int32_t i = 0; i < s->n_best; i++) /* found by an earlier pass */
        if (solve_dp_same(&s->best[i], &c))
            return;
    if (s->trail)
        solve_dp_trail_add(s->trail, &c);
    int32_t at = s->n_best < s->most ? s->n_best++ : s->most - 1;
    for (; at > 0 && better(s, &c, &s->best[at - 1]); at--)
        s->best[at] = s->best[at - 1];
    s->best[at] = c;
    if (!s->thrift)
        s->limit = YK_MIN(s->limit, s->best[0].cost_ms);
}

/* Thrift: what is taken of the cloud at least, if a completion of this sum and top at least, of which nodes pos.. are
 * still to be placed, is in time. INFINITY: none is. */
static double cloud_least(const struct search *s, double sum, double top, int32_t pos, double cloud)
{
    double left = s->limit - solve_search_cost(s, sum, YK_MAX(top, s->low)), rest = 0;
    if (left < 0)
        return INFINITY;
    for (int k = 0; k < SOLVE_PRICES; k++)
        rest = YK_MAX(rest, s->paid[(size_t)k * ((size_t)s->n + 1) + (size_t)pos] - solve_prices[k] * left);
    return cloud + rest * (1 - 1e-12);
}

/* Thrift: no completion is better than what is known. cost: of all of it, at least. */
static bool too_dear(const struct search *s, double sum, double top, int32_t pos, double cloud, double cost)
{
    if (!s->thrift)
        return false;
    double least = cloud_least(s, sum, top, pos, cloud);
    if (isinf(least) || s->n_best == 0)
        return isinf(least);
    double known = s->best[0].cloud_ms;
    return less_cloud(known, least) || (!less_cloud(least, known) && cost >= s->best[0].cost_ms);
}

static bool of_interest(const struct search *s, double cost, double cloud)
{
    if (s->thrift) {
        struct solve_chain c = {.cost_ms = cost, .cloud_ms = cloud};
        return cost <= s->limit && (s->n_best < s->most || better(s, &c, &s->best[s->most - 1]));
    }
    if (s->n_best == 0)
        return cost < s->limit;
    return cost < s->best[0].cost_ms * (1 + SOLVE_SLACK) &&
           (s->n_best < s->most || cost < s->best[s->most - 1].cost_ms);
}

/* What the source takes already of what it may. */
static double source_load(const struct search *s, const double *loads)
{
    return s->around && s->m->count > 1 ? loads[s->grows[s->source]] : 0;
}

/* The largest load of any completion, at least. */
static double top_of(const struct search *s, const struct bound_row *row, int32_t pos, double top, double load_ms)
{
    double work = s->work[pos] + load_ms * s->pace[s->source];
    return YK_MAX(YK_MAX(top, work * row->top_factor), s->low);
}

/* The last stage of a chain that began on the source. */
static void extend_home(struct search *s, int32_t from)
{
    const struct label l = s->labels[from];
    size_t row = (size_t)s->source * ((size_t)s->n + 1);
    struct tally in = {.loads = s->inbound};
    double ms = solve_search_ms(s, s->source, l.pos, s->n), cost;
    if (l.agent == s->source || s->runs_to[row + (size_t)l.pos] < s->n || ms > s->high ||
        !take_inputs(s, from, s->source, s->cuts.at[l.pos].n_values, &in))
        return;
    s->effort++;
    in.sum += ms;
    add_load(s, &in, s->source, ms);
    cost = solve_search_cost(s, in.sum, in.top);
    double cloud = l.cloud + (s->thrift && solve_search_is_cloud(s, s->source) ? ms : 0);
    if (in.top > s->high * (1 + 1e-9) || !of_interest(s, cost, cloud))
        return;
    int32_t first = from;
    while (s->labels[first].stages > 1)
        first = s->labels[first].parent;
    if (solve_search_fits(s, s->source, l.pos, s->n) &&
        solve_search_fits_both(s, l.held, 0, s->labels[first].pos, l.pos))
        record(s, from, s->source, cost, cloud);
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
    double paid = 0; /* back: rents, and of the toll what the source may still take */
    const struct bound_row *row = solve_search_row(s, used);
    const struct relaxation *r = &s->now;
    size_t kind = (size_t)s->first_alike[agent], begin = (size_t)s->stop_of[l.pos];
    const double *then = r->then + kind * ((size_t)s->n + 1), *ends = r->ends + 2 * kind * ((size_t)s->n + 1);
    const double *blocks = r->blocks + 2 * kind * ((size_t)s->n / SOLVE_BLOCK + 1);
    int32_t last = r->last_end[kind * ((size_t)s->n + 1) + begin];
    double most = INFINITY; /* an end that leads to as much cannot pay */
    bool both = req->pin_first && req->pin_last, on_cloud = s->thrift && solve_search_is_cloud(s, agent);
    if (l.pos == 0 && (req->pin_first || s->around) && agent != s->source)
        return;
    for (int32_t e = YK_MAX(row->earliest, (int32_t)begin + 1); e <= last && s->effort < SOLVE_EFFORT; e++) {
        if (e < s->n_stops && ends[e] >= most) {
            if (e % SOLVE_BLOCK == 0 && e + SOLVE_BLOCK <= s->n_stops && blocks[e / SOLVE_BLOCK] >= most)
                e += SOLVE_BLOCK - 1;
            continue;
        }
        int32_t q = s->stop[e];
        if (q > end || solve_search_never_fits(s, agent, l.pos, q))
            return;
        if (taken < 0 || (taken < n_live && live[taken].use < q)) {
            for (taken = YK_MAX(taken, 0); taken < n_live && live[taken].use < q;)
                taken++;
            if (!take_inputs(s, from, agent, taken, &in) || in.top > s->high)
                return;
            paid = row->rents + s->toll * (1 - source_load(s, in.loads) / s->high);
            most = s->limit * (1 + 1e-11) - (double)(s->m->count - 1) * YK_MAX(in.top, s->low) - in.sum;
            most += paid + solve_search_priced(s, agent)[l.pos];
        }
        double ms = solve_search_ms(s, agent, l.pos, q);
        if (ms > s->high)
            return;
        s->effort++;
        double back = paid - (agent == s->source && s->toll > 0 ? s->toll * ms / s->high : 0);
        double least = solve_search_cost(s, in.sum + ms + then[q] - back, YK_MAX(YK_MAX(in.top, ms), s->low));
        least *= 1 - 1e-11;
        if (least >= s->limit * (q == s->n && s->n_best && !s->thrift ? 1 + SOLVE_SLACK : 1))
            continue;
        if (q == s->n ? s->around || (req->pin_last && agent != s->source) : both && !s->around)
            continue;
        double cloud = l.cloud + (on_cloud ? ms : 0);
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
            double cost = solve_search_cost(s, t.sum, t.top);
            if (of_interest(s, cost, cloud) && solve_search_fits(s, agent, l.pos, q))
                record(s, from, agent, cost, cloud);
            continue;
        }
        double load = source_load(s, t.loads), top = top_of(s, row, q, t.top, load);
        least = YK_MAX(least, solve_search_cost(s, t.sum + solve_search_rest(s, row, e, load), top));
        if (least >= s->limit * (s->thrift ? 1 + 1e-12 : 1) || top > s->high * (1 + 1e-9) ||
            too_dear(s, t.sum, top, q, cloud, least) || !solve_search_fits(s, agent, l.pos, q))
            continue;
        int32_t label = new_label(s);
        s->labels[label] = (struct label){.parent = from,
            .next = -1,
            .pos = q,
            .agent = agent,
            .stages = l.stages + 1,
            .used = used,
            .held = !s->around   ? 0
                    : l.pos == 0 ? solve_search_held(s, 0, q, q)
                                 : l.held,
            .cloud = cloud,
            .sum = t.sum,
            .top = t.top,
            .least = least};
        if (s->n_grow)
            memcpy(loads_of(s, label), t.loads, (size_t)s->n_grow * sizeof *t.loads);
        set_owners(s, from, label);
        if (!keep(s, label))
            s->n_labels--;
    }
}

/* By every agent that may come next and promises enough. */
static void extend_all(struct search *s, int32_t from)
{
    const struct label l = s->labels[from];
    double paid = solve_search_row(s, l.used)->rents + s->toll * (1 - source_load(s, loads_of(s, from)) / s->high);
    double most = s->limit * (1 + 1e-11) - (double)(s->m->count - 1) * YK_MAX(l.top, s->low) - l.sum + paid;
    for (int32_t a = 0; a < s->n_agents; a++) {
        const double *relaxed = s->now.relaxed + (size_t)s->first_alike[a] * ((size_t)s->n + 1);
        if (!(l.used >> a & 1) && s->pace[a] > 0 && (s->alike[a] < 0 || (l.used >> s->alike[a] & 1)) &&
            relaxed[l.pos] < most)
            extend(s, from, a);
    }
}

void solve_search_root(struct search *s)
{
    int32_t root = new_label(s);
    struct tally t = {.loads = loads_of(s, root)};
    for (int32_t i = 0; i < s->n_grow; i++)
        t.loads[i] = 0;
    memset(owners_of(s, root), 0xff, (size_t)s->max_live);
    message(s, &t, s->source);
    struct cost_edge e;
    if (cost_upload(s->m, s->source, &e)) {
        t.sum += e.busy_ms + e.latency_ms;
        add_load(s, &t, e.resource, e.busy_ms);
        message(s, &t, s->source);
    }
    if (cost_answer(s->m, s->source, &e)) {
        t.sum += e.busy_ms + e.latency_ms;
        add_load(s, &t, e.resource, e.busy_ms);
    }
    s->labels[root] = (struct label){.parent = -1, .next = -1, .agent = -1, .sum = t.sum, .top = t.top};
}

/* All chains whose bottleneck is in the interval and that may cost less than the limit; the bounds are made. */
void solve_search_interval(struct search *s, double low)
{
    s->low = low;
    s->n_labels = s->n_states = s->n_queue = 0;
    if (!s->state)
        grow_states(s);
    memset(s->state, 0xff, (size_t)s->state_slots * sizeof *s->state);
    solve_search_root(s);
    push(s, 0);
    while (s->n_queue > 0 && s->effort < SOLVE_EFFORT) {
        int32_t k = pop(s);
        const struct label *l = &s->labels[k];
        if (l->dead || l->least >= s->limit * (s->thrift ? 1 + 1e-12 : 1) ||
            too_dear(s, l->sum, l->top, l->pos, l->cloud, l->least))
            continue;
        if (cost_out_of_time(s->m))
            s->effort = SOLVE_EFFORT;
        if (s->effort > s->patience && !s->impatient) {
            s->limit *= 1 - SOLVE_TOLERANCE;
            s->impatient = true;
        }
        extend_all(s, k);
        if (s->around && k != 0)
            extend_home(s, k);
    }
}
