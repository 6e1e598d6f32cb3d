/* The store's reads: listings as JSON on the worker, and what is loaded at start. */
#include "scheduler/store_sql.h"

#include "common/json.h"
#include "common/worker.h"
#include "scheduler/columns.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LIST_LIMIT 10000

struct query {
    struct store *store;
    char sql[768];
    int64_t params[3];
    int n_params;
    enum { AS_ROWS, AS_EVENTS, AS_TEXT } as;
    const struct columns *columns; /* of AS_ROWS: says which numbers are truth values */
    int64_t cursor;
    store_on_json fn;
    void *arg;
    struct yk_buf out;
    yk_err err;
};

static void put_column(sqlite3_stmt *st, int i, const struct columns *c, struct json_out *o)
{
    switch (sqlite3_column_type(st, i)) {
    case SQLITE_INTEGER:
        if (c && i < c->n && c->at[i].kind == COLUMN_BOOL)
            json_put_bool(o, sqlite3_column_int64(st, i) != 0);
        else
            json_put_i64(o, sqlite3_column_int64(st, i));
        break;
    case SQLITE_FLOAT:
        json_put_f64(o, sqlite3_column_double(st, i));
        break;
    case SQLITE_TEXT:
        json_put_str(o, (const char *)sqlite3_column_text(st, i));
        break;
    default:
        json_put_null(o);
    }
}

static void query_run(void *arg)
{
    struct query *q = arg;
    sqlite3_stmt *st = NULL;
    struct json_out o;
    int code = sqlite3_prepare_v2(q->store->db, q->sql, -1, &st, NULL);
    for (int i = 0; i < q->n_params && code == SQLITE_OK; i++)
        code = sqlite3_bind_int64(st, i + 1, q->params[i]);
    json_out_init(&o, &q->out, 0);
    if (q->as == AS_EVENTS) {
        json_open(&o, '{');
        json_put_key(&o, "events");
    }
    if (q->as != AS_TEXT)
        json_open(&o, '[');
    while (code == SQLITE_OK || code == SQLITE_ROW) {
        code = sqlite3_step(st);
        if (code != SQLITE_ROW)
            break;
        if (q->as == AS_TEXT) {
            yk_buf_printf(&q->out, "%s", (const char *)sqlite3_column_text(st, 0));
            break;
        }
        json_open(&o, '{');
        for (int i = 0; i < sqlite3_column_count(st); i++) {
            json_put_key(&o, sqlite3_column_name(st, i));
            put_column(st, i, q->columns, &o);
        }
        json_close(&o, '}');
        if (q->as == AS_EVENTS)
            q->cursor = sqlite3_column_int64(st, 0);
    }
    if (q->as != AS_TEXT)
        json_close(&o, ']');
    if (q->as == AS_EVENTS) {
        json_put_key(&o, "cursor");
        json_put_i64(&o, q->cursor);
        json_close(&o, '}');
    }
    q->err = store_error(code);
    if (!q->err && q->as == AS_TEXT && q->out.len == 0)
        q->err = YK_NOTFOUND;
    yk_buf_add(&q->out, "", 1);
    if (q->out.failed)
        q->err = YK_NOMEM;
    sqlite3_finalize(st);
}

static void query_done(void *arg)
{
    struct query *q = arg;
    if (q->err)
        yk_buf_free(&q->out);
    q->fn(q->arg, q->err, (char *)q->out.data);
    free(q);
}

static void ask(struct store *s, struct query *q, store_on_json fn, void *arg)
{
    q->store = s;
    q->fn = fn;
    q->arg = arg;
    worker_post(s->worker, query_run, query_done, q);
}

void store_list(struct store *s, const char *listing, int64_t job, store_on_json fn, void *arg)
{
    const struct columns *c = columns_find(listing);
    struct query *q = yk_xalloc(sizeof *q);
    bool jobs = strcmp(listing, "jobs") == 0;
    q->columns = c;
    snprintf(q->sql, sizeof q->sql, "SELECT * FROM %s%s%s LIMIT %d", c ? c->view : "v_none",
        job > 0 ? " WHERE job = ?1" : "", jobs ? " ORDER BY job DESC" : "", LIST_LIMIT);
    q->params[0] = job;
    q->n_params = job > 0;
    ask(s, q, fn, arg);
}

