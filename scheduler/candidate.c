#include "scheduler/candidate.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void candidate_fini(struct candidate *c)
{
    for (int32_t i = 0; i < c->n_lines; i++)
        cost_line_fini(&c->lines[i]);
    free(c->lines);
    free(c->shares);
    free(c->memory);
    free(c->fixed);
    free(c->each);
    *c = (struct candidate){0};
}

static int32_t stages_of(const struct candidate *c)
{
    int32_t n = 0;
    for (int32_t i = 0; i < c->n_lines; i++)
        n += c->lines[i].n_stages;
    return n;
}

static int32_t depth_of(const struct candidate *c, int32_t line, int32_t depth)
{
    return c->given ? c->given->pipelines[line].depth : depth;
}

/* ---- memory ---- */

/* Takes memory. */
static yk_err set_memory(
    const struct cost_model *m, struct candidate *c, int64_t *memory, int32_t depth, struct yk_diag *why)
{
    const struct view *v = m->view;
    int64_t *by_agent = yk_xalloc(((size_t)v->n_agents + 1) * sizeof *by_agent);
    yk_err err = YK_OK;
    for (int32_t i = 0, at = 0; i < c->n_lines && !err; i++)
        for (int32_t s = 0; s < c->lines[i].n_stages && !err; s++, at++) {
            int64_t *sum = &by_agent[c->lines[i].stages[s].agent];
            if (!yk_add_i64(*sum, memory[at], sum))
                err = yk_fail(why, YK_LIMIT, "the memory of a stage overflows");
        }
    if (c->source_each && c->lines[0].source >= 0) {
        int64_t *sum = &by_agent[c->lines[0].source], slots;
        if (!yk_mul_i64(depth_of(c, 0, depth), c->source_each, &slots) || !yk_add_i64(*sum, slots, sum) ||
            !yk_add_i64(*sum, c->source_fixed, sum))
            err = yk_fail(why, YK_LIMIT, "the memory of the source overflows");
    }
    for (int32_t a = 0; a < v->n_agents && !err; a++) {
        const struct view_agent *agent = &v->agents[a];
        if (by_agent[a] && agent->memory_bytes <= 0)
            err = yk_fail(
                why, YK_INFEASIBLE, "agent %s: memory is unknown, and then nothing is placed there", agent->name);
        else if (by_agent[a] && by_agent[a] > agent->memory_bytes)
            err = yk_fail(why, YK_INFEASIBLE, "agent %s: memory of its stages is %.3f MB, its limit %.3f MB",
                agent->name, (double)by_agent[a] / 1e6, (double)agent->memory_bytes / 1e6);
    }
    free(by_agent);
    if (err) {
        free(memory);
    } else {
        free(c->memory);
        c->memory = memory;
    }
    return err;
}

static yk_err find_parts(const struct cost_model *m, struct candidate *c, struct yk_diag *why)
{
    int32_t n = m->graph->n_nodes, at = 0;
    if (c->fixed)
        return YK_OK;
    int64_t *fixed = yk_xalloc(((size_t)stages_of(c) + 1) * sizeof *fixed);
    int64_t *each = yk_xalloc(((size_t)stages_of(c) + 1) * sizeof *each);
    uint8_t *in_stage = yk_xalloc((size_t)n + 1);
    bool train = m->req->training && m->req->training->info && c->n_lines == 1;
    yk_err err = train ? candidate_train_memory(m, c, NULL, fixed, each, why) : YK_OK;
    for (int32_t i = 0; i < c->n_lines && !err && !train; i++)
        for (int32_t s = 0; s < c->lines[i].n_stages && !err; s++, at++) {
            for (int32_t k = 0; k < n; k++)
                in_stage[k] = c->lines[i].stage_of[k] == s;
            err = cost_memory_parts(m, in_stage, &fixed[at], &each[at], why);
        }
    free(in_stage);
    if (err) {
        free(fixed);
        free(each);
        return err;
    }
    c->fixed = fixed;
    c->each = each;
    return YK_OK;
}

