/* Why there is no plan: every set that is told is checked by planning again. With all of it, and nothing else of the
 * request and the fleet, there is no plan; without any one of it there is. */
#include <math.h>

#include "common/grad.h"
#include "common/passes.h"
#include "scheduler/cli/networks.h"
#include "scheduler/cost.h"
#include "scheduler/infeasible.h"
#include "tests/unit/plan_fleet.h"

#define PLENTY ((int64_t)1 << 40)
#define MB ((int64_t)1 << 20)
#define BUDGET 1e6

static yk_err plan_with(
    const struct solve_request *q, const struct view *v, const struct infeasible_set *all, const bool *without)
{
    struct solve_request r;
    struct plan *p = NULL;
    struct view *w = infeasible_relax(q, v, all, without, &r);
    assert_non_null(w);
    yk_err err = solve_plan(&r, w, &p, NULL);
    plan_free(p);
    view_free(w);
    return err;
}

static int32_t position(const struct infeasible_set *set, struct infeasible_item it)
{
    for (int32_t i = 0; i < set->n; i++)
        if (set->items[i].kind == it.kind && set->items[i].agent == it.agent && set->items[i].other == it.other)
            return i;
    return -1;
}

static void check_minimal(const struct solve_request *q, const struct view *v, const struct infeasible_set *set)
{
    struct infeasible_set all;
    bool without[INFEASIBLE_ITEMS];
    infeasible_all(q, v, &all);
    assert_true(set->proven);
    for (int32_t i = 0; i < all.n; i++)
        without[i] = position(set, all.items[i]) < 0;
    assert_int_equal(plan_with(q, v, &all, without), YK_INFEASIBLE);
    for (int32_t i = 0; i < set->n; i++) {
        int32_t at = position(&all, set->items[i]);
        assert_true(at >= 0);
        without[at] = true;
        if (plan_with(q, v, &all, without) != YK_OK)
            fail_msg("item %d (kind %d, agent %d) is not needed", i, set->items[i].kind, set->items[i].agent);
        without[at] = false;
    }
}

/* The set is these; the text says each of `says` (NULL-ended). */
static void expect(const struct solve_request *q, const struct pf *f, const struct infeasible_item *items, int32_t n,
    const char *const *says)
{
    struct infeasible_set set;
    struct yk_diag why = {.text = "unchanged"};
    assert_int_equal(infeasible_find(q, &f->view, BUDGET, &set), YK_OK);
    check_minimal(q, &f->view, &set);
    infeasible_explain(q, &f->view, BUDGET, &why);
    bool same = set.n == n;
    for (int32_t i = 0; i < n && same; i++)
        same = position(&set, items[i]) >= 0;
    if (!same)
        fail_msg("a set of %d: %s", set.n, why.text);
    for (; *says; says++)
        if (!strstr(why.text, *says))
            fail_msg("'%s' does not say '%s'", why.text, *says);
}
#define ITEMS(...)                                 \
    (const struct infeasible_item[]){__VA_ARGS__}, \
        (int32_t)(sizeof(struct infeasible_item[]){__VA_ARGS__} / sizeof(struct infeasible_item))
#define SAYS(...)         \
    (const char *const[]) \
    {                     \
        __VA_ARGS__, NULL \
    }
#define OF_REQUEST(kind) \
    {                    \
        kind, -1, -1     \
    }
#define MEMORY(agent)                \
    {                                \
        INFEASIBLE_MEMORY, agent, -1 \
    }

static struct solve_request batch_of(const struct graph *g, int64_t batch, int64_t microbatch)
{
    return (struct solve_request){.graph = g,
        .model = "m",
        .job = "batch",
        .objective = SOLVE_THROUGHPUT,
        .batch = batch,
        .microbatch = microbatch,
        .source = 0};
}