void store_events(struct store *s, int64_t job, int64_t cursor, store_on_json fn, void *arg)
{
    struct query *q = yk_xalloc(sizeof *q);
    snprintf(q->sql, sizeof q->sql,
        "SELECT id, strftime('%%Y-%%m-%%dT%%H:%%M:%%fZ', at_ms / 1000.0, 'unixepoch') AS at, kind, text "
        "FROM job_events WHERE job = ?1 AND id > ?2 ORDER BY id LIMIT 1000");
    q->params[0] = job;
    q->params[1] = q->cursor = cursor;
    q->n_params = 2;
    q->as = AS_EVENTS;
    ask(s, q, fn, arg);
}

void store_steps(struct store *s, int64_t job, int64_t first, int64_t limit, store_on_json fn, void *arg)
{
    struct query *q = yk_xalloc(sizeof *q);
    snprintf(q->sql, sizeof q->sql,
        "SELECT step, epoch, loss, accuracy, samples, ms FROM v_steps WHERE job = ?1 AND step >= ?2 ORDER BY step "
        "LIMIT ?3");
    q->params[0] = job;
    q->params[1] = first;
    q->params[2] = limit;
    q->n_params = 3;
    ask(s, q, fn, arg);
}

void store_epochs(struct store *s, int64_t job, store_on_json fn, void *arg)
{
    struct query *q = yk_xalloc(sizeof *q);
    snprintf(q->sql, sizeof q->sql,
        "SELECT epoch, samples, validation_loss, validation_accuracy, ms FROM v_epochs WHERE job = ?1 ORDER BY epoch");
    q->params[0] = job;
    q->n_params = 1;
    ask(s, q, fn, arg);
}

/* Stages tell twice a second what they did since they told last. */
void store_use(struct store *s, int64_t job, store_on_json fn, void *arg)
{
    struct query *q = yk_xalloc(sizeof *q);
    snprintf(q->sql, sizeof q->sql,
        "WITH last AS (SELECT max(at_ms) AS at, max(at_ms) - max(min(at_ms) - 500, max(at_ms) - 3000) AS span "
        "FROM stage_times WHERE job = ?1), "
        "sums AS (SELECT agent, min(1, sum(compute_ms) / span) AS busy, 1000.0 * sum(sent_bytes) / span AS sent "
        "FROM stage_times, last WHERE job = ?1 AND at_ms > at - span GROUP BY agent) "
        "SELECT agent, round(busy, 4) AS busy_frac, round(sent) AS sent_bytes_per_s, "
        "round((SELECT min(1, sent / max(bytes_per_s)) FROM v_links WHERE from_agent = agent AND bytes_per_s > 0), 4) "
        "AS "
        "link_frac FROM sums ORDER BY agent");
    q->params[0] = job;
    q->n_params = 1;
    ask(s, q, fn, arg);
}

/* One text of a job. */
static void ask_text(struct store *s, const char *sql, int64_t job, store_on_json fn, void *arg)
{
    struct query *q = yk_xalloc(sizeof *q);
    snprintf(q->sql, sizeof q->sql, "%s", sql);
    q->params[0] = job;
    q->n_params = 1;
    q->as = AS_TEXT;
    ask(s, q, fn, arg);
}

void store_plan_of(struct store *s, int64_t job, store_on_json fn, void *arg)
{
    ask_text(s, "SELECT plan FROM plans WHERE job = ?1 ORDER BY id DESC LIMIT 1", job, fn, arg);
}

void store_request_of(struct store *s, int64_t job, store_on_json fn, void *arg)
{
    ask_text(s, "SELECT request FROM jobs WHERE id = ?1", job, fn, arg);
}

void store_outputs_of(struct store *s, int64_t job, store_on_json fn, void *arg)
{
    ask_text(s, "SELECT outputs FROM jobs WHERE id = ?1 AND ended_ms > 0 AND outputs <> ''", job, fn, arg);
}

/* ---- at start ---- */

