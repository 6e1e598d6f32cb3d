/* The reader hands the text to jansson and copies its tree into flat arrays in one arena: members keep file order,
 * json_at and json_value cost O(1), and nothing of jansson shows outside. Depth is checked on the text, before jansson
 * recurses. */

/* jansson's enum and ours share names; theirs are renamed while the header is read. */
#define JSON_OBJECT JANSSON_OBJECT
#define JSON_ARRAY JANSSON_ARRAY
#define JSON_STRING JANSSON_STRING
#define JSON_REAL JANSSON_REAL
#define JSON_NULL JANSSON_NULL
#include <jansson.h>
#undef JSON_OBJECT
#undef JSON_ARRAY
#undef JSON_STRING
#undef JSON_REAL
#undef JSON_NULL

#include "common/json.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define JSON_DEPTH_LIMIT 64

struct json {
    enum json_kind kind;
    size_t n; /* of array and object */
    union {
        bool b;
        int64_t i;
        double f;
        const char *s;
        const struct json *at; /* n nodes */
    } u;
    const char **keys; /* of an object */
};

/* The root is the first member, so that the document is freed through it. */
struct document {
    struct json root;
    struct yk_arena *arena;
};

/* ---- reader ---- */

static yk_err check_depth(const char *text, size_t len, struct yk_diag *why)
{
    int depth = 0, line = 1;
    size_t start = 0;
    bool in_string = false;
    for (size_t i = 0; i < len; i++) {
        char c = text[i];
        if (c == '\n') {
            line++;
            start = i + 1;
        } else if (in_string) {
            if (c == '\\')
                i++;
            else if (c == '"')
                in_string = false;
        } else if (c == '"') {
            in_string = true;
        } else if (c == '[' || c == '{') {
            if (++depth > JSON_DEPTH_LIMIT)
                return yk_fail(
                    why, YK_LIMIT, "line %d column %zu: nested deeper than %d", line, i - start + 1, JSON_DEPTH_LIMIT);
        } else if (c == ']' || c == '}') {
            depth--;
        }
    }
    return YK_OK;
}

static bool copy_node(struct yk_arena *a, json_t *from, struct json *to)
{
    switch (json_typeof(from)) {
    case JANSSON_NULL:
        to->kind = JSON_NULL;
        return true;
    case JSON_TRUE:
    case JSON_FALSE:
        to->kind = JSON_BOOL;
        to->u.b = json_is_true(from);
        return true;
    case JSON_INTEGER:
        to->kind = JSON_INT;
        to->u.i = json_integer_value(from);
        return true;
    case JANSSON_REAL:
        to->kind = JSON_REAL;
        to->u.f = json_real_value(from);
        return true;
    case JANSSON_STRING:
        to->kind = JSON_STRING;
        to->u.s = yk_arena_strndup(a, json_string_value(from), json_string_length(from));
        return to->u.s != NULL;
    case JANSSON_ARRAY: {
        to->kind = JSON_ARRAY;
        to->n = json_array_size(from);
        struct json *at = yk_arena_alloc(a, to->n, sizeof *at);
        if (!at)
            return false;
        to->u.at = at;
        for (size_t i = 0; i < to->n; i++)
            if (!copy_node(a, json_array_get(from, i), &at[i]))
                return false;
        return true;
    }
    case JANSSON_OBJECT: {
        to->kind = JSON_OBJECT;
        to->n = json_object_size(from);
        struct json *at = yk_arena_alloc(a, to->n, sizeof *at);
        to->keys = yk_arena_alloc(a, to->n, sizeof *to->keys);
        if (!at || !to->keys)
            return false;
        to->u.at = at;
        size_t i = 0;
        const char *key;
        json_t *value;
        json_object_foreach(from, key, value)
        {
            to->keys[i] = yk_arena_strdup(a, key);
            if (!to->keys[i] || !copy_node(a, value, &at[i]))
                return false;
            i++;
        }
        return true;
    }
    }
    return false;
}

