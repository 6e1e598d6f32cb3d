#include "agent/source_judge.h"

#include "agent/blob.h"
#include "agent/control.h"
#include "agent/judge.h"
#include "agent/source_priv.h"
#include "agent/training.h"
#include "common/hash.h"
#include "common/onnx.h"
#include "kernels/fold.h"

#include <stdlib.h>

#define MODEL_LIMIT ((int64_t)2 << 30)

struct judging {
    struct pipeline *p;
    int64_t epoch, room, began_us; /* room: bytes of memory that may be taken */
    struct cache_entry *model;
    struct graph *graph;
    struct judge *judge;
    struct judge_score score;
    void *x, *y;
    int64_t at, count; /* samples that are through; of the microbatch in x and y */
    yk_err err;
    struct yk_diag why;
};

bool source_judge_awaited(const struct pipeline *p)
{
    const struct source_run *r = p->run;
    return p->training && p->training->config.val > 0 && r->judged < p->training->config.epochs;
}

static void tell(
    struct agent *a, int64_t generation, int64_t epoch, const struct judging *m, yk_err err, const char *why)
{
    struct wire_judged w = {.generation = generation,
        .epoch = epoch,
        .correct = -1,
        .error = err ? yk_err_name(err) : "",
        .text = err ? why : ""};
    if (!err) {
        w.samples = m->score.samples;
        w.loss = m->score.loss;
        w.correct = m->score.classes ? m->score.correct : -1;
        w.ms = (double)(net_now_us(a->net) - m->began_us) / 1e3;
    }
    control_send(a, WIRE_TYPE_judged, &w);
}

static void close_run(void *arg)
{
    struct judging *m = arg;
    if (!m->err)
        m->score = judge_score(m->judge);
    judge_close(m->judge);
    graph_close(m->graph);
}

static void close_done(void *arg)
{
    struct judging *m = arg;
    struct pipeline *p = m->p;
    if (m->model)
        cache_release(p->agent->cache, m->model);
    p->run->judging = false;
    if (p->state == PIPELINE_READY && !p->run->over) { /* the next may be asked for at once */
        p->run->judged = YK_MAX(p->run->judged, m->epoch);
        tell(p->agent, p->generation, m->epoch, m, m->err, m->why.text);
    }
    free(m->x);
    free(m->y);
    free(m);
    source_kick(p); /* the run may end now */
    pipeline_release(p);
}

static void finish(struct judging *m)
{
    if (!m->err && !m->judge)
        m->err = YK_CANCELED; /* it was over before it began */
    worker_post(m->p->agent->runner_thread, close_run, close_done, m);
}

/* ---- microbatch by microbatch ---- */

static void go(struct judging *m);

static void add_run(void *arg)
{
    struct judging *m = arg;
    m->err = judge_add(m->judge, m->p->run->data.batches.set, m->x, m->y, m->count, &m->why);
}

static void add_done(void *arg)
{
    struct judging *m = arg;
    m->at += m->count;
    go(m);
}

static void read_run(void *arg)
{
    struct judging *m = arg;
    m->err = batches_held(&m->p->run->data.batches, m->at, m->count, m->x, m->y, &m->why);
}

static void read_done(void *arg)
{
    struct judging *m = arg;
    if (m->err || m->p->run->over)
        finish(m);
    else
        worker_post(m->p->agent->runner_thread, add_run, add_done, m);
}

static void go(struct judging *m)
{
    const struct source_run *r = m->p->run;
    int64_t held = r->data.batches.sampler.held;
    if (m->err || r->over || m->p->state != PIPELINE_READY || m->at >= held) {
        finish(m);
        return;
    }
    m->count = YK_MIN(judge_microbatch(m->judge), held - m->at);
    worker_post(m->p->agent->data, read_run, read_done, m);
}

/* ---- opening ---- */

static void open_run(void *arg)
{
    struct judging *m = arg;
    const struct pipeline *p = m->p;
    const struct pipeline_training *t = p->training;
    const struct batches *b = &p->run->data.batches;
    m->err = onnx_import_memory(cache_data(m->model), cache_len(m->model), &m->graph, NULL, &m->why);
    if (!m->err)
        m->err = passes_train(m->graph, fold_eval, NULL, &m->why);
    const struct judge_config c = {.graph = m->graph,
        .like = p->graph,
        .like_sizes = p->sizes,
        .backends = &p->agent->backends,
        .microbatch = p->full,
        .samples = b->sampler.held,
        .output = p->graph->values[p->graph->outputs[t->scores]].name,
        .loss = (enum grad_loss)t->config.loss,
        .ignore_index = t->config.ignore_index};
    if (!m->err)
        m->err = judge_open(&c, &m->judge, &m->why);
    if (m->err)
        return;
    int64_t n = judge_microbatch(m->judge), x = data_at(b->set, data_inputs(b->set), n);
    int64_t bytes = judge_bytes(m->judge) + (int64_t)cache_len(m->model) + x;
    if (x < 0 || bytes > m->room)
        m->err = yk_fail(&m->why, YK_NOMEM, "it takes %lld bytes beside the training, there are %lld", (long long)bytes,
            (long long)m->room);
    m->x = m->err ? NULL : yk_try_aligned((size_t)x + 1);
    m->y = m->err ? NULL : yk_try_aligned((size_t)(n * shape_bytes(data_truth(b->set))) + 1);
    if (!m->err && (!m->x || !m->y))
        m->err = yk_fail(&m->why, YK_NOMEM, "no memory for %lld samples", (long long)n);
}

static void open_done(void *arg)
{
    go(arg);
}

static void on_model(void *arg, yk_err err, const char *why, struct cache_entry *e, int64_t fetched)
{
    (void)fetched;
    struct judging *m = arg;
    struct agent *a = m->p->agent;
    m->model = e;
    m->room = INT64_MAX;
    if (a->memory_bytes > 0) {
        m->room = a->memory_bytes;
        for (const struct pipeline *p = a->pipelines; p; p = p->next)
            m->room -= p->memory_bytes;
    }
    if (err)
        m->err = yk_fail(&m->why, err, "%s", why);
    if (err || m->p->run->over || m->p->state != PIPELINE_READY)
        finish(m);
    else
        worker_post(a->runner_thread, open_run, open_done, m);
}

void source_judge(struct agent *a, const struct wire_judge *w)
{
    struct pipeline *p = pipeline_find(a, w->generation);
    bool here = p && p->state == PIPELINE_READY && p->training && p->run && p->run->open && !p->run->over;
    if (!here || p->run->data.batches.sampler.held < 1 || !hash_is_hex(w->model)) {
        tell(a, w->generation, w->epoch, NULL, YK_STATE, "this agent runs no such training");
        return;
    }
    if (p->run->judging) /* the same again, for the connection was lost in between */
        return;
    struct judging *m = yk_xalloc(sizeof *m);
    *m = (struct judging){.p = p, .epoch = w->epoch, .began_us = net_now_us(a->net)};
    p->run->judging = true;
    p->busy++;
    blob_fetch(a, w->model, MODEL_LIMIT, on_model, m);
}
