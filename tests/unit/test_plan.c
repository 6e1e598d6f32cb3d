/* Plans as JSON: what is printed reads back the same, edits count, every bad key is named with its path; and plans
 * against their graph. */
#include <stdio.h>
#include <stdlib.h>

#include "common/plan.h"
#include "tests/unit/graph_fixture.h"

#define HASH "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff"
#define GRAPH "\"graph\": {\"use\": \"infer\", \"hash\": \"" HASH "\"}"

/* Every input key, two pipelines, a stage of two ranges. */
static const char *const base =
    "{\"model\": \"m\", " GRAPH ", \"forms\": [\"a@x\", \"b@x\", \"c@x\", \"d@x\"], \"microbatch\": 4,"
    " \"pipelines\": [{\"share\": 0.75, \"depth\": 3, \"order\": \"backward-first\", \"stages\": ["
    "{\"agent\": \"pc\", \"nodes\": [[0, 1], [3, 3]]}, {\"agent\": \"phone\", \"nodes\": [[2, 2]]}]},"
    " {\"share\": 0.25, \"depth\": 1, \"order\": \"forward-first\", \"stages\": ["
    "{\"agent\": \"pad\", \"nodes\": [[0, 3]]}]}],"
    " \"cuts\": [{\"pipeline\": 0, \"from\": 0, \"to\": 1, \"codec\": \"fp16\"},"
    " {\"pipeline\": 1, \"from\": -1, \"to\": 0, \"codec\": \"fp32\"}]}";

static yk_err read_text(const char *text, struct plan **out, struct yk_diag *why)
{
    struct json *doc = NULL;
    if (json_parse(text, strlen(text), &doc, why) != YK_OK)
        fail_msg("%s in %s", why->text, text);
    yk_err err = plan_from_json(doc, out, why);
    json_free(doc);
    return err;
}

static struct plan *read_good(const char *text)
{
    struct plan *p = NULL;
    struct yk_diag why = {0};
    if (read_text(text, &p, &why) != YK_OK)
        fail_msg("%s", why.text);
    return p;
}

static char *write_text(const struct plan *p)
{
    struct yk_buf b = {0};
    struct json_out o;
    json_out_init(&o, &b, 0);
    plan_to_json(p, &o);
    yk_buf_add(&b, "", 1);
    assert_false(b.failed);
    return (char *)b.data;
}

/* text with the first `from` replaced; free it. */
static char *replaced(const char *text, const char *from, const char *to)
{
    const char *at = strstr(text, from);
    struct yk_buf b = {0};
    if (!at)
        fail_msg("no '%s' in the plan", from);
    yk_buf_printf(&b, "%.*s%s%s", (int)(at - text), text, to, at + strlen(from));
    yk_buf_add(&b, "", 1);
    assert_false(b.failed);
    return (char *)b.data;
}

static void reads(void **state)
{
    (void)state;
    struct plan *p = read_good(base);
    assert_string_equal(p->model, "m");
    assert_string_equal(p->graph_use, "infer");
    assert_string_equal(p->graph_hash, HASH);
    assert_int_equal(p->n_forms, 4);
    assert_string_equal(p->forms[3], "d@x");
    assert_int_equal(p->microbatch, 4);
    assert_int_equal(p->n_pipelines, 2);
    const struct plan_pipeline *line = &p->pipelines[0];
    assert_true(line->share == 0.75 && line->depth == 3 && line->order == ORDER_BACKWARD_FIRST);
    assert_int_equal(line->n_stages, 2);
    assert_string_equal(line->stages[0].agent, "pc");
    assert_int_equal(line->stages[0].n_nodes, 2);
    assert_true(line->stages[0].nodes[1].first == 3 && line->stages[0].nodes[1].last == 3);
    assert_int_equal(p->n_cuts, 2);
    assert_int_equal(plan_codec_of(p, 0, 0, 1), CODEC_FP16);
    assert_int_equal(plan_codec_of(p, 0, 1, 0), CODEC_FP32); /* not named */
    assert_int_equal(plan_codec_of(p, 1, -1, 0), CODEC_FP32);
    plan_free(p);
    plan_free(NULL);
}

