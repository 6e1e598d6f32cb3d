#include "agent/training_priv.h"

#include "agent/load.h"
#include "common/train_info.h"
#include "kernels/optim_config.h"

#include <stdlib.h>
#include <string.h>

static bool whole(const struct train_unit *u)
{
    return u->first == u->last;
}

/* ---- what load says ---- */

/* A tensor of the set that it goes on from. */
static yk_err check_kept(const struct graph *g, const struct wire_kept *k, struct yk_diag *why)
{
    if (k->value < 0 || k->value >= g->n_values || g->values[k->value].kind != VALUE_WEIGHT || k->slot < -1 ||
        k->slot >= OPTIM_SLOTS_MAX || k->bytes < 0 || !hash_is_hex(k->hash))
        return yk_fail(why, YK_INVAL, "the training goes on from a tensor (value %lld, slot %lld) that it has not",
            (long long)k->value, (long long)k->slot);
    return YK_OK;
}

yk_err training_take(struct pipeline *p, struct yk_diag *why)
{
    const struct wire_training *w = &p->load->training;
    struct json *doc = NULL;
    struct pipeline_training *t = p->training = yk_xalloc(sizeof *t);
    yk_err err = json_parse(w->config, strlen(w->config), &doc, why);
    if (!err)
        err = train_config_read(doc, &t->config, why);
    json_free(doc);
    if (!err)
        err = train_info_read(w, p->graph, &t->info, why);
    if (!err && (w->step < 0 || w->save_every < 1 || w->batch < 1 || w->batch > YK_MAX_COUNT))
        err = yk_fail(why, YK_INVAL, "step %lld, sets every %lld steps, batches of %lld samples", (long long)w->step,
            (long long)w->save_every, (long long)w->batch);
    for (size_t i = 0; i < w->kept.n && !err; i++)
        err = check_kept(p->graph, &w->kept.at[i], why);
    if (err)
        return yk_wrap(why, err, "training");
    t->loss = t->info.loss_output;
    t->scores = t->info.logits_output;
    t->target = t->info.target_input;
    t->divisor = t->info.divisor_input;
    t->save_every = w->save_every;
    t->step = w->step;
    return YK_OK;
}

struct search {
    int32_t value;
    bool found;
};

static void look(void *arg, int32_t v)
{
    struct search *s = arg;
    s->found = s->found || v == s->value;
}

bool training_needs(const struct pipeline *p, const struct wire_kept *k)
{
    struct search s = {(int32_t)k->value, false};
    for (int i = 0; i < p->n_stages; i++)
        for (int32_t n = 0; n < p->graph->n_nodes && !s.found; n++)
            if (p->stages[i].in_stage[n])
                node_each_use(&p->graph->nodes[n], look, &s);
    return s.found;
}

/* ---- opening ---- */

/* The tensor that a row of a set is about: a weight's slots stand behind it. NULL if it is not here. */
static const struct trainer_tensor *find_tensor(const struct train_unit *u, int32_t value, int32_t slot)
{
    int32_t n;
    const struct trainer_tensor *all = trainer_tensors(u->trainer, &n);
    for (int32_t i = 0; i < n; i++)
        if (all[i].kind != TRAINER_SLOT && training_tensor_value(&u->p->training->info, &all[i]) == value) {
            int32_t at = i + 1 + slot;
            bool there = slot < 0 || (at < n && all[at].kind == TRAINER_SLOT && all[at].index == all[i].index);
            return there ? &all[at] : NULL;
        }
    return NULL;
}

static yk_err restore(struct train_unit *u, struct yk_diag *why)
{
    const struct pipeline_training *t = u->p->training;
    for (size_t i = 0; i < t->n_kept; i++) {
        const struct load_kept *k = &t->kept[i];
        const struct trainer_tensor *x = find_tensor(u, k->value, k->slot);
        if (!x || !k->entry)
            continue;
        if ((int64_t)cache_len(k->entry) != shape_bytes(&x->shape))
            return yk_fail(why, YK_FORMAT, "%s of the checkpoint has %zu bytes, not %lld", x->name, cache_len(k->entry),
                (long long)shape_bytes(&x->shape));
        memcpy(x->data, cache_data(k->entry), cache_len(k->entry));
    }
    return t->n_kept ? trainer_renew(u->trainer, why) : YK_OK;
}

