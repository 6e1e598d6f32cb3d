/* `yoke local train`: a model over a data set on this machine, step by step as a job would. */
#include "scheduler/cli/local_train.h"

#include "common/samples.h"
#include "scheduler/cli/datasets.h"
#include "scheduler/cli/flags.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#define SAVE_EVERY_S 60.0

static double now_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* ---- flags ---- */

static yk_err read_microbatch(struct local_train *t, struct yk_diag *why)
{
    const struct cli_opts *o = &t->cli->o;
    const struct plan *plan = t->env.plan;
    bool own = plan && plan->batch > 0 && !conf_given(&t->cli->args, "batch");
    int64_t batch = own ? plan->batch : o->batch;
    yk_err err = local_microbatch(t->cli, plan, t->batch_dim < 0 ? t->env.fixed_batch : 0, batch, &t->microbatch, why);
    if (err)
        return err;
    if (o->accumulate > 1) {
        if (!yk_mul_i64(batch, o->accumulate, &batch) || batch > INT64_C(1000000000))
            return yk_fail(why, YK_INVAL, "--accumulate=%" PRId64 " batches of %" PRId64, o->accumulate, o->batch);
    }
    if (plan && (err = samples_split_check(batch, t->microbatch, 0, why)))
        return yk_wrap(why, err, "%s", o->plan);
    t->microbatch = YK_MIN(t->microbatch, batch);
    t->batches.sampler.batch = batch;
    return YK_OK;
}

/* ---- data ---- */

static yk_err open_set(
    struct local_train *t, const char *path, const char *split, struct data_set **out, struct yk_diag *why)
{
    struct cli *c = t->cli;
    char *data = c->o.data, *was = c->o.split;
    struct data_input *inputs = data_inputs_of(t->env.graph, t->env.graph->n_inputs);
    c->o.data = (char *)(uintptr_t)path;
    c->o.split = (char *)(uintptr_t)split;
    yk_err err = datasets_open(c, inputs, t->env.graph->n_inputs, NULL, out, why);
    c->o.data = data;
    c->o.split = was;
    free(inputs);
    return err;
}

/* The test split of --data, if it has one. */
static yk_err open_test(struct local_train *t, struct data_set **out, struct yk_diag *why)
{
    if (!data_is_split(t->set))
        return YK_OK;
    yk_err err = open_set(t, t->cli->o.data, "t10k", out, why);
    if (err == YK_NOTFOUND)
        return YK_OK;
    return err ? err : data_match(t->set, *out, why);
}

/* Whether --val is a number that is not the path of something. */
static bool is_share(const char *val, double *share)
{
    char *end = NULL;
    struct stat st;
    *share = val ? strtod(val, &end) : 0;
    return end && end != val && !*end && stat(val, &st) != 0;
}

/* --val: a share of the samples, or a path. Without it the test split validates too. */
static yk_err open_judge(struct local_train *t, struct yk_diag *why)
{
    const char *val = t->cli->o.val;
    struct sampler *s = &t->batches.sampler;
    double share;
    yk_err err = YK_OK;
    if (!val)
        return open_test(t, &t->judge, why);
    if (strcmp(val, "none") == 0)
        return YK_OK;
    if (is_share(val, &share)) {
        s->held = sampler_share(s->samples, share);
    } else if ((err = open_set(t, val, "t10k", &t->judge, why)) || (err = data_match(t->set, t->judge, why))) {
        return yk_wrap(why, err, "--val=%s", val);
    }
    return open_test(t, &t->test, why);
}

static int64_t n_classes(const struct local_train *t, const struct shapes *s)
{
    const struct shape *y = &s->of[t->graph->outputs[t->info.logits_output]];
    return y->rank >= 2 ? y->dims[1] : 0;
}

