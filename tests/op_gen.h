/* For tests: inputs and attributes of ops from the templates of op_templates.h, drawn from a seed, or from the bytes of
 * a fuzzer as long as they last. A template that is wrong stops the process. */
#ifndef TESTS_OP_GEN_H
#define TESTS_OP_GEN_H

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/exec.h"
#include "kernels/ref.h"
#include "tests/conformance/op_templates.h"

#define GEN_IN_MAX 9
#define GEN_OUT_MAX 5

struct gen {
    struct yk_rng r;
    const uint8_t *bytes; /* choices come from here, then from r */
    size_t left;
    enum dtype t;      /* DT_NONE: drawn where it is first used */
    bool special;      /* inputs hold NaN, infinities, extremes */
    bool plain;        /* but only the first: what padding gives with an infinite weight is left open */
    bool small;        /* sizes up to 9 */
    int64_t size[128]; /* by letter; -1: not drawn yet */
    struct shape star; /* "*" */
    struct graph *g;
    int n_in;
    struct tensor in[GEN_IN_MAX]; /* data NULL: absent */
    bool weight[GEN_IN_MAX];
};

/* From lo to hi, both included. */
static inline int64_t gen_pick(struct gen *c, int64_t lo, int64_t hi)
{
    uint64_t n = (uint64_t)(hi - lo + 1), v = 0;
    if (!c->left)
        return lo + (int64_t)yk_rng_below(&c->r, n);
    for (uint64_t m = n - 1; m && c->left; m >>= 8, c->left--)
        v = v << 8 | *c->bytes++;
    return lo + (int64_t)(v % n);
}

/* For a fuzzer: choices from its bytes, and behind them from a seed that follows from all of them. */
static inline void gen_begin(struct gen *c, const uint8_t *bytes, size_t size)
{
    uint64_t seed = 0xcbf29ce484222325u; /* FNV-1a */
    for (size_t i = 0; i < size; i++)
        seed = (seed ^ bytes[i]) * 0x100000001b3u;
    yk_rng_seed(&c->r, seed);
    c->bytes = bytes;
    c->left = size;
    c->small = true;
    c->special = gen_pick(c, 0, 3) == 3;
}

static inline int64_t gen_size(struct gen *c, char letter)
{
    static const int64_t few[] = {1, 2, 3, 4, 5, 7}, odd[] = {1, 3, 8, 13, 17, 33}, tiny[] = {3, 1, 2, 4, 8, 9};
    int64_t *s = &c->size[(unsigned char)letter];
    if (*s < 0)
        *s = gen_pick(c, 0, 24) == 24 ? 0 : (letter < 'a' ? few : c->small ? tiny : odd)[gen_pick(c, 0, 5)];
    return *s;
}

static inline void gen_need(bool ok, const char *what)
{
    if (!ok) {
        fprintf(stderr, "op template: '%s'\n", what);
        abort();
    }
}

/* A number, a letter or both in front of *at. */
static inline int64_t gen_number(struct gen *c, const char **at)
{
    char *end;
    bool digits = (**at >= '0' && **at <= '9') || **at == '-';
    int64_t v = digits ? strtoll(*at, &end, 10) : 1;
    if (digits)
        *at = end;
    if ((**at >= 'A' && **at <= 'Z') || (**at >= 'a' && **at <= 'z'))
        v *= gen_size(c, *(*at)++);
    return v;
}

static inline enum dtype gen_type(struct gen *c, const char *name, size_t n)
{
    static const struct {
        const char *name;
        enum dtype t;
    } names[] = {{"f32", DT_F32}, {"u8", DT_U8}, {"i8", DT_I8}, {"i32", DT_I32}, {"i64", DT_I64}, {"bool", DT_BOOL}};
    if (n == 1 && *name == 'T') {
        if (c->t == DT_NONE)
            c->t = gen_pick(c, 0, 2) ? DT_F32 : (enum dtype)gen_pick(c, DT_F32, DT_BOOL);
        return c->t;
    }
    if (n == 1 && *name == 'U')
        return gen_pick(c, 0, 1) ? DT_I64 : DT_I32;
    if (n == 1 && *name == 'V')
        return (enum dtype)gen_pick(c, DT_F32, DT_BOOL);
    for (size_t i = 0; i < YK_COUNT(names); i++)
        if (strlen(names[i].name) == n && !strncmp(name, names[i].name, n))
            return names[i].t;
    gen_need(false, name);
    return DT_NONE;
}

