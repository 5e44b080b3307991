/* Computes op ssd_scan of kernels/cpu/ssd_scan.c, which contains the formulas, on tensor cores (Dao and Gu,
 * "Transformers are SSMs", 2024, section 6):
 *
 * 1. tile_steps computes delta, and the sums c, of all chunks.
 * 2. A block of pass_tiles computes a slice of a head, chunk by chunk, and stores the states before the chunks.
 * 3. A block of tile_outputs computes y of some heads of a group in a chunk, which share B and C.
 *
 * x, B and C are exact operands. States, exp(c[last] - c[j]) delta[j] x[j] and the weights of pairs of positions are
 * split (split.cuh). */
#include "kernels/cuda/mamba/scan_tile.cuh"
#include "kernels/cuda/mamba/ssd_tiles.cuh"

/* A block computes y of EACH slices in a chunk; a warp computes 16 rows. */
static __global__ void __launch_bounds__(THREADS, 2) tile_outputs(Tiles o, bf16 *y) {
    extern __shared__ __align__(1024) unsigned char shared[];
    const uint32_t c_plane = shared_address(shared), b_plane = c_plane + B_BYTES, x_plane = b_plane + B_BYTES,
                   state_plane = x_plane + X_BYTES;
    const float2 *late = (const float2 *)(shared + 2 * B_BYTES + X_BYTES + STATE_BYTES);
    const int lane = threadIdx.x % 32, tile = warp_tile(), row = tile * 16 + lane / 4, pair = lane % 4;
    const int64_t part = blockIdx.x % o.parts, rest = blockIdx.x / o.parts, chunk = rest % o.chunks,
                  group = rest / o.chunks % o.g, sample = rest / o.chunks / o.g, t = chunk * TILE,
                  lines = o.s - t;
    const int begin[2] = {o.first_row(sample, chunk, row), o.first_row(sample, chunk, row + 8)};
    uint32_t c[STATE / 16][4];
    copy_plane<TILE, STATE>(c_plane, o.c_of(sample, group, t), o.along(), lines, o.n);
    copy_plane<TILE, STATE>(b_plane, o.b_of(sample, group, t), o.along(), lines, o.n);
    for (int64_t i = part * EACH; i < least((part + 1) * EACH, o.count()); i++) {
        const Unit u = o.unit(sample, group, i);
        const Steps *step = o.steps_of(u, chunk);
        copy_plane<TILE, SLICE>(x_plane, o.x_of(sample, u.head, t) + u.column, o.along(), lines, u.width);
        copy_state(state_plane, o.before + (u.number * o.chunks + chunk) * 2 * STATE_SIZE);
        if (threadIdx.x < sizeof step->late / 16)
            copy_async<16>(shared_address(late) + threadIdx.x * 16, step->late + threadIdx.x * 2, true);
        const float2 sum[2] = {step->sum[row], step->sum[row + 8]};
        const float from_start[2] = {step->from_start[row], step->from_start[row + 8]}, skip = o.skip(u.head);
        copies_arrived();
        __syncthreads();
        if (i == part * EACH)
#pragma unroll
            for (int k = 0; k < STATE / 16; k++) a_lines<Plane>(c[k], c_plane, tile * 16, k * 16);
        float out[SLICE / 16][2][4] = {};
#pragma unroll
        for (int k = 0; k < STATE / 16; k++)
#pragma unroll
            for (int n = 0; n < SLICE / 16; n++) add_state<false>(out[n], c[k], state_plane, n * 16, k * 16);
#pragma unroll
        for (int n = 0; n < SLICE / 16; n++)
#pragma unroll
            for (int e = 0; e < 8; e++) {
                const int line = row + e % 4 / 2 * 8, column = n * 16 + e / 4 * 8;
                const bf16 *x = (const bf16 *)(shared + (Plane::at(x_plane, line, column) - c_plane));
                out[n][e / 4][e % 4] =
                    out[n][e / 4][e % 4] * from_start[e % 4 / 2] + skip * to_real<float>(x[2 * pair + e % 2]);
            }
#pragma unroll 1
        for (int j = 0; j <= tile * 16; j += 16) {
            float weight[2][4] = {};
            uint32_t x[4];
            Split weights;
#pragma unroll
            for (int k = 0; k < STATE / 16; k++) {
                b_lines<Plane>(x, b_plane, j, k * 16);
                multiply_add(weight, c[k], x);
            }
#pragma unroll
            for (int e = 0; e < 8; e++) {
                const int half = e % 4 / 2, from = j + e / 4 * 8 + 2 * pair + e % 2;
                const float factor = decay(sum[half], late[from]);
                weight[e / 4][e % 4] =
                    from <= row + 8 * half && from >= begin[half] ? weight[e / 4][e % 4] * factor : 0;
            }
            split(weights, weight);
#pragma unroll
            for (int n = 0; n < SLICE / 16; n++) {
                b_columns<Plane>(x, x_plane, n * 16, j);
                multiply_add(out[n], weights, x);
            }
        }
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int64_t at = t + row + 8 * half;
            bf16 *to = y + ((at * o.b + sample) * o.h + u.head) * o.p + u.column;
#pragma unroll
            for (int n = 0; n < SLICE / 16; n++) {
                const Vec<uint32_t, 2> v = paired(pack<bf16>(out[n][0][2 * half], out[n][0][2 * half + 1]),
                                                  pack<bf16>(out[n][1][2 * half], out[n][1][2 * half + 1]));
                if (at < o.s && n * 16 < u.width) *(Vec<uint32_t, 2> *)(to + n * 16 + paired_column()) = v;
            }
        }
        __syncthreads();
    }
}

bool ssd_tiles_can(const Call *c, Tensor *const *in) {
    const ScanAttr *a = (const ScanAttr *)c->attr;
    return tiles_can(c, in[0], c->in[0], c->out[0]) && a->head_dim % 16 == 0 && a->state % 16 == 0 &&
           a->state <= STATE;
}

size_t ssd_tiles_bytes(const Call *c) {
    char *end;
    tiles_of((const ScanAttr *)c->attr, c->in, NULL, &end);
    return (size_t)end;
}

void ssd_tiles(const Call *c) {
    constexpr size_t room = 2 * B_BYTES + X_BYTES + STATE_BYTES + sizeof(Steps::late);
    char *end;
    const Tiles o =
        tiles_of((const ScanAttr *)c->attr, c->in, (char *)cuda_scratch(c->device, ssd_tiles_bytes(c)), &end);
    prepare_tiles(c, o);
    launch_tiles(c, tile_outputs, o.b * o.g * o.chunks * o.parts, room, o, data_of<bf16>(c->out[0]));
}
