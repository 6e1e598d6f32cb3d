#include "agent/sensor.h"
#include "common/json.h"

#include <math.h>
#include <stdlib.h>

struct sensor_file {
    struct sensor base;
    char *path;
};

static yk_err file_read(struct sensor *base, struct agent_sensors *out, struct yk_diag *why)
{
    static const char *const known[] = {
        "heat", "temperature_celsius", "battery_frac", "charging", "memory_available_bytes", NULL};
    struct sensor_file *s = (struct sensor_file *)base;
    struct agent_sensors got = {.temperature_celsius = NAN, .battery_frac = NAN};
    struct json *doc = NULL;
    const char *heat = NULL;
    enum sensor_heat level = SENSOR_HEAT_UNKNOWN;
    *out = got;
    yk_err err = json_load(s->path, 64 * 1024, &doc, why);
    if (err)
        return err;
    err = json_only(doc, known, why);
    if (!err)
        err = json_get_str(doc, "heat", false, &heat, why);
    if (err == YK_OK && heat && !sensor_heat_find(heat, &level))
        err = yk_fail(why, YK_INVAL, "heat '%.40s' is not nominal, fair, serious or critical", heat);
    got.heat = sensor_heat_name(level);
    if (!err)
        err = json_get_f64(doc, "temperature_celsius", false, -273.15, 1000, &got.temperature_celsius, why);
    if (!err)
        err = json_get_f64(doc, "battery_frac", false, 0, 1, &got.battery_frac, why);
    if (!err)
        err = json_get_bool(doc, "charging", false, &got.charging, why);
    if (!err)
        err = json_get_i64(doc, "memory_available_bytes", false, 0, INT64_MAX, &got.memory_available_bytes, why);
    json_free(doc);
    if (err)
        return yk_wrap(why, err, "%s", s->path);
    got.told = true;
    *out = got;
    return YK_OK;
}

static void file_close(struct sensor *base)
{
    struct sensor_file *s = (struct sensor_file *)base;
    free(s->path);
    free(s);
}

static const struct sensor_ops file_ops = {"file", file_read, file_close};

yk_err sensor_file_open(const char *path, struct sensor **out, struct yk_diag *why)
{
    (void)why;
    struct sensor_file *s = yk_xalloc(sizeof *s);
    s->base.ops = &file_ops;
    s->path = yk_xstrdup(path);
    *out = &s->base;
    return YK_OK;
}
