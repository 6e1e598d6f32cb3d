#include "scheduler/rest.h"

#include "common/http.h"
#include "common/json.h"
#include "common/metrics.h"
#include "common/net_url.h"
#include "common/preprocess.h"
#include "scheduler/columns.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define JSON_LIMIT ((size_t)1 << 20)
#define JOB_LIMIT ((size_t)16 << 20) /* a plan of a large graph comes with a job */
#define STEPS_LIMIT 10000
#define WAIT_LIMIT_MS 30000

struct rest {
    struct net *net;
    struct sched *sched;
    struct http_server *server;
};

/* One request that waits for an answer. */
struct pending {
    struct rest *rest;
    struct http_request *request; /* NULL: the client went */
    int status;                   /* of success */
    struct sched_waiter *waiter;
};

/* A path is matched segment by segment: "*" takes any one. */
struct route {
    const char *method, *path;
    size_t max_body;
    const char *content_type; /* the body must have it; NULL: no body */
    void (*run)(struct rest *r, struct http_request *q);
};

static const struct route routes[];

const char *rest_url(const struct rest *r)
{
    return http_server_url(r->server);
}

/* ---- answers ---- */

static struct pending *wait_for(struct rest *r, struct http_request *q, int status)
{
    struct pending *p = yk_xalloc(sizeof *p);
    *p = (struct pending){.rest = r, .request = q, .status = status};
    q->user = p;
    return p;
}

static void reply_text(void *arg, yk_err err, const char *text)
{
    struct pending *p = arg;
    if (p->request && err)
        http_reply_error(
            p->request, http_status_of(err), yk_err_name(err), "%s", text && text[0] ? text : yk_err_text(err));
    else if (p->request)
        http_reply(p->request, p->status, "application/json", text, strlen(text));
    free(p);
}

static void reply_json(void *arg, yk_err err, char *json)
{
    reply_text(arg, err, err ? yk_err_text(err) : json);
    free(json);
}

static bool segment_id(struct http_request *q, int i, int64_t *id)
{
    char text[24], *end;
    if (!http_segment(q, i, text, sizeof text) || text[0] < '0' || text[0] > '9')
        return false;
    errno = 0;
    *id = strtoll(text, &end, 10);
    return !*end && !errno;
}

static int64_t query_i64(struct http_request *q, const char *key, int64_t otherwise)
{
    char text[24], *end;
    if (!http_query(q, key, text, sizeof text))
        return otherwise;
    errno = 0;
    int64_t v = strtoll(text, &end, 10);
    return *end || errno || end == text ? -1 : v;
}

/* ---- handlers ---- */

static void get_listing(struct rest *r, struct http_request *q)
{
    char name[32] = "";
    http_segment(q, 1, name, sizeof name);
    if (strcmp(name, "jobs") == 0)
        sched_jobs_list(r->sched, 0, reply_json, wait_for(r, q, 200));
    else
        store_list(sched_store(r->sched), name, 0, reply_json, wait_for(r, q, 200));
}

static void get_status(struct rest *r, struct http_request *q)
{
    char text[256];
    int n = snprintf(text, sizeof text,
        "{\"version\":\"%s\",\"term\":%lld,\"agents_alive\":%d,\"jobs_open\":%d,\"listen\":\"%s\"}", YOKE_VERSION,
        (long long)store_term(sched_store(r->sched)), fleet_alive(sched_fleet(r->sched)), sched_jobs_open(r->sched),
        sched_url(r->sched));
    http_reply(q, 200, "application/json", text, (size_t)n);
}

static void get_metrics(struct rest *r, struct http_request *q)
{
    struct yk_buf b = {0};
    (void)r;
    metrics_print(&b);
    http_reply(q, 200, "text/plain; version=0.0.4", b.data, b.len);
    yk_buf_free(&b);
}

