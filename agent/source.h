/* The source's side of a run: opens the data set, keeps `depth` microbatches in flight, collects the outputs and sends
 * one result for each. */
#ifndef YK_SOURCE_H
#define YK_SOURCE_H

#include "agent/pipeline.h"

void source_start(struct pipeline *p, struct wire_msg *msg);       /* takes msg's arena */
void source_stop(struct pipeline *p, yk_err err, const char *why); /* ends a run: run_done with the error */
void source_halt(struct pipeline *p);  /* of a training: no step is begun any more; tells yoked which is the first */
void source_abort(struct pipeline *p); /* without a message; the pipeline goes */
void source_free(struct pipeline *p);  /* when nothing is busy any more */
void source_kick(struct pipeline *p);  /* a slot became free or an output ready */
void source_retry(struct agent *a);    /* a connection to yoked is back */

#endif
