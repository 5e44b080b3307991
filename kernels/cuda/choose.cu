/* Computes the op of kernels/cpu/choose.c. Each block processes one row. */
#include "kernels/choice.h"
#include "kernels/cuda/pdl.cuh"
#include "kernels/cuda/vector_math.cuh"
#include "kernels/cuda/vectors.cuh"

#include <limits.h>

enum { THREADS = 1024, WARPS = THREADS / 32, DIGIT = 11, BUCKETS = 1 << DIGIT, LISTED = 2048 };
static_assert(BUCKETS == 2 * THREADS && WARPS == 32,
              "each thread has two buckets, and each lane represents one warp");

/* Maps numbers to positive integers without changing their order. */
template <typename R> struct Order;
template <> struct Order<float> {
    typedef uint32_t Key;
    __device__ static __forceinline__ Key key(float x) {
        const Key bits = __float_as_uint(__fadd_rn(x, 0.0f)); /* -0 becomes 0 */
        return bits >> 31 ? ~bits : bits | 1u << 31;
    }
    __device__ static __forceinline__ float number(Key k) {
        return __uint_as_float(k >> 31 ? k ^ 1u << 31 : ~k);
    }
};
template <> struct Order<double> {
    typedef uint64_t Key;
    __device__ static __forceinline__ Key key(double x) {
        const Key bits = (Key)__double_as_longlong(__dadd_rn(x, 0.0));
        return bits >> 63 ? ~bits : bits | (Key)1 << 63;
    }
    __device__ static __forceinline__ double number(Key k) {
        return __longlong_as_double((long long)(k >> 63 ? k ^ (Key)1 << 63 : ~k));
    }
};

/* An element and its index. The better of two elements is the larger one; if they are equal, the earlier
 * element is better. */
template <typename R> struct Best {
    R x;
    int i; /* INT_MAX if there is no element */

    __device__ __forceinline__ void take_from_lanes() {
#pragma unroll
        for (int k = 16; k > 0; k /= 2) {
            const R y = __shfl_xor_sync(0xffffffffu, x, k);
            const int j = __shfl_xor_sync(0xffffffffu, i, k);
            if (y > x || (y == x && j < i)) x = y, i = j;
        }
    }
};

template <typename R> struct Room {
    unsigned long long bucket[BUCKETS], sum[WARPS], before;
    typename Order<R>::Key list[LISTED];
    Best<R> best[WARPS];
    int count[WARPS], listed, found;
};

/* Returns the sum of x over all lanes up to and including the calling lane. */
template <typename I> __device__ __forceinline__ I sum_to_lane(I x) {
#pragma unroll
    for (int k = 1; k < 32; k *= 2) {
        const I y = __shfl_up_sync(0xffffffffu, x, k);
        if (threadIdx.x % 32 >= k) x += y;
    }
    return x;
}

/* This function is not inlined, because compiling a copy for every use would take too long. */
static __device__ __noinline__ unsigned long long weight_of(double x, double scale) {
    return __double2ull_rn(vector_exp(x) * scale);
}

