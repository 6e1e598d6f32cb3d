#include "scheduler/job_data.h"

#include "common/json.h"
#include "common/npy.h"
#include "common/samples.h"
#include "common/shapes.h"

#include <stdlib.h>
#include <string.h>

/* Names of graph inputs or dimensions as a list for people. free() it. */
static char *list_names(const char *const *names, int32_t n)
{
    struct yk_buf b = {0};
    for (int32_t i = 0; i < n; i++)
        yk_buf_printf(&b, "%s'%.60s'", i ? ", " : "", names[i]);
    yk_buf_add(&b, "", 1);
    return b.failed ? yk_xstrdup("") : (char *)b.data;
}

static yk_err given_sizes(struct job *j, const struct graph *g, struct yk_diag *why)
{
    int64_t fixed;
    int32_t batch = graph_batch_dim(g, &fixed);
    free(j->sizes);
    j->sizes = yk_xalloc(((size_t)g->n_syms + 1) * sizeof *j->sizes);
    for (int i = 0; i < j->n_given; i++) {
        int32_t sym = graph_find_sym(g, j->given[i].name);
        if (sym >= 0 && sym == batch) {
            if (j->given[i].value == j->batch)
                continue;
            return yk_fail(why, YK_INVAL,
                "--size=%.60s=%lld (REST: \"sizes\"): that is the batch, which --batch or the "
                "inputs give: %lld",
                j->given[i].name, (long long)j->given[i].value, (long long)j->batch);
        }
        if (sym < 0) {
            char *known = list_names(g->syms, g->n_syms);
            yk_fail(why, YK_INVAL, "the model has no named dimension '%.60s'; it has %s", j->given[i].name,
                g->n_syms ? known : "none");
            free(known);
            return YK_INVAL;
        }
        j->sizes[sym] = j->given[i].value;
    }
    return YK_OK;
}

/* Every named dimension of an input but the batch has a size. */
static yk_err all_sized(const struct job *j, const struct graph *g, struct yk_diag *why)
{
    int64_t fixed;
    int32_t batch = graph_batch_dim(g, &fixed);
    for (int32_t i = 0; i < g->n_inputs; i++) {
        const struct value *v = &g->values[g->inputs[i]];
        for (int32_t d = 0; d < v->rank; d++) {
            int32_t sym = v->dims[d].sym;
            if (sym >= 0 && sym != batch && j->sizes[sym] < 1)
                return yk_fail(why, YK_INVAL,
                    "dimension '%.60s' of input '%.60s' has no size: say --size=%.60s=N (REST: \"sizes\")",
                    g->syms[sym], v->name, g->syms[sym]);
        }
    }
    return YK_OK;
}

/* What was asked for; a plan that was made or given has the split that it has. */
static yk_err check_split(const struct job *j, const struct graph *g, struct yk_diag *why)
{
    int64_t fixed;
    bool any = graph_batch_dim(g, &fixed) >= 0;
    return j->plan_id || j->forced ? YK_OK : samples_split_check(j->batch, j->microbatch, any ? 0 : fixed, why);
}

/* Where samples depend on each other the batch goes through in one piece, or the answers would follow from the plan. */
static yk_err keep_whole(struct job *j, const struct graph *g, struct yk_diag *why)
{
    struct yk_diag reason = {0};
    int64_t fixed, given = j->forced ? j->forced->microbatch : j->microbatch;
    if (graph_batch_dim(g, &fixed) < 0 || j->batch < 1 || samples_independent(g, j->sizes, &reason))
        return YK_OK;
    if (given && given != j->batch)
        return yk_fail(why, YK_INVAL,
            "the samples of a batch may depend on each other (%.300s): the microbatch is the "
            "batch of %lld, not %lld",
            reason.text, (long long)j->batch, (long long)given);
    j->microbatch = j->batch;
    return YK_OK;
}

yk_err job_data_sizes(struct job *j, const struct graph *g, struct yk_diag *why)
{
    yk_err err = given_sizes(j, g, why);
    if (!err)
        err = all_sized(j, g, why);
    if (!err)
        err = check_split(j, g, why);
    return err || j->training ? err : keep_whole(j, g, why);
}

/* ---- inputs ---- */

static yk_err match_inputs(struct job *j, const struct graph *g, struct yk_diag *why)
{
    int32_t n = g->n_inputs - (j->training ? TRAINING_INPUTS : 0);
    if (j->n_inputs == 1 && !j->inputs[0].name && n == 1)
        j->inputs[0].name = yk_xstrdup(g->values[g->inputs[0]].name);
    const char **names = yk_xalloc(((size_t)n + 1) * sizeof *names);
    for (int32_t i = 0; i < n; i++)
        names[i] = g->values[g->inputs[i]].name;
    char *known = list_names(names, n);
    yk_err err = YK_OK;
    if (j->n_inputs == 1 && !j->inputs[0].name)
        err =
            yk_fail(why, YK_INVAL, "the model has %d inputs (%.200s): give each by name, --input=NAME=FILE", n, known);
    for (int i = 0; i < j->n_inputs && !err; i++) {
        int32_t k = 0;
        while (k < n && strcmp(names[k], j->inputs[i].name) != 0)
            k++;
        if (k == n)
            err = yk_fail(why, YK_INVAL, "the model has no input '%.60s'; it has %.200s", j->inputs[i].name, known);
        else
            j->inputs[i].value = g->inputs[k];
        for (int m = 0; m < i && !err; m++)
            if (j->inputs[m].value == j->inputs[i].value)
                err = yk_fail(why, YK_INVAL, "input '%.60s' is given twice", j->inputs[i].name);
    }
    for (int32_t k = 0; k < n && !err; k++) {
        int i = 0;
        while (i < j->n_inputs && j->inputs[i].value != g->inputs[k])
            i++;
        if (i == j->n_inputs)
            err = yk_fail(why, YK_INVAL, "input '%.60s' is missing; the model takes %.200s", names[k], known);
    }
    free(known);
    free(names);
    return err;
}

