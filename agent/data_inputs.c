/* Sets for models of several inputs: a chain of sets with as many samples. */
#include "agent/data_priv.h"

#include <inttypes.h>
#include <stdlib.h>

#define ALIGN 64

struct data_input *data_inputs_of(const struct graph *g, int32_t n)
{
    struct data_input *inputs = yk_xalloc(((size_t)n + 1) * sizeof *inputs);
    for (int32_t i = 0; i < n; i++) {
        inputs[i].name = g->values[g->inputs[i]].name;
        data_target_of(g, g->inputs[i], &inputs[i].target);
    }
    return inputs;
}

int data_inputs(const struct data_set *d)
{
    int n = 0;
    for (; d; d = d->next)
        n++;
    return n;
}

const struct shape *data_sample_of(const struct data_set *d, int input)
{
    while (input-- > 0)
        d = d->next;
    return &d->sample;
}

int64_t data_at(const struct data_set *d, int input, int64_t count)
{
    int64_t at = 0, bytes;
    for (; d && input > 0; d = d->next, input--) {
        bytes = shape_bytes(&d->sample);
        if (bytes < 0 || !yk_mul_i64(bytes, count, &bytes) || bytes > INT64_MAX - at - ALIGN)
            return -1;
        at = (at + bytes + ALIGN - 1) / ALIGN * ALIGN;
    }
    return at;
}

yk_err data_join(struct data_set *d, struct data_set *more, const char *name, struct yk_diag *why)
{
    if (data_count(d) != data_count(more))
        return yk_fail(why, YK_INVAL, "input '%.60s' has %" PRId64 " samples, another has %" PRId64, name,
            data_count(more), data_count(d));
    while (d->next)
        d = d->next;
    d->next = more;
    return YK_OK;
}

yk_err data_open_inputs(const char *path, const struct data_options *given, const struct data_input *inputs, int32_t n,
    struct data_set **out, struct yk_diag *why)
{
    struct data_options o = given ? *given : (struct data_options){0};
    struct data_set *all = NULL;
    yk_err err = YK_OK;
    if (n > 1 && (o.n_mean || o.n_std))
        return yk_fail(why, YK_INVAL, "--mean and --std are for models of one input, this one has %" PRId32, n);
    for (int32_t i = 0; !err && i < n; i++) {
        struct data_set *set = NULL;
        o.target = &inputs[i].target;
        o.input = n > 1 ? inputs[i].name : NULL;
        o.samples_only = i > 0;
        err = data_open(path, &o, &set, why);
        if (!err && !all)
            all = set;
        else if (!err && (err = data_join(all, set, inputs[i].name, why)))
            data_close(set);
    }
    if (err)
        data_close(all);
    else
        *out = all;
    return err;
}

yk_err data_read_of(struct data_set *d, int input, int64_t first, int64_t count, void *x, void *y, struct yk_diag *why)
{
    while (input-- > 0)
        d = d->next;
    return data_read_alone(d, first, count, x, y, why);
}

yk_err data_read(struct data_set *d, int64_t first, int64_t count, void *x, void *y, struct yk_diag *why)
{
    int i = 0;
    yk_err err = YK_OK;
    for (struct data_set *of = d; !err && of; of = of->next, i++)
        err = data_read_alone(of, first, count, (uint8_t *)x + data_at(d, i, count), of == d ? y : NULL, why);
    return err;
}
