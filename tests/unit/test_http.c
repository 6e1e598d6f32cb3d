/* The HTTP server and client: the server against raw bytes on virtual time, and both over real sockets. */
#include "common/http.h"
#include "common/json.h"

#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static struct net *net;
static struct http_server *server;
static char url[128];

/* ---- a handler that shows what it saw ---- */

static struct {
    int headers, requests, vanished, released;
    struct http_request *waiting;
    size_t max_body;
} seen;
static uint8_t *large;
enum { LARGE = 3000000 };

static void on_headers(void *arg, struct http_request *r, size_t *max_body)
{
    (void)arg;
    seen.headers++;
    if (strcmp(r->path, "/refuse") == 0)
        http_reply_error(r, 403, "PERM", "not you");
    if (seen.max_body)
        *max_body = seen.max_body;
}

static void release(void *arg)
{
    ++*(int *)arg;
}

static void on_request(void *arg, struct http_request *r)
{
    (void)arg;
    seen.requests++;
    if (strcmp(r->path, "/wait") == 0) {
        seen.waiting = r;
    } else if (strcmp(r->path, "/large") == 0) {
        http_reply_borrowed(r, 200, "application/octet-stream", large, LARGE, release, &seen.released);
    } else {
        struct yk_buf b = {0};
        yk_buf_printf(&b, "%s %s?%s %zu ", r->method, r->path, r->query, r->body_len);
        yk_buf_add(&b, r->body, YK_MIN(r->body_len, (size_t)32));
        http_reply(r, 200, "text/plain", b.data, b.len);
        yk_buf_free(&b);
    }
}

static void on_vanished(void *arg, struct http_request *r)
{
    (void)arg;
    assert_ptr_equal(r, seen.waiting);
    seen.waiting = NULL;
    seen.vanished++;
}

static const struct http_on on = {on_headers, on_request, on_vanished};

static void start(const struct http_limits *limits)
{
    memset(&seen, 0, sizeof seen);
    assert_int_equal(net_mem_open(5, &net), YK_OK);
    assert_int_equal(http_server_open(net, "mem://rest", &on, NULL, limits, &server, NULL), YK_OK);
}

static int setup(void **state)
{
    (void)state;
    start(NULL);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    http_server_close(server);
    net_close(net);
    return 0;
}

/* ---- a raw client ---- */

struct raw {
    struct net_conn *conn;
    struct yk_buf in;
    bool ended, sending;
    uint8_t piece[4096];
};

static void on_raw_read(void *arg, yk_err err, size_t n)
{
    struct raw *r = arg;
    if (err) {
        r->ended = true;
        return;
    }
    yk_buf_add(&r->in, r->piece, n);
    net_recv(r->conn, r->piece, sizeof r->piece, on_raw_read, r);
}

static void on_raw_sent(void *arg, yk_err err, size_t n)
{
    (void)err, (void)n;
    ((struct raw *)arg)->sending = false;
}

static void on_raw_dial(void *arg, yk_err err, struct net_conn *conn)
{
    struct raw *r = arg;
    assert_int_equal(err, YK_OK);
    r->conn = conn;
    net_recv(conn, r->piece, sizeof r->piece, on_raw_read, r);
}

static void pass_ms(int64_t ms)
{
    net_mem_run_for(net, ms * 1000);
}

static struct raw *dial(void)
{
    struct raw *r = calloc(1, sizeof *r);
    net_dial(net, "mem://rest", 1000000, on_raw_dial, r);
    pass_ms(1);
    assert_non_null(r->conn);
    return r;
}

static void say(struct raw *r, const void *data, size_t len)
{
    struct net_iov iov = {data, len};
    assert_false(r->sending);
    r->sending = true;
    net_send(r->conn, &iov, 1, on_raw_sent, r);
    pass_ms(1);
}

static void hang_up(struct raw *r)
{
    net_conn_close(r->conn);
    pass_ms(1);
    yk_buf_free(&r->in);
    free(r);
}

static const char *heard(struct raw *r)
{
    yk_buf_add(&r->in, "", 1);
    r->in.len--;
    return (const char *)r->in.data;
}