yk_err json_parse(const char *text, size_t len, struct json **doc, struct yk_diag *why)
{
    yk_err err = check_depth(text, len, why);
    if (err)
        return err;
    if (len == 0)
        return yk_fail(why, YK_FORMAT, "the text is empty, JSON is needed");
    json_error_t at;
    json_t *tree = json_loadb(text, len, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY, &at);
    if (!tree) {
        enum json_error_code code = json_error_code(&at);
        return yk_fail(why, code == json_error_out_of_memory ? YK_NOMEM : YK_FORMAT, "line %d column %d: %s", at.line,
            at.column, at.text);
    }
    struct document *d = NULL;
    struct yk_arena *arena = yk_arena_open(0);
    if (arena)
        d = yk_arena_alloc(arena, 1, sizeof *d);
    bool ok = d && copy_node(arena, tree, &d->root);
    json_decref(tree);
    if (!ok) {
        yk_arena_close(arena);
        return yk_fail(why, YK_NOMEM, "out of memory for a JSON document of %zu bytes", len);
    }
    d->arena = arena;
    *doc = &d->root;
    return YK_OK;
}

yk_err json_load(const char *path, size_t limit_bytes, struct json **doc, struct yk_diag *why)
{
    FILE *f = fopen(path, "re");
    if (!f) {
        int e = errno;
        return yk_fail(why, yk_err_from_errno(e), "cannot open '%s': %s", path, strerror(e));
    }
    struct yk_buf text = {0};
    yk_err err = YK_OK;
    for (;;) {
        size_t room = YK_MIN(limit_bytes - text.len + 1, (size_t)64 * 1024), had = text.len;
        uint8_t *at = yk_buf_room(&text, room);
        if (!at) {
            err = yk_fail(why, YK_NOMEM, "out of memory reading '%s'", path);
            break;
        }
        errno = 0;
        size_t got = fread(at, 1, room, f);
        int e = errno;
        text.len = had + got;
        if (text.len > limit_bytes) {
            err = yk_fail(why, YK_LIMIT, "'%s' is larger than %zu bytes", path, limit_bytes);
            break;
        }
        if (got < room) {
            if (ferror(f))
                err = yk_fail(why, yk_err_from_errno(e), "cannot read '%s': %s", path, strerror(e));
            break;
        }
    }
    fclose(f);
    if (!err) {
        err = json_parse(text.data ? (const char *)text.data : "", text.len, doc, why);
        if (err)
            yk_wrap(why, err, "%s", path);
    }
    yk_buf_free(&text);
    return err;
}

void json_free(struct json *doc)
{
    if (doc)
        yk_arena_close(((struct document *)doc)->arena);
}

/* ---- access ---- */

enum json_kind json_kind(const struct json *j)
{
    return j ? j->kind : JSON_NULL;
}

const struct json *json_find(const struct json *object, const char *key)
{
    if (json_kind(object) != JSON_OBJECT)
        return NULL;
    for (size_t i = 0; i < object->n; i++)
        if (strcmp(object->keys[i], key) == 0)
            return &object->u.at[i];
    return NULL;
}

size_t json_len(const struct json *array_or_object)
{
    return array_or_object ? array_or_object->n : 0;
}

const struct json *json_at(const struct json *array, size_t i)
{
    return json_kind(array) == JSON_ARRAY && i < array->n ? &array->u.at[i] : NULL;
}

const char *json_key(const struct json *object, size_t i)
{
    return json_kind(object) == JSON_OBJECT && i < object->n ? object->keys[i] : NULL;
}

const struct json *json_value(const struct json *object, size_t i)
{
    return json_kind(object) == JSON_OBJECT && i < object->n ? &object->u.at[i] : NULL;
}

bool json_bool(const struct json *j, bool otherwise)
{
    return json_kind(j) == JSON_BOOL ? j->u.b : otherwise;
}

static bool integral(const struct json *j, int64_t *out)
{
    if (json_kind(j) == JSON_INT) {
        *out = j->u.i;
        return true;
    }
    if (json_kind(j) == JSON_REAL && j->u.f >= -0x1p63 && j->u.f < 0x1p63 && j->u.f == trunc(j->u.f)) {
        *out = (int64_t)j->u.f;
        return true;
    }
    return false;
}

int64_t json_i64(const struct json *j, int64_t otherwise)
{
    int64_t v;
    return integral(j, &v) ? v : otherwise;
}

double json_f64(const struct json *j, double otherwise)
{
    return json_kind(j) == JSON_REAL ? j->u.f : json_kind(j) == JSON_INT ? (double)j->u.i : otherwise;
}

const char *json_str(const struct json *j, const char *otherwise)
{
    return json_kind(j) == JSON_STRING ? j->u.s : otherwise;
}

