#include "agent/source_data.h"

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
    if (!given && g->n_inputs != 1)
        return yk_fail(why, YK_UNSUPPORTED, "a data set gives one input, the model has %d ('%.80s' ...)", g->n_inputs,
            g->n_inputs ? input_name(p, 0) : "");
    if (given && given != (size_t)g->n_inputs)
        return yk_fail(why, YK_INVAL, "%zu inputs of the model's %d", given, g->n_inputs);
    d->n = g->n_inputs;
    d->at = yk_xalloc(((size_t)d->n + 1) * sizeof *d->at);
    for (size_t i = 0; i < given; i++) {
        const struct wire_input *in = &w->inputs.at[i];
        int32_t k = 0;
        while (k < g->n_inputs && g->inputs[k] != in->value)
            k++;
        if (k == g->n_inputs)
            return yk_fail(why, YK_INVAL, "value %lld is not an input of the graph", (long long)in->value);
        for (size_t j = 0; j < i; j++)
            if (d->at[j].position == k)
                return yk_fail(why, YK_INVAL, "input '%.80s' comes twice", input_name(p, k));
        if (!hash_is_hex(in->data))
            return yk_fail(why, YK_FORMAT, "the hash of input '%.80s' is malformed", input_name(p, k));
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

static yk_err open_one(struct source_data *d, struct source_input *in, const struct pipeline *p,
    const struct wire_run *w, struct yk_diag *why)
{
    struct preprocess how;
    struct data_target target;
    struct data_options o = {.split = w->split[0] ? w->split : NULL,
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
    if (w->inputs.n > 1) /* pixels and their normalisation belong to a single input */
        o.n_mean = o.n_std = 0;
    bool labels = d->labels && !d->labelled;
    err = in->blob ? data_open_memory(cache_data(in->blob), cache_len(in->blob), labels ? cache_data(d->labels) : NULL,
                         labels ? cache_len(d->labels) : 0, &o, &in->set, why)
                   : data_open_below((const char *const *)p->agent->data_roots, w->data, &o, &in->set, why);
    if (!err)
        err = check_samples(p, in, why);
    d->images = d->images || (!err && data_note(in->set));
    if (!err && data_note(in->set))
        snprintf(d->note, sizeof d->note, "%s", data_note(in->set));
    if (!err && data_labelled(in->set))
        d->labelled = in->set;
    return err;
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
    return YK_OK;
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
    free(d->at);
    *d = (struct source_data){0};
}
