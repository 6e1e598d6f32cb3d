/* The file is $XDG_CACHE_HOME/yoke/forms-KEY.json (else ~/.cache), KEY by backends, instruction set and threads:
 * {"device": TEXT, "forms": {SIGNATURE: FORM, ...}}. A form in it that a node does not have is measured again. */
#include "scheduler/cli/tune.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include "common/log.h"
#include "kernels/profile.h"
#include "kernels/simd_isa.h"

#define FILE_LIMIT ((size_t)16 << 20)
#define BUDGET_MS 20000.0
#define ROUNDS 5

static uint64_t fnv(const void *data, size_t n)
{
    const uint8_t *p = data;
    uint64_t h = 1469598103934665603u;
    for (size_t i = 0; i < n; i++)
        h = (h ^ p[i]) * 1099511628211u;
    return h;
}

static char *device_text(const struct local *l)
{
    struct yk_buf b = {0};
    yk_buf_printf(&b, "%s, %d threads", simd_isa_best()->name, pool_threads(l->pool));
    for (int i = 0; i < l->backends.n; i++)
        yk_buf_printf(&b, ", %s@%s", l->backends.at[i]->ops->name, l->backends.at[i]->ops->isa(l->backends.at[i]));
    yk_buf_add(&b, "", 1);
    return b.failed ? NULL : (char *)b.data;
}

/* NULL where there is no home. */
static char *folder(void)
{
    const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    if (cache && cache[0] == '/')
        return yk_xasprintf("%s/yoke", cache);
    return home && home[0] == '/' ? yk_xasprintf("%s/.cache/yoke", home) : NULL;
}

/* ---- what is remembered ---- */

struct known {
    char signature[17];
    char form[BACKEND_FORM_MAX];
};

struct tune {
    struct local *l;
    const struct grad_info *training; /* NULL: inference */
    struct shapes shapes;
    struct op_ctx *c;
    char (*signature)[17];                                      /* by node; "" if it has no choice */
    char (*form)[BACKEND_FORM_MAX], (*fixed)[BACKEND_FORM_MAX]; /* chosen, and by the static rule */
    double *ms;
    struct known *known;
    size_t n_known;
    char *device, *path;
};

static struct known *find(struct tune *t, const char *signature)
{
    for (size_t i = 0; i < t->n_known; i++)
        if (strcmp(t->known[i].signature, signature) == 0)
            return &t->known[i];
    return NULL;
}

static void remember(struct tune *t, const char *signature, const char *form)
{
    struct known *k = find(t, signature);
    if (!k) {
        if ((t->n_known & (t->n_known - 1)) == 0)
            t->known = yk_xrealloc(t->known, YK_MAX(2 * t->n_known, 1) * sizeof *t->known);
        k = &t->known[t->n_known++];
        snprintf(k->signature, sizeof k->signature, "%s", signature);
    }
    snprintf(k->form, sizeof k->form, "%s", form);
}

static void read_known(struct tune *t)
{
    struct json *doc = NULL;
    struct yk_diag why = {""};
    struct stat st;
    if (!t->path || stat(t->path, &st) != 0)
        return;
    if (json_load(t->path, FILE_LIMIT, &doc, &why)) {
        log_warn("measured forms are not read: %s", why.text);
        return;
    }
    const struct json *forms = json_find(doc, "forms");
    for (size_t i = 0; !strcmp(json_str(json_find(doc, "device"), ""), t->device) && i < json_len(forms); i++)
        if (strlen(json_key(forms, i)) == 16)
            remember(t, json_key(forms, i), json_str(json_find(forms, json_key(forms, i)), ""));
    json_free(doc);
}

