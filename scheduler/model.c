#include "scheduler/model.h"

#include "common/json.h"
#include "common/onnx.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define ALIGN 64

void model_slices_free(struct model_blob *slices, size_t n)
{
    for (size_t i = 0; i < n; i++)
        free(slices[i].file);
    free(slices);
}

bool model_name_valid(const char *name)
{
    size_t n = strlen(name);
    if (n == 0 || n > 100)
        return false;
    return strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-@") == n && name[0] != '.';
}

void model_free(struct model *m)
{
    if (!m)
        return;
    graph_close(m->graph);
    free(m->name);
    free(m->inputs);
    free(m->outputs);
    free(m->preprocess);
    free(m);
}

/* "x float32[N,1,28,28]; ..." */
static char *describe(const struct graph *g, const int32_t *ids, int32_t n)
{
    struct yk_buf b = {0};
    for (int32_t i = 0; i < n; i++) {
        const struct value *v = &g->values[ids[i]];
        yk_buf_printf(&b, "%s%s %s", i ? "; " : "", v->name, dtype_name(v->dtype));
        for (int k = 0; k < v->rank; k++) {
            yk_buf_printf(&b, k ? "," : "[");
            if (v->dims[k].sym >= 0)
                yk_buf_printf(&b, "%s", g->syms[v->dims[k].sym]);
            else
                yk_buf_printf(&b, "%lld", (long long)v->dims[k].value);
        }
        yk_buf_printf(&b, v->rank > 0 ? "]" : "");
    }
    yk_buf_add(&b, "", 1);
    return b.failed ? yk_xstrdup("") : (char *)b.data;
}

static yk_err write_all(int fd, const char *path, const void *data, size_t len, struct yk_diag *why)
{
    for (size_t at = 0; at < len;) {
        ssize_t n = write(fd, (const uint8_t *)data + at, len - at);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return yk_fail(why, yk_err_from_errno(errno), "cannot write %s: %s", path, strerror(errno));
        at += (size_t)n;
    }
    return YK_OK;
}

/* Opens path.part for writing; commit syncs and renames. */
static int open_part(const char *path, char **part, struct yk_diag *why, yk_err *err)
{
    *part = yk_xasprintf("%s.part", path);
    int fd = open(*part, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (fd < 0)
        *err = yk_fail(why, yk_err_from_errno(errno), "cannot write %s: %s", *part, strerror(errno));
    return fd;
}

static yk_err commit(int fd, const char *part, const char *path, yk_err err, struct yk_diag *why)
{
    if (fd >= 0 && !err && fsync(fd) != 0)
        err = yk_fail(why, yk_err_from_errno(errno), "cannot sync %s: %s", part, strerror(errno));
    if (fd >= 0 && close(fd) != 0 && !err)
        err = yk_fail(why, yk_err_from_errno(errno), "cannot close %s: %s", part, strerror(errno));
    if (!err && rename(part, path) != 0)
        err = yk_fail(why, yk_err_from_errno(errno), "cannot rename %s: %s", part, strerror(errno));
    if (err)
        unlink(part);
    return err;
}

struct writing {
    enum { PLACE, COMPARE, WRITE } how; /* places are given; the file is compared with the weights; it is written */
    int fd;
    bool same; /* so far, where it is compared */
    const char *path, *file;
    struct model *m;
    struct model_blob **slices;
    size_t *n;
    int64_t at;
    yk_err err;
    struct yk_diag *why;
};

/* Whether a file has these bytes from a place on. */
static bool has_bytes(int fd, int64_t at, const uint8_t *want, int64_t bytes)
{
    uint8_t block[65536];
    for (int64_t done = 0; done < bytes;) {
        ssize_t n = pread(fd, block, (size_t)YK_MIN(bytes - done, (int64_t)sizeof block), (off_t)(at + done));
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0 || memcmp(block, want + done, (size_t)n) != 0)
            return false;
        done += n;
    }
    return true;
}

static void write_weight(void *arg, const struct value *v)
{
    static const uint8_t zeros[ALIGN];
    struct writing *w = arg;
    size_t pad = (size_t)((ALIGN - w->at % ALIGN) % ALIGN);
    if (w->err || !v->data)
        return;
    if (w->how == PLACE)
        w->m->weight_bytes += v->bytes;
    if (!v->has_hash) /* inline in the skeleton */
        return;
    w->at += (int64_t)pad;
    if (w->how == COMPARE) {
        w->same = w->same && has_bytes(w->fd, w->at, v->data, v->bytes);
        w->at += v->bytes;
        return;
    }
    if (w->how == WRITE) {
        if (!(w->err = write_all(w->fd, w->path, zeros, pad, w->why)))
            w->err = write_all(w->fd, w->path, v->data, (size_t)v->bytes, w->why);
        w->at += v->bytes;
        return;
    }
    *w->slices = yk_xrealloc(*w->slices, (*w->n + 2) * sizeof **w->slices);
    struct model_blob *b = &(*w->slices)[(*w->n)++];
    *b = (struct model_blob){.file = yk_xstrdup(w->file), .at = w->at, .bytes = v->bytes};
    yk_hex(v->hash, sizeof v->hash, b->hash);
    w->at += v->bytes;
}

