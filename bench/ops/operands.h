/* Op benchmarks on any device and in any type. */
#pragma once

#include "base/str.h"
#include "kernels/ops.h"
#include "measure/op_runner.h"

OpNumber bench_case_op(int);
/* Returns whether at least one operand's type depends on the type of activations. */
bool bench_case_has_type(int);
/* Appends the types and shapes of the operands that bench_case_open allocates, such as "BF16[64,4,768] ->
 * BF16[64,4,768]". */
void bench_case_operands(int, const Device *, DType, Str *out);
/* Allocates the operands with the given type of activations, in the size that the case has on this kind of
 * device. */
BenchCalls *bench_case_open(int, Device *, DType);
