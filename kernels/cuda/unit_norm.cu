/* Computes the op unit_norm of kernels/cpu/optimizer.c. */
#include "kernels/cuda/common.cuh"

extern "C" {
#include "base/exact_round.h"
#include "kernels/step_numbers.h"
}

enum { THREADS = 256, EACH = 8 /* number of blocks per multiprocessor */ };
static_assert((int)EXACT_WORDS <= (int)THREADS, "there must be a thread for each word");

/* Each block computes the divisor for itself. A single thread of the block processes the limbs in order, as the
 * host does. */
template <typename T>
static __global__ void unit_norm(const Real<T> *x, const int64_t *sum, T *y, int64_t n) {
    __shared__ ExactSum squares;
    __shared__ double by;
    if (threadIdx.x < EXACT_WORDS) ((int64_t *)&squares)[threadIdx.x] = sum[threadIdx.x];
    __syncthreads();
    if (threadIdx.x == 0) by = unit_divisor(__longlong_as_double((long long)exact_round(&squares)));
    __syncthreads();
    const Real<T> divisor = (Real<T>)by;
    GRID_LOOP(i, n) y[i] = from_real<T>(x[i] / divisor);
}

extern "C" void cuda_unit_norm(const Call *c) {
    const Tensor *x = c->in[0], *sum = c->in[1], *y = c->out[0];
    const int64_t n = tensor_count(x), *squares = (const int64_t *)sum->data;
    CHECK(tensor_count(sum) == EXACT_WORDS, "unit_norm: a sum of %lld words is not supported",
          (long long)tensor_count(sum));
    CHECK((x->dtype == F64) == (y->dtype == F64), "unit_norm: x is %s, but y is %s",
          dtype_name((DType)x->dtype), dtype_name((DType)y->dtype));
    if (!n) return;
    const unsigned most = (unsigned)cuda_of(c->device)->multiprocessors * EACH;
    const unsigned grid = (unsigned)least(ceil_div(n, THREADS), most);
    STORAGE_SWITCH(y->dtype, unit_norm<T>
                   <<<grid, THREADS, 0, stream_of(c)>>>(data_of<Real<T>>(x), squares, data_of<T>(y), n));
    LAUNCHED();
}
