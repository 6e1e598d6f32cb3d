/* The models of a training: the graph that is trained, the file that comes out, and what judges it. */
#include "common/onnx.h"
#include "common/passes.h"
#include "common/samples.h"
#include "kernels/fold.h"
#include "scheduler/cli/local_train.h"
#include "scheduler/cli/tune.h"
#include "scheduler/solve.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static yk_err import(const char *path, struct graph **out, struct yk_diag *why)
{
    struct yk_buf problems = {0};
    yk_err err = onnx_import(path, out, &problems, why);
    if (err && problems.len)
        fprintf(stderr, "%.*s", (int)problems.len, (const char *)problems.data);
    yk_buf_free(&problems);
    return err;
}

yk_err local_train_open_model(struct local_train *t, struct yk_diag *why)
{
    yk_err err = import(t->cli->args.at[0], &t->env.graph, why);
    if (!err)
        err = passes_train(t->env.graph, fold_eval, NULL, why);
    if (!err)
        err = samples_in_front(t->env.graph, why);
    if (!err)
        err = grad_build(t->env.graph, &t->options, &t->graph, &t->info, why);
    if (!err && t->cli->o.plan) {
        struct solve_training training = {.of = t->info.of,
            .n_forward = t->env.graph->n_nodes,
            .first_loss = t->info.first_loss,
            .first_backward = t->info.first_backward};
        err = local_use_plan(t->cli, &t->env, t->graph, &training, why);
    }
    if (err)
        return err;
    if (t->info.warning)
        fprintf(stderr, "yoke: %s\n", t->info.warning);
    t->batch_dim = graph_batch_dim(t->env.graph, &t->env.fixed_batch);
    t->ids = grad_loss_has_ids(t->options.loss);
    t->sizes = yk_xalloc(((size_t)t->graph->n_syms + 1) * sizeof *t->sizes);
    return YK_OK;
}

/* The model takes what the set gives; other named dimensions have the size that the samples have. */
static yk_err fit_sizes(struct local_train *t, struct yk_diag *why)
{
    int n = data_inputs(t->set);
    if (t->batch_dim < 0 && t->microbatch != t->env.fixed_batch)
        return yk_fail(why, YK_INVAL,
            "the model takes batches of exactly %" PRId64 ", not %" PRId64 ": export it with a dynamic batch, or give "
            "--microbatch=%" PRId64,
            t->env.fixed_batch, t->microbatch, t->env.fixed_batch);
    struct shape *x = yk_xalloc((size_t)n * sizeof *x);
    const struct shape **in = yk_xalloc((size_t)n * sizeof *in);
    yk_err err = YK_OK;
    for (int i = 0; !err && i < n; i++) {
        x[i] = *data_sample_of(t->set, i);
        in[i] = &x[i];
        if (x[i].rank == YK_MAX_RANK) {
            err = yk_fail(why, YK_LIMIT, "samples of %d dimensions; the limit is %d", x[i].rank, YK_MAX_RANK - 1);
            break;
        }
        memmove(x[i].dims + 1, x[i].dims, (size_t)x[i].rank * sizeof x[i].dims[0]);
        x[i].dims[0] = t->microbatch;
        x[i].rank++;
    }
    if (!err)
        err = local_sizes(t->env.graph, in, t->sizes, why);
    free(x);
    free(in);
    return err;
}

/* Of --tune, where no plan says the forms. */
static yk_err tune(struct local_train *t, struct yk_diag *why)
{
    struct local whole = t->env;
    if (!t->cli->o.tune || t->env.forms)
        return YK_OK;
    whole.graph = t->graph;
    whole.sizes = t->sizes;
    whole.batch_dim = t->batch_dim;
    yk_err err = tune_forms(&whole, &t->info, why);
    t->env.forms = whole.forms;
    t->env.tuned = whole.tuned;
    return err;
}

