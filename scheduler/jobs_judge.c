/* What each epoch of a training has made, judged on the samples that it holds out. Behind an epoch there is a set of
 * its own, which stays until the model with it is a file of content, and that until its source has judged it: so a loss
 * or a restart, at any moment, only makes it be written or asked again. One epoch after the other, beside the training.
 */
#include "scheduler/sched_priv.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TIME_LIMIT_US ((int64_t)1800 * 1000000)

static char *stem_of(int64_t job)
{
    return yk_xasprintf("job-%lld.epoch-", (long long)job);
}

bool jobs_judge_all(const struct training *t)
{
    return t->config.val <= 0 || t->judged >= t->config.epochs;
}

bool jobs_judge_needs(const struct training *t, int64_t step)
{
    return t->config.val > 0 && t->epoch_steps > 0 && step > 0 && step % t->epoch_steps == 0 &&
           step / t->epoch_steps > YK_MAX(t->held, t->judged);
}

void jobs_judge_drop(struct sched *s, int64_t job)
{
    char *stem = stem_of(job);
    const char *file;
    for (int32_t i = 0; (file = blobs_file_at(s->blobs, i)); i++)
        if (strncmp(file, stem, strlen(stem)) == 0)
            sched_content_drop(s, file);
    free(stem);
}

/* The model of the lowest epoch that is there; its name ends with its hash. 0: none. */
static int64_t first_file(struct sched *s, int64_t job, const char **found)
{
    char *stem = stem_of(job);
    int64_t first = 0;
    const char *file;
    for (int32_t i = 0; (file = blobs_file_at(s->blobs, i)); i++) {
        if (strncmp(file, stem, strlen(stem)) != 0)
            continue;
        int64_t epoch = strtoll(file + strlen(stem), NULL, 10);
        if (!first || epoch < first) {
            first = epoch;
            *found = file;
        }
    }
    free(stem);
    return first;
}

static const char *hash_of(struct sched *s, const char *file)
{
    const char *dot = strrchr(file, '.');
    return dot && blobs_find(s->blobs, dot + 1, NULL) ? dot + 1 : NULL;
}

static void ask(struct sched *s, struct job *j)
{
    struct training *t = j->training;
    const struct generation *g = sched_generation_of(s, j);
    struct fleet_agent *source = g ? fleet_find(s->fleet, g->source) : NULL;
    const char *file = NULL, *hash;
    int64_t epoch = first_file(s, j->id, &file);
    if (j->state != JOB_RUNNING || t->judging || !epoch || !source || t->epoch_steps == 0)
        return;
    if (epoch <= t->judged || !(hash = hash_of(s, file))) {
        sched_content_drop(s, file);
        ask(s, j);
        return;
    }
    if (!source->judges) { /* an older one: it would never answer */
        jobs_event(
            s, j->id, "judged", "epoch %lld is not judged: agent %s is too old for it", (long long)epoch, source->name);
        t->judged = epoch;
        sched_content_drop(s, file);
        ask(s, j);
        return;
    }
    struct wire_judge w = {.term = store_term(s->store), .generation = g->id, .epoch = epoch, .model = hash};
    if (fleet_send(source, WIRE_TYPE_judge, &w) != YK_OK)
        return; /* it is lost, and the job with it */
    t->judging = epoch;
    t->judge_until_us = net_now_us(s->net) + TIME_LIMIT_US;
}

/* It was judged, or cannot be. */
static void passed(struct sched *s, struct job *j, int64_t epoch)
{
    struct training *t = j->training;
    int64_t id = j->id;
    t->judging = 0;
    t->judged = YK_MAX(t->judged, epoch);
    jobs_alive(s, j);
    jobs_judge_look(s, j);
    if ((j = jobs_find(s, id)))
        jobs_train_finish(s, j);
}

struct kept_epoch {
    struct sched *s;
    int64_t job, epoch;
};

static void on_kept(void *arg)
{
    struct kept_epoch *k = arg;
    const struct job *j = jobs_find(k->s, k->job);
    if (j && j->training->held == k->epoch - 1) /* in order: one before it may not have been written */
        j->training->held = k->epoch;
    free(k);
}

