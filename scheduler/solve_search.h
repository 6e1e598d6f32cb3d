/* What the exact solver's parts share: indexes of the graph and the fleet, made once a search (solve_index.c); bounds
 * of what is still to be placed, made once an interval of bottlenecks (solve_relax.c, solve_bound.c); the search
 * (solve_dp.c), pass by pass (solve_pass.c). */
#ifndef YK_SOLVE_SEARCH_H
#define YK_SOLVE_SEARCH_H

#include "scheduler/solve_dp.h"

#include <math.h>

#define SOLVE_SLACK 0.25 /* chains that cost so much more than the best are not kept beside it */
#define SOLVE_TOLERANCE 0.01
#define SOLVE_EFFORT 20000000 /* steps of one search, some 0.3 s: behind it the best so far is taken */

/* A prefix of the nodes that is placed. */
struct label {
    int32_t parent, next; /* label indexes; next: of the same state */
    int32_t pos, agent, stages;
    uint32_t used;
    bool dead;
    double sum, top; /* top: the largest load */
    double least;    /* no completion costs less */
    double cloud;    /* of sum: compute on class cloud; in thrift */
    int64_t held;    /* around: bytes of the first stage, where its agent may be too small for a last one too */
};

struct waiting { /* the least key first */
    double key;
    int32_t label;
};

/* What crosses into a stage that begins at a cut, in parts: a stage that ends at or behind from[k] reads part k and
 * those before it. */
#define SOLVE_PARTS 6
struct parts {
    int32_t n, from[SOLVE_PARTS]; /* from: stops */
    double fresh[SOLVE_PARTS];    /* bytes that the stage before made for sure: of the node before the cut */
    double older[SOLVE_PARTS];    /* of some stage before */
    double input[SOLVE_PARTS];    /* of the source */
    uint8_t any[SOLVE_PARTS];     /* 1 fresh, 2 older, 4 input: also of values without bytes */
};

/* Places where stages begin and end: cuts, or groups of cuts. Place 0 is in front of all nodes, place n behind. */
struct grid {
    int32_t n;
    int32_t *first, *last; /* positions of the first and the last cut of a place */
    int32_t *apart;        /* a stage that begins here and ends in front of this place did not make what is older */
    struct parts *parts;   /* from: places */
    double *entry;         /* [(place * n_agents + agent) * SOLVE_PARTS + part]: over the best link */
};

struct way { /* a link with its messages */
    double per_byte_ms, fixed_ms;
};

struct live {    /* a value that crosses a cut */
    int32_t use; /* first node behind the cut that reads it */
    int32_t k;   /* place in the cut's values */
};

struct pair { /* the link from one agent to another */
    bool there;
    double per_byte_ms, latency_ms;
    int32_t resource;
};

/* Memory plans that were made lately: a full table of all stages would grow with the square of the graph. */
struct remembered {
    int32_t p, q; /* q 0: empty */
    int64_t bytes;
};

/* Bounds for one set of used agents: filled where they are asked for. */
struct bound_row {
    uint32_t used;
    int32_t slot;      /* in row_of */
    int32_t earliest;  /* the first stop behind which the agents that are left have room below the interval's end */
    double pace;       /* of all agents that are left */
    double rents;      /* of all agents that are left */
    double top_factor; /* times the work that is left: the largest of their loads at least */
    double *rest_ms;   /* [stop]: NaN until it is known */
    double *far_ms;    /* [stop]: known with it; with a toll, what solve_relax.c says, nothing of the toll paid back */
};

/* What solve_relax.c makes for one set of rents. */
#define SOLVE_BLOCK 8
struct relaxation {
    double *relaxed;   /* [agent * (n + 1) + i]: nodes i.. if i begins a stage on it, agents used again */
    double *then;      /* [agent * (n + 1) + i]: nodes i.. behind a stage on it */
    double *ends;      /* [(agent * 2 + apart) * (n + 1) + place]: what an end there leads to, and the time up to it */
    double *blocks;    /* [(agent * 2 + apart) * (n / SOLVE_BLOCK + 1) + i]: of the ends of so many places */
    int32_t *last_end; /* [agent * (n + 1) + place]: the last place where a stage can end that begins there */
};

