/* Runs the nodes of one stage through the segments of its backends, over one memory plan.
 * Bits depend on graph, forms and inputs only: not on the stage's borders, the threads or earlier runs. */
#ifndef YK_EXEC_H
#define YK_EXEC_H

#include "common/memplan.h"
#include "kernels/backend.h"
#include "kernels/dyn.h"

struct exec;

struct exec_config {
    const struct graph *graph; /* borrowed for the life of the exec */
    const uint8_t *in_stage;   /* a byte per node; NULL: all nodes */
    const char *const *forms;  /* a name per node; NULL entries (or NULL): the static rule of this machine */
    const int64_t *max_sizes;  /* by graph sym */
    const struct shape *const *input_shapes; /* of inputs without a declared shape; may be NULL */
    struct backends *backends;               /* borrowed */
    /* Data of a weight the stage uses, if the graph has only its hash; borrowed for the life of the exec. */
    yk_err (*weight)(void *arg, int32_t value, const void **data, struct yk_diag *why);
    /* The same of a weight of a subgraph; NULL: they have their data. */
    yk_err (*inner_weight)(void *arg, const struct value *weight, const void **data, struct yk_diag *why);
    void *weight_arg; /* of both */
    /* By value id: memory of weights that change between runs (training), NULL where one does not; the memory is
     * borrowed for the life of the exec, the array for the call. NULL: none changes. */
    void *const *variable;
    /* By value id, 1 for an output of the stage that `take` may want as soon as the node that makes it has run: the
     * memory plan holds room for it only as long as the stage needs it. The array is for the call. NULL: none. */
    const uint8_t *taken;
    /* Called in a run, before the next node begins (with backends that cannot stop in between: behind their segment),
     * for each of them whose out[].data is NULL in that run: out is its position there. */
    void (*take)(void *arg, int32_t out, const struct tensor *made);
    void *take_arg;
    int64_t heap_limit;   /* bytes of values whose size depends on data, at one time; 0: EXEC_HEAP_LIMIT */
    double time_limit_ms; /* in which the last dynamic node of a run must begin; 0: none */
    int64_t step_limit;   /* dynamic nodes that one run executes, subgraphs included; 0: EXEC_STEP_LIMIT */
};
#define EXEC_HEAP_LIMIT ((int64_t)1 << 30)
#define EXEC_STEP_LIMIT ((int64_t)1000000000)

/* Errors: YK_UNSUPPORTED (a form that no backend here has: names node and form), YK_NOMEM (with the plan's figures). */
yk_err exec_open(const struct exec_config *config, struct exec **out, struct yk_diag *why);
void exec_close(struct exec *e);

const struct memplan *exec_plan(const struct exec *e);     /* boundary values: in/out; memory figures */
const char *exec_form(const struct exec *e, int32_t node); /* NULL if not in the stage */
const struct shapes *exec_max_shapes(const struct exec *e);
int64_t exec_heap_peak(const struct exec *e);  /* most that values whose size depends on data took, over all runs */
int64_t exec_held_bytes(const struct exec *e); /* arena, packed weights, copies of unaligned weights, device staging */

/* Shapes of the boundary at actual sizes (cached for the last sizes). YK_LIMIT names the dimension that is too large.
 */
yk_err exec_sizes(struct exec *e, const int64_t *sizes, const struct shapes **out, struct yk_diag *why);

/* One run: in/out by position in exec_plan()->in / ->out, dense host tensors whose shapes must equal exec_sizes()'s;
 * they may not overlap each other. The data of an output that is taken may be NULL. Blocks until done. Not reentrant.
 * YK_UNSUPPORTED if the stage takes or gives values whose size depends on data: exec_run_made and exec_run_values do
 * it. */
yk_err exec_run(struct exec *e, const int64_t *sizes, const struct tensor *in, struct tensor *out, uint64_t seed,
    struct yk_diag *why);
/* exec_run of a stage that also makes graph outputs whose shape depends on data: made by position in graph->outputs; of
 * each such output of this stage the caller becomes a user, the other entries are NULL. */
yk_err exec_run_made(struct exec *e, const int64_t *sizes, const struct tensor *in, struct tensor *out,
    struct dyn_value **made, uint64_t seed, struct yk_diag *why);
/* A run of a whole graph with values of any kind: in and out by position in graph->inputs and graph->outputs. This is
 * the way to sequences, optionals and outputs whose shape depends on data; what is a tensor of known shape must have
 * that shape. in is borrowed for the call; of each out the caller becomes a user (dyn_unref). */
yk_err exec_run_values(struct exec *e, const int64_t *sizes, struct dyn_value *const *in, struct dyn_value **out,
    uint64_t seed, struct yk_diag *why);
/* Between runs: the memory of these variable weights has new contents. changed: by value id; NULL: of all of them. */
yk_err exec_set_weights(struct exec *e, const uint8_t *changed, struct yk_diag *why);
void exec_cancel(struct exec *e); /* any thread: a run in progress ends with YK_CANCELED at the next segment */

/* Called after each node of host segments, for `bench --ops` and profiles; NULL ends it. */
void exec_trace(struct exec *e, void (*fn)(void *arg, int32_t node, const char *form, double ms), void *arg);
/* What fn may look at: a value that the node reads or makes, whose elements may be stored in another order (channels
 * last). data is NULL where the value is not in host memory. */
struct tensor exec_peek(const struct exec *e, int32_t value);

#endif
