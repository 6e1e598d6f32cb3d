/* Reads a data set ahead of who computes: a thread of its own fills a bounded ring of batches in order, so that
 * reading, decoding, resizing and augmenting pass while the last batch is computed. The set belongs to that thread
 * until close. What is in a batch does not depend on how far ahead it is read. For programs without a loop; an agent's
 * source has its workers for this. */
#ifndef YK_DATA_AHEAD_H
#define YK_DATA_AHEAD_H

#include "agent/batches.h"

struct data_ahead;

struct data_ahead_batch {
    int64_t first, count; /* samples; in training: first is the position in the epoch */
    int64_t step, epoch;  /* of training; else the number of the microbatch and 0 */
    void *x;              /* 64-byte aligned; several inputs as data_at says of count */
    void *y;              /* 64-byte aligned, as data_truth says; NULL if the set has none */
};

/* Microbatches of the samples first..first+count-1, remainder last; depth of them are in memory (from 2). */
yk_err data_ahead_open(struct data_set *d, int64_t first, int64_t count, int64_t microbatch, int depth,
    struct data_ahead **out, struct yk_diag *why);
/* The batches of steps first_step..end_step-1; b is copied. Errors: also those of batches_check. */
yk_err data_ahead_train(const struct batches *b, int64_t first_step, int64_t end_step, int depth,
    struct data_ahead **out, struct yk_diag *why);
/* Microbatches of the samples that b holds out. */
yk_err data_ahead_held(
    const struct batches *b, int64_t microbatch, int depth, struct data_ahead **out, struct yk_diag *why);
/* The next one, when it is there; NULL after the last. The one before goes back. Errors: those of data_read. */
yk_err data_ahead_next(struct data_ahead *a, const struct data_ahead_batch **out, struct yk_diag *why);
void data_ahead_close(struct data_ahead *a); /* waits for the read that runs; NULL allowed */

#endif
