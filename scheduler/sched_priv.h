/* What sched.c, planning.c, dispatch.c and jobs.c share: the state of the scheduler. */
#ifndef YK_SCHED_PRIV_H
#define YK_SCHED_PRIV_H

#include "common/worker.h"
#include "scheduler/sched.h"

struct planning;

/* One loaded pipeline of a plan: its number is in every command, so that older ones are refused. */
struct generation {
    struct generation *next;
    int64_t id;
    struct job *job; /* NULL once it has ended */
    int64_t job_id, ended_us;
    double codec_error; /* the largest that was reported */
    struct model *model;
    struct plan *plan;
    int64_t plan_id;
    int32_t pipeline;
    char source[33];
    struct generation_agent {
        char id[33];
        bool loaded;
        bool has_stage;
        int64_t planned_bytes, held_bytes; /* of its stages; that it told, source and all: 0 before */
        int64_t reserved_bytes;            /* the larger */
        /* Of its stages, to correct predictions by what they took. slow_factor: in what was planned:
         * planned_ms by profiled_ms, of a microbatch in all of them. */
        double slow_factor, took_ms, due_ms, planned_ms, profiled_ms;
        int64_t took_n;
    } agents[64];
    int n_agents, n_loaded;
    bool running;
    int64_t run_us;      /* when it was told to run last */
    bool learned;        /* of several pipelines: the number of samples was known when it was told to run */
    struct early *early; /* dispatch.c */
    int n_early;
    struct norms { /* of a training with clipping: square sums of the step, by trained parameter */
        int64_t step;
        double *sums;
        int arrived;
    } norms;
    struct bad { /* of a training: the first tensor that is no number, as far as it was told */
        char *text;
        int64_t step, microbatch, stage;
        bool of_data; /* it came from the data set */
    } bad;
};

struct sched_waiter {
    struct sched_waiter *next, **link;
    struct sched *sched;
    int64_t job, cursor;
    struct net_timer *timer;
    sched_on_text fn;
    void *arg;
};

struct sched {
    struct sched_config config;
    struct net *net;
    struct store *store;
    struct blobs *blobs;
    struct fleet *fleet;
    struct worker *solver, *content; /* plans; uploads and models, which take their time */
    struct net_listener *listener;
    struct model *models;
    struct model *removed; /* from models, until nothing can name them any more */
    int adding;            /* models on their way in */
    struct job *jobs;      /* that have not ended */
    struct job *unsaved;   /* that have, and whose rows may not say so yet */
    struct planning *plannings;
    struct generation *generations, *ended;
    struct part *parts; /* of checkpoint sets, on their way here (jobs_sets.c) */
    struct sched_waiter *waiters;
    struct net_timer *tick;
    int64_t next_job, next_plan, next_model, next_event, next_generation;
    int64_t opened_us, sweep_us; /* sweep_us: when files that nobody wants are removed next */
    bool closing;
};

/* ---- planning.c: from a request to a plan ---- */
struct planning_request {
    struct model *model;
    const char *kind, *source; /* source NULL: the planner's choice */
    enum solve_objective objective;
    const int64_t *sizes; /* of the named dimensions but the batch; borrowed for the call of planning_start */
    int64_t batch, microbatch, samples;
    double deadline_ms;
    const bool *codec_allowed;
    bool pin_first, pin_last;
    double upload_frac; /* see struct solve_request */
    bool answers;
    bool fetches;                 /* agents without the graph's weights fetch them */
    bool replicas;                /* several pipelines, where they are faster */
    bool want_changes, want_bars; /* what explain.h adds to the plan */
    bool want_reasons;            /* infeasible.h: which constraints cannot hold together */
    const struct plan *forced;
    char *const *forms;                    /* fixed ones, n_nodes of them; NULL */
    const struct solve_training *training; /* borrowed for the call of planning_start; NULL: none */
    int64_t job;                           /* what runs of it gives its memory back first; 0: nothing */
    const struct job_refusal *refused;     /* borrowed for the call of planning_start */
    int n_refused;
};
#define PLANNING_NOBODY "no agent is alive: start one with `yoke-agent --scheduler=URL`"
typedef void (*planning_done)(void *arg, yk_err err, const char *why, struct plan *plan); /* takes plan */
struct planning *planning_start(struct sched *s, const struct planning_request *r, planning_done fn, void *arg);
void planning_fini(struct sched *s); /* after the solver has ended: answers what still gathers with YK_CANCELED */
bool planning_reviews(const struct sched *s); /* one is about a job that runs */
void planning_step(struct sched *s);          /* on every tick and whenever something came in */

/* ---- dispatch.c: generations ---- */
yk_err dispatch_load(
    struct sched *s, struct job *j, struct model *m, const struct plan *plan, int64_t plan_id, struct yk_diag *why);