static void defaults(void **state)
{
    (void)state;
    struct plan *p = read_good("{" GRAPH ", \"microbatch\": 1, \"cuts\": [{\"from\": 0, \"to\": -1}],"
                               " \"pipelines\": [{\"stages\": [{\"agent\": \"a\", \"nodes\": [[0, 1], [2, 5]]}]}]}");
    assert_true(p->pipelines[0].share == 1 && p->pipelines[0].depth == 1);
    assert_int_equal(p->pipelines[0].order, ORDER_FORWARD_FIRST);
    assert_null(p->forms);
    assert_int_equal(p->pipelines[0].stages[0].n_nodes, 1); /* touching ranges are one */
    assert_int_equal(p->pipelines[0].stages[0].nodes[0].last, 5);
    assert_true(p->cuts[0].pipeline == 0 && p->cuts[0].codec == CODEC_FP32);
    plan_free(p);
}

/* Derived keys are written, and whatever they say when read is ignored: also nonsense. */
static void derived(void **state)
{
    (void)state;
    char *text = replaced(base, "\"microbatch\"",
        "\"predicted\": 7, \"bound_ms\": \"x\", \"gap\": [], \"best_single\": {}, \"alternatives\": 1,"
        " \"explanation\": 3, \"unheard\": null, \"microbatch\"");
    struct plan *p = read_good(text);
    assert_true(p->step_ms == 0 && !p->best_single && p->n_alternatives == 0);
    free(text);
    text = write_text(p);
    struct json *doc = NULL;
    assert_int_equal(json_parse(text, strlen(text), &doc, NULL), YK_OK);
    static const char *const keys[] = {"model", "graph", "forms", "microbatch", "pipelines", "cuts", "predicted",
        "bound_ms", "gap", "best_single", "solver", "solver_ms", "alternatives"};
    for (size_t i = 0; i < YK_COUNT(keys); i++)
        if (!json_find(doc, keys[i]))
            fail_msg("%s is not written", keys[i]);
    assert_int_equal(json_kind(json_find(doc, "best_single")), JSON_NULL); /* fits nowhere alone */
    const struct json *predicted = json_find(doc, "predicted");
    assert_true(
        json_find(predicted, "step_ms") && json_find(predicted, "cost_ms") && json_find(predicted, "bottleneck"));
    const struct json *stage = json_at(json_find(json_at(json_find(doc, "pipelines"), 0), "stages"), 0);
    assert_true(json_find(stage, "memory_bytes") && json_find(stage, "predicted_ms"));
    assert_non_null(json_find(json_at(json_find(doc, "cuts"), 0), "bytes"));
    json_free(doc);
    free(text);
    plan_free(p);
}

static void round_trip(void **state)
{
    (void)state;
    struct plan *p = read_good(base);
    p->step_ms = 0.1 + 0.2; /* derived numbers, also ugly ones */
    p->best_single = yk_xstrdup("pc \"quoted\"\n");
    p->best_single_ms = 1e-9;
    p->explanation = yk_xstrdup("two\nlines");
    p->alternatives = yk_xalloc(sizeof *p->alternatives);
    p->alternatives[p->n_alternatives++] =
        (struct plan_alternative){yk_xstrdup("pc 0-3"), 12.5, yk_xstrdup("agent pc")};
    p->pipelines[0].stages[0].memory_bytes = INT64_MAX;
    char *first = write_text(p);
    struct plan *copy = plan_copy(p);
    char *of_copy = write_text(copy);
    assert_string_equal(first, of_copy);
    plan_free(p); /* the copy owns all of its own */
    free(of_copy);
    of_copy = write_text(copy);
    assert_string_equal(first, of_copy);

    struct plan *again = read_good(first), *third;
    char *inputs = write_text(again); /* without the derived ones */
    third = read_good(inputs);
    char *fixed = write_text(third);
    assert_string_equal(inputs, fixed);
    assert_true(again->pipelines[0].share == 0.75 && again->n_cuts == 2 && again->n_forms == 4);
    plan_free(copy);
    plan_free(again);
    plan_free(third);
    free(first);
    free(of_copy);
    free(inputs);
    free(fixed);
}

