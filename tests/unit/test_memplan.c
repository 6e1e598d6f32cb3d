/* Memory plans: buffers that live at the same time never overlap, views share, figures add up, plans repeat. */
#include <stdio.h>
#include <stdlib.h>

#include "common/memplan.h"
#include "tests/unit/graph_fixture.h"

#define GRAPHS 200

static bool reads(const struct graph *g, int32_t node, int32_t value)
{
    for (int32_t k = 0; k < g->nodes[node].n_in; k++)
        if (g->nodes[node].in[k] == value)
            return true;
    return false;
}

static bool in_arena(struct memplan_place p)
{
    return p.where == MEMPLAN_ARENA || (p.where == MEMPLAN_OUT && p.offset >= 0);
}

/* Runs the stage as an executor would, but with owners instead of numbers: every byte of the arena remembers which
 * root was written there last; a reader must find its value's root intact. */
static void simulate(const struct graph *g, const struct shapes *s, const uint8_t *in_stage, const struct memplan *m)
{
    int32_t *owner = malloc(((size_t)m->arena_bytes + 1) * sizeof *owner);
    for (int64_t i = 0; i < m->arena_bytes; i++)
        owner[i] = -1;
    for (int32_t i = 0; i < g->n_nodes; i++) {
        const struct node *n = &g->nodes[i];
        if (!in_stage[i])
            continue;
        struct memplan_place out = memplan_place(m, g, n->out[0]);
        for (int32_t k = 0; k < n->n_in; k++) {
            struct memplan_place in = memplan_place(m, g, n->in[k]);
            assert_true(in.where != MEMPLAN_NOWHERE);
            if (!in_arena(in))
                continue;
            for (int64_t b = 0; b < shape_bytes(&s->of[n->in[k]]); b++)
                assert_int_equal(owner[in.offset + b], in.root);
            /* only a view may share the place of what it reads */
            assert_true(n->op->flags & OP_VIEW || !in_arena(out) || out.root != in.root);
        }
        assert_true(out.where == MEMPLAN_ARENA || out.where == MEMPLAN_OUT ||
                    (n->op->flags & OP_VIEW && (out.where == MEMPLAN_IN || out.where == MEMPLAN_WEIGHT)));
        if (!in_arena(out))
            continue;
        assert_int_equal(out.offset % MEMPLAN_ALIGN, 0);
        assert_true(out.offset + shape_bytes(&s->of[n->out[0]]) <= m->workspace_offset);
        for (int64_t b = 0; b < shape_bytes(&s->of[n->out[0]]); b++)
            owner[out.offset + b] = out.root;
    }
    free(owner);
}

static int64_t rounded(int64_t bytes)
{
    return (bytes + MEMPLAN_ALIGN - 1) / MEMPLAN_ALIGN * MEMPLAN_ALIGN;
}

/* Outputs that are taken lie in the arena, as all that lives there, and nowhere else; all else is as without. */
static void check_taken(struct graph *g, const struct shapes *s, const uint8_t *in_stage,
    const struct memplan_node *table, const struct memplan *plain, struct yk_rng *r)
{
    struct memplan m;
    uint8_t *taken = calloc((size_t)g->n_values + 1, 1), *stays = calloc((size_t)g->n_values + 1, 1);
    int64_t out_bytes = plain->out_bytes, stay_bytes = plain->stay_bytes;
    for (int32_t v = 0; v < g->n_values; v++)
        taken[v] = yk_rng_below(r, 2) != 0; /* of inner values and inputs it says nothing */
    for (int32_t v = 0; v < g->n_values; v++) {
        for (int32_t i = g->n_outputs - g->n_staying; i < g->n_outputs; i++)
            stays[v] |= g->outputs[i] == v;
        for (int32_t i = 0; i < g->n_outputs - g->n_staying; i++)
            stays[v] &= g->outputs[i] != v;
        for (int32_t i = 0; i < g->n_nodes; i++)
            stays[v] &= in_stage[i] || !reads(g, i, v);
    }
    for (int32_t i = 0; i < plain->n_out; i++) {
        int32_t v = plain->out[i];
        if (taken[v])
            *(stays[v] ? &stay_bytes : &out_bytes) -= rounded(shape_bytes(&s->of[v]));
    }
    assert_int_equal(memplan_make_taken(g, s, in_stage, table, taken, 3, &m, NULL), YK_OK);
    simulate(g, s, in_stage, &m);
    assert_int_equal(m.n_in, plain->n_in);
    assert_int_equal(m.n_out, plain->n_out);
    assert_memory_equal(m.out, plain->out, (size_t)m.n_out * sizeof *m.out);
    for (int32_t i = 0; i < m.n_out; i++) {
        struct memplan_place p = memplan_place(&m, g, m.out[i]);
        assert_int_equal(p.where, MEMPLAN_OUT);
        assert_int_equal(p.index, i);
        assert_int_equal(p.root, m.out[i]);
        assert_int_equal(p.offset >= 0, taken[m.out[i]]);
    }
    assert_int_equal(m.out_bytes, out_bytes);
    assert_int_equal(m.stay_bytes, stay_bytes);
    assert_int_equal(m.total_bytes - m.arena_bytes - m.stay_bytes - 3 * m.out_bytes,
        plain->total_bytes - plain->arena_bytes - plain->stay_bytes - 3 * plain->out_bytes);
    memplan_fini(&m);
    free(taken);
    free(stays);
}