static void write_known(struct tune *t)
{
    struct yk_buf text = {0};
    struct json_out out;
    struct yk_diag why = {""};
    if (!t->path)
        return;
    for (char *slash = strchr(t->path + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = 0;
        int failed = mkdir(t->path, 0700) != 0 && errno != EEXIST;
        *slash = '/';
        if (failed)
            break;
    }
    json_out_init(&out, &text, 0);
    json_open(&out, '{');
    json_put_key(&out, "device");
    json_put_str(&out, t->device);
    json_put_key(&out, "forms");
    json_open(&out, '{');
    for (size_t i = 0; i < t->n_known; i++) {
        json_put_key(&out, t->known[i].signature);
        json_put_str(&out, t->known[i].form);
    }
    json_close(&out, '}');
    json_close(&out, '}');
    if (!text.failed && cli_write_file(t->path, text.data, text.len, &why))
        log_warn("measured forms are not kept: %s", why.text);
    yk_buf_free(&text);
}

/* ---- choosing ---- */

static void node_of(struct tune *t, int32_t node)
{
    shapes_node(t->l->graph, &t->shapes, node, t->c);
    t->c->weights_vary = t->training != NULL;
}

/* Signatures and forms of the static rule; nodes without a second form of the same backend have none to choose. */
static yk_err look(struct tune *t, struct yk_diag *why)
{
    struct yk_buf key = {0};
    const struct graph *g = t->l->graph;
    for (int32_t i = 0; i < g->n_nodes; i++) {
        struct backend_form forms[16], one;
        if (t->shapes.dynamic[i])
            continue;
        node_of(t, i);
        int n = backends_forms(&t->l->backends, t->c, forms, 16), same = 0;
        if (n < 1)
            continue;
        memcpy(t->fixed[i], forms[0].name, sizeof t->fixed[i]);
        memcpy(t->form[i], forms[0].name, sizeof t->form[i]);
        const struct backend *first = backends_form_find(&t->l->backends, t->c, forms[0].name, &one);
        for (int k = 0; k < n; k++)
            same += backends_form_find(&t->l->backends, t->c, forms[k].name, &one) == first;
        if (same < 2)
            continue;
        profile_signature(t->c, &key);
        if (key.failed) {
            yk_buf_free(&key);
            return yk_fail(why, YK_NOMEM, "no memory to choose forms");
        }
        snprintf(t->signature[i], sizeof t->signature[i], "%016" PRIx64, fnv(key.data, key.len));
    }
    yk_buf_free(&key);
    return YK_OK;
}

static bool has_form(struct tune *t, int32_t node, const char *form)
{
    struct backend_form one, first;
    node_of(t, node);
    const struct backend *b = backends_form_find(&t->l->backends, t->c, form, &one);
    return b && b == backends_form_find(&t->l->backends, t->c, t->fixed[node], &first);
}

/* True if all choices are remembered. */
static bool recall(struct tune *t)
{
    bool all = true;
    for (int32_t i = 0; i < t->l->graph->n_nodes; i++) {
        const struct known *k = t->signature[i][0] ? find(t, t->signature[i]) : NULL;
        if (k && has_form(t, i, k->form))
            memcpy(t->form[i], k->form, sizeof t->form[i]);
        else
            all = all && !t->signature[i][0];
    }
    return all;
}

static void on_entry(void *arg, const struct profile_entry *e)
{
    struct tune *t = arg;
    if (!t->signature[e->node][0] || !has_form(t, e->node, e->form) || (t->ms[e->node] > 0 && e->ms >= t->ms[e->node]))
        return;
    t->ms[e->node] = e->ms;
    snprintf(t->form[e->node], sizeof t->form[e->node], "%s", e->form);
}

static double now_ms(void)
{
    struct timespec s;
    clock_gettime(CLOCK_MONOTONIC, &s);
    return (double)s.tv_sec * 1e3 + (double)s.tv_nsec * 1e-6;
}

/* Where the weights lie that a training changes; here nothing does. free() it. */
static void **variable_weights(const struct tune *t)
{
    const struct graph *g = t->l->graph;
    void **at = t->training ? yk_xalloc(((size_t)g->n_values + 1) * sizeof *at) : NULL;
    for (int32_t i = 0; at && i < t->training->n_params; i++)
        if (t->training->params[i].trainable)
            at[t->training->params[i].value] = (void *)(uintptr_t)g->values[t->training->params[i].value].data;
    return at;
}

/* The least time of a run of the whole graph with these forms on zeros; 0 if it cannot be run like that. */
static double whole_ms(struct tune *t, char (*form)[BACKEND_FORM_MAX])
{
    const struct graph *g = t->l->graph;
    const char **forms = yk_xalloc(((size_t)g->n_nodes + 1) * sizeof *forms);
    void **variable = variable_weights(t);
    struct exec_config config = {.graph = g,
        .variable = variable,
        .max_sizes = t->l->sizes,
        .input_shapes = t->l->input_shapes,
        .backends = &t->l->backends};
    struct dyn_value **in = yk_xalloc(((size_t)g->n_inputs + 1) * sizeof(struct dyn_value *));
    struct dyn_value **out = yk_xalloc(((size_t)g->n_outputs + 1) * sizeof(struct dyn_value *));
    struct exec *e = NULL;
    struct yk_diag why;
    double best = 0;
    for (int32_t i = 0; i < g->n_nodes; i++)
        forms[i] = form[i][0] ? form[i] : NULL;
    config.forms = forms;
    yk_err err = exec_open(&config, &e, &why);
    for (int32_t k = 0; !err && k < g->n_inputs; k++) {
        const struct shape *s = &t->shapes.of[g->inputs[k]];
        if (g->values[g->inputs[k]].type != VALUE_TENSOR || s->rank < 0)
            err = YK_UNSUPPORTED;
        else if (!(err = dyn_tensor(NULL, s, &in[k], &why)))
            memset(in[k]->tensor.data, 0, (size_t)tensor_bytes(&in[k]->tensor));
        if (!err && t->training && k == t->training->divisor_input)
            *(float *)in[k]->tensor.data = 1;
    }
    for (int i = 0; !err && i <= ROUNDS; i++) {
        double before = now_ms();
        err = exec_run_values(e, t->l->sizes, in, out, 0, &why);
        double ms = now_ms() - before;
        best = !err && i > 0 && (best == 0 || ms < best) ? ms : best;
        for (int32_t k = 0; !err && k < g->n_outputs; k++) {
            dyn_unref(out[k]);
            out[k] = NULL;
        }
    }
    for (int32_t k = 0; k < g->n_inputs; k++)
        dyn_unref(in[k]);
    exec_close(e);
    free(variable);
    free(forms);
    free(in);
    free(out);
    return err ? 0 : best;
}

static yk_err measure(struct tune *t, struct yk_diag *why)
{
    const struct graph *g = t->l->graph;
    int64_t size = t->l->batch_dim >= 0 ? t->l->sizes[t->l->batch_dim] : YK_MAX(t->l->fixed_batch, 1);
    yk_err err = profile_graph(
        g, &t->l->backends, &size, 1, t->l->sizes, t->training != NULL, BUDGET_MS, 0, NULL, on_entry, t, why);
    if (err)
        return err;
    /* What is best alone need not be in company. */
    double fixed = whole_ms(t, t->fixed), tuned = whole_ms(t, t->form);
    bool better = tuned > 0 && tuned < fixed;
    for (int32_t i = 0; i < g->n_nodes; i++) {
        if (!better)
            memcpy(t->form[i], t->fixed[i], sizeof t->form[i]);
        if (t->signature[i][0])
            remember(t, t->signature[i], t->form[i]);
    }
    log_info("measured forms: %.2f ms, by the static rule %.2f ms", tuned, fixed);
    write_known(t);
    return YK_OK;
}

yk_err tune_forms(struct local *l, const struct grad_info *training, struct yk_diag *why)
{
    const struct graph *g = l->graph;
    size_t n = (size_t)g->n_nodes + 1;
    struct tune t = {.l = l, .training = training, .device = device_text(l)};
    char *in = folder();
    if (!t.device) {
        free(in);
        return yk_fail(why, YK_NOMEM, "no memory to choose forms");
    }
    yk_err err = shapes_infer(g, l->sizes, l->input_shapes, &t.shapes, why);
    if (err) {
        free(in);
        free(t.device);
        return err;
    }
    t.path = in ? yk_xasprintf("%s/forms-%016" PRIx64 ".json", in, fnv(t.device, strlen(t.device))) : NULL;
    t.c = yk_xalloc(sizeof *t.c);
    t.signature = yk_xalloc(n * sizeof *t.signature);
    t.form = yk_xalloc(n * sizeof *t.form);
    t.fixed = yk_xalloc(n * sizeof *t.fixed);
    t.ms = yk_xalloc(n * sizeof *t.ms);
    err = look(&t, why);
    if (!err)
        read_known(&t);
    if (!err && !recall(&t))
        err = measure(&t, why);
    if (!err) {
        l->tuned = yk_xalloc(n * sizeof *l->tuned);
        l->forms = yk_xalloc(n * sizeof *l->forms);
        memcpy(l->tuned, t.form, n * sizeof *l->tuned);
        for (int32_t i = 0; i < g->n_nodes; i++)
            l->forms[i] = l->tuned[i][0] ? l->tuned[i] : NULL;
    }
    shapes_fini(&t.shapes);
    free(t.c);
    free(t.signature);
    free(t.form);
    free(t.fixed);
    free(t.ms);
    free(t.known);
    free(t.device);
    free(t.path);
    free(in);
    return err;
}
