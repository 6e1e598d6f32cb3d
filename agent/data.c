#include "agent/data.h"

#include "agent/data_priv.h"
#include "agent/image.h"
#include "common/npy.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define BLOCK_BYTES 16384
#define NPY_NAME 208 /* bytes of the name of a file of samples */

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

static yk_err set_options(struct data_set *d, const struct data_options *o, struct yk_diag *why)
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

/* ---- IDX ---- */

static const struct shape class_id = {.dtype = DT_I64};

static uint32_t big_u32(const uint8_t *p)
{
    return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | (uint32_t)p[3];
}

/* rank dims behind a magic of 0x0000 08 rank. */
static yk_err idx_header(struct data_files *f, int rank, int64_t *dims, struct yk_diag *why)
{
    size_t head = 4 + 4 * (size_t)rank, len = 0;
    const uint8_t *p = NULL;
    yk_err err = data_files_head(f, head, &p, &len, why);
    if (err)
        return err;
    if (len < head)
        return yk_fail(why, YK_FORMAT, "%s: ends at offset %zu, an IDX header has %zu bytes", f->path, len, head);
    if (big_u32(p) != (0x800u | (uint32_t)rank))
        return yk_fail(why, YK_FORMAT, "%s: magic %08x at offset 0; bytes of rank %d have %08x", f->path, big_u32(p),
            rank, 0x800u | (uint32_t)rank);
    int64_t total = 1;
    for (int i = 0; i < rank; i++) {
        dims[i] = big_u32(p + 4 + 4 * i);
        if (!yk_mul_i64(total, dims[i], &total))
            return yk_fail(why, YK_LIMIT, "%s: dimensions overflow at offset %d", f->path, 4 + 4 * i);
    }
    if ((uint64_t)total != f->len - head)
        return yk_fail(why, YK_FORMAT, "%s: the header promises %" PRId64 " bytes from offset %zu, the file has %zu",
            f->path, total, head, f->len - head);
    return YK_OK;
}

static yk_err open_idx_file(
    int dir, const char *root, const char *split, const char *what, struct data_files *out, struct yk_diag *why)
{
    char name[80];
    snprintf(name, sizeof name, "%.20s-%s-ubyte", split, what);
    if (faccessat(dir, name, F_OK, 0) == 0)
        return data_files_open(dir, name, root, false, out, why);
    snprintf(name, sizeof name, "%.20s-%s-ubyte.gz", split, what);
    return data_files_open(dir, name, root, true, out, why);
}

static yk_err open_idx(struct data_set *d, int dir, const char *split, struct yk_diag *why)
{
    int64_t dims[3], labels = 0;
    yk_err err = open_idx_file(dir, d->root, split, "images-idx3", &d->x_file, why);
    if (err || (err = idx_header(&d->x_file, 3, dims, why)))
        return err;
    d->x_at = 16;
    d->bytes = true;
    d->count = dims[0];
    d->sample = (struct shape){.dtype = DT_F32, .rank = 3, .dims = {1, dims[1], dims[2]}};
    err = open_idx_file(dir, d->root, split, "labels-idx1", &d->y_file, why);
    if (err == YK_NOTFOUND)
        return YK_OK;
    if (err || (err = idx_header(&d->y_file, 1, &labels, why)))
        return err;
    if (labels != d->count)
        return yk_fail(
            why, YK_FORMAT, "%s: %" PRId64 " labels for %" PRId64 " images", d->y_file.path, labels, d->count);
    d->y_at = 8;
    d->y_dtype = DT_U8;
    d->has_truth = true;
    d->truth = class_id;
    return YK_OK;
}

/* ---- .npy ---- */

static yk_err npy_of(struct data_files *f, struct npy *out, struct yk_diag *why)
{
    const uint8_t *head = NULL;
    size_t len = 0;
    yk_err err = data_files_head(f, NPY_HEAD_LIMIT + 64, &head, &len, why);
    if (!err && (err = npy_parse(head, len, (int64_t)f->len, out, why)))
        yk_wrap(why, err, "%s", f->path);
    return err;
}

