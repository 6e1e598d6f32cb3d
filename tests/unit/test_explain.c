/* What an explanation says is what solving again says; bars are the event model's. */
#include <math.h>

#include "scheduler/explain.h"
#include "tests/unit/plan_fleet.h"

#define PLENTY ((int64_t)1 << 40)
#define MB ((int64_t)1 << 20)

static const struct explain_options all = {.changes = true, .budget_ms = 1e6};

static struct plan *solved(const struct solve_request *q, const struct view *v)
{
    struct plan *p = NULL;
    struct yk_diag why = {0};
    if (solve_plan(q, v, &p, &why))
        fail_msg("%s", why.text);
    return p;
}

static double step_of(const struct solve_request *q, const struct view *v)
{
    struct plan *p = solved(q, v);
    double ms = p->step_ms;
    plan_free(p);
    return ms;
}

static const struct plan_note *find(const struct plan_note *notes, int32_t n, const char *kind, const char *say)
{
    for (int32_t i = 0; i < n; i++)
        if (strcmp(notes[i].kind, kind) == 0 && strstr(notes[i].text, say))
            return &notes[i];
    return NULL;
}

static double change_of(const struct plan *p, const char *kind, const char *say)
{
    const struct plan_note *note = find(p->changes, p->n_changes, kind, say);
    if (!note)
        fail_msg("no change '%s' with '%s' in:\n%s", kind, say, p->explanation);
    return note->step_ms;
}

static bool near(double a, double b)
{
    return fabs(a - b) <= 1e-9 * fabs(b);
}

/* Every stage and every transfer of every microbatch once, none at the same time as another of its row, the last one
 * at the end of the step. */
static void check_bars(const struct plan *p)
{
    double end = 0;
    int32_t computed = 0;
    assert_true(p->n_bars > 0 && p->bar_microbatches == p->all_microbatches);
    for (int32_t i = 0; i < p->n_bars; i++) {
        const struct plan_bar *a = &p->bars[i];
        assert_in_range(a->row, 0, p->n_bar_rows - 1);
        assert_true(a->start_ms >= 0 && a->end_ms >= a->start_ms && a->end_ms <= p->step_ms * (1 + 1e-9));
        computed += strcmp(a->kind, "compute") == 0;
        end = YK_MAX(end, a->end_ms);
        for (int32_t k = 0; k < i; k++)
            if (p->bars[k].row == a->row)
                assert_true(p->bars[k].end_ms <= a->start_ms + 1e-9 || a->end_ms <= p->bars[k].start_ms + 1e-9);
    }
    assert_int_equal(computed, p->pipelines[0].n_stages * p->all_microbatches);
    assert_true(end > 0.5 * p->step_ms);
}

static void bars_are_the_event_model(void **state)
{
    (void)state;
    struct graph *g = pf_layers(8);
    struct pf f;
    pf_init(&f);
    pf_agent(&f, "a", 2, PLENTY);
    pf_agent(&f, "b", 2, PLENTY);
    pf_both(&f, 0, 1, 1e8, 0.5);
    f.links[0].shared = f.links[1].shared = 0;
    struct solve_request q = {
        .graph = g, .job = "batch", .objective = SOLVE_THROUGHPUT, .batch = 50, .microbatch = 2, .source = 0};
    struct plan *p = solved(&q, &f.view);
    assert_int_equal(p->pipelines[0].n_stages, 2);
    const struct explain_options bars = {0};
    char *before = yk_xstrdup(p->explanation);
    explain_plan(&q, &f.view, &bars, p);
    check_bars(p);
    assert_int_equal(p->n_bar_rows, 3);
    assert_string_equal(p->bar_rows[0], "agent a");
    assert_string_equal(p->bar_rows[2], "link a<->b");
    assert_string_equal(p->explanation, before); /* bars only */
    assert_null(p->changes);
    struct plan *copy = plan_copy(p);
    check_bars(copy);
    plan_free(copy);
    plan_free(p);
    free(before);
    /* Of a long step its first microbatches. */
    q.batch = 2000;
    p = solved(&q, &f.view);
    explain_plan(&q, &f.view, &bars, p);
    assert_true(p->bar_microbatches == 64 && p->all_microbatches == 1000 && p->n_bars < 5000);
    plan_free(p);
    pf_fini(&f);
    graph_close(g);
}

