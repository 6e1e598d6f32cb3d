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

yk_err datasets_open(struct cli *c, const struct data_target *target, const struct json *stored, struct data_set **out,
    struct yk_diag *why)
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
    if (!err) {
        struct data_options o = {.split = c->o.split,
            .mean = mean.at,
            .std = std.at,
            .n_mean = mean.n,
            .n_std = std.n,
            .preprocess = &how,
            .target = target};
        err = data_open(c->o.data, &o, &set, why);
    }
    if (!err && asked && !data_note(set))
        err = yk_fail(why, YK_INVAL,
            "%s holds no JPEG or PNG: --preset, --preprocess, --resize, --crop and --interpolation are for images",
            c->o.data);
    if (err) {
        data_close(set);
    } else {
        images_note(set);
        *out = set;
    }
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

/* The set as a client sees it: read whole, so that any format becomes x.npy and y.npy. */
static yk_err submit_upload(struct cli *c, struct json_out *out, struct yk_diag *why)
{
    struct data_set *set = NULL;
    struct json *model = NULL;
    struct data_target target;
    void *x = NULL, *y = NULL;
    char x_hash[65], y_hash[65];
    yk_err err = images_model(c, c->args.at[0], &model, why);
    if (err)
        return err;
    images_target(model, 0, &target);
    err = datasets_open(
        c, json_len(json_find(model, "inputs")) == 1 ? &target : NULL, json_find(model, "preprocess"), &set, why);
    json_free(model);
    if (err)
        return err;
    const struct shape *truth = data_truth(set);
    struct shape shape = *data_sample(set), labels = {0};
    if ((err = add_samples(&shape, data_count(set), why)))
        goto out;
    if (truth && (labels = *truth, err = add_samples(&labels, data_count(set), why)))
        goto out;
    int64_t bytes = shape_bytes(&shape), more = truth ? shape_bytes(&labels) : 0;
    bytes = bytes < 0 || more < 0 ? INT64_MAX : bytes + YK_MIN(more, INT64_MAX - bytes);
    if (bytes > UPLOAD_LIMIT) {
        err = yk_fail(why, YK_LIMIT,
            "%s: %lld samples are %lld bytes; the limit of an upload is %lld: put them under a --data-root of an agent "
            "and name it with --source",
            c->o.data, (long long)data_count(set), (long long)bytes, (long long)UPLOAD_LIMIT);
        goto out;
    }
    x = yk_try_aligned((size_t)shape_bytes(&shape) + 1);
    y = yk_try_aligned((size_t)more + 1);
    if (!x || !y) {
        err = yk_fail(why, YK_NOMEM, "no memory for the data set");
        goto out;
    }
    if ((err = data_read(set, 0, data_count(set), x, truth ? y : NULL, why)) ||
        (err = upload_array(c, c->o.data, &shape, x, x_hash, why)) ||
        (truth && (err = upload_array(c, "labels", &labels, y, y_hash, why))))
        goto out;
    json_put_key(out, "data");
    json_open(out, '{');
    json_put_key(out, "blob");
    json_put_str(out, x_hash);
    if (truth) {
        json_put_key(out, "labels");
        json_put_str(out, y_hash);
    }
    json_close(out, '}');
out:
    data_close(set);
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
    json_put_key(out, "split");
    json_put_str(out, c->o.split);
    yk_err err = put_numbers(out, "mean", c->o.mean, why);
    if (!err)
        err = put_numbers(out, "std", c->o.std, why);
    if (!err)
        err = put_preprocess(c, out, why);
    json_close(out, '}');
    return err;
}
