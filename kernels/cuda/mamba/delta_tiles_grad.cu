/* Computes op gated_delta_rule_grad of kernels/cpu/gated_delta_rule.c, which contains the formulas, on tensor cores, in
 * terms of the matrices of delta_tiles.cu:
 *
 * 1. prepare_chunks and run_chunks compute I, M, S and e again.
 * 2. A block of reverse_chunks computes R and de of a value head, from the last chunk to the first, like run_chunks:
 *    de = I^T x, where x[j] = L[last,j] beta[j] R^T k[j] + sum over i of M[i,j] dy[i]. dv is de.
 * 3. A block of chunk_grads computes the other gradients of a chunk of a key head from S, e, R and de. It adds the terms
 *    of the value heads in order.
 *
 * q, k and dy are exact operands. All others are split (split.cuh). */
#include "kernels/cuda/column_sums.cuh"
#include "kernels/cuda/mamba/delta_tiles.cuh"

/* Operands of the backward pass. `add_*`: gradients are added to the outputs. */
struct DeltaGrads {
    const bf16 *dy;
    bf16 *dqkv, *dalpha, *dbeta;
    States before, after; /* S and e; R and de */
    float *partial;       /* [b,chunks,2,hv] */
    int64_t alpha_s, alpha_b, beta_s, beta_b;
    bool add, add_alpha, add_beta;
};

/* ---- R and de ---- */

/* Adds the product of operand a and lines [16 k, 16 k + 16) of a split square, which is lower triangular, to
 * c [16,64]. */
template <typename A>
__device__ __forceinline__ void add_lower(float (&c)[8][4], const A &a, uint32_t square, int k) {
#pragma unroll
    for (int n = 0; n <= k; n++) {
        Split b;
        b_columns<Lines<128>>(b, square, SQUARE_BYTES, 16 * n, 16 * k);
        multiply_add(c + 2 * n, a, b);
    }
}

/* Adds the product of a split operand and rows of q or k to the transpose of R. */
__device__ __forceinline__ void add_to_state(float (&state)[16][4], const Split &a, uint32_t rows, int k) {
#pragma unroll
    for (int n = 0; n < 8; n++) {
        uint32_t b[4];
        b_columns<Lines<256>>(b, rows, 16 * n, 16 * k);
        multiply_add(state + 2 * n, a, b);
    }
}

