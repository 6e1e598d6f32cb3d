#include "kernels/layout.h"

/* (N,C,H,W) with ones in front. */
static void right_align(const struct shape *s, int64_t d[4])
{
    for (int i = 0; i < 4; i++)
        d[i] = i < 4 - s->rank ? 1 : s->dims[i - (4 - s->rank)];
}

bool layout_neutral(const struct shape *s)
{
    int64_t d[4];
    if (s->rank > 4)
        return false;
    right_align(s, d);
    return d[1] == 1 || (d[2] == 1 && d[3] == 1);
}

void layout_turn(const struct shape *s, struct shape *out)
{
    int64_t d[4];
    right_align(s, d);
    *out = (struct shape){.dtype = s->dtype, .rank = 4, .dims = {d[0], d[2], d[3], d[1]}};
}

/* Values of node n that cannot be stored last because of it are taken from last; returns whether there were any. */
static bool restrict_to(
    const struct backend_segment *seg, const struct node *n, const struct host_kernel *k, uint8_t *last)
{
    bool all = k->layout != HOST_DENSE && !(n->op->flags & OP_VIEW) && n->n_in <= 64 && n->n_out <= 64, changed = false;
    for (int32_t i = 0; all && k->layout == HOST_SAME && i < n->n_in + n->n_out; i++) {
        int32_t v = i < n->n_in ? n->in[i] : n->out[i - n->n_in];
        if (v != YK_ABSENT && !last[v] && !layout_neutral(&seg->max->of[v]))
            all = false;
    }
    for (int32_t i = 0; !all && i < n->n_in + n->n_out; i++) {
        int32_t v = i < n->n_in ? n->in[i] : n->out[i - n->n_in];
        changed |= v != YK_ABSENT && last[v];
        if (v != YK_ABSENT)
            last[v] = 0;
    }
    return changed;
}

void layout_choose(const struct backend_segment *seg, const struct host_kernel *const *kernels, uint8_t *last)
{
    const struct graph *g = seg->graph;
    for (int32_t v = 0; v < g->n_values; v++)
        last[v] = last[v] && seg->max->of[v].rank == 4 && seg->max->of[v].dtype == DT_F32;
    for (bool again = true; again;) {
        again = false;
        for (int32_t i = 0; i < seg->n_nodes; i++)
            again |= restrict_to(seg, &g->nodes[seg->nodes[i]], kernels[i], last);
    }
}
