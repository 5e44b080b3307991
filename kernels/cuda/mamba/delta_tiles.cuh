/* The gated delta rule on tensor cores, for chunks of 64 positions and heads of width 128: the interface for
 * gated_delta_rule.cu and gated_delta_rule_grad.cu, and the functions that delta_tiles.cu and delta_tiles_grad.cu
 * share. */
#pragma once

#include "kernels/cuda/mamba/split.cuh"

/* Returns whether these kernels can compute a call, whose operands of the rule are at `in`. */
bool delta_tiles_can(const Call *, Tensor *const *in);
/* Return the number of bytes of scratch memory. */
size_t delta_tiles_bytes(const Call *);
size_t delta_tiles_grad_bytes(const Call *);
void delta_tiles(const Call *);
void delta_tiles_grad(const Call *);

/* ---- operands ---- */

enum { CHUNK = 64, WIDTH = 128, PITCH = 68 /* stride of float matrices in shared memory */ };
/* Vectors [64] of a chunk: p |k|, p |q|, L[last] beta |k|, beta, p, |k|, |q|, a, where |x| is the factor that normalizes
 * the row. */
enum { KEEP_K, KEEP_Q, TO_END, BETA, KEPT, UNIT_K, UNIT_Q, DECAY, GATES };
enum { SQUARE = CHUNK * CHUNK, ROWS_BYTES = CHUNK * WIDTH * 2, SQUARE_BYTES = SQUARE * 2 };

struct DeltaTiles {
    const bf16 *qkv, *alpha, *beta_in;
    Cells a_log, dt_bias;
    const int64_t *start;
    int64_t s, b, hk, hv, chunks, width; /* width: of a row of qkv */
    int64_t alpha_s, alpha_b, beta_s, beta_b;
    float eps;
    bf16 *inverse, *mix; /* [b,hv,chunks,2,64,64]: I and M, split */
    float *gates;        /* [b,hv,chunks,GATES,64] */
};

/* A tile whose lines have BYTES bytes. The 16-byte pieces of a line are permuted, so that pieces with the same number in
 * eight adjacent lines are in eight different banks. */
template <int BYTES> struct Lines {
    static __device__ __forceinline__ uint32_t piece(int line, int number) {
        return (uint32_t)(line * BYTES + ((number ^ (BYTES == 64 ? line >> 1 & 3 : line & 7)) << 4));
    }
    static __device__ __forceinline__ uint32_t at(uint32_t tile, int line, int column) {
        return tile + piece(line, column / 8);
    }
};

/* ---- loads ---- */

/* Copies WIDTH columns of `count` rows. Further rows become 0. */
__device__ __forceinline__ void copy_rows(const bf16 *from, int64_t stride, int count, uint32_t to) {
    for (int e = threadIdx.x; e < CHUNK * 16; e += THREADS) {
        const int row = e / 16, c = e % 16;
        copy_async<16>(to + Lines<256>::piece(row, c), row < count ? from + row * stride + c * 8 : from,
                       row < count);
    }
}
__device__ __forceinline__ void copy_square(const bf16 *from, uint32_t to) {
    for (int e = threadIdx.x; e < 2 * SQUARE / 8; e += THREADS)
        copy_async<16>(to + e / 512 * SQUARE_BYTES + Lines<128>::piece(e / 8 % 64, e % 8), from + e * 8,
                       true);
}

/* Sets pairs to L, given a. Blocks of 16 positions are computed in parallel. */
__device__ __forceinline__ void fill_pairs(float (*pairs)[PITCH], const float *decay) {
    const int j = threadIdx.x % CHUNK, block = threadIdx.x / CHUNK;
    float pair = 1;
    if (block == j / 16)
        for (int i = block * 16; i < block * 16 + 16; i++) {
            if (i > j) pair *= decay[i];
            pairs[i][j] = i < j ? 0 : pair;
        }
    __syncthreads();
    if (block != j / 16) {
        pair = block < j / 16 ? 0 : pairs[j / 16 * 16 + 15][j];
        for (int between = j / 16 + 1; between < block; between++)
            pair *= decay[between * 16] * pairs[between * 16 + 15][between * 16];
        for (int i = block * 16; i < block * 16 + 16; i++) pairs[i][j] = pair *= decay[i];
    }
    __syncthreads();
}

/* ---- the pass over chunks ---- */

struct Stage { /* v: or dy */
    unsigned char k[ROWS_BYTES], q[ROWS_BYTES], v[ROWS_BYTES], inverse[2 * SQUARE_BYTES],
        mix[2 * SQUARE_BYTES];
    float gate[GATES][CHUNK];
};

/* Loads the operands of a chunk of a value head. `v` is this head's column 0 of v, or of dy, whose rows have `width`
 * columns. If STATES is true, q and M are not needed. */
