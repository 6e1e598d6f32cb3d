/* The forward part of a training graph: the forward graph with ids kept. Batch normalisation over the batch gives its
 * statistics too, Dropout its mask. */
#include <stdio.h>
#include <string.h>

#include "common/grad_priv.h"

static bool is_op(const struct node *n, const char *name)
{
    return !n->op->domain[0] && strcmp(n->op->name, name) == 0;
}

static yk_err no_memory(struct grad *r)
{
    return r->err = yk_fail(r->why, YK_NOMEM, "no memory for the training graph");
}

static yk_err copy_values(struct grad *r)
{
    for (int32_t v = 0; v < r->fwd->n_values; v++) {
        const struct value *from = &r->fwd->values[v];
        int32_t id = graph_add_value(r->g, from->name, from->kind, from->dtype);
        if (id != v)
            return no_memory(r);
        const char *name = r->g->values[id].name;
        r->g->values[id] = *from;
        r->g->values[id].name = name;
        r->g->values[id].producer = -1;
    }
    return YK_OK;
}

static int32_t extra_value(struct grad *r, const char *stem, const char *what)
{
    char name[256];
    snprintf(name, sizeof name, "%.200s/%s", stem, what);
    for (int i = 2; graph_find_value(r->g, name) != YK_ABSENT; i++)
        snprintf(name, sizeof name, "%.200s/%s.%d", stem, what, i);
    return graph_add_value(r->g, name, VALUE_NODE, DT_NONE);
}

/* The next running statistic: what the model calls it, or a new value. */
static int32_t next_statistic(struct grad *r, const struct node *n, int k, const char *what)
{
    int32_t weight = n->in[2 + k];
    const struct value *v = &r->fwd->values[weight];
    int32_t out = k < n->n_out ? n->out[k] : YK_ABSENT;
    if (out == YK_ABSENT)
        out = extra_value(r, v->kind == VALUE_WEIGHT ? v->name : n->name, what);
    if (v->kind == VALUE_WEIGHT && !v->constant)
        r->next[weight] = out;
    return out;
}

/* A module that is used twice moves its statistics twice, the second time from where the first left them. */
static yk_err copy_batchnorm(struct grad *r, const struct node *n)
{
    bool backward = grad_needs(r, n, 0) || grad_needs(r, n, 1) || grad_needs(r, n, 2);
    int32_t in[5], out[5] = {n->out[0], YK_ABSENT, YK_ABSENT, YK_ABSENT, YK_ABSENT};
    memcpy(in, n->in, sizeof in);
    for (int k = 3; k < 5; k++)
        if (r->next[in[k]] != YK_ABSENT)
            in[k] = r->next[in[k]];
    out[1] = next_statistic(r, n, 1, "next");
    out[2] = next_statistic(r, n, 2, "next");
    if (backward) {
        out[3] = extra_value(r, n->name, "mean");
        out[4] = extra_value(r, n->name, "inv_std");
    }
    if (graph_add_node(r->g, n->name, op_find("ai.yoke", "BatchNormTrain"), in, 5, out, backward ? 5 : 3) < 0)
        return no_memory(r);
    struct node *made = &r->g->nodes[r->g->n_nodes - 1];
    if (graph_set_attr_f(r->g, made, "epsilon", node_attr_f(n, "epsilon", 1e-5f)) ||
        graph_set_attr_f(r->g, made, "momentum", node_attr_f(n, "momentum", 0.9f)))
        return no_memory(r);
    return YK_OK;
}

/* Frozen statistics: the inference form, whatever the file says. */
static yk_err copy_frozen_batchnorm(struct grad *r, const struct node *n)
{
    for (int k = 1; k < n->n_out; k++)
        for (int32_t i = 0; n->out[k] != YK_ABSENT && i < r->fwd->n_nodes; i++)
            for (int j = 0; j < r->fwd->nodes[i].n_in; j++)
                if (r->fwd->nodes[i].in[j] == n->out[k])
                    return grad_fail(r, YK_UNSUPPORTED, "its statistics are read by node %d: they cannot be frozen", i);
    if (graph_add_node(r->g, n->name, n->op, n->in, 5, n->out, 1) < 0 ||
        graph_set_attr_f(r->g, &r->g->nodes[r->g->n_nodes - 1], "epsilon", node_attr_f(n, "epsilon", 1e-5f)))
        return no_memory(r);
    return YK_OK;
}

/* Where the file does not say whether Dropout trains, it does. */
static yk_err copy_dropout(struct grad *r, const struct node *n)
{
    int32_t in[3] = {n->in[0], n->n_in > 1 ? n->in[1] : YK_ABSENT, n->n_in > 2 ? n->in[2] : YK_ABSENT};
    int32_t out[2] = {n->out[0], n->n_out > 1 ? n->out[1] : YK_ABSENT};
    if (in[2] == YK_ABSENT)
        in[2] = grad_scalar(r, DT_BOOL, 1);
    if (out[1] == YK_ABSENT && grad_needs(r, n, 0))
        out[1] = extra_value(r, n->name, "mask");
    if (r->err || graph_add_node(r->g, n->name, n->op, in, 3, out, out[1] == YK_ABSENT ? 1 : 2) < 0)
        return no_memory(r);
    struct node *made = &r->g->nodes[r->g->n_nodes - 1];
    made->attr = n->attr;
    made->n_attr = n->n_attr;
    return YK_OK;
}

yk_err grad_copy(struct grad *r)
{
    yk_err err = copy_values(r);
    for (int32_t i = 0; i < r->fwd->n_nodes && !err; i++) {
        const struct node *n = &r->fwd->nodes[i];
        r->node = i;
        if (is_op(n, "BatchNormalization") && !r->o->bn_frozen) {
            err = copy_batchnorm(r, n);
        } else if (is_op(n, "BatchNormalization") && node_attr_i(n, "training_mode", 0)) {
            err = copy_frozen_batchnorm(r, n);
        } else if (is_op(n, "Dropout")) {
            err = copy_dropout(r, n);
        } else {
            if (graph_add_node(r->g, n->name, n->op, n->in, n->n_in, n->out, n->n_out) < 0)
                return no_memory(r);
            r->g->nodes[i].attr = n->attr;
            r->g->nodes[i].n_attr = n->n_attr;
        }
    }
    return err ? err : r->err;
}
