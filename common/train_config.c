#include "common/train_config.h"

#include "common/augment_spec.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_FREEZE 256

#define SKIP(...)

_Static_assert(GRAD_IGNORE_INDEX == -100, "the table's default");

static yk_err read_word(const struct json *o, const char *key, const char *words, int *out, struct yk_diag *why)
{
    const char *text = NULL;
    yk_err err = json_get_str(o, key, false, &text, why);
    if (err || !text)
        return err;
    int at = 0;
    for (const char *w = words; *w; at++) {
        size_t n = strcspn(w, "|");
        if (strlen(text) == n && strncmp(w, text, n) == 0) {
            *out = at;
            return YK_OK;
        }
        w += n + (w[n] == '|');
    }
    return yk_fail(why, YK_INVAL, "%s is one of %s, not '%.60s'", key, words, text);
}

static yk_err read_text(const struct json *o, const char *key, const char *flag, char **out, struct yk_diag *why)
{
    const char *text = NULL;
    yk_err err = json_get_str(o, key, false, &text, why);
    if (!err && text && strlen(text) > 1000)
        return yk_fail(why, YK_LIMIT, "--%s (REST: \"%s\") is longer than 1000 bytes", flag, key);
    if (!err && text && text[0])
        *out = yk_xstrdup(text);
    return err;
}

static yk_err read_freeze(const struct json *o, struct train_config *c, struct yk_diag *why)
{
    const struct json *a = json_find(o, "freeze");
    if (!a || json_kind(a) == JSON_NULL)
        return YK_OK;
    if (json_kind(a) != JSON_ARRAY || json_len(a) > MAX_FREEZE)
        return yk_fail(why, YK_INVAL, "freeze is an array of at most %d patterns", MAX_FREEZE);
    c->freeze = yk_xalloc((json_len(a) + 1) * sizeof *c->freeze);
    for (size_t i = 0; i < json_len(a); i++) {
        const char *text = json_str(json_at(a, i), "");
        if (!text[0] || strlen(text) > 1000)
            return yk_fail(why, YK_INVAL, "freeze[%zu] is not a pattern of 1 to 1000 bytes", i);
        c->freeze[c->n_freeze++] = yk_xstrdup(text);
    }
    return YK_OK;
}

/* Whoever reads it typed flags or keys: both are told. */
static yk_err check(const struct train_config *c, struct yk_diag *why)
{
    const struct {
        const char *flag, *key;
        double value;
    } below[] = {{"label-smoothing", "label_smoothing", c->label_smoothing}, {"momentum", "momentum", c->momentum},
        {"beta1", "beta1", c->beta1}, {"beta2", "beta2", c->beta2}};
    for (size_t i = 0; i < YK_COUNT(below); i++)
        if (below[i].value >= 1)
            return yk_fail(
                why, YK_INVAL, "--%s=%g: below 1 (REST: \"%s\")", below[i].flag, below[i].value, below[i].key);
    if (c->nesterov && !(c->momentum > 0))
        return yk_fail(why, YK_INVAL, "--nesterov needs a --momentum above 0 (REST: \"nesterov\", \"momentum\")");
    if (c->label_smoothing > 0 && c->loss != GRAD_CROSS_ENTROPY)
        return yk_fail(why, YK_INVAL,
            "--label-smoothing=%g goes with --loss=cross-entropy, not with %s (REST: \"label_smoothing\", \"loss\")",
            c->label_smoothing, grad_loss_name((enum grad_loss)c->loss));
    if (c->ignore_index != GRAD_IGNORE_INDEX && !grad_loss_has_ids((enum grad_loss)c->loss))
        return yk_fail(why, YK_INVAL,
            "--ignore-index=%" PRId64 " is a class id, and --loss=%s has none (REST: \"ignore_index\", \"loss\")",
            c->ignore_index, grad_loss_name((enum grad_loss)c->loss));
    if (c->schedule == TRAIN_STEP && !(c->schedule_epochs > 0 && c->schedule_gamma > 0))
        return yk_fail(why, YK_INVAL,
            "--schedule=step:EPOCHS:FACTOR needs both above 0, not %g and %g (REST: \"schedule_epochs\", "
            "\"schedule_gamma\")",
            c->schedule_epochs, c->schedule_gamma);
    if (c->schedule == TRAIN_COSINE && c->schedule_floor > c->lr)
        return yk_fail(why, YK_INVAL,
            "--schedule=cosine:%g ends above --lr=%g, where it begins (REST: \"schedule_floor\", \"lr\")",
            c->schedule_floor, c->lr);
    struct augment changes;
    return augment_spec_parse(c->augment ? c->augment : "", &changes, why);
}