/* Takes the sizes of named dimensions from what was uploaded; uploaded pixels may lack the channel axis, and then say
 * nothing. */
static yk_err take_sizes(
    struct job *j, const struct graph *g, const struct value *v, const struct shape *s, struct yk_diag *why)
{
    int64_t fixed;
    int32_t batch = graph_batch_dim(g, &fixed);
    for (int32_t d = 0; v->rank == s->rank && d < v->rank; d++) {
        int32_t sym = v->dims[d].sym;
        if (sym < 0 || sym == batch)
            continue;
        if (j->sizes[sym] > 0 && j->sizes[sym] != s->dims[d])
            return yk_fail(why, YK_INVAL, "axis %d of input '%.60s' is %lld; dimension '%.60s' is already %lld", d,
                v->name, (long long)s->dims[d], g->syms[sym], (long long)j->sizes[sym]);
        if (s->dims[d] < 1)
            return yk_fail(why, YK_INVAL, "axis %d of input '%.60s' is empty", d, v->name);
        j->sizes[sym] = s->dims[d];
    }
    return YK_OK;
}

/* Its first axis is the samples. */
static bool is_samples(const struct graph *g, const struct value *v, const struct shape *s)
{
    int64_t fixed;
    int32_t batch = graph_batch_dim(g, &fixed);
    if (v->rank < 1 || s->rank < 1)
        return false;
    if (batch >= 0)
        return v->dims[0].sym == batch;
    return v->dims[0].sym < 0 && v->dims[0].value == fixed && g->n_inputs == 1;
}

static yk_err read_inputs(struct job *j, const struct graph *g, struct blobs *blobs, struct yk_diag *why)
{
    int64_t samples = -1, fixed;
    graph_batch_dim(g, &fixed);
    for (int i = 0; i < j->n_inputs; i++) {
        struct job_input *in = &j->inputs[i];
        const struct value *v = &g->values[in->value];
        const uint8_t *data;
        int64_t bytes;
        struct npy npy;
        yk_err err = blobs_map(blobs, in->data, &data, &bytes, why);
        if (!err)
            err = npy_parse(data, (size_t)bytes, bytes, &npy, why);
        if (err)
            return yk_wrap(why, err, "input '%.60s'", v->name);
        if (v->rank > 0 && npy.shape.rank < 1)
            return yk_fail(why, YK_INVAL, "input '%.60s' is a single number, not a set of samples", v->name);
        in->whole = !j->training && !is_samples(g, v, &npy.shape); /* training_make has asked for samples */
        if ((err = take_sizes(j, g, v, &npy.shape, why)))
            return err;
        if (in->whole)
            continue;
        if (samples >= 0 && npy.shape.dims[0] != samples)
            return yk_fail(why, YK_INVAL, "input '%.60s' has %lld samples, another has %lld", v->name,
                (long long)npy.shape.dims[0], (long long)samples);
        samples = npy.shape.dims[0];
    }
    j->uploaded = samples;
    if (strcmp(j->kind, "infer") == 0)
        j->batch = samples >= 0 ? samples : fixed;
    return YK_OK;
}

/* ---- outputs ---- */

void job_data_free_outputs(struct job *j)
{
    for (int32_t i = 0; i < j->n_outputs; i++) {
        free(j->outputs[i].name);
        free(j->outputs[i].path);
    }
    free(j->outputs);
    j->outputs = NULL;
    j->n_outputs = 0;
}

