/* What a training does that other jobs do not: its graph, where it goes on, its steps as they come, and its end. */
#include "scheduler/sched_priv.h"

#include "common/log.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- the training graph ---- */

struct making {
    struct sched *s;
    struct training *t;
    char blob[65], *name;
    char *file; /* of the blob; where and as blobs_sound_ns says */
    int64_t at, bytes, sound_ns;
    struct model_blob *slices;
    size_t n_slices;
    yk_err err;
    struct yk_diag why;
    jobs_on_made fn;
    void *arg;
};

static void make_run(void *arg)
{
    struct making *m = arg;
    m->err = m->file ? blob_check(blobs_dir(m->s->blobs), m->file, m->at, m->bytes, m->blob, &m->sound_ns, &m->why)
                     : yk_fail(&m->why, YK_NOTFOUND, "content %.12s is not there", m->blob);
    if (m->err) {
        yk_wrap(&m->why, m->err, "the file of model %s is damaged (`yoke model add` it again)", m->name);
        return;
    }
    m->err = training_make(m->t, blobs_dir(m->s->blobs), m->blob, m->s->config.eval, m->s->config.eval_arg, &m->slices,
        &m->n_slices, &m->why);
}

static void make_done(void *arg)
{
    struct making *m = arg;
    struct sched *s = m->s;
    blobs_set_sound(s->blobs, m->blob, m->sound_ns);
    sched_content_renew(s, m->slices, m->n_slices);
    for (size_t i = 0; i < m->n_slices; i++) {
        const struct model_blob *b = &m->slices[i];
        if (blobs_find(s->blobs, b->hash, NULL)) /* the model's own weights stay where they are */
            continue;
        blobs_add(s->blobs, b->hash, b->file, b->at, b->bytes);
        store_put_blob(s->store, b->hash, b->file, b->at, b->bytes);
    }
    model_slices_free(m->slices, m->n_slices);
    s->adding--;
    if (m->err) {
        training_free(m->t);
        m->t = NULL;
    } else {
        m->t->model->name = m->name;
        m->name = NULL;
    }
    m->fn(m->arg, m->err, m->why.text, m->t);
    free(m->name);
    free(m->file);
    free(m);
}

void jobs_train_make(
    struct sched *s, const struct train_config *config, const struct model *of, jobs_on_made fn, void *arg)
{
    struct json *doc = NULL;
    struct making *m = yk_xalloc(sizeof *m);
    *m = (struct making){.s = s, .t = yk_xalloc(sizeof *m->t), .name = yk_xstrdup(of->name), .fn = fn, .arg = arg};
    memcpy(m->blob, of->blob_hash, sizeof m->blob);
    const char *file = blobs_place(s->blobs, m->blob, &m->at, &m->bytes);
    m->file = file ? yk_xstrdup(file) : NULL;
    m->sound_ns = blobs_sound_ns(s->blobs, m->blob);
    char *text = training_config_text(config); /* a copy of its own: the job may end meanwhile */
    m->err = json_parse(text, strlen(text), &doc, &m->why);
    if (!m->err)
        m->err = train_config_read(doc, &m->t->config, &m->why);
    json_free(doc);
    free(text);
    s->adding++;
    if (m->err)
        make_done(m);
    else
        worker_post(s->content, make_run, make_done, m);
}

/* ---- where it goes on ---- */

/* Samples of the first `steps` steps. */
static int64_t samples_of(const struct job *j, int64_t steps)
{
    const struct training *t = j->training;
    if (t->epoch_steps == 0)
        return 0;
    int64_t each = j->samples / t->config.epochs, in_epoch = steps % t->epoch_steps * j->batch;
    return steps / t->epoch_steps * each + YK_MIN(in_epoch, each);
}

static void go_back(struct job *j)
{
    struct training *t = j->training;
    t->done = t->saved.step;
    t->n_ms = 0;
    t->judging = 0;
    for (int i = 0; i < TRAINING_COMING; i++)
        training_set_free(&t->coming[i]);
    j->done = samples_of(j, t->done);
    j->correct = j->labelled = 0;
}

struct found_set {
    struct job *j;
    yk_err err;
    struct yk_diag *why;
};

static void on_set(void *arg, int64_t step, int64_t bytes, const char *parts)
{
    struct found_set *f = arg;
    struct training *t = f->j->training;
    (void)bytes;
    training_set_free(&t->saved);
    f->err = training_set_read(parts, t->model, &t->saved, f->why);
    t->saved.step = step;
}

/* The newest set of the store below t->below, if there is one. */
static yk_err load_set(struct sched *s, struct job *j, struct yk_diag *why)
{
    struct training *t = j->training;
    struct found_set f = {j, YK_OK, why};
    store_load_checkpoint(s->store, j->id, t->below ? t->below : INT64_MAX, on_set, &f);
    if (!f.err)
        f.err = jobs_sets_use(s, j, &t->saved, true, why);
    return f.err;
}

