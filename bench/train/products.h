/* The matrix products of a step: how long they take in it, and by themselves. On the CPU "by themselves" is
 * BLAS alone with its own threads, in fp32; on a GPU the same op on the same shapes, back to back. */
#ifndef ISOTRON_BENCH_PRODUCTS_H
#define ISOTRON_BENCH_PRODUCTS_H

#include "bench/op_runner.h"
#include "bench/op_cost.h"
#include "kernels/attr.h"
#include "kernels/ops.h"

/* All calls of one op with one kind of operands. */
typedef struct Product {
    OpNumber op;
    ProductShape shape;
    int64_t calls;            /* of one step */
    double ours_ns, alone_ns; /* of the calls of all measured steps, and of as many by themselves */
    CaseOperand in[CALL_IN], out[CALL_OUT];
    union {
        LinearAttr linear;
        Fp8ProductAttr fp8;
    } attr;
} Product;

enum { PRODUCTS = 96 };

typedef struct Products {
    Product at[PRODUCTS];
    int count;
    float *a, *b, *c; /* of the replay through BLAS */
} Products;

/* The product that a call is, added to the list if it is new; -1: the op is none. */
int products_find(Products *, const OpDef *, const Call *);
/* Runs the products of one step through BLAS on operands that are at hand: first one call unmeasured, then
 * all. Returns ns. */
int64_t products_through_blas(Products *, int threads);
/* Measures each on the device; alone_ns becomes that of `steps` steps. */
void products_on_device(Products *, Device *, int64_t steps);
/* Of one call and of all calls of a step; multiply-adds count as two. */
double product_flops(const Product *);
double products_flops(const Products *);
void products_free(Products *);

#endif
