/* The head of a request: http-parser finds its pieces, and what http-parser lets pass is refused here, so that nobody
 * can read the same bytes as another request than we do: bare CR or LF, folded lines, names with blanks, lengths that
 * come twice or are not plain digits, a Transfer-Encoding of any kind. Bodies are not http-parser's business. */
#include "common/http_conn.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

#define HEAD_LIMIT ((size_t)16 << 10)
#define MAX_LENGTH_DIGITS 18

int http_conn_refuse(struct http_conn *c, int status, const char *fmt, ...)
{
    va_list args;
    if (c->refuse_status)
        return -1;
    c->refuse_status = status;
    va_start(args, fmt);
    vsnprintf(c->refuse_text, sizeof c->refuse_text, fmt, args);
    va_end(args);
    return -1;
}

const char *http_conn_reason(int status)
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

static int add_text(struct http_conn *c, const char *at, size_t len)
{
    yk_buf_add(&c->text, at, len);
    return c->text.failed ? http_conn_refuse(c, 500, "no memory") : 0;
}

static int on_url(http_parser *p, const char *at, size_t len)
{
    struct http_conn *c = p->data;
    c->target_len += len;
    return add_text(c, at, len);
}

static int on_header_field(http_parser *p, const char *at, size_t len)
{
    struct http_conn *c = p->data;
    if (c->at != AT_NAME) {
        if (c->n_headers == HTTP_CONN_MAX_HEADERS)
            return http_conn_refuse(c, 431, "more than %d headers", HTTP_CONN_MAX_HEADERS);
        yk_buf_add(&c->text, "", 1);
        c->headers[c->n_headers].name = c->text.len;
        c->headers[c->n_headers++].value = c->text.len;
        c->at = AT_NAME;
    }
    return add_text(c, at, len);
}

static int on_header_value(http_parser *p, const char *at, size_t len)
{
    struct http_conn *c = p->data;
    if (c->at != AT_VALUE) {
        yk_buf_add(&c->text, "", 1);
        c->headers[c->n_headers - 1].value = c->text.len;
        c->at = AT_VALUE;
    }
    return add_text(c, at, len);
}

static const char *name_at(const struct http_conn *c, int i)
{
    return (const char *)c->text.data + c->headers[i].name;
}

static int check_headers(struct http_conn *c)
{
    static const char token[] = "!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
    static const char *const once[] = {
        "Host", "Content-Length", "Content-Type", "Transfer-Encoding", "Origin", "Authorization", "Expect"};
    int seen[YK_COUNT(once)] = {0};
    for (int i = 0; i < c->n_headers; i++) {
        const char *name = name_at(c, i);
        char *value = (char *)c->text.data + c->headers[i].value;
        for (size_t n = strlen(value); n && (value[n - 1] == ' ' || value[n - 1] == '\t'); n--)
            value[n - 1] = '\0';
        if (!name[0] || name[strspn(name, token)])
            return http_conn_refuse(c, 400, "a header name with a character that names do not have");
        for (size_t k = 0; k < YK_COUNT(once); k++)
            if (strcasecmp(name, once[k]) == 0 && seen[k]++)
                return http_conn_refuse(c, 400, "the header %s comes twice", once[k]);
    }
    return 0;
}

static int check_target(struct http_conn *c, char *target)
{
    if (target[0] != '/')
        return http_conn_refuse(c, 400, "the request target must be a path");
    for (const char *at = target; *at; at++)
        if (*at < 0x21 || *at > 0x7e || *at == '#')
            return http_conn_refuse(c, 400, "a character in the request target that must be percent-encoded");
    char *question = strchr(target, '?');
    c->request.path = target;
    if (question) {
        *question = '\0';
        c->request.query = question + 1;
    }
    return 0;
}

static int check_length(struct http_conn *c)
{
    const char *text = http_header(&c->request, "Content-Length");
    size_t digits = text ? strspn(text, "0123456789") : 0;
    if (!text)
        return 0;
    if (!digits || text[digits])
        return http_conn_refuse(c, 400, "Content-Length is not a number of bytes");
    if (digits > MAX_LENGTH_DIGITS)
        return http_conn_refuse(c, 413, "a body of %.40s bytes", text);
    for (size_t i = 0; i < digits; i++)
        c->request.content_length = c->request.content_length * 10 + (text[i] - '0');
    return 0;
}