static void bad_keys(void **state)
{
    (void)state;
    static const struct {
        const char *from, *to, *says[2];
    } bad[] = {
        {"\"model\": \"m\"", "\"model\": 5", {"model"}},
        {GRAPH, "\"grap\": 1", {"graph"}},
        {GRAPH, "\"graph\": \"" HASH "\"", {"graph"}},
        {"\"use\": \"infer\"", "\"use\": 1", {"use"}},
        {"\"hash\": \"" HASH "\"", "\"hash\": \"00112233\"", {"graph.hash", "64"}},
        {"\"hash\": \"" HASH "\"", "\"hash\": 7", {"hash"}},
        {"\"hash\": \"" HASH "\"", "\"x\": 7", {"graph.hash"}},
        {"\"microbatch\": 4", "\"microbatch\": 0", {"microbatch", "0"}},
        {"\"microbatch\": 4", "\"microbatch\": -4", {"microbatch"}},
        {"\"microbatch\": 4", "\"microbatch\": 1.5", {"microbatch"}},
        {"\"microbatch\": 4", "\"microbatch\": 99999999999", {"microbatch"}},
        {"\"microbatch\": 4,", "", {"microbatch"}},
        {"\"b@x\"", "1", {"forms[1]"}},
        {"[\"a@x\", \"b@x\", \"c@x\", \"d@x\"]", "{}", {"forms"}},
        {"\"pipelines\"", "\"pipeline\"", {"pipelines"}},
        {"\"cuts\": [", "\"cuts\": 1, \"c\": [", {"cuts"}},
        {"\"share\": 0.75", "\"share\": 1.5", {"pipelines[0]", "share"}},
        {"\"share\": 0.25", "\"share\": -0.25", {"pipelines[1]", "share"}},
        {"\"share\": 0.25", "\"share\": \"all\"", {"pipelines[1]", "share"}},
        {"\"depth\": 3", "\"depth\": 0", {"pipelines[0]", "depth"}},
        {"\"depth\": 3", "\"depth\": 1e9", {"pipelines[0]", "depth"}},
        {"backward-first", "sideways", {"pipelines[0]", "sideways"}},
        {"\"agent\": \"phone\", ", "", {"pipelines[0]", "stages[1]"}},
        {"\"agent\": \"pad\"", "\"agent\": null", {"pipelines[1]", "stages[0]"}},
        {"[[2, 2]]", "[]", {"stages[1]", "nodes"}},
        {"[[2, 2]]", "2", {"stages[1]", "nodes"}},
        {"[[2, 2]]", "[[2]]", {"stages[1]", "nodes[0]"}},
        {"[[2, 2]]", "[[2, 2, 2]]", {"stages[1]", "nodes[0]"}},
        {"[[2, 2]]", "[2, 2]", {"stages[1]", "nodes[0]"}},
        {"[[2, 2]]", "[[2, 1]]", {"stages[1]", "nodes[0]"}},
        {"[[2, 2]]", "[[-1, 2]]", {"stages[1]", "nodes[0]"}},
        {"[[2, 2]]", "[[2, 2147483647]]", {"stages[1]", "nodes[0]"}},
        {"[[2, 2]]", "[[2, \"3\"]]", {"stages[1]", "nodes[0]"}},
        {"[3, 3]", "[1, 3]", {"stages[0]", "nodes[1]"}},
        {"[0, 1], [3, 3]", "[3, 3], [0, 1]", {"stages[0]", "nodes[1]"}},
        {"{\"pipeline\": 0, \"from\": 0", "{\"pipeline\": -1, \"from\": 0", {"cuts[0]", "pipeline"}},
        {"\"from\": -1", "\"from\": -2", {"cuts[1]", "from"}},
        {"\"from\": 0, \"to\": 1", "\"from\": 0", {"cuts[0]", "to"}},
        {"\"fp16\"", "\"fp8\"", {"cuts[0]", "fp8"}},
        {"\"fp16\"", "16", {"cuts[0]", "codec"}},
        {"{\"agent\": \"pad\", \"nodes\": [[0, 3]]}", "7", {"pipelines[1]", "stages[0]"}},
        {"{\"agent\": \"pad\", \"nodes\": [[0, 3]]}", "", {"pipelines[1]", "stages"}},
    };
    for (size_t i = 0; i < YK_COUNT(bad); i++) {
        char *text = replaced(base, bad[i].from, bad[i].to);
        struct plan *p = NULL;
        struct yk_diag why = {0};
        yk_err err = read_text(text, &p, &why);
        if (err != YK_INVAL && err != YK_LIMIT)
            fail_msg("%s -> %s: %s %s", bad[i].from, bad[i].to, yk_err_text(err), why.text);
        assert_null(p);
        for (int k = 0; k < 2 && bad[i].says[k]; k++)
            if (!strstr(why.text, bad[i].says[k]))
                fail_msg("%s -> %s: '%s' does not name %s", bad[i].from, bad[i].to, why.text, bad[i].says[k]);
        free(text);
    }
    static const char *const whole[] = {"[]", "null", "7", "\"plan\"", "{}"};
    for (size_t i = 0; i < YK_COUNT(whole); i++) {
        struct plan *p = NULL;
        struct yk_diag why = {0};
        assert_int_equal(read_text(whole[i], &p, &why), YK_INVAL);
        assert_true(why.text[0]);
    }
}

