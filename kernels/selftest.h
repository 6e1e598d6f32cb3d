/* Known cases that a backend from outside must answer like the reference before anything else is given to it. */
#ifndef YK_SELFTEST_H
#define YK_SELFTEST_H

#include "kernels/backend.h"

/* Runs the cases of which it claims a node; *cases (may be NULL) says how many those are. b is a plug-in.
 * Errors: YK_REFUSED (an answer is wrong or not finite: why names case and error), YK_TIMEOUT (it hung and is
 * quarantined), what the backend reported. Takes milliseconds. */
yk_err selftest(struct backend *b, struct pool *pool, int *cases, struct yk_diag *why);
int selftest_count(void); /* of all cases */

#endif
