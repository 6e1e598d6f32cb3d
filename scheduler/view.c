#include "scheduler/view.h"

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
    for (int32_t i = 0; v->agents && i < v->n_agents; i++)
        free((void *)v->agents[i].times);
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
        for (int32_t i = 0; i < w->n_agents; i++)
            w->agents[i].times = NULL;
        for (int32_t i = 0; i < w->n_agents && ok; i++) {
            w->agents[i].times = copy_array(v->agents[i].times, v->agents[i].n_times, sizeof *v->agents[i].times);
            ok = w->agents[i].times != NULL;
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
