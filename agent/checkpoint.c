#include "agent/checkpoint.h"

#include "common/json.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAGIC "YOKECKPT"
#define VERSION 1
#define HEAD_AT 64 /* magic, version, counts and lengths, config */
#define ALIGN 64
#define HEAD_LIMIT ((uint64_t)256 << 20)
#define KEY_SIZE 400

static const uint8_t zeros[ALIGN];

static void put_u32(uint8_t *p, uint32_t v)
{
    for (int i = 0; i < 4; i++)
        p[i] = (uint8_t)(v >> (8 * i));
}

static void put_u64(uint8_t *p, uint64_t v)
{
    for (int i = 0; i < 8; i++)
        p[i] = (uint8_t)(v >> (8 * i));
}

static uint64_t get_u64(const uint8_t *p)
{
    uint64_t v = 0;
    for (int i = 0; i < 8; i++)
        v |= (uint64_t)p[i] << (8 * i);
    return v;
}

static uint32_t get_u32(const uint8_t *p)
{
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

/* ---- checksum ---- */

/* A chain of bijections of a 64-bit state, one a word: any change of one word changes the end. Bytes may come in any
 * pieces. Not against an adversary. */
struct sum {
    uint64_t h, len;
    uint8_t tail[8];
    size_t n_tail;
};

static void sum_word(struct sum *s, uint64_t w)
{
    uint64_t h = (s->h ^ w) * 0x9fb21c651e98df25u;
    s->h = h ^ (h >> 29);
}

static void sum_add(struct sum *s, const void *data, size_t len)
{
    const uint8_t *p = data;
    s->len += len;
    while (len && (s->n_tail || len < 8)) {
        s->tail[s->n_tail++] = *p++;
        len--;
        if (s->n_tail == 8) {
            sum_word(s, get_u64(s->tail));
            s->n_tail = 0;
        }
    }
    for (; len >= 8; p += 8, len -= 8)
        sum_word(s, get_u64(p));
    for (; len; len--)
        s->tail[s->n_tail++] = *p++;
}

static uint64_t sum_end(struct sum *s)
{
    memset(s->tail + s->n_tail, 0, 8 - s->n_tail);
    sum_word(s, get_u64(s->tail));
    sum_word(s, s->len);
    return s->h;
}

/* ---- keys ---- */

static void key_of(const char *prefix, int64_t step, char out[KEY_SIZE])
{
    snprintf(out, KEY_SIZE, "%.300s/step-%012" PRId64, prefix, step);
}

struct steps {
    const char *prefix;
    int64_t *at;
    size_t n;
};

static bool collect(void *arg, const char *key, int64_t bytes)
{
    (void)bytes;
    struct steps *s = arg;
    const char *name = key + strlen(s->prefix);
    char again[KEY_SIZE];
    if (strncmp(name, "/step-", 6) != 0)
        return true;
    int64_t step = strtoll(name + 6, NULL, 10);
    key_of(s->prefix, step, again);
    if (strcmp(again, key) != 0)
        return true;
    s->at = yk_xrealloc(s->at, (s->n + 1) * sizeof *s->at);
    s->at[s->n++] = step;
    return true;
}

static int newest_first(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return x < y ? 1 : x > y ? -1 : 0;
}

/* free(out->at) */
static yk_err list_steps(struct storage *s, const char *prefix, struct steps *out, struct yk_diag *why)
{
    *out = (struct steps){.prefix = prefix};
    yk_err err = s->ops->list(s, prefix, collect, out);
    if (err)
        return yk_fail(why, err, "cannot list the checkpoints of '%s'", prefix);
    if (out->n)
        qsort(out->at, out->n, sizeof *out->at, newest_first);
    return YK_OK;
}

void checkpoint_remove(struct storage *s, const char *prefix, int64_t step)
{
    char key[KEY_SIZE];
    key_of(prefix, step, key);
    s->ops->remove(s, key);
}

/* ---- save ---- */

static size_t padding(uint64_t at)
{
    return (size_t)((ALIGN - at % ALIGN) % ALIGN);
}

/* Offsets of tensors count from the end of the padded head, so that the head does not depend on its own length. */
static void write_head(const struct checkpoint *c, struct yk_buf *head)
{
    struct json_out o;
    int64_t at = 0;
    json_out_init(&o, head, 0);
    json_open(&o, '{');
    json_put_key(&o, "step");
    json_put_i64(&o, c->step);
    json_put_key(&o, "note");
    json_put_str(&o, c->note ? c->note : "");
    json_put_key(&o, "tensors");
    json_open(&o, '[');
    for (int32_t i = 0; i < c->n_tensors; i++) {
        const struct checkpoint_tensor *t = &c->tensors[i];
        int64_t bytes = shape_bytes(&t->shape);
        json_open(&o, '{');
        json_put_key(&o, "name");
        json_put_str(&o, t->name);
        json_put_key(&o, "dtype");
        json_put_str(&o, dtype_name(t->shape.dtype));
        json_put_key(&o, "dims");
        json_open(&o, '[');
        for (int k = 0; k < t->shape.rank; k++)
            json_put_i64(&o, t->shape.dims[k]);
        json_close(&o, ']');
        json_put_key(&o, "at");
        json_put_i64(&o, at);
        json_close(&o, '}');
        at += bytes + (int64_t)padding((uint64_t)bytes);
    }
    json_close(&o, ']');
    json_close(&o, '}');
}

yk_err checkpoint_save(struct storage *s, const char *prefix, const struct checkpoint *c, int keep, struct yk_diag *why)
{
    struct yk_buf head = {0};
    uint8_t fixed[HEAD_AT] = {0}, end[8];
    struct steps steps = {0};
    char key[KEY_SIZE];
    int64_t n = 0;
    if (c->step < 0 || c->n_tensors < 0 || c->n_tensors > CHECKPOINT_TENSORS_MAX)
        return yk_fail(why, YK_INVAL, "a checkpoint of step %" PRId64 " with %d tensors", c->step, c->n_tensors);
    struct storage_part *parts = yk_xalloc((2 * (size_t)c->n_tensors + 4) * sizeof *parts);
    write_head(c, &head);
    if (head.failed) {
        free(parts);
        yk_buf_free(&head);
        return yk_fail(why, YK_NOMEM, "no memory for a checkpoint");
    }
    parts[n++] = (struct storage_part){fixed, HEAD_AT};
    parts[n++] = (struct storage_part){head.data, head.len};
    parts[n++] = (struct storage_part){zeros, padding(head.len)};
    for (int32_t i = 0; i < c->n_tensors; i++) {
        size_t bytes = (size_t)shape_bytes(&c->tensors[i].shape);
        parts[n++] = (struct storage_part){c->tensors[i].data, bytes};
        parts[n++] = (struct storage_part){zeros, padding(bytes)};
    }
    parts[n++] = (struct storage_part){end, 8};
    uint64_t total = 0;
    for (int64_t i = 0; i < n; i++)
        total += parts[i].len;
    memcpy(fixed, MAGIC, 8);
    put_u32(fixed + 8, VERSION);
    put_u32(fixed + 12, (uint32_t)c->n_tensors);
    put_u64(fixed + 16, total);
    put_u64(fixed + 24, head.len);
    memcpy(fixed + 32, c->config, CHECKPOINT_CONFIG_BYTES);
    struct sum sum = {0};
    for (int64_t i = 0; i + 1 < n; i++)
        sum_add(&sum, parts[i].data, parts[i].len);
    put_u64(end, sum_end(&sum));
    key_of(prefix, c->step, key);
    yk_err err = s->ops->put_parts(s, key, parts, n, why);
    if (!err && keep > 0 && list_steps(s, prefix, &steps, NULL) == YK_OK)
        for (size_t i = (size_t)keep; i < steps.n; i++)
            checkpoint_remove(s, prefix, steps.at[i]);
    free(steps.at);
    free(parts);
    yk_buf_free(&head);
    return err ? yk_wrap(why, err, "checkpoint of step %" PRId64, c->step) : YK_OK;
}

/* ---- open ---- */

struct held { /* of checkpoint_file.priv */
    struct json *head;
    struct checkpoint_tensor *tensors;
};

static yk_err read_tensor(
    const struct json *j, const uint8_t *data, uint64_t len, struct checkpoint_tensor *out, struct yk_diag *why)
{
    const char *dtype = NULL;
    int64_t at = 0;
    const struct json *dims = json_find(j, "dims");
    yk_err err = json_get_str(j, "name", true, &out->name, why);
    if (!err)
        err = json_get_str(j, "dtype", true, &dtype, why);
    if (!err)
        err = json_get_i64(j, "at", true, 0, INT64_MAX, &at, why);
    if (err)
        return err;
    out->shape.dtype = dtype_find(dtype);
    if (out->shape.dtype == DT_NONE || json_kind(dims) != JSON_ARRAY || json_len(dims) > YK_MAX_RANK)
        return yk_fail(why, YK_FORMAT, "tensor '%s' has no shape", out->name);
    out->shape.rank = (int)json_len(dims);
    for (int i = 0; i < out->shape.rank; i++)
        out->shape.dims[i] = json_i64(json_at(dims, (size_t)i), -1);
    int64_t bytes = shape_bytes(&out->shape);
    if (bytes < 0 || (uint64_t)at > len || (uint64_t)bytes > len - (uint64_t)at || at % ALIGN)
        return yk_fail(why, YK_FORMAT, "tensor '%s' leaves the file", out->name);
    out->data = data + at;
    return YK_OK;
}

static yk_err read_all(
    const uint8_t *p, size_t len, const uint8_t *config, struct checkpoint *c, struct held *held, struct yk_diag *why)
{
    if (len < HEAD_AT + 8 || memcmp(p, MAGIC, 8) != 0)
        return yk_fail(why, YK_FORMAT, "is no checkpoint");
    if (get_u32(p + 8) != VERSION)
        return yk_fail(why, YK_VERSION, "has version %u, this program reads version %d", get_u32(p + 8), VERSION);
    uint64_t total = get_u64(p + 16), head = get_u64(p + 24);
    uint32_t n = get_u32(p + 12);
    if (total != len)
        return yk_fail(why, YK_FORMAT, "has %zu bytes of %" PRIu64 ": it was cut", len, total);
    struct sum sum = {0};
    sum_add(&sum, p, len - 8);
    if (sum_end(&sum) != get_u64(p + len - 8))
        return yk_fail(why, YK_FORMAT, "does not have the checksum that it was written with");
    if (config && memcmp(p + 32, config, CHECKPOINT_CONFIG_BYTES) != 0)
        return yk_fail(
            why, YK_STATE, "is of another training: the model, the data or a flag that decides on numbers differs");
    if (head > HEAD_LIMIT || head > len - HEAD_AT - 8 || n > CHECKPOINT_TENSORS_MAX)
        return yk_fail(why, YK_FORMAT, "has a head of %" PRIu64 " bytes and %u tensors", head, n);
    yk_err err = json_parse((const char *)p + HEAD_AT, (size_t)head, &held->head, why);
    if (!err)
        err = json_get_i64(held->head, "step", true, 0, INT64_MAX, &c->step, why);
    if (!err)
        err = json_get_str(held->head, "note", true, &c->note, why);
    const struct json *list = json_find(held->head, "tensors");
    uint64_t first = HEAD_AT + head + padding(head);
    if (!err && (json_kind(list) != JSON_ARRAY || json_len(list) != n || first > len - 8))
        err = yk_fail(why, YK_FORMAT, "does not list its %u tensors", n);
    held->tensors = yk_xalloc(((size_t)n + 1) * sizeof *held->tensors);
    for (uint32_t i = 0; !err && i < n; i++)
        err = read_tensor(json_at(list, i), p + first, len - 8 - first, &held->tensors[i], why);
    memcpy(c->config, p + 32, CHECKPOINT_CONFIG_BYTES);
    c->tensors = held->tensors;
    c->n_tensors = (int32_t)n;
    return err;
}

void checkpoint_close(struct checkpoint_file *f)
{
    struct held *held = f->priv;
    if (held) {
        json_free(held->head);
        free(held->tensors);
        free(held);
    }
    if (f->storage)
        f->storage->ops->unmap(f->storage, &f->map);
    *f = (struct checkpoint_file){0};
}

static yk_err open_step(struct storage *s, const char *prefix, const uint8_t *config, int64_t step,
    struct checkpoint_file *out, struct yk_diag *why)
{
    char key[KEY_SIZE];
    struct checkpoint_file f = {0};
    key_of(prefix, step, key);
    yk_err err = s->ops->map(s, key, &f.map, why);
    if (err)
        return err;
    f.storage = s;
    f.priv = yk_xalloc(sizeof(struct held));
    if ((err = read_all(f.map.data, f.map.len, config, &f.c, f.priv, why))) {
        yk_wrap(why, err, "checkpoint '%s'", key);
        checkpoint_close(&f);
        return err;
    }
    *out = f;
    return YK_OK;
}

yk_err checkpoint_open(struct storage *s, const char *prefix, const uint8_t config[CHECKPOINT_CONFIG_BYTES],
    int64_t step, struct checkpoint_file *out, struct yk_diag *why)
{
    struct steps steps;
    if (step >= 0)
        return open_step(s, prefix, config, step, out, why);
    yk_err err = list_steps(s, prefix, &steps, why);
    if (err)
        return err;
    err = yk_fail(why, YK_NOTFOUND, "there is no checkpoint of '%s'", prefix);
    int32_t skipped = 0;
    for (size_t i = 0; err && i < steps.n; i++) {
        err = open_step(s, prefix, config, steps.at[i], out, why);
        if (!err)
            out->skipped = skipped;
        else if (err != YK_FORMAT && err != YK_NOTFOUND)
            break; /* whole, but not ours: an older one is not ours either */
        skipped++;
    }
    free(steps.at);
    return err;
}

void checkpoint_tidy(struct storage *s, const char *prefix, int64_t newest, int keep)
{
    struct steps steps;
    if (list_steps(s, prefix, &steps, NULL))
        return;
    for (size_t i = 0; i < steps.n; i++)
        if (steps.at[i] > newest || --keep < 0)
            checkpoint_remove(s, prefix, steps.at[i]);
    free(steps.at);
}

yk_err checkpoint_take(
    const struct checkpoint *c, const char *name, const struct shape *shape, void *data, struct yk_diag *why)
{
    for (int32_t i = 0; i < c->n_tensors; i++) {
        const struct checkpoint_tensor *t = &c->tensors[i];
        if (strcmp(t->name, name) != 0)
            continue;
        if (!shape_equal(&t->shape, shape)) {
            char a[128], b[128];
            shape_text(&t->shape, a, sizeof a);
            shape_text(shape, b, sizeof b);
            return yk_fail(why, YK_INVAL, "the checkpoint has '%s' as %s, the training as %s", name, a, b);
        }
        if (shape_bytes(shape) > 0)
            memcpy(data, t->data, (size_t)shape_bytes(shape));
        return YK_OK;
    }
    return yk_fail(why, YK_NOTFOUND, "the checkpoint has no '%s'", name);
}
