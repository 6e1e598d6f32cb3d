/* One flat picture: no scripts, styles in the file, so that it opens in a browser, an editor or a README. Coordinates
 * are in pixels with two digits. Times of the axis begin at the first span. */
#include "scheduler/cli/svg.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "scheduler/cli/cli.h"

#define WIDTH 1200.0
#define MARGIN 16.0
#define ROW 26.0
#define BAR 20.0
#define CHAR 6.6 /* of a letter at 11 px, about */
#define NAME_CHARS_MAX 36
#define TICKS 10

/* Colours that people with any colour vision tell apart (Okabe and Ito), then lighter ones. */
static const char *const colours[] = {
    "#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#8c8c8c", "#b8a800", "#7a5cd6", "#a0522d"};

/* Length of the UTF-8 sequence at s that is a printable character, 0 if there is none. */
static int utf8(const unsigned char *s)
{
    static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    int n = s[0] < 0x80 ? 1 : s[0] >> 5 == 6 ? 2 : s[0] >> 4 == 14 ? 3 : s[0] >> 3 == 30 ? 4 : 0;
    if (n <= 1)
        return n == 1 && s[0] >= 0x20 && s[0] != 0x7f;
    uint32_t c = s[0] & (0xffu >> (n + 1));
    for (int i = 1; i < n; i++) {
        if (s[i] >> 6 != 2)
            return 0;
        c = c << 6 | (s[i] & 0x3f);
    }
    bool bad = c < least[n] || c > 0x10ffff || (c >= 0xd800 && c < 0xe000) || (c >= 0xfffe && c <= 0xffff) || c < 0xa0;
    return bad ? 0 : n;
}

/* At most `most` characters of s, safe between tags and in attributes; cut ones end with an ellipsis. */
static void put_text(struct yk_buf *b, const char *s, int most)
{
    const unsigned char *p = (const unsigned char *)s;
    for (int n = 0; p && *p; n++) {
        int len = utf8(p);
        bool last = p[len ? len : 1] == 0;
        if (n + 1 == most && !last) {
            yk_buf_printf(b, "\xe2\x80\xa6");
            return;
        }
        if (!len)
            yk_buf_printf(b, "?");
        else if (*p == '<' || *p == '>' || *p == '&' || *p == '"')
            yk_buf_printf(b, "&#%d;", *p);
        else
            yk_buf_add(b, p, (size_t)len);
        p += len ? len : 1;
    }
}

static int chars(const char *s)
{
    const unsigned char *p = (const unsigned char *)s;
    int n = 0;
    for (; p && *p; n++) {
        int len = utf8(p);
        p += len ? len : 1;
    }
    return n;
}

yk_err svg_timeline_check(const struct svg_timeline *t, double *first, double *last, struct yk_diag *why)
{
    if (t->n_rows > SVG_ROWS_MAX || t->n_spans > SVG_SPANS_MAX)
        return yk_fail(why, YK_LIMIT, "a timeline of %" PRId32 " rows and %" PRId64 " spans: it takes up to %d and %d",
            t->n_rows, t->n_spans, SVG_ROWS_MAX, SVG_SPANS_MAX);
    *first = 0;
    *last = 0;
    for (int64_t i = 0; i < t->n_spans; i++) {
        const struct svg_span *s = &t->spans[i];
        if (!isfinite(s->begin_ms) || !isfinite(s->end_ms) || s->end_ms < s->begin_ms)
            return yk_fail(
                why, YK_INVAL, "span %" PRId64 " of a timeline goes from %g to %g ms", i, s->begin_ms, s->end_ms);
        if (s->row < 0 || s->row >= t->n_rows || s->kind < 0 || (t->kinds && s->kind >= t->n_kinds))
            return yk_fail(why, YK_INVAL, "span %" PRId64 " of a timeline is in row %" PRId32 ", kind %" PRId32, i,
                s->row, s->kind);
        *first = i ? YK_MIN(*first, s->begin_ms) : s->begin_ms;
        *last = i ? YK_MAX(*last, s->end_ms) : s->end_ms;
    }
    return YK_OK;
}

/* 1, 2 or 5 times a power of ten, so that the axis has at most TICKS steps. */
static double step_of(double span)
{
    double rough = span / TICKS, power = pow(10, floor(log10(rough)));
    return rough <= power ? power : rough <= 2 * power ? 2 * power : rough <= 5 * power ? 5 * power : 10 * power;
}

struct area {
    double left, top, scale, first; /* x = left + (ms - first) * scale */
};

static void put_axis(struct yk_buf *b, const struct svg_timeline *t, const struct area *a, double span)
{
    double step = step_of(span), bottom = a->top + t->n_rows * ROW;
    for (double ms = 0; ms <= span * (1 + 1e-9); ms += step) {
        double x = a->left + ms * a->scale;
        yk_buf_printf(b,
            "<path class=\"g\" d=\"M%.2f %.2fV%.2f\"/><text class=\"s\" x=\"%.2f\" y=\"%.2f\">%g%s</text>\n", x, a->top,
            bottom, x, bottom + 14, ms, ms == 0 ? " ms" : "");
    }
    for (int32_t r = 0; r < t->n_rows; r++) {
        yk_buf_printf(b, "<text class=\"n\" x=\"%.2f\" y=\"%.2f\">", a->left - 8, a->top + r * ROW + ROW / 2 + 4);
        put_text(b, t->rows[r], NAME_CHARS_MAX);
        yk_buf_printf(b, "</text>\n");
    }
}

