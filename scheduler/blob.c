#include "scheduler/blob.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define UNMAP_US ((int64_t)3600 * 1000000)
#define BLOCK ((size_t)1 << 20)

struct file {
    char *name;
    uint8_t *map; /* NULL: not yet */
    size_t len;
    ino_t inode;        /* that is mapped */
    int64_t removed_us; /* 0: not */
};

struct entry {
    uint8_t hash[HASH_BYTES];
    int32_t file; /* -1: free */
    int64_t at, bytes, sound_ns;
};

struct blobs {
    char *dir;
    int lock; /* the folder, locked */
    struct file *files;
    int32_t n_files;
    struct entry *table; /* open addressing by the hash's own first bytes */
    size_t cap, n;
};

const char *blobs_dir(const struct blobs *b)
{
    return b->dir;
}

static yk_err make_dir(const char *path, struct yk_diag *why)
{
    if (mkdir(path, 0700) != 0 && errno != EEXIST)
        return yk_fail(why, yk_err_from_errno(errno), "cannot make %s: %s", path, strerror(errno));
    return YK_OK;
}

yk_err blobs_open(const char *dir, struct blobs **out, struct yk_diag *why)
{
    yk_err err = make_dir(dir, why);
    if (err)
        return err;
    int lock = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (lock < 0)
        return yk_fail(why, yk_err_from_errno(errno), "cannot open folder %s: %s", dir, strerror(errno));
    if (flock(lock, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
        close(lock);
        return yk_fail(
            why, YK_BUSY, "folder %s is in use by another yoked: put each database into a folder of its own", dir);
    }
    struct blobs *b = yk_xalloc(sizeof *b);
    b->lock = lock;
    b->dir = yk_xstrdup(dir);
    b->cap = 1024;
    b->table = yk_xalloc(b->cap * sizeof *b->table);
    for (size_t i = 0; i < b->cap; i++)
        b->table[i].file = -1;
    *out = b;
    return YK_OK;
}

void blobs_close(struct blobs *b)
{
    if (!b)
        return;
    for (int32_t i = 0; i < b->n_files; i++) {
        if (b->files[i].map)
            munmap(b->files[i].map, b->files[i].len);
        free(b->files[i].name);
    }
    free(b->files);
    free(b->table);
    free(b->dir);
    close(b->lock);
    free(b);
}

static struct entry *slot(const struct blobs *b, const uint8_t *hash)
{
    uint64_t key;
    memcpy(&key, hash, sizeof key);
    for (size_t i = key & (b->cap - 1);; i = (i + 1) & (b->cap - 1))
        if (b->table[i].file < 0 || memcmp(b->table[i].hash, hash, HASH_BYTES) == 0)
            return &b->table[i];
}

static void grow(struct blobs *b)
{
    struct entry *old = b->table;
    size_t n = b->cap;
    b->cap *= 2;
    b->table = yk_xalloc(b->cap * sizeof *b->table);
    for (size_t i = 0; i < b->cap; i++)
        b->table[i].file = -1;
    for (size_t i = 0; i < n; i++)
        if (old[i].file >= 0)
            *slot(b, old[i].hash) = old[i];
    free(old);
}

void blobs_add(struct blobs *b, const char *hash, const char *file, int64_t at, int64_t bytes)
{
    uint8_t key[HASH_BYTES];
    if (!yk_unhex(hash, HASH_BYTES, key))
        return;
    if (b->n * 2 >= b->cap)
        grow(b);
    int32_t f = b->n_files;
    for (int32_t i = b->n_files; i-- > 0 && f == b->n_files && i + 8 > b->n_files;) /* slices come file by file */
        if (!b->files[i].removed_us && strcmp(b->files[i].name, file) == 0)
            f = i; /* one that was removed may be mapped: it is another file */
    if (f == b->n_files) {
        b->files = yk_xrealloc(b->files, ((size_t)b->n_files + 1) * sizeof *b->files);
        b->files[b->n_files++] = (struct file){.name = yk_xstrdup(file)};
    }
    struct entry *e = slot(b, key);
    b->n += e->file < 0;
    memcpy(e->hash, key, HASH_BYTES);
    e->file = f;
    e->at = at;
    e->bytes = bytes;
    e->sound_ns = 0;
}

static struct entry *find(const struct blobs *b, const char *hash)
{
    uint8_t key[HASH_BYTES];
    if (!yk_unhex(hash, HASH_BYTES, key))
        return NULL;
    struct entry *e = slot(b, key);
    return e->file < 0 ? NULL : e;
}

const char *blobs_place(const struct blobs *b, const char *hash, int64_t *at, int64_t *bytes)
{
    const struct entry *e = find(b, hash);
    if (e && at)
        *at = e->at;
    if (e && bytes)
        *bytes = e->bytes;
    return e ? b->files[e->file].name : NULL;
}

const char *blobs_file(const struct blobs *b, const char *hash)
{
    return blobs_place(b, hash, NULL, NULL);
}

int64_t blobs_sound_ns(const struct blobs *b, const char *hash)
{
    const struct entry *e = find(b, hash);
    return e ? e->sound_ns : 0;
}

void blobs_set_sound(struct blobs *b, const char *hash, int64_t written_ns)
{
    struct entry *e = find(b, hash);
    if (e)
        e->sound_ns = written_ns;
}

const char *blobs_file_at(const struct blobs *b, int32_t i)
{
    return i >= b->n_files ? NULL : b->files[i].removed_us ? "" : b->files[i].name;
}

/* The table anew, without what is of a file (NULL: of any) and has a hash (NULL: any). Returns what goes. */
static int64_t drop(struct blobs *b, const char *file, const uint8_t *hash)
{
    struct entry *old = b->table;
    int64_t bytes = 0;
    b->table = yk_xalloc(b->cap * sizeof *b->table);
    b->n = 0;
    for (size_t i = 0; i < b->cap; i++)
        b->table[i].file = -1;
    for (size_t i = 0; i < b->cap; i++) {
        if (old[i].file < 0)
            continue;
        if ((!file || strcmp(b->files[old[i].file].name, file) == 0) &&
            (!hash || memcmp(old[i].hash, hash, HASH_BYTES) == 0)) {
            bytes += old[i].bytes;
            continue;
        }
        *slot(b, old[i].hash) = old[i];
        b->n++;
    }
    free(old);
    return bytes;
}

void blobs_forget(struct blobs *b, const char *hash)
{
    uint8_t key[HASH_BYTES];
    if (yk_unhex(hash, HASH_BYTES, key))
        drop(b, NULL, key);
}

void blobs_renew(struct blobs *b, const char *file, int64_t now_us)
{
    int32_t n = b->n_files, fresh = -1;
    for (int32_t i = 0; i < n; i++) {
        if (b->files[i].removed_us || strcmp(b->files[i].name, file) != 0)
            continue;
        if (fresh < 0) {
            fresh = b->n_files++;
            b->files = yk_xrealloc(b->files, (size_t)b->n_files * sizeof *b->files);
            b->files[fresh] = (struct file){.name = yk_xstrdup(b->files[i].name)};
        }
        b->files[i].removed_us = YK_MAX(now_us, (int64_t)1);
        for (size_t k = 0; k < b->cap; k++)
            if (b->table[k].file == i)
                b->table[k].file = fresh;
    }
}

int64_t blobs_remove(struct blobs *b, const char *file, int64_t now_us)
{
    int64_t bytes = drop(b, file, NULL);
    for (int32_t i = 0; i < b->n_files; i++)
        if (strcmp(b->files[i].name, file) == 0)
            b->files[i].removed_us = YK_MAX(now_us, (int64_t)1);
    return bytes;
}

void blobs_unmap_removed(struct blobs *b, int64_t now_us)
{
    for (int32_t i = 0; i < b->n_files; i++) {
        struct file *f = &b->files[i];
        if (!f->removed_us || !f->map || now_us - f->removed_us < UNMAP_US)
            continue;
        munmap(f->map, f->len);
        f->map = NULL;
        f->len = 0;
    }
}

bool blobs_find(const struct blobs *b, const char *hash, int64_t *bytes)
{
    const struct entry *e = find(b, hash);
    if (e && bytes)
        *bytes = e->bytes;
    return e != NULL;
}

static yk_err map_file(const struct blobs *b, struct file *f, struct yk_diag *why)
{
    struct stat st;
    char *path = yk_xasprintf("%s/%s", b->dir, f->name);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    yk_err err = YK_OK;
    if (fd < 0 || fstat(fd, &st) != 0) {
        err = yk_fail(why, yk_err_from_errno(errno), "cannot open %s: %s", path, strerror(errno));
    } else if (st.st_size > 0) {
        void *map = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
        if (map == MAP_FAILED) {
            err = yk_fail(why, yk_err_from_errno(errno), "cannot map %s: %s", path, strerror(errno));
        } else {
            f->map = map;
            f->len = (size_t)st.st_size;
            f->inode = st.st_ino;
        }
    }
    if (fd >= 0)
        close(fd);
    free(path);
    return err;
}

/* How much of a mapped file can be read: what was cut off since ends the process that touches it. */
static size_t readable(const struct blobs *b, const struct file *f)
{
    struct stat st;
    char *path = yk_xasprintf("%s/%s", b->dir, f->name);
    bool same = f->map && stat(path, &st) == 0 && st.st_ino == f->inode;
    free(path);
    return same ? YK_MIN(f->len, (size_t)st.st_size) : f->len;
}

yk_err blobs_map(struct blobs *b, const char *hash, const uint8_t **data, int64_t *bytes, struct yk_diag *why)
{
    struct entry *e = find(b, hash);
    if (!e)
        return yk_fail(why, YK_NOTFOUND, "no blob %.16s...", hash);
    struct file *f = &b->files[e->file];
    if (!f->map && e->bytes > 0) {
        yk_err err = map_file(b, f, why);
        if (err)
            return err;
    }
    if (e->at < 0 || e->bytes < 0 || (uint64_t)e->at + (uint64_t)e->bytes > readable(b, f))
        return yk_fail(why, YK_IO, "blob file %s/%s is shorter than its index says", b->dir, f->name);
    *data = f->map ? f->map + e->at : NULL;
    *bytes = e->bytes;
    return YK_OK;
}

/* ---- uploads ---- */

static char *part_path(const struct blobs *b, const char *hash)
{
    return yk_xasprintf("%s/%s.part", b->dir, hash);
}

int64_t blob_part_have(const struct blobs *b, const char *hash)
{
    struct stat st;
    char *path = part_path(b, hash);
    int64_t have = stat(path, &st) == 0 ? (int64_t)st.st_size : 0;
    free(path);
    return have;
}

static yk_err hash_fd(int fd, int64_t total, const char *path, uint8_t sum[HASH_BYTES], struct yk_diag *why)
{
    struct hash h;
    void *map = total ? mmap(NULL, (size_t)total, PROT_READ, MAP_PRIVATE, fd, 0) : NULL;
    if (map == MAP_FAILED)
        return yk_fail(why, yk_err_from_errno(errno), "cannot map %s: %s", path, strerror(errno));
    hash_init(&h);
    hash_update(&h, map, (size_t)total);
    hash_final(&h, sum);
    if (map)
        munmap(map, (size_t)total);
    return YK_OK;
}

yk_err blob_hash_file(const char *dir, const char *file, char hash[HASH_HEX_SIZE], struct yk_diag *why)
{
    char *path = yk_xasprintf("%s/%s", dir, file);
    uint8_t sum[HASH_BYTES];
    struct stat st;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    yk_err err = fd < 0 || fstat(fd, &st) != 0
                     ? yk_fail(why, yk_err_from_errno(errno), "cannot read %s: %s", path, strerror(errno))
                     : hash_fd(fd, (int64_t)st.st_size, path, sum, why);
    if (fd >= 0)
        close(fd);
    if (!err)
        yk_hex(sum, HASH_BYTES, hash);
    free(path);
    return err;
}

static yk_err hash_slice(
    int fd, const char *file, int64_t at, int64_t bytes, char hex[HASH_HEX_SIZE], struct yk_diag *why)
{
    struct hash h;
    uint8_t sum[HASH_BYTES], *block = yk_xalloc((size_t)YK_MIN(bytes, (int64_t)BLOCK) + 1);
    yk_err err = YK_OK;
    hash_init(&h);
    for (int64_t done = 0; done < bytes && !err;) {
        ssize_t n = pread(fd, block, (size_t)YK_MIN(bytes - done, (int64_t)BLOCK), (off_t)(at + done));
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0) {
            err = yk_fail(why, YK_IO, "%s cannot be read at offset %lld: %s", file, (long long)(at + done),
                n < 0 ? strerror(errno) : "it ends there");
            break;
        }
        hash_update(&h, block, (size_t)n);
        done += n;
    }
    hash_final(&h, sum);
    yk_hex(sum, sizeof sum, hex);
    free(block);
    return err;
}

