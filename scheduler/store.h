/* The database: the only module that knows SQL. WAL mode; a lock file refuses a second daemon; migrations run forward
 * by PRAGMA user_version. Everything but open and the load_ functions runs on the worker "store": writes are posted as
 * values and happen in order; a failed write comes back through on_error. */
#ifndef YK_STORE_H
#define YK_STORE_H

#include "common/net.h"

struct store;

struct store_config {
    struct net *net;
    const char *path; /* "DIR/yoke.db" */
    bool threaded;
    int64_t wal_limit_bytes; /* of the write-ahead log; 0: 64 MiB. Over it the cause is warned of. */
    int64_t history_days;    /* older events, stage times and finished jobs' plans are removed; 0: 30 */
    int64_t history_rows;    /* per history table; 0: 200000 */
    void (*on_error)(void *arg, int64_t job, yk_err err, const char *text); /* on the loop; job 0: none */
    void *arg;
};

/* Errors: YK_BUSY (another yoked holds the lock: names the file and its pid), YK_VERSION (a newer schema), YK_PERM,
 * YK_IO. */
yk_err store_open(const struct store_config *c, struct store **out, struct yk_diag *why);
void store_close(struct store *s);         /* finishes posted writes */
int64_t store_term(const struct store *s); /* raised by this start */

/* ---- writes, fire and forget ---- */
struct store_agent {
    const char *id, *name, *class_name, *os, *state, *backends, *heat;
    const char *mode, *reason; /* whether it is warm or rests, and why; NULL: neither */
    int64_t cores, threads, memory_bytes, memory_available_bytes, jobs;
    double gflops, gbytes_per_s, temperature_celsius, battery_frac, load, slow_factor; /* NaN: NULL */
    bool charging, emulated;
};
void store_put_agent(struct store *s, const struct store_agent *a);
struct store_link {
    const char *from, *to, *duplex, *origin, *url, *text;
    double bytes_per_s, latency_ms, cpu_ns_per_byte;
};
void store_put_link(struct store *s, const struct store_link *l);
struct store_model {
    int64_t id;
    const char *name, *graph_hash, *blob_hash, *inputs, *outputs;
    const char *preprocess; /* JSON; NULL: none */
    int64_t bytes, nodes, weight_bytes;
    bool temporary;
};
void store_put_model(struct store *s, const struct store_model *m);
void store_put_blob(struct store *s, const char *hash, const char *file, int64_t at, int64_t bytes);
void store_remove_model(struct store *s, const char *name);
void store_remove_outputs(struct store *s, int64_t job);   /* what the job's row says of them */
void store_remove_blob(struct store *s, const char *file); /* everything that lies in it */
struct store_time {                                        /* one row of an agent's profile of a graph */
    int32_t node;
    const char *form;
    int64_t size;
    double ms, prepare_ms;
    int64_t packed_bytes, workspace_bytes;
};
void store_put_profile(
    struct store *s, const char *graph, const char *agent, const char *backends, const struct store_time *rows, int n);
struct store_job {
    int64_t id, batch, microbatch, samples, done, labelled, correct, replans, plan, deaths;
    const char *kind, *model, *graph_hash, *state, *objective, *request, *source, *outputs, *error, *forms;
    const uint8_t *done_map;
    size_t done_map_len;
    double run_ms;
    int64_t created_ms, started_ms, ended_ms; /* 0: NULL */
};
void store_put_job(struct store *s, const struct store_job *j);
void store_put_event(struct store *s, int64_t id, int64_t job, int64_t at_ms, const char *kind, const char *text);
struct store_plan {
    int64_t id, job, microbatch, batch, pipelines, stages;
    const char *model, *graph_hash, *reason, *objective, *plan, *given, *bottleneck, *best_single;
    double step_ms, cost_ms, bound_ms, gap, best_single_ms;
};
void store_put_plan(struct store *s, const struct store_plan *p);
void store_put_stage(struct store *s, int64_t plan, int64_t pipeline, int64_t stage, const char *agent,
    const char *nodes, double predicted_ms, int64_t memory_bytes);
void store_put_measured(struct store *s, int64_t plan, double step_ms, double batches);
struct store_stage_time {
    int64_t job, plan, pipeline, stage, microbatches, sent_bytes, nonfinite, late;
    const char *agent, *class_name;
    double compute_ms, wait_ms, send_ms, codec_error;
};
void store_put_stage_time(struct store *s, const struct store_stage_time *t);
struct store_step {                                   /* of a training; the newest replaces what an undone one gave */
    int64_t job, step, epoch, samples, correct, plan; /* correct -1: not counted */
    double loss, ms;
};
void store_put_step(struct store *s, const struct store_step *t);
struct store_epoch {                      /* of a training: judged on what was held out; from 1 */
    int64_t job, epoch, samples, correct; /* correct -1: not counted */
    double loss, ms;
};
void store_put_epoch(struct store *s, const struct store_epoch *t);
struct store_span { /* of a sampled step; on yoked's clock */
    int64_t stage, microbatch;
    const char *what, *peer; /* peer: a name; "" */
    double begin_ms, end_ms;
};
void store_put_spans(
    struct store *s, int64_t job, int64_t plan, int64_t step, const char *agent, const struct store_span *rows, int n);
