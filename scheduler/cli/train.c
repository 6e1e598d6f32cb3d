/* `yoke train`: a model is trained by the fleet. The flags are those of `yoke local train`; what comes out is too. */
#include "scheduler/cli/datasets.h"
#include "scheduler/cli/flags.h"
#include "scheduler/cli/job.h"
#include "scheduler/cli/plot.h"
#include "scheduler/cli/rest.h"
#include "scheduler/cli/train_judge.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define STEPS_PAGE 10000

struct training {
    struct cli *c;
    int64_t steps;   /* told so far */
    int64_t judged;  /* epochs, told so far */
    double accuracy; /* of the last that was judged; NaN: of none */
    float *losses;
    double last_loss;
};

/* ---- the request ---- */

static yk_err read_val(struct cli *c, double *share, struct yk_diag *why)
{
    char *end;
    *share = 0;
    if (!c->o.val || strcmp(c->o.val, "none") == 0)
        return YK_OK;
    *share = strtod(c->o.val, &end);
    return *end || !(*share > 0 && *share <= 0.9) ? yk_fail(why, YK_INVAL,
                                                        "--val=%s: a share of the samples above 0 and up to 0.9, or "
                                                        "none; `yoke local train` takes another "
                                                        "set too",
                                                        c->o.val)
                                                  : YK_OK;
}

/* All that can be told of the flags before anything is sent. */
static yk_err check(struct cli *c, double *share, struct yk_diag *why)
{
    struct train_config config = {0};
    yk_err err = read_val(c, share, why);
    if (!err)
        err = train_flags_read(&c->o.train, *share, &config, why);
    train_config_fini(&config);
    return err;
}

/* ---- following ---- */

/* Tells what was made of the epochs that are new. */
static void tell_epochs(struct training *t, const char *id)
{
    struct json *rows = NULL;
    char *path = job_path(id, "/epochs");
    if (cli_rest_call(t->c, "GET", path, NULL, &rows, NULL) != YK_OK)
        rows = NULL;
    free(path);
    for (size_t i = 0; i < json_len(rows); i++) {
        const struct json *row = json_at(rows, i);
        int64_t epoch = json_i64(json_find(row, "epoch"), 0);
        double loss = json_f64(json_find(row, "validation_loss"), NAN);
        if (epoch <= t->judged)
            continue;
        t->judged = epoch;
        t->accuracy = json_f64(json_find(row, "validation_accuracy"), NAN);
        train_judge_tell(t->c, epoch, loss, t->accuracy);
    }
    json_free(rows);
}

/* Tells the steps that are new: lines for programs, the last one's loss for the bar. */
static void tell_steps(void *arg, const char *id, char *text, size_t size)
{
    struct training *t = arg;
    for (bool more = true; more;) {
        struct json *rows = NULL;
        char tail[80];
        snprintf(tail, sizeof tail, "/steps?from=%" PRId64 "&limit=%d", t->steps + 1, STEPS_PAGE);
        char *path = job_path(id, tail);
        if (cli_rest_call(t->c, "GET", path, NULL, &rows, NULL) != YK_OK)
            rows = NULL;
        free(path);
        for (size_t i = 0; i < json_len(rows); i++) {
            const struct json *row = json_at(rows, i);
            if (json_i64(json_find(row, "step"), -1) != t->steps + 1)
                continue;
            t->last_loss = json_f64(json_find(row, "loss"), NAN);
            t->losses = yk_xrealloc(t->losses, ((size_t)t->steps + 1) * sizeof *t->losses);
            t->losses[t->steps++] = (float)t->last_loss;
            if (t->c->o.json)
                printf("{\"step\":%" PRId64 ",\"loss\":%.17g,\"ms\":%.3f}\n", t->steps, t->last_loss,
                    json_f64(json_find(row, "ms"), 0));
        }
        more = json_len(rows) == STEPS_PAGE;
        json_free(rows);
    }
    tell_epochs(t, id);
    fflush(stdout);
    size_t used = strlen(text);
    if (t->steps && used + 1 < size)
        used += (size_t)snprintf(text + used, size - used, ", loss %.4f", t->last_loss);
    if (!isnan(t->accuracy) && used + 1 < size)
        snprintf(text + used, size - used, ", validation accuracy %.4f", t->accuracy);
}

/* The newest training of the model that has not ended. id: 24 bytes. */
static yk_err find_open(struct cli *c, char *id, struct yk_diag *why)
{
    struct json *rows = NULL;
    yk_err err = cli_rest_call(c, "GET", "/v1/jobs", NULL, &rows, why);
    id[0] = '\0';
    for (size_t i = 0; i < json_len(rows) && !id[0]; i++) {
        const struct json *row = json_at(rows, i);
        bool open = json_kind(json_find(row, "ended_at")) == JSON_NULL;
        if (open && strcmp(json_str(json_find(row, "kind"), ""), "train") == 0 &&
            strcmp(json_str(json_find(row, "model"), ""), c->args.at[0]) == 0)
            snprintf(id, 24, "%" PRId64, json_i64(json_find(row, "job"), 0));
    }
    json_free(rows);
    if (!err && !id[0])
        err = yk_fail(
            why, YK_NOTFOUND, "no training of model '%s' is open: leave out --resume to begin one", c->args.at[0]);
    return err;
}

