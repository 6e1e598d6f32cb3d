/* What a training graph is: its order, what a node belongs to, what frozen parameters cost, how gradients of several
 * uses add up, what is computed again; what is refused and how it is said. */
#include "common/memplan.h"
#include "common/onnx.h"
#include "kernels/fold.h"
#include "tests/unit/grad_run.h"

#define GOLDEN YOKE_SOURCE_DIR "/tests/golden/grad/"

static struct graph *open_net(const char *name)
{
    char path[256];
    struct graph *g;
    struct yk_diag why = {""};
    snprintf(path, sizeof path, GOLDEN "%s.onnx", name);
    if (onnx_import(path, &g, NULL, &why) || passes_train(g, fold_eval, NULL, &why))
        fail_msg("%s: %s", name, why.text);
    return g;
}

static struct graph *build(const struct graph *g, const struct grad_options *o, struct grad_info *info)
{
    struct grad_options usual;
    struct graph *train;
    struct yk_diag why = {""};
    grad_options_init(&usual);
    if (grad_build(g, o ? o : &usual, &train, info, &why))
        fail_msg("%s", why.text);
    return train;
}

static yk_err refused(const struct graph *g, const struct grad_options *o, struct yk_diag *why)
{
    struct graph *train = NULL;
    struct grad_info info;
    yk_err err = grad_build(g, o, &train, &info, why);
    if (!err)
        graph_close(train);
    return err;
}

/* Forward nodes in their order, what belongs to them behind, backward nodes of later ones first; ids and names kept. */
static void test_order(void **state)
{
    static const char *const nets[] = {"cnn", "residual", "vit", "language", "unet", "recycled"};
    (void)state;
    for (size_t k = 0; k < YK_COUNT(nets); k++) {
        struct grad_info info;
        struct graph *g = open_net(nets[k]), *train = build(g, NULL, &info);
        int32_t forward = 0;
        for (int32_t v = 0; v < g->n_values; v++)
            assert_string_equal(g->values[v].name, train->values[v].name);
        for (int32_t i = 0; i < info.first_loss; i++) {
            bool is_next = forward < g->n_nodes && train->nodes[i].out[0] == g->nodes[forward].out[0];
            if (!is_next)
                assert_string_equal(train->nodes[i].op->name, "Shape");
            forward += is_next;
            assert_int_equal(info.of[i], forward - 1);
        }
        assert_int_equal(forward, g->n_nodes);
        for (int32_t i = info.first_loss; i < info.first_backward; i++)
            assert_int_equal(info.of[i], g->values[g->outputs[0]].producer);
        for (int32_t i = info.first_backward + 1; i < train->n_nodes; i++)
            if (strcmp(train->nodes[i].op->name, "Identity") != 0)
                assert_true(info.of[i] <= info.of[i - 1]);
        assert_int_equal(train->n_inputs, g->n_inputs + 2);
        assert_int_equal(info.loss_output, 0);
        assert_int_equal(train->outputs[info.logits_output], g->outputs[0]);

        /* The order is canonical: sorting changes nothing. */
        struct node *before = yk_xalloc((size_t)train->n_nodes * sizeof *before);
        memcpy(before, train->nodes, (size_t)train->n_nodes * sizeof *before);
        assert_int_equal(graph_sort(train, NULL), YK_OK);
        for (int32_t i = 0; i < train->n_nodes; i++)
            assert_ptr_equal(before[i].in, train->nodes[i].in);
        free(before);

        /* And it travels: a skeleton comes back with the same nodes and values. */
        struct yk_buf bytes = {0};
        struct graph *again;
        struct yk_diag why = {""};
        assert_int_equal(onnx_export_skeleton(train, &bytes, &why), YK_OK);
        if (onnx_import_memory(bytes.data, bytes.len, &again, NULL, &why))
            fail_msg("%s: %s", nets[k], why.text);
        assert_int_equal(again->n_nodes, train->n_nodes);
        assert_int_equal(again->n_values, train->n_values);
        for (int32_t i = 0; i < train->n_nodes; i++) {
            assert_ptr_equal(again->nodes[i].op, train->nodes[i].op);
            for (int32_t j = 0; j < train->nodes[i].n_in; j++)
                assert_true(train->nodes[i].in[j] == YK_ABSENT || !strcmp(again->values[again->nodes[i].in[j]].name,
                                                                      train->values[train->nodes[i].in[j]].name));
        }
        graph_close(again);
        yk_buf_free(&bytes);
        graph_close(train);
        graph_close(g);
    }
}

