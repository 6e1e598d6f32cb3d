/* The planner against an oracle that knows nothing of it (plan_oracle.h): random graphs and fleets with everything that
 * the closed form knows. A twentieth of it by default, all with YOKE_FULL=1; YOKE_SEED chooses the seeds. */
#include "common/grad.h"
#include "scheduler/solve_replicas.h"
#include "tests/tier.h"
#include "tests/unit/plan_oracle.h"

static const bool int8_too[3] = {true, true, true}, fp16_too[3] = {true, true, false};

/* Profiles of both forms at up to three sizes, with bytes of their own. */
static void rich_profiles(struct pf *f, const struct graph *g, struct yk_rng *r)
{
    for (int32_t a = 0; a < f->view.n_agents; a++) {
        if (!f->agents[a].n_times || yk_rng_below(r, 2))
            continue;
        free(f->times[a]);
        struct view_time *t = calloc((size_t)g->n_nodes * 6 + 1, sizeof *t);
        int32_t n = 0;
        assert_non_null(t);
        for (int32_t i = 0; i < g->n_nodes; i++)
            for (int32_t form = 0; form < 2; form++) {
                int64_t size = 1 + (int64_t)yk_rng_below(r, 3);
                double ms = pf_spread(r, 0.02, 2);
                for (int k = (int)yk_rng_below(r, 5) - 1; k >= 0 && k < 3;
                     k++, size *= 2 + (int64_t)yk_rng_below(r, 3)) {
                    t[n++] = (struct view_time){.node = i,
                        .form = form,
                        .size = size,
                        .ms = ms,
                        .packed_bytes = yk_rng_below(r, 3) ? 0 : (int64_t)yk_rng_below(r, 5000),
                        .workspace_bytes = yk_rng_below(r, 3) ? 0 : (int64_t)yk_rng_below(r, 9000)};
                    ms *= 1.2 + yk_rng_unit(r);
                }
            }
        f->times[a] = t;
        f->agents[a].times = t;
        f->agents[a].n_times = n;
    }
}

struct instance {
    struct graph *forward, *g; /* forward: NULL, or what g trains */
    struct grad_info info;
    struct solve_training training;
    struct pf f;
    struct solve_request q;
};

/* A random graph with something to train. */
static void make_training(struct instance *i, struct yk_rng *r)
{
    struct grad_options options;
    grad_options_init(&options);
    options.loss = GRAD_MSE;
    while (true) {
        i->forward = pf_random_graph(r);
        if (grad_build(i->forward, &options, &i->g, &i->info, NULL) == YK_OK)
            break;
        graph_close(i->forward);
    }
    i->training = (struct solve_training){.of = i->info.of,
        .n_forward = i->forward->n_nodes,
        .first_loss = i->info.first_loss,
        .first_backward = i->info.first_backward,
        .state_bytes = (int64_t)yk_rng_below(r, 3)};
    i->q.training = &i->training;
}

enum what { LATENCY, THROUGHPUT, TRAINING, CLOUD };

