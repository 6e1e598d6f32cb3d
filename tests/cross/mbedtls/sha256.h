/* What common/hash.c uses of mbedtls, for cross builds, where the library is not. Source: FIPS 180-4. */
#ifndef TESTS_CROSS_SHA256_H
#define TESTS_CROSS_SHA256_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

typedef struct {
    uint32_t state[8];
    uint64_t length;
    uint8_t block[64];
} mbedtls_sha256_context;

static inline uint32_t cross_rotate(uint32_t x, int by)
{
    return x >> by | x << (32 - by);
}

static inline void cross_block(uint32_t state[8], const uint8_t *block)
{
    static const uint32_t k[64] = {0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4,
        0xab1c5ed5, 0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
        0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da, 0x983e5152,
        0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967, 0x27b70a85, 0x2e1b2138,
        0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85, 0xa2bfe8a1, 0xa81a664b, 0xc24b8b70,
        0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070, 0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5,
        0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3, 0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa,
        0xa4506ceb, 0xbef9a3f7, 0xc67178f2};
    uint32_t w[64], v[8];
    for (int i = 0; i < 16; i++)
        w[i] = (uint32_t)block[4 * i] << 24 | (uint32_t)block[4 * i + 1] << 16 | (uint32_t)block[4 * i + 2] << 8 |
               block[4 * i + 3];
    for (int i = 16; i < 64; i++)
        w[i] = w[i - 16] + w[i - 7] + (cross_rotate(w[i - 15], 7) ^ cross_rotate(w[i - 15], 18) ^ w[i - 15] >> 3) +
               (cross_rotate(w[i - 2], 17) ^ cross_rotate(w[i - 2], 19) ^ w[i - 2] >> 10);
    memcpy(v, state, sizeof v);
    for (int i = 0; i < 64; i++) {
        uint32_t a = v[0], e = v[4];
        uint32_t x = v[7] + (cross_rotate(e, 6) ^ cross_rotate(e, 11) ^ cross_rotate(e, 25)) +
                     ((e & v[5]) ^ (~e & v[6])) + k[i] + w[i];
        uint32_t y = (cross_rotate(a, 2) ^ cross_rotate(a, 13) ^ cross_rotate(a, 22)) +
                     ((a & v[1]) ^ (a & v[2]) ^ (v[1] & v[2]));
        memmove(v + 1, v, 7 * sizeof *v);
        v[4] += x;
        v[0] = x + y;
    }
    for (int i = 0; i < 8; i++)
        state[i] += v[i];
}

static inline void mbedtls_sha256_init(mbedtls_sha256_context *c)
{
    memset(c, 0, sizeof *c);
}

static inline void mbedtls_sha256_free(mbedtls_sha256_context *c)
{
    memset(c, 0, sizeof *c);
}

static inline int mbedtls_sha256_starts_ret(mbedtls_sha256_context *c, int is224)
{
    static const uint32_t first[8] = {
        0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
    memcpy(c->state, first, sizeof first);
    c->length = 0;
    return is224;
}

static inline int mbedtls_sha256_update_ret(mbedtls_sha256_context *c, const void *data, size_t len)
{
    for (const uint8_t *p = data; len > 0; len--) {
        c->block[c->length++ % 64] = *p++;
        if (c->length % 64 == 0)
            cross_block(c->state, c->block);
    }
    return 0;
}

static inline int mbedtls_sha256_finish_ret(mbedtls_sha256_context *c, uint8_t out[32])
{
    uint64_t bits = c->length * 8;
    uint8_t byte = 0x80;
    mbedtls_sha256_update_ret(c, &byte, 1);
    for (byte = 0; c->length % 64 != 56;)
        mbedtls_sha256_update_ret(c, &byte, 1);
    for (int i = 7; i >= 0; i--) {
        byte = (uint8_t)(bits >> (8 * i));
        mbedtls_sha256_update_ret(c, &byte, 1);
    }
    for (int i = 0; i < 32; i++)
        out[i] = (uint8_t)(c->state[i / 4] >> (24 - i % 4 * 8));
    return 0;
}

#endif
