/* Named byte blobs that outlive the process: identity, weight cache, profiles, checkpoints. The agent core reaches
 * storage only through this table; storage_dir keeps files in one folder, storage_mem keeps memory.
 * Keys are made of [A-Za-z0-9._-] with '/' between parts; anything else is YK_INVAL (no path can be escaped). */
#ifndef YK_STORAGE_H
#define YK_STORAGE_H

#include "common/yk.h"

struct storage;

struct storage_map {
    const uint8_t *data; /* 64-byte aligned */
    size_t len;
    void *priv;
};

struct storage_part {
    const void *data;
    size_t len;
};

struct storage_ops {
    const char *name;
    /* Durable before it returns: temporary name, fsync, rename, fsync of the folder. Errors: YK_NOSPC, YK_IO, YK_PERM.
     */
    yk_err (*put)(struct storage *s, const char *key, const void *data, size_t len, struct yk_diag *why);
    /* The same of parts, one behind the other. */
    yk_err (*put_parts)(
        struct storage *s, const char *key, const struct storage_part *parts, int64_t n, struct yk_diag *why);
    /* Read-only view, valid until unmap even if the key is removed meanwhile. YK_NOTFOUND if absent. */
    yk_err (*map)(struct storage *s, const char *key, struct storage_map *out, struct yk_diag *why);
    void (*unmap)(struct storage *s, struct storage_map *m);
    yk_err (*remove)(struct storage *s, const char *key);
    /* Calls fn for every key below prefix, in no order; stops when fn returns false. */
    yk_err (*list)(
        struct storage *s, const char *prefix, bool (*fn)(void *arg, const char *key, int64_t bytes), void *arg);
    void (*close)(struct storage *s);
};

struct storage {
    const struct storage_ops *ops;
};

/* Makes dir with mode 0700 and locks it until close: YK_BUSY if another has it. */
yk_err storage_dir_open(const char *dir, struct storage **out, struct yk_diag *why);
yk_err storage_mem_open(struct storage **out);

#endif
