/* A timeline as an SVG picture: rows (devices, links, kinds of ops) of labelled spans over one axis of time. */
#ifndef YK_SVG_H
#define YK_SVG_H

#include "common/yk.h"

struct svg_span {
    int32_t row, kind; /* positions in the lists below */
    double begin_ms, end_ms;
    const char *label; /* written on the span where it fits; NULL or "": none */
    const char *about; /* shown when pointed at, with label and times; NULL: nothing more */
};

struct svg_timeline {
    const char *title;
    const char *const *rows; /* names, drawn from the top down */
    int32_t n_rows;
    const char *const *kinds; /* names: a colour each, with a legend; NULL: one colour */
    int32_t n_kinds;
    const struct svg_span *spans; /* in any order; those of one row may overlap (the later in the list is on top) */
    int64_t n_spans;
};

#define SVG_SPANS_MAX 200000
#define SVG_ROWS_MAX 2000

/* Whether it can be drawn; the first begin and the last end of its spans, 0 if there are none. Errors: see below. */
yk_err svg_timeline_check(const struct svg_timeline *t, double *first_ms, double *last_ms, struct yk_diag *why);
/* The file's text. Names may be any bytes: what is not printable UTF-8 is replaced. The same input gives the same text.
 * Errors: YK_INVAL (a time that is not finite, or ends before it begins; a row or kind that is not there), YK_LIMIT,
 * YK_NOMEM. Owner: out is the caller's, added to. */
yk_err svg_timeline(const struct svg_timeline *t, struct yk_buf *out, struct yk_diag *why);
/* The same into a file, as cli_write_file does it. */
yk_err svg_write(const char *path, const struct svg_timeline *t, struct yk_diag *why);

#endif
