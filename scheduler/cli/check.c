#include "scheduler/cli/check.h"

#include "common/onnx.h"
#include "common/onnx_value.h"
#include "common/passes.h"
#include "kernels/fold.h"
#include "scheduler/cli/cli.h"
#include "scheduler/cli/local.h"

#include <dirent.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define RTOL 1e-3
#define ATOL 1e-7
#define REASON_MAX 1024

const char *const check_verdicts[] = {"passed", "failed", "skipped"};

/* One data set: what it gives, what it expects, what came out. */
struct set {
    const char *model; /* path */
    struct graph *graph;
    struct exec *exec;
    struct onnx_value *in, *want, *got; /* by input and output of the graph */
    int32_t n_in, n_out;
    struct dyn_value **args; /* n_in; those of the inputs that the graph still has are in front */
    int64_t *sizes;
    const struct shape **given; /* by the same position; NULL for what is no tensor */
    char reason[REASON_MAX];
};

static enum check_verdict skip(struct set *s, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static enum check_verdict skip(struct set *s, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    vsnprintf(s->reason, sizeof s->reason, fmt, args);
    va_end(args);
    return CHECK_SKIPPED;
}

/* What an error says about the test: what is not supported cannot be judged. */
static enum check_verdict judge(struct set *s, yk_err err, const struct yk_diag *why)
{
    const char *text = why->text[0] ? why->text : yk_err_text(err);
    size_t n = strlen(s->model); /* the listing names the test already */
    if (strncmp(text, s->model, n) == 0)
        text += n + strspn(text + n, ": \n");
    snprintf(s->reason, sizeof s->reason, "%s", text);
    for (char *c = s->reason; *c; c++)
        if (*c == '\n')
            *c = c[1] ? ';' : '\0';
    return err == YK_UNSUPPORTED || err == YK_DEPENDS ? CHECK_SKIPPED : CHECK_FAILED;
}

/* ---- what a data set gives ---- */

/* The data sets hold bfloat16 as uint16. */
static void as_declared(struct onnx_value *t, const struct value *v)
{
    if (t->type == VALUE_TENSOR && v->dtype == DT_BF16 && t->shape.dtype == DT_U16)
        t->shape.dtype = DT_BF16;
}

static enum check_verdict load(
    struct set *s, const char *folder, const char *what, const int32_t *ids, int32_t n, struct onnx_value *out)
{
    enum check_verdict v = CHECK_PASSED;
    for (int32_t i = 0; v == CHECK_PASSED && i < n; i++) {
        const struct value *value = &s->graph->values[ids[i]];
        struct yk_diag why = {""};
        char *path = yk_xasprintf("%s/%s_%d.pb", folder, what, (int)i);
        yk_err err = onnx_value_load(path, value->type, &out[i], &why);
        if (err == YK_NOTFOUND)
            v = skip(s, "the data set has no %s_%d.pb for '%s'", what, (int)i, value->name);
        else if (err)
            v = judge(s, err, &why);
        else
            as_declared(&out[i], value);
        free(path);
    }
    return v;
}

/* Whether the declared type of an input takes what the data set gives it. */
static enum check_verdict fits(struct set *s, int32_t input)
{
    const struct value *v = &s->graph->values[s->graph->inputs[input]];
    const struct shape *got = &s->in[input].shape;
    char text[128];
    if (v->type != VALUE_TENSOR)
        return CHECK_PASSED;
    shape_text(got, text, sizeof text);
    if (v->dtype != DT_NONE && v->dtype != got->dtype)
        return skip(
            s, "wrong data: input '%s' is declared as %s, the data set gives %s", v->name, dtype_name(v->dtype), text);
    bool fit = v->rank < 0 || v->rank == got->rank;
    for (int i = 0; fit && i < v->rank; i++)
        fit = v->dims[i].sym >= 0 || v->dims[i].value < 0 || v->dims[i].value == got->dims[i];
    if (!fit)
        return skip(s, "wrong data: input '%s' has another shape than declared, %s", v->name, text);
    return CHECK_PASSED;
}

static const struct onnx_value *given_as(const struct set *s, int32_t value)
{
    for (int32_t i = 0; i < s->n_in; i++)
        if (s->graph->inputs[i] == value)
            return &s->in[i];
    return NULL;
}

/* Number `at` of an input or weight; otherwise if it is not there or not known now. */
static double known_number(const struct set *s, const struct node *n, int32_t at, double otherwise)
{
    if (at >= n->n_in || n->in[at] == YK_ABSENT)
        return otherwise;
    const struct value *v = &s->graph->values[n->in[at]];
    const struct onnx_value *given = given_as(s, n->in[at]);
    const void *data = given ? given->data : v->data;
    enum dtype t = given ? given->shape.dtype : v->dtype;
    float f;
    if (!data || shape_count(given ? &given->shape : &v->shape) != 1)
        return otherwise;
    if (t == DT_F32) {
        memcpy(&f, data, sizeof f);
        return (double)f;
    }
    return dtype_is_int(t) || t == DT_BOOL ? (double)dtype_read_int(t, data, 0) : otherwise;
}

/* The node whose output nobody can expect, or NULL. */
static const struct node *find_random(const struct set *s)
{
    for (int32_t i = 0; i < s->graph->n_nodes; i++) {
        const struct node *n = &s->graph->nodes[i];
        if (strcmp(n->op->name, "Dropout") == 0) {
            if (known_number(s, n, 2, 0) != 0 && known_number(s, n, 1, 0.5) > 0)
                return n;
        } else if (n->op->flags & OP_RANDOM) {
            return n;
        }
    }
    return NULL;
}

/* ---- comparing ---- */

static double half_value(uint16_t bits)
{
    int exponent = bits >> 10 & 31, fraction = bits & 1023;
    double v = exponent == 31 ? (fraction ? NAN : INFINITY)
               : exponent     ? ldexp(1024 + fraction, exponent - 25)
                              : ldexp(fraction, -24);
    return bits & 0x8000 ? -v : v;
}

static double float_value(enum dtype t, const void *data, int64_t i)
{
    uint32_t wide;
    float f;
    switch (t) {
    case DT_F32:
        return (double)((const float *)data)[i];
    case DT_F64:
        return ((const double *)data)[i];
    case DT_F16:
        return half_value(((const uint16_t *)data)[i]);
    default: /* DT_BF16: the upper half of a float */
        wide = (uint32_t)((const uint16_t *)data)[i] << 16;
        memcpy(&f, &wide, sizeof f);
        return (double)f;
    }
}

static enum check_verdict compare_tensors(
    struct set *s, const char *name, const struct onnx_value *got, const struct onnx_value *want)
{
    char a[128], b[128];
    enum dtype t = want->shape.dtype;
    int64_t n = shape_count(&want->shape);
    shape_text(&got->shape, a, sizeof a);
    shape_text(&want->shape, b, sizeof b);
    if (!shape_equal(&got->shape, &want->shape)) {
        snprintf(s->reason, sizeof s->reason, "output '%s' is %s, expected %s", name, a, b);
        return CHECK_FAILED;
    }
    for (int64_t i = 0; i < n; i++) {
        if (dtype_is_float(t)) {
            double x = float_value(t, got->data, i), y = float_value(t, want->data, i);
            if (x == y || (isnan(x) && isnan(y)) || fabs(x - y) <= ATOL + RTOL * fabs(y))
                continue;
            snprintf(s->reason, sizeof s->reason, "output '%s' %s: element %lld is %.9g, expected %.9g", name, b,
                (long long)i, x, y);
            return CHECK_FAILED;
        }
        int64_t x = dtype_read_int(t, got->data, i), y = dtype_read_int(t, want->data, i);
        if (x != y) {
            snprintf(s->reason, sizeof s->reason, "output '%s' %s: element %lld is %lld, expected %lld", name, b,
                (long long)i, (long long)x, (long long)y);
            return CHECK_FAILED;
        }
    }
    return CHECK_PASSED;
}

static enum check_verdict compare(
    struct set *s, const char *name, const struct onnx_value *got, const struct onnx_value *want)
{
    char a[128], b[128];
    if (got->type == VALUE_TENSOR && want->type == VALUE_TENSOR)
        return compare_tensors(s, name, got, want);
    if (got->type != want->type || got->n != want->n) {
        onnx_value_text(got, a, sizeof a);
        onnx_value_text(want, b, sizeof b);
        snprintf(s->reason, sizeof s->reason, "output '%s' is %s, expected %s", name, a, b);
        return CHECK_FAILED;
    }
    enum check_verdict v = CHECK_PASSED;
    for (int64_t i = 0; v == CHECK_PASSED && i < want->n; i++)
        v = compare(s, name, &got->items[i], &want->items[i]);
    return v;
}

/* ---- running ---- */

/* Shapes, axes and the like come as inputs in node tests. As weights they are known before the run. */
static void fix_contents(struct set *s)
{
    int32_t kept = 0;
    for (int32_t i = 0; i < s->n_in; i++) {
        struct value *v = &s->graph->values[s->graph->inputs[i]];
        const struct onnx_value *x = &s->in[i];
        bool small = x->type == VALUE_TENSOR && (dtype_is_int(x->shape.dtype) || x->shape.dtype == DT_BOOL) &&
                     shape_count(&x->shape) <= OP_MAX_CONTENT;
        if (small) {
            v->kind = VALUE_WEIGHT;
            v->shape = x->shape;
            v->data = x->data;
            v->bytes = shape_bytes(&x->shape);
            v->aligned = true;
            continue;
        }
        s->given[kept] = s->given[i];
        struct dyn_value *arg = s->args[i];
        s->args[i] = s->args[kept];
        s->args[kept] = arg;
        s->graph->inputs[kept++] = s->graph->inputs[i];
    }
    s->graph->n_inputs = kept;
}

static yk_err open_exec(struct set *s, struct backends *b, struct yk_diag *why)
{
    struct exec_config config = {.graph = s->graph, .max_sizes = s->sizes, .input_shapes = s->given, .backends = b};
    return exec_open(&config, &s->exec, why);
}

/* What a data set gives as the executor takes it: tensors are borrowed. */
static yk_err to_dyn(const struct onnx_value *v, enum dtype dtype, struct dyn_value **out, struct yk_diag *why)
{
    if (v->type == VALUE_TENSOR)
        return dyn_borrow(NULL, &(struct tensor){v->shape, v->data}, out, why);
    struct dyn_value **items = yk_xalloc(((size_t)v->n + 1) * sizeof(struct dyn_value *));
    yk_err err = YK_OK;
    for (int64_t i = 0; !err && i < v->n; i++)
        err = to_dyn(&v->items[i], dtype, &items[i], why);
    if (!err)
        err = dyn_list(NULL, v->type, dtype, items, v->n, out, why);
    for (int64_t i = 0; i < v->n; i++)
        dyn_unref(items[i]);
    free(items);
    return err;
}

static yk_err from_dyn(const struct dyn_value *v, struct onnx_value *out, struct yk_diag *why)
{
    *out = (struct onnx_value){.type = v->type};
    yk_err err = YK_OK;
    if (v->type == VALUE_TENSOR) {
        size_t bytes = (size_t)tensor_bytes(&v->tensor);
        out->shape = v->tensor.shape;
        if (!(out->data = yk_try_aligned(bytes + 1)))
            return yk_fail(why, YK_NOMEM, "no memory for the outputs");
        if (bytes)
            memcpy(out->data, v->tensor.data, bytes);
        return YK_OK;
    }
    if (!(out->items = yk_try_alloc((size_t)v->n + 1, sizeof *out->items)))
        return yk_fail(why, YK_NOMEM, "no memory for the outputs");
    for (; !err && out->n < v->n; out->n++)
        err = from_dyn(v->items[out->n], &out->items[out->n], why);
    return err;
}

/* Runs the exec; s->got owns what comes out. */
static yk_err run(struct set *s, struct yk_diag *why)
{
    struct dyn_value **outs = yk_xalloc(((size_t)s->n_out + 1) * sizeof(struct dyn_value *));
    yk_err err = exec_run_values(s->exec, s->sizes, s->args, outs, 0, why);
    for (int32_t i = 0; !err && i < s->n_out; i++)
        err = from_dyn(outs[i], &s->got[i], why);
    for (int32_t i = 0; i < s->n_out; i++)
        dyn_unref(outs[i]);
    free(outs);
    return err;
}

static yk_err make_folders(const char *path, struct yk_diag *why)
{
    char *at = yk_xstrdup(path);
    yk_err err = YK_OK;
    for (char *c = at + 1; !err && *c; c++)
        if (*c == '/' || !c[1]) {
            char kept = *c == '/' ? '/' : c[1];
            char *end = *c == '/' ? c : c + 1;
            *end = '\0';
            if (mkdir(at, 0777) != 0 && errno != EEXIST)
                err = yk_fail(why, yk_err_from_errno(errno), "cannot make the folder %s: %s", at, strerror(errno));
            *end = kept;
        }
    free(at);
    return err;
}

static yk_err write_dump(const struct set *s, const char *folder, struct yk_diag *why)
{
    yk_err err = make_folders(folder, why);
    for (int32_t i = 0; !err && i < s->n_out; i++) {
        struct yk_buf b = {0};
        char *path = yk_xasprintf("%s/output_%d.pb", folder, (int)i);
        err = onnx_value_encode(&s->got[i], s->graph->values[s->graph->outputs[i]].name, &b, why);
        if (!err)
            err = cli_write_file(path, b.data, b.len, why);
        yk_buf_free(&b);
        free(path);
    }
    return err;
}

static enum check_verdict run_set(
    struct check *c, struct set *s, const char *folder, const char *dump, yk_err *failed, struct yk_diag *why)
{
    struct yk_diag reason = {""};
    enum check_verdict v = CHECK_PASSED;
    yk_err err = onnx_import(s->model, &s->graph, NULL, &reason);
    if (err)
        return judge(s, err, &reason);
    struct graph *g = s->graph;
    s->n_in = g->n_inputs;
    s->n_out = g->n_outputs;
    s->in = yk_xalloc(((size_t)s->n_in + 1) * sizeof *s->in);
    s->want = yk_xalloc(((size_t)s->n_out + 1) * sizeof *s->want);
    s->got = yk_xalloc(((size_t)s->n_out + 1) * sizeof *s->got);
    s->given = yk_xalloc(((size_t)s->n_in + 1) * sizeof *s->given);
    s->args = yk_xalloc(((size_t)s->n_in + 1) * sizeof(struct dyn_value *));
    if ((v = load(s, folder, "input", g->inputs, s->n_in, s->in)) ||
        (v = load(s, folder, "output", g->outputs, s->n_out, s->want)))
        return v;
    for (int32_t i = 0; i < s->n_in; i++) {
        s->given[i] = s->in[i].type == VALUE_TENSOR ? &s->in[i].shape : NULL;
        if ((v = fits(s, i)))
            return v;
        if ((err = to_dyn(&s->in[i], g->values[g->inputs[i]].dtype, &s->args[i], &reason)))
            return judge(s, err, &reason);
    }
    const struct node *random = find_random(s);
    if (random)
        return skip(s, "the expected output is random: node '%s' (%s)", random->name, random->op->name);
    if (c->known)
        fix_contents(s);
    if (c->passes && (err = passes_infer(g, fold_eval, NULL, &reason)))
        return judge(s, err, &reason);
    s->sizes = yk_xalloc(((size_t)g->n_syms + 1) * sizeof *s->sizes);
    if ((err = local_sizes(g, s->given, s->sizes, &reason)))
        return judge(s, err, &reason);
    err = open_exec(s, c->backends, &reason);
    if (!err)
        err = run(s, &reason);
    if (err)
        return judge(s, err, &reason);
    if (dump && (*failed = write_dump(s, dump, why)))
        return CHECK_FAILED;
    for (int32_t i = 0; v == CHECK_PASSED && i < s->n_out; i++)
        v = compare(s, g->values[g->outputs[i]].name, &s->got[i], &s->want[i]);
    return v;
}

static void set_fini(struct set *s)
{
    exec_close(s->exec);
    for (int32_t i = 0; i < s->n_in; i++) {
        if (s->args)
            dyn_unref(s->args[i]);
        onnx_value_fini(&s->in[i]);
    }
    for (int32_t i = 0; i < s->n_out; i++) {
        onnx_value_fini(&s->want[i]);
        onnx_value_fini(&s->got[i]);
    }
    free(s->in);
    free(s->want);
    free(s->got);
    free(s->given);
    free(s->args);
    free(s->sizes);
    graph_close(s->graph);
}

/* All data sets of one test: the worst verdict counts, a failure before a skip. */
static yk_err run_test(struct check *c, const char *folder, const char *name, struct yk_diag *why)
{
    char *model = yk_xasprintf("%s/model.onnx", folder), reason[REASON_MAX] = "";
    enum check_verdict verdict = CHECK_PASSED;
    yk_err err = YK_OK;
    int sets = 0;
    for (; !err; sets++) {
        char *data = yk_xasprintf("%s/test_data_set_%d", folder, sets);
        char *dump = c->dump ? yk_xasprintf("%s/%s/test_data_set_%d", c->dump, name, sets) : NULL;
        bool there = access(data, F_OK) == 0;
        if (there) {
            struct set s = {.model = model};
            enum check_verdict v = run_set(c, &s, data, dump, &err, why);
            if (v != CHECK_PASSED && verdict != CHECK_FAILED && (v == CHECK_FAILED || verdict == CHECK_PASSED)) {
                verdict = v;
                snprintf(reason, sizeof reason, "%s", s.reason);
            }
            set_fini(&s);
        }
        free(data);
        free(dump);
        if (!there)
            break;
    }
    if (!err && sets == 0) {
        verdict = CHECK_SKIPPED;
        snprintf(reason, sizeof reason, "there is no test_data_set_0");
    }
    free(model);
    if (err)
        return err;
    c->count[verdict]++;
    c->on(c->arg, name, verdict, reason);
    return YK_OK;
}

static bool holds_model(const char *folder)
{
    char *path = yk_xasprintf("%s/model.onnx", folder);
    bool there = access(path, F_OK) == 0;
    free(path);
    return there;
}

static int by_name(const struct dirent **a, const struct dirent **b)
{
    return strcmp((*a)->d_name, (*b)->d_name);
}

yk_err check_folder(struct check *c, const char *dir, struct yk_diag *why)
{
    struct dirent **names;
    memset(c->count, 0, sizeof c->count);
    if (holds_model(dir)) {
        const char *end = dir + strlen(dir), *slash;
        while (end > dir + 1 && end[-1] == '/')
            end--;
        for (slash = end; slash > dir && slash[-1] != '/'; slash--)
            ;
        char *name = yk_xasprintf("%.*s", (int)(end - slash), slash);
        yk_err err = run_test(c, dir, name, why);
        free(name);
        return err;
    }
    int n = scandir(dir, &names, NULL, by_name), tests = 0;
    if (n < 0)
        return yk_fail(why, yk_err_from_errno(errno), "cannot read the folder %s: %s", dir, strerror(errno));
    yk_err err = YK_OK;
    for (int i = 0; i < n; i++) {
        char *folder = yk_xasprintf("%s/%s", dir, names[i]->d_name);
        if (!err && names[i]->d_name[0] != '.' && holds_model(folder)) {
            err = run_test(c, folder, names[i]->d_name, why);
            tests++;
        }
        free(folder);
        free(names[i]);
    }
    free(names);
    if (!err && tests == 0)
        err = yk_fail(why, YK_NOTFOUND, "%s holds no tests: folders with model.onnx and test_data_set_0", dir);
    return err;
}
