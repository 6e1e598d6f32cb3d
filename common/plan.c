#include "common/plan.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_PIPELINES 256
#define MAX_STAGES 256
#define MAX_RANGES 100000
#define MAX_CUTS 65536
#define MAX_FORMS 1000000
#define MAX_BATCH 1000000000
#define MAX_FORM 200 /* bytes of a name */

static const char *const codec_names[] = {"fp32", "fp16", "int8"};
static const char *const order_names[] = {"forward-first", "backward-first"};

const char *plan_codec_name(enum plan_codec c)
{
    return codec_names[c];
}

bool plan_codec_find(const char *name, enum plan_codec *out)
{
    for (size_t i = 0; i < YK_COUNT(codec_names); i++)
        if (strcmp(name, codec_names[i]) == 0) {
            *out = (enum plan_codec)i;
            return true;
        }
    return false;
}

static void free_notes(struct plan_note *notes, int32_t n)
{
    for (int32_t i = 0; i < n; i++)
        free(notes[i].text);
    free(notes);
}

double plan_load_ms_of(const struct plan *p, const char *agent)
{
    double ms = 0;
    for (int32_t i = 0; i < p->n_pipelines; i++)
        for (int32_t s = 0; s < p->pipelines[i].n_stages; s++)
            if (strcmp(p->pipelines[i].stages[s].agent, agent) == 0)
                ms += p->pipelines[i].stages[s].load_ms;
    return ms;
}

double plan_load_ms(const struct plan *p)
{
    double most = 0;
    for (int32_t i = 0; i < p->n_pipelines; i++)
        for (int32_t s = 0; s < p->pipelines[i].n_stages; s++)
            most = YK_MAX(most, plan_load_ms_of(p, p->pipelines[i].stages[s].agent));
    return most;
}

void plan_free(struct plan *p)
{
    if (!p)
        return;
    char *const texts[] = {p->model, p->graph_use, p->job, p->objective, p->source, p->solver, p->explanation,
        p->bottleneck, p->best_single};
    for (size_t i = 0; i < YK_COUNT(texts); i++)
        free(texts[i]);
    for (int32_t i = 0; p->forms && i < p->n_forms; i++)
        free(p->forms[i]);
    free(p->forms);
    for (int32_t i = 0; i < p->n_pipelines; i++) {
        for (int32_t k = 0; k < p->pipelines[i].n_stages; k++) {
            free(p->pipelines[i].stages[k].agent);
            free(p->pipelines[i].stages[k].nodes);
        }
        free(p->pipelines[i].stages);
    }
    free(p->pipelines);
    free(p->cuts);
    for (int32_t i = 0; i < p->n_alternatives; i++) {
        free(p->alternatives[i].text);
        free(p->alternatives[i].bottleneck);
    }
    free(p->alternatives);
    free_notes(p->binds, p->n_binds);
    free_notes(p->changes, p->n_changes);
    for (int32_t i = 0; p->bar_rows && i < p->n_bar_rows; i++)
        free(p->bar_rows[i]);
    free(p->bar_rows);
    free(p->bars);
    free(p);
}

static char *copy_text(const char *s)
{
    return s ? yk_xstrdup(s) : NULL;
}

static void *copy_array(const void *from, int32_t n, size_t each)
{
    if (!from)
        return NULL;
    void *to = yk_xalloc(((size_t)n + 1) * each);
    memcpy(to, from, (size_t)n * each);
    return to;
}

static struct plan_note *copy_notes(const struct plan_note *from, int32_t n)
{
    struct plan_note *to = copy_array(from, n, sizeof *from);
    for (int32_t i = 0; to && i < n; i++)
        to[i].text = copy_text(from[i].text);
    return to;
}

