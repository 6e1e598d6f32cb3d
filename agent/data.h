/* Data sets: a folder with {train,t10k}-{images-idx3,labels-idx1}-ubyte[.gz], a folder with x.npy [+ y.npy], one .npy
 * file, .npy bytes in memory, or CIFAR-10's binary batches (train, or test as t10k). Byte pixels become x/255, NCHW
 * float32, then (x - mean[c]) / std[c]. And JPEG and PNG: one file, a folder of them, or class folders; preprocess.h
 * says what becomes of them. A model of several inputs takes a folder with NAME.npy for each of them, and y.npy. A
 * folder that holds nothing but the folders train and val, test or t10k, each of them such a set, is one set with
 * splits. Reading is for the io thread; a set may be read by one thread at a time. Errors name the file and the offset.
 */
#ifndef YK_DATA_H
#define YK_DATA_H

#include "agent/augment.h"
#include "common/graph.h"
#include "common/preprocess.h"

struct data_set;

struct data_target { /* what the model's input takes; for images */
    enum dtype dtype;
    int rank;                  /* below 0: not known */
    int64_t dims[YK_MAX_RANK]; /* with the batch; 0: any */
};

#define DATA_MAX_CHANNELS 4096

struct data_pixels {                 /* of samples that are images */
    double black[DATA_MAX_CHANNELS]; /* what a black pixel is in them, by channel */
    int n;
    bool nhwc; /* else NCHW */
};

struct data_options {
    const char *split;                   /* "t10k" (default), "test", "val" or "train", of sets that have splits; see
                                          * data_split for what else */
    const double *mean, *std;            /* per channel; NULL: none. For images they replace those of preprocess */
    int n_mean, n_std;                   /* 0, 1 (all channels) or the number of channels */
    const struct preprocess *preprocess; /* of images; NULL: none */
    const struct data_target *target;    /* images without a size of their own take this one; NULL: not known */
    const char *input;                /* NULL, or the input of several whose samples are wanted: NAME.npy, not x.npy */
    bool samples_only;                /* y.npy is not looked at */
    const struct data_pixels *pixels; /* what data_pixels said of the set whose samples these are; NULL: not known */
};

struct data_input { /* of a model */
    const char *name;
    struct data_target target;
};

/* A split as it is written: SPLIT, "only:SPLIT" (YK_NOTFOUND for a set without splits, which is else the same whatever
 * the split), "held:SHARE:SEED[:SPLIT]" (what a training over SPLIT, "train" if not given, holds out). */
struct data_split {
    char name[8];
    bool only;
    double share; /* 0: all samples */
    uint64_t seed;
};
/* text NULL: the default. */
yk_err data_split_read(const char *text, struct data_split *out, struct yk_diag *why);

void data_target_of(const struct graph *g, int32_t value, struct data_target *out);

/* The first n inputs of a graph. free(); borrows the names. */
struct data_input *data_inputs_of(const struct graph *g, int32_t n);

/* A folder, or a file that starts or is named like an image. */
bool data_holds_images(const char *path);
/* path: as a person gave it (the command), trusted. */
yk_err data_open(const char *path, const struct data_options *o, struct data_set **out, struct yk_diag *why);
/* name below one of the NULL-ended roots; no "..", no absolute path, no symbolic link that leaves the root. */
yk_err data_open_below(const char *const *roots, const char *name, const struct data_options *o, struct data_set **out,
    struct yk_diag *why);
/* x (and y, or NULL) are .npy files in memory, borrowed for the life of the set. */
yk_err data_open_memory(const void *x, size_t x_len, const void *y, size_t y_len, const struct data_options *o,
    struct data_set **out, struct yk_diag *why);
/* data_open of a set that has samples for all n inputs of a model (from 1); target and input of o are not looked at. */
yk_err data_open_inputs(const char *path, const struct data_options *o, const struct data_input *inputs, int32_t n,
    struct data_set **out, struct yk_diag *why);
/* d takes more's samples as those of its next input, and more itself. Errors: YK_INVAL if they are not as many. */
yk_err data_join(struct data_set *d, struct data_set *more, const char *name, struct yk_diag *why);
void data_close(struct data_set *d); /* NULL allowed */

int64_t data_count(const struct data_set *d);
const struct shape *data_sample(const struct data_set *d); /* one sample, without the batch dimension */
/* Sets for models of several inputs: how many, a sample of one of them, and where its samples begin in memory for
 * `count` samples: one input behind the other, 64-byte aligned. data_at(d, data_inputs(d), count): all that is needed;
 * -1 if that is too much to count. */
int data_inputs(const struct data_set *d);
const struct shape *data_sample_of(const struct data_set *d, int input);
int64_t data_at(const struct data_set *d, int input, int64_t count);
bool data_labelled(const struct data_set *d); /* one class id per sample */
/* The split that was asked for is one of several; else the set is the same whatever the split. */
bool data_is_split(const struct data_set *d);
/* Beside what was opened there is a test split. */
bool data_has_test(const struct data_set *d);
/* What one sample is to be trained towards, without the batch dimension: int64 class ids (mostly of rank 0), or float32
 * values of y.npy (float64 there is rounded). NULL: the set has none. */
const struct shape *data_truth(const struct data_set *d);
/* Images only; else NULL. The file of a sample; what was decided without being asked for ("" if nothing was). */
const char *data_name(const struct data_set *d, int64_t sample);
const char *data_note(const struct data_set *d);
/* count samples from first, one after the other; what they are to be trained towards into y if not NULL, as data_truth
 * says. Several inputs: as data_at says. */
yk_err data_read(struct data_set *d, int64_t first, int64_t count, void *x, void *y, struct yk_diag *why);

/* ---- training ---- */

#define DATA_NO_TRUTH \
    "the data set has no labels: training needs {train,t10k}-labels-idx1-ubyte, y.npy or folders of images by class"

/* How the pixels of the first input's samples lie, for who opens the same samples as .npy. False: they are no images.
 */
bool data_pixels(const struct data_set *d, struct data_pixels *out);
/* Whether this can be done to the samples. */
yk_err data_augmentable(const struct data_set *d, const struct augment *a, struct yk_diag *why);
/* Samples of one input alone. */
yk_err data_read_of(struct data_set *d, int input, int64_t first, int64_t count, void *x, void *y, struct yk_diag *why);
/* One sample of the first input as data_read gives it, changed as a says (NULL: not). k->sample says which. */
yk_err data_read_augmented(
    struct data_set *d, const struct augment *a, const struct augment_key *k, void *x, void *y, struct yk_diag *why);
/* Every class id is 0..classes-1, or *ignore if that is not NULL. Reads all of them.
 * Errors: YK_FORMAT with the file, the offset and the sample; class folders that are not `classes` in number;
 * no label that counts. */
yk_err data_check_labels(struct data_set *d, int64_t classes, const int64_t *ignore, struct yk_diag *why);
/* What tells the set from another of its size: a SHA-256 over shapes, names of files and classes, labels that have a
 * file of their own, and a few samples, the first and the last among them, as data_read gives them. */
yk_err data_fingerprint(struct data_set *d, uint8_t out[32], struct yk_diag *why);
/* Whether the sets have the same samples, truths and class folders, so that `other` validates what d trains. */
yk_err data_match(const struct data_set *d, const struct data_set *other, struct yk_diag *why);

#endif
