/* What goes where: of each stage the edges that bring its inputs and the slots of its outputs, of each edge its values'
 * places there, and that all of it fits into the agent's budget. */
#include "agent/load_priv.h"

#include "agent/edge.h"
#include "agent/training.h"

#include <stdlib.h>
#include <string.h>

/* Which edge brings input i of s. */
static yk_err find_input(struct pipeline *p, struct stage *s, int32_t i)
{
    int64_t v = s->in_values[i];
    for (int k = 0; k < p->n_edges; k++) {
        struct edge *e = &p->edges[k];
        for (size_t j = 0; edge_feeds(e, s) && j < e->w->values.n; j++)
            if (e->w->values.at[j] == v) {
                s->inputs[i] = (struct stage_input){e, (int)j};
                return YK_OK;
            }
    }
    const struct value *value = &p->graph->values[v];
    if (s == &p->source &&
        (value->kind == VALUE_INPUT || (value->kind == VALUE_WEIGHT && (value->data || p->weight[v] || !value->bytes))))
        return YK_OK; /* the source has it */
    return yk_fail(
        &p->why, YK_INVAL, "no edge brings '%.80s' to stage %lld", p->graph->values[v].name, (long long)s->index);
}

/* What a stage gives: what its plan has places for, then graph outputs whose shape depends on data. */
static void take_outputs(struct pipeline *p, struct stage *s)
{
    const struct memplan *m = exec_plan(s->exec);
    const struct graph *g = p->graph;
    s->own_out = yk_xalloc(((size_t)m->n_out + (size_t)g->n_outputs + 1) * sizeof *s->own_out);
    memcpy(s->own_out, m->out, (size_t)m->n_out * sizeof *s->own_out);
    s->out_values = s->own_out;
    s->n_planned = s->n_out = m->n_out;
    for (int32_t k = 0; k < g->n_outputs; k++) {
        int32_t v = g->outputs[k], producer = g->values[v].producer;
        if (g->values[v].kind == VALUE_NODE && producer >= 0 && s->in_stage[producer] &&
            load_position(s->own_out, s->n_out, v) < 0)
            s->own_out[s->n_out++] = v;
    }
}

/* What a stage takes and gives: borrowed from whatever runs it, or from the graph. */
static void take_ends(struct pipeline *p, struct stage *s)
{
    if (s->half) {
        const struct trainer_border *b = training_border(s);
        s->n_in = b->n_in;
        s->in_values = b->in;
        s->n_out = s->n_planned = b->n_out;
        s->out_values = b->out;
    } else if (s == &p->source) {
        s->n_in = p->graph->n_outputs - p->graph->n_staying;
        s->in_values = p->graph->outputs;
        s->n_out = s->n_planned = p->graph->n_inputs;
        s->out_values = p->graph->inputs;
    } else {
        const struct memplan *m = exec_plan(s->exec);
        s->n_in = m->n_in;
        s->in_values = m->in;
        take_outputs(p, s);
    }
}

/* The output slots of a stage, each with room for all outputs whose size is known: `each` bytes, or 0 where the trainer
 * has the memory. */
static yk_err open_slots(struct pipeline *p, struct stage *s, int64_t each)
{
    s->outs = yk_xalloc(((size_t)s->depth + 1) * sizeof *s->outs);
    for (int64_t k = 0; k < s->depth; k++) {
        struct out_slot *o = &s->outs[k];
        o->stage = s;
        o->t = yk_xalloc((size_t)s->n_out * sizeof *o->t + 1);
        o->made = yk_xalloc((size_t)(s->n_out - s->n_planned) * sizeof *o->made + 1);
        o->mem = yk_try_aligned((size_t)each + MEMPLAN_ALIGN);
        if (!o->mem)
            return yk_fail(&p->why, YK_NOMEM, "no memory for %lld output slots of %lld bytes", (long long)s->depth,
                (long long)each);
        int64_t at = 0;
        for (int32_t i = 0; i < s->n_planned && each > 0; i++) {
            o->t[i] = (struct tensor){p->at[0].shapes.of[s->out_values[i]], o->mem + at};
            at += memplan_align(shape_bytes(&o->t[i].shape));
        }
    }
    return YK_OK;
}

