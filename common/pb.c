/* Protobuf wire format. Every length is checked against what is left of its own message before use. */
#include "common/pb.h"

#include <string.h>

struct pb pb_over(const void *data, size_t len)
{
    static const uint8_t none;
    const uint8_t *p = len ? data : &none;
    return (struct pb){p, p + len};
}

struct pb pb_of(const struct pb_field *f)
{
    return f->wire == PB_BYTES ? pb_over(f->data, f->len) : pb_over(NULL, 0);
}

bool pb_varint(struct pb *r, uint64_t *v)
{
    uint64_t x = 0;
    for (int shift = 0; shift < 70 && r->p < r->end; shift += 7) {
        uint8_t c = *r->p++;
        if (shift == 63 && c > 1)
            return false;
        x |= (uint64_t)(c & 0x7f) << shift;
        if (c < 0x80) {
            *v = x;
            return true;
        }
    }
    return false;
}

static uint64_t little(const uint8_t *p, int n)
{
    uint64_t v = 0;
    for (int i = n; i-- > 0;)
        v = v << 8 | p[i];
    return v;
}

bool pb_next(struct pb *r, struct pb_field *f, bool *bad)
{
    uint64_t tag, len;
    if (r->p >= r->end)
        return false;
    *bad = true;
    if (!pb_varint(r, &tag) || tag >> 32 || tag >> 3 == 0)
        return false;
    *f = (struct pb_field){.number = (uint32_t)(tag >> 3), .wire = (enum pb_wire)(tag & 7), .data = r->p};
    size_t left = (size_t)(r->end - r->p);
    switch (f->wire) {
    case PB_VARINT:
        if (!pb_varint(r, &f->v))
            return false;
        break;
    case PB_FIXED64:
    case PB_FIXED32: {
        int n = f->wire == PB_FIXED64 ? 8 : 4;
        if (left < (size_t)n)
            return false;
        f->v = little(r->p, n);
        r->p += n;
        break;
    }
    case PB_BYTES:
        if (!pb_varint(r, &len) || len > (size_t)(r->end - r->p))
            return false;
        f->data = r->p;
        f->len = (size_t)len;
        r->p += len;
        break;
    default:
        return false;
    }
    *bad = false;
    return true;
}

int64_t pb_count(const struct pb_field *f, enum pb_wire wire)
{
    if (f->wire == wire)
        return 1;
    if (f->wire != PB_BYTES)
        return -1;
    if (wire != PB_VARINT) {
        size_t size = wire == PB_FIXED64 ? 8 : 4;
        return f->len % size ? -1 : (int64_t)(f->len / size);
    }
    /* Each varint ends with the one byte of it that has the top bit clear; pb_numbers checks their lengths. */
    int64_t n = 0;
    for (size_t i = 0; i < f->len; i++)
        n += f->data[i] < 0x80;
    return f->len && f->data[f->len - 1] >= 0x80 ? -1 : n;
}

bool pb_numbers(const struct pb_field *f, enum pb_wire wire, uint64_t *out)
{
    if (f->wire == wire) {
        *out = f->v;
        return true;
    }
    struct pb r = pb_of(f);
    size_t size = wire == PB_FIXED64 ? 8 : 4;
    while (r.p < r.end) {
        if (wire == PB_VARINT) {
            if (!pb_varint(&r, out++))
                return false;
        } else {
            if ((size_t)(r.end - r.p) < size)
                return false;
            *out++ = little(r.p, (int)size);
            r.p += size;
        }
    }
    return f->wire == PB_BYTES;
}

float pb_f32(uint64_t fixed32)
{
    uint32_t bits = (uint32_t)fixed32;
    float v;
    memcpy(&v, &bits, sizeof v);
    return v;
}

double pb_f64(uint64_t fixed64)
{
    double v;
    memcpy(&v, &fixed64, sizeof v);
    return v;
}

static bool utf8(const uint8_t *p, size_t n)
{
    for (size_t i = 0; i < n;) {
        uint8_t c = p[i];
        int more = c < 0x80                ? 0
                   : c >= 0xc2 && c < 0xe0 ? 1
                   : c >= 0xe0 && c < 0xf0 ? 2
                   : c >= 0xf0 && c < 0xf5 ? 3
                                           : -1;
        if (c == 0 || more < 0 || (size_t)more >= n - i)
            return false;
        for (int k = 1; k <= more; k++)
            if ((p[i + k] & 0xc0) != 0x80)
                return false;
        /* Over-long forms, surrogates and code points over U+10FFFF. */
        if ((c == 0xe0 && p[i + 1] < 0xa0) || (c == 0xed && p[i + 1] > 0x9f) || (c == 0xf0 && p[i + 1] < 0x90) ||
            (c == 0xf4 && p[i + 1] > 0x8f))
            return false;
        i += (size_t)more + 1;
    }
    return true;
}

bool pb_text(const struct pb_field *f, struct pb_text *out)
{
    if (f->wire != PB_BYTES || !utf8(f->data, f->len))
        return false;
    *out = (struct pb_text){(const char *)f->data, f->len};
    return true;
}

/* ---- writer ---- */

static int varint_bytes(uint64_t v, uint8_t out[10])
{
    int n = 0;
    for (; v >= 0x80; v >>= 7)
        out[n++] = (uint8_t)(v | 0x80);
    out[n++] = (uint8_t)v;
    return n;
}

static void put_raw_varint(struct yk_buf *b, uint64_t v)
{
    uint8_t bytes[10];
    yk_buf_add(b, bytes, (size_t)varint_bytes(v, bytes));
}

static void put_tag(struct yk_buf *b, uint32_t field, enum pb_wire wire)
{
    put_raw_varint(b, (uint64_t)field << 3 | wire);
}

void pb_put_varint(struct yk_buf *b, uint32_t field, uint64_t v)
{
    put_tag(b, field, PB_VARINT);
    put_raw_varint(b, v);
}

void pb_put_f32(struct yk_buf *b, uint32_t field, float v)
{
    uint32_t bits;
    memcpy(&bits, &v, sizeof bits);
    uint8_t bytes[4] = {(uint8_t)bits, (uint8_t)(bits >> 8), (uint8_t)(bits >> 16), (uint8_t)(bits >> 24)};
    put_tag(b, field, PB_FIXED32);
    yk_buf_add(b, bytes, 4);
}

void pb_put_bytes(struct yk_buf *b, uint32_t field, const void *data, size_t len)
{
    put_tag(b, field, PB_BYTES);
    put_raw_varint(b, len);
    if (len)
        yk_buf_add(b, data, len);
}

void pb_put_text(struct yk_buf *b, uint32_t field, const char *s)
{
    pb_put_bytes(b, field, s, strlen(s));
}

void pb_put_packed(struct yk_buf *b, uint32_t field, const int64_t *v, size_t n)
{
    if (!n)
        return;
    size_t begun = pb_begin(b, field);
    for (size_t i = 0; i < n; i++)
        put_raw_varint(b, (uint64_t)v[i]);
    pb_end(b, begun);
}

size_t pb_begin(struct yk_buf *b, uint32_t field)
{
    put_tag(b, field, PB_BYTES);
    return b->len;
}

void pb_end(struct yk_buf *b, size_t begun)
{
    uint8_t bytes[10];
    if (b->failed)
        return;
    size_t len = b->len - begun, n = (size_t)varint_bytes(len, bytes);
    if (!yk_buf_room(b, n))
        return;
    memmove(b->data + begun + n, b->data + begun, len);
    memcpy(b->data + begun, bytes, n);
}
