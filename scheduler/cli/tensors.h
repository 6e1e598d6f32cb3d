/* Tensors that a command takes from and gives to .npy files: which file belongs to which input or output of a model.
 * A flag's value is PATH, where the model has one, or NAME=PATH; outputs may also go to a folder, one file each. */
#ifndef YK_CLI_TENSORS_H
#define YK_CLI_TENSORS_H

#include "common/conf.h"
#include "common/graph.h"

#define TENSORS_FILE_LIMIT ((int64_t)4 << 30)

/* Pairs the values of --input with a model's inputs. names: of the inputs, in order; paths[i] is set to a borrowed file
 * name or NULL. A name is what stands before the last '=' that leaves a known one; a value without a known name is a
 * path if there is one input. Errors: YK_INVAL names the input that is missing, unknown or given twice, and lists what
 * there is. */
yk_err tensors_inputs(
    const struct conf_strs *given, const char *const *names, int n, const char **paths, struct yk_diag *why);

/* The same for --output; outputs that are not named get NULL. One value that is a folder (it exists, or ends in '/' and
 * is made) takes every output as NAME.npy, with characters that files should not have as '_'. paths[i]: free(). */
yk_err tensors_outputs(
    const struct conf_strs *given, const char *const *names, int n, char **paths, struct yk_diag *why);

/* A .npy file: its shape, and its data in 64-byte aligned memory (free()). Errors name the file. */
yk_err tensors_read(const char *path, struct shape *shape, void **data, struct yk_diag *why);
/* Bytes [N,(C,)H,W] become float32 / 255 [N,C,H,W], as a data set's pixels do; data is replaced. */
yk_err tensors_pixels(struct shape *shape, void **data, struct yk_diag *why);
yk_err tensors_write(const char *path, const struct shape *shape, const void *data, struct yk_diag *why);

#endif
