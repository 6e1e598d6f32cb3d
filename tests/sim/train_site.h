/* A whole fleet in one process on virtual time: the real scheduler and up to eight real agents, which train. A test
 * gives a model and data, says how it is split, and looks at the losses and the bytes of the trained model. */
#ifndef YK_TEST_TRAIN_SITE_H
#define YK_TEST_TRAIN_SITE_H

#include "agent/agent.h"
#include "agent/emulate.h"
#include "common/npy.h"
#include "common/onnx.h"
#include "scheduler/cli/networks.h"
#include "tests/sched_fixture.h"

#include <math.h>
#include <sys/stat.h>

#define SITE_AGENTS 8
#define SITE_STAGES 8

struct site {
    struct here *h;
    struct agent *agent[SITE_AGENTS];
    struct storage *storage[SITE_AGENTS];
    int64_t memory[SITE_AGENTS]; /* budget; 0: 1 GiB */
    struct agent_emulate link;   /* of every agent */
    int n_agents, n_sets;
    char root[80];
    /* of the newest plan */
    struct plan *learned; /* whose graph and forms the forced ones take */
    int64_t forward, batch, microbatch;
    char train[512]; /* the object of the request */
    char codec[16];  /* of forced plans and their requests; "" is fp32 */
};

struct site_stage {
    int agent;
    int64_t last; /* forward node; -1: the graph's */
};

struct site_result {
    char digest[65];
    int n;
    double loss[512];
};

static inline void site_start(struct site *s, int i)
{
    char name[16], url[24];
    const char *roots[] = {s->root, NULL};
    struct yk_diag why = {0};
    snprintf(name, sizeof name, "a%d", i);
    snprintf(url, sizeof url, "mem://a%d", i);
    if (!s->storage[i])
        assert_int_equal(storage_mem_open(&s->storage[i]), YK_OK);
    struct agent_config c = {.net = s->h->net,
        .emulate = &s->link,
        .storage = s->storage[i],
        .scheduler_url = "mem://yoked",
        .listen_url = url,
        .name = name,
        .threads = 1,
        .memory_bytes = s->memory[i] ? s->memory[i] : (int64_t)1 << 30,
        .data_roots = roots};
    if (agent_open(&c, &s->agent[i], &why))
        fail_msg("%s", why.text);
}

/* Until every pair has been measured. */
static inline void site_links(struct site *s)
{
    for (int ms = 0; ms < 300000 && (ms < 1000 || !fleet_links_ready(sched_fleet(s->h->s))); ms += 100)
        run_ms(s->h, 100);
    assert_true(fleet_links_ready(sched_fleet(s->h->s)));
}

static inline struct site *site_open_at(int agents, double bytes_per_s)
{
    struct site *s = yk_xalloc(sizeof *s);
    s->link = (struct agent_emulate){
        .bytes_per_s = bytes_per_s, .up_latency_ms = 0.3, .down_latency_ms = 0.2, .battery_frac = NAN};
    void *h;
    assert_int_equal(setup(&h), 0);
    s->h = h;
    snprintf(s->root, sizeof s->root, "%s/root", s->h->dir);
    assert_int_equal(mkdir(s->root, 0700), 0);
    s->n_agents = agents;
    for (int i = 0; i < agents; i++)
        site_start(s, i);
    site_links(s);
    return s;
}

/* A link of some speed: probes stay small, and messages take their turns. */
static inline struct site *site_open(int agents)
{
    return site_open_at(agents, 2e6);
}

static inline void site_close(struct site *s)
{
    void *h = s->h;
    for (int i = 0; i < SITE_AGENTS; i++)
        if (s->agent[i])
            agent_close(s->agent[i]);
    run_ms(s->h, 2000); /* what flushes ends */
    teardown(&h);
    for (int i = 0; i < SITE_AGENTS; i++)
        if (s->storage[i])
            s->storage[i]->ops->close(s->storage[i]);
    plan_free(s->learned);
    free(s);
}

/* ---- models and data ---- */

static inline void site_model(struct site *s, const char *name, const struct graph *g)
{
    struct yk_buf b = {0};
    char hash[65];
    assert_int_equal(onnx_export(g, &b, NULL), YK_OK);
    upload(s->h, b.data, b.len, hash);
    yk_buf_free(&b);
    sched_model_add(s->h->s, name, hash, NULL, false, on_text, s->h);
    wait_answer(s->h, 5000);
    json_free(answer_json(s->h));
}

