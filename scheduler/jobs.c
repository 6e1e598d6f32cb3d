/* The state table at work: what moves a job, and what happens on the way. */
#include "scheduler/job_data.h"
#include "scheduler/sched_priv.h"

#include "common/log.h"
#include "common/metrics.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define MAX_LOSSES 8  /* in a row without a result between them */
#define MAX_DEATHS 3  /* of yoked in a row while it planned the job */
#define LATE_STEPS 10 /* planned ones that may pass without a word of a job that runs */
#define LONGEST_SILENCE_MS 86400e3

int64_t jobs_now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

struct job *jobs_find(struct sched *s, int64_t id)
{
    for (struct job *j = s->jobs; j; j = j->next)
        if (j->id == id)
            return j;
    return NULL;
}

/* Forms as one text for the row: separated by newlines, which no form has. */
static char *join_forms(const struct job *j)
{
    struct yk_buf b = {0};
    for (int32_t i = 0; i < j->n_forms; i++)
        yk_buf_printf(&b, "%s%s", i ? "\n" : "", j->forms[i]);
    yk_buf_add(&b, "", 1);
    return b.failed ? yk_xstrdup("") : (char *)b.data;
}

static void split_forms(struct job *j, const char *text)
{
    for (const char *at = text; *at; j->n_forms++) {
        size_t n = strcspn(at, "\n");
        j->forms = yk_xrealloc(j->forms, ((size_t)j->n_forms + 1) * sizeof *j->forms);
        j->forms[j->n_forms] = yk_xasprintf("%.*s", (int)n, at);
        at += n + (at[n] == '\n');
    }
}

void jobs_save(struct sched *s, struct job *j)
{
    struct store_job row;
    char *forms = join_forms(j);
    job_to_row(j, net_now_us(s->net), &row);
    row.forms = forms;
    store_put_job(s->store, &row);
    free(forms);
    j->dirty = false;
}

/* ---- events ---- */

static void waiter_answer(void *arg, yk_err err, char *json)
{
    struct sched_waiter *w = arg;
    w->fn(w->arg, err, err ? yk_err_text(err) : json);
    free(json);
    free(w);
}

static void waiter_wake(struct sched_waiter *w)
{
    *w->link = w->next;
    if (w->next)
        w->next->link = w->link;
    net_timer_cancel(w->timer);
    w->timer = NULL;
    store_events(w->sched->store, w->job, w->cursor, waiter_answer, w);
}

static void wake_waiters(struct sched *s, int64_t job)
{
    for (struct sched_waiter *w = s->waiters, *next; w; w = next) {
        next = w->next;
        if (w->job == job)
            waiter_wake(w);
    }
}

static void on_wait_over(void *arg)
{
    struct sched_waiter *w = arg;
    w->timer = NULL;
    waiter_wake(w);
}

struct sched_waiter *sched_events(
    struct sched *s, int64_t job, int64_t cursor, int64_t wait_ms, sched_on_text fn, void *arg)
{
    struct sched_waiter *w = yk_xalloc(sizeof *w);
    *w = (struct sched_waiter){.sched = s, .job = job, .cursor = cursor, .fn = fn, .arg = arg};
    const struct job *j = jobs_find(s, job);
    bool wait = wait_ms > 0 && j && cursor >= j->last_event;
    if (!wait) {
        store_events(s->store, job, cursor, waiter_answer, w);
        return NULL;
    }
    w->next = s->waiters;
    w->link = &s->waiters;
    if (w->next)
        w->next->link = &w->next;
    s->waiters = w;
    w->timer = net_timer(s->net, wait_ms * 1000, on_wait_over, w);
    return w;
}

void sched_events_cancel(struct sched_waiter *w)
{
    if (!w)
        return;
    *w->link = w->next;
    if (w->next)
        w->next->link = w->link;
    net_timer_cancel(w->timer);
    free(w);
}

