#include "scheduler/infeasible.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "scheduler/cost.h"

#define EACH_MS 1000           /* of one plan */
#define PAIRS_OF 6             /* agents up to here have links one by one */
#define MESH_OF 64             /* and here all at once */
#define ONE_BY_ONE 12          /* agents up to here have everything else one by one */
#define ENOUGH (INT64_MAX / 4) /* bytes */
#define FEW_SAMPLES 2

/* ---- what there is ---- */

static bool memory_unknown(const struct view_agent *a)
{
    return a->memory_bytes <= 0;
}

static bool linked(const struct view *v, int32_t from, int32_t to)
{
    for (int32_t i = 0; i < v->n_links; i++) {
        const struct view_link *l = &v->links[i];
        if (l->from == from && l->to == to && l->origin != VIEW_UNKNOWN && l->bytes_per_s > 0)
            return true;
    }
    return false;
}

static bool has_batch_norm(const struct graph *g)
{
    for (int32_t i = 0; i < g->n_nodes; i++)
        if (strcmp(g->nodes[i].op->name, "BatchNormTrain") == 0)
            return true;
    return false;
}

/* Nodes that the agent cannot run, in the forms of the request; the first of them. */
static int32_t count_missing(const struct cost_model *m, int32_t agent, int32_t *first)
{
    int32_t n = m->graph->n_nodes, missing = 0;
    for (int32_t i = n - 1; i >= 0; i--)
        if (isnan(m->node_ms[(size_t)agent * (size_t)n + (size_t)i])) {
            missing++;
            *first = i;
        }
    return missing;
}

/* A model of the smallest microbatch, for numbers. False: shapes are not known there. */
static bool open_model(const struct solve_request *req, const struct view *v, struct cost_model *m)
{
    int64_t sizes[SOLVE_SIZES];
    int32_t *form = yk_xalloc(((size_t)req->graph->n_nodes + 1) * sizeof *form);
    solve_sizes(req, sizes);
    cost_choose_forms(req, v, form);
    yk_err err = cost_init(m, req, v, form, sizes[0], NULL);
    free(form);
    return !err;
}

static void add(struct infeasible_set *set, enum infeasible_kind kind, int32_t agent, int32_t other)
{
    if (set->n < INFEASIBLE_ITEMS)
        set->items[set->n++] = (struct infeasible_item){kind, agent, other};
}

static void add_links(const struct view *v, struct infeasible_set *out)
{
    if (v->n_agents > PAIRS_OF) {
        if (v->n_agents <= MESH_OF)
            add(out, INFEASIBLE_LINKS, -1, -1);
        return;
    }
    for (int32_t a = 0; a < v->n_agents; a++)
        for (int32_t b = a + 1; b < v->n_agents; b++)
            if (!linked(v, a, b) || !linked(v, b, a))
                add(out, INFEASIBLE_LINKS, a, b);
}

static void add_agents(const struct solve_request *req, const struct view *v, struct infeasible_set *out)
{
    struct cost_model m;
    bool known = open_model(req, v, &m), each = v->n_agents <= ONE_BY_ONE;
    int32_t first;
    for (int32_t a = 0; a < v->n_agents && each && known; a++)
        if (count_missing(&m, a, &first))
            add(out, INFEASIBLE_OPS, a, -1);
    if (known)
        cost_fini(&m);
    if (!each)
        add(out, INFEASIBLE_OPS, -1, -1);
    for (int32_t a = 0; a < v->n_agents && each; a++)
        if (!v->agents[a].usable && !memory_unknown(&v->agents[a]))
            add(out, INFEASIBLE_NOT_USED, a, -1);
    if (!each)
        add(out, INFEASIBLE_NOT_USED, -1, -1);
}