static void make(struct instance *i, uint64_t seed, enum what what)
{
    struct yk_rng r;
    yk_rng_seed(&r, seed);
    memset(i, 0, sizeof *i);
    if (what == TRAINING)
        make_training(i, &r);
    else
        i->g = pf_random_graph(&r);
    pf_random(&i->f, i->g, &r);
    rich_profiles(&i->f, i->g, &r);
    if (yk_rng_below(&r, 3)) /* so that splits pay more often */
        for (int32_t k = 0; k < i->f.view.n_links; k++) {
            i->f.links[k].bytes_per_s *= 50;
            i->f.links[k].latency_ms *= 0.1;
        }
    struct solve_request *q = &i->q;
    *q = (struct solve_request){.graph = i->g, .model = "m", .closed_form = true, .training = q->training};
    q->objective = what == LATENCY ? SOLVE_LATENCY : SOLVE_THROUGHPUT;
    q->job = what == LATENCY ? "infer" : what == TRAINING ? "train" : "batch";
    q->batch = 1 + (int64_t)yk_rng_below(&r, 24);
    q->microbatch = yk_rng_below(&r, 3) ? 0 : 1 + (int64_t)yk_rng_below(&r, (uint64_t)q->batch);
    q->source = yk_rng_below(&r, 3) ? (int32_t)yk_rng_below(&r, (uint64_t)i->f.view.n_agents) : -1;
    q->answers = what != TRAINING && yk_rng_below(&r, 2);
    q->upload_frac = what == TRAINING && yk_rng_below(&r, 2) ? 0.25 : 0;
    q->pin_first = yk_rng_below(&r, 8) == 0;
    q->pin_last = yk_rng_below(&r, 8) == 0;
    q->replicas = what == THROUGHPUT && yk_rng_below(&r, 3);
    uint64_t codec = yk_rng_below(&r, 4);
    q->codec_allowed = codec == 0 ? int8_too : codec == 1 ? fp16_too : NULL;
    for (int32_t a = 0; a < i->f.view.n_agents && what == CLOUD; a++)
        snprintf(
            i->f.agents[a].class_name, sizeof i->f.agents[a].class_name, "%s", yk_rng_below(&r, 2) ? "cloud" : "phone");
    if (what == CLOUD) { /* a deadline that some plans keep, most often */
        struct po_best best;
        po_solve(q, &i->f.view, &best);
        q->objective = SOLVE_CLOUD_COST;
        q->deadline_ms = (best.n_lines ? best.cost_ms : 1) * (0.9 + 2 * yk_rng_unit(&r) * yk_rng_unit(&r));
    }
}

static void done(struct instance *i)
{
    pf_fini(&i->f);
    graph_close(i->g);
    if (i->forward)
        graph_close(i->forward);
}

struct seen { /* so that nothing is proven of instances that do not have it */
    int plans, refused, split, dag, replicas, limited, media, pins, codecs, by_step;
};

/* What is said of fleets that are too large to look at all pipelines, over all microbatch sizes. */
static double floor_of(const struct instance *i)
{
    int64_t sizes[SOLVE_SIZES];
    int32_t form[64], n = solve_sizes(&i->q, sizes);
    double least = INFINITY;
    cost_choose_forms(&i->q, &i->f.view, form);
    for (int32_t k = 0; k < n; k++) {
        struct cost_model m;
        if (cost_init(&m, &i->q, &i->f.view, form, sizes[k], NULL))
            return 0;
        least = YK_MIN(least, solve_replicas_bound(&m));
        cost_fini(&m);
    }
    return least;
}