struct plan *plan_copy(const struct plan *p)
{
    struct plan *q = yk_xalloc(sizeof *q);
    *q = *p;
    q->model = copy_text(p->model);
    q->graph_use = copy_text(p->graph_use);
    q->job = copy_text(p->job);
    q->objective = copy_text(p->objective);
    q->source = copy_text(p->source);
    q->solver = copy_text(p->solver);
    q->explanation = copy_text(p->explanation);
    q->bottleneck = copy_text(p->bottleneck);
    q->best_single = copy_text(p->best_single);
    q->forms = copy_array(p->forms, p->n_forms, sizeof *p->forms);
    for (int32_t i = 0; q->forms && i < q->n_forms; i++)
        q->forms[i] = copy_text(p->forms[i]);
    q->pipelines = copy_array(p->pipelines, p->n_pipelines, sizeof *p->pipelines);
    for (int32_t i = 0; i < q->n_pipelines; i++) {
        struct plan_pipeline *line = &q->pipelines[i];
        line->stages = copy_array(line->stages, line->n_stages, sizeof *line->stages);
        for (int32_t k = 0; k < line->n_stages; k++) {
            line->stages[k].agent = copy_text(line->stages[k].agent);
            line->stages[k].nodes =
                copy_array(line->stages[k].nodes, line->stages[k].n_nodes, sizeof(struct cut_range));
        }
    }
    q->cuts = copy_array(p->cuts, p->n_cuts, sizeof *p->cuts);
    q->alternatives = copy_array(p->alternatives, p->n_alternatives, sizeof *p->alternatives);
    for (int32_t i = 0; i < q->n_alternatives; i++) {
        q->alternatives[i].text = copy_text(p->alternatives[i].text);
        q->alternatives[i].bottleneck = copy_text(p->alternatives[i].bottleneck);
    }
    q->binds = copy_notes(p->binds, p->n_binds);
    q->changes = copy_notes(p->changes, p->n_changes);
    q->bars = copy_array(p->bars, p->n_bars, sizeof *p->bars);
    q->bar_rows = copy_array(p->bar_rows, p->n_bar_rows, sizeof *p->bar_rows);
    for (int32_t i = 0; q->bar_rows && i < q->n_bar_rows; i++)
        q->bar_rows[i] = copy_text(p->bar_rows[i]);
    return q;
}

/* ---- reading ---- */

/* Errors name the path of the key: what speaks of a member begins with ".key", what speaks of the thing itself with "
 * ", and whoever called puts the thing's own place in front. */

/* From json.h's words ("'key' is missing"). */
static yk_err of_member(struct yk_diag *why, yk_err err)
{
    char *end = err && why && why->text[0] == '\'' ? strchr(why->text + 1, '\'') : NULL;
    if (end) {
        why->text[0] = '.';
        memmove(end, end + 1, strlen(end));
    }
    return err == YK_NOTFOUND ? YK_INVAL : err;
}

static yk_err at_place(struct yk_diag *why, yk_err err, const char *list, size_t i)
{
    char text[sizeof why->text];
    if (why) {
        memcpy(text, why->text, sizeof text);
        yk_fail(why, err, ".%s[%zu]%.900s", list, i, text);
    }
    return err;
}

/* A required array with a bound on its length. */
static yk_err get_array(
    const struct json *o, const char *key, bool required, size_t most, const struct json **out, struct yk_diag *why)
{
    const struct json *a = json_find(o, key);
    *out = a && json_kind(a) != JSON_NULL ? a : NULL;
    if (!*out)
        return required ? yk_fail(why, YK_INVAL, ".%s is missing", key) : YK_OK;
    if (json_kind(a) != JSON_ARRAY)
        return yk_fail(why, YK_INVAL, ".%s is not an array", key);
    if (json_len(a) > most)
        return yk_fail(why, YK_LIMIT, ".%s has %zu items; the limit is %zu", key, json_len(a), most);
    return YK_OK;
}