static yk_err wire_stage(struct pipeline *p, struct stage *s, int64_t *bytes)
{
    int64_t each = 0;
    yk_err err = YK_OK;
    take_ends(p, s);
    s->inputs = yk_xalloc((size_t)s->n_in * sizeof *s->inputs + 1);
    for (int32_t i = 0; i < s->n_in && !err; i++)
        err = find_input(p, s, i);
    for (int32_t i = 0; i < s->n_planned && !err; i++) {
        int64_t n = shape_bytes(&p->at[0].shapes.of[s->out_values[i]]);
        if (n < 0)
            err = yk_fail(
                &p->why, YK_INVAL, "the shape of '%.80s' is not known", p->graph->values[s->out_values[i]].name);
        each += memplan_align(n);
    }
    if (s->half && s->w->pair != s->index)
        each = 0; /* the trainer's memory */
    if (!err)
        err = open_slots(p, s, each);
    *bytes += err ? 0 : s->depth * each;
    return err;
}

/* Where the values of an edge are among the outputs of the stage that sends them. */
static yk_err place_values(struct pipeline *p, struct edge *e)
{
    size_t n = e->w->values.n;
    e->position = yk_xalloc(n * sizeof *e->position);
    for (size_t k = 0; k < n; k++) {
        int64_t v = e->w->values.at[k];
        e->position[k] = e->sums ? (int)k : load_position(e->from->out_values, e->from->n_out, v);
        if (e->position[k] < 0)
            return yk_fail(&p->why, YK_INVAL, "stage %lld does not make '%.80s' of edge %lld",
                (long long)e->from->index, p->graph->values[v].name, (long long)e->w->id);
    }
    return YK_OK;
}

static yk_err wire_edges(struct pipeline *p, int64_t *bytes)
{
    yk_err err = YK_OK;
    for (int i = 0; i < p->n_edges && !err; i++)
        if (p->edges[i].from)
            err = place_values(p, &p->edges[i]);
    if (!err && p->training)
        err = training_shared_open(p, &p->why);
    if (!err)
        err = edge_alloc(p, &p->why);
    for (int i = 0; i < p->n_edges && !err; i++) {
        struct edge *e = &p->edges[i];
        bool lossy = e->codec != CODEC_FP32;
        if (!e->local)
            *bytes += e->body_max * ((e->to ? e->w->credits * (lossy ? 2 : 1) : 0) + (e->from && lossy ? 2 : 0));
    }
    return err;
}

/* The batch that a source of a training reads at once, of all inputs but the divisor, which it makes. */
static yk_err add_batch(struct pipeline *p, int64_t *bytes)
{
    for (int32_t i = 0; i < p->graph->n_inputs; i++) {
        int64_t sample = shape_bytes(&p->at[0].shapes.of[p->graph->inputs[i]]) / p->full, all;
        if (i == p->training->divisor)
            continue;
        if (!yk_mul_i64(sample, p->load->training.batch, &all) || !yk_add_i64(*bytes, all, bytes))
            return yk_fail(
                &p->why, YK_LIMIT, "a batch of %lld samples is too large", (long long)p->load->training.batch);
    }
    return YK_OK;
}

static yk_err check_budget(struct pipeline *p, int64_t bytes)
{
    int64_t others = 0;
    for (const struct pipeline *o = p->agent->pipelines; o; o = o->next)
        if (o != p)
            others += o->memory_bytes;
    if (p->agent->memory_bytes <= 0 || bytes <= p->agent->memory_bytes - others)
        return YK_OK;
    p->lacking_bytes = bytes - (p->agent->memory_bytes - others);
    return yk_fail(&p->why, YK_NOMEM, "needs %lld bytes; the budget is %lld, of which other pipelines hold %lld",
        (long long)bytes, (long long)p->agent->memory_bytes, (long long)others);
}

yk_err load_wire_up(struct pipeline *p)
{
    int64_t bytes = p->training ? training_bytes(p) : 0;
    yk_err err = YK_OK;
    for (int i = 0; i < p->n_stages && !err; i++) {
        const struct memplan *m = p->training ? NULL : exec_plan(p->stages[i].exec);
        bytes += m ? m->arena_bytes + m->weight_bytes + m->packed_bytes : 0;
        err = wire_stage(p, &p->stages[i], &bytes);
    }
    if (!err && p->is_source)
        err = wire_stage(p, &p->source, &bytes);
    if (!err && p->is_source && p->training)
        err = add_batch(p, &bytes);
    if (!err)
        err = wire_edges(p, &bytes);
    if (!err)
        err = check_budget(p, bytes);
    if (!err)
        p->memory_bytes = bytes;
    return err;
}
