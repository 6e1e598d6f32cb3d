/* From a job to its plan: asked of planning.c, recorded, handed to dispatch. A job that is being planned is so in its
 * row first, so that the next start knows which ones were when yoked ended. */
#include "scheduler/job_data.h"
#include "scheduler/sched_priv.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define RETRY_US 1000000 /* until the planner is asked again, if nothing has changed */

struct plan_wait {
    struct sched *s;
    int64_t job;
    bool given, next; /* whose plan was asked for: the client's, that of jobs_review.c */
    bool waited;      /* before it: its time goes on where it was */
    int64_t since_us;
};

static void fix_forms(struct job *j, const struct plan *plan)
{
    if (j->n_forms || !plan->forms)
        return;
    j->forms = yk_xalloc(((size_t)plan->n_forms + 1) * sizeof *j->forms);
    for (; j->n_forms < plan->n_forms; j->n_forms++)
        j->forms[j->n_forms] = yk_xstrdup(plan->forms[j->n_forms]);
}

static void ranges_text(const struct plan_stage *st, char *out, size_t size)
{
    size_t used = 0;
    out[0] = '\0';
    for (int32_t i = 0; i < st->n_nodes && used + 1 < size; i++) {
        int n = snprintf(out + used, size - used, "%s%d-%d", i ? "," : "", st->nodes[i].first, st->nodes[i].last);
        used += n > 0 ? (size_t)n : 0;
    }
}

static void record_plan(struct sched *s, struct job *j, const struct plan *plan)
{
    struct yk_buf json = {0}, given = {0};
    struct json_out out;
    int32_t stages = 0;
    json_out_init(&out, &json, 0);
    plan_to_json(plan, &out);
    yk_buf_add(&json, "", 1);
    if (j->forced) {
        json_out_init(&out, &given, 0);
        plan_to_json(j->forced, &out);
        yk_buf_add(&given, "", 1);
    }
    for (int32_t i = 0; i < plan->n_pipelines; i++)
        stages += plan->pipelines[i].n_stages;
    j->plan_id = ++s->next_plan;
    struct store_plan row = {.id = j->plan_id,
        .job = j->id,
        .microbatch = plan->microbatch,
        .batch = plan->batch,
        .pipelines = plan->n_pipelines,
        .stages = stages,
        .model = plan->model,
        .graph_hash = plan->graph_hash,
        .reason = j->replans ? j->error : "first plan",
        .objective = plan->objective,
        .plan = json.failed ? "" : (char *)json.data,
        .given = given.failed ? NULL : (char *)given.data,
        .bottleneck = plan->bottleneck,
        .best_single = plan->best_single,
        .step_ms = plan->step_ms,
        .cost_ms = plan->cost_ms,
        .bound_ms = plan->bound_ms,
        .gap = plan->gap,
        .best_single_ms = plan->best_single ? plan->best_single_ms : NAN};
    store_put_plan(s->store, &row);
    for (int32_t i = 0; i < plan->n_pipelines; i++)
        for (int32_t k = 0; k < plan->pipelines[i].n_stages; k++) {
            const struct plan_stage *st = &plan->pipelines[i].stages[k];
            char nodes[200];
            ranges_text(st, nodes, sizeof nodes);
            store_put_stage(s->store, j->plan_id, i, k, st->agent, nodes, st->predicted_ms, st->memory_bytes);
        }
    yk_buf_free(&json);
    yk_buf_free(&given);
}

/* Nobody can take it now, which is told once. Devices that rest are waited for longer than those that went away. */
static void wait_longer(struct sched *s, struct job *j, const char *before, const char *why)
{
    int64_t now = net_now_us(s->net);
    bool rests = fleet_any_rests(s->fleet), told = strcmp(j->error, why) == 0 && !before[0];
    char text[sizeof j->error];
    jobs_move(s, j, JOB_WAITING, "");
    snprintf(text, sizeof text, "%s%.480s", before, why);
    if (!told && rests)
        jobs_event(s, j->id, "waiting", "for devices that rest: %.500s", text);
    else if (!told)
        jobs_waits(s, j, text);
    snprintf(j->error, sizeof j->error, "%s", why);
    j->dirty = true;
    j->life.retry_us = now + RETRY_US;
    if (!rests)
        return;
    if (!j->life.rest_until_us)
        j->life.rest_until_us = now + s->config.policy.rest_ms * 1000;
    j->deadline_us = YK_MAX(j->deadline_us, j->life.rest_until_us);
}

