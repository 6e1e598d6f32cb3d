#include "scheduler/cli/flags.h"

#include "scheduler/cli/datasets.h"

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
        {"labels", o->labels}, {"augment", o->train.augment}, {"loss-output", o->train.loss_output}};
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

static yk_err check_form(const struct cli_opts *o, struct yk_diag *why)
{
    yk_err err = check_filled(o, why);
    if (!err)
        err = check_words("pin", o->pin, "first|last", why);
    if (!err)
        err = check_words("codec", o->codec, "fp32|fp16|int8", why);
    if (!err)
        err = check_words("split", o->split, "train|t10k|test|val", why);
    if (!err && o->rest && strncmp(o->rest, "http://", 7) != 0)
        err = yk_fail(why, YK_INVAL, "--rest=%s is not an address: http://127.0.0.1:PORT", o->rest);
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
    return err;
}

/* ---- those that say nothing ---- */

static bool trains(const struct cli *c)
{
    return strcmp(cli_kinds[c->o.job], "train") == 0;
}

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
    yk_err err = check_form(&c->o, why);
    return err ? err : check_idle(c, command, why);
}

int64_t flags_microbatch(const struct cli *c)
{
    const char *text = c->o.microbatch_text;
    return text && strcmp(text, "auto") != 0 ? strtoll(text, NULL, 10) : 0;
}