/* What was typed beside --resume is what the training has, or the user would think that it counts. */
static yk_err check_same(struct cli *c, const char *id, double share, struct yk_diag *why)
{
    struct json *request = NULL;
    char *path = job_path(id, "/request");
    const struct {
        const char *flag;
        int64_t here, otherwise;
    } numbers[] = {{"batch", c->o.batch, 64}, {"microbatch", flags_microbatch(c), 0}};
    yk_err err = cli_rest_call(c, "GET", path, NULL, &request, why);
    if (!err)
        err = train_flags_agree(&c->o.train, share, &c->args, json_find(request, "train"), why);
    for (size_t i = 0; !err && i < YK_COUNT(numbers); i++) {
        int64_t there = json_i64(json_find(request, numbers[i].flag), numbers[i].otherwise);
        if (conf_given(&c->args, numbers[i].flag) && numbers[i].here != there)
            err = yk_fail(why, YK_INVAL,
                "--%s: %" PRId64 " is asked for, the training that --resume follows has %" PRId64 ": leave it out",
                numbers[i].flag, numbers[i].here, there);
    }
    const struct {
        const char *flag, *here, *there; /* there NULL: it cannot be told */
    } words[] = {{"source", c->o.source, json_str(json_find(request, "source"), NULL)},
        {"data", c->o.data, json_str(json_find(json_find(request, "data"), "name"), NULL)}};
    for (size_t i = 0; !err && i < YK_COUNT(words); i++)
        if (words[i].here && words[i].there && strcmp(words[i].here, words[i].there) != 0)
            err = yk_fail(why, YK_INVAL,
                "--%s: %.80s is asked for, the training that --resume follows has %.80s: leave it out", words[i].flag,
                words[i].here, words[i].there);
    json_free(request);
    free(path);
    return err ? yk_wrap(why, err, "job %s", id) : YK_OK;
}

/* ---- the end ---- */

static void print_end(struct cli *c, const struct training *t, const struct json *row, const char *id, double accuracy)
{
    double rate = json_f64(json_find(row, "images_per_s"), 0);
    if (!c->o.json) {
        printf("%" PRId64 " steps  final loss %.6g", t->steps, t->last_loss);
        if (!isnan(accuracy))
            printf("  test accuracy %.4f", accuracy);
        printf("  %.1f images/s  job %s\n", rate, id);
        return;
    }
    struct yk_buf b = {0};
    struct json_out out;
    json_out_init(&out, &b, 0);
    json_open(&out, '{');
    json_put_key(&out, "job");
    json_put_i64(&out, atoll(id));
    json_put_key(&out, "images_per_s");
    json_put_f64(&out, rate);
    json_put_key(&out, "final_loss");
    json_put_f64(&out, t->last_loss);
    json_put_key(&out, "test_accuracy");
    json_put_f64(&out, accuracy);
    json_close(&out, '}');
    printf("%.*s\n", (int)b.len, (const char *)b.data);
    yk_buf_free(&b);
}

static yk_err plot(const struct training *t, struct yk_diag *why)
{
    struct yk_buf file = {0};
    struct plot p = {.title = t->c->args.at[0], .y = t->losses, .n = t->steps};
    yk_err err = plot_svg(&p, &file, why);
    if (!err)
        err = cli_write_file(t->c->o.plot, file.data, file.len, why);
    yk_buf_free(&file);
    return err;
}

int cli_train(struct cli *c)
{
    struct yk_diag why = {0};
    struct yk_buf body = {0}, model = {0};
    struct json_out out;
    struct json *row = NULL;
    struct training t = {.c = c, .accuracy = NAN};
    char id[24] = "";
    if (!c->o.data && !c->o.resume) {
        fprintf(stderr, "yoke: train needs --data=PATH or a name under a data root of --source\n");
        return CLI_USAGE;
    }
    double share = 0;
    yk_err err = check(c, &share, &why);
    if (err) {
        cli_fail(err, &why);
        return CLI_USAGE;
    }
    err = cli_check_writable("output", c->o.output, &why);
    if (!err)
        err = cli_check_writable("plot", c->o.plot, &why);
    if (err)
        return cli_fail(err, &why);
    if (c->o.resume) {
        err = find_open(c, id, &why);
        if (!err)
            err = check_same(c, id, share, &why);
        if (!err)
            err = job_watch(c, id, tell_steps, &t, &row, &why);
    } else {
        json_out_init(&out, &body, 0);
        err = job_request(c, "train", &out, &why);
        if (!err)
            err = datasets_submit(c, &out, &why);
        if (!err) {
            json_put_key(&out, "train");
            err = train_flags_put(&c->o.train, share, &out, &why);
        }
        json_close(&out, '}');
        if (!err)
            err = job_run(c, &body, id, tell_steps, &t, &row, &why);
    }
    if (!err) {
        char text[8] = "";
        tell_steps(&t, id, text, sizeof text);
        err = job_output(c, id, NULL, &model, &why);
    }
    if (!err && c->o.output)
        err = cli_write_file(c->o.output, model.data, model.len, &why);
    if (err && model.len)
        err = job_output_kept(id, err, &why);
    if (!err && c->o.plot)
        err = plot(&t, &why);
    if (!err) {
        struct train_score score = {.test = NAN, .held = t.accuracy};
        if (!(c->o.val && strcmp(c->o.val, "none") == 0))
            train_judge(c, id, &model, &score);
        if (!isnan(score.held))
            fprintf(stderr, "validation accuracy %.4f\n", score.held);
        print_end(c, &t, row, id, isnan(score.test) ? score.held : score.test);
    }
    json_free(row);
    free(t.losses);
    yk_buf_free(&body);
    yk_buf_free(&model);
    return err ? cli_fail(err, &why) : CLI_DONE;
}