static __global__ void __launch_bounds__(THREADS, 1) reverse_chunks(DeltaTiles o, DeltaGrads g) {
    extern __shared__ __align__(16) unsigned char shared[];
    Stage *stage = (Stage *)shared;
    const int64_t head = blockIdx.x % o.hv, sample = blockIdx.x / o.hv;
    const int column = threadIdx.x / 32 * 16, lane = threadIdx.x % 32;
    const bf16 *rows = g.dy + head * WIDTH;
    float state[16][4] = {};
    load_stage<false>(o, stage + (o.chunks - 1) % 2, sample, head, o.chunks - 1, rows, o.hv * WIDTH);
#pragma unroll 1
    for (int64_t chunk = o.chunks - 1; chunk >= 0; chunk--) {
        Stage *m = stage + chunk % 2;
        copies_arrived();
        __syncthreads();
        if (chunk) load_stage<false>(o, stage + (chunk - 1) % 2, sample, head, chunk - 1, rows, o.hv * WIDTH);
        const int64_t unit = (sample * o.hv + head) * o.chunks + chunk, first = chunk * CHUNK;
        const uint32_t k = shared_address(m->k), q = shared_address(m->q), dy = shared_address(m->v);
        float x[8][4] = {}, de[8][4] = {};
        uint32_t b[4];
        Split a;
        store_split(state, g.after.states + (unit * 2 * WIDTH + column) * WIDTH, WIDTH * WIDTH);
#pragma unroll
        for (int at = 0; at < 8; at++) {
            split(a, state + 2 * at);
#pragma unroll
            for (int n = 0; n < 4; n++) {
                b_lines<Lines<256>>(b, k, 16 * n, 16 * at);
                multiply_add(x + 2 * n, a, b);
            }
        }
        scale_columns(x, m->gate[TO_END]);
        const float kept = m->gate[KEPT][CHUNK - 1];
#pragma unroll
        for (int n = 0; n < 16; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) state[n][i] *= kept;
#pragma unroll
        for (int at = 0; at < 4; at++) {
            a_columns<Lines<256>>(b, dy, column, 16 * at);
            add_lower(x, b, shared_address(m->mix), at);
            const float *keep = m->gate[KEEP_Q] + 16 * at + lane % 4 * 2;
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const float2 f = *(const float2 *)(keep + i / 2 * 8);
                split(a.high[i], a.low[i], lower(b[i]) * f.x, upper(b[i]) * f.y);
            }
            add_to_state(state, a, q, at);
        }
#pragma unroll
        for (int at = 0; at < 4; at++) {
            split(a, x + 2 * at);
            add_lower(de, a, shared_address(m->inverse), at);
        }
        store_split(de, g.after.errors + (unit * 2 * WIDTH + column) * CHUNK, WIDTH * CHUNK);
        if (g.dqkv) {
            bf16 *to = g.dqkv + (first * o.b + sample) * o.width + (2 * o.hk + head) * WIDTH + column;
            const int count = (int)least(o.s - first, CHUNK);
            float sum[8][4];
#pragma unroll
            for (int n = 0; n < 8; n++)
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    const int row = 8 * n + lane % 4 * 2 + i % 2;
                    const bool add = g.add && row < count;
                    sum[n][i] = de[n][i];
                    if (add) sum[n][i] += to_real<float>(to[row * o.b * o.width + lane / 4 + i / 2 * 8]);
                }
            store_columns(sum, m->v, column, to, o.b * o.width, count);
        }
        scale_columns(de, m->gate[KEEP_K]);
#pragma unroll
        for (int at = 0; at < 4; at++) {
            split(a, de + 2 * at);
#pragma unroll
            for (int i = 0; i < 4; i++) a.high[i] ^= 0x80008000u, a.low[i] ^= 0x80008000u; /* -a */
            add_to_state(state, a, k, at);
        }
    }
}

/* ---- the other gradients ---- */

enum { SLICE = 32, SLICES = WIDTH / SLICE };

/* Columns [c, c + 32) of v of a value head: dy, and the transposes of e, de, S and R. */
struct Slice {
    unsigned char dy[CHUNK * SLICE * 2], e[2][SLICE * CHUNK * 2], de[2][SLICE * CHUNK * 2];
    unsigned char before[2][SLICE * WIDTH * 2], after[2][SLICE * WIDTH * 2];
};
struct ChunkGrads {
    unsigned char k[ROWS_BYTES], q[ROWS_BYTES];
    Slice slice[2];
    /* split: D |k[j]| and D |q[i]| of row i and column j, where D[i,j] = L[i,j] beta[j] (dy[i].e[j]), and the symmetric
     * matrix of -L[i,j] beta[j] (de[i].e[j]), times |k| of the column */
    unsigned char of_q[2][SQUARE_BYTES], of_k[2][SQUARE_BYTES], both[2][SQUARE_BYTES];
    float pairs[CHUNK][PITCH], gate[GATES][CHUNK];
    float rows[2][CHUNK], columns[8][CHUNK], dots[2][3][CHUNK], along[2][2][CHUNK], products[CHUNK], room[32];
};

