/* Where a graph can be cut, and what crosses.
 * A stage is a set of node indices; node sets are bitmaps of (n_nodes + 7) / 8 bytes or lists of ranges. */
#ifndef YK_CUT_H
#define YK_CUT_H

#include "common/shapes.h"

struct cut_range {
    int32_t first, last; /* inclusive, canonical order */
};

/* The prefix cut after node `after` (-1: nothing before; n_nodes-1: everything): the values that cross. */
struct cut {
    int32_t after;
    int32_t n_values;
    const int32_t
        *values;        /* ids, ascending; node outputs and graph inputs that nodes behind read; weights never cross */
    int64_t bytes;      /* forward, for the sizes that the shapes were inferred for */
    int64_t grad_bytes; /* backward: of the float values among them */
    bool forbidden;     /* a value that crosses has a data-dependent shape or is a sequence */
};

struct cuts {
    struct cut *at; /* n_nodes + 1 of them: at[i].after == i - 1 */
    int32_t n;
    struct yk_arena *arena;
};
/* YK_LIMIT where the lists of values would take more than 256 MiB. */
yk_err cut_all(const struct graph *g, const struct shapes *s, struct cuts *out, struct yk_diag *why);
void cuts_fini(struct cuts *c);

/* ---- stages of any form ---- */
#define CUT_MAX_STAGES 1024
/* stage_of[node] in 0..n_stages-1 for every node. Checks that the graph of stages is acyclic and no stage is empty, and
 * that nothing forbidden crosses (s NULL: sizes that depend on data are not found). Errors name the two nodes that
 * force the cycle, or the value. */
yk_err cut_check(
    const struct graph *g, const struct shapes *s, const int32_t *stage_of, int32_t n_stages, struct yk_diag *why);

/* One directed edge of the stage graph. Stage -1 is the source: it makes the graph inputs and takes the outputs. A
 * graph output that other stages read too goes both ways; one that is a graph input or a weight needs no edge: the
 * source has it. */
struct cut_edge {
    int32_t from, to;
    int32_t n_values;
    const int32_t *values; /* ascending */
    int64_t bytes, grad_bytes;
    int32_t n_also; /* of cut_edges_join: other stages, where `to` is, that read some of the values */
    const int32_t *also;
};
struct cut_edges {
    struct cut_edge *at; /* ordered by (from, to) */
    int32_t n;
    struct yk_arena *arena;
};
/* YK_UNSUPPORTED where a graph input is no tensor of known size or an output no tensor, YK_INVAL where one between
 * stages is no tensor of known size. An output whose size depends on data counts no bytes.
 * s NULL: without bytes. */
yk_err cut_edges_find(const struct graph *g, const struct shapes *s, const int32_t *stage_of, int32_t n_stages,
    struct cut_edges *out, struct yk_diag *why);
/* What several stages of one agent read from one stage travels once: edges that share a value become one, to the lowest
 * of those stages, with the others in `also`. agent_of: by stage, any numbers; edges to the source stay as they are. */
yk_err cut_edges_join(
    struct cut_edges *e, const struct shapes *s, const int32_t *agent_of, int32_t n_stages, struct yk_diag *why);
void cut_edges_fini(struct cut_edges *e);

#endif
