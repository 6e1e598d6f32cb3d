#include "scheduler/job.h"

#include "common/hash.h"
#include "common/preprocess.h"
#include "common/samples.h"
#include "scheduler/job_data.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_MICROBATCHES ((int64_t)1 << 28)
#define MAX_INPUTS 64
#define MAX_SIZE ((int64_t)1 << 24) /* of a named dimension */

static const struct {
    const char *text;
    int64_t deadline_ms;
    enum job_state out;
    const char *what;
} states[] = {
#define X(name, text, deadline, out, what) {text, deadline, JOB_##out, what},
    JOB_STATES(X)
#undef X
};

const char *job_state_name(enum job_state s)
{
    return states[s].text;
}

bool job_state_find(const char *name, enum job_state *out)
{
    for (size_t i = 0; i < YK_COUNT(states); i++)
        if (strcmp(states[i].text, name) == 0) {
            *out = (enum job_state)i;
            return true;
        }
    return false;
}

bool job_ended(enum job_state s)
{
    return states[s].out == s;
}

int64_t job_state_deadline_ms(enum job_state s)
{
    return states[s].deadline_ms;
}

enum job_state job_state_out(enum job_state s)
{
    return states[s].out;
}

const char *job_state_what(enum job_state s)
{
    return states[s].what;
}

void job_free(struct job *j)
{
    if (!j)
        return;
    char *const texts[] = {
        j->kind, j->model, j->source, j->request, j->data, j->labels, j->split, j->preprocess, j->outputs_json};
    for (size_t i = 0; i < YK_COUNT(texts); i++)
        free(texts[i]);
    for (int32_t i = 0; i < j->n_forms; i++)
        free(j->forms[i]);
    free(j->forms);
    plan_free(j->life.next);
    plan_free(j->life.trial.pipeline);
    free(j->life.left);
    free(j->life.refused);
    for (int i = 0; i < j->n_inputs; i++) {
        free(j->inputs[i].name);
        free(j->inputs[i].data);
    }
    free(j->inputs);
    for (int i = 0; i < j->n_given; i++)
        free(j->given[i].name);
    free(j->given);
    free(j->sizes);
    job_data_free_outputs(j);
    free(j->mean);
    free(j->std);
    free(j->black);
    free(j->done_map);
    plan_free(j->forced);
    training_free(j->training);
    free(j);
}

/* ---- the request ---- */

static yk_err get_text(const struct json *o, const char *key, char **out, struct yk_diag *why)
{
    const char *text = NULL;
    yk_err err = json_get_str(o, key, false, &text, why);
    if (!err && text) {
        if (strlen(text) > 4096)
            return yk_fail(why, YK_LIMIT, "%s is longer than 4096 bytes", key);
        *out = yk_xstrdup(text);
    }
    return err;
}

static yk_err get_numbers(const struct json *o, const char *key, double **out, int *n, struct yk_diag *why)
{
    const struct json *a = json_find(o, key);
    if (!a || json_kind(a) == JSON_NULL)
        return YK_OK;
    if (json_kind(a) != JSON_ARRAY || json_len(a) > 4096)
        return yk_fail(why, YK_INVAL, "data.%s is not an array of at most 4096 numbers", key);
    *out = yk_xalloc((json_len(a) + 1) * sizeof **out);
    for (size_t i = 0; i < json_len(a); i++) {
        const struct json *v = json_at(a, i);
        if (json_kind(v) != JSON_INT && json_kind(v) != JSON_REAL)
            return yk_fail(why, YK_INVAL, "data.%s[%zu] is not a number", key, i);
        (*out)[i] = json_f64(v, 0);
    }
    *n = (int)json_len(a);
    return YK_OK;
}

