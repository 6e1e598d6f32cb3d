/* A job's life while it runs: what it leaves because a device rests, what it moves to because that pays, and the trial
 * of a single device when a pipeline disappoints.
 *
 * A training is drained: its source begins no other step, its stages give a set behind the last one, and the job goes
 * on from there with another plan; no step is lost or done twice. Microbatches of other jobs that are under way are run
 * again. Every decision is an event with its reason. */
#include "scheduler/sched_priv.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DRAIN_US 60000000 /* a step and a set take no longer, or the job goes back to its newest set */
#define SET_UP_MS 200     /* of a move, beside loading and the set */
#define MAX_LEFT 32

/* ---- who left ---- */

static int find_left(const struct job *j, const char *agent)
{
    for (int i = 0; i < j->life.n_left; i++)
        if (strcmp(j->life.left[i], agent) == 0)
            return i;
    return -1;
}

static void put_left(struct job *j, const char *agent)
{
    struct job_life *l = &j->life;
    if (find_left(j, agent) >= 0 || l->n_left == MAX_LEFT)
        return;
    l->left = yk_xrealloc(l->left, ((size_t)l->n_left + 1) * sizeof *l->left);
    snprintf(l->left[l->n_left++], sizeof *l->left, "%s", agent);
}

static void forget_left(struct job *j, const char *agent)
{
    int i = find_left(j, agent);
    if (i >= 0)
        memmove(j->life.left[i], j->life.left[--j->life.n_left], sizeof *j->life.left);
}

/* What the next plan has of them is taken out again. */
static void leave_agents(struct sched *s, struct job *j)
{
    for (const struct generation *g = s->generations; g; g = g->next)
        for (int i = 0; g->job == j && i < g->n_agents; i++)
            if (g->agents[i].has_stage || strcmp(g->source, g->agents[i].id) == 0)
                put_left(j, g->agents[i].id);
}

void jobs_review_reset(struct sched *s, struct job *j)
{
    struct job_life *l = &j->life;
    leave_agents(s, j);
    plan_free(l->next);
    plan_free(l->trial.pipeline);
    l->next = l->trial.pipeline = NULL;
    l->draining = false;
    l->left_us = 0;
    l->fetched_bytes = 0;
    if (j->state == JOB_RUNNING && !l->lost_us)
        l->lost_us = net_now_us(s->net);
    if (l->trial.state != TRIAL_OVER)
        l->trial.state = TRIAL_NONE;
}

/* Devices that hold stages. */
static int devices(const struct plan *p)
{
    int n = 0;
    for (int32_t i = 0; i < p->n_pipelines; i++)
        for (int32_t k = 0; k < p->pipelines[i].n_stages; k++) {
            bool before = false;
            for (int32_t a = 0; a <= i; a++)
                for (int32_t b = 0; b < (a < i ? p->pipelines[a].n_stages : k); b++)
                    before = before || strcmp(p->pipelines[a].stages[b].agent, p->pipelines[i].stages[k].agent) == 0;
            n += !before;
        }
    return n;
}

static void put_devices(const struct plan *p, char *out, size_t size)
{
    size_t n = 0;
    const char *last = "";
    out[0] = '\0';
    for (int32_t i = 0; i < p->n_pipelines; i++)
        for (int32_t k = 0; k < p->pipelines[i].n_stages && n + 1 < size; k++) {
            const char *agent = p->pipelines[i].stages[k].agent;
            if (strcmp(agent, last) == 0)
                continue;
            int put = snprintf(out + n, size - n, "%s%.40s", n ? " > " : "", agent);
            n += put > 0 ? (size_t)put : 0;
            last = agent;
        }
}

/* ---- leaving a plan ---- */

static void leave(struct sched *s, struct job *j)
{
    struct job_life *l = &j->life;
    struct generation *g = sched_generation_of(s, j);
    l->draining = false;
    l->left_us = net_now_us(s->net);
    l->fetched_bytes = 0;
    if (g)
        put_devices(g->plan, l->from, sizeof l->from);
    leave_agents(s, j);
    jobs_again(s, j, l->reason);
}

