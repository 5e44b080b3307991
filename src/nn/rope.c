#include "nn/rope.h"

#include <math.h>
#include <string.h>

#include "base/fault.h"

/* Returns the (real-valued) index of the channel that rotates `turns` times over the original context
 * length. */
static double yarn_channel(const RopeSpec *s, double turns) {
    return (double)s->dim * log(s->yarn.original / (turns * 2 * M_PI)) / (2 * log(s->base));
}

/* Returns the fraction of channel i's frequency that is divided by the YaRN factor, from 0 (none) to 1
 * (all). */
static double yarn_ramp(const RopeSpec *s, int64_t i) {
    double low = yarn_channel(s, s->yarn.fast), high = yarn_channel(s, s->yarn.slow);
    if (s->yarn.rounds) low = floor(low), high = ceil(high);
    low = fmax(low, 0), high = fmin(high, (double)s->dim - 1);
    if (low == high) high += 0.001;
    return fmin(fmax(((double)i - low) / (high - low), 0), 1);
}

double rope_frequency(const RopeSpec *s, int64_t i) {
    double f = pow(s->base, -2.0 * (double)i / (double)s->dim);
    if (s->divisor) return f / s->divisor[i];
    if (s->yarn.factor != 0) {
        const double divided = yarn_ramp(s, i);
        return f / s->yarn.factor * divided + f * (1 - divided);
    }
    if (s->llama3.factor == 0) return f;
    double wavelength = 2 * M_PI / f;
    if (wavelength > s->llama3.original / s->llama3.low) return f / s->llama3.factor;
    if (wavelength < s->llama3.original / s->llama3.high) return f;
    double keep = (s->llama3.original / wavelength - s->llama3.low) / (s->llama3.high - s->llama3.low);
    return (1 - keep) * f / s->llama3.factor + keep * f;
}

static void put(void *table, DType dtype, int64_t i, double x) {
    if (dtype == F64)
        ((double *)table)[i] = x;
    else
        ((float *)table)[i] = (float)x;
}

static double amplitude(const RopeSpec *s, double position) {
    if (s->temperature.scale == 0) return s->amplitude;
    const double steps = floor((position + s->temperature.first) / s->temperature.floor);
    return s->amplitude * (1 + s->temperature.scale * log1p(steps));
}

/* Computes rows [first, first + n) of both tables. */
static void fill(Device *d, const RopeTable *t, const RopeSpec *s, int64_t first, int64_t n) {
    const DType dtype = (DType)t->cos.dtype;
    const int64_t half = s->dim / 2;
    const size_t row = (size_t)half * dtype_size(dtype), at = (size_t)first * row;
    DeviceView c = device_view(d, (char *)t->cos.data + at, (size_t)n * row, VIEW_WRITE),
               v = device_view(d, (char *)t->sin.data + at, (size_t)n * row, VIEW_WRITE);
    for (int64_t i = 0; i < half; i++) {
        const double f = s->temperature.scale == 0 ? rope_frequency(s, i) : 0;
        for (int64_t p = 0; p < n; p++) {
            const double at = (double)(first + p), angle = at / s->interpolation * f, size = amplitude(s, at);
            put(c.data, dtype, p * half + i, size * cos(angle));
            put(v.data, dtype, p * half + i, size * sin(angle));
        }
    }
    device_view_end(&c);
    device_view_end(&v);
}

RopeTable rope_table_new(Device *d, DType dtype, const RopeSpec *s, int64_t positions) {
    CHECK(dtype == F64 || dtype == F32, "RoPE tables are F64 or F32, not %s", dtype_name(dtype));
    int64_t half = s->dim / 2;
    RopeTable table;
    table.cos = table.sin = tensor_make(NULL, dtype, 2, (int64_t[]){positions, half});
    table.cos.data = device_alloc(d, tensor_bytes(&table.cos), "RoPE table");
    table.sin.data = device_alloc(d, tensor_bytes(&table.sin), "RoPE table");
    if (d->kind == DEVICE_NULL) return table;
    const int64_t together = VIEW_BYTES / (half * (int64_t)dtype_size(dtype)) + 1;
    for (int64_t p = 0; p < positions; p += together)
        fill(d, &table, s, p, positions - p < together ? positions - p : together);
    return table;
}

void rope_table_free(Device *d, RopeTable *t) {
    device_release(d, t->cos.data, tensor_bytes(&t->cos));
    device_release(d, t->sin.data, tensor_bytes(&t->sin));
    *t = (RopeTable){0};
}

/* ---- a registry's tables ---- */

typedef struct SharedTable {
    RopeSpec spec;
    RopeTable table;
} SharedTable;

static size_t rope_allocate(void *self, const Registry *r, int64_t positions) {
    SharedTable *t = self;
    t->table = rope_table_new(r->device, r->precise, &t->spec, positions);
    return tensor_bytes(&t->table.cos) + tensor_bytes(&t->table.sin);
}

static void rope_release(void *self, Device *d) { rope_table_free(d, &((SharedTable *)self)->table); }

static const StateKind ROPE_TABLE = {.allocate = rope_allocate, .release = rope_release};

/* rope_table compares specs byte by byte, so a spec must have no padding. */
_Static_assert(sizeof(RopeSpec) == 2 * sizeof(int64_t) + sizeof(double *) + 14 * sizeof(double),
               "RopeSpec has padding");

const RopeTable *rope_table(Registry *r, RopeSpec spec) {
    SharedTable *t;
    for (int i = 0; (t = state_find(r, &ROPE_TABLE, i)); i++)
        if (!memcmp(&t->spec, &spec, sizeof spec)) return &t->table;
    t = arena_alloc(r->arena, sizeof *t);
    t->spec = spec;
    state_add(r, &ROPE_TABLE, t);
    return &t->table;
}
