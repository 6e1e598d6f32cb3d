/* Data sets: the real one where it is installed, small ones made here, and what must be refused. */
#include "agent/batches.h"
#include "agent/sampler.h"
#include "common/npy.h"
#include "tests/folder.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>
#include <zlib.h>

#define REAL "/usr/share/datasets/fashion-mnist"

static void put(const char *name, const void *data, size_t len)
{
    char *path = yk_xasprintf("%s/%s", root, name);
    size_t n = strlen(path);
    if (n > 3 && !strcmp(path + n - 3, ".gz")) {
        gzFile z = gzopen(path, "wb");
        assert_true(gzwrite(z, data, (unsigned)len) == (int)len);
        gzclose(z);
    } else {
        FILE *f = fopen(path, "wb");
        assert_non_null(f);
        fwrite(data, 1, len, f);
        fclose(f);
    }
    free(path);
}

/* 3 images of 2x2 and labels 7 8 9. */
static const uint8_t images[16 + 12] = {
    0, 0, 8, 3, 0, 0, 0, 3, 0, 0, 0, 2, 0, 0, 0, 2, 0, 20, 40, 60, 80, 100, 120, 140, 160, 180, 200, 255};
static const uint8_t labels[8 + 3] = {0, 0, 8, 1, 0, 0, 0, 3, 7, 8, 9};

static struct data_set *must_open(const char *name, const struct data_options *o)
{
    char *path = yk_xasprintf("%s/%s", root, name);
    struct data_set *d = NULL;
    struct yk_diag why = {0};
    if (data_open(path, o, &d, &why) != YK_OK)
        fail_msg("%s", why.text);
    free(path);
    return d;
}

static void must_refuse(const char *name, const struct data_options *o, yk_err want, const char *part)
{
    char *path = yk_xasprintf("%s/%s", root, name);
    struct data_set *d = NULL;
    struct yk_diag why = {0};
    yk_err got = data_open(path, o, &d, &why);
    if (got != want || !strstr(why.text, part))
        fail_msg("%s: got %s '%s', expected %s with '%s'", name, yk_err_name(got), why.text, yk_err_name(want), part);
    free(path);
}

static void idx_folders(void **state)
{
    (void)state;
    struct data_options o = {0};
    run("mkdir %s/idx %s/gz", root, root);
    put("idx/t10k-images-idx3-ubyte", images, sizeof images);
    put("idx/t10k-labels-idx1-ubyte", labels, sizeof labels);
    put("gz/train-images-idx3-ubyte.gz", images, sizeof images);
    put("gz/train-labels-idx1-ubyte.gz", labels, sizeof labels);
    for (int gz = 0; gz < 2; gz++) {
        o.split = gz ? "train" : NULL;
        struct data_set *d = must_open(gz ? "gz" : "idx", &o);
        assert_int_equal(data_count(d), 3);
        const struct shape *s = data_sample(d);
        assert_true(s->dtype == DT_F32 && s->rank == 3 && s->dims[0] == 1 && s->dims[1] == 2 && s->dims[2] == 2);
        assert_true(data_labelled(d));
        float x[8];
        int64_t y[2];
        struct yk_diag why;
        assert_int_equal(data_read(d, 1, 2, x, y, &why), YK_OK);
        assert_true(x[0] == 80.0f / 255.0f && x[7] == 1.0f && y[0] == 8 && y[1] == 9);
        assert_int_equal(data_read(d, 2, 2, x, NULL, &why), YK_INVAL);
        assert_int_equal(data_read(d, -1, 1, x, NULL, &why), YK_INVAL);
        assert_int_equal(data_read(d, 0, 0, x, y, &why), YK_OK);
        data_close(d);
    }
    must_refuse("gz", &(struct data_options){0}, YK_NOTFOUND, "t10k");
    must_refuse("gz", &(struct data_options){.split = "val"}, YK_NOTFOUND, "t10k");
    must_refuse("gz", &(struct data_options){.split = "all"}, YK_INVAL, "split 'all'");
    must_refuse("nowhere", &(struct data_options){0}, YK_NOTFOUND, "nowhere");
}

static void normalisation(void **state)
{
    (void)state;
    double mean[] = {0.5}, std[] = {0.25}, three[] = {1, 2, 3}, zero[] = {0};
    struct data_options o = {.mean = mean, .n_mean = 1, .std = std, .n_std = 1};
    struct data_set *d = must_open("idx", &o);
    float x[4];
    assert_int_equal(data_read(d, 0, 1, x, NULL, NULL), YK_OK);
    assert_true(x[0] == -2.0f && x[1] == (float)(((double)(20.0f / 255.0f) - 0.5) / 0.25));
    data_close(d);
    must_refuse("idx", &(struct data_options){.mean = three, .n_mean = 3}, YK_INVAL, "3 values");
    must_refuse("idx", &(struct data_options){.std = zero, .n_std = 1}, YK_INVAL, "above 0");
}