static void on_written(struct sched *s, int64_t job, yk_err err, const char *why, const char *file, const char *hash)
{
    struct job *j = jobs_find(s, job);
    char *stem = stem_of(job), *own = yk_xasprintf("%s.%s", file, hash);
    int64_t epoch = strtoll(file + strlen(stem), NULL, 10), bytes = 0;
    free(stem);
    if (!err)
        err = blob_rename(s->blobs, file, own, &bytes);
    if (!err) {
        blobs_add(s->blobs, hash, own, 0, bytes);
        store_put_blob(s->store, hash, own, 0, bytes);
        struct kept_epoch *k = yk_xalloc(sizeof *k);
        *k = (struct kept_epoch){s, job, epoch};
        store_flush(s->store, on_kept, k);
    } else {
        sched_content_drop(s, file);
    }
    if (!j || !j->training || job_ended(j->state)) {
        jobs_judge_drop(s, job);
    } else if (err == YK_NOSPC && !s->closing) { /* its set stays, and it is written of that */
        j->training->written = YK_MIN(j->training->written, epoch - 1);
        jobs_store_error(s, job, err, why);
    } else if (err) {
        jobs_event(s, job, "judged", "epoch %lld is not judged: %.300s", (long long)epoch, why);
        passed(s, j, epoch);
    } else {
        jobs_judge_look(s, j);
        jobs_train_finish(s, j);
    }
    free(own);
}

/* The epochs, from the first that has no verdict on, whose models are there. */
static int64_t count_files(struct sched *s, int64_t job, int64_t judged)
{
    char *stem = stem_of(job);
    const char *file;
    int64_t last = judged;
    for (bool more = true; more;) {
        more = false;
        for (int32_t i = 0; !more && (file = blobs_file_at(s->blobs, i)); i++)
            more = strncmp(file, stem, strlen(stem)) == 0 && strtoll(file + strlen(stem), NULL, 10) == last + 1;
        last += more;
    }
    free(stem);
    return last;
}

static void write_epoch(struct sched *s, struct job *j, int64_t epoch)
{
    struct training *t = j->training;
    int64_t step = epoch * t->epoch_steps;
    struct training_set older = {0};
    struct yk_diag why = {0};
    yk_err err = step == t->saved.step ? YK_OK : jobs_train_set_of(s, j, step, &older, &why);
    t->written = epoch;
    if (err) {
        jobs_event(s, j->id, "judged", "epoch %lld is not judged: %.300s", (long long)epoch, why.text);
        t->held = YK_MAX(t->held, epoch);
        return;
    }
    char *stem = stem_of(j->id), *name = yk_xasprintf("%s%lld", stem, (long long)epoch);
    free(stem);
    jobs_train_export(s, j, step == t->saved.step ? &t->saved : &older, name, true, on_written);
    training_set_free(&older);
}

void jobs_judge_look(struct sched *s, struct job *j)
{
    struct training *t = j->training;
    if (t->config.val <= 0 || t->epoch_steps == 0)
        return;
    t->held = YK_MAX(t->held, t->judged);
    if (t->written <= t->judged) /* yoked may have been started again: what is there need not be written */
        t->written = t->held = count_files(s, j->id, t->judged);
    while ((t->written + 1) * t->epoch_steps <= t->saved.step)
        write_epoch(s, j, t->written + 1);
    ask(s, j);
}

struct told_epoch {
    struct sched *s;
    int64_t job, epoch;
};

/* The verdict is in the database: now the model that it is of may go. */
static void on_told(void *arg)
{
    struct told_epoch *e = arg;
    struct job *j = e->s->closing ? NULL : jobs_find(e->s, e->job);
    if (j && j->state == JOB_RUNNING && j->training->judging == e->epoch)
        passed(e->s, j, e->epoch);
    free(e);
}

void jobs_judge_done(struct sched *s, struct generation *g, const struct wire_judged *m)
{
    struct job *j = g->job;
    const struct training *t = j->training;
    if (j->state != JOB_RUNNING || m->epoch != t->judging || m->samples < 0 || m->correct > m->samples)
        return;
    if (m->error[0]) {
        jobs_event(s, j->id, "judged", "epoch %lld is not judged: %.300s", (long long)m->epoch, m->text);
    } else {
        struct store_epoch row = {.job = j->id,
            .epoch = m->epoch,
            .samples = m->samples,
            .correct = m->correct,
            .loss = m->loss,
            .ms = m->ms};
        struct told_epoch *e = yk_xalloc(sizeof *e);
        *e = (struct told_epoch){s, j->id, m->epoch};
        store_put_epoch(s->store, &row);
        store_flush(s->store, on_told, e);
        return;
    }
    passed(s, j, m->epoch);
}

/* While it is judged nothing else may come; that has an end too. */
void jobs_judge_tick(struct sched *s)
{
    for (struct job *j = s->jobs, *next; j; j = next) {
        next = j->next;
        struct training *t = j->training;
        if (!t || j->state != JOB_RUNNING || !t->judging)
            continue;
        if (net_now_us(s->net) < t->judge_until_us) {
            jobs_alive(s, j);
            continue;
        }
        jobs_event(s, j->id, "judged", "epoch %lld is not judged: it takes too long", (long long)t->judging);
        passed(s, j, t->judging);
    }
}
