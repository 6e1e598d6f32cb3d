#include "scheduler/cli/tensors.h"

#include "common/npy.h"
#include "scheduler/cli/cli.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* "a, b, c", as far as it fits. */
static void list_names(const char *const *names, int n, char *out, size_t size)
{
    size_t len = 0;
    out[0] = '\0';
    for (int i = 0; i < n; i++) {
        int wrote = snprintf(out + len, size - len, "%s'%s'", i ? ", " : "", names[i]);
        if (wrote < 0 || (size_t)wrote >= size - len) {
            snprintf(out + (size > 4 ? size - 4 : 0), 4, "...");
            return;
        }
        len += (size_t)wrote;
    }
}

/* Which name stands before an '=' of text: the longest that is known. -1: none; *path is behind the '='. */
static int split(const char *text, const char *const *names, int n, const char **path)
{
    int best = -1;
    size_t longest = 0;
    for (int i = 0; i < n; i++) {
        size_t len = strlen(names[i]);
        if (len >= longest && strncmp(text, names[i], len) == 0 && text[len] == '=') {
            best = i;
            longest = len;
            *path = text + len + 1;
        }
    }
    return best;
}

/* Whether text reads as NAME=PATH of a name that is not there, and not as the path of a file. */
static bool names_something(const char *text)
{
    const char *equals = strchr(text, '=');
    return equals && equals > text && access(text, F_OK) != 0 && !memchr(text, '/', (size_t)(equals - text));
}

static yk_err one_each(const struct conf_strs *given, const char *what, const char *const *names, int n,
    const char **paths, struct yk_diag *why)
{
    char known[400];
    list_names(names, n, known, sizeof known);
    for (int i = 0; i < n; i++)
        paths[i] = NULL;
    for (int i = 0; i < given->n; i++) {
        const char *text = given->at[i], *path = text;
        int at = split(text, names, n, &path);
        if (at < 0 && names_something(text))
            return yk_fail(why, YK_INVAL, "--%s=%s: the model has no %s '%.*s'; it has %s", what, text, what,
                (int)strcspn(text, "="), text, known);
        if (at < 0 && n != 1)
            return yk_fail(why, YK_INVAL, "--%s=%s: the model has %d %ss, %s: give --%s=NAME=PATH for each", what, text,
                n, what, known, what);
        at = at < 0 ? 0 : at;
        if (paths[at])
            return yk_fail(why, YK_INVAL, "%s '%s' is given twice: %s and %s", what, names[at], paths[at], path);
        if (!*path)
            return yk_fail(why, YK_INVAL, "--%s=%s: no file is named", what, text);
        paths[at] = path;
    }
    return YK_OK;
}

yk_err tensors_inputs(
    const struct conf_strs *given, const char *const *names, int n, const char **paths, struct yk_diag *why)
{
    yk_err err = one_each(given, "input", names, n, paths, why);
    for (int i = 0; !err && i < n; i++)
        if (!paths[i])
            err = yk_fail(why, YK_INVAL, "input '%s' is missing: give --input=%s%sx.npy", names[i],
                n > 1 ? names[i] : "", n > 1 ? "=" : "");
    return err;
}

static bool is_folder(const char *path)
{
    struct stat st;
    size_t len = strlen(path);
    return (len && path[len - 1] == '/') || (stat(path, &st) == 0 && S_ISDIR(st.st_mode));
}

/* FOLDER/NAME.npy; a name that an earlier one already has after cleaning gets its position behind it. */
static char *in_folder(const char *folder, const char *const *names, int at, char *const *before)
{
    char clean[128];
    size_t len = 0;
    for (const char *c = names[at]; *c && len + 1 < sizeof clean; c++) {
        bool plain = (*c >= 'a' && *c <= 'z') || (*c >= 'A' && *c <= 'Z') || (*c >= '0' && *c <= '9') || *c == '-' ||
                     *c == '_' || (*c == '.' && len);
        clean[len++] = plain ? *c : '_';
    }
    clean[len] = '\0';
    const char *slash = folder[strlen(folder) - 1] == '/' ? "" : "/";
    char *path = yk_xasprintf("%s%s%s.npy", folder, slash, len ? clean : "output");
    for (int i = 0; i < at; i++)
        if (strcmp(before[i], path) == 0) {
            free(path);
            return yk_xasprintf("%s%s%s-%d.npy", folder, slash, len ? clean : "output", at);
        }
    return path;
}

