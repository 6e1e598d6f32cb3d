#include "common/yk.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#if defined(__linux__)
#include <sys/mman.h>
#endif

/* ---- errors ---- */

static const struct {
    yk_err err;
    const char *name, *text;
} errors[] = {
#define X(name, value, text) {YK_##name, #name, text},
    YK_ERRORS(X)
#undef X
};

const char *yk_err_name(yk_err err)
{
    for (size_t i = 0; i < YK_COUNT(errors); i++)
        if (errors[i].err == err)
            return errors[i].name;
    return "UNKNOWN";
}

const char *yk_err_text(yk_err err)
{
    for (size_t i = 0; i < YK_COUNT(errors); i++)
        if (errors[i].err == err)
            return errors[i].text;
    return "unknown error";
}

yk_err yk_err_from_name(const char *name)
{
    for (size_t i = 0; name && i < YK_COUNT(errors); i++)
        if (strcmp(errors[i].name, name) == 0)
            return errors[i].err;
    return YK_INTERNAL;
}

yk_err yk_err_from_errno(int e)
{
    switch (e) {
    case 0:
        return YK_OK;
    case ENOMEM:
        return YK_NOMEM;
    case EINVAL:
    case ENAMETOOLONG:
    case EISDIR:
    case ENOTDIR:
        return YK_INVAL;
    case EMFILE:
    case ENFILE:
        return YK_LIMIT;
    case ENOENT:
        return YK_NOTFOUND;
    case EEXIST:
    case ENOTEMPTY:
        return YK_EXISTS;
    case EBUSY:
    case EADDRINUSE:
    case EAGAIN:
        return YK_BUSY;
    case ETIMEDOUT:
        return YK_TIMEOUT;
    case EPIPE:
    case ECONNRESET:
    case ECONNABORTED:
    case ENOTCONN:
        return YK_CLOSED;
    case ECONNREFUSED:
        return YK_REFUSED;
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
        return YK_NOSPC;
    case EACCES:
    case EPERM:
    case EROFS:
    case ELOOP:
        return YK_PERM;
    case ECANCELED:
        return YK_CANCELED;
    case ENOSYS:
    case EOPNOTSUPP:
        return YK_UNSUPPORTED;
    default:
        return YK_IO;
    }
}

yk_err yk_fail(struct yk_diag *why, yk_err err, const char *fmt, ...)
{
    if (why) {
        va_list ap;
        va_start(ap, fmt);
        /* Formatted apart: an argument may be the old reason itself. */
        char text[sizeof why->text];
        vsnprintf(text, sizeof text, fmt, ap);
        va_end(ap);
        memcpy(why->text, text, sizeof text);
    }
    return err;
}

yk_err yk_wrap(struct yk_diag *why, yk_err err, const char *fmt, ...)
{
    if (why) {
        char text[sizeof why->text];
        va_list ap;
        va_start(ap, fmt);
        int n = vsnprintf(text, sizeof text, fmt, ap);
        va_end(ap);
        size_t used = n < 0 ? 0 : YK_MIN((size_t)n, sizeof text - 1);
        const char *parts[] = {": ", why->text[0] ? why->text : yk_err_text(err)};
        for (size_t i = 0; i < YK_COUNT(parts); i++) {
            size_t len = YK_MIN(strlen(parts[i]), sizeof text - 1 - used);
            memcpy(text + used, parts[i], len);
            used += len;
        }
        text[used] = 0;
        memcpy(why->text, text, sizeof text);
    }
    return err;
}

/* ---- memory ---- */

static void *or_stop(void *p, size_t bytes)
{
    if (!p) {
        fprintf(stderr, "out of memory (%zu bytes of bookkeeping)\n", bytes);
        abort();
    }
    return p;
}

void *yk_xalloc(size_t bytes)
{
    return or_stop(calloc(1, bytes ? bytes : 1), bytes);
}

void *yk_xrealloc(void *p, size_t bytes)
{
    return or_stop(realloc(p, bytes ? bytes : 1), bytes);
}

char *yk_xstrdup(const char *s)
{
    size_t n = strlen(s) + 1;
    return memcpy(or_stop(malloc(n), n), s, n);
}

char *yk_xasprintf(const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    char *s = NULL;
    if (vasprintf(&s, fmt, ap) < 0)
        s = NULL;
    va_end(ap);
    return or_stop(s, strlen(fmt));
}

