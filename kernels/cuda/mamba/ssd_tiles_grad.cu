/* Computes op ssd_scan_grad of kernels/cpu/ssd_scan.c, which contains the formulas, on tensor cores:
 *
 * 1. tile_steps and pass_tiles compute the steps and the states before the chunks again.
 * 2. pass_tiles computes R after the chunks, in reverse.
 * 3. query_grads computes what belongs to rows i, and key_grads what belongs to rows j. Both visit the heads of a group
 *    one by one, so that the gradients of B and C remain in registers.
 * 4. group_grads adds the terms of pairs (i, j) to the gradients of B and C, after the sum over heads.
 * 5. tile_step_grads computes the gradients of dt and of the parameters.
 *
 * x, B, C and dy are exact operands. All others are split (split.cuh). */
#include "kernels/cuda/column_sums.cuh"
#include "kernels/cuda/mamba/scan_tile.cuh"
#include "kernels/cuda/mamba/ssd_tiles.cuh"

struct TileGrads {
    const bf16 *dy;
    bf16 *after;            /* like Tiles.before: the gradients of the states after the chunks */
    float *pairs, *db, *dc; /* [b,g,chunks,parts,TILE,TILE or STATE] */
    float *kept;            /* [b,h,slices,chunks]: terms of da that all positions have */
    float *da;              /* [b,h,slices,chunks,TILE]: terms of da of pairs */
    float *later, *earlier; /* ... whose sums from, and before, a position are terms of da */
    float *along, *direct;  /* ... x.u and dy.x */
    float *partial;         /* [b,chunks,3,h] */
};

/* A chunk of a group of a sample, and the slices that the block computes. */
struct Work {
    int64_t sample, group, chunk, first, end, t, lines;
};
static __device__ __forceinline__ Work work_of(const Tiles &o) {
    const int64_t part = blockIdx.x % o.parts, rest = blockIdx.x / o.parts, chunk = rest % o.chunks,
                  end = (part + 1) * EACH;
    return {
        rest / o.chunks / o.g, rest / o.chunks % o.g, chunk, part * EACH, end < o.count() ? end : o.count(),
        chunk * TILE,          o.s - chunk * TILE};
}

/* The shared memory of a block: B, C, and two stages of operands of a slice. */
struct Room {
    static constexpr int STAGE = 2 * X_BYTES + STATE_BYTES + sizeof(Steps), BYTES = 2 * B_BYTES + 2 * STAGE;
    unsigned char *at;

    __device__ __forceinline__ uint32_t b() const { return shared_address(at); }
    __device__ __forceinline__ uint32_t c() const { return b() + B_BYTES; }
    __device__ __forceinline__ uint32_t x(int stage) const { return c() + B_BYTES + stage * STAGE; }
    __device__ __forceinline__ uint32_t dy(int stage) const { return x(stage) + X_BYTES; }
    __device__ __forceinline__ uint32_t state(int stage) const { return dy(stage) + X_BYTES; }
    __device__ __forceinline__ Steps &steps(int stage) const {
        return *(Steps *)(at + (state(stage) + STATE_BYTES - b()));
    }
    __device__ __forceinline__ void load_group(const Tiles &o, const Work &w) const {
        copy_plane<TILE, STATE>(b(), o.b_of(w.sample, w.group, w.t), o.along(), w.lines, o.n);
        copy_plane<TILE, STATE>(c(), o.c_of(w.sample, w.group, w.t), o.along(), w.lines, o.n);
    }
    __device__ __forceinline__ void load(const Tiles &o, const TileGrads &g, const Work &w, const Unit &u,
                                         const bf16 *states, int stage) const {
        copy_plane<TILE, SLICE>(x(stage), o.x_of(w.sample, u.head, w.t) + u.column, o.along(), w.lines,
                                u.width);
        copy_plane<TILE, SLICE>(dy(stage), g.dy + ((w.t * o.b + w.sample) * o.h + u.head) * o.p + u.column,
                                o.b * o.h * o.p, w.lines, u.width);
        copy_state(state(stage), states + (u.number * o.chunks + w.chunk) * 2 * STATE_SIZE);
        copy_steps(shared_address(&steps(stage)), o.steps_of(u, w.chunk));
    }
};

