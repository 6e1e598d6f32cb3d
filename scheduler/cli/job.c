#include "scheduler/cli/job.h"

#include "scheduler/cli/flags.h"
#include "scheduler/cli/progress.h"
#include "scheduler/cli/rest.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PLAN_FILE_LIMIT ((size_t)64 << 20)
#define POLL_MS 1000
#define SHOWN_AGENTS 8
#define PATIENCE 60 /* tries, half a second apart: a scheduler that restarts takes its jobs up again */

char *job_path(const char *id, const char *tail)
{
    if (!id[0] || strspn(id, "0123456789") != strlen(id) || strlen(id) > 18)
        return NULL;
    return yk_xasprintf("/v1/jobs/%s%s", id, tail);
}

static void put_str(struct json_out *out, const char *key, const char *value)
{
    if (!value)
        return;
    json_put_key(out, key);
    json_put_str(out, value);
}

static void put_i64(struct json_out *out, const char *key, int64_t value)
{
    if (value <= 0)
        return;
    json_put_key(out, key);
    json_put_i64(out, value);
}

/* "first,last" as a JSON array of strings. */
static void put_list(struct json_out *out, const char *key, const char *text)
{
    if (!text)
        return;
    json_put_key(out, key);
    json_open(out, '[');
    char *copy = yk_xstrdup(text), *rest = copy, *item;
    while ((item = strsep(&rest, ",")))
        json_put_str(out, item);
    free(copy);
    json_close(out, ']');
}

yk_err job_request(struct cli *c, const char *kind, struct json_out *out, struct yk_diag *why)
{
    const struct cli_opts *o = &c->o;
    json_open(out, '{');
    put_str(out, "kind", kind);
    put_str(out, "model", c->args.at[0]);
    put_str(out, "objective", cli_objectives[o->objective]);
    put_str(out, "source", o->source);
    if (!o->plan || conf_given(&c->args, "batch")) /* a plan has its own */
        put_i64(out, "batch", o->batch);
    put_i64(out, "deadline_ms", o->deadline_ms);
    put_list(out, "codec", o->codec);
    put_list(out, "pin", o->pin);
    for (int i = 0; i < o->sizes.n; i++) {
        size_t len;
        int64_t n;
        yk_err err = flags_size(o->sizes.at[i], &len, &n, why);
        if (err)
            return err;
        if (i == 0) {
            json_put_key(out, "sizes");
            json_open(out, '{');
        }
        char *name = yk_xasprintf("%.*s", (int)len, o->sizes.at[i]);
        json_put_key(out, name);
        json_put_i64(out, n);
        free(name);
        if (i + 1 == o->sizes.n)
            json_close(out, '}');
    }
    put_i64(out, "microbatch", flags_microbatch(c));
    if (!o->plan)
        return YK_OK;
    uint8_t *text = NULL;
    size_t len = 0;
    struct json *doc = NULL;
    yk_err err = cli_read_file(o->plan, PLAN_FILE_LIMIT, &text, &len, why);
    if (!err && (err = json_parse((const char *)text, len, &doc, why)))
        err = yk_wrap(why, err, "%s", o->plan);
    if (!err) {
        json_put_key(out, "plan");
        json_put_raw(out, (const char *)text, len);
    }
    json_free(doc);
    free(text);
    return err;
}

static bool ended(const char *state)
{
    return strcmp(state, "done") == 0 || strcmp(state, "failed") == 0 || strcmp(state, "canceled") == 0;
}

static volatile sig_atomic_t interrupted;

static void on_interrupt(int number)
{
    (void)number;
    interrupted = 1;
}

/* How busy the devices of a job are, and what they send. */
static void tell_use(struct cli *c, const char *id, char *text, size_t size)
{
    struct json *rows = NULL;
    char *path = job_path(id, "/use");
    if (path && cli_rest_call(c, "GET", path, NULL, &rows, NULL) != YK_OK)
        rows = NULL;
    free(path);
    for (size_t i = 0; i < json_len(rows) && i < SHOWN_AGENTS; i++) {
        const struct json *row = json_at(rows, i), *link = json_find(row, "link_frac");
        double sent = json_f64(json_find(row, "sent_bytes_per_s"), 0);
        size_t used = strlen(text);
        int n = snprintf(text + used, size - used, "; %.40s %.0f %%", json_str(json_find(row, "agent"), ""),
            100 * json_f64(json_find(row, "busy_frac"), 0));
        used += n > 0 ? YK_MIN((size_t)n, size - used - 1) : 0;
        if (sent > 0 && json_kind(link) != JSON_NULL)
            snprintf(text + used, size - used, ", link %.0f %%", 100 * json_f64(link, 0));
        else if (sent > 0)
            snprintf(text + used, size - used, ", %.1f MB/s", sent / 1e6);
    }
    json_free(rows);
}