/* Cut anywhere: nothing in front of the cut waits for what is behind it, forward or backward. */
static void test_stages(void **state)
{
    static const char *const nets[] = {"cnn", "residual", "vit", "language", "sequence", "recycled"};
    (void)state;
    for (size_t k = 0; k < YK_COUNT(nets); k++)
        for (int again = 0; again < 2; again++) {
            struct grad_options o;
            struct grad_info info;
            grad_options_init(&o);
            o.recompute = again;
            struct graph *g = open_net(nets[k]), *train = build(g, &o, &info);
            int32_t *stage = yk_xalloc((size_t)train->n_nodes * sizeof *stage);
            for (int32_t cut = 0; cut < g->n_nodes; cut++) {
                for (int32_t i = 0; i < train->n_nodes; i++)
                    stage[i] = info.of[i] > cut ? 1 : i < info.first_loss ? 0 : 2;
                for (int32_t i = 0; i < train->n_nodes; i++)
                    for (int32_t j = 0; j < train->nodes[i].n_in; j++) {
                        int32_t v = train->nodes[i].in[j], made = v < 0 ? -1 : train->values[v].producer;
                        if (made >= 0 && stage[made] > stage[i])
                            fail_msg("%s cut after %d: node %d '%s' waits for node %d '%s'", nets[k], cut, i,
                                train->nodes[i].name, made, train->nodes[made].name);
                    }
            }
            free(stage);
            graph_close(train);
            graph_close(g);
        }
}

static const struct grad_param *param_of(const struct grad_info *info, const char *name)
{
    for (int32_t i = 0; i < info->n_params; i++)
        if (!strcmp(info->params[i].name, name))
            return &info->params[i];
    fail_msg("no parameter %s", name);
    return NULL;
}

static void test_frozen(void **state)
{
    const char *first[] = {"c1.*", "b1.?ias", "b1.weight"}, *all[] = {"*"};
    struct grad_options o;
    struct grad_info info;
    struct yk_diag why;
    (void)state;
    struct graph *g = open_net("cnn"), *train = build(g, NULL, &info);
    assert_int_equal(info.n_params, 9); /* c1 has no bias */
    assert_int_equal(info.n_states, 4);
    assert_int_equal(fx_count(train, "ConvGradInput"), 1); /* not of the image */
    assert_int_equal(fx_count(train, "ConvGradWeight"), 2);
    assert_int_equal(fx_count(train, "BatchNormGrad"), 2);
    assert_int_equal(train->n_staying, 9 + 4);
    assert_int_equal(train->n_outputs, 2 + 9 + 4);
    graph_close(train);

    grad_options_init(&o);
    o.freeze = first;
    o.n_freeze = 3;
    train = build(g, &o, &info);
    assert_int_equal(fx_count(train, "ConvGradInput"), 0);
    assert_int_equal(fx_count(train, "ConvGradWeight"), 1);
    assert_int_equal(fx_count(train, "BatchNormGrad"), 1);
    assert_int_equal(fx_count(train, "MaxPoolGrad"), 0);
    assert_int_equal(fx_count(train, "BatchNormTrain"), 2); /* statistics move all the same */
    assert_int_equal(info.n_params, 9);
    assert_false(param_of(&info, "c1.weight")->trainable);
    assert_int_equal(param_of(&info, "b1.bias")->n_uses, 0);
    assert_true(param_of(&info, "c2.weight")->trainable);
    graph_close(train);

    o.freeze = all;
    o.n_freeze = 1;
    assert_int_equal(refused(g, &o, &why), YK_INVAL);
    assert_non_null(strstr(why.text, "every parameter is frozen"));

    all[0] = "c9.*";
    assert_int_equal(refused(g, &o, &why), YK_INVAL);
    assert_non_null(strstr(why.text, "no parameter is called 'c9.*'"));
    all[0] = "b1.running_mean"; /* no parameter, but a weight that stays anyway */
    graph_close(build(g, &o, &info));

    o.n_freeze = 0;
    o.bn_frozen = true;
    train = build(g, &o, &info);
    assert_int_equal(info.n_states, 0);
    assert_int_equal(fx_count(train, "BatchNormTrain"), 0);
    assert_int_equal(fx_count(train, "BatchNormGrad"), 0);
    graph_close(train);
    graph_close(g);
}

