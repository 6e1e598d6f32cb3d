/* Images against Pillow and torchvision (tests/golden/make_images.py), and files that must be refused. */
#include "agent/data.h"
#include "agent/data_ahead.h"
#include "agent/image.h"
#include "tests/folder.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>
#include <zlib.h>

#define GOLDEN YOKE_SOURCE_DIR "/tests/golden/images"

static struct yk_diag why;

static uint8_t *slurp(const char *path, size_t *len)
{
    FILE *f = fopen(path, "rb");
    if (!f)
        fail_msg("%s", path);
    fseek(f, 0, SEEK_END);
    *len = (size_t)ftell(f);
    rewind(f);
    uint8_t *data = malloc(*len + 1);
    assert_int_equal(fread(data, 1, *len, f), *len);
    fclose(f);
    return data;
}

static uint8_t *golden_file(const char *name, size_t *len)
{
    char path[512];
    snprintf(path, sizeof path, GOLDEN "/%s", name);
    return slurp(path, len);
}

static void put(const char *name, const void *data, size_t len)
{
    char path[512];
    snprintf(path, sizeof path, "%s/%s", root, name);
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    fwrite(data, 1, len, f);
    fclose(f);
}

/* ---- goldens ---- */

/* Every case through a data set of one file, as samples of bytes. */
static void as_pillow_and_torchvision(void **state)
{
    (void)state;
    static uint8_t pixels[1 << 20], got[1 << 16];
    gzFile z = gzopen(GOLDEN "/pixels.gz", "rb");
    assert_non_null(z);
    int n_pixels = gzread(z, pixels, sizeof pixels), cases = 0, largest = 0;
    gzclose(z);
    FILE *f = fopen(GOLDEN "/cases.txt", "r");
    assert_non_null(f);
    char file[64], resize[32], crop[32], filter[32];
    int channels, height, width, at;
    while (fscanf(f, "%63s %d %31s %31s %31s %d %d %d", file, &channels, resize, crop, filter, &height, &width, &at) ==
           8) {
        char path[512];
        struct preprocess p;
        preprocess_init(&p);
        p.channels = channels == 1 ? PREPROCESS_GRAY : PREPROCESS_RGB;
        p.layout = PREPROCESS_NHWC;
        assert_int_equal(preprocess_set(&p, "interpolation", filter, NULL), YK_OK);
        if (resize[0] != '-')
            assert_int_equal(preprocess_set(&p, "resize", resize, NULL), YK_OK);
        if (crop[0] != '-')
            assert_int_equal(preprocess_set(&p, "crop", crop, NULL), YK_OK);
        struct data_target target = {.dtype = DT_U8, .rank = 4};
        struct data_options o = {.preprocess = &p, .target = &target};
        struct data_set *d = NULL;
        snprintf(path, sizeof path, GOLDEN "/%s", file);
        if (data_open(path, &o, &d, &why) != YK_OK || data_read(d, 0, 1, got, NULL, &why) != YK_OK)
            fail_msg("%s", why.text);
        const struct shape *s = data_sample(d);
        if (s->rank != 3 || s->dims[0] != height || s->dims[1] != width || s->dims[2] != channels)
            fail_msg("%s %s %s: %dx%d expected", file, resize, crop, height, width);
        int n = height * width * channels, off = 0;
        assert_true(at + n <= n_pixels);
        for (int i = 0; i < n; i++)
            off = YK_MAX(off, abs(got[i] - pixels[at + i]));
        if (off)
            fail_msg("%s %d %s %s %s: off by %d", file, channels, resize, crop, filter, off);
        largest = YK_MAX(largest, off);
        cases++;
        data_close(d);
    }
    fclose(f);
    assert_true(cases >= 90);
    print_message("%d cases, largest difference %d of 255\n", cases, largest);
}

