/* The op of kernels/cpu/attention_merge.c, with the same formula. Updated in place: sum_y, sum_lse, which are
 * partial results in the arithmetic's type. */
#include "kernels/cuda/common.cuh"

enum { THREADS = 256 };

/* The merge of two log-sums: their weights in the result, which sum to 1, and the log of their sum. If the
 * first is that of a row without keys, its weight is 0. */
template <typename R> struct Merged {
    R from, into, lse;

    __device__ Merged(R a, R b) {
        const R max = a > b ? a : b, x = exp(a - max), y = exp(b - max), sum = x + y;
        const bool none = a == -(R)INFINITY;
        from = none ? 0 : x / sum, into = none ? 1 : y / sum, lse = none ? b : max + log(sum);
    }
};

/* Line (i, head) of y has the log-sum of row i of `head`; 2^share threads share a line. */
template <typename R, int N>
static __global__ void merge(const R *y, R *sum_y, Cells lse, Cells sum_lse, int lines, int vectors,
                             int heads, int s, int share) {
    GRID_LOOP(i, (int64_t)lines << share) {
        const int line = (int)(i >> share);
        const int64_t row = (int64_t)(line % heads) * s + line / heads, first = (int64_t)line * vectors;
        const Merged<R> m(lse.get<R>(row), sum_lse.get<R>(row));
        for (int v = (int)(i & ((1 << share) - 1)); v < vectors; v += 1 << share) {
            const Vec<R, N> a = ((const Vec<R, N> *)y)[first + v];
            Vec<R, N> b = ((const Vec<R, N> *)sum_y)[first + v];
#pragma unroll
            for (int k = 0; k < N; k++) b.v[k] = m.from * a.v[k] + m.into * b.v[k];
            if (m.from != 0) ((Vec<R, N> *)sum_y)[first + v] = b;
        }
    }
}

/* Runs after all lines have been merged. */
template <typename R> static __global__ void merge_lse(Cells lse, Cells sum_lse, int64_t n) {
    GRID_LOOP(i, n) sum_lse.put(i, Merged<R>(lse.get<R>(i), sum_lse.get<R>(i)).lse);
}

template <typename R> static void run(const Call *c) {
    const Tensor *y = c->in[0], *lse = c->in[1], *sum_y = c->out[0], *sum_lse = c->out[1];
    const R *from = data_of<R>(y);
    R *into = data_of<R>(sum_y);
    const int64_t s = y->dim[0], width = tensor_width(y), lines = tensor_rows(y), heads = lines / s;
    CHECK(lines <= INT32_MAX && width <= INT32_MAX, "attention_merge: %lld lines of %lld", (long long)lines,
          (long long)width);
    constexpr int N = VEC<R>;
    const bool whole = width % N == 0 && aligned_16(from) && aligned_16(into);
    const int vectors = (int)(whole ? width / N : width);
    int share = 0;
    while (share < 5 && 1 << share < vectors) share++;
    const auto kernel = whole ? merge<R, N> : merge<R, 1>;
    kernel<<<grid_for(c, lines << share, THREADS), THREADS, 0, stream_of(c)>>>(
        from, into, cells(lse), cells(sum_lse), (int)lines, vectors, (int)heads, (int)s, share);
    LAUNCHED();
    merge_lse<R>
        <<<grid_for(c, lines, THREADS), THREADS, 0, stream_of(c)>>>(cells(lse), cells(sum_lse), lines);
    LAUNCHED();
}

extern "C" void cuda_attention_merge(const Call *c) {
    const Tensor *y = c->in[0], *sum_y = c->out[0];
    if (!tensor_count(y)) return;
    CHECK(y->dtype == sum_y->dtype && (y->dtype == F64 || y->dtype == F32),
          "attention_merge: y is %s, sum_y %s", dtype_name((DType)y->dtype), dtype_name((DType)sum_y->dtype));
    CHECK(tensor_is_contiguous(y) && tensor_is_contiguous(sum_y), "attention_merge: %s is strided",
          tensor_is_contiguous(y) ? "sum_y" : "y");
    REAL_SWITCH(y->dtype, run<R>(c));
}
