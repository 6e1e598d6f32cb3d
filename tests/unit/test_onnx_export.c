/* ONNX export: what ONNX's own checker says of it, and that reading it again gives the same graph. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <dirent.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/hash.h"
#include "common/op.h"
#include "common/passes.h"
#include "tests/unit/graph_equal.h"
#include "tests/unit/onnx_held.h"

static const char fmnist[] = YOKE_SOURCE_DIR "/tests/data/fmnist_cnn.onnx";

static struct graph *open_model(const char *path)
{
    struct graph *g = NULL;
    if (onnx_import(path, &g, NULL, &why))
        fail_msg("%s", why.text);
    return g;
}

static struct yk_buf skeleton_of(struct graph *g)
{
    struct yk_buf b = {0};
    if (onnx_export_skeleton(g, &b, &why))
        fail_msg("%s", why.text);
    return b;
}

/* The skeleton read again is the same graph, and makes the same bytes and the same hash. */
static void check_skeleton(struct graph *g)
{
    struct graph *h = NULL;
    struct yk_buf a = skeleton_of(g);
    if (onnx_import_memory(a.data, a.len, &h, NULL, &why))
        fail_msg("%s", why.text);
    assert_true(graph_equal(g, h));
    assert_true(h->has_hash);
    assert_memory_equal(g->hash, h->hash, HASH_BYTES);
    struct yk_buf b = skeleton_of(h);
    assert_int_equal(a.len, b.len);
    assert_memory_equal(a.data, b.data, a.len);
    graph_close(h);
    yk_buf_free(&a);
    yk_buf_free(&b);
}

/* The whole export read again is the same graph. */
static void check_export(const struct graph *g)
{
    struct yk_buf a = {0}, b = {0};
    struct graph *h = NULL;
    if (onnx_export(g, &a, &why) || onnx_import_memory(a.data, a.len, &h, NULL, &why))
        fail_msg("%s", why.text);
    assert_int_equal(onnx_export(h, &b, &why), YK_OK);
    assert_int_equal(a.len, b.len);
    assert_memory_equal(a.data, b.data, a.len);
    graph_close(h);
    yk_buf_free(&a);
    yk_buf_free(&b);
}

static bool have_python(void)
{
    return system("/usr/bin/python3 -c 'import onnx' 2>/dev/null") == 0;
}

/* ONNX's checker and shape inference accept the export of the model at path, and find the same graph in it. */
static void check_outside(const char *path)
{
    char name[] = "/tmp/yoke-export-XXXXXX", command[4500];
    struct yk_buf b = {0};
    struct graph *g = open_model(path);
    assert_int_equal(onnx_export(g, &b, &why), YK_OK);
    graph_close(g);
    int fd = mkstemp(name);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, b.data, b.len), (ssize_t)b.len);
    close(fd);
    yk_buf_free(&b);
    snprintf(command, sizeof command, "/usr/bin/python3 %s/tests/golden/check_onnx.py --same '%s' '%s'",
        YOKE_SOURCE_DIR, path, name);
    int status = system(command);
    unlink(name);
    if (status)
        fail_msg("%s: ONNX's checker objects to the export", path);
}

static void real_model(void **state)
{
    struct graph *g = open_model(fmnist);
    (void)state;
    check_export(g);
    check_skeleton(g);
    struct graph *canonical = open_model(fmnist);
    assert_int_equal(passes_infer(canonical, NULL, NULL, &why), YK_OK);
    check_skeleton(canonical);
    check_export(canonical);
    graph_close(canonical);
    struct yk_buf b = skeleton_of(g);
    assert_true(b.len < 4096); /* 860 KB of weights stay outside */
    for (int32_t i = 0; i < g->n_values; i++)
        if (g->values[i].kind == VALUE_WEIGHT) {
            uint8_t hash[HASH_BYTES];
            char hex[HASH_HEX_SIZE];
            hash_bytes(g->values[i].data, (size_t)g->values[i].bytes, hash);
            yk_hex(hash, HASH_BYTES, hex);
            assert_int_equal(memmem(b.data, b.len, hex, 64) != NULL, g->values[i].bytes > 64);
        }
    yk_buf_free(&b);
    graph_close(g);
}

static void skeleton_cannot_be_exported_whole(void **state)
{
    struct graph *g = open_model(fmnist), *h = NULL;
    struct yk_buf a = skeleton_of(g), b = {0};
    (void)state;
    assert_int_equal(onnx_import_memory(a.data, a.len, &h, NULL, &why), YK_OK);
    assert_int_equal(onnx_export(h, &b, &why), YK_STATE);
    assert_non_null(strstr(why.text, "only its hash"));
    assert_null(b.data);
    graph_close(h);
    graph_close(g);
    yk_buf_free(&a);
}

