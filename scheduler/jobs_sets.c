/* Checkpoint sets: when they are made, and what comes of their parts. A part is written by the content worker and
 * synced; the set is in the database when all are, and only then the one before the last goes. */
#include "scheduler/sched_priv.h"

#include "common/log.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PART_LIMIT ((int64_t)16 << 30)
#define PART_TENSORS 65536
#define GUESS_BYTES_PER_S 200e6 /* at which parts come, before one has */
#define OTHER 1.5               /* an interval so far off is another one */

/* ---- when ---- */

/* The mean time until any agent of a generation is lost. */
static double mtbf_ms(struct sched *s, const struct generation *g)
{
    double per_ms = 0;
    for (int i = 0; i < g->n_agents; i++) {
        const struct fleet_agent *a = fleet_find(s->fleet, g->agents[i].id);
        per_ms += a ? 1 / YK_MAX(fleet_mtbf_ms(a), 1.0) : 0;
    }
    return per_ms > 0 ? 1 / per_ms : (double)s->config.policy.mtbf_ms;
}

/* Steps between two sets. */
static int64_t steps_between(struct sched *s, const struct generation *g, double step_ms, double *interval_ms)
{
    const struct training *t = g->job->training;
    struct solve_training of;
    training_for_solver(t, &of);
    double guess = (double)t->trained_bytes * (double)(1 + of.state_bytes) / GUESS_BYTES_PER_S * 1e3;
    double cost = t->set_ms > 0 ? t->set_ms : guess, link = t->set_link_ms > 0 ? t->set_link_ms : guess;
    *interval_ms = policy_set_interval(&s->config.policy, cost, mtbf_ms(s, g), link);
    if (t->config.checkpoint_every > 0)
        return t->config.checkpoint_every;
    return step_ms > 0 ? (int64_t)YK_MAX(1.0, YK_MIN(floor(*interval_ms / step_ms), 1e9)) : 1;
}

static void tell(struct sched *s, struct generation *g, double step_ms, double interval_ms)
{
    struct training *t = g->job->training;
    if (t->config.checkpoint_every > 0 || !policy_interval_differs(t->told_ms, interval_ms))
        return;
    t->told_ms = interval_ms;
    jobs_event(s, g->job_id, "interval",
        "a set every %lld steps, about %.1f s: one costs %.0f ms, an agent is lost every %.0f s, links take %.0f %%",
        (long long)t->every, (double)t->every * step_ms / 1e3, t->set_ms, mtbf_ms(s, g) / 1e3,
        100 * YK_MIN(t->set_link_ms / YK_MAX(interval_ms, 1e-9), 1.0));
}

void jobs_sets_plan(struct sched *s, struct generation *g)
{
    struct training *t = g->job->training;
    double measured = training_step_ms(t), step_ms = measured > 0 ? measured : g->plan->step_ms, interval_ms;
    t->every = steps_between(s, g, step_ms, &interval_ms);
    tell(s, g, step_ms, interval_ms);
}

void jobs_sets_keep(struct sched *s, struct generation *g, int64_t step, int64_t every)
{
    struct wire_keep keep = {.term = store_term(s->store), .generation = g->id, .step = step, .every = every};
    for (int i = 0; i < g->n_agents; i++) {
        struct fleet_agent *a = g->agents[i].has_stage ? fleet_find(s->fleet, g->agents[i].id) : NULL;
        if (a)
            fleet_send(a, WIRE_TYPE_keep, &keep);
    }
}

/* What was measured since may ask for another interval. */
static void plan_again(struct sched *s, struct generation *g)
{
    struct training *t = g->job->training;
    double step_ms = training_step_ms(t), interval_ms;
    if (t->n_ms < TRAINING_MS || t->done % TRAINING_MS != 0 || g->job->life.draining)
        return;
    int64_t every = steps_between(s, g, step_ms, &interval_ms);
    if ((double)every < OTHER * (double)t->every && (double)every > (double)t->every / OTHER)
        return;
    t->every = every;
    jobs_sets_keep(s, g, 0, every);
    tell(s, g, step_ms, interval_ms);
}

