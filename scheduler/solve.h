/* From a snapshot and a request to a plan. */
#ifndef YK_SOLVE_H
#define YK_SOLVE_H

#include "common/plan.h"
#include "scheduler/view.h"

enum solve_objective { SOLVE_LATENCY, SOLVE_THROUGHPUT, SOLVE_CLOUD_COST };
bool solve_objective_find(const char *name, enum solve_objective *out);
const char *solve_objective_name(enum solve_objective o);

/* What a training graph adds: which forward node each of its nodes belongs to (grad.h). */
struct solve_training {
    const int32_t *of;            /* by node */
    const struct grad_info *info; /* without `of`; NULL: memory is counted as of other jobs */
    int32_t n_forward, first_loss, first_backward;
    int64_t state_bytes; /* per byte of a trained parameter: what the optimizer keeps for it */
};

struct solve_request {
    const struct graph *graph; /* canonical; borrowed */
    const char *model;
    const char *job; /* "infer" | "batch" | "train" | "iterate" */
    enum solve_objective objective;
    const int64_t *sizes;      /* by named dimension, the batch's is ignored; NULL: ones */
    int64_t batch;             /* samples of one step; for batch jobs the number per step that the user asked for */
    int64_t microbatch;        /* 0: the planner chooses among divisors-like candidates */
    int32_t source;            /* agent index, or -1: the planner picks it, input comes from yoked */
    double upload_frac;        /* of that a step takes so much of its inputs anew; 0: all */
    bool answers;              /* and the outputs go back to yoked */
    int64_t samples;           /* of the whole job, 0 unknown */
    double deadline_ms;        /* of the whole job; 0 none */
    const bool *codec_allowed; /* by enum plan_codec; fp32 always is */
    bool pin_first, pin_last;  /* first / last stage stays on the source */
    bool replicas;             /* a plan may be several pipelines with shares of the microbatches */
    bool closed_form;          /* the least cost_ms decides, not the event model: what proofs ask for */
    const struct plan *forced; /* not NULL: check, price and explain this plan, search nothing */
    const char *const *forms;  /* a name per node that the job has fixed; NULL: choose */
    const struct solve_training *training; /* job "train"; else NULL */
    double budget_ms;                      /* of the search; anytime solvers stop there. 0: none */
    int64_t *looks; /* instead of the clock: each look at it takes one, with none left the time is over; NULL */
};

/* The microbatch sizes that are looked at, SOLVE_SIZES at most. */
#define SOLVE_SIZES 40
int32_t solve_sizes(const struct solve_request *req, int64_t *sizes);

struct solver {
    const char *name; /* "dp", "brute" */
    /* Errors: YK_INFEASIBLE (why names the agents and the constraint, with numbers), YK_INVAL, YK_NOMEM. */
    yk_err (*solve)(const struct solve_request *req, const struct view *view, struct plan **out, struct yk_diag *why);
};
extern const struct solver *const solvers[]; /* NULL-ended; the first that fits the size is the default */
const struct solver *solver_find(const char *name);

struct solve_chain;
/* What a search over a part of the fleet is told about the whole. */
struct solve_hints {
    const struct solve_chain *chains; /* worth a look; agents of this part */
    const int64_t *microbatch;        /* of each */
    int32_t n;
    bool search;     /* look for chains of its own too */
    double bound_ms; /* no pipeline of the whole fleet costs less */
    const char *solver;
};
/* Without hints: over the whole of v. Errors: as struct solver's. */
yk_err solve_search(const struct solve_request *req, const struct view *v, const struct solve_hints *hints,
    struct plan **out, struct yk_diag *why);

/* The default: picks a solver, checks the result with plan_check, scores the best candidates and every single device
 * with the event model, fills the derived keys and the explanation. Thread: any; pure. */
yk_err solve_plan(const struct solve_request *req, const struct view *view, struct plan **out, struct yk_diag *why);

#endif
