#include "common/preprocess.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char *const filters[] = {"bilinear", "nearest", "bicubic", NULL};
static const char *const channels[] = {"auto", "RGB", "BGR", "gray", NULL};
static const char *const layouts[] = {"auto", "NCHW", "NHWC", NULL};

void preprocess_init(struct preprocess *p)
{
    *p = (struct preprocess){.range = 1};
}

static yk_err use_preset(struct preprocess *p, const char *name, struct yk_diag *why)
{
    if (strcmp(name, "imagenet") != 0)
        return yk_fail(why, YK_INVAL, "preset '%s' is not known (known: imagenet)", name);
    preprocess_init(p);
    *p = (struct preprocess){.range = 1,
        .resize = {256},
        .crop = {224, 224},
        .channels = PREPROCESS_RGB,
        .mean = {0.485, 0.456, 0.406},
        .n_mean = 3,
        .std = {0.229, 0.224, 0.225},
        .n_std = 3};
    return YK_OK;
}

static yk_err use_word(const char *key, const char *word, const char *const *words, int *out, struct yk_diag *why)
{
    for (int i = 0; words[i]; i++)
        if (strcmp(words[i], word) == 0) {
            *out = i;
            return YK_OK;
        }
    return yk_fail(why, YK_INVAL, "%s '%s' is not one of %s, %s, %s%s%s", key, word, words[0], words[1], words[2],
        words[3] ? ", " : "", words[3] ? words[3] : "");
}

/* One number is a side (of a crop: both); two are height and width. */
static yk_err use_size(const char *key, const int64_t *v, size_t n, int64_t out[2], struct yk_diag *why)
{
    for (size_t i = 0; i < n; i++)
        if (v[i] < 1 || v[i] > PREPROCESS_SIDE_LIMIT)
            return yk_fail(why, YK_INVAL, "%s of %lld pixels: 1 to %d", key, (long long)v[i], PREPROCESS_SIDE_LIMIT);
    bool crop = strcmp(key, "crop") == 0;
    out[0] = v[0];
    out[1] = n == 2 ? v[1] : crop ? v[0] : 0;
    return YK_OK;
}

static yk_err use_numbers(const char *key, const double *v, size_t n, struct preprocess *p, struct yk_diag *why)
{
    bool std = strcmp(key, "std") == 0;
    if (n > 3 || n == 2)
        return yk_fail(why, YK_INVAL, "%s has %zu values: 1 for all channels, or 3", key, n);
    for (size_t i = 0; i < n; i++) {
        if (!isfinite(v[i]) || (std && !(v[i] > 0)))
            return yk_fail(why, YK_INVAL, "%s value %g must be %s", key, v[i], std ? "above 0" : "finite");
        (std ? p->std : p->mean)[i] = v[i];
    }
    *(std ? &p->n_std : &p->n_mean) = (int)n;
    return YK_OK;
}

static yk_err use_range(double v, struct preprocess *p, struct yk_diag *why)
{
    if (!(v > 0) || !isfinite(v))
        return yk_fail(why, YK_INVAL, "range %g must be above 0 (1: pixels of 0..1, 255: of 0..255)", v);
    p->range = v;
    return YK_OK;
}

static yk_err use_text(const char *key, const char *text, struct preprocess *p, struct yk_diag *why)
{
    int word = 0;
    yk_err err;
    if (strcmp(key, "interpolation") == 0) {
        err = use_word(key, text, filters, &word, why);
        p->filter = err ? p->filter : (enum preprocess_filter)word;
    } else if (strcmp(key, "channels") == 0) {
        err = use_word(key, text, channels, &word, why);
        p->channels = err ? p->channels : (enum preprocess_channels)word;
    } else {
        err = use_word(key, text, layouts, &word, why);
        p->layout = err ? p->layout : (enum preprocess_layout)word;
    }
    return err;
}

/* ---- JSON ---- */

