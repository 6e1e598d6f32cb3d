#include "scheduler/store.h"

#include "common/log.h"
#include "common/worker.h"
#include "scheduler/store_sql.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define WAL_LIMIT_BYTES ((int64_t)64 << 20)
#define CHECKPOINT_PAGES 1000
#define TRIM_EVERY 2000 /* history writes between two trims */

int64_t store_term(const struct store *s)
{
    return s->term;
}

/* ---- open and close ---- */

static yk_err take_lock(struct store *s, struct yk_diag *why)
{
    char *path = yk_xasprintf("%s.lock", s->config.path);
    yk_err err = YK_OK;
    s->lock_fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (s->lock_fd < 0) {
        err = yk_fail(why, yk_err_from_errno(errno), "cannot open %s: %s", path, strerror(errno));
    } else if (flock(s->lock_fd, LOCK_EX | LOCK_NB) != 0) {
        char pid[24] = "";
        ssize_t n = pread(s->lock_fd, pid, sizeof pid - 1, 0);
        pid[n > 0 ? n : 0] = '\0';
        pid[strcspn(pid, "\n")] = '\0';
        err = yk_fail(why, YK_BUSY,
            "another yoked (pid %s) has the database %s: stop it, or give this one another --db", pid, s->config.path);
    } else {
        char pid[24];
        int n = snprintf(pid, sizeof pid, "%ld\n", (long)getpid());
        if (ftruncate(s->lock_fd, 0) != 0 || pwrite(s->lock_fd, pid, (size_t)n, 0) != n)
            err = yk_fail(why, yk_err_from_errno(errno), "cannot write %s: %s", path, strerror(errno));
    }
    free(path);
    return err;
}

static yk_err sql_error(struct store *s, int code, struct yk_diag *why)
{
    return yk_fail(
        why, store_error(code) ? store_error(code) : YK_IO, "database %s: %s", s->config.path, sqlite3_errmsg(s->db));
}

/* What becomes of images that a model is given. */
static const char models_preprocess[] =
    "ALTER TABLE models ADD COLUMN preprocess TEXT;"
    "DROP VIEW v_models;"
    "CREATE VIEW v_models AS "
    "SELECT name AS model, owner, graph_hash AS graph, bytes, nodes, weight_bytes, inputs, outputs, preprocess,"
    " strftime('%Y-%m-%dT%H:%M:%fZ', created_ms / 1000.0, 'unixepoch') AS created_at "
    "FROM models ORDER BY name;";

/* How often in a row yoked ended while it planned the job. */
static const char jobs_deaths[] = "ALTER TABLE jobs ADD COLUMN deaths INTEGER NOT NULL DEFAULT 0;";

/* Training: what each step gave, and the sets of parameters that it can go on from. */
static const char training[] =
    "CREATE TABLE steps (job INTEGER NOT NULL, step INTEGER NOT NULL, epoch INTEGER NOT NULL, samples INTEGER NOT NULL,"
    " correct INTEGER, plan INTEGER, loss REAL, ms REAL, at_ms INTEGER NOT NULL, PRIMARY KEY (job, step)) WITHOUT "
    "ROWID;"
    "CREATE TABLE checkpoints (job INTEGER NOT NULL, step INTEGER NOT NULL, bytes INTEGER NOT NULL,"
    " parts TEXT NOT NULL, at_ms INTEGER NOT NULL, PRIMARY KEY (job, step)) WITHOUT ROWID;"
    "CREATE VIEW v_steps AS SELECT job, step, epoch, samples,"
    " CASE WHEN correct >= 0 AND samples > 0 THEN CAST(correct AS REAL) / samples END AS accuracy, loss, ms, plan,"
    " strftime('%Y-%m-%dT%H:%M:%fZ', at_ms / 1000.0, 'unixepoch') AS at "
    "FROM steps ORDER BY job, step;"
    "CREATE VIEW v_checkpoints AS SELECT job, step, bytes,"
    " strftime('%Y-%m-%dT%H:%M:%fZ', at_ms / 1000.0, 'unixepoch') AS at "
    "FROM checkpoints ORDER BY job, step;";

/* What agents did in sampled steps. Times are of yoked's clock; the view counts from the step's first, and shows what
 * the newest plan did where a step was run again. */
static const char spans[] =
    "CREATE TABLE spans (id INTEGER PRIMARY KEY, job INTEGER NOT NULL, plan INTEGER NOT NULL, step INTEGER NOT NULL,"
    " agent TEXT NOT NULL, peer TEXT NOT NULL, stage INTEGER NOT NULL, what TEXT NOT NULL, microbatch INTEGER NOT NULL,"
    " begin_ms REAL NOT NULL, end_ms REAL NOT NULL, at_ms INTEGER NOT NULL);"
    "CREATE INDEX spans_step ON spans (job, step, plan, begin_ms);"
    "CREATE VIEW v_spans AS SELECT job, step, agent, nullif(peer, '') AS peer, stage, what, microbatch,"
    " begin_ms - (SELECT min(begin_ms) FROM spans f WHERE f.job = s.job AND f.step = s.step AND f.plan = s.plan) AS"
    " begin_ms,"
    " end_ms - (SELECT min(begin_ms) FROM spans f WHERE f.job = s.job AND f.step = s.step AND f.plan = s.plan) AS "
    "end_ms,"
    " plan "
    "FROM spans s WHERE plan = (SELECT max(plan) FROM spans n WHERE n.job = s.job AND n.step = s.step) "
    "ORDER BY job, step, s.begin_ms;";

