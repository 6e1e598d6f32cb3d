/* The only bridge from any thread to a loop thread: a queue of calls and an eventfd that wakes the loop.
 * The fd is written once per batch (only when the queue was empty), calls run in order of posting. */
#ifndef YK_MAILBOX_H
#define YK_MAILBOX_H

#include "common/yk.h"

struct mailbox;

yk_err mailbox_open(struct mailbox **out);
int mailbox_fd(const struct mailbox *m);                             /* readable when mailbox_run has work */
void mailbox_post(struct mailbox *m, void (*fn)(void *), void *arg); /* any thread; never blocks on the loop */
/* Runs what was posted before the call, on the caller's thread; returns how many. What a call posts runs next time, so
 * a chain of posts cannot starve the loop's other events. Not from inside a call. */
int mailbox_run(struct mailbox *m);
void mailbox_close(struct mailbox *m); /* drops what is queued; NULL allowed */

#endif
