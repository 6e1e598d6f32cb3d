/* Bounds from below of what is still to be placed, for stages that take no more than the interval's largest bottleneck.
 *
 * Two relaxations. One forgets which agents were used: the least sum of stages and transfers over the cuts behind, by
 * dynamic programming from the end, each transfer over the best link into its reader. The other forgets cuts and
 * forms: work flows to the agents that are left, the fastest first, each full up to the bottleneck; each agent that
 * it takes needs a stage, and each stage a transfer. */
#include "scheduler/solve_search.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define ROW_SLOTS (1 << 14)
#define ROWS_BYTES ((size_t)64 << 20)
#define DOWN (1 - 1e-12) /* sums in another order */

static double message_ms(const struct search *s, int32_t agent)
{
    return YK_MAX(s->m->view->agents[agent].message_ms, 0.0);
}

/* What a transfer takes at least: of values of stages, of inputs of the graph. */
static double entry(const struct search *s, int32_t agent, int64_t bytes, bool any, int64_t input_bytes, bool any_input)
{
    double ms = 0;
    if (any)
        ms += (double)(bytes + COST_HEADER_BYTES) * s->in_per_byte[agent] + s->in_latency[agent] + message_ms(s, agent);
    if (any_input && agent != s->source) {
        const struct pair *pair = solve_search_pair(s, s->source, agent);
        if (!pair->there)
            return INFINITY;
        ms += (double)(input_bytes + COST_HEADER_BYTES) * pair->per_byte_ms + pair->latency_ms + message_ms(s, agent) +
              message_ms(s, s->source);
    }
    return ms;
}

static double exit_ms(const struct search *s, int32_t agent, int32_t p, int32_t q)
{
    if (agent == s->source || s->returns[q] == s->returns[p])
        return 0;
    const struct pair *pair = solve_search_pair(s, agent, s->source);
    if (!pair->there)
        return INFINITY;
    return (double)(s->back[q] - s->back[p] + COST_HEADER_BYTES) * pair->per_byte_ms + pair->latency_ms +
           message_ms(s, agent) + message_ms(s, s->source);
}

/* Least of a range of positions, while positions get their values from the last to the first. */
static void tree_set(struct search *s, int32_t agent, int32_t i, double value)
{
    double *tree = s->tree + (size_t)agent * 2 * (size_t)s->tree_size;
    for (i += s->tree_size; i > 0 && value < tree[i]; i /= 2)
        tree[i] = value;
}

static double tree_least(const struct search *s, int32_t agent, int32_t from, int32_t to)
{
    const double *tree = s->tree + (size_t)agent * 2 * (size_t)s->tree_size;
    double least = INFINITY;
    for (from += s->tree_size, to += s->tree_size; from < to; from /= 2, to /= 2) {
        if (from & 1) {
            least = YK_MIN(least, tree[from]);
            from++;
        }
        if (to & 1) {
            to--;
            least = YK_MIN(least, tree[to]);
        }
    }
    return least;
}

/* What nodes q.. add behind a stage of the agent that ends there. */
static double next_ms(const struct search *s, int32_t agent, int32_t q, bool twin)
{
    if (q == s->n)
        return s->m->req->pin_last && agent != s->source ? INFINITY : exit_ms(s, agent, q - 1, q);
    return twin || s->relaxed_on[q] != agent ? s->relaxed_least[q] : s->relaxed_other[q];
}

/* The last end of a stage on the agent that begins at p; `end` is the one of p + 1. */
static int32_t last_end(const struct search *s, int32_t agent, int32_t p, int32_t end)
{
    end = YK_MIN(end, s->runs_to[(size_t)agent * ((size_t)s->n + 1) + (size_t)p]);
    while (end > p && (solve_search_ms(s, agent, p, end) > s->high || solve_search_never_fits(s, agent, p, end)))
        end--;
    return end;
}

/* The least sum if a stage on the agent begins at p and ends at `end` at the latest. Where it ends matters to its
 * transfers only up to the last first use of a value that crosses p. */
static double relax(struct search *s, int32_t agent, int32_t p, int32_t end)
{
    const struct cut *cut = &s->cuts.at[p];
    const struct live *live = s->live + s->live_at[p];
    const double *at = s->prefix + (size_t)agent * ((size_t)s->n + 1);
    int64_t bytes = 0, input_bytes = 0;
    bool any = false, any_input = false;
    double least = INFINITY;
    for (int32_t k = 0, from = p + 1, to; from <= end; from = to + 1) {
        for (; k < cut->n_values && live[k].use < from; k++) {
            int32_t v = cut->values[live[k].k];
            bool input = s->m->graph->values[v].kind == VALUE_INPUT;
            any = any || !input;
            any_input = any_input || input;
            *(input ? &input_bytes : &bytes) += s->bytes[v];
        }
        to = k < cut->n_values ? YK_MIN(live[k].use, end) : end;
        double in = entry(s, agent, bytes, any, input_bytes, any_input);
        s->effort += 2;
        if (in >= least)
            break;
        least = YK_MIN(least, in + tree_least(s, agent, from, to + 1) - at[p]);
    }
    return least;
}

/* A transfer into a stage that begins at p. */
static double least_entry(const struct search *s, int32_t p)
{
    const struct cut *cut = &s->cuts.at[p];
    const struct live *live = s->live + s->live_at[p];
    int64_t bytes = 0;
    bool any = false;
    for (int32_t k = 0; k < cut->n_values && live[k].use == p; k++)
        if (s->m->graph->values[cut->values[live[k].k]].kind != VALUE_INPUT) {
            bytes += s->bytes[cut->values[live[k].k]];
            any = true;
        }
    double least = INFINITY;
    for (int32_t k = 0; k < s->n_by_pace; k++)
        least = YK_MIN(least, entry(s, s->by_pace[k], bytes, any, 0, false));
    return least;
}

