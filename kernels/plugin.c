/* Loading a shared object and making it a backend. */
#include <ctype.h>
#include <dlfcn.h>
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/log.h"
#include "kernels/host.h"
#include "kernels/plugin_priv.h"

#define TIMEOUT_MS 10000
#define CHECK_EVERY 256
#define NAME_MAX_LEN 15
#define ISA_MAX_LEN 31

static yk_err never_open(struct pool *pool, struct backend **out, struct yk_diag *why)
{
    (void)pool, (void)out;
    return yk_fail(why, YK_STATE, "a plug-in is opened by its path");
}

bool plugin_is(const struct backend *b)
{
    return b->ops->open == never_open;
}

const char *plugin_path(const struct backend *b)
{
    return ((const struct plugin *)b)->path;
}

void plugin_strict(struct backend *b, bool strict)
{
    ((struct plugin *)b)->strict = strict;
}

static const char *plugin_isa(struct backend *b)
{
    return ((struct plugin *)b)->isa;
}

/* ---- claims ---- */

static void call_claim(struct plugin *p, struct plugin_call *c)
{
    c->status = p->api->claim(p->state, c->segment, c->claimed);
}

struct claim { /* what outlives the call if the plug-in hangs in it */
    struct plugin_call call;
    struct plugin_view view;
    uint8_t claimed[8];
};

static int plugin_forms(struct backend *b, const struct op_ctx *node, struct backend_form *out, int max)
{
    struct plugin *p = (struct plugin *)b;
    if (max < 1 || atomic_load(&p->out) || !plugin_view_offers(node))
        return 0;
    /* The reference must be able to answer in the same places: its workspace is part of ours. */
    struct backend_form form;
    if (host_forms(p->ref, node, &form, 1) != 1)
        return 0;
    struct claim *c = yk_xalloc(sizeof(*c));
    struct yk_diag why;
    yk_err err = plugin_view_node(node, &c->view, NULL);
    if (err) {
        free(c);
        return 0;
    }
    c->call =
        (struct plugin_call){.fn = call_claim, .what = "claim", .segment = &c->view.segment, .claimed = c->claimed};
    err = plugin_do(p, &c->call, p->config.timeout_ms, &why);
    bool mine = !err && c->claimed[0] == 1;
    if (err != YK_TIMEOUT) {
        plugin_view_fini(&c->view);
        free(c);
    }
    if (err && err != YK_TIMEOUT && err != YK_STATE)
        plugin_take_out(b, "%s", why.text);
    if (!mine)
        return 0;
    *out = form;
    out->packed_bytes = 0; /* what it holds is known after prepare */
    out->drops_weights = false;
    snprintf(out->name, sizeof(out->name), "device@%.50s", p->isa);
    return 1;
}

/* ---- open and close ---- */

struct opening {
    struct plugin_call call;
    struct yoke_config config;
    struct yoke_description description;
    void *state;
};

static void call_open(struct plugin *p, struct plugin_call *c)
{
    struct opening *o = (struct opening *)c;
    c->status = p->api->open(&o->config, &o->state, c->why, sizeof(c->why));
    c->why[sizeof(c->why) - 1] = 0;
    if (c->status != YOKE_OK)
        return;
    p->state = o->state;
    c->status = p->api->describe(o->state, &o->description);
    if (c->status != YOKE_OK) {
        strcpy(c->why, "describe failed");
        p->api->close(o->state);
    }
}

static void call_close(struct plugin *p, struct plugin_call *c)
{
    (void)c;
    p->api->close(p->state);
}

/* Frees what is left when the thread ended; not after a hang. */
static void plugin_free(struct plugin *p)
{
    if (p->ref)
        backend_ref.close(p->ref);
    free(p->path);
    free(p);
}

/* The library stays loaded: threads of it may be about to return. */
static void plugin_close(struct backend *b)
{
    struct plugin *p = (struct plugin *)b;
    struct plugin_call *c = yk_xalloc(sizeof(*c));
    *c = (struct plugin_call){.fn = call_close, .what = "close"};
    if (plugin_is_hung(p)) {
        free(c);
        return;
    }
    if (plugin_do(p, c, p->config.timeout_ms, NULL) == YK_TIMEOUT)
        return;
    free(c);
    plugin_stop(p);
    plugin_free(p);
}

/* ---- checks of the table ---- */

