/* What the Resize kernels share. */
#ifndef YK_RESIZE_H
#define YK_RESIZE_H

#include "common/op_resize.h"
#include "kernels/host.h"

/* Axis d of a Resize call, from its shapes and inputs. */
struct resize_axis resize_axis_of(const struct host_call *c, int d);

#endif
