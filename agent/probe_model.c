/* The profile command: fetch the graph, import it, time its nodes on the runner, answer in pieces, keep the answer. */
#include "agent/blob.h"
#include "agent/control.h"
#include "agent/probe.h"
#include "common/hash.h"
#include "common/json.h"
#include "common/onnx.h"
#include "kernels/profile.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SKELETON_LIMIT ((int64_t)256 << 20)
#define PIECE 4096 /* rows of one answer: well below the message limit */
#define MAX_SIZES 64
#define MAX_ROWS ((size_t)1 << 22)
#define BUDGET_MS 10000

struct row {
    int32_t node, form; /* form: index of names */
    int64_t size;
    double ms, prepare_ms;
    int64_t packed_bytes, workspace_bytes;
};

struct times {
    struct agent *agent;
    struct wire_msg msg;
    const struct wire_profile *w;
    struct cache_entry *skeleton;
    struct graph *graph;
    struct row *rows;
    size_t n, cap;
    char **names;
    int32_t n_names;
    int64_t *others; /* sizes by named dimension, 0 where the question has none */
    char key[160];
    bool recalled;
    yk_err err;
    struct yk_diag why;
};

static void times_free(struct times *t)
{
    graph_close(t->graph);
    if (t->skeleton)
        cache_release(t->agent->cache, t->skeleton);
    for (int32_t i = 0; i < t->n_names; i++)
        free(t->names[i]);
    free(t->names);
    free(t->rows);
    free(t->others);
    wire_free(&t->msg);
    free(t);
}

static int32_t name_index(struct times *t, const char *name)
{
    for (int32_t i = t->n_names - 1; i >= 0; i--)
        if (!strcmp(t->names[i], name))
            return i;
    if ((t->n_names & (t->n_names - 1)) == 0)
        t->names = yk_xrealloc(t->names, (size_t)YK_MAX(2 * t->n_names, 1) * sizeof *t->names);
    t->names[t->n_names] = yk_xstrdup(name);
    return t->n_names++;
}

static void add_row(struct times *t, const struct row *r)
{
    if (t->n == MAX_ROWS)
        return;
    if (t->n == t->cap) {
        t->cap = t->cap ? 2 * t->cap : 256;
        t->rows = yk_xrealloc(t->rows, t->cap * sizeof *t->rows);
    }
    t->rows[t->n++] = *r;
}

/* ---- kept answers ---- */

static void remember(struct times *t)
{
    struct yk_buf buf = {0};
    struct json_out o;
    struct yk_diag why;
    json_out_init(&o, &buf, 0);
    json_open(&o, '{');
    json_put_key(&o, "sizes");
    json_open(&o, '[');
    for (size_t i = 0; i < t->w->sizes.n; i++)
        json_put_i64(&o, t->w->sizes.at[i]);
    json_close(&o, ']');
    json_put_key(&o, "forms");
    json_open(&o, '[');
    for (int32_t i = 0; i < t->n_names; i++)
        json_put_str(&o, t->names[i]);
    json_close(&o, ']');
    json_put_key(&o, "times"); /* node, form, size, ms, prepare_ms, packed_bytes, workspace_bytes */
    json_open(&o, '[');
    for (size_t i = 0; i < t->n; i++) {
        const struct row *r = &t->rows[i];
        json_open(&o, '[');
        json_put_i64(&o, r->node);
        json_put_i64(&o, r->form);
        json_put_i64(&o, r->size);
        json_put_f64(&o, r->ms);
        json_put_f64(&o, r->prepare_ms);
        json_put_i64(&o, r->packed_bytes);
        json_put_i64(&o, r->workspace_bytes);
        json_close(&o, ']');
    }
    json_close(&o, ']');
    json_close(&o, '}');
    struct storage *s = t->agent->storage;
    if (!buf.failed && s->ops->put(s, t->key, buf.data, buf.len, &why) != YK_OK)
        log_warn("the profile of graph %.12s is not kept: %s", t->w->graph, why.text);
    yk_buf_free(&buf);
}

static bool has_size(const struct json *sizes, int64_t size)
{
    for (size_t i = 0; i < json_len(sizes); i++)
        if (json_i64(json_at(sizes, i), -1) == size)
            return true;
    return false;
}

static bool wanted(const struct times *t, int64_t size)
{
    for (size_t i = 0; i < t->w->sizes.n; i++)
        if (t->w->sizes.at[i] == size)
            return true;
    return false;
}

