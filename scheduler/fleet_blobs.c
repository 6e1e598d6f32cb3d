/* What agents have of a graph's weights: asked once, refreshed now and then without a wait, and marked when they have
 * loaded. */
#include "scheduler/fleet_priv.h"

#include "common/graph.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ASK_AGAIN_US 60000000 /* a cache that grew over its cap has less than it said */
#define GRAPHS_MOST 64        /* of one agent; the one that was asked for longest ago goes */

/* Of one graph on one agent. */
struct fleet_blobs {
    struct fleet_blobs *next;
    char agent[33], graph[65];
    int64_t id, asked_us;
    bool known, waits; /* for an answer */
    int32_t n_values, n;
    int32_t *value; /* in the order that was asked */
    uint8_t *lacks; /* by value */
};

static struct fleet_blobs *find(const struct fleet *f, const char *agent, const char *graph)
{
    for (struct fleet_blobs *b = f->blobs; b; b = b->next)
        if (strcmp(b->agent, agent) == 0 && strcmp(b->graph, graph) == 0)
            return b;
    return NULL;
}

static void drop(struct fleet_blobs **at)
{
    struct fleet_blobs *b = *at;
    *at = b->next;
    free(b->value);
    free(b->lacks);
    free(b);
}

static struct fleet_blobs *make(struct fleet_agent *a, const char *hash, const struct graph *g)
{
    struct fleet *f = a->fleet;
    struct fleet_blobs **last = NULL, *b;
    int n = 0;
    for (struct fleet_blobs **at = &f->blobs; *at; at = &(*at)->next)
        if (strcmp((*at)->agent, a->id) == 0) {
            n++;
            if (!last || (*at)->asked_us < (*last)->asked_us)
                last = at;
        }
    if (n >= GRAPHS_MOST)
        drop(last);
    b = yk_xalloc(sizeof *b);
    memcpy(b->agent, a->id, sizeof b->agent);
    snprintf(b->graph, sizeof b->graph, "%s", hash);
    b->n_values = g->n_values;
    b->lacks = yk_xalloc((size_t)g->n_values + 1);
    b->value = yk_xalloc(((size_t)g->n_values + 1) * sizeof *b->value);
    for (int32_t v = 0; v < g->n_values; v++)
        if (g->values[v].kind == VALUE_WEIGHT && g->values[v].has_hash && !g->values[v].data)
            b->value[b->n++] = v;
    b->next = f->blobs;
    f->blobs = b;
    return b;
}

static void ask(struct fleet_agent *a, struct fleet_blobs *b, const struct graph *g)
{
    struct fleet *f = a->fleet;
    uint8_t *hashes = yk_xalloc((size_t)b->n * 32 + 1);
    for (int32_t i = 0; i < b->n; i++)
        memcpy(hashes + (size_t)i * 32, g->values[b->value[i]].hash, 32);
    struct wire_blobs_ask w = {.id = ++f->next_blobs, .term = f->config.term, .hashes = {hashes, (size_t)b->n * 32}};
    b->id = w.id;
    b->asked_us = net_now_us(f->config.net);
    b->waits = fleet_send(a, WIRE_TYPE_blobs_ask, &w) == YK_OK;
    free(hashes);
}

bool fleet_blobs_ready(struct fleet_agent *a, const char *hash, const struct graph *g)
{
    struct fleet_blobs *b = find(a->fleet, a->id, hash);
    if (!a->tells_blobs)
        return true;
    if (!b)
        b = make(a, hash, g);
    int64_t age = net_now_us(a->fleet->config.net) - b->asked_us;
    if (b->n > 0 && !b->waits && (!b->asked_us || age > ASK_AGAIN_US))
        ask(a, b, g);
    return b->known || !b->waits;
}

void fleet_blobs_answer(struct fleet_agent *a, const struct wire_blobs_held *r)
{
    struct fleet_blobs *b = a->fleet->blobs;
    while (b && (strcmp(b->agent, a->id) != 0 || b->id != r->id))
        b = b->next;
    if (!b || !b->waits)
        return;
    b->waits = false;
    if (r->held.len != ((size_t)b->n + 7) / 8)
        return; /* not what was asked: nothing is known of it */
    b->known = true;
    memset(b->lacks, 0, (size_t)b->n_values);
    for (int32_t i = 0; i < b->n; i++)
        b->lacks[b->value[i]] = !(r->held.data[i / 8] >> i % 8 & 1);
}

struct fetched {
    struct fleet_blobs *b;
};

static void have(void *arg, int32_t value)
{
    struct fetched *f = arg;
    f->b->lacks[value] = 0;
}

void fleet_blobs_loaded(struct fleet_agent *a, const char *hash, const struct graph *g, const uint8_t *nodes)
{
    struct fetched f = {find(a->fleet, a->id, hash)};
    for (int32_t i = 0; f.b && f.b->n_values == g->n_values && i < g->n_nodes; i++)
        if (nodes[i])
            node_each_use(&g->nodes[i], have, &f);
}

void fleet_blobs_view(const struct fleet *f, struct view *v, const char *hash)
{
    for (int32_t a = 0; a < v->n_agents; a++) {
        const struct fleet_blobs *b = find(f, v->agents[a].id, hash);
        if (!b || !b->known)
            continue;
        uint8_t *lacks = yk_xalloc((size_t)b->n_values + 1);
        memcpy(lacks, b->lacks, (size_t)b->n_values);
        v->agents[a].lacks = lacks;
        v->agents[a].n_lacks = b->n_values;
    }
}

void fleet_blobs_forget(struct fleet *f, const struct fleet_agent *a)
{
    for (struct fleet_blobs **at = &f->blobs; *at;)
        if (strcmp((*at)->agent, a->id) == 0)
            drop(at);
        else
            at = &(*at)->next;
}

void fleet_blobs_fini(struct fleet *f)
{
    while (f->blobs)
        drop(&f->blobs);
}
