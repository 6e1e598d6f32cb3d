/* The inside of an agent: what its modules share. Everything here belongs to the loop thread. */
#ifndef YK_CORE_H
#define YK_CORE_H

#include "agent/agent.h"
#include "agent/cache.h"
#include "agent/emulate.h"
#include "common/chan.h"
#include "common/log.h"
#include "common/worker.h"
#include "kernels/backend.h"

#define CORE_FEATURES "fp16", "int8", "judge", "uplink", "blobs"
#define CORE_DIAL_US 3000000
#define CORE_BACKENDS BACKENDS_MAX

struct core_speed { /* of a backend, measured once */
    double gflops, gbytes_per_s;
};

struct blob_client; /* blob.c */
struct peer_server; /* peer.c */
struct link_state;  /* link.c */
struct pipeline;    /* pipeline.h */
struct runner;      /* runner.c */

struct agent {
    struct net *net;     /* what everything uses: the config's, or the emulated link in front of it */
    struct net *emu_net; /* owned; NULL if there is no emulated link */
    struct storage *storage;
    struct worker *io, *data, *runner_thread; /* data: reads, decodes and resizes samples */
    struct pool *pool;
    struct backends backends;
    struct core_speed speeds[CORE_BACKENDS];
    int n_lost;                    /* of the backends: taken out, and yoked knows */
    struct agent_emulate *emulate; /* own copy or NULL */

    char id[33], name[64], class_name[16];
    char *scheduler_url, *listen_url, *bound_url;
    char **data_roots; /* NULL-ended */
    int64_t memory_bytes;
    int threads;
    void (*on_state)(void *arg, enum agent_state state, const char *text);
    void *arg;
    enum agent_state state;
    struct agent_sensors sensors;

    struct cache *cache;
    struct blob_client *blob;
    struct peer_server *peer;
    struct link_state *link;
    struct runner *runner;
    struct pipeline *pipelines; /* by descending age; also failed ones, until they are unloaded */

    /* control.c */
    struct chan *control;      /* NULL: not connected */
    bool joined;               /* welcomed on it */
    struct core_dial *dialing; /* control */
    struct net_timer *retry_timer, *ping_timer, *hello_timer, *lease_timer;
    int64_t retry_us, lease_ms, ping_ms, term, ping_seq;
    struct {             /* spans.c: yoked's clock against net's */
        int64_t sent_us; /* of the last ping; 0: answered */
        int64_t took_us, ahead_us;
        int age; /* pings; 0: not known */
    } clock;
    int stale_welcomes;
    uint8_t nonce[16];
    bool probed, probing, closing;
    volatile bool stop; /* tells long work on the runner to end */
    struct yk_rng rng;
};

/* ---- dialling: one attempt over several URLs that can be called off ---- */
struct core_dial;
/* fn comes once, later, unless called off: conn is NULL on error. timeout_us is for each URL. */
struct core_dial *core_dial(struct agent *a, const char *const *urls, size_t n, int64_t timeout_us,
    void (*fn)(void *arg, yk_err err, struct net_conn *conn, const char *url), void *arg);
void core_dial_cancel(struct core_dial *d); /* NULL allowed */

void core_state(struct agent *a, enum agent_state state, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

/* What a hello says of this device. The arena owns the lists. */
void core_device(struct agent *a, struct yk_arena *arena, struct wire_device *out);
/* How many backends were taken out while they worked. */
int core_lost(const struct agent *a);
void core_sensors(struct agent *a, struct wire_sensors *out);

#endif
