#include "scheduler/cli/images.h"

#include "scheduler/cli/job.h"
#include "scheduler/cli/rest.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define INPUT_LIMIT ((int64_t)4 << 30)
#define LABELS_LIMIT ((size_t)16 << 20)
#define TOP 5

static yk_err use_file(const char *path, struct preprocess *out, struct yk_diag *why)
{
    uint8_t *text = NULL;
    size_t len = 0;
    yk_err err = cli_read_file(path, PREPROCESS_JSON_LIMIT, &text, &len, why);
    if (!err && (err = preprocess_parse_text((char *)text, len, out, why)))
        yk_wrap(why, err, "%s", path);
    free(text);
    return err;
}

yk_err images_settings(
    struct cli *c, const struct json *stored, bool normal, struct preprocess *out, bool *asked, struct yk_diag *why)
{
    const struct cli_opts *o = &c->o;
    const struct {
        const char *key, *text;
        bool shared; /* other data sets know it too */
    } flags[] = {{"preset", o->preset, false}, {"resize", o->resize, false}, {"crop", o->crop, false},
        {"interpolation", o->interpolation, false}, {"mean", o->mean, true}, {"std", o->std, true}};
    yk_err err = YK_OK;
    preprocess_init(out);
    *asked = o->preprocess != NULL;
    if (!o->preprocess && stored && json_kind(stored) == JSON_OBJECT)
        err = preprocess_parse(stored, out, why);
    else if (o->preprocess && strcmp(o->preprocess, "none") != 0)
        err = use_file(o->preprocess, out, why);
    for (size_t i = 0; !err && i < YK_COUNT(flags); i++) {
        if (!flags[i].text || (flags[i].shared && !normal))
            continue;
        *asked = true;
        if ((err = preprocess_set(out, flags[i].key, flags[i].text, why)))
            yk_wrap(why, err, "--%s", flags[i].key);
    }
    return err;
}

yk_err images_none(const struct cli *c, const char *of, bool normal, struct yk_diag *why)
{
    static const char *const flags[] = {"preset", "preprocess", "resize", "crop", "interpolation", "mean", "std"};
    for (size_t i = 0; i < (normal ? YK_COUNT(flags) : YK_COUNT(flags) - 2); i++)
        if (conf_given(&c->args, flags[i]))
            return yk_fail(
                why, YK_INVAL, "--%s is for images, and %s holds no JPEG or PNG: leave it out", flags[i], of);
    return YK_OK;
}

yk_err images_model(struct cli *c, const char *name, struct json **model, struct yk_diag *why)
{
    char *word = job_percent(name), *path = yk_xasprintf("/v1/models/%s", word);
    yk_err err = cli_rest_call(c, "GET", path, NULL, model, why);
    free(path);
    free(word);
    return err;
}

void images_target(const struct json *model, size_t input, struct data_target *out)
{
    const struct json *in = json_at(json_find(model, "inputs"), input), *dims = json_find(in, "dims");
    *out = (struct data_target){.rank = -1};
    if (!in || json_kind(dims) != JSON_ARRAY || json_len(dims) > YK_MAX_RANK)
        return;
    out->dtype = dtype_find(json_str(json_find(in, "dtype"), ""));
    out->rank = (int)json_len(dims);
    for (int i = 0; i < out->rank; i++)
        out->dims[i] = YK_MAX(json_i64(json_at(dims, (size_t)i), 0), 0);
}

void images_note(const struct data_set *set)
{
    const char *note = data_note(set);
    if (note && note[0])
        fprintf(stderr, "yoke: %s\n", note);
}