__device__ __forceinline__ void load_slice(const DeltaTiles &o, const DeltaGrads &g, Slice *to,
                                           int64_t sample, int64_t head, int64_t chunk, int slice) {
    const int64_t unit = (sample * o.hv + head) * o.chunks + chunk, first = chunk * CHUNK;
    const int count = (int)least(o.s - first, CHUNK), e = threadIdx.x;
    const bf16 *dy = g.dy + ((first * o.b + sample) * o.hv + head) * WIDTH + slice * SLICE;
    copy_async<16>(shared_address(to->dy) + Lines<64>::piece(e / 4, e % 4),
                   e / 4 < count ? dy + e / 4 * o.b * o.hv * WIDTH + e % 4 * 8 : dy, e / 4 < count);
#pragma unroll
    for (int part = 0; part < 2; part++) {
        const int64_t errors = ((unit * 2 + part) * WIDTH + slice * SLICE) * CHUNK,
                      states = ((unit * 2 + part) * WIDTH + slice * SLICE) * WIDTH;
        const uint32_t at = Lines<128>::piece(e / 8, e % 8);
        copy_async<16>(shared_address(to->e[part]) + at, g.before.errors + errors + e * 8, true);
        copy_async<16>(shared_address(to->de[part]) + at, g.after.errors + errors + e * 8, true);
#pragma unroll
        for (int i = e; i < SLICE * 16; i += THREADS) {
            const uint32_t row = Lines<256>::piece(i / 16, i % 16);
            copy_async<16>(shared_address(to->before[part]) + row, g.before.states + states + i * 8, true);
            copy_async<16>(shared_address(to->after[part]) + row, g.after.states + states + i * 8, true);
        }
    }
}

/* The accumulators of a warp: rows [16 w, 16 w + 16), where w = warp % 4. `pairs`: dy.e (warps 0 to 3) or de.e. The
 * others contain 64 columns of S dy, S de and R e. */
struct Sums {
    float pairs[8][4], dy[8][4], de[8][4], e[8][4];
};

__device__ __forceinline__ void add_slice(const Slice &m, Sums &x) {
    const int warp = threadIdx.x / 32, row = warp % 4 * 16, column = warp / 4 * 64;
    const uint32_t dy = shared_address(m.dy), e = shared_address(m.e), de = shared_address(m.de),
                   before = shared_address(m.before), after = shared_address(m.after);
    enum { ERRORS = SLICE * CHUNK * 2, STATES = SLICE * WIDTH * 2 };
#pragma unroll
    for (int k = 0; k < SLICE; k += 16) {
        uint32_t y[4];
        Split a, b;
        a_lines<Lines<64>>(y, dy, row, k);
        a_columns<Lines<128>>(a, de, ERRORS, row, k);
#pragma unroll
        for (int n = 0; n < 4; n++) {
            if (n > warp % 4) continue;
            b_columns<Lines<128>>(b, e, ERRORS, 16 * n, k);
            if (warp < 4)
                multiply_add(x.pairs + 2 * n, y, b);
            else
                multiply_add(x.pairs + 2 * n, a, b);
        }
#pragma unroll
        for (int n = 0; n < 4; n++) {
            b_columns<Lines<256>>(b, before, STATES, column + 16 * n, k);
            multiply_add(x.dy + 2 * n, y, b);
            multiply_add(x.de + 2 * n, a, b);
        }
        a_columns<Lines<128>>(a, e, ERRORS, row, k);
#pragma unroll
        for (int n = 0; n < 4; n++) {
            b_columns<Lines<256>>(b, after, STATES, column + 16 * n, k);
            multiply_add(x.e + 2 * n, a, b);
        }
    }
}