struct exact_set {
    struct training *t;
    int64_t step;
    struct training_set *out;
    yk_err err;
    struct yk_diag *why;
};

static void on_exact(void *arg, int64_t step, int64_t bytes, const char *parts)
{
    struct exact_set *e = arg;
    (void)bytes;
    if (step != e->step)
        return;
    e->err = training_set_read(parts, e->t->model, e->out, e->why);
    e->out->step = step;
}

yk_err jobs_train_set_of(struct sched *s, struct job *j, int64_t step, struct training_set *out, struct yk_diag *why)
{
    struct exact_set e = {j->training, step, out, YK_NOTFOUND, why};
    *out = (struct training_set){0};
    yk_fail(why, YK_NOTFOUND, "its set is gone");
    store_load_checkpoint(s->store, j->id, step + 1, on_exact, &e);
    if (!e.err)
        e.err = jobs_sets_use(s, j, out, false, why);
    if (e.err)
        training_set_free(out);
    return e.err;
}

void jobs_train_resume(struct sched *s, struct job *j)
{
    struct training *t = j->training;
    struct yk_diag why = {0};
    yk_err err = t->saved.step ? jobs_sets_use(s, j, &t->saved, true, &why) : YK_OK;
    if (err)
        jobs_sets_remove(s, j, why.text);
    if (t->saved.step == 0) { /* a restart of yoked, or the first plan */
        while (load_set(s, j, &why))
            jobs_sets_remove(s, j, why.text);
        t->judged = YK_MAX(t->judged, store_last_epoch(s->store, j->id));
    }
    go_back(j);
}

void jobs_train_resumed(struct sched *s, const struct job *j)
{
    const struct training *t = j->training;
    if (t->saved.step > 0)
        jobs_event(s, j->id, "resumed", "goes on behind step %lld", (long long)t->saved.step);
    else if (t->below)
        jobs_event(s, j->id, "resumed", "begins again: no older set is there");
}

void jobs_train_load(const struct job *j, const char *config, struct wire_training *out)
{
    const struct training *t = j->training;
    *out = t->wire;
    out->save_every = YK_MAX(t->every, (int64_t)1);
    out->config = config;
    out->batch = j->batch;
    out->step = t->saved.step;
    out->kept.at = yk_xalloc(((size_t)t->saved.n_kept + 1) * sizeof *out->kept.at);
    out->kept.n = (size_t)t->saved.n_kept;
    for (int32_t i = 0; i < t->saved.n_kept; i++) {
        const struct training_kept *k = &t->saved.kept[i];
        out->kept.at[i] = (struct wire_kept){.value = k->value, .slot = k->slot, .hash = k->hash, .bytes = k->bytes};
    }
}

/* ---- the end ---- */

struct exporting {
    struct sched *s;
    int64_t job;
    char blob[65], hash[HASH_HEX_SIZE], *file;
    char **names;
    const void **data;
    int64_t *bytes;
    int32_t n;
    bool hashed;
    jobs_on_exported fn;
    yk_err err;
    struct yk_diag why;
};

static void export_run(void *arg)
{
    struct exporting *e = arg;
    const char *dir = blobs_dir(e->s->blobs);
    if (e->err)
        return;
    e->err = training_export(dir, e->blob, (const char *const *)e->names, e->data, e->bytes, e->n, e->file, &e->why);
    if (!e->err && e->hashed)
        e->err = blob_hash_file(dir, e->file, e->hash, &e->why);
}

static void export_done(void *arg)
{
    struct exporting *e = arg;
    e->fn(e->s, e->job, e->err, e->why.text, e->file, e->hash);
    for (int32_t i = 0; i < e->n; i++)
        free(e->names[i]);
    free(e->names);
    free(e->data);
    free(e->bytes);
    free(e->file);
    free(e);
}

void jobs_train_export(
    struct sched *s, struct job *j, const struct training_set *set, char *file, bool hashed, jobs_on_exported fn)
{
    const struct training *t = j->training;
    const struct model *m = sched_model_find(s, j->model);
    struct exporting *e = yk_xalloc(sizeof *e);
    size_t n = (size_t)set->n_kept + 1;
    *e = (struct exporting){.s = s,
        .job = j->id,
        .file = file,
        .hashed = hashed,
        .fn = fn,
        .names = yk_xalloc(n * sizeof *e->names),
        .data = yk_xalloc(n * sizeof *e->data),
        .bytes = yk_xalloc(n * sizeof *e->bytes)};
    if (m)
        memcpy(e->blob, m->blob_hash, sizeof e->blob);
    else
        e->err = yk_fail(&e->why, YK_NOTFOUND, "the model is gone");
    for (int32_t i = 0; i < set->n_kept; i++) {
        const struct training_kept *k = &set->kept[i];
        const uint8_t *data = NULL;
        if (k->slot >= 0)
            continue;
        yk_err err = blobs_map(s->blobs, k->hash, &data, &e->bytes[e->n], &e->why);
        e->err = e->err ? e->err : err;
        e->names[e->n] = yk_xstrdup(t->model->graph->values[k->value].name);
        e->data[e->n++] = data;
    }
    worker_post(s->content, export_run, export_done, e);
}