/* A complete set of parameters: training can go on with step `step`. parts: JSON. done(arg) on the loop when it is
 * durable (on_error came before it if it is not). */
void store_put_checkpoint(
    struct store *s, int64_t job, int64_t step, int64_t bytes, const char *parts, net_fn done, void *arg);
void store_remove_checkpoints(struct store *s, int64_t job, int64_t from, int64_t before); /* of steps from..before-1 */
/* Bytes into a file at an offset (outputs by sample), in order with the rows that say they are there. data is copied.
 */
void store_write_file(struct store *s, int64_t job, const char *path, int64_t offset, const void *data, size_t len);
/* done(arg) on the loop when everything posted before is in the database. */
void store_flush(struct store *s, net_fn done, void *arg);

/* ---- reads ---- */
/* Rows of a listing (columns.h) as a JSON array; job > 0 and the view has a job column: of that job only. json is owned
 * by the callee (free). */
typedef void (*store_on_json)(void *arg, yk_err err, char *json);
void store_list(struct store *s, const char *listing, int64_t job, store_on_json fn, void *arg);
/* {"events":[{"id","at","kind","text"}],"cursor":N} of a job behind the cursor. */
void store_events(struct store *s, int64_t job, int64_t cursor, store_on_json fn, void *arg);
/* The plan (JSON) of a job, its newest; NULL json with YK_NOTFOUND if none. */
void store_plan_of(struct store *s, int64_t job, store_on_json fn, void *arg);
/* The outputs (JSON, as the job's row has them) of a job that has ended; YK_NOTFOUND if it has none. */
void store_outputs_of(struct store *s, int64_t job, store_on_json fn, void *arg);

/* What was asked for, as it came. */
void store_request_of(struct store *s, int64_t job, store_on_json fn, void *arg);
/* [{"step","epoch","loss","accuracy","ms"}] of the steps from `first` on, `limit` at most.
 * Steps count from 1. */
void store_steps(struct store *s, int64_t job, int64_t first, int64_t limit, store_on_json fn, void *arg);

/* [{"epoch","samples","validation_loss","validation_accuracy","ms"}] of all epochs that were judged. */
void store_epochs(struct store *s, int64_t job, store_on_json fn, void *arg);
/* [{"agent","busy_frac","sent_bytes_per_s","link_frac"}]: of the last seconds that stages of the job have told of;
 * link_frac is of the agent's fastest link, NULL if none was measured. */
void store_use(struct store *s, int64_t job, store_on_json fn, void *arg);
/* {"job","step","rows":[name],"events":[{"row","kind","start_ms","end_ms","label","about"}]}: what agents, links and
 * the data set did in a sampled step, from its first span on; step < 1: the newest. Steps count from 1.
 * YK_NOTFOUND if that was not measured: the text then is "2, 10", those that were, "" if none was. */
void store_timeline(struct store *s, int64_t job, int64_t step, store_on_json fn, void *arg);

/* ---- at start, before the loop runs: rows are valid during the call ---- */
int64_t store_last_id(struct store *s, const char *table); /* 0 if empty */
void store_load_models(struct store *s, void (*fn)(void *arg, const struct store_model *m), void *arg);
/* These two are false if not every row could be read: then what has no row may have one. */
bool store_load_blobs(
    struct store *s, void (*fn)(void *arg, const char *hash, const char *file, int64_t at, int64_t bytes), void *arg);
bool store_load_jobs(struct store *s, void (*fn)(void *arg, const struct store_job *j), void *arg); /* unfinished */
/* Measured ones between agents; age_ms: since then. */
void store_load_links(struct store *s, void (*fn)(void *arg, const struct store_link *l, int64_t age_ms), void *arg);
/* The newest checkpoint set of a job with a step below `before`; fn is not called if there is none. */
void store_load_checkpoint(struct store *s, int64_t job, int64_t before,
    void (*fn)(void *arg, int64_t step, int64_t bytes, const char *parts), void *arg);
int64_t store_last_epoch(struct store *s, int64_t job); /* that was judged; 0: none. As store_load_profile */
void store_load_profile(struct store *s, const char *graph, const char *agent, const char *backends,
    void (*fn)(void *arg, const struct store_time *t), void *arg); /* any time; short read on the caller's thread */

#endif