/* Two equal devices, bound by compute: a third brings what solving over three says, the link and memory nothing. */
static void one_more_device(void **state)
{
    (void)state;
    struct graph *g = pf_layers(12);
    struct pf f;
    pf_init(&f);
    pf_agent(&f, "a", 1, PLENTY);
    pf_agent(&f, "b", 1, PLENTY);
    pf_both(&f, 0, 1, 1e9, 0.01);
    struct solve_request q = {
        .graph = g, .job = "batch", .objective = SOLVE_THROUGHPUT, .batch = 60, .microbatch = 1, .source = 0};
    struct plan *p = solved(&q, &f.view);
    double step = p->step_ms;
    explain_plan(&q, &f.view, &all, p);
    struct view *three = explain_one_more(&f.view, 1);
    assert_int_equal(three->n_agents, 3);
    assert_int_equal(three->n_links, 6);
    double there = step_of(&q, three);
    assert_true(there < 0.72 * step); /* 4 layers each, not 6 */
    assert_true(near(change_of(p, "device", "like b"), there));
    assert_true(change_of(p, "link", "every link") > 0.99 * step);
    assert_true(near(change_of(p, "memory", "twice"), step));
    const struct plan_note *busy = find(p->binds, p->n_binds, "compute", "agent ");
    assert_non_null(busy);
    assert_non_null(strstr(p->explanation, busy->text));
    assert_non_null(strstr(p->explanation, "with another device like b: "));
    /* As JSON, and what reads it takes no notice. */
    struct yk_buf b = {0};
    struct json_out out;
    struct json *j = NULL;
    struct yk_diag why = {0};
    json_out_init(&out, &b, 0);
    plan_to_json(p, &out);
    assert_int_equal(json_parse((const char *)b.data, b.len, &j, &why), YK_OK);
    const struct json *change = json_at(json_find(j, "changes"), 0);
    assert_string_equal(json_str(json_find(change, "kind"), ""), "device");
    assert_true(near(json_f64(json_find(change, "times_as_fast"), 0), step / there));
    assert_int_equal(json_len(json_find(json_find(j, "timeline"), "events")), p->n_bars);
    struct plan *back = NULL;
    assert_int_equal(plan_from_json(j, &back, &why), YK_OK);
    assert_true(back->n_changes == 0 && back->n_bars == 0);
    plan_free(back);
    json_free(j);
    yk_buf_free(&b);
    view_free(three);
    plan_free(p);
    pf_fini(&f);
    graph_close(g);
}

/* The fast device holds 4 of 8 MiB. */
static void memory_binds(void **state)
{
    (void)state;
    struct graph *g = pf_layers(8);
    struct pf f;
    pf_init(&f);
    pf_agent(&f, "slow", 1, PLENTY);
    pf_agent(&f, "fast", 100, 4 * MB + 200000);
    pf_both(&f, 0, 1, 1e9, 0.01);
    struct solve_request q = {
        .graph = g, .job = "batch", .objective = SOLVE_THROUGHPUT, .batch = 32, .microbatch = 1, .source = 0};
    struct plan *p = solved(&q, &f.view);
    explain_plan(&q, &f.view, &all, p);
    const struct plan_note *memory = find(p->binds, p->n_binds, "memory", "memory of fast");
    if (!memory)
        fail_msg("%s", p->explanation);
    assert_non_null(strstr(memory->text, "of its 4.4 MB"));
    assert_null(find(p->binds, p->n_binds, "memory", "memory of slow"));
    f.agents[1].memory_bytes *= 2;
    f.agents[0].memory_bytes *= 2;
    assert_true(near(change_of(p, "memory", "twice"), step_of(&q, &f.view)));
    assert_true(change_of(p, "memory", "twice") < 0.5 * p->step_ms);
    plan_free(p);
    pf_fini(&f);
    graph_close(g);
}

