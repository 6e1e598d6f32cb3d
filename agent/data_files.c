#include "agent/data_files.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#define READ_BYTES ((size_t)256 << 10)

static yk_err inflate_all(int fd, struct data_files *out, struct yk_diag *why)
{
    yk_err err = YK_OK;
    size_t cap = 0;
    gzFile gz = gzdopen(dup(fd), "rb");
    if (!gz)
        return yk_fail(why, YK_NOMEM, "%s: cannot start to inflate", out->path);
    gzbuffer(gz, READ_BYTES);
    for (;;) {
        if (out->len + READ_BYTES > cap) {
            if (out->len >= DATA_FILES_INFLATED_LIMIT) {
                err = yk_fail(why, YK_LIMIT, "%s: more than %zu inflated bytes; unpack the file", out->path,
                    DATA_FILES_INFLATED_LIMIT);
                break;
            }
            cap = cap ? cap * 2 : 4 * READ_BYTES;
            uint8_t *grown = yk_try_realloc(out->data, cap, 1);
            if (!grown) {
                err = yk_fail(why, YK_NOMEM, "%s: no memory for more than %zu inflated bytes", out->path, out->len);
                break;
            }
            out->data = grown;
        }
        int n = gzread(gz, out->data + out->len, READ_BYTES);
        if (n < 0) {
            int code;
            err = yk_fail(why, YK_FORMAT, "%s: %s at inflated offset %zu", out->path, gzerror(gz, &code), out->len);
            break;
        }
        out->len += (size_t)n;
        if (n == 0)
            break;
    }
    /* Z_BUF_ERROR: the file ends in the middle of the stream. */
    if (gzclose_r(gz) != Z_OK && !err)
        err = yk_fail(why, YK_FORMAT, "%s: ends early, after %zu inflated bytes", out->path, out->len);
    return err;
}

/* The descriptor's real path decides, so neither a link nor a race leads out. */
bool data_files_below(int fd, const char *root)
{
    char self[64], real[PATH_MAX];
    size_t n = strlen(root);
    snprintf(self, sizeof self, "/proc/self/fd/%d", fd);
    ssize_t got = readlink(self, real, sizeof real - 1);
    if (got <= 0)
        return false;
    real[got] = 0;
    return strncmp(real, root, n) == 0 && (real[n] == '/' || !real[n] || (n && root[n - 1] == '/'));
}

yk_err data_files_open(
    int dir_fd, const char *path, const char *root, bool gzip, struct data_files *out, struct yk_diag *why)
{
    struct stat st;
    *out = (struct data_files){.fd = -1};
    int fd = openat(dir_fd, path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a pipe without a writer does not block us */
    if (fd < 0)
        return yk_fail(why, yk_err_from_errno(errno), "%s: %s", path, strerror(errno));
    out->path = yk_xstrdup(path);
    yk_err err = YK_OK;
    if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode)) {
        err = yk_fail(why, YK_INVAL, "%s: not a regular file", path);
    } else if (root && !data_files_below(fd, root)) {
        err = yk_fail(why, YK_PERM, "%s: leads out of the data root", path);
    } else if (gzip) {
        out->owned = true;
        err = inflate_all(fd, out, why);
    } else {
        out->fd = fd;
        out->len = (size_t)st.st_size;
    }
    if (out->fd < 0)
        close(fd);
    if (err)
        data_files_close(out);
    return err;
}

void data_files_memory(const char *name, const void *data, size_t len, struct data_files *out)
{
    *out = (struct data_files){.path = yk_xstrdup(name), .fd = -1, .data = (uint8_t *)(uintptr_t)data, .len = len};
}

yk_err data_files_read(const struct data_files *f, size_t at, size_t len, void *dst, struct yk_diag *why)
{
    if (at > f->len || len > f->len - at)
        return yk_fail(why, YK_FORMAT, "%s: ends at offset %zu, %zu bytes early", f->path, f->len, at + len - f->len);
    if (f->fd < 0) {
        if (len)
            memcpy(dst, f->data + at, len);
        return YK_OK;
    }
    for (size_t got = 0; got < len;) {
        ssize_t n = pread(f->fd, (uint8_t *)dst + got, len - got, (off_t)(at + got));
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return yk_fail(why, YK_IO, "%s: %s at offset %zu", f->path, strerror(errno), at + got);
        if (n == 0)
            return yk_fail(why, YK_IO, "%s: ends at offset %zu: it was cut while it was read", f->path, at + got);
        got += (size_t)n;
    }
    return YK_OK;
}

yk_err data_files_head(struct data_files *f, size_t max, const uint8_t **head, size_t *len, struct yk_diag *why)
{
    size_t n = YK_MIN(max, f->len);
    if (f->fd < 0) {
        *head = f->data;
        *len = n;
        return YK_OK;
    }
    free(f->head);
    f->head = yk_xalloc(n + 1);
    yk_err err = data_files_read(f, 0, n, f->head, why);
    if (!err) {
        *head = f->head;
        *len = n;
    }
    return err;
}

void data_files_close(struct data_files *f)
{
    if (!f->path)
        return;
    if (f->fd >= 0)
        close(f->fd);
    if (f->owned)
        free(f->data);
    free(f->head);
    free(f->path);
    *f = (struct data_files){.fd = -1};
}