/* Returns this thread's part of the sum of the products of S and R. */
__device__ __forceinline__ float state_product(const Slice &m) {
    float sum = 0;
    for (int i = threadIdx.x; i < SLICE * 16; i += THREADS) {
        float x[2][8];
#pragma unroll
        for (int s = 0; s < 2; s++) {
            const unsigned char(*from)[SLICE * WIDTH * 2] = s ? m.after : m.before;
            const uint4 hi = *(const uint4 *)(from[0] + i * 16), lo = *(const uint4 *)(from[1] + i * 16);
            const uint32_t h[4] = {hi.x, hi.y, hi.z, hi.w}, l[4] = {lo.x, lo.y, lo.z, lo.w};
#pragma unroll
            for (int e = 0; e < 4; e++) {
                x[s][2 * e] = lower(h[e]) + lower(l[e]);
                x[s][2 * e + 1] = upper(h[e]) + upper(l[e]);
            }
        }
#pragma unroll
        for (int e = 0; e < 8; e++) sum = fmaf(x[0][e], x[1][e], sum);
    }
    return sum;
}

__device__ __forceinline__ float2 two_of(const unsigned char *rows, int row, int column) {
    const uint32_t x = *(const uint32_t *)(rows + Lines<256>::piece(row, column / 8) + column % 8 * 2);
    return {lower(x), upper(x)};
}

/* Adds the terms of the states to dq and dk, and sets dots: the products of the three terms and q or k. */
__device__ __forceinline__ void add_state_terms(ChunkGrads &m, const Sums &x, float (&dq)[8][4],
                                                float (&dk)[8][4]) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, half = warp / 4;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int i = warp % 4 * 16 + lane / 4 + 8 * h;
        const float kept = m.gate[KEPT][i], to_end = m.pairs[CHUNK - 1][i] * m.gate[BETA][i];
        float dot[3] = {0, 0, 0};
#pragma unroll
        for (int n = 0; n < 8; n++) {
            const int column = half * 64 + 8 * n + lane % 4 * 2;
            const float2 q = two_of(m.q, i, column), k = two_of(m.k, i, column);
            const float *dy = &x.dy[n][2 * h], *de = &x.de[n][2 * h], *e = &x.e[n][2 * h];
            dot[0] += q.x * dy[0] + q.y * dy[1];
            dot[1] += k.x * de[0] + k.y * de[1];
            dot[2] += k.x * e[0] + k.y * e[1];
#pragma unroll
            for (int l = 0; l < 2; l++) {
                dq[n][2 * h + l] += kept * dy[l];
                dk[n][2 * h + l] += to_end * e[l] - kept * de[l];
            }
        }
        const float by[3] = {kept * m.gate[UNIT_Q][i], -kept * m.gate[UNIT_K][i], to_end * m.gate[UNIT_K][i]};
#pragma unroll
        for (int t = 0; t < 3; t++) {
            dot[t] = quad_sum(dot[t]) * by[t];
            if (lane % 4 == 0) m.dots[half][t][i] = dot[t];
        }
    }
}

__device__ __forceinline__ void put_split(unsigned char (*to)[SQUARE_BYTES], int row, int column, float x) {
    const uint32_t at = Lines<128>::piece(row, column / 8) + column % 8 * 2;
    uint32_t high, low;
    split(high, low, x, 0);
    *(uint16_t *)(to[0] + at) = (uint16_t)high, *(uint16_t *)(to[1] + at) = (uint16_t)low;
}

/* Sets the matrices, and the sums of the rows and columns of W: of its first terms (warps 0 to 3), and the others. */
__device__ __forceinline__ void set_matrices(ChunkGrads &m, const float (&x)[8][4]) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, row0 = warp % 4 * 16;
    const bool of_q = warp < 4;
    float product[8][4] = {}, row_sum[2] = {0, 0};
    const uint32_t k = shared_address(m.k), a_rows = of_q ? shared_address(m.q) : k;
#pragma unroll
    for (int at = 0; at < WIDTH; at += 16) {
        uint32_t a[4], b[4];
        a_lines<Lines<256>>(a, a_rows, row0, at);
#pragma unroll
        for (int n = 0; n < 4; n++) {
            if (n > warp % 4) continue;
            b_lines<Lines<256>>(b, k, 16 * n, at);
            multiply_add(product + 2 * n, a, b);
        }
    }
