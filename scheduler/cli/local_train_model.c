/* The models of a training: the graph that is trained, the file that comes out, and what judges it. */
#include "common/onnx.h"
#include "common/passes.h"
#include "common/samples.h"
#include "kernels/fold.h"
#include "scheduler/cli/local_train.h"
#include "scheduler/solve.h"

#include <inttypes.h>
#include <math.h>
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
        err = local_use_plan(&t->env, t->graph, &training, t->cli->o.plan, why);
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

yk_err local_train_open_trainer(struct local_train *t, struct yk_diag *why)
{
    yk_err err = fit_sizes(t, why);
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

/* Of scores (n, classes, ...) against ids (n, ...): how many are the largest along axis 1, and the cross-entropy. */
static void score_ids(
    const struct local_train *t, const struct tensor *logits, const int64_t *ids, struct local_train_score *s)
{
    const struct shape *shape = &logits->shape;
    int64_t n = shape->dims[0], classes = shape->dims[1], inner = n && classes ? tensor_count(logits) / n / classes : 0;
    const float *z = logits->data;
    for (int64_t i = 0; i < n * inner; i++) {
        const float *at = z + i / inner * classes * inner + i % inner;
        int64_t best = 0;
        double sum = 0;
        if (ids[i] == t->options.ignore_index)
            continue;
        for (int64_t k = 1; k < classes; k++)
            if (at[k * inner] > at[best * inner])
                best = k;
        for (int64_t k = 0; k < classes; k++)
            sum += exp((double)at[k * inner] - (double)at[best * inner]);
        s->samples++;
        s->correct += best == ids[i];
        if (ids[i] < 0 || ids[i] >= classes)
            s->loss = NAN;
        else if (t->options.loss == GRAD_CROSS_ENTROPY)
            s->loss += log(sum) + (double)at[best * inner] - (double)at[ids[i] * inner];
        else
            s->loss -= (double)at[ids[i] * inner];
    }
}

static void score_values(
    const struct local_train *t, const struct tensor *y, const float *want, struct local_train_score *s)
{
    int64_t n = y->shape.rank ? y->shape.dims[0] : 1, count = tensor_count(y);
    const float *z = y->data;
    double sum = 0;
    for (int64_t i = 0; i < count; i++) {
        double a = (double)z[i], b = (double)want[i];
        if (t->options.loss == GRAD_MSE)
            sum += (a - b) * (a - b);
        else if (t->options.loss == GRAD_L1)
            sum += fabs(a - b);
        else
            sum += fmax(a, 0) - a * b + log1p(exp(-fabs(a)));
    }
    s->samples += n;
    s->loss += count ? sum / ((double)count / (double)n) : 0;
}

static yk_err judge_all(
    struct local_train *t, struct local *l, struct data_ahead *ahead, struct local_train_score *s, struct yk_diag *why)
{
    const struct memplan *plan = exec_plan(l->exec);
    const struct data_ahead_batch *b;
    struct tensor *outputs = NULL, *in = yk_xalloc(((size_t)plan->n_in + 1) * sizeof *in);
    int32_t result = 0;
    const char *name = t->graph->values[t->graph->outputs[t->info.logits_output]].name;
    yk_err err = local_outputs_alloc(l, l->sizes, &outputs, why);
    for (int32_t i = 0; i < plan->n_out; i++)
        if (strcmp(l->graph->values[plan->out[i]].name, name) == 0)
            result = i;
    while (!err && !(err = data_ahead_next(ahead, &b, why)) && b) {
        const struct shapes *shapes;
        if (l->batch_dim >= 0)
            l->sizes[l->batch_dim] = b->count;
        else if (b->count != l->fixed_batch)
            break; /* a rest that a model with a fixed batch cannot take */
        if ((err = exec_sizes(l->exec, l->sizes, &shapes, why)))
            break;
        for (int32_t i = 0; i < plan->n_in; i++)
            in[i] = local_samples(l, t->set, b, plan->in[i], shapes);
        for (int32_t i = 0; i < plan->n_out; i++)
            outputs[i].shape = shapes->of[plan->out[i]];
        if ((err = exec_run(l->exec, l->sizes, in, outputs, 0, why)))
            break;
        if (t->ids)
            score_ids(t, &outputs[result], b->y, s);
        else
            score_values(t, &outputs[result], b->y, s);
        progress_show(&t->bar, 0, 0, "validation");
    }
    for (int32_t i = 0; outputs && i < plan->n_out; i++)
        free(outputs[i].data);
    free(outputs);
    free(in);
    return err;
}

/* Weights are read where the trainer has them: folded or packed ones would be a second model beside it. */
static yk_err open_judge(struct local *l, int64_t microbatch, struct yk_diag *why)
{
    void **where_they_are = yk_try_alloc((size_t)l->graph->n_values + 1, sizeof *where_they_are);
    struct exec_config config = {
        .graph = l->graph, .max_sizes = l->sizes, .backends = &l->backends, .variable = where_they_are};
    if (l->batch_dim >= 0)
        l->sizes[l->batch_dim] = microbatch;
    yk_err err =
        where_they_are ? exec_open(&config, &l->exec, why) : yk_fail(why, YK_NOMEM, "no memory to judge the model");
    free(where_they_are);
    return err;
}

yk_err local_train_judge(
    struct local_train *t, struct data_set *set, struct local_train_score *out, struct yk_diag *why)
{
    struct local l = {.backends = t->env.backends, .pool = t->env.pool};
    struct data_ahead *ahead = NULL;
    struct local_train_score s = {.classes = t->ids};
    int64_t held = t->batches.sampler.held, count = set ? data_count(set) : held;
    int64_t microbatch = t->batch_dim < 0 ? t->env.fixed_batch : YK_MIN(t->microbatch, YK_MAX(count, 1));
    yk_err err = current(t, &l.graph, why);
    if (!err)
        err = passes_train(l.graph, fold_eval, NULL, why);
    if (err)
        goto out;
    l.batch_dim = graph_batch_dim(l.graph, &l.fixed_batch);
    l.sizes = yk_xalloc(((size_t)l.graph->n_syms + 1) * sizeof *l.sizes);
    for (int32_t i = 0; i < l.graph->n_syms; i++) {
        int32_t sym = graph_find_sym(t->graph, l.graph->syms[i]);
        l.sizes[i] = sym >= 0 ? t->sizes[sym] : 1;
    }
    if ((err = open_judge(&l, microbatch, why)))
        goto out;
    err = set ? data_ahead_open(set, 0, count, microbatch, 2, &ahead, why)
              : data_ahead_held(&t->batches, microbatch, 2, &ahead, why);
    if (!err)
        err = judge_all(t, &l, ahead, &s, why);
    if (!err && s.samples) {
        s.loss /= (double)s.samples;
        *out = s;
    }
out:
    data_ahead_close(ahead);
    exec_close(l.exec);
    free(l.sizes);
    graph_close(l.graph);
    return err;
}
