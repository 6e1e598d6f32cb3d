/* A priced way to do a job: what solvers find, the event model scores, and the explanation compares. */
#ifndef YK_CANDIDATE_H
#define YK_CANDIDATE_H

#include "scheduler/cost.h"
#include "scheduler/schedule.h"

struct candidate {
    struct cost_line *lines; /* pipelines; one, but for forced plans */
    double *shares;
    int32_t n_lines;
    int64_t microbatch, count;
    int32_t depth;
    const struct plan *given; /* each pipeline has the depth that this plan gives it; NULL: all have `depth` */
    double cost_ms, step_ms;
    double cloud_ms; /* of the step: compute on agents of class cloud */
    bool late;       /* objective cloud-cost: not within the deadline */
    bool left_out;   /* it was looked at and not scored: others are better, or it does not fit */
    char bottleneck[160];
    int64_t *memory;       /* by stage of the first pipeline, then the next ...; at depth */
    int64_t *fixed, *each; /* the same without microbatches, and for each of the depth; NULL: not asked for yet */
    int64_t source_fixed, source_each; /* of a training whose source has no stage */
};

/* Memory of every stage at depth, and whether it fits; why names agent, need and limit. */
yk_err candidate_memory(const struct cost_model *m, struct candidate *c, int32_t depth, struct yk_diag *why);
/* Of a training: fixed and each by stage, source_fixed and source_each. known: of the whole model on one device, if it
 * was asked before (cost_memory_unit); else NULL. */
yk_err candidate_train_memory(const struct cost_model *m, struct candidate *c, const struct memtrain_part *known,
    int64_t *fixed, int64_t *each, struct yk_diag *why);
/* Runs the event model for depth 1..max_depth as memory allows (or at the given depth only, if fixed > 0) and keeps the
 * depth with the least step time (the smallest such). Sets step_ms, depth, memory, bottleneck. */
yk_err candidate_score(
    const struct cost_model *m, struct candidate *c, int32_t max_depth, int32_t fixed, struct yk_diag *why);
void candidate_fini(struct candidate *c);

struct candidate_bar {                   /* something of one microbatch that occupies a resource */
    int32_t line, resource, stage, edge; /* stage -1: an edge; both -1: messages of a source without a stage */
    int64_t microbatch;                  /* of the step, over all pipelines */
    double start_ms, end_ms;
};
/* Runs the event model of at most `most` microbatches of each pipeline, at c->depth, and calls fn for each bar. busy_ms
 * (by resource; may be NULL) is of the whole step. */
yk_err candidate_trace(const struct cost_model *m, const struct candidate *c, int64_t most,
    void (*fn)(void *arg, const struct candidate_bar *bar), void *arg, double *busy_ms);

/* The text of --explain. chosen first; others sorted by step time. free() it. */
char *candidate_explain(const struct cost_model *m, const struct candidate *chosen, const struct candidate *single,
    const struct candidate *const *others, int32_t n_others, const char *solver);
/* "pc 0-5 | phone 6-11", for lists of alternatives; ", source phone" where that is another than this. free() it. */
/* What stage `stage` of pipeline `which` takes to be there: its weights fetched, where it is known that its agent lacks
 * them (bytes in *fetch_bytes), and prepared. */
double candidate_load(
    const struct cost_model *m, const struct candidate *c, int32_t which, int32_t stage, int64_t *fetch_bytes);
char *candidate_text(const struct cost_model *m, const struct candidate *c, int32_t source);

#endif