static void finished(struct sched *s, int64_t job, yk_err err, const char *why, const char *file, const char *hash)
{
    struct job *j = jobs_find(s, job);
    (void)hash;
    if (j)
        j->training->exporting = false;
    if (!j || j->state != JOB_RUNNING) { /* canceled meanwhile, or lost: it is written when the job runs again */
        if (!err)
            sched_content_drop(s, file);
    } else if (err) {
        char text[400];
        snprintf(text, sizeof text, "the trained model cannot be written: %.340s", why);
        if (err == YK_NOSPC) {
            jobs_store_error(s, job, err, text);
            return;
        }
        jobs_sets_suspect(s, j, err, true, text);
    } else if (j->training->saved.step == j->training->steps) {
        free(j->outputs_json);
        j->outputs_json = yk_xasprintf("[{\"name\":\"model\",\"file\":\"%s\"}]", file);
        jobs_finish(s, j);
    } else {
        sched_content_drop(s, file);
    }
}

/* The last step is done and its set is safe: the model with its parameters, then the job is done. */
void jobs_train_finish(struct sched *s, struct job *j)
{
    struct training *t = j->training;
    if (j->state != JOB_RUNNING || t->steps == 0 || t->done != t->steps || t->saved.step != t->steps || t->exporting ||
        t->checking || j->checking || !jobs_judge_all(t))
        return;
    t->exporting = true;
    jobs_train_export(s, j, &t->saved, yk_xasprintf("job-%lld.onnx", (long long)j->id), false, finished);
}

/* ---- steps ---- */

void jobs_train_started(struct sched *s, struct job *j, const struct wire_run_started *m)
{
    struct training *t = j->training;
    bool first = t->epoch_steps == 0;
    int64_t each = m->samples, epochs = t->config.epochs;
    if (each < 1 || m->epoch_steps != (each + j->batch - 1) / j->batch || m->steps != m->epoch_steps * epochs ||
        each > INT64_MAX / epochs) {
        jobs_fail(
            s, j, "the source counts %lld samples in %lld steps an epoch", (long long)each, (long long)m->epoch_steps);
        return;
    }
    if (!first && j->samples != each * epochs) {
        jobs_fail(
            s, j, "the data set has %lld samples now, it had %lld", (long long)each, (long long)(j->samples / epochs));
        return;
    }
    t->steps = m->steps;
    t->epoch_steps = m->epoch_steps;
    j->samples = each * epochs;
    j->done = samples_of(j, t->done);
    jobs_move(s, j, JOB_RUNNING, "");
    if (first)
        jobs_event(s, j->id, "started", "%lld epochs of %lld samples, %lld steps", (long long)epochs, (long long)each,
            (long long)t->steps);
    if (first && m->note[0])
        jobs_event(s, j->id, "note", "%.300s", m->note);
    if (first && m->no_test && j->data)
        jobs_event(
            s, j->id, JOB_NO_TEST, "the data set '%.200s' has no test split: none will judge the model", j->data);
    jobs_judge_look(s, j);
    jobs_train_finish(s, j); /* yoked may have ended between the last set and this */
}

static const char *mend(const struct bad *b, bool clip)
{
    if (b->of_data)
        return "look at the samples of that microbatch in the data set, and at --mean and --std";
    return clip ? "lower the learning rate, or clip the gradients (clip_norm)" : "lower the learning rate";
}