/* Io worker. True if all the sizes that are asked for were measured before. */
static bool recall(struct times *t)
{
    struct storage *s = t->agent->storage;
    struct storage_map m;
    struct json *doc = NULL;
    if (s->ops->map(s, t->key, &m, NULL) != YK_OK)
        return false;
    bool ok = json_parse((const char *)m.data, m.len, &doc, NULL) == YK_OK;
    const struct json *sizes = json_find(doc, "sizes"), *forms = json_find(doc, "forms"),
                      *times = json_find(doc, "times");
    ok = ok && sizes && forms && times;
    for (size_t i = 0; ok && i < t->w->sizes.n; i++)
        ok = has_size(sizes, t->w->sizes.at[i]);
    for (size_t i = 0; ok && i < json_len(forms); i++)
        name_index(t, json_str(json_at(forms, i), ""));
    for (size_t i = 0; ok && i < json_len(times); i++) {
        const struct json *j = json_at(times, i);
        struct row r = {(int32_t)json_i64(json_at(j, 0), -1), (int32_t)json_i64(json_at(j, 1), -1),
            json_i64(json_at(j, 2), 0), json_f64(json_at(j, 3), 0), json_f64(json_at(j, 4), 0),
            json_i64(json_at(j, 5), 0), json_i64(json_at(j, 6), 0)};
        ok = r.node >= 0 && r.node < t->graph->n_nodes && r.form >= 0 && r.form < t->n_names;
        if (ok && wanted(t, r.size))
            add_row(t, &r);
    }
    json_free(doc);
    s->ops->unmap(s, &m);
    if (!ok)
        t->n = 0;
    return ok;
}

/* ---- the emulated device's times ---- */

static void slow_down(struct times *t, int64_t size)
{
    const struct agent_emulate *e = t->agent->emulate;
    struct graph *g = t->graph;
    int64_t *sizes = yk_xalloc((size_t)g->n_syms * sizeof *sizes + 1);
    struct shapes shapes;
    graph_sizes(g, t->others, size, sizes);
    if (shapes_infer(g, sizes, NULL, &shapes, NULL) == YK_OK) {
        struct op_ctx *c = yk_xalloc(sizeof *c);
        double *flops = yk_xalloc((size_t)g->n_nodes * sizeof *flops + 1), total = 0;
        for (int32_t n = 0; n < g->n_nodes; n++) {
            memset(c, 0, sizeof *c);
            shapes_node(g, &shapes, n, c);
            flops[n] = op_flops(c);
            total += flops[n];
        }
        for (size_t i = 0; i < t->n; i++) {
            struct row *r = &t->rows[i];
            if (r->size != size)
                continue;
            double ms = e->gflops > 0 ? flops[r->node] / e->gflops * 1e-6
                        : total > 0   ? e->stage_ms * flops[r->node] / total
                                      : 0;
            r->ms = YK_MAX(r->ms, ms);
        }
        free(flops);
        free(c);
        shapes_fini(&shapes);
    }
    free(sizes);
}

/* ---- steps ---- */

static void answer(struct times *t)
{
    struct wire_profile_result w = {.id = t->w->id, .graph = t->w->graph};
    struct wire_node_time *piece = yk_xalloc(PIECE * sizeof *piece);
    if (t->err) {
        w.error = yk_err_name(t->err);
        w.text = t->why.text;
        log_warn("profile of graph %.12s: %s", t->w->graph, t->why.text);
    }
    size_t at = 0;
    do {
        size_t n = t->err ? 0 : YK_MIN(t->n - at, (size_t)PIECE);
        for (size_t i = 0; i < n; i++) {
            const struct row *r = &t->rows[at + i];
            piece[i] = (struct wire_node_time){.node = r->node,
                .form = t->names[r->form],
                .size = r->size,
                .ms = r->ms,
                .prepare_ms = r->prepare_ms,
                .packed_bytes = r->packed_bytes,
                .workspace_bytes = r->workspace_bytes};
        }
        at += n;
        w.times.at = piece;
        w.times.n = n;
        w.more = !t->err && at < t->n;
        if (control_send(t->agent, WIRE_TYPE_profile_result, &w) != YK_OK)
            break; /* yoked asks again when it is back */
    } while (w.more);
    free(piece);
    times_free(t);
}

static void keep_run(void *arg)
{
    remember(arg);
}

static void finish(struct times *t)
{
    if (!t->err && t->agent->emulate && (t->agent->emulate->gflops > 0 || t->agent->emulate->stage_ms > 0))
        for (size_t i = 0; i < t->w->sizes.n; i++)
            slow_down(t, t->w->sizes.at[i]);
    answer(t);
}

static void keep_done(void *arg)
{
    finish(arg);
}