void *yk_try_alloc(size_t count, size_t size)
{
    size_t bytes;
    if (__builtin_mul_overflow(count, size, &bytes) || bytes > PTRDIFF_MAX)
        return NULL;
    return calloc(1, bytes ? bytes : 1);
}

void *yk_try_realloc(void *p, size_t count, size_t size)
{
    size_t bytes;
    if (__builtin_mul_overflow(count, size, &bytes) || bytes > PTRDIFF_MAX)
        return NULL;
    return realloc(p, bytes ? bytes : 1);
}

/* Large blocks get large pages where the system has them: they are filled and read in long runs. Only whole large pages
 * are asked for, so that no more becomes resident than is used. */
#define HUGE_PAGE ((size_t)2 << 20)

void *yk_try_aligned(size_t bytes)
{
    if (bytes > PTRDIFF_MAX - HUGE_PAGE)
        return NULL;
    void *p = NULL;
#if defined(__linux__) && defined(MADV_HUGEPAGE)
    if (bytes >= HUGE_PAGE) {
        if (posix_memalign(&p, HUGE_PAGE, bytes) != 0)
            return NULL;
        madvise(p, bytes / HUGE_PAGE * HUGE_PAGE, MADV_HUGEPAGE); /* advice: it may be refused */
        return p;
    }
#endif
    return posix_memalign(&p, 64, bytes ? bytes : 1) == 0 ? p : NULL;
}

bool yk_mul_i64(int64_t a, int64_t b, int64_t *out)
{
    return !__builtin_mul_overflow(a, b, out);
}

bool yk_add_i64(int64_t a, int64_t b, int64_t *out)
{
    return !__builtin_add_overflow(a, b, out);
}

/* ---- arena ---- */

#define ARENA_ALIGN 16
#define ARENA_CHUNK ((size_t)16 * 1024)

struct arena_chunk {
    struct arena_chunk *next;
    size_t used, cap; /* of the bytes after the header */
};

struct yk_arena {
    struct arena_chunk *chunks; /* the first one is being filled */
    size_t limit, bytes, next_cap;
};

#define CHUNK_HEAD ((sizeof(struct arena_chunk) + ARENA_ALIGN - 1) & ~(size_t)(ARENA_ALIGN - 1))

struct yk_arena *yk_arena_open(size_t limit_bytes)
{
    struct yk_arena *a = calloc(1, sizeof *a);
    if (!a)
        return NULL;
    a->limit = limit_bytes ? limit_bytes : SIZE_MAX;
    a->next_cap = 1024; /* messages are small: the first chunk is, too */
    return a;
}

void yk_arena_close(struct yk_arena *a)
{
    if (!a)
        return;
    for (struct arena_chunk *c = a->chunks, *next; c; c = next) {
        next = c->next;
        free(c);
    }
    free(a);
}

void *yk_arena_alloc(struct yk_arena *a, size_t count, size_t size)
{
    size_t bytes;
    if (__builtin_mul_overflow(count, size, &bytes) || bytes > PTRDIFF_MAX / 2)
        return NULL;
    bytes = (YK_MAX(bytes, (size_t)1) + ARENA_ALIGN - 1) & ~(size_t)(ARENA_ALIGN - 1);
    if (bytes > a->limit - a->bytes)
        return NULL;
    struct arena_chunk *c = a->chunks;
    if (!c || c->cap - c->used < bytes) {
        bool own = bytes > a->next_cap / 2; /* a large piece gets a chunk of its own, behind the one being filled */
        size_t cap = own ? bytes : a->next_cap;
        struct arena_chunk *fresh = calloc(1, CHUNK_HEAD + cap);
        if (!fresh)
            return NULL;
        fresh->cap = cap;
        if (own && c) {
            fresh->next = c->next;
            c->next = fresh;
        } else {
            fresh->next = c;
            a->chunks = fresh;
        }
        if (a->next_cap < ARENA_CHUNK)
            a->next_cap *= 2;
        c = fresh;
    }
    void *p = (uint8_t *)c + CHUNK_HEAD + c->used;
    c->used += bytes;
    a->bytes += bytes;
    return p;
}

char *yk_arena_strdup(struct yk_arena *a, const char *s)
{
    return yk_arena_strndup(a, s, strlen(s));
}

