/* Calls of one op on operands of their own, repeated and timed. There are as many sets of operands as it
 * takes for a GPU's cache to hold no part of the next one, all with the same numbers; on the CPU there is
 * one. */
#ifndef ISOTRON_BENCH_OP_RUNNER_H
#define ISOTRON_BENCH_OP_RUNNER_H

#include "kernels/cases.h"

typedef struct BenchCalls BenchCalls;
/* Makes what the op plans beforehand, then takes the operands, contiguous and of the types of `storage`
 * (case_dtype). `attr` outlives the calls. */
BenchCalls *bench_calls_new(Device *, const KernelCase *, DType storage);
void bench_calls_free(BenchCalls *);
/* Starts one call, on the next set. */
void bench_calls_run(BenchCalls *);
/* The median of rounds of calls that are waited for together. There are BENCH_ROUNDS, or as many as fit into
 * so many seconds, but 3 (0: no limit); before, half of that is spent on warming up, at least one call of
 * each set. */
enum { BENCH_ROUNDS = 21 };
typedef struct BenchTime {
    double ns; /* of a call, the median of the rounds */
    int rounds;
    double round_ns[BENCH_ROUNDS]; /* of a call, round by round */
    int64_t calls;                 /* of a round */
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
