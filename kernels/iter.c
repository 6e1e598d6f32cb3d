#include "kernels/iter.h"

#include <string.h>

void iter_broadcast(struct iter *it, const struct shape *const *operands, int n)
{
    const struct shape *out = operands[0];
    int64_t step[ITER_MAX][YK_MAX_RANK];
    for (int k = 0; k < n; k++) {
        const struct shape *s = operands[k];
        int64_t at = 1;
        for (int d = out->rank - 1; d >= 0; d--) {
            int sd = d - (out->rank - s->rank);
            int64_t size = sd >= 0 ? s->dims[sd] : 1;
            step[k][d] = size == 1 ? 0 : at;
            at *= size;
        }
    }
    it->n = n;
    it->rank = 0;
    for (int d = 0; d < out->rank; d++) {
        if (out->dims[d] == 1)
            continue;
        bool merge = it->rank > 0;
        for (int k = 0; merge && k < n; k++)
            merge = it->step[k][it->rank - 1] == step[k][d] * out->dims[d];
        if (merge) {
            it->dims[it->rank - 1] *= out->dims[d];
            for (int k = 0; k < n; k++)
                it->step[k][it->rank - 1] = step[k][d];
            continue;
        }
        it->dims[it->rank] = out->dims[d];
        for (int k = 0; k < n; k++)
            it->step[k][it->rank] = step[k][d];
        it->rank++;
    }
    if (it->rank == 0) {
        it->rank = 1;
        it->dims[0] = 1;
        for (int k = 0; k < n; k++)
            it->step[k][0] = 0;
    }
    it->outer = 1;
    for (int d = 0; d < it->rank - 1; d++)
        it->outer *= it->dims[d];
    it->inner = it->dims[it->rank - 1];
}

void iter_at(const struct iter *it, int64_t run, int64_t *offset)
{
    for (int k = 0; k < it->n; k++)
        offset[k] = 0;
    for (int d = it->rank - 2; d >= 0; d--) {
        int64_t i = run % it->dims[d];
        run /= it->dims[d];
        for (int k = 0; k < it->n; k++)
            offset[k] += i * it->step[k][d];
    }
}
