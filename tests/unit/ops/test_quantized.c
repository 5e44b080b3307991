/* Compares one-byte weights (src/ops/quantized.c) on the CPU with the definition in kernels/ops.def, which this file
 * computes in double. */
#include <float.h>
#include <math.h>
#include <stdlib.h>

#include "unit/cmocka_all.h"

#include "base/mem.h"
#include "base/philox.h"
#include "kernels/attr.h"
#include "kernels/ops.h"
#include "tensor/device.h"

enum { ROWS = 21, ZERO_ROW = 3 /* of weights */ };

/* The closest number with 3 bits of mantissa, ties to even, at most 448. Below 2^-6, numbers are multiples of 2^-9. */
static double e4m3(double y) {
    int exponent;
    frexp(y, &exponent);
    const double step = ldexp(1, (exponent - 1 < -6 ? -6 : exponent - 1) - 3),
                 near = nearbyint(y / step) * step;
    return fabs(near) > 448 ? copysign(448, y) : near;
}

/* The number that a cast represents, and its factor. */
static double rounded(double x, double amax, DType type, double *factor) {
    const float scale = amax > 0 ? (type == I8 ? 127 : 448) / (float)amax : 1;
    const float y = (float)x * scale;
    *factor = (double)(1 / scale);
    return type == I8 ? nearbyint((double)y) : e4m3((double)y);
}

typedef struct Layer {
    DType real, weight; /* types of x and of the weight */
    int64_t k, n;
    Tensor x, w, bias, q, inverse; /* w before its cast */
} Layer;

/* Numbers of many magnitudes. */
static Tensor numbers(DType type, int64_t rows, int64_t columns, uint64_t site) {
    Tensor t = tensor_make(mem_zero((size_t)(rows * columns), dtype_size(type)), type, 2,
                           (int64_t[]){rows, columns});
    for (int64_t i = 0; i < rows * columns; i++)
        dtype_store(t.data, type, i,
                    philox_normal(5, site, (uint64_t)i) * exp(philox_normal(6, site, (uint64_t)i)));
    return t;
}

static double at(const Tensor *t, int64_t i) { return dtype_load(t->data, (DType)t->dtype, i); }

static double amax_of(const Tensor *t, int64_t row) {
    double most = 0;
    for (int64_t i = 0; i < t->dim[1]; i++) most = fmax(most, fabs(at(t, row * t->dim[1] + i)));
    return most;
}

static Layer layer_new(Device *d, DType real, DType weight, int64_t k, int64_t n) {
    const DType precise = real == F64 ? F64 : F32;
    Layer l = {.real = real, .weight = weight, .k = k, .n = n};
    l.x = numbers(real, ROWS, k, 1), l.w = numbers(real, n, k, 2), l.bias = numbers(real, 1, n, 3);
    for (int64_t i = 0; i < k; i++) dtype_store(l.w.data, real, ZERO_ROW * k + i, 0);
    l.q = tensor_make(mem_zero((size_t)(n * k), 1), weight, 2, (int64_t[]){n, k});
    l.inverse = tensor_make(mem_zero((size_t)n, dtype_size(precise)), precise, 1, &n);
    l.bias.ndim = 1, l.bias.dim[0] = n;
    call_run(&OPS[OP_row_amax], &(Call){.in = {&l.w}, .out = {&l.inverse}, .device = d});
    call_run(&OPS[OP_row_cast], &(Call){.in = {&l.w}, .out = {&l.q, &l.inverse}, .device = d});
    return l;
}

static void layer_free(Layer *l) {
    free(l->x.data), free(l->w.data), free(l->bias.data), free(l->q.data), free(l->inverse.data);
}

static void *run(Device *d, const Layer *l, int64_t first, int64_t rows, bool in_order) {
    const LinearAttr attr = {.fixed_order = in_order};
    const size_t size = dtype_size(l->real);
    Layer m = *l;
    Tensor x = tensor_make((char *)l->x.data + (size_t)(first * l->k) * size, l->real, 3,
                           (int64_t[]){rows, 1, l->k}),
           y = tensor_make(mem_zero((size_t)(rows * l->n), size), l->real, 3, (int64_t[]){rows, 1, l->n});
    call_run(&OPS[OP_linear_quantized],
             &(Call){.in = {&x, &m.q, &m.bias, &m.inverse}, .out = {&y}, .attr = &attr, .device = d});
    return y.data;
}

