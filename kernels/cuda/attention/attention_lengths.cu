extern "C" {
#include "kernels/cuda/attention/attention_lengths.h"
}

#include "kernels/cuda/common.cuh"

__device__ static int64_t keys_of(const PaddedPairs &p, int64_t pair) {
    return slice_before(&p.key, p.keys, p.lengths[pair / p.groups]);
}

static __global__ void put_lengths(const PaddedPairs p, int32_t *queries, int32_t *keys) {
    GRID_LOOP(i, p.count) {
        queries[i] = (int32_t)p.queries;
        keys[i] = (int32_t)keys_of(p, p.first + i);
    }
}

/* A tensor [pair,heads,rows,width] with any strides. Each thread block clears one pair. */
struct Blind {
    Cells cells;
    int64_t sample, group, head, row, heads, rows, width;
};
template <typename R> static __global__ void clear_blind(const PaddedPairs p, const Blind x, R value) {
    const int64_t pair = p.first + blockIdx.x;
    if (keys_of(p, pair) > 0) return;
    for (int64_t i = threadIdx.x; i < x.heads * x.rows * x.width; i += blockDim.x)
        x.cells.put(pair / p.groups * x.sample + pair % p.groups * x.group + i / (x.rows * x.width) * x.head +
                        i / x.width % x.rows * x.row + i % x.width,
                    value);
}

extern "C" void attention_put_lengths(const Call *c, const PaddedPairs *p, int32_t *queries, int32_t *keys) {
    put_lengths<<<grid_for(c, p->count, 256), 256, 0, stream_of(c)>>>(*p, queries, keys);
    LAUNCHED();
}

extern "C" void attention_clear_blind(const Call *c, const PaddedPairs *p, const Tensor *x) {
    if (!x || !tensor_count(x)) return;
    const Blind blind = {cells(x),     x->stride[1], x->stride[2], x->stride[3],
                         x->stride[0], x->dim[3],    x->dim[0],    x->dim[4]};
    clear_blind<<<(unsigned)p->count, 256, 0, stream_of(c)>>>(*p, blind, 0.0f);
    LAUNCHED();
}

extern "C" void attention_clear_blind_lse(const Call *c, const PaddedPairs *p, const Tensor *lse) {
    const Blind blind = {cells(lse),     lse->stride[0], lse->stride[1], lse->stride[2],
                         lse->stride[3], lse->dim[2],    lse->dim[3],    1};
    clear_blind<<<(unsigned)p->count, 256, 0, stream_of(c)>>>(*p, blind, -INFINITY);
    LAUNCHED();
}