static void each_weight(const struct graph *g, struct writing *w, int how)
{
    w->how = how;
    w->at = 0;
    for (int32_t i = 0; i < g->n_values; i++)
        if (g->values[i].kind == VALUE_WEIGHT)
            write_weight(w, &g->values[i]);
    for (int32_t i = 0; i < g->n_nodes; i++)
        node_each_inner_weight(&g->nodes[i], write_weight, w);
}

/* A file of a length that can be read; -1: there is none. */
static int open_sized(const char *path, int64_t bytes)
{
    struct stat st;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd >= 0 && fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && st.st_size == bytes)
        return fd;
    if (fd >= 0)
        close(fd);
    return -1;
}

/* A file of this name should have these bytes: the name is the hash of a skeleton that has theirs. So it is written
 * once, however often a training of the model is planned, and again if it is damaged. */
static yk_err write_weights(const struct graph *g, const char *path, const char *file, struct model *m,
    struct model_blob **slices, size_t *n, bool *fresh, struct yk_diag *why)
{
    char *part = NULL;
    struct writing w = {.path = path, .file = file, .m = m, .slices = slices, .n = n, .same = true, .why = why};
    each_weight(g, &w, PLACE);
    w.fd = open_sized(path, w.at);
    *fresh = w.fd < 0;
    if (w.fd >= 0) {
        each_weight(g, &w, COMPARE);
        close(w.fd);
        *fresh = !w.same;
    }
    if (!*fresh)
        return YK_OK;
    w.fd = open_part(path, &part, why, &w.err);
    if (!w.err)
        each_weight(g, &w, WRITE);
    w.err = commit(w.fd, part, path, w.err, why);
    free(part);
    return w.err;
}

static yk_err write_skeleton(const char *path, const struct yk_buf *skeleton, bool *fresh, struct yk_diag *why)
{
    int fd = open_sized(path, (int64_t)skeleton->len);
    *fresh = fd < 0 || !has_bytes(fd, 0, skeleton->data, (int64_t)skeleton->len);
    if (fd >= 0)
        close(fd);
    return *fresh ? model_write_file(path, skeleton->data, skeleton->len, why) : YK_OK;
}

yk_err model_write_file(const char *path, const void *data, size_t len, struct yk_diag *why)
{
    char *part = NULL;
    yk_err err = YK_OK;
    int fd = open_part(path, &part, why, &err);
    if (!err)
        err = write_all(fd, path, data, len, why);
    err = commit(fd, part, path, err, why);
    free(part);
    return err;
}

/* The skeleton as agents see it: read back from its own bytes, which the graph then owns. */
static void free_backing(void *p)
{
    free(p);
}

static yk_err reopen(const void *bytes, size_t len, struct graph **out, struct yk_diag *why)
{
    void *copy = yk_try_alloc(len + 1, 1);
    if (!copy)
        return yk_fail(why, YK_NOMEM, "no memory for a graph of %zu bytes", len);
    memcpy(copy, bytes, len);
    yk_err err = onnx_import_memory(copy, len, out, NULL, why);
    if (err) {
        free(copy);
    } else {
        if ((*out)->backing_close) /* the importer's own, which has no file here */
            (*out)->backing_close((*out)->backing);
        (*out)->backing = copy;
        (*out)->backing_close = free_backing;
    }
    return err;
}

static void add_skeleton(
    const char *file, const char *hash, int64_t bytes, struct model_blob **slices, size_t *n_slices)
{
    *slices = yk_xrealloc(*slices, (*n_slices + 2) * sizeof **slices);
    struct model_blob *b = &(*slices)[(*n_slices)++];
    *b = (struct model_blob){.file = yk_xstrdup(file), .at = 0, .bytes = bytes};
    snprintf(b->hash, sizeof b->hash, "%s", hash);
}

