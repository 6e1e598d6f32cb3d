#include "scheduler/cli/flags.h"

#include "common/preprocess.h"
#include "kernels/backend.h"
#include "scheduler/cli/datasets.h"
#include "scheduler/model.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define MOST_SAMPLES 1000000000

/* ---- their form ---- */

/* Words out of a list, separated by commas. */
static yk_err check_words(const char *flag, const char *text, const char *words, struct yk_diag *why)
{
    for (const char *at = text; at;) {
        size_t n = strcspn(at, ",");
        bool known = false;
        for (const char *w = words; w && !known; w = strchr(w, '|') ? strchr(w, '|') + 1 : NULL)
            known = strcspn(w, "|") == n && strncmp(w, at, n) == 0;
        if (!known)
            return yk_fail(
                why, YK_INVAL, "--%s=%s: '%.*s' is none of %s", flag, text, (int)YK_MIN(n, (size_t)60), at, words);
        at = at[n] ? at + n + 1 : NULL;
    }
    return YK_OK;
}

static yk_err check_filled(const struct cli_opts *o, struct yk_diag *why)
{
    const struct {
        const char *flag, *text;
    } one[] = {{"plan", o->plan}, {"data", o->data}, {"output", o->output}, {"name", o->name}, {"source", o->source},
        {"val", o->val}, {"checkpoint", o->checkpoint}, {"plot", o->plot}, {"timeline", o->timeline},
        {"labels", o->labels}, {"dump", o->dump}, {"preprocess", o->preprocess}, {"augment", o->train.augment},
        {"loss-output", o->train.loss_output}};
    const struct {
        const char *flag;
        const struct conf_strs *all;
    } many[] = {{"input", &o->inputs}, {"output", &o->outputs}, {"freeze", &o->train.freeze}};
    for (size_t i = 0; i < YK_COUNT(one); i++)
        if (one[i].text && !one[i].text[0])
            return yk_fail(why, YK_INVAL, "--%s= is empty", one[i].flag);
    for (size_t i = 0; i < YK_COUNT(many); i++)
        for (int k = 0; k < many[i].all->n; k++)
            if (!many[i].all->at[k][0])
                return yk_fail(why, YK_INVAL, "--%s= is empty", many[i].flag);
    return YK_OK;
}

/* http://HOST:PORT, maybe with a path behind it. */
static yk_err check_address(const char *url, struct yk_diag *why)
{
    bool http = strncmp(url, "http://", 7) == 0;
    const char *host = http ? url + 7 : url;
    size_t n = strcspn(host, "/"), colon = n;
    while (colon > 0 && host[colon] != ':')
        colon--;
    size_t digits = strspn(host + colon + 1, "0123456789");
    if (!http || colon == 0 || digits == 0 || digits > 5 || colon + 1 + digits != n || atol(host + colon + 1) > 65535 ||
        strcspn(url, " \t\r\n") < n)
        return yk_fail(why, YK_INVAL, "--rest=%.200s is not an address: http://127.0.0.1:PORT", url);
    return YK_OK;
}

yk_err flags_size(const char *text, size_t *name, int64_t *n, struct yk_diag *why)
{
    const char *equals = strrchr(text, '=');
    char *end = NULL;
    errno = 0;
    long long value = equals ? strtoll(equals + 1, &end, 10) : 0;
    if (!equals || equals == text || end == equals + 1 || *end || errno || value < 1 || value > INT32_MAX)
        return yk_fail(why, YK_INVAL, "--size=%.200s: NAME=N, a named dimension of the model and its size", text);
    *name = (size_t)(equals - text);
    *n = value;
    return YK_OK;
}

static bool takes(const struct cli_command *command, const char *flag)
{
    for (int i = 0; i < command->n_keys; i++)
        if (strcmp(command->keys[i].name, flag) == 0)
            return true;
    return false;
}

/* Of images; --mean and --std too where they can be of nothing else. */
static yk_err check_images(const struct cli_opts *o, bool normal, struct yk_diag *why)
{
    const struct {
        const char *key, *text;
    } all[] = {{"preset", o->preset}, {"resize", o->resize}, {"crop", o->crop}, {"interpolation", o->interpolation},
        {"mean", normal ? o->mean : NULL}, {"std", normal ? o->std : NULL}};
    struct preprocess how;
    preprocess_init(&how);
    for (size_t i = 0; i < YK_COUNT(all); i++) {
        yk_err err = all[i].text ? preprocess_set(&how, all[i].key, all[i].text, why) : YK_OK;
        if (err)
            return yk_wrap(why, err, "--%s", all[i].key);
    }
    return YK_OK;
}

