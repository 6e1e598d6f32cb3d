/* The ways between yoked and its agents, on virtual time with real agents behind emulated links: they are measured, and
 * data without a source goes to the nearer of two equal devices. */
#include "scheduler/view.h"
#include "tests/sim/train_site.h"

/* The second agent has this link. */
static struct site *two(double up_latency_ms, double bytes_per_s)
{
    struct site *s = site_open(1);
    s->link.up_latency_ms = s->link.down_latency_ms = up_latency_ms;
    s->link.bytes_per_s = bytes_per_s;
    s->n_agents = 2;
    site_start(s, 1);
    site_links(s);
    for (int ms = 0; ms < 60000 && !fleet_uplinks_ready(sched_fleet(s->h->s)); ms += 100)
        run_ms(s->h, 100);
    return s;
}

static void near(const char *what, double got, double want, double frac)
{
    if (!(fabs(got - want) <= want * frac))
        fail_msg("%s: got %g, expected %g within %g", what, got, want, frac);
}

static void check(struct site *s, const char *name, double bytes_per_s, double latency_ms)
{
    struct view *v = fleet_view(sched_fleet(s->h->s), NULL);
    int n = 0;
    for (int32_t i = 0; i < v->n_links; i++) {
        const struct view_link *l = &v->links[i];
        if ((l->from >= 0 && l->to >= 0) || strcmp(v->agents[YK_MAX(l->from, l->to)].name, name) != 0)
            continue;
        n++;
        assert_int_equal(l->origin, VIEW_MEASURED);
        near("rate", l->bytes_per_s, bytes_per_s, 0.2);
        near("latency", l->latency_ms, latency_ms, 0.2);
    }
    assert_int_equal(n, 2);
    view_free(v);
}

static void measured(void **state)
{
    (void)state;
    struct site *s = two(10, 20e6);
    check(s, "a0", 2e6, 0.25);
    check(s, "a1", 20e6, 10);
    site_close(s);
}

static char *planned_source(struct site *s, const char *kind, const char *more)
{
    char *request = yk_xasprintf("{\"kind\":\"%s\",\"model\":\"m\",\"batch\":4%s}", kind, more);
    sched_plan(s->h->s, request, strlen(request), on_text, s->h);
    wait_answer(s->h, 600000);
    struct json *doc = answer_json(s->h);
    char *source = yk_xstrdup(json_str(json_find(doc, "source"), "?"));
    json_free(doc);
    free(request);
    return source;
}

static bool holds(struct site *s, int i, const char *hash)
{
    struct storage_map map;
    char key[80];
    snprintf(key, sizeof key, "blobs/%s", hash);
    if (s->storage[i]->ops->map(s->storage[i], key, &map, NULL))
        return false;
    s->storage[i]->ops->unmap(s->storage[i], &map);
    return true;
}

static void nearer_is_the_source(void **state)
{
    (void)state;
    for (int far = 0; far < 2; far++) {
        struct site *s = far ? two(20, 2e6) : site_open(0);
        const char *want = far ? "a0" : "a1";
        if (!far) {
            s->link.up_latency_ms = s->link.down_latency_ms = 20;
            s->n_agents = 2;
            site_start(s, 0);
            s->link.up_latency_ms = s->link.down_latency_ms = 0.2;
            site_start(s, 1);
            site_links(s);
        }
        site_network(s, "m", "mlp", 1, 8);
        static const char *const asked[][2] = {{"infer", ""}, {"batch", ""}, {"batch", ",\"outputs\":true"},
            {"train", ",\"train\":{\"epochs\":2,\"seed\":1}"}};
        for (size_t i = 0; i < YK_COUNT(asked); i++) {
            char *source = planned_source(s, asked[i][0], asked[i][1]);
            if (strcmp(source, want) != 0)
                fail_msg("%s%s: the source is %s, %s is nearer", asked[i][0], asked[i][1], source, want);
            free(source);
        }
        struct shape shape = {.dtype = DT_F32, .rank = 4, .dims = {4, 1, 8, 8}};
        static const float zeros[4 * 64];
        struct yk_buf b = {0};
        char hash[65];
        assert_int_equal(npy_header(&shape, &b), YK_OK);
        yk_buf_add(&b, zeros, sizeof zeros);
        upload(s->h, b.data, b.len, hash);
        yk_buf_free(&b);
        char *request = yk_xasprintf(
            "{\"kind\":\"infer\",\"model\":\"m\",\"batch\":4,\"data\":{\"blob\":\"%s\"},\"outputs\":true}", hash);
        int64_t id = submit(s->h, request);
        free(request);
        wait_over(s->h, id, 120000);
        expect_state(s->h, id, "done");
        assert_true(holds(s, !far, hash) && !holds(s, far, hash));
        site_close(s);
    }
}