/* Agents report nothing, nonsense, too little, or reported too long ago: each is named, with its number. */
static void memory_of_all(void **state)
{
    (void)state;
    struct graph *g = pf_layers(4);
    struct pf f;
    pf_init(&f);
    pf_agent(&f, "mac", 10, 0);
    pf_agent(&f, "pi", 10, -1);
    pf_agent(&f, "tiny", 10, MB);
    struct view_agent *gone = pf_agent(&f, "gone", 10, 64 * MB);
    struct view_agent *blank = pf_agent(&f, "blank", 10, 0); /* as the fleet gives one that reported none */
    gone->usable = blank->usable = false;
    snprintf(gone->why_not, sizeof gone->why_not, "its last report is 90 s old");
    snprintf(blank->why_not, sizeof blank->why_not, "memory is unknown, and then nothing is placed there");
    for (int32_t i = 0; i < 5; i++)
        for (int32_t k = 0; k < i; k++)
            pf_both(&f, i, k, 1e8, 0.1);
    struct solve_request q = batch_of(g, 4, 4);
    expect(&q, &f, ITEMS(MEMORY(0), MEMORY(1), MEMORY(2), MEMORY(4), {INFEASIBLE_NOT_USED, 3, -1}),
        SAYS("cannot hold together", "agent mac: memory is unknown, it reports 0", "agent pi: memory is unknown",
            "agent tiny: memory of its stages is 4.2", "its limit 1.049 MB", "agent blank: memory is unknown",
            "--memory=BYTES", "agent gone: its last report is 90 s old"));
    pf_fini(&f);
    graph_close(g);
}

static void memory_alone(void **state)
{
    (void)state;
    struct graph *g = pf_layers(4);
    struct pf f;
    pf_init(&f);
    pf_agent(&f, "pc", 10, 2 * MB);
    struct solve_request q = batch_of(g, 4, 4);
    expect(&q, &f, ITEMS(MEMORY(0)), SAYS("agent pc: memory of its stages is 4.2", "its limit 2.097 MB"));
    pf_fini(&f);
    graph_close(g);
}

static void memory_and_links(void **state)
{
    (void)state;
    struct graph *g = pf_layers(8);
    struct pf f;
    pf_init(&f);
    pf_agent(&f, "host", 1, 4 * MB);
    pf_agent(&f, "ghost", 100, 64 * MB);
    pf_link(&f, 0, 1, 1e9, 0.1)->origin = VIEW_UNKNOWN;
    pf_link(&f, 1, 0, 1e9, 0.1)->origin = VIEW_UNKNOWN;
    struct solve_request q = batch_of(g, 16, 4);
    expect(&q, &f, ITEMS(MEMORY(0), {INFEASIBLE_LINKS, 0, 1}),
        SAYS("link host->ghost is not measured, nor is the way back", "agent host: memory"));
    f.links[0].origin = VIEW_MEASURED; /* one way is there */
    expect(&q, &f, ITEMS(MEMORY(0), {INFEASIBLE_LINKS, 0, 1}), SAYS("link ghost->host is not measured:"));
    pf_fini(&f);
    graph_close(g);
}

static void pins(void **state)
{
    (void)state;
    struct graph *g = pf_layers(8);
    struct pf f;
    pf_init(&f);
    pf_agent(&f, "phone", 1, MB / 2);
    pf_agent(&f, "pc", 100, 64 * MB);
    pf_both(&f, 0, 1, 1e9, 0.1);
    struct solve_request q = batch_of(g, 16, 4);
    q.pin_first = true;
    expect(&q, &f, ITEMS(MEMORY(0), OF_REQUEST(INFEASIBLE_PIN_FIRST)),
        SAYS("--pin=first wants that stage on phone: leave it out", "agent phone: memory"));
    q.pin_first = false;
    q.pin_last = true;
    expect(&q, &f, ITEMS(MEMORY(0), OF_REQUEST(INFEASIBLE_PIN_LAST)), SAYS("--pin=last"));
    q.pin_first = true; /* either would do for a set: one of them is in it */
    expect(&q, &f, ITEMS(MEMORY(0), OF_REQUEST(INFEASIBLE_PIN_LAST)), SAYS("--pin=last"));
    pf_fini(&f);
    graph_close(g);
}

static double best_ms(const struct solve_request *q, const struct pf *f)
{
    struct solve_request r = *q;
    struct plan *p = NULL;
    struct yk_diag why = {0};
    r.deadline_ms = 0;
    if (solve_plan(&r, &f->view, &p, &why))
        fail_msg("%s", why.text);
    double ms = p->step_ms;
    plan_free(p);
    return ms;
}