/* Targets have the type and shape that the loss takes, and class ids name classes. */
static yk_err check_targets(struct local_train *t, struct yk_diag *why)
{
    const struct shapes *s;
    const struct shape *have = data_truth(t->set), *want;
    char a[128], b[128];
    if (!have)
        return yk_fail(why, YK_INVAL, "%s: %s", t->cli->o.data, DATA_NO_TRUTH);
    yk_err err = trainer_shapes(t->trainer, t->sizes, &s, why);
    if (err)
        return err;
    want = &s->of[t->graph->inputs[t->info.target_input]];
    bool same = have->dtype == want->dtype && have->rank + 1 == want->rank;
    for (int i = 0; same && i < have->rank; i++)
        same = have->dims[i] == want->dims[i + 1];
    if (!same) {
        shape_text(have, a, sizeof a);
        shape_text(want, b, sizeof b);
        return yk_fail(why, YK_INVAL, "--loss=%s wants a target of %s for a batch, a sample of %s has %s",
            grad_loss_name(t->options.loss), b, t->cli->o.data, a);
    }
    if (t->ids)
        err = data_check_labels(t->set, n_classes(t, s), &t->options.ignore_index, why);
    if (!err && t->ids && t->judge)
        err = data_check_labels(t->judge, n_classes(t, s), &t->options.ignore_index, why);
    if (!err && t->ids && t->test)
        err = data_check_labels(t->test, n_classes(t, s), &t->options.ignore_index, why);
    return err;
}

/* ---- a step ---- */

struct sums {
    double loss; /* of the epoch, weighted by what counts */
    int64_t counted, correct;
};

static int64_t count_ids(const struct local_train *t, const int64_t *ids, int64_t n)
{
    int64_t count = 0;
    for (int64_t i = 0; i < n; i++)
        count += ids[i] != t->options.ignore_index;
    return count;
}

static void count_correct(const struct tensor *logits, const int64_t *ids, struct sums *s)
{
    if (logits->shape.rank != 2 || logits->shape.dtype != DT_F32)
        return;
    const float *z = logits->data;
    int64_t n = logits->shape.dims[0], classes = logits->shape.dims[1];
    for (int64_t i = 0; i < n; i++) {
        int64_t best = 0;
        for (int64_t k = 1; k < classes; k++)
            if (z[i * classes + k] > z[i * classes + best])
                best = k;
        s->correct += best == ids[i];
    }
}

/* The sample of a microbatch whose values a tensor holds the first NaN or infinity of; -1: all are finite. */
static int64_t bad_row(const struct tensor *t)
{
    const float *x = t->data;
    int64_t n = t->shape.dtype == DT_F32 && t->shape.rank > 0 ? tensor_count(t) : 0;
    for (int64_t i = 0; i < n; i++)
        if (!isfinite(x[i]))
            return i / (n / t->shape.dims[0]);
    return -1;
}

/* The samples of a graph input in a batch, from `first`; input: by position. */
static void *samples_at(const struct local_train *t, const struct data_ahead_batch *b, int32_t input, int64_t first)
{
    return (char *)b->x + data_at(t->set, input, b->count) + first * shape_bytes(data_sample_of(t->set, input));
}

static int32_t input_position(const struct local_train *t, int32_t value)
{
    int32_t k = 0;
    while (t->graph->inputs[k] != value)
        k++;
    return k;
}

/* Says which is the first tensor that is not finite. first: the batch's sample that the microbatch begins with. */
static yk_err not_finite(
    struct local_train *t, const struct tensor *in, int64_t first, uint64_t seed, double loss, struct yk_diag *why)
{
    const struct trainer_border *border = trainer_border(t->trainer, TRAINER_WHOLE);
    const struct sampler *s = &t->batches.sampler;
    struct sampler_batch b = sampler_batch(s, t->step);
    bool several = data_inputs(t->set) > 1;
    char text[512];
    for (int32_t i = 0; i < border->n_in; i++) {
        bool target = border->in[i] == t->graph->inputs[t->info.target_input];
        int64_t row = border->in[i] == t->graph->inputs[t->info.divisor_input] ? -1 : bad_row(&in[i]);
        if (row >= 0)
            return yk_fail(why, YK_INVAL,
                "step %" PRId64 ": the loss is %s: %s%s%.60s%s of sample %" PRId64
                " of %s (counted from 0) holds a NaN or an infinity",
                t->step + 1, isnan(loss) ? "NaN" : "infinite", target ? "the target" : "the input",
                target || !several ? "" : " '", target || !several ? "" : t->graph->values[border->in[i]].name,
                target || !several ? "" : "'", sampler_sample(s, b.epoch, b.first + first + row), t->cli->o.data);
    }
    if (!trainer_blame(t->trainer, t->sizes, in, seed, text, sizeof text))
        snprintf(text, sizeof text, "nothing in it is");
    return yk_fail(why, YK_INVAL,
        "step %" PRId64 ": the loss is %s; the first that is not finite: %s. A smaller --lr, --clip-norm or --warmup "
        "may help",
        t->step + 1, isnan(loss) ? "NaN" : "infinite", text);
}