/* ---- what a plan takes to be there ---- */

static const struct json *first_stage(const struct json *plan)
{
    return json_at(json_find(json_at(json_find(plan, "pipelines"), 0), "stages"), 0);
}

static void ask_plan(struct site *s, const char *request, double *load_ms, int64_t *fetch_bytes)
{
    sched_plan(s->h->s, request, strlen(request), on_text, s->h);
    wait_answer(s->h, 600000);
    struct json *doc = answer_json(s->h);
    const struct json *stage = first_stage(doc);
    *load_ms = json_f64(json_find(stage, "load_ms"), -1);
    *fetch_bytes = json_i64(json_find(stage, "fetch_bytes"), -1);
    json_free(doc);
}

/* What a plan says that it takes to load is what the load then takes, over the link as it is; and nothing to fetch is
 * left afterwards, nor for an agent that comes back with its cache. One that lost it fetches again. */
static void loading_as_predicted(void **state)
{
    (void)state;
    struct site *s = site_open(1);
    const char *request = "{\"kind\":\"infer\",\"model\":\"m\",\"batch\":1}";
    double ms, took = -1, mb = -1;
    int64_t bytes;
    site_network(s, "m", "mlp", 1, 28);
    ask_plan(s, request, &ms, &bytes);
    assert_true(bytes > 100000);
    near("predicted", ms, (double)bytes / 2e6 * 1e3, 0.3);
    struct shape shape = {.dtype = DT_F32, .rank = 4, .dims = {1, 1, 28, 28}};
    static const float zeros[784];
    struct yk_buf b = {0};
    char hash[65];
    assert_int_equal(npy_header(&shape, &b), YK_OK);
    yk_buf_add(&b, zeros, sizeof zeros);
    upload(s->h, b.data, b.len, hash);
    yk_buf_free(&b);
    char *job = yk_xasprintf("{\"kind\":\"infer\",\"model\":\"m\",\"data\":{\"blob\":\"%s\"},\"outputs\":true}", hash);
    int64_t id = submit(s->h, job);
    free(job);
    wait_over(s->h, id, 120000);
    expect_state(s->h, id, "done");
    sched_events(s->h->s, id, 0, 0, on_text, s->h);
    wait_answer(s->h, 1000);
    struct json *doc = answer_json(s->h);
    const struct json *all = json_find(doc, "events");
    for (size_t i = 0; i < json_len(all); i++) {
        const char *text = json_str(json_find(json_at(all, i), "text"), "");
        const char *at = strstr(text, "holds its stages: ");
        if (at)
            assert_int_equal(sscanf(at, "holds its stages: %*f MB, %lf ms, %lf MB", &took, &mb), 2);
    }
    json_free(doc);
    near("fetched", mb, (double)bytes / 1e6, 0.05 + 0.06e6 / (double)bytes); /* it is told to 0.1 MB */
    near("took", took, ms, 0.35);
    ask_plan(s, request, &ms, &bytes);
    assert_int_equal(bytes, 0);
    assert_true(ms < 0.35 * took);
    for (int lost = 0; lost < 2; lost++) {
        agent_close(s->agent[0]);
        run_ms(s->h, 2000);
        if (lost) {
            s->storage[0]->ops->close(s->storage[0]);
            s->storage[0] = NULL;
        }
        site_start(s, 0);
        run_ms(s->h, 5000);
        ask_plan(s, request, &ms, &bytes);
        assert_true(lost ? bytes > 100000 : bytes == 0);
    }
    site_close(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(measured),
        cmocka_unit_test(nearer_is_the_source),
        cmocka_unit_test(loading_as_predicted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
