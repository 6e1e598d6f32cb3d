/* Profiles of models by agent, and the snapshot that the planner gets. */
#include "scheduler/fleet_priv.h"

#include "common/log.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PROFILE_BUDGET_MS 4000
#define PROFILE_TIMEOUT_US 60000000
#define MAX_ROWS 400000
#define MESSAGE_MS 0.08 /* measured on two cores: two stages in processes of one machine, microbatch 1 */

struct profile_row {
    int32_t node;
    char form[64];
    int64_t size;
    double ms, prepare_ms;
    int64_t packed_bytes, workspace_bytes;
};

enum profile_state { PROFILE_ASKED, PROFILE_HERE, PROFILE_FAILED };

/* Of one graph on one agent with these backends. */
struct fleet_profile {
    struct fleet_profile *next;
    char *graph; /* fleet_graph.key */
    char agent[33], backends[160];
    enum profile_state state;
    int64_t id, asked_us;
    struct profile_row *rows;
    int32_t n, cap;
};

static struct fleet_profile *find(struct fleet *f, const struct fleet_agent *a, const char *graph)
{
    for (struct fleet_profile *p = f->profiles; p; p = p->next)
        if (strcmp(p->graph, graph) == 0 && strcmp(p->agent, a->id) == 0 && strcmp(p->backends, a->backends) == 0)
            return p;
    return NULL;
}

static void add_row(struct fleet_profile *p, const struct profile_row *row)
{
    if (p->n >= MAX_ROWS)
        return;
    if (p->n == p->cap) {
        p->cap = p->cap ? 2 * p->cap : 256;
        p->rows = yk_xrealloc(p->rows, (size_t)p->cap * sizeof *p->rows);
    }
    p->rows[p->n++] = *row;
}

static void from_store(void *arg, const struct store_time *t)
{
    struct profile_row row = {.node = t->node,
        .size = t->size,
        .ms = t->ms,
        .prepare_ms = t->prepare_ms,
        .packed_bytes = t->packed_bytes,
        .workspace_bytes = t->workspace_bytes};
    snprintf(row.form, sizeof row.form, "%s", t->form);
    add_row(arg, &row);
}

bool fleet_profile_ready(struct fleet_agent *a, const struct fleet_graph *graph, const int64_t *sizes, int n_sizes)
{
    struct fleet *f = a->fleet;
    struct fleet_profile *p = find(f, a, graph->key);
    int64_t now = net_now_us(f->config.net);
    if (p && p->state == PROFILE_ASKED && now - p->asked_us > PROFILE_TIMEOUT_US) {
        log_warn("agent %s gave no profile of graph %.12s in time; its times are estimated", a->name, graph->key);
        p->state = PROFILE_FAILED;
        p->n = 0;
    }
    if (p)
        return p->state != PROFILE_ASKED;
    p = yk_xalloc(sizeof *p);
    p->graph = yk_xstrdup(graph->key);
    snprintf(p->agent, sizeof p->agent, "%s", a->id);
    snprintf(p->backends, sizeof p->backends, "%s", a->backends);
    p->next = f->profiles;
    f->profiles = p;
    /* An emulated device may be another one today: its times are asked for again, which costs it nothing. */
    if (!a->emulated)
        store_load_profile(f->config.store, graph->key, a->id, a->backends, from_store, p);
    if (p->n) {
        p->state = PROFILE_HERE;
        return true;
    }
    p->id = ++f->next_profile;
    p->asked_us = now;
    struct wire_profile ask = {.id = p->id,
        .term = f->config.term,
        .graph = graph->hash,
        .sizes = {(int64_t *)sizes, (size_t)n_sizes},
        .budget_ms = PROFILE_BUDGET_MS,
        .training = graph->training};
    ask.others.at = (struct wire_size *)graph->others;
    ask.others.n = graph->n_others;
    if (fleet_send(a, WIRE_TYPE_profile, &ask))
        p->state = PROFILE_FAILED;
    return p->state != PROFILE_ASKED;
}

static int by_key(const void *x, const void *y)
{
    const struct profile_row *a = x, *b = y;
    if (a->node != b->node)
        return a->node < b->node ? -1 : 1;
    int form = strcmp(a->form, b->form);
    return form ? form : a->size < b->size ? -1 : a->size > b->size;
}

static void save(struct fleet *f, struct fleet_profile *p)
{
    struct store_time *rows = yk_xalloc(((size_t)p->n + 1) * sizeof *rows);
    for (int32_t i = 0; i < p->n; i++)
        rows[i] = (struct store_time){p->rows[i].node, p->rows[i].form, p->rows[i].size, p->rows[i].ms,
            p->rows[i].prepare_ms, p->rows[i].packed_bytes, p->rows[i].workspace_bytes};
    store_put_profile(f->config.store, p->graph, p->agent, p->backends, rows, p->n);
    free(rows);
}

