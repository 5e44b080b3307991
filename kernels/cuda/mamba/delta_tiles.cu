/* Computes op gated_delta_rule of kernels/cpu/gated_delta_rule.c, which contains the formulas, on tensor cores (Yang,
 * Kautz and Hatamizadeh, "Gated Delta Networks", 2024, section 3.3).
 *
 * In matrices, with r[i] = v[i] - p[i] S^T k[i] and M[i,j] = L[i,j] (q[i].k[j]) beta[j], a chunk is
 *
 *   e = I r, where I is the inverse of the triangular matrix
 *   y[i] = p[i] S^T q[i] + sum over j of M[i,j] e[j]
 *
 * 1. prepare_chunks computes I and M of all chunks in float. Chunks do not depend on each other.
 * 2. A block of run_chunks computes a value head, chunk by chunk. Each of its warps has 16 columns of v, and computes
 *    r, e, y and the next S. All are transposed, so that each result is in the registers in which the next product
 *    expects its operand, and warps exchange nothing.
 *
 * q, k and v are exact operands. S, r, e, I and M are split (split.cuh). */
#include "kernels/cuda/mamba/delta_tiles.cuh"

/* ---- the triangular systems ---- */

struct Prepare {
    float inverse[CHUNK][PITCH]; /* first L, then I */
    union {
        unsigned char rows[2][ROWS_BYTES]; /* k and q */
        struct {
            float system[CHUNK][PITCH], product[32][36];
        };
    };
    float gate[GATES][CHUNK];
};

/* Computes to = a b, or -a b, of N x N matrices in shared memory. Threads [0, N * N / 4) take part. */
template <int N, bool MINUS, int TO, int FROM>
__device__ __forceinline__ void small_product(float (*to)[TO], const float (*a)[PITCH],
                                              const float (*b)[FROM], int thread) {
    const int row = thread / (N / 4), column = thread % (N / 4) * 4;
    float4 sum = {0, 0, 0, 0};
#pragma unroll 8
    for (int k = 0; k < N; k++) {
        const float x = MINUS ? -a[row][k] : a[row][k];
        const float4 y = *(const float4 *)&b[k][column];
        sum.x = fmaf(x, y.x, sum.x), sum.y = fmaf(x, y.y, sum.y);
        sum.z = fmaf(x, y.z, sum.z), sum.w = fmaf(x, y.w, sum.w);
    }
    *(float4 *)&to[row][column] = sum;
}

/* Inverts the unit lower triangular matrix: the 16 x 16 blocks of the diagonal by substitution, the others by
 * I21 = -I22 N21 I11. */
__device__ __forceinline__ void invert(Prepare &m) {
    for (int e = threadIdx.x; e < CHUNK * CHUNK; e += THREADS) m.inverse[e / CHUNK][e % CHUNK] = 0;
    __syncthreads();
    if (threadIdx.x < CHUNK) {
        const int first = threadIdx.x / 16 * 16, column = threadIdx.x % 16;
        float x[16];
#pragma unroll
        for (int i = 0; i < 16; i++) {
            float sum = i == column ? 1 : 0, row[16];
#pragma unroll
            for (int k = 0; k < i; k += 4)
                *(float4 *)(row + k) = *(const float4 *)&m.system[first + i][first + k];
#pragma unroll
            for (int k = 0; k < i; k++) sum = fmaf(-row[k], x[k], sum);
            m.inverse[first + i][first + column] = x[i] = sum;
            __syncwarp();
        }
    }
    __syncthreads();
    const int pair = threadIdx.x / 64, at = pair * 32;
    if (pair < 2)
        small_product<16, false>((float(*)[36]) & m.product[pair * 16][0],
                                 (const float(*)[PITCH]) & m.system[at + 16][at],
                                 (const float(*)[PITCH]) & m.inverse[at][at], threadIdx.x % 64);
    __syncthreads();
    if (pair < 2)
        small_product<16, true>((float(*)[PITCH]) & m.inverse[at + 16][at],
                                (const float(*)[PITCH]) & m.inverse[at + 16][at + 16],
                                (const float(*)[36]) & m.product[pair * 16][0], threadIdx.x % 64);
    __syncthreads();
    small_product<32, false>(m.product, (const float(*)[PITCH]) & m.system[32][0], m.inverse, threadIdx.x);
    __syncthreads();
    small_product<32, true>(&m.inverse[32], (const float(*)[PITCH]) & m.inverse[32][32], m.product,
                            threadIdx.x);
    __syncthreads();
}