struct generation_agent *sched_member(struct generation *g, const char *agent); /* NULL: it has no part in it */
int sched_stage_agents(const struct generation *g);
struct generation *sched_generation(struct sched *s, int64_t id);                   /* one that has not ended; NULL */
struct generation *sched_generation_of(const struct sched *s, const struct job *j); /* the first of its own; NULL */
void dispatch_drop(struct sched *s, struct job *j);                                 /* unloads everything of a job */
void dispatch_agent_lost(struct sched *s, struct fleet_agent *a);
yk_err dispatch_message(void *sched, struct fleet_agent *a, struct wire_msg *msg);
yk_err dispatch_stream(void *sched, struct fleet_agent *a, struct wire_msg *head, struct chan_sink *sink);
void dispatch_sweep(struct sched *s, bool all); /* forgets ended generations after a while */
void dispatch_fini(struct sched *s);

/* ---- jobs_refused.c: agents that had no memory for what a plan gave them ---- */
/* Of the generation of a job, before that goes; lacking_bytes 0: not known. The job goes on with a plan that gives the
 * agent less. why: what it said. */
void jobs_refused(
    struct sched *s, struct generation *g, const struct fleet_agent *a, int64_t lacking_bytes, const char *why);
void jobs_refused_forget(struct job *j, const char *agent); /* NULL: all of them */
void jobs_refused_apply(const struct job_refusal *list, int n, struct view *v);

/* ---- dispatch_stats.c ---- */
void dispatch_stats(struct sched *s, struct fleet_agent *a, struct generation *g, const struct wire_stage_stats *m);

/* ---- sched_content.c ---- */
void sched_content_refused(struct sched *s, const char *blob); /* no model came of it: it goes, unless it is of use */
void sched_content_drop(struct sched *s, const char *file);    /* out of index and database; its file goes */
void sched_content_renew(struct sched *s, const struct model_blob *slices, size_t n); /* files that were written */
void sched_content_tick(struct sched *s);

/* ---- sched_sweep.c: what goes by itself ---- */
void sched_sweep_start(struct sched *s); /* once all rows are restored */
void sched_sweep_tick(struct sched *s);

/* ---- jobs_unsaved.c: until the disk has taken it ---- */
void jobs_keep(struct sched *s, struct job *j); /* takes a job that has ended and writes its row, however often */
void jobs_unsaved_tick(struct sched *s);
void jobs_unsaved_fini(struct sched *s);
void jobs_store_error(struct sched *s, int64_t job, yk_err err, const char *text);
void jobs_store_works(struct sched *s, struct job *j); /* its row was written just now */

/* ---- jobs_train.c: what a training does that other jobs do not ---- */
typedef void (*jobs_on_made)(void *arg, yk_err err, const char *why, struct training *made); /* takes made */
/* Makes the training graph of a model; fn comes once, later. */
void jobs_train_make(
    struct sched *s, const struct train_config *config, const struct model *of, jobs_on_made fn, void *arg);
/* Its graph goes, once no pipeline that idles and no plan that is being made can name it. NULL allowed. */
void jobs_train_leave(struct sched *s, struct training *t);
/* Where the job goes on: at its newest complete set. Before each plan. */
void jobs_train_resume(struct sched *s, struct job *j);
void jobs_train_resumed(struct sched *s, const struct job *j); /* tells of it, once there is a plan */
/* Fills load.training; free its kept.at. config: text that outlives the message. */
void jobs_train_load(const struct job *j, const char *config, struct wire_training *out);
void jobs_train_started(struct sched *s, struct job *j, const struct wire_run_started *m);
void jobs_train_step(struct sched *s, struct generation *g, const struct wire_step *m);
void jobs_train_bad(struct sched *s, struct generation *g, struct fleet_agent *a, const struct wire_bad *m);
void jobs_train_norms(struct sched *s, struct generation *g, struct fleet_agent *a, const struct wire_norms *m);
/* The model with a set into a file of the blobs' folder, with its SHA-256 if that is wanted; fn comes once, later.
 * Takes file; its set's tensors stay in the index until then. */
typedef void (*jobs_on_exported)(
    struct sched *s, int64_t job, yk_err err, const char *why, const char *file, const char *hash);
void jobs_train_export(
    struct sched *s, struct job *j, const struct training_set *set, char *file, bool hashed, jobs_on_exported fn);
/* The set behind exactly this step, out of the store. Errors: YK_NOTFOUND, YK_IO, YK_FORMAT. */
yk_err jobs_train_set_of(struct sched *s, struct job *j, int64_t step, struct training_set *out, struct yk_diag *why);
void jobs_train_end(struct sched *s, struct job *j);    /* what only an open training needs goes */
void jobs_train_finish(struct sched *s, struct job *j); /* if its last step is done and safe */

/* ---- jobs_judge.c: what each epoch has made, judged on the samples that a training holds out ---- */
void jobs_judge_look(
    struct sched *s, struct job *j); /* a set is safe, or the job runs: there may be something to judge */
void jobs_judge_done(struct sched *s, struct generation *g, const struct wire_judged *m);
void jobs_judge_tick(struct sched *s);
bool jobs_judge_all(const struct training *t);                 /* nothing is left to judge */
bool jobs_judge_needs(const struct training *t, int64_t step); /* the set behind it: an epoch's that is not told yet */
void jobs_judge_drop(struct sched *s, int64_t job);