void fleet_profile_result(struct fleet_agent *a, const struct wire_profile_result *r)
{
    struct fleet *f = a->fleet;
    struct fleet_profile *p = f->profiles;
    while (p && (p->id != r->id || strcmp(p->agent, a->id) != 0))
        p = p->next;
    if (!p || p->state != PROFILE_ASKED)
        return;
    p->asked_us = net_now_us(f->config.net);
    for (size_t i = 0; i < r->times.n; i++) {
        const struct wire_node_time *t = &r->times.at[i];
        struct profile_row row = {.node = (int32_t)t->node,
            .size = t->size,
            .ms = t->ms,
            .prepare_ms = t->prepare_ms,
            .packed_bytes = t->packed_bytes,
            .workspace_bytes = t->workspace_bytes};
        if (t->node < 0 || t->node > INT32_MAX || !(t->ms >= 0) || !isfinite(t->ms) || t->size < 1 ||
            t->packed_bytes < 0 || t->workspace_bytes < 0)
            continue;
        snprintf(row.form, sizeof row.form, "%.63s", t->form);
        add_row(p, &row);
    }
    if (r->more)
        return;
    if (r->error[0]) {
        log_warn("agent %s could not profile graph %.12s: %s", a->name, p->graph, r->text);
        p->state = PROFILE_FAILED;
        p->n = 0;
        return;
    }
    qsort(p->rows, (size_t)p->n, sizeof *p->rows, by_key);
    p->state = PROFILE_HERE;
    save(f, p);
}

void fleet_profile_forget(struct fleet *f, const struct fleet_agent *a)
{
    for (struct fleet_profile **at = &f->profiles; *at;) {
        struct fleet_profile *p = *at;
        if (strcmp(p->agent, a->id) != 0 || (p->state == PROFILE_HERE && !a->emulated)) {
            at = &p->next;
            continue;
        }
        *at = p->next;
        free(p->graph);
        free(p->rows);
        free(p);
    }
}

void fleet_profile_fini(struct fleet *f)
{
    while (f->profiles) {
        struct fleet_profile *p = f->profiles;
        f->profiles = p->next;
        free(p->graph);
        free(p->rows);
        free(p);
    }
}

/* ---- the snapshot ---- */

static int32_t form_index(struct view *v, const char *name)
{
    for (int32_t i = 0; i < v->n_forms; i++)
        if (strcmp(v->forms[i], name) == 0)
            return i;
    v->forms = yk_xrealloc(v->forms, ((size_t)v->n_forms + 1) * sizeof *v->forms);
    v->forms[v->n_forms] = yk_xstrdup(name);
    return v->n_forms++;
}

static int by_index(const void *x, const void *y)
{
    const struct view_time *a = x, *b = y;
    if (a->node != b->node)
        return a->node < b->node ? -1 : 1;
    if (a->form != b->form)
        return a->form < b->form ? -1 : 1;
    return a->size < b->size ? -1 : a->size > b->size;
}

static void put_agent(struct fleet *f, struct view *v, struct fleet_agent *a, const char *graph)
{
    struct view_agent *to = &v->agents[v->n_agents++];
    *to = (struct view_agent){.usable = true,
        .memory_bytes = a->memory_bytes > 0 ? YK_MAX(a->memory_bytes - a->reserved_bytes, (int64_t)1) : 0,
        .gflops = a->gflops,
        .gbytes_per_s = a->gbytes_per_s,
        .slow_factor = a->slow_factor / policy_share(&a->device, f->config.policy),
        .message_ms = MESSAGE_MS};
    snprintf(to->id, sizeof to->id, "%s", a->id);
    snprintf(to->name, sizeof to->name, "%s", a->name);
    snprintf(to->class_name, sizeof to->class_name, "%s", a->class_name);
    if (a->device.mode == POLICY_RESTING) {
        to->usable = false;
        snprintf(to->why_not, sizeof to->why_not, "it rests: %.140s", a->device_text);
    } else if (a->memory_bytes <= 0) {
        to->usable = false;
        snprintf(to->why_not, sizeof to->why_not, "memory is unknown, and then nothing is placed there");
    }
    struct fleet_profile *p = graph ? find(f, a, graph) : NULL;
    if (!p || p->state != PROFILE_HERE)
        return;
    struct view_time *times = yk_xalloc(((size_t)p->n + 1) * sizeof *times);
    for (int32_t i = 0; i < p->n; i++)
        times[i] = (struct view_time){p->rows[i].node, form_index(v, p->rows[i].form), p->rows[i].size, p->rows[i].ms,
            p->rows[i].prepare_ms, p->rows[i].packed_bytes, p->rows[i].workspace_bytes, 0};
    qsort(times, (size_t)p->n, sizeof *times, by_index);
    const struct fleet_measured *m = &a->measured;
    if (m->graph && strncmp(graph, m->graph, strlen(m->graph)) == 0)
        to->slow_factor =
            view_spread(times, p->n, m->nodes, m->n_nodes, a->slow_factor) / policy_share(&a->device, f->config.policy);
    to->times = times;
    to->n_times = p->n;
}

