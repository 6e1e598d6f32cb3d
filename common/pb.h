/* Protobuf wire format: a bounded reader over bytes in place, and a small writer.
 *
 * The reader walks the fields of one message; a field of bytes is a slice of the message, already checked to lie inside
 * it, and becomes a reader of its own with pb_of. Nothing is copied, allocated or recursed into. Groups (wire types 3
 * and 4, unused since proto2) are malformed here. Numbers may be packed or not: pb_numbers takes both. */
#ifndef YK_PB_H
#define YK_PB_H

#include "common/yk.h"

enum pb_wire { PB_VARINT = 0, PB_FIXED64 = 1, PB_BYTES = 2, PB_FIXED32 = 5 };

struct pb {
    const uint8_t *p, *end;
};

struct pb_field {
    uint32_t number;
    enum pb_wire wire;
    uint64_t v;          /* PB_VARINT, PB_FIXED32, PB_FIXED64 */
    const uint8_t *data; /* PB_BYTES; not NULL */
    size_t len;
};

/* A slice of text inside the message; not NUL-ended. */
struct pb_text {
    const char *s;
    size_t n;
};

struct pb pb_over(const void *data, size_t len);
struct pb pb_of(const struct pb_field *f); /* an empty reader unless the field is PB_BYTES */

/* The next field. false at the end, or with *bad set when the bytes are malformed. */
bool pb_next(struct pb *r, struct pb_field *f, bool *bad);
bool pb_varint(struct pb *r, uint64_t *v); /* false: truncated, or more than 64 bits */

/* Elements of a repeated number in one field, packed or not. wire is that of one element. -1: malformed. */
int64_t pb_count(const struct pb_field *f, enum pb_wire wire);
/* Calls with each element of one field, in order; false when malformed. out has room for pb_count(f, wire) elements. */
bool pb_numbers(const struct pb_field *f, enum pb_wire wire, uint64_t *out);

float pb_f32(uint64_t fixed32);
double pb_f64(uint64_t fixed64);
bool pb_text(const struct pb_field *f, struct pb_text *out); /* false: not bytes, not UTF-8, or a NUL inside */

/* ---- writer ---- */
void pb_put_varint(struct yk_buf *b, uint32_t field, uint64_t v);
void pb_put_f32(struct yk_buf *b, uint32_t field, float v);
void pb_put_bytes(struct yk_buf *b, uint32_t field, const void *data, size_t len);
void pb_put_text(struct yk_buf *b, uint32_t field, const char *s);
void pb_put_packed(struct yk_buf *b, uint32_t field, const int64_t *v, size_t n); /* nothing if n is 0 */
/* A nested message: everything written between is its body. pb_end moves the body by the bytes of its length. */
size_t pb_begin(struct yk_buf *b, uint32_t field);
void pb_end(struct yk_buf *b, size_t begun);

#endif
