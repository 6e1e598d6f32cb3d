/* Between the files of the HTTP server: one connection (http_server.c), the head of its request (http_conn.c) and what
 * a handler may ask about it (http_request.c). */
#ifndef YK_HTTP_CONN_H
#define YK_HTTP_CONN_H

#include "common/http.h"

#include <http_parser.h>

#define HTTP_CONN_READ_BYTES ((size_t)16 << 10)
#define HTTP_CONN_MAX_HEADERS 64

struct http_conn {
    struct http_request request; /* first: http_reply gets this back */
    struct http_server *server;
    struct http_conn *next, **link;
    struct net_conn *conn;
    struct net_timer *timer;
    char peer[80];

    uint8_t rx[HTTP_CONN_READ_BYTES];
    size_t rx_at, rx_len;
    bool receiving;

    /* The head of the request. */
    http_parser parser;
    struct yk_buf text; /* target and headers, NUL-ended pieces */
    struct {
        size_t name, value; /* offsets into text */
    } headers[HTTP_CONN_MAX_HEADERS];
    int n_headers;
    size_t target_len, head_bytes;
    enum { AT_NOTHING, AT_NAME, AT_VALUE } at;
    int line_end;      /* how much of CR LF CR LF was just seen */
    bool line_started; /* behind blank lines in front of a request */
    bool head_done;
    int refuse_status; /* 0: nothing wrong so far */
    char refuse_text[200];

    struct yk_buf body;
    size_t body_left;
    int64_t body_by_us; /* all of it is due then, however it trickles */

    int64_t whole_us; /* when the request was complete */
    size_t drained;   /* bytes thrown away after a refusal */
    bool peer_done;   /* the client sends no more */
    int64_t idle_us;  /* since when it waits for a request */
    bool started;     /* a byte of a request came */
    bool complete;    /* it is with the handler */
    bool replied, close_after, lingering;

    struct yk_buf reply_head;
    struct yk_buf reply_body;
    const void *borrowed;
    size_t reply_len, reply_at;
    net_fn release;
    void *release_arg;
    bool sending, reply_waits; /* for "100 Continue" to leave */
    bool dead;
    int busy;
};

/* Forgets the request before and waits for the next one. */
void http_conn_begin(struct http_conn *c);
/* Takes bytes of the head; returns how many it took. Afterwards either all are taken, or head_done is set, or
 * refuse_status is. */
size_t http_conn_head(struct http_conn *c, const uint8_t *data, size_t len);
/* Notes why the request is refused, unless there is a reason already. Returns -1. */
int http_conn_refuse(struct http_conn *c, int status, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
const char *http_conn_reason(int status); /* "Not Found" */

#endif
