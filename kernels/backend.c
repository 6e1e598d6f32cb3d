#include "kernels/backend.h"

#include "common/log.h"
#include "kernels/host.h"
#include "kernels/plugin.h"
#include "kernels/selftest.h"

#include <stdio.h>
#include <string.h>

/* In order of preference. */
const struct backend_ops *const backend_builtin[] = {&backend_simd,
#ifndef YOKE_WITHOUT_BLAS
    &backend_blas,
#endif
    &backend_ref, &backend_fake, NULL};

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

/* Opens a shared object and tests it. One that fails the test is put down as refused. */
static yk_err add_path(
    struct backends *b, const char *path, const struct backends_config *config, struct pool *pool, struct yk_diag *why)
{
    struct backend *one = NULL;
    struct yk_diag text = {""};
    bool hung = false;
    int cases = 0;
    for (int i = 0; i < b->n; i++)
        if (plugin_is(b->at[i]) && !strcmp(plugin_path(b->at[i]), path))
            return YK_OK;
    if (b->n == (int)YK_COUNT(b->at) || b->n_refused == (int)YK_COUNT(b->refused))
        return yk_fail(why, YK_LIMIT, "more than %d backends", (int)YK_COUNT(b->at));
    yk_err err = plugin_open(path, config, pool, &one, &text);
    if (err && err != YK_TIMEOUT)
        return yk_fail(why, err, "%s", text.text);
    for (int i = 0; !err && i < b->n; i++)
        if (!strcmp(b->at[i]->ops->name, one->ops->name)) {
            err = yk_fail(why, YK_EXISTS, "backend %s: another one here is called '%s' as well", path, one->ops->name);
            one->ops->close(one);
            return err;
        }
    if (!err)
        err = selftest(one, pool, &cases, &text);
    if (!err) {
        if (!cases)
            log_warn("backend %s claims nothing of the self-test: only runs will show whether it is right", path);
        b->at[b->n++] = one;
        return YK_OK;
    }
    struct backends_refused *r = &b->refused[b->n_refused++];
    hung = err == YK_TIMEOUT;
    if (one)
        plugin_lost(one, &hung, NULL);
    snprintf(r->name, sizeof(r->name), "%s", one ? one->ops->name : "");
    r->hung = hung;
    if (one)
        snprintf(r->text, sizeof(r->text), "backend %s (%.200s) is refused: %.240s", one->ops->name, path, text.text);
    else
        snprintf(r->text, sizeof(r->text), "%.470s", text.text);
    if (one)
        one->ops->close(one);
    return YK_OK;
}

yk_err backends_open(const char *spec, struct pool *pool, struct backends *out, struct yk_diag *why)
{
    return backends_open_with(spec, NULL, pool, out, why);
}

/* One name of a list. */
static yk_err take_name(const char *spec, const char *at, char name[1024], struct yk_diag *why)
{
    size_t n = strcspn(at, ",");
    if (n >= 1024 || n == 0)
        return yk_fail(why, YK_INVAL, "backend list '%.100s': a name is %s", spec, n ? "too long" : "empty");
    memcpy(name, at, n);
    name[n] = 0;
    if (strcmp(name, "auto") == 0 || strchr(name, '/') || backend_find(name))
        return YK_OK;
    return yk_fail(why, YK_INVAL,
        "no backend '%.100s' here; there are: auto, blas, simd, ref, fake, and shared objects by their path (with a "
        "'/')",
        name);
}

yk_err backends_check(const char *spec, struct yk_diag *why)
{
    char name[1024];
    yk_err err = YK_OK;
    for (const char *p = spec; !err && p; p = strchr(p, ',') ? strchr(p, ',') + 1 : NULL)
        err = take_name(spec, p, name, why);
    return err;
}

yk_err backends_open_with(const char *spec, const struct backends_config *config, struct pool *pool,
    struct backends *out, struct yk_diag *why)
{
    struct backends b = {.n = 0};
    yk_err err = YK_OK;
    for (const char *p = spec; !err; p++) {
        char name[1024];
        if ((err = take_name(spec, p, name, why)))
            break;
        if (!strcmp(name, "auto")) {
            for (int i = 0; !err && backend_builtin[i] != &backend_ref; i++)
                err = add(&b, backend_builtin[i], pool, why);
        } else if (strchr(name, '/')) {
            err = add_path(&b, name, config, pool, why);
        } else {
            const struct backend_ops *ops = backend_find(name);
            if (ops != &backend_ref)
                err = add(&b, ops, pool, why);
        }
        p += strlen(name);
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

bool backends_lost(struct backend *b, struct yk_diag *why)
{
    return plugin_is(b) && plugin_lost(b, NULL, why);
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
    for (int i = 0; i < b->n; i++) {
        struct backend_form forms[16];
        int n = b->at[i]->ops->forms(b->at[i], node, forms, (int)YK_COUNT(forms));
        for (int k = 0; k < n; k++)
            if (!strcmp(forms[k].name, name)) {
                *form = forms[k];
                return b->at[i];
            }
        if (host_form_named(b->at[i], node, name, form))
            return b->at[i];
    }
    return NULL;
}