static void deadlines(void **state)
{
    (void)state;
    struct graph *g = pf_layers(8);
    struct pf f;
    char text[80];
    pf_init(&f);
    pf_agent(&f, "phone", 1, 64 * MB);
    struct view_agent *pc = pf_agent(&f, "pc", 100, 64 * MB);
    pf_both(&f, 0, 1, 1e9, 0.1);
    struct solve_request q = batch_of(g, 16, 4);
    double both = best_ms(&q, &f);
    q.deadline_ms = 1e-3; /* nothing makes that */
    snprintf(text, sizeof text, "the best plan needs %.4g ms, bottleneck", both);
    expect(&q, &f, ITEMS(OF_REQUEST(INFEASIBLE_DEADLINE)), SAYS("no plan for m: the deadline is 0.001 ms", text));
    /* with a pair of one other kind each */
    q.deadline_ms = 2 * both;
    pc->memory_bytes = MB / 2;
    expect(&q, &f, ITEMS(OF_REQUEST(INFEASIBLE_DEADLINE), MEMORY(1)), SAYS("the deadline is", "agent pc: memory"));
    pc->memory_bytes = 64 * MB;
    pc->usable = false;
    snprintf(pc->why_not, sizeof pc->why_not, "heat is critical");
    expect(&q, &f, ITEMS(OF_REQUEST(INFEASIBLE_DEADLINE), {INFEASIBLE_NOT_USED, 1, -1}),
        SAYS("agent pc: heat is critical", "bring it back"));
    pc->usable = true;
    q.pin_first = q.pin_last = true; /* either would do for a set: one of them is in it */
    q.microbatch = 16;
    expect(&q, &f, ITEMS(OF_REQUEST(INFEASIBLE_DEADLINE), OF_REQUEST(INFEASIBLE_PIN_LAST)), SAYS("--pin=last"));
    q.pin_first = q.pin_last = false;
    f.view.n_links = 0;
    expect(&q, &f, ITEMS(OF_REQUEST(INFEASIBLE_DEADLINE), {INFEASIBLE_LINKS, 0, 1}), SAYS("link phone->pc"));
    pf_fini(&f);
    graph_close(g);
}

/* The link is what takes the time: halves would do. */
static void deadline_and_codec(void **state)
{
    (void)state;
    struct graph *g = pf_layers(8);
    struct pf f;
    pf_init(&f);
    pf_agent(&f, "phone", 0.01, 64 * MB);
    pf_agent(&f, "pc", 100, 64 * MB);
    pf_both(&f, 0, 1, 1e6, 0.1);
    struct solve_request q = batch_of(g, 16, 0);
    q.deadline_ms = 0.8 * best_ms(&q, &f);
    expect(&q, &f, ITEMS(OF_REQUEST(INFEASIBLE_DEADLINE), OF_REQUEST(INFEASIBLE_CODEC)),
        SAYS("links carry only what was allowed, fp32", "--codec=fp16"));
    static const bool halves[] = {true, true, false};
    q.codec_allowed = halves;
    q.deadline_ms = 0.6 * best_ms(&q, &f);
    expect(&q, &f, ITEMS(OF_REQUEST(INFEASIBLE_DEADLINE), OF_REQUEST(INFEASIBLE_CODEC)), SAYS("fp32 and fp16"));
    pf_fini(&f);
    graph_close(g);
}

/* What stays for 4096 samples does not fit, what stays for one would. */
static void microbatch_and_batch(void **state)
{
    (void)state;
    struct graph *g = pf_layers(2);
    struct pf f;
    pf_init(&f);
    pf_agent(&f, "pc", 10, 4 * MB);
    struct solve_request q = batch_of(g, 4096, 4096);
    expect(&q, &f, ITEMS(MEMORY(0), OF_REQUEST(INFEASIBLE_MICROBATCH)),
        SAYS("microbatch 4096 was asked for: a smaller one, or auto", "(microbatch 4096)"));
    q.job = "infer";
    q.objective = SOLVE_LATENCY;
    q.microbatch = 0;
    expect(
        &q, &f, ITEMS(MEMORY(0), OF_REQUEST(INFEASIBLE_BATCH)), SAYS("a single request of 4096 samples stays whole"));
    pf_fini(&f);
    graph_close(g);
}

