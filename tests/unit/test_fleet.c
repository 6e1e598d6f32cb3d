/* The registry of agents: joining, leases, terms, identities, profiles, and peers that do not behave. */
#include "tests/unit/fleet_bed.h"

static const struct fleet_graph feed = {.key = "feed", .hash = "feed"};

static void joins(void **state)
{
    struct here *h = *state;
    fake_start(&h->a);
    run_ms(h, 500);
    assert_true(h->a.joined);
    assert_int_equal(h->a.term, 7);
    assert_int_equal(h->a.lease_ms, LEASE_MS);
    assert_true(h->a.ping_ms > 0 && h->a.ping_ms <= LEASE_MS / 2);
    assert_string_equal(h->a.got_name, "pc");
    struct fleet_agent *a = agent_of(h, "pc");
    assert_non_null(a);
    assert_ptr_equal(fleet_find(h->fleet, h->a.id), a);
    assert_int_equal(a->state, FLEET_ALIVE);
    assert_string_equal(a->backends, "ref@generic");
    assert_string_equal(a->heat, "nominal");
    assert_true(a->gflops == 1 / h->a.node_ms);
    assert_int_equal(fleet_alive(h->fleet), 1);
    assert_null(agent_of(h, "nobody"));
    /* It stays as long as it talks. */
    run_ms(h, 60000);
    assert_true(h->a.joined);
    assert_int_equal(h->lost, 0);
}

static void silence_ends_the_lease(void **state)
{
    struct here *h = *state;
    fake_start(&h->a);
    run_ms(h, 500);
    fake_freeze(&h->a);
    run_ms(h, LEASE_MS / 2);
    assert_int_equal(h->lost, 0);
    run_ms(h, LEASE_MS);
    assert_int_equal(h->lost, 1);
    assert_int_equal(fleet_alive(h->fleet), 0);
    assert_int_equal(agent_of(h, "pc")->state, FLEET_AWAY);
    assert_int_equal(fleet_send(agent_of(h, "pc"), WIRE_TYPE_pong, &(struct wire_pong){0}), YK_CLOSED);
    /* It wakes up and is here again under the same identity. */
    h->a.frozen = false;
    fake_start(&h->a);
    run_ms(h, 1000);
    assert_int_equal(h->joined, 2);
    assert_int_equal(fleet_alive(h->fleet), 1);
    assert_null(fleet_first(h->fleet)->next);
}

static void closed_connection_is_a_loss(void **state)
{
    struct here *h = *state;
    fake_start(&h->a);
    run_ms(h, 500);
    fake_kill(&h->a);
    run_ms(h, 100);
    assert_int_equal(h->lost, 1);
}

static void bytes_that_vanish(void **state)
{
    struct here *h = *state;
    fake_start(&h->a);
    run_ms(h, 500);
    net_mem_cut(h->net, "yoked", true);
    run_ms(h, 2 * LEASE_MS);
    assert_int_equal(h->lost, 1);
    net_mem_cut(h->net, "yoked", false);
}

/* The old process hangs, its successor has the same state folder. */
static void same_identity_replaces(void **state)
{
    struct here *h = *state;
    fake_start(&h->a);
    run_ms(h, 500);
    memcpy(h->b.id, h->a.id, sizeof(h->b.id));
    h->b.name = "pc";
    h->a.refused = true; /* it does not come back */
    fake_start(&h->b);
    run_ms(h, 500);
    assert_true(h->b.joined);
    assert_false(h->a.joined);
    assert_int_equal(h->lost, 1);
    assert_int_equal(h->joined, 2);
    assert_string_equal(h->b.got_name, "pc");
    assert_int_equal(fleet_alive(h->fleet), 1);
    run_ms(h, 3 * LEASE_MS);
    assert_true(h->b.joined);
    assert_int_equal(h->lost, 1);
}

