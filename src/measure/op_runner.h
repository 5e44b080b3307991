/* Repeats calls of one op on separate operands, and measures their time. All sets of operands have equal
 * contents. There are so many sets that the next set is never in a GPU's cache; on the CPU there is one
 * set. */
#pragma once

#include "kernels/cases.h"

typedef struct BenchCalls BenchCalls;
/* Makes the op's plans, and then allocates operands, whose dtypes depend on `storage` (case_dtype). `attr`
 * must outlive the calls. */
BenchCalls *bench_calls_new(Device *, const KernelCase *, DType storage);
void bench_calls_free(BenchCalls *);
/* Starts one call on the next set of operands. */
void bench_calls_run(BenchCalls *);
/* Measures the median of rounds of calls, with one wait per round. There are BENCH_ROUNDS rounds, or as many
 * as fit into `seconds` unless it is 0, but at least 3. A warm-up first runs for half of `seconds`, and calls
 * each set at least once. */
enum { BENCH_ROUNDS = 21 };
typedef struct BenchTime {
    double ns; /* time per call; the median of the rounds */
    int rounds;
    double round_ns[BENCH_ROUNDS]; /* time per call in each round */
    int64_t calls;                 /* per round */
} BenchTime;
BenchTime bench_calls_time(BenchCalls *, double seconds);
/* A call with the shapes of the operands. */
const Call *bench_calls_shape(const BenchCalls *);
