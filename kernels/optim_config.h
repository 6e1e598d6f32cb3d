/* What a client asks of a training, as the optimizer and the schedule take it. */
#ifndef YK_OPTIM_CONFIG_H
#define YK_OPTIM_CONFIG_H

#include "common/train_config.h"
#include "kernels/optim.h"

struct optim optim_config(const struct train_config *c);
/* steps: of the whole training, c->epochs times those of an epoch. */
struct optim_schedule optim_config_schedule(const struct train_config *c, int64_t steps);

#endif
