/* Opening a trainer: which memory there is, and for each part of a run where its values come from and go to. */
#include "kernels/train_priv.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static yk_err no_memory(struct yk_diag *why)
{
    return yk_fail(why, YK_NOMEM, "no memory to open a trainer");
}

static float *floats(struct trainer *t, int64_t count)
{
    int64_t bytes;
    if (count < 0 || !yk_mul_i64(count, (int64_t)sizeof(float), &bytes))
        return NULL;
    float *p = yk_try_aligned((size_t)YK_MAX(bytes, 1));
    if (p)
        t->held += bytes;
    return p;
}

static float *zeros(struct trainer *t, int64_t count)
{
    float *p = floats(t, count);
    if (p)
        memset(p, 0, (size_t)count * sizeof(float));
    return p;
}

/* ---- weights that change ---- */

/* Own memory for weight v, with its first contents. */
static yk_err own_weight(struct trainer *t, const struct trainer_config *c, int32_t v, struct yk_diag *why)
{
    const struct value *w = &t->graph->values[v];
    const void *data = w->data;
    if (t->variable[v])
        return YK_OK;
    if (w->kind != VALUE_WEIGHT || w->shape.dtype != DT_F32)
        return yk_fail(why, YK_UNSUPPORTED, "'%s' is %s: float32 weights are trained", w->name,
            dtype_name(w->kind == VALUE_WEIGHT ? w->shape.dtype : w->dtype));
    if (!data && c->weight) {
        yk_err err = c->weight(c->weight_arg, v, &data, why);
        if (err)
            return yk_wrap(why, err, "weight '%s'", w->name);
    }
    int64_t count = shape_count(&w->shape);
    if (!data && count > 0)
        return yk_fail(why, YK_NOTFOUND, "weight '%s' has no data here", w->name);
    float *own = floats(t, count);
    if (!own)
        return yk_fail(why, YK_NOMEM, "no memory for weight '%s' of %lld elements", w->name, (long long)count);
    if (count > 0)
        memcpy(own, data, (size_t)count * sizeof(float));
    graph_idle(t->graph, data, w->bytes); /* the file's is not read again */
    t->variable[v] = own;
    return YK_OK;
}

struct marks {
    uint8_t *used; /* by value id */
};

static void mark_use(void *arg, int32_t value)
{
    ((struct marks *)arg)->used[value] = 1;
}

/* By value: read by a node of the stage; made: 1 if one of them makes it. */
static void mark_stage(const struct trainer *t, uint8_t *used, uint8_t *made)
{
    struct marks m = {used};
    for (int32_t i = 0; i < t->graph->n_nodes; i++) {
        const struct node *n = &t->graph->nodes[i];
        if (!t->in_stage[i])
            continue;
        node_each_use(n, mark_use, &m);
        for (int32_t k = 0; k < n->n_out; k++)
            if (n->out[k] >= 0)
                made[n->out[k]] = 1;
    }
}

static int32_t add_sum(struct trainer *t, int32_t value, int64_t count)
{
    int32_t i = 0;
    float *data = zeros(t, count);
    if (!data)
        return -1;
    while (i < t->n_sums && (t->sums[i].value != value || t->sums[i].more >= 0))
        i++;
    t->sums[t->n_sums] = (struct train_sum){value, -1, data, count};
    if (i < t->n_sums)
        t->sums[i].more = t->n_sums;
    return t->n_sums++;
}

static yk_err open_param(struct trainer *t, const struct trainer_config *c, int32_t i, const uint8_t *used,
    const uint8_t *made, struct yk_diag *why)
{
    const struct grad_param *p = &t->info->params[i];
    struct train_param *own = &t->params[i];
    if (!p->trainable)
        return YK_OK;
    own->owned = c->owned ? c->owned[i] != 0 : used[p->value];
    if (!own->owned && !used[p->value])
        return YK_OK;
    yk_err err = own_weight(t, c, p->value, why);
    if (err)
        return err;
    own->data = t->variable[p->value];
    own->count = shape_count(&t->graph->values[p->value].shape);
    if (!(own->sums = yk_try_alloc((size_t)p->n_uses + 1, sizeof *own->sums)))
        return no_memory(why);
    for (int32_t u = 0; u < p->n_uses; u++) {
        int32_t value = t->graph->outputs[p->uses[u]];
        own->sums[u] = -1;
        if ((own->owned || made[value]) && (own->sums[u] = add_sum(t, value, own->count)) < 0)
            return no_memory(why);
    }
    for (int k = 0; own->owned && k < optim_slots(&t->optim); k++)
        if (!(own->slots[k] = zeros(t, own->count)))
            return no_memory(why);
    return YK_OK;
}

