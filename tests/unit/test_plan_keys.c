/* Plans as JSON: there and back, edited ones, and every way to write one that is wrong. */
#include "tests/unit/plan_fleet.h"

#define HASH "0101010101010101010101010101010101010101010101010101010101010101"
#define HEAD "{\"model\":\"m\",\"graph\":{\"use\":\"infer\",\"hash\":\"" HASH "\"},\"microbatch\":2,"
#define STAGE(agent, nodes) "{\"agent\":\"" agent "\",\"nodes\":" nodes "}"
#define LINE(stages) "{\"share\":1,\"depth\":2,\"stages\":[" stages "]}"
#define TWO STAGE("pc", "[[0,2]]") "," STAGE("phone", "[[3,5]]")

static yk_err read(const char *text, struct plan **out, struct yk_diag *why)
{
    struct json *j;
    *why = (struct yk_diag){0};
    if (json_parse(text, strlen(text), &j, why))
        fail_msg("the test's JSON is wrong: %s\n%s", why->text, text);
    yk_err err = plan_from_json(j, out, why);
    json_free(j);
    return err;
}

static struct plan *good(const char *text)
{
    struct plan *p = NULL;
    struct yk_diag why;
    if (read(text, &p, &why))
        fail_msg("%s\n%s", why.text, text);
    return p;
}

static void bad(const char *text, const char *key)
{
    struct plan *p = NULL;
    struct yk_diag why;
    yk_err err = read(text, &p, &why);
    if (!err || p)
        fail_msg("read: %s", text);
    if (!strstr(why.text, key))
        fail_msg("'%s' does not name %s", why.text, key);
}

static struct yk_buf text_of(const struct plan *p)
{
    struct yk_buf b = {0};
    struct json_out o;
    json_out_init(&o, &b, 2);
    plan_to_json(p, &o);
    yk_buf_add(&b, "", 1);
    assert_false(b.failed);
    return b;
}

static void there_and_back(void **state)
{
    (void)state;
    struct plan *p =
        good(HEAD "\"forms\":[\"a\",\"b\",\"\",\"c\",\"c\",\"c\"],\"pipelines\":[{\"share\":0.25,\"depth\":3,"
                  "\"order\":\"backward-first\",\"stages\":[" TWO
                  "]},{\"share\":0.75,\"stages\":[" STAGE("pc", "[[0,1],[4,5]]") "," STAGE("tab",
                      "[[2,3]]") "]}],"
                                 "\"cuts\":[{\"pipeline\":0,\"from\":0,\"to\":1,\"codec\":\"fp16\"},"
                                 "{\"pipeline\":1,\"from\":1,\"to\":0,\"codec\":\"int8\"},{\"from\":-1,\"to\":0}],"
                                 "\"predicted\":{\"step_ms\":\"nonsense\"},\"gap\":[],\"unknown\":7}");
    assert_string_equal(p->model, "m");
    assert_string_equal(p->graph_hash, HASH);
    assert_int_equal(p->microbatch, 2);
    assert_int_equal(p->n_forms, 6);
    assert_int_equal(p->n_pipelines, 2);
    assert_true(p->pipelines[0].share == 0.25);
    assert_int_equal(p->pipelines[0].depth, 3);
    assert_int_equal(p->pipelines[0].order, ORDER_BACKWARD_FIRST);
    assert_int_equal(p->pipelines[1].depth, 1);
    assert_int_equal(p->pipelines[1].order, ORDER_FORWARD_FIRST);
    assert_int_equal(p->pipelines[1].stages[0].n_nodes, 2);
    assert_int_equal(plan_codec_of(p, 0, 0, 1), CODEC_FP16);
    assert_int_equal(plan_codec_of(p, 1, 1, 0), CODEC_INT8);
    assert_int_equal(plan_codec_of(p, 0, -1, 0), CODEC_FP32);
    assert_int_equal(plan_codec_of(p, 1, 0, 1), CODEC_FP32);
    p->step_ms = 1.0 / 3;
    p->bottleneck = yk_xstrdup("link pc->phone");
    p->explanation = yk_xstrdup("\"why\"\n");
    p->alternatives = yk_xalloc(sizeof *p->alternatives);
    p->alternatives[0] = (struct plan_alternative){.text = yk_xstrdup("pc 0-5"), .step_ms = 2};
    p->n_alternatives = 1;
    struct plan *copy = plan_copy(p);
    struct yk_buf a = text_of(p), b = text_of(copy);
    assert_string_equal((char *)a.data, (char *)b.data);
    assert_non_null(strstr((char *)a.data, "0.3333333333333333"));
    struct plan *again = good((char *)a.data);
    assert_true(again->step_ms == 0 && !again->explanation); /* derived keys are written, not read */
    assert_int_equal(again->pipelines[0].order, ORDER_BACKWARD_FIRST);
    assert_int_equal(plan_codec_of(again, 1, 1, 0), CODEC_INT8);
    struct yk_buf c = text_of(again);
    struct plan *third = good((char *)c.data);
    struct yk_buf d = text_of(third);
    assert_string_equal((char *)c.data, (char *)d.data);
    yk_buf_free(&a);
    yk_buf_free(&b);
    yk_buf_free(&c);
    yk_buf_free(&d);
    plan_free(p);
    plan_free(copy);
    plan_free(again);
    plan_free(third);
    plan_free(NULL);
}

