#include "common/storage.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define KEY_LIMIT 400
#define PART_LIMIT 200
#define DEPTH_LIMIT 8
#define TMP_PREFIX ".tmp-" /* no key part begins with a dot */

static const _Alignas(64) uint8_t empty[64];

static bool key_ok(const char *key)
{
    size_t part = 0;
    int depth = 1;
    for (size_t i = 0; key[i]; i++) {
        char c = key[i];
        bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
        if (i >= KEY_LIMIT)
            return false;
        if (c == '/') {
            if (part == 0 || ++depth > DEPTH_LIMIT)
                return false;
            part = 0;
            continue;
        }
        if (!letter && c != '_' && c != '-' && (c != '.' || part == 0))
            return false;
        if (++part > PART_LIMIT)
            return false;
    }
    return part > 0;
}

static yk_err key_check(const char *key, struct yk_diag *why)
{
    return key_ok(key) ? YK_OK
                       : yk_fail(why, YK_INVAL, "'%.100s' is not a storage key (letters, digits, '.', '_', '-')", key);
}

/* ---- one folder ---- */

struct dir {
    struct storage base;
    int fd;
    char *path;
    atomic_uint serial;
};

static yk_err dir_fail(struct dir *d, const char *key, const char *what, int e, struct yk_diag *why)
{
    return yk_fail(why, yk_err_from_errno(e), "cannot %s '%s/%s': %s", what, d->path, key, strerror(e));
}

/* Makes the folders above key and leaves the descriptor of the innermost. Each new name is made durable. */
static int parent_open(struct dir *d, const char *key, bool make)
{
    int fd = dup(d->fd), next;
    for (const char *slash; fd >= 0 && (slash = strchr(key, '/')) != NULL; key = slash + 1) {
        char part[PART_LIMIT + 1];
        memcpy(part, key, (size_t)(slash - key));
        part[slash - key] = 0;
        if (make && mkdirat(fd, part, 0700) == 0)
            fsync(fd);
        next = openat(fd, part, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
        int e = errno;
        close(fd);
        errno = e;
        fd = next;
    }
    return fd;
}

static const char *last_part(const char *key)
{
    const char *slash = strrchr(key, '/');
    return slash ? slash + 1 : key;
}

static int write_all(int fd, const uint8_t *data, size_t len)
{
    while (len) {
        ssize_t n = write(fd, data, YK_MIN(len, (size_t)1 << 30));
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return n < 0 ? errno : EIO;
        data += n;
        len -= (size_t)n;
    }
    return 0;
}

static yk_err dir_put_parts(
    struct storage *s, const char *key, const struct storage_part *parts, int64_t n, struct yk_diag *why)
{
    struct dir *d = (struct dir *)s;
    yk_err err = key_check(key, why);
    if (err)
        return err;
    char tmp[64];
    snprintf(tmp, sizeof tmp, TMP_PREFIX "%ld-%u", (long)getpid(), atomic_fetch_add(&d->serial, 1));
    int fd = openat(d->fd, tmp, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0)
        return dir_fail(d, key, "write", errno, why);
    int e = 0;
    for (int64_t i = 0; !e && i < n; i++)
        e = write_all(fd, parts[i].data, parts[i].len);
    if (!e && fsync(fd) != 0)
        e = errno;
    if (close(fd) != 0 && !e)
        e = errno;
    int parent = e ? -1 : parent_open(d, key, true);
    if (!e && parent < 0)
        e = errno;
    if (!e && renameat(d->fd, tmp, parent, last_part(key)) != 0)
        e = errno;
    if (e)
        unlinkat(d->fd, tmp, 0);
    else if (fsync(parent) != 0)
        e = errno;
    if (parent >= 0)
        close(parent);
    return e ? dir_fail(d, key, "write", e, why) : YK_OK;
}

static yk_err dir_put(struct storage *s, const char *key, const void *data, size_t len, struct yk_diag *why)
{
    struct storage_part part = {data, len};
    return dir_put_parts(s, key, &part, 1, why);
}

static yk_err dir_map(struct storage *s, const char *key, struct storage_map *out, struct yk_diag *why)
{
    struct dir *d = (struct dir *)s;
    yk_err err = key_check(key, why);
    if (err)
        return err;
    int fd = openat(d->fd, key, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0) {
        int e = errno == ENOTDIR ? ENOENT : errno;
        return dir_fail(d, key, "read", e, why);
    }
    struct stat st;
    int e = 0;
    void *p = NULL;
    if (fstat(fd, &st) != 0)
        e = errno;
    else if (!S_ISREG(st.st_mode))
        e = ENOENT;
    else if (st.st_size && (p = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0)) == MAP_FAILED)
        e = errno;
    close(fd);
    if (e)
        return dir_fail(d, key, "read", e, why);
    *out = (struct storage_map){p ? p : empty, (size_t)st.st_size, p};
    return YK_OK;
}

static void dir_unmap(struct storage *s, struct storage_map *m)
{
    (void)s;
    if (m->priv)
        munmap(m->priv, m->len);
    *m = (struct storage_map){0};
}

