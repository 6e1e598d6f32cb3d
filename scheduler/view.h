/* A snapshot of the fleet as the planner sees it: plain values, no pointers into the fleet. The planner is a function
 * from a snapshot and a request to a plan; it runs on the solver thread and in tests without anything else. */
#ifndef YK_VIEW_H
#define YK_VIEW_H

#include "common/yk.h"

/* Where a number came from; shown by --explain. */
enum view_origin { VIEW_UNKNOWN, VIEW_ROOFLINE, VIEW_PROFILE, VIEW_MEASURED, VIEW_EMULATED };
const char *view_origin_name(enum view_origin o); /* "roofline" ...; of plans */

struct view_time {      /* one row of an agent's profile */
    int32_t node, form; /* form: index into view.forms */
    int64_t size;       /* of the batch dimension */
    double ms, prepare_ms;
    int64_t packed_bytes, workspace_bytes;
    double extra; /* what the node was measured to take beyond slow_factor, as a factor; 0: it was not measured */
};

struct view_agent {
    char id[33];
    char name[64];
    char class_name[16]; /* phone | workstation | cloud */
    bool usable;         /* alive, probed, not hot or drained; if not, why_not says so and it gets no stage */
    char why_not[160];
    int64_t memory_bytes;          /* free budget; <= 0 is unknown and gets no stage */
    double gflops, gbytes_per_s;   /* for the roofline; 0 unknown */
    double slow_factor;            /* measured / profiled, over the share while warm; 1 if unknown. See view_spread */
    const struct view_time *times; /* sorted by (node, form, size) */
    int32_t n_times;
    const uint8_t *lacks; /* by value of the graph: a weight that it would have to fetch; NULL: not known */
    int32_t n_lacks;
    double busy_frac;  /* taken by other loaded pipelines */
    double message_ms; /* of its compute that one end of a message takes: hand-over between threads, headers, system */
};

struct view_link {    /* directed; absent links do not exist */
    int32_t from, to; /* agents; -1 is yoked (its up/downlink, where uploaded data comes from) */
    double bytes_per_s;
    double latency_ms; /* one way */
    int32_t shared;    /* links with equal shared >= 0 use one medium (half duplex): their transfers add up */
    double cpu_ns_per_byte;
    enum view_origin origin; /* VIEW_UNKNOWN: not probed, and then no plan is loaded over it */
};

struct view {
    struct view_agent *agents;
    int32_t n_agents;
    struct view_link *links;
    int32_t n_links;
    char **forms;
    int32_t n_forms;
};

/* For an agent that took `slow` times what its profile says, in nodes of which measured[node] is 1: gives their rows
 * what they take beyond the slow_factor of the agent in this model, which is returned. times: sorted. */
double view_spread(struct view_time *times, int32_t n, const uint8_t *measured, int32_t n_nodes, double slow);

struct view *view_copy(const struct view *v); /* deep; NULL when memory is gone */
void view_free(struct view *v);

#endif
