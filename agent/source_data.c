#include "agent/source_data.h"

#include "agent/training.h"
#include "common/hash.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *input_name(const struct pipeline *p, int32_t position)
{
    return p->graph->values[p->graph->inputs[position]].name;
}

yk_err source_data_plan(struct source_data *d, const struct pipeline *p, const struct wire_run *w, struct yk_diag *why)
{
    const struct graph *g = p->graph;
    size_t given = w->inputs.n;
    int32_t n = g->n_inputs - (p->training ? 2 : 0); /* target and divisor are made here */
    if (n < 1)
        return yk_fail(why, YK_UNSUPPORTED, "the model has no input");
    if (given && given != (size_t)n)
        return yk_fail(why, YK_INVAL, "%zu inputs of the model's %d", given, n);
    d->step = -1;
    d->n = n;
    d->at = yk_xalloc(((size_t)d->n + 1) * sizeof *d->at);
    for (int32_t i = 0; i < n; i++)
        d->at[i].position = i;
    for (size_t i = 0; i < given; i++) {
        const struct wire_input *in = &w->inputs.at[i];
        int32_t k = 0;
        while (k < n && g->inputs[k] != in->value)
            k++;
        if (k == n)
            return yk_fail(why, YK_INVAL, "value %lld is not an input of the graph", (long long)in->value);
        for (size_t j = 0; j < i; j++)
            if (d->at[j].position == k)
                return yk_fail(why, YK_INVAL, "input '%.80s' comes twice", input_name(p, k));
        if (!hash_is_hex(in->data))
            return yk_fail(why, YK_FORMAT, "the hash of input '%.80s' is malformed", input_name(p, k));
        if (p->training && in->whole)
            return yk_fail(
                why, YK_INVAL, "input '%.80s' is not by sample: it cannot be trained with", input_name(p, k));
        d->at[i].position = k;
        d->at[i].whole = in->whole;
    }
    return YK_OK;
}

/* A sample of the set is what a row of the input takes. */
static yk_err check_samples(const struct pipeline *p, const struct source_input *in, struct yk_diag *why)
{
    const struct shape *want = &p->at[0].shapes.of[p->graph->inputs[in->position]], *have = data_sample(in->set);
    struct shape row = {.dtype = want->dtype, .rank = YK_MAX(want->rank - 1, 0)};
    memcpy(row.dims, want->dims + 1, (size_t)row.rank * sizeof *row.dims);
    if (want->rank >= 1 && shape_equal(&row, have))
        return YK_OK;
    char a[160], b[160];
    shape_text(have, a, sizeof a);
    shape_text(&row, b, sizeof b);
    return yk_fail(why, YK_INVAL, "a sample of the data is %s, the model's input '%.80s' takes %s", a,
        input_name(p, in->position), b);
}

static yk_err check_whole(const struct pipeline *p, const struct source_input *in, struct yk_diag *why)
{
    const struct shape *want = &p->at[0].shapes.of[p->graph->inputs[in->position]], *have = &in->npy.shape;
    if (shape_equal(want, have))
        return YK_OK;
    char a[160], b[160];
    shape_text(have, a, sizeof a);
    shape_text(want, b, sizeof b);
    return yk_fail(
        why, YK_INVAL, "the data is %s, the model's input '%.80s' takes %s", a, input_name(p, in->position), b);
}

/* What an upload says of its pixels. *out: free() it; NULL if that is nothing. */
static yk_err pixels_of(const struct source_data *d, const struct source_input *in, const struct wire_run *w,
    struct data_pixels **out, struct yk_diag *why)
{
    *out = NULL;
    if (!w->black.n)
        return YK_OK;
    if (d->n > 1 || !in->blob)
        return yk_fail(why, YK_INVAL, "pixels are said of uploaded data of one input");
    if (w->black.n > DATA_MAX_CHANNELS)
        return yk_fail(why, YK_LIMIT, "black has %zu values; the limit is %d", w->black.n, DATA_MAX_CHANNELS);
    struct data_pixels *p = yk_xalloc(sizeof *p);
    p->n = (int)w->black.n;
    p->nhwc = w->nhwc;
    memcpy(p->black, w->black.at, w->black.n * sizeof *p->black);
    *out = p;
    return YK_OK;
}