static void normalisation_and_layout(void **state)
{
    (void)state;
    static float x[3 * 23 * 31], y[3 * 23 * 31];
    size_t len;
    uint8_t *file = golden_file("rgb.png", &len);
    struct image m;
    assert_int_equal(image_decode(file, len, 3, &m, &why), YK_OK);
    struct preprocess p;
    preprocess_init(&p);
    const char *json = "{\"preset\": \"imagenet\", \"resize\": null, \"crop\": null}";
    assert_int_equal(preprocess_parse_text(json, strlen(json), &p, &why), YK_OK);
    struct data_options o = {.preprocess = &p};
    struct data_set *d = NULL;
    assert_int_equal(data_open(GOLDEN "/rgb.png", &o, &d, &why), YK_OK);
    assert_int_equal(data_count(d), 1);
    assert_int_equal(data_read(d, 0, 1, x, NULL, &why), YK_OK);
    data_close(d);
    for (int c = 0; c < 3; c++)
        for (int i = 0; i < 23 * 31; i++)
            assert_true(fabs(x[c * 23 * 31 + i] - (m.pixels[3 * i + c] / 255.0 - p.mean[c]) / p.std[c]) < 1e-6);
    /* BGR, channels last, 0..255, and mean and std of the options instead */
    const char *other = "{\"channels\": \"BGR\", \"layout\": \"NHWC\", \"range\": 255}";
    double mean[] = {1, 2, 3}, std[] = {2};
    assert_int_equal(preprocess_parse_text(other, strlen(other), &p, &why), YK_OK);
    o = (struct data_options){.preprocess = &p, .mean = mean, .n_mean = 3, .std = std, .n_std = 1};
    assert_int_equal(data_open(GOLDEN "/rgb.png", &o, &d, &why), YK_OK);
    assert_int_equal(data_read(d, 0, 1, y, NULL, &why), YK_OK);
    data_close(d);
    for (int c = 0; c < 3; c++)
        for (int i = 0; i < 23 * 31; i++)
            assert_true(y[3 * i + c] == (float)((m.pixels[3 * i + 2 - c] - mean[c]) / 2));
    image_free(&m);
    free(file);
}

static void what_the_input_takes(void **state)
{
    (void)state;
    struct data_set *d = NULL;
    struct data_target t = {.dtype = DT_F32, .rank = 4, .dims = {0, 1, 8, 12}};
    struct data_options o = {.target = &t};
    assert_int_equal(data_open(GOLDEN "/half.jpg", &o, &d, &why), YK_OK);
    const struct shape *s = data_sample(d);
    assert_true(s->dims[0] == 1 && s->dims[1] == 8 && s->dims[2] == 12);
    assert_non_null(strstr(data_note(d), "resized to 8x12"));
    assert_non_null(strstr(data_name(d, 0), "half.jpg"));
    data_close(d);
    t = (struct data_target){.dtype = DT_F32, .rank = 4, .dims = {1, 23, 31, 3}};
    assert_int_equal(data_open(GOLDEN "/half.jpg", &o, &d, &why), YK_OK);
    assert_true(data_sample(d)->dims[2] == 3 && data_sample(d)->dims[0] == 23 && data_note(d)[0] == 0);
    data_close(d);
    const struct {
        struct data_target t;
        const char *resize, *part;
    } bad[] = {{{.dtype = DT_F32, .rank = 2}, NULL, "2 dimensions"},
        {{.dtype = DT_F32, .rank = 4, .dims = {0, 4, 8, 8}}, NULL, "4 channels"},
        {{.dtype = DT_F16, .rank = 4}, NULL, "float16"},
        {{.dtype = DT_F32, .rank = 4, .dims = {0, 3, 8, 8}}, "9", "takes 8x8"},
        {{.dtype = DT_F32, .rank = 4, .dims = {0, 3, 8, 0}}, "9x9", "takes 8xany"}};
    for (size_t i = 0; i < YK_COUNT(bad); i++) {
        struct preprocess p;
        preprocess_init(&p);
        if (bad[i].resize)
            assert_int_equal(preprocess_set(&p, "resize", bad[i].resize, NULL), YK_OK);
        o = (struct data_options){.target = &bad[i].t, .preprocess = &p};
        assert_int_not_equal(data_open(GOLDEN "/half.jpg", &o, &d, &why), YK_OK);
        if (!strstr(why.text, bad[i].part))
            fail_msg("'%s' without '%s'", why.text, bad[i].part);
    }
}

