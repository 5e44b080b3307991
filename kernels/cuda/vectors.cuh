/* A run consists of a few adjacent elements that one thread processes. A run that is aligned and inside its
 * row is loaded in 16-byte accesses; other runs are loaded element by element. The same code then processes
 * both kinds of runs, so results do not depend on alignment or on where a row ends. */
#pragma once

#include <string.h>
#include <type_traits>

#include "kernels/cuda/vector_store.cuh"

/* N elements, stored as 32-bit words. Elements are unpacked only when they are used, so that loads of several runs
 * can be in flight simultaneously. */
template <typename T, int N> struct Run {
    static constexpr int WORDS = N * (int)sizeof(T) / 4, V = WORDS < 4 ? WORDS : 4;
    static_assert(WORDS > 0 && WORDS % V == 0, "the words of a run must be a multiple of an access");
    Vec<uint32_t, V> piece[WORDS / V];

    __device__ __forceinline__ uint32_t &word(int i) { return piece[i / V].v[i % V]; }
    __device__ __forceinline__ const uint32_t &word(int i) const { return piece[i / V].v[i % V]; }

    __device__ __forceinline__ T at(int k) const {
        T x;
        if constexpr (sizeof(T) == 2) {
            const uint16_t bits = (uint16_t)(word(k / 2) >> 16 * (k % 2));
            memcpy(&x, &bits, sizeof x);
        } else if constexpr (sizeof(T) == 4) {
            memcpy(&x, &word(k), sizeof x);
        } else {
            const uint64_t bits = (uint64_t)word(2 * k + 1) << 32 | word(2 * k);
            memcpy(&x, &bits, sizeof x);
        }
        return x;
    }
    __device__ __forceinline__ void set(int k, T x) {
        if constexpr (sizeof(T) == 2) {
            uint16_t bits;
            memcpy(&bits, &x, sizeof x);
            word(k / 2) =
                k % 2 ? (word(k / 2) & 0xffffu) | (uint32_t)bits << 16 : (word(k / 2) & 0xffff0000u) | bits;
        } else if constexpr (sizeof(T) == 4) {
            memcpy(&word(k), &x, sizeof x);
        } else {
            uint64_t bits;
            memcpy(&bits, &x, sizeof x);
            word(2 * k) = (uint32_t)bits, word(2 * k + 1) = (uint32_t)(bits >> 32);
        }
    }
    __device__ __forceinline__ Real<T> get(int k) const {
        if constexpr (sizeof(T) == 2 && !is_half) /* bf16 is the upper half of a float */
            return __uint_as_float(k % 2 ? word(k / 2) & 0xffff0000u : word(k / 2) << 16);
        else
            return to_real<Real<T>>(at(k));
    }
    __device__ __forceinline__ void put(int k, Real<T> x) { set(k, from_real<T>(x)); }
    __device__ __forceinline__ void clear() {
#pragma unroll
        for (int i = 0; i < WORDS; i++) word(i) = 0;
    }
    /* Sets all elements, two 16-bit elements per instruction. */
    __device__ __forceinline__ void fill(const Real<T> *x) {
        if constexpr (sizeof(T) == 2) {
#pragma unroll
            for (int i = 0; i < N / 2; i++) {
                Pair both;
                if constexpr (is_half)
                    both = __floats2half2_rn(x[2 * i], x[2 * i + 1]);
                else
                    both = __floats2bfloat162_rn(x[2 * i], x[2 * i + 1]);
                memcpy(&word(i), &both, sizeof both);
            }
        } else {
#pragma unroll
            for (int k = 0; k < N; k++) put(k, x[k]);
        }
    }
    /* Returns the largest element that is not NaN, or NaN if all elements are NaN. */
    __device__ __forceinline__ Real<T> largest() const {
        if constexpr (sizeof(T) == 2) {
            Run<T, 2> best;
            best.word(0) = word(0);
#pragma unroll
            for (int i = 1; i < N / 2; i++) {
                Pair a, b;
                memcpy(&a, &best.word(0), sizeof a), memcpy(&b, &word(i), sizeof b);
                a = __hmax2(a, b);
                memcpy(&best.word(0), &a, sizeof a);
            }
            return fmax(best.get(0), best.get(1));
        } else {
            Real<T> best = get(0);
#pragma unroll
            for (int k = 1; k < N; k++) best = fmax(best, get(k));
            return best;
        }
    }

  private:
    static constexpr bool is_half = std::is_same<T, fp16>::value;
    typedef typename std::conditional<is_half, __half2, __nv_bfloat162>::type Pair;
};

/* Loads elements [first, first + N) of a row of n elements. Elements outside [0, n) are not accessed and
 * become 0. If `aligned` is true, every run inside the row must begin at a multiple of 16 bytes (or of the
 * run's size, if that is smaller). */
template <typename T, int N>
__device__ __forceinline__ Run<T, N> load_run(const T *row, int64_t first, int64_t n, bool aligned) {
    typedef Run<T, N> Many;
    Many run;
    if (aligned && first >= 0 && first + N <= n) {
#pragma unroll
        for (int i = 0; i < Many::WORDS / Many::V; i++)
            run.piece[i] = ((const Vec<uint32_t, Many::V> *)(row + first))[i];
    } else {
        run.clear();
#pragma unroll
        for (int k = 0; k < N; k++)
            if (first + k >= 0 && first + k < n) run.set(k, row[first + k]);
    }
    return run;
}

template <typename T, int N>
__device__ __forceinline__ void store_run(T *row, int64_t first, int64_t n, bool aligned,
                                          const Run<T, N> &run) {
    typedef Run<T, N> Many;
    if (aligned && first >= 0 && first + N <= n) {
#pragma unroll
        for (int i = 0; i < Many::WORDS / Many::V; i++)
            ((Vec<uint32_t, Many::V> *)(row + first))[i] = run.piece[i];
    } else {
#pragma unroll
        for (int k = 0; k < N; k++)
            if (first + k >= 0 && first + k < n) row[first + k] = run.at(k);
    }
}

/* Like load_run. If WHOLE, the row has no part of a run and is aligned, and `first` is not negative. Several loads then
 * have no branch between them. */
template <bool WHOLE, int N, typename T>
__device__ __forceinline__ Run<T, N> load_or_clear(const T *row, int64_t first, int64_t n) {
    typedef Run<T, N> Many;
    if constexpr (!WHOLE) return load_run<T, N>(row, first, n, false);
    Many run;
    if (first < n) {
#pragma unroll
        for (int i = 0; i < Many::WORDS / Many::V; i++)
            run.piece[i] = ((const Vec<uint32_t, Many::V> *)(row + first))[i];
    } else
        run.clear();
    return run;
}

/* Stores what load_or_clear loads. */
template <bool WHOLE, int N, typename T>
__device__ __forceinline__ void store_or_skip(T *row, int64_t first, int64_t n, const Run<T, N> &run) {
    typedef Run<T, N> Many;
    if constexpr (!WHOLE)
        store_run<T, N>(row, first, n, false, run);
    else if (first < n) {
        if constexpr (Many::WORDS == 2)
            store_8(row + first, make_uint2(run.word(0), run.word(1)));
        else
            store_whole((Many *)(row + first), run);
    }
}