#pragma unroll
    for (int n = 0; n < 8; n++)
#pragma unroll
        for (int l = 0; l < 2; l++) {
            const int j = 8 * n + lane % 4 * 2 + l;
            float column = 0;
#pragma unroll
            for (int h = 0; h < 2; h++) {
                const int i = row0 + lane / 4 + 8 * h;
                const float d = m.pairs[i][j] * m.gate[BETA][j] * x[n][2 * h + l], unit = m.gate[UNIT_K][j],
                            w = d * product[n][2 * h + l] * m.gate[of_q ? UNIT_Q : UNIT_K][i] * unit;
                if (of_q) {
                    put_split(m.of_q, i, j, d * unit);
                    put_split(m.of_k, i, j, d * m.gate[UNIT_Q][i]);
                } else if (j < i) {
                    put_split(m.both, i, j, -d * unit);
                    put_split(m.both, j, i, -d * m.gate[UNIT_K][i]);
                } else if (i == j) {
                    put_split(m.both, i, i, 0);
                    m.products[i] = x[n][2 * h + l];
                }
                if (of_q || j < i) column += w, row_sum[h] += w;
            }
            for (int k = 4; k < 32; k *= 2) column += __shfl_xor_sync(0xffffffffu, column, k);
            if (lane < 4) m.columns[warp][j] = column;
        }
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const float sum = quad_sum(row_sum[h]);
        if (lane % 4 == 0) m.rows[!of_q][row0 + lane / 4 + 8 * h] = sum;
    }
}

__device__ __forceinline__ void add_pair_terms(const ChunkGrads &m, float (&dq)[8][4], float (&dk)[8][4]) {
    const int warp = threadIdx.x / 32, row = warp % 4 * 16, column = warp / 4 * 64;
    const uint32_t k = shared_address(m.k), q = shared_address(m.q), of_q = shared_address(m.of_q),
                   of_k = shared_address(m.of_k), both = shared_address(m.both);
#pragma unroll
    for (int at = 0; at < CHUNK; at += 16) {
        uint32_t b[4];
        Split a;
        if (at <= row) {
            a_lines<Lines<128>>(a, of_q, SQUARE_BYTES, row, at);
#pragma unroll
            for (int n = 0; n < 4; n++) {
                b_columns<Lines<256>>(b, k, column + 16 * n, at);
                multiply_add(dq + 2 * n, a, b);
            }
        }
        if (at >= row) {
            a_columns<Lines<128>>(a, of_k, SQUARE_BYTES, row, at);
#pragma unroll
            for (int n = 0; n < 4; n++) {
                b_columns<Lines<256>>(b, q, column + 16 * n, at);
                multiply_add(dk + 2 * n, a, b);
            }
        }
        a_lines<Lines<128>>(a, both, SQUARE_BYTES, row, at);
#pragma unroll
        for (int n = 0; n < 4; n++) {
            b_columns<Lines<256>>(b, k, column + 16 * n, at);
            multiply_add(dk + 2 * n, a, b);
        }
    }
}

