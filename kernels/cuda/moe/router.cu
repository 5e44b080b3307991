/* Computes the ops of kernels/cpu/router.c, with one token per warp. Experts and probabilities are bitwise
 * equal to the CPU's, because a selection that depends on the last bit would change the loss curve. probs,
 * expert, scores and bias are written; dlogits and count are written or accumulated. */
#include <cooperative_groups.h>

#include "base/philox.h"
#include "kernels/cuda/moe/router.cuh"

enum { THREADS = 256 };

typedef struct Router {
    RouteAttr attr;
    Cells logits;
    int64_t tokens;
    int experts, topk;
} Router;

static Router router(const Call *c, const Tensor *logits, const Tensor *expert) {
    const Router r = {*(const RouteAttr *)c->attr, cells(logits), tensor_rows(logits),
                      (int)tensor_width(logits), (int)tensor_width(expert)};
    return r;
}

template <typename R> __device__ __forceinline__ void scores(const Router &r, int64_t token, R *score) {
    router_load(r.logits, token * r.experts, r.experts, score);
    router_scores(r.attr.score, score, r.experts);
}

/* ---- selection of experts ---- */

/* Returns the index of the first maximum of n values. As in a sequential loop, the result is 0 if the first value is
 * NaN, and any other NaN is ignored. */
template <typename R> __device__ __forceinline__ int first_largest(const R *x, int n) {
    R best = (R)-INFINITY;
    int at = INT_MAX;
    for (int i = threadIdx.x % 32; i < n; i += 32) {
        const R v = x[i] == x[i] ? x[i] : (R)(i ? -INFINITY : INFINITY);
        if (v > best || at == INT_MAX) best = v, at = i;
    }
    for (int k = 16; k > 0; k /= 2) {
        const R other = __shfl_xor_sync(0xffffffffu, best, k);
        const int where = __shfl_xor_sync(0xffffffffu, at, k);
        if (other > best || (other == best && where < at)) best = other, at = where;
    }
    __syncwarp();
    return at;
}

/* Excludes an expert from the selection. */
template <typename R> __device__ __forceinline__ void strike(R *x, int i) {
    if (threadIdx.x % 32 == 0) x[i] = (R)-INFINITY;
    __syncwarp();
}

/* Excludes from `choice` all experts that are not in the best groups. rest [experts], group [groups]. */
template <typename R> __device__ void limit_groups(const Router &r, R *choice, R *rest, R *group) {
    const int size = (int)(r.experts / r.attr.groups), lane = threadIdx.x % 32;
    for (int i = lane; i < r.experts; i += 32) rest[i] = choice[i];
    __syncwarp();
    for (int g = 0; g < r.attr.groups; g++) {
        R sum = 0;
        for (int i = 0; i < r.attr.group_scores; i++) {
            const int best = first_largest(rest + g * size, size);
            sum += rest[g * size + best];
            __syncwarp();
            strike(rest + g * size, best);
        }
        if (lane == 0) group[g] = sum;
    }
    __syncwarp();
    for (int i = lane; i < r.experts; i += 32) rest[i] = choice[i], choice[i] = (R)-INFINITY;
    __syncwarp();
    for (int i = 0; i < r.attr.group_topk; i++) {
        const int best = first_largest(group, (int)r.attr.groups);
        strike(group, best);
        for (int j = lane; j < size; j += 32) choice[best * size + j] = rest[best * size + j];
        __syncwarp();
    }
}

/* Finds the k experts with the largest values, and writes them in ascending order to expert [k]. picked [k]
 * is scratch memory. */
template <typename R> __device__ void choose(int n, int k, R *choice, int *picked, int *expert) {
    const int lane = threadIdx.x % 32;
    for (int j = 0; j < k; j++) {
        const int best = first_largest(choice, n);
        strike(choice, best);
        if (lane == 0) picked[j] = best;
    }
    __syncwarp();
    for (int j = lane; j < k; j += 32) {
        int place = 0;
        for (int i = 0; i < k; i++) place += picked[i] < picked[j] || (picked[i] == picked[j] && i < j);
        expert[place] = picked[j];
    }
    __syncwarp();
}

