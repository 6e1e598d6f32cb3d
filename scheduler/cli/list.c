/* Listings, one job, and cancel. */
#include "scheduler/cli/job.h"
#include "scheduler/cli/rest.h"
#include "scheduler/cli/table.h"
#include "scheduler/cli/timeline.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

void job_put_json(const struct json *j, struct json_out *out)
{
    switch (json_kind(j)) {
    case JSON_NULL:
        json_put_null(out);
        break;
    case JSON_BOOL:
        json_put_bool(out, json_bool(j, false));
        break;
    case JSON_INT:
        json_put_i64(out, json_i64(j, 0));
        break;
    case JSON_REAL:
        json_put_f64(out, json_f64(j, 0));
        break;
    case JSON_STRING:
        json_put_str(out, json_str(j, ""));
        break;
    case JSON_ARRAY:
        json_open(out, '[');
        for (size_t i = 0; i < json_len(j); i++)
            job_put_json(json_at(j, i), out);
        json_close(out, ']');
        break;
    case JSON_OBJECT:
        json_open(out, '{');
        for (size_t i = 0; i < json_len(j); i++) {
            json_put_key(out, json_key(j, i));
            job_put_json(json_value(j, i), out);
        }
        json_close(out, '}');
        break;
    }
}

void job_print_json(const struct json *j, int indent)
{
    struct yk_buf buf = {0};
    struct json_out out;
    json_out_init(&out, &buf, indent);
    job_put_json(j, &out);
    printf("%.*s\n", (int)buf.len, (const char *)buf.data);
    fflush(stdout);
    yk_buf_free(&buf);
}

static int listing(struct cli *c, const char *name, const char *empty)
{
    char *path = yk_xasprintf("/v1/%s", name);
    struct yk_diag why = {0};
    struct json *rows = NULL;
    yk_err err = cli_rest_call(c, "GET", path, NULL, &rows, &why);
    free(path);
    if (err)
        return cli_fail(err, &why);
    if (c->o.json)
        job_print_json(rows, 2);
    else
        table_print(rows, columns_find(name), empty, stdout);
    json_free(rows);
    return CLI_DONE;
}

int cli_agents(struct cli *c)
{
    return listing(c, "agents", "no agents: start one with `yoke-agent --scheduler=URL`");
}

int cli_links(struct cli *c)
{
    return listing(c, "links", "no links measured");
}

int cli_models(struct cli *c)
{
    return listing(c, "models", "no models: add one with `yoke model add FILE.onnx`");
}

int cli_jobs(struct cli *c)
{
    return listing(c, "jobs", "no jobs");
}

static int not_a_job(struct cli *c)
{
    fprintf(stderr, "yoke: '%s' is not a job id: a number that `yoke jobs` lists\n", c->args.at[0]);
    return CLI_USAGE;
}

/* Draws what was measured of a step. */
static yk_err draw(struct cli *c, struct yk_diag *why)
{
    struct json *doc = NULL;
    char tail[48] = "/timeline", title[120];
    if (c->o.step >= 0)
        snprintf(tail, sizeof tail, "/timeline?step=%" PRId64, c->o.step);
    char *path = job_path(c->args.at[0], tail);
    yk_err err = cli_rest_call(c, "GET", path, NULL, &doc, why);
    free(path);
    int64_t step = json_i64(json_find(doc, "step"), 0);
    snprintf(title, sizeof title, "job %s, step %" PRId64, c->args.at[0], step);
    struct timeline *t = timeline_open(title);
    if (!err)
        err = timeline_read(t, doc, why);
    if (!err)
        err = timeline_write_svg(t, c->o.timeline, why);
    if (!err && !c->o.json)
        printf("%-18s step %" PRId64 ", %" PRId64 " spans, in %s\n", "timeline", step, timeline_bars(t), c->o.timeline);
    timeline_close(t);
    json_free(doc);
    return err;
}

int cli_job(struct cli *c)
{
    struct yk_diag why = {0};
    struct json *job = NULL;
    yk_err err = YK_OK;
    char *path = job_path(c->args.at[0], "");
    if (!path)
        return not_a_job(c);
    if (c->o.watch)
        err = job_watch(c, c->args.at[0], NULL, NULL, &job, &why);
    else
        err = cli_rest_call(c, "GET", path, NULL, &job, &why);
    free(path);
    if (err) {
        if (c->o.json && job)
            job_print_json(job, 2);
        json_free(job);
        return cli_fail(err, &why);
    }
    if (c->o.json) {
        job_print_json(job, 2);
    } else {
        for (size_t i = 0; i < json_len(job); i++) {
            char cell[1024];
            const struct json *value = json_value(job, i);
            if (json_kind(value) == JSON_NULL || json_kind(value) == JSON_OBJECT || json_kind(value) == JSON_ARRAY)
                continue;
            table_cell(json_key(job, i), value, cell, sizeof cell);
            if (cell[0])
                printf("%-18s %s\n", json_key(job, i), cell);
        }
        job_print_events(c, c->args.at[0]);
    }
    json_free(job);
    if (c->o.timeline && (err = draw(c, &why)))
        return cli_fail(err, &why);
    return CLI_DONE;
}

/* DELETE of a job or of a part of it; then "BEFORE ID AFTER" is said. */
static int delete_of_job(struct cli *c, const char *part, const char *before, const char *after)
{
    struct yk_diag why = {0};
    struct json *answer = NULL;
    char *path = job_path(c->args.at[0], part);
    if (!path)
        return not_a_job(c);
    yk_err err = cli_rest_call(c, "DELETE", path, NULL, &answer, &why);
    free(path);
    if (err)
        return cli_fail(err, &why);
    if (c->o.json && answer)
        job_print_json(answer, 0);
    else if (!c->o.json)
        printf("%s %s %s\n", before, c->args.at[0], after);
    json_free(answer);
    return CLI_DONE;
}

int cli_output_get(struct cli *c)
{
    struct yk_diag why = {0};
    const char *id = c->args.at[0], *file = c->args.at[1];
    char *path = job_path(id, "");
    if (!path)
        return not_a_job(c);
    free(path);
    yk_err err = cli_check_writable("FILE", file, &why);
    if (!err)
        err = job_save_output(c, id, c->args.n > 2 ? c->args.at[2] : NULL, file, &why);
    if (err)
        return cli_fail(err, &why);
    if (!c->o.json)
        printf("output of job %s in %s\n", id, file);
    return CLI_DONE;
}

int cli_output_remove(struct cli *c)
{
    return delete_of_job(c, "/outputs", "output of job", "removed");
}

int cli_cancel(struct cli *c)
{
    return delete_of_job(c, "", "job", "canceled");
}
