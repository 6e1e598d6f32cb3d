/* One end of a probe connection, which measures the path to whoever has the other end; both may send and receive. An
 * end sends pieces as fast as a window lets it that grows with what is acknowledged, and counts what comes. The end
 * that was dialled does what probe_start says and tells what it counted; the one that dialled (agent/link.c) leads.
 * Loop. */
#ifndef YK_PROBE_END_H
#define YK_PROBE_END_H

#include "common/chan.h"

#define PROBE_END_BUDGET_MS 5000 /* of one direction, at most */

struct probe_end;
struct probe_end_on {
    /* What came and is not the ends' own business; NULL: the end was dialled, and answers itself. */
    yk_err (*message)(void *arg, struct wire_msg *m);
    void (*closed)(void *arg, yk_err err, const char *why); /* call probe_end_close, now or later */
};

/* Takes c. cpu_us: processor time of this process so far. */
struct probe_end *probe_end_open(
    struct net *net, struct chan *c, int64_t (*cpu_us)(void), const struct probe_end_on *on, void *arg);
void probe_end_close(struct probe_end *e); /* no callback runs afterwards */
struct chan *probe_end_chan(struct probe_end *e);
void probe_end_room(struct probe_end *e, int64_t bytes); /* what is sent and not acknowledged stays below it */

void probe_end_receive(struct probe_end *e, const char *dir); /* counts anew */
void probe_end_send(struct probe_end *e, int64_t budget_ms, int64_t budget_bytes);
double probe_end_rate(const struct probe_end *e);                  /* bytes/s of what came; 0: not known */
int64_t probe_end_sent(const struct probe_end *e);                 /* bytes, since probe_end_send */
double probe_end_cpu_ns(const struct probe_end *e, int64_t bytes); /* for each of them, since it began; 0 of none */

#endif
