/* Progress of long work on standard error: a bar on a terminal, a plain line now and then elsewhere. */
#ifndef YK_PROGRESS_H
#define YK_PROGRESS_H

#include "common/yk.h"

struct progress {
    bool tty;
    const char *label;
    double last_s; /* of the last thing printed; 0: nothing yet */
    double start_s;
    bool still; /* nothing moves: no time left is told */
};

void progress_start(struct progress *p, bool tty, const char *label);
/* total <= 0: not known yet. text follows the bar ("312 images/s"), may be "". */
void progress_show(struct progress *p, int64_t done, int64_t total, const char *text);
void progress_end(struct progress *p); /* takes the bar away */

#endif
