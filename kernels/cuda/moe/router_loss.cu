/* Computes the ops of kernels/cpu/router_loss.c, with one token per warp. The sums of the thread blocks are
 * added in double. loss is written; dlogits is written or accumulated. */
#include "kernels/cuda/moe/router.cuh"

enum { THREADS = 256, PARTS = 1024 };

typedef struct Loss {
    Cells logits;
    const double *count,
        /* [groups, experts]: the coefficients of the probabilities in the loss; NULL for the z loss */
        *share;
    int64_t tokens, groups, samples;
    double all_tokens;
    int experts;
    RouterScore score;
} Loss;

static Loss loss_of(const Call *c, const Tensor *count) {
    const RouterLossAttr *a = (const RouterLossAttr *)c->attr;
    const Tensor *logits = c->in[0];
    CHECK((a->kind == ROUTER_Z) == !count, "the balance loss needs counts, and the z-loss must have none");
    CHECK(!count || count->dtype == F64, "the counts are %s, not F64", dtype_name((DType)count->dtype));
    Loss l = {cells(logits), data_of<double>(count), NULL, tensor_rows(logits), count ? count->dim[0] : 0};
    l.samples = logits->dim[1];
    l.all_tokens = (double)(l.tokens * a->ranks);
    l.experts = (int)tensor_width(logits);
    l.score = a->score;
    return l;
}

/* ---- shares ---- */

static size_t share_bytes(const Tensor *count) {
    return count ? router_bytes((size_t)tensor_count(count) * sizeof(double)) : 0;
}

/* Each block processes one group (all samples, or one sample). */
static __global__ void shares(Loss l, double *share) {
    __shared__ double room[32];
    const int64_t from = (int64_t)blockIdx.x * l.experts;
    double sum = 0; /* exact, because the summands are integers */
    for (int e = threadIdx.x; e < l.experts; e += blockDim.x) sum += l.count[from + e];
    sum = block_sum(sum, room);
    for (int e = threadIdx.x; e < l.experts; e += blockDim.x)
        share[from + e] = l.count[from + e] / sum * (double)l.experts / l.all_tokens;
}

static void make_shares(const Call *c, Loss *l, double *share) {
    if (!l->count) return;
    shares<<<(unsigned)l->groups, 128, 0, stream_of(c)>>>(*l, share);
    LAUNCHED();
    l->share = share;
}

__device__ __forceinline__ const double *share_of(const Loss &l, int64_t token) {
    return l.share + (l.groups > 1 ? token % l.samples * l.experts : 0);
}

/* Writes the probabilities to p. Returns their sum before normalization, or 1 for a softmax. */
template <typename R> __device__ __forceinline__ R probabilities(const Loss &l, int64_t token, R *p) {
    router_load(l.logits, token * l.experts, l.experts, p);
    if (!router_normalises(l.score)) {
        router_softmax(p, l.experts);
        return 1;
    }
    R sum = (R)ROUTER_EPSILON;
    router_scores(l.score, p, l.experts);
#pragma unroll 8
    for (int e = 0; e < l.experts; e++) sum += p[e];
    __syncwarp();
    for (int e = threadIdx.x % 32; e < l.experts; e += 32) p[e] /= sum;
    __syncwarp();
    return sum;
}

/* Returns the logsumexp of the token's logits. p becomes exp(logits - max), and *sum becomes the sum of these
 * exponentials. */
template <typename R> __device__ __forceinline__ R logsumexp(const Loss &l, int64_t token, R *p, R *sum) {
    R max;
    router_load(l.logits, token * l.experts, l.experts, p);
    *sum = router_exp_sum(p, l.experts, &max);
    return max + log(*sum);
}

/* ---- loss ---- */

template <typename R> static __global__ void sum_tokens(Loss l, double *part, size_t bytes) {
    __shared__ double room[32];
    R *p = router_room<R>(bytes);
    double loss = 0;
    WARP_LOOP(t, l.tokens) {
        if (l.share) {
            const double *share = share_of(l, t);
            probabilities(l, t, p);
            for (int e = threadIdx.x % 32; e < l.experts; e += 32) loss += share[e] * (double)p[e];
        } else {
            R sum;
            const double lse = (double)logsumexp(l, t, p, &sum);
            if (threadIdx.x % 32 == 0) loss += lse * lse / l.all_tokens;
        }
        __syncwarp();
    }
    loss = block_sum(loss, room);
    if (threadIdx.x == 0) part[blockIdx.x] = loss;
}

