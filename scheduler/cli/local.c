#include "scheduler/cli/local.h"

#include "common/hash.h"
#include "common/onnx.h"
#include "common/passes.h"
#include "kernels/fold.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PLAN_FILE_LIMIT ((size_t)64 << 20)

static yk_err use_plan(struct local *l, const char *path, struct yk_diag *why)
{
    struct json *doc = NULL;
    yk_err err = json_load(path, PLAN_FILE_LIMIT, &doc, why);
    if (!err)
        err = plan_from_json(doc, &l->plan, why);
    json_free(doc);
    if (err)
        return yk_wrap(why, err, "%s", path);
    if (strcmp(l->plan->graph_hash, l->hash) != 0)
        return yk_fail(why, YK_INVAL, "%s is a plan of graph %.12s..., this model's graph is %.12s...: plan it again",
            path, l->plan->graph_hash, l->hash);
    if (!l->plan->forms)
        return YK_OK;
    if (l->plan->n_forms != l->graph->n_nodes)
        return yk_fail(
            why, YK_INVAL, "%s names %d forms, the graph has %d nodes", path, l->plan->n_forms, l->graph->n_nodes);
    l->forms = yk_xalloc(((size_t)l->graph->n_nodes + 1) * sizeof *l->forms);
    for (int32_t i = 0; i < l->graph->n_nodes; i++)
        l->forms[i] = l->plan->forms[i];
    return YK_OK;
}

yk_err local_open(struct cli *c, const char *path, struct local *l, struct yk_diag *why)
{
    struct yk_buf problems = {0}, skeleton = {0};
    *l = (struct local){0};
    yk_err err = onnx_import(path, &l->graph, &problems, why);
    if (err && problems.len)
        fprintf(stderr, "%.*s", (int)problems.len, (const char *)problems.data);
    yk_buf_free(&problems);
    if (err)
        goto out;
    if ((err = passes_infer(l->graph, fold_eval, NULL, why)))
        goto out;
    if (c->o.plan) {
        if ((err = onnx_export_skeleton(l->graph, &skeleton, why)))
            goto out;
        yk_hex(l->graph->hash, sizeof l->graph->hash, l->hash);
        if ((err = use_plan(l, c->o.plan, why)))
            goto out;
    }
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    int threads = c->o.threads > 0 ? (int)c->o.threads : cores > 0 ? (int)cores : 1;
    if ((err = pool_open(threads, &l->pool, why)) || (err = backends_open(c->o.backend, l->pool, &l->backends, why)))
        goto out;
    l->batch_dim = graph_batch_dim(l->graph, &l->fixed_batch);
    l->sizes = yk_xalloc(((size_t)l->graph->n_syms + 1) * sizeof *l->sizes);
    for (int32_t i = 0; i < l->graph->n_syms; i++)
        l->sizes[i] = 1;
out:
    yk_buf_free(&skeleton);
    return err;
}

yk_err local_load(struct local *l, int64_t max_batch, struct yk_diag *why)
{
    if (l->batch_dim >= 0)
        l->sizes[l->batch_dim] = max_batch;
    else if (max_batch != l->fixed_batch)
        return yk_fail(why, YK_INVAL,
            "the model takes batches of exactly %lld, not %lld: export it with a dynamic batch",
            (long long)l->fixed_batch, (long long)max_batch);
    struct exec_config config = {.graph = l->graph,
        .forms = l->forms,
        .max_sizes = l->sizes,
        .input_shapes = l->input_shapes,
        .backends = &l->backends};
    exec_close(l->exec);
    l->exec = NULL;
    return exec_open(&config, &l->exec, why);
}

void local_close(struct local *l)
{
    exec_close(l->exec);
    backends_close(&l->backends);
    pool_close(l->pool);
    plan_free(l->plan);
    free(l->forms);
    free(l->sizes);
    graph_close(l->graph);
}

yk_err local_input_shape(const struct local *l, int32_t input, int64_t batch, struct shape *out, struct yk_diag *why)
{
    const struct value *v = &l->graph->values[l->graph->inputs[input]];
    if (v->rank < 0)
        return yk_fail(why, YK_INVAL, "input '%s' has no declared shape", v->name);
    *out = (struct shape){.dtype = v->dtype, .rank = v->rank};
    for (int i = 0; i < v->rank; i++) {
        int32_t sym = v->dims[i].sym;
        out->dims[i] = sym < 0 ? v->dims[i].value : sym == l->batch_dim ? batch : l->sizes[sym];
    }
    return YK_OK;
}

yk_err local_outputs_alloc(struct local *l, const int64_t *sizes, struct tensor **out, struct yk_diag *why)
{
    const struct memplan *plan = exec_plan(l->exec);
    const struct shapes *shapes;
    yk_err err = exec_sizes(l->exec, sizes, &shapes, why);
    if (err)
        return err;
    struct tensor *tensors = yk_xalloc(((size_t)plan->n_out + 1) * sizeof *tensors);
    for (int32_t i = 0; i < plan->n_out; i++) {
        tensors[i].shape = shapes->of[plan->out[i]];
        int64_t bytes = tensor_bytes(&tensors[i]);
        tensors[i].data = bytes < 0 ? NULL : yk_try_aligned((size_t)bytes + 1);
        if (!tensors[i].data) {
            while (i-- > 0)
                free(tensors[i].data);
            free(tensors);
            return yk_fail(why, YK_NOMEM, "no memory for the outputs");
        }
    }
    *out = tensors;
    return YK_OK;
}