static yk_err use_npy_x(struct data_set *d, const struct data_options *o, struct yk_diag *why)
{
    struct npy npy;
    yk_err err = npy_of(&d->x_file, &npy, why);
    if (err)
        return err;
    if (npy.shape.rank < 1)
        return yk_fail(why, YK_INVAL, "%s: a single number is not a set of samples", d->x_file.path);
    d->x_at = npy.offset;
    d->count = npy.shape.dims[0];
    d->sample = npy.shape;
    d->sample.rank--;
    memmove(d->sample.dims, npy.shape.dims + 1, (size_t)d->sample.rank * sizeof d->sample.dims[0]);
    bool raw = o && o->target && o->target->dtype == DT_U8;        /* the model takes the bytes as they are */
    if (npy.shape.dtype == DT_U8 && d->sample.rank >= 2 && !raw) { /* images */
        d->bytes = true;
        d->sample.dtype = DT_F32;
        if (d->sample.rank == 2)
            d->sample = (struct shape){.dtype = DT_F32, .rank = 3, .dims = {1, d->sample.dims[0], d->sample.dims[1]}};
    }
    return YK_OK;
}

static yk_err use_npy_y(struct data_set *d, struct yk_diag *why)
{
    struct npy npy;
    const char *name = d->y_file.path;
    yk_err err = npy_of(&d->y_file, &npy, why);
    if (err)
        return err;
    enum dtype t = npy.shape.dtype;
    if (npy.shape.rank < 1 || npy.shape.dims[0] != d->count) {
        char text[128];
        shape_text(&npy.shape, text, sizeof text);
        return yk_fail(why, YK_INVAL,
            "%s is %s: labels must have shape (%" PRId64 ",), values (%" PRId64 ", ...), as many as there are samples",
            name, text, d->count, d->count);
    }
    bool ids = t == DT_I64 || t == DT_I32 || t == DT_U8;
    if (!ids && t != DT_F32 && t != DT_F64)
        return yk_fail(why, YK_UNSUPPORTED, "%s: labels are int64, int32 or uint8, values float32 or float64, not %s",
            name, dtype_name(t));
    d->y_at = npy.offset;
    d->y_dtype = t;
    d->has_truth = true;
    d->truth = npy.shape;
    d->truth.dtype = ids ? DT_I64 : DT_F32;
    d->truth.rank--;
    memmove(d->truth.dims, npy.shape.dims + 1, (size_t)d->truth.rank * sizeof d->truth.dims[0]);
    return YK_OK;
}

/* The file of samples in a folder; false: an input of this name has none. */
static bool npy_name(const struct data_options *o, char name[static NPY_NAME])
{
    const char *input = o && o->input ? o->input : "x";
    bool good = strcmp(input, "y") != 0 && input[0] && input[0] != '.' && !strchr(input, '/') && strlen(input) < 200;
    snprintf(name, NPY_NAME, "%s.npy", good ? input : "");
    return good;
}

static yk_err open_npy_folder(struct data_set *d, int dir, const struct data_options *o, struct yk_diag *why)
{
    char name[NPY_NAME];
    npy_name(o, name);
    yk_err err = data_files_open(dir, name, d->root, false, &d->x_file, why);
    if (!err)
        err = use_npy_x(d, o, why);
    if (err || (o && o->samples_only) || faccessat(dir, "y.npy", F_OK, 0) != 0)
        return err;
    err = data_files_open(dir, "y.npy", d->root, false, &d->y_file, why);
    return err ? err : use_npy_y(d, why);
}

/* ---- opening ---- */

