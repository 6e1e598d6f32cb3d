#include "scheduler/shared.h"

#include <stdlib.h>
#include <string.h>

struct readers {
    const int32_t *param; /* by value: which trained parameter it is, -1 */
    uint8_t *reads;       /* [param * n_stages + unit] */
    int32_t n_stages, unit;
};

static void add_reader(void *arg, int32_t value)
{
    struct readers *r = arg;
    if (r->param[value] >= 0)
        r->reads[(size_t)r->param[value] * (size_t)r->n_stages + (size_t)r->unit] = 1;
}

static int by_value(const void *a, const void *b)
{
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    return (x > y) - (x < y);
}

/* The gradients that unit `from` makes of what unit `to` reads, ascending; their number. */
static int32_t sums_between(const struct graph *g, const struct grad_info *info, const struct readers *r,
    const int32_t *unit_of, int32_t from, int32_t to, int32_t *values)
{
    int32_t n = 0, kept = 0;
    for (int32_t i = 0; i < info->n_params; i++)
        for (int32_t u = 0; u < info->params[i].n_uses && r->reads[(size_t)i * (size_t)r->n_stages + (size_t)to]; u++) {
            int32_t value = g->outputs[info->params[i].uses[u]], producer = g->values[value].producer;
            if (producer >= 0 && unit_of[producer] == from)
                values[n++] = value;
        }
    qsort(values, (size_t)n, sizeof *values, by_value);
    for (int32_t k = 0; k < n; k++)
        if (k == 0 || values[k] != values[k - 1])
            values[kept++] = values[k];
    return kept;
}

yk_err shared_edges(const struct graph *g, const struct grad_info *info, int32_t n_stages, const int32_t *stage_of,
    const int32_t *pair, struct cut_edges *edges, int32_t *n, struct yk_diag *why)
{
    size_t n_params = (size_t)info->n_params, n_uses = 0;
    int32_t *param = yk_xalloc(((size_t)g->n_values + 1) * sizeof *param);
    int32_t *unit_of = yk_xalloc(((size_t)g->n_nodes + 1) * sizeof *unit_of);
    uint8_t *reads = yk_xalloc(n_params * (size_t)n_stages + 1), *makes = yk_xalloc((size_t)n_stages + 1);
    struct readers r = {param, reads, n_stages, 0};
    yk_err err = YK_OK;
    *n = edges->n;
    for (int32_t v = 0; v < g->n_values; v++)
        param[v] = -1;
    for (size_t i = 0; i < n_params; i++) {
        param[info->params[i].value] = (int32_t)i;
        n_uses += (size_t)info->params[i].n_uses;
    }
    for (int32_t k = 0; k < g->n_nodes; k++) {
        r.unit = unit_of[k] = YK_MIN(stage_of[k], pair[stage_of[k]]);
        node_each_use(&g->nodes[k], add_reader, &r);
    }
    for (size_t i = 0; i < n_params; i++) { /* what one unit reads alone is no matter for others */
        int32_t users = 0;
        for (int32_t s = 0; s < n_stages; s++)
            users += reads[i * (size_t)n_stages + (size_t)s];
        for (int32_t s = 0; s < n_stages && users < 2; s++)
            reads[i * (size_t)n_stages + (size_t)s] = 0;
        for (int32_t s = 0; s < n_stages && users > 1; s++)
            makes[s] |= reads[i * (size_t)n_stages + (size_t)s];
    }
    int32_t *values = yk_xalloc((n_uses + 1) * sizeof *values);
    for (int32_t from = 0; from < n_stages && !err; from++)
        for (int32_t to = 0; to < n_stages && !err; to++) {
            int32_t count =
                makes[from] && makes[to] && from != to ? sums_between(g, info, &r, unit_of, from, to, values) : 0;
            if (!count)
                continue;
            struct cut_edge *at = yk_arena_alloc(edges->arena, (size_t)edges->n + 1, sizeof *at);
            int32_t *list = yk_arena_alloc(edges->arena, (size_t)count, sizeof *list);
            if (!at || !list) {
                err = yk_fail(why, YK_NOMEM, "no memory for %d edges", edges->n + 1);
                break;
            }
            if (edges->n)
                memcpy(at, edges->at, (size_t)edges->n * sizeof *at);
            memcpy(list, values, (size_t)count * sizeof *list);
            at[edges->n] = (struct cut_edge){.from = from, .to = to, .n_values = count, .values = list};
            edges->at = at;
            edges->n++;
        }
    free(values);
    free(param);
    free(unit_of);
    free(reads);
    free(makes);
    return err;
}
