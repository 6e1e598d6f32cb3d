/* The database: migrations, one daemon, terms, listings that keep their columns, limits, a full disk. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>
#include <sqlite3.h>

#include "common/json.h"
#include "common/log.h"
#include "scheduler/columns.h"
#include "scheduler/store.h"

struct here {
    char dir[64], path[96];
    struct net *net;
    struct store *s;
    int errors;
    yk_err err;
    char text[400];
    char *json; /* the last answer */
    yk_err json_err;
    bool answered;
};

static void on_error(void *arg, int64_t job, yk_err err, const char *text)
{
    struct here *h = arg;
    (void)job;
    h->errors++;
    h->err = err;
    snprintf(h->text, sizeof(h->text), "%s", text);
}

static yk_err open_store(struct here *h, struct yk_diag *why)
{
    struct store_config c = {.net = h->net, .path = h->path, .on_error = on_error, .arg = h};
    return store_open(&c, &h->s, why);
}

static int setup(void **state)
{
    struct here *h = yk_xalloc(sizeof(*h));
    snprintf(h->dir, sizeof(h->dir), "/tmp/yoke-store-XXXXXX");
    assert_non_null(mkdtemp(h->dir));
    snprintf(h->path, sizeof(h->path), "%s/yoke.db", h->dir);
    assert_int_equal(net_mem_open(1, &h->net), YK_OK);
    assert_int_equal(open_store(h, NULL), YK_OK);
    *state = h;
    return 0;
}

static int teardown(void **state)
{
    struct here *h = *state;
    char command[128];
    store_close(h->s);
    net_close(h->net);
    snprintf(command, sizeof(command), "rm -r %s", h->dir);
    assert_int_equal(system(command), 0);
    free(h->json);
    free(h);
    return 0;
}

static void again(struct here *h)
{
    store_close(h->s);
    h->s = NULL;
    assert_int_equal(open_store(h, NULL), YK_OK);
}

static void settle(struct here *h)
{
    net_mem_run_for(h->net, 1000000);
}

static void on_json(void *arg, yk_err err, char *json)
{
    struct here *h = arg;
    free(h->json);
    h->json = json;
    h->json_err = err;
    h->answered = true;
}

static struct json *listing(struct here *h, const char *name, int64_t job)
{
    struct json *doc = NULL;
    h->answered = false;
    store_list(h->s, name, job, on_json, h);
    settle(h);
    assert_true(h->answered);
    assert_int_equal(h->json_err, YK_OK);
    assert_int_equal(json_parse(h->json, strlen(h->json), &doc, NULL), YK_OK);
    return doc;
}

/* Another program's view of the file, while the daemon has it. */
static void outside(const struct here *h, const char *sql, char *out, size_t size)
{
    sqlite3 *db = NULL;
    sqlite3_stmt *st = NULL;
    out[0] = 0;
    assert_int_equal(sqlite3_open_v2(h->path, &db, SQLITE_OPEN_READONLY, NULL), SQLITE_OK);
    int code = sqlite3_prepare_v2(db, sql, -1, &st, NULL);
    if (code == SQLITE_OK && sqlite3_step(st) == SQLITE_ROW)
        snprintf(out, size, "%s", sqlite3_column_text(st, 0));
    assert_int_equal(code, SQLITE_OK);
    sqlite3_finalize(st);
    sqlite3_close(db);
}

static struct store_agent agent(const char *id, const char *name)
{
    return (struct store_agent){.id = id,
        .name = name,
        .class_name = "phone",
        .os = "test",
        .state = "alive",
        .backends = "ref@generic",
        .heat = "nominal",
        .cores = 4,
        .threads = 4,
        .memory_bytes = 1 << 30,
        .gflops = 1.5,
        .gbytes_per_s = NAN,
        .temperature_celsius = 30.5,
        .battery_frac = NAN,
        .load = 0.1,
        .slow_factor = 1,
        .emulated = true};
}

static struct store_job job(int64_t id, const char *state)
{
    static const uint8_t map[2] = {0xff, 0x01};
    return (struct store_job){.id = id,
        .kind = "batch",
        .model = "mnist",
        .graph_hash = "",
        .state = state,
        .objective = "throughput",
        .request = "{}",
        .source = "pc",
        .batch = 64,
        .microbatch = 8,
        .samples = 100,
        .done = 72,
        .labelled = 72,
        .correct = 36,
        .outputs = "",
        .error = "",
        .forms = "[\"ref@generic\"]",
        .done_map = map,
        .done_map_len = 2,
        .run_ms = 1000,
        .replans = 1,
        .plan = 3,
        .created_ms = 1700000000000,
        .started_ms = 1700000001000};
}