yk_err job_watch(struct cli *c, const char *id, job_on_look look, void *arg, struct json **row, struct yk_diag *why)
{
    struct progress bar;
    char *label = yk_xasprintf("job %s", id);
    char *path = job_path(id, "");
    struct json *job = NULL;
    yk_err err = path ? YK_OK : yk_fail(why, YK_INVAL, "'%s' is not a job id", id);
    int64_t cursor = 0;
    progress_start(&bar, c->tty, label);
    interrupted = 0;
    signal(SIGINT, on_interrupt);
    for (int silent = 0; !err;) {
        if (interrupted)
            err = yk_fail(why, YK_CANCELED,
                "interrupted; job %s goes on: `yoke job %s --watch` follows it, `yoke output get %s FILE` brings what "
                "it made, `yoke cancel %s` ends it",
                id, id, id, id);
        if (err)
            break;
        json_free(job);
        job = NULL;
        err = cli_rest_call(c, "GET", path, NULL, &job, why);
        if ((err == YK_REFUSED || err == YK_CLOSED) && silent++ < PATIENCE) {
            progress_show(&bar, 0, 0, "no answer from the scheduler, trying again");
            usleep(500000);
            err = YK_OK;
            continue;
        }
        if (err)
            break;
        silent = 0;
        const char *state = json_str(json_find(job, "state"), "");
        if (ended(state))
            break;
        char text[600] = "";
        const char *error = json_str(json_find(job, "error"), "");
        double rate = json_f64(json_find(job, "images_per_s"), 0);
        bar.still = strcmp(state, "running") != 0;
        if (bar.still)
            snprintf(text, sizeof text, "%s%s%s", state, error[0] ? ": " : "", error);
        else
            snprintf(text, sizeof text, rate > 0 ? "%s, %.0f samples/s" : "%s", state, rate);
        if (!bar.still && look)
            look(arg, id, text, sizeof text);
        if (!bar.still)
            tell_use(c, id, text, sizeof text);
        progress_show(&bar, json_i64(json_find(job, "done"), 0), json_i64(json_find(job, "samples"), 0), text);
        /* The long poll ends early when something happens. */
        char tail[80];
        snprintf(tail, sizeof tail, "/events?cursor=%lld&wait_ms=%d", (long long)cursor, POLL_MS);
        char *events_path = job_path(id, tail);
        struct json *events = NULL;
        /* What keeps events from coming is seen by the next look at the job. */
        (void)cli_rest_call(c, "GET", events_path, NULL, &events, NULL);
        cursor = json_i64(json_find(events, "cursor"), cursor);
        json_free(events);
        free(events_path);
    }
    progress_end(&bar);
    signal(SIGINT, SIG_DFL);
    if (!err && strcmp(json_str(json_find(job, "state"), ""), "done") != 0)
        err = yk_fail(why, YK_STATE, "job %s %s: %s", id, json_str(json_find(job, "state"), "?"),
            json_str(json_find(job, "error"), "no reason given"));
    *row = job;
    free(path);
    free(label);
    return err;
}

yk_err job_run(struct cli *c, const struct yk_buf *request, char *id, job_on_look look, void *arg, struct json **row,
    struct yk_diag *why)
{
    struct json *answer = NULL;
    if (request->failed)
        return yk_fail(why, YK_NOMEM, "no memory for the request");
    yk_err err = cli_rest_call(c, "POST", "/v1/jobs", request, &answer, why);
    if (err)
        return err;
    snprintf(id, 24, "%lld", (long long)json_i64(json_find(answer, "job"), 0));
    json_free(answer);
    return job_watch(c, id, look, arg, row, why);
}

char *job_percent(const char *text)
{
    static const char plain[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_.~";
    struct yk_buf b = {0};
    for (; *text; text++)
        if (strchr(plain, *text))
            yk_buf_add(&b, text, 1);
        else
            yk_buf_printf(&b, "%%%02X", (unsigned char)*text);
    yk_buf_add(&b, "", 1);
    return b.failed ? yk_xstrdup("") : (char *)b.data;
}

yk_err job_output(struct cli *c, const char *id, const char *name, struct yk_buf *out, struct yk_diag *why)
{
    char *query = name ? job_percent(name) : NULL,
         *tail = yk_xasprintf("/output%s%s", name ? "?name=" : "", name ? query : "");
    char *from = job_path(id, tail);
    free(query);
    free(tail);
    yk_err err = cli_rest_download(c, from, out, why);
    free(from);
    return err;
}

yk_err job_output_kept(const char *id, yk_err err, struct yk_diag *why)
{
    struct yk_diag said = *why;
    return yk_fail(why, err, "%s; yoked keeps it: `yoke output get %s FILE`", said.text, id);
}

yk_err job_save_output(struct cli *c, const char *id, const char *name, const char *path, struct yk_diag *why)
{
    struct yk_buf bytes = {0};
    yk_err err = job_output(c, id, name, &bytes, why);
    if (!err)
        err = cli_write_file(path, bytes.data, bytes.len, why);
    if (err && bytes.len)
        err = job_output_kept(id, err, why);
    yk_buf_free(&bytes);
    return err;
}

void job_print_events(struct cli *c, const char *id)
{
    struct yk_diag why = {0};
    struct json *answer = NULL;
    char *path = job_path(id, "/events?cursor=0&wait_ms=0");
    if (path && cli_rest_call(c, "GET", path, NULL, &answer, &why) == YK_OK) {
        const struct json *events = json_find(answer, "events");
        for (size_t i = 0; i < json_len(events); i++) {
            const struct json *e = json_at(events, i);
            printf("  %s  %-10s %s\n", json_str(json_find(e, "at"), ""), json_str(json_find(e, "kind"), ""),
                json_str(json_find(e, "text"), ""));
        }
    }
    json_free(answer);
    free(path);
}
