/* Links between agents: each pair is probed once, and again when what is known of it is from before. */
#include "tests/unit/fleet_bed.h"

static const struct view_link *link_of(const struct view *v, const char *from, const char *to)
{
    for (int32_t i = 0; i < v->n_links; i++) {
        const struct view_link *l = &v->links[i];
        if (l->from >= 0 && l->to >= 0 && strcmp(v->agents[l->from].name, from) == 0 &&
            strcmp(v->agents[l->to].name, to) == 0)
            return l;
    }
    return NULL;
}

static void probes_every_pair_once(void **state)
{
    struct here *h = *state;
    h->b.bytes_per_s = 40e6;
    for (int i = 0; i < 3; i++)
        fake_start(h->all[i]);
    run_ms(h, 10000);
    int probes = h->a.probes + h->b.probes + h->c.probes;
    assert_int_equal(probes, 3);
    assert_int_equal(h->a.expects + h->b.expects + h->c.expects, 3);
    struct view *v = fleet_view(h->fleet, NULL);
    const struct view_link *l = link_of(v, "pc", "phone");
    assert_non_null(l);
    assert_true(l->bytes_per_s == 40e6);
    assert_true(fabs(l->latency_ms - 0.2) < 1e-9); /* half of the round trip */
    assert_int_equal(l->origin, VIEW_MEASURED);
    assert_true(l->shared < 0); /* both ways at once at full rate */
    assert_non_null(link_of(v, "phone", "pc"));
    view_free(v);
    run_ms(h, 60000);
    assert_int_equal(h->a.probes + h->b.probes + h->c.probes, 3);
}

static void half_duplex_shares_its_medium(void **state)
{
    struct here *h = *state;
    h->a.both_factor = h->b.both_factor = 1.05; /* 5 % over one way: one medium */
    fake_start(&h->a);
    fake_start(&h->b);
    run_ms(h, 10000);
    struct view *v = fleet_view(h->fleet, NULL);
    const struct view_link *l = link_of(v, "pc", "phone"), *back = link_of(v, "phone", "pc");
    assert_true(l && back);
    assert_true(l->shared >= 0);
    assert_int_equal(l->shared, back->shared);
    view_free(v);
}

/* A pair that accepts and says nothing is unknown, which is shown, and is tried again only later. */
static void stalled_probe(void **state)
{
    struct here *h = *state;
    h->a.stall_probe = h->b.stall_probe = true;
    fake_start(&h->a);
    fake_start(&h->b);
    run_ms(h, 15000);
    assert_true(fleet_links_ready(h->fleet));
    assert_int_equal(h->a.probes + h->b.probes, 1);
    struct view *v = fleet_view(h->fleet, NULL);
    for (int32_t i = 0; i < v->n_links; i++)
        assert_int_equal(v->links[i].origin, VIEW_UNKNOWN);
    view_free(v);
    h->a.stall_probe = h->b.stall_probe = false;
    run_ms(h, 120000);
    v = fleet_view(h->fleet, NULL);
    assert_int_equal(link_of(v, "pc", "phone")->origin, VIEW_MEASURED);
    view_free(v);
}

static void no_probe_while_busy(void **state)
{
    struct here *h = *state;
    h->busy = true;
    fake_start(&h->a);
    fake_start(&h->b);
    run_ms(h, 10000);
    assert_int_equal(h->a.probes + h->b.probes, 0);
    h->busy = false;
    run_ms(h, 10000);
    assert_int_equal(h->a.probes + h->b.probes, 1);
}

static void agent_lost_in_a_probe(void **state)
{
    struct here *h = *state;
    h->a.stall_probe = h->b.stall_probe = true;
    fake_start(&h->a);
    fake_start(&h->b);
    run_ms(h, 1000);
    fake_kill(h->a.probes ? &h->a : &h->b);
    run_ms(h, 1000);
    assert_true(fleet_links_ready(h->fleet));
    struct fake *gone = h->a.dead ? &h->a : &h->b;
    h->a.stall_probe = h->b.stall_probe = false;
    fake_start(gone);
    run_ms(h, 10000);
    assert_true(fleet_links_ready(h->fleet));
    struct view *v = fleet_view(h->fleet, NULL);
    assert_int_equal(link_of(v, "pc", "phone")->origin, VIEW_MEASURED);
    view_free(v);
}

/* ---- agents that come back ---- */

static int probes(const struct here *h)
{
    return h->a.probes + h->b.probes + h->c.probes;
}

static double rate_of(struct here *h, const char *from, const char *to)
{
    struct view *v = fleet_view(h->fleet, NULL);
    const struct view_link *l = link_of(v, from, to);
    double rate = l && l->origin == VIEW_MEASURED ? l->bytes_per_s : 0;
    view_free(v);
    return rate;
}

