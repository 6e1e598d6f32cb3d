/* The closed form against sums done by hand, and plans that a user gives: any form is priced, or refused by name. */
#include <math.h>

#include "scheduler/candidate.h"
#include "tests/unit/plan_fleet.h"

#define PLENTY ((int64_t)1 << 40)
#define SAME(got, want) near_to(got, want, __LINE__)

static void near_to(double got, double want, int line)
{
    if (!(fabs(got - want) <= 1e-9 * fabs(want)))
        fail_msg("line %d: %.15g, not %.15g", line, got, want);
}

/* pc and phone over a chain of four Relu of (N, 1000): 4000 bytes a sample cross every cut. */
struct bed {
    struct pf f;
    struct graph *g;
    struct solve_request q;
    struct cost_model m;
    int32_t form[8];
};

static void bed_links(struct bed *b)
{
    pf_link(&b->f, 0, 1, 1e6, 2);
    pf_link(&b->f, 1, 0, 2e6, 3);
}

static void bed_open(struct bed *b)
{
    memset(b, 0, sizeof *b);
    pf_init(&b->f);
    b->g = pf_chain(4, 1000);
    pf_agent(&b->f, "pc", 0, PLENTY);
    pf_agent(&b->f, "phone", 0, PLENTY);
    pf_profile(&b->f, 0, (const double[]){1, 2, 3, 4}, 4);
    pf_profile(&b->f, 1, (const double[]){10, 10, 1, 1}, 4);
    b->q = (struct solve_request){.graph = b->g, .model = "m", .job = "batch", .batch = 8, .source = 0};
}

static void bed_price(struct bed *b, int64_t microbatch)
{
    cost_choose_forms(&b->q, &b->f.view, b->form);
    assert_int_equal(cost_init(&b->m, &b->q, &b->f.view, b->form, microbatch, NULL), YK_OK);
}

static void bed_close(struct bed *b)
{
    pf_fini(&b->f);
    graph_close(b->g);
}

/* Cut behind node 1; microbatches of 2. */
static struct cost_line two_stages(struct bed *b)
{
    struct cost_line l;
    struct yk_diag why = {0};
    bed_price(b, 2);
    if (cost_price(&b->m, 0, (const int32_t[]){0, 1}, 2, (const int32_t[]){0, 0, 1, 1}, NULL, 0, &l, &why))
        fail_msg("%s", why.text);
    return l;
}

static void by_hand(void **state)
{
    (void)state;
    struct bed b;
    char name[160];
    bed_open(&b);
    bed_links(&b);
    struct cost_line l = two_stages(&b);
    assert_int_equal(b.m.count, 4);
    SAME(l.stages[0].ms, 2 * (1 + 2));
    SAME(l.stages[1].ms, 2 * (1 + 1));
    double there = (8000 + COST_HEADER_BYTES) / 1e6 * 1e3, back = (8000 + COST_HEADER_BYTES) / 2e6 * 1e3;
    SAME(l.first_ms, 6 + 4 + there + 2 + back + 3);
    SAME(l.bottleneck_ms, there); /* the latency occupies nothing */
    SAME(l.cost_ms, 6 + 4 + there + 2 + back + 3 + 3 * there);
    cost_resource_name(&b.m, l.bottleneck, name);
    assert_string_equal(name, "link pc->phone");
    cost_line_fini(&l);
    cost_fini(&b.m);

    /* one medium for both directions: their transfers add up */
    b.f.links[0].shared = b.f.links[1].shared = 0;
    l = two_stages(&b);
    SAME(l.cost_ms, 6 + 4 + there + 2 + back + 3 + 3 * (there + back));
    cost_resource_name(&b.m, l.bottleneck, name);
    assert_string_equal(name, "link pc<->phone");
    cost_line_fini(&l);
    cost_fini(&b.m);

    /* CPU time of bytes; a slow device; a device that others use by half */
    b.f.links[0].shared = b.f.links[1].shared = -1;
    b.f.links[0].cpu_ns_per_byte = 100;
    b.f.agents[0].slow_factor = 1.5;
    b.f.agents[1].busy_frac = 0.5;
    l = two_stages(&b);
    there += (8000 + COST_HEADER_BYTES) * 100e-6;
    SAME(l.stages[0].ms, 9);
    SAME(l.stages[1].ms, 8);
    SAME(l.cost_ms, 9 + 8 + there + 2 + back + 3 + 3 * there);
    cost_line_fini(&l);
    cost_fini(&b.m);

    /* the last, smaller microbatch counts whole */
    b.q.batch = 7;
    l = two_stages(&b);
    assert_int_equal(b.m.count, 4);
    cost_line_fini(&l);
    cost_fini(&b.m);
    bed_close(&b);
}

