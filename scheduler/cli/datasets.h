/* --data, --split, --mean and --std of the command line, for local runs and for uploads. */
#ifndef YK_CLI_DATASETS_H
#define YK_CLI_DATASETS_H

#include "agent/data.h"
#include "scheduler/cli/cli.h"

struct datasets_numbers {
    double *at;
    int n;
};
/* "0.5,0.5,0.5"; NULL text gives none. free(at). */
yk_err datasets_numbers(const char *flag, const char *text, struct datasets_numbers *out, struct yk_diag *why);
/* Opens --data on this machine for the n inputs of a model. For images: the preprocessing that is kept with it (NULL:
 * none). What the set decided by itself is said on standard error. */
yk_err datasets_open(struct cli *c, const struct data_input *inputs, int32_t n, const struct json *stored,
    struct data_set **out, struct yk_diag *why);
/* Writes "data": {...} of a job request: a name under a data root if --source is given and there is no such path here;
 * else the samples are uploaded (x and labels as .npy, with --mean and --std applied here). */
yk_err datasets_submit(struct cli *c, struct json_out *out, struct yk_diag *why);

#endif