static inline void gen_fill(struct gen *c, struct tensor *t, const char *contents)
{
    static const double odd[] = {NAN, INFINITY, -INFINITY, 0.0, -0.0, 1e-40, 5e-8};
    static const int64_t extreme[] = {INT64_MAX, INT64_MIN, INT32_MAX, INT32_MIN, 255, 128, 127, -128, 0};
    bool floats = dtype_is_float(t->shape.dtype);
    const char *at = contents;
    size_t left = c->left;
    c->left = 0; /* elements are drawn from the seed alone */
    int64_t bound = at && (*at == '<' || *at == '[') ? (at++, gen_number(c, &at)) : 0;
    for (int64_t i = 0, n = tensor_count(t); i < n; i++) {
        double d = 4 * yk_rng_unit(&c->r) - 2;
        int64_t v = gen_pick(c, -3, 3);
        if (!contents) {
            if (c->special && !(c->plain && c->n_in > 1) && gen_pick(c, 0, 9) == 0) {
                d = odd[gen_pick(c, 0, 6)];
                v = extreme[gen_pick(c, 0, 8)];
            }
        } else if (*contents == '<' || *contents == '[') {
            v = bound > 0 ? gen_pick(c, *contents == '<' ? -bound : 0, bound - 1) : 0;
        } else if (*contents == 'p') {
            d = 0.05 + yk_rng_unit(&c->r);
            v = gen_pick(c, 1, 3);
        } else {
            char *end;
            d = strtod(at, &end);
            if (end == at || strchr("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz", *end) == NULL || !*end) {
                v = (int64_t)d;
                at = end == at ? at : end;
            }
            if (*at != ',' && *at)
                v = gen_number(c, &at), d = (double)v;
            at += *at == ',';
        }
        if (floats)
            ref_store_d(t->data, t->shape.dtype, i, 1, &d, 1);
        else
            ref_store_i(t->data, t->shape.dtype, i, 1, &v, 1);
    }
    c->left = left;
}

/* One input of a template. */
static inline void gen_input(struct gen *c, const char *text)
{
    struct tensor *t = &c->in[c->n_in];
    bool optional = *text == '?';
    text += optional;
    bool known = *text == '!';
    text += known;
    *t = (struct tensor){.shape = {.dtype = DT_NONE}};
    c->weight[c->n_in] = known || (c->n_in > 0 && gen_pick(c, 0, 1));
    c->n_in++;
    if (*text == '-' || (optional && gen_pick(c, 0, 1)))
        return;
    const char *at = strchr(text, ':');
    gen_need(at != NULL, text);
    t->shape.dtype = gen_type(c, text, (size_t)(at - text));
    at++;
    if (*at == '*' || *at == '~') {
        int skip = *at == '~' ? (int)gen_pick(c, 0, c->star.rank) : 0;
        for (int k = skip; k < c->star.rank; k++)
            t->shape.dims[t->shape.rank++] = *at == '~' && gen_pick(c, 0, 2) == 0 ? 1 : c->star.dims[k];
        at++;
    }
    while (*at && *at != '=') {
        t->shape.dims[t->shape.rank++] = gen_number(c, &at);
        at += *at == ',';
    }
    t->data = yk_try_aligned((size_t)shape_bytes(&t->shape));
    gen_need(t->data != NULL, text);
    gen_fill(c, t, *at == '=' ? at + 1 : NULL);
}

static inline void gen_attrs(struct gen *c, struct node *n, const char *text)
{
    char copy[512], *save = NULL;
    snprintf(copy, sizeof copy, "%s", text);
    for (char *a = strtok_r(copy, " ", &save); a; a = strtok_r(NULL, " ", &save)) {
        char *kind = strchr(a, '='), *value = kind ? strchr(kind, ':') : NULL, *way[16];
        int ways = 0;
        gen_need(kind && value, text);
        *kind++ = *value++ = 0;
        for (char *s = value; s && ways < 16; s = strchr(s, '/') ? strchr(s, '/') + 1 : NULL)
            way[ways++] = s;
        const char *at = way[gen_pick(c, 0, ways - 1)];
        size_t length = strcspn(at, "/"), count = 0;
        char one[128];
        snprintf(one, sizeof one, "%.*s", (int)length, at);
        at = one;
        if (!strcmp(kind, "i")) {
            graph_set_attr_i(c->g, n, a, gen_number(c, &at));
        } else if (!strcmp(kind, "f")) {
            graph_set_attr_f(c->g, n, a, strtof(one, NULL));
        } else if (!strcmp(kind, "s")) {
            graph_set_attr_s(c->g, n, a, one);
        } else {
            int64_t ints[32];
            float *floats = yk_arena_alloc(c->g->arena, 32, sizeof *floats);
            for (; *at; at += *at == ',', count++) {
                ints[count] = gen_number(c, &at);
                floats[count] = (float)ints[count];
            }
            graph_set_attr_ints(c->g, n, a, ints, count);
            struct attr *made = (struct attr *)(uintptr_t)node_attr(n, a);
            if (!strcmp(kind, "floats")) {
                made->kind = ATTR_FLOATS;
                made->floats = floats;
            }
        }
    }
}