/* ---- tests ---- */

static void term_rises(void **state)
{
    struct here *h = *state;
    int64_t term = store_term(h->s);
    assert_true(term >= 1);
    again(h);
    assert_int_equal(store_term(h->s), term + 1);
    again(h);
    assert_int_equal(store_term(h->s), term + 2);
}

static void second_daemon_is_refused(void **state)
{
    struct here *h = *state;
    struct yk_diag why = {0};
    struct here other = *h;
    other.s = NULL;
    assert_int_equal(open_store(&other, &why), YK_BUSY);
    assert_null(other.s);
    char pid[24];
    snprintf(pid, sizeof(pid), "%ld", (long)getpid());
    assert_non_null(strstr(why.text, h->path));
    assert_non_null(strstr(why.text, pid));
    /* Its start did not count as one, and ours goes on. */
    char term[24];
    outside(h, "SELECT value FROM meta WHERE key = 'term'", term, sizeof(term));
    assert_int_equal(atoll(term), store_term(h->s));
}

static void schema_has_its_version(void **state)
{
    struct here *h = *state;
    char text[64];
    outside(h, "PRAGMA user_version", text, sizeof(text));
    assert_string_equal(text, "10");
    outside(h, "PRAGMA journal_mode", text, sizeof(text));
    assert_string_equal(text, "wal");
    outside(h,
        "SELECT count(*) FROM pragma_table_info('tokens') WHERE name = 'owner' UNION ALL "
        "SELECT count(*) FROM pragma_table_info('jobs') WHERE name = 'owner'",
        text, sizeof(text));
    assert_string_equal(text, "1");
}

extern const char store_schema_sql[]; /* schema 1 */

static void on_old_model(void *arg, const struct store_model *m)
{
    int *n = arg;
    assert_string_equal(m->name, "old");
    assert_null(m->preprocess);
    (*n)++;
}

static void older_schema_goes_on(void **state)
{
    struct here *h = *state;
    sqlite3 *db = NULL;
    char text[64];
    int n = 0;
    store_close(h->s);
    h->s = NULL;
    assert_int_equal(unlink(h->path), 0);
    assert_int_equal(sqlite3_open(h->path, &db), SQLITE_OK);
    assert_int_equal(sqlite3_exec(db, store_schema_sql, NULL, NULL, NULL), SQLITE_OK);
    assert_int_equal(
        sqlite3_exec(db,
            "INSERT INTO models (name, graph_hash, blob_hash, bytes, nodes, weight_bytes, inputs, outputs, "
            "created_ms) VALUES ('old', 'a', 'b', 1, 2, 3, 'x', 'y', 0); PRAGMA user_version = 1",
            NULL, NULL, NULL),
        SQLITE_OK);
    sqlite3_close(db);
    assert_int_equal(open_store(h, NULL), YK_OK);
    store_load_models(h->s, on_old_model, &n);
    assert_int_equal(n, 1);
    outside(h, "PRAGMA user_version", text, sizeof(text));
    assert_string_equal(text, "10");
    outside(h, "SELECT model || coalesce(preprocess, '-') FROM v_models", text, sizeof(text));
    assert_string_equal(text, "old-");
}

static void on_checkpoint(void *arg, int64_t step, int64_t bytes, const char *parts)
{
    char *text = arg;
    snprintf(text, 64, "%lld %lld %s", (long long)step, (long long)bytes, parts);
}

static void on_durable(void *arg)
{
    ++*(int *)arg;
}

