/* Models: import, the canonical graph, its skeleton and weights as blobs. */
#ifndef YK_MODEL_H
#define YK_MODEL_H

#include "common/passes.h"
#include "scheduler/blob.h"

/* What a model may be called. */
#define MODEL_NAMES "1 to 100 of letters, digits and ._-@, not beginning with a dot"
bool model_name_valid(const char *name);

struct model {
    struct model *next;
    int64_t id;
    char *name;
    char graph_hash[65], blob_hash[65];
    struct graph *graph;    /* the skeleton; NULL until it is needed after a restart */
    char *inputs, *outputs; /* for people: "x float32[N,1,28,28]" */
    char *preprocess;       /* JSON, what becomes of images; NULL: nothing is kept */
    int64_t bytes, nodes, weight_bytes;
    bool temporary;  /* goes when nobody has asked for it for a while */
    int64_t used_us; /* of the loop's clock */
};

struct model_blob { /* a slice that importing made */
    char hash[65];
    char *file;
    int64_t at, bytes;
    bool fresh; /* its file was written: there was none, or one with other bytes */
};

/* Blocks: for the store's worker. Imports the uploaded file blob_hash of the folder dir, runs the passes, and writes
 * <graph hash>.skeleton and <graph hash>.weights beside it, where they are not there with these bytes. The skeleton,
 * its slices and the model's figures come back. Errors are those of importing, with every problem listed. */
yk_err model_import(const char *dir, const char *blob_hash, passes_eval eval, void *eval_arg, struct model **out,
    struct model_blob **slices, size_t *n_slices, struct yk_diag *why);
/* The same from a canonical graph, which stays the caller's: a model without a name and without a file of its own. */
yk_err model_of_graph(struct graph *g, const char *dir, struct model **out, struct model_blob **slices,
    size_t *n_slices, struct yk_diag *why);
/* A whole file under its name at once: .part, fsync, rename. Blocks. */
yk_err model_write_file(const char *path, const void *data, size_t len, struct yk_diag *why);
void model_slices_free(struct model_blob *slices, size_t n);
void model_free(struct model *m);
/* Opens the skeleton of a known model (after a restart) and checks its bytes. Quick. Errors name the model, its file
 * and the mend. */
yk_err model_load(struct model *m, struct blobs *blobs, struct yk_diag *why);

/* {"model", "graph", "inputs": [{"name", "dtype", "dims": [number, name or null]}], "outputs": the same, "preprocess":
 * {..} or null}; m is loaded.
 */
void model_describe(const struct model *m, struct yk_buf *out);

#endif
