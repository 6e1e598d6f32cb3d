/* IDX, as MNIST comes: bytes behind a big-endian head, maybe gzipped. */
#include "agent/data_priv.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <unistd.h>

static uint32_t big_u32(const uint8_t *p)
{
    return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | (uint32_t)p[3];
}

/* rank dims behind a magic of 0x0000 08 rank. */
static yk_err idx_header(struct data_files *f, int rank, int64_t *dims, struct yk_diag *why)
{
    size_t head = 4 + 4 * (size_t)rank, len = 0;
    const uint8_t *p = NULL;
    yk_err err = data_files_head(f, head, &p, &len, why);
    if (err)
        return err;
    if (len < head)
        return yk_fail(why, YK_FORMAT, "%s: ends at offset %zu, an IDX header has %zu bytes", f->path, len, head);
    if (big_u32(p) != (0x800u | (uint32_t)rank))
        return yk_fail(why, YK_FORMAT, "%s: magic %08x at offset 0; bytes of rank %d have %08x", f->path, big_u32(p),
            rank, 0x800u | (uint32_t)rank);
    int64_t total = 1;
    for (int i = 0; i < rank; i++) {
        dims[i] = big_u32(p + 4 + 4 * i);
        if (!yk_mul_i64(total, dims[i], &total))
            return yk_fail(why, YK_LIMIT, "%s: dimensions overflow at offset %d", f->path, 4 + 4 * i);
    }
    if ((uint64_t)total != f->len - head)
        return yk_fail(why, YK_FORMAT, "%s: the header promises %" PRId64 " bytes from offset %zu, the file has %zu",
            f->path, total, head, f->len - head);
    return YK_OK;
}

static yk_err open_idx_file(
    int dir, const char *root, const char *split, const char *what, struct data_files *out, struct yk_diag *why)
{
    char name[80];
    snprintf(name, sizeof name, "%.20s-%s-ubyte", split, what);
    if (faccessat(dir, name, F_OK, 0) == 0)
        return data_files_open(dir, name, root, false, out, why);
    snprintf(name, sizeof name, "%.20s-%s-ubyte.gz", split, what);
    return data_files_open(dir, name, root, true, out, why);
}

yk_err data_idx_open(struct data_set *d, int dir, const char *split, struct yk_diag *why)
{
    int64_t dims[3], labels = 0;
    yk_err err = open_idx_file(dir, d->root, split, "images-idx3", &d->x_file, why);
    if (err || (err = idx_header(&d->x_file, 3, dims, why)))
        return err;
    d->x_at = 16;
    d->bytes = true;
    d->count = dims[0];
    d->sample = (struct shape){.dtype = DT_F32, .rank = 3, .dims = {1, dims[1], dims[2]}};
    err = open_idx_file(dir, d->root, split, "labels-idx1", &d->y_file, why);
    if (err == YK_NOTFOUND)
        return YK_OK;
    if (err || (err = idx_header(&d->y_file, 1, &labels, why)))
        return err;
    if (labels != d->count)
        return yk_fail(
            why, YK_FORMAT, "%s: %" PRId64 " labels for %" PRId64 " images", d->y_file.path, labels, d->count);
    d->y_at = 8;
    d->y_dtype = DT_U8;
    d->has_truth = true;
    d->truth = (struct shape){.dtype = DT_I64};
    return YK_OK;
}