/* Chooses a token from a row with all threads of a block. */
template <typename T> struct Chooser {
    typedef Real<T> R;
    typedef typename Order<R>::Key Key;
    static constexpr int N = VEC<T>;
    typedef unsigned long long Sum;

    const T *x;
    int n;
    bool aligned;
    double scale, top, rate, least;
    Room<R> &room;
    /* The key of the least likely tokens that are kept. Only the first `ties` tokens with this key are kept. */
    Key edge = 0;
    int ties = INT_MAX;

    static __device__ __forceinline__ Key key_of(R y) { return Order<R>::key(y); }

    /* Returns the weight of a token with the logit y, as if all tokens with the key `edge` were kept. */
    __device__ __forceinline__ Sum weight(R y) const {
        const double s = ((double)y - top) * rate;
        return s < least || key_of(y) < edge ? 0 : weight_of(s, scale);
    }

    template <typename F> __device__ __forceinline__ void each(F f) const {
#pragma unroll 2
        for (int i = threadIdx.x; i < (n + N - 1) / N; i += THREADS) {
            const Run<T, N> run = load_run<T, N>(x, (int64_t)i * N, n, aligned);
#pragma unroll
            for (int k = 0; k < N; k++)
                if (i * N + k < n) f((R)run.get(k), i * N + k);
        }
    }

    __device__ __forceinline__ void clear_buckets() {
        __syncthreads();
        room.bucket[threadIdx.x] = room.bucket[THREADS + threadIdx.x] = 0;
        __syncthreads();
    }
    __device__ __forceinline__ Sum sum_of_buckets() {
        __syncthreads();
        return block_sum<Sum>(room.bucket[threadIdx.x] + room.bucket[THREADS + threadIdx.x], room.sum);
    }

    /* Returns the bucket at which the running sum first exceeds the limit. The sum starts at `before`;
     * `before` becomes the sum over all earlier buckets. */
    __device__ __forceinline__ int find(Sum limit, Sum &before) {
        const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
        __syncthreads();
        const Sum a = room.bucket[2 * threadIdx.x], b = room.bucket[2 * threadIdx.x + 1],
                  upto = sum_to_lane(a + b);
        if (lane == 31) room.sum[warp] = upto;
        __syncthreads();
        const Sum warps = sum_to_lane((Sum)room.sum[lane]),
                  first = before + __shfl_sync(0xffffffffu, warps - room.sum[lane], warp) + upto - a - b;
        if (first <= limit && limit < first + a + b) {
            const bool second = limit >= first + a;
            room.found = 2 * threadIdx.x + second, room.before = second ? first + a : first;
        }
        __syncthreads();
        before = room.before;
        return room.found;
    }

    /* Computes the same result as keep() in kernels/cpu/choose.c. First sums the sizes (1 or weights) of tokens in
     * buckets of nearby logits. Next, lists the keys in the bucket that contains the last kept token, and finds that
     * token's key digit by digit. */
    template <bool COUNTS> __device__ void keep(int64_t top_k, double top_p) {
        const double step = (COUNTS ? 1 : rate) * (BUCKETS / 32);
        const auto size = [&](R y) -> Sum { return COUNTS ? 1 : weight(y); };
        const auto bucket_of = [&](R y) {
            const double at = (top - (double)y) * step;
            return at < BUCKETS - 1 ? (int)at : BUCKETS - 1;
        };
        clear_buckets();
        each([&](R y, int) {
            const Sum s = size(y);
            if (s) atomicAdd(&room.bucket[bucket_of(y)], s);
        });
        const Sum total = sum_of_buckets(), limit = COUNTS ? (Sum)top_k - 1 : choice_part(top_p, total);
        if (limit >= total) return;
        Sum before = 0;
        const int bucket = find(limit, before);
        if (threadIdx.x == 0) room.listed = 0;
        __syncthreads();
        each([&](R y, int) {
            if (bucket_of(y) != bucket) return;
            const int i = atomicAdd(&room.listed, 1);
            if (i < LISTED) room.list[i] = key_of(y);
        });
        Key known = 0, mask = 0;
        for (int left = 8 * sizeof(Key); left > 0;) {
            const int bits = left < DIGIT ? left : DIGIT, most = (1 << bits) - 1;
            left -= bits;
            const auto add = [&](Key k, R y) {
                if ((k & mask) == known) atomicAdd(&room.bucket[most - (int)(k >> left & most)], size(y));
            };
            clear_buckets();
            if (room.listed <= LISTED)
                for (int i = threadIdx.x; i < room.listed; i += THREADS)
                    add(room.list[i], Order<R>::number(room.list[i]));
            else
                each([&](R y, int) {
                    if (bucket_of(y) == bucket) add(key_of(y), y);
                });
            known |= (Key)(most - find(limit, before)) << left, mask |= (Key)most << left;
        }
        const Sum same = COUNTS ? (Sum)INT_MAX : (limit - before) / size(Order<R>::number(known)) + 1;
        edge = known, ties = same < INT_MAX ? (int)same : INT_MAX;
    }

    /* Finds the first token, in order of ids, at which the running sum of weights exceeds `uniform` times the
     * total. Each warp sums one part of the row; the part that contains the token is then divided among the
     * warps again, and so on. */
    __device__ int draw(double uniform) {
        const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
        const Sum same = edge ? weight(Order<R>::number(edge)) : 0;
        int first = 0, length = n, past = 0; /* past: number of tokens before `first` whose key is `edge` */
        Sum before = 0, target = 0;
        do {
            const bool whole = length == n;
            const int part = (length + WARPS - 1) / WARPS, begin = first + warp * part,
                      end = (int)least_of(begin + part, first + length);
            Sum above = 0;
            int equal = 0;
#pragma unroll 4
            for (int i = begin + lane; i < end; i += 32) {
                const R y = to_real<R>(x[i]);
                const Key k = key_of(y);
                above += k > edge ? weight(y) : 0, equal += k == edge;
            }
            above = warp_sum(above), equal = warp_sum(equal);
            __syncthreads();
            if (lane == 0) room.sum[warp] = above, room.count[warp] = equal;
            __syncthreads();
            equal = room.count[lane]; /* from here on, each lane processes one part */
            const int seen = past + sum_to_lane(equal) - equal,
                      kept = (int)least_of(ties > seen ? ties - seen : 0, equal);
            const Sum sum = room.sum[lane] + kept * same, upto = before + sum_to_lane(sum);
            if (whole) {
                const Sum total = __shfl_sync(0xffffffffu, upto, 31);
                target = choice_part(uniform, total);
                if (target == total) target--;
            }
            const int found = __ffs((int)__ballot_sync(0xffffffffu, upto > target)) - 1;
            before = __shfl_sync(0xffffffffu, upto - sum, found),
            past = __shfl_sync(0xffffffffu, seen, found);
            length = (int)least_of(part, length - found * part), first += found * part;
        } while (length > 1);
        return first;
    }

    __device__ int choose(const ChoiceRow &how) {
        if (how.top_k > 0 && how.top_k < n) keep<true>(how.top_k, 0);
        if (how.top_p > 0) keep<false>(0, how.top_p);
        return draw(how.uniform);
    }

    __device__ Sum sum_of_weights() {
        Sum sum = 0;
        rate = 1, least = -INFINITY, edge = 0;
        each([&](R y, int) { sum += weight(y); });
        return block_sum(sum, room.sum);
    }

  private:
    static __device__ __forceinline__ int least_of(int a, int b) { return a < b ? a : b; }
};