/* An isa is gone for good only where an agent says that it goes without: one that is away may come back. */
static void isa_that_is_gone(void **state)
{
    struct here *h = *state;
    h->a.isa = "device-1";
    fake_start(&h->a);
    fake_start(&h->b);
    run_ms(h, 500);
    assert_true(fleet_has_isa(h->fleet, "device-1") && fleet_has_isa(h->fleet, "generic"));
    assert_true(fleet_has_isa(h->fleet, "never-seen")); /* nobody said anything of it */
    fake_freeze(&h->a);
    run_ms(h, 2 * LEASE_MS);
    assert_int_equal(agent_of(h, "pc")->state, FLEET_AWAY);
    assert_true(fleet_has_isa(h->fleet, "device-1"));
    h->a.frozen = false;
    h->a.isa = NULL;
    h->a.gone = "backend device was taken out: it gave NaN";
    fake_start(&h->a);
    run_ms(h, 1000);
    assert_true(agent_of(h, "pc")->refused);
    assert_false(fleet_has_isa(h->fleet, "device-1"));
    assert_false(fleet_has_isa(h->fleet, "gener"));            /* whole names only */
    assert_false(fleet_has_isa(h->fleet, "generic+device-1")); /* of a node that depends on data: all of them */
    assert_true(fleet_has_isa(h->fleet, "generic+generic"));
    assert_true(fleet_has_isa(h->fleet, "generic"));
}

static void equal_names_are_told_apart(void **state)
{
    struct here *h = *state;
    h->b.name = "pc";
    fake_start(&h->a);
    run_ms(h, 200);
    fake_start(&h->b);
    run_ms(h, 200);
    assert_string_equal(h->a.got_name, "pc");
    assert_string_not_equal(h->b.got_name, "pc");
    assert_non_null(agent_of(h, h->b.got_name));
    assert_string_equal(agent_of(h, h->b.got_name)->id, h->b.id);
}

static void other_major_is_refused(void **state)
{
    struct here *h = *state;
    h->a.sizes_major = WIRE_VERSION_MAJOR + 1;
    fake_start(&h->a);
    run_ms(h, 500);
    assert_false(h->a.joined);
    assert_true(h->a.refused);
    char ours[16], theirs[16];
    snprintf(ours, sizeof(ours), "%d.%d", WIRE_VERSION_MAJOR, WIRE_VERSION_MINOR);
    snprintf(theirs, sizeof(theirs), "%d.%d", WIRE_VERSION_MAJOR + 1, WIRE_VERSION_MINOR);
    assert_non_null(strstr(h->a.refused_text, ours));
    assert_non_null(strstr(h->a.refused_text, theirs));
    assert_int_equal(fleet_alive(h->fleet), 0);
}

static void bad_identity_is_refused(void **state)
{
    struct here *h = *state;
    snprintf(h->a.id, sizeof(h->a.id), "../../etc/passwd");
    fake_start(&h->a);
    run_ms(h, 500);
    assert_true(h->a.refused);
    assert_int_equal(h->joined, 0);
}

/* ---- peers that do not behave ---- */

struct stranger {
    struct here *h;
    struct net_conn *conn;
    const void *say;
    size_t len;
    bool closed, dialled;
    char in[256];
};

static void stranger_said(void *arg, yk_err err, size_t n)
{
    (void)arg;
    (void)err;
    (void)n;
}

static void stranger_heard(void *arg, yk_err err, size_t n)
{
    struct stranger *s = arg;
    (void)n;
    if (err)
        s->closed = true;
    else
        net_recv(s->conn, s->in, sizeof(s->in), stranger_heard, s);
}

static void stranger_dialled(void *arg, yk_err err, struct net_conn *conn)
{
    struct stranger *s = arg;
    s->dialled = true;
    if (err)
        return;
    s->conn = conn;
    struct net_iov iov = {s->say, s->len};
    if (s->len)
        net_send(conn, &iov, 1, stranger_said, s);
    net_recv(conn, s->in, sizeof(s->in), stranger_heard, s);
}

