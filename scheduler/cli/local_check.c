/* `yoke local check`: ONNX backend test data, judged here. */
#include "scheduler/cli/check.h"
#include "scheduler/cli/local.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct listing {
    struct yk_buf *kept; /* the same lines as JSON, for --dump */
    bool json;
};

static void put_line(struct listing *l, struct yk_buf *line)
{
    yk_buf_add(line, "\n", 1);
    if (l->json && !line->failed)
        printf("%.*s", (int)line->len, (const char *)line->data);
    if (l->kept)
        yk_buf_add(l->kept, line->data, line->len);
    yk_buf_free(line);
}

static void on_test(void *arg, const char *test, enum check_verdict verdict, const char *reason)
{
    struct listing *l = arg;
    struct yk_buf line = {0};
    struct json_out out;
    if (!l->json && verdict != CHECK_PASSED)
        printf("%s %s: %s\n", check_verdicts[verdict], test, reason);
    json_out_init(&out, &line, 0);
    json_open(&out, '{');
    json_put_key(&out, "test");
    json_put_str(&out, test);
    json_put_key(&out, "verdict");
    json_put_str(&out, check_verdicts[verdict]);
    if (*reason) {
        json_put_key(&out, "reason");
        json_put_str(&out, reason);
    }
    json_close(&out, '}');
    put_line(l, &line);
}

static void summary(struct listing *l, const int count[3])
{
    struct yk_buf line = {0};
    struct json_out out;
    json_out_init(&out, &line, 0);
    json_open(&out, '{');
    for (int i = 0; i < 3; i++) {
        json_put_key(&out, check_verdicts[i]);
        json_put_i64(&out, count[i]);
    }
    json_close(&out, '}');
    put_line(l, &line);
    if (!l->json)
        printf("%d passed, %d failed, %d skipped\n", count[0], count[1], count[2]);
}

int cli_local_check(struct cli *c)
{
    struct yk_diag why = {""};
    struct yk_buf kept = {0};
    struct pool *pool = NULL;
    struct backends backends = {0};
    struct listing l = {.json = c->o.json, .kept = c->o.dump ? &kept : NULL};
    struct check check = {.backends = &backends, .passes = true, .dump = c->o.dump, .on = on_test, .arg = &l};
    yk_err err = pool_open(local_threads(c), &pool, &why);
    if (!err)
        err = backends_open(c->o.backend, pool, &backends, &why);
    if (!err)
        err = check_folder(&check, c->args.at[0], &why);
    if (!err) {
        summary(&l, check.count);
        if (c->o.dump) {
            char *path = yk_xasprintf("%s/verdicts.jsonl", c->o.dump);
            err = kept.failed ? YK_NOMEM : cli_write_file(path, kept.data, kept.len, &why);
            free(path);
        }
    }
    backends_close(&backends);
    pool_close(pool);
    yk_buf_free(&kept);
    return err ? cli_fail(err, &why) : check.count[CHECK_FAILED] ? CLI_FAILED : CLI_DONE;
}
