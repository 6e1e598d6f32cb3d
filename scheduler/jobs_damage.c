/* Sets that are not what was written: a file that is gone, too short or has other bytes. Found where a set is taken,
 * and where it could not be used; then an older set takes its place. */
#include "scheduler/sched_priv.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define BLOCK ((size_t)1 << 20)

/* ---- taking a set ---- */

static yk_err check_size(const struct sched *s, const char *file, int64_t needed, struct yk_diag *why)
{
    struct stat st;
    char *path = yk_xasprintf("%s/%s", blobs_dir(s->blobs), file);
    yk_err err = YK_OK;
    bool there = stat(path, &st) == 0;
    if (!there && errno == ENOENT) /* what else hinders may pass: who reads it will say so */
        err = yk_fail(why, YK_NOTFOUND, "%s is gone", file);
    else if (there && st.st_size < needed)
        err = yk_fail(why, YK_IO, "%s has %lld bytes, it was written with %lld or more", file, (long long)st.st_size,
            (long long)needed);
    free(path);
    return err;
}

yk_err jobs_sets_use(struct sched *s, struct job *j, struct yk_diag *why)
{
    const struct training *t = j->training;
    yk_err err = YK_OK;
    for (int32_t i = 0; i < t->saved.n_kept && !err; i++) {
        const struct training_kept *k = &t->saved.kept[i];
        const char *known = blobs_file(s->blobs, k->hash);
        if (!known && !k->part[0])
            return yk_fail(why, YK_NOTFOUND, "'%.80s' is gone", t->model->graph->values[k->value].name);
        if (!k->part[0])
            continue;
        char *file = jobs_sets_file(j->id, t->saved.step, k->part);
        /* The same bytes may be in a newer set, which can go; a weight that is still the model's own stays there. */
        if (!known || (jobs_sets_is_file(known) && strcmp(known, file) != 0)) {
            blobs_add(s->blobs, k->hash, file, k->at, k->bytes);
            store_put_blob(s->store, k->hash, file, k->at, k->bytes);
        }
        err = check_size(s, file, k->at + k->bytes, why);
        free(file);
    }
    return err;
}

void jobs_sets_remove(struct sched *s, struct job *j, const char *why)
{
    struct training *t = j->training;
    t->below = t->saved.step;
    jobs_event(s, j->id, "checkpoint", "the set behind step %lld is damaged and is removed: %.300s",
        (long long)t->saved.step, why);
    training_set_free(&t->saved);
    store_remove_checkpoints(s->store, j->id, t->below, INT64_MAX);
    jobs_sets_drop(s, j->id, t->below, INT64_MAX);
}

/* ---- looking at its bytes ---- */

struct check {
    struct sched *s;
    int64_t job, step, generation;
    char *dir, *text; /* text: what to say if the set is whole */
    bool fatal;
    struct training_kept *kept;
    int32_t n_kept;
    yk_err err;
    struct yk_diag why;
};

static yk_err check_bytes(int fd, const char *file, const struct training_kept *k, uint8_t *block, struct yk_diag *why)
{
    struct hash h;
    uint8_t sum[HASH_BYTES];
    char hex[HASH_HEX_SIZE];
    hash_init(&h);
    for (int64_t at = 0; at < k->bytes;) {
        ssize_t n = pread(fd, block, (size_t)YK_MIN(k->bytes - at, (int64_t)BLOCK), (off_t)(k->at + at));
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return yk_fail(why, YK_IO, "%s cannot be read at offset %lld: %s", file, (long long)(k->at + at),
                n < 0 ? strerror(errno) : "it ends there");
        hash_update(&h, block, (size_t)n);
        at += n;
    }
    hash_final(&h, sum);
    yk_hex(sum, sizeof sum, hex);
    if (strcmp(hex, k->hash) == 0)
        return YK_OK;
    return yk_fail(why, YK_FORMAT, "%s has other bytes than were written, from offset %lld for %lld bytes", file,
        (long long)k->at, (long long)k->bytes);
}

static void check_run(void *arg)
{
    struct check *c = arg;
    uint8_t *block = yk_xalloc(BLOCK);
    for (int32_t i = 0; i < c->n_kept && !c->err; i++) {
        const struct training_kept *k = &c->kept[i];
        if (!k->part[0])
            continue;
        char *file = jobs_sets_file(c->job, c->step, k->part), *path = yk_xasprintf("%s/%s", c->dir, file);
        int fd = open(path, O_RDONLY | O_CLOEXEC);
        if (fd >= 0) {
            c->err = check_bytes(fd, file, k, block, &c->why);
            close(fd);
        } else if (errno == ENOENT) {
            c->err = yk_fail(&c->why, YK_NOTFOUND, "%s is gone", file);
        }
        free(path);
        free(file);
    }
    free(block);
}

static const struct generation *generation_of(const struct sched *s, const struct job *j)
{
    const struct generation *g = s->generations;
    while (g && g->job != j)
        g = g->next;
    return g;
}

static void otherwise(struct sched *s, struct job *j, bool fatal, const char *why)
{
    if (fatal)
        jobs_fail(s, j, "%s", why);
    else
        jobs_lost(s, j, why);
}

static void check_done(void *arg)
{
    struct check *c = arg;
    struct sched *s = c->s;
    struct job *j = jobs_find(s, c->job);
    if (j && !job_ended(j->state)) {
        const struct generation *g = generation_of(s, j);
        bool same = g && g->id == c->generation; /* else it was lost meanwhile, and is tried again */
        j->training->checking = false;
        if (c->err && j->training->saved.step == c->step) {
            jobs_sets_remove(s, j, c->why.text);
            j->training->exporting = false;
            if (g) {
                jobs_review_reset(s, j);
                jobs_again(s, j, c->why.text);
            } else {
                jobs_train_resume(s, j);
            }
        } else if (same) {
            otherwise(s, j, c->fatal, c->text);
        }
    }
    free(c->dir);
    free(c->text);
    free(c->kept);
    free(c);
}

void jobs_sets_suspect(struct sched *s, struct job *j, bool fatal, const char *why)
{
    struct training *t = j->training;
    const struct generation *g = generation_of(s, j);
    if (t->checking)
        return; /* another agent says the same */
    if (!t->saved.step || !g) {
        otherwise(s, j, fatal, why);
        return;
    }
    struct check *c = yk_xalloc(sizeof *c);
    size_t bytes = (size_t)t->saved.n_kept * sizeof *c->kept;
    *c = (struct check){.s = s,
        .job = j->id,
        .step = t->saved.step,
        .generation = g->id,
        .dir = yk_xstrdup(blobs_dir(s->blobs)),
        .text = yk_xstrdup(why),
        .fatal = fatal,
        .kept = yk_xalloc(bytes + 1),
        .n_kept = t->saved.n_kept};
    memcpy(c->kept, t->saved.kept, bytes);
    t->checking = true;
    worker_post(s->content, check_run, check_done, c);
}
