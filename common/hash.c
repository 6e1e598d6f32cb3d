#include "common/hash.h"

#include <mbedtls/sha256.h>
#include <string.h>

_Static_assert(sizeof(mbedtls_sha256_context) <= sizeof(((struct hash *)0)->priv), "struct hash holds the context");

static mbedtls_sha256_context *ctx(struct hash *h)
{
    return (mbedtls_sha256_context *)h->priv;
}

void hash_init(struct hash *h)
{
    mbedtls_sha256_init(ctx(h));
    mbedtls_sha256_starts_ret(ctx(h), 0);
}

void hash_update(struct hash *h, const void *data, size_t len)
{
    if (len)
        mbedtls_sha256_update_ret(ctx(h), data, len);
}

void hash_final(struct hash *h, uint8_t out[HASH_BYTES])
{
    mbedtls_sha256_finish_ret(ctx(h), out);
    mbedtls_sha256_free(ctx(h));
}

void hash_bytes(const void *data, size_t len, uint8_t out[HASH_BYTES])
{
    struct hash h;
    hash_init(&h);
    hash_update(&h, data, len);
    hash_final(&h, out);
}

void hash_hex(const void *data, size_t len, char out[HASH_HEX_SIZE])
{
    uint8_t digest[HASH_BYTES];
    hash_bytes(data, len, digest);
    yk_hex(digest, HASH_BYTES, out);
}

bool hash_is_hex(const char *text)
{
    return text && strspn(text, "0123456789abcdef") == 2 * HASH_BYTES && text[2 * HASH_BYTES] == 0;
}

bool hash_same(const void *a, const void *b, size_t len)
{
    const volatile uint8_t *x = a, *y = b;
    uint8_t diff = 0;
    for (size_t i = 0; i < len; i++)
        diff = (uint8_t)(diff | (x[i] ^ y[i]));
    return diff == 0;
}