yk_err images_read(struct cli *c, const char *path, const struct data_target *target, const struct json *stored,
    struct images *out, struct yk_diag *why)
{
    struct preprocess how;
    bool asked;
    yk_err err = images_settings(c, stored, true, &how, &asked, why);
    if (err)
        return err;
    struct images in = {0};
    struct data_options o = {.preprocess = &how, .target = target};
    if ((err = data_open(path, &o, &in.set, why)))
        return err;
    int64_t count = data_count(in.set);
    in.shape = *data_sample(in.set);
    if (!data_name(in.set, 0)) {
        err = yk_fail(why, YK_INVAL, "%s holds a data set, not images: `yoke batch` runs it", path);
        goto out;
    }
    memmove(in.shape.dims + 1, in.shape.dims, (size_t)in.shape.rank * sizeof in.shape.dims[0]);
    in.shape.dims[0] = count;
    in.shape.rank++;
    int64_t bytes = shape_bytes(&in.shape);
    if (bytes < 0 || bytes > INPUT_LIMIT) {
        err = yk_fail(why, YK_LIMIT,
            "%s: %" PRId64 " images are more than the limit of %" PRId64 " bytes for one input: use `yoke batch`", path,
            count, INPUT_LIMIT);
        goto out;
    }
    in.data = yk_try_aligned((size_t)bytes + 1);
    if (!in.data) {
        err = yk_fail(why, YK_NOMEM, "no memory for the %" PRId64 " images of %s", count, path);
        goto out;
    }
    if (!(err = data_read(in.set, 0, count, in.data, NULL, why)))
        images_note(in.set);
out:
    if (err)
        images_free(&in);
    else
        *out = in;
    return err;
}

void images_free(struct images *i)
{
    free(i->data);
    data_close(i->set);
    *i = (struct images){0};
}

/* ---- classes ---- */

bool images_scores(const struct tensor *t)
{
    return t->shape.dtype == DT_F32 && t->shape.rank == 2 && t->shape.dims[1] > 1;
}

struct names {
    char *text, **at;
    int64_t n;
};

/* A name a line. */
static yk_err read_names(const char *path, int64_t want, struct names *out, struct yk_diag *why)
{
    uint8_t *text = NULL;
    size_t len = 0;
    yk_err err = cli_read_file(path, LABELS_LIMIT, &text, &len, why);
    if (err)
        return err;
    out->text = (char *)text; /* a byte longer than the file, and zeroed */
    out->at = yk_xalloc(((size_t)want + 1) * sizeof *out->at);
    for (char *rest = out->text, *line; *rest;) {
        line = strsep(&rest, "\n");
        line[strcspn(line, "\r")] = '\0';
        if (out->n < want)
            out->at[out->n] = line;
        out->n++;
        if (!rest)
            break;
    }
    if (out->n != want)
        err = yk_fail(why, YK_INVAL,
            "%s has %" PRId64 " names, the model %" PRId64 " classes: one name a line, in order", path, out->n, want);
    return err;
}

static void print_row(const float *z, int64_t classes, const struct names *names)
{
    int64_t best[TOP];
    int n = 0;
    for (int64_t k = 0; k < classes; k++) {
        int at = n;
        while (at > 0 && z[k] > z[best[at - 1]])
            at--;
        if (at == TOP)
            continue;
        n = YK_MIN(n + 1, TOP);
        memmove(best + at + 1, best + at, (size_t)(n - 1 - at) * sizeof *best);
        best[at] = k;
    }
    for (int i = 0; i < n; i++)
        printf("  %6" PRId64 "  %12.6g%s%s\n", best[i], (double)z[best[i]], names->at ? "  " : "",
            names->at ? names->at[best[i]] : "");
}

yk_err images_print_top(
    const char *labels, const struct images *in, const char *output, const struct tensor *t, struct yk_diag *why)
{
    struct names names = {0};
    int64_t classes = t->shape.dims[1];
    yk_err err = labels ? read_names(labels, classes, &names, why) : YK_OK;
    for (int64_t i = 0; !err && i < t->shape.dims[0]; i++) {
        const char *name = in->set ? data_name(in->set, i) : NULL;
        printf("%s: best of %" PRId64 " classes in '%s'\n", name ? name : "input", classes, output);
        print_row((const float *)t->data + i * classes, classes, &names);
    }
    free(names.text);
    free(names.at);
    return err;
}