static yk_err open_weights(struct trainer *t, const struct trainer_config *c, struct yk_diag *why)
{
    const struct grad_info *info = t->info;
    size_t n_values = (size_t)t->graph->n_values + 1;
    uint8_t *used = yk_try_alloc(n_values, 1), *made = yk_try_alloc(n_values, 1);
    int64_t n_uses = 0;
    yk_err err = YK_OK;
    for (int32_t i = 0; i < info->n_params; i++)
        n_uses += info->params[i].n_uses;
    t->params = yk_try_alloc((size_t)info->n_params + 1, sizeof *t->params);
    t->states = yk_try_alloc((size_t)info->n_states + 1, sizeof *t->states);
    t->sums = yk_try_alloc((size_t)n_uses + 1, sizeof *t->sums);
    t->variable = yk_try_alloc(n_values, sizeof *t->variable);
    t->changed = yk_try_alloc(n_values, 1);
    if (!used || !made || !t->params || !t->states || !t->sums || !t->variable || !t->changed)
        err = no_memory(why);
    if (!err)
        mark_stage(t, used, made);
    for (int32_t i = 0; !err && i < info->n_params; i++)
        err = open_param(t, c, i, used, made, why);
    for (int32_t i = 0; !err && i < info->n_states; i++) {
        const struct grad_state *s = &info->states[i];
        bool here = used[s->value], moved = made[t->graph->outputs[s->output]];
        if (here != moved)
            err = yk_fail(why, YK_UNSUPPORTED,
                "running statistics '%s' are read in one stage and set in another; keep both in one",
                t->graph->values[s->value].name);
        else if (here && !(err = own_weight(t, c, s->value, why)))
            t->states[i] = t->variable[s->value];
    }
    free(used);
    free(made);
    return err;
}

static yk_err open_tiles(struct trainer *t, struct yk_diag *why)
{
    int64_t n = 0;
    for (int32_t i = 0; i < t->info->n_params; i++)
        if (t->params[i].owned)
            n += (t->params[i].count + OPTIM_BLOCK - 1) / OPTIM_BLOCK;
    t->tiles = yk_try_alloc((size_t)n + 1, sizeof *t->tiles);
    t->tile_squares = yk_try_alloc((size_t)n + 1, sizeof *t->tile_squares);
    if (!t->tiles || !t->tile_squares)
        return no_memory(why);
    for (int32_t i = 0; i < t->info->n_params; i++)
        for (int64_t at = 0; t->params[i].owned && at < t->params[i].count; at += OPTIM_BLOCK)
            t->tiles[t->n_tiles++] = (struct train_tile){i, at, YK_MIN(OPTIM_BLOCK, t->params[i].count - at)};
    return YK_OK;
}

/* ---- names of what is saved ---- */

static void list_tensor(struct trainer *t, const char *prefix, enum trainer_kind kind, int32_t index, bool owned,
    int32_t value, float *data)
{
    const struct value *v = &t->graph->values[value];
    t->tensors[t->n_tensors++] =
        (struct trainer_tensor){yk_xasprintf("%s/%s", prefix, v->name), kind, index, owned, v->shape, data};
}

static yk_err list_tensors(struct trainer *t, struct yk_diag *why)
{
    const struct grad_info *info = t->info;
    size_t most = (size_t)info->n_params * (1 + OPTIM_SLOTS_MAX) + (size_t)info->n_states + 1;
    if (!(t->tensors = yk_try_alloc(most, sizeof *t->tensors)))
        return no_memory(why);
    for (int32_t i = 0; i < info->n_params; i++) {
        const struct train_param *p = &t->params[i];
        if (p->data)
            list_tensor(t, "param", TRAINER_PARAM, i, p->owned, info->params[i].value, p->data);
        for (int k = 0; k < OPTIM_SLOTS_MAX; k++)
            if (p->slots[k])
                list_tensor(
                    t, optim_slot_name(&t->optim, k), TRAINER_SLOT, i, true, info->params[i].value, p->slots[k]);
    }
    for (int32_t i = 0; i < info->n_states; i++)
        if (t->states[i])
            list_tensor(t, "state", TRAINER_STATE, i, true, info->states[i].value, t->states[i]);
    return YK_OK;
}

/* ---- parts ---- */

static int32_t find_id(const int32_t *ids, int32_t n, int32_t id)
{
    for (int32_t i = 0; i < n; i++)
        if (ids[i] == id)
            return i;
    return -1;
}

static bool is_gradient(const struct trainer *t, int32_t value, int32_t *sum)
{
    for (int32_t i = 0; i < t->n_sums; i++)
        if (t->sums[i].value == value) {
            *sum = i;
            return true;
        }
    return false;
}

