/* Shape rule of the gradients of ops that move elements: dY, Shape(X) and the op's other inputs. The op's own rule says
 * what dY has to look like. */
#include <stdlib.h>
#include <string.h>

#include "common/op_rules.h"

yk_err op_rule_move_grad(struct op_ctx *c)
{
    const char *name = c->node->op->name;
    char forward[64], have[128], text[128];
    struct shape x, want;
    size_t length = strlen(name) - strlen("Grad");
    yk_err err;
    if (length >= sizeof forward)
        return yk_fail(c->why, YK_INTERNAL, "no op %s", name);
    memcpy(forward, name, length);
    forward[length] = 0;
    const struct op *op = op_find("", forward);
    if (!op)
        return yk_fail(c->why, YK_INTERNAL, "no op %s", forward);
    if ((err = op_want(c, 0, OP_FLOATS)) != YK_OK || (err = op_listed_shape(c, 1, &x)) != YK_OK)
        return err;
    struct op_ctx *f = yk_try_alloc(1, sizeof *f);
    if (!f)
        return yk_fail(c->why, YK_NOMEM, "no memory for shapes");
    f->graph = c->graph;
    f->node = c->node;
    f->why = c->why;
    f->n_in = c->n_in - 1;
    f->n_out = 1;
    f->in[0] = &x;
    for (int i = 2; i < c->n_in; i++) {
        f->in[i - 1] = c->in[i];
        f->content[i - 1] = c->content[i];
        f->data[i - 1] = c->data[i];
    }
    err = op->infer(f);
    want = f->out[0];
    free(f);
    if (err)
        return err;
    if (!shape_equal(c->in[0], &want)) {
        shape_text(c->in[0], have, sizeof have);
        shape_text(&want, text, sizeof text);
        return yk_fail(c->why, YK_INVAL, "the gradient (input 0) is %s, the output it is of %s", have, text);
    }
    op_out_like(c, 0, &x, x.dtype);
    return YK_OK;
}
