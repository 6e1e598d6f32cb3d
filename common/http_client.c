#include "common/http.h"

#include <http_parser.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define DIAL_US 5000000
#define READ_BYTES ((size_t)64 << 10)

struct http_client {
    struct net *net;
    char host[128], stream_url[140];
    struct net_conn *conn;
    bool fresh; /* conn has not answered anything yet */
    bool dialing, sending, closed;

    /* The call in progress. */
    http_parser parser;
    struct net_timer *timer;
    struct yk_buf head;
    struct net_iov iov[2];
    uint8_t rx[READ_BYTES];
    struct http_answer *answer;
    size_t limit;
    char content_type[128];
    char field[32];
    bool field_open, over, head_only;
    bool complete;   /* the answer is there */
    bool keep;       /* and the server goes on */
    bool answered;   /* a byte of an answer came */
    bool behind;     /* bytes that nobody asked for: the connection is not used again */
    yk_err body_err; /* why a callback stopped the parser */
    yk_err err;
    char text[256];
};

static void finish(struct http_client *c, yk_err err, const char *text)
{
    if (c->over)
        return;
    c->over = true;
    c->err = err;
    snprintf(c->text, sizeof c->text, "%s", text);
    net_timer_cancel(c->timer);
    c->timer = NULL;
    net_stop(c->net);
}

static void append(char *to, size_t size, const char *at, size_t len)
{
    size_t have = strlen(to);
    len = YK_MIN(len, size - have - 1);
    memcpy(to + have, at, len);
    to[have + len] = '\0';
}

static int on_header_field(http_parser *p, const char *at, size_t len)
{
    struct http_client *c = p->data;
    if (!c->field_open)
        c->field[0] = '\0';
    c->field_open = true;
    append(c->field, sizeof c->field, at, len);
    return 0;
}

static int on_header_value(http_parser *p, const char *at, size_t len)
{
    struct http_client *c = p->data;
    c->field_open = false;
    if (strcasecmp(c->field, "content-type") == 0)
        append(c->content_type, sizeof c->content_type, at, len);
    return 0;
}

static int on_headers_complete(http_parser *p)
{
    struct http_client *c = p->data;
    if (!c->head_only && p->content_length != UINT64_MAX && p->content_length > c->limit) {
        c->body_err = YK_LIMIT;
        return -1;
    }
    return c->head_only; /* 1: no body follows, whatever its length says */
}

static int on_body(http_parser *p, const char *at, size_t len)
{
    struct http_client *c = p->data;
    if (len > c->limit - c->answer->body.len) {
        c->body_err = YK_LIMIT;
        return -1;
    }
    yk_buf_add(&c->answer->body, at, len);
    if (c->answer->body.failed)
        c->body_err = YK_NOMEM;
    return c->answer->body.failed ? -1 : 0;
}

static int on_message_complete(http_parser *p)
{
    struct http_client *c = p->data;
    if (p->status_code / 100 == 1) { /* 100 Continue and its like: the answer is still to come */
        c->content_type[0] = '\0';
        return 0;
    }
    c->complete = true;
    c->keep = http_should_keep_alive(p);
    http_parser_pause(p, 1);
    return 0;
}

static const http_parser_settings settings = {.on_header_field = on_header_field,
    .on_header_value = on_header_value,
    .on_headers_complete = on_headers_complete,
    .on_body = on_body,
    .on_message_complete = on_message_complete};

static void on_read(void *arg, yk_err err, size_t n)
{
    struct http_client *c = arg;
    if (c->over)
        return;
    size_t used = 0;
    if (!err)
        used = http_parser_execute(&c->parser, &settings, (const char *)c->rx, n);
    else if (err == YK_CLOSED) /* an answer without a length ends here */
        http_parser_execute(&c->parser, &settings, NULL, 0);
    c->answered |= n > 0;
    if (c->complete) {
        c->answer->status = c->parser.status_code;
        c->behind = !err && used != n;
        /* A server that goes on has read all of the request: the sender only has to hear of it, and then the connection
         * can be kept. */
        if (!c->sending || !c->keep || err)
            finish(c, YK_OK, "");
    } else if (err) {
        finish(c, err, "the connection ended before the answer");
    } else if (c->body_err == YK_LIMIT) {
        char text[100];
        snprintf(text, sizeof text, "the answer is over its limit of %zu bytes", c->limit);
        finish(c, YK_LIMIT, text);
    } else if (c->body_err) {
        finish(c, c->body_err, "no memory for the answer");
    } else if (used != n) {
        finish(c, YK_FORMAT, "the answer is not HTTP");
    } else {
        net_recv(c->conn, c->rx, sizeof c->rx, on_read, c);
    }
}

static void on_sent(void *arg, yk_err err, size_t n)
{
    struct http_client *c = arg;
    (void)n;
    c->sending = false;
    if (c->complete) {
        finish(c, YK_OK, "");
        return;
    }
    /* A server that refused the request early has answered all the same: the reader decides. */
    if (err && c->fresh)
        return;
    if (err)
        finish(c, err, "the connection ended while sending");
}

