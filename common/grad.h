/* Training: from a forward graph to the graph that computes its loss and the gradients of its parameters.
 *
 * The training graph is one struct graph, so shape rules, memory plan, execution, cutting and cost know it already. Its
 * values [0, fwd->n_values) are those of the forward graph, with the same ids and names; its nodes stand in this order:
 *   forward nodes, in the order of the forward graph; after one of them may stand small nodes (Shape) that its backward
 *   part reads; then the loss; then the backward nodes, those of later forward nodes first.
 * The order is canonical already: graph_sort does not change it. Gradients are sums in one fixed order: where a value
 * has several uses its gradient is the left fold over the uses in reverse canonical order, a chain of Add.
 *
 * Graph inputs: the model's, then `target` and `divisor`.
 *   target   class ids, int64 of the shape of the scores without axis 1 (cross-entropy, nll); else of the shape and
 * type of the output that the loss reads. divisor  scalar of the output's type: what counts in the whole batch. Class
 * ids that are not ignore_index (cross-entropy, nll), else samples; a sample's loss is the mean over its elements then.
 * Graph outputs: `loss` (scalar: sum over the microbatch / divisor, so that microbatches add up to the mean of the
 * batch), the model's own, one gradient for each use of each trainable parameter, the next running statistics.
 *
 * A parameter is a weight of the file (float, of rank >= 1, neither a Constant node nor a running statistic) whose use
 * is a differentiable one. Weights of one element are parameters only where an op's definition makes them one (operands
 * of contractions, bias of an Add behind MatMul, scale and bias of a normalisation, slope of PRelu), so that factors
 * and epsilons of exporters stay what they are. Buffers that an exporter writes as weights look like parameters: freeze
 * them.
 *
 * Adding an op: a rule in a grad_rules_*.c, a row in its table. */
#ifndef YK_GRAD_H
#define YK_GRAD_H

#include "common/graph.h"

/* X(NAME, text, class_ids) */
#define GRAD_LOSSES(X)                      \
    X(CROSS_ENTROPY, "cross-entropy", true) \
    X(NLL, "nll", true)                     \
    X(MSE, "mse", false)                    \
    X(L1, "l1", false)                      \
    X(BCE, "bce", false) /* with logits */

enum grad_loss {
#define X(name, text, ids) GRAD_##name,
    GRAD_LOSSES(X)
#undef X
        GRAD_LOSS_COUNT
};
const char *grad_loss_name(enum grad_loss l);
bool grad_loss_find(const char *name, enum grad_loss *out);
bool grad_loss_has_ids(enum grad_loss l); /* targets are class ids */

#define GRAD_IGNORE_INDEX (-100) /* PyTorch's */

struct grad_options {
    enum grad_loss loss;
    float label_smoothing;     /* cross-entropy: 0 to below 1 */
    int64_t ignore_index;      /* cross-entropy, nll: GRAD_IGNORE_INDEX unless somebody wants another */
    const char *output;        /* name of the graph output that the loss reads; NULL: the first */
    const char *const *freeze; /* fnmatch patterns of parameters' names that get no gradient */
    int n_freeze;
    bool bn_frozen; /* batch normalisation with the running statistics as constants; else those of the batch */
    bool recompute; /* what is cheap to compute is computed again instead of kept for the backward part */
};
void grad_options_init(struct grad_options *o); /* cross-entropy, nothing frozen */

struct grad_param {
    int32_t value; /* a weight of the training graph, same id as in the forward graph */
    const char *name;
    bool trainable; /* not frozen, and the loss depends on it */
    int32_t n_uses;
    const int32_t *uses; /* indices of graph outputs: a gradient of the weight's shape each, in the order of the fold */
};

struct grad_state { /* a running mean or variance: takes its next value after each microbatch, in their order */
    int32_t value;  /* the weight */
    int32_t output; /* index of the graph output with its next value */
};

/* Lives in the training graph's arena, as long as the graph. */
struct grad_info {
    int32_t n_params, n_states;
    const struct grad_param *params; /* by first use in canonical order; frozen ones too */
    const struct grad_state *states;
    int32_t target_input, divisor_input; /* indices of graph inputs */
    int32_t loss_output;                 /* index of the graph output `loss` */
    int32_t model_output;                /* index of the model's first output; its others follow */
    int32_t logits_output;               /* index of the output that the loss reads */
    int32_t n_model_outputs;
    /* By node of the training graph: the forward node (index in the *forward* graph) that it belongs to. A stage of
     * forward nodes [a,b] is the nodes whose `of` is in [a,b]. The loss belongs to the node that makes the output. */
    const int32_t *of;
    /* Index of the first node of the loss, and of the backward part. Nodes before it make the forward part. */
    int32_t first_loss, first_backward;
    const char *warning; /* for the user (a loss that does not fit the output, folded batch normalisation), or NULL */
};

/* fwd: a graph after passes_train. Its weights' data is borrowed: it stays open as long as the training graph.
 * Errors: YK_INVAL: an option, or no differentiable path from a parameter to the loss (names the node that cuts it).
 * YK_UNSUPPORTED: names every node on the way whose op has no rule. Caller ends *out with graph_close. Thread: any. */
yk_err grad_build(const struct graph *fwd, const struct grad_options *o, struct graph **out, struct grad_info *info,
    struct yk_diag *why);

bool grad_has_rule(const char *domain, const char *op); /* for listings */

#endif