yk_err blob_check(const char *dir, const char *file, int64_t at, int64_t bytes, const char *hash, int64_t *sound_ns,
    struct yk_diag *why)
{
    char *path = yk_xasprintf("%s/%s", dir, file), hex[HASH_HEX_SIZE];
    struct stat st;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    free(path);
    if (fd < 0)
        return errno == ENOENT ? yk_fail(why, YK_NOTFOUND, "%s is gone", file)
                               : yk_fail(why, YK_BUSY, "%s cannot be opened: %s", file, strerror(errno));
    yk_err err = YK_OK;
    int64_t written = fstat(fd, &st) == 0 ? (int64_t)st.st_mtim.tv_sec * 1000000000 + st.st_mtim.tv_nsec : 0;
    if (!sound_ns || !written || *sound_ns != written) {
        err = hash_slice(fd, file, at, bytes, hex, why);
        if (!err && strcmp(hex, hash) != 0)
            err = yk_fail(why, YK_FORMAT, "%s has other bytes than were written, from offset %lld for %lld bytes", file,
                (long long)at, (long long)bytes);
    }
    close(fd);
    if (sound_ns)
        *sound_ns = err ? 0 : written;
    return err;
}

yk_err blob_rename(const struct blobs *b, const char *file, const char *to, int64_t *bytes)
{
    char *from = yk_xasprintf("%s/%s", b->dir, file), *path = yk_xasprintf("%s/%s", b->dir, to);
    struct stat st;
    yk_err err = stat(from, &st) != 0 || rename(from, path) != 0 ? yk_err_from_errno(errno) : YK_OK;
    if (!err)
        *bytes = (int64_t)st.st_size;
    free(from);
    free(path);
    return err;
}

