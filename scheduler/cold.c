#include "scheduler/cold.h"

#include "scheduler/held.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST_TURNS 4

/* The agent whose stages take longest to load; -1: none takes any time. */
static int32_t coldest(const struct view *v, const struct plan *p)
{
    int32_t worst = -1;
    double most = 0;
    for (int32_t a = 0; a < v->n_agents; a++) {
        double ms = plan_load_ms_of(p, v->agents[a].name);
        if (v->agents[a].usable && ms > most) {
            most = ms;
            worst = a;
        }
    }
    return worst;
}

/* It lacks something that the model needs. */
static bool is_cold(const struct view_agent *a)
{
    return a->lacks && memchr(a->lacks, 1, (size_t)a->n_lacks);
}

static void leave_out(struct view_agent *a, bool *left_out, double ms)
{
    *left_out = true;
    a->usable = false;
    if (ms > 0)
        snprintf(a->why_not, sizeof a->why_not, "it would take %.4g ms to load its stages first", ms);
    else
        snprintf(a->why_not, sizeof a->why_not, "it would have to fetch weights first");
}

static double whole_ms(const struct plan *p)
{
    return p->step_ms + plan_load_ms(p);
}

static void explain(struct plan *p, const struct plan *fastest, double deadline_ms)
{
    char *text = yk_xasprintf("%s\nat %.4g ms a step another plan is faster once it is loaded, but that takes %.4g ms "
                              "first: too late for the deadline of %.4g ms",
        p->explanation, fastest->step_ms, plan_load_ms(fastest), deadline_ms);
    free(p->explanation);
    p->explanation = text;
}

yk_err cold_plan(const struct solve_request *req, struct view *v, struct plan **out, struct yk_diag *why)
{
    struct plan *first = NULL;
    yk_err err = held_plan(req, v, &first, why);
    if (err || req->deadline_ms <= 0 || req->forced || strcmp(req->job, "infer") != 0 ||
        whole_ms(first) <= req->deadline_ms) {
        if (!err)
            *out = first;
        return err;
    }
    struct plan *best = first, *last = first;
    bool *left_out = yk_xalloc((size_t)v->n_agents + 1);
    for (int turn = 0; turn < MOST_TURNS && whole_ms(best) > req->deadline_ms; turn++) {
        int32_t a = coldest(v, last);
        struct plan *other = NULL;
        if (a < 0)
            break;
        leave_out(&v->agents[a], &left_out[a], plan_load_ms_of(last, v->agents[a].name));
        for (int32_t k = 0; k < v->n_agents && turn + 1 == MOST_TURNS; k++)
            if (v->agents[k].usable && is_cold(&v->agents[k]))
                leave_out(&v->agents[k], &left_out[k], 0);
        if (held_plan(req, v, &other, NULL))
            break;
        if (last != best)
            plan_free(last);
        last = other;
        if (whole_ms(other) < whole_ms(best)) {
            if (best != first)
                plan_free(best);
            best = other;
        }
    }
    for (int32_t a = 0; a < v->n_agents; a++)
        if (left_out[a]) {
            v->agents[a].usable = true;
            v->agents[a].why_not[0] = '\0';
        }
    free(left_out);
    if (best != first)
        explain(best, first, req->deadline_ms);
    if (last != best && last != first)
        plan_free(last);
    if (best != first)
        plan_free(first);
    *out = best;
    return YK_OK;
}
