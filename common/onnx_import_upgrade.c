/* Upgrades of nodes from opsets 6 to 16 to the form of opset 17.
 *
 * One row per op whose form changed: a function that is called for models older than `before` and rewrites the node in
 * place, or emits other nodes in its stead. Most changes are an attribute that became an input. Where a form needs the
 * rank of a value, it is found along the producers; where it cannot be found, the node is listed as a problem. */
#include "common/onnx_import.h"

#include <math.h>
#include <string.h>

enum { MAX_STEPS = 1000 }; /* along a chain of producers, so that long chains do not cost their square */

struct upgrade {
    struct onnx_import *im;
    struct onnx_scope *scope;
    struct onnx_node *n;
    bool done; /* the function emitted what the node became */
};

/* ---- attributes and inputs ---- */

static struct attr *find_attr(const struct onnx_node *n, const char *name)
{
    for (int32_t i = 0; i < n->n_attr; i++)
        if (strcmp(n->attr[i].name, name) == 0)
            return &n->attr[i];
    return NULL;
}

static void drop_attr(struct onnx_node *n, const char *name)
{
    struct attr *a = find_attr(n, name);
    if (a) {
        memmove(a, a + 1, (size_t)(n->attr + n->n_attr - (a + 1)) * sizeof *a);
        n->n_attr--;
    }
}

static int64_t attr_int(const struct onnx_node *n, const char *name, int64_t otherwise)
{
    const struct attr *a = find_attr(n, name);
    return a && a->kind == ATTR_INT ? a->i : otherwise;
}

static float attr_float(const struct onnx_node *n, const char *name, float otherwise)
{
    const struct attr *a = find_attr(n, name);
    return a && a->kind == ATTR_FLOAT ? a->f : otherwise;
}

/* Replaces the whole list of attributes by none or one. */
static yk_err only_attr(struct upgrade *u, struct onnx_node *n, const struct attr *a)
{
    n->attr = yk_arena_alloc(u->im->root->arena, 4, sizeof *n->attr);
    if (!n->attr)
        return onnx_import_nomem(u->im);
    n->n_attr = a ? 1 : 0;
    if (a)
        n->attr[0] = *a;
    return YK_OK;
}

static yk_err add_attr(struct upgrade *u, struct attr a)
{
    struct onnx_node *n = u->n;
    if (find_attr(n, a.name))
        return YK_OK;
    struct attr *list = yk_arena_alloc(u->im->root->arena, (size_t)n->n_attr + 1, sizeof *list);
    if (!list)
        return onnx_import_nomem(u->im);
    if (n->n_attr)
        memcpy(list, n->attr, (size_t)n->n_attr * sizeof *list);
    list[n->n_attr++] = a;
    n->attr = list;
    return YK_OK;
}

static yk_err node_error(struct upgrade *u, const char *text)
{
    char what[400];
    onnx_import_node_text(u->scope, u->n, what, sizeof what);
    return yk_fail(u->im->why, YK_FORMAT, "%s: %s", what, text);
}

static yk_err node_problem(struct upgrade *u, const char *text)
{
    char what[400];
    onnx_import_node_text(u->scope, u->n, what, sizeof what);
    onnx_import_problem(u->im, "%s: %s", what, text);
    u->done = true;
    return YK_OK;
}

/* Makes room for input k (there are 8 more than the file had). */
static void set_input(struct onnx_node *n, int32_t k, int32_t id)
{
    while (n->n_in <= k)
        n->in[n->n_in++] = YK_ABSENT;
    n->in[k] = id;
}

static yk_err ints_const(struct upgrade *u, const char *role, const int64_t *v, size_t count, int32_t *id)
{
    struct shape shape = {.dtype = DT_I64, .rank = 1, .dims = {(int64_t)count}};
    return onnx_import_const(u->im, u->scope, u->n, role, &shape, v, id);
}

