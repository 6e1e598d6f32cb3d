/* `yoke local infer`, and inputs from files. */
#include "scheduler/cli/local_infer.h"
#include "scheduler/cli/tensors.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static double now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

static void print_output(struct cli *c, const char *name, const struct dyn_value *v, double ms)
{
    char text[128];
    dyn_text(v, text, sizeof text);
    if (!c->o.json) {
        printf("%s %s  %.2f ms\n", name, text, ms);
        return;
    }
    struct yk_buf buf = {0};
    struct json_out out;
    json_out_init(&out, &buf, 0);
    json_open(&out, '{');
    json_put_key(&out, "output");
    json_put_str(&out, name);
    if (v->type == VALUE_TENSOR) {
        json_put_key(&out, "shape");
        json_open(&out, '[');
        for (int i = 0; i < v->tensor.shape.rank; i++)
            json_put_i64(&out, v->tensor.shape.dims[i]);
        json_close(&out, ']');
    }
    json_put_key(&out, "type");
    json_put_str(&out, text);
    json_put_key(&out, "ms");
    json_put_f64(&out, ms);
    json_close(&out, '}');
    printf("%.*s\n", (int)buf.len, (const char *)buf.data);
    yk_buf_free(&buf);
}

/* Names of inputs and outputs, and which file belongs to which. */
static yk_err pair_files(struct cli *c, struct infer *f, struct yk_diag *why)
{
    const struct graph *g = f->l.graph;
    f->n_in = g->n_inputs;
    f->n_out = g->n_outputs;
    f->names = yk_xalloc(((size_t)f->n_in + (size_t)f->n_out + 1) * sizeof *f->names);
    f->in_paths = yk_xalloc(((size_t)f->n_in + 1) * sizeof *f->in_paths);
    f->out_paths = yk_xalloc(((size_t)f->n_out + 1) * sizeof *f->out_paths);
    f->in = yk_xalloc(((size_t)f->n_in + 1) * sizeof *f->in);
    f->images = yk_xalloc(((size_t)f->n_in + 1) * sizeof *f->images);
    f->args = yk_xalloc(((size_t)f->n_in + 1) * sizeof(struct dyn_value *));
    f->results = yk_xalloc(((size_t)f->n_out + 1) * sizeof(struct dyn_value *));
    f->shapes = yk_xalloc(((size_t)f->n_in + 1) * sizeof *f->shapes);
    for (int i = 0; i < f->n_in; i++)
        f->names[i] = g->values[g->inputs[i]].name;
    for (int i = 0; i < f->n_out; i++)
        f->names[f->n_in + i] = g->values[g->outputs[i]].name;
    yk_err err = tensors_inputs(&c->o.inputs, f->names, f->n_in, f->in_paths, why);
    return err ? err : tensors_outputs(&c->o.outputs, f->names + f->n_in, f->n_out, f->out_paths, why);
}

static yk_err read_input(struct cli *c, struct infer *f, int i, struct yk_diag *why)
{
    struct data_target target;
    if (!data_holds_images(f->in_paths[i]))
        return tensors_read(f->in_paths[i], &f->in[i].shape, &f->in[i].data, why);
    data_target_of(f->l.graph, f->l.graph->inputs[i], &target);
    yk_err err = images_read(c, f->in_paths[i], &target, NULL, &f->images[i], why);
    if (!err) {
        f->in[i] = (struct tensor){f->images[i].shape, f->images[i].data};
        f->pictured = true;
    }
    return err;
}

static yk_err read_inputs(struct cli *c, struct infer *f, struct yk_diag *why)
{
    const struct graph *g = f->l.graph;
    yk_err err = YK_OK;
    for (int i = 0; !err && i < f->n_in; i++) {
        struct shape *shape = &f->in[i].shape;
        err = read_input(c, f, i, why);
        if (!err && g->values[g->inputs[i]].dtype == DT_BF16 && shape->dtype == DT_U16)
            shape->dtype = DT_BF16; /* as tensors_write has it */
        if (!err && g->values[g->inputs[i]].dtype == DT_F32 && shape->dtype == DT_U8 && shape->rank >= 3)
            err = tensors_pixels(shape, &f->in[i].data, why);
        f->shapes[i] = shape;
    }
    if (!err && !f->pictured)
        err = images_none(c, "--input", true, why);
    if (!err)
        err = local_sizes(g, f->shapes, f->l.sizes, why);
    return err ? err : local_agree(&f->l, why);
}

/* For people who gave a picture and no file for the answer. */
static yk_err show_classes(
    struct cli *c, const struct infer *f, const char *name, const struct tensor *t, bool *shown, struct yk_diag *why)
{
    if (*shown || c->o.json || c->o.outputs.n || !(f->pictured || c->o.labels) || !images_scores(t))
        return YK_OK;
    *shown = true;
    int i = 0;
    while (i + 1 < f->n_in && !f->images[i].set)
        i++;
    return images_print_top(c->o.labels, &f->images[i], name, t, why);
}

yk_err local_infer_load(struct cli *c, struct infer *f, struct yk_diag *why)
{
    struct local *l = &f->l;
    yk_err err = pair_files(c, f, why);
    if (err || (err = read_inputs(c, f, why)))
        return err;
    l->input_shapes = f->shapes;
    if ((err = local_load(l, l->batch_dim >= 0 ? l->sizes[l->batch_dim] : l->fixed_batch, why)))
        return err;
    for (int i = 0; i < f->n_in; i++)
        if ((err = dyn_borrow(NULL, &f->in[i], &f->args[i], why)))
            return err;
    return YK_OK;
}

static yk_err infer(struct cli *c, struct infer *f, struct yk_diag *why)
{
    struct local *l = &f->l;
    yk_err err = local_open(c, c->args.at[0], l, why);
    if (err || (err = local_infer_load(c, f, why)))
        return err;
    double start = now_ms();
    if ((err = exec_run_values(l->exec, l->sizes, f->args, f->results, 0, why)))
        return err;
    double ms = now_ms() - start;
    bool shown = false;
    for (int i = 0; !err && i < f->n_out; i++) {
        const struct dyn_value *v = f->results[i];
        print_output(c, f->names[f->n_in + i], v, ms);
        if (v->type == VALUE_TENSOR && (err = show_classes(c, f, f->names[f->n_in + i], &v->tensor, &shown, why)))
            return err;
        if (f->out_paths[i] && v->type != VALUE_TENSOR)
            err = yk_fail(
                why, YK_UNSUPPORTED, "output '%s' is no tensor: a .npy file cannot hold it", f->names[f->n_in + i]);
        else if (f->out_paths[i])
            err = tensors_write(f->out_paths[i], &v->tensor.shape, v->tensor.data, why);
    }
    return err;
}

void local_infer_fini(struct infer *f)
{
    for (int i = 0; i < f->n_in; i++) {
        dyn_unref(f->args[i]);
        if (!f->images[i].set)
            free(f->in[i].data);
        images_free(&f->images[i]);
    }
    for (int i = 0; i < f->n_out; i++) {
        dyn_unref(f->results[i]);
        free(f->out_paths[i]);
    }
    free(f->results);
    free(f->args);
    free(f->in);
    free(f->shapes);
    free(f->images);
    free(f->in_paths);
    free(f->out_paths);
    free(f->names);
    local_close(&f->l);
}

int cli_local_infer(struct cli *c)
{
    struct yk_diag why = {0};
    struct infer f = {0};
    yk_err err = infer(c, &f, &why);
    local_infer_fini(&f);
    return err ? cli_fail(err, &why) : CLI_DONE;
}
