/* A backend for Yoke in a shared object: a device with memory and a thread of its own that runs Conv, Gemm, MatMul, Add
 * and Relu. It shows every call of yoke/backend.h; compute.c is what a real one would leave to its hardware.
 *
 * For Yoke's tests it can misbehave: EXAMPLE_FAULT (a definition, else the environment's variable) is KIND:K[:FILE],
 * with KIND one of nan, wrong, hang (done never comes), stuck (submit does not return), fail, twice (done comes twice),
 * from the K-th run on; with FILE, runs are counted from when that file exists. */
#include <yoke/backend.h>

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "compute.h"

#ifndef EXAMPLE_ABI
#define EXAMPLE_ABI YOKE_BACKEND_ABI
#endif
#ifndef EXAMPLE_ENTRY
#define EXAMPLE_ENTRY yoke_backend_entry
#endif
#ifndef EXAMPLE_NAME
#define EXAMPLE_NAME "example"
#endif
#ifndef EXAMPLE_ISA
#define EXAMPLE_ISA "1.0"
#endif

struct segment {
    int n_nodes, n_values, n_in, n_out;
    int32_t *in, *out;
    struct compute *nodes;
    float **weights; /* by value; NULL if it is none */
    float **inner;   /* by value; NULL if it is none */
    float **data;    /* of a run */
    int64_t *counts; /* by value, at the maximum sizes */
    int64_t held;
    int canceled; /* under lock */
};

struct device {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t wake;
    int stop; /* under lock, as all below */
    struct segment *job;
    const struct yoke_run *run;
    yoke_done done;
    void *arg;
    /* faults, of the device's thread */
    char fault[16], file[256];
    long after, runs;
};

/* ---- the device's thread ---- */

static int faulty(struct device *d, const char *kind)
{
    return !strcmp(d->fault, kind) && d->runs > d->after;
}

static void count_run(struct device *d)
{
    if (d->fault[0] && (!d->file[0] || access(d->file, F_OK) == 0))
        d->runs++;
}

static void compute_all(struct device *d, struct segment *s, const struct yoke_run *run)
{
    for (int i = 0; i < s->n_values; i++)
        s->data[i] = s->weights[i] ? s->weights[i] : s->inner[i];
    for (int i = 0; i < s->n_in; i++)
        s->data[s->in[i]] = (float *)(uintptr_t)run->in[i]->handle;
    for (int i = 0; i < s->n_out; i++)
        s->data[s->out[i]] = (float *)(uintptr_t)run->out[i]->handle;
    for (int i = 0; i < s->n_nodes; i++)
        compute_run(&s->nodes[i], run->shapes, s->data);
    for (int i = 0; i < s->n_out; i++) {
        float *y = s->data[s->out[i]];
        int64_t n = compute_count(run->shapes[s->out[i]]);
        if (faulty(d, "nan"))
            y[n / 2] = NAN;
        for (int64_t k = 0; faulty(d, "wrong") && k < n; k++)
            y[k] += 0.5f;
    }
}

static void *device_main(void *arg)
{
    struct device *d = arg;
    pthread_mutex_lock(&d->lock);
    for (;;) {
        while (!d->job && !d->stop)
            pthread_cond_wait(&d->wake, &d->lock);
        struct segment *s = d->job;
        if (!s)
            break;
        int canceled = s->canceled;
        yoke_done done = d->done;
        void *to = d->arg;
        const struct yoke_run *run = d->run;
        pthread_mutex_unlock(&d->lock);
        if (!canceled)
            compute_all(d, s, run);
        pthread_mutex_lock(&d->lock);
        d->job = NULL;
        int silent = faulty(d, "hang"), failed = faulty(d, "fail"), twice = faulty(d, "twice");
        pthread_mutex_unlock(&d->lock);
        for (int i = 0; !silent && i < 1 + twice; i++)
            done(to, canceled ? YOKE_CANCELED : failed ? YOKE_FAILED : YOKE_OK, failed ? "the example fails" : NULL);
        pthread_mutex_lock(&d->lock);
    }
    pthread_mutex_unlock(&d->lock);
    return NULL;
}

/* ---- open and close ---- */

static void take_fault(struct device *d)
{
#ifdef EXAMPLE_FAULT
    const char *text = EXAMPLE_FAULT;
#else
    const char *text = getenv("EXAMPLE_FAULT");
#endif
    if (text && sscanf(text, "%15[a-z]:%ld:%255s", d->fault, &d->after, d->file) < 2)
        d->fault[0] = 0;
}

