#include "agent/cache.h"

#include "common/log.h"

#include <stdlib.h>
#include <string.h>

#define PREFIX "blobs/"

struct cache_entry {
    struct cache_entry *next;
    char hex[HASH_HEX_SIZE];
    int64_t bytes;
    uint64_t used_at; /* of a counter: larger is later */
    int users;
    bool mapped;
    struct storage_map map;
    void *memory; /* not in storage: kept here while it is used */
};

struct cache {
    struct storage *storage;
    struct worker *io;
    int64_t cap, total;
    uint64_t clock;
    struct cache_entry *entries;
};

static struct cache_entry *find(const struct cache *c, const char *hex)
{
    struct cache_entry *e = c->entries;
    while (e && strcmp(e->hex, hex) != 0)
        e = e->next;
    return e;
}

static struct cache_entry *add(struct cache *c, const char *hex, int64_t bytes)
{
    struct cache_entry *e = yk_xalloc(sizeof *e);
    memcpy(e->hex, hex, HASH_HEX_SIZE);
    e->bytes = bytes;
    e->used_at = ++c->clock;
    e->next = c->entries;
    c->entries = e;
    c->total += bytes;
    return e;
}

static void forget(struct cache *c, struct cache_entry *e)
{
    struct cache_entry **p = &c->entries;
    while (*p != e)
        p = &(*p)->next;
    *p = e->next;
    c->total -= e->bytes;
    if (e->mapped)
        c->storage->ops->unmap(c->storage, &e->map);
    free(e->memory);
    free(e);
}

static bool on_key(void *arg, const char *key, int64_t bytes)
{
    struct cache *c = arg;
    const char *hex = key + strlen(PREFIX);
    if (!strncmp(key, PREFIX, strlen(PREFIX)) && hash_is_hex(hex))
        add(c, hex, bytes);
    return true;
}

yk_err cache_open(struct storage *s, struct worker *io, int64_t cap_bytes, struct cache **out, struct yk_diag *why)
{
    struct cache *c = yk_xalloc(sizeof *c);
    c->storage = s;
    c->io = io;
    c->cap = cap_bytes;
    yk_err err = s->ops->list(s, PREFIX, on_key, c);
    if (err && err != YK_NOTFOUND) {
        cache_close(c);
        return yk_fail(why, err, "cannot list the weight cache: %s", yk_err_text(err));
    }
    cache_trim(c, c->cap);
    *out = c;
    return YK_OK;
}

void cache_close(struct cache *c)
{
    if (!c)
        return;
    while (c->entries)
        forget(c, c->entries);
    free(c);
}

bool cache_has(const struct cache *c, const char *hex)
{
    return find(c, hex) != NULL;
}

yk_err cache_use(struct cache *c, const char *hex, struct cache_entry **out, struct yk_diag *why)
{
    struct cache_entry *e = find(c, hex);
    if (!e)
        return yk_fail(why, YK_NOTFOUND, "blob %.12s is not in the cache", hex);
    if (!e->mapped && !e->memory) {
        char key[sizeof PREFIX + HASH_HEX_SIZE] = PREFIX;
        strcat(key, hex);
        yk_err err = c->storage->ops->map(c->storage, key, &e->map, why);
        if (!err && (int64_t)e->map.len != e->bytes) {
            c->storage->ops->unmap(c->storage, &e->map);
            err = yk_fail(why, YK_NOTFOUND, "blob %.12s changed its size on disk", hex);
        }
        if (err) {
            forget(c, e);
            return err;
        }
        e->mapped = true;
    }
    e->users++;
    e->used_at = ++c->clock;
    *out = e;
    return YK_OK;
}

void cache_release(struct cache *c, struct cache_entry *e)
{
    e->used_at = ++c->clock;
    if (--e->users > 0)
        return;
    if (e->memory) {
        forget(c, e);
        return;
    }
    c->storage->ops->unmap(c->storage, &e->map);
    e->mapped = false;
}

const void *cache_data(const struct cache_entry *e)
{
    return e->memory ? e->memory : e->map.data;
}

size_t cache_len(const struct cache_entry *e)
{
    return (size_t)e->bytes;
}

int64_t cache_bytes(const struct cache *c)
{
    return c->total;
}

void cache_trim(struct cache *c, int64_t to_bytes)
{
    while (c->total > to_bytes) {
        struct cache_entry *oldest = NULL;
        for (struct cache_entry *e = c->entries; e; e = e->next)
            if (!e->users && (!oldest || e->used_at < oldest->used_at))
                oldest = e;
        if (!oldest)
            return;
        char key[sizeof PREFIX + HASH_HEX_SIZE] = PREFIX;
        strcat(key, oldest->hex);
        c->storage->ops->remove(c->storage, key);
        forget(c, oldest);
    }
}

/* ---- receiving ---- */

struct put {
    struct cache *cache;
    char hex[HASH_HEX_SIZE];
    void *buf;
    size_t len;
    yk_err err; /* of the content */
    yk_err stored;
    struct yk_diag why;
    void (*done)(void *arg, yk_err err, const char *why, struct cache_entry *e);
    void *arg;
};

static void put_run(void *arg)
{
    struct put *p = arg;
    char got[HASH_HEX_SIZE], key[sizeof PREFIX + HASH_HEX_SIZE] = PREFIX;
    hash_hex(p->buf, p->len, got);
    if (!p->hex[0])
        memcpy(p->hex, got, sizeof got);
    if (strcmp(got, p->hex) != 0) {
        p->err =
            yk_fail(&p->why, YK_FORMAT, "blob %.12s arrived with other content (its SHA-256 is %.12s)", p->hex, got);
        return;
    }
    strcat(key, p->hex);
    struct storage *s = p->cache->storage;
    p->stored = s->ops->put(s, key, p->buf, p->len, &p->why);
}

static void put_done(void *arg)
{
    struct put *p = arg;
    struct cache *c = p->cache;
    struct cache_entry *e = NULL;
    yk_err err = p->err;
    if (!err) {
        e = find(c, p->hex); /* somebody else may have brought it meanwhile */
        if (!e) {
            e = add(c, p->hex, (int64_t)p->len);
            if (p->stored) {
                log_warn("weight cache: %s; keeping the blob in memory", p->why.text);
                e->memory = p->buf;
                p->buf = NULL;
            }
        }
        err = cache_use(c, p->hex, &e, &p->why);
        cache_trim(c, c->cap);
    }
    free(p->buf);
    p->done(p->arg, err, p->why.text, err ? NULL : e);
    free(p);
}

void cache_put(struct cache *c, const char *hex, void *buf, size_t len,
    void (*done)(void *arg, yk_err err, const char *why, struct cache_entry *e), void *arg)
{
    struct put *p = yk_xalloc(sizeof *p);
    p->cache = c;
    if (hex)
        memcpy(p->hex, hex, HASH_HEX_SIZE);
    p->buf = buf;
    p->len = len;
    p->done = done;
    p->arg = arg;
    worker_post(c->io, put_run, put_done, p);
}
