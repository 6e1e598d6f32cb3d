/* The weight cache on storage that works, that is full, and that held things before. */
#include "agent/cache.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

struct bed {
    struct net *net;
    struct storage *storage;
    struct worker *io;
    struct cache *cache;
};

/* Storage that takes nothing, in front of one that does. */
static struct storage_ops full_ops;
static yk_err put_full(struct storage *s, const char *key, const void *data, size_t len, struct yk_diag *why)
{
    (void)s, (void)key, (void)data, (void)len;
    return yk_fail(why, YK_NOSPC, "no space left");
}

static void bed_open(struct bed *b, int64_t cap)
{
    memset(b, 0, sizeof *b);
    assert_int_equal(net_mem_open(1, &b->net), YK_OK);
    assert_int_equal(storage_mem_open(&b->storage), YK_OK);
    assert_int_equal(worker_open(b->net, "io", false, &b->io, NULL), YK_OK);
    assert_int_equal(cache_open(b->storage, b->io, cap, &b->cache, NULL), YK_OK);
}

static void bed_close(struct bed *b)
{
    worker_close(b->io);
    cache_close(b->cache);
    b->storage->ops->close(b->storage);
    net_close(b->net);
}

struct got {
    int calls;
    yk_err err;
    struct cache_entry *e;
};

static void on_put(void *arg, yk_err err, const char *why, struct cache_entry *e)
{
    struct got *g = arg;
    g->calls++;
    g->err = err;
    g->e = e;
    assert_true(!err || why[0]);
}

/* Puts `len` bytes of `fill`; fills hex. */
static struct got put(struct bed *b, uint8_t fill, size_t len, char hex[HASH_HEX_SIZE])
{
    struct got g = {0};
    uint8_t *buf = yk_try_aligned(len + 1);
    memset(buf, fill, len);
    hash_hex(buf, len, hex);
    cache_put(b->cache, hex, buf, len, on_put, &g);
    assert_int_equal(g.calls, 0);
    net_mem_run_for(b->net, 1000);
    assert_int_equal(g.calls, 1);
    return g;
}

static void one_copy_for_all_users(void **state)
{
    (void)state;
    struct bed b;
    char hex[HASH_HEX_SIZE];
    struct cache_entry *again;
    bed_open(&b, 1000);
    struct got g = put(&b, 7, 100, hex);
    assert_int_equal(g.err, YK_OK);
    assert_int_equal(cache_len(g.e), 100);
    assert_int_equal(((const uint8_t *)cache_data(g.e))[99], 7);
    assert_int_equal((uintptr_t)cache_data(g.e) % 64, 0);
    assert_int_equal(cache_use(b.cache, hex, &again, NULL), YK_OK);
    assert_ptr_equal(cache_data(again), cache_data(g.e));
    struct got twice = put(&b, 7, 100, hex); /* somebody else fetched it, too */
    assert_ptr_equal(twice.e, g.e);
    assert_int_equal(cache_bytes(b.cache), 100);
    for (int i = 0; i < 3; i++)
        cache_release(b.cache, g.e);
    assert_true(cache_has(b.cache, hex));
    bed_close(&b);
}

static void wrong_content_is_not_kept(void **state)
{
    (void)state;
    struct bed b;
    struct got g = {0};
    char hex[HASH_HEX_SIZE];
    bed_open(&b, 1000);
    uint8_t *buf = yk_try_aligned(10);
    memset(buf, 1, 10);
    hash_hex("other", 5, hex);
    cache_put(b.cache, hex, buf, 10, on_put, &g);
    net_mem_run_for(b.net, 1000);
    assert_int_equal(g.err, YK_FORMAT);
    assert_null(g.e);
    assert_false(cache_has(b.cache, hex));
    struct cache_entry *e;
    assert_int_equal(cache_use(b.cache, hex, &e, NULL), YK_NOTFOUND);
    bed_close(&b);
}

static void the_oldest_unused_goes_first(void **state)
{
    (void)state;
    struct bed b;
    char hex[4][HASH_HEX_SIZE];
    struct got g[4];
    bed_open(&b, 250);
    for (int i = 0; i < 2; i++)
        g[i] = put(&b, (uint8_t)i, 100, hex[i]);
    cache_release(b.cache, g[1].e);
    cache_release(b.cache, g[0].e); /* 1 is the oldest now */
    g[2] = put(&b, 2, 100, hex[2]);
    assert_true(cache_has(b.cache, hex[0]) && !cache_has(b.cache, hex[1]) && cache_has(b.cache, hex[2]));
    assert_int_equal(cache_use(b.cache, hex[0], &g[0].e, NULL), YK_OK);
    g[3] = put(&b, 3, 100, hex[3]); /* everything is in use: over the cap, but nothing is taken away */
    assert_int_equal(cache_bytes(b.cache), 300);
    cache_release(b.cache, g[0].e);
    cache_trim(b.cache, 0);
    assert_int_equal(cache_bytes(b.cache), 200);
    assert_false(cache_has(b.cache, hex[0]));
    cache_release(b.cache, g[2].e);
    cache_release(b.cache, g[3].e);
    bed_close(&b);
}

static void a_full_disk_stops_nothing(void **state)
{
    (void)state;
    struct bed b;
    char hex[HASH_HEX_SIZE];
    bed_open(&b, 1000);
    const struct storage_ops *real = b.storage->ops;
    full_ops = *real;
    full_ops.put = put_full;
    b.storage->ops = &full_ops;
    struct got g = put(&b, 9, 50, hex);
    assert_int_equal(g.err, YK_OK);
    assert_int_equal(((const uint8_t *)cache_data(g.e))[49], 9);
    cache_release(b.cache, g.e);
    assert_false(cache_has(b.cache, hex)); /* it lived in memory while it was used */
    b.storage->ops = real;
    bed_close(&b);
}

static void what_was_stored_is_found_again(void **state)
{
    (void)state;
    struct bed b;
    char hex[HASH_HEX_SIZE], key[100] = "blobs/";
    struct cache_entry *e;
    bed_open(&b, 1000);
    struct got g = put(&b, 5, 64, hex);
    cache_release(b.cache, g.e);
    cache_close(b.cache);
    assert_int_equal(b.storage->ops->put(b.storage, "blobs/junk", "x", 1, NULL), YK_OK);
    assert_int_equal(cache_open(b.storage, b.io, 1000, &b.cache, NULL), YK_OK);
    assert_int_equal(cache_bytes(b.cache), 64);
    assert_int_equal(cache_use(b.cache, hex, &e, NULL), YK_OK);
    assert_int_equal(cache_len(e), 64);
    cache_release(b.cache, e);
    strcat(key, hex); /* somebody cut the file */
    assert_int_equal(b.storage->ops->put(b.storage, key, "short", 5, NULL), YK_OK);
    assert_int_equal(cache_use(b.cache, hex, &e, NULL), YK_NOTFOUND);
    assert_false(cache_has(b.cache, hex)); /* so that it is fetched again */
    bed_close(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_copy_for_all_users),
        cmocka_unit_test(wrong_content_is_not_kept),
        cmocka_unit_test(the_oldest_unused_goes_first),
        cmocka_unit_test(a_full_disk_stops_nothing),
        cmocka_unit_test(what_was_stored_is_found_again),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
