/* The `yoke` command: what its commands share. A command is one row of cli_commands (main.c) and one function; it talks
 * REST through rest.h, except `local`. Exit codes: 0 done, 1 the work failed, 2 wrong usage. */
#ifndef YK_CLI_H
#define YK_CLI_H

#include "common/conf.h"
#include "common/json.h"
#include "scheduler/cli/train_flags.h"

/* Every flag of every command; a command's table names those that it takes. */
struct cli_opts {
    char *rest;
    bool json;
    char *name, *output, *data, *split, *source, *plan, *pin, *codec, *mean, *std, *backend, *microbatch_text;
    char *preset, *preprocess, *resize, *crop, *interpolation, *labels; /* of images: images.h reads them */
    char *dump, *timeline;
    int64_t step;                     /* of a timeline */
    struct conf_strs inputs, outputs; /* of commands that take several: tensors.h reads them */
    struct conf_strs sizes;           /* NAME=N of named dimensions */
    int objective, job;
    int64_t batch, deadline_ms, threads, repeat, backend_timeout_ms, backend_check_every;
    bool explain, watch, ops, tune;
    char *input_size; /* CxHxW */
    int64_t classes, seed;
    /* of training */
    struct train_flags train;
    char *val, *checkpoint, *plot;
    int64_t accumulate;
    bool resume;
};

struct cli {
    struct cli_opts o;
    struct conf_args args; /* positional: after the command's words */
    bool tty;              /* standard error is a terminal: bars instead of lines */
    struct cli_rest *rest;
};

#define CLI_DONE 0
#define CLI_FAILED 1
#define CLI_USAGE 2

struct cli_command {
    const char *words; /* "model add" */
    const char *usage; /* behind the words: "FILE.onnx [--name=S]" */
    const char *help;  /* one line */
    const struct conf_key *keys;
    int n_keys;
    int min_args, max_args;
    int (*run)(struct cli *c);
};

extern const char *const cli_kinds[]; /* by cli_opts.job: "batch", ... */
extern const char
    *const cli_objectives[]; /* by cli_opts.objective: NULL (auto), "latency", "throughput", "cloud-cost" */

/* Prints "yoke: <why>" to standard error and returns CLI_FAILED (CLI_USAGE for YK_INVAL of a flag is the caller's). */
int cli_fail(yk_err err, const struct yk_diag *why);
/* A file into memory (at most limit bytes); free() it. */
yk_err cli_read_file(const char *path, size_t limit, uint8_t **data, size_t *len, struct yk_diag *why);
/* Written beside and renamed, so that a failure leaves the old file; what is no regular file is written in place. */
yk_err cli_write_file(const char *path, const void *data, size_t len, struct yk_diag *why);
/* Whether that could be written now, told before the work is done that it is the result of. flag: whose path it is.
 * path NULL: nothing to check. */
yk_err cli_check_writable(const char *flag, const char *path, struct yk_diag *why);

int cli_agents(struct cli *c);
int cli_links(struct cli *c);
int cli_models(struct cli *c);
int cli_jobs(struct cli *c);
int cli_job(struct cli *c);
int cli_cancel(struct cli *c);
int cli_output_get(struct cli *c);
int cli_output_remove(struct cli *c);
int cli_model_add(struct cli *c);
int cli_model_new(struct cli *c);
int cli_model_remove(struct cli *c);
int cli_plan(struct cli *c);
int cli_infer(struct cli *c);
int cli_batch(struct cli *c);
int cli_local_infer(struct cli *c);
int cli_local_batch(struct cli *c);
int cli_local_bench(struct cli *c);
int cli_local_check(struct cli *c);
int cli_train(struct cli *c);
int cli_local_train(struct cli *c);
int cli_local_ops(struct cli *c);

#endif
