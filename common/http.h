/* HTTP/1.1 over `net`: a small server and client for REST. The home of http-parser.
 *
 * Server: Content-Length bodies only (Transfer-Encoding gets 411), a deadline per phase, bounded headers, bodies and
 * connections; requests of one connection are answered in order; a connection whose request was refused is closed, so
 * bytes of an over-long body can never be run as the next request. Errors are JSON {"error","text"}.
 * One thread: the loop. */
#ifndef YK_HTTP_H
#define YK_HTTP_H

#include "common/net.h"

struct http_server;

struct http_request {
    const char *method; /* "GET" */
    const char *path;   /* as sent, without the query, not decoded; starts with '/' */
    const char *query;  /* behind '?', "" if none */
    const uint8_t *body;
    size_t body_len;
    const char *peer;
    int64_t content_length; /* what the headers promise; 0 if nothing */
    void *user;             /* the handler's */
    char allow[48];         /* of a 405: the methods there are; "" */
};

struct http_on {
    /* The headers are complete. Answer now to refuse (http_reply; the connection is closed after it), or set the limit
     * of the body (1 MiB before; 413 beyond). */
    void (*headers)(void *arg, struct http_request *r, size_t *max_body);
    /* The body is there too. Call http_reply once, now or later. */
    void (*request)(void *arg, struct http_request *r);
    /* The client went (or closed its sending side) before the reply: forget r, which is gone when this returns. */
    void (*vanished)(void *arg, struct http_request *r);
};

struct http_limits {     /* 0: the default in brackets */
    int64_t header_ms;   /* [10000] from the first byte to the end of the headers */
    int64_t body_ms;     /* [30000] without a byte of the body (4 KiB/s on the whole), or without progress of a reply */
    int64_t idle_ms;     /* [60000] between requests */
    int max_connections; /* [256]; more take the place of the longest idle one, or get 503 and are closed */
};

/* url: "http://127.0.0.1:7711"; port 0 picks one. "mem://NAME" on the net in memory. */
yk_err http_server_open(struct net *net, const char *url, const struct http_on *on, void *arg,
    const struct http_limits *limits, struct http_server **out, struct yk_diag *why);
const char *http_server_url(const struct http_server *s);
int http_server_connections(const struct http_server *s);
void http_server_close(struct http_server *s); /* open requests get vanished() first */

/* Case-insensitive; NULL if absent. */
const char *http_header(const struct http_request *r, const char *name);
/* Percent-decoded value of a query key; false if absent, malformed, with a NUL, or longer than size. */
bool http_query(const struct http_request *r, const char *key, char *out, size_t size);
/* Segment i of the path, percent-decoded ("/v1/jobs/7": 0 is "v1"); false likewise, or if it holds '/' or is "." or
 * "..". */
bool http_segment(const struct http_request *r, int i, char *out, size_t size);

/* Answers; body is copied. r is gone afterwards. */
void http_reply(struct http_request *r, int status, const char *content_type, const void *body, size_t len);
void http_reply_error(struct http_request *r, int status, const char *error, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
/* Answers with a body of len bytes that stays where it is until release(arg) is called, also if the client goes. */
void http_reply_borrowed(struct http_request *r, int status, const char *content_type, const void *body, size_t len,
    net_fn release, void *arg);
int http_status_of(yk_err err); /* the status that fits an error */

/* ---- client ---- */
struct http_client;

struct http_answer {
    int status;
    const char *content_type; /* "" if none */
    struct yk_buf body;       /* yk_buf_free */
};

/* url: "http://127.0.0.1:7711" or "mem://NAME". One connection, kept alive between calls. */
yk_err http_client_open(struct net *net, const char *url, struct http_client **out, struct yk_diag *why);
void http_client_close(struct http_client *c); /* NULL allowed */
/* One call after another. Blocks by running the loop until there is an answer, the limit is passed or the time is over.
 * A call that a kept connection loses before any answer is repeated once on a new one, if to do it twice is to do it
 * once; POST gets a new connection from the start. */
yk_err http_client_call(struct http_client *c, const char *method, const char *path, const char *content_type,
    const void *body, size_t len, size_t answer_limit, int64_t timeout_ms, struct http_answer *out,
    struct yk_diag *why);

#endif
