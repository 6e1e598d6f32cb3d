/* ONNX import: tensors. Raw data and plain float lists are used in place; other lists are decoded into the arena, after
 * their count was checked against the shape, so that memory is spent only for bytes that are there. External data is
 * mapped, and only from regular files inside the model's own folder. */
#include "common/onnx_import.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/hash.h"

enum {
    TENSOR_DIMS = 1,
    TENSOR_TYPE = 2,
    TENSOR_SEGMENT = 3,
    TENSOR_FLOATS = 4,
    TENSOR_INT32S = 5,
    TENSOR_STRINGS = 6,
    TENSOR_INT64S = 7,
    TENSOR_RAW = 9,
    TENSOR_DOUBLES = 10,
    TENSOR_UINT64S = 11,
    TENSOR_EXTERNAL = 13,
    TENSOR_LOCATION = 14,
};

struct parts { /* of a TensorProto, as far as one walk tells */
    const char *what;
    int64_t type, location;
    int64_t listed[TENSOR_UINT64S + 1]; /* elements of each kind of list */
    struct pb_field raw;
    bool has_raw, segment;
    struct pb_text file, offset, length;
    bool has_file;
};

/* ---- files ---- */

yk_err onnx_import_map(const char *path, struct onnx_mapping **out, struct yk_diag *why)
{
    struct stat st;
    yk_err err = YK_OK;
    void *data = NULL;
    /* Not blocking: a FIFO in place of a model must not hang the import. */
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return yk_fail(why, yk_err_from_errno(errno), "%s", strerror(errno));
    struct onnx_mapping *m = yk_try_alloc(1, sizeof *m);
    if (!m)
        err = yk_fail(why, YK_NOMEM, "no memory");
    else if (fstat(fd, &st) < 0)
        err = yk_fail(why, YK_IO, "%s", strerror(errno));
    else if (!S_ISREG(st.st_mode))
        err = yk_fail(why, YK_INVAL, "not a regular file");
    else if (st.st_size == 0)
        err = yk_fail(why, YK_FORMAT, "the file is empty");
    if (!err) {
        data = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
        if (data == MAP_FAILED)
            err = yk_fail(why, yk_err_from_errno(errno), "cannot map the file: %s", strerror(errno));
    }
    close(fd);
    if (err) {
        free(m);
        return err;
    }
    *m = (struct onnx_mapping){.data = data, .len = (size_t)st.st_size, .location = ""};
    *out = m;
    return YK_OK;
}

void onnx_import_unmap(struct onnx_mapping *list)
{
    while (list) {
        struct onnx_mapping *m = list;
        list = m->next;
        munmap((void *)(uintptr_t)m->data, m->len);
        free(m);
    }
}

/* Whole pages only: a neighbour may be in use, and then would be read again for nothing. */
void onnx_import_idle(const struct onnx_mapping *list, const void *data, int64_t bytes)
{
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    for (const struct onnx_mapping *m = list; m; m = m->next) {
        uintptr_t first = (uintptr_t)(data ? data : m->data), start = (uintptr_t)m->data;
        uintptr_t last = first + (data ? (uintptr_t)bytes : m->len);
        if (first < start || last > start + m->len || (data && bytes < 0))
            continue;
        first = data ? (first + page - 1) / page * page : first;
        last = data ? last / page * page : last;
        if (first < last)
            (void)madvise((void *)first, last - first, MADV_DONTNEED); /* a hint */
    }
}

/* Relative, and no component of it is ".." or empty. */
static bool plain_path(const char *s)
{
    if (!*s || strchr(s, '\\'))
        return false;
    for (const char *p = s;;) {
        size_t n = strcspn(p, "/");
        if (n == 0 || (n == 2 && p[0] == '.' && p[1] == '.'))
            return false;
        if (!p[n])
            return true;
        p += n + 1;
    }
}

