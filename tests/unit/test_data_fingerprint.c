/* What tells data sets of the same size apart: any label, a name, a sample; and what does not: where they are. */
#include "agent/data.h"
#include "common/npy.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

enum { N = 40, WIDTH = 3 };

static char root[] = "/tmp/yoke-print-XXXXXX";

static int setup(void **state)
{
    (void)state;
    return mkdtemp(root) ? 0 : -1;
}

static int teardown(void **state)
{
    (void)state;
    char text[64];
    snprintf(text, sizeof text, "rm -rf '%s'", root);
    return system(text);
}

static void put_npy(const char *folder, const char *name, enum dtype t, int rank, const void *data)
{
    struct shape s = {.dtype = t, .rank = rank, .dims = {N, WIDTH}};
    struct yk_buf b = {0};
    char path[128];
    snprintf(path, sizeof path, "%s/%s", root, folder);
    mkdir(path, 0700);
    snprintf(path, sizeof path, "%s/%s/%s", root, folder, name);
    assert_int_equal(npy_header(&s, &b), YK_OK);
    yk_buf_add(&b, data, (size_t)shape_bytes(&s));
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(b.data, 1, b.len, f), b.len);
    fclose(f);
    yk_buf_free(&b);
}

static void print_of(const char *folder, uint8_t out[32])
{
    char path[128];
    struct data_set *d;
    struct yk_diag why = {0};
    snprintf(path, sizeof path, "%s/%s", root, folder);
    if (data_open(path, &(struct data_options){.split = "train"}, &d, &why) || data_fingerprint(d, out, &why))
        fail_msg("%s", why.text);
    data_close(d);
}

static void samples_and_labels(void **state)
{
    (void)state;
    static float x[N * WIDTH], other[N * WIDTH];
    int64_t y[N];
    uint8_t a[32], b[32];
    for (int i = 0; i < N * WIDTH; i++)
        x[i] = (float)i;
    for (int i = 0; i < N; i++)
        y[i] = i % 4;
    put_npy("a", "x.npy", DT_F32, 2, x);
    put_npy("a", "y.npy", DT_I64, 1, y);
    put_npy("b", "x.npy", DT_F32, 2, x);
    put_npy("b", "y.npy", DT_I64, 1, y);
    print_of("a", a);
    print_of("b", b);
    assert_memory_equal(a, b, 32);
    print_of("a", b);
    assert_memory_equal(a, b, 32);
    for (int i = 0; i < N; i++) { /* every label counts */
        y[i] = (y[i] + 1) % 4;
        put_npy("b", "y.npy", DT_I64, 1, y);
        print_of("b", b);
        assert_memory_not_equal(a, b, 32);
        y[i] = i % 4;
    }
    put_npy("b", "y.npy", DT_I64, 1, y);
    for (int last = 0; last < 2; last++) { /* and the first sample and the last */
        memcpy(other, x, sizeof x);
        other[last ? N * WIDTH - 1 : 0] += 0.5f;
        put_npy("b", "x.npy", DT_F32, 2, other);
        print_of("b", b);
        assert_memory_not_equal(a, b, 32);
    }
    for (int i = 0; i < N * WIDTH; i++)
        other[i] = x[N * WIDTH - 1 - i];
    put_npy("b", "x.npy", DT_F32, 2, other);
    print_of("b", b);
    assert_memory_not_equal(a, b, 32);
}

/* 1x1 pixels, grey: of one content whatever the name. */
static const uint8_t png[] = {0x89, 0x50, 0x4e, 0x47, 0xd, 0xa, 0x1a, 0xa, 0x0, 0x0, 0x0, 0xd, 0x49, 0x48, 0x44, 0x52,
    0x0, 0x0, 0x0, 0x1, 0x0, 0x0, 0x0, 0x1, 0x8, 0x0, 0x0, 0x0, 0x0, 0x3a, 0x7e, 0x9b, 0x55, 0x0, 0x0, 0x0, 0xa, 0x49,
    0x44, 0x41, 0x54, 0x78, 0x9c, 0x63, 0x68, 0x0, 0x0, 0x0, 0x82, 0x0, 0x81, 0x77, 0xcd, 0x72, 0xb6, 0x0, 0x0, 0x0,
    0x0, 0x49, 0x45, 0x4e, 0x44, 0xae, 0x42, 0x60, 0x82};

static void put_image(const char *folder, const char *class, const char *name)
{
    char path[160];
    snprintf(path, sizeof path, "%s/%s", root, folder);
    mkdir(path, 0700);
    snprintf(path, sizeof path, "%s/%s/%s", root, folder, class);
    mkdir(path, 0700);
    snprintf(path, sizeof path, "%s/%s/%s/%s", root, folder, class, name);
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(png, 1, sizeof png, f), sizeof png);
    fclose(f);
}

static void names(void **state)
{
    (void)state;
    uint8_t a[32], b[32];
    static const struct {
        const char *folder, *class, *name;
    } files[] = {{"i0", "p", "0.png"}, {"i0", "q", "1.png"}, {"i1", "p", "0.png"}, {"i1", "q", "1.png"},
        {"i2", "p", "0.png"}, {"i2", "r", "1.png"}, {"i3", "p", "0.png"}, {"i3", "q", "2.png"}};
    for (size_t i = 0; i < YK_COUNT(files); i++)
        put_image(files[i].folder, files[i].class, files[i].name);
    print_of("i0", a);
    print_of("i1", b);
    assert_memory_equal(a, b, 32);
    print_of("i2", b); /* a class of another name */
    assert_memory_not_equal(a, b, 32);
    print_of("i3", b); /* a file of another name */
    assert_memory_not_equal(a, b, 32);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(samples_and_labels), cmocka_unit_test(names)};
    return cmocka_run_group_tests(tests, setup, teardown);
}
