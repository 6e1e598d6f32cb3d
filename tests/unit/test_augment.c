/* Augmentations against torchvision (tests/golden/make_augment.py), the batches of a run, and reading them ahead. */
#include "agent/batches.h"
#include "agent/data_ahead.h"
#include "common/npy.h"
#include "tests/folder.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>
#include <zlib.h>

#define GOLDEN YOKE_SOURCE_DIR "/tests/golden"

static struct yk_diag why;

static struct data_set *must_open(const char *path, const struct data_options *o)
{
    struct data_set *d = NULL;
    if (data_open(path, o, &d, &why) != YK_OK)
        fail_msg("%s", why.text);
    return d;
}

static void put_npy(const char *name, struct shape s, const void *data)
{
    char path[512];
    struct yk_buf b = {0};
    assert_int_equal(npy_header(&s, &b), YK_OK);
    yk_buf_add(&b, data, (size_t)shape_bytes(&s));
    snprintf(path, sizeof path, "%s/%s", root, name);
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    fwrite(b.data, 1, b.len, f);
    fclose(f);
    yk_buf_free(&b);
}

/* Every case as bytes and as floats, planes or pixels first. */
static void as_torchvision(void **state)
{
    (void)state;
    static uint8_t pixels[1 << 16], got[4096];
    static float values[4096];
    char file[64], plan[64], path[512];
    int channels, height, width, at, cases = 0;
    unsigned long long seed;
    long long epoch;
    gzFile z = gzopen(GOLDEN "/augment/pixels.gz", "rb");
    assert_non_null(z);
    int n_pixels = gzread(z, pixels, sizeof pixels);
    gzclose(z);
    FILE *f = fopen(GOLDEN "/augment/cases.txt", "r");
    assert_non_null(f);
    while (
        fscanf(f, "%63s %d %d %d %63s %llu %lld %d", file, &channels, &height, &width, plan, &seed, &epoch, &at) == 8) {
        struct augment a;
        struct augment_key key = {.seed = seed, .epoch = epoch};
        int n = channels * height * width;
        assert_true(at + n <= n_pixels && n <= (int)YK_COUNT(values));
        assert_int_equal(augment_spec_parse(plan, &a, &why), YK_OK);
        snprintf(path, sizeof path, GOLDEN "/images/%s", file);
        for (int kind = 0; kind < 4; kind++) {
            bool bytes = kind & 1, nhwc = kind & 2;
            struct preprocess p;
            preprocess_init(&p);
            p.resize[0] = height;
            p.resize[1] = width;
            p.channels = channels == 1 ? PREPROCESS_GRAY : PREPROCESS_RGB;
            p.layout = nhwc ? PREPROCESS_NHWC : PREPROCESS_NCHW;
            struct data_target target = {.dtype = bytes ? DT_U8 : DT_F32, .rank = 4};
            struct data_options o = {.preprocess = &p, .target = &target};
            struct data_set *d = must_open(path, &o);
            assert_int_equal(data_augmentable(d, &a, &why), YK_OK);
            if (data_read_augmented(d, &a, &key, bytes ? (void *)got : values, NULL, &why) != YK_OK)
                fail_msg("%s %s: %s", file, plan, why.text);
            for (int c = 0; c < channels; c++)
                for (int i = 0; i < height * width; i++) {
                    int have = nhwc ? i * channels + c : c * height * width + i, want = at + c * height * width + i;
                    if (bytes ? got[have] != pixels[want] : values[have] != (float)pixels[want] / 255.0f)
                        fail_msg("%s %s seed %llu epoch %lld: value %d of channel %d, kind %d", file, plan, seed, epoch,
                            i, c, kind);
                }
            data_close(d);
        }
        cases++;
    }
    fclose(f);
    assert_int_equal(cases, 54);
}

