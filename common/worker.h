/* A named thread that takes work off the loop: value in, value out.
 * On a net without threads (net_mem) the work runs on the loop at a later turn, so tests are repeatable. */
#ifndef YK_WORKER_H
#define YK_WORKER_H

#include "common/net.h"

struct worker;

yk_err worker_open(struct net *net, const char *name, bool threaded, struct worker **out, struct yk_diag *why);
/* run(arg) on the thread, in order of posting; then done(arg) on the loop. done may be NULL. Loop thread only. */
void worker_post(struct worker *w, net_fn run, net_fn done, void *arg);
int worker_backlog(const struct worker *w); /* posted and not yet done */
/* Finishes what is queued, joins, then runs the remaining done callbacks before it returns. */
void worker_close(struct worker *w);

#endif