/* ---- jobs_sets.c: checkpoint sets ---- */
void jobs_sets_plan(struct sched *s, struct generation *g); /* how often, before it is loaded */
void jobs_sets_tick(struct sched *s);                       /* a part that still comes is a sign of life */
void jobs_sets_step(struct sched *s, struct generation *g); /* a step was reported; the generation may end by this */
/* Tells the stages: a set behind this step too (0: none), one every so many from now on (0: as before). */
void jobs_sets_keep(struct sched *s, struct generation *g, int64_t step, int64_t every);
void jobs_sets_drop(struct sched *s, int64_t job, int64_t from, int64_t before); /* files of sets behind these steps */
char *jobs_sets_file(int64_t job, int64_t step, const char *part);               /* free() it */
bool jobs_sets_is_file(const char *file);
/* A part of a set; sink: where its bytes go. g NULL: of a generation that has ended; it is read and dropped. */
yk_err jobs_sets_part(
    struct sched *s, struct generation *g, struct fleet_agent *a, struct wire_msg *head, struct chan_sink *sink);

/* ---- jobs_damage.c: sets and content that are not what was written ---- */
/* The tensors of a set are found: own: in its own files, for those of newer sets can go. Errors: YK_NOTFOUND, YK_IO
 * name what is not there. */
yk_err jobs_sets_use(
    struct sched *s, const struct job *j, const struct training_set *set, bool own, struct yk_diag *why);
/* The newest set and what is newer go; the next resume takes an older one, or begins again. */
void jobs_sets_remove(struct sched *s, struct job *j, const char *why);
/* The newest set could not be used, maybe because of the set: if its bytes are others than were written it is removed
 * and the job goes on behind an older one. Else it fails with why if that is fatal, or is lost. */
void jobs_sets_suspect(struct sched *s, struct job *j, yk_err err, bool fatal, const char *why);
/* Content could not be taken up by an agent (err), maybe because it is damaged: the job's data, or the weights of its
 * model. Then the job fails and says what is, and the mend. Else as above. */
void jobs_content_suspect(struct sched *s, struct job *j, bool data, yk_err err, bool fatal, const char *why);

/* ---- jobs_plan.c ---- */
struct solve_training;
/* What the planner is asked for a job whose model or training graph is m. retry: it was planned before. */
void jobs_plan_request(struct sched *s, struct job *j, struct model *m, bool retry, struct solve_training *training,
    struct planning_request *out);
double jobs_upload_frac(const struct job *j);                 /* a training takes its samples from yoked once */
bool jobs_answers(const struct job *j);                       /* its outputs go to yoked */
bool jobs_plan_usable(struct sched *s, const struct plan *p); /* its agents are alive and do not rest */

/* ---- jobs_review.c: a job while it runs ---- */
void jobs_review_want(struct sched *s, struct job *j, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
void jobs_review_joined(struct sched *s, struct fleet_agent *a);
void jobs_review_changed(struct sched *s, struct fleet_agent *a, const char *kind, const char *text);
void jobs_review_relinked(
    struct sched *s, const struct fleet_agent *a, const struct fleet_agent *b, bool better, const char *text);
void jobs_review_began(struct sched *s, struct job *j);                         /* all its stages are loaded */
void jobs_review_lost(struct sched *s, struct fleet_agent *a, const char *why); /* before its generations go */
void jobs_review_reset(struct sched *s, struct job *j);                         /* its generation was lost */
void jobs_review_tick(struct sched *s, struct job *j);                          /* j may have moved or ended by this */
/* Away from its plan, at the end of a step where there are steps. kind and text become an event. */
void jobs_drain(struct sched *s, struct job *j, const char *kind, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
void jobs_halted(struct sched *s, struct generation *g, int64_t step); /* the source begins no other */
void jobs_drained(struct sched *s, struct job *j);                     /* a set is complete */

/* ---- jobs.c: the state table at work ---- */
bool jobs_restore(struct sched *s); /* false: not every row could be read */
struct job *jobs_find(struct sched *s, int64_t id);
void jobs_move(struct sched *s, struct job *j, enum job_state to, const char *reason);
void jobs_waits(struct sched *s, struct job *j, const char *reason); /* tells why and until when */
void jobs_alive(struct sched *s, struct job *j); /* it runs and something came of it: the deadline starts again */
void jobs_fail(struct sched *s, struct job *j, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
/* A generation of it cannot go on: back to the planner, or the end after too many in a row. */
void jobs_lost(struct sched *s, struct job *j, const char *why);
/* The same without a fault: it goes on with another plan. */
void jobs_again(struct sched *s, struct job *j, const char *why);
void jobs_step(struct sched *s, struct job *j);
void jobs_tick(struct sched *s);
void jobs_save(struct sched *s, struct job *j);
void jobs_unlink(struct sched *s, struct job *j); /* from those that have not ended */
void jobs_finish(struct sched *s, struct job *j); /* every microbatch is answered */
void jobs_event(struct sched *s, int64_t job, const char *kind, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
int64_t jobs_now_ms(void); /* wall clock, for rows */

struct model *sched_model_find(struct sched *s, const char *name);

#endif