void jobs_drain(struct sched *s, struct job *j, const char *kind, const char *fmt, ...)
{
    struct job_life *l = &j->life;
    struct generation *g = sched_generation_of(s, j);
    va_list args;
    if (!g || l->draining)
        return;
    va_start(args, fmt);
    vsnprintf(l->reason, sizeof l->reason, fmt, args);
    va_end(args);
    jobs_event(s, j->id, kind, "%s", l->reason);
    struct fleet_agent *source = fleet_find(s->fleet, g->source);
    struct wire_halt halt = {.term = store_term(s->store), .generation = g->id};
    if (!j->training || j->training->epoch_steps == 0 || !source || fleet_send(source, WIRE_TYPE_halt, &halt)) {
        leave(s, j);
        return;
    }
    l->draining = true;
    l->drain_step = -1;
    l->drain_us = net_now_us(s->net) + DRAIN_US;
}

void jobs_halted(struct sched *s, struct generation *g, int64_t step)
{
    struct job *j = g->job;
    const struct training *t = j->training;
    if (!j->life.draining || j->life.drain_step >= 0 || step < t->saved.step || step > t->steps)
        return;
    j->life.drain_step = step;
    if (step == t->saved.step)
        leave(s, j);
    else if (step < t->steps) /* else it ends by itself */
        jobs_sets_keep(s, g, step, 0);
}

void jobs_drained(struct sched *s, struct job *j)
{
    if (j->life.draining && j->life.drain_step == j->training->saved.step && j->life.drain_step < j->training->steps)
        leave(s, j);
}

/* ---- another plan ---- */

static bool may_move(const struct job *j)
{
    return (j->training || strcmp(j->kind, "batch") == 0) && !j->life.given && j->objective != SOLVE_CLOUD_COST;
}

void jobs_review_want(struct sched *s, struct job *j, const char *fmt, ...)
{
    (void)s;
    if (job_ended(j->state) || !may_move(j))
        return;
    va_list args;
    va_start(args, fmt);
    vsnprintf(j->life.why, sizeof j->life.why, fmt, args);
    va_end(args);
}

static double steps_left(const struct job *j)
{
    if (j->training)
        return (double)(j->training->steps - j->training->done);
    return (double)(j->samples - j->done) / (double)YK_MAX(j->batch, (int64_t)1);
}

static double measured_ms(const struct job *j)
{
    int64_t n = j->run_count - j->run_first_count;
    if (j->training)
        return training_step_ms(j->training);
    return n > 0 ? (double)(j->run_last_us - j->run_first_us) / 1e3 / (double)n * (double)j->batch : 0;
}

/* To another plan, or back and forth (NULL). What loading takes beyond what is predicted of it was seen of the plan
 * that runs. */
static double move_ms(const struct job *j, const struct generation *g, const struct plan *to)
{
    double load = j->life.load_ms;
    if (to)
        load = YK_MAX(load - plan_load_ms(g->plan), 0.0) + plan_load_ms(to);
    return SET_UP_MS + load + (j->training ? 2 * j->training->set_ms : 0);
}

/* What a pipeline over several devices takes, where a trial has shown that predictions are too good. */
static double believed_ms(const struct job *j, const struct plan *p)
{
    return devices(p) > 1 && j->life.bias > 1 ? p->step_ms * j->life.bias : p->step_ms;
}

static bool same_stages(const struct plan *a, const struct plan *b)
{
    bool same = a->n_pipelines == b->n_pipelines;
    for (int32_t i = 0; same && i < a->n_pipelines; i++) {
        const struct plan_pipeline *x = &a->pipelines[i], *y = &b->pipelines[i];
        same = x->n_stages == y->n_stages;
        for (int32_t k = 0; same && k < x->n_stages; k++) {
            const struct plan_stage *p = &x->stages[k], *q = &y->stages[k];
            same = strcmp(p->agent, q->agent) == 0 && p->n_nodes == q->n_nodes &&
                   memcmp(p->nodes, q->nodes, (size_t)p->n_nodes * sizeof *p->nodes) == 0;
        }
    }
    return same;
}

struct look {
    struct sched *s;
    int64_t job, plan;
};

/* The job, if it still runs what was looked at. */
static struct job *looked(const struct look *k)
{
    struct job *j = k->s->closing ? NULL : jobs_find(k->s, k->job);
    if (!j || j->plan_id != k->plan || j->state != JOB_RUNNING)
        return NULL;
    return j;
}