static yk_err check_functions(const char *path, const struct yoke_backend *api, struct yk_diag *why)
{
#define FUNCTION(name)                             \
    {                                              \
#name, offsetof(struct yoke_backend, name) \
    }
    static const struct {
        const char *name;
        size_t offset;
    } all[] = {FUNCTION(open), FUNCTION(close), FUNCTION(describe), FUNCTION(claim), FUNCTION(prepare),
        FUNCTION(set_weights), FUNCTION(submit), FUNCTION(cancel), FUNCTION(release), FUNCTION(alloc), FUNCTION(free),
        FUNCTION(write), FUNCTION(read)};
#undef FUNCTION
    char missing[200] = "";
    for (size_t i = 0; i < YK_COUNT(all); i++) {
        void *fn;
        memcpy(&fn, (const char *)api + all[i].offset, sizeof(fn));
        size_t n = strlen(missing);
        if (!fn)
            snprintf(missing + n, sizeof(missing) - n, "%s%s", n ? ", " : "", all[i].name);
    }
    if (missing[0])
        return yk_fail(why, YK_FORMAT, "backend %s: its table has no %s; every function of ABI version %d is required",
            path, missing, YOKE_BACKEND_ABI);
    return YK_OK;
}

static bool plain(const char *s, size_t most, const char *more)
{
    size_t n = s ? strnlen(s, most + 1) : 0;
    for (size_t i = 0; i < n && n <= most; i++)
        if (!isalnum((unsigned char)s[i]) && !strchr(more, s[i]))
            return false;
    return n > 0 && n <= most;
}

static yk_err check_name(const char *path, const char *name, struct yk_diag *why)
{
    static const char *const ours[] = {"auto", "ref", "simd", "blas", "neon", "metal", "fake"};
    if (!plain(name, NAME_MAX_LEN, "") || !isalpha((unsigned char)name[0]))
        return yk_fail(why, YK_FORMAT,
            "backend %s: the name '%.40s' is bad; a name is 1 to %d letters and digits and begins with a letter", path,
            name ? name : "", NAME_MAX_LEN);
    for (size_t i = 0; i < YK_COUNT(ours); i++)
        if (!strcmp(ours[i], name))
            return yk_fail(why, YK_EXISTS, "backend %s: the name '%s' is one of Yoke's own", path, name);
    return YK_OK;
}

/* dlopen maps what the headers promise; a file that ends before that would be a bus error, not an error. */
static yk_err check_whole(const char *path, int64_t bytes, struct yk_diag *why)
{
    Elf64_Ehdr head;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return yk_fail(why, yk_err_from_errno(errno), "backend %s: %s", path, strerror(errno));
    bool elf = pread(fd, &head, sizeof head, 0) == sizeof head && memcmp(head.e_ident, ELFMAG, SELFMAG) == 0 &&
               head.e_ident[EI_CLASS] == ELFCLASS64 && head.e_phentsize == sizeof(Elf64_Phdr);
    yk_err err = YK_OK;
    for (int i = 0; elf && !err && i < head.e_phnum; i++) {
        Elf64_Phdr part;
        int64_t at = (int64_t)head.e_phoff + i * (int64_t)sizeof part, end = 0;
        bool here = pread(fd, &part, sizeof part, at) == sizeof part &&
                    yk_add_i64((int64_t)part.p_offset, (int64_t)part.p_filesz, &end);
        if (!here || end > bytes)
            err = yk_fail(why, YK_FORMAT, "backend %s is cut off: it has %lld bytes, its headers promise more", path,
                (long long)bytes);
    }
    close(fd);
    return err; /* what is no ELF of 64 bits is dlopen's to refuse */
}

static yk_err load(const char *path, void **library, const struct yoke_backend **api, struct yk_diag *why)
{
    struct stat st;
    if (stat(path, &st) != 0)
        return yk_fail(why, yk_err_from_errno(errno), "backend %s: %s", path, strerror(errno));
    if (!S_ISREG(st.st_mode))
        return yk_fail(why, YK_INVAL, "backend %s is not a file; a shared object is wanted", path);
    yk_err whole = check_whole(path, (int64_t)st.st_size, why);
    if (whole)
        return whole;
    void *so = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!so)
        return yk_fail(why, YK_FORMAT, "backend %s cannot be loaded: %.500s", path, dlerror());
    const struct yoke_backend *(*entry)(uint32_t abi) = NULL;
    void *symbol = dlsym(so, YOKE_BACKEND_ENTRY);
    memcpy(&entry, &symbol, sizeof(symbol));
    yk_err err = YK_OK;
    const struct yoke_backend *table = entry ? entry(YOKE_BACKEND_ABI) : NULL;
    if (!entry)
        err = yk_fail(why, YK_FORMAT,
            "backend %s has no symbol " YOKE_BACKEND_ENTRY ": it is no backend for Yoke (ABI version %d is wanted)",
            path, YOKE_BACKEND_ABI);
    else if (!table)
        err = yk_fail(
            why, YK_VERSION, "backend %s does not speak ABI version %d, which this Yoke wants", path, YOKE_BACKEND_ABI);
    else if (table->abi != YOKE_BACKEND_ABI)
        err = yk_fail(why, YK_VERSION,
            "backend %s speaks ABI version %u; this Yoke wants version %d: build it with this Yoke's yoke/backend.h",
            path, (unsigned)table->abi, YOKE_BACKEND_ABI);
    else if (table->size < sizeof(*table))
        err = yk_fail(why, YK_FORMAT, "backend %s: its table has %u bytes; ABI version %d wants at least %zu", path,
            (unsigned)table->size, YOKE_BACKEND_ABI, sizeof(*table));
    else if ((err = check_functions(path, table, why)) == YK_OK)
        err = check_name(path, table->name, why);
    if (err) {
        dlclose(so);
        return err;
    }
    *library = so;
    *api = table;
    return YK_OK;
}

