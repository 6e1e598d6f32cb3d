/* A whole scheduler on a net in memory with fake agents around it, for the suites of sched and rest. */
#ifndef TESTS_SCHED_FIXTURE_H
#define TESTS_SCHED_FIXTURE_H

#include <setjmp.h>
#include <stdarg.h>
#include <unistd.h>

#include <cmocka.h>

#pragma GCC diagnostic ignored "-Wunused-function" /* no suite needs all of them */

#include "common/hash.h"
#include "common/json.h"
#include "common/log.h"
#include "kernels/fold.h"
#include "scheduler/rest.h"
#include "scheduler/sched.h"
#include "tests/fake_agent.h"

struct here {
    char dir[64], path[96];
    struct net *net;
    struct sched *s;
    struct rest *rest;
    struct fake pc, phone, cloud;
    struct fake *all[4];
    /* the last answer */
    bool answered;
    yk_err err;
    char *text;
    int64_t wait_ms; /* config */
};

static void open_sched(struct here *h)
{
    struct sched_config c = {
        .net = h->net, .db = h->path, .listen_url = "mem://yoked", .source_wait_ms = h->wait_ms, .eval = fold_eval};
    struct yk_diag why = {0};
    yk_err err = sched_open(&c, &h->s, &why);
    if (err)
        fail_msg("sched_open: %s", why.text);
    assert_int_equal(rest_open(h->net, "mem://rest", h->s, &h->rest, &why), YK_OK);
}

static void close_sched(struct here *h)
{
    rest_close(h->rest);
    sched_close(h->s);
    h->s = NULL;
    h->rest = NULL;
}