/* One gradient for each use, of the last use first. */
static void test_shared(void **state)
{
    struct grad_info info;
    (void)state;
    struct graph *g = open_net("recycled"), *train = build(g, NULL, &info);
    const struct grad_param *p = param_of(&info, "a.weight");
    assert_int_equal(p->n_uses, 2);
    int32_t made[2];
    for (int u = 0; u < 2; u++)
        made[u] = train->values[train->outputs[p->uses[u]]].producer;
    assert_true(made[0] < made[1] && info.of[made[0]] > info.of[made[1]]);
    assert_int_equal(info.n_states, 2); /* each moved twice, from where the first use left it */
    graph_close(train);
    graph_close(g);
    g = open_net("language");
    train = build(g, NULL, &info);
    assert_int_equal(param_of(&info, "tok.weight")->n_uses, 2);
    assert_int_equal(fx_count(train, "GatherGrad"), 1);
    graph_close(train);
    graph_close(g);
}

/* What exporters write out is one node; what is written for inference has no training mode. */
static void test_passes(void **state)
{
    struct yk_diag why = {""};
    struct grad_info info;
    (void)state;
    struct graph *g = open_net("vit");
    assert_int_equal(fx_count(g, "Gelu"), 1);
    assert_int_equal(fx_count(g, "Erf"), 0);
    graph_close(g);
    g = open_net("residual");
    assert_int_equal(fx_count(g, "Silu"), 1);
    assert_int_equal(fx_count(g, "BatchNormalization"), 4);
    struct graph *train = build(g, NULL, &info);
    graph_close(train);
    assert_int_equal(passes_eval_mode(g, &why), YK_OK);
    for (int32_t i = 0; i < g->n_nodes; i++)
        assert_int_equal(node_attr_i(&g->nodes[i], "training_mode", 0), 0);
    assert_int_equal(fx_count(g, "BatchNormalization"), 4);
    train = build(g, NULL, &info); /* and trains again */
    assert_int_equal(info.n_states, 8);
    graph_close(train);
    graph_close(g);
}

/* With one divisor, microbatches add up to the batch. */
static void test_microbatches(void **state)
{
    struct grad_info info;
    (void)state;
    struct graph *g = open_net("vit"), *train = build(g, NULL, &info);
    double loss[3], gradient[3], divisor = 5;
    int64_t sizes[3] = {5, 2, 3}, first[3] = {0, 0, 2}, per = 3 * 8 * 8;
    int32_t out = train->outputs[param_of(&info, "cls")->uses[0]];
    for (int k = 0; k < 3; k++) {
        struct grad_run r;
        assert_int_equal(grad_run_open(&r, train, &sizes[k]), YK_OK);
        double *x = yk_xalloc((size_t)(sizes[k] * per) * sizeof *x);
        int64_t *ids = yk_xalloc((size_t)sizes[k] * sizeof *ids);
        for (int64_t i = 0; i < sizes[k] * per; i++)
            x[i] = sin((double)(first[k] * per + i));
        for (int64_t i = 0; i < sizes[k]; i++)
            ids[i] = (first[k] + i) % 4;
        r.data[train->inputs[0]] = x;
        r.data[train->inputs[info.target_input]] = ids;
        r.data[train->inputs[info.divisor_input]] = &divisor;
        assert_int_equal(grad_run_nodes(&r, train->n_nodes, 1), YK_OK);
        loss[k] = grad_run_number(&r, train->outputs[info.loss_output], 0);
        gradient[k] = grad_run_number(&r, out, 3);
        if (k == 0) { /* and a class that is none is named */
            ids[1] = 4;
            assert_int_equal(grad_run_nodes(&r, train->n_nodes, 1), YK_INVAL);
            assert_non_null(strstr(r.why.text, "class id 4 (element 1 of the target) is outside 4 classes"));
        }
        free(x);
        free(ids);
        grad_run_close(&r);
    }
    assert_true(fabs(loss[0] - loss[1] - loss[2]) <= 1e-14 * fabs(loss[0]));
    assert_true(fabs(gradient[0] - gradient[1] - gradient[2]) <= 1e-13 * fabs(gradient[0]) + 1e-16);
    graph_close(train);
    graph_close(g);
}

/* ---- Dropout ---- */

