/* What store.c, store_write.c and store_read.c share: the statements, one a row, and the open database. Private to
 * store*.c. */
#ifndef YK_STORE_SQL_H
#define YK_STORE_SQL_H

#include "scheduler/store.h"

#include <sqlite3.h>

/* clang-format off */
#define STORE_SQL(X) \
    X(AGENT, "INSERT INTO agents (id, name, class, os, state, backends, cores, threads, memory_bytes, memory_available_bytes, " \
             "gflops, gbytes_per_s, heat, temperature_celsius, battery_frac, charging, load, slow_factor, emulated, jobs, " \
             "first_seen_ms, last_seen_ms, mode, reason) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, " \
             "?17, ?18, ?19, ?20, ?21, ?21, ?22, ?23) ON CONFLICT(id) DO UPDATE SET name = ?2, class = ?3, os = ?4, state = ?5, " \
             "backends = ?6, cores = ?7, threads = ?8, memory_bytes = ?9, memory_available_bytes = ?10, gflops = ?11, " \
             "gbytes_per_s = ?12, heat = ?13, temperature_celsius = ?14, battery_frac = ?15, charging = ?16, load = ?17, " \
             "slow_factor = ?18, emulated = ?19, jobs = ?20, last_seen_ms = ?21, mode = ?22, " \
             "reason = ?23") \
    X(LINK, "INSERT OR REPLACE INTO links (from_agent, to_agent, bytes_per_s, latency_ms, duplex, cpu_ns_per_byte, origin, " \
            "url, text, measured_ms) VALUES (?1, ?2, coalesce(?3, 0), ?4, ?5, ?6, ?7, ?8, ?9, ?10)") \
    X(MODEL, "INSERT OR REPLACE INTO models (id, name, graph_hash, blob_hash, bytes, nodes, weight_bytes, inputs, outputs, " \
             "created_ms, preprocess, temporary) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, nullif(?11, ''), ?12)") \
    X(BLOB, "INSERT OR REPLACE INTO blobs (hash, file, at, bytes) VALUES (?1, ?2, ?3, ?4)") \
    X(MODEL_REMOVE, "DELETE FROM models WHERE name = ?1") \
    X(OUTPUTS_REMOVE, "UPDATE jobs SET outputs = '' WHERE id = ?1") \
    X(BLOB_REMOVE, "DELETE FROM blobs WHERE file = ?1") \
    X(PROFILE, "INSERT OR REPLACE INTO profiles (graph_hash, agent, backends, node, form, size, ms, prepare_ms, " \
               "packed_bytes, workspace_bytes, measured_ms) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11)") \
    X(JOB, "INSERT OR REPLACE INTO jobs (id, kind, model, graph_hash, state, objective, request, source, batch, microbatch, " \
           "samples, done, done_map, labelled, correct, outputs, forms, run_ms, replans, plan, error, created_ms, " \
           "started_ms, ended_ms, deaths) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, " \
           "?19, ?20, ?21, ?22, ?23, ?24, ?25)") \
    X(EVENT, "INSERT OR REPLACE INTO job_events (id, job, at_ms, kind, text) VALUES (?1, ?2, ?3, ?4, ?5)") \
    X(PLAN, "INSERT OR REPLACE INTO plans (id, job, model, graph_hash, reason, objective, plan, given, microbatch, batch, " \
            "pipelines, stages, step_ms, cost_ms, bound_ms, gap, bottleneck, best_single, best_single_ms, created_ms) " \
            "VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19, ?20)") \
    X(STAGE, "INSERT OR REPLACE INTO stages (plan, pipeline, stage, agent, nodes, predicted_ms, memory_bytes) " \
             "VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)") \
    X(MEASURED, "UPDATE plans SET measured_step_ms = ?1, measured_batches = ?2 WHERE id = ?3") \
    X(STAGE_TIME, "INSERT INTO stage_times (at_ms, job, plan, pipeline, stage, agent, class, microbatches, compute_ms, " \
                  "wait_ms, sent_bytes, send_ms, codec_error, nonfinite, late) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, " \
                  "?10, ?11, ?12, ?13, ?14, ?15)") \
    X(EPOCH, "INSERT OR REPLACE INTO epochs (job, epoch, samples, correct, loss, ms, at_ms) VALUES (?1, ?2, ?3, ?4, " \
             "?5, ?6, ?7)") \
    X(STEP, "INSERT OR REPLACE INTO steps (job, step, epoch, samples, correct, plan, loss, ms, at_ms) VALUES (?1, ?2, ?3, ?4, " \
            "?5, ?6, ?7, ?8, ?9)") \
    X(SPAN, "INSERT INTO spans (job, plan, step, agent, peer, stage, what, microbatch, begin_ms, end_ms, at_ms) VALUES (?1, " \
            "?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11)") \
    X(CHECKPOINT, "INSERT OR REPLACE INTO checkpoints (job, step, bytes, parts, at_ms) VALUES (?1, ?2, ?3, ?4, ?5)") \
    X(CHECKPOINT_REMOVE, "DELETE FROM checkpoints WHERE job = ?1 AND step >= ?2 AND step < ?3") \
    X(TRIM_STEPS, "DELETE FROM steps WHERE at_ms < ?1 OR (job, step) < (SELECT job, step FROM steps ORDER BY job DESC, " \
                  "step DESC LIMIT 1 OFFSET ?2)") \
    X(TRIM_EPOCHS, "DELETE FROM epochs WHERE at_ms < ?1 OR (job, epoch) < (SELECT job, epoch FROM epochs ORDER BY job DESC, " \
                   "epoch DESC LIMIT 1 OFFSET ?2)") \
    X(TRIM_SPANS, "DELETE FROM spans WHERE at_ms < ?1 OR id <= (SELECT max(id) FROM spans) - ?2") \
    X(TRIM_EVENTS, "DELETE FROM job_events WHERE at_ms < ?1 OR id <= (SELECT max(id) FROM job_events) - ?2") \
    X(TRIM_TIMES, "DELETE FROM stage_times WHERE at_ms < ?1 OR id <= (SELECT max(id) FROM stage_times) - ?2") \
    X(TRIM_STAGES, "DELETE FROM stages WHERE plan IN (SELECT id FROM plans WHERE created_ms < ?1 OR " \
                   "id <= (SELECT max(id) FROM plans) - ?2)") \
    X(TRIM_PLANS, "DELETE FROM plans WHERE created_ms < ?1 OR id <= (SELECT max(id) FROM plans) - ?2") \
    X(TRIM_JOBS, "DELETE FROM jobs WHERE state IN ('done', 'failed', 'canceled') AND (ended_ms < ?1 OR " \
                 "id <= (SELECT max(id) FROM jobs) - ?2)") \
    X(TRIM_AGENTS, "DELETE FROM agents WHERE state = 'away' AND (last_seen_ms < ?1 OR (SELECT count(*) FROM agents) > ?2)") \
    X(TRIM_LINKS, "DELETE FROM links WHERE from_agent NOT IN (SELECT id FROM agents) OR " \
                  "to_agent NOT IN (SELECT id FROM agents)") \
    X(TRIM_PROFILES, "DELETE FROM profiles WHERE agent NOT IN (SELECT id FROM agents) OR " \
                     "graph_hash NOT IN (SELECT graph_hash FROM models)")
/* clang-format on */

enum store_sql {
#define X(name, text) STORE_SQL_##name,
    STORE_SQL(X)
#undef X
        STORE_SQL_COUNT
};

struct store {
    struct store_config config;
    struct worker *worker;
    sqlite3 *db;     /* of the worker, after open */
    sqlite3 *reader; /* of the loop, for load_ functions */
    sqlite3_stmt *stmts[STORE_SQL_COUNT];
    int lock_fd;
    int64_t term;
    int history_writes;
    int64_t wal_limit_bytes, wal_warned_s;
};

/* SQLite's code as ours. */
yk_err store_error(int code);

/* Removes what is too old or too much from the history tables; arg: the store. Worker. */
void store_trim(void *arg);

extern const char store_schema_sql[]; /* schema.sql, made into C by the build */

#endif