void infeasible_all(const struct solve_request *req, const struct view *v, struct infeasible_set *out)
{
    int64_t fixed;
    bool batch = graph_batch_dim(req->graph, &fixed) >= 0, lossy = req->codec_allowed != NULL;
    for (int c = CODEC_FP16; c <= CODEC_INT8 && lossy; c++)
        lossy = req->codec_allowed[c];
    *out = (struct infeasible_set){.n = 0};
    add_links(v, out);
    add_agents(req, v, out);
    if (req->deadline_ms > 0 && !lossy)
        add(out, INFEASIBLE_CODEC, -1, -1);
    if (req->forms)
        add(out, INFEASIBLE_FORMS, -1, -1);
    if (batch && strcmp(req->job, "infer") == 0 && req->batch > 1 && req->microbatch <= 0)
        add(out, INFEASIBLE_BATCH, -1, -1);
    if (batch && req->training && has_batch_norm(req->graph))
        add(out, INFEASIBLE_BATCH_NORM, -1, -1);
    if (batch && req->microbatch > 0)
        add(out, INFEASIBLE_MICROBATCH, -1, -1);
    if (req->pin_first)
        add(out, INFEASIBLE_PIN_FIRST, -1, -1);
    if (req->pin_last)
        add(out, INFEASIBLE_PIN_LAST, -1, -1);
    if (v->n_agents > ONE_BY_ONE)
        add(out, INFEASIBLE_MEMORY, -1, -1);
    for (int32_t a = 0; a < v->n_agents && v->n_agents <= ONE_BY_ONE; a++)
        add(out, INFEASIBLE_MEMORY, a, -1);
    if (req->deadline_ms > 0)
        add(out, INFEASIBLE_DEADLINE, -1, -1);
}

/* ---- leaving out ---- */

/* Links between two agents (or all of them) where there are none: as fast as the fastest that is known. */
static bool link_up(struct view *w, int32_t one, int32_t other)
{
    double rate = 125e6;
    int32_t n = one < 0 ? w->n_agents : 2, agents[2] = {one, other}, old = w->n_links, grown = old;
    struct view_link *links = yk_try_alloc((size_t)old + (size_t)n * (size_t)n + 1, sizeof *links);
    if (!links)
        return false;
    for (int32_t i = 0; i < old; i++)
        rate = w->links[i].origin == VIEW_UNKNOWN ? rate : YK_MAX(rate, w->links[i].bytes_per_s);
    if (old)
        memcpy(links, w->links, (size_t)old * sizeof *links);
    for (int32_t i = 0; i < n; i++)
        for (int32_t k = 0; k < n; k++) {
            int32_t from = one < 0 ? i : agents[i], to = one < 0 ? k : agents[k];
            if (from != to && !linked(w, from, to))
                links[grown++] = (struct view_link){
                    .from = from, .to = to, .bytes_per_s = rate, .shared = -1, .origin = VIEW_MEASURED};
        }
    free(w->links);
    w->links = links;
    w->n_links = grown;
    return true;
}

static void relax_agent(struct view_agent *a, enum infeasible_kind kind)
{
    if (kind == INFEASIBLE_MEMORY) {
        a->usable = a->usable || memory_unknown(a);
        a->memory_bytes = ENOUGH;
    } else if (kind == INFEASIBLE_NOT_USED) {
        a->usable = a->usable || !memory_unknown(a);
    } else {
        a->n_times = 0; /* anything, at some pace */
        a->gflops = a->gflops > 0 ? a->gflops : 1;
    }
}

struct view *infeasible_relax(const struct solve_request *req, const struct view *v, const struct infeasible_set *all,
    const bool *without, struct solve_request *relaxed)
{
    static const bool any_codec[] = {true, true, true};
    struct view *w = view_copy(v);
    bool ok = w != NULL, few = false;
    *relaxed = *req;
    for (int32_t i = 0; i < all->n && ok; i++) {
        const struct infeasible_item *it = &all->items[i];
        if (!without[i])
            continue;
        switch (it->kind) {
        case INFEASIBLE_LINKS:
            ok = link_up(w, it->agent, it->other);
            break;
        case INFEASIBLE_OPS:
        case INFEASIBLE_NOT_USED:
        case INFEASIBLE_MEMORY:
            for (int32_t a = 0; a < w->n_agents; a++)
                if (it->agent < 0 || it->agent == a)
                    relax_agent(&w->agents[a], it->kind);
            break;
        case INFEASIBLE_CODEC:
            relaxed->codec_allowed = any_codec;
            break;
        case INFEASIBLE_FORMS:
            relaxed->forms = NULL;
            break;
        case INFEASIBLE_BATCH:
            relaxed->batch = 1;
            break;
        case INFEASIBLE_BATCH_NORM:
            few = true;
            break;
        case INFEASIBLE_MICROBATCH:
            relaxed->microbatch = 0;
            break;
        case INFEASIBLE_PIN_FIRST:
            relaxed->pin_first = false;
            break;
        case INFEASIBLE_PIN_LAST:
            relaxed->pin_last = false;
            break;
        case INFEASIBLE_DEADLINE:
            relaxed->deadline_ms = 0;
            break;
        }
    }
    if (few && relaxed->microbatch == 0)
        relaxed->microbatch = YK_MIN((int64_t)FEW_SAMPLES, YK_MAX(relaxed->batch, (int64_t)1));
    if (ok)
        return w;
    view_free(w);
    return NULL;
}

