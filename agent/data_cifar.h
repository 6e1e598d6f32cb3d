/* CIFAR-10 in its binary form, for data.c: data_batch_1.bin to data_batch_5.bin (train) or test_batch.bin (t10k),
 * records of a label and 3x32x32 pixels. Private to data*.c. */
#ifndef YK_DATA_CIFAR_H
#define YK_DATA_CIFAR_H

#include "common/graph.h"

struct data_cifar;

bool data_cifar_here(int dir); /* the folder holds some of it, in this form or as Python pickles */
bool data_cifar_test(int dir); /* its test split is there */
/* dir is not taken; root as in data_files_open. Labels are checked when they are read. */
yk_err data_cifar_open(int dir, const char *root, bool train, struct data_cifar **out, struct yk_diag *why);
int64_t data_cifar_count(const struct data_cifar *d);
/* Pixels become x/255, NCHW; labels into y if not NULL. The caller has checked the range. */
yk_err data_cifar_read(
    const struct data_cifar *d, int64_t first, int64_t count, float *x, int64_t *y, struct yk_diag *why);
/* Every label is one of CIFAR-10's and below classes, or *ignore if that is not NULL. */
yk_err data_cifar_check(const struct data_cifar *d, int64_t classes, const int64_t *ignore, struct yk_diag *why);
void data_cifar_close(struct data_cifar *d); /* NULL allowed */

#endif