/* A step that was undone by a loss is there once, with what it gave last; the newest set of parameters is found. */
static void steps_and_checkpoints(void **state)
{
    struct here *h = *state;
    char text[64] = "";
    int durable = 0;
    for (int64_t i = 0; i < 12; i++) {
        struct store_step t = {.job = 5,
            .step = i % 10,
            .epoch = i % 10 / 4,
            .samples = 8,
            .correct = i == 3 ? -1 : 2,
            .plan = 1,
            .loss = 2.5 - (double)i / 8,
            .ms = 4};
        store_put_step(h->s, &t);
    }
    store_load_checkpoint(h->s, 5, INT64_MAX, on_checkpoint, text);
    assert_string_equal(text, "");
    for (int64_t i = 1; i <= 3; i++)
        store_put_checkpoint(h->s, 5, 4 * i, 100 * i, "[]", on_durable, &durable);
    store_put_checkpoint(h->s, 6, 99, 1, "[]", on_durable, &durable);
    assert_int_equal(store_last_epoch(h->s, 5), 0);
    for (int64_t i = 1; i <= 3; i++)
        store_put_epoch(h->s, &(struct store_epoch){5, i, 8, i == 3 ? -1 : 2 * i, i == 2 ? (double)NAN : 0.5, 3.0});
    store_remove_checkpoints(h->s, 5, 0, 8);
    settle(h);
    assert_int_equal(durable, 4);
    store_load_checkpoint(h->s, 5, INT64_MAX, on_checkpoint, text);
    assert_string_equal(text, "12 300 []");
    outside(h, "SELECT count(*) || ' ' || min(step) FROM v_checkpoints WHERE job = 5", text, sizeof(text));
    assert_string_equal(text, "2 8");
    outside(h, "SELECT count(*) || ' ' || sum(accuracy IS NULL) || ' ' || max(loss) FROM v_steps WHERE job = 5", text,
        sizeof(text));
    assert_string_equal(text, "10 1 2.25");
    outside(h, "SELECT loss FROM v_steps WHERE step = 2", text, sizeof(text));
    assert_string_equal(text, "1.125");
    assert_int_equal(store_last_epoch(h->s, 5), 3);
    outside(h,
        "SELECT group_concat(ifnull(validation_loss, '-') || ' ' || ifnull(validation_accuracy, '-')) FROM v_epochs",
        text, sizeof(text));
    assert_string_equal(text, "0.5 0.25,- 0.5,0.5 -");
}

/* A step's picture begins with its first span and shows the newest plan; rows are agents, then data, then links. */
static void spans_make_a_picture(void **state)
{
    struct here *h = *state;
    const struct store_span old = {.stage = 0, .microbatch = 0, .what = "forward", .begin_ms = 10, .end_ms = 11};
    const struct store_span pc[] = {
        {.stage = 0, .microbatch = 0, .what = "forward", .begin_ms = 1000.5, .end_ms = 1002.5},
        {.stage = 0, .microbatch = 0, .what = "send", .peer = "phone", .begin_ms = 1002.5, .end_ms = 1003.5},
        {.stage = -1, .microbatch = 0, .what = "read", .begin_ms = 1000.25, .end_ms = 1000.5},
        {.stage = 0, .microbatch = -1, .what = "step", .begin_ms = 1009, .end_ms = 1010},
    };
    const struct store_span phone[] = {
        {.stage = 1, .microbatch = 0, .what = "both", .begin_ms = 1004, .end_ms = 1008},
        {.stage = 0, .microbatch = 0, .what = "receive", .peer = "pc", .begin_ms = 1003, .end_ms = 1004},
    };
    char text[64];
    store_timeline(h->s, 7, -1, on_json, h);
    settle(h);
    assert_int_equal(h->json_err, YK_NOTFOUND);
    assert_string_equal(h->json, "");
    store_put_spans(h->s, 7, 1, 3, "pc", &old, 1);
    store_put_spans(h->s, 7, 2, 3, "phone", phone, 2);
    store_put_spans(h->s, 7, 2, 3, "pc", pc, 4);
    store_put_spans(h->s, 7, 2, 1, "pc", pc, 1);
    store_put_spans(h->s, 8, 3, 9, "pc", &old, 1);
    store_timeline(h->s, 7, -1, on_json, h);
    settle(h);
    assert_int_equal(h->json_err, YK_OK);
    struct json *doc = NULL;
    assert_int_equal(json_parse(h->json, strlen(h->json), &doc, NULL), YK_OK);
    assert_int_equal(json_i64(json_find(doc, "step"), -1), 4); /* tables count from 0 */
    const struct json *rows = json_find(doc, "rows"), *events = json_find(doc, "events");
    const char *const names[] = {"agent pc", "agent phone", "data of pc", "link pc to phone"};
    assert_int_equal(json_len(rows), 4);
    for (size_t i = 0; i < 4; i++)
        assert_string_equal(json_str(json_at(rows, i), ""), names[i]);
    assert_int_equal(json_len(events), 6);
    double first = 1e9, last = 0;
    for (size_t i = 0; i < 6; i++) {
        const struct json *e = json_at(events, i);
        first = YK_MIN(first, json_f64(json_find(e, "start_ms"), 1e9));
        last = YK_MAX(last, json_f64(json_find(e, "end_ms"), 0));
        if (strcmp(json_str(json_find(e, "kind"), ""), "both") == 0) {
            assert_int_equal(json_i64(json_find(e, "row"), -1), 1);
            assert_true(json_f64(json_find(e, "start_ms"), 0) == 3.75);
            assert_string_equal(json_str(json_find(e, "label"), ""), "B0");
            assert_string_equal(json_str(json_find(e, "about"), ""), "both, stage 1, microbatch 0");
        }
    }
    assert_true(first == 0 && last == 9.75);
    json_free(doc);
    store_timeline(h->s, 7, 3, on_json, h);
    settle(h);
    assert_int_equal(h->json_err, YK_NOTFOUND);
    assert_string_equal(h->json, "2, 4"); /* those that there are */
    outside(h, "SELECT count(*) || ' ' || max(end_ms) FROM v_spans WHERE job = 7 AND step = 2", text, sizeof(text));
    assert_string_equal(text, "1 2.0");
}