/* ---- folders ---- */

static void must_refuse(const char *name, const struct data_options *o, yk_err want, const char *part)
{
    char path[512];
    struct data_set *d = NULL;
    snprintf(path, sizeof path, "%s/%s", root, name);
    yk_err got = data_open(path, o, &d, &why);
    if (got != want || !strstr(why.text, part))
        fail_msg("%s: got %s '%s', expected %s with '%s'", name, yk_err_name(got), why.text, yk_err_name(want), part);
}

static struct data_set *must_open(const char *name, const struct data_options *o)
{
    char path[512];
    struct data_set *d = NULL;
    snprintf(path, sizeof path, "%s/%s", root, name);
    if (data_open(path, o, &d, &why) != YK_OK)
        fail_msg("%s", why.text);
    return d;
}

static void folders(void **state)
{
    (void)state;
    struct data_options o = {0};
    static float x[3 * 23 * 31 * 3];
    int64_t y[4];
    run("cd %s && mkdir flat && cp " GOLDEN "/rgb.png flat/b.PNG && cp " GOLDEN "/half.jpg flat/a.jpeg && cp " GOLDEN
        "/full.jpg flat/c.jpg && touch flat/readme.txt flat/.hidden.jpg",
        root);
    struct data_set *d = must_open("flat", &o);
    assert_int_equal(data_count(d), 3);
    assert_false(data_labelled(d));
    assert_string_equal(data_name(d, 0), "a.jpeg");
    assert_string_equal(data_name(d, 1), "b.PNG");
    assert_string_equal(data_name(d, 2), "c.jpg");
    assert_null(data_name(d, 3));
    assert_int_equal(data_read(d, 0, 3, x, NULL, &why), YK_OK);
    assert_int_equal(data_read(d, 0, 1, x, y, &why), YK_INVAL);
    assert_int_equal(data_read(d, 3, 1, x, NULL, &why), YK_INVAL);
    data_close(d);

    run("cd %s && mkdir -p class/zebra class/ant class/'a b' && cp flat/a.jpeg class/zebra/1.jpg && cp flat/b.PNG "
        "class/ant/2.png && cp flat/c.jpg class/ant/1.jpg && cp flat/c.jpg class/'a b'/x.jpg",
        root);
    d = must_open("class", &o);
    assert_int_equal(data_count(d), 4);
    assert_true(data_labelled(d));
    assert_string_equal(data_name(d, 0), "a b/x.jpg");
    assert_string_equal(data_name(d, 1), "ant/1.jpg");
    assert_string_equal(data_name(d, 3), "zebra/1.jpg");
    assert_int_equal(data_read(d, 1, 3, x, y, &why), YK_OK);
    assert_true(y[0] == 1 && y[1] == 1 && y[2] == 2);
    data_close(d);

    run("mkdir %s/class/empty", root);
    must_refuse("class", &o, YK_INVAL, "class folder 'empty' has no .jpg");
    run("cd %s && mkdir -p class/empty/deep && cp flat/a.jpeg class/empty/a.jpg", root);
    must_refuse("class", &o, YK_INVAL, "empty/deep is a folder");
    run("cd %s && mkdir flat/sub", root);
    must_refuse("flat", &o, YK_INVAL, "both images ('a.jpeg') and folders ('sub')");
    run("cd %s && rmdir flat/sub && touch flat/x.webp", root);
    must_refuse("flat", &o, YK_UNSUPPORTED, "x.webp: JPEG and PNG are read");
    run("cd %s && rm flat/x.webp && mkdir none none/of none/these", root);
    must_refuse("none", &o, YK_NOTFOUND, "no .jpg, .jpeg or .png and no class folders");
    must_refuse("none/of", &o, YK_NOTFOUND, "no .jpg, .jpeg or .png");
}

