/* What fleet.c, fleet_probe.c, fleet_profile.c and fleet_health.c share. */
#ifndef YK_FLEET_PRIV_H
#define YK_FLEET_PRIV_H

#include "common/probe_end.h"
#include "scheduler/fleet.h"

struct fleet_guest;
struct fleet_profile;
struct fleet_blobs;

struct fleet {
    struct fleet_config config;
    struct fleet_agent *agents;
    struct fleet_guest *guests;
    int guests_n;
    struct net_timer *lease_timer;
    int64_t saved_us;

    struct fleet_link *links;
    struct {                   /* the one probe that runs */
        int64_t id;            /* 0: none */
        char from[33], to[33]; /* to: "" yoked */
        uint8_t ticket[16];    /* of the latter */
        struct net_timer *timer;
    } probe;
    struct probe_end *served; /* of the last probe of a way to yoked; NULL */
    int64_t next_probe;
    int64_t minute_us;
    int in_minute;

    struct fleet_profile *profiles;
    int64_t next_profile;

    struct fleet_blobs *blobs;
    int64_t next_blobs;
};

void fleet_probe_restore(struct fleet *f); /* at start: what was measured before still holds, and is due by its age */
void fleet_probe_next(struct fleet *f);    /* starts a probe if one is due and nothing is disturbed */
void fleet_probe_result(struct fleet *f, struct fleet_agent *a, const struct wire_probe_result *r);
/* It has joined. What was known of its links is from before: provisional, and worth nothing if it is seen at other
 * hosts than before. */
void fleet_probe_joined(struct fleet *f, struct fleet_agent *a);
void fleet_probe_forget(struct fleet *f, struct fleet_agent *a); /* it is away: its probe ends */
/* A connection whose hello says probe: takes it if it was asked for. */
bool fleet_probe_adopt(struct fleet *f, struct chan *c, const struct wire_hello *h);
void fleet_link_forget(struct fleet *f, const struct fleet_agent *a); /* all from and to it */
void fleet_probe_fini(struct fleet *f);
struct fleet_link *fleet_link_find(struct fleet *f, const char *from, const char *to);

void fleet_sense(struct fleet_agent *a); /* its sensors have been read */
void fleet_health_tick(struct fleet *f);

void fleet_profile_result(struct fleet_agent *a, const struct wire_profile_result *r);
/* It is away: what it was asked for is asked again, and all of it if it is emulated and may come back as another. */
void fleet_profile_forget(struct fleet *f, const struct fleet_agent *a);
void fleet_profile_fini(struct fleet *f);

void fleet_blobs_answer(struct fleet_agent *a, const struct wire_blobs_held *r);
void fleet_blobs_forget(struct fleet *f, const struct fleet_agent *a); /* it is away: who comes back may have less */
void fleet_blobs_fini(struct fleet *f);

#endif
