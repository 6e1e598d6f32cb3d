/* Every tile runs exactly once, whatever the threads; runs may follow each other at once or after a pause. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <unistd.h>

#include <cmocka.h>

#include "kernels/pool.h"

#define TILES 1000

struct count {
    atomic_int tile[TILES];
    atomic_int bad_thread;
    int threads;
};

static void mark(void *arg, int64_t tile, int thread)
{
    struct count *c = arg;
    atomic_fetch_add(&c->tile[tile], 1);
    if (thread < 0 || thread >= c->threads)
        atomic_store(&c->bad_thread, 1);
}

static void each_tile_once(void **state)
{
    (void)state;
    for (int threads = 1; threads <= 5; threads++) {
        struct pool *p;
        assert_int_equal(pool_open(threads, &p, NULL), YK_OK);
        assert_int_equal(pool_threads(p), threads);
        for (int round = 0; round < 300; round++) {
            static struct count c;
            int tiles = round * 7 % TILES;
            for (int i = 0; i < TILES; i++)
                atomic_store(&c.tile[i], 0);
            c.threads = threads;
            pool_run(p, tiles, mark, &c);
            for (int i = 0; i < TILES; i++)
                assert_int_equal(atomic_load(&c.tile[i]), i < tiles);
            assert_int_equal(atomic_load(&c.bad_thread), 0);
            if (round % 50 == 0)
                usleep(2000); /* lets the workers fall asleep */
        }
        pool_close(p);
    }
}

static void bad_counts(void **state)
{
    (void)state;
    struct pool *p = NULL;
    struct yk_diag why = {""};
    assert_int_equal(pool_open(0, &p, &why), YK_INVAL);
    assert_int_equal(pool_open(100000, &p, &why), YK_INVAL);
    assert_non_null(why.text[0] ? why.text : NULL);
    pool_close(NULL);
}

static void closes_without_work(void **state)
{
    (void)state;
    for (int i = 0; i < 50; i++) {
        struct pool *p;
        assert_int_equal(pool_open(4, &p, NULL), YK_OK);
        pool_close(p);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_tile_once),
        cmocka_unit_test(bad_counts),
        cmocka_unit_test(closes_without_work),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
