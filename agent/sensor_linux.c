/* /sys/class/thermal, /sys/class/power_supply and /proc/meminfo. A level of heat is taken back only when the
 * temperature is RELEASE_CELSIUS below its threshold, so that noise at a limit does not flap. */
#include "agent/machine.h"
#include "agent/sensor.h"

#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define RELEASE_CELSIUS 3.0
#define MAX_TRIPS 16

struct sensor_linux {
    struct sensor base;
    char *root;
    enum sensor_heat heat;
};

/* First line of root/dir/name/file without its end; false if it cannot be read. */
static bool read_line(
    const struct sensor_linux *s, const char *dir, const char *name, const char *file, char *out, size_t size)
{
    char path[1024];
    snprintf(path, sizeof path, "%s%s/%s/%s", s->root, dir, name, file);
    FILE *f = fopen(path, "re");
    if (!f)
        return false;
    bool ok = fgets(out, (int)size, f) != NULL;
    fclose(f);
    if (ok)
        out[strcspn(out, "\n")] = 0;
    return ok;
}

static bool read_f64(const struct sensor_linux *s, const char *dir, const char *name, const char *file, double *out)
{
    char line[64], *end;
    if (!read_line(s, dir, name, file, line, sizeof line))
        return false;
    double v = strtod(line, &end);
    if (end == line || !isfinite(v))
        return false;
    *out = v;
    return true;
}

/* Where the levels of one zone begin; trips of the zone if it has them. */
struct limits {
    double fair, serious, critical;
};

static struct limits zone_limits(const struct sensor_linux *s, const char *dir, const char *zone)
{
    struct limits l = {70, 85, 95};
    for (int i = 0; i < MAX_TRIPS; i++) {
        char file[64], type[64];
        double milli;
        snprintf(file, sizeof file, "trip_point_%d_type", i);
        if (!read_line(s, dir, zone, file, type, sizeof type))
            break;
        snprintf(file, sizeof file, "trip_point_%d_temp", i);
        if (!read_f64(s, dir, zone, file, &milli) || milli <= 0)
            continue;
        if (!strcmp(type, "passive") || !strcmp(type, "hot")) {
            l.serious = YK_MIN(l.serious, milli / 1000);
            l.fair = YK_MIN(l.fair, l.serious - 10);
        } else if (!strcmp(type, "critical")) {
            l.critical = milli / 1000 - 5;
            l.serious = YK_MIN(l.serious, l.critical - 5);
            l.fair = YK_MIN(l.fair, l.serious - 10);
        }
    }
    return l;
}

static enum sensor_heat level(const struct limits *l, double celsius)
{
    return celsius >= l->critical  ? SENSOR_CRITICAL
           : celsius >= l->serious ? SENSOR_SERIOUS
           : celsius >= l->fair    ? SENSOR_FAIR
                                   : SENSOR_NOMINAL;
}

static void read_heat(struct sensor_linux *s, struct agent_sensors *out)
{
    static const char dir[] = "/sys/class/thermal";
    char path[600];
    enum sensor_heat now = SENSOR_HEAT_UNKNOWN, cooling = SENSOR_HEAT_UNKNOWN;
    snprintf(path, sizeof path, "%s%s", s->root, dir);
    DIR *d = opendir(path);
    for (struct dirent *e; d && (e = readdir(d)) != NULL;) {
        double milli;
        if (strncmp(e->d_name, "thermal_zone", 12) != 0 || !read_f64(s, dir, e->d_name, "temp", &milli))
            continue;
        double celsius = milli / 1000;
        if (celsius < -100 || celsius > 250) /* a broken sensor */
            continue;
        struct limits l = zone_limits(s, dir, e->d_name);
        now = YK_MAX(now, level(&l, celsius));
        cooling = YK_MAX(cooling, level(&l, celsius + RELEASE_CELSIUS));
        if (isnan(out->temperature_celsius) || celsius > out->temperature_celsius)
            out->temperature_celsius = celsius;
    }
    if (d)
        closedir(d);
    /* Up at once; down only as far as the released thresholds allow. */
    s->heat = now >= s->heat ? now : YK_MIN(s->heat, YK_MAX(now, cooling));
    out->heat = sensor_heat_name(s->heat);
}

static void read_power(struct sensor_linux *s, struct agent_sensors *out)
{
    static const char dir[] = "/sys/class/power_supply";
    char path[600];
    snprintf(path, sizeof path, "%s%s", s->root, dir);
    DIR *d = opendir(path);
    for (struct dirent *e; d && (e = readdir(d)) != NULL;) {
        char type[64], status[64], scope[64];
        double percent;
        if (e->d_name[0] == '.' || !read_line(s, dir, e->d_name, "type", type, sizeof type) || strcmp(type, "Battery"))
            continue;
        if (read_line(s, dir, e->d_name, "scope", scope, sizeof scope) && !strcmp(scope, "Device"))
            continue; /* of a mouse or headset */
        if (!read_f64(s, dir, e->d_name, "capacity", &percent))
            continue;
        double frac = YK_MIN(YK_MAX(percent / 100, 0.0), 1.0);
        if (isnan(out->battery_frac) || frac < out->battery_frac)
            out->battery_frac = frac;
        if (read_line(s, dir, e->d_name, "status", status, sizeof status) &&
            (!strcmp(status, "Charging") || !strcmp(status, "Full")))
            out->charging = true;
    }
    if (d)
        closedir(d);
}

static yk_err linux_read(struct sensor *base, struct agent_sensors *out, struct yk_diag *why)
{
    (void)why;
    struct sensor_linux *s = (struct sensor_linux *)base;
    *out = (struct agent_sensors){.temperature_celsius = NAN, .battery_frac = NAN};
    read_heat(s, out);
    read_power(s, out);
    out->memory_available_bytes = machine_memory_available(s->root);
    return YK_OK;
}

static void linux_close(struct sensor *base)
{
    struct sensor_linux *s = (struct sensor_linux *)base;
    free(s->root);
    free(s);
}

static const struct sensor_ops linux_ops = {"linux", linux_read, linux_close};

yk_err sensor_linux_open(const char *root, struct sensor **out, struct yk_diag *why)
{
    (void)why;
    struct sensor_linux *s = yk_xalloc(sizeof *s);
    s->base.ops = &linux_ops;
    s->root = yk_xstrdup(root);
    *out = &s->base;
    return YK_OK;
}