/* Sums x over the 8 rows of two adjacent accumulators whose columns are in the same lanes, and over both halves.
 * Returns the sum of one column, whose number is `column`. Two lanes have the same column. */
static __device__ __forceinline__ float column_sum(const float (&x)[2][4], int *column) {
    const int lane = threadIdx.x % 32;
    float sum[4];
#pragma unroll
    for (int i = 0; i < 4; i++) sum[i] = x[i / 2][i % 2] + x[i / 2][2 + i % 2];
    const bool right = lane & 16, second = lane & 8;
#pragma unroll
    for (int i = 0; i < 2; i++)
        sum[i] =
            (right ? sum[2 + i] : sum[i]) + __shfl_xor_sync(0xffffffffu, right ? sum[i] : sum[2 + i], 16);
    float one = (second ? sum[1] : sum[0]) + __shfl_xor_sync(0xffffffffu, second ? sum[0] : sum[1], 8);
    one += __shfl_xor_sync(0xffffffffu, one, 4);
    *column = right * 8 + lane % 4 * 2 + second;
    return one;
}

/* Replaces each element of two rows of 16 columns by the sum of `before` and the elements before it. */
static __device__ __forceinline__ void sums_before(float (&x)[2][4], float (&before)[2]) {
    const int pair = threadIdx.x % 4;
#pragma unroll
    for (int n8 = 0; n8 < 2; n8++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float &a = x[n8][2 * half], &b = x[n8][2 * half + 1], sum = a + b;
            for (int k = 1; k < 4; k *= 2) {
                const float other = __shfl_up_sync(0xffffffffu, sum, k, 4);
                if (pair >= k) sum += other;
            }
            const float previous = __shfl_up_sync(0xffffffffu, sum, 1, 4),
                        all = __shfl_sync(0xffffffffu, sum, 3, 4);
            const float first = before[half] + (pair ? previous : 0);
            b = first + a, a = first;
            before[half] += all;
        }
}

/* Writes a warp's rows of an fp32 tile. */
template <int N>
static __device__ __forceinline__ void put_tile(float *to, const float (&x)[N][2][4], int row) {
#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            *(float2 *)(to + (row + e % 2 * 8) * (N * 16) + n * 16 + e / 2 * 8 +
                        threadIdx.x % 4 * 2) = {x[n][e / 2][e % 2 * 2], x[n][e / 2][e % 2 * 2 + 1]};
}

