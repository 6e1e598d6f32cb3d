#include "scheduler/spans.h"

#include "scheduler/sched_priv.h"

#include <stdlib.h>
#include <string.h>

#define SPANS_MAX 1024                  /* of a message */
#define LENGTH_US ((int64_t)3600000000) /* of what one message tells */

static const char *const kinds[] = {"forward", "backward", "both", "wait", "step", "read", "send", "receive"};

static const char *kind_of(const char *what)
{
    for (size_t i = 0; i < YK_COUNT(kinds); i++)
        if (strcmp(kinds[i], what) == 0)
            return kinds[i];
    return NULL;
}

void spans_take(struct sched *s, const struct generation *g, const struct fleet_agent *a, const struct wire_spans *m)
{
    const struct plan_pipeline *line = &g->plan->pipelines[g->pipeline];
    size_t n = YK_MIN(m->spans.n, (size_t)SPANS_MAX);
    struct store_span *rows = yk_xalloc((n + 1) * sizeof *rows);
    int n_rows = 0;
    int64_t now = net_now_us(s->net);
    if (m->step < 0 || m->at_us < g->run_us || m->at_us > now + LENGTH_US)
        n = 0; /* a pipeline that idled may tell of the job before */
    for (size_t i = 0; i < n; i++) {
        const struct wire_span *w = &m->spans.at[i];
        const struct fleet_agent *peer = w->peer[0] ? fleet_find(s->fleet, w->peer) : NULL;
        const char *what = kind_of(w->what);
        if (!what || w->stage < -1 || w->stage >= line->n_stages || w->begin_us < 0 || w->end_us < w->begin_us ||
            w->end_us > LENGTH_US || w->microbatch < -1 || (w->peer[0] && !peer))
            continue;
        rows[n_rows++] = (struct store_span){.stage = w->stage,
            .microbatch = w->microbatch,
            .what = what,
            .peer = peer ? peer->name : "",
            .begin_ms = (double)(m->at_us + w->begin_us) / 1e3,
            .end_ms = (double)(m->at_us + w->end_us) / 1e3};
    }
    if (n_rows)
        store_put_spans(s->store, g->job ? g->job->id : g->job_id, g->plan_id, m->step, a->name, rows, n_rows);
    free(rows);
}