static void on_other(void *arg, yk_err err, const char *why, struct plan *plan)
{
    struct look k = *(struct look *)arg;
    struct sched *s = k.s;
    struct job *j = looked(&k);
    struct generation *g = j ? sched_generation_of(s, j) : NULL;
    free(arg);
    (void)why;
    if (j)
        j->life.looking = false;
    if (!g || err || j->life.draining || same_stages(g->plan, plan)) {
        if (g && !err && !j->life.draining)
            jobs_event(s, j->id, "kept", "%s: the planner finds no other plan", j->life.looked);
        plan_free(plan);
        return;
    }
    double now = j->life.now_ms, other = believed_ms(j, plan), measured = measured_ms(j), left = steps_left(j);
    double move = move_ms(j, g, plan);
    char to[120];
    put_devices(plan, to, sizeof to);
    if (!policy_pays(&s->config.policy, now, other, measured, left, move)) {
        jobs_event(s, j->id, "kept",
            "%s: %s would take %.4g ms a step, this takes %.4g: for the %.0f steps left that is not worth a move of "
            "%.0f ms",
            j->life.looked, to, other, now, left, move);
        plan_free(plan);
        return;
    }
    bool clients = j->forced && jobs_plan_usable(s, j->forced); /* it is taken anyway */
    plan_free(j->life.next);
    j->life.next = clients ? NULL : plan_copy(plan);
    if (j->life.trial.state == TRIAL_OVER)
        j->life.trial.state = TRIAL_NONE; /* another pipeline may disappoint too */
    jobs_drain(s, j, "moving", "%s: %s takes %.4g ms a step, this takes %.4g; %.0f steps are left", j->life.looked, to,
        other, now, left);
    plan_free(plan);
}

static void look_for(struct look *k, struct job *j, const struct plan *forced, planning_done fn)
{
    struct planning_request r;
    struct solve_training training;
    struct sched *s = k->s;
    struct model *m = j->training ? j->training->model : sched_model_find(s, j->model);
    if (!m) {
        j->life.looking = false;
        free(k);
        return;
    }
    jobs_plan_request(s, j, m, true, &training, &r);
    r.forced = forced;
    r.job = j->id;
    planning_start(s, &r, fn, k);
    planning_step(s);
}

static void on_now(void *arg, yk_err err, const char *why, struct plan *plan)
{
    struct look *k = arg;
    struct job *j = looked(k);
    (void)why;
    if (j && (!err || err == YK_INFEASIBLE) && !j->life.draining) {
        j->life.now_ms = err ? HUGE_VAL : believed_ms(j, plan);
        look_for(k, j, j->forced && jobs_plan_usable(k->s, j->forced) ? j->forced : NULL, on_other);
    } else {
        if (j)
            j->life.looking = false;
        free(k);
    }
    plan_free(plan);
}

static void look(struct sched *s, struct job *j, const struct generation *g)
{
    struct look *k = yk_xalloc(sizeof *k);
    *k = (struct look){s, j->id, j->plan_id};
    j->life.looking = true;
    j->life.looked_us = net_now_us(s->net);
    memcpy(j->life.looked, j->life.why, sizeof j->life.looked);
    j->life.why[0] = '\0';
    look_for(k, j, g->plan, on_now);
}

/* ---- trial ---- */

/* The same forms and microbatches, all on one device. */
static struct plan *alone(const struct plan *p, const char *agent)
{
    struct plan *c = plan_copy(p);
    struct plan_pipeline *line = &c->pipelines[0];
    for (int32_t k = 0; k < line->n_stages; k++) {
        free(line->stages[k].agent);
        free(line->stages[k].nodes);
    }
    line->n_stages = 1;
    line->stages[0] =
        (struct plan_stage){.agent = yk_xstrdup(agent), .nodes = yk_xalloc(sizeof(struct cut_range)), .n_nodes = 1};
    line->stages[0].nodes[0] = (struct cut_range){0, p->forward_nodes - 1};
    c->n_cuts = 0;
    return c;
}

