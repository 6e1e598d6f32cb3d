/* What a job's data is to its model: which upload is which input, the sizes of the named dimensions that follow, and
 * where each output of the model goes. */
#ifndef YK_JOB_DATA_H
#define YK_JOB_DATA_H

#include "scheduler/blob.h"
#include "scheduler/job.h"

/* Sizes of the named dimensions from the request alone, for a plan without data. Fills j->sizes. Errors name the
 * dimension and the flag. */
yk_err job_data_sizes(struct job *j, const struct graph *g, struct yk_diag *why);
/* Of a job: sizes from the request and the uploads, inputs by value, j->batch of an infer job, j->outputs. Again after
 * a restart, with the same answer. Fixes the microbatch of an infer job with inputs or outputs that are not by sample.
 */
yk_err job_data_resolve(struct job *j, const struct graph *g, struct blobs *blobs, struct yk_diag *why);

/* One output of the model; a file of fixed slots by sample. */
struct job_output {
    char *name, *path;
    bool whole;     /* not by sample: kept if one microbatch is all there is */
    bool depends;   /* its shape depends on data; whole too */
    int64_t header; /* bytes of the .npy header; 0 until it was written in this life of the daemon */
};
void job_data_free_outputs(struct job *j);
/* [{"name", "file"}] of those that were written. free() it. */
char *job_data_outputs_json(const struct job *j);

#endif