static yk_err find_mapping(
    struct onnx_import *im, const struct parts *p, const char *location, const struct onnx_mapping **out)
{
    char path[PATH_MAX], real[PATH_MAX];
    for (struct onnx_mapping *m = *im->mappings; m; m = m->next)
        if (*m->location && strcmp(m->location, location) == 0) {
            *out = m;
            return YK_OK;
        }
    if (!im->folder)
        return yk_fail(im->why, YK_PERM,
            "%s keeps its data in the file '%s', and a model from memory has no folder: send one file", p->what,
            location);
    size_t folder = strlen(im->folder);
    if (!plain_path(location) || folder + strlen(location) + 2 > sizeof path)
        return yk_fail(
            im->why, YK_PERM, "%s keeps its data in '%s', which is not inside the model's folder", p->what, location);
    memcpy(path, im->folder, folder);
    path[folder] = '/';
    memcpy(path + folder + 1, location, strlen(location) + 1);
    if (!realpath(path, real))
        return yk_fail(
            im->why, yk_err_from_errno(errno), "%s keeps its data in '%s': %s", p->what, location, strerror(errno));
    if (strncmp(real, im->folder, folder) != 0 || (folder > 1 && real[folder] != '/'))
        return yk_fail(
            im->why, YK_PERM, "%s keeps its data in '%s', a link out of the model's folder", p->what, location);
    struct onnx_mapping *m;
    yk_err err = onnx_import_map(real, &m, im->why);
    if (err)
        return yk_wrap(im->why, err, "%s keeps its data in '%s'", p->what, location);
    m->location = location;
    m->next = (*im->mappings)->next; /* behind the model itself */
    (*im->mappings)->next = m;
    *out = m;
    return YK_OK;
}

static bool read_number(const struct pb_text *t, int64_t *v)
{
    int64_t n = 0;
    for (size_t i = 0; i < t->n; i++)
        if (t->s[i] < '0' || t->s[i] > '9' || !yk_mul_i64(n, 10, &n) || !yk_add_i64(n, t->s[i] - '0', &n))
            return false;
    *v = n;
    return t->n > 0;
}

static yk_err external(struct onnx_import *im, const struct parts *p, struct value *v)
{
    static const char scheme[] = "sha256:";
    const size_t n_scheme = sizeof scheme - 1;
    const struct onnx_mapping *m;
    int64_t offset = 0, length = -1;
    if (!p->has_file)
        return yk_fail(im->why, YK_FORMAT, "%s has external data without a location", p->what);
    char *location = onnx_import_text(im, &p->file);
    if (!location)
        return onnx_import_nomem(im);
    if (strncmp(location, scheme, n_scheme) == 0) {
        if (!hash_is_hex(location + n_scheme) || !yk_unhex(location + n_scheme, sizeof v->hash, v->hash))
            return yk_fail(im->why, YK_FORMAT, "%s: '%s' is no SHA-256", p->what, location);
        v->has_hash = true;
        v->data = NULL;
        v->aligned = true;
        im->skeleton = true;
        return YK_OK;
    }
    if ((p->offset.n && !read_number(&p->offset, &offset)) || (p->length.n && !read_number(&p->length, &length)))
        return yk_fail(im->why, YK_FORMAT, "%s: offset or length of its external data is no number", p->what);
    if (length >= 0 && length != v->bytes)
        return yk_fail(im->why, YK_FORMAT, "%s has %lld bytes of external data, its shape needs %lld", p->what,
            (long long)length, (long long)v->bytes);
    yk_err err = find_mapping(im, p, location, &m);
    if (err)
        return err;
    if ((uint64_t)offset > m->len || (uint64_t)v->bytes > m->len - (uint64_t)offset)
        return yk_fail(im->why, YK_FORMAT, "%s: %lld bytes at offset %lld lie outside '%s' (%zu bytes)", p->what,
            (long long)v->bytes, (long long)offset, location, m->len);
    v->data = m->data + offset;
    return YK_OK;
}

/* ---- the message ---- */

static yk_err read_external(struct onnx_import *im, struct pb r, struct parts *p)
{
    struct pb_text key = {"", 0}, value = {"", 0};
    struct pb_field f;
    bool bad = false;
    while (pb_next(&r, &f, &bad))
        if ((f.number == 1 && !pb_text(&f, &key)) || (f.number == 2 && !pb_text(&f, &value)))
            bad = true;
    if (bad)
        return yk_fail(im->why, YK_FORMAT, "%s: the entry of its external data is malformed", p->what);
    if (key.n == 8 && memcmp(key.s, "location", 8) == 0) {
        p->file = value;
        p->has_file = true;
    } else if (key.n == 6 && memcmp(key.s, "offset", 6) == 0) {
        p->offset = value;
    } else if (key.n == 6 && memcmp(key.s, "length", 6) == 0) {
        p->length = value;
    }
    return YK_OK;
}

static enum pb_wire list_wire(uint32_t field)
{
    return field == TENSOR_FLOATS ? PB_FIXED32 : field == TENSOR_DOUBLES ? PB_FIXED64 : PB_VARINT;
}

static bool is_list(uint32_t field)
{
    return field == TENSOR_FLOATS || field == TENSOR_INT32S || field == TENSOR_INT64S || field == TENSOR_DOUBLES ||
           field == TENSOR_UINT64S;
}

