/* `yoke model new`: a network with initial values as an ONNX file. */
#include "common/onnx.h"
#include "scheduler/cli/cli.h"
#include "scheduler/cli/networks.h"

#include <inttypes.h>
#include <stdlib.h>

/* "3x32x32" */
static bool read_input(const char *text, struct networks_options *o)
{
    int64_t *to[] = {&o->channels, &o->height, &o->width};
    for (int i = 0; i < 3; i++) {
        char *end;
        if (*text < '0' || *text > '9')
            return false;
        long long n = strtoll(text, &end, 10);
        if (end == text || end - text > 9 || *end != (i < 2 ? 'x' : '\0'))
            return false;
        *to[i] = n;
        text = end + 1;
    }
    return true;
}

static void print_json(struct cli *c, int32_t nodes, int64_t weights)
{
    struct yk_buf b = {0};
    struct json_out out;
    json_out_init(&out, &b, 0);
    json_open(&out, '{');
    json_put_key(&out, "file");
    json_put_str(&out, c->args.at[1]);
    json_put_key(&out, "kind");
    json_put_str(&out, c->args.at[0]);
    json_put_key(&out, "nodes");
    json_put_i64(&out, nodes);
    json_put_key(&out, "weights");
    json_put_i64(&out, weights);
    json_close(&out, '}');
    if (!b.failed)
        printf("%.*s\n", (int)b.len, (const char *)b.data);
    yk_buf_free(&b);
}

int cli_model_new(struct cli *c)
{
    struct yk_diag why = {0};
    struct yk_buf file = {0};
    struct graph *g = NULL;
    struct networks_options o = {.classes = c->o.classes, .seed = (uint64_t)c->o.seed};
    if (!c->o.input_size || !read_input(c->o.input_size, &o)) {
        fprintf(stderr, "yoke: model new needs --input=CxHxW, as in --input=3x32x32%s%s\n",
            c->o.input_size ? ", not " : "", c->o.input_size ? c->o.input_size : "");
        return CLI_USAGE;
    }
    yk_err err = networks_make(c->args.at[0], &o, &g, &why);
    if (err == YK_INVAL)
        yk_wrap(&why, err, "--input=%s", c->o.input_size);
    if (err == YK_NOTFOUND || err == YK_INVAL) {
        cli_fail(err, &why);
        return CLI_USAGE;
    }
    if (!err)
        err = onnx_export(g, &file, &why);
    if (!err)
        err = cli_write_file(c->args.at[1], file.data, file.len, &why);
    if (!err) {
        int64_t parameters = 0;
        for (int32_t i = 0; i < g->n_values; i++)
            if (g->values[i].kind == VALUE_WEIGHT && g->values[i].dtype == DT_F32)
                parameters += shape_count(&g->values[i].shape);
        if (c->o.json)
            print_json(c, g->n_nodes, parameters);
        else
            printf(
                "%s: %s of %d nodes, %" PRId64 " weights\n", c->args.at[1], c->args.at[0], (int)g->n_nodes, parameters);
    }
    yk_buf_free(&file);
    graph_close(g);
    return err ? cli_fail(err, &why) : CLI_DONE;
}
