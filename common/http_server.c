#include "common/http.h"

#include "common/json.h"

#include <ctype.h>
#include <http_parser.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define HEADER_LIMIT ((size_t)16 << 10)
#define MAX_HEADERS 64
#define READ_BYTES ((size_t)16 << 10)
#define DEFAULT_BODY ((size_t)1 << 20)

struct pair {
    size_t name, value; /* offsets into text */
};

struct connection {
    struct http_request request; /* first: http_reply gets this back */
    struct http_server *server;
    struct connection *next, **link;
    struct net_conn *conn;
    struct net_timer *timer;
    http_parser parser;
    char peer[80];

    uint8_t rx[READ_BYTES];
    size_t rx_at, rx_len;
    bool receiving;

    struct yk_buf text; /* url and headers of the request, NUL-ended pieces */
    struct pair headers[MAX_HEADERS];
    int n_headers;
    size_t url_len, header_bytes;
    enum { AT_NOTHING, AT_NAME, AT_VALUE } at;
    struct yk_buf body;
    size_t max_body;
    bool started;  /* a byte of a request came */
    bool complete; /* it is with the handler */
    bool replied, close_after;
    int refuse_status; /* found while parsing; answered when the parser returns */
    char refuse_text[200];

    struct yk_buf reply_head;
    struct yk_buf reply_body;
    const void *borrowed;
    size_t reply_len, reply_at;
    net_fn release;
    void *release_arg;
    bool sending, dead;
    int busy;
};

struct http_server {
    struct net *net;
    struct net_listener *listener;
    const struct http_on *on;
    void *arg;
    struct http_limits limits;
    struct connection *connections;
    int n;
    char url[128];
};

static void read_more(struct connection *c);
static void parse(struct connection *c);

/* ---- life of a connection ---- */

static void drop_reply(struct connection *c)
{
    if (c->release)
        c->release(c->release_arg);
    c->release = NULL;
    c->borrowed = NULL;
    yk_buf_free(&c->reply_head);
    yk_buf_free(&c->reply_body);
}

static void end_connection(struct connection *c)
{
    if (c->dead)
        return;
    c->dead = true;
    net_timer_cancel(c->timer);
    c->timer = NULL;
    net_conn_close(c->conn);
    c->conn = NULL;
    if (c->complete && !c->replied)
        c->server->on->vanished(c->server->arg, &c->request);
    drop_reply(c);
    *c->link = c->next;
    if (c->next)
        c->next->link = c->link;
    c->server->n--;
    if (c->busy == 0) {
        yk_buf_free(&c->text);
        yk_buf_free(&c->body);
        free(c);
    }
}

static void leave(struct connection *c)
{
    if (--c->busy == 0 && c->dead) {
        yk_buf_free(&c->text);
        yk_buf_free(&c->body);
        free(c);
    }
}

static void on_deadline(void *arg)
{
    struct connection *c = arg;
    c->timer = NULL;
    if (c->started && !c->complete && !c->replied) {
        c->close_after = true;
        c->busy++;
        http_reply_error(&c->request, 408, "TIMEOUT", "the request did not arrive in time");
        leave(c);
        return;
    }
    end_connection(c);
}

static void set_deadline(struct connection *c, int64_t ms)
{
    net_timer_cancel(c->timer);
    c->timer = ms > 0 ? net_timer(c->server->net, ms * 1000, on_deadline, c) : NULL;
}

static void next_request(struct connection *c)
{
    drop_reply(c);
    yk_buf_free(&c->text);
    yk_buf_free(&c->body);
    c->n_headers = 0;
    c->url_len = c->header_bytes = 0;
    c->at = AT_NOTHING;
    c->started = c->complete = c->replied = false;
    c->refuse_status = 0;
    c->max_body = DEFAULT_BODY;
    c->request = (struct http_request){.peer = c->peer, .method = "", .path = "", .query = ""};
    set_deadline(c, c->server->limits.idle_ms);
}

/* ---- parsing ---- */