static void sizes_must_agree(void **state)
{
    (void)state;
    static float x[3 * 64 * 64];
    struct data_options o = {0};
    run("cd %s && mkdir mixed && cp " GOLDEN "/half.jpg mixed/a.jpg && cp " GOLDEN "/tall.jpg mixed/b.jpg", root);
    struct data_set *d = must_open("mixed", &o);
    assert_int_equal(data_read(d, 0, 1, x, NULL, &why), YK_OK);
    assert_int_equal(data_read(d, 0, 2, x, NULL, &why), YK_INVAL);
    assert_non_null(strstr(why.text, "mixed: b.jpg: becomes 53x26 pixels, the first image 23x31: give one size"));
    data_close(d);
    struct preprocess p;
    preprocess_init(&p);
    assert_int_equal(preprocess_set(&p, "resize", "20", NULL), YK_OK);
    o.preprocess = &p;
    d = must_open("mixed", &o);
    assert_int_equal(data_read(d, 1, 1, x, NULL, &why), YK_INVAL);
    data_close(d);
    assert_int_equal(preprocess_set(&p, "crop", "16", NULL), YK_OK);
    d = must_open("mixed", &o);
    assert_int_equal(data_read(d, 0, 2, x, NULL, &why), YK_OK);
    data_close(d);
}

static void data_roots(void **state)
{
    (void)state;
    static float x[3 * 23 * 31];
    char inside[512], real[4096];
    struct data_options o = {0};
    struct data_set *d = NULL;
    run("cd %s && mkdir -p in/flat in/link in/cls/a outside && cp " GOLDEN "/half.jpg in/flat/a.jpg && cp " GOLDEN
        "/half.jpg outside/b.jpg && ln -s ../../outside/b.jpg in/link/b.jpg && cp in/flat/a.jpg in/cls/a && ln -s "
        "../../outside in/cls/b",
        root);
    snprintf(inside, sizeof inside, "%s/in", root);
    assert_non_null(realpath(inside, real));
    const char *const roots[] = {inside, NULL};
    assert_int_equal(data_open_below(roots, "flat", &o, &d, &why), YK_OK);
    assert_int_equal(data_read(d, 0, 1, x, NULL, &why), YK_OK);
    run("cd %s && rm in/flat/a.jpg && ln -s ../../outside/b.jpg in/flat/a.jpg", root); /* changed meanwhile */
    assert_int_equal(data_read(d, 0, 1, x, NULL, &why), YK_PERM);
    data_close(d);
    assert_int_equal(data_open_below(roots, "link", &o, &d, &why), YK_PERM);
    assert_non_null(strstr(why.text, "b.jpg: leads out of the data root"));
    assert_int_equal(data_open_below(roots, "cls", &o, &d, &why), YK_PERM);
    assert_int_equal(data_open_below(roots, "link/b.jpg", &o, &d, &why), YK_PERM);
    assert_int_equal(data_open_below(roots, "../outside", &o, &d, &why), YK_PERM);
    run("cd %s && rm in/flat/a.jpg && cp outside/b.jpg in/flat/a.jpg", root);
    assert_int_equal(data_open_below(roots, "flat/a.jpg", &o, &d, &why), YK_OK);
    data_close(d);
}

