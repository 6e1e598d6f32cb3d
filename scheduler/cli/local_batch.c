/* `yoke local batch`: a whole data set on this machine, microbatch by microbatch as a job would. */
#include "agent/data_ahead.h"
#include "common/npy.h"
#include "common/samples.h"
#include "scheduler/cli/datasets.h"
#include "scheduler/cli/local.h"
#include "scheduler/cli/progress.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct sums {
    int64_t samples, correct;
    bool labelled;
    double seconds; /* of compute and reading, without preparing */
};

static double now_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static int64_t count_correct(const struct tensor *logits, const int64_t *labels)
{
    int64_t n = logits->shape.dims[0], classes = n ? tensor_count(logits) / n : 0, correct = 0;
    const float *z = logits->data;
    for (int64_t i = 0; i < n; i++) {
        int64_t best = 0;
        for (int64_t k = 1; k < classes; k++)
            if (z[i * classes + k] > z[i * classes + best])
                best = k;
        correct += classes > 0 && best == labels[i];
    }
    return correct;
}

static yk_err check_input(struct local *l, const struct data_set *set, int64_t microbatch, struct yk_diag *why)
{
    int32_t n = l->graph->n_inputs;
    char a[128], b[128];
    struct shape want, *got = yk_xalloc(((size_t)n + 1) * sizeof *got);
    const struct shape **given = yk_xalloc(((size_t)n + 1) * sizeof *given);
    yk_err err = YK_OK;
    for (int32_t i = 0; i < n; i++) {
        got[i] = *data_sample_of(set, i);
        given[i] = &got[i];
        memmove(got[i].dims + 1, got[i].dims, (size_t)got[i].rank * sizeof got[i].dims[0]);
        got[i].dims[0] = microbatch;
        got[i].rank++;
    }
    if (!local_sizes(l->graph, given, l->sizes, NULL)) /* what differs is told below */
        err = local_agree(l, why);
    for (int32_t i = 0; !err && i < n; i++) {
        err = local_input_shape(l, i, microbatch, &want, why);
        if (err || shape_equal(&want, &got[i]))
            continue;
        shape_text(&want, a, sizeof a);
        shape_text(&got[i], b, sizeof b);
        err = n > 1 ? yk_fail(why, YK_INVAL, "input '%s' of the model takes %s, the data set gives %s",
                          l->graph->values[l->graph->inputs[i]].name, a, b)
                    : yk_fail(why, YK_INVAL, "the model takes %s, the data set gives %s", a, b);
    }
    free(got);
    free(given);
    return err;
}

/* Runs all microbatches; outputs of all samples go into rows (NULL: not kept). */
static yk_err run_all(struct cli *c, struct local *l, struct data_set *set, int64_t microbatch, struct yk_buf *rows,
    struct sums *sums, struct yk_diag *why)
{
    struct progress bar;
    struct tensor *outputs = NULL, *in = yk_xalloc(((size_t)l->graph->n_inputs + 1) * sizeof *in);
    struct data_ahead *ahead = NULL;
    const struct data_ahead_batch *b;
    int64_t fixed = l->fixed_batch, total = data_count(set);
    yk_err err = local_outputs_alloc(l, l->sizes, &outputs, why);
    if (err)
        goto out;
    if (l->batch_dim < 0 && total % fixed) {
        err = yk_fail(
            why, YK_INVAL, "%" PRId64 " samples do not divide by the model's fixed batch of %" PRId64, total, fixed);
        goto out;
    }
    const struct memplan *plan = exec_plan(l->exec);
    double start = now_s();
    if ((err = data_ahead_open(set, 0, total, microbatch, 2, &ahead, why)))
        goto out;
    progress_start(&bar, c->tty, "local batch");
    while (!err && !(err = data_ahead_next(ahead, &b, why)) && b) {
        const struct shapes *shapes;
        local_renew(l, microbatch);
        plan = exec_plan(l->exec);
        if (l->batch_dim >= 0)
            l->sizes[l->batch_dim] = b->count;
        if ((err = exec_sizes(l->exec, l->sizes, &shapes, why)))
            break;
        for (int32_t i = 0; i < plan->n_in; i++)
            in[i] = local_samples(l, set, b, plan->in[i], shapes);
        for (int32_t i = 0; i < plan->n_out; i++)
            outputs[i].shape = shapes->of[plan->out[i]];
        if ((err = exec_run(l->exec, l->sizes, in, outputs, 0, why)))
            break;
        const struct tensor *result = &outputs[0];
        for (int32_t i = 0; i < plan->n_out; i++)
            if (plan->out[i] == l->graph->outputs[0])
                result = &outputs[i];
        sums->samples += b->count;
        sums->labelled = data_labelled(set) && result->shape.dtype == DT_F32 && result->shape.rank == 2;
        if (sums->labelled)
            sums->correct += count_correct(result, b->y);
        if (rows) {
            if (b->first == 0) {
                struct shape all = result->shape;
                all.dims[0] = total;
                err = npy_header(&all, rows);
            }
            yk_buf_add(rows, result->data, (size_t)tensor_bytes(result));
        }
        char text[48];
        snprintf(text, sizeof text, "%.0f samples/s", (double)sums->samples / (now_s() - start));
        progress_show(&bar, sums->samples, total, text);
    }
    progress_end(&bar);
    sums->seconds = now_s() - start;
    if (!err && rows && rows->failed)
        err = yk_fail(why, YK_NOMEM, "no memory for the outputs");
out:
    for (int32_t i = 0; outputs && i < exec_plan(l->exec)->n_out; i++)
        free(outputs[i].data);
    free(outputs);
    free(in);
    data_ahead_close(ahead);
    return err;
}

