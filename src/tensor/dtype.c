#include "tensor/dtype.h"

#include <math.h>
#include <string.h>

#include "base/fault.h"
#include "tensor/float_bits.h"
#include "tensor/fp8.h"

static const struct {
    const char *name;
    uint8_t size;
    bool is_float;
    double roundoff;
} TYPES[DTYPES] = {
    [F64] = {"F64", 8, true, 0x1p-53},   [F32] = {"F32", 4, true, 0x1p-24},
    [BF16] = {"BF16", 2, true, 0x1p-8},  [F16] = {"F16", 2, true, 0x1p-11},
    [I64] = {"I64", 8, false, 0},        [I32] = {"I32", 4, false, 0},
    [U8] = {"U8", 1, false, 0},          [F8E4M3] = {"F8_E4M3", 1, false, 0},
    [F8E5M2] = {"F8_E5M2", 1, false, 0}, [I8] = {"I8", 1, false, 0},
};

size_t dtype_size(DType t) { return TYPES[t].size; }
const char *dtype_name(DType t) { return TYPES[t].name; }
bool dtype_is_float(DType t) { return TYPES[t].is_float; }
bool dtype_is_16bit(DType t) { return t == BF16 || t == F16; }
bool dtype_is_fp8(DType t) { return t == F8E4M3 || t == F8E5M2; }
double dtype_roundoff(DType t) { return TYPES[t].roundoff; }

bool dtype_parse(const char *name, DType *out) {
    for (int t = 0; t < DTYPES; t++)
        if (!strcmp(name, TYPES[t].name)) return *out = (DType)t, true;
    return false;
}

uint16_t bf16_from_float(float x) {
    uint32_t u = float_bits(x);
    if ((u & 0x7fffffffu) > 0x7f800000u) return (uint16_t)(u >> 16 | 0x40); /* a NaN stays a (quiet) NaN */
    return (uint16_t)((u + 0x7fffu + (u >> 16 & 1)) >> 16);
}

float bf16_to_float(uint16_t h) { return float_of_bf16(h); }

uint16_t f16_from_float(float x) {
    uint32_t u = float_bits(x), sign = u >> 16 & 0x8000, mag = u & 0x7fffffffu;
    if (mag > 0x7f800000u) return (uint16_t)(sign | 0x7e00);
    if (mag >= 0x477ff000u) return (uint16_t)(sign | 0x7c00); /* 65520 and above round to infinity */
    if (mag < 0x38800000u) { /* for a subnormal of F16, a float addition performs the rounding */
        return (uint16_t)(sign | (float_bits(float_of_bits(mag) + 0.5f) - float_bits(0.5f)));
    }
    return (uint16_t)(sign | ((mag - 0x38000000u + 0xfffu + (mag >> 13 & 1)) >> 13));
}

float f16_to_float(uint16_t h) { return float_of_f16(h); }

static Fp8Type fp8_of(DType t) { return t == F8E4M3 ? E4M3 : E5M2; }

static void to_float(float *dst, const void *src, DType from, size_t n) {
    const double *f64 = src;
    const uint16_t *bits = src;
    const uint8_t *values = src;
    const int8_t *integers = src;
    switch (from) {
    case F64:
        for (size_t i = 0; i < n; i++) dst[i] = (float)f64[i];
        break;
    case BF16:
        for (size_t i = 0; i < n; i++) dst[i] = float_of_bf16(bits[i]);
        break;
    case F16:
        for (size_t i = 0; i < n; i++) dst[i] = float_of_f16(bits[i]);
        break;
    case F8E4M3:
    case F8E5M2:
        for (size_t i = 0; i < n; i++) dst[i] = fp8_to_float(fp8_of(from), values[i]);
        break;
    case I8:
        for (size_t i = 0; i < n; i++) dst[i] = integers[i];
        break;
    default:
        fault(__FILE__, __LINE__, "float type", "cannot convert from %s", dtype_name(from));
    }
}

static void from_float(void *dst, DType to, const float *src, size_t n) {
    double *f64 = dst;
    uint16_t *bits = dst;
    uint8_t *values = dst;
    int8_t *integers = dst;
    switch (to) {
    case F64:
        for (size_t i = 0; i < n; i++) f64[i] = (double)src[i];
        break;
    case BF16:
        for (size_t i = 0; i < n; i++) bits[i] = bf16_from_float(src[i]);
        break;
    case F16:
        for (size_t i = 0; i < n; i++) bits[i] = f16_from_float(src[i]);
        break;
    case F8E4M3:
    case F8E5M2:
        for (size_t i = 0; i < n; i++) values[i] = fp8_from_float(fp8_of(to), src[i]);
        break;
    case I8:
        for (size_t i = 0; i < n; i++) integers[i] = (int8_t)rintf(fminf(fmaxf(src[i], -127), 127));
        break;
    default:
        fault(__FILE__, __LINE__, "float type", "cannot convert to %s", dtype_name(to));
    }
}

enum { CHUNK = 256 };

void dtype_convert(void *dst, DType to, const void *src, DType from, size_t n) {
    if (to == from)
        memmove(dst, src, n * dtype_size(to));
    else if (to == F32)
        to_float(dst, src, from, n);
    else if (from == F32)
        from_float(dst, to, src, n);
    else
        for (size_t i = 0; i < n; i += CHUNK) {
            float chunk[CHUNK];
            size_t m = n - i < CHUNK ? n - i : CHUNK;
            to_float(chunk, (const char *)src + i * dtype_size(from), from, m);
            from_float((char *)dst + i * dtype_size(to), to, chunk, m);
        }
}

void dtype_store(void *array, DType t, int64_t at, double x) {
    if (t == I64)
        ((int64_t *)array)[at] = (int64_t)x;
    else if (t == I32)
        ((int32_t *)array)[at] = (int32_t)x;
    else if (t == U8)
        ((uint8_t *)array)[at] = (uint8_t)x;
    else
        dtype_convert((char *)array + (size_t)at * dtype_size(t), t, &x, F64, 1);
}

double dtype_load(const void *array, DType t, int64_t at) {
    double x;
    if (t == I64) return (double)((const int64_t *)array)[at];
    if (t == I32) return ((const int32_t *)array)[at];
    if (t == U8) return ((const uint8_t *)array)[at];
    dtype_convert(&x, F64, (const char *)array + (size_t)at * dtype_size(t), t, 1);
    return x;
}