static void bad_idx(void **state)
{
    (void)state;
    uint8_t bad[sizeof images + 1];
    struct data_options o = {0};
    run("mkdir %s/bad", root);
    const char *name = "bad/t10k-images-idx3-ubyte";
    put(name, images, sizeof images - 5);
    must_refuse("bad", &o, YK_FORMAT, "promises 12 bytes from offset 16");
    put(name, images, 9);
    must_refuse("bad", &o, YK_FORMAT, "offset 9");
    put(name, images, 0);
    must_refuse("bad", &o, YK_FORMAT, "offset 0");
    memcpy(bad, images, sizeof images);
    bad[sizeof images] = 0;
    put(name, bad, sizeof bad);
    must_refuse("bad", &o, YK_FORMAT, "the file has 13");
    bad[2] = 0x0d;
    put(name, bad, sizeof images);
    must_refuse("bad", &o, YK_FORMAT, "magic 00000d03 at offset 0");
    bad[2] = 8;
    memset(bad + 4, 0xff, 12);
    put(name, bad, sizeof images);
    must_refuse("bad", &o, YK_LIMIT, "offset ");
    put(name, images, sizeof images);
    put("bad/t10k-labels-idx1-ubyte", labels, sizeof labels - 1);
    must_refuse("bad", &o, YK_FORMAT, "labels-idx1-ubyte");
    uint8_t two[10];
    memcpy(two, labels, 10);
    two[7] = 2;
    put("bad/t10k-labels-idx1-ubyte", two, 10);
    must_refuse("bad", &o, YK_FORMAT, "2 labels");
    run("rm %s/bad/* && mkfifo %s/bad/t10k-images-idx3-ubyte", root, root);
    must_refuse("bad", &o, YK_INVAL, "regular"); /* and it does not wait for a writer */
}

static void a_file_that_shrinks(void **state)
{
    (void)state;
    struct data_options o = {0};
    run("mkdir %s/shrink", root);
    put("shrink/t10k-images-idx3-ubyte", images, sizeof images);
    struct data_set *d = must_open("shrink", &o);
    run("truncate -s 20 %s/shrink/t10k-images-idx3-ubyte", root);
    float x[12];
    struct yk_diag why = {0};
    assert_int_equal(data_read(d, 0, 1, x, NULL, &why), YK_OK);
    assert_int_equal(data_read(d, 0, 3, x, NULL, &why), YK_IO);
    assert_non_null(strstr(why.text, "offset 20"));
    data_close(d);
}

static void bad_gz(void **state)
{
    (void)state;
    struct data_options o = {0};
    run("mkdir %s/badgz", root);
    const char *name = "badgz/t10k-images-idx3-ubyte.gz";
    uint8_t big[16 + 4096] = {0, 0, 8, 3, 0, 0, 0, 1, 0, 0, 0, 64, 0, 0, 0, 64};
    struct yk_rng r;
    yk_rng_seed(&r, 1);
    for (size_t i = 16; i < sizeof big; i++)
        big[i] = (uint8_t)yk_rng_next(&r);
    put(name, big, sizeof big);
    data_close(must_open("badgz", &o));
    run("truncate -s 2000 %s/%s", root, name);
    must_refuse("badgz", &o, YK_FORMAT, "t10k-images-idx3-ubyte.gz");
    put(name, big, sizeof big - 10);
    must_refuse("badgz", &o, YK_FORMAT, "promises");
    put(name, big, sizeof big);
    run("printf '\\377\\377\\377' | dd of=%s/%s bs=1 seek=600 conv=notrunc 2>/dev/null", root, name);
    must_refuse("badgz", &o, YK_FORMAT, "t10k-images-idx3-ubyte.gz");
}

