/* Vectors: FIPS 180-4 examples (NIST CSRC) and RFC 6234. */
#include "common/hash.h"

#include <setjmp.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const struct {
    const char *text, *digest;
} vectors[] = {
    {"", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"},
    {"abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"},
    {"abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq",
        "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1"},
    {"abcdefghbcdefghicdefghijdefghijkefghijklfghijklmghijklmnhijklmnoijklmnopjklmnopqklmnopqrlmnopqrsmnopqrstnopqrstu",
        "cf5b16a778af8380036ce59e7b0492370b249b11e8f07a51afac45037afee9d1"},
};

static void test_vectors(void **state)
{
    (void)state;
    for (size_t i = 0; i < YK_COUNT(vectors); i++) {
        char hex[HASH_HEX_SIZE];
        hash_hex(vectors[i].text, strlen(vectors[i].text), hex);
        assert_string_equal(hex, vectors[i].digest);
    }
}

static void test_million(void **state)
{
    (void)state;
    char chunk[1000], hex[HASH_HEX_SIZE];
    uint8_t digest[HASH_BYTES];
    memset(chunk, 'a', sizeof chunk);
    struct hash h;
    hash_init(&h);
    for (size_t left = 1000000, n = 1; left; left -= n, n = n % 997 + 3) { /* pieces of every size */
        n = YK_MIN(n, left);
        hash_update(&h, chunk, n);
    }
    hash_update(&h, NULL, 0);
    hash_final(&h, digest);
    yk_hex(digest, HASH_BYTES, hex);
    assert_string_equal(hex, "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

static void test_names(void **state)
{
    (void)state;
    assert_true(hash_is_hex(vectors[0].digest));
    assert_false(hash_is_hex("e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b85"));
    assert_false(hash_is_hex("e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b8555"));
    assert_false(hash_is_hex("E3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"));
    assert_false(hash_is_hex("../../etc/passwd"));
    assert_false(hash_is_hex(NULL));
    assert_true(hash_same("abcd", "abcx", 3));
    assert_false(hash_same("abcd", "abcx", 4));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_vectors),
        cmocka_unit_test(test_million),
        cmocka_unit_test(test_names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
