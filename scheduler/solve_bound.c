/* Bounds from below of what is still to be placed, for stages that take no more than the interval's largest bottleneck:
 * one row by set of used agents. The better of two relaxations: that of solve_relax.c, and one that forgets cuts and
 * forms: work flows to the agents that are left, the fastest first, each full up to the bottleneck; each agent that it
 * takes needs a stage, and each stage a transfer. */
#include "scheduler/solve_search.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define ROW_SLOTS (1 << 14)
#define ROWS_BYTES ((size_t)64 << 20)
#define DOWN (1 - 1e-12) /* sums in another order */
#define UP (1 + 1e-12)

void solve_search_forget_rows(struct search *s)
{
    if (!s->row_of) {
        s->row_of = yk_xalloc(ROW_SLOTS * sizeof *s->row_of);
        memset(s->row_of, 0xff, ROW_SLOTS * sizeof *s->row_of);
    }
    for (int32_t i = 0; i < s->n_rows; i++)
        s->row_of[s->rows[i].slot] = -1;
    s->n_rows = 0;
}

static void find_earliest(const struct search *s, struct bound_row *r)
{
    double most = s->high * r->pace + 1e-9 * s->work[0];
    int32_t low = 0, high = s->n_stops;
    while (low < high && !isnan(most)) { /* infinity times none */
        int32_t mid = (low + high) / 2;
        if (s->work[s->stop[mid]] * DOWN * DOWN > most)
            low = mid + 1;
        else
            high = mid;
    }
    r->earliest = low;
}

static void begin_row(const struct search *s, struct bound_row *r, uint32_t used)
{
    if (!r->rest_ms)
        r->rest_ms = yk_xalloc(2 * ((size_t)s->n + 1) * sizeof(double));
    r->far_ms = r->rest_ms + s->n + 1;
    memset(r->rest_ms, 0xff, (size_t)s->n_stops * sizeof(double)); /* NaN */
    r->rest_ms[s->n_stops] = r->far_ms[s->n_stops] = 0;
    r->used = used;
    r->pace = r->rents = 0;
    for (int32_t a = 0; a < s->n_agents; a++) {
        int32_t turns = s->turns[a] - (int32_t)(used >> a & 1);
        if (!solve_search_free(s, used, a) || s->pace[a] <= 0)
            continue;
        r->pace += s->pace[a] * s->weight[a];
        r->rents += turns * s->rent[s->first_alike[a]];
    }
    r->top_factor = r->pace > 0 ? DOWN / r->pace : 0;
    find_earliest(s, r);
}

const struct bound_row *solve_search_row(struct search *s, uint32_t used)
{
    uint32_t slot = (used * 2654435761u) >> 16 & (ROW_SLOTS - 1);
    for (; s->row_of[slot] >= 0; slot = (slot + 1) & (ROW_SLOTS - 1))
        if (s->rows[s->row_of[slot]].used == used)
            return &s->rows[s->row_of[slot]];
    size_t bytes = 2 * ((size_t)s->n + 1) * sizeof(double);
    if (s->n_rows >= ROW_SLOTS / 2 || ((size_t)s->n_rows + 1) * bytes > ROWS_BYTES) {
        begin_row(s, &s->spare_row, used); /* forgotten with the next */
        return &s->spare_row;
    }
    if (s->n_rows == s->cap_rows) {
        int32_t cap = s->cap_rows ? 2 * s->cap_rows : 64;
        s->rows = yk_xrealloc(s->rows, (size_t)cap * sizeof *s->rows);
        memset(s->rows + s->cap_rows, 0, (size_t)(cap - s->cap_rows) * sizeof *s->rows);
        s->cap_rows = cap;
    }
    begin_row(s, &s->rows[s->n_rows], used);
    s->rows[s->n_rows].slot = (int32_t)slot;
    s->row_of[slot] = s->n_rows++;
    return &s->rows[s->row_of[slot]];
}

double solve_search_make_rest(const struct search *s, const struct bound_row *r, int32_t stop)
{
    int32_t pos = s->stop[stop];
    double work = s->work[pos] * DOWN * DOWN, sum = 0, relaxed = INFINITY;
    double stages = 0;
    r->far_ms[stop] = 0;
    if (isinf(work))
        return r->rest_ms[stop] = INFINITY;
    for (int32_t k = 0; k < s->n_by_pace; k++) {
        int32_t a = s->by_pace[k];
        if (!solve_search_free(s, r->used, a))
            continue;
        relaxed = YK_MIN(relaxed, s->now.relaxed[(size_t)s->first_alike[a] * ((size_t)s->n + 1) + (size_t)pos]);
        if (work > 0) {
            double room = s->high * s->weight[a], part = YK_MIN(room, work / s->pace[a]);
            stages += part < room ? part / s->high : s->weight[a]; /* one at least, below */
            sum += part;
            work = part < room ? 0 : work - part * s->pace[a];
        }
    }
    if (work > 1e-9 * s->work[0])
        return r->rest_ms[stop] = INFINITY;
    sum = (sum + YK_MAX(ceil(stages * DOWN), 1.0) * s->enter_least[pos]) * DOWN;
    r->far_ms[stop] = relaxed * DOWN - (r->rents + s->toll) * UP;
    return r->rest_ms[stop] = s->toll > 0 ? sum : YK_MAX(sum, r->far_ms[stop]);
}
