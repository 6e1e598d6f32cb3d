/* The server: the life of its connections, bodies, deadlines and replies.
 *
 * A connection goes through: waiting for a request (idle_ms), its head (header_ms), its body (body_ms between bytes,
 * and BODY_BYTES_PER_S on the whole), with the handler (no deadline here: the handler has its own), the reply (body_ms
 * between chunks). After a refusal what still comes is thrown away for a second, so that the client can read why;
 * closing at once would reset the connection under the answer. */
#include "common/http_conn.h"

#include "common/json.h"
#include "common/metrics.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DEFAULT_BODY ((size_t)1 << 20)
#define BODY_BYTES_PER_S 4096 /* a body that comes slower than this on the whole is cut off */
#define LINGER_MS 1000        /* for a client to read its refusal before the connection is reset under it */
#define LINGER_BYTES ((size_t)64 << 20)
#define REFUSED_AT_ONCE 64   /* connections over the limit that get an answer before they are closed */
#define IDLE_SURE_US 1000000 /* idle for so long, a connection gives its place to a new one */
#define REPLY_CHUNK ((size_t)256 << 10)

struct http_server {
    struct net *net;
    struct net_listener *listener;
    const struct http_on *on;
    void *arg;
    struct http_limits limits;
    struct http_conn *connections;
    int n;
    char url[128];
};

static void read_more(struct http_conn *c);
static void parse(struct http_conn *c);
static void reply_go(struct http_conn *c, bool first);
static void refuse(struct http_conn *c);

/* ---- life of a connection ---- */

static void drop_reply(struct http_conn *c)
{
    if (c->release)
        c->release(c->release_arg);
    c->release = NULL;
    c->borrowed = NULL;
    yk_buf_free(&c->reply_head);
    yk_buf_free(&c->reply_body);
}

static void end_connection(struct http_conn *c)
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

static void leave(struct http_conn *c)
{
    if (--c->busy == 0 && c->dead) {
        yk_buf_free(&c->text);
        yk_buf_free(&c->body);
        free(c);
    }
}

static void on_deadline(void *arg)
{
    struct http_conn *c = arg;
    c->timer = NULL;
    if (c->started && !c->complete && !c->replied) {
        c->busy++;
        http_conn_refuse(c, 408, "the %s did not arrive in time", c->head_done ? "body" : "request");
        refuse(c);
        leave(c);
        return;
    }
    end_connection(c);
}

static void set_deadline(struct http_conn *c, int64_t ms)
{
    net_timer_cancel(c->timer);
    c->timer = ms > 0 ? net_timer(c->server->net, ms * 1000, on_deadline, c) : NULL;
}

static void next_request(struct http_conn *c)
{
    drop_reply(c);
    http_conn_begin(c);
    c->idle_us = net_now_us(c->server->net);
    set_deadline(c, c->server->limits.idle_ms);
}

/* ---- requests ---- */

static const char *refusal_name(int status)
{
    switch (status) {
    case 408:
        return "TIMEOUT";
    case 411:
    case 417:
        return "UNSUPPORTED";
    case 413:
    case 431:
        return "LIMIT";
    case 500:
        return "NOMEM";
    case 505:
        return "VERSION";
    default:
        return "FORMAT";
    }
}

static void refuse(struct http_conn *c)
{
    c->close_after = true;
    http_reply_error(&c->request, c->refuse_status, refusal_name(c->refuse_status), "%s", c->refuse_text);
}

static void on_continue_sent(void *arg, yk_err err, size_t n)
{
    struct http_conn *c = arg;
    (void)n;
    c->sending = false;
    if (err)
        end_connection(c);
    else if (c->reply_waits)
        reply_go(c, true);
}

static void body_deadline(struct http_conn *c)
{
    int64_t left_ms = (c->body_by_us - net_now_us(c->server->net)) / 1000;
    set_deadline(c, YK_MAX(YK_MIN(c->server->limits.body_ms, left_ms), (int64_t)1));
}

/* The head is whole: the caller's checks, then the limit of the body. */
static void begin_body(struct http_conn *c)
{
    size_t max_body = DEFAULT_BODY;
    bool keep = !c->close_after;
    c->close_after = true; /* if it is refused now */
    c->server->on->headers(c->server->arg, &c->request, &max_body);
    if (c->dead || c->replied)
        return;
    c->close_after = !keep;
    if ((uint64_t)c->request.content_length > max_body) {
        http_conn_refuse(
            c, 413, "a body of %lld bytes; the limit here is %zu", (long long)c->request.content_length, max_body);
        return;
    }
    c->body_left = (size_t)c->request.content_length;
    c->body_by_us = net_now_us(c->server->net) + c->server->limits.body_ms * 1000 +
                    (int64_t)c->body_left * (1000000 / BODY_BYTES_PER_S);
    body_deadline(c);
    if (c->body_left && !c->rx_len && !c->sending && http_header(&c->request, "Expect")) {
        static const char go_on[] = "HTTP/1.1 100 Continue\r\n\r\n";
        c->sending = true;
        net_send(c->conn, &(struct net_iov){go_on, sizeof go_on - 1}, 1, on_continue_sent, c);
    }
}

static void take_body(struct http_conn *c)
{
    size_t n = YK_MIN(c->body_left, c->rx_len);
    yk_buf_add(&c->body, c->rx + c->rx_at, n); /* grows as bytes come, whatever the length said */
    c->rx_at += n;
    c->rx_len -= n;
    c->body_left -= n;
    if (c->body.failed)
        http_conn_refuse(c, 500, "no memory for the body");
    else if (n)
        body_deadline(c);
}