static void touching_ranges(void **state)
{
    (void)state;
    struct plan *p = good(HEAD "\"pipelines\":[" LINE(STAGE("pc", "[[0,1],[2,2],[3,4],[6,9]]")) "]}");
    assert_int_equal(p->pipelines[0].stages[0].n_nodes, 2);
    assert_int_equal(p->pipelines[0].stages[0].nodes[0].last, 4);
    assert_int_equal(p->pipelines[0].stages[0].nodes[1].first, 6);
    assert_null(p->forms);
    plan_free(p);
}

static void bad_keys(void **state)
{
    (void)state;
    bad("[]", "plan");
    bad("{}", "graph");
    bad("{\"model\":3}", "model");
    bad("{\"graph\":[]}", "graph");
    bad("{\"graph\":{}}", "graph.hash");
    bad("{\"graph\":{\"hash\":\"12\"}}", "graph.hash");
    bad("{\"graph\":{\"hash\":7}}", "hash");
    bad("{\"graph\":{\"use\":1,\"hash\":\"" HASH "\"}}", "use");
    bad("{\"graph\":{\"hash\":\"" HASH "\"}}", "microbatch");
    bad("{\"graph\":{\"hash\":\"" HASH "\"},\"microbatch\":0}", "microbatch");
    bad("{\"graph\":{\"hash\":\"" HASH "\"},\"microbatch\":1.5}", "microbatch");
    bad("{\"graph\":{\"hash\":\"" HASH "\"},\"microbatch\":1}", "pipelines");
    bad(HEAD "\"pipelines\":{}}", "pipelines");
    bad(HEAD "\"pipelines\":[]}", "pipelines");
    bad(HEAD "\"pipelines\":[3]}", "pipelines[0]");
    bad(HEAD "\"pipelines\":[{}]}", "pipelines[0].stages");
    bad(HEAD "\"pipelines\":[{\"stages\":[]}]}", "pipelines[0].stages");
    bad(HEAD "\"pipelines\":[{\"stages\":[1]}]}", "pipelines[0].stages[0]");
    bad(HEAD "\"pipelines\":[" LINE(TWO) ",{\"share\":1.5,\"stages\":[" TWO "]}]}", "pipelines[1].share");
    bad(HEAD "\"pipelines\":[{\"share\":\"all\",\"stages\":[" TWO "]}]}", "pipelines[0].share");
    bad(HEAD "\"pipelines\":[{\"depth\":0,\"stages\":[" TWO "]}]}", "pipelines[0].depth");
    bad(HEAD "\"pipelines\":[{\"order\":\"sideways\",\"stages\":[" TWO "]}]}", "pipelines[0].order");
    bad(HEAD "\"pipelines\":[" LINE("{\"nodes\":[[0,1]]}") "]}", "pipelines[0].stages[0].agent");
    bad(HEAD "\"pipelines\":[" LINE("{\"agent\":5,\"nodes\":[[0,1]]}") "]}", "pipelines[0].stages[0].agent");
    bad(HEAD "\"pipelines\":[" LINE(TWO ",{\"agent\":\"x\"}") "]}", "pipelines[0].stages[2].nodes");
    static const char *const nodes[] = {"[]", "{}", "[3]", "[[0]]", "[[0,1,2]]", "[[0,\"1\"]]", "[[-1,1]]", "[[2,1]]",
        "[[0,4000000000]]", "[[3,4],[0,1]]", "[[0,3],[3,4]]", "[[0,1.5]]"};
    for (size_t i = 0; i < YK_COUNT(nodes); i++) {
        char text[600];
        snprintf(text, sizeof text, "%s\"pipelines\":[{\"stages\":[%s,{\"agent\":\"x\",\"nodes\":%s}]}]}", HEAD,
            STAGE("pc", "[[0,1]]"), nodes[i]);
        bad(text, "pipelines[0].stages[1].nodes");
    }
#define CUTS(x) HEAD "\"pipelines\":[" LINE(TWO) "],\"cuts\":" x "}"
    bad(CUTS("{}"), "cuts");
    bad(CUTS("[1]"), "cuts[0]");
    bad(CUTS("[{\"from\":0,\"to\":1},{\"to\":1}]"), "cuts[1].from");
    bad(CUTS("[{\"from\":0}]"), "cuts[0].to");
    bad(CUTS("[{\"from\":-2,\"to\":1}]"), "cuts[0].from");
    bad(CUTS("[{\"from\":0,\"to\":1,\"pipeline\":-1}]"), "cuts[0].pipeline");
    bad(CUTS("[{\"from\":0,\"to\":1,\"codec\":\"zip\"}]"), "cuts[0].codec");
    bad(HEAD "\"forms\":3,\"pipelines\":[" LINE(TWO) "]}", "forms");
    bad(HEAD "\"forms\":[\"a\",\"b\\nc\"],\"pipelines\":[" LINE(TWO) "]}", "forms[1]");
    bad(HEAD "\"batch\":-1,\"pipelines\":[" LINE(TWO) "]}", "batch");
    bad(HEAD "\"batch\":\"\",\"pipelines\":[" LINE(TWO) "]}", "batch");
    bad(HEAD "\"objective\":\"foo\",\"pipelines\":[" LINE(TWO) "]}", "foo");
    bad(HEAD "\"source\":7,\"pipelines\":[" LINE(TWO) "]}", "source");
    bad("null", "JSON object");
    bad("[]", "JSON object");
    bad(HEAD "\"forms\":[\"a\",3],\"pipelines\":[" LINE(TWO) "]}", "forms[1]");
}

