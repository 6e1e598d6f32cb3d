/* Generations: loading stages on agents, running the source, taking results, unloading.
 * A plan of several pipelines makes one generation each; every one is told which microbatches are not its own. */
#include "scheduler/job_data.h"
#include "scheduler/sched_priv.h"
#include "scheduler/spans.h"

#include "common/log.h"
#include "common/metrics.h"
#include "common/npy.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_OUTPUT_BYTES ((int64_t)1 << 31) /* of one microbatch */

#define MAX_OUTPUTS 4096
#define MAX_EARLY 256

#define ENDED_US 5000000 /* agents' last figures come after their unload */

static struct generation *find_in(struct generation *list, int64_t id)
{
    for (; list; list = list->next)
        if (list->id == id)
            return list;
    return NULL;
}

static struct generation *find(struct sched *s, int64_t id)
{
    return find_in(s->generations, id);
}

struct generation *sched_generation(struct sched *s, int64_t id)
{
    return find(s, id);
}

struct generation *sched_generation_of(const struct sched *s, const struct job *j)
{
    struct generation *g = s->generations;
    while (g && g->job != j)
        g = g->next;
    return g;
}

struct generation_agent *sched_member(struct generation *g, const char *agent)
{
    for (int i = 0; i < g->n_agents; i++)
        if (strcmp(g->agents[i].id, agent) == 0)
            return &g->agents[i];
    return NULL;
}

int sched_stage_agents(const struct generation *g)
{
    int n = 0;
    for (int i = 0; i < g->n_agents; i++)
        n += g->agents[i].has_stage;
    return n;
}

/* A result with outputs. It comes over another connection than run_started and may be here first: then it waits. */
struct output {
    struct sched *sched;
    struct wire_msg head; /* owned */
    struct shape *shapes; /* by tensor */
    void *data;
};

static void output_free(struct output *o)
{
    wire_free(&o->head);
    free(o->shapes);
    free(o->data);
    free(o);
}

struct early {
    struct early *next;
    struct output *output;
};

static void drop_early(struct generation *g)
{
    for (struct early *e = g->early, *next; e; e = next) {
        next = e->next;
        output_free(e->output);
        free(e);
    }
    g->early = NULL;
    g->n_early = 0;
}

/* ---- unloading ---- */

static void generation_free(struct generation *g)
{
    drop_early(g);
    plan_free(g->plan);
    free(g->norms.sums);
    free(g->bad.text);
    free(g);
}

/* Unloads it everywhere; what its agents measured last may still come in for a while. */
static void generation_end(struct sched *s, struct generation *g, bool tell)
{
    struct generation **p = &s->generations;
    while (*p != g)
        p = &(*p)->next;
    *p = g->next;
    struct wire_unload unload = {.term = store_term(s->store), .generation = g->id};
    for (int i = 0; i < g->n_agents; i++) {
        struct fleet_agent *a = fleet_find(s->fleet, g->agents[i].id);
        if (!a)
            continue;
        a->reserved_bytes -= g->agents[i].reserved_bytes;
        a->loaded--;
        if (tell && a->state == FLEET_ALIVE)
            fleet_send(a, WIRE_TYPE_unload, &unload);
        if (tell)
            fleet_save(a);
    }
    drop_early(g);
    g->job_id = g->job->id;
    g->job = NULL;
    g->ended_us = net_now_us(s->net);
    g->next = s->ended;
    s->ended = g;
}

void dispatch_sweep(struct sched *s, bool all)
{
    int64_t before = net_now_us(s->net) - ENDED_US;
    for (struct generation **p = &s->ended; *p;) {
        struct generation *g = *p;
        if (!all && g->ended_us > before) {
            p = &g->next;
            continue;
        }
        *p = g->next;
        generation_free(g);
    }
}

