/* What a client asks of a training: the object "train" of a job's request, the same that agents get, and the flags of
 * `yoke train` and `yoke local train`. One table of keys, defaults, limits and help for REST, agents and the command.
 */
#ifndef YK_TRAIN_CONFIG_H
#define YK_TRAIN_CONFIG_H

#include "common/grad.h"
#include "common/json.h"

enum train_optimizer { TRAIN_SGD, TRAIN_ADAMW };
enum train_schedule { TRAIN_CONSTANT, TRAIN_STEP, TRAIN_COSINE };
enum train_bn { TRAIN_BN_TRAIN, TRAIN_BN_FROZEN };

/* I(key, default, lo, hi, flag, value, help) integers · F(key, default, lo, hi, flag, help) numbers ·
 * O(key, sgd's default, adamw's default, lo, hi, flag, help) numbers · B(key, flag, help) switches ·
 * W(key, words, flag, help) one of a list, the first is the default · S(key, flag, value, help) text, NULL if absent */
#define TRAIN_CONFIG_FLAGS(I, F, O, B, W, S)                                                                         \
    I(epochs, 1, 1, 1000000, "epochs", "E", "Times that every sample comes.")                                        \
    W(optimizer, "sgd|adamw", "optimizer", "What moves the parameters.")                                             \
    O(lr, 0.05, 0.001, 0, 1e30, "lr", "Learning rate")                                                               \
    F(momentum, 0.9, 0, 1, "momentum", "Of sgd, below 1")                                                            \
    B(nesterov, "nesterov", "Nesterov's momentum.")                                                                  \
    O(weight_decay, 0, 0.01, 0, 1e6, "weight-decay", "What parameters shrink by; adamw decouples it from gradients") \
    F(beta1, 0.9, 0, 1, "beta1", "Of adamw, below 1")                                                                \
    F(beta2, 0.999, 0, 1, "beta2", "Of adamw, below 1")                                                              \
    F(eps, 1e-8, 0, 1, "eps", "Of adamw")                                                                            \
    I(warmup, 0, 0, INT64_MAX, "warmup", "N", "Steps in which the rate rises.")                                      \
    F(clip_norm, 0, 0, 1e30, "clip-norm", "Most that the norm of all gradients may be, 0: no limit")                 \
    I(seed, 0, 0, INT64_MAX, "seed", "S", "What random numbers follow from.")                                        \
    W(loss, "cross-entropy|nll|mse|l1|bce", "loss", "What is made small.")                                           \
    F(label_smoothing, 0, 0, 1, "label-smoothing", "Of cross-entropy, below 1")                                      \
    I(ignore_index, -100, INT64_MIN, INT64_MAX, "ignore-index", "N", "A class id that does not count.")              \
    S(loss_output, "loss-output", "NAME", "The output that the loss reads (default: the first).")                    \
    W(bn, "train|frozen", "bn", "Batch normalisation by the batch, or by its running statistics.")                   \
    B(recompute, "recompute", "Compute cheap values again in the backward part instead of keeping them.")            \
    S(augment, "augment", "LIST", "Changes of images: random-resized-crop[:SMALLEST], pad-crop:PIXELS, flip.")       \
    I(checkpoint_every, 0, 0, INT64_MAX, "checkpoint-every", "N", "Steps between two checkpoints; 0: chosen.")

/* These share flags: --schedule=KIND[:...] and --val. */
#define TRAIN_CONFIG_PARTS(I, F, O, B, W, S)                                           \
    W(schedule, "constant|step|cosine", NULL, NULL)                                    \
    F(schedule_epochs, 1, 0, 1e6, NULL, "") /* step: epochs between two falls */       \
    F(schedule_gamma, 0.1, 0, 1, NULL, "")  /* step: what the rate is multiplied by */ \
    F(schedule_floor, 0, 0, 1e6, NULL, "")  /* cosine: the last rate */                \
    F(val, 0, 0, 0.9, NULL, "")             /* share of the samples that is held out */

#define TRAIN_CONFIG(I, F, O, B, W, S) TRAIN_CONFIG_FLAGS(I, F, O, B, W, S) TRAIN_CONFIG_PARTS(I, F, O, B, W, S)

struct train_config {
#define I(key, ...) int64_t key;
#define F(key, ...) double key;
#define B(key, ...) bool key;
#define W(key, ...) int key; /* position among the words */
#define S(key, ...) char *key;
    TRAIN_CONFIG(I, F, F, B, W, S)
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

/* The word of a list "a|b|c" at a position. */
void train_config_word(const char *words, int at, char *out, size_t size);

/* Borrows c's texts. */
void train_config_grad(const struct train_config *c, struct grad_options *out);

#endif