/* Takes what was read, until a request is whole. */
static void parse(struct http_conn *c)
{
    c->busy++;
    while (!c->dead && !c->complete && !c->replied && c->rx_len) {
        if (!c->started) {
            c->started = true;
            set_deadline(c, c->server->limits.header_ms);
        }
        if (!c->head_done) {
            size_t used = http_conn_head(c, c->rx + c->rx_at, c->rx_len);
            c->rx_at += used;
            c->rx_len -= used;
            if (c->head_done && !c->refuse_status)
                begin_body(c);
        } else {
            take_body(c);
        }
        if (c->dead || c->replied)
            break;
        if (c->refuse_status) {
            refuse(c);
            break;
        }
        if (c->head_done && !c->body_left) {
            c->complete = true;
            set_deadline(c, 0);
            c->whole_us = net_now_us(c->server->net);
            c->request.body = c->body.data;
            c->request.body_len = c->body.len;
            c->server->on->request(c->server->arg, &c->request);
        }
    }
    if (!c->dead && !c->replied)
        read_more(c); /* also while the handler has it: to notice a client that goes */
    leave(c);
}

static void on_read(void *arg, yk_err err, size_t n)
{
    struct http_conn *c = arg;
    c->receiving = false;
    if (err) {
        /* What was asked and is being answered may still be wanted: half-closed clients read on. */
        if (c->replied && c->sending) {
            c->close_after = c->peer_done = true;
            return;
        }
        end_connection(c);
        return;
    }
    if (c->lingering) { /* nothing of it is looked at */
        c->drained += n;
        if (c->drained > LINGER_BYTES)
            end_connection(c);
        else
            read_more(c);
        return;
    }
    c->rx_len += n;
    if (c->complete && !c->replied)
        read_more(c); /* pipelined, parsed after the reply; goes on to notice a client that leaves */
    else if (!c->replied)
        parse(c);
}

static void read_more(struct http_conn *c)
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

static void on_sent(void *arg, yk_err err, size_t n)
{
    struct http_conn *c = arg;
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
    if (c->complete)
        metrics_observe_us(METRIC_http_seconds, net_now_us(c->server->net) - c->whole_us);
    if (c->close_after && (c->peer_done || (c->complete && !c->rx_len))) {
        end_connection(c);
        return;
    }
    if (c->close_after) {
        drop_reply(c);
        c->lingering = true;
        c->rx_at = c->rx_len = 0;
        set_deadline(c, LINGER_MS);
        read_more(c);
        return;
    }
    next_request(c);
    parse(c);
}

static void reply_go(struct http_conn *c, bool first)
{
    struct net_iov iov[2];
    int n = 0;
    c->reply_waits = false;
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

static void reply(struct http_conn *c, int status, const char *content_type)
{
    bool head = strcmp(c->request.method, "HEAD") == 0;
    c->replied = true;
    metrics_add(c->complete ? METRIC_http_requests_total : METRIC_http_refused_total, 1);
    yk_buf_printf(&c->reply_head,
        "HTTP/1.1 %d %s\r\nContent-Type: %s\r\nContent-Length: %zu\r\nCache-Control: no-store\r\n"
        "X-Content-Type-Options: nosniff\r\n%s%s%s%s\r\n",
        status, http_conn_reason(status), content_type, c->reply_len, c->request.allow[0] ? "Allow: " : "",
        c->request.allow, c->request.allow[0] ? "\r\n" : "", c->close_after ? "Connection: close\r\n" : "");
    if (head)
        c->reply_at = c->reply_len;
    if (c->reply_head.failed || c->reply_body.failed)
        end_connection(c);
    else if (c->sending)
        c->reply_waits = true;
    else
        reply_go(c, true);
}

void http_reply(struct http_request *r, int status, const char *content_type, const void *body, size_t len)
{
    struct http_conn *c = (struct http_conn *)r;
    yk_buf_add(&c->reply_body, body, len);
    c->reply_len = len;
    c->reply_at = 0;
    reply(c, status, content_type);
}

void http_reply_borrowed(struct http_request *r, int status, const char *content_type, const void *body, size_t len,
    net_fn release, void *arg)
{
    struct http_conn *c = (struct http_conn *)r;
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

/* The one that has waited longest for a request goes, if that is for long enough: a client that comes back opens
 * another. */
static void make_room(struct http_server *s)
{
    struct http_conn *oldest = NULL;
    for (struct http_conn *c = s->connections; c; c = c->next)
        if (!c->started && !c->replied && !c->busy && (!oldest || c->idle_us < oldest->idle_us))
            oldest = c;
    if (oldest && net_now_us(s->net) - oldest->idle_us >= IDLE_SURE_US)
        end_connection(oldest);
}

static void on_accept(void *arg, struct net_conn *conn)
{
    struct http_server *s = arg;
    if (s->n >= s->limits.max_connections)
        make_room(s);
    bool full = s->n >= s->limits.max_connections + REFUSED_AT_ONCE;
    struct http_conn *c = full ? NULL : yk_try_alloc(1, sizeof *c);
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
    if (err == YK_BUSY)
        yk_fail(why, err, "REST cannot listen at %s: another program has the port; end it, or give another", url);
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