static int refuse(struct connection *c, int status, const char *text)
{
    if (!c->refuse_status) {
        c->refuse_status = status;
        snprintf(c->refuse_text, sizeof c->refuse_text, "%s", text);
    }
    return -1;
}

static int more_header(struct connection *c, const char *at, size_t len)
{
    c->header_bytes += len;
    if (c->header_bytes > HEADER_LIMIT)
        return refuse(c, 431, "headers over the limit of 16384 bytes");
    if (memchr(at, 0, len))
        return refuse(c, 400, "a NUL byte in the headers");
    yk_buf_add(&c->text, at, len);
    return c->text.failed ? refuse(c, 500, "no memory") : 0;
}

static int on_url(http_parser *p, const char *at, size_t len)
{
    struct connection *c = p->data;
    c->url_len += len;
    return more_header(c, at, len);
}

static int on_header_field(http_parser *p, const char *at, size_t len)
{
    struct connection *c = p->data;
    if (c->at != AT_NAME) {
        if (c->n_headers == MAX_HEADERS)
            return refuse(c, 431, "more than 64 headers");
        yk_buf_add(&c->text, "", 1);
        c->headers[c->n_headers++] = (struct pair){c->text.len, 0};
        c->at = AT_NAME;
    }
    return more_header(c, at, len);
}

static int on_header_value(http_parser *p, const char *at, size_t len)
{
    struct connection *c = p->data;
    if (c->at != AT_VALUE) {
        yk_buf_add(&c->text, "", 1);
        c->headers[c->n_headers - 1].value = c->text.len;
        c->at = AT_VALUE;
    }
    return more_header(c, at, len);
}

static int on_headers_complete(http_parser *p)
{
    struct connection *c = p->data;
    yk_buf_add(&c->text, "", 1);
    if (c->text.failed)
        return refuse(c, 500, "no memory");
    char *url = (char *)c->text.data;
    if (c->n_headers == 0)
        url[c->url_len] = '\0';
    c->request.method = http_method_str((enum http_method)p->method);
    c->request.path = url;
    char *question = strchr(url, '?');
    if (question) {
        *question = '\0';
        c->request.query = question + 1;
    }
    if (p->http_major != 1 || p->http_minor > 1)
        return refuse(c, 505, "HTTP/1.0 and 1.1 only");
    if (p->upgrade || p->method == HTTP_CONNECT)
        return refuse(c, 400, "no upgrade and no CONNECT here");
    if (url[0] != '/')
        return refuse(c, 400, "the request target must be a path");
    if (http_header(&c->request, "Transfer-Encoding"))
        return refuse(c, 411, "send a Content-Length; Transfer-Encoding is not taken");
    if (p->http_minor == 1 && !http_header(&c->request, "Host"))
        return refuse(c, 400, "a Host header is needed");
    bool has_body = p->content_length != UINT64_MAX;
    c->request.content_length = has_body && p->content_length <= INT64_MAX ? (int64_t)p->content_length : 0;
    c->server->on->headers(c->server->arg, &c->request, &c->max_body);
    if (c->replied || c->dead) {
        c->close_after = true;
        return -1;
    }
    if (has_body && p->content_length > c->max_body) {
        char text[120];
        snprintf(text, sizeof text, "a body of %llu bytes; the limit here is %zu",
            (unsigned long long)p->content_length, c->max_body);
        return refuse(c, 413, text);
    }
    set_deadline(c, c->server->limits.body_ms);
    return 0;
}

static int on_body(http_parser *p, const char *at, size_t len)
{
    struct connection *c = p->data;
    if (c->body.len + len > c->max_body)
        return refuse(c, 413, "the body is over its limit");
    yk_buf_add(&c->body, at, len);
    set_deadline(c, c->server->limits.body_ms);
    return c->body.failed ? refuse(c, 500, "no memory for the body") : 0;
}

static int on_message_complete(http_parser *p)
{
    struct connection *c = p->data;
    c->complete = true;
    c->close_after = !http_should_keep_alive(p);
    http_parser_pause(p, 1);
    return 0;
}

