#include "scheduler/job_data.h"
#include "scheduler/sched_priv.h"

#include "common/log.h"
#include "common/metrics.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define TICK_US 100000
#define SWEEP_EVERY_US ((int64_t)900 * 1000000)
#define PART_S ((int64_t)3600)
#define OUTPUT_S ((int64_t)30 * 24 * 3600) /* as long as the rows of jobs stay */

const char *sched_url(const struct sched *s)
{
    return net_listener_url(s->listener);
}

struct store *sched_store(struct sched *s)
{
    return s->store;
}

struct blobs *sched_blobs(struct sched *s)
{
    return s->blobs;
}

struct fleet *sched_fleet(struct sched *s)
{
    return s->fleet;
}

bool sched_job_known(const struct sched *s, int64_t job)
{
    return job > 0 && job <= s->next_job;
}

int sched_jobs_open(const struct sched *s)
{
    int n = 0;
    for (const struct job *j = s->jobs; j; j = j->next)
        n++;
    return n;
}

struct model *sched_model_find(struct sched *s, const char *name)
{
    for (struct model *m = s->models; m; m = m->next)
        if (strcmp(m->name, name) == 0) { /* the newest of a name stands first */
            m->used_us = net_now_us(s->net);
            return m;
        }
    return NULL;
}

/* ---- plans ---- */

struct asking {
    struct sched *s;
    struct job *job; /* the parsed request */
    sched_on_text fn;
    void *arg;
};

static void plan_answer(void *arg, yk_err err, const char *why, struct plan *plan)
{
    struct asking *a = arg;
    struct yk_buf b = {0};
    struct json_out o;
    struct yk_diag diag = {0};
    if (!err && a->job->training && a->job->training->model) {
        err = training_check(a->job->training, plan, &diag);
        why = diag.text;
    }
    if (!err) {
        json_out_init(&o, &b, 0);
        plan_to_json(plan, &o);
        yk_buf_add(&b, "", 1);
        if (b.failed)
            err = YK_NOMEM;
    }
    a->fn(a->arg, err, err ? why : (char *)b.data);
    yk_buf_free(&b);
    plan_free(plan);
    jobs_train_leave(a->s, a->job->training);
    job_free(a->job);
    free(a);
}

/* Two names of one agent: its name and its id, also of one that is away. */
static bool same_agent(struct sched *s, const char *a, const char *b)
{
    const struct fleet_agent *x = fleet_find(s->fleet, a), *y = fleet_find(s->fleet, b);
    return strcmp(a, b) == 0 || (x && x == y);
}

/* A plan that was given, before anything but its hash is believed. */
static yk_err check_plan(struct sched *s, const struct job *j, struct model *m, struct yk_diag *why)
{
    if (!j->forced)
        return YK_OK;
    yk_err err = model_load(m, s->blobs, why);
    if (!err && !j->training && (err = plan_check(j->forced, m->graph, NULL, why))) /* a training's is made later */
        return yk_wrap(why, err, "plan");
    if (!err && j->forced->source && !same_agent(s, j->forced->source, j->source))
        err = yk_fail(why, YK_INVAL,
            "the plan's source is '%.60s', the request's is '%.60s': give the same, or plan it again",
            j->forced->source, j->source);
    return err;
}

static yk_err check_request(struct sched *s, const struct job *j, bool needs_data, struct yk_diag *why)
{
    struct model *m = sched_model_find(s, j->model);
    if (!m)
        return yk_fail(why, YK_NOTFOUND, "there is no model '%s' (`yoke models` lists them)", j->model);
    if (needs_data && (j->want_changes || j->want_bars))
        return yk_fail(why, YK_INVAL, "explain and timeline go with POST /v1/plan");
    if (needs_data && !j->data && !j->n_inputs)
        return yk_fail(why, YK_INVAL, "data is missing: {\"blob\": SHA-256} or {\"name\": NAME}");
    for (int i = 0; i < j->n_inputs; i++)
        if (!blobs_find(s->blobs, j->inputs[i].data, NULL))
            return yk_fail(why, YK_NOTFOUND,
                "data.%s%.60s: there is no such content; upload it with PUT /v1/blobs/SHA-256 first",
                j->inputs[i].name ? "inputs." : "blob", j->inputs[i].name ? j->inputs[i].name : "");
    if (j->labels && !blobs_find(s->blobs, j->labels, NULL))
        return yk_fail(why, YK_NOTFOUND, "data.labels: there is no such content");
    return check_plan(s, j, m, why);
}

