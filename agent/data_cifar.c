#include "agent/data_cifar.h"

#include "agent/data_files.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define PIXELS (3 * 32 * 32)
#define RECORD (1 + PIXELS)
#define CLASSES 10
#define FILES 5

struct data_cifar {
    struct data_files file[FILES];
    int64_t count[FILES]; /* records */
    int n;
};

bool data_cifar_here(int dir)
{
    static const char *const names[] = {"data_batch_1.bin", "test_batch.bin", "data_batch_1", "test_batch"};
    for (size_t i = 0; i < YK_COUNT(names); i++)
        if (faccessat(dir, names[i], F_OK, 0) == 0)
            return true;
    return false;
}

bool data_cifar_test(int dir)
{
    return faccessat(dir, "test_batch.bin", F_OK, 0) == 0;
}

static yk_err open_file(struct data_cifar *d, int dir, const char *root, const char *name, struct yk_diag *why)
{
    struct data_files *f = &d->file[d->n];
    yk_err err = data_files_open(dir, name, root, false, f, why);
    if (err == YK_NOTFOUND &&
        (faccessat(dir, "data_batch_1", F_OK, 0) == 0 || faccessat(dir, "test_batch", F_OK, 0) == 0))
        return yk_fail(why, YK_UNSUPPORTED,
            "this is CIFAR-10 for Python (pickles); take its binary version, with data_batch_1.bin and test_batch.bin");
    if (err)
        return err;
    d->n++;
    if (f->len == 0 || f->len % RECORD)
        return yk_fail(why, YK_FORMAT, "%s: %zu bytes are not whole records of %d (label and 3x32x32 pixels)", name,
            f->len, RECORD);
    d->count[d->n - 1] = (int64_t)(f->len / RECORD);
    return YK_OK;
}

yk_err data_cifar_open(int dir, const char *root, bool train, struct data_cifar **out, struct yk_diag *why)
{
    struct data_cifar *d = yk_xalloc(sizeof *d);
    yk_err err = YK_OK;
    for (int i = 0; !err && i < (train ? FILES : 1); i++) {
        char name[32];
        snprintf(name, sizeof name, train ? "data_batch_%d.bin" : "test_batch.bin", i + 1);
        err = open_file(d, dir, root, name, why);
    }
    if (err)
        data_cifar_close(d);
    else
        *out = d;
    return err;
}

int64_t data_cifar_count(const struct data_cifar *d)
{
    int64_t n = 0;
    for (int i = 0; i < d->n; i++)
        n += d->count[i];
    return n;
}

static yk_err bad_label(const struct data_cifar *d, int file, uint8_t label, size_t at, struct yk_diag *why)
{
    return yk_fail(
        why, YK_FORMAT, "%s: label %d at offset %zu; CIFAR-10 has 0 to %d", d->file[file].path, label, at, CLASSES - 1);
}

yk_err data_cifar_read(
    const struct data_cifar *d, int64_t first, int64_t count, float *x, int64_t *y, struct yk_diag *why)
{
    int file = 0;
    for (int64_t i = 0; i < count; i++, first++) {
        uint8_t record[RECORD];
        while (first >= d->count[file])
            first -= d->count[file++];
        size_t at = (size_t)first * RECORD;
        yk_err err = data_files_read(&d->file[file], at, sizeof record, record, why);
        if (err)
            return err;
        if (y && record[0] >= CLASSES)
            return bad_label(d, file, record[0], at, why);
        for (int k = 0; k < PIXELS; k++)
            *x++ = (float)record[1 + k] / 255.0f;
        if (y)
            y[i] = record[0];
    }
    return YK_OK;
}

yk_err data_cifar_check(const struct data_cifar *d, int64_t classes, const int64_t *ignore, struct yk_diag *why)
{
    for (int file = 0; file < d->n; file++)
        for (int64_t i = 0; i < d->count[file]; i++) {
            uint8_t label;
            size_t at = (size_t)i * RECORD;
            yk_err err = data_files_read(&d->file[file], at, 1, &label, why);
            if (err)
                return err;
            if (label >= CLASSES)
                return bad_label(d, file, label, at, why);
            if (label >= classes && !(ignore && label == *ignore))
                return yk_fail(why, YK_FORMAT,
                    "%s: label %d at offset %zu; the model has %" PRId64 " classes: 0 to %" PRId64, d->file[file].path,
                    label, at, classes, classes - 1);
        }
    return YK_OK;
}

void data_cifar_close(struct data_cifar *d)
{
    if (!d)
        return;
    for (int i = 0; i < d->n; i++)
        data_files_close(&d->file[i]);
    free(d);
}