static void newer_schema_is_refused(void **state)
{
    struct here *h = *state;
    struct yk_diag why = {0};
    sqlite3 *db = NULL;
    char text[64];
    store_close(h->s);
    h->s = NULL;
    assert_int_equal(sqlite3_open(h->path, &db), SQLITE_OK);
    assert_int_equal(sqlite3_exec(db, "PRAGMA user_version = 99", NULL, NULL, NULL), SQLITE_OK);
    sqlite3_close(db);
    assert_int_equal(open_store(h, &why), YK_VERSION);
    assert_non_null(strstr(why.text, "99"));
    assert_int_equal(sqlite3_open(h->path, &db), SQLITE_OK);
    /* And an older one is brought forward: this is what schema 2 was. */
    assert_int_equal(sqlite3_exec(db,
                         "ALTER TABLE models DROP COLUMN temporary; DROP VIEW v_agents; ALTER TABLE agents DROP COLUMN "
                         "mode; ALTER TABLE agents DROP COLUMN reason; "
                         "CREATE VIEW v_agents AS SELECT id FROM agents; "
                         "DROP VIEW v_epochs; DROP TABLE epochs; DROP VIEW v_events; DROP VIEW v_spans; DROP TABLE "
                         "spans; DROP VIEW v_steps; DROP VIEW "
                         "v_checkpoints; DROP TABLE "
                         "steps; DROP TABLE checkpoints; "
                         "ALTER TABLE jobs DROP COLUMN deaths; PRAGMA user_version = 2",
                         NULL, NULL, NULL),
        SQLITE_OK);
    sqlite3_close(db);
    assert_int_equal(open_store(h, NULL), YK_OK);
    outside(h, "SELECT count(*) FROM pragma_table_info('jobs') WHERE name = 'deaths'", text, sizeof(text));
    assert_string_equal(text, "1");
}

static void not_a_database(void **state)
{
    struct here *h = *state;
    struct here other = *h;
    struct yk_diag why = {0};
    snprintf(other.path, sizeof(other.path), "%s/text.db", h->dir);
    FILE *f = fopen(other.path, "w");
    for (int i = 0; i < 500; i++)
        fputs("this is a letter, not a database\n", f);
    fclose(f);
    other.s = NULL;
    assert_int_not_equal(open_store(&other, &why), YK_OK);
    assert_non_null(strstr(why.text, other.path));
    snprintf(other.path, sizeof(other.path), "%s/none/yoke.db", h->dir);
    assert_int_not_equal(open_store(&other, &why), YK_OK);
    assert_null(other.s);
}

/* Every listing has exactly the columns that columns.h names, in that order. */
static void views_keep_their_columns(void **state)
{
    struct here *h = *state;
    sqlite3 *db = NULL;
    assert_int_equal(sqlite3_open_v2(h->path, &db, SQLITE_OPEN_READONLY, NULL), SQLITE_OK);
    for (const struct columns *c = columns_all; c->listing; c++) {
        char sql[96];
        sqlite3_stmt *st = NULL;
        snprintf(sql, sizeof(sql), "SELECT * FROM %s", c->view);
        assert_int_equal(sqlite3_prepare_v2(db, sql, -1, &st, NULL), SQLITE_OK);
        assert_int_equal(sqlite3_column_count(st), c->n);
        for (int i = 0; i < c->n; i++)
            assert_string_equal(sqlite3_column_name(st, i), c->at[i].name);
        sqlite3_finalize(st);
        assert_ptr_equal(columns_find(c->listing), c);
    }
    sqlite3_close(db);
    assert_null(columns_find("nothing"));
}

