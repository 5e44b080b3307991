/* The op benchmarks on any device, in any type. */
#ifndef ISOTRON_BENCH_OPERANDS_H
#define ISOTRON_BENCH_OPERANDS_H

#include "bench/op_runner.h"
#include "kernels/ops.h"

OpNumber bench_case_op(int);
/* Whether an operand has the type that activations or main gradients are kept in. */
bool bench_case_has_type(int);
/* Takes the operands: of a type that activations are kept in, of a size for this kind of device. */
BenchCalls *bench_case_open(int, Device *, DType);

#endif