void dispatch_drop(struct sched *s, struct job *j)
{
    for (struct generation *g = s->generations, *next; g; g = next) {
        next = g->next;
        if (g->job != j)
            continue;
        if (g->running) {
            struct fleet_agent *a = fleet_find(s->fleet, g->source);
            char id[24];
            snprintf(id, sizeof id, "%lld", (long long)j->id);
            struct wire_cancel cancel = {.term = store_term(s->store), .generation = g->id, .job = id};
            if (a && !job_ended(j->state))
                fleet_send(a, WIRE_TYPE_cancel, &cancel);
        }
        generation_end(s, g, true);
    }
}

void dispatch_fini(struct sched *s)
{
    while (s->generations)
        generation_end(s, s->generations, false);
    dispatch_sweep(s, true);
}

void dispatch_agent_lost(struct sched *s, struct fleet_agent *a)
{
    for (struct generation *g = s->generations; g;) {
        if (!sched_member(g, a->id)) {
            g = g->next;
            continue;
        }
        struct job *j = g->job;
        char why[128];
        snprintf(why, sizeof why, "agent %s went away", a->name);
        jobs_lost(s, j, why);
        g = s->generations; /* the list has changed */
    }
}

/* ---- running ---- */

/* Microbatch ranges that this generation must not run: done ones, and those of other pipelines by share. */
static int64_t *not_mine(const struct generation *g, size_t *n)
{
    const struct job *j = g->job;
    double before = 0;
    for (int32_t i = 0; i < g->pipeline; i++)
        before += g->plan->pipelines[i].share;
    double after = before + g->plan->pipelines[g->pipeline].share;
    bool last = g->pipeline + 1 == g->plan->n_pipelines;
    int64_t first = llround(before * (double)j->microbatches);
    int64_t end = last ? j->microbatches : llround(after * (double)j->microbatches);
    int64_t *list = yk_xalloc(((size_t)j->microbatches + 2) * 2 * sizeof *list);
    *n = 0;
    for (int64_t i = 0; j->done_map && i < j->microbatches; i++) {
        if (i >= first && i < end && !job_map_get(j, i))
            continue;
        if (*n && list[*n - 1] == i - 1)
            list[*n - 1] = i;
        else {
            list[(*n)++] = i;
            list[(*n)++] = i;
        }
    }
    return list;
}

/* Everything that is its own; to learn how many samples there are, the first microbatch only. */
static yk_err send_run(struct sched *s, struct generation *g, bool learn)
{
    struct job *j = g->job;
    struct fleet_agent *a = fleet_find(s->fleet, g->source);
    char id[24];
    size_t n;
    int64_t *done = not_mine(g, &n), others[2] = {1, INT64_MAX / 2};
    struct wire_input *inputs = yk_xalloc(((size_t)j->n_inputs + 1) * sizeof *inputs);
    for (int i = 0; i < j->n_inputs; i++)
        inputs[i] = (struct wire_input){j->inputs[i].value, j->inputs[i].data, j->inputs[i].whole};
    snprintf(id, sizeof id, "%lld", (long long)j->id);
    const struct model *model = sched_model_find(s, j->model);
    struct wire_run run = {.term = store_term(s->store),
        .generation = g->id,
        .job = id,
        .data = j->n_inputs ? j->inputs[0].data : j->data,
        .blob = j->n_inputs > 0,
        .labels = j->labels,
        .split = j->split      ? j->split
                 : j->training ? "train"
                               : "t10k",
        .mean = {j->mean, (size_t)j->n_mean},
        .std = {j->std, (size_t)j->n_std},
        .black = {j->black, (size_t)j->n_black},
        .nhwc = j->nhwc,
        .preprocess = j->preprocess ? j->preprocess
                      : model       ? model->preprocess
                                    : NULL,
        .images_only = j->preprocess != NULL,
        .microbatch = j->microbatch,
        .done = {learn ? others : done, learn ? 2 : n},
        .want_outputs = j->want_outputs,
        .want_accuracy = j->want_accuracy,
        .batch = j->training ? j->batch : 0,
        .step = j->training ? j->training->saved.step : 0};
    run.inputs.at = inputs;
    run.inputs.n = (size_t)j->n_inputs;
    yk_err err = a ? fleet_send(a, WIRE_TYPE_run, &run) : YK_CLOSED;
    g->running = !err;
    g->run_us = net_now_us(s->net);
    free(inputs);
    free(done);
    return err;
}

