#include "common/activation.h"

#include <string.h>

static const struct {
    const char *name, *a, *b; /* attributes of the parameters, NULL: none */
} kinds[] = {
    [ACTIVATION_NONE] = {"none", NULL, NULL},
    [ACTIVATION_RELU] = {"relu", NULL, NULL},
    [ACTIVATION_CLIP] = {"clip", "min", "max"},
    [ACTIVATION_LEAKY_RELU] = {"leaky_relu", "act_alpha", NULL},
    [ACTIVATION_HARD_SIGMOID] = {"hard_sigmoid", "act_alpha", "act_beta"},
    [ACTIVATION_HARD_SWISH] = {"hard_swish", "act_alpha", "act_beta"},
    [ACTIVATION_SIGMOID] = {"sigmoid", NULL, NULL},
    [ACTIVATION_SILU] = {"silu", NULL, NULL},
    [ACTIVATION_GELU] = {"gelu", NULL, NULL},
};

static int kind_of(const struct node *n)
{
    const struct attr *a = node_attr(n, "activation");
    if (!a)
        return ACTIVATION_NONE;
    for (int i = 0; a->kind == ATTR_STRING && i < (int)YK_COUNT(kinds); i++)
        if (!strcmp(a->s, kinds[i].name))
            return i;
    return -1;
}

struct activation activation_of(const struct node *n)
{
    int kind = kind_of(n);
    struct activation f = {kind < 0 ? ACTIVATION_NONE : (enum activation_kind)kind, 0, 0};
    f.a = kinds[f.kind].a ? node_attr_f(n, kinds[f.kind].a, 0) : 0;
    f.b = kinds[f.kind].b ? node_attr_f(n, kinds[f.kind].b, 0) : 0;
    return f;
}

yk_err activation_check(const struct node *n, struct yk_diag *why)
{
    int kind = kind_of(n);
    if (kind < 0)
        return yk_fail(why, YK_INVAL,
            "attribute activation is none of none, relu, clip, leaky_relu, hard_sigmoid, hard_swish, sigmoid, silu, "
            "gelu");
    const char *params[2] = {kinds[kind].a, kinds[kind].b};
    for (int i = 0; i < 2; i++) {
        const struct attr *a = params[i] ? node_attr(n, params[i]) : NULL;
        if (params[i] && (!a || a->kind != ATTR_FLOAT))
            return yk_fail(why, YK_INVAL, "activation %s without a float attribute %s", kinds[kind].name, params[i]);
    }
    return YK_OK;
}

yk_err activation_set(struct graph *g, struct node *n, const struct activation *f)
{
    yk_err err = graph_set_attr_s(g, n, "activation", kinds[f->kind].name);
    if (!err && kinds[f->kind].a)
        err = graph_set_attr_f(g, n, kinds[f->kind].a, f->a);
    if (!err && kinds[f->kind].b)
        err = graph_set_attr_f(g, n, kinds[f->kind].b, f->b);
    return err;
}
