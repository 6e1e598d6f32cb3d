/* Weights that several units use. Each of these units has the weight, what the optimizer keeps for it, and a sum of
 * gradients for every use. Behind the last microbatch of a step the sums of the uses that a unit makes go over edges of
 * their own to the other units; then each folds all of them in the one order and makes the same step, so nothing has to
 * come back. The units agree without a word on who sends the weight for checkpoints: the first that makes a gradient.
 */
#include "agent/training_priv.h"

#include "agent/edge.h"

#include <stdlib.h>
#include <string.h>

static bool makes(const struct train_unit *u, int32_t value)
{
    int32_t n = u->p->graph->values[value].producer;
    return n >= 0 && (u->first->in_stage[n] || u->last->in_stage[n]);
}

static int64_t label(const struct train_unit *u)
{
    return YK_MIN(u->first->index, u->last->index);
}

static int32_t use_value(const struct train_unit *u, int32_t param, int32_t use)
{
    return u->p->graph->outputs[u->p->training->info.params[param].uses[use]];
}

/* Where the tensors of edge e into u belong. */
static bool place_edge(struct train_unit *u, struct edge *e)
{
    const struct grad_info *info = &u->p->training->info;
    struct shared *s = &u->shared;
    for (size_t k = 0; k < e->w->values.n; k++) {
        int before = s->n_places;
        for (int32_t i = 0; i < info->n_params; i++)
            for (int32_t use = 0; use < info->params[i].n_uses; use++) {
                float *to = trainer_use(u->trainer, i, use);
                if (!to || use_value(u, i, use) != e->w->values.at[k] || makes(u, use_value(u, i, use)))
                    continue;
                s->places = yk_xrealloc(s->places, ((size_t)s->n_places + 1) * sizeof *s->places);
                s->places[s->n_places++] =
                    (struct shared_place){e, k, to, u->p->graph->values[info->params[i].value].bytes};
                if (e->w->from < label(u))
                    s->left[i] = 1;
            }
        if (s->n_places == before)
            return false;
    }
    return true;
}

/* What goes out over edge e of u. */
static bool slot_edge(struct train_unit *u, struct edge *e, struct out_slot *out)
{
    const struct grad_info *info = &u->p->training->info;
    *out = (struct out_slot){.stage = e->from, .unit = u, .t = yk_xalloc(e->w->values.n * sizeof *out->t + 1)};
    for (size_t k = 0; k < e->w->values.n; k++) {
        struct tensor *t = &out->t[k];
        for (int32_t i = 0; i < info->n_params && !t->data; i++)
            for (int32_t use = 0; use < info->params[i].n_uses && !t->data; use++)
                if (use_value(u, i, use) == e->w->values.at[k] && makes(u, use_value(u, i, use)))
                    *t = (struct tensor){
                        u->p->graph->values[info->params[i].value].shape, trainer_use(u->trainer, i, use)};
        if (!t->data)
            return false;
    }
    return true;
}

static yk_err check_all(const struct train_unit *u, struct yk_diag *why)
{
    const struct grad_info *info = &u->p->training->info;
    for (int32_t i = 0; i < info->n_params; i++) {
        bool made = false, ours = true;
        for (int32_t use = 0; use < info->params[i].n_uses && trainer_owns(u->trainer, i); use++) {
            const float *to = trainer_use(u->trainer, i, use);
            bool here = makes(u, use_value(u, i, use));
            for (int k = 0; k < u->shared.n_places && !here; k++)
                here = u->shared.places[k].to == to;
            if (!here)
                return yk_fail(why, YK_INVAL, "no edge brings all gradients of '%.80s', which stage %lld uses too",
                    info->params[i].name, (long long)u->first->index);
            made = made || makes(u, use_value(u, i, use));
            ours = false;
        }
        if (!ours && !made)
            u->shared.left[i] = 1;
    }
    return YK_OK;
}

static yk_err open_unit(struct train_unit *u, struct yk_diag *why)
{
    struct pipeline *p = u->p;
    struct shared *s = &u->shared;
    size_t n = (size_t)p->n_edges + 1;
    s->out = yk_xalloc(n * sizeof(struct edge *));
    s->in = yk_xalloc(n * sizeof(struct edge *));
    s->slots = yk_xalloc(n * sizeof *s->slots);
    s->left = yk_xalloc((size_t)p->training->info.n_params + 1);
    for (int i = 0; i < p->n_edges; i++) {
        struct edge *e = &p->edges[i];
        bool good = true;
        if (e->sums && e->from && e->from->half->unit == u) {
            s->out[s->n_out] = e;
            good = slot_edge(u, e, &s->slots[s->n_out++]);
        }
        if (e->sums && e->to && e->to->half->unit == u) {
            s->in[s->n_in++] = e;
            good = good && place_edge(u, e);
        }
        if (!good)
            return yk_fail(why, YK_INVAL, "edge %lld carries gradients that stages %lld and %lld do not share",
                (long long)e->w->id, (long long)e->w->from, (long long)e->w->to);
    }
    return check_all(u, why);
}

yk_err training_shared_open(struct pipeline *p, struct yk_diag *why)
{
    struct pipeline_training *t = p->training;
    yk_err err = YK_OK;
    for (int i = 0; i < t->n_units && !err; i++)
        err = open_unit(&t->units[i], why);
    return err;
}

void training_shared_close(struct train_unit *u)
{
    struct shared *s = &u->shared;
    for (int i = 0; i < s->n_out; i++)
        free(s->slots[i].t);
    free(s->slots);
    free(s->out);
    free(s->in);
    free(s->places);
    free(s->left);
    *s = (struct shared){0};
}

void training_shared_send(struct train_unit *u)
{
    struct shared *s = &u->shared;
    for (int i = 0; i < s->n_out; i++) {
        struct out_slot *out = &s->slots[i];
        out->busy = true;
        out->users = 1;
        out->microbatch = u->step;
        out->count = u->p->full;
        out->micro = (struct micro){.step = u->step, .of = 1, .steps = u->steps};
    }
    for (int i = 0; i < s->n_out; i++)
        edge_push(s->out[i], &s->slots[i]);
}

bool training_shared_here(const struct train_unit *u)
{
    const struct shared *s = &u->shared;
    for (int i = 0; i < s->n_in; i++)
        if (!edge_ready(s->in[i], s->in[i]->to, u->step))
            return false;
    return true;
}

bool training_shared_gone(const struct train_unit *u)
{
    for (int i = 0; i < u->shared.n_out; i++)
        if (u->shared.slots[i].busy)
            return false;
    return true;
}

void training_shared_take(struct train_unit *u)
{
    for (int i = 0; i < u->shared.n_places; i++) {
        const struct shared_place *at = &u->shared.places[i];
        const struct in_slot *in = edge_ready(at->edge, at->edge->to, u->step);
        if (at->bytes > 0)
            memcpy(at->to, in->t[at->at].data, (size_t)at->bytes);
    }
}

void training_shared_done(struct train_unit *u)
{
    for (int i = 0; i < u->shared.n_in; i++) {
        struct edge *e = u->shared.in[i];
        struct in_slot *in = edge_ready(e, e->to, u->step);
        if (in)
            edge_consumed(in, e->to);
    }
}