/* What was given, for a message: short. */
static const char *shown(const struct json *j, char *out, size_t size)
{
    switch (json_kind(j)) {
    case JSON_NULL:
        return "null";
    case JSON_BOOL:
        return j->u.b ? "true" : "false";
    case JSON_INT:
        snprintf(out, size, "%lld", (long long)j->u.i);
        return out;
    case JSON_REAL:
        snprintf(out, size, "%.17g", j->u.f);
        return out;
    case JSON_STRING:
        snprintf(out, size, "\"%.60s%s\"", j->u.s, strlen(j->u.s) > 60 ? "..." : "");
        return out;
    case JSON_ARRAY:
        return "an array";
    case JSON_OBJECT:
        return "an object";
    }
    return "";
}

/* The member, or NULL with *err set to what the caller returns. */
static const struct json *member(const struct json *o, const char *key, bool required, yk_err *err, struct yk_diag *why)
{
    *err = YK_OK;
    if (json_kind(o) != JSON_OBJECT) {
        *err = yk_fail(why, YK_INVAL, "expected an object with '%s'", key);
        return NULL;
    }
    const struct json *j = json_find(o, key);
    if (j && j->kind != JSON_NULL)
        return j;
    if (required)
        *err = yk_fail(why, YK_NOTFOUND, "'%s' is missing", key);
    return NULL;
}

yk_err json_get_i64(
    const struct json *o, const char *key, bool required, int64_t lo, int64_t hi, int64_t *out, struct yk_diag *why)
{
    yk_err err;
    char text[80];
    const struct json *j = member(o, key, required, &err, why);
    if (!j)
        return err;
    int64_t v;
    if (!integral(j, &v) || v < lo || v > hi)
        return yk_fail(why, YK_INVAL, "'%s' must be an integer from %lld to %lld, not %s", key, (long long)lo,
            (long long)hi, shown(j, text, sizeof text));
    *out = v;
    return YK_OK;
}

yk_err json_get_f64(
    const struct json *o, const char *key, bool required, double lo, double hi, double *out, struct yk_diag *why)
{
    yk_err err;
    char text[80];
    const struct json *j = member(o, key, required, &err, why);
    if (!j)
        return err;
    double v = json_f64(j, NAN);
    if (!(v >= lo && v <= hi))
        return yk_fail(
            why, YK_INVAL, "'%s' must be a number from %g to %g, not %s", key, lo, hi, shown(j, text, sizeof text));
    *out = v;
    return YK_OK;
}

yk_err json_get_bool(const struct json *o, const char *key, bool required, bool *out, struct yk_diag *why)
{
    yk_err err;
    char text[80];
    const struct json *j = member(o, key, required, &err, why);
    if (!j)
        return err;
    if (j->kind != JSON_BOOL)
        return yk_fail(why, YK_INVAL, "'%s' must be true or false, not %s", key, shown(j, text, sizeof text));
    *out = j->u.b;
    return YK_OK;
}

yk_err json_get_str(const struct json *o, const char *key, bool required, const char **out, struct yk_diag *why)
{
    yk_err err;
    char text[80];
    const struct json *j = member(o, key, required, &err, why);
    if (!j)
        return err;
    if (j->kind != JSON_STRING)
        return yk_fail(why, YK_INVAL, "'%s' must be a string, not %s", key, shown(j, text, sizeof text));
    *out = j->u.s;
    return YK_OK;
}

yk_err json_only(const struct json *o, const char *const *known, struct yk_diag *why)
{
    if (json_kind(o) != JSON_OBJECT)
        return yk_fail(why, YK_INVAL, "expected an object");
    for (size_t i = 0; i < o->n; i++) {
        const char *const *k = known;
        while (*k && strcmp(*k, o->keys[i]) != 0)
            k++;
        if (*k)
            continue;
        char list[512] = "";
        size_t used = 0;
        for (k = known; *k && used < sizeof list; k++)
            used += (size_t)snprintf(list + used, sizeof list - used, "%s%s", k == known ? "" : ", ", *k);
        return yk_fail(why, YK_INVAL, "unknown key '%.80s' (known: %s)", o->keys[i], list);
    }
    return YK_OK;
}

/* ---- writer ---- */

void json_out_init(struct json_out *o, struct yk_buf *buf, int indent)
{
    *o = (struct json_out){.buf = buf, .indent = indent};
}