/* ---- the set ---- */

static yk_err plan_without(const struct solve_request *req, const struct view *v, const struct infeasible_set *all,
    const bool *without, double budget_ms)
{
    struct solve_request q;
    struct plan *p = NULL;
    struct view *w = infeasible_relax(req, v, all, without, &q);
    if (!w)
        return YK_NOMEM;
    q.budget_ms = YK_MIN(EACH_MS, budget_ms);
    yk_err err = solve_plan(&q, w, &p, NULL);
    plan_free(p);
    view_free(w);
    return err;
}

yk_err infeasible_find(
    const struct solve_request *req, const struct view *v, double budget_ms, struct infeasible_set *out)
{
    struct infeasible_set all, kept = {.proven = true};
    bool without[INFEASIBLE_ITEMS] = {false};
    double stop = cost_now_ms() + budget_ms;
    infeasible_all(req, v, &all);
    yk_err err = plan_without(req, v, &all, without, budget_ms);
    if (err != YK_INFEASIBLE)
        return err == YK_NOMEM ? err : YK_STATE;
    for (int32_t i = 0; i < all.n; i++)
        without[i] = true;
    if ((err = plan_without(req, v, &all, without, budget_ms)))
        return err == YK_NOMEM ? err : YK_NOTFOUND;
    memset(without, 0, sizeof without);
    for (int32_t i = 0; i < all.n; i++) {
        double left = stop - cost_now_ms();
        kept.proven = kept.proven && left > 0;
        if (left <= 0)
            continue;
        without[i] = true;
        err = plan_without(req, v, &all, without, left);
        if (err == YK_NOMEM)
            return err;
        without[i] = err != YK_OK; /* no plan even so: it is not the reason */
    }
    for (int32_t i = 0; i < all.n; i++)
        if (!without[i])
            kept.items[kept.n++] = all.items[i];
    *out = kept;
    return YK_OK;
}

/* ---- words ---- */

struct telling {
    const struct solve_request *req;
    const struct view *v;
    const struct infeasible_set *set;
    struct cost_model m;
    bool known;     /* m is there */
    int64_t whole;  /* bytes of the whole model for one of the smallest microbatches; 0 unknown */
    int64_t sample; /* bytes that the source of a training holds for each sample of a batch; 0: of no other job */
    struct yk_buf out;
};

static const char *name_of(const struct telling *t, int32_t agent)
{
    return t->v->agents[agent].name;
}

static void tell_links(struct telling *t, const struct infeasible_item *it)
{
    if (it->agent < 0) {
        yk_buf_printf(&t->out, "agents are not all linked: have the missing links measured (`yoke links`)");
        return;
    }
    bool there = linked(t->v, it->agent, it->other), back = linked(t->v, it->other, it->agent);
    int32_t from = there ? it->other : it->agent, to = there ? it->agent : it->other;
    yk_buf_printf(&t->out, "link %s->%s is not measured%s: make one reachable from the other (`yoke links`)",
        name_of(t, from), name_of(t, to), there || back ? "" : ", nor is the way back");
}

