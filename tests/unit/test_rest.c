/* REST over a net in memory: what it answers, and what it does not let in. */
#include <malloc.h>

#include "scheduler/columns.h"
#include "tests/sched_fixture.h"

/* One raw exchange: what is said, byte for byte, and all that comes back until the server closes or falls silent. */
struct talk {
    struct net_conn *conn;
    const char *say;
    size_t len;
    char *got;
    size_t n;
    bool closed, sent;
    char in[4096];
};

static void said(void *arg, yk_err err, size_t n)
{
    struct talk *t = arg;
    (void)n;
    t->sent = !err;
}

static void heard(void *arg, yk_err err, size_t n)
{
    struct talk *t = arg;
    if (err) {
        t->closed = true;
        return;
    }
    t->got = yk_xrealloc(t->got, t->n + n + 1);
    memcpy(t->got + t->n, t->in, n);
    t->n += n;
    t->got[t->n] = 0;
    net_recv(t->conn, t->in, sizeof(t->in), heard, t);
}

static void dialled(void *arg, yk_err err, struct net_conn *conn)
{
    struct talk *t = arg;
    if (err)
        return;
    t->conn = conn;
    if (t->len) {
        struct net_iov iov = {t->say, t->len};
        net_send(conn, &iov, 1, said, t);
    }
    net_recv(conn, t->in, sizeof(t->in), heard, t);
}

static void talk_end(struct talk *t)
{
    net_conn_close(t->conn);
    free(t->got);
    memset(t, 0, sizeof(*t));
}

static int status_of(const struct talk *t)
{
    return t->got && strncmp(t->got, "HTTP/1.1 ", 9) == 0 ? atoi(t->got + 9) : 0;
}

static const char *body_of(const struct talk *t)
{
    const char *b = t->got ? strstr(t->got, "\r\n\r\n") : NULL;
    return b ? b + 4 : "";
}

static void talk(struct here *h, const char *say, size_t len, int64_t ms, struct talk *t)
{
    *t = (struct talk){.say = say, .len = len};
    net_dial(h->net, "mem://rest", 1000000, dialled, t);
    for (int64_t i = 0; i < ms && !(t->n && strstr(t->got, "\r\n\r\n")) && !t->closed; i++)
        run_ms(h, 1);
    run_ms(h, 20);
}

/* A well-formed request with its usual headers; more: further header lines, each ending in \r\n. */
static int ask(struct here *h, const char *method, const char *path, const char *more, const char *body, struct talk *t)
{
    char *text = yk_xasprintf("%s %s HTTP/1.1\r\nHost: localhost:7711\r\n%sContent-Length: %zu\r\n\r\n%s", method, path,
        more, strlen(body), body);
    talk(h, text, strlen(text), 60000, t);
    free(text);
    t->say = NULL;
    return status_of(t);
}

#define AS_JSON "Content-Type: application/json\r\n"

static struct json *json_of(const struct talk *t)
{
    struct json *doc = NULL;
    struct yk_diag why = {0};
    if (json_parse(body_of(t), strlen(body_of(t)), &doc, &why))
        fail_msg("not JSON (%s): %s", why.text, t->got ? t->got : "nothing");
    return doc;
}

/* The status, and an error object that says something about the thing. */
static void expect_error(struct here *h, int status, const char *says, const char *method, const char *path,
    const char *more, const char *body)
{
    struct talk t;
    int got = ask(h, method, path, more, body, &t);
    if (got != status)
        fail_msg("%s %s: %d, not %d: %s", method, path, got, status, body_of(&t));
    struct json *doc = json_of(&t);
    const char *text = json_str(json_find(doc, "text"), "");
    assert_true(strlen(json_str(json_find(doc, "error"), "")) > 0);
    if (!strstr(text, says))
        fail_msg("%s %s: '%s' does not say '%s'", method, path, text, says);
    json_free(doc);
    talk_end(&t);
}