static yk_err check_hash(int fd, const char *hash, int64_t total, const char *path, struct yk_diag *why)
{
    uint8_t sum[HASH_BYTES], want[HASH_BYTES];
    yk_err err = hash_fd(fd, total, path, sum, why);
    if (err)
        return err;
    yk_unhex(hash, HASH_BYTES, want);
    if (memcmp(sum, want, HASH_BYTES) != 0)
        return yk_fail(why, YK_FORMAT, "the %lld bytes that came are not the content %.16s...: upload it again",
            (long long)total, hash);
    return YK_OK;
}

static yk_err finish(
    const struct blobs *b, int fd, const char *hash, int64_t total, const char *path, struct yk_diag *why)
{
    char *final = yk_xasprintf("%s/%s", b->dir, hash);
    yk_err err = check_hash(fd, hash, total, path, why);
    if (err) {
        unlink(path);
    } else if (fsync(fd) != 0 || rename(path, final) != 0) {
        err = yk_fail(why, yk_err_from_errno(errno), "cannot keep %s: %s", final, strerror(errno));
        unlink(path);
    } else {
        int dir = open(b->dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (dir >= 0) {
            fsync(dir);
            close(dir);
        }
    }
    free(final);
    return err;
}

yk_err blob_part_write(const struct blobs *b, const char *hash, int64_t offset, int64_t total, const void *data,
    size_t len, bool *complete, struct yk_diag *why)
{
    struct stat st;
    if (len > BLOB_PART_LIMIT)
        return yk_fail(why, YK_LIMIT, "a part of %zu bytes; the limit is %zu", len, BLOB_PART_LIMIT);
    if (total < 0 || total > BLOB_LIMIT || offset < 0 || offset > total || (int64_t)len > total - offset)
        return yk_fail(why, YK_INVAL, "part at %lld of %zu bytes does not fit a content of %lld (limit %lld)",
            (long long)offset, len, (long long)total, (long long)BLOB_LIMIT);
    char *path = part_path(b, hash);
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    yk_err err = YK_OK;
    *complete = false;
    if (fd < 0 || fstat(fd, &st) != 0) {
        err = yk_fail(why, yk_err_from_errno(errno), "cannot write %s: %s", path, strerror(errno));
        goto out;
    }
    if (offset > st.st_size) {
        err = yk_fail(why, YK_STATE, "part at %lld, but only %lld bytes are here: go on from there", (long long)offset,
            (long long)st.st_size);
        goto out;
    }
    for (size_t at = 0; at < len;) {
        ssize_t n = pwrite(fd, (const uint8_t *)data + at, len - at, (off_t)offset + (off_t)at);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0) {
            err = yk_fail(why, yk_err_from_errno(errno), "cannot write %s: %s", path, strerror(errno));
            unlink(path); /* what it holds is missing to others, and later uploads */
            goto out;
        }
        at += (size_t)n;
    }
    if (offset + (int64_t)len == total) {
        err = ftruncate(fd, (off_t)total) == 0 ? finish(b, fd, hash, total, path, why)
                                               : yk_fail(why, YK_IO, "cannot cut %s: %s", path, strerror(errno));
        *complete = err == YK_OK;
    }
out:
    if (fd >= 0)
        close(fd);
    free(path);
    return err;
}

void blobs_sweep(const struct blobs *b, int64_t part_s, int64_t output_s)
{
    DIR *d = opendir(b->dir);
    int64_t now = (int64_t)time(NULL);
    if (!d)
        return;
    for (struct dirent *e = readdir(d); e; e = readdir(d)) {
        size_t n = strlen(e->d_name);
        struct stat st;
        bool part = n > 5 && strcmp(e->d_name + n - 5, ".part") == 0;
        const char *dot = strrchr(e->d_name, '.');
        bool output = strncmp(e->d_name, "job-", 4) == 0 && dot && (!strcmp(dot, ".npy") || !strcmp(dot, ".onnx"));
        if ((part || output) && fstatat(dirfd(d), e->d_name, &st, AT_SYMLINK_NOFOLLOW) == 0 &&
            now - (int64_t)st.st_mtime > (part ? part_s : output_s))
            unlinkat(dirfd(d), e->d_name, 0);
    }
    closedir(d);
}
