/* A plan: pipelines of stages over agents, the forms, the cuts, what was predicted and why. JSON both ways.
 * Input keys (read): model, graph, forms, microbatch, pipelines[].{share, depth, order, stages[].{agent, nodes}},
 * cuts[].{pipeline, from, to, codec}; and what a request that names none takes from its plan: source, objective,
 * batch. All other keys are derived: written, and ignored when read. */
#ifndef YK_PLAN_H
#define YK_PLAN_H

#include "common/cut.h"
#include "common/json.h"

enum plan_codec { CODEC_FP32, CODEC_FP16, CODEC_INT8 };
enum plan_order { ORDER_FORWARD_FIRST, ORDER_BACKWARD_FIRST }; /* JSON: "forward-first", "backward-first" */
const char *plan_codec_name(enum plan_codec c);                /* "fp32" ... */
bool plan_codec_find(const char *name, enum plan_codec *out);

struct plan_stage {
    char *agent;             /* name or id as the fleet knows it */
    struct cut_range *nodes; /* ascending, not touching */
    int32_t n_nodes;         /* ranges */
    int64_t memory_bytes;    /* derived */
    double predicted_ms;     /* derived: compute of one microbatch */
    double load_ms;      /* derived: what its weights take to be fetched and prepared, before the first microbatch */
    int64_t fetch_bytes; /* derived: of them that its agent lacks */
    const char *origin;  /* derived: where predicted_ms came from: roofline | profile; a constant */
    double slow_factor;  /* derived, not in JSON: how slow the agent was taken to be, in predicted_ms; 0 unknown */
};
#define PLAN_MAX_DEPTH 256
struct plan_pipeline {
    double share;  /* of the microbatches; the shares of a plan add up to 1 */
    int32_t depth; /* microbatches in flight, 1..PLAN_MAX_DEPTH */
    enum plan_order order;
    struct plan_stage *stages;
    int32_t n_stages;
};
struct plan_cut { /* an edge between stages of one pipeline; -1 is the source */
    int32_t pipeline, from, to;
    enum plan_codec codec;
    int64_t bytes;       /* derived: of one microbatch, as encoded */
    double predicted_ms; /* derived: one transfer */
    const char *origin;  /* derived: of its link: measured; a constant */
};
struct plan_alternative { /* derived */
    char *text;
    double step_ms;
    char *bottleneck;
};
struct plan_note { /* derived, where an explanation was asked for */
    char kind[16]; /* what binds, or is changed: "compute", "link", "memory", "heat", "pin", "busy", "device", "codec",
                      "plan" */
    char *text;
    double step_ms;  /* of the best plan with the change; NaN: of what binds, and for cloud-cost */
    double cloud_ms; /* for cloud-cost: what the cloud computes a step then; NaN else */
};
struct plan_bar { /* derived: a step of the event model */
    int32_t row;  /* position in bar_rows */
    double start_ms, end_ms;
    char kind[20];  /* "compute"; of a training "forward", "backward", "both"; "transfer" */
    char label[24]; /* its microbatch; of a training "F3", "B3" */
    char about[96];
};
struct plan {
    char *model, *graph_use; /* "mnist", "infer" */
    char graph_hash[65];
    char **forms; /* one per node; NULL array: not fixed (static rule) */
    int32_t n_forms;
    int64_t microbatch;
    struct plan_pipeline *pipelines;
    int32_t n_pipelines;
    struct plan_cut *cuts;
    int32_t n_cuts;
    char *source, *objective; /* NULL: the plan does not say */
    int64_t batch;            /* samples of a step; 0: the plan does not say */
    int32_t forward_nodes;    /* derived, of a training: nodes before the loss. A plan may name only these */
    /* derived */
    char *job, *solver, *explanation;
    double step_ms, cost_ms, bound_ms, gap, solver_ms;
    double cloud_ms;   /* of a step: compute on devices of class cloud */
    char *bottleneck;  /* "agent pc", "link pc->phone" */
    char *best_single; /* agent; NULL if the model fits nowhere alone */
    double best_single_ms;
    struct plan_alternative *alternatives;
    int32_t n_alternatives;
    struct plan_note *binds, *changes; /* NULL: were not asked for */
    int32_t n_binds, n_changes;
    char **bar_rows; /* agents, links; NULL: no bars were asked for */
    struct plan_bar *bars;
    int32_t n_bar_rows, n_bars;
    int64_t bar_microbatches, all_microbatches; /* how many the bars are of, and how many a step has */
};

/* JSON "graph" is {"use": "infer", "hash": "<64 hex>"}; stages[].nodes is [[first,last],...]. Checks form and ranges of
 * numbers, not the graph (plan_check does). Errors name the key path ("pipelines[0].stages[1].nodes"). */
yk_err plan_from_json(const struct json *j, struct plan **out, struct yk_diag *why);
void plan_to_json(const struct plan *p, struct json_out *out);
/* What bringing it into being takes: its agents at once, the stages of one after another. By name, of one agent. */
double plan_load_ms(const struct plan *p);
double plan_load_ms_of(const struct plan *p, const char *agent);
void plan_free(struct plan *p);
struct plan *plan_copy(const struct plan *p);

/* Against the graph, the hash first: use, number of forms, every node exactly once per pipeline, no empty stage,
 * acyclic, codecs other than fp32 of cuts that exist, microbatch > 0 (and equal to a fixed batch), shares above 0 that
 * add up to 1. Whoever was given a plan calls it before anything else reads the plan. s may be NULL: then whether the
 * sizes of what crosses are known is not looked at. */
yk_err plan_check(const struct plan *p, const struct graph *g, const struct shapes *s, struct yk_diag *why);
/* That it is a plan of this graph at all: before anything in it is taken by node. plan_check begins with it. */
yk_err plan_check_graph(const struct plan *p, const struct graph *g, struct yk_diag *why);
/* stage_of[node] of one pipeline, for cut_*; caller's array of n_nodes. */
yk_err plan_stage_of(const struct plan *p, int32_t pipeline, int32_t n_nodes, int32_t *stage_of, struct yk_diag *why);
/* Codec of an edge; fp32 if the plan does not name it. */
enum plan_codec plan_codec_of(const struct plan *p, int32_t pipeline, int32_t from, int32_t to);

#endif