int64_t store_last_id(struct store *s, const char *table)
{
    char sql[256];
    sqlite3_stmt *st = NULL;
    int64_t id = 0;
    /* Rows of history go, their numbers are not given again. */
    snprintf(sql, sizeof sql,
        "SELECT max(coalesce((SELECT max(id) FROM %.40s), 0), "
        "coalesce((SELECT seq FROM sqlite_sequence WHERE name = '%.40s'), 0))",
        table, table);
    if (sqlite3_prepare_v2(s->reader, sql, -1, &st, NULL) == SQLITE_OK && sqlite3_step(st) == SQLITE_ROW)
        id = sqlite3_column_int64(st, 0);
    sqlite3_finalize(st);
    return id;
}

static const char *text_of(sqlite3_stmt *st, int i)
{
    const char *t = (const char *)sqlite3_column_text(st, i);
    return t ? t : "";
}

void store_load_models(struct store *s, void (*fn)(void *arg, const struct store_model *m), void *arg)
{
    sqlite3_stmt *st = NULL;
    sqlite3_prepare_v2(s->reader,
        "SELECT id, name, graph_hash, blob_hash, inputs, outputs, bytes, nodes, weight_bytes, preprocess, temporary "
        "FROM models",
        -1, &st, NULL);
    while (st && sqlite3_step(st) == SQLITE_ROW) {
        struct store_model m = {.id = sqlite3_column_int64(st, 0),
            .name = text_of(st, 1),
            .graph_hash = text_of(st, 2),
            .blob_hash = text_of(st, 3),
            .inputs = text_of(st, 4),
            .outputs = text_of(st, 5),
            .bytes = sqlite3_column_int64(st, 6),
            .nodes = sqlite3_column_int64(st, 7),
            .weight_bytes = sqlite3_column_int64(st, 8),
            .preprocess = (const char *)sqlite3_column_text(st, 9),
            .temporary = sqlite3_column_int(st, 10) != 0};
        fn(arg, &m);
    }
    sqlite3_finalize(st);
}

bool store_load_blobs(
    struct store *s, void (*fn)(void *arg, const char *hash, const char *file, int64_t at, int64_t bytes), void *arg)
{
    sqlite3_stmt *st = NULL;
    int code = SQLITE_ERROR;
    sqlite3_prepare_v2(s->reader, "SELECT hash, file, at, bytes FROM blobs", -1, &st, NULL);
    while (st && (code = sqlite3_step(st)) == SQLITE_ROW)
        fn(arg, text_of(st, 0), text_of(st, 1), sqlite3_column_int64(st, 2), sqlite3_column_int64(st, 3));
    sqlite3_finalize(st);
    return code == SQLITE_DONE;
}

void store_load_links(struct store *s, void (*fn)(void *arg, const struct store_link *l, int64_t age_ms), void *arg)
{
    sqlite3_stmt *st = NULL;
    sqlite3_prepare_v2(s->reader,
        "SELECT from_agent, to_agent, duplex, bytes_per_s, latency_ms, cpu_ns_per_byte, url, "
        "CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER) - measured_ms FROM links "
        "WHERE origin = 'measured'",
        -1, &st, NULL);
    while (st && sqlite3_step(st) == SQLITE_ROW) {
        struct store_link l = {.from = text_of(st, 0),
            .to = text_of(st, 1),
            .duplex = text_of(st, 2),
            .bytes_per_s = sqlite3_column_double(st, 3),
            .latency_ms = sqlite3_column_double(st, 4),
            .cpu_ns_per_byte = sqlite3_column_double(st, 5),
            .url = text_of(st, 6)};
        fn(arg, &l, sqlite3_column_int64(st, 7));
    }
    sqlite3_finalize(st);
}

