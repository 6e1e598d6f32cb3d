/* JPEG by libjpeg-turbo, with the settings of Pillow (exact integer DCT, smooth upsampling). The library's error exit
 * jumps back here, so nothing of it ends the process; a warning that means damaged data is an error too. */
#include "agent/image_priv.h"

#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>

#include <jpeglib.h>

#include <jerror.h>

struct reader {
    struct jpeg_decompress_struct jpeg;
    struct jpeg_error_mgr errors;
    struct jpeg_progress_mgr progress;
    jmp_buf back;
    uint8_t *row;
    struct yk_diag *why;
    yk_err err;
};

static void fail_now(struct reader *r, yk_err err, const char *text)
{
    r->err = yk_fail(r->why, err, "%s", text);
    longjmp(r->back, 1);
}

static void on_error(j_common_ptr c)
{
    struct reader *r = c->client_data;
    char text[JMSG_LENGTH_MAX], full[JMSG_LENGTH_MAX + 32];
    int code = c->err->msg_code;
    c->err->format_message(c, text);
    snprintf(full, sizeof full, "JPEG: %s", text);
    fail_now(r, code == JERR_OUT_OF_MEMORY ? YK_NOMEM : YK_FORMAT, full);
}

/* Level -1 is a warning. Harmless ones are about what surrounds the picture. */
static void on_message(j_common_ptr c, int level)
{
    struct reader *r = c->client_data;
    int code = c->err->msg_code;
    if (level >= 0 || code == JWRN_EXTRANEOUS_DATA || code == JWRN_ADOBE_XFORM || code == JWRN_JFIF_MAJOR ||
        code == JWRN_BOGUS_ICC || code == JWRN_BOGUS_PROGRESSION)
        return;
    if (code == JWRN_JPEG_EOF)
        fail_now(r, YK_FORMAT, "the JPEG is cut: it ends before the picture does");
    on_error(c);
}

static void on_progress(j_common_ptr c)
{
    struct reader *r = c->client_data;
    if (r->jpeg.input_scan_number > IMAGE_SCANS_LIMIT) {
        char text[80];
        snprintf(text, sizeof text, "the JPEG has more than the limit of %d scans", IMAGE_SCANS_LIMIT);
        fail_now(r, YK_LIMIT, text);
    }
}

static uint8_t multiply(unsigned a, unsigned b)
{
    unsigned t = a * b + 128;
    return (uint8_t)(((t >> 8) + t) >> 8);
}

/* Four inks, stored inverted as Adobe does, into RGB. */
static void from_inks(const uint8_t *in, size_t n, uint8_t *rgb)
{
    for (size_t i = 0; i < n; i++)
        for (size_t c = 0; c < 3; c++)
            rgb[3 * i + c] = (uint8_t)(in[4 * i + 3] - multiply(255u - in[4 * i + c], in[4 * i + 3]));
}

static void convert(struct reader *r, uint8_t *row, size_t n, int channels, uint8_t *to)
{
    int have = r->jpeg.output_components;
    if (have == 4) {
        from_inks(row, n, channels == 3 ? to : row); /* in place: it shrinks */
        have = 3;
    } else if (channels == have) {
        return; /* was read there */
    }
    if (channels == 1 && have == 3)
        image_gray(row, n, to);
    for (size_t i = 0; channels == 3 && have == 1 && i < n; i++)
        to[3 * i] = to[3 * i + 1] = to[3 * i + 2] = row[i];
}

static void read_pixels(struct reader *r, struct image *out)
{
    struct jpeg_decompress_struct *j = &r->jpeg;
    size_t n = (size_t)out->width;
    if (j->num_components == 1)
        j->out_color_space = JCS_GRAYSCALE;
    else if (j->num_components == 3)
        j->out_color_space = JCS_RGB;
    else if (j->num_components == 4)
        j->out_color_space = JCS_CMYK;
    else
        fail_now(r, YK_UNSUPPORTED, "a JPEG of 2 components; 1, 3 and 4 are read");
    jpeg_start_decompress(j);
    bool direct = j->output_components == out->channels;
    if (!direct)
        r->row = yk_try_alloc(n, (size_t)j->output_components);
    if (!direct && !r->row)
        fail_now(r, YK_NOMEM, "no memory for a row of pixels");
    while (j->output_scanline < j->output_height) {
        uint8_t *to = out->pixels + j->output_scanline * n * (size_t)out->channels;
        JSAMPROW row = direct ? to : r->row;
        if (jpeg_read_scanlines(j, &row, 1) == 1)
            convert(r, row, n, out->channels, to);
    }
}

yk_err image_jpeg(const uint8_t *data, size_t len, bool size_only, struct image *out, struct yk_diag *why)
{
    struct reader *r = yk_xalloc(sizeof *r);
    r->why = why;
    r->jpeg.err = jpeg_std_error(&r->errors);
    r->jpeg.client_data = r;
    r->errors.error_exit = on_error;
    r->errors.emit_message = on_message;
    if (setjmp(r->back) == 0) {
        jpeg_create_decompress(&r->jpeg);
        jpeg_mem_src(&r->jpeg, data, len);
        r->progress.progress_monitor = on_progress;
        r->jpeg.progress = &r->progress;
        jpeg_read_header(&r->jpeg, TRUE);
        out->height = r->jpeg.image_height;
        out->width = r->jpeg.image_width;
        if (!size_only)
            r->err = image_alloc(out, why);
        if (!size_only && !r->err)
            read_pixels(r, out);
    }
    yk_err err = r->err;
    jpeg_destroy_decompress(&r->jpeg);
    free(r->row);
    free(r);
    return err;
}
