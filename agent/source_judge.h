/* The source of a training judges what an epoch has made, on the samples that are held out: the model as it would be
 * exported comes from yoked, and runs here alone, between microbatches of the training. */
#ifndef YK_SOURCE_JUDGE_H
#define YK_SOURCE_JUDGE_H

#include "agent/pipeline.h"

/* Answers with `judged`, later; with an error where it cannot be. */
void source_judge(struct agent *a, const struct wire_judge *w);
/* The run may not end yet: its last epoch will still be judged. */
bool source_judge_awaited(const struct pipeline *p);

#endif