struct search {
    const struct cost_model *m;
    int32_t source;
    int32_t n, n_agents; /* nodes, agents */
    struct cuts cuts;
    /* the graph */
    int32_t *uses, *use_at; /* consumers of value v: uses[use_at[v] .. use_at[v + 1]), ascending */
    int32_t *live_at;       /* [i]: where the live values of cut i begin in live */
    struct live *live;      /* of each cut: by their next use */
    int64_t *bytes;         /* by value, in the codec of the request */
    int32_t *returns;       /* [i]: outputs of the graph that the nodes before i make */
    int64_t *back;          /* [i]: their bytes */
    bool early;             /* an output is made before the last node */
    /* agents and links */
    double *prefix;   /* [agent * (n + 1) + i]: time of the first i nodes that it can run */
    int32_t *runs_to; /* [agent * (n + 1) + i]: a stage that begins at i can end there at the latest */
    double *pace;     /* [agent]: 1 over its time of all nodes that it can run; 0 if it takes no part */
    int32_t *by_pace; /* agents that take part, the fastest first */
    int32_t n_by_pace;
    double *work;       /* [i]: of nodes i.., the sum of the least pace[a] * time on a */
    struct pair *pairs; /* [(from + 1) * n_agents + to] */
    struct way *ways;   /* [to * n_agents + k]: those into an agent that cost the same are one */
    int32_t *way_of;    /* [from * n_agents + to]: k */
    int32_t *weight;    /* [agent]: 1; in a search over kinds of agents: how many there are */
    int32_t *turns;     /* [agent]: stages that a chain may have on it: weight; of the source maybe one more */
    bool *twin;         /* [agent]: another can change places with it */
    int32_t *first_alike;
    int32_t *alike;  /* [agent]: the agent before it that it can change places with, -1: none */
    int32_t *speaks; /* [agent]: the first agent that owns values at the same price for every reader; maybe itself */
    double *in_per_byte, *in_latency; /* [agent]: the least of the links into it; INFINITY: none */
    /* resources whose load grows in more than one step; others only count when their step is made */
    int32_t *grows; /* by resource: place in a label's loads, -1 */
    int32_t n_grow;
    uint8_t *grow_agent; /* by place: an agent other than the source */
    /* memory */
    struct remembered *memory; /* by a hash of (p, q) */
    int64_t *takes, *large;    /* [i]: bytes of the nodes before i, and the largest workspace: memory from above */
    int64_t *least;            /* [i]: weights that only one node reads, of the nodes before i: memory from below */
    uint8_t *in_stage;
    /* bounds of the interval */
    double low, high; /* of the bottleneck; nothing above high is looked at */
    struct relaxation now, spare;
    double *rent, *fair; /* [agent]: price of a stage on it, so that none is taken too often */
    double stride;       /* of changes of rents */
    double toll;    /* price of as much time on the source as it has; more than once that is paid by chains around */
    double *tolled; /* [i]: time of the first i nodes on the source, with its toll */
    double *enter_least; /* [i]: a transfer into a stage that begins at i or behind it costs no less */
    int32_t *made_at;
    struct grid fine, groups;
    int32_t *group_of; /* by stop */
    bool grouped;      /* groups are worth a pass of their own */
    struct bound_row *rows, spare_row;
    int32_t n_rows, cap_rows;
    int32_t *row_of; /* hash of used */
    /* the search */
    bool around;  /* for chains that begin and end on the source */
    bool thrift;  /* for the least compute on class cloud, at no more cost than limit */
    double *paid; /* thrift: [k * (n + 1) + i]: nodes i.. on the agents for which the k-th price of time and what is
                   * taken of the cloud are least */
    struct label *labels;
    int32_t n_labels, cap_labels;
    double *loads;         /* [label * n_grow] */
    int8_t *owners, *keys; /* [label * max_live]: by place in cuts.at[pos].values; -1 the source */
    int32_t max_live;
    struct waiting *queue; /* a heap */
    int32_t n_queue, cap_queue;
    int32_t *state; /* hash of position, agents and owners: first label */
    int32_t state_slots, n_states;
    double *inbound, *loaded; /* loads while a stage is tried */
    int32_t *stop, n_stops;   /* cuts of this pass, ascending: 0 first; and then n */
    int32_t *stop_of;         /* [i]: the first stop at or behind i */
    bool strict;              /* stages of the relaxation fit their agents */
    bool rough;               /* a pass that only looks for good chains */
    double limit;             /* of cost */
    double left;              /* no chain that was not looked at costs less */
    int64_t effort, patience; /* behind so much effort chains that save less than SOLVE_TOLERANCE are given up */
    bool impatient;           /* that has come */
    struct solve_chain *best;
    struct solve_trail *trail; /* or NULL */
    int32_t most, n_best;
};

static inline const struct pair *solve_search_pair(const struct search *s, int32_t from, int32_t to)
{
    return &s->pairs[(size_t)(from + 1) * (size_t)s->n_agents + (size_t)to];
}

/* Time of nodes p..q-1 on an agent. */
static inline double solve_search_ms(const struct search *s, int32_t agent, int32_t p, int32_t q)
{
    const double *at = s->prefix + (size_t)agent * ((size_t)s->n + 1);
    return at[q] - at[p];
}

/* The agent may get another stage. */
static inline bool solve_search_free(const struct search *s, uint32_t used, int32_t agent)
{
    return !(used >> agent & 1) || (s->around && agent == s->source);
}

static inline double solve_search_message_ms(const struct search *s, int32_t agent)
{
    return YK_MAX(s->m->view->agents[agent].message_ms, 0.0);
}

/* A last stage on the source may find there what the first one made. */
static inline bool solve_search_has_older(const struct search *s, int32_t agent)
{
    return s->turns[agent] > s->weight[agent];
}