/* Five files of 3, 2, 1, 3 and 2 records; pixel k of record r of all is (r * 7 + k) % 256, its label r % 10. */
static void cifar(void **state)
{
    (void)state;
    static const int counts[] = {3, 2, 1, 3, 2};
    static uint8_t record[3 * 3073];
    static float x[11 * 3072];
    int64_t y[11];
    double mean[] = {0, 0, 0.5}, std[] = {1, 1, 0.5};
    struct data_options o = {.split = "train", .mean = mean, .std = std, .n_mean = 3, .n_std = 3};
    struct yk_diag why = {0};
    run("mkdir %s/cifar", root);
    for (int f = 0, r = 0; f < 5; f++) {
        char name[40];
        for (int i = 0; i < counts[f]; i++, r++) {
            record[i * 3073] = (uint8_t)(r % 10);
            for (int k = 0; k < 3072; k++)
                record[i * 3073 + 1 + k] = (uint8_t)(r * 7 + k);
        }
        snprintf(name, sizeof name, "cifar/data_batch_%d.bin", f + 1);
        put(name, record, (size_t)counts[f] * 3073);
    }
    struct data_set *d = must_open("cifar", &o);
    assert_int_equal(data_count(d), 11);
    assert_true(data_labelled(d) && data_sample(d)->dims[0] == 3 && data_sample(d)->dims[2] == 32);
    for (int64_t first = 0; first <= 11; first++) { /* over the borders of the files */
        int64_t n = YK_MIN(11 - first, 5);
        assert_int_equal(data_read(d, first, n, x, y, &why), YK_OK);
        for (int64_t i = 0; i < n; i++) {
            assert_int_equal(y[i], (first + i) % 10);
            for (int64_t k = 0; k < 3072; k++) {
                float v = (float)(uint8_t)((first + i) * 7 + k) / 255.0f;
                assert_true(x[i * 3072 + k] == (k < 2048 ? v : (float)(((double)v - 0.5) / 0.5)));
            }
        }
    }
    data_close(d);
    must_refuse("cifar", &(struct data_options){0}, YK_NOTFOUND, "test_batch.bin");
    record[3073] = 10;
    put("cifar/test_batch.bin", record, 2 * 3073);
    d = must_open("cifar", &(struct data_options){0});
    assert_int_equal(data_check_labels(d, 10, NULL, &why), YK_FORMAT); /* before anything is read to train with */
    assert_non_null(strstr(why.text, "cifar: test_batch.bin: label 10 at offset 3073; CIFAR-10 has 0 to 9"));
    assert_int_equal(data_read(d, 0, 2, x, y, &why), YK_FORMAT);
    assert_non_null(strstr(why.text, "test_batch.bin: label 10 at offset 3073"));
    assert_int_equal(data_read(d, 0, 2, x, NULL, &why), YK_OK);
    data_close(d);
    int64_t ignore = 3;
    record[0] = 0;
    record[3073] = 3;
    put("cifar/test_batch.bin", record, 2 * 3073);
    d = must_open("cifar", &(struct data_options){0});
    assert_int_equal(data_check_labels(d, 3, NULL, &why), YK_FORMAT);
    assert_non_null(strstr(why.text, "label 3 at offset 3073; the model has 3 classes: 0 to 2"));
    assert_int_equal(data_check_labels(d, 3, &ignore, &why), YK_OK);
    data_close(d);
    put("cifar/test_batch.bin", record, 3000);
    must_refuse("cifar", &(struct data_options){0}, YK_FORMAT, "test_batch.bin: 3000 bytes are not whole records");
    run("cd %s/cifar && rm *.bin && touch data_batch_1 test_batch", root);
    must_refuse("cifar", &o, YK_UNSUPPORTED, "binary version");
}

static void put_npy(const char *name, enum dtype t, int rank, const int64_t *dims, const void *data)
{
    struct shape s = {.dtype = t, .rank = rank};
    memcpy(s.dims, dims, sizeof *dims * (size_t)rank);
    struct yk_buf b = {0};
    assert_int_equal(npy_header(&s, &b), YK_OK);
    yk_buf_add(&b, data, (size_t)shape_bytes(&s));
    put(name, b.data, b.len);
    yk_buf_free(&b);
}