static void bad_plans(void **state)
{
    (void)state;
    static const struct {
        const char *text, *part;
    } bad[] = {{"mirror", "'mirror' is not known"}, {"flip,", "'' is not known"}, {"flip:1", "takes no value"},
        {"flip,flip", "twice"}, {"pad-crop", "as pad-crop:4"}, {"pad-crop:", "as pad-crop:4"}, {"pad-crop:0", "from 1"},
        {"pad-crop:-4", "from 1"}, {"pad-crop:4x", "from 1"}, {"pad-crop:99999999999999999999", "from 1"},
        {"pad-crop:4,pad-crop:4", "twice"}, {"random-resized-crop:0", "above 0"},
        {"random-resized-crop:1.5", "up to 1"}, {"random-resized-crop:nan", "above 0"},
        {"random-resized-crop:", "above 0"}, {"flip,random-resized-crop", "comes first"},
        {"random-resized-crop,random-resized-crop", "twice"}};
    struct augment a = {.pad = 77};
    for (size_t i = 0; i < YK_COUNT(bad); i++) {
        assert_int_equal(augment_spec_parse(bad[i].text, &a, &why), YK_INVAL);
        if (!strstr(why.text, bad[i].part) || a.pad != 77)
            fail_msg("'%s': %s", bad[i].text, why.text);
    }
    assert_int_equal(augment_spec_parse("none", &a, &why), YK_OK);
    assert_true(!augment_spec_any(&a) && !augment_spec_any(NULL));
    assert_int_equal(augment_spec_parse("", &a, &why), YK_OK);
    assert_int_equal(augment_spec_parse("random-resized-crop:0.25,flip,pad-crop:4", &a, &why), YK_OK);
    assert_true(a.flip && a.flip_first && a.pad == 4 && a.smallest == 0.25);
}

static void draws(void **state)
{
    (void)state;
    struct augment both = {.flip = true, .pad = 2}, one = {.pad = 2};
    int64_t down[5] = {0}, right[5] = {0}, flips = 0, moved = 0;
    for (int64_t i = 0; i < 5000; i++) {
        struct augment_draw d, e, later;
        struct augment_key key = {.seed = 3, .epoch = 1, .sample = i};
        augment_draw(&both, &key, &d);
        augment_draw(&one, &key, &e);
        assert_true(d.down == e.down && d.right == e.right && !e.flip); /* each kind has its own stream */
        key.epoch = 2;
        augment_draw(&both, &key, &later);
        moved += later.down != d.down || later.right != d.right || later.flip != d.flip;
        down[d.down + 2]++;
        right[d.right + 2]++;
        flips += d.flip;
    }
    for (int i = 0; i < 5; i++)
        assert_true(down[i] > 850 && down[i] < 1150 && right[i] > 850 && right[i] < 1150);
    assert_true(flips > 2300 && flips < 2700 && moved > 4800);
}

/* 11 images of 1x4x5 pixels: value 20 * image + place, labels 100 + image. */
static void make_set(void)
{
    uint8_t x[220];
    int64_t y[11];
    for (int i = 0; i < 220; i++)
        x[i] = (uint8_t)i;
    for (int i = 0; i < 11; i++)
        y[i] = 100 + i;
    run("mkdir -p %s/set", root);
    put_npy("set/x.npy", (struct shape){DT_U8, 3, {11, 4, 5}}, x);
    put_npy("set/y.npy", (struct shape){DT_I64, 1, {11}}, y);
}

static struct batches make_batches(void)
{
    double half[] = {0.5};
    char path[512];
    snprintf(path, sizeof path, "%s/set", root);
    struct data_options o = {.mean = half, .n_mean = 1, .std = half, .n_std = 1};
    struct batches b = {.set = must_open(path, &o), .sampler = {.seed = 5, .samples = 11, .held = 1, .batch = 4}};
    return b;
}