/* {"NAME": SHA-256, ...} into j->inputs. */
static yk_err parse_inputs(const struct json *o, struct job *j, struct yk_diag *why)
{
    if (json_kind(o) != JSON_OBJECT || json_len(o) < 1 || json_len(o) > MAX_INPUTS)
        return yk_fail(why, YK_INVAL, "data.inputs is an object of 1 to %d names with their SHA-256", MAX_INPUTS);
    j->inputs = yk_xalloc((json_len(o) + 1) * sizeof *j->inputs);
    for (size_t i = 0; i < json_len(o); i++) {
        const char *name = json_key(o, i), *hash = json_str(json_find(o, name), "");
        if (!hash_is_hex(hash))
            return yk_fail(why, YK_INVAL, "data.inputs.%.60s is not 64 lower-case hex digits", name);
        j->inputs[j->n_inputs++] = (struct job_input){.name = yk_xstrdup(name), .data = yk_xstrdup(hash)};
    }
    return YK_OK;
}

/* {"NAME": N, ...} into j->given. */
static yk_err parse_sizes(const struct json *o, struct job *j, struct yk_diag *why)
{
    if (!o || json_kind(o) == JSON_NULL)
        return YK_OK;
    if (json_kind(o) != JSON_OBJECT || json_len(o) > MAX_INPUTS)
        return yk_fail(why, YK_INVAL, "sizes is an object of at most %d named dimensions", MAX_INPUTS);
    j->given = yk_xalloc((json_len(o) + 1) * sizeof *j->given);
    for (size_t i = 0; i < json_len(o); i++) {
        const char *name = json_key(o, i);
        const struct json *v = json_find(o, name);
        int64_t n = json_i64(v, 0);
        if (json_kind(v) != JSON_INT || n < 1 || n > MAX_SIZE)
            return yk_fail(why, YK_INVAL, "sizes.%.60s is not a number from 1 to %lld", name, (long long)MAX_SIZE);
        j->given[j->n_given++] = (struct job_size){yk_xstrdup(name), n};
    }
    return YK_OK;
}

/* {"black": [..], "layout": "nchw"} of uploaded samples that were images. */
static yk_err parse_pixels(const struct json *o, struct job *j, bool blob, struct yk_diag *why)
{
    static const char *const known[] = {"black", "layout", NULL};
    const char *layout = "nchw";
    if (!o || json_kind(o) == JSON_NULL)
        return YK_OK;
    if (json_kind(o) != JSON_OBJECT)
        return yk_fail(why, YK_INVAL, "data.pixels is {\"black\": [NUMBER, ...], \"layout\": \"nchw\"}");
    yk_err err = json_only(o, known, why);
    if (!err)
        err = get_numbers(o, "black", &j->black, &j->n_black, why);
    if (!err)
        err = json_get_str(o, "layout", false, &layout, why);
    if (err)
        return err;
    j->nhwc = strcmp(layout, "nhwc") == 0;
    if (!j->nhwc && strcmp(layout, "nchw") != 0)
        return yk_fail(why, YK_INVAL, "data.pixels.layout is nchw or nhwc, not '%.60s'", layout);
    if (!j->n_black)
        return yk_fail(why, YK_INVAL, "data.pixels.black is missing: a number for each channel");
    if (!blob || j->n_mean || j->n_std)
        return yk_fail(why, YK_INVAL, "data.pixels goes with data.blob, whose samples are normalised already");
    return YK_OK;
}

