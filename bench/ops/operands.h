/* The op benchmarks on any device, in any type. */
#pragma once

#include "base/str.h"
#include "kernels/ops.h"
#include "measure/op_runner.h"

OpNumber bench_case_op(int);
/* Whether an operand has the type of activations or of main gradients. */
bool bench_case_has_type(int);
/* Types and shapes of the operands that bench_case_open allocates: "BF16[64,4,768] -> BF16[64,4,768]". */
void bench_case_operands(int, const Device *, DType, Str *out);
/* Allocates the operands, with the given type of activations and a size for this kind of device. */
BenchCalls *bench_case_open(int, Device *, DType);