/* The link is the bottleneck: twice as fast is told of it by name. */
static void link_binds(void **state)
{
    (void)state;
    struct graph *g = pf_chain(8, 4096);
    struct pf f;
    double half[8];
    pf_init(&f);
    pf_agent(&f, "a", 1, PLENTY);
    pf_agent(&f, "b", 1, PLENTY);
    pf_both(&f, 0, 1, 1e6, 0);
    f.links[0].shared = f.links[1].shared = 0;
    for (int i = 0; i < 8; i++)
        half[i] = 10;
    pf_profile(&f, 0, half, 8);
    pf_profile(&f, 1, half, 8);
    struct solve_request q = {
        .graph = g, .job = "batch", .objective = SOLVE_THROUGHPUT, .batch = 64, .microbatch = 1, .source = 0};
    struct plan *p = solved(&q, &f.view);
    assert_string_equal(p->bottleneck, "agent a"); /* 5 : 3 layers, else 16 ms both ways for each */
    explain_plan(&q, &f.view, &all, p);
    plan_free(p);
    f.links[0].bytes_per_s = f.links[1].bytes_per_s = 0.64e6;
    p = solved(&q, &f.view);
    assert_string_equal(p->bottleneck, "link a<->b");
    explain_plan(&q, &f.view, &all, p);
    assert_non_null(find(p->binds, p->n_binds, "link", "link a<->b carries"));
    double there = change_of(p, "link", "link a<->b twice");
    assert_true(there < 0.9 * p->step_ms && near(there, change_of(p, "link", "every link")));
    static const bool halves[] = {true, true, false};
    double half_ms = change_of(p, "codec", "fp16");
    q.codec_allowed = halves;
    assert_true(half_ms < 0.9 * p->step_ms && near(half_ms, step_of(&q, &f.view)));
    plan_free(p);
    pf_fini(&f);
    graph_close(g);
}

static void heat_pins_and_other_jobs(void **state)
{
    (void)state;
    struct graph *g = pf_layers(8);
    struct pf f;
    pf_init(&f);
    pf_agent(&f, "a", 8, PLENTY);
    pf_agent(&f, "b", 10, PLENTY);
    struct view_agent *c = pf_agent(&f, "c", 30, PLENTY);
    for (int i = 0; i < 3; i++)
        for (int k = 0; k < i; k++)
            pf_both(&f, i, k, 1e9, 0.01);
    f.agents[0].busy_frac = 0.5;
    f.agents[1].slow_factor = 2;
    c->usable = false;
    snprintf(c->why_not, sizeof c->why_not, "it rests: heat is critical");
    struct solve_request q = {.graph = g,
        .job = "batch",
        .objective = SOLVE_THROUGHPUT,
        .batch = 32,
        .microbatch = 1,
        .source = 0,
        .pin_first = true};
    struct plan *p = solved(&q, &f.view);
    explain_plan(&q, &f.view, &all, p);
    if (!find(p->binds, p->n_binds, "heat", "c is not used, it rests: heat is critical"))
        fail_msg("%s", p->explanation);
    assert_non_null(find(p->binds, p->n_binds, "heat", "b takes 2.00 times"));
    assert_non_null(find(p->binds, p->n_binds, "busy", "50 % of a"));
    assert_true(change_of(p, "pin", "first") <= p->step_ms);
    q.pin_first = false;
    assert_true(near(change_of(p, "pin", "first"), step_of(&q, &f.view)));
    q.pin_first = true;
    f.agents[1].slow_factor = 1;
    assert_true(near(change_of(p, "heat", "b at its full pace"), step_of(&q, &f.view)));
    plan_free(p);
    pf_fini(&f);
    graph_close(g);
}

/* What the cloud computes is what counts: within the deadline, and with the same deadline of all changes. */
static void cloud_cost(void **state)
{
    (void)state;
    struct graph *g = pf_layers(12);
    struct pf f;
    pf_init(&f);
    pf_agent(&f, "phone", 1, PLENTY);
    struct view_agent *cloud = pf_agent(&f, "cloud", 20, PLENTY);
    snprintf(cloud->class_name, sizeof cloud->class_name, "cloud");
    pf_both(&f, 0, 1, 1e9, 0.01);
    struct solve_request q = {.graph = g, .job = "infer", .objective = SOLVE_LATENCY, .batch = 1, .source = 0};
    f.agents[1].memory_bytes = 0;
    double phone_ms = step_of(&q, &f.view);
    f.agents[1].memory_bytes = PLENTY;
    q.objective = SOLVE_CLOUD_COST;
    q.deadline_ms = 0.6 * phone_ms;
    struct plan *p = solved(&q, &f.view);
    assert_true(p->cloud_ms > 0 && p->step_ms <= q.deadline_ms);
    explain_plan(&q, &f.view, &all, p);
    assert_true(p->n_changes > 2);
    for (int32_t i = 0; i < p->n_changes; i++)
        assert_true(isnan(p->changes[i].step_ms) && p->changes[i].cloud_ms <= p->cloud_ms);
    plan_free(p);
    f.agents[0].slow_factor = 1.5;
    p = solved(&q, &f.view);
    explain_plan(&q, &f.view, &all, p);
    assert_non_null(strstr(p->explanation, "with phone at its full pace: "));
    assert_non_null(strstr(p->explanation, "ms of the cloud a step, now "));
    f.agents[0].slow_factor = 1;
    plan_free(p);
    /* Nothing is gained by memory; and where the phone is in time alone, by nothing at all. */
    p = solved(&q, &f.view);
    explain_plan(&q, &f.view, &all, p);
    assert_non_null(strstr(p->explanation, "with twice the memory on every agent: no less of the cloud"));
    plan_free(p);
    q.deadline_ms = 2 * phone_ms;
    p = solved(&q, &f.view);
    assert_true(p->cloud_ms == 0);
    explain_plan(&q, &f.view, &all, p);
    assert_true(p->n_changes > 2);
    assert_non_null(strstr(p->explanation, "The cloud computes nothing of a step"));
    assert_null(strstr(p->explanation, "now 0"));
    assert_null(strstr(p->explanation, "\nwith "));
    plan_free(p);
    pf_fini(&f);
    graph_close(g);
}

