#include "agent/spans.h"

#include "agent/control.h"
#include "agent/training.h"

#include <stdlib.h>
#include <string.h>

#define CLOCK_PINGS 64 /* a guess holds so long against worse ones */
#define MESSAGE_SPANS 256

struct span_log {
    int64_t step;
    struct wire_span *at; /* times on the agent's clock; peers belong to load */
    int n, noted;         /* noted: of this step of a training, sent ones with them */
};

void spans_pinged(struct agent *a)
{
    a->clock.sent_us = net_now_us(a->net);
}

void spans_pong(struct agent *a, const struct wire_pong *w)
{
    if (w->seq != a->ping_seq || w->now_us <= 0 || a->clock.sent_us == 0)
        return;
    int64_t now = net_now_us(a->net), took = now - a->clock.sent_us;
    if (a->clock.age == 0 || took <= a->clock.took_us || a->clock.age >= CLOCK_PINGS) {
        a->clock.took_us = took;
        a->clock.ahead_us = w->now_us - (a->clock.sent_us + took / 2);
        a->clock.age = 0;
    }
    a->clock.age++;
    a->clock.sent_us = 0;
}

static bool sampled(const struct pipeline *p, const struct micro *m, int64_t microbatch)
{
    if (!p->training)
        return strcmp(p->load->kind, "batch") == 0 && microbatch < SPANS_BATCH;
    int64_t at = m->step - p->training->step, power = 10;
    while (power < at + 1 && power < INT64_MAX / 10)
        power *= 10;
    return at == 1 || at + 1 == power || (at == 0 && m->steps - m->step == 1);
}

void spans_add(struct pipeline *p, enum span_kind kind, int64_t stage, const char *peer, const struct micro *m,
    int64_t microbatch, int64_t begin_us, int64_t end_us)
{
    static const char *const names[] = {"forward", "backward", "both", "wait", "step", "read", "send", "receive"};
    if (!sampled(p, m, microbatch))
        return;
    struct span_log *l = p->spans;
    int64_t step = p->training ? m->step : 0;
    if (!l) {
        l = p->spans = yk_xalloc(sizeof *l);
        l->at = yk_xalloc(MESSAGE_SPANS * sizeof *l->at);
        l->step = step;
    }
    if (l->step != step || l->n == MESSAGE_SPANS)
        spans_send(p);
    if (l->step != step)
        l->noted = 0;
    l->step = step;
    if (p->training && l->noted++ >= SPANS_MAX)
        return;
    l->at[l->n++] = (struct wire_span){.what = names[kind],
        .stage = stage,
        .peer = peer,
        .microbatch = p->training ? m->index : microbatch,
        .begin_us = begin_us,
        .end_us = end_us};
}

void spans_send(struct pipeline *p)
{
    struct span_log *l = p->spans;
    struct agent *a = p->agent;
    if (!l || !l->n)
        return;
    struct wire_spans w = {.generation = p->generation, .step = l->step, .spans = {l->at, (size_t)l->n}};
    w.at_us = l->at[0].begin_us;
    for (int i = 1; i < l->n; i++)
        w.at_us = YK_MIN(w.at_us, l->at[i].begin_us);
    for (int i = 0; i < l->n; i++) {
        l->at[i].begin_us -= w.at_us;
        l->at[i].end_us -= w.at_us;
    }
    w.at_us += a->clock.ahead_us;
    if (a->clock.age > 0 && a->joined)
        (void)control_send(a, WIRE_TYPE_spans, &w); /* a picture is not worth a second try */
    l->n = 0;
}

void spans_free(struct pipeline *p)
{
    if (p->spans)
        free(p->spans->at);
    free(p->spans);
    p->spans = NULL;
}
