/* What a local training says while it runs and at its end. */
#include "scheduler/cli/local_train.h"
#include "scheduler/cli/plot.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void put_line(struct yk_buf *buf)
{
    if (!buf->failed)
        printf("%.*s\n", (int)buf->len, (const char *)buf->data);
    fflush(stdout); /* whoever reads along sees a step when it is done */
    yk_buf_free(buf);
}

static double rate(const struct local_train *t)
{
    return t->compute_s > 0 ? (double)t->computed / t->compute_s : 0;
}

static int64_t epoch_of(const struct local_train *t)
{
    return YK_MIN((t->step + t->epoch_steps - 1) / t->epoch_steps, t->ask.epochs);
}

void local_train_show_step(struct local_train *t, double loss, double ms, double train_accuracy, int64_t samples)
{
    char text[160], accuracy[40] = "";
    t->compute_s += ms / 1e3;
    t->computed += samples;
    if (t->cli->o.json) {
        struct yk_buf buf = {0};
        struct json_out out;
        json_out_init(&out, &buf, 0);
        json_open(&out, '{');
        json_put_key(&out, "step");
        json_put_i64(&out, t->step);
        json_put_key(&out, "loss");
        json_put_f64(&out, loss);
        json_put_key(&out, "ms");
        json_put_f64(&out, round(ms * 1000) / 1000);
        json_close(&out, '}');
        put_line(&buf);
    }
    if (train_accuracy >= 0)
        snprintf(accuracy, sizeof accuracy, ", accuracy %.4f", train_accuracy);
    snprintf(text, sizeof text, "epoch %" PRId64 " of %" PRId64 ", loss %.4f%s, %.0f images/s", epoch_of(t),
        t->ask.epochs, loss, accuracy, rate(t));
    progress_show(&t->bar, t->step, t->total_steps, text);
}

void local_train_show_epoch(struct local_train *t, double loss, double train_accuracy, const struct judge_score *s)
{
    char accuracy[40] = "", judged[96] = "";
    if (train_accuracy >= 0)
        snprintf(accuracy, sizeof accuracy, ", accuracy %.4f", train_accuracy);
    if (s && s->samples && s->classes)
        snprintf(judged, sizeof judged, ", validation loss %.4f, accuracy %.4f", s->loss,
            (double)s->correct / (double)s->samples);
    else if (s && s->samples)
        snprintf(judged, sizeof judged, ", validation loss %.4f", s->loss);
    progress_end(&t->bar);
    if (t->cli->o.json && s && s->samples) {
        struct yk_buf buf = {0};
        struct json_out out;
        json_out_init(&out, &buf, 0);
        json_open(&out, '{');
        json_put_key(&out, "epoch");
        json_put_i64(&out, epoch_of(t));
        json_put_key(&out, "validation_loss");
        json_put_f64(&out, s->loss);
        json_put_key(&out, "validation_accuracy");
        json_put_f64(&out, s->classes ? (double)s->correct / (double)s->samples : NAN);
        json_close(&out, '}');
        put_line(&buf);
    }
    fprintf(stderr, "epoch %" PRId64 " of %" PRId64 ": loss %.4f%s%s, %.0f images/s\n", epoch_of(t), t->ask.epochs,
        loss, accuracy, judged, rate(t));
}

void local_train_show_end(struct local_train *t)
{
    if (!t->cli->o.json) {
        printf("%" PRId64 " steps  final loss %.6g", t->step, t->last_loss);
        if (t->accuracy >= 0)
            printf("  test accuracy %.4f", t->accuracy);
        printf("  %.1f images/s\n", rate(t));
        return;
    }
    struct yk_buf buf = {0};
    struct json_out out;
    json_out_init(&out, &buf, 0);
    json_open(&out, '{');
    json_put_key(&out, "images_per_s");
    json_put_f64(&out, rate(t));
    json_put_key(&out, "final_loss");
    json_put_f64(&out, t->last_loss);
    json_put_key(&out, "test_accuracy");
    if (t->accuracy >= 0)
        json_put_f64(&out, t->accuracy);
    else
        json_put_null(&out);
    json_close(&out, '}');
    put_line(&buf);
}

yk_err local_train_plot(const struct local_train *t, struct yk_diag *why)
{
    struct yk_buf file = {0};
    struct plot p = {.title = t->cli->args.at[0],
        .y = t->losses,
        .n = t->step,
        .marks = t->scores,
        .n_marks = t->ids ? t->step / t->epoch_steps : 0,
        .steps_per_mark = t->epoch_steps};
    yk_err err = plot_svg(&p, &file, why);
    if (!err)
        err = cli_write_file(t->cli->o.plot, file.data, file.len, why);
    yk_buf_free(&file);
    return err;
}
