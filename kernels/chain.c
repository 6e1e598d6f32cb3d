#include "kernels/chain.h"

struct link {
    struct chain_map map;
    const struct host_call *call;
    int from[2]; /* by operand: the node of the chain that makes it, -1: from outside */
    bool stored;
};

struct chain {
    struct link links[CHAIN_MOST];
    int n;
    int64_t unit, count;
};

struct one {
    const struct host_call *c;
    const struct chain_map *m;
    int64_t unit, count;
};

/* The least that is a multiple of both. */
static int64_t common(int64_t a, int64_t b)
{
    int64_t x = a, y = b;
    while (y) {
        int64_t rest = x % y;
        x = y;
        y = rest;
    }
    return a / x * b;
}

static void one_piece(void *arg, int64_t begin, int64_t end)
{
    const struct one *o = arg;
    const struct chain_map *m = o->m;
    const float *in[OP_MAX_IN];
    begin *= o->unit;
    end = YK_MIN(end * o->unit, o->count);
    for (int i = 0; i < o->c->n_in; i++)
        in[i] = (const float *)o->c->in[i].data + (m->full >> i & 1 ? begin : 0);
    m->piece(m, (float *)o->c->out[0].data + begin, in, begin, end);
}

void chain_run_map(struct host_call *c, const struct chain_map *m)
{
    struct one o = {c, m, m->unit == 1 ? CHAIN_LINE : m->unit, tensor_count(&c->out[0])};
    host_split(c, (o.count + o.unit - 1) / o.unit, m->cost * o.unit, one_piece, &o);
}

static bool reads(const struct node *n, int32_t value)
{
    for (int i = 0; i < n->n_in; i++)
        if (n->in[i] == value)
            return true;
    return false;
}

int chain_span(
    const struct graph *g, const int32_t *nodes, const struct host_kernel *const *kernels, int32_t n, int32_t at)
{
    int span = 0;
    for (; span < CHAIN_MOST && at + span < n && kernels[at + span]->map; span++) {
        const struct node *next = &g->nodes[nodes[at + span]];
        bool follows = span == 0;
        for (int k = 0; k < span && !follows; k++)
            follows = reads(next, g->nodes[nodes[at + k]].out[0]);
        if (!follows || next->n_in > CHAIN_OPERANDS)
            break;
    }
    return YK_MAX(span, 1);
}

static bool overlap(const struct tensor *a, const struct tensor *b)
{
    uintptr_t x = (uintptr_t)a->data, y = (uintptr_t)b->data;
    return x < y + (uintptr_t)tensor_bytes(b) && y < x + (uintptr_t)tensor_bytes(a);
}

/* Where node k's operand i comes from; false if the chain cannot give it. */
static bool operand(struct chain *c, int k, int i)
{
    struct link *l = &c->links[k];
    const struct node *n = l->call->node;
    int from = -1;
    for (int j = 0; j < k; j++)
        if (c->links[j].call->node->out[0] == n->in[i])
            from = j;
    if (i < 2)
        l->from[i] = from;
    return from < 0 || (i < 2 && (l->map.full >> i & 1));
}

/* The memory plan may give a node's output the place of what only nodes before it read. As one, they are read after the
 * first pieces are written: harmless only where each element takes the place of itself. */
static bool places_fit(const struct chain *c)
{
    for (int k = 0; k < c->n; k++) {
        const struct tensor *y = &c->links[k].call->out[0];
        for (int j = 0; c->links[k].stored && j <= k; j++) {
            const struct link *l = &c->links[j];
            for (int i = 0; i < l->call->n_in; i++) {
                const struct tensor *x = &l->call->in[i];
                bool inner = i < 2 && l->from[i] >= 0;
                bool itself = x->data == y->data && (l->map.full >> i & 1);
                if (!inner && x->data && !itself && overlap(x, y))
                    return false;
            }
        }
    }
    return true;
}

static bool set_up(
    struct chain *c, const struct host_call *calls, const struct host_kernel *const *kernels, int n, uint32_t unread)
{
    bool made = false;
    c->n = n;
    c->unit = CHAIN_LINE;
    c->count = tensor_count(&calls[0].out[0]);
    for (int k = 0; k < n; k++) {
        struct link *l = &c->links[k];
        l->call = &calls[k];
        l->stored = !(unread >> k & 1);
        if (tensor_count(&calls[k].out[0]) != c->count || !kernels[k]->map(&calls[k], &l->map))
            return false;
        if (made && l->map.made)
            return false;
        made |= l->map.made != NULL;
        if (l->map.unit > CHAIN_PIECE || (c->unit = common(c->unit, l->map.unit)) > CHAIN_PIECE)
            return false;
        for (int i = 0; i < calls[k].n_in; i++)
            if (!operand(c, k, i))
                return false;
    }
    return places_fit(c);
}

/* Elements begin..end, at most CHAIN_PIECE; local: what is not stored of them, by node. */
static void run_piece(const struct chain *c, float (*local)[CHAIN_PIECE], int64_t begin, int64_t end)
{
    for (int k = 0; k < c->n; k++) {
        const struct link *l = &c->links[k];
        const float *in[CHAIN_OPERANDS] = {NULL};
        for (int i = 0; i < l->call->n_in; i++) {
            int from = i < 2 ? l->from[i] : -1;
            if (from >= 0 && !c->links[from].stored)
                in[i] = local[from];
            else
                in[i] = (const float *)l->call->in[i].data + (l->map.full >> i & 1 ? begin : 0);
        }
        float *y = l->stored ? (float *)l->call->out[0].data + begin : local[k];
        l->map.piece(&l->map, y, in, begin, end);
    }
}

static void run_range(void *arg, int64_t begin, int64_t end)
{
    const struct chain *c = arg;
    _Alignas(64) float local[CHAIN_MOST - 1][CHAIN_PIECE]; /* the last node's is stored */
    int64_t step = CHAIN_PIECE / c->unit * c->unit;
    end = YK_MIN(end * c->unit, c->count);
    for (begin *= c->unit; begin < end; begin += step)
        run_piece(c, local, begin, YK_MIN(begin + step, end));
}

bool chain_run(struct host_call *calls, const struct host_kernel *const *kernels, int n, uint32_t unread)
{
    struct chain c;
    int64_t cost = 0;
    if (n > CHAIN_MOST || (unread >> (n - 1) & 1) || !set_up(&c, calls, kernels, n, unread))
        return false;
    for (int k = 0; k < n; k++)
        cost += c.links[k].map.cost;
    host_split(&calls[0], (c.count + c.unit - 1) / c.unit, cost * c.unit, run_range, &c);
    return true;
}
