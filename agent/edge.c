#include "agent/edge_priv.h"

#include "agent/load.h"
#include "agent/peer.h"
#include "agent/runner.h"
#include "agent/source.h"
#include "agent/training.h"
#include "common/hash.h"

#include <stdlib.h>
#include <string.h>

#define RECEIVER_DIALS_US 1500000 /* how long a receiver that could dial leaves it to the sender */
#define UNLOADED_US 1000000       /* a peer that unloads is a little faster than our own unload */

/* ---- slots ---- */

yk_err edge_alloc(struct pipeline *p, struct yk_diag *why)
{
    const struct shapes *max = &p->at[0].shapes;
    for (int i = 0; i < p->n_edges; i++) {
        struct edge *e = &p->edges[i];
        size_t n = e->w->values.n;
        for (size_t k = 0; k < n; k++)
            e->body_max += memplan_align(YK_MAX(shape_bytes(&max->of[e->w->values.at[k]]), 0));
        bool lossy = e->codec != CODEC_FP32 && !e->local;
        if (e->from && lossy)
            for (int k = 0; k < 2; k++)
                if (!(e->encode[k] = yk_try_aligned((size_t)e->body_max + MEMPLAN_ALIGN)))
                    return yk_fail(why, YK_NOMEM, "no memory for %lld bytes of edge %lld", (long long)e->body_max,
                        (long long)e->w->id);
        if (!e->to)
            continue;
        e->in = yk_xalloc((size_t)e->w->credits * sizeof *e->in);
        for (int64_t k = 0; k < e->w->credits; k++) {
            struct in_slot *s = &e->in[k];
            s->edge = e;
            s->t = yk_xalloc(n * sizeof *s->t + 1);
            s->body_cap = e->body_max;
            if (!e->local && (!(s->body = yk_try_aligned((size_t)e->body_max + MEMPLAN_ALIGN)) ||
                                 (lossy && !(s->decoded = yk_try_aligned((size_t)e->body_max + MEMPLAN_ALIGN)))))
                return yk_fail(why, YK_NOMEM, "no memory for %lld slots of %lld bytes of edge %lld",
                    (long long)e->w->credits, (long long)e->body_max, (long long)e->w->id);
        }
    }
    return YK_OK;
}

void edge_free(struct edge *e)
{
    for (int64_t k = 0; e->in && k < e->w->credits; k++) {
        wire_free(&e->in[k].head);
        free(e->in[k].t);
        free(e->in[k].body);
        free(e->in[k].decoded);
    }
    free(e->in);
    free(e->encode[0]);
    free(e->encode[1]);
    free(e->position);
}

/* Its place among the readers; n_readers if it is none. */
static int reader_at(const struct edge *e, const struct stage *reader)
{
    int k = 0;
    while (k < e->n_readers && e->readers[k] != reader)
        k++;
    return k;
}

bool edge_feeds(const struct edge *e, const struct stage *reader)
{
    return !e->sums && reader_at(e, reader) < e->n_readers;
}

struct in_slot *edge_ready(struct edge *e, const struct stage *reader, int64_t microbatch)
{
    uint32_t bit = 1u << reader_at(e, reader);
    for (int64_t k = 0; k < e->w->credits; k++)
        if (e->in[k].state == IN_READY && e->in[k].microbatch == microbatch && !(e->in[k].taken & bit))
            return &e->in[k];
    return NULL;
}

struct in_slot *edge_free_slot(struct edge *e)
{
    for (int64_t k = 0; k < e->w->credits; k++)
        if (e->in[k].state == IN_FREE)
            return &e->in[k];
    return NULL;
}

void edge_wake_reader(struct edge *e)
{
    if (e->sums)
        training_wake(e->to->half);
    else if (e->to == &e->p->source)
        source_kick(e->p);
    else
        runner_kick(e->p->agent);
}

void edge_out_release(struct out_slot *s)
{
    if (--s->users > 0)
        return;
    s->busy = false;
    struct pipeline *p = s->stage->p;
    if (p->state != PIPELINE_READY)
        return;
    if (s->unit)
        training_wake(s->stage->half);
    else if (s->stage == &p->source)
        source_kick(p);
    else
        runner_kick(p->agent);
}

