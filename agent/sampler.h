/* Which samples a step of training takes. The order of an epoch is a permutation that is computed, not stored: sample
 * of (seed, epoch, position) alone, so a run that stops at any step goes on with the order it would have had, and the
 * whole state is the number of the step. Every sample comes once an epoch; a partial last batch is kept. Samples may
 * be held out for validation; which ones is a function of the seed. Thread: any. */
#ifndef YK_SAMPLER_H
#define YK_SAMPLER_H

#include "common/yk.h"

struct sampler {
    uint64_t seed;
    int64_t samples; /* of the set */
    int64_t held;    /* of these, kept out of training */
    int64_t batch;
    bool in_order; /* position i is the i-th sample that is not held out, in every epoch */
};

struct sampler_batch {
    int64_t epoch, first, count; /* positions first..first+count-1 of the epoch */
};

/* Errors: YK_INVAL for a batch below 1, nothing to train with, or a negative number. */
yk_err sampler_check(const struct sampler *s, struct yk_diag *why);
int64_t sampler_count(const struct sampler *s); /* samples of an epoch */
int64_t sampler_steps(const struct sampler *s); /* batches of an epoch */
/* step from 0 over all epochs. */
struct sampler_batch sampler_batch(const struct sampler *s, int64_t step);
/* The sample at a position below sampler_count. */
int64_t sampler_sample(const struct sampler *s, int64_t epoch, int64_t position);
/* The i-th sample that is held out, i below s->held; sorted by nothing. */
int64_t sampler_held(const struct sampler *s, int64_t i);
/* How many samples a share of a set is: at least 1, at most all but 1. */
int64_t sampler_share(int64_t samples, double share);

/* A number that is spread over 64 bits by a, b and c, as seed of a stream of its own. */
uint64_t sampler_key(uint64_t a, uint64_t b, uint64_t c);

#endif
