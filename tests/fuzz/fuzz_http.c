/* Bytes of a client into the HTTP server over the net in memory, whole or in pieces (the length picks which). Requests
 * that wait are answered or left; every one of them must end once. */
#include "common/http.h"

#include <stdlib.h>
#include <string.h>

static struct {
    struct http_request *waiting[64];
    int n, released, borrowed;
} server_side;

static struct net_conn *dialled;

static void on_headers(void *arg, struct http_request *r, size_t *max_body)
{
    char text[64];
    (void)arg;
    if (r->path[0] != '/' || !r->method[0] || r->content_length < 0)
        abort();
    *max_body = 4096;
    if (http_segment(r, 0, text, sizeof text) && (strchr(text, '/') || !text[0]))
        abort();
    if (http_header(r, "X-Refuse"))
        http_reply_error(r, 403, "PERM", "%s", http_header(r, "Host"));
}

static void release(void *arg)
{
    (void)arg;
    server_side.released++;
}

static void on_request(void *arg, struct http_request *r)
{
    char text[32];
    (void)arg;
    if (r->body_len != (size_t)r->content_length || r->body_len > 4096)
        abort();
    if (r->body_len && r->body[r->body_len - 1] == 'x')
        r->user = r;
    if (http_query(r, "x", text, sizeof text) && strlen(text) >= sizeof text)
        abort();
    if (http_query(r, "wait_ms", text, sizeof text) && server_side.n < (int)YK_COUNT(server_side.waiting)) {
        server_side.waiting[server_side.n++] = r;
    } else if (strcmp(r->path, "/borrowed") == 0) {
        server_side.borrowed++;
        http_reply_borrowed(r, 200, "text/plain", "body", 4, release, NULL);
    } else {
        http_reply(r, 200, "text/plain", r->path, strlen(r->path));
    }
}

static void on_vanished(void *arg, struct http_request *r)
{
    (void)arg;
    for (int i = 0; i < server_side.n; i++)
        if (server_side.waiting[i] == r) {
            server_side.waiting[i] = NULL;
            return;
        }
    abort();
}

static const struct http_on on = {on_headers, on_request, on_vanished};

static void on_dial(void *arg, yk_err err, struct net_conn *conn)
{
    (void)arg, (void)err;
    dialled = conn;
}

static void on_sent(void *arg, yk_err err, size_t n)
{
    (void)err, (void)n;
    *(bool *)arg = true;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct net *net;
    struct http_server *server;
    bool sent = true;
    memset(&server_side, 0, sizeof server_side);
    if (net_mem_open(1, &net) || http_server_open(net, "mem://x", &on, NULL, NULL, &server, NULL))
        abort();
    net_dial(net, "mem://x", 1000, on_dial, NULL);
    net_mem_run_for(net, 10);
    size_t step = size & 1 ? size : 1 + (size & 30);
    for (size_t at = 0; at < size && sent; at += step) {
        sent = false;
        net_send(dialled, &(struct net_iov){data + at, YK_MIN(step, size - at)}, 1, on_sent, &sent);
        net_mem_run_for(net, 10);
        if (size & 2 && server_side.n && server_side.waiting[server_side.n - 1])
            http_reply(server_side.waiting[--server_side.n], 200, "text/plain", "", 0);
    }
    net_mem_run_for(net, size & 4 ? 200000000 : 1000);
    net_conn_close(dialled);
    net_mem_run_for(net, 5000000);
    if (http_server_connections(server) != 0 || server_side.released != server_side.borrowed)
        abort();
    http_server_close(server);
    net_close(net);
    return 0;
}
