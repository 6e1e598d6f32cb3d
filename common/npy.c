#include "common/npy.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char magic[6] = {'\x93', 'N', 'U', 'M', 'P', 'Y'};

static const struct {
    enum dtype dtype;
    const char *code; /* behind the byte order */
} codes[] = {
    {DT_F32, "f4"},
    {DT_F64, "f8"},
    {DT_F16, "f2"},
    {DT_I8, "i1"},
    {DT_I16, "i2"},
    {DT_I32, "i4"},
    {DT_I64, "i8"},
    {DT_U8, "u1"},
    {DT_U16, "u2"},
    {DT_U32, "u4"},
    {DT_U64, "u8"},
    {DT_BOOL, "b1"},
};

/* The header is a Python literal: {'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), } */
struct text {
    const char *at, *end;
};

static char peek(struct text *t)
{
    while (t->at < t->end && (*t->at == ' ' || *t->at == '\n' || *t->at == '\t' || *t->at == '\r'))
        t->at++;
    return t->at < t->end ? *t->at : 0;
}

static bool take(struct text *t, char c)
{
    if (peek(t) != c)
        return false;
    t->at++;
    return true;
}

static bool take_string(struct text *t, char *out, size_t size)
{
    char quote = peek(t);
    if (quote != '\'' && quote != '"')
        return false;
    size_t n = 0;
    for (t->at++; t->at < t->end && *t->at != quote; t->at++) {
        if (*t->at == '\\' || (unsigned char)*t->at < 0x20 || n + 1 >= size)
            return false;
        out[n++] = *t->at;
    }
    if (t->at == t->end)
        return false;
    t->at++;
    out[n] = 0;
    return true;
}

static bool take_word(struct text *t, const char *word)
{
    size_t n = strlen(word);
    peek(t);
    if ((size_t)(t->end - t->at) < n || memcmp(t->at, word, n) != 0)
        return false;
    t->at += n;
    return true;
}

static yk_err take_shape(struct text *t, struct shape *s, struct yk_diag *why)
{
    s->rank = 0;
    if (!take(t, '('))
        return yk_fail(why, YK_FORMAT, ".npy header: 'shape' is not a tuple");
    while (!take(t, ')')) {
        int64_t v = 0;
        char c = peek(t);
        if (c < '0' || c > '9')
            return yk_fail(why, YK_FORMAT, ".npy header: 'shape' has something that is not a size");
        for (; t->at < t->end && *t->at >= '0' && *t->at <= '9'; t->at++)
            if (!yk_mul_i64(v, 10, &v) || !yk_add_i64(v, *t->at - '0', &v))
                return yk_fail(why, YK_LIMIT, ".npy header: a size in 'shape' is too large");
        if (t->at < t->end && *t->at == 'L') /* written by Python 2 */
            t->at++;
        if (s->rank == YK_MAX_RANK)
            return yk_fail(why, YK_LIMIT, ".npy header: more than %d dimensions", YK_MAX_RANK);
        s->dims[s->rank++] = v;
        if (!take(t, ',') && peek(t) != ')')
            return yk_fail(why, YK_FORMAT, ".npy header: 'shape' is malformed");
    }
    return YK_OK;
}

static yk_err take_descr(struct text *t, enum dtype *out, struct yk_diag *why)
{
    char d[64];
    if (peek(t) == '[')
        return yk_fail(why, YK_UNSUPPORTED, ".npy header: records are not supported; save one plain array");
    if (!take_string(t, d, sizeof d) || strlen(d) < 2)
        return yk_fail(why, YK_FORMAT, ".npy header: 'descr' is malformed");
    for (size_t i = 0; i < YK_COUNT(codes); i++) {
        if (strcmp(d + 1, codes[i].code) != 0)
            continue;
        if (d[0] == '<' || (dtype_bytes(codes[i].dtype) == 1 && (d[0] == '|' || d[0] == '>'))) {
            *out = codes[i].dtype;
            return YK_OK;
        }
        if (d[0] == '>')
            return yk_fail(why, YK_UNSUPPORTED,
                ".npy header: big-endian data ('%s') is not supported; save with astype('<%s')", d, codes[i].code);
    }
    return yk_fail(why, YK_UNSUPPORTED,
        ".npy header: dtype '%s' is not supported (known: f2 f4 f8 i1 i2 i4 i8 u1 u2 u4 u8 b1, little-endian)", d);
}