static void test_random(void **state)
{
    (void)state;
    struct yk_rng r;
    for (uint64_t seed = 1; seed <= GRAPHS; seed++) {
        yk_rng_seed(&r, seed);
        struct graph *g = fx_random(&r, 3 + (int)yk_rng_below(&r, 80));
        struct shapes s;
        struct memplan m, again;
        uint8_t in_stage[200];
        struct memplan_node table[200];
        int64_t packed = 0, workspace = 0;
        int how = (int)(seed % 3);
        g->n_staying = (int32_t)yk_rng_below(&r, (uint64_t)g->n_outputs + 1);
        for (int32_t i = 0; i < g->n_nodes; i++) {
            in_stage[i] = how == 0 || (how == 1 ? i >= g->n_nodes / 3 : yk_rng_below(&r, 2) != 0);
            table[i] = (struct memplan_node){(int64_t)yk_rng_below(&r, 100), (int64_t)yk_rng_below(&r, 1000), false};
            packed += in_stage[i] ? table[i].packed_bytes : 0;
            workspace = YK_MAX(workspace, in_stage[i] ? table[i].workspace_bytes : 0);
        }
        assert_int_equal(shapes_infer(g, (const int64_t[]){1 + (int64_t)yk_rng_below(&r, 9)}, NULL, &s, NULL), YK_OK);
        assert_int_equal(memplan_make(g, &s, in_stage, table, 3, &m, NULL), YK_OK);
        assert_int_equal(memplan_make(g, &s, in_stage, table, 3, &again, NULL), YK_OK);
        assert_memory_equal(m.offset, again.offset, (size_t)g->n_values * sizeof *m.offset);
        assert_int_equal(m.total_bytes, again.total_bytes);
        simulate(g, &s, in_stage, &m);

        int32_t n_in = 0, n_out = 0;
        int64_t in_bytes = 0, out_bytes = 0, stay_bytes = 0, weights = 0;
        for (int32_t v = 0; v < g->n_values; v++) {
            bool inside = false, outside = false, stays = false;
            int32_t p = g->values[v].producer;
            for (int32_t i = 0; i < g->n_nodes; i++) {
                inside = inside || (in_stage[i] && reads(g, i, v));
                outside = outside || (!in_stage[i] && reads(g, i, v));
            }
            for (int32_t i = 0; i < g->n_outputs; i++) {
                stays = stays || (g->outputs[i] == v && i >= g->n_outputs - g->n_staying);
                outside = outside || (g->outputs[i] == v && i < g->n_outputs - g->n_staying);
            }
            bool made = p >= 0 && in_stage[p];
            if (g->values[v].kind == VALUE_WEIGHT) {
                weights += inside ? shape_bytes(&s.of[v]) : 0;
            } else if (!made && inside) {
                assert_int_equal(m.in[n_in++], v);
                in_bytes += rounded(shape_bytes(&s.of[v]));
            } else if (made && (outside || stays)) {
                assert_int_equal(m.out[n_out++], v);
                *(outside ? &out_bytes : &stay_bytes) += rounded(shape_bytes(&s.of[v]));
            }
        }
        assert_int_equal(n_in, m.n_in);
        assert_int_equal(n_out, m.n_out);
        assert_int_equal(in_bytes, m.in_bytes);
        assert_int_equal(out_bytes, m.out_bytes);
        assert_int_equal(stay_bytes, m.stay_bytes);
        assert_int_equal(weights, m.weight_bytes);
        assert_int_equal(packed, m.packed_bytes);
        assert_int_equal(m.arena_bytes - m.workspace_offset, rounded(workspace));
        assert_int_equal(m.total_bytes, m.arena_bytes + weights + packed + stay_bytes + 3 * (in_bytes + out_bytes));
        check_taken(g, &s, in_stage, table, &m, &r);
        memplan_fini(&m);
        memplan_fini(&again);
        shapes_fini(&s);
        graph_close(g);
    }
}