static void batch_norm(void **state)
{
    (void)state;
    const struct networks_options o = {.classes = 10, .channels = 3, .height = 64, .width = 64};
    struct grad_options options;
    struct grad_info info;
    struct graph *forward = NULL, *g = NULL;
    struct yk_diag why = {0};
    grad_options_init(&options);
    if (networks_make("resnet-small", &o, &forward, &why) || passes_train(forward, NULL, NULL, &why) ||
        grad_build(forward, &options, &g, &info, &why))
        fail_msg("%s", why.text);
    const struct solve_training training = {.of = info.of,
        .first_loss = info.first_loss,
        .first_backward = info.first_backward,
        .n_forward = forward->n_nodes,
        .state_bytes = 1};
    struct pf f;
    struct plan *p = NULL;
    pf_init(&f);
    pf_agent(&f, "pc", 10, PLENTY);
    struct solve_request q = {.graph = g,
        .model = "net",
        .job = "train",
        .objective = SOLVE_THROUGHPUT,
        .batch = 64,
        .source = 0,
        .training = &training,
        .microbatch = 4};
    assert_int_equal(solve_plan(&q, &f.view, &p, &why), YK_OK);
    int64_t small = f.agents[0].memory_bytes = p->pipelines[0].stages[0].memory_bytes;
    plan_free(p);
    q.microbatch = 0;
    expect(&q, &f, ITEMS(MEMORY(0), OF_REQUEST(INFEASIBLE_BATCH_NORM)),
        SAYS("not trained on fewer than 16 samples unless asked", "agent pc: memory"));
    /* The source of a training reads a batch at once: it is the batch that does not fit, and that is said. */
    struct solve_training whole = training;
    whole.info = &info;
    q.training = &whole;
    q.microbatch = 16;
    f.agents[0].memory_bytes = 1000000000;
    q.batch = 1000000;
    expect(&q, &f, ITEMS(MEMORY(0)),
        SAYS("a batch of 1000000 samples is 49160.000 MB more", "its limit 1000.000 MB", "a --batch of at most "));
    struct yk_diag said = {0};
    infeasible_explain(&q, &f.view, BUDGET, &said);
    q.batch = strtoll(strstr(said.text, "at most ") + 8, NULL, 10) * 9 / 10;
    p = NULL;
    if (q.batch < 10000 || solve_plan(&q, &f.view, &p, &why))
        fail_msg("a batch of %lld: %s", (long long)q.batch, why.text);
    plan_free(p);
    q.training = &training;
    q.batch = 64;
    f.agents[0].memory_bytes = small;
    q.microbatch = 64;
    expect(&q, &f, ITEMS(MEMORY(0), OF_REQUEST(INFEASIBLE_MICROBATCH)), SAYS("microbatch 64 was asked for"));
    pf_fini(&f);
    graph_close(g);
    graph_close(forward);
}

static void ops_that_nobody_runs(void **state)
{
    (void)state;
    struct graph *g = pf_chain(4, 64);
    struct pf f;
    double ms[4] = {1, 1, 1, 1};
    pf_init(&f);
    pf_agent(&f, "one", 10, PLENTY);
    pf_agent(&f, "two", 0, PLENTY);
    pf_both(&f, 0, 1, 1e8, 0.1);
    pf_profile(&f, 0, ms, 3); /* not the last one */
    struct solve_request q = batch_of(g, 4, 4);
    expect(&q, &f, ITEMS({INFEASIBLE_OPS, 0, -1}, {INFEASIBLE_OPS, 1, -1}),
        SAYS("agent one cannot run 1 of 4 nodes, the first is node 3 'v3' (Relu)", "agent two has no profile"));
    pf_fini(&f);
    graph_close(g);
}

/* Nothing of the request or the fleet is the reason, or there is a plan: the text stays. And no time: it says so. */
static void nothing_to_say(void **state)
{
    (void)state;
    struct graph *g = pf_layers(4);
    struct pf f;
    struct infeasible_set set;
    struct yk_diag why = {.text = "as it was"};
    pf_init(&f);
    pf_agent(&f, "pc", 10, 64 * MB);
    struct solve_request q = batch_of(g, 4, 4);
    assert_int_equal(infeasible_find(&q, &f.view, BUDGET, &set), YK_STATE);
    infeasible_explain(&q, &f.view, BUDGET, &why);
    assert_string_equal(why.text, "as it was");
    f.agents[0].memory_bytes = MB;
    assert_int_equal(infeasible_find(&q, &f.view, 0, &set), YK_OK);
    assert_false(set.proven);
    infeasible_explain(&q, &f.view, 0, &why);
    assert_non_null(strstr(why.text, "no time to find out"));
    f.view.n_agents = 0;
    snprintf(why.text, sizeof why.text, "as it was");
    infeasible_explain(&q, &f.view, BUDGET, &why);
    assert_string_equal(why.text, "as it was");
    infeasible_explain(&q, &f.view, BUDGET, NULL);
    pf_fini(&f);
    graph_close(g);
}

