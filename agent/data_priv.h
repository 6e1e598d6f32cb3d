/* What data*.c share. */
#ifndef YK_DATA_PRIV_H
#define YK_DATA_PRIV_H

#include "agent/data.h"
#include "agent/data_cifar.h"
#include "agent/data_files.h"
#include "agent/data_images.h"
#include "agent/sampler.h"

struct data_set {
    char *path; /* as it was opened, for messages; NULL: from memory */
    struct data_files x_file, y_file;
    size_t x_at, y_at; /* first sample, first label */
    const char *root;  /* while opening: what files must lie below, or NULL */
    struct shape sample;
    int64_t count, sample_elements;
    struct sampler sampler; /* sampler.held > 0: the set is what is held out of the count samples */
    bool bytes;             /* x are pixels of 0..255 */
    enum dtype y_dtype;     /* in y_file; DT_NONE: no such file */
    bool split, test;       /* see data_is_split, data_has_test */
    bool has_truth;
    struct shape truth;
    int64_t truth_elements;
    double *mean, *std; /* per channel, or NULL */
    int64_t channels;
    float *black;               /* per channel; of samples that may be images and are not of `images` */
    bool told, nhwc;            /* data_options.pixels said so; channels last */
    struct data_images *images; /* all of the set, if it is one of images */
    struct data_cifar *cifar;
    void *scratch;         /* one sample; of data_read_augmented, NULL until then */
    struct data_set *next; /* of the next input; owned */
};

/* Readers, each for an empty set: they open the files and say what the samples are. dir is not taken. Errors: those of
 * data_files_open; YK_FORMAT, YK_LIMIT, YK_INVAL, YK_UNSUPPORTED name the file and what is wrong with it. */
yk_err data_idx_open(struct data_set *d, int dir, const char *split, struct yk_diag *why);
bool data_npy_here(int dir, const struct data_options *o); /* the file of o->input, or x.npy */
yk_err data_npy_folder(struct data_set *d, int dir, const struct data_options *o, struct yk_diag *why);
/* Of x_file and y_file, which are open. */
yk_err data_npy_x(struct data_set *d, const struct data_options *o, struct yk_diag *why);
yk_err data_npy_y(struct data_set *d, struct yk_diag *why);

/* Normalisation and pixels, once the samples are known. Errors: YK_INVAL, YK_LIMIT name the option. */
yk_err data_set_options(struct data_set *d, const struct data_options *o, struct yk_diag *why);

/* data_read of this set alone, without the next. */
yk_err data_read_alone(struct data_set *d, int64_t first, int64_t count, void *x, void *y, struct yk_diag *why);
/* Where a sample of the set, below data_count, is among all that the files hold. */
int64_t data_place(const struct data_set *d, int64_t sample);

#endif
