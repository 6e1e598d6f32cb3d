/* What train*.c share. */
#ifndef YK_TRAIN_PRIV_H
#define YK_TRAIN_PRIV_H

#include "kernels/train.h"

/* Where a value that a part takes comes from. */
enum train_from { TRAIN_OUTSIDE, TRAIN_SAVED, TRAIN_TAKEN };

/* What becomes of a value that a part makes. */
enum train_to { TRAIN_KEPT, TRAIN_GRADIENT, TRAIN_NEXT_STATE };

struct train_end { /* of a part's run: a value that comes in or goes out */
    int32_t value;
    int32_t border; /* its place there, -1 if it is not in it */
    int32_t index;  /* SAVED, TAKEN: position in the forward part's outputs or inputs; GRADIENT: the first of
                       trainer.sums with this value; NEXT_STATE: in info->states */
    uint8_t kind;
};

struct train_part {
    struct trainer *trainer;
    struct exec *exec; /* NULL: the stage has no node of this part */
    struct train_end *in, *out;
    int32_t n_in, n_out;
    struct trainer_border border;
    int32_t *border_in, *border_out;
    void **memory;              /* slots * n_out: of GIVEN and saved values */
    struct tensor *args, *outs; /* of a run */
};

struct train_sum { /* the gradient of one use */
    int32_t value;
    int32_t more; /* the next sum of the same value (a + b has one gradient for both), -1 */
    float *data;
    int64_t count;
};

struct train_param {
    float *data; /* NULL: not used here */
    bool owned;
    int32_t *sums; /* by use: in trainer.sums, -1 if neither made here nor owned */
    float *slots[OPTIM_SLOTS_MAX];
    int64_t count;
};

struct train_tile { /* a block of an owned parameter */
    int32_t param;
    int64_t first, count;
};

struct trainer {
    const struct graph *graph;
    const struct grad_info *info;
    struct pool *pool;
    struct optim optim;
    double clip_norm;
    int slots;
    uint8_t *in_stage;
    struct train_part part[3]; /* by enum trainer_part */
    struct tensor *taken;      /* slots * inputs of the forward part */
    struct train_param *params;
    float **states; /* by state; NULL: not here */
    struct train_sum *sums;
    int32_t n_sums;
    bool single;     /* as in the config */
    bool fresh;      /* no microbatch is in the sums */
    bool added;      /* some gradients of the run in progress are in the sums, */
    bool torn;       /* or of one that failed */
    bool blames;     /* the run in progress is for trainer_blame */
    void **variable; /* by value id: current contents, as exec_config wants them */
    uint8_t *changed;
    struct train_tile *tiles;
    double *tile_squares;
    int64_t n_tiles;
    struct trainer_tensor *tensors;
    int32_t n_tensors;
    int64_t held; /* besides the execs */
    void (*trace)(void *arg, int32_t node, const char *form, double ms);
    void *trace_arg;
};

/* exec_config.take of a part: adds a gradient to its sums. */
void train_take(void *arg, int32_t out, const struct tensor *made);

/* Fills the part's args and outs for a run in a slot. */
void train_bind(struct trainer *t, struct train_part *p, int slot, const struct shapes *s, const struct tensor *in);

#endif
