/* A trainer that does what it is told on its standard input, for train_torch.py: it compares every step with PyTorch's.
 * Usage: train_peer MODEL KEY=VALUE...   loss, bn (train|frozen), optimizer (sgd|adamw), momentum, nesterov, decay,
 * clip, smoothing, recompute, batch, spec, threads, freeze. First it prints a line "KIND NAME COUNT" per tensor that it
 * trains or keeps, then "ready". Then:
 *   set NAME, and the values        a parameter, a slot of the optimizer or a running statistic takes them
 *   run N DIVISOR, input and target a microbatch of N samples: prints "loss X COUNT", then COUNT values of its logits
 *   flush LR STEP                   the end of a step: prints "done NORM", the gradients, then all tensors
 * Values are raw, 4 or 8 bytes each. */
#include "common/onnx.h"
#include "common/passes.h"
#include "kernels/fold.h"
#include "kernels/train.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct peer {
    struct graph *forward, *graph;
    struct grad_info info;
    struct pool *pool;
    struct backends backends;
    struct trainer *trainer;
    const struct trainer_tensor *tensors;
    int32_t n_tensors;
};

static const char *option(int argc, char **argv, const char *key, const char *otherwise)
{
    size_t n = strlen(key);
    for (int i = 2; i < argc; i++)
        if (strncmp(argv[i], key, n) == 0 && argv[i][n] == '=')
            return argv[i] + n + 1;
    return otherwise;
}

static yk_err open_peer(struct peer *p, int argc, char **argv, struct yk_diag *why)
{
    struct grad_options o;
    const char *freeze = option(argc, argv, "freeze", NULL);
    bool adamw = strcmp(option(argc, argv, "optimizer", "sgd"), "adamw") == 0;
    struct optim optim = optim_default(adamw ? OPTIM_ADAMW : OPTIM_SGD);
    int64_t sizes[16];
    for (size_t i = 0; i < YK_COUNT(sizes); i++)
        sizes[i] = strtoll(option(argc, argv, "batch", "8"), NULL, 10);
    grad_options_init(&o);
    if (!grad_loss_find(option(argc, argv, "loss", "cross-entropy"), &o.loss))
        return yk_fail(why, YK_INVAL, "loss");
    o.bn_frozen = strcmp(option(argc, argv, "bn", "train"), "frozen") == 0;
    o.label_smoothing = strtof(option(argc, argv, "smoothing", "0"), NULL);
    o.recompute = option(argc, argv, "recompute", NULL) != NULL;
    o.freeze = freeze ? &freeze : NULL;
    o.n_freeze = freeze != NULL;
    optim.momentum = strtod(option(argc, argv, "momentum", "0.9"), NULL);
    optim.nesterov = option(argc, argv, "nesterov", NULL) != NULL;
    optim.weight_decay = strtod(option(argc, argv, "decay", adamw ? "0.01" : "0"), NULL);
    yk_err err = onnx_import(argv[1], &p->forward, NULL, why);
    if (err || (err = passes_train(p->forward, fold_eval, NULL, why)) ||
        (err = grad_build(p->forward, &o, &p->graph, &p->info, why)) ||
        (err = pool_open((int)strtol(option(argc, argv, "threads", "1"), NULL, 10), &p->pool, why)) ||
        (err = backends_open(option(argc, argv, "spec", "auto"), p->pool, &p->backends, why)))
        return err;
    if (p->graph->n_syms > (int32_t)YK_COUNT(sizes))
        return yk_fail(why, YK_LIMIT, "too many named dimensions");
    struct trainer_config c = {.graph = p->graph,
        .info = &p->info,
        .max_sizes = sizes,
        .backends = &p->backends,
        .pool = p->pool,
        .optim = optim,
        .clip_norm = strtod(option(argc, argv, "clip", "0"), NULL)};
    if ((err = trainer_open(&c, &p->trainer, why)))
        return err;
    p->tensors = trainer_tensors(p->trainer, &p->n_tensors);
    return YK_OK;
}

static void close_peer(struct peer *p)
{
    trainer_close(p->trainer);
    backends_close(&p->backends);
    pool_close(p->pool);
    graph_close(p->graph);
    graph_close(p->forward);
}

static yk_err take(void *to, size_t bytes, struct yk_diag *why)
{
    return fread(to, 1, bytes, stdin) == bytes ? YK_OK : yk_fail(why, YK_IO, "standard input ends");
}

static yk_err set(struct peer *p, const char *name, struct yk_diag *why)
{
    for (int32_t i = 0; i < p->n_tensors; i++)
        if (strcmp(p->tensors[i].name, name) == 0)
            return take(p->tensors[i].data, (size_t)shape_bytes(&p->tensors[i].shape), why);
    return yk_fail(why, YK_INVAL, "no tensor '%s'", name);
}

