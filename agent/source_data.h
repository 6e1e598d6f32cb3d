/* The data of a run: samples for the inputs whose first axis is the batch, whole tensors for the others. */
#ifndef YK_SOURCE_DATA_H
#define YK_SOURCE_DATA_H

#include "agent/batches.h"
#include "agent/cache.h"
#include "agent/pipeline.h"
#include "common/npy.h"

struct source_data {
    struct source_input {
        int32_t position;         /* among the graph's inputs */
        bool whole;               /* every microbatch takes all of it */
        struct cache_entry *blob; /* NULL: of a data set under a data root */
        struct data_set *set;     /* unless whole */
        struct npy npy;           /* of a whole one */
    } * at;
    int32_t n;
    struct cache_entry *labels;
    const struct data_set *labelled; /* the set that has them, or NULL */
    bool images;                     /* decoding takes time: worth reading ahead */
    char note[256];                  /* what a set decided by itself */
    int64_t samples;                 /* of the sets; of a full microbatch if all is whole; of an epoch in training */
    /* Training: a step's batch is read at once, its microbatches are parts of it. */
    struct batches batches;
    uint8_t *x, *y;
    int64_t step, count; /* what lies there; step -1: nothing */
    float divisor;       /* of that batch */
};

/* Loop thread: which inputs the run gives; every graph input has to be there once. Blobs are filled in by the caller.
 */
yk_err source_data_plan(struct source_data *d, const struct pipeline *p, const struct wire_run *w, struct yk_diag *why);
/* Io thread: opens everything and checks it against the shapes of a full microbatch. */
yk_err source_data_open(struct source_data *d, const struct pipeline *p, const struct wire_run *w, struct yk_diag *why);
/* Io thread: samples first..first+count-1 into the tensors of the graph inputs (t, by position); a fixed batch of
 * `full` is filled up with the first sample. labels: count of them, or NULL. */
yk_err source_data_read(const struct source_data *d, int64_t first, int64_t count, int64_t full, struct tensor *t,
    int64_t *labels, struct yk_diag *why);
/* Training. The data thread: samples first..first+count-1 of the batch of a step, what they are trained towards, and
 * the batch's divisor, into the tensors of the graph inputs. ids: count class ids, or NULL. Steps ascend. */
yk_err source_data_read_step(struct source_data *d, const struct pipeline *p, int64_t step, int64_t first,
    int64_t count, struct tensor *t, int64_t *ids, struct yk_diag *why);
void source_data_close(struct source_data *d, struct cache *cache);

#endif