static const http_parser_settings settings = {.on_url = on_url,
    .on_header_field = on_header_field,
    .on_header_value = on_header_value,
    .on_headers_complete = on_headers_complete,
    .on_body = on_body,
    .on_message_complete = on_message_complete};

/* Runs the parser over what was read, until a request is whole. */
static void parse(struct connection *c)
{
    c->busy++;
    while (!c->dead && !c->complete && !c->replied && c->rx_len) {
        if (!c->started) {
            c->started = true;
            set_deadline(c, c->server->limits.header_ms);
        }
        size_t used = http_parser_execute(&c->parser, &settings, (const char *)c->rx + c->rx_at, c->rx_len);
        if (c->dead)
            break;
        c->rx_at += used;
        c->rx_len -= YK_MIN(used, c->rx_len);
        enum http_errno e = HTTP_PARSER_ERRNO(&c->parser);
        if (c->replied)
            break;
        if (c->refuse_status || (e != HPE_OK && e != HPE_PAUSED) || (c->parser.upgrade && !c->complete)) {
            c->close_after = true;
            c->complete = false;
            if (c->refuse_status)
                http_reply_error(&c->request, c->refuse_status, c->refuse_status == 500 ? "INTERNAL" : "INVAL", "%s",
                    c->refuse_text);
            else
                http_reply_error(&c->request, 400, "FORMAT", "not a request: %s", http_errno_description(e));
            break;
        }
        if (c->complete) {
            http_parser_pause(&c->parser, 0);
            set_deadline(c, 0);
            c->request.body = c->body.data;
            c->request.body_len = c->body.len;
            c->server->on->request(c->server->arg, &c->request);
        }
    }
    if (!c->dead && !c->replied && !c->complete)
        read_more(c);
    else if (!c->dead && c->complete && !c->replied)
        read_more(c); /* to notice a client that goes */
    leave(c);
}

static void on_read(void *arg, yk_err err, size_t n)
{
    struct connection *c = arg;
    c->receiving = false;
    if (err) {
        /* What was asked and is being answered may still be wanted: half-closed clients read on. */
        if (c->replied && c->sending) {
            c->close_after = true;
            return;
        }
        end_connection(c);
        return;
    }
    c->rx_len += n;
    if (c->complete || c->replied)
        return; /* pipelined: parsed after the reply */
    parse(c);
}

static void read_more(struct connection *c)
{
    if (c->receiving || c->dead)
        return;
    if (c->rx_at && c->rx_len)
        memmove(c->rx, c->rx + c->rx_at, c->rx_len);
    c->rx_at = 0;
    if (c->rx_len == sizeof c->rx)
        return;
    c->receiving = true;
    net_recv(c->conn, c->rx + c->rx_len, sizeof c->rx - c->rx_len, on_read, c);
}

/* ---- replies ---- */

static const char *reason(int status)
{
    switch (status) {
#define X(num, name, text) \
    case num:              \
        return #text;
        HTTP_STATUS_MAP(X)
#undef X
    default:
        return "Unknown";
    }
}

#define REPLY_CHUNK ((size_t)256 << 10)

static void reply_go(struct connection *c, bool first);

static void on_sent(void *arg, yk_err err, size_t n)
{
    struct connection *c = arg;
    (void)n;
    c->sending = false;
    if (err) {
        end_connection(c);
        return;
    }
    if (c->reply_at < c->reply_len) {
        reply_go(c, false);
        return;
    }
    if (c->close_after) {
        end_connection(c);
        return;
    }
    next_request(c);
    http_parser_init(&c->parser, HTTP_REQUEST);
    c->parser.data = c;
    parse(c);
}

