#include "agent/judge.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct judge {
    struct judge_config c;
    struct exec *exec;
    int64_t *sizes, fixed_batch, microbatch;
    int32_t batch_dim;
    struct tensor *in, *out; /* by position in the plan; the outputs' memory is ours */
    int32_t result;          /* among out */
    struct judge_score score;
};

/* Of scores (n, classes, ...) against ids (n, ...): how many are the largest along axis 1, and the cross-entropy. */
static void score_ids(
    const struct judge_config *c, const struct tensor *logits, const int64_t *ids, struct judge_score *s)
{
    const struct shape *shape = &logits->shape;
    int64_t n = shape->dims[0], classes = shape->dims[1], inner = n && classes ? tensor_count(logits) / n / classes : 0;
    const float *z = logits->data;
    for (int64_t i = 0; i < n * inner; i++) {
        const float *at = z + i / inner * classes * inner + i % inner;
        int64_t best = 0;
        double sum = 0;
        if (ids[i] == c->ignore_index)
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
        else if (c->loss == GRAD_CROSS_ENTROPY)
            s->loss += log(sum) + (double)at[best * inner] - (double)at[ids[i] * inner];
        else
            s->loss -= (double)at[ids[i] * inner];
    }
}

static void score_values(const struct judge_config *c, const struct tensor *y, const float *want, struct judge_score *s)
{
    int64_t n = y->shape.rank ? y->shape.dims[0] : 1, count = tensor_count(y);
    const float *z = y->data;
    double sum = 0;
    for (int64_t i = 0; i < count; i++) {
        double a = (double)z[i], b = (double)want[i];
        if (c->loss == GRAD_MSE)
            sum += (a - b) * (a - b);
        else if (c->loss == GRAD_L1)
            sum += fabs(a - b);
        else
            sum += fmax(a, 0) - a * b + log1p(exp(-fabs(a)));
    }
    s->samples += n;
    s->loss += count ? sum / ((double)count / (double)n) : 0;
}

static yk_err open_outputs(struct judge *j, struct yk_diag *why)
{
    const struct memplan *plan = exec_plan(j->exec);
    const struct shapes *shapes;
    yk_err err = exec_sizes(j->exec, j->sizes, &shapes, why);
    j->in = yk_xalloc(((size_t)plan->n_in + 1) * sizeof *j->in);
    j->out = yk_xalloc(((size_t)plan->n_out + 1) * sizeof *j->out);
    for (int32_t i = 0; !err && i < plan->n_out; i++) {
        int64_t bytes = shape_bytes(&shapes->of[plan->out[i]]);
        j->out[i].data = bytes < 0 ? NULL : yk_try_aligned((size_t)bytes + 1);
        if (!j->out[i].data)
            err = yk_fail(why, YK_NOMEM, "no memory to judge the model");
        if (strcmp(j->c.graph->values[plan->out[i]].name, j->c.output) == 0)
            j->result = i;
    }
    return err;
}

yk_err judge_open(const struct judge_config *c, struct judge **out, struct yk_diag *why)
{
    const struct graph *g = c->graph;
    struct judge *j = yk_xalloc(sizeof *j);
    j->c = *c;
    j->score.classes = grad_loss_has_ids(c->loss);
    j->batch_dim = graph_batch_dim(g, &j->fixed_batch);
    j->microbatch = j->batch_dim < 0 ? j->fixed_batch : YK_MIN(c->microbatch, YK_MAX(c->samples, 1));
    j->sizes = yk_xalloc(((size_t)g->n_syms + 1) * sizeof *j->sizes);
    for (int32_t i = 0; i < g->n_syms; i++) {
        int32_t sym = graph_find_sym(c->like, g->syms[i]);
        j->sizes[i] = sym >= 0 ? c->like_sizes[sym] : 1;
    }
    if (j->batch_dim >= 0)
        j->sizes[j->batch_dim] = j->microbatch;
    /* Weights are read where they are: folded or packed ones would be a second model beside it. */
    void **where_they_are = yk_try_alloc((size_t)g->n_values + 1, sizeof *where_they_are);
    struct exec_config config = {
        .graph = g, .max_sizes = j->sizes, .backends = c->backends, .variable = where_they_are};
    yk_err err =
        where_they_are ? exec_open(&config, &j->exec, why) : yk_fail(why, YK_NOMEM, "no memory to judge the model");
    free(where_they_are);
    if (!err)
        err = open_outputs(j, why);
    if (err)
        judge_close(j);
    else
        *out = j;
    return err;
}

void judge_close(struct judge *j)
{
    if (!j)
        return;
    for (int32_t i = 0; j->out && i < exec_plan(j->exec)->n_out; i++)
        free(j->out[i].data);
    free(j->out);
    free(j->in);
    exec_close(j->exec);
    free(j->sizes);
    free(j);
}

int64_t judge_microbatch(const struct judge *j)
{
    return j->microbatch;
}

int64_t judge_bytes(const struct judge *j)
{
    const struct memplan *plan = exec_plan(j->exec);
    return exec_held_bytes(j->exec) + plan->out_bytes;
}

yk_err judge_add(
    struct judge *j, const struct data_set *set, const void *x, const void *y, int64_t count, struct yk_diag *why)
{
    const struct memplan *plan = exec_plan(j->exec);
    const struct graph *g = j->c.graph;
    const struct shapes *shapes;
    if (j->batch_dim >= 0)
        j->sizes[j->batch_dim] = count;
    else if (count != j->fixed_batch)
        return YK_OK;
    yk_err err = exec_sizes(j->exec, j->sizes, &shapes, why);
    if (err)
        return err;
    for (int32_t i = 0; i < plan->n_in; i++) {
        int input = 0;
        while (g->inputs[input] != plan->in[i])
            input++;
        j->in[i] = (struct tensor){shapes->of[plan->in[i]], (char *)(uintptr_t)x + data_at(set, input, count)};
    }
    for (int32_t i = 0; i < plan->n_out; i++)
        j->out[i].shape = shapes->of[plan->out[i]];
    err = exec_run(j->exec, j->sizes, j->in, j->out, 0, why);
    if (err)
        return err;
    if (j->score.classes)
        score_ids(&j->c, &j->out[j->result], y, &j->score);
    else
        score_values(&j->c, &j->out[j->result], y, &j->score);
    return YK_OK;
}

struct judge_score judge_score(const struct judge *j)
{
    struct judge_score s = j->score;
    if (s.samples)
        s.loss /= (double)s.samples;
    return s;
}
