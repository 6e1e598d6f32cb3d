/* SHA-256: the address of weights, graphs and blobs. The home of mbedtls. Thread: any, one struct at a time. */
#ifndef YK_HASH_H
#define YK_HASH_H

#include "common/yk.h"

#define HASH_BYTES 32
#define HASH_HEX_SIZE 65 /* with the NUL */

struct hash {
    uint64_t priv[16];
};

void hash_init(struct hash *h);
void hash_update(struct hash *h, const void *data, size_t len);
void hash_final(struct hash *h, uint8_t out[HASH_BYTES]); /* h may be initialised again */

void hash_bytes(const void *data, size_t len, uint8_t out[HASH_BYTES]);
void hash_hex(const void *data, size_t len, char out[HASH_HEX_SIZE]); /* lower case */
bool hash_is_hex(const char *text); /* 64 lower-case digits, so that one blob has one name */

/* Equality in constant time, for tickets and tokens. */
bool hash_same(const void *a, const void *b, size_t len);

#endif
