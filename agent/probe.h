/* What this device is: backends with their GEMM and copy speed, measured once on the runner and kept in storage; and
 * the times of a model's nodes, on request. */
#ifndef YK_PROBE_H
#define YK_PROBE_H

#include "agent/core.h"

/* From storage, or measured; then done(a) on the loop, never from inside the call. */
void probe_device(struct agent *a, void (*done)(struct agent *a));
void probe_model(struct agent *a, struct wire_msg *msg); /* a profile command; takes msg's arena */
/* What results of one device and set-up are kept under: hash of the backends that work, isas and threads; 16 hex
 * digits. */
void probe_key(struct agent *a, char out[17]);

/* What measuring may take: half of what is free here, within the limits of this process's cgroups, and of the budget
 * (0: none). */
int64_t probe_room(int64_t memory_bytes);

#endif