static bool is_next_state(const struct trainer *t, int32_t value, int32_t *state)
{
    for (int32_t i = 0; i < t->info->n_states; i++)
        if (t->states[i] && t->graph->outputs[t->info->states[i].output] == value) {
            *state = i;
            return true;
        }
    return false;
}

/* Somebody outside of the trainer wants it: a node elsewhere, or whoever wants the loss and the model's outputs. */
static bool leaves(const struct trainer *t, int32_t value)
{
    const struct grad_info *info = t->info;
    if (t->graph->outputs[info->loss_output] == value ||
        find_id(t->graph->outputs + info->model_output, info->n_model_outputs, value) >= 0)
        return true;
    for (int32_t i = 0; i < t->graph->n_nodes; i++) {
        const struct node *n = &t->graph->nodes[i];
        for (int32_t k = 0; !t->in_stage[i] && k < n->n_in; k++)
            if (n->in[k] == value)
                return true;
    }
    return false;
}

static yk_err alloc_part(struct trainer *t, struct train_part *p, struct yk_diag *why)
{
    size_t in = (size_t)p->n_in + 1, out = (size_t)p->n_out + 1;
    p->in = yk_try_alloc(in, sizeof *p->in);
    p->out = yk_try_alloc(out, sizeof *p->out);
    p->border_in = yk_try_alloc(in, sizeof *p->border_in);
    p->border_out = yk_try_alloc(out, sizeof *p->border_out);
    p->args = yk_try_alloc(in, sizeof *p->args);
    p->outs = yk_try_alloc(out, sizeof *p->outs);
    p->memory = yk_try_alloc(out * (size_t)t->slots, sizeof *p->memory);
    return p->in && p->out && p->border_in && p->border_out && p->args && p->outs && p->memory ? YK_OK : no_memory(why);
}

/* Memory of a value that a part makes, for each slot. */
static yk_err part_memory(struct trainer *t, struct train_part *p, int32_t i, struct yk_diag *why)
{
    int64_t bytes = shape_bytes(&exec_max_shapes(p->exec)->of[p->out[i].value]);
    for (int s = 0; s < t->slots; s++) {
        void **at = &p->memory[(int64_t)s * p->n_out + i];
        if (!(*at = yk_try_aligned((size_t)YK_MAX(bytes, 1))))
            return yk_fail(why, YK_NOMEM, "no memory for '%s' of %lld bytes in %d microbatches",
                t->graph->values[p->out[i].value].name, (long long)bytes, t->slots);
        t->held += bytes;
    }
    return YK_OK;
}

static yk_err route_part(struct trainer *t, enum trainer_part which, struct yk_diag *why)
{
    struct train_part *p = &t->part[which], *forward = &t->part[TRAINER_FORWARD];
    const struct memplan *m = exec_plan(p->exec);
    p->n_in = m->n_in;
    p->n_out = m->n_out;
    yk_err err = alloc_part(t, p, why);
    for (int32_t i = 0; !err && i < m->n_in; i++) {
        struct train_end *e = &p->in[i];
        int32_t at = -1;
        *e = (struct train_end){m->in[i], -1, -1, TRAIN_OUTSIDE};
        if (which == TRAINER_BACKWARD && forward->exec) {
            const struct memplan *f = exec_plan(forward->exec);
            e->kind = TRAIN_SAVED;
            if ((at = find_id(f->out, f->n_out, e->value)) < 0) {
                at = find_id(f->in, f->n_in, e->value);
                e->kind = TRAIN_TAKEN;
            }
            e->index = at;
        }
        if (at < 0) {
            e->kind = TRAIN_OUTSIDE;
            e->border = p->border.n_in;
            p->border_in[p->border.n_in++] = e->value;
        }
    }
    for (int32_t i = 0; !err && i < m->n_out; i++) {
        struct train_end *e = &p->out[i];
        *e = (struct train_end){m->out[i], -1, -1, TRAIN_KEPT};
        if (leaves(t, e->value)) {
            e->border = p->border.n_out;
            p->border_out[p->border.n_out++] = e->value;
        }
        if (is_gradient(t, e->value, &e->index))
            e->kind = TRAIN_GRADIENT;
        else if (is_next_state(t, e->value, &e->index))
            e->kind = TRAIN_NEXT_STATE;
        if (e->kind != TRAIN_GRADIENT || e->border >= 0)
            err = part_memory(t, p, i, why);
    }
    p->border.in = p->border_in;
    p->border.out = p->border_out;
    return err;
}

