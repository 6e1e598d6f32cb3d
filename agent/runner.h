/* The compute queue of an agent: one stage run at a time on the runner worker. Generations have equal parts of the
 * time; of one it is the lowest microbatch first, then the later stage (so that a microbatch leaves before the next
 * enters). */
#ifndef YK_RUNNER_H
#define YK_RUNNER_H

#include "agent/pipeline.h"

void runner_open(struct agent *a);
void runner_stop(struct agent *a); /* closing, all is unloaded: what only rests for its pace is over */
void runner_close(struct agent *a);
void runner_kick(struct agent *a);                       /* starts what can run, if nothing runs */
void runner_forget(struct agent *a, struct pipeline *p); /* hurries a run of p to its end */
void runner_stats(struct pipeline *p, bool now);         /* reports soon, or at once */
double runner_load(struct agent *a);                     /* busy share since the last call */

#endif