template <bool STATES>
__device__ __forceinline__ void load_stage(const DeltaTiles &o, Stage *to, int64_t sample, int64_t head,
                                           int64_t chunk, const bf16 *v, int64_t width) {
    const int64_t first = chunk * CHUNK, unit = (sample * o.hv + head) * o.chunks + chunk,
                  key = head / (o.hv / o.hk);
    const int count = (int)least(o.s - first, CHUNK);
    const bf16 *row = o.qkv + (first * o.b + sample) * o.width;
    copy_rows(row + (o.hk + key) * WIDTH, o.b * o.width, count, shared_address(to->k));
    if (!STATES) copy_rows(row + key * WIDTH, o.b * o.width, count, shared_address(to->q));
    copy_rows(v + (first * o.b + sample) * width, o.b * width, count, shared_address(to->v));
    copy_square(o.inverse + unit * 2 * SQUARE, shared_address(to->inverse));
    if (!STATES) copy_square(o.mix + unit * 2 * SQUARE, shared_address(to->mix));
    for (int e = threadIdx.x; e < GATES * CHUNK / 4; e += THREADS)
        copy_async<16>(shared_address(&to->gate[0][0] + 4 * e), o.gates + unit * GATES * CHUNK + 4 * e, true);
}

/* Multiplies the columns of x [16,64] by a vector. */
__device__ __forceinline__ void scale_columns(float (&x)[8][4], const float *by) {
#pragma unroll
    for (int n = 0; n < 8; n++) {
        const float2 f = *(const float2 *)(by + 8 * n + threadIdx.x % 4 * 2);
        x[n][0] *= f.x, x[n][1] *= f.y, x[n][2] *= f.x, x[n][3] *= f.y;
    }
}

/* Stores the transpose of x [16,64] to `count` rows of 16 columns. A warp's columns of the tile `room` are free. */
__device__ __forceinline__ void store_columns(const float (&x)[8][4], unsigned char *room, int column,
                                              bf16 *to, int64_t stride, int count) {
    const int lane = threadIdx.x % 32;
    const uint32_t at = shared_address(room);
    __syncwarp();
#pragma unroll
    for (int n = 0; n < 8; n += 2) {
        const uint32_t w[4] = {pack<bf16>(x[n][0], x[n][1]), pack<bf16>(x[n][2], x[n][3]),
                               pack<bf16>(x[n + 1][0], x[n + 1][1]), pack<bf16>(x[n + 1][2], x[n + 1][3])};
        store_transposed(Lines<256>::at(at, 8 * n + lane / 16 * 8 + lane % 8, column + lane / 8 % 2 * 8), w);
    }
    __syncwarp();
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const int row = 16 * i + lane / 2;
        if (row < count)
            *(uint4 *)(to + row * stride + lane % 2 * 8) =
                *(const uint4 *)(room + Lines<256>::piece(row, column / 8 + lane % 2));
    }
}

/* Returns the operands, and sets `end` to the scratch memory after those that both passes need. */
static inline DeltaTiles tiles_of(const Call *c, Tensor *const *in, void *scratch, char **end) {
    const DeltaRuleAttr *a = (const DeltaRuleAttr *)c->attr;
    const Tensor *x = in[0], *alpha = in[1], *beta = in[2];
    same_type("gated_delta_rule", x, alpha);
    same_type("gated_delta_rule", x, beta);
    DeltaTiles o = {data_of<bf16>(x), data_of<bf16>(alpha), data_of<bf16>(beta),
                    cells(in[3]),     cells(in[4]),         ids_of(in[5])};
    o.s = x->dim[0], o.b = x->dim[1], o.width = x->dim[2], o.hk = a->key_heads, o.hv = tensor_width(alpha);
    o.chunks = ceil_div(o.s, CHUNK);
    o.alpha_s = alpha->stride[0], o.alpha_b = alpha->stride[1];
    o.beta_s = beta->stride[0], o.beta_b = beta->stride[1];
    o.eps = (float)a->eps;
    const int64_t units = o.b * o.hv * o.chunks;
    o.inverse = (bf16 *)scratch, o.mix = o.inverse + units * 2 * SQUARE;
    o.gates = (float *)(o.mix + units * 2 * SQUARE), *end = (char *)(o.gates + units * GATES * CHUNK);
    return o;
}

/* The states before the chunks and e, both transposed and split. */
struct States {
    bf16 *states; /* [b,hv,chunks,2,128,128] */
    bf16 *errors; /* [b,hv,chunks,2,128,64] */
};

/* Computes the operands in scratch memory and, if `y` is NULL, the states and errors, otherwise y. */
void run_delta_tiles(const Call *, const DeltaTiles &, const States &, bf16 *y);

/* Stores 16 rows of a split matrix whose rows have N * 8 columns. */
template <int N> __device__ __forceinline__ void store_split(const float (&x)[N][4], bf16 *to, int64_t part) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            bf16 *at = to + (lane / 4 + 8 * h) * 8 * N + 8 * n + lane % 4 * 2;
            split(*(uint32_t *)at, *(uint32_t *)(at + part), x[n][2 * h], x[n][2 * h + 1]);
        }
}
