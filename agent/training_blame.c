/* Which tensor was the first that is no number: the unit that makes a NaN of inputs without one, or an infinite loss,
 * runs the microbatch once more to find where, and yoked hears of it before the loss can reach the source. */
#include "agent/training_priv.h"

#include "agent/control.h"

#include <math.h>

static bool has_nan(const struct tensor *t, int32_t n)
{
    bool nan = false;
    for (int32_t i = 0; i < n && !nan; i++) {
        int64_t count = t[i].shape.dtype == DT_F32 && t[i].data ? shape_count(&t[i].shape) : 0;
        const float *x = t[i].data;
        for (int64_t k = 0; k < count; k++)
            nan |= isnan(x[k]) != 0;
    }
    return nan;
}

static bool bad_loss(const struct train_unit *u, const struct trainer_border *b, const struct tensor *out)
{
    int32_t loss = u->p->graph->outputs[u->p->training->loss];
    for (int32_t i = 0; i < b->n_out; i++)
        if (b->out[i] == loss)
            return !isfinite(*(const float *)out[i].data);
    return false;
}

void training_blame(struct train_unit *u, enum trainer_part part, int slot, const struct micro *m, const int64_t *sizes,
    const struct tensor *in, const struct tensor *out, uint64_t seed)
{
    const struct trainer_border *b = trainer_border(u->trainer, part);
    if (part == TRAINER_BACKWARD || u->bad.found)
        return;
    bool nan = has_nan(out, b->n_out) && !has_nan(in, b->n_in);
    if (!nan && !bad_loss(u, b, out))
        return;
    u->bad.found = trainer_blame_at(u->trainer, slot, sizes, in, seed, u->bad.text, sizeof u->bad.text);
    u->bad.step = m->step;
    u->bad.index = m->index;
}

static void tell(struct train_unit *u)
{
    struct wire_bad w = {.generation = u->p->generation,
        .stage = u->first->index,
        .step = u->bad.step,
        .microbatch = u->bad.index,
        .text = u->bad.text,
        .last = u->bad.last};
    control_send(u->p->agent, WIRE_TYPE_bad, &w);
}

void training_tell(const struct stage *s)
{
    struct train_unit *u = training_unit_of(s);
    if (!u->bad.found || u->bad.told)
        return;
    tell(u);
    u->bad.told = true;
}

void training_blame_weights(struct train_unit *u)
{
    u->bad.last = trainer_blame_weights(u->trainer, u->bad.text, sizeof u->bad.text);
    u->bad.step = u->step + 1;
    u->bad.index = 0;
}

bool training_tell_weights(struct train_unit *u)
{
    if (u->bad.last)
        tell(u);
    return u->bad.last;
}
