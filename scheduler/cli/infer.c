/* `yoke infer`: one sample or batch through the scheduler. */
#include "common/npy.h"
#include "scheduler/cli/images.h"
#include "scheduler/cli/job.h"
#include "scheduler/cli/rest.h"
#include "scheduler/cli/tensors.h"

#include <stdlib.h>
#include <string.h>

struct infer {
    struct json *model; /* what it takes and gives */
    const char **in, **out;
    int n_in, n_out;
    const char **in_paths;
    char **out_paths;
    struct images images; /* of the last input that is one */
    struct yk_buf scores; /* of people's runs: the .npy of the first output that has classes */
    int scored;           /* which that is; -1: none */
};

static void infer_free(struct infer *f)
{
    for (int i = 0; f->out_paths && i < f->n_out; i++)
        free(f->out_paths[i]);
    free(f->out_paths);
    free(f->in_paths);
    free(f->in);
    free(f->out);
    json_free(f->model);
    images_free(&f->images);
    yk_buf_free(&f->scores);
}

static const char **names_of(const struct json *list, int *n)
{
    *n = (int)json_len(list);
    const char **names = yk_xalloc(((size_t)*n + 1) * sizeof *names);
    for (int i = 0; i < *n; i++)
        names[i] = json_str(json_find(json_at(list, (size_t)i), "name"), "");
    return names;
}

/* Which file is which input and output. */
static yk_err pair(struct cli *c, struct infer *f, struct yk_diag *why)
{
    yk_err err = images_model(c, c->args.at[0], &f->model, why);
    if (err)
        return err;
    f->in = names_of(json_find(f->model, "inputs"), &f->n_in);
    f->out = names_of(json_find(f->model, "outputs"), &f->n_out);
    f->in_paths = yk_xalloc(((size_t)f->n_in + 1) * sizeof *f->in_paths);
    f->out_paths = yk_xalloc(((size_t)f->n_out + 1) * sizeof *f->out_paths);
    err = tensors_inputs(&c->o.inputs, f->in, f->n_in, f->in_paths, why);
    if (!err)
        err = tensors_outputs(&c->o.outputs, f->out, f->n_out, f->out_paths, why);
    return err;
}

/* The .npy of an input: a file as it is, or what becomes of images. free(file). */
static yk_err load_input(struct cli *c, struct infer *f, int i, uint8_t **file, size_t *len, struct yk_diag *why)
{
    struct npy npy;
    struct data_target target;
    struct yk_buf buf = {0};
    if (!data_holds_images(f->in_paths[i])) {
        yk_err err = cli_read_file(f->in_paths[i], (size_t)TENSORS_FILE_LIMIT, file, len, why);
        if (!err && (err = npy_parse(*file, *len, (int64_t)*len, &npy, why)))
            yk_wrap(why, err, "%s", f->in_paths[i]);
        return err;
    }
    images_target(f->model, (size_t)i, &target);
    images_free(&f->images);
    yk_err err = images_read(c, f->in_paths[i], &target, json_find(f->model, "preprocess"), &f->images, why);
    if (!err)
        err = npy_header(&f->images.shape, &buf);
    if (!err)
        yk_buf_add(&buf, f->images.data, (size_t)shape_bytes(&f->images.shape));
    if (!err && buf.failed)
        err = yk_fail(why, YK_NOMEM, "no memory to upload %s", f->in_paths[i]);
    if (err) {
        yk_buf_free(&buf);
    } else {
        *file = buf.data;
        *len = buf.len;
    }
    return err;
}

/* Uploads the inputs and puts them into the request. */
static yk_err put_inputs(struct cli *c, struct infer *f, struct json_out *out, struct yk_diag *why)
{
    yk_err err = YK_OK;
    json_put_key(out, "data");
    json_open(out, '{');
    json_put_key(out, "inputs");
    json_open(out, '{');
    for (int i = 0; i < f->n_in && !err; i++) {
        uint8_t *file = NULL;
        size_t len = 0;
        char hash[65];
        err = load_input(c, f, i, &file, &len, why);
        if (!err)
            err = cli_rest_upload(c, f->in_paths[i], file, len, hash, why);
        if (!err) {
            json_put_key(out, f->in[i]);
            json_put_str(out, hash);
        }
        free(file);
    }
    json_close(out, '}');
    json_close(out, '}');
    if (!err && !f->images.set)
        err = images_none(c, "--input", true, why);
    return err;
}

#define SHOWN 16 /* values of an output that are printed */

static void put_values(struct json_out *out, const struct npy *npy, const uint8_t *data)
{
    enum dtype t = npy->shape.dtype;
    json_put_key(out, "values");
    json_open(out, '[');
    for (int64_t k = 0; k < shape_count(&npy->shape); k++) {
        float f;
        double d;
        memcpy(&f, data + 4 * k, t == DT_F32 ? sizeof f : 0);
        memcpy(&d, data + 8 * k, t == DT_F64 ? sizeof d : 0);
        if (t == DT_F32 || t == DT_F64)
            json_put_f64(out, t == DT_F32 ? (double)f : d);
        else
            json_put_i64(out, dtype_read_int(t, data, k));
    }
    json_close(out, ']');
}

