/* Sets and other content that are not what was written: a file that is gone, too short or has other bytes. A damaged
 * set is found where a set is taken, and where it could not be used; then an older set takes its place. Damaged weights
 * and data are found where an agent could not take them up; then the job ends, for no other try would help. */
#include "scheduler/sched_priv.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

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

yk_err jobs_sets_use(
    struct sched *s, const struct job *j, const struct training_set *set, bool own, struct yk_diag *why)
{
    const struct training *t = j->training;
    yk_err err = YK_OK;
    for (int32_t i = 0; i < set->n_kept && !err; i++) {
        const struct training_kept *k = &set->kept[i];
        const char *known = blobs_file(s->blobs, k->hash);
        if (!known && !k->part[0])
            return yk_fail(why, YK_NOTFOUND, "'%.80s' is gone", t->model->graph->values[k->value].name);
        if (!k->part[0])
            continue;
        char *file = jobs_sets_file(j->id, set->step, k->part);
        /* The same bytes may be in a newer set, which can go; a weight that is still the model's own stays there. */
        if (!known || (own && jobs_sets_is_file(known) && strcmp(known, file) != 0)) {
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
    char *dir, *text; /* text: what to say if the set is whole, and said: which error that is */
    bool fatal;
    struct training_kept *kept;
    int32_t n_kept;
    yk_err said, err;
    struct yk_diag why;
};

static void check_run(void *arg)
{
    struct check *c = arg;
    for (int32_t i = 0; i < c->n_kept && !c->err; i++) {
        const struct training_kept *k = &c->kept[i];
        if (!k->part[0])
            continue;
        char *file = jobs_sets_file(c->job, c->step, k->part);
        c->err = blob_check(c->dir, file, k->at, k->bytes, k->hash, NULL, &c->why);
        if (c->err == YK_BUSY)
            c->err = YK_OK;
        free(file);
    }
}

/* ---- other content ---- */

struct piece {
    char hash[HASH_HEX_SIZE], *file; /* file NULL: the index does not know it */
    int64_t at, bytes;
    char *what; /* "weight 'fc'" */
};

struct content_check {
    struct sched *s;
    int64_t job, generation;
    char *dir, *model, *text; /* text: what to say if nothing is damaged */
    bool fatal;
    struct piece *pieces, *damaged;
    size_t n, cap;
    struct yk_diag why;
};

/* Takes what. */
static void add_piece(struct content_check *c, const char *hash, char *what)
{
    if (c->n == c->cap) {
        c->cap = c->cap ? 2 * c->cap : 64;
        c->pieces = yk_xrealloc(c->pieces, c->cap * sizeof *c->pieces);
    }
    struct piece *p = &c->pieces[c->n++];
    *p = (struct piece){.what = what};
    snprintf(p->hash, sizeof p->hash, "%s", hash);
    const char *file = blobs_place(c->s->blobs, hash, &p->at, &p->bytes);
    p->file = file ? yk_xstrdup(file) : NULL;
}

static void add_weight(void *arg, const struct value *v)
{
    char hash[HASH_HEX_SIZE];
    if (v->kind != VALUE_WEIGHT || !v->has_hash)
        return;
    yk_hex(v->hash, HASH_BYTES, hash);
    add_piece(arg, hash, yk_xasprintf("weight '%.80s'", v->name));
}

static void add_model(struct content_check *c, const struct job *j, const struct model *m)
{
    const struct model *own = sched_model_find(c->s, j->model);
    const struct graph *g = m->graph;
    add_piece(c, m->graph_hash, yk_xstrdup("the graph"));
    for (int32_t i = 0; i < g->n_values; i++)
        add_weight(c, &g->values[i]);
    for (int32_t i = 0; i < g->n_nodes; i++)
        node_each_inner_weight(&g->nodes[i], add_weight, c);
    if (j->training && own) /* its graph is made from it, and what was trained is written into a copy of it */
        add_piece(c, own->blob_hash, yk_xstrdup("the file"));
}

static void content_run(void *arg)
{
    struct content_check *c = arg;
    for (size_t i = 0; i < c->n && !c->damaged; i++) {
        const struct piece *p = &c->pieces[i];
        yk_err err = p->file ? blob_check(c->dir, p->file, p->at, p->bytes, p->hash, NULL, &c->why)
                             : yk_fail(&c->why, YK_NOTFOUND, "content %.12s is not there", p->hash);
        if (err && err != YK_BUSY)
            c->damaged = &c->pieces[i];
    }
}

static void otherwise(struct sched *s, struct job *j, bool fatal, const char *why)
{
    if (fatal)
        jobs_fail(s, j, "%s", why);
    else
        jobs_lost(s, j, why);
}

static void content_done(void *arg)
{
    struct content_check *c = arg;
    struct sched *s = c->s;
    struct job *j = jobs_find(s, c->job);
    const struct generation *g = j && !job_ended(j->state) ? sched_generation_of(s, j) : NULL;
    if (j)
        j->checking = false;
    if (j && !job_ended(j->state) && c->damaged && c->model)
        jobs_fail(s, j, "%s of model %s is damaged: %.300s: `yoke model add` its file again", c->damaged->what,
            c->model, c->why.text);
    else if (j && !job_ended(j->state) && c->damaged)
        jobs_fail(s, j, "%s is damaged: %.300s: give it again", c->damaged->what, c->why.text);
    else if (g && g->id == c->generation) /* else it was lost meanwhile, and is tried again */
        otherwise(s, j, c->fatal, c->text);
    else if (j && !job_ended(j->state) && j->training)
        jobs_train_finish(s, j); /* which waited for this */
    for (size_t i = 0; i < c->n; i++) {
        free(c->pieces[i].file);
        free(c->pieces[i].what);
    }
    free(c->pieces);
    free(c->dir);
    free(c->model);
    free(c->text);
    free(c);
}

void jobs_content_suspect(struct sched *s, struct job *j, bool data, yk_err err, bool fatal, const char *why)
{
    const struct generation *g = sched_generation_of(s, j);
    if (j->checking)
        return; /* another agent says the same */
    bool may = err == YK_FORMAT || err == YK_IO || err == YK_NOTFOUND;
    if (!may || !g || (data ? !j->n_inputs : !g->model->graph)) {
        otherwise(s, j, fatal, why);
        return;
    }
    struct content_check *c = yk_xalloc(sizeof *c);
    *c = (struct content_check){.s = s,
        .job = j->id,
        .generation = g->id,
        .dir = yk_xstrdup(blobs_dir(s->blobs)),
        .model = data ? NULL : yk_xstrdup(j->model),
        .text = yk_xstrdup(why),
        .fatal = fatal};
    if (!data)
        add_model(c, j, g->model);
    for (int i = 0; data && i < j->n_inputs; i++)
        add_piece(c, j->inputs[i].data,
            j->inputs[i].name ? yk_xasprintf("the data of input '%.60s'", j->inputs[i].name) : yk_xstrdup("the data"));
    if (data && j->labels)
        add_piece(c, j->labels, yk_xstrdup("the file of labels"));
    j->checking = true;
    worker_post(s->content, content_run, content_done, c);
}

/* ---- a set that could not be used ---- */

static void check_done(void *arg)
{
    struct check *c = arg;
    struct sched *s = c->s;
    struct job *j = jobs_find(s, c->job);
    if (j && !job_ended(j->state)) {
        const struct generation *g = sched_generation_of(s, j);
        bool same = g && g->id == c->generation; /* else it was lost meanwhile, and is tried again */
        j->training->checking = false;
        if (c->err && j->training->saved.step == c->step) {
            jobs_sets_remove(s, j, c->why.text);
            if (g) {
                jobs_review_reset(s, j);
                jobs_again(s, j, c->why.text);
            } else {
                jobs_train_resume(s, j);
            }
        } else if (same) {
            jobs_content_suspect(s, j, false, c->said, c->fatal, c->text);
        } else {
            jobs_train_finish(s, j); /* which waited for this */
        }
    }
    free(c->dir);
    free(c->text);
    free(c->kept);
    free(c);
}

void jobs_sets_suspect(struct sched *s, struct job *j, yk_err err, bool fatal, const char *why)
{
    struct training *t = j->training;
    const struct generation *g = sched_generation_of(s, j);
    if (t->checking)
        return; /* another agent says the same */
    if (!t->saved.step || !g) {
        jobs_content_suspect(s, j, false, err, fatal, why);
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
        .said = err,
        .kept = yk_xalloc(bytes + 1),
        .n_kept = t->saved.n_kept};
    memcpy(c->kept, t->saved.kept, bytes);
    t->checking = true;
    worker_post(s->content, check_run, check_done, c);
}
