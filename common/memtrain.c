#include "common/memtrain.h"

#include <stdlib.h>
#include <string.h>

enum { ROLE_USED = 1, ROLE_KEPT = 2, ROLE_CHANGES = 4, ROLE_GRADIENT = 8, ROLE_LEAVES = 16 };

struct count {
    const struct memtrain_config *c;
    uint8_t *role; /* by value */
    uint8_t mark;  /* what visit sets */
    int64_t inner;
    bool overflow;
};

static void visit(void *arg, int32_t value)
{
    struct count *k = arg;
    k->role[value] |= k->mark;
}

static void visit_inner(void *arg, const struct value *weight)
{
    struct count *k = arg;
    k->overflow |= !yk_add_i64(k->inner, YK_MAX(weight->bytes, 0), &k->inner);
}

/* `times` tensors of these bytes. */
static void add(struct count *k, int64_t *sum, int64_t bytes, int64_t times)
{
    int64_t all;
    k->overflow |= !yk_mul_i64(YK_MAX(bytes, 0), times, &all) || !yk_add_i64(*sum, all, sum);
}

static void find_roles(struct count *k)
{
    const struct memtrain_config *c = k->c;
    const struct graph *g = c->graph;
    const struct grad_info *info = c->info;
    for (int32_t i = 0; i < g->n_nodes; i++) {
        bool here = c->in_stage[i], keeps = !c->table || !c->table[i].drops_weights;
        k->mark = !here ? ROLE_LEAVES : keeps ? ROLE_USED | ROLE_KEPT : ROLE_USED;
        node_each_use(&g->nodes[i], visit, k);
        if (here)
            node_each_inner_weight(&g->nodes[i], visit_inner, k);
    }
    for (int32_t i = 0; i < info->n_params; i++)
        if (info->params[i].trainable && k->role[info->params[i].value] & ROLE_USED) {
            k->role[info->params[i].value] |= ROLE_CHANGES;
            for (int32_t u = 0; u < info->params[i].n_uses; u++)
                k->role[g->outputs[info->params[i].uses[u]]] |= ROLE_GRADIENT;
        }
    for (int32_t i = 0; i < info->n_states; i++)
        if (k->role[info->states[i].value] & ROLE_USED)
            k->role[info->states[i].value] |= ROLE_CHANGES;
    k->role[g->outputs[info->loss_output]] |= ROLE_LEAVES;
    for (int32_t i = 0; i < info->n_model_outputs; i++)
        k->role[g->outputs[info->model_output + i]] |= ROLE_LEAVES;
}

static void add_weights(struct count *k, struct memtrain_part *part)
{
    const struct memtrain_config *c = k->c;
    const struct graph *g = c->graph;
    for (int32_t v = 0; v < g->n_values; v++)
        if (g->values[v].kind == VALUE_WEIGHT && k->role[v] & ROLE_KEPT && !(k->role[v] & ROLE_CHANGES))
            add(k, &part->fixed, g->values[v].bytes, 1);
    for (int32_t i = 0; i < c->info->n_params; i++) {
        const struct grad_param *p = &c->info->params[i];
        if (k->role[p->value] & ROLE_CHANGES && p->trainable)
            add(k, &part->fixed, g->values[p->value].bytes, 1 + p->n_uses + c->slots);
    }
    for (int32_t i = 0; i < c->info->n_states; i++) /* and a copy for checkpoints */
        if (k->role[c->info->states[i].value] & ROLE_CHANGES)
            add(k, &part->fixed, g->values[c->info->states[i].value].bytes, 2);
    add(k, &part->fixed, k->inner, 1);
}

/* Gradients that nobody else wants: they are added to their sums as they are made. */
static uint8_t *find_taken(const struct count *k)
{
    uint8_t *taken = yk_try_alloc((size_t)k->c->graph->n_values + 1, 1);
    for (int32_t v = 0; taken && v < k->c->graph->n_values; v++)
        taken[v] = (k->role[v] & (ROLE_GRADIENT | ROLE_LEAVES)) == ROLE_GRADIENT;
    return taken;
}

static yk_err add_part(struct count *k, const uint8_t *nodes, struct memtrain_part *part, struct yk_diag *why)
{
    const struct memtrain_config *c = k->c;
    struct memplan m;
    uint8_t *taken = c->several ? find_taken(k) : NULL;
    if (c->several && !taken)
        return yk_fail(why, YK_NOMEM, "no memory to plan a training");
    yk_err err = memplan_make_taken(c->graph, c->shapes, nodes, c->table, taken, 1, &m, why);
    free(taken);
    if (err)
        return err;
    add(k, &part->fixed, m.arena_bytes, 1);
    add(k, &part->fixed, m.packed_bytes, 1);
    add(k, &part->fixed, m.heap_bytes, 1);
    for (int32_t i = 0; i < m.n_out; i++) {
        uint8_t role = k->role[m.out[i]];
        int64_t bytes = shape_bytes(&c->shapes->of[m.out[i]]);
        if (role & ROLE_LEAVES)
            add(k, &part->out, memplan_align(bytes), 1);
        if (!(role & ROLE_GRADIENT) || role & ROLE_LEAVES)
            add(k, c->whole ? &part->fixed : &part->each, bytes, 1);
    }
    memplan_fini(&m);
    return YK_OK;
}

yk_err memtrain_make(const struct memtrain_config *c, struct memtrain_part half[2], struct yk_diag *why)
{
    int32_t n = c->graph->n_nodes;
    uint8_t *nodes = yk_try_alloc((size_t)n + 1, 1);
    struct count k = {.c = c, .role = yk_try_alloc((size_t)c->graph->n_values + 1, 1)};
    yk_err err = nodes && k.role ? YK_OK : yk_fail(why, YK_NOMEM, "no memory to plan a training");
    half[0] = half[1] = (struct memtrain_part){0};
    if (!err) {
        find_roles(&k);
        add_weights(&k, &half[0]);
    }
    for (int part = 0; part < (c->whole ? 1 : 2) && !err; part++) {
        bool any = false;
        for (int32_t i = 0; i < n; i++) {
            nodes[i] = c->in_stage[i] && (c->whole || (i < c->info->first_backward) == (part == 0));
            any = any || nodes[i];
        }
        err = any ? add_part(&k, nodes, &half[part], why) : YK_OK;
    }
    if (!err && k.overflow)
        err = yk_fail(why, YK_LIMIT, "the stage takes more than can be counted");
    free(nodes);
    free(k.role);
    return err;
}