static void reply_go(struct connection *c, bool first)
{
    struct net_iov iov[2];
    int n = 0;
    if (first)
        iov[n++] = (struct net_iov){c->reply_head.data, c->reply_head.len};
    size_t take = YK_MIN(c->reply_len - c->reply_at, REPLY_CHUNK);
    const uint8_t *from = c->borrowed ? c->borrowed : c->reply_body.data;
    if (take)
        iov[n++] = (struct net_iov){from + c->reply_at, take};
    c->reply_at += take;
    c->sending = true;
    set_deadline(c, c->server->limits.body_ms);
    net_send(c->conn, iov, n, on_sent, c);
}

static void reply(struct connection *c, int status, const char *content_type)
{
    bool head = strcmp(c->request.method, "HEAD") == 0;
    c->replied = true;
    yk_buf_printf(&c->reply_head,
        "HTTP/1.1 %d %s\r\nContent-Type: %s\r\nContent-Length: %zu\r\nCache-Control: no-store\r\n"
        "X-Content-Type-Options: nosniff\r\n%s\r\n",
        status, reason(status), content_type, c->reply_len, c->close_after ? "Connection: close\r\n" : "");
    if (head)
        c->reply_at = c->reply_len;
    if (c->reply_head.failed || c->reply_body.failed)
        end_connection(c);
    else
        reply_go(c, true);
}

void http_reply(struct http_request *r, int status, const char *content_type, const void *body, size_t len)
{
    struct connection *c = (struct connection *)r;
    yk_buf_add(&c->reply_body, body, len);
    c->reply_len = len;
    c->reply_at = 0;
    reply(c, status, content_type);
}

void http_reply_borrowed(struct http_request *r, int status, const char *content_type, const void *body, size_t len,
    net_fn release, void *arg)
{
    struct connection *c = (struct connection *)r;
    c->borrowed = body;
    c->reply_len = len;
    c->reply_at = 0;
    c->release = release;
    c->release_arg = arg;
    reply(c, status, content_type);
}

void http_reply_error(struct http_request *r, int status, const char *error, const char *fmt, ...)
{
    struct yk_buf body = {0};
    struct json_out out;
    char text[1200];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    json_out_init(&out, &body, 0);
    json_open(&out, '{');
    json_put_key(&out, "error");
    json_put_str(&out, error);
    json_put_key(&out, "text");
    json_put_str(&out, text);
    json_close(&out, '}');
    http_reply(r, status, "application/json", body.data, body.len);
    yk_buf_free(&body);
}

/* ---- the server ---- */

static void on_accept(void *arg, struct net_conn *conn)
{
    struct http_server *s = arg;
    struct connection *c = yk_try_alloc(1, sizeof *c);
    if (!c) {
        net_conn_close(conn);
        return;
    }
    c->server = s;
    c->conn = conn;
    c->next = s->connections;
    c->link = &s->connections;
    if (c->next)
        c->next->link = &c->next;
    s->connections = c;
    s->n++;
    snprintf(c->peer, sizeof c->peer, "%s", net_peer(conn));
    http_parser_init(&c->parser, HTTP_REQUEST);
    c->parser.data = c;
    next_request(c);
    if (s->n > s->limits.max_connections) {
        c->close_after = true;
        http_reply_error(&c->request, 503, "BUSY", "more than %d connections", s->limits.max_connections);
        return;
    }
    read_more(c);
}

yk_err http_server_open(struct net *net, const char *url, const struct http_on *on, void *arg,
    const struct http_limits *limits, struct http_server **out, struct yk_diag *why)
{
    struct http_server *s = yk_xalloc(sizeof *s);
    char stream_url[128];
    s->net = net;
    s->on = on;
    s->arg = arg;
    if (limits)
        s->limits = *limits;
    s->limits.header_ms = s->limits.header_ms ? s->limits.header_ms : 10000;
    s->limits.body_ms = s->limits.body_ms ? s->limits.body_ms : 30000;
    s->limits.idle_ms = s->limits.idle_ms ? s->limits.idle_ms : 60000;
    s->limits.max_connections = s->limits.max_connections ? s->limits.max_connections : 256;
    yk_err err = YK_OK;
    if (strncmp(url, "http://", 7) == 0)
        snprintf(stream_url, sizeof stream_url, "tcp://%.100s", url + 7);
    else if (strncmp(url, "mem://", 6) == 0)
        snprintf(stream_url, sizeof stream_url, "%.100s", url);
    else
        err = yk_fail(why, YK_INVAL, "'%s': REST takes http://HOST:PORT", url);
    if (!err)
        err = net_listen(net, stream_url, on_accept, s, &s->listener, why);
    if (err) {
        free(s);
        return err;
    }
    const char *bound = net_listener_url(s->listener);
    const char *rest = strstr(bound, "://");
    snprintf(s->url, sizeof s->url, "http%.110s", rest ? rest : "");
    *out = s;
    return YK_OK;
}