void jobs_event(struct sched *s, int64_t job, const char *kind, const char *fmt, ...)
{
    char text[700];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    store_put_event(s->store, ++s->next_event, job, jobs_now_ms(), kind, text);
    struct job *j = jobs_find(s, job);
    if (j)
        j->last_event = s->next_event;
    log_info("job %lld: %s: %s", (long long)job, kind, text);
    wake_waiters(s, job);
}

/* ---- moving ---- */

static void stop_clock(struct sched *s, struct job *j)
{
    if (j->run_start_us)
        j->run_ms += (double)(net_now_us(s->net) - j->run_start_us) / 1e3;
    j->run_start_us = 0;
}

void jobs_unlink(struct sched *s, struct job *j)
{
    for (struct job **p = &s->jobs; *p; p = &(*p)->next)
        if (*p == j) {
            *p = j->next;
            break;
        }
    metrics_set(METRIC_jobs_running, sched_jobs_open(s));
}

/* How long nothing may come of a job that runs: where a step is planned to take long, several of them. */
static int64_t silence_ms(const struct sched *s, const struct job *j)
{
    double ms = (double)job_state_deadline_ms(JOB_RUNNING);
    for (const struct generation *g = s->generations; g; g = g->next)
        if (g->job == j && isfinite(g->plan->step_ms))
            ms = YK_MAX(ms, LATE_STEPS * g->plan->step_ms);
    return (int64_t)YK_MIN(ms, LONGEST_SILENCE_MS);
}

void jobs_alive(struct sched *s, struct job *j)
{
    j->deadline_us = YK_MAX(j->deadline_us, net_now_us(s->net) + silence_ms(s, j) * 1000);
}

void jobs_waits(struct sched *s, struct job *j, const char *reason)
{
    char text[sizeof j->error];
    int64_t left_us = YK_MAX(j->deadline_us - net_now_us(s->net), (int64_t)0);
    snprintf(text, sizeof text, "%.480s; it is waited for at most %lld s (source_wait_ms)", reason,
        (long long)((left_us + 999999) / 1000000));
    memcpy(j->error, text, sizeof text); /* reason may lie there */
    j->dirty = true;
    jobs_event(s, j->id, job_state_name(JOB_WAITING), "%s", text);
}

void jobs_move(struct sched *s, struct job *j, enum job_state to, const char *reason)
{
    enum job_state from = j->state;
    int64_t deadline = to == JOB_RUNNING ? silence_ms(s, j) : job_state_deadline_ms(to);
    if (to == JOB_WAITING)
        deadline = s->config.source_wait_ms;
    /* A job that goes back and forth while its agents are away keeps the deadline of its first wait. */
    if (to != JOB_WAITING || from != JOB_PLANNING || !j->deadline_us)
        j->deadline_us = deadline ? net_now_us(s->net) + deadline * 1000 : 0;
    j->state = to;
    if (to == JOB_RUNNING && !j->started_ms)
        j->started_ms = jobs_now_ms();
    if (to == JOB_WAITING && from != to && reason[0])
        jobs_waits(s, j, reason);
    else if (from != to && reason[0])
        jobs_event(s, j->id, job_state_name(to), "%s", reason);
    if (job_ended(to)) {
        stop_clock(s, j);
        j->ended_ms = jobs_now_ms();
        metrics_add(to == JOB_DONE ? METRIC_jobs_done_total : METRIC_jobs_failed_total, 1);
        metrics_observe_us(METRIC_job_seconds, (j->ended_ms - j->created_ms) * 1000);
        dispatch_drop(s, j);
        jobs_train_end(s, j);
    }
    if (!job_ended(to)) {
        jobs_save(s, j);
        return;
    }
    jobs_unlink(s, j);
    jobs_keep(s, j);
    wake_waiters(s, j->id);
}

void jobs_fail(struct sched *s, struct job *j, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    vsnprintf(j->error, sizeof j->error, fmt, args);
    va_end(args);
    jobs_move(s, j, JOB_FAILED, j->error);
}

