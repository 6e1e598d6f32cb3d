/* What a client asks of a training: the object "train" of a job's request, the same that agents get. One table of keys,
 * defaults and limits for REST, agents and the command. */
#ifndef YK_TRAIN_CONFIG_H
#define YK_TRAIN_CONFIG_H

#include "common/grad.h"
#include "common/json.h"

enum train_optimizer { TRAIN_SGD, TRAIN_ADAMW };
enum train_schedule { TRAIN_CONSTANT, TRAIN_STEP, TRAIN_COSINE };
enum train_bn { TRAIN_BN_TRAIN, TRAIN_BN_FROZEN };

/* I(key, default, lo, hi) integers · F(key, default, lo, hi) numbers, NaN: by the optimizer · B(key) flags
 * W(key, words) one of a list, the first is the default · S(key) text, NULL if absent */
#define TRAIN_CONFIG(I, F, B, W, S)                                              \
    I(epochs, 1, 1, 1000000)                                                     \
    I(seed, 0, 0, INT64_MAX)                                                     \
    W(optimizer, "sgd", "adamw", NULL)                                           \
    F(lr, NAN, 0, 1e6)           /* sgd 0.05, adamw 0.001 */                     \
    F(momentum, 0.9, 0, 1)       /* sgd */                                       \
    B(nesterov)                  /* sgd */                                       \
    F(weight_decay, NAN, 0, 1e6) /* sgd 0, adamw 0.01 */                         \
    F(beta1, 0.9, 0, 1)                                                          \
    F(beta2, 0.999, 0, 1)                                                        \
    F(eps, 1e-8, 0, 1)                                                           \
    W(schedule, "constant", "step", "cosine", NULL)                              \
    I(warmup, 0, 0, INT64_MAX)    /* steps in which the rate rises */            \
    F(schedule_epochs, 1, 0, 1e6) /* step: epochs between two falls */           \
    F(schedule_gamma, 0.1, 0, 1)  /* step: what the rate is multiplied by */     \
    F(schedule_floor, 0, 0, 1e6)  /* cosine: the last rate */                    \
    F(clip_norm, 0, 0, 1e30)      /* 0: none */                                  \
    W(loss, "cross-entropy", "nll", "mse", "l1", "bce", NULL)                    \
    F(label_smoothing, 0, 0, 1)                                                  \
    I(ignore_index, GRAD_IGNORE_INDEX, INT64_MIN, INT64_MAX)                     \
    S(loss_output) /* name of the graph output that the loss reads; the first */ \
    W(bn, "train", "frozen", NULL)                                               \
    B(recompute)                                                                 \
    F(val, 0, 0, 0.9) /* share of the samples that is held out */                \
    S(augment)                                                                   \
    I(checkpoint_every, 0, 0, INT64_MAX) /* steps; 0: chosen */

struct train_config {
#define I(key, ...) int64_t key;
#define F(key, ...) double key;
#define B(key) bool key;
#define W(key, ...) int key; /* position among the words */
#define S(key) char *key;
    TRAIN_CONFIG(I, F, B, W, S)
#undef I
#undef F
#undef B
#undef W
#undef S
    char **freeze; /* patterns of parameters' names */
    int n_freeze;
};

/* NULL: all defaults. lr and weight_decay are resolved. Errors: YK_INVAL names the key, what it may be and what was
 * given; unknown keys are refused. End with train_config_fini, also after an error. */
yk_err train_config_read(const struct json *object, struct train_config *out, struct yk_diag *why);
/* All keys, so that defaults of another version change nothing. */
void train_config_write(const struct train_config *c, struct json_out *out);
void train_config_fini(struct train_config *c);

/* Borrows c's texts. */
void train_config_grad(const struct train_config *c, struct grad_options *out);

#endif
