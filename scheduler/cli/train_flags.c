#include "scheduler/cli/train_flags.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* A flag that is a row of the table: all that is done to every one of them walks this. */
struct row {
    const char *flag, *key;
    enum { ROW_INTEGER, ROW_NUMBER, ROW_SWITCH, ROW_WORD, ROW_TEXT } kind;
    size_t at;         /* in struct train_flags */
    double lo, hi;     /* of a number */
    const char *words; /* of a word */
};

#define AT(key) offsetof(struct train_flags, key)
#define I(key, otherwise, lo, hi, flag, ...) {flag, #key, ROW_INTEGER, AT(key), 0, 0, NULL},
#define F(key, otherwise, lo, hi, flag, ...) {flag, #key, ROW_NUMBER, AT(key), lo, hi, NULL},
#define O(key, sgd, adamw, lo, hi, flag, ...) F(key, sgd, lo, hi, flag, )
#define B(key, flag, ...) {flag, #key, ROW_SWITCH, AT(key), 0, 0, NULL},
#define W(key, words, flag, ...) {flag, #key, ROW_WORD, AT(key), 0, 0, words},
#define S(key, flag, ...) {flag, #key, ROW_TEXT, AT(key), 0, 0, NULL},
static const struct row rows[] = {TRAIN_CONFIG_FLAGS(I, F, O, B, W, S)};
#undef AT
#undef I
#undef F
#undef O
#undef B
#undef W
#undef S

/* Keys that share flags, as train_flags_put makes them. */
static const struct {
    const char *flag, *key;
} shared[] = {{"schedule", "schedule"}, {"schedule", "schedule_epochs"}, {"schedule", "schedule_gamma"},
    {"schedule", "schedule_floor"}, {"freeze", "freeze"}, {"val", "val"}};

static yk_err put_number(struct json_out *out, const char *key, const char *flag, const char *text, double lo,
    double hi, struct yk_diag *why)
{
    char *end;
    if (!text)
        return YK_OK;
    errno = 0;
    double v = strtod(text, &end);
    if (end == text || *end || errno || !(v >= lo && v <= hi))
        return yk_fail(why, YK_INVAL, "--%s=%s: a number from %g to %g", flag, text, lo, hi);
    json_put_key(out, key);
    json_put_f64(out, v);
    return YK_OK;
}

static void put_text(struct json_out *out, const char *key, const char *text)
{
    json_put_key(out, key);
    json_put_str(out, text);
}

static void put_word(struct json_out *out, const char *key, const char *words, int at)
{
    char word[32];
    train_config_word(words, at, word, sizeof word);
    put_text(out, key, word);
}

/* "constant", "cosine", "cosine:LOWEST", "step:EPOCHS", "step:EPOCHS:FACTOR". */
static yk_err put_schedule(struct json_out *out, const char *text, struct yk_diag *why)
{
    char *copy = yk_xstrdup(text), *rest = copy, *kind = strsep(&rest, ":");
    char *first = strsep(&rest, ":"), *second = strsep(&rest, ":");
    bool step = strcmp(kind, "step") == 0, cosine = strcmp(kind, "cosine") == 0;
    yk_err err = YK_OK;
    if ((!step && !cosine && strcmp(kind, "constant") != 0) || rest || (step && !first) || (!step && second) ||
        (!step && !cosine && first))
        err = yk_fail(why, YK_INVAL,
            "--schedule=%s: constant, cosine[:LOWEST_LR], or step:EPOCHS[:FACTOR] as in step:30:0.1", text);
    if (!err)
        put_text(out, "schedule", kind);
    if (!err && step)
        err = put_number(out, "schedule_epochs", "schedule=step:EPOCHS", first, 1e-9, 1e6, why);
    if (!err && step)
        err = put_number(out, "schedule_gamma", "schedule=step:EPOCHS:FACTOR", second, 1e-9, 1, why);
    if (!err && cosine)
        err = put_number(out, "schedule_floor", "schedule=cosine:LOWEST_LR", first, 0, 1e6, why);
    free(copy);
    return err;
}

/* Flags of one optimizer that the other does not read. */
static yk_err check_optimizer(const struct train_flags *f, struct yk_diag *why)
{
    const struct {
        const char *flag;
        bool given;
        int of;
    } all[] = {{"momentum", f->momentum, TRAIN_SGD}, {"nesterov", f->nesterov, TRAIN_SGD},
        {"beta1", f->beta1, TRAIN_ADAMW}, {"beta2", f->beta2, TRAIN_ADAMW}, {"eps", f->eps, TRAIN_ADAMW}};
    for (size_t i = 0; i < YK_COUNT(all); i++)
        if (all[i].given && all[i].of != f->optimizer)
            return yk_fail(
                why, YK_INVAL, "--%s is for --optimizer=%s", all[i].flag, all[i].of == TRAIN_SGD ? "sgd" : "adamw");
    return YK_OK;
}

