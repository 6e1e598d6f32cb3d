/* What exec.c (open, close) and exec_run.c share. Private to exec*.c. */
#ifndef YK_EXEC_PRIV_H
#define YK_EXEC_PRIV_H

#include <pthread.h>
#include <stdatomic.h>

#include "kernels/dynamic.h"
#include "kernels/exec.h"

struct exec_segment {
    struct backend *backend; /* NULL: its nodes are dynamic */
    int32_t *nodes, n_nodes;
    int32_t *in, n_in, *out, n_out;
    void *handle;
    void *scratch;                  /* of its own, NULL for host backends */
    struct backend_buffer *buffers; /* n_in, then n_out */
    struct backend_buffer **pointers;
    int n_owned; /* buffers from the backend's alloc */
    bool takes;  /* an output of it is taken */
};

struct exec {
    const struct graph *graph;
    struct backends *backends;
    uint8_t *in_stage;
    int64_t *max_sizes, *sizes; /* sizes: of `actual` */
    struct shape *given;        /* shapes of inputs that were given otherwise */
    const struct shape **input_shapes;
    char (*forms)[BACKEND_FORM_MAX];
    struct shapes max, actual;
    bool has_max, has_actual, has_plan;
    struct memplan plan;
    struct dynamic *dynamic; /* NULL if no node of the stage is */
    const struct tensor *in; /* of the run in progress, by position in the plan */
    struct tensor *out;
    char *arena;
    const void **weights; /* by value id */
    void **copies;        /* by value id: of unaligned weights */
    const void **renewed; /* by value id, for exec_set_weights; NULL if no weight is variable */
    uint8_t *variable;    /* by value id; likewise */
    uint8_t *taken;       /* by value id; NULL if no output is */
    void **kept;          /* by value id: memory of taken outputs of backends that do not work in the arena; likewise */
    void (*take)(void *arg, int32_t out, const struct tensor *made);
    void *take_arg;
    struct exec_segment *segments;
    int32_t n_segments;
    int64_t held;
    void (*trace)(void *arg, int32_t node, const char *form, double ms);
    void *trace_arg;
    pthread_mutex_t lock;
    struct exec_segment *running; /* under lock */
    bool busy;                    /* under lock */
    atomic_bool canceled;
};

#endif