static void npy_files(void **state)
{
    (void)state;
    float f[6] = {1, 2, 3, 4, 5, 6}, x[6];
    int64_t y[2] = {4, 5}, dims[3] = {2, 3, 1}, labels_read[2];
    int32_t y32[2] = {-1, 9};
    uint8_t u[6] = {0, 51, 102, 153, 204, 255};
    run("mkdir %s/npy", root);
    put_npy("npy/x.npy", DT_F32, 2, dims, f);
    put_npy("npy/y.npy", DT_I64, 1, dims, y);
    put_npy("npy/u.npy", DT_U8, 3, dims, u);
    put_npy("npy/i.npy", DT_I64, 1, dims, y);
    put_npy("npy/scalar.npy", DT_F32, 0, dims, f);
    struct data_set *d = must_open("npy", &(struct data_options){0});
    assert_true(data_count(d) == 2 && data_sample(d)->rank == 1);
    assert_int_equal(data_read(d, 0, 2, x, labels_read, NULL), YK_OK);
    assert_memory_equal(x, f, sizeof f);
    assert_true(labels_read[0] == 4 && labels_read[1] == 5);
    data_close(d);
    put_npy("npy/y.npy", DT_I32, 1, dims, y32);
    d = must_open("npy", &(struct data_options){0});
    assert_int_equal(data_read(d, 0, 2, x, labels_read, NULL), YK_OK);
    assert_true(labels_read[0] == -1 && labels_read[1] == 9);
    data_close(d);
    d = must_open("npy/u.npy", &(struct data_options){0});
    assert_false(data_labelled(d));
    const struct shape *s = data_sample(d);
    assert_true(s->rank == 3 && s->dims[0] == 1 && s->dims[1] == 3 && s->dtype == DT_F32); /* NCHW */
    assert_int_equal(data_read(d, 0, 2, x, NULL, NULL), YK_OK);
    assert_true(x[1] == 51.0f / 255.0f && x[5] == 1.0f);
    assert_int_equal(data_read(d, 0, 2, x, labels_read, NULL), YK_INVAL);
    data_close(d);
    d = must_open("npy/i.npy", &(struct data_options){0}); /* tokens stay integers */
    assert_true(data_sample(d)->rank == 0 && data_sample(d)->dtype == DT_I64);
    data_close(d);
    must_refuse("npy/scalar.npy", &(struct data_options){0}, YK_INVAL, "scalar.npy");
    put_npy("npy/y.npy", DT_I8, 1, dims, u);
    must_refuse("npy", &(struct data_options){0}, YK_UNSUPPORTED, "int8");
    put("npy/junk.npy", images, sizeof images);
    must_refuse("npy/junk.npy", &(struct data_options){0}, YK_FORMAT, "junk.npy");
    run("cd %s/npy && truncate -s -3 u.npy", root);
    must_refuse("npy/u.npy", &(struct data_options){0}, YK_FORMAT, "u.npy");
}

static void npy_in_memory(void **state)
{
    (void)state;
    struct shape s = {DT_F32, 2, {2, 2}};
    float f[4] = {1, 2, 3, 4}, x[2];
    struct yk_buf b = {0};
    npy_header(&s, &b);
    yk_buf_add(&b, f, sizeof f);
    struct data_set *d;
    struct yk_diag why;
    assert_int_equal(data_open_memory(b.data, b.len, NULL, 0, NULL, &d, &why), YK_OK);
    assert_int_equal(data_read(d, 1, 1, x, NULL, &why), YK_OK);
    assert_true(x[0] == 3 && x[1] == 4);
    data_close(d);
    assert_int_equal(data_open_memory(b.data, b.len - 1, NULL, 0, NULL, &d, &why), YK_FORMAT);
    assert_int_equal(data_open_memory(b.data, b.len, "junk", 4, NULL, &d, &why), YK_FORMAT);
    yk_buf_free(&b);
}

static void nothing_outside_the_roots(void **state)
{
    (void)state;
    run("mkdir -p %s/roots/a/set %s/secret", root, root);
    put("roots/a/set/t10k-images-idx3-ubyte", images, sizeof images);
    put("secret/t10k-images-idx3-ubyte", images, sizeof images);
    run("ln -s ../../secret %s/roots/a/out && ln -s set %s/roots/a/alias", root, root);
    run("mkdir %s/roots/a/sneaky && ln -s ../../../secret/t10k-images-idx3-ubyte %s/roots/a/sneaky/", root, root);
    run("mkdir %s/roots/ab && cp %s/secret/* %s/roots/ab/ && ln -s ../ab %s/roots/a/near", root, root, root, root);
    char *a = yk_xasprintf("%s/roots/a", root);
    const char *const roots[] = {"/nonexistent", a, NULL};
    static const char *const bad[] = {
        "../secret", "/etc", "", "set/../../../secret", "..", "out", "set/..", "sneaky", "near", "a//b", "./set"};
    struct data_set *d;
    struct yk_diag why;
    for (size_t i = 0; i < YK_COUNT(bad); i++) {
        yk_err err = data_open_below(roots, bad[i], NULL, &d, &why);
        if (err != YK_PERM)
            fail_msg("'%s': %s %s", bad[i], yk_err_name(err), err ? why.text : "");
    }
    assert_int_equal(data_open_below(roots, "none", NULL, &d, &why), YK_NOTFOUND);
    assert_int_equal(data_open_below(NULL, "set", NULL, &d, &why), YK_NOTFOUND);
    assert_non_null(strstr(why.text, "--data-root"));
    static const char *const good[] = {"set", "alias"};
    for (size_t i = 0; i < YK_COUNT(good); i++) {
        assert_int_equal(data_open_below(roots, good[i], NULL, &d, &why), YK_OK);
        data_close(d);
    }
    free(a);
}