static yk_err walk(struct onnx_import *im, struct pb r, struct parts *p, struct shape *shape)
{
    struct pb_field f;
    bool bad = false;
    shape->rank = 0;
    while (pb_next(&r, &f, &bad)) {
        if (f.number == TENSOR_DIMS) {
            int64_t n = pb_count(&f, PB_VARINT);
            uint64_t dims[YK_MAX_RANK];
            if (n < 0)
                goto malformed;
            if (n > YK_MAX_RANK - shape->rank)
                return yk_fail(im->why, YK_LIMIT, "%s has more than %d dimensions", p->what, YK_MAX_RANK);
            if (!pb_numbers(&f, PB_VARINT, dims))
                goto malformed;
            for (int64_t i = 0; i < n; i++)
                shape->dims[shape->rank++] = (int64_t)dims[i];
        } else if (is_list(f.number)) {
            int64_t n = pb_count(&f, list_wire(f.number));
            if (n < 0)
                goto malformed;
            p->listed[f.number] += n;
        } else if (f.number == TENSOR_TYPE || f.number == TENSOR_LOCATION) {
            if (f.wire != PB_VARINT)
                goto malformed;
            *(f.number == TENSOR_TYPE ? &p->type : &p->location) = (int64_t)f.v;
        } else if (f.number == TENSOR_SEGMENT) {
            p->segment = true;
        } else if (f.number == TENSOR_RAW) {
            if (f.wire != PB_BYTES)
                goto malformed;
            p->raw = f;
            p->has_raw = f.len > 0;
        } else if (f.number == TENSOR_EXTERNAL) {
            if (f.wire != PB_BYTES)
                goto malformed;
            yk_err err = read_external(im, pb_of(&f), p);
            if (err)
                return err;
        }
    }
    if (!bad)
        return YK_OK;
malformed:
    return yk_fail(im->why, YK_FORMAT, "%s is malformed", p->what);
}

/* Which list holds the elements of a dtype. */
static uint32_t list_of(enum dtype t)
{
    switch (t) {
    case DT_F32:
        return TENSOR_FLOATS;
    case DT_F64:
        return TENSOR_DOUBLES;
    case DT_I64:
        return TENSOR_INT64S;
    case DT_U32:
    case DT_U64:
        return TENSOR_UINT64S;
    default:
        return TENSOR_INT32S;
    }
}

/* Whether a listed integer is one that the dtype holds. F16 and BF16 are listed as their 16 bits. */
static bool fits(enum dtype t, uint64_t *v)
{
    int64_t i = t == DT_I64 || t == DT_U64 || t == DT_U32 ? (int64_t)*v : (int32_t)(uint32_t)*v;
    switch (t) {
    case DT_I8:
        return i >= INT8_MIN && i <= INT8_MAX;
    case DT_I16:
        return i >= INT16_MIN && i <= INT16_MAX;
    case DT_U8:
        return i >= 0 && i <= UINT8_MAX;
    case DT_U16:
    case DT_F16:
    case DT_BF16:
        return i >= 0 && i <= UINT16_MAX;
    case DT_U32:
        return *v <= UINT32_MAX;
    case DT_BOOL:
        *v = i != 0;
        return true;
    default:
        return true;
    }
}

static yk_err decode_list(struct onnx_import *im, struct pb r, const struct parts *p, struct value *v)
{
    const uint32_t field = list_of(v->dtype);
    const enum pb_wire wire = list_wire(field);
    const size_t size = dtype_bytes(v->dtype);
    uint8_t *data = NULL, *at = NULL;
    struct pb_field f;
    bool bad = false;
    while (pb_next(&r, &f, &bad)) {
        if (f.number != field)
            continue;
        if (f.wire == PB_BYTES && wire != PB_VARINT && f.len == (size_t)v->bytes) { /* packed in one piece: as it is */
            v->data = f.data;
            return YK_OK;
        }
        if (!data)
            data = at = yk_arena_alloc(im->root->arena, (size_t)v->bytes, 1);
        if (!data)
            return onnx_import_nomem(im);
        struct pb list = pb_of(&f);
        for (int64_t i = 0, n = pb_count(&f, wire); i < n; i++) {
            struct pb_field one = {.wire = f.wire, .v = f.v};
            uint64_t x;
            if (f.wire == PB_BYTES) {
                if (wire == PB_VARINT) {
                    if (!pb_varint(&list, &one.v))
                        return yk_fail(im->why, YK_FORMAT, "%s: a number in its data is malformed", p->what);
                } else {
                    memcpy(at, list.p, size);
                    list.p += size;
                    at += size;
                    continue;
                }
            }
            x = one.v;
            if (!fits(v->dtype, &x))
                return yk_fail(im->why, YK_FORMAT, "%s: element %zu of its data is out of range for %s", p->what,
                    (size_t)(at - data) / size, dtype_name(v->dtype));
            memcpy(at, &x, size); /* little-endian: the low bytes */
            at += size;
        }
    }
    v->data = data;
    return YK_OK;
}

