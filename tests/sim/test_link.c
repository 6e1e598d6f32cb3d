/* Link probes between two agents on virtual time: known links, and what must stay unknown. */
#include "tests/sim/agent_bed.h"

static const uint8_t ticket[16] = "sixteen bytes ok";

static void probe(struct bed *b, const char *url, int64_t ms, int64_t bytes)
{
    struct wire_expect e = {
        .term = 3, .purpose = "probe", .peer = b->agents[0].id, .ticket = {ticket, 16}, .ttl_ms = 8000};
    struct wire_probe w = {.id = 7,
        .term = 3,
        .peer = b->agents[1].id,
        .urls = {&url, 1},
        .ticket = {ticket, 16},
        .budget_ms = ms,
        .budget_bytes = bytes};
    b->n_probes = 0;
    chan_send(b->agents[0].control, WIRE_TYPE_probe, &w); /* the dialler may be faster than the ticket */
    if (e.ttl_ms)
        chan_send(b->agents[1].control, WIRE_TYPE_expect, &e);
}

static void near(const char *what, double got, double want, double frac)
{
    if (!(fabs(got - want) <= want * frac))
        fail_msg("%s: got %g, expected %g within %g", what, got, want, frac);
}

static void known_links(void **state)
{
    (void)state;
    static const struct {
        double rate, latency_ms;
    } links[] = {{1.25e6, 1}, {1.25e7, 2}, {1.25e7, 20}, {1.25e8, 0.3}, {1.25e9, 0.05}};
    double last = 0;
    for (size_t i = 0; i < YK_COUNT(links); i++) {
        struct bed *b = bed_open(2);
        BED_UNTIL(b, 2000, bed_joined(b, 2));
        net_mem_set_link(b->net, "agent1", (int64_t)(links[i].latency_ms * 1000), links[i].rate);
        int64_t begin = net_now_us(b->net);
        probe(b, b->agents[1].url, 600, (int64_t)64 << 20);
        BED_UNTIL(b, 8000, b->n_probes == 1);
        assert_string_equal(b->probe_error, "");
        near("to", b->probe.to_bytes_per_s, links[i].rate, 0.1);
        near("from", b->probe.from_bytes_per_s, links[i].rate, 0.1);
        near("both", b->probe.both_bytes_per_s, 2 * links[i].rate, 0.15);
        near("rtt", b->probe.rtt_us, 2000 * links[i].latency_ms, 0.3);
        int64_t took = net_now_us(b->net) - begin;
        if (took > 2 * 3 * 600000) /* bounded in time */
            fail_msg("link %zu: the probe took %lld us", i, (long long)took);
        if (links[i].rate > last)
            assert_true(b->probe.to_bytes_per_s > last);
        last = b->probe.to_bytes_per_s;
        bed_close(b);
    }
}

static void emulated_half_duplex(void **state)
{
    (void)state;
    for (int half = 0; half < 2; half++) {
        struct bed *b = bed_open(1);
        struct agent_emulate e = {
            .bytes_per_s = 40e6, .up_latency_ms = 1, .down_latency_ms = 2, .half_duplex = half, .battery_frac = NAN};
        bed_start(b, 1, &e, 0);
        BED_UNTIL(b, 2000, bed_joined(b, 2));
        probe(b, b->agents[1].url, 600, (int64_t)64 << 20);
        BED_UNTIL(b, 8000, b->n_probes == 1);
        assert_string_equal(b->probe_error, "");
        near("to", b->probe.to_bytes_per_s, 40e6, 0.1);
        near("from", b->probe.from_bytes_per_s, 40e6, 0.1);
        near("both", b->probe.both_bytes_per_s, half ? 40e6 : 80e6, 0.15);
        assert_true(b->probe.rtt_us >= 3000 && b->probe.rtt_us < 4500);
        bed_close(b);
    }
}

static void what_cannot_be_probed_is_unknown(void **state)
{
    (void)state;
    struct bed *b = bed_open(2);
    BED_UNTIL(b, 2000, bed_joined(b, 2));
    probe(b, "mem://nowhere", 200, 1 << 20);
    BED_UNTIL(b, 20000, b->n_probes == 1);
    assert_true(b->probe_error[0] && b->probe.to_bytes_per_s == 0 && b->probe.from_bytes_per_s == 0);
    probe(b, b->agents[1].url, 200, 1 << 20); /* the ticket of the failed one is still there */
    BED_UNTIL(b, 20000, b->n_probes == 1);
    assert_string_equal(b->probe_error, "");
    /* A black hole: dials succeed no more. */
    net_mem_cut(b->net, "agent1", true);
    probe(b, "mem://agent1", 200, 1 << 20);
    BED_UNTIL(b, 20000, b->n_probes == 1);
    assert_true(b->probe_error[0] != 0);
    assert_true(b->probe.to_bytes_per_s == 0);
    net_mem_cut(b->net, "agent1", false);
    bed_close(b);
}

static void a_ticket_works_once(void **state)
{
    (void)state;
    struct bed *b = bed_open(2);
    BED_UNTIL(b, 2000, bed_joined(b, 2));
    probe(b, b->agents[1].url, 100, 1 << 20);
    BED_UNTIL(b, 8000, b->n_probes == 1);
    assert_string_equal(b->probe_error, "");
    const char *url = b->agents[1].url;
    struct wire_probe w = {.id = 8,
        .term = 3,
        .peer = b->agents[1].id,
        .urls = {&url, 1},
        .ticket = {ticket, 16},
        .budget_ms = 100,
        .budget_bytes = 1 << 20};
    chan_send(b->agents[0].control, WIRE_TYPE_probe, &w);
    BED_UNTIL(b, 40000, b->n_probes == 2);
    assert_true(b->probe_error[0] != 0);
    bed_close(b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(known_links),
        cmocka_unit_test(emulated_half_duplex),
        cmocka_unit_test(what_cannot_be_probed_is_unknown),
        cmocka_unit_test(a_ticket_works_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