static yk_err check_training(const struct cli *c, struct yk_diag *why)
{
    struct train_config config = {0};
    yk_err err = train_flags_read(&c->o.train, 0, &config, why);
    train_config_fini(&config);
    if (!err && c->o.pin && strstr(c->o.pin, "last"))
        err = yk_fail(why, YK_INVAL, "--pin=%s: a training pins only its first stage: --pin=first", c->o.pin);
    return err;
}

static bool trains(const struct cli *c)
{
    return strcmp(cli_kinds[c->o.job], "train") == 0;
}

static yk_err check_form(const struct cli *c, const struct cli_command *command, struct yk_diag *why)
{
    const struct cli_opts *o = &c->o;
    yk_err err = check_filled(o, why);
    if (!err)
        err = check_words("pin", o->pin, "first|last", why);
    if (!err)
        err = check_words("codec", o->codec, "fp32|fp16|int8", why);
    if (!err)
        err = check_words("split", o->split, "train|t10k|test|val", why);
    if (!err && o->rest)
        err = check_address(o->rest, why);
    if (!err && o->name && !model_name_valid(o->name))
        err = yk_fail(why, YK_INVAL, "--name=%.120s: " MODEL_NAMES, o->name);
    if (!err && o->backend)
        err = backends_check(o->backend, why) ? yk_wrap(why, YK_INVAL, "--backend") : YK_OK;
    for (int i = 0; i < o->sizes.n && !err; i++) {
        size_t name;
        int64_t n;
        err = flags_size(o->sizes.at[i], &name, &n, why);
    }
    if (!err && o->microbatch_text && strcmp(o->microbatch_text, "auto") != 0) {
        char *end;
        long long n = strtoll(o->microbatch_text, &end, 10);
        if (*end || n < 1 || n > MOST_SAMPLES)
            err = yk_fail(why, YK_INVAL, "--microbatch=%s: a number of samples from 1, or auto", o->microbatch_text);
    }
    struct datasets_numbers numbers = {0};
    if (!err && !(err = datasets_numbers("mean", o->mean, &numbers, why)))
        free(numbers.at);
    if (!err && !(err = datasets_numbers("std", o->std, &numbers, why)))
        free(numbers.at);
    if (!err)
        err = check_images(o, !takes(command, "data"), why);
    if (!err && takes(command, "epochs") && (!takes(command, "job") || trains(c)))
        err = check_training(c, why);
    return err;
}

/* ---- those that say nothing ---- */

static bool trains_not(const struct cli *c)
{
    return !trains(c);
}

static bool draws_not(const struct cli *c)
{
    return !c->o.timeline;
}

static bool shows_no_classes(const struct cli *c)
{
    return c->o.json || c->o.outputs.n > 0;
}

static bool has_inputs(const struct cli *c)
{
    return c->o.inputs.n > 0;
}

/* A command's flag that would be passed over, when, and what to do instead. */
static const struct {
    const char *command, *flag;
    bool (*when)(const struct cli *c);
    const char *mend;
} idle[] = {
    {"plan", "deadline-ms", trains, "a training has no deadline"},
    {"job", "step", draws_not, "it says which step --timeline=OUT.svg draws"},
    {"infer", "labels", shows_no_classes, "it names the classes that are shown without --json and --output"},
    {"local infer", "labels", shows_no_classes, "it names the classes that are shown without --json and --output"},
    {"local bench", "batch", has_inputs, "the files of --input say how many samples there are"},
};

static const struct conf_key train_keys[] = {TRAIN_FLAGS_KEYS};

static yk_err check_idle(const struct cli *c, const struct cli_command *command, struct yk_diag *why)
{
    for (size_t i = 0; i < YK_COUNT(idle); i++)
        if (strcmp(command->words, idle[i].command) == 0 && conf_given(&c->args, idle[i].flag) && idle[i].when(c))
            return yk_fail(why, YK_INVAL, "--%s: %s", idle[i].flag, idle[i].mend);
    for (size_t i = 0; strcmp(command->words, "plan") == 0 && trains_not(c) && i < YK_COUNT(train_keys); i++)
        if (conf_given(&c->args, train_keys[i].name))
            return yk_fail(why, YK_INVAL, "--%s goes with --job=train: a plan for %s knows nothing of it",
                train_keys[i].name, cli_kinds[c->o.job]);
    return YK_OK;
}

yk_err flags_check(const struct cli *c, const struct cli_command *command, struct yk_diag *why)
{
    yk_err err = check_form(c, command, why);
    return err ? err : check_idle(c, command, why);
}

int64_t flags_microbatch(const struct cli *c)
{
    const char *text = c->o.microbatch_text;
    return text && strcmp(text, "auto") != 0 ? strtoll(text, NULL, 10) : 0;
}
