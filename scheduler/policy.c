#include "scheduler/policy.h"

#define INTERVAL_DIFFERS 1.25

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const struct policy policy_default = {.hot_celsius = 0,
    .warm_celsius = 5,
    .cool_celsius = 3,
    .warm_share = 0.5,
    .battery_floor = 0.2,
    .battery_rise = 0.05,
    .battery_loss = 0.02,
    .hold_ms = 60000,
    .dwell_ms = 30000,
    .move_gain = 0.1,
    .rest_ms = 3600000,
    .mtbf_ms = 3600000,
    .set_share = 0.05,
    .set_min_ms = 5000,
    .set_max_ms = 300000};

/* ---- devices ---- */

const char *policy_mode_name(enum policy_mode m)
{
    static const char *const names[] = {"full", "warm", "resting"};
    return names[m];
}

struct wish { /* where a device should be, and why */
    enum policy_mode mode;
    bool critical, battery;
    char text[160];
};

static void want(struct wish *w, enum policy_mode mode, bool battery, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
static void want(struct wish *w, enum policy_mode mode, bool battery, const char *fmt, ...)
{
    va_list args;
    if (mode <= w->mode)
        return;
    va_start(args, fmt);
    vsnprintf(w->text, sizeof w->text, fmt, args);
    va_end(args);
    w->mode = mode;
    w->battery = battery;
}

static void look_at_heat(
    struct wish *w, const struct policy_device *d, const struct policy *p, const struct policy_sensors *s)
{
    const char *heat = s->heat ? s->heat : "";
    double t = s->temperature_celsius, hot = p->hot_celsius, warm = hot - p->warm_celsius;
    bool serious = strcmp(heat, "serious") == 0, critical = strcmp(heat, "critical") == 0;
    if (critical || serious)
        want(w, POLICY_RESTING, false, "its heat is %s", heat);
    else if (strcmp(heat, "fair") == 0)
        want(w, POLICY_WARM, false, "its heat is fair");
    w->critical = w->critical || critical;
    if (!(hot > 0) || isnan(t))
        return;
    w->critical = w->critical || t >= hot + POLICY_CRITICAL_CELSIUS;
    /* A limit that was passed is left only clearly below it. */
    if (t >= hot - (d->mode == POLICY_RESTING ? p->cool_celsius : 0))
        want(w, POLICY_RESTING, false, "%.1f degrees, the limit is %.1f (hot-celsius)", t, hot);
    else if (t >= warm - (d->mode >= POLICY_WARM ? p->cool_celsius : 0))
        want(w, POLICY_WARM, false, "%.1f degrees, %.1f below the limit (warm-celsius)", t, hot - t);
}

static void look_at_battery(
    struct wish *w, struct policy_device *d, const struct policy *p, const struct policy_sensors *s)
{
    double b = s->battery_frac, floor = p->battery_floor;
    if (isnan(b) || b <= 0) { /* who has none, and who does not say */
        d->best_battery = d->worst_battery = 0;
        return;
    }
    w->critical = w->critical || b < floor / 2;
    if (b < floor + (d->mode == POLICY_RESTING && d->drained ? p->battery_rise : 0))
        want(w, POLICY_RESTING, true, "battery at %.0f %%, the floor is %.0f %% (battery-floor)", 100 * b, 100 * floor);
    else if (!s->charging && b < floor + POLICY_BATTERY_WARM + (d->mode >= POLICY_WARM ? p->battery_rise : 0))
        want(w, POLICY_WARM, true, "battery at %.0f %%, near the floor of %.0f %%", 100 * b, 100 * floor);
    /* Plugged in and yet emptier than it was: it uses more than it gets. */
    if (!s->charging || !(p->battery_loss > 0) || b >= POLICY_BATTERY_FULL) {
        d->best_battery = s->charging ? b : 0;
        d->worst_battery = b;
        return;
    }
    d->worst_battery = d->worst_battery > 0 ? YK_MIN(d->worst_battery, b) : b;
    if (b >= d->worst_battery + p->battery_rise) /* it does charge now */
        d->best_battery = b;
    d->best_battery = YK_MAX(d->best_battery, b);
    double lost = d->best_battery - b, slack = 1e-9;
    enum policy_mode stay = d->drained && lost > slack ? d->mode : POLICY_FULL; /* until it has risen */
    if (lost >= 2 * p->battery_loss - slack || stay == POLICY_RESTING)
        want(w, POLICY_RESTING, true, "battery fell to %.0f %% while it was charging (battery-loss)", 100 * b);
    else if (lost >= p->battery_loss - slack || stay == POLICY_WARM)
        want(w, POLICY_WARM, true, "battery falls while it is charging, to %.0f %% (battery-loss)", 100 * b);
}

bool policy_sense(struct policy_device *d, const struct policy *p, const struct policy_sensors *s, int64_t now_ms,
    const char **kind, char *text)
{
    struct wish w = {.mode = POLICY_FULL};
    look_at_heat(&w, d, p, s);
    look_at_battery(&w, d, p, s);
    bool held = d->moved && now_ms - d->since_ms < p->hold_ms;
    if (w.mode == d->mode)
        return false;
    if (w.mode > d->mode && held && d->came_down && !w.critical)
        return false;
    if (w.mode < d->mode && held)
        return false;
    bool up = w.mode > d->mode;
    if (up)
        *kind = w.battery ? "battery" : w.mode == POLICY_WARM ? "warm" : "hot";
    else
        *kind = "cooled";
    if (up)
        snprintf(text, 160, "%s", w.text);
    else if (w.mode == POLICY_WARM)
        snprintf(text, 160, "it is used again, with %.0f %% of its speed: %.110s", 100 * p->warm_share, w.text);
    else
        snprintf(text, 160, "%s, for the %lld s of the hold-off", d->drained ? "its battery holds" : "it has cooled",
            (long long)(p->hold_ms / 1000));
    if (!up)
        d->worst_battery = d->best_battery = 0;
    *d = (struct policy_device){.mode = w.mode,
        .moved = true,
        .came_down = !up,
        .since_ms = now_ms,
        .best_battery = d->best_battery,
        .worst_battery = d->worst_battery,
        .drained = w.battery};
    return true;
}

double policy_share(const struct policy_device *d, const struct policy *p)
{
    return d->mode == POLICY_WARM ? YK_MAX(p->warm_share, 0.01) : 1;
}

/* ---- speed ---- */

static int by_value(const void *x, const void *y)
{
    double a = *(const double *)x, b = *(const double *)y;
    return (a > b) - (a < b);
}

static double median(const double *v, int n)
{
    double sorted[16];
    n = YK_MIN(n, 16);
    memcpy(sorted, v, (size_t)n * sizeof *v);
    qsort(sorted, (size_t)n, sizeof *sorted, by_value);
    return n % 2 ? sorted[n / 2] : (sorted[n / 2 - 1] + sorted[n / 2]) / 2;
}

static bool is_far(double a, double b)
{
    return a > b * POLICY_FAR || a < b / POLICY_FAR;
}

/* At once if it goes on as it went or nothing was told lately, else once it has held: what goes up and down is not told
 * each time. */
static bool to_tell(struct policy_pace *p, const struct policy *policy, double slow, int64_t now_ms)
{
    double told = p->told > 0 ? p->told : 1;
    int side = !is_far(slow, told) ? 0 : slow > told ? 1 : -1;
    if (side != p->far)
        p->far_ms = now_ms;
    p->far = side;
    bool quiet = !p->told_ms || side == p->told_far || now_ms - p->told_ms >= POLICY_QUIET * policy->dwell_ms;
    if (!side || (!quiet && now_ms - p->far_ms < policy->dwell_ms))
        return false;
    p->told = slow;
    p->told_far = side;
    p->told_ms = YK_MAX(now_ms, (int64_t)1);
    p->far = 0;
    return true;
}

bool policy_pace_add(struct policy_pace *p, const struct policy *policy, double factor, int64_t now_ms, double *slow)
{
    factor = YK_MAX(0.5, YK_MIN(50.0, factor));
    p->recent[p->n++ % POLICY_WINDOWS] = factor;
    if (p->n >= 2 * POLICY_WINDOWS)
        p->n -= POLICY_WINDOWS; /* which of them is replaced next stays the same */
    double middle = median(p->recent, YK_MIN(p->n, POLICY_WINDOWS));
    if (p->n < POLICY_WINDOWS) /* a single one is believed little */
        middle = YK_MAX(*slow / POLICY_FAR, YK_MIN(*slow * POLICY_FAR, factor));
    if (p->n >= POLICY_WINDOWS && is_far(middle, *slow))
        *slow = middle;
    else
        *slow += 0.2 * (middle - *slow);
    if (p->n < POLICY_WINDOWS)
        return false;
    if (middle > POLICY_FAR) {
        p->relapses += p->slow_ms == 0;
        p->slow_ms = YK_MAX(now_ms, (int64_t)1);
    } else { /* it is well, measured */
        p->slow_ms = 0;
        p->relapses = 0;
    }
    return to_tell(p, policy, *slow, now_ms); /* also when it creeps there */
}

void policy_pace_believe(struct policy_pace *p, double slow)
{
    p->n = p->far = 0;
    p->told = slow;
    p->told_ms = 0;
}

double policy_pace_rest(double factor, double frac)
{
    return factor > 0 ? pow(factor, YK_MAX(0.0, YK_MIN(1.0, frac))) : factor;
}

bool policy_pace_forget(struct policy_pace *p, const struct policy *policy, int64_t now_ms, double *slow)
{
    int64_t hold = YK_MAX(policy->hold_ms, (int64_t)1) << YK_MAX(0, YK_MIN(p->relapses - 1, 6));
    if (*slow <= POLICY_FAR || !p->slow_ms || now_ms - p->slow_ms < hold)
        return false;
    p->slow_ms = 0; /* relapses stay: who is slow again waits longer */
    policy_pace_believe(p, *slow = 1);
    return true;
}

/* ---- moving ---- */

bool policy_pays(
    const struct policy *p, double now_ms, double other_ms, double measured_ms, double steps_left, double move_ms)
{
    if (!(now_ms > 0) || !(other_ms > 0) || other_ms > now_ms * (1 - p->move_gain))
        return false;
    double step = measured_ms > 0 ? measured_ms : now_ms;
    return step * (1 - other_ms / now_ms) * steps_left > 2 * move_ms;
}

double policy_middle(const double *ms, int n)
{
    int first = n > 1;
    return n > 0 ? median(ms + first, n - first) : NAN;
}

/* ---- checkpoint sets ---- */

double policy_set_interval(const struct policy *p, double cost_ms, double mtbf_ms, double link_ms)
{
    double best = sqrt(2 * YK_MAX(cost_ms, 0.0) * YK_MAX(mtbf_ms, 0.0));
    best = YK_MIN(YK_MAX(best, (double)p->set_min_ms), (double)p->set_max_ms);
    return p->set_share > 0 ? YK_MAX(best, link_ms / p->set_share) : best;
}

bool policy_interval_differs(double told_ms, double interval_ms)
{
    return !(told_ms > 0 && interval_ms < INTERVAL_DIFFERS * told_ms && told_ms < INTERVAL_DIFFERS * interval_ms);
}

double policy_mtbf(const struct policy *p, double alive_ms, int64_t losses)
{
    return ((double)p->mtbf_ms + YK_MAX(alive_ms, 0.0)) / (double)(1 + losses);
}
