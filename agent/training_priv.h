/* What training*.c share. */
#ifndef YK_TRAINING_PRIV_H
#define YK_TRAINING_PRIV_H

#include "agent/training.h"

struct half {
    struct train_unit *unit;
    enum trainer_part part;
    int64_t next; /* microbatch of the step, whatever else is here already */
};

/* Where a unit is in its step. None of this has a deadline of its own: a unit that waits for ever is found by yoked,
 * whose job hears of no step any more (job.h), and unloaded; an error or a lost connection fails the pipeline.
 *
 *   phase     until                                                   then
 *   RUNS      all microbatches of the step are through                GATHERS, or SETTLES if no other unit's sums come
 *   GATHERS   the sums of all other units that use its weights came   TAKES
 *   TAKES     the runner has copied them                              SETTLES
 *   SETTLES   its own sums are gone, and it is not held (below)       FOLDS where gradients are clipped, else MOVES
 *   FOLDS     the runner has folded the sums and squared them         ASKS; the last unit here sends the squares
 *   ASKS      yoked has told the norm of the whole gradient           MOVES
 *   MOVES     the runner has moved the parameters                     RUNS, of the next step */
enum unit_phase { UNIT_RUNS, UNIT_GATHERS, UNIT_TAKES, UNIT_SETTLES, UNIT_FOLDS, UNIT_ASKS, UNIT_MOVES };

struct train_unit {
    struct pipeline *p;
    struct trainer *trainer;
    struct stage *first, *last; /* forward and backward; the same if one stage is both */
    struct half half[2];
    int64_t *slot; /* by slot: the microbatch between its forward and its backward run, -1 */
    int n_slots;
    int64_t step, steps; /* whose microbatches are run; of the whole training */
    int64_t done;        /* microbatches of it that are through */
    enum unit_phase phase;
    bool held;       /* its parameters are being sent for a set, or wait for those of other units (training_save.c) */
    double *squares; /* by parameter; NULL without clipping */
    double norm;     /* as yoked has told */
    struct shared {  /* of weights that other units use too */
        struct edge **out, **in;
        struct out_slot *slots; /* by out */
        struct shared_place {
            struct edge *edge;
            size_t at; /* among its tensors */
            float *to;
            int64_t bytes;
        } * places;
        int n_out, n_in, n_places;
        uint8_t *left; /* by parameter: another unit sends it for checkpoints */
    } shared;
    struct bad { /* the first tensor here that is no number */
        bool found, told, last;
        int64_t step, index;
        char text[400];
    } bad;
    int64_t moved_us; /* since when */
    float *states;    /* copies of running statistics, for sending: they move with every microbatch */
    int64_t states_count;
    yk_err err;
    struct yk_diag why;
};

/* The weight that a tensor of a trainer is, or belongs to. */
static inline int32_t training_tensor_value(const struct grad_info *info, const struct trainer_tensor *x)
{
    return x->kind == TRAINER_STATE ? info->states[x->index].value : info->params[x->index].value;
}

static inline struct train_unit *training_unit_of(const struct stage *s)
{
    return s->half->unit;
}

/* training_blame.c, runner: after a run that went well; behind a step. Then on the loop, whether a weight is no number,
 * which yoked is told. */
void training_blame(struct train_unit *u, enum trainer_part part, int slot, const struct micro *m, const int64_t *sizes,
    const struct tensor *in, const struct tensor *out, uint64_t seed);
void training_blame_weights(struct train_unit *u);
bool training_tell_weights(struct train_unit *u);

/* training_shared.c: sends what others need of this unit's sums, says whether all of theirs is here, takes it (runner),
 * gives its slots back, and says whether ours is gone, so that it may be folded. */
void training_shared_send(struct train_unit *u);
bool training_shared_here(const struct train_unit *u);
bool training_shared_gone(const struct train_unit *u);
void training_shared_take(struct train_unit *u);
void training_shared_done(struct train_unit *u);
void training_shared_close(struct train_unit *u);

/* training_save.c: sends what all units here hold behind their step, once all have come that far. */
void training_save(struct pipeline *p);
/* Behind a step: holds what the unit has for a set, if one is due, and sends it when all units here have come as far.
 */
void training_maybe_hold(struct train_unit *u);

/* training_end.c: all microbatches of the unit's step are through. */
void training_end(struct train_unit *u);

#endif
