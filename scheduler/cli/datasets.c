#include "scheduler/cli/datasets.h"

#include "common/npy.h"
#include "scheduler/cli/images.h"
#include "scheduler/cli/rest.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MAX_NUMBERS 4096
#define UPLOAD_LIMIT ((int64_t)4 << 30)

yk_err datasets_numbers(const char *flag, const char *text, struct datasets_numbers *out, struct yk_diag *why)
{
    *out = (struct datasets_numbers){0};
    if (!text)
        return YK_OK;
    double *at = yk_xalloc(MAX_NUMBERS * sizeof *at);
    int n = 0;
    for (const char *p = text;; p++) {
        char *end;
        errno = 0;
        double v = strtod(p, &end);
        if (end == p || errno || !isfinite(v) || n == MAX_NUMBERS || (*end && *end != ',')) {
            free(at);
            return yk_fail(why, YK_INVAL, "--%s=%s: numbers separated by commas", flag, text);
        }
        at[n++] = v;
        if (!*end)
            break;
        p = end;
    }
    out->at = at;
    out->n = n;
    return YK_OK;
}

/* One that was asked for must be there; the default says nothing of a set without parts. free() it. */
static char *split_of(const struct cli *c)
{
    bool asked = conf_given(&c->args, "split") && !strchr(c->o.split, ':');
    return yk_xasprintf("%s%s", asked ? "only:" : "", c->o.split);
}

yk_err datasets_open(struct cli *c, const struct data_input *inputs, int32_t n, const struct json *stored,
    struct data_set **out, struct yk_diag *why)
{
    struct datasets_numbers mean = {0}, std = {0};
    struct preprocess how;
    struct data_set *set = NULL;
    bool asked = false;
    yk_err err = datasets_numbers("mean", c->o.mean, &mean, why);
    if (!err)
        err = datasets_numbers("std", c->o.std, &std, why);
    if (!err)
        err = images_settings(c, stored, false, &how, &asked, why);
    char *split = c->o.split ? split_of(c) : NULL;
    if (!err) {
        struct data_options o = {
            .split = split, .mean = mean.at, .std = std.at, .n_mean = mean.n, .n_std = std.n, .preprocess = &how};
        err = data_open_inputs(c->o.data, &o, inputs, n, &set, why);
    }
    if (!err && asked && !data_note(set))
        err = images_none(c, c->o.data, false, why);
    if (err) {
        data_close(set);
    } else {
        images_note(set);
        *out = set;
    }
    free(split);
    free(mean.at);
    free(std.at);
    return err;
}

static yk_err upload_array(
    struct cli *c, const char *label, const struct shape *shape, const void *data, char hash[65], struct yk_diag *why)
{
    struct yk_buf file = {0};
    yk_err err = npy_header(shape, &file);
    yk_buf_add(&file, data, (size_t)shape_bytes(shape));
    if (!err && file.failed)
        err = yk_fail(why, YK_NOMEM, "no memory to upload %s", label);
    if (!err)
        err = cli_rest_upload(c, label, file.data, file.len, hash, why);
    yk_buf_free(&file);
    return err;
}

/* The shape of that many samples. */
static yk_err add_samples(struct shape *s, int64_t count, struct yk_diag *why)
{
    if (s->rank == YK_MAX_RANK)
        return yk_fail(why, YK_LIMIT, "samples of %d dimensions; the limit is %d", s->rank, YK_MAX_RANK - 1);
    memmove(s->dims + 1, s->dims, (size_t)s->rank * sizeof s->dims[0]);
    s->dims[0] = count;
    s->rank++;
    return YK_OK;
}

/* Opens --data for a model of yoked. inputs: free() it; it borrows from model, which is json_free()d after it. */
static yk_err open_for_upload(
    struct cli *c, struct json **model, struct data_input **inputs, struct data_set **set, struct yk_diag *why)
{
    yk_err err = images_model(c, c->args.at[0], model, why);
    if (err)
        return err;
    const struct json *list = json_find(*model, "inputs");
    size_t n = json_len(list);
    if (n < 1)
        return yk_fail(why, YK_UNSUPPORTED, "model '%s' has no input", c->args.at[0]);
    *inputs = yk_xalloc(n * sizeof **inputs);
    for (size_t i = 0; i < n; i++) {
        (*inputs)[i].name = json_str(json_find(json_at(list, i), "name"), "");
        images_target(*model, i, &(*inputs)[i].target);
    }
    return datasets_open(c, *inputs, (int32_t)n, json_find(*model, "preprocess"), set, why);
}

/* {"blob": ..} of one input, {"inputs": {NAME: ..}} of several, from what data_at says of count samples. */
static yk_err upload_inputs(struct cli *c, const struct data_set *set, const struct data_input *inputs,
    const uint8_t *x, struct json_out *out, struct yk_diag *why)
{
    int64_t count = data_count(set);
    int n = data_inputs(set);
    yk_err err = YK_OK;
    json_put_key(out, n > 1 ? "inputs" : "blob");
    if (n > 1)
        json_open(out, '{');
    for (int i = 0; !err && i < n; i++) {
        struct shape shape = *data_sample_of(set, i);
        char hash[65] = "";
        if (!(err = add_samples(&shape, count, why)))
            err = upload_array(c, n > 1 ? inputs[i].name : c->o.data, &shape, x + data_at(set, i, count), hash, why);
        if (n > 1)
            json_put_key(out, inputs[i].name);
        json_put_str(out, hash);
    }
    if (n > 1)
        json_close(out, '}');
    return err;
}

