/* PNG by libpng. Its errors jump back here; chunks that are not about pixels are skipped unread, so that a compressed
 * text or colour profile cannot grow. */
#include "agent/image_priv.h"

#include <setjmp.h>
#include <stdlib.h>
#include <string.h>

#include <png.h>

struct reader {
    png_structp png;
    png_infop info;
    const uint8_t *data;
    size_t len, at;
    uint8_t *wide; /* rows that are converted at the end; NULL: read where they go */
    struct yk_diag *why;
    yk_err err;
};

static void on_error(png_structp png, png_const_charp text)
{
    struct reader *r = png_get_error_ptr(png);
    if (!r->err)
        r->err = yk_fail(r->why, YK_FORMAT, "PNG: %s", text);
    png_longjmp(png, 1);
}

static void on_warning(png_structp png, png_const_charp text)
{
    (void)png;
    (void)text;
}

static void on_read(png_structp png, png_bytep to, size_t n)
{
    struct reader *r = png_get_io_ptr(png);
    if (n > r->len - r->at) {
        r->err = yk_fail(r->why, YK_FORMAT, "the PNG is cut: it ends at offset %zu, before the picture does", r->len);
        png_error(png, "cut");
    }
    memcpy(to, r->data + r->at, n);
    r->at += n;
}

static void skip_chunks(png_structp png)
{
    static const png_byte names[] = "iCCP\0zTXt\0iTXt\0tEXt\0sPLT\0eXIf\0hIST\0tIME";
    png_set_keep_unknown_chunks(png, PNG_HANDLE_CHUNK_NEVER, names, (int)(sizeof names / 5));
}

/* Rows of what libpng gives into what is wanted. */
static void convert(const struct reader *r, int have, bool bits16, struct image *out)
{
    size_t n = (size_t)(out->height * out->width);
    const uint8_t *in = r->wide;
    uint8_t *to = out->pixels;
    if (have == 3) {
        image_gray(in, n, to);
        return;
    }
    for (size_t i = 0; i < n; i++) {
        uint8_t v = bits16 ? (in[2 * i] ? 255 : in[2 * i + 1]) : in[i];
        for (int c = 0; c < out->channels; c++)
            *to++ = v;
    }
}

static void read_pixels(struct reader *r, struct image *out)
{
    png_structp png = r->png;
    int type = png_get_color_type(png, r->info), depth = png_get_bit_depth(png, r->info);
    bool gray = !(type & PNG_COLOR_MASK_COLOR), bits16 = depth == 16 && type == PNG_COLOR_TYPE_GRAY;
    int have = gray ? 1 : 3;
    if (type == PNG_COLOR_TYPE_PALETTE)
        png_set_palette_to_rgb(png);
    if (gray && depth < 8)
        png_set_expand_gray_1_2_4_to_8(png);
    if (depth == 16 && !bits16)
        png_set_strip_16(png);
    png_set_strip_alpha(png);
    int passes = png_set_interlace_handling(png);
    png_read_update_info(png, r->info);
    size_t row = (size_t)out->width * (size_t)(have + bits16), rows = (size_t)out->height;
    if (png_get_rowbytes(png, r->info) != row)
        png_error(png, "a row has another length than its header says");
    uint8_t *to = out->pixels;
    if (have != out->channels || bits16) {
        to = r->wide = yk_try_alloc(rows, row);
        if (!to) {
            r->err = yk_fail(r->why, YK_NOMEM, "no memory for %zu rows of %zu bytes", rows, row);
            return;
        }
    }
    for (int pass = 0; pass < passes; pass++)
        for (size_t y = 0; y < rows; y++)
            png_read_row(png, to + y * row, NULL);
    png_read_end(png, NULL);
    if (r->wide)
        convert(r, have, bits16, out);
}

/* Everything that may jump; nothing of the caller's lives in registers across it. */
static void read_guarded(struct reader *r, bool size_only, struct image *out)
{
    if (setjmp(png_jmpbuf(r->png)))
        return;
    png_set_read_fn(r->png, r, on_read);
    png_set_user_limits(r->png, 0x7fffffff, 0x7fffffff); /* image_alloc has the limit, with a better message */
    skip_chunks(r->png);
    png_read_info(r->png, r->info);
    out->width = png_get_image_width(r->png, r->info);
    out->height = png_get_image_height(r->png, r->info);
    if (size_only)
        return;
    r->err = image_alloc(out, r->why);
    if (!r->err)
        read_pixels(r, out);
}

yk_err image_png(const uint8_t *data, size_t len, bool size_only, struct image *out, struct yk_diag *why)
{
    struct reader *r = yk_xalloc(sizeof *r);
    *r = (struct reader){.data = data, .len = len, .why = why};
    r->png = png_create_read_struct(PNG_LIBPNG_VER_STRING, r, on_error, on_warning);
    r->info = r->png ? png_create_info_struct(r->png) : NULL;
    if (r->info)
        read_guarded(r, size_only, out);
    else
        r->err = yk_fail(why, YK_NOMEM, "no memory for the PNG reader");
    yk_err err = r->err;
    png_destroy_read_struct(&r->png, &r->info, NULL);
    free(r->wide);
    free(r);
    return err;
}
