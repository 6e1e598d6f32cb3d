/* Host backends: tables of kernels, the forms that they give, memory, and work over the pool. */
#include "kernels/host_priv.h"

#include <stdlib.h>
#include <string.h>

yk_err host_open(const struct backend_ops *ops, const char *isa, const struct host_rows *tables, int n_tables,
    struct pool *pool, struct backend **out, struct yk_diag *why)
{
    if (n_tables > HOST_MAX_TABLES || strlen(isa) >= sizeof(((struct host *)0)->isa))
        return yk_fail(why, YK_INTERNAL, "backend %s: too many tables or too long an isa", ops->name);
    struct host *h = yk_xalloc(sizeof(*h));
    h->base.ops = ops;
    h->pool = pool;
    strcpy(h->isa, isa);
    memcpy(h->tables, tables, (size_t)n_tables * sizeof(*tables));
    h->n_tables = n_tables;
    *out = &h->base;
    return YK_OK;
}

void host_table_isa(struct backend *b, int table, const char *isa)
{
    ((struct host *)b)->isas[table] = isa;
}

void host_close(struct backend *b)
{
    free(b);
}

const char *host_isa(struct backend *b)
{
    return ((struct host *)b)->isa;
}

static bool row_is(const struct host_kernel *k, const struct op *op)
{
    return !strcmp(k->op, op->name) && !strcmp(k->domain, op->domain);
}

int host_kinds(const struct backend *b, const struct op *op, const char **out, int max)
{
    const struct host *h = (const struct host *)b;
    int n = 0;
    if (b->ops->forms != host_forms)
        return -1;
    for (int t = 0; t < h->n_tables; t++)
        for (int r = 0; r < h->tables[t].n; r++) {
            const struct host_kernel *k = &h->tables[t].rows[r];
            int at = 0;
            while (at < n && strcmp(out[at], k->kind) != 0)
                at++;
            if (row_is(k, op) && at == n && n < max)
                out[n++] = k->kind;
        }
    return n;
}

/* Kernels need every shape: what depends on data runs elsewhere. */
static bool shapes_known(const struct op_ctx *c)
{
    for (int i = 0; i < c->n_in; i++)
        if (c->in[i] && shape_bytes(c->in[i]) < 0)
            return false;
    for (int i = 0; i < c->n_out; i++)
        if (c->node->out[i] >= 0 && shape_bytes(&c->out[i]) < 0)
            return false;
    return true;
}

static void fill_form(
    const struct host *h, int table, const struct host_kernel *k, const struct op_ctx *c, struct backend_form *f)
{
    memset(f, 0, sizeof(*f));
    /* Both parts are bounded where they are made; a name that is cut would be found by nobody. */
    const char *isa = h->isas[table] ? h->isas[table] : h->isa;
    size_t n = strlen(k->kind), m = strlen(isa);
    if (n + 1 + m < sizeof(f->name)) {
        memcpy(f->name, k->kind, n);
        f->name[n] = '@';
        memcpy(f->name + n + 1, isa, m);
    }
    if (k->sizes)
        k->sizes(c, f);
}

int host_forms(struct backend *b, const struct op_ctx *node, struct backend_form *out, int max)
{
    struct host *h = (struct host *)b;
    if (!node->node->op || !shapes_known(node))
        return 0;
    int n = 0;
    for (int pass = 0; pass < 2; pass++)
        for (int t = 0; t < h->n_tables; t++)
            for (int i = 0; i < h->tables[t].n && n < max; i++) {
                const struct host_kernel *k = &h->tables[t].rows[i];
                if (row_is(k, node->node->op) && (!k->claim || k->claim(node)) &&
                    (k->later && k->later(node)) == (pass == 1) && !(k->named && k->named(node)))
                    fill_form(h, t, k, node, &out[n++]);
            }
    return n;
}