/* The attribute, a list of integers, becomes input k. Absent stays absent. */
static yk_err ints_to_input(struct upgrade *u, const char *name, int32_t k)
{
    const struct attr *a = find_attr(u->n, name);
    int32_t id;
    if (!a)
        return YK_OK;
    if (a->kind != ATTR_INTS && a->kind != ATTR_INT)
        return node_error(u, "an attribute has the wrong type");
    yk_err err = a->kind == ATTR_INT ? ints_const(u, name, &a->i, 1, &id) : ints_const(u, name, a->ints, a->n, &id);
    if (err)
        return err;
    set_input(u->n, k, id);
    drop_attr(u->n, name);
    return YK_OK;
}

/* The dtype that a value is made of, followed back to where one is declared; f32 where nothing tells. */
static enum dtype float_dtype(const struct upgrade *u, int32_t id)
{
    const struct graph *g = u->scope->g;
    for (int step = 0; step < MAX_STEPS && id != YK_ABSENT; step++) {
        const struct value *v = &g->values[id];
        if (dtype_is_float(v->dtype))
            return v->dtype;
        if (v->kind != VALUE_NODE || v->producer < 0 || g->nodes[v->producer].n_in == 0 ||
            strcmp(g->nodes[v->producer].op->name, "Cast") == 0)
            break;
        id = g->nodes[v->producer].in[0];
    }
    return DT_F32;
}

/* Both round to nearest even. */
static uint16_t f32_to_bf16(float v)
{
    uint32_t x;
    memcpy(&x, &v, sizeof x);
    return (uint16_t)((x & 0x7fffffffu) > 0x7f800000u ? x >> 16 | 0x40 : (x + 0x7fff + (x >> 16 & 1)) >> 16);
}

static uint16_t f32_to_f16(float v)
{
    uint32_t x, sign;
    memcpy(&x, &v, sizeof x);
    sign = x >> 16 & 0x8000;
    x &= 0x7fffffff;
    if (x > 0x7f800000) /* NaN */
        x = 0x7e00;
    else if (x >= 0x477ff000) /* rounds to 65536 or more */
        x = 0x7c00;
    else if (x < 0x38800000) /* a subnormal half is a multiple of 2^-24 */
        x = (uint32_t)lrintf(fabsf(v) * 16777216.0f);
    else
        x = (x - 0x38000000 + 0xfff + (x >> 13 & 1)) >> 13;
    return (uint16_t)(sign | x);
}

/* A number in the dtype of value `like`, as input k. rank 0 or 1 (of one element, or `count` equal ones). */
static yk_err float_input(struct upgrade *u, const char *role, float v, int32_t like, int32_t k)
{
    struct shape shape = {.dtype = float_dtype(u, like), .rank = 0};
    double d = (double)v;
    uint16_t h = shape.dtype == DT_BF16 ? f32_to_bf16(v) : f32_to_f16(v);
    const void *data = shape.dtype == DT_F64   ? (const void *)&d
                       : shape.dtype == DT_F32 ? (const void *)&v
                                               : (const void *)&h;
    int32_t id;
    yk_err err = onnx_import_const(u->im, u->scope, u->n, role, &shape, data, &id);
    if (!err)
        set_input(u->n, k, id);
    return err;
}

