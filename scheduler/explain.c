#include "scheduler/explain.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "scheduler/explain_bars.h"

#define GAIN 0.005     /* of the step: less is nothing */
#define EACH_MS 1000   /* of one solve */
#define ASKED_AGENTS 8 /* one by one */
#define SLOW 1.02      /* factors from here on are told */
#define NEW_LINK_RATE 125e6
#define NEW_LINK_MS 0.3

struct explaining {
    const struct solve_request *req; /* as asked */
    const struct view *view;
    struct plan *p;
    struct yk_buf binds, changes; /* more lines of the explanation */
    double stop_ms, price;        /* of the plan: what is to be little */
    bool late, thrift;
};

/* ---- notes ---- */

static void add_note(struct plan_note **list, int32_t *n, const char *kind, char *text, double step_ms)
{
    *list = yk_xrealloc(*list, ((size_t)*n + 2) * sizeof **list);
    struct plan_note *note = &(*list)[(*n)++];
    *note = (struct plan_note){.text = text, .step_ms = step_ms, .cloud_ms = NAN};
    snprintf(note->kind, sizeof note->kind, "%s", kind);
}

static void add_bind(struct explaining *e, const char *kind, char *text)
{
    add_note(&e->p->binds, &e->p->n_binds, kind, text, NAN);
    yk_buf_printf(&e->binds, "\nbinds: %s", text);
}

static int32_t find_agent(const struct view *v, const char *name)
{
    for (int32_t i = 0; name && i < v->n_agents; i++)
        if (strcmp(v->agents[i].name, name) == 0)
            return i;
    return -1;
}

/* What is to be little: the step, or for cloud-cost what the cloud computes within the deadline. */
static double price_of(const struct explaining *e, const struct plan *p)
{
    return e->thrift ? p->cloud_ms : p->step_ms;
}

/* The price of the best plan of a changed request over a changed fleet; the old plan is there still. NAN: not known. */
static double solve_again(struct explaining *e, const struct solve_request *req, const struct view *v)
{
    double left = e->stop_ms - cost_now_ms();
    struct solve_request q = *req;
    struct plan *p = NULL;
    if (left <= 0) {
        e->late = true;
        return NAN;
    }
    q.forced = NULL;
    q.deadline_ms = e->thrift ? q.deadline_ms : 0;
    q.budget_ms = YK_MIN(left, EACH_MS);
    if (!v || solve_plan(&q, v, &p, NULL))
        return NAN;
    double price = price_of(e, p);
    plan_free(p);
    return e->req->forced ? price : YK_MIN(price, e->price);
}

/* Takes text. True: it brings something. */
static bool add_change(struct explaining *e, const char *kind, char *text, double price)
{
    double now = e->price;
    bool gain = price < now * (1 - GAIN);
    if (isnan(price)) {
        free(text);
        return false;
    }
    add_note(&e->p->changes, &e->p->n_changes, kind, text, e->thrift ? NAN : price);
    if (e->thrift) {
        e->p->changes[e->p->n_changes - 1].cloud_ms = price;
        if (gain && price > 0)
            yk_buf_printf(&e->changes, "\nwith %s: %.4g ms of the cloud a step, now %.4g", text, price, now);
        else if (gain)
            yk_buf_printf(&e->changes, "\nwith %s: nothing of the cloud, now %.4g ms a step", text, now);
        else if (now > 0) /* else put_more says so of all */
            yk_buf_printf(&e->changes, "\nwith %s: no less of the cloud", text);
    } else if (gain)
        yk_buf_printf(&e->changes, "\nwith %s: %.4g ms a step, %.2f times as fast", text, price, now / price);
    else
        yk_buf_printf(&e->changes, "\nwith %s: no faster", text);
    return gain;
}

/* ---- changes ---- */

static const struct view_link *fastest_of(const struct view *v, int32_t agent)
{
    const struct view_link *best = NULL;
    for (int32_t i = 0; i < v->n_links; i++) {
        const struct view_link *l = &v->links[i];
        if ((l->from == agent || l->to == agent) && l->from >= 0 && l->to >= 0 && l->origin != VIEW_UNKNOWN &&
            (!best || l->bytes_per_s > best->bytes_per_s))
            best = l;
    }
    return best;
}

