/* Measured upper limits of a device. */
#pragma once

#include "tensor/device.h"
#include "tensor/dtype.h"

/* GB/s of a copy between arrays larger than any cache; each byte counts twice, as read and as written. */
double bench_roof_copy(Device *);
/* GFLOP/s of a square GEMM whose operands and result have this type. A GPU runs op_linear at 8192^3 (F32, F64:
 * 4096^3). The CPU runs BLAS with its own threads at 2048^3, in F64 or, for any other type, F32. */
double bench_roof_gemm(Device *, DType);

/* Dense matrix TFLOP/s that the vendor states for the type; 0: unknown device. 16-bit types accumulate in
 * F32; F32 is without TF32, F64 with tensor cores. `described`: device_describe. */
double bench_peak(const char *described, DType);
/* Memory bandwidth in GB/s that the vendor states; 0: unknown device. */
double bench_peak_copy(const char *described);
