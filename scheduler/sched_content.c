/* Content: uploads, the models made of them, and what goes when nobody needs it any more. */
#include "scheduler/sched_priv.h"

#include "common/json.h"
#include "common/log.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- uploads ---- */

struct upload {
    struct sched *s;
    char hash[65];
    int64_t offset, total, have;
    void *data;
    size_t len;
    bool complete;
    char *file; /* that holds it, if it is complete: where, and as blobs_sound_ns says */
    int64_t at, sound_ns;
    bool damaged;
    yk_err err;
    struct yk_diag why;
    sched_on_text fn;
    void *arg;
};

static void answer_state(struct upload *u)
{
    char text[96];
    snprintf(text, sizeof text, "{\"have\":%lld,\"complete\":%s}", (long long)u->have, u->complete ? "true" : "false");
    u->fn(u->arg, u->err, u->err ? u->why.text : text);
    free(u->data);
    free(u->file);
    free(u);
}

static void part_run(void *arg)
{
    struct upload *u = arg;
    u->err = blob_part_write(u->s->blobs, u->hash, u->offset, u->total, u->data, u->len, &u->complete, &u->why);
    u->have = u->offset + (int64_t)u->len;
}

static void part_done(void *arg)
{
    struct upload *u = arg;
    if (!u->err && u->complete) {
        blobs_renew(u->s->blobs, u->hash, net_now_us(u->s->net));
        blobs_add(u->s->blobs, u->hash, u->hash, 0, u->total);
        store_put_blob(u->s->store, u->hash, u->hash, 0, u->total);
    }
    answer_state(u);
}

/* Who asks has the content, and would be told for ever that it need not come: so it is read, once after a start and
 * after each change of its file, and what is damaged comes again. */
static void state_run(void *arg)
{
    struct upload *u = arg;
    if (u->complete) {
        yk_err err = blob_check(blobs_dir(u->s->blobs), u->file, u->at, u->have, u->hash, &u->sound_ns, &u->why);
        u->damaged = err && err != YK_BUSY;
        u->complete = !u->damaged;
    }
    if (!u->complete)
        u->have = blob_part_have(u->s->blobs, u->hash);
}

static void state_done(void *arg)
{
    struct upload *u = arg;
    blobs_set_sound(u->s->blobs, u->hash, u->sound_ns);
    if (u->damaged) {
        log_warn("content %.12s: %s; it may be uploaded again", u->hash, u->why.text);
        blobs_forget(u->s->blobs, u->hash);
    }
    answer_state(u);
}

/* The row of a blob is posted when its bytes are there. */
static struct upload *upload_new(struct sched *s, const char *hash, sched_on_text fn, void *arg)
{
    struct upload *u = yk_xalloc(sizeof *u);
    u->s = s;
    snprintf(u->hash, sizeof u->hash, "%s", hash);
    u->fn = fn;
    u->arg = arg;
    const char *file = blobs_place(s->blobs, hash, &u->at, &u->have);
    u->complete = file != NULL;
    u->file = file ? yk_xstrdup(file) : NULL;
    u->sound_ns = blobs_sound_ns(s->blobs, hash);
    return u;
}

void sched_blob_part(struct sched *s, const char *hash, int64_t offset, int64_t total, const void *data, size_t len,
    sched_on_text fn, void *arg)
{
    struct upload *u = upload_new(s, hash, fn, arg);
    u->offset = offset;
    u->total = total;
    u->len = len;
    if (u->complete) {
        worker_post(s->content, state_run, state_done, u);
        return;
    }
    u->data = yk_try_alloc(len + 1, 1);
    if (!u->data) {
        u->err = yk_fail(&u->why, YK_NOMEM, "no memory for a part of %zu bytes", len);
        answer_state(u);
        return;
    }
    memcpy(u->data, data, len);
    worker_post(s->content, part_run, part_done, u);
}

void sched_blob_state(struct sched *s, const char *hash, sched_on_text fn, void *arg)
{
    struct upload *u = upload_new(s, hash, fn, arg);
    worker_post(s->content, state_run, state_done, u);
}

/* ---- models ---- */

struct adding {
    struct sched *s;
    char *name, *preprocess, blob[65];
    bool temporary;
    struct model *model;
    struct model_blob *slices;
    size_t n_slices;
    yk_err err;
    struct yk_diag why;
    sched_on_text fn;
    void *arg;
};