static void back_again(struct here *h, struct fake *f)
{
    fake_kill(f);
    run_ms(h, 500);
    fake_start(f);
    run_ms(h, 500);
    assert_true(f->joined);
}

/* What was measured serves at once, and is measured again when nothing runs; then it is told, and that is all. */
static void comes_back_slower(void **state)
{
    struct here *h = *state;
    fake_start(&h->a);
    fake_start(&h->b);
    run_ms(h, 10000);
    assert_int_equal(probes(h), 1);
    assert_true(fleet_links_fresh(h->fleet));
    h->busy = true;
    h->b.bytes_per_s = 10e6;
    back_again(h, &h->b);
    run_ms(h, 20000);
    assert_true(fleet_links_ready(h->fleet));
    assert_false(fleet_links_fresh(h->fleet));
    assert_int_equal(probes(h), 1);
    assert_true(rate_of(h, "pc", "phone") == 100e6 && rate_of(h, "phone", "pc") == 100e6);
    h->busy = false;
    run_ms(h, 2000);
    assert_true(fleet_links_fresh(h->fleet));
    assert_int_equal(probes(h), 2);
    assert_true(rate_of(h, "pc", "phone") == 10e6 && rate_of(h, "phone", "pc") == 10e6);
    assert_int_equal(h->relinks, 1);
    assert_false(h->better);
    assert_non_null(strstr(h->relink, "10 MB/s and 0.2 ms, was taken for 100 MB/s"));
    run_ms(h, 300000);
    assert_int_equal(probes(h), 2);
    assert_int_equal(h->relinks, 1);
}

/* Told are changes of more than 25 % of the rate, and of the latency if it is a millisecond at least. */
static void what_is_far(void **state)
{
    static const struct {
        double bytes_per_s, rtt_us;
        bool told, better;
    } cases[] = {{100e6, 400, false, false}, {80.5e6, 400, false, false}, {124e6, 400, false, false},
        {79e6, 400, true, false}, {126e6, 400, true, true}, {100e6, 2000, false, false}, {100e6, 2800, true, false},
        {100e6, 20400, true, false}, {40e6, 400, true, false}};
    struct here *h = *state;
    int told = 0, asked = 1;
    fake_start(&h->a);
    fake_start(&h->b);
    run_ms(h, 10000);
    for (size_t i = 0; i < YK_COUNT(cases); i++) {
        h->a.bytes_per_s = h->b.bytes_per_s = cases[i].bytes_per_s;
        h->a.rtt_us = h->b.rtt_us = cases[i].rtt_us;
        back_again(h, &h->b);
        run_ms(h, 5000);
        assert_int_equal(probes(h), ++asked);
        told += cases[i].told;
        assert_int_equal(h->relinks, told);
        if (cases[i].told)
            assert_int_equal(h->better, cases[i].better);
        h->a.bytes_per_s = h->b.bytes_per_s = 100e6;
        h->a.rtt_us = h->b.rtt_us = 400;
        back_again(h, &h->b);
        run_ms(h, 5000);
        assert_int_equal(probes(h), ++asked);
        told = h->relinks; /* the way back from what was told */
        assert_true(rate_of(h, "pc", "phone") == 100e6);
    }
}

static void restart(struct here *h)
{
    for (int i = 0; i < 3; i++)
        fake_kill(h->all[i]);
    run_ms(h, 100);
    net_listener_close(h->listener);
    fleet_close(h->fleet);
    store_close(h->store);
    struct store_config c = {.net = h->net, .path = h->path, .on_error = on_error, .arg = h};
    assert_int_equal(store_open(&c, &h->store, NULL), YK_OK);
    open_fleet(h);
}

/* A restart of yoked costs no wait: the rows serve, until there is time to measure. */
static void survives_a_restart(void **state)
{
    struct here *h = *state;
    for (int i = 0; i < 3; i++)
        fake_start(h->all[i]);
    run_ms(h, 10000);
    assert_int_equal(probes(h), 3);
    restart(h);
    h->busy = true;
    h->c.bytes_per_s = 5e6;
    for (int i = 0; i < 3; i++)
        fake_start(h->all[i]);
    run_ms(h, 5000);
    assert_true(fleet_links_ready(h->fleet));
    assert_int_equal(probes(h), 3);
    assert_true(rate_of(h, "cloud", "phone") == 100e6);
    h->busy = false;
    run_ms(h, 5000);
    assert_true(fleet_links_fresh(h->fleet));
    assert_int_equal(probes(h), 6);
    assert_true(rate_of(h, "cloud", "phone") == 5e6 && rate_of(h, "pc", "phone") == 100e6);
    assert_int_equal(h->relinks, 2); /* cloud with each of the others */
}

