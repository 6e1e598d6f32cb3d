/* What the core must ask the machine and no vtable tells: one file per operating system (machine_linux.c). */
#ifndef YK_MACHINE_H
#define YK_MACHINE_H

#include "common/yk.h"

int machine_cores(void); /* that this process may use; at least 1 */
/* Free for new use, within the limits of this process's cgroup; 0 unknown. root: "" (or a test's folder). */
int64_t machine_memory_available(const char *root);
void machine_os(char *out, size_t size); /* "Linux 6.1.0 x86_64" */
/* For durations measured off the loop thread, and for CPU time per byte. Any thread. */
int64_t machine_monotonic_us(void);
int64_t machine_cpu_us(void); /* of the whole process */

#endif