static void listings(void **state)
{
    struct here *h = *state;
    struct talk t;
    char path[64];
    add_model(h);
    fake_start(&h->pc);
    run_ms(h, 1000);
    for (const struct columns *c = columns_all; c->listing; c++) {
        snprintf(path, sizeof(path), "/v1/%s", c->listing);
        assert_int_equal(ask(h, "GET", path, "", "", &t), 200);
        struct json *doc = json_of(&t);
        assert_int_equal(json_kind(doc), JSON_ARRAY);
        for (size_t i = 0; i < json_len(doc); i++)
            for (int k = 0; k < c->n; k++)
                assert_string_equal(json_key(json_at(doc, i), (size_t)k), c->at[k].name);
        if (strcmp(c->listing, "agents") == 0 || strcmp(c->listing, "models") == 0)
            assert_int_equal(json_len(doc), 1);
        json_free(doc);
        talk_end(&t);
    }
    assert_int_equal(ask(h, "GET", "/v1/status", "", "", &t), 200);
    struct json *doc = json_of(&t);
    assert_int_equal(json_i64(json_find(doc, "agents_alive"), 0), 1);
    json_free(doc);
    talk_end(&t);
    assert_int_equal(ask(h, "GET", "/metrics", "", "", &t), 200);
    assert_non_null(strstr(body_of(&t), "yoke_agents 1"));
    talk_end(&t);
}

static void who_may_ask(void **state)
{
    struct here *h = *state;
    struct talk t;
    static const char *const hosts[] = {"localhost", "127.0.0.1:7711", "[::1]:7711", "LOCALHOST:1"};
    static const char *const bad_hosts[] = {"evil.example", "localhost.evil.example", "127.0.0.1.evil.example",
        "10.0.0.1", "localhost:80x", "", "[::1", "127.0.0.10"};
    char text[256];
    for (size_t i = 0; i < YK_COUNT(hosts); i++) {
        snprintf(text, sizeof(text), "GET /v1/agents HTTP/1.1\r\nHost: %s\r\n\r\n", hosts[i]);
        talk(h, text, strlen(text), 1000, &t);
        assert_int_equal(status_of(&t), 200);
        talk_end(&t);
    }
    for (size_t i = 0; i < YK_COUNT(bad_hosts); i++) {
        snprintf(text, sizeof(text), "GET /v1/agents HTTP/1.1\r\nHost: %s\r\n\r\n", bad_hosts[i]);
        talk(h, text, strlen(text), 1000, &t);
        if (status_of(&t) != 403 && status_of(&t) != 400)
            fail_msg("Host '%s' got %d", bad_hosts[i], status_of(&t));
        talk_end(&t);
    }
    talk(h, "GET /v1/agents HTTP/1.1\r\n\r\n", 27, 1000, &t);
    assert_true(status_of(&t) == 403 || status_of(&t) == 400);
    talk_end(&t);
    expect_error(h, 403, "origin", "GET", "/v1/agents", "Origin: http://evil.example\r\n", "");
    expect_error(h, 403, "origin", "GET", "/v1/agents", "Origin: null\r\n", "");
    expect_error(h, 403, "origin", "POST", "/v1/jobs", AS_JSON "Origin: http://localhost.evil.example\r\n", "{}");
    assert_int_equal(ask(h, "GET", "/v1/agents", "Origin: http://localhost:7711\r\n", "", &t), 200);
    talk_end(&t);
}