static __global__ void sum_parts(const double *part, int parts, double *loss) {
    __shared__ double room[32];
    double sum = 0;
    for (int i = threadIdx.x; i < parts; i += blockDim.x) sum += part[i];
    sum = block_sum(sum, room);
    if (threadIdx.x == 0) *loss = sum;
}

extern "C" size_t cuda_plans_router_loss(const Call *c) {
    return share_bytes(c->in[1]) + PARTS * sizeof(double);
}

extern "C" void cuda_router_loss(const Call *c) {
    Loss l = loss_of(c, c->in[1]);
    CHECK(c->out[0]->dtype == F64, "router_loss: the loss is %s, not F64",
          dtype_name((DType)c->out[0]->dtype));
    double *part = (double *)cuda_scratch(c->device, cuda_plans_router_loss(c));
    make_shares(c, &l, part + PARTS);
    const int64_t want = ceil_div(l.tokens, WARPS);
    const unsigned parts = (unsigned)(want < 1 ? 1 : want < PARTS ? want : PARTS);
    REAL_SWITCH(lead_type(c), const size_t bytes = router_bytes((size_t)l.experts * sizeof(R));
                const int warps = warps_that_fit(l.experts, 0, bytes);
                sum_tokens<R><<<parts, 32 * warps, warps * bytes, stream_of(c)>>>(l, part, bytes));
    LAUNCHED();
    sum_parts<<<1, THREADS, 0, stream_of(c)>>>(part, (int)parts, data_of<double>(c->out[0]));
    LAUNCHED();
}

/* ---- gradient ---- */

/* The gradient of a logit is (the expert's share - the mean share) * slope * dloss. The mean is weighted by
 * the probabilities. */
template <typename R>
__device__ __forceinline__ void balance_grad(const Loss &l, int64_t t, double dloss, R *p,
                                             const Cells &dlogits, bool add) {
    const double *share = share_of(l, t);
    const R sum = probabilities(l, t, p);
    /* Every lane computes the mean over all experts. The mean is a double, because its rounding error matters
     * if the shares are nearly equal. */
    double mean = 0;
#pragma unroll 4
    for (int e = 0; e < l.experts; e++) mean += share[e] * (double)p[e];
    for (int e = threadIdx.x % 32; e < l.experts; e += 32) {
        const R slope = router_normalises(l.score) ? router_slope(l.score, p[e] * sum, p[e]) : p[e];
        dlogits.put_or_add(t * l.experts + e, (R)(dloss * (share[e] - mean)) * slope, add);
    }
}

template <typename R>
__device__ __forceinline__ void z_grad(const Loss &l, int64_t t, double dloss, R *p, const Cells &dlogits,
                                       bool add) {
    R sum;
    const R lse = logsumexp(l, t, p, &sum), factor = (R)(2 * dloss / l.all_tokens) * lse;
    for (int e = threadIdx.x % 32; e < l.experts; e += 32)
        dlogits.put_or_add(t * l.experts + e, factor * (p[e] / sum), add);
}

template <typename R>
static __global__ void router_loss_grad(Loss l, const double *dloss, Cells dlogits, bool add, size_t bytes) {
    R *p = router_room<R>(bytes);
    WARP_LOOP(t, l.tokens) {
        if (l.share)
            balance_grad(l, t, *dloss, p, dlogits, add);
        else
            z_grad(l, t, *dloss, p, dlogits, add);
        __syncwarp();
    }
}

extern "C" size_t cuda_plans_router_loss_grad(const Call *c) { return share_bytes(c->in[2]); }

extern "C" void cuda_router_loss_grad(const Call *c) {
    Loss l = loss_of(c, c->in[2]);
    CHECK(c->in[1]->dtype == F64, "router_loss_grad: dloss is %s, not F64",
          dtype_name((DType)c->in[1]->dtype));
    if (!l.tokens) return;
    make_shares(c, &l, (double *)cuda_scratch(c->device, share_bytes(c->in[2])));
    REAL_SWITCH(lead_type(c), const size_t bytes = router_bytes((size_t)l.experts * sizeof(R));
                const int warps = warps_that_fit(l.experts, 0, bytes); router_loss_grad<R>
                <<<grid_for(c, l.tokens, warps), 32 * warps, warps * bytes, stream_of(c)>>>(
                    l, data_of<double>(c->in[1]), cells(c->out[0]), accumulates(c->out[0]), bytes));
    LAUNCHED();
}