const char *http_server_url(const struct http_server *s)
{
    return s->url;
}

int http_server_connections(const struct http_server *s)
{
    return s->n;
}

void http_server_close(struct http_server *s)
{
    if (!s)
        return;
    net_listener_close(s->listener);
    while (s->connections)
        end_connection(s->connections);
    free(s);
}

/* ---- asking a request ---- */

const char *http_header(const struct http_request *r, const char *name)
{
    const struct connection *c = (const struct connection *)r;
    for (int i = 0; i < c->n_headers; i++)
        if (strcasecmp((const char *)c->text.data + c->headers[i].name, name) == 0)
            return c->headers[i].value ? (const char *)c->text.data + c->headers[i].value : "";
    return NULL;
}

static int hex_digit(char ch)
{
    return isdigit((unsigned char)ch)    ? ch - '0'
           : isxdigit((unsigned char)ch) ? (tolower((unsigned char)ch) - 'a') + 10
                                         : -1;
}

static bool decode(const char *at, size_t len, bool plus, char *out, size_t size)
{
    size_t n = 0;
    for (size_t i = 0; i < len; i++, n++) {
        int value = (unsigned char)at[i];
        if (at[i] == '%') {
            if (len - i < 3)
                return false;
            int a = hex_digit(at[i + 1]), b = hex_digit(at[i + 2]);
            if (a < 0 || b < 0)
                return false;
            value = a * 16 + b;
            i += 2;
        } else if (plus && at[i] == '+') {
            value = ' ';
        }
        if (value == 0 || n + 1 >= size)
            return false;
        out[n] = (char)value;
    }
    out[n] = '\0';
    return true;
}

bool http_query(const struct http_request *r, const char *key, char *out, size_t size)
{
    size_t len = strlen(key);
    for (const char *at = r->query; *at;) {
        size_t n = strcspn(at, "&");
        if (n > len && strncmp(at, key, len) == 0 && at[len] == '=')
            return decode(at + len + 1, n - len - 1, true, out, size);
        at += n + (at[n] == '&');
    }
    return false;
}

bool http_segment(const struct http_request *r, int i, char *out, size_t size)
{
    const char *at = r->path;
    for (; *at == '/'; i--) {
        at++;
        size_t n = strcspn(at, "/");
        if (i == 0) {
            if (!decode(at, n, false, out, size))
                return false;
            return out[0] && !strchr(out, '/') && strcmp(out, ".") != 0 && strcmp(out, "..") != 0;
        }
        at += n;
    }
    return false;
}

int http_status_of(yk_err err)
{
    switch (err) {
    case YK_OK:
        return 200;
    case YK_INVAL:
    case YK_FORMAT:
    case YK_UNSUPPORTED:
    case YK_INFEASIBLE:
        return 400;
    case YK_AUTH:
        return 401;
    case YK_PERM:
        return 403;
    case YK_NOTFOUND:
        return 404;
    case YK_EXISTS:
    case YK_STATE:
    case YK_STALE:
        return 409;
    case YK_LIMIT:
        return 413;
    case YK_BUSY:
        return 503;
    case YK_TIMEOUT:
        return 504;
    case YK_NOSPC:
        return 507;
    default:
        return 500;
    }
}