yk_err sched_model_describe(struct sched *s, const char *name, struct yk_buf *out, struct yk_diag *why)
{
    struct model *m = sched_model_find(s, name);
    if (!m)
        return yk_fail(why, YK_NOTFOUND, "there is no model '%.80s' (`yoke models` lists them)", name);
    yk_err err = model_load(m, s->blobs, why);
    if (!err)
        model_describe(m, out);
    return err;
}

/* m: the model, or its training graph. */
static void plan_asked(struct asking *a, struct model *m)
{
    struct yk_diag why = {0};
    struct job *j = a->job;
    struct solve_training training;
    yk_err err = model_load(m, a->s->blobs, &why);
    if (!err)
        err = job_data_sizes(j, m->graph, &why);
    if (err) {
        plan_answer(a, err, why.text, NULL);
        return;
    }
    if (j->training)
        training_for_solver(j->training, &training);
    struct planning_request r = {.model = m,
        .kind = j->kind,
        .source = j->source,
        .objective = j->objective,
        .sizes = j->sizes,
        .batch = j->batch,
        .microbatch = j->microbatch,
        .deadline_ms = (double)j->deadline_ms,
        .codec_allowed = j->codec_allowed,
        .pin_first = j->pin_first,
        .pin_last = j->pin_last,
        .upload_frac = jobs_upload_frac(j),
        .answers = jobs_answers(j),
        .fetches = true,
        .replicas = strcmp(j->kind, "batch") == 0,
        .want_changes = j->want_changes,
        .want_bars = j->want_bars,
        .want_reasons = true,
        .forced = j->forced,
        .training = j->training ? &training : NULL};
    struct sched *s = a->s;
    planning_start(s, &r, plan_answer, a);
    planning_step(s);
}

static void plan_made(void *arg, yk_err err, const char *why, struct training *made)
{
    struct asking *a = arg;
    if (!err && a->s->closing) {
        training_free(made);
        err = YK_CANCELED;
        why = "yoked stops";
    }
    if (err) {
        plan_answer(a, err, why, NULL);
        return;
    }
    training_adopt(a->job->training, made);
    plan_asked(a, a->job->training->model);
}

void sched_plan(struct sched *s, const char *request, size_t len, sched_on_text fn, void *arg)
{
    struct yk_diag why = {0};
    struct job *j = NULL;
    yk_err err = job_parse(request, len, &j, &why);
    if (!err)
        err = check_request(s, j, false, &why);
    if (err) {
        job_free(j);
        fn(arg, err, why.text);
        return;
    }
    struct asking *a = yk_xalloc(sizeof *a);
    *a = (struct asking){s, j, fn, arg};
    struct model *m = sched_model_find(s, j->model);
    if (j->training)
        jobs_train_make(s, &j->training->config, m, plan_made, a);
    else
        plan_asked(a, m);
}

/* ---- jobs ---- */

struct submitting {
    struct sched *s;
    int64_t job;
    sched_on_text fn;
    void *arg;
};

static void submit_done(void *arg)
{
    struct submitting *u = arg;
    char text[48];
    struct job *j = jobs_find(u->s, u->job);
    if (j && j->row_error) {
        jobs_unlink(u->s, j);
        u->fn(u->arg, j->row_err, j->error);
        job_free(j);
        free(u);
        return;
    }
    if (j)
        j->stored = true;
    snprintf(text, sizeof text, "{\"job\":%lld}", (long long)u->job);
    u->fn(u->arg, YK_OK, text);
    if (j)
        jobs_step(u->s, j);
    free(u);
}

void sched_submit(struct sched *s, const char *request, size_t len, sched_on_text fn, void *arg)
{
    struct yk_diag why = {0};
    struct job *j = NULL;
    yk_err err = job_parse(request, len, &j, &why);
    if (!err)
        err = check_request(s, j, true, &why);
    if (err) {
        job_free(j);
        fn(arg, err, why.text);
        return;
    }
    j->id = ++s->next_job;
    j->created_ms = jobs_now_ms();
    if (j->deadline_ms)
        j->due_us = net_now_us(s->net) + j->deadline_ms * 1000;
    j->next = s->jobs;
    s->jobs = j;
    metrics_set(METRIC_jobs_running, sched_jobs_open(s));
    jobs_event(s, j->id, "queued", "%s of model %s", j->kind, j->model);
    jobs_move(s, j, JOB_QUEUED, "");
    struct submitting *u = yk_xalloc(sizeof *u);
    *u = (struct submitting){s, j->id, fn, arg};
    store_flush(s->store, submit_done, u);
}