/* Starts every pipeline of a job. Shares are of the microbatches, so several pipelines need the number of samples
 * first: then one of them runs a single microbatch, and its run_done brings us here again. */
static void run_all(struct sched *s, struct job *j)
{
    for (struct generation *g = s->generations; g; g = g->next) {
        if (g->job != j)
            continue;
        bool learn = g->plan->n_pipelines > 1 && j->samples == 0;
        if (send_run(s, g, learn)) {
            jobs_lost(s, j, "the source went away before it started");
            return;
        }
        g->learned = !learn;
        if (learn)
            return;
    }
}

static void start_running(struct sched *s, struct job *j)
{
    for (struct generation *g = s->generations; g; g = g->next)
        if (g->job == j && g->n_loaded < g->n_agents)
            return;
    int64_t now = net_now_us(s->net);
    j->run_start_us = now;
    j->run_first_us = j->run_last_us = 0;
    j->run_count = j->run_first_count = 0;
    jobs_move(s, j, JOB_RUNNING, "stages are loaded");
    jobs_review_began(s, j);
    run_all(s, j);
}

static bool is_input_error(yk_err err)
{
    return err == YK_INVAL || err == YK_FORMAT || err == YK_UNSUPPORTED || err == YK_LIMIT || err == YK_NOTFOUND ||
           err == YK_PERM;
}

static void tell_loaded(const struct generation *g, struct fleet_agent *a)
{
    const struct graph *graph = g->model->graph;
    const struct plan_pipeline *line = &g->plan->pipelines[g->pipeline];
    if (!graph || (g->job->training && g->job->training->saved.step > 0))
        return;
    uint8_t *nodes = yk_xalloc((size_t)graph->n_nodes + 1);
    for (int32_t k = 0; k < line->n_stages; k++)
        for (int32_t r = 0; strcmp(line->stages[k].agent, a->name) == 0 && r < line->stages[k].n_nodes; r++)
            for (int64_t i = line->stages[k].nodes[r].first; i <= line->stages[k].nodes[r].last && i < graph->n_nodes;
                 i++)
                nodes[i] = 1;
    fleet_blobs_loaded(a, g->model->graph_hash, graph, nodes);
    free(nodes);
}

static void on_loaded(struct sched *s, struct fleet_agent *a, struct generation *g, const struct wire_loaded *m)
{
    struct generation_agent *member_ = sched_member(g, a->id);
    struct job *j = g->job;
    if (!member_ || !j || j->state != JOB_LOADING)
        return;
    if (m->error[0]) {
        yk_err err = yk_err_from_name(m->error);
        bool fatal = is_input_error(err) && err != YK_NOTFOUND;
        char why[300];
        snprintf(why, sizeof why, "agent %.60s%s: %.200s", a->name, fatal ? "" : " could not load", m->text);
        if (err == YK_NOMEM)
            jobs_refused(s, g, a, m->memory_bytes, why);
        else if (j->training)
            jobs_sets_suspect(s, j, err, fatal, why);
        else
            jobs_content_suspect(s, j, false, err, fatal, why);
        return;
    }
    if (member_->loaded)
        return;
    member_->loaded = true;
    member_->held_bytes = YK_MAX(m->memory_bytes, (int64_t)0);
    if (member_->held_bytes > member_->reserved_bytes) { /* other jobs' plans may not count on it */
        a->reserved_bytes += member_->held_bytes - member_->reserved_bytes;
        member_->reserved_bytes = member_->held_bytes;
    }
    tell_loaded(g, a);
    g->n_loaded++;
    j->life.fetched_bytes += m->fetched_bytes;
    jobs_event(s, j->id, "loaded", "%s holds its stages: %.1f MB, %.0f ms, %.1f MB fetched", a->name,
        (double)m->memory_bytes / 1e6, m->ms, (double)m->fetched_bytes / 1e6);
    start_running(s, j);
}

static void take_early(struct sched *s, struct generation *g);