static __global__ void __launch_bounds__(THREADS, 1) query_grads(Tiles o, TileGrads g) {
    extern __shared__ __align__(1024) unsigned char shared[];
    /* below: the sums of W[i,j] over the rows i of a warp; later the sums over the j before a column. diagonal: the
     * terms of the rows of the column's warp. */
    __shared__ float below[TILE / 16][TILE], diagonal[TILE];
    const Room room = {shared};
    const Work w = work_of(o);
    const int lane = threadIdx.x % 32, tile = warp_tile(), row = tile * 16 + lane / 4, pair = lane % 4;
    const int begin[2] = {o.first_row(w.sample, w.chunk, row), o.first_row(w.sample, w.chunk, row + 8)};
    float pairs[TILE / 16][2][4] = {}, dc[STATE / 16][2][4] = {};
    uint32_t c[STATE / 16][4];
    room.load_group(o, w);
    room.load(o, g, w, o.unit(w.sample, w.group, w.first), o.before, 0);
#pragma unroll 1
    for (int64_t i = w.first; i < w.end; i++) {
        const Unit u = o.unit(w.sample, w.group, i);
        const int stage = (int)(i - w.first) % 2;
        const int64_t out = (u.number * o.chunks + w.chunk) * TILE;
        const Steps &step = room.steps(stage);
        copies_arrived();
        __syncthreads();
        if (i == w.first)
#pragma unroll
            for (int k = 0; k < STATE / 16; k++) a_lines<Plane>(c[k], room.c(), tile * 16, k * 16);
        if (i + 1 < w.end) room.load(o, g, w, o.unit(w.sample, w.group, i + 1), o.before, stage ^ 1);
        uint32_t dy[SLICE / 16][4], y[4];
#pragma unroll
        for (int k = 0; k < SLICE / 16; k++) a_lines<Plane>(dy[k], room.dy(stage), tile * 16, k * 16);
        const float from_start[2] = {step.from_start[row], step.from_start[row + 8]};
        const float2 sum[2] = {step.sum[row], step.sum[row + 8]};
        float later[2] = {};
#pragma unroll
        for (int n = 0; n < STATE / 16; n++) {
            float product[2][4] = {};
#pragma unroll
            for (int k = 0; k < SLICE / 16; k++)
                add_state<true>(product, dy[k], room.state(stage), n * 16, k * 16);
#pragma unroll
            for (int e = 0; e < 8; e++) {
                const float v = product[e / 4][e % 4] * from_start[e % 4 / 2];
                dc[n][e / 4][e % 4] += v;
                later[e % 4 / 2] += v * element(c[n], e / 4, e % 4);
            }
        }
        float carry[2] = {};
#pragma unroll
        for (int j = 0; j < TILE / 16; j++) {
            if (j > tile) continue;
            float score[2][4] = {}, product[2][4] = {};
#pragma unroll
            for (int k = 0; k < STATE / 16; k++) {
                b_lines<Plane>(y, room.b(), j * 16, k * 16);
                multiply_add(score, c[k], y);
            }
#pragma unroll
            for (int k = 0; k < SLICE / 16; k++) {
                b_lines<Plane>(y, room.x(stage), j * 16, k * 16);
                multiply_add(product, dy[k], y);
            }
#pragma unroll
            for (int e = 0; e < 8; e++) {
                const int half = e % 4 / 2, from = j * 16 + e / 4 * 8 + 2 * pair + e % 2, at = row + 8 * half;
                const float direct = product[e / 4][e % 4], factor = decay(sum[half], step.late[from]);
                const float v = from <= at && from >= begin[half] ? direct * factor : 0;
                if (from == at) g.direct[out + at] = direct;
                pairs[j][e / 4][e % 4] += v;
                score[e / 4][e % 4] *= v;
                if (j < tile) carry[half] += score[e / 4][e % 4];
            }
            if (j == tile) {
                for (int half = 0; half < 2; half++) carry[half] = quad_sum(carry[half]);
                sums_before(score, carry);
#pragma unroll
                for (int e = 0; e < 8; e++)
                    if (e / 4 * 8 + 2 * pair + e % 2 > lane / 4 + e % 4 / 2 * 8) score[e / 4][e % 4] = 0;
            }
            int column;
            const float all = column_sum(score, &column);
            if (!(lane & 4)) (j == tile ? diagonal : below[tile])[j * 16 + column] = all;
        }
        for (int half = 0; half < 2; half++) {
            const float all = quad_sum(later[half]);
            if (!pair) g.later[out + row + 8 * half] = all;
        }
        __syncwarp();
        float4 *sums = (float4 *)below[tile] + lane;
        const bool there = lane * 4 < tile * 16;
        const float4 v = there ? *sums : float4{0, 0, 0, 0};
        float before = v.x + v.y + v.z + v.w;
        for (int k = 1; k < 32; k *= 2) {
            const float other = __shfl_up_sync(0xffffffffu, before, k);
            if (lane >= k) before += other;
        }
        before = __shfl_up_sync(0xffffffffu, before, 1);
        if (!lane) before = 0;
        *sums = {before, before + v.x, before + v.x + v.y, before + v.x + v.y + v.z};
        __syncthreads();
        if (threadIdx.x < TILE) {
            float all = diagonal[threadIdx.x];
            for (int k = (int)threadIdx.x / 16 + 1; k < TILE / 16; k++) all += below[k][threadIdx.x];
            g.da[out + threadIdx.x] = all;
        }
    }
    put_tile(g.pairs + (int64_t)blockIdx.x * TILE * TILE, pairs, row);
    put_tile(g.dc + (int64_t)blockIdx.x * TILE * STATE, dc, row);
}

