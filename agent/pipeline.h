/* A loaded generation: the stages of it that this agent holds, the edges at their borders, and the source's side if the
 * job's data is here. Made by load.c, run by runner.c, fed by source.c, connected by edge.c.
 *
 * Memory moves in slots. A stage (and the source, stage -1) owns output slots; an edge's receiving end owns input
 * slots, one per credit. A microbatch is in an output slot until every edge took it: over a connection that is when its
 * bytes were sent, on the same agent when the consumer is done with it (nothing is copied). A credit goes back when an
 * input slot is consumed, so the slowest consumer sets the pace of everything before it. Graph outputs whose shape
 * depends on data have no place in a slot: it holds memory for them that grows with what was made, on both sides. */
#ifndef YK_PIPELINE_H
#define YK_PIPELINE_H

#include "agent/core.h"
#include "common/plan.h"
#include "common/train_config.h"
#include "kernels/exec.h"

#define PIPELINE_MAX_EDGES 1024
#define PIPELINE_MAX_STAGES 256
#define PIPELINE_MAX_SLOTS PLAN_MAX_DEPTH
#define PIPELINE_MAX_READERS 16
#define PIPELINE_MADE_LIMIT ((int64_t)1 << 30) /* bytes of an output whose shape depends on data */

struct edge;
struct stage;
struct pipeline_training; /* training.h */
struct half;
struct train_unit;

struct micro { /* of a training: a microbatch's place; steps: of the whole training */
    int64_t step, index, of, steps;
};

struct out_slot {
    struct stage *stage;
    struct train_unit *unit; /* of an edge of sums: whose step ends with it; else NULL */
    int64_t microbatch, count;
    struct micro micro;
    bool busy;
    int users;        /* edges that have not taken it */
    struct tensor *t; /* by position in the stage's out */
    uint8_t *mem;
    struct made { /* by position - n_planned */
        uint8_t *mem;
        int64_t cap;
    } * made;
};

enum in_state { IN_FREE, IN_RECEIVING, IN_DECODING, IN_READY };
struct in_slot {
    struct edge *edge;
    enum in_state state;
    int64_t microbatch, count, began_us; /* began: to come */
    struct micro micro;
    struct tensor *t; /* by position in the edge's values */
    uint8_t *body;    /* as received; NULL on a local edge */
    int64_t body_cap;
    uint8_t *decoded;      /* NULL unless the codec is lossy */
    struct out_slot *from; /* local: whose tensors t are */
    uint32_t taken;        /* a bit per reader of the edge that is done with it */
    struct wire_msg head;  /* while RECEIVING and DECODING */
    yk_err err;
    struct yk_diag why;
};

/* A message being encoded or sent. */
struct sending {
    struct edge *edge;
    struct out_slot *from;
    struct wire_tensor *tensors;
    double **scales;
    struct net_iov *iov;
    int n_iov;
    int64_t bytes, began_us;
    int buffer; /* of the edge's encode buffers; -1: none */
    uint8_t *buf;
    double error;
    int64_t nonfinite;
};

struct edge {
    struct pipeline *p;
    const struct wire_edge *w;
    enum plan_codec codec;
    struct stage *from, *to;                     /* those that are here */
    struct stage *readers[PIPELINE_MAX_READERS]; /* `to` first, then the other stages here that read of it */
    int n_readers;
    bool local;
    bool sums; /* no microbatches: what training_shared.c brings together behind a step */
    struct chan *chan;
    struct core_dial *dialing;
    struct net_timer *dial_timer; /* the receiver waits a moment for the sender's dial */
    bool up, adopted, closing;
    int64_t credits; /* sender: free slots there */
    int64_t body_max;
    struct in_slot *in;                         /* receiver: w->credits of them */
    struct out_slot *queue[PIPELINE_MAX_SLOTS]; /* sender: waiting for credit, in order */
    int n_queue;
    uint8_t *encode[2]; /* lossy: buffers, NULL while in use */
    bool encoding;
    int *position; /* by value of the edge: where it is in the producer's out */
};

