/* When what ran, or is to run: rows (devices, links) of bars, read from what REST answers or put together here, drawn
 * as SVG (svg.h) or as text for a terminal. */
#ifndef YK_CLI_TIMELINE_H
#define YK_CLI_TIMELINE_H

#include "common/json.h"

struct timeline;

/* title is copied. */
struct timeline *timeline_open(const char *title);
void timeline_close(struct timeline *t); /* NULL allowed */
/* Place of the row of that name; a new one goes below the others. The same of kinds, which are the colours. */
int32_t timeline_row(struct timeline *t, const char *name);
int32_t timeline_kind(struct timeline *t, const char *name);
/* A bar. label is short ("F3"): written on it where it fits, its first letter in a terminal; about is shown when the
 * SVG's bar is pointed at. Both are copied; NULL: none. Times and places are checked when it is drawn. */
void timeline_add(struct timeline *t, int32_t row, int32_t kind, double start_ms, double end_ms, const char *label,
    const char *about);
int64_t timeline_bars(const struct timeline *t);

/* Adds the bars of {"rows": ["agent pc", ...], "events": [{"row": 0, "kind": "forward", "start_ms", "end_ms",
 * "label"?, "about"?}, ...]}, as plans and measured steps have them.
 * Errors: YK_INVAL (a key that is missing or of another type, with its path), YK_LIMIT (more than SVG takes). */
yk_err timeline_read(struct timeline *t, const struct json *j, struct yk_diag *why);

/* A picture into a file. Errors: as svg_write. */
yk_err timeline_write_svg(const struct timeline *t, const char *path, struct yk_diag *why);
/* Lines of `width` columns (at least 40), printable ASCII only: a row each, an axis, and what the kinds look like. A
 * column shows what takes most of its time, a blank where that is less than half of it.
 * Errors: YK_INVAL, YK_LIMIT, as svg_timeline; YK_NOMEM. Owner: out is the caller's, added to. */
yk_err timeline_text(const struct timeline *t, int32_t width, struct yk_buf *out, struct yk_diag *why);

/* Columns of the terminal that standard output is; 100 where it is none. */
int32_t timeline_columns(void);

#endif