yk_err local_train_open_trainer(struct local_train *t, struct yk_diag *why)
{
    yk_err err = fit_sizes(t, why);
    if (!err)
        err = tune(t, why);
    struct trainer_config config = {.graph = t->graph,
        .info = &t->info,
        .forms = t->env.forms,
        .max_sizes = t->sizes,
        .backends = &t->env.backends,
        .pool = t->env.pool,
        .optim = optim_config(&t->ask),
        .clip_norm = t->ask.clip_norm,
        .single = t->batches.sampler.batch <= t->microbatch};
    if (!err && (err = trainer_open(&config, &t->trainer, why)) == YK_NOMEM)
        yk_wrap(why, err, "a smaller --microbatch or --recompute takes less");
    return err;
}

/* ---- the file ---- */

/* Weights of g that are trained here get their current contents; the trainer keeps the memory. */
static void put_weights(const struct local_train *t, struct graph *g)
{
    int32_t n;
    const struct trainer_tensor *tensors = trainer_tensors(t->trainer, &n);
    for (int32_t i = 0; i < n; i++) {
        int32_t v = graph_find_value(g, strchr(tensors[i].name, '/') + 1);
        if (tensors[i].kind == TRAINER_SLOT || v == YK_ABSENT || g->values[v].kind != VALUE_WEIGHT ||
            !shape_equal(&g->values[v].shape, &tensors[i].shape))
            continue;
        g->values[v].data = tensors[i].data;
        g->values[v].has_hash = false;
        g->values[v].aligned = true;
    }
}

static yk_err current(struct local_train *t, struct graph **out, struct yk_diag *why)
{
    struct graph *g = NULL;
    yk_err err = import(t->cli->args.at[0], &g, why);
    if (!err) {
        put_weights(t, g);
        err = passes_eval_mode(g, why);
    }
    if (err)
        graph_close(g);
    else
        *out = g;
    return err;
}

yk_err local_train_export(struct local_train *t, struct yk_buf *out, struct yk_diag *why)
{
    struct graph *g = NULL;
    yk_err err = current(t, &g, why);
    if (!err)
        err = onnx_export(g, out, why);
    graph_close(g);
    return err;
}

/* ---- judging ---- */

static yk_err judge_all(struct local_train *t, struct judge *j, struct data_ahead *ahead, struct yk_diag *why)
{
    const struct data_ahead_batch *b;
    yk_err err;
    while (!(err = data_ahead_next(ahead, &b, why)) && b && !(err = judge_add(j, t->set, b->x, b->y, b->count, why)))
        progress_show(&t->bar, 0, 0, "validation");
    return err;
}

yk_err local_train_judge(struct local_train *t, struct data_set *set, struct judge_score *out, struct yk_diag *why)
{
    struct graph *g = NULL;
    struct judge *j = NULL;
    struct data_ahead *ahead = NULL;
    int64_t held = t->batches.sampler.held, count = set ? data_count(set) : held;
    yk_err err = current(t, &g, why);
    if (!err)
        err = passes_train(g, fold_eval, NULL, why);
    if (err)
        goto out;
    const struct judge_config c = {.graph = g,
        .like = t->graph,
        .like_sizes = t->sizes,
        .backends = &t->env.backends,
        .microbatch = t->microbatch,
        .samples = count,
        .output = t->graph->values[t->graph->outputs[t->info.logits_output]].name,
        .loss = t->options.loss,
        .ignore_index = t->options.ignore_index};
    if ((err = judge_open(&c, &j, why)))
        goto out;
    err = set ? data_ahead_open(set, 0, count, judge_microbatch(j), 2, &ahead, why)
              : data_ahead_held(&t->batches, judge_microbatch(j), 2, &ahead, why);
    if (!err)
        err = judge_all(t, j, ahead, why);
    if (!err && judge_score(j).samples)
        *out = judge_score(j);
out:
    data_ahead_close(ahead);
    judge_close(j);
    graph_close(g);
    return err;
}
