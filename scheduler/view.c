#include "scheduler/view.h"

#include "scheduler/policy.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static void *copy_array(const void *from, int32_t n, size_t each)
{
    void *to = yk_try_alloc((size_t)n + 1, each);
    if (to && n)
        memcpy(to, from, (size_t)n * each);
    return to;
}

void view_free(struct view *v)
{
    if (!v)
        return;
    for (int32_t i = 0; v->agents && i < v->n_agents; i++) {
        free((void *)v->agents[i].times);
        free((void *)v->agents[i].lacks);
    }
    for (int32_t i = 0; v->forms && i < v->n_forms; i++)
        free(v->forms[i]);
    free(v->agents);
    free(v->links);
    free(v->forms);
    free(v);
}

const char *view_origin_name(enum view_origin o)
{
    static const char *const names[] = {"unknown", "roofline", "profile", "measured", "emulated"};
    return names[o];
}

/* Of a node at the largest size, in its best form, for one sample; at: its first row, moved behind its last. */
static double node_ms(const struct view_time *t, int32_t n, int32_t *at)
{
    double least = INFINITY;
    int32_t node = t[*at].node;
    for (; *at < n && t[*at].node == node; ++*at) {
        bool last = *at + 1 == n || t[*at + 1].node != node || t[*at + 1].form != t[*at].form;
        if (last)
            least = YK_MIN(least, t[*at].ms / (double)YK_MAX(t[*at].size, (int64_t)1));
    }
    return least;
}

double view_spread(struct view_time *times, int32_t n, const uint8_t *measured, int32_t n_nodes, double slow)
{
    double all = 0, part = 0;
    for (int32_t i = 0; i < n;) {
        int32_t node = times[i].node;
        double ms = node_ms(times, n, &i);
        all += ms;
        part += node < n_nodes && measured[node] ? ms : 0;
    }
    if (!(all > 0) || !(part > 0))
        return slow;
    double rest = policy_pace_rest(slow, part / all);
    for (int32_t i = 0; i < n; i++)
        if (times[i].node < n_nodes && measured[times[i].node])
            times[i].extra = slow / rest;
    return rest;
}

struct view *view_copy(const struct view *v)
{
    struct view *w = yk_try_alloc(1, sizeof *w);
    if (!w)
        return NULL;
    w->agents = copy_array(v->agents, v->n_agents, sizeof *v->agents);
    w->links = copy_array(v->links, v->n_links, sizeof *v->links);
    w->forms = yk_try_alloc((size_t)v->n_forms + 1, sizeof *w->forms);
    bool ok = w->agents && w->links && w->forms;
    if (ok) {
        w->n_agents = v->n_agents;
        w->n_links = v->n_links;
        for (int32_t i = 0; i < w->n_agents; i++) {
            w->agents[i].times = NULL;
            w->agents[i].lacks = NULL;
        }
        for (int32_t i = 0; i < w->n_agents && ok; i++) {
            w->agents[i].times = copy_array(v->agents[i].times, v->agents[i].n_times, sizeof *v->agents[i].times);
            ok = w->agents[i].times != NULL;
            if (v->agents[i].lacks)
                w->agents[i].lacks = copy_array(v->agents[i].lacks, v->agents[i].n_lacks, 1);
            ok = ok && !v->agents[i].lacks == !w->agents[i].lacks;
        }
        for (; ok && w->n_forms < v->n_forms; w->n_forms++)
            w->forms[w->n_forms] = yk_xstrdup(v->forms[w->n_forms]);
    }
    if (!ok) {
        view_free(w);
        return NULL;
    }
    return w;
}
