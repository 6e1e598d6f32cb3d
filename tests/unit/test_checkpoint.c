/* Checkpoints: what is saved comes back, what is cut, changed or foreign is told from it, and the last good one stays.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "agent/checkpoint.h"

static const uint8_t ours[CHECKPOINT_CONFIG_BYTES] = {1, 2, 3}, theirs[CHECKPOINT_CONFIG_BYTES] = {9};

struct fixture {
    struct storage *storage[2];
    char dir[64];
};

static int setup(void **state)
{
    struct fixture *f = yk_xalloc(sizeof *f);
    strcpy(f->dir, "/tmp/yoke-test-XXXXXX");
    assert_non_null(mkdtemp(f->dir));
    assert_int_equal(storage_mem_open(&f->storage[0]), YK_OK);
    assert_int_equal(storage_dir_open(f->dir, &f->storage[1], NULL), YK_OK);
    *state = f;
    return 0;
}

static int teardown(void **state)
{
    struct fixture *f = *state;
    char command[128];
    for (int i = 0; i < 2; i++)
        f->storage[i]->ops->close(f->storage[i]);
    snprintf(command, sizeof command, "rm -rf '%s'", f->dir);
    assert_int_equal(system(command), 0);
    free(f);
    return 0;
}

#define N 3
static float weights[37], scalar = 2.5f;
static int64_t counts[5];
static struct checkpoint_tensor tensors[N] = {{"param/fc.weight", {DT_F32, 2, {37, 1}}, weights},
    {"scalar \"x\"/\xc3\xa9", {DT_F32, 0, {0}}, &scalar}, {"counts", {DT_I64, 1, {5}}, counts}};

static struct checkpoint make(int64_t step, const uint8_t *config)
{
    struct checkpoint c = {.step = step, .note = "{\"epoch\":3}", .tensors = tensors, .n_tensors = N};
    memcpy(c.config, config, sizeof c.config);
    for (int i = 0; i < 37; i++)
        weights[i] = (float)(step * 100 + i) / 7;
    for (int i = 0; i < 5; i++)
        counts[i] = step * 1000 + i;
    return c;
}

static void save_keep(struct storage *s, int64_t step, int keep)
{
    struct checkpoint c = make(step, ours);
    struct yk_diag why = {""};
    assert_int_equal(checkpoint_save(s, "job/one", &c, keep, &why), YK_OK);
}

static void save(struct storage *s, int64_t step)
{
    save_keep(s, step, 2);
}

static bool count_key(void *arg, const char *key, int64_t bytes)
{
    (void)key;
    (void)bytes;
    ++*(int *)arg;
    return true;
}

static int n_kept(struct storage *s)
{
    int n = 0;
    s->ops->list(s, "", count_key, &n);
    return n;
}

static void comes_back(void **state)
{
    struct fixture *f = *state;
    for (int k = 0; k < 2; k++) {
        struct storage *s = f->storage[k];
        struct checkpoint_file file;
        struct yk_diag why = {""};
        float got[37], one;
        int64_t ints[5];
        struct shape wrong = {DT_F32, 2, {1, 37}};
        assert_int_equal(checkpoint_open(s, "job/one", ours, -1, &file, &why), YK_NOTFOUND);
        for (int64_t step = 1; step < 30; step += 9)
            save(s, step);
        assert_int_equal(n_kept(s), 2);
        make(28, ours);
        assert_int_equal(checkpoint_open(s, "job/one", ours, -1, &file, &why), YK_OK);
        assert_int_equal(file.c.step, 28);
        assert_string_equal(file.c.note, "{\"epoch\":3}");
        assert_int_equal(file.c.n_tensors, N);
        assert_int_equal(file.skipped, 0);
        assert_int_equal(checkpoint_take(&file.c, tensors[0].name, &tensors[0].shape, got, &why), YK_OK);
        assert_memory_equal(got, weights, sizeof got);
        assert_int_equal(checkpoint_take(&file.c, tensors[1].name, &tensors[1].shape, &one, &why), YK_OK);
        assert_true(one == scalar);
        assert_int_equal(checkpoint_take(&file.c, "counts", &tensors[2].shape, ints, &why), YK_OK);
        assert_memory_equal(ints, counts, sizeof ints);
        assert_int_equal(checkpoint_take(&file.c, "nothing", &tensors[2].shape, ints, &why), YK_NOTFOUND);
        assert_int_equal(checkpoint_take(&file.c, tensors[0].name, &wrong, got, &why), YK_INVAL);
        assert_non_null(strstr(why.text, "float32[37,1]"));
        checkpoint_close(&file);
        assert_int_equal(checkpoint_open(s, "job/one", ours, 19, &file, &why), YK_OK);
        assert_int_equal(file.c.step, 19);
        checkpoint_close(&file);
        assert_int_equal(checkpoint_open(s, "job/one", ours, 1, &file, &why), YK_NOTFOUND);
        checkpoint_remove(s, "job/one", 28);
        assert_int_equal(checkpoint_open(s, "job/one", ours, -1, &file, &why), YK_OK);
        assert_int_equal(file.c.step, 19);
        checkpoint_close(&file);
    }
}

/* A kill behind a save left one too many, and the newest is not whole: what goes on is cleared up once. */
static void tidied(void **state)
{
    struct fixture *f = *state;
    for (int k = 0; k < 2; k++) {
        struct storage *s = f->storage[k];
        struct checkpoint_file file;
        for (int64_t step = 1; step <= 5; step++)
            save_keep(s, step, 0);
        checkpoint_tidy(s, "job/one", 4, 2);
        assert_int_equal(n_kept(s), 2);
        assert_int_equal(checkpoint_open(s, "job/one", ours, 3, &file, NULL), YK_OK);
        checkpoint_close(&file);
        assert_int_equal(checkpoint_open(s, "job/one", ours, 4, &file, NULL), YK_OK);
        checkpoint_close(&file);
        checkpoint_tidy(s, "job/none", 4, 2);
    }
}