static void on_run_started(struct sched *s, struct generation *g, const struct wire_run_started *m)
{
    struct job *j = g->job;
    struct yk_diag why = {0};
    if (!j || j->state != JOB_RUNNING)
        return;
    if (j->training) {
        jobs_train_started(s, j, m);
        return;
    }
    bool first = j->samples == 0;
    if (job_set_samples(j, m->samples, &why)) {
        jobs_fail(s, j, "%s", why.text);
        return;
    }
    jobs_move(s, j, JOB_RUNNING, "");
    if (first)
        jobs_event(s, j->id, "started", "%lld samples, %lld microbatches of %lld", (long long)j->samples,
            (long long)j->microbatches, (long long)j->microbatch);
    if (first && m->note[0])
        jobs_event(s, j->id, "note", "%.300s", m->note);
    if (j->samples == 0)
        jobs_finish(s, j);
    else
        take_early(s, g);
}

static void on_run_done(struct sched *s, struct fleet_agent *a, struct generation *g, const struct wire_run_done *m)
{
    struct job *j = g->job;
    if (m->error[0]) {
        yk_err err = yk_err_from_name(m->error);
        bool fatal = is_input_error(err);
        char why[600];
        snprintf(why, sizeof why, "%s%.60s%s%.500s", fatal ? "agent " : "", fatal ? a->name : "", fatal ? ": " : "",
            m->text);
        jobs_content_suspect(s, j, true, err, fatal, why);
    } else if (!g->learned && !j->training) {
        run_all(s, j);
    }
}

/* The rows of one output into its file; the header first, again after a restart. */
static void save_output(struct sched *s, struct job *j, struct job_output *o, int64_t first, int64_t count,
    const struct shape *shape, const void *data)
{
    struct yk_buf head = {0};
    struct shape all = *shape;
    int64_t bytes = shape_bytes(shape);
    if (!o->header) {
        if (!o->whole)
            all.dims[0] = j->samples;
        if (npy_header(&all, &head) || head.failed) {
            jobs_fail(s, j, "output '%.60s' has no .npy form", o->name);
            yk_buf_free(&head);
            return;
        }
        store_write_file(s->store, j->id, o->path, 0, head.data, head.len);
        o->header = (int64_t)head.len;
        yk_buf_free(&head);
        free(j->outputs_json);
        j->outputs_json = job_data_outputs_json(j);
    }
    int64_t row = o->whole ? 0 : bytes / count;
    store_write_file(s->store, j->id, o->path, o->header + first * row, data, (size_t)bytes);
}

/* Every output has the rows that it should have. */
static bool rows_fit(const struct job *j, int32_t i, const struct shape *shape, int64_t count)
{
    return i < j->n_outputs && (j->outputs[i].whole || (shape->rank > 0 && shape->dims[0] == count));
}

/* A result counts once, whoever sent it again. tensors: as in r, their bytes from `body`; NULL without outputs. */
static void take_result(
    struct sched *s, struct generation *g, const struct wire_result *r, const struct shape *shapes, const uint8_t *body)
{
    struct job *j = g->job;
    int64_t now = net_now_us(s->net);
    if (!j || j->state != JOB_RUNNING || !j->done_map)
        return;
    if (r->microbatch < 0 || r->microbatch >= j->microbatches || job_map_get(j, r->microbatch))
        return;
    int64_t first = r->microbatch * j->microbatch, count = YK_MIN(j->microbatch, j->samples - first);
    bool fits = r->count == count && count > 0;
    for (size_t i = 0; fits && j->want_outputs && body && i < r->tensors.n; i++)
        fits = rows_fit(j, (int32_t)i, &shapes[i], count);
    if (!fits) {
        jobs_lost(s, j, "the source answered with another number of samples");
        return;
    }
    for (size_t i = 0; j->want_outputs && body && i < r->tensors.n; i++) {
        struct job_output *o = &j->outputs[i];
        if (!o->whole || j->microbatches == 1)
            save_output(s, j, o, first, count, &shapes[i], body + r->tensors.at[i].offset);
        if (job_ended(j->state))
            return;
    }
    job_map_set(j, r->microbatch);
    j->done += count;
    j->done_microbatches++;
    if (r->correct >= 0) {
        j->correct += YK_MIN(r->correct, count);
        j->labelled += count;
    }
    j->losses = 0;
    j->run_count += count;
    j->run_last_us = now;
    if (!j->run_first_us) {
        j->run_first_us = now;
        j->run_first_count = count;
    }
    j->dirty = true;
    jobs_alive(s, j);
    metrics_add(METRIC_microbatches_total, 1);
    if (j->done_microbatches == j->microbatches)
        jobs_finish(s, j);
}