static yk_err run(struct peer *p, int64_t n, float divisor, struct yk_diag *why)
{
    const struct trainer_border *border = trainer_border(p->trainer, TRAINER_WHOLE);
    struct tensor *in = yk_xalloc((size_t)(border->n_in + 1) * sizeof *in);
    struct tensor *out = yk_xalloc((size_t)(border->n_out + 1) * sizeof *out);
    const struct shapes *shapes;
    int64_t sizes[16];
    const struct tensor *logits = NULL;
    float loss = NAN;
    for (size_t i = 0; i < YK_COUNT(sizes); i++)
        sizes[i] = n;
    yk_err err = trainer_renew(p->trainer, why);
    if (!err)
        err = trainer_shapes(p->trainer, sizes, &shapes, why);
    for (int32_t k = 0; !err && k < p->graph->n_inputs; k++)
        for (int32_t i = 0; !err && i < border->n_in; i++) {
            if (border->in[i] != p->graph->inputs[k])
                continue;
            in[i].shape = shapes->of[border->in[i]];
            in[i].data = yk_try_aligned((size_t)tensor_bytes(&in[i]) + 1);
            if (k == p->info.divisor_input)
                *(float *)in[i].data = divisor;
            else
                err = take(in[i].data, (size_t)tensor_bytes(&in[i]), why);
        }
    if (!err)
        err = trainer_run(p->trainer, TRAINER_WHOLE, 0, sizes, in, out, 0, why);
    for (int32_t i = 0; !err && i < border->n_out; i++) {
        if (border->out[i] == p->graph->outputs[p->info.loss_output])
            loss = *(const float *)out[i].data;
        if (border->out[i] == p->graph->outputs[p->info.logits_output])
            logits = &out[i];
    }
    if (!err && !logits)
        err = yk_fail(why, YK_INTERNAL, "no logits");
    if (!err) {
        printf("loss %.9g %" PRId64 "\n", (double)loss, tensor_count(logits));
        fwrite(logits->data, sizeof(float), (size_t)tensor_count(logits), stdout);
    }
    for (int32_t i = 0; i < border->n_in; i++)
        free(in[i].data);
    free(in);
    free(out);
    return err;
}

static yk_err flush(struct peer *p, double clip, double lr, int64_t step, struct yk_diag *why)
{
    double *squares = yk_xalloc((size_t)(p->info.n_params + 1) * sizeof *squares), sum = 0;
    trainer_fold(p->trainer, squares);
    for (int32_t i = 0; i < p->info.n_params; i++)
        sum += squares[i];
    free(squares);
    printf("done %.17g\n", sqrt(sum));
    for (int32_t i = 0; i < p->n_tensors; i++)
        if (p->tensors[i].kind == TRAINER_PARAM)
            fwrite(
                trainer_use(p->trainer, p->tensors[i].index, 0), 1, (size_t)shape_bytes(&p->tensors[i].shape), stdout);
    yk_err err = trainer_step(p->trainer, lr, step, optim_clip_scale(clip, sqrt(sum)), why);
    for (int32_t i = 0; !err && i < p->n_tensors; i++)
        fwrite(p->tensors[i].data, 1, (size_t)shape_bytes(&p->tensors[i].shape), stdout);
    return err;
}

int main(int argc, char **argv)
{
    static const char *const kinds[] = {"param", "slot", "state"};
    struct peer p = {0};
    struct yk_diag why = {0};
    char line[1024], name[1000];
    if (argc < 2)
        return 2;
    yk_err err = open_peer(&p, argc, argv, &why);
    for (int32_t i = 0; !err && i < p.n_tensors; i++)
        printf("%s %s %" PRId64 "\n", kinds[p.tensors[i].kind], p.tensors[i].name, shape_count(&p.tensors[i].shape));
    if (!err && p.info.warning)
        printf("warning %s\n", p.info.warning);
    if (!err)
        printf("ready\n");
    fflush(stdout);
    while (!err && fgets(line, sizeof line, stdin)) {
        double a;
        long long n;
        if (sscanf(line, "set %999s", name) == 1)
            err = set(&p, name, &why);
        else if (sscanf(line, "run %lld %lf", &n, &a) == 2)
            err = run(&p, n, (float)a, &why);
        else if (sscanf(line, "flush %lf %lld", &a, &n) == 2)
            err = flush(&p, strtod(option(argc, argv, "clip", "0"), NULL), a, n, &why);
        else
            err = yk_fail(&why, YK_INVAL, "what is '%s'", line);
        fflush(stdout);
    }
    if (err)
        printf("error %s\n", why.text);
    close_peer(&p);
    return err ? 1 : 0;
}