struct view *explain_one_more(const struct view *v, int32_t agent)
{
    struct view *w = view_copy(v);
    if (!w)
        return NULL;
    int32_t media = 0, at = w->n_agents, old_links = w->n_links;
    struct view_time *times = yk_try_alloc((size_t)v->agents[agent].n_times + 1, sizeof *times);
    struct view_agent *agents = yk_try_alloc((size_t)at + 2, sizeof *agents);
    struct view_link *links = yk_try_alloc(2 * (size_t)old_links + 3, sizeof *links);
    if (!times || !agents || !links) {
        free(times);
        free(agents);
        free(links);
        view_free(w);
        return NULL;
    }
    memcpy(agents, w->agents, (size_t)at * sizeof *agents);
    memcpy(links, w->links, (size_t)old_links * sizeof *links);
    if (v->agents[agent].n_times)
        memcpy(times, v->agents[agent].times, (size_t)v->agents[agent].n_times * sizeof *times);
    free(w->agents);
    free(w->links);
    w->agents = agents;
    w->links = links;
    agents[at] = agents[agent];
    agents[at].times = times;
    agents[at].lacks = NULL;
    agents[at].n_lacks = 0;
    agents[at].usable = true;
    agents[at].busy_frac = 0;
    snprintf(agents[at].name, sizeof agents[at].name, "%.50s (new)", v->agents[agent].name);
    snprintf(agents[at].id, sizeof agents[at].id, "new");
    w->n_agents++;
    for (int32_t i = 0; i < old_links; i++)
        media = YK_MAX(media, links[i].shared + 1);
    for (int32_t i = 0; i < old_links; i++) {
        struct view_link l = links[i];
        if ((l.from != agent && l.to != agent) || l.from == l.to)
            continue;
        int32_t other = l.from == agent ? l.to : l.from;
        l.from = l.from == agent ? at : l.from;
        l.to = l.to == agent ? at : l.to;
        l.shared = l.shared >= 0 ? media + 2 + other : -1;
        links[w->n_links++] = l;
    }
    const struct view_link *like = fastest_of(v, agent);
    for (int back = 0; back < 2; back++)
        links[w->n_links++] = (struct view_link){.from = back ? at : agent,
            .to = back ? agent : at,
            .bytes_per_s = like ? like->bytes_per_s : NEW_LINK_RATE,
            .latency_ms = like ? like->latency_ms : NEW_LINK_MS,
            .cpu_ns_per_byte = like ? like->cpu_ns_per_byte : 0,
            .shared = like && like->shared >= 0 ? media : -1,
            .origin = VIEW_MEASURED};
    return w;
}

/* The agent that is fastest at all nodes of the graph, but for one. -1: there is none. */
static int32_t best_but(const struct cost_model *m, int32_t but)
{
    int32_t n = m->graph->n_nodes, best = -1;
    double least = INFINITY;
    for (int32_t a = 0; a < m->view->n_agents; a++) {
        double ms = 0;
        for (int32_t i = 0; i < n; i++)
            ms += m->node_ms[(size_t)a * (size_t)n + (size_t)i];
        if (a != but && m->view->agents[a].usable && m->view->agents[a].memory_bytes > 0 && ms < least) {
            best = a;
            least = ms;
        }
    }
    return best;
}

static void one_more(struct explaining *e, int32_t agent)
{
    struct view *w = explain_one_more(e->view, agent);
    const char *name = e->view->agents[agent].name;
    char *text = fastest_of(e->view, agent) ? yk_xasprintf("another device like %s", name)
                                            : yk_xasprintf("another device like %s, 1 Gbit/s away", name);
    add_change(e, "device", text, solve_again(e, e->req, w));
    view_free(w);
}

/* resource: a link or medium that is busiest; -1: all of them. */
static void faster_links(struct explaining *e, const struct cost_model *m, int32_t resource)
{
    struct view *w = view_copy(e->view);
    char name[160];
    bool any = false;
    for (int32_t i = 0; w && i < w->n_links; i++)
        if (resource < 0 || m->link_resource[i] == resource) {
            w->links[i].bytes_per_s *= 2;
            any = true;
        }
    cost_resource_name(m, resource, name);
    if (any)
        add_change(e, "link",
            resource < 0 ? yk_xstrdup("every link twice as fast") : yk_xasprintf("%s twice as fast", name),
            solve_again(e, e->req, w));
    view_free(w);
}

/* agent -1: of all. */
static double more_memory(struct explaining *e, int32_t agent)
{
    struct view *w = view_copy(e->view);
    for (int32_t a = 0; w && a < w->n_agents; a++)
        if (agent < 0 || a == agent) {
            int64_t *bytes = &w->agents[a].memory_bytes;
            *bytes = *bytes > INT64_MAX / 2 ? INT64_MAX : 2 * *bytes;
        }
    double step = solve_again(e, e->req, w);
    view_free(w);
    return step;
}