static void add_run(void *arg)
{
    struct adding *a = arg;
    a->err = model_import(blobs_dir(a->s->blobs), a->blob, a->s->config.eval, a->s->config.eval_arg, &a->model,
        &a->slices, &a->n_slices, &a->why);
}

static void add_answer(void *arg, yk_err err, char *json)
{
    struct adding *a = arg;
    (void)json;
    struct model *m = a->model;
    struct yk_buf b = {0};
    struct json_out o;
    json_out_init(&o, &b, 0);
    json_open(&o, '{');
    json_put_key(&o, "model");
    json_put_str(&o, m->name);
    json_put_key(&o, "graph");
    json_put_str(&o, m->graph_hash);
    json_put_key(&o, "bytes");
    json_put_i64(&o, m->bytes);
    json_put_key(&o, "nodes");
    json_put_i64(&o, m->nodes);
    json_put_key(&o, "weight_bytes");
    json_put_i64(&o, m->weight_bytes);
    json_put_key(&o, "inputs");
    json_put_str(&o, m->inputs);
    json_put_key(&o, "outputs");
    json_put_str(&o, m->outputs);
    json_put_key(&o, "preprocess");
    json_put_str(&o, m->preprocess);
    json_close(&o, '}');
    yk_buf_add(&b, "", 1);
    a->fn(a->arg, err, b.failed ? "{}" : (char *)b.data);
    yk_buf_free(&b);
    free(json);
    free(a->name);
    free(a);
}

static void add_flushed(void *arg)
{
    add_answer(arg, YK_OK, NULL);
}

void sched_content_renew(struct sched *s, const struct model_blob *slices, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (slices[i].fresh && (i == 0 || strcmp(slices[i].file, slices[i - 1].file) != 0))
            blobs_renew(s->blobs, slices[i].file, net_now_us(s->net));
}

static void add_done(void *arg)
{
    struct adding *a = arg;
    struct sched *s = a->s;
    s->adding--;
    if (a->err) {
        sched_content_refused(s, a->blob);
        a->fn(a->arg, a->err, a->why.text);
        free(a->preprocess);
        free(a->name);
        free(a);
        return;
    }
    struct model *m = a->model;
    m->name = yk_xstrdup(a->name);
    m->preprocess = a->preprocess;
    a->preprocess = NULL;
    m->temporary = a->temporary;
    m->used_us = net_now_us(s->net);
    m->id = ++s->next_model;
    sched_content_renew(s, a->slices, a->n_slices);
    for (size_t i = 0; i < a->n_slices; i++) {
        blobs_add(s->blobs, a->slices[i].hash, a->slices[i].file, a->slices[i].at, a->slices[i].bytes);
        store_put_blob(s->store, a->slices[i].hash, a->slices[i].file, a->slices[i].at, a->slices[i].bytes);
    }
    model_slices_free(a->slices, a->n_slices);
    m->next = s->models;
    s->models = m;
    struct store_model row = {.id = m->id,
        .name = m->name,
        .graph_hash = m->graph_hash,
        .blob_hash = m->blob_hash,
        .inputs = m->inputs,
        .outputs = m->outputs,
        .preprocess = m->preprocess,
        .bytes = m->bytes,
        .nodes = m->nodes,
        .weight_bytes = m->weight_bytes,
        .temporary = m->temporary};
    store_put_model(s->store, &row);
    log_info("model %s: %lld nodes, graph %.12s", m->name, (long long)m->nodes, m->graph_hash);
    store_flush(s->store, add_flushed, a);
}

void sched_model_add(struct sched *s, const char *name, const char *blob, const char *preprocess, bool temporary,
    sched_on_text fn, void *arg)
{
    if (!model_name_valid(name)) {
        fn(arg, YK_INVAL, "name: " MODEL_NAMES);
        return;
    }
    if (!hash_is_hex(blob) || !blobs_find(s->blobs, blob, NULL)) {
        fn(arg, YK_NOTFOUND, "blob: there is no such content; upload it with PUT /v1/blobs/SHA-256 first");
        return;
    }
    struct adding *a = yk_xalloc(sizeof *a);
    a->s = s;
    a->name = yk_xstrdup(name);
    a->preprocess = preprocess ? yk_xstrdup(preprocess) : NULL;
    a->temporary = temporary;
    snprintf(a->blob, sizeof a->blob, "%s", blob);
    a->fn = fn;
    a->arg = arg;
    s->adding++;
    worker_post(s->content, add_run, add_done, a);
}

/* ---- what goes ---- */

struct unlinking {
    char *path;
};

