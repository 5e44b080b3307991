/* Computes the op of kernels/cpu/attention_merge.c, with the same formula. y may have any type. sum_y and
 * sum_lse have the arithmetic type and are updated in place. */
#include "kernels/cuda/common.cuh"

enum { THREADS = 256 };

/* Merges two log-sum-exps a and b: `from` and `into` are the weights of the two results (the weights sum to
 * 1), and lse is the merged log-sum-exp. `from` is 0 if a is -inf, that is, if the first result has no keys. */
template <typename R> struct Merged {
    R from, into, lse;

    __device__ Merged(R a, R b) {
        const R max = a > b ? a : b, x = exp(a - max), y = exp(b - max), sum = x + y;
        const bool none = a == -(R)INFINITY;
        from = none ? 0 : x / sum, into = none ? 1 : y / sum, lse = none ? b : max + log(sum);
    }
};

/* The log-sum-exp of row i of a head is at head * s + i of lse, and at head * sum_s + i of sum_lse. */
template <typename R> struct LogSums {
    const R *lse;
    R *sum_lse;
    int64_t s, sum_s;
};

/* Row (i, head) of y has the log-sum-exp of row i of `head`. 2^share threads process each row of y. */
template <typename X, typename R, int N>
static __global__ void merge(const X *y, R *sum_y, LogSums<R> at, int lines, int vectors, int heads,
                             int share) {
    GRID_LOOP(i, (int64_t)lines << share) {
        const int line = (int)(i >> share), head = line % heads, row = line / heads;
        const int64_t first = (int64_t)line * vectors;
        const Merged<R> m(at.lse[head * at.s + row], at.sum_lse[head * at.sum_s + row]);
        for (int v = (int)(i & ((1 << share) - 1)); v < vectors; v += 1 << share) {
            const Vec<X, N> a = ((const Vec<X, N> *)y)[first + v];
            Vec<R, N> b = ((const Vec<R, N> *)sum_y)[first + v];
#pragma unroll
            for (int k = 0; k < N; k++) b.v[k] = m.from * to_real<R>(a.v[k]) + m.into * b.v[k];
            if (m.from != 0) ((Vec<R, N> *)sum_y)[first + v] = b;
        }
    }
}

/* Merges the log-sum-exps. This kernel runs after all rows of y have been merged. */
template <typename R> static __global__ void merge_lse(LogSums<R> at, int64_t n) {
    GRID_LOOP(i, n) {
        R *sum = &at.sum_lse[i / at.s * at.sum_s + i % at.s];
        *sum = Merged<R>(at.lse[i], *sum).lse;
    }
}

/* Returns the number of elements between the first rows of consecutive heads. */
static int64_t between_heads(const Tensor *lse) {
    const int64_t *dim = lse->dim, *stride = lse->stride;
    const int64_t head = dim[2] > 1 ? stride[2] : dim[1] > 1 ? stride[1] : stride[0];
    CHECK((dim[1] == 1 || stride[1] == dim[2] * head) &&
              (dim[0] == 1 || stride[0] == dim[1] * dim[2] * head) && (dim[3] == 1 || stride[3] == 1),
          "attention_merge: the heads of sum_lse are not evenly spaced");
    return head;
}

template <typename X, typename R> static void run(const Call *c) {
    const Tensor *y = c->in[0], *lse = c->in[1], *sum_y = c->out[0], *sum_lse = c->out[1];
    const X *from = data_of<X>(y);
    R *into = data_of<R>(sum_y);
    const int64_t s = y->dim[0], width = tensor_width(y), lines = tensor_rows(y), heads = lines / s;
    CHECK(lines <= INT32_MAX && width <= INT32_MAX,
          "attention_merge: %lld rows of %lld elements are too many", (long long)lines, (long long)width);
    const LogSums<R> at = {data_of<R>(lse), data_of<R>(sum_lse), s, between_heads(sum_lse)};
    constexpr int N = VEC<R>; /* R has at least as many bits as X */
    const bool whole = width % N == 0 && aligned_16(from) && aligned_16(into);
    const int vectors = (int)(whole ? width / N : width);
    int share = 0;
    while (share < 5 && 1 << share < vectors) share++;
    const auto kernel = whole ? merge<X, R, N> : merge<X, R, 1>;
    kernel<<<grid_for(c, lines << share, THREADS), THREADS, 0, stream_of(c)>>>(from, into, at, (int)lines,
                                                                               vectors, (int)heads, share);
    LAUNCHED();
    merge_lse<R><<<grid_for(c, lines, THREADS), THREADS, 0, stream_of(c)>>>(at, lines);
    LAUNCHED();
}

extern "C" void cuda_attention_merge(const Call *c) {
    const Tensor *y = c->in[0], *lse = c->in[1], *sum_y = c->out[0], *sum_lse = c->out[1];
    const int precise = y->dtype == F64 ? F64 : F32;
    if (!tensor_count(y)) return;
    CHECK(sum_y->dtype == precise && lse->dtype == precise && sum_lse->dtype == precise,
          "attention_merge: y is %s, sum_y is %s, lse is %s and sum_lse is %s", dtype_name((DType)y->dtype),
          dtype_name((DType)sum_y->dtype), dtype_name((DType)lse->dtype), dtype_name((DType)sum_lse->dtype));
    CHECK(tensor_is_contiguous(y) && tensor_is_contiguous(sum_y) && tensor_is_contiguous(lse),
          "attention_merge: y, sum_y or lse is strided");
    STORAGE_SWITCH(y->dtype, run<T, Real<T>>(c));
}
