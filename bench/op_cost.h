/* What a call has to do at least, from its operands alone. */
#ifndef ISOTRON_BENCH_OP_COST_H
#define ISOTRON_BENCH_OP_COST_H

#include "kernels/ops.h"

/* op(a) op(b) [m,n], depth k; of experts, of all their rows together. */
typedef struct GemmShape {
    int64_t m, n, k;
} GemmShape;
/* False: the call is no GEMM (a bias's gradient alone is none). */
bool work_gemm(OpNumber, const Call *, GemmShape *);
/* Floating-point operations of a call that is made of GEMMs, a multiply-add is two; else 0. */
double work_flops(OpNumber, const Call *);
/* Bytes that it must read or write. */
double work_bytes(OpNumber, const Call *);

#endif
