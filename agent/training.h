/* Stages of a training on an agent. A forward stage and the backward stage of the same nodes are two halves of one
 * trainer (a unit); a stage that has both is a half alone. Microbatches of a step go through in their order; behind the
 * last one the trainer moves its parameters, and only then the next step's begin. Parts of checkpoint sets are sent
 * from the parameters themselves: while one is on its way the next step computes, and its end waits. */
#ifndef YK_TRAINING_STAGES_H
#define YK_TRAINING_STAGES_H

#include "agent/pipeline.h"
#include "agent/spans.h"
#include "kernels/train.h"

struct pipeline_training {
    struct train_config config;
    struct grad_info info;   /* of p->graph; what trainers read of it */
    int32_t loss, scores;    /* graph outputs */
    int32_t target, divisor; /* graph inputs */
    int64_t save_every;
    int64_t step;      /* the one that it begins with */
    struct load_kept { /* what it goes on from */
        int32_t value, slot;
        struct cache_entry *entry;
    } * kept;
    size_t n_kept;
    struct train_unit *units;
    int n_units;
    bool sending, keeping;        /* a part of a set; its tensors into the cache, before that */
    int64_t keep_step, kept_step; /* behind it a set is wanted whose tensors stay here; they do */
};

/* Io thread, with the graph: checks what load says of it. */
yk_err training_take(struct pipeline *p, struct yk_diag *why);
/* Which of load's tensors this agent needs: fills t->kept, without entries, and their places in load. */
bool training_needs(const struct pipeline *p, const struct wire_kept *k);
/* Runner: trainers of all stages here, and what they go on from. */
yk_err training_open(struct pipeline *p, struct yk_diag *why);
void training_close(struct pipeline *p);    /* runner */
void training_free_all(struct pipeline *p); /* what training_take made; nothing runs */

/* What a stage takes and gives. */
const struct trainer_border *training_border(const struct stage *s);
enum span_kind training_kind(const struct stage *s); /* of what it runs */
int64_t training_bytes(const struct pipeline *p);    /* of all trainers */

/* Whether the stage may run this microbatch now: it is the next of the step (a small one overtakes a large one on the
 * way), and there is a slot for it. *slot: which. */
bool training_ready(const struct stage *s, int64_t microbatch, const struct micro *m, int *slot);
/* Runner: one run. out: as in the stage's out slot; the trainer's own memory, or copied where the stage has memory. */
yk_err training_run(struct stage *s, int slot, const struct micro *m, const int64_t *sizes, const struct tensor *in,
    struct tensor *out, struct yk_diag *why);
/* What a run found that is no number, if anything: to yoked, before its outputs go off. */
void training_tell(const struct stage *s);
void training_begun(struct stage *s, int slot, int64_t microbatch);
void training_ran(struct stage *s, int slot, const struct micro *m); /* it went well */
void training_cancel(struct stage *s);
void training_norm(struct pipeline *p, const struct wire_norm *w);
/* The edges of sums: what each unit sends and takes at the end of a step. Errors: YK_INVAL where they do not bring all
 * gradients of a weight to a unit that uses it. */
yk_err training_shared_open(struct pipeline *p, struct yk_diag *why);
void training_wake(struct half *h); /* something that the end of its step may wait for has come or gone */
void training_keep(struct pipeline *p, const struct wire_keep *w);
void training_retry(struct pipeline *p); /* a connection to yoked is back */

#endif