static yk_err open_unit(struct train_unit *u, struct yk_diag *why)
{
    struct pipeline *p = u->p;
    const struct pipeline_training *t = p->training;
    int32_t n = p->graph->n_nodes;
    uint8_t *nodes = yk_xalloc((size_t)n + 1);
    const char **forms = yk_xalloc(((size_t)n + 1) * sizeof *forms);
    bool given = false;
    for (int32_t i = 0; i < n; i++) {
        const struct stage *s = u->first->in_stage[i] ? u->first : u->last->in_stage[i] ? u->last : NULL;
        nodes[i] = s != NULL;
        forms[i] = s && s->forms ? s->forms[i] : NULL;
        given = given || forms[i];
    }
    struct trainer_config c = {.graph = p->graph,
        .info = &t->info,
        .in_stage = nodes,
        .forms = given ? forms : NULL,
        .max_sizes = p->sizes,
        .backends = &p->agent->backends,
        .pool = p->agent->pool,
        .optim = optim_config(&t->config),
        .in_flight = whole(u) ? 0 : (int)u->first->depth,
        .single = p->load->training.batch <= p->full,
        .weight = load_weight,
        .weight_arg = p};
    yk_err err = trainer_open(&c, &u->trainer, why);
    free(nodes);
    free(forms);
    if (!err)
        err = restore(u, why);
    if (err)
        return yk_wrap(why, err, "stage %lld", (long long)u->first->index);
    u->n_slots = (int)u->first->depth;
    u->slot = yk_xalloc((size_t)u->n_slots * sizeof *u->slot);
    for (int k = 0; k < u->n_slots; k++)
        u->slot[k] = -1;
    u->step = t->step;
    if (t->config.clip_norm > 0)
        u->squares = yk_xalloc(((size_t)t->info.n_params + 1) * sizeof *u->squares);
    int32_t n_tensors;
    const struct trainer_tensor *all = trainer_tensors(u->trainer, &n_tensors);
    for (int32_t i = 0; i < n_tensors; i++)
        if (all[i].kind == TRAINER_STATE)
            u->states_count += shape_count(&all[i].shape);
    u->states = yk_xalloc((size_t)u->states_count * sizeof(float) + 1);
    return YK_OK;
}

yk_err training_open(struct pipeline *p, struct yk_diag *why)
{
    struct pipeline_training *t = p->training;
    t->units = yk_xalloc(((size_t)p->n_stages + 1) * sizeof *t->units);
    yk_err err = YK_OK;
    for (int i = 0; i < p->n_stages && !err && !p->agent->stop; i++) {
        struct stage *s = &p->stages[i], *pair = s->w->pair < 0 ? NULL : pipeline_stage(p, s->w->pair);
        if (s->half)
            continue;
        if (!pair || pair->half || pair->w->pair != s->index)
            return yk_fail(why, YK_INVAL, "stage %lld has no other half here", (long long)s->index);
        struct train_unit *u = &t->units[t->n_units++];
        *u = (struct train_unit){.p = p, .first = s, .last = pair};
        for (int32_t n = 0; n < t->info.first_backward && !whole(u); n++)
            if (pair->in_stage[n]) { /* it is the forward half */
                u->first = pair;
                u->last = s;
            }
        u->half[0] = (struct half){u, whole(u) ? TRAINER_WHOLE : TRAINER_FORWARD, 0};
        u->half[1] = (struct half){u, TRAINER_BACKWARD, 0};
        u->last->half = &u->half[1];
        u->first->half = &u->half[0];
        err = open_unit(u, why);
    }
    return err;
}

