/* One pool of threads for compute. Work is a grid of tiles that depends on the op's shape alone; threads only decide
 * who does which tile, so a result never depends on how many there are. */
#ifndef YK_POOL_H
#define YK_POOL_H

#include "common/yk.h"

struct pool;

/* threads >= 1 counts the caller; 1 makes no thread (and works where there are none). */
yk_err pool_open(int threads, struct pool **out, struct yk_diag *why);
void pool_close(struct pool *p);
int pool_threads(const struct pool *p);
/* Runs fn(arg, tile, thread) for tile 0..tiles-1, thread < pool_threads; returns when all are done. One caller at a
 * time. */
void pool_run(struct pool *p, int64_t tiles, void (*fn)(void *arg, int64_t tile, int thread), void *arg);

#endif