static int64_t memory_of(const struct plan *p, const char *agent)
{
    int64_t bytes = 0;
    for (int32_t i = 0; i < p->n_pipelines; i++)
        for (int32_t s = 0; s < p->pipelines[i].n_stages; s++)
            if (strcmp(p->pipelines[i].stages[s].agent, agent) == 0)
                bytes += p->pipelines[i].stages[s].memory_bytes;
    return bytes;
}

static void look_at_memory(struct explaining *e)
{
    if (!add_change(e, "memory", yk_xstrdup("twice the memory on every agent"), more_memory(e, -1)))
        return;
    for (int32_t a = 0; a < YK_MIN(e->view->n_agents, ASKED_AGENTS); a++) {
        const struct view_agent *agent = &e->view->agents[a];
        double price = more_memory(e, a);
        if (price < e->price * (1 - GAIN))
            add_bind(e, "memory",
                yk_xasprintf("memory of %s: this plan takes %.1f of its %.1f MB; with twice as much %.4g ms%s a step",
                    agent->name, (double)memory_of(e->p, agent->name) / 1e6, (double)agent->memory_bytes / 1e6, price,
                    e->thrift ? " of the cloud" : ""));
    }
}

/* It rests (for its heat or its charge), or runs slower than it was profiled. */
static bool is_held_back(const struct view_agent *a)
{
    return a->memory_bytes > 0 && (!a->usable || a->slow_factor > SLOW);
}

/* Agents that are slower than they were profiled, left out for their heat, or at work for others. */
static void look_at_agents(struct explaining *e, bool heat)
{
    for (int32_t a = 0; a < YK_MIN(e->view->n_agents, ASKED_AGENTS); a++) {
        const struct view_agent *agent = &e->view->agents[a];
        if (heat ? !is_held_back(agent) : !(agent->busy_frac > 0.01))
            continue;
        struct view *w = view_copy(e->view);
        if (w && heat) {
            w->agents[a].usable = true;
            w->agents[a].slow_factor = 1;
        } else if (w) {
            w->agents[a].busy_frac = 0;
        }
        char *text = yk_xasprintf("%s %s", agent->name,
            !heat           ? "free of other jobs"
            : agent->usable ? "at its full pace"
                            : "rested and at its full pace");
        bool gain = add_change(e, heat ? "heat" : "busy", text, solve_again(e, e->req, w));
        if (gain && heat && !agent->usable)
            add_bind(e, "heat", yk_xasprintf("%s is not used, %s", agent->name, agent->why_not));
        else if (gain && heat)
            add_bind(
                e, "heat", yk_xasprintf("%s takes %.2f times what its profile says", agent->name, agent->slow_factor));
        else if (gain)
            add_bind(e, "busy",
                yk_xasprintf("%.0f %% of %s is taken by other pipelines", 100 * agent->busy_frac, agent->name));
        view_free(w);
    }
}

static void look_at_pins(struct explaining *e)
{
    static const char *const names[] = {"first", "last"};
    for (int last = 0; last < 2; last++) {
        struct solve_request q = *e->req;
        bool *pin = last ? &q.pin_last : &q.pin_first;
        if (!*pin)
            continue;
        *pin = false;
        if (add_change(e, "pin", yk_xasprintf("no pin of the %s stage", names[last]), solve_again(e, &q, e->view)))
            add_bind(e, "pin", yk_xasprintf("the %s stage is pinned to the source, %s", names[last], e->p->source));
    }
}

/* Only where something crosses at all, or might. */
static void look_at_codec(struct explaining *e)
{
    static const bool halves[] = {true, true, false};
    struct solve_request q = *e->req;
    if (e->view->n_agents < 2 || (q.codec_allowed && (q.codec_allowed[CODEC_FP16] || q.codec_allowed[CODEC_INT8])))
        return;
    q.codec_allowed = halves;
    add_change(e, "codec", yk_xstrdup("fp16 on links (--codec=fp16, it loses bits)"), solve_again(e, &q, e->view));
}

static void look_at_changes(struct explaining *e, const struct cost_model *m, int32_t busiest)
{
    int32_t n = m->view->n_agents, source = find_agent(e->view, e->p->source);
    int32_t other = best_but(m, source), single = other < 0 ? best_but(m, -1) : other;
    if (single >= 0)
        one_more(e, single);
    if (busiest >= 0 && busiest < n && busiest != single)
        one_more(e, busiest);
    if (busiest >= n)
        faster_links(e, m, busiest);
    faster_links(e, m, -1);
    look_at_memory(e);
    look_at_agents(e, true);
    look_at_agents(e, false);
    look_at_pins(e);
    look_at_codec(e);
}

/* ---- the plan priced again ---- */

