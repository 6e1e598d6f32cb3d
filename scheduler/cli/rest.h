/* The command's side of REST: calls that block, JSON in and out, uploads by content. */
#ifndef YK_CLI_REST_H
#define YK_CLI_REST_H

#include "scheduler/cli/cli.h"

struct cli_rest;

/* GET path, or POST/DELETE with a JSON body (NULL: none). doc is the parsed answer (NULL if empty); json_free it. An
 * error answer becomes its yk_err with the server's text as the reason; no answer says how to start yoked. */
yk_err cli_rest_call(struct cli *c, const char *method, const char *path, const struct yk_buf *body, struct json **doc,
    struct yk_diag *why);
/* The raw bytes of an answer, for outputs. */
yk_err cli_rest_download(struct cli *c, const char *path, struct yk_buf *out, struct yk_diag *why);
/* Sends a file (or memory) as a blob, in parts, from where an earlier upload stopped. hash gets its 64 digits. */
yk_err cli_rest_upload_file(struct cli *c, const char *path, char hash[65], struct yk_diag *why);
yk_err cli_rest_upload(
    struct cli *c, const char *label, const uint8_t *data, size_t len, char hash[65], struct yk_diag *why);
void cli_rest_close(struct cli_rest *r); /* NULL allowed */

#endif
