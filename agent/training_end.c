/* The end of a step: what other units need of the sums of gradients goes to them and theirs comes (training_shared.c),
 * the norm is made by yoked if one is wanted, parameters move, and what is to be kept is sent. */
#include "agent/training_priv.h"

#include "agent/control.h"
#include "agent/runner.h"
#include "kernels/optim_config.h"

#include <stdlib.h>
#include <string.h>

static void copy_states(struct train_unit *u)
{
    int32_t n;
    const struct trainer_tensor *all = trainer_tensors(u->trainer, &n);
    float *to = u->states;
    for (int32_t i = 0; i < n; i++)
        if (all[i].kind == TRAINER_STATE) {
            memcpy(to, all[i].data, (size_t)shape_bytes(&all[i].shape));
            to += shape_count(&all[i].shape);
        }
}

static void move_run(void *arg)
{
    struct train_unit *u = arg;
    const struct train_config *c = &u->p->training->config;
    const struct optim_schedule schedule = optim_config_schedule(c, u->steps);
    if (!u->squares)
        trainer_fold(u->trainer, NULL);
    u->err = trainer_step(
        u->trainer, optim_lr(&schedule, u->step), u->step + 1, optim_clip_scale(c->clip_norm, u->norm), &u->why);
    copy_states(u);
    if ((u->step + 1) % u->p->training->save_every == 0 || u->step + 1 == u->steps) /* what is kept has to be good */
        training_blame_weights(u);
}

static void move_done(void *arg)
{
    struct train_unit *u = arg;
    struct pipeline *p = u->p;
    struct micro m = {.step = u->step, .index = -1, .steps = u->steps};
    spans_add(p, SPAN_STEP, u->first->index, "", &m, -1, u->moved_us, net_now_us(p->agent->net));
    u->phase = UNIT_RUNS;
    u->done = u->half[0].next = u->half[1].next = 0;
    u->step++;
    if (u->err && p->state == PIPELINE_READY)
        pipeline_fail(p, u->first->index, "", u->err, "step %lld: %s", (long long)u->step, u->why.text);
    if (p->state != PIPELINE_READY || !training_tell_weights(u))
        training_maybe_hold(u);
    pipeline_release(p);
    runner_kick(p->agent);
}

static void move(struct train_unit *u)
{
    u->phase = UNIT_MOVES;
    u->moved_us = net_now_us(u->p->agent->net);
    u->p->busy++;
    worker_post(u->p->agent->runner_thread, move_run, move_done, u);
}

static void fold_run(void *arg)
{
    struct train_unit *u = arg;
    memset(u->squares, 0, (size_t)u->p->training->info.n_params * sizeof *u->squares);
    trainer_fold(u->trainer, u->squares);
}

/* The square sums of all units here, once all have them. */
static void fold_done(void *arg)
{
    struct train_unit *u = arg;
    struct pipeline *p = u->p;
    struct pipeline_training *t = p->training;
    u->phase = UNIT_ASKS;
    bool all = p->state == PIPELINE_READY;
    for (int i = 0; i < t->n_units; i++)
        all = all && t->units[i].phase == UNIT_ASKS && t->units[i].step == u->step;
    if (all) {
        int64_t *values = yk_xalloc(((size_t)t->info.n_params + 1) * sizeof *values);
        double *sums = yk_xalloc(((size_t)t->info.n_params + 1) * sizeof *sums);
        size_t n = 0;
        for (int32_t k = 0; k < t->info.n_params; k++) {
            int i = 0;
            while (i < t->n_units && !trainer_owns(t->units[i].trainer, k))
                i++;
            if (i == t->n_units)
                continue;
            values[n] = t->info.params[k].value; /* once: of several units here all have the same sum */
            sums[n++] = t->units[i].squares[k];
        }
        struct wire_norms w = {.generation = p->generation, .step = u->step, .values = {values, n}, .sums = {sums, n}};
        if (control_send(p->agent, WIRE_TYPE_norms, &w) != YK_OK)
            pipeline_fail(p, u->first->index, "", YK_CLOSED, "the norm of step %lld cannot be told to yoked",
                (long long)u->step + 1);
        free(values);
        free(sums);
    }
    pipeline_release(p);
}

void training_norm(struct pipeline *p, const struct wire_norm *w)
{
    struct pipeline_training *t = p->training;
    for (int i = 0; t && p->state == PIPELINE_READY && i < t->n_units; i++) {
        struct train_unit *u = &t->units[i];
        if (u->phase != UNIT_ASKS || u->step != w->step || !(w->norm >= 0))
            continue;
        u->norm = w->norm;
        move(u);
    }
}

static void take_run(void *arg)
{
    training_shared_take(arg);
}

static void take_done(void *arg)
{
    struct train_unit *u = arg;
    struct pipeline *p = u->p;
    u->phase = UNIT_SETTLES;
    if (p->state == PIPELINE_READY) {
        training_shared_done(u);
        training_wake(&u->half[0]);
    }
    pipeline_release(p);
}

void training_wake(struct half *h)
{
    struct train_unit *u = h->unit;
    struct pipeline *p = u->p;
    if (p->state != PIPELINE_READY)
        return;
    if (u->phase == UNIT_GATHERS && training_shared_here(u)) {
        u->phase = UNIT_TAKES;
        p->busy++;
        worker_post(p->agent->runner_thread, take_run, take_done, u);
    } else if (u->phase == UNIT_SETTLES && !u->held && training_shared_gone(u)) {
        if (!u->squares) {
            move(u);
            return;
        }
        u->phase = UNIT_FOLDS;
        p->busy++;
        worker_post(p->agent->runner_thread, fold_run, fold_done, u);
    }
}

void training_end(struct train_unit *u)
{
    u->phase = u->shared.n_in ? UNIT_GATHERS : UNIT_SETTLES;
    training_shared_send(u);
    training_wake(&u->half[0]);
}
