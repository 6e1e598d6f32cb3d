/* Jobs whose rows the disk has not taken. One that has ended stays in memory until its row says so: a write that failed
 * is tried again from the tick, and who asks meanwhile is answered from memory. One that was never written does not
 * exist, and whoever sent it hears why. A training has too much to lose: it waits until there is room. */
#include "scheduler/sched_priv.h"

#include "common/json.h"
#include "common/log.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define RETRY_US 2000000

struct unsaved_check {
    struct sched *s;
    int64_t job;
};

static struct job *find(const struct sched *s, int64_t id)
{
    for (struct job *j = s->unsaved; j; j = j->next)
        if (j->id == id)
            return j;
    return NULL;
}

/* Everything that was posted before, the row among it, has been tried. */
static void on_tried(void *arg)
{
    struct unsaved_check *c = arg;
    struct sched *s = c->s;
    for (struct job **p = &s->unsaved; *p; p = &(*p)->next)
        if ((*p)->id == c->job) {
            struct job *j = *p;
            j->row_pending = false;
            if (j->row_error) {
                j->row_retry_us = net_now_us(s->net) + RETRY_US;
                break;
            }
            if (j->row_missed)
                log_info("job %lld: %s, and written now", (long long)j->id, job_state_name(j->state));
            *p = j->next;
            job_free(j);
            break;
        }
    free(c);
}

static void save(struct sched *s, struct job *j)
{
    struct unsaved_check *c = yk_xalloc(sizeof *c);
    *c = (struct unsaved_check){s, j->id};
    j->row_pending = true;
    j->row_error = false;
    jobs_save(s, j);
    store_flush(s->store, on_tried, c);
}

void jobs_keep(struct sched *s, struct job *j)
{
    j->next = s->unsaved;
    s->unsaved = j;
    save(s, j);
}

void jobs_unsaved_tick(struct sched *s)
{
    for (struct job *j = s->unsaved; j; j = j->next) {
        if (j->row_pending || net_now_us(s->net) < j->row_retry_us)
            continue;
        if (j->error[0]) /* its last event too, under its number */
            store_put_event(s->store, j->last_event, j->id, j->ended_ms, job_state_name(j->state), j->error);
        save(s, j);
    }
}

/* It goes on behind the newest set whose row is written: what was kept or told since may not be there. */
static void wait_for_disk(struct sched *s, struct job *j, const char *text)
{
    bool first = !j->row_missed;
    char why[500];
    j->row_error = j->row_missed = true;
    j->life.retry_us = net_now_us(s->net) + RETRY_US;
    if (j->state == JOB_WAITING && !first)
        return;
    snprintf(why, sizeof why, "%.380s: make room there, and it goes on behind its newest checkpoint", text);
    if (first)
        log_error("job %lld waits: %s", (long long)j->id, why);
    if (j->state == JOB_PLANNING) {
        snprintf(j->error, sizeof j->error, "%s", why);
        jobs_move(s, j, JOB_WAITING, "");
    } else {
        training_set_free(&j->training->saved);
        j->training->saved = (struct training_set){0};
        jobs_again(s, j, why);
    }
    if (first) /* somebody has to do something, as for devices that rest */
        j->deadline_us = YK_MAX(j->deadline_us, net_now_us(s->net) + s->config.policy.rest_ms * 1000);
}

void jobs_store_works(struct sched *s, struct job *j)
{
    if (!j->row_missed)
        return;
    j->row_missed = false;
    jobs_event(s, j->id, "again", "the disk takes what is written: %.400s", j->error);
}

void jobs_store_error(struct sched *s, int64_t id, yk_err err, const char *text)
{
    struct job *j = find(s, id);
    if (j) {
        if (!j->row_missed)
            log_error("job %lld: %s, but that is not written yet: %s", (long long)id, job_state_name(j->state), text);
        j->row_error = j->row_missed = true;
        return;
    }
    j = s->closing ? NULL : jobs_find(s, id);
    bool full = err == YK_NOSPC || err == YK_IO || err == YK_PERM;
    if (j && j->stored && j->training && full) {
        wait_for_disk(s, j, text);
        return;
    }
    log_error("%s", text);
    if (!j)
        return;
    if (!j->stored) {
        j->row_error = true;
        j->row_err = err;
        snprintf(j->error, sizeof j->error, "%s", text);
    } else if (full) {
        jobs_fail(s, j, "%s", text);
    } else {
        j->dirty = true; /* tried again at the next tick */
    }
}

void jobs_unsaved_fini(struct sched *s)
{
    while (s->unsaved) {
        struct job *j = s->unsaved;
        s->unsaved = j->next;
        job_free(j);
    }
}

/* ---- answers from memory ---- */

static void put_time(struct json_out *o, const char *key, int64_t ms)
{
    char text[40], whole[24];
    time_t seconds = (time_t)(ms / 1000);
    struct tm tm;
    json_put_key(o, key);
    if (ms <= 0 || !gmtime_r(&seconds, &tm)) {
        json_put_null(o);
        return;
    }
    strftime(whole, sizeof whole, "%Y-%m-%dT%H:%M:%S", &tm);
    snprintf(text, sizeof text, "%s.%03dZ", whole, (int)(ms % 1000));
    json_put_str(o, text);
}

