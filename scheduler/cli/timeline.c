#include "scheduler/cli/timeline.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "scheduler/cli/svg.h"

#define NAME_MOST 28 /* letters of a row's name in a terminal */
#define NARROWEST 40
#define KINDS_MAX 1000

/* What bars of the first kinds are made of in a terminal; of the others the last. */
static const char fills[] = "=-#~+:%o*x";

struct timeline {
    char *title;
    char **rows, **kinds;
    int32_t n_rows, n_kinds;
    struct svg_span *spans; /* own their texts */
    int64_t n_spans, cap_spans;
};

struct timeline *timeline_open(const char *title)
{
    struct timeline *t = yk_xalloc(sizeof *t);
    t->title = yk_xstrdup(title ? title : "");
    return t;
}

static void free_list(char **list, int32_t n)
{
    for (int32_t i = 0; i < n; i++)
        free(list[i]);
    free(list);
}

void timeline_close(struct timeline *t)
{
    if (!t)
        return;
    free_list(t->rows, t->n_rows);
    free_list(t->kinds, t->n_kinds);
    for (int64_t i = 0; i < t->n_spans; i++) {
        free((void *)t->spans[i].label);
        free((void *)t->spans[i].about);
    }
    free(t->spans);
    free(t->title);
    free(t);
}

static int32_t place(char ***list, int32_t *n, const char *name)
{
    for (int32_t i = 0; i < *n; i++)
        if (strcmp((*list)[i], name) == 0)
            return i;
    *list = yk_xrealloc(*list, ((size_t)*n + 1) * sizeof **list);
    (*list)[*n] = yk_xstrdup(name);
    return (*n)++;
}

int32_t timeline_row(struct timeline *t, const char *name)
{
    return place(&t->rows, &t->n_rows, name ? name : "");
}

int32_t timeline_kind(struct timeline *t, const char *name)
{
    return place(&t->kinds, &t->n_kinds, name ? name : "");
}

void timeline_add(
    struct timeline *t, int32_t row, int32_t kind, double start_ms, double end_ms, const char *label, const char *about)
{
    if (t->n_spans == t->cap_spans) {
        t->cap_spans = t->cap_spans ? 2 * t->cap_spans : 64;
        t->spans = yk_xrealloc(t->spans, (size_t)t->cap_spans * sizeof *t->spans);
    }
    t->spans[t->n_spans++] = (struct svg_span){
        row, kind, start_ms, end_ms, label ? yk_xstrdup(label) : NULL, about ? yk_xstrdup(about) : NULL};
}

int64_t timeline_bars(const struct timeline *t)
{
    return t->n_spans;
}

/* ---- from JSON ---- */

static yk_err read_event(
    struct timeline *t, const struct json *e, const int32_t *rows, int64_t n_rows, struct yk_diag *why)
{
    int64_t row = 0;
    double start = 0, end = 0;
    const char *kind = "", *label = NULL, *about = NULL;
    yk_err err = json_get_i64(e, "row", true, 0, n_rows - 1, &row, why);
    if (!err)
        err = json_get_f64(e, "start_ms", true, -1e15, 1e15, &start, why);
    if (!err)
        err = json_get_f64(e, "end_ms", true, -1e15, 1e15, &end, why);
    if (!err)
        err = json_get_str(e, "kind", true, &kind, why);
    if (!err)
        err = json_get_str(e, "label", false, &label, why);
    if (!err)
        err = json_get_str(e, "about", false, &about, why);
    if (err == YK_NOTFOUND)
        err = YK_INVAL;
    if (!err && end < start)
        err = yk_fail(why, YK_INVAL, "it ends at %g ms and begins at %g ms", end, start);
    int32_t k = err ? 0 : timeline_kind(t, kind);
    if (!err && t->n_kinds > KINDS_MAX)
        err = yk_fail(why, YK_LIMIT, "there are more than %d kinds of bars", KINDS_MAX);
    if (!err)
        timeline_add(t, rows[row], k, start, end, label, about);
    return err;
}

yk_err timeline_read(struct timeline *t, const struct json *j, struct yk_diag *why)
{
    const struct json *rows = json_find(j, "rows"), *events = json_find(j, "events");
    if (!rows || json_kind(rows) != JSON_ARRAY || !events || json_kind(events) != JSON_ARRAY)
        return yk_fail(why, YK_INVAL, "a timeline is an object with arrays `rows` and `events`");
    if (json_len(rows) > SVG_ROWS_MAX || json_len(events) > SVG_SPANS_MAX)
        return yk_fail(why, YK_LIMIT, "a timeline of %zu rows and %zu events: it takes up to %d and %d", json_len(rows),
            json_len(events), SVG_ROWS_MAX, SVG_SPANS_MAX);
    int32_t *at = yk_xalloc((json_len(rows) + 1) * sizeof *at);
    yk_err err = YK_OK;
    for (size_t i = 0; i < json_len(rows) && !err; i++) {
        const char *name = json_str(json_at(rows, i), NULL);
        if (name)
            at[i] = timeline_row(t, name);
        else
            err = yk_fail(why, YK_INVAL, "rows[%zu] of a timeline is not a name", i);
    }
    for (size_t i = 0; i < json_len(events) && !err; i++)
        if ((err = read_event(t, json_at(events, i), at, (int64_t)json_len(rows), why)))
            err = yk_wrap(why, err, "events[%zu] of a timeline", i);
    free(at);
    return err;
}

/* ---- drawing ---- */