static void strangers(void **state)
{
    struct here *h = *state;
    static const struct {
        const char *bytes;
        size_t len;
        int64_t within_ms;
    } say[] = {
        {"GET / HTTP/1.1\r\nHost: x\r\n\r\n", 27, 1000},
        {"YOK1\xff\xff\xff\xff\x01\x00\x00\x00\x00\x00\x00\x00", 16, 1000}, /* 4 GiB message */
        {"YOK1\x04\x00\x00\x00\x0f\x27\x00\x00\x00\x00\x00\x00junk", 20, 20000},
        {"YOK1\x00\x00\x00\x00\x04\x00\x00\x00\x00\x00\x00\x00", 16, 1000}, /* a ping before the hello */
        {"YOK1", 4, 20000},                                                 /* and then nothing */
        {"", 0, 20000},
    };
    for (size_t i = 0; i < YK_COUNT(say); i++) {
        struct stranger s = {.h = h, .say = say[i].bytes, .len = say[i].len};
        net_dial(h->net, "mem://yoked", 1000000, stranger_dialled, &s);
        run_ms(h, say[i].within_ms);
        assert_true(s.dialled);
        assert_true(s.closed);
        net_conn_close(s.conn);
    }
    assert_int_equal(h->joined, 0);
    fake_start(&h->a);
    run_ms(h, 500);
    assert_true(h->a.joined);
}

/* Connect, say half a thing, vanish: a thousand times. The agent that is there does not notice. */
static void connect_and_vanish(void **state)
{
    struct here *h = *state;
    fake_start(&h->a);
    run_ms(h, 500);
    for (int i = 0; i < 1000; i++) {
        struct stranger s = {.h = h, .say = "YOK1\x10", .len = i % 3 ? 5 : 0};
        net_dial(h->net, "mem://yoked", 1000000, stranger_dialled, &s);
        run_ms(h, 2);
        assert_true(s.dialled);
        net_conn_close(s.conn);
    }
    run_ms(h, 2 * LEASE_MS);
    assert_true(h->a.joined);
    assert_int_equal(h->lost, 0);
    assert_int_equal(fleet_alive(h->fleet), 1);
}

/* Connections that are held open without a hello do not lock others out for ever. */
static void held_connections(void **state)
{
    struct here *h = *state;
    enum { N = 400 };
    struct stranger *s = yk_xalloc(N * sizeof(*s));
    for (int i = 0; i < N; i++) {
        s[i] = (struct stranger){.h = h, .say = "", .len = 0};
        net_dial(h->net, "mem://yoked", 1000000, stranger_dialled, &s[i]);
    }
    run_ms(h, 30000);
    fake_start(&h->a);
    run_ms(h, 1000);
    assert_true(h->a.joined);
    for (int i = 0; i < N; i++)
        net_conn_close(s[i].conn);
    free(s);
}

/* Somebody joins under ever new identities: what is remembered of them is bounded. */
static void identities_without_end(void **state)
{
    struct here *h = *state;
    fake_start(&h->b);
    run_ms(h, 100);
    for (int i = 0; i < 4300; i++) {
        snprintf(h->a.id, sizeof(h->a.id), "%032x", i + 1);
        fake_start(&h->a);
        run_ms(h, 2);
        fake_kill(&h->a);
        run_ms(h, 1);
    }
    int n = 0;
    for (struct fleet_agent *a = fleet_first(h->fleet); a; a = a->next)
        n++;
    assert_int_equal(n, 4096);
    assert_int_equal(agent_of(h, "phone")->state, FLEET_ALIVE);
}

/* ---- the snapshot ---- */

static void who_gets_no_stage(void **state)
{
    struct here *h = *state;
    h->b.memory_bytes = 0;
    fake_start(&h->a);
    fake_start(&h->b);
    run_ms(h, 1000);
    struct wire_sensors hot = {.heat = "critical"};
    struct wire_ping ping = {.seq = 1, .sensors = hot};
    chan_send(h->a.control, WIRE_TYPE_ping, &ping);
    run_ms(h, 100);
    assert_int_equal(h->changes, 1);
    assert_string_equal(h->change, "hot: its heat is critical");
    struct view *v = fleet_view(h->fleet, NULL);
    assert_int_equal(v->n_agents, 2);
    for (int32_t i = 0; i < 2; i++) {
        assert_false(v->agents[i].usable);
        assert_non_null(strstr(v->agents[i].why_not, strcmp(v->agents[i].name, "pc") == 0 ? "critical" : "memory"));
    }
    view_free(v);
}