static yk_err parse_data(const struct json *d, struct job *j, struct yk_diag *why)
{
    static const char *const known[] = {
        "blob", "inputs", "labels", "name", "split", "mean", "std", "preprocess", "pixels", NULL};
    char *blob = NULL;
    const struct json *inputs = json_find(d, "inputs");
    if (!d || json_kind(d) != JSON_OBJECT)
        return yk_fail(
            why, YK_INVAL, "data is missing: {\"blob\": SHA-256}, {\"inputs\": {NAME: SHA-256}} or {\"name\": NAME}");
    yk_err err = json_only(d, known, why);
    if (!err)
        err = get_text(d, "blob", &blob, why);
    if (!err)
        err = get_text(d, "name", &j->data, why);
    if (!err)
        err = get_text(d, "labels", &j->labels, why);
    if (!err)
        err = get_text(d, "split", &j->split, why);
    if (!err)
        err = get_numbers(d, "mean", &j->mean, &j->n_mean, why);
    if (!err)
        err = get_numbers(d, "std", &j->std, &j->n_std, why);
    if (!err)
        err = preprocess_normal(json_find(d, "preprocess"), &j->preprocess, why);
    if (!err)
        err = parse_pixels(json_find(d, "pixels"), j, blob != NULL, why);
    if (!err && (blob != NULL) + (j->data != NULL) + (inputs != NULL) != 1)
        err = yk_fail(why, YK_INVAL, "data has one of blob, inputs and name");
    if (!err && blob && !hash_is_hex(blob))
        err = yk_fail(why, YK_INVAL, "data.blob is not 64 lower-case hex digits");
    if (!err && j->labels && !hash_is_hex(j->labels))
        err = yk_fail(why, YK_INVAL, "data.labels is not 64 lower-case hex digits");
    if (!err && inputs)
        err = parse_inputs(inputs, j, why);
    if (!err && blob) {
        j->inputs = yk_xalloc(sizeof *j->inputs);
        j->inputs[j->n_inputs++] = (struct job_input){.data = blob};
        blob = NULL;
    }
    free(blob);
    return err;
}

/* "codec": ["fp16"], "pin": ["first"]: words out of a list. */
static yk_err parse_words(
    const struct json *o, const char *key, const char *const *words, bool *const *flags, struct yk_diag *why)
{
    const struct json *a = json_find(o, key);
    if (!a || json_kind(a) == JSON_NULL)
        return YK_OK;
    if (json_kind(a) != JSON_ARRAY)
        return yk_fail(why, YK_INVAL, "%s is not an array of words", key);
    for (size_t i = 0; i < json_len(a); i++) {
        const char *word = json_str(json_at(a, i), "");
        int k = 0;
        while (words[k] && strcmp(words[k], word) != 0)
            k++;
        if (!words[k])
            return yk_fail(why, YK_INVAL, "%s has '%s'; known are %s, %s%s%s", key, word, words[0], words[1],
                words[2] ? ", " : "", words[2] ? words[2] : "");
        *flags[k] = true;
    }
    return YK_OK;
}

static bool absent(const struct json *o, const char *key)
{
    const struct json *v = json_find(o, key);
    return !v || json_kind(v) == JSON_NULL;
}

/* What the request leaves open and its plan says. */
static yk_err take_from_plan(const struct json *o, struct job *j, const char *objective, struct yk_diag *why)
{
    const struct plan *p = j->forced;
    if (!objective && p->objective)
        solve_objective_find(p->objective, &j->objective);
    if (absent(o, "batch"))
        j->batch = p->batch > 0 ? p->batch : YK_MAX(j->batch, p->microbatch);
    if (!j->source && p->source)
        j->source = yk_xstrdup(p->source);
    if (j->microbatch && j->microbatch != p->microbatch)
        return yk_fail(why, YK_INVAL, "--microbatch is %lld, the plan's is %lld: give the same, or plan it again",
            (long long)j->microbatch, (long long)p->microbatch);
    return YK_OK;
}

/* A training's batch is what it learns from at a time: none is made up for it. */
static yk_err check_split(const struct json *o, struct job *j, struct yk_diag *why)
{
    if (absent(o, "batch") && !j->training && !j->forced)
        j->batch = YK_MAX(j->batch, j->microbatch);
    return samples_split_check(j->batch, j->forced ? j->forced->microbatch : j->microbatch, 0, why);
}