/* The cast of the weight is exact. The sum has k products and is multiplied twice. Each of these operations has a
 * relative error of at most u; so has the last rounding, with the u of the storage type. */
static void check(const Layer *l, const void *y) {
    const double u = dtype_roundoff(l->real == F64 ? F64 : F32), last = dtype_roundoff(l->real);
    for (int64_t r = 0; r < ROWS; r++)
        for (int64_t o = 0; o < l->n; o++) {
            const double amax = amax_of(&l->x, r), amax_w = amax_of(&l->w, o);
            double sum = 0, size = 0, by = 1, factor = 1;
            for (int64_t i = 0; i < l->k; i++) {
                const double w = rounded(at(&l->w, o * l->k + i), amax_w, l->weight, &factor),
                             x = l->weight == I8 ? at(&l->x, r * l->k + i)
                                                 : rounded(at(&l->x, r * l->k + i), amax, F8E4M3, &by);
                if (!r && at(&l->q, o * l->k + i) != w)
                    fail_msg("weight %lld of output %lld is %g, not %g", (long long)i, (long long)o,
                             at(&l->q, o * l->k + i), w);
                sum += x * w, size += fabs(x * w);
            }
            const double want = sum * by * factor + at(&l->bias, o),
                         got = dtype_load(y, l->real, r * l->n + o),
                         bound = (double)(l->k + 3) * u * (size * by * factor + fabs(at(&l->bias, o)));
            if (!(fabs(got - want) <= bound + last * (fabs(want) + bound)))
                fail_msg("%s, %s, k %lld: y[%lld, %lld] is %.9g, not %.9g, bound %.3g", dtype_name(l->real),
                         dtype_name(l->weight), (long long)l->k, (long long)r, (long long)o, got, want,
                         bound);
        }
}

static const DType TYPES[] = {F64, F32, BF16, F16}, WEIGHTS[] = {I8, F8E4M3};
static const int64_t SIZES[][2] = {{5, 4}, {61, 18}, {130, 33}};

TEST(results_are_those_of_the_definition) {
    Device *d = device_cpu(2);
    for (int t = 0; t < 4; t++)
        for (int w = 0; w < 2; w++)
            for (int s = 0; s < 3; s++)
                for (int in_order = 0; in_order < 2; in_order++) {
                    Layer l = layer_new(d, TYPES[t], WEIGHTS[w], SIZES[s][0], SIZES[s][1]);
                    void *y = run(d, &l, 0, ROWS, in_order);
                    check(&l, y);
                    free(y), layer_free(&l);
                }
    device_free(d);
}

TEST(rows_do_not_depend_on_others_in_a_fixed_order) {
    Device *d = device_cpu(2);
    for (int w = 0; w < 2; w++) {
        Layer l = layer_new(d, BF16, WEIGHTS[w], 130, 33);
        uint16_t *all = run(d, &l, 0, ROWS, true);
        for (int64_t rows = 1; rows < ROWS; rows++) {
            uint16_t *some = run(d, &l, ROWS - rows, rows, true);
            assert_memory_equal(some, all + (ROWS - rows) * l.n, (size_t)(rows * l.n) * sizeof *all);
            free(some);
        }
        free(all), layer_free(&l);
    }
    device_free(d);
}

/* With FP8, one number that is not finite makes its row NaN; other rows do not change. A weight does the same to its
 * output. */
TEST(numbers_that_are_not_finite_stay_in_their_row) {
    Device *d = device_cpu(1);
    for (int k = 0; k < 4; k++) {
        const double bad = k % 2 ? NAN : INFINITY;
        const bool weight = k / 2;
        Layer l = layer_new(d, F32, F8E4M3, 61, 18);
        float *want = run(d, &l, 0, ROWS, true);
        if (weight) {
            dtype_store(l.w.data, F32, 5 * l.k + 7, bad);
            call_run(&OPS[OP_row_amax], &(Call){.in = {&l.w}, .out = {&l.inverse}, .device = d});
            call_run(&OPS[OP_row_cast], &(Call){.in = {&l.w}, .out = {&l.q, &l.inverse}, .device = d});
        } else {
            dtype_store(l.x.data, F32, 5 * l.k + 7, bad);
        }
        float *got = run(d, &l, 0, ROWS, true);
        for (int64_t i = 0; i < ROWS * l.n; i++)
            if ((weight ? i % l.n : i / l.n) == 5)
                assert_true(isnan(got[i]));
            else
                assert_true(got[i] == want[i]);
        free(want), free(got), layer_free(&l);
    }
    device_free(d);
}
