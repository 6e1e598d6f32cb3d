#include "scheduler/solve_large.h"

#include "scheduler/solve_class.h"
#include "scheduler/solve_kinds.h"
#include "scheduler/solve_replicas.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define FAST 6          /* agents that are taken for what they cost alone */
#define ROOMY 3         /* and for their memory */
#define CHAINS 4        /* of kinds, kept of each size */
#define KEPT 6          /* of all sizes */
#define TOLERANCE 0.004 /* what costs so little less is not looked for */
#define ENOUGH 0.01     /* with time to spare, the exact solver is asked where the bound is so much lower */

/* What an agent costs with the whole model: enough to rank agents by. */
static double alone_ms(const struct cost_model *m, int32_t source, int32_t agent)
{
    int32_t n = m->graph->n_nodes;
    double ms = 0, latency, way = 0;
    for (int32_t i = 0; i < n; i++)
        ms += m->node_ms[(size_t)agent * (size_t)n + (size_t)i];
    if (isnan(ms))
        return INFINITY;
    for (int32_t back = 0; back < 2 && source >= 0 && source != agent; back++) {
        int32_t link = back ? cost_link(m, agent, source) : cost_link(m, source, agent);
        int32_t count = back ? m->graph->n_outputs : m->graph->n_inputs;
        int64_t bytes = 0;
        for (int32_t i = 0; i < count; i++)
            bytes += cost_value_bytes(m, back ? m->graph->outputs[i] : m->graph->inputs[i], cost_codec(m));
        if (link < 0)
            return INFINITY;
        double busy = cost_transfer_ms(m, link, bytes, &latency);
        way = YK_MAX(way, busy);
        ms += (busy + latency) / (double)YK_MAX(m->count, (int64_t)1);
    }
    struct cost_edge e;
    for (int32_t back = 0; back < 2 && source < 0; back++)
        if (back ? cost_answer(m, agent, &e) : cost_upload(m, agent, &e)) {
            way = YK_MAX(way, e.busy_ms);
            ms += (e.busy_ms + e.latency_ms) / (double)YK_MAX(m->count, (int64_t)1);
        }
    return YK_MAX(ms, way);
}

/* Of the agents that promise most so many for what they cost alone, and ROOMY for their memory. */
static void choose(const struct cost_model *m, int32_t fast, bool *chosen)
{
    const struct view *v = m->view;
    double *cost = yk_xalloc(((size_t)v->n_agents + 1) * sizeof *cost);
    if (m->req->source >= 0)
        chosen[m->req->source] = true;
    for (int32_t a = 0; a < v->n_agents; a++)
        cost[a] = alone_ms(m, m->req->source, a);
    for (int32_t k = 0; k < fast + ROOMY; k++) {
        int32_t best = -1;
        for (int32_t a = 0; a < v->n_agents; a++) {
            if (chosen[a] || !v->agents[a].usable || v->agents[a].memory_bytes <= 0)
                continue;
            bool cloud = strcmp(v->agents[a].class_name, "cloud") == 0;
            if (m->req->objective == SOLVE_CLOUD_COST && k < fast && cloud != (k % 3 == 2))
                continue;
            bool roomier = best >= 0 && v->agents[a].memory_bytes > v->agents[best].memory_bytes;
            if (best < 0 || (k < fast ? cost[a] < cost[best] : roomier))
                best = a;
        }
        if (best >= 0)
            chosen[best] = true;
    }
    for (int32_t a = 0, n = 0; a < v->n_agents; a++) /* a fleet without any that can be used: its reasons are told */
        n += chosen[a] = chosen[a] || (n == 0 && a + 1 == v->n_agents);
    free(cost);
}

/* No pipeline of any agents costs less. */
static double bound_of(const struct cost_model *m)
{
    double work, least = cost_floor(m, &work);
    return (least + (double)(m->count - 1) * work) * (1 - 1e-9);
}

