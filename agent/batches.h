/* The batches of a training run: what step s is given is a function of the data set, the sampler, the augmentations and
 * s alone. For one thread at a time; data_ahead.h reads them ahead. */
#ifndef YK_BATCHES_H
#define YK_BATCHES_H

#include "agent/data.h"
#include "agent/sampler.h"

struct batches {
    struct data_set *set; /* borrowed */
    struct sampler sampler;
    struct augment augment; /* drawn by sampler.seed */
};

/* Sampler and augmentations suit each other and the set, which must have something to train towards. Once, before the
 * first fill. */
yk_err batches_check(const struct batches *b, struct yk_diag *why);
/* x and y: room for sampler.batch samples (data_at, data_truth); the first *count of them are filled, several inputs
 * as data_at says of *count. */
yk_err batches_fill(const struct batches *b, int64_t step, void *x, void *y, int64_t *count, struct yk_diag *why);
/* Of the samples held out, count from first, as they are. */
yk_err batches_held(const struct batches *b, int64_t first, int64_t count, void *x, void *y, struct yk_diag *why);

#endif