static void expect_kinds(const struct json *row, const char *name)
{
    const struct columns *c = columns_find(name);
    assert_int_equal(json_len(row), c->n);
    for (int i = 0; i < c->n; i++) {
        assert_string_equal(json_key(row, (size_t)i), c->at[i].name);
        enum json_kind k = json_kind(json_value(row, (size_t)i));
        if (k == JSON_NULL)
            continue;
        if (c->at[i].kind == COLUMN_TEXT)
            assert_int_equal(k, JSON_STRING);
        else if (c->at[i].kind == COLUMN_INT)
            assert_int_equal(k, JSON_INT);
        else if (c->at[i].kind == COLUMN_BOOL)
            assert_int_equal(k, JSON_BOOL);
        else
            assert_true(k == JSON_REAL || k == JSON_INT);
    }
}

static void agents_and_links(void **state)
{
    struct here *h = *state;
    struct store_agent a = agent("0000000000000000000000000000000a", "pc");
    struct store_agent b = agent("0000000000000000000000000000000b", "phone \"x\"\n");
    store_put_agent(h->s, &a);
    store_put_agent(h->s, &b);
    a.gflops = 3;
    store_put_agent(h->s, &a);
    struct store_link l = {.from = a.id,
        .to = b.id,
        .duplex = "half",
        .origin = "measured",
        .url = "mem://b",
        .text = "",
        .bytes_per_s = 4e7,
        .latency_ms = 0.5,
        .cpu_ns_per_byte = 1};
    store_put_link(h->s, &l);
    struct json *doc = listing(h, "agents", 0);
    assert_int_equal(json_len(doc), 2);
    const struct json *row = json_at(doc, 0);
    expect_kinds(row, "agents");
    assert_string_equal(json_str(json_find(row, "name"), ""), "pc");
    assert_true(json_f64(json_find(row, "gflops"), 0) == 3);
    assert_int_equal(json_kind(json_find(row, "battery_frac")), JSON_NULL);
    assert_int_equal(json_kind(json_find(row, "gbytes_per_s")), JSON_NULL);
    assert_true(json_bool(json_find(row, "emulated"), false));
    assert_string_equal(json_str(json_find(json_at(doc, 1), "name"), ""), "phone \"x\"\n");
    json_free(doc);
    doc = listing(h, "links", 0);
    assert_int_equal(json_len(doc), 1);
    expect_kinds(json_at(doc, 0), "links");
    assert_string_equal(json_str(json_find(json_at(doc, 0), "from_agent"), ""), "pc");
    json_free(doc);
    assert_int_equal(h->errors, 0);
    /* After a restart nobody is believed to be here. */
    again(h);
    doc = listing(h, "agents", 0);
    assert_string_equal(json_str(json_find(json_at(doc, 0), "state"), ""), "away");
    json_free(doc);
}

/* A device whose identity was wiped joins under its old name. */
static void name_of_a_new_identity(void **state)
{
    struct here *h = *state;
    struct store_agent a = agent("0000000000000000000000000000000a", "pc");
    struct store_agent b = agent("0000000000000000000000000000000b", "pc");
    store_put_agent(h->s, &a);
    again(h);
    store_put_agent(h->s, &b);
    struct json *doc = listing(h, "agents", 0);
    assert_int_equal(h->errors, 0);
    bool seen = false;
    for (size_t i = 0; i < json_len(doc); i++)
        seen = seen || strcmp(json_str(json_find(json_at(doc, i), "agent"), ""), b.id) == 0;
    assert_true(seen);
    json_free(doc);
}

static struct store_job found;
static uint8_t found_map[8];
static char found_state[32], found_forms[64];
static int n_found;

static void on_job(void *arg, const struct store_job *j)
{
    (void)arg;
    found = *j;
    memcpy(found_map, j->done_map, YK_MIN(j->done_map_len, sizeof(found_map)));
    snprintf(found_state, sizeof(found_state), "%s", j->state);
    snprintf(found_forms, sizeof(found_forms), "%s", j->forms);
    n_found++;
}

