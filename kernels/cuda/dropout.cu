/* Computes the ops of kernels/cpu/dropout.c, with the same random numbers. y is written or accumulated. */
#include "kernels/cuda/dropout.cuh"
#include "kernels/cuda/vectors.cuh"

/* A run consists of the elements of two Philox blocks. Each Philox block begins at a global index that is a
 * multiple of 4. If a row does not begin at a multiple of 4, the row's first run begins before the row. A warp
 * processes up to STRIPE runs of a row, and computes the row's position in the full sequence only once. */
enum { THREADS = 256, WARP = 32, WORDS = 4, BLOCKS = 2, MANY = WORDS * BLOCKS, STRIPE = 4 * WARP };

/* Maps a tensor's rows to tokens of the full sequences. */
struct Tokens {
    int64_t samples, first_sample, seq_total;
    SequenceSlice slice;

    __device__ __forceinline__ int64_t of(int64_t row) const {
        return (first_sample + row % samples) * seq_total + slice_position(&slice, row / samples);
    }
};

template <typename R> struct Jitter {
    uint64_t seed, site;
    double rate;

    __device__ __forceinline__ R factor(uint32_t word) const {
        return (R)(1 + rate * (2 * ((word + 0.5) * 0x1p-32) - 1));
    }
};

/* Processes rows that consist of `runs` runs each. */
template <typename T, typename Noise>
__global__ void __launch_bounds__(THREADS)
    multiply(const T *x, T *y, int64_t rows, int64_t h, int64_t runs, const __grid_constant__ Tokens tokens,
             Noise noise, bool add, bool aligned) {
    const int64_t stripes = (runs + STRIPE - 1) / STRIPE, warps = (int64_t)gridDim.x * (THREADS / WARP);
    int64_t i = (int64_t)blockIdx.x * (THREADS / WARP) + threadIdx.x / WARP;
    for (; i < rows * stripes; i += warps) {
        const int64_t row = i / stripes, begin = i % stripes * STRIPE, index = tokens.of(row) * h;
        const int64_t end = begin + STRIPE < runs ? begin + STRIPE : runs;
        for (int64_t run = begin + threadIdx.x % WARP; run < end; run += WARP) {
            const int64_t first = run * MANY - index % WORDS;
            Run<T, MANY> v = load_run<T, MANY>(x + row * h, first, h, aligned), old;
            if (add) old = load_run<T, MANY>(y + row * h, first, h, aligned);
#pragma unroll
            for (int b = 0; b < BLOCKS; b++) {
                const Philox4 p = philox4x32(noise.seed, noise.site, (uint64_t)(index + first) / WORDS + b);
#pragma unroll
                for (int k = 0; k < WORDS; k++) {
                    const int e = b * WORDS + k;
                    const Real<T> z = v.get(e) * noise.factor(p.v[k]);
                    v.put(e, add ? old.get(e) + z : z);
                }
            }
            store_run(y + row * h, first, h, aligned, v);
        }
    }
}

template <typename T, typename Noise> static void multiply_rows(const Call *c, Noise noise) {
    const DropoutAttr *a = (const DropoutAttr *)c->attr;
    const int64_t rows = tensor_rows(c->in[0]), h = tensor_width(c->in[0]);
    const int64_t runs = ceil_div(h + (h % WORDS ? WORDS - 1 : 0), MANY);
    const T *x = data_of<T>(c->in[0]);
    T *y = data_of<T>(c->out[0]);
    const Tokens tokens = {c->in[0]->dim[1], a->first_sample, a->seq_total, a->slice};
    const bool aligned = h % MANY == 0 && aligned_16(x) && aligned_16(y);
    multiply<T, Noise>
        <<<grid_for(c, rows * ceil_div(runs, STRIPE), THREADS / WARP), THREADS, 0, stream_of(c)>>>(
            x, y, rows, h, runs, tokens, noise, accumulates(c->out[0]), aligned);
    LAUNCHED();
}

static void check(const char *op, const Call *c) {
    const Tensor *x = c->in[0], *y = c->out[0];
    CHECK(x->dtype == y->dtype && x->ndim == 3, "%s: x is %s with %d dimensions, but y is %s", op,
          dtype_name((DType)x->dtype), x->ndim, dtype_name((DType)y->dtype));
}

extern "C" void cuda_dropout(const Call *c) {
    check("dropout", c);
    if (!tensor_count(c->in[0])) return;
    STORAGE_SWITCH(c->in[0]->dtype, multiply_rows<T>(c, drop_of<Real<T>>((const DropoutAttr *)c->attr)));
}

extern "C" void cuda_jitter(const Call *c) {
    const DropoutAttr *a = (const DropoutAttr *)c->attr;
    check("jitter", c);
    if (!tensor_count(c->in[0])) return;
    STORAGE_SWITCH(c->in[0]->dtype, multiply_rows<T>(c, Jitter<Real<T>>{a->seed, a->site, a->rate}));
}
