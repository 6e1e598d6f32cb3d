/* JPEG and PNG on the command line: what becomes of them before the model, and what a classifier says of them after. */
#ifndef YK_CLI_IMAGES_H
#define YK_CLI_IMAGES_H

#include "agent/data.h"
#include "kernels/tensor.h"
#include "scheduler/cli/cli.h"

/* What the flags ask for (--preset, --preprocess, --resize, --crop, --interpolation; also --mean and --std if normal)
 * on top of what the model was stored with (NULL: nothing). *asked: one of these flags is given. */
yk_err images_settings(
    struct cli *c, const struct json *stored, bool normal, struct preprocess *out, bool *asked, struct yk_diag *why);

/* Errors if a flag of images is given: for inputs and data that hold none. */
yk_err images_none(const struct cli *c, const char *of, bool normal, struct yk_diag *why);

/* What yoked says of a model (GET /v1/models/NAME), and of one of its inputs as a target. json_free(model). */
yk_err images_model(struct cli *c, const char *name, struct json **model, struct yk_diag *why);
void images_target(const struct json *model, size_t input, struct data_target *out);

/* The images of a path as one batch, ready for an input. */
struct images {
    struct shape shape;
    void *data;
    struct data_set *set; /* names of the files */
};
yk_err images_read(struct cli *c, const char *path, const struct data_target *target, const struct json *stored,
    struct images *out, struct yk_diag *why);
void images_free(struct images *i); /* zeroed ones allowed */
/* Says on standard error what a set decided by itself, if anything. */
void images_note(const struct data_set *set);

/* Whether t looks like scores of classes: float32 [N,K], K > 1. */
bool images_scores(const struct tensor *t);
/* The five best classes of each row, with their names from --labels=FILE (a name a line; NULL: only numbers). */
yk_err images_print_top(
    const char *labels, const struct images *in, const char *output, const struct tensor *t, struct yk_diag *why);

#endif
