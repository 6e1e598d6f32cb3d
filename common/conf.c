#include "common/conf.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define CONF_FILE_LIMIT ((size_t)1024 * 1024)

/* ---- the table ---- */

static const struct conf_key *key_find(const struct conf_table *t, const char *name, size_t len)
{
    for (; t; t = t->base)
        for (int i = 0; i < t->n_keys; i++)
            if (strlen(t->keys[i].name) == len && memcmp(t->keys[i].name, name, len) == 0)
                return &t->keys[i];
    return NULL;
}

static void *field(const struct conf_key *k, void *out)
{
    return (char *)out + k->offset;
}

/* Levenshtein distance, for "did you mean". Long names are not compared. */
static int distance(const char *a, size_t n, const char *b)
{
    size_t m = strlen(b);
    int row[64];
    if (n >= YK_COUNT(row) || m >= YK_COUNT(row))
        return 99;
    for (size_t j = 0; j <= m; j++)
        row[j] = (int)j;
    for (size_t i = 1; i <= n; i++) {
        int diag = row[0];
        row[0] = (int)i;
        for (size_t j = 1; j <= m; j++) {
            int up = row[j], best = diag + (a[i - 1] != b[j - 1]);
            best = YK_MIN(best, up + 1);
            row[j] = YK_MIN(best, row[j - 1] + 1);
            diag = up;
        }
    }
    return row[m];
}

static const char *const built_in[] = {"config", "help", "version", "print-config"};

static const char *closest(const struct conf_table *t, const char *name, size_t len)
{
    const char *best = NULL;
    int best_d = (int)YK_MIN(len / 2, (size_t)3) + 1; /* farther is no help */
    for (; t; t = t->base)
        for (int i = 0; i < t->n_keys; i++) {
            const char *key = t->keys[i].name;
            int d = distance(name, len, key);
            if (len >= 3 && strlen(key) > len && strncmp(key, name, len) == 0)
                d = YK_MIN(d, 1); /* an abbreviation */
            if (d < best_d) {
                best_d = d;
                best = key;
            }
        }
    for (size_t i = 0; i < YK_COUNT(built_in); i++)
        if (distance(name, len, built_in[i]) < best_d) {
            best_d = distance(name, len, built_in[i]);
            best = built_in[i];
        }
    return best;
}

/* ---- values ---- */

static bool blank(const char *s)
{
    return s[strspn(s, " \t")] == 0;
}

/* A number with one of the suffixes; exact for integers, and fractions such as 1.5G are rounded. */
static bool scaled(const char *text, const char *const *suffix, const int64_t *scale, size_t n, int64_t *out)
{
    char *end;
    errno = 0;
    long long whole = strtoll(text, &end, 10);
    bool is_int = end != text && errno == 0 && *end != '.';
    double v = 0;
    if (!is_int) {
        if (strpbrk(text, "xXnN")) /* no hexadecimal, no nan, no inf */
            return false;
        errno = 0;
        v = strtod(text, &end);
        if (end == text || errno)
            return false;
    }
    if (isspace((unsigned char)text[0]))
        return false;
    for (size_t i = 0; i < n; i++) {
        if (strcmp(end, suffix[i]) != 0)
            continue;
        if (is_int)
            return yk_mul_i64(whole, scale[i], out);
        v *= (double)scale[i];
        if (!(fabs(v) < 0x1p62))
            return false;
        *out = (int64_t)llround(v);
        return true;
    }
    return false;
}

bool conf_bytes(const char *text, int64_t *out)
{
    static const char *const suffix[] = {
        "", "B", "K", "KB", "KiB", "k", "M", "MB", "MiB", "G", "GB", "GiB", "T", "TiB"};
    static const int64_t scale[] = {1, 1, 1 << 10, 1 << 10, 1 << 10, 1 << 10, 1 << 20, 1 << 20, 1 << 20, 1 << 30,
        1 << 30, 1 << 30, (int64_t)1 << 40, (int64_t)1 << 40};
    return scaled(text, suffix, scale, YK_COUNT(suffix), out);
}

static bool duration_ms(const char *text, int64_t *out)
{
    static const char *const suffix[] = {"", "ms", "s", "m", "min", "h", "d"};
    static const int64_t scale[] = {1, 1, 1000, 60000, 60000, 3600000, 86400000};
    return scaled(text, suffix, scale, YK_COUNT(suffix), out);
}