static yk_err read_nodes(const struct json *j, struct plan_stage *s, struct yk_diag *why)
{
    const struct json *nodes;
    yk_err err = get_array(j, "nodes", true, MAX_RANGES, &nodes, why);
    if (err)
        return err;
    if (json_len(nodes) == 0)
        return yk_fail(why, YK_INVAL, ".nodes is empty: a stage has at least one node");
    s->nodes = yk_xalloc(json_len(nodes) * sizeof *s->nodes);
    for (size_t i = 0; i < json_len(nodes); i++) {
        const struct json *r = json_at(nodes, i), *a = json_at(r, 0), *b = json_at(r, 1);
        if (json_kind(r) != JSON_ARRAY || json_len(r) != 2 || json_kind(a) != JSON_INT || json_kind(b) != JSON_INT)
            return yk_fail(why, YK_INVAL, ".nodes[%zu] is not [first, last]", i);
        int64_t first = json_i64(a, -1), last = json_i64(b, -1);
        if (first < 0 || last < first || last > INT32_MAX - 1)
            return yk_fail(why, YK_INVAL, ".nodes[%zu] is [%lld, %lld]: first from 0, last not before it", i,
                (long long)first, (long long)last);
        struct cut_range *before = s->n_nodes ? &s->nodes[s->n_nodes - 1] : NULL;
        if (before && first <= before->last)
            return yk_fail(
                why, YK_INVAL, ".nodes[%zu] begins at %lld, not behind the range before it", i, (long long)first);
        if (before && first == before->last + 1)
            before->last = (int32_t)last; /* touching ranges are one */
        else
            s->nodes[s->n_nodes++] = (struct cut_range){(int32_t)first, (int32_t)last};
    }
    return YK_OK;
}

static yk_err read_stage(const struct json *j, struct plan_stage *s, struct yk_diag *why)
{
    const char *agent = NULL;
    if (json_kind(j) != JSON_OBJECT)
        return yk_fail(why, YK_INVAL, " is not an object");
    yk_err err = json_get_str(j, "agent", true, &agent, why);
    if (err)
        return of_member(why, err);
    s->agent = yk_xstrdup(agent);
    return read_nodes(j, s, why);
}

static yk_err read_pipeline(const struct json *j, struct plan_pipeline *p, struct yk_diag *why)
{
    const struct json *stages;
    const char *order = order_names[0];
    int64_t depth = 1;
    if (json_kind(j) != JSON_OBJECT)
        return yk_fail(why, YK_INVAL, " is not an object");
    p->share = 1;
    yk_err err = json_get_f64(j, "share", false, 0, 1, &p->share, why);
    if (!err)
        err = json_get_i64(j, "depth", false, 1, PLAN_MAX_DEPTH, &depth, why);
    if (!err)
        err = json_get_str(j, "order", false, &order, why);
    err = of_member(why, err);
    if (!err)
        err = get_array(j, "stages", true, MAX_STAGES, &stages, why);
    if (err)
        return err;
    p->depth = (int32_t)depth;
    if (strcmp(order, order_names[1]) == 0)
        p->order = ORDER_BACKWARD_FIRST;
    else if (strcmp(order, order_names[0]) != 0)
        return yk_fail(why, YK_INVAL, ".order is forward-first or backward-first, not '%s'", order);
    if (json_len(stages) == 0)
        return yk_fail(why, YK_INVAL, ".stages is empty");
    p->stages = yk_xalloc(json_len(stages) * sizeof *p->stages);
    for (size_t i = 0; i < json_len(stages); i++) {
        p->n_stages++;
        if ((err = read_stage(json_at(stages, i), &p->stages[i], why)))
            return at_place(why, err, "stages", i);
    }
    return YK_OK;
}

static yk_err read_cut(const struct json *j, struct plan_cut *c, struct yk_diag *why)
{
    const char *codec = codec_names[0];
    int64_t pipeline = 0, from = 0, to = 0;
    if (json_kind(j) != JSON_OBJECT)
        return yk_fail(why, YK_INVAL, " is not an object");
    yk_err err = json_get_i64(j, "pipeline", false, 0, MAX_PIPELINES - 1, &pipeline, why);
    if (!err)
        err = json_get_i64(j, "from", true, -1, MAX_STAGES - 1, &from, why);
    if (!err)
        err = json_get_i64(j, "to", true, -1, MAX_STAGES - 1, &to, why);
    if (!err)
        err = json_get_str(j, "codec", false, &codec, why);
    if (err)
        return of_member(why, err);
    if (!plan_codec_find(codec, &c->codec))
        return yk_fail(why, YK_INVAL, ".codec is '%s', not one of fp32, fp16, int8", codec);
    c->pipeline = (int32_t)pipeline;
    c->from = (int32_t)from;
    c->to = (int32_t)to;
    return YK_OK;
}

