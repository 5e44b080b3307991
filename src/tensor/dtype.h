/* Element types. Arithmetic uses double for F64 and float for all other types; BF16 and F16 are storage only.
 * F8E4M3 and F8E5M2 store scaled numbers in FP8 (fp8.h), and I8 stores scaled numbers in [-127, 127]. Only ops
 * for scaled numbers use F8E4M3, F8E5M2 and I8, which do not count as float types. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum DType { F64, F32, BF16, F16, I64, I32, U8, F8E4M3, F8E5M2, I8, DTYPES } DType;

size_t dtype_size(DType);      /* bytes per element */
const char *dtype_name(DType); /* the name in safetensors: "F64", "BF16", ... */
bool dtype_parse(const char *name, DType *out);
bool dtype_is_float(DType);
bool dtype_is_16bit(DType); /* BF16 or F16 */
bool dtype_is_fp8(DType);   /* F8E4M3 or F8E5M2 */
/* Returns the unit roundoff u of a float type: 2^-53, 2^-24, 2^-8 or 2^-11. */
double dtype_roundoff(DType);

/* Rounds to 16 bits: to nearest, ties to even. NaN remains NaN. F16 overflows to infinity and has subnormals. */
uint16_t bf16_from_float(float);
float bf16_to_float(uint16_t);
uint16_t f16_from_float(float);
float f16_to_float(uint16_t);

/* Converts n contiguous elements between any two float types, FP8 or I8. Numbers beyond the range of I8 become +-127.
 * F64 is rounded to float before it is rounded to 16 or 8 bits. */
void dtype_convert(void *dst, DType dst_type, const void *src, DType src_type, size_t n);

/* dtype_store and dtype_load access element `at` of an array of any float or integer type. dtype_store rounds
 * x to a float type. An integer type must be able to represent x. */
void dtype_store(void *array, DType, int64_t at, double x);
double dtype_load(const void *array, DType, int64_t at);
