/* Einsum: for every output element the sum over the labels that it does not have, in the order of the equation's
 * letters. Integers wrap. */
#include "kernels/ref.h"

#include "common/op_einsum.h"

struct einsum_job {
    struct host_call *c;
    struct einsum e;
    int64_t step[OP_MAX_IN][EINSUM_LABELS];
    int64_t sums; /* products of one output element */
};

static void offsets(const struct einsum_job *j, int first, int last, int64_t index, int64_t *at)
{
    for (int l = last - 1; l >= first; l--) {
        int64_t i = index % j->e.size[l];
        index /= j->e.size[l];
        for (int k = 0; k < j->e.n_in; k++)
            at[k] += i * j->step[k][l];
    }
}

static void einsum_piece(void *arg, int64_t begin, int64_t end)
{
    const struct einsum_job *j = arg;
    const struct tensor *in = j->c->in, *y = &j->c->out[0];
    bool whole = !dtype_is_float(y->shape.dtype);
    for (int64_t i = begin; i < end; i++) {
        int64_t base[OP_MAX_IN] = {0};
        double sum = 0;
        uint64_t wrapped = 0;
        offsets(j, 0, j->e.n_out, i, base);
        for (int64_t s = 0; s < j->sums; s++) {
            int64_t at[OP_MAX_IN];
            double p = 1;
            uint64_t q = 1;
            for (int k = 0; k < j->e.n_in; k++)
                at[k] = base[k];
            offsets(j, j->e.n_out, j->e.n_labels, s, at);
            for (int k = 0; k < j->e.n_in; k++) {
                if (whole)
                    q *= (uint64_t)ref_i(&in[k], at[k]);
                else
                    p *= ref_d(&in[k], at[k]);
            }
            sum += p;
            wrapped += q;
        }
        if (whole)
            ref_store_i(y->data, y->shape.dtype, i, 1, &(int64_t){(int64_t)wrapped}, 1);
        else
            ref_store_d(y->data, y->shape.dtype, i, 1, &sum, 1);
    }
}

static yk_err run_einsum(struct host_call *c)
{
    const struct shape *in[OP_MAX_IN];
    struct einsum_job j = {.c = c};
    for (int i = 0; i < c->n_in; i++)
        in[i] = &c->in[i].shape;
    yk_err err = op_einsum(c->node, in, c->n_in, &j.e, c->why);
    if (err)
        return err;
    for (int i = 0; i < c->n_in; i++) {
        int64_t stride = 1;
        for (int d = in[i]->rank - 1; d >= 0; d--) {
            if (in[i]->dims[d] > 1) /* a 1 broadcasts */
                j.step[i][j.e.label[i][d]] += stride;
            stride *= in[i]->dims[d];
        }
    }
    j.sums = 1;
    for (int l = j.e.n_out; l < j.e.n_labels; l++)
        j.sums *= j.e.size[l];
    double cost = 10.0 * (double)j.sums * c->n_in;
    host_split(c, tensor_count(&c->out[0]), cost > 1e9 ? 1000000000 : (int64_t)cost, einsum_piece, &j);
    return YK_OK;
}

static const struct host_kernel rows[] = {
    {.domain = "", .op = "Einsum", .kind = "ref", .run = run_einsum},
};
const struct host_rows ref_einsum = {rows, (int)YK_COUNT(rows)};