/* Computes the decays and gates of a value head, then L. */
__device__ __forceinline__ void fill_gates(const DeltaTiles &o, Prepare &m, int64_t sample, int64_t head,
                                           int64_t first, int count) {
    const int i = threadIdx.x;
    if (i < CHUNK) {
        const int64_t t = first + i;
        float decay = 1, beta = 0;
        if (i < count) {
            const float raw = to_real<float>(o.alpha[t * o.alpha_s + sample * o.alpha_b + head]) +
                              o.dt_bias.get<float>(head);
            const bool begins = o.start ? o.start[sample * o.s + t] == t : t == 0;
            decay = begins ? 0 : exp(-exp(o.a_log.get<float>(head)) * softplus(raw));
            beta = sigmoid(to_real<float>(o.beta_in[t * o.beta_s + sample * o.beta_b + head]));
        }
        m.gate[DECAY][i] = decay, m.gate[BETA][i] = beta;
    }
    __syncthreads();
    fill_pairs(m.inverse, m.gate[DECAY]);
    if (i < CHUNK) {
        const float kept = m.gate[DECAY][0] * m.inverse[i][0], k = m.gate[UNIT_K][i];
        m.gate[KEPT][i] = kept, m.gate[KEEP_K][i] = kept * k, m.gate[KEEP_Q][i] = kept * m.gate[UNIT_Q][i];
        m.gate[TO_END][i] = m.inverse[CHUNK - 1][i] * m.gate[BETA][i] * k;
    }
    __syncthreads();
}

/* Sets the factors that normalize the rows of k and q. */
__device__ __forceinline__ void fill_units(const DeltaTiles &o, Prepare &m, int count) {
    const int lane = threadIdx.x % 32;
    for (int row = threadIdx.x / 32; row < 2 * CHUNK; row += THREADS / 32) {
        const int i = row % CHUNK;
        const Vec<bf16, 4> x =
            *(const Vec<bf16, 4> *)(m.rows[row / CHUNK] + Lines<256>::piece(i, lane / 2) + lane % 2 * 8);
        float sum = 0;
        for (int e = 0; e < 4; e++) sum += to_real<float>(x.v[e]) * to_real<float>(x.v[e]);
        sum = 1 / sqrtf(warp_sum(sum) + o.eps);
        if (row >= CHUNK) sum *= 1 / sqrtf((float)WIDTH);
        if (!lane) m.gate[row < CHUNK ? UNIT_K : UNIT_Q][i] = i < count ? sum : 0;
    }
}

/* A block prepares a chunk of the value heads of a key head. Warps 0 to 3 hold products of rows of k, and warps 4 to 7
 * hold products of rows of q, with rows of k. */
