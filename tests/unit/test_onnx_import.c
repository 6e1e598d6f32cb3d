/* ONNX import: what is read, what is refused, what is listed. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "common/op.h"
#include "tests/unit/onnx_held.h"

/* ---- the real file ---- */

static const char fmnist[] = YOKE_SOURCE_DIR "/tests/data/fmnist_cnn.onnx";

static void real_model(void **state)
{
    static const char *const ops[] = {
        "Conv", "Relu", "MaxPool", "Conv", "Relu", "MaxPool", "Flatten", "Gemm", "Relu", "Gemm"};
    struct graph *g;
    (void)state;
    if (onnx_import(fmnist, &g, NULL, &why))
        fail_msg("%s", why.text);
    assert_int_equal(g->n_nodes, YK_COUNT(ops));
    for (int32_t i = 0; i < g->n_nodes; i++)
        assert_string_equal(g->nodes[i].op->name, ops[i]);
    assert_int_equal(g->n_inputs, 1);
    const struct value *x = &g->values[g->inputs[0]], *w = value(g, "9.weight");
    assert_string_equal(x->name, "x");
    assert_int_equal(x->dtype, DT_F32);
    assert_int_equal(x->rank, 4);
    assert_string_equal(g->syms[x->dims[0].sym], "N");
    assert_int_equal(x->dims[3].value, 28);
    assert_int_equal(w->shape.dims[0], 128);
    assert_int_equal(w->shape.dims[1], 1568);
    assert_int_equal(w->bytes, 802816);
    assert_false(g->has_hash);
    int64_t fixed;
    assert_int_equal(graph_batch_dim(g, &fixed), 0);
    /* In place: the weight's bytes are those of the file. */
    size_t n;
    uint8_t *file = read_all(fmnist, &n);
    assert_non_null(memmem(file, n, w->data, (size_t)w->bytes));
    const struct attr *pads = node_attr_ints(&g->nodes[0], "pads");
    assert_int_equal(pads->n, 4);
    assert_int_equal(pads->ints[3], 2);
    free(file);
    graph_close(g);
}

/* Every cut of the small parts, and many of the large ones: an error, never a crash or a graph. */
static void truncated_everywhere(void **state)
{
    size_t n;
    uint8_t *file = read_all(fmnist, &n);
    (void)state;
    for (size_t len = 0; len < n; len += len < 3000 || n - len < 3000 ? 1 : 4999) {
        uint8_t *exact = malloc(len ? len : 1);
        struct graph *g = NULL;
        memcpy(exact, file, len);
        yk_err err = onnx_import_memory(exact, len, &g, NULL, &why);
        /* The opset import stands behind the graph: without it the model is opset 1. */
        assert_true(err == YK_FORMAT || err == YK_UNSUPPORTED);
        assert_null(g);
        free(exact);
    }
    free(file);
}

/* One byte changed, at many places: whatever comes out, no crash, and a graph that can be closed. */
static void flipped_bytes(void **state)
{
    size_t n;
    uint8_t *file = read_all(fmnist, &n);
    struct yk_rng rng;
    (void)state;
    yk_rng_seed(&rng, 7);
    for (int i = 0; i < 3000; i++) {
        size_t at = yk_rng_below(&rng, i % 2 ? 2500 : n);
        if (i % 3 == 0)
            at = n - 1 - at % 600;
        uint8_t old = file[at];
        file[at] = (uint8_t)yk_rng_next(&rng);
        struct graph *g = NULL;
        if (onnx_import_memory(file, n, &g, NULL, &why) == YK_OK)
            graph_close(g);
        file[at] = old;
    }
    free(file);
}

/* ---- structure ---- */