static int count(const char *text, const char *part)
{
    int n = 0;
    for (const char *at = strstr(text, part); at; at = strstr(at + 1, part))
        n++;
    return n;
}

#define SAY(r, text) say(r, text, sizeof text - 1)
#define CRLF2 "\r\n\r\n"
#define HOST "\r\nHost: a"

/* One request on a connection of its own. An error must be JSON, end the connection and leave what follows alone. */
static void expect(const char *text, size_t len, int status, const char *part)
{
    struct raw *r = dial();
    char line[32];
    int before = seen.requests;
    snprintf(line, sizeof line, "HTTP/1.1 %d ", status);
    say(r, text, len);
    pass_ms(10);
    const char *answer = heard(r);
    if (strncmp(answer, line, strlen(line)) != 0 || (part && !strstr(answer, part)))
        fail_msg("'%.*s' got '%.300s', wanted %d with '%s'", (int)len, text, answer, status, part ? part : "");
    if (status >= 400) {
        struct json *doc;
        const char *body = strstr(answer, CRLF2);
        assert_non_null(body);
        assert_int_equal(json_parse(body + 4, strlen(body + 4), &doc, NULL), YK_OK);
        assert_non_null(json_str(json_find(doc, "error"), NULL));
        assert_true(strlen(json_str(json_find(doc, "text"), "")) > 3);
        json_free(doc);
        assert_non_null(strstr(answer, "Connection: close"));
        assert_int_equal(seen.requests, before);
        /* What still comes is thrown away, and the end comes by itself. */
        SAY(r, "GET /smuggled HTTP/1.1" HOST CRLF2);
        pass_ms(1100);
        assert_true(r->ended);
        assert_int_equal(count(heard(r), "HTTP/1.1 "), 1);
        assert_int_equal(seen.requests, before);
    }
    hang_up(r);
    pass_ms(1);
    assert_int_equal(http_server_connections(server), 0);
}
#define EXPECT(text, status, part) expect(text, sizeof text - 1, status, part)

/* ---- good requests ---- */

static void good_requests(void **state)
{
    (void)state;
    EXPECT("GET /v1/x?a=1 HTTP/1.1" HOST CRLF2, 200, "GET /v1/x?a=1 0 ");
    EXPECT("\r\n\r\nGET / HTTP/1.1" HOST CRLF2, 200, "GET /? 0 ");
    EXPECT("DELETE /v1/jobs/1 HTTP/1.1" HOST CRLF2, 200, "DELETE /v1/jobs/1");
    EXPECT("POST / HTTP/1.1" HOST "\r\nContent-Length: 5" CRLF2 "hello", 200, "POST /? 5 hello");
    EXPECT("POST / HTTP/1.1" HOST "\r\nContent-Length:   005  " CRLF2 "hello", 200, "POST /? 5 hello");
    EXPECT("POST / HTTP/1.1" HOST CRLF2, 200, "POST /? 0 ");
    EXPECT("PUT / HTTP/1.1" HOST "\r\nContent-Length: 0" CRLF2, 200, "PUT /? 0 ");
    EXPECT("GET / HTTP/1.0\r\n\r\n", 200, "Connection: close");
    struct raw *r = dial();
    SAY(r, "HEAD /large HTTP/1.1" HOST CRLF2);
    assert_non_null(strstr(heard(r), "Content-Length: 3000000\r\n"));
    assert_string_equal(strstr(heard(r), CRLF2), CRLF2);
    assert_int_equal(seen.released, 1);
    hang_up(r);
}

static void bytes_may_come_one_by_one(void **state)
{
    static const char text[] = "POST /slow HTTP/1.1\r\nHost: a\r\nX-Empty:\r\nContent-Length: 5\r\n\r\nhello"
                               "GET /next HTTP/1.1\r\nHost: a\r\n\r\n";
    (void)state;
    struct raw *r = dial();
    for (size_t i = 0; i + 1 < sizeof text; i++)
        say(r, text + i, 1);
    assert_int_equal(count(heard(r), "HTTP/1.1 200 OK"), 2);
    assert_non_null(strstr(heard(r), "POST /slow? 5 hello"));
    assert_non_null(strstr(heard(r), "GET /next? 0 "));
    hang_up(r);
}

