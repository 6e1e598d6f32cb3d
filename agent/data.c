#include "agent/data_priv.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define BLOCK_BYTES 16384

int64_t data_count(const struct data_set *d)
{
    return d->sampler.held ? d->sampler.held : d->count;
}

int64_t data_place(const struct data_set *d, int64_t sample)
{
    return d->sampler.held ? sampler_held(&d->sampler, sample) : sample;
}

const struct shape *data_sample(const struct data_set *d)
{
    return &d->sample;
}

bool data_labelled(const struct data_set *d)
{
    return d->has_truth && d->truth.dtype == DT_I64 && d->truth.rank == 0;
}

bool data_is_split(const struct data_set *d)
{
    return d->split;
}

bool data_has_test(const struct data_set *d)
{
    return d->test;
}

const struct shape *data_truth(const struct data_set *d)
{
    return d->has_truth ? &d->truth : NULL;
}

const char *data_name(const struct data_set *d, int64_t sample)
{
    return d->images && sample >= 0 && sample < data_count(d) ? data_images_name(d->images, data_place(d, sample))
                                                              : NULL;
}

const char *data_note(const struct data_set *d)
{
    return d->images ? data_images_note(d->images) : NULL;
}

void data_target_of(const struct graph *g, int32_t value, struct data_target *out)
{
    const struct value *v = &g->values[value];
    *out = (struct data_target){.dtype = v->dtype, .rank = v->rank};
    for (int i = 0; i < v->rank; i++)
        out->dims[i] = v->dims[i].sym < 0 ? YK_MAX(v->dims[i].value, 0) : 0;
}

void data_close(struct data_set *d)
{
    if (!d)
        return;
    data_close(d->next);
    data_files_close(&d->x_file);
    data_files_close(&d->y_file);
    data_images_close(d->images);
    data_cifar_close(d->cifar);
    free(d->path);
    free(d->mean);
    free(d->std);
    free(d->black);
    free(d->scratch);
    free(d);
}

/* ---- normalisation ---- */

static yk_err per_channel(
    const char *name, const double *given, int n, int64_t channels, double **out, struct yk_diag *why)
{
    if (!given || n == 0)
        return YK_OK;
    if (n != 1 && n != channels)
        return yk_fail(why, YK_INVAL, "--%s has %d values, the images have %" PRId64 " channels", name, n, channels);
    *out = yk_xalloc((size_t)channels * sizeof **out);
    for (int64_t c = 0; c < channels; c++)
        (*out)[c] = given[n == 1 ? 0 : c];
    return YK_OK;
}

static void normalise_plane(const struct data_set *d, int64_t channel, float *x, int64_t n)
{
    double mean = d->mean ? d->mean[channel] : 0, std = d->std ? d->std[channel] : 1;
    for (int64_t k = 0; k < n; k++)
        x[k] = (float)(((double)x[k] - mean) / std);
}

/* Samples that were images elsewhere. */
static yk_err set_pixels(struct data_set *d, const struct data_pixels *p, struct yk_diag *why)
{
    char text[128];
    shape_text(&d->sample, text, sizeof text);
    bool bytes = d->sample.dtype == DT_U8;
    if (d->sample.rank != 3 || (d->sample.dtype != DT_F32 && !bytes))
        return yk_fail(why, YK_INVAL, "pixels need images (channels, height, width), the samples are %s", text);
    d->told = true;
    d->nhwc = p->nhwc;
    d->channels = d->sample.dims[p->nhwc ? 2 : 0];
    if (p->n != d->channels)
        return yk_fail(why, YK_INVAL, "black has %d values, the samples are %s, %s", p->n, text,
            p->nhwc ? "channels last" : "channels first");
    free(d->black);
    d->black = yk_xalloc((size_t)d->channels * sizeof *d->black);
    for (int c = 0; c < p->n; c++) {
        d->black[c] = (float)p->black[c];
        if (bytes && d->black[c] != 0)
            return yk_fail(why, YK_INVAL, "black is %g, the samples are bytes, whose black is 0", p->black[c]);
    }
    return YK_OK;
}