/* ---- softmax over a band of experts ---- */

/* Returns the same expert, and computes the same shares, as choose_in_band in kernels/cpu/router.c. */
template <typename R> __device__ int choose_in_band(const Router &r, R *rest, R *share) {
    const int n = r.experts, best = first_largest(rest, n), lane = threadIdx.x % 32;
    const R top = rest[best];
    R sum = 0;
    for (int i = lane; i < n; i += 32) {
        const R x = rest[i], size = fabs(x);
        const bool near = x > (R)-INFINITY && !((top - x) / (size > top ? size : top) > (R)r.attr.band);
        share[i] = near ? vector_exp(x - top) : 0;
    }
    __syncwarp();
    for (int i = 0; i < n; i++) sum += share[i];
    __syncwarp();
    for (int i = lane; i < n; i += 32) share[i] /= sum;
    __syncwarp();
    strike(rest, best);
    return best;
}

/* ---- route ---- */

template <typename R> static size_t route_bytes(const Router &r) {
    const size_t n = (size_t)r.experts, k = (size_t)r.topk,
                 limited = r.attr.groups > 1                    ? n + (size_t)r.attr.groups
                           : r.attr.score == ROUTER_SPARSEMIXER ? n
                                                                : 0;
    return router_bytes((2 * n + k + limited) * sizeof(R) + 2 * k * sizeof(int));
}

template <typename R>
static __global__ void route(Router r, Cells select, Cells bias, Cells probs, int64_t *expert, size_t bytes) {
    const int n = r.experts, k = r.topk, lane = threadIdx.x % 32;
    R *score = router_room<R>(bytes), *choice = score + n, *chosen = choice + n, *rest = chosen + k;
    int *picked = (int *)((char *)score + bytes) - 2 * k, *sorted = picked + k;
    WARP_LOOP(token, r.tokens) {
        scores(r, token, score);
        if (r.attr.order == ORDER_SOFTMAX) {
            router_load(r.logits, token * n, n, choice);
            router_softmax(choice, n);
        }
        for (int i = lane; i < n; i += 32) {
            const R compared = r.attr.order == ORDER_LOGITS    ? r.logits.get<R>(token * n + i)
                               : r.attr.order == ORDER_SOFTMAX ? choice[i]
                                                               : score[i],
                    from = select.data ? select.get<R>(token * n + i) : compared;
            choice[i] = bias.data ? from + bias.get<R>(i) : from;
        }
        __syncwarp();
        if (r.attr.groups > 1) limit_groups(r, choice, rest, rest + n);
        choose(n, k, choice, picked, sorted);
        for (int j = lane; j < k; j += 32) {
            chosen[j] = score[sorted[j]];
            expert[token * k + j] = sorted[j];
        }
        __syncwarp();
        R norm = 1;
        if (r.attr.score == ROUTER_TOPK_SOFTMAX) router_softmax(chosen, k);
        for (int j = 0; j < k && r.attr.score == ROUTER_SPARSEMIXER; j++) {
            const int best = choose_in_band(r, score, rest);
            for (int i = lane; i < k; i += 32)
                if (sorted[i] == best) chosen[i] = rest[best];
            __syncwarp();
        }
        if (router_normalises(r.attr.score) && k > 1) {
            norm = 0;
            for (int j = 0; j < k; j++) norm += chosen[j];
            norm += (R)ROUTER_EPSILON;
        }
        for (int j = lane; j < k; j += 32) probs.put(token * k + j, chosen[j] / norm * (R)r.attr.scaling);
        __syncwarp();
    }
}

extern "C" void cuda_route(const Call *c) {
    const Router r = router(c, c->in[0], c->out[1]);
    if (!r.tokens) return;
    REAL_SWITCH(
        lead_type(c), const size_t bytes = route_bytes<R>(r);
        const int warps = warps_that_fit(r.experts, 0, bytes);
        route<R><<<grid_for(c, r.tokens, warps), 32 * warps, warps * bytes, stream_of(c)>>>(
            r, cells(c->in[1]), cells(c->in[2]), cells(c->out[0]), data_of<int64_t>(c->out[1]), bytes));
    LAUNCHED();
}

