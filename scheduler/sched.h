/* The scheduler: wires fleet, store, blobs, models, planning, jobs and dispatch. Everything runs on the loop of `net`;
 * blocking work on the workers "store" and "solver". REST (rest.h) is a client of the calls below. */
#ifndef YK_SCHED_H
#define YK_SCHED_H

#include "scheduler/fleet.h"
#include "scheduler/job.h"
#include "scheduler/model.h"

struct sched;

struct sched_config {
    struct net *net;
    const char *db;         /* path of the database; blobs/ stands beside it */
    const char *listen_url; /* for agents */
    bool threaded;          /* false: virtual time */
    int64_t lease_ms;       /* 0: 6000 */
    int64_t source_wait_ms; /* how long a job waits for agents that went away; 0: 60000 */
    struct policy policy;   /* hold_ms 0: policy_default */
    passes_eval eval;       /* constant folding (kernels/fold.h); NULL: integers only */
    void *eval_arg;
};

yk_err sched_open(const struct sched_config *c, struct sched **out, struct yk_diag *why);
void sched_close(struct sched *s);
const char *sched_url(const struct sched *s); /* where agents join */
struct store *sched_store(struct sched *s);
struct blobs *sched_blobs(struct sched *s);
struct fleet *sched_fleet(struct sched *s);

/* ---- what REST asks ---- */
typedef void (*sched_on_text)(void *arg, yk_err err, const char *text); /* JSON on success, a reason else */

/* Uploads: the part is copied. {"have":N,"complete":bool}. */
void sched_blob_part(struct sched *s, const char *hash, int64_t offset, int64_t total, const void *data, size_t len,
    sched_on_text fn, void *arg);
/* {"have":N,"complete":bool} */
void sched_blob_state(struct sched *s, const char *hash, sched_on_text fn, void *arg);
/* The row of the model. preprocess: JSON that preprocess.h wrote, or NULL. temporary: it goes by itself once no job has
 * used it and nobody has asked for it for SCHED_TEMPORARY_US, also after a restart. */
#define SCHED_TEMPORARY_US ((int64_t)900 * 1000000)
void sched_model_add(struct sched *s, const char *name, const char *blob, const char *preprocess, bool temporary,
    sched_on_text fn, void *arg);
/* {"model","freed_bytes"}: its row and the content that no other model and no open job uses go. YK_STATE while jobs use
 * it. */
void sched_model_remove(struct sched *s, const char *name, sched_on_text fn, void *arg);
/* What a model takes and gives (model_describe) into out. */
yk_err sched_model_describe(struct sched *s, const char *name, struct yk_buf *out, struct yk_diag *why);
/* A plan for a request like a job's (data not needed). */
void sched_plan(struct sched *s, const char *request, size_t len, sched_on_text fn, void *arg);
/* {"job":N} once it is durable. */
void sched_submit(struct sched *s, const char *request, size_t len, sched_on_text fn, void *arg);
yk_err sched_cancel(struct sched *s, int64_t job, struct yk_diag *why); /* YK_NOTFOUND, YK_STATE if it has ended */
/* Events behind a cursor; waits up to wait_ms for the first. The handle is for sched_events_cancel; NULL: answered. */
struct sched_waiter;
struct sched_waiter *sched_events(
    struct sched *s, int64_t job, int64_t cursor, int64_t wait_ms, sched_on_text fn, void *arg);
void sched_events_cancel(struct sched_waiter *w);
/* The listing of jobs (job > 0: of that one only), also of those whose end the disk has not taken yet. */
void sched_jobs_list(struct sched *s, int64_t job, store_on_json fn, void *arg);
/* [{"name", "file"}] of a job that has ended, first the model's first output; YK_NOTFOUND if it kept none. */
void sched_outputs(struct sched *s, int64_t job, store_on_json fn, void *arg);
/* {"job","files"}: the outputs of a job that has ended go; its row and what was measured stay. YK_NOTFOUND if it kept
 * none, YK_STATE while it goes on. */
void sched_outputs_remove(struct sched *s, int64_t job, sched_on_text fn, void *arg);
char *sched_output_path(struct sched *s, const char *file); /* of an output's file; free() it */
bool sched_job_known(const struct sched *s, int64_t job);   /* there was one of this number */
int sched_jobs_open(const struct sched *s);

#endif
