/* What source*.c share. */
#ifndef YK_SOURCE_PRIV_H
#define YK_SOURCE_PRIV_H

#include "agent/source.h"
#include "agent/source_data.h"

/* A microbatch on its way: the data thread reads it (READING), it lies ready (READ) until those before it are far
 * enough, goes through the stages (FLYING), and its result to yoked if it has tensors (SENDING). */
enum flight_state { FLIGHT_FREE, FLIGHT_READING, FLIGHT_READ, FLIGHT_FLYING, FLIGHT_SENDING };

struct flight {
    struct pipeline *p;
    enum flight_state state;
    int64_t microbatch, first, count; /* first: of the set; of the step's batch in training */
    struct micro micro;
    bool summed;           /* its loss is in its step's sum */
    struct out_slot *slot; /* while READING and READ; until it lands, if an output is an input */
    int64_t *labels;
    int64_t correct, read_us; /* read: when its reading began */
    yk_err err;
    struct yk_diag why;
    int tries; /* of sending the result */
    /* of a result with outputs, while SENDING */
    struct wire_tensor *tensors;
    struct net_iov *iov;
};

/* A step of a training of which microbatches have come through. */
struct step_sum {
    int64_t step, of, landed; /* of 0: free */
    int64_t samples, correct;
    float *loss; /* by index, so that the sum has one order */
};

/* A run of a job's data through the pipeline:
 *
 *   phase     what happens                                  until
 *   opening   uploads are fetched, the data thread opens    open, or over with an error
 *   open      flights go and come back                      all are back and judged; an error, a cancel, its timeout
 *   over      what flies is dropped, run_done is sent       run_done went; it is freed then, and `next` begins */
struct source_run {
    struct pipeline *p;
    struct wire_msg msg;
    const struct wire_run *w;
    struct wire_msg next; /* a run that came while this one drains; arena NULL: none */
    struct source_data data;
    struct fetch { /* of a blob into its place */
        struct source_run *run;
        struct cache_entry **into;
    } * fetches;
    int64_t samples, microbatches; /* of the run; 0 until it is open */
    int64_t at;                    /* next microbatch to look at */
    int64_t per_step, steps;       /* of a training: microbatches of a full batch (numbers of those that a smaller one
                                      lacks are left out), and steps in all */
    int64_t halt;                  /* of a training: microbatches from this one on are not begun */
    struct step_sum *sums;         /* n_flights + 1 of them */
    int64_t summed_us;             /* when the last step was through */
    int flying;
    bool open, over; /* over: run_done is sent or due, what flies is dropped */
    bool reported;
    yk_err err;
    struct yk_diag why;
    struct flight *flights;
    int64_t n_flights, began_us;
    struct net_timer *timeout;
    bool kicking, again;
    int64_t judged; /* of a training: the newest epoch that was judged */
    bool judging;
    int opening; /* jobs of opening that will come back */
};

/* source.c: the run ends, with r->why if err; the flight is over, its slot is free for the next. */
void source_end(struct pipeline *p, yk_err err);
void source_drop(struct pipeline *p, struct flight *f);

/* source_result.c: all of a flight is back. */
void source_collect(struct pipeline *p, struct flight *f);

#endif
