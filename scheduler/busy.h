/* What running pipelines take of agents and links, for a snapshot: by the predictions of their plans. */
#ifndef YK_BUSY_H
#define YK_BUSY_H

#include "common/plan.h"
#include "scheduler/view.h"

struct busy {
    double *agent_frac, *link_frac; /* by place in the view */
    int32_t *on_agent, *on_link;    /* pipelines that take something */
};

/* End with busy_apply. */
void busy_init(struct busy *b, const struct view *v);
/* A pipeline of a plan that the solver made, which runs without a pause. */
void busy_add(struct busy *b, const struct view *v, const struct plan *p, int32_t pipeline);
/* Sets busy_frac of agents and lowers the rates of links. A newcomer gets its fair part at least: where n pipelines
 * take all of something, 1 / (n + 1) of it. */
void busy_apply(struct busy *b, struct view *v);

#endif
