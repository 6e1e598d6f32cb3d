#include "agent/data_files.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
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
            cap = cap ? cap * 2 : 4 * READ_BYTES;
            uint8_t *grown = (int64_t)cap > DATA_FILES_LIMIT ? NULL : yk_try_realloc(out->data, cap, 1);
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

yk_err data_files_open(int dir_fd, const char *path, bool gzip, struct data_files *out, struct yk_diag *why)
{
    struct stat st;
    *out = (struct data_files){0};
    int fd = openat(dir_fd, path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return yk_fail(why, yk_err_from_errno(errno), "%s: %s", path, strerror(errno));
    out->path = yk_xstrdup(path);
    yk_err err = YK_OK;
    if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode)) {
        err = yk_fail(why, YK_INVAL, "%s: not a regular file", path);
    } else if (gzip) {
        err = inflate_all(fd, out, why);
    } else if (st.st_size > 0) {
        void *map = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
        if (map == MAP_FAILED) {
            err = yk_fail(why, yk_err_from_errno(errno), "%s: cannot map it: %s", path, strerror(errno));
        } else {
            out->data = map;
            out->len = (size_t)st.st_size;
            out->mapped = true;
        }
    }
    close(fd);
    if (err)
        data_files_close(out);
    return err;
}

void data_files_close(struct data_files *f)
{
    if (f->mapped)
        munmap(f->data, f->len);
    else
        free(f->data);
    free(f->path);
    *f = (struct data_files){0};
}