const struct host_kernel *host_find_row(
    struct host *h, const struct op_ctx *c, const char *name, struct backend_form *form)
{
    for (int t = 0; t < h->n_tables; t++)
        for (int i = 0; i < h->tables[t].n; i++) {
            const struct host_kernel *k = &h->tables[t].rows[i];
            if (!row_is(k, c->node->op) || (k->claim && !k->claim(c)))
                continue;
            fill_form(h, t, k, c, form);
            if (!strcmp(form->name, name))
                return k;
        }
    return NULL;
}

bool host_form_named(struct backend *b, const struct op_ctx *node, const char *name, struct backend_form *form)
{
    return b->ops->forms == host_forms && node->node->op && shapes_known(node) &&
           host_find_row((struct host *)b, node, name, form);
}

const struct host_kernel *host_kernel_of(struct backend *b, const struct op_ctx *c, struct backend_form *form)
{
    struct host *h = (struct host *)b;
    if (b->ops->forms != host_forms)
        return NULL;
    for (int t = 0; t < h->n_tables; t++)
        for (int i = 0; i < h->tables[t].n; i++) {
            const struct host_kernel *k = &h->tables[t].rows[i];
            if (k->pack || !row_is(k, c->node->op) || (k->claim && !k->claim(c)))
                continue;
            fill_form(h, t, k, c, form);
            return k;
        }
    return NULL;
}

struct pool *host_pool(struct backend *b)
{
    return b->ops->forms == host_forms ? ((struct host *)b)->pool : NULL;
}

yk_err host_alloc(struct backend *b, int64_t bytes, struct backend_buffer *out)
{
    (void)b;
    void *p = yk_try_aligned((size_t)YK_MAX(bytes, 1));
    if (!p)
        return YK_NOMEM;
    *out = (struct backend_buffer){.host = p, .bytes = bytes};
    return YK_OK;
}

void host_free(struct backend *b, struct backend_buffer *buf)
{
    (void)b;
    free(buf->host);
    *buf = (struct backend_buffer){0};
}

yk_err host_write(struct backend *b, struct backend_buffer *dst, const void *src, int64_t bytes)
{
    (void)b;
    if (bytes < 0 || bytes > dst->bytes)
        return YK_LIMIT;
    if (bytes)
        memcpy(dst->host, src, (size_t)bytes);
    return YK_OK;
}

yk_err host_read(struct backend *b, const struct backend_buffer *src, void *dst, int64_t bytes)
{
    (void)b;
    if (bytes < 0 || bytes > src->bytes)
        return YK_LIMIT;
    if (bytes)
        memcpy(dst, src->host, (size_t)bytes);
    return YK_OK;
}

#define SPLIT_PIECES 16
#define SPLIT_LEAST_NS 8000 /* as estimated; vectors are several times faster */
#define SPLIT_MOST_NS 50000

struct split {
    void (*fn)(void *arg, int64_t begin, int64_t end);
    void *arg;
    int64_t count, step;
};

static void split_tile(void *arg, int64_t tile, int thread)
{
    (void)thread;
    struct split *s = arg;
    int64_t begin = tile * s->step;
    s->fn(s->arg, begin, YK_MIN(begin + s->step, s->count));
}

void host_split(
    struct host_call *c, int64_t count, int64_t cost, void (*fn)(void *arg, int64_t begin, int64_t end), void *arg)
{
    /* Long against the start of a run, and so many that each thread works on what is in its own cache; of a long layer
     * about 50 us at most. */
    int64_t all = cost > INT64_MAX / YK_MAX(count, 1) ? INT64_MAX : YK_MAX(cost, 1) * count;
    int64_t ns = YK_MIN(YK_MAX(all / SPLIT_PIECES, SPLIT_LEAST_NS), SPLIT_MOST_NS);
    int64_t step = YK_MAX(ns / YK_MAX(cost, 1), 1);
    struct split s = {fn, arg, count, step};
    pool_run(c->pool, (count + step - 1) / step, split_tile, &s);
}