/* The rank of a value, or -1. Follows producers that keep or set it. */
static int rank_of(const struct upgrade *u, int32_t id)
{
    static const char *const keep[] = {"Relu", "LeakyRelu", "Sigmoid", "Tanh", "Clip", "BatchNormalization", "MaxPool",
        "AveragePool", "GlobalAveragePool", "GlobalMaxPool", "LRN", "Dropout", "Identity", "Concat", "Softmax",
        "LogSoftmax", "Elu", "Selu", "Cast", "InstanceNormalization", "Transpose", "Pad", "Slice", "Split", "Exp",
        "Log", "Sqrt", "Neg", "Abs", "PRelu", "Resize", "HardSigmoid", "HardSwish", "Softplus", "Erf", "LpPool",
        "GlobalLpPool", "MaxUnpool", "GridSample", "RoiAlign", "ReverseSequence"};
    const struct graph *g = u->scope->g;
    for (int step = 0; step < MAX_STEPS && id != YK_ABSENT; step++) {
        const struct value *v = &g->values[id];
        if (v->kind == VALUE_WEIGHT)
            return v->shape.rank;
        if (v->kind != VALUE_NODE)
            return v->rank;
        if (v->producer < 0)
            return -1;
        const struct node *n = &g->nodes[v->producer];
        const char *op = n->op->name;
        if (strcmp(op, "Gemm") == 0 || strcmp(op, "Flatten") == 0)
            return 2;
        if ((strcmp(op, "Conv") == 0 || strcmp(op, "ConvTranspose") == 0) && n->n_in > 1) {
            id = n->in[1];
            continue;
        }
        if (strcmp(op, "Reshape") == 0 && n->n_in > 1 && n->in[1] != YK_ABSENT &&
            g->values[n->in[1]].kind == VALUE_WEIGHT && g->values[n->in[1]].shape.rank == 1)
            return g->values[n->in[1]].shape.dims[0] <= YK_MAX_RANK ? (int)g->values[n->in[1]].shape.dims[0] : -1;
        bool keeps = false;
        for (size_t i = 0; i < YK_COUNT(keep) && !keeps; i++)
            keeps = strcmp(op, keep[i]) == 0;
        /* Broadcasting with a weight of no higher rank keeps the rank of the other side. */
        if (!keeps && (n->op->flags & OP_ELEMENTWISE) && n->n_in == 2 && n->in[0] != YK_ABSENT &&
            n->in[1] != YK_ABSENT) {
            int w = g->values[n->in[1]].kind == VALUE_WEIGHT ? g->values[n->in[1]].shape.rank : -1;
            int x = g->values[n->in[0]].kind == VALUE_WEIGHT ? g->values[n->in[0]].shape.rank : -1;
            if (w >= 0 && w <= 1)
                keeps = true;
            else if (x >= 0 && x <= 1) {
                id = n->in[1];
                continue;
            }
        }
        if (!keeps || n->n_in == 0)
            return -1;
        id = n->in[0];
    }
    return -1;
}

/* ---- one function per change ---- */

static yk_err up_squeeze(struct upgrade *u) /* Squeeze, Unsqueeze, ReduceSum: axes */
{
    return ints_to_input(u, "axes", 1);
}

static yk_err up_split(struct upgrade *u)
{
    return ints_to_input(u, "split", 1);
}

static yk_err up_topk(struct upgrade *u)
{
    yk_err err = ints_to_input(u, "k", 1);
    return !err && u->n->n_in < 2 ? node_error(u, "no attribute k") : err;
}

static yk_err up_clip(struct upgrade *u)
{
    const struct attr *lo = find_attr(u->n, "min"), *hi = find_attr(u->n, "max");
    yk_err err = YK_OK;
    if (u->n->n_in < 1)
        return YK_OK;
    if (lo)
        err = float_input(u, "min", lo->f, u->n->in[0], 1);
    if (!err && hi)
        err = float_input(u, "max", hi->f, u->n->in[0], 2);
    drop_attr(u->n, "min");
    drop_attr(u->n, "max");
    return err;
}

static yk_err up_dropout(struct upgrade *u)
{
    float ratio = attr_float(u->n, "ratio", 0.5f);
    drop_attr(u->n, "ratio");
    drop_attr(u->n, "is_test");
    return u->n->n_in < 1 ? YK_OK : float_input(u, "ratio", ratio, YK_ABSENT, 1);
}

static yk_err up_pad(struct upgrade *u)
{
    float value = attr_float(u->n, "value", 0);
    yk_err err = ints_to_input(u, "pads", 1);
    drop_attr(u->n, "value");
    if (!err && u->n->n_in < 2)
        return node_error(u, "no attribute pads");
    return err || value == 0 ? err : float_input(u, "value", value, u->n->in[0], 2);
}