static void compare(uint64_t seed, struct instance *i, struct seen *seen)
{
    struct po_best best;
    struct plan *p = NULL, *q = NULL;
    struct yk_diag why = {0};
    const char *bad = NULL;
    unsigned long long id = seed;
    po_solve(&i->q, &i->f.view, &best);
    yk_err err = solve_plan(&i->q, &i->f.view, &p, &why);
    if (err && err != YK_INFEASIBLE)
        fail_msg("YOKE_SEED=%llu: %s", id, why.text);
    if (err) {
        if (best.n_lines)
            fail_msg("YOKE_SEED=%llu: refused (%s), but there is a plan of %.15g ms", id, why.text, best.cost_ms);
        seen->refused++;
        return;
    }
    double cost = po_plan_cost(&i->q, &i->f.view, p, NULL, &bad);
    if (bad)
        fail_msg("YOKE_SEED=%llu: %s\n%s", id, bad, p->explanation);
    if (fabs(cost - p->cost_ms) > 1e-9 * cost)
        fail_msg("YOKE_SEED=%llu: cost_ms is %.15g, its plan costs %.15g\n%s", id, p->cost_ms, cost, p->explanation);
    if (fabs(best.cost_ms - cost) > 1e-9 * cost) {
        for (int32_t k = 0; k < i->g->n_nodes && best.n_lines == 1; k++)
            print_message("source a%d (%d), node %d on a%d\n", best.source, i->q.source, k,
                best.line.agent[best.line.stage_of[k]]);
        fail_msg("YOKE_SEED=%llu: cost_ms %.15g, the least is %.15g (%d pipelines, microbatch %lld)\n%s", id, cost,
            best.cost_ms, best.n_lines, (long long)best.microbatch, p->explanation);
    }
    if (p->bound_ms > best.cost_ms * (1 + 1e-9) ||
        (p->bound_ms < best.cost_ms * (1 - 1e-9) && i->q.objective != SOLVE_LATENCY))
        fail_msg("YOKE_SEED=%llu: bound_ms %.15g, the least is %.15g", id, p->bound_ms, best.cost_ms);
    if (i->q.objective != SOLVE_CLOUD_COST && !i->q.training && floor_of(i) > best.cost_ms * (1 + 1e-9))
        fail_msg("YOKE_SEED=%llu: a floor of %.15g, the least is %.15g", id, floor_of(i), best.cost_ms);
    /* The event model may take one that costs more by the closed form, and says so. */
    i->q.closed_form = false;
    if (solve_plan(&i->q, &i->f.view, &q, &why))
        fail_msg("YOKE_SEED=%llu: %s", id, why.text);
    cost = po_plan_cost(&i->q, &i->f.view, q, NULL, &bad);
    if (bad)
        fail_msg("YOKE_SEED=%llu: by the event model: %s\n%s", id, bad, q->explanation);
    if (fabs(cost - q->cost_ms) > 1e-9 * cost || cost < best.cost_ms * (1 - 1e-9) ||
        q->bound_ms > best.cost_ms * (1 + 1e-9) || q->step_ms > p->step_ms * (1 + 1e-9))
        fail_msg("YOKE_SEED=%llu: by the event model cost_ms %.15g (%.15g), bound_ms %.15g, step_ms %.15g (%.15g)", id,
            q->cost_ms, cost, q->bound_ms, q->step_ms, p->step_ms);
    if (fabs(q->gap - (1 - q->bound_ms / q->cost_ms)) > 1e-9)
        fail_msg("YOKE_SEED=%llu: gap %.15g", id, q->gap);
    seen->plans++;
    seen->split += p->n_pipelines > 1 || p->pipelines[0].n_stages > 1;
    seen->replicas += p->n_pipelines > 1;
    seen->by_step += cost > best.cost_ms * (1 + 1e-9);
    for (int32_t k = 0; k < i->g->n_nodes; k++)
        if (i->g->nodes[k].n_in > 1 && i->g->nodes[k].op->name[0] == 'A') {
            seen->dag++;
            break;
        }
    for (int32_t a = 0; a < i->f.view.n_agents; a++)
        if (i->f.agents[a].memory_bytes < (int64_t)1 << 40) {
            seen->limited++;
            break;
        }
    seen->media += i->f.view.n_links && i->f.links[0].shared >= 0;
    seen->pins += i->q.pin_first || i->q.pin_last;
    for (int32_t c = 0; c < p->n_cuts; c++)
        if (p->cuts[c].codec != CODEC_FP32) {
            seen->codecs++;
            break;
        }
    plan_free(p);
    plan_free(q);
}

static void objective(enum what what)
{
    struct seen seen = {0};
    uint64_t n = tier_count(10000, 500);
    for (uint64_t seed = tier_seed(), end = seed + n; seed < end; seed++) {
        struct instance i;
        make(&i, seed, what);
        compare(seed, &i, &seen);
        done(&i);
    }
    print_message(
        "%d plans, %d refused: %d split, %d DAGs, %d replicas, %d limits, %d media, %d pins, %d codecs; the event "
        "model takes another in %d\n",
        seen.plans, seen.refused, seen.split, seen.dag, seen.replicas, seen.limited, seen.media, seen.pins, seen.codecs,
        seen.by_step);
    int64_t all = (int64_t)n;
    assert_true(tier_share(seen.plans, all, 0.6) && tier_share(seen.split, all, 0.05) &&
                tier_share(seen.dag, all, 0.1) && tier_share(seen.limited, all, 0.2) &&
                tier_share(seen.media, all, 0.1) && tier_share(seen.pins, all, 0.1) &&
                tier_share(seen.codecs, all, 0.03) && (what != THROUGHPUT || tier_share(seen.replicas, all, 0.01)));
}