static void small_model(void **state)
{
    struct yk_buf b = {0};
    struct held h;
    const float w[] = {1, 2, 3};
    (void)state;
    size_t m = make_model(&b, 17);
    make_plain(&b, "Relu", "sum", "y"); /* nodes in any order */
    make_plain(&b, "Add", "x,w", "sum");
    make_value(&b, 11, "w", 1, "3"); /* a weight listed as an input, as before IR version 4 */
    make_value(&b, 11, "x", 1, "N,?,3");
    make_value(&b, 12, "y", 1, "N,?,3");
    make_weight_f32(&b, "w", 3, w);
    make_weight_f32(&b, "never used", 3, w);
    make_end(&b, m);
    pb_put_text(&b, 2, "producer");
    pb_put_varint(&b, 777, 1); /* unknown fields are skipped */
    struct graph *g = accept(&h, &b);
    assert_int_equal(g->n_nodes, 2);
    assert_string_equal(g->nodes[0].op->name, "Add");
    assert_int_equal(g->n_inputs, 1);
    assert_int_equal(g->n_syms, 2);
    assert_string_equal(g->syms[0], "N");
    assert_string_equal(g->syms[1], "x_dim1");
    assert_int_equal(value(g, "y")->dims[1].sym, -1); /* of outputs, unknown stays unknown */
    assert_int_equal(value(g, "y")->producer, 1);
    drop(&h);
}

static void odd_names(void **state)
{
    struct yk_buf b = {0};
    struct held h;
    (void)state;
    size_t m = make_model(&b, 17);
    make_value(&b, 11, "größe/名前:0", 1, "N");
    size_t n = pb_begin(&b, 1); /* no node name */
    make_names(&b, 1, "größe/名前:0");
    make_names(&b, 2, "a b\t'\"c");
    pb_put_text(&b, 4, "Relu");
    pb_put_text(&b, 7, "ai.onnx"); /* the same domain as "" */
    pb_end(&b, n);
    make_value(&b, 12, "a b\t'\"c", 1, "N");
    make_end(&b, m);
    struct graph *g = accept(&h, &b);
    assert_string_equal(g->nodes[0].name, "");
    assert_string_equal(g->values[g->outputs[0]].name, "a b\t'\"c");
    drop(&h);
}

static void refused_structure(void **state)
{
    const float w[] = {1};
    (void)state;
#define MODEL(...)                       \
    do {                                 \
        struct yk_buf b = {0};           \
        size_t m = make_model(&b, 17);   \
        make_value(&b, 11, "x", 1, "N"); \
        make_value(&b, 12, "y", 1, "N"); \
        __VA_ARGS__                      \
    } while (0)
#define END(err, text) \
    make_end(&b, m);   \
    refuse(&b, err, text)
    MODEL(make_plain(&b, "Relu", "x", "y"); make_plain(&b, "Relu", "x", "y"); END(YK_FORMAT, "defined twice"););
    MODEL(make_plain(&b, "Relu", "x", "x"); END(YK_FORMAT, "defined twice"););
    MODEL(make_weight_f32(&b, "w", 1, w); make_weight_f32(&b, "w", 1, w); END(YK_FORMAT, "'w' is defined twice"););
    MODEL(make_weight_f32(&b, "", 1, w); make_plain(&b, "Relu", "x", "y"); END(YK_FORMAT, "no name"););
    MODEL(make_plain(&b, "Relu", "z", "y"); make_plain(&b, "Relu", "y", "z"); END(YK_FORMAT, "cycle"););
    MODEL(make_plain(&b, "Relu", "y", "y"); END(YK_FORMAT, "cycle"););
    MODEL(make_plain(&b, "Relu", "nowhere", "y"); END(YK_FORMAT, "'nowhere', which nobody makes"););
    MODEL(make_plain(&b, "Relu", "x", "z"); END(YK_FORMAT, "output 'y' is made by no node"););
    MODEL(make_plain(&b, "Relu", "x", "y"); make_value(&b, 12, "y", 1, "N"); END(YK_FORMAT, "listed twice"););
    MODEL(make_plain(&b, "Relu", "x,x", "y"); END(YK_FORMAT, "2 inputs"););
    MODEL(make_plain(&b, "Relu", "x", "y,z"); END(YK_FORMAT, "2 outputs"););
    MODEL(make_plain(&b, "", "x", "y"); END(YK_FORMAT, "no op"););
    MODEL(make_plain(&b, "Relu", "x", "y"); make_value(&b, 11, "n", 1, "-5"); END(YK_FORMAT, "negative"););
    MODEL(make_plain(&b, "Relu", "x", "y"); make_value(&b, 11, "n", 1, "1,1,1,1,1,1,1,1,1");
          END(YK_LIMIT, "more than 8"););
    MODEL(make_plain(&b, "Relu", "x", "y"); make_value(&b, 11, "n", 0, "1"); END(YK_FORMAT, "no element type"););
    MODEL(size_t n = make_node(&b, "LeakyRelu", "x", "y"); make_attr_f(&b, "alpha", 1); make_attr_f(&b, "alpha", 1);
          pb_end(&b, n); END(YK_FORMAT, "'alpha' twice"););
    MODEL(size_t n = make_node(&b, "LeakyRelu", "x", "y"); make_attr_s(&b, "s", "a\0b", 3); pb_end(&b, n);
          END(YK_FORMAT, "NUL inside"););
    MODEL(size_t n = make_node(&b, "Relu", "x", "y"); pb_put_varint(&b, 1, 5); pb_end(&b, n);
          END(YK_FORMAT, "malformed"););
    MODEL(pb_put_varint(&b, 1, 5); END(YK_FORMAT, "malformed"););
    MODEL(size_t n = make_node(&b, "Relu", "x", "y"); pb_put_bytes(&b, 1, "\xff\xfe", 2); pb_end(&b, n);
          END(YK_FORMAT, "malformed"););

    struct yk_buf b = {0};
    refuse(&b, YK_FORMAT, "no graph");
    pb_put_varint(&b, 1, 8);
    refuse(&b, YK_FORMAT, "no graph");
    yk_buf_add(&b, "not a model at all, just some text", 34);
    refuse(&b, YK_FORMAT, "malformed");
    size_t m = make_model(&b, 17);
    make_end(&b, m);
    refuse(&b, YK_FORMAT, "no outputs");
    m = make_model(&b, 17);
    make_end(&b, m);
    make_opset(&b, "", 13);
    refuse(&b, YK_FORMAT, "imported twice");
}