static void reading_ahead(void **state)
{
    (void)state;
    static float want[7 * 3 * 12 * 9];
    struct preprocess p;
    preprocess_init(&p);
    assert_int_equal(preprocess_set(&p, "resize", "12x9", NULL), YK_OK);
    struct data_options o = {.preprocess = &p};
    run("cd %s && mkdir -p many/a many/b && for i in 1 2 3; do cp " GOLDEN "/half.jpg many/a/$i.jpg; cp " GOLDEN
        "/tall.jpg many/b/$i.jpg; done; cp " GOLDEN "/rgb.png many/b/4.png",
        root);
    struct data_set *d = must_open("many", &o);
    assert_int_equal(data_read(d, 0, 7, want, NULL, &why), YK_OK);
    const int64_t sizes[] = {1, 2, 3, 7, 100};
    for (size_t k = 0; k < YK_COUNT(sizes); k++) {
        struct data_ahead *a = NULL;
        const struct data_ahead_batch *b;
        int64_t at = 0;
        assert_int_equal(data_ahead_open(d, 0, 7, sizes[k], 1 + (int)k, &a, &why), YK_OK);
        while (assert_int_equal(data_ahead_next(a, &b, &why), YK_OK), b) {
            assert_true(b->first == at && b->count == YK_MIN(sizes[k], 7 - at));
            assert_memory_equal(b->x, want + at * 3 * 12 * 9, (size_t)b->count * 3 * 12 * 9 * sizeof(float));
            for (int64_t i = 0; i < b->count; i++)
                assert_int_equal(((int64_t *)b->y)[i], at + i >= 3);
            at += b->count;
        }
        assert_int_equal(at, 7);
        assert_int_equal(data_ahead_next(a, &b, &why), YK_OK);
        assert_null(b);
        data_ahead_close(a);
    }
    struct data_ahead *a = NULL;
    const struct data_ahead_batch *b;
    assert_int_equal(data_ahead_open(d, 0, 8, 1, 2, &a, &why), YK_INVAL);
    assert_int_equal(data_ahead_open(d, 2, 4, 3, 2, &a, &why), YK_OK); /* closed while it reads */
    data_ahead_close(a);
    put("many/b/1.jpg", "x", 1);
    assert_int_equal(data_ahead_open(d, 1, 6, 2, 2, &a, &why), YK_OK);
    assert_int_equal(data_ahead_next(a, &b, &why), YK_OK);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(data_ahead_next(a, &b, &why), YK_FORMAT);
        assert_non_null(strstr(why.text, "many: b/1.jpg: neither JPEG nor PNG"));
    }
    data_ahead_close(a);
    data_close(d);
}

/* ---- bad files ---- */

static void broken(const char *name, const void *data, size_t len, yk_err want, const char *part)
{
    struct image m = {0};
    uint8_t *exact = malloc(len ? len : 1);
    memcpy(exact, data, len);
    yk_err got = image_decode(exact, len, 3, &m, &why);
    if (got != want || !strstr(why.text, part))
        fail_msg("%s: got %s '%s', expected %s with '%s'", name, yk_err_name(got), why.text, yk_err_name(want), part);
    free(exact);
}

static void cut_anywhere(void **state)
{
    (void)state;
    static const char *const names[] = {"half.jpg", "progressive.jpg", "cmyk.jpg", "gray.jpg", "rgb.png",
        "interlaced.png", "palette4.png", "gray16.png"};
    for (size_t i = 0; i < YK_COUNT(names); i++) {
        size_t len;
        uint8_t *data = golden_file(names[i], &len);
        bool jpeg = strstr(names[i], ".jpg") != NULL;
        for (size_t n = 8; n < len - (jpeg ? 16 : 0); n += 1 + n / 50)
            broken(names[i], data, n, YK_FORMAT, "");
        broken(names[i], data, len / 2, YK_FORMAT, "ends");
        broken(names[i], data, 2, YK_FORMAT, "neither JPEG nor PNG");
        free(data);
    }
    broken("empty", "", 0, YK_FORMAT, "empty");
    broken("text", "hello, world", 12, YK_FORMAT, "starts with 68656c6c6f2c2077");
}

static void set_crc(uint8_t *chunk, uint32_t n)
{
    uint32_t crc = (uint32_t)crc32(0, chunk + 4, n + 4);
    for (int i = 0; i < 4; i++)
        chunk[8 + n + (uint32_t)i] = (uint8_t)(crc >> (24 - 8 * i));
}