static void batches_of_a_run(void **state)
{
    (void)state;
    make_set();
    struct batches b = make_batches();
    float x[80];
    int64_t y[4], count = 0, seen = 0;
    assert_int_equal(augment_spec_parse("pad-crop:2,flip", &b.augment, &why), YK_OK);
    assert_int_equal(batches_check(&b, &why), YK_OK);
    assert_int_equal(sampler_steps(&b.sampler), 3);
    for (int64_t step = 3; step < 6; step++) { /* the second epoch */
        assert_int_equal(batches_fill(&b, step, x, y, &count, &why), YK_OK);
        assert_int_equal(count, step == 5 ? 2 : 4);
        for (int64_t i = 0; i < count; i++) {
            struct augment_draw draw;
            int64_t sample = sampler_sample(&b.sampler, 1, (step - 3) * 4 + i);
            augment_draw(&b.augment, &(struct augment_key){5, 1, sample}, &draw);
            assert_int_equal(y[i], 100 + sample);
            seen |= INT64_C(1) << sample;
            for (int r = 0; r < 4; r++)
                for (int c = 0; c < 5; c++) {
                    int64_t row = r + draw.down, column = (draw.flip ? 4 - c : c) + draw.right;
                    bool in = row >= 0 && row < 4 && column >= 0 && column < 5;
                    float v = in ? (float)(20 * sample + row * 5 + column) / 255.0f : 0;
                    assert_true(x[i * 20 + r * 5 + c] == (float)(((double)v - 0.5) / 0.5)); /* black is -1 */
                }
        }
    }
    assert_int_equal(seen, 0x7ff & ~(1 << sampler_held(&b.sampler, 0)));
    assert_int_equal(batches_held(&b, 0, 1, x, y, &why), YK_OK);
    assert_int_equal(y[0], 100 + sampler_held(&b.sampler, 0));
    assert_int_equal(batches_held(&b, 0, 2, x, y, &why), YK_INVAL);
    b.augment.pad = 5;
    assert_int_equal(batches_check(&b, &why), YK_INVAL);
    assert_non_null(strstr(why.text, "pad-crop:5"));
    b.augment = (struct augment){.smallest = 0.5};
    assert_int_equal(batches_check(&b, &why), YK_UNSUPPORTED);
    b.augment.smallest = 0;
    b.sampler.samples = 12;
    assert_int_equal(batches_check(&b, &why), YK_INVAL);
    data_close(b.set);
}

static struct data_set *in_memory(
    struct yk_buf *file, const struct shape *s, const void *x, const struct data_pixels *p, yk_err want)
{
    struct data_set *d = NULL;
    *file = (struct yk_buf){0};
    assert_int_equal(npy_header(s, file), YK_OK);
    yk_buf_add(file, x, (size_t)shape_bytes(s));
    assert_int_equal(
        data_open_memory(file->data, file->len, NULL, 0, &(struct data_options){.pixels = p}, &d, &why), want);
    return d;
}

/* What a set was normalised to, and told of: the same pictures, channels first and last. */
static void uploaded_samples(void **state)
{
    (void)state;
    make_set();
    struct batches b = make_batches();
    struct shape s = {.dtype = DT_F32, .rank = 4, .dims = {11, 1, 4, 5}};
    static struct data_pixels p;
    float all[11 * 20], x[20], got[20];
    struct yk_buf file, other;
    assert_int_equal(augment_spec_parse("pad-crop:2,flip", &b.augment, &why), YK_OK);
    assert_true(data_pixels(b.set, &p));
    assert_true(p.n == 1 && !p.nhwc && p.black[0] == -1);
    assert_int_equal(data_read(b.set, 0, 11, all, NULL, &why), YK_OK);
    struct data_set *first = in_memory(&file, &s, all, &p, YK_OK);
    p.nhwc = true; /* one channel: the same bytes */
    s = (struct shape){.dtype = DT_F32, .rank = 4, .dims = {11, 4, 5, 1}};
    struct data_set *last = in_memory(&other, &s, all, &p, YK_OK);
    for (int64_t i = 0; i < 22; i++) {
        struct augment_key k = {5, i / 11, i % 11};
        assert_int_equal(data_read_augmented(b.set, &b.augment, &k, x, NULL, &why), YK_OK);
        assert_int_equal(data_read_augmented(first, &b.augment, &k, got, NULL, &why), YK_OK);
        assert_memory_equal(got, x, sizeof x);
        assert_int_equal(data_read_augmented(last, &b.augment, &k, got, NULL, &why), YK_OK);
        assert_memory_equal(got, x, sizeof x);
    }
    data_close(first);
    data_close(last);
    yk_buf_free(&file);
    yk_buf_free(&other);
    p.nhwc = false; /* four channels */
    assert_null(in_memory(&file, &s, all, &p, YK_INVAL));
    assert_non_null(strstr(why.text, "black has 1 values"));
    yk_buf_free(&file);
    s.rank = 2;
    assert_null(in_memory(&file, &s, all, &p, YK_INVAL));
    yk_buf_free(&file);
    s = (struct shape){.dtype = DT_U8, .rank = 4, .dims = {11, 4, 5, 1}};
    p.nhwc = true;
    first = in_memory(&file, &s, all, &p, YK_OK); /* bytes of images become values: -1 is one of them */
    assert_int_equal(data_sample(first)->dtype, DT_F32);
    data_close(first);
    yk_buf_free(&file);
    data_close(b.set);
}

