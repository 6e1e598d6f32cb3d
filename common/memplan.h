/* The memory a stage takes, before anything is allocated. Scheduler and agent call this with the same table and get the
 * same bytes, so estimate and allocation agree. */
#ifndef YK_MEMPLAN_H
#define YK_MEMPLAN_H

#include "common/shapes.h"

#define MEMPLAN_ALIGN 64
#define MEMPLAN_HEAP_BYTES ((int64_t)1 << 20)

/* Rounded up to MEMPLAN_ALIGN; bytes may not be near INT64_MAX. */
static inline int64_t memplan_align(int64_t bytes)
{
    return (bytes + MEMPLAN_ALIGN - 1) / MEMPLAN_ALIGN * MEMPLAN_ALIGN;
}

/* Per node: what the chosen form adds. From the agent's profile, or zeros where unknown. */
struct memplan_node {
    int64_t packed_bytes;    /* weights in the form's own layout, kept beside the original unless drops_weights */
    int64_t workspace_bytes; /* scratch while the node runs */
    bool drops_weights;      /* no weight among the node's inputs is needed once packed */
};

struct memplan {
    int64_t arena_bytes;  /* intermediates + workspace */
    int64_t weight_bytes; /* resident originals */
    int64_t packed_bytes;
    int64_t in_bytes, out_bytes; /* boundary values of one microbatch, each rounded up to MEMPLAN_ALIGN */
    int64_t stay_bytes;          /* outputs that stay with the stage (graph.n_staying): once, whatever the depth */
    int64_t heap_bytes;          /* what values whose size depends on data are counted at; 0 if there are none */
    int64_t total_bytes;         /* arena + weights + packed + stay + heap + depth * (in + out) */
    int64_t *offset; /* by value id: place in the arena, -1 if not there (weights, boundary, not in the stage) */
    int32_t *root;   /* by value id: the value whose memory holds it: itself, or what a chain of views starts from */
    int64_t workspace_offset; /* one region behind the intermediates, as large as the largest workspace of a node */
    int32_t n_in, n_out;
    int32_t *in, *out; /* boundary value ids, ascending; what stays is in out too */
    struct yk_arena *arena;
};

/* Where an executor finds a value while the stage runs:
 *   ARENA   arena + offset
 *   IN      the buffer of boundary input in[index]
 *   OUT     the buffer of boundary output out[index]; of one that is taken, arena + offset where the caller gives none
 *   WEIGHT  the data of weight `root`
 *   NOWHERE the stage does not touch the value, or its size depends on data
 * A view (OP_VIEW) has the place of its root and costs nothing: if the places of its input and its output are equal the
 * executor skips the node. A view that leaves the stage has a buffer of its own (OUT): then the executor copies.
 * A buffer lives from the node that makes it to the last node that reads it or a view of it, both included, so outputs
 * never overlap inputs. */
enum memplan_where { MEMPLAN_NOWHERE, MEMPLAN_ARENA, MEMPLAN_IN, MEMPLAN_OUT, MEMPLAN_WEIGHT };
struct memplan_place {
    enum memplan_where where;
    int32_t root;   /* value id */
    int32_t index;  /* of IN and OUT */
    int64_t offset; /* of ARENA, and of an OUT that is taken; -1 */
};

/* in_stage: one byte per node of the graph. table: by node, or NULL (zeros). shapes: at the maximum sizes.
 * Values whose size depends on data (shapes.h) are left out: they live on a heap of the stage. YK_UNSUPPORTED where one
 * would enter or leave a stage otherwise than as input or output of the graph.
 * Values that OP_VIEW nodes make share their input's place. Buffers are placed by size, largest first, lowest free
 * offset over its lifetime; the same input always gives the same plan. */
yk_err memplan_make(const struct graph *g, const struct shapes *s, const uint8_t *in_stage,
    const struct memplan_node *table, int32_t depth, struct memplan *out, struct yk_diag *why);
/* The same with outputs that are taken: by value id, 1 for an output whose contents the caller takes as soon as the
 * node that makes it has run. It lies in the arena, for as long as nodes of the stage need it, instead of in a buffer
 * of out_bytes or stay_bytes; it is still in `out`. taken may be NULL. */
yk_err memplan_make_taken(const struct graph *g, const struct shapes *s, const uint8_t *in_stage,
    const struct memplan_node *table, const uint8_t *taken, int32_t depth, struct memplan *out, struct yk_diag *why);
struct memplan_place memplan_place(const struct memplan *m, const struct graph *g, int32_t value);
void memplan_fini(struct memplan *m);

#endif
