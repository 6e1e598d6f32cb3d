#include "kernels/backend.h"

#include "kernels/host.h"

#include <stdio.h>
#include <string.h>

/* In order of preference. */
const struct backend_ops *const backend_builtin[] = {&backend_blas, &backend_simd, &backend_ref, &backend_fake, NULL};

const struct backend_ops *backend_find(const char *name)
{
    for (int i = 0; backend_builtin[i]; i++)
        if (!strcmp(backend_builtin[i]->name, name))
            return backend_builtin[i];
    return NULL;
}

static yk_err add(struct backends *b, const struct backend_ops *ops, struct pool *pool, struct yk_diag *why)
{
    for (int i = 0; i < b->n; i++)
        if (b->at[i]->ops == ops)
            return YK_OK;
    if (b->n == (int)YK_COUNT(b->at))
        return yk_fail(why, YK_LIMIT, "more than %d backends", (int)YK_COUNT(b->at));
    yk_err err = ops->open(pool, &b->at[b->n], why);
    if (!err)
        b->n++;
    return err;
}

yk_err backends_open(const char *spec, struct pool *pool, struct backends *out, struct yk_diag *why)
{
    struct backends b = {.n = 0};
    yk_err err = YK_OK;
    for (const char *p = spec; !err; p++) {
        size_t n = strcspn(p, ",");
        char name[64];
        if (n >= sizeof(name) || n == 0) {
            err = yk_fail(why, YK_INVAL, "backend list '%.100s': a name is %s", spec, n ? "too long" : "empty");
            break;
        }
        memcpy(name, p, n);
        name[n] = 0;
        if (!strcmp(name, "auto")) {
            for (int i = 0; !err && backend_builtin[i] != &backend_ref; i++)
                err = add(&b, backend_builtin[i], pool, why);
        } else {
            const struct backend_ops *ops = backend_find(name);
            if (!ops)
                err = yk_fail(why, YK_NOTFOUND, "no backend '%s' here; there are: auto, blas, simd, ref, fake", name);
            else if (ops != &backend_ref)
                err = add(&b, ops, pool, why);
        }
        p += n;
        if (!*p)
            break;
    }
    if (!err)
        err = add(&b, &backend_ref, pool, why);
    if (err) {
        backends_close(&b);
        return err;
    }
    *out = b;
    return YK_OK;
}

void backends_close(struct backends *b)
{
    for (int i = 0; i < b->n; i++)
        b->at[i]->ops->close(b->at[i]);
    b->n = 0;
}

int backends_forms(struct backends *b, const struct op_ctx *node, struct backend_form *out, int max)
{
    int n = 0;
    for (int i = 0; i < b->n && n < max; i++)
        n += b->at[i]->ops->forms(b->at[i], node, out + n, max - n);
    return n;
}

struct backend *backends_form_find(
    struct backends *b, const struct op_ctx *node, const char *name, struct backend_form *form)
{
    const char *at = strchr(name, '@');
    if (!at)
        return NULL;
    for (int i = 0; i < b->n; i++) {
        if (strcmp(at + 1, b->at[i]->ops->isa(b->at[i])))
            continue;
        struct backend_form forms[16];
        int n = b->at[i]->ops->forms(b->at[i], node, forms, (int)YK_COUNT(forms));
        for (int k = 0; k < n; k++)
            if (!strcmp(forms[k].name, name)) {
                *form = forms[k];
                return b->at[i];
            }
    }
    return NULL;
}
