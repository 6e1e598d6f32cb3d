#include "scheduler/schedule.h"

#include <stdlib.h>
#include <string.h>

#define SIMULATED 256
#define PERIOD 48 /* depths up to here leave room to see several periods */

enum event_kind { EVENT_READY, EVENT_FREE };

struct event {
    double at;
    int64_t order; /* ties: in the order they were made */
    int32_t kind, step, resource;
    int64_t microbatch;
};

struct waiting { /* a step that waits for its resource */
    int64_t microbatch;
    int32_t step;
};

struct queue {
    struct waiting *at;
    int32_t n, cap;
    bool busy;
};

struct run {
    const struct schedule *s;
    struct event *heap;
    int32_t n_heap, cap_heap;
    int64_t made;
    struct queue *queues;      /* by resource */
    uint64_t *due;             /* bits: resources that may have something to serve */
    int32_t *missing;          /* [slot * n_steps + step] */
    int32_t *left;             /* [slot]: steps not yet done */
    int32_t *after, *after_at; /* steps behind a step */
    int64_t entered, done;
    double now, finish;
    double *done_at; /* by microbatch */
    double *busy_ms;
    void (*trace)(void *arg, int64_t microbatch, int32_t step, double start_ms, double end_ms);
    void *arg;
};

static bool earlier(const struct event *a, const struct event *b)
{
    return a->at < b->at || (a->at == b->at && a->order < b->order);
}

static void push(struct run *r, struct event e)
{
    if (r->n_heap == r->cap_heap) {
        r->cap_heap = r->cap_heap ? 2 * r->cap_heap : 64;
        r->heap = yk_xrealloc(r->heap, (size_t)r->cap_heap * sizeof *r->heap);
    }
    e.order = r->made++;
    int32_t i = r->n_heap++;
    for (; i > 0 && earlier(&e, &r->heap[(i - 1) / 2]); i = (i - 1) / 2)
        r->heap[i] = r->heap[(i - 1) / 2];
    r->heap[i] = e;
}

static struct event pop(struct run *r)
{
    struct event top = r->heap[0], e = r->heap[--r->n_heap];
    int32_t i = 0;
    for (;;) {
        int32_t k = 2 * i + 1;
        if (k >= r->n_heap)
            break;
        if (k + 1 < r->n_heap && earlier(&r->heap[k + 1], &r->heap[k]))
            k++;
        if (!earlier(&r->heap[k], &e))
            break;
        r->heap[i] = r->heap[k];
        i = k;
    }
    r->heap[i] = e;
    return top;
}

static double frac_of(const struct schedule *s, int64_t microbatch)
{
    return s->last_frac > 0 && microbatch == s->microbatches - 1 ? s->last_frac : 1;
}

/* a goes before b on a resource. */
static bool before(const struct run *r, const struct waiting *a, const struct waiting *b)
{
    bool ba = r->s->steps[a->step].backward, bb = r->s->steps[b->step].backward;
    if (ba != bb)
        return r->s->order == SCHEDULE_BACKWARD_FIRST ? ba : bb;
    if (a->microbatch != b->microbatch)
        return a->microbatch < b->microbatch;
    return a->step < b->step;
}

static void start(struct run *r, int64_t microbatch, int32_t step)
{
    const struct schedule_step *st = &r->s->steps[step];
    double busy = st->busy_ms * frac_of(r->s, microbatch), end = r->now + busy;
    if (r->trace)
        r->trace(r->arg, microbatch, step, r->now, end);
    if (st->resource >= 0) {
        if (r->busy_ms)
            r->busy_ms[st->resource] += busy;
        r->queues[st->resource].busy = true;
        push(r, (struct event){.at = end, .kind = EVENT_FREE, .resource = st->resource});
    }
    push(r, (struct event){.at = end + st->latency_ms, .kind = EVENT_READY, .step = step, .microbatch = microbatch});
}

static void set_due(struct run *r, int32_t resource)
{
    r->due[resource / 64] |= (uint64_t)1 << resource % 64;
}

static void serve(struct run *r, int32_t resource)
{
    struct queue *q = &r->queues[resource];
    if (q->busy || q->n == 0)
        return;
    int32_t best = 0;
    for (int32_t i = 1; i < q->n; i++)
        if (before(r, &q->at[i], &q->at[best]))
            best = i;
    struct waiting w = q->at[best];
    q->at[best] = q->at[--q->n];
    start(r, w.microbatch, w.step);
}