/* No time: the bottleneck and the bars all the same, and it is said. A plan that was given is compared with our own. */
static void no_time_and_given_plans(void **state)
{
    (void)state;
    struct graph *g = pf_layers(8);
    struct pf f;
    pf_init(&f);
    pf_agent(&f, "a", 1, PLENTY);
    pf_agent(&f, "b", 50, PLENTY);
    pf_both(&f, 0, 1, 1e9, 0.01);
    struct solve_request q = {
        .graph = g, .job = "batch", .objective = SOLVE_THROUGHPUT, .batch = 32, .microbatch = 1, .source = 0};
    struct plan *p = solved(&q, &f.view), *given, *again;
    const struct explain_options none = {.changes = true, .budget_ms = -1};
    explain_plan(&q, &f.view, &none, p);
    assert_true(p->n_changes == 0 && p->n_binds == 1 && p->n_bars > 0);
    assert_non_null(strstr(p->explanation, "Not all changes were looked at"));
    given = plan_copy(p);
    for (int32_t s = 0; s < given->pipelines[0].n_stages; s++) { /* all of it on the slow one */
        free(given->pipelines[0].stages[s].agent);
        given->pipelines[0].stages[s].agent = yk_xstrdup("a");
    }
    q.forced = given;
    again = solved(&q, &f.view);
    explain_plan(&q, &f.view, &all, again);
    assert_true(near(change_of(again, "plan", "planner's own"), p->step_ms));
    assert_true(p->step_ms < 0.5 * again->step_ms);
    plan_free(again);
    plan_free(given);
    plan_free(p);
    pf_fini(&f);
    graph_close(g);
}

/* Whatever the fleet: nothing breaks, bars end with the step, changes are never slower than the plan. */
static void random_fleets(void **state)
{
    (void)state;
    struct yk_rng r;
    int planned = 0;
    for (uint64_t seed = 1; seed <= 150; seed++) {
        yk_rng_seed(&r, seed);
        struct graph *g = pf_random_graph(&r);
        struct pf f;
        struct plan *p = NULL;
        pf_random(&f, g, &r);
        struct solve_request q = {.graph = g,
            .job = "batch",
            .objective = SOLVE_THROUGHPUT,
            .batch = 1 + (int64_t)yk_rng_below(&r, 40),
            .source = yk_rng_below(&r, 2) ? 0 : -1,
            .pin_first = yk_rng_below(&r, 3) == 0,
            .replicas = yk_rng_below(&r, 2)};
        if (q.source < 0)
            q.pin_first = false;
        if (solve_plan(&q, &f.view, &p, NULL) == YK_OK) {
            explain_plan(&q, &f.view, &all, p);
            if (p->n_bars == 0 || p->n_binds == 0 || p->n_changes == 0)
                fail_msg("seed %d: %s", (int)seed, p->explanation);
            for (int32_t i = 0; i < p->n_bars; i++)
                assert_true(p->bars[i].end_ms <= p->step_ms * (1 + 1e-9));
            for (int32_t i = 0; i < p->n_changes; i++)
                assert_true(p->changes[i].step_ms <= p->step_ms);
            planned++;
        }
        plan_free(p);
        pf_fini(&f);
        graph_close(g);
    }
    assert_true(planned > 60);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bars_are_the_event_model),
        cmocka_unit_test(one_more_device),
        cmocka_unit_test(memory_binds),
        cmocka_unit_test(link_binds),
        cmocka_unit_test(heat_pins_and_other_jobs),
        cmocka_unit_test(cloud_cost),
        cmocka_unit_test(no_time_and_given_plans),
        cmocka_unit_test(random_fleets),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