static yk_err up_slice(struct upgrade *u)
{
    yk_err err = ints_to_input(u, "starts", 1);
    if (!err)
        err = ints_to_input(u, "ends", 2);
    if (!err)
        err = ints_to_input(u, "axes", 3);
    return !err && u->n->n_in < 3 ? node_error(u, "no attributes starts and ends") : err;
}

/* Whether a node or graph output of the file reads the value. Later nodes are not in the graph yet, so the file is
 * asked, once per graph. */
static yk_err is_read(struct upgrade *u, int32_t id, bool *yes)
{
    struct onnx_scope *scope = u->scope;
    struct pb r = scope->file, inner;
    struct pb_field f, g;
    struct pb_text text;
    bool bad = false;
    if (scope->call) { /* the body of a function, whose outputs the call reads */
        *yes = true;
        return YK_OK;
    }
    if (!scope->read) {
        scope->n_read = scope->g->n_values;
        scope->read = yk_try_alloc((size_t)scope->n_read + 1, 1);
        if (!scope->read)
            return onnx_import_nomem(u->im);
        while (pb_next(&r, &f, &bad)) {
            if (f.number != 1 && f.number != 12) /* the names that a node reads and an output's own are field 1 */
                continue;
            for (inner = pb_of(&f); pb_next(&inner, &g, &bad);) {
                int32_t found =
                    g.number == 1 && pb_text(&g, &text) ? onnx_import_find(scope, text.s, text.n) : YK_ABSENT;
                if (found >= 0 && found < scope->n_read)
                    scope->read[found] = 1;
            }
        }
    }
    *yes = id < scope->n_read && scope->read[id];
    return YK_OK;
}

static yk_err up_batchnorm(struct upgrade *u)
{
    if (attr_int(u->n, "spatial", 1) == 0)
        return node_problem(u, "spatial=0 is not supported");
    drop_attr(u->n, "spatial");
    drop_attr(u->n, "is_test");
    drop_attr(u->n, "consumed_inputs");
    /* In inference the old form's running and saved statistics are not made. */
    for (int32_t i = 1; i < u->n->n_out; i++) {
        bool yes = false;
        yk_err err = u->n->out[i] != YK_ABSENT ? is_read(u, u->n->out[i], &yes) : YK_OK;
        if (err)
            return err;
        if (yes)
            return node_problem(u, "its statistics outputs are used (a training graph)");
    }
    u->n->n_out = YK_MIN(u->n->n_out, 1);
    return YK_OK;
}

static yk_err up_gemm(struct upgrade *u)
{
    drop_attr(u->n, "broadcast");
    return YK_OK;
}

/* Adds n trailing axes of size 1 to input k. */
static yk_err widen_input(struct upgrade *u, int32_t k, int axis, int rank)
{
    int small = rank_of(u, u->n->in[k]);
    if (rank < 0 || small < 0)
        return node_problem(u, "broadcasting along an axis needs ranks that the model does not tell");
    if (axis < 0)
        axis += rank;
    int more = rank - axis - small;
    if (axis < 0 || more < 0)
        return node_error(u, "its broadcast axis does not fit its inputs");
    if (more == 0 || small == 0)
        return YK_OK;
    int64_t axes[YK_MAX_RANK];
    for (int i = 0; i < more && i < YK_MAX_RANK; i++)
        axes[i] = small + i;
    int32_t list, out, in[2];
    yk_err err = ints_const(u, "axes", axes, (size_t)more, &list);
    if (!err)
        err = onnx_import_temp(u->im, u->scope, u->n, "wide", &out);
    if (err)
        return err;
    in[0] = u->n->in[k];
    in[1] = list;
    struct onnx_node widen = {.index = u->n->index,
        .name = u->n->name,
        .op_type = "Unsqueeze",
        .domain = "",
        .in = in,
        .n_in = 2,
        .out = &out,
        .n_out = 1};
    u->n->in[k] = out;
    return onnx_import_emit(u->im, u->scope, &widen);
}