yk_err candidate_memory(const struct cost_model *m, struct candidate *c, int32_t depth, struct yk_diag *why)
{
    yk_err err = find_parts(m, c, why);
    if (err)
        return err;
    int64_t *memory = yk_xalloc(((size_t)stages_of(c) + 1) * sizeof *memory);
    for (int32_t i = 0, at = 0; i < c->n_lines && !err; i++)
        for (int32_t s = 0; s < c->lines[i].n_stages && !err; s++, at++)
            if (!yk_mul_i64(depth_of(c, i, depth), c->each[at], &memory[at]) ||
                !yk_add_i64(memory[at], c->fixed[at], &memory[at]))
                err = yk_fail(why, YK_LIMIT, "the memory of stage %d overflows at depth %d", s, depth_of(c, i, depth));
    if (err) {
        free(memory);
        return err;
    }
    return set_memory(m, c, memory, depth, why);
}

/* ---- the event model ---- */

/* Steps of one pipeline: its edges, then its stages, then the messages of a source without a stage, before anything
 * leaves it. A stage waits for the edges into it; an edge for its stage, and what goes back to yoked for all outputs.
 */
static struct schedule_step *make_steps(const struct cost_line *l, int32_t *n_steps)
{
    int32_t n_edges = l->n_edges, n = n_edges + l->n_stages + (l->source_ms > 0);
    struct schedule_step *steps = yk_xalloc(((size_t)n + 1) * sizeof *steps);
    int32_t upload = -1;
    for (int32_t i = 0; i < n_edges; i++)
        if (l->edges[i].from == -2)
            upload = i;
    for (int32_t i = 0; i < n_edges; i++) {
        const struct cost_edge *e = &l->edges[i];
        int32_t first = l->source_ms > 0 ? n - 1 : upload;
        int32_t before = e->from >= 0 ? n_edges + e->from : e->from == -1 ? first : -1, k = 0;
        int32_t *list = yk_xalloc(((size_t)n_edges + 1) * sizeof *list);
        for (int32_t o = 0; o < n_edges && e->to == -2; o++)
            if (l->edges[o].to == -1 && l->edges[o].from >= 0)
                list[k++] = o;
        if (e->to != -2 && before >= 0)
            list[k++] = before;
        steps[i] = (struct schedule_step){
            .resource = e->resource, .busy_ms = e->busy_ms, .latency_ms = e->latency_ms, .n_before = k, .before = list};
    }
    for (int32_t s = 0; s < l->n_stages; s++) {
        int32_t *list = yk_xalloc(((size_t)n_edges + 1) * sizeof *list), k = 0;
        for (int32_t i = 0; i < n_edges; i++)
            if (l->edges[i].to == s)
                list[k++] = i;
        steps[n_edges + s] = (struct schedule_step){.resource = l->stages[s].agent,
            .busy_ms = l->stages[s].ms + l->stages[s].message_ms,
            .n_before = k,
            .before = list};
    }
    if (l->source_ms > 0) {
        int32_t *list = yk_xalloc(sizeof *list);
        *list = upload;
        steps[n - 1] = (struct schedule_step){
            .resource = l->source, .busy_ms = l->source_ms, .n_before = upload >= 0, .before = list};
    }
    *n_steps = n;
    return steps;
}

static yk_err run_line(const struct cost_model *m, const struct cost_line *l, int64_t count, double last_frac,
    int32_t depth, double *total_ms, double *busy)
{
    struct schedule s = {.n_resources = m->n_resources, .microbatches = count, .depth = depth, .last_frac = last_frac};
    struct schedule_result result = {.busy_ms = busy};
    struct schedule_step *steps = make_steps(l, &s.n_steps);
    s.steps = steps;
    yk_err err = schedule_run(&s, &result, NULL, NULL);
    *total_ms = result.total_ms;
    for (int32_t i = 0; i < s.n_steps; i++)
        free((void *)steps[i].before);
    free(steps);
    return err;
}

/* Size of the last microbatch against the others. */
static double last_frac(const struct cost_model *m, const struct candidate *c)
{
    int64_t rest = m->req->batch > 0 ? m->req->batch % c->microbatch : 0;
    return rest ? (double)rest / (double)c->microbatch : 1;
}

static yk_err score_at(
    const struct cost_model *m, const struct candidate *c, int32_t depth, double *step_ms, double *busy)
{
    double *one = yk_xalloc(((size_t)m->n_resources + 1) * sizeof *one);
    int64_t given = 0;
    double last = last_frac(m, c), shares = 0;
    yk_err err = YK_OK;
    memset(busy, 0, (size_t)m->n_resources * sizeof *busy);
    *step_ms = 0;
    for (int32_t i = 0; i < c->n_lines && !err; i++) {
        double total;
        shares += c->shares[i];
        int64_t until = i + 1 == c->n_lines ? c->count : (int64_t)llround(shares * (double)c->count);
        err = run_line(
            m, &c->lines[i], until - given, i + 1 == c->n_lines ? last : 1, depth_of(c, i, depth), &total, one);
        given = YK_MAX(given, until);
        *step_ms = YK_MAX(*step_ms, total);
        for (int32_t r = 0; r < m->n_resources && !err; r++)
            busy[r] += one[r];
    }
    /* Pipelines that share a resource wait for each other: no less than what each resource has to do. */
    for (int32_t r = 0; r < m->n_resources && !err; r++)
        *step_ms = YK_MAX(*step_ms, busy[r]);
    free(one);
    return err;
}

