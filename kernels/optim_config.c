#include "kernels/optim_config.h"

#include <math.h>

struct optim optim_config(const struct train_config *c)
{
    struct optim o = optim_default(c->optimizer == TRAIN_ADAMW ? OPTIM_ADAMW : OPTIM_SGD);
    o.momentum = c->momentum;
    o.nesterov = c->nesterov;
    o.weight_decay = c->weight_decay;
    o.beta1 = c->beta1;
    o.beta2 = c->beta2;
    o.eps = c->eps;
    return o;
}

struct optim_schedule optim_config_schedule(const struct train_config *c, int64_t steps)
{
    static const enum optim_curve curves[] = {OPTIM_CONSTANT, OPTIM_STEP, OPTIM_COSINE};
    double every = c->schedule_epochs * (double)(steps / c->epochs);
    return (struct optim_schedule){.curve = curves[c->schedule],
        .lr = c->lr,
        .warmup = c->warmup,
        .total = steps,
        .every = YK_MAX((int64_t)llround(every), (int64_t)1),
        .gamma = c->schedule_gamma,
        .floor = c->schedule_floor};
}
