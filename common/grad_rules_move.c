/* Rules of ops that move elements. <Op>Grad(dY, shape, inputs of the op from the second on) adds each element of dY to
 * where it came from. */
#include <string.h>

#include "common/grad_priv.h"

static void same(struct grad *r, const struct node *n, const int32_t *dy, int32_t *dx)
{
    (void)r;
    (void)n;
    dx[0] = dy[0];
}

static void reshape(struct grad *r, const struct node *n, const int32_t *dy, int32_t *dx)
{
    dx[0] = grad_like(r, dy[0], n->in[0]);
}

static void transpose(struct grad *r, const struct node *n, const int32_t *dy, int32_t *dx)
{
    int rank = grad_rank(r, n->in[0]);
    const struct attr *a = node_attr_ints(n, "perm");
    int64_t back[YK_MAX_RANK] = {0};
    for (int k = 0; k < rank; k++)
        back[a ? a->ints[k] : rank - 1 - k] = k;
    dx[0] = grad_transpose(r, dy[0], back, rank);
}

/* ai.yoke.<Op>Grad as the file's head says. */
static void moved(struct grad *r, const struct node *n, const int32_t *dy, int32_t *dx)
{
    char op[64] = "ai.yoke.";
    int32_t in[OP_MAX_IN] = {dy[0], grad_shape(r, n->in[0])};
    strncat(op, n->op->name, sizeof op - strlen(op) - 5);
    strcat(op, "Grad");
    for (int k = 1; k < n->n_in; k++)
        in[1 + k] = grad_in(r, n, k);
    dx[0] = 0;
    grad_node(r, op, in, 1 + n->n_in, &dx[0], 1);
    grad_attr_copy(r, n);
}

/* Without the value that was padded with. */
static void pad(struct grad *r, const struct node *n, const int32_t *dy, int32_t *dx)
{
    dx[0] = grad_op3(r, "ai.yoke.PadGrad", dy[0], grad_shape(r, n->in[0]), grad_in(r, n, 1));
    grad_attr_copy(r, n);
}

static void expand(struct grad *r, const struct node *n, const int32_t *dy, int32_t *dx)
{
    dx[0] = grad_sum_to(r, dy[0], n->out[0], n->in[0]);
}

static void concat(struct grad *r, const struct node *n, const int32_t *dy, int32_t *dx)
{
    int64_t axis = node_attr_i(n, "axis", 0), sizes[OP_MAX_IN];
    int rank = grad_rank(r, n->in[0]);
    int32_t parts[OP_MAX_IN], list;
    bool known = true;
    axis += axis < 0 ? rank : 0;
    if (n->n_in == 1) {
        dx[0] = dy[0];
        return;
    }
    if (n->n_in > OP_MAX_OUT) {
        grad_fail(r, YK_UNSUPPORTED, "%d inputs", n->n_in);
        return;
    }
    for (int k = 0; k < n->n_in; k++) {
        sizes[k] = r->p->at[0].of[n->in[k]].dims[axis];
        for (int i = 1; i < r->p->n; i++)
            known = known && r->p->at[i].of[n->in[k]].dims[axis] == sizes[k];
    }
    if (known) {
        list = grad_ints(r, sizes, n->n_in);
    } else {
        for (int k = 0; k < n->n_in; k++)
            parts[k] = grad_op2(r, "Gather", grad_shape(r, n->in[k]), grad_ints(r, &axis, 1));
        list = 0;
        grad_node(r, "Concat", parts, n->n_in, &list, 1);
        grad_attr_i(r, "axis", 0);
    }
    int32_t in[2] = {dy[0], list};
    for (int k = 0; k < n->n_in; k++)
        dx[k] = 0;
    grad_node(r, "Split", in, 2, dx, n->n_in);
    grad_attr_i(r, "axis", axis);
}

/* A part that nobody reads has a gradient of zeros. */
static void split(struct grad *r, const struct node *n, const int32_t *dy, int32_t *dx)
{
    int32_t parts[OP_MAX_OUT];
    for (int k = 0; k < n->n_out; k++) {
        if (n->out[k] == YK_ABSENT) {
            grad_fail(r, YK_UNSUPPORTED, "output %d is left out", k);
            return;
        }
        parts[k] = dy[k] != YK_ABSENT ? dy[k] : grad_zeros(r, n->out[k]);
    }
    dx[0] = 0;
    grad_node(r, "Concat", parts, n->n_out, &dx[0], 1);
    grad_attr_i(r, "axis", node_attr_i(n, "axis", 0));
}

static void gather_elements(struct grad *r, const struct node *n, const int32_t *dy, int32_t *dx)
{
    dx[0] = grad_op3(r, "ScatterElements", grad_zeros(r, n->in[0]), grad_in(r, n, 1), dy[0]);
    grad_attr_i(r, "axis", node_attr_i(n, "axis", 0));
    grad_attr_s(r, "reduction", "add");
}

static void gather_nd(struct grad *r, const struct node *n, const int32_t *dy, int32_t *dx)
{
    if (node_attr_i(n, "batch_dims", 0) != 0) {
        grad_fail(r, YK_UNSUPPORTED, "attribute batch_dims is not 0");
        return;
    }
    dx[0] = grad_op3(r, "ScatterND", grad_zeros(r, n->in[0]), grad_in(r, n, 1), dy[0]);
    grad_attr_s(r, "reduction", "add");
}

