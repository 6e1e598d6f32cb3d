/* What stages took: into the database, and into what is predicted of their agents. */
#include "scheduler/sched_priv.h"

#include <stdlib.h>
#include <string.h>

/* Remembers which nodes the agent has. What is believed of them is where measuring them begins. */
static void take_nodes(
    struct sched *s, struct fleet_agent *a, const struct generation *g, const struct generation_agent *m)
{
    const struct plan_pipeline *line = &g->plan->pipelines[g->pipeline];
    int32_t n = g->model && g->model->graph ? g->model->graph->n_nodes : 0;
    uint8_t *nodes = yk_xalloc((size_t)n + 1);
    for (int32_t i = 0; i < line->n_stages; i++) {
        const struct plan_stage *st = &line->stages[i];
        bool its = strcmp(st->agent, a->name) == 0 || strcmp(st->agent, a->id) == 0;
        for (int32_t r = 0; its && r < st->n_nodes; r++)
            for (int32_t k = st->nodes[r].first; k <= st->nodes[r].last && k < n; k++)
                nodes[k] = 1;
    }
    if (n > 0 && fleet_measures(a, g->id, g->model->graph_hash, nodes, n)) {
        a->slow_factor = m->slow_factor * policy_share(&a->device, &s->config.policy);
        policy_pace_believe(&a->pace, a->slow_factor);
    }
    free(nodes);
}

/* In-job timing beats the profile. All stages of an agent count together: its profile may be wrong about one node
 * without the device being slow. */
static void take_pace(struct sched *s, struct fleet_agent *a, struct generation *g)
{
    struct generation_agent *m = sched_member(g, a->id);
    if (m->took_n < POLICY_MICROBATCHES || m->took_ms < POLICY_TOOK_MS || !(m->due_ms > 0) || !(m->slow_factor > 0))
        return;
    take_nodes(s, a, g, m);
    double before = a->pace.told > 0 ? a->pace.told : 1, ratio = m->took_ms / m->due_ms;
    int64_t n = m->took_n;
    m->took_ms = m->due_ms = 0;
    m->took_n = 0;
    if (!policy_pace_add(
            &a->pace, &s->config.policy, m->slow_factor * ratio, net_now_us(s->net) / 1000, &a->slow_factor) ||
        !g->job)
        return;
    bool slower = a->slow_factor > before;
    jobs_event(s, g->job_id, slower ? "slower" : "faster",
        "%s takes %.2f times what its profile says, it was believed to take %.2f times: measured %d times in a row, "
        "the "
        "last over %lld microbatches",
        a->name, a->slow_factor, before, POLICY_WINDOWS, (long long)n);
    jobs_review_want(s, g->job, "%s was measured %s", a->name, slower ? "slower" : "faster");
}

void dispatch_stats(struct sched *s, struct fleet_agent *a, struct generation *g, const struct wire_stage_stats *m)
{
    const struct plan_pipeline *line = &g->plan->pipelines[g->pipeline];
    if (m->stage < 0 || m->stage >= line->n_stages || m->microbatches <= 0 || !(m->compute_ms >= 0))
        return;
    struct store_stage_time row = {.job = g->job_id,
        .plan = g->plan_id,
        .pipeline = g->pipeline,
        .stage = m->stage,
        .microbatches = m->microbatches,
        .sent_bytes = m->sent_bytes,
        .nonfinite = m->nonfinite,
        .late = m->late,
        .agent = a->name,
        .class_name = a->class_name,
        .compute_ms = m->compute_ms,
        .wait_ms = m->wait_ms,
        .send_ms = m->send_ms,
        .codec_error = m->codec_error};
    store_put_stage_time(s->store, &row);
    if (g->job && m->codec_error > g->job->codec_error)
        g->job->codec_error = m->codec_error;
    else if (!g->job && m->codec_error > g->codec_error)
        jobs_event(s, g->job_id, "codec", "relative RMS error of the codec %.2g", m->codec_error);
    g->codec_error = YK_MAX(g->codec_error, m->codec_error);
    double predicted = line->stages[m->stage].predicted_ms;
    struct generation_agent *member = sched_member(g, a->id);
    if (!(predicted > 0))
        return;
    member->took_ms += m->compute_ms;
    member->due_ms += predicted * (double)m->microbatches;
    member->took_n += m->microbatches;
    take_pace(s, a, g);
}
