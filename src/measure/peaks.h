/* Measures the upper limits of a device. */
#pragma once

#include "tensor/device.h"
#include "tensor/dtype.h"

/* Returns the rate, in GB/s, of a copy between arrays that are larger than any cache. Each byte counts twice,
 * because it is read and written. */
double bench_roof_copy(Device *);
/* Returns the rate, in GB/s, at which the device reads an array that is larger than any cache. On a GPU, this is the
 * higher rate of op_sum_squares in F32 and op_linear with one row in BF16. */
double bench_roof_read(Device *);
/* Returns the rate, in GFLOP/s, of a square GEMM whose operands and result have this type. On a GPU, runs op_linear at
 * 8192^3, or at 4096^3 for F32 and F64. On the CPU, runs a multithreaded BLAS GEMM at 2048^3, in F64 for F64 and in F32
 * for all other types. */
double bench_roof_gemm(Device *, DType);

/* Returns the dense matrix TFLOP/s that the vendor states for the type, or 0 if the device is unknown. Rates for 16-bit
 * types assume accumulation in F32, rates for F32 exclude TF32, and rates for F64 include tensor cores. `described` is
 * the text of device_describe. */
double bench_peak(const char *described, DType);
/* Returns the memory bandwidth in GB/s that the vendor states, or 0 if the device is unknown. */
double bench_peak_copy(const char *described);