char *yk_arena_strndup(struct yk_arena *a, const char *s, size_t n)
{
    if (n == SIZE_MAX)
        return NULL;
    char *p = yk_arena_alloc(a, n + 1, 1);
    if (p && n)
        memcpy(p, s, n);
    return p;
}

size_t yk_arena_bytes(const struct yk_arena *a)
{
    return a->bytes;
}

/* ---- byte buffer ---- */

uint8_t *yk_buf_room(struct yk_buf *b, size_t len)
{
    size_t want;
    if (b->failed || __builtin_add_overflow(b->len, len, &want) || want > PTRDIFF_MAX / 2) {
        b->failed = true;
        return NULL;
    }
    if (want > b->cap) {
        size_t cap = YK_MAX(b->cap * 2, (size_t)64);
        cap = YK_MAX(cap, want);
        uint8_t *p = realloc(b->data, cap);
        if (!p) {
            b->failed = true;
            return NULL;
        }
        b->data = p;
        b->cap = cap;
    }
    uint8_t *at = b->data + b->len;
    b->len = want;
    return at;
}

void yk_buf_add(struct yk_buf *b, const void *data, size_t len)
{
    if (len == 0)
        return;
    uint8_t *at = yk_buf_room(b, len);
    if (at)
        memcpy(at, data, len);
}

void yk_buf_printf(struct yk_buf *b, const char *fmt, ...)
{
    char small[256];
    va_list ap, again;
    va_start(ap, fmt);
    va_copy(again, ap);
    int n = vsnprintf(small, sizeof small, fmt, ap);
    va_end(ap);
    if (n < 0) {
        b->failed = true;
    } else if ((size_t)n < sizeof small) {
        yk_buf_add(b, small, (size_t)n);
    } else {
        uint8_t *at = yk_buf_room(b, (size_t)n + 1); /* vsnprintf writes the NUL too */
        if (at) {
            vsnprintf((char *)at, (size_t)n + 1, fmt, again);
            b->len--;
        }
    }
    va_end(again);
}

void yk_buf_free(struct yk_buf *b)
{
    free(b->data);
    memset(b, 0, sizeof *b);
}

/* ---- hex ---- */

void yk_hex(const uint8_t *data, size_t len, char *out)
{
    static const char digits[] = "0123456789abcdef";
    for (size_t i = 0; i < len; i++) {
        out[2 * i] = digits[data[i] >> 4];
        out[2 * i + 1] = digits[data[i] & 15];
    }
    out[2 * len] = 0;
}

static int hex_digit(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    if (c >= 'a' && c <= 'f')
        return c - 'a' + 10;
    if (c >= 'A' && c <= 'F')
        return c - 'A' + 10;
    return -1;
}

bool yk_unhex(const char *text, size_t len_bytes, uint8_t *out)
{
    if (strnlen(text, 2 * len_bytes + 1) != 2 * len_bytes)
        return false;
    for (size_t i = 0; i < 2 * len_bytes; i++)
        if (hex_digit(text[i]) < 0)
            return false;
    for (size_t i = 0; i < len_bytes; i++)
        out[i] = (uint8_t)(hex_digit(text[2 * i]) << 4 | hex_digit(text[2 * i + 1]));
    return true;
}

/* ---- seeded choices: xoshiro256** seeded by splitmix64 ---- */

void yk_rng_seed(struct yk_rng *r, uint64_t seed)
{
    for (int i = 0; i < 4; i++) {
        seed += 0x9e3779b97f4a7c15u;
        uint64_t z = seed;
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
        z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
        r->s[i] = z ^ (z >> 31);
    }
}

static uint64_t rotl(uint64_t x, int k)
{
    return x << k | x >> (64 - k);
}

uint64_t yk_rng_next(struct yk_rng *r)
{
    uint64_t *s = r->s, out = rotl(s[1] * 5, 7) * 9, t = s[1] << 17;
    s[2] ^= s[0];
    s[3] ^= s[1];
    s[1] ^= s[2];
    s[0] ^= s[3];
    s[2] ^= t;
    s[3] = rotl(s[3], 45);
    return out;
}

uint64_t yk_rng_below(struct yk_rng *r, uint64_t n)
{
    uint64_t reject = -n % n, v; /* 2^64 mod n values at the bottom would be too likely */
    do
        v = yk_rng_next(r);
    while (v < reject);
    return v % n;
}

double yk_rng_unit(struct yk_rng *r)
{
    return (double)(yk_rng_next(r) >> 11) * 0x1p-53;
}