static void profile_that_never_comes(void **state)
{
    struct here *h = *state;
    static const int64_t sizes[] = {1, 4};
    fake_start(&h->a);
    run_ms(h, 500);
    struct fleet_agent *a = agent_of(h, "pc");
    /* The graph is not there, so the fake never answers. */
    assert_false(fleet_profile_ready(a, &feed, sizes, 2));
    run_ms(h, 1000);
    assert_false(fleet_profile_ready(a, &feed, sizes, 2));
    assert_int_equal(h->a.profiles, 1);
    run_ms(h, 180000);
    assert_true(fleet_profile_ready(a, &feed, sizes, 2));
}

/* It was asked, left, and came back: it must be asked again, not waited for. */
static void profile_asked_of_one_that_left(void **state)
{
    struct here *h = *state;
    static const int64_t sizes[] = {1, 4};
    fake_start(&h->a);
    run_ms(h, 500);
    assert_false(fleet_profile_ready(agent_of(h, "pc"), &feed, sizes, 2));
    run_ms(h, 100);
    fake_kill(&h->a);
    run_ms(h, 100);
    fake_start(&h->a);
    run_ms(h, 1000);
    fleet_profile_ready(agent_of(h, "pc"), &feed, sizes, 2);
    run_ms(h, 1000);
    assert_int_equal(h->a.profiles, 2);
}

/* What is measured is of the nodes of the newest generation; two that run side by side do not take turns. */
static void knows_what_was_measured(void **state)
{
    (void)state;
    static const uint8_t late[] = {0, 0, 1}, early[] = {1, 1, 0};
    struct fleet_agent a = {.slow_factor = 1};
    assert_false(fleet_measures(&a, 5, "feed", late, 3)); /* nothing before it */
    assert_false(fleet_measures(&a, 5, "feed", late, 3));
    assert_false(fleet_measures(&a, 6, "feed", late, 3)); /* the same nodes */
    assert_false(fleet_measures(&a, 4, "feed", early, 3));
    assert_memory_equal(a.measured.nodes, late, 3);
    assert_true(fleet_measures(&a, 7, "feed", early, 3));
    assert_false(fleet_measures(&a, 6, "feed", late, 3));
    assert_memory_equal(a.measured.nodes, early, 3);
    assert_true(fleet_measures(&a, 8, "beef", early, 3));
    assert_string_equal(a.measured.graph, "beef");
    assert_true(fleet_measures(&a, 9, "beef", early, 2));
    assert_int_equal(a.measured.n_nodes, 2);
    free(a.measured.graph);
    free(a.measured.nodes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(knows_what_was_measured),
        cmocka_unit_test_setup_teardown(joins, setup, teardown),
        cmocka_unit_test_setup_teardown(silence_ends_the_lease, setup, teardown),
        cmocka_unit_test_setup_teardown(closed_connection_is_a_loss, setup, teardown),
        cmocka_unit_test_setup_teardown(bytes_that_vanish, setup, teardown),
        cmocka_unit_test_setup_teardown(same_identity_replaces, setup, teardown),
        cmocka_unit_test_setup_teardown(isa_that_is_gone, setup, teardown),
        cmocka_unit_test_setup_teardown(equal_names_are_told_apart, setup, teardown),
        cmocka_unit_test_setup_teardown(other_major_is_refused, setup, teardown),
        cmocka_unit_test_setup_teardown(bad_identity_is_refused, setup, teardown),
        cmocka_unit_test_setup_teardown(strangers, setup, teardown),
        cmocka_unit_test_setup_teardown(connect_and_vanish, setup, teardown),
        cmocka_unit_test_setup_teardown(held_connections, setup, teardown),
        cmocka_unit_test_setup_teardown(identities_without_end, setup, teardown),
        cmocka_unit_test_setup_teardown(who_gets_no_stage, setup, teardown),
        cmocka_unit_test_setup_teardown(profile_that_never_comes, setup, teardown),
        cmocka_unit_test_setup_teardown(profile_asked_of_one_that_left, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
