#include "agent/sensor.h"

#include <string.h>

static const char *const names[] = {NULL, "nominal", "fair", "serious", "critical"};

const char *sensor_heat_name(enum sensor_heat h)
{
    return names[h];
}

bool sensor_heat_find(const char *name, enum sensor_heat *out)
{
    for (size_t i = 1; i < YK_COUNT(names); i++)
        if (!strcmp(name, names[i])) {
            *out = (enum sensor_heat)i;
            return true;
        }
    return false;
}