yk_err data_set_options(struct data_set *d, const struct data_options *o, struct yk_diag *why)
{
    d->channels = d->sample.rank >= 3 ? d->sample.dims[0] : 1;
    if (d->sample.rank == 3 && d->channels >= 1 && d->channels <= DATA_MAX_CHANNELS)
        d->black = yk_xalloc((size_t)d->channels * sizeof *d->black);
    if (o && o->pixels)
        return o->n_mean || o->n_std ? yk_fail(why, YK_INVAL, "these samples are normalised: no mean and std")
                                     : set_pixels(d, o->pixels, why);
    if (!o || (!o->n_mean && !o->n_std))
        return YK_OK;
    if (d->sample.dtype != DT_F32)
        return yk_fail(why, YK_INVAL, "--mean and --std need images, the data is %s", dtype_name(d->sample.dtype));
    if (d->channels < 1 || d->channels > DATA_MAX_CHANNELS)
        return yk_fail(
            why, YK_LIMIT, "%" PRId64 " channels; --mean and --std take 1 to %d", d->channels, DATA_MAX_CHANNELS);
    yk_err err = per_channel("mean", o->mean, o->n_mean, d->channels, &d->mean, why);
    if (!err)
        err = per_channel("std", o->std, o->n_std, d->channels, &d->std, why);
    for (int64_t c = 0; !err && d->std && c < d->channels; c++)
        if (!(d->std[c] > 0))
            err = yk_fail(why, YK_INVAL, "--std value %g must be above 0", d->std[c]);
    for (int64_t c = 0; !err && d->black && c < d->channels; c++)
        normalise_plane(d, c, &d->black[c], 1);
    return err;
}

/* ---- reading ---- */

static void normalise(const struct data_set *d, float *x, int64_t count)
{
    int64_t plane = d->channels > 0 ? d->sample_elements / d->channels : 0;
    for (int64_t i = 0; i < count * d->channels; i++)
        normalise_plane(d, i % d->channels, x + i * plane, plane);
}

/* Class ids as int64, values as float32. */
static yk_err read_truth(const struct data_set *d, int64_t first, int64_t count, void *y, struct yk_diag *why)
{
    size_t width = dtype_bytes(d->y_dtype), at = d->y_at + (size_t)(first * d->truth_elements) * width;
    int64_t total = count * d->truth_elements;
    _Alignas(8) uint8_t block[BLOCK_BYTES];
    yk_err err = YK_OK;
    if (d->y_dtype == DT_F32)
        return data_files_read(&d->y_file, at, (size_t)total * width, y, why);
    for (int64_t i = 0; !err && i < total;) {
        int64_t n = YK_MIN(total - i, (int64_t)(sizeof block / width));
        err = data_files_read(&d->y_file, at + (size_t)i * width, (size_t)n * width, block, why);
        for (int64_t k = 0; !err && k < n; k++, i++)
            if (d->y_dtype == DT_F64)
                ((float *)y)[i] = (float)((const double *)(const void *)block)[k];
            else
                ((int64_t *)y)[i] = dtype_read_int(d->y_dtype, block, k);
    }
    return err;
}

/* Samples that follow each other in the files. */
static yk_err read_run(struct data_set *d, int64_t first, int64_t count, void *x, void *y, struct yk_diag *why)
{
    if (d->images)
        return data_images_read(d->images, first, count, x, y, why);
    if (d->cifar) {
        yk_err failed = data_cifar_read(d->cifar, first, count, x, y, why);
        if (!failed && (d->mean || d->std))
            normalise(d, x, count);
        return failed;
    }
    size_t each = (size_t)d->sample_elements * (d->bytes ? 1 : dtype_bytes(d->sample.dtype));
    size_t at = d->x_at + (size_t)first * each, left = (size_t)count * each;
    yk_err err = YK_OK;
    if (d->bytes) {
        uint8_t block[BLOCK_BYTES];
        float *to = x;
        while (!err && left) {
            size_t n = YK_MIN(left, sizeof block);
            err = data_files_read(&d->x_file, at, n, block, why);
            for (size_t i = 0; !err && i < n; i++)
                *to++ = (float)block[i] / 255.0f;
            at += n;
            left -= n;
        }
    } else {
        err = data_files_read(&d->x_file, at, left, x, why);
    }
    if (err)
        return err;
    if (d->mean || d->std)
        normalise(d, x, count);
    return y ? read_truth(d, first, count, y, why) : YK_OK;
}

yk_err data_read_alone(struct data_set *d, int64_t first, int64_t count, void *x, void *y, struct yk_diag *why)
{
    if (first < 0 || count < 0 || first > data_count(d) - count)
        return yk_fail(why, YK_INVAL, "samples %" PRId64 "..%" PRId64 " of a set of %" PRId64, first, first + count,
            data_count(d));
    if (y && !d->has_truth)
        return yk_fail(why, YK_INVAL, "the data set has no labels%s", d->images ? ": class folders give them" : "");
    if (!d->sampler.held)
        return read_run(d, first, count, x, y, why);
    size_t x_row = (size_t)shape_bytes(&d->sample), y_row = y ? (size_t)shape_bytes(&d->truth) : 0;
    yk_err err = YK_OK;
    for (int64_t i = 0; !err && i < count; i++)
        err = read_run(d, data_place(d, first + i), 1, (uint8_t *)x + (size_t)i * x_row,
            y ? (uint8_t *)y + (size_t)i * y_row : NULL, why);
    return err;
}