static void top_k(struct grad *r, const struct node *n, const int32_t *dy, int32_t *dx)
{
    dx[0] = grad_op3(r, "ScatterElements", grad_zeros(r, n->in[0]), grad_keep(r, n->out[1]), dy[0]);
    grad_attr_i(r, "axis", node_attr_i(n, "axis", -1));
}

/* What is written over has no gradient. */
static void scatter(struct grad *r, const struct node *n, const int32_t *dy, int32_t *dx)
{
    bool nd = strcmp(n->op->name, "ScatterND") == 0;
    const char *how = node_attr_s(n, "reduction", "none");
    bool over = strcmp(how, "none") == 0;
    int64_t axis = node_attr_i(n, "axis", 0);
    if (!over && strcmp(how, "add") != 0) {
        grad_fail(r, YK_UNSUPPORTED, "reduction %s", how);
        return;
    }
    if (grad_needs(r, n, 0)) {
        dx[0] = dy[0];
        if (over) {
            dx[0] = grad_op3(r, n->op->name, dy[0], grad_in(r, n, 1), grad_zeros(r, n->in[2]));
            if (!nd)
                grad_attr_i(r, "axis", axis);
        }
    }
    if (grad_needs(r, n, 2)) {
        dx[2] = grad_op2(r, nd ? "GatherND" : "GatherElements", dy[0], grad_in(r, n, 1));
        if (!nd)
            grad_attr_i(r, "axis", axis);
    }
}

static void depth_to_space(struct grad *r, const struct node *n, const int32_t *dy, int32_t *dx)
{
    int64_t size = node_attr_i(n, "blocksize", 1);
    int32_t d = grad_op1(r, "SpaceToDepth", dy[0]);
    grad_attr_i(r, "blocksize", size);
    if (strcmp(node_attr_s(n, "mode", "DCR"), "CRD") == 0) { /* channels came first, SpaceToDepth puts them last */
        static const int64_t perm[] = {0, 2, 1, 3, 4};
        const struct shape *x = &r->p->at[0].of[n->in[0]];
        int64_t squares = size * size, dims[] = {0, squares, x->dims[1] / squares, -1, 1};
        d = grad_transpose(r, grad_reshape(r, d, dims, 5), perm, 5);
    }
    dx[0] = grad_like(r, d, n->in[0]);
}

static void space_to_depth(struct grad *r, const struct node *n, const int32_t *dy, int32_t *dx)
{
    dx[0] = grad_op1(r, "DepthToSpace", dy[0]);
    grad_attr_i(r, "blocksize", node_attr_i(n, "blocksize", 1));
}

/* The same op with the same other inputs: it keeps what it kept. */
static void again(struct grad *r, const struct node *n, const int32_t *dy, int32_t *dx)
{
    int32_t in[2] = {dy[0], grad_in(r, n, 1)};
    dx[0] = 0;
    grad_node(r, n->op->name, in, 2, &dx[0], 1);
    grad_attr_copy(r, n);
}

static void cumsum(struct grad *r, const struct node *n, const int32_t *dy, int32_t *dx)
{
    again(r, n, dy, dx);
    bool reverse = node_attr_i(n, "reverse", 0), exclusive = node_attr_i(n, "exclusive", 0);
    struct node *made = grad_last(r);
    if (made)
        made->n_attr = 0;
    grad_attr_i(r, "reverse", !reverse);
    grad_attr_i(r, "exclusive", exclusive);
}

static void dropout(struct grad *r, const struct node *n, const int32_t *dy, int32_t *dx)
{
    const struct node *made = &r->g->nodes[r->node];
    int32_t in[4] = {dy[0], made->out[1], made->in[1], made->in[2]};
    dx[0] = 0;
    (void)n;
    grad_node(r, "ai.yoke.DropoutGrad", in, 4, &dx[0], 1);
}

#define ROW(op, fn)        \
    {                      \
        op, "", 1u, 1u, fn \
    }
static const struct grad_rule rows[] = {
    ROW("Identity", same),
    ROW("Reshape", reshape),
    ROW("Flatten", reshape),
    ROW("Squeeze", reshape),
    ROW("Unsqueeze", reshape),
    ROW("Transpose", transpose),
    ROW("Expand", expand),
    ROW("Slice", moved),
    ROW("Gather", moved),
    ROW("Tile", moved),
    ROW("Resize", moved),
    ROW("Pad", pad),
    {"Concat", "", GRAD_ALL_INPUTS, 1u, concat},
    {"Split", "", 1u, ~0u, split},
    ROW("GatherElements", gather_elements),
    ROW("GatherND", gather_nd),
    ROW("TopK", top_k),
    {"ScatterElements", "", 5u, 1u, scatter},
    {"ScatterND", "", 5u, 1u, scatter},
    ROW("DepthToSpace", depth_to_space),
    ROW("SpaceToDepth", space_to_depth),
    ROW("Trilu", again),
    ROW("ReverseSequence", again),
    ROW("CumSum", cumsum),
    ROW("Dropout", dropout),
};
const struct grad_rules grad_rules_move = {rows, (int)YK_COUNT(rows)};