static void tell_ops(struct telling *t, const struct infeasible_item *it)
{
    int32_t first = 0, n;
    if (it->agent < 0) {
        yk_buf_printf(&t->out, "agents cannot run all nodes: give one of them a backend that can");
        return;
    }
    n = t->known ? count_missing(&t->m, it->agent, &first) : 0;
    if (n == 0)
        return;
    const struct node *node = &t->req->graph->nodes[first];
    int32_t form = t->m.form[first];
    if (t->v->agents[it->agent].n_times == 0)
        yk_buf_printf(&t->out, "agent %s has no profile of this model and no measured speed: wait for it to answer",
            name_of(t, it->agent));
    else
        yk_buf_printf(&t->out,
            "agent %s cannot run %d of %d nodes, the first is node %d '%.60s' (%s)%s%s: give it a "
            "backend that can",
            name_of(t, it->agent), n, t->req->graph->n_nodes, first, node->name, node->op->name,
            form >= 0 ? " in form " : "", form >= 0 ? t->v->forms[form] : "");
}

/* How much of a training's batch is read at once. */
static int64_t sample_bytes(const struct cost_model *m)
{
    const struct graph *g = m->graph;
    int64_t sum = 0;
    if (!m->req->training || !m->req->training->info)
        return 0;
    for (int32_t i = 0; i < g->n_inputs; i++)
        if (i != m->req->training->info->divisor_input)
            sum += YK_MAX(shape_bytes(&m->shapes.of[g->inputs[i]]), (int64_t)0) / m->microbatch;
    return sum;
}

static int64_t whole_bytes(const struct cost_model *m)
{
    int64_t bytes = 0;
    struct memtrain_part half[2] = {{0}};
    uint8_t *all = yk_xalloc((size_t)m->graph->n_nodes + 1);
    memset(all, 1, (size_t)m->graph->n_nodes);
    if (!m->req->training || !m->req->training->info) {
        if (cost_memory(m, all, 1, &bytes, NULL))
            bytes = 0;
    } else if (cost_memory_unit(m, all, true, half, NULL) || !yk_add_i64(half[0].fixed, half[0].each, &bytes) ||
               !yk_add_i64(bytes, half[0].out, &bytes)) {
        bytes = 0;
    }
    free(all);
    return bytes;
}

static void tell_memory(struct telling *t, const struct infeasible_item *it)
{
    int32_t most = 0;
    for (int32_t a = 1; a < t->v->n_agents; a++)
        most = t->v->agents[a].memory_bytes > t->v->agents[most].memory_bytes ? a : most;
    const struct view_agent *a = &t->v->agents[it->agent < 0 ? most : it->agent];
    if (it->agent >= 0 && memory_unknown(a)) {
        yk_buf_printf(&t->out, "agent %s: memory is unknown, it reports %s: start it with --memory=BYTES", a->name,
            a->memory_bytes == 0  ? "0"
            : a->memory_bytes < 0 ? "less than 0"
                                  : a->why_not);
        return;
    }
    yk_buf_printf(
        &t->out, "%sagent %s: memory of its stages is ", it->agent < 0 ? "of all agents the most has " : "", a->name);
    if (t->whole > 0)
        yk_buf_printf(&t->out, "%.3f MB for the whole model (microbatch %lld), ", (double)t->whole / 1e6,
            (long long)t->m.microbatch);
    else
        yk_buf_printf(&t->out, "more, ");
    double limit = (double)a->memory_bytes, batch = (double)t->sample * (double)t->req->batch;
    double rest = limit - (double)t->whole;
    if (t->sample > 0 && batch > rest) {
        yk_buf_printf(&t->out, "and where its data is read a batch of %lld samples is %.3f MB more, ",
            (long long)t->req->batch, batch / 1e6);
        if (rest >= (double)t->sample) {
            yk_buf_printf(&t->out, "its limit %.3f MB: a --batch of at most %lld, or a device with more", limit / 1e6,
                (long long)(rest / (double)t->sample));
            return;
        }
    }
    yk_buf_printf(&t->out, "its limit %.3f MB: free some, or add a device", limit / 1e6);
}

/* What the others of the set and the rest of the request allow. */
static void tell_deadline(struct telling *t, int32_t at)
{
    struct solve_request q;
    struct plan *p = NULL;
    bool without[INFEASIBLE_ITEMS] = {false};
    without[at] = true;
    struct view *w = infeasible_relax(t->req, t->v, t->set, without, &q);
    q.budget_ms = EACH_MS;
    yk_buf_printf(&t->out, "the deadline is %g ms", t->req->deadline_ms);
    if (w && solve_plan(&q, w, &p, NULL) == YK_OK) {
        double steps = q.samples > 0 ? YK_MAX((double)q.samples / (double)YK_MAX(q.batch, (int64_t)1), 1.0) : 1;
        yk_buf_printf(&t->out, "; the best plan needs %.4g ms", p->step_ms * steps);
        if (steps > 1)
            yk_buf_printf(&t->out, " for %lld samples", (long long)q.samples);
        yk_buf_printf(&t->out, ", bottleneck %s: allow as much, or add a device", p->bottleneck);
    } else {
        yk_buf_printf(&t->out, ": leave it out, or allow more");
    }
    plan_free(p);
    view_free(w);
}