static void bodies(void **state)
{
    struct here *h = *state;
    struct talk t;
    /* Content-Type: what a form of a foreign page can send is not taken. */
    expect_error(h, 415, "application/json", "POST", "/v1/jobs", "Content-Type: text/plain\r\n", "{}");
    expect_error(h, 415, "application/json", "POST", "/v1/jobs", "", "{}");
    expect_error(
        h, 415, "application/json", "POST", "/v1/models", "Content-Type: application/jsonx\r\n", "{\"name\":\"x\"}");
    /* Not JSON, not an object, too deep. */
    static const char *const bad[] = {"", "{", "nonsense", "[1,2", "{\"a\":1}{",
        "{\"kind\":\"batch\",\"kind\":\"batch\"}", "null", "7", "[]", "{\"kind\":NaN}"};
    static const char *const paths[] = {"/v1/jobs", "/v1/plan", "/v1/models"};
    for (size_t p = 0; p < YK_COUNT(paths); p++)
        for (size_t i = 0; i < YK_COUNT(bad); i++)
            expect_error(h, 400, "", "POST", paths[p], AS_JSON, bad[i]);
    char *deep = yk_xalloc(20001);
    memset(deep, '[', 20000);
    expect_error(h, 413, "64", "POST", "/v1/jobs", AS_JSON, deep); /* over the limit of depth */
    free(deep);
    /* Too large: refused by what the header promises, before a byte of it is read. */
    static const char large[] =
        "POST /v1/models HTTP/1.1\r\nHost: localhost\r\n" AS_JSON "Content-Length: 999999999999\r\n\r\n{";
    talk(h, large, sizeof(large) - 1, 3000, &t); /* it reads on for a moment, so that the refusal arrives */
    assert_int_equal(status_of(&t), 413);
    run_ms(h, 2000); /* it reads on for a moment, so that the refusal arrives */
    assert_true(t.closed);
    talk_end(&t);
    /* Chunked: 411, and what follows is not run as a request. */
    static const char chunked[] =
        "POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\n" AS_JSON "Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n"
        "GET /v1/status HTTP/1.1\r\nHost: localhost\r\n\r\n";
    talk(h, chunked, sizeof(chunked) - 1, 1000, &t);
    run_ms(h, 100);
    assert_int_equal(status_of(&t), 411);
    run_ms(h, 2000); /* it reads on for a moment, so that the refusal arrives */
    assert_true(t.closed);
    assert_null(strstr(t.got, "agents_alive"));
    talk_end(&t);
    /* Both at once is how requests are smuggled. */
    static const char both[] = "POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\n" AS_JSON
                               "Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n{}";
    talk(h, both, sizeof(both) - 1, 1000, &t);
    assert_true(status_of(&t) == 411 || status_of(&t) == 400);
    run_ms(h, 2000); /* it reads on for a moment, so that the refusal arrives */
    assert_true(t.closed);
    talk_end(&t);
    /* A body on a GET that takes none. */
    assert_int_equal(ask(h, "GET", "/v1/agents", AS_JSON, "{}", &t), 413);
    talk_end(&t);
    /* It promises a body and never sends it. */
    static const char slow[] = "POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\n" AS_JSON "Content-Length: 100\r\n\r\n{";
    talk(h, slow, sizeof(slow) - 1, 120000, &t);
    run_ms(h, 2000); /* it reads on for a moment, so that the refusal arrives */
    assert_true(t.closed);
    talk_end(&t);
}