static inline bool gen_is_of(const struct op_template *t, const struct op *op)
{
    const char *dot = strrchr(t->op, '.');
    size_t n = dot ? (size_t)(dot - t->op) : 0;
    return !strcmp(dot ? dot + 1 : t->op, op->name) && strlen(op->domain) == n && !strncmp(op->domain, t->op, n);
}

/* The templates of an op, at most max; for elementwise ops and reductions without one the usual. */
static inline int gen_templates(const struct op *op, const struct op_template **list, int max)
{
    static const struct op_template usual[] = {
        {"one input", 1, {"T:*"}, ""},
        {"two inputs", 1, {"T:*", "T:~"}, ""},
        {"any inputs", 1, {"T:~", "T:*", "T:~"}, ""},
        {"reduction", 1, {"T:*"}, "keepdims=i:0/1"},
        {"reduction", 1, {"T:A,b,c"}, "keepdims=i:0/1 axes=ints:1/0,2/-1"},
    };
    int n = 0;
    for (size_t k = 0; k < YK_COUNT(op_templates) && n < max; k++)
        if (gen_is_of(&op_templates[k], op))
            list[n++] = &op_templates[k];
    if (!n && op->flags & OP_ELEMENTWISE)
        list[n++] = &usual[YK_MIN(op->max_in, 3) - 1];
    if (!n && !strncmp(op->name, "Reduce", 6)) {
        list[n++] = &usual[3];
        list[n++] = &usual[4];
    }
    return n;
}

/* Types and shapes equal; integers and what only moves exact; floats near, NaN and infinities in the same places.
 * Errors may be relative to the output or to scale: what the sums inside are made of. Only next to the largest number
 * of the type may one be infinite and the other not. */
static inline bool gen_near(
    const struct tensor *a, const struct tensor *b, const struct op *op, bool bits, double scale)
{
    if (!shape_equal(&a->shape, &b->shape))
        return false;
    if (bits || !dtype_is_float(a->shape.dtype) || op->flags & OP_SHAPE)
        return memcmp(a->data, b->data, (size_t)tensor_bytes(a)) == 0;
    enum dtype t = a->shape.dtype;
    double ulp = t == DT_F64 ? 1e-12 : t == DT_F32 ? 4e-7 : t == DT_F16 ? 2e-3 : 2e-2, diff = 0, power = 0;
    double huge = t == DT_F64 ? 1.7e308 : t == DT_F16 ? 65000 : 3.3e38, unit = 1;
    int64_t n = tensor_count(a);
    for (int64_t i = 0; i < n; i++)
        if (isfinite(ref_d(b, i)))
            unit = YK_MAX(unit, fabs(ref_d(b, i))); /* so that no square overflows */
    for (int64_t i = 0; i < n; i++) {
        double x = ref_d(a, i), y = ref_d(b, i);
        if (isnan(x) || isnan(y) || isinf(x) || isinf(y)) {
            if (!(isnan(x) && isnan(y)) && x != y && !(fabs(x) > huge && fabs(y) > huge && (x > 0) == (y > 0)))
                return false;
            continue;
        }
        if (op->flags & OP_ELEMENTWISE && fabs(x - y) > ulp * fabs(y) + ulp / 2)
            return false;
        diff += (x / unit - y / unit) * (x / unit - y / unit);
        power += y / unit * (y / unit) + 1e-2 / unit / unit + scale / unit * (scale / unit);
    }
    return !(diff > ulp * ulp * 10 * (power + (n ? 0 : 1)));
}

static inline double gen_largest(const struct tensor *t)
{
    double most = 0;
    for (int64_t i = 0, n = dtype_is_float(t->shape.dtype) ? tensor_count(t) : 0; i < n; i++) {
        double v = fabs(ref_d(t, i));
        if (!(v <= most))
            most = isnan(v) ? INFINITY : v;
    }
    return most;
}

/* For gen_near: what a sum inside an op may be made of. Infinite or near the largest float: no bound holds. */
static inline double gen_scale(const struct op *op, const struct tensor *in, int n_in)
{
    bool contraction = op->flags & OP_CONTRACTION;
    double scale = 1;
    if (op->flags & OP_ELEMENTWISE)
        return 0;
    for (int k = 0; k < n_in; k++) {
        if (in[k].shape.dtype == DT_NONE)
            continue;
        double most = gen_largest(&in[k]);
        if (k == (contraction ? 1 : 0))
            most *= sqrt((double)YK_MAX(tensor_count(&in[k]), 1));
        scale = k == 0 ? most : scale * YK_MAX(most, 1);
    }
    if (strstr(op->name, "Normalization"))
        scale *= 320; /* 1 / sqrt(epsilon): rows of equal elements show the last bit of their mean */
    return scale;
}

#endif
