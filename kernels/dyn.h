/* Values whose size is known only when they are there: tensors, sequences and optionals on a bounded heap. Values are
 * immutable once somebody else sees them and count their users; a sequence shares its members. */
#ifndef YK_DYN_H
#define YK_DYN_H

#include "kernels/tensor.h"

struct dyn_heap;

struct dyn_value {
    enum value_type type;
    struct tensor tensor;     /* VALUE_TENSOR; of a sequence, shape.dtype is that of its members (DT_NONE: unknown) */
    struct dyn_value **items; /* VALUE_SEQUENCE: n members; VALUE_OPTIONAL: what it holds, n is 0 or 1 */
    int64_t n;
    /* Of dyn.c alone. */
    int64_t uses, counted;
    struct dyn_heap *heap;
    struct dyn_value *base; /* whose bytes a view shows */
    bool owned;
};

/* A heap that refuses what would take it over `limit` bytes, with YK_LIMIT and a message that names the limit. Values
 * may outlive dyn_heap_close. A heap and its values belong to one thread at a time. NULL when memory is gone. */
struct dyn_heap *dyn_heap_open(int64_t limit_bytes);
void dyn_heap_close(struct dyn_heap *h); /* NULL allowed */
int64_t dyn_heap_bytes(const struct dyn_heap *h);
int64_t dyn_heap_peak(const struct dyn_heap *h);

/* Makers give a value with one user, the caller. heap NULL: no limit (for inputs of a run). Errors: YK_LIMIT, YK_NOMEM.
 */
yk_err dyn_tensor(struct dyn_heap *h, const struct shape *shape, struct dyn_value **out, struct yk_diag *why);
/* Over data of the caller's, which lives longer than the value. */
yk_err dyn_borrow(struct dyn_heap *h, const struct tensor *t, struct dyn_value **out, struct yk_diag *why);
/* The bytes of base under another shape of at most as many bytes. */
yk_err dyn_view(
    struct dyn_heap *h, struct dyn_value *base, const struct shape *shape, struct dyn_value **out, struct yk_diag *why);
/* A sequence of n items, or an optional (n is 0 or 1); it becomes a user of each. */
yk_err dyn_list(struct dyn_heap *h, enum value_type type, enum dtype dtype, struct dyn_value *const *items, int64_t n,
    struct dyn_value **out, struct yk_diag *why);

struct dyn_value *dyn_ref(struct dyn_value *v); /* one more user; gives v */
void dyn_unref(struct dyn_value *v);            /* one user less; the last one frees. NULL allowed */

void dyn_text(
    const struct dyn_value *v, char *out, size_t size); /* "float32[2,3]", "sequence of 3", "optional, empty" */

#endif