/* Agents know each other by id; people know them by name. */
static void put_names(struct sched *s, const char *why, char *text, size_t size)
{
    size_t n = 0;
    text[0] = '\0';
    while (*why && n + 1 < size) {
        const struct fleet_agent *a = fleet_first(s->fleet);
        while (a && strncmp(why, a->id, sizeof a->id - 1) != 0)
            a = a->next;
        int put = a ? snprintf(text + n, size - n, "%s", a->name) : snprintf(text + n, size - n, "%c", *why);
        n += put > 0 ? (size_t)put : 0;
        why += a ? strlen(a->id) : 1;
    }
}

void jobs_lost(struct sched *s, struct job *j, const char *why)
{
    char text[500];
    put_names(s, why, text, sizeof text);
    jobs_review_reset(s, j);
    dispatch_drop(s, j);
    stop_clock(s, j);
    if (job_ended(j->state))
        return;
    snprintf(j->error, sizeof j->error, "%s", text);
    if (++j->losses > MAX_LOSSES) {
        jobs_fail(s, j, "given up after %d tries in a row without a result; the last: %s", MAX_LOSSES, text);
        return;
    }
    j->replans++;
    metrics_add(METRIC_replans_total, 1);
    j->state = JOB_RUNNING;
    jobs_move(s, j, JOB_WAITING, "");
    jobs_step(s, j);
    if (j->state != JOB_WAITING) {
        jobs_event(s, j->id, "again", "%s", text);
        return;
    }
    jobs_waits(s, j, text);
    jobs_save(s, j);
}

void jobs_again(struct sched *s, struct job *j, const char *why)
{
    dispatch_drop(s, j);
    stop_clock(s, j);
    if (job_ended(j->state))
        return;
    snprintf(j->error, sizeof j->error, "%s", why);
    j->replans++;
    metrics_add(METRIC_replans_total, 1);
    j->state = JOB_RUNNING;
    jobs_move(s, j, JOB_WAITING, "");
    jobs_step(s, j);
}

/* The measured time of a step, for v_plan_accuracy: the steady rate between the first and the last result; of a single
 * result the time since the start. */
static void put_measured(struct sched *s, struct job *j)
{
    int64_t later = j->run_count - j->run_first_count;
    double ms;
    if (!j->run_last_us || j->run_count <= 0)
        return;
    bool steady = later > 0 && strcmp(j->kind, "infer") != 0;
    if (steady)
        ms = (double)(j->run_last_us - j->run_first_us) / 1e3 / (double)later * (double)j->batch;
    else
        ms = (double)(j->run_last_us - j->run_start_us) / 1e3 / (double)j->run_count * (double)j->batch;
    store_put_measured(s->store, j->plan_id, ms, (double)j->run_count / (double)YK_MAX(j->batch, (int64_t)1));
}

/* An answer that exists is worth more than none, so a single inference that is complete is never late. */
static bool is_late(const struct sched *s, const struct job *j)
{
    bool answered = strcmp(j->kind, "infer") == 0 && j->samples > 0 && j->done == j->samples;
    return j->deadline_ms && net_now_us(s->net) > j->due_us && !answered;
}

static void fail_late(struct sched *s, struct job *j)
{
    if (j->samples)
        jobs_fail(s, j, "deadline of %lld ms passed after %lld of %lld samples", (long long)j->deadline_ms,
            (long long)j->done, (long long)j->samples);
    else
        jobs_fail(s, j, "deadline of %lld ms passed before the first sample, while the job was %s",
            (long long)j->deadline_ms, job_state_name(j->state));
}

void jobs_finish(struct sched *s, struct job *j)
{
    char text[160];
    if (is_late(s, j)) {
        fail_late(s, j);
        return;
    }
    put_measured(s, j);
    stop_clock(s, j);
    j->error[0] = '\0';
    if (j->labelled)
        snprintf(text, sizeof text, "%lld samples in %.0f ms, accuracy %.4f%s", (long long)j->done, j->run_ms,
            (double)j->correct / (double)j->labelled, j->training ? " of what it trained on, on the way" : "");
    else
        snprintf(text, sizeof text, "%lld samples in %.0f ms", (long long)j->done, j->run_ms);
    if (j->codec_error > 0) {
        size_t n = strlen(text);
        snprintf(text + n, sizeof text - n, ", relative RMS error of the codec %.2g", j->codec_error);
    }
    jobs_move(s, j, JOB_DONE, text);
}