static yk_err read_forms(const struct json *j, struct plan *p, struct yk_diag *why)
{
    const struct json *forms;
    yk_err err = get_array(j, "forms", false, MAX_FORMS, &forms, why);
    if (err || !forms)
        return err;
    p->n_forms = (int32_t)json_len(forms);
    p->forms = yk_xalloc(((size_t)p->n_forms + 1) * sizeof *p->forms);
    for (int32_t i = 0; i < p->n_forms; i++) {
        const char *form = json_str(json_at(forms, (size_t)i), NULL);
        if (!form)
            return yk_fail(why, YK_INVAL, ".forms[%d] is not text", i);
        if (strlen(form) > MAX_FORM || strpbrk(form, "\n\r"))
            return yk_fail(
                why, YK_INVAL, ".forms[%d] is not the name of a form: one line of at most %d bytes", i, MAX_FORM);
        p->forms[i] = yk_xstrdup(form);
    }
    return YK_OK;
}

static bool known_objective(const char *name)
{
    static const char *const names[] = {"latency", "throughput", "cloud-cost"};
    for (size_t i = 0; i < YK_COUNT(names); i++)
        if (strcmp(name, names[i]) == 0)
            return true;
    return false;
}

static yk_err read_plan(const struct json *j, struct plan *p, struct yk_diag *why)
{
    const char *model = "", *use = "infer", *hash = NULL;
    const struct json *graph, *lines, *cuts;
    const char *source = NULL, *objective = NULL;
    if (json_kind(j) != JSON_OBJECT)
        return yk_fail(why, YK_INVAL, "a JSON object is needed, what `yoke plan --json` printed");
    yk_err err = of_member(why, json_get_str(j, "model", false, &model, why));
    graph = json_find(j, "graph");
    if (!err && (!graph || json_kind(graph) != JSON_OBJECT))
        err = yk_fail(why, YK_INVAL, ".graph is missing: {\"use\", \"hash\"}");
    if (!err) {
        err = json_get_str(graph, "use", false, &use, why);
        if (!err)
            err = json_get_str(graph, "hash", true, &hash, why);
        if (of_member(why, err) && why) {
            char text[sizeof why->text];
            memcpy(text, why->text, sizeof text);
            err = yk_fail(why, of_member(NULL, err), ".graph%.900s", text);
        }
        err = of_member(NULL, err);
    }
    uint8_t bytes[32];
    if (!err && !yk_unhex(hash, 32, bytes))
        err = yk_fail(why, YK_INVAL, ".graph.hash is not 64 hex digits");
    if (!err)
        err = read_forms(j, p, why);
    if (!err)
        err = of_member(why, json_get_i64(j, "microbatch", true, 1, INT32_MAX, &p->microbatch, why));
    if (!err)
        err = of_member(why, json_get_i64(j, "batch", false, 1, MAX_BATCH, &p->batch, why));
    if (!err)
        err = of_member(why, json_get_str(j, "source", false, &source, why));
    if (!err)
        err = of_member(why, json_get_str(j, "objective", false, &objective, why));
    if (!err && objective && !known_objective(objective))
        err = yk_fail(why, YK_INVAL, ".objective is latency, throughput or cloud-cost, not '%.40s'", objective);
    if (!err)
        err = get_array(j, "pipelines", true, MAX_PIPELINES, &lines, why);
    if (!err && json_len(lines) == 0)
        err = yk_fail(why, YK_INVAL, ".pipelines is empty");
    if (!err)
        err = get_array(j, "cuts", false, MAX_CUTS, &cuts, why);
    if (err)
        return err;
    p->model = yk_xstrdup(model);
    p->graph_use = yk_xstrdup(use);
    p->source = copy_text(source);
    p->objective = copy_text(objective);
    yk_hex(bytes, 32, p->graph_hash);
    p->pipelines = yk_xalloc(json_len(lines) * sizeof *p->pipelines);
    for (size_t i = 0; i < json_len(lines); i++) {
        p->n_pipelines++;
        if ((err = read_pipeline(json_at(lines, i), &p->pipelines[i], why)))
            return at_place(why, err, "pipelines", i);
    }
    p->cuts = yk_xalloc((json_len(cuts) + 1) * sizeof *p->cuts);
    for (size_t i = 0; i < json_len(cuts); i++) {
        if ((err = read_cut(json_at(cuts, i), &p->cuts[i], why)))
            return at_place(why, err, "cuts", i);
        p->n_cuts++;
    }
    return YK_OK;
}