/* What the best single device takes, by its plan and by what was measured of it since. */
static double calibrated_ms(struct sched *s, const struct generation *g, const char *agent)
{
    const struct fleet_agent *a = fleet_find(s->fleet, agent);
    double planned = 0, ms = 0;
    const struct plan_pipeline *line = &g->plan->pipelines[0];
    for (int32_t k = 0; k < line->n_stages; k++)
        if (strcmp(line->stages[k].agent, agent) == 0) {
            planned = line->stages[k].slow_factor;
            ms += line->stages[k].predicted_ms;
        }
    double now = a ? a->slow_factor / policy_share(&a->device, &s->config.policy) : 0;
    double single = g->plan->best_single_ms;
    if (!(planned > 0) || !(now > 0) || !(single > 0))
        return single;
    /* As the planner would: in full for the nodes that it has, by their share of the work for others. */
    double part =
        YK_MIN(ms * ceil((double)g->plan->batch / (double)YK_MAX(g->plan->microbatch, (int64_t)1)) / single, 1.0);
    return single * (part * now / planned + (1 - part) * policy_pace_rest(now / planned, part));
}

static void try_alone(struct sched *s, struct job *j, const struct generation *g)
{
    struct trial *t = &j->life.trial;
    const struct plan *p = g->plan;
    double measured = training_step_ms(j->training);
    if (j->training->n_ms <= POLICY_TRIAL_AFTER || p->n_pipelines != 1 || devices(p) < 2 || !p->best_single ||
        p->forward_nodes < 1)
        return;
    struct fleet_agent *a = fleet_find(s->fleet, p->best_single);
    double single = calibrated_ms(s, g, p->best_single);
    if (!a || a->state != FLEET_ALIVE || a->device.mode == POLICY_RESTING ||
        !policy_pays(
            &s->config.policy, measured, single, measured, steps_left(j) - POLICY_TRIAL_STEPS, 2 * move_ms(j, g, NULL)))
        return;
    t->pipeline = plan_copy(p);
    t->pipeline_ms = measured;
    t->state = TRIAL_GOING;
    plan_free(j->life.next);
    j->life.next = alone(p, p->best_single);
    jobs_drain(s, j, "trial",
        "%d devices take %.4g ms a step, predicted were %.4g; %s alone should take %.4g: %d steps there decide",
        devices(p), measured, p->step_ms, p->best_single, single, POLICY_TRIAL_STEPS);
}

static void judge_trial(struct sched *s, struct job *j, const struct generation *g)
{
    struct trial *t = &j->life.trial;
    if (j->training->n_ms <= POLICY_TRIAL_STEPS)
        return;
    double single = training_step_ms(j->training);
    struct plan *pipeline = t->pipeline;
    t->pipeline = NULL;
    t->state = TRIAL_OVER;
    if (single <= t->pipeline_ms) {
        j->life.bias = YK_MAX(1.0, t->pipeline_ms / YK_MAX(pipeline->step_ms, 1e-9));
        jobs_event(s, j->id, "fallback", "%s alone takes %.4g ms a step, %d devices took %.4g: it stays there",
            g->plan->pipelines[0].stages[0].agent, single, devices(pipeline), t->pipeline_ms);
        plan_free(pipeline);
        return;
    }
    plan_free(j->life.next);
    j->life.next = pipeline;
    jobs_drain(s, j, "trial", "%s alone takes %.4g ms a step, %d devices took %.4g: back to them",
        g->plan->pipelines[0].stages[0].agent, single, devices(pipeline), t->pipeline_ms);
}

/* ---- what happens ---- */

void jobs_review_began(struct sched *s, struct job *j)
{
    struct job_life *l = &j->life;
    const struct generation *g = sched_generation_of(s, j);
    int64_t now = net_now_us(s->net);
    char to[120];
    for (const struct generation *k = g; k; k = k->next)
        for (int i = 0; k->job == j && i < k->n_agents; i++)
            forget_left(j, k->agents[i].id);
    l->planned_us = now;
    l->load_ms = (double)(now - l->loading_us) / 1e3;
    l->looking = false;
    l->rest_until_us = 0;
    if (l->trial.state == TRIAL_GOING)
        l->trial.state = TRIAL_RUNS;
    if (!g)
        return;
    put_devices(g->plan, to, sizeof to);
    if (l->lost_us)
        jobs_event(s, j->id, "recovered", "it runs again, on %s, %.2f s later: %.2f MB travelled", to,
            (double)(now - l->lost_us) / 1e6, (double)l->fetched_bytes / 1e6);
    l->lost_us = 0;
    if (!l->left_us)
        return;
    jobs_event(s, j->id, "migrated", "from %s to %s in %.2f s: %.2f MB travelled", l->from, to,
        (double)(now - l->left_us) / 1e6, (double)l->fetched_bytes / 1e6);
    l->left_us = 0;
}

