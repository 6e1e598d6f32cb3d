/* What the frame around the solvers is made of: candidates by microbatch size (solve_pool.c), the given plan
 * (solve_given.c), the finished plan (solve_make.c); solve.c searches. */
#ifndef YK_SOLVE_POOL_H
#define YK_SOLVE_POOL_H

#include "scheduler/candidate.h"
#include "scheduler/solve_dp.h"

#define SOLVE_POOL_CHAINS 6 /* best chains kept of each search */
#define SOLVE_DEPTH 8       /* depths that are looked at in any case */

/* One microbatch size with everything that was found for it. */
struct size_pool {
    struct cost_model model;
    struct candidate *at;
    int32_t n;
    bool ready;
    bool whole_known;
    struct memtrain_part whole[2];   /* of a training */
    int64_t whole_fixed, whole_each; /* bytes of the whole model on one device, and for each of the depth */
};

struct pool {
    struct size_pool sizes[SOLVE_SIZES];
    int32_t n;
    double least_ms; /* cost of the best candidate so far */
    double bound_ms; /* no chain that was searched for costs less */
    double stop_ms;  /* 0: never */
    double limit_ms; /* of a step, by objective cloud-cost; else INFINITY */
    double cloud_ms; /* no chain within it takes less of the cloud for a step */
    struct solve_trail trail;
    bool stopped;      /* the time is over */
    double least_step; /* of what was scored, by the event model */
};

void solve_pool_fini(struct pool *p);
/* Takes line. */
struct candidate *solve_pool_add(struct size_pool *p, struct cost_line *line);
bool solve_pool_single(const struct candidate *c);
/* Every single device, for every source that may be; the reasons why one cannot go to `reasons`. */
void solve_pool_singles(struct size_pool *p, int32_t source, struct yk_buf *reasons);
yk_err solve_pool_chain(struct size_pool *p, const struct solve_chain *chain, struct yk_diag *why);
/* searches: how many of them this plan makes: sizes times sources. */
/* Two sets of nodes on the source and another agent, for the latency of a graph with branches; the best of each other
 * agent that is below what is known. */
yk_err solve_pool_sets(struct pool *pool, struct size_pool *p, int32_t source, struct yk_diag *why);
/* Chains that take little of the cloud within pool->limit_ms: without it, if that can be, else the least. */
yk_err solve_pool_thrift(struct pool *pool, struct size_pool *p, int32_t source, struct yk_diag *why);
yk_err solve_pool_splits(struct pool *pool, struct size_pool *p, int32_t source, int32_t searches, struct yk_diag *why);
/* Several pipelines of one source, if they are through earlier than any of them alone: in small fleets the best of all,
 * which needs to be asked for but once (*all is set then); else made of what is in the pool. cloudless: only of those
 * that take nothing of the cloud. */
yk_err solve_pool_replicas(
    struct pool *pool, struct size_pool *p, int32_t source, bool cloudless, bool *all, struct yk_diag *why);

/* single: the best single device, or NULL. others: alternatives, sorted. */
struct plan *solve_pool_plan(const struct solve_request *req, const struct cost_model *m,
    const struct candidate *chosen, const struct candidate *single, const struct candidate *const *others,
    int32_t n_others, const char *solver);

/* req->forced checked and priced. Errors: as struct solver's. */
yk_err solve_pool_given(const struct solve_request *req, const struct view *v, struct plan **out, struct yk_diag *why);

#endif
