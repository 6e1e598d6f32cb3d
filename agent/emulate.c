#include "agent/emulate.h"

#include "common/json.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define FILE_LIMIT ((size_t)64 << 10)
#define MAX_RATE 1e15

static yk_err parse_throttle(const struct json *t, struct emulate_throttle *out, struct yk_diag *why)
{
    static const char *const known[] = {"after_s", "over_s", "factor", NULL};
    if (json_kind(t) != JSON_OBJECT)
        return yk_fail(why, YK_INVAL, "throttle is an object");
    yk_err err = json_only(t, known, why);
    if (!err)
        err = json_get_f64(t, "after_s", false, 0, 1e6, &out->after_s, why);
    if (!err)
        err = json_get_f64(t, "over_s", false, 0, 1e6, &out->over_s, why);
    return err ? err : json_get_f64(t, "factor", true, 1, 1000, &out->factor, why);
}

static yk_err parse_link(const struct json *link, struct agent_emulate *e, struct yk_diag *why)
{
    static const char *const known[] = {"bytes_per_s", "up_latency_ms", "down_latency_ms", "duplex", "throttle", NULL};
    const char *duplex = "full";
    if (json_kind(link) != JSON_OBJECT)
        return yk_fail(why, YK_INVAL, "link is an object");
    yk_err err = json_only(link, known, why);
    if (!err)
        err = json_get_f64(link, "bytes_per_s", false, 1, MAX_RATE, &e->bytes_per_s, why);
    if (!err)
        err = json_get_f64(link, "up_latency_ms", false, 0, 60000, &e->up_latency_ms, why);
    if (!err)
        err = json_get_f64(link, "down_latency_ms", false, 0, 60000, &e->down_latency_ms, why);
    if (!err)
        err = json_get_str(link, "duplex", false, &duplex, why);
    if (!err && strcmp(duplex, "full") != 0 && strcmp(duplex, "half") != 0)
        return yk_fail(why, YK_INVAL, "duplex is \"full\" or \"half\", not \"%s\"", duplex);
    e->half_duplex = strcmp(duplex, "half") == 0;
    const struct json *throttle = json_find(link, "throttle");
    return err || !throttle ? err : parse_throttle(throttle, &e->link_throttle, why);
}

static yk_err parse_device(const struct json *j, struct agent_emulate *e, struct yk_diag *why)
{
    static const char *const known[] = {
        "gflops", "stage_ms", "memory_bytes", "link", "heat", "battery", "throttle", NULL};
    static const char *const heats[] = {"nominal", "fair", "serious", "critical"};
    const char *heat = NULL;
    yk_err err;
    if (json_kind(j) != JSON_OBJECT)
        return yk_fail(why, YK_INVAL, "an emulated device is a JSON object");
    if ((err = json_only(j, known, why)) || (err = json_get_f64(j, "gflops", false, 1e-6, 1e9, &e->gflops, why)) ||
        (err = json_get_f64(j, "stage_ms", false, 0, 1e7, &e->stage_ms, why)) ||
        (err = json_get_i64(j, "memory_bytes", false, 1, INT64_MAX, &e->memory_bytes, why)) ||
        (err = json_get_f64(j, "battery", false, 0, 1, &e->battery_frac, why)) ||
        (err = json_get_str(j, "heat", false, &heat, why)))
        return err;
    if (e->gflops > 0 && e->stage_ms > 0)
        return yk_fail(why, YK_INVAL, "gflops and stage_ms exclude each other");
    if (heat) {
        bool found = false;
        for (size_t i = 0; i < YK_COUNT(heats); i++)
            found = found || strcmp(heat, heats[i]) == 0;
        if (!found)
            return yk_fail(why, YK_INVAL, "heat is nominal, fair, serious or critical, not \"%s\"", heat);
        snprintf(e->heat, sizeof e->heat, "%s", heat);
    }
    const struct json *link = json_find(j, "link"), *throttle = json_find(j, "throttle");
    if (throttle && (err = parse_throttle(throttle, &e->throttle, why)))
        return err;
    return link ? parse_link(link, e, why) : YK_OK;
}

yk_err emulate_parse(const char *text, size_t len, struct agent_emulate *out, struct yk_diag *why)
{
    struct json *doc = NULL;
    struct agent_emulate e = {.battery_frac = NAN};
    yk_err err = json_parse(text, len, &doc, why);
    if (!err)
        err = parse_device(doc, &e, why);
    json_free(doc);
    if (!err)
        *out = e;
    return err;
}

yk_err emulate_load(const char *path, struct agent_emulate *out, struct yk_diag *why)
{
    struct json *doc = NULL;
    struct agent_emulate e = {.battery_frac = NAN};
    yk_err err = json_load(path, FILE_LIMIT, &doc, why);
    if (!err && (err = parse_device(doc, &e, why)))
        yk_wrap(why, err, "%s", path);
    json_free(doc);
    if (!err)
        *out = e;
    return err;
}

static int64_t reserve(double bytes_per_s, int64_t *free_us, int64_t now_us, int64_t bytes)
{
    int64_t start = YK_MAX(now_us, *free_us);
    *free_us = start + (int64_t)((double)bytes / bytes_per_s * 1e6);
    return *free_us - now_us;
}

/* What is left of the link's rate now. */
static double rate_now(const struct agent_emulate *e, struct emulate_link *l, int64_t now_us)
{
    if (!l->began_us)
        l->began_us = now_us;
    return e->bytes_per_s / emulate_slowdown(&e->link_throttle, (double)(now_us - l->began_us) / 1e6);
}

int64_t emulate_tx_delay_us(const struct agent_emulate *e, struct emulate_link *l, int64_t now_us, int64_t bytes)
{
    int64_t latency = (int64_t)(e->up_latency_ms * 1e3);
    return latency + (e->bytes_per_s > 0 ? reserve(rate_now(e, l, now_us), &l->tx_free_us, now_us, bytes) : 0);
}

int64_t emulate_rx_delay_us(const struct agent_emulate *e, struct emulate_link *l, int64_t now_us, int64_t bytes)
{
    int64_t latency = (int64_t)(e->down_latency_ms * 1e3);
    int64_t *free_us = e->half_duplex ? &l->tx_free_us : &l->rx_free_us;
    return latency + (e->bytes_per_s > 0 ? reserve(rate_now(e, l, now_us), free_us, now_us, bytes) : 0);
}

double emulate_compute_ms(const struct agent_emulate *e, double flops)
{
    return e->gflops > 0 ? flops / e->gflops * 1e-6 : e->stage_ms;
}

double emulate_slowdown(const struct emulate_throttle *t, double seconds)
{
    if (t->factor <= 1 || seconds <= t->after_s)
        return 1;
    double part = t->over_s > 0 ? YK_MIN((seconds - t->after_s) / t->over_s, 1.0) : 1;
    return 1 + part * (t->factor - 1);
}