static void the_real_set(void **state)
{
    (void)state;
    if (access(REAL, R_OK) != 0)
        skip();
    struct data_set *d;
    struct yk_diag why;
    assert_int_equal(data_open(REAL, NULL, &d, &why), YK_OK);
    assert_int_equal(data_count(d), 10000);
    int64_t per_class[10] = {0}, *y = malloc(sizeof *y * 10000);
    float *x = malloc(sizeof *x * 784 * 10000);
    assert_int_equal(data_read(d, 0, 10000, x, y, &why), YK_OK);
    for (int64_t i = 0; i < 10000; i++)
        per_class[y[i]]++;
    for (int c = 0; c < 10; c++)
        assert_int_equal(per_class[c], 1000);
    assert_int_equal(y[0], 9); /* ankle boot */
    double sum = 0;
    for (int64_t i = 0; i < 784 * 10000; i++)
        sum += x[i];
    assert_true(sum / 7840000 > 0.2868 && sum / 7840000 < 0.2869); /* numpy: 0.28684929 */
    free(x);
    free(y);
    data_close(d);
}

/* ---- training ---- */

static void values_to_train_towards(void **state)
{
    (void)state;
    float f[6] = {1, 2, 3, 4, 5, 6}, x[6], y[6];
    double f64[6] = {0.1, -2, 3e-20, 4, 5, 6};
    int64_t dims[3] = {2, 3, 1}, i64[6] = {0, 1, 2, 3, -100, 1}, ids[6], ignore = -100;
    struct data_options o = {0};
    struct yk_diag why = {0};
    run("mkdir %s/values", root);
    put_npy("values/x.npy", DT_F32, 2, dims, f);
    put_npy("values/y.npy", DT_F32, 2, dims, f);
    struct data_set *d = must_open("values", &o);
    assert_true(!data_labelled(d) && data_truth(d)->dtype == DT_F32 && data_truth(d)->rank == 1);
    assert_int_equal(data_read(d, 1, 1, x, y, &why), YK_OK);
    assert_true(y[0] == 4 && y[2] == 6);
    assert_int_equal(data_check_labels(d, 10, NULL, &why), YK_INVAL);
    assert_non_null(strstr(why.text, "float32"));
    data_close(d);
    put_npy("values/y.npy", DT_F64, 2, dims, f64);
    d = must_open("values", &o);
    assert_int_equal(data_read(d, 0, 2, x, y, &why), YK_OK);
    for (int i = 0; i < 6; i++)
        assert_true(y[i] == (float)f64[i]);
    data_close(d);
    put_npy("values/y.npy", DT_I64, 2, dims, i64); /* an id per token */
    d = must_open("values", &o);
    assert_true(!data_labelled(d) && data_truth(d)->dtype == DT_I64 && data_truth(d)->dims[0] == 3);
    assert_int_equal(data_read(d, 1, 1, x, ids, &why), YK_OK);
    assert_true(ids[0] == 3 && ids[1] == -100);
    assert_int_equal(data_check_labels(d, 4, &ignore, &why), YK_OK);
    assert_int_equal(data_check_labels(d, 4, NULL, &why), YK_FORMAT);
    assert_non_null(strstr(why.text, "values: y.npy: label -100 of sample 1 at offset 160"));
    assert_int_equal(data_check_labels(d, 3, &ignore, &why), YK_FORMAT);
    assert_non_null(strstr(why.text, "label 3 of sample 1 at offset 152"));
    for (int i = 0; i < 6; i++)
        i64[i] = -100;
    put_npy("values/y.npy", DT_I64, 2, dims, i64);
    struct data_set *none = must_open("values", &o);
    assert_int_equal(data_check_labels(none, 4, &ignore, &why), YK_INVAL);
    assert_non_null(strstr(why.text, "every label is -100, which does not count"));
    data_close(none);
    assert_int_equal(data_read(d, 1, 1, x, NULL, &why), YK_OK);
    data_close(d);
    dims[0] = 3;
    put_npy("values/y.npy", DT_F32, 1, dims, f);
    must_refuse("values", &o, YK_INVAL, "y.npy is float32[3]: labels must have shape (2,)");
}