struct tracing {
    const struct cost_line *l;
    const struct schedule_step *steps;
    int32_t line;
    int64_t first;
    void (*fn)(void *arg, const struct candidate_bar *bar);
    void *arg;
};

static void on_step(void *arg, int64_t microbatch, int32_t step, double start_ms, double end_ms)
{
    const struct tracing *t = arg;
    int32_t stage = step - t->l->n_edges;
    struct candidate_bar bar = {.line = t->line,
        .resource = t->steps[step].resource,
        .stage = stage >= 0 && stage < t->l->n_stages ? stage : -1,
        .edge = stage < 0 ? step : -1,
        .microbatch = t->first + microbatch,
        .start_ms = start_ms,
        .end_ms = end_ms};
    if (bar.resource >= 0)
        t->fn(t->arg, &bar);
}

yk_err candidate_trace(const struct cost_model *m, const struct candidate *c, int64_t most,
    void (*fn)(void *arg, const struct candidate_bar *bar), void *arg, double *busy_ms)
{
    int64_t given = 0;
    double shares = 0, step_ms;
    yk_err err = YK_OK;
    for (int32_t i = 0; i < c->n_lines && !err; i++) {
        const struct cost_line *l = &c->lines[i];
        shares += c->shares[i];
        int64_t until = i + 1 == c->n_lines ? c->count : (int64_t)llround(shares * (double)c->count);
        struct schedule s = {.n_resources = m->n_resources,
            .microbatches = YK_MIN(until - given, most),
            .depth = depth_of(c, i, c->depth),
            .last_frac = i + 1 == c->n_lines && until - given <= most ? last_frac(m, c) : 0};
        struct schedule_result result = {0};
        struct schedule_step *steps = make_steps(l, &s.n_steps);
        struct tracing t = {l, steps, i, given, fn, arg};
        s.steps = steps;
        err = schedule_run(&s, &result, on_step, &t);
        for (int32_t k = 0; k < s.n_steps; k++)
            free((void *)steps[k].before);
        free(steps);
        given = YK_MAX(given, until);
    }
    return err || !busy_ms ? err : score_at(m, c, c->depth, &step_ms, busy_ms);
}

/* The closed form is a bound of its steps: microbatches are equal, and no agent takes one twice. */
static bool straight(const struct cost_model *m, const struct candidate *c)
{
    bool each_once = m->req->batch <= 0 || m->req->batch % c->microbatch == 0;
    for (int32_t i = 0; i < c->n_lines; i++)
        for (int32_t s = 0; s < c->lines[i].n_stages; s++)
            for (int32_t k = 0; k < s && each_once; k++)
                each_once = c->lines[i].stages[k].agent != c->lines[i].stages[s].agent;
    return each_once;
}

#define PATHS_MOST 256 /* microbatches; of more the time is extrapolated */

/* How long a microbatch takes where nothing else is in its way; 0: not known. */
static double alone_ms(const struct cost_line *l)
{
    int32_t n;
    struct schedule_step *steps = make_steps(l, &n);
    double *end = yk_xalloc(((size_t)n + 1) * sizeof *end), last = 0;
    bool more = true;
    for (int32_t round = 0; round <= n && more; round++) {
        more = false;
        for (int32_t i = 0; i < n; i++) {
            double from = 0, at;
            for (int32_t k = 0; k < steps[i].n_before; k++)
                from = YK_MAX(from, end[steps[i].before[k]]);
            at = from + steps[i].busy_ms + steps[i].latency_ms;
            more = more || at > end[i];
            end[i] = at;
            last = YK_MAX(last, at);
        }
    }
    for (int32_t i = 0; i < n; i++)
        free((void *)steps[i].before);
    free(steps);
    free(end);
    return more ? 0 : last;
}