void jobs_train_step(struct sched *s, struct generation *g, const struct wire_step *m)
{
    struct job *j = g->job;
    struct training *t = j->training;
    int64_t now = net_now_us(s->net);
    if (j->state != JOB_RUNNING || t->epoch_steps == 0 || m->step != t->done || m->step >= t->steps)
        return;
    if (!isfinite(m->loss)) {
        jobs_fail(s, j, "the loss of step %lld is %s%s%s: %s", (long long)m->step + 1,
            isnan(m->loss) ? "not a number" : "infinite", g->bad.text ? "; " : "", g->bad.text ? g->bad.text : "",
            mend(&g->bad, true));
        return;
    }
    struct store_step row = {.job = j->id,
        .step = m->step,
        .epoch = m->step / t->epoch_steps,
        .samples = m->samples,
        .correct = m->correct,
        .plan = j->plan_id,
        .loss = m->loss,
        .ms = m->ms};
    store_put_step(s->store, &row);
    if (m->step % t->epoch_steps == 0)
        j->correct = j->labelled = 0; /* accuracy is that of the epoch so far */
    if (m->correct >= 0) {
        j->correct += m->correct;
        j->labelled += m->samples;
    }
    t->done++;
    t->ms[t->n_ms++ % TRAINING_MS] = m->ms;
    if (t->n_ms == 2 * TRAINING_MS)
        t->n_ms = TRAINING_MS; /* the first of the generation is overwritten by now */
    j->done = samples_of(j, t->done);
    j->losses = 0;
    j->run_count += m->samples;
    j->run_last_us = now;
    if (!j->run_first_us) {
        j->run_first_us = now;
        j->run_first_count = m->samples;
    }
    j->dirty = true;
    jobs_alive(s, j);
    int64_t id = j->id;
    jobs_sets_step(s, g); /* may end the generation, or the job */
    if ((j = jobs_find(s, id)))
        jobs_train_finish(s, j);
}

/* Who was first: the lowest step, microbatch and stage. */
void jobs_train_bad(struct sched *s, struct generation *g, struct fleet_agent *a, const struct wire_bad *m)
{
    struct bad *b = &g->bad;
    if (g->job->state != JOB_RUNNING)
        return;
    if (m->last) {
        jobs_fail(s, g->job, "behind step %lld %.400s on agent %s%s%s: %s", (long long)m->step, m->text, a->name,
            b->text ? "; " : "", b->text ? b->text : "", mend(b, true));
        return;
    }
    bool later = m->step != b->step               ? m->step > b->step
                 : m->microbatch != b->microbatch ? m->microbatch > b->microbatch
                                                  : m->stage >= b->stage;
    if (b->text && later)
        return;
    free(b->text);
    *b = (struct bad){.step = m->step, .microbatch = m->microbatch, .stage = m->stage};
    b->of_data = strncmp(m->text, "input '", 7) == 0; /* as kernels/train_blame.c names it */
    b->text = yk_xasprintf("in step %lld, microbatch %lld %.400s in stage %lld on agent %s", (long long)m->step + 1,
        (long long)m->microbatch, m->text, (long long)m->stage, a->name);
}

/* The norm over all parameters: square sums by tensor, added in the order of the parameters, whoever holds them. */
void jobs_train_norms(struct sched *s, struct generation *g, struct fleet_agent *a, const struct wire_norms *m)
{
    const struct wire_training *t = &g->job->training->wire;
    struct norms *n = &g->norms;
    (void)a;
    if (m->values.n != m->sums.n)
        return;
    if (!n->sums || n->step != m->step) {
        free(n->sums);
        *n = (struct norms){.step = m->step, .sums = yk_xalloc((t->params.n + 1) * sizeof *n->sums)};
    }
    for (size_t i = 0; i < m->values.n; i++)
        for (size_t k = 0; k < t->params.n; k++)
            if (t->params.at[k].value == m->values.at[i])
                n->sums[k] = m->sums.at[i];
    if (++n->arrived < sched_stage_agents(g))
        return;
    double sum = 0;
    for (size_t k = 0; k < t->params.n; k++) {
        sum += n->sums[k];
        if (isfinite(n->sums[k]))
            continue;
        jobs_fail(s, g->job, "the gradient of '%.80s' in step %lld is %s%s%s: %s",
            g->job->training->model->graph->values[t->params.at[k].value].name, (long long)m->step + 1,
            isnan(n->sums[k]) ? "not a number" : "infinite", g->bad.text ? "; " : "", g->bad.text ? g->bad.text : "",
            mend(&g->bad, false));
        return;
    }
    struct wire_norm out = {.term = store_term(s->store), .generation = g->id, .step = m->step, .norm = sqrt(sum)};
    for (int i = 0; i < g->n_agents; i++) {
        struct fleet_agent *to = g->agents[i].has_stage ? fleet_find(s->fleet, g->agents[i].id) : NULL;
        if (to)
            fleet_send(to, WIRE_TYPE_norm, &out);
    }
}

void jobs_train_leave(struct sched *s, struct training *t)
{
    if (!t || !t->model)
        return;
    t->model->next = s->removed;
    s->removed = t->model;
    t->model = NULL;
}

void jobs_train_end(struct sched *s, struct job *j)
{
    if (!j->training)
        return;
    jobs_train_leave(s, j->training);
    store_remove_checkpoints(s->store, j->id, 0, INT64_MAX);
    jobs_judge_drop(s, j->id);
    jobs_sets_drop(s, j->id, 0, INT64_MAX);
}