/* An agent that was away for a moment still holds what was given up meanwhile. */
static void on_ping(struct sched *s, struct fleet_agent *a, const struct wire_ping *w)
{
    for (size_t i = 0; i < w->generations.n; i++) {
        struct generation *g = find(s, w->generations.at[i]);
        struct wire_unload unload = {.term = store_term(s->store), .generation = w->generations.at[i]};
        if (!g || !sched_member(g, a->id))
            fleet_send(a, WIRE_TYPE_unload, &unload);
    }
}

yk_err dispatch_message(void *sched, struct fleet_agent *a, struct wire_msg *msg)
{
    struct sched *s = sched;
    struct generation *g = NULL;
    switch (msg->type) {
    case WIRE_TYPE_ping:
        on_ping(s, a, &msg->as.ping);
        return YK_OK;
    case WIRE_TYPE_loaded:
        if ((g = find(s, msg->as.loaded.generation)))
            on_loaded(s, a, g, &msg->as.loaded);
        return YK_OK;
    case WIRE_TYPE_run_started:
        if ((g = find(s, msg->as.run_started.generation)) && strcmp(g->source, a->id) == 0)
            on_run_started(s, g, &msg->as.run_started);
        return YK_OK;
    case WIRE_TYPE_result:
        if ((g = find(s, msg->as.result.generation)) && strcmp(g->source, a->id) == 0)
            take_result(s, g, &msg->as.result, NULL, NULL);
        return YK_OK;
    case WIRE_TYPE_step:
        g = find(s, msg->as.step.generation);
        if (g && g->job && g->job->training && strcmp(g->source, a->id) == 0)
            jobs_train_step(s, g, &msg->as.step);
        return YK_OK;
    case WIRE_TYPE_norms:
        g = find(s, msg->as.norms.generation);
        if (g && g->job && g->job->training && sched_member(g, a->id))
            jobs_train_norms(s, g, a, &msg->as.norms);
        return YK_OK;
    case WIRE_TYPE_bad:
        g = find(s, msg->as.bad.generation);
        if (g && g->job && g->job->training && sched_member(g, a->id))
            jobs_train_bad(s, g, a, &msg->as.bad);
        return YK_OK;
    case WIRE_TYPE_judged:
        g = find(s, msg->as.judged.generation);
        if (g && g->job && g->job->training && strcmp(g->source, a->id) == 0)
            jobs_judge_done(s, g, &msg->as.judged);
        return YK_OK;
    case WIRE_TYPE_halted:
        g = find(s, msg->as.halted.generation);
        if (g && g->job && g->job->training && strcmp(g->source, a->id) == 0)
            jobs_halted(s, g, msg->as.halted.step);
        return YK_OK;
    case WIRE_TYPE_run_done:
        g = find(s, msg->as.run_done.generation);
        if (g && g->job->state == JOB_RUNNING && strcmp(g->source, a->id) == 0)
            on_run_done(s, a, g, &msg->as.run_done);
        return YK_OK;
    case WIRE_TYPE_stage_stats:
        g = find(s, msg->as.stage_stats.generation);
        if (!g)
            g = find_in(s->ended, msg->as.stage_stats.generation);
        if (g && sched_member(g, a->id))
            dispatch_stats(s, a, g, &msg->as.stage_stats);
        return YK_OK;
    case WIRE_TYPE_spans:
        g = find(s, msg->as.spans.generation);
        if (!g)
            g = find_in(s->ended, msg->as.spans.generation);
        if (g && sched_member(g, a->id))
            spans_take(s, g, a, &msg->as.spans);
        return YK_OK;
    case WIRE_TYPE_stage_failed:
        g = find(s, msg->as.stage_failed.generation);
        if (g && g->job && sched_member(g, a->id)) {
            char why[400];
            snprintf(why, sizeof why, "agent %.60s: %.300s", a->name, msg->as.stage_failed.text);
            if (yk_err_from_name(msg->as.stage_failed.error) == YK_NOMEM)
                jobs_refused(s, g, a, 0, why);
            else
                jobs_lost(s, g->job, why);
        }
        return YK_OK;
    default:
        return YK_OK; /* of a newer minor */
    }
}

