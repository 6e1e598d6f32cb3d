/* How good a model is that the fleet trained. */
#ifndef YK_CLI_TRAIN_JUDGE_H
#define YK_CLI_TRAIN_JUDGE_H

#include "scheduler/cli/cli.h"

struct train_score {
    double test, held; /* accuracy over the test split, over what the training held out; NaN: nothing to tell it by */
};

/* By batch jobs of the fleet over data that training `id` names itself, so that who follows it later needs no flags for
 * it; of uploaded data the test split is read at --data. What does not judge is said on standard error. */
void train_judge(struct cli *c, const char *id, const struct yk_buf *model, struct train_score *out);

#endif
