/* A fixed set of threads over one grid of tiles. Each thread starts with a contiguous share of the tiles and helps the
 * others, from their ends, when it has none left: ops that follow each other are cut along the same axis, so what a
 * thread reads is mostly what it wrote, in its own near cache.
 *
 * One word holds the number of the run, whether workers may join it and how many have: a worker joins by changing it,
 * so one that wakes late finds the run closed, and the caller never waits for threads that have no tile. Idle workers
 * spin for a moment before they sleep, since runs of one model follow each other within microseconds; the lock is for
 * sleeping only. */
#include "kernels/pool.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#define POOL_MAX 1024
#define POOL_SPINS 4000 /* some 50 us */
#define POOL_TILES_MOST ((int64_t)1 << 31)

#define JOINED_MASK ((uint64_t)0xffff)
#define OPEN_BIT ((uint64_t)1 << 16)
#define RUN_SHIFT 17

struct share {
    _Alignas(64) atomic_ullong range; /* first tile that is left, one behind the last << 32 */
};

struct pool {
    int threads;
    int started; /* workers that run */
    pthread_t *tid;
    pthread_mutex_t lock;
    pthread_cond_t wake, idle;
    int next_id; /* under lock: thread numbers for workers */
    /* Of the latest run; written while nobody is in one. */
    void (*fn)(void *arg, int64_t tile, int thread);
    void *arg;
    int64_t first; /* tile 0 of the shares */
    struct share *shares;
    _Alignas(64) atomic_ullong state;
    _Alignas(64) atomic_int sleeping; /* workers that sleep, or are about to look once more and do so */
    atomic_bool waiting;              /* the caller sleeps, or is about to */
    atomic_bool stop;
};

static inline void pause_cpu(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ __volatile__("yield");
#endif
}

/* A tile of a share, from its front or its end; -1 if none is left. */
static int64_t take(struct share *s, bool front)
{
    uint64_t r = atomic_load_explicit(&s->range, memory_order_relaxed);
    for (;;) {
        uint32_t begin = (uint32_t)r, end = (uint32_t)(r >> 32);
        if (begin >= end)
            return -1;
        uint64_t less = front ? r + 1 : r - ((uint64_t)1 << 32);
        if (atomic_compare_exchange_weak_explicit(&s->range, &r, less, memory_order_relaxed, memory_order_relaxed))
            return front ? begin : end - 1;
    }
}

static void take_tiles(struct pool *p, int thread)
{
    for (int i = 0; i < p->threads; i++) {
        struct share *s = &p->shares[(thread + i) % p->threads];
        for (int64_t tile = take(s, i == 0); tile >= 0; tile = take(s, i == 0))
            p->fn(p->arg, p->first + tile, thread);
    }
}

static inline bool joinable(uint64_t state, uint64_t seen)
{
    return (state & OPEN_BIT) && state >> RUN_SHIFT != seen;
}

static void leave(struct pool *p)
{
    uint64_t before = atomic_fetch_sub(&p->state, 1);
    if ((before & JOINED_MASK) == 1 && atomic_load(&p->waiting)) {
        pthread_mutex_lock(&p->lock);
        pthread_cond_signal(&p->idle);
        pthread_mutex_unlock(&p->lock);
    }
}

/* Until there is a run that is not the one seen, or the end. */
static void await_run(struct pool *p, uint64_t seen)
{
    for (int spins = 0; spins < POOL_SPINS; spins++) {
        if (joinable(atomic_load_explicit(&p->state, memory_order_relaxed), seen) || atomic_load(&p->stop))
            return;
        pause_cpu();
    }
    pthread_mutex_lock(&p->lock);
    atomic_fetch_add(&p->sleeping, 1); /* before the look: a caller that opens a run then sees it */
    while (!joinable(atomic_load(&p->state), seen) && !atomic_load(&p->stop))
        pthread_cond_wait(&p->wake, &p->lock);
    atomic_fetch_sub(&p->sleeping, 1);
    pthread_mutex_unlock(&p->lock);
}

static void *worker_main(void *arg)
{
    struct pool *p = arg;
    uint64_t seen = 0;
    pthread_mutex_lock(&p->lock);
    int id = ++p->next_id;
    pthread_mutex_unlock(&p->lock);
    while (!atomic_load(&p->stop)) {
        uint64_t state = atomic_load(&p->state);
        if (!joinable(state, seen)) {
            await_run(p, seen);
        } else if (atomic_compare_exchange_weak(&p->state, &state, state + 1)) {
            seen = state >> RUN_SHIFT;
            take_tiles(p, id);
            leave(p);
        }
    }
    return NULL;
}

