/* JSON text: what was read is written, and reads back as the same. */
#include "common/json.h"

#include <stdlib.h>
#include <string.h>

static void write_node(struct json_out *o, const struct json *j)
{
    switch (json_kind(j)) {
    case JSON_NULL:
        json_put_null(o);
        break;
    case JSON_BOOL:
        json_put_bool(o, json_bool(j, false));
        break;
    case JSON_INT:
        json_put_i64(o, json_i64(j, 0));
        break;
    case JSON_REAL:
        json_put_f64(o, json_f64(j, 0));
        break;
    case JSON_STRING:
        json_put_str(o, json_str(j, NULL));
        break;
    case JSON_ARRAY:
        json_open(o, '[');
        for (size_t i = 0; i < json_len(j); i++)
            write_node(o, json_at(j, i));
        json_close(o, ']');
        break;
    case JSON_OBJECT:
        json_open(o, '{');
        for (size_t i = 0; i < json_len(j); i++) {
            json_put_key(o, json_key(j, i));
            write_node(o, json_value(j, i));
        }
        json_close(o, '}');
        break;
    }
}

static struct yk_buf text_of(const struct json *j, int indent)
{
    struct yk_buf b = {0};
    struct json_out o;
    json_out_init(&o, &b, indent);
    write_node(&o, j);
    if (b.failed)
        abort();
    return b;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct json *j, *again;
    struct yk_diag why;
    if (json_parse((const char *)data, size, &j, &why) != YK_OK)
        return 0;
    struct yk_buf a = text_of(j, (int)(size % 3));
    if (json_parse((const char *)a.data, a.len, &again, &why) != YK_OK)
        abort();
    struct yk_buf b = text_of(again, (int)(size % 3));
    if (a.len != b.len || memcmp(a.data, b.data, a.len) != 0)
        abort();
    yk_buf_free(&a);
    yk_buf_free(&b);
    json_free(j);
    json_free(again);
    return 0;
}