static bool boolean(const char *text, bool *out)
{
    static const char *const words[] = {"false", "true", "no", "yes", "off", "on", "0", "1"};
    for (size_t i = 0; i < YK_COUNT(words); i++)
        if (strcasecmp(text, words[i]) == 0) {
            *out = i % 2;
            return true;
        }
    return false;
}

/* Index of text in "a|b|c", -1. */
static int choice(const char *choices, const char *text)
{
    size_t len = strlen(text);
    for (int i = 0;; i++) {
        size_t n = strcspn(choices, "|");
        if (n == len && memcmp(choices, text, n) == 0)
            return i;
        if (!choices[n])
            return -1;
        choices += n + 1;
    }
}

static bool limited(const struct conf_key *k)
{
    return k->lo != 0 || k->hi != 0;
}

/* Writes the limits of a number as text. */
static void limits(const struct conf_key *k, char *out, size_t size)
{
    out[0] = 0;
    if (limited(k) && k->hi == INT64_MAX)
        snprintf(out, size, " of at least %lld", (long long)k->lo);
    else if (limited(k))
        snprintf(out, size, " from %lld to %lld", (long long)k->lo, (long long)k->hi);
}

static void strs_free(struct conf_strs *l)
{
    for (int i = 0; i < l->n; i++)
        free(l->at[i]);
    free(l->at);
    *l = (struct conf_strs){0};
}

/* where: "--threads", "yoked.conf:3: threads", "YOKED_THREADS". */
static yk_err set(const struct conf_key *k, const char *where, const char *text, void *out, struct yk_diag *why)
{
    void *f = field(k, out);
    char range[80];
    limits(k, range, sizeof range);
    int64_t v = 0;
    double x = 0;
    char *end;
    const char *what = NULL;
    switch (k->kind) {
    case CONF_STR:
        free(*(char **)f);
        *(char **)f = yk_xstrdup(text);
        return YK_OK;
    case CONF_STRS: {
        struct conf_strs *l = f;
        l->at = yk_xrealloc(l->at, (size_t)(l->n + 1) * sizeof *l->at);
        l->at[l->n++] = yk_xstrdup(text);
        return YK_OK;
    }
    case CONF_BOOL:
        if (boolean(text, f))
            return YK_OK;
        return yk_fail(why, YK_INVAL, "%s must be true or false, not '%.100s'", where, text);
    case CONF_ENUM: {
        int i = choice(k->choices, text);
        if (i < 0)
            return yk_fail(why, YK_INVAL, "%s must be one of %s, not '%.100s'", where, k->choices, text);
        *(int *)f = i;
        return YK_OK;
    }
    case CONF_F64:
        errno = 0;
        x = strtod(text, &end);
        if (end == text || *end || isspace((unsigned char)text[0]) || !isfinite(x) ||
            (limited(k) && (x < (double)k->lo || x > (double)k->hi)))
            return yk_fail(why, YK_INVAL, "%s must be a number%s, not '%.100s'", where, range, text);
        *(double *)f = x;
        return YK_OK;
    case CONF_I64:
        errno = 0;
        v = strtoll(text, &end, 10);
        if (end == text || *end || errno || isspace((unsigned char)text[0]))
            what = "an integer";
        break;
    case CONF_BYTES:
        if (!conf_bytes(text, &v) || v < 0)
            what = "a number of bytes (64K, 512M, 2G)";
        break;
    case CONF_DURATION_MS:
        if (!duration_ms(text, &v) || v < 0)
            what = "a time (250ms, 5s, 2m)";
        break;
    }
    if (!what && limited(k) && (v < k->lo || v > k->hi))
        what = k->kind == CONF_I64 ? "an integer" : k->kind == CONF_BYTES ? "a number of bytes" : "a time in ms";
    if (what)
        return yk_fail(why, YK_INVAL, "%s must be %s%s, not '%.100s'", where, what, range, text);
    *(int64_t *)f = v;
    return YK_OK;
}

static void clear(const struct conf_key *k, void *out)
{
    if (k->kind == CONF_STRS)
        strs_free(field(k, out));
}

static size_t field_size(const struct conf_key *k)
{
    switch (k->kind) {
    case CONF_STR:
        return sizeof(char *);
    case CONF_STRS:
        return sizeof(struct conf_strs);
    case CONF_BOOL:
        return sizeof(bool);
    case CONF_ENUM:
        return sizeof(int);
    case CONF_F64:
        return sizeof(double);
    default:
        return sizeof(int64_t);
    }
}

/* ---- sources ---- */