static bool hash_segment(struct http_request *q, char hash[65])
{
    if (http_segment(q, 2, hash, 65) && hash_is_hex(hash))
        return true;
    http_reply_error(q, 400, "INVAL", "a blob is named by 64 lower-case hex digits, its SHA-256");
    return false;
}

static void get_blob(struct rest *r, struct http_request *q)
{
    char hash[65];
    if (hash_segment(q, hash))
        sched_blob_state(r->sched, hash, reply_text, wait_for(r, q, 200));
}

static void put_blob(struct rest *r, struct http_request *q)
{
    char hash[65];
    int64_t offset = query_i64(q, "offset", 0), total = query_i64(q, "total", (int64_t)q->body_len);
    if (!hash_segment(q, hash))
        return;
    if (offset < 0 || total < 0)
        http_reply_error(q, 400, "INVAL", "offset and total are numbers of bytes from 0");
    else
        sched_blob_part(r->sched, hash, offset, total, q->body, q->body_len, reply_text, wait_for(r, q, 200));
}

static void post_model(struct rest *r, struct http_request *q)
{
    static const char *const known[] = {"name", "blob", "preprocess", "temporary", NULL};
    struct json *doc = NULL;
    struct yk_diag why = {0};
    const char *name = NULL, *blob = NULL;
    char *preprocess = NULL;
    bool temporary = false;
    yk_err err = json_parse((const char *)q->body, q->body_len, &doc, &why);
    if (!err && json_kind(doc) != JSON_OBJECT)
        err = yk_fail(&why, YK_INVAL, "a model is an object {\"name\", \"blob\", \"preprocess\"}");
    if (!err)
        err = json_only(doc, known, &why);
    if (!err && (err = json_get_str(doc, "name", true, &name, &why)) == YK_NOTFOUND)
        err = yk_fail(&why, YK_INVAL, "name is missing");
    if (!err && (err = json_get_str(doc, "blob", true, &blob, &why)) == YK_NOTFOUND)
        err = yk_fail(&why, YK_INVAL, "blob is missing: the SHA-256 of the uploaded ONNX file");
    if (!err)
        err = preprocess_normal(json_find(doc, "preprocess"), &preprocess, &why);
    if (!err)
        err = json_get_bool(doc, "temporary", false, &temporary, &why);
    if (err)
        http_reply_error(q, http_status_of(err), yk_err_name(err), "%s", why.text);
    else
        sched_model_add(r->sched, name, blob, preprocess, temporary, reply_text, wait_for(r, q, 201));
    free(preprocess);
    json_free(doc);
}

static void get_model(struct rest *r, struct http_request *q)
{
    char name[512];
    struct yk_buf b = {0};
    struct yk_diag why = {0};
    yk_err err = YK_OK;
    if (!http_segment(q, 2, name, sizeof name))
        http_reply_error(q, 400, "INVAL", "the model's name is malformed");
    else if ((err = sched_model_describe(r->sched, name, &b, &why)))
        http_reply_error(q, http_status_of(err), yk_err_name(err), "%s", why.text);
    else
        http_reply(q, 200, "application/json", b.data, b.len);
    yk_buf_free(&b);
}

static void delete_model(struct rest *r, struct http_request *q)
{
    char name[512];
    if (http_segment(q, 2, name, sizeof name))
        sched_model_remove(r->sched, name, reply_text, wait_for(r, q, 200));
    else
        http_reply_error(q, 400, "INVAL", "the model's name is malformed");
}

static void post_plan(struct rest *r, struct http_request *q)
{
    sched_plan(r->sched, (const char *)q->body, q->body_len, reply_text, wait_for(r, q, 200));
}

static void post_job(struct rest *r, struct http_request *q)
{
    sched_submit(r->sched, (const char *)q->body, q->body_len, reply_text, wait_for(r, q, 201));
}

