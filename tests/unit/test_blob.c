/* Content by SHA-256: uploads in parts that can be resumed, slices of files, and names that cannot escape. */
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "scheduler/blob.h"

struct here {
    char dir[64], blobs_dir[80];
    struct blobs *b;
};

static int setup(void **state)
{
    struct here *h = yk_xalloc(sizeof(*h));
    snprintf(h->dir, sizeof(h->dir), "/tmp/yoke-blob-XXXXXX");
    assert_non_null(mkdtemp(h->dir));
    snprintf(h->blobs_dir, sizeof(h->blobs_dir), "%s/blobs", h->dir);
    assert_int_equal(blobs_open(h->blobs_dir, &h->b, NULL), YK_OK);
    *state = h;
    return 0;
}

static int teardown(void **state)
{
    struct here *h = *state;
    char command[128];
    blobs_close(h->b);
    snprintf(command, sizeof(command), "rm -r %s", h->dir);
    assert_int_equal(system(command), 0);
    free(h);
    return 0;
}

/* Bytes with a pattern, and their name. */
static uint8_t *content(size_t len, char *hash)
{
    uint8_t *data = yk_xalloc(len + 1);
    struct yk_rng r;
    yk_rng_seed(&r, len);
    for (size_t i = 0; i < len; i++)
        data[i] = (uint8_t)yk_rng_next(&r);
    hash_hex(data, len, hash);
    return data;
}

static void expect_content(struct here *h, const char *hash, const uint8_t *data, size_t len)
{
    const uint8_t *got;
    int64_t bytes;
    blobs_add(h->b, hash, hash, 0, (int64_t)len);
    assert_int_equal(blobs_map(h->b, hash, &got, &bytes, NULL), YK_OK);
    assert_int_equal(bytes, len);
    if (len)
        assert_memory_equal(got, data, len);
}

static void upload_in_parts(void **state)
{
    struct here *h = *state;
    char hash[HASH_HEX_SIZE];
    size_t len = 2 * BLOB_PART_LIMIT + 12345;
    uint8_t *data = content(len, hash);
    bool complete = true;
    for (size_t at = 0; at < len; at += BLOB_PART_LIMIT) {
        size_t n = YK_MIN(BLOB_PART_LIMIT, len - at);
        assert_int_equal(blob_part_have(h->b, hash), at);
        assert_int_equal(blob_part_write(h->b, hash, (int64_t)at, (int64_t)len, data + at, n, &complete, NULL), YK_OK);
        assert_int_equal(complete, at + n == len);
    }
    assert_int_equal(blob_part_have(h->b, hash), 0);
    expect_content(h, hash, data, len);
    free(data);
}

/* A client that died and does not know what came through sends some bytes again. */
static void resumed_with_overlap(void **state)
{
    struct here *h = *state;
    char hash[HASH_HEX_SIZE];
    uint8_t *data = content(3000, hash);
    bool complete;
    assert_int_equal(blob_part_write(h->b, hash, 0, 3000, data, 2000, &complete, NULL), YK_OK);
    assert_int_equal(blob_part_write(h->b, hash, 1000, 3000, data + 1000, 500, &complete, NULL), YK_OK);
    assert_false(complete);
    assert_int_equal(blob_part_have(h->b, hash), 2000);
    /* The daemon was started again: what came stays. */
    blobs_close(h->b);
    assert_int_equal(blobs_open(h->blobs_dir, &h->b, NULL), YK_OK);
    assert_int_equal(blob_part_have(h->b, hash), 2000);
    assert_int_equal(blob_part_write(h->b, hash, 2000, 3000, data + 2000, 1000, &complete, NULL), YK_OK);
    assert_true(complete);
    expect_content(h, hash, data, 3000);
    free(data);
}

static void empty_content(void **state)
{
    struct here *h = *state;
    char hash[HASH_HEX_SIZE];
    uint8_t *data = content(0, hash);
    bool complete = false;
    assert_int_equal(blob_part_write(h->b, hash, 0, 0, data, 0, &complete, NULL), YK_OK);
    assert_true(complete);
    expect_content(h, hash, data, 0);
    free(data);
}

static void gap_is_refused(void **state)
{
    struct here *h = *state;
    char hash[HASH_HEX_SIZE];
    uint8_t *data = content(3000, hash);
    struct yk_diag why = {0};
    bool complete;
    assert_int_equal(blob_part_write(h->b, hash, 0, 3000, data, 1000, &complete, NULL), YK_OK);
    assert_int_not_equal(blob_part_write(h->b, hash, 1500, 3000, data + 1500, 100, &complete, &why), YK_OK);
    assert_non_null(strstr(why.text, "1000")); /* says where to go on */
    assert_int_equal(blob_part_have(h->b, hash), 1000);
    free(data);
}