static void many_named_dimensions(void **state)
{
    struct yk_buf b = {0};
    (void)state;
    size_t m = make_model(&b, 17);
    for (int i = 0; i < 2000; i++) {
        char name[16], dims[16];
        snprintf(name, sizeof name, "x%d", i);
        snprintf(dims, sizeof dims, "d%d", i);
        make_value(&b, 11, name, 1, dims);
    }
    make_plain(&b, "Relu", "x0", "y");
    make_value(&b, 12, "y", 1, "N");
    make_end(&b, m);
    refuse(&b, YK_LIMIT, "named dimensions");
}

static void many_inputs_to_one_node(void **state)
{
    struct yk_buf b = {0};
    (void)state;
    size_t m = make_model(&b, 17);
    make_value(&b, 11, "x", 1, "N");
    make_value(&b, 12, "y", 1, "N");
    size_t n = pb_begin(&b, 1);
    for (int i = 0; i < 100; i++)
        pb_put_text(&b, 1, "x");
    pb_put_text(&b, 2, "y");
    pb_put_text(&b, 4, "Sum");
    pb_end(&b, n);
    make_end(&b, m);
    refuse(&b, YK_LIMIT, "100 inputs");
}

/* Files made to cost the square of their size: each is read in moments or refused. */
static void no_quadratic_work(void **state)
{
    enum { MANY = 20000 };
    struct yk_buf b = {0};
    const float w = 1;
    (void)state;
    size_t m = make_model(&b, 8);
    make_value(&b, 11, "x", 1, "N,1");
    make_weight_f32(&b, "w", 1, &w);
    for (int i = 0; i < MANY; i++) { /* who reads the second output? */
        char out[32], in[32];
        snprintf(in, sizeof in, i ? "v%d,w,w,w,w" : "x,w,w,w,w", i - 1);
        snprintf(out, sizeof out, "v%d,m%d", i, i);
        make_plain(&b, "BatchNormalization", in, out);
    }
    char last[16];
    snprintf(last, sizeof last, "v%d", MANY - 1);
    make_value(&b, 12, last, 1, "N,1");
    make_end(&b, m);
    struct held h;
    assert_int_equal(accept(&h, &b)->n_nodes, MANY);
    drop(&h);
    m = make_model(&b, 11);
    make_value(&b, 11, "x", 1, "-");
    for (int i = 0; i < MANY; i++) { /* a chain whose rank nobody knows */
        char out[16], in[16];
        snprintf(in, sizeof in, i ? "v%d" : "x", i - 1);
        snprintf(out, sizeof out, "v%d", i);
        make_plain(&b, i % 2 ? "Softmax" : "Relu", in, out);
    }
    make_value(&b, 12, last, 1, "-");
    make_end(&b, m);
    accept(&h, &b);
    drop(&h);
    m = make_model(&b, 11);
    make_value(&b, 11, "x", 1, "-");
    make_value(&b, 12, "x", 1, "-");
    for (int i = 0; i < MANY; i++)
        make_plain(&b, "Clip", "x", "_"); /* names of weights made for nodes without an output */
    make_end(&b, m);
    for (int i = 0; i < MANY; i++)
        make_opset(&b, "d", 1);
    refuse(&b, YK_LIMIT, "opsets");
}

