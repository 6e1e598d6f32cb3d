/* What the exact solver's parts share: indexes of the graph and the fleet, made once a search (solve_index.c); bounds
 * of what is still to be placed, made once an interval of bottlenecks (solve_bound.c); the search (solve_dp.c). */
#ifndef YK_SOLVE_SEARCH_H
#define YK_SOLVE_SEARCH_H

#include "scheduler/solve_dp.h"

#define SOLVE_EFFORT 20000000 /* steps of one search, some 0.3 s: behind it the best so far is taken */

/* A prefix of the nodes that is placed. */
struct label {
    int32_t parent, next, next_at; /* label indexes; next: of the same state, next_at: of the same position */
    int32_t pos, agent, stages;
    uint32_t used;
    bool dead;
    double sum, top; /* top: the largest load */
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
    double pace;       /* of all agents that are left */
    double top_factor; /* times the work that is left: the largest of their loads at least */
    double *rest_ms;   /* [i]: NaN until it is known */
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
    double low, high;      /* of the bottleneck; nothing above high is looked at */
    double *relaxed;       /* [agent * (n + 1) + i]: nodes i.. if i begins a stage on it, agents used again */
    double *relaxed_least; /* [i]: over all agents, and which that is; relaxed_other: over the others */
    double *relaxed_other;
    int32_t *relaxed_on;
    double *enter_least; /* [i]: a transfer into a stage that begins at i or behind it costs no less */
    double *tree;        /* [agent * 2 * tree_size ..]: least of ranges of positions */
    int32_t tree_size, *last_end;
    struct bound_row *rows, spare_row;
    int32_t n_rows, cap_rows;
    int32_t *row_of; /* hash of used */
    /* the search */
    struct label *labels;
    int32_t n_labels, cap_labels;
    double *loads;         /* [label * n_grow] */
    int8_t *owners, *keys; /* [label * max_live]: by place in cuts.at[pos].values; -1 the source */
    int32_t max_live;
    int32_t *head;  /* by position: first label */
    int32_t *state; /* hash of position, agents and owners: first label */
    int32_t state_slots, n_states;
    double *inbound, *loaded; /* loads while a stage is tried */
    int32_t stride;           /* cuts of this pass: every so many nodes */
    double limit;             /* of cost */
    double left;              /* no chain that was not looked at costs less */
    int64_t effort;
    struct solve_chain *best;
    int32_t most, n_best;
};

/* Where a stage may begin or end in this pass. */
static inline bool solve_search_cut(const struct search *s, int32_t i)
{
    return i == s->n || (i % s->stride == 0 && !s->cuts.at[i].forbidden);
}

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

/* No stage of these nodes, nor a longer one, fits there. */
static inline bool solve_search_never_fits(const struct search *s, int32_t agent, int32_t p, int32_t q)
{
    return s->least[q] - s->least[p] > s->m->view->agents[agent].memory_bytes;
}

/* Of m, source, n and n_agents. Errors: as cut_all. End with solve_search_fini, after an error too. */
yk_err solve_search_index(struct search *s, struct yk_diag *why);
void solve_search_fini(struct search *s);
bool solve_search_fits(struct search *s, int32_t agent, int32_t p, int32_t q);

/* Makes the bounds for bottlenecks up to high. */
void solve_search_bound(struct search *s, double high);
/* Good until the bounds are made again or another row is asked for. */
struct bound_row solve_search_row(struct search *s, uint32_t used);
/* The first position behind which the agents that are left have room for the work below the interval's end. */
int32_t solve_search_earliest(const struct search *s, const struct bound_row *r, int32_t from);
double solve_search_make_rest(const struct search *s, const struct bound_row *r, int32_t pos);

/* What nodes pos.. add to the sum at least, on the agents that are left. INFINITY: they cannot be placed there. */
static inline double solve_search_rest(const struct search *s, const struct bound_row *r, int32_t pos)
{
    double ms = r->rest_ms[pos];
    return ms == ms ? ms : solve_search_make_rest(s, r, pos); /* NaN: not known yet */
}

#endif