/* The one row of [row], or 404. */
static void reply_row(void *arg, yk_err err, char *json)
{
    struct pending *p = arg;
    size_t n = json ? strlen(json) : 0;
    if (!err && n <= 2) {
        reply_text(p, YK_NOTFOUND, "there is no such job");
    } else if (err) {
        reply_text(p, err, NULL);
    } else {
        json[n - 1] = '\0';
        reply_text(p, YK_OK, json + 1);
    }
    free(json);
}

static bool job_segment(struct http_request *q, int64_t *id)
{
    if (segment_id(q, 2, id))
        return true;
    http_reply_error(q, 400, "INVAL", "a job is named by its number");
    return false;
}

/* The number of a job that is or was, else the request is answered. */
static bool known_job(struct rest *r, struct http_request *q, int64_t *id)
{
    if (!job_segment(q, id))
        return false;
    if (sched_job_known(r->sched, *id))
        return true;
    http_reply_error(q, 404, "NOTFOUND", "there is no job %lld", (long long)*id);
    return false;
}

static void get_job(struct rest *r, struct http_request *q)
{
    int64_t id;
    if (job_segment(q, &id))
        sched_jobs_list(r->sched, id > 0 ? id : INT64_MAX, reply_row, wait_for(r, q, 200));
}

static void delete_job(struct rest *r, struct http_request *q)
{
    int64_t id;
    struct yk_diag why = {0};
    if (!job_segment(q, &id))
        return;
    yk_err err = sched_cancel(r->sched, id, &why);
    if (err)
        http_reply_error(q, http_status_of(err), yk_err_name(err), "%s", why.text);
    else
        sched_jobs_list(r->sched, id, reply_row, wait_for(r, q, 200));
}

static void reply_events(void *arg, yk_err err, const char *text)
{
    struct pending *p = arg;
    p->waiter = NULL;
    reply_text(p, err, text);
}

static void get_events(struct rest *r, struct http_request *q)
{
    int64_t id, cursor = query_i64(q, "cursor", 0), wait = query_i64(q, "wait_ms", 0);
    if (cursor < 0 || wait < 0 || wait > WAIT_LIMIT_MS) {
        http_reply_error(q, 400, "INVAL", "cursor is a number from 0, wait_ms from 0 to %d", WAIT_LIMIT_MS);
        return;
    }
    if (!known_job(r, q, &id))
        return;
    struct pending *p = wait_for(r, q, 200);
    p->waiter = sched_events(r->sched, id, cursor, wait, reply_events, p);
}

static void reply_plan(void *arg, yk_err err, char *json)
{
    reply_text(
        arg, err, err == YK_NOTFOUND ? "the job has no plan: it waits for one, or ended before it had one" : json);
    free(json);
}

static void get_plan(struct rest *r, struct http_request *q)
{
    int64_t id;
    if (known_job(r, q, &id))
        store_plan_of(sched_store(r->sched), id, reply_plan, wait_for(r, q, 200));
}

static void reply_request(void *arg, yk_err err, char *json)
{
    reply_text(arg, err, err == YK_NOTFOUND ? "the job is not in the database yet: ask again" : json);
    free(json);
}

static void get_request(struct rest *r, struct http_request *q)
{
    int64_t id;
    if (known_job(r, q, &id))
        store_request_of(sched_store(r->sched), id, reply_request, wait_for(r, q, 200));
}

static void get_steps(struct rest *r, struct http_request *q)
{
    int64_t id, from = query_i64(q, "from", 1), limit = query_i64(q, "limit", STEPS_LIMIT);
    if (from < 1 || limit < 1 || limit > STEPS_LIMIT)
        http_reply_error(q, 400, "INVAL", "from is a number from 1, limit from 1 to %d", STEPS_LIMIT);
    else if (known_job(r, q, &id))
        store_steps(sched_store(r->sched), id, from, limit, reply_json, wait_for(r, q, 200));
}

static void get_epochs(struct rest *r, struct http_request *q)
{
    int64_t id;
    if (known_job(r, q, &id))
        store_epochs(sched_store(r->sched), id, reply_json, wait_for(r, q, 200));
}