static int on_headers_complete(http_parser *p)
{
    struct http_conn *c = p->data;
    yk_buf_add(&c->text, "", 1);
    if (c->text.failed)
        return http_conn_refuse(c, 500, "no memory");
    char *target = (char *)c->text.data;
    target[c->target_len] = '\0';
    c->request.method = http_method_str((enum http_method)p->method);
    if (p->http_major != 1 || p->http_minor > 1)
        return http_conn_refuse(c, 505, "HTTP/1.0 and 1.1 only");
    if (check_headers(c))
        return -1;
    if (http_header(&c->request, "Transfer-Encoding"))
        return http_conn_refuse(c, 411, "send a Content-Length; Transfer-Encoding is not taken");
    if (p->method == HTTP_CONNECT || http_header(&c->request, "Upgrade"))
        return http_conn_refuse(c, 400, "no upgrade and no CONNECT here");
    if (check_target(c, target) || check_length(c))
        return -1;
    if (p->http_minor == 1 && !http_header(&c->request, "Host"))
        return http_conn_refuse(c, 400, "a Host header is needed");
    const char *expect = http_header(&c->request, "Expect");
    if (expect && strcasecmp(expect, "100-continue") != 0)
        return http_conn_refuse(c, 417, "the only expectation met here is 100-continue");
    c->close_after = !http_should_keep_alive(p);
    c->head_done = true;
    return 1; /* the body is not for the parser */
}

static const http_parser_settings settings = {.on_url = on_url,
    .on_header_field = on_header_field,
    .on_header_value = on_header_value,
    .on_headers_complete = on_headers_complete};

void http_conn_begin(struct http_conn *c)
{
    yk_buf_free(&c->text);
    yk_buf_free(&c->body);
    c->n_headers = c->line_end = c->refuse_status = 0;
    c->target_len = c->head_bytes = c->body_left = 0;
    c->at = AT_NOTHING;
    c->line_started = c->head_done = c->started = c->complete = c->replied = false;
    c->request = (struct http_request){.peer = c->peer, .method = "", .path = "", .query = ""};
    http_parser_init(&c->parser, HTTP_REQUEST);
    c->parser.data = c;
}

/* Where the head ends in these bytes, or len. Lines end with CR LF, no line is folded. */
static size_t scan(struct http_conn *c, const uint8_t *data, size_t len)
{
    for (size_t i = 0; i < len; i++) {
        uint8_t ch = data[i];
        bool odd = (c->line_end & 1) != 0; /* a CR waits for its LF */
        if (++c->head_bytes > HEAD_LIMIT) {
            http_conn_refuse(c, 431, "the head of the request is over the limit of %zu bytes", HEAD_LIMIT);
            return i;
        }
        if (odd != (ch == '\n') || ch == 0) {
            http_conn_refuse(c, 400, "lines end with CR LF, and there is no NUL");
            return i;
        }
        if (ch == '\r' || ch == '\n') {
            c->line_end++;
            if (!c->line_started)
                c->line_end &= 1; /* blank lines in front */
        } else {
            if (c->line_end == 2 && (ch == ' ' || ch == '\t')) {
                http_conn_refuse(c, 400, "a folded line");
                return i;
            }
            c->line_end = 0;
            c->line_started = true;
        }
        if (c->line_end == 4)
            return i + 1;
    }
    return len;
}

size_t http_conn_head(struct http_conn *c, const uint8_t *data, size_t len)
{
    size_t n = scan(c, data, len);
    if (c->refuse_status)
        return n;
    size_t used = http_parser_execute(&c->parser, &settings, (const char *)data, n);
    enum http_errno e = HTTP_PARSER_ERRNO(&c->parser);
    if (c->refuse_status)
        return n;
    if (e == HPE_INVALID_TRANSFER_ENCODING)
        http_conn_refuse(c, 411, "send a Content-Length; Transfer-Encoding is not taken");
    else if (e != HPE_OK)
        http_conn_refuse(c, 400, "not a request: %s", http_errno_description(e));
    else if (used != n || (c->line_end == 4) != c->head_done)
        http_conn_refuse(c, 400, "not a request");
    return n;
}
