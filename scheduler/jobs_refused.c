/* Memory is planned from what agents tell and what their stages should take. Where an agent says that it lacks some,
 * the job's next plan gives it less by as much: the same one would be refused again. */
#include "scheduler/sched_priv.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct job_refusal *find(const struct job *j, const char *agent)
{
    for (int i = 0; i < j->life.n_refused; i++)
        if (strcmp(j->life.refused[i].id, agent) == 0)
            return &j->life.refused[i];
    return NULL;
}

/* That all pipelines of the job were to take there. */
static int64_t planned_bytes(struct sched *s, const struct job *j, const char *agent)
{
    int64_t bytes = 0;
    for (struct generation *g = s->generations; g; g = g->next) {
        const struct generation_agent *m = g->job == j ? sched_member(g, agent) : NULL;
        bytes += m ? m->planned_bytes : 0;
    }
    return bytes;
}

void jobs_refused(
    struct sched *s, struct generation *g, const struct fleet_agent *a, int64_t lacking_bytes, const char *why)
{
    struct job *j = g->job;
    struct job_life *l = &j->life;
    int64_t planned = planned_bytes(s, j, a->id);
    int64_t most = lacking_bytes > 0 && lacking_bytes < planned ? planned - lacking_bytes : 0;
    if (lacking_bytes <= 0)
        most = planned / 2;
    struct job_refusal *r = find(j, a->id);
    if (!r) {
        l->refused = yk_xrealloc(l->refused, ((size_t)l->n_refused + 1) * sizeof *l->refused);
        r = &l->refused[l->n_refused++];
        *r = (struct job_refusal){.most_bytes = most};
        snprintf(r->id, sizeof r->id, "%s", a->id);
    }
    r->most_bytes = YK_MIN(r->most_bytes, most);
    char text[500];
    if (r->most_bytes > 0)
        snprintf(text, sizeof text, "%.380s; other plans give %.60s at most %.3f MB", why, a->name,
            (double)r->most_bytes / 1e6);
    else
        snprintf(text, sizeof text, "%.380s; other plans leave %.60s out", why, a->name);
    jobs_lost(s, j, text);
}

void jobs_refused_forget(struct job *j, const char *agent)
{
    struct job_refusal *r = agent ? find(j, agent) : NULL;
    if (r)
        *r = j->life.refused[--j->life.n_refused];
    if (!agent)
        j->life.n_refused = 0;
}

void jobs_refused_apply(const struct job_refusal *list, int n, struct view *v)
{
    for (int i = 0; i < n; i++)
        for (int32_t k = 0; k < v->n_agents; k++) {
            struct view_agent *a = &v->agents[k];
            if (strcmp(a->id, list[i].id) != 0 || a->memory_bytes <= 0)
                continue;
            a->memory_bytes = YK_MIN(a->memory_bytes, YK_MAX(list[i].most_bytes, (int64_t)1));
            if (list[i].most_bytes > 0 || !a->usable)
                continue;
            a->usable = false;
            snprintf(a->why_not, sizeof a->why_not, "it had no memory for what was planned there");
        }
}
