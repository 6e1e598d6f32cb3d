/* What goes by itself: models that somebody needed for a while and did not remove, and files of trainings that a death
 * of yoked left behind. */
#include "scheduler/sched_priv.h"

#include "common/log.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define RETRY_US ((int64_t)60 * 1000000)

/* ---- models ---- */

static bool is_used(const struct sched *s, const struct model *m)
{
    for (const struct job *j = s->jobs; j; j = j->next)
        if (strcmp(j->model, m->name) == 0)
            return true;
    return false;
}

static void on_removed(void *arg, yk_err err, const char *text)
{
    (void)arg;
    if (err)
        log_warn("a temporary model cannot go yet: %s", text);
}

void sched_sweep_tick(struct sched *s)
{
    int64_t now = net_now_us(s->net);
    for (struct model *m = s->models; m; m = m->next) {
        if (!m->temporary)
            continue;
        if (is_used(s, m))
            m->used_us = now;
        if (now - m->used_us < SCHED_TEMPORARY_US || s->plannings || s->adding)
            continue;
        m->used_us = now - SCHED_TEMPORARY_US + RETRY_US; /* if it cannot go now */
        char *name = yk_xstrdup(m->name);
        sched_model_remove(s, name, on_removed, NULL);
        free(name);
        return; /* the list is another */
    }
}

/* ---- files ---- */

/* One that a training that is open makes anew, or that only such a training needs. */
static bool is_left(const struct sched *s, const char *file)
{
    char *end;
    if (strncmp(file, "job-", 4) != 0)
        return false;
    long long id = strtoll(file + 4, &end, 10);
    bool epoch = strncmp(end, ".epoch-", 7) == 0, open = false, known = false;
    if (!epoch && !jobs_sets_is_file(file))
        return false;
    for (const struct job *j = s->jobs; j; j = j->next)
        open = open || j->id == id;
    const char *name;
    for (int32_t i = 0; !known && (name = blobs_file_at(s->blobs, i)); i++)
        known = strcmp(name, file) == 0;
    return !open || (epoch && !known); /* a set's tensors may lie in a newer one too, and be known there */
}

void sched_sweep_start(struct sched *s)
{
    DIR *d = opendir(blobs_dir(s->blobs));
    for (struct dirent *e = d ? readdir(d) : NULL; e; e = readdir(d))
        if (is_left(s, e->d_name)) {
            log_info("%s is left of a training: removed", e->d_name);
            sched_content_drop(s, e->d_name);
        }
    if (d)
        closedir(d);
}