yk_err candidate_score(
    const struct cost_model *m, struct candidate *c, int32_t max_depth, int32_t fixed, struct yk_diag *why)
{
    double *busy = yk_xalloc(((size_t)m->n_resources + 1) * sizeof *busy);
    int32_t from = fixed > 0 ? fixed : 1,
            to = fixed > 0 ? fixed : (int32_t)YK_MIN((int64_t)max_depth, YK_MAX(c->count, (int64_t)1));
    int32_t looked = 0;
    double known = INFINITY, alone = 0;
    c->depth = 0;
    yk_err err = YK_OK;
    /* Depths at which microbatches that wait for each other take longer than at the largest are left out. */
    if (to - from > 1 && c->n_lines == 1 && c->count <= PATHS_MOST) {
        while (to > from && candidate_memory(m, c, to, NULL))
            to--;
        if (candidate_memory(m, c, to, NULL) == YK_OK && score_at(m, c, to, &known, busy) == YK_OK)
            alone = alone_ms(&c->lines[0]) * (1 - 1e-9);
    }
    for (int32_t depth = from; depth <= to; depth++) {
        double step;
        looked = depth;
        if (depth < to && (double)((c->count - 2 + depth) / depth) * alone > known) /* so many whole ones in a row */
            continue;
        if ((err = candidate_memory(m, c, depth, why)) || (err = score_at(m, c, depth, &step, busy)))
            break;
        if (c->depth == 0 || step < c->step_ms * (1 - 1e-9)) {
            c->depth = depth;
            c->step_ms = step;
            int32_t top = -1;
            for (int32_t r = 0; r < m->n_resources; r++)
                if (top < 0 || busy[r] > busy[top])
                    top = r;
            cost_resource_name(m, top, c->bottleneck);
        }
        if (fixed <= 0 && straight(m, c) && c->step_ms <= c->cost_ms * (1 + 1e-9)) /* no depth can take less */
            break;
    }
    free(busy);
    if (c->depth == 0)
        return err ? err : yk_fail(why, YK_INTERNAL, "no depth could be scored");
    /* What was looked at last is what the plan has, most often. */
    return c->depth == looked && !err ? YK_OK : candidate_memory(m, c, c->depth, why);
}

/* ---- words ---- */

static void stage_ranges(const struct cost_line *l, int32_t n_nodes, int32_t stage, struct yk_buf *out)
{
    bool any = false;
    for (int32_t i = 0; i < n_nodes; i++) {
        if (l->stage_of[i] != stage || (i > 0 && l->stage_of[i - 1] == stage))
            continue;
        int32_t last = i;
        while (last + 1 < n_nodes && l->stage_of[last + 1] == stage)
            last++;
        yk_buf_printf(out, last > i ? "%s%d-%d" : "%s%d", any ? "," : "", i, last);
        any = true;
    }
}

static char *take(struct yk_buf *b)
{
    yk_buf_add(b, "", 1);
    return b->failed ? yk_xstrdup("") : (char *)b->data;
}

char *candidate_text(const struct cost_model *m, const struct candidate *c, int32_t source)
{
    struct yk_buf b = {0};
    for (int32_t i = 0; i < c->n_lines; i++)
        for (int32_t s = 0; s < c->lines[i].n_stages; s++) {
            yk_buf_printf(&b, "%s%s ", s ? " | " : i ? " + " : "", m->view->agents[c->lines[i].stages[s].agent].name);
            stage_ranges(&c->lines[i], m->graph->n_nodes, s, &b);
        }
    if (c->lines[0].source != source)
        yk_buf_printf(&b, ", source %s", m->view->agents[c->lines[0].source].name);
    return take(&b);
}

static const char *origin_text(enum view_origin o)
{
    static const char *const texts[] = {"nothing", "roofline of its probe", "its profile", "measurement", "emulation"};
    return texts[o];
}

