/* What moves parameters: SGD and AdamW in the order of f32 operations of PyTorch 1.13, the schedules of the learning
 * rate, and clipping by the global norm. Every function is a fixed sequence of operations per element without fused
 * multiply-adds, so its bits are the same on every machine and however elements are split between threads. */
#ifndef YK_OPTIM_H
#define YK_OPTIM_H

#include "common/yk.h"

enum optim_kind { OPTIM_SGD, OPTIM_ADAMW };

struct optim {
    enum optim_kind kind;
    double momentum; /* SGD; 0: none */
    bool nesterov;
    double weight_decay; /* SGD: added to the gradient; AdamW: decoupled */
    double beta1, beta2, eps;
};

/* SGD with momentum 0.9 and no decay; AdamW with betas 0.9 and 0.999, eps 1e-8 and decay 0.01. */
struct optim optim_default(enum optim_kind kind);
/* Errors: YK_INVAL names the member, its range and what it is. */
yk_err optim_check(const struct optim *o, struct yk_diag *why);

/* State tensors a parameter has, of its own shape, zero at first; and what they are called ("momentum", "exp_avg"). */
#define OPTIM_SLOTS_MAX 2
int optim_slots(const struct optim *o);
const char *optim_slot_name(const struct optim *o, int slot);

/* One step of n elements. step counts from 1. The gradient is g * scale (1: as it is), as after clip_grad_norm_.
 * Shapes: p, g, slots[0 .. optim_slots()) of n, none overlaps another.  Thread: any, over disjoint elements. */
void optim_step(const struct optim *o, double lr, int64_t step, float scale, float *p, const float *g,
    float *const *slots, int64_t n);

/* The square sum of a tensor in double: blocks of OPTIM_BLOCK elements, eight lanes each, folded in order. */
#define OPTIM_BLOCK 65536
double optim_square_sum_block(const float *g, int64_t n); /* n <= OPTIM_BLOCK */
double optim_square_sum(const float *g, int64_t n);
/* What clip_grad_norm_ multiplies gradients by, given the norm of all of them; 1 if clip_norm is 0. */
float optim_clip_scale(double clip_norm, double norm);

/* acc += g by element. */
void optim_add(float *acc, const float *g, int64_t n);

enum optim_curve { OPTIM_CONSTANT, OPTIM_STEP, OPTIM_COSINE };
struct optim_schedule {
    enum optim_curve curve;
    double lr;
    int64_t warmup; /* steps in which the rate rises from lr / warmup to lr; the curve begins behind them */
    int64_t total;  /* steps of the whole training: where the cosine ends */
    int64_t every;  /* OPTIM_STEP: steps between two falls */
    double gamma;   /* OPTIM_STEP: what the rate is multiplied by at a fall */
    double floor;   /* OPTIM_COSINE: the rate at its end */
};
double optim_lr(const struct optim_schedule *s, int64_t step); /* step counts from 0 */

#endif