yk_err plan_from_json(const struct json *j, struct plan **out, struct yk_diag *why)
{
    struct plan *p = yk_xalloc(sizeof *p);
    yk_err err = read_plan(j, p, why);
    if (err)
        plan_free(p);
    else
        *out = p;
    if (err && why && why->text[0] == '.')
        memmove(why->text, why->text + 1, strlen(why->text));
    return err ? yk_wrap(why, err, "plan") : YK_OK;
}

/* ---- writing ---- */

static void put_str(struct json_out *o, const char *key, const char *v)
{
    json_put_key(o, key);
    json_put_str(o, v);
}

static void put_i64(struct json_out *o, const char *key, int64_t v)
{
    json_put_key(o, key);
    json_put_i64(o, v);
}

static void put_f64(struct json_out *o, const char *key, double v)
{
    json_put_key(o, key);
    json_put_f64(o, v);
}

static void put_open(struct json_out *o, const char *key, char bracket)
{
    json_put_key(o, key);
    json_open(o, bracket);
}

static void put_stage(struct json_out *o, const struct plan_stage *s)
{
    json_open(o, '{');
    put_str(o, "agent", s->agent);
    put_open(o, "nodes", '[');
    for (int32_t i = 0; i < s->n_nodes; i++) {
        json_open(o, '[');
        json_put_i64(o, s->nodes[i].first);
        json_put_i64(o, s->nodes[i].last);
        json_close(o, ']');
    }
    json_close(o, ']');
    put_i64(o, "memory_bytes", s->memory_bytes);
    put_f64(o, "predicted_ms", s->predicted_ms);
    put_f64(o, "load_ms", s->load_ms);
    json_put_key(o, "fetch_bytes");
    json_put_i64(o, s->fetch_bytes);
    put_str(o, "origin", s->origin);
    json_close(o, '}');
}

/* step: with what the best plan takes then. */
static void put_notes(
    struct json_out *o, const char *key, const struct plan_note *notes, int32_t n, bool step, double now_ms)
{
    put_open(o, key, '[');
    for (int32_t i = 0; i < n; i++) {
        json_open(o, '{');
        put_str(o, "kind", notes[i].kind);
        put_str(o, "text", notes[i].text);
        if (step && !isnan(notes[i].cloud_ms)) {
            put_f64(o, "cloud_ms", notes[i].cloud_ms);
        } else if (step) {
            put_f64(o, "step_ms", notes[i].step_ms);
            put_f64(o, "times_as_fast", notes[i].step_ms > 0 ? now_ms / notes[i].step_ms : NAN);
        }
        json_close(o, '}');
    }
    json_close(o, ']');
}

static void put_bars(struct json_out *o, const struct plan *p)
{
    put_open(o, "timeline", '{');
    put_i64(o, "microbatches", p->bar_microbatches);
    put_i64(o, "of_microbatches", p->all_microbatches);
    put_open(o, "rows", '[');
    for (int32_t i = 0; i < p->n_bar_rows; i++)
        json_put_str(o, p->bar_rows[i]);
    json_close(o, ']');
    put_open(o, "events", '[');
    for (int32_t i = 0; i < p->n_bars; i++) {
        const struct plan_bar *b = &p->bars[i];
        json_open(o, '{');
        put_i64(o, "row", b->row);
        put_str(o, "kind", b->kind);
        put_str(o, "label", b->label);
        put_str(o, "about", b->about);
        put_f64(o, "start_ms", b->start_ms);
        put_f64(o, "end_ms", b->end_ms);
        json_close(o, '}');
    }
    json_close(o, ']');
    json_close(o, '}');
}

