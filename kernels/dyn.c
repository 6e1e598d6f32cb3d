#include "kernels/dyn.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct dyn_heap {
    int64_t limit, bytes, peak;
    int64_t values; /* that count on it */
    bool closed;
};

struct dyn_heap *dyn_heap_open(int64_t limit_bytes)
{
    struct dyn_heap *h = yk_try_alloc(1, sizeof(*h));
    if (h)
        h->limit = limit_bytes;
    return h;
}

static void heap_end(struct dyn_heap *h)
{
    if (h->closed && h->values == 0)
        free(h);
}

void dyn_heap_close(struct dyn_heap *h)
{
    if (!h)
        return;
    h->closed = true;
    heap_end(h);
}

int64_t dyn_heap_bytes(const struct dyn_heap *h)
{
    return h->bytes;
}

int64_t dyn_heap_peak(const struct dyn_heap *h)
{
    return h->peak;
}

/* A value that counts `extra` bytes besides itself. */
static yk_err make(struct dyn_heap *h, int64_t extra, struct dyn_value **out, struct yk_diag *why)
{
    int64_t bytes = (int64_t)sizeof(struct dyn_value) + extra;
    if (h && bytes > h->limit - h->bytes)
        return yk_fail(why, YK_LIMIT,
            "values that depend on data would take %lld bytes; the limit of their heap is %lld (heap_limit)",
            (long long)(h->bytes + bytes), (long long)h->limit);
    struct dyn_value *v = yk_try_alloc(1, sizeof(*v));
    if (!v)
        return yk_fail(why, YK_NOMEM, "no memory for a value that depends on data");
    v->uses = 1;
    v->heap = h;
    v->counted = bytes;
    if (h) {
        h->bytes += bytes;
        h->peak = YK_MAX(h->peak, h->bytes);
        h->values++;
    }
    *out = v;
    return YK_OK;
}

yk_err dyn_tensor(struct dyn_heap *h, const struct shape *shape, struct dyn_value **out, struct yk_diag *why)
{
    struct dyn_value *v = NULL;
    int64_t bytes = shape_bytes(shape);
    if (bytes < 0)
        return yk_fail(why, YK_LIMIT, "a value that depends on data is too large");
    yk_err err = make(h, bytes, &v, why);
    if (err)
        return err;
    v->type = VALUE_TENSOR;
    v->tensor.shape = *shape;
    v->tensor.data = yk_try_aligned((size_t)YK_MAX(bytes, 1));
    v->owned = true;
    if (!v->tensor.data) {
        dyn_unref(v);
        return yk_fail(why, YK_NOMEM, "no memory for a value of %lld bytes", (long long)bytes);
    }
    *out = v;
    return YK_OK;
}

yk_err dyn_borrow(struct dyn_heap *h, const struct tensor *t, struct dyn_value **out, struct yk_diag *why)
{
    struct dyn_value *v = NULL;
    yk_err err = make(h, 0, &v, why);
    if (err)
        return err;
    v->type = VALUE_TENSOR;
    v->tensor = *t;
    *out = v;
    return YK_OK;
}

yk_err dyn_view(
    struct dyn_heap *h, struct dyn_value *base, const struct shape *shape, struct dyn_value **out, struct yk_diag *why)
{
    struct dyn_value *v = NULL;
    if (base->type != VALUE_TENSOR || shape_bytes(shape) < 0 || shape_bytes(shape) > tensor_bytes(&base->tensor))
        return yk_fail(why, YK_INTERNAL, "a view is larger than what it shows");
    yk_err err = make(h, 0, &v, why);
    if (err)
        return err;
    v->type = VALUE_TENSOR;
    v->tensor = (struct tensor){*shape, base->tensor.data};
    v->base = dyn_ref(base->base ? base->base : base);
    *out = v;
    return YK_OK;
}

yk_err dyn_list(struct dyn_heap *h, enum value_type type, enum dtype dtype, struct dyn_value *const *items, int64_t n,
    struct dyn_value **out, struct yk_diag *why)
{
    struct dyn_value *v = NULL;
    int64_t bytes;
    if (!yk_mul_i64(n, (int64_t)sizeof(*items), &bytes))
        return yk_fail(why, YK_LIMIT, "a sequence is too long");
    yk_err err = make(h, bytes, &v, why);
    if (err)
        return err;
    v->type = type;
    v->tensor.shape = (struct shape){.dtype = dtype, .rank = -1};
    v->items = yk_try_alloc((size_t)n + 1, sizeof(*v->items));
    if (!v->items) {
        dyn_unref(v);
        return yk_fail(why, YK_NOMEM, "no memory for a sequence of %lld", (long long)n);
    }
    for (; v->n < n; v->n++)
        v->items[v->n] = dyn_ref(items[v->n]);
    *out = v;
    return YK_OK;
}

struct dyn_value *dyn_ref(struct dyn_value *v)
{
    v->uses++;
    return v;
}

/* Values nest no deeper than optional(sequence(tensor)) and a view's base. */
void dyn_unref(struct dyn_value *v)
{
    if (!v || --v->uses > 0)
        return;
    for (int64_t i = 0; i < v->n; i++)
        dyn_unref(v->items[i]);
    free(v->items);
    dyn_unref(v->base);
    if (v->owned)
        free(v->tensor.data);
    struct dyn_heap *h = v->heap;
    if (h) {
        h->bytes -= v->counted;
        h->values--;
        heap_end(h);
    }
    free(v);
}

void dyn_text(const struct dyn_value *v, char *out, size_t size)
{
    if (v->type == VALUE_TENSOR)
        shape_text(&v->tensor.shape, out, size);
    else if (v->type == VALUE_SEQUENCE)
        snprintf(out, size, "sequence of %lld", (long long)v->n);
    else
        snprintf(out, size, "optional, %s", v->n ? "filled" : "empty");
}
