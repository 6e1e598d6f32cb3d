/* A plan says of its stages the memory that agents then take. */
#include "tests/sim/train_site.h"

#include "agent/pipeline.h"
#include "scheduler/held.h"
#include "scheduler/sched_priv.h"

/* Of the plan, as the planner sees it: bytes by agent. */
static void planned(struct site *s, const char *plan, int64_t by_agent[SITE_AGENTS])
{
    char *request = site_request(s, "m", "", plan);
    sched_plan(s->h->s, request, strlen(request), on_text, s->h);
    wait_answer(s->h, 60000);
    struct json *doc = answer_json(s->h);
    const struct json *stages = json_find(json_at(json_find(doc, "pipelines"), 0), "stages");
    memset(by_agent, 0, SITE_AGENTS * sizeof *by_agent);
    for (size_t i = 0; i < json_len(stages); i++) {
        const char *name = json_str(json_find(json_at(stages, i), "agent"), "");
        by_agent[name[1] - '0'] += json_i64(json_find(json_at(stages, i), "memory_bytes"), 0);
    }
    json_free(doc);
    free(request);
}

static void check(struct site *s, const struct site_stage *stages, int n, int depth)
{
    int64_t want[SITE_AGENTS];
    char *plan = site_plan(s, stages, n, depth);
    struct site_result got;
    planned(s, plan, want);
    int64_t id = site_submit(s, "m", "set", plan);
    for (int ms = 0; ms < 60000 && site_steps(s, id) < 2; ms += 10)
        run_ms(s->h, 10);
    /* Workspace is known of the profiled sizes, of which 8 is one: between them that of the larger is planned. */
    double over = s->microbatch == 8 ? 1.1 : 1.5;
    bool source_only = true;
    for (int i = 0; i < n; i++)
        source_only = source_only && stages[i].agent != 0;
    for (int a = 0; a < s->n_agents; a++) {
        const struct pipeline *p = s->agent[a]->pipelines;
        if (!want[a] || (a == 0 && source_only))
            continue;
        assert_non_null(p);
        if ((double)p->memory_bytes > 1.1 * (double)want[a] || (double)want[a] > over * (double)p->memory_bytes + 4096)
            fail_msg("a%d holds %lld bytes, %lld are planned (%d stages, depth %d)", a, (long long)p->memory_bytes,
                (long long)want[a], n, depth);
    }
    assert_true(site_wait(s, id, &got));
    free(plan);
}

static void stages_take_what_is_planned(void **state)
{
    (void)state;
    struct site *s = site_open(4);
    site_network(s, "m", "cnn", 1, 12);
    site_data(s, "set", 40, 3, (const int64_t[]){1, 12, 12}, 5);
    for (int turn = 0; turn < 3; turn++) {
        static const char *const trains[] = {
            "", "\"optimizer\":\"adamw\",\"bn\":\"frozen\"", "\"momentum\":0,\"freeze\":[\"0.*\"]"};
        site_learn(s, "m", 8, turn == 2 ? 8 : 2, trains[turn]);
        for (int depth = 1; depth < 8; depth += 3) {
            check(s, (struct site_stage[]){{0, -1}}, 1, depth);
            check(s, (struct site_stage[]){{1, -1}}, 1, depth);
            check(s, (struct site_stage[]){{0, 3}, {1, -1}}, 2, depth);
            check(s, (struct site_stage[]){{1, 2}, {0, 8}, {2, -1}}, 3, depth);
            check(s, (struct site_stage[]){{0, 0}, {1, 10}, {0, -1}}, 3, depth);
        }
    }
    strcpy(s->codec, "fp16");
    check(s, (struct site_stage[]){{0, 3}, {1, 8}, {2, -1}}, 3, 2);
    site_close(s);
}

/* Two agents with these budgets (0: the usual one), the network and its data, and a plan for this training. */
static struct site *two_agents(const int64_t memory[2], const char *train)
{
    struct site *s = site_open(0);
    s->n_agents = 2;
    for (int i = 0; i < 2; i++) {
        s->memory[i] = memory[i];
        site_start(s, i);
    }
    site_links(s);
    site_network(s, "m", "cnn", 1, 12);
    site_data(s, "set", 40, 3, (const int64_t[]){1, 12, 12}, 5);
    site_learn(s, "m", 8, 2, train);
    return s;
}

static const struct site_stage halves[] = {{0, 3}, {1, -1}};

/* What a plan with these stages needs of each agent. */
static void wanted(const char *train, int64_t want[SITE_AGENTS])
{
    struct site *s = two_agents((const int64_t[2]){0}, train);
    char *plan = site_plan(s, halves, 2, 3);
    planned(s, plan, want);
    free(plan);
    site_close(s);
}