static yk_err open_one(struct source_data *d, struct source_input *in, const struct pipeline *p,
    const struct wire_run *w, struct yk_diag *why)
{
    struct preprocess how;
    struct data_target target;
    struct data_options o = {.input = !in->blob && d->n > 1 ? input_name(p, in->position) : NULL,
        .samples_only = in != d->at,
        .split = w->split[0] ? w->split : NULL,
        .preprocess = &how,
        .target = &target,
        .mean = w->mean.at,
        .n_mean = (int)w->mean.n,
        .std = w->std.at,
        .n_std = (int)w->std.n};
    if (in->whole) {
        size_t len = cache_len(in->blob);
        yk_err err = npy_parse(cache_data(in->blob), len, (int64_t)len, &in->npy, why);
        return err ? yk_wrap(why, err, "input '%.80s'", input_name(p, in->position)) : check_whole(p, in, why);
    }
    preprocess_init(&how);
    data_target_of(p->graph, p->graph->inputs[in->position], &target);
    const struct shape *full = &p->at[0].shapes.of[p->graph->inputs[in->position]];
    for (int i = 1; i < target.rank && target.rank == full->rank; i++)
        target.dims[i] = full->dims[i]; /* named ones too: the stages are loaded for these sizes */
    yk_err err = YK_OK;
    if (w->preprocess[0] && (err = preprocess_parse_text(w->preprocess, strlen(w->preprocess), &how, why)))
        return yk_wrap(why, err, "preprocessing");
    if (d->n > 1 && (o.n_mean || o.n_std))
        return yk_fail(why, YK_INVAL, "mean and std are for models of one input, this one has %d", d->n);
    bool labels = d->labels && !d->labelled;
    struct data_pixels *pixels;
    if ((err = pixels_of(d, in, w, &pixels, why)))
        return err;
    o.pixels = pixels;
    err = in->blob ? data_open_memory(cache_data(in->blob), cache_len(in->blob), labels ? cache_data(d->labels) : NULL,
                         labels ? cache_len(d->labels) : 0, &o, &in->set, why)
                   : data_open_below((const char *const *)p->agent->data_roots, w->data, &o, &in->set, why);
    free(pixels);
    if (!err && w->images_only && !data_note(in->set))
        err = yk_fail(why, YK_INVAL,
            "the data holds no JPEG or PNG: --preset, --preprocess, --resize, --crop and --interpolation (REST: "
            "\"preprocess\") are for images: leave them out");
    if (!err)
        err = check_samples(p, in, why);
    d->images = d->images || (!err && data_note(in->set));
    if (!err && data_note(in->set))
        snprintf(d->note, sizeof d->note, "%s", data_note(in->set));
    if (!err && data_labelled(in->set))
        d->labelled = in->set;
    return err;
}

/* ---- training ---- */

/* The truth of the set is what the graph's target takes, and class ids are the model's. */
static yk_err check_truth(struct source_data *d, const struct pipeline *p, struct yk_diag *why)
{
    const struct pipeline_training *t = p->training;
    struct data_set *set = d->at[0].set;
    const struct shape *want = &p->at[0].shapes.of[p->graph->inputs[t->target]], *have = data_truth(set);
    const struct shape *scores = &p->at[0].shapes.of[p->graph->outputs[t->scores]];
    struct shape row = {.dtype = want->dtype, .rank = YK_MAX(want->rank - 1, 0)};
    char a[160], b[160];
    memcpy(row.dims, want->dims + 1, (size_t)row.rank * sizeof *row.dims);
    if (grad_loss_has_ids((enum grad_loss)t->config.loss) && scores->rank >= 2)
        return data_check_labels(set, scores->dims[1], &t->config.ignore_index, why);
    if (shape_equal(&row, have))
        return YK_OK;
    shape_text(have, a, sizeof a);
    shape_text(&row, b, sizeof b);
    return yk_fail(why, YK_INVAL, "the truth of a sample is %s, loss %s wants %s", a,
        grad_loss_name((enum grad_loss)t->config.loss), b);
}

/* All inputs' samples in one set, which the first input then has. */
static yk_err join_inputs(struct source_data *d, const struct pipeline *p, struct yk_diag *why)
{
    for (int32_t i = 1; i < d->n; i++) {
        yk_err err = data_join(d->at[0].set, d->at[i].set, input_name(p, d->at[i].position), why);
        if (err)
            return err;
        d->at[i].set = NULL;
    }
    return YK_OK;
}

