/* The graph that training starts from, and the way back to inference. */
#include <stdlib.h>
#include <string.h>

#include "common/passes_rewrite.h"

static bool is_op(const struct node *n, const char *name)
{
    return n->op && !n->op->domain[0] && strcmp(n->op->name, name) == 0;
}

yk_err passes_train(struct graph *g, passes_eval eval, void *arg, struct yk_diag *why)
{
    yk_err err = pass_fold_and_inline(g, true, eval, arg, why);
    if (!err)
        err = pass_fuse_layernorm(g, why);
    return err ? err : pass_compact(g, why);
}

/* Outputs that only training gives must not be read. */
static yk_err drop_outputs(struct graph *g, int32_t index, const int32_t *uses, struct yk_diag *why)
{
    struct node *n = &g->nodes[index];
    for (int32_t k = 1; k < n->n_out; k++)
        if (n->out[k] != YK_ABSENT && uses[n->out[k]] > 0)
            return yk_fail(why, YK_UNSUPPORTED, "node %d '%s' (%s): output '%s', which only training gives, is read",
                index, n->name, n->op->name, g->values[n->out[k]].name);
    n->n_out = 1;
    return YK_OK;
}

yk_err passes_eval_mode(struct graph *g, struct yk_diag *why)
{
    int32_t *uses = pass_uses(g);
    yk_err err = uses ? YK_OK : yk_fail(why, YK_NOMEM, "no memory to change the mode");
    for (int32_t i = 0; i < g->n_nodes && !err; i++) {
        struct node *n = &g->nodes[i];
        if (is_op(n, "BatchNormalization") && node_attr_i(n, "training_mode", 0)) {
            err = drop_outputs(g, i, uses, why);
            if (!err && graph_set_attr_i(g, n, "training_mode", 0))
                err = yk_fail(why, YK_NOMEM, "no memory to change the mode");
        } else if (is_op(n, "Dropout") && n->n_in > 2) {
            n->n_in = 2; /* the mask is all ones then, as it is without training */
        }
    }
    free(uses);
    return err ? err : pass_compact(g, why);
}
