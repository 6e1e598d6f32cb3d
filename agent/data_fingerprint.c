/* What tells one data set from another of the same size, for a training that goes on. */
#include "agent/data_priv.h"
#include "common/hash.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SAMPLES 16 /* that are looked at, the first and the last among them */
#define BLOCK_BYTES 65536

/* With its end, so that what follows cannot be taken for a part of it. */
static void add_text(struct hash *h, const char *text)
{
    hash_update(h, text, strlen(text) + 1);
}

static void add_shape(struct hash *h, const struct shape *s)
{
    char text[256];
    shape_text(s, text, sizeof text);
    add_text(h, text);
}

static void add_number(struct hash *h, int64_t v)
{
    char text[32];
    snprintf(text, sizeof text, "%" PRId64, v);
    add_text(h, text);
}

static void add_names(struct hash *h, const struct data_images *images)
{
    for (int64_t i = 0, n = data_images_classes(images); i < n; i++)
        add_text(h, data_images_class(images, i));
    for (int64_t i = 0, n = data_images_count(images); i < n; i++)
        add_text(h, data_images_name(images, i));
}

/* All that y.npy or the file of labels holds. */
static yk_err add_labels(struct hash *h, const struct data_set *d, struct yk_diag *why)
{
    size_t left = (size_t)(d->count * d->truth_elements) * dtype_bytes(d->y_dtype), at = d->y_at;
    uint8_t *block = yk_xalloc(BLOCK_BYTES);
    yk_err err = YK_OK;
    while (!err && left) {
        size_t n = YK_MIN(left, (size_t)BLOCK_BYTES);
        err = data_files_read(&d->y_file, at, n, block, why);
        if (!err)
            hash_update(h, block, n);
        at += n;
        left -= n;
    }
    free(block);
    return err;
}

static yk_err add_samples(struct hash *h, struct data_set *d, struct yk_diag *why)
{
    int64_t bytes = shape_bytes(&d->sample), truth = d->has_truth ? shape_bytes(&d->truth) : 0, n = data_count(d);
    uint8_t *x = yk_try_aligned((size_t)bytes + 1), *y = yk_try_aligned((size_t)truth + 1);
    yk_err err = x && y ? YK_OK : yk_fail(why, YK_NOMEM, "no memory for a sample");
    int64_t looked = YK_MIN(n, SAMPLES);
    for (int64_t i = 0; !err && i < looked; i++) {
        int64_t at = looked > 1 ? (int64_t)((double)(n - 1) * (double)i / (double)(looked - 1)) : 0;
        err = data_read_alone(d, at, 1, x, d->has_truth ? y : NULL, why);
        if (!err) {
            hash_update(h, x, (size_t)bytes);
            hash_update(h, y, d->has_truth ? (size_t)truth : 0);
        }
    }
    free(x);
    free(y);
    return err;
}

yk_err data_fingerprint(struct data_set *d, uint8_t out[32], struct yk_diag *why)
{
    struct hash h;
    yk_err err = YK_OK;
    hash_init(&h);
    add_number(&h, data_count(d));
    for (struct data_set *s = d; !err && s; s = s->next) {
        add_shape(&h, &s->sample);
        if (s->has_truth)
            add_shape(&h, &s->truth);
        if (s->images)
            add_names(&h, s->images);
        if (s->y_file.path && s->y_dtype != DT_NONE)
            err = add_labels(&h, s, why);
        if (!err)
            err = add_samples(&h, s, why);
    }
    if (!err)
        hash_final(&h, out);
    return err && d->path ? yk_wrap(why, err, "%s", d->path) : err;
}