static void put_i64(struct json_out *o, const char *key, int64_t v)
{
    json_put_key(o, key);
    json_put_i64(o, v);
}

static void put_str(struct json_out *o, const char *key, const char *v)
{
    json_put_key(o, key);
    json_put_str(o, v);
}

static void put_ratio(struct json_out *o, const char *key, bool known, double v)
{
    json_put_key(o, key);
    if (known)
        json_put_f64(o, v);
    else
        json_put_null(o);
}

/* As v_jobs shows it. */
static void put_job(struct json_out *o, const struct sched *s, const struct job *j)
{
    struct store_job r;
    job_to_row(j, net_now_us(s->net), &r);
    json_open(o, '{');
    put_i64(o, "job", r.id);
    put_str(o, "kind", r.kind);
    put_str(o, "model", r.model);
    put_str(o, "state", r.state);
    put_str(o, "objective", r.objective);
    put_str(o, "source", r.source ? r.source : "");
    put_i64(o, "samples", r.samples);
    put_i64(o, "done", r.done);
    put_ratio(o, "accuracy", r.labelled > 0, (double)r.correct / (double)YK_MAX(r.labelled, (int64_t)1));
    put_ratio(o, "images_per_s", r.run_ms > 0 && r.done > 0, (double)r.done * 1e3 / r.run_ms);
    put_time(o, "created_at", r.created_ms);
    put_time(o, "started_at", r.started_ms);
    put_time(o, "ended_at", r.ended_ms);
    put_i64(o, "replans", r.replans);
    put_str(o, "error", r.error[0] ? r.error : NULL);
    json_put_key(o, "plan");
    if (r.plan > 0)
        json_put_i64(o, r.plan);
    else
        json_put_null(o);
    put_str(o, "owner", "local");
    json_close(o, '}');
}

static void put_value(struct json_out *o, const struct json *v)
{
    switch (json_kind(v)) {
    case JSON_BOOL:
        json_put_bool(o, json_bool(v, false));
        break;
    case JSON_INT:
        json_put_i64(o, json_i64(v, 0));
        break;
    case JSON_REAL:
        json_put_f64(o, json_f64(v, 0));
        break;
    case JSON_STRING:
        json_put_str(o, json_str(v, ""));
        break;
    default:
        json_put_null(o);
    }
}

/* The next job behind j, NULL: the first, that its row says too little of. */
static const struct job *next_missed(const struct sched *s, const struct job *j)
{
    bool open = !j || !job_ended(j->state);
    j = j ? j->next : s->jobs;
    for (;; j = j->next) {
        if (!j && open) {
            open = false;
            j = s->unsaved;
        }
        if (!j || j->row_missed)
            return j;
    }
}

struct jobs_query {
    struct sched *s;
    int64_t job;
    store_on_json fn;
    void *arg;
};

static void on_rows(void *arg, yk_err err, char *json)
{
    struct jobs_query *q = arg;
    struct json *rows = NULL;
    struct yk_buf b = {0};
    struct json_out o;
    if (err || json_parse(json, strlen(json), &rows, NULL) != YK_OK) {
        q->fn(q->arg, err, json);
        free(q);
        return;
    }
    json_out_init(&o, &b, 0);
    json_open(&o, '[');
    for (const struct job *j = NULL; (j = next_missed(q->s, j));)
        if (q->job <= 0 || q->job == j->id)
            put_job(&o, q->s, j);
    for (size_t i = 0; i < json_len(rows); i++) {
        const struct json *row = json_at(rows, i);
        const struct job *j = NULL;
        while ((j = next_missed(q->s, j)) && j->id != json_i64(json_find(row, "job"), 0))
            ;
        if (j)
            continue;
        json_open(&o, '{');
        for (size_t k = 0; k < json_len(row); k++) {
            json_put_key(&o, json_key(row, k));
            put_value(&o, json_value(row, k));
        }
        json_close(&o, '}');
    }
    json_close(&o, ']');
    yk_buf_add(&b, "", 1);
    json_free(rows);
    if (!b.failed) {
        free(json);
        json = (char *)b.data;
    }
    q->fn(q->arg, err, json);
    free(q);
}

void sched_jobs_list(struct sched *s, int64_t job, store_on_json fn, void *arg)
{
    if (!next_missed(s, NULL)) {
        store_list(s->store, "jobs", job, fn, arg);
        return;
    }
    struct jobs_query *q = yk_xalloc(sizeof *q);
    *q = (struct jobs_query){s, job, fn, arg};
    store_list(s->store, "jobs", job, on_rows, q);
}

void sched_outputs(struct sched *s, int64_t job, store_on_json fn, void *arg)
{
    const struct job *j = find(s, job);
    if (j && j->row_missed && j->outputs_json)
        fn(arg, YK_OK, yk_xstrdup(j->outputs_json));
    else
        store_outputs_of(s->store, job, fn, arg);
}