static void paths(void **state)
{
    struct here *h = *state;
    static const char *const none[] = {"/", "/v1", "/v1/", "/v1/nothing", "/v2/agents", "/v1/agents/7", "/v1/jobs/1/x",
        "/v1/../etc/passwd", "/v1/%2e%2e/%2e%2e/etc/passwd", "/v1/jobs/..%2f..%2fetc/output", "//etc/passwd",
        "/v1/blobs/%00", "/v1/blobs/../../etc/passwd", "/v1/sqlite_master", "/v1/agents%00", "/v1/v_agents",
        "/v1/agents;drop"};
    struct talk t;
    for (size_t i = 0; i < YK_COUNT(none); i++) {
        int status = ask(h, "GET", none[i], "", "", &t);
        if (status != 404 && status != 400)
            fail_msg("%s got %d", none[i], status);
        assert_null(strstr(t.got, "root:"));
        talk_end(&t);
    }
    expect_error(h, 404, "job", "GET", "/v1/jobs/1", "", "");
    expect_error(h, 404, "job", "GET", "/v1/jobs/9223372036854775807", "", "");
    expect_error(h, 400, "number", "GET", "/v1/jobs/-1", "", "");
    expect_error(h, 400, "number", "GET", "/v1/jobs/1e3", "", "");
    expect_error(h, 400, "number", "GET", "/v1/jobs/99999999999999999999", "", "");
    expect_error(h, 404, "", "GET", "/v1/jobs/1/plan", "", "");
    expect_error(h, 404, "", "GET", "/v1/jobs/1/output", "", "");
    expect_error(h, 404, "", "GET", "/v1/jobs/1/events", "", "");
    expect_error(h, 404, "job", "DELETE", "/v1/jobs/1", "", "");
    expect_error(h, 400, "cursor", "GET", "/v1/jobs/1/events?cursor=-1", "", "");
    expect_error(h, 400, "wait_ms", "GET", "/v1/jobs/1/events?wait_ms=99999999", "", "");
    expect_error(h, 405, "DELETE", "DELETE", "/v1/agents", "", "");
    expect_error(h, 405, "PUT", "PUT", "/v1/jobs", AS_JSON, "");
    struct talk allowed;
    assert_int_equal(ask(h, "PUT", "/v1/jobs", AS_JSON, "", &allowed), 405);
    assert_non_null(strstr(allowed.got, "\r\nAllow: POST, GET, HEAD\r\n"));
    talk_end(&allowed);
    assert_int_equal(ask(h, "HEAD", "/v1/agents", "", "", &allowed), 200);
    talk_end(&allowed);
    expect_error(h, 404, "no job 1", "GET", "/v1/jobs/1/plan", "", "");
    expect_error(h, 400, "empty", "POST", "/v1/jobs", AS_JSON, "");
    expect_error(h, 400, "hex", "GET", "/v1/blobs/abc", "", "");
    expect_error(h, 404, "", "PUT", "/v1/blobs/..%2f..", "Content-Type: application/octet-stream\r\n", "x");
    talk(h, "nonsense\r\n\r\n", 12, 3000, &t);
    assert_int_equal(status_of(&t), 400);
    run_ms(h, 2000); /* it reads on for a moment, so that the refusal arrives */
    assert_true(t.closed);
    talk_end(&t);
}

static void models(void **state)
{
    struct here *h = *state;
    char hash[65], body[256];
    upload(h, "not a model", 11, hash);
    snprintf(body, sizeof(body), "{\"name\":\"x\",\"blob\":\"%s\"}", hash);
    expect_error(h, 400, "", "POST", "/v1/models", AS_JSON, body);
    expect_error(h, 400, "name", "POST", "/v1/models", AS_JSON, "{\"blob\":\"x\"}");
    expect_error(h, 400, "blob", "POST", "/v1/models", AS_JSON, "{\"name\":\"x\"}");
    expect_error(h, 400, "colour", "POST", "/v1/models", AS_JSON, "{\"name\":\"x\",\"blob\":\"y\",\"colour\":1}");
    expect_error(
        h, 400, "size", "POST", "/v1/models", AS_JSON, "{\"name\":\"x\",\"blob\":\"y\",\"preprocess\":{\"size\":1}}");
    expect_error(
        h, 400, "preprocess", "POST", "/v1/models", AS_JSON, "{\"name\":\"x\",\"blob\":\"y\",\"preprocess\":[224]}");
    snprintf(body, sizeof(body), "{\"name\":\"../x\",\"blob\":\"%s\"}", hash);
    expect_error(h, 400, "name", "POST", "/v1/models", AS_JSON, body);
    memset(hash, '0', 64);
    snprintf(body, sizeof(body), "{\"name\":\"x\",\"blob\":\"%s\"}", hash);
    expect_error(h, 404, "upload", "POST", "/v1/models", AS_JSON, body);
    snprintf(
        body, sizeof(body), "{\"kind\":\"batch\",\"model\":\"nothing\",\"data\":{\"name\":\"d\"},\"source\":\"pc\"}");
    expect_error(h, 404, "nothing", "POST", "/v1/jobs", AS_JSON, body);
    expect_error(h, 404, "nothing", "POST", "/v1/plan", AS_JSON, "{\"kind\":\"infer\",\"model\":\"nothing\"}");
}

