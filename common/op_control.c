/* Control flow, sequences and optionals: what their subgraphs must look like. Shapes of If, Loop and Scan are derived
 * in shapes_control.c; everything of this family is executed by its actual inputs (kernels/dynamic.c). */
#include <string.h>

#include "common/op_rules.h"

yk_err op_rule_values(struct op_ctx *c)
{
    return yk_fail(c->why, YK_DEPENDS, "it works on values whose size depends on data");
}

static bool is(const struct node *n, const char *name)
{
    return strcmp(n->op->name, name) == 0;
}

static yk_err subgraph(const struct node *n, const char *name, const struct graph **out, struct yk_diag *why)
{
    const struct attr *a = node_attr(n, name);
    if (!a || a->kind != ATTR_GRAPH || !a->graph)
        return yk_fail(why, YK_FORMAT, "it has no subgraph '%s'", name);
    *out = a->graph;
    return YK_OK;
}

static yk_err want(const char *name, const char *what, int32_t have, int wants, struct yk_diag *why)
{
    if (have == wants)
        return YK_OK;
    return yk_fail(why, YK_FORMAT, "its subgraph '%s' has %d %s, wants %d", name, (int)have, what, wants);
}

static yk_err check_if(const struct node *n, struct yk_diag *why)
{
    static const char *const names[] = {"then_branch", "else_branch"};
    yk_err err = n->n_in == 1 && n->in[0] != YK_ABSENT ? YK_OK : yk_fail(why, YK_FORMAT, "it has no condition");
    for (int i = 0; i < 2 && !err; i++) {
        const struct graph *g = NULL;
        err = subgraph(n, names[i], &g, why);
        if (!err)
            err = want(names[i], "inputs", g->n_inputs, 0, why);
        if (!err)
            err = want(names[i], "outputs", g->n_outputs, n->n_out, why);
    }
    return err;
}

static yk_err check_loop(const struct node *n, struct yk_diag *why)
{
    const struct graph *g = NULL;
    int carried = n->n_in - 2;
    yk_err err = subgraph(n, "body", &g, why);
    if (!err)
        err = want("body", "inputs", g->n_inputs, 2 + carried, why);
    if (!err)
        err = want("body", "outputs", g->n_outputs, 1 + n->n_out, why);
    if (!err && n->n_out < carried)
        err = yk_fail(why, YK_FORMAT, "it carries %d values and has %d outputs", carried, (int)n->n_out);
    for (int i = 2; i < n->n_in && !err; i++)
        if (n->in[i] == YK_ABSENT)
            err = yk_fail(why, YK_FORMAT, "input %d is missing", i);
    return err;
}

static yk_err check_map(const struct node *n, struct yk_diag *why)
{
    const struct graph *g = NULL;
    yk_err err = subgraph(n, "body", &g, why);
    if (!err)
        err = want("body", "inputs", g->n_inputs, n->n_in, why);
    if (!err)
        err = want("body", "outputs", g->n_outputs, n->n_out, why);
    for (int i = 0; i < n->n_in && !err; i++)
        if (n->in[i] == YK_ABSENT)
            err = yk_fail(why, YK_FORMAT, "input %d is missing", i);
    return err;
}

/* A list of as many integers as there are scanned values, or none of it. */
static yk_err scan_list(const struct node *n, const char *name, int count, int64_t *out, struct yk_diag *why)
{
    const struct attr *a = node_attr(n, name);
    for (int i = 0; i < count; i++)
        out[i] = 0;
    if (!a)
        return YK_OK;
    if (a->kind != ATTR_INTS || a->n != (size_t)count)
        return yk_fail(why, YK_FORMAT, "'%s' is no list of %d integers", name, count);
    for (int i = 0; i < count; i++)
        out[i] = a->ints[i];
    return YK_OK;
}

static yk_err scan_directions(const struct node *n, const char *name, int count, bool *out, struct yk_diag *why)
{
    int64_t v[OP_SCAN_MAX];
    yk_err err = scan_list(n, name, count, v, why);
    for (int i = 0; i < count && !err; i++) {
        if (v[i] != 0 && v[i] != 1)
            err = yk_fail(why, YK_FORMAT, "'%s' holds %lld, wants 0 or 1", name, (long long)v[i]);
        out[i] = v[i] == 1;
    }
    return err;
}

yk_err op_scan_dims(const struct node *n, struct scan_dims *out, struct yk_diag *why)
{
    const struct graph *g = NULL;
    struct scan_dims d = {.batched = is(n, "BatchScan")};
    yk_err err = subgraph(n, "body", &g, why);
    int64_t n_in = node_attr_i(n, "num_scan_inputs", 0);
    if (err)
        return err;
    d.first = d.batched ? 1 : 0;
    if (n_in < 1 || n_in > n->n_in - d.first)
        return yk_fail(why, YK_FORMAT, "'num_scan_inputs' is %lld of %d inputs", (long long)n_in, n->n_in - d.first);
    d.n_in = (int)n_in;
    d.n_state = n->n_in - d.first - d.n_in;
    d.n_out = n->n_out - d.n_state;
    if (d.n_out < 0)
        return yk_fail(why, YK_FORMAT, "it has %d states and %d outputs", d.n_state, (int)n->n_out);
    if (n->n_in > OP_MAX_IN || n->n_out > OP_MAX_OUT)
        return yk_fail(why, YK_LIMIT, "it has %d inputs and %d outputs, the limits are %d and %d", (int)n->n_in,
            (int)n->n_out, OP_MAX_IN, OP_MAX_OUT);
    if ((err = want("body", "inputs", g->n_inputs, d.n_state + d.n_in, why)) ||
        (err = want("body", "outputs", g->n_outputs, n->n_out, why)) ||
        (err = scan_list(n, "scan_input_axes", d.n_in, d.in_axis, why)) ||
        (err = scan_list(n, "scan_output_axes", d.n_out, d.out_axis, why)) ||
        (err = scan_directions(n, d.batched ? "directions" : "scan_input_directions", d.n_in, d.in_reverse, why)) ||
        (err = scan_directions(n, "scan_output_directions", d.n_out, d.out_reverse, why)))
        return err;
    for (int i = d.first; i < n->n_in; i++)
        if (n->in[i] == YK_ABSENT)
            return yk_fail(why, YK_FORMAT, "input %d is missing", i);
    *out = d;
    return YK_OK;
}

yk_err op_control_check(const struct node *n, struct yk_diag *why)
{
    struct scan_dims d;
    if (is(n, "If"))
        return check_if(n, why);
    if (is(n, "Loop"))
        return check_loop(n, why);
    if (is(n, "Scan") || is(n, "BatchScan"))
        return op_scan_dims(n, &d, why);
    return check_map(n, why);
}
