/* The store's writes: rows as values, posted to the worker in order. */
#include "scheduler/store_sql.h"

#include "common/worker.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define MAX_PARAMS 25
#define TRIM_EVERY 2000 /* history writes between two trims */

static const char *const sql_text[] = {
#define X(name, text) [STORE_SQL_##name] = text,
    STORE_SQL(X)
#undef X
};

/* ---- posted work ---- */

enum param_kind { PARAM_NULL, PARAM_INT, PARAM_REAL, PARAM_TEXT, PARAM_BLOB };

struct param {
    enum param_kind kind;
    int64_t i;
    double f;
    char *text; /* owned */
    size_t len;
};

struct row {
    struct param at[MAX_PARAMS];
    int n;
};

struct work {
    struct store *store;
    int stmt; /* -1: a file write, or nothing */
    struct row *rows;
    int n_rows, cap_rows;
    int64_t job;
    char *path; /* file write */
    int64_t offset;
    uint8_t *data;
    size_t len;
    net_fn done;
    void *arg;
    yk_err err;
    char text[300];
};

static struct work *work_new(struct store *s, int stmt)
{
    struct work *w = yk_xalloc(sizeof *w);
    w->store = s;
    w->stmt = stmt;
    return w;
}

static struct row *work_row(struct work *w)
{
    if (w->n_rows == w->cap_rows) {
        w->cap_rows = w->cap_rows ? 2 * w->cap_rows : 1;
        w->rows = yk_xrealloc(w->rows, (size_t)w->cap_rows * sizeof *w->rows);
    }
    struct row *r = &w->rows[w->n_rows++];
    memset(r, 0, sizeof *r);
    return r;
}

static void add_i(struct row *r, int64_t v)
{
    r->at[r->n++] = (struct param){.kind = PARAM_INT, .i = v};
}

static void add_time(struct row *r, int64_t ms)
{
    r->at[r->n++] = ms > 0 ? (struct param){.kind = PARAM_INT, .i = ms} : (struct param){0};
}

static void add_f(struct row *r, double v)
{
    r->at[r->n++] = isfinite(v) ? (struct param){.kind = PARAM_REAL, .f = v} : (struct param){0};
}

static void add_s(struct row *r, const char *v)
{
    r->at[r->n++] = (struct param){.kind = PARAM_TEXT, .text = yk_xstrdup(v ? v : ""), .len = v ? strlen(v) : 0};
}

static void add_s_or_null(struct row *r, const char *v)
{
    if (v && v[0])
        add_s(r, v);
    else
        r->n++;
}

static void add_b(struct row *r, const void *data, size_t len)
{
    struct param *p = &r->at[r->n++];
    *p = (struct param){.kind = PARAM_BLOB, .text = yk_xalloc(len + 1), .len = len};
    if (len)
        memcpy(p->text, data, len);
}

static void work_free(struct work *w)
{
    for (int i = 0; i < w->n_rows; i++)
        for (int k = 0; k < w->rows[i].n; k++)
            free(w->rows[i].at[k].text);
    free(w->rows);
    free(w->path);
    free(w->data);
    free(w);
}

yk_err store_error(int code)
{
    switch (code & 0xff) {
    case SQLITE_OK:
    case SQLITE_ROW:
    case SQLITE_DONE:
        return YK_OK;
    case SQLITE_FULL:
        return YK_NOSPC;
    case SQLITE_NOMEM:
        return YK_NOMEM;
    case SQLITE_PERM:
    case SQLITE_READONLY:
    case SQLITE_CANTOPEN:
        return YK_PERM;
    case SQLITE_BUSY:
    case SQLITE_LOCKED:
        return YK_BUSY;
    default:
        return YK_IO;
    }
}

