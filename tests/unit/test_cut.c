/* Cuts and stage edges against a recount by brute force on random graphs. */
#include <stdio.h>

#include "common/cut.h"
#include "tests/unit/graph_fixture.h"

#define GRAPHS 60

static bool reads(const struct graph *g, int32_t node, int32_t value)
{
    for (int32_t k = 0; k < g->nodes[node].n_in; k++)
        if (g->nodes[node].in[k] == value)
            return true;
    return false;
}

static void test_prefix_cuts(void **state)
{
    (void)state;
    struct yk_rng r;
    for (uint64_t seed = 1; seed <= GRAPHS; seed++) {
        yk_rng_seed(&r, seed);
        struct graph *g = fx_random(&r, 5 + (int)yk_rng_below(&r, 60));
        struct shapes s;
        struct cuts cuts;
        assert_int_equal(shapes_infer(g, (const int64_t[]){3}, NULL, &s, NULL), YK_OK);
        assert_int_equal(cut_all(g, &s, &cuts, NULL), YK_OK);
        assert_int_equal(cuts.n, g->n_nodes + 1);
        for (int32_t c = 0; c < cuts.n; c++) {
            int32_t after = c - 1, n = 0;
            int64_t bytes = 0;
            for (int32_t v = 0; v < g->n_values; v++) {
                bool crosses = false;
                if (g->values[v].kind != VALUE_WEIGHT && g->values[v].producer <= after)
                    for (int32_t i = after + 1; i < g->n_nodes; i++)
                        crosses = crosses || reads(g, i, v);
                if (!crosses)
                    continue;
                assert_true(n < cuts.at[c].n_values);
                assert_int_equal(cuts.at[c].values[n++], v);
                bytes += shape_bytes(&s.of[v]);
            }
            assert_int_equal(cuts.at[c].after, after);
            assert_int_equal(cuts.at[c].n_values, n);
            assert_int_equal(cuts.at[c].bytes, bytes);
            assert_int_equal(cuts.at[c].grad_bytes, bytes); /* all are floats */
            assert_false(cuts.at[c].forbidden);
        }
        assert_int_equal(cuts.at[g->n_nodes].n_values, 0);
        cuts_fini(&cuts);
        shapes_fini(&s);
        graph_close(g);
    }
}

/* Whether value v goes from a to b (-1: the source), counted from the definition. */
static bool goes(const struct graph *g, const int32_t *stage_of, int32_t v, int32_t a, int32_t b)
{
    const struct value *value = &g->values[v];
    int32_t from = value->producer >= 0 ? stage_of[value->producer] : -1;
    if (value->kind == VALUE_WEIGHT || from != a || a == b)
        return false;
    if (b == -1) {
        for (int32_t i = 0; i < g->n_outputs - g->n_staying; i++)
            if (g->outputs[i] == v)
                return true;
        return false;
    }
    for (int32_t i = 0; i < g->n_nodes; i++)
        if (stage_of[i] == b && reads(g, i, v))
            return true;
    return false;
}

