/* Computes the ops of kernels/cpu/quantize.c. Values and scales are bitwise equal to the CPU's, because every product
 * is rounded before it is used. A float is rounded to the nearest FP8 value as in src/tensor/fp8.c. state is updated in
 * place; y is written. */
#include "kernels/cuda/quantize.cuh"
#include "kernels/cuda/vector_store.cuh"

enum { THREADS = 256, WARPS = THREADS / 32 };

/* ---- scales ---- */

enum { AMAX_PARTS = 1024, AMAX_DEPTH = 4 };

/* Each matrix has n elements, and gridDim.x parts. */
template <typename T>
static __global__ void amax_of_parts(const T *all, int64_t n, bool aligned, float *part) {
    enum { N = VEC<T> };
    __shared__ float room[32];
    const T *x = all + blockIdx.y * n;
    const int64_t vectors = aligned ? n / N : 0, threads = (int64_t)gridDim.x * blockDim.x,
                  thread = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    Largest<T> largest;
    for (int64_t i = thread; i < vectors; i += AMAX_DEPTH * threads) {
        Run<T, N> v[AMAX_DEPTH];
#pragma unroll
        for (int d = 0; d < AMAX_DEPTH; d++) /* loads past the end read the thread's first vector again */
            v[d] = load_run<T, N>(x + (i + d * threads < vectors ? i + d * threads : i) * N, 0, N, true);
#pragma unroll
        for (int d = 0; d < AMAX_DEPTH; d++) largest.take(v[d]);
    }
    float most = largest.get();
    for (int64_t i = vectors * N + thread; i < n; i += threads) most = larger_size(most, x[i]);
    most = block_max(most, room);
    if (threadIdx.x == 0) part[blockIdx.y * gridDim.x + blockIdx.x] = most;
}

/* Returns the amax of matrix blockIdx.x. The result is valid in thread 0 only. */
__device__ __forceinline__ float largest_of_all(const float *part, int parts) {
    __shared__ float room[32];
    float most = 0;
    part += (int64_t)blockIdx.x * parts;
    for (int i = threadIdx.x; i < parts; i += blockDim.x) most = fmaxf(most, part[i]);
    return block_max(most, room);
}

/* In the next three kernels, a single block processes each state of `width` numbers. */
static __global__ void amax_of_all(const float *part, int parts, Cells state, int64_t width) {
    const float most = largest_of_all(part, parts);
    const int64_t newest = blockIdx.x * width + 1;
    if (threadIdx.x == 0) state.put(newest, fmax(state.get<double>(newest), (double)most));
}

static __global__ void own_scale(const float *part, int parts, float most, Cells state) {
    const float amax = largest_of_all(part, parts);
    if (threadIdx.x) return;
    state.put(2 * blockIdx.x, (double)scale_for(amax, most, 0));
    state.put(2 * blockIdx.x + 1, 0.0);
}

static int64_t parts_in_total(const Call *c) {
    const int64_t states = tensor_rows(c->out[0]);
    return states > AMAX_PARTS ? states : AMAX_PARTS;
}

extern "C" size_t cuda_plans_amax(const Call *c) { return (size_t)parts_in_total(c) * sizeof(float); }

/* Computes the largest |x| of each part of each matrix, and returns the number of parts of a matrix. */
static int find_parts(const Call *c, float *part) {
    const Tensor *x = c->in[0];
    const int64_t matrices = tensor_rows(c->out[0]), n = tensor_count(x) / matrices,
                  want = least(ceil_div(n, 32 * THREADS), AMAX_PARTS / matrices);
    const bool aligned = aligned_16(x->data) && (matrices == 1 || n * dtype_size((DType)x->dtype) % 16 == 0);
    const dim3 grid((unsigned)(want < 1 ? 1 : want), (unsigned)matrices);
    STORAGE_SWITCH(x->dtype,
                   amax_of_parts<T><<<grid, THREADS, 0, stream_of(c)>>>(data_of<T>(x), n, aligned, part));
    LAUNCHED();
    return (int)grid.x;
}

extern "C" void cuda_amax(const Call *c) {
    float *part = (float *)cuda_scratch(c->device, cuda_plans_amax(c));
    const int parts = find_parts(c, part);
    amax_of_all<<<(unsigned)tensor_rows(c->out[0]), THREADS, 0, stream_of(c)>>>(part, parts, cells(c->out[0]),
                                                                                tensor_width(c->out[0]));
    LAUNCHED();
}

extern "C" size_t cuda_plans_fp8_own_scale(const Call *c) { return cuda_plans_amax(c); }

