/* How good a model is that the fleet trained. */
#ifndef YK_CLI_TRAIN_JUDGE_H
#define YK_CLI_TRAIN_JUDGE_H

#include "scheduler/cli/cli.h"

struct train_score {
    double test, held; /* accuracy over the test split, over what the training held out; NaN: nothing to tell it by */
};

/* By batch jobs of the fleet over data that training `id` names itself, so that who follows it later needs no flags for
 * it; of uploaded data the test split is read at --data. What does not judge is said on standard error. */
/* out comes with what is known; NaN: it is not. */
void train_judge(struct cli *c, const char *id, const struct yk_buf *model, struct train_score *out);
/* What an epoch (from 1) has made, judged on what is held out, as a line of --json, and one for people unless a bar
 * stands there. accuracy NaN: none. */
void train_judge_tell(struct cli *c, int64_t epoch, double loss, double accuracy);

#endif