static void of_another_training(void **state)
{
    struct fixture *f = *state;
    struct checkpoint_file file;
    struct yk_diag why = {""};
    save(f->storage[0], 4);
    assert_int_equal(checkpoint_open(f->storage[0], "job/one", theirs, -1, &file, &why), YK_STATE);
    assert_non_null(strstr(why.text, "another training"));
    assert_int_equal(checkpoint_open(f->storage[0], "job/one", NULL, -1, &file, &why), YK_OK); /* of any */
    assert_memory_equal(file.c.config, ours, sizeof file.c.config);
    checkpoint_close(&file);
}

/* Every cut, and a changed bit anywhere, is found; the one before is taken. */
static void cut_or_changed(void **state)
{
    struct fixture *f = *state;
    struct storage *s = f->storage[0];
    struct storage_map m;
    struct checkpoint_file file;
    struct yk_diag why = {""};
    save(s, 7);
    save(s, 8);
    assert_int_equal(s->ops->map(s, "job/one/step-000000000008", &m, NULL), YK_OK);
    uint8_t *copy = malloc(m.len);
    size_t len = m.len;
    memcpy(copy, m.data, len);
    s->ops->unmap(s, &m);
    for (size_t cut = 0; cut < len; cut++) {
        assert_int_equal(s->ops->put(s, "job/one/step-000000000008", copy, cut, NULL), YK_OK);
        assert_int_equal(checkpoint_open(s, "job/one", ours, 8, &file, &why), YK_FORMAT);
        assert_non_null(strstr(why.text, "step-000000000008"));
        assert_int_equal(checkpoint_open(s, "job/one", ours, -1, &file, &why), YK_OK);
        assert_true(file.c.step == 7 && file.skipped == 1);
        checkpoint_close(&file);
    }
    for (size_t bit = 0; bit < 8 * len; bit++) {
        copy[bit / 8] ^= (uint8_t)(1 << bit % 8);
        assert_int_equal(s->ops->put(s, "job/one/step-000000000008", copy, len, NULL), YK_OK);
        yk_err err = checkpoint_open(s, "job/one", ours, 8, &file, &why);
        assert_true(err == YK_FORMAT || (err == YK_VERSION && bit / 8 >= 8 && bit / 8 < 12));
        copy[bit / 8] ^= (uint8_t)(1 << bit % 8);
    }
    assert_int_equal(s->ops->put(s, "job/one/step-000000000007", "text", 4, NULL), YK_OK);
    assert_int_equal(s->ops->put(s, "job/one/step-000000000008", copy, 40, NULL), YK_OK);
    assert_int_equal(checkpoint_open(s, "job/one", ours, -1, &file, &why), YK_FORMAT);
    assert_int_equal(s->ops->put(s, "job/one/step-8", copy, len, NULL), YK_OK); /* no name of ours */
    assert_int_equal(checkpoint_open(s, "job/one", ours, -1, &file, &why), YK_FORMAT);
    free(copy);
}

static yk_err full_put(
    struct storage *s, const char *key, const struct storage_part *parts, int64_t n, struct yk_diag *why)
{
    (void)s;
    (void)parts;
    (void)n;
    return yk_fail(why, YK_NOSPC, "cannot write '%s': No space left on device", key);
}

static void disk_full(void **state)
{
    struct fixture *f = *state;
    struct storage *s = f->storage[1];
    const struct storage_ops *real = s->ops;
    struct storage_ops full = *real;
    struct checkpoint_file file;
    struct yk_diag why = {""};
    save(s, 1);
    save(s, 2);
    full.put_parts = full_put;
    s->ops = &full;
    struct checkpoint c = make(3, ours);
    assert_int_equal(checkpoint_save(s, "job/one", &c, 2, &why), YK_NOSPC);
    assert_non_null(strstr(why.text, "checkpoint of step 3"));
    s->ops = real;
    assert_int_equal(n_kept(s), 2);
    assert_int_equal(checkpoint_open(s, "job/one", ours, -1, &file, &why), YK_OK);
    assert_int_equal(file.c.step, 2);
    checkpoint_close(&file);
}

static void bad_wishes(void **state)
{
    struct fixture *f = *state;
    struct yk_diag why = {""};
    struct checkpoint c = make(-1, ours);
    assert_int_equal(checkpoint_save(f->storage[0], "job/one", &c, 2, &why), YK_INVAL);
    c = make(1, ours);
    assert_int_equal(checkpoint_save(f->storage[0], "../one", &c, 2, &why), YK_INVAL);
    c.n_tensors = 0;
    struct checkpoint_file file;
    assert_int_equal(checkpoint_save(f->storage[0], "job/none", &c, 0, &why), YK_OK);
    assert_int_equal(checkpoint_open(f->storage[0], "job/none", ours, -1, &file, &why), YK_OK);
    assert_int_equal(file.c.n_tensors, 0);
    checkpoint_close(&file);
    checkpoint_close(&file);
}

int main(void)
{
#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
    const struct CMUnitTest tests[] = {TEST(comes_back), TEST(tidied), TEST(of_another_training), TEST(cut_or_changed),
        TEST(disk_full), TEST(bad_wishes)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
