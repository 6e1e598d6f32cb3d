/* Runs of microbatches, and the end of a step. */
#include "kernels/train_priv.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const struct trainer_border *trainer_border(const struct trainer *t, enum trainer_part part)
{
    return &t->part[part].border;
}

static struct train_part *any_part(const struct trainer *t)
{
    for (int i = 0; i < 3; i++)
        if (t->part[i].exec)
            return (struct train_part *)&t->part[i];
    return NULL;
}

yk_err trainer_shapes(struct trainer *t, const int64_t *sizes, const struct shapes **out, struct yk_diag *why)
{
    struct train_part *p = any_part(t);
    return p ? exec_sizes(p->exec, sizes, out, why) : yk_fail(why, YK_STATE, "the stage has no nodes");
}

uint64_t trainer_seed(uint64_t seed, int64_t step, int64_t microbatch)
{
    uint64_t in[3] = {seed, (uint64_t)step, (uint64_t)microbatch}, x = 0;
    for (int i = 0; i < 3; i++) { /* splitmix64, chained */
        x += in[i] + 0x9e3779b97f4a7c15u;
        x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
        x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
        x ^= x >> 31;
    }
    return x;
}

/* ---- a run ---- */

struct add {
    float *sum;
    const float *more;
    int64_t count;
};

static void add_tile(void *arg, int64_t tile, int thread)
{
    (void)thread;
    const struct add *a = arg;
    int64_t first = tile * OPTIM_BLOCK;
    optim_add(a->sum + first, a->more + first, YK_MIN(OPTIM_BLOCK, a->count - first));
}

void train_bind(struct trainer *t, struct train_part *p, int slot, const struct shapes *s, const struct tensor *in)
{
    const struct train_part *forward = &t->part[TRAINER_FORWARD];
    for (int32_t i = 0; i < p->n_in; i++) {
        const struct train_end *e = &p->in[i];
        if (e->kind == TRAIN_OUTSIDE)
            p->args[i] = in[e->border];
        else if (e->kind == TRAIN_TAKEN)
            p->args[i] = t->taken[(int64_t)slot * forward->n_in + e->index];
        else
            p->args[i] = (struct tensor){s->of[e->value], forward->memory[(int64_t)slot * forward->n_out + e->index]};
    }
    for (int32_t i = 0; i < p->n_out; i++) {
        const struct train_end *e = &p->out[i];
        void *data = p->memory[(int64_t)slot * p->n_out + i];
        /* The first of a step writes gradients into the sums themselves, others give them to train_take. */
        if (!data && e->kind == TRAIN_GRADIENT && (t->single || (t->fresh && !t->blames)))
            data = t->sums[e->index].data;
        p->outs[i] = (struct tensor){s->of[e->value], data};
    }
}

static yk_err set_weights(struct trainer *t, const uint8_t *changed, struct yk_diag *why)
{
    yk_err err = YK_OK;
    for (int i = 0; i < 3 && !err; i++)
        if (t->part[i].exec)
            err = exec_set_weights(t->part[i].exec, changed, why);
    return err;
}

static void take_gradient(struct trainer *t, struct train_sum *sum, const float *more)
{
    struct add a = {sum->data, more, sum->count};
    if (!t->fresh)
        pool_run(t->pool, (sum->count + OPTIM_BLOCK - 1) / OPTIM_BLOCK, add_tile, &a);
    else if (sum->data != more && sum->count > 0)
        memcpy(sum->data, more, (size_t)sum->count * sizeof(float));
}

/* To all sums that a value is the gradient of. */
static void take_gradients(struct trainer *t, int32_t sum, const float *more)
{
    for (int32_t k = sum; k >= 0; k = t->sums[k].more)
        take_gradient(t, &t->sums[k], more);
    t->added = true;
}

void train_take(void *arg, int32_t out, const struct tensor *made)
{
    const struct train_part *p = arg;
    if (!p->trainer->blames)
        take_gradients(p->trainer, p->out[out].index, made->data);
}

static yk_err take_results(struct trainer *t, struct train_part *p, struct yk_diag *why)
{
    bool states = false;
    for (int32_t i = 0; i < p->n_out; i++) {
        const struct train_end *e = &p->out[i];
        if (e->kind == TRAIN_GRADIENT && p->outs[i].data) {
            take_gradients(t, e->index, p->outs[i].data);
        } else if (e->kind == TRAIN_NEXT_STATE) {
            int32_t value = t->info->states[e->index].value;
            memcpy(t->states[e->index], p->outs[i].data, (size_t)t->graph->values[value].bytes);
            t->changed[value] = 1;
            states = true;
        }
    }
    if (t->added)
        t->fresh = false;
    t->added = false;
    yk_err err = states ? set_weights(t, t->changed, why) : YK_OK;
    if (states)
        memset(t->changed, 0, (size_t)t->graph->n_values);
    return err;
}

static yk_err torn(struct yk_diag *why)
{
    return yk_fail(why, YK_STATE, "a run of this step failed with a part of its gradients added");
}

