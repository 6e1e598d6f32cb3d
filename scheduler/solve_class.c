#include "scheduler/solve_class.h"

#include <stdlib.h>
#include <string.h>

static bool same_agent(const struct view_agent *a, const struct view_agent *b, int64_t enough)
{
    return YK_MIN(a->memory_bytes, enough) == YK_MIN(b->memory_bytes, enough) && a->gflops == b->gflops &&
           a->gbytes_per_s == b->gbytes_per_s && a->slow_factor == b->slow_factor && a->busy_frac == b->busy_frac &&
           a->message_ms == b->message_ms && a->n_times == b->n_times &&
           (a->times == b->times || memcmp(a->times, b->times, (size_t)a->n_times * sizeof *a->times) == 0);
}

static bool find_kinds(const struct view *v, int32_t alone, int64_t enough, struct solve_classes *c)
{
    int32_t last = -1;
    for (int32_t a = 0; a < v->n_agents; a++) {
        const struct view_agent *agent = &v->agents[a];
        int32_t k = last; /* neighbours are often alike */
        c->of[a] = -1;
        if (!agent->usable || agent->memory_bytes <= 0)
            continue;
        if (a == alone || k < 0 || c->first[k] == alone || !same_agent(agent, &v->agents[c->first[k]], enough))
            for (k = 0; k < c->n; k++)
                if (a != alone && c->first[k] != alone && same_agent(agent, &v->agents[c->first[k]], enough))
                    break;
        if (k == c->n) {
            if (c->n == SOLVE_CLASSES)
                return false;
            c->first[c->n] = a;
            c->count[c->n++] = 0;
        }
        c->of[a] = last = k;
        c->agents[k].memory_bytes =
            c->count[k] ? YK_MIN(c->agents[k].memory_bytes, agent->memory_bytes) : agent->memory_bytes;
        c->count[k]++;
    }
    return true;
}

/* The links of each pair of classes: the best of them, and whether they are all alike. */
static void find_links(const struct view *v, struct solve_classes *c)
{
    enum { SIDE = SOLVE_CLASSES + 1 };
    int64_t n_of[SIDE * SIDE] = {0};
    struct view_link *best = yk_xalloc((size_t)SIDE * SIDE * sizeof *best);
    c->uniform = true;
    for (int32_t i = 0; i < v->n_links; i++) {
        const struct view_link *l = &v->links[i];
        if (l->origin == VIEW_UNKNOWN || !(l->bytes_per_s > 0) || l->from < -1 || l->to < -1 ||
            l->from >= v->n_agents || l->to >= v->n_agents)
            continue;
        int32_t from = l->from < 0 ? -1 : c->of[l->from], to = l->to < 0 ? -1 : c->of[l->to];
        if ((l->from >= 0 && from < 0) || (l->to >= 0 && to < 0) || (from < 0 && to < 0))
            continue;
        size_t slot = (size_t)(from + 1) * SIDE + (size_t)(to + 1);
        struct view_link *b = &best[slot];
        if (n_of[slot]++ == 0) {
            *b = *l;
            b->from = from;
            b->to = to;
            b->shared = -1;
            continue;
        }
        if (b->bytes_per_s == l->bytes_per_s && b->latency_ms == l->latency_ms &&
            b->cpu_ns_per_byte == l->cpu_ns_per_byte)
            continue;
        c->uniform = false;
        b->bytes_per_s = YK_MAX(b->bytes_per_s, l->bytes_per_s);
        b->latency_ms = YK_MIN(b->latency_ms, l->latency_ms);
        b->cpu_ns_per_byte = YK_MIN(b->cpu_ns_per_byte, l->cpu_ns_per_byte);
    }
    for (int32_t from = -1; from < c->n; from++)
        for (int32_t to = -1; to < c->n; to++) {
            size_t slot = (size_t)(from + 1) * SIDE + (size_t)(to + 1);
            int64_t n = from < 0 ? 1 : c->count[from], others = to < 0 ? 1 : c->count[to];
            if (n_of[slot] == 0)
                continue;
            c->uniform = c->uniform && n_of[slot] == n * (from == to ? n - 1 : others);
            c->links[c->view.n_links++] = best[slot];
        }
    free(best);
}

bool solve_classes_find(const struct view *v, int32_t alone, int64_t enough_bytes, struct solve_classes **out)
{
    struct solve_classes *c = yk_xalloc(sizeof *c);
    c->of = yk_xalloc(((size_t)v->n_agents + 1) * sizeof *c->of);
    if (!find_kinds(v, alone, enough_bytes, c)) {
        solve_classes_close(c);
        return false;
    }
    c->view = (struct view){.agents = c->agents, .n_agents = c->n, .links = c->links, .forms = v->forms};
    c->view.n_forms = v->n_forms;
    for (int32_t k = 0; k < c->n; k++) {
        int64_t memory = c->agents[k].memory_bytes;
        c->agents[k] = v->agents[c->first[k]];
        c->agents[k].memory_bytes = memory;
    }
    find_links(v, c);
    *out = c;
    return true;
}

void solve_classes_close(struct solve_classes *c)
{
    if (!c)
        return;
    free(c->of);
    free(c);
}
