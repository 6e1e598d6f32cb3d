/* Commands that give the scheduler something: model add, plan, batch. */
#include "scheduler/cli/datasets.h"
#include "scheduler/cli/images.h"
#include "scheduler/cli/job.h"
#include "scheduler/cli/rest.h"
#include "scheduler/cli/table.h"
#include "scheduler/cli/timeline.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

int cli_model_add(struct cli *c)
{
    const char *file = c->args.at[0];
    struct yk_diag why = {0};
    struct yk_buf body = {0};
    struct json_out out;
    struct json *answer = NULL;
    struct preprocess how;
    bool asked;
    char hash[65];
    const char *slash = strrchr(file, '/');
    char *name = yk_xstrdup(c->o.name ? c->o.name : slash ? slash + 1 : file);
    size_t len = strlen(name);
    if (!c->o.name && len > 5 && strcmp(name + len - 5, ".onnx") == 0)
        name[len - 5] = '\0';
    yk_err err = images_settings(c, NULL, true, &how, &asked, &why);
    if (!err)
        err = cli_rest_upload_file(c, file, hash, &why);
    if (!err) {
        json_out_init(&out, &body, 0);
        json_open(&out, '{');
        json_put_key(&out, "name");
        json_put_str(&out, name);
        json_put_key(&out, "blob");
        json_put_str(&out, hash);
        if (asked) {
            json_put_key(&out, "preprocess");
            preprocess_put(&how, &out);
        }
        json_close(&out, '}');
        if ((err = cli_rest_call(c, "POST", "/v1/models", &body, &answer, &why)))
            err = yk_wrap(&why, err, "%s", file);
    }
    if (!err && c->o.json) {
        job_print_json(answer, 0);
    } else if (!err) {
        char weights[32];
        table_scaled(json_f64(json_find(answer, "weight_bytes"), 0), "", weights);
        printf(
            "model %s: %lld nodes, %s of weights\n", name, (long long)json_i64(json_find(answer, "nodes"), 0), weights);
    }
    json_free(answer);
    yk_buf_free(&body);
    free(name);
    return err ? cli_fail(err, &why) : CLI_DONE;
}

/* Names in it come from a model's file: no control character but the ends of lines reaches the terminal. */
static void print_lines(const char *text)
{
    for (; *text; text++)
        putchar((unsigned char)*text < 0x20 && *text != '\n' ? '?' : *text == 0x7f ? '?' : *text);
    putchar('\n');
}

int cli_model_remove(struct cli *c)
{
    struct yk_diag why = {0};
    struct json *answer = NULL;
    char *name = job_percent(c->args.at[0]), *path = yk_xasprintf("/v1/models/%s", name);
    yk_err err = cli_rest_call(c, "DELETE", path, NULL, &answer, &why);
    if (!err && c->o.json) {
        job_print_json(answer, 0);
    } else if (!err) {
        char freed[32];
        table_scaled(json_f64(json_find(answer, "freed_bytes"), 0), "", freed);
        printf("model %s removed, %s freed\n", c->args.at[0], freed);
    }
    json_free(answer);
    free(path);
    free(name);
    return err ? cli_fail(err, &why) : CLI_DONE;
}

/* The planned step as a picture in a file, if one is wanted, and as text. */
static yk_err draw_plan(struct cli *c, const struct json *plan, struct yk_buf *text, struct yk_diag *why)
{
    const struct json *bars = json_find(plan, "timeline");
    int64_t drawn = json_i64(json_find(bars, "microbatches"), 0);
    int64_t all = json_i64(json_find(bars, "of_microbatches"), 0);
    char *part = drawn < all ? yk_xasprintf("the first %lld of %lld microbatches", (long long)drawn, (long long)all)
                             : yk_xasprintf("%lld microbatches", (long long)all);
    char *title = yk_xasprintf("%s: planned step of %lld, %.4g ms, %s of %lld", c->args.at[0],
        (long long)json_i64(json_find(plan, "batch"), 1),
        json_f64(json_find(json_find(plan, "predicted"), "step_ms"), 0), part,
        (long long)json_i64(json_find(plan, "microbatch"), 0));
    struct timeline *t = timeline_open(title);
    yk_err err = bars ? timeline_read(t, bars, why) : yk_fail(why, YK_NOTFOUND, "yoked sent no timeline with the plan");
    if (!err && c->o.timeline)
        err = timeline_write_svg(t, c->o.timeline, why);
    if (!err) {
        yk_buf_printf(text, "%s\n", title);
        err = timeline_text(t, timeline_columns(), text, why);
    }
    timeline_close(t);
    free(title);
    free(part);
    return err;
}

