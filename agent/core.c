#include "agent/core.h"

#include "agent/machine.h"
#include "common/op.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- dialling ---- */

struct core_dial {
    struct net *net; /* NULL: called off */
    char **urls;
    size_t n, at;
    int64_t timeout_us;
    void (*fn)(void *arg, yk_err err, struct net_conn *conn, const char *url);
    void *arg;
    struct net_timer *none; /* there is no URL */
};

static void dial_free(struct core_dial *d)
{
    for (size_t i = 0; i < d->n; i++)
        free(d->urls[i]);
    free(d->urls);
    free(d);
}

static void on_dial(void *arg, yk_err err, struct net_conn *conn)
{
    struct core_dial *d = arg;
    if (!d->net) {
        net_conn_close(conn);
        dial_free(d);
        return;
    }
    if (err && d->at + 1 < d->n) {
        d->at++;
        net_dial(d->net, d->urls[d->at], d->timeout_us, on_dial, d);
        return;
    }
    d->fn(d->arg, err, conn, d->urls[d->at]);
    dial_free(d);
}

static void on_none(void *arg)
{
    struct core_dial *d = arg;
    d->fn(d->arg, YK_NOTFOUND, NULL, "");
    dial_free(d);
}

struct core_dial *core_dial(struct agent *a, const char *const *urls, size_t n, int64_t timeout_us,
    void (*fn)(void *arg, yk_err err, struct net_conn *conn, const char *url), void *arg)
{
    struct core_dial *d = yk_xalloc(sizeof *d);
    d->net = a->net;
    d->urls = yk_xalloc((n + 1) * sizeof *d->urls);
    for (size_t i = 0; i < n; i++)
        d->urls[i] = yk_xstrdup(urls[i]);
    d->n = n;
    d->timeout_us = timeout_us;
    d->fn = fn;
    d->arg = arg;
    if (n)
        net_dial(a->net, d->urls[0], timeout_us, on_dial, d);
    else
        d->none = net_timer(a->net, 0, on_none, d);
    return d;
}

void core_dial_cancel(struct core_dial *d)
{
    if (!d)
        return;
    if (d->none) {
        net_timer_cancel(d->none);
        dial_free(d);
    } else {
        d->net = NULL; /* the net answers once more; on_dial frees it then */
    }
}

/* ---- what it says of itself ---- */

void core_state(struct agent *a, enum agent_state state, const char *fmt, ...)
{
    char text[512];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    a->state = state;
    if (a->on_state && !a->closing)
        a->on_state(a->arg, state, text);
}

int core_lost(const struct agent *a)
{
    int n = 0;
    for (int i = 0; i < a->backends.n; i++)
        n += backends_lost(a->backends.at[i], NULL);
    return n;
}

/* What is not offered, and why. */
static void say_refused(struct agent *a, struct yk_arena *arena, struct wire_device *out)
{
    struct yk_diag why;
    out->refused.at = yk_arena_alloc(arena, 2 * BACKENDS_MAX, sizeof *out->refused.at);
    if (!out->refused.at)
        return;
    for (int i = 0; i < a->backends.n_refused; i++)
        out->refused.at[out->refused.n++] = a->backends.refused[i].text;
    for (int i = 0; i < a->backends.n; i++) {
        struct backend *b = a->backends.at[i];
        char *text = backends_lost(b, &why) ? yk_arena_alloc(arena, 500, 1) : NULL;
        if (!text)
            continue;
        snprintf(text, 500, "backend %s was taken out: %.400s", b->ops->name, why.text);
        out->refused.at[out->refused.n++] = text;
    }
}

void core_device(struct agent *a, struct yk_arena *arena, struct wire_device *out)
{
    char *os = yk_arena_alloc(arena, 128, 1);
    *out = (struct wire_device){.class_name = a->class_name,
        .cores = machine_cores(),
        .threads = a->threads,
        .memory_bytes = a->memory_bytes,
        .emulated = a->emulate != NULL};
    if (os)
        machine_os(os, 128);
    out->os = os;
    out->backends.at = yk_arena_alloc(arena, (size_t)a->backends.n, sizeof *out->backends.at);
    if (!out->backends.at)
        return;
    say_refused(a, arena, out);
    for (int i = 0; i < a->backends.n; i++) {
        struct backend *b = a->backends.at[i];
        if (backends_lost(b, NULL))
            continue;
        struct wire_backend *w = &out->backends.at[out->backends.n++];
        *w = (struct wire_backend){.name = b->ops->name,
            .isa = b->ops->isa(b),
            .exact = b->ops->exact,
            .gflops = a->speeds[i].gflops,
            .gbytes_per_s = a->speeds[i].gbytes_per_s};
        if (a->emulate && a->emulate->gflops > 0)
            w->gflops = YK_MIN(w->gflops, a->emulate->gflops);
        if (i + 1 < a->backends.n)
            continue; /* the last one claims every op of the table; what the others claim depends on shapes */
        w->ops.at = yk_arena_alloc(arena, (size_t)op_count() + 1, sizeof *w->ops.at);
        for (int k = 0; w->ops.at && k < op_count(); k++)
            w->ops.at[w->ops.n++] = op_at(k)->name;
    }
}

void core_sensors(struct agent *a, struct wire_sensors *out)
{
    const struct agent_sensors *s = &a->sensors;
    *out = (struct wire_sensors){.heat = s->heat ? s->heat : "",
        .temperature_celsius = s->temperature_celsius,
        .battery_frac = s->battery_frac,
        .charging = s->charging,
        .memory_available_bytes = s->memory_available_bytes};
    if (a->emulate && a->emulate->heat[0] && !(s->told && s->heat))
        out->heat = a->emulate->heat;
    if (a->emulate && !isnan(a->emulate->battery_frac) && !(s->told && !isnan(s->battery_frac))) {
        out->battery_frac = a->emulate->battery_frac;
        out->charging = false;
    }
}
