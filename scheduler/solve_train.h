/* Splits of a training over a chain of agents: each holds consecutive forward nodes and their backward nodes. */
#ifndef YK_SOLVE_TRAIN_H
#define YK_SOLVE_TRAIN_H

#include "scheduler/solve_dp.h"

#define SOLVE_TRAIN_AGENTS 6 /* of the fleet, those that promise most */

struct solve_split {
    int32_t n_stages;              /* forward stages, then backward ones; the last forward stage is backward too */
    int32_t *agent;                /* by stage */
    int32_t *stage_of;             /* by node */
    double bottleneck_ms, cost_ms; /* the largest time of a resource; about what the closed form says */
};

/* Forward stages of blocks of consecutive forward nodes (block b ends in front of end[b]), then, the last block first,
 * a backward stage for each block that has backward nodes; the last block is one stage with everything. */
void solve_train_make(const struct solve_training *t, int32_t n_nodes, const int32_t *agent, const int32_t *end,
    int32_t blocks, struct solve_split *out);

/* How many splits there are over chains of agents. */
double solve_train_chains(const struct cost_model *m);
#define SOLVE_TRAIN_ALL 100000 /* of all searches of a plan: more are not looked at one by one */
#define SOLVE_TRAIN_STEPS 1e6  /* steps and prices of all searches of a plan; some 0.1 s each */
#define SOLVE_TRAIN_PRICED 1e4
/* Every split over two agents and more that fits: the best `max` by cost_ms, of those that cost little more than
 * limit_ms or the best. effort: of those steps. *all false: it did not reach. Errors: as cost_memory, YK_NOMEM. */
yk_err solve_train_all(const struct cost_model *m, int32_t source, double limit_ms, double effort,
    struct solve_split *out, int32_t max, int32_t *n, bool *all, struct yk_diag *why);

/* The best splits over two agents and more, by what the closed form says of them, about (dynamic programming over sets
 * of agents and places to cut: the least time of the busiest resource, then the least sum with that time at most so and
 * so much above it). Agents may be unable to run some nodes. Of large networks over many agents not all places are
 * looked at. out: `max` of them; free each with solve_train_fini. Errors: YK_NOMEM. */
yk_err solve_train_splits(
    const struct cost_model *m, int32_t source, struct solve_split *out, int32_t max, int32_t *n, struct yk_diag *why);
void solve_train_fini(struct solve_split *s);
/* A pipeline of a given plan whose stages hold forward nodes only gets the loss and the backward nodes: a stage each,
 * on the agent of their forward nodes, or with them where the loss is; cuts between its forward stages name the codec
 * of both ways. Cuts of stages that it did not name say nothing if they are fp32. Errors: YK_INVAL if such a cut names
 * another codec; the plan is then of no use. */
yk_err solve_train_complete(const struct solve_training *t, const struct graph *g, struct plan *p, struct yk_diag *why);
/* No plan over any agents costs less: every node on its best agent, and the work over the pace of all. */
double solve_train_bound(const struct cost_model *m);

#endif