/* That the job's first plan takes: uploaded data can go to any agent, and later plans may be others than the given. */
static bool first_plan(const struct job *j)
{
    return !j->replans && !j->done_map;
}

static bool names_stage(const struct job *j, int32_t *pipeline, int32_t *stage)
{
    const struct plan *p = j->forced;
    for (++*stage; p && *pipeline < p->n_pipelines; *stage = 0, ++*pipeline)
        if (*stage < p->pipelines[*pipeline].n_stages)
            return true;
    return false;
}

/* Of what the first plan cannot do without, what nobody knows. */
static bool names_unknown(struct sched *s, const struct job *j, char *text, size_t size)
{
    if (j->source && !j->n_inputs && !fleet_find(s->fleet, j->source)) {
        snprintf(text, size, "source '%s' is not an agent of this fleet (`yoke agents` lists them)", j->source);
        return true;
    }
    for (int32_t i = 0, k = -1; first_plan(j) && names_stage(j, &i, &k);)
        if (!fleet_find(s->fleet, j->forced->pipelines[i].stages[k].agent)) {
            snprintf(text, size, "the plan names agent '%s', which is not in the fleet (`yoke agents` lists them)",
                j->forced->pipelines[i].stages[k].agent);
            return true;
        }
    return false;
}

/* The job cannot do without an agent that is away and may come, again or for the first time. */
static bool lacks_agent(struct sched *s, const struct job *j, char *text, size_t size)
{
    const struct fleet_agent *a = j->source && !j->n_inputs ? fleet_find(s->fleet, j->source) : NULL;
    if (a && a->state != FLEET_ALIVE) {
        snprintf(text, size, "source %s, which holds the data, is away", j->source);
        return true;
    }
    if (fleet_alive(s->fleet) == 0) {
        snprintf(text, size, "%s", PLANNING_NOBODY);
        return true;
    }
    for (int32_t i = 0, k = -1; first_plan(j) && names_stage(j, &i, &k);) {
        a = fleet_find(s->fleet, j->forced->pipelines[i].stages[k].agent);
        if (a && a->state != FLEET_ALIVE) {
            snprintf(text, size, "agent %s, which the plan names, is away", a->name);
            return true;
        }
    }
    return j->life.early && names_unknown(s, j, text, size);
}

/* The fleet is not the one that planning began with. */
static bool fleet_changed(struct sched *s, int64_t since_us)
{
    for (const struct fleet_agent *a = fleet_first(s->fleet); a; a = a->next)
        if ((a->state == FLEET_ALIVE ? a->since_us : a->last_seen_us + s->config.lease_ms * 1000) >= since_us)
            return true;
    return false;
}

static void on_plan(void *arg, yk_err err, const char *why, struct plan *plan)
{
    struct plan_wait *w = arg;
    struct sched *s = w->s;
    struct job *j = jobs_find(s, w->job);
    bool given = w->given, next = w->next;
    int64_t since_us = w->since_us;
    bool waited = w->waited;
    char away[200];
    free(w);
    if (!j || j->state != JOB_PLANNING || s->closing) { /* at a stop the job stays as it is, for the next start */
        plan_free(plan);
        return;
    }
    if (err) {
        if (!waited)
            j->deadline_us = 0; /* that was of planning */
        /* Agents that went away may come back: then there is something to wait for. */
        if (next) {
            jobs_move(s, j, JOB_WAITING, "");
        } else if (err == YK_INFEASIBLE && j->life.n_refused) {
            jobs_refused_forget(j, NULL);
            wait_longer(s, j, "no plan does without what agents had no memory for, so that is tried again: ", why);
        } else if (err == YK_INFEASIBLE && lacks_agent(s, j, away, sizeof away)) {
            wait_longer(s, j, "", away);
        } else if (err == YK_INFEASIBLE &&
                   (!first_plan(j) || fleet_any_rests(s->fleet) || fleet_changed(s, since_us))) {
            wait_longer(s, j, "", why);
        } else {
            jobs_fail(s, j, "%s", why);
        }
        return;
    }
    struct model *m = j->training ? j->training->model : sched_model_find(s, j->model);
    struct yk_diag reason = {0};
    if (given && j->training && training_check(j->training, plan, &reason)) {
        plan_free(plan);
        jobs_fail(s, j, "%s", reason.text);
        return;
    }
    j->deaths = 0;
    j->life.given = given;
    j->life.loading_us = net_now_us(s->net);
    fix_forms(j, plan);
    j->microbatch = plan->microbatch;
    record_plan(s, j, plan);
    if (j->training)
        jobs_train_resumed(s, j);
    jobs_event(s, j->id, "planned", "%.4g ms a step on %d stage%s of pipeline 0, microbatch %lld, bottleneck %s",
        plan->step_ms, plan->pipelines[0].n_stages, plan->pipelines[0].n_stages == 1 ? "" : "s",
        (long long)plan->microbatch, plan->bottleneck);
    jobs_move(s, j, JOB_LOADING, "");
    if (!m || (err = dispatch_load(s, j, m, plan, j->plan_id, &reason)))
        jobs_lost(s, j, m ? reason.text : "the model is gone");
    plan_free(plan);
}