static void labels_out_of_range(void **state)
{
    (void)state;
    struct yk_diag why = {0};
    struct data_set *d = must_open("idx", &(struct data_options){0}); /* 7 8 9 */
    assert_int_equal(data_check_labels(d, 10, NULL, &why), YK_OK);
    assert_int_equal(data_check_labels(d, 9, NULL, &why), YK_FORMAT);
    assert_non_null(
        strstr(why.text, "idx: t10k-labels-idx1-ubyte: label 9 of sample 2 at offset 10; the model has 9 classes"));
    assert_true(data_is_split(d));
    data_close(d);
    run("mkdir %s/bare && cp %s/idx/t10k-images* %s/bare", root, root, root);
    d = must_open("bare", &(struct data_options){0});
    assert_int_equal(data_check_labels(d, 10, NULL, &why), YK_INVAL);
    assert_non_null(strstr(why.text, "no labels"));
    data_close(d);
}

static void split_folders(void **state)
{
    (void)state;
    struct yk_diag why = {0};
    struct data_set *d, *v;
    int64_t y[4];
    float x[4 * 32 * 32 * 3];
    struct preprocess p;
    preprocess_init(&p);
    p.resize[0] = p.resize[1] = 8;
    struct data_options train = {.split = "train", .preprocess = &p}, test = {.preprocess = &p};
    run("cd %s && mkdir -p sp/train/cat sp/train/dog sp/val/cat sp/val/dog", root);
    run("cd %s/sp && for i in train/cat/1 train/dog/1 train/dog/2 val/cat/1 val/dog/1; do cp %s/rgb.png $i.png; done",
        root, YOKE_SOURCE_DIR "/tests/golden/images");
    d = must_open("sp", &train);
    v = must_open("sp", &test);
    assert_true(data_count(d) == 3 && data_count(v) == 2 && data_is_split(d) && data_is_split(v));
    assert_int_equal(data_read(d, 0, 3, x, y, &why), YK_OK);
    assert_true(y[0] == 0 && y[1] == 1 && y[2] == 1);
    assert_int_equal(data_match(d, v, &why), YK_OK);
    assert_int_equal(data_check_labels(d, 2, NULL, &why), YK_OK);
    assert_int_equal(data_check_labels(d, 10, NULL, &why), YK_INVAL);
    assert_non_null(strstr(why.text, "2 class folders ('cat' to 'dog'), the model has 10 classes"));
    data_close(v);
    run("mkdir %s/sp/val/ape && cp %s/sp/val/cat/1.png %s/sp/val/ape", root, root, root);
    v = must_open("sp", &test);
    assert_int_equal(data_match(d, v, &why), YK_INVAL);
    assert_non_null(strstr(why.text, "'ape' is only in the validation set"));
    data_close(v);
    run("rm -r %s/sp/val/ape %s/sp/val/cat", root, root);
    v = must_open("sp", &test);
    assert_int_equal(data_match(d, v, &why), YK_INVAL);
    assert_non_null(strstr(why.text, "'cat' is only in the training set"));
    data_close(v);
    p.resize[1] = 9;
    v = must_open("sp", &test);
    assert_int_equal(data_match(d, v, &why), YK_INVAL);
    assert_non_null(strstr(why.text, "float32[3,8,8] in training and float32[3,8,9] in validation"));
    data_close(v);
    data_close(d);
    run("cd %s/sp && mkdir test && cp -r train/cat test/", root); /* test and val differ */
    v = must_open("sp", &(struct data_options){.split = "test", .preprocess = &p});
    assert_int_equal(data_count(v), 1);
    assert_string_equal(data_name(v, 0), "cat/1.png");
    data_close(v);
    run("cd %s/sp && rm -r val test", root);
    must_refuse("sp", &test, YK_NOTFOUND, "sp/test");
    run("mkdir %s/sp/train/owl", root);
    must_refuse("sp", &train, YK_INVAL, "class folder 'owl' has no");
    run("cd %s/sp && rm -r train/owl && mkdir other", root); /* now these are classes */
    must_refuse("sp", &train, YK_INVAL, "train/cat is a folder");
    run("cd %s && mkdir -p np/train np/val && cp idx/* np/train/ && cd np/train && for i in t10k*; do mv $i "
        "train${i#t10k};"
        " done && ln -s ../../np/train ../val/train && ln -s .. ../val/val",
        root);
    d = must_open("np", &train); /* a split of any kind */
    assert_true(data_count(d) == 3 && data_is_split(d));
    data_close(d);
    must_refuse("np", &test, YK_INVAL, "np/val: "); /* no splits in splits */
    run("rm %s/npy/y.npy", root);
    d = must_open("npy", &train);
    assert_false(data_is_split(d));
    data_close(d);
}