static inline const struct way *solve_search_ways(const struct search *s, int32_t agent)
{
    return s->ways + (size_t)agent * (size_t)s->n_agents;
}

/* What the agent before a cut made of the k-th part, and all that is older unless it comes apart. INFINITY: there is no
 * way, or it is busy for longer than any resource may be. */
static inline double solve_search_way_ms(
    const struct search *s, const struct way *way, const struct parts *in, int32_t k, bool apart)
{
    if (!(in->any[k] & (apart ? 1 : 3)))
        return 0;
    double busy = (COST_HEADER_BYTES + in->fresh[k] + (apart ? 0 : in->older[k])) * way->per_byte_ms;
    return busy > s->high ? INFINITY : busy + way->fixed_ms;
}

/* No stage of these nodes, nor a longer one, fits there. */
static inline bool solve_search_never_fits(const struct search *s, int32_t agent, int32_t p, int32_t q)
{
    return s->least[q] - s->least[p] > s->m->view->agents[agent].memory_bytes;
}

/* Of m, source, n and n_agents. Errors: as cut_all. End with solve_search_fini, after an error too. */
yk_err solve_search_index(struct search *s, struct yk_diag *why);
void solve_search_fini(struct search *s);
bool solve_search_fits(struct search *s, int32_t agent, int32_t p, int32_t q);
/* The stages of nodes p..q-1 and r..n-1, both on the source. */
bool solve_search_fits_both(struct search *s, int64_t held, int32_t p, int32_t q, int32_t r);
/* What a stage on the source holds, where it may not have room for nodes r..n-1 too; else 0. */
int64_t solve_search_held(struct search *s, int32_t p, int32_t q, int32_t r);
/* From now on chains begin and end on the source. */
void solve_search_around(struct search *s);

/* The first label: inputs are on their way. */
void solve_search_root(struct search *s);
/* All chains whose bottleneck is from low to the last bound's and that may cost less than the limit; the bounds are
 * made. */
void solve_search_interval(struct search *s, double low);

/* Prices of time against compute on the cloud: for any of them, paid less the price of the time that is left is a bound
 * of what nodes still take of the cloud. */
#define SOLVE_PRICES 8
static const double solve_prices[SOLVE_PRICES] = {0.01, 0.03, 0.1, 0.2, 0.4, 0.8, 1.5, 4};
bool solve_search_is_cloud(const struct search *s, int32_t agent);

static inline double solve_search_cost(const struct search *s, double sum, double top)
{
    return sum + (double)(s->m->count - 1) * top;
}

/* After the stops of a pass were set. */
void solve_search_stops(struct search *s);
/* What inputs of the graph take into an agent; INFINITY: there is no link. */
double solve_search_input_ms(const struct search *s, int32_t agent, double bytes);
/* The link from the source is busy for longer than any resource may be. */
bool solve_search_barred(const struct search *s, int32_t agent, const struct parts *in, int32_t k);
/* A part from whoever made it, over the best link. */
double solve_search_entry_ms(const struct search *s, int32_t agent, const struct parts *in, int32_t k);
/* Of it what is older. */
double solve_search_older_ms(const struct search *s, int32_t agent, const struct parts *in, int32_t k);
/* The part behind a stage on agent `from`, which made what is fresh, and what is older too unless that comes apart. */
double solve_search_entry_from_ms(
    const struct search *s, int32_t from, int32_t agent, const struct parts *in, int32_t k, bool apart);
/* Makes the bounds for bottlenecks up to high, of the first nodes on: wanted_ms is enough. */
void solve_search_bound(struct search *s, double high, double wanted_ms);
/* Of any nodes on, after that. */
void solve_search_bound_labels(struct search *s);
/* The path of the last bound of labels, agents by their kind, maybe more often than there are. False: it has none. */
bool solve_search_path(struct search *s, struct solve_chain *path, double *sum_ms, double *top_ms);
void solve_search_forget_rows(struct search *s);
/* Good until the bounds are made again or another row is asked for. */
const struct bound_row *solve_search_row(struct search *s, uint32_t used);
double solve_search_make_rest(const struct search *s, const struct bound_row *r, int32_t stop);

/* Times of the first i nodes, as bounds count them. */
static inline const double *solve_search_priced(const struct search *s, int32_t agent)
{
    return s->toll > 0 && agent == s->source ? s->tolled : s->prefix + (size_t)agent * ((size_t)s->n + 1);
}

/* What the nodes behind a stop add to the sum at least, on the agents that are left; the source takes load_ms already.
 * INFINITY: they cannot be placed there. */
static inline double solve_search_rest(const struct search *s, const struct bound_row *r, int32_t stop, double load_ms)
{
    double ms = r->rest_ms[stop];
    if (ms != ms) /* not known yet */
        ms = solve_search_make_rest(s, r, stop);
    return s->toll > 0 ? YK_MAX(ms, r->far_ms[stop] + s->toll * (load_ms / s->high) * (1 - 1e-12)) : ms;
}

#endif