static void tell(struct telling *t, int32_t at)
{
    const struct infeasible_item *it = &t->set->items[at];
    const struct solve_request *req = t->req;
    const char *source = req->source >= 0 ? name_of(t, req->source) : "the source";
    switch (it->kind) {
    case INFEASIBLE_LINKS:
        tell_links(t, it);
        break;
    case INFEASIBLE_OPS:
        tell_ops(t, it);
        break;
    case INFEASIBLE_NOT_USED:
        if (it->agent < 0)
            yk_buf_printf(&t->out, "agents that are not used (`yoke agents` says why): bring them back");
        else
            yk_buf_printf(&t->out, "agent %s: %s, and so it is not used: bring it back", name_of(t, it->agent),
                t->v->agents[it->agent].why_not);
        break;
    case INFEASIBLE_CODEC:
        yk_buf_printf(&t->out, "links carry only what was allowed, %s: allow more with --codec=fp16,int8",
            req->codec_allowed && req->codec_allowed[CODEC_FP16]   ? "fp32 and fp16"
            : req->codec_allowed && req->codec_allowed[CODEC_INT8] ? "fp32 and int8"
                                                                   : "fp32");
        break;
    case INFEASIBLE_FORMS:
        yk_buf_printf(&t->out, "the job keeps the forms that it began with: submit it anew");
        break;
    case INFEASIBLE_BATCH:
        yk_buf_printf(&t->out, "a single request of %lld samples stays whole: send fewer, or use a batch job",
            (long long)req->batch);
        break;
    case INFEASIBLE_BATCH_NORM:
        yk_buf_printf(&t->out,
            "batch normalisation is not trained on fewer than %lld samples unless asked: "
            "--microbatch=N below that, or --bn=frozen",
            (long long)t->m.microbatch);
        break;
    case INFEASIBLE_MICROBATCH:
        yk_buf_printf(&t->out, "microbatch %lld was asked for: a smaller one, or auto", (long long)req->microbatch);
        break;
    case INFEASIBLE_PIN_FIRST:
    case INFEASIBLE_PIN_LAST:
        yk_buf_printf(&t->out, "--pin=%s wants that stage on %s: leave it out",
            it->kind == INFEASIBLE_PIN_FIRST ? "first" : "last", source);
        break;
    case INFEASIBLE_MEMORY:
        tell_memory(t, it);
        break;
    case INFEASIBLE_DEADLINE:
        tell_deadline(t, at);
        break;
    }
}

void infeasible_explain(const struct solve_request *req, const struct view *v, double budget_ms, struct yk_diag *why)
{
    struct infeasible_set set;
    struct telling t = {.req = req, .v = v, .set = &set};
    if (!why || v->n_agents == 0 || req->forced || infeasible_find(req, v, budget_ms, &set) || set.n == 0)
        return;
    t.known = open_model(req, v, &t.m);
    if (t.known) {
        t.whole = whole_bytes(&t.m);
        t.sample = sample_bytes(&t.m);
    }
    for (int32_t i = set.n - 1; i >= 0; i--) { /* what is likeliest to help first */
        if (i + 1 < set.n)
            yk_buf_printf(&t.out, "; ");
        tell(&t, i);
    }
    if (!set.proven)
        yk_buf_printf(&t.out, " (there was no time to find out whether fewer would do)");
    yk_buf_add(&t.out, "", 1);
    if (!t.out.failed)
        yk_fail(why, YK_INFEASIBLE, "no plan for %.80s: %s%s", req->model ? req->model : "the model",
            set.n > 1 ? "these cannot hold together: " : "", (const char *)t.out.data);
    yk_buf_free(&t.out);
    if (t.known)
        cost_fini(&t.m);
}