/* The whole model elsewhere: the raw input goes there and the output comes back. */
static void whole_elsewhere(void **state)
{
    (void)state;
    struct bed b;
    struct cost_line l;
    bed_open(&b);
    bed_links(&b);
    bed_price(&b, 8);
    assert_int_equal(cost_price(&b.m, 0, (const int32_t[]){1}, 1, (const int32_t[4]){0}, NULL, 0, &l, NULL), YK_OK);
    double bytes = 32000 + COST_HEADER_BYTES;
    SAME(l.cost_ms, 8 * 22 + bytes / 1e6 * 1e3 + 2 + bytes / 2e6 * 1e3 + 3);
    cost_line_fini(&l);
    assert_int_equal(cost_price(&b.m, 1, (const int32_t[]){1}, 1, (const int32_t[4]){0}, NULL, 0, &l, NULL), YK_OK);
    SAME(l.cost_ms, 8 * 22); /* at the source nothing is sent */
    cost_line_fini(&l);
    cost_fini(&b.m);

    /* no source: yoked sends the input where that link is known, and nothing is counted where it is not */
    b.q.source = -1;
    pf_link(&b.f, -1, 1, 4e6, 1);
    bed_price(&b, 8);
    assert_int_equal(cost_price(&b.m, 1, (const int32_t[]){1}, 1, (const int32_t[4]){0}, NULL, 0, &l, NULL), YK_OK);
    SAME(l.cost_ms, 8 * 22 + bytes / 4e6 * 1e3 + 1);
    cost_line_fini(&l);
    assert_int_equal(cost_price(&b.m, 0, (const int32_t[]){0}, 1, (const int32_t[4]){0}, NULL, 0, &l, NULL), YK_OK);
    SAME(l.cost_ms, 8 * 10);
    cost_line_fini(&l);
    cost_fini(&b.m);
    bed_close(&b);
}

/* Three stages in a row where the last also needs the first one's value: it goes straight there. */
static void skips(void **state)
{
    (void)state;
    struct pf f;
    struct cost_model m;
    struct cost_line l;
    int32_t form[4];
    struct graph *g = fx_open();
    assert_int_equal(graph_sym(g, "N"), 0);
    int32_t x = fx_input(g, "x", DT_F32, (const int64_t[]){-1, 1000}, 2), a = fx_node(g, "Relu", "a", IDS(x));
    fx_output(g, fx_node(g, "Add", "c", IDS(fx_node(g, "Relu", "b", IDS(a)), a)));
    pf_init(&f);
    for (int i = 0; i < 3; i++) {
        pf_agent(&f, (const char *const[]){"one", "two", "three"}[i], 0, PLENTY);
        pf_profile(&f, i, (const double[]){1, 1, 1}, 3);
    }
    pf_link(&f, 0, 1, 1e6, 0);
    pf_link(&f, 1, 2, 1e6, 0);
    pf_link(&f, 2, 0, 1e6, 0);
    struct solve_request q = {.graph = g, .job = "batch", .batch = 1, .source = 0};
    struct yk_diag why = {0};
    const int32_t agents[] = {0, 1, 2}, stage_of[] = {0, 1, 2};
    cost_choose_forms(&q, &f.view, form);
    assert_int_equal(cost_init(&m, &q, &f.view, form, 1, NULL), YK_OK);
    assert_int_equal(cost_price(&m, 0, agents, 3, stage_of, NULL, 0, &l, &why), YK_INFEASIBLE);
    assert_non_null(strstr(why.text, "link one->three"));
    cost_fini(&m);
    pf_link(&f, 0, 2, 1e6, 7);
    assert_int_equal(cost_init(&m, &q, &f.view, form, 1, NULL), YK_OK);
    assert_int_equal(cost_price(&m, 0, agents, 3, stage_of, NULL, 0, &l, &why), YK_OK);
    SAME(l.cost_ms, 3 + 4 * (4000 + COST_HEADER_BYTES) * 1e-3 + 7);
    cost_line_fini(&l);
    cost_fini(&m);
    pf_fini(&f);
    graph_close(g);
}

