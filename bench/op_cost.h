/* What a call has to do at least, from its operands alone. */
#ifndef ISOTRON_BENCH_OP_COST_H
#define ISOTRON_BENCH_OP_COST_H

#include "kernels/ops.h"

/* op(a) op(b) [m,n], depth k; of experts, of all their rows together. */
typedef struct ProductShape {
    int64_t m, n, k;
} ProductShape;
/* False: the call is no matrix product (a bias's gradient alone is none). */
bool work_product(OpNumber, const Call *, ProductShape *);
/* Floating-point operations of a call that is made of matrix products, a multiply-add is two; else 0. */
double work_flops(OpNumber, const Call *);
/* Bytes that it must read or write. */
double work_bytes(OpNumber, const Call *);

#endif
