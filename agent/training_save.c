/* Parts of checkpoint sets. A unit that has come behind a step of which a set is wanted is held: it runs microbatches
 * of the next step, but does not move its parameters. When all units here are held behind the same step, their tensors
 * go to yoked from the parameters themselves; before that into the weight cache too, where the job is about to leave
 * its plan and may come back to this agent. Then all go on. A part that was lost with its connection is sent again when
 * that is back. */
#include "agent/training_priv.h"

#include "agent/blob.h"

#include <stdlib.h>
#include <string.h>

/* ---- into the weight cache ---- */

/* One tensor after the other, so that no more than one is in memory twice. */
struct keeping {
    struct pipeline *p;
    int unit;
    int32_t tensor;
    const float *states; /* of the unit, from the next one on */
};

static void keep_next(struct keeping *k);

static void on_kept(void *arg, yk_err err, const char *why, struct cache_entry *e)
{
    struct keeping *k = arg;
    if (err)
        log_debug("a tensor of the set does not stay in the cache: %s", why);
    else
        cache_release(k->p->agent->cache, e);
    keep_next(k);
}

/* The next tensor that has bytes; NULL when there is none. */
static const void *find_next(struct keeping *k, int64_t *bytes)
{
    struct pipeline_training *t = k->p->training;
    for (; k->unit < t->n_units; k->unit++, k->tensor = 0, k->states = NULL) {
        int32_t n;
        const struct trainer_tensor *all = trainer_tensors(t->units[k->unit].trainer, &n);
        if (!k->states)
            k->states = t->units[k->unit].states;
        while (k->tensor < n) {
            const struct trainer_tensor *x = &all[k->tensor++];
            const void *data = x->kind == TRAINER_STATE ? k->states : x->data;
            *bytes = shape_bytes(&x->shape);
            if (x->kind == TRAINER_STATE)
                k->states += shape_count(&x->shape);
            if (*bytes > 0)
                return data;
        }
    }
    return NULL;
}

static void keep_next(struct keeping *k)
{
    struct pipeline *p = k->p;
    int64_t bytes = 0;
    const void *data = p->state == PIPELINE_READY ? find_next(k, &bytes) : NULL;
    void *copy = data ? yk_try_aligned((size_t)bytes + 1) : NULL;
    if (copy) {
        memcpy(copy, data, (size_t)bytes);
        cache_put(p->agent->cache, NULL, copy, (size_t)bytes, on_kept, k);
        return;
    }
    free(k);
    p->training->keeping = false;
    p->training->kept_step = p->training->keep_step;
    if (p->state == PIPELINE_READY)
        training_save(p);
    pipeline_release(p);
}

static void keep_all(struct pipeline *p)
{
    struct keeping *k = yk_xalloc(sizeof *k);
    *k = (struct keeping){.p = p};
    p->training->keeping = true;
    p->busy++;
    keep_next(k);
}

/* ---- sending ---- */

struct sending_part {
    struct pipeline *p;
    struct wire_kept *kept;
    struct net_iov *iov;
};

static void on_part(void *arg, yk_err err, size_t bytes)
{
    (void)bytes;
    struct sending_part *m = arg;
    struct pipeline *p = m->p;
    free(m->kept);
    free(m->iov);
    free(m);
    p->training->sending = false;
    if (!err && p->state == PIPELINE_READY)
        for (int i = 0; i < p->training->n_units; i++) {
            struct train_unit *u = &p->training->units[i];
            u->held = false;
            training_wake(&u->half[0]);
        }
    pipeline_release(p); /* after an error it is sent again when the connection is back */
}

/* Sends what all units here hold behind their step, once all have come that far. */
void training_save(struct pipeline *p)
{
    struct pipeline_training *t = p->training;
    int32_t n_all = 0, n;
    int n_iov = 0;
    if (t->sending || t->keeping)
        return;
    for (int i = 0; i < t->n_units; i++) {
        if (!t->units[i].held || t->units[i].step != t->units[0].step)
            return;
        trainer_tensors(t->units[i].trainer, &n);
        n_all += n;
    }
    if (t->keep_step > 0 && t->units[0].step == t->keep_step && t->kept_step != t->keep_step) {
        keep_all(p);
        return;
    }
    static const uint8_t padding[MEMPLAN_ALIGN];
    struct sending_part *m = yk_xalloc(sizeof *m);
    m->p = p;
    m->kept = yk_xalloc(((size_t)n_all + 1) * sizeof *m->kept);
    m->iov = yk_xalloc((2 * (size_t)n_all + 1) * sizeof *m->iov);
    struct wire_part w = {
        .generation = p->generation, .job = p->load->job, .step = t->units[0].step, .kept = {m->kept, 0}};
    for (int i = 0; i < t->n_units; i++) {
        const struct train_unit *u = &t->units[i];
        const struct trainer_tensor *all = trainer_tensors(u->trainer, &n);
        const float *states = u->states;
        for (int32_t j = 0, slot = 0; j < n; j++) {
            const struct trainer_tensor *x = &all[j];
            int64_t bytes = shape_bytes(&x->shape), pad = memplan_align(bytes) - bytes;
            slot = x->kind == TRAINER_SLOT ? slot + 1 : -1;
            if (x->kind != TRAINER_STATE && u->shared.left && u->shared.left[x->index])
                continue;
            m->kept[w.kept.n++] = (struct wire_kept){
                .value = training_tensor_value(&t->info, x), .slot = slot, .offset = w.bytes, .bytes = bytes};
            if (bytes > 0)
                m->iov[n_iov++] = (struct net_iov){x->kind == TRAINER_STATE ? states : x->data, (size_t)bytes};
            if (pad > 0)
                m->iov[n_iov++] = (struct net_iov){padding, (size_t)pad};
            if (x->kind == TRAINER_STATE)
                states += shape_count(&x->shape);
            w.bytes += bytes + pad;
        }
    }
    p->busy++;
    t->sending = true;
    if (blob_part(p->agent, &w, m->iov, n_iov, on_part, m) == YK_OK)
        return;
    t->sending = false;
    free(m->kept);
    free(m->iov);
    free(m);
    p->busy--; /* not the last: the caller holds the pipeline, or it is among the agent's */
}

void training_retry(struct pipeline *p)
{
    if (p->training && p->state == PIPELINE_READY && p->training->n_units)
        training_save(p);
}

/* ---- when ---- */

void training_maybe_hold(struct train_unit *u)
{
    struct pipeline *p = u->p;
    const struct pipeline_training *t = p->training;
    int64_t epoch_steps = t->config.val > 0 ? u->steps / t->config.epochs : 0; /* what it has made is judged */
    bool judged = epoch_steps > 0 && u->step % epoch_steps == 0;
    if (p->state != PIPELINE_READY ||
        (u->step % t->save_every != 0 && u->step != u->steps && u->step != t->keep_step && !judged))
        return;
    u->held = true;
    training_save(p);
}

void training_keep(struct pipeline *p, const struct wire_keep *w)
{
    struct pipeline_training *t = p->training;
    if (!t || p->state != PIPELINE_READY)
        return;
    if (w->every > 0)
        t->save_every = w->every;
    if (w->step <= t->step) /* nothing has moved since this began */
        return;
    t->keep_step = w->step;
    bool there = false;
    for (int i = 0; i < t->n_units; i++) {
        struct train_unit *u = &t->units[i];
        if (u->step == w->step && u->phase == UNIT_RUNS)
            there = u->held = true;
    }
    if (there)
        training_save(p);
}
