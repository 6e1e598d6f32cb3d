/* Images: the first bytes choose what becomes of the picture that the rest may be. */
#include "agent/image.h"

#include <stdlib.h>

#define PIXELS ((int64_t)1 << 20)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct image in = {0};
    struct yk_diag why;
    int64_t h = 0, w = 0;
    if (size < 4)
        return 0;
    const uint8_t *how = data;
    data += 4;
    size -= 4;
    if (image_size(data, size, &h, &w, &why) != YK_OK || h < 1 || w < 1 || h > PIXELS / w)
        return 0;
    if (image_decode(data, size, how[0] & 1 ? 1 : 3, &in, &why) != YK_OK)
        return 0;
    if (in.height != h || in.width != w)
        abort(); /* the header and the picture disagree */
    struct image out = {.height = 1 + how[1] % 40, .width = 1 + how[2] % 40, .channels = in.channels};
    out.pixels = calloc((size_t)(out.height * out.width), (size_t)out.channels);
    if (out.pixels)
        image_resize(&in, 1 + how[2], 1 + how[1], (enum preprocess_filter)(how[0] / 2 % 3), how[3] % 32 - 8,
            how[3] / 8 - 8, &out, &why);
    image_free(&in);
    image_free(&out);
    return 0;
}