void edge_consumed(struct in_slot *s, const struct stage *reader)
{
    struct edge *e = s->edge;
    struct out_slot *from = s->from;
    s->taken |= 1u << reader_at(e, reader);
    if (s->taken != (1u << e->n_readers) - 1)
        return;
    s->state = IN_FREE;
    s->taken = 0;
    s->from = NULL;
    if (e->local) {
        e->credits++;
        if (from)
            edge_out_release(from);
        if (e->p->state == PIPELINE_READY)
            edge_go(e);
    } else if (e->chan && e->p->state == PIPELINE_READY) {
        struct wire_credit c = {.generation = e->p->generation, .edge = e->w->id, .n = 1};
        chan_send(e->chan, WIRE_TYPE_credit, &c);
    }
}

/* ---- connecting ---- */

/* An edge to another agent comes up within the deadline of loading:
 *
 *   dial      the sender dials where it was told how; a receiver that was told dials after RECEIVER_DIALS_US
 *   adopted   a connection with the edge's ticket is ours: the ticket is used, another with it is refused
 *   up        the receiver has granted its slots, the sender knows of them
 *   closing   the peer says that it unloads: our own unload follows within UNLOADED_US, else the pipeline fails
 *
 * A connection that ends otherwise fails the pipeline at once. */

static void came_up(struct edge *e)
{
    if (e->up)
        return;
    e->up = true;
    net_timer_cancel(e->dial_timer);
    e->dial_timer = NULL;
    load_check_up(e->p);
}

static yk_err on_message(void *arg, struct chan *c, struct wire_msg *m)
{
    (void)c;
    struct edge *e = arg;
    struct pipeline *p = e->p;
    if (m->type == WIRE_TYPE_refuse && e->up && yk_err_from_name(m->as.refuse.error) == YK_CANCELED) {
        e->closing = true;
        return YK_OK;
    }
    if (m->type == WIRE_TYPE_refuse) {
        pipeline_fail(p, e->from ? e->from->index : e->to->index, e->w->peer, yk_err_from_name(m->as.refuse.error),
            "agent %s refused edge %lld: %.300s", e->w->peer, (long long)e->w->id, m->as.refuse.text);
        return YK_OK;
    }
    if (m->type != WIRE_TYPE_credit)
        return YK_OK; /* a newer minor's */
    const struct wire_credit *w = &m->as.credit;
    if (!e->from || w->generation != p->generation || w->edge != e->w->id || w->n < 1 ||
        w->n > PIPELINE_MAX_SLOTS - e->credits)
        return YK_FORMAT;
    e->credits += w->n;
    came_up(e);
    if (p->state == PIPELINE_READY)
        edge_go(e);
    return YK_OK;
}

static void on_unloaded(void *arg)
{
    struct edge *e = arg;
    e->dial_timer = NULL;
    if (e->p->state == PIPELINE_READY)
        pipeline_fail(e->p, e->from ? e->from->index : e->to->index, e->w->peer, YK_CLOSED,
            "agent %s unloaded its end of edge %lld", e->w->peer, (long long)e->w->id);
}

static void on_closed(void *arg, struct chan *c, yk_err err, const char *why)
{
    struct edge *e = arg;
    chan_close(c, false);
    if (e->chan != c)
        return;
    e->chan = NULL;
    if (e->closing && e->p->state == PIPELINE_READY)
        e->dial_timer = net_timer(e->p->agent->net, UNLOADED_US, on_unloaded, e);
    else if (e->p->state == PIPELINE_LOADING || e->p->state == PIPELINE_READY)
        pipeline_fail(e->p, e->from ? e->from->index : e->to->index, e->w->peer, err,
            "edge %lld to agent %s was lost: %s", (long long)e->w->id, e->w->peer, why);
}

static const struct chan_on on_edge = {on_message, edge_on_stream, on_closed};