yk_err sched_cancel(struct sched *s, int64_t job, struct yk_diag *why)
{
    struct job *j = jobs_find(s, job);
    if (!j)
        return job > 0 && job <= s->next_job ? yk_fail(why, YK_STATE, "job %lld has ended", (long long)job)
                                             : yk_fail(why, YK_NOTFOUND, "there is no job %lld", (long long)job);
    snprintf(j->error, sizeof j->error, "canceled by its owner");
    jobs_move(s, j, JOB_CANCELED, "by its owner");
    return YK_OK;
}

char *sched_output_path(struct sched *s, const char *file)
{
    return yk_xasprintf("%s/%s", blobs_dir(s->blobs), file);
}

/* ---- the fleet's callbacks ---- */

static void on_joined(void *arg, struct fleet_agent *a)
{
    struct sched *s = arg;
    jobs_review_joined(s, a);
    planning_step(s);
    for (struct job *j = s->jobs, *next; j; j = next) {
        next = j->next;
        jobs_step(s, j);
    }
}

static void on_lost(void *arg, struct fleet_agent *a, const char *why)
{
    jobs_review_lost(arg, a, why);
    dispatch_agent_lost(arg, a);
}

static yk_err on_blob(void *arg, const char *hash, const uint8_t **data, int64_t *bytes, struct yk_diag *why)
{
    struct sched *s = arg;
    return blobs_map(s->blobs, hash, data, bytes, why);
}

static bool is_quiet(void *arg)
{
    struct sched *s = arg;
    return s->generations == NULL || planning_reviews(s); /* a new device's links, to know whether it pays */
}

static void on_changed(void *arg, struct fleet_agent *a, const char *kind, const char *text)
{
    jobs_review_changed(arg, a, kind, text);
}

static void on_relinked(void *arg, struct fleet_agent *a, struct fleet_agent *b, bool better, const char *text)
{
    jobs_review_relinked(arg, a, b, better, text);
}

static const struct fleet_on fleet_on = {.joined = on_joined,
    .lost = on_lost,
    .message = dispatch_message,
    .stream = dispatch_stream,
    .blob = on_blob,
    .quiet = is_quiet,
    .changed = on_changed,
    .relinked = on_relinked};

static void on_store_error(void *arg, int64_t job, yk_err err, const char *text)
{
    jobs_store_error(arg, job, err, text);
}

static void sweep_run(void *arg)
{
    blobs_sweep(((struct sched *)arg)->blobs, PART_S, OUTPUT_S);
}

static void on_tick(void *arg)
{
    struct sched *s = arg;
    if (net_now_us(s->net) >= s->sweep_us) {
        s->sweep_us = net_now_us(s->net) + SWEEP_EVERY_US;
        worker_post(s->content, sweep_run, NULL, s);
    }
    s->tick = net_timer(s->net, TICK_US, on_tick, s);
    sched_content_tick(s);
    sched_sweep_tick(s);
    planning_step(s);
    jobs_tick(s);
}

/* ---- open and close ---- */

static void restore_blob(void *arg, const char *hash, const char *file, int64_t at, int64_t bytes)
{
    struct sched *s = arg;
    blobs_add(s->blobs, hash, file, at, bytes);
}

static void restore_model(void *arg, const struct store_model *row)
{
    struct sched *s = arg;
    struct model *m = yk_xalloc(sizeof *m);
    m->id = row->id;
    m->name = yk_xstrdup(row->name);
    snprintf(m->graph_hash, sizeof m->graph_hash, "%s", row->graph_hash);
    snprintf(m->blob_hash, sizeof m->blob_hash, "%s", row->blob_hash);
    m->inputs = yk_xstrdup(row->inputs);
    m->outputs = yk_xstrdup(row->outputs);
    m->preprocess = row->preprocess ? yk_xstrdup(row->preprocess) : NULL;
    m->bytes = row->bytes;
    m->nodes = row->nodes;
    m->weight_bytes = row->weight_bytes;
    m->temporary = row->temporary;
    m->used_us = s->opened_us;
    m->next = s->models;
    s->models = m;
}