static const struct backend_ops template = {
    .abi = BACKEND_ABI,
    .host = true,
    .open = never_open,
    .close = plugin_close,
    .isa = plugin_isa,
    .forms = plugin_forms,
    .prepare = plugin_prepare,
    .set_weights = plugin_set_weights,
    .submit = plugin_submit,
    .cancel = plugin_cancel,
    .release = plugin_release,
    .alloc = host_alloc,
    .free = host_free,
    .write = host_write,
    .read = host_read,
};

/* Opens the device on the plug-in's thread. On YK_TIMEOUT p stays where it is. */
static yk_err open_device(struct plugin *p, int threads, struct yk_diag *why)
{
    struct yk_diag text;
    struct opening *o = yk_xalloc(sizeof(*o));
    o->call = (struct plugin_call){.fn = call_open, .what = "open"};
    o->config = (struct yoke_config){
        .size = sizeof(o->config), .threads = (uint32_t)threads, .timeout_ms = p->config.timeout_ms};
    o->description.size = sizeof(o->description);
    yk_err err = plugin_do(p, &o->call, 10 * p->config.timeout_ms, &text);
    if (err == YK_TIMEOUT)
        return yk_fail(why, err, "backend %s: %s", p->path, text.text);
    if (err) {
        yk_fail(why, err, "%s (%s)", text.text, p->path);
    } else if (!plain(o->description.isa, ISA_MAX_LEN, "._-")) {
        o->call = (struct plugin_call){.fn = call_close, .what = "close"};
        err = plugin_do(p, &o->call, p->config.timeout_ms, &text);
        if (err == YK_TIMEOUT)
            return yk_fail(why, err, "backend %s: %s", p->path, text.text);
        if (!err)
            err = yk_fail(why, YK_FORMAT,
                "backend %s: the isa '%.60s' is bad; it is 1 to %d letters, digits, '.', '_' and '-'", p->path,
                o->description.isa ? o->description.isa : "", ISA_MAX_LEN);
    } else {
        p->flags = o->description.flags;
        p->ops.exact = (p->flags & YOKE_EXACT) != 0;
        snprintf(p->isa, sizeof(p->isa), "%s-%s", p->name, o->description.isa);
        log_debug("backend %s from %s: %.200s", p->isa, p->path, o->description.text ? o->description.text : "");
    }
    free(o);
    return err;
}

yk_err plugin_open(const char *path, const struct backends_config *config, struct pool *pool, struct backend **out,
    struct yk_diag *why)
{
    void *library = NULL;
    const struct yoke_backend *api = NULL;
    yk_err err = load(path, &library, &api, why);
    if (err)
        return err;
    struct plugin *p = yk_xalloc(sizeof(*p));
    p->path = yk_xstrdup(path);
    p->library = library;
    p->api = api;
    snprintf(p->name, sizeof(p->name), "%s", api->name);
    p->ops = template;
    p->ops.name = p->name;
    p->base.ops = &p->ops;
    p->config.timeout_ms = config && config->timeout_ms > 0 ? config->timeout_ms : TIMEOUT_MS;
    p->config.check_every = config && config->check_every ? config->check_every : CHECK_EVERY;
    p->strict = true; /* until it is in use */
    err = backend_ref.open(pool, &p->ref, why);
    if (!err)
        err = plugin_start(p, why);
    if (err) {
        plugin_free(p);
        return err;
    }
    err = open_device(p, pool_threads(pool), why);
    if (err == YK_TIMEOUT)
        return err;
    if (err) {
        plugin_stop(p);
        plugin_free(p);
        return err;
    }
    p->strict = false;
    *out = &p->base;
    return YK_OK;
}