/* What a training holds out is a set of its own, the samples of sampler_held and no other. */
static void splits_held_out(void **state)
{
    (void)state;
    struct yk_diag why = {0};
    struct sampler s = {.seed = 7, .samples = 3, .held = 2, .batch = 1};
    struct data_set *all = must_open("idx", &(struct data_options){0});
    struct data_set *d = must_open("idx", &(struct data_options){.split = "held:0.6:7:t10k"});
    size_t row = (size_t)shape_bytes(data_sample(all));
    uint8_t *x = yk_xalloc(2 * row), *want = yk_xalloc(row);
    int64_t y[2], label;
    assert_int_equal(data_count(d), 2);
    assert_int_equal(data_read(d, 0, 2, x, y, &why), YK_OK);
    for (int64_t i = 0; i < 2; i++) {
        assert_int_equal(data_read(all, sampler_held(&s, i), 1, want, &label, &why), YK_OK);
        assert_int_equal(y[i], label);
        assert_memory_equal(x + (size_t)i * row, want, row);
    }
    assert_int_equal(data_read(d, 1, 2, x, y, &why), YK_INVAL);
    assert_int_equal(data_check_labels(d, 10, NULL, &why), YK_OK);
    data_close(d);
    data_close(all);
    free(x);
    free(want);
    d = must_open("idx", &(struct data_options){.split = "only:t10k"});
    assert_int_equal(data_count(d), 3);
    data_close(d);
    must_refuse("npy", &(struct data_options){.split = "only:t10k"}, YK_NOTFOUND, "no split 't10k': it is one set");
    const char *const bad[] = {"held:", "held:0:1", "held:1:1", "held:nan:1", "held:0.5", "held:0.5:", "held:0.5:-1",
        "held:0.5:99999999999999999999", "held:0.5:1x", "held:0.5:1:", "held:0.5:1:other", "only:", "only:only:test",
        ""};
    for (size_t i = 0; i < YK_COUNT(bad); i++)
        must_refuse("npy", &(struct data_options){.split = bad[i]}, YK_INVAL, "held:SHARE:SEED[:SPLIT]");
}

static void splits_below_a_root(void **state)
{
    (void)state;
    run("mkdir -p %s/inside/s && ln -s ../../sp/train %s/inside/s/train && mkdir %s/inside/s/val", root, root, root);
    char *a = yk_xasprintf("%s/inside", root);
    const char *const roots[] = {a, NULL};
    struct data_set *d;
    struct yk_diag why = {0};
    assert_int_equal(data_open_below(roots, "s", &(struct data_options){.split = "train"}, &d, &why), YK_PERM);
    assert_non_null(strstr(why.text, "leads out of the data root"));
    free(a);
}

