/* How well a model does on samples that it did not learn from: the mean loss, and how often the largest score is that
 * of the class. The same numbers to the bit wherever the same samples, microbatch and machine are: `local train` and a
 * source of a training judge with it. Weights are read where the graph has them. */
#ifndef YK_JUDGE_H
#define YK_JUDGE_H

#include "agent/data.h"
#include "common/grad.h"
#include "kernels/exec.h"

struct judge;

struct judge_config {
    struct graph *graph;      /* for inference, behind passes_train; borrowed, like all here */
    const struct graph *like; /* where names of dimensions have the sizes below; those of the batch are not looked at */
    const int64_t *like_sizes; /* by sym of `like` */
    struct backends *backends;
    int64_t microbatch; /* of the training */
    int64_t samples;    /* that will come */
    const char *output; /* the scores; a name of the graph's */
    enum grad_loss loss;
    int64_t ignore_index;
};

struct judge_score {
    int64_t samples, correct;
    double loss;  /* mean; NaN if the model's loss is not computed here */
    bool classes; /* correct counts */
};

yk_err judge_open(const struct judge_config *c, struct judge **out, struct yk_diag *why);
void judge_close(struct judge *j);               /* NULL allowed */
int64_t judge_microbatch(const struct judge *j); /* how many samples at a time */
int64_t judge_bytes(const struct judge *j);      /* of memory, weights not counted */
/* x, y: count samples of `set` as data_read gives them; fewer than judge_microbatch are the last ones, and a model with
 * a fixed batch leaves them out. */
yk_err judge_add(
    struct judge *j, const struct data_set *set, const void *x, const void *y, int64_t count, struct yk_diag *why);
struct judge_score judge_score(const struct judge *j); /* of all that were added */

#endif