static void make_view(const struct view *v, const bool *chosen, struct view *sub, int32_t *place)
{
    *sub = (struct view){.forms = v->forms, .n_forms = v->n_forms};
    sub->agents = yk_xalloc(((size_t)v->n_agents + 1) * sizeof *sub->agents);
    sub->links = yk_xalloc(((size_t)v->n_links + 1) * sizeof *sub->links);
    for (int32_t a = 0; a < v->n_agents; a++) {
        place[a] = chosen[a] ? sub->n_agents : -2;
        if (chosen[a])
            sub->agents[sub->n_agents++] = v->agents[a];
    }
    for (int32_t i = 0; i < v->n_links; i++) {
        struct view_link l = v->links[i];
        if (l.from < -1 || l.to < -1 || l.from >= v->n_agents || l.to >= v->n_agents)
            continue;
        l.from = l.from < 0 ? -1 : place[l.from];
        l.to = l.to < 0 ? -1 : place[l.to];
        if (l.from > -2 && l.to > -2)
            sub->links[sub->n_links++] = l;
    }
}

/* ---- kinds ---- */

/* More than any stage takes, as far as memory is counted in bounds. */
static int64_t enough_bytes(const struct solve_request *req, const struct view *v, const int32_t *form, int64_t size)
{
    struct cost_model m;
    struct view none = {.forms = v->forms, .n_forms = v->n_forms};
    int64_t need = 0;
    if (cost_init(&m, req, &none, form, size, NULL))
        return INT64_MAX;
    uint8_t *all = yk_xalloc((size_t)req->graph->n_nodes + 1);
    memset(all, 1, (size_t)req->graph->n_nodes);
    yk_err err = cost_memory(&m, all, 1, &need, NULL);
    free(all);
    cost_fini(&m);
    return err || need > INT64_MAX / 2 ? INT64_MAX : 2 * need;
}

struct kinds { /* what was found over kinds; the chains' agents are those of the fleet */
    struct solve_chain chains[KEPT];
    int64_t microbatch[KEPT];
    int32_t n;
    double least_ms, bound_ms;
    struct solve_trail trail;
    int64_t *trail_size; /* of each */
};

static void keep_chain(struct kinds *k, const struct solve_chain *c, int64_t microbatch)
{
    if (k->n == KEPT && k->chains[KEPT - 1].cost_ms <= c->cost_ms)
        return;
    int32_t at = k->n < KEPT ? k->n++ : KEPT - 1;
    for (; at > 0 && k->chains[at - 1].cost_ms > c->cost_ms; at--) {
        k->chains[at] = k->chains[at - 1];
        k->microbatch[at] = k->microbatch[at - 1];
    }
    k->chains[at] = *c;
    k->microbatch[at] = microbatch;
}

/* A chain of kinds becomes one of agents: the first of each kind, the others behind. */
static void name_members(const struct solve_classes *c, int32_t source, struct solve_chain *chain)
{
    int32_t next[SOLVE_CLASSES + 1] = {0};
    chain->source = source;
    for (int32_t s = 0; s < chain->n_stages; s++) {
        int32_t kind = chain->agent[s];
        if (kind == c->of[source]) { /* maybe twice */
            chain->agent[s] = source;
            continue;
        }
        while (c->of[next[kind]] != kind)
            next[kind]++;
        chain->agent[s] = next[kind]++;
    }
}

/* The whole model on one agent. */
static void price_singles(const struct cost_model *m, int32_t source, struct kinds *k)
{
    int32_t *stage_of = yk_xalloc(((size_t)m->graph->n_nodes + 1) * sizeof *stage_of);
    uint8_t *all = yk_xalloc((size_t)m->graph->n_nodes + 1);
    int64_t need = 0;
    memset(all, 1, (size_t)m->graph->n_nodes);
    bool known = cost_memory(m, all, 1, &need, NULL) == YK_OK;
    for (int32_t a = 0; a < m->view->n_agents && known; a++) {
        struct cost_line line;
        if (need > m->view->agents[a].memory_bytes || ((m->req->pin_first || m->req->pin_last) && a != source) ||
            cost_price(m, source, &a, 1, stage_of, NULL, 0, &line, NULL))
            continue;
        k->least_ms = YK_MIN(k->least_ms, line.cost_ms);
        cost_line_fini(&line);
    }
    free(all);
    free(stage_of);
}