static void on_entry(void *arg, const struct profile_entry *e)
{
    struct times *t = arg;
    struct row r = {
        e->node, name_index(t, e->form), e->size, e->ms, e->prepare_ms, e->packed_bytes, e->workspace_bytes};
    add_row(t, &r);
}

static void measure_run(void *arg)
{
    struct times *t = arg;
    double budget = t->w->budget_ms > 0 ? (double)t->w->budget_ms : BUDGET_MS;
    t->err = profile_graph(t->graph, &t->agent->backends, t->w->sizes.at, (int)t->w->sizes.n, t->others, t->w->training,
        budget, probe_room(t->agent->memory_bytes), &t->agent->stop, on_entry, t, &t->why);
}

static void set_key(struct times *t)
{
    struct yk_buf others = {0};
    char key[17], tail[HASH_HEX_SIZE + 1] = "";
    for (size_t i = 0; i < t->w->others.n; i++)
        yk_buf_printf(&others, "%s=%lld,", t->w->others.at[i].name, (long long)t->w->others.at[i].value);
    if (others.len && !others.failed) {
        tail[0] = '-';
        hash_hex(others.data, others.len, tail + 1);
        tail[17] = '\0';
    }
    yk_buf_free(&others);
    probe_key(t->agent, key);
    snprintf(t->key, sizeof t->key, "profiles/%s-%s%s%s", t->w->graph, key, tail, t->w->training ? "-train" : "");
}

/* A backend was taken out meanwhile: what was measured of it is not its own time. Measures again without it. */
static bool lost_one(struct times *t)
{
    char before[sizeof t->key];
    memcpy(before, t->key, sizeof before);
    set_key(t);
    if (!strcmp(before, t->key))
        return false;
    t->n = 0;
    return true;
}

static void measure_done(void *arg)
{
    struct times *t = arg;
    if (t->agent->closing)
        times_free(t);
    else if (!t->err && lost_one(t))
        worker_post(t->agent->runner_thread, measure_run, measure_done, t);
    else if (t->err)
        finish(t);
    else
        worker_post(t->agent->io, keep_run, keep_done, t);
}

static void import_run(void *arg)
{
    struct times *t = arg;
    t->err = onnx_import_memory(cache_data(t->skeleton), cache_len(t->skeleton), &t->graph, NULL, &t->why);
    if (t->err)
        return;
    t->others = yk_xalloc(((size_t)t->graph->n_syms + 1) * sizeof *t->others);
    for (size_t i = 0; i < t->w->others.n; i++) {
        int32_t sym = graph_find_sym(t->graph, t->w->others.at[i].name);
        if (sym >= 0)
            t->others[sym] = t->w->others.at[i].value;
    }
    t->recalled = recall(t);
}

static void import_done(void *arg)
{
    struct times *t = arg;
    if (t->agent->closing)
        times_free(t);
    else if (t->err || t->recalled)
        finish(t);
    else
        worker_post(t->agent->runner_thread, measure_run, measure_done, t);
}

static void on_skeleton(void *arg, yk_err err, const char *why, struct cache_entry *e, int64_t fetched)
{
    (void)fetched;
    struct times *t = arg;
    t->skeleton = e;
    t->err = err;
    if (t->agent->closing) {
        times_free(t);
    } else if (err) {
        yk_fail(&t->why, err, "%s", why);
        finish(t);
    } else {
        worker_post(t->agent->io, import_run, import_done, t);
    }
}

void probe_model(struct agent *a, struct wire_msg *msg)
{
    struct times *t = yk_xalloc(sizeof *t);
    t->agent = a;
    t->msg = *msg;
    msg->arena = NULL;
    t->w = &t->msg.as.profile;
    bool bad = !hash_is_hex(t->w->graph) || t->w->sizes.n < 1 || t->w->sizes.n > MAX_SIZES;
    for (size_t i = 0; !bad && i < t->w->sizes.n; i++)
        bad = t->w->sizes.at[i] < 1 || t->w->sizes.at[i] > 1 << 20;
    bad = bad || t->w->others.n > MAX_SIZES;
    for (size_t i = 0; !bad && i < t->w->others.n; i++)
        bad = t->w->others.at[i].value < 1 || t->w->others.at[i].value > 1 << 20;
    if (bad) {
        t->err = yk_fail(&t->why, YK_INVAL, "a profile needs a graph's hash and 1 to %d sizes", MAX_SIZES);
        finish(t);
        return;
    }
    set_key(t);
    blob_fetch(a, t->w->graph, SKELETON_LIMIT, on_skeleton, t);
}