static yk_err up_broadcast(struct upgrade *u)
{
    const struct attr *axis = find_attr(u->n, "axis");
    bool broadcast = attr_int(u->n, "broadcast", 0) != 0;
    yk_err err = YK_OK;
    if (broadcast && axis && u->n->n_in == 2 && u->n->in[0] != YK_ABSENT && u->n->in[1] != YK_ABSENT)
        err = widen_input(u, 1, axis->i < -YK_MAX_RANK || axis->i > YK_MAX_RANK ? YK_MAX_RANK + 1 : (int)axis->i,
            rank_of(u, u->n->in[0]));
    drop_attr(u->n, "axis");
    drop_attr(u->n, "broadcast");
    return err;
}

static yk_err up_prelu(struct upgrade *u) /* the slope lay along axis 1 */
{
    if (u->n->n_in != 2 || u->n->in[1] == YK_ABSENT || rank_of(u, u->n->in[1]) != 1)
        return YK_OK;
    return widen_input(u, 1, 1, rank_of(u, u->n->in[0]));
}

/* Before opset 13: softmax of the tensor flattened to two dimensions at axis. */
static yk_err up_softmax(struct upgrade *u)
{
    struct onnx_node *n = u->n;
    int64_t axis = attr_int(n, "axis", 1);
    const struct attr last = {.name = "axis", .kind = ATTR_INT, .i = -1},
                      at = {.name = "axis", .kind = ATTR_INT, .i = axis};
    if (n->n_in != 1 || n->n_out != 1 || n->in[0] == YK_ABSENT)
        return YK_OK; /* emitting reports it */
    int rank = rank_of(u, n->in[0]);
    if (axis == -1 || (rank > 0 && axis == rank - 1))
        return only_attr(u, n, &last);
    int32_t shape, flat, soft, pair[2];
    yk_err err = onnx_import_temp(u->im, u->scope, n, "shape", &shape);
    if (!err)
        err = onnx_import_temp(u->im, u->scope, n, "flat", &flat);
    if (!err)
        err = onnx_import_temp(u->im, u->scope, n, "soft", &soft);
    struct onnx_node step = {.index = n->index, .name = n->name, .domain = "", .in = pair, .n_in = 1};
    if (err)
        return err;
    pair[0] = n->in[0];
    step.op_type = "Shape";
    step.out = &shape;
    step.n_out = 1;
    if ((err = only_attr(u, &step, NULL)) || (err = onnx_import_emit(u->im, u->scope, &step)))
        return err;
    step.op_type = "Flatten";
    step.out = &flat;
    if ((err = only_attr(u, &step, &at)) || (err = onnx_import_emit(u->im, u->scope, &step)))
        return err;
    pair[0] = flat;
    step.op_type = n->op_type;
    step.out = &soft;
    if ((err = only_attr(u, &step, &last)) || (err = onnx_import_emit(u->im, u->scope, &step)))
        return err;
    pair[0] = soft;
    pair[1] = shape;
    step.op_type = "Reshape";
    step.n_in = 2;
    step.out = n->out;
    u->done = true;
    if ((err = only_attr(u, &step, NULL)))
        return err;
    return onnx_import_emit(u->im, u->scope, &step);
}

