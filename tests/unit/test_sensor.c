#include "agent/machine.h"
#include "agent/sensor.h"
#include "tests/folder.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void put(const char *path, const char *text)
{
    char *full = yk_xasprintf("%s%s", root, path), *dir = yk_xstrdup(full);
    *strrchr(dir, '/') = 0;
    run("mkdir -p '%s'", dir);
    FILE *f = fopen(full, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
    free(dir);
    free(full);
}

static void nothing_there_is_unknown(void **state)
{
    (void)state;
    struct sensor *s;
    struct agent_sensors got;
    assert_int_equal(sensor_linux_open("/nonexistent-root", &s, NULL), YK_OK);
    assert_int_equal(sensor_read(s, &got, NULL), YK_OK);
    assert_null(got.heat);
    assert_true(isnan(got.temperature_celsius) && isnan(got.battery_frac));
    assert_int_equal(got.memory_available_bytes, 0);
    sensor_close(s);
}

static void levels_follow_trip_points(void **state)
{
    (void)state;
    static const struct {
        const char *temp, *heat;
    } steps[] = {{"40000", "nominal"}, {"71000", "fair"}, {"80500", "serious"}, {"79000", "serious"},
        {"80500", "serious"}, {"78000", "serious"}, {"76900", "fair"}, {"66000", "nominal"}, {"96000", "critical"},
        {"99999000", NULL}};
    put("/sys/class/thermal/thermal_zone0/type", "x86_pkg_temp\n");
    put("/sys/class/thermal/thermal_zone0/trip_point_0_type", "passive\n");
    put("/sys/class/thermal/thermal_zone0/trip_point_0_temp", "80000\n");
    put("/sys/class/thermal/thermal_zone0/trip_point_1_type", "critical\n");
    put("/sys/class/thermal/thermal_zone0/trip_point_1_temp", "100000\n");
    struct sensor *s;
    struct agent_sensors got;
    assert_int_equal(sensor_linux_open(root, &s, NULL), YK_OK);
    for (size_t i = 0; i < YK_COUNT(steps); i++) {
        put("/sys/class/thermal/thermal_zone0/temp", steps[i].temp);
        assert_int_equal(sensor_read(s, &got, NULL), YK_OK);
        if (!steps[i].heat)
            assert_null(got.heat); /* a broken sensor says nothing */
        else
            assert_string_equal(got.heat, steps[i].heat);
    }
    sensor_close(s);
}

static void noise_at_a_limit_changes_once(void **state)
{
    (void)state;
    struct sensor *s;
    struct agent_sensors got;
    const char *last = NULL;
    int changes = 0;
    assert_int_equal(sensor_linux_open(root, &s, NULL), YK_OK);
    for (int i = 0; i < 40; i++) {
        put("/sys/class/thermal/thermal_zone0/temp", i % 2 ? "81000" : "79000");
        assert_int_equal(sensor_read(s, &got, NULL), YK_OK);
        changes += last && strcmp(last, got.heat) != 0;
        last = got.heat;
    }
    assert_true(changes <= 1);
    sensor_close(s);
}

static void batteries_and_memory(void **state)
{
    (void)state;
    put("/sys/class/power_supply/BAT0/type", "Battery\n");
    put("/sys/class/power_supply/BAT0/capacity", "42\n");
    put("/sys/class/power_supply/BAT0/status", "Discharging\n");
    put("/sys/class/power_supply/mouse/type", "Battery\n");
    put("/sys/class/power_supply/mouse/scope", "Device\n");
    put("/sys/class/power_supply/mouse/capacity", "3\n");
    put("/sys/class/power_supply/AC/type", "Mains\n");
    put("/proc/meminfo", "MemTotal:       8000 kB\nMemAvailable:   4000 kB\n");
    put("/proc/self/cgroup", "0::/a/b\n");
    put("/sys/fs/cgroup/a/memory.max", "3000000\n");
    put("/sys/fs/cgroup/a/memory.current", "1000000\n");
    put("/sys/fs/cgroup/a/b/memory.max", "max\n");
    struct sensor *s;
    struct agent_sensors got;
    assert_int_equal(sensor_linux_open(root, &s, NULL), YK_OK);
    assert_int_equal(sensor_read(s, &got, NULL), YK_OK);
    assert_true(fabs(got.battery_frac - 0.42) < 1e-12);
    assert_false(got.charging);
    assert_int_equal(got.memory_available_bytes, 2000000);
    put("/proc/self/cgroup", "4:memory:/x/y\n0::/a/b\n"); /* both versions: the tighter one counts */
    put("/sys/fs/cgroup/memory/x/memory.limit_in_bytes", "1500000\n");
    put("/sys/fs/cgroup/memory/x/memory.usage_in_bytes", "300000\n");
    put("/sys/fs/cgroup/memory/x/y/memory.limit_in_bytes", "9223372036854771712\n");
    put("/sys/fs/cgroup/memory/x/y/memory.usage_in_bytes", "200000\n");
    assert_int_equal(sensor_read(s, &got, NULL), YK_OK);
    assert_int_equal(got.memory_available_bytes, 1200000);
    put("/sys/class/power_supply/BAT0/status", "Charging\n");
    put("/sys/class/power_supply/BAT0/capacity", "130\n");
    put("/proc/meminfo", "garbage\n");
    assert_int_equal(sensor_read(s, &got, NULL), YK_OK);
    assert_true(got.charging && got.battery_frac == 1);
    assert_int_equal(got.memory_available_bytes, 0);
    sensor_close(s);
}

static void file_is_read_each_time(void **state)
{
    (void)state;
    char *path = yk_xasprintf("%s/sensor.json", root);
    struct sensor *s;
    struct agent_sensors got;
    struct yk_diag why;
    put("/sensor.json", "{\"heat\": \"serious\", \"battery_frac\": 0.25, \"temperature_celsius\": 41.5}");
    assert_int_equal(sensor_file_open(path, &s, &why), YK_OK);
    assert_int_equal(sensor_read(s, &got, &why), YK_OK);
    assert_string_equal(got.heat, "serious");
    assert_true(got.battery_frac == 0.25 && got.temperature_celsius == 41.5 && !got.charging);
    put("/sensor.json", "{\"heat\": \"nominal\", \"charging\": true}");
    assert_int_equal(sensor_read(s, &got, &why), YK_OK);
    assert_string_equal(got.heat, "nominal");
    assert_true(isnan(got.battery_frac) && got.charging);
    static const char *const bad[] = {"{\"heat\": \"hot\"}", "{\"warmth\": 1}", "{\"battery_frac\": 7}", "[", "[]"};
    for (size_t i = 0; i < YK_COUNT(bad); i++) {
        put("/sensor.json", bad[i]);
        assert_int_not_equal(sensor_read(s, &got, &why), YK_OK);
        assert_non_null(strstr(why.text, "sensor.json"));
        assert_null(got.heat);
    }
    sensor_close(s);
    free(path);
}

static void the_machine_answers(void **state)
{
    (void)state;
    char os[128];
    machine_os(os, sizeof os);
    assert_true(strlen(os) > 0);
    assert_true(machine_cores() >= 1);
    assert_true(machine_memory_available("") > 0);
    int64_t a = machine_monotonic_us();
    assert_true(machine_monotonic_us() >= a);
    assert_true(machine_cpu_us() >= 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nothing_there_is_unknown),
        cmocka_unit_test(levels_follow_trip_points),
        cmocka_unit_test(noise_at_a_limit_changes_once),
        cmocka_unit_test(batteries_and_memory),
        cmocka_unit_test(file_is_read_each_time),
        cmocka_unit_test(the_machine_answers),
    };
    return cmocka_run_group_tests(tests, folder_open, folder_close);
}