static struct svg_timeline picture(const struct timeline *t)
{
    return (struct svg_timeline){.title = t->title,
        .rows = (const char *const *)t->rows,
        .n_rows = t->n_rows,
        .kinds = (const char *const *)t->kinds,
        .n_kinds = t->n_kinds,
        .spans = t->spans,
        .n_spans = t->n_spans};
}

yk_err timeline_write_svg(const struct timeline *t, const char *path, struct yk_diag *why)
{
    struct svg_timeline p = picture(t);
    return svg_write(path, &p, why);
}

/* At most `most` letters, printable ASCII; others become '?'. */
static int32_t put_plain(struct yk_buf *out, const char *s, int32_t most)
{
    int32_t n = 0;
    for (; s && s[n] && n < most; n++) {
        char letter = s[n] >= 0x20 && s[n] < 0x7f ? s[n] : '?';
        yk_buf_add(out, &letter, 1);
    }
    return n;
}

static char fill_of(int32_t kind)
{
    return fills[YK_MIN((size_t)kind, sizeof fills - 2)];
}

struct cells {      /* of one row */
    double *share;  /* by column: how much of it the strongest bar takes */
    int64_t *owner; /* by column: that bar; -1 none */
    char *text;
};

/* Gives each column to the bar that takes most of it; what several short ones take together counts for the last. */
static void fill_row(
    const struct timeline *t, int32_t row, double first, double per_column, int32_t columns, struct cells *c)
{
    for (int32_t i = 0; i < columns; i++) {
        c->share[i] = 0;
        c->owner[i] = -1;
        c->text[i] = ' ';
    }
    for (int64_t k = 0; k < t->n_spans; k++) {
        const struct svg_span *s = &t->spans[k];
        if (s->row != row)
            continue;
        double from = (s->begin_ms - first) / per_column, to = (s->end_ms - first) / per_column;
        for (int32_t i = (int32_t)YK_MAX(from, 0.0); i < columns && i < to; i++) {
            double part = YK_MIN(to, i + 1.0) - YK_MAX(from, (double)i);
            bool takes = c->owner[i] < 0 || part >= 0.5 || c->share[i] < 0.5;
            c->share[i] += part;
            if (takes)
                c->owner[i] = k;
        }
    }
    for (int32_t i = 0; i < columns; i++) {
        int64_t k = c->share[i] >= 0.5 - 1e-9 ? c->owner[i] : -1;
        if (k < 0)
            continue;
        int32_t end = i + 1;
        while (end < columns && c->owner[end] == k && c->share[end] >= 0.5 - 1e-9)
            end++;
        const char *label = t->spans[k].label;
        size_t letters = label ? strlen(label) : 0;
        for (int32_t x = i; x < end; x++)
            c->text[x] = fill_of(t->spans[k].kind);
        /* The label where all of it and a column of the bar fit: else no part of it, which would say something else. */
        if (letters > 0 && letters < (size_t)(end - i))
            for (size_t x = 0; x < letters; x++)
                c->text[i + (int32_t)x] = label[x] >= 0x20 && label[x] < 0x7f ? label[x] : '?';
        i = end - 1;
    }
}

static void put_bottom(const struct timeline *t, int32_t name_width, int32_t columns, double span, struct yk_buf *out)
{
    char end[32];
    int n = snprintf(end, sizeof end, "%.4g ms", span);
    yk_buf_printf(out, "%*s  0%*s\n", (int)name_width, "", (int)YK_MAX(columns - 1, n + 1), end);
    int32_t used = 0;
    for (int32_t k = 0; k < t->n_kinds; k++) {
        if (used == 0)
            yk_buf_printf(out, "%*s ", (int)name_width, "");
        yk_buf_printf(out, " %c ", fill_of(k));
        used += 3 + put_plain(out, t->kinds[k], NAME_MOST);
        if (used > columns - 12 || k + 1 == t->n_kinds) {
            yk_buf_printf(out, "\n");
            used = 0;
        }
    }
}

yk_err timeline_text(const struct timeline *t, int32_t width, struct yk_buf *out, struct yk_diag *why)
{
    struct svg_timeline p = picture(t);
    double first, last;
    int32_t name_width = 4;
    yk_err err = svg_timeline_check(&p, &first, &last, why);
    if (err)
        return err;
    for (int32_t r = 0; r < t->n_rows; r++)
        name_width = YK_MAX(name_width, (int32_t)YK_MIN(strlen(t->rows[r]), (size_t)NAME_MOST));
    int32_t columns = YK_MAX(YK_MIN(width, 1000), NARROWEST) - name_width - 3;
    double span = last > first ? last - first : 1;
    struct cells c = {yk_xalloc((size_t)columns * sizeof *c.share), yk_xalloc((size_t)columns * sizeof *c.owner),
        yk_xalloc((size_t)columns)};
    for (int32_t r = 0; r < t->n_rows; r++) {
        fill_row(t, r, first, span / columns, columns, &c);
        int32_t n = put_plain(out, t->rows[r], NAME_MOST);
        yk_buf_printf(out, "%*s |%.*s|\n", (int)(name_width - n), "", (int)columns, c.text);
    }
    put_bottom(t, name_width, columns, span, out);
    free(c.share);
    free(c.owner);
    free(c.text);
    return out->failed ? yk_fail(why, YK_NOMEM, "no memory for a timeline of %" PRId64 " bars", t->n_spans) : YK_OK;
}

int32_t timeline_columns(void)
{
    struct winsize size = {0};
    return ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 100;
}
