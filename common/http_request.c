/* What a handler may ask about its request, and the status that fits an error. */
#include "common/http_conn.h"

#include <ctype.h>
#include <string.h>
#include <strings.h>

const char *http_header(const struct http_request *r, const char *name)
{
    const struct http_conn *c = (const struct http_conn *)r;
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