/* Parts of an upload, its state between them, and what does not fit. */
static void blobs(void **state)
{
    struct here *h = *state;
    char hash[65], path[160];
    static const char data[] = "some content that comes in two parts";
    size_t n = sizeof(data) - 1;
    struct talk t;
    hash_hex(data, n, hash);
#define BYTES "Content-Type: application/octet-stream\r\n"
    char first[32] = "";
    memcpy(first, data, 20);
    snprintf(path, sizeof(path), "/v1/blobs/%s?offset=0&total=%zu", hash, n);
    assert_int_equal(ask(h, "PUT", path, BYTES, first, &t), 200);
    struct json *doc = json_of(&t);
    assert_int_equal(json_i64(json_find(doc, "have"), 0), 20);
    assert_false(json_bool(json_find(doc, "complete"), true));
    json_free(doc);
    talk_end(&t);
    snprintf(path, sizeof(path), "/v1/blobs/%s", hash);
    assert_int_equal(ask(h, "GET", path, "", "", &t), 200);
    doc = json_of(&t);
    assert_int_equal(json_i64(json_find(doc, "have"), 0), 20);
    json_free(doc);
    talk_end(&t);
    snprintf(path, sizeof(path), "/v1/blobs/%s?offset=30&total=%zu", hash, n);
    struct talk gap;
    assert_true(ask(h, "PUT", path, BYTES, data + 30, &gap) >= 400);
    talk_end(&gap);
    expect_error(h, 415, "octet-stream", "PUT", path, AS_JSON, "x");
    snprintf(path, sizeof(path), "/v1/blobs/%s?offset=-1&total=%zu", hash, n);
    expect_error(h, 400, "offset", "PUT", path, BYTES, "x");
    snprintf(path, sizeof(path), "/v1/blobs/%s?offset=99999999999999999999&total=5", hash);
    expect_error(h, 400, "offset", "PUT", path, BYTES, "x");
    snprintf(path, sizeof(path), "/v1/blobs/%s?offset=20&total=%zu", hash, n);
    assert_int_equal(ask(h, "PUT", path, BYTES, data + 20, &t), 200);
    doc = json_of(&t);
    assert_true(json_bool(json_find(doc, "complete"), false));
    assert_int_equal(json_i64(json_find(doc, "have"), 0), n);
    json_free(doc);
    talk_end(&t);
    /* Again, as a client that did not hear the answer does. */
    assert_int_equal(ask(h, "PUT", path, BYTES, data + 20, &t), 200);
    talk_end(&t);
    /* Another content under this name. */
    hash_hex("x", 1, hash);
    snprintf(path, sizeof(path), "/v1/blobs/%s?offset=0&total=1", hash);
    expect_error(h, 400, "upload it again", "PUT", path, BYTES, "y");
    char *large = yk_xasprintf(
        "PUT %s HTTP/1.1\r\nHost: localhost\r\n" BYTES "Content-Length: %d\r\n\r\n", path, (int)BLOB_PART_LIMIT + 1);
    talk(h, large, strlen(large), 1000, &t);
    assert_int_equal(status_of(&t), 413);
    talk_end(&t);
    free(large);
}

