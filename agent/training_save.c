/* Parts of checkpoint sets: what the units of an agent hold behind a step goes to yoked from the parameters themselves.
 */
#include "agent/training_priv.h"

#include "agent/blob.h"

#include <stdlib.h>

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
            if (u->due)
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
    if (t->sending)
        return;
    for (int i = 0; i < t->n_units; i++) {
        if (!t->units[i].held || t->units[i].step != t->units[0].step)
            return;
        trainer_tensors(t->units[i].trainer, &n);
        n_all += n;
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
            int64_t bytes = shape_bytes(&x->shape), pad = -bytes & (MEMPLAN_ALIGN - 1);
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