/* ---- objective cloud-cost ---- */

struct cloud_seen {
    int plans, refused, late, without, some, apart;
};

/* Of the plans in time, by the closed form, the least compute on class cloud, and of those the least cost. */
static void compare_cloud(uint64_t seed, struct instance *i, struct cloud_seen *seen)
{
    struct po_best best;
    struct plan *p = NULL, *by_step = NULL;
    struct yk_diag why = {0};
    const char *bad = NULL;
    unsigned long long id = seed;
    double cloud, limit = i->q.deadline_ms;
    po_solve(&i->q, &i->f.view, &best);
    yk_err err = solve_plan(&i->q, &i->f.view, &p, &why);
    if (err && err != YK_INFEASIBLE)
        fail_msg("YOKE_SEED=%llu: %s", id, why.text);
    seen->refused += err && !best.n_lines;
    seen->late += err && best.n_lines; /* by the event model: at the depth that memory allows it takes longer */
    if (err && best.n_lines && !strstr(why.text, "the deadline is"))
        fail_msg("YOKE_SEED=%llu: refused (%s), but %.15g ms of cloud are in time", id, why.text, best.cloud_ms);
    if (err)
        return;
    double cost = po_plan_cost(&i->q, &i->f.view, p, &cloud, &bad);
    if (bad)
        fail_msg("YOKE_SEED=%llu: %s\n%s", id, bad, p->explanation);
    if (fabs(cost - p->cost_ms) > 1e-9 * cost || fabs(cloud - p->cloud_ms) > 1e-9 * cloud)
        fail_msg("YOKE_SEED=%llu: cost_ms %.15g, its plan costs %.15g; cloud_ms %.15g, it takes %.15g", id, p->cost_ms,
            cost, p->cloud_ms, cloud);
    if (best.n_lines ? cost > limit * (1 + 1e-9) || fabs(cloud - best.cloud_ms) > 1e-9 * cloud ||
                           fabs(cost - best.cost_ms) > 1e-9 * cost
                     : cost <= limit * (1 - 1e-9))
        fail_msg("YOKE_SEED=%llu: cloud_ms %.15g at %.15g ms; the least in time (%.15g ms) is %.15g at %.15g ms\n%s",
            id, cloud, cost, limit, best.cloud_ms, best.cost_ms, p->explanation);
    if (best.n_lines && p->gap > 1e-9)
        fail_msg("YOKE_SEED=%llu: gap %.15g, but it is the least", id, p->gap);
    seen->plans++;
    seen->without += cloud <= 0;
    seen->some += cloud > 0;
    i->q.closed_form = false;
    if (solve_plan(&i->q, &i->f.view, &by_step, &why)) /* the other one was in time by it */
        fail_msg("YOKE_SEED=%llu: by the event model: %s", id, why.text);
    po_plan_cost(&i->q, &i->f.view, by_step, &cloud, &bad);
    if (bad || by_step->step_ms > limit * (1 + 1e-9) || cloud > p->cloud_ms * (1 + 1e-9))
        fail_msg("YOKE_SEED=%llu: by the event model: %s; %.15g ms of the cloud (%.15g) in %.15g ms", id,
            bad ? bad : "worse", cloud, p->cloud_ms, by_step->step_ms);
    seen->apart += cloud < p->cloud_ms * (1 - 1e-9);
    plan_free(p);
    plan_free(by_step);
}

