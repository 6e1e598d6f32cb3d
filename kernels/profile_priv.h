/* What profile.c and profile_dynamic.c share. Private to them. */
#ifndef YK_PROFILE_PRIV_H
#define YK_PROFILE_PRIV_H

#include "kernels/profile.h"

/* Seeded noise; integers: contents where known, else 0. */
void profile_fill(void *data, const struct shape *s, const int64_t *content, struct yk_rng *rng);

/* Times the dynamic nodes of a graph in one form by running all of it on made-up inputs, with limits: ms by node, 0
 * where no time could be taken. Graphs of more than PROFILE_FLOPS outside of these nodes or of PROFILE_WEIGHT_BYTES are
 * not run: beside them such nodes are small; nor is what does not fit into room_bytes with a heap of its own. */
#define PROFILE_FLOPS 5e9
#define PROFILE_WEIGHT_BYTES ((int64_t)256 << 20)
#define PROFILE_STEPS 10000
#define PROFILE_RUN_MS 1000.0
#define PROFILE_HEAP_BYTES ((int64_t)128 << 20)
yk_err profile_dynamic(const struct graph *g, struct backends *b, const struct shapes *s, const int64_t *sizes,
    const char *form, int64_t room_bytes, double *ms, struct yk_diag *why);

/* Time of one node of `op` on inputs of (n, n) floats; 0: the backend cannot, or it takes more than room_bytes. cold:
 * runs of a host backend find nothing of their tensors in the caches. */
double profile_op(struct backend *b, const char *name, int64_t n, bool cold, int64_t room_bytes);

/* Takes memory out of all caches, where a program may. */
void profile_chill(const void *data, int64_t bytes);

#endif
