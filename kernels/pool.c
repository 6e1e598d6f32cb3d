/* A fixed set of threads that take tiles from a shared counter. A worker joins a run under the lock, so a worker that
 * wakes late finds the run closed and goes back to sleep: the caller never waits for threads that have no tile. Idle
 * workers spin for a moment before they sleep, since runs of one model follow each other within microseconds. */
#include "kernels/pool.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#define POOL_MAX 256
#define POOL_SPINS 4000 /* about 20 us */

struct pool {
    int threads;
    int started; /* workers that run */
    pthread_t *tid;
    pthread_mutex_t lock;
    pthread_cond_t wake, idle;
    atomic_uint run; /* number of the latest run */
    bool open;       /* under lock: workers may join run */
    bool stop;       /* under lock */
    int sleeping;    /* under lock */
    int next_id;     /* under lock: thread numbers for workers */
    atomic_int joined;
    void (*fn)(void *arg, int64_t tile, int thread);
    void *arg;
    int64_t tiles;
    atomic_llong next;
};

static inline void pause_cpu(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ __volatile__("yield");
#endif
}

static void take_tiles(struct pool *p, int thread)
{
    for (;;) {
        int64_t tile = atomic_fetch_add_explicit(&p->next, 1, memory_order_relaxed);
        if (tile >= p->tiles)
            return;
        p->fn(p->arg, tile, thread);
    }
}

static void *worker_main(void *arg)
{
    struct pool *p = arg;
    unsigned seen = 0;
    pthread_mutex_lock(&p->lock);
    int id = ++p->next_id;
    while (!p->stop) {
        unsigned now = atomic_load_explicit(&p->run, memory_order_relaxed);
        if (p->open && now != seen) {
            seen = now;
            atomic_fetch_add(&p->joined, 1);
            pthread_mutex_unlock(&p->lock);
            take_tiles(p, id);
            pthread_mutex_lock(&p->lock);
            if (atomic_fetch_sub(&p->joined, 1) == 1)
                pthread_cond_signal(&p->idle);
            continue;
        }
        seen = now;
        pthread_mutex_unlock(&p->lock);
        int spins = 0;
        while (spins < POOL_SPINS && atomic_load_explicit(&p->run, memory_order_relaxed) == seen) {
            pause_cpu();
            spins++;
        }
        pthread_mutex_lock(&p->lock);
        if (p->stop || atomic_load_explicit(&p->run, memory_order_relaxed) != seen)
            continue;
        p->sleeping++;
        pthread_cond_wait(&p->wake, &p->lock);
        p->sleeping--;
    }
    pthread_mutex_unlock(&p->lock);
    return NULL;
}

yk_err pool_open(int threads, struct pool **out, struct yk_diag *why)
{
    if (threads < 1 || threads > POOL_MAX)
        return yk_fail(why, YK_INVAL, "threads must be 1 to %d, not %d", POOL_MAX, threads);
    struct pool *p = yk_xalloc(sizeof(*p));
    p->threads = threads;
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
        p->stop = true;
        pthread_cond_broadcast(&p->wake);
        pthread_mutex_unlock(&p->lock);
        for (int i = 0; i < p->started; i++)
            pthread_join(p->tid[i], NULL);
        free(p->tid);
        pthread_cond_destroy(&p->idle);
        pthread_cond_destroy(&p->wake);
        pthread_mutex_destroy(&p->lock);
    }
    free(p);
}

int pool_threads(const struct pool *p)
{
    return p->threads;
}

void pool_run(struct pool *p, int64_t tiles, void (*fn)(void *arg, int64_t tile, int thread), void *arg)
{
    if (p->threads == 1 || tiles <= 1) {
        for (int64_t t = 0; t < tiles; t++)
            fn(arg, t, 0);
        return;
    }
    pthread_mutex_lock(&p->lock);
    p->fn = fn;
    p->arg = arg;
    p->tiles = tiles;
    atomic_store(&p->next, 0);
    p->open = true;
    atomic_fetch_add(&p->run, 1);
    if (p->sleeping)
        pthread_cond_broadcast(&p->wake);
    pthread_mutex_unlock(&p->lock);

    take_tiles(p, 0);

    pthread_mutex_lock(&p->lock);
    p->open = false;
    pthread_mutex_unlock(&p->lock);
    for (int spins = 0; spins < POOL_SPINS && atomic_load(&p->joined); spins++)
        pause_cpu();
    pthread_mutex_lock(&p->lock);
    while (atomic_load(&p->joined))
        pthread_cond_wait(&p->idle, &p->lock);
    pthread_mutex_unlock(&p->lock);
}