struct stage_input {
    struct edge *edge;
    int position; /* in the edge's values */
};

struct stage {
    struct pipeline *p;
    int64_t index; /* -1: the source */
    const struct wire_stage *w;
    uint8_t *in_stage; /* a byte per node */
    const char **forms;
    struct exec *exec; /* NULL in a training, which has half */
    struct half *half;
    int64_t depth;
    int32_t n_in, n_out; /* of the source: n_out graph inputs, n_in graph outputs */
    int32_t n_planned;   /* those from here on have shapes that depend on data */
    const int32_t *in_values, *out_values;
    int32_t *own_out;           /* memory of out_values, if it is ours */
    struct stage_input *inputs; /* by position; edge NULL (source only): the value is a graph input or a weight */
    struct out_slot *outs;      /* depth of them; the source has one more, without memory until pipeline_spare */
    bool running;
    /* since the last stage_stats */
    int64_t microbatches, sent_bytes, nonfinite, late;
    double compute_ms, wait_ms, send_ms, codec_error;
    int64_t idle_since_us;
};

enum pipeline_state { PIPELINE_LOADING, PIPELINE_READY, PIPELINE_FAILED, PIPELINE_DYING };

struct load_blob { /* a weight or the skeleton */
    char hex[HASH_HEX_SIZE];
    int64_t bytes;
    struct cache_entry *entry;
};

struct pipeline_shapes { /* at one number of samples */
    int64_t count;
    struct shapes shapes;
    double *flops; /* by stage here */
};

struct pipeline {
    struct agent *agent;
    struct pipeline *next;
    enum pipeline_state state;
    struct wire_msg msg; /* owns everything of load */
    const struct wire_load *load;
    int64_t generation, term;
    bool is_source;
    int busy; /* jobs and fetches that will come back */
    yk_err err;
    struct yk_diag why;

    /* load.c */
    struct pipeline_training *training; /* NULL: none */
    struct cache_entry *skeleton;
    struct graph *graph;
    int32_t batch_sym;            /* -1: fixed */
    int64_t full;                 /* samples of a full microbatch */
    int64_t *sizes;               /* by sym, at most */
    struct pipeline_shapes at[2]; /* full, and the last other one */
    struct load_blob *blobs;
    size_t n_blobs, fetching;
    const void **weight; /* by value id */
    int64_t fetched_bytes, began_us, memory_bytes;
    int64_t lacking_bytes; /* of the budget, where that refuses it */
    struct net_timer *timeout;
    bool wired; /* slots are there, edges may be adopted */

    struct stage *stages;
    int n_stages;
    struct stage source; /* if is_source */
    struct edge *edges;
    int n_edges;
    struct net_timer *stats_timer;
    struct span_log *spans; /* spans.c; NULL until there is one */
    struct source_run *run; /* source.c */
    int64_t used_us;
    int64_t turn_us; /* runner.c: of the agent's time when it has had its part */
};

struct pipeline *pipeline_find(struct agent *a, int64_t generation);
struct stage *pipeline_stage(struct pipeline *p, int64_t index); /* one that is here, -1: the source; else NULL */
/* Shapes for count samples (fixed batch: always the full ones); borrowed until the next call with another count. NULL
 * on error. */
const struct pipeline_shapes *pipeline_shapes(struct pipeline *p, int64_t count, struct yk_diag *why);
/* Something broke: loaded with error while loading, stage_failed after. Nothing of it runs until it is unloaded. */
void pipeline_fail(struct pipeline *p, int64_t stage, const char *peer, yk_err err, const char *fmt, ...)
    __attribute__((format(printf, 5, 6)));
/* Gives the source the slot that it reads ahead into. False if the memory is not there; it does without then. */
bool pipeline_spare(struct pipeline *p);
/* Now and then: what failed or rested for too long goes, so that nothing stays for ever. */
void pipeline_expire(struct agent *a);
/* Takes it out of the agent; frees when the last job came back. */
void pipeline_unload(struct pipeline *p);
void pipeline_release(struct pipeline *p); /* busy--, and the end if it is dying */

#endif