/* Computes ds of the selected experts from dprobs. Returns the sum of ds weighted by s. Every lane computes
 * all sums. */
template <typename R>
__device__ __forceinline__ R score_grad(const Router &r, const Cells &dprobs, int64_t at, const R *s, R *ds) {
    const int k = r.topk;
    const bool normalised = router_normalises(r.attr.score) && k > 1;
    R sum = normalised ? (R)ROUTER_EPSILON : 1, dot = 0, weighted = 0;
    for (int j = 0; normalised && j < k; j++) sum += s[j];
    for (int j = 0; j < k; j++) dot += dprobs.get<R>(at + j) * s[j];
    for (int j = threadIdx.x % 32; j < k; j += 32) {
        const R d = dprobs.get<R>(at + j);
        ds[j] = (R)r.attr.scaling * (normalised ? (d - dot / sum) / sum : d);
    }
    __syncwarp();
    for (int j = 0; j < k; j++) weighted += ds[j] * s[j];
    return weighted;
}

template <typename R>
static __global__ void route_grad(Router r, Cells dprobs, Cells probs, const int64_t *expert, Cells dlogits,
                                  bool add, size_t bytes) {
    const int n = r.experts, k = r.topk, lane = threadIdx.x % 32;
    const RouterScore kind = r.attr.score;
    R *score = router_room<R>(bytes), *ds = score + n, *chosen = ds + n, *dchosen = chosen + k,
      *share = dchosen + k;
    WARP_LOOP(token, r.tokens) {
        const int64_t *own = expert + token * k;
        if (kind != ROUTER_TOPK_SOFTMAX) scores(r, token, score);
        for (int i = lane; i < n; i += 32) ds[i] = 0;
        for (int j = lane; j < k; j += 32)
            chosen[j] =
                kind == ROUTER_TOPK_SOFTMAX ? probs.get<R>(token * k + j) / (R)r.attr.scaling : score[own[j]];
        __syncwarp();
        const R weighted = score_grad(r, dprobs, token * k, chosen, dchosen);
        for (int j = 0; j < k && kind == ROUTER_SPARSEMIXER; j++) {
            const int best = choose_in_band(r, score, share);
            int place = 0;
            while (place + 1 < k && own[place] != best) place++;
            const R d = (R)r.attr.scaling * dprobs.get<R>(token * k + place) * share[best];
            for (int i = lane; i < n; i += 32) ds[i] += (i == best ? d : 0) - d * share[i];
            __syncwarp();
        }
        for (int j = lane; j < k && kind != ROUTER_SPARSEMIXER;
             /* an expert that was selected twice (because all other logits are -inf) is processed once */
             j += 32)
            if (j == k - 1 || own[j + 1] != own[j])
                ds[own[j]] = kind == ROUTER_TOPK_SOFTMAX ? chosen[j] * (dchosen[j] - weighted) : dchosen[j];
        __syncwarp();
        for (int i = lane; i < n; i += 32) {
            R d = ds[i];
            if (kind == ROUTER_SOFTMAX) d = score[i] * (d - weighted);
            if (router_normalises(kind)) d *= router_slope(kind, score[i], score[i]);
            dlogits.put_or_add(token * n + i, d, add);
        }
        __syncwarp();
    }
}

extern "C" void cuda_route_grad(const Call *c) {
    const Router r = router(c, c->in[1], c->in[3]);
    if (!r.tokens) return;
    REAL_SWITCH(lead_type(c), const size_t share = r.attr.score == ROUTER_SPARSEMIXER ? (size_t)r.experts : 0,
                bytes = router_bytes((2 * (size_t)(r.experts + r.topk) + share) * sizeof(R));
                const int warps = warps_that_fit(r.experts, 0, bytes);
                route_grad<R><<<grid_for(c, r.tokens, warps), 32 * warps, warps * bytes, stream_of(c)>>>(
                    r, cells(c->in[0]), cells(c->in[2]), ids_of(c->in[3]), cells(c->out[0]),
                    accumulates(c->out[0]), bytes));
    LAUNCHED();
}