/* The form that most agents have, then the fastest; what a job has fixed stays. */
static void forms(void **state)
{
    (void)state;
    static const struct view_time pc[] = {{.node = 0, .form = 0, .size = 1, .ms = 5},
        {.node = 0, .form = 1, .size = 1, .ms = 1}, {.node = 1, .form = 0, .size = 1, .ms = 5},
        {.node = 1, .form = 1, .size = 1, .ms = 1}};
    static const struct view_time phone[] = {{.node = 0, .form = 0, .size = 1, .ms = 9},
        {.node = 1, .form = 0, .size = 1, .ms = 9}, {.node = 1, .form = 1, .size = 1, .ms = 2}};
    struct bed b;
    bed_open(&b);
    b.f.agents[0].times = pc;
    b.f.agents[0].n_times = YK_COUNT(pc);
    b.f.agents[1].times = phone;
    b.f.agents[1].n_times = YK_COUNT(phone);
    cost_choose_forms(&b.q, &b.f.view, b.form);
    assert_int_equal(b.form[0], 0); /* both have ref */
    assert_int_equal(b.form[1], 1); /* both have both */
    assert_int_equal(b.form[2], -1);
    b.f.agents[1].usable = false; /* who is not there does not count */
    cost_choose_forms(&b.q, &b.f.view, b.form);
    assert_int_equal(b.form[0], 1);
    b.q.forms = (const char *const[]){"ref@generic", "ref@generic", "gone@x", ""};
    cost_choose_forms(&b.q, &b.f.view, b.form);
    assert_true(b.form[0] == 0 && b.form[1] == 0 && b.form[2] == -1 && b.form[3] == -1);
    bed_close(&b);
}

/* ---- given plans ---- */

static struct plan *plan_of(const struct graph *g, int64_t microbatch, int32_t pipelines)
{
    struct plan *p = yk_xalloc(sizeof *p);
    p->model = yk_xstrdup("m");
    p->graph_use = yk_xstrdup("infer");
    yk_hex(g->hash, sizeof g->hash, p->graph_hash);
    p->microbatch = microbatch;
    p->pipelines = yk_xalloc((size_t)pipelines * sizeof *p->pipelines);
    p->cuts = yk_xalloc(8 * sizeof *p->cuts);
    p->n_pipelines = pipelines;
    for (int32_t i = 0; i < pipelines; i++)
        p->pipelines[i] = (struct plan_pipeline){
            .share = 1.0 / pipelines, .depth = 1, .stages = yk_xalloc(4 * sizeof(struct plan_stage))};
    return p;
}

static void put_stage(struct plan *p, int32_t line, const char *agent, int32_t first, int32_t last)
{
    struct plan_stage *s = &p->pipelines[line].stages[p->pipelines[line].n_stages++];
    s->agent = yk_xstrdup(agent);
    s->nodes = yk_xalloc(sizeof *s->nodes);
    s->nodes[s->n_nodes++] = (struct cut_range){first, last};
}

static struct plan *given(struct bed *b, struct plan *p)
{
    struct plan *out = NULL;
    struct yk_diag why = {0};
    b->q.forced = p;
    if (solve_plan(&b->q, &b->f.view, &out, &why))
        fail_msg("%s", why.text);
    return out;
}

static void refused(struct bed *b, struct plan *p, yk_err want, const char *first, const char *second)
{
    struct plan *out = NULL;
    struct yk_diag why = {0};
    b->q.forced = p;
    yk_err err = solve_plan(&b->q, &b->f.view, &out, &why);
    if (err != want || !strstr(why.text, first) || !strstr(why.text, second))
        fail_msg("%s, '%s' should say '%s' and '%s'", yk_err_text(err), why.text, first, second);
}

