/* Times every node of a graph in every form that this machine has: the device's side of the cost model. */
#ifndef YK_PROFILE_H
#define YK_PROFILE_H

#include "kernels/backend.h"

struct profile_entry {
    int32_t node;
    const char *form; /* valid during the call */
    int64_t size;     /* of the batch dimension */
    double ms;        /* the less of two medians of repeats, each after one warm-up; all threads of the pool */
    double prepare_ms;
    int64_t packed_bytes, workspace_bytes;
};

/* For each size in sizes, smallest first: other named dims take others[sym] (or 1). Equal node signatures are timed
 * once. Sizes that a layer refuses are left out, unless it is the largest. After budget_ms, the smallest size is still
 * timed, with one run a node, and larger sizes are left out. Inputs are seeded noise (integers: their known contents,
 * else 0); weights are noise too where the graph has only hashes. Left out: forms of `ref` for nodes of more than a
 * megaflop that another backend can run, and nodes that fail on such inputs. Nodes that run by their actual inputs are
 * timed in a run of the whole graph, or given as 0 ms (see profile_priv.h). training: weights change between runs, as
 * exec_config.variable says: forms are those that there are then, and do what they then do in each run. room_bytes: a
 * form of a node that takes more than that at some size is left out there; 0: no limit. Stops early with YK_CANCELED if
 * cancel turns true. */
yk_err profile_graph(const struct graph *g, struct backends *b, const int64_t *sizes, int n_sizes,
    const int64_t *others, bool training, double budget_ms, int64_t room_bytes, const volatile bool *cancel,
    void (*fn)(void *arg, const struct profile_entry *e), void *arg, struct yk_diag *why);

/* What makes two nodes take the same time: op, attributes, shapes, which inputs are weights. Any bytes; out is emptied
 * first. */
void profile_signature(const struct op_ctx *c, struct yk_buf *out);

/* Multiply-adds of f32 a core can do in registers, GFLOP/s (two each); takes about 10 ms. */
double profile_peak_gflops(void);

/* GEMM speed and copy speed of a backend, for hello and rooflines; takes about 20 ms each, and no more memory than
 * room_bytes or PROFILE_DEVICE_BYTES. With less room both come from smaller tensors, which are a little slower; 0: no
 * room at all. */
#define PROFILE_DEVICE_BYTES ((int64_t)8 << 20)
void profile_device(struct backend *b, int64_t room_bytes, double *gflops, double *gbytes_per_s);

#endif