static struct graph *dropout_net(int training)
{
    struct graph *g = fx_open();
    graph_sym(g, "N");
    int32_t x = fx_input(g, "x", DT_F32, INTS(-1, 8)), w = fx_weight(g, "w", INTS(8, 64));
    int32_t y = fx_node(g, "MatMul", "h", IDS(x, w));
    float half = 0.5f;
    int32_t ratio = fx_floats(g, "ratio", &half, 1), mode = YK_ABSENT;
    g->values[ratio].shape.rank = 0;
    g->values[ratio].constant = true;
    if (training >= 0) {
        struct shape s = {.dtype = DT_BOOL};
        uint8_t *data = graph_alloc_data(g, 1);
        *data = (uint8_t)training;
        mode = graph_add_weight(g, "mode", &s, data);
        g->values[mode].constant = true;
    }
    fx_output(g, fx_node(g, "Dropout", "y", (const int32_t[]){y, ratio, mode}, training >= 0 ? 3 : 2));
    return g;
}

static void test_dropout(void **state)
{
    struct grad_info info;
    struct yk_diag why = {""};
    (void)state;
    for (int training = -1; training <= 1; training++) {
        struct graph *g = dropout_net(training);
        assert_int_equal(passes_train(g, fold_eval, NULL, &why), YK_OK);
        assert_int_equal(fx_count(g, "Dropout"), training != 0);
        struct grad_options o;
        grad_options_init(&o);
        o.loss = GRAD_MSE;
        struct graph *train = build(g, &o, &info);
        assert_int_equal(fx_count(train, "DropoutGrad"), training != 0);
        graph_close(train);
        assert_int_equal(passes_eval_mode(g, &why), YK_OK);
        assert_int_equal(passes_infer(g, fold_eval, NULL, &why), YK_OK);
        assert_int_equal(fx_count(g, "Dropout"), 0);
        graph_close(g);
    }
}

/* ---- what is computed again ---- */

static int64_t arena_bytes(const struct graph *train, int64_t n)
{
    int64_t sizes[2] = {n, n}, bytes;
    struct yk_diag why = {""};
    struct shapes s;
    struct memplan m;
    uint8_t *all = yk_xalloc((size_t)train->n_nodes);
    memset(all, 1, (size_t)train->n_nodes);
    if (shapes_infer(train, sizes, NULL, &s, &why) || memplan_make(train, &s, all, NULL, 1, &m, &why))
        fail_msg("%s", why.text);
    bytes = m.arena_bytes;
    memplan_fini(&m);
    shapes_fini(&s);
    free(all);
    return bytes;
}

static void test_recompute(void **state)
{
    static const char *const nets[] = {"residual", "mobile", "vit", "unet"};
    static const char *const once[] = {"Conv", "MatMul", "Gemm", "BatchNormTrain", "ConvGradWeight"};
    struct grad_options o;
    struct grad_info info;
    (void)state;
    grad_options_init(&o);
    for (size_t k = 0; k < YK_COUNT(nets); k++) {
        struct graph *g = open_net(nets[k]), *plain = build(g, &o, &info);
        o.recompute = true;
        struct graph *lean = build(g, &o, &info);
        o.recompute = false;
        int64_t n = strcmp(nets[k], "unet") ? 64 : 2; /* one was exported with a fixed size inside */
        assert_true(arena_bytes(lean, n) < 0.9 * (double)arena_bytes(plain, n));
        for (size_t i = 0; i < YK_COUNT(once); i++)
            assert_int_equal(fx_count(lean, once[i]), fx_count(plain, once[i]));
        assert_true(lean->n_nodes > plain->n_nodes);
        graph_close(lean);
        graph_close(plain);
        graph_close(g);
    }
}

/* Dropout is run again with the mask of the forward part. */
static void test_recompute_dropout(void **state)
{
    struct grad_options o;
    struct grad_info info;
    double first[64];
    (void)state;
    struct graph *g = dropout_net(1);
    g->outputs[0] =
        fx_node(g, "MatMul", "z", IDS(fx_node(g, "Relu", "relu", IDS(g->outputs[0])), fx_weight(g, "w2", INTS(64, 4))));
    grad_options_init(&o);
    o.loss = GRAD_MSE;
    for (int again = 0; again < 2; again++) {
        o.recompute = again;
        struct graph *train = build(g, &o, &info);
        assert_int_equal(fx_count(train, "Dropout"), 1);
        struct grad_run r;
        int64_t n = 2;
        float x[16], target[8] = {1, 2, 3, 4, 5, 6, 7, 8}, divisor = 2;
        for (int i = 0; i < 16; i++)
            x[i] = (float)i * 0.1f;
        assert_int_equal(grad_run_open(&r, train, &n), YK_OK);
        r.data[train->inputs[0]] = x;
        r.data[train->inputs[info.target_input]] = target;
        r.data[train->inputs[info.divisor_input]] = &divisor;
        assert_int_equal(grad_run_nodes(&r, train->n_nodes, 9), YK_OK);
        const struct grad_param *w = param_of(&info, "w2");
        int zeros = 0;
        for (int i = 0; i < 64; i++) {
            double v = grad_run_number(&r, train->outputs[w->uses[0]], 4 * i);
            zeros += v == 0;
            if (again)
                assert_true(v == first[i]);
            first[i] = v;
        }
        assert_true(zeros > 4 && zeros < 60); /* hidden units that both samples dropped */
        grad_run_close(&r);
        graph_close(train);
    }
    graph_close(g);
}

