/* Optimizers, clipping and schedules against PyTorch's own steps (tests/golden/make_optim.py). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/optim.h"

#define MAX 64
#define TENSORS 3

static int floats(char *text, float *out)
{
    int n = 0;
    for (char *at = strtok(text, " \n"); at && n < MAX; at = strtok(NULL, " \n"))
        out[n++] = strtof(at, NULL);
    return n;
}

struct run {
    struct optim o;
    double lr, clip;
    int size[TENSORS], n, step;
    float p[MAX], slots[2][MAX], g[MAX];
    char name[40];
};

static void take_step(struct run *r)
{
    double sum = 0;
    int at = 0;
    for (int t = 0; t < TENSORS; at += r->size[t++])
        sum += optim_square_sum(r->g + at, r->size[t]);
    float scale = optim_clip_scale(r->clip, sqrt(sum));
    at = 0;
    r->step++;
    for (int t = 0; t < TENSORS; at += r->size[t++]) {
        float *slots[] = {r->slots[0] + at, r->slots[1] + at};
        optim_step(&r->o, r->lr, r->step, scale, r->p + at, r->g + at, slots, r->size[t]);
    }
}

static void check_step(struct run *r, const float *want)
{
    for (int i = 0; i < r->n; i++) {
        double off = fabs((double)r->p[i] - (double)want[i]), most = 1e-6 * fmax(fabs((double)want[i]), r->lr);
        if (!(off <= most))
            fail_msg("%s, step %d, element %d: %.9g, PyTorch has %.9g", r->name, r->step, i, (double)r->p[i],
                (double)want[i]);
    }
}

static void test_steps(void **state)
{
    (void)state;
    FILE *f = fopen(YOKE_SOURCE_DIR "/tests/golden/optim.txt", "r");
    char *line = NULL;
    size_t cap = 0;
    int cases = 0, steps = 0, rates = 0;
    struct run r = {0};
    struct optim_schedule s = {0};
    bool first = false;
    assert_non_null(f);
    while (getline(&line, &cap, f) > 0) {
        char kind[20] = "";
        float row[MAX];
        int nesterov;
        if (!strncmp(line, "case ", 5)) {
            memset(&r, 0, sizeof r);
            assert_int_equal(sscanf(line + 5, "%39s %19s %lf %lf %d %lf %lf %lf %lf %lf %d %d %d", r.name, kind, &r.lr,
                                 &r.o.momentum, &nesterov, &r.o.weight_decay, &r.o.beta1, &r.o.beta2, &r.o.eps, &r.clip,
                                 &r.size[0], &r.size[1], &r.size[2]),
                13);
            r.o.kind = strcmp(kind, "sgd") ? OPTIM_ADAMW : OPTIM_SGD;
            r.o.nesterov = nesterov != 0;
            r.n = r.size[0] + r.size[1] + r.size[2];
            assert_int_equal(optim_check(&r.o, NULL), YK_OK);
            first = true;
            cases++;
        } else if (!strncmp(line, "p ", 2)) {
            assert_int_equal(floats(line + 2, row), r.n);
            if (first) {
                memcpy(r.p, row, sizeof row);
            } else {
                take_step(&r);
                check_step(&r, row);
                steps++;
            }
            first = false;
        } else if (!strncmp(line, "g ", 2)) {
            assert_int_equal(floats(line + 2, r.g), r.n);
        } else if (!strncmp(line, "lr ", 3)) {
            long long warmup, total, every;
            assert_int_equal(sscanf(line + 3, "%19s %lf %lld %lld %lld %lf %lf", kind, &s.lr, &warmup, &total, &every,
                                 &s.gamma, &s.floor),
                7);
            s.curve = !strcmp(kind, "cosine") ? OPTIM_COSINE : !strcmp(kind, "step") ? OPTIM_STEP : OPTIM_CONSTANT;
            s.warmup = warmup;
            s.total = total;
            s.every = every;
        } else if (!strncmp(line, "r ", 2)) {
            int64_t n = 0;
            for (char *at = strtok(line + 2, " \n"); at; at = strtok(NULL, " \n"), n++, rates++)
                assert_true(fabs(optim_lr(&s, n) - strtod(at, NULL)) <= 1e-12 * s.lr);
            assert_int_equal(n, s.total);
        }
    }
    free(line);
    fclose(f);
    assert_int_equal(cases, 13);
    assert_int_equal(steps, 13 * 6);
    assert_int_equal(rates, 67);
}

/* How elements are split between calls changes no bit. */
static void test_split(void **state)
{
    (void)state;
    struct yk_rng rng;
    for (int kind = OPTIM_SGD; kind <= OPTIM_ADAMW; kind++) {
        struct optim o = optim_default((enum optim_kind)kind);
        float p[2][200], g[200], a[2][200] = {{0}}, b[2][200] = {{0}};
        yk_rng_seed(&rng, 5);
        for (int i = 0; i < 200; i++) {
            p[0][i] = p[1][i] = (float)(yk_rng_unit(&rng) - 0.5);
            g[i] = (float)(yk_rng_unit(&rng) - 0.5);
        }
        for (int step = 1; step < 4; step++) {
            float *whole[] = {a[0], b[0]};
            optim_step(&o, 0.01, step, 0.5f, p[0], g, whole, 200);
            for (int64_t at = 0, n = 1; at < 200; at += n, n = n * 2 + 1) {
                float *part[] = {a[1] + at, b[1] + at};
                optim_step(&o, 0.01, step, 0.5f, p[1] + at, g + at, part, YK_MIN(n, 200 - at));
            }
        }
        assert_memory_equal(p[0], p[1], sizeof p[0]);
        assert_memory_equal(a[0], a[1], sizeof a[0]);
    }
}

static void test_square_sum(void **state)
{
    (void)state;
    int64_t n = OPTIM_BLOCK * 2 + 13;
    float *g = malloc((size_t)n * sizeof *g);
    struct yk_rng rng;
    long double want = 0;
    yk_rng_seed(&rng, 9);
    for (int64_t i = 0; i < n; i++) {
        g[i] = (float)(yk_rng_unit(&rng) * 4 - 2);
        want += (long double)g[i] * g[i];
    }
    double blocks = 0;
    for (int64_t i = 0; i < n; i += OPTIM_BLOCK)
        blocks += optim_square_sum_block(g + i, YK_MIN(n - i, OPTIM_BLOCK));
    assert_true(blocks == optim_square_sum(g, n));
    assert_true(fabsl(blocks - want) <= 1e-12L * want);
    assert_true(optim_square_sum(g, 0) == 0);
    free(g);
}

static void test_bad(void **state)
{
    (void)state;
    struct yk_diag why;
    struct optim o = optim_default(OPTIM_SGD);
    o.momentum = 1;
    assert_int_equal(optim_check(&o, &why), YK_INVAL);
    assert_non_null(strstr(why.text, "momentum 1"));
    o.momentum = 0;
    o.nesterov = true;
    assert_int_equal(optim_check(&o, &why), YK_INVAL);
    o = optim_default(OPTIM_SGD);
    o.weight_decay = NAN;
    assert_int_equal(optim_check(&o, &why), YK_INVAL);
    o = optim_default(OPTIM_ADAMW);
    o.beta2 = 1;
    assert_int_equal(optim_check(&o, &why), YK_INVAL);
    assert_non_null(strstr(why.text, "betas"));
    assert_true(optim_clip_scale(1, INFINITY) == 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_steps), cmocka_unit_test(test_split),
        cmocka_unit_test(test_square_sum), cmocka_unit_test(test_bad)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