static void explain_line(
    const struct cost_model *m, const struct candidate *c, int32_t which, int32_t memory_at, struct yk_buf *b)
{
    const struct cost_line *l = &c->lines[which];
    const struct graph *g = m->graph;
    if (c->n_lines > 1)
        yk_buf_printf(b, "pipeline %d, share %.0f %%\n", which, 100 * c->shares[which]);
    for (int32_t s = 0; s < l->n_stages; s++) {
        const struct view_agent *a = &m->view->agents[l->stages[s].agent];
        int32_t first = -1, last = -1;
        for (int32_t i = 0; i < g->n_nodes; i++)
            if (l->stage_of[i] == s) {
                first = first < 0 ? i : first;
                last = i;
            }
        yk_buf_printf(b, "  stage %d on %s%s: nodes ", s, a->name, l->stages[s].agent == l->source ? " (source)" : "");
        stage_ranges(l, g->n_nodes, s, b);
        if (first >= 0)
            yk_buf_printf(b, " (%s .. %s)", g->nodes[first].name, g->nodes[last].name);
        int64_t fetch;
        double load = candidate_load(m, c, which, s, &fetch);
        yk_buf_printf(b, ", %.3g ms a microbatch by %s, %.1f of %.1f MB", l->stages[s].ms,
            origin_text(m->origin[l->stages[s].agent]), (double)c->memory[memory_at + s] / 1e6,
            (double)a->memory_bytes / 1e6);
        if (fetch > 0)
            yk_buf_printf(b, "; to load %.*g ms, %.4g MB to fetch", load < 999 ? 3 : 9, load < 999 ? load : round(load),
                (double)fetch / 1e6);
        else if (load >= 0.5)
            yk_buf_printf(b, "; to load %.*g ms", load < 999 ? 3 : 9, load < 999 ? load : round(load));
        yk_buf_printf(b, "\n");
    }
    for (int32_t i = 0; i < l->n_edges; i++) {
        const struct cost_edge *e = &l->edges[i];
        char from[32], to[32];
        if (e->resource < 0)
            continue;
        snprintf(from, sizeof from, e->from == -2 ? "yoked" : e->from < 0 ? "source" : "stage %d", e->from);
        snprintf(to, sizeof to, e->to == -2 ? "yoked" : e->to < 0 ? "source" : "stage %d", e->to);
        yk_buf_printf(b, "  %s -> %s: %lld bytes as %s, %.3g ms and %.3g ms latency\n", from, to, (long long)e->bytes,
            plan_codec_name(e->codec), e->busy_ms, e->latency_ms);
    }
}

/* %.*g: four digits, and never powers of ten. */
static int digits(double ms)
{
    return ms < 9999 ? 4 : 15;
}

/* Whole above that. */
static double said(double ms)
{
    return ms < 9999 ? ms : round(ms);
}

char *candidate_explain(const struct cost_model *m, const struct candidate *chosen, const struct candidate *single,
    const struct candidate *const *others, int32_t n_others, const char *solver)
{
    struct yk_buf b = {0};
    yk_buf_printf(&b, "%.*g ms a step of %lld: %lld microbatch%s of %lld, depth %d; bottleneck %s\n",
        digits(chosen->step_ms), said(chosen->step_ms), (long long)YK_MAX(m->req->batch, (int64_t)1),
        (long long)chosen->count, chosen->count == 1 ? "" : "es", (long long)chosen->microbatch, chosen->depth,
        chosen->bottleneck);
    for (int32_t i = 0, at = 0; i < chosen->n_lines; at += chosen->lines[i].n_stages, i++)
        explain_line(m, chosen, i, at, &b);
    if (single) {
        const char *name = m->view->agents[single->lines[0].stages[0].agent].name;
        if (chosen->n_lines == 1 && chosen->lines[0].n_stages == 1)
            yk_buf_printf(
                &b, "one device is best: nothing that splits the model is predicted faster than %s alone\n", name);
        else
            yk_buf_printf(&b, "best single device: %s at %.*g ms; this plan is %.2f times as fast\n", name,
                digits(single->step_ms), said(single->step_ms), single->step_ms / chosen->step_ms);
    } else {
        yk_buf_printf(&b, "no single device can hold the model\n");
    }
    yk_buf_printf(
        &b, "solver %s: cost %.*g ms by the closed form\n", solver, digits(chosen->cost_ms), said(chosen->cost_ms));
    for (int32_t i = 0; i < n_others; i++) {
        char *text = candidate_text(m, others[i], chosen->lines[0].source);
        yk_buf_printf(&b, "  alternative %s, microbatch %lld: %.*g ms, bottleneck %s\n", text,
            (long long)others[i]->microbatch, digits(others[i]->step_ms), said(others[i]->step_ms),
            others[i]->bottleneck);
        free(text);
    }
    for (int32_t a = 0; a < m->view->n_agents; a++)
        if (!m->view->agents[a].usable)
            yk_buf_printf(&b, "  not used: %s, %s\n", m->view->agents[a].name, m->view->agents[a].why_not);
    return take(&b);
}
