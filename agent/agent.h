/* The embedding API: one device of a fleet, inside any process. No globals, signals, fork or working directory; two can
 * live in one process. Everything it knows of the outside comes through `net`, `storage` and the callbacks. */
#ifndef YK_AGENT_H
#define YK_AGENT_H

#include "common/net.h"
#include "common/storage.h"

struct agent;
struct agent_emulate; /* agent/emulate.h */

enum agent_state { AGENT_CONNECTING, AGENT_JOINED, AGENT_REFUSED, AGENT_SUSPENDED, AGENT_CLOSED };

struct agent_config {
    struct net *net;           /* borrowed; every call below on its loop */
    struct storage *storage;   /* borrowed: identity, weight cache, profiles */
    const char *scheduler_url; /* dials yoked here, again and again with growing pauses (0.2 s .. 5 s, jitter) ... */
    const char *listen_url; /* ... and/or is dialled here, for control and data; default "tcp://127.0.0.1:0" for data */
    const char *name;       /* NULL: from the identity */
    const char *class_name; /* phone | workstation | cloud; NULL: workstation */
    int64_t memory_bytes;   /* budget; 0: three quarters of what is available, less if that is little */
    int threads;            /* 0: all cores */
    bool threaded;          /* false: no threads at all (virtual time, wasm) */
    const char *backend;    /* "auto", "ref", "blas", "/path/plugin.so", ...; several with commas */
    int64_t backend_timeout_ms, backend_check_every; /* of shared objects: kernels/backend.h; 0: the defaults */
    const char *const *data_roots;                   /* NULL-ended; nothing else is ever served */
    const struct agent_emulate *emulate;             /* NULL: itself */
    void (*on_state)(void *arg, enum agent_state state, const char *text); /* may be NULL */
    void *arg;
};

yk_err agent_open(const struct agent_config *config, struct agent **out, struct yk_diag *why);
/* What the embedding app measured, for what the agent cannot read itself (battery and heat on a phone). */
struct agent_sensors {
    const char *heat;                         /* nominal | fair | serious | critical; NULL unknown */
    double temperature_celsius, battery_frac; /* NaN unknown */
    bool charging;
    int64_t memory_available_bytes; /* 0 unknown */
    bool told;                      /* by a person: what is known here goes over what an emulated device says */
};
void agent_push_sensor(struct agent *a, const struct agent_sensors *s);
void agent_memory_warning(struct agent *a);   /* drops caches and idle stages */
void agent_suspend(struct agent *a);          /* the system will freeze us: says leave, closes connections */
void agent_resume(struct agent *a);           /* joins again under the same identity */
const char *agent_url(const struct agent *a); /* where it listens */
/* Leaves cleanly, waits for the running segment, frees. No callback runs afterwards. */
void agent_close(struct agent *a);

#endif
