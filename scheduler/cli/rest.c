#include "scheduler/cli/rest.h"

#include "common/hash.h"
#include "common/http.h"
#include "scheduler/cli/progress.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define PART_BYTES ((size_t)4 << 20)
#define ANSWER_LIMIT ((size_t)64 << 20)
#define OUTPUT_LIMIT ((size_t)8 << 30)
#define CALL_TIMEOUT_MS 600000 /* adding a model imports it; planning may profile agents */

struct cli_rest {
    struct net *net;
    struct http_client *client;
};

void cli_rest_close(struct cli_rest *r)
{
    if (!r)
        return;
    http_client_close(r->client);
    net_close(r->net);
    free(r);
}

static yk_err connect_once(struct cli *c, struct yk_diag *why)
{
    if (c->rest)
        return YK_OK;
    struct cli_rest *r = yk_xalloc(sizeof *r);
    yk_err err = net_nng_open(&r->net, why);
    if (!err)
        err = http_client_open(r->net, c->o.rest, &r->client, why);
    if (err) {
        cli_rest_close(r);
        return err;
    }
    c->rest = r;
    return YK_OK;
}

/* An error answer's own words. */
static yk_err answer_error(const struct http_answer *a, const char *path, struct yk_diag *why)
{
    struct json *doc = NULL;
    yk_err err = YK_INTERNAL;
    if (json_parse((const char *)a->body.data, a->body.len, &doc, NULL) == YK_OK && json_find(doc, "text")) {
        err = yk_err_from_name(json_str(json_find(doc, "error"), ""));
        yk_fail(why, err, "%s", json_str(json_find(doc, "text"), ""));
    } else {
        yk_fail(why, err, "%s answered with status %d", path, a->status);
    }
    json_free(doc);
    return err ? err : YK_INTERNAL;
}

static yk_err call(struct cli *c, const char *method, const char *path, const char *type, const void *body, size_t len,
    size_t limit, struct http_answer *out, struct yk_diag *why)
{
    yk_err err = connect_once(c, why);
    if (err)
        return err;
    err = http_client_call(c->rest->client, method, path, type, body, len, limit, CALL_TIMEOUT_MS, out, why);
    if (err == YK_REFUSED)
        return yk_fail(why, err, "no scheduler at %s: start `yoked`, or name another with --rest=URL", c->o.rest);
    if (err)
        return err;
    if (out->status >= 400) {
        err = answer_error(out, path, why);
        yk_buf_free(&out->body);
    }
    return err;
}

yk_err cli_rest_call(struct cli *c, const char *method, const char *path, const struct yk_buf *body, struct json **doc,
    struct yk_diag *why)
{
    struct http_answer a;
    if (body && body->failed)
        return yk_fail(why, YK_NOMEM, "no memory for the request");
    yk_err err = call(c, method, path, body ? "application/json" : NULL, body ? body->data : NULL, body ? body->len : 0,
        ANSWER_LIMIT, &a, why);
    if (err)
        return err;
    *doc = NULL;
    if (a.body.len && (err = json_parse((const char *)a.body.data, a.body.len, doc, why)))
        yk_wrap(why, err, "the answer of %s", path);
    yk_buf_free(&a.body);
    return err;
}

yk_err cli_rest_download(struct cli *c, const char *path, struct yk_buf *out, struct yk_diag *why)
{
    struct http_answer a;
    yk_err err = call(c, "GET", path, NULL, NULL, 0, OUTPUT_LIMIT, &a, why);
    if (!err)
        *out = a.body;
    return err;
}

/* ---- uploads ---- */

static yk_err upload(
    struct cli *c, const char *label, const uint8_t *data, size_t len, const char *hash, struct yk_diag *why)
{
    char path[160];
    struct json *state = NULL;
    struct progress bar;
    snprintf(path, sizeof path, "/v1/blobs/%s", hash);
    yk_err err = cli_rest_call(c, "GET", path, NULL, &state, why);
    if (err && err != YK_NOTFOUND)
        return err;
    size_t have = (size_t)json_i64(json_find(state, "have"), 0);
    bool complete = json_bool(json_find(state, "complete"), false);
    json_free(state);
    if (complete)
        return YK_OK;
    if (have > len)
        have = 0;
    progress_start(&bar, c->tty, label);
    do {
        size_t part = YK_MIN(len - have, PART_BYTES);
        struct http_answer a;
        snprintf(path, sizeof path, "/v1/blobs/%s?offset=%zu&total=%zu", hash, have, len);
        err = call(c, "PUT", path, "application/octet-stream", data + have, part, ANSWER_LIMIT, &a, why);
        if (err)
            break;
        yk_buf_free(&a.body);
        have += part;
        if (len > 2 * PART_BYTES)
            progress_show(&bar, (int64_t)have, (int64_t)len, "uploading");
    } while (have < len);
    progress_end(&bar);
    return err ? yk_wrap(why, err, "uploading %s", label) : YK_OK;
}

yk_err cli_rest_upload(
    struct cli *c, const char *label, const uint8_t *data, size_t len, char hash[65], struct yk_diag *why)
{
    hash_hex(data, len, hash);
    return upload(c, label, data, len, hash, why);
}

yk_err cli_rest_upload_file(struct cli *c, const char *path, char hash[65], struct yk_diag *why)
{
    struct stat st;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return yk_fail(why, yk_err_from_errno(errno), "cannot open %s: %s", path, strerror(errno));
    if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode) || st.st_size == 0) {
        close(fd);
        return yk_fail(why, YK_INVAL, "%s is not a file with something in it", path);
    }
    void *map = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    close(fd);
    if (map == MAP_FAILED)
        return yk_fail(why, yk_err_from_errno(errno), "cannot map %s: %s", path, strerror(errno));
    yk_err err = cli_rest_upload(c, path, map, (size_t)st.st_size, hash, why);
    munmap(map, (size_t)st.st_size);
    return err;
}
