/* The documented closed-form cost of a pipeline over a snapshot; pure.
 *
 * For M microbatches of m samples (the last may be smaller and is counted whole):
 *   cost = first + (M - 1) * bottleneck
 *   first      = one microbatch through everything: its stages' times and its edges' transfers, one after another;
 *                yoked -> source (if the source is the planner's choice and that link is known), source -> stages,
 *                stages -> stages directly (a tensor used by two later stages goes to each), outputs -> source, and
 *                -> yoked where they are wanted and the inputs came from there. A training takes its samples from yoked
 *                once: a step counts the part of them that epochs leave
 *   bottleneck = the largest time that one microbatch takes of a resource: an agent's compute (all its stages), a
 *                directed link, or a medium that links share (half duplex)
 *   transfer   = latency + bytes / rate + bytes * cpu; only bytes / rate and cpu occupy the link
 *   node time  = profile of the node in its form, linear between measured sizes, proportional above them, half of the
 *                smallest fixed below them; of an agent without any profile FLOPs / GFLOP/s + bytes / GB/s; times
 *                slow_factor and what the node took beyond it, over (1 - busy_frac); in a training also what becomes of
 * the gradients that the node makes, at the agent's GB/s: each microbatch but a step's first adds them to their sums
 * (reads and writes these), and the step reads them and reads and writes parameters and optimizer state messages   = an
 * agent spends message_ms at each end of a transfer, and the source once more for the result to yoked Objective
 * cloud-cost: the least cloud = M * the time of one microbatch's nodes on agents of class cloud (of each pipeline for
 * its share) among what costs no more than the deadline; of equals the least cost. Several pipelines of a forced plan:
 * the largest of their costs for their shares, and no less than any resource's sum.
 */
#ifndef YK_COST_H
#define YK_COST_H

#include "common/memtrain.h"
#include "scheduler/solve.h"

#define COST_HEADER_BYTES 512 /* of a microbatch on the wire, roughly: tensors' descriptions and frame headers */

struct cost_model {
    const struct solve_request *req;
    const struct view *view;
    const struct graph *graph;
    struct shapes shapes;       /* at the microbatch */
    int64_t microbatch, count;  /* m, M */
    int32_t *form;              /* by node: index into view->forms, -1 free */
    double *node_ms;            /* [agent * n_nodes + node]; NaN: cannot run there */
    enum view_origin *origin;   /* by agent: the weakest of its nodes */
    int32_t *link;              /* [(from + 1) * (n_agents + 1) + to + 1]: index into view->links, -1 none usable */
    int32_t n_resources;        /* agents, then links, then media */
    int32_t *link_resource;     /* by link */
    struct memplan_node *table; /* by node: of the chosen forms */
    double stop_ms;             /* of cost_now_ms: a search takes what it has by then; 0: never */
};
/* What the node takes beyond the agent's slow_factor; 1 if nothing is known. */
double cost_extra(const struct cost_model *m, int32_t agent, int32_t node);
double cost_now_ms(void); /* monotonic */
bool cost_out_of_time(const struct cost_model *m);

struct cost_stage {
    int32_t agent;
    double ms, message_ms; /* of its nodes; of the messages of its agent, counted at the agent's first stage */
};
struct cost_edge {
    int32_t from, to; /* stages; -1 the source, -2 yoked (from: its inputs, to: its outputs) */
    int64_t bytes;
    enum plan_codec codec;
    double busy_ms, latency_ms; /* 0 on one agent */
    int32_t resource;           /* -1 on one agent */
};
struct cost_line { /* one pipeline, priced */
    struct cost_stage *stages;
    struct cost_edge *edges;
    int32_t n_stages, n_edges;
    int32_t source;
    int32_t *stage_of;
    double source_ms; /* of the source's messages, if no stage is there */
    double first_ms, bottleneck_ms, cost_ms;
    double cloud_ms;    /* of one microbatch: its nodes on agents of class cloud */
    int32_t bottleneck; /* resource */
};

/* Forms a plan would fix, by node (index into view->forms, -1: nobody has a profile). */
void cost_choose_forms(const struct solve_request *req, const struct view *v, int32_t *form);
/* Fills m for one microbatch size. Errors: shapes that do not infer at this size. End with cost_fini. */
yk_err cost_init(struct cost_model *m, const struct solve_request *req, const struct view *v, const int32_t *form,
    int64_t microbatch, struct yk_diag *why);
void cost_fini(struct cost_model *m);

/* Prices a pipeline of any form. forced: NULL, or the plan whose codecs count (pipeline index `which`); else every edge
 * takes the smallest codec that the request allows. Errors: YK_INFEASIBLE names the node or the link that is missing.
 */
yk_err cost_price(const struct cost_model *m, int32_t source, const int32_t *agents, int32_t n_stages,
    const int32_t *stage_of, const struct plan *forced, int32_t which, struct cost_line *out, struct yk_diag *why);
void cost_line_fini(struct cost_line *l);
/* What one microbatch of it takes of a resource. */
double cost_line_load(const struct cost_line *l, int32_t resource);

/* The smallest allowed codec's size of a value, and a whole transfer's time; latency goes to *latency_ms. */
enum plan_codec cost_codec(const struct cost_model *m);
int64_t cost_value_bytes(const struct cost_model *m, int32_t value, enum plan_codec codec);
double cost_transfer_ms(const struct cost_model *m, int32_t link, int64_t bytes, double *latency_ms);
int32_t cost_link(const struct cost_model *m, int32_t from, int32_t to); /* -1: none usable */
/* What a microbatch of a job without a source of its own takes between yoked and the one that it gets; the message at
 * its end not counted. False: nothing, or the link is not known. */
bool cost_upload(const struct cost_model *m, int32_t source, struct cost_edge *out);
bool cost_answer(const struct cost_model *m, int32_t source, struct cost_edge *out);
/* What the node's form takes to prepare its weights there; 0 where no profile says. */
double cost_prepare_ms(const struct cost_model *m, int32_t agent, int32_t node);
/* What bytes of weights take to an agent that lacks them: from yoked, or as from the neighbour with the best link where
 * yoked's is not known; 0 of none, and where no link is known. */
double cost_fetch_ms(const struct cost_model *m, int32_t agent, int64_t bytes);
/* What no plan over any agents undercuts, of one microbatch: the sum of every node on its best agent; in *work_ms the
 * largest load of an agent, which is at least the work over the pace of all. */
double cost_floor(const struct cost_model *m, double *work_ms);
/* "agent pc", "link pc->phone", "link pc<->phone". out: 160 bytes. */
void cost_resource_name(const struct cost_model *m, int32_t resource, char *out);
/* Bytes a stage takes on its agent: fixed, and each for one microbatch of the depth more. */
yk_err cost_memory_parts(
    const struct cost_model *m, const uint8_t *in_stage, int64_t *fixed, int64_t *each, struct yk_diag *why);
/* Of a training's nodes of one unit (forward nodes and their backward nodes), one run or two. */
yk_err cost_memory_unit(
    const struct cost_model *m, const uint8_t *in_stage, bool whole, struct memtrain_part half[2], struct yk_diag *why);
/* The same at this depth. */
yk_err cost_memory(
    const struct cost_model *m, const uint8_t *in_stage, int32_t depth, int64_t *out, struct yk_diag *why);

#endif
