/* Times repeated calls to one op, each on a different set of operands. All sets have equal contents. There are so many
 * that a GPU's cache never contains the next one. On the CPU, there is only one set. */
#pragma once

#include "kernels/cases.h"

typedef struct BenchCalls BenchCalls;
/* Makes the op's plans, and then allocates operands. Their dtypes depend on `storage` (case_dtype). `attr` must outlive
 * the calls. */
BenchCalls *bench_calls_new(Device *, const KernelCase *, DType storage);
void bench_calls_free(BenchCalls *);
/* Starts one call on the next set of operands. */
void bench_calls_run(BenchCalls *);
/* Measures the median time per call over several rounds of calls, and waits for the device once per round. Runs
 * BENCH_ROUNDS rounds; if `seconds` is not 0, runs as many as fit into this time, but at least 3. A warm-up runs first,
 * for half of `seconds`, and uses each set at least once. */
enum { BENCH_ROUNDS = 21 };
typedef struct BenchTime {
    double ns; /* time per call, the median of the rounds */
    int rounds;
    double round_ns[BENCH_ROUNDS]; /* the time per call in each round */
    int64_t calls;                 /* number of calls per round */
} BenchTime;
BenchTime bench_calls_time(BenchCalls *, double seconds);
/* Returns a call with the operands' shapes. */
const Call *bench_calls_shape(const BenchCalls *);
