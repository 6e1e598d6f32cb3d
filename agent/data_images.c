#include "agent/data_images.h"

#include "agent/data_files.h"
#include "agent/image.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

#define FILES_LIMIT ((int64_t)1 << 24)
#define CLASSES_LIMIT 65536

struct list {
    char **at;
    int64_t n;
};

struct data_images {
    char *path, *root;
    int dir;               /* -1: one file */
    struct data_files one; /* if it is one file */
    struct list names;     /* below dir */
    struct list classes;   /* folders, sorted; none: no labels */
    int32_t *labels;       /* NULL: none */
    struct preprocess how;
    int channels; /* of the samples */
    bool bytes;   /* samples are uint8 */
    int64_t height, width;
    struct shape sample;
    float values[3][256]; /* by channel of the sample */
    float black[3];
    char note[256];
};

static bool ends_in(const char *name, const char *const *endings)
{
    const char *dot = strrchr(name, '.');
    for (size_t i = 0; dot && endings[i]; i++)
        if (strcasecmp(dot, endings[i]) == 0)
            return true;
    return false;
}

bool data_images_named(const char *name)
{
    static const char *const read[] = {".jpg", ".jpeg", ".png", NULL};
    return ends_in(name, read);
}

int64_t data_images_count(const struct data_images *d)
{
    return d->names.n;
}

const struct shape *data_images_sample(const struct data_images *d)
{
    return &d->sample;
}

bool data_images_labelled(const struct data_images *d)
{
    return d->labels != NULL;
}

const char *data_images_name(const struct data_images *d, int64_t sample)
{
    return d->names.at[sample];
}

const char *data_images_note(const struct data_images *d)
{
    return d->note;
}

/* ---- folders ---- */

static void list_free(struct list *l)
{
    for (int64_t i = 0; i < l->n; i++)
        free(l->at[i]);
    free(l->at);
    *l = (struct list){0};
}

