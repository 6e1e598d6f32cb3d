/* Values by name: an open-addressing table in the graph's arena, kept by graph_add_value and graph_prune. */
#include <string.h>

#include "common/graph.h"

/* FNV-1a, stirred with the table's address so that a file cannot be made to collide. */
static uint64_t hash_name(const struct graph *g, const char *s)
{
    uint64_t h = 0xcbf29ce484222325u ^ (uint64_t)(uintptr_t)g->index;
    for (; *s; s++)
        h = (h ^ (uint8_t)*s) * 0x100000001b3u;
    return (h ^ h >> 29) * 0x9e3779b97f4a7c15u >> 20;
}

/* Of two values with one name the first one is found: later ones lie behind it. */
static void insert(struct graph *g, int32_t value)
{
    uint32_t mask = g->cap_index - 1, at = (uint32_t)hash_name(g, g->values[value].name) & mask;
    while (g->index[at] != YK_ABSENT)
        at = (at + 1) & mask;
    g->index[at] = value;
}

static void fill(struct graph *g)
{
    for (uint32_t i = 0; i < g->cap_index; i++)
        g->index[i] = YK_ABSENT;
    for (int32_t v = 0; v < g->n_values; v++)
        insert(g, v);
}

bool graph_index_add(struct graph *g, int32_t value)
{
    if ((uint32_t)value + 1 > g->cap_index / 2) {
        uint32_t cap = g->cap_index ? g->cap_index * 2 : 64;
        int32_t *index = cap < (uint32_t)1 << 31 ? yk_arena_alloc(g->arena, cap, sizeof *index) : NULL;
        if (!index)
            return false;
        g->index = index;
        g->cap_index = cap;
        fill(g);
    }
    insert(g, value);
    return true;
}

void graph_index_renew(struct graph *g)
{
    if (g->index)
        fill(g);
}

int32_t graph_find_value(const struct graph *g, const char *name)
{
    if (!g->index)
        return YK_ABSENT;
    uint32_t mask = g->cap_index - 1, at = (uint32_t)hash_name(g, name) & mask;
    for (; g->index[at] != YK_ABSENT; at = (at + 1) & mask)
        if (strcmp(g->values[g->index[at]].name, name) == 0)
            return g->index[at];
    return YK_ABSENT;
}
