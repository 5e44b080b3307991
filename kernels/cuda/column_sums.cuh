/* Adds partial sums of columns in a fixed order. The order depends only on the number of rows. */
#pragma once

#include "kernels/cuda/pdl.cuh"

/* Columns offset, offset + 1, ... of the partial sums belong to the elements of `out`, which is written or accumulated.
 * If `out` is [n,taps], its columns are those of its transpose [taps,n]. */
struct ColumnSum {
    const Tensor *out; /* NULL if not needed */
    int64_t offset, taps;
};

template <typename R> struct ColumnSums {
    enum { OUTPUTS = 3 };
    const R *partial; /* `rows` rows, whose starts are `stride` elements apart */
    int64_t rows, stride;
    struct {
        Cells out;
        bool add;
        int64_t offset, n, taps;
    } to[OUTPUTS];
};

/* A thread adds every SUM_PARTS-th row, with SUM_LOADS loads in flight. */
enum { SUM_COLUMNS = 32, SUM_PARTS = 16, SUM_LOADS = 10 };
template <typename R>
static __global__ void __launch_bounds__(SUM_COLUMNS *SUM_PARTS) column_sums(ColumnSums<R> p) {
    __shared__ R part[SUM_PARTS][SUM_COLUMNS];
    const auto &to = p.to[blockIdx.y];
    const int64_t column = (int64_t)blockIdx.x * SUM_COLUMNS + threadIdx.x, n = to.n / to.taps,
                  at = column % n * to.taps + column / n;
    const bool writes = threadIdx.y == 0 && column < to.n;
    const R *from = p.partial + to.offset + column;
    R old = 0, sum = 0;
    start_pdl();
    if (writes && to.add) old = to.out.template get<R>(at);
    for (int64_t row = threadIdx.y; row < p.rows; row += SUM_PARTS * SUM_LOADS) {
        R v[SUM_LOADS];
#pragma unroll
        for (int i = 0; i < SUM_LOADS; i++) {
            const int64_t r = row + i * SUM_PARTS;
            v[i] = column < to.n && r < p.rows ? from[r * p.stride] : (R)0;
        }
#pragma unroll
        for (int i = 0; i < SUM_LOADS; i++) sum += v[i];
    }
    part[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    if (!writes) return;
#pragma unroll
    for (int i = 1; i < SUM_PARTS; i++) sum += part[i][threadIdx.x];
    to.out.put(at, to.add ? old + sum : sum);
}

/* Must be called after the launch of the kernel that writes `partial`. */
template <typename R>
static void sum_columns(const Call *c, const R *partial, int64_t rows, int64_t stride, ColumnSum x,
                        ColumnSum y = {}, ColumnSum z = {}) {
    ColumnSums<R> p = {partial, rows, stride};
    unsigned outputs = 0;
    int64_t most = 0;
    for (const ColumnSum &s : {x, y, z}) {
        const int64_t n = s.out ? tensor_count(s.out) : 0;
        if (n) p.to[outputs++] = {cells(s.out), accumulates(s.out), s.offset, n, s.taps};
        most = n > most ? n : most;
    }
    if (!outputs) return;
    /* Without this setting, a multiprocessor would first have to convert its shared memory back to L1 cache. */
    CUDA_CHECK(cudaFuncSetAttribute(column_sums<R>, cudaFuncAttributePreferredSharedMemoryCarveout,
                                    cudaSharedmemCarveoutMaxShared));
    launch_pdl(c, dim3((unsigned)ceil_div(most, SUM_COLUMNS), outputs), dim3(SUM_COLUMNS, SUM_PARTS), 0,
               column_sums<R>, p);
}
