#include "scheduler/cli/train_judge.h"

#include "scheduler/cli/datasets.h"
#include "scheduler/cli/flags.h"
#include "scheduler/cli/job.h"
#include "scheduler/cli/rest.h"
#include "scheduler/job.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define TEST_SPLIT "only:t10k"

static void put_text(struct json_out *out, const char *key, const char *text)
{
    json_put_key(out, key);
    json_put_str(out, text);
}

/* The training's data, but another split of it. */
static void put_data(struct json_out *out, const struct json *data, const char *split)
{
    json_put_key(out, "data");
    json_open(out, '{');
    for (size_t i = 0; i < json_len(data); i++) {
        const char *key = json_key(data, i);
        if (strcmp(key, "split") == 0)
            continue;
        json_put_key(out, key);
        job_put_json(json_find(data, key), out);
    }
    put_text(out, "split", split);
    json_close(out, '}');
}

/* data NULL: what --data has here. */
static yk_err accuracy_of(
    struct cli *c, const struct json *data, const char *split, double *accuracy, struct yk_diag *why)
{
    struct yk_buf body = {0};
    struct json_out out;
    struct json *row = NULL;
    char batch[24], *was = c->o.split;
    json_out_init(&out, &body, 0);
    yk_err err = job_request(c, "batch", &out, why);
    if (!err && data) {
        put_data(&out, data, split);
    } else if (!err) {
        c->o.split = yk_xstrdup(split);
        err = datasets_submit(c, &out, why);
        free(c->o.split);
        c->o.split = was;
    }
    json_put_key(&out, "accuracy");
    json_put_bool(&out, true);
    json_close(&out, '}');
    if (!err && !(err = job_run(c, &body, batch, NULL, NULL, &row, why)))
        *accuracy = json_f64(json_find(row, "accuracy"), NAN);
    json_free(row);
    yk_buf_free(&body);
    return err;
}

static yk_err add_model(struct cli *c, const char *name, const struct yk_buf *model, struct yk_diag *why)
{
    struct yk_buf body = {0};
    struct json_out out;
    struct json *answer = NULL;
    char hash[65];
    yk_err err = cli_rest_upload(c, name, model->data, model->len, hash, why);
    if (err)
        return err;
    json_out_init(&out, &body, 0);
    json_open(&out, '{');
    put_text(&out, "name", name);
    put_text(&out, "blob", hash);
    json_put_key(&out, "temporary"); /* should this end before it removes it */
    json_put_bool(&out, true);
    json_close(&out, '}');
    err = cli_rest_call(c, "POST", "/v1/models", &body, &answer, why);
    json_free(answer);
    yk_buf_free(&body);
    return err;
}

static void remove_model(struct cli *c, const char *name)
{
    struct json *answer = NULL;
    char *word = job_percent(name), *path = yk_xasprintf("/v1/models/%s", word);
    (void)cli_rest_call(c, "DELETE", path, NULL, &answer, NULL);
    json_free(answer);
    free(path);
    free(word);
}

/* The source looked when it opened the data: a job that could only fail is not begun. */
static bool has_test(struct cli *c, const char *id)
{
    struct json *answer = NULL;
    char *path = job_path(id, "/events?cursor=0");
    bool yes = true;
    if (cli_rest_call(c, "GET", path, NULL, &answer, NULL) != YK_OK)
        answer = NULL;
    const struct json *events = json_find(answer, "events");
    for (size_t i = 0; i < json_len(events); i++)
        if (strcmp(json_str(json_find(json_at(events, i), "kind"), ""), JOB_NO_TEST) == 0) {
            fprintf(stderr, "no test split judges it: %s\n", json_str(json_find(json_at(events, i), "text"), ""));
            yes = false;
            break;
        }
    json_free(answer);
    free(path);
    return yes;
}

static void judge_all(struct cli *c, const char *id, const struct json *request, struct train_score *out)
{
    const struct json *data = json_find(request, "data"), *train = json_find(request, "train");
    const char *split = json_str(json_find(data, "split"), "train");
    bool named = json_find(data, "name") != NULL;
    double share = json_f64(json_find(train, "val"), 0);
    struct yk_diag why = {0};
    if ((named ? has_test(c, id) : c->o.data != NULL) &&
        accuracy_of(c, named ? data : NULL, TEST_SPLIT, &out->test, &why))
        fprintf(stderr, "no test split judges it: %s\n", why.text);
    if (share <= 0 || !isnan(out->held)) /* the source has done it */
        return;
    char *held = yk_xasprintf("held:%.17g:%" PRId64 ":%s", share, json_i64(json_find(train, "seed"), 0), split);
    if (accuracy_of(c, data, held, &out->held, &why))
        fprintf(stderr, "what was held out does not judge it: %s\n", why.text);
    free(held);
}

void train_judge(struct cli *c, const char *id, const struct yk_buf *model, struct train_score *out)
{
    struct yk_diag why = {0};
    struct json *request = NULL;
    char *was = c->args.at[0], *name = yk_xasprintf("%.80s@%s", was, id), *plan = c->o.plan, *source = c->o.source;
    char *path = job_path(id, "/request");
    int64_t batch = c->o.batch;
    yk_err err = cli_rest_call(c, "GET", path, NULL, &request, &why);
    const char *loss = json_str(json_find(json_find(request, "train"), "loss"), "cross-entropy");
    bool classes = strcmp(loss, "cross-entropy") == 0 || strcmp(loss, "nll") == 0;
    if (!err && classes && !(err = add_model(c, name, model, &why))) {
        c->args.at[0] = name;
        c->o.plan = NULL;
        c->o.batch = YK_MAX(batch, flags_microbatch(c)); /* of a plan it may have been another */
        c->o.source = (char *)(uintptr_t)json_str(json_find(request, "source"), NULL);
        judge_all(c, id, request, out);
        c->args.at[0] = was;
        c->o.plan = plan;
        c->o.batch = batch;
        c->o.source = source;
        remove_model(c, name);
    }
    if (err)
        fprintf(stderr, "nothing judges it: %s\n", why.text);
    json_free(request);
    free(path);
    free(name);
}

void train_judge_tell(struct cli *c, int64_t epoch, double loss, double accuracy)
{
    if (c->o.json) {
        struct yk_buf b = {0};
        struct json_out out;
        json_out_init(&out, &b, 0);
        json_open(&out, '{');
        json_put_key(&out, "epoch");
        json_put_i64(&out, epoch);
        json_put_key(&out, "validation_loss");
        json_put_f64(&out, loss);
        json_put_key(&out, "validation_accuracy");
        json_put_f64(&out, accuracy);
        json_close(&out, '}');
        printf("%.*s\n", (int)b.len, (const char *)b.data);
        yk_buf_free(&b);
    }
    if (c->tty)
        return;
    fprintf(stderr, "epoch %" PRId64 ": validation loss %.4f", epoch, loss);
    if (!isnan(accuracy))
        fprintf(stderr, ", accuracy %.4f", accuracy);
    fputc('\n', stderr);
}