yk_err pool_open(int threads, struct pool **out, struct yk_diag *why)
{
    if (threads < 1 || threads > POOL_MAX)
        return yk_fail(why, YK_INVAL, "threads must be 1 to %d, not %d", POOL_MAX, threads);
    struct pool *p = yk_try_aligned(sizeof(*p));
    struct share *shares = yk_try_aligned((size_t)threads * sizeof(*shares));
    if (!p || !shares) {
        free(p);
        free(shares);
        return yk_fail(why, YK_NOMEM, "no memory for a pool of %d threads", threads);
    }
    memset(p, 0, sizeof(*p));
    p->threads = threads;
    p->shares = shares;
    for (int i = 0; i < threads; i++)
        atomic_init(&shares[i].range, 0);
    if (threads > 1) {
        pthread_mutex_init(&p->lock, NULL);
        pthread_cond_init(&p->wake, NULL);
        pthread_cond_init(&p->idle, NULL);
        p->tid = yk_xalloc((size_t)(threads - 1) * sizeof(*p->tid));
        for (int i = 0; i < threads - 1; i++) {
            int e = pthread_create(&p->tid[i], NULL, worker_main, p);
            if (e) {
                pool_close(p);
                return yk_fail(why, yk_err_from_errno(e), "cannot start compute thread %d of %d", i + 2, threads);
            }
            p->started++;
        }
    }
    *out = p;
    return YK_OK;
}

void pool_close(struct pool *p)
{
    if (!p)
        return;
    if (p->threads > 1) {
        pthread_mutex_lock(&p->lock);
        atomic_store(&p->stop, true);
        pthread_cond_broadcast(&p->wake);
        pthread_mutex_unlock(&p->lock);
        for (int i = 0; i < p->started; i++)
            pthread_join(p->tid[i], NULL);
        free(p->tid);
        pthread_cond_destroy(&p->idle);
        pthread_cond_destroy(&p->wake);
        pthread_mutex_destroy(&p->lock);
    }
    free(p->shares);
    free(p);
}

int pool_threads(const struct pool *p)
{
    return p->threads;
}

/* The caller's part of a run of at most POOL_TILES_MOST tiles. */
static void run_shares(struct pool *p, int64_t tiles)
{
    for (int i = 0; i < p->threads; i++) {
        uint64_t begin = (uint64_t)(tiles * i / p->threads), end = (uint64_t)(tiles * (i + 1) / p->threads);
        atomic_store_explicit(&p->shares[i].range, begin | end << 32, memory_order_relaxed);
    }
    uint64_t run = (atomic_load(&p->state) >> RUN_SHIFT) + 1;
    atomic_store(&p->state, run << RUN_SHIFT | OPEN_BIT);
    if (atomic_load(&p->sleeping)) {
        pthread_mutex_lock(&p->lock);
        pthread_cond_broadcast(&p->wake);
        pthread_mutex_unlock(&p->lock);
    }
    take_tiles(p, 0);
    if (!(atomic_fetch_and(&p->state, ~OPEN_BIT) & JOINED_MASK))
        return;
    for (int spins = 0; spins < POOL_SPINS; spins++) {
        if (!(atomic_load(&p->state) & JOINED_MASK))
            return;
        pause_cpu();
    }
    pthread_mutex_lock(&p->lock);
    atomic_store(&p->waiting, true); /* before the look: the last worker to leave then sees it */
    while (atomic_load(&p->state) & JOINED_MASK)
        pthread_cond_wait(&p->idle, &p->lock);
    atomic_store(&p->waiting, false);
    pthread_mutex_unlock(&p->lock);
}

void pool_run(struct pool *p, int64_t tiles, void (*fn)(void *arg, int64_t tile, int thread), void *arg)
{
    if (p->threads == 1 || tiles <= 1) {
        for (int64_t t = 0; t < tiles; t++)
            fn(arg, t, 0);
        return;
    }
    p->fn = fn;
    p->arg = arg;
    for (p->first = 0; p->first < tiles; p->first += POOL_TILES_MOST)
        run_shares(p, YK_MIN(tiles - p->first, POOL_TILES_MOST));
}