/* Writes the gradients of the gates of a value head's chunk, and the sums for the parameters. */
__device__ __forceinline__ void put_gates(const DeltaTiles &o, const DeltaGrads &g, ChunkGrads &m,
                                          float states, int64_t sample, int64_t head, int64_t chunk) {
    const int i = threadIdx.x;
    const int64_t t = chunk * CHUNK + i;
    float sums[2] = {0, 0};
    states = block_sum(states, m.room) * m.gate[KEPT][CHUNK - 1];
    if (i < CHUNK && t < o.s) {
        float dg = states;
        for (int j = 0; j < CHUNK; j++) {
            float x = m.dots[0][2][j] + m.dots[1][2][j];
            if (j >= i) {
                x = m.rows[0][j] - m.rows[1][j];
                for (int half = 0; half < 2; half++) x += m.dots[half][0][j] + m.dots[half][1][j];
                for (int w = 0; w < 4; w++) x -= m.columns[w][j] - m.columns[4 + w][j];
            }
            dg += x;
        }
        if (m.gate[DECAY][i] == 0) dg = 0;
        const float rate = -exp(o.a_log.get<float>(head)), beta = m.gate[BETA][i],
                    raw = to_real<float>(o.alpha[t * o.alpha_s + sample * o.alpha_b + head]) +
                          o.dt_bias.get<float>(head),
                    draw = dg * rate * softplus_slope(raw), dbeta = m.products[i] * (1 - beta);
        sums[0] = dg * rate * softplus(raw), sums[1] = draw;
        if (g.dalpha) {
            bf16 *to = g.dalpha + t * g.alpha_s + sample * g.alpha_b + head;
            *to = from_real<bf16>(g.add_alpha ? to_real<float>(*to) + draw : draw);
        }
        if (g.dbeta) {
            bf16 *to = g.dbeta + t * g.beta_s + sample * g.beta_b + head;
            *to = from_real<bf16>(g.add_beta ? to_real<float>(*to) + dbeta : dbeta);
        }
    }
    for (int n = 0; n < 2; n++) {
        const float sum = block_sum(sums[n], m.room);
        if (!i) g.partial[((sample * o.chunks + chunk) * 2 + n) * o.hv + head] = sum;
    }
}

/* Writes the gradient of the rows x of q or k, given the gradient d of the normalized rows. */
__device__ __forceinline__ void put_rows(const float (&d)[8][4], const unsigned char *x,
                                         float (*along)[CHUNK], const float *unit, float width, bf16 *to,
                                         int64_t stride, int count, bool add) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, half = warp / 4;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int i = warp % 4 * 16 + lane / 4 + 8 * h;
        float dot = 0;
#pragma unroll
        for (int n = 0; n < 8; n++) {
            const float2 v = two_of(x, i, half * 64 + 8 * n + lane % 4 * 2);
            dot += v.x * d[n][2 * h] + v.y * d[n][2 * h + 1];
        }
        dot = quad_sum(dot);
        if (lane % 4 == 0) along[half][i] = dot;
    }
    __syncthreads();
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int i = warp % 4 * 16 + lane / 4 + 8 * h;
        if (i >= count) continue;
        const float scale = unit[i], all = (along[0][i] + along[1][i]) * scale * scale * width;
#pragma unroll
        for (int n = 0; n < 8; n++) {
            const int column = half * 64 + 8 * n + lane % 4 * 2;
            const float2 v = two_of(x, i, column);
            uint32_t *at = (uint32_t *)(to + i * stride + column);
            float a = scale * (d[n][2 * h] - all * v.x), b = scale * (d[n][2 * h + 1] - all * v.y);
            if (add) { a += lower(*at), b += upper(*at); }
            *at = pack<bf16>(a, b);
        }
    }
}

