/* The roof of the linear layers: the same matrix products through BLAS alone, with BLAS's own threads. */
#ifndef ISOTRON_BENCH_ROOF_H
#define ISOTRON_BENCH_ROOF_H

#include "tape/tape.h"

/* All calls of one op with one shape: c [m,n] += op(a) op(b), depth k. */
typedef struct Product {
    int op;
    int m, n, k;
    int calls;                /* of one step */
    int64_t ours_ns, roof_ns; /* of the measured steps, and of as many replays */
} Product;

enum { PRODUCTS = 64 };

typedef struct Roof {
    const OpProfile *profile; /* of the device, advanced by the ops themselves */
    int64_t seen_ns[3];       /* of the profile when the last op of each kind was done */
    Product product[PRODUCTS];
    int count;
    bool counting; /* the calls of a step are being counted */
    float *a, *b, *c;
} Roof;

/* A TapeTrace; arg is the Roof. Only fp32 products are known. */
void roof_trace(void *roof, const OpDef *, const Call *);
/* Forgets what the products took so far. */
void roof_restart(Roof *);
/* Runs the products of one step on operands that are at hand: first one call unmeasured, then all. Returns
 * ns. */
int64_t roof_replay(Roof *, int threads);
/* Multiply-adds count as two. */
double roof_flops(const Roof *);
void roof_free(Roof *);

#endif