/* An agent of the job that must not go on; NULL. */
static struct fleet_agent *resting(struct sched *s, const struct job *j, const char **kind)
{
    for (const struct generation *g = s->generations; g; g = g->next)
        for (int i = 0; g->job == j && i < g->n_agents; i++) {
            struct fleet_agent *a = g->agents[i].has_stage ? fleet_find(s->fleet, g->agents[i].id) : NULL;
            if (a && fleet_rests(a, kind))
                return a;
        }
    return NULL;
}

void jobs_review_tick(struct sched *s, struct job *j)
{
    struct job_life *l = &j->life;
    int64_t now = net_now_us(s->net);
    const char *kind;
    if (j->state != JOB_RUNNING)
        return;
    if (l->draining) {
        if (now > l->drain_us)
            jobs_lost(s, j, "it did not come to the end of a step in time");
        return;
    }
    const struct generation *g = sched_generation_of(s, j);
    struct fleet_agent *a = resting(s, j, &kind);
    if (!g)
        return;
    if (a) {
        put_left(j, a->id);
        plan_free(l->next);
        l->next = NULL;
        plan_free(l->trial.pipeline);
        l->trial.pipeline = NULL;
        l->trial.state = TRIAL_NONE;
        jobs_drain(s, j, "draining", "%s rests (%s): %s", a->name, kind, a->device_text);
        return;
    }
    if (j->training && l->trial.state == TRIAL_RUNS)
        judge_trial(s, j, g);
    else if (j->training && l->trial.state == TRIAL_NONE && may_move(j))
        try_alone(s, j, g);
    if (l->draining || j->state != JOB_RUNNING || l->trial.state == TRIAL_RUNS || !l->why[0] || l->looking)
        return;
    bool known = j->training ? j->training->epoch_steps > 0 : j->samples > 0;
    if (known && may_move(j) && now - YK_MAX(l->planned_us, l->looked_us) >= s->config.policy.dwell_ms * 1000)
        look(s, j, g);
}

/* It has something of the job, or had. */
static bool concerns(struct sched *s, const struct job *j, const char *agent)
{
    bool here = find_left(j, agent) >= 0;
    for (struct generation *g = s->generations; g && !here; g = g->next)
        here = g->job == j && sched_member(g, agent);
    return here;
}

void jobs_review_lost(struct sched *s, struct fleet_agent *a, const char *why)
{
    for (struct job *j = s->jobs, *next; j; j = next) {
        next = j->next;
        if (concerns(s, j, a->id))
            jobs_event(s, j->id, "lost", "agent %s went away: %s", a->name, why);
    }
}

void jobs_review_joined(struct sched *s, struct fleet_agent *a)
{
    for (struct job *j = s->jobs, *next; j; j = next) {
        next = j->next;
        bool back = find_left(j, a->id) >= 0;
        if (back)
            jobs_event(s, j->id, "returned", "agent %s is back", a->name);
        forget_left(j, a->id);
        jobs_refused_forget(j, a->id);
        j->life.retry_us = 0;
        jobs_review_want(s, j, "%s %s", a->name, back ? "is back" : "has joined");
    }
}

void jobs_review_changed(struct sched *s, struct fleet_agent *a, const char *kind, const char *text)
{
    bool better = strcmp(kind, "cooled") == 0 || strcmp(kind, "recovered") == 0;
    for (struct job *j = s->jobs, *next; j; j = next) {
        next = j->next;
        bool here = concerns(s, j, a->id);
        if (here)
            jobs_event(s, j->id, kind, "%s: %s", a->name, text);
        if (better)
            j->life.retry_us = 0;
        if (better || (here && a->device.mode == POLICY_WARM)) /* what rests is drained by the next tick */
            jobs_review_want(s, j, "%s: %s", a->name, kind);
    }
}

void jobs_review_relinked(
    struct sched *s, const struct fleet_agent *a, const struct fleet_agent *b, bool better, const char *text)
{
    for (struct job *j = s->jobs, *next; j; j = next) {
        next = j->next;
        bool here = concerns(s, j, a->id) && concerns(s, j, b->id);
        if (here)
            jobs_event(s, j->id, "link", "between %s and %s: %s", a->name, b->name, text);
        if (here || better)
            jobs_review_want(s, j, "the link between %s and %s is %s", a->name, b->name, better ? "better" : "worse");
    }
}
