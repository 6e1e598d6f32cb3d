/* Resize: where each output element comes from, resolved and checked once for the shape rule and all kernels. */
#ifndef YK_OP_RESIZE_H
#define YK_OP_RESIZE_H

#include "common/op.h"

enum resize_mode { RESIZE_NEAREST, RESIZE_LINEAR, RESIZE_CUBIC };
enum resize_round { RESIZE_PREFER_FLOOR, RESIZE_PREFER_CEIL, RESIZE_FLOOR, RESIZE_CEIL };
enum resize_coord {
    RESIZE_HALF_PIXEL,
    RESIZE_PYTORCH_HALF_PIXEL,
    RESIZE_ALIGN_CORNERS,
    RESIZE_ASYMMETRIC,
    RESIZE_TF_HALF_PIXEL_FOR_NN,
    RESIZE_TF_CROP
};

enum { RESIZE_X, RESIZE_ROI, RESIZE_SCALES, RESIZE_SIZES }; /* input slots */
enum { RESIZE_TAPS = 4 };

struct resize_attrs {
    enum resize_mode mode;
    enum resize_round round;
    enum resize_coord coord;
    bool exclude_outside;
    float cubic_a, extrapolation;
};
yk_err op_resize_attrs(const struct node *n, struct resize_attrs *out, struct yk_diag *why);

/* One axis. scale: as given, or out / in where sizes are given. */
struct resize_axis {
    int64_t in, out;
    double scale, roi_begin, roi_end;
    bool exact; /* sizes were given: coordinates come from in and out, not from a rounded scale */
};

/* Where output element i of an axis comes from: `taps` elements of it (always inside it) and their weights. False: the
 * coordinate lies outside, and the element is the extrapolation value. */
struct resize_at {
    int taps;
    int64_t index[RESIZE_TAPS];
    double weight[RESIZE_TAPS];
};
bool op_resize_at(const struct resize_attrs *a, const struct resize_axis *axis, int64_t i, struct resize_at *out);

/* The output keeps element i of the axis at i. */
bool op_resize_is_copy(const struct resize_attrs *a, const struct resize_axis *axis);

#endif