/* More agents than are looked at one by one. */
static void many_agents(void **state)
{
    (void)state;
    enum { AGENTS = 40 };
    static struct view_agent agents[AGENTS];
    static struct view_link links[AGENTS * 2];
    struct view v = {.agents = agents, .links = links, .n_agents = AGENTS};
    struct graph *g = pf_layers(4);
    struct infeasible_set set;
    struct yk_diag why = {0};
    for (int32_t i = 0; i < AGENTS; i++) {
        agents[i] = (struct view_agent){.usable = true, .memory_bytes = 1000 + i, .gflops = 1, .slow_factor = 1};
        snprintf(agents[i].name, sizeof agents[i].name, "a%d", i);
        for (int32_t back = 0; i > 0 && back < 2; back++)
            links[v.n_links++] = (struct view_link){
                .from = back ? i : 0, .to = back ? 0 : i, .bytes_per_s = 1e9, .shared = -1, .origin = VIEW_MEASURED};
    }
    struct solve_request q = batch_of(g, 4, 4);
    assert_int_equal(infeasible_find(&q, &v, BUDGET, &set), YK_OK);
    check_minimal(&q, &v, &set);
    assert_true(set.n == 1 && set.items[0].kind == INFEASIBLE_MEMORY && set.items[0].agent == -1);
    infeasible_explain(&q, &v, BUDGET, &why);
    assert_non_null(strstr(why.text, "of all agents the most has agent a39: memory of its stages is 4.2"));
    graph_close(g);
}

static void random_requests(void **state)
{
    (void)state;
    static const bool halves[] = {true, true, false};
    struct yk_rng r;
    int found = 0, pairs = 0;
    for (uint64_t seed = 1; seed <= 120; seed++) {
        yk_rng_seed(&r, seed);
        struct graph *g = pf_random_graph(&r);
        struct pf f;
        struct infeasible_set set;
        struct plan *p = NULL;
        pf_random(&f, g, &r);
        struct solve_request q = batch_of(g, 1 + (int64_t)yk_rng_below(&r, 20), (int64_t)yk_rng_below(&r, 3) * 4);
        q.pin_first = yk_rng_below(&r, 3) == 0;
        q.pin_last = yk_rng_below(&r, 3) == 0;
        q.codec_allowed = yk_rng_below(&r, 2) ? halves : NULL;
        q.deadline_ms = yk_rng_below(&r, 2) ? 0.01 + 20 * yk_rng_unit(&r) : 0;
        for (int32_t a = 0; a < f.view.n_agents; a++)
            if (yk_rng_below(&r, 2))
                f.agents[a].memory_bytes = (int64_t)yk_rng_below(&r, 30000);
        yk_err err = solve_plan(&q, &f.view, &p, NULL);
        plan_free(p);
        if (err == YK_INFEASIBLE && infeasible_find(&q, &f.view, BUDGET, &set) == YK_OK) {
            struct yk_diag why = {0};
            check_minimal(&q, &f.view, &set);
            infeasible_explain(&q, &f.view, BUDGET, &why);
            assert_int_equal(strncmp(why.text, "no plan for m: ", 15), 0);
            found++;
            pairs += set.n > 1;
        }
        pf_fini(&f);
        graph_close(g);
    }
    assert_true(found > 25 && pairs > 10);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(memory_of_all),
        cmocka_unit_test(memory_alone),
        cmocka_unit_test(memory_and_links),
        cmocka_unit_test(pins),
        cmocka_unit_test(deadlines),
        cmocka_unit_test(deadline_and_codec),
        cmocka_unit_test(microbatch_and_batch),
        cmocka_unit_test(batch_norm),
        cmocka_unit_test(ops_that_nobody_runs),
        cmocka_unit_test(nothing_to_say),
        cmocka_unit_test(many_agents),
        cmocka_unit_test(random_requests),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