/* One set of a folder with an array for each input: whole, in batches of an epoch, and held out. */
static void several_inputs(void **state)
{
    (void)state;
    enum { N = 7 };
    float vectors[N * 3], more[(N + 1) * 3] = {0};
    int64_t ids[N * 2], y[N], got_y[N], dims[3] = {N, 3, 1};
    _Alignas(64) uint8_t x[512];
    struct data_input inputs[] = {{"ids", {.dtype = DT_I64, .rank = 2}}, {"more", {.dtype = DT_F32, .rank = 2}}};
    struct data_options o = {0};
    struct data_set *d;
    struct yk_diag why = {0};
    int64_t count;
    for (int i = 0; i < N * 3; i++)
        vectors[i] = more[i] = (float)i;
    for (int i = 0; i < N; i++)
        y[i] = ids[2 * i] = ids[2 * i + 1] = i;
    run("mkdir %s/inputs", root);
    put_npy("inputs/more.npy", DT_F32, 2, dims, vectors);
    put_npy("inputs/y.npy", DT_I64, 1, dims, y);
    dims[1] = 2;
    put_npy("inputs/ids.npy", DT_I64, 2, dims, ids);
    char *path = yk_xasprintf("%s/inputs", root);
    assert_int_equal(data_open_inputs(path, &o, inputs, 2, &d, &why), YK_OK);
    assert_true(data_inputs(d) == 2 && data_count(d) == N && data_labelled(d));
    assert_true(data_sample_of(d, 1)->dims[0] == 3 && data_sample_of(d, 1)->dtype == DT_F32);
    assert_int_equal(data_at(d, 1, 5), 128); /* 5 samples of 16 bytes, and the next multiple of 64 */
    assert_int_equal(data_at(d, 2, 5), 192);
    assert_int_equal(data_at(d, 2, INT64_MAX / 16), -1);
    assert_int_equal(data_read(d, 2, 5, x, got_y, &why), YK_OK);
    assert_memory_equal(x, ids + 4, 5 * 16);
    assert_memory_equal(x + data_at(d, 1, 5), vectors + 6, 5 * 12);
    assert_int_equal(data_read(d, 3, 5, x, got_y, &why), YK_INVAL);
    assert_int_equal(data_match(d, d, &why), YK_OK);

    struct batches b = {.set = d, .sampler = {.seed = 3, .samples = N, .held = 2, .batch = 3}};
    assert_int_equal(batches_check(&b, &why), YK_OK);
    for (int64_t step = 0; step < 2 * sampler_steps(&b.sampler); step++) {
        assert_int_equal(batches_fill(&b, step, x, got_y, &count, &why), YK_OK);
        assert_int_equal(count, step % 2 ? 2 : 3);
        for (int64_t i = 0; i < count; i++) {
            assert_memory_equal(x + i * 16, ids + 2 * got_y[i], 16);
            assert_memory_equal(x + data_at(d, 1, count) + i * 12, vectors + 3 * got_y[i], 12);
        }
    }
    assert_int_equal(batches_held(&b, 0, 2, x, got_y, &why), YK_OK);
    assert_true(got_y[0] == sampler_held(&b.sampler, 0) && got_y[0] != got_y[1]);
    assert_memory_equal(x + data_at(d, 1, 2) + 12, vectors + 3 * got_y[1], 12);
    assert_int_equal(augment_spec_parse("flip", &b.augment, &why), YK_OK);
    assert_int_equal(batches_check(&b, &why), YK_INVAL);
    assert_non_null(strstr(why.text, "--augment is for models of one input"));
    data_close(d);

    static const struct {
        const char *name, *says;
    } bad[] = {{"mask", "no 'mask.npy'"}, {"y", "no input may be named 'y'"},
        {"../inputs/more", "no '../inputs/more.npy'"}, {"", "no '.npy'"}};
    for (size_t i = 0; i < YK_COUNT(bad); i++) {
        inputs[1].name = bad[i].name;
        assert_int_equal(data_open_inputs(path, &o, inputs, 2, &d, &why), YK_NOTFOUND);
        if (!strstr(why.text, bad[i].says))
            fail_msg("'%s' does not say '%s'", why.text, bad[i].says);
    }
    inputs[1].name = "more";
    o.mean = &(double){0.5};
    o.n_mean = 1;
    assert_int_equal(data_open_inputs(path, &o, inputs, 2, &d, &why), YK_INVAL);
    assert_non_null(strstr(why.text, "--mean and --std"));
    o.n_mean = 0;
    dims[0] = N + 1;
    dims[1] = 3;
    put_npy("inputs/more.npy", DT_F32, 2, dims, more);
    assert_int_equal(data_open_inputs(path, &o, inputs, 2, &d, &why), YK_INVAL);
    assert_non_null(strstr(why.text, "input 'more' has 8 samples, another has 7"));
    free(path);
    path = yk_xasprintf("%s/inputs/ids.npy", root);
    assert_int_equal(data_open_inputs(path, &o, inputs, 2, &d, &why), YK_INVAL);
    assert_non_null(strstr(why.text, "takes a folder with NAME.npy"));
    free(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(idx_folders),
        cmocka_unit_test(normalisation),
        cmocka_unit_test(bad_idx),
        cmocka_unit_test(a_file_that_shrinks),
        cmocka_unit_test(bad_gz),
        cmocka_unit_test(cifar),
        cmocka_unit_test(npy_files),
        cmocka_unit_test(npy_in_memory),
        cmocka_unit_test(nothing_outside_the_roots),
        cmocka_unit_test(the_real_set),
        cmocka_unit_test(values_to_train_towards),
        cmocka_unit_test(labels_out_of_range),
        cmocka_unit_test(split_folders),
        cmocka_unit_test(splits_held_out),
        cmocka_unit_test(splits_below_a_root),
        cmocka_unit_test(several_inputs),
    };
    return cmocka_run_group_tests(tests, folder_open, folder_close);
}