static void new_line(struct json_out *o)
{
    if (o->indent <= 0)
        return;
    yk_buf_add(o->buf, "\n", 1);
    for (int i = 0; i < o->depth * o->indent; i++)
        yk_buf_add(o->buf, " ", 1);
}

/* What goes in front of a value or key. */
static void before(struct json_out *o)
{
    if (o->after_key) {
        o->after_key = false;
        return;
    }
    if (o->comma)
        yk_buf_add(o->buf, ",", 1);
    if (o->depth > 0)
        new_line(o);
}

void json_open(struct json_out *o, char bracket)
{
    before(o);
    yk_buf_add(o->buf, &bracket, 1);
    o->depth++;
    o->comma = false;
}

void json_close(struct json_out *o, char bracket)
{
    bool empty = !o->comma;
    o->depth--;
    if (!empty)
        new_line(o);
    yk_buf_add(o->buf, &bracket, 1);
    o->comma = true;
}

/* Length of the well-formed UTF-8 sequence at s (NUL-ended), 0 if there is none. */
static int sequence(const uint8_t *s)
{
    int n = s[0] < 0x80                   ? 1
            : s[0] >= 0xc2 && s[0] < 0xe0 ? 2
            : (s[0] & 0xf0) == 0xe0       ? 3
            : s[0] < 0xf5 && s[0] >= 0xf0 ? 4
                                          : 0;
    for (int i = 1; i < n; i++)
        if ((s[i] & 0xc0) != 0x80)
            return 0;
    if ((s[0] == 0xe0 && s[1] < 0xa0) || (s[0] == 0xed && s[1] >= 0xa0) || (s[0] == 0xf0 && s[1] < 0x90) ||
        (s[0] == 0xf4 && s[1] >= 0x90))
        return 0;
    return n;
}

static void quoted(struct json_out *o, const char *text)
{
    const uint8_t *s = (const uint8_t *)text;
    yk_buf_add(o->buf, "\"", 1);
    while (*s) {
        int n = sequence(s);
        if (n == 0) {
            yk_buf_add(o->buf, "\xef\xbf\xbd", 3);
            s++;
        } else if (*s == '"' || *s == '\\') {
            char esc[2] = {'\\', (char)*s++};
            yk_buf_add(o->buf, esc, 2);
        } else if (*s == '\n') {
            yk_buf_add(o->buf, "\\n", 2);
            s++;
        } else if (*s < 0x20 || *s == 0x7f) {
            yk_buf_printf(o->buf, "\\u%04x", *s++);
        } else {
            yk_buf_add(o->buf, s, (size_t)n);
            s += n;
        }
    }
    yk_buf_add(o->buf, "\"", 1);
}

void json_put_key(struct json_out *o, const char *key)
{
    before(o);
    quoted(o, key);
    yk_buf_add(o->buf, o->indent > 0 ? ": " : ":", o->indent > 0 ? 2 : 1);
    o->after_key = true;
}

void json_put_raw(struct json_out *o, const char *json, size_t len)
{
    before(o);
    yk_buf_add(o->buf, json, len);
    o->comma = true;
}

void json_put_str(struct json_out *o, const char *s)
{
    if (!s) {
        json_put_null(o);
        return;
    }
    before(o);
    quoted(o, s);
    o->comma = true;
}

void json_put_i64(struct json_out *o, int64_t v)
{
    char text[24];
    json_put_raw(o, text, (size_t)snprintf(text, sizeof text, "%lld", (long long)v));
}

void json_put_f64(struct json_out *o, double v)
{
    if (!isfinite(v)) {
        json_put_null(o);
        return;
    }
    char text[40];
    int n = 0;
    for (int digits = 15; digits <= 17; digits++) { /* %g drops trailing zeros, so fewer digits need no try */
        n = snprintf(text, sizeof text, "%.*g", digits, v);
        if (strtod(text, NULL) == v)
            break;
    }
    /* An integer would lose the sign of zero, and the reader's integers end at 2^63. */
    if (!strpbrk(text, ".e") && (v == 0 ? signbit(v) : fabs(v) >= 0x1p63))
        n = (int)strlen(strcat(text, ".0"));
    json_put_raw(o, text, (size_t)n);
}

void json_put_bool(struct json_out *o, bool v)
{
    json_put_raw(o, v ? "true" : "false", v ? 4 : 5);
}

void json_put_null(struct json_out *o)
{
    json_put_raw(o, "null", 4);
}