static __global__ void __launch_bounds__(THREADS, 1) key_grads(Tiles o, TileGrads g, bf16 *dx, bool add) {
    extern __shared__ __align__(1024) unsigned char shared[];
    __shared__ int begin[TILE];
    const Room room = {shared};
    const Work w = work_of(o);
    const int lane = threadIdx.x % 32, tile = warp_tile(), row = tile * 16 + lane / 4, pair = lane % 4;
    float db[STATE / 16][2][4] = {};
    uint32_t b[STATE / 16][4];
    if (threadIdx.x < TILE) begin[threadIdx.x] = o.first_row(w.sample, w.chunk, threadIdx.x);
    room.load_group(o, w);
    room.load(o, g, w, o.unit(w.sample, w.group, w.first), g.after, 0);
#pragma unroll 1
    for (int64_t i = w.first; i < w.end; i++) {
        const Unit u = o.unit(w.sample, w.group, i);
        const int stage = (int)(i - w.first) % 2;
        const int64_t out = (u.number * o.chunks + w.chunk) * TILE;
        const Steps &step = room.steps(stage);
        copies_arrived();
        __syncthreads();
        if (i == w.first)
#pragma unroll
            for (int k = 0; k < STATE / 16; k++) a_lines<Plane>(b[k], room.b(), tile * 16, k * 16);
        if (i + 1 < w.end) room.load(o, g, w, o.unit(w.sample, w.group, i + 1), g.after, stage ^ 1);
        uint32_t x[SLICE / 16][4], y[4];
        Split weights;
#pragma unroll
        for (int k = 0; k < SLICE / 16; k++) a_lines<Plane>(x[k], room.x(stage), tile * 16, k * 16);
        const float to_end[2] = {step.to_end[row], step.to_end[row + 8]},
                    delta[2] = {step.delta[row], step.delta[row + 8]};
        const float2 sum[2] = {step.sum[row], step.sum[row + 8]};
        float slope[SLICE / 16][2][4] = {}, earlier[2] = {}; /* slope: u */
#pragma unroll
        for (int k = 0; k < STATE / 16; k++)
#pragma unroll
            for (int n = 0; n < SLICE / 16; n++)
                add_state<false>(slope[n], b[k], room.state(stage), n * 16, k * 16);
#pragma unroll
        for (int n = 0; n < SLICE / 16; n++)
#pragma unroll
            for (int e = 0; e < 8; e++) slope[n][e / 4][e % 4] *= to_end[e % 4 / 2];
#pragma unroll
        for (int n = 0; n < STATE / 16; n++) {
            float product[2][4] = {};
#pragma unroll
            for (int k = 0; k < SLICE / 16; k++)
                add_state<true>(product, x[k], room.state(stage), n * 16, k * 16);
#pragma unroll
            for (int e = 0; e < 8; e++) {
                const float v = product[e / 4][e % 4] * (to_end[e % 4 / 2] * delta[e % 4 / 2]);
                db[n][e / 4][e % 4] += v;
                earlier[e % 4 / 2] += v * element(b[n], e / 4, e % 4);
            }
        }
#pragma unroll 1
        for (int j = tile * 16; j < TILE; j += 16) {
            float weight[2][4] = {};
#pragma unroll
            for (int k = 0; k < STATE / 16; k++) {
                b_lines<Plane>(y, room.c(), j, k * 16);
                multiply_add(weight, b[k], y);
            }
#pragma unroll
            for (int e = 0; e < 8; e++) {
                const int half = e % 4 / 2, to = j + e / 4 * 8 + 2 * pair + e % 2, at = row + 8 * half;
                const float factor = decay(step.sum[to], sum[half]);
                weight[e / 4][e % 4] = to >= at && at >= begin[to] ? weight[e / 4][e % 4] * factor : 0;
            }
            split(weights, weight);
#pragma unroll
            for (int n = 0; n < SLICE / 16; n++) {
                b_columns<Plane>(y, room.dy(stage), n * 16, j);
                multiply_add(slope[n], weights, y);
            }
        }
        const float skip = o.skip(u.head);
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int line = row + 8 * half;
            const int64_t t = w.t + line;
            float along = 0;
#pragma unroll
            for (int n = 0; n < SLICE / 16; n++) {
                float v[4];
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    const float s = slope[n][e / 2][2 * half + e % 2];
                    const bf16 *at =
                        (const bf16 *)(shared +
                                       (Plane::at(room.dy(stage), line, n * 16 + e / 2 * 8) - room.b()));
                    along += s * element(x[n], e / 2, 2 * half + e % 2);
                    v[e] = delta[half] * s + skip * to_real<float>(at[2 * pair + e % 2]);
                }
                bf16 *to =
                    dx + (t * o.b + w.sample) * o.width + u.head * o.p + u.column + n * 16 + paired_column();
                if (!dx) continue;
                const bool there = t < o.s && n * 16 < u.width;
                Vec<uint32_t, 2> all;
                if (!add)
                    all = paired(pack<bf16>(v[0], v[1]), pack<bf16>(v[2], v[3]));
                else {
                    const Vec<uint32_t, 2> old = there ? *(const Vec<uint32_t, 2> *)to : Vec<uint32_t, 2>{};
                    const bool odd = lane % 2;
                    float mine[4];
#pragma unroll
                    for (int e = 0; e < 2; e++) {
                        const float other = __shfl_xor_sync(0xffffffffu, odd ? v[e] : v[2 + e], 1);
                        mine[e] = odd ? other : v[e], mine[2 + e] = odd ? v[2 + e] : other;
                    }
                    all = {pack<bf16>(lower(old.v[0]) + mine[0], upper(old.v[0]) + mine[1]),
                           pack<bf16>(lower(old.v[1]) + mine[2], upper(old.v[1]) + mine[3])};
                }
                if (there) *(Vec<uint32_t, 2> *)to = all;
            }
            along = quad_sum(along);
            const float before = quad_sum(earlier[half]);
            if (!pair) g.along[out + line] = along, g.earlier[out + line] = before;
        }
    }
    put_tile(g.db + (int64_t)blockIdx.x * TILE * STATE, db, row);
}

