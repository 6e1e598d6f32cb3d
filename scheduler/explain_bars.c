#include "scheduler/explain_bars.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BARS 4096 /* about */
#define DRAWN 64  /* microbatches of a pipeline at most */

struct drawing {
    const struct cost_model *m;
    const struct candidate *c;
    const struct solve_training *training;
    struct plan *p;
    int32_t *row; /* by resource; -1 */
    int32_t cap;
};

/* Of a training's stage: what it has. */
static const char *kind_of(const struct drawing *d, const struct cost_line *l, int32_t stage)
{
    bool forward = false, backward = false;
    if (!d->training)
        return "compute";
    for (int32_t i = 0; i < d->m->graph->n_nodes; i++)
        if (l->stage_of[i] == stage)
            *(i < d->training->first_backward ? &forward : &backward) = true;
    return forward && backward ? "both" : backward ? "backward" : "forward";
}

static void stage_name(int32_t stage, char *out)
{
    if (stage >= 0)
        snprintf(out, 24, "stage %d", stage);
    else
        snprintf(out, 24, stage == -1 ? "source" : "yoked");
}

static void on_bar(void *arg, const struct candidate_bar *b)
{
    struct drawing *d = arg;
    struct plan *p = d->p;
    const struct cost_line *l = &d->c->lines[b->line];
    if (p->n_bars == d->cap) {
        d->cap = d->cap ? 2 * d->cap : 256;
        p->bars = yk_xrealloc(p->bars, (size_t)d->cap * sizeof *p->bars);
    }
    struct plan_bar *to = &p->bars[p->n_bars++];
    *to = (struct plan_bar){.row = d->row[b->resource], .start_ms = b->start_ms, .end_ms = b->end_ms};
    const char *letter = "";
    char line[24] = "";
    if (d->c->n_lines > 1)
        snprintf(line, sizeof line, "pipeline %d, ", b->line);
    if (b->edge >= 0) {
        const struct cost_edge *e = &l->edges[b->edge];
        char from[24], to_name[24];
        stage_name(e->from, from);
        stage_name(e->to, to_name);
        snprintf(to->kind, sizeof to->kind, "transfer");
        snprintf(to->about, sizeof to->about, "%s%s -> %s, %lld bytes as %s", line, from, to_name, (long long)e->bytes,
            plan_codec_name(e->codec));
    } else if (b->stage >= 0) {
        snprintf(to->kind, sizeof to->kind, "%s", kind_of(d, l, b->stage));
        letter = to->kind[0] == 'f' ? "F" : to->kind[0] == 'b' && to->kind[1] == 'a' ? "B" : "";
        snprintf(to->about, sizeof to->about, "%sstage %d", line, b->stage);
    } else {
        snprintf(to->kind, sizeof to->kind, "messages");
    }
    snprintf(to->label, sizeof to->label, "%s%lld", letter, (long long)b->microbatch);
}

/* Rows of what the plan uses: agents, then links. */
static void add_rows(struct drawing *d)
{
    const struct cost_model *m = d->m;
    struct plan *p = d->p;
    bool *used = yk_xalloc((size_t)m->n_resources + 1);
    for (int32_t i = 0; i < d->c->n_lines; i++) {
        const struct cost_line *l = &d->c->lines[i];
        for (int32_t s = 0; s < l->n_stages; s++)
            used[l->stages[s].agent] = true;
        used[l->source] = used[l->source] || l->source_ms > 0;
        for (int32_t k = 0; k < l->n_edges; k++)
            if (l->edges[k].resource >= 0)
                used[l->edges[k].resource] = true;
    }
    p->bar_rows = yk_xalloc(((size_t)m->n_resources + 1) * sizeof *p->bar_rows);
    for (int32_t r = 0; r < m->n_resources; r++) {
        char name[160];
        d->row[r] = -1;
        if (!used[r])
            continue;
        cost_resource_name(m, r, name);
        d->row[r] = p->n_bar_rows;
        p->bar_rows[p->n_bar_rows++] = yk_xstrdup(name);
    }
    free(used);
}

yk_err explain_bars(const struct cost_model *m, const struct candidate *c, const struct solve_training *training,
    struct plan *p, double *busy_ms)
{
    struct drawing drawing = {.m = m, .c = c, .training = training, .p = p}, *d = &drawing;
    int32_t steps = 1;
    for (int32_t i = 0; i < d->c->n_lines; i++)
        steps += d->c->lines[i].n_stages + d->c->lines[i].n_edges;
    int64_t most = YK_MIN(YK_MAX(BARS / steps, 4), DRAWN);
    d->row = yk_xalloc(((size_t)d->m->n_resources + 1) * sizeof *d->row);
    add_rows(d);
    yk_err err = candidate_trace(d->m, d->c, most, on_bar, d, busy_ms);
    d->p->bar_microbatches = YK_MIN(most * d->c->n_lines, d->c->count);
    d->p->all_microbatches = d->c->count;
    free(d->row);
    return err;
}