static yk_err json_size(const struct json *o, const char *key, int64_t out[2], struct yk_diag *why)
{
    const struct json *v = json_find(o, key);
    int64_t sides[2];
    size_t n = 1;
    if (!v)
        return YK_OK;
    if (json_kind(v) == JSON_NULL) {
        out[0] = out[1] = 0;
        return YK_OK;
    }
    if (json_kind(v) == JSON_ARRAY) {
        n = json_len(v);
        for (size_t i = 0; n <= 2 && i < n; i++)
            sides[i] = json_kind(json_at(v, i)) == JSON_INT ? json_i64(json_at(v, i), 0) : 0;
    } else {
        sides[0] = json_kind(v) == JSON_INT ? json_i64(v, 0) : 0;
    }
    if (n < 1 || n > 2)
        return yk_fail(why, YK_INVAL, "%s is a number of pixels or [height, width]", key);
    return use_size(key, sides, n, out, why);
}

static yk_err json_numbers(const struct json *o, const char *key, struct preprocess *p, struct yk_diag *why)
{
    const struct json *a = json_find(o, key);
    double v[3] = {0};
    if (!a || json_kind(a) == JSON_NULL)
        return YK_OK;
    if (json_kind(a) != JSON_ARRAY || json_len(a) > 3)
        return yk_fail(why, YK_INVAL, "%s is an array of 1 or 3 numbers", key);
    for (size_t i = 0; i < json_len(a); i++) {
        const struct json *e = json_at(a, i);
        if (json_kind(e) != JSON_INT && json_kind(e) != JSON_REAL)
            return yk_fail(why, YK_INVAL, "%s[%zu] is not a number", key, i);
        v[i] = json_f64(e, 0);
    }
    return use_numbers(key, v, json_len(a), p, why);
}

yk_err preprocess_parse(const struct json *o, struct preprocess *p, struct yk_diag *why)
{
    static const char *const known[] = {
        "preset", "resize", "crop", "interpolation", "channels", "layout", "range", "mean", "std", NULL};
    static const char *const words[] = {"interpolation", "channels", "layout"};
    const char *text = NULL;
    if (json_kind(o) != JSON_OBJECT)
        return yk_fail(why, YK_INVAL, "preprocessing is a JSON object, as {\"resize\": 256, \"crop\": 224}");
    yk_err err = json_only(o, known, why);
    if (!err)
        err = json_get_str(o, "preset", false, &text, why);
    if (!err && text)
        err = use_preset(p, text, why);
    if (!err)
        err = json_size(o, "resize", p->resize, why);
    if (!err)
        err = json_size(o, "crop", p->crop, why);
    for (size_t i = 0; !err && i < YK_COUNT(words); i++) {
        text = NULL;
        err = json_get_str(o, words[i], false, &text, why);
        if (!err && text)
            err = use_text(words[i], text, p, why);
    }
    double range = p->range;
    if (!err)
        err = json_get_f64(o, "range", false, 0, 1e9, &range, why);
    if (!err)
        err = use_range(range, p, why);
    if (!err)
        err = json_numbers(o, "mean", p, why);
    return err ? err : json_numbers(o, "std", p, why);
}

yk_err preprocess_parse_text(const char *text, size_t len, struct preprocess *p, struct yk_diag *why)
{
    struct json *doc = NULL;
    if (len > PREPROCESS_JSON_LIMIT)
        return yk_fail(why, YK_LIMIT, "preprocessing of %zu bytes; the limit is %zu", len, PREPROCESS_JSON_LIMIT);
    yk_err err = json_parse(text, len, &doc, why);
    if (!err)
        err = preprocess_parse(doc, p, why);
    json_free(doc);
    return err;
}

/* ---- flags ---- */

static yk_err text_size(const char *key, const char *text, int64_t out[2], struct yk_diag *why)
{
    int64_t sides[2] = {0};
    size_t n = 0;
    for (const char *at = text; n < 2; at++) {
        char *end;
        errno = 0;
        long long v = *at >= '0' && *at <= '9' ? strtoll(at, &end, 10) : -1;
        if (v < 0 || errno || (*end && (*end != 'x' || n == 1)))
            break;
        sides[n++] = v;
        if (!*end)
            return use_size(key, sides, n, out, why);
        at = end;
    }
    return yk_fail(why, YK_INVAL, "%s '%s': pixels as 256, or height x width as 224x320", key, text);
}

