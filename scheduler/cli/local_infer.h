/* Inputs of a model from files, for `yoke local infer` and `yoke local bench`. */
#ifndef YK_LOCAL_INFER_H
#define YK_LOCAL_INFER_H

#include "scheduler/cli/images.h"
#include "scheduler/cli/local.h"

struct infer {
    struct local l;
    int n_in, n_out;             /* of the graph */
    const char **names;          /* of inputs, then of outputs */
    const char **in_paths;       /* by input */
    char **out_paths;            /* by output; NULL entries: not written */
    struct tensor *in;           /* by input of the graph */
    const struct shape **shapes; /* theirs */
    struct images *images;       /* by input; zeroed where a file is none. They own the tensor's data */
    bool pictured;               /* there is one */
    struct dyn_value **args, **results;
};

/* Reads the files of --input and loads the opened model for their sizes. */
yk_err local_infer_load(struct cli *c, struct infer *f, struct yk_diag *why);
void local_infer_fini(struct infer *f);

#endif