static yk_err run_step(
    struct local_train *t, const struct data_ahead_batch *b, struct sums *sums, double *loss, struct yk_diag *why)
{
    const struct trainer_border *border = trainer_border(t->trainer, TRAINER_WHOLE);
    const struct graph *g = t->graph;
    int64_t target = shape_bytes(data_truth(t->set)), index = 0;
    int64_t ids = shape_count(data_truth(t->set)) * b->count;
    int64_t counted = t->ids ? count_ids(t, b->y, ids) : b->count;
    float divisor = (float)counted;
    struct tensor *in = yk_xalloc(((size_t)border->n_in + 1) * sizeof *in);
    struct tensor *out = yk_xalloc(((size_t)border->n_out + 1) * sizeof *out);
    yk_err err = YK_OK;
    double sum = 0;
    if (counted == 0)
        divisor = 1; /* nothing counts: all gradients are zero */
    for (int64_t first = 0; !err && first < b->count; first += t->microbatch, index++) {
        const struct shapes *shapes;
        uint64_t seed = trainer_seed(t->seed, t->step, index);
        int64_t n = YK_MIN(t->microbatch, b->count - first);
        void *truth = (char *)b->y + first * target;
        if (t->batch_dim >= 0)
            t->sizes[t->batch_dim] = n;
        if ((err = trainer_shapes(t->trainer, t->sizes, &shapes, why)))
            break;
        for (int32_t i = 0; i < border->n_in; i++) {
            int32_t v = border->in[i];
            void *data = v == g->inputs[t->info.target_input]    ? truth
                         : v == g->inputs[t->info.divisor_input] ? (void *)&divisor
                                                                 : samples_at(t, b, input_position(t, v), first);
            in[i] = (struct tensor){shapes->of[v], data};
        }
        if ((err = trainer_run(t->trainer, TRAINER_WHOLE, 0, t->sizes, in, out, seed, why)))
            break;
        for (int32_t i = 0; i < border->n_out; i++) {
            if (border->out[i] == g->outputs[t->info.loss_output])
                sum += (double)*(const float *)out[i].data;
            else if (border->out[i] == g->outputs[t->info.logits_output] && t->ids)
                count_correct(&out[i], truth, sums);
        }
        if (!isfinite(sum))
            err = not_finite(t, in, first, seed, sum, why);
    }
    if (!err)
        err = trainer_flush(t->trainer, optim_lr(&t->schedule, t->step), t->step + 1, NULL, why);
    *loss = sum;
    sums->loss += sum * (double)counted;
    sums->counted += counted;
    free(in);
    free(out);
    return err;
}

/* ---- all steps ---- */

/* A step may leave weights that the next loss would show. */
static yk_err check_weights(struct local_train *t, struct yk_diag *why)
{
    char text[512];
    return trainer_blame_weights(t->trainer, text, sizeof text)
               ? yk_fail(why, YK_INVAL, "behind step %" PRId64 " %s. A smaller --lr, --clip-norm or --warmup may help",
                     t->step, text)
               : YK_OK;
}

static yk_err end_epoch(struct local_train *t, struct sums *sums, struct yk_diag *why)
{
    struct judge_score s = {0};
    bool judged = t->judge || t->batches.sampler.held > 0;
    double loss = sums->counted ? sums->loss / (double)sums->counted : 0;
    int64_t epoch = t->step / t->epoch_steps;
    yk_err err = judged ? local_train_judge(t, t->judge, &s, why) : YK_OK;
    if (err)
        return err;
    t->scores[epoch - 1] = NAN;
    if (s.samples && s.classes) {
        t->accuracy = (double)s.correct / (double)s.samples;
        t->scores[epoch - 1] = (float)t->accuracy;
    } else if (s.samples) {
        t->scores[epoch - 1] = (float)s.loss;
    }
    local_train_show_epoch(t, loss, t->ids && sums->counted ? (double)sums->correct / (double)sums->counted : -1, &s);
    *sums = (struct sums){0};
    return YK_OK;
}

