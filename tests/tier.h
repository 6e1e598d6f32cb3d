/* How much of a seeded test runs: all of it with YOKE_FULL=1, a part else, and a quarter of that part where sanitizers
 * make each case ten times slower (YOKE_SANITIZED). YOKE_SEED chooses the seeds. */
#ifndef YK_TESTS_TIER_H
#define YK_TESTS_TIER_H

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

static inline uint64_t tier_seed(void)
{
    const char *s = getenv("YOKE_SEED");
    return s ? strtoull(s, NULL, 10) : 1;
}

static inline bool tier_full(void)
{
    const char *s = getenv("YOKE_FULL");
    return s && strcmp(s, "1") == 0;
}

static inline uint64_t tier_count(uint64_t full, uint64_t part)
{
    if (tier_full())
        return full;
    return getenv("YOKE_SANITIZED") ? (part + 3) / 4 : part;
}

/* Whether n random cases met as many of a kind as they should, of which `share` of all cases are: false only below six
 * standard deviations, so that no seed fails by luck, and a generator that lost the kind fails where n is large enough
 * to tell. */
static inline bool tier_share(int64_t seen, int64_t n, double share)
{
    return (double)seen + 6 * sqrt(share * (1 - share) * (double)n) >= share * (double)n;
}

#endif
