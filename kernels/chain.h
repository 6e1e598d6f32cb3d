/* Elementwise chains: nodes of a segment that follow each other, each computing an element (or a row) from the same
 * element of one before, run as one loop over the data, a piece that stays in the nearest cache at a time. A value that
 * only the chain reads is never written to memory.
 *
 * Each node is its kernel's own loop over the elements of the piece, so bits are those of the nodes one by one: a chain
 * is not in the graph, it ends where a segment ends, and every cut stays offered. */
#ifndef YK_CHAIN_H
#define YK_CHAIN_H

#include "kernels/host.h"
#include "kernels/iter.h"

#define CHAIN_MOST 6
#define CHAIN_OPERANDS 5
#define CHAIN_PIECE 2048 /* elements */
#define CHAIN_LINE \
    64 /* ranges begin at multiples of it: where a loop has its remainder decides which of two NaN wins */

/* Rows of n: steps within a row, then from one to the next. */
struct chain_rows {
    int64_t rows, n, as, bs, a_row, b_row;
};

/* A node as loops over ranges of its output. Kernels whose row has `map` fill it from a call; it is valid as long as
 * what the call points to. */
struct chain_map {
    int64_t
        unit; /* elements that go together, as rows: ranges begin at multiples of it; 1: at multiples of CHAIN_LINE */
    int64_t cost;  /* of an element, about nanoseconds (see host_split) */
    uint32_t full; /* bit i: operand i has the output's elements in the output's order */
    /* Elements begin..end. y, and in[i] of full operands, point at element begin, other in[i] at their first. */
    void (*piece)(const struct chain_map *m, float *y, const float *const *in, int64_t begin, int64_t end);
    /* For piece. */
    union {
        void (*unary)(float *restrict y, const float *restrict x, int64_t n, float p, float q);
        void (*binary)(float *restrict y, const float *restrict a, const float *restrict b, const struct chain_rows *r);
    };
    float p, q;
    struct iter it;
    const float *made; /* in the call's workspace; NULL: that is not used. One node of a chain may */
};

/* Runs one node. */
void chain_run_map(struct host_call *c, const struct chain_map *m);

/* How many of the nodes from `at` on may run as one, by the graph alone: 1 if there is no chain. kernels: of each of
 * the n nodes. */
int chain_span(
    const struct graph *g, const int32_t *nodes, const struct host_kernel *const *kernels, int32_t n, int32_t at);

/* Runs the nodes of a span, calls[k] with the kernel of node k; unread: bit k: no node behind the span reads what node
 * k makes. False if they cannot run as one at these shapes and places: nothing has happened then. */
bool chain_run(struct host_call *calls, const struct host_kernel *const *kernels, int n, uint32_t unread);

#endif
