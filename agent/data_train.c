/* What training asks of a data set beyond reading it in order. */
#include "agent/data_priv.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LABEL_BLOCK 4096

/* ---- splits ---- */

static bool split_known(const char *split)
{
    static const char *const known[] = {"train", "t10k", "test", "val"};
    for (size_t i = 0; i < YK_COUNT(known); i++)
        if (strcmp(split, known[i]) == 0)
            return true;
    return false;
}

/* "SHARE:SEED[:SPLIT]"; what is left is the split's name, or NULL. */
static bool read_held(const char *text, struct data_split *out, const char **name)
{
    char *end;
    errno = 0;
    out->share = strtod(text, &end);
    if (end == text || *end != ':' || !(out->share > 0 && out->share < 1) || end[1] < '0' || end[1] > '9')
        return false;
    out->seed = strtoull(end + 1, &end, 10);
    *name = *end ? end + 1 : "train";
    return !errno && (!*end || *end == ':');
}

yk_err data_split_read(const char *text, struct data_split *out, struct yk_diag *why)
{
    const char *name = text ? text : "t10k";
    bool good = true;
    *out = (struct data_split){0};
    if (strncmp(name, "held:", 5) == 0) {
        good = read_held(name + 5, out, &name);
    } else if (strncmp(name, "only:", 5) == 0) {
        out->only = true;
        name += 5;
    }
    if (!good || !split_known(name))
        return yk_fail(why, YK_INVAL,
            "split '%s': train, val, test or t10k; only:SPLIT; or held:SHARE:SEED[:SPLIT], what a training holds out",
            text ? text : "t10k");
    snprintf(out->name, sizeof out->name, "%s", name);
    return YK_OK;
}

/* ---- augmentations ---- */

static bool view_of(const struct data_set *d, struct augment_view *out)
{
    if (d->images) {
        data_images_view(d->images, out);
        return true;
    }
    if (!d->black || (d->sample.dtype != DT_F32 && !d->told))
        return false;
    *out = (struct augment_view){.channels = d->channels,
        .height = d->sample.dims[d->nhwc ? 0 : 1],
        .width = d->sample.dims[d->nhwc ? 1 : 2],
        .nhwc = d->nhwc,
        .element = dtype_bytes(d->sample.dtype),
        .black = d->black}; /* of bytes zeros, in any type */
    return true;
}

bool data_pixels(const struct data_set *d, struct data_pixels *out)
{
    struct augment_view v;
    if (!view_of(d, &v))
        return false;
    out->n = (int)v.channels;
    out->nhwc = v.nhwc;
    for (int c = 0; c < out->n; c++)
        out->black[c] = v.element == 1 ? ((const uint8_t *)v.black)[c] : ((const float *)v.black)[c];
    return true;
}

yk_err data_augmentable(const struct data_set *d, const struct augment *a, struct yk_diag *why)
{
    struct augment_view v;
    char text[128];
    if (!augment_spec_any(a))
        return YK_OK;
    if (d->next)
        return yk_fail(why, YK_INVAL, "--augment is for models of one input, the set is for %d", data_inputs(d));
    shape_text(&d->sample, text, sizeof text);
    if (!view_of(d, &v))
        return yk_fail(why, YK_INVAL, "--augment needs images (channels, height, width), the samples are %s", text);
    if (a->smallest > 0 && !d->images)
        return yk_fail(
            why, YK_UNSUPPORTED, "--augment: random-resized-crop is for JPEG and PNG files; for this set use pad-crop");
    if (a->pad && (a->pad > v.height || a->pad > v.width))
        return yk_fail(
            why, YK_INVAL, "--augment: pad-crop:%" PRId64 " is more than the images have, which are %s", a->pad, text);
    return YK_OK;
}

yk_err data_read_augmented(
    struct data_set *d, const struct augment *a, const struct augment_key *k, void *x, void *y, struct yk_diag *why)
{
    struct augment_view v;
    struct augment_draw draw;
    bool move = augment_spec_any(a) && (a->pad || a->flip);
    yk_err err = move ? data_augmentable(d, a, why) : YK_OK;
    if (err)
        return err;
    if (move && !d->scratch && !(d->scratch = yk_try_aligned((size_t)shape_bytes(&d->sample) + 1)))
        return yk_fail(why, YK_NOMEM, "no memory for a sample of %" PRId64 " bytes", shape_bytes(&d->sample));
    void *to = move ? d->scratch : x;
    if (d->images && a && a->smallest > 0) {
        struct augment_key place = *k;
        if (k->sample < 0 || k->sample >= data_count(d))
            return yk_fail(why, YK_INVAL, "sample %" PRId64 " of a set of %" PRId64, k->sample, data_count(d));
        place.sample = data_place(d, k->sample);
        err = data_images_read_one(d->images, a, &place, to, y, why);
    } else {
        err = data_read_alone(d, k->sample, 1, to, y, why);
    }
    if (err || !move)
        return err;
    view_of(d, &v);
    augment_draw(a, k, &draw);
    augment_apply(a, &draw, &v, to, x);
    return YK_OK;
}