static enum yoke_status example_open(const struct yoke_config *config, void **state, char *why, uint32_t why_size)
{
    (void)config;
#ifdef EXAMPLE_NO_DEVICE
    snprintf(why, why_size, "there is no such device in this machine");
    return YOKE_UNSUPPORTED;
#endif
    struct device *d = calloc(1, sizeof(*d));
    if (!d)
        return YOKE_NO_MEMORY;
    take_fault(d);
    pthread_mutex_init(&d->lock, NULL);
    pthread_cond_init(&d->wake, NULL);
    if (pthread_create(&d->thread, NULL, device_main, d) != 0) {
        snprintf(why, why_size, "cannot start a thread");
        free(d);
        return YOKE_FAILED;
    }
    *state = d;
    return YOKE_OK;
}

static void example_close(void *state)
{
    struct device *d = state;
    pthread_mutex_lock(&d->lock);
    d->stop = 1;
    pthread_cond_signal(&d->wake);
    pthread_mutex_unlock(&d->lock);
    pthread_join(d->thread, NULL);
    pthread_cond_destroy(&d->wake);
    pthread_mutex_destroy(&d->lock);
    free(d);
}

static enum yoke_status example_describe(void *state, struct yoke_description *out)
{
    (void)state;
    out->flags = YOKE_EXACT;
#ifdef EXAMPLE_FIXED
    out->flags |= YOKE_FIXED_SIZES;
#endif
    out->isa = EXAMPLE_ISA;
    out->text = "a device that is a thread";
    return YOKE_OK;
}

/* ---- segments ---- */

static enum yoke_status example_claim(void *state, const struct yoke_segment *seg, uint8_t *claimed)
{
    struct compute c;
    (void)state;
    for (int i = 0; i < seg->n_nodes; i++) {
        compute_compile(seg, i, &c);
        claimed[i] = c.kind != COMPUTE_NONE;
    }
    return YOKE_OK;
}

static void example_release(void *state, void *handle)
{
    struct segment *s = handle;
    (void)state;
    for (int i = 0; i < s->n_values; i++) {
        if (s->weights)
            free(s->weights[i]);
        if (s->inner)
            free(s->inner[i]);
    }
    free(s->in);
    free(s->out);
    free(s->nodes);
    free(s->weights);
    free(s->inner);
    free(s->data);
    free(s->counts);
    free(s);
}

static int32_t *copy_ids(const int32_t *ids, int n)
{
    int32_t *copy = malloc(((size_t)n + 1) * sizeof(*copy));
    if (copy && n)
        memcpy(copy, ids, (size_t)n * sizeof(*copy));
    return copy;
}

static enum yoke_status example_prepare(
    void *state, const struct yoke_segment *seg, struct yoke_prepared *out, char *why, uint32_t why_size)
{
    struct segment *s = calloc(1, sizeof(*s));
    size_t n = (size_t)seg->n_values + 1;
    if (!s)
        return YOKE_NO_MEMORY;
    s->n_nodes = seg->n_nodes;
    s->n_values = seg->n_values;
    s->n_in = seg->n_in;
    s->n_out = seg->n_out;
    s->in = copy_ids(seg->in, seg->n_in);
    s->out = copy_ids(seg->out, seg->n_out);
    s->nodes = calloc((size_t)seg->n_nodes + 1, sizeof(*s->nodes));
    s->weights = calloc(n, sizeof(*s->weights));
    s->inner = calloc(n, sizeof(*s->inner));
    s->data = calloc(n, sizeof(*s->data));
    s->counts = calloc(n, sizeof(*s->counts));
    int ok = s->in && s->out && s->nodes && s->weights && s->inner && s->data && s->counts;
    for (int i = 0; ok && i < seg->n_values; i++) {
        const struct yoke_value *v = seg->values[i];
        size_t bytes = (size_t)compute_count(v->shape) * sizeof(float);
        s->counts[i] = compute_count(v->shape);
        if (v->kind == YOKE_VALUE_WEIGHT && (s->weights[i] = malloc(bytes)))
            memcpy(s->weights[i], v->data, bytes);
        if (v->kind == YOKE_VALUE_INNER)
            s->inner[i] = malloc(bytes);
        ok = (v->kind != YOKE_VALUE_WEIGHT || s->weights[i]) && (v->kind != YOKE_VALUE_INNER || s->inner[i]);
        s->held += s->weights[i] || s->inner[i] ? (int64_t)bytes : 0;
    }
    for (int i = 0; ok && i < seg->n_nodes; i++) {
        compute_compile(seg, i, &s->nodes[i]);
        if (s->nodes[i].kind == COMPUTE_NONE) {
            snprintf(why, why_size, "node '%s' (%s) was not claimed", seg->nodes[i]->name, seg->nodes[i]->op);
            example_release(state, s);
            return YOKE_UNSUPPORTED;
        }
    }
    if (!ok) {
        example_release(state, s);
        snprintf(why, why_size, "no memory on the device");
        return YOKE_NO_MEMORY;
    }
    out->handle = s;
    out->held_bytes = s->held;
    return YOKE_OK;
}

