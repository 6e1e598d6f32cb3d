/* The order of training samples: permutations, spread, resuming, what is held out. */
#include "agent/sampler.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void every_sample_once(void **state)
{
    (void)state;
    static const int64_t sizes[] = {1, 2, 3, 4, 5, 7, 16, 17, 64, 65, 1000, 4096, 4097, 60000};
    uint8_t *seen = malloc(60000);
    for (size_t k = 0; k < YK_COUNT(sizes); k++)
        for (int64_t held = 0; held < sizes[k] && held < 8; held += 3)
            for (int64_t epoch = 0; epoch < 3; epoch++) {
                struct sampler s = {.seed = k * 11, .samples = sizes[k], .held = held, .batch = 5};
                assert_int_equal(sampler_check(&s, NULL), YK_OK);
                memset(seen, 0, 60000);
                for (int64_t i = 0; i < held; i++)
                    seen[sampler_held(&s, i)]++;
                for (int64_t i = 0; i < sampler_count(&s); i++) {
                    int64_t at = sampler_sample(&s, epoch, i);
                    assert_true(at >= 0 && at < sizes[k]);
                    seen[at]++;
                }
                for (int64_t i = 0; i < sizes[k]; i++)
                    assert_int_equal(seen[i], 1);
            }
    free(seen);
}

/* Every permutation of a small set comes about equally often, and every sample at every position of a larger one:
 * chi-squared below its mean + 5 deviations. */
static void evenly_spread(void **state)
{
    (void)state;
    enum { N4 = 24000, N50 = 20000 };
    static int64_t seen4[256], seen50[50][50];
    struct sampler s = {.samples = 4, .batch = 1};
    double chi = 0;
    for (int64_t e = 0; e < N4; e++) {
        s.seed = (uint64_t)e / 100;
        int at = 0;
        for (int64_t i = 0; i < 4; i++)
            at = at * 4 + (int)sampler_sample(&s, e % 100, i);
        seen4[at]++;
    }
    int kinds = 0;
    for (int i = 0; i < 256; i++) {
        kinds += seen4[i] > 0;
        chi += seen4[i] ? ((double)seen4[i] - N4 / 24.0) * ((double)seen4[i] - N4 / 24.0) / (N4 / 24.0) : 0;
    }
    assert_int_equal(kinds, 24);
    if (chi > 23 + 5 * 6.8)
        fail_msg("permutations of 4: chi-squared %g", chi);
    s.samples = 50;
    s.seed = 1;
    for (int64_t e = 0; e < N50; e++)
        for (int64_t i = 0; i < 50; i++)
            seen50[i][sampler_sample(&s, e, i)]++;
    chi = 0;
    for (int i = 0; i < 50; i++)
        for (int k = 0; k < 50; k++)
            chi += ((double)seen50[i][k] - N50 / 50.0) * ((double)seen50[i][k] - N50 / 50.0) / (N50 / 50.0);
    if (chi > 2401 + 5 * 69.3)
        fail_msg("positions of 50: chi-squared %g", chi);
}

static void differs_by_epoch_and_seed(void **state)
{
    (void)state;
    struct sampler a = {.seed = 1, .samples = 1000, .batch = 10}, b = a, c = a;
    int same[3] = {0};
    b.seed = 2;
    c.in_order = true;
    for (int64_t i = 0; i < 1000; i++) {
        same[0] += sampler_sample(&a, 0, i) == sampler_sample(&a, 1, i);
        same[1] += sampler_sample(&a, 0, i) == sampler_sample(&b, 0, i);
        same[2] += sampler_sample(&a, 0, i) == i;
        assert_int_equal(sampler_sample(&c, 5, i), i);
    }
    assert_true(same[0] < 10 && same[1] < 10 && same[2] < 10);
    /* the same on every machine */
    assert_int_equal(sampler_sample(&a, 0, 0), 994);
    assert_int_equal(sampler_sample(&a, 3, 999), 528);
    a.samples = 60000;
    a.held = 6000;
    assert_int_equal(sampler_sample(&a, 1, 12345), 21369);
    c.held = 100; /* in order, without what is held out */
    for (int64_t i = 0; i < 900; i++)
        assert_int_equal(sampler_sample(&c, 0, i), sampler_held(&c, 100 + i));
}

static void batches_of_an_epoch(void **state)
{
    (void)state;
    struct sampler s = {.samples = 25, .held = 2, .batch = 5};
    assert_int_equal(sampler_steps(&s), 5);
    struct sampler_batch b = sampler_batch(&s, 4);
    assert_true(b.epoch == 0 && b.first == 20 && b.count == 3);
    b = sampler_batch(&s, 5);
    assert_true(b.epoch == 1 && b.first == 0 && b.count == 5);
    b = sampler_batch(&s, 5000000004);
    assert_true(b.epoch == 1000000000 && b.first == 20 && b.count == 3);
    s.batch = 100; /* one partial batch */
    assert_int_equal(sampler_steps(&s), 1);
    assert_int_equal(sampler_batch(&s, 7).count, 23);
    s.batch = INT64_MAX;
    assert_int_equal(sampler_steps(&s), 1);
}

static void what_cannot_be(void **state)
{
    (void)state;
    static const struct {
        struct sampler s;
        const char *part;
    } bad[] = {{{.samples = 10, .batch = 0}, "from 1"}, {{.samples = 0, .batch = 1}, "empty"},
        {{.samples = 5, .held = 5, .batch = 1}, "held out"}, {{.samples = 5, .held = -1, .batch = 1}, "held out"},
        {{.samples = INT64_MAX, .batch = 1}, "too many"}};
    for (size_t i = 0; i < YK_COUNT(bad); i++) {
        struct yk_diag why = {0};
        assert_int_not_equal(sampler_check(&bad[i].s, &why), YK_OK);
        assert_non_null(strstr(why.text, bad[i].part));
    }
    assert_int_equal(sampler_share(100, 0.1), 10);
    assert_int_equal(sampler_share(3, 0.01), 1);
    assert_int_equal(sampler_share(3, 0.99), 2);
    assert_int_equal(sampler_share(1, 0.5), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_sample_once),
        cmocka_unit_test(evenly_spread),
        cmocka_unit_test(differs_by_epoch_and_seed),
        cmocka_unit_test(batches_of_an_epoch),
        cmocka_unit_test(what_cannot_be),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