static void cloud_cost(void **state)
{
    (void)state;
    struct cloud_seen seen = {0};
    uint64_t n = tier_count(10000, 500);
    for (uint64_t seed = tier_seed(), end = seed + n; seed < end; seed++) {
        struct instance i;
        make(&i, seed, CLOUD);
        compare_cloud(seed, &i, &seen);
        done(&i);
    }
    print_message(
        "%d plans, %d refused, %d only by the event model: %d without the cloud, %d with some of it; the event "
        "model takes less in %d\n",
        seen.plans, seen.refused, seen.late, seen.without, seen.some, seen.apart);
    int64_t all = (int64_t)n;
    assert_true(tier_share(seen.plans, all, 0.5) && tier_share(seen.without, all, 0.2) &&
                tier_share(seen.some, all, 0.2) && tier_share(all - seen.late, all, 0.98));
}

/* ---- larger ones, a feature at a time ---- */

enum feature { PLAIN, SKIPS, LIMITS, MEDIA, PINS, CODECS, MESSAGES, GAPS, UNEVEN, SIZES, REPLICAS, TRAINED, FEATURES };

/* n nodes in a chain, half of them MatMul; with skips some Add read an older value too. */
static struct graph *long_graph(struct yk_rng *r, int n, bool skips)
{
    static const int64_t widths[] = {64, 256, 1024};
    struct graph *g = fx_open();
    int32_t ids[32];
    int64_t width[32];
    char name[16], weight[16];
    graph_sym(g, "N");
    width[0] = widths[yk_rng_below(r, 3)];
    ids[0] = fx_input(g, "x", DT_F32, (const int64_t[]){-1, width[0]}, 2);
    for (int i = 0; i < n; i++) {
        int other = -1;
        snprintf(name, sizeof name, "v%d", i);
        snprintf(weight, sizeof weight, "w%d", i);
        for (int k = 0; skips && k < i; k++)
            if (width[k] == width[i] && yk_rng_below(r, 2))
                other = k;
        width[i + 1] = width[i];
        if (other >= 0) {
            ids[i + 1] = fx_node(g, "Add", name, IDS(ids[i], ids[other]));
        } else if (yk_rng_below(r, 2) || i == 0) {
            width[i + 1] = widths[yk_rng_below(r, 3)];
            int32_t w = fx_weight(g, weight, (const int64_t[]){width[i], width[i + 1]}, 2);
            ids[i + 1] = fx_node(g, "MatMul", name, IDS(ids[i], w));
        } else {
            ids[i + 1] = fx_node(g, "Relu", name, IDS(ids[i]));
        }
    }
    fx_output(g, ids[n]);
    return g;
}