int cli_plan(struct cli *c)
{
    struct yk_diag why = {0};
    struct yk_buf body = {0};
    struct json_out out;
    struct json *plan = NULL;
    struct yk_buf drawn = {0};
    json_out_init(&out, &body, 0);
    yk_err err = job_request(c, cli_kinds[c->o.job], &out, &why);
    if (!err && strcmp(cli_kinds[c->o.job], "train") == 0) {
        json_put_key(&out, "train");
        err = train_flags_put(&c->o.train, 0, &out, &why);
    }
    if (c->o.explain || c->o.timeline) {
        json_put_key(&out, c->o.explain ? "explain" : "timeline");
        json_put_bool(&out, true);
    }
    json_close(&out, '}');
    if (!err)
        err = cli_rest_call(c, "POST", "/v1/plan", &body, &plan, &why);
    if (!err && (c->o.timeline || (c->o.explain && !c->o.json)))
        err = draw_plan(c, plan, &drawn, &why);
    if (!err && c->o.json) {
        job_print_json(plan, 2);
    } else if (!err && c->o.explain) {
        print_lines(json_str(json_find(plan, "explanation"), ""));
        printf("\n%.*s", (int)drawn.len, (const char *)drawn.data);
    } else if (!err) {
        const struct json *predicted = json_find(plan, "predicted"), *pipelines = json_find(plan, "pipelines");
        printf("%.1f ms a batch of %lld, microbatch %lld, bottleneck %s\n",
            json_f64(json_find(predicted, "step_ms"), 0), (long long)json_i64(json_find(plan, "batch"), c->o.batch),
            (long long)json_i64(json_find(plan, "microbatch"), 0), json_str(json_find(predicted, "bottleneck"), "-"));
        for (size_t p = 0; p < json_len(pipelines); p++) {
            const struct json *stages = json_find(json_at(pipelines, p), "stages");
            for (size_t s = 0; s < json_len(stages); s++) {
                const struct json *stage = json_at(stages, s), *nodes = json_find(stage, "nodes");
                printf("  pipeline %zu stage %zu: %s, nodes", p, s, json_str(json_find(stage, "agent"), "?"));
                for (size_t k = 0; k < json_len(nodes); k++)
                    printf("%s%lld-%lld", k ? "," : " ", (long long)json_i64(json_at(json_at(nodes, k), 0), 0),
                        (long long)json_i64(json_at(json_at(nodes, k), 1), 0));
                printf(", %.2f ms a microbatch\n", json_f64(json_find(stage, "predicted_ms"), 0));
            }
        }
    }
    json_free(plan);
    yk_buf_free(&body);
    yk_buf_free(&drawn);
    return err ? cli_fail(err, &why) : CLI_DONE;
}

int cli_batch(struct cli *c)
{
    struct yk_diag why = {0};
    struct yk_buf body = {0}, result = {0};
    struct json_out out;
    struct json *row = NULL;
    char id[24];
    if (!c->o.data) {
        fprintf(stderr, "yoke: batch needs --data=PATH or a name under a data root of --source\n");
        return CLI_USAGE;
    }
    json_out_init(&out, &body, 0);
    yk_err err = job_request(c, "batch", &out, &why);
    if (!err)
        err = datasets_submit(c, &out, &why);
    if (err)
        goto out;
    json_put_key(&out, "outputs");
    json_put_bool(&out, c->o.output != NULL);
    json_put_key(&out, "accuracy");
    json_put_bool(&out, true);
    json_close(&out, '}');
    if ((err = job_run(c, &body, id, NULL, NULL, &row, &why))) {
        if (c->o.json && row)
            job_print_json(row, 0);
        goto out;
    }
    if (c->o.output && (err = job_save_output(c, id, NULL, c->o.output, &why)))
        goto out;
    json_out_init(&out, &result, 0);
    json_open(&out, '{');
    const struct json *accuracy = json_find(row, "accuracy");
    json_put_key(&out, "job");
    json_put_i64(&out, atoll(id));
    json_put_key(&out, "samples");
    json_put_i64(&out, json_i64(json_find(row, "samples"), 0));
    json_put_key(&out, "images_per_s");
    json_put_f64(&out, json_f64(json_find(row, "images_per_s"), 0));
    json_put_key(&out, "accuracy");
    if (accuracy && json_kind(accuracy) != JSON_NULL)
        json_put_f64(&out, json_f64(accuracy, 0));
    else
        json_put_null(&out);
    json_close(&out, '}');
    if (c->o.json) {
        printf("%.*s\n", (int)result.len, (const char *)result.data);
    } else {
        if (accuracy && json_kind(accuracy) != JSON_NULL)
            printf("accuracy %.4f  ", json_f64(accuracy, 0));
        printf("%lld samples  %.1f samples/s  job %s\n", (long long)json_i64(json_find(row, "samples"), 0),
            json_f64(json_find(row, "images_per_s"), 0), id);
    }
out:
    json_free(row);
    yk_buf_free(&body);
    yk_buf_free(&result);
    return err ? cli_fail(err, &why) : CLI_DONE;
}