yk_err tensors_outputs(
    const struct conf_strs *given, const char *const *names, int n, char **paths, struct yk_diag *why)
{
    const char *rest;
    if (given->n == 1 && split(given->at[0], names, n, &rest) < 0 && is_folder(given->at[0])) {
        const char *folder = given->at[0];
        if (mkdir(folder, 0777) != 0 && errno != EEXIST)
            return yk_fail(why, yk_err_from_errno(errno), "cannot make the folder %s: %s", folder, strerror(errno));
        for (int i = 0; i < n; i++)
            paths[i] = in_folder(folder, names, i, paths);
        return YK_OK;
    }
    const char **borrowed = yk_xalloc(((size_t)n + 1) * sizeof *borrowed);
    yk_err err = one_each(given, "output", names, n, borrowed, why);
    for (int i = 0; i < n; i++)
        paths[i] = !err && borrowed[i] ? yk_xstrdup(borrowed[i]) : NULL;
    free(borrowed);
    return err;
}

static yk_err read_at(int fd, const char *path, uint8_t *out, size_t len, off_t from, struct yk_diag *why)
{
    for (size_t have = 0; have < len;) {
        ssize_t n = pread(fd, out + have, len - have, from + (off_t)have);
        if (n > 0)
            have += (size_t)n;
        else if (n == 0 || errno != EINTR)
            return yk_fail(why, YK_IO, "cannot read %s: %s", path, n ? strerror(errno) : "it shrank meanwhile");
    }
    return YK_OK;
}

yk_err tensors_read(const char *path, struct shape *shape, void **data, struct yk_diag *why)
{
    struct stat st;
    struct npy npy;
    uint8_t *head = NULL;
    void *body = NULL;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return yk_fail(why, yk_err_from_errno(errno), "cannot open %s: %s", path, strerror(errno));
    yk_err err = YK_OK;
    if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode)) {
        err = yk_fail(why, YK_INVAL, "%s is not a regular file", path);
        goto out;
    }
    if (st.st_size > TENSORS_FILE_LIMIT) {
        err = yk_fail(why, YK_LIMIT, "%s has %lld bytes; the limit is %lld", path, (long long)st.st_size,
            (long long)TENSORS_FILE_LIMIT);
        goto out;
    }
    size_t first = YK_MIN((size_t)st.st_size, NPY_HEAD_LIMIT + 128);
    head = yk_xalloc(first + 1);
    if ((err = read_at(fd, path, head, first, 0, why)))
        goto out;
    if ((err = npy_parse(head, first, st.st_size, &npy, why))) {
        yk_wrap(why, err, "%s", path);
        goto out;
    }
    body = yk_try_aligned((size_t)npy.bytes + 1);
    if (!body) {
        err = yk_fail(why, YK_NOMEM, "no memory for the %lld bytes of %s", (long long)npy.bytes, path);
        goto out;
    }
    if ((err = read_at(fd, path, body, (size_t)npy.bytes, (off_t)npy.offset, why)))
        goto out;
    *shape = npy.shape;
    *data = body;
    body = NULL;
out:
    free(body);
    free(head);
    close(fd);
    return err;
}

yk_err tensors_pixels(struct shape *shape, void **data, struct yk_diag *why)
{
    int64_t n = shape_count(shape);
    float *wide = yk_try_aligned((size_t)n * sizeof *wide + 1);
    if (!wide)
        return yk_fail(why, YK_NOMEM, "no memory for %lld pixels", (long long)n);
    for (int64_t i = 0; i < n; i++)
        wide[i] = (float)((const uint8_t *)*data)[i] / 255.0f;
    free(*data);
    *data = wide;
    if (shape->rank == 3)
        *shape = (struct shape){.rank = 4, .dims = {shape->dims[0], 1, shape->dims[1], shape->dims[2]}};
    shape->dtype = DT_F32;
    return YK_OK;
}

yk_err tensors_write(const char *path, const struct shape *shape, const void *data, struct yk_diag *why)
{
    struct yk_buf file = {0};
    struct shape as = *shape;
    if (as.dtype == DT_BF16) /* NumPy has no bfloat16: its bits, as uint16 */
        as.dtype = DT_U16;
    yk_err err = npy_header(&as, &file);
    if (err)
        err = yk_fail(why, err, "cannot write %s: a .npy file holds no such tensor", path);
    else
        yk_buf_add(&file, data, (size_t)shape_bytes(&as));
    if (!err && file.failed)
        err = yk_fail(why, YK_NOMEM, "no memory to write %s", path);
    if (!err)
        err = cli_write_file(path, file.data, file.len, why);
    yk_buf_free(&file);
    return err;
}