/* At another address nothing from before counts: a plan waits for the new figures. */
static void comes_back_elsewhere(void **state)
{
    struct here *h = *state;
    for (int i = 0; i < 3; i++)
        fake_start(h->all[i]);
    run_ms(h, 10000);
    h->busy = true;
    h->b.where = "hotel";
    back_again(h, &h->b);
    assert_false(fleet_links_ready(h->fleet));
    assert_true(rate_of(h, "pc", "phone") == 0 && rate_of(h, "phone", "cloud") == 0);
    assert_true(rate_of(h, "pc", "cloud") == 100e6);
    h->busy = false;
    run_ms(h, 5000);
    assert_true(fleet_links_fresh(h->fleet));
    assert_int_equal(probes(h), 5);
    assert_true(rate_of(h, "pc", "phone") == 100e6);
    assert_int_equal(h->relinks, 0); /* nothing was believed that turned out wrong */
    /* Also where yoked was not there to see it move; who dialled is known by no address. */
    restart(h);
    h->busy = true;
    h->a.where = h->b.where = h->c.where = "train";
    for (int i = 0; i < 3; i++)
        fake_start(h->all[i]);
    run_ms(h, 2000);
    assert_false(fleet_links_ready(h->fleet));
    h->busy = false;
    run_ms(h, 5000);
    assert_true(fleet_links_fresh(h->fleet));
    assert_int_equal(probes(h), 8);
}

/* Pairs of which nothing is known are probed before those that are only known from before. */
static void unknown_goes_first(void **state)
{
    struct here *h = *state;
    for (int i = 0; i < 3; i++)
        fake_start(h->all[i]);
    run_ms(h, 10000);
    const struct fleet_agent *last = fleet_first(h->fleet), *mid = last->next;
    struct fake *first = NULL;
    for (int i = 0; i < 3; i++) {
        h->all[i]->probed[0] = '\0';
        first = strcmp(h->all[i]->id, mid->next->id) == 0 ? h->all[i] : first;
    }
    h->busy = true;
    for (int i = 0; i < 3; i++)
        if (h->all[i] != first)
            back_again(h, h->all[i]);
    first->where = "hotel";
    back_again(h, first);
    h->busy = false;
    run_ms(h, 5000);
    assert_int_equal(probes(h), 6);
    for (int i = 0; i < 3; i++)
        if (strcmp(h->all[i]->id, last->id) == 0)
            assert_string_equal(h->all[i]->probed, first->id); /* not mid, which is nearer in the list */
}

/* Many that come back do not crowd the net. */
static void bounded_per_minute(void **state)
{
    enum { N = 13 }; /* 78 pairs */
    struct here *h = *state;
    static struct fake many[N];
    static char names[N][8];
    int sum = 0;
    for (int i = 0; i < N; i++) {
        snprintf(names[i], sizeof names[i], "m%d", i);
        fake_init(&many[i], h->net, "mem://yoked", names[i]);
        fake_start(&many[i]);
    }
    run_ms(h, 200000);
    for (int i = 0; i < N; i++)
        sum += many[i].probes;
    assert_int_equal(sum, 78);
    restart(h);
    for (int i = 0; i < N; i++)
        fake_kill(&many[i]);
    for (int i = 0; i < N; i++)
        fake_start(&many[i]);
    run_ms(h, 50000);
    assert_true(fleet_links_ready(h->fleet));
    assert_false(fleet_links_fresh(h->fleet));
    sum = 0;
    for (int i = 0; i < N; i++)
        sum += many[i].probes;
    assert_int_equal(sum, 78 + 60);
    run_ms(h, 100000);
    assert_true(fleet_links_fresh(h->fleet));
    for (int i = 0; i < N; i++)
        fake_kill(&many[i]);
    run_ms(h, 100);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(probes_every_pair_once, setup, teardown),
        cmocka_unit_test_setup_teardown(half_duplex_shares_its_medium, setup, teardown),
        cmocka_unit_test_setup_teardown(stalled_probe, setup, teardown),
        cmocka_unit_test_setup_teardown(no_probe_while_busy, setup, teardown),
        cmocka_unit_test_setup_teardown(agent_lost_in_a_probe, setup, teardown),
        cmocka_unit_test_setup_teardown(comes_back_slower, setup, teardown),
        cmocka_unit_test_setup_teardown(what_is_far, setup, teardown),
        cmocka_unit_test_setup_teardown(survives_a_restart, setup, teardown),
        cmocka_unit_test_setup_teardown(comes_back_elsewhere, setup, teardown),
        cmocka_unit_test_setup_teardown(unknown_goes_first, setup, teardown),
        cmocka_unit_test_setup_teardown(bounded_per_minute, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
