/* Heat, battery, pace and losses of the agents: what policy.h decides from what they report. */
#include "scheduler/fleet_priv.h"

#include "common/log.h"

#include <stdio.h>
#include <string.h>

static int64_t now_ms(const struct fleet *f)
{
    return net_now_us(f->config.net) / 1000;
}

void fleet_sense(struct fleet_agent *a)
{
    struct fleet *f = a->fleet;
    struct policy_sensors s = {a->heat, a->temperature_celsius, a->battery_frac, a->charging};
    const char *kind = NULL;
    char text[160];
    if (!policy_sense(&a->device, f->config.policy, &s, now_ms(f), &kind, text))
        return;
    memcpy(a->device_text, text, sizeof a->device_text);
    if (a->device.mode == POLICY_FULL && strcmp(kind, "cooled") == 0) {
        policy_pace_believe(&a->pace, a->slow_factor = 1); /* it was measured while it was hot */
        a->pace.slow_ms = 0;
    }
    log_info("agent %s is %s: %s", a->name, policy_mode_name(a->device.mode), text);
    fleet_save(a);
    f->config.on->changed(f->config.arg, a, kind, text);
}

void fleet_health_tick(struct fleet *f)
{
    for (struct fleet_agent *a = f->agents; a; a = a->next) {
        if (a->state != FLEET_ALIVE || a->loaded)
            continue;
        if (policy_pace_forget(&a->pace, f->config.policy, now_ms(f), &a->slow_factor)) {
            fleet_save(a);
            f->config.on->changed(
                f->config.arg, a, "recovered", "it has done nothing for a while and may be as fast as it was");
        }
    }
}

bool fleet_rests(const struct fleet_agent *a, const char **kind)
{
    *kind = a->device.drained ? "battery" : "hot";
    return a->device.mode == POLICY_RESTING;
}

bool fleet_any_rests(const struct fleet *f)
{
    for (const struct fleet_agent *a = f->agents; a; a = a->next)
        if (a->state == FLEET_ALIVE && a->device.mode == POLICY_RESTING)
            return true;
    return false;
}

double fleet_mtbf_ms(const struct fleet_agent *a)
{
    int64_t alive = a->alive_us;
    if (a->state == FLEET_ALIVE)
        alive += net_now_us(a->fleet->config.net) - a->since_us;
    return policy_mtbf(a->fleet->config.policy, (double)alive / 1e3, a->losses);
}