static void unlink_run(void *arg)
{
    struct unlinking *u = arg;
    unlink(u->path);
}

static void unlink_done(void *arg)
{
    struct unlinking *u = arg;
    free(u->path);
    free(u);
}

/* Out of the index and the database at once; the file goes on the thread that writes content, so that the same content
 * may come again right behind it. */
static int64_t remove_file(struct sched *s, const char *file)
{
    char *name = yk_xstrdup(file); /* may be the index's own */
    int64_t bytes = blobs_remove(s->blobs, name, net_now_us(s->net));
    struct unlinking *u = yk_xalloc(sizeof *u);
    u->path = yk_xasprintf("%s/%s", blobs_dir(s->blobs), name);
    store_remove_blob(s->store, name);
    worker_post(s->content, unlink_run, unlink_done, u);
    free(name);
    return bytes;
}

void sched_content_drop(struct sched *s, const char *file)
{
    remove_file(s, file);
}

static bool blob_in_use(const struct sched *s, const char *hash)
{
    for (const struct model *m = s->models; m; m = m->next)
        if (strcmp(m->blob_hash, hash) == 0)
            return true;
    for (const struct job *j = s->jobs; j; j = j->next) {
        if (j->labels && strcmp(j->labels, hash) == 0)
            return true;
        for (int i = 0; i < j->n_inputs; i++)
            if (strcmp(j->inputs[i].data, hash) == 0)
                return true;
    }
    return false;
}

void sched_content_refused(struct sched *s, const char *blob)
{
    if (!s->closing && !s->adding && !blob_in_use(s, blob))
        remove_file(s, blob);
}

/* The model's graph is this file, or one of its weights lies in it: equal tensors of two models are kept once. */
static bool has_file(const struct sched *s, const struct model *m, const char *file)
{
    const char *dot = strchr(file, '.');
    if (dot && strlen(m->graph_hash) == (size_t)(dot - file) && strncmp(m->graph_hash, file, dot - file) == 0)
        return true;
    for (int32_t i = 0; i < m->graph->n_values; i++) {
        char hash[65];
        const struct value *v = &m->graph->values[i];
        if (v->kind != VALUE_WEIGHT || !v->has_hash)
            continue;
        yk_hex(v->hash, sizeof v->hash, hash);
        const char *in = blobs_file(s->blobs, hash);
        if (in && strcmp(in, file) == 0)
            return true;
    }
    return false;
}

/* A model's, or an open training's: its graph, and what is named after it, which goes with the job. */
static bool file_in_use(const struct sched *s, const char *file)
{
    long long id;
    for (const struct model *m = s->models; m; m = m->next)
        if (has_file(s, m, file))
            return true;
    for (const struct job *j = s->jobs; j; j = j->next) {
        if (sscanf(file, "job-%lld", &id) == 1 && id == j->id)
            return true;
        if (j->training && j->training->model && has_file(s, j->training->model, file))
            return true;
    }
    return false;
}

struct removal {
    struct sched *s;
    char *name;
    int64_t bytes;
    sched_on_text fn;
    void *arg;
};

static void removed(void *arg)
{
    struct removal *r = arg;
    char text[200];
    snprintf(text, sizeof text, "{\"model\":\"%s\",\"freed_bytes\":%lld}", r->name, (long long)r->bytes);
    r->fn(r->arg, YK_OK, text);
    free(r->name);
    free(r);
}

static yk_err check_removal(struct sched *s, const char *name, struct yk_diag *why)
{
    if (!sched_model_find(s, name))
        return yk_fail(why, YK_NOTFOUND, "there is no model '%.100s' (`yoke models` lists them)", name);
    for (const struct job *j = s->jobs; j; j = j->next)
        if (strcmp(j->model, name) == 0)
            return yk_fail(why, YK_STATE, "job %lld uses model %s: wait for it, or `yoke cancel %lld`",
                (long long)j->id, name, (long long)j->id);
    if (s->plannings || s->adding)
        return yk_fail(why, YK_STATE, "a plan is being made or a model being added: try again in a moment");
    /* Which weights the others share is in their graphs. */
    for (struct model *m = s->models; m; m = m->next) {
        yk_err err = strcmp(m->name, name) != 0 ? model_load(m, s->blobs, why) : YK_OK;
        if (err)
            return yk_wrap(why, err, "model %s, which may share weights", m->name);
    }
    return YK_OK;
}

