#include "agent/machine.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <time.h>

int machine_cores(void)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    if (sched_getaffinity(0, sizeof set, &set) != 0)
        return 1;
    int n = CPU_COUNT(&set);
    return n < 1 ? 1 : n;
}

/* The number in a one-line file; -1 if there is none ("max" included). */
static int64_t read_number(const char *root, const char *path)
{
    char line[64], *full = yk_xasprintf("%s%s", root, path);
    FILE *f = fopen(full, "re");
    free(full);
    if (!f)
        return -1;
    int64_t v = -1;
    if (fgets(line, sizeof line, f)) {
        char *end;
        long long n = strtoll(line, &end, 10);
        if (end != line && n >= 0)
            v = n;
    }
    fclose(f);
    return v;
}

/* What is left below the limits of a cgroup and the ones above it. path is written to. */
static int64_t left_below(const char *root, const char *mount, char *path, const char *limit, const char *usage)
{
    int64_t left = INT64_MAX;
    while (path[0]) {
        char key[700];
        snprintf(key, sizeof key, "%s%s/%s", mount, path, limit);
        int64_t max = read_number(root, key);
        snprintf(key, sizeof key, "%s%s/%s", mount, path, usage);
        int64_t now = read_number(root, key);
        if (max >= 0 && now >= 0)
            left = YK_MIN(left, YK_MAX(max - now, 0));
        char *slash = strrchr(path, '/');
        if (!slash || slash == path)
            break;
        *slash = 0;
    }
    return left;
}

/* Of this process's cgroups: version 2, and the memory controller of version 1. */
static int64_t cgroup_left(const char *root)
{
    char full[512], line[512];
    int64_t left = INT64_MAX;
    snprintf(full, sizeof full, "%s/proc/self/cgroup", root);
    FILE *f = fopen(full, "re");
    if (!f)
        return left;
    while (fgets(line, sizeof line, f)) {
        line[strcspn(line, "\n")] = 0;
        char *old = strstr(line, ":memory:/"); /* "9:memory:/a/b" */
        if (!strncmp(line, "0::/", 4))
            left = YK_MIN(left, left_below(root, "/sys/fs/cgroup", line + 3, "memory.max", "memory.current"));
        else if (old)
            left = YK_MIN(left,
                left_below(root, "/sys/fs/cgroup/memory", old + 8, "memory.limit_in_bytes", "memory.usage_in_bytes"));
    }
    fclose(f);
    return left;
}

int64_t machine_memory_available(const char *root)
{
    char full[512], line[256];
    long long kib = -1;
    snprintf(full, sizeof full, "%s/proc/meminfo", root);
    FILE *f = fopen(full, "re");
    if (!f)
        return 0;
    while (fgets(line, sizeof line, f))
        if (sscanf(line, "MemAvailable: %lld kB", &kib) == 1)
            break;
    fclose(f);
    if (kib < 0 || kib > INT64_MAX / 1024)
        return 0;
    return YK_MIN((int64_t)kib * 1024, cgroup_left(root));
}

void machine_os(char *out, size_t size)
{
    struct utsname u;
    if (uname(&u) != 0)
        snprintf(out, size, "Linux");
    else
        snprintf(out, size, "%s %s %s", u.sysname, u.release, u.machine);
}

static int64_t clock_us(clockid_t id)
{
    struct timespec t;
    clock_gettime(id, &t);
    return (int64_t)t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

int64_t machine_monotonic_us(void)
{
    return clock_us(CLOCK_MONOTONIC);
}

int64_t machine_cpu_us(void)
{
    return clock_us(CLOCK_PROCESS_CPUTIME_ID);
}