static void talk(struct http_client *c)
{
    c->sending = true;
    net_send(c->conn, c->iov, c->iov[1].len ? 2 : 1, on_sent, c);
    net_recv(c->conn, c->rx, sizeof c->rx, on_read, c);
}

static void on_dial(void *arg, yk_err err, struct net_conn *conn)
{
    struct http_client *c = arg;
    c->dialing = false;
    if (c->closed) {
        net_conn_close(conn);
        free(c);
        return;
    }
    if (c->over) {
        net_conn_close(conn);
        return;
    }
    if (err) {
        finish(c, err, yk_err_text(err));
        return;
    }
    c->conn = conn;
    c->fresh = true;
    talk(c);
}

static void on_timeout(void *arg)
{
    struct http_client *c = arg;
    c->timer = NULL;
    if (c->complete)
        finish(c, YK_OK, "");
    else
        finish(c, YK_TIMEOUT, "no answer in time");
}

yk_err http_client_open(struct net *net, const char *url, struct http_client **out, struct yk_diag *why)
{
    bool mem = strncmp(url, "mem://", 6) == 0;
    const char *host = url + (mem ? 6 : 7);
    if ((!mem && strncmp(url, "http://", 7) != 0) || strlen(url) > 120 || strcspn(host, "/") == 0 ||
        strpbrk(host, " \t\r\n"))
        return yk_fail(why, YK_INVAL, "'%.200s' is not http://HOST:PORT", url);
    struct http_client *c = yk_xalloc(sizeof *c);
    c->net = net;
    snprintf(c->host, sizeof c->host, "%s", host);
    c->host[strcspn(c->host, "/")] = '\0';
    snprintf(c->stream_url, sizeof c->stream_url, "%s://%s", mem ? "mem" : "tcp", c->host);
    *out = c;
    return YK_OK;
}

void http_client_close(struct http_client *c)
{
    if (!c)
        return;
    net_conn_close(c->conn);
    yk_buf_free(&c->head);
    c->closed = true;
    if (!c->dialing) /* else the answer of the dial frees it */
        free(c);
}

static yk_err call_once(struct http_client *c, int64_t timeout_ms)
{
    c->complete = c->over = c->field_open = c->answered = c->behind = c->keep = false;
    c->body_err = YK_OK;
    c->content_type[0] = '\0';
    http_parser_init(&c->parser, HTTP_RESPONSE);
    c->parser.data = c;
    c->timer = net_timer(c->net, timeout_ms * 1000, on_timeout, c);
    if (c->conn)
        talk(c);
    else if (!c->dialing) { /* else the dial of a call that timed out is under way, and serves this one */
        c->dialing = true;
        net_dial(c->net, c->stream_url, DIAL_US, on_dial, c);
    }
    net_run(c->net);
    if (!c->over)
        finish(c, YK_CANCELED, "interrupted");
    if (c->err || c->sending || !c->keep || c->behind) {
        net_conn_close(c->conn);
        c->conn = NULL;
        c->sending = false;
    }
    return c->err;
}

yk_err http_client_call(struct http_client *c, const char *method, const char *path, const char *content_type,
    const void *body, size_t len, size_t answer_limit, int64_t timeout_ms, struct http_answer *out, struct yk_diag *why)
{
    *out = (struct http_answer){0};
    c->answer = out;
    c->limit = answer_limit;
    c->head_only = strcmp(method, "HEAD") == 0;
    yk_buf_free(&c->head);
    yk_buf_printf(&c->head, "%s %s HTTP/1.1\r\nHost: %s\r\nContent-Length: %zu\r\n", method, path, c->host, len);
    if (content_type)
        yk_buf_printf(&c->head, "Content-Type: %s\r\n", content_type);
    yk_buf_add(&c->head, "\r\n", 2);
    if (c->head.failed)
        return yk_fail(why, YK_NOMEM, "no memory for a request");
    c->iov[0] = (struct net_iov){c->head.data, c->head.len};
    c->iov[1] = (struct net_iov){body, len};
    if (strcmp(method, "POST") == 0) { /* a lost answer must not submit a job twice */
        net_conn_close(c->conn);
        c->conn = NULL;
    }
    bool reused = c->conn != NULL;
    c->fresh = !reused;
    yk_err err = call_once(c, timeout_ms);
    /* The server may have ended a kept connection just then: one more try on a new one, if nothing was answered. */
    if (err == YK_CLOSED && reused && !c->answered)
        err = call_once(c, timeout_ms);
    c->answer = NULL;
    out->content_type = c->content_type;
    if (err) {
        yk_buf_free(&out->body);
        return yk_fail(why, err, "http://%s%.200s: %s", c->host, path, c->text);
    }
    return YK_OK;
}
