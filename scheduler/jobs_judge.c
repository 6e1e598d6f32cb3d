/* What each epoch of a training has made, judged on the samples that it holds out. Behind an epoch there is a set of
 * its own; the model with it is a file of content until its source has judged it, so that a loss or a restart only
 * makes it be asked again. One epoch after the other, beside the training. */
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

static struct generation *generation_of(struct sched *s, const struct job *j)
{
    struct generation *g = s->generations;
    while (g && g->job != j)
        g = g->next;
    return g;
}

static void ask(struct sched *s, struct job *j)
{
    struct training *t = j->training;
    const struct generation *g = generation_of(s, j);
    struct fleet_agent *source = g ? fleet_find(s->fleet, g->source) : NULL;
    const char *file, *hash;
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
    } else {
        sched_content_drop(s, file);
    }
    if (!j || !j->training || job_ended(j->state)) {
        jobs_judge_drop(s, job);
    } else if (err) {
        jobs_event(s, job, "judged", "epoch %lld is not judged: %.300s", (long long)epoch, why);
        passed(s, j, epoch);
    } else {
        jobs_judge_look(s, j);
        jobs_train_finish(s, j);
    }
    free(own);
}

void jobs_judge_look(struct sched *s, struct job *j)
{
    struct training *t = j->training;
    if (t->config.val <= 0 || t->epoch_steps == 0)
        return;
    int64_t epoch = t->saved.step / t->epoch_steps;
    const char *file;
    t->written = YK_MAX(t->written, t->judged);
    if (!t->written && (t->written = first_file(s, j->id, &file)) > 0) /* yoked was started again */
        for (int32_t i = 0; (file = blobs_file_at(s->blobs, i)); i++) {
            char *stem = stem_of(j->id);
            if (strncmp(file, stem, strlen(stem)) == 0)
                t->written = YK_MAX(t->written, strtoll(file + strlen(stem), NULL, 10));
            free(stem);
        }
    if (t->saved.step > 0 && t->saved.step % t->epoch_steps == 0 && epoch > t->written) {
        char *stem = stem_of(j->id), *name = yk_xasprintf("%s%lld", stem, (long long)epoch);
        t->written = epoch;
        free(stem);
        jobs_train_export(s, j, name, true, on_written);
    }
    ask(s, j);
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
        store_put_epoch(s->store, &row);
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
