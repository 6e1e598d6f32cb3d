/* What passes_attention*.c share: an attention that is being matched, and views of its operands.
 *
 * Where an operand comes from is followed as addresses: a view says, for each axis of the operand, by which steps it
 * walks through the elements of an earlier value. Reshape leaves addresses alone; Transpose, Slice, Split and Gather
 * change them by the axis; a scalar factor is noted. That is done for the shapes of every probe. */
#ifndef YK_PASSES_ATTENTION_H
#define YK_PASSES_ATTENTION_H

#include "common/passes_rewrite.h"

#include <string.h>

#define ATTENTION_FACTORS 24

struct factor { /* n places, step elements apart, of axis `dim` of the operand */
    int dim;
    int64_t n, step;
};

struct view {
    struct factor f[ATTENTION_FACTORS];
    int n;
    int64_t offset;
};

enum form { FORM_ROWS, FORM_TIME, FORM_HEADS, FORM_PLAIN, FORMS }; /* PLAIN: rows with one head */

struct found { /* an operand as a value that Attention can read */
    int32_t value;
    int64_t heads, size, at;
    double scale;
};

enum role { ROLE_Q, ROLE_K, ROLE_V };

struct match {
    struct graph *g;
    struct pass_probes p;
    int32_t n_probed;
    int32_t *uses, *reader;
    int32_t node; /* for note_reader */
    struct op_ctx *x;
    struct view view[PASS_PROBES];
    struct found found[3][FORMS];
    int32_t scores, softmax, product, mask; /* nodes; mask is a value */
    double scale;
};

static inline bool passes_attention_is(const struct node *n, const char *name)
{
    return n->op && n->op->domain[0] == 0 && strcmp(n->op->name, name) == 0;
}

static inline const struct shape *passes_attention_shape(const struct match *m, int probe, int32_t value)
{
    return &m->p.at[probe].of[value];
}

/* passes_attention_view.c */
void passes_attention_strides(const struct shape *s, int64_t *step); /* of each axis, row-major */
/* A view of a value as it is, an axis of the operand each: one for each probe. False: a shape is not known, or empty.
 */
bool passes_attention_begin(const struct match *m, int32_t value, struct view *out);
/* Splits factors until each moves in one axis of a tensor of this shape. False: one moves in no axis. */
bool passes_attention_refine(struct view *v, const struct shape *s);
/* Through the node that makes `value`, in one probe; *scale is multiplied. False: it is no view. */
bool passes_attention_through(struct match *m, int probe, int32_t node, int32_t value, struct view *v, double *scale);

#endif