extern "C" void cuda_fp8_own_scale(const Call *c) {
    float *part = (float *)cuda_scratch(c->device, cuda_plans_fp8_own_scale(c));
    const int parts = find_parts(c, part);
    own_scale<<<(unsigned)tensor_rows(c->out[0]), THREADS, 0, stream_of(c)>>>(
        part, parts, (float)((const Fp8ScaleAttr *)c->attr)->largest, cells(c->out[0]));
    LAUNCHED();
}

static __global__ void end_step(Cells state, int64_t n, float most, bool most_recent) {
    __shared__ float room[32];
    const int64_t first = blockIdx.x * (n + 1);
    const double newest = state.get<double>(first + 1);
    float amax = 0;
    for (int64_t i = threadIdx.x; i < n; i += blockDim.x)
        amax = larger_size(amax, state.get<double>(first + 1 + i));
    amax = block_max(amax, room);
    if (threadIdx.x == 0)
        state.put(first,
                  (double)scale_for(most_recent ? (float)newest : amax, most, state.get<float>(first)));
    for (int64_t i = 0; i < n; i += blockDim.x) { /* shifts the amax history by one */
        const int64_t at = i + threadIdx.x;
        const double next = at + 1 < n ? state.get<double>(first + 2 + at) : newest;
        __syncthreads();
        if (at < n) state.put(first + 1 + at, next);
    }
    if (threadIdx.x == 0) state.put(first + 1, 0.0);
}

extern "C" void cuda_fp8_scale(const Call *c) {
    const Fp8ScaleAttr *a = (const Fp8ScaleAttr *)c->attr;
    const Tensor *state = c->out[0];
    end_step<<<(unsigned)tensor_rows(state), THREADS, 0, stream_of(c)>>>(
        cells(state), tensor_width(state) - 1, (float)a->largest, a->most_recent);
    LAUNCHED();
}

/* ---- rounding ---- */

typedef struct Rounding {
    int shift;                         /* number of mantissa bits that FP8 lacks */
    uint32_t largest, smallest_normal; /* bit patterns of these FP8 values, converted to float */
    /* adding and then subtracting this number rounds a smaller number to a multiple of the smallest FP8
     * value */
    float magic;
    float most;
} Rounding;

static Rounding rounding_to(Fp8Type t) {
    const Rounding e4m3 = {20, 0x43e00000u, 0x3c800000u, 0x1p14f, 448},
                   e5m2 = {21, 0x47600000u, 0x38800000u, 0x1p7f, 57344};
    return t == E4M3 ? e4m3 : e5m2;
}

__device__ __forceinline__ float round_to_fp8(const Rounding &f, float x) {
    const uint32_t bits = __float_as_uint(x), size = bits & 0x7fffffffu, below = (1u << f.shift) - 1;
    const uint32_t normal = (size + (below >> 1) + (size >> f.shift & 1)) & ~below,
                   small = __float_as_uint(__fadd_rn(__fadd_rn(__uint_as_float(size), f.magic), -f.magic)),
                   y = size < f.smallest_normal ? small
                       : normal < f.largest     ? normal
                                                : f.largest;
    return __uint_as_float(size > 0x7f800000u ? 0x7fc00000u : y | (bits & 0x80000000u));
}

/* NaNs are not multiplied, because the multiplication would change their bits, and the bits must equal the
 * CPU's. */
__device__ __forceinline__ void rescaled(float q, float inverse, float *y) {
    *y = q == q ? __fmul_rn(q, inverse) : q;
}
__device__ __forceinline__ void rescaled(float q, float inverse, double *y) {
    *y = q == q ? __dmul_rn((double)q, (double)inverse) : __longlong_as_double(0x7ff8000000000000ll);
}

template <typename R>
__device__ __forceinline__ R quantized(const Rounding &f, float x, float scale, float inverse) {
    R y;
    rescaled(round_to_fp8(f, __fmul_rn(x, scale)), inverse, &y);
    return y;
}

/* ---- one scale per tensor ---- */

/* Each load reads four elements, and each thread has two loads in flight. */
template <typename T>
static __global__ void quantize_flat(const T *x, Real<T> *y, int64_t n, Cells state, Rounding f) {
    typedef Real<T> R;
    const float scale = scale_of(state), inverse = __fdiv_rn(1, scale);
    const int64_t threads = (int64_t)gridDim.x * blockDim.x;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < n / 4; i += 2 * threads) {
        Vec<T, 4> from[2];
#pragma unroll
        for (int d = 0; d < 2; d++)
            from[d] = ((const Vec<T, 4> *)x)[i + d * threads < n / 4 ? i + d * threads : i];
#pragma unroll
        for (int d = 0; d < 2; d++) {
            Vec<R, 4> to;
#pragma unroll
            for (int k = 0; k < 4; k++)
                to.v[k] = quantized<R>(f, (float)to_real<R>(from[d].v[k]), scale, inverse);
            if (i + d * threads < n / 4) store_whole((Vec<R, 4> *)y + i + d * threads, to);
        }
    }
}

