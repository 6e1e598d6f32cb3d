/* What can be told of a command's flags before anything is done: their form, and those that would mean nothing beside
 * the others. A flag that says nothing is refused, never passed over. */
#ifndef YK_CLI_FLAGS_H
#define YK_CLI_FLAGS_H

#include "scheduler/cli/cli.h"

/* Errors: YK_INVAL names the flag and what goes with it. */
yk_err flags_check(const struct cli *c, const struct cli_command *command, struct yk_diag *why);

/* NAME=N of --size: how long the name is, and N. */
yk_err flags_size(const char *text, size_t *name, int64_t *n, struct yk_diag *why);
/* --microbatch as a number; 0 for auto and where it is not given. flags_check has seen it. */
int64_t flags_microbatch(const struct cli *c);

#endif