static yk_err dir_remove(struct storage *s, const char *key)
{
    struct dir *d = (struct dir *)s;
    if (!key_ok(key))
        return YK_INVAL;
    if (unlinkat(d->fd, key, 0) != 0)
        return errno == EISDIR || errno == ENOTDIR || errno == ENOENT ? YK_NOTFOUND : yk_err_from_errno(errno);
    return YK_OK;
}

struct walk {
    const char *prefix;
    bool (*fn)(void *arg, const char *key, int64_t bytes);
    void *arg;
    bool stopped;
};

/* Takes fd. */
static yk_err walk_dir(int fd, const char *above, int depth, struct walk *w)
{
    DIR *dir = fdopendir(fd);
    if (!dir) {
        close(fd);
        return YK_NOMEM;
    }
    yk_err err = YK_OK;
    for (struct dirent *e; !err && !w->stopped && (e = readdir(dir)) != NULL;) {
        char key[KEY_LIMIT + 260];
        struct stat st;
        if (e->d_name[0] == '.')
            continue;
        snprintf(key, sizeof key, "%s%s", above, e->d_name);
        size_t common = YK_MIN(strlen(key), strlen(w->prefix));
        if (!key_ok(key) || strncmp(key, w->prefix, common) != 0 ||
            fstatat(dirfd(dir), e->d_name, &st, AT_SYMLINK_NOFOLLOW) != 0)
            continue;
        if (S_ISDIR(st.st_mode) && depth < DEPTH_LIMIT) {
            int sub = openat(dirfd(dir), e->d_name, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
            strcat(key, "/");
            if (sub >= 0)
                err = walk_dir(sub, key, depth + 1, w);
        } else if (S_ISREG(st.st_mode) && strncmp(key, w->prefix, strlen(w->prefix)) == 0) {
            w->stopped = !w->fn(w->arg, key, st.st_size);
        }
    }
    closedir(dir);
    return err;
}

static yk_err dir_list(
    struct storage *s, const char *prefix, bool (*fn)(void *arg, const char *key, int64_t bytes), void *arg)
{
    struct dir *d = (struct dir *)s;
    int fd = openat(d->fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return yk_err_from_errno(errno);
    struct walk w = {.prefix = prefix, .fn = fn, .arg = arg};
    return walk_dir(fd, "", 1, &w);
}

static void dir_close(struct storage *s)
{
    struct dir *d = (struct dir *)s;
    close(d->fd);
    free(d->path);
    free(d);
}

static const struct storage_ops dir_ops = {
    .name = "dir",
    .put = dir_put,
    .put_parts = dir_put_parts,
    .map = dir_map,
    .unmap = dir_unmap,
    .remove = dir_remove,
    .list = dir_list,
    .close = dir_close,
};

/* mkdir -p; folders that exist are left as they are. */
static int make_dirs(const char *path)
{
    char *copy = yk_xstrdup(path);
    int e = 0;
    for (char *p = copy + 1; !e; p++) {
        char c = *p;
        if (c != '/' && c != 0)
            continue;
        *p = 0;
        if (mkdir(copy, 0700) != 0 && errno != EEXIST) {
            struct stat st; /* a folder above may be there and yet not ours to write to */
            int was = errno;
            if (stat(copy, &st) != 0 || !S_ISDIR(st.st_mode))
                e = was;
        }
        *p = c;
        if (c == 0)
            break;
    }
    free(copy);
    return e;
}

/* Removes what a kill left behind in the middle of a put. */
static void drop_temporaries(int fd)
{
    int again = openat(fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *dir = again < 0 ? NULL : fdopendir(again);
    if (!dir)
        return;
    for (struct dirent *e; (e = readdir(dir)) != NULL;)
        if (strncmp(e->d_name, TMP_PREFIX, strlen(TMP_PREFIX)) == 0)
            unlinkat(fd, e->d_name, 0);
    closedir(dir);
}

yk_err storage_dir_open(const char *path, struct storage **out, struct yk_diag *why)
{
    if (!*path)
        return yk_fail(why, YK_INVAL, "the state folder has an empty name");
    int e = make_dirs(path);
    int fd = e ? -1 : open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (!e && fd < 0)
        e = errno;
    if (!e && faccessat(fd, ".", W_OK | X_OK, 0) != 0)
        e = errno;
    /* Two processes with one identity would throw each other out for ever. */
    if (!e && flock(fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
        close(fd);
        return yk_fail(why, YK_BUSY, "state folder '%s' is in use by another process: give each its own", path);
    }
    if (e) {
        if (fd >= 0)
            close(fd);
        return yk_fail(why, yk_err_from_errno(e), "cannot use state folder '%s': %s", path, strerror(e));
    }
    drop_temporaries(fd);
    struct dir *d = yk_xalloc(sizeof *d);
    d->base.ops = &dir_ops;
    d->fd = fd;
    d->path = yk_xstrdup(path);
    *out = &d->base;
    return YK_OK;
}

/* ---- memory ---- */

/* A removed entry lives until its last view ends, hence the count. */
struct entry {
    struct entry *next;
    char *key;
    uint8_t *data;
    size_t len;
    int views;
    bool gone;
};

struct mem {
    struct storage base;
    pthread_mutex_t lock;
    struct entry *entries;
};

static void entry_free(struct entry *e)
{
    free(e->key);
    free(e->data);
    free(e);
}

/* Under the lock: takes the entry out of the list. */
static bool mem_drop(struct mem *m, const char *key)
{
    for (struct entry **at = &m->entries; *at; at = &(*at)->next) {
        struct entry *e = *at;
        if (strcmp(e->key, key) != 0)
            continue;
        *at = e->next;
        e->gone = true;
        if (e->views == 0)
            entry_free(e);
        return true;
    }
    return false;
}

static yk_err mem_put_parts(
    struct storage *s, const char *key, const struct storage_part *parts, int64_t n, struct yk_diag *why)
{
    struct mem *m = (struct mem *)s;
    size_t len = 0, at = 0;
    yk_err err = key_check(key, why);
    if (err)
        return err;
    for (int64_t i = 0; i < n; i++)
        len += parts[i].len;
    struct entry *e = yk_xalloc(sizeof *e);
    e->data = yk_try_aligned(len);
    if (!e->data) {
        free(e);
        return yk_fail(why, YK_NOSPC, "out of memory for '%s' (%zu bytes)", key, len);
    }
    e->key = yk_xstrdup(key);
    e->len = len;
    for (int64_t i = 0; i < n; i++) {
        if (parts[i].len)
            memcpy(e->data + at, parts[i].data, parts[i].len);
        at += parts[i].len;
    }
    pthread_mutex_lock(&m->lock);
    mem_drop(m, key);
    e->next = m->entries;
    m->entries = e;
    pthread_mutex_unlock(&m->lock);
    return YK_OK;
}

static yk_err mem_put(struct storage *s, const char *key, const void *data, size_t len, struct yk_diag *why)
{
    struct storage_part part = {data, len};
    return mem_put_parts(s, key, &part, 1, why);
}

static yk_err mem_map(struct storage *s, const char *key, struct storage_map *out, struct yk_diag *why)
{
    struct mem *m = (struct mem *)s;
    yk_err err = key_check(key, why);
    if (err)
        return err;
    pthread_mutex_lock(&m->lock);
    struct entry *e = m->entries;
    while (e && strcmp(e->key, key) != 0)
        e = e->next;
    if (e) {
        e->views++;
        *out = (struct storage_map){e->data, e->len, e};
    }
    pthread_mutex_unlock(&m->lock);
    return e ? YK_OK : yk_fail(why, YK_NOTFOUND, "there is no '%s'", key);
}

static void mem_unmap(struct storage *s, struct storage_map *v)
{
    struct mem *m = (struct mem *)s;
    struct entry *e = v->priv;
    pthread_mutex_lock(&m->lock);
    if (e && --e->views == 0 && e->gone)
        entry_free(e);
    pthread_mutex_unlock(&m->lock);
    *v = (struct storage_map){0};
}

static yk_err mem_remove(struct storage *s, const char *key)
{
    struct mem *m = (struct mem *)s;
    if (!key_ok(key))
        return YK_INVAL;
    pthread_mutex_lock(&m->lock);
    bool found = mem_drop(m, key);
    pthread_mutex_unlock(&m->lock);
    return found ? YK_OK : YK_NOTFOUND;
}

/* Collects first: fn may call the storage. */
static yk_err mem_list(
    struct storage *s, const char *prefix, bool (*fn)(void *arg, const char *key, int64_t bytes), void *arg)
{
    struct mem *m = (struct mem *)s;
    struct found {
        char *key;
        int64_t bytes;
    } *found = NULL;
    size_t n = 0;
    pthread_mutex_lock(&m->lock);
    for (struct entry *e = m->entries; e; e = e->next) {
        if (strncmp(e->key, prefix, strlen(prefix)) != 0)
            continue;
        found = yk_xrealloc(found, (n + 1) * sizeof *found);
        found[n++] = (struct found){yk_xstrdup(e->key), (int64_t)e->len};
    }
    pthread_mutex_unlock(&m->lock);
    bool more = true;
    for (size_t i = 0; i < n; i++) {
        more = more && fn(arg, found[i].key, found[i].bytes);
        free(found[i].key);
    }
    free(found);
    return YK_OK;
}

static void mem_close(struct storage *s)
{
    struct mem *m = (struct mem *)s;
    while (m->entries)
        mem_drop(m, m->entries->key);
    pthread_mutex_destroy(&m->lock);
    free(m);
}

static const struct storage_ops mem_ops = {
    .name = "mem",
    .put = mem_put,
    .put_parts = mem_put_parts,
    .map = mem_map,
    .unmap = mem_unmap,
    .remove = mem_remove,
    .list = mem_list,
    .close = mem_close,
};

yk_err storage_mem_open(struct storage **out)
{
    struct mem *m = yk_xalloc(sizeof *m);
    m->base.ops = &mem_ops;
    pthread_mutex_init(&m->lock, NULL);
    *out = &m->base;
    return YK_OK;
}
