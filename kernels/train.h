/* Trains a stage of a training graph (common/grad.h): runs microbatches, adds up gradients, moves parameters.
 *
 * A trainer holds memory of its own for parameters, running statistics, optimizer state and one gradient sum for each
 * use of a parameter. A step is: runs of microbatches in their order, then a flush. Running statistics take their next
 * value after each forward run; a gradient sum is the left fold over the microbatches; a parameter's gradient is the
 * left fold over its uses. So the bits depend on graph, forms, inputs and the microbatches only: not on the stage's
 * borders, threads, or whether forward and backward are one run or two.
 *
 * In a pipeline (in_flight >= 1) forward and backward of a microbatch are two runs with others in between; what the
 * backward part needs of the forward part waits in the microbatch's slot. All calls come from one thread. */
#ifndef YK_TRAIN_H
#define YK_TRAIN_H

#include "common/grad.h"
#include "kernels/exec.h"
#include "kernels/optim.h"

struct trainer;

struct trainer_config {
    const struct graph *graph;    /* a training graph; borrowed for the life of the trainer */
    const struct grad_info *info; /* likewise */
    const uint8_t *in_stage;      /* a byte per node; NULL: all */
    const char *const *forms;     /* as in exec_config */
    const int64_t *max_sizes;
    const struct shape *const *input_shapes;
    struct backends *backends; /* borrowed, as the pool */
    struct pool *pool;
    struct optim optim;
    double clip_norm; /* of trainer_flush; 0: none */
    int in_flight;    /* slots of microbatches between forward and backward; 0: both are one run */
    bool single;      /* steps have one microbatch: no room to add the gradients of others */
    /* By parameter: 1 if this trainer moves it, given that a weight may be used in several stages. NULL: it moves all
     * that are used in the stage. */
    const uint8_t *owned;
    yk_err (*weight)(void *arg, int32_t value, const void **data, struct yk_diag *why); /* as in exec_config */
    void *weight_arg;
};

/* Parameters and states begin with the data of the graph's weights. Errors: those of exec_open; YK_UNSUPPORTED where
 * running statistics are read in this stage and set in another; YK_NOMEM. */
yk_err trainer_open(const struct trainer_config *config, struct trainer **out, struct yk_diag *why);
void trainer_close(struct trainer *t); /* NULL allowed */

/* ---- runs ---- */

enum trainer_part { TRAINER_WHOLE, TRAINER_FORWARD, TRAINER_BACKWARD };

/* Values that a part takes from outside of the trainer and gives to it, ascending: graph inputs and outputs (not
 * gradients of parameters, not next states) and what crosses the stage's borders. */
struct trainer_border {
    const int32_t *in, *out;
    int32_t n_in, n_out;
};
const struct trainer_border *trainer_border(const struct trainer *t, enum trainer_part part);
/* Shapes at these sizes, valid until the next call with others. Refuses sizes at which a batch normalisation over the
 * batch has fewer than two values per channel, naming it. */
yk_err trainer_shapes(struct trainer *t, const int64_t *sizes, const struct shapes **out, struct yk_diag *why);

/* One run of a microbatch: TRAINER_WHOLE (slot 0) if in_flight is 0, else TRAINER_FORWARD and later TRAINER_BACKWARD of
 * the same slot, sizes and seed. in: by position in the border; borrowed for the call, of TRAINER_FORWARD until the
 * slot's backward run has ended. A gradient is added to its sum as soon as it is made: where a run ends in an error,
 * YK_STATE follows from all others and from the step until trainer_drop. out: filled with the trainer's own memory,
 * valid until the next run of this part in this slot (of TRAINER_FORWARD until the slot's backward run has ended). */
yk_err trainer_run(struct trainer *t, enum trainer_part part, int slot, const int64_t *sizes, const struct tensor *in,
    struct tensor *out, uint64_t seed, struct yk_diag *why);
void trainer_cancel(struct trainer *t); /* any thread: a run in progress ends with YK_CANCELED */
/* The seed of a microbatch's run: that of the training, step and microbatch mixed. */
uint64_t trainer_seed(uint64_t seed, int64_t step, int64_t microbatch);

/* Runs a microbatch of TRAINER_WHOLE or TRAINER_FORWARD again (of a single trainer: that of the step), changing
 * nothing, and says in text which input, parameter or value is the first that is NaN (or infinite, if none is NaN).
 * False if all are finite. */
bool trainer_blame(
    struct trainer *t, const int64_t *sizes, const struct tensor *in, uint64_t seed, char *text, size_t size);

/* The same in this slot, whose forward run was the last in it: what waits there for its backward run stays as it is. */
bool trainer_blame_at(
    struct trainer *t, int slot, const int64_t *sizes, const struct tensor *in, uint64_t seed, char *text, size_t size);

/* Likewise of parameters and states alone. */
bool trainer_blame_weights(const struct trainer *t, char *text, size_t size);

/* ---- the end of a step ---- */

/* All of it on one device: folds, clips by config.clip_norm and moves the parameters. step counts from 1. norm (may be
 * NULL) is that of the whole gradient before clipping, if clip_norm asks for one, else 0. */
yk_err trainer_flush(struct trainer *t, double lr, int64_t step, double *norm, struct yk_diag *why);

/* The same in parts, for several stages. First the sums of uses in other stages are copied to where trainer_use says.
 * Then every stage folds: squares (may be NULL: not wanted) has an entry per parameter, and those that this trainer
 * owns get the square sum of their gradient. The norm is the root of the sum of all in parameter order. */
float *trainer_use(struct trainer *t, int32_t param, int32_t use); /* NULL: neither made here nor owned */
bool trainer_owns(const struct trainer *t, int32_t param);
void trainer_fold(struct trainer *t, double *squares);
/* scale: of optim_clip_scale. Parameters that others own are set by the caller (trainer_tensors, trainer_renew). */
yk_err trainer_step(struct trainer *t, double lr, int64_t step, float scale, struct yk_diag *why);
/* Drops the gradients of microbatches that were run since the last flush, as if they had not been. States stay. */
void trainer_drop(struct trainer *t);

/* ---- what is saved ---- */

enum trainer_kind { TRAINER_PARAM, TRAINER_SLOT, TRAINER_STATE };
struct trainer_tensor {
    const char *name; /* "param/fc.weight", "momentum/fc.weight", "state/bn1.running_mean" */
    enum trainer_kind kind;
    int32_t index; /* in info->params or info->states */
    bool owned;    /* else another stage has the one that counts */
    struct shape shape;
    float *data; /* may be written to between steps, followed by trainer_renew */
};
/* Parameters that are trained, in their order, each with its optimizer state behind it; then the states. */
const struct trainer_tensor *trainer_tensors(const struct trainer *t, int32_t *n);
yk_err trainer_renew(struct trainer *t, struct yk_diag *why);
/* Current contents of a weight of the training graph; NULL if it is none that changes here. */
const float *trainer_weight(const struct trainer *t, int32_t value);

/* ---- figures ---- */

int64_t trainer_held_bytes(const struct trainer *t); /* of everything, runs included; without inputs */
const char *trainer_form(const struct trainer *t, int32_t node);
void trainer_trace(
    struct trainer *t, void (*fn)(void *arg, int32_t node, const char *form, double ms), void *arg); /* exec_trace */

#endif