void training_close(struct pipeline *p)
{
    struct pipeline_training *t = p->training;
    for (int i = 0; t && i < t->n_units; i++) {
        trainer_close(t->units[i].trainer);
        t->units[i].trainer = NULL;
    }
}

void training_free_all(struct pipeline *p)
{
    struct pipeline_training *t = p->training;
    if (!t)
        return;
    for (int i = 0; i < t->n_units; i++) {
        free(t->units[i].slot);
        free(t->units[i].squares);
        training_shared_close(&t->units[i]);
        free(t->units[i].states);
    }
    for (size_t i = 0; i < t->n_kept; i++)
        if (t->kept[i].entry)
            cache_release(p->agent->cache, t->kept[i].entry);
    free(t->kept);
    free(t->units);
    train_config_fini(&t->config);
    free(t);
    p->training = NULL;
}

const struct trainer_border *training_border(const struct stage *s)
{
    return trainer_border(training_unit_of(s)->trainer, s->half->part);
}

enum span_kind training_kind(const struct stage *s)
{
    const struct train_unit *u = training_unit_of(s);
    return whole(u) ? SPAN_BOTH : s == u->first ? SPAN_FORWARD : SPAN_BACKWARD;
}

int64_t training_bytes(const struct pipeline *p)
{
    int64_t sum = 0;
    for (int i = 0; i < p->training->n_units; i++)
        sum += trainer_held_bytes(p->training->units[i].trainer) +
               p->training->units[i].states_count * (int64_t)sizeof(float);
    return sum;
}

/* ---- runs ---- */

bool training_ready(const struct stage *s, int64_t microbatch, const struct micro *m, int *slot)
{
    const struct train_unit *u = training_unit_of(s);
    if (m->step != u->step || u->phase != UNIT_RUNS || m->index != s->half->next)
        return false;
    for (int k = 0; k < u->n_slots; k++) {
        bool free_one = u->slot[k] < 0 && !u->first->outs[k].busy && !u->last->outs[k].busy;
        if (s == u->first ? free_one : u->slot[k] == microbatch) {
            *slot = k;
            return true;
        }
    }
    return false;
}

void training_begun(struct stage *s, int slot, int64_t microbatch)
{
    training_unit_of(s)->slot[slot] = microbatch;
    s->half->next++;
}

yk_err training_run(struct stage *s, int slot, const struct micro *m, const int64_t *sizes, const struct tensor *in,
    struct tensor *out, struct yk_diag *why)
{
    struct train_unit *u = training_unit_of(s);
    uint64_t seed = trainer_seed((uint64_t)s->p->training->config.seed, m->step, m->index);
    if (!whole(u)) {
        yk_err err = trainer_run(u->trainer, s->half->part, slot, sizes, in, out, seed, why);
        if (!err)
            training_blame(u, s->half->part, slot, m, sizes, in, out, seed);
        return err;
    }
    /* One slot in the trainer: what goes out is copied, so that the next microbatch need not wait for the wire. */
    struct tensor *own = yk_xalloc(((size_t)s->n_out + 1) * sizeof *own);
    yk_err err = trainer_run(u->trainer, TRAINER_WHOLE, 0, sizes, in, own, seed, why);
    for (int32_t i = 0; i < s->n_out && !err; i++) {
        int64_t bytes = shape_bytes(&own[i].shape);
        if (bytes > 0)
            memcpy(out[i].data, own[i].data, (size_t)bytes);
        out[i].shape = own[i].shape;
    }
    if (!err)
        training_blame(u, TRAINER_WHOLE, 0, m, sizes, in, out, seed);
    free(own);
    return err;
}

void training_cancel(struct stage *s)
{
    trainer_cancel(training_unit_of(s)->trainer);
}

void training_ran(struct stage *s, int slot, const struct micro *m)
{
    struct train_unit *u = training_unit_of(s);
    u->steps = m->steps;
    if (s != u->last)
        return;
    u->slot[slot] = -1;
    if (++u->done == m->of)
        training_end(u);
}