static yk_err open_training(
    struct source_data *d, const struct pipeline *p, const struct wire_run *w, struct yk_diag *why)
{
    const struct train_config *c = &p->training->config;
    struct data_set *set = d->at[0].set;
    yk_err err = join_inputs(d, p, why);
    if (err)
        return err;
    int64_t n = data_count(set), held = c->val > 0 ? sampler_share(n, c->val) : 0;
    d->batches = (struct batches){
        .set = set, .sampler = {.seed = (uint64_t)c->seed, .samples = n, .held = held, .batch = w->batch}};
    err = augment_spec_parse(c->augment ? c->augment : "", &d->batches.augment, why);
    if (!err)
        err = batches_check(&d->batches, why);
    if (!err)
        err = check_truth(d, p, why);
    if (err)
        return err;
    d->samples = sampler_count(&d->batches.sampler);
    if (p->batch_sym < 0 && (d->samples % p->full || w->batch % p->full))
        return yk_fail(why, YK_INVAL,
            "the model has a fixed batch of %lld: %lld samples in batches of %lld leave a remainder",
            (long long)p->full, (long long)d->samples, (long long)w->batch);
    int64_t bytes = data_at(set, data_inputs(set), w->batch);
    d->x = bytes < 0 ? NULL : yk_try_aligned((size_t)bytes + 1);
    d->y = yk_try_aligned((size_t)(w->batch * shape_bytes(data_truth(set))) + 1);
    return d->x && d->y ? YK_OK : yk_fail(why, YK_NOMEM, "no memory for a batch of %lld samples", (long long)w->batch);
}

static float divisor_of(const struct source_data *d, const struct pipeline *p)
{
    const struct train_config *c = &p->training->config;
    int64_t each = shape_count(data_truth(d->batches.set)), ids = 0;
    if (!grad_loss_has_ids((enum grad_loss)c->loss))
        return (float)d->count;
    for (int64_t i = 0; i < d->count * each; i++)
        ids += ((const int64_t *)d->y)[i] != c->ignore_index;
    return (float)YK_MAX(ids, (int64_t)1); /* where nothing counts all gradients are zero */
}

yk_err source_data_read_step(struct source_data *d, const struct pipeline *p, int64_t step, int64_t first,
    int64_t count, struct tensor *t, int64_t *ids, struct yk_diag *why)
{
    const struct pipeline_training *tr = p->training;
    const struct data_set *set = d->batches.set;
    size_t y_row = (size_t)shape_bytes(data_truth(set));
    if (d->step != step) {
        d->step = -1;
        yk_err err = batches_fill(&d->batches, step, d->x, d->y, &d->count, why);
        if (err)
            return err;
        d->step = step;
        d->divisor = divisor_of(d, p);
    }
    for (int32_t i = 0; i < d->n; i++) {
        size_t row = (size_t)shape_bytes(data_sample_of(set, i));
        memcpy(t[d->at[i].position].data, d->x + data_at(set, i, d->count) + (size_t)first * row, (size_t)count * row);
    }
    memcpy(t[tr->target].data, d->y + (size_t)first * y_row, (size_t)count * y_row);
    memcpy(t[tr->divisor].data, &d->divisor, sizeof d->divisor);
    if (ids)
        memcpy(ids, d->y + (size_t)first * y_row, (size_t)count * y_row);
    return YK_OK;
}

yk_err source_data_open(struct source_data *d, const struct pipeline *p, const struct wire_run *w, struct yk_diag *why)
{
    const struct source_input *first = NULL;
    d->samples = p->full;
    for (int32_t i = 0; i < d->n; i++) {
        struct source_input *in = &d->at[i];
        yk_err err = open_one(d, in, p, w, why);
        if (err)
            return err;
        if (in->whole)
            continue;
        int64_t n = data_count(in->set);
        if (first && n != d->samples)
            return yk_fail(why, YK_INVAL, "input '%.80s' has %lld samples, '%.80s' has %lld",
                input_name(p, first->position), (long long)d->samples, input_name(p, in->position), (long long)n);
        first = in;
        d->samples = n;
    }
    return p->training ? open_training(d, p, w, why) : YK_OK;
}

yk_err source_data_read(const struct source_data *d, int64_t first, int64_t count, int64_t full, struct tensor *t,
    int64_t *labels, struct yk_diag *why)
{
    for (int32_t i = 0; i < d->n; i++) {
        const struct source_input *in = &d->at[i];
        uint8_t *x = t[in->position].data;
        if (in->whole) {
            memcpy(x, (const uint8_t *)cache_data(in->blob) + in->npy.offset, (size_t)shape_bytes(&in->npy.shape));
            continue;
        }
        yk_err err = data_read(in->set, first, count, x, in->set == d->labelled ? labels : NULL, why);
        if (err)
            return err;
        size_t row = (size_t)shape_bytes(data_sample(in->set));
        for (int64_t k = count; k < full; k++)
            memcpy(x + (size_t)k * row, x, row);
    }
    return YK_OK;
}

void source_data_close(struct source_data *d, struct cache *cache)
{
    for (int32_t i = 0; d->at && i < d->n; i++) {
        data_close(d->at[i].set);
        if (d->at[i].blob)
            cache_release(cache, d->at[i].blob);
    }
    if (d->labels)
        cache_release(cache, d->labels);
    free(d->x);
    free(d->y);
    free(d->at);
    *d = (struct source_data){0};
}
