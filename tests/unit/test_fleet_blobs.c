/* What yoked knows of the weights that agents have. */
#include "tests/unit/fleet_bed.h"
#include "tests/unit/graph_fixture.h"

#define WEIGHTS 20

/* A chain of so many products, as of a skeleton: weights are hashes. */
static struct graph *skeleton(void)
{
    struct graph *g = fx_open();
    char name[16];
    graph_sym(g, "N");
    int32_t v = fx_input(g, "x", DT_F32, (const int64_t[]){-1, 4}, 2);
    for (int i = 0; i < WEIGHTS; i++) {
        snprintf(name, sizeof name, "w%d", i);
        int32_t w = fx_weight(g, name, (const int64_t[]){4, 4}, 2);
        g->values[w].data = NULL;
        g->values[w].has_hash = true;
        g->values[w].hash[0] = (uint8_t)(i + 1);
        snprintf(name, sizeof name, "fc%d", i);
        v = fx_node(g, "MatMul", name, IDS(v, w));
    }
    fx_output(g, v);
    return g;
}

/* Which weights the snapshot says that it lacks, a bit for each; -1: not known. */
static int64_t lacking(struct here *h, const struct graph *g, const char *hash, const char *name)
{
    struct view *v = fleet_view(h->fleet, NULL);
    int64_t bits = -1;
    fleet_blobs_view(h->fleet, v, hash);
    for (int32_t a = 0; a < v->n_agents; a++)
        if (strcmp(v->agents[a].name, name) == 0 && v->agents[a].lacks) {
            int i = 0;
            bits = 0;
            assert_int_equal(v->agents[a].n_lacks, g->n_values);
            for (int32_t k = 0; k < g->n_values; k++) {
                if (g->values[k].kind == VALUE_WEIGHT)
                    bits |= (int64_t)v->agents[a].lacks[k] << i++;
                else
                    assert_int_equal(v->agents[a].lacks[k], 0);
            }
        }
    struct view *w = view_copy(v); /* both own what they have */
    assert_non_null(w);
    view_free(w);
    view_free(v);
    return bits;
}

static void asks_once_and_marks(void **state)
{
    struct here *h = *state;
    struct graph *g = skeleton();
    h->a.tells = true;
    h->a.held[0] = 0x05; /* the first and the third */
    h->a.held[2] = 0x08; /* the last */
    fake_start(&h->a);
    fake_start(&h->b);
    run_ms(h, 1000);
    struct fleet_agent *pc = agent_of(h, "pc");
    assert_false(fleet_blobs_ready(pc, "g1", g));
    assert_int_equal(lacking(h, g, "g1", "pc"), -1);
    run_ms(h, 100);
    assert_true(fleet_blobs_ready(pc, "g1", g));
    assert_int_equal(h->a.asked_blobs, 1);
    assert_int_equal(h->a.asked_bytes, WEIGHTS * 32);
    assert_int_equal(lacking(h, g, "g1", "pc"), 0xfffff & ~0x80005);
    assert_int_equal(lacking(h, g, "g2", "pc"), -1);
    /* One that does not know the question is not asked, and nothing is known of it. */
    assert_true(fleet_blobs_ready(agent_of(h, "phone"), "g1", g));
    assert_int_equal(h->b.asked_blobs, 0);
    assert_int_equal(lacking(h, g, "g1", "phone"), -1);
    /* What it loads it has. */
    uint8_t nodes[WEIGHTS] = {[1] = 1, [2] = 1, [7] = 1};
    fleet_blobs_loaded(pc, "g1", g, nodes);
    fleet_blobs_loaded(pc, "nothing", g, nodes);
    assert_int_equal(lacking(h, g, "g1", "pc"), 0xfffff & ~0x80087);
    /* After a while it is asked again, and what was known serves until then. */
    run_ms(h, 70000);
    assert_int_equal(h->a.asked_blobs, 1);
    assert_true(fleet_blobs_ready(pc, "g1", g));
    assert_int_equal(lacking(h, g, "g1", "pc"), 0xfffff & ~0x80087);
    run_ms(h, 100);
    assert_int_equal(h->a.asked_blobs, 2);
    assert_int_equal(lacking(h, g, "g1", "pc"), 0xfffff & ~0x80005);
    /* Who comes back may have lost its cache. */
    fake_kill(&h->a);
    run_ms(h, 100);
    h->a.held[0] = h->a.held[2] = 0;
    fake_start(&h->a);
    run_ms(h, 1000);
    assert_int_equal(lacking(h, g, "g1", "pc"), -1);
    assert_false(fleet_blobs_ready(pc, "g1", g));
    run_ms(h, 100);
    assert_true(fleet_blobs_ready(pc, "g1", g));
    assert_int_equal(lacking(h, g, "g1", "pc"), 0xfffff);
    graph_close(g);
}

static void bad_answers(void **state)
{
    struct here *h = *state;
    struct graph *g = skeleton(), *other = fx_open();
    h->a.tells = true;
    h->a.tells_nonsense = true;
    fake_start(&h->a);
    run_ms(h, 1000);
    struct fleet_agent *pc = agent_of(h, "pc");
    assert_false(fleet_blobs_ready(pc, "g1", g));
    run_ms(h, 100);
    assert_true(fleet_blobs_ready(pc, "g1", g)); /* that is all it says */
    assert_int_equal(lacking(h, g, "g1", "pc"), -1);
    /* Answers to nothing. */
    struct wire_blobs_held held = {.id = 99, .held = {h->a.held, 3}};
    chan_send(h->a.control, WIRE_TYPE_blobs_held, &held);
    held.id = 1; /* it was answered */
    chan_send(h->a.control, WIRE_TYPE_blobs_held, &held);
    run_ms(h, 100);
    assert_true(h->a.joined);
    assert_int_equal(lacking(h, g, "g1", "pc"), -1);
    /* A graph without weights needs no question. */
    fx_output(other, fx_node(other, "Relu", "y", IDS(fx_input(other, "x", DT_F32, (const int64_t[]){1}, 1))));
    assert_true(fleet_blobs_ready(pc, "relu", other));
    assert_int_equal(h->a.asked_blobs, 1);
    /* Many graphs: the oldest are forgotten. */
    h->a.tells_nonsense = false;
    for (int i = 0; i < 100; i++) {
        char hash[16];
        snprintf(hash, sizeof hash, "many%d", i);
        fleet_blobs_ready(pc, hash, g);
        run_ms(h, 10);
    }
    assert_true(lacking(h, g, "many99", "pc") > 0);
    assert_int_equal(lacking(h, g, "many0", "pc"), -1);
    graph_close(other);
    graph_close(g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(asks_once_and_marks, setup, teardown),
        cmocka_unit_test_setup_teardown(bad_answers, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
