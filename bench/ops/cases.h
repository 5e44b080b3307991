/* The rows of kernels/cases.def, for `bench ops` and for a C++ harness that includes no other header of the
 * program. */
#pragma once

#ifdef __cplusplus
extern "C" {
#endif

int bench_case_count(void);
const char *bench_case_name(int); /* for example "linear/fc1" */

/* ---- in F32 on the CPU, using all cores ---- */

typedef struct BenchOp BenchOp;

/* Opens a case and allocates its operands. */
BenchOp *bench_op_open(int);
void bench_op_run(BenchOp *);
void bench_op_close(BenchOp *);
/* Returns the FLOPs of a run if the op consists of GEMMs, otherwise 0. */
double bench_op_flops(const BenchOp *);
/* Returns the minimum number of bytes that a run must read or write. */
double bench_op_bytes(const BenchOp *);

#ifdef __cplusplus
}
#endif