static yk_err defaults(const struct conf_table *t, void *out, struct yk_diag *why)
{
    for (const struct conf_table *u = t; u; u = u->base)
        for (int i = 0; i < u->n_keys; i++)
            memset(field(&u->keys[i], out), 0, field_size(&u->keys[i]));
    yk_err err = YK_OK;
    for (; t && !err; t = t->base)
        for (int i = 0; i < t->n_keys && !err; i++)
            if (t->keys[i].otherwise)
                err = set(&t->keys[i], t->keys[i].name, t->keys[i].otherwise, out, why);
    return err;
}

yk_err conf_load(
    const struct conf_table *t, const char *name, const char *text, size_t len, void *out, struct yk_diag *why)
{
    const struct conf_key *seen[256];
    int n_seen = 0, line_no = 0;
    for (size_t at = 0; at < len;) {
        const char *nl = memchr(text + at, '\n', len - at);
        size_t n = nl ? (size_t)(nl - (text + at)) : len - at;
        char line[4096];
        line_no++;
        if (n >= sizeof line)
            return yk_fail(why, YK_LIMIT, "%s:%d: line is longer than %zu bytes", name, line_no, sizeof line - 1);
        memcpy(line, text + at, n);
        line[n] = 0;
        at += n + 1;
        if (strlen(line) != n)
            return yk_fail(why, YK_FORMAT, "%s:%d: NUL byte", name, line_no);
        while (n && isspace((unsigned char)line[n - 1]))
            line[--n] = 0;
        char *key = line + strspn(line, " \t");
        if (*key == 0 || *key == '#')
            continue;
        char *eq = strchr(key, '=');
        if (!eq)
            return yk_fail(why, YK_FORMAT, "%s:%d: expected key = value", name, line_no);
        char *value = eq + 1 + strspn(eq + 1, " \t");
        while (eq > key && (eq[-1] == ' ' || eq[-1] == '\t'))
            eq--;
        size_t key_len = (size_t)(eq - key);
        const struct conf_key *k = key_find(t, key, key_len);
        if (!k) {
            const char *near = closest(t, key, key_len);
            return yk_fail(why, YK_INVAL, "%s:%d: unknown key '%.*s'%s%s%s", name, line_no, (int)YK_MIN(key_len, 100u),
                key, near ? ", did you mean '" : "", near ? near : "", near ? "'?" : "");
        }
        bool again = false;
        for (int i = 0; i < n_seen; i++)
            again = again || seen[i] == k;
        if (again && k->kind != CONF_STRS)
            return yk_fail(why, YK_INVAL, "%s:%d: '%s' is given twice", name, line_no, k->name);
        if (!again) {
            clear(k, out);
            if (n_seen < (int)YK_COUNT(seen))
                seen[n_seen++] = k;
        }
        char where[600];
        snprintf(where, sizeof where, "%.400s:%d: '%s'", name, line_no, k->name);
        yk_err err = set(k, where, value, out, why);
        if (err)
            return err;
    }
    return YK_OK;
}

static yk_err load_file(const struct conf_table *t, const char *path, void *out, struct yk_diag *why)
{
    FILE *f = fopen(path, "re");
    if (!f) {
        int e = errno;
        return yk_fail(why, yk_err_from_errno(e), "cannot open configuration file '%s': %s", path, strerror(e));
    }
    char *text = malloc(CONF_FILE_LIMIT + 1);
    errno = 0;
    size_t n = text ? fread(text, 1, CONF_FILE_LIMIT + 1, f) : 0;
    int e = errno;
    yk_err err;
    if (!text)
        err = yk_fail(why, YK_NOMEM, "out of memory");
    else if (ferror(f))
        err = yk_fail(why, yk_err_from_errno(e), "cannot read configuration file '%s': %s", path, strerror(e));
    else if (n > CONF_FILE_LIMIT)
        err = yk_fail(why, YK_LIMIT, "configuration file '%s' is larger than %zu bytes", path, CONF_FILE_LIMIT);
    else
        err = conf_load(t, path, text, n, out, why);
    fclose(f);
    free(text);
    return err;
}

static void env_name(const struct conf_table *t, const char *key, char *out, size_t size)
{
    snprintf(out, size, "%s_%s", t->program, key);
    for (char *p = out; *p; p++)
        *p = *p == '-' ? '_' : (char)toupper((unsigned char)*p);
}

