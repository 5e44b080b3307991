/* Calls of one op on operands of their own, repeated and timed. There are as many sets of operands as it
 * takes for a GPU's cache to hold no part of the next one, all with the same numbers; on the CPU there is
 * one. */
#ifndef ISOTRON_BENCH_CALLS_H
#define ISOTRON_BENCH_CALLS_H

#include "tensor/call.h"

typedef enum Content {
    CONTENT_SIGNED,    /* uniform in [-1, 1); integers: 0 */
    CONTENT_POSITIVE,  /* uniform in (0, 1] */
    CONTENT_IDS,       /* uniform below `range` */
    CONTENT_POSITIONS, /* 0, 1, ... along the last dimension */
    CONTENT_CHOICES,   /* i % range: experts of copies of tokens, each in turn */
    CONTENT_ROWS,      /* of such copies among those grouped by expert */
    CONTENT_COPIES,    /* the inverse: which copy stands in a row */
    CONTENT_OFFSETS,   /* along the last dimension: where equal shares of `range` rows begin, and the end */
} Content;

/* Contiguous; no dimensions: there is none. */
typedef struct BenchOperand {
    DType dtype;
    Content content;
    bool updated;   /* read and written: added to, or changed in place */
    bool main_grad; /* TENSOR_MAIN_GRAD */
    int64_t range;
    int ndim;
    int64_t dim[TENSOR_DIMS];
} BenchOperand;

typedef struct BenchCalls BenchCalls;
/* Makes what the op plans beforehand, then takes the operands. `attr` outlives the calls. */
BenchCalls *bench_calls_new(Device *, const OpDef *, const void *attr, const BenchOperand in[CALL_IN],
                            const BenchOperand out[CALL_OUT]);
void bench_calls_free(BenchCalls *);
/* Starts one call, on the next set. */
void bench_calls_run(BenchCalls *);
/* The median of rounds of calls that are waited for together. There are BENCH_ROUNDS, or as many as fit into
 * so many seconds, but 3 (0: no limit); before, half of that is spent on warming up, at least one call of
 * each set.
 */
enum { BENCH_ROUNDS = 21 };
typedef struct BenchTime {
    double ns; /* of a call */
    int rounds;
    int64_t calls; /* of a round */
} BenchTime;
BenchTime bench_calls_time(BenchCalls *, double seconds);
/* One set. */
const Call *bench_calls_shape(const BenchCalls *);

/* Smallest, middle and largest of n > 0 values, which get sorted. */
typedef struct Range {
    double median, min, max;
} Range;
Range bench_range(double *values, int64_t n);

#endif
