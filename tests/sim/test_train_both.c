/* Two trainings at the same time, on virtual time with real agents that take as long as they are told to. */
#include "tests/sim/train_site.h"

#define STAGE_MS 5
#define STEPS 40

/* Of a that began first and b, until one of them has as many steps as both should have together; b's share of them. */
static double share(struct site *s, int64_t a, int64_t b)
{
    int64_t at[2] = {site_steps(s, a), site_steps(s, b)}, got[2] = {0};
    for (int64_t ms = 0; got[0] + got[1] < STEPS; ms += 10) {
        if (ms > 600000)
            fail_msg("only %lld and %lld steps", (long long)got[0], (long long)got[1]);
        run_ms(s->h, 10);
        got[0] = site_steps(s, a) - at[0];
        got[1] = site_steps(s, b) - at[1];
    }
    if (getenv("YOKE_TEST_LOG"))
        printf("%lld and %lld steps\n", (long long)got[0], (long long)got[1]);
    return (double)got[1] / (double)(got[0] + got[1]);
}

static struct site *slow_site(int agents)
{
    struct site *s = site_open_at(0, 2e6);
    s->link.stage_ms = STAGE_MS;
    s->n_agents = agents;
    for (int i = 0; i < agents; i++)
        site_start(s, i);
    site_links(s);
    return s;
}

/* On one device, and where both have a stage on two: who began first has no more of them. */
static void equal_parts(void **state)
{
    (void)state;
    struct site *s = slow_site(2);
    site_network(s, "m", "mlp", 1, 8);
    site_data(s, "set", 3200, 3, (const int64_t[]){1, 8, 8}, 5);
    site_learn(s, "m", 32, 4, "");
    const struct site_stage both[] = {{1, 1}, {0, -1}};
    const struct site_stage one[] = {{0, -1}};
    for (int n = 1; n <= 2; n++) {
        struct site_result want, got;
        char *plan = site_plan(s, n == 1 ? one : both, n, 4);
        int64_t a = site_submit(s, "m", "set", plan);
        while (site_steps(s, a) < 5)
            run_ms(s->h, 1);
        int64_t b = site_submit(s, "m", "set", plan);
        while (site_steps(s, b) < 5)
            run_ms(s->h, 1);
        double of_b = share(s, a, b);
        if (of_b < 0.4 || of_b > 0.6)
            fail_msg("on %d devices the second has %.2f of the steps", n, of_b);
        assert_true(site_wait(s, a, &want));
        assert_true(site_wait(s, b, &got));
        site_same(&want, &got, "beside another");
        free(plan);
    }
    site_close(s);
}

int main(void)
{
    log_set_level(getenv("YOKE_TEST_LOG") ? LOG_INFO : LOG_ERROR);
    const struct CMUnitTest tests[] = {cmocka_unit_test(equal_parts)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