yk_err model_of_graph(struct graph *g, const char *dir, struct model **out, struct model_blob **slices,
    size_t *n_slices, struct yk_diag *why)
{
    struct model *m = yk_xalloc(sizeof *m);
    struct yk_buf skeleton = {0};
    char *files[2] = {NULL}, *paths[2] = {NULL};
    bool fresh[2];
    *slices = NULL;
    *n_slices = 0;
    yk_err err = onnx_export_skeleton(g, &skeleton, why);
    if (err)
        goto out;
    yk_hex(g->hash, sizeof g->hash, m->graph_hash);
    m->nodes = g->n_nodes;
    m->inputs = describe(g, g->inputs, g->n_inputs);
    m->outputs = describe(g, g->outputs, g->n_outputs);
    for (int i = 0; i < 2; i++) {
        files[i] = yk_xasprintf("%s.%s", m->graph_hash, i ? "skeleton" : "weights");
        paths[i] = yk_xasprintf("%s/%s", dir, files[i]);
    }
    if ((err = write_weights(g, paths[0], files[0], m, slices, n_slices, &fresh[0], why)) ||
        (err = write_skeleton(paths[1], &skeleton, &fresh[1], why)))
        goto out;
    for (size_t i = 0; i < *n_slices; i++)
        (*slices)[i].fresh = fresh[0];
    add_skeleton(files[1], m->graph_hash, (int64_t)skeleton.len, slices, n_slices);
    (*slices)[*n_slices - 1].fresh = fresh[1];
    err = reopen(skeleton.data, skeleton.len, &m->graph, why);
out:
    yk_buf_free(&skeleton);
    for (int i = 0; i < 2; i++) {
        free(files[i]);
        free(paths[i]);
    }
    if (err) {
        model_slices_free(*slices, *n_slices);
        *slices = NULL;
        *n_slices = 0;
        model_free(m);
    } else {
        *out = m;
    }
    return err;
}

yk_err model_import(const char *dir, const char *blob_hash, passes_eval eval, void *eval_arg, struct model **out,
    struct model_blob **slices, size_t *n_slices, struct yk_diag *why)
{
    struct graph *g = NULL;
    struct stat st;
    char *path = yk_xasprintf("%s/%s", dir, blob_hash);
    *slices = NULL;
    *n_slices = 0;
    yk_err err = onnx_import(path, &g, NULL, why);
    size_t n = strlen(path);
    if (err && why && strncmp(why->text, path, n) == 0 && why->text[n] == ':') /* the client knows its own name of it */
        memmove(why->text, why->text + n + 2, strlen(why->text + n + 1));
    if (!err)
        err = passes_infer(g, eval, eval_arg, why);
    if (!err)
        err = model_of_graph(g, dir, out, slices, n_slices, why);
    if (!err) {
        snprintf((*out)->blob_hash, sizeof(*out)->blob_hash, "%s", blob_hash);
        (*out)->bytes = stat(path, &st) == 0 ? (int64_t)st.st_size : 0;
    }
    graph_close(g);
    free(path);
    return err;
}

yk_err model_load(struct model *m, struct blobs *blobs, struct yk_diag *why)
{
    const uint8_t *data;
    int64_t bytes;
    if (m->graph)
        return YK_OK;
    yk_err err = blobs_map(blobs, m->graph_hash, &data, &bytes, why);
    char hash[HASH_HEX_SIZE];
    if (!err) {
        hash_hex(data, (size_t)bytes, hash);
        if (strcmp(hash, m->graph_hash) != 0)
            err = yk_fail(why, YK_FORMAT, "%s has other bytes than were written", blobs_file(blobs, m->graph_hash));
    }
    if (err)
        return yk_wrap(
            why, err, "the graph of model %s is damaged (`yoke model add` its file again)", m->name ? m->name : "?");
    return reopen(data, (size_t)bytes, &m->graph, why);
}

static void put_values(struct json_out *o, const struct graph *g, const int32_t *ids, int32_t n)
{
    json_open(o, '[');
    for (int32_t i = 0; i < n; i++) {
        const struct value *v = &g->values[ids[i]];
        json_open(o, '{');
        json_put_key(o, "name");
        json_put_str(o, v->name);
        json_put_key(o, "dtype");
        json_put_str(o, dtype_name(v->dtype));
        json_put_key(o, "dims");
        json_open(o, '[');
        for (int k = 0; k < v->rank; k++) {
            if (v->dims[k].sym >= 0)
                json_put_str(o, g->syms[v->dims[k].sym]);
            else if (v->dims[k].value >= 0)
                json_put_i64(o, v->dims[k].value);
            else
                json_put_null(o);
        }
        json_close(o, ']');
        json_close(o, '}');
    }
    json_close(o, ']');
}

void model_describe(const struct model *m, struct yk_buf *out)
{
    struct json_out o;
    json_out_init(&o, out, 0);
    json_open(&o, '{');
    json_put_key(&o, "model");
    json_put_str(&o, m->name);
    json_put_key(&o, "graph");
    json_put_str(&o, m->graph_hash);
    json_put_key(&o, "inputs");
    put_values(&o, m->graph, m->graph->inputs, m->graph->n_inputs);
    json_put_key(&o, "outputs");
    put_values(&o, m->graph, m->graph->outputs, m->graph->n_outputs);
    json_put_key(&o, "preprocess");
    if (m->preprocess)
        json_put_raw(&o, m->preprocess, strlen(m->preprocess));
    else
        json_put_null(&o);
    json_close(&o, '}');
}