static yk_err parse_job(const struct json *o, struct job *j, struct yk_diag *why)
{
    static const char *const known[] = {"kind", "model", "data", "source", "batch", "microbatch", "objective",
        "deadline_ms", "codec", "pin", "plan", "outputs", "accuracy", "sizes", "train", "explain", "timeline", NULL};
    static const char *const codecs[] = {"fp32", "fp16", "int8", NULL}, *const pins[] = {"first", "last", NULL};
    bool *const codec_flags[] = {&j->codec_allowed[0], &j->codec_allowed[1], &j->codec_allowed[2]};
    bool *const pin_flags[] = {&j->pin_first, &j->pin_last};
    const char *objective = NULL;
    if (json_kind(o) != JSON_OBJECT)
        return yk_fail(why, YK_INVAL, "a job is a JSON object");
    yk_err err = json_only(o, known, why);
    if (!err)
        err = get_text(o, "kind", &j->kind, why);
    if (!err)
        err = get_text(o, "model", &j->model, why);
    bool train = j->kind && strcmp(j->kind, "train") == 0;
    if (!err && (!j->kind || (strcmp(j->kind, "infer") != 0 && strcmp(j->kind, "batch") != 0 && !train)))
        err = yk_fail(why, j->kind ? YK_UNSUPPORTED : YK_INVAL, "kind is infer, batch or train%s%s",
            j->kind ? ", not " : "", j->kind ? j->kind : "");
    if (!err && train) {
        j->training = yk_xalloc(sizeof *j->training);
        err = train_config_read(json_find(o, "train"), &j->training->config, why);
    } else if (!err && json_find(o, "train")) {
        err = yk_fail(why, YK_INVAL, "train goes with kind train");
    }
    if (!err && !j->model)
        err = yk_fail(why, YK_INVAL, "model is missing");
    if (!err)
        err = get_text(o, "source", &j->source, why);
    j->batch = train ? 64 : 1;
    if (!err)
        err = json_get_i64(o, "batch", false, 1, 1000000000, &j->batch, why);
    if (!err)
        err = json_get_i64(o, "microbatch", false, 1, 1000000000, &j->microbatch, why);
    if (!err)
        err = json_get_i64(o, "deadline_ms", false, 0, INT32_MAX, &j->deadline_ms, why);
    if (!err)
        err = json_get_bool(o, "outputs", false, &j->want_outputs, why);
    if (!err)
        err = json_get_bool(o, "accuracy", false, &j->want_accuracy, why);
    if (!err)
        err = json_get_bool(o, "explain", false, &j->want_changes, why);
    j->want_bars = j->want_changes;
    if (!err)
        err = json_get_bool(o, "timeline", false, &j->want_bars, why);
    if (!err)
        err = json_get_str(o, "objective", false, &objective, why);
    j->objective = strcmp(j->kind ? j->kind : "", "infer") == 0 ? SOLVE_LATENCY : SOLVE_THROUGHPUT;
    if (!err && objective && !solve_objective_find(objective, &j->objective))
        err = yk_fail(why, YK_INVAL, "objective is latency, throughput or cloud-cost, not '%s'", objective);
    if (!err)
        err = parse_words(o, "codec", codecs, codec_flags, why);
    if (!err)
        err = parse_words(o, "pin", pins, pin_flags, why);
    if (!err)
        err = parse_sizes(json_find(o, "sizes"), j, why);
    if (!err && train && (j->pin_last || j->want_outputs || j->deadline_ms))
        err = yk_fail(why, YK_INVAL, "a train job takes no %s",
            j->pin_last       ? "pin of the last stage"
            : j->want_outputs ? "outputs"
                              : "deadline (deadline_ms)");
    if (!err && train && j->objective != SOLVE_THROUGHPUT)
        err = yk_fail(why, YK_INVAL, "the objective of a train job is throughput");
    if (!err && j->objective == SOLVE_CLOUD_COST && j->deadline_ms <= 0 && !json_find(o, "plan"))
        err = yk_fail(why, YK_INVAL,
            "objective cloud-cost takes as little of the cloud as a deadline allows: give deadline_ms "
            "(--deadline-ms=T)");
    const struct json *plan = json_find(o, "plan");
    if (!err && plan)
        err = plan_from_json(plan, &j->forced, why);
    if (!err && j->forced)
        err = take_from_plan(o, j, objective, why);
    if (!err)
        err = check_split(o, j, why);
    j->codec_allowed[0] = true;
    return err;
}