/* ---- against the graph ---- */

/* x -> a -> b -> c -> d, with a skip from a to d; d is the output. */
static struct graph *skip_graph(struct shapes *s)
{
    struct graph *g = fx_open();
    assert_int_equal(graph_sym(g, "N"), 0);
    int32_t x = fx_input(g, "x", DT_F32, (const int64_t[]){-1, 8}, 2);
    int32_t a = fx_node(g, "Relu", "a", IDS(x)), b = fx_node(g, "Relu", "b", IDS(a));
    int32_t c = fx_node(g, "Relu", "c", IDS(b));
    fx_output(g, fx_node(g, "Add", "d", IDS(c, a)));
    assert_true(yk_unhex(HASH, 32, g->hash));
    g->has_hash = true;
    assert_int_equal(shapes_infer(g, (const int64_t[]){4}, NULL, s, NULL), YK_OK);
    return g;
}

#define BENT "[[0, 1], [3, 3]]}, {\"agent\": \"phone\", \"nodes\": [[2, 2]]}"
#define STRAIGHT "[[0, 1]]}, {\"agent\": \"phone\", \"nodes\": [[2, 3]]}"

/* The base plan with `stages` for its first pipeline and one more edit. */
static void check_says(const char *stages, const char *from, const char *to, yk_err want, const char *says)
{
    struct shapes s;
    struct yk_diag why = {0};
    struct graph *g = skip_graph(&s);
    char *staged = replaced(base, BENT, stages), *text = replaced(staged, from, to);
    struct plan *p = read_good(text);
    yk_err err = plan_check(p, g, &s, &why);
    if (err != want || (says && !strstr(why.text, says)))
        fail_msg("%s: %s, '%s' should say %s", text, yk_err_text(err), why.text, says ? says : "nothing");
    plan_free(p);
    free(staged);
    free(text);
    shapes_fini(&s);
    graph_close(g);
}

