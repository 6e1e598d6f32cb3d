/* When a device is spared, when a job moves, how often a training is saved: functions from what was measured to a
 * decision, with no clock and no fleet of their own. Who calls them acts on it (jobs_review.c, jobs_train.c).
 *
 * A device is full, warm or resting. Warm: the planner counts it as slower, so that its share shrinks. Resting: it gets
 * no stage, and what runs there is drained. It goes up at once, but not sooner than hold_ms after it came down; it
 * comes down a step only when it was where it is for hold_ms and what it reports is clearly below the limit. So noise
 * at a limit makes at most one transition per hold-off.
 *
 * What a device declares is one thing, what stages take is the other: the measured factor (struct policy_pace) is in
 * every prediction, whatever the device says of its heat. */
#ifndef YK_POLICY_H
#define YK_POLICY_H

#include "common/yk.h"

struct policy {
    /* Devices. */
    double hot_celsius;   /* it rests from here; 0: only where it calls its heat serious or critical */
    double warm_celsius;  /* so far below that it is warm */
    double cool_celsius;  /* so far below a limit that limit is left */
    double warm_share;    /* of its speed that the planner counts while it is warm, over 0 to 1 */
    double battery_floor; /* it rests below, and is warm up to POLICY_BATTERY_WARM above, unless it is charging */
    double battery_rise;  /* so far above a limit that limit is left */
    double battery_loss;  /* lost while it is plugged in: warm; twice that: it rests. 0: not looked at */
    int64_t hold_ms;      /* between two transitions back and forth */
    /* Jobs. */
    int64_t dwell_ms; /* a plan runs at least this long before another one is looked for */
    double move_gain; /* of the step's time that another plan must gain */
    int64_t rest_ms;  /* how long a job waits for devices that rest */
    /* Checkpoint sets. */
    int64_t mtbf_ms;  /* how long an agent is expected to stay, before it was seen to */
    double set_share; /* of a link that sets may take */
    int64_t set_min_ms, set_max_ms;
};
#define POLICY_BATTERY_WARM 0.1
#define POLICY_BATTERY_FULL 0.8    /* a device that keeps its battery between here and full is not losing it */
#define POLICY_CRITICAL_CELSIUS 10 /* over the limit: no hold-off counts */

extern const struct policy policy_default;

/* ---- devices ---- */

enum policy_mode { POLICY_FULL, POLICY_WARM, POLICY_RESTING };
const char *policy_mode_name(enum policy_mode m);

struct policy_sensors {
    const char *heat;                         /* nominal | fair | serious | critical; "" or NULL unknown */
    double temperature_celsius, battery_frac; /* NaN unknown, also a battery of 0 */
    bool charging;
};

struct policy_device { /* zeroed: full, never moved */
    enum policy_mode mode;
    bool moved, came_down;
    int64_t since_ms;
    double best_battery, worst_battery; /* while it is plugged in and while it rests; 0: not yet */
    bool drained;                       /* why it is where it is: its battery, not its heat */
};

/* Takes what a device reports. True if its mode has changed: then kind is "hot", "warm", "battery" or "cooled", and
 * text says why, with the limit. text: 160 bytes. */
bool policy_sense(struct policy_device *d, const struct policy *p, const struct policy_sensors *s, int64_t now_ms,
    const char **kind, char *text);
/* What of its speed counts. */
double policy_share(const struct policy_device *d, const struct policy *p);

/* ---- speed ---- */

#define POLICY_WINDOWS 3      /* measurements whose median is believed at once, if it is far off */
#define POLICY_FAR 1.25       /* that far */
#define POLICY_QUIET 4        /* dwells without a change: the next is told at once */
#define POLICY_MICROBATCHES 8 /* of one measurement, at least */
#define POLICY_TOOK_MS 300    /* and so much time in them: what does little is not judged by a moment's noise */

struct policy_pace { /* zeroed: nothing measured */
    double recent[POLICY_WINDOWS];
    int n;
    double told;     /* the factor when it was last said to have changed; 0: 1 */
    int64_t told_ms; /* when that was; 0: never, or long ago */
    int told_far;    /* what was told: 1 slower, -1 faster */
    int far;         /* of told, now: the same, since far_ms */
    int64_t far_ms;
    int64_t slow_ms; /* when it was last found to be slow; 0: it is not */
    int relapses;    /* how often since it was last believed to have recovered */
};

/* A measured factor (what stages took by what they should have taken) of a device whose factor was *slow. Small changes
 * are taken slowly, large ones at once when three in a row agree. True if *slow is far from what it
 * was when this was last true, and where that was the other way and not long ago (POLICY_QUIET) if it has been so for
 * the dwell. */
bool policy_pace_add(struct policy_pace *p, const struct policy *policy, double factor, int64_t now_ms, double *slow);
/* Measuring begins anew, from this. */
void policy_pace_believe(struct policy_pace *p, double slow);
/* What such a factor says of nodes of a model that were not measured, where frac of its work was: one measurement
 * cannot tell a slow device from a profile that is wrong about these nodes, so it counts for others by the share of the
 * work it is about (of the factor's logarithm). */
double policy_pace_rest(double factor, double frac);
/* Nothing runs on it, so nothing is measured: after the hold-off, doubled with each relapse, it is believed to be as
 * fast as it was profiled. True if *slow has changed. */
bool policy_pace_forget(struct policy_pace *p, const struct policy *policy, int64_t now_ms, double *slow);

/* ---- moving ---- */

/* Whether it pays to go from a plan to another: both predicted under what is known today, measured_ms of the one that
 * runs (0: not yet), for the steps that are left, at the cost of moving. The gain must be twice the cost. */
bool policy_pays(
    const struct policy *p, double now_ms, double other_ms, double measured_ms, double steps_left, double move_ms);

/* ---- trial ---- */

#define POLICY_TRIAL_STEPS 3 /* decide */
#define POLICY_TRIAL_AFTER 5 /* measured steps of a pipeline */

/* The middle of n measured steps, the first left out if there are more: it has what a start costs. NaN of none. */
double policy_middle(const double *ms, int n);

/* ---- checkpoint sets ---- */

/* Milliseconds between two sets: sqrt(2 C M) for the cost C of a set and the mean time M between losses, within the
 * bounds, and no less than what keeps sets below their share of the slowest link, of which one takes link_ms.
 * Source: J. W. Young, A first order approximation to the optimum checkpoint interval, CACM 17(9), 1974; J. T. Daly,
 * A higher order estimate of the optimum checkpoint interval for restart dumps, FGCS 22(3), 2006 (its first order). */
double policy_set_interval(const struct policy *p, double cost_ms, double mtbf_ms, double link_ms);
/* That an interval is told of, where the last that was told of had told_ms (0: none). */
bool policy_interval_differs(double told_ms, double interval_ms);
/* The mean time between losses of one agent: what is expected, corrected by what was seen of it. */
double policy_mtbf(const struct policy *p, double alive_ms, int64_t losses);

#endif
