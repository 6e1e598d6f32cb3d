/* Chooses which inner values of a segment are stored channels last. A kernel's bits do not depend on it, so neither do
 * a segment's, wherever it is cut. */
#ifndef YK_LAYOUT_H
#define YK_LAYOUT_H

#include "kernels/host.h"

/* kernels: of each node of the segment. last: by value id; on entry whether the value has a place of its own inside the
 * segment, on return whether it is stored channels last. */
void layout_choose(const struct backend_segment *seg, const struct host_kernel *const *kernels, uint8_t *last);

/* Whether both ways to store it are the same bytes: one channel, or one pixel. */
bool layout_neutral(const struct shape *s);

/* The shape in the order of the bytes when stored channels last: (C,H,W) and (N,C,H,W) turn to (..,H,W,C), fewer axes
 * get ones. Rank 4 always; the dtype stays. */
void layout_turn(const struct shape *s, struct shape *out);

#endif