/* ---- what is not supported ---- */

static void all_unsupported_listed(void **state)
{
    struct yk_buf b = {0};
    struct held h;
    (void)state;
    pb_put_varint(&b, 1, 8);
    make_opset(&b, "", 15);
    make_opset(&b, "com.example", 3);
    size_t m = pb_begin(&b, 7);
    make_value(&b, 11, "x", 1, "N");
    make_value(&b, 12, "y", 1, "N");
    make_plain(&b, "Frobnicate", "x", "a");
    make_plain(&b, "Relu", "a", "b");
    size_t n = make_node(&b, "Thing", "b", "c");
    pb_put_text(&b, 7, "com.example");
    pb_end(&b, n);
    n = make_node(&b, "Local", "c", "d");
    pb_put_text(&b, 7, "mine");
    pb_end(&b, n);
    make_plain(&b, "StringNormalizer", "d", "y");
    make_end(&b, m);
    size_t f = pb_begin(&b, 25); /* a model function */
    pb_put_text(&b, 1, "Local");
    pb_put_text(&b, 4, "p");
    pb_put_text(&b, 5, "q");
    n = pb_begin(&b, 7);
    pb_put_text(&b, 1, "p");
    pb_put_text(&b, 2, "q");
    pb_put_text(&b, 4, "Inner");
    pb_end(&b, n);
    pb_put_text(&b, 10, "mine");
    pb_end(&b, f);
    assert_int_equal(load(&h, &b), YK_UNSUPPORTED);
    const char *text = (const char *)h.problems.data;
    assert_non_null(strstr(text, "node 0 'a' (Frobnicate): op ai.onnx.Frobnicate, opset 15\n"));
    assert_non_null(strstr(text, "node 2 'c' (Thing): op com.example.Thing, opset 3\n"));
    assert_non_null(strstr(text, "node 3 'd' (Local): node 0 '' (Inner): op ai.onnx.Inner, opset 15\n"));
    assert_non_null(strstr(text, "node 4 'y' (StringNormalizer)"));
    assert_null(strstr(text, "Relu"));
    assert_non_null(strstr(why.text, "4 things"));
    assert_non_null(strstr(why.text, "Frobnicate"));
    assert_non_null(strstr(why.text, "opsets 6 to 17"));
    drop(&h);
}

static void very_many_unsupported(void **state)
{
    struct yk_buf b = {0};
    struct held h;
    (void)state;
    size_t m = make_model(&b, 17);
    make_value(&b, 11, "x", 1, "N");
    for (int i = 0; i < 1000; i++) {
        char name[16];
        snprintf(name, sizeof name, "v%d", i);
        make_plain(&b, "Frobnicate", "x", name);
    }
    make_value(&b, 12, "v0", 1, "N");
    make_end(&b, m);
    assert_int_equal(load(&h, &b), YK_UNSUPPORTED);
    assert_non_null(strstr(why.text, "1000 things"));
    assert_non_null(strstr((const char *)h.problems.data, "... and 800 more"));
    drop(&h);
}