static __global__ void __launch_bounds__(THREADS, 2) prepare_chunks(DeltaTiles o) {
    extern __shared__ __align__(16) unsigned char shared[];
    Prepare &m = *(Prepare *)shared;
    const int64_t chunk = blockIdx.x % o.chunks, key = blockIdx.x / o.chunks % o.hk,
                  sample = blockIdx.x / o.chunks / o.hk, first = chunk * CHUNK, each = o.hv / o.hk;
    const int count = (int)least(o.s - first, CHUNK), warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const bool of_q = warp >= 4;
    const bf16 *q = o.qkv + (first * o.b + sample) * o.width + key * WIDTH;
    const uint32_t rows = shared_address(m.rows);
    copy_rows(q + o.hk * WIDTH, o.b * o.width, count, rows);
    copy_rows(q, o.b * o.width, count, rows + ROWS_BYTES);
    copies_arrived();
    __syncthreads();
    fill_units(o, m, count);
    float product[8][4] = {};
    const int row0 = warp % 4 * 16;
#pragma unroll
    for (int k = 0; k < WIDTH; k += 16) {
        uint32_t a[4], b[4];
        a_lines<Lines<256>>(a, rows + (of_q ? ROWS_BYTES : 0), row0, k);
#pragma unroll
        for (int n = 0; n < 4; n++) {
            if (n > warp % 4) continue;
            b_lines<Lines<256>>(b, rows, 16 * n, k);
            multiply_add(product + 2 * n, a, b);
        }
    }
    for (int64_t head = key * each; head < (key + 1) * each; head++) {
        const int64_t unit = (sample * o.hv + head) * o.chunks + chunk;
        __syncthreads(); /* the rows, or the matrices of the head before, have been read */
        fill_gates(o, m, sample, head, first, count);
        bf16 *mix = o.mix + unit * 2 * SQUARE, *inverse = o.inverse + unit * 2 * SQUARE;
#pragma unroll
        for (int n = 0; n < 8; n++)
#pragma unroll
            for (int h = 0; h < 2; h++) {
                const int i = row0 + lane / 4 + 8 * h, j = 8 * n + lane % 4 * 2;
                float x[2];
#pragma unroll
                for (int e = 0; e < 2; e++)
                    x[e] = product[n][2 * h + e] * m.gate[UNIT_K][j + e] * m.gate[BETA][j + e] *
                           m.gate[of_q ? UNIT_Q : UNIT_K][i] * m.inverse[i][j + e];
                uint32_t *to = (uint32_t *)(mix + i * CHUNK + j);
                if (of_q)
                    split(*to, to[SQUARE / 2], x[0], x[1]);
                else
                    m.system[i][j] = j < i ? x[0] : 0, m.system[i][j + 1] = j + 1 < i ? x[1] : 0;
            }
        __syncthreads();
        invert(m);
        for (int e = threadIdx.x; e < SQUARE / 8; e += THREADS) {
            const float *x = &m.inverse[e / 8][e % 8 * 8];
            uint4 high, low;
            split(high.x, low.x, x[0], x[1]), split(high.y, low.y, x[2], x[3]);
            split(high.z, low.z, x[4], x[5]), split(high.w, low.w, x[6], x[7]);
            *(uint4 *)(inverse + e * 8) = high, *(uint4 *)(inverse + SQUARE + e * 8) = low;
        }
        for (int e = threadIdx.x; e < GATES * CHUNK; e += THREADS)
            o.gates[unit * GATES * CHUNK + e] = (&m.gate[0][0])[e];
    }
}

/* ---- the pass over chunks ---- */

/* Computes c [16,64] += a b, where the 64 x 64 tiles at `square` contain the split transpose of b, which is upper
 * triangular. */
__device__ __forceinline__ void add_square(float (&c)[8][4], const float (&a)[8][4], uint32_t square) {
#pragma unroll
    for (int k = 0; k < 4; k++) {
        Split x, b;
        split(x, a + 2 * k);
#pragma unroll
        for (int n = k; n < 4; n++) {
            b_lines<Lines<128>>(b, square, SQUARE_BYTES, 16 * n, 16 * k);
            multiply_add(c + 2 * n, x, b.high), multiply_add(c + 2 * n, x.high, b.low);
        }
    }
}

/* Replaces x by v - x in the columns [column, column + 16) of v. */
__device__ __forceinline__ void subtract_from(float (&x)[8][4], uint32_t v, int column) {
#pragma unroll
    for (int n = 0; n < 8; n += 2) {
        uint32_t w[4];
        a_columns<Lines<256>>(w, v, column, 8 * n);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float *to = &x[n + i / 2][i % 2 * 2];
            to[0] = lower(w[i]) - to[0], to[1] = upper(w[i]) - to[1];
        }
    }
}