static void put_span(struct yk_buf *b, const struct svg_span *s, const struct area *a)
{
    double x = a->left + (s->begin_ms - a->first) * a->scale, w = (s->end_ms - s->begin_ms) * a->scale;
    double y = a->top + s->row * ROW + (ROW - BAR) / 2;
    int room = (int)((w - 6) / CHAR), have = chars(s->label);
    yk_buf_printf(b, "<g><title>");
    put_text(b, s->label, 200);
    yk_buf_printf(b, "%s%.3f ms, at %.3f ms", have ? ": " : "", s->end_ms - s->begin_ms, s->begin_ms - a->first);
    if (s->about && *s->about) {
        yk_buf_printf(b, "\n");
        put_text(b, s->about, 1000);
    }
    yk_buf_printf(b, "</title><rect class=\"b\" x=\"%.2f\" y=\"%.2f\" width=\"%.2f\" height=\"%.0f\" fill=\"%s\"/>", x,
        y, YK_MAX(w, 0.3), BAR, colours[(size_t)s->kind % YK_COUNT(colours)]);
    if (have && (have <= room || room >= 4)) {
        yk_buf_printf(b, "<text class=\"l\" x=\"%.2f\" y=\"%.2f\">", x + 3, y + BAR / 2 + 4);
        put_text(b, s->label, room);
        yk_buf_printf(b, "</text>");
    }
    yk_buf_printf(b, "</g>\n");
}

static void put_legend(struct yk_buf *b, const struct svg_timeline *t, double *top)
{
    double x = MARGIN;
    if (!t->kinds || t->n_kinds == 0)
        return;
    for (int32_t k = 0; k < t->n_kinds; k++) {
        double w = YK_MIN(chars(t->kinds[k]), NAME_CHARS_MAX) * CHAR + 34;
        if (x + w > WIDTH - MARGIN && x > MARGIN) {
            x = MARGIN;
            *top += 18;
        }
        yk_buf_printf(b,
            "<rect x=\"%.2f\" y=\"%.2f\" width=\"12\" height=\"12\" fill=\"%s\"/><text x=\"%.2f\" y=\"%.2f\">", x, *top,
            colours[(size_t)k % YK_COUNT(colours)], x + 17, *top + 10);
        put_text(b, t->kinds[k], NAME_CHARS_MAX);
        yk_buf_printf(b, "</text>\n");
        x += w;
    }
    *top += 24;
}

static double legend_height(const struct svg_timeline *t)
{
    struct yk_buf none = {0};
    double top = 0;
    put_legend(&none, t, &top);
    yk_buf_free(&none);
    return top;
}

yk_err svg_timeline(const struct svg_timeline *t, struct yk_buf *out, struct yk_diag *why)
{
    double first = 0, last = 0;
    yk_err err = svg_timeline_check(t, &first, &last, why);
    if (err)
        return err;
    int longest = 4;
    for (int32_t r = 0; r < t->n_rows; r++)
        longest = YK_MAX(longest, YK_MIN(chars(t->rows[r]), NAME_CHARS_MAX));
    double span = last > first ? last - first : 1, top = 44;
    struct area a = {.left = MARGIN + longest * CHAR + 10, .first = first};
    a.scale = (WIDTH - MARGIN - a.left) / span;
    a.top = top + legend_height(t);
    double height = a.top + t->n_rows * ROW + 30;
    yk_buf_printf(out,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%.0f\" height=\"%.0f\" viewBox=\"0 0 %.0f %.0f\">\n<title>",
        WIDTH, height, WIDTH, height);
    put_text(out, t->title, 200);
    yk_buf_printf(out,
        "</title>\n<style>text{font:11px ui-monospace,Menlo,Consolas,monospace;fill:#222}"
        ".h{font-size:15px;font-weight:bold}.n{text-anchor:end}.s{text-anchor:middle;fill:#666}"
        ".l{fill:#fff;pointer-events:none}.g{stroke:#ddd}.b{stroke:#fff;stroke-width:.4}</style>\n"
        "<rect width=\"100%%\" height=\"100%%\" fill=\"#fff\"/>\n<text class=\"h\" x=\"%.0f\" y=\"28\">",
        MARGIN);
    put_text(out, t->title, 150);
    yk_buf_printf(out, "</text>\n");
    put_legend(out, t, &top);
    put_axis(out, t, &a, span);
    for (int64_t i = 0; i < t->n_spans; i++)
        put_span(out, &t->spans[i], &a);
    yk_buf_printf(out, "</svg>\n");
    return out->failed ? yk_fail(why, YK_NOMEM, "no memory for a timeline of %" PRId64 " spans", t->n_spans) : YK_OK;
}

yk_err svg_write(const char *path, const struct svg_timeline *t, struct yk_diag *why)
{
    struct yk_buf text = {0};
    yk_err err = svg_timeline(t, &text, why);
    if (!err)
        err = cli_write_file(path, text.data, text.len, why);
    yk_buf_free(&text);
    return err;
}
