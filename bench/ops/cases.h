/* The op benchmarks (cases.def) for the harness, which is C++ and sees nothing else of the program. */
#ifndef ISOTRON_BENCH_CASES_H
#define ISOTRON_BENCH_CASES_H

#ifdef __cplusplus
extern "C" {
#endif

typedef struct BenchOp BenchOp;

/* Operations per second: of cblas_sgemm on 2048^3 with BLAS's own threads. Bytes per second: of a copy
 * between arrays that no cache holds, each byte counted when read and when written. The best of several, in
 * 1e9. */
typedef struct BenchRoofs {
    double gflops, gbytes;
} BenchRoofs;
BenchRoofs bench_roofs(void);

int bench_op_count(void);
const char *bench_op_name(int);
/* Takes the operands. Runs use every core. */
BenchOp *bench_op_open(int);
void bench_op_run(BenchOp *);
void bench_op_close(BenchOp *);
/* Floating-point operations of a run if the op is made of matrix products, else 0. */
double bench_op_flops(const BenchOp *);
/* Bytes that a run must read or write at least. */
double bench_op_bytes(const BenchOp *);

#ifdef __cplusplus
}
#endif

#endif