static yk_err load_env(const struct conf_table *t, void *out, struct yk_diag *why)
{
    for (const struct conf_table *u = t; u; u = u->base)
        for (int i = 0; i < u->n_keys; i++) {
            const struct conf_key *k = &u->keys[i];
            char name[160];
            env_name(t, k->name, name, sizeof name);
            const char *text = getenv(name);
            if (!text || blank(text))
                continue; /* an empty variable is how a unit file says "unset" */
            clear(k, out);
            yk_err err = set(k, name, text, out, why);
            if (err)
                return err;
        }
    return YK_OK;
}

/* One flag of the command line, taken apart. */
struct flag {
    const char *name;
    size_t len;
    const char *value; /* NULL: none given */
    bool no;           /* --no-key */
    const struct conf_key *key;
    int built_in; /* index, -1 */
};

/* Reads argv[*i] (and, for the form "--key value", the next one). False: positional. */
static bool flag_take(const struct conf_table *t, int argc, char **argv, int *i, struct flag *f)
{
    const char *a = argv[*i];
    *f = (struct flag){.built_in = -1};
    if (strcmp(a, "-h") == 0)
        a = "--help";
    if (a[0] != '-' || a[1] != '-' || !a[2])
        return false;
    f->name = a + 2;
    f->len = strcspn(f->name, "=");
    f->value = f->name[f->len] ? f->name + f->len + 1 : NULL;
    f->key = key_find(t, f->name, f->len);
    for (size_t b = 0; !f->key && b < YK_COUNT(built_in); b++)
        if (strlen(built_in[b]) == f->len && memcmp(built_in[b], f->name, f->len) == 0)
            f->built_in = (int)b;
    if (!f->key && f->built_in < 0 && f->len > 3 && strncmp(f->name, "no-", 3) == 0) {
        const struct conf_key *k = key_find(t, f->name + 3, f->len - 3);
        if (k && k->kind == CONF_BOOL) {
            f->key = k;
            f->no = true;
        }
    }
    bool wants = (f->key && f->key->kind != CONF_BOOL) || f->built_in == 0;
    if (wants && !f->value && *i + 1 < argc)
        f->value = argv[++*i];
    return true;
}

static yk_err load_flags(
    const struct conf_table *t, int argc, char **argv, void *out, struct conf_args *args, struct yk_diag *why)
{
    args->given = yk_xalloc(((size_t)YK_MAX(argc, 0) + 1) * sizeof *args->given);
    for (int i = 1; i < argc && strcmp(argv[i], "--") != 0; i++) {
        struct flag f;
        if (!flag_take(t, argc, argv, &i, &f) || f.built_in >= 0)
            continue;
        if (!f.key) {
            const char *near = closest(t, f.name, f.len);
            return yk_fail(why, YK_INVAL, "unknown flag '--%.*s'%s%s%s", (int)YK_MIN(f.len, 100u), f.name,
                near ? ", did you mean '--" : "", near ? near : "", near ? "'?" : "");
        }
        char where[160];
        snprintf(where, sizeof where, "--%s", f.key->name);
        if (f.no && f.value)
            return yk_fail(why, YK_INVAL, "--no-%s takes no value", f.key->name);
        if (f.key->kind == CONF_BOOL && !f.value)
            f.value = f.no ? "false" : "true";
        if (!f.value)
            return yk_fail(why, YK_INVAL, "%s needs a value", where);
        bool again = false;
        for (int k = 0; k < args->n_given; k++)
            again = again || args->given[k] == f.key;
        if (!again) {
            clear(f.key, out);
            args->given[args->n_given++] = f.key;
        }
        yk_err err = set(f.key, where, f.value, out, why);
        if (err)
            return err;
    }
    return YK_OK;
}

/* What is needed before the other sources are read: the built-in flags and the positional arguments. */
static yk_err scan(const struct conf_table *t, int argc, char **argv, struct conf_args *args, struct yk_diag *why)
{
    args->at = yk_xalloc(((size_t)YK_MAX(argc, 0) + 1) * sizeof *args->at);
    bool ended = false;
    for (int i = 1; i < argc; i++) {
        struct flag f;
        if (!ended && strcmp(argv[i], "--") == 0) {
            ended = true;
            continue;
        }
        if (ended || !flag_take(t, argc, argv, &i, &f)) {
            if (!ended && argv[i][0] == '-' && argv[i][1])
                return yk_fail(why, YK_INVAL, "unknown flag '%.100s' (flags begin with --)", argv[i]);
            args->at[args->n++] = argv[i];
            continue;
        }
        args->help = args->help || f.built_in == 1;
        args->version = args->version || f.built_in == 2;
        args->print_config = args->print_config || f.built_in == 3;
        if (f.built_in == 0) {
            if (!f.value || !*f.value)
                return yk_fail(why, YK_INVAL, "--config needs a file");
            free(args->config);
            args->config = yk_xstrdup(f.value);
        }
    }
    return YK_OK;
}

