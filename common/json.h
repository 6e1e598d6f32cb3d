/* JSON: a bounded reader (depth <= 64, size given, duplicate keys refused, numbers checked) and a streaming writer.
 * The home of jansson. */
#ifndef YK_JSON_H
#define YK_JSON_H

#include "common/yk.h"

struct json; /* borrowed node of a document; the document owns all nodes */

enum json_kind { JSON_NULL, JSON_BOOL, JSON_INT, JSON_REAL, JSON_STRING, JSON_ARRAY, JSON_OBJECT };

yk_err json_parse(const char *text, size_t len, struct json **doc, struct yk_diag *why); /* why has line and column */
yk_err json_load(const char *path, size_t limit_bytes, struct json **doc, struct yk_diag *why);
void json_free(struct json *doc); /* root only; NULL allowed */

enum json_kind json_kind(const struct json *j);
const struct json *json_find(const struct json *object, const char *key); /* NULL if absent or not an object */
size_t json_len(const struct json *array_or_object);
const struct json *json_at(const struct json *array, size_t i);
const char *json_key(const struct json *object, size_t i); /* in file order */
const struct json *json_value(const struct json *object, size_t i);
bool json_bool(const struct json *j, bool otherwise);
int64_t json_i64(const struct json *j, int64_t otherwise); /* also takes an integral real */
double json_f64(const struct json *j, double otherwise);
const char *json_str(const struct json *j, const char *otherwise);

/* Typed members of an object. Absent or null: YK_NOTFOUND if required, else OK with the output untouched.
 * A wrong type or a value outside [lo, hi] is YK_INVAL and why names the key, the limit and what was given. */
yk_err json_get_i64(
    const struct json *o, const char *key, bool required, int64_t lo, int64_t hi, int64_t *out, struct yk_diag *why);
yk_err json_get_f64(
    const struct json *o, const char *key, bool required, double lo, double hi, double *out, struct yk_diag *why);
yk_err json_get_bool(const struct json *o, const char *key, bool required, bool *out, struct yk_diag *why);
yk_err json_get_str(const struct json *o, const char *key, bool required, const char **out, struct yk_diag *why);
/* Refuses members that are not in the NULL-ended list: "unknown key 'x' (known: a, b)". */
yk_err json_only(const struct json *o, const char *const *known, struct yk_diag *why);

/* Writer: commas, quotes and escapes are its business. indent 0 writes one line. Check buf.failed at the end. */
struct json_out {
    struct yk_buf *buf;
    int depth, indent;
    bool comma, after_key;
};
void json_out_init(struct json_out *o, struct yk_buf *buf, int indent);
void json_open(struct json_out *o, char bracket);  /* '{' or '[' */
void json_close(struct json_out *o, char bracket); /* '}' or ']' */
void json_put_key(struct json_out *o, const char *key);
void json_put_str(struct json_out *o, const char *s); /* NULL writes null; invalid UTF-8 becomes U+FFFD */
void json_put_i64(struct json_out *o, int64_t v);
void json_put_f64(struct json_out *o, double v); /* shortest text that reads back the same; NaN and infinities: null */
void json_put_bool(struct json_out *o, bool v);
void json_put_null(struct json_out *o);
void json_put_raw(struct json_out *o, const char *json, size_t len); /* already JSON */

#endif
