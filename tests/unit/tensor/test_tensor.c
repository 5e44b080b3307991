/* Tests the memory range of a strided tensor, also with negative strides. */
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
