/* Training jobs: the graph that is trained, the steps done, and the sets of parameters that they can go on from.
 *
 * A set is complete when every agent of the generation has sent its part of it behind the same step and all parts are
 * on the disk: then the store takes it, and the one before the last goes. A new generation goes on from the newest. */
#ifndef YK_TRAINING_H
#define YK_TRAINING_H

#include "common/passes.h"
#include "common/train_config.h"
#include "common/wire.h"
#include "scheduler/blob.h"

struct job;
struct model;
struct sched;

#define TRAINING_INPUTS 2 /* of the training graph, behind the model's own: target and divisor */

struct training_kept { /* a tensor of a set */
    int32_t value;     /* of the training graph */
    int32_t slot;      /* -1: the weight itself, else the optimizer's */
    char hash[65];
    int64_t bytes;
    char part[9]; /* whose part of the set holds it, as files of parts are named; "": not known */
    int64_t at;   /* in that file */
};

struct training_set {
    int64_t step; /* how many steps it is behind; 0: none */
    struct training_kept *kept;
    int32_t n_kept;
    int64_t began_us; /* its first part began to come */
    double link_ms;   /* that its slowest part took of a link */
    uint64_t here;    /* while it is coming: a bit per agent of the generation whose part is there */
};

#define TRAINING_MS 6     /* steps whose times are remembered */
#define TRAINING_COMING 8 /* agents may be some sets apart where steps are short */

struct training {
    struct train_config config;
    /* The graph, once it was made in this life of the daemon. */
    struct model *model; /* its graph's last outputs stay (n_staying) */
    int32_t *of;         /* by node: the node of the forward graph that it belongs to */
    int32_t n_forward, first_loss, first_backward;
    struct wire_training wire; /* for load: all but config, batch, step and kept; owned */
    struct grad_info info;     /* of model->graph, and in its arena; without `of` */
    int64_t trained_bytes;     /* of parameters that get a gradient */
    char *warning;             /* for the user; NULL */

    int64_t steps, epoch_steps; /* 0: the source has not told yet */
    int64_t done;               /* steps that the source has reported since the set that this generation began from */
    double ms[TRAINING_MS];     /* of the last steps of this generation */
    int n_ms;
    int64_t every;                               /* steps between two sets */
    double told_ms;                              /* between two sets, as the newest event about it says; 0: none */
    double set_ms, set_link_ms;                  /* what a set takes, and of the slowest link; 0: not measured yet */
    struct training_set saved;                   /* the newest complete set */
    int64_t below;                               /* sets from this step on were damaged; 0: none */
    bool checking;                               /* whether `saved` is whole */
    struct training_set coming[TRAINING_COMING]; /* of this generation, incomplete; step 0: free */
    bool exporting;                              /* the trained model is being written */
    int64_t judged;                              /* epochs, of a training that holds samples out */
    int64_t judging, judge_until_us;             /* the epoch that the source judges; 0: none */
    int64_t written;                             /* epochs whose models are there, or being written */
    int64_t held; /* epochs whose model or verdict outlives a death of yoked: their sets are not needed for it */
};

/* The middle of the last steps' times; 0: too few. */
double training_step_ms(const struct training *t);
char *training_config_text(const struct train_config *c); /* JSON; free() it */
void training_free(struct training *t);
void training_set_free(struct training_set *set);

/* Blocks: for the content worker. Imports the model file blob_hash of dir and makes its training graph: t->model and
 * what follows from it, with the slices of its weights as model_import gives them. Errors: those of importing and of
 * grad_build, with the nodes named. */
struct model_blob;
yk_err training_make(struct training *t, const char *dir, const char *blob_hash, passes_eval eval, void *eval_arg,
    struct model_blob **slices, size_t *n_slices, struct yk_diag *why);

/* What the planner has to know; borrows t's. */
struct solve_training;
void training_for_solver(const struct training *t, struct solve_training *out);

/* Which stages of a plan are two halves of the same work: a forward stage and the stage, on the same agent, with the
 * backward nodes of its nodes; a stage with both is its own. Errors name the stage and what it should hold. */
struct plan_pipeline;
yk_err training_pairs(const struct training *t, const struct plan_pipeline *line, const int32_t *stage_of,
    int32_t *pair, struct yk_diag *why);

/* That the stages of a plan can be loaded: one that was given may tear apart what belongs together. Errors as above. */
struct plan;
yk_err training_check(const struct training *t, const struct plan *plan, struct yk_diag *why);

/* Blocks: the model file blob_hash of dir with what the set holds of it, batch normalisation and Dropout as for
 * inference, into a file of dir. names, data: of the set's tensors, NULL data where there is none. */
yk_err training_export(const char *dir, const char *blob_hash, const char *const *names, const void *const *data,
    const int64_t *bytes, int32_t n, const char *file, struct yk_diag *why);

/* Moves the graph that was made, and what follows from it, to t; frees made. */
void training_adopt(struct training *t, struct training *made);

/* A set as JSON, for its row: [{"value": NAME, "slot": N, "hash": .., "bytes": N}], and back. Names are those of the
 * training graph, which t->model has to have for reading. */
void training_set_write(const struct training_set *set, const struct model *m, struct yk_buf *out);
yk_err training_set_read(const char *text, const struct model *m, struct training_set *out, struct yk_diag *why);

#endif
