/* From a path to a set: which kind of set it is, and which of its splits. */
#include "agent/data_priv.h"

#include "agent/image.h"

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
    err = data_set_options(d, o, why);
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
        d->truth = (struct shape){.dtype = DT_I64};
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
        d->truth = (struct shape){.dtype = DT_I64};
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

/* Takes *dir and gives the folder of the split for it, where there are such folders. *inner: free(). */
static yk_err enter_split(struct data_set *d, int *dir, const char *path, const char *split,
    const struct data_options *o, char **inner, struct yk_diag *why)
{
    const char *name = NULL;
    yk_err err = YK_OK;
    if (!holds(*dir, "train-images-idx3-ubyte") && !holds(*dir, "t10k-images-idx3-ubyte") && !data_npy_here(*dir, o) &&
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
    if (o && o->input && !data_npy_here(fd, o))
        err = yk_fail(why, YK_NOTFOUND,
            "no '%.100s.npy': a model of several inputs takes a folder with NAME.npy for each of them, named as the "
            "model "
            "names it, and y.npy for what it is trained towards%s",
            o->input, strcmp(o->input, "y") == 0 ? "; so no input may be named 'y'" : "");
    else if (!(o && o->input) && holds(fd, idx))
        err = data_idx_open(d, fd, split, why);
    else if (data_npy_here(fd, o))
        err = data_npy_folder(d, fd, o, why);
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
            err = data_npy_x(d, o, why);
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
    yk_err err = data_npy_x(d, o, why);
    if (!err && y) {
        data_files_memory("y", y, y_len, &d->y_file);
        err = data_npy_y(d, why);
    }
    if (!err)
        err = finish_open(d, o, out, why);
    if (err)
        data_close(d);
    return err;
}