static yk_err take_split(struct data_set *d, const struct data_split *split, struct yk_diag *why)
{
    if (split->only && !d->split)
        return yk_fail(why, YK_NOTFOUND, "the data set has no split '%s': it is one set", split->name);
    if (!split->share)
        return YK_OK;
    d->sampler = (struct sampler){.seed = split->seed, .samples = d->count, .batch = 1};
    d->sampler.held = d->count ? sampler_share(d->count, split->share) : 0;
    return d->sampler.held ? sampler_check(&d->sampler, why)
                           : yk_fail(why, YK_INVAL, "a set of %" PRId64 " holds no sample out", d->count);
}

static yk_err finish_open(struct data_set *d, const struct data_options *o, struct data_set **out, struct yk_diag *why)
{
    struct data_split split;
    yk_err err = data_split_read(o ? o->split : NULL, &split, why);
    if (!err)
        err = take_split(d, &split, why);
    if (err)
        return err;
    d->sample_elements = shape_count(&d->sample);
    d->truth_elements = d->has_truth ? shape_count(&d->truth) : 0;
    if (d->sample_elements < 0 || shape_bytes(&d->sample) < 0)
        return yk_fail(why, YK_LIMIT, "a sample is too large");
    if (d->truth_elements < 0 || shape_bytes(&d->truth) < 0)
        return yk_fail(why, YK_LIMIT, "%s: the values of a sample are too many", d->y_file.path);
    if (d->images) { /* they normalise themselves */
        *out = d;
        return YK_OK;
    }
    err = set_options(d, o, why);
    if (!err)
        *out = d;
    return err;
}

static yk_err open_images(
    struct data_set *d, int fd, const char *path, const char *root, const struct data_options *o, struct yk_diag *why)
{
    yk_err err = data_images_open(fd, path, root, o, &d->images, why);
    if (!err) {
        d->count = data_images_count(d->images);
        d->sample = *data_images_sample(d->images);
        d->has_truth = data_images_labelled(d->images);
        d->truth = class_id;
    }
    return err;
}

static yk_err open_cifar(struct data_set *d, int fd, bool train, struct yk_diag *why)
{
    yk_err err = data_cifar_open(fd, d->root, train, &d->cifar, why);
    if (!err) {
        d->count = data_cifar_count(d->cifar);
        d->sample = (struct shape){.dtype = DT_F32, .rank = 3, .dims = {3, 32, 32}};
        d->has_truth = true;
        d->truth = class_id;
    }
    return err;
}

/* By what it starts with; a name of an image is an image too, so that a broken one is told as such. */
static bool is_image(int fd, const char *path)
{
    uint8_t head[8];
    ssize_t n = pread(fd, head, sizeof head, 0);
    return image_known(head, n > 0 ? (size_t)n : 0) || data_images_named(path);
}

bool data_holds_images(const char *path)
{
    struct stat st;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return data_images_named(path);
    bool yes = fstat(fd, &st) == 0 && (S_ISDIR(st.st_mode) || (S_ISREG(st.st_mode) && is_image(fd, path)));
    close(fd);
    return yes;
}

/* The folder of a split in a folder that has no other folders, train among them; NULL if it is not of that kind. *test:
 * whether there is more than train. */