static int setup(void **state)
{
    struct here *h = yk_xalloc(sizeof(*h));
    /* In memory if there is such a place: nothing here asks whether a disk keeps what it synced. */
    snprintf(h->dir, sizeof(h->dir), "%s/yoke-sched-XXXXXX", access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp");
    assert_non_null(mkdtemp(h->dir));
    snprintf(h->path, sizeof(h->path), "%s/yoke.db", h->dir);
    assert_int_equal(net_mem_open(11, &h->net), YK_OK);
    h->wait_ms = 20000;
    fake_init(&h->pc, h->net, "mem://yoked", "pc");
    fake_init(&h->phone, h->net, "mem://yoked", "phone");
    fake_init(&h->cloud, h->net, "mem://yoked", "cloud");
    h->all[0] = &h->pc;
    h->all[1] = &h->phone;
    h->all[2] = &h->cloud;
    for (int i = 0; i < 3; i++)
        h->all[i]->others = h->all;
    net_mem_run_for(h->net, 1000000);
    open_sched(h);
    *state = h;
    return 0;
}

static int teardown(void **state)
{
    struct here *h = *state;
    char command[128];
    for (int i = 0; i < 3; i++)
        fake_kill(h->all[i]);
    if (h->s)
        close_sched(h);
    net_close(h->net);
    snprintf(command, sizeof(command), "rm -r %s", h->dir);
    assert_int_equal(system(command), 0);
    free(h->text);
    free(h);
    return 0;
}

static void run_ms(struct here *h, int64_t ms)
{
    net_mem_run_for(h->net, ms * 1000);
}

static void on_text(void *arg, yk_err err, const char *text)
{
    struct here *h = arg;
    h->answered = true;
    h->err = err;
    free(h->text);
    h->text = yk_xstrdup(text ? text : "");
}

static void on_json(void *arg, yk_err err, char *json)
{
    on_text(arg, err, json);
    free(json);
}

/* Runs until there is an answer. */
static void wait_answer(struct here *h, int64_t limit_ms)
{
    for (int64_t ms = 0; !h->answered && ms < limit_ms; ms += 10)
        run_ms(h, 10);
    assert_true(h->answered);
    h->answered = false;
}

static struct json *answer_json(struct here *h)
{
    struct json *doc = NULL;
    if (h->err)
        fail_msg("answered %s: %s", yk_err_name(h->err), h->text);
    assert_int_equal(json_parse(h->text, strlen(h->text), &doc, NULL), YK_OK);
    return doc;
}

static void upload(struct here *h, const void *data, size_t len, char *hash)
{
    hash_hex(data, len, hash);
    for (size_t at = 0; at < len; at += BLOB_PART_LIMIT) {
        sched_blob_part(h->s, hash, (int64_t)at, (int64_t)len, (const uint8_t *)data + at,
            YK_MIN(len - at, BLOB_PART_LIMIT), on_text, h);
        wait_answer(h, 1000);
        assert_int_equal(h->err, YK_OK);
    }
}

static uint8_t *slurp(const char *path, size_t *len)
{
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    fseek(f, 0, SEEK_END);
    *len = (size_t)ftell(f);
    rewind(f);
    uint8_t *data = yk_xalloc(*len + 1);
    assert_int_equal(fread(data, 1, *len, f), *len);
    fclose(f);
    return data;
}

static void add_model(struct here *h)
{
    size_t len;
    char hash[65];
    uint8_t *data = slurp(YOKE_SOURCE_DIR "/tests/data/fmnist_cnn.onnx", &len);
    upload(h, data, len, hash);
    free(data);
    sched_model_add(h->s, "mnist", hash, NULL, false, on_text, h);
    wait_answer(h, 1000);
    json_free(answer_json(h));
}

static int64_t submit(struct here *h, const char *request)
{
    sched_submit(h->s, request, strlen(request), on_text, h);
    wait_answer(h, 1000);
    struct json *doc = answer_json(h);
    int64_t id = json_i64(json_find(doc, "job"), 0);
    json_free(doc);
    assert_true(id > 0);
    return id;
}

/* The row of a job; json_free(*doc). */
static const struct json *job_row(struct here *h, int64_t id, struct json **doc)
{
    store_list(sched_store(h->s), "jobs", id, on_json, h);
    wait_answer(h, 1000);
    *doc = answer_json(h);
    assert_int_equal(json_len(*doc), 1);
    return json_at(*doc, 0);
}

static bool job_is(struct here *h, int64_t id, const char *state)
{
    struct json *doc;
    const struct json *row = job_row(h, id, &doc);
    bool is = strcmp(json_str(json_find(row, "state"), ""), state) == 0;
    json_free(doc);
    return is;
}

static bool job_over(struct here *h, int64_t id)
{
    return job_is(h, id, "done") || job_is(h, id, "failed") || job_is(h, id, "canceled");
}

static void expect_state(struct here *h, int64_t id, const char *state)
{
    struct json *doc;
    const struct json *row = job_row(h, id, &doc);
    if (strcmp(json_str(json_find(row, "state"), ""), state) != 0)
        fail_msg("job %lld is %s, not %s: %s", (long long)id, json_str(json_find(row, "state"), ""), state,
            json_str(json_find(row, "error"), ""));
    json_free(doc);
}

static void wait_over(struct here *h, int64_t id, int64_t limit_ms)
{
    for (int64_t ms = 0; ms < limit_ms && !job_over(h, id); ms += 100)
        run_ms(h, 100);
    assert_true(job_over(h, id));
}

static void wait_results(struct here *h, const struct fake *f, int n, int64_t limit_ms)
{
    for (int64_t ms = 0; ms < limit_ms && f->results < n; ms++)
        run_ms(h, 1);
    assert_true(f->results >= n);
}

/* Every sample is there, once, in its place. */
static void expect_output(struct here *h, int64_t id, int64_t samples)
{
    char file[40];
    snprintf(file, sizeof file, "job-%lld.npy", (long long)id);
    char *path = sched_output_path(h->s, file);
    size_t len;
    struct npy npy;
    assert_non_null(path);
    uint8_t *data = slurp(path, &len);
    free(path);
    assert_int_equal(npy_parse(data, len, (int64_t)len, &npy, NULL), YK_OK);
    assert_int_equal(npy.shape.rank, 2);
    assert_int_equal(npy.shape.dims[0], samples);
    assert_int_equal(npy.shape.dims[1], FAKE_WIDTH);
    for (int64_t i = 0; i < samples * FAKE_WIDTH; i++) {
        float v;
        memcpy(&v, data + npy.offset + 4 * i, 4);
        assert_true(v == (float)(i / FAKE_WIDTH));
    }
    free(data);
}

static void expect_done(struct here *h, int64_t id, int64_t samples)
{
    struct json *doc;
    expect_state(h, id, "done");
    const struct json *row = job_row(h, id, &doc);
    assert_int_equal(json_i64(json_find(row, "samples"), -1), samples);
    assert_int_equal(json_i64(json_find(row, "done"), -1), samples);
    json_free(doc);
}

#define BATCH                                                                                           \
    "{\"kind\":\"batch\",\"model\":\"mnist\",\"data\":{\"name\":\"d\"},\"source\":\"pc\",\"batch\":64," \
    "\"outputs\":true,\"accuracy\":true"

/* A plan of two stages, on pc and on phone, made from the planner's own. free(). */
static char *two_stages(struct here *h, const char *first, const char *second)
{
    static const char ask[] =
        "{\"kind\":\"batch\",\"model\":\"mnist\",\"source\":\"pc\",\"batch\":64,\"microbatch\":8}";
    sched_plan(h->s, ask, sizeof(ask) - 1, on_text, h);
    wait_answer(h, 60000);
    struct json *doc = answer_json(h);
    struct plan *p = NULL;
    struct yk_diag why = {0};
    if (plan_from_json(doc, &p, &why))
        fail_msg("plan: %s", why.text);
    json_free(doc);
    int32_t last = 0;
    for (int32_t i = 0; i < p->pipelines[0].n_stages; i++)
        last = YK_MAX(last, p->pipelines[0].stages[i].nodes[p->pipelines[0].stages[i].n_nodes - 1].last);
    struct yk_buf b = {0};
    yk_buf_printf(&b,
        "{\"model\":\"mnist\",\"graph\":{\"use\":\"infer\",\"hash\":\"%s\"},\"microbatch\":8,\"pipelines\":[{\"share\":"
        "1,"
        "\"depth\":4,\"order\":\"forward-first\",\"stages\":[{\"agent\":\"%s\",\"nodes\":[[0,%d]]},{\"agent\":\"%s\","
        "\"nodes\":[[%d,%d]]}]}],\"cuts\":[]}",
        p->graph_hash, first, last / 2, second, last / 2 + 1, last);
    yk_buf_add(&b, "", 1);
    plan_free(p);
    return (char *)b.data;
}

static int64_t submit_forced(struct here *h, const char *first, const char *second)
{
    char *plan = two_stages(h, first, second);
    char *request = yk_xasprintf(BATCH ",\"plan\":%s}", plan);
    int64_t id = submit(h, request);
    free(plan);
    free(request);
    return id;
}

#endif
