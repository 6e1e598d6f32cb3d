/* The flags of `yoke train` and `yoke local train` that say how a training goes: one for each row of
 * common/train_config.h, and those that share rows. Both commands read them here, so that they mean the same. */
#ifndef YK_TRAIN_FLAGS_H
#define YK_TRAIN_FLAGS_H

#include "common/conf.h"
#include "common/train_config.h"

struct train_flags {
#define I(key, ...) int64_t key;
#define F(key, ...) char *key; /* NULL: not given */
#define B(key, ...) bool key;
#define W(key, ...) int key;
#define S(key, ...) char *key;
    TRAIN_CONFIG_FLAGS(I, F, F, B, W, S)
#undef I
#undef F
#undef B
#undef W
#undef S
    char *schedule;          /* constant, cosine[:LOWEST], step:EPOCHS[:FACTOR] */
    struct conf_strs freeze; /* patterns of names */
};

/* Rows of a command's table: fields of the member `train` of struct cli_opts, whose definition the user has. */
#define TRAIN_FLAGS_KEYS                                                                                          \
    TRAIN_CONFIG_FLAGS(TRAIN_FLAGS_I, TRAIN_FLAGS_F, TRAIN_FLAGS_O, TRAIN_FLAGS_B, TRAIN_FLAGS_W, TRAIN_FLAGS_S){ \
        "schedule", CONF_STR, "constant", 0, 0, "constant, cosine[:LOWEST] or step:EPOCHS[:FACTOR].",             \
        TRAIN_FLAGS_AT(schedule), NULL, "S"},                                                                     \
    {                                                                                                             \
        "freeze", CONF_STRS, NULL, 0, 0, "Parameters that stay, by name, as in layer1.*", TRAIN_FLAGS_AT(freeze), \
            NULL, "PATTERN"                                                                                       \
    }
#define TRAIN_FLAGS_AT(key) offsetof(struct cli_opts, train.key)
#define TRAIN_FLAGS_I(key, otherwise, lo, hi, flag, value, help) \
    {flag, CONF_I64, #otherwise, lo, hi, help, TRAIN_FLAGS_AT(key), NULL, value},
#define TRAIN_FLAGS_F(key, otherwise, lo, hi, flag, help) \
    {flag, CONF_STR, NULL, 0, 0, help " (default: " #otherwise ").", TRAIN_FLAGS_AT(key), NULL, "X"},
#define TRAIN_FLAGS_O(key, sgd, adamw, lo, hi, flag, help)                                                            \
    {flag, CONF_STR, NULL, 0, 0, help " (default: " #sgd " of sgd, " #adamw " of adamw).", TRAIN_FLAGS_AT(key), NULL, \
        "X"},
#define TRAIN_FLAGS_B(key, flag, help) {flag, CONF_BOOL, NULL, 0, 0, help, TRAIN_FLAGS_AT(key), NULL, NULL},
#define TRAIN_FLAGS_W(key, words, flag, help) {flag, CONF_ENUM, NULL, 0, 0, help, TRAIN_FLAGS_AT(key), words, NULL},
#define TRAIN_FLAGS_S(key, flag, value, help) {flag, CONF_STR, NULL, 0, 0, help, TRAIN_FLAGS_AT(key), NULL, value},

/* The object that train_config_read reads. val: share of the samples to hold out. Errors: YK_INVAL names the flag, what
 * it may be and what was given. */
yk_err train_flags_put(const struct train_flags *f, double val, struct json_out *out, struct yk_diag *why);
/* What that object says: all that can be wrong with the flags is told. Owner: train_config_fini, also after an error.
 */
yk_err train_flags_read(const struct train_flags *f, double val, struct train_config *out, struct yk_diag *why);
/* For who follows a training that is there: a flag on the command line that says something else than its request.
 * train: that request's object "train"; NULL: all defaults. Errors: YK_INVAL names the flag and what the job has. */
yk_err train_flags_agree(const struct train_flags *f, double val, const struct conf_args *args,
    const struct json *train, struct yk_diag *why);

#endif
