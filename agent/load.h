/* From a load command to a pipeline that is ready: graph, weights, execs, slots, edges. */
#ifndef YK_LOAD_H
#define YK_LOAD_H

#include "agent/pipeline.h"

void load_start(struct agent *a, struct wire_msg *msg); /* takes msg's arena */
void load_check_up(struct pipeline *p);                 /* an edge came up: perhaps it is loaded now */
/* As exec_config.weight and trainer_config.weight want it; arg: the pipeline. Errors: YK_NOTFOUND. */
yk_err load_weight(void *arg, int32_t value, const void **data, struct yk_diag *why);
void load_send_error(struct agent *a, int64_t generation, yk_err err, const char *text, int64_t lacking_bytes);
/* Frees what load made. Nothing may be busy. */
void load_free(struct pipeline *p);

#endif