static void ready(struct run *r, int64_t microbatch, int32_t step)
{
    int32_t resource = r->s->steps[step].resource;
    if (resource < 0) {
        start(r, microbatch, step);
        return;
    }
    struct queue *q = &r->queues[resource];
    if (q->n == q->cap) {
        q->cap = q->cap ? 2 * q->cap : 16;
        q->at = yk_xrealloc(q->at, (size_t)q->cap * sizeof *q->at);
    }
    q->at[q->n++] = (struct waiting){microbatch, step};
    set_due(r, resource);
}

static void serve_due(struct run *r)
{
    for (int32_t w = 0; w <= r->s->n_resources / 64; w++)
        for (; r->due[w]; r->due[w] &= r->due[w] - 1)
            serve(r, 64 * w + __builtin_ctzll(r->due[w]));
}

static void enter_more(struct run *r, int64_t count)
{
    const struct schedule *s = r->s;
    /* A slot may still belong to an earlier microbatch when later ones overtook it. */
    while (r->entered < count && r->entered - r->done < s->depth && r->left[r->entered % s->depth] == 0) {
        int64_t mb = r->entered++;
        size_t slot = (size_t)(mb % s->depth) * (size_t)s->n_steps;
        r->left[mb % s->depth] = s->n_steps;
        for (int32_t i = 0; i < s->n_steps; i++)
            r->missing[slot + (size_t)i] = s->steps[i].n_before;
        for (int32_t i = 0; i < s->n_steps; i++)
            if (s->steps[i].n_before == 0)
                ready(r, mb, i);
    }
}

static void step_done(struct run *r, int64_t mb, int32_t step, int64_t count)
{
    const struct schedule *s = r->s;
    size_t slot = (size_t)(mb % s->depth) * (size_t)s->n_steps;
    for (int32_t k = r->after_at[step]; k < r->after_at[step + 1]; k++)
        if (--r->missing[slot + (size_t)r->after[k]] == 0)
            ready(r, mb, r->after[k]);
    if (--r->left[mb % s->depth] == 0) {
        r->done_at[mb] = r->now;
        r->finish = r->now;
        r->done++;
        enter_more(r, count);
    }
}

/* Turns `before` lists into `after` lists; false on an index that is off. */
static bool link_steps(struct run *r)
{
    const struct schedule *s = r->s;
    int32_t total = 0;
    r->after_at = yk_xalloc(((size_t)s->n_steps + 2) * sizeof *r->after_at);
    for (int32_t i = 0; i < s->n_steps; i++)
        for (int32_t k = 0; k < s->steps[i].n_before; k++, total++) {
            int32_t b = s->steps[i].before[k];
            if (b < 0 || b >= s->n_steps)
                return false;
            r->after_at[b + 1]++;
        }
    for (int32_t i = 0; i < s->n_steps; i++)
        r->after_at[i + 1] += r->after_at[i];
    r->after = yk_xalloc(((size_t)total + 1) * sizeof *r->after);
    int32_t *fill = yk_xalloc(((size_t)s->n_steps + 1) * sizeof *fill);
    for (int32_t i = 0; i < s->n_steps; i++)
        for (int32_t k = 0; k < s->steps[i].n_before; k++) {
            int32_t b = s->steps[i].before[k];
            r->after[r->after_at[b] + fill[b]++] = i;
        }
    free(fill);
    return true;
}

/* How many microbatches are simulated: of a long run so many that what is left out is a multiple of the depth. A steady
 * pipeline repeats itself after `depth` microbatches, so its begin and its end (with a smaller last one) stay as they
 * are. */
static int64_t simulated(const struct schedule *s)
{
    if (s->microbatches <= SIMULATED)
        return s->microbatches;
    return s->depth <= PERIOD ? SIMULATED - (SIMULATED - s->microbatches % s->depth) % s->depth : SIMULATED;
}