/* ---- random logits ---- */

template <typename R>
static __global__ void random_logits(Cells x, Cells y, int64_t rows, int64_t samples, int64_t n,
                                     const __grid_constant__ RandomLogitsAttr a) {
    GRID_LOOP(i, rows * n) {
        const int64_t index = random_logits_first(&a, i / n, samples, n) + i % n;
        const double draw = a.std * philox_normal(a.index.seed, a.index.site, (uint64_t)index);
        y.put(i, (a.kind == RANDOM_REPLACES ? (R)0 : x.get<R>(i)) + (R)draw);
    }
}

extern "C" void cuda_random_logits(const Call *c) {
    const int64_t rows = tensor_rows(c->in[0]), n = tensor_width(c->in[0]);
    if (!rows) return;
    REAL_SWITCH(lead_type(c), random_logits<R><<<grid_for(c, rows * n, THREADS), THREADS, 0, stream_of(c)>>>(
                                  cells(c->in[0]), cells(c->out[0]), rows, c->in[0]->dim[1], n,
                                  *(const RandomLogitsAttr *)c->attr));
    LAUNCHED();
}

/* ---- counts ---- */

/* Counts how often each expert is selected in each sample, or in all samples. Integer counts of parts of the
 * positions are computed first, and then added. */
typedef struct Count {
    const int64_t *expert;
    int64_t positions, stride, groups; /* position p of group g is row p * stride + g */
    int topk, experts, parts;
} Count;

static Count count_of(const Call *c) {
    enum { MOST_PARTS = 128 };
    const Tensor *expert = c->in[0], *count = c->out[0];
    const int64_t rows = tensor_rows(expert), groups = count->dim[0] > 1 ? count->dim[0] : 1;
    const int64_t positions = rows / groups, parts = ceil_div(positions, THREADS);
    const Count n = {ids_of(expert),
                     positions,
                     groups,
                     groups,
                     (int)tensor_width(expert),
                     (int)count->dim[1],
                     (int)(parts < 1            ? 1
                           : parts < MOST_PARTS ? parts
                                                : MOST_PARTS)};
    return n;
}

static __global__ void count_choices(Count n, int *part, DeviceAssert *failure, const char *message) {
    extern __shared__ int bins[];
    const int64_t group = blockIdx.x / n.parts, chunk = blockIdx.x % n.parts;
    for (int e = threadIdx.x; e < n.experts; e += blockDim.x) bins[e] = 0;
    __syncthreads();
    for (int64_t p = chunk * blockDim.x + threadIdx.x; p < n.positions; p += (int64_t)n.parts * blockDim.x) {
        const int64_t at = (p * n.stride + group) * n.topk;
        for (int j = 0; j < n.topk; j++) {
            const int64_t e = n.expert[at + j];
            if (e >= 0 && e < n.experts)
                atomicAdd(bins + e, 1);
            else
                raise_assert(failure, message, at + j, e);
        }
    }
    __syncthreads();
    for (int e = threadIdx.x; e < n.experts; e += blockDim.x)
        part[(int64_t)blockIdx.x * n.experts + e] = bins[e];
}

static __global__ void sum_choices(Count n, const int *part, double *count, bool add) {
    GRID_LOOP(i, n.groups * n.experts) {
        const int *own = part + i / n.experts * n.parts * n.experts + i % n.experts;
        int64_t sum = 0;
        for (int k = 0; k < n.parts; k++) sum += own[(int64_t)k * n.experts];
        count[i] = add ? count[i] + (double)sum : (double)sum;
    }
}

extern "C" size_t cuda_plans_expert_count(const Call *c) {
    const Count n = count_of(c);
    return (size_t)(n.groups * n.parts * n.experts) * sizeof(int);
}