/* source: of the fleet, a kind of its own. */
static yk_err search_kinds(const struct solve_request *req, const struct solve_classes *c, int32_t source,
    const int32_t *form, struct kinds *k, struct yk_diag *why)
{
    int64_t sizes[SOLVE_SIZES];
    int32_t n_sizes = solve_sizes(req, sizes), kind = c->of[source];
    struct solve_request q = *req;
    yk_err err = YK_OK;
    if (req->source >= 0)
        q.source = kind;
    for (int32_t i = 0; i < n_sizes && !err; i++) {
        struct cost_model m;
        struct solve_chain chains[CHAINS];
        int32_t n = 0, before = k->trail.n;
        if ((err = cost_init(&m, &q, &c->view, form, sizes[i], why)))
            break;
        price_singles(&m, kind, k);
        k->trail.least_ms = k->least_ms;
        err = solve_kinds_chains(
            &m, kind, c->count, TOLERANCE, &k->least_ms, &k->bound_ms, chains, CHAINS, &n, &k->trail, why);
        for (int32_t j = 0; j < n; j++) {
            name_members(c, source, &chains[j]);
            keep_chain(k, &chains[j], sizes[i]);
        }
        k->trail_size = yk_xrealloc(k->trail_size, ((size_t)k->trail.n + 1) * sizeof *k->trail_size);
        for (int32_t j = before; j < k->trail.n; j++) {
            name_members(c, source, &k->trail.at[j]);
            k->trail_size[j] = sizes[i];
        }
        cost_fini(&m);
    }
    return err;
}

/* What is worth a look: of a search that was stopped only its trail, so that more time finds all that less found. */
static int32_t choose_chains(const struct kinds *k, bool stopped, struct solve_chain *chains, int64_t *microbatch)
{
    int32_t n = 0;
    for (int32_t i = 0; i < k->trail.n; i++, n++) {
        chains[n] = k->trail.at[i];
        microbatch[n] = k->trail_size[i];
    }
    for (int32_t i = 0; i < k->n && !stopped; i++) {
        bool known = false;
        for (int32_t j = 0; j < k->trail.n; j++)
            known = known || (k->trail_size[j] == k->microbatch[i] && solve_dp_same(&k->trail.at[j], &k->chains[i]));
        if (known)
            continue;
        chains[n] = k->chains[i];
        microbatch[n++] = k->microbatch[i];
    }
    return n;
}

/* The agents of chains, and for the single devices one of each kind. */
static void choose_members(const struct view *v, const struct solve_classes *c, int32_t source,
    const struct solve_chain *chains, int32_t n, bool *chosen)
{
    bool seen[SOLVE_CLASSES + 1] = {false};
    chosen[source] = true;
    for (int32_t i = 0; i < n; i++)
        for (int32_t s = 0; s < chains[i].n_stages; s++)
            chosen[chains[i].agent[s]] = true;
    for (int32_t a = 0; a < v->n_agents; a++)
        if (c->of[a] >= 0 && !seen[c->of[a]])
            seen[c->of[a]] = chosen[a] = true;
}

