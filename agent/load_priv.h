/* What load*.c share. Each of these leaves the reason of an error in p->why. */
#ifndef YK_LOAD_PRIV_H
#define YK_LOAD_PRIV_H

#include "agent/load.h"

/* load_check.c, loop: what of the command needs no graph; then who reads of an edge, once its ends are known. Errors:
 * YK_UNSUPPORTED, YK_FORMAT, YK_LIMIT, YK_INVAL. */
yk_err load_check_command(struct pipeline *p);
yk_err load_take_readers(struct pipeline *p, struct edge *e);
/* load_check.c, io: imports p->skeleton and checks stages, edges and sizes against it: fills p->graph, sizes, shapes
 * and the stages' nodes and forms. Errors also: those of the import, of shapes_infer and training_take; YK_NOMEM where
 * a stage alone is over the budget. */
yk_err load_take_graph(struct pipeline *p);

/* load_wire.c, loop, with the execs or trainers open: slots, what goes where, p->memory_bytes. Errors: YK_INVAL where
 * the edges do not bring what a stage takes; YK_NOMEM, with p->lacking_bytes where the budget refuses it. */
yk_err load_wire_up(struct pipeline *p);

/* Position of a value in a list of any order, -1 if it is not there. */
static inline int load_position(const int32_t *list, int32_t n, int64_t value)
{
    for (int32_t i = 0; i < n; i++)
        if (list[i] == value)
            return i;
    return -1;
}

#endif
