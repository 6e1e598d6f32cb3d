/* Images as a data set, for data.c: one file, a flat folder (samples by name), or class folders (labels by sorted class
 * name). Each sample is read when it is asked for. Private to data*.c. */
#ifndef YK_DATA_IMAGES_H
#define YK_DATA_IMAGES_H

#include "agent/data.h"

struct data_images;

bool data_images_named(const char *name); /* .jpg .jpeg .png, in any case */
/* fd: the folder, or the file; not taken. root as in data_files_open. YK_NOTFOUND if the folder has nothing that looks
 * like images, with why saying so. */
yk_err data_images_open(int fd, const char *path, const char *root, const struct data_options *o,
    struct data_images **out, struct yk_diag *why);
void data_images_close(struct data_images *d); /* NULL allowed */

int64_t data_images_count(const struct data_images *d);
const struct shape *data_images_sample(const struct data_images *d);
bool data_images_labelled(const struct data_images *d);
const char *data_images_name(const struct data_images *d, int64_t sample);
const char *data_images_note(const struct data_images *d);
yk_err data_images_read(struct data_images *d, int64_t first, int64_t count, void *x, int64_t *y, struct yk_diag *why);
/* One sample; of its file the part that augment_box says if a wants a random resized crop. The rest of a is for others.
 */
yk_err data_images_read_one(struct data_images *d, const struct augment *a, const struct augment_key *k, void *x,
    int64_t *y, struct yk_diag *why);
/* The classes by name; 0 if there are none. */
int64_t data_images_classes(const struct data_images *d);
const char *data_images_class(const struct data_images *d, int64_t i);
/* How the pixels lie; black points into d. */
void data_images_view(const struct data_images *d, struct augment_view *out);

#endif
