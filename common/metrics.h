/* Counters, gauges and histograms of a process, in the Prometheus text format.
 * A metric is one row here; names get the prefix "yoke_". Thread: any (atomic, relaxed). */
#ifndef YK_METRICS_H
#define YK_METRICS_H

#include "common/yk.h"

/* C(name, help) counter, ends in _total · G(name, help) gauge · H(name, help) histogram of seconds. */
#define METRICS(C, G, H)                                                          \
    C(net_accepted_total, "Connections accepted")                                 \
    C(net_dialed_total, "Connections dialled with success")                       \
    C(net_dial_failed_total, "Dials that failed or timed out")                    \
    C(net_rx_bytes_total, "Bytes received")                                       \
    C(net_tx_bytes_total, "Bytes sent")                                           \
    G(net_connections, "Open connections")                                        \
    C(wire_refused_total, "Peers refused for version, limit or malformed frames") \
    G(agents, "Agents that are alive")                                            \
    C(agents_joined_total, "Agents that joined")                                  \
    C(agents_lost_total, "Agents whose lease ran out or connection ended")        \
    G(jobs_running, "Jobs that are not finished")                                 \
    C(jobs_done_total, "Jobs that finished well")                                 \
    C(jobs_failed_total, "Jobs that failed or were cancelled")                    \
    C(replans_total, "Plans made again after a loss")                             \
    C(microbatches_total, "Microbatches answered at the source")                  \
    C(http_requests_total, "HTTP requests answered")                              \
    C(http_refused_total, "HTTP requests refused")                                \
    H(plan_seconds, "Time to make a plan")                                        \
    H(http_seconds, "Time to answer an HTTP request")                             \
    H(job_seconds, "Time from submission to the end of a job")

enum metric {
#define X(name, help) METRIC_##name,
    METRICS(X, X, X)
#undef X
        METRIC_COUNT
};

void metrics_add(enum metric m, int64_t n);             /* counters and gauges (n < 0 lowers a gauge) */
void metrics_set(enum metric m, int64_t value);         /* gauges */
void metrics_observe_us(enum metric m, int64_t micros); /* histograms */
int64_t metrics_get(enum metric m);                     /* value; of a histogram the number of observations */
void metrics_print(struct yk_buf *out);

#endif