yk_err onnx_import_tensor(struct onnx_import *im, struct pb tensor, const char *what, struct value *v, bool *supported)
{
    static const uint64_t nothing;
    struct parts p = {.what = what, .file = {"", 0}, .offset = {"", 0}, .length = {"", 0}};
    struct value made = *v;
    yk_err err = walk(im, tensor, &p, &made.shape);
    if (err)
        return err;
    *supported = true;
    made.dtype = made.shape.dtype = dtype_from_onnx(p.type);
    if (made.dtype == DT_NONE || p.segment) {
        if (p.segment)
            onnx_import_problem(im, "%s is stored in segments", what);
        else
            onnx_import_problem(im, "%s has element type %lld%s", what, (long long)p.type,
                p.type == 8                    ? " (string)"
                : p.type == 14 || p.type == 15 ? " (complex)"
                                               : "");
        *supported = false;
        return YK_OK;
    }
    for (int i = 0; i < made.shape.rank; i++)
        if (made.shape.dims[i] < 0)
            return yk_fail(im->why, YK_FORMAT, "%s has a negative dimension", what);
    int64_t n = shape_count(&made.shape);
    made.bytes = shape_bytes(&made.shape);
    if (n < 0 || made.bytes < 0)
        return yk_fail(im->why, YK_LIMIT, "%s has dimensions whose product overflows", what);
    made.kind = VALUE_WEIGHT;
    made.type = VALUE_TENSOR;
    if (p.location != 0) {
        if (p.location != 1)
            return yk_fail(im->why, YK_FORMAT, "%s has data location %lld", what, (long long)p.location);
        err = external(im, &p, &made);
    } else {
        int64_t listed = p.listed[list_of(made.dtype)];
        if (p.has_raw && p.raw.len != (size_t)made.bytes)
            return yk_fail(im->why, YK_FORMAT, "%s has %zu bytes of data, its shape needs %lld", what, p.raw.len,
                (long long)made.bytes);
        if (listed != (p.has_raw ? 0 : n))
            return yk_fail(im->why, YK_FORMAT, "%s has %lld listed elements%s, its shape needs %lld", what,
                (long long)listed, p.has_raw ? " beside its raw data" : "", (long long)n);
        made.data = p.has_raw ? p.raw.data : NULL;
        err = p.has_raw || n == 0 ? YK_OK : decode_list(im, tensor, &p, &made);
    }
    if (err)
        return err;
    if (!made.data && !made.has_hash)
        made.data = &nothing; /* no elements; only a skeleton's weights have no address */
    made.aligned = (uintptr_t)made.data % dtype_bytes(made.dtype) == 0;
    *v = made;
    return YK_OK;
}

yk_err onnx_import_scalar(struct onnx_import *im, const struct attr *a, const char *what, struct value *v)
{
    bool list = a->kind == ATTR_INTS || a->kind == ATTR_FLOATS;
    bool ints = a->kind == ATTR_INTS || a->kind == ATTR_INT;
    if (!list && a->kind != ATTR_INT && a->kind != ATTR_FLOAT)
        return yk_fail(im->why, YK_FORMAT, "%s: attribute '%s' has the wrong type", what, a->name);
    size_t n = list ? a->n : 1, size = ints ? 8 : 4;
    void *data = yk_arena_alloc(im->root->arena, n + 1, size);
    if (!data)
        return onnx_import_nomem(im);
    if (n)
        memcpy(data,
            a->kind == ATTR_INTS     ? (const void *)a->ints
            : a->kind == ATTR_FLOATS ? (const void *)a->floats
            : ints                   ? (const void *)&a->i
                                     : (const void *)&a->f,
            n * size);
    v->kind = VALUE_WEIGHT;
    v->dtype = v->shape.dtype = ints ? DT_I64 : DT_F32;
    v->shape.rank = list ? 1 : 0;
    v->shape.dims[0] = (int64_t)n;
    v->data = data;
    v->bytes = (int64_t)(n * size);
    v->aligned = true;
    return YK_OK;
}
