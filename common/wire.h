/* Messages between yoked and agents, and between agents: msgpack maps made from wire_list.h. The home of msgpack-c. */
#ifndef YK_WIRE_H
#define YK_WIRE_H

#include "common/wire_list.h"
#include "common/yk.h"

#define WIRE_VERSION_MAJOR 1
#define WIRE_VERSION_MINOR 0
#define WIRE_CONTROL_LIMIT (64 * 1024)       /* a message before the welcome */
#define WIRE_MESSAGE_LIMIT (4 * 1024 * 1024) /* a message after it */
#define WIRE_CHUNK_BYTES (256 * 1024)

struct wire_bin {
    const uint8_t *data;
    size_t len;
};
struct wire_strs {
    const char **at;
    size_t n;
};
struct wire_i64s {
    int64_t *at;
    size_t n;
};
struct wire_f64s {
    double *at;
    size_t n;
};

#define WIRE_F_I64(name, sub) int64_t name;
#define WIRE_F_F64(name, sub) double name;
#define WIRE_F_BOOL(name, sub) bool name;
#define WIRE_F_STR(name, sub) const char *name;
#define WIRE_F_BIN(name, sub) struct wire_bin name;
#define WIRE_F_STRS(name, sub) struct wire_strs name;
#define WIRE_F_I64S(name, sub) struct wire_i64s name;
#define WIRE_F_F64S(name, sub) struct wire_f64s name;
#define WIRE_F_ONE(name, sub) struct wire_##sub name;
#define WIRE_F_LIST(name, sub) \
    struct {                   \
        struct wire_##sub *at; \
        size_t n;              \
    } name;
#define WIRE_FIELD(kind, name, sub) WIRE_F_##kind(name, sub)

#define WIRE_DECLARE_PART(part)      \
    struct wire_##part {             \
        WIRE_PART_##part(WIRE_FIELD) \
    };
WIRE_PARTS(WIRE_DECLARE_PART)

#define WIRE_DECLARE_MESSAGE(id, msg) \
    struct wire_##msg {               \
        WIRE_##msg(WIRE_FIELD)        \
    };
WIRE_MESSAGES(WIRE_DECLARE_MESSAGE)

enum wire_type {
#define X(id, msg) WIRE_TYPE_##msg = id,
    WIRE_MESSAGES(X)
#undef X
};

/* One decoded message; `as` is the member that `type` names. Strings and lists live in its arena. */
struct wire_msg {
    enum wire_type type;
    struct yk_arena *arena;
    union {
#define X(id, msg) struct wire_##msg msg;
        WIRE_MESSAGES(X)
#undef X
    } as;
};

const char *wire_name(int type); /* "hello"; NULL if there is no such message */

/* Appends the msgpack form of msg (a struct wire_<name>) to out. NULL strings are written as "". */
yk_err wire_encode(enum wire_type type, const void *msg, struct yk_buf *out);
/* Decodes and checks bounds: depth <= 8, at most 2^20 items, UTF-8 not required. type comes from the frame header.
 * Errors: YK_UNSUPPORTED for an unknown type, YK_FORMAT, YK_LIMIT. On success free with wire_free. */
yk_err wire_decode(int type, const uint8_t *data, size_t len, struct wire_msg *out, struct yk_diag *why);
void wire_free(struct wire_msg *msg);

#endif