/* The connection is ours; the receiver grants its slots. */
static void adopt(struct edge *e, struct chan *c)
{
    e->adopted = true;
    e->chan = c;
    core_dial_cancel(e->dialing);
    e->dialing = NULL;
    chan_set(c, &on_edge, e);
    chan_trust(c);
    if (!e->to)
        return;
    struct wire_credit credit = {.generation = e->p->generation, .edge = e->w->id, .n = e->w->credits};
    chan_send(c, WIRE_TYPE_credit, &credit);
    came_up(e);
}

bool edge_adopt(struct agent *a, struct chan *c, const struct wire_hello *h)
{
    struct pipeline *p = pipeline_find(a, h->generation);
    if (!p || (p->state == PIPELINE_LOADING && !p->wired))
        return false;
    struct edge *e = NULL;
    for (int i = 0; i < p->n_edges && !e; i++)
        if (p->edges[i].w->id == h->edge && !p->edges[i].local)
            e = &p->edges[i];
    bool right = e && h->ticket.len == e->w->ticket.len && h->ticket.len >= 16 &&
                 hash_same(h->ticket.data, e->w->ticket.data, h->ticket.len) && !strcmp(h->agent, e->w->peer);
    if (!right)
        peer_refuse(c, YK_AUTH, "the ticket is not for this edge");
    else if (e->adopted)
        peer_refuse(c, YK_AUTH, "the ticket was used");
    else if (p->state != PIPELINE_LOADING)
        peer_refuse(c, YK_STATE, "the pipeline is not waiting for this edge");
    else
        adopt(e, c);
    return true;
}

static void on_dialled(void *arg, yk_err err, struct net_conn *conn, const char *url)
{
    struct edge *e = arg;
    struct pipeline *p = e->p;
    e->dialing = NULL;
    if (err) {
        log_warn("edge %lld: cannot reach agent %s at %s: %s; waiting for its dial", (long long)e->w->id, e->w->peer,
            url, yk_err_text(err));
        yk_fail(&p->why, err, "cannot reach agent %s at %s: %s", e->w->peer, url, yk_err_text(err));
        return;
    }
    struct chan *c = chan_open(conn, &on_edge, e);
    struct wire_hello h = {.kind = "data",
        .version_major = WIRE_VERSION_MAJOR,
        .version_minor = WIRE_VERSION_MINOR,
        .agent = p->agent->id,
        .name = p->agent->name,
        .purpose = "edge",
        .ticket = e->w->ticket,
        .generation = p->generation,
        .edge = e->w->id};
    chan_send(c, WIRE_TYPE_hello, &h);
    adopt(e, c);
}

static void dial(struct edge *e)
{
    e->dialing = core_dial(e->p->agent, e->w->urls.at, e->w->urls.n, CORE_DIAL_US, on_dialled, e);
}

static void on_dial_timer(void *arg)
{
    struct edge *e = arg;
    e->dial_timer = NULL;
    if (!e->adopted)
        dial(e);
}

void edge_connect(struct pipeline *p)
{
    for (int i = 0; i < p->n_edges; i++) {
        struct edge *e = &p->edges[i];
        if (e->local) {
            e->credits = e->w->credits;
            e->up = true;
        } else if (e->adopted || !e->w->urls.n) {
            continue;
        } else if (e->from) {
            dial(e);
        } else {
            e->dial_timer = net_timer(p->agent->net, RECEIVER_DIALS_US, on_dial_timer, e);
        }
    }
}

bool edge_all_up(const struct pipeline *p)
{
    for (int i = 0; i < p->n_edges; i++)
        if (!p->edges[i].up)
            return false;
    return true;
}

void edge_close(struct edge *e)
{
    core_dial_cancel(e->dialing);
    e->dialing = NULL;
    net_timer_cancel(e->dial_timer);
    e->dial_timer = NULL;
    struct chan *c = e->chan;
    e->chan = NULL;
    if (c && e->up) {
        struct wire_refuse r = {.error = yk_err_name(YK_CANCELED), .text = "unloaded"};
        chan_send(c, WIRE_TYPE_refuse, &r);
    }
    if (c)
        chan_close(c, true);
    e->n_queue = 0;
}