static enum yoke_status example_set_weights(
    void *state, void *handle, const void *const *weights, char *why, uint32_t why_size)
{
    struct segment *s = handle;
    (void)state, (void)why, (void)why_size;
    for (int i = 0; i < s->n_values; i++)
        if (s->weights[i] && weights[i])
            memcpy(s->weights[i], weights[i], (size_t)s->counts[i] * sizeof(float));
    return YOKE_OK;
}

#ifdef EXAMPLE_NO_SUBMIT
__attribute__((unused))
#endif
static void
example_submit(void *state, void *handle, const struct yoke_run *run, yoke_done done, void *arg)
{
    struct device *d = state;
    struct segment *s = handle;
    pthread_mutex_lock(&d->lock);
    count_run(d);
    int stuck = faulty(d, "stuck");
    s->canceled = 0;
    d->job = s;
    d->run = run;
    d->done = done;
    d->arg = arg;
    pthread_cond_signal(&d->wake);
    pthread_mutex_unlock(&d->lock);
    while (stuck)
        sleep(1000);
}

static void example_cancel(void *state, void *handle)
{
    struct device *d = state;
    pthread_mutex_lock(&d->lock);
    ((struct segment *)handle)->canceled = 1;
    pthread_mutex_unlock(&d->lock);
}

/* ---- memory ---- */

static enum yoke_status example_alloc(void *state, int64_t bytes, struct yoke_buffer *out)
{
    (void)state;
    void *p = malloc((size_t)bytes);
    out->handle = (uintptr_t)p;
    out->bytes = bytes;
    return p ? YOKE_OK : YOKE_NO_MEMORY;
}

static void example_free(void *state, struct yoke_buffer *buffer)
{
    (void)state;
    free((void *)(uintptr_t)buffer->handle);
}

static enum yoke_status example_write(void *state, struct yoke_buffer *buffer, const void *src, int64_t bytes)
{
    (void)state;
    if (bytes < 0 || bytes > buffer->bytes)
        return YOKE_INVALID;
    memcpy((void *)(uintptr_t)buffer->handle, src, (size_t)bytes);
    return YOKE_OK;
}

static enum yoke_status example_read(void *state, const struct yoke_buffer *buffer, void *dst, int64_t bytes)
{
    (void)state;
    if (bytes < 0 || bytes > buffer->bytes)
        return YOKE_INVALID;
    memcpy(dst, (const void *)(uintptr_t)buffer->handle, (size_t)bytes);
    return YOKE_OK;
}

static const struct yoke_backend table = {
#ifdef EXAMPLE_SMALL
    .size = sizeof(table) - sizeof(void *),
#else
    .size = sizeof(table),
#endif
    .abi = EXAMPLE_ABI,
    .name = EXAMPLE_NAME,
    .open = example_open,
    .close = example_close,
    .describe = example_describe,
    .claim = example_claim,
    .prepare = example_prepare,
    .set_weights = example_set_weights,
#ifndef EXAMPLE_NO_SUBMIT
    .submit = example_submit,
#endif
    .cancel = example_cancel,
    .release = example_release,
    .alloc = example_alloc,
    .free = example_free,
    .write = example_write,
    .read = example_read,
};

YOKE_EXPORT const struct yoke_backend *EXAMPLE_ENTRY(uint32_t abi);

const struct yoke_backend *EXAMPLE_ENTRY(uint32_t abi)
{
    (void)abi; /* Yoke compares the table's version itself */
    return &table;
}