static void jobs_survive(void **state)
{
    struct here *h = *state;
    struct store_job j = job(7, "running"), done = job(8, "done");
    store_put_job(h->s, &j);
    store_put_job(h->s, &done);
    settle(h);
    again(h);
    n_found = 0;
    store_load_jobs(h->s, on_job, NULL);
    assert_int_equal(n_found, 1);
    assert_int_equal(found.id, 7);
    assert_int_equal(found.samples, 100);
    assert_int_equal(found.microbatch, 8);
    assert_int_equal(found.done_map_len, 2);
    assert_int_equal(found_map[0], 0xff);
    assert_int_equal(found_map[1], 0x01);
    assert_string_equal(found_state, "running");
    assert_string_equal(found_forms, "[\"ref@generic\"]");
    assert_int_equal(store_last_id(h->s, "jobs"), 8);
    struct json *doc = listing(h, "jobs", 7);
    assert_int_equal(json_len(doc), 1);
    expect_kinds(json_at(doc, 0), "jobs");
    assert_true(json_f64(json_find(json_at(doc, 0), "accuracy"), 0) == 0.5);
    assert_true(json_f64(json_find(json_at(doc, 0), "images_per_s"), 0) == 72);
    assert_string_equal(json_str(json_find(json_at(doc, 0), "created_at"), ""), "2023-11-14T22:13:20.000Z");
    assert_int_equal(json_kind(json_find(json_at(doc, 0), "ended_at")), JSON_NULL);
    json_free(doc);
}

static void events_by_cursor(void **state)
{
    struct here *h = *state;
    struct json *doc = NULL;
    for (int i = 1; i <= 5; i++)
        store_put_event(h->s, i, i == 3 ? 2 : 1, 1700000000000 + i, "state", i == 5 ? "a \"quoted\" \xff text" : "x");
    store_events(h->s, 1, 2, on_json, h);
    settle(h);
    assert_int_equal(json_parse(h->json, strlen(h->json), &doc, NULL), YK_OK);
    assert_int_equal(json_len(json_find(doc, "events")), 2);
    assert_int_equal(json_i64(json_find(doc, "cursor"), 0), 5);
    json_free(doc);
    store_events(h->s, 1, 5, on_json, h);
    settle(h);
    assert_int_equal(json_parse(h->json, strlen(h->json), &doc, NULL), YK_OK);
    assert_int_equal(json_len(json_find(doc, "events")), 0);
    assert_int_equal(json_i64(json_find(doc, "cursor"), 0), 5);
    json_free(doc);
}

static void plans_and_accuracy(void **state)
{
    struct here *h = *state;
    struct store_plan p = {.id = 1,
        .job = 7,
        .microbatch = 8,
        .batch = 64,
        .pipelines = 1,
        .stages = 2,
        .model = "mnist",
        .graph_hash = "00",
        .reason = "first",
        .objective = "throughput",
        .plan = "{\"model\":\"mnist\"}",
        .bottleneck = "agent pc",
        .step_ms = 100,
        .cost_ms = 90,
        .bound_ms = 90,
        .gap = 0,
        .best_single_ms = NAN};
    struct store_stage_time t = {.job = 7,
        .plan = 1,
        .pipeline = 0,
        .stage = 1,
        .microbatches = 4,
        .agent = "pc",
        .class_name = "cloud",
        .compute_ms = 2000,
        .wait_ms = 1,
        .send_ms = 2,
        .codec_error = 0};
    store_put_plan(h->s, &p);
    store_put_stage(h->s, 1, 0, 0, "pc", "0-3", 5, 100);
    store_put_stage(h->s, 1, 0, 1, "phone", "4-7", 5, 100);
    store_put_stage_time(h->s, &t);
    store_put_measured(h->s, 1, 110, 12);
    static const char *const all[] = {"plans", "stages", "stage_times", "plan_accuracy", "cloud_seconds"};
    for (size_t i = 0; i < YK_COUNT(all); i++) {
        struct json *doc = listing(h, all[i], 0);
        assert_true(json_len(doc) >= 1);
        expect_kinds(json_at(doc, 0), all[i]);
        json_free(doc);
    }
    char text[64];
    outside(h, "SELECT round(ratio, 3) FROM v_plan_accuracy", text, sizeof(text));
    assert_string_equal(text, "1.1");
    outside(h, "SELECT cloud_s FROM v_cloud_seconds", text, sizeof(text));
    assert_string_equal(text, "2.0");
    outside(h, "SELECT measured_ms FROM v_stages WHERE stage = 1", text, sizeof(text));
    assert_string_equal(text, "500.0");
    store_plan_of(h->s, 7, on_json, h);
    settle(h);
    assert_int_equal(h->json_err, YK_OK);
    assert_string_equal(h->json, "{\"model\":\"mnist\"}");
    store_plan_of(h->s, 1234, on_json, h);
    settle(h);
    assert_int_equal(h->json_err, YK_NOTFOUND);
}