static void opsets(void **state)
{
    static const int versions[] = {1, 3, 5, 6, 7, 11, 13, 15, 17, 18, 21, 1000000};
    (void)state;
    for (size_t i = 0; i < YK_COUNT(versions); i++) {
        struct yk_buf b = {0};
        struct held h;
        char text[64];
        size_t m = make_model(&b, versions[i]);
        make_value(&b, 11, "x", 1, "N");
        make_plain(&b, "Relu", "x", "y");
        make_plain(&b, "Frobnicate", "x", "z");
        make_value(&b, 12, "y", 1, "N");
        make_end(&b, m);
        bool ok = versions[i] >= 6 && versions[i] <= 17;
        assert_int_equal(load(&h, &b), YK_UNSUPPORTED); /* the op is listed whatever the opset */
        assert_non_null(strstr(why.text, "Frobnicate"));
        snprintf(text, sizeof text, "has opset %d; 6 to 17", versions[i]);
        assert_true(!strstr(why.text, text) == ok);
        drop(&h);
    }
    struct yk_buf b = {0};
    struct held h;
    size_t m = make_model(&b, 1); /* a form that has not changed since */
    make_value(&b, 11, "x", 1, "N");
    make_plain(&b, "Softsign", "x", "y");
    make_value(&b, 12, "y", 1, "N");
    make_end(&b, m);
    accept(&h, &b);
    drop(&h);
    b = (struct yk_buf){0};
    m = make_model(&b, 17);
    make_value(&b, 11, "x", 1, "N");
    make_plain(&b, "Relu", "x", "y");
    make_value(&b, 12, "y", 1, "N");
    make_end(&b, m);
    make_opset(&b, "com.unused", 99); /* domains that no node uses do not matter */
    accept(&h, &b);
    drop(&h);
}

static void strings_and_sparse_listed(void **state)
{
    struct yk_buf b = {0};
    const int64_t one = 1;
    (void)state;
    size_t m = make_model(&b, 17);
    make_value(&b, 11, "text", 8, "N");
    size_t t = make_tensor(&b, 5, "words", 8, &one, 1);
    pb_put_text(&b, 6, "word");
    pb_end(&b, t);
    pb_end(&b, pb_begin(&b, 15)); /* sparse_initializer */
    make_plain(&b, "Identity", "text", "y");
    make_value(&b, 12, "y", 8, "N");
    make_end(&b, m);
    struct held h;
    assert_int_equal(load(&h, &b), YK_UNSUPPORTED);
    assert_non_null(strstr((const char *)h.problems.data, "value 'text' has element type 8 (string)"));
    assert_non_null(strstr((const char *)h.problems.data, "weight 'words' has element type 8 (string)"));
    assert_non_null(strstr((const char *)h.problems.data, "sparse weight"));
    drop(&h);
}

/* ---- subgraphs ---- */

/* An If whose branches read values of the graph around, `depth` levels deep. */
static void make_if(struct yk_buf *b, int depth, const char *out)
{
    size_t n = make_node(b, "If", "cond", out);
    for (int k = 0; k < 2; k++) {
        size_t a = pb_begin(b, 5);
        pb_put_text(b, 1, k ? "else_branch" : "then_branch");
        size_t g = pb_begin(b, 6);
        char inner[32];
        snprintf(inner, sizeof inner, "in%d_%d", depth, k);
        if (depth > 1 && k == 0)
            make_if(b, depth - 1, inner);
        else
            make_plain(b, "Relu", "x", inner);
        make_value(b, 12, inner, 1, "N");
        pb_end(b, g);
        pb_put_varint(b, 20, 5);
        pb_end(b, a);
    }
    pb_end(b, n);
}