yk_err solve_large(const struct solve_request *req, const struct view *view, struct plan **out, struct yk_diag *why)
{
    int32_t *form = yk_xalloc(((size_t)req->graph->n_nodes + 1) * sizeof *form);
    bool *chosen = yk_xalloc((size_t)view->n_agents + 1);
    int32_t *place = yk_xalloc(((size_t)view->n_agents + 1) * sizeof *place);
    struct view sub = {0};
    struct solve_request q = *req;
    const char **forms = yk_xalloc(((size_t)req->graph->n_nodes + 1) * sizeof *forms);
    struct solve_classes *classes = NULL;
    struct kinds *k = yk_xalloc(sizeof *k);
    struct solve_chain *chains = NULL;
    int64_t *microbatch = NULL;
    int64_t sizes[SOLVE_SIZES];
    int32_t n_sizes = solve_sizes(req, sizes), source = req->source;
    double start = cost_now_ms();
    yk_err err = YK_OK;
    *k = (struct kinds){.least_ms = INFINITY, .bound_ms = INFINITY};
    cost_choose_forms(req, view, form);
    int64_t enough = enough_bytes(req, view, form, sizes[n_sizes - 1]);
    bool kinds =
        !req->training && req->objective != SOLVE_CLOUD_COST; /* of those it is not known what is the cloud's */
    bool found = kinds && solve_classes_find(view, source, enough, &classes);
    bool uniform = found && classes->uniform;
    if (found && source >= 0) {
        if (classes->of[source] >= 0)
            err = search_kinds(req, classes, source, form, k, why);
        uniform = uniform && k->n > 0;
    }
    /* The source is free: one agent of each kind may be it. */
    for (int32_t i = 0, n = found && source < 0 ? classes->n : 0; i < n && !err; i++) {
        int32_t first = classes->first[i];
        struct solve_classes *c = NULL;
        if (!solve_classes_find(view, first, enough, &c)) {
            found = false;
            break;
        }
        err = search_kinds(req, c, first, form, k, why);
        if (source < 0 && k->n > 0)
            source = first;
        solve_classes_close(c);
    }
    if (err)
        goto out;
    if (req->source < 0 && source >= 0) {
        solve_classes_close(classes);
        found = solve_classes_find(view, source, enough, &classes);
        if (!found)
            classes = NULL;
    }
    uniform = uniform && found && k->n > 0;
    bool stopped = req->looks && *req->looks <= 0;
    chains = yk_xalloc(((size_t)k->trail.n + KEPT) * sizeof *chains);
    microbatch = yk_xalloc(((size_t)k->trail.n + KEPT) * sizeof *microbatch);
    int32_t n_chains = uniform ? choose_chains(k, stopped, chains, microbatch) : 0;
    /* Where the source is free, an agent without a way to that of the kinds is of none, but may do it all alone. */
    bool apart = false;
    for (int32_t a = 0; a < view->n_agents && uniform && req->source < 0; a++)
        apart = apart || (view->agents[a].usable && classes->of[a] < 0);
    double bound = found ? k->bound_ms : INFINITY, by_work = INFINITY, replicas = INFINITY;
    for (int32_t i = 0; i < n_sizes && (!found || !uniform || req->replicas || apart); i++) {
        struct cost_model m;
        if ((err = cost_init(&m, req, view, form, sizes[i], why)))
            goto out;
        by_work = YK_MIN(by_work, bound_of(&m));
        replicas = YK_MIN(replicas, solve_replicas_bound(&m));
        if (i + 1 == n_sizes) /* of several pipelines more than one of a kind may be worth something */
            choose(&m, uniform && req->replicas ? SOLVE_REPLICAS : FAST, chosen);
        cost_fini(&m);
    }
    bound = found ? (uniform ? bound : YK_MAX(bound, by_work)) : by_work;
    if (req->replicas)
        bound = YK_MIN(bound, replicas);
    if (uniform)
        choose_members(view, classes, source, chains, n_chains, chosen);
    make_view(view, chosen, &sub, place);
    for (int32_t i = 0; i < n_chains; i++) {
        chains[i].source = place[chains[i].source];
        for (int32_t s = 0; s < chains[i].n_stages; s++)
            chains[i].agent[s] = place[chains[i].agent[s]];
    }
    if (q.source >= 0)
        q.source = place[q.source];
    /* The forms of the whole fleet stay: other plans of it must give the same bits. */
    for (int32_t i = 0; i < req->graph->n_nodes; i++)
        forms[i] = form[i] >= 0 ? view->forms[form[i]] : req->forms ? req->forms[i] : NULL;
    q.forms = forms;
    bool more = req->looks ? *req->looks > 0 : req->budget_ms > 0 && cost_now_ms() - start < req->budget_ms / 2;
    struct solve_hints hints = {.chains = chains,
        .microbatch = microbatch,
        .n = n_chains,
        .search = !uniform || (more && k->least_ms * (1 - ENOUGH) > bound),
        .bound_ms = bound,
        .solver = uniform ? "kinds" : "dp-subset"};
    err = solve_search(&q, &sub, &hints, out, why);
    if (err)
        goto out;
    struct plan *p = *out;
    char *text = uniform ? yk_xasprintf("%s\n%d agents are of %d kinds; chains of kinds were looked at.",
                               p->explanation, view->n_agents, classes->n)
                         : yk_xasprintf("%s\nOf %d agents the %d that promise most were looked at.", p->explanation,
                               view->n_agents, sub.n_agents);
    free(p->explanation);
    p->explanation = text;
out:
    solve_classes_close(classes);
    free(chains);
    free(microbatch);
    free(k->trail.at);
    free(k->trail_size);
    free(k);
    free(sub.agents);
    free(sub.links);
    free(forms);
    free(place);
    free(chosen);
    free(form);
    return err;
}
