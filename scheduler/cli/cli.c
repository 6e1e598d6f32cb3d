/* What the commands share; see cli.h. */
#include "scheduler/cli/cli.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

const char *const cli_kinds[] = {"infer", "batch", "train"};
const char *const cli_objectives[] = {NULL, "latency", "throughput", "cloud-cost"};

int cli_fail(yk_err err, const struct yk_diag *why)
{
    fprintf(stderr, "yoke: %s\n", why->text[0] ? why->text : yk_err_text(err));
    return CLI_FAILED;
}

yk_err cli_read_file(const char *path, size_t limit, uint8_t **data, size_t *len, struct yk_diag *why)
{
    yk_err err = YK_OK;
    uint8_t *bytes = NULL;
    struct stat st;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return yk_fail(why, yk_err_from_errno(errno), "cannot open %s: %s", path, strerror(errno));
    if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode)) {
        err = yk_fail(why, YK_INVAL, "%s is not a regular file", path);
        goto out;
    }
    if ((uint64_t)st.st_size > limit) {
        err = yk_fail(why, YK_LIMIT, "%s has %lld bytes; the limit is %zu", path, (long long)st.st_size, limit);
        goto out;
    }
    bytes = yk_try_alloc((size_t)st.st_size + 1, 1);
    if (!bytes) {
        err = yk_fail(why, YK_NOMEM, "no memory for the %lld bytes of %s", (long long)st.st_size, path);
        goto out;
    }
    for (size_t have = 0; have < (size_t)st.st_size;) {
        ssize_t n = read(fd, bytes + have, (size_t)st.st_size - have);
        if (n > 0) {
            have += (size_t)n;
        } else if (n == 0 || errno != EINTR) {
            err = yk_fail(why, YK_IO, "cannot read %s: %s", path, n ? strerror(errno) : "it shrank meanwhile");
            goto out;
        }
    }
    *data = bytes;
    *len = (size_t)st.st_size;
    bytes = NULL;
out:
    free(bytes);
    close(fd);
    return err;
}

static yk_err write_all(int fd, const char *path, const void *data, size_t len, struct yk_diag *why)
{
    for (size_t done = 0; done < len;) {
        ssize_t n = write(fd, (const uint8_t *)data + done, len - done);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return yk_fail(why, yk_err_from_errno(errno), "cannot write %s: %s", path, strerror(errno));
        done += (size_t)n;
    }
    return YK_OK;
}

yk_err cli_write_file(const char *path, const void *data, size_t len, struct yk_diag *why)
{
    struct stat st;
    yk_err err = YK_OK;
    bool there = stat(path, &st) == 0, in_place = there && !S_ISREG(st.st_mode);
    /* A link keeps pointing where it does; a device or pipe is written, never replaced. */
    char *target = there && !in_place ? realpath(path, NULL) : NULL;
    if (!target)
        target = yk_xstrdup(path);
    char *temp = in_place ? yk_xstrdup(path) : yk_xasprintf("%s.part-%ld", target, (long)getpid());
    int fd = open(temp, O_WRONLY | (in_place ? 0 : O_CREAT | O_TRUNC) | O_CLOEXEC, 0666);
    if (fd < 0) {
        err = yk_fail(why, yk_err_from_errno(errno), "cannot write %s: %s", path, strerror(errno));
        goto out;
    }
    err = write_all(fd, path, data, len, why);
    if (close(fd) != 0 && !err)
        err = yk_fail(why, yk_err_from_errno(errno), "cannot write %s: %s", path, strerror(errno));
    if (!err && !in_place && rename(temp, target) != 0)
        err = yk_fail(why, yk_err_from_errno(errno), "cannot rename to %s: %s", path, strerror(errno));
    if (err && !in_place)
        unlink(temp);
out:
    free(temp);
    free(target);
    return err;
}

yk_err cli_check_writable(const char *flag, const char *path, struct yk_diag *why)
{
    struct stat st;
    if (!path)
        return YK_OK;
    if (stat(path, &st) == 0) {
        if (S_ISDIR(st.st_mode))
            return yk_fail(why, YK_INVAL, "--%s=%s is a folder: name a file in it", flag, path);
        if (!S_ISREG(st.st_mode))
            return access(path, W_OK) == 0 ? YK_OK
                                           : yk_fail(why, yk_err_from_errno(errno), "--%s=%s cannot be written: %s",
                                                 flag, path, strerror(errno));
    }
    /* A regular file is written beside its place and renamed: it is the folder that must take it. */
    char *real = realpath(path, NULL), *folder = real ? real : yk_xstrdup(path), *slash = strrchr(folder, '/');
    const char *in = !slash ? "." : slash == folder ? "/" : folder;
    if (slash && slash != folder)
        *slash = '\0';
    yk_err err = YK_OK;
    bool good = stat(in, &st) == 0;
    if (good && !S_ISDIR(st.st_mode)) {
        good = false;
        errno = ENOTDIR;
    }
    if (!good || access(in, W_OK | X_OK) != 0)
        err = yk_fail(
            why, yk_err_from_errno(errno), "--%s=%s cannot be written: folder %s: %s", flag, path, in, strerror(errno));
    free(folder);
    return err;
}
