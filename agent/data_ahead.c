#include "agent/data_ahead.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

struct data_ahead {
    struct data_set *set;
    int64_t first, end, microbatch, total; /* total: microbatches */
    struct data_ahead_batch *ring;
    int depth;
    pthread_t thread;
    bool running;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    /* under the lock */
    int64_t filled, taken; /* microbatches read; handed out (the last of them is in use) */
    bool stop;
    yk_err err;
    struct yk_diag why;
};

static void *run(void *arg)
{
    struct data_ahead *a = arg;
    pthread_mutex_lock(&a->lock);
    while (!a->stop && !a->err && a->filled < a->total) {
        /* The one in use still needs its place. */
        if (a->filled - YK_MAX(a->taken - 1, 0) >= a->depth) {
            pthread_cond_wait(&a->changed, &a->lock);
            continue;
        }
        struct data_ahead_batch *b = &a->ring[a->filled % a->depth];
        b->first = a->first + a->filled * a->microbatch;
        b->count = YK_MIN(a->microbatch, a->end - b->first);
        pthread_mutex_unlock(&a->lock);
        struct yk_diag why = {0};
        yk_err err = data_read(a->set, b->first, b->count, b->x, b->y, &why);
        pthread_mutex_lock(&a->lock);
        a->err = err;
        a->why = why;
        a->filled += !err;
        pthread_cond_broadcast(&a->changed);
    }
    pthread_mutex_unlock(&a->lock);
    return NULL;
}

yk_err data_ahead_open(struct data_set *d, int64_t first, int64_t count, int64_t microbatch, int depth,
    struct data_ahead **out, struct yk_diag *why)
{
    int64_t row = shape_bytes(data_sample(d)), bytes;
    if (first < 0 || count < 0 || microbatch < 1 || first > data_count(d) - count)
        return yk_fail(
            why, YK_INVAL, "samples %" PRId64 " to %" PRId64 " of %" PRId64, first, first + count, data_count(d));
    microbatch = YK_MIN(microbatch, YK_MAX(count, 1));
    struct data_ahead *a = yk_xalloc(sizeof *a);
    a->set = d;
    a->first = first;
    a->end = first + count;
    a->microbatch = microbatch;
    a->total = (count + microbatch - 1) / microbatch;
    a->depth = YK_MAX(depth, 2);
    a->ring = yk_xalloc((size_t)a->depth * sizeof *a->ring);
    pthread_mutex_init(&a->lock, NULL);
    pthread_cond_init(&a->changed, NULL);
    yk_err err = YK_OK;
    if (row < 0 || !yk_mul_i64(row, microbatch, &bytes))
        err = yk_fail(why, YK_LIMIT, "a microbatch of %" PRId64 " samples is too large", microbatch);
    for (int i = 0; !err && i < a->depth; i++) {
        a->ring[i].x = yk_try_aligned((size_t)bytes + 1);
        a->ring[i].y = data_labelled(d) ? yk_try_alloc((size_t)microbatch, sizeof(int64_t)) : NULL;
        if (!a->ring[i].x || (data_labelled(d) && !a->ring[i].y))
            err = yk_fail(why, YK_NOMEM, "no memory for %d microbatches of %" PRId64 " samples", a->depth, microbatch);
    }
    if (!err && pthread_create(&a->thread, NULL, run, a) != 0)
        err = yk_fail(why, YK_NOMEM, "cannot start a thread that reads ahead");
    a->running = !err;
    if (err)
        data_ahead_close(a);
    else
        *out = a;
    return err;
}

yk_err data_ahead_next(struct data_ahead *a, const struct data_ahead_batch **out, struct yk_diag *why)
{
    yk_err err = YK_OK;
    pthread_mutex_lock(&a->lock);
    a->taken++; /* the one before is free */
    pthread_cond_broadcast(&a->changed);
    while (a->filled < a->taken && a->taken <= a->total && !a->err)
        pthread_cond_wait(&a->changed, &a->lock);
    if (a->taken > a->total) {
        a->taken = a->total + 1;
        *out = NULL;
    } else if (a->filled >= a->taken) {
        *out = &a->ring[(a->taken - 1) % a->depth];
    } else {
        err = a->err;
        if (why)
            *why = a->why;
        a->taken--;
    }
    pthread_mutex_unlock(&a->lock);
    return err;
}

void data_ahead_close(struct data_ahead *a)
{
    if (!a)
        return;
    pthread_mutex_lock(&a->lock);
    a->stop = true;
    pthread_cond_broadcast(&a->changed);
    pthread_mutex_unlock(&a->lock);
    if (a->running)
        pthread_join(a->thread, NULL);
    for (int i = 0; i < a->depth; i++) {
        free(a->ring[i].x);
        free(a->ring[i].y);
    }
    free(a->ring);
    pthread_cond_destroy(&a->changed);
    pthread_mutex_destroy(&a->lock);
    free(a);
}
