/* What a device can do at all, within a few MiB: it is measured when an agent joins, and the agent may have little.
 * Copy speed is the memory's and not that of a cache that holds megabytes: instead of tensors larger than any cache,
 * small ones are taken out of the caches before each run. Where a program cannot do that, it is the cache's. */
#include "kernels/profile_priv.h"
#include "kernels/simd_isa.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#define LINE 64      /* the least there is; more often than needed does no harm */
#define COPY_MAX 512 /* rows and columns of what is added */
#define GEMM_MAX 512
#define COPIES 5

static double now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

void profile_chill(const void *data, int64_t bytes)
{
    const char *p = data;
    for (int64_t i = 0; i < bytes; i += LINE) {
#if defined(__x86_64__)
        __builtin_ia32_clflush(p + i);
#elif defined(__aarch64__) && defined(__linux__)
        __asm__ __volatile__("dc civac, %0" : : "r"(p + i) : "memory");
#else
        (void)p;
#endif
    }
#if defined(__x86_64__)
    __builtin_ia32_mfence();
#elif defined(__aarch64__) && defined(__linux__)
    __asm__ __volatile__("dsb ish" : : : "memory");
#endif
}

/* Of a host backend that cannot add. */
static double copy_gbytes_per_s(int64_t room_bytes)
{
    size_t bytes = (size_t)YK_MAX(YK_MIN(room_bytes / 2, (int64_t)COPY_MAX * COPY_MAX * 4), 4096);
    char *a = yk_try_aligned(bytes), *b = yk_try_aligned(bytes);
    double best = 0;
    if (a && b) {
        memset(a, 1, bytes);
        memset(b, 2, bytes);
        for (int i = 0; i < COPIES; i++) {
            profile_chill(a, (int64_t)bytes);
            profile_chill(b, (int64_t)bytes);
            double before = now_ms();
            memcpy(b, a, bytes);
            __asm__ __volatile__("" : : "r"(b) : "memory");
            double ms = now_ms() - before;
            best = ms > 0 ? YK_MAX(best, 2.0 * (double)bytes / ms / 1e6) : best;
        }
    }
    free(a);
    free(b);
    return best;
}

void profile_device(struct backend *b, int64_t room_bytes, double *gflops, double *gbytes_per_s)
{
    int64_t room = YK_MIN(room_bytes, (int64_t)PROFILE_DEVICE_BYTES);
    *gflops = *gbytes_per_s = 0;
    for (int64_t n = 64; n <= GEMM_MAX; n *= 2) {
        double ms = profile_op(b, "MatMul", n, false, room);
        if (ms <= 0)
            break;
        *gflops = YK_MAX(*gflops, 2.0 * (double)n * (double)n * (double)n / ms / 1e6);
        if (ms > 3) /* the next one takes eight times as long */
            break;
    }
    for (int64_t n = COPY_MAX; n >= 64 && *gbytes_per_s <= 0; n /= 2) { /* smaller: less exact */
        double ms = profile_op(b, "Add", n, true, room);
        if (ms > 0)
            *gbytes_per_s = 3.0 * 4.0 * (double)(n * n) / ms / 1e6;
    }
    if (*gbytes_per_s <= 0 && b->ops->host)
        *gbytes_per_s = copy_gbytes_per_s(room);
}

double profile_peak_gflops(void)
{
    const struct simd_isa *isa = simd_isa_best();
    int64_t rounds = 20000;
    volatile float sink = 0;
    double best = 0;
    for (int i = 0; i < 12; i++) {
        double before = now_ms();
        sink = sink + isa->peak(rounds);
        double ms = now_ms() - before;
        best = ms > 0 ? YK_MAX(best, 24.0 * isa->vl * (double)rounds / ms / 1e6) : best;
        if (ms < 0.5)
            rounds *= 2;
    }
    return best;
}