bool jobs_plan_usable(struct sched *s, const struct plan *p)
{
    for (int32_t i = 0; i < p->n_pipelines; i++)
        for (int32_t k = 0; k < p->pipelines[i].n_stages; k++) {
            struct fleet_agent *a = fleet_find(s->fleet, p->pipelines[i].stages[k].agent);
            if (!a || a->state != FLEET_ALIVE || a->device.mode == POLICY_RESTING)
                return false;
        }
    return true;
}

static bool source_known(struct sched *s, struct job *j)
{
    struct fleet_agent *a = j->source ? fleet_find(s->fleet, j->source) : NULL;
    return a && a->state == FLEET_ALIVE;
}

/* A job keeps its forms, so that its bits are the same wherever it goes on. They end where a form's backend was taken
 * out and no device has another: then the job is planned anew, and says so. */
static void drop_gone_forms(struct sched *s, struct job *j)
{
    bool given = j->forced && j->forced->forms;
    int32_t n = given ? j->forced->n_forms : j->n_forms;
    char **forms = given ? j->forced->forms : j->forms;
    const char *gone = NULL;
    for (int32_t i = 0; i < n && !gone; i++) {
        const char *at = strchr(forms[i], '@');
        gone = at && !fleet_has_isa(s->fleet, at + 1) ? forms[i] : NULL;
    }
    if (!gone)
        return;
    jobs_event(
        s, j->id, "forms", "no agent has form '%.60s' any more: it goes on with others, equal bits end here", gone);
    for (int32_t i = 0; i < j->n_forms; i++)
        free(j->forms[i]);
    free(j->forms);
    j->forms = NULL;
    j->n_forms = 0;
    plan_free(j->forced);
    j->forced = NULL;
}

double jobs_upload_frac(const struct job *j)
{
    return j->training ? 1 / (double)YK_MAX(j->training->config.epochs, (int64_t)1) : 1;
}

bool jobs_answers(const struct job *j)
{
    return j->want_outputs || strcmp(j->kind, "infer") == 0;
}

void jobs_plan_request(struct sched *s, struct job *j, struct model *m, bool retry, struct solve_training *training,
    struct planning_request *out)
{
    if (j->training)
        training_for_solver(j->training, training);
    *out = (struct planning_request){.model = m,
        .kind = j->kind,
        /* Uploaded data can go to another agent, later; what lies under a data root cannot, even if its agent went away
         * since this planning began. */
        .source = !retry || !j->n_inputs || source_known(s, j) ? j->source : NULL,
        .objective = j->objective,
        .sizes = j->sizes,
        .batch = j->batch,
        .microbatch = j->microbatch,
        .samples = j->samples ? j->samples : YK_MAX(j->uploaded, (int64_t)0),
        .deadline_ms = retry ? 0 : (double)j->deadline_ms,
        .codec_allowed = j->codec_allowed,
        .pin_first = j->pin_first,
        .pin_last = j->pin_last,
        .upload_frac = jobs_upload_frac(j),
        .answers = jobs_answers(j),
        .fetches = !j->training || j->training->saved.step == 0, /* of a set that is in what a move takes */
        /* The number of uploaded samples is known, so pipelines can begin together. */
        .replicas = strcmp(j->kind, "batch") == 0 && j->n_inputs > 0,
        .want_reasons = !retry,
        .forced = j->forced && (!retry || (jobs_plan_usable(s, j->forced) && !j->life.n_refused)) ? j->forced : NULL,
        .refused = j->life.refused,
        .n_refused = j->life.n_refused,
        .forms = j->n_forms == m->graph->n_nodes ? j->forms : NULL,
        .training = j->training ? training : NULL};
}

