/* Submitting and following jobs, for the commands that do. */
#ifndef YK_CLI_JOB_H
#define YK_CLI_JOB_H

#include "scheduler/cli/cli.h"

/* "/v1/jobs/<id><tail>", or NULL if id is not a number. free() it. */
char *job_path(const char *id, const char *tail);
/* Starts the request object {"kind","model", the flags that were given, "plan": ...}; the caller adds data and closes.
 */
yk_err job_request(struct cli *c, const char *kind, struct json_out *out, struct yk_diag *why);
/* Called each time a running job was looked at; may add to the bar's text. NULL: nothing. */
typedef void (*job_on_look)(void *arg, const char *id, char *text, size_t size);
/* Follows a job until it ends, with a bar. YK_OK if it is done, an error with its reason else; *row is the last row
 * that was seen, or NULL, in both cases. An interrupt ends the following, not the job. */
yk_err job_watch(struct cli *c, const char *id, job_on_look look, void *arg, struct json **row, struct yk_diag *why);
/* Posts the request and follows it. id: 24 bytes. */
yk_err job_run(struct cli *c, const struct yk_buf *request, char *id, job_on_look look, void *arg, struct json **row,
    struct yk_diag *why);
/* Says besides an error of the client where what the job made is. */
yk_err job_output_kept(const char *id, yk_err err, struct yk_diag *why);
/* GET .../output into a file; name NULL: the model's first output. */
yk_err job_save_output(struct cli *c, const char *id, const char *name, const char *path, struct yk_diag *why);
/* The same into memory. */
yk_err job_output(struct cli *c, const char *id, const char *name, struct yk_buf *out, struct yk_diag *why);
/* text as a segment or a query value of an address; free() it. */
char *job_percent(const char *text);
void job_print_events(struct cli *c, const char *id);
/* A document, or a part of one, as it came. */
void job_put_json(const struct json *j, struct json_out *out);
void job_print_json(const struct json *j, int indent);

#endif