/* A graph numbered as passes leave it: weights between and behind what nodes make, own ops, absent inputs, all kinds
 * of attributes. */
static void graph_from_passes(void **state)
{
    struct graph *g = graph_open(0);
    struct shape s1 = {DT_F32, 1, {40}}, s2 = {DT_F32, 0, {0}}, s3 = {DT_I64, 1, {2}}, s4 = {DT_F32, 2, {0, 3}};
    float w[40] = {1, 2, 3};
    const float strange[] = {-0.0f};
    const int64_t ints[] = {-1, 1LL << 60};
    (void)state;
    int32_t y = graph_add_value(g, "y", VALUE_NODE, DT_F32);
    int32_t z = graph_add_value(g, "z/größe", VALUE_NODE, DT_NONE);
    int32_t kernel = graph_add_weight(g, "w", &s1, w);
    int32_t x = graph_add_value(g, "x", VALUE_INPUT, DT_F32);
    int32_t x2 = graph_add_value(g, "a second", VALUE_INPUT, DT_I64);
    int32_t six = graph_add_weight(g, "six", &s2, strange);
    graph_add_weight(g, "ints", &s3, ints);
    graph_add_weight(g, "empty", &s4, w);
    struct dim *dims = yk_arena_alloc(g->arena, 2, sizeof *dims);
    dims[0] = (struct dim){0, graph_sym(g, "N")};
    dims[1] = (struct dim){40, -1};
    g->values[x].rank = g->values[y].rank = 2;
    g->values[x].dims = g->values[y].dims = dims;
    g->values[x2].rank = 0;
    g->inputs = yk_arena_alloc(g->arena, 2, sizeof *g->inputs);
    g->outputs = yk_arena_alloc(g->arena, 2, sizeof *g->outputs);
    g->inputs[0] = x2;
    g->inputs[1] = x;
    g->outputs[0] = y;
    g->n_inputs = 2;
    g->n_outputs = 1;
    int32_t clip = graph_add_node(g, "clip", op_find("", "Clip"), (int32_t[]){x, YK_ABSENT, six}, 3, &z, 1);
    graph_add_node(g, "", op_find("", "Add"), (int32_t[]){z, kernel}, 2, &y, 1);
    struct node *n = &g->nodes[clip];
    graph_set_attr_i(g, n, "i", -3);
    graph_set_attr_f(g, n, "f", -0.0f);
    graph_set_attr_s(g, n, "s", "text ö");
    graph_set_attr_ints(g, n, "ints", ints, 2);
    graph_set_attr_ints(g, n, "none", NULL, 0);
    check_skeleton(g);
    check_export(g);
    struct yk_buf b = skeleton_of(g);
    assert_non_null(memmem(b.data, b.len, "yoke.ids", 8));
    yk_buf_free(&b);
    const struct op *own = op_find("ai.yoke", "FusedConv");
    if (own) { /* own ops bring their domain */
        g->nodes[1].op = own;
        check_skeleton(g);
        b = skeleton_of(g);
        assert_non_null(memmem(b.data, b.len, "ai.yoke", 7));
        yk_buf_free(&b);
    }
    graph_close(g);
}

/* Graphs as attributes, with values captured over two levels. The op that carries them does not matter here. */
static void subgraphs(void **state)
{
    struct yk_buf b = {0};
    struct held h;
    const float w = 2;
    (void)state;
    size_t m = make_model(&b, 13);
    make_value(&b, 11, "x", 1, "N");
    size_t outer = make_node(&b, "Relu", "x", "y"), a = pb_begin(&b, 5);
    pb_put_text(&b, 1, "body");
    size_t g = pb_begin(&b, 6);
    pb_put_text(&b, 2, "branch");
    size_t inner = make_node(&b, "Relu", "x", "t"), c = pb_begin(&b, 5);
    pb_put_text(&b, 1, "body");
    size_t deep = pb_begin(&b, 6);
    pb_put_text(&b, 2, "deep");
    make_plain(&b, "Add", "w,own", "mine"); /* w is two graphs out */
    make_plain(&b, "Add", "mine,own2", "e");
    make_value(&b, 11, "own", 1, "N,3");
    make_weight_f32(&b, "own2", 1, &w);
    make_value(&b, 12, "e", 1, "-");
    pb_end(&b, deep);
    pb_put_varint(&b, 20, 5);
    pb_end(&b, c);
    pb_end(&b, inner);
    make_value(&b, 12, "t", 1, "-");
    pb_end(&b, g);
    pb_put_varint(&b, 20, 5);
    pb_end(&b, a);
    pb_end(&b, outer);
    make_weight_f32(&b, "w", 1, &w);
    make_value(&b, 12, "y", 1, "N");
    make_end(&b, m);
    if (load(&h, &b))
        fail_msg("%s", why.text);
    const struct graph *body = node_attr(&h.g->nodes[0], "body")->graph,
                       *last = node_attr(&body->nodes[0], "body")->graph;
    assert_ptr_equal(last->parent, body);
    int32_t captured = graph_find_value(last, "w");
    assert_int_equal(last->values[captured].kind, VALUE_CAPTURE);
    int32_t between = last->values[captured].capture;
    assert_int_equal(body->values[between].kind, VALUE_CAPTURE);
    assert_string_equal(h.g->values[body->values[between].capture].name, "w");
    assert_int_equal(last->n_nodes, 2);
    check_skeleton(h.g);
    check_export(h.g);
    drop(&h);
}

