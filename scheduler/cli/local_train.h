/* A training on this machine: what the files of `yoke local train` share. */
#ifndef YK_LOCAL_TRAIN_H
#define YK_LOCAL_TRAIN_H

#include "agent/data_ahead.h"
#include "agent/judge.h"
#include "common/storage.h"
#include "kernels/optim_config.h"
#include "kernels/train.h"
#include "scheduler/cli/local.h"
#include "scheduler/cli/progress.h"

struct local_train {
    struct cli *cli;
    struct train_config ask; /* what the flags say */
    struct local env;        /* pool and backends; graph is the forward graph */
    struct graph *graph;     /* the training graph */
    struct grad_info info;   /* in its arena */
    struct grad_options options;
    struct trainer *trainer;
    int64_t *sizes; /* of the training graph's named dims; the batch is set per microbatch */
    int32_t batch_dim;
    int64_t microbatch;
    bool ids; /* targets are class ids */

    struct data_set *set;
    struct data_set *judge; /* validates each epoch; NULL: samples that are held out, or nothing does */
    struct data_set *test;  /* the test split of --data, if something else validates; NULL: none */
    struct batches batches;
    int64_t epoch_steps, total_steps;
    struct optim_schedule schedule;
    uint64_t seed;

    struct storage *storage; /* of --checkpoint; NULL: none */
    uint8_t config[32];      /* the hash of what decides on numbers, and the text of it */
    char *config_text;

    /* as it stands */
    int64_t step;               /* steps that are done */
    float *losses;              /* of all steps */
    float *scores;              /* by epoch: accuracy (else loss) of the validation; NaN: none */
    double last_loss, accuracy; /* accuracy: of the test split, else of the last validation, -1: none */
    double compute_s;
    int64_t computed; /* samples in compute_s */
    struct progress bar;
};

/* local_train_model.c */
yk_err local_train_open_model(struct local_train *t, struct yk_diag *why); /* import, passes, gradients */
yk_err local_train_open_trainer(struct local_train *t, struct yk_diag *why);
/* The file of --output: the imported model with the current parameters, batch normalisation and Dropout as for
 * inference. */
yk_err local_train_export(struct local_train *t, struct yk_buf *out, struct yk_diag *why);
/* Runs the model as it would be exported over a set (NULL: the samples that are held out). */
yk_err local_train_judge(struct local_train *t, struct data_set *set, struct judge_score *out, struct yk_diag *why);

/* local_train_save.c */
yk_err local_train_open_storage(struct local_train *t, struct yk_diag *why); /* with --resume: goes on from there */
yk_err local_train_save(struct local_train *t, struct yk_diag *why);

/* local_train_show.c */
void local_train_show_step(struct local_train *t, double loss, double ms, double train_accuracy, int64_t samples);
void local_train_show_epoch(struct local_train *t, double loss, double train_accuracy, const struct judge_score *s);
void local_train_show_end(struct local_train *t);
yk_err local_train_plot(const struct local_train *t, struct yk_diag *why); /* --plot */

#endif
