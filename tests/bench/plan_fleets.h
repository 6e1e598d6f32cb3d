/* Three fleets of a thousand devices that planning is timed on. A device's pace, memory and access link go by its
 * class; the link between two devices has the lower rate of the two and both latencies. */
#ifndef YK_BENCH_PLAN_FLEETS_H
#define YK_BENCH_PLAN_FLEETS_H

#include "scheduler/view.h"

#include <stdio.h>
#include <stdlib.h>

struct fleet_class {
    int32_t count;
    double gflops, memory_gb, mbit, latency_ms;
};

#define FLEETS 3
static const struct {
    const char *name;
    struct fleet_class classes[12]; /* the first device of the first class is the source */
} fleets[FLEETS] = {
    {"campus", /* wired workstations of five years, and a few servers */
        {{380, 60, 8, 1000, 0.2}, {300, 90, 16, 1000, 0.2}, {200, 140, 16, 1000, 0.2}, {100, 220, 32, 1000, 0.2},
            {20, 600, 64, 10000, 0.1}}},
    {"phones", /* on Wi-Fi of three kinds, with a few hosts */
        {{260, 8, 1.5, 40, 4}, {210, 15, 2, 80, 3}, {180, 25, 3, 150, 3}, {150, 40, 4, 300, 2}, {100, 60, 4, 300, 2},
            {60, 90, 6, 400, 2}, {30, 120, 16, 1000, 0.5}, {10, 250, 32, 1000, 0.5}}},
    {"volunteers", /* homes behind their uplinks, and two clouds */
        {{60, 200, 32, 500, 5}, {150, 20, 4, 20, 12}, {140, 30, 4, 20, 12}, {120, 45, 8, 50, 10}, {110, 60, 8, 50, 10},
            {100, 80, 8, 100, 8}, {90, 100, 16, 100, 8}, {80, 130, 16, 200, 6}, {70, 160, 16, 200, 6},
            {50, 300, 32, 1000, 4}, {20, 800, 64, 10000, 15}, {10, 2000, 128, 10000, 20}}},
};

/* random: every device has a pace and every link a rate of its own around those of the classes. */
static inline struct view make_thousand(int which, bool random)
{
    enum { DEVICES_MOST = 1000 };
    const struct fleet_class *of[DEVICES_MOST];
    struct view v = {0};
    struct yk_rng r;
    yk_rng_seed(&r, 11);
    v.agents = calloc(DEVICES_MOST, sizeof *v.agents);
    v.links = calloc((size_t)DEVICES_MOST * DEVICES_MOST, sizeof *v.links);
    if (!v.agents || !v.links)
        exit(1);
    for (int k = 0; k < 12; k++)
        for (int32_t i = 0; i < fleets[which].classes[k].count && v.n_agents < DEVICES_MOST; i++) {
            const struct fleet_class *c = of[v.n_agents] = &fleets[which].classes[k];
            struct view_agent *a = &v.agents[v.n_agents++];
            snprintf(a->name, sizeof a->name, "%s-%d-%d", fleets[which].name, k, i);
            a->usable = true;
            a->memory_bytes = (int64_t)(c->memory_gb * 1e9);
            a->gflops = c->gflops * (random ? 0.5 + yk_rng_unit(&r) : 1);
            a->slow_factor = 1;
        }
    for (int32_t from = 0; from < v.n_agents; from++)
        for (int32_t to = 0; to < v.n_agents; to++)
            if (from != to)
                v.links[v.n_links++] = (struct view_link){.from = from,
                    .to = to,
                    .bytes_per_s = YK_MIN(of[from]->mbit, of[to]->mbit) * 125e3 * (random ? 0.5 + yk_rng_unit(&r) : 1),
                    .latency_ms = of[from]->latency_ms + of[to]->latency_ms,
                    .shared = -1,
                    .origin = VIEW_MEASURED};
    return v;
}

#endif
