/* `yoke local ops`: what there is, and which backends have forms for it. */
#include "kernels/host.h"
#include "scheduler/cli/local.h"
#include "scheduler/cli/table.h"

#include <stdlib.h>
#include <string.h>

#define OPSET_FIRST 6 /* as the importer reads */
#define OPSET_LAST 17
#define MAX_KINDS 16

/* The opset that brought an ONNX op, where that is behind OPSET_FIRST: what the standard says, whether we have the op
 * or not. */
static int opset_of(const char *op)
{
    static const struct {
        int opset;
        const char *ops;
    } news[] = {
        {7, " Acos Asin Atan Cos Multinomial Sin Tan "},
        {8, " Expand Scan "},
        {9, " Acosh Asinh Atanh Compress ConstantOfShape Cosh Erf EyeLike IsNaN MaxUnpool MeanVarianceNormalization "
            "NonZero OneHot Scatter Shrink Sign Sinh TfIdfVectorizer Where "},
        {10, " ConvInteger DequantizeLinear IsInf MatMulInteger Mod NonMaxSuppression QLinearConv QLinearMatMul "
             "QuantizeLinear Resize ReverseSequence RoiAlign StringNormalizer ThresholdedRelu "},
        {11, " BitShift ConcatFromSequence CumSum Det DynamicQuantizeLinear GatherElements GatherND Range Round "
             "ScatterElements ScatterND SequenceAt SequenceConstruct SequenceEmpty SequenceErase SequenceInsert "
             "SequenceLength SplitToSequence Unique "},
        {12, " Celu Einsum GreaterOrEqual LessOrEqual NegativeLogLikelihoodLoss SoftmaxCrossEntropyLoss "},
        {14, " HardSwish Trilu "},
        {15, " Bernoulli CastLike Optional OptionalGetElement OptionalHasElement "},
        {16, " GridSample "},
        {17, " BlackmanWindow DFT HammingWindow HannWindow LayerNormalization MelWeightMatrix STFT SequenceMap "},
    };
    char word[64];
    snprintf(word, sizeof word, " %s ", op);
    for (size_t i = 0; i < YK_COUNT(news); i++)
        if (strstr(news[i].ops, word))
            return news[i].opset;
    return OPSET_FIRST;
}

/* The kinds of a backend's forms; a backend that has no table is asked when a node is there. */
static void kinds_text(const struct backend *b, const struct op *op, char *out, size_t size)
{
    const char *kinds[MAX_KINDS];
    int n = host_kinds(b, op, kinds, MAX_KINDS);
    size_t len = 0;
    snprintf(out, size, "%s", n < 0 ? "by node" : n == 0 ? "-" : "");
    for (int i = 0; i < n && len < size; i++)
        len += (size_t)snprintf(out + len, size - len, "%s%s", i ? " " : "", kinds[i]);
}

static void put_op(struct json_out *out, const struct op *op, const struct backends *backends)
{
    char text[512];
    json_open(out, '{');
    json_put_key(out, "op");
    json_put_str(out, op->name);
    json_put_key(out, "domain");
    json_put_str(out, *op->domain ? op->domain : "ai.onnx");
    json_put_key(out, "opsets");
    if (*op->domain)
        snprintf(text, sizeof text, "%d", op->since);
    else
        snprintf(text, sizeof text, "%d-%d", opset_of(op->name), OPSET_LAST);
    json_put_str(out, text);
    for (int k = 0; k < backends->n; k++) {
        kinds_text(backends->at[k], op, text, sizeof text);
        json_put_key(out, backends->at[k]->ops->name);
        json_put_str(out, text);
    }
    json_close(out, '}');
}

static int by_name(const void *a, const void *b)
{
    const struct op *x = *(const struct op *const *)a, *y = *(const struct op *const *)b;
    int c = strcmp(x->domain, y->domain);
    return c ? c : strcmp(x->name, y->name);
}

int cli_local_ops(struct cli *c)
{
    struct yk_diag why = {""};
    struct yk_buf text = {0};
    struct json_out out;
    struct json *rows = NULL;
    struct pool *pool = NULL;
    struct backends backends = {0};
    int n = op_count();
    const struct op **ops = yk_xalloc(((size_t)n + 1) * sizeof *ops);
    for (int i = 0; i < n; i++)
        ops[i] = op_at(i);
    qsort(ops, (size_t)n, sizeof *ops, by_name);
    yk_err err = pool_open(1, &pool, &why);
    if (!err)
        err = backends_open(c->o.backend, pool, &backends, &why);
    if (!err) {
        json_out_init(&out, &text, 0);
        json_open(&out, '[');
        for (int i = 0; i < n; i++)
            put_op(&out, ops[i], &backends);
        json_close(&out, ']');
        if (text.failed)
            err = yk_fail(&why, YK_NOMEM, "no memory");
        else if (c->o.json)
            printf("%.*s\n", (int)text.len, (const char *)text.data);
        else if (!(err = json_parse((const char *)text.data, text.len, &rows, &why)))
            table_print(rows, NULL, "no ops", stdout);
    }
    json_free(rows);
    yk_buf_free(&text);
    backends_close(&backends);
    pool_close(pool);
    free(ops);
    return err ? cli_fail(err, &why) : CLI_DONE;
}