/* First and last stage on the source, the middle elsewhere: both of its stages count for its agent. */
static void u_shape(void **state)
{
    (void)state;
    struct bed b;
    bed_open(&b);
    bed_links(&b);
    b.f.links[0].bytes_per_s = b.f.links[1].bytes_per_s = 1e9;
    struct plan *p = plan_of(b.g, 1, 1);
    put_stage(p, 0, "pc", 0, 0);
    put_stage(p, 0, "phone", 1, 2);
    put_stage(p, 0, "pc", 3, 3);
    p->pipelines[0].depth = 4;
    struct plan *q = given(&b, p);
    double edge = (4000 + COST_HEADER_BYTES) / 1e9 * 1e3;
    SAME(q->cost_ms, 5 + 11 + 2 * edge + 2 + 3 + 7 * 11);
    assert_string_equal(q->bottleneck, "agent phone");
    assert_int_equal(q->n_cuts, 2);
    assert_int_equal(q->pipelines[0].depth, 4);
    assert_true(q->step_ms >= 8 * 11 && q->step_ms <= q->cost_ms * (1 + 1e-9));
    assert_string_equal(q->best_single, "pc");
    SAME(q->best_single_ms, 80);
    assert_string_equal(q->solver, "given");
    assert_non_null(strstr(q->explanation, "bottleneck agent phone"));
    assert_non_null(strstr(q->explanation, "pc (source): nodes 0"));
    assert_non_null(strstr(q->explanation, "4000 bytes"));
    assert_non_null(strstr(q->explanation, "its profile"));
    assert_non_null(strstr(q->explanation, "best single device: pc"));
    plan_free(q);
    free(p->pipelines[0].stages[1].agent);
    p->pipelines[0].stages[1].agent = yk_xstrdup("tablet");
    refused(&b, p, YK_INFEASIBLE, "tablet", "not in the fleet");
    plan_free(p);
    bed_close(&b);
}

/* Two whole copies with shares. */
static void replicas(void **state)
{
    (void)state;
    struct bed b;
    bed_open(&b);
    bed_links(&b);
    b.f.links[0].bytes_per_s = b.f.links[1].bytes_per_s = 1e9;
    for (int i = 0; i < 4; i++)
        b.f.times[1][i].ms = i < 2 ? 10 : 5;
    struct plan *p = plan_of(b.g, 1, 2);
    put_stage(p, 0, "pc", 0, 3);
    put_stage(p, 1, "phone", 0, 3);
    p->pipelines[0].share = 0.75;
    p->pipelines[1].share = 0.25;
    p->pipelines[1].depth = 2;
    struct plan *q = given(&b, p);
    double edge = (4000 + COST_HEADER_BYTES) / 1e9 * 1e3;
    SAME(q->cost_ms, 30 + 2 * edge + 5 + 30); /* the phone's two; the PC's six take 60 */
    SAME(q->best_single_ms, 80);
    assert_true(q->step_ms < 66 && q->step_ms >= 60);
    assert_int_equal(q->pipelines[0].depth, 1);
    assert_int_equal(q->pipelines[1].depth, 2);
    /* each pipeline's own depth counts for memory */
    assert_true(q->pipelines[1].stages[0].memory_bytes == q->pipelines[0].stages[0].memory_bytes + 2 * 4032);
    b.f.agents[1].memory_bytes = q->pipelines[1].stages[0].memory_bytes;
    plan_free(q);
    plan_free(given(&b, p));
    b.f.agents[1].memory_bytes--; /* by one byte */
    refused(&b, p, YK_INFEASIBLE, "agent phone: memory", "MB");
    b.f.agents[1].memory_bytes = 0;
    refused(&b, p, YK_INFEASIBLE, "agent phone: memory is unknown", "");
    b.f.agents[1].memory_bytes = PLENTY;
    /* both on one device: it has to do the sum of both */
    free(p->pipelines[1].stages[0].agent);
    p->pipelines[1].stages[0].agent = yk_xstrdup("pc");
    q = given(&b, p);
    SAME(q->cost_ms, 80);
    SAME(q->step_ms, 80);
    plan_free(q);
    plan_free(p);
    bed_close(&b);
}