static void wrong_content_is_dropped(void **state)
{
    struct here *h = *state;
    char hash[HASH_HEX_SIZE];
    uint8_t *data = content(3000, hash);
    struct yk_diag why = {0};
    bool complete = true;
    data[7] ^= 1;
    assert_int_equal(blob_part_write(h->b, hash, 0, 3000, data, 3000, &complete, &why), YK_FORMAT);
    assert_false(complete);
    assert_true(why.text[0] != 0);
    assert_int_equal(blob_part_have(h->b, hash), 0);
    assert_false(blobs_find(h->b, hash, NULL));
    data[7] ^= 1;
    assert_int_equal(blob_part_write(h->b, hash, 0, 3000, data, 3000, &complete, NULL), YK_OK);
    assert_true(complete);
    free(data);
}

static void bad_numbers(void **state)
{
    struct here *h = *state;
    char hash[HASH_HEX_SIZE];
    uint8_t *data = content(100, hash);
    bool complete;
    static const struct {
        int64_t offset, total;
    } bad[] = {{-1, 100}, {0, 99}, {50, 100}, {INT64_MAX, INT64_MAX}, {INT64_MAX - 50, INT64_MAX}, {0, -1},
        {0, INT64_MAX}, {INT64_MIN, 100}, {100, 50}};
    for (size_t i = 0; i < YK_COUNT(bad); i++)
        assert_int_not_equal(
            blob_part_write(h->b, hash, bad[i].offset, bad[i].total, data, 100, &complete, NULL), YK_OK);
    uint8_t *big = yk_xalloc(BLOB_PART_LIMIT + 1);
    assert_int_equal(blob_part_write(h->b, hash, 0, 10000000, big, BLOB_PART_LIMIT + 1, &complete, NULL), YK_LIMIT);
    free(big);
    free(data);
}

/* Slices of one file, as a model's weights are; entries grow past the first table. */
static void slices(void **state)
{
    struct here *h = *state;
    enum { N = 3000, BYTES = 16 };
    char path[128], hash[HASH_HEX_SIZE];
    uint8_t *all = content((size_t)N * BYTES, hash);
    snprintf(path, sizeof(path), "%s/weights", h->blobs_dir);
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(all, BYTES, N, f), N);
    fclose(f);
    for (int i = 0; i < N; i++) {
        hash_hex(all + i * BYTES, BYTES, hash);
        blobs_add(h->b, hash, "weights", i * BYTES, BYTES);
    }
    for (int i = 0; i < N; i++) {
        const uint8_t *got;
        int64_t bytes;
        hash_hex(all + i * BYTES, BYTES, hash);
        assert_int_equal(blobs_map(h->b, hash, &got, &bytes, NULL), YK_OK);
        assert_int_equal(bytes, BYTES);
        assert_memory_equal(got, all + i * BYTES, BYTES);
    }
    free(all);
}

static void lost_or_short_file(void **state)
{
    struct here *h = *state;
    char hash[HASH_HEX_SIZE], path[128];
    const uint8_t *got;
    int64_t bytes;
    struct yk_diag why = {0};
    free(content(77, hash));
    assert_int_equal(blobs_map(h->b, hash, &got, &bytes, &why), YK_NOTFOUND);
    blobs_add(h->b, hash, "gone", 0, 77);
    assert_int_not_equal(blobs_map(h->b, hash, &got, &bytes, &why), YK_OK);
    assert_non_null(strstr(why.text, "gone"));
    snprintf(path, sizeof(path), "%s/short", h->blobs_dir);
    FILE *f = fopen(path, "wb");
    fputs("only a few bytes", f);
    fclose(f);
    blobs_add(h->b, hash, "short", 8, 77);
    assert_int_equal(blobs_map(h->b, hash, &got, &bytes, &why), YK_IO);
    blobs_add(h->b, hash, "short", INT64_MAX - 3, 77);
    assert_int_equal(blobs_map(h->b, hash, &got, &bytes, &why), YK_IO);
}

static void put_file(struct here *h, const char *name, const void *data, size_t len)
{
    char path[120], part[140];
    snprintf(path, sizeof path, "%s/%s", h->blobs_dir, name);
    snprintf(part, sizeof part, "%s.new", path);
    FILE *f = fopen(part, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(data, 1, len, f), len);
    fclose(f);
    assert_int_equal(rename(part, path), 0); /* another file, as everything here is written */
}

