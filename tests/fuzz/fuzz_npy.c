/* .npy headers: whatever is taken must fit the input. */
#include "common/npy.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct npy n;
    struct yk_diag why;
    if (npy_parse(data, size, (int64_t)size, &n, &why) == YK_OK) {
        struct yk_buf again = {0};
        if (n.offset > size || n.bytes != (int64_t)(size - n.offset) || npy_header(&n.shape, &again) != YK_OK)
            abort();
        yk_buf_free(&again);
    }
    return 0;
}