/* ---- what is refused ---- */

static struct graph *path_net(const char *const *ops, int n)
{
    struct graph *g = fx_open();
    char name[16];
    graph_sym(g, "N");
    int32_t x = fx_input(g, "x", DT_F32, INTS(-1, 4, 4)), w = fx_weight(g, "w", INTS(4, 4));
    int32_t y = fx_node(g, "MatMul", "h", IDS(x, w));
    for (int i = 0; i < n; i++) {
        snprintf(name, sizeof name, "v%d", i);
        y = fx_node(g, ops[i], name, IDS(y));
        if (!strcmp(ops[i], "Cast"))
            graph_set_attr_i(g, fx_last(g), "to", 1);
    }
    fx_output(g, y);
    return g;
}

static void test_refused(void **state)
{
    static const char *const cut[] = {"Relu", "Floor", "ArgMax", "Cast", "Neg"}, *const det[] = {"Det"};
    static const char *const mvn[] = {"Hardmax", "Relu"};
    struct grad_options o;
    struct yk_diag why;
    (void)state;
    grad_options_init(&o);
    struct graph *g = path_net(cut, 5);
    assert_int_equal(refused(g, &o, &why), YK_INVAL);
    assert_non_null(strstr(why.text, "node 3 'v2' (ArgMax) cuts it"));
    graph_close(g);
    g = path_net(mvn, 2);
    assert_int_equal(refused(g, &o, &why), YK_INVAL);
    assert_non_null(strstr(why.text, "(Hardmax) cuts it"));
    graph_close(g);

    g = path_net(det, 1);
    o.loss = GRAD_MSE;
    fx_node(g, "Unsqueeze", "u", IDS(g->outputs[0], fx_ints(g, "one", INTS(1))));
    fx_node(g, "Expand", "e", IDS(graph_find_value(g, "u"), fx_ints(g, "s", INTS(1, 1))));
    fx_node(g, "Unsqueeze", "u2", IDS(graph_find_value(g, "e"), fx_ints(g, "two", INTS(2))));
    g->outputs[0] = fx_node(g, "Det", "d2", IDS(graph_find_value(g, "u2")));
    assert_int_equal(refused(g, &o, &why), YK_UNSUPPORTED);
    assert_non_null(strstr(why.text, "node 1 'v0' (Det), node 5 'd2' (Det)"));
    graph_close(g);

    g = path_net(cut, 1);
    o.label_smoothing = 0.1f;
    assert_int_equal(refused(g, &o, &why), YK_INVAL);
    assert_non_null(strstr(why.text, "label smoothing goes with cross-entropy"));
    o.loss = GRAD_CROSS_ENTROPY;
    o.label_smoothing = 1;
    assert_int_equal(refused(g, &o, &why), YK_INVAL);
    o.label_smoothing = NAN;
    assert_int_equal(refused(g, &o, &why), YK_INVAL);
    o.label_smoothing = 0;
    o.loss = (enum grad_loss)17;
    assert_int_equal(refused(g, &o, &why), YK_INVAL);
    o.loss = GRAD_CROSS_ENTROPY;
    o.output = "nobody";
    assert_int_equal(refused(g, &o, &why), YK_INVAL);
    assert_non_null(strstr(why.text, "no output 'nobody'; its first one is 'v0'"));
    o.output = "v0";
    assert_int_equal(refused(g, &o, &why), YK_OK);
    g->n_outputs = 0;
    assert_int_equal(refused(g, &o, &why), YK_INVAL);
    graph_close(g);

    static const char *const ids[] = {"ArgMax"};
    g = path_net(ids, 1);
    o.output = NULL;
    assert_int_equal(refused(g, &o, &why), YK_INVAL);
    assert_non_null(strstr(why.text, "a loss reads float32 or float64"));
    graph_close(g);

    g = fx_open(); /* nothing to train, and a name that the training graph wants too */
    graph_sym(g, "N");
    int32_t x = fx_input(g, "target", DT_F32, INTS(-1, 4));
    fx_output(g, fx_node(g, "Relu", "loss", IDS(x)));
    assert_int_equal(refused(g, &o, &why), YK_INVAL);
    assert_non_null(strstr(why.text, "no parameters"));
    g->outputs[0] = fx_node(g, "Mul", "divisor", IDS(graph_find_value(g, "loss"), fx_weight(g, "w", INTS(4))));
    assert_int_equal(refused(g, &o, &why), YK_OK);
    graph_close(g);
}