/* What is to be done to uploaded pictures must be possible with the pixels that they became. */
static yk_err check_augment(struct cli *c, const struct data_set *set, bool *any, struct yk_diag *why)
{
    struct augment a = {0};
    yk_err err = c->o.train.augment ? augment_spec_parse(c->o.train.augment, &a, why) : YK_OK;
    *any = augment_spec_any(&a);
    if (!err && a.smallest > 0 && data_note(set))
        err = yk_fail(why, YK_UNSUPPORTED,
            "--augment: random-resized-crop cuts the picture files themselves, an upload has the pixels that they "
            "become: put %s under a --data-root of an agent and name it with --source, or use pad-crop",
            c->o.data);
    return err ? err : data_augmentable(set, &a, why);
}

/* "pixels": what an augmentation must know of samples that were images. */
static void put_pixels(const struct data_set *set, struct json_out *out)
{
    struct data_pixels *p = yk_xalloc(sizeof *p);
    if (data_pixels(set, p)) {
        json_put_key(out, "pixels");
        json_open(out, '{');
        json_put_key(out, "black");
        json_open(out, '[');
        for (int i = 0; i < p->n; i++)
            json_put_f64(out, p->black[i]);
        json_close(out, ']');
        json_put_key(out, "layout");
        json_put_str(out, p->nhwc ? "nhwc" : "nchw");
        json_close(out, '}');
    }
    free(p);
}

/* The set as a client sees it: read whole, so that any format becomes .npy files. */
static yk_err submit_upload(struct cli *c, struct json_out *out, struct yk_diag *why)
{
    struct data_set *set = NULL;
    struct data_input *inputs = NULL;
    struct json *model = NULL;
    void *x = NULL, *y = NULL;
    char hash[65];
    bool augmented;
    struct shape labels = {0};
    yk_err err = open_for_upload(c, &model, &inputs, &set, why);
    if (err || (err = check_augment(c, set, &augmented, why)))
        goto out;
    const struct shape *truth = data_truth(set);
    if (truth && (labels = *truth, err = add_samples(&labels, data_count(set), why)))
        goto out;
    int64_t x_bytes = data_at(set, data_inputs(set), data_count(set)), more = truth ? shape_bytes(&labels) : 0;
    int64_t bytes = x_bytes < 0 || more < 0 ? INT64_MAX : x_bytes + YK_MIN(more, INT64_MAX - x_bytes);
    if (bytes > UPLOAD_LIMIT) {
        err = yk_fail(why, YK_LIMIT,
            "%s: %lld samples are %lld bytes; the limit of an upload is %lld: put them under a --data-root of an agent "
            "and name it with --source",
            c->o.data, (long long)data_count(set), (long long)bytes, (long long)UPLOAD_LIMIT);
        goto out;
    }
    x = yk_try_aligned((size_t)x_bytes + 1);
    y = yk_try_aligned((size_t)more + 1);
    if (!x || !y) {
        err = yk_fail(why, YK_NOMEM, "no memory for the data set");
        goto out;
    }
    if ((err = data_read(set, 0, data_count(set), x, truth ? y : NULL, why)))
        goto out;
    json_put_key(out, "data");
    json_open(out, '{');
    if ((err = upload_inputs(c, set, inputs, x, out, why)) ||
        (truth && (err = upload_array(c, "labels", &labels, y, hash, why))))
        goto out;
    if (truth) {
        json_put_key(out, "labels");
        json_put_str(out, hash);
    }
    if (augmented)
        put_pixels(set, out);
    json_close(out, '}');
out:
    data_close(set);
    free(inputs);
    json_free(model);
    free(x);
    free(y);
    return err;
}

static yk_err put_numbers(struct json_out *out, const char *key, const char *text, struct yk_diag *why)
{
    struct datasets_numbers numbers;
    yk_err err = datasets_numbers(key, text, &numbers, why);
    if (err || !numbers.n)
        return err;
    json_put_key(out, key);
    json_open(out, '[');
    for (int i = 0; i < numbers.n; i++)
        json_put_f64(out, numbers.at[i]);
    json_close(out, ']');
    free(numbers.at);
    return YK_OK;
}

/* The model's own preprocessing with the flags over it; nothing if there are none, for then yoked knows. */
static yk_err put_preprocess(struct cli *c, struct json_out *out, struct yk_diag *why)
{
    struct preprocess how;
    struct json *model = NULL;
    bool asked;
    yk_err err = images_settings(c, NULL, false, &how, &asked, why);
    if (err || !asked)
        return err;
    err = images_model(c, c->args.at[0], &model, why);
    if (!err)
        err = images_settings(c, json_find(model, "preprocess"), false, &how, &asked, why);
    json_free(model);
    if (err)
        return err;
    json_put_key(out, "preprocess");
    preprocess_put(&how, out);
    return YK_OK;
}

yk_err datasets_submit(struct cli *c, struct json_out *out, struct yk_diag *why)
{
    if (!c->o.source || access(c->o.data, R_OK) == 0)
        return submit_upload(c, out, why);
    json_put_key(out, "data");
    json_open(out, '{');
    json_put_key(out, "name");
    json_put_str(out, c->o.data);
    char *split = split_of(c);
    json_put_key(out, "split");
    json_put_str(out, split);
    free(split);
    yk_err err = put_numbers(out, "mean", c->o.mean, why);
    if (!err)
        err = put_numbers(out, "std", c->o.std, why);
    if (!err)
        err = put_preprocess(c, out, why);
    json_close(out, '}');
    return err;
}
