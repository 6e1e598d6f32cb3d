/* The net in memory, on virtual time, one thread, repeatable by seed: the loop. Streams are in net_mem_stream.c.
 *
 * Everything that happens is an event in one heap, ordered by time and then by a seeded tie, so simultaneous events
 * come in another order with another seed. What must keep its order (posts, the bytes of one direction) is a queue of
 * its own: the event only says "the next one", so ties cannot reorder it. */
#include "common/net_mem.h"

#include <stdlib.h>

/* ---- events ---- */

static bool before(const struct event *a, const struct event *b)
{
    if (a->at_us != b->at_us)
        return a->at_us < b->at_us;
    return a->tie != b->tie ? a->tie < b->tie : a->seq < b->seq;
}

static void heap_put(struct mem *m, size_t slot, struct event *e)
{
    m->heap[slot] = e;
    e->slot = slot;
}

static void heap_up(struct mem *m, size_t slot)
{
    struct event *e = m->heap[slot];
    for (size_t up; slot > 0 && before(e, m->heap[up = (slot - 1) / 2]); slot = up)
        heap_put(m, slot, m->heap[up]);
    heap_put(m, slot, e);
}

static void heap_down(struct mem *m, size_t slot)
{
    struct event *e = m->heap[slot];
    for (;;) {
        size_t child = 2 * slot + 1;
        if (child >= m->n)
            break;
        if (child + 1 < m->n && before(m->heap[child + 1], m->heap[child]))
            child++;
        if (!before(m->heap[child], e))
            break;
        heap_put(m, slot, m->heap[child]);
        slot = child;
    }
    heap_put(m, slot, e);
}

static void heap_remove(struct mem *m, struct event *e)
{
    size_t slot = e->slot;
    struct event *last = m->heap[--m->n];
    if (last == e)
        return;
    heap_put(m, slot, last);
    heap_up(m, slot);
    heap_down(m, last->slot);
}

struct event *net_mem_event_add(struct mem *m, int64_t at_us, net_fn fn, void *arg)
{
    struct event *e = yk_xalloc(sizeof *e);
    e->base.net = &m->base;
    e->at_us = YK_MAX(at_us, m->now_us);
    e->tie = yk_rng_next(&m->ties);
    e->seq = m->seq++;
    e->fn = fn;
    e->arg = arg;
    if (m->n == m->cap) {
        m->cap = m->cap ? m->cap * 2 : 64;
        m->heap = yk_xrealloc(m->heap, m->cap * sizeof *m->heap);
    }
    heap_put(m, m->n++, e);
    heap_up(m, e->slot);
    return e;
}

void net_mem_event_cancel(struct event *e)
{
    if (e) {
        heap_remove(net_mem_of(e->base.net), e);
        free(e);
    }
}

/* Runs the next event if it is due by `until`. */
static bool step(struct mem *m, int64_t until_us)
{
    if (m->n == 0 || m->heap[0]->at_us > until_us)
        return false;
    struct event *e = m->heap[0];
    heap_remove(m, e);
    m->now_us = e->at_us;
    net_fn fn = e->fn;
    void *arg = e->arg;
    free(e);
    fn(arg);
    return true;
}

static int64_t mem_now_us(struct net *net)
{
    return net_mem_of(net)->now_us;
}

int64_t net_mem_later(int64_t now_us, int64_t delay_us)
{
    int64_t at;
    return yk_add_i64(now_us, YK_MAX(delay_us, (int64_t)0), &at) ? at : INT64_MAX;
}

static struct net_timer *mem_timer(struct net *net, int64_t delay_us, net_fn fn, void *arg)
{
    struct mem *m = net_mem_of(net);
    return &net_mem_event_add(m, net_mem_later(m->now_us, delay_us), fn, arg)->base;
}

static void mem_timer_cancel(struct net_timer *t)
{
    net_mem_event_cancel((struct event *)t);
}

static void on_post(void *arg)
{
    struct mem *m = arg;
    struct post p = *m->posts;
    free(m->posts);
    m->posts = p.next;
    p.fn(p.arg);
}

static void mem_post(struct net *net, net_fn fn, void *arg)
{
    struct mem *m = net_mem_of(net);
    struct post *p = yk_xalloc(sizeof *p);
    p->fn = fn;
    p->arg = arg;
    if (m->posts)
        *m->posts_end = p;
    else
        m->posts = p;
    m->posts_end = &p->next;
    net_mem_event_add(m, m->now_us, on_post, m);
}

static void mem_random(struct net *net, void *buf, size_t len)
{
    struct mem *m = net_mem_of(net);
    for (uint8_t *p = buf; len--; p++)
        *p = (uint8_t)(yk_rng_next(&m->numbers) >> 56);
}

/* ---- the net ---- */

static void mem_run(struct net *net)
{
    struct mem *m = net_mem_of(net);
    m->stopped = false;
    while (!m->stopped && step(m, INT64_MAX)) {}
}

void net_mem_run_for(struct net *net, int64_t us)
{
    struct mem *m = net_mem_of(net);
    int64_t until = net_mem_later(m->now_us, us);
    m->stopped = false;
    while (!m->stopped && step(m, until)) {}
    m->now_us = YK_MAX(m->now_us, until);
}

static void mem_stop(struct net *net)
{
    net_mem_of(net)->stopped = true;
}

static void mem_close(struct net *net)
{
    struct mem *m = net_mem_of(net);
    net_mem_streams_fini(m);
    for (size_t i = 0; i < m->n; i++)
        free(m->heap[i]);
    free(m->heap);
    for (struct post *p = m->posts, *next; p; p = next) {
        next = p->next;
        free(p);
    }
    free(m);
}

static const struct net_ops mem_ops = {
    .name = "mem",
    .now_us = mem_now_us,
    .timer = mem_timer,
    .timer_cancel = mem_timer_cancel,
    .post = mem_post,
    .random = mem_random,
    .listen = net_mem_listen,
    .listener_url = net_mem_listener_url,
    .listener_close = net_mem_listener_close,
    .dial = net_mem_dial,
    .recv = net_mem_recv,
    .send = net_mem_send,
    .conn_close = net_mem_conn_close,
    .peer = net_mem_peer,
    .run = mem_run,
    .stop = mem_stop,
    .close = mem_close,
};

yk_err net_mem_open(uint64_t seed, struct net **out)
{
    struct mem *m = yk_xalloc(sizeof *m);
    m->base.ops = &mem_ops;
    yk_rng_seed(&m->ties, seed);
    yk_rng_seed(&m->numbers, ~seed);
    *out = &m->base;
    return YK_OK;
}
