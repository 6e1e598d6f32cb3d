/* What a backend from outside sees of a graph: nodes and values in the structs of kernels/yoke_backend.h, with ids of
 * their own. Everything is copied, so a view outlives graph and weights: a plug-in that hangs may still look at it. */
#ifndef YK_PLUGIN_VIEW_H
#define YK_PLUGIN_VIEW_H

#include "kernels/backend.h"
#include "kernels/yoke_backend.h"

struct plugin_view {
    struct yoke_segment segment;
    struct yk_arena *arena, *data; /* data: of the weights */
    int32_t *ids;                  /* by index of the segment's values: id in the graph */
};

/* False for nodes that are never offered: subgraphs, random ones, shapes that depend on data or are empty, types that
 * the contract does not know, views of weights. */
bool plugin_view_offers(const struct op_ctx *node);

/* One node at the shapes of its context; weights have data where the graph has it, which is borrowed.
 * Errors: YK_NOMEM. End it with plugin_view_fini. */
yk_err plugin_view_node(const struct op_ctx *node, struct plugin_view *out, struct yk_diag *why);
/* A segment at given shapes with copies of its weights. */
yk_err plugin_view_segment(
    const struct backend_segment *seg, const struct shapes *shapes, struct plugin_view *out, struct yk_diag *why);
void plugin_view_drop_data(struct plugin_view *v); /* after prepare */
void plugin_view_fini(struct plugin_view *v);

void plugin_view_shape(const struct shape *s, struct yoke_shape *out);

#endif