static int n_times;
static double sum_ms;
static void on_time(void *arg, const struct store_time *t)
{
    (void)arg;
    n_times++;
    sum_ms += t->ms;
}

static void profiles(void **state)
{
    struct here *h = *state;
    struct store_time rows[] = {
        {1, "ref@generic", 4, 2, 0, 0, 0}, {0, "blas@x", 1, 1, 0, 0, 0}, {0, "ref@generic", 1, 3, 0, 0, 0}};
    store_put_profile(h->s, "graph", "agent", "ref,blas", rows, 3);
    settle(h);
    again(h);
    n_times = 0;
    sum_ms = 0;
    store_load_profile(h->s, "graph", "agent", "ref,blas", on_time, NULL);
    assert_int_equal(n_times, 3);
    assert_true(sum_ms == 6);
    store_load_profile(h->s, "graph", "agent", "other", on_time, NULL);
    assert_int_equal(n_times, 3);
}

/* History beyond its limit goes, running jobs stay. */
static void history_is_bounded(void **state)
{
    struct here *h = *state;
    store_close(h->s);
    struct store_config c = {.net = h->net, .path = h->path, .history_rows = 100, .on_error = on_error, .arg = h};
    assert_int_equal(store_open(&c, &h->s, NULL), YK_OK);
    struct store_job old = job(1, "running");
    store_put_job(h->s, &old);
    for (int i = 2; i < 4300; i++) {
        store_put_event(h->s, i, 1, 1700000000000, "state", "x");
        if (i % 10 == 0) {
            struct store_job j = job(i, "done");
            j.ended_ms = j.created_ms;
            store_put_job(h->s, &j);
        }
        if (i % 500 == 0)
            settle(h);
    }
    settle(h);
    char text[64];
    outside(h, "SELECT count(*) FROM job_events", text, sizeof(text));
    assert_true(atoi(text) < 2500);
    outside(h, "SELECT count(*) FROM jobs WHERE state = 'running'", text, sizeof(text));
    assert_string_equal(text, "1");
    assert_int_equal(h->errors, 0);
}

/* Rows of history go, their numbers do not come again: an old client's number never means another job. */
static void numbers_are_not_given_again(void **state)
{
    struct here *h = *state;
    struct store_job j = job(41, "done");
    j.ended_ms = j.created_ms; /* in 2023 */
    store_put_job(h->s, &j);
    store_put_event(h->s, 17, 41, j.created_ms, "state", "x");
    settle(h);
    again(h);
    settle(h);
    char text[64];
    outside(h, "SELECT count(*) FROM jobs", text, sizeof(text));
    assert_string_equal(text, "0");
    outside(h, "SELECT count(*) FROM job_events", text, sizeof(text));
    assert_string_equal(text, "0");
    assert_int_equal(store_last_id(h->s, "jobs"), 41);
    assert_int_equal(store_last_id(h->s, "job_events"), 17);
    assert_int_equal(store_last_id(h->s, "plans"), 0);
    assert_int_equal(store_last_id(h->s, "models"), 0);
}

static void file_slots(void **state)
{
    struct here *h = *state;
    char path[128], got[8] = "";
    snprintf(path, sizeof(path), "%s/out", h->dir);
    store_write_file(h->s, 1, path, 4, "EFGH", 4);
    store_write_file(h->s, 1, path, 0, "ABCD", 4);
    settle(h);
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    assert_int_equal(fread(got, 1, 8, f), 8);
    fclose(f);
    assert_memory_equal(got, "ABCDEFGH", 8);
    snprintf(path, sizeof(path), "%s/none/out", h->dir);
    store_write_file(h->s, 5, path, 0, "x", 1);
    settle(h);
    assert_int_equal(h->errors, 1);
    assert_non_null(strstr(h->text, "none/out"));
}

static void full_disk(void **state)
{
    struct here *h = *state;
    store_write_file(h->s, 9, "/dev/full", 0, "x", 1);
    settle(h);
    assert_int_equal(h->errors, 1);
    assert_int_equal(h->err, YK_NOSPC);
    assert_non_null(strstr(h->text, "No space left"));
}

