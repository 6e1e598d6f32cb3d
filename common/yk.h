/* The base of everything: errors, the reason a person reads, memory, byte buffers.
 * Nothing here knows of threads, files or sockets. */
#ifndef YK_H
#define YK_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* One list makes the enum, the short name (JSON, wire, logs) and the text. */
#define YK_ERRORS(X)                         \
    X(OK, 0, "success")                      \
    X(NOMEM, 1, "out of memory")             \
    X(INVAL, 2, "invalid argument")          \
    X(FORMAT, 3, "malformed data")           \
    X(LIMIT, 4, "over a limit")              \
    X(UNSUPPORTED, 5, "not supported")       \
    X(NOTFOUND, 6, "not found")              \
    X(EXISTS, 7, "already exists")           \
    X(BUSY, 8, "busy")                       \
    X(TIMEOUT, 9, "timed out")               \
    X(CLOSED, 10, "connection closed")       \
    X(REFUSED, 11, "connection refused")     \
    X(IO, 12, "input/output error")          \
    X(NOSPC, 13, "no space left")            \
    X(PERM, 14, "permission denied")         \
    X(VERSION, 15, "version mismatch")       \
    X(STATE, 16, "wrong state")              \
    X(CANCELED, 17, "canceled")              \
    X(AUTH, 18, "not authorised")            \
    X(INFEASIBLE, 19, "no feasible plan")    \
    X(STALE, 20, "older term or generation") \
    X(INTERNAL, 21, "internal error")        \
    X(DEPENDS, 22, "depends on data")

typedef enum yk_err {
#define X(name, value, text) YK_##name = value,
    YK_ERRORS(X)
#undef X
} yk_err;

const char *yk_err_name(yk_err err); /* "NOMEM"; "UNKNOWN" for a value that is not in the list */
const char *yk_err_text(yk_err err);
yk_err yk_err_from_name(const char *name); /* YK_INTERNAL if unknown */
yk_err yk_err_from_errno(int e);

/* What a person needs to know about a failure: the thing, the limit, the mend. Caller's memory; may be NULL everywhere.
 */
struct yk_diag {
    char text[1024];
};

/* Writes the reason (truncated to fit) and returns err, so that `return yk_fail(why, YK_INVAL, "...")` reads well. */
yk_err yk_fail(struct yk_diag *why, yk_err err, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
/* Puts "context: " in front of the reason that is already there, and returns err. */
yk_err yk_wrap(struct yk_diag *why, yk_err err, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

/* Bookkeeping of a known small size: zeroed, stops the process when memory is gone. */
void *yk_xalloc(size_t bytes);
void *yk_xrealloc(void *p, size_t bytes);
char *yk_xstrdup(const char *s);
char *yk_xasprintf(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/* Any size that a peer, a file or a model chose: NULL on overflow of count * size or when memory is gone. */
void *yk_try_alloc(size_t count, size_t size);            /* zeroed; free() */
void *yk_try_realloc(void *p, size_t count, size_t size); /* grown part is not zeroed */
void *yk_try_aligned(size_t bytes);                       /* 64-byte aligned, not zeroed; free() */
bool yk_mul_i64(int64_t a, int64_t b, int64_t *out);      /* false on overflow */
bool yk_add_i64(int64_t a, int64_t b, int64_t *out);

/* A region whose pieces are freed together. */
struct yk_arena;
struct yk_arena *yk_arena_open(size_t limit_bytes);                  /* 0: no limit */
void yk_arena_close(struct yk_arena *a);                             /* NULL allowed */
void *yk_arena_alloc(struct yk_arena *a, size_t count, size_t size); /* zeroed, 16-byte aligned, NULL over the limit */
char *yk_arena_strdup(struct yk_arena *a, const char *s);
char *yk_arena_strndup(struct yk_arena *a, const char *s, size_t n);
size_t yk_arena_bytes(const struct yk_arena *a);

/* A growing byte buffer. Zero-initialise; yk_buf_free ends it. A failed grow sets `failed` and later calls do nothing,
 * so a writer checks once at the end. */
struct yk_buf {
    uint8_t *data;
    size_t len, cap;
    bool failed;
};
void yk_buf_add(struct yk_buf *b, const void *data, size_t len);
void yk_buf_printf(struct yk_buf *b, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
uint8_t *yk_buf_room(struct yk_buf *b, size_t len); /* makes len more bytes part of the buffer; NULL on failure */
void yk_buf_free(struct yk_buf *b);

/* Little-endian and hex. */
void yk_hex(const uint8_t *data, size_t len, char *out);         /* out has 2 * len + 1 bytes */
bool yk_unhex(const char *text, size_t len_bytes, uint8_t *out); /* exactly 2 * len_bytes digits */

/* xoshiro-class generator for seeded, repeatable choices (tests, jitter, sampling). Not for secrets. */
struct yk_rng {
    uint64_t s[4];
};
void yk_rng_seed(struct yk_rng *r, uint64_t seed);
uint64_t yk_rng_next(struct yk_rng *r);
uint64_t yk_rng_below(struct yk_rng *r, uint64_t n); /* 0..n-1; n > 0 */
double yk_rng_unit(struct yk_rng *r);                /* [0, 1) */

#define YK_COUNT(a) (sizeof(a) / sizeof((a)[0]))
#define YK_MIN(a, b) ((a) < (b) ? (a) : (b))
#define YK_MAX(a, b) ((a) > (b) ? (a) : (b))

#endif