extern "C" void cuda_expert_count(const Call *c) {
    const Count n = count_of(c);
    const Tensor *count = c->out[0];
    const size_t shared = (size_t)n.experts * sizeof(int);
    CHECK(count->dtype == F64, "expert_count: the counts are %s, not F64", dtype_name((DType)count->dtype));
    CHECK(shared <= SHARED, "expert_count: there are %d experts, but at most %d can be counted", n.experts,
          SHARED / (int)sizeof(int));
    if (!tensor_count(count)) return;
    int *part = (int *)cuda_scratch(c->device, cuda_plans_expert_count(c));
    count_choices<<<(unsigned)(n.groups * n.parts), THREADS, shared, stream_of(c)>>>(
        n, part, cuda_of(c->device)->failure,
        "expert_count: copy %lld is for expert %lld, which does not exist");
    LAUNCHED();
    sum_choices<<<grid_for(c, n.groups * n.experts, THREADS), THREADS, 0, stream_of(c)>>>(
        n, part, data_of<double>(count), accumulates(count));
    LAUNCHED();
}

/* A single block runs this kernel. */
template <typename R>
static __global__ void expert_bias(Cells bias, const double *count, Cells out, int64_t n, double rate) {
    __shared__ double room[32];
    double sum = 0; /* exact, because the summands are integers */
    for (int64_t i = threadIdx.x; i < n; i += blockDim.x) sum += count[i];
    const double mean = block_sum(sum, room) / (double)n;
    for (int64_t i = threadIdx.x; i < n; i += blockDim.x)
        out.put(i, bias.get<R>(i) + (R)(rate * ((count[i] < mean) - (count[i] > mean))));
}

extern "C" void cuda_expert_bias(const Call *c) {
    const int64_t n = tensor_count(c->in[0]);
    const double rate = ((const ExpertBiasAttr *)c->attr)->rate;
    CHECK(c->in[1]->dtype == F64, "expert_bias: the counts are %s, not F64",
          dtype_name((DType)c->in[1]->dtype));
    if (!n) return;
    REAL_SWITCH(c->in[0]->dtype, expert_bias<R><<<1, THREADS, 0, stream_of(c)>>>(
                                     cells(c->in[0]), data_of<double>(c->in[1]), cells(c->out[0]), n, rate));
    LAUNCHED();
}

/* ---- quantiles ---- */

/* Computes, for each token, the largest biased logit among the experts that the token does not select. Each
 * warp processes one token at a time. */
template <typename R>
static __global__ void thresholds(Cells logits, Cells bias, int64_t tokens, int n, int topk, R *threshold,
                                  size_t bytes) {
    R *choice = router_room<R>(bytes);
    WARP_LOOP(t, tokens) {
        for (int i = threadIdx.x % 32; i < n; i += 32) choice[i] = logits.get<R>(t * n + i) + bias.get<R>(i);
        __syncwarp();
        for (int j = 0; j < topk; j++) strike(choice, first_largest(choice, n));
        const int next = first_largest(choice, n);
        if (threadIdx.x % 32 == 0) threshold[t] = choice[next];
        __syncwarp();
    }
}

/* Maps numbers to unsigned integers without changing their order. */
__device__ __forceinline__ uint32_t ordered(float x) {
    const uint32_t u = __float_as_uint(x);
    return u ^ (u >> 31 ? 0xffffffffu : 0x80000000u);
}
__device__ __forceinline__ uint64_t ordered(double x) {
    const uint64_t u = (uint64_t)__double_as_longlong(x);
    return u ^ (u >> 63 ? ~(uint64_t)0 : (uint64_t)1 << 63);
}
__device__ __forceinline__ float unordered(uint32_t u) {
    return __uint_as_float(u ^ (u >> 31 ? 0x80000000u : 0xffffffffu));
}
__device__ __forceinline__ double unordered(uint64_t u) {
    return __longlong_as_double((long long)(u ^ (u >> 63 ? (uint64_t)1 << 63 : ~(uint64_t)0)));
}

/* For one expert, each block finds the rank-th largest difference between logit and threshold, counting from
 * 0. Each pass determines 8 bits of this difference. */