/* m: the model, or the training graph of it. */
static void plan_with(struct plan_wait *w, struct job *j, struct model *m)
{
    struct sched *s = w->s;
    struct yk_diag why = {0};
    yk_err err = model_load(m, s->blobs, &why);
    if (!err)
        err = job_data_resolve(j, m->graph, s->blobs, &why);
    if (!err && j->training)
        jobs_train_resume(s, j);
    if (err) {
        free(w);
        jobs_fail(s, j, "%s", why.text);
        return;
    }
    bool retry = !first_plan(j);
    if (retry)
        drop_gone_forms(s, j);
    struct solve_training training;
    struct planning_request r;
    jobs_plan_request(s, j, m, retry, &training, &r);
    if (j->life.next && jobs_plan_usable(s, j->life.next)) {
        r.forced = j->life.next;
        w->next = true;
    }
    w->given = j->forced && r.forced == j->forced;
    snprintf(j->graph_hash, sizeof j->graph_hash, "%s", m->graph_hash);
    planning_start(s, &r, on_plan, w);
    plan_free(j->life.next);
    j->life.next = NULL;
    planning_step(s);
}

static void on_training(void *arg, yk_err err, const char *why, struct training *made)
{
    struct plan_wait *w = arg;
    struct sched *s = w->s;
    struct job *j = s->closing ? NULL : jobs_find(s, w->job);
    if (!j || j->state != JOB_PLANNING) {
        training_free(made);
        free(w);
    } else if (err == YK_NOSPC) {
        free(w);
        jobs_store_error(s, j->id, err, why);
    } else if (err) {
        free(w);
        jobs_fail(s, j, "%s", why);
    } else {
        training_adopt(j->training, made);
        if (j->training->warning)
            jobs_event(s, j->id, "warning", "%s", j->training->warning);
        plan_with(w, j, j->training->model);
    }
}

/* The row says that it is being planned: now whatever reads the job's data and plan may. */
static void start_planning(void *arg)
{
    struct plan_wait *w = arg;
    struct sched *s = w->s;
    struct job *j = s->closing ? NULL : jobs_find(s, w->job);
    if (!j || j->state != JOB_PLANNING) {
        free(w);
        return;
    }
    jobs_store_works(s, j);
    struct model *m = sched_model_find(s, j->model);
    if (!m) {
        free(w);
        jobs_fail(s, j, "the model is gone");
    } else if (j->training && !j->training->model) {
        jobs_train_make(s, &j->training->config, m, on_training, w);
    } else if (j->training) {
        plan_with(w, j, j->training->model);
    } else {
        plan_with(w, j, m);
    }
}

/* Of the jobs that were being planned when yoked ended, one may be why: they are planned one by one. */
static bool is_its_turn(const struct sched *s, const struct job *j)
{
    for (const struct job *k = s->jobs; j->deaths && k; k = k->next)
        if (k->deaths && k->state == JOB_PLANNING)
            return false;
    return true;
}

void jobs_step(struct sched *s, struct job *j)
{
    if (s->closing || !j->stored || (j->state != JOB_QUEUED && j->state != JOB_WAITING))
        return;
    if (net_now_us(s->net) < j->life.retry_us)
        return;
    char away[200];
    if (j->state == JOB_QUEUED) {
        j->life.early = fleet_alive(s->fleet) == 0;
        if (!j->life.early && names_unknown(s, j, away, sizeof away)) {
            jobs_fail(s, j, "%s", away);
            return;
        }
    }
    /* After a restart the first agent that is back is not the fleet: a plan on it alone would be a poor one. */
    if (j->state == JOB_WAITING && net_now_us(s->net) - s->opened_us < (j->forced ? 2 : 1) * s->config.lease_ms * 500 &&
        !(j->forced && jobs_plan_usable(s, j->forced)))
        return;
    /* Data under a data root is on its agent only; uploaded data can go to any. */
    if (lacks_agent(s, j, away, sizeof away)) {
        bool other = j->life.early && strncmp(j->error, away, strlen(away)) != 0;
        if (j->state == JOB_QUEUED)
            jobs_move(s, j, JOB_WAITING, away);
        else if (other)
            jobs_waits(s, j, away);
        return;
    }
    if (!is_its_turn(s, j)) {
        j->deadline_us =
            net_now_us(s->net) + s->config.source_wait_ms * 1000; /* of the other's planning there is one */
        return;
    }
    struct plan_wait *w = yk_xalloc(sizeof *w);
    *w = (struct plan_wait){.s = s, .job = j->id, .waited = j->state == JOB_WAITING, .since_us = net_now_us(s->net)};
    int64_t keep = j->state == JOB_WAITING ? j->deadline_us : 0;
    jobs_move(s, j, JOB_PLANNING, "");
    if (keep)
        j->deadline_us = keep;
    store_flush(s->store, start_planning, w);
}