template <typename R>
static __global__ void quantize_cells(Cells x, Cells y, int64_t n, Cells state, Rounding f) {
    const float scale = scale_of(state), inverse = __fdiv_rn(1, scale);
    GRID_LOOP(i, n) y.put(i, quantized<R>(f, (float)x.get<R>(i), scale, inverse));
}

/* ---- one scale per block ---- */

typedef struct Blocks {
    int64_t rows, width, high, wide; /* sizes of the tensor, then sizes of a block */
    Rounding rounding;
} Blocks;

__device__ __forceinline__ float block_scale(const Rounding &f, float amax) {
    return power_of_two_scale(amax, f.most);
}

/* The height and width of a block must be 1 or TILE. In a tile of TILE by TILE elements, a warp processes
 * every TILE_WARPS-th row, and a lane processes four columns. Elements stay in registers, so x is read only
 * once. */
enum { TILE = 128, TILE_WARPS = 16, HELD = TILE / TILE_WARPS };

__device__ __forceinline__ float largest_of(const float (&v)[4]) {
    return fmaxf(fmaxf(fabsf(v[0]), fabsf(v[1])), fmaxf(fabsf(v[2]), fabsf(v[3])));
}

/* Computes the scales of a thread's columns in a tile: one for each column, or one for the entire tile. */
__device__ __forceinline__ void tile_scales(const Blocks &b, const float (&v)[HELD][4], float (&scale)[4]) {
    __shared__ float room[32], column[TILE_WARPS][TILE];
    const int warp = threadIdx.x / 32, first = threadIdx.x % 32 * 4;
    float amax[4] = {0, 0, 0, 0};
#pragma unroll
    for (int h = 0; h < HELD; h++)
#pragma unroll
        for (int k = 0; k < 4; k++) amax[k] = larger_size(amax[k], v[h][k]);
    if (b.wide == TILE) {
        const float most = block_scale(b.rounding, block_max(largest_of(amax), room));
        for (int k = 0; k < 4; k++) scale[k] = most;
        return;
    }
    __syncthreads();
    for (int k = 0; k < 4; k++) column[warp][first + k] = amax[k];
    __syncthreads();
    for (int w = 0; w < TILE_WARPS; w++)
        for (int k = 0; k < 4; k++) amax[k] = fmaxf(amax[k], column[w][first + k]);
    for (int k = 0; k < 4; k++) scale[k] = block_scale(b.rounding, amax[k]);
}

template <typename T>
static __global__ void __launch_bounds__(32 * TILE_WARPS, 2)
    quantize_tiles(const T *x, Real<T> *y, Blocks b) {
    typedef Real<T> R;
    const int64_t across = (b.width + TILE - 1) / TILE, tiles = (b.rows + TILE - 1) / TILE * across;
    for (int64_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
        const int64_t row = tile / across * TILE + threadIdx.x / 32,
                      column = tile % across * TILE + threadIdx.x % 32 * 4, at = row * b.width + column;
        const int64_t below = column < b.width ? (b.rows - row + TILE_WARPS - 1) / TILE_WARPS : 0;
        const int rows = below < HELD ? (int)below : HELD; /* number of rows that the thread processes */
        float v[HELD][4], scale[4], inverse[4];
#pragma unroll
        for (int h = 0; h < HELD; h++) {
            Vec<T, 4> from;
            if (h < rows) from = *(const Vec<T, 4> *)(x + at + h * TILE_WARPS * b.width);
#pragma unroll
            for (int k = 0; k < 4; k++) v[h][k] = h < rows ? (float)to_real<R>(from.v[k]) : 0;
        }
        if (b.high == TILE) tile_scales(b, v, scale);
        for (int k = 0; k < 4; k++) inverse[k] = b.high == TILE ? __fdiv_rn(1, scale[k]) : 0;
#pragma unroll
        for (int h = 0; h < HELD; h++) {
            Vec<R, 4> to;
            if (b.high == 1) {
                const float by = block_scale(b.rounding, warp_max(largest_of(v[h]))), back = __fdiv_rn(1, by);
                for (int k = 0; k < 4; k++) scale[k] = by, inverse[k] = back;
            }
#pragma unroll
            for (int k = 0; k < 4; k++) to.v[k] = quantized<R>(b.rounding, v[h][k], scale[k], inverse[k]);
            if (h < rows) store_whole((Vec<R, 4> *)(y + at + h * TILE_WARPS * b.width), to);
        }
    }
}