static int64_t wal_bytes(const struct here *h)
{
    char path[128];
    struct stat st;
    snprintf(path, sizeof(path), "%s-wal", h->path);
    return stat(path, &st) == 0 ? st.st_size : 0;
}

static void write_events(struct here *h, int64_t from, int n)
{
    char text[600];
    memset(text, 'x', sizeof(text) - 1);
    text[sizeof(text) - 1] = 0;
    for (int i = 0; i < n; i++)
        store_put_event(h->s, from + i, 1, 1700000000000, "state", text);
    settle(h);
}

/* A reader that never ends its transaction keeps the log from shrinking: the cause is said. */
static void log_is_bounded(void **state)
{
    struct here *h = *state;
    char path[128], line[1024] = "";
    store_close(h->s);
    struct store_config c = {
        .net = h->net, .path = h->path, .wal_limit_bytes = 1 << 20, .on_error = on_error, .arg = h};
    assert_int_equal(store_open(&c, &h->s, NULL), YK_OK);
    write_events(h, 1, 4000);
    assert_true(wal_bytes(h) < 16 << 20);
    sqlite3 *db = NULL;
    assert_int_equal(sqlite3_open_v2(h->path, &db, SQLITE_OPEN_READONLY, NULL), SQLITE_OK);
    assert_int_equal(sqlite3_exec(db, "BEGIN; SELECT count(*) FROM job_events", NULL, NULL, NULL), SQLITE_OK);
    snprintf(path, sizeof(path), "%s/log", h->dir);
    assert_int_equal(log_open("test", LOG_WARN, path, NULL), YK_OK);
    write_events(h, 10000, 2000);
    log_close();
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    assert_non_null(fgets(line, sizeof(line), f));
    assert_non_null(strstr(line, "read transaction"));
    assert_null(fgets(line, sizeof(line), f)); /* once, not at each write */
    fclose(f);
    sqlite3_exec(db, "END", NULL, NULL, NULL);
    sqlite3_close(db);
    write_events(h, 20000, 1000);
    assert_true(wal_bytes(h) <= 8 << 20);
    assert_int_equal(h->errors, 0);
}

static void flushed(void *arg)
{
    *(bool *)arg = true;
}

/* flush answers after what was posted before. */
static void flush_is_last(void **state)
{
    struct here *h = *state;
    bool done = false;
    struct store_agent a = agent("0000000000000000000000000000000a", "pc");
    store_put_agent(h->s, &a);
    store_flush(h->s, flushed, &done);
    assert_false(done);
    settle(h);
    assert_true(done);
    char text[64];
    outside(h, "SELECT name FROM v_agents", text, sizeof(text));
    assert_string_equal(text, "pc");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(term_rises, setup, teardown),
        cmocka_unit_test_setup_teardown(second_daemon_is_refused, setup, teardown),
        cmocka_unit_test_setup_teardown(schema_has_its_version, setup, teardown),
        cmocka_unit_test_setup_teardown(older_schema_goes_on, setup, teardown),
        cmocka_unit_test_setup_teardown(newer_schema_is_refused, setup, teardown),
        cmocka_unit_test_setup_teardown(steps_and_checkpoints, setup, teardown),
        cmocka_unit_test_setup_teardown(spans_make_a_picture, setup, teardown),
        cmocka_unit_test_setup_teardown(spans_make_a_picture, setup, teardown),
        cmocka_unit_test_setup_teardown(not_a_database, setup, teardown),
        cmocka_unit_test_setup_teardown(views_keep_their_columns, setup, teardown),
        cmocka_unit_test_setup_teardown(agents_and_links, setup, teardown),
        cmocka_unit_test_setup_teardown(name_of_a_new_identity, setup, teardown),
        cmocka_unit_test_setup_teardown(jobs_survive, setup, teardown),
        cmocka_unit_test_setup_teardown(events_by_cursor, setup, teardown),
        cmocka_unit_test_setup_teardown(plans_and_accuracy, setup, teardown),
        cmocka_unit_test_setup_teardown(profiles, setup, teardown),
        cmocka_unit_test_setup_teardown(history_is_bounded, setup, teardown),
        cmocka_unit_test_setup_teardown(numbers_are_not_given_again, setup, teardown),
        cmocka_unit_test_setup_teardown(file_slots, setup, teardown),
        cmocka_unit_test_setup_teardown(full_disk, setup, teardown),
        cmocka_unit_test_setup_teardown(log_is_bounded, setup, teardown),
        cmocka_unit_test_setup_teardown(flush_is_last, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