/* An agent whose budget is what the plan needs of it takes the stage; with half of that, for which it also measures
 * only forms that take little, there is a reason instead of a plan. */
static void budgets(void **state)
{
    (void)state;
    int64_t want[SITE_AGENTS];
    wanted("", want);
    for (int less = 0; less < 2; less++) {
        struct site_result got;
        struct site *s = two_agents((const int64_t[2]){0, less ? want[1] / 10 : want[1] + want[1] / 10}, "");
        char *plan = site_plan(s, halves, 2, 3);
        int64_t id = site_submit(s, "m", "set", plan);
        bool done = site_wait(s, id, &got);
        char *error = site_error(s, id);
        if (done == (bool)less || (less && !strstr(error, "memory")))
            fail_msg("%s: %s", less ? "less" : "enough", error);
        free(error);
        free(plan);
        site_close(s);
    }
}

/* A source judges epochs in what its budget leaves beside the training; without room the training goes on and says so.
 */
static void judges_within_the_budget(void **state)
{
    (void)state;
    static const char train[] = "\"val\":0.2,\"epochs\":3";
    int64_t want[SITE_AGENTS];
    struct site_result got[2];
    wanted(train, want);
    for (int tight = 0; tight < 2; tight++) {
        struct site *s = two_agents((const int64_t[2]){tight ? want[0] + want[0] / 10 : 0, 0}, train);
        char *plan = site_plan(s, halves, 2, 3);
        int64_t id = site_submit(s, "m", "set", plan);
        assert_true(site_wait(s, id, &got[tight]));
        store_epochs(sched_store(s->h->s), id, on_json, s->h);
        wait_answer(s->h, 1000);
        struct json *rows = answer_json(s->h);
        assert_int_equal(json_len(rows), tight ? 0 : 3);
        for (size_t i = 0; i < json_len(rows); i++)
            assert_int_equal(json_i64(json_find(json_at(rows, i), "samples"), 0), 8);
        json_free(rows);
        sched_events(s->h->s, id, 0, 0, on_text, s->h);
        wait_answer(s->h, 1000);
        bool told =
            strstr(s->h->text, "epoch 1 is not judged: it takes") && strstr(s->h->text, "epoch 3 is not judged");
        if (told != (bool)tight)
            fail_msg("%s", s->h->text);
        free(plan);
        site_close(s);
    }
    assert_int_equal(got[0].n, got[1].n); /* each site measures its own forms: bits are another test's */
}

/* ---- batch jobs ---- */

#define WORKSPACE 1200000 /* of a profile, where a stage needs less */
#define SAMPLES "\"batch\":%lld,\"microbatch\":%lld,\"data\":{\"name\":\"set\"}"

static struct plan *batch_plan(struct site *s, int64_t microbatch, const char *given)
{
    struct yk_diag why = {0};
    struct plan *p = NULL;
    char *request = yk_xasprintf("{\"kind\":\"batch\",\"model\":\"m\",\"source\":\"a0\"," SAMPLES "%s%s%s}",
        (long long)100000, (long long)microbatch, s->codec[0] ? ",\"codec\":[\"fp32\",\"fp16\"]" : "",
        given ? ",\"plan\":" : "", given ? given : "");
    sched_plan(s->h->s, request, strlen(request), on_text, s->h);
    wait_answer(s->h, 600000);
    struct json *doc = answer_json(s->h);
    if (plan_from_json(doc, &p, &why))
        fail_msg("%s", why.text);
    const struct json *stages = json_find(json_at(json_find(doc, "pipelines"), 0), "stages");
    for (int32_t i = 0; i < p->pipelines[0].n_stages; i++)
        p->pipelines[0].stages[i].memory_bytes = json_i64(json_find(json_at(stages, (size_t)i), "memory_bytes"), 0);
    json_free(doc);
    free(request);
    return p;
}

static char *plan_text(const struct plan *p)
{
    struct yk_buf b = {0};
    struct json_out o;
    json_out_init(&o, &b, 0);
    plan_to_json(p, &o);
    yk_buf_add(&b, "", 1);
    return (char *)b.data;
}