bool fleet_measures(struct fleet_agent *a, int64_t generation, const char *graph_hash, const uint8_t *nodes, int32_t n)
{
    struct fleet_measured *m = &a->measured;
    if (m->graph && generation <= m->generation)
        return false;
    m->generation = generation;
    if (m->graph && strcmp(m->graph, graph_hash) == 0 && m->n_nodes == n && memcmp(m->nodes, nodes, (size_t)n) == 0)
        return false;
    bool first = !m->graph;
    free(m->graph);
    free(m->nodes);
    m->graph = yk_xstrdup(graph_hash);
    m->nodes = yk_xalloc((size_t)n + 1);
    memcpy(m->nodes, nodes, (size_t)n);
    m->n_nodes = n;
    return !first;
}

static int32_t agent_index(const struct view *v, const char *id)
{
    for (int32_t i = 0; i < v->n_agents; i++)
        if (strcmp(v->agents[i].id, id) == 0)
            return i;
    return -1;
}

#define NOBODY (-2)

static int32_t end_index(const struct view *v, const char *id)
{
    int32_t i = id[0] ? agent_index(v, id) : -1;
    return id[0] && i < 0 ? NOBODY : i;
}

static void put_link(struct view *v, const struct fleet_link *l, int32_t from, int32_t to)
{
    v->links[v->n_links++] = (struct view_link){.from = from,
        .to = to,
        .bytes_per_s = l->bytes_per_s,
        .latency_ms = l->latency_ms,
        /* A half-duplex pair is one medium, named by its two ends. */
        .shared = l->half_duplex ? (YK_MIN(from, to) + 1) * (v->n_agents + 1) + YK_MAX(from, to) + 1 : -1,
        .cpu_ns_per_byte = l->cpu_ns_per_byte,
        .origin = l->bytes_per_s > 0 ? VIEW_MEASURED : VIEW_UNKNOWN};
}

/* An agent whose way to yoked is not known is taken to have the worst of those that are: not to be measured is no
 * advantage. */
static void fill_uplinks(struct view *v)
{
    struct fleet_link worst = {.bytes_per_s = INFINITY};
    bool *known = yk_xalloc(((size_t)v->n_agents + 1) * sizeof *known);
    for (int32_t i = 0; i < v->n_links; i++) {
        const struct view_link *l = &v->links[i];
        if ((l->from >= 0 && l->to >= 0) || l->origin != VIEW_MEASURED)
            continue;
        known[YK_MAX(l->from, l->to)] = true;
        worst.bytes_per_s = YK_MIN(worst.bytes_per_s, l->bytes_per_s);
        worst.latency_ms = YK_MAX(worst.latency_ms, l->latency_ms);
        worst.cpu_ns_per_byte = YK_MAX(worst.cpu_ns_per_byte, l->cpu_ns_per_byte);
    }
    for (int32_t a = 0; a < v->n_agents && isfinite(worst.bytes_per_s); a++)
        if (!known[a]) {
            put_link(v, &worst, -1, a);
            put_link(v, &worst, a, -1);
        }
    free(known);
}

struct view *fleet_view(struct fleet *f, const char *graph)
{
    struct view *v = yk_xalloc(sizeof *v);
    int32_t n = fleet_alive(f), links = 0;
    v->agents = yk_xalloc(((size_t)n + 1) * sizeof *v->agents);
    v->forms = yk_xalloc(sizeof *v->forms);
    for (struct fleet_agent *a = f->agents; a; a = a->next)
        if (a->state == FLEET_ALIVE)
            put_agent(f, v, a, graph);
    for (struct fleet_link *l = f->links; l; l = l->next)
        links++;
    v->links = yk_xalloc(((size_t)links + 2 * (size_t)n + 1) * sizeof *v->links);
    for (struct fleet_link *l = f->links; l; l = l->next) {
        int32_t from = end_index(v, l->from), to = end_index(v, l->to);
        if (from != NOBODY && to != NOBODY)
            put_link(v, l, from, to);
    }
    fill_uplinks(v);
    return v;
}