/* The whole of a job through REST. */
static void a_job(void **state)
{
    struct here *h = *state;
    struct talk t;
    char path[64];
    add_model(h);
    fake_start(&h->pc);
    fake_start(&h->phone);
    run_ms(h, 3000);
    assert_int_equal(ask(h, "POST", "/v1/plan", AS_JSON,
                         "{\"kind\":\"batch\",\"model\":\"mnist\",\"source\":\"pc\",\"batch\":64}", &t),
        200);
    struct json *doc = json_of(&t);
    assert_true(json_len(json_find(doc, "pipelines")) >= 1);
    assert_non_null(json_find(doc, "predicted"));
    assert_non_null(json_find(doc, "forms"));
    json_free(doc);
    talk_end(&t);
    assert_int_equal(ask(h, "POST", "/v1/jobs", AS_JSON, BATCH "}", &t), 201);
    doc = json_of(&t);
    int64_t id = json_i64(json_find(doc, "job"), 0);
    json_free(doc);
    talk_end(&t);
    snprintf(path, sizeof(path), "/v1/jobs/%lld/output", (long long)id);
    expect_error(h, 404, "output", "GET", path, "", "");
    wait_over(h, id, 60000);
    snprintf(path, sizeof(path), "/v1/jobs/%lld", (long long)id);
    assert_int_equal(ask(h, "GET", path, "", "", &t), 200);
    doc = json_of(&t);
    assert_string_equal(json_str(json_find(doc, "state"), ""), "done");
    json_free(doc);
    talk_end(&t);
    snprintf(path, sizeof(path), "/v1/jobs/%lld/events?cursor=0&wait_ms=1000", (long long)id);
    assert_int_equal(ask(h, "GET", path, "", "", &t), 200);
    doc = json_of(&t);
    assert_true(json_len(json_find(doc, "events")) >= 4);
    json_free(doc);
    talk_end(&t);
    snprintf(path, sizeof(path), "/v1/jobs/%lld/plan", (long long)id);
    assert_int_equal(ask(h, "GET", path, "", "", &t), 200);
    json_free(json_of(&t));
    talk_end(&t);
    snprintf(path, sizeof(path), "/v1/jobs/%lld/output", (long long)id);
    assert_int_equal(ask(h, "GET", path, "", "", &t), 200);
    assert_memory_equal(body_of(&t), "\x93NUMPY", 6);
    talk_end(&t);
    snprintf(path, sizeof(path), "/v1/jobs/%lld", (long long)id);
    struct talk del;
    assert_true(ask(h, "DELETE", path, "", "", &del) == 409);
    talk_end(&del);
}

/* A thousand clients that connect, ask for something that takes time, and vanish. */
static void vanishing_clients(void **state)
{
    struct here *h = *state;
    static const char wait[] = "GET /v1/jobs/1/events?cursor=9999&wait_ms=30000 HTTP/1.1\r\nHost: localhost\r\n\r\n";
    static const char part[] =
        "POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\n" AS_JSON "Content-Length: 1000000\r\n\r\n{\"kind\":";
    static const char list[] = "GET /v1/agents HTTP/1.1\r\nHost: localhost\r\n\r\n";
    static const char *const say[] = {wait, part, list, ""};
    h->pc.node_ms = 1000;
    add_model(h);
    fake_start(&h->pc);
    run_ms(h, 2000);
    assert_int_equal(submit(h, BATCH "}"), 1);
    size_t before = 0;
    for (int i = 0; i < 1200; i++) {
        struct talk t = {.say = say[i % 4], .len = strlen(say[i % 4])};
        net_dial(h->net, "mem://rest", 1000000, dialled, &t);
        run_ms(h, i % 3);
        if (!t.conn)
            run_ms(h, 2);
        assert_non_null(t.conn);
        talk_end(&t);
        if (i == 199) {
            run_ms(h, 100);
            before = mallinfo2().uordblks;
        }
    }
    run_ms(h, 100);
    size_t after = mallinfo2().uordblks;
    if (after > before + 200000) /* the job itself goes on and keeps a little */
        fail_msg("%zu bytes in use, then %zu", before, after);
    struct talk t;
    assert_int_equal(ask(h, "GET", "/v1/agents", "", "", &t), 200);
    talk_end(&t);
}

static void off_loopback(void **state)
{
    struct here *h = *state;
    struct rest *r = NULL;
    static const char *const urls[] = {"http://0.0.0.0:7711", "http://10.1.2.3:80", "http://[::]:7711",
        "http://example.org:80", "http://127.0.0.1.example.org:80"};
    for (size_t i = 0; i < YK_COUNT(urls); i++) {
        struct yk_diag why = {0};
        assert_int_equal(rest_open(h->net, urls[i], h->s, &r, &why), YK_PERM);
        assert_non_null(strstr(why.text, "TLS"));
    }
}

int main(void)
{
    log_set_level(LOG_ERROR);
#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        T(listings),
        T(who_may_ask),
        T(bodies),
        T(paths),
        T(models),
        T(blobs),
        T(a_job),
        T(vanishing_clients),
        T(off_loopback),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
