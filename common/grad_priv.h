/* What the parts of grad share: the graph being made, and what rules write nodes with. Only grad*.c includes this.
 *
 * A rule gets a node of the forward graph, the gradients of its outputs and writes those of its inputs. It asks for
 * every forward value through grad_keep, so that what is not asked for is freed early, and prefers an output to an
 * input where both would do. A call after a failed one does nothing and returns YK_ABSENT; the engine looks at r->err.
 */
#ifndef YK_GRAD_PRIV_H
#define YK_GRAD_PRIV_H

#include "common/grad.h"
#include "common/op.h"
#include "common/passes_rewrite.h"

enum grad_part { GRAD_EARLY, GRAD_LOSS_PART, GRAD_BACKWARD };

struct grad_made { /* of a node behind the forward nodes of r->g, until all are put in order */
    enum grad_part part;
    int32_t of;
};

struct grad {
    struct graph *g; /* nodes [0, fwd->n_nodes) and values [0, fwd->n_values) are the forward ones */
    const struct graph *fwd;
    const struct grad_options *o;
    const struct pass_probes *p; /* of fwd */
    int32_t node;                /* forward node whose rule runs */
    enum grad_part part;
    struct grad_made *made;
    int32_t n_made, cap_made;
    int32_t *acc;      /* by forward value: its gradient so far */
    uint8_t *needs;    /* by forward value: the gradient is wanted */
    int32_t *copy;     /* by forward value: what was computed again of it, or YK_ABSENT */
    uint8_t *saved;    /* by forward value: a rule reads it; NULL: nobody wants to know */
    uint8_t *again;    /* by forward value: it is computed again; NULL: none is */
    int32_t *shape_of; /* by forward value: its Shape node's value */
    int32_t *shape_at; /* and the forward node that it stands behind */
    int32_t *consts;   /* weights that rules made */
    int32_t n_consts, cap_consts;
    int32_t names;
    int32_t *next;       /* by forward value: the next running statistic, or YK_ABSENT */
    const char *warning; /* in g's arena, or NULL */
    yk_err err;
    struct yk_diag *why;
};

/* ---- writing nodes (grad_util.c) ---- */
/* op: of domain "" or, with "ai.yoke." in front, ours. Ends with YK_ABSENT inputs cut off. stem names the outputs. */
bool grad_node(struct grad *r, const char *op, const int32_t *in, int n_in, int32_t *out, int n_out);
bool grad_node_of(struct grad *r, const struct op *op, const int32_t *in, int n_in, int32_t *out, int n_out);
int32_t grad_op1(struct grad *r, const char *op, int32_t a);
int32_t grad_op2(struct grad *r, const char *op, int32_t a, int32_t b);
int32_t grad_op3(struct grad *r, const char *op, int32_t a, int32_t b, int32_t c);
void grad_attr_i(struct grad *r, const char *name, int64_t v); /* of the node written last */
void grad_attr_f(struct grad *r, const char *name, float v);
void grad_attr_s(struct grad *r, const char *name, const char *v);
void grad_attr_ints(struct grad *r, const char *name, const int64_t *v, int n);
void grad_attr_copy(struct grad *r, const struct node *from); /* all of them */
struct node *grad_last(struct grad *r);                       /* NULL after a failure */

int32_t grad_ints(struct grad *r, const int64_t *v, int n);  /* a constant int64 list */
int32_t grad_scalar(struct grad *r, enum dtype t, double v); /* rank 0; f32, f64 or bool */
int32_t grad_ones(struct grad *r, int32_t value);            /* a constant of the shape and type of a weight */
/* The running node is named in front of the text. */
yk_err grad_fail(struct grad *r, yk_err err, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

/* ---- asking about forward values ---- */
bool grad_needs(const struct grad *r, const struct node *n, int k); /* the gradient of input k is wanted */
int32_t grad_keep(struct grad *r, int32_t value); /* grad_keep.c: a forward value, itself or computed again */
int32_t grad_in(struct grad *r, const struct node *n, int k); /* grad_keep of input k; YK_ABSENT if that is absent */
enum dtype grad_type(const struct grad *r, int32_t value);
int grad_rank(const struct grad *r, int32_t value);
const struct shape *grad_static(const struct grad *r, int32_t value); /* its shape if that is the same at all sizes */
bool grad_same(const struct grad *r, int32_t a, int32_t b);           /* have the same shape at all sizes */
const int64_t *grad_content(const struct grad *r, int32_t value, int *n); /* integers known at all sizes, or NULL */
bool grad_const(const struct grad *r, int32_t value, double *out);        /* a float constant of one element */

/* ---- shapes ---- */
int32_t grad_shape(struct grad *r, int32_t value); /* Shape of a forward value that the running node reads or makes */
int32_t grad_like(struct grad *r, int32_t d, int32_t value); /* d with the shape of a forward value, same elements */
/* d has the shape of forward value `from`; the sum over what broadcasting made of `to`. */
int32_t grad_sum_to(struct grad *r, int32_t d, int32_t from, int32_t to);
int32_t grad_zeros(struct grad *r, int32_t value); /* of the shape and type of a forward value */
int32_t grad_reshape(struct grad *r, int32_t d, const int64_t *dims, int n); /* 0 and -1 as in Reshape */
int32_t grad_transpose(struct grad *r, int32_t d, const int64_t *perm, int n);

/* ---- rules ---- */
#define GRAD_NO_INPUT 0u
#define GRAD_ALL_INPUTS (~0u)
struct grad_rule {
    const char *op, *domain;
    unsigned inputs;  /* bit k: input k has a gradient (the last bit stands for all behind it) */
    unsigned outputs; /* bit k: output k carries one */
    /* NULL: an op whose derivative is zero or has no meaning: no path leads through it. dx[k] is YK_ABSENT before;
     * it is set where grad_needs says so. A dx that stays YK_ABSENT is a zero. */
    void (*run)(struct grad *r, const struct node *n, const int32_t *dy, int32_t *dx);
};
struct grad_rules {
    const struct grad_rule *rows;
    int n;
};
extern const struct grad_rules grad_rules_act, grad_rules_linear, grad_rules_math, grad_rules_move, grad_rules_norm,
    grad_rules_reduce, grad_rules_stop;
const struct grad_rule *grad_rule_of(const struct op *op); /* NULL if there is none */

bool grad_rule_takes(const struct grad_rule *rule, int k);
bool grad_rule_gives(const struct grad_rule *rule, int k);

/* ---- the parts of grad_build ---- */
/* grad_path.c. By value: 1 for a weight that may be trained, 2 for one that is frozen. */
void grad_find_params(const struct grad *r, uint8_t *params);
/* Every pattern names a weight. */
yk_err grad_check_freeze(const struct grad *r, const uint8_t *params);
/* Fills needs: what lies on a way from a weight with params 1 to `scores`. Warns of such weights without a way. */
yk_err grad_find_paths(struct grad *r, int32_t scores, const uint8_t *params);
/* grad_forward.c: fwd into g, with what the backward part wants of batch normalisation and Dropout. */
yk_err grad_copy(struct grad *r);
/* grad_keep.c: fills again, from what the rules read in a first build. */
yk_err grad_plan_again(struct grad *r, const uint8_t *saved);
/* grad_loss.c: the loss of scores, and their gradient d. */
yk_err grad_write_loss(struct grad *r, int32_t scores, int32_t target, int32_t divisor, int32_t *loss, int32_t *d);
yk_err grad_check_options(const struct grad_options *o, struct yk_diag *why);

#endif
