/* The memory a stage takes, before anything is allocated. Scheduler and agent call this with the same table and get the
 * same bytes, so estimate and allocation agree. */
#ifndef YK_MEMPLAN_H
#define YK_MEMPLAN_H

#include "common/shapes.h"

#define MEMPLAN_ALIGN 64

/* Per node: what the chosen form adds. From the agent's profile, or zeros where unknown. */
struct memplan_node {
    int64_t packed_bytes;    /* weights in the form's own layout, kept beside the original unless drops_weights */
    int64_t workspace_bytes; /* scratch while the node runs */
    bool drops_weights;      /* the original weights are not needed once packed */
};

struct memplan {
    int64_t arena_bytes;  /* intermediates + workspace */
    int64_t weight_bytes; /* resident originals */
    int64_t packed_bytes;
    int64_t in_bytes, out_bytes; /* boundary values of one microbatch (inputs from elsewhere, outputs that leave) */
    int64_t total_bytes;         /* arena + weights + packed + depth * (in + out) */
    int64_t *offset; /* by value id: place in the arena, -1 if not there (weights, boundary, not in the stage) */
    int64_t workspace_offset;
    int32_t n_in, n_out;
    int32_t *in, *out; /* boundary value ids, ascending */
    struct yk_arena *arena;
};

/* in_stage: one byte per node of the graph. table: by node, or NULL (zeros). shapes: at the maximum sizes.
 * Values that OP_VIEW nodes make share their input's place. Buffers are placed by size, largest first, lowest free
 * offset over its lifetime; the same input always gives the same plan. */
yk_err memplan_make(const struct graph *g, const struct shapes *s, const uint8_t *in_stage,
    const struct memplan_node *table, int32_t depth, struct memplan *out, struct yk_diag *why);
void memplan_fini(struct memplan *m);

#endif
