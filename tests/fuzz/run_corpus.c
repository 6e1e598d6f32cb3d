/* Runs one fuzz target over every file of the folders given, and over seeded mutations of each file, so that what a
 * fuzzer once found stays found in builds without one.
 *   regress_x [--mutations=N] [--seed=N] FOLDER-OR-FILE...
 * Each input is handed over in a heap block of exactly its size, so that the sanitizers see a read past the end. */
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "common/yk.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { LARGEST_FILE = 16 * 1024 * 1024, DEFAULT_MUTATIONS = 64 };

static long mutations = DEFAULT_MUTATIONS;
static struct yk_rng rng;
static long inputs;

static void feed(const uint8_t *data, size_t len)
{
    uint8_t *exact = malloc(len ? len : 1);

    if (!exact) {
        fprintf(stderr, "out of memory for an input of %zu bytes\n", len);
        exit(1);
    }
    if (len)
        memcpy(exact, data, len);
    LLVMFuzzerTestOneInput(exact, len);
    free(exact);
    inputs++;
}

/* A few edits: flip, overwrite with an edge value, cut, repeat a piece. */
static void mutate(const uint8_t *data, size_t len)
{
    static const uint8_t edges[] = {0x00, 0x01, 0x7f, 0x80, 0xff, 0xc0, 0xdd, 0xdf};
    uint8_t *copy = malloc(2 * len + 16);
    uint64_t edits = 1 + yk_rng_below(&rng, 4);

    if (!copy)
        return;
    memcpy(copy, data, len);
    for (uint64_t i = 0; i < edits && len > 0; i++) {
        size_t at = (size_t)yk_rng_below(&rng, len);
        switch (yk_rng_below(&rng, 4)) {
        case 0:
            copy[at] ^= (uint8_t)(1u << yk_rng_below(&rng, 8));
            break;
        case 1:
            copy[at] = edges[yk_rng_below(&rng, YK_COUNT(edges))];
            break;
        case 2:
            len = at;
            break;
        default: {
            size_t piece = YK_MIN(len - at, (size_t)16);
            memmove(copy + at + piece, copy + at, len - at);
            len += piece;
            i = edits; /* the block has room for one */
            break;
        }
        }
    }
    feed(copy, len);
    free(copy);
}

static int run_file(const char *path)
{
    FILE *f = fopen(path, "rb");
    uint8_t *data = NULL;
    long size = -1;
    int rc = 1;

    if (!f) {
        fprintf(stderr, "%s: %s\n", path, strerror(errno));
        return 1;
    }
    if (fseek(f, 0, SEEK_END) == 0)
        size = ftell(f);
    if (size < 0 || size > LARGEST_FILE) {
        fprintf(stderr, "%s: not a file of at most %d bytes\n", path, LARGEST_FILE);
        goto out;
    }
    rewind(f);
    data = malloc((size_t)size + 1);
    if (!data || fread(data, 1, (size_t)size, f) != (size_t)size) {
        fprintf(stderr, "%s: cannot be read\n", path);
        goto out;
    }
    feed(data, (size_t)size);
    for (long i = 0; i < mutations; i++)
        mutate(data, (size_t)size);
    rc = 0;
out:
    free(data);
    fclose(f);
    return rc;
}

static int run_folder(const char *path)
{
    struct dirent **names = NULL;
    int n = scandir(path, &names, NULL, alphasort);
    int rc = n < 0;

    if (n < 0)
        fprintf(stderr, "%s: %s\n", path, strerror(errno));
    for (int i = 0; i < n; i++) {
        if (names[i]->d_name[0] != '.') {
            char *full = yk_xasprintf("%s/%s", path, names[i]->d_name);
            rc |= run_file(full);
            free(full);
        }
        free(names[i]);
    }
    free(names);
    return rc;
}

int main(int argc, char **argv)
{
    uint64_t seed = 1;
    int rc = 0, places = 0;

    for (int i = 1; i < argc; i++) {
        if (strncmp(argv[i], "--mutations=", 12) == 0)
            mutations = strtol(argv[i] + 12, NULL, 10);
        else if (strncmp(argv[i], "--seed=", 7) == 0)
            seed = strtoull(argv[i] + 7, NULL, 10);
    }
    yk_rng_seed(&rng, seed);
    for (int i = 1; i < argc; i++) {
        struct stat st;
        if (argv[i][0] == '-')
            continue;
        places++;
        if (stat(argv[i], &st) != 0) {
            fprintf(stderr, "%s: %s\n", argv[i], strerror(errno));
            rc = 1;
        } else {
            rc |= S_ISDIR(st.st_mode) ? run_folder(argv[i]) : run_file(argv[i]);
        }
    }
    if (places == 0 || inputs == 0) {
        fprintf(stderr, "no inputs; usage: %s [--mutations=N] [--seed=N] FOLDER-OR-FILE...\n", argv[0]);
        return 2;
    }
    printf("%ld inputs, seed %llu\n", inputs, (unsigned long long)seed);
    return rc;
}
