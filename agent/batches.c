#include "agent/batches.h"

#include <inttypes.h>

yk_err batches_check(const struct batches *b, struct yk_diag *why)
{
    yk_err err = sampler_check(&b->sampler, why);
    if (err)
        return err;
    if (b->sampler.samples != data_count(b->set))
        return yk_fail(why, YK_INVAL, "an order of %" PRId64 " samples for a set of %" PRId64, b->sampler.samples,
            data_count(b->set));
    if (!data_truth(b->set))
        return yk_fail(why, YK_INVAL, DATA_NO_TRUTH);
    return data_augmentable(b->set, &b->augment, why);
}

/* A sample of all inputs but the first, as the i-th of count. */
static yk_err read_others(struct data_set *set, int64_t sample, int64_t i, int64_t count, void *x, struct yk_diag *why)
{
    yk_err err = YK_OK;
    for (int k = 1, n = data_inputs(set); !err && k < n; k++)
        err = data_read_of(set, k, sample, 1,
            (uint8_t *)x + data_at(set, k, count) + i * shape_bytes(data_sample_of(set, k)), NULL, why);
    return err;
}

yk_err batches_fill(const struct batches *b, int64_t step, void *x, void *y, int64_t *count, struct yk_diag *why)
{
    size_t x_row = (size_t)shape_bytes(data_sample(b->set)), y_row = (size_t)shape_bytes(data_truth(b->set));
    struct sampler_batch at = sampler_batch(&b->sampler, step);
    for (int64_t i = 0; i < at.count; i++) {
        struct augment_key key = {
            .seed = b->sampler.seed, .epoch = at.epoch, .sample = sampler_sample(&b->sampler, at.epoch, at.first + i)};
        yk_err err = data_read_augmented(
            b->set, &b->augment, &key, (uint8_t *)x + (size_t)i * x_row, (uint8_t *)y + (size_t)i * y_row, why);
        if (!err)
            err = read_others(b->set, key.sample, i, at.count, x, why);
        if (err)
            return err;
    }
    *count = at.count;
    return YK_OK;
}

yk_err batches_held(const struct batches *b, int64_t first, int64_t count, void *x, void *y, struct yk_diag *why)
{
    size_t x_row = (size_t)shape_bytes(data_sample(b->set)), y_row = (size_t)shape_bytes(data_truth(b->set));
    if (first < 0 || count < 0 || first > b->sampler.held - count)
        return yk_fail(why, YK_INVAL, "samples %" PRId64 " to %" PRId64 " of %" PRId64 " held out", first,
            first + count, b->sampler.held);
    for (int64_t i = 0; i < count; i++) {
        int64_t sample = sampler_held(&b->sampler, first + i);
        yk_err err =
            data_read_of(b->set, 0, sample, 1, (uint8_t *)x + (size_t)i * x_row, (uint8_t *)y + (size_t)i * y_row, why);
        if (!err)
            err = read_others(b->set, sample, i, count, x, why);
        if (err)
            return err;
    }
    return YK_OK;
}