/* A block computes a chunk of a key head. */
static __global__ void __launch_bounds__(THREADS, 1) chunk_grads(DeltaTiles o, DeltaGrads g) {
    extern __shared__ __align__(16) unsigned char shared[];
    ChunkGrads &m = *(ChunkGrads *)shared;
    const int64_t chunk = blockIdx.x % o.chunks, key = blockIdx.x / o.chunks % o.hk,
                  sample = blockIdx.x / o.chunks / o.hk, first = chunk * CHUNK, each = o.hv / o.hk;
    const int count = (int)least(o.s - first, CHUNK);
    const int64_t from = (first * o.b + sample) * o.width + key * WIDTH;
    float dq[8][4] = {}, dk[8][4] = {};
    copy_rows(o.qkv + from, o.b * o.width, count, shared_address(m.q));
    copy_rows(o.qkv + from + o.hk * WIDTH, o.b * o.width, count, shared_address(m.k));
    load_slice(o, g, m.slice, sample, key * each, chunk, 0);
#pragma unroll 1
    for (int64_t head = key * each; head < (key + 1) * each; head++) {
        const int64_t unit = (sample * o.hv + head) * o.chunks + chunk;
        Sums x = {};
        float states = 0;
        for (int e = threadIdx.x; e < GATES * CHUNK; e += THREADS)
            (&m.gate[0][0])[e] = o.gates[unit * GATES * CHUNK + e];
#pragma unroll 1
        for (int slice = 0; slice < SLICES; slice++) {
            copies_arrived();
            __syncthreads();
            if (slice + 1 < SLICES)
                load_slice(o, g, m.slice + (slice + 1) % 2, sample, head, chunk, slice + 1);
            else if (head + 1 < (key + 1) * each)
                load_slice(o, g, m.slice, sample, head + 1, chunk, 0);
            add_slice(m.slice[slice % 2], x);
            states += state_product(m.slice[slice % 2]);
        }
        fill_pairs(m.pairs, m.gate[DECAY]);
        add_state_terms(m, x, dq, dk);
        set_matrices(m, x.pairs);
        __syncthreads();
        add_pair_terms(m, dq, dk);
        put_gates(o, g, m, states, sample, head, chunk);
        __syncthreads();
    }
    if (!g.dqkv) return;
    put_rows(dq, m.q, m.along[0], m.gate[UNIT_Q], (float)WIDTH, g.dqkv + from, o.b * o.width, count, g.add);
    put_rows(dk, m.k, m.along[1], m.gate[UNIT_K], 1.0f, g.dqkv + from + o.hk * WIDTH, o.b * o.width, count,
             g.add);
}

/* ---- host code ---- */

/* Places the scratch operands at `at`. Returns the end. */
static char *place(const DeltaTiles &o, DeltaGrads *g, char *at) {
    const int64_t units = o.b * o.hv * o.chunks;
    g->before.states = (bf16 *)at;
    g->before.errors = g->before.states + units * 2 * WIDTH * WIDTH;
    g->after.states = g->before.errors + units * 2 * WIDTH * CHUNK;
    g->after.errors = g->after.states + units * 2 * WIDTH * WIDTH;
    g->partial = (float *)(g->after.errors + units * 2 * WIDTH * CHUNK);
    return (char *)(g->partial + 2 * units);
}

size_t delta_tiles_grad_bytes(const Call *c) {
    char *end;
    DeltaGrads g;
    const DeltaTiles o = tiles_of(c, c->in + 1, NULL, &end);
    return (size_t)place(o, &g, end);
}

void delta_tiles_grad(const Call *c) {
    const Tensor *dqkv = c->out[0], *dalpha = c->out[1], *dbeta = c->out[2];
    char *end;
    const DeltaTiles o = tiles_of(c, c->in + 1, cuda_scratch(c->device, delta_tiles_grad_bytes(c)), &end);
    DeltaGrads g = {data_of<bf16>(c->in[0]), data_of<bf16>(dqkv), data_of<bf16>(dalpha),
                    data_of<bf16>(dbeta)};
    place(o, &g, end);
    if (dalpha) g.alpha_s = dalpha->stride[0], g.alpha_b = dalpha->stride[1];
    if (dbeta) g.beta_s = dbeta->stride[0], g.beta_b = dbeta->stride[1];
    g.add = accumulates(dqkv), g.add_alpha = accumulates(dalpha), g.add_beta = accumulates(dbeta);
    run_delta_tiles(c, o, g.before, NULL);
    launch_tiles(c, reverse_chunks, o.b * o.hv, 2 * sizeof(Stage), o, g);
    launch_tiles(c, chunk_grads, o.b * o.hk * o.chunks, sizeof(ChunkGrads), o, g);
    sum_columns(c, g.partial, o.b * o.chunks, 2 * o.hv, {c->out[3], 0, 1}, {c->out[4], o.hv, 1});
}