static yk_err open_part(struct trainer *t, const struct trainer_config *c, enum trainer_part which, struct yk_diag *why)
{
    int32_t n = t->graph->n_nodes, count = 0, border = t->info->first_backward;
    uint8_t *nodes = yk_try_alloc((size_t)n + 1, 1), *taken = yk_try_alloc((size_t)t->graph->n_values + 1, 1);
    if (!nodes || !taken) {
        free(nodes);
        free(taken);
        return no_memory(why);
    }
    t->part[which].trainer = t;
    for (int32_t i = 0; i < t->n_sums; i++)
        taken[t->sums[i].value] = !leaves(t, t->sums[i].value);
    for (int32_t i = 0; i < n; i++) {
        bool mine = which == TRAINER_WHOLE || (which == TRAINER_FORWARD) == (i < border);
        nodes[i] = t->in_stage[i] && mine;
        count += nodes[i];
    }
    struct exec_config config = {.graph = t->graph,
        .in_stage = nodes,
        .forms = c->forms,
        .max_sizes = c->max_sizes,
        .input_shapes = c->input_shapes,
        .backends = c->backends,
        .weight = c->weight,
        .weight_arg = c->weight_arg,
        .variable = t->variable,
        .taken = t->single ? NULL : taken,
        .take = train_take,
        .take_arg = &t->part[which]};
    yk_err err = count ? exec_open(&config, &t->part[which].exec, why) : YK_OK;
    free(nodes);
    free(taken);
    if (!err && count)
        err = route_part(t, which, why);
    return err;
}

yk_err trainer_open(const struct trainer_config *c, struct trainer **out, struct yk_diag *why)
{
    yk_err err = optim_check(&c->optim, why);
    if (!err && (c->in_flight < 0 || c->in_flight > 4096))
        err = yk_fail(why, YK_INVAL, "%d microbatches in flight: 0 to 4096", c->in_flight);
    if (err)
        return err;
    struct trainer *t = yk_xalloc(sizeof *t);
    t->graph = c->graph;
    t->info = c->info;
    t->pool = c->pool;
    t->optim = c->optim;
    t->clip_norm = c->clip_norm;
    t->slots = YK_MAX(c->in_flight, 1);
    t->single = c->single;
    t->fresh = true;
    t->in_stage = yk_try_alloc((size_t)c->graph->n_nodes + 1, 1);
    if (!t->in_stage)
        err = no_memory(why);
    for (int32_t i = 0; !err && i < c->graph->n_nodes; i++)
        t->in_stage[i] = c->in_stage ? c->in_stage[i] != 0 : 1;
    if (!err && !(err = open_weights(t, c, why)) && !(err = open_tiles(t, why)) && !(err = list_tensors(t, why)) &&
        c->in_flight == 0) {
        err = open_part(t, c, TRAINER_WHOLE, why);
    } else if (!err && !(err = open_part(t, c, TRAINER_FORWARD, why))) {
        err = open_part(t, c, TRAINER_BACKWARD, why);
    }
    if (!err && c->in_flight > 0 && t->part[TRAINER_FORWARD].exec &&
        !(t->taken = yk_try_alloc((size_t)t->slots * ((size_t)t->part[TRAINER_FORWARD].n_in + 1), sizeof *t->taken)))
        err = no_memory(why);
    if (err)
        trainer_close(t);
    else
        *out = t;
    return err;
}

static void close_part(struct trainer *t, struct train_part *p)
{
    for (int64_t i = 0; p->memory && i < (int64_t)t->slots * p->n_out; i++)
        free(p->memory[i]);
    free(p->memory);
    free(p->in);
    free(p->out);
    free(p->border_in);
    free(p->border_out);
    free(p->args);
    free(p->outs);
    exec_close(p->exec);
}

void trainer_close(struct trainer *t)
{
    if (!t)
        return;
    for (int i = 0; i < 3; i++)
        close_part(t, &t->part[i]);
    for (int32_t i = 0; t->params && i < t->info->n_params; i++) {
        free(t->params[i].sums);
        for (int k = 0; k < OPTIM_SLOTS_MAX; k++)
            free(t->params[i].slots[k]);
    }
    for (int32_t i = 0; i < t->n_sums; i++)
        free(t->sums[i].data);
    for (int32_t v = 0; t->variable && v < t->graph->n_values; v++)
        free(t->variable[v]);
    for (int32_t i = 0; i < t->n_tensors; i++)
        free((char *)(uintptr_t)t->tensors[i].name);
    free(t->tensors);
    free(t->tiles);
    free(t->tile_squares);
    free(t->variable);
    free(t->changed);
    free(t->sums);
    free(t->states);
    free(t->params);
    free(t->taken);
    free(t->in_stage);
    free(t);
}