static int bind_row(sqlite3_stmt *st, const struct row *r)
{
    int code = SQLITE_OK;
    for (int i = 0; i < r->n && code == SQLITE_OK; i++) {
        const struct param *p = &r->at[i];
        if (p->kind == PARAM_INT)
            code = sqlite3_bind_int64(st, i + 1, p->i);
        else if (p->kind == PARAM_REAL)
            code = sqlite3_bind_double(st, i + 1, p->f);
        else if (p->kind == PARAM_TEXT)
            code = sqlite3_bind_text64(st, i + 1, p->text, p->len, SQLITE_STATIC, SQLITE_UTF8);
        else if (p->kind == PARAM_BLOB)
            code = sqlite3_bind_blob64(st, i + 1, p->text, p->len, SQLITE_STATIC);
        else
            code = sqlite3_bind_null(st, i + 1);
    }
    return code;
}

static sqlite3_stmt *statement(struct store *s, int which)
{
    if (!s->stmts[which])
        sqlite3_prepare_v3(s->db, sql_text[which], -1, SQLITE_PREPARE_PERSISTENT, &s->stmts[which], NULL);
    return s->stmts[which];
}

void store_trim(void *arg)
{
    struct store *s = arg;
    int64_t days = s->config.history_days ? s->config.history_days : 30;
    int64_t rows = s->config.history_rows ? s->config.history_rows : 200000;
    int64_t before = ((int64_t)time(NULL) - days * 86400) * 1000;
    for (int which = STORE_SQL_TRIM_STEPS; which <= STORE_SQL_TRIM_PROFILES; which++) {
        sqlite3_stmt *st = statement(s, which);
        if (!st)
            continue;
        sqlite3_bind_int64(st, 1, before);
        sqlite3_bind_int64(st, 2, rows);
        sqlite3_step(st);
        sqlite3_reset(st);
    }
}

static void run_rows(struct work *w)
{
    struct store *s = w->store;
    sqlite3_stmt *st = statement(s, w->stmt);
    int code = st ? SQLITE_OK : sqlite3_errcode(s->db);
    bool many = w->n_rows > 1;
    if (w->stmt == STORE_SQL_CHECKPOINT) /* what it makes void is removed next: it must outlive a power cut */
        sqlite3_exec(s->db, "PRAGMA synchronous = FULL", NULL, NULL, NULL);
    if (st && many)
        code = sqlite3_exec(s->db, "BEGIN", NULL, NULL, NULL);
    for (int i = 0; i < w->n_rows && code == SQLITE_OK; i++) {
        code = bind_row(st, &w->rows[i]);
        if (code == SQLITE_OK)
            code = sqlite3_step(st);
        sqlite3_reset(st);
        code = code == SQLITE_DONE ? SQLITE_OK : code;
    }
    if (st && many && code == SQLITE_OK)
        code = sqlite3_exec(s->db, "COMMIT", NULL, NULL, NULL);
    if (code != SQLITE_OK) {
        w->err = store_error(code);
        snprintf(w->text, sizeof w->text, "database %s: %s", s->config.path, sqlite3_errmsg(s->db));
    }
    if (many && !sqlite3_get_autocommit(s->db))
        sqlite3_exec(s->db, "ROLLBACK", NULL, NULL, NULL);
    if (w->stmt == STORE_SQL_CHECKPOINT)
        sqlite3_exec(s->db, "PRAGMA synchronous = NORMAL", NULL, NULL, NULL);
    bool history = w->stmt == STORE_SQL_EVENT || w->stmt == STORE_SQL_STAGE_TIME || w->stmt == STORE_SQL_JOB;
    if (history && ++s->history_writes % TRIM_EVERY == 0)
        store_trim(s);
}