/* For people who gave a picture and no file for the answer. */
static bool wants_classes(const struct cli *c, const struct infer *f)
{
    return !c->o.json && !c->o.outputs.n && (f->images.set || c->o.labels);
}

/* One output: what it is, the values of a small one, and into its file if it has one. */
static yk_err take_output(
    struct cli *c, struct infer *f, int i, const char *id, struct json_out *out, struct yk_diag *why)
{
    struct yk_buf bytes = {0};
    struct npy npy;
    char text[160];
    yk_err err = job_output(c, id, f->out[i], &bytes, why);
    if (!err)
        err = npy_parse(bytes.data, bytes.len, (int64_t)bytes.len, &npy, why);
    if (!err && f->out_paths[i])
        err = cli_write_file(f->out_paths[i], bytes.data, bytes.len, why);
    if (!err && out) {
        json_open(out, '{');
        json_put_key(out, "name");
        json_put_str(out, f->out[i]);
        json_put_key(out, "dtype");
        json_put_str(out, dtype_name(npy.shape.dtype));
        json_put_key(out, "shape");
        json_open(out, '[');
        for (int k = 0; k < npy.shape.rank; k++)
            json_put_i64(out, npy.shape.dims[k]);
        json_close(out, ']');
        if (f->out_paths[i]) {
            json_put_key(out, "file");
            json_put_str(out, f->out_paths[i]);
        }
        enum dtype t = npy.shape.dtype;
        if (shape_count(&npy.shape) <= SHOWN && t != DT_F16 && t != DT_BF16)
            put_values(out, &npy, bytes.data + npy.offset);
        json_close(out, '}');
    } else if (!err) {
        shape_text(&npy.shape, text, sizeof text);
        printf("  %s %s%s%s\n", f->out[i], text, f->out_paths[i] ? " in " : "", f->out_paths[i] ? f->out_paths[i] : "");
        struct tensor t = {.shape = npy.shape};
        if (f->scored < 0 && wants_classes(c, f) && images_scores(&t)) {
            f->scored = i;
            f->scores = bytes;
            return YK_OK;
        }
    }
    yk_buf_free(&bytes);
    return err;
}

static yk_err show(struct cli *c, struct infer *f, const char *id, const struct json *row, struct yk_diag *why)
{
    struct yk_buf text = {0};
    struct json_out out;
    yk_err err = YK_OK;
    if (!c->o.json) {
        printf("job %s: %lld samples, %.1f samples/s\n", id, (long long)json_i64(json_find(row, "samples"), 0),
            json_f64(json_find(row, "images_per_s"), 0));
        for (int i = 0; i < f->n_out && !err; i++)
            err = take_output(c, f, i, id, NULL, why);
        return err;
    }
    json_out_init(&out, &text, 0);
    json_open(&out, '{');
    json_put_key(&out, "job");
    json_put_i64(&out, atoll(id));
    json_put_key(&out, "samples");
    json_put_i64(&out, json_i64(json_find(row, "samples"), 0));
    json_put_key(&out, "images_per_s");
    json_put_f64(&out, json_f64(json_find(row, "images_per_s"), 0));
    json_put_key(&out, "outputs");
    json_open(&out, '[');
    for (int i = 0; i < f->n_out && !err; i++)
        err = take_output(c, f, i, id, &out, why);
    json_close(&out, ']');
    json_close(&out, '}');
    if (!err)
        printf("%.*s\n", (int)text.len, (const char *)text.data);
    yk_buf_free(&text);
    return err;
}

static yk_err show_classes(struct cli *c, const struct infer *f, struct yk_diag *why)
{
    struct npy npy;
    yk_err err = npy_parse(f->scores.data, f->scores.len, (int64_t)f->scores.len, &npy, why);
    if (err)
        return err;
    struct tensor t = {.shape = npy.shape, .data = yk_try_aligned((size_t)npy.bytes + 1)};
    if (!t.data)
        return yk_fail(why, YK_NOMEM, "no memory for the scores");
    memcpy(t.data, f->scores.data + npy.offset, (size_t)npy.bytes);
    err = images_print_top(c->o.labels, &f->images, f->out[f->scored], &t, why);
    free(t.data);
    return err;
}

int cli_infer(struct cli *c)
{
    struct yk_diag why = {0};
    struct yk_buf body = {0};
    struct json_out out;
    struct json *row = NULL;
    struct infer f = {.scored = -1};
    char id[24];
    if (!c->o.inputs.n) {
        fprintf(stderr, "yoke: infer needs --input=x.npy\n");
        return CLI_USAGE;
    }
    yk_err err = pair(c, &f, &why);
    if (err)
        goto out;
    json_out_init(&out, &body, 0);
    if ((err = job_request(c, "infer", &out, &why)) || (err = put_inputs(c, &f, &out, &why)))
        goto out;
    json_put_key(&out, "outputs");
    json_put_bool(&out, true);
    json_close(&out, '}');
    if ((err = job_run(c, &body, id, NULL, NULL, &row, &why))) {
        if (c->o.json && row)
            job_print_json(row, 0);
        goto out;
    }
    err = show(c, &f, id, row, &why);
    if (!err && f.scored >= 0)
        err = show_classes(c, &f, &why);
out:
    json_free(row);
    yk_buf_free(&body);
    infer_free(&f);
    return err ? cli_fail(err, &why) : CLI_DONE;
}