static void take_cost(struct sched *s, struct training *t)
{
    double ms = (double)(net_now_us(s->net) - t->saved.began_us) / 1e3;
    t->set_ms = t->set_ms > 0 ? t->set_ms + 0.5 * (ms - t->set_ms) : ms;
    t->set_link_ms = t->set_link_ms > 0 ? t->set_link_ms + 0.5 * (t->saved.link_ms - t->set_link_ms) : t->saved.link_ms;
}

/* ---- parts ---- */

struct part {
    struct sched *s;
    struct part *next, **link; /* among those on their way; link NULL: it is not, any more */
    int64_t generation, job, step;
    char agent[33];
    struct wire_msg head; /* owned */
    uint8_t *body;
    int64_t bytes;
    int64_t began_us; /* its head came */
    double link_ms;   /* from there to its last byte */
    char *file;
    struct training_kept *kept;
    yk_err err;
    struct yk_diag why;
};

static void part_unlink(struct part *p)
{
    if (!p->link)
        return;
    *p->link = p->next;
    if (p->next)
        p->next->link = p->link;
    p->link = NULL;
}

static void part_free(struct part *p)
{
    part_unlink(p);
    wire_free(&p->head);
    free(p->body);
    free(p->file);
    free(p->kept);
    free(p);
}

static void part_run(void *arg)
{
    struct part *p = arg;
    const char *dir = blobs_dir(p->s->blobs);
    const struct wire_part *w = &p->head.as.part;
    char *path = yk_xasprintf("%s/%s", dir, p->file);
    for (size_t i = 0; i < w->kept.n; i++) {
        uint8_t hash[HASH_BYTES];
        hash_bytes(p->body + w->kept.at[i].offset, (size_t)w->kept.at[i].bytes, hash);
        yk_hex(hash, sizeof hash, p->kept[i].hash);
    }
    p->err = model_write_file(path, p->body, (size_t)p->bytes, &p->why);
    int fd = p->err ? -1 : open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (!p->err && (fd < 0 || fsync(fd) != 0))
        p->err = yk_fail(&p->why, yk_err_from_errno(errno), "cannot sync %s: %s", dir, strerror(errno));
    if (fd >= 0)
        close(fd);
    free(path);
}

char *jobs_sets_file(int64_t job, int64_t step, const char *part)
{
    return yk_xasprintf("job-%lld-%lld-%.8s.set", (long long)job, (long long)step, part);
}

bool jobs_sets_is_file(const char *file)
{
    size_t n = strlen(file);
    return n > 4 && strcmp(file + n - 4, ".set") == 0;
}

struct committing {
    struct sched *s;
    int64_t job, step, before; /* before: the set in front of it, which stays */
};

void jobs_sets_drop(struct sched *s, int64_t job, int64_t from, int64_t before)
{
    char stem[40];
    const char *file;
    snprintf(stem, sizeof stem, "job-%lld-", (long long)job);
    for (int32_t i = 0; (file = blobs_file_at(s->blobs, i)); i++) {
        if (strncmp(file, stem, strlen(stem)) != 0 || !jobs_sets_is_file(file))
            continue;
        int64_t step = strtoll(file + strlen(stem), NULL, 10);
        if (step >= from && step < before)
            sched_content_drop(s, file);
    }
}

/* What no restart needs any more: sets older than this one, but for those of epochs that are not judged yet. */
static void drop_older(struct sched *s, struct job *j, int64_t before)
{
    const struct training *t = j->training;
    int64_t from = 0, each = t->epoch_steps;
    for (int64_t step = each; each > 0 && step < before; step += each) {
        if (!jobs_judge_needs(t, step))
            continue;
        store_remove_checkpoints(s->store, j->id, from, step);
        jobs_sets_drop(s, j->id, from, step);
        from = step + 1;
    }
    store_remove_checkpoints(s->store, j->id, from, before);
    jobs_sets_drop(s, j->id, from, before);
}

static void committed(void *arg)
{
    struct committing *c = arg;
    struct job *j = c->s->closing ? NULL : jobs_find(c->s, c->job);
    if (j && j->training->saved.step >= c->step) /* else a row could not be written (jobs_store_error) */
        drop_older(c->s, j, c->before);
    if (j && j->training->saved.step == c->step) {
        j->dirty = true;
        jobs_train_finish(c->s, j);
    }
    free(c);
}