static yk_err parse_header(struct text t, struct shape *s, struct yk_diag *why)
{
    bool has_descr = false, has_order = false, has_shape = false;
    yk_err err;
    char key[32];
    if (!take(&t, '{'))
        return yk_fail(why, YK_FORMAT, ".npy header: not a dictionary");
    while (!take(&t, '}')) {
        if (!take_string(&t, key, sizeof key) || !take(&t, ':'))
            return yk_fail(why, YK_FORMAT, ".npy header: malformed dictionary");
        if (strcmp(key, "descr") == 0 && !has_descr) {
            has_descr = true;
            if ((err = take_descr(&t, &s->dtype, why)) != YK_OK)
                return err;
        } else if (strcmp(key, "fortran_order") == 0 && !has_order) {
            has_order = true;
            if (take_word(&t, "True"))
                return yk_fail(why, YK_UNSUPPORTED,
                    ".npy header: Fortran order is not supported; save with numpy.ascontiguousarray");
            if (!take_word(&t, "False"))
                return yk_fail(why, YK_FORMAT, ".npy header: 'fortran_order' is neither True nor False");
        } else if (strcmp(key, "shape") == 0 && !has_shape) {
            has_shape = true;
            if ((err = take_shape(&t, s, why)) != YK_OK)
                return err;
        } else {
            return yk_fail(why, YK_FORMAT, ".npy header: unexpected key '%s'", key);
        }
        if (!take(&t, ',') && peek(&t) != '}')
            return yk_fail(why, YK_FORMAT, ".npy header: malformed dictionary");
    }
    if (!has_descr || !has_order || !has_shape)
        return yk_fail(why, YK_FORMAT, ".npy header: 'descr', 'fortran_order' or 'shape' is missing");
    return peek(&t) == 0 ? YK_OK : yk_fail(why, YK_FORMAT, ".npy header: text behind the dictionary");
}

yk_err npy_parse(const void *data, size_t len, int64_t file_bytes, struct npy *out, struct yk_diag *why)
{
    const uint8_t *d = data;
    if (len < 10 || memcmp(d, magic, sizeof magic) != 0)
        return yk_fail(why, YK_FORMAT, "not an .npy file: the magic bytes are missing");
    int major = d[6];
    if (major < 1 || major > 3)
        return yk_fail(why, YK_VERSION, ".npy version %d.%d is not supported (known: 1 to 3)", major, d[7]);
    size_t at = major == 1 ? 10 : 12, head = (size_t)(d[8] | d[9] << 8);
    if (len < at)
        return yk_fail(why, YK_FORMAT, ".npy file ends in its header");
    if (major > 1)
        head |= (size_t)d[10] << 16 | (size_t)d[11] << 24;
    if (head > NPY_HEAD_LIMIT)
        return yk_fail(why, YK_LIMIT, ".npy header of %zu bytes is over the limit of %zu", head, NPY_HEAD_LIMIT);
    if (head > len - at)
        return yk_fail(why, YK_FORMAT, ".npy file ends in its header");
    struct npy n = {.offset = at + head};
    yk_err err = parse_header((struct text){(const char *)d + at, (const char *)d + at + head}, &n.shape, why);
    if (err)
        return err;
    n.bytes = shape_bytes(&n.shape);
    if (n.bytes < 0)
        return yk_fail(why, YK_LIMIT, ".npy shape is too large");
    int64_t have = file_bytes - (int64_t)n.offset;
    if (have != n.bytes) {
        char text[160];
        shape_text(&n.shape, text, sizeof text);
        return yk_fail(
            why, YK_FORMAT, ".npy data has %lld bytes, but %s needs %lld", (long long)have, text, (long long)n.bytes);
    }
    *out = n;
    return YK_OK;
}

yk_err npy_header(const struct shape *shape, struct yk_buf *out)
{
    const char *code = NULL;
    for (size_t i = 0; i < YK_COUNT(codes); i++)
        if (codes[i].dtype == shape->dtype)
            code = codes[i].code;
    if (!code)
        return YK_UNSUPPORTED;
    if (shape->rank < 0 || shape->rank > YK_MAX_RANK || shape_bytes(shape) < 0)
        return YK_INVAL;
    char dims[YK_MAX_RANK * 24 + 4], text[320];
    size_t n = 0;
    dims[0] = 0;
    for (int i = 0; i < shape->rank; i++)
        n += (size_t)snprintf(dims + n, sizeof dims - n, "%s%lld", i ? ", " : "", (long long)shape->dims[i]);
    size_t len = (size_t)snprintf(text, sizeof text, "{'descr': '%c%s', 'fortran_order': False, 'shape': (%s%s), }",
        dtype_bytes(shape->dtype) == 1 ? '|' : '<', code, dims, shape->rank == 1 ? "," : "");
    size_t total = (10 + len + 1 + 63) & ~(size_t)63;
    size_t head = total - 10;
    uint8_t *at = yk_buf_room(out, total);
    if (!at)
        return YK_NOMEM;
    memset(at, ' ', total);
    memcpy(at, magic, sizeof magic);
    at[6] = 1;
    at[7] = 0;
    at[8] = (uint8_t)head;
    at[9] = (uint8_t)(head >> 8);
    memcpy(at + 10, text, len);
    at[total - 1] = '\n';
    return YK_OK;
}
