/* A device that is not there: its own memory (buffers have no host address), its own thread, runs that end later. It
 * computes with the reference kernels, so its answers equal ref's to the bit. For tests of what drives a backend. */
#include "kernels/host.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

struct fake_job {
    struct fake_job *next;
    struct fake_segment *segment;
    const struct backend_run *run;
    void (*done)(void *arg, yk_err err, const char *why);
    void *arg;
};

struct fake {
    struct backend base;
    struct pool *pool;     /* of the device: one thread */
    struct backend *inner; /* ref */
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t wake;
    struct fake_job *first, **last; /* under lock */
    bool stop;                      /* under lock */
};

struct fake_segment {
    void *inner;
    void *scratch;
    const struct graph *graph;
    void **weights; /* by value id: device copies */
    int32_t n_in, n_out;
    struct backend_buffer *buffers; /* of a run, n_in + n_out, with addresses */
    struct backend_buffer **pointers;
    atomic_bool canceled;
};

static void run_job(struct fake *f, struct fake_job *j)
{
    struct fake_segment *s = j->segment;
    if (atomic_load(&s->canceled)) {
        j->done(j->arg, YK_CANCELED, "canceled");
        return;
    }
    for (int32_t i = 0; i < s->n_in + s->n_out; i++) {
        const struct backend_buffer *b = i < s->n_in ? j->run->in[i] : j->run->out[i - s->n_in];
        s->buffers[i] = (struct backend_buffer){.host = (void *)(uintptr_t)b->handle, .bytes = b->bytes};
        s->pointers[i] = &s->buffers[i];
    }
    struct backend_run run = *j->run;
    run.in = s->pointers;
    run.out = s->pointers + s->n_in;
    run.scratch = s->scratch;
    run.trace = NULL;
    host_submit(f->inner, s->inner, &run, j->done, j->arg);
}

static void *fake_main(void *arg)
{
    struct fake *f = arg;
    pthread_mutex_lock(&f->lock);
    for (;;) {
        while (!f->first && !f->stop)
            pthread_cond_wait(&f->wake, &f->lock);
        struct fake_job *j = f->first;
        if (!j)
            break;
        f->first = j->next;
        if (!f->first)
            f->last = &f->first;
        pthread_mutex_unlock(&f->lock);
        run_job(f, j);
        free(j);
        pthread_mutex_lock(&f->lock);
    }
    pthread_mutex_unlock(&f->lock);
    return NULL;
}

static yk_err fake_open(struct pool *pool, struct backend **out, struct yk_diag *why)
{
    (void)pool;
    struct fake *f = yk_xalloc(sizeof(*f));
    f->base.ops = &backend_fake;
    f->last = &f->first;
    yk_err err = pool_open(1, &f->pool, why);
    if (!err)
        err = backend_ref.open(f->pool, &f->inner, why);
    if (err)
        goto fail;
    pthread_mutex_init(&f->lock, NULL);
    pthread_cond_init(&f->wake, NULL);
    int e = pthread_create(&f->thread, NULL, fake_main, f);
    if (e) {
        pthread_cond_destroy(&f->wake);
        pthread_mutex_destroy(&f->lock);
        err = yk_fail(why, yk_err_from_errno(e), "cannot start the thread of the fake device");
        goto fail;
    }
    *out = &f->base;
    return YK_OK;
fail:
    if (f->inner)
        backend_ref.close(f->inner);
    pool_close(f->pool);
    free(f);
    return err;
}

static void fake_close(struct backend *b)
{
    struct fake *f = (struct fake *)b;
    pthread_mutex_lock(&f->lock);
    f->stop = true;
    pthread_cond_signal(&f->wake);
    pthread_mutex_unlock(&f->lock);
    pthread_join(f->thread, NULL);
    pthread_cond_destroy(&f->wake);
    pthread_mutex_destroy(&f->lock);
    backend_ref.close(f->inner);
    pool_close(f->pool);
    free(f);
}

static const char *fake_isa(struct backend *b)
{
    (void)b;
    return "fake";
}

static int fake_forms(struct backend *b, const struct op_ctx *node, struct backend_form *out, int max)
{
    static const char *const ops[] = {"Conv", "FusedConv", "Relu", "Add", "Mul", "MatMul", "Gemm", "FusedGemm",
        "MaxPool", "GlobalAveragePool", "Softmax", "Reshape", "Flatten", "Transpose", "Concat"};
    struct fake *f = (struct fake *)b;
    bool mine = false;
    for (size_t i = 0; i < YK_COUNT(ops); i++)
        mine |= !strcmp(ops[i], node->node->op->name);
    if (!mine || max < 1 || host_forms(f->inner, node, out, 1) != 1)
        return 0;
    strcpy(out->name, "device@fake");
    return 1;
}

static void segment_free(struct fake *f, struct fake_segment *s)
{
    if (!s)
        return;
    if (s->inner)
        host_release(f->inner, s->inner);
    for (int32_t v = 0; s->weights && v < s->graph->n_values; v++)
        free(s->weights[v]);
    free(s->weights);
    free(s->buffers);
    free(s->pointers);
    free(s->scratch);
    free(s);
}

static bool copy_weights(struct fake_segment *s, const void *const *weights)
{
    for (int32_t v = 0; v < s->graph->n_values; v++) {
        int64_t bytes = s->graph->values[v].kind == VALUE_WEIGHT ? shape_bytes(&s->graph->values[v].shape) : 0;
        if (!weights || !weights[v] || bytes <= 0)
            continue;
        if (!s->weights[v] && !(s->weights[v] = yk_try_aligned((size_t)bytes)))
            return false;
        memcpy(s->weights[v], weights[v], (size_t)bytes);
    }
    return true;
}