static void commit(struct sched *s, struct generation *g, struct training_set *set)
{
    struct job *j = g->job;
    struct training *t = j->training;
    struct yk_buf text = {0};
    int64_t bytes = 0, before = t->saved.step;
    training_set_free(&t->saved);
    t->saved = *set;
    *set = (struct training_set){0};
    take_cost(s, t);
    for (int i = 0; i < TRAINING_COMING; i++)
        if (t->coming[i].step < t->saved.step) /* what is older need not become complete */
            training_set_free(&t->coming[i]);
    for (int32_t i = 0; i < t->saved.n_kept; i++)
        bytes += t->saved.kept[i].bytes;
    training_set_write(&t->saved, t->model, &text);
    struct committing *c = yk_xalloc(sizeof *c);
    *c = (struct committing){s, j->id, t->saved.step, before};
    store_put_checkpoint(s->store, j->id, t->saved.step, bytes, (char *)text.data, committed, c);
    yk_buf_free(&text);
    jobs_event(s, j->id, "checkpoint", "step %lld is safe: %.1f MB of %d agents", (long long)t->saved.step,
        (double)bytes / 1e6, sched_stage_agents(g));
    jobs_judge_look(s, j);
    jobs_drained(s, j);
}

/* All parts are there, and all steps before it have been reported: one that is lost with its source could not be told
 * again once the training goes on behind it. */
static bool is_whole(const struct generation *g, const struct training_set *set)
{
    uint64_t all = 0;
    for (int i = 0; i < g->n_agents; i++)
        all |= g->agents[i].has_stage ? (uint64_t)1 << i : 0;
    return set->step && (set->here & all) == all && set->step <= g->job->training->done;
}

/* Where parts of this step are gathered; the oldest incomplete set gives way. */
static struct training_set *set_of(struct training *t, int64_t step)
{
    struct training_set *oldest = &t->coming[0];
    for (int i = 0; i < TRAINING_COMING; i++) {
        if (t->coming[i].step == step)
            return &t->coming[i];
        if (t->coming[i].step < oldest->step)
            oldest = &t->coming[i];
    }
    if (oldest->step > step)
        return NULL;
    training_set_free(oldest);
    oldest->step = step;
    return oldest;
}

static void part_done(void *arg)
{
    struct part *p = arg;
    struct sched *s = p->s;
    struct generation *g = sched_generation(s, p->generation);
    struct training *t = g && g->job && g->job->id == p->job ? g->job->training : NULL;
    if (!t || p->step <= t->saved.step) {
        if (!t || p->step < t->saved.step) /* else it was sent twice: the file is that of the set */
            sched_content_drop(s, p->file);
        part_free(p);
        return;
    }
    if (p->err) {
        jobs_event(s, p->job, "checkpoint", "step %lld cannot be kept: %.400s", (long long)p->step, p->why.text);
        if (p->err == YK_NOSPC && (p->step == t->steps || jobs_judge_needs(t, p->step)))
            jobs_store_error(s, p->job, p->err, p->why.text);
        else if (p->step == t->steps)
            jobs_lost(s, g->job, p->why.text);
        part_free(p);
        return;
    }
    struct training_set *set = set_of(t, p->step);
    uint64_t bit = 0;
    for (int i = 0; i < g->n_agents; i++)
        bit |= strcmp(g->agents[i].id, p->agent) == 0 ? (uint64_t)1 << i : 0;
    if (!set || set->here & bit) { /* too old, or sent again after its connection was lost */
        part_free(p);
        return;
    }
    set->here |= bit;
    set->began_us = set->began_us ? YK_MIN(set->began_us, p->began_us) : p->began_us;
    set->link_ms = YK_MAX(set->link_ms, p->link_ms);
    const struct wire_part *w = &p->head.as.part;
    set->kept = yk_xrealloc(set->kept, ((size_t)set->n_kept + w->kept.n + 1) * sizeof *set->kept);
    for (size_t i = 0; i < w->kept.n; i++) {
        struct training_kept *k = &p->kept[i];
        const char *file = blobs_file(s->blobs, k->hash);
        snprintf(k->part, sizeof k->part, "%.8s", p->agent);
        k->at = w->kept.at[i].offset;
        set->kept[set->n_kept++] = *k;
        if (file && !jobs_sets_is_file(file))
            continue; /* a weight that is still the model's own */
        blobs_add(s->blobs, k->hash, p->file, w->kept.at[i].offset, k->bytes);
        store_put_blob(s->store, k->hash, p->file, w->kept.at[i].offset, k->bytes);
    }
    part_free(p);
    if (is_whole(g, set))
        commit(s, g, set);
}