static void corrupt(void **state)
{
    (void)state;
    size_t len;
    uint8_t *png = golden_file("rgb.png", &len);
    png[len - 30] ^= 0x55;
    broken("crc", png, len, YK_FORMAT, "PNG: ");
    /* a bomb: a header that promises far more than there is */
    for (int big = 0; big < 2; big++) {
        static const uint8_t sizes[2][8] = {{0, 0, 0xff, 0, 0, 0, 0xff, 0}, {0x7f, 0xff, 0xff, 0xff, 0, 0, 0, 1}};
        memcpy(png + 16, sizes[big], 8);
        set_crc(png + 8, 13);
        broken("bomb", png, len, YK_LIMIT, "limit is 65535 on a side and 134217728 in all");
    }
    memset(png + 16, 0, 8);
    set_crc(png + 8, 13);
    broken("no pixels", png, len, YK_FORMAT, "");
    free(png);

    uint8_t *jpeg = golden_file("half.jpg", &len);
    size_t at = 0;
    while (!(jpeg[at] == 0xff && jpeg[at + 1] == 0xc0))
        at++;
    uint8_t keep[4];
    memcpy(keep, jpeg + at + 5, 4);
    memcpy(jpeg + at + 5, "\xff\x00\xff\x00", 4);
    broken("jpeg bomb", jpeg, len, YK_LIMIT, "65280x65280 pixels");
    memcpy(jpeg + at + 5, keep, 4);
    jpeg[at + 9] = 2;
    broken("two components", jpeg, len, YK_FORMAT, "JPEG: ");
    jpeg[at + 9] = 3;
    for (size_t i = len - 120; i < len - 60; i++)
        jpeg[i] = (uint8_t)(i * 37 % 251);
    struct image m = {0};
    if (image_decode(jpeg, len, 3, &m, &why) == YK_OK) /* wrong pixels may still be a picture */
        image_free(&m);
    free(jpeg);
}

/* A progressive JPEG whose first scan comes again and again. */
static void many_scans(void **state)
{
    (void)state;
    size_t len, first = 0, end;
    uint8_t *jpeg = golden_file("progressive.jpg", &len);
    while (!(jpeg[first] == 0xff && jpeg[first + 1] == 0xda))
        first++;
    for (end = first + 2; !(jpeg[end] == 0xff && jpeg[end + 1]); end++)
        continue;
    size_t scan = end - first, total = len + 600 * scan;
    uint8_t *all = malloc(total);
    memcpy(all, jpeg, end);
    for (size_t i = 0; i < 600; i++)
        memcpy(all + end + i * scan, jpeg + first, scan);
    memcpy(all + end + 600 * scan, jpeg + end, len - end);
    broken("scans", all, total, YK_LIMIT, "more than the limit of 500 scans");
    free(all);
    free(jpeg);
}

static void files_that_cannot_be_read(void **state)
{
    (void)state;
    static float x[3 * 23 * 31];
    struct data_options o = {0};
    put("zero.jpg", "", 0);
    must_refuse("zero.jpg", &o, YK_FORMAT, "zero.jpg: the file is empty");
    put("text.png", "not a picture", 13);
    must_refuse("text.png", &o, YK_FORMAT, "text.png: neither JPEG nor PNG");
    run("cd %s && mkdir later && cp " GOLDEN "/half.jpg later/a.jpg && head -c 300 later/a.jpg > later/b.jpg", root);
    struct data_set *d = must_open("later", &o);
    assert_int_equal(data_read(d, 0, 2, x, NULL, &why), YK_FORMAT);
    assert_non_null(strstr(why.text, "later: b.jpg: "));
    run("rm %s/later/b.jpg", root);
    assert_int_equal(data_read(d, 1, 1, x, NULL, &why), YK_NOTFOUND);
    assert_non_null(strstr(why.text, "later: b.jpg: "));
    run("mkfifo %s/later/b.jpg", root);
    assert_int_equal(data_read(d, 1, 1, x, NULL, &why), YK_INVAL);
    data_close(d);
    run("cd %s && mkdir big && truncate -s 300M big/a.jpg", root);
    must_refuse("big", &o, YK_LIMIT, "a.jpg: 314572800 bytes; the limit of an image is 268435456");
    struct preprocess p;
    preprocess_init(&p);
    assert_int_equal(preprocess_set(&p, "resize", "16384", NULL), YK_OK);
    o.preprocess = &p;
    run("cp " GOLDEN "/line.png %s/line.png", root);
    must_refuse("line.png", &o, YK_LIMIT, "would be resized to 16384x81920; the limit is 134217728 pixels");
}

/* ---- the settings ---- */

