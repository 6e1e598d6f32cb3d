/* Heat, battery and free memory of this machine. A program reads one now and then and pushes what it says to the agent
 * (agent_push_sensor): the core itself asks no operating system. */
#ifndef YK_SENSOR_H
#define YK_SENSOR_H

#include "agent/agent.h"

struct sensor;

struct sensor_ops {
    const char *name;
    /* Fills all of out; what is not known is NULL, NaN or 0. Does not block for long. Errors: YK_IO, YK_INVAL,
     * YK_FORMAT (then everything is unknown, and why tells). */
    yk_err (*read)(struct sensor *s, struct agent_sensors *out, struct yk_diag *why);
    void (*close)(struct sensor *s);
};
struct sensor {
    const struct sensor_ops *ops;
};

/* Thermal zones, power supplies and memory below root ("" or a test's folder). */
yk_err sensor_linux_open(const char *root, struct sensor **out, struct yk_diag *why);
/* A JSON file that is read each time: {"heat", "temperature_celsius", "battery_frac", "charging",
 * "memory_available_bytes"}, all optional, unknown keys refused. */
yk_err sensor_file_open(const char *path, struct sensor **out, struct yk_diag *why);

static inline yk_err sensor_read(struct sensor *s, struct agent_sensors *out, struct yk_diag *why)
{
    return s->ops->read(s, out, why);
}
static inline void sensor_close(struct sensor *s) /* NULL allowed */
{
    if (s)
        s->ops->close(s);
}

enum sensor_heat { SENSOR_HEAT_UNKNOWN, SENSOR_NOMINAL, SENSOR_FAIR, SENSOR_SERIOUS, SENSOR_CRITICAL };
const char *sensor_heat_name(enum sensor_heat h);               /* NULL for unknown */
bool sensor_heat_find(const char *name, enum sensor_heat *out); /* exact names only */

#endif