static void refusals(void **state)
{
    (void)state;
    struct bed b;
    bed_open(&b);
    bed_links(&b);
    struct plan *p = plan_of(b.g, 2, 1);
    put_stage(p, 0, "pc", 0, 1);
    put_stage(p, 0, "phone", 2, 3);
    p->cuts[p->n_cuts++] = (struct plan_cut){.from = 0, .to = 1, .codec = CODEC_FP16};
    refused(&b, p, YK_INVAL, "fp16", "not allowed");
    b.q.codec_allowed = (const bool[]){true, true, false};
    struct plan *q = given(&b, p);
    for (int32_t i = 0; i < q->n_cuts; i++)
        assert_int_equal(q->cuts[i].codec, q->cuts[i].from == 0 ? CODEC_FP16 : CODEC_FP32);
    plan_free(q);
    b.f.links[0].origin = VIEW_UNKNOWN;
    refused(&b, p, YK_INFEASIBLE, "link pc->phone", "not measured");
    b.f.links[0].origin = VIEW_MEASURED;
    b.f.agents[1].usable = false;
    snprintf(b.f.agents[1].why_not, sizeof b.f.agents[1].why_not, "heat is critical");
    refused(&b, p, YK_INFEASIBLE, "phone", "heat is critical");
    b.f.agents[1].usable = true;
    p->forms = yk_xalloc(4 * sizeof *p->forms);
    for (p->n_forms = 0; p->n_forms < 4; p->n_forms++)
        p->forms[p->n_forms] = yk_xstrdup(p->n_forms == 2 ? "conv@neon" : "ref@generic");
    refused(&b, p, YK_INFEASIBLE, "conv@neon", "node 2");
    plan_free(p);
    bed_close(&b);
}

static void deadline(void **state)
{
    (void)state;
    struct bed b;
    struct plan *p = NULL;
    struct yk_diag why = {0};
    bed_open(&b);
    bed_links(&b);
    b.q.deadline_ms = 1;
    assert_int_equal(solve_plan(&b.q, &b.f.view, &p, &why), YK_INFEASIBLE);
    assert_non_null(strstr(why.text, "deadline is 1 ms"));
    b.q.deadline_ms = 1000;
    assert_int_equal(solve_plan(&b.q, &b.f.view, &p, &why), YK_OK);
    plan_free(p);
    b.q.objective = SOLVE_CLOUD_COST;
    assert_int_equal(solve_plan(&b.q, &b.f.view, &p, &why), YK_OK);
    assert_true(p->cloud_ms == 0 && p->step_ms <= 1000); /* nobody is of class cloud */
    for (int32_t s = 0; s < p->pipelines[0].n_stages; s++)
        assert_non_null(p->pipelines[0].stages[s].origin);
    plan_free(p);
    /* a plan that was given is held to it too */
    p = plan_of(b.g, 8, 1);
    put_stage(p, 0, "pc", 0, 3);
    plan_free(given(&b, p)); /* 80 ms */
    b.q.deadline_ms = 79;
    refused(&b, p, YK_INFEASIBLE, "the deadline is 79 ms; the given plan needs 80 ms", "allow as much");
    plan_free(p);
    bed_close(&b);
}

static void copies(void **state)
{
    (void)state;
    struct bed b;
    bed_open(&b);
    bed_links(&b);
    struct view *v = view_copy(&b.f.view);
    assert_non_null(v);
    assert_true(v->agents != b.f.view.agents && v->agents[0].times != b.f.view.agents[0].times);
    assert_memory_equal(v->agents[1].times, b.f.agents[1].times, 4 * sizeof(struct view_time));
    assert_string_equal(v->forms[1], "fast@x");
    assert_int_equal(v->n_links, 2);
    view_free(v);
    view_free(NULL);
    bed_close(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(by_hand),
        cmocka_unit_test(whole_elsewhere),
        cmocka_unit_test(skips),
        cmocka_unit_test(forms),
        cmocka_unit_test(u_shape),
        cmocka_unit_test(replicas),
        cmocka_unit_test(refusals),
        cmocka_unit_test(deadline),
        cmocka_unit_test(copies),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