static yk_err run_steps(struct local_train *t, struct yk_diag *why)
{
    struct data_ahead *ahead = NULL;
    const struct data_ahead_batch *b;
    struct sums sums = {0};
    double saved_s = now_s();
    yk_err err = data_ahead_train(&t->batches, t->step, t->total_steps, 3, &ahead, why);
    progress_start(&t->bar, t->cli->tty, "local train");
    double begin = now_s();
    while (!err && !(err = data_ahead_next(ahead, &b, why)) && b) {
        double loss = 0;
        if ((err = run_step(t, b, &sums, &loss, why)))
            break;
        double end = now_s();
        t->losses[t->step++] = (float)loss;
        t->last_loss = loss;
        local_train_show_step(t, loss, 1e3 * (end - begin),
            t->ids && sums.counted ? (double)sums.correct / (double)sums.counted : -1, b->count);
        bool epoch_ends = t->step % t->epoch_steps == 0;
        if (epoch_ends)
            err = end_epoch(t, &sums, why);
        int64_t every = t->ask.checkpoint_every;
        bool due = every > 0 ? t->step % every == 0 : now_s() - saved_s >= SAVE_EVERY_S;
        if (!err && t->storage && (due || epoch_ends)) {
            if (!(err = check_weights(t, why)))
                err = local_train_save(t, why);
            saved_s = now_s();
        }
        begin = now_s();
    }
    progress_end(&t->bar);
    data_ahead_close(ahead);
    return err;
}

static yk_err finish(struct local_train *t, struct yk_diag *why)
{
    struct yk_buf file = {0};
    struct judge_score s = {0};
    yk_err err = check_weights(t, why);
    if (!err && t->test && !(err = local_train_judge(t, t->test, &s, why)) && s.classes && s.samples)
        t->accuracy = (double)s.correct / (double)s.samples;
    if (err)
        return err;
    if (t->accuracy < 0 && t->step == t->total_steps && t->ids && t->step && isfinite(t->scores[t->ask.epochs - 1]))
        t->accuracy = (double)t->scores[t->ask.epochs - 1];
    if (t->cli->o.output) {
        err = local_train_export(t, &file, why);
        if (!err)
            err = cli_write_file(t->cli->o.output, file.data, file.len, why);
        yk_buf_free(&file);
    }
    if (!err && t->cli->o.plot)
        err = local_train_plot(t, why);
    if (!err)
        local_train_show_end(t);
    return err;
}

static yk_err plan_rates(struct local_train *t, struct yk_diag *why)
{
    t->schedule = optim_config_schedule(&t->ask, t->total_steps);
    if (t->ask.warmup > 0 && t->ask.warmup >= t->total_steps)
        return yk_fail(
            why, YK_INVAL, "--warmup=%" PRId64 " steps; the training has %" PRId64, t->ask.warmup, t->total_steps);
    return YK_OK;
}

static yk_err open_all(struct local_train *t, struct yk_diag *why)
{
    const struct cli_opts *o = &t->cli->o;
    struct sampler *s = &t->batches.sampler;
    yk_err err = local_open_backends(t->cli, &t->env, why);
    if (!err)
        err = local_train_open_model(t, why);
    if (!err)
        err = read_microbatch(t, why);
    if (!err)
        err = open_set(t, o->data, "train", &t->set, why);
    if (err)
        return err;
    if (data_count(t->set) == 0)
        return yk_fail(why, YK_INVAL, "%s: the data set is empty: there is nothing to train with", o->data);
    t->batches.set = t->set;
    s->seed = t->seed;
    s->samples = data_count(t->set);
    if ((err = open_judge(t, why)) ||
        (err = augment_spec_parse(t->ask.augment ? t->ask.augment : "", &t->batches.augment, why)) ||
        (err = batches_check(&t->batches, why)))
        return err;
    t->epoch_steps = sampler_steps(s);
    if (!yk_mul_i64(t->ask.epochs, t->epoch_steps, &t->total_steps))
        return yk_fail(why, YK_LIMIT, "%" PRId64 " epochs of %" PRId64 " steps", t->ask.epochs, t->epoch_steps);
    t->losses = yk_try_alloc((size_t)t->total_steps + 1, sizeof *t->losses);
    t->scores = yk_try_alloc((size_t)t->ask.epochs + 1, sizeof *t->scores);
    if (!t->losses || !t->scores)
        return yk_fail(why, YK_NOMEM, "no memory for the losses of %" PRId64 " steps", t->total_steps);
    if ((err = plan_rates(t, why)) || (err = local_train_open_trainer(t, why)) || (err = check_targets(t, why)))
        return err;
    return local_train_open_storage(t, why);
}