static void get_use(struct rest *r, struct http_request *q)
{
    int64_t id;
    if (known_job(r, q, &id))
        store_use(sched_store(r->sched), id, reply_json, wait_for(r, q, 200));
}

static void reply_timeline(void *arg, yk_err err, char *json)
{
    const char *rule = "the second step of each plan is measured, and its 10th, 100th, ... (of a batch job the first "
                       "microbatches, as step 1)";
    char *text = NULL;
    if (err == YK_NOTFOUND)
        text = json && json[0] ? yk_xasprintf("no such step of the job was measured; these were: %s (%s)", json, rule)
                               : yk_xasprintf("no step of the job was measured yet: %s", rule);
    reply_text(arg, err, err ? text : json);
    free(text);
    free(json);
}

static void get_timeline(struct rest *r, struct http_request *q)
{
    int64_t id, step = query_i64(q, "step", INT64_MIN);
    if (step < 1 && step != INT64_MIN)
        http_reply_error(q, 400, "INVAL", "step is a number from 1");
    else if (known_job(r, q, &id))
        store_timeline(sched_store(r->sched), id, step, reply_timeline, wait_for(r, q, 200));
}

struct mapped {
    void *data;
    size_t len;
};

static void unmap(void *arg)
{
    struct mapped *m = arg;
    munmap(m->data, m->len);
    free(m);
}

static void reply_file(struct rest *r, struct http_request *q, const char *file)
{
    char *path = sched_output_path(r->sched, file);
    struct stat st;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    void *data = fd >= 0 && fstat(fd, &st) == 0 && st.st_size > 0
                     ? mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0)
                     : MAP_FAILED;
    if (data == MAP_FAILED) {
        http_reply_error(q, 404, "NOTFOUND", "the output is not kept any more: outputs are removed after a day");
    } else {
        struct mapped *m = yk_xalloc(sizeof *m);
        *m = (struct mapped){data, (size_t)st.st_size};
        http_reply_borrowed(q, 200, "application/octet-stream", data, m->len, unmap, m);
    }
    if (fd >= 0)
        close(fd);
    free(path);
}

/* A request for one output of a job. */
struct wanted_output {
    struct rest *rest;
    struct pending *pending;
    int64_t job;
    char *name; /* NULL: the first */
};

static void on_outputs(void *arg, yk_err err, char *json)
{
    struct wanted_output *w = arg;
    struct http_request *q = w->pending->request;
    struct json *doc = NULL;
    const char *file = NULL;
    if (!err)
        err = json_parse(json, strlen(json), &doc, NULL);
    for (size_t i = 0; !err && i < json_len(doc) && !file; i++)
        if (!w->name || strcmp(json_str(json_find(json_at(doc, i), "name"), ""), w->name) == 0)
            file = json_str(json_find(json_at(doc, i), "file"), NULL);
    if (q && file && !strchr(file, '/'))
        reply_file(w->rest, q, file);
    else if (q && !err && w->name)
        http_reply_error(q, 404, "NOTFOUND", "job %lld has no output '%.80s'; /v1/jobs/%lld/outputs lists them",
            (long long)w->job, w->name, (long long)w->job);
    else if (q)
        http_reply_error(q, 404, "NOTFOUND",
            "job %lld has no output (it ended without one, still runs, or was not asked for)", (long long)w->job);
    json_free(doc);
    free(json);
    free(w->pending);
    free(w->name);
    free(w);
}

static void get_output(struct rest *r, struct http_request *q)
{
    int64_t id;
    char name[1024];
    if (!job_segment(q, &id))
        return;
    struct wanted_output *w = yk_xalloc(sizeof *w);
    *w = (struct wanted_output){.rest = r, .pending = wait_for(r, q, 200), .job = id};
    if (http_query(q, "name", name, sizeof name))
        w->name = yk_xstrdup(name);
    sched_outputs(r->sched, id, on_outputs, w);
}