static inline void site_network(struct site *s, const char *name, const char *kind, int64_t channels, int64_t size)
{
    struct networks_options n = {.classes = 5, .channels = channels, .height = size, .width = size, .seed = 4};
    struct graph *g;
    struct yk_diag why = {0};
    if (networks_make(kind, &n, &g, &why))
        fail_msg("%s", why.text);
    site_model(s, name, g);
    graph_close(g);
}

static inline void site_npy(
    const struct site *s, const char *name, const char *file, const struct shape *shape, const void *data)
{
    char path[160];
    struct yk_buf buf = {0};
    snprintf(path, sizeof path, "%s/%s", s->root, name);
    mkdir(path, 0700);
    snprintf(path, sizeof path, "%s/%s/%s.npy", s->root, name, file);
    assert_int_equal(npy_header(shape, &buf), YK_OK);
    yk_buf_add(&buf, data, (size_t)shape_bytes(shape));
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(buf.data, 1, buf.len, f), buf.len);
    fclose(f);
    yk_buf_free(&buf);
}

/* x.npy of n samples of these dims and y.npy with class ids below classes, that x tells something about. */
static inline void site_data(
    const struct site *s, const char *name, int64_t n, int rank, const int64_t *dims, int64_t classes)
{
    struct shape x = {.dtype = DT_F32, .rank = rank + 1, .dims = {n}}, y = {.dtype = DT_I64, .rank = 1, .dims = {n}};
    struct yk_rng r;
    memcpy(x.dims + 1, dims, (size_t)rank * sizeof *dims);
    int64_t each = shape_count(&x) / n;
    float *data = yk_xalloc((size_t)shape_bytes(&x));
    int64_t *ids = yk_xalloc((size_t)shape_bytes(&y));
    yk_rng_seed(&r, 21);
    for (int64_t i = 0; i < n; i++) {
        ids[i] = (int64_t)yk_rng_below(&r, (uint64_t)classes);
        for (int64_t k = 0; k < each; k++)
            data[i * each + k] = (float)(yk_rng_unit(&r) - 0.5 + 0.3 * (double)((k + ids[i]) % classes == 0));
    }
    site_npy(s, name, "x", &x, data);
    site_npy(s, name, "y", &y, ids);
    free(data);
    free(ids);
}

/* ---- plans ---- */

static inline char *site_request(const struct site *s, const char *model, const char *data, const char *plan)
{
    return yk_xasprintf("{\"kind\":\"train\",\"model\":\"%s\",\"source\":\"a0\",\"batch\":%lld,\"microbatch\":%lld,"
                        "\"data\":{\"name\":\"%s\"},\"train\":{%s}%s%s%s%s%s}",
        model, (long long)s->batch, (long long)s->microbatch, data, s->train,
        s->codec[0] ? ",\"codec\":[\"fp32\",\"" : "", s->codec, s->codec[0] ? "\"]" : "", plan ? ",\"plan\":" : "",
        plan ? plan : "");
}

/* Lets the planner plan, for the graph and the forms that forced plans take. */
static inline void site_learn(struct site *s, const char *model, int64_t batch, int64_t microbatch, const char *train)
{
    struct yk_diag why = {0};
    s->batch = batch;
    s->microbatch = microbatch;
    bool seeded = strstr(train, "seed") != NULL, saves = strstr(train, "checkpoint_every") != NULL;
    snprintf(s->train, sizeof s->train, "%s%s%s%s", seeded ? "" : "\"seed\":7,", saves ? "" : "\"checkpoint_every\":3",
        *train && !saves ? "," : "", train);
    char *request = site_request(s, model, "", NULL);
    sched_plan(s->h->s, request, strlen(request), on_text, s->h);
    wait_answer(s->h, 600000);
    struct json *doc = answer_json(s->h);
    plan_free(s->learned);
    s->learned = NULL;
    if (plan_from_json(doc, &s->learned, &why))
        fail_msg("%s", why.text);
    s->forward = json_i64(json_find(doc, "forward_nodes"), 0);
    assert_true(s->forward > 0);
    free(request);
    json_free(doc);
}