static void checks_stages(void **state)
{
    (void)state;
    /* Node 2 alone on another device between nodes of one stage: the stages wait for each other. */
    check_says(BENT, "m", "m", YK_INVAL, "pipelines[0]");
    check_says(STRAIGHT, "m", "m", YK_OK, NULL);
    /* U-shaped: the first and the last stage on one agent */
    check_says("[[0, 1]]}, {\"agent\": \"phone\", \"nodes\": [[2, 2]]}, {\"agent\": \"pc\", \"nodes\": [[3, 3]]}", "m",
        "m", YK_OK, NULL);
    check_says("[[0, 1]]}, {\"agent\": \"phone\", \"nodes\": [[3, 3]]}", "m", "m", YK_INVAL, "node 2 is in no stage");
    check_says(
        "[[0, 2]]}, {\"agent\": \"phone\", \"nodes\": [[2, 3]]}", "m", "m", YK_INVAL, "node 2 is in stages 0 and 1");
    check_says("[[0, 1]]}, {\"agent\": \"phone\", \"nodes\": [[2, 4]]}", "m", "m", YK_INVAL, "node 4");
}

static void checks_edits(void **state)
{
    (void)state;
    check_says(STRAIGHT, ", \"d@x\"", "", YK_INVAL, "3 forms");
    check_says(STRAIGHT, "\"share\": 0.25", "\"share\": 0.5", YK_INVAL, "1.25");
    check_says(STRAIGHT, "\"hash\": \"00", "\"hash\": \"01", YK_INVAL, "plan it again");
    check_says(STRAIGHT, "\"from\": 0, \"to\": 1", "\"from\": 1, \"to\": 0", YK_INVAL, "cuts[0]");
    check_says(STRAIGHT, "{\"pipeline\": 0, \"from\": 0", "{\"pipeline\": 2, \"from\": 0", YK_INVAL, "cuts[0]");
    check_says(STRAIGHT, "{\"pipeline\": 1", "{\"pipeline\": 2", YK_OK, NULL); /* fp32 */
    check_says(STRAIGHT, "{\"pipeline\": 0, \"from\": 0, \"to\": 1", "{\"pipeline\": 0, \"from\": -1, \"to\": 1",
        YK_INVAL, "cuts[0]"); /* the second stage reads no input of the graph */
    check_says(STRAIGHT, "{\"pipeline\": 0, \"from\": 0, \"to\": 1", "{\"pipeline\": 0, \"from\": 1, \"to\": -1", YK_OK,
        NULL); /* the output goes back to the source */
}

static void fixed_batch(void **state)
{
    (void)state;
    struct shapes s;
    struct yk_diag why = {0};
    struct graph *g = fx_open();
    int32_t v = fx_input(g, "x", DT_F32, (const int64_t[]){2, 8}, 2);
    for (int i = 0; i < 4; i++) {
        char name[16];
        snprintf(name, sizeof name, "v%d", i);
        v = fx_node(g, "Relu", name, IDS(v));
    }
    fx_output(g, v);
    assert_int_equal(shapes_infer(g, NULL, NULL, &s, NULL), YK_OK);
    char *text = replaced(base, BENT, STRAIGHT);
    struct plan *p = read_good(text);
    assert_int_equal(plan_check(p, g, &s, &why), YK_INVAL); /* the graph has no hash, so that one is not compared */
    assert_non_null(strstr(why.text, "microbatch is 4, the model takes 2"));
    p->microbatch = 2;
    assert_int_equal(plan_check(p, g, &s, &why), YK_OK);
    plan_free(p);
    free(text);
    shapes_fini(&s);
    graph_close(g);
}

static void names(void **state)
{
    (void)state;
    enum plan_codec c;
    for (int i = 0; i < 3; i++) {
        assert_true(plan_codec_find(plan_codec_name((enum plan_codec)i), &c));
        assert_int_equal(c, i);
    }
    assert_false(plan_codec_find("FP16", &c));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reads),
        cmocka_unit_test(defaults),
        cmocka_unit_test(derived),
        cmocka_unit_test(round_trip),
        cmocka_unit_test(bad_keys),
        cmocka_unit_test(checks_stages),
        cmocka_unit_test(checks_edits),
        cmocka_unit_test(fixed_batch),
        cmocka_unit_test(names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