static void get_outputs(struct rest *r, struct http_request *q)
{
    int64_t id;
    if (job_segment(q, &id))
        sched_outputs(r->sched, id, reply_json, wait_for(r, q, 200));
}

static void delete_outputs(struct rest *r, struct http_request *q)
{
    int64_t id;
    if (job_segment(q, &id))
        sched_outputs_remove(r->sched, id, reply_text, wait_for(r, q, 200));
}

/* ---- routing ---- */

#define JSON_TYPE "application/json"
static const struct route routes[] = {
    {"GET", "/v1/status", 0, NULL, get_status},
    {"GET", "/metrics", 0, NULL, get_metrics},
    {"POST", "/v1/models", JSON_LIMIT, JSON_TYPE, post_model},
    {"GET", "/v1/blobs/*", 0, NULL, get_blob},
    {"PUT", "/v1/blobs/*", BLOB_PART_LIMIT, "application/octet-stream", put_blob},
    {"GET", "/v1/models/*", 0, NULL, get_model},
    {"DELETE", "/v1/models/*", 0, NULL, delete_model},
    {"POST", "/v1/plan", JOB_LIMIT, JSON_TYPE, post_plan},
    {"POST", "/v1/jobs", JOB_LIMIT, JSON_TYPE, post_job},
    {"GET", "/v1/jobs/*", 0, NULL, get_job},
    {"DELETE", "/v1/jobs/*", 0, NULL, delete_job},
    {"GET", "/v1/jobs/*/events", 0, NULL, get_events},
    {"GET", "/v1/jobs/*/plan", 0, NULL, get_plan},
    {"GET", "/v1/jobs/*/request", 0, NULL, get_request},
    {"GET", "/v1/jobs/*/steps", 0, NULL, get_steps},
    {"GET", "/v1/jobs/*/epochs", 0, NULL, get_epochs},
    {"GET", "/v1/jobs/*/use", 0, NULL, get_use},
    {"GET", "/v1/jobs/*/timeline", 0, NULL, get_timeline},
    {"GET", "/v1/jobs/*/output", 0, NULL, get_output},
    {"GET", "/v1/jobs/*/outputs", 0, NULL, get_outputs},
    {"DELETE", "/v1/jobs/*/outputs", 0, NULL, delete_outputs},
};

static bool path_matches(const struct http_request *q, const char *pattern)
{
    int n = 0;
    for (const char *at = pattern; *at == '/'; n++) {
        char want[32], got[128];
        size_t len = strcspn(at + 1, "/");
        snprintf(want, sizeof want, "%.*s", (int)len, at + 1);
        if (!http_segment(q, n, got, sizeof got) || (strcmp(want, "*") != 0 && strcmp(want, got) != 0))
            return false;
        at += 1 + len;
    }
    const char *p = q->path;
    int have = 0;
    for (; *p; p++)
        have += *p == '/';
    return have == n;
}

static bool is_listing(const struct http_request *q)
{
    char name[32], first[8];
    return path_matches(q, "/*/*") && http_segment(q, 0, first, sizeof first) && strcmp(first, "v1") == 0 &&
           http_segment(q, 1, name, sizeof name) && columns_find(name);
}

/* What may be read may be asked for its head. */
static bool method_fits(const struct http_request *q, const char *method)
{
    return strcmp(method, q->method) == 0 || (strcmp(method, "GET") == 0 && strcmp(q->method, "HEAD") == 0);
}

static void add_allowed(struct http_request *q, const char *method)
{
    size_t at = strlen(q->allow);
    if (!strstr(q->allow, method))
        snprintf(q->allow + at, sizeof q->allow - at, "%s%s%s", at ? ", " : "", method,
            strcmp(method, "GET") == 0 ? ", HEAD" : "");
}

static void find_allowed(struct http_request *q)
{
    for (size_t i = 0; i < YK_COUNT(routes); i++)
        if (path_matches(q, routes[i].path))
            add_allowed(q, routes[i].method);
    if (is_listing(q))
        add_allowed(q, "GET");
}