void sched_model_remove(struct sched *s, const char *name, sched_on_text fn, void *arg)
{
    struct yk_diag why = {0};
    yk_err err = check_removal(s, name, &why);
    if (err) {
        fn(arg, err, why.text);
        return;
    }
    struct removal *r = yk_xalloc(sizeof *r);
    *r = (struct removal){.s = s, .name = yk_xstrdup(name), .fn = fn, .arg = arg};
    struct model *gone = NULL;
    for (struct model **p = &s->models; *p;) {
        struct model *m = *p;
        if (strcmp(m->name, r->name) != 0) {
            p = &m->next;
            continue;
        }
        *p = m->next;
        m->next = gone;
        gone = m;
    }
    store_remove_model(s->store, r->name);
    while (gone) {
        struct model *m = gone;
        gone = m->next;
        const char *const kinds[] = {"weights", "skeleton"};
        for (size_t i = 0; i < YK_COUNT(kinds); i++) { /* also where later content took all their places in the index */
            char own[80];
            snprintf(own, sizeof own, "%s.%s", m->graph_hash, kinds[i]);
            if (!file_in_use(s, own))
                r->bytes += remove_file(s, own);
        }
        if (!blob_in_use(s, m->blob_hash))
            r->bytes += remove_file(s, m->blob_hash);
        m->next = s->removed; /* a pipeline that idles may still name it */
        s->removed = m;
    }
    /* Also what an earlier model left because others used its weights. */
    const char *file;
    for (int32_t i = 0; (file = blobs_file_at(s->blobs, i)); i++)
        if (strchr(file, '.') && !file_in_use(s, file))
            r->bytes += remove_file(s, file);
    log_info("model %s: removed, %lld bytes", r->name, (long long)r->bytes);
    store_flush(s->store, removed, r);
}

/* ---- outputs of jobs ---- */

struct output_removal {
    struct sched *s;
    int64_t job, files;
    sched_on_text fn;
    void *arg;
};

static void outputs_removed(void *arg)
{
    struct output_removal *r = arg;
    char text[80];
    snprintf(text, sizeof text, "{\"job\":%lld,\"files\":%lld}", (long long)r->job, (long long)r->files);
    r->fn(r->arg, YK_OK, text);
    free(r);
}

static void on_outputs(void *arg, yk_err err, char *text)
{
    struct output_removal *r = arg;
    struct yk_diag why = {0};
    struct json *doc = NULL;
    if (err == YK_NOTFOUND)
        yk_fail(&why, err, "job %lld keeps no output (`yoke jobs` lists the jobs)", (long long)r->job);
    else if (err)
        yk_fail(&why, err, "%s", yk_err_text(err));
    if (!err)
        err = json_parse(text, strlen(text), &doc, &why);
    free(text);
    if (err) {
        r->fn(r->arg, err, why.text);
        free(r);
        return;
    }
    for (size_t i = 0; i < json_len(doc); i++) {
        const char *file = json_str(json_find(json_at(doc, i), "file"), "");
        if (strncmp(file, "job-", 4) != 0 || strchr(file, '/') || file_in_use(r->s, file))
            continue;
        remove_file(r->s, file);
        r->files++;
    }
    json_free(doc);
    store_remove_outputs(r->s->store, r->job);
    jobs_event(r->s, r->job, "removed", "its output, by its owner");
    store_flush(r->s->store, outputs_removed, r);
}

void sched_outputs_remove(struct sched *s, int64_t job, sched_on_text fn, void *arg)
{
    bool open = jobs_find(s, job) != NULL;
    for (const struct job *j = s->unsaved; j; j = j->next)
        open = open || j->id == job;
    if (open || !sched_job_known(s, job)) {
        struct yk_diag why = {0};
        yk_err err = open ? yk_fail(&why, YK_STATE, "job %lld has not ended: wait for it, or `yoke cancel %lld`",
                                (long long)job, (long long)job)
                          : yk_fail(&why, YK_NOTFOUND, "there is no job %lld", (long long)job);
        fn(arg, err, why.text);
        return;
    }
    struct output_removal *r = yk_xalloc(sizeof *r);
    *r = (struct output_removal){.s = s, .job = job, .fn = fn, .arg = arg};
    store_outputs_of(s->store, job, on_outputs, r);
}

void sched_content_tick(struct sched *s)
{
    blobs_unmap_removed(s->blobs, net_now_us(s->net));
    while (s->removed && !s->plannings && !s->generations && !s->ended) {
        struct model *m = s->removed;
        s->removed = m->next;
        model_free(m);
    }
}
