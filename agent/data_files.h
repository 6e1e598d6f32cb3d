/* What the readers of data.c share: a file in memory (mapped, or inflated if it is .gz). Private to data*.c. */
#ifndef YK_DATA_FILES_H
#define YK_DATA_FILES_H

#include "common/graph.h"

struct data_files {
    char *path;
    uint8_t *data;
    size_t len;
    bool mapped;
};

#define DATA_FILES_LIMIT ((int64_t)64 << 30)

/* dir_fd: the folder that path is relative to (AT_FDCWD for the working directory). gzip: inflate while reading. */
yk_err data_files_open(int dir_fd, const char *path, bool gzip, struct data_files *out, struct yk_diag *why);
void data_files_close(struct data_files *f);

#endif