static yk_err put_row(const struct train_flags *f, const struct row *r, struct json_out *out, struct yk_diag *why)
{
    const void *field = (const char *)f + r->at;
    switch (r->kind) {
    case ROW_INTEGER:
        json_put_key(out, r->key);
        json_put_i64(out, *(const int64_t *)field);
        break;
    case ROW_NUMBER:
        return put_number(out, r->key, r->flag, *(char *const *)field, r->lo, r->hi, why);
    case ROW_SWITCH:
        json_put_key(out, r->key);
        json_put_bool(out, *(const bool *)field);
        break;
    case ROW_WORD:
        put_word(out, r->key, r->words, *(const int *)field);
        break;
    case ROW_TEXT:
        put_text(out, r->key, *(char *const *)field);
        break;
    }
    return YK_OK;
}

yk_err train_flags_put(const struct train_flags *f, double val, struct json_out *out, struct yk_diag *why)
{
    yk_err err = check_optimizer(f, why);
    json_open(out, '{');
    for (size_t i = 0; i < YK_COUNT(rows) && !err; i++)
        err = put_row(f, &rows[i], out, why);
    if (!err)
        err = put_schedule(out, f->schedule, why);
    if (val > 0) {
        json_put_key(out, "val");
        json_put_f64(out, val);
    }
    json_put_key(out, "freeze");
    json_open(out, '[');
    for (int i = 0; i < f->freeze.n; i++)
        json_put_str(out, f->freeze.at[i]);
    json_close(out, ']');
    json_close(out, '}');
    return err;
}

yk_err train_flags_read(const struct train_flags *f, double val, struct train_config *out, struct yk_diag *why)
{
    struct yk_buf text = {0};
    struct json_out json;
    struct json *doc = NULL;
    *out = (struct train_config){0};
    json_out_init(&json, &text, 0);
    yk_err err = train_flags_put(f, val, &json, why);
    if (!err && text.failed)
        err = yk_fail(why, YK_NOMEM, "no memory");
    if (!err)
        err = json_parse((const char *)text.data, text.len, &doc, why);
    if (!err)
        err = train_config_read(doc, out, why);
    json_free(doc);
    yk_buf_free(&text);
    return err;
}

/* ---- against a job ---- */

/* All keys of a configuration, so that two compare by text. */
static yk_err to_json(const struct train_config *c, struct json **out, struct yk_diag *why)
{
    struct yk_buf text = {0};
    struct json_out json;
    json_out_init(&json, &text, 0);
    train_config_write(c, &json);
    yk_err err =
        text.failed ? yk_fail(why, YK_NOMEM, "no memory") : json_parse((const char *)text.data, text.len, out, why);
    yk_buf_free(&text);
    return err;
}

static void value_text(const struct json *v, char *out, size_t size)
{
    size_t used = 0;
    if (json_kind(v) == JSON_STRING)
        snprintf(out, size, "%s", json_str(v, ""));
    else if (json_kind(v) == JSON_BOOL)
        snprintf(out, size, "%s", json_bool(v, false) ? "true" : "false");
    else if (json_kind(v) != JSON_ARRAY)
        snprintf(out, size, "%.17g", json_f64(v, 0));
    for (size_t i = 0; json_kind(v) == JSON_ARRAY && (i == 0 || i < json_len(v)) && used < size; i++) {
        int n = snprintf(out + used, size - used, "%s%s", i ? "," : "", json_str(json_at(v, i), ""));
        used += n > 0 ? (size_t)n : 0;
    }
}

/* One key, if its flag was given: a is asked for, b is what the job has. */
static yk_err agree(const struct conf_args *args, const char *flag, const char *key, const struct json *a,
    const struct json *b, struct yk_diag *why)
{
    char here[400], there[400];
    if (!conf_given(args, flag))
        return YK_OK;
    value_text(json_find(a, key), here, sizeof here);
    value_text(json_find(b, key), there, sizeof there);
    if (strcmp(here, there) == 0)
        return YK_OK;
    return yk_fail(why, YK_INVAL, "--%s: %s %s is asked for, the training that --resume follows has %s: leave it out",
        flag, key, here[0] ? here : "none", there[0] ? there : "none");
}

yk_err train_flags_agree(const struct train_flags *f, double val, const struct conf_args *args,
    const struct json *train, struct yk_diag *why)
{
    struct train_config mine = {0}, theirs = {0};
    struct json *a = NULL, *b = NULL;
    yk_err err = train_flags_read(f, val, &mine, why);
    if (!err)
        err = train_config_read(train, &theirs, why);
    if (!err)
        err = to_json(&mine, &a, why);
    if (!err)
        err = to_json(&theirs, &b, why);
    for (size_t i = 0; !err && i < YK_COUNT(rows); i++)
        err = agree(args, rows[i].flag, rows[i].key, a, b, why);
    for (size_t i = 0; !err && i < YK_COUNT(shared); i++)
        err = agree(args, shared[i].flag, shared[i].key, a, b, why);
    json_free(a);
    json_free(b);
    train_config_fini(&mine);
    train_config_fini(&theirs);
    return err;
}
