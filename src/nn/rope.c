#include "nn/rope.h"

#include <math.h>

#include "base/fault.h"

double rope_frequency(const RopeSpec *s, int64_t i) {
    double f = pow(s->base, -2.0 * (double)i / (double)s->dim);
    if (s->llama3.factor == 0) return f;
    double wavelength = 2 * M_PI / f;
    if (wavelength > s->llama3.original / s->llama3.low) return f / s->llama3.factor;
    if (wavelength < s->llama3.original / s->llama3.high) return f;
    double keep = (s->llama3.original / wavelength - s->llama3.low) / (s->llama3.high - s->llama3.low);
    return (1 - keep) * f / s->llama3.factor + keep * f;
}

static void put(Tensor *t, int64_t i, double x) {
    if (t->dtype == F64)
        ((double *)t->data)[i] = x;
    else
        ((float *)t->data)[i] = (float)x;
}

RopeTable rope_table_new(Device *d, DType dtype, const RopeSpec *s) {
    CHECK(dtype == F64 || dtype == F32, "RoPE tables are F64 or F32, not %s", dtype_name(dtype));
    int64_t half = s->dim / 2;
    RopeTable table;
    table.cos = table.sin = tensor_make(NULL, dtype, 2, (int64_t[]){s->positions, half});
    table.cos.data = device_alloc(d, tensor_bytes(&table.cos), "RoPE table");
    table.sin.data = device_alloc(d, tensor_bytes(&table.sin), "RoPE table");
    if (d->kind == DEVICE_NULL) return table;
    for (int64_t i = 0; i < half; i++) {
        double f = rope_frequency(s, i);
        for (int64_t p = 0; p < s->positions; p++) {
            double angle = (double)p / s->interpolation * f;
            put(&table.cos, p * half + i, cos(angle));
            put(&table.sin, p * half + i, sin(angle));
        }
    }
    return table;
}

void rope_table_free(Device *d, RopeTable *t) {
    device_release(d, t->cos.data, tensor_bytes(&t->cos));
    device_release(d, t->sin.data, tensor_bytes(&t->sin));
    *t = (RopeTable){0};
}
