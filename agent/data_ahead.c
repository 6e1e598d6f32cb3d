#include "agent/data_ahead.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum order { IN_ORDER, TRAIN, HELD };

struct data_ahead {
    enum order order;
    struct batches of;              /* in order: the set alone */
    int64_t first, end, microbatch; /* samples in order; steps, and the largest batch, in training */
    int64_t total;                  /* batches */
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

static yk_err fill(const struct data_ahead *a, int64_t number, struct data_ahead_batch *b, struct yk_diag *why)
{
    b->step = number;
    b->epoch = 0;
    if (a->order == TRAIN) {
        b->step = a->first + number;
        struct sampler_batch at = sampler_batch(&a->of.sampler, b->step);
        b->epoch = at.epoch;
        b->first = at.first;
        return batches_fill(&a->of, b->step, b->x, b->y, &b->count, why);
    }
    b->first = a->first + number * a->microbatch;
    b->count = YK_MIN(a->microbatch, a->end - b->first);
    return a->order == HELD ? batches_held(&a->of, b->first, b->count, b->x, b->y, why)
                            : data_read(a->of.set, b->first, b->count, b->x, b->y, why);
}

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
        int64_t number = a->filled;
        pthread_mutex_unlock(&a->lock);
        struct yk_diag why = {0};
        yk_err err = fill(a, number, &a->ring[number % a->depth], &why);
        pthread_mutex_lock(&a->lock);
        a->err = err;
        a->why = why;
        a->filled += !err;
        pthread_cond_broadcast(&a->changed);
    }
    pthread_mutex_unlock(&a->lock);
    return NULL;
}

/* Room, and the thread. Takes a. */
static yk_err start(struct data_ahead *a, int depth, struct data_ahead **out, struct yk_diag *why)
{
    const struct shape *truth = data_truth(a->of.set);
    int64_t bytes = data_at(a->of.set, data_inputs(a->of.set), a->microbatch), y_bytes = 0;
    yk_err err = YK_OK;
    a->depth = YK_MAX(depth, 2);
    a->ring = yk_xalloc((size_t)a->depth * sizeof *a->ring);
    pthread_mutex_init(&a->lock, NULL);
    pthread_cond_init(&a->changed, NULL);
    if (bytes < 0 || (truth && !yk_mul_i64(shape_bytes(truth), a->microbatch, &y_bytes)))
        err = yk_fail(why, YK_LIMIT, "a batch of %" PRId64 " samples is too large", a->microbatch);
    for (int i = 0; !err && i < a->depth; i++) {
        a->ring[i].x = yk_try_aligned((size_t)bytes + 1);
        a->ring[i].y = truth ? yk_try_aligned((size_t)y_bytes + 1) : NULL;
        if (!a->ring[i].x || (truth && !a->ring[i].y))
            err = yk_fail(why, YK_NOMEM, "no memory for %d batches of %" PRId64 " samples", a->depth, a->microbatch);
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

yk_err data_ahead_open(struct data_set *d, int64_t first, int64_t count, int64_t microbatch, int depth,
    struct data_ahead **out, struct yk_diag *why)
{
    if (first < 0 || count < 0 || microbatch < 1 || first > data_count(d) - count)
        return yk_fail(
            why, YK_INVAL, "samples %" PRId64 " to %" PRId64 " of %" PRId64, first, first + count, data_count(d));
    microbatch = YK_MIN(microbatch, YK_MAX(count, 1));
    struct data_ahead *a = yk_xalloc(sizeof *a);
    a->of.set = d;
    a->first = first;
    a->end = first + count;
    a->microbatch = microbatch;
    a->total = (count + microbatch - 1) / microbatch;
    return start(a, depth, out, why);
}

yk_err data_ahead_train(const struct batches *b, int64_t first_step, int64_t end_step, int depth,
    struct data_ahead **out, struct yk_diag *why)
{
    yk_err err = batches_check(b, why);
    if (err)
        return err;
    if (first_step < 0 || end_step < first_step)
        return yk_fail(why, YK_INVAL, "steps %" PRId64 " to %" PRId64, first_step, end_step);
    struct data_ahead *a = yk_xalloc(sizeof *a);
    a->order = TRAIN;
    a->of = *b;
    a->first = first_step;
    a->end = end_step;
    a->microbatch = YK_MIN(b->sampler.batch, sampler_count(&b->sampler));
    a->total = end_step - first_step;
    return start(a, depth, out, why);
}

yk_err data_ahead_held(
    const struct batches *b, int64_t microbatch, int depth, struct data_ahead **out, struct yk_diag *why)
{
    yk_err err = batches_check(b, why);
    if (err)
        return err;
    if (microbatch < 1)
        return yk_fail(why, YK_INVAL, "microbatches of %" PRId64 " samples: from 1", microbatch);
    struct data_ahead *a = yk_xalloc(sizeof *a);
    a->order = HELD;
    a->of = *b;
    a->end = b->sampler.held;
    a->microbatch = YK_MIN(microbatch, YK_MAX(b->sampler.held, 1));
    a->total = (b->sampler.held + a->microbatch - 1) / a->microbatch;
    return start(a, depth, out, why);
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
