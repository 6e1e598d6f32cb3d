/* Why there is no plan: a smallest set of constraints of the request and the fleet that cannot hold together. Without
 * any one of the set, and whatever else was left out before, there is a plan; found by leaving out one after another
 * and planning again. */
#ifndef YK_INFEASIBLE_H
#define YK_INFEASIBLE_H

#include "scheduler/solve.h"

/* In the order in which they are left out: what stands late is more often what is told. */
enum infeasible_kind {
    INFEASIBLE_LINKS,      /* no usable link between two agents (or any two, agent -1) */
    INFEASIBLE_OPS,        /* the agent cannot run some nodes */
    INFEASIBLE_NOT_USED,   /* hot, stale, gone */
    INFEASIBLE_CODEC,      /* codecs that were not allowed */
    INFEASIBLE_FORMS,      /* of a job that has begun */
    INFEASIBLE_BATCH,      /* a single request stays whole */
    INFEASIBLE_BATCH_NORM, /* is not trained on few samples unless asked */
    INFEASIBLE_MICROBATCH, /* that was asked for */
    INFEASIBLE_PIN_FIRST,
    INFEASIBLE_PIN_LAST,
    INFEASIBLE_MEMORY, /* the agent's limit, or that nobody knows it */
    INFEASIBLE_DEADLINE,
};

struct infeasible_item {
    enum infeasible_kind kind;
    int32_t agent, other; /* agent -1: the request, or all agents at once; other: of a link */
};

#define INFEASIBLE_ITEMS 96
struct infeasible_set {
    struct infeasible_item items[INFEASIBLE_ITEMS];
    int32_t n;
    bool proven; /* there was time to find out whether each is needed */
};

/* All constraints of a request that can be left out. */
void infeasible_all(const struct solve_request *req, const struct view *v, struct infeasible_set *out);
/* The request and a copy of the view without the items for which `without` is true. NULL: no memory. End with
 * view_free. */
struct view *infeasible_relax(const struct solve_request *req, const struct view *v, const struct infeasible_set *all,
    const bool *without, struct solve_request *relaxed);
/* A smallest set. Errors: YK_NOTFOUND if even without all of them there is no plan, YK_STATE if there is one with
 * them, YK_NOMEM. */
yk_err infeasible_find(
    const struct solve_request *req, const struct view *v, double budget_ms, struct infeasible_set *out);
/* Replaces why, which solve_plan gave, by the set: each member with its numbers and the mend. Stays as it is where
 * infeasible_find fails. Thread: any; pure. */
void infeasible_explain(const struct solve_request *req, const struct view *v, double budget_ms, struct yk_diag *why);

#endif
