/* Which value is the first that is not finite. */
#include "kernels/train_priv.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

struct search {
    const struct trainer *t;
    const struct exec *e;
    char *text;
    size_t size;
    bool nan, infinite;
};

/* 2: a NaN is in it, 1: an infinity, 0: all is finite. */
static int badness(const struct tensor *x)
{
    int bad = 0;
    const float *data = x->data;
    if (x->shape.dtype != DT_F32 || !data)
        return 0;
    for (int64_t i = 0, n = tensor_count(x); i < n && bad < 2; i++)
        bad = isnan(data[i]) ? 2 : isinf(data[i]) ? 1 : bad;
    return bad;
}

static void judge(struct search *s, const char *kind, const char *name, const char *op, const struct tensor *x)
{
    int bad = s->nan ? 0 : badness(x);
    if (bad == 0 || (bad == 1 && s->infinite))
        return;
    s->nan = bad == 2;
    s->infinite = true;
    char shape[128];
    shape_text(&x->shape, shape, sizeof shape);
    snprintf(s->text, s->size, "%s '%s'%s%s%s %s holds %s", kind, name, *op ? " (" : "", op, *op ? ")" : "", shape,
        bad == 2 ? "a NaN" : "an infinity");
}

static void on_node(void *arg, int32_t node, const char *form, double ms)
{
    (void)form;
    (void)ms;
    struct search *s = arg;
    const struct node *n = &s->t->graph->nodes[node];
    for (int32_t k = 0; k < n->n_out; k++) {
        if (n->out[k] < 0)
            continue;
        struct tensor x = exec_peek(s->e, n->out[k]);
        judge(s, "value", s->t->graph->values[n->out[k]].name, n->op->name, &x);
    }
}

static void judge_weights(struct search *s)
{
    for (int32_t i = 0; i < s->t->n_tensors; i++) {
        const struct trainer_tensor *w = &s->t->tensors[i];
        struct tensor x = {w->shape, w->data};
        if (w->kind != TRAINER_SLOT)
            judge(s, "weight", strchr(w->name, '/') + 1, "", &x);
    }
}

bool trainer_blame_weights(const struct trainer *t, char *text, size_t size)
{
    struct search s = {.t = t, .text = text, .size = size};
    judge_weights(&s);
    return s.nan || s.infinite;
}

bool trainer_blame(
    struct trainer *t, const int64_t *sizes, const struct tensor *in, uint64_t seed, char *text, size_t size)
{
    return trainer_blame_at(t, 0, sizes, in, seed, text, size);
}

bool trainer_blame_at(
    struct trainer *t, int slot, const int64_t *sizes, const struct tensor *in, uint64_t seed, char *text, size_t size)
{
    struct train_part *p = t->part[TRAINER_WHOLE].exec ? &t->part[TRAINER_WHOLE] : &t->part[TRAINER_FORWARD];
    struct search s = {.t = t, .e = p->exec, .text = text, .size = size};
    const struct shapes *shapes;
    if (!p->exec)
        return false;
    for (int32_t i = 0; i < p->border.n_in; i++)
        judge(&s, "input", t->graph->values[p->border.in[i]].name, "", &in[i]);
    judge_weights(&s);
    if (s.nan || exec_sizes(p->exec, sizes, &shapes, NULL))
        return s.nan || s.infinite;
    t->blames = true;
    train_bind(t, p, slot, shapes, in);
    exec_trace(p->exec, on_node, &s);
    exec_run(p->exec, sizes, p->args, p->outs, seed, NULL);
    t->blames = false;
    exec_trace(p->exec, t->trace, t->trace_arg);
    return s.nan || s.infinite;
}