static yk_err price_again(const struct cost_model *m, const struct plan *p, struct candidate *c)
{
    const struct view *v = m->view;
    int32_t source = find_agent(v, p->source),
            *stage_of = yk_xalloc(((size_t)m->graph->n_nodes + 1) * sizeof *stage_of);
    *c = (struct candidate){.microbatch = m->microbatch, .count = m->count, .given = p, .cost_ms = p->cost_ms};
    c->lines = yk_xalloc(((size_t)p->n_pipelines + 1) * sizeof *c->lines);
    c->shares = yk_xalloc(((size_t)p->n_pipelines + 1) * sizeof *c->shares);
    c->depth = p->n_pipelines ? p->pipelines[0].depth : 1;
    yk_err err = source < 0 ? YK_INVAL : YK_OK;
    for (int32_t i = 0; i < p->n_pipelines && !err; i++) {
        const struct plan_pipeline *line = &p->pipelines[i];
        int32_t *agents = yk_xalloc(((size_t)line->n_stages + 1) * sizeof *agents);
        for (int32_t s = 0; s < line->n_stages && !err; s++)
            err = (agents[s] = find_agent(v, line->stages[s].agent)) < 0 ? YK_INVAL : YK_OK;
        if (!err)
            err = plan_stage_of(p, i, m->graph->n_nodes, stage_of, NULL);
        if (!err)
            err = cost_price(m, source, agents, line->n_stages, stage_of, p, i, &c->lines[i], NULL);
        c->shares[i] = line->share;
        c->n_lines += !err;
        free(agents);
    }
    free(stage_of);
    return err;
}

/* What is busy longest: the plan is no faster than that. */
static int32_t look_at_busiest(struct explaining *e, const struct cost_model *m, const double *busy)
{
    int32_t top = 0;
    char name[160];
    for (int32_t r = 1; r < m->n_resources; r++)
        top = busy[r] > busy[top] ? r : top;
    cost_resource_name(m, top, name);
    add_bind(e, top < m->view->n_agents ? "compute" : "link",
        yk_xasprintf("%s %s %.4g of %.4g ms (%.0f %%)", name, top < m->view->n_agents ? "computes" : "carries",
            busy[top], e->p->step_ms, e->p->step_ms > 0 ? 100 * YK_MIN(busy[top] / e->p->step_ms, 1.0) : 0));
    return top;
}

static void put_more(struct explaining *e)
{
    if (e->thrift && !(e->price > 0))
        yk_buf_printf(&e->changes, "\nThe cloud computes nothing of a step: no change takes less of it.");
    if (e->late)
        yk_buf_printf(&e->changes, "\nNot all changes were looked at: there was no time for more.");
    yk_buf_add(&e->binds, "", 1);
    yk_buf_add(&e->changes, "", 1);
    if (!e->binds.failed && !e->changes.failed) {
        char *old = e->p->explanation;
        e->p->explanation = yk_xasprintf("%s%s%s", old ? old : "", (char *)e->binds.data, (char *)e->changes.data);
        free(old);
    }
    yk_buf_free(&e->binds);
    yk_buf_free(&e->changes);
}

void explain_plan(
    const struct solve_request *req, const struct view *v, const struct explain_options *o, struct plan *p)
{
    struct explaining e = {.req = req, .view = v, .p = p, .stop_ms = cost_now_ms() + o->budget_ms};
    e.thrift = req->objective == SOLVE_CLOUD_COST;
    e.price = price_of(&e, p);
    struct solve_request q = *req;
    struct cost_model m;
    struct candidate c = {0};
    int32_t *form = yk_xalloc(((size_t)req->graph->n_nodes + 1) * sizeof *form);
    q.forced = p;
    cost_choose_forms(&q, v, form);
    yk_err err = v->n_agents > 0 ? cost_init(&m, &q, v, form, p->microbatch, NULL) : YK_INVAL;
    free(form);
    if (err)
        return;
    double *busy = yk_xalloc(((size_t)m.n_resources + 1) * sizeof *busy);
    if (price_again(&m, p, &c) == YK_OK && explain_bars(&m, &c, req->training, p, busy) == YK_OK && o->changes) {
        p->binds = yk_xalloc(sizeof *p->binds);
        p->changes = yk_xalloc(sizeof *p->changes);
        int32_t busiest = look_at_busiest(&e, &m, busy);
        if (req->forced)
            add_change(&e, "plan", yk_xstrdup("the planner's own plan"), solve_again(&e, req, v));
        else
            look_at_changes(&e, &m, busiest);
        put_more(&e);
    }
    free(busy);
    candidate_fini(&c);
    cost_fini(&m);
}
