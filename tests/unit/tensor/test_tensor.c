/* Tests the memory range and the rows of strided tensors. Strides may be negative. */
#include <string.h>

#include "tensor/tensor.h"
#include "unit/cmocka_all.h"

TEST(spans_its_elements) {
    float x[100];
    Tensor t = tensor_make(x + 40, F32, 3, (int64_t[]){3, 2, 4});
    assert_true(tensor_extent(&t) == 24 * sizeof *x && tensor_lowest(&t) == x + 40);
    t.stride[0] = 20, t.stride[1] = 6; /* gaps */
    assert_true(tensor_extent(&t) == (2 * 20 + 6 + 4) * sizeof *x && tensor_lowest(&t) == x + 40);
    t.stride[0] = -20;
    assert_true(tensor_extent(&t) == (2 * 20 + 6 + 4) * sizeof *x && tensor_lowest(&t) == x);
    t.stride[1] = -6, t.data = x + 46;
    assert_true(tensor_lowest(&t) == x);
    t.dim[0] = 0;
    assert_true(tensor_extent(&t) == 0 && tensor_lowest(&t) == x + 46);
}

TEST(finds_its_rows) {
    Tensor t = tensor_make(NULL, F32, 4, (int64_t[]){2, 3, 5, 4});
    const int64_t strides[][3] = {{60, 20, 4},    {90, 30, 4}, {80, 20, 4}, {4, 8, 24},
                                  {-60, -20, -4}, {20, 0, 0},  {0, 0, 4},   {8, 4, 4}};
    for (size_t s = 0; s < sizeof strides / sizeof *strides; s++) {
        memcpy(t.stride, strides[s], sizeof strides[s]);
        for (int64_t row = 0; row < tensor_rows(&t); row++)
            assert_int_equal(tensor_row_offset(&t, row),
                             row / 15 * t.stride[0] + row / 5 % 3 * t.stride[1] + row % 5 * t.stride[2]);
    }
    t.ndim = 1;
    assert_int_equal(tensor_row_offset(&t, 0), 0);
}