void jobs_sets_step(struct sched *s, struct generation *g)
{
    struct training *t = g->job->training;
    for (int i = 0; i < TRAINING_COMING; i++)
        if (is_whole(g, &t->coming[i])) {
            commit(s, g, &t->coming[i]);
            return; /* no two of them wait for the same step */
        }
    plan_again(s, g);
}

static void part_here(void *arg, yk_err err)
{
    struct part *p = arg;
    const struct generation *g = err ? NULL : sched_generation(p->s, p->generation);
    p->link_ms = (double)(net_now_us(p->s->net) - p->began_us) / 1e3;
    part_unlink(p);
    if (g && g->job && g->job->state == JOB_RUNNING)
        jobs_alive(p->s, g->job);
    if (err || !p->kept)
        part_free(p);
    else
        worker_post(p->s->content, part_run, part_done, p);
}

/* A slow link takes longer for a part than a job may be silent. */
void jobs_sets_tick(struct sched *s)
{
    for (const struct part *p = s->parts; p; p = p->next) {
        const struct generation *g = sched_generation(s, p->generation);
        struct job *j = g ? g->job : NULL;
        const struct fleet_agent *a = fleet_find(s->fleet, p->agent);
        if (j && j->state == JOB_RUNNING && j->deadline_us && a && a->blob)
            j->deadline_us =
                YK_MAX(j->deadline_us, chan_last_rx_us(a->blob) + job_state_deadline_ms(JOB_RUNNING) * 1000);
    }
}

static yk_err check_part(const struct training *t, const struct wire_part *w, struct part *p)
{
    const struct graph *g = t->model->graph;
    if (w->kept.n > PART_TENSORS || w->step < 1)
        return YK_LIMIT;
    p->kept = yk_xalloc((w->kept.n + 1) * sizeof *p->kept);
    for (size_t i = 0; i < w->kept.n; i++) {
        const struct wire_kept *k = &w->kept.at[i];
        bool known = k->value >= 0 && k->value < g->n_values && g->values[k->value].kind == VALUE_WEIGHT;
        if (!known || k->slot < -1 || k->slot > 64 || k->bytes != shape_bytes(&g->values[k->value].shape) ||
            k->offset < 0 || k->offset > w->bytes - k->bytes)
            return YK_FORMAT;
        p->kept[i] = (struct training_kept){.value = (int32_t)k->value, .slot = (int32_t)k->slot, .bytes = k->bytes};
    }
    return YK_OK;
}

yk_err jobs_sets_part(
    struct sched *s, struct generation *g, struct fleet_agent *a, struct wire_msg *head, struct chan_sink *sink)
{
    const struct wire_part *w = &head->as.part;
    struct part *p = yk_xalloc(sizeof *p);
    *p = (struct part){
        .s = s, .generation = w->generation, .step = w->step, .bytes = w->bytes, .began_us = net_now_us(s->net)};
    snprintf(p->agent, sizeof p->agent, "%s", a->id);
    yk_err err = w->bytes < 0 || w->bytes > PART_LIMIT ? YK_LIMIT : YK_OK;
    if (!err && g) {
        p->job = g->job->id;
        err = check_part(g->job->training, w, p);
    }
    if (!err && !(p->body = yk_try_alloc((size_t)w->bytes + 1, 1)))
        err = YK_NOMEM;
    if (err) {
        part_free(p);
        return err;
    }
    p->file = jobs_sets_file(p->job, p->step, a->id);
    p->head = *head;
    head->arena = NULL;
    p->next = s->parts;
    p->link = &s->parts;
    if (p->next)
        p->next->link = &p->next;
    s->parts = p;
    *sink = (struct chan_sink){.buf = p->body, .len = (size_t)p->bytes, .done = part_here, .arg = p};
    return YK_OK;
}
