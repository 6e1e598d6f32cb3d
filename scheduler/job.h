/* Jobs: what a client asked for and how far it is. The table of states says what each waits for, how long, and where it
 * goes when that is over, so that no state lasts for ever. */
#ifndef YK_JOB_H
#define YK_JOB_H

#include "common/plan.h"
#include "scheduler/solve.h"
#include "scheduler/store.h"
#include "scheduler/training.h"

/* X(NAME, text, deadline_ms, way out when the deadline passes, what it waits for) */
#define JOB_STATES(X)                                                                      \
    X(QUEUED, "queued", 60000, FAILED, "its turn")                                         \
    X(WAITING, "waiting", 60000, FAILED, "an agent that holds its data, or any agent")     \
    X(PLANNING, "planning", 180000, FAILED, "profiles, links and the solver")              \
    X(LOADING, "loading", 120000, WAITING, "agents to hold its stages")                    \
    X(RUNNING, "running", 60000, WAITING, "results (the deadline starts again with each)") \
    X(DONE, "done", 0, DONE, "nothing")                                                    \
    X(FAILED, "failed", 0, FAILED, "nothing")                                              \
    X(CANCELED, "canceled", 0, CANCELED, "nothing")

enum job_state {
#define X(name, text, deadline, out, what) JOB_##name,
    JOB_STATES(X)
#undef X
};

/* What becomes of a job while it runs (jobs_review.c). Beside its state it may be in these, each with its way out:
 *
 *   looking             the planner is asked for another plan     it answers
 *   draining            no step is begun any more                 a set behind the last one; drain_us: the job is lost
 *   trial GOING         on its way to a single device             it runs there: RUNS
 *   trial RUNS          measured there                            enough steps: OVER, there or back in the pipeline
 *   trial OVER          no other trial                            another pipeline is moved to: NONE
 *   rest_until_us       waits for devices that rest               one is back, or the time is over: failed
 *   training.judging    its source judges an epoch (jobs_judge.c) it answers, or judge_until_us
 *   checking            its content is read (jobs_damage.c)       the content worker answers
 *   training.checking   so is its newest set                      the content worker answers
 *   training.exporting  its model is written (jobs_train.c)       the content worker answers */
struct job_life {
    char why[200], looked[200]; /* another plan is wanted because of; is being looked for ("": not) */
    bool looking;
    bool given;                      /* the plan that runs is the client's */
    bool early;                      /* it waits since before any agent was there: whom it names may come yet */
    int64_t planned_us, loading_us;  /* it runs, it was being loaded, since */
    int64_t looked_us;               /* when another plan was last looked for */
    int64_t retry_us, rest_until_us; /* of a job that waits: when the planner is asked again; for devices that rest */
    double load_ms;                  /* that it took to load */
    double now_ms;                   /* what the plan that runs should take by what is known today */
    double bias;                     /* measured by predicted of pipelines, where a trial showed that; else 0 */
    struct plan *next;               /* to be taken instead of the planner's choice; NULL */
    bool draining;                   /* towards drain_step, -1 until the source says */
    int64_t drain_step, drain_us;
    char reason[300], from[120];    /* of the last move */
    int64_t left_us, fetched_bytes; /* of the move that is under way; 0: none */
    int64_t lost_us;                /* it does not run since, because of a loss; 0 */
    char (*left)[33];               /* agents that it had and may have again */
    int n_left;
    struct job_refusal { /* an agent that had no memory for what it was to hold: a plan of the job gives it less */
        char id[33];
        int64_t most_bytes; /* of all that a plan puts there; 0: nothing */
    } * refused;
    int n_refused;
    struct trial {
        enum trial_state { TRIAL_NONE, TRIAL_GOING, TRIAL_RUNS, TRIAL_OVER } state;
        struct plan *pipeline;
        double pipeline_ms;
    } trial;
};