template <typename R>
static __global__ void quantiles(Cells logits, const R *threshold, int64_t tokens, int n, int64_t rank,
                                 double *out) {
    typedef decltype(ordered((R)0)) Word;
    __shared__ unsigned count[256];
    __shared__ int64_t left;
    __shared__ Word found;
    if (threadIdx.x == 0) left = rank, found = 0;
    for (int shift = 8 * (int)sizeof(Word) - 8; shift >= 0; shift -= 8) {
        for (int i = threadIdx.x; i < 256; i += blockDim.x) count[i] = 0;
        __syncthreads();
        const Word prefix = found;
        for (int64_t t = threadIdx.x; t < tokens; t += blockDim.x) {
            const Word x = ordered(logits.get<R>(t * n + blockIdx.x) - threshold[t]);
            if (((x ^ prefix) >> shift) < 256) atomicAdd(count + (x >> shift & 255), 1u);
        }
        __syncthreads();
        if (threadIdx.x == 0) {
            int digit = 255;
            for (; count[digit] <= left; digit--) left -= count[digit];
            found = prefix | (Word)digit << shift;
        }
        __syncthreads();
    }
    if (threadIdx.x) return;
    out[blockIdx.x] = -(double)unordered(found);
    if (blockIdx.x == 0) out[n] = 1;
}

extern "C" size_t cuda_plans_quantile(const Call *c) {
    return (size_t)tensor_rows(c->in[0]) * sizeof(double);
}

extern "C" void cuda_quantile(const Call *c) {
    const int64_t tokens = tensor_rows(c->in[0]), n = tensor_width(c->in[0]),
                  topk = ((const QuantileAttr *)c->attr)->topk;
    void *threshold = cuda_scratch(c->device, cuda_plans_quantile(c));
    REAL_SWITCH(lead_type(c), const size_t bytes = router_bytes((size_t)n * sizeof(R));
                const int warps = warps_that_fit(n, 0, bytes);
                thresholds<R><<<grid_for(c, tokens, warps), 32 * warps, warps * bytes, stream_of(c)>>>(
                    cells(c->in[0]), cells(c->in[1]), tokens, (int)n, (int)topk, (R *)threshold, bytes);
                LAUNCHED(); quantiles<R><<<(unsigned)n, THREADS, 0, stream_of(c)>>>(
                    cells(c->in[0]), (const R *)threshold, tokens, (int)n, tokens * topk / n,
                    data_of<double>(c->out[0])));
    LAUNCHED();
}

static __global__ void quantile_bias(Cells bias, const double *sum, Cells out, int64_t n, double ema) {
    __shared__ double room[32];
    double mean = 0;
    for (int64_t e = threadIdx.x; e < n; e += blockDim.x)
        mean += quantile_step(ema, bias.get<double>(e), sum, e, n) / (double)n;
    mean = block_sum(mean, room);
    for (int64_t e = threadIdx.x; e < n; e += blockDim.x)
        out.put(e, quantile_step(ema, bias.get<double>(e), sum, e, n) - mean);
}

extern "C" void cuda_quantile_bias(const Call *c) {
    quantile_bias<<<1, THREADS, 0, stream_of(c)>>>(cells(c->in[0]), data_of<double>(c->in[1]),
                                                   cells(c->out[0]), tensor_count(c->in[0]),
                                                   ((const QuantileBiasAttr *)c->attr)->ema);
    LAUNCHED();
}

/* ---- sinkhorn ---- */

/* The number of iterations depends on the values, so a cooperative kernel runs the entire loop. */
typedef struct Sinkhorn {
    Cells logits, scores;
    int64_t tokens;
    int experts;
    /* d0 is [tokens]. part is [2, blocks, experts] and contains the blocks' sums. The iterations use the two
     * halves of part alternately, because slow blocks may still read one half while fast blocks write the other
     * half. */
    double *d0, *part;
} Sinkhorn;

enum { SINKHORN_BLOCKS = 128 };

static int64_t sinkhorn_blocks(int64_t tokens) {
    const int64_t want = ceil_div(tokens, 4 * WARPS);
    return want < SINKHORN_BLOCKS ? want : SINKHORN_BLOCKS;
}