static void pipelined_requests_are_answered_in_order(void **state)
{
    (void)state;
    struct raw *r = dial();
    SAY(r, "GET /1 HTTP/1.1" HOST CRLF2 "POST /2 HTTP/1.1" HOST "\r\nContent-Length: 3" CRLF2
           "abcGET /wait HTTP/1.1" HOST CRLF2 "GET /4 HTTP/1.1" HOST CRLF2);
    assert_int_equal(count(heard(r), "HTTP/1.1 200"), 2);
    assert_non_null(seen.waiting);
    http_reply(seen.waiting, 200, "text/plain", "third", 5);
    pass_ms(1);
    const char *a = strstr(heard(r), "GET /1?"), *b = strstr(heard(r), "POST /2? 3 abc"),
               *c = strstr(heard(r), "third"), *d = strstr(heard(r), "GET /4?");
    assert_true(a && b && c && d && a < b && b < c && c < d);
    hang_up(r);
}

static void a_body_that_asks_first_is_told_to_go_on(void **state)
{
    (void)state;
    struct raw *r = dial();
    SAY(r, "PUT / HTTP/1.1" HOST "\r\nExpect: 100-continue\r\nContent-Length: 5" CRLF2);
    assert_string_equal(heard(r), "HTTP/1.1 100 Continue" CRLF2);
    SAY(r, "hello");
    assert_non_null(strstr(heard(r), "PUT /? 5 hello"));
    hang_up(r);
    EXPECT("PUT / HTTP/1.1" HOST "\r\nExpect: 100-continue\r\nContent-Length: 2000000" CRLF2, 413, NULL);
    EXPECT("PUT / HTTP/1.1" HOST "\r\nExpect: 200-maybe\r\nContent-Length: 5" CRLF2, 417, NULL);
}

static void large_replies_and_clients_that_leave_them(void **state)
{
    (void)state;
    struct raw *r = dial();
    SAY(r, "GET /large HTTP/1.1" HOST CRLF2 "GET /after HTTP/1.1" HOST CRLF2);
    pass_ms(100);
    const char *body = strstr(heard(r), CRLF2) + 4;
    assert_memory_equal(body, large, LARGE);
    assert_non_null(strstr(body + LARGE, "GET /after?"));
    assert_int_equal(seen.released, 1);
    hang_up(r);
    net_mem_set_link(net, "rest", 100, 1e5);
    r = dial();
    SAY(r, "GET /large HTTP/1.1" HOST CRLF2);
    pass_ms(1000);
    assert_int_equal(seen.released, 1);
    hang_up(r);
    pass_ms(60000);
    assert_int_equal(seen.released, 2);
    assert_int_equal(http_server_connections(server), 0);
}

static const struct http_request *asked;
static void on_ask(void *arg, struct http_request *r)
{
    (void)arg;
    asked = r;
}

static void what_a_handler_may_ask(void **state)
{
    static const struct http_on asking = {on_headers, on_ask, on_vanished};
    char out[16];
    (void)state;
    http_server_close(server);
    assert_int_equal(http_server_open(net, "mem://rest", &asking, NULL, NULL, &server, NULL), YK_OK);
    struct raw *r = dial();
    SAY(r,
        "GET "
        "/v1/a%2Fb/%41%20c/%2e%2E/x%00y/%zz//0123456789abcdefg/%4?a=1&b=x+y%2b&&c=&d&e=%00&f=%4&g=0123456789abcdefg&a=2"
        " HTTP/1.1" HOST "\r\nX-One: 1\r\nx-one: 2\r\nX-Empty:" CRLF2);
    assert_non_null(asked);
    assert_string_equal(http_header(asked, "x-ONE"), "1");
    assert_string_equal(http_header(asked, "X-Empty"), "");
    assert_null(http_header(asked, "X"));
    assert_true(http_segment(asked, 0, out, sizeof out));
    assert_string_equal(out, "v1");
    assert_false(http_segment(asked, 1, out, sizeof out)); /* an encoded slash is no separator, and no name */
    assert_true(http_segment(asked, 2, out, sizeof out));
    assert_string_equal(out, "A c");
    for (int i = 3; i < 10; i++) /* "..", NUL, bad digits, empty, too long, cut, past the end */
        assert_false(http_segment(asked, i, out, sizeof out));
    assert_true(http_query(asked, "a", out, sizeof out));
    assert_string_equal(out, "1");
    assert_true(http_query(asked, "b", out, sizeof out));
    assert_string_equal(out, "x y+");
    for (const char *k = "defgh"; *k; k++)
        assert_false(http_query(asked, (char[2]){*k, 0}, out, sizeof out));
    seen.waiting = (struct http_request *)asked;
    hang_up(r);
    assert_int_equal(seen.vanished, 1);
}