static yk_err text_numbers(const char *key, const char *text, struct preprocess *p, struct yk_diag *why)
{
    double v[3];
    size_t n = 0;
    for (const char *at = text; n < 3; at++) {
        char *end;
        v[n] = strtod(at, &end);
        if (end == at || (*end && *end != ','))
            return yk_fail(why, YK_INVAL, "%s '%s': 1 or 3 numbers separated by commas", key, text);
        n++;
        if (!*end)
            return use_numbers(key, v, n, p, why);
        at = end;
    }
    return yk_fail(why, YK_INVAL, "%s '%s' has more than 3 values; images have 1 or 3 channels", key, text);
}

yk_err preprocess_set(struct preprocess *p, const char *key, const char *text, struct yk_diag *why)
{
    if (strcmp(key, "preset") == 0)
        return use_preset(p, text, why);
    if (strcmp(key, "resize") == 0)
        return text_size(key, text, p->resize, why);
    if (strcmp(key, "crop") == 0)
        return text_size(key, text, p->crop, why);
    if (strcmp(key, "mean") == 0 || strcmp(key, "std") == 0)
        return text_numbers(key, text, p, why);
    if (strcmp(key, "range") == 0) {
        char *end;
        double v = strtod(text, &end);
        return end == text || *end ? yk_fail(why, YK_INVAL, "range '%s' is not a number", text) : use_range(v, p, why);
    }
    return use_text(key, text, p, why);
}

/* ---- out ---- */

static void put_size(struct json_out *out, const char *key, const int64_t size[2], bool one)
{
    if (!size[0])
        return;
    json_put_key(out, key);
    if (one) {
        json_put_i64(out, size[0]);
        return;
    }
    json_open(out, '[');
    json_put_i64(out, size[0]);
    json_put_i64(out, size[1]);
    json_close(out, ']');
}

static void put_numbers(struct json_out *out, const char *key, const double *v, int n)
{
    if (!n)
        return;
    json_put_key(out, key);
    json_open(out, '[');
    for (int i = 0; i < n; i++)
        json_put_f64(out, v[i]);
    json_close(out, ']');
}

static void put_word(struct json_out *out, const char *key, const char *const *words, int word)
{
    if (!word)
        return;
    json_put_key(out, key);
    json_put_str(out, words[word]);
}

void preprocess_put(const struct preprocess *p, struct json_out *out)
{
    json_open(out, '{');
    put_size(out, "resize", p->resize, p->resize[1] == 0);
    put_size(out, "crop", p->crop, p->crop[0] == p->crop[1]);
    put_word(out, "interpolation", filters, (int)p->filter);
    put_word(out, "channels", channels, (int)p->channels);
    put_word(out, "layout", layouts, (int)p->layout);
    if (p->range != 1) {
        json_put_key(out, "range");
        json_put_f64(out, p->range);
    }
    put_numbers(out, "mean", p->mean, p->n_mean);
    put_numbers(out, "std", p->std, p->n_std);
    json_close(out, '}');
}

yk_err preprocess_normal(const struct json *o, char **text, struct yk_diag *why)
{
    struct preprocess p;
    struct yk_buf buf = {0};
    struct json_out out;
    *text = NULL;
    if (!o || json_kind(o) == JSON_NULL)
        return YK_OK;
    preprocess_init(&p);
    yk_err err = preprocess_parse(o, &p, why);
    if (err)
        return yk_wrap(why, err, "preprocess");
    json_out_init(&out, &buf, 0);
    preprocess_put(&p, &out);
    yk_buf_add(&buf, "", 1);
    if (buf.failed) {
        yk_buf_free(&buf);
        return yk_fail(why, YK_NOMEM, "no memory for preprocessing");
    }
    *text = (char *)buf.data;
    return YK_OK;
}

void preprocess_resized(const struct preprocess *p, int64_t height, int64_t width, int64_t *out_h, int64_t *out_w)
{
    int64_t side = p->resize[0];
    *out_h = side ? side : height;
    *out_w = side ? p->resize[1] : width;
    if (!side || p->resize[1])
        return;
    /* int(size * long / short) */
    *out_w = width <= height ? side : side * width / height;
    *out_h = width <= height ? side * height / width : side;
}