yk_err conf_parse(
    const struct conf_table *t, int argc, char **argv, void *out, struct conf_args *args, struct yk_diag *why)
{
    *args = (struct conf_args){0};
    yk_err err = defaults(t, out, why);
    if (!err)
        err = scan(t, argc, argv, args, why);
    if (!err && (args->help || args->version || args->print_config))
        return YK_OK;
    if (!err && args->config)
        err = load_file(t, args->config, out, why);
    if (!err)
        err = load_env(t, out, why);
    if (!err)
        err = load_flags(t, argc, argv, out, args, why);
    if (err)
        conf_fini(t, out, args);
    return err;
}

void conf_fini(const struct conf_table *t, void *out, struct conf_args *args)
{
    for (; t; t = t->base)
        for (int i = 0; i < t->n_keys; i++) {
            const struct conf_key *k = &t->keys[i];
            if (k->kind == CONF_STR) {
                free(*(char **)field(k, out));
                *(char **)field(k, out) = NULL;
            }
            clear(k, out);
        }
    if (args) {
        free(args->at);
        free(args->config);
        free(args->given);
        *args = (struct conf_args){0};
    }
}

bool conf_given(const struct conf_args *args, const char *name)
{
    for (int i = 0; i < args->n_given; i++)
        if (strcmp(args->given[i]->name, name) == 0)
            return true;
    return false;
}

const char *conf_command(const struct conf_table *base, int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        struct flag f;
        if (strcmp(argv[i], "--") == 0)
            return i + 1 < argc ? argv[i + 1] : NULL;
        if (!flag_take(base, argc, argv, &i, &f))
            return argv[i];
    }
    return NULL;
}

/* ---- text for people ---- */

static const char *value_text(const struct conf_key *k)
{
    if (k->value)
        return k->value;
    switch (k->kind) {
    case CONF_ENUM:
        return k->choices;
    case CONF_BYTES:
        return "BYTES";
    case CONF_DURATION_MS:
        return "TIME";
    case CONF_I64:
        return "N";
    case CONF_F64:
        return "X";
    default:
        return "S";
    }
}

void conf_print(const struct conf_table *t, FILE *f)
{
    fprintf(f, "# %s: every key with its default. A flag --key=value wins over the environment, that over this file.\n",
        t->program);
    for (const struct conf_table *u = t; u; u = u->base)
        for (int i = 0; i < u->n_keys; i++) {
            const struct conf_key *k = &u->keys[i];
            char name[160], range[80];
            env_name(t, k->name, name, sizeof name);
            limits(k, range, sizeof range);
            fprintf(f, "\n# %s\n# %s%s%s; environment %s\n", k->help,
                k->kind == CONF_BOOL ? "true|false" : value_text(k), range,
                k->kind == CONF_STRS ? ", may be repeated" : "", name);
            if (k->otherwise)
                fprintf(f, "%s = %s\n", k->name, k->otherwise);
            else
                fprintf(f, "# %s =\n", k->name);
        }
}

void conf_help(const struct conf_table *t, FILE *f)
{
    if (t->usage)
        fprintf(f, "%s\n", t->usage);
    for (const struct conf_table *u = t; u; u = u->base)
        for (int i = 0; i < u->n_keys; i++) {
            const struct conf_key *k = &u->keys[i];
            char left[160];
            snprintf(left, sizeof left, k->kind == CONF_BOOL ? "--%s" : "--%s=%s", k->name, value_text(k));
            fprintf(f, "  %-32s %s%s", left, strlen(left) > 32 ? "\n                                   " : "", k->help);
            if (k->otherwise && *k->otherwise && k->kind != CONF_BOOL)
                fprintf(f, " [%s]", k->otherwise);
            else if (k->kind == CONF_ENUM && !k->otherwise)
                fprintf(f, " [%.*s]", (int)strcspn(k->choices, "|"), k->choices);
            fputc('\n', f);
        }
    fprintf(f,
        "  %-32s Read keys from a file.\n  %-32s Print every key with its default and help.\n"
        "  %-32s Print this text.\n  %-32s Print the version.\n",
        "--config=F", "--print-config", "--help", "--version");
}
