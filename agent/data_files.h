/* What the readers of data.c share: a file that is read where it lies, or inflated into memory if it is .gz, or bytes
 * that are in memory already. Nothing is mapped: a file that shrinks while it is read is an error, not a signal.
 * Private to data*.c. */
#ifndef YK_DATA_FILES_H
#define YK_DATA_FILES_H

#include "common/graph.h"

struct data_files {
    char *path; /* for messages; NULL: not open */
    int fd;     /* -1: in memory */
    uint8_t *data;
    bool owned;
    size_t len;
    uint8_t *head; /* of data_files_head */
};

#define DATA_FILES_INFLATED_LIMIT ((size_t)2 << 30)

/* dir_fd: the folder that path is relative to (AT_FDCWD for the working directory). root: a real path that the file
 * must lie below, whatever links lead to it; NULL: anywhere. gzip: inflate while reading. */
yk_err data_files_open(
    int dir_fd, const char *path, const char *root, bool gzip, struct data_files *out, struct yk_diag *why);
/* Whether what fd has open lies below root. */
bool data_files_below(int fd, const char *root);
void data_files_memory(const char *name, const void *data, size_t len, struct data_files *out); /* borrowed */
/* The first bytes, at most max; valid until close. */
yk_err data_files_head(struct data_files *f, size_t max, const uint8_t **head, size_t *len, struct yk_diag *why);
/* Exactly len bytes from `at`. */
yk_err data_files_read(const struct data_files *f, size_t at, size_t len, void *dst, struct yk_diag *why);
void data_files_close(struct data_files *f); /* zeroed ones allowed */

#endif