static __device__ __forceinline__ float2 part_sum(const float *from, int64_t size, int64_t parts) {
    float2 sum = {};
    for (int64_t part = 0; part < parts; part++, from += size) {
        const float2 v = *(const float2 *)from;
        sum.x += v.x, sum.y += v.y;
    }
    return sum;
}

/* A block computes the gradients of B and C of a group in a chunk. */
static __global__ void __launch_bounds__(THREADS, 1) group_grads(Tiles o, TileGrads g, bf16 *dx, bool add) {
    extern __shared__ __align__(1024) unsigned char shared[];
    const uint32_t b_plane = shared_address(shared), c_plane = b_plane + B_BYTES,
                   pair_plane = c_plane + B_BYTES;
    const int lane = threadIdx.x % 32, tile = warp_tile(), row = tile * 16 + lane / 4;
    const int64_t chunk = blockIdx.x % o.chunks, group = blockIdx.x / o.chunks % o.g,
                  sample = blockIdx.x / o.chunks / o.g, t = chunk * TILE, lines = o.s - t,
                  from = (int64_t)blockIdx.x * o.parts * TILE * STATE;
    copy_plane<TILE, STATE>(b_plane, o.b_of(sample, group, t), o.along(), lines, o.n);
    copy_plane<TILE, STATE>(c_plane, o.c_of(sample, group, t), o.along(), lines, o.n);
    for (int e = threadIdx.x; e < TILE * TILE / 2; e += THREADS) {
        const int line = e / (TILE / 2), column = e % (TILE / 2) * 2;
        const float2 v = part_sum(g.pairs + from + 2 * e, TILE * TILE, o.parts);
        uint32_t high, low;
        split(high, low, v.x, v.y);
        const uint32_t at = Plane::at(pair_plane, line, column) + column % 8 * 2 - b_plane;
        *(uint32_t *)(shared + at) = high, *(uint32_t *)(shared + at + PAIR_BYTES) = low;
    }
    copies_arrived();
    __syncthreads();
#pragma unroll 1
    for (int of_c = 0; of_c < 2; of_c++) {
        const float *terms = (of_c ? g.dc : g.db) + from;
        const uint32_t plane = of_c ? b_plane : c_plane;
        float sum[STATE / 16][2][4];
#pragma unroll
        for (int n = 0; n < STATE / 16; n++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                const float2 v =
                    part_sum(terms + (row + e % 2 * 8) * STATE + n * 16 + e / 2 * 8 + lane % 4 * 2,
                             TILE * STATE, o.parts);
                sum[n][e / 2][e % 2 * 2] = v.x, sum[n][e / 2][e % 2 * 2 + 1] = v.y;
            }
#pragma unroll 1
        for (int k = of_c ? 0 : tile; k < (of_c ? tile + 1 : TILE / 16); k++) {
            Split pairs;
            uint32_t y[4];
            if (of_c)
                a_lines<Plane>(pairs, pair_plane, PAIR_BYTES, tile * 16, k * 16);
            else
                a_columns<Plane>(pairs, pair_plane, PAIR_BYTES, tile * 16, k * 16);
#pragma unroll
            for (int n = 0; n < STATE / 16; n++) {
                b_columns<Plane>(y, plane, n * 16, k * 16);
                multiply_add(sum[n], pairs, y);
            }
        }
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int64_t at = t + row + 8 * half;
            if (at >= o.s) continue;
            bf16 *to = dx + ((of_c ? o.c_of(sample, group, at) : o.b_of(sample, group, at)) - o.x);
#pragma unroll
            for (int n = 0; n < STATE / 16; n++)
#pragma unroll
                for (int n8 = 0; n8 < 2; n8++) {
                    uint32_t *word = (uint32_t *)(to + n * 16 + n8 * 8 + lane % 4 * 2);
                    if (n * 16 >= o.n) continue;
                    const uint32_t old = add ? *word : 0;
                    *word =
                        pack<bf16>(lower(old) + sum[n][n8][2 * half], upper(old) + sum[n][n8][2 * half + 1]);
                }
        }
    }
}