/* A loss that does not fit the output still trains, but says so. */
/* A parameter whose way to the loss is cut beside others that learn is named, with the node. */
static void test_warns_of_the_cut(void **state)
{
    struct grad_info info;
    struct grad_options o;
    (void)state;
    for (int side = 0; side < 2; side++) {
        struct graph *g = fx_open();
        graph_sym(g, "N");
        int32_t x = fx_input(g, "x", DT_F32, INTS(-1, 4)), w = fx_weight(g, "w", INTS(4, 4));
        int32_t c = fx_weight(g, "c", INTS(4, 4)), h = fx_node(g, "MatMul", "h", IDS(x, w));
        int32_t z = fx_node(g, "MatMul", "z", IDS(x, c)), sign = fx_node(g, side ? "Tanh" : "Sign", "s", IDS(z));
        fx_output(g, fx_node(g, "Add", "y", IDS(h, sign)));
        grad_options_init(&o);
        o.loss = GRAD_MSE;
        struct graph *train = build(g, &o, &info);
        assert_int_equal(info.warning == NULL, side);
        assert_true(side || (strstr(info.warning, "parameter 'c'") && strstr(info.warning, "'s' (Sign) cuts it")));
        graph_close(train);
        graph_close(g);
    }
}

static void test_warnings(void **state)
{
    static const struct {
        enum grad_loss loss;
        const char *op, *say;
    } cases[] = {{GRAD_CROSS_ENTROPY, "Softmax", "softmax once more"}, {GRAD_CROSS_ENTROPY, "Relu", NULL},
        {GRAD_BCE, "Sigmoid", "sigmoid once more"}, {GRAD_MSE, "Sigmoid", NULL}, {GRAD_NLL, "LogSoftmax", NULL},
        {GRAD_NLL, "Relu", "nll wants logarithms"}};
    (void)state;
    for (size_t i = 0; i < YK_COUNT(cases); i++) {
        struct grad_options o;
        struct grad_info info;
        struct graph *g = path_net(&cases[i].op, 1);
        grad_options_init(&o);
        o.loss = cases[i].loss;
        struct graph *train = build(g, &o, &info);
        assert_int_equal(info.warning != NULL, cases[i].say != NULL);
        assert_true(!cases[i].say || strstr(info.warning, cases[i].say));
        graph_close(train);
        graph_close(g);
    }
}

static void test_losses(void **state)
{
    enum grad_loss l;
    (void)state;
    assert_true(grad_loss_find("bce", &l) && l == GRAD_BCE && !grad_loss_has_ids(l));
    assert_true(grad_loss_find("cross-entropy", &l) && l == GRAD_CROSS_ENTROPY && grad_loss_has_ids(l));
    assert_false(grad_loss_find("huber", &l));
    assert_string_equal(grad_loss_name(GRAD_L1), "l1");
    assert_true(grad_has_rule("", "Conv") && !grad_has_rule("", "ArgMax") && !grad_has_rule("", "Det"));
    assert_false(grad_has_rule("", "no such op"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_order),
        cmocka_unit_test(test_stages),
        cmocka_unit_test(test_frozen),
        cmocka_unit_test(test_shared),
        cmocka_unit_test(test_passes),
        cmocka_unit_test(test_microbatches),
        cmocka_unit_test(test_dropout),
        cmocka_unit_test(test_recompute),
        cmocka_unit_test(test_recompute_dropout),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_warnings),
        cmocka_unit_test(test_warns_of_the_cut),
        cmocka_unit_test(test_losses),
    };
    return cmocka_run_group_tests(tests, grad_setup, grad_teardown);
}