static yk_err list_add(struct list *l, int64_t limit, char *name, struct yk_diag *why)
{
    if (l->n == limit) {
        free(name);
        return yk_fail(why, YK_LIMIT, "more than %" PRId64 " entries", limit);
    }
    if ((l->n & (l->n - 1)) == 0) { /* 0, and each power of two: room for twice as many */
        char **grown = yk_try_realloc(l->at, (size_t)YK_MAX(2 * l->n, 16), sizeof *grown);
        if (!grown) {
            free(name);
            return yk_fail(why, YK_NOMEM, "no memory for more than %" PRId64 " names", l->n);
        }
        l->at = grown;
    }
    l->at[l->n++] = name;
    return YK_OK;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static bool is_folder(int dir, const struct dirent *e)
{
    struct stat st;
    if (e->d_type != DT_UNKNOWN && e->d_type != DT_LNK)
        return e->d_type == DT_DIR;
    return fstatat(dir, e->d_name, &st, 0) == 0 && S_ISDIR(st.st_mode);
}

/* The images (names with prefix in front) and folders of one folder, each sorted. */
static yk_err list_folder(
    int dir, const char *name, const char *prefix, struct list *images, struct list *folders, struct yk_diag *why)
{
    static const char *const others[] = {
        ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm", ".heic", ".avif", ".jxl", ".jp2", NULL};
    int64_t first = images->n;
    yk_err err = YK_OK;
    int fd = openat(dir, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *d = fd >= 0 ? fdopendir(fd) : NULL;
    if (!d) {
        err = yk_fail(why, yk_err_from_errno(errno), "cannot list %s: %s", name, strerror(errno));
        if (fd >= 0)
            close(fd);
        return err;
    }
    for (struct dirent *e; !err && (errno = 0, e = readdir(d));) {
        if (e->d_name[0] == '.')
            continue;
        if (is_folder(fd, e))
            err = list_add(folders, CLASSES_LIMIT, yk_xstrdup(e->d_name), why);
        else if (data_images_named(e->d_name))
            err = list_add(images, FILES_LIMIT, yk_xasprintf("%s%s", prefix, e->d_name), why);
        else if (ends_in(e->d_name, others))
            err = yk_fail(why, YK_UNSUPPORTED, "%s%s: JPEG and PNG are read; convert it", prefix, e->d_name);
    }
    if (!err && errno)
        err = yk_fail(why, YK_IO, "cannot list %s: %s", name, strerror(errno));
    closedir(d);
    if (images->n > first)
        qsort(images->at + first, (size_t)(images->n - first), sizeof *images->at, by_name);
    if (folders->n)
        qsort(folders->at, (size_t)folders->n, sizeof *folders->at, by_name);
    return err;
}

static yk_err list_class(struct data_images *d, const char *class, struct yk_diag *why)
{
    struct list inner = {0};
    char *prefix = yk_xasprintf("%s/", class);
    int fd = d->root ? openat(d->dir, class, O_PATH | O_DIRECTORY | O_CLOEXEC) : -1;
    yk_err err = YK_OK;
    if (fd >= 0 && !data_files_below(fd, d->root))
        err = yk_fail(why, YK_PERM, "%s: leads out of the data root", class);
    if (fd >= 0)
        close(fd);
    if (!err)
        err = list_folder(d->dir, class, prefix, &d->names, &inner, why);
    if (!err && inner.n)
        err = yk_fail(
            why, YK_INVAL, "%s/%s is a folder: images lie directly in the folder of their class", class, inner.at[0]);
    list_free(&inner);
    free(prefix);
    return err;
}

static yk_err list_all(struct data_images *d, struct yk_diag *why)
{
    const struct list *classes = &d->classes;
    const char *empty = NULL;
    yk_err err = list_folder(d->dir, ".", "", &d->names, &d->classes, why);
    if (!err && d->names.n && classes->n)
        err = yk_fail(why, YK_INVAL,
            "it holds both images ('%s') and folders ('%s'): give a folder of images, or of class folders",
            d->names.at[0], classes->at[0]);
    if (err || !classes->n)
        goto out;
    int64_t *ends = yk_xalloc((size_t)classes->n * sizeof *ends);
    for (int64_t c = 0; !err && c < classes->n; c++) {
        int64_t before = d->names.n;
        err = list_class(d, classes->at[c], why);
        ends[c] = d->names.n;
        if (!err && before == d->names.n && !empty)
            empty = classes->at[c];
    }
    if (!err && d->names.n && empty)
        err = yk_fail(why, YK_INVAL, "class folder '%s' has no .jpg, .jpeg or .png: fill or remove it", empty);
    if (!err && d->names.n) {
        d->labels = yk_try_alloc((size_t)d->names.n, sizeof *d->labels);
        if (!d->labels)
            err = yk_fail(why, YK_NOMEM, "no memory for %" PRId64 " labels", d->names.n);
        for (int64_t i = 0, c = 0; !err && i < d->names.n; i++) {
            while (i == ends[c])
                c++;
            d->labels[i] = (int32_t)c;
        }
    }
    free(ends);
out:
    if (!err && !d->names.n)
        err = yk_fail(why, YK_NOTFOUND, "no .jpg, .jpeg or .png in it");
    return err;
}

/* ---- reading ---- */

/* The bytes of a sample's file. */
static yk_err load(const struct data_images *d, int64_t i, uint8_t **data, size_t *len, struct yk_diag *why)
{
    struct data_files opened = {.fd = -1};
    const struct data_files *f = &d->one;
    yk_err err = YK_OK;
    uint8_t *bytes = NULL;
    if (d->dir >= 0) {
        err = data_files_open(d->dir, d->names.at[i], d->root, false, &opened, why);
        f = &opened;
    }
    if (!err && f->len > IMAGE_FILE_LIMIT)
        err = yk_fail(why, YK_LIMIT, "%s: %zu bytes; the limit of an image is %zu", f->path, f->len, IMAGE_FILE_LIMIT);
    if (!err && !(bytes = yk_try_alloc(f->len + 1, 1)))
        err = yk_fail(why, YK_NOMEM, "%s: no memory for %zu bytes", f->path, f->len);
    if (!err)
        err = data_files_read(f, 0, f->len, bytes, why);
    if (err) {
        free(bytes);
    } else {
        *data = bytes;
        *len = f->len;
    }
    data_files_close(&opened);
    return err;
}

/* Where a crop of `size` begins in n pixels: torchvision's rule, with halves rounded to even; below 0 is padding. */
static int64_t crop_begin(int64_t n, int64_t size)
{
    if (n < size)
        return -((size - n) / 2);
    int64_t half = (n - size) / 2;
    return (n - size) % 2 && half % 2 ? half + 1 : half;
}

/* What an image of height x width becomes. */
static yk_err becomes(const struct data_images *d, int64_t height, int64_t width, int64_t *h, int64_t *w,
    int64_t resized[2], struct yk_diag *why)
{
    preprocess_resized(&d->how, height, width, &resized[0], &resized[1]);
    if (resized[0] < 1 || resized[1] < 1 || resized[0] > IMAGE_PIXELS_LIMIT / resized[1])
        return yk_fail(why, YK_LIMIT,
            "%" PRId64 "x%" PRId64 " would be resized to %" PRId64 "x%" PRId64 "; the limit is %" PRId64
            " pixels: use --resize=HxW",
            height, width, resized[0], resized[1], IMAGE_PIXELS_LIMIT);
    *h = d->how.crop[0] ? d->how.crop[0] : resized[0];
    *w = d->how.crop[0] ? d->how.crop[1] : resized[1];
    return YK_OK;
}

static void store(const struct data_images *d, const uint8_t *pixels, void *to)
{
    int64_t plane = d->height * d->width;
    int n = d->channels;
    bool nhwc = d->how.layout == PREPROCESS_NHWC, swap = d->how.channels == PREPROCESS_BGR;
    for (int c = 0; c < n; c++) {
        const uint8_t *in = pixels + (swap ? n - 1 - c : c);
        int64_t at = nhwc ? c : c * plane, step = nhwc ? n : 1;
        if (d->bytes)
            for (int64_t i = 0; i < plane; i++)
                ((uint8_t *)to)[at + i * step] = in[i * n];
        else
            for (int64_t i = 0; i < plane; i++)
                ((float *)to)[at + i * step] = d->values[c][in[i * n]];
    }
}

/* The part of `in` that a random resized crop takes, resized into out. */
static yk_err resized_crop(const struct data_images *d, const struct augment *a, const struct augment_key *k,
    struct image *in, struct image *out, struct yk_diag *why)
{
    int64_t box[4];
    augment_box(a, k, in->height, in->width, box);
    size_t row = (size_t)(box[3] * in->channels), stride = (size_t)(in->width * in->channels);
    const uint8_t *from = in->pixels + (size_t)box[0] * stride + (size_t)(box[1] * in->channels);
    for (int64_t r = 0; r < box[2]; r++) /* moved to the front of the same memory */
        memmove(in->pixels + (size_t)r * row, from + (size_t)r * stride, row);
    in->height = box[2];
    in->width = box[3];
    return image_resize(in, d->height, d->width, d->how.filter, 0, 0, out, why);
}

static yk_err read_one(const struct data_images *d, int64_t i, const struct augment *a, const struct augment_key *k,
    uint8_t *scratch, void *to, struct yk_diag *why)
{
    struct image in = {0}, out = {.height = d->height, .width = d->width, .channels = d->channels, .pixels = scratch};
    uint8_t *data = NULL;
    size_t len = 0;
    int64_t h = 0, w = 0, resized[2];
    yk_err err = load(d, i, &data, &len, why);
    if (err)
        return err;
    err = image_decode(data, len, d->channels, &in, why);
    if (!err && a && a->smallest > 0) {
        err = resized_crop(d, a, k, &in, &out, why);
        goto out;
    }
    if (!err)
        err = becomes(d, in.height, in.width, &h, &w, resized, why);
    if (!err && (h != d->height || w != d->width))
        err = yk_fail(why, YK_INVAL,
            "becomes %" PRId64 "x%" PRId64 " pixels, the first image %" PRId64 "x%" PRId64
            ": give one size, --resize=HxW or --crop=HxW",
            h, w, d->height, d->width);
    if (!err)
        err = image_resize(&in, resized[0], resized[1], d->how.filter, crop_begin(resized[0], h),
            crop_begin(resized[1], w), &out, why);
out:
    if (err)
        yk_wrap(why, err, "%s", d->names.at[i]);
    else
        store(d, out.pixels, to);
    image_free(&in);
    free(data);
    return err;
}

/* Samples from first; a and k for one. */
static yk_err read_some(const struct data_images *d, int64_t first, int64_t count, const struct augment *a,
    const struct augment_key *k, void *x, int64_t *y, struct yk_diag *why)
{
    size_t row = (size_t)shape_bytes(&d->sample);
    yk_err err = YK_OK;
    if (y && !d->labels)
        return yk_fail(why, YK_INVAL, "the images have no labels: class folders give them");
    uint8_t *scratch = yk_try_alloc((size_t)(d->height * d->width), (size_t)d->channels);
    if (!scratch)
        return yk_fail(why, YK_NOMEM, "no memory for an image of %" PRId64 "x%" PRId64, d->height, d->width);
    for (int64_t i = 0; !err && i < count; i++) {
        err = read_one(d, first + i, a, k, scratch, (uint8_t *)x + (size_t)i * row, why);
        if (err && d->dir >= 0)
            yk_wrap(why, err, "%s", d->path);
        if (!err && y)
            y[i] = d->labels[first + i];
    }
    free(scratch);
    return err;
}

yk_err data_images_read(struct data_images *d, int64_t first, int64_t count, void *x, int64_t *y, struct yk_diag *why)
{
    return read_some(d, first, count, NULL, NULL, x, y, why);
}

yk_err data_images_read_one(struct data_images *d, const struct augment *a, const struct augment_key *k, void *x,
    int64_t *y, struct yk_diag *why)
{
    return read_some(d, k->sample, 1, a, k, x, y, why);
}

int64_t data_images_classes(const struct data_images *d)
{
    return d->classes.n;
}

const char *data_images_class(const struct data_images *d, int64_t i)
{
    return d->classes.at[i];
}

void data_images_view(const struct data_images *d, struct augment_view *out)
{
    static const uint8_t zero[3];
    *out = (struct augment_view){.channels = d->channels,
        .height = d->height,
        .width = d->width,
        .nhwc = d->how.layout == PREPROCESS_NHWC,
        .element = d->bytes ? 1 : sizeof(float),
        .black = d->bytes ? (const void *)zero : d->black};
}

/* ---- what the samples are ---- */

/* Channels, layout and type from the model's input where they are not given. */
static yk_err use_target(struct data_images *d, const struct data_target *t, int64_t want[2], struct yk_diag *why)
{
    struct preprocess *p = &d->how;
    int64_t depth = 0;
    want[0] = want[1] = 0;
    if (t && t->rank >= 0) {
        if (t->rank != 4)
            return yk_fail(why, YK_INVAL,
                "the model's input has %d dimensions; images need 4: batch, channels, height, width", t->rank);
        bool chw = t->dims[1] == 1 || t->dims[1] == 3, hwc = t->dims[3] == 1 || t->dims[3] == 3;
        if (p->layout == PREPROCESS_ANY)
            p->layout = !chw && hwc ? PREPROCESS_NHWC : PREPROCESS_NCHW;
        bool last = p->layout == PREPROCESS_NHWC;
        depth = t->dims[last ? 3 : 1];
        want[0] = t->dims[last ? 1 : 2];
        want[1] = t->dims[last ? 2 : 3];
        if (depth && depth != 1 && depth != 3)
            return yk_fail(why, YK_INVAL, "the model's input has %" PRId64 " channels; images have 1 or 3", depth);
        if (t->dtype != DT_F32 && t->dtype != DT_U8)
            return yk_fail(why, YK_UNSUPPORTED, "the model's input takes %s; images become float32 or uint8",
                dtype_name(t->dtype));
        d->bytes = t->dtype == DT_U8;
    }
    if (p->layout == PREPROCESS_ANY)
        p->layout = PREPROCESS_NCHW;
    if (p->channels == PREPROCESS_AUTO)
        p->channels = depth == 1 ? PREPROCESS_GRAY : PREPROCESS_RGB;
    d->channels = p->channels == PREPROCESS_GRAY ? 1 : 3;
    if (depth && depth != d->channels)
        return yk_fail(
            why, YK_INVAL, "the model's input has %" PRId64 " channels, the images become %d", depth, d->channels);
    return YK_OK;
}

static yk_err use_options(struct data_images *d, const struct data_options *o, struct yk_diag *why)
{
    struct preprocess *p = &d->how;
    const struct {
        const char *key;
        const double *given;
        int n;
        double *to;
        int *n_to;
    } lists[] = {{"mean", o->mean, o->n_mean, p->mean, &p->n_mean}, {"std", o->std, o->n_std, p->std, &p->n_std}};
    for (size_t i = 0; i < YK_COUNT(lists); i++) {
        int n = lists[i].n ? lists[i].n : *lists[i].n_to;
        if (n > 1 && n != d->channels)
            return yk_fail(
                why, YK_INVAL, "--%s has %d values, the images have %d channels", lists[i].key, n, d->channels);
        if (!lists[i].n)
            continue;
        for (int c = 0; c < n; c++) {
            lists[i].to[c] = lists[i].given[c];
            if (i == 1 && !(lists[i].to[c] > 0))
                return yk_fail(why, YK_INVAL, "--std value %g must be above 0", lists[i].to[c]);
        }
        *lists[i].n_to = n;
    }
    if (d->bytes && (p->n_mean || p->n_std || p->range != 1))
        return yk_fail(why, YK_INVAL, "the model's input takes bytes: no mean, std and range");
    for (int c = 0; c < d->channels; c++) {
        double mean = p->n_mean ? p->mean[p->n_mean == 1 ? 0 : c] : 0;
        double std = p->n_std ? p->std[p->n_std == 1 ? 0 : c] : 1;
        for (int v = 0; v < 256; v++) {
            float x = (float)v / 255.0f;
            if (p->range != 1)
                x = (float)((double)v / 255.0 * p->range);
            d->values[c][v] = p->n_mean || p->n_std ? (float)(((double)x - mean) / std) : x;
        }
        d->black[c] = d->values[c][0];
    }
    return YK_OK;
}

/* The size of the samples, from the rules and the first image. */
static yk_err use_first(struct data_images *d, const int64_t want[2], struct yk_diag *why)
{
    int64_t h = 0, w = 0, resized[2];
    uint8_t *data = NULL;
    size_t len = 0;
    yk_err err = load(d, 0, &data, &len, why);
    if (err)
        return err;
    if ((err = image_size(data, len, &h, &w, why)))
        goto out;
    if (!d->how.resize[0] && !d->how.crop[0] && want[0] && want[1]) {
        memcpy(d->how.resize, want, sizeof d->how.resize);
        if (h != want[0] || w != want[1])
            snprintf(d->note, sizeof d->note,
                "images are resized to %" PRId64 "x%" PRId64 ", what the model's input takes; --resize, --crop, "
                "--preset or --preprocess say otherwise",
                want[0], want[1]);
    }
    if ((err = becomes(d, h, w, &d->height, &d->width, resized, why)))
        goto out;
    if ((want[0] && want[0] != d->height) || (want[1] && want[1] != d->width)) {
        char sides[2][24];
        for (int i = 0; i < 2; i++)
            snprintf(sides[i], sizeof sides[i], want[i] ? "%lld" : "any", (long long)want[i]);
        err = yk_fail(why, YK_INVAL,
            "becomes %" PRId64 "x%" PRId64 " pixels, the model's input takes %sx%s: --resize=HxW or --crop=HxW make it "
            "fit",
            d->height, d->width, sides[0], sides[1]);
    }
out:
    if (err)
        yk_wrap(why, err, "%s", d->names.at[0]);
    free(data);
    return err;
}

static yk_err open_all(struct data_images *d, int fd, const struct data_options *o, struct yk_diag *why)
{
    static const struct data_options none;
    struct stat st;
    int64_t want[2];
    if (!o)
        o = &none;
    preprocess_init(&d->how);
    if (o->preprocess)
        d->how = *o->preprocess;
    if (fstat(fd, &st) != 0)
        return yk_fail(why, yk_err_from_errno(errno), "%s: %s", d->path, strerror(errno));
    int own = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    if (own < 0)
        return yk_fail(why, yk_err_from_errno(errno), "%s: %s", d->path, strerror(errno));
    yk_err err;
    if (S_ISDIR(st.st_mode)) {
        d->dir = own;
        err = list_all(d, why);
    } else {
        d->one = (struct data_files){.path = yk_xstrdup(d->path), .fd = own, .len = (size_t)st.st_size};
        err = list_add(&d->names, 1, yk_xstrdup(d->path), why);
    }
    if (err || (err = use_target(d, o->target, want, why)) || (err = use_options(d, o, why)) ||
        (err = use_first(d, want, why)))
        return err;
    bool nhwc = d->how.layout == PREPROCESS_NHWC;
    d->sample = (struct shape){.dtype = d->bytes ? DT_U8 : DT_F32, .rank = 3};
    d->sample.dims[nhwc ? 2 : 0] = d->channels;
    d->sample.dims[nhwc ? 0 : 1] = d->height;
    d->sample.dims[nhwc ? 1 : 2] = d->width;
    return YK_OK;
}

yk_err data_images_open(int fd, const char *path, const char *root, const struct data_options *o,
    struct data_images **out, struct yk_diag *why)
{
    struct data_images *d = yk_xalloc(sizeof *d);
    d->path = yk_xstrdup(path);
    d->root = root ? yk_xstrdup(root) : NULL;
    d->dir = d->one.fd = -1;
    yk_err err = open_all(d, fd, o, why);
    if (err)
        data_images_close(d);
    else
        *out = d;
    return err;
}

void data_images_close(struct data_images *d)
{
    if (!d)
        return;
    if (d->dir >= 0)
        close(d->dir);
    data_files_close(&d->one);
    list_free(&d->names);
    list_free(&d->classes);
    free(d->labels);
    free(d->path);
    free(d->root);
    free(d);
}
