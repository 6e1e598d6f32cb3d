/* The memory that a training takes of an agent for some nodes and their backward nodes, before anything is allocated:
 * what kernels/train.c holds. Scheduler and agent count it alike, as with memplan.h. */
#ifndef YK_MEMTRAIN_H
#define YK_MEMTRAIN_H

#include "common/grad.h"
#include "common/memplan.h"

struct memtrain_config {
    const struct graph *graph; /* a training graph */
    const struct shapes *shapes;
    const struct grad_info *info; /* parameters, states, outputs, first_backward */
    const uint8_t *in_stage;      /* a byte per node: forward and backward ones */
    const struct memplan_node *table;
    int32_t slots; /* tensors that the optimizer keeps for each parameter */
    bool whole;    /* forward and backward are one run */
    bool several;  /* microbatches in a step: a gradient lies in the arena until it is added to its sum */
};

struct memtrain_part {
    int64_t fixed, each; /* each: for every microbatch between forward and backward */
    int64_t out;         /* of one microbatch: what leaves, each value rounded up to MEMPLAN_ALIGN */
};
/* half[0]: of the forward part with all that both share (parameters, sums, what the optimizer keeps), or of the whole;
 * half[1]: of the backward part. Errors: those of memplan_make; YK_LIMIT. */
yk_err memtrain_make(const struct memtrain_config *c, struct memtrain_part half[2], struct yk_diag *why);

#endif