static void check(struct graph *g, const char *text, const char *words)
{
    struct shapes s;
    struct yk_diag why = {0};
    struct plan *p = good(text);
    assert_int_equal(shapes_infer(g, (const int64_t[]){2}, NULL, &s, NULL), YK_OK);
    yk_err err = plan_check(p, g, &s, &why);
    if (!words && err)
        fail_msg("%s\n%s", why.text, text);
    if (words && (!err || !strstr(why.text, words)))
        fail_msg("%s: '%s' does not say '%s'\n%s", yk_err_text(err), why.text, words, text);
    shapes_fini(&s);
    plan_free(p);
}

static void checked_against_the_graph(void **state)
{
    (void)state;
    struct graph *g = pf_chain(6, 8);
    memset(g->hash, 1, 32);
    g->has_hash = true;
#define PLAN(stages) HEAD "\"pipelines\":[" LINE(stages) "]}"
    check(g, PLAN(TWO), NULL);
    check(g, PLAN(STAGE("pc", "[[0,5]]")), NULL);
    check(g, PLAN(STAGE("pc", "[[0,3]]") "," STAGE("phone", "[[3,5]]")), "node 3 is in stages 0 and 1");
    check(g, PLAN(STAGE("pc", "[[0,1]]") "," STAGE("phone", "[[3,5]]")), "node 2 is in no stage");
    check(g, PLAN(STAGE("pc", "[[0,6]]")), "names node 6");
    check(g, PLAN(STAGE("pc", "[[0,1],[4,5]]") "," STAGE("phone", "[[2,3]]")), "pipelines[0]"); /* a cycle */
    check(g, CUTS("[{\"from\":0,\"to\":1},{\"from\":-1,\"to\":0},{\"from\":1,\"to\":-1}]"), NULL);
    /* fp32 of what is no cut (any more) says nothing, other codecs do; once is enough, and twice the same is no other
     */
    check(g, CUTS("[{\"from\":1,\"to\":0},{\"from\":7,\"to\":8},{\"from\":0,\"to\":1,\"pipeline\":1}]"), NULL);
    check(g, CUTS("[{\"from\":0,\"to\":1,\"codec\":\"fp16\"},{\"from\":0,\"to\":1,\"codec\":\"fp16\"}]"), NULL);
    check(g, CUTS("[{\"from\":1,\"to\":0,\"codec\":\"fp16\"}]"), "cuts[0] names codec fp16");
    check(g, CUTS("[{\"from\":7,\"to\":8,\"codec\":\"int8\"}]"), "leave it out, or all of \"cuts\"");
    check(g, CUTS("[{\"from\":0,\"to\":1},{\"from\":0,\"to\":1,\"codec\":\"fp16\",\"pipeline\":1}]"), "pipeline 1");
    check(g, CUTS("[{\"from\":0,\"to\":1},{\"from\":0,\"to\":1,\"codec\":\"fp16\"}]"), "cuts[1]"); /* which one? */
    check(g, HEAD "\"forms\":[\"a\"],\"pipelines\":[" LINE(TWO) "]}", "1 forms");
    check(g, HEAD "\"forms\":[],\"pipelines\":[" LINE(TWO) "]}", "0 forms");
    check(g, HEAD "\"pipelines\":[{\"share\":1,\"stages\":[" TWO "]},{\"share\":0,\"stages\":[" TWO "]}]}",
        "pipelines[1].share");
    check(g, HEAD "\"pipelines\":[{\"share\":0.5,\"stages\":[" TWO "]},{\"share\":0.4,\"stages\":[" TWO "]}]}", "0.9");
    check(g, HEAD "\"pipelines\":[{\"share\":0.5,\"stages\":[" TWO "]},{\"share\":0.5,\"stages\":[" TWO "]}]}", NULL);
    g->hash[31] = 2;
    check(g, PLAN(TWO), "plan it again");
    g->hash[31] = 1;
    struct plan *p = good(PLAN(TWO)); /* made by a program */
    struct shapes s;
    struct yk_diag why = {0};
    assert_int_equal(shapes_infer(g, (const int64_t[]){2}, NULL, &s, NULL), YK_OK);
    p->microbatch = 0;
    assert_int_equal(plan_check(p, g, &s, &why), YK_INVAL);
    assert_non_null(strstr(why.text, "microbatch"));
    shapes_fini(&s);
    plan_free(p);
    graph_close(g);
}

static void fixed_batch(void **state)
{
    (void)state;
    struct graph *g = fx_open();
    int32_t x = fx_input(g, "x", DT_F32, (const int64_t[]){3, 8}, 2);
    fx_output(g, fx_node(g, "Relu", "y", IDS(x)));
    check(g, HEAD "\"pipelines\":[" LINE(STAGE("pc", "[[0,0]]")) "]}", "the model takes 3 only");
    graph_close(g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(there_and_back),
        cmocka_unit_test(touching_ranges),
        cmocka_unit_test(bad_keys),
        cmocka_unit_test(checked_against_the_graph),
        cmocka_unit_test(fixed_batch),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