/* ---- bad requests ---- */

static void bad_requests_are_refused(void **state)
{
    (void)state;
    EXPECT("garbage garbage garbage\r\n\r\n", 400, "FORMAT");
    EXPECT("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400, "FORMAT"); /* TLS to a plain port */
    EXPECT("GET / HTTP/2.0" HOST CRLF2, 505, "VERSION");
    EXPECT("GET / HTTP/1.2" HOST CRLF2, 505, NULL);
    EXPECT("GET / HTTP/0.9" HOST CRLF2, 505, NULL);
    EXPECT("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400, NULL);
    EXPECT("CONNECT a:1 HTTP/1.1" HOST CRLF2, 400, NULL);
    EXPECT("GET http://a/ HTTP/1.1" HOST CRLF2, 400, "path");
    EXPECT("GET * HTTP/1.1" HOST CRLF2, 400, NULL);
    EXPECT("OPTIONS * HTTP/1.1" HOST CRLF2, 400, "path");
    EXPECT("GET /#x HTTP/1.1" HOST CRLF2, 400, NULL);
    EXPECT("GET /\xc3\xa9 HTTP/1.1" HOST CRLF2, 400, NULL);
    EXPECT("GET / HTTP/1.1" CRLF2, 400, "Host");
    EXPECT("GET / HTTP/1.1" HOST HOST CRLF2, 400, "twice");
    EXPECT("GET / HTTP/1.1" HOST "\r\nOrigin: x\r\nOrigin: y" CRLF2, 400, "twice");
    EXPECT("GET / HTTP/1.1" HOST "\r\nX: a\0b" CRLF2, 400, NULL);
    EXPECT("GET / HTTP/1.1" HOST "\r\nX y: a" CRLF2, 400, NULL);
    EXPECT("GET / HTTP/1.1" HOST "\r\nX : a" CRLF2, 400, NULL);
    EXPECT("GET / HTTP/1.1" HOST "\r\nX: a\r\n b" CRLF2, 400, "folded");
    EXPECT("GET / HTTP/1.1\nHost: a\n\n", 400, "CR LF");
    EXPECT("GET / HTTP/1.1" HOST "\r\nX: a\nY: b" CRLF2, 400, "CR LF");
    EXPECT("GET / HTTP/1.1" HOST "\r\nX: a\rY: b" CRLF2, 400, "CR LF");
    EXPECT("GET / HTTP/1.1" HOST "\r\nConnection: Upgrade\r\nUpgrade: websocket" CRLF2, 400, "upgrade");
    EXPECT("GET /refuse HTTP/1.1" HOST CRLF2, 403, "not you");
    EXPECT("POST /refuse HTTP/1.1" HOST "\r\nContent-Length: 5" CRLF2 "hello", 403, "not you");
}

static void lengths_leave_no_doubt(void **state)
{
    (void)state;
    EXPECT("POST / HTTP/1.1" HOST "\r\nTransfer-Encoding: chunked" CRLF2 "0\r\n\r\n", 411, "Content-Length");
    EXPECT("POST / HTTP/1.1" HOST "\r\nTransfer-Encoding: gzip, chunked" CRLF2, 411, NULL);
    EXPECT("POST / HTTP/1.1" HOST "\r\nTransfer-Encoding: identity" CRLF2, 411, NULL);
    EXPECT("POST / HTTP/1.1" HOST "\r\ntransfer-encoding:\tchunked" CRLF2, 411, NULL);
    EXPECT("POST / HTTP/1.1" HOST "\r\nTransfer-Encoding: chunked\r\nContent-Length: 5" CRLF2 "0\r\n\r\n", 400, NULL);
    EXPECT("POST / HTTP/1.1" HOST "\r\nContent-Length: 5\r\nTransfer-Encoding: chunked" CRLF2 "0\r\n\r\n", 400, NULL);
    EXPECT("POST / HTTP/1.1" HOST "\r\nContent-Length: 5\r\nContent-Length: 5" CRLF2 "hello", 400, NULL);
    EXPECT("POST / HTTP/1.1" HOST "\r\nContent-Length: 5\r\ncontent-length: 6" CRLF2 "hello", 400, NULL);
    EXPECT("POST / HTTP/1.1" HOST "\r\nContent-Length: 5, 5" CRLF2 "hello", 400, NULL);
    EXPECT("POST / HTTP/1.1" HOST "\r\nContent-Length: +5" CRLF2 "hello", 400, NULL);
    EXPECT("POST / HTTP/1.1" HOST "\r\nContent-Length: -5" CRLF2 "hello", 400, NULL);
    EXPECT("POST / HTTP/1.1" HOST "\r\nContent-Length: 0x5" CRLF2 "hello", 400, NULL);
    EXPECT("POST / HTTP/1.1" HOST "\r\nContent-Length: 5 5" CRLF2 "hello", 400, NULL);
    EXPECT("POST / HTTP/1.1" HOST "\r\nContent-Length:" CRLF2 "hello", 400, NULL);
    EXPECT("POST / HTTP/1.1" HOST "\r\nContent-Length: 99999999999999999999999" CRLF2, 400, NULL);
    EXPECT("POST / HTTP/1.1" HOST "\r\nContent-Length: 9999999999999999999" CRLF2, 413, "LIMIT");
    EXPECT("POST / HTTP/1.1" HOST "\r\nContent-Length: 1048577" CRLF2, 413, "limit here is 1048576");
    seen.max_body = 4;
    EXPECT("POST / HTTP/1.1" HOST "\r\nContent-Length: 5" CRLF2 "hello", 413, "limit here is 4");
    EXPECT("POST / HTTP/1.1" HOST "\r\nContent-Length: 4" CRLF2 "hell", 200, "POST /? 4 hell");
}

static void heads_are_bounded(void **state)
{
    struct yk_buf b = {0};
    (void)state;
    yk_buf_printf(&b, "GET / HTTP/1.1\r\nHost: a\r\nX: ");
    memset(yk_buf_room(&b, 20000), 'y', 20000);
    expect((const char *)b.data, b.len, 431, "16384");
    b.len = 0;
    yk_buf_printf(&b, "GET /");
    memset(yk_buf_room(&b, 20000), 'y', 20000);
    expect((const char *)b.data, b.len, 431, "16384");
    b.len = 0;
    yk_buf_printf(&b, "GET / HTTP/1.1\r\nHost: a\r\nX:");
    memset(yk_buf_room(&b, 20000), ' ', 20000);
    expect((const char *)b.data, b.len, 431, "16384");
    b.len = 0;
    for (int i = 0; i < 10000; i++)
        yk_buf_add(&b, "\r\n", 2);
    expect((const char *)b.data, b.len, 431, "16384");
    b.len = 0;
    yk_buf_printf(&b, "GET / HTTP/1.1\r\nHost: a\r\n");
    for (int i = 0; i < 64; i++)
        yk_buf_printf(&b, "X%d: y\r\n", i);
    yk_buf_printf(&b, "\r\n");
    expect((const char *)b.data, b.len, 431, "64");
    yk_buf_free(&b);
}

/* ---- time ---- */

static void slow_clients_are_cut_off(void **state)
{
    (void)state;
    struct raw *idle = dial(), *head = dial(), *body = dial(), *drip = dial(), *kept = dial();
    int64_t start_us = net_now_us(net) + 10000;
    SAY(head, "GET / HTTP/1.1\r\n");
    SAY(body, "POST / HTTP/1.1" HOST "\r\nContent-Length: 1000000" CRLF2);
    SAY(drip, "POST / HTTP/1.1" HOST "\r\nContent-Length: 40960" CRLF2); /* 30 s + 10 s */
    SAY(kept, "GET / HTTP/1.1" HOST CRLF2);
    for (int s = 1; s < 70; s++) {
        net_mem_run_for(net, start_us + s * 1000000 + 500000 - net_now_us(net));
        if (s < 10)
            SAY(head, "X"); /* slow loris: a byte a second does not help */
        if (s < 25)
            SAY(body, "x");
        if (s < 39)
            SAY(drip, "x");
        assert_int_equal(strstr(heard(head), " 408 ") != NULL, s >= 10);
        assert_int_equal(head->ended, s >= 11);
        assert_int_equal(strstr(heard(body), " 408 ") != NULL, s >= 54); /* 30 s after the last byte */
        assert_int_equal(strstr(heard(drip), " 408 ") != NULL, s >= 40);
        assert_int_equal(idle->ended, s >= 60);
        assert_int_equal(kept->ended, s >= 60);
    }
    assert_int_equal(idle->in.len, 0);
    assert_int_equal(http_server_connections(server), 0);
    assert_int_equal(seen.requests, 1);
    hang_up(idle);
    hang_up(head);
    hang_up(body);
    hang_up(drip);
    hang_up(kept);
}

static void a_reader_that_stops_reading_is_cut_off(void **state)
{
    (void)state;
    struct raw *r = calloc(1, sizeof *r);
    net_dial(net, "mem://rest", 1000000, on_raw_dial, r);
    net_mem_set_link(net, "rest", 0, 1000); /* 3 MB would take 50 minutes: a window of 1 MiB, then nothing moves */
    pass_ms(1);
    say(r, "GET /large HTTP/1.1" HOST CRLF2, sizeof "GET /large HTTP/1.1" HOST CRLF2 - 1);
    pass_ms(4000);
    assert_int_equal(http_server_connections(server), 1);
    pass_ms(400000);
    assert_int_equal(http_server_connections(server), 0);
    assert_int_equal(seen.released, 1);
    hang_up(r);
}

static void long_polls_notice_clients_that_go(void **state)
{
    (void)state;
    for (int i = 0; i < 50; i++) {
        struct raw *r = dial();
        SAY(r, "GET /wait HTTP/1.1" HOST CRLF2);
        pass_ms(120000); /* no deadline while the handler has it */
        assert_non_null(seen.waiting);
        if (i % 2) {
            http_reply(seen.waiting, 200, "text/plain", "done", 4);
            seen.waiting = NULL;
            pass_ms(1);
            assert_non_null(strstr(heard(r), "done"));
        }
        hang_up(r);
        assert_null(seen.waiting);
        assert_int_equal(seen.vanished, (i + 2) / 2);
        assert_int_equal(http_server_connections(server), 0);
    }
    struct raw *r = dial();
    SAY(r, "GET /wait HTTP/1.1" HOST CRLF2);
    http_server_close(server);
    assert_int_equal(seen.vanished, 26);
    assert_int_equal(http_server_open(net, "mem://rest", &on, NULL, NULL, &server, NULL), YK_OK);
    hang_up(r);
}

/* ---- numbers ---- */

static void connections_are_bounded(void **state)
{
    struct raw *r[8], *more;
    (void)state;
    teardown(NULL);
    start(&(struct http_limits){.max_connections = 8});
    for (int i = 0; i < 8; i++)
        r[i] = dial();
    more = dial();
    pass_ms(1);
    assert_non_null(strstr(heard(more), "HTTP/1.1 503 "));
    assert_non_null(strstr(heard(more), "more than 8 connections"));
    pass_ms(1100);
    assert_true(more->ended);
    hang_up(more);
    assert_int_equal(http_server_connections(server), 8);
    hang_up(r[0]);
    r[0] = dial();
    SAY(r[0], "GET / HTTP/1.1" HOST CRLF2);
    assert_non_null(strstr(heard(r[0]), " 200 OK"));
    /* Whoever only holds a place gives it to one that asks. */
    pass_ms(1100);
    more = dial();
    SAY(more, "GET / HTTP/1.1" HOST CRLF2);
    assert_non_null(strstr(heard(more), " 200 OK"));
    assert_int_equal(http_server_connections(server), 8);
    assert_true(r[1]->ended);
    hang_up(more);
    struct raw *flood[200];
    for (int i = 0; i < 200; i++)
        flood[i] = dial();
    assert_true(http_server_connections(server) <= 8 + 64);
    for (int i = 0; i < 200; i++)
        hang_up(flood[i]);
    for (int i = 0; i < 8; i++)
        hang_up(r[i]);
    assert_int_equal(http_server_connections(server), 0);
}

static void a_thousand_that_come_and_go(void **state)
{
    static const char *const says[] = {"", "GET", "GET / HTTP/1.1" HOST CRLF2, "GET /wait HTTP/1.1" HOST CRLF2,
        "POST / HTTP/1.1" HOST "\r\nContent-Length: 100" CRLF2 "abc", "nonsense\r\n\r\n",
        "GET /large HTTP/1.1" HOST CRLF2};
    (void)state;
    for (size_t i = 0; i < 1000; i++) {
        struct raw *r = dial();
        const char *text = says[i % YK_COUNT(says)];
        if (text[0])
            say(r, text, strlen(text));
        hang_up(r);
        assert_int_equal(http_server_connections(server), 0);
        assert_null(seen.waiting);
    }
    assert_int_equal(seen.vanished, 143);
    assert_int_equal(seen.released, 142);
}

/* ---- server and client together, in memory and over real sockets ---- */

static bool real;

static int setup_both(bool sockets)
{
    real = sockets;
    memset(&seen, 0, sizeof seen);
    assert_int_equal(sockets ? net_nng_open(&net, NULL) : net_mem_open(3, &net), YK_OK);
    assert_int_equal(
        http_server_open(net, sockets ? "http://127.0.0.1:0" : "mem://rest", &on, NULL, NULL, &server, NULL), YK_OK);
    snprintf(url, sizeof url, "%s", sockets ? http_server_url(server) : "mem://rest");
    return 0;
}

static int setup_mem(void **state)
{
    (void)state;
    return setup_both(false);
}

static int setup_sockets(void **state)
{
    (void)state;
    return setup_both(true);
}

static void calls(void **state)
{
    struct http_client *c;
    struct http_answer a;
    struct yk_diag why = {{0}};
    (void)state;
    assert_int_equal(http_client_open(net, "ftp://x", &c, &why), YK_INVAL);
    assert_int_equal(http_client_open(net, url, &c, &why), YK_OK);
    for (int i = 0; i < 20; i++) {
        assert_int_equal(http_client_call(c, "GET", "/v1/a?b=c", NULL, NULL, 0, 1 << 20, 5000, &a, &why), YK_OK);
        assert_int_equal(a.status, 200);
        assert_string_equal(a.content_type, "text/plain");
        assert_memory_equal(a.body.data, "GET /v1/a?b=c 0 ", a.body.len);
        yk_buf_free(&a.body);
    }
    assert_int_equal(http_server_connections(server), 1); /* kept alive */
    assert_int_equal(http_client_call(c, "POST", "/p", "application/json", "{}", 2, 1 << 20, 5000, &a, &why), YK_OK);
    assert_memory_equal(a.body.data, "POST /p? 2 {}", a.body.len);
    yk_buf_free(&a.body);
    assert_int_equal(http_client_call(c, "GET", "/large", NULL, NULL, 0, LARGE, 5000, &a, &why), YK_OK);
    assert_int_equal(a.body.len, LARGE);
    assert_memory_equal(a.body.data, large, LARGE);
    yk_buf_free(&a.body);
    assert_int_equal(http_client_call(c, "GET", "/large", NULL, NULL, 0, LARGE - 1, 5000, &a, &why), YK_LIMIT);
    assert_non_null(strstr(why.text, "limit"));
    assert_int_equal(http_client_call(c, "GET", "/refuse", NULL, NULL, 0, 1000, 5000, &a, &why), YK_OK);
    assert_int_equal(a.status, 403);
    yk_buf_free(&a.body);
    /* The refusal of a body that is still on its way is read, not lost to a reset. */
    assert_int_equal(http_client_call(c, "PUT", "/refuse", NULL, large, LARGE, 1000, 5000, &a, &why), YK_OK);
    assert_int_equal(a.status, 403);
    yk_buf_free(&a.body);
    assert_int_equal(http_client_call(c, "PUT", "/big", NULL, large, LARGE, 1000, 5000, &a, &why), YK_OK);
    assert_int_equal(a.status, 413);
    yk_buf_free(&a.body);
    seen.max_body = LARGE;
    assert_int_equal(http_client_call(c, "PUT", "/big", NULL, large, LARGE, 1000, 5000, &a, &why), YK_OK);
    assert_int_equal(a.status, 200);
    assert_memory_equal(a.body.data, "PUT /big? 3000000 ", 18);
    yk_buf_free(&a.body);
    assert_int_equal(http_client_call(c, "GET", "/wait", NULL, NULL, 0, 1000, 300, &a, &why), YK_TIMEOUT);
    /* The server is gone in the meantime: a clear error, and it works again when it is back. */
    http_server_close(server);
    server = NULL;
    if (!real) {
        assert_int_equal(http_client_call(c, "GET", "/", NULL, NULL, 0, 1000, 5000, &a, &why), YK_REFUSED);
        assert_int_equal(http_server_open(net, url, &on, NULL, NULL, &server, NULL), YK_OK);
        assert_int_equal(http_client_call(c, "GET", "/", NULL, NULL, 0, 1000, 5000, &a, &why), YK_OK);
        yk_buf_free(&a.body);
    }
    http_client_close(c);
}

static void on_alarm(void *arg)
{
    (void)arg;
    net_stop(net);
}

static void wait_ms(int64_t ms)
{
    net_timer(net, ms * 1000, on_alarm, NULL);
    net_run(net);
}

static void on_socket(void *arg, yk_err err, struct net_conn *conn)
{
    (void)err;
    *(struct net_conn **)arg = conn;
    net_stop(net);
}

/* Real sockets that open, say half a request and are gone. */
static void vanishing_sockets(void **state)
{
    char stream[128];
    (void)state;
    snprintf(stream, sizeof stream, "tcp%s", strstr(url, "://"));
    for (int i = 0; i < 1000; i++) {
        struct net_conn *conn = NULL;
        struct raw r = {0};
        net_dial(net, stream, 5000000, on_socket, &conn);
        net_run(net);
        assert_non_null(conn);
        if (i % 3) {
            const char *text = i % 3 == 1 ? "GET /wait HTTP/1.1" HOST CRLF2 : "POST / HTTP/1.1\r\nHo";
            struct net_iov iov = {text, strlen(text)};
            net_send(conn, &iov, 1, on_raw_sent, &r);
            wait_ms(0);
        }
        net_conn_close(conn);
    }
    for (int i = 0; i < 100 && http_server_connections(server); i++)
        wait_ms(20);
    assert_int_equal(http_server_connections(server), 0);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(good_requests),
        TEST(bytes_may_come_one_by_one),
        TEST(pipelined_requests_are_answered_in_order),
        TEST(a_body_that_asks_first_is_told_to_go_on),
        TEST(large_replies_and_clients_that_leave_them),
        TEST(what_a_handler_may_ask),
        TEST(bad_requests_are_refused),
        TEST(lengths_leave_no_doubt),
        TEST(heads_are_bounded),
        TEST(slow_clients_are_cut_off),
        TEST(a_reader_that_stops_reading_is_cut_off),
        TEST(long_polls_notice_clients_that_go),
        TEST(connections_are_bounded),
        TEST(a_thousand_that_come_and_go),
        cmocka_unit_test_setup_teardown(calls, setup_mem, teardown),
        cmocka_unit_test_setup_teardown(calls, setup_sockets, teardown),
        cmocka_unit_test_setup_teardown(vanishing_sockets, setup_sockets, teardown),
    };
    struct yk_rng rng;
    yk_rng_seed(&rng, 1);
    large = malloc(LARGE);
    for (size_t i = 0; i < LARGE; i++)
        large[i] = (uint8_t)yk_rng_next(&rng);
    int rc = cmocka_run_group_tests(tests, NULL, NULL);
    free(large);
    return rc;
}