static const char *split_folder(int dir, const char *split, bool *test)
{
    static const char *const folders[] = {"train", "test", "t10k", "val", "valid"};
    static const int orders[3][5] = {{0, -1}, {1, 2, 3, 4, -1}, {3, 4, 1, 2, -1}};
    bool there[YK_COUNT(folders)] = {false}, other = false;
    struct stat st;
    int fd = openat(dir, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *d = fd >= 0 ? fdopendir(fd) : NULL;
    if (!d && fd >= 0)
        close(fd);
    for (struct dirent *e; d && (e = readdir(d));) {
        size_t k = 0;
        if (e->d_name[0] == '.' || fstatat(dir, e->d_name, &st, 0) != 0 || !S_ISDIR(st.st_mode))
            continue;
        while (k < YK_COUNT(folders) && strcmp(e->d_name, folders[k]) != 0)
            k++;
        if (k < YK_COUNT(folders))
            there[k] = true;
        else
            other = true;
    }
    if (d)
        closedir(d);
    if (other || !there[0])
        return NULL;
    *test = there[1] || there[2] || there[3] || there[4];
    const int *order = orders[strcmp(split, "train") == 0 ? 0 : strcmp(split, "val") == 0 ? 2 : 1];
    while (*order >= 0 && !there[*order])
        order++;
    return *order >= 0 ? folders[*order] : "test"; /* what is not there is said where it is opened */
}

static bool holds(int dir, const char *plain)
{
    char packed[64];
    snprintf(packed, sizeof packed, "%.50s.gz", plain);
    return faccessat(dir, plain, F_OK, 0) == 0 || faccessat(dir, packed, F_OK, 0) == 0;
}

static bool holds_npy(int dir, const struct data_options *o)
{
    char name[NPY_NAME];
    return npy_name(o, name) && faccessat(dir, name, F_OK, 0) == 0;
}

/* Takes *dir and gives the folder of the split for it, where there are such folders. *inner: free(). */
static yk_err enter_split(struct data_set *d, int *dir, const char *path, const char *split,
    const struct data_options *o, char **inner, struct yk_diag *why)
{
    const char *name = NULL;
    yk_err err = YK_OK;
    if (!holds(*dir, "train-images-idx3-ubyte") && !holds(*dir, "t10k-images-idx3-ubyte") && !holds_npy(*dir, o) &&
        !data_cifar_here(*dir))
        name = split_folder(*dir, split, &d->test);
    if (!name)
        return YK_OK;
    int sub = openat(*dir, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (sub < 0)
        return yk_fail(why, yk_err_from_errno(errno), "%s/%s: %s", path, name, strerror(errno));
    if (d->root && !data_files_below(sub, d->root)) {
        err = yk_fail(why, YK_PERM, "%s/%s: leads out of the data root", path, name);
        close(sub);
        return err;
    }
    close(*dir);
    *dir = sub;
    *inner = yk_xasprintf("%s/%s", path, name);
    d->split = true;
    return YK_OK;
}

static yk_err open_folder(
    struct data_set *d, int fd, const char *path, const char *split, const struct data_options *o, struct yk_diag *why)
{
    bool train = strcmp(split, "train") == 0;
    char idx[32];
    yk_err err;
    split = train ? split : "t10k";
    snprintf(idx, sizeof idx, "%s-images-idx3-ubyte", split);
    if (o && o->input && !holds_npy(fd, o))
        err = yk_fail(why, YK_NOTFOUND,
            "no '%.100s.npy': a model of several inputs takes a folder with NAME.npy for each of them, named as the "
            "model "
            "names it, and y.npy for what it is trained towards%s",
            o->input, strcmp(o->input, "y") == 0 ? "; so no input may be named 'y'" : "");
    else if (!(o && o->input) && holds(fd, idx))
        err = open_idx(d, fd, split, why);
    else if (holds_npy(fd, o))
        err = open_npy_folder(d, fd, o, why);
    else if (data_cifar_here(fd))
        err = open_cifar(d, fd, train, why);
    else if ((err = open_images(d, fd, path, d->root, o, why)) == YK_NOTFOUND)
        err = yk_fail(why, err,
            "no %s[.gz], no x.npy, no CIFAR-10 batches, no .jpg, .jpeg or .png and no class folders in it", idx);
    d->split = d->split || holds(fd, idx) || d->cifar;
    d->test = d->test || holds(fd, "t10k-images-idx3-ubyte") || (d->cifar && data_cifar_test(fd));
    return err ? yk_wrap(why, err, "%s", path) : YK_OK;
}

/* fd is a folder, a .npy file or an image. Takes fd. */
static yk_err open_fd(int fd, const char *path, const char *root, const struct data_options *o, struct data_set **out,
    struct yk_diag *why)
{
    struct data_set *d = yk_xalloc(sizeof *d);
    struct data_split split = {0};
    char *inner = NULL;
    struct stat st;
    yk_err err;
    d->root = root;
    if ((err = data_split_read(o ? o->split : NULL, &split, why))) {
        yk_wrap(why, err, "%s", path);
    } else if (fstat(fd, &st) != 0) {
        err = yk_fail(why, yk_err_from_errno(errno), "%s: %s", path, strerror(errno));
    } else if (S_ISREG(st.st_mode) && o && o->input) {
        err = yk_fail(why, YK_INVAL,
            "%s: one file; a model of several inputs takes a folder with NAME.npy for each of them", path);
    } else if (S_ISREG(st.st_mode) && is_image(fd, path)) {
        err = open_images(d, fd, path, root, o, why);
    } else if (S_ISREG(st.st_mode)) {
        char self[64];
        snprintf(self, sizeof self, "/proc/self/fd/%d", fd);
        err = data_files_open(AT_FDCWD, self, root, false, &d->x_file, why);
        if (!err) {
            free(d->x_file.path);
            d->x_file.path = yk_xstrdup(path);
            err = use_npy_x(d, o, why);
        }
    } else if (!(err = enter_split(d, &fd, path, split.name, o, &inner, why))) {
        err = open_folder(d, fd, inner ? inner : path, split.name, o, why);
    }
    close(fd);
    d->path = inner ? inner : yk_xstrdup(path);
    d->root = NULL;
    if (!err)
        err = finish_open(d, o, out, why);
    if (err)
        data_close(d);
    return err;
}

yk_err data_open(const char *path, const struct data_options *o, struct data_set **out, struct yk_diag *why)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return yk_fail(why, yk_err_from_errno(errno), "%s: %s", path, strerror(errno));
    return open_fd(fd, path, NULL, o, out, why);
}

static bool clean_name(const char *name)
{
    if (!name[0] || name[0] == '/')
        return false;
    for (const char *at = name; *at;) {
        size_t n = strcspn(at, "/");
        if (n == 0 || (n == 1 && at[0] == '.') || (n == 2 && at[0] == '.' && at[1] == '.'))
            return false;
        at += n + (at[n] == '/');
    }
    return true;
}

yk_err data_open_below(const char *const *roots, const char *name, const struct data_options *o, struct data_set **out,
    struct yk_diag *why)
{
    if (!clean_name(name))
        return yk_fail(why, YK_PERM, "data name '%s': a plain path below a data root, without '..'", name);
    for (size_t i = 0; roots && roots[i]; i++) {
        char root[PATH_MAX], full[PATH_MAX], *wanted = yk_xasprintf("%s/%s", roots[i], name);
        bool there = realpath(roots[i], root) && realpath(wanted, full);
        free(wanted);
        size_t n = strlen(root);
        if (!there)
            continue;
        if (strncmp(full, root, n) != 0 || (full[n] != '/' && n > 1))
            return yk_fail(why, YK_PERM, "data name '%s' leaves its data root", name);
        int fd = open(full, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
        if (fd < 0)
            return yk_fail(why, yk_err_from_errno(errno), "data name '%s': %s", name, strerror(errno));
        return open_fd(fd, name, root, o, out, why);
    }
    return yk_fail(why, YK_NOTFOUND, "no data '%s' under this agent's data roots%s", name,
        roots && roots[0] ? "" : " (it has none: start it with --data-root=DIR)");
}

yk_err data_open_memory(const void *x, size_t x_len, const void *y, size_t y_len, const struct data_options *o,
    struct data_set **out, struct yk_diag *why)
{
    struct data_set *d = yk_xalloc(sizeof *d);
    data_files_memory("x", x, x_len, &d->x_file);
    yk_err err = use_npy_x(d, o, why);
    if (!err && y) {
        data_files_memory("y", y, y_len, &d->y_file);
        err = use_npy_y(d, why);
    }
    if (!err)
        err = finish_open(d, o, out, why);
    if (err)
        data_close(d);
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