static void test_edges(void **state)
{
    (void)state;
    struct yk_rng r;
    for (uint64_t seed = 1; seed <= GRAPHS; seed++) {
        yk_rng_seed(&r, seed);
        struct graph *g = fx_random(&r, 8 + (int)yk_rng_below(&r, 50));
        struct shapes s;
        struct cut_edges e;
        struct yk_diag why;
        int32_t stage_of[200], n_stages = 2 + (int32_t)yk_rng_below(&r, 3);
        bool scattered = seed % 2;
        g->n_staying = (int32_t)(seed % 5 ? 0 : yk_rng_below(&r, (uint64_t)g->n_outputs + 1));
        for (int32_t i = 0; i < g->n_nodes; i++)
            stage_of[i] = scattered ? (int32_t)yk_rng_below(&r, (uint64_t)n_stages) : i * n_stages / g->n_nodes;
        assert_int_equal(shapes_infer(g, (const int64_t[]){2}, NULL, &s, NULL), YK_OK);
        assert_int_equal(cut_edges_find(g, &s, stage_of, n_stages, &e, &why), YK_OK);
        int32_t at = 0;
        bool adjacent[8][8] = {{false}};
        for (int32_t a = -1; a < n_stages; a++)
            for (int32_t b = -1; b < n_stages; b++) {
                int32_t n = 0;
                int64_t bytes = 0;
                for (int32_t v = 0; v < g->n_values; v++)
                    if (goes(g, stage_of, v, a, b)) {
                        assert_true(at < e.n && e.at[at].from == a && e.at[at].to == b);
                        assert_int_equal(e.at[at].values[n++], v);
                        bytes += shape_bytes(&s.of[v]);
                    }
                if (n == 0)
                    continue;
                assert_int_equal(e.at[at].n_values, n);
                assert_int_equal(e.at[at].bytes, bytes);
                at++;
                if (a >= 0 && b >= 0)
                    adjacent[a][b] = true;
            }
        assert_int_equal(at, e.n);
        /* acyclic by closure, empty stages by count: the same verdict as cut_check */
        bool empty = false, cycle = false;
        for (int32_t st = 0; st < n_stages; st++) {
            bool any = false;
            for (int32_t i = 0; i < g->n_nodes; i++)
                any = any || stage_of[i] == st;
            empty = empty || !any;
        }
        for (int k = 0; k < n_stages; k++)
            for (int i = 0; i < n_stages; i++)
                for (int j = 0; j < n_stages; j++)
                    adjacent[i][j] = adjacent[i][j] || (adjacent[i][k] && adjacent[k][j]);
        for (int i = 0; i < n_stages; i++)
            cycle = cycle || adjacent[i][i];
        yk_err err = cut_check(g, &s, stage_of, n_stages, &why);
        assert_int_equal(err, empty || cycle ? YK_INVAL : YK_OK);
        if (!scattered)
            assert_int_equal(err, YK_OK);
        cut_edges_fini(&e);
        shapes_fini(&s);
        graph_close(g);
    }
}

static bool has_value(const struct cut_edge *e, int32_t v)
{
    for (int32_t i = 0; i < e->n_values; i++)
        if (e->values[i] == v)
            return true;
    return false;
}

static bool has_reader(const struct cut_edge *e, int32_t stage)
{
    for (int32_t i = 0; i < e->n_also; i++)
        if (e->also[i] == stage)
            return true;
    return e->to == stage;
}

/* Joined edges bring every stage what it reads, and no value twice from one stage to one agent. */
static void test_edges_join(void **state)
{
    (void)state;
    struct yk_rng r;
    int shared = 0;
    for (uint64_t seed = 1; seed <= GRAPHS; seed++) {
        yk_rng_seed(&r, seed);
        struct graph *g = fx_random(&r, 8 + (int)yk_rng_below(&r, 50));
        struct shapes s;
        struct cut_edges e, one;
        int32_t stage_of[200], agent_of[5], n_stages = 2 + (int32_t)yk_rng_below(&r, 4);
        for (int32_t i = 0; i < g->n_nodes; i++)
            stage_of[i] = (int32_t)yk_rng_below(&r, (uint64_t)n_stages);
        for (int32_t i = 0; i < n_stages; i++)
            agent_of[i] = (int32_t)yk_rng_below(&r, 2);
        assert_int_equal(shapes_infer(g, (const int64_t[]){2}, NULL, &s, NULL), YK_OK);
        assert_int_equal(cut_edges_find(g, &s, stage_of, n_stages, &one, NULL), YK_OK);
        assert_int_equal(cut_edges_find(g, &s, stage_of, n_stages, &e, NULL), YK_OK);
        assert_int_equal(cut_edges_join(&e, &s, agent_of, n_stages, NULL), YK_OK);
        shared += one.n - e.n;
        for (int32_t k = 0; k < one.n; k++)
            for (int32_t i = 0; i < one.at[k].n_values; i++) {
                int n = 0;
                for (int32_t j = 0; j < e.n; j++)
                    n += e.at[j].from == one.at[k].from && has_reader(&e.at[j], one.at[k].to) &&
                         has_value(&e.at[j], one.at[k].values[i]);
                assert_int_equal(n, 1);
            }
        for (int32_t k = 0; k < e.n; k++) {
            int64_t bytes = 0;
            for (int32_t i = 0; i < e.at[k].n_values; i++) {
                int32_t v = e.at[k].values[i];
                bytes += shape_bytes(&s.of[v]);
                assert_true(i == 0 || v > e.at[k].values[i - 1]);
                for (int32_t j = 0; j < e.n; j++)
                    if (j != k && e.at[j].from == e.at[k].from && e.at[j].to >= 0 && e.at[k].to >= 0 &&
                        agent_of[e.at[j].to] == agent_of[e.at[k].to])
                        assert_false(has_value(&e.at[j], v));
            }
            assert_int_equal(bytes, e.at[k].bytes);
        }
        cut_edges_fini(&e);
        cut_edges_fini(&one);
        shapes_fini(&s);
        graph_close(g);
    }
    assert_true(shared > GRAPHS / 4);
}

