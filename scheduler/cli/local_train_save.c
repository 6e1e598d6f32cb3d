/* Checkpoints of a local training, and going on from one. */
#include "agent/checkpoint.h"
#include "common/hash.h"
#include "common/onnx.h"
#include "scheduler/cli/local_train.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define PREFIX "checkpoint"
#define KEPT 2

/* What decides on numbers: another choice is another training. Steps after the ones that are done may be added, unless
 * the schedule looks at the last one. */
static yk_err hash_config(struct local_train *t, struct yk_diag *why)
{
    const struct cli_opts *o = &t->cli->o;
    const struct sampler *s = &t->batches.sampler;
    struct yk_buf text = {0}, skeleton = {0};
    struct hash h;
    char sample[128];
    yk_err err = onnx_export_skeleton(t->graph, &skeleton, why);
    yk_buf_free(&skeleton);
    if (err)
        return err;
    shape_text(data_sample(t->set), sample, sizeof sample);
    yk_buf_printf(&text, "yoke train 1\noptim %d %.17g %d %.17g %.17g %.17g %.17g\n", (int)t->optim.kind,
        t->optim.momentum, (int)t->optim.nesterov, t->optim.weight_decay, t->optim.beta1, t->optim.beta2, t->optim.eps);
    yk_buf_printf(&text, "rate %d %.17g %" PRId64 " %" PRId64 " %.17g %.17g %" PRId64 "\n", (int)t->schedule.curve,
        t->schedule.lr, t->schedule.warmup, t->schedule.every, t->schedule.gamma, t->schedule.floor,
        t->schedule.curve == OPTIM_COSINE ? t->schedule.total : 0);
    yk_buf_printf(&text, "batch %" PRId64 " %" PRId64 " clip %.17g seed %" PRIu64 "\n", s->batch, t->microbatch,
        o->clip_norm, t->seed);
    yk_buf_printf(&text, "data %" PRId64 " held %" PRId64 " %s mean %s std %s augment %s\n", s->samples, s->held,
        sample, o->mean ? o->mean : "", o->std ? o->std : "", o->augment ? o->augment : "");
    for (int32_t i = 0; t->env.forms && i < t->graph->n_nodes; i++)
        yk_buf_printf(&text, "%s\n", t->env.forms[i]);
    if (text.failed)
        err = yk_fail(why, YK_NOMEM, "no memory");
    hash_init(&h);
    hash_update(&h, t->graph->hash, sizeof t->graph->hash);
    hash_update(&h, text.data, text.len);
    hash_final(&h, t->config);
    yk_buf_free(&text);
    return err;
}

static yk_err go_on(struct local_train *t, const struct checkpoint_file *f, struct yk_diag *why)
{
    int32_t n;
    const struct trainer_tensor *tensors = trainer_tensors(t->trainer, &n);
    struct shape losses = {DT_F32, 1, {f->c.step}}, scores = {DT_F32, 1, {f->c.step / t->epoch_steps}};
    if (f->c.step > t->total_steps)
        return yk_fail(why, YK_STATE, "the checkpoint has done %" PRId64 " steps; --epochs=%" PRId64 " are %" PRId64,
            f->c.step, t->epochs, t->total_steps);
    yk_err err = YK_OK;
    for (int32_t i = 0; !err && i < n; i++)
        err = checkpoint_take(&f->c, tensors[i].name, &tensors[i].shape, tensors[i].data, why);
    if (!err)
        err = checkpoint_take(&f->c, "losses", &losses, t->losses, why);
    if (!err)
        err = checkpoint_take(&f->c, "scores", &scores, t->scores, why);
    if (!err)
        err = trainer_renew(t->trainer, why);
    if (err)
        return err;
    t->step = f->c.step;
    t->last_loss = t->step ? (double)t->losses[t->step - 1] : 0;
    fprintf(stderr, "yoke: going on behind step %" PRId64 " of %" PRId64 "%s\n", t->step, t->total_steps,
        f->skipped ? " (newer checkpoints are not whole)" : "");
    return YK_OK;
}

yk_err local_train_open_storage(struct local_train *t, struct yk_diag *why)
{
    const char *dir = t->cli->o.checkpoint;
    struct checkpoint_file f = {0};
    if (!dir)
        return YK_OK;
    yk_err err = storage_dir_open(dir, &t->storage, why);
    if (!err)
        err = hash_config(t, why);
    if (err)
        return yk_wrap(why, err, "--checkpoint=%s", dir);
    err = checkpoint_open(t->storage, PREFIX, t->config, -1, &f, why);
    if (err == YK_NOTFOUND)
        return YK_OK;
    if (!t->cli->o.resume) {
        checkpoint_close(&f);
        return yk_fail(why, YK_EXISTS, "%s holds a training: go on with --resume, or give another folder", dir);
    }
    if (!err)
        err = go_on(t, &f, why);
    checkpoint_close(&f);
    return err ? yk_wrap(why, err, "--checkpoint=%s", dir) : YK_OK;
}

yk_err local_train_save(struct local_train *t, struct yk_diag *why)
{
    int32_t n;
    const struct trainer_tensor *tensors = trainer_tensors(t->trainer, &n);
    struct checkpoint_tensor *list = yk_xalloc(((size_t)n + 2) * sizeof *list);
    for (int32_t i = 0; i < n; i++)
        list[i] = (struct checkpoint_tensor){tensors[i].name, tensors[i].shape, tensors[i].data};
    list[n] = (struct checkpoint_tensor){"losses", {DT_F32, 1, {t->step}}, t->losses};
    list[n + 1] = (struct checkpoint_tensor){"scores", {DT_F32, 1, {t->step / t->epoch_steps}}, t->scores};
    struct checkpoint c = {.step = t->step, .tensors = list, .n_tensors = n + 2};
    memcpy(c.config, t->config, sizeof c.config);
    yk_err err = checkpoint_save(t->storage, PREFIX, &c, KEPT, why);
    free(list);
    return err ? yk_wrap(why, err, "--checkpoint=%s (the last good one stays)", t->cli->o.checkpoint) : YK_OK;
}