/* A block computes a value head. Each warp holds 16 rows of the transposed state. */
template <bool STATES>
static __global__ void __launch_bounds__(THREADS, 1) run_chunks(DeltaTiles o, States kept, bf16 *y) {
    extern __shared__ __align__(16) unsigned char shared[];
    Stage *stage = (Stage *)shared;
    const int64_t head = blockIdx.x % o.hv, sample = blockIdx.x / o.hv;
    const int column = threadIdx.x / 32 * 16;
    const bf16 *v = o.qkv + (2 * o.hk + head) * WIDTH;
    float state[16][4] = {};
    load_stage<STATES>(o, stage, sample, head, 0, v, o.width);
#pragma unroll 1
    for (int64_t chunk = 0; chunk < o.chunks; chunk++) {
        Stage *m = stage + chunk % 2;
        copies_arrived();
        __syncthreads();
        if (chunk + 1 < o.chunks)
            load_stage<STATES>(o, stage + (chunk + 1) % 2, sample, head, chunk + 1, v, o.width);
        const uint32_t k = shared_address(m->k), q = shared_address(m->q);
        const int64_t unit = (sample * o.hv + head) * o.chunks + chunk;
        if (STATES) store_split(state, kept.states + (unit * 2 * WIDTH + column) * WIDTH, WIDTH * WIDTH);
        float rest[8][4] = {}, out[8][4] = {}, e[8][4] = {};
#pragma unroll
        for (int at = 0; at < 8; at++) {
            Split x;
            uint32_t b[4];
            split(x, state + 2 * at);
#pragma unroll
            for (int n = 0; n < 4; n++) {
                b_lines<Lines<256>>(b, k, 16 * n, 16 * at);
                multiply_add(rest + 2 * n, x, b);
                if (STATES) continue;
                b_lines<Lines<256>>(b, q, 16 * n, 16 * at);
                multiply_add(out + 2 * n, x, b);
            }
        }
        scale_columns(rest, m->gate[KEEP_K]);
        if (!STATES) scale_columns(out, m->gate[KEEP_Q]);
        subtract_from(rest, shared_address(m->v), column);
        add_square(e, rest, shared_address(m->inverse));
        if (STATES) {
            store_split(e, kept.errors + (unit * 2 * WIDTH + column) * CHUNK, WIDTH * CHUNK);
        } else {
            const int64_t first = chunk * CHUNK;
            add_square(out, e, shared_address(m->mix));
            store_columns(out, m->v, column, y + ((first * o.b + sample) * o.hv + head) * WIDTH + column,
                          o.b * o.hv * WIDTH, (int)least(o.s - first, CHUNK));
        }
        scale_columns(e, m->gate[TO_END]);
        const float kept = m->gate[KEPT][CHUNK - 1];
#pragma unroll
        for (int n = 0; n < 16; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) state[n][i] *= kept;
#pragma unroll
        for (int at = 0; at < 4; at++) {
            Split x;
            uint32_t b[4];
            split(x, e + 2 * at);
#pragma unroll
            for (int n = 0; n < 8; n++) {
                b_columns<Lines<256>>(b, k, 16 * n, 16 * at);
                multiply_add(state + 2 * n, x, b);
            }
        }
    }
}

/* ---- host code ---- */

bool delta_tiles_can(const Call *c, Tensor *const *in) {
    const DeltaRuleAttr *a = (const DeltaRuleAttr *)c->attr;
    return tiles_can(c, in[0], c->in[0], c->out[0]) && a->chunk == CHUNK && a->key_dim == WIDTH &&
           a->value_dim == WIDTH && a->normalize;
}

void run_delta_tiles(const Call *c, const DeltaTiles &o, const States &kept, bf16 *y) {
    launch_tiles(c, prepare_chunks, o.b * o.hk * o.chunks, sizeof(Prepare), o);
    launch_tiles(c, y ? run_chunks<false> : run_chunks<true>, o.b * o.hv, 2 * sizeof(Stage), o, kept, y);
}

size_t delta_tiles_bytes(const Call *c) {
    char *end;
    tiles_of(c, c->in, NULL, &end);
    return (size_t)end;
}

void delta_tiles(const Call *c) {
    char *end;
    const DeltaTiles o = tiles_of(c, c->in, cuda_scratch(c->device, delta_tiles_bytes(c)), &end);
    run_delta_tiles(c, o, {}, data_of<bf16>(c->out[0]));
}