static void make_large(struct instance *i, uint64_t seed, enum feature f)
{
    struct yk_rng r;
    yk_rng_seed(&r, seed);
    memset(i, 0, sizeof *i);
    bool small = f == REPLICAS || f == TRAINED || f == SIZES;
    int32_t n_agents = small ? 4 : 4 + (int32_t)yk_rng_below(&r, 2);
    int nodes = small ? 5 + (int)yk_rng_below(&r, 3) : n_agents == 5 ? 8 + (int)yk_rng_below(&r, 6) : 13;
    struct solve_training none = {0};
    i->g = long_graph(&r, nodes, f == SKIPS || (f == TRAINED && seed % 2));
    if (f == TRAINED) {
        struct grad_options options;
        grad_options_init(&options);
        options.loss = GRAD_MSE;
        i->forward = i->g;
        assert_int_equal(grad_build(i->forward, &options, &i->g, &i->info, NULL), YK_OK);
        none = (struct solve_training){.of = i->info.of,
            .n_forward = i->forward->n_nodes,
            .first_loss = i->info.first_loss,
            .first_backward = i->info.first_backward,
            .state_bytes = 1};
    }
    i->training = none;
    pf_init(&i->f);
    for (int32_t a = 0; a < n_agents; a++) {
        char name[16];
        snprintf(name, sizeof name, "a%d", a);
        struct view_agent *v = pf_agent(&i->f, name, 0.2 * (1 + 4 * yk_rng_unit(&r)), (int64_t)1 << 40);
        if (f == LIMITS)
            v->memory_bytes = 1000000 + (int64_t)yk_rng_below(&r, 8000000);
        if (f == MESSAGES)
            v->message_ms = yk_rng_unit(&r);
        if (f == UNEVEN) {
            v->slow_factor = 1 + yk_rng_unit(&r);
            v->busy_frac = yk_rng_unit(&r) * 0.7;
            v->usable = a == 0 || yk_rng_below(&r, 5) > 0;
        }
    }
    if (f == UNEVEN)
        rich_profiles(&i->f, i->g, &r);
    double rate = pow(10, 6 + 3 * yk_rng_unit(&r));
    for (int32_t a = -(int32_t)yk_rng_below(&r, 2); a < n_agents; a++)
        for (int32_t b = 0; b < n_agents; b++) {
            if (a == b || (f == GAPS && yk_rng_below(&r, 4) == 0))
                continue;
            struct view_link *l = pf_link(&i->f, a, b, rate * (1 + 9 * yk_rng_unit(&r)), yk_rng_unit(&r));
            l->shared = f == MEDIA ? (int32_t)yk_rng_below(&r, 3) - 1 : -1;
            l->cpu_ns_per_byte = f == CODECS ? yk_rng_unit(&r) : 0;
        }
    i->q = (struct solve_request){.graph = i->g,
        .model = "m",
        .job = f == TRAINED ? "train" : "batch",
        .objective = SOLVE_THROUGHPUT,
        .closed_form = true,
        .batch = 2 + (int64_t)yk_rng_below(&r, 15),
        .microbatch = f != SIZES,
        .source = f == SIZES ? -1 : (int32_t)yk_rng_below(&r, 3),
        .pin_first = f == PINS && seed % 2,
        .pin_last = f == PINS && seed % 3,
        .replicas = f == REPLICAS,
        .codec_allowed = f == CODECS ? (seed % 2 ? int8_too : fp16_too) : NULL,
        .training = f == TRAINED ? &i->training : NULL};
}

static void larger(void **state)
{
    (void)state;
    struct seen seen = {0};
    for (uint64_t seed = tier_seed(), end = seed + YK_MAX(tier_count(300, 15), (uint64_t)FEATURES); seed < end;
         seed++) {
        struct instance i;
        make_large(&i, seed, (enum feature)(seed % FEATURES));
        compare(seed, &i, &seen);
        done(&i);
    }
    print_message("%d plans, %d refused: %d split, %d replicas; the event model takes another in %d\n", seen.plans,
        seen.refused, seen.split, seen.replicas, seen.by_step);
    int64_t all = seen.plans + seen.refused;
    assert_true(tier_share(seen.plans, all, 0.9) && tier_share(seen.split, all, 0.5));
}

static void latency(void **state)
{
    (void)state;
    objective(LATENCY);
}

static void throughput(void **state)
{
    (void)state;
    objective(THROUGHPUT);
}

static void training(void **state)
{
    (void)state;
    objective(TRAINING);
}

/* Seeds that found a fault once. */
static void found_once(void **state)
{
    (void)state;
    static const struct {
        enum what what;
        uint64_t seed;
    } found[] = {{LATENCY, 61}, {LATENCY, 123}, {LATENCY, 21114}, {LATENCY, 2765}, {LATENCY, 2883}, {THROUGHPUT, 22},
        {THROUGHPUT, 212}, {THROUGHPUT, 7778067}, {TRAINING, 2}};
    struct seen seen = {0};
    for (size_t k = 0; k < YK_COUNT(found); k++) {
        struct instance i;
        make(&i, found[k].seed, found[k].what);
        compare(found[k].seed, &i, &seen);
        done(&i);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(latency),
        cmocka_unit_test(throughput),
        cmocka_unit_test(training),
        cmocka_unit_test(cloud_cost),
        cmocka_unit_test(larger),
        cmocka_unit_test(found_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
