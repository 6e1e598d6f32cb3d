/* Runs the nodes of a stage whose shapes are known only when their inputs are there (shapes.h: `dynamic`): one node
 * after the other, each checked by its shape rule on its actual inputs. What it makes lives on a bounded heap, counts
 * its users and goes at its last use. If, Loop, Scan and SequenceMap recurse into their subgraphs.
 *
 * Forms. The form of such a node is "dynamic@ISA[+ISA..]": it, and all nodes of its subgraphs, run in the first kernel
 * that claims their shapes among the host backends of these isas, in that order, and of `ref` behind them
 * ("dynamic@generic": ref alone, which every machine has). So bits depend on op, shapes, inputs and the form's name, as
 * everywhere. */
#ifndef YK_DYNAMIC_H
#define YK_DYNAMIC_H

#include <stdatomic.h>

#include "kernels/dyn.h"
#include "kernels/host.h"

struct dynamic;

struct dynamic_config {
    const struct graph *graph;  /* borrowed, as all here */
    const uint8_t *in_stage;    /* by node */
    const struct shapes *max;   /* says which nodes are dynamic */
    const void *const *weights; /* by value id of the graph: aligned data; read at runs */
    /* Data of a weight of a subgraph that has none; NULL: all have. Borrowed like the graph. */
    yk_err (*inner_weight)(void *arg, const struct value *weight, const void **data, struct yk_diag *why);
    void *weight_arg;
    struct backends *backends;
    const char (*forms)[BACKEND_FORM_MAX]; /* by node; those of dynamic nodes are read */
    int64_t heap_limit, step_limit;        /* bytes; nodes in one run */
    double time_limit_ms;                  /* of one run, looked at before each node; 0: none */
    const atomic_bool *canceled;           /* looked at before each node */
};

#define DYNAMIC_GENERIC "dynamic@generic"
/* The form that this machine would take. */
void dynamic_form(const struct backends *b, char out[BACKEND_FORM_MAX]);
bool dynamic_form_here(const struct backends *b, const char *form); /* all its isas are here */

/* Errors: YK_UNSUPPORTED (form), YK_NOTFOUND (a weight of a subgraph has no data here). */
yk_err dynamic_open(const struct dynamic_config *config, struct dynamic **out, struct yk_diag *why);
void dynamic_close(struct dynamic *d);               /* NULL allowed */
int64_t dynamic_held_bytes(const struct dynamic *d); /* copies of unaligned weights of subgraphs */
int64_t dynamic_peak_bytes(const struct dynamic *d); /* of the heap, over all runs */

/* One run: begin, set what the caller gives, nodes in order, take what is wanted, end (also after an error).
 * place tells where a value of known shape lies. It is read and written while the node runs, never kept. */
struct dynamic_run {
    const struct shapes *shapes; /* at the actual sizes */
    void (*place)(void *arg, int32_t value, struct tensor *out);
    void *arg;
    uint64_t seed;
};
void dynamic_begin(struct dynamic *d, const struct dynamic_run *run);
void dynamic_set(struct dynamic *d, int32_t value, struct dyn_value *v); /* becomes a user of v */
yk_err dynamic_node(struct dynamic *d, int32_t node, struct yk_diag *why);
struct dyn_value *dynamic_take(struct dynamic *d, int32_t value); /* one more user for the caller; NULL if not there */
void dynamic_end(struct dynamic *d);

#endif