/* ---- outputs ---- */

static void output_done(void *arg, yk_err err)
{
    struct output *o = arg;
    const struct wire_result *r = &o->head.as.result;
    struct generation *g = err ? NULL : find(o->sched, r->generation);
    bool early = g && g->job->state == JOB_RUNNING && !g->job->done_map;
    if (early && g->n_early < MAX_EARLY) {
        struct early *e = yk_xalloc(sizeof *e);
        *e = (struct early){g->early, o};
        g->early = e;
        g->n_early++;
        return;
    }
    if (g)
        take_result(o->sched, g, r, o->shapes, o->data);
    output_free(o);
}

static void take_early(struct sched *s, struct generation *g)
{
    struct early *e = g->early;
    int64_t id = g->id;
    g->early = NULL;
    g->n_early = 0;
    while (e) { /* the last of them may end the generation */
        struct early *next = e->next;
        if ((g = find(s, id)))
            take_result(s, g, &e->output->head.as.result, e->output->shapes, e->output->data);
        output_free(e->output);
        free(e);
        e = next;
    }
}

/* The shape of a described tensor, and how far its bytes reach. */
static yk_err read_tensor(const struct wire_tensor *t, struct shape *shape, int64_t *end)
{
    if (t->offset < 0 || t->bytes < 0 || t->offset > MAX_OUTPUT_BYTES || t->bytes > MAX_OUTPUT_BYTES)
        return YK_LIMIT;
    if (t->dims.n > YK_MAX_RANK)
        return YK_FORMAT;
    *shape = (struct shape){.dtype = dtype_find(t->dtype), .rank = (int)t->dims.n};
    memcpy(shape->dims, t->dims.at, t->dims.n * sizeof *t->dims.at);
    *end = YK_MAX(*end, t->offset + t->bytes);
    return shape->dtype == DT_NONE || shape_bytes(shape) != t->bytes ? YK_FORMAT : YK_OK;
}

yk_err dispatch_stream(void *sched, struct fleet_agent *a, struct wire_msg *head, struct chan_sink *sink)
{
    struct sched *s = sched;
    if (head->type == WIRE_TYPE_part) {
        struct generation *of = find(s, head->as.part.generation);
        bool right = of && of->job && of->job->training && sched_member(of, a->id);
        return jobs_sets_part(s, right ? of : NULL, a, head, sink);
    }
    if (head->type != WIRE_TYPE_result)
        return YK_STATE;
    const struct wire_result *r = &head->as.result;
    /* A late result of an older generation is read and dropped. */
    struct generation *g = find(s, r->generation);
    if (!r->tensors.n || r->tensors.n > MAX_OUTPUTS || (g && strcmp(g->source, a->id) != 0))
        return YK_FORMAT;
    struct output *o = yk_xalloc(sizeof *o);
    o->sched = s;
    o->shapes = yk_xalloc(r->tensors.n * sizeof *o->shapes);
    int64_t total = 0;
    yk_err err = YK_OK;
    for (size_t i = 0; i < r->tensors.n && !err; i++)
        err = read_tensor(&r->tensors.at[i], &o->shapes[i], &total);
    if (!err && !(o->data = yk_try_alloc((size_t)total + 1, 1)))
        err = YK_NOMEM;
    if (err) {
        output_free(o);
        return err;
    }
    o->head = *head;
    head->arena = NULL;
    *sink = (struct chan_sink){.buf = o->data, .len = (size_t)total, .done = output_done, .arg = o};
    return YK_OK;
}