bool store_load_jobs(struct store *s, void (*fn)(void *arg, const struct store_job *j), void *arg)
{
    sqlite3_stmt *st = NULL;
    int code = SQLITE_ERROR;
    sqlite3_prepare_v2(s->reader,
        "SELECT id, kind, model, graph_hash, state, objective, request, source, batch, microbatch, samples, done, "
        "done_map, labelled, correct, outputs, forms, run_ms, replans, plan, error, created_ms, started_ms, deaths "
        "FROM jobs "
        "WHERE state NOT IN ('done', 'failed', 'canceled') ORDER BY id",
        -1, &st, NULL);
    while (st && (code = sqlite3_step(st)) == SQLITE_ROW) {
        struct store_job j = {.id = sqlite3_column_int64(st, 0),
            .kind = text_of(st, 1),
            .model = text_of(st, 2),
            .graph_hash = text_of(st, 3),
            .state = text_of(st, 4),
            .objective = text_of(st, 5),
            .request = text_of(st, 6),
            .source = text_of(st, 7),
            .batch = sqlite3_column_int64(st, 8),
            .microbatch = sqlite3_column_int64(st, 9),
            .samples = sqlite3_column_int64(st, 10),
            .done = sqlite3_column_int64(st, 11),
            .done_map = sqlite3_column_blob(st, 12),
            .done_map_len = (size_t)sqlite3_column_bytes(st, 12),
            .labelled = sqlite3_column_int64(st, 13),
            .correct = sqlite3_column_int64(st, 14),
            .outputs = text_of(st, 15),
            .forms = text_of(st, 16),
            .run_ms = sqlite3_column_double(st, 17),
            .replans = sqlite3_column_int64(st, 18),
            .plan = sqlite3_column_int64(st, 19),
            .error = text_of(st, 20),
            .created_ms = sqlite3_column_int64(st, 21),
            .started_ms = sqlite3_column_int64(st, 22),
            .deaths = sqlite3_column_int64(st, 23)};
        fn(arg, &j);
    }
    sqlite3_finalize(st);
    return code == SQLITE_DONE;
}

void store_load_checkpoint(struct store *s, int64_t job, int64_t before,
    void (*fn)(void *arg, int64_t step, int64_t bytes, const char *parts), void *arg)
{
    sqlite3_stmt *st = NULL;
    sqlite3_prepare_v2(s->reader,
        "SELECT step, bytes, parts FROM checkpoints WHERE job = ?1 AND step < ?2 ORDER BY step DESC LIMIT 1", -1, &st,
        NULL);
    if (st) {
        sqlite3_bind_int64(st, 1, job);
        sqlite3_bind_int64(st, 2, before);
    }
    if (st && sqlite3_step(st) == SQLITE_ROW)
        fn(arg, sqlite3_column_int64(st, 0), sqlite3_column_int64(st, 1), text_of(st, 2));
    sqlite3_finalize(st);
}

int64_t store_last_epoch(struct store *s, int64_t job)
{
    sqlite3_stmt *st = NULL;
    int64_t epoch = 0;
    sqlite3_prepare_v2(s->reader, "SELECT max(epoch) FROM epochs WHERE job = ?1", -1, &st, NULL);
    if (st)
        sqlite3_bind_int64(st, 1, job);
    if (st && sqlite3_step(st) == SQLITE_ROW)
        epoch = sqlite3_column_int64(st, 0);
    sqlite3_finalize(st);
    return epoch;
}

void store_load_profile(struct store *s, const char *graph, const char *agent, const char *backends,
    void (*fn)(void *arg, const struct store_time *t), void *arg)
{
    sqlite3_stmt *st = NULL;
    const char *const keys[] = {graph, agent, backends};
    sqlite3_prepare_v2(s->reader,
        "SELECT node, form, size, ms, prepare_ms, packed_bytes, workspace_bytes FROM profiles WHERE graph_hash = ?1 "
        "AND "
        "agent = ?2 AND backends = ?3 ORDER BY node, form, size",
        -1, &st, NULL);
    for (int i = 0; st && i < 3; i++)
        sqlite3_bind_text(st, i + 1, keys[i], -1, SQLITE_STATIC);
    while (st && sqlite3_step(st) == SQLITE_ROW) {
        struct store_time t = {.node = sqlite3_column_int(st, 0),
            .form = text_of(st, 1),
            .size = sqlite3_column_int64(st, 2),
            .ms = sqlite3_column_double(st, 3),
            .prepare_ms = sqlite3_column_double(st, 4),
            .packed_bytes = sqlite3_column_int64(st, 5),
            .workspace_bytes = sqlite3_column_int64(st, 6)};
        fn(arg, &t);
    }
    sqlite3_finalize(st);
}