static void run_file(struct work *w)
{
    int fd = open(w->path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    size_t at = 0;
    while (fd >= 0 && at < w->len) {
        ssize_t n = pwrite(fd, w->data + at, w->len - at, (off_t)w->offset + (off_t)at);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            break;
        at += (size_t)n;
    }
    if (fd < 0 || at < w->len) {
        w->err = yk_err_from_errno(errno);
        snprintf(w->text, sizeof w->text, "cannot write %.120s: %s", w->path, strerror(errno));
    }
    if (fd >= 0)
        close(fd);
}

static void work_run(void *arg)
{
    struct work *w = arg;
    if (w->stmt >= 0)
        run_rows(w);
    else if (w->path)
        run_file(w);
}

static void work_done(void *arg)
{
    struct work *w = arg;
    if (w->err)
        w->store->config.on_error(w->store->config.arg, w->job, w->err, w->text);
    if (w->done)
        w->done(w->arg);
    work_free(w);
}

static void post(struct work *w)
{
    worker_post(w->store->worker, work_run, work_done, w);
}

/* ---- writes ---- */

static int64_t now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

void store_put_agent(struct store *s, const struct store_agent *a)
{
    struct work *w = work_new(s, STORE_SQL_AGENT);
    struct row *r = work_row(w);
    add_s(r, a->id);
    add_s(r, a->name);
    add_s(r, a->class_name);
    add_s(r, a->os);
    add_s(r, a->state);
    add_s(r, a->backends);
    add_i(r, a->cores);
    add_i(r, a->threads);
    add_i(r, a->memory_bytes);
    add_i(r, a->memory_available_bytes);
    add_f(r, a->gflops);
    add_f(r, a->gbytes_per_s);
    add_s(r, a->heat);
    add_f(r, a->temperature_celsius);
    add_f(r, a->battery_frac);
    add_i(r, a->charging);
    add_f(r, a->load);
    add_f(r, a->slow_factor);
    add_i(r, a->emulated);
    add_i(r, a->jobs);
    add_i(r, now_ms());
    add_s(r, a->mode ? a->mode : "full");
    add_s(r, a->reason ? a->reason : "");
    post(w);
}

void store_put_link(struct store *s, const struct store_link *l)
{
    struct work *w = work_new(s, STORE_SQL_LINK);
    struct row *r = work_row(w);
    add_s(r, l->from);
    add_s(r, l->to);
    add_f(r, l->bytes_per_s);
    add_f(r, l->latency_ms);
    add_s(r, l->duplex);
    add_f(r, l->cpu_ns_per_byte);
    add_s(r, l->origin);
    add_s(r, l->url);
    add_s(r, l->text);
    add_i(r, now_ms());
    post(w);
}

void store_put_model(struct store *s, const struct store_model *m)
{
    struct work *w = work_new(s, STORE_SQL_MODEL);
    struct row *r = work_row(w);
    add_i(r, m->id);
    add_s(r, m->name);
    add_s(r, m->graph_hash);
    add_s(r, m->blob_hash);
    add_i(r, m->bytes);
    add_i(r, m->nodes);
    add_i(r, m->weight_bytes);
    add_s(r, m->inputs);
    add_s(r, m->outputs);
    add_i(r, now_ms());
    add_s(r, m->preprocess);
    add_i(r, m->temporary);
    post(w);
}

void store_put_blob(struct store *s, const char *hash, const char *file, int64_t at, int64_t bytes)
{
    struct work *w = work_new(s, STORE_SQL_BLOB);
    struct row *r = work_row(w);
    add_s(r, hash);
    add_s(r, file);
    add_i(r, at);
    add_i(r, bytes);
    post(w);
}

static void remove_by(struct store *s, int stmt, const char *key)
{
    struct work *w = work_new(s, stmt);
    add_s(work_row(w), key);
    post(w);
}

void store_remove_model(struct store *s, const char *name)
{
    remove_by(s, STORE_SQL_MODEL_REMOVE, name);
}

void store_remove_outputs(struct store *s, int64_t job)
{
    struct work *w = work_new(s, STORE_SQL_OUTPUTS_REMOVE);
    add_i(work_row(w), job);
    post(w);
}

void store_remove_blob(struct store *s, const char *file)
{
    remove_by(s, STORE_SQL_BLOB_REMOVE, file);
}

void store_put_profile(
    struct store *s, const char *graph, const char *agent, const char *backends, const struct store_time *rows, int n)
{
    struct work *w = work_new(s, STORE_SQL_PROFILE);
    for (int i = 0; i < n; i++) {
        struct row *r = work_row(w);
        add_s(r, graph);
        add_s(r, agent);
        add_s(r, backends);
        add_i(r, rows[i].node);
        add_s(r, rows[i].form);
        add_i(r, rows[i].size);
        add_f(r, rows[i].ms);
        add_f(r, rows[i].prepare_ms);
        add_i(r, rows[i].packed_bytes);
        add_i(r, rows[i].workspace_bytes);
        add_i(r, now_ms());
    }
    post(w);
}

void store_put_job(struct store *s, const struct store_job *j)
{
    struct work *w = work_new(s, STORE_SQL_JOB);
    struct row *r = work_row(w);
    w->job = j->id;
    add_i(r, j->id);
    add_s(r, j->kind);
    add_s(r, j->model);
    add_s(r, j->graph_hash);
    add_s(r, j->state);
    add_s(r, j->objective);
    add_s(r, j->request);
    add_s(r, j->source);
    add_i(r, j->batch);
    add_i(r, j->microbatch);
    add_i(r, j->samples);
    add_i(r, j->done);
    add_b(r, j->done_map, j->done_map_len);
    add_i(r, j->labelled);
    add_i(r, j->correct);
    add_s(r, j->outputs);
    add_s_or_null(r, j->forms);
    add_f(r, j->run_ms);
    add_i(r, j->replans);
    add_time(r, j->plan);
    add_s(r, j->error);
    add_i(r, j->created_ms);
    add_time(r, j->started_ms);
    add_time(r, j->ended_ms);
    add_i(r, j->deaths);
    post(w);
}

void store_put_event(struct store *s, int64_t id, int64_t job, int64_t at_ms, const char *kind, const char *text)
{
    struct work *w = work_new(s, STORE_SQL_EVENT);
    struct row *r = work_row(w);
    add_i(r, id);
    add_i(r, job);
    add_i(r, at_ms);
    add_s(r, kind);
    add_s(r, text);
    post(w);
}

void store_put_plan(struct store *s, const struct store_plan *p)
{
    struct work *w = work_new(s, STORE_SQL_PLAN);
    struct row *r = work_row(w);
    add_i(r, p->id);
    add_time(r, p->job);
    add_s(r, p->model);
    add_s(r, p->graph_hash);
    add_s(r, p->reason);
    add_s(r, p->objective);
    add_s(r, p->plan);
    add_s_or_null(r, p->given);
    add_i(r, p->microbatch);
    add_i(r, p->batch);
    add_i(r, p->pipelines);
    add_i(r, p->stages);
    add_f(r, p->step_ms);
    add_f(r, p->cost_ms);
    add_f(r, p->bound_ms);
    add_f(r, p->gap);
    add_s(r, p->bottleneck);
    add_s_or_null(r, p->best_single);
    add_f(r, p->best_single_ms);
    add_i(r, now_ms());
    post(w);
}

void store_put_stage(struct store *s, int64_t plan, int64_t pipeline, int64_t stage, const char *agent,
    const char *nodes, double predicted_ms, int64_t memory_bytes)
{
    struct work *w = work_new(s, STORE_SQL_STAGE);
    struct row *r = work_row(w);
    add_i(r, plan);
    add_i(r, pipeline);
    add_i(r, stage);
    add_s(r, agent);
    add_s(r, nodes);
    add_f(r, predicted_ms);
    add_i(r, memory_bytes);
    post(w);
}

void store_put_measured(struct store *s, int64_t plan, double step_ms, double batches)
{
    struct work *w = work_new(s, STORE_SQL_MEASURED);
    struct row *r = work_row(w);
    add_f(r, step_ms);
    add_f(r, batches);
    add_i(r, plan);
    post(w);
}

void store_put_stage_time(struct store *s, const struct store_stage_time *t)
{
    struct work *w = work_new(s, STORE_SQL_STAGE_TIME);
    struct row *r = work_row(w);
    add_i(r, now_ms());
    add_i(r, t->job);
    add_i(r, t->plan);
    add_i(r, t->pipeline);
    add_i(r, t->stage);
    add_s(r, t->agent);
    add_s(r, t->class_name);
    add_i(r, t->microbatches);
    add_f(r, t->compute_ms);
    add_f(r, t->wait_ms);
    add_i(r, t->sent_bytes);
    add_f(r, t->send_ms);
    add_f(r, t->codec_error);
    add_i(r, t->nonfinite);
    add_i(r, t->late);
    post(w);
}

void store_put_step(struct store *s, const struct store_step *t)
{
    struct work *w = work_new(s, STORE_SQL_STEP);
    struct row *r = work_row(w);
    w->job = t->job;
    add_i(r, t->job);
    add_i(r, t->step);
    add_i(r, t->epoch);
    add_i(r, t->samples);
    add_i(r, t->correct);
    add_i(r, t->plan);
    add_f(r, t->loss);
    add_f(r, t->ms);
    add_i(r, now_ms());
    post(w);
}

void store_put_epoch(struct store *s, const struct store_epoch *t)
{
    struct work *w = work_new(s, STORE_SQL_EPOCH);
    struct row *r = work_row(w);
    w->job = t->job;
    add_i(r, t->job);
    add_i(r, t->epoch);
    add_i(r, t->samples);
    add_i(r, t->correct);
    add_f(r, t->loss);
    add_f(r, t->ms);
    add_i(r, now_ms());
    post(w);
}

void store_put_spans(
    struct store *s, int64_t job, int64_t plan, int64_t step, const char *agent, const struct store_span *rows, int n)
{
    struct work *w = work_new(s, STORE_SQL_SPAN);
    w->job = job;
    for (int i = 0; i < n; i++) {
        struct row *r = work_row(w);
        add_i(r, job);
        add_i(r, plan);
        add_i(r, step);
        add_s(r, agent);
        add_s(r, rows[i].peer);
        add_i(r, rows[i].stage);
        add_s(r, rows[i].what);
        add_i(r, rows[i].microbatch);
        add_f(r, rows[i].begin_ms);
        add_f(r, rows[i].end_ms);
        add_i(r, now_ms());
    }
    post(w);
}

void store_put_checkpoint(
    struct store *s, int64_t job, int64_t step, int64_t bytes, const char *parts, net_fn done, void *arg)
{
    struct work *w = work_new(s, STORE_SQL_CHECKPOINT);
    struct row *r = work_row(w);
    w->job = job;
    add_i(r, job);
    add_i(r, step);
    add_i(r, bytes);
    add_s(r, parts);
    add_i(r, now_ms());
    w->done = done;
    w->arg = arg;
    post(w);
}

void store_remove_checkpoints(struct store *s, int64_t job, int64_t from, int64_t before)
{
    struct work *w = work_new(s, STORE_SQL_CHECKPOINT_REMOVE);
    struct row *r = work_row(w);
    add_i(r, job);
    add_i(r, from);
    add_i(r, before);
    post(w);
}

void store_write_file(struct store *s, int64_t job, const char *path, int64_t offset, const void *data, size_t len)
{
    struct work *w = work_new(s, -1);
    w->job = job;
    w->path = yk_xstrdup(path);
    w->offset = offset;
    w->len = len;
    w->data = yk_try_alloc(len + 1, 1);
    if (!w->data) {
        s->config.on_error(s->config.arg, job, YK_NOMEM, "no memory for an output");
        work_free(w);
        return;
    }
    memcpy(w->data, data, len);
    post(w);
}

void store_flush(struct store *s, net_fn done, void *arg)
{
    struct work *w = work_new(s, -1);
    w->done = done;
    w->arg = arg;
    post(w);
}
