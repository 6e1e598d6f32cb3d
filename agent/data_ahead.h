/* Reads a data set ahead of who computes: a thread of its own fills a bounded ring of microbatches in order, so that
 * reading, decoding and resizing pass while the last microbatch is computed. The set belongs to that thread until
 * close. For programs without a loop; an agent's source has its workers for this. */
#ifndef YK_DATA_AHEAD_H
#define YK_DATA_AHEAD_H

#include "agent/data.h"

struct data_ahead;

struct data_ahead_batch {
    int64_t first, count;
    void *x;    /* 64-byte aligned */
    int64_t *y; /* NULL if the set has no labels */
};

/* Microbatches of the samples first..first+count-1, remainder last; depth of them are in memory (from 2). */
yk_err data_ahead_open(struct data_set *d, int64_t first, int64_t count, int64_t microbatch, int depth,
    struct data_ahead **out, struct yk_diag *why);
/* The next one, when it is there; NULL after the last. The one before goes back. Errors: those of data_read. */
yk_err data_ahead_next(struct data_ahead *a, const struct data_ahead_batch **out, struct yk_diag *why);
void data_ahead_close(struct data_ahead *a); /* waits for the read that runs; NULL allowed */

#endif
