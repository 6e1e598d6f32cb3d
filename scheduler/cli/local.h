/* A model loaded on this machine, without a scheduler: what `yoke local` commands share. */
#ifndef YK_LOCAL_H
#define YK_LOCAL_H

#include "agent/data_ahead.h"
#include "common/plan.h"
#include "kernels/exec.h"
#include "scheduler/cli/cli.h"

struct local {
    struct graph *graph; /* canonical inference graph */
    struct pool *pool;
    struct backends backends;
    struct plan *plan;               /* of --plan, or NULL */
    const char **forms;              /* of the plan or measured, by node; or NULL */
    char (*tuned)[BACKEND_FORM_MAX]; /* the measured ones */
    bool tune;                       /* measure them when the graph is loaded */
    int64_t *sizes;                  /* maximum of each named dimension */
    int64_t *wanted;                 /* by named dimension, of --size; 0: not given */
    int32_t batch_dim;               /* -1: the model has a fixed batch */
    int64_t fixed_batch;
    const struct shape *const *input_shapes; /* of inputs without a declared shape, or NULL; borrowed */
    struct exec *exec;
    int n_lost; /* of the backends, when exec was opened */
};

/* Imports path, runs the passes, reads --plan if given (same graph hash, or an error). sizes are those of --size,
 * else 1.
 */
yk_err local_open(struct cli *c, const char *path, struct local *l, struct yk_diag *why);
/* Reads --plan, of this graph, into l->plan and l->forms. training: what a training graph consists of, as its plans may
 * name forward nodes only; else NULL. */
struct solve_training;
yk_err local_use_plan(
    struct cli *c, struct local *l, struct graph *g, const struct solve_training *training, struct yk_diag *why);
/* The pool and the backends alone, of --threads and --backend. */
yk_err local_open_backends(struct cli *c, struct local *l, struct yk_diag *why);
/* Prepares the whole graph for at most max_batch samples; other named dims take the sizes in l->sizes. */
yk_err local_load(struct local *l, int64_t max_batch, struct yk_diag *why);
/* Between runs: prepares the graph again if a backend was taken out since; ref would answer for it otherwise. What
 * exec_plan gave before is void. */
void local_renew(struct local *l, int64_t max_batch);
void local_close(struct local *l);

int local_threads(const struct cli *c); /* of --threads; all cores if it is not given */
/* Sizes of the named dims from the inputs' actual shapes; every declared number must agree, and one input with another.
 * in: by input of the graph, NULL for what is no tensor. sizes: by sym; 1 where no input says. Errors name the input
 * and the dimension. */
yk_err local_sizes(const struct graph *g, const struct shape *const *in, int64_t *sizes, struct yk_diag *why);

/* Errors where l->sizes, taken from inputs, differ from --size. */
yk_err local_agree(const struct local *l, struct yk_diag *why);
/* Errors if an input has a named dimension other than the batch that --size does not give; says which and how. */
yk_err local_all_given(const struct local *l, struct yk_diag *why);

/* Samples that go together: of the plan (NULL: none), of the model if it takes a fixed number, of --microbatch, else
 * the whole batch. Errors where the flag says something else than the first two, or more than the batch. */
yk_err local_microbatch(
    const struct cli *c, const struct plan *plan, int64_t fixed, int64_t batch, int64_t *out, struct yk_diag *why);

/* A graph input's shape at l->sizes with the batch replaced. */
yk_err local_input_shape(const struct local *l, int32_t input, int64_t batch, struct shape *out, struct yk_diag *why);
/* What a graph input of a run takes from a batch; shapes: those of the run, of b's size. */
struct tensor local_samples(const struct local *l, const struct data_set *set, const struct data_ahead_batch *b,
    int32_t value, const struct shapes *shapes);
/* Tensors of the graph outputs at these sizes; free data with free(). */
yk_err local_outputs_alloc(struct local *l, const int64_t *sizes, struct tensor **out, struct yk_diag *why);

#endif