/* Quantizes blocks of any size, one block per warp. */
template <typename R> static __global__ void quantize_blocks(Cells x, Cells y, Blocks b) {
    const int lane = threadIdx.x % 32;
    const int64_t across = (b.width + b.wide - 1) / b.wide, blocks = (b.rows + b.high - 1) / b.high * across;
    for (int64_t i = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32; i < blocks;
         i += (int64_t)gridDim.x * WARPS) {
        const int64_t row = i / across * b.high, column = i % across * b.wide;
        const int64_t high = b.rows - row < b.high ? b.rows - row : b.high,
                      wide = b.width - column < b.wide ? b.width - column : b.wide;
        float most = 0;
        for (int64_t k = lane; k < high * wide; k += 32)
            most = larger_size(most, x.get<R>((row + k / wide) * b.width + column + k % wide));
        const float scale = block_scale(b.rounding, warp_max(most)), inverse = __fdiv_rn(1, scale);
        for (int64_t k = lane; k < high * wide; k += 32) {
            const int64_t at = (row + k / wide) * b.width + column + k % wide;
            y.put(at, quantized<R>(b.rounding, (float)x.get<R>(at), scale, inverse));
        }
    }
}

/* ---- launches ---- */

/* Returns true if one access can load four elements of x, and one access can store four elements of y, which
 * must have the arithmetic type. */
static bool by_four(const Tensor *x, const Tensor *y) {
    return y->dtype == (x->dtype == F64 ? F64 : F32) &&
           (uintptr_t)x->data % (4 * dtype_size((DType)x->dtype)) == 0 &&
           (uintptr_t)y->data % (4 * dtype_size((DType)y->dtype)) == 0;
}

static void quantize_whole(const Call *c, Rounding f) {
    const Tensor *x = c->in[0], *y = c->out[0];
    const int64_t n = tensor_count(x);
    const Cells state = cells(c->in[1]);
    if (n % 4 == 0 && by_four(x, y))
        STORAGE_SWITCH(x->dtype, quantize_flat<T><<<grid_for(c, n / 8, THREADS), THREADS, 0, stream_of(c)>>>(
                                     data_of<T>(x), data_of<Real<T>>(y), n, state, f));
    else
        REAL_SWITCH(x->dtype, quantize_cells<R>
                    <<<grid_for(c, n, THREADS), THREADS, 0, stream_of(c)>>>(cells(x), cells(y), n, state, f));
    LAUNCHED();
}

static void quantize_parts(const Call *c, const Blocks &b) {
    const Tensor *x = c->in[0], *y = c->out[0];
    const bool tiles = (b.high == TILE && b.wide == TILE) || (b.high == 1 && b.wide == TILE) ||
                       (b.high == TILE && b.wide == 1);
    if (tiles && b.width % 4 == 0 && by_four(x, y)) {
        const unsigned grid = grid_for(c, ceil_div(b.rows, TILE) * ceil_div(b.width, TILE), 1);
        STORAGE_SWITCH(x->dtype, quantize_tiles<T>
                       <<<grid, 32 * TILE_WARPS, 0, stream_of(c)>>>(data_of<T>(x), data_of<Real<T>>(y), b));
    } else {
        const unsigned grid = grid_for(c, ceil_div(b.rows, b.high) * ceil_div(b.width, b.wide), WARPS);
        REAL_SWITCH(x->dtype, quantize_blocks<R><<<grid, THREADS, 0, stream_of(c)>>>(cells(x), cells(y), b));
    }
    LAUNCHED();
}

extern "C" void cuda_quantize(const Call *c) {
    const QuantizeAttr *a = (const QuantizeAttr *)c->attr;
    const Tensor *x = c->in[0];
    const Rounding f = rounding_to(a->type);
    if (!tensor_count(x)) return;
    if (c->in[1]) {
        quantize_whole(c, f);
        return;
    }
    CHECK(a->rows > 0 && a->columns > 0, "quantize: blocks of %lld by %lld elements are not supported",
          (long long)a->rows, (long long)a->columns);
    const Blocks b = {tensor_rows(x), tensor_width(x), a->rows, a->columns, f};
    quantize_parts(c, b);
}