static void test_check_says_why(void **state)
{
    (void)state;
    struct graph *g = fx_open();
    struct shapes s;
    struct yk_diag why;
    int32_t x = fx_input(g, "x", DT_F32, INTS(4));
    int32_t a = fx_node(g, "Relu", "a", IDS(x)), b = fx_node(g, "Relu", "b", IDS(a)),
            c = fx_node(g, "Relu", "c", IDS(b));
    fx_output(g, c);
    assert_int_equal(shapes_infer(g, NULL, NULL, &s, NULL), YK_OK);
    assert_int_equal(cut_check(g, &s, (const int32_t[]){0, 1, 0}, 2, &why), YK_INVAL);
    assert_non_null(strstr(why.text, "wait for each other"));
    assert_non_null(strstr(why.text, "'b'"));
    assert_non_null(strstr(why.text, "'c'"));
    assert_int_equal(cut_check(g, &s, (const int32_t[]){0, 0, 0}, 2, &why), YK_INVAL);
    assert_non_null(strstr(why.text, "stage 1 has no nodes"));
    assert_int_equal(cut_check(g, &s, (const int32_t[]){0, 0, 2}, 2, &why), YK_INVAL);
    assert_int_equal(cut_check(g, &s, (const int32_t[]){0, -1, 0}, 2, &why), YK_INVAL);
    assert_int_equal(cut_check(g, &s, (const int32_t[]){0, 0, 0}, 0, &why), YK_LIMIT);
    assert_int_equal(cut_check(g, &s, (const int32_t[]){0, 0, 0}, CUT_MAX_STAGES + 1, &why), YK_LIMIT);
    assert_int_equal(cut_check(g, &s, (const int32_t[]){0, 1, 2}, 3, &why), YK_OK);
    assert_int_equal(cut_check(g, &s, (const int32_t[]){2, 1, 0}, 3, &why), YK_OK); /* numbers need no order */

    s.of[a].dims[0] = -1; /* a size that only the data knows does not cross */
    assert_int_equal(cut_check(g, &s, (const int32_t[]){0, 1, 1}, 2, &why), YK_INVAL);
    assert_non_null(strstr(why.text, "'a'"));
    assert_int_equal(cut_check(g, &s, (const int32_t[]){0, 0, 1}, 2, &why), YK_OK);
    struct cuts cuts;
    assert_int_equal(cut_all(g, &s, &cuts, NULL), YK_OK);
    assert_true(cuts.at[1].forbidden && !cuts.at[2].forbidden);
    cuts_fini(&cuts);
    shapes_fini(&s);
    graph_close(g);
}

/* A graph output that the next stage reads goes both ways; an input that is an output, and weights, go nowhere. */
static void test_outputs(void **state)
{
    (void)state;
    struct graph *g = fx_open();
    struct shapes s;
    struct cut_edges e;
    int32_t x = fx_input(g, "x", DT_F32, INTS(4)), w = fx_weight(g, "w", INTS(4));
    int32_t a = fx_node(g, "Add", "a", IDS(x, w)), b = fx_node(g, "Add", "b", IDS(a, w));
    fx_output(g, a);
    fx_output(g, b);
    fx_output(g, x);
    fx_output(g, w);
    assert_int_equal(shapes_infer(g, NULL, NULL, &s, NULL), YK_OK);
    assert_int_equal(cut_edges_find(g, &s, (const int32_t[]){0, 1}, 2, &e, NULL), YK_OK);
    assert_int_equal(e.n, 4);
    static const int32_t want[4][2] = {{-1, 0}, {0, -1}, {0, 1}, {1, -1}};
    for (int i = 0; i < 4; i++) {
        assert_int_equal(e.at[i].from, want[i][0]);
        assert_int_equal(e.at[i].to, want[i][1]);
        assert_int_equal(e.at[i].n_values, 1);
        assert_int_equal(e.at[i].bytes, 16);
    }
    assert_int_equal(e.at[1].values[0], a);
    assert_int_equal(e.at[2].values[0], a);
    cut_edges_fini(&e);
    shapes_fini(&s);
    graph_close(g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_prefix_cuts), cmocka_unit_test(test_edges),
        cmocka_unit_test(test_edges_join), cmocka_unit_test(test_check_says_why), cmocka_unit_test(test_outputs)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
