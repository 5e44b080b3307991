/* Tests that the CPU's paths for few rows give the same results as those for many rows. In a fixed order of summation,
 * results are bitwise equal; otherwise their sums may differ in order. */
#include <math.h>
#include <stdlib.h>

#include "unit/cmocka_all.h"

#include "base/mem.h"
#include "base/philox.h"
#include "kernels/attr.h"
#include "kernels/ops.h"
#include "tensor/device.h"

enum { MOST_ROWS = 35 };

/* Values in (-1, 1). */
static void *values(DType type, int64_t n, uint64_t site) {
    void *x = mem_zero((size_t)n, dtype_size(type));
    for (int64_t i = 0; i < n; i++) dtype_store(x, type, i, 2 * philox_uniform(3, site, (uint64_t)i) - 1);
    return x;
}

typedef struct Layer {
    DType real, weight;
    int64_t k, n;
    void *x, *w, *bias, *out;
} Layer;

static void run(Device *d, const Layer *l, int64_t first, int64_t rows, bool in_order) {
    const LinearAttr attr = {.fixed_order = in_order};
    const size_t size = dtype_size(l->real);
    Tensor x = tensor_make((char *)l->x + (size_t)(first * l->k) * size, l->real, 3,
                           (int64_t[]){rows, 1, l->k}),
           w = tensor_make(l->w, l->weight, 2, (int64_t[]){l->n, l->k}),
           bias = tensor_make(l->bias, l->real, 1, &l->n),
           y = tensor_make((char *)l->out + (size_t)(first * l->n) * size, l->real, 3,
                           (int64_t[]){rows, 1, l->n});
    call_run(&OPS[OP_linear], &(Call){.in = {&x, &w, &bias}, .out = {&y}, .attr = &attr, .device = d});
}

/* All sizes of row and column blocks, and sums that do not fill the lanes. */
TEST(rows_do_not_depend_on_their_number) {
    static const DType TYPES[][2] = {{F64, F64}, {F32, F32}, {F32, BF16}, {F32, F16}};
    static const int64_t SIZES[][2] = {{5, 3}, {48, 33}, {61, 18}, {770, 4}};
    Device *d = device_cpu(2);
    for (size_t t = 0; t < sizeof TYPES / sizeof *TYPES; t++)
        for (size_t s = 0; s < sizeof SIZES / sizeof *SIZES; s++) {
            const int64_t k = SIZES[s][0], n = SIZES[s][1];
            Layer l = {TYPES[t][0],
                       TYPES[t][1],
                       k,
                       n,
                       values(TYPES[t][0], MOST_ROWS * k, 1),
                       values(TYPES[t][1], n * k, 2),
                       values(TYPES[t][0], n, 3),
                       NULL};
            void *whole = l.out = values(l.real, MOST_ROWS * n, 4);
            run(d, &l, 0, MOST_ROWS, true);
            l.out = values(l.real, MOST_ROWS * n, 5);
            const double bound = (double)k * dtype_roundoff(l.real) * (double)(k + 1); /* |terms| < 1 */
            for (int in_order = 0; in_order < 2; in_order++)
                for (int64_t rows = 1; rows <= MOST_ROWS; rows++) {
                    const int64_t first = MOST_ROWS - rows;
                    run(d, &l, first, rows, in_order);
                    for (int64_t i = first * n; i < MOST_ROWS * n; i++) {
                        const double got = dtype_load(l.out, l.real, i), want = dtype_load(whole, l.real, i);
                        if (in_order ? got != want : fabs(got - want) > 2 * bound)
                            fail_msg("types %zu, sizes %zu, %lld rows: %.17g, not %.17g", t, s,
                                     (long long)rows, got, want);
                    }
                }
            free(l.x), free(l.w), free(l.bias), free(l.out), free(whole);
        }
    device_free(d);
}
