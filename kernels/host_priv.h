/* What host*.c share. */
#ifndef YK_HOST_PRIV_H
#define YK_HOST_PRIV_H

#include "common/memplan.h"
#include "kernels/host.h"

#include <stdatomic.h>

struct host {
    struct backend base;
    struct pool *pool;
    char isa[BACKEND_FORM_MAX];
    struct host_rows tables[HOST_MAX_TABLES];
    const char *isas[HOST_MAX_TABLES]; /* NULL: isa */
    int n_tables;
};

enum slot_kind { SLOT_ABSENT, SLOT_WEIGHT, SLOT_IN, SLOT_OUT, SLOT_PLACE };

struct slot {
    enum slot_kind kind;
    int32_t value;
    int64_t at; /* index of a border buffer, or offset in scratch */
    const void *data;
};

struct step {
    int32_t node;
    const struct host_kernel *kernel;
    struct slot *in, *out;
    void *packed;
    struct shape *shapes;       /* of inputs, then outputs, for packing again; NULL if nothing is packed again */
    uint64_t last_in, last_out; /* as in host_call */
    int span;                   /* steps from this one on that may run as one, 1: no others */
    uint32_t unread;            /* of them, as for chain_run */
};

struct segment {
    const struct graph *graph;
    struct step *steps;
    const struct host_kernel **kernels; /* by step */
    int32_t n_steps;
    int64_t workspace_offset;
    struct memplan plan; /* of its own, if the caller gave no places */
    bool planned;
    struct host_call call;
    struct host_call *calls; /* of a chain; NULL if there is none */
    struct yk_diag why;
    atomic_bool canceled;
};

/* host.c: the row of that form's name that claims the node, with the form; NULL. */
const struct host_kernel *host_find_row(
    struct host *h, const struct op_ctx *c, const char *name, struct backend_form *form);

#endif