/* Time between two microbatches, over whole periods of those that were through before the last one entered. */
static double steady(const struct run *r, int64_t count, int32_t depth)
{
    if (count < 2)
        return r->finish;
    bool whole = depth <= PERIOD && count > 4 * (int64_t)depth;
    int64_t end = whole ? count - 1 - depth : count - 1, from = end / 2;
    if (whole)
        from = end - YK_MAX((end - from) / depth, (int64_t)1) * depth;
    return (r->done_at[end] - r->done_at[from]) / (double)(end - from);
}

static int by_number(const void *a, const void *b)
{
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    return x < y ? -1 : x > y;
}

static int32_t sort_unique(int32_t *at, int32_t n)
{
    int32_t left = 0;
    qsort(at, (size_t)n, sizeof *at, by_number);
    for (int32_t i = 0; i < n; i++)
        if (left == 0 || at[left - 1] != at[i])
            at[left++] = at[i];
    return left;
}

yk_err schedule_run(const struct schedule *s, struct schedule_result *out,
    void (*trace)(void *arg, int64_t microbatch, int32_t step, double start_ms, double end_ms), void *arg)
{
    struct run r = {.s = s, .trace = trace, .arg = arg, .busy_ms = out->busy_ms};
    struct schedule cut = *s;
    if (s->depth < 1 || s->n_steps < 1 || s->microbatches < 0)
        return YK_INVAL;
    for (int32_t i = 0; i < s->n_steps; i++)
        if (!(s->steps[i].busy_ms >= 0) || !(s->steps[i].latency_ms >= 0) || s->steps[i].resource >= s->n_resources)
            return YK_INVAL;
    int64_t count = simulated(s);
    if (count < s->microbatches)
        r.trace = NULL;
    cut.depth = (int32_t)YK_MIN((int64_t)s->depth, YK_MAX(count, (int64_t)1));
    cut.microbatches = count;
    r.s = &cut;
    size_t slots = (size_t)cut.depth;
    r.queues = yk_xalloc(((size_t)s->n_resources + 1) * sizeof *r.queues);
    r.due = yk_xalloc(((size_t)s->n_resources / 64 + 1) * sizeof *r.due);
    r.missing = yk_xalloc(slots * (size_t)s->n_steps * sizeof *r.missing);
    r.left = yk_xalloc(slots * sizeof *r.left);
    r.done_at = yk_xalloc(((size_t)count + 1) * sizeof *r.done_at);
    if (r.busy_ms)
        memset(r.busy_ms, 0, (size_t)s->n_resources * sizeof *r.busy_ms);
    /* Of all links of a large fleet a pipeline takes few. */
    int32_t *used = yk_xalloc((size_t)s->n_steps * sizeof *used), n_used = 0;
    for (int32_t i = 0; i < s->n_steps; i++)
        if (s->steps[i].resource >= 0)
            used[n_used++] = s->steps[i].resource;
    n_used = sort_unique(used, n_used);
    bool sound = link_steps(&r);
    if (sound)
        enter_more(&r, count);
    for (bool more = sound; more;) {
        serve_due(&r);
        more = r.n_heap > 0;
        /* All that happens at one instant, before resources choose what to serve. */
        for (double at = more ? r.heap[0].at : 0; r.n_heap > 0 && r.heap[0].at == at;) {
            struct event e = pop(&r);
            r.now = e.at;
            if (e.kind == EVENT_READY) {
                step_done(&r, e.microbatch, e.step, count);
            } else {
                r.queues[e.resource].busy = false;
                set_due(&r, e.resource);
            }
        }
    }
    sound = sound && r.done == count; /* a cycle never finishes */
    out->total_ms = r.finish;
    out->steady_ms = steady(&r, count, s->depth);
    if (sound && s->microbatches > count) {
        double part = s->last_frac > 0 ? s->last_frac - 1 : 0;
        out->total_ms += (double)(s->microbatches - count) * out->steady_ms;
        for (int32_t i = 0; r.busy_ms && i < s->n_resources; i++)
            r.busy_ms[i] *= ((double)s->microbatches + part) / ((double)count + part);
    }
    for (int32_t i = 0; i < n_used; i++)
        free(r.queues[used[i]].at);
    free(used);
    free(r.queues);
    free(r.due);
    free(r.missing);
    free(r.left);
    free(r.done_at);
    free(r.after);
    free(r.after_at);
    free(r.heap);
    return sound ? YK_OK : YK_INVAL;
}