void solve_search_bound(struct search *s, double high)
{
    size_t row = (size_t)s->n + 1;
    s->high = high;
    s->enter_least[s->n] = INFINITY;
    for (size_t i = 0; i < (size_t)s->n_agents * 2 * (size_t)s->tree_size; i++)
        s->tree[i] = INFINITY;
    for (int32_t a = 0; a < s->n_agents; a++)
        s->last_end[a] = s->n;
    for (int32_t p = s->n; p >= 0; p--) {
        s->relaxed_least[p] = s->relaxed_other[p] = INFINITY;
        s->relaxed_on[p] = -1;
        if (p < s->n) {
            bool cut = solve_search_cut(s, p);
            s->enter_least[p] = cut ? YK_MIN(s->enter_least[p + 1], least_entry(s, p)) : s->enter_least[p + 1];
        }
        for (int32_t k = 0; k < s->n_by_pace && p < s->n; k++) {
            int32_t a = s->by_pace[k];
            if (s->alike[a] >= 0)
                continue;
            s->last_end[a] = last_end(s, a, p, s->last_end[a]);
            if (!solve_search_cut(s, p))
                continue;
            double least = relax(s, a, p, s->last_end[a]);
            s->relaxed[(size_t)a * row + (size_t)p] = least;
            if (least < s->relaxed_least[p]) {
                s->relaxed_other[p] = s->relaxed_least[p];
                s->relaxed_least[p] = least;
                s->relaxed_on[p] = a;
            } else {
                s->relaxed_other[p] = YK_MIN(s->relaxed_other[p], least);
            }
        }
        for (int32_t k = 0; k < s->n_by_pace && p > 0 && solve_search_cut(s, p); k++) {
            int32_t a = s->by_pace[k];
            if (s->alike[a] < 0)
                tree_set(s, a, p, s->prefix[(size_t)a * row + (size_t)p] + next_ms(s, a, p, s->twin[a]));
        }
    }
    if (!s->row_of)
        s->row_of = yk_xalloc(ROW_SLOTS * sizeof *s->row_of);
    memset(s->row_of, 0xff, ROW_SLOTS * sizeof *s->row_of);
    s->n_rows = 0;
}

static void begin_row(const struct search *s, struct bound_row *r, uint32_t used)
{
    if (!r->rest_ms)
        r->rest_ms = yk_xalloc(((size_t)s->n + 1) * sizeof(double));
    for (int32_t i = 0; i < s->n; i++)
        r->rest_ms[i] = NAN;
    r->rest_ms[s->n] = 0;
    r->used = used;
    r->pace = 0;
    for (int32_t a = 0; a < s->n_agents; a++)
        r->pace += used >> a & 1 ? 0 : s->pace[a];
    r->top_factor = r->pace > 0 ? DOWN / r->pace : 0;
}

struct bound_row solve_search_row(struct search *s, uint32_t used)
{
    uint32_t slot = (used * 2654435761u) >> 16 & (ROW_SLOTS - 1);
    for (; s->row_of[slot] >= 0; slot = (slot + 1) & (ROW_SLOTS - 1))
        if (s->rows[s->row_of[slot]].used == used)
            return s->rows[s->row_of[slot]];
    size_t bytes = ((size_t)s->n + 1) * sizeof(double);
    if (s->n_rows >= ROW_SLOTS / 2 || ((size_t)s->n_rows + 1) * bytes > ROWS_BYTES) {
        begin_row(s, &s->spare_row, used); /* forgotten with the next */
        return s->spare_row;
    }
    if (s->n_rows == s->cap_rows) {
        int32_t cap = s->cap_rows ? 2 * s->cap_rows : 64;
        s->rows = yk_xrealloc(s->rows, (size_t)cap * sizeof *s->rows);
        memset(s->rows + s->cap_rows, 0, (size_t)(cap - s->cap_rows) * sizeof *s->rows);
        s->cap_rows = cap;
    }
    begin_row(s, &s->rows[s->n_rows], used);
    s->row_of[slot] = s->n_rows++;
    return s->rows[s->row_of[slot]];
}

int32_t solve_search_earliest(const struct search *s, const struct bound_row *r, int32_t from)
{
    double most = s->high * r->pace + 1e-9 * s->work[0];
    int32_t low = from, high = s->n;
    while (low < high && !isnan(most)) { /* infinity times none */
        int32_t mid = (low + high) / 2;
        if (s->work[mid] * DOWN * DOWN > most)
            low = mid + 1;
        else
            high = mid;
    }
    return low;
}

double solve_search_make_rest(const struct search *s, const struct bound_row *r, int32_t pos)
{
    double work = s->work[pos] * DOWN * DOWN, sum = 0, relaxed = INFINITY;
    int32_t stages = 0;
    if (isinf(work))
        return r->rest_ms[pos] = INFINITY;
    for (int32_t k = 0; k < s->n_by_pace; k++) {
        int32_t a = s->by_pace[k];
        if (r->used >> a & 1)
            continue;
        relaxed = YK_MIN(relaxed, s->relaxed[(size_t)s->first_alike[a] * ((size_t)s->n + 1) + (size_t)pos]);
        if (work > 0) {
            double part = YK_MIN(s->high, work / s->pace[a]);
            stages++;
            sum += part;
            work = part < s->high ? 0 : work - part * s->pace[a];
        }
    }
    if (work > 1e-9 * s->work[0])
        return r->rest_ms[pos] = INFINITY;
    sum = (sum + YK_MAX(stages, 1) * s->enter_least[pos]) * DOWN;
    return r->rest_ms[pos] = YK_MAX(sum, relaxed * DOWN);
}