/* A chain needs two buffers, whatever its length; views add nothing; a view of the input is the input. */
static void test_chain(void **state)
{
    (void)state;
    struct graph *g = fx_open();
    struct shapes s;
    struct memplan m;
    uint8_t all[32];
    char name[16];
    memset(all, 1, sizeof all);
    int32_t v = fx_input(g, "x", DT_F32, INTS(100));
    int32_t view = v = fx_node(g, "Identity", "view", IDS(v));
    for (int i = 0; i < 10; i++) {
        snprintf(name, sizeof name, "r%d", i);
        v = fx_node(g, "Relu", name, IDS(v));
        snprintf(name, sizeof name, "i%d", i);
        v = fx_node(g, "Identity", name, IDS(v));
    }
    int32_t inner = v;
    v = fx_node(g, "Relu", "y", IDS(v));
    fx_output(g, v);
    assert_int_equal(shapes_infer(g, NULL, NULL, &s, NULL), YK_OK);
    assert_int_equal(memplan_make(g, &s, all, NULL, 1, &m, NULL), YK_OK);
    assert_int_equal(m.arena_bytes, 2 * 448);
    struct memplan_place p = memplan_place(&m, g, view);
    assert_int_equal(p.where, MEMPLAN_IN);
    assert_int_equal(p.index, 0);
    assert_int_equal(memplan_place(&m, g, inner).root, g->nodes[g->values[inner].producer].in[0]);
    assert_int_equal(memplan_place(&m, g, v).where, MEMPLAN_OUT);
    assert_int_equal(memplan_place(&m, g, 9999).where, MEMPLAN_NOWHERE);
    assert_int_equal(m.total_bytes, 2 * 448 + 448 + 448);
    memplan_fini(&m);
    shapes_fini(&s);
    graph_close(g);
}

/* A view that leaves the stage has a buffer of its own; weights that are packed away are not counted. */
static void test_leaving_view_and_drop(void **state)
{
    (void)state;
    struct graph *g = fx_open();
    struct shapes s;
    struct memplan m;
    struct yk_diag why;
    uint8_t all[2] = {1, 1};
    int32_t x = fx_input(g, "x", DT_F32, INTS(8, 8)), w = fx_weight(g, "w", INTS(8, 8));
    int32_t y = fx_node(g, "MatMul", "y", IDS(x, w)), z = fx_node(g, "Flatten", "z", IDS(y));
    fx_output(g, z);
    assert_int_equal(shapes_infer(g, NULL, NULL, &s, NULL), YK_OK);
    struct memplan_node table[2] = {{.packed_bytes = 300, .drops_weights = true}, {0}};
    assert_int_equal(memplan_make(g, &s, all, table, 2, &m, NULL), YK_OK);
    assert_int_equal(m.weight_bytes, 0);
    assert_int_equal(m.packed_bytes, 300);
    assert_int_equal(memplan_place(&m, g, z).where, MEMPLAN_OUT);
    assert_int_equal(memplan_place(&m, g, y).where, MEMPLAN_ARENA);
    assert_int_equal(memplan_place(&m, g, w).where, MEMPLAN_WEIGHT);
    memplan_fini(&m);
    table[1].workspace_bytes = INT64_MAX;
    assert_int_equal(memplan_make(g, &s, all, table, 2, &m, &why), YK_LIMIT);
    table[1].workspace_bytes = -1;
    assert_int_equal(memplan_make(g, &s, all, table, 2, &m, &why), YK_INVAL);
    assert_int_equal(memplan_make(g, &s, all, NULL, -1, &m, &why), YK_INVAL);
    /* What depends on data has no place, and may not cross. */
    s.of[y].dims[0] = -1;
    s.dynamic[0] = s.dynamic[1] = 1;
    assert_int_equal(memplan_make(g, &s, all, NULL, 1, &m, &why), YK_OK);
    assert_int_equal(memplan_place(&m, g, y).where, MEMPLAN_NOWHERE);
    assert_true(m.heap_bytes > MEMPLAN_HEAP_BYTES && m.total_bytes > m.heap_bytes);
    memplan_fini(&m);
    for (int stage = 0; stage < 2; stage++) {
        uint8_t one[2] = {stage == 0, stage == 1};
        assert_int_equal(memplan_make(g, &s, one, NULL, 1, &m, &why), YK_UNSUPPORTED);
        assert_non_null(strstr(why.text, "'y'"));
    }
    shapes_fini(&s);
    graph_close(g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random), cmocka_unit_test(test_chain), cmocka_unit_test(test_leaving_view_and_drop)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
