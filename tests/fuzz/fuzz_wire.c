/* The first byte is a message type, the rest its msgpack form. What decodes must encode and decode to the same bytes.
 */
#include "common/wire.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct wire_msg msg, again;
    struct yk_buf a = {0}, b = {0};
    struct yk_diag why = {{0}};
    if (size == 0)
        return 0;
    yk_err err = wire_decode(data[0], data + 1, size - 1, &msg, &why);
    if (err) {
        if (!why.text[0])
            abort();
        return 0;
    }
    if (yk_arena_bytes(msg.arena) > 16384 + 24 * size)
        abort();
    /* Short forms grow when written in full; only that may stop the way back. */
    if (wire_encode(msg.type, &msg.as, &a) != YK_OK)
        abort();
    err = wire_decode(msg.type, a.data, a.len, &again, &why);
    if (err && err != YK_LIMIT)
        abort();
    if (!err) {
        if (wire_encode(again.type, &again.as, &b) != YK_OK || a.len != b.len || memcmp(a.data, b.data, a.len) != 0)
            abort();
        wire_free(&again);
    }
    wire_free(&msg);
    yk_buf_free(&a);
    yk_buf_free(&b);
    return 0;
}