/* However far ahead, and wherever a run begins. */
static void ahead_is_the_same(void **state)
{
    (void)state;
    make_set();
    struct batches b = make_batches();
    float x[80];
    int64_t y[4], count;
    struct data_ahead *a = NULL;
    const struct data_ahead_batch *got;
    assert_int_equal(augment_spec_parse("pad-crop:1,flip", &b.augment, &why), YK_OK);
    for (int64_t first = 0; first < 9; first += 4)
        for (int depth = 2; depth < 5; depth++) {
            struct batches own = make_batches();
            own.augment = b.augment;
            assert_int_equal(data_ahead_train(&own, first, 9, depth, &a, &why), YK_OK);
            for (int64_t step = first; step < 9; step++) {
                assert_int_equal(data_ahead_next(a, &got, &why), YK_OK);
                assert_int_equal(batches_fill(&b, step, x, y, &count, &why), YK_OK);
                assert_true(got->step == step && got->epoch == step / 3 && got->count == count);
                assert_memory_equal(got->x, x, (size_t)count * 80);
                assert_memory_equal(got->y, y, (size_t)count * 8);
            }
            assert_int_equal(data_ahead_next(a, &got, &why), YK_OK);
            assert_null(got);
            data_ahead_close(a);
            data_close(own.set);
        }
    b.sampler.held = 7;
    assert_int_equal(data_ahead_held(&b, 3, 2, &a, &why), YK_OK);
    int64_t n = 0;
    while (assert_int_equal(data_ahead_next(a, &got, &why), YK_OK), got)
        for (int64_t i = 0; i < got->count; i++)
            assert_int_equal(((int64_t *)got->y)[i], 100 + sampler_held(&b.sampler, n++));
    assert_int_equal(n, 7);
    data_ahead_close(a);
    assert_int_equal(data_ahead_train(&b, 5, 4, 2, &a, &why), YK_INVAL);
    b.sampler.batch = 0;
    assert_int_equal(data_ahead_train(&b, 0, 4, 2, &a, &why), YK_INVAL);
    b.sampler.batch = INT64_MAX; /* no more room than there are samples */
    assert_int_equal(data_ahead_train(&b, 0, INT64_MAX, 2, &a, &why), YK_OK);
    assert_int_equal(data_ahead_next(a, &got, &why), YK_OK);
    assert_int_equal(got->count, 4);
    data_ahead_close(a);
    data_close(b.set);
}

static void an_error_comes_in_its_turn(void **state)
{
    (void)state;
    make_set();
    struct batches b = make_batches();
    struct data_ahead *a = NULL;
    const struct data_ahead_batch *got;
    b.sampler.in_order = true;
    b.sampler.held = 0;
    run("truncate -s -45 %s/set/x.npy", root); /* samples 8, 9 and 10 are cut */
    assert_int_equal(data_ahead_train(&b, 0, 9, 4, &a, &why), YK_OK);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(data_ahead_next(a, &got, &why), YK_OK);
        assert_int_equal(got->step, i);
    }
    assert_int_equal(data_ahead_next(a, &got, &why), YK_IO);
    assert_non_null(strstr(why.text, "x.npy: ends at offset"));
    data_ahead_close(a);
    data_close(b.set);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(as_torchvision),
        cmocka_unit_test(bad_plans),
        cmocka_unit_test(draws),
        cmocka_unit_test(batches_of_a_run),
        cmocka_unit_test(uploaded_samples),
        cmocka_unit_test(ahead_is_the_same),
        cmocka_unit_test(an_error_comes_in_its_turn),
    };
    return cmocka_run_group_tests(tests, folder_open, folder_close);
}
