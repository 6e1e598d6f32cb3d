/* Weights, graphs and uploaded inputs by SHA-256, over the agent's storage (keys blobs/<hex>). One mapping of each,
 * users counted; what nobody uses is removed, least recently used first, when the cache grows over its cap. Content is
 * verified when it is received and never again. If storage takes nothing (full disk, no permission) a blob lives in
 * memory while it is used. Loop thread; storing and hashing run on the io worker. */
#ifndef YK_CACHE_H
#define YK_CACHE_H

#include "common/hash.h"
#include "common/storage.h"
#include "common/worker.h"

struct cache;
struct cache_entry;

#define CACHE_CAP_BYTES ((int64_t)16 << 30)

yk_err cache_open(struct storage *s, struct worker *io, int64_t cap_bytes, struct cache **out, struct yk_diag *why);
void cache_close(struct cache *c); /* after the worker has closed and every user has released; NULL allowed */

bool cache_has(const struct cache *c, const char *hex);
/* Maps it and counts a user. YK_NOTFOUND if it is not here (then fetch it). */
yk_err cache_use(struct cache *c, const char *hex, struct cache_entry **out, struct yk_diag *why);
void cache_release(struct cache *c, struct cache_entry *e);
const void *cache_data(const struct cache_entry *e); /* aligned 64 */
size_t cache_len(const struct cache_entry *e);

/* Takes buf (from yk_try_aligned) always; hex NULL: under whatever name its content has. done comes once on the loop;
 * on YK_OK the entry has one user, the caller. Errors: YK_FORMAT if the content is not what the name says. */
void cache_put(struct cache *c, const char *hex, void *buf, size_t len,
    void (*done)(void *arg, yk_err err, const char *why, struct cache_entry *e), void *arg);

void cache_trim(struct cache *c, int64_t to_bytes); /* removes unused ones until the total is that */
int64_t cache_bytes(const struct cache *c);

#endif