void jobs_tick(struct sched *s)
{
    int64_t now = net_now_us(s->net);
    dispatch_sweep(s, false);
    jobs_unsaved_tick(s);
    jobs_sets_tick(s);
    jobs_judge_tick(s);
    for (struct job *j = s->jobs, *next; j; j = next) {
        next = j->next;
        if (is_late(s, j)) {
            fail_late(s, j);
            continue;
        }
        if (j->deadline_us && now > j->deadline_us) {
            enum job_state out = job_state_out(j->state);
            bool told = out == JOB_FAILED && j->error[0]; /* else it is of an earlier wait */
            char text[700];
            snprintf(text, sizeof text, "%s for too long, while it waited for %s%s%s", job_state_name(j->state),
                job_state_what(j->state), told ? ": " : "", told ? j->error : "");
            if (out == JOB_FAILED)
                jobs_fail(s, j, "%s", text);
            else
                jobs_lost(s, j, text);
            continue;
        }
        if (j->dirty)
            jobs_save(s, j);
        if (j->state == JOB_RUNNING)
            jobs_review_tick(s, j);
        else
            jobs_step(s, j);
    }
}

/* ---- after a restart ---- */

static void restore_one(void *arg, const struct store_job *row)
{
    struct sched *s = arg;
    struct job *j = NULL;
    struct yk_diag why = {0};
    if (job_parse(row->request, strlen(row->request), &j, &why)) {
        char error[600];
        struct store_job ended = *row;
        snprintf(error, sizeof error, "cannot be taken up again after a restart: %.500s", why.text);
        log_error("job %lld %s", (long long)row->id, error);
        ended.state = job_state_name(JOB_FAILED);
        ended.error = error;
        ended.ended_ms = jobs_now_ms();
        store_put_job(s->store, &ended);
        return;
    }
    j->id = row->id;
    j->stored = true;
    j->batch = row->batch;
    j->microbatch = row->microbatch;
    j->created_ms = row->created_ms;
    if (j->deadline_ms)
        j->due_us = net_now_us(s->net) + (j->deadline_ms - (jobs_now_ms() - row->created_ms)) * 1000;
    j->started_ms = row->started_ms;
    j->run_ms = row->run_ms;
    j->replans = row->replans;
    j->plan_id = row->plan;
    split_forms(j, row->forms);
    if (row->outputs[0])
        j->outputs_json = yk_xstrdup(row->outputs);
    if (!j->training && row->samples > 0 && row->microbatch > 0 && !job_set_samples(j, row->samples, &why) &&
        row->done_map_len == (size_t)(j->microbatches + 7) / 8) {
        memcpy(j->done_map, row->done_map, row->done_map_len);
        for (int64_t i = 0; i < j->microbatches; i++)
            if (job_map_get(j, i)) {
                j->done += YK_MIN(j->microbatch, j->samples - i * j->microbatch);
                j->done_microbatches++;
            }
        j->correct = row->correct;
        j->labelled = row->labelled;
    }
    j->deaths = row->deaths + (strcmp(row->state, job_state_name(JOB_PLANNING)) == 0);
    j->last_event = s->next_event;
    j->next = s->jobs;
    s->jobs = j;
    if (j->deaths >= MAX_DEATHS) {
        jobs_fail(s, j,
            "given up: yoked ended %d times in a row while it planned this job; its log may say why, and another plan "
            "may pass",
            MAX_DEATHS);
        return;
    }
    snprintf(j->error, sizeof j->error, "yoked was restarted");
    j->replans++;
    jobs_move(s, j, JOB_WAITING, "yoked was restarted; the job goes on when its agents are back");
    if (j->done_map && j->done_microbatches == j->microbatches)
        jobs_finish(s, j);
}

bool jobs_restore(struct sched *s)
{
    return store_load_jobs(s->store, restore_one, s);
}
