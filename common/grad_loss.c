/* Losses: names, options, and the two nodes of one. */
#include <math.h>
#include <string.h>

#include "common/grad_priv.h"

static const struct {
    const char *name;
    bool ids;
} losses[] = {
#define X(name, text, ids) [GRAD_##name] = {text, ids},
    GRAD_LOSSES(X)
#undef X
};

const char *grad_loss_name(enum grad_loss l)
{
    return (unsigned)l < GRAD_LOSS_COUNT ? losses[l].name : "none";
}

bool grad_loss_find(const char *name, enum grad_loss *out)
{
    for (int i = 0; i < GRAD_LOSS_COUNT; i++)
        if (strcmp(losses[i].name, name) == 0) {
            *out = (enum grad_loss)i;
            return true;
        }
    return false;
}

bool grad_loss_has_ids(enum grad_loss l)
{
    return (unsigned)l < GRAD_LOSS_COUNT && losses[l].ids;
}

void grad_options_init(struct grad_options *o)
{
    *o = (struct grad_options){.loss = GRAD_CROSS_ENTROPY, .ignore_index = GRAD_IGNORE_INDEX};
}

yk_err grad_check_options(const struct grad_options *o, struct yk_diag *why)
{
    if ((unsigned)o->loss >= GRAD_LOSS_COUNT)
        return yk_fail(why, YK_INVAL, "loss %d is none of the known ones", (int)o->loss);
    if (!(o->label_smoothing >= 0 && o->label_smoothing < 1))
        return yk_fail(
            why, YK_INVAL, "label smoothing is %g, allowed are 0 to less than 1", (double)o->label_smoothing);
    if (o->label_smoothing > 0 && o->loss != GRAD_CROSS_ENTROPY)
        return yk_fail(why, YK_INVAL, "label smoothing goes with cross-entropy, not with %s", grad_loss_name(o->loss));
    return YK_OK;
}

static void set_attrs(struct grad *r)
{
    grad_attr_s(r, "kind", grad_loss_name(r->o->loss));
    if (grad_loss_has_ids(r->o->loss))
        grad_attr_i(r, "ignore_index", r->o->ignore_index);
    if (r->o->label_smoothing > 0)
        grad_attr_f(r, "label_smoothing", r->o->label_smoothing);
}

yk_err grad_write_loss(struct grad *r, int32_t scores, int32_t target, int32_t divisor, int32_t *loss, int32_t *d)
{
    r->part = GRAD_LOSS_PART;
    *loss = grad_op3(r, "ai.yoke.Loss", scores, target, divisor);
    set_attrs(r);
    r->part = GRAD_BACKWARD;
    *d = grad_op3(r, "ai.yoke.LossGrad", scores, target, divisor);
    set_attrs(r);
    return r->err;
}