/* What happened to jobs, and why. */
static const char events[] = "CREATE VIEW v_events AS SELECT id AS event, job, strftime('%Y-%m-%dT%H:%M:%fZ', at_ms / "
                             "1000.0, 'unixepoch') AS at,"
                             " kind, text FROM job_events ORDER BY id;";

/* Training: what each epoch has made, judged on samples that were held out. */
static const char epochs[] =
    "CREATE TABLE epochs (job INTEGER NOT NULL, epoch INTEGER NOT NULL, samples INTEGER NOT NULL, correct INTEGER,"
    " loss REAL, ms REAL, at_ms INTEGER NOT NULL, PRIMARY KEY (job, epoch)) WITHOUT ROWID;"
    "CREATE VIEW v_epochs AS SELECT job, epoch, samples, loss AS validation_loss,"
    " CASE WHEN correct >= 0 AND samples > 0 THEN CAST(correct AS REAL) / samples END AS validation_accuracy, ms,"
    " strftime('%Y-%m-%dT%H:%M:%fZ', at_ms / 1000.0, 'unixepoch') AS at "
    "FROM epochs ORDER BY job, epoch;";

/* Whether a device is warm or rests, and why. */
static const char agents_mode[] =
    "ALTER TABLE agents ADD COLUMN mode TEXT NOT NULL DEFAULT 'full';"
    "ALTER TABLE agents ADD COLUMN reason TEXT NOT NULL DEFAULT '';"
    "DROP VIEW v_agents;"
    "CREATE VIEW v_agents AS "
    "SELECT id AS agent, name, class, state, CASE state WHEN 'alive' THEN mode END AS mode, backends, cores, threads, "
    "memory_bytes,"
    " memory_available_bytes, gflops, gbytes_per_s, heat, temperature_celsius, battery_frac, emulated, slow_factor,"
    " strftime('%Y-%m-%dT%H:%M:%fZ', last_seen_ms / 1000.0, 'unixepoch') AS last_seen_at, jobs,"
    " CASE WHEN state = 'alive' AND mode <> 'full' THEN reason END AS reason "
    "FROM agents ORDER BY name;";

/* Models that go by themselves. */
static const char models_temporary[] = "ALTER TABLE models ADD COLUMN temporary INTEGER NOT NULL DEFAULT 0;";

/* Steps are shown from 1, as the command and events count them; tables count from 0. */
static const char steps_from_one[] =
    "DROP VIEW v_steps;"
    "CREATE VIEW v_steps AS SELECT job, step + 1 AS step, epoch, samples,"
    " CASE WHEN correct >= 0 AND samples > 0 THEN CAST(correct AS REAL) / samples END AS accuracy, loss, ms, plan,"
    " strftime('%Y-%m-%dT%H:%M:%fZ', at_ms / 1000.0, 'unixepoch') AS at "
    "FROM steps ORDER BY job, step;"
    "DROP VIEW v_spans;"
    "CREATE VIEW v_spans AS SELECT job, step + 1 AS step, agent, nullif(peer, '') AS peer, stage, what, microbatch,"
    " begin_ms - (SELECT min(begin_ms) FROM spans f WHERE f.job = s.job AND f.step = s.step AND f.plan = s.plan) AS"
    " begin_ms,"
    " end_ms - (SELECT min(begin_ms) FROM spans f WHERE f.job = s.job AND f.step = s.step AND f.plan = s.plan) AS "
    "end_ms,"
    " plan "
    "FROM spans s WHERE plan = (SELECT max(plan) FROM spans n WHERE n.job = s.job AND n.step = s.step) "
    "ORDER BY job, s.step, s.begin_ms;";

/* Forward migrations: entry i brings a database from user_version i to i + 1. */
static const char *const migrations[] = {store_schema_sql, models_preprocess, jobs_deaths, training, spans, events,
    epochs, agents_mode, models_temporary, steps_from_one};

static int64_t pragma_int(sqlite3 *db, const char *sql)
{
    sqlite3_stmt *st = NULL;
    int64_t v = -1;
    if (sqlite3_prepare_v2(db, sql, -1, &st, NULL) == SQLITE_OK && sqlite3_step(st) == SQLITE_ROW)
        v = sqlite3_column_int64(st, 0);
    sqlite3_finalize(st);
    return v;
}

