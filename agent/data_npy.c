/* .npy: one file of samples, a folder with x.npy (or NAME.npy of an input) and y.npy, or the same bytes in memory. */
#include "agent/data_priv.h"

#include "common/npy.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define NPY_NAME 208 /* bytes of the name of a file of samples */

static yk_err npy_of(struct data_files *f, struct npy *out, struct yk_diag *why)
{
    const uint8_t *head = NULL;
    size_t len = 0;
    yk_err err = data_files_head(f, NPY_HEAD_LIMIT + 64, &head, &len, why);
    if (!err && (err = npy_parse(head, len, (int64_t)f->len, out, why)))
        yk_wrap(why, err, "%s", f->path);
    return err;
}

yk_err data_npy_x(struct data_set *d, const struct data_options *o, struct yk_diag *why)
{
    struct npy npy;
    yk_err err = npy_of(&d->x_file, &npy, why);
    if (err)
        return err;
    if (npy.shape.rank < 1)
        return yk_fail(why, YK_INVAL, "%s: a single number is not a set of samples", d->x_file.path);
    d->x_at = npy.offset;
    d->count = npy.shape.dims[0];
    d->sample = npy.shape;
    d->sample.rank--;
    memmove(d->sample.dims, npy.shape.dims + 1, (size_t)d->sample.rank * sizeof d->sample.dims[0]);
    bool raw = o && o->target && o->target->dtype == DT_U8;        /* the model takes the bytes as they are */
    if (npy.shape.dtype == DT_U8 && d->sample.rank >= 2 && !raw) { /* images */
        d->bytes = true;
        d->sample.dtype = DT_F32;
        if (d->sample.rank == 2)
            d->sample = (struct shape){.dtype = DT_F32, .rank = 3, .dims = {1, d->sample.dims[0], d->sample.dims[1]}};
    }
    return YK_OK;
}

yk_err data_npy_y(struct data_set *d, struct yk_diag *why)
{
    struct npy npy;
    const char *name = d->y_file.path;
    yk_err err = npy_of(&d->y_file, &npy, why);
    if (err)
        return err;
    enum dtype t = npy.shape.dtype;
    if (npy.shape.rank < 1 || npy.shape.dims[0] != d->count) {
        char text[128];
        shape_text(&npy.shape, text, sizeof text);
        return yk_fail(why, YK_INVAL,
            "%s is %s: labels must have shape (%" PRId64 ",), values (%" PRId64 ", ...), as many as there are samples",
            name, text, d->count, d->count);
    }
    bool ids = t == DT_I64 || t == DT_I32 || t == DT_U8;
    if (!ids && t != DT_F32 && t != DT_F64)
        return yk_fail(why, YK_UNSUPPORTED, "%s: labels are int64, int32 or uint8, values float32 or float64, not %s",
            name, dtype_name(t));
    d->y_at = npy.offset;
    d->y_dtype = t;
    d->has_truth = true;
    d->truth = npy.shape;
    d->truth.dtype = ids ? DT_I64 : DT_F32;
    d->truth.rank--;
    memmove(d->truth.dims, npy.shape.dims + 1, (size_t)d->truth.rank * sizeof d->truth.dims[0]);
    return YK_OK;
}

/* The file of samples in a folder; false: an input of this name has none. */
static bool npy_name(const struct data_options *o, char name[static NPY_NAME])
{
    const char *input = o && o->input ? o->input : "x";
    bool good = strcmp(input, "y") != 0 && input[0] && input[0] != '.' && !strchr(input, '/') && strlen(input) < 200;
    snprintf(name, NPY_NAME, "%s.npy", good ? input : "");
    return good;
}

yk_err data_npy_folder(struct data_set *d, int dir, const struct data_options *o, struct yk_diag *why)
{
    char name[NPY_NAME];
    npy_name(o, name);
    yk_err err = data_files_open(dir, name, d->root, false, &d->x_file, why);
    if (!err)
        err = data_npy_x(d, o, why);
    if (err || (o && o->samples_only) || faccessat(dir, "y.npy", F_OK, 0) != 0)
        return err;
    err = data_files_open(dir, "y.npy", d->root, false, &d->y_file, why);
    return err ? err : data_npy_y(d, why);
}

bool data_npy_here(int dir, const struct data_options *o)
{
    char name[NPY_NAME];
    return npy_name(o, name) && faccessat(dir, name, F_OK, 0) == 0;
}