/* Somebody changed the list of ids of a skeleton. */
static void bad_ids(void **state)
{
    static const char *const lists[] = {"0 1 2", "0 1", "0 1 2 3", "0 1 2 2", "0 1 2 x", "0 1 2 99", "0  1 2 3",
        "-1 1 2 3", "0 1 2 3 ", "99999999999999999999 1 2 3"};
    (void)state;
    for (size_t i = 0; i < YK_COUNT(lists) + 1; i++) {
        struct yk_buf b = {0};
        struct held h;
        const float w = 1;
        size_t m = make_model(&b, 17);
        make_weight_f32(&b, "w", 1, &w);
        make_value(&b, 11, "x", 1, "N");
        make_plain(&b, "Add", "x,w", "z");
        make_plain(&b, "Relu", "z", "y");
        make_value(&b, 12, "y", 1, "N");
        make_end(&b, m);
        make_pair(&b, 14, "yoke.skeleton", "1");
        make_pair(&b, 14, "yoke.ids", i < YK_COUNT(lists) ? lists[i] : "3 1 0 2");
        yk_err err = load(&h, &b);
        bool right = i >= YK_COUNT(lists) || strcmp(lists[i], "0 1 2 3") == 0;
        assert_int_equal(err, right ? YK_OK : YK_FORMAT);
        if (i >= YK_COUNT(lists)) {
            assert_int_equal(graph_find_value(h.g, "w"), 3);
            assert_int_equal(graph_find_value(h.g, "y"), 2);
            assert_int_equal(h.g->nodes[0].in[1], 3);
            assert_int_equal(h.g->outputs[0], 2);
        }
        drop(&h);
    }
}

static void too_large(void **state)
{
    struct graph *g = graph_open(0);
    struct shape s = {DT_F32, 1, {1LL << 30}};
    struct yk_buf b = {0};
    (void)state;
    graph_add_weight(g, "w", &s, "");
    assert_int_equal(onnx_export(g, &b, &why), YK_LIMIT);
    assert_non_null(strstr(why.text, "4294967296 bytes of weights"));
    graph_close(g);
}

static void checked_by_onnx(void **state)
{
    (void)state;
    if (!have_python())
        skip();
    check_outside(fmnist);
}

/* The golden models (YOKE_MODELS, see tests/golden/make_models.py): export, skeleton, and ONNX's checker. */
static void golden_models(void **state)
{
    const char *folder = getenv("YOKE_MODELS");
    DIR *d = folder ? opendir(folder) : NULL;
    bool python = have_python();
    int n = 0;
    (void)state;
    if (!d)
        skip();
    for (struct dirent *e; (e = readdir(d));) {
        char path[4096];
        size_t len = strlen(e->d_name);
        if (len < 5 || strcmp(e->d_name + len - 5, ".onnx") != 0)
            continue;
        snprintf(path, sizeof path, "%s/%s", folder, e->d_name);
        struct graph *g = open_model(path);
        check_export(g);
        check_skeleton(g);
        if (passes_infer(g, NULL, NULL, &why)) /* the canonical graph, which is what plans refer to */
            fail_msg("%s: %s", path, why.text);
        check_skeleton(g);
        check_export(g);
        graph_close(g);
        if (python && !strstr(e->d_name, "_224")) /* the same graph as _64 */
            check_outside(path);
        n++;
    }
    closedir(d);
    assert_true(n > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(real_model),
        cmocka_unit_test(skeleton_cannot_be_exported_whole),
        cmocka_unit_test(graph_from_passes),
        cmocka_unit_test(subgraphs),
        cmocka_unit_test(bad_ids),
        cmocka_unit_test(too_large),
        cmocka_unit_test(checked_by_onnx),
        cmocka_unit_test(golden_models),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
