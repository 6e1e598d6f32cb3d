/* The event model of a pipeline: when everything of M microbatches happens. The planner scores candidates with it, the
 * simulator runs it, timelines draw it.
 *
 * Stages and edges are steps that occupy one resource (an agent, a link, a shared medium) for a time; a step's latency
 * passes after it without occupying anything. A microbatch enters when fewer than `depth` are inside, in order; a step
 * is ready when the steps before it are done, and a resource serves one step at a time: earlier microbatches first,
 * except that with SCHEDULE_BACKWARD_FIRST backward steps go before forward ones (1F1B; else GPipe). Nothing is
 * pre-empted. */
#ifndef YK_SCHEDULE_H
#define YK_SCHEDULE_H

#include "common/yk.h"

struct schedule_step {
    int32_t resource;  /* -1: takes no resource */
    double busy_ms;    /* of one microbatch */
    double latency_ms; /* behind it */
    bool backward;
    int32_t n_before;
    const int32_t *before; /* steps of the same microbatch that must be done */
};

enum schedule_order { SCHEDULE_FORWARD_FIRST, SCHEDULE_BACKWARD_FIRST };

struct schedule {
    const struct schedule_step *steps;
    int32_t n_steps, n_resources;
    int64_t microbatches;
    int32_t depth;
    enum schedule_order order;
    double last_frac; /* size of the last microbatch against the others; 0 means 1 */
};

struct schedule_result {
    double total_ms;  /* until the last microbatch is through */
    double steady_ms; /* between two microbatches in the steady state */
    double *busy_ms;  /* by resource; NULL: not wanted. Caller's array of n_resources */
};

/* Calls trace (may be NULL) for every step run: for timelines. Beyond 256 microbatches the steady state is extrapolated
 * (and not traced). Thread: any. Errors: YK_INVAL for a cycle among steps, a negative time, depth < 1. */
yk_err schedule_run(const struct schedule *s, struct schedule_result *out,
    void (*trace)(void *arg, int64_t microbatch, int32_t step, double start_ms, double end_ms), void *arg);

#endif