/* ---- labels ---- */

static yk_err out_of_range(
    const struct data_set *d, int64_t label, int64_t element, int64_t classes, struct yk_diag *why)
{
    int64_t sample = d->truth_elements ? element / d->truth_elements : 0;
    return yk_fail(why, YK_FORMAT,
        "%s: label %" PRId64 " of sample %" PRId64 " at offset %zu; the model has %" PRId64 " classes: 0 to %" PRId64,
        d->y_file.path, label, sample, d->y_at + (size_t)element * dtype_bytes(d->y_dtype), classes, classes - 1);
}

static yk_err check_file(struct data_set *d, int64_t classes, const int64_t *ignore, struct yk_diag *why)
{
    int64_t total = d->count * d->truth_elements;
    size_t width = dtype_bytes(d->y_dtype);
    yk_err err = YK_OK;
    bool counts = total == 0;
    uint8_t *block = yk_xalloc(LABEL_BLOCK * width);
    for (int64_t i = 0; !err && i < total;) {
        int64_t n = YK_MIN(total - i, LABEL_BLOCK);
        err = data_files_read(&d->y_file, d->y_at + (size_t)i * width, (size_t)n * width, block, why);
        for (int64_t k = 0; !err && k < n; k++, i++) {
            int64_t label = dtype_read_int(d->y_dtype, block, k);
            bool ignored = ignore && label == *ignore;
            counts = counts || !ignored;
            if ((label < 0 || label >= classes) && !ignored)
                err = out_of_range(d, label, i, classes, why);
        }
    }
    free(block);
    if (!err && !counts)
        return yk_fail(why, YK_INVAL, "%s: every label is %" PRId64 ", which does not count (--ignore-index)",
            d->y_file.path, *ignore);
    return err;
}

static yk_err check_labels(struct data_set *d, int64_t classes, const int64_t *ignore, struct yk_diag *why)
{
    if (!d->has_truth)
        return yk_fail(why, YK_INVAL, DATA_NO_TRUTH);
    if (d->truth.dtype != DT_I64)
        return yk_fail(why, YK_INVAL, "%s: values of %s; this loss takes class ids: int64, int32 or uint8",
            d->y_file.path, dtype_name(d->y_dtype));
    if (d->images && data_images_classes(d->images) != classes)
        return yk_fail(why, YK_INVAL, "%" PRId64 " class folders ('%s' to '%s'), the model has %" PRId64 " classes",
            data_images_classes(d->images), data_images_class(d->images, 0),
            data_images_class(d->images, data_images_classes(d->images) - 1), classes);
    if (d->images)
        return YK_OK;
    if (d->cifar)
        return data_cifar_check(d->cifar, classes, ignore, why);
    return check_file(d, classes, ignore, why);
}

yk_err data_check_labels(struct data_set *d, int64_t classes, const int64_t *ignore, struct yk_diag *why)
{
    yk_err err = check_labels(d, classes, ignore, why);
    return err && d->path ? yk_wrap(why, err, "%s", d->path) : err;
}

/* ---- two sets ---- */

static yk_err same(const char *what, const struct shape *a, const struct shape *b, struct yk_diag *why)
{
    char text[2][128];
    if (shape_equal(a, b))
        return YK_OK;
    shape_text(a, text[0], sizeof text[0]);
    shape_text(b, text[1], sizeof text[1]);
    return yk_fail(why, YK_INVAL, "%s are %s in training and %s in validation", what, text[0], text[1]);
}

yk_err data_match(const struct data_set *d, const struct data_set *other, struct yk_diag *why)
{
    yk_err err = same("samples", &d->sample, &other->sample, why);
    for (const struct data_set *a = d->next, *b = other->next; !err && a && b; a = a->next, b = b->next)
        err = same("samples", &a->sample, &b->sample, why);
    if (!err && d->has_truth != other->has_truth)
        err = yk_fail(why, YK_INVAL, "the %s set has no labels", d->has_truth ? "validation" : "training");
    if (!err && d->has_truth)
        err = same("labels", &d->truth, &other->truth, why);
    if (err || !d->images || !other->images)
        return err;
    int64_t n = data_images_classes(d->images), m = data_images_classes(other->images);
    for (int64_t i = 0; i < YK_MAX(n, m); i++) {
        const char *a = i < n ? data_images_class(d->images, i) : NULL;
        const char *b = i < m ? data_images_class(other->images, i) : NULL;
        if (a && b && strcmp(a, b) == 0)
            continue;
        bool first = !b || (a && strcmp(a, b) < 0); /* both are sorted: the smaller is what the other lacks */
        return yk_fail(why, YK_INVAL, "class folder '%s' is only in the %s set: class ids would not agree",
            first ? a : b, first ? "training" : "validation");
    }
    return YK_OK;
}