/* Folder of the database, made with mode 0700 if it is not there. */
static yk_err make_folder(const char *db, char **blobs_dir_out, struct yk_diag *why)
{
    char *dir = yk_xstrdup(db), *slash = strrchr(dir, '/');
    if (slash == dir)
        slash++;
    if (slash)
        *slash = '\0';
    yk_err err = YK_OK;
    if (slash && mkdir(dir, 0700) != 0 && access(dir, W_OK | X_OK) != 0)
        err = yk_fail(why, YK_PERM, "cannot write in %s, the folder of --db=%s", dir, db);
    *blobs_dir_out = yk_xasprintf("%s/blobs", slash ? dir : ".");
    free(dir);
    return err;
}

yk_err sched_open(const struct sched_config *c, struct sched **out, struct yk_diag *why)
{
    struct sched *s = yk_xalloc(sizeof *s);
    char *dir = NULL;
    s->config = *c;
    s->net = c->net;
    if (!s->config.lease_ms)
        s->config.lease_ms = 6000;
    if (!s->config.source_wait_ms)
        s->config.source_wait_ms = 60000;
    if (!s->config.policy.hold_ms)
        s->config.policy = policy_default;
    yk_err err = make_folder(c->db, &dir, why);
    struct store_config sc = {
        .net = c->net, .path = c->db, .threaded = c->threaded, .on_error = on_store_error, .arg = s};
    if (!err)
        err = store_open(&sc, &s->store, why);
    if (!err)
        err = blobs_open(dir, &s->blobs, why);
    if (!err)
        blobs_sweep(s->blobs, -1, OUTPUT_S); /* no upload and no import is on its way */
    if (!err)
        err = worker_open(c->net, "solver", c->threaded, &s->solver, why);
    if (!err)
        err = worker_open(c->net, "content", c->threaded, &s->content, why);
    free(dir);
    if (err) {
        sched_close(s);
        return err;
    }
    s->opened_us = net_now_us(s->net);
    s->next_job = store_last_id(s->store, "jobs");
    s->next_plan = store_last_id(s->store, "plans");
    s->next_model = store_last_id(s->store, "models");
    s->next_event = store_last_id(s->store, "job_events");
    s->next_generation = store_term(s->store) << 32; /* never seen before, over all terms */
    struct fleet_config fc = {.net = c->net,
        .store = s->store,
        .term = store_term(s->store),
        .lease_ms = s->config.lease_ms,
        .policy = &s->config.policy,
        .on = &fleet_on,
        .arg = s};
    s->fleet = fleet_open(&fc);
    bool all = store_load_blobs(s->store, restore_blob, s);
    store_load_models(s->store, restore_model, s);
    all = jobs_restore(s) && all;
    if (all)
        sched_sweep_start(s);
    err = net_listen(c->net, c->listen_url, fleet_accept, s->fleet, &s->listener, why);
    if (err) {
        sched_close(s);
        return err;
    }
    s->tick = net_timer(c->net, TICK_US, on_tick, s);
    *out = s;
    return YK_OK;
}

void sched_close(struct sched *s)
{
    if (!s)
        return;
    s->closing = true;
    net_timer_cancel(s->tick);
    net_listener_close(s->listener);
    while (s->waiters)
        sched_events_cancel(s->waiters);
    for (struct job *j = s->jobs; j; j = j->next) {
        bool planning = j->state == JOB_PLANNING;
        if (planning) /* a stop is no death */
            j->state = JOB_WAITING;
        if (s->store && (j->dirty || planning))
            jobs_save(s, j);
    }
    for (struct job *j = s->unsaved; j; j = j->next)
        if (s->store && !j->row_pending)
            jobs_save(s, j);
    if (s->fleet)
        dispatch_fini(s);
    if (s->solver)
        worker_close(s->solver);
    if (s->content)
        worker_close(s->content);
    planning_fini(s);
    if (s->store)
        store_close(s->store);
    fleet_close(s->fleet);
    blobs_close(s->blobs);
    jobs_unsaved_fini(s);
    while (s->jobs) {
        struct job *j = s->jobs;
        s->jobs = j->next;
        job_free(j);
    }
    for (struct model *m; (m = s->models ? s->models : s->removed);) {
        *(s->models ? &s->models : &s->removed) = m->next;
        model_free(m);
    }
    free(s);
}