template <typename T>
static __global__ void __launch_bounds__(THREADS)
    choose_tokens(const T *x, int64_t width, int n, bool aligned, double scale, const ChoiceRow *rows,
                  Chosen *out, DeviceAssert *failure, const char *message) {
    typedef Real<T> R;
    __shared__ Room<R> room;
    start_pdl();
    const ChoiceRow how = rows[blockIdx.x];
    Chooser<T> c = {x + blockIdx.x * width, n, aligned, scale, 0, how.rate, how.least, room};
    Best<R> best = {-(R)INFINITY, INT_MAX};
    R outside = 0; /* NaN if an element is not finite */
    c.each([&](R y, int i) {
        outside += y * 0;
        if (y > best.x) best.x = y, best.i = i;
    });
    const bool finite = __syncthreads_and(outside == 0);
    best.take_from_lanes();
    if (threadIdx.x % 32 == 0) room.best[threadIdx.x / 32] = best;
    __syncthreads();
    best = room.best[threadIdx.x % 32];
    best.take_from_lanes();
    Chosen choice = {-1, 0, 0, 0};
    if (finite) {
        c.top = best.x;
        choice.token = how.known ? how.token : how.rate > 0 && how.top_k != 1 ? c.choose(how) : best.i;
        if (choice.token < 0 || choice.token >= n) {
            raise_assert(failure, message, choice.token, n);
            return;
        }
        choice.logit = (double)to_real<R>(c.x[choice.token]), choice.top = best.x;
        if (how.sums) choice.sum = c.sum_of_weights();
    }
    if (threadIdx.x == 0) out[blockIdx.x] = choice;
}

extern "C" void cuda_choose(const Call *c) {
    const Tensor *x = c->in[0];
    const int64_t n = ((const ChooseAttr *)c->attr)->n, width = tensor_width(x), rows = tensor_rows(x);
    CHECK(n > 0 && n <= width && width <= INT_MAX, "choose: n is %lld, but a row has %lld elements",
          (long long)n, (long long)width);
    if (!rows) return;
    STORAGE_SWITCH(x->dtype, launch_pdl(c, dim3((unsigned)rows), dim3(THREADS), 0, choose_tokens<T>,
                                        (const T *)data_of<T>(x), width, (int)n, rows_are_aligned(x),
                                        choice_scale(n), (const ChoiceRow *)ids_of(c->in[1]),
                                        (Chosen *)data_of<int64_t>(c->out[0]), cuda_of(c->device)->failure,
                                        "choose: token %lld is outside the vocabulary of size %lld"));
}