/* Shapes at two batches tell which outputs are by sample. */
static yk_err find_outputs(struct job *j, const struct graph *g, struct blobs *blobs, struct yk_diag *why)
{
    struct shapes at[2] = {{0}, {0}};
    int64_t fixed, *sizes = yk_xalloc(((size_t)g->n_syms + 1) * sizeof *sizes);
    bool free_batch = graph_batch_dim(g, &fixed) >= 0;
    yk_err err = YK_OK;
    int n = 0;
    for (; n < 2 && !err; n++) {
        graph_sizes(g, j->sizes, 2 + n, sizes);
        err = shapes_infer(g, sizes, NULL, &at[n], why);
    }
    bool baked = err && n == 1 && free_batch && j->batch > 0; /* exported for one batch only, perhaps this one */
    if (baked) {
        graph_sizes(g, j->sizes, j->batch, sizes);
        err = shapes_infer(g, sizes, NULL, &at[0], why);
    }
    job_data_free_outputs(j);
    j->n_outputs = err ? 0 : g->n_outputs;
    j->outputs = yk_xalloc(((size_t)g->n_outputs + 1) * sizeof *j->outputs);
    for (int32_t i = 0; i < j->n_outputs; i++) {
        const struct shape *a = &at[0].of[g->outputs[i]], *b = baked ? a : &at[1].of[g->outputs[i]];
        struct job_output *o = &j->outputs[i];
        o->name = yk_xstrdup(g->values[g->outputs[i]].name);
        o->path = i ? yk_xasprintf("%s/job-%lld.%d.npy", blobs_dir(blobs), (long long)j->id, i)
                    : yk_xasprintf("%s/job-%lld.npy", blobs_dir(blobs), (long long)j->id);
        o->whole = baked || a->rank < 1 || shape_count(a) < 0 ||
                   (free_batch ? a->dims[0] != 2 || b->dims[0] != 3 : a->dims[0] != fixed);
        o->depends = a->rank < 0 || shape_count(a) < 0;
    }
    for (int k = 0; k < n; k++)
        if (at[k].arena)
            shapes_fini(&at[k]);
    free(sizes);
    return err;
}

char *job_data_outputs_json(const struct job *j)
{
    struct yk_buf b = {0};
    struct json_out o;
    json_out_init(&o, &b, 0);
    json_open(&o, '[');
    for (int32_t i = 0; i < j->n_outputs; i++) {
        const char *slash = strrchr(j->outputs[i].path, '/');
        if (!j->outputs[i].header)
            continue;
        json_open(&o, '{');
        json_put_key(&o, "name");
        json_put_str(&o, j->outputs[i].name);
        json_put_key(&o, "file");
        json_put_str(&o, slash ? slash + 1 : j->outputs[i].path);
        json_close(&o, '}');
    }
    json_close(&o, ']');
    yk_buf_add(&b, "", 1);
    return b.failed ? yk_xstrdup("[]") : (char *)b.data;
}

/* The first input or output that only makes sense for all samples of a request at once: one that is not by sample but
 * has the batch's size elsewhere, an output that is not by sample. NULL: none. */
static const char *not_by_sample(const struct job *j, const struct graph *g)
{
    int64_t fixed;
    int32_t batch = graph_batch_dim(g, &fixed);
    for (int i = 0; i < j->n_inputs; i++) {
        const struct value *v = &g->values[j->inputs[i].value];
        for (int32_t d = 0; j->inputs[i].whole && batch >= 0 && d < v->rank; d++)
            if (v->dims[d].sym == batch)
                return v->name;
    }
    for (int32_t i = 0; j->want_outputs && i < j->n_outputs; i++)
        if (j->outputs[i].whole)
            return j->outputs[i].name;
    return NULL;
}

/* What is not by sample goes in one microbatch, so that it is what one device would give for all of them. */
static yk_err fix_microbatch(struct job *j, const struct graph *g, struct yk_diag *why)
{
    int64_t fixed, all = j->batch, given = j->forced ? j->forced->microbatch : j->microbatch;
    bool infer = strcmp(j->kind, "infer") == 0, free_batch = graph_batch_dim(g, &fixed) >= 0;
    const char *name = infer ? not_by_sample(j, g) : NULL;
    for (int32_t i = 0; j->want_outputs && i < j->n_outputs; i++) {
        const struct job_output *o = &j->outputs[i];
        if (o->depends && !infer)
            return yk_fail(why, YK_UNSUPPORTED,
                "output '%.60s' has a shape that depends on data: `yoke infer` returns such outputs, a batch job runs "
                "without them",
                o->name);
        if (o->depends && !free_batch && all != fixed)
            return yk_fail(why, YK_INVAL,
                "output '%.60s' has a shape that depends on data: a job takes the model's batch of %lld, not %lld "
                "samples",
                o->name, (long long)fixed, (long long)all);
    }
    if (!name || !free_batch || all < 1)
        return YK_OK;
    if (given && given != all)
        return yk_fail(why, YK_INVAL,
            "'%.60s' is not by sample: all %lld samples go at once, in microbatches of %lld and not %lld", name,
            (long long)all, (long long)all, (long long)given);
    j->microbatch = all;
    return YK_OK;
}

yk_err job_data_resolve(struct job *j, const struct graph *g, struct blobs *blobs, struct yk_diag *why)
{
    yk_err err = given_sizes(j, g, why);
    if (!err && j->n_inputs)
        err = match_inputs(j, g, why);
    if (!err && j->n_inputs)
        err = read_inputs(j, g, blobs, why);
    if (!err)
        err = all_sized(j, g, why);
    if (!err)
        err = check_split(j, g, why);
    if (err || j->training) /* nothing but the trained model comes out, and the split is the job's own */
        return err;
    err = find_outputs(j, g, blobs, why);
    if (!err)
        err = keep_whole(j, g, why);
    return err ? err : fix_microbatch(j, g, why);
}
