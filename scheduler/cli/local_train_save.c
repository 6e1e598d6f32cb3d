/* Checkpoints of a local training, and going on from one. */
#include "agent/checkpoint.h"
#include "common/hash.h"
#include "common/onnx.h"
#include "scheduler/cli/local_train.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define PREFIX "checkpoint"
#define KEPT 2

static void put_number(struct yk_buf *text, const char *key, double v)
{
    char digits[40];
    for (int n = 6; n <= 17; n++) {
        snprintf(digits, sizeof digits, "%.*g", n, v);
        if (strtod(digits, NULL) == v)
            break;
    }
    yk_buf_printf(text, "%s %s\n", key, digits);
}

/* What decides on numbers, a line for each thing: another choice is another training. Steps behind the ones that are
 * done may be added, unless the schedule looks at the last one. */
static void put_config(const struct local_train *t, struct yk_buf *text)
{
    const struct cli_opts *o = &t->cli->o;
    const struct sampler *s = &t->batches.sampler;
    struct train_config c = t->ask;
    char word[32], sample[128], hash[HASH_HEX_SIZE];
    c.checkpoint_every = 0;
    if (c.schedule != TRAIN_COSINE)
        c.epochs = 0;
#define I(key, ...) yk_buf_printf(text, #key " %" PRId64 "\n", c.key);
#define F(key, ...) put_number(text, #key, c.key);
#define B(key, ...) yk_buf_printf(text, #key " %s\n", c.key ? "on" : "off");
#define W(key, words, ...)                              \
    train_config_word(words, c.key, word, sizeof word); \
    yk_buf_printf(text, #key " %s\n", word);
#define S(key, ...) yk_buf_printf(text, #key " %s\n", c.key ? c.key : "none");
    TRAIN_CONFIG(I, F, F, B, W, S)
#undef I
#undef F
#undef B
#undef W
#undef S
    for (int i = 0; i < c.n_freeze; i++)
        yk_buf_printf(text, "freeze[%d] %s\n", i, c.freeze[i]);
    yk_buf_printf(text, "batch %" PRId64 "\nmicrobatch %" PRId64 "\n", s->batch, t->microbatch);
    yk_buf_printf(text, "samples %" PRId64 "\nsamples held out %" PRId64 "\n", s->samples, s->held);
    for (int i = 0, n = data_inputs(t->set); i < n; i++) {
        shape_text(data_sample_of(t->set, i), sample, sizeof sample);
        yk_buf_printf(text, "a sample %s\n", sample);
    }
    const struct {
        const char *flag, *value;
    } pixels[] = {{"mean", o->mean}, {"std", o->std}, {"preset", o->preset}, {"preprocess", o->preprocess},
        {"resize", o->resize}, {"crop", o->crop}, {"interpolation", o->interpolation}};
    for (size_t i = 0; i < YK_COUNT(pixels); i++)
        yk_buf_printf(text, "%s %s\n", pixels[i].flag, pixels[i].value ? pixels[i].value : "none");
    for (int32_t i = 0; t->env.forms && i < t->graph->n_nodes; i++)
        yk_buf_printf(text, "form of node %d %s\n", (int)i, t->env.forms[i]);
    hash_hex(t->graph->hash, sizeof t->graph->hash, hash);
    yk_buf_printf(text, "the model's graph %s\n", hash);
}

#define DATA_LINE "the data's fingerprint "
#define PATH_LINE "the data's path "

/* A text with its end. */
static void hash_text(const void *text, size_t len, uint8_t out[HASH_BYTES])
{
    struct hash h;
    hash_init(&h);
    hash_update(&h, text, len);
    hash_update(&h, "", 1);
    hash_final(&h, out);
}

/* The line of the data is the last that is hashed, so that checkpoints from before there was one are known: theirs is
 * the hash of what stands above it. Data may be moved: where they were is for messages. */
static yk_err hash_config(struct local_train *t, uint8_t without_data[HASH_BYTES], struct yk_diag *why)
{
    struct yk_buf text = {0}, skeleton = {0};
    uint8_t data[HASH_BYTES];
    char hex[HASH_HEX_SIZE];
    yk_err err = onnx_export_skeleton(t->graph, &skeleton, why);
    yk_buf_free(&skeleton);
    if (err || (err = data_fingerprint(t->set, data, why)))
        return err;
    put_config(t, &text);
    size_t above = text.len;
    hash_hex(data, sizeof data, hex);
    yk_buf_printf(&text, DATA_LINE "%s\n", hex);
    size_t len = text.len;
    yk_buf_printf(&text, PATH_LINE "%s\n", t->cli->o.data);
    yk_buf_add(&text, "", 1);
    if (text.failed) {
        yk_buf_free(&text);
        return yk_fail(why, YK_NOMEM, "no memory");
    }
    hash_text(text.data, above, without_data);
    hash_text(text.data, len, t->config);
    t->config_text = (char *)text.data;
    return YK_OK;
}

/* What follows the key in the text, up to the end of the line; its length. */
static int line_of(const char *text, const char *key, const char **out)
{
    const char *at = strstr(text, key);
    *out = at ? at + strlen(key) : "";
    return (int)strcspn(*out, "\n");
}

static yk_err other_data(const char *was, const char *is, struct yk_diag *why)
{
    const char *path[2], *print[2];
    int n[2], digits[2];
    for (int i = 0; i < 2; i++) {
        n[i] = YK_MIN(line_of(i ? is : was, PATH_LINE, &path[i]), 120);
        digits[i] = YK_MIN(line_of(i ? is : was, DATA_LINE, &print[i]), 12);
    }
    return yk_fail(why, YK_STATE,
        "it holds a training over other data: those of '%.*s' (fingerprint %.*s), these are '%.*s' (%.*s). Go on with "
        "the same data, or give another folder",
        n[0], path[0], digits[0], print[0], n[1], path[1], digits[1], print[1]);
}

/* The first line of a text that another does not have, and what is there in its place. */
static yk_err another(const char *was, const char *is, struct yk_diag *why)
{
    while (*was && *is) {
        size_t n = strcspn(was, "\n"), m = strcspn(is, "\n");
        if (n == m && strncmp(is, DATA_LINE, strlen(DATA_LINE)) == 0 && strncmp(was, is, strlen(DATA_LINE)) == 0 &&
            memcmp(was, is, n) != 0)
            return other_data(was, is, why);
        if (n != m || memcmp(was, is, n) != 0)
            return yk_fail(why, YK_STATE,
                "it holds another training: it has '%.*s', this one '%.*s'. Go on with the same flags, or give another "
                "folder",
                (int)YK_MIN(n, (size_t)100), was, (int)YK_MIN(m, (size_t)100), is);
        was += n + (was[n] == '\n');
        is += m + (is[m] == '\n');
    }
    return yk_fail(why, YK_STATE, "it holds another training, of another version of this program");
}

static yk_err go_on(struct local_train *t, const struct checkpoint_file *f, struct yk_diag *why)
{
    int32_t n;
    const struct trainer_tensor *tensors = trainer_tensors(t->trainer, &n);
    struct shape losses = {DT_F32, 1, {f->c.step}}, scores = {DT_F32, 1, {f->c.step / t->epoch_steps}};
    if (f->c.step > t->total_steps)
        return yk_fail(why, YK_STATE, "the checkpoint has done %" PRId64 " steps; --epochs=%" PRId64 " are %" PRId64,
            f->c.step, t->ask.epochs, t->total_steps);
    yk_err err = YK_OK;
    for (int32_t i = 0; !err && i < n; i++)
        err = checkpoint_take(&f->c, tensors[i].name, &tensors[i].shape, tensors[i].data, why);
    if (!err)
        err = checkpoint_take(&f->c, "losses", &losses, t->losses, why);
    if (!err)
        err = checkpoint_take(&f->c, "scores", &scores, t->scores, why);
    if (!err)
        err = trainer_renew(t->trainer, why);
    if (err)
        return err;
    t->step = f->c.step;
    t->last_loss = t->step ? (double)t->losses[t->step - 1] : 0;
    fprintf(stderr, "yoke: going on behind step %" PRId64 " of %" PRId64 "%s\n", t->step, t->total_steps,
        f->skipped ? " (newer checkpoints are not whole)" : "");
    return YK_OK;
}

yk_err local_train_open_storage(struct local_train *t, struct yk_diag *why)
{
    const char *dir = t->cli->o.checkpoint;
    struct checkpoint_file f = {0};
    uint8_t without_data[HASH_BYTES];
    if (!dir)
        return YK_OK;
    yk_err err = storage_dir_open(dir, &t->storage, why);
    if (!err)
        err = hash_config(t, without_data, why);
    if (err)
        return yk_wrap(why, err, "--checkpoint=%s", dir);
    err = checkpoint_open(t->storage, PREFIX, NULL, -1, &f, why);
    if (err == YK_NOTFOUND)
        return YK_OK;
    if (!t->cli->o.resume) {
        checkpoint_close(&f);
        return yk_fail(why, YK_EXISTS, "%s holds a training: go on with --resume, or give another folder", dir);
    }
    if (!err && memcmp(f.c.config, t->config, sizeof t->config) != 0 &&
        memcmp(f.c.config, without_data, sizeof without_data) != 0)
        err = another(f.c.note, t->config_text, why);
    if (!err)
        err = go_on(t, &f, why);
    checkpoint_close(&f);
    if (!err)
        checkpoint_tidy(t->storage, PREFIX, t->step, KEPT);
    return err ? yk_wrap(why, err, "--checkpoint=%s", dir) : YK_OK;
}

yk_err local_train_save(struct local_train *t, struct yk_diag *why)
{
    int32_t n;
    const struct trainer_tensor *tensors = trainer_tensors(t->trainer, &n);
    struct checkpoint_tensor *list = yk_xalloc(((size_t)n + 2) * sizeof *list);
    for (int32_t i = 0; i < n; i++)
        list[i] = (struct checkpoint_tensor){tensors[i].name, tensors[i].shape, tensors[i].data};
    list[n] = (struct checkpoint_tensor){"losses", {DT_F32, 1, {t->step}}, t->losses};
    list[n + 1] = (struct checkpoint_tensor){"scores", {DT_F32, 1, {t->step / t->epoch_steps}}, t->scores};
    struct checkpoint c = {.step = t->step, .note = t->config_text, .tensors = list, .n_tensors = n + 2};
    memcpy(c.config, t->config, sizeof c.config);
    yk_err err = checkpoint_save(t->storage, PREFIX, &c, KEPT, why);
    free(list);
    return err ? yk_wrap(why, err, "--checkpoint=%s (the last good one stays)", t->cli->o.checkpoint) : YK_OK;
}