yk_err job_parse(const char *text, size_t len, struct job **out, struct yk_diag *why)
{
    struct json *doc = NULL;
    yk_err err = json_parse(text, len, &doc, why);
    if (err)
        return err;
    struct job *j = yk_xalloc(sizeof *j);
    err = parse_job(doc, j, why);
    /* A plan request has no data. */
    if (!err && json_find(doc, "data"))
        err = parse_data(json_find(doc, "data"), j, why);
    if (!err && j->data && !j->source)
        err = yk_fail(why, YK_INVAL, "data by name needs source: the agent that has it under a data root");
    json_free(doc);
    if (err) {
        job_free(j);
        return err;
    }
    j->request = yk_xalloc(len + 1);
    memcpy(j->request, text, len);
    *out = j;
    return YK_OK;
}

/* ---- progress ---- */

yk_err job_set_samples(struct job *j, int64_t samples, struct yk_diag *why)
{
    int64_t n = (samples + j->microbatch - 1) / j->microbatch;
    if (j->done_map && j->samples == samples)
        return YK_OK;
    if (j->done_map && j->samples)
        return yk_fail(
            why, YK_STATE, "the data set has %lld samples now, it had %lld", (long long)samples, (long long)j->samples);
    if (samples < 0 || n > MAX_MICROBATCHES)
        return yk_fail(why, YK_LIMIT, "%lld samples in microbatches of %lld; the limit is %lld microbatches",
            (long long)samples, (long long)j->microbatch, (long long)MAX_MICROBATCHES);
    free(j->done_map);
    j->done_map = yk_try_alloc((size_t)(n + 7) / 8 + 1, 1);
    if (!j->done_map)
        return yk_fail(why, YK_NOMEM, "no memory for the map of %lld microbatches", (long long)n);
    j->samples = samples;
    j->microbatches = n;
    return YK_OK;
}

bool job_map_get(const struct job *j, int64_t microbatch)
{
    return j->done_map[microbatch / 8] >> (microbatch % 8) & 1;
}

void job_map_set(struct job *j, int64_t microbatch)
{
    j->done_map[microbatch / 8] = (uint8_t)(j->done_map[microbatch / 8] | 1u << (microbatch % 8));
}

/* A job that is loading, runs or is done got over why it was planned again. */
static bool shows_error(enum job_state s)
{
    return s != JOB_LOADING && s != JOB_RUNNING && s != JOB_DONE;
}

void job_to_row(const struct job *j, int64_t now_us, struct store_job *row)
{
    static const char *const objectives[] = {"latency", "throughput", "cloud-cost"};
    double running = j->run_start_us ? (double)(now_us - j->run_start_us) / 1e3 : 0;
    *row = (struct store_job){.id = j->id,
        .batch = j->batch,
        .microbatch = j->microbatch,
        .samples = j->samples,
        .done = j->done,
        .labelled = j->labelled,
        .correct = j->correct,
        .replans = j->replans,
        .plan = j->plan_id,
        .deaths = j->deaths,
        .kind = j->kind,
        .model = j->model,
        .graph_hash = j->graph_hash,
        .state = job_state_name(j->state),
        .objective = objectives[j->objective],
        .request = j->request,
        .source = j->source,
        .outputs = j->outputs_json,
        .error = shows_error(j->state) ? j->error : "", /* else it is of what was before */
        .done_map = j->done_map,
        .done_map_len = j->done_map ? (size_t)(j->microbatches + 7) / 8 : 0,
        .run_ms = j->run_ms + running,
        .created_ms = j->created_ms,
        .started_ms = j->started_ms,
        .ended_ms = j->ended_ms};
}