/* Sizes of microbatches that come are tried before step 0: the last of a batch and those of the last batch. */
static yk_err check_sizes(struct local_train *t, struct yk_diag *why)
{
    int64_t batch = t->batches.sampler.batch, rest = sampler_count(&t->batches.sampler) % batch;
    int64_t sizes[] = {batch % t->microbatch, rest % t->microbatch};
    const struct shapes *s;
    if (t->batch_dim < 0)
        return sizes[0] || sizes[1]
                   ? yk_fail(why, YK_INVAL,
                         "the model takes batches of exactly %" PRId64 ", which %" PRId64
                         " samples in batches of %" PRId64 " do not divide into: export it with a dynamic batch",
                         t->env.fixed_batch, sampler_count(&t->batches.sampler), batch)
                   : YK_OK;
    yk_err err = YK_OK;
    for (int i = 0; !err && i < 2; i++)
        if (sizes[i] > 0) {
            t->sizes[t->batch_dim] = sizes[i];
            if ((err = trainer_shapes(t->trainer, t->sizes, &s, why)))
                yk_wrap(why, err, "a last microbatch of %" PRId64 " samples", sizes[i]);
        }
    return err;
}

/* What can be told without reading the model or the data. */
static yk_err check_flags(struct local_train *t, struct yk_diag *why)
{
    const struct cli_opts *o = &t->cli->o;
    if (!o->data)
        return yk_fail(why, YK_INVAL, "local train needs --data=PATH");
    if (!o->checkpoint && (o->resume || o->train.checkpoint_every))
        return yk_fail(why, YK_INVAL, "--%s is about the checkpoints of --checkpoint=DIR, which is not given",
            o->resume ? "resume" : "checkpoint-every");
    if (o->accumulate > 1 && flags_microbatch(t->cli) > 0)
        return yk_fail(why, YK_INVAL, "--accumulate adds up whole batches: leave --microbatch out");
    double share;
    if (is_share(o->val, &share) && !(share > 0 && share < 1))
        return yk_fail(why, YK_INVAL, "--val=%s: a share between 0 and 1, the path of a set, or none", o->val);
    yk_err err = train_flags_read(&o->train, 0, &t->ask, why);
    if (!err)
        train_config_grad(&t->ask, &t->options);
    return err;
}

static yk_err work(struct local_train *t, struct yk_diag *why)
{
    yk_err err = cli_check_writable("output", t->cli->o.output, why);
    if (!err)
        err = cli_check_writable("plot", t->cli->o.plot, why);
    if (!err)
        err = open_all(t, why);
    if (!err)
        err = check_sizes(t, why);
    if (!err)
        err = run_steps(t, why);
    if (!err)
        return finish(t, why);
    /* A last checkpoint that has no room does not take the trained model along. */
    if (t->trainer && t->step == t->total_steps) {
        struct yk_diag too = {0};
        if (finish(t, &too))
            cli_fail(YK_OK, &too);
    }
    return err;
}

int cli_local_train(struct cli *c)
{
    struct yk_diag why = {0};
    struct local_train t = {.cli = c, .seed = (uint64_t)c->o.train.seed, .accuracy = -1};
    yk_err err = check_flags(&t, &why);
    int code = err ? CLI_USAGE : CLI_FAILED;
    if (!err)
        err = work(&t, &why);
    if (err)
        cli_fail(err, &why);
    if (t.storage)
        t.storage->ops->close(t.storage);
    trainer_close(t.trainer);
    graph_close(t.graph);
    data_close(t.set);
    data_close(t.judge);
    data_close(t.test);
    free(t.losses);
    free(t.scores);
    free(t.sizes);
    free(t.config_text);
    train_config_fini(&t.ask);
    local_close(&t.env);
    return err ? code : CLI_DONE;
}
