/* What agents did in a sampled step, as rows of spans; and the picture of a step that is made of them. */
#include "scheduler/store_sql.h"

#include "common/json.h"
#include "common/worker.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SETTLED_MS 2000 /* agents tell what they measured twice a second */
#define EVENTS_LIMIT 100000

struct picture {
    struct store *store;
    int64_t job, step;
    store_on_json fn;
    void *arg;
    struct yk_buf out;
    yk_err err;
    char **rows;
    int32_t n_rows;
};

static const char *text_of(sqlite3_stmt *st, int i)
{
    const char *t = (const char *)sqlite3_column_text(st, i);
    return t ? t : "";
}

static int32_t row_of(struct picture *p, const char *name)
{
    int32_t i = 0;
    while (i < p->n_rows && strcmp(p->rows[i], name) != 0)
        i++;
    if (i == p->n_rows) {
        p->rows = yk_xrealloc(p->rows, ((size_t)i + 1) * sizeof *p->rows);
        p->rows[p->n_rows++] = yk_xstrdup(name);
    }
    return i;
}

/* What a span is drawn in: a device computes, a link carries, a data set is read. */
static char *row_name(sqlite3_stmt *st)
{
    const char *agent = text_of(st, 0), *peer = text_of(st, 1), *what = text_of(st, 2);
    if (strcmp(what, "send") == 0)
        return yk_xasprintf("link %s to %s", agent, peer);
    if (strcmp(what, "receive") == 0)
        return yk_xasprintf("link %s to %s", peer, agent);
    return yk_xasprintf("%s %s", strcmp(what, "read") == 0 ? "data of" : "agent", agent);
}

static sqlite3_stmt *spans_of(struct picture *p, const char *order)
{
    sqlite3_stmt *st = NULL;
    char *sql =
        yk_xasprintf("SELECT agent, peer, what, stage, microbatch, begin_ms, end_ms FROM v_spans WHERE job = ?1 "
                     "AND step = ?2 ORDER BY %s LIMIT %d",
            order, EVENTS_LIMIT);
    int code = sqlite3_prepare_v2(p->store->db, sql, -1, &st, NULL);
    free(sql);
    if (code != SQLITE_OK) {
        p->err = store_error(code);
        return NULL;
    }
    sqlite3_bind_int64(st, 1, p->job);
    sqlite3_bind_int64(st, 2, p->step);
    return st;
}

static void put_event(struct picture *p, sqlite3_stmt *st, struct json_out *o)
{
    char label[32], about[160], *row = row_name(st);
    const char *what = text_of(st, 2);
    long long stage = sqlite3_column_int64(st, 3), microbatch = sqlite3_column_int64(st, 4);
    char letter = (char)(what[0] >= 'a' && what[0] <= 'z' ? what[0] - 'a' + 'A' : what[0]);
    snprintf(label, sizeof label, microbatch < 0 ? "%c" : "%c%lld", letter, microbatch);
    if (stage < 0)
        snprintf(about, sizeof about, "%.40s, microbatch %lld of the data", what, microbatch);
    else if (microbatch < 0)
        snprintf(about, sizeof about, "%.40s, stage %lld", what, stage);
    else
        snprintf(about, sizeof about, "%.40s, stage %lld, microbatch %lld", what, stage, microbatch);
    json_open(o, '{');
    json_put_key(o, "row");
    json_put_i64(o, row_of(p, row));
    json_put_key(o, "kind");
    json_put_str(o, what);
    json_put_key(o, "start_ms");
    json_put_f64(o, sqlite3_column_double(st, 5));
    json_put_key(o, "end_ms");
    json_put_f64(o, sqlite3_column_double(st, 6));
    json_put_key(o, "label");
    json_put_str(o, label);
    json_put_key(o, "about");
    json_put_str(o, about);
    json_close(o, '}');
    free(row);
}