void plan_to_json(const struct plan *p, struct json_out *o)
{
    json_open(o, '{');
    put_str(o, "model", p->model);
    put_open(o, "graph", '{');
    put_str(o, "use", p->graph_use);
    put_str(o, "hash", p->graph_hash);
    json_close(o, '}');
    put_i64(o, "microbatch", p->microbatch);
    put_open(o, "pipelines", '[');
    for (int32_t i = 0; i < p->n_pipelines; i++) {
        const struct plan_pipeline *line = &p->pipelines[i];
        json_open(o, '{');
        put_f64(o, "share", line->share);
        put_i64(o, "depth", line->depth);
        put_str(o, "order", order_names[line->order]);
        put_open(o, "stages", '[');
        for (int32_t k = 0; k < line->n_stages; k++)
            put_stage(o, &line->stages[k]);
        json_close(o, ']');
        json_close(o, '}');
    }
    json_close(o, ']');
    put_open(o, "cuts", '[');
    for (int32_t i = 0; i < p->n_cuts; i++) {
        const struct plan_cut *c = &p->cuts[i];
        json_open(o, '{');
        put_i64(o, "pipeline", c->pipeline);
        put_i64(o, "from", c->from);
        put_i64(o, "to", c->to);
        put_str(o, "codec", codec_names[c->codec]);
        put_i64(o, "bytes", c->bytes);
        put_f64(o, "predicted_ms", c->predicted_ms);
        put_str(o, "origin", c->origin);
        json_close(o, '}');
    }
    json_close(o, ']');
    if (p->forms) { /* where none are fixed there is no such key */
        put_open(o, "forms", '[');
        for (int32_t i = 0; i < p->n_forms; i++)
            json_put_str(o, p->forms[i]);
        json_close(o, ']');
    }
    put_open(o, "predicted", '{');
    put_f64(o, "step_ms", p->step_ms);
    put_f64(o, "cost_ms", p->cost_ms);
    put_f64(o, "cloud_ms", p->cloud_ms);
    put_str(o, "bottleneck", p->bottleneck);
    json_close(o, '}');
    put_f64(o, "bound_ms", p->bound_ms);
    put_f64(o, "gap", p->gap);
    put_str(o, "best_single", p->best_single);
    put_f64(o, "best_single_ms", p->best_single ? p->best_single_ms : NAN);
    put_str(o, "job", p->job);
    put_str(o, "objective", p->objective);
    put_str(o, "source", p->source);
    if (p->batch > 0)
        put_i64(o, "batch", p->batch);
    put_str(o, "solver", p->solver);
    put_f64(o, "solver_ms", p->solver_ms);
    if (p->forward_nodes > 0)
        put_i64(o, "forward_nodes", p->forward_nodes);
    put_open(o, "alternatives", '[');
    for (int32_t i = 0; i < p->n_alternatives; i++) {
        json_open(o, '{');
        put_str(o, "text", p->alternatives[i].text);
        put_f64(o, "step_ms", p->alternatives[i].step_ms);
        put_str(o, "bottleneck", p->alternatives[i].bottleneck);
        json_close(o, '}');
    }
    json_close(o, ']');
    put_str(o, "explanation", p->explanation);
    if (p->binds)
        put_notes(o, "binds", p->binds, p->n_binds, false, p->step_ms);
    if (p->changes)
        put_notes(o, "changes", p->changes, p->n_changes, true, p->step_ms);
    if (p->bar_rows)
        put_bars(o, p);
    json_close(o, '}');
}

enum plan_codec plan_codec_of(const struct plan *p, int32_t pipeline, int32_t from, int32_t to)
{
    for (int32_t i = 0; i < p->n_cuts; i++)
        if (p->cuts[i].pipeline == pipeline && p->cuts[i].from == from && p->cuts[i].to == to)
            return p->cuts[i].codec;
    return CODEC_FP32;
}