struct job {
    struct job *next;
    int64_t id;
    enum job_state state;
    int64_t deadline_us;                   /* of the loop's clock; 0: none */
    char *kind, *model, *source, *request; /* source: agent name or NULL; request: JSON as it came, normalised */
    char graph_hash[65];
    enum solve_objective objective;
    int64_t batch, microbatch; /* microbatch 0 until planned; never changes afterwards */
    int64_t deadline_ms;       /* the client's, of the whole job since it was submitted; 0 none */
    int64_t due_us;            /* the same by the loop's clock */
    bool codec_allowed[3], pin_first, pin_last;
    bool want_outputs, want_accuracy;
    bool want_changes, want_bars; /* of a plan that is asked for: explain.h */
    char *data, *labels, *split,
        *preprocess; /* data: a name under a data root; NULL if it was uploaded. labels: a blob */
    struct job_input {
        char *name, *data; /* name: NULL until it is resolved, if it was the only one; data: a blob */
        int32_t value;
        bool whole; /* not by sample: every microbatch takes all of it */
    } * inputs;     /* uploaded */
    int n_inputs;
    int64_t uploaded; /* samples; -1: not known */
    struct job_size {
        char *name;
        int64_t value;
    } * given; /* sizes of named dimensions, as asked */
    int n_given;
    int64_t *sizes;             /* by named dimension of the graph, 0 unknown; NULL until it is resolved */
    double *mean, *std, *black; /* black: of uploaded images, as wire_list.h says of run */
    int n_mean, n_std, n_black;
    bool nhwc;
    struct training *training; /* of a train job; NULL */
    struct plan *forced;       /* given by the client; NULL */
    char **forms;              /* fixed at the first plan */
    int32_t n_forms;

    int64_t samples, microbatches; /* 0 until the source opened the data */
    uint8_t *done_map;             /* a bit per microbatch */
    int64_t done, done_microbatches, correct, labelled;
    struct job_output *outputs; /* of the model; job_data.h */
    int32_t n_outputs;
    char *outputs_json; /* of those with a file; NULL until the first result with tensors */
    int64_t plan_id, replans;
    int losses;           /* in a row without a result */
    int64_t deaths;       /* of yoked in a row while the job was being planned */
    double codec_error;   /* the largest relative RMS error that an encoder reported; 0 if nothing was encoded */
    double run_ms;        /* of finished runs */
    int64_t run_start_us; /* of the one that runs; 0 */
    int64_t run_first_us, run_last_us, run_first_count,
        run_count; /* results of this generation, for the measured step */
    int64_t created_ms, started_ms, ended_ms;
    char error[600];
    int64_t last_event; /* id of its newest */
    struct job_life life;
    bool dirty;
    bool checking; /* its content is read, to know whether it is damaged */
    /* jobs_unsaved.c */
    bool stored;                             /* there is a row */
    bool row_pending, row_error, row_missed; /* its write: on the way, failed, failed once */
    yk_err row_err;
    int64_t row_retry_us;
};

/* Kind of the event of a training under whose data set's name there is no test split. */
#define JOB_NO_TEST "no-test"

const char *job_state_name(enum job_state s);
bool job_state_find(const char *name, enum job_state *out);
bool job_ended(enum job_state s);
int64_t job_state_deadline_ms(enum job_state s);
enum job_state job_state_out(enum job_state s);
const char *job_state_what(enum job_state s);

/* Reads a request ({"kind", "model", "data", ...}); unknown keys are refused by name. The job has no id yet. */
yk_err job_parse(const char *text, size_t len, struct job **out, struct yk_diag *why);
void job_free(struct job *j);
/* The microbatch map for this many samples. YK_LIMIT over 2^28 microbatches. */
yk_err job_set_samples(struct job *j, int64_t samples, struct yk_diag *why);
bool job_map_get(const struct job *j, int64_t microbatch);
void job_map_set(struct job *j, int64_t microbatch);
void job_to_row(
    const struct job *j, int64_t now_us, struct store_job *row); /* borrows; forms are joined by the caller */

#endif