/* A block computes the gradients of the steps of 32 heads in a chunk, and the sums for the parameters. A warp computes a
 * head, and each lane four positions. */
static __global__ void __launch_bounds__(THREADS)
    tile_step_grads(Tiles o, TileGrads g, bf16 *ddt, int64_t along_s, int64_t along_b, bool add) {
    constexpr int LANE = TILE / 32;
    __shared__ float raw[32][TILE + 1];
    const int64_t blocks = (o.h + 31) / 32, head0 = blockIdx.x % blocks * 32, rest = blockIdx.x / blocks,
                  chunk = rest % o.chunks, sample = rest / o.chunks, first = chunk * TILE;
    for (int e = threadIdx.x; e < 32 * TILE; e += THREADS) {
        const int64_t head = head0 + e % 32, t = first + e / 32;
        raw[e % 32][e / 32] = head < o.h && t < o.s ? o.raw(sample, head, t) : 0;
    }
    __syncthreads();
    for (int i = (int)threadIdx.x / 32; i < 32 && head0 + i < o.h; i += THREADS / 32) {
        const int lane = threadIdx.x % 32;
        const int64_t head = head0 + i;
        const Steps *step = o.steps + (sample * o.h + head) * o.chunks + chunk;
        float da[LANE] = {}, along[LANE] = {}, later[LANE] = {}, earlier[LANE] = {}, sums[3] = {}, kept = 0;
        for (int64_t slice = 0; slice < o.slices; slice++) {
            const int64_t unit = ((sample * o.h + head) * o.slices + slice) * o.chunks + chunk,
                          at = unit * TILE + lane * LANE;
            kept += g.kept[unit];
            for (int k = 0; k < LANE; k++)
                if (first + lane * LANE + k < o.s) {
                    da[k] += g.da[at + k], along[k] += g.along[at + k], later[k] += g.later[at + k],
                        earlier[k] += g.earlier[at + k], sums[2] += g.direct[at + k];
                }
        }
        float after = later[0] + later[1] + later[2] + later[3],
              before = earlier[0] + earlier[1] + earlier[2] + earlier[3];
        for (int k = 1; k < 32; k *= 2) {
            const float down = __shfl_down_sync(0xffffffffu, after, k),
                        up = __shfl_up_sync(0xffffffffu, before, k);
            if (lane + k < 32) after += down;
            if (lane >= k) before += up;
        }
        after = __shfl_down_sync(0xffffffffu, after, 1), before = __shfl_up_sync(0xffffffffu, before, 1);
        if (lane == 31) after = 0;
        if (lane == 0) before = 0;
        before += kept;
        for (int k = LANE - 1; k >= 0; k--) da[k] += after += later[k];
        for (int k = 0; k < LANE; k++) da[k] += before, before += earlier[k];
        const float rate = o.rate(head);
        for (int k = 0; k < LANE; k++) {
            const int at = lane * LANE + k;
            const float r = raw[i][at], plain = softplus(r);
            const bool clamped = plain < o.least || plain > o.most;
            const float draw = clamped ? 0 : (along[k] + rate * da[k]) * softplus_slope(r);
            if (first + at < o.s) sums[0] += draw, sums[1] += da[k] * rate * step->delta[at];
            raw[i][at] = draw;
        }
        for (int k = 0; k < 3; k++) {
            const float sum = warp_sum(sums[k]);
            if (!lane) g.partial[((sample * o.chunks + chunk) * 3 + k) * o.h + head] = sum;
        }
    }
    __syncthreads();
    for (int e = threadIdx.x; ddt && e < 32 * TILE; e += THREADS) {
        const int64_t head = head0 + e % 32, t = first + e / 32;
        if (head >= o.h || t >= o.s) continue;
        bf16 *to = ddt + t * along_s + sample * along_b + head;
        *to = from_real<bf16>(add ? to_real<float>(*to) + raw[e % 32][e / 32] : raw[e % 32][e / 32]);
    }
}