yk_err trainer_run(struct trainer *t, enum trainer_part part, int slot, const int64_t *sizes, const struct tensor *in,
    struct tensor *out, uint64_t seed, struct yk_diag *why)
{
    struct train_part *p = &t->part[part], *forward = &t->part[TRAINER_FORWARD];
    const struct shapes *s;
    if (slot < 0 || slot >= t->slots)
        return yk_fail(why, YK_INVAL, "slot %d of %d", slot, t->slots);
    if (!p->exec)
        return YK_OK; /* no node of this part is in the stage */
    if (t->torn)
        return torn(why);
    if (t->single && !t->fresh && part != TRAINER_FORWARD)
        return yk_fail(why, YK_STATE, "the trainer was opened for one microbatch in a step");
    yk_err err = exec_sizes(p->exec, sizes, &s, why);
    if (err)
        return err;
    train_bind(t, p, slot, s, in);
    if ((err = exec_run(p->exec, sizes, p->args, p->outs, seed, why))) {
        t->torn = t->added;
        t->added = false;
        return err;
    }
    if (part == TRAINER_FORWARD)
        memcpy(t->taken + (int64_t)slot * forward->n_in, p->args, (size_t)p->n_in * sizeof *p->args);
    for (int32_t i = 0; i < p->n_out; i++)
        if (p->out[i].border >= 0)
            out[p->out[i].border] = p->outs[i];
    return take_results(t, p, why);
}

void trainer_cancel(struct trainer *t)
{
    for (int i = 0; i < 3; i++)
        if (t->part[i].exec)
            exec_cancel(t->part[i].exec);
}

/* ---- the end of a step ---- */

float *trainer_use(struct trainer *t, int32_t param, int32_t use)
{
    const struct train_param *p = &t->params[param];
    return p->sums && p->sums[use] >= 0 ? t->sums[p->sums[use]].data : NULL;
}

bool trainer_owns(const struct trainer *t, int32_t param)
{
    return t->params[param].owned;
}

struct flush {
    struct trainer *t;
    bool squares;
    double lr;
    int64_t step;
    float scale;
};

static void fold_tile(void *arg, int64_t tile, int thread)
{
    (void)thread;
    const struct flush *f = arg;
    struct trainer *t = f->t;
    struct train_tile at = t->tiles[tile];
    const struct train_param *p = &t->params[at.param];
    float *sum = t->sums[p->sums[0]].data + at.first;
    for (int32_t u = 1; u < t->info->params[at.param].n_uses; u++)
        optim_add(sum, t->sums[p->sums[u]].data + at.first, at.count);
    if (f->squares)
        t->tile_squares[tile] = optim_square_sum_block(sum, at.count);
}

void trainer_fold(struct trainer *t, double *squares)
{
    struct flush f = {.t = t, .squares = squares != NULL};
    bool shared = false;
    for (int32_t i = 0; i < t->info->n_params; i++)
        shared |= t->params[i].owned && t->info->params[i].n_uses > 1;
    if (shared || squares)
        pool_run(t->pool, t->n_tiles, fold_tile, &f);
    for (int32_t i = 0; squares && i < t->info->n_params; i++)
        if (t->params[i].owned)
            squares[i] = 0;
    for (int64_t i = 0; squares && i < t->n_tiles; i++)
        squares[t->tiles[i].param] += t->tile_squares[i];
}

static void step_tile(void *arg, int64_t tile, int thread)
{
    (void)thread;
    const struct flush *f = arg;
    struct train_tile at = f->t->tiles[tile];
    const struct train_param *p = &f->t->params[at.param];
    float *slots[OPTIM_SLOTS_MAX];
    for (int k = 0; k < OPTIM_SLOTS_MAX; k++)
        slots[k] = p->slots[k] ? p->slots[k] + at.first : NULL;
    optim_step(&f->t->optim, f->lr, f->step, f->scale, p->data + at.first, f->t->sums[p->sums[0]].data + at.first,
        slots, at.count);
}

yk_err trainer_step(struct trainer *t, double lr, int64_t step, float scale, struct yk_diag *why)
{
    struct flush f = {.t = t, .lr = lr, .step = step, .scale = scale};
    if (t->torn)
        return torn(why);
    pool_run(t->pool, t->n_tiles, step_tile, &f);
    t->fresh = true;
    return trainer_renew(t, why);
}

void trainer_drop(struct trainer *t)
{
    t->torn = false;
    t->fresh = true;
}

yk_err trainer_flush(struct trainer *t, double lr, int64_t step, double *norm, struct yk_diag *why)
{
    double *squares = NULL, sum = 0;
    if (t->clip_norm > 0 && !(squares = yk_try_alloc((size_t)t->info->n_params + 1, sizeof *squares)))
        return yk_fail(why, YK_NOMEM, "no memory to clip gradients");
    trainer_fold(t, squares);
    for (int32_t i = 0; squares && i < t->info->n_params; i++)
        sum += squares[i];
    free(squares);
    if (norm)
        *norm = sqrt(sum);
    return trainer_step(t, lr, step, optim_clip_scale(t->clip_norm, sqrt(sum)), why);
}

/* ---- what is saved ---- */

const struct trainer_tensor *trainer_tensors(const struct trainer *t, int32_t *n)
{
    *n = t->n_tensors;
    return t->tensors;
}

yk_err trainer_renew(struct trainer *t, struct yk_diag *why)
{
    return set_weights(t, NULL, why);
}

const float *trainer_weight(const struct trainer *t, int32_t value)
{
    return t->variable[value];
}

/* ---- figures ---- */

int64_t trainer_held_bytes(const struct trainer *t)
{
    int64_t sum = t->held;
    for (int i = 0; i < 3; i++)
        if (t->part[i].exec)
            sum += exec_held_bytes(t->part[i].exec);
    return sum;
}

const char *trainer_form(const struct trainer *t, int32_t node)
{
    for (int i = 0; i < 3; i++) {
        const char *form = t->part[i].exec ? exec_form(t->part[i].exec, node) : NULL;
        if (form)
            return form;
    }
    return NULL;
}

void trainer_trace(struct trainer *t, void (*fn)(void *arg, int32_t node, const char *form, double ms), void *arg)
{
    t->trace = fn;
    t->trace_arg = arg;
    for (int i = 0; i < 3; i++)
        if (t->part[i].exec)
            exec_trace(t->part[i].exec, fn, arg);
}