static const struct route *find_route(const struct http_request *q, bool *known_path)
{
    static const struct route listing = {"GET", "", 0, NULL, get_listing};
    *known_path = false;
    for (size_t i = 0; i < YK_COUNT(routes); i++)
        if (path_matches(q, routes[i].path)) {
            *known_path = true;
            if (method_fits(q, routes[i].method))
                return &routes[i];
        }
    if (is_listing(q)) {
        *known_path = true;
        if (method_fits(q, "GET"))
            return &listing;
    }
    return NULL;
}

/* "127.0.0.1", "localhost" or "[::1]", with any port. */
static bool is_loopback(const char *host)
{
    static const char *const names[] = {"127.0.0.1", "localhost", "[::1]"};
    for (size_t i = 0; i < YK_COUNT(names); i++) {
        size_t n = strlen(names[i]);
        if (strncasecmp(host, names[i], n) == 0 &&
            (host[n] == '\0' || (host[n] == ':' && strspn(host + n + 1, "0123456789") == strlen(host + n + 1))))
            return true;
    }
    return false;
}

static bool same_origin(const char *origin)
{
    return strncmp(origin, "http://", 7) == 0 && is_loopback(origin + 7);
}

static void on_headers(void *arg, struct http_request *q, size_t *max_body)
{
    bool known;
    const char *host = http_header(q, "Host"), *origin = http_header(q, "Origin"),
               *type = http_header(q, "Content-Type");
    (void)arg;
    *max_body = 0;
    if (!host || !is_loopback(host)) {
        http_reply_error(q, 403, "PERM", "Host '%.100s' is not loopback, where this server answers", host ? host : "");
        return;
    }
    if (origin && !same_origin(origin)) {
        http_reply_error(q, 403, "PERM", "a page of another origin may not ask this server");
        return;
    }
    const struct route *route = find_route(q, &known);
    if (!route) {
        if (known) {
            find_allowed(q);
            http_reply_error(q, 405, "UNSUPPORTED", "%s takes %s, not %s", q->path, q->allow, q->method);
        } else {
            http_reply_error(q, 404, "NOTFOUND", "there is nothing at %.200s", q->path);
        }
        return;
    }
    *max_body = route->max_body;
    size_t n = route->content_type ? strlen(route->content_type) : 0;
    if (route->content_type && (!type || strncasecmp(type, route->content_type, n) != 0 || (type[n] && type[n] != ';')))
        http_reply_error(q, 415, "UNSUPPORTED", "%s takes Content-Type: %s", q->path, route->content_type);
}

static void on_request(void *arg, struct http_request *q)
{
    bool known;
    const struct route *route = find_route(q, &known);
    if (route)
        route->run(arg, q);
    else
        http_reply_error(q, 404, "NOTFOUND", "there is nothing at %.200s", q->path);
}

static void on_vanished(void *arg, struct http_request *q)
{
    struct pending *p = q->user;
    (void)arg;
    if (!p)
        return;
    p->request = NULL;
    if (p->waiter) {
        sched_events_cancel(p->waiter);
        free(p);
    }
}

static const struct http_on http_on = {on_headers, on_request, on_vanished};

yk_err rest_open(struct net *net, const char *url, struct sched *sched, struct rest **out, struct yk_diag *why)
{
    yk_err bad = strncmp(url, "http://", 7) == 0 ? net_url_check("rest", "http", url, why) : YK_OK;
    if (bad)
        return bad;
    struct rest *r = yk_xalloc(sizeof *r);
    r->net = net;
    r->sched = sched;
    yk_err err = http_server_open(net, url, &http_on, r, NULL, &r->server, why);
    if (err)
        free(r);
    else
        *out = r;
    return err;
}

void rest_close(struct rest *r)
{
    if (!r)
        return;
    http_server_close(r->server);
    free(r);
}