/* The newest step that all agents have told of by now; else the newest. -1: none. */
static int64_t newest(struct picture *p)
{
    sqlite3_stmt *st = NULL;
    int64_t step = -1;
    sqlite3_prepare_v2(p->store->db,
        "SELECT step + 1 FROM spans WHERE job = ?1 GROUP BY step ORDER BY "
        "max(at_ms) > 1000 * (julianday('now') - 2440587.5) * 86400 - ?2, step DESC LIMIT 1",
        -1, &st, NULL);
    if (st) {
        sqlite3_bind_int64(st, 1, p->job);
        sqlite3_bind_int64(st, 2, SETTLED_MS);
        step = sqlite3_step(st) == SQLITE_ROW ? sqlite3_column_int64(st, 0) : -1;
    }
    sqlite3_finalize(st);
    return step;
}

#define NAMED 20

/* Which steps there are, for somebody who asked for another. */
static void measured(struct picture *p)
{
    sqlite3_stmt *st = NULL;
    int n = 0;
    sqlite3_prepare_v2(
        p->store->db, "SELECT DISTINCT step + 1 FROM spans WHERE job = ?1 ORDER BY step LIMIT ?2", -1, &st, NULL);
    if (st) {
        sqlite3_bind_int64(st, 1, p->job);
        sqlite3_bind_int64(st, 2, NAMED + 1);
    }
    for (; st && sqlite3_step(st) == SQLITE_ROW && n <= NAMED; n++)
        if (n < NAMED)
            yk_buf_printf(&p->out, "%s%lld", n ? ", " : "", (long long)sqlite3_column_int64(st, 0));
        else
            yk_buf_printf(&p->out, ", ...");
    sqlite3_finalize(st);
    yk_buf_add(&p->out, "", 1);
}

static void picture_run(void *arg)
{
    struct picture *p = arg;
    struct json_out o;
    int64_t n = 0;
    if (p->step < 1)
        p->step = newest(p);
    /* Rows by name: agents, then data, then links. */
    sqlite3_stmt *st = spans_of(p, "CASE WHEN what IN ('send', 'receive') THEN 2 WHEN what = 'read' THEN 1 ELSE 0 END, "
                                   "CASE what WHEN 'receive' THEN peer ELSE agent END");
    while (st && sqlite3_step(st) == SQLITE_ROW) {
        char *name = row_name(st);
        row_of(p, name);
        free(name);
        n++;
    }
    sqlite3_finalize(st);
    if (!p->err && n == 0) {
        p->err = YK_NOTFOUND;
        measured(p);
    }
    if (p->err)
        return;
    json_out_init(&o, &p->out, 0);
    json_open(&o, '{');
    json_put_key(&o, "job");
    json_put_i64(&o, p->job);
    json_put_key(&o, "step");
    json_put_i64(&o, p->step);
    json_put_key(&o, "rows");
    json_open(&o, '[');
    for (int32_t i = 0; i < p->n_rows; i++)
        json_put_str(&o, p->rows[i]);
    json_close(&o, ']');
    json_put_key(&o, "events");
    json_open(&o, '[');
    st = spans_of(p, "what = 'wait' DESC, begin_ms");
    while (st && sqlite3_step(st) == SQLITE_ROW)
        put_event(p, st, &o);
    sqlite3_finalize(st);
    json_close(&o, ']');
    json_close(&o, '}');
    yk_buf_add(&p->out, "", 1);
    if (p->out.failed)
        p->err = YK_NOMEM;
}

static void picture_done(void *arg)
{
    struct picture *p = arg;
    if (p->err && p->err != YK_NOTFOUND)
        yk_buf_free(&p->out);
    for (int32_t i = 0; i < p->n_rows; i++)
        free(p->rows[i]);
    free(p->rows);
    p->fn(p->arg, p->err, (char *)p->out.data);
    free(p);
}

void store_timeline(struct store *s, int64_t job, int64_t step, store_on_json fn, void *arg)
{
    struct picture *p = yk_xalloc(sizeof *p);
    *p = (struct picture){.store = s, .job = job, .step = step, .fn = fn, .arg = arg};
    worker_post(s->worker, picture_run, picture_done, p);
}
