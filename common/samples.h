/* How a batch is cut into microbatches: whether its samples depend on each other, and which sizes there may be. */
#ifndef YK_SAMPLES_H
#define YK_SAMPLES_H

#include "common/shapes.h"

/* Every input has the samples in front, so that a data set with as many arrays can give them. A model of one input is
 * not asked. Errors: YK_UNSUPPORTED names the input that has not. */
yk_err samples_in_front(const struct graph *g, struct yk_diag *why);

/* True if every graph output has the batch in front and row i of it follows from row i of the inputs alone, whatever
 * the size of the batch. Else false, and why names the first node that mixes samples (or that the rules do not see
 * through). sizes: of the named dimensions, as shapes_infer takes them; the batch's is ignored. A model with a fixed
 * batch is not asked: true. Cautious: false may be said of a model that would be true, never the other way. */
bool samples_independent(const struct graph *g, const int64_t *sizes, struct yk_diag *why);

/* Whether microbatches of `asked` samples (0: auto, always) can be cut from a batch. fixed: what the model takes at a
 * time, 0: any number. The same for the command and for REST; YK_INVAL names both numbers, the flags and the keys. */
yk_err samples_split_check(int64_t batch, int64_t asked, int64_t fixed, struct yk_diag *why);

#endif