/* Two slices of a file; whatever byte is another one, the slice that has it is told, and only that. */
static void damage_is_found(void **state)
{
    struct here *h = *state;
    struct yk_diag why = {0};
    char all[HASH_HEX_SIZE], first[HASH_HEX_SIZE], second[HASH_HEX_SIZE];
    const size_t len = ((size_t)1 << 20) + 300, cut = (size_t)1 << 20;
    uint8_t *data = content(len, all);
    hash_hex(data, cut, first);
    hash_hex(data + cut, len - cut, second);
    put_file(h, "w", data, len);
    const size_t places[] = {0, 1, cut / 2, cut - 1, cut, cut + 1, len - 1};
    for (size_t i = 0; i < YK_COUNT(places); i++) {
        size_t at = places[i];
        data[at] ^= 1;
        put_file(h, "w", data, len);
        data[at] ^= 1;
        yk_err a = blob_check(h->blobs_dir, "w", 0, (int64_t)cut, first, NULL, &why);
        yk_err b = blob_check(h->blobs_dir, "w", (int64_t)cut, (int64_t)(len - cut), second, NULL, &why);
        assert_int_equal(a, at < cut ? YK_FORMAT : YK_OK);
        assert_int_equal(b, at < cut ? YK_OK : YK_FORMAT);
        assert_non_null(strstr(why.text, "w has other bytes"));
    }
    put_file(h, "w", data, len - 1);
    assert_int_equal(blob_check(h->blobs_dir, "w", 0, (int64_t)cut, first, NULL, &why), YK_OK);
    assert_int_equal(blob_check(h->blobs_dir, "w", (int64_t)cut, (int64_t)(len - cut), second, NULL, &why), YK_IO);
    assert_int_equal(blob_check(h->blobs_dir, "v", 0, 1, first, NULL, &why), YK_NOTFOUND);
    assert_non_null(strstr(why.text, "v is gone"));
    /* What was right and has not been written since is not read again. */
    int64_t sound = 0;
    put_file(h, "w", data, len);
    assert_int_equal(blob_check(h->blobs_dir, "w", 0, (int64_t)len, all, &sound, &why), YK_OK);
    assert_true(sound != 0);
    assert_int_equal(blob_check(h->blobs_dir, "w", 0, 5, all, &sound, &why), YK_OK); /* else it would not match */
    char path[120];
    const struct timespec later[] = {{2000000000, 1}, {2000000000, 1}};
    data[3] ^= 1;
    put_file(h, "w", data, len);
    snprintf(path, sizeof path, "%s/w", h->blobs_dir);
    assert_int_equal(utimensat(AT_FDCWD, path, later, 0), 0);
    assert_int_equal(blob_check(h->blobs_dir, "w", 0, (int64_t)len, all, &sound, &why), YK_FORMAT);
    assert_int_equal(sound, 0);
    free(data);
}

static void expect_byte(struct here *h, const char *hash, uint8_t want)
{
    const uint8_t *got;
    int64_t bytes;
    assert_int_equal(blobs_map(h->b, hash, &got, &bytes, NULL), YK_OK);
    assert_true(bytes > 0 && *got == want);
}

/* A file that was mapped and is replaced: who had it keeps it, who asks gets the new one, whatever else there is. */
static void replaced_file(void **state)
{
    struct here *h = *state;
    char hash[3][HASH_HEX_SIZE];
    const uint8_t *old;
    int64_t bytes, at;
    for (int i = 0; i < 3; i++)
        hash_hex(&i, sizeof i, hash[i]);
    put_file(h, "a", "xyxyxyxy", 8);
    put_file(h, "b", "kkkkkkkk", 8);
    blobs_add(h->b, hash[0], "a", 0, 4);
    blobs_add(h->b, hash[1], "a", 5, 3);
    blobs_add(h->b, hash[2], "b", 0, 8);
    assert_int_equal(blobs_map(h->b, hash[0], &old, &bytes, NULL), YK_OK);
    put_file(h, "a", "zwzwzwzw", 8);
    expect_byte(h, hash[0], 'x');
    blobs_renew(h->b, "a", 7);
    blobs_renew(h->b, "nothing", 7);
    expect_byte(h, hash[0], 'z');
    expect_byte(h, hash[1], 'w');
    expect_byte(h, hash[2], 'k');
    assert_memory_equal(old, "xyxy", 4);
    assert_string_equal(blobs_place(h->b, hash[1], &at, &bytes), "a");
    assert_true(at == 5 && bytes == 3);
    blobs_forget(h->b, hash[1]);
    assert_null(blobs_place(h->b, hash[1], NULL, NULL));
    expect_byte(h, hash[0], 'z');
    expect_byte(h, hash[2], 'k');
    assert_int_equal(blobs_sound_ns(h->b, hash[0]), 0);
    blobs_set_sound(h->b, hash[0], 12);
    assert_int_equal(blobs_sound_ns(h->b, hash[0]), 12);
    blobs_add(h->b, hash[0], "a", 0, 4);
    assert_int_equal(blobs_sound_ns(h->b, hash[0]), 0);
}