/* Two agents take turns at every cut; the first is the source. */
static void batch_stages(struct site *s, int64_t microbatch, int32_t n_stages, int32_t first, int32_t depth)
{
    struct plan *p = batch_plan(s, microbatch, NULL);
    int32_t n = p->n_forms, at = 0;
    const char *codec = s->codec[0] ? s->codec : "fp32";
    struct yk_buf b = {0};
    yk_buf_printf(&b, "[{\"share\":1,\"depth\":%d,\"stages\":[", depth);
    for (int32_t k = 0; k < n_stages; k++) {
        int32_t last = k + 1 == n_stages ? n - 1 : (k + 1) * n / n_stages - 1;
        yk_buf_printf(&b, "%s{\"agent\":\"a%d\",\"nodes\":[[%d,%d]]}", k ? "," : "", (k + first) % 2, at, last);
        at = last + 1;
    }
    yk_buf_printf(&b, "]}],\"cuts\":[");
    for (int32_t k = -1; k < n_stages; k++)
        yk_buf_printf(&b, "%s{\"pipeline\":0,\"from\":%d,\"to\":%d,\"codec\":\"%s\"}", k < 0 ? "" : ",", k,
            k + 1 == n_stages ? -1 : k + 1, codec);
    yk_buf_printf(&b, "]");
    yk_buf_add(&b, "", 1);
    char *text = plan_text(p), *lines = strstr(text, "\"pipelines\":");
    *lines = '\0';
    struct yk_buf forms = {0};
    for (int32_t i = 0; i < n; i++)
        yk_buf_printf(&forms, "%s\"%s\"", i ? "," : "", p->forms[i]);
    yk_buf_add(&forms, "", 1);
    char *given = yk_xasprintf("{\"graph\":{\"use\":\"infer\",\"hash\":\"%s\"},\"microbatch\":%lld,\"forms\":[%s],"
                               "\"pipelines\":%s}",
        p->graph_hash, (long long)microbatch, (char *)forms.data, (char *)b.data);
    plan_free(p);
    p = batch_plan(s, microbatch, given);
    int64_t held[SITE_AGENTS];
    struct view *v = fleet_view(s->h->s->fleet, NULL);
    struct model *m = sched_model_find(s->h->s, "m");
    struct yk_diag why = {0};
    assert_int_equal(model_load(m, s->h->s->blobs, &why), YK_OK);
    if (held_bytes(m->graph, NULL, p, v, held, &why))
        fail_msg("%s", why.text);
    char *request = yk_xasprintf("{\"kind\":\"batch\",\"model\":\"m\",\"source\":\"a0\"," SAMPLES "%s,\"plan\":%s}",
        (long long)100000, (long long)microbatch, s->codec[0] ? ",\"codec\":[\"fp32\",\"fp16\"]" : "", given);
    int64_t id = submit(s->h, request), got[SITE_AGENTS] = {0};
    wait_over(s->h, id, 60000);
    for (const struct generation *e = s->h->s->ended; e; e = e->next)
        for (int i = 0; e->job_id == id && i < e->n_agents; i++)
            got[fleet_find(s->h->s->fleet, e->agents[i].id)->name[1] - '0'] = e->agents[i].held_bytes;
    expect_state(s->h, id, "done");
    assert_true(got[0] > 0 && (got[1] > 0 || (n_stages == 1 && first == 0)));
    for (int32_t k = 0; k < v->n_agents; k++) {
        int a = v->agents[k].name[1] - '0';
        if (got[a] > held[k] || held[k] > got[a] + got[a] / 10 + WORKSPACE)
            fail_msg("a%d holds %lld bytes, %lld are counted (%d stages from a%d, depth %d, %s)", a, (long long)got[a],
                (long long)held[k], n_stages, first, depth, codec);
    }
    free(request);
    free(given);
    free(text);
    yk_buf_free(&forms);
    yk_buf_free(&b);
    view_free(v);
    plan_free(p);
}

/* The source's slots for samples and answers, and what codecs need, are counted beside the stages. */
static void batches_hold_what_is_counted(void **state)
{
    (void)state;
    struct site *s = site_open(2);
    site_network(s, "m", "cnn", 1, 12);
    site_data(s, "set", 40, 3, (const int64_t[]){1, 12, 12}, 5);
    for (int codec = 0; codec < 2; codec++) {
        strcpy(s->codec, codec ? "fp16" : "");
        for (int32_t stages = 1; stages < 4; stages++)
            for (int32_t first = 0; first < 2; first++)
                batch_stages(s, 8, stages, first, 1 + 2 * codec);
    }
    site_close(s);
}

int main(void)
{
    log_set_level(getenv("YOKE_TEST_LOG") ? LOG_INFO : LOG_ERROR);
    const struct CMUnitTest tests[] = {cmocka_unit_test(stages_take_what_is_planned), cmocka_unit_test(budgets),
        cmocka_unit_test(judges_within_the_budget), cmocka_unit_test(batches_hold_what_is_counted)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