static yk_err migrate(struct store *s, struct yk_diag *why)
{
    int64_t version = pragma_int(s->db, "PRAGMA user_version");
    if (version < 0)
        return yk_fail(why, YK_FORMAT, "database %s: %s", s->config.path, sqlite3_errmsg(s->db));
    if (version > (int64_t)YK_COUNT(migrations))
        return yk_fail(why, YK_VERSION, "database %s has schema %lld, this yoked knows up to %zu: use a newer yoked",
            s->config.path, (long long)version, YK_COUNT(migrations));
    for (; version < (int64_t)YK_COUNT(migrations); version++) {
        char set[64];
        snprintf(set, sizeof set, "PRAGMA user_version = %lld", (long long)version + 1);
        int code = sqlite3_exec(s->db, "BEGIN IMMEDIATE", NULL, NULL, NULL);
        if (code == SQLITE_OK)
            code = sqlite3_exec(s->db, migrations[version], NULL, NULL, NULL);
        if (code == SQLITE_OK)
            code = sqlite3_exec(s->db, set, NULL, NULL, NULL);
        if (code == SQLITE_OK)
            code = sqlite3_exec(s->db, "COMMIT", NULL, NULL, NULL);
        if (code != SQLITE_OK) {
            yk_err err = sql_error(s, code, why);
            sqlite3_exec(s->db, "ROLLBACK", NULL, NULL, NULL);
            return err;
        }
    }
    return YK_OK;
}

/* After each commit: moves the log into the database, and says why if it cannot become shorter. */
static int on_commit(void *arg, sqlite3 *db, const char *name, int pages)
{
    struct store *s = arg;
    int in_log = pages, moved = pages;
    if (pages < CHECKPOINT_PAGES && pages * (int64_t)4096 <= s->wal_limit_bytes)
        return SQLITE_OK;
    sqlite3_wal_checkpoint_v2(db, name, SQLITE_CHECKPOINT_PASSIVE, &in_log, &moved);
    int64_t bytes = in_log * (int64_t)4096, now = (int64_t)time(NULL);
    if (bytes > s->wal_limit_bytes && moved < in_log && now - s->wal_warned_s >= 60) {
        s->wal_warned_s = now;
        log_warn("database %s: its write-ahead log has %lld MB, over the limit of %lld MB: another program keeps a "
                 "read transaction open; end it",
            s->config.path, (long long)(bytes >> 20), (long long)(s->wal_limit_bytes >> 20));
    }
    return SQLITE_OK;
}

static yk_err open_db(struct store *s, struct yk_diag *why)
{
    char setup[256];
    s->wal_limit_bytes = s->config.wal_limit_bytes ? s->config.wal_limit_bytes : WAL_LIMIT_BYTES;
    snprintf(setup, sizeof setup,
        "PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL; PRAGMA foreign_keys = ON;"
        "PRAGMA journal_size_limit = %lld;",
        (long long)s->wal_limit_bytes);
    int code =
        sqlite3_open_v2(s->config.path, &s->db, SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOMUTEX, NULL);
    if (code != SQLITE_OK)
        return sql_error(s, code, why);
    sqlite3_busy_timeout(s->db, 5000);
    if (pragma_int(s->db, "PRAGMA user_version") == 0 && pragma_int(s->db, "SELECT count(*) FROM sqlite_master") > 0)
        return yk_fail(
            why, YK_FORMAT, "%s is a database of another program: give --db=FILE of its own", s->config.path);
    if ((code = sqlite3_exec(s->db, setup, NULL, NULL, NULL)) != SQLITE_OK)
        return sql_error(s, code, why);
    sqlite3_wal_hook(s->db, on_commit, s);
    yk_err err = migrate(s, why);
    if (err)
        return err;
    code = sqlite3_exec(s->db,
        "INSERT INTO meta VALUES ('term', 1) ON CONFLICT(key) DO UPDATE SET value = value + 1;"
        "UPDATE agents SET state = 'away', jobs = 0;",
        NULL, NULL, NULL);
    if (code != SQLITE_OK)
        return sql_error(s, code, why);
    s->term = pragma_int(s->db, "SELECT value FROM meta WHERE key = 'term'");
    code = sqlite3_open_v2(s->config.path, &s->reader, SQLITE_OPEN_READONLY | SQLITE_OPEN_NOMUTEX, NULL);
    if (code != SQLITE_OK)
        return sql_error(s, code, why);
    sqlite3_busy_timeout(s->reader, 5000);
    return YK_OK;
}

yk_err store_open(const struct store_config *c, struct store **out, struct yk_diag *why)
{
    struct store *s = yk_xalloc(sizeof *s);
    s->config = *c;
    s->config.path = yk_xstrdup(c->path);
    s->lock_fd = -1;
    yk_err err = take_lock(s, why);
    if (!err)
        err = open_db(s, why);
    if (!err)
        err = worker_open(c->net, "store", c->threaded, &s->worker, why);
    if (err) {
        store_close(s);
        return err;
    }
    worker_post(s->worker, store_trim, NULL, s);
    *out = s;
    return YK_OK;
}

void store_close(struct store *s)
{
    if (!s)
        return;
    if (s->worker)
        worker_close(s->worker);
    for (size_t i = 0; i < STORE_SQL_COUNT; i++)
        sqlite3_finalize(s->stmts[i]);
    sqlite3_close(s->reader);
    sqlite3_close(s->db);
    if (s->lock_fd >= 0)
        close(s->lock_fd);
    free((char *)s->config.path);
    free(s);
}