static void settings(void **state)
{
    (void)state;
    static const char *const good[] = {"{}", "{\"resize\":256,\"crop\":224,\"mean\":[0.5],\"std\":[0.25]}",
        "{\"resize\":[3,4],\"crop\":[5,6],\"interpolation\":\"bicubic\",\"channels\":\"BGR\",\"layout\":\"NHWC\","
        "\"range\":255,\"mean\":[1,2,3.5]}"};
    for (size_t i = 0; i < YK_COUNT(good); i++) {
        struct preprocess p, again;
        struct yk_buf buf = {0};
        struct json_out out;
        preprocess_init(&p);
        preprocess_init(&again);
        assert_int_equal(preprocess_parse_text(good[i], strlen(good[i]), &p, &why), YK_OK);
        json_out_init(&out, &buf, 0);
        preprocess_put(&p, &out);
        assert_int_equal(preprocess_parse_text((char *)buf.data, buf.len, &again, &why), YK_OK);
        assert_memory_equal(&p, &again, sizeof p);
        yk_buf_free(&buf);
    }
    static const char *const bad[][2] = {{"[]", "object"}, {"{\"size\": 3}", "unknown key 'size'"},
        {"{\"resize\": 0}", "1 to 16384"}, {"{\"resize\": 2.5}", "1 to 16384"},
        {"{\"crop\": [1,2,3]}", "[height, width]"}, {"{\"crop\": \"a\"}", "crop"}, {"{\"std\": [0]}", "above 0"},
        {"{\"mean\": [1,2]}", "2 values"}, {"{\"mean\": 1}", "array"}, {"{\"mean\": [\"a\"]}", "mean[0]"},
        {"{\"range\": 0}", "range"}, {"{\"interpolation\": \"lanczos\"}", "bilinear, nearest, bicubic"},
        {"{\"preset\": \"x\"}", "imagenet"}, {"{\"layout\": 3}", "layout"}, {"{", "line"}};
    for (size_t i = 0; i < YK_COUNT(bad); i++) {
        struct preprocess p;
        preprocess_init(&p);
        if (preprocess_parse_text(bad[i][0], strlen(bad[i][0]), &p, &why) == YK_OK || !strstr(why.text, bad[i][1]))
            fail_msg("%s: '%s' without '%s'", bad[i][0], why.text, bad[i][1]);
    }
    static const char *const flags[][2] = {{"resize", ""}, {"resize", "0"}, {"resize", "5x"}, {"resize", "5x6x7"},
        {"resize", "-5"}, {"resize", "99999"}, {"resize", "99999999999999999999"}, {"crop", "x5"}, {"mean", ""},
        {"mean", "1,2"}, {"mean", "1,2,3,4"}, {"mean", "1,,3"}, {"mean", "nan"}, {"std", "1,0,1"}, {"range", "x"},
        {"range", "inf"}, {"channels", "rgb"}, {"preset", ""}};
    for (size_t i = 0; i < YK_COUNT(flags); i++) {
        struct preprocess p;
        preprocess_init(&p);
        if (preprocess_set(&p, flags[i][0], flags[i][1], &why) == YK_OK || !strstr(why.text, flags[i][0]))
            fail_msg("%s=%s: '%s'", flags[i][0], flags[i][1], why.text);
    }
    struct preprocess p;
    preprocess_init(&p);
    assert_int_equal(preprocess_set(&p, "resize", "7x9", NULL), YK_OK);
    assert_true(p.resize[0] == 7 && p.resize[1] == 9);
    assert_int_equal(preprocess_set(&p, "crop", "8", NULL), YK_OK);
    assert_true(p.crop[0] == 8 && p.crop[1] == 8);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(as_pillow_and_torchvision),
        cmocka_unit_test(normalisation_and_layout), cmocka_unit_test(what_the_input_takes), cmocka_unit_test(folders),
        cmocka_unit_test(sizes_must_agree), cmocka_unit_test(data_roots), cmocka_unit_test(reading_ahead),
        cmocka_unit_test(cut_anywhere), cmocka_unit_test(corrupt), cmocka_unit_test(many_scans),
        cmocka_unit_test(files_that_cannot_be_read), cmocka_unit_test(settings)};
    return cmocka_run_group_tests(tests, folder_open, folder_close);
}