/* What was mapped and is cut off later would end the process that reads on. */
static void cut_while_mapped(void **state)
{
    struct here *h = *state;
    struct yk_diag why = {0};
    const size_t len = 3 * 4096;
    char hash[HASH_HEX_SIZE], low[HASH_HEX_SIZE], path[120];
    const uint8_t *got;
    int64_t bytes;
    uint8_t *data = content(len, hash);
    hash_hex(data, 100, low);
    put_file(h, "f", data, len);
    blobs_add(h->b, hash, "f", 0, (int64_t)len);
    blobs_add(h->b, low, "f", 0, 100);
    assert_int_equal(blobs_map(h->b, hash, &got, &bytes, &why), YK_OK);
    snprintf(path, sizeof path, "%s/f", h->blobs_dir);
    assert_int_equal(truncate(path, 4096), 0);
    assert_int_equal(blobs_map(h->b, hash, &got, &bytes, &why), YK_IO);
    assert_int_equal(blobs_map(h->b, low, &got, &bytes, &why), YK_OK);
    assert_memory_equal(got, data, 100);
    free(data);
}

static void names_are_hashes(void **state)
{
    struct here *h = *state;
    static const char *const bad[] = {"", "..", "../../etc/passwd", "/etc/passwd", "abc",
        "0000000000000000000000000000000000000000000000000000000000000000x", "%2e%2e",
        "zz00000000000000000000000000000000000000000000000000000000000000"};
    for (size_t i = 0; i < YK_COUNT(bad); i++) {
        const uint8_t *got;
        int64_t bytes;
        blobs_add(h->b, bad[i], "x", 0, 1);
        assert_false(blobs_find(h->b, bad[i], NULL));
        assert_int_equal(blobs_map(h->b, bad[i], &got, &bytes, NULL), YK_NOTFOUND);
    }
}

/* What nobody went on with goes, also outputs of long ago; content stays. */
static void sweep(void **state)
{
    struct here *h = *state;
    char hash[HASH_HEX_SIZE], path[256];
    bool complete;
    uint8_t *data = content(3000, hash);
    static const char *const names[] = {"job-1.npy", "job-2.npy", "keep.weights", "old.part"};
    struct timespec long_ago[2] = {{.tv_sec = 1000000000}, {.tv_sec = 1000000000}};
    assert_int_equal(blob_part_write(h->b, hash, 0, 3000, data, 1000, &complete, NULL), YK_OK);
    for (size_t i = 0; i < YK_COUNT(names); i++) {
        snprintf(path, sizeof(path), "%s/%s", h->blobs_dir, names[i]);
        FILE *f = fopen(path, "w");
        assert_non_null(f);
        fclose(f);
        if (i != 1)
            assert_int_equal(utimensat(AT_FDCWD, path, long_ago, 0), 0);
    }
    blobs_sweep(h->b, 3600, 3600);
    static const bool stays[] = {false, true, true, false};
    for (size_t i = 0; i < YK_COUNT(names); i++) {
        snprintf(path, sizeof(path), "%s/%s", h->blobs_dir, names[i]);
        assert_int_equal(access(path, F_OK) == 0, stays[i]);
    }
    assert_int_equal(blob_part_have(h->b, hash), 1000);
    free(data);
}

static void no_permission(void **state)
{
    struct here *h = *state;
    struct blobs *b = NULL;
    struct yk_diag why = {0};
    char path[128];
    snprintf(path, sizeof(path), "%s/none/blobs", h->dir);
    assert_int_not_equal(blobs_open(path, &b, &why), YK_OK);
    assert_null(b);
    assert_non_null(strstr(why.text, path));
    /* What is kept is nobody else's business. */
    struct stat st;
    assert_int_equal(stat(h->blobs_dir, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0700);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(upload_in_parts, setup, teardown),
        cmocka_unit_test_setup_teardown(resumed_with_overlap, setup, teardown),
        cmocka_unit_test_setup_teardown(empty_content, setup, teardown),
        cmocka_unit_test_setup_teardown(gap_is_refused, setup, teardown),
        cmocka_unit_test_setup_teardown(wrong_content_is_dropped, setup, teardown),
        cmocka_unit_test_setup_teardown(bad_numbers, setup, teardown),
        cmocka_unit_test_setup_teardown(slices, setup, teardown),
        cmocka_unit_test_setup_teardown(lost_or_short_file, setup, teardown),
        cmocka_unit_test_setup_teardown(damage_is_found, setup, teardown),
        cmocka_unit_test_setup_teardown(replaced_file, setup, teardown),
        cmocka_unit_test_setup_teardown(cut_while_mapped, setup, teardown),
        cmocka_unit_test_setup_teardown(names_are_hashes, setup, teardown),
        cmocka_unit_test_setup_teardown(sweep, setup, teardown),
        cmocka_unit_test_setup_teardown(no_permission, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
