/* Makes an agent behave as another device in real time while it computes real numbers: it only ever slows down.
 * JSON, all optional: gflops or stage_ms, memory_bytes, link.{bytes_per_s, up_latency_ms, down_latency_ms, duplex},
 * heat, battery, throttle.{after_s, over_s, factor} (of the link: link.throttle). Unknown keys are refused. */
#ifndef YK_EMULATE_H
#define YK_EMULATE_H

#include "common/yk.h"

struct emulate_throttle { /* from after_s on slower over over_s, until it takes factor times as long; factor 0: never */
    double after_s, over_s, factor;
};

struct agent_emulate {
    double gflops;        /* 0: not slowed */
    double stage_ms;      /* of one microbatch of any stage, instead of gflops; 0: not */
    int64_t memory_bytes; /* 0: the real one */
    double bytes_per_s;   /* of the link, all peers together; 0: not slowed */
    double up_latency_ms, down_latency_ms;
    bool half_duplex;
    char heat[16];                                   /* "": not emulated */
    double battery_frac;                             /* NaN: not emulated */
    struct emulate_throttle throttle, link_throttle; /* of computing, of the link */
};

yk_err emulate_parse(const char *text, size_t len, struct agent_emulate *out, struct yk_diag *why);
yk_err emulate_load(const char *path, struct agent_emulate *out, struct yk_diag *why);

/* The emulated link's clock: when the medium is free again, in microseconds of net_now_us. */
struct emulate_link {
    int64_t began_us;               /* first use */
    int64_t tx_free_us, rx_free_us; /* half duplex uses tx_free_us for both */
};
/* Reserves the medium for bytes; returns how long from now until the last of them is through, latency included. */
int64_t emulate_tx_delay_us(const struct agent_emulate *e, struct emulate_link *l, int64_t now_us, int64_t bytes);
int64_t emulate_rx_delay_us(const struct agent_emulate *e, struct emulate_link *l, int64_t now_us, int64_t bytes);
/* How long a microbatch of this many FLOPs takes on the device, or 0. */
double emulate_compute_ms(const struct agent_emulate *e, double flops);
/* By what a time grows, so long after the device began; whatever it declares of its heat. */
double emulate_slowdown(const struct emulate_throttle *t, double seconds);

#endif
