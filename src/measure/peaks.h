/* Measured upper limits of a device. */
#pragma once

#include "tensor/device.h"
#include "tensor/dtype.h"

/* GB/s of a copy between arrays that no cache holds; each byte counts when read and when written. */
double bench_roof_copy(Device *);
/* GFLOP/s of a square GEMM in this type, operands and result: on a GPU op_linear at 8192^3 (F32, F64:
 * 4096^3), on the CPU BLAS with its own threads, in F64 or else in F32, at 2048^3. */
double bench_roof_gemm(Device *, DType);

/* Dense matrix TFLOP/s that the vendor states for the type; 0: unknown device. 16-bit types accumulate in
 * F32; F32 is without TF32, F64 with tensor cores. `described`: device_describe. */
double bench_peak(const char *described, DType);
/* GB/s of its memory that the vendor states; 0: unknown device. */
double bench_peak_copy(const char *described);