static void report(struct cli *c, const struct sums *s)
{
    double rate = s->seconds > 0 ? (double)s->samples / s->seconds : 0;
    double accuracy = s->samples ? (double)s->correct / (double)s->samples : 0;
    if (!c->o.json) {
        if (s->labelled)
            printf("accuracy %.4f  ", accuracy);
        printf("%" PRId64 " samples  %.1f samples/s\n", s->samples, rate);
        return;
    }
    struct yk_buf buf = {0};
    struct json_out out;
    json_out_init(&out, &buf, 0);
    json_open(&out, '{');
    json_put_key(&out, "samples");
    json_put_i64(&out, s->samples);
    json_put_key(&out, "images_per_s");
    json_put_f64(&out, rate);
    json_put_key(&out, "accuracy");
    if (s->labelled)
        json_put_f64(&out, accuracy);
    else
        json_put_null(&out);
    json_close(&out, '}');
    printf("%.*s\n", (int)buf.len, (const char *)buf.data);
    yk_buf_free(&buf);
}

int cli_local_batch(struct cli *c)
{
    struct yk_diag why = {0};
    struct local l = {0};
    struct data_set *set = NULL;
    struct data_input *inputs = NULL;
    struct yk_buf rows = {0};
    struct sums sums = {0};
    if (!c->o.data) {
        fprintf(stderr, "yoke: local batch needs --data=PATH\n");
        return CLI_USAGE;
    }
    int64_t microbatch = c->o.batch;
    yk_err err = local_open(c, c->args.at[0], &l, &why);
    if (err)
        goto out;
    if ((err = samples_in_front(l.graph, &why)))
        goto out;
    inputs = data_inputs_of(l.graph, l.graph->n_inputs);
    if ((err = datasets_open(c, inputs, l.graph->n_inputs, NULL, &set, &why)))
        goto out;
    if ((err = local_microbatch(c, l.plan, l.batch_dim < 0 ? l.fixed_batch : 0, c->o.batch, &microbatch, &why)))
        goto out;
    if ((err = check_input(&l, set, microbatch, &why)))
        goto out;
    if (l.batch_dim >= 0 && microbatch != c->o.batch && !l.plan && !samples_independent(l.graph, l.sizes, &why)) {
        err = yk_wrap(&why, YK_INVAL, "the samples of a batch may depend on each other, the microbatch is the batch");
        goto out;
    }
    if ((err = local_load(&l, microbatch, &why)) ||
        (err = run_all(c, &l, set, microbatch, c->o.output ? &rows : NULL, &sums, &why)))
        goto out;
    if (c->o.output)
        err = cli_write_file(c->o.output, rows.data, rows.len, &why);
    if (!err)
        report(c, &sums);
out:
    yk_buf_free(&rows);
    data_close(set);
    free(inputs);
    local_close(&l);
    return err ? cli_fail(err, &why) : CLI_DONE;
}
