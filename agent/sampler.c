/* A Feistel network over the smallest even number of bits that holds the set, walked until it lands inside (Black and
 * Rogaway, Ciphers with arbitrary finite domains, 2002). Eight rounds: what matters is that small sets are spread as
 * evenly as large ones, see the test. */
#include "agent/sampler.h"

#include <inttypes.h>

#define ROUNDS 8
enum { KEY_ORDER = 1, KEY_HELD = 2 };

/* splitmix64's last steps. */
static uint64_t mix(uint64_t x)
{
    x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
    return x ^ x >> 31;
}

uint64_t sampler_key(uint64_t a, uint64_t b, uint64_t c)
{
    const uint64_t step = UINT64_C(0x9e3779b97f4a7c15);
    uint64_t h = mix(a + step);
    h = mix((h ^ b) + 2 * step);
    return mix((h ^ c) + 3 * step);
}

/* Where i of 0..n-1 goes. */
static int64_t permute(uint64_t key, int64_t n, int64_t i)
{
    int half = 1;
    if (n < 2)
        return 0;
    while (half < 31 && (UINT64_C(1) << 2 * half) < (uint64_t)n)
        half++;
    uint64_t mask = (UINT64_C(1) << half) - 1, x = (uint64_t)i;
    do {
        uint64_t left = x >> half, right = x & mask;
        for (uint64_t r = 0; r < ROUNDS; r++) {
            uint64_t next = left ^ (mix(key + (r + 1) * UINT64_C(0x9e3779b97f4a7c15) + mix(right)) >> 32 & mask);
            left = right;
            right = next;
        }
        x = left << half | right;
    } while (x >= (uint64_t)n);
    return (int64_t)x;
}

yk_err sampler_check(const struct sampler *s, struct yk_diag *why)
{
    if (s->batch < 1)
        return yk_fail(why, YK_INVAL, "a batch of %" PRId64 " samples: from 1", s->batch);
    if (s->samples < 1)
        return yk_fail(why, YK_INVAL, "the data set is empty: there is nothing to train with");
    if (s->samples > INT64_C(1) << 61)
        return yk_fail(why, YK_LIMIT, "%" PRId64 " samples are too many", s->samples);
    if (s->held < 0 || s->held >= s->samples)
        return yk_fail(why, YK_INVAL, "%" PRId64 " of %" PRId64 " samples held out: one must be left to train with",
            s->held, s->samples);
    return YK_OK;
}

int64_t sampler_count(const struct sampler *s)
{
    return s->samples - s->held;
}

int64_t sampler_steps(const struct sampler *s)
{
    int64_t n = sampler_count(s);
    return n / s->batch + (n % s->batch != 0);
}

struct sampler_batch sampler_batch(const struct sampler *s, int64_t step)
{
    int64_t steps = sampler_steps(s), first = step % steps * s->batch;
    return (struct sampler_batch){
        .epoch = step / steps, .first = first, .count = YK_MIN(s->batch, sampler_count(s) - first)};
}

int64_t sampler_held(const struct sampler *s, int64_t i)
{
    return permute(sampler_key(s->seed, KEY_HELD, 0), s->samples, i);
}

int64_t sampler_sample(const struct sampler *s, int64_t epoch, int64_t position)
{
    int64_t n = sampler_count(s);
    if (!s->in_order)
        position = permute(sampler_key(s->seed, KEY_ORDER, (uint64_t)epoch), n, position);
    return s->held ? sampler_held(s, s->held + position) : position;
}

int64_t sampler_share(int64_t samples, double share)
{
    int64_t n = (int64_t)((double)samples * share + 0.5);
    return YK_MAX(YK_MIN(n, samples - 1), YK_MIN(samples - 1, 1));
}