/* Forward nodes up to each stage's last. free(). */
static inline char *site_plan(const struct site *s, const struct site_stage *stages, int n, int depth)
{
    struct yk_buf b = {0};
    struct json_out o;
    json_out_init(&o, &b, 0);
    plan_to_json(s->learned, &o);
    char *forms = yk_xasprintf("%.*s", (int)b.len, (const char *)b.data), *at = strstr(forms, "\"forms\":");
    assert_non_null(at);
    char *end = strchr(at, ']');
    assert_non_null(end);
    end[1] = 0;
    b.len = 0;
    yk_buf_printf(&b,
        "{\"model\":\"%s\",\"graph\":{\"use\":\"train\",\"hash\":\"%s\"},%s,\"microbatch\":%lld,\"pipelines\":"
        "[{\"share\":1,\"depth\":%d,\"stages\":[",
        s->learned->model, s->learned->graph_hash, at, (long long)s->microbatch, depth);
    free(forms);
    for (int64_t i = 0, first = 0; i < n; i++) {
        int64_t last = stages[i].last < 0 ? s->forward - 1 : stages[i].last;
        yk_buf_printf(&b, "%s{\"agent\":\"a%d\",\"nodes\":[[%lld,%lld]]}", i ? "," : "", stages[i].agent,
            (long long)first, (long long)last);
        first = last + 1;
    }
    yk_buf_printf(&b, "]}],\"cuts\":[");
    for (int i = 0; s->codec[0] && i + 1 < n; i++)
        yk_buf_printf(
            &b, "%s{\"pipeline\":0,\"from\":%d,\"to\":%d,\"codec\":\"%s\"}", i ? "," : "", i, i + 1, s->codec);
    yk_buf_printf(&b, "]}");
    yk_buf_add(&b, "", 1);
    return (char *)b.data;
}

/* ---- jobs ---- */

static inline int64_t site_submit(struct site *s, const char *model, const char *data, const char *plan)
{
    char *request = site_request(s, model, data, plan);
    int64_t id = submit(s->h, request);
    free(request);
    return id;
}

static inline char *site_error(struct site *s, int64_t id)
{
    struct json *doc;
    const struct json *row = job_row(s->h, id, &doc);
    char *text = yk_xstrdup(json_str(json_find(row, "error"), ""));
    json_free(doc);
    return text;
}

static inline int64_t site_steps(struct site *s, int64_t id)
{
    store_steps(sched_store(s->h->s), id, 0, 1000, on_json, s->h);
    wait_answer(s->h, 1000);
    struct json *doc = answer_json(s->h);
    int64_t n = (int64_t)json_len(doc);
    json_free(doc);
    return n;
}

/* The losses of every step, which come in order and once, and the digest of the model; false: the job failed. */
static inline bool site_wait(struct site *s, int64_t id, struct site_result *out)
{
    struct json *doc;
    char file[40];
    *out = (struct site_result){.n = 0};
    for (int64_t ms = 0; ms < 600000 && !job_over(s->h, id); ms += 100)
        run_ms(s->h, 100);
    if (!job_over(s->h, id)) {
        sched_events(s->h->s, id, 0, 0, on_text, s->h);
        wait_answer(s->h, 1000);
        fail_msg("job %lld does not end: %s", (long long)id, s->h->text);
    }
    if (!job_is(s->h, id, "done"))
        return false;
    store_steps(sched_store(s->h->s), id, 0, 1000, on_json, s->h);
    wait_answer(s->h, 1000);
    doc = answer_json(s->h);
    for (size_t i = 0; i < json_len(doc) && i < YK_COUNT(out->loss); i++) {
        assert_int_equal(json_i64(json_find(json_at(doc, i), "step"), -1), i + 1);
        out->loss[out->n++] = json_f64(json_find(json_at(doc, i), "loss"), NAN);
    }
    json_free(doc);
    snprintf(file, sizeof file, "job-%lld.onnx", (long long)id);
    char *path = sched_output_path(s->h->s, file);
    size_t len;
    assert_non_null(path);
    uint8_t *model = slurp(path, &len);
    hash_hex(model, len, out->digest);
    free(model);
    free(path);
    return true;
}

static inline void site_train(struct site *s, const char *model, const char *data, const struct site_stage *stages,
    int n, int depth, struct site_result *out)
{
    char *plan = site_plan(s, stages, n, depth);
    int64_t id = site_submit(s, model, data, plan);
    if (!site_wait(s, id, out)) {
        char *error = site_error(s, id);
        fail_msg("%s: %.600s", strstr(plan, "\"pipelines"), error);
    }
    free(plan);
}

static inline void site_same(const struct site_result *want, const struct site_result *got, const char *what)
{
    assert_int_equal(want->n, got->n);
    for (int i = 0; i < want->n; i++)
        if (memcmp(&want->loss[i], &got->loss[i], sizeof(double)) != 0)
            fail_msg("%s: the loss of step %d is %.17g, not %.17g", what, i, got->loss[i], want->loss[i]);
    if (strcmp(want->digest, got->digest) != 0)
        fail_msg("%s: all losses are equal, but not the trained model", what);
}

#endif