static void nested_graphs(void **state)
{
    (void)state;
    for (int depth = 1; depth < 200; depth = depth * 3 + 1) {
        struct yk_buf b = {0};
        size_t m = make_model(&b, 13);
        make_value(&b, 11, "cond", 9, "");
        make_value(&b, 11, "x", 1, "N");
        make_if(&b, depth, "y");
        make_value(&b, 12, "y", 1, "N");
        make_end(&b, m);
        struct held h;
        yk_err err = load(&h, &b);
        if (depth > 20) {
            assert_int_equal(err, YK_LIMIT);
            assert_non_null(strstr(why.text, "deeper"));
        } else if (op_find("", "If")) {
            assert_int_equal(err, YK_OK);
            const struct attr *a = node_attr(&h.g->nodes[0], "then_branch");
            assert_int_equal(a->kind, ATTR_GRAPH);
            int32_t captures = 0;
            for (int32_t i = 0; i < a->graph->n_values; i++)
                captures += a->graph->values[i].kind == VALUE_CAPTURE;
            assert_true(captures >= 1);
        } else {
            assert_int_equal(err, YK_UNSUPPORTED);
            assert_non_null(strstr(why.text, "(If)"));
            assert_null(strstr(why.text, "(Relu)"));
        }
        drop(&h);
    }
}

static void bytes_nested_without_end(void **state)
{
    struct yk_buf b = {0};
    size_t begun[5000];
    (void)state;
    size_t m = make_model(&b, 17);
    make_value(&b, 12, "y", 1, "N");
    for (size_t i = 0; i < YK_COUNT(begun); i++) /* node, attribute, graph, node ... */
        begun[i] = pb_begin(&b, i % 3 == 0 ? 1 : i % 3 == 1 ? 5 : 6);
    for (size_t i = YK_COUNT(begun); i-- > 0;)
        pb_end(&b, begun[i]);
    make_end(&b, m);
    struct held h;
    assert_int_not_equal(load(&h, &b), YK_OK);
    drop(&h);
    m = make_model(&b, 17); /* sequence of sequence of ... */
    size_t v = pb_begin(&b, 11);
    pb_put_text(&b, 1, "x");
    begun[0] = pb_begin(&b, 2);
    for (size_t i = 1; i < YK_COUNT(begun); i++)
        begun[i] = pb_begin(&b, i % 2 ? 4 : 1);
    for (size_t i = YK_COUNT(begun); i-- > 0;)
        pb_end(&b, begun[i]);
    pb_end(&b, v);
    make_value(&b, 12, "x", 1, "N");
    make_end(&b, m);
    refuse(&b, YK_LIMIT, "nests too deep");
}

/* Every model of ONNX's own test data: read, or listed as not supported; nothing of it is malformed. */
static int sweep(const char *path, int *supported)
{
    struct graph *g;
    yk_err err = onnx_import(path, &g, NULL, &why);
    if (err != YK_OK && err != YK_UNSUPPORTED)
        fail_msg("%s: %s", yk_err_name(err), why.text);
    if (!err) {
        graph_close(g);
        ++*supported;
    }
    return 1;
}

static void onnx_test_data(void **state)
{
    int n = 0, supported = 0;
    char path[4096];
    (void)state;
    FILE *list = popen("find /usr/share/libonnx-testdata/data -name '*.onnx' 2>/dev/null", "r");
    assert_non_null(list);
    while (fgets(path, sizeof path, list)) {
        path[strcspn(path, "\n")] = '\0';
        n += sweep(path, &supported);
    }
    pclose(list);
    if (n == 0)
        skip();
    print_message("%d of %d models of libonnx-testdata import\n", supported, n);
    assert_true(supported >= 600);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(real_model),
        cmocka_unit_test(truncated_everywhere),
        cmocka_unit_test(flipped_bytes),
        cmocka_unit_test(small_model),
        cmocka_unit_test(odd_names),
        cmocka_unit_test(refused_structure),
        cmocka_unit_test(many_named_dimensions),
        cmocka_unit_test(many_inputs_to_one_node),
        cmocka_unit_test(no_quadratic_work),
        cmocka_unit_test(all_unsupported_listed),
        cmocka_unit_test(very_many_unsupported),
        cmocka_unit_test(opsets),
        cmocka_unit_test(strings_and_sparse_listed),
        cmocka_unit_test(nested_graphs),
        cmocka_unit_test(bytes_nested_without_end),
        cmocka_unit_test(onnx_test_data),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
