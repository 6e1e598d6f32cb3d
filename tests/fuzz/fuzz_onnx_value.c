/* common/onnx_value: the first byte says what the bytes shall be; what is read is written and read again. */
#include "common/onnx_value.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static bool same(const struct onnx_value *a, const struct onnx_value *b)
{
    if (a->type != b->type || a->n != b->n)
        return false;
    if (a->type == VALUE_TENSOR)
        return shape_equal(&a->shape, &b->shape) && !memcmp(a->data, b->data, (size_t)shape_bytes(&a->shape));
    for (int64_t i = 0; i < a->n; i++)
        if (!same(&a->items[i], &b->items[i]))
            return false;
    return true;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct onnx_value v, again;
    struct yk_buf b = {0};
    char text[64];
    if (size == 0)
        return 0;
    enum value_type type = (enum value_type)(data[0] % 3);
    if (onnx_value_decode(data + 1, size - 1, type, &v, NULL) != YK_OK)
        return 0;
    onnx_value_text(&v, text, sizeof text);
    if (onnx_value_encode(&v, "again", &b, NULL) != YK_OK ||
        onnx_value_decode(b.data, b.len, type, &again, NULL) != YK_OK || !same(&v, &again))
        abort();
    onnx_value_fini(&again);
    yk_buf_free(&b);
    onnx_value_fini(&v);
    return 0;
}
