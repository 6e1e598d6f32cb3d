/* The tables of the blas backend beside blas.c. */
#ifndef YK_BLAS_H
#define YK_BLAS_H

#include "kernels/host.h"

extern const struct host_rows blas_attention, blas_deconv, blas_rnn;

#endif