/* Computes the experts' new scales from the sums of all blocks. Returns this thread's contribution to the
 * mean change of the scales. */
__device__ __forceinline__ double rescale(const Sinkhorn &s, const double *part, double *d1) {
    double change = 0;
    for (int i = threadIdx.x; i < s.experts; i += blockDim.x) {
        double sum = 0;
#pragma unroll 8
        for (unsigned k = 0; k < gridDim.x; k++) sum += part[(int64_t)k * s.experts + i];
        const double next = 1 / ((double)s.experts * (sum + 1e-8));
        change += fabs(next - d1[i]) / (double)s.experts;
        d1[i] = next;
    }
    return change;
}

static __global__ void sinkhorn(Sinkhorn s) {
    extern __shared__ double shared[];
    const int n = s.experts, lane = threadIdx.x % 32, warps = blockDim.x / 32;
    double *room = shared, *d1 = room + 32, *sums = d1 + n, *sum = sums + threadIdx.x / 32 * n,
           *cost = sum + warps * n;
    double change = INFINITY;
    cooperative_groups::grid_group grid = cooperative_groups::this_grid();
    for (int i = threadIdx.x; i < n; i += blockDim.x) d1[i] = 1;
    for (int turn = 0; change > 1e-4; turn = 1 - turn) {
        __syncthreads();
        for (int i = lane; i < n; i += 32) sum[i] = 0;
        WARP_LOOP(t, s.tokens) {
            double row = 0;
            for (int i = lane; i < n; i += 32) {
                cost[i] = exp(s.logits.get<double>(t * n + i));
                row += d1[i] * cost[i];
            }
            const double scale = 1 / ((double)s.tokens * (warp_sum(row) + 1e-8));
            if (lane == 0) s.d0[t] = scale;
            for (int i = lane; i < n; i += 32) sum[i] += scale * cost[i];
        }
        __syncthreads();
        double *part = s.part + (int64_t)turn * gridDim.x * n;
        for (int i = threadIdx.x; i < n; i += blockDim.x) {
            double total = 0;
            for (int k = 0; k < warps; k++) total += sums[k * n + i];
            part[(int64_t)blockIdx.x * n + i] = total;
        }
        grid.sync();
        change = block_sum(rescale(s, part, d1), room);
    }
    __syncthreads();
    WARP_LOOP(t, s.tokens) {
        for (int i = lane; i < n; i += 32)
            s.scores.put(t * n + i, d1[i] * exp(s.logits.get<double>(t * n + i)) * s.d0[t]);
    }
}

extern "C" size_t cuda_plans_sinkhorn(const Call *c) {
    const int64_t tokens = tensor_rows(c->in[0]), n = tensor_width(c->in[0]);
    return (size_t)(tokens + 2 * sinkhorn_blocks(tokens) * n) * sizeof(double);
}

extern "C" void cuda_sinkhorn(const Call *c) {
    const int64_t tokens = tensor_rows(c->in[0]), n = tensor_width(c->in[0]);
    const size_t whole = (size_t)(32 + n) * sizeof(double), each = 2 * (size_t)n * sizeof(double);
    if (!tokens) return;
    const size_t warps = (size_t)warps_that_fit(n, whole, each), bytes = whole + warps * each;
    int each_holds = 0;
    CUDA_CHECK(
        cudaOccupancyMaxActiveBlocksPerMultiprocessor(&each_holds, sinkhorn, (int)(32 * warps), bytes));
    const int64_t want = sinkhorn_blocks(tokens),
                  together = (int64_t)each_holds * cuda_of(c->device)->multiprocessors;
    double *d0 = (double *)cuda_scratch(c->device, cuda_plans_sinkhorn(c));
    Sinkhorn s = {cells(c->in[0]), cells(c->out[0]), tokens, (int)n, d0, d0 + tokens};
    void *arguments[] = {&s};
    CUDA_CHECK(cudaLaunchCooperativeKernel(sinkhorn, dim3((unsigned)(want < together ? want : together)),
                                           dim3((unsigned)(32 * warps)), arguments, bytes, stream_of(c)));
}