/* Places the scratch operands. Returns the end. */
static char *place(const Tiles &o, TileGrads *g, char *at) {
    const int64_t blocks = o.b * o.g * o.chunks * o.parts, units = o.b * o.h * o.slices * o.chunks;
    const auto take = [&](int64_t n) {
        float *from = (float *)at;
        at += n * (int64_t)sizeof(float);
        return from;
    };
    g->after = (bf16 *)take(units * STATE_SIZE);
    g->pairs = take(blocks * TILE * TILE);
    g->db = take(blocks * TILE * STATE), g->dc = take(blocks * TILE * STATE);
    g->da = take(units * TILE), g->later = take(units * TILE), g->earlier = take(units * TILE);
    g->along = take(units * TILE), g->direct = take(units * TILE);
    g->kept = take(units), g->partial = take(3 * o.b * o.h * o.chunks);
    return at;
}

size_t ssd_tiles_grad_bytes(const Call *c) {
    char *end;
    TileGrads g;
    const Tiles o = tiles_of((const ScanAttr *)c->attr, c->in + 1, NULL, &end);
    return (size_t)place(o, &g, end);
}

void ssd_tiles_grad(const Call *c) {
    const Tensor *dx = c->out[0], *ddt = c->out[1];
    char *end;
    const Tiles o = tiles_of((const ScanAttr *)c->attr, c->in + 1,
                             (char *)cuda_scratch(c->device, ssd_tiles_grad_bytes(c)), &end);
    TileGrads g;
    place(o, &g, end);
    g.dy = data_of<bf16>(c->in[0]);
    const int64_t groups = o.b * o.g * o.chunks, blocks = groups * o.parts;
    bf16 *to = data_of<bf16>(dx);
    prepare_tiles(c, o);
    launch_tiles(c, pass_tiles<true>, o.b * o.h * o.slices, 2 * (X_BYTES + B_BYTES), o, g.dy, g.after,
                 g.kept);
    launch_tiles(c, query_grads, blocks, Room::BYTES, o, g);
    launch_tiles(c, key_grads, blocks, Room::BYTES, o, g, to, accumulates(dx));
    if (dx) launch_tiles(c, group_grads, groups, 2 * B_BYTES + 2 * PAIR_BYTES, o, g, to, accumulates(dx));
    launch_tiles(c, tile_step_grads, o.b * o.chunks * ceil_div(o.h, 32), 0, o, g, data_of<bf16>(ddt),
                 ddt ? ddt->stride[0] : 0, ddt ? ddt->stride[1] : 0, accumulates(ddt));
    sum_columns(c, g.partial, o.b * o.chunks, 3 * o.h, {c->out[2], 0, 1}, {c->out[3], o.h, 1},
                {c->out[4], 2 * o.h, 1});
}
