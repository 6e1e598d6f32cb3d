#include "scheduler/cli/table.h"

#include "common/log.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define CELL_SIZE 160

void table_scaled(double value, const char *suffix, char *out)
{
    static const char *const prefix[] = {"", "k", "M", "G", "T", "P"};
    size_t i = 0;
    while (fabs(value) >= 999.5 && i + 1 < YK_COUNT(prefix)) {
        value /= 1000;
        i++;
    }
    const char *format = i == 0 || fabs(value) >= 99.95 ? "%.0f %sB%s" : "%.1f %sB%s";
    snprintf(out, 32, format, value, prefix[i], suffix);
}

static bool ends(const char *s, const char *with)
{
    size_t n = strlen(s), m = strlen(with);
    return n >= m && strcmp(s + n - m, with) == 0;
}

static void cell_array(const struct json *value, char *out, size_t size)
{
    size_t used = 0;
    out[0] = '\0';
    for (size_t i = 0; i < json_len(value) && used + 2 < size; i++) {
        char item[CELL_SIZE];
        table_cell("", json_at(value, i), item, sizeof item);
        int n = snprintf(out + used, size - used, "%s%s", i ? "," : "", item);
        used += n > 0 ? (size_t)n : 0;
    }
}

void table_cell(const char *key, const struct json *value, char *out, size_t size)
{
    enum json_kind kind = value ? json_kind(value) : JSON_NULL;
    double number = json_f64(value, 0);
    char scaled[32];
    switch (kind) {
    case JSON_NULL:
        snprintf(out, size, "-");
        return;
    case JSON_BOOL:
        snprintf(out, size, "%s", json_bool(value, false) ? "yes" : "no");
        return;
    case JSON_STRING:
        log_escape(json_str(value, ""), strlen(json_str(value, "")), out, size);
        return;
    case JSON_ARRAY:
        cell_array(value, out, size);
        return;
    case JSON_OBJECT:
        snprintf(out, size, "{...}");
        return;
    default:
        break;
    }
    if (strcmp(key, "bytes_per_s") == 0 || ends(key, "_bytes") || strcmp(key, "bytes") == 0) {
        table_scaled(number, ends(key, "_per_s") ? "/s" : "", scaled);
        snprintf(out, size, "%s", scaled);
    } else if (ends(key, "_frac") || strcmp(key, "accuracy") == 0) {
        snprintf(out, size, "%.2f %%", 100 * number);
    } else if (ends(key, "_at")) {
        time_t seconds = (time_t)number;
        struct tm tm;
        localtime_r(&seconds, &tm);
        strftime(out, size, "%Y-%m-%d %H:%M:%S", &tm);
    } else if (kind == JSON_INT) {
        snprintf(out, size, "%lld", (long long)json_i64(value, 0));
    } else {
        snprintf(out, size, fabs(number) >= 100 ? "%.0f" : fabs(number) >= 1 ? "%.2f" : "%.4g", number);
    }
}

/* Columns on the terminal; bytes that continue a UTF-8 character take none. */
static int width_of(const char *s)
{
    int n = 0;
    for (; *s; s++)
        n += ((unsigned char)*s & 0xC0) != 0x80;
    return n;
}

static void pad(FILE *f, int n)
{
    for (; n > 0; n--)
        fputc(' ', f);
}

/* What a table shows: the keys of the first row, or the columns of the listing that are not wide. */
static size_t pick_columns(
    const struct json *first, const struct columns *listing, const char **keys, const char **titles)
{
    size_t n = 0;
    for (size_t k = 0; !listing && k < json_len(first); k++)
        keys[n] = titles[n] = json_key(first, k), n++;
    for (int k = 0; listing && k < listing->n; k++)
        if (!listing->at[k].wide) {
            keys[n] = listing->at[k].name;
            titles[n++] = listing->at[k].title;
        }
    return n;
}

void table_print(const struct json *rows, const struct columns *listing, const char *empty, FILE *f)
{
    size_t n_rows = json_len(rows), most = n_rows ? json_len(json_at(rows, 0)) : 0;
    if (listing)
        most = YK_MAX(most, (size_t)listing->n);
    if (n_rows == 0 || most == 0) {
        fprintf(f, "%s\n", empty);
        return;
    }
    const char **keys = yk_xalloc(most * sizeof *keys), **titles = yk_xalloc(most * sizeof *titles);
    size_t n = pick_columns(json_at(rows, 0), listing, keys, titles);
    int *width = yk_xalloc(most * sizeof *width);
    bool *right = yk_xalloc(most * sizeof *right);
    char cell[CELL_SIZE];
    for (size_t k = 0; k < n; k++) {
        width[k] = width_of(titles[k]);
        for (size_t i = 0; i < n_rows; i++) {
            const struct json *value = json_find(json_at(rows, i), keys[k]);
            table_cell(keys[k], value, cell, sizeof cell);
            width[k] = YK_MAX(width[k], width_of(cell));
            right[k] = right[k] || (value && (json_kind(value) == JSON_INT || json_kind(value) == JSON_REAL));
        }
        right[k] = right[k] && !ends(keys[k], "_at");
    }
    for (size_t i = 0; i <= n_rows; i++) {
        for (size_t k = 0; k < n; k++) {
            if (i == 0)
                snprintf(cell, sizeof cell, "%s", titles[k]);
            else
                table_cell(keys[k], json_find(json_at(rows, i - 1), keys[k]), cell, sizeof cell);
            int gap = width[k] - width_of(cell);
            pad(f, (k ? 2 : 0) + (right[k] ? gap : 0));
            fputs(cell, f);
            if (!right[k] && k + 1 < n)
                pad(f, gap);
        }
        fputc('\n', f);
    }
    free(keys);
    free(titles);
    free(width);
    free(right);
}