/* Upsample and the first Resize: (X, scales), asymmetric coordinates, floor. Of opset 6: two scales of an image. */
static yk_err up_resize(struct upgrade *u)
{
    struct onnx_node *n = u->n;
    const struct attr *scales = find_attr(n, "scales"), *height = find_attr(n, "height_scale"),
                      *width = find_attr(n, "width_scale");
    struct attr *mode = find_attr(n, "mode");
    int32_t id = n->n_in > 1 ? n->in[1] : YK_ABSENT;
    yk_err err = YK_OK;
    if (!op_find("", "Resize"))
        return YK_OK; /* emitting lists the node under the name that it has in the file */
    if (scales && scales->kind == ATTR_FLOATS && id == YK_ABSENT) {
        struct shape shape = {.dtype = DT_F32, .rank = 1, .dims = {(int64_t)scales->n}};
        err = onnx_import_const(u->im, u->scope, n, "scales", &shape, scales->floats, &id);
    } else if (height && width && height->kind == ATTR_FLOAT && width->kind == ATTR_FLOAT && id == YK_ABSENT) {
        struct shape shape = {.dtype = DT_F32, .rank = 1, .dims = {4}};
        const float v[] = {1, 1, height->f, width->f};
        err = onnx_import_const(u->im, u->scope, n, "scales", &shape, v, &id);
    }
    if (err)
        return err;
    if (id == YK_ABSENT || n->n_in < 1)
        return node_error(u, "no scales");
    if (mode && mode->kind == ATTR_STRING && strcmp(mode->s, "bilinear") == 0)
        mode->s = "linear";
    drop_attr(n, "scales");
    drop_attr(n, "height_scale");
    drop_attr(n, "width_scale");
    n->op_type = "Resize";
    set_input(n, 1, YK_ABSENT);
    set_input(n, 2, id);
    err = add_attr(u, (struct attr){.name = "coordinate_transformation_mode", .kind = ATTR_STRING, .s = "asymmetric"});
    return err ? err : add_attr(u, (struct attr){.name = "nearest_mode", .kind = ATTR_STRING, .s = "floor"});
}

static yk_err up_roialign(struct upgrade *u)
{
    return add_attr(
        u, (struct attr){.name = "coordinate_transformation_mode", .kind = ATTR_STRING, .s = "output_half_pixel"});
}

static yk_err up_scatter(struct upgrade *u)
{
    u->n->op_type = "ScatterElements";
    return YK_OK;
}

/* Before opset 9 every value has the batch in front, and samples have lengths: an op of its own. */
static yk_err up_scan(struct upgrade *u)
{
    u->n->op_type = "BatchScan";
    u->n->domain = "ai.yoke";
    return YK_OK;
}

/* In the order of change: a node passes through every row that holds for its opset. */
static const struct {
    const char *op;
    int before; /* applies to models of an older opset */
    yk_err (*up)(struct upgrade *u);
} changes[] = {
    {"Add", 7, up_broadcast},
    {"Sub", 7, up_broadcast},
    {"Mul", 7, up_broadcast},
    {"Div", 7, up_broadcast},
    {"Pow", 7, up_broadcast},
    {"And", 7, up_broadcast},
    {"Or", 7, up_broadcast},
    {"Xor", 7, up_broadcast},
    {"Equal", 7, up_broadcast},
    {"Less", 7, up_broadcast},
    {"Greater", 7, up_broadcast},
    {"PRelu", 7, up_prelu},
    {"Gemm", 7, up_gemm},
    {"BatchNormalization", 14, up_batchnorm},
    {"Scan", 9, up_scan},
    {"TopK", 10, up_topk},
    {"Slice", 10, up_slice},
    {"Upsample", 11, up_resize},
    {"Resize", 11, up_resize},
    {"Scatter", 11, up_scatter},
    {"Clip", 11, up_clip},
    {"Pad", 11, up_pad},
    {"Dropout", 12, up_dropout},
    {"Squeeze", 13, up_squeeze},
    {"Unsqueeze", 13, up_squeeze},
    {"ReduceSum", 13, up_squeeze},
    {"Split", 13, up_split},
    {"Softmax", 13, up_softmax},
    {"LogSoftmax", 13, up_softmax},
    {"Hardmax", 13, up_softmax},
    {"RoiAlign", 16, up_roialign},
};

yk_err onnx_import_upgrade(struct onnx_import *im, struct onnx_scope *scope, struct onnx_node *n)
{
    struct upgrade u = {.im = im, .scope = scope, .n = n};
    const char *op_type = n->op_type; /* rows may rename the node */
    if (im->opset && !*n->domain && n->n_in >= 0)
        for (size_t i = 0; i < YK_COUNT(changes); i++)
            if (im->opset < changes[i].before && strcmp(op_type, changes[i].op) == 0) {
                yk_err err = changes[i].up(&u);
                if (err || u.done)
                    return err;
            }
    return onnx_import_emit(im, scope, n);
}
