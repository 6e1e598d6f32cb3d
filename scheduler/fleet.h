/* The registry: agents with their connections and leases, links between them, profiles of models. Owned by the loop. */
#ifndef YK_FLEET_H
#define YK_FLEET_H

#include "common/chan.h"
#include "scheduler/policy.h"
#include "scheduler/store.h"
#include "scheduler/view.h"

struct fleet;
struct graph;

enum fleet_state { FLEET_AWAY, FLEET_ALIVE };

struct fleet_agent {
    struct fleet *fleet;
    struct fleet_agent *next;
    char id[33], name[64], class_name[16], os[64];
    enum fleet_state state;
    struct chan *control; /* NULL: away */
    struct chan *blob;    /* NULL: not connected */
    char **urls;
    int n_urls;
    int64_t cores, threads, memory_bytes;
    bool emulated;
    bool judges;                 /* it knows the message */
    bool uplinks;                /* it can measure its way to yoked */
    bool tells_blobs;            /* which weights it has */
    double gflops, gbytes_per_s; /* of its fastest backend */
    char backends[160];          /* "blas@blas-0.3.21-Zen,ref@generic" */
    bool refused;                /* it goes without one, which failed a test or was taken out */
    char heat[16];
    double temperature_celsius, battery_frac, load;
    bool charging;
    int64_t memory_available_bytes;
    double slow_factor;     /* measured by profiled, of what it ran lately; 1: as profiled */
    struct fleet_measured { /* what slow_factor was measured on; NULL: nothing yet */
        char *graph;        /* its hash */
        uint8_t *nodes;     /* a byte for each of its nodes */
        int32_t n_nodes;
        int64_t generation;
    } measured;
    struct policy_device device;
    struct policy_pace pace;
    char device_text[160];              /* why it is warm or rests */
    int64_t since_us, alive_us, losses; /* it joined; it was alive before that, and went away so often */
    int64_t reserved_bytes;             /* of loaded stages */
    int loaded;                         /* generations on it */
    int64_t last_seen_us;
    char address[400]; /* the hosts it was seen at: where it joined from, then those of its urls */
};

struct fleet_link { /* directed */
    struct fleet_link *next;
    char from[33], to[33]; /* agent ids; "": yoked */
    double bytes_per_s, latency_ms, cpu_ns_per_byte;
    bool half_duplex;
    int64_t measured_us; /* of the loop's clock; 0: not tried */
    int failures;        /* in a row, of a kind that may pass */
    bool provisional;    /* from before an end of it joined again: used, and measured again when it is quiet */
    char url[200];       /* where `to` was dialled for it; "": it dialled */
    char text[160];      /* why it could not be measured */
};

struct fleet_on {
    void (*joined)(void *arg, struct fleet_agent *a);
    void (*lost)(void *arg, struct fleet_agent *a, const char *why); /* control is gone; a stays known, away */
    /* Anything that is not the fleet's own business: loaded, run_started, result, run_done, stage_stats, stage_failed,
     * and a ping that names loaded generations. */
    yk_err (*message)(void *arg, struct fleet_agent *a, struct wire_msg *msg);
    /* A result stream on the blob connection. */
    yk_err (*stream)(void *arg, struct fleet_agent *a, struct wire_msg *head, struct chan_sink *sink);
    /* Content an agent asks for. */
    yk_err (*blob)(void *arg, const char *hash, const uint8_t **data, int64_t *bytes, struct yk_diag *why);
    bool (*quiet)(void *arg); /* nothing runs that a probe would disturb or be disturbed by */
    /* Its mode has changed ("hot", "warm", "battery", "cooled"), or how fast it is believed to be ("recovered"). */
    void (*changed)(void *arg, struct fleet_agent *a, const char *kind, const char *text);
    /* The link between them, measured again, is far (FLEET_LINK_FAR) from what plans took it for. */
    void (*relinked)(void *arg, struct fleet_agent *a, struct fleet_agent *b, bool better, const char *text);
};

struct fleet_config {
    struct net *net;
    struct store *store;
    int64_t term, lease_ms;
    const struct policy *policy; /* borrowed; NULL: policy_default */
    int64_t probe_every_ms;      /* links are measured again after this; 0: 600000 */
    const struct fleet_on *on;
    void *arg;
};

struct fleet *fleet_open(const struct fleet_config *c);
void fleet_close(struct fleet *f);
void fleet_accept(void *fleet, struct net_conn *conn); /* a net_on_accept */

struct fleet_agent *fleet_first(struct fleet *f);                        /* walk with ->next */
struct fleet_agent *fleet_find(struct fleet *f, const char *name_or_id); /* alive or away; NULL */
int fleet_alive(const struct fleet *f);
yk_err fleet_send(struct fleet_agent *a, enum wire_type type, const void *msg); /* YK_CLOSED if away */
void fleet_save(struct fleet_agent *a);
/* It takes no stage; *kind: "hot" or "battery". */
bool fleet_rests(const struct fleet_agent *a, const char **kind);
bool fleet_any_rests(const struct fleet *f);       /* of those that are alive */
double fleet_mtbf_ms(const struct fleet_agent *a); /* the mean time until it is lost */
/* False if no agent that is known, alive or away, has a backend of this isa, and one says that it goes without one. */
bool fleet_has_isa(const struct fleet *f, const char *isa);
/* "tcp://127.0.0.1:4000" as `viewer` reaches `a`. */
const char *fleet_url(const struct fleet_agent *a, const struct fleet_agent *viewer);

#define FLEET_LINK_FAR POLICY_FAR /* times the rate before, or the latency and FLEET_LATENCY_FAR_MS */
#define FLEET_LATENCY_FAR_MS 1.0
/* True when every pair of alive agents has been measured or tried; else starts what is missing (bounded per minute). */
bool fleet_links_ready(struct fleet *f);
/* The same of the ways between yoked and its agents, where there is a choice; what cannot be measured now is not waited
 * for. */
bool fleet_uplinks_ready(struct fleet *f);
/* As fleet_links_ready, and no figure is from before one of them joined again: what is not urgent waits for that. */
bool fleet_links_fresh(struct fleet *f);

/* ---- profiles ---- */
/* A graph at sizes of its named dimensions other than the batch, for this use: what a profile is of. */
struct fleet_graph {
    const char *key; /* names all of it */
    const char *hash;
    const struct wire_size *others;
    size_t n_others;
    bool training; /* its weights change between runs */
};
/* From now on what is measured of a's speed is of these nodes of a graph, unless it comes from an older generation.
 * True if they are others than before. */
bool fleet_measures(struct fleet_agent *a, int64_t generation, const char *graph_hash, const uint8_t *nodes, int32_t n);
/* True when a has a profile of this graph (or has failed to give one). Else asks for it (once). */
bool fleet_profile_ready(struct fleet_agent *a, const struct fleet_graph *graph, const int64_t *sizes, int n_sizes);
/* ---- weights ---- */
/* True when it is known which weights of the graph (of this hash) a has, or nobody can know. Else asks for it. */
bool fleet_blobs_ready(struct fleet_agent *a, const char *hash, const struct graph *g);
/* It has loaded these nodes (a byte for each): what they need is there. */
void fleet_blobs_loaded(struct fleet_agent *a, const char *hash, const struct graph *g, const uint8_t *nodes);
void fleet_blobs_view(const struct fleet *f, struct view *v, const char *hash); /* fills view_agent.lacks */

/* The snapshot for a graph. Away agents are left out. free with view_free. exclude_generation's reservation counts not.
 */
struct view *fleet_view(struct fleet *f, const char *graph); /* graph: a key, or NULL */

#endif