static yk_err fake_prepare(struct backend *b, const struct backend_segment *seg, void **handle, int64_t *scratch_bytes,
    int64_t *packed_bytes, struct yk_diag *why)
{
    struct fake *f = (struct fake *)b;
    yk_err err = YK_NOMEM;
    int64_t scratch, packed;
    const char **forms = NULL;
    struct fake_segment *s = yk_try_alloc(1, sizeof(*s));
    if (!s)
        goto out;
    s->graph = seg->graph;
    s->n_in = seg->n_in;
    s->n_out = seg->n_out;
    s->weights = yk_try_alloc((size_t)seg->graph->n_values + 1, sizeof(*s->weights));
    s->buffers = yk_try_alloc((size_t)(seg->n_in + seg->n_out) + 1, sizeof(*s->buffers));
    s->pointers = yk_try_alloc((size_t)(seg->n_in + seg->n_out) + 1, sizeof(*s->pointers));
    forms = yk_try_alloc((size_t)seg->n_nodes + 1, sizeof(*forms));
    if (!s->weights || !s->buffers || !s->pointers || !forms || !copy_weights(s, seg->weights))
        goto out;
    for (int32_t i = 0; i < seg->n_nodes; i++) {
        if (strcmp(seg->forms[i], "device@fake") != 0) {
            err = yk_fail(why, YK_UNSUPPORTED, "the fake device has no form '%s'", seg->forms[i]);
            goto out;
        }
        forms[i] = "ref@generic";
    }
    struct backend_segment inner = *seg;
    inner.forms = forms;
    inner.weights = (const void *const *)s->weights;
    inner.place = NULL;
    err = host_prepare(f->inner, &inner, &s->inner, &scratch, &packed, why);
    if (err)
        goto out;
    s->scratch = yk_try_aligned((size_t)YK_MAX(scratch, 1));
    err = s->scratch ? YK_OK : YK_NOMEM;
    if (err)
        goto out;
    *handle = s;
    *scratch_bytes = 0;
    *packed_bytes = packed;
    s = NULL;
out:
    if (err == YK_NOMEM)
        yk_fail(why, err, "no memory on the fake device");
    segment_free(f, s);
    free(forms);
    return err;
}

static yk_err fake_set_weights(struct backend *b, void *handle, const void *const *weights, struct yk_diag *why)
{
    struct fake *f = (struct fake *)b;
    struct fake_segment *s = handle;
    if (!copy_weights(s, weights))
        return yk_fail(why, YK_NOMEM, "no memory on the fake device");
    return host_set_weights(f->inner, s->inner, (const void *const *)s->weights, why);
}

static void fake_submit(struct backend *b, void *handle, const struct backend_run *run,
    void (*done)(void *arg, yk_err err, const char *why), void *arg)
{
    struct fake *f = (struct fake *)b;
    struct fake_segment *s = handle;
    struct fake_job *j = yk_xalloc(sizeof(*j));
    *j = (struct fake_job){.segment = s, .run = run, .done = done, .arg = arg};
    atomic_store(&s->canceled, false);
    pthread_mutex_lock(&f->lock);
    *f->last = j;
    f->last = &j->next;
    pthread_cond_signal(&f->wake);
    pthread_mutex_unlock(&f->lock);
}

static void fake_cancel(struct backend *b, void *handle)
{
    struct fake *f = (struct fake *)b;
    struct fake_segment *s = handle;
    atomic_store(&s->canceled, true);
    host_cancel(f->inner, s->inner);
}

static void fake_release(struct backend *b, void *handle)
{
    segment_free((struct fake *)b, handle);
}

static yk_err fake_alloc(struct backend *b, int64_t bytes, struct backend_buffer *out)
{
    (void)b;
    void *p = yk_try_aligned((size_t)YK_MAX(bytes, 1));
    if (!p)
        return YK_NOMEM;
    *out = (struct backend_buffer){.host = NULL, .handle = (uintptr_t)p, .bytes = bytes};
    return YK_OK;
}

static void fake_free(struct backend *b, struct backend_buffer *buf)
{
    (void)b;
    free((void *)(uintptr_t)buf->handle);
    *buf = (struct backend_buffer){0};
}

static yk_err fake_write(struct backend *b, struct backend_buffer *dst, const void *src, int64_t bytes)
{
    (void)b;
    if (bytes < 0 || bytes > dst->bytes)
        return YK_LIMIT;
    if (bytes)
        memcpy((void *)(uintptr_t)dst->handle, src, (size_t)bytes);
    return YK_OK;
}

static yk_err fake_read(struct backend *b, const struct backend_buffer *src, void *dst, int64_t bytes)
{
    (void)b;
    if (bytes < 0 || bytes > src->bytes)
        return YK_LIMIT;
    if (bytes)
        memcpy(dst, (const void *)(uintptr_t)src->handle, (size_t)bytes);
    return YK_OK;
}

const struct backend_ops backend_fake = {
    .name = "fake",
    .abi = BACKEND_ABI,
    .exact = true,
    .host = false,
    .open = fake_open,
    .close = fake_close,
    .isa = fake_isa,
    .forms = fake_forms,
    .prepare = fake_prepare,
    .set_weights = fake_set_weights,
    .submit = fake_submit,
    .cancel = fake_cancel,
    .release = fake_release,
    .alloc = fake_alloc,
    .free = fake_free,
    .write = fake_write,
    .read = fake_read,
};