yk_err train_config_read(const struct json *o, struct train_config *c, struct yk_diag *why)
{
    static const char *const known[] = {
#define KEY(key, ...) #key,
        TRAIN_CONFIG(KEY, KEY, KEY, KEY, KEY, KEY) "freeze", NULL};
#undef KEY
    *c = (struct train_config){0};
#define I(key, otherwise, ...) c->key = otherwise;
#define F(key, otherwise, ...) c->key = (double)otherwise;
#define O(key, ...) c->key = NAN;
    TRAIN_CONFIG(I, F, O, SKIP, SKIP, SKIP)
#undef I
#undef F
#undef O
    yk_err err = YK_OK;
    if (o && json_kind(o) != JSON_OBJECT)
        return yk_fail(why, YK_INVAL, "train is a JSON object");
    if (o)
        err = json_only(o, known, why);
#define I(key, otherwise, lo, hi, ...) \
    if (!err && o)                     \
        err = json_get_i64(o, #key, false, lo, hi, &c->key, why);
#define F(key, otherwise, lo, hi, ...) \
    if (!err && o)                     \
        err = json_get_f64(o, #key, false, lo, hi, &c->key, why);
#define O(key, sgd, adamw, ...) F(key, sgd, __VA_ARGS__)
#define B(key, ...) \
    if (!err && o)  \
        err = json_get_bool(o, #key, false, &c->key, why);
#define W(key, words, ...) \
    if (!err && o)         \
        err = read_word(o, #key, words, &c->key, why);
#define S(key, flag, ...) \
    if (!err && o)        \
        err = read_text(o, #key, flag, &c->key, why);
    TRAIN_CONFIG(I, F, O, B, W, S)
#undef I
#undef F
#undef O
#undef B
#undef W
#undef S
    if (!err && o)
        err = read_freeze(o, c, why);
#define O(key, sgd, adamw, ...) \
    if (isnan(c->key))          \
        c->key = c->optimizer == TRAIN_SGD ? sgd : adamw;
    TRAIN_CONFIG(SKIP, SKIP, O, SKIP, SKIP, SKIP)
#undef O
    return err ? err : check(c, why);
}

void train_config_word(const char *words, int at, char *out, size_t size)
{
    for (; at > 0 && strchr(words, '|'); at--)
        words = strchr(words, '|') + 1;
    snprintf(out, size, "%.*s", (int)strcspn(words, "|"), words);
}

static void put_word(struct json_out *out, const char *key, const char *words, int at)
{
    char word[32];
    train_config_word(words, at, word, sizeof word);
    json_put_key(out, key);
    json_put_str(out, word);
}

void train_config_write(const struct train_config *c, struct json_out *out)
{
    json_open(out, '{');
#define I(key, ...)          \
    json_put_key(out, #key); \
    json_put_i64(out, c->key);
#define F(key, ...)          \
    json_put_key(out, #key); \
    json_put_f64(out, c->key);
#define B(key, ...)          \
    json_put_key(out, #key); \
    json_put_bool(out, c->key);
#define W(key, words, ...) put_word(out, #key, words, c->key);
#define S(key, ...)          \
    json_put_key(out, #key); \
    json_put_str(out, c->key);
    TRAIN_CONFIG(I, F, F, B, W, S)
#undef I
#undef F
#undef B
#undef W
#undef S
    json_put_key(out, "freeze");
    json_open(out, '[');
    for (int i = 0; i < c->n_freeze; i++)
        json_put_str(out, c->freeze[i]);
    json_close(out, ']');
    json_close(out, '}');
}

void train_config_fini(struct train_config *c)
{
#define S(key, ...) free(c->key);
    TRAIN_CONFIG(SKIP, SKIP, SKIP, SKIP, SKIP, S)
#undef S
    for (int i = 0; i < c->n_freeze; i++)
        free(c->freeze[i]);
    free(c->freeze);
    *c = (struct train_config){0};
}

void train_config_grad(const struct train_config *c, struct grad_options *out)
{
    grad_options_init(out);
    out->loss = (enum grad_loss)c->loss;
    out->label_smoothing = (float)c->label_smoothing;
    out->ignore_index = c->ignore_index;
    out->output = c->loss_output;
    out->freeze = (const char *const *)c->freeze;
    out->n_freeze = c->n_freeze;
    out->bn_frozen = c->bn == TRAIN_BN_FROZEN;
    out->recompute = c->recompute;
}
