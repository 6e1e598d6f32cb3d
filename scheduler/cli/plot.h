/* A curve over steps as an SVG picture: the loss of a training. */
#ifndef YK_PLOT_H
#define YK_PLOT_H

#include "common/yk.h"

struct plot {
    const char *title;
    const float *y; /* one a step; what is not finite is left out */
    int64_t n;
    const float *marks; /* by epoch, drawn at its end on an axis of 0 to 1 (accuracy); NaN: none. May be NULL */
    int64_t n_marks, steps_per_mark;
};

/* The file's text: every step (or, where there are more than pixels, the range of those under one pixel) and their
 * moving mean. The same input gives the same text. Errors: YK_NOMEM. Owner: out is the caller's, added to. */
yk_err plot_svg(const struct plot *p, struct yk_buf *out, struct yk_diag *why);

#endif
