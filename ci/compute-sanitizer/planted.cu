/* `planted TOOL` runs a kernel with a fault that the given tool of compute-sanitizer must find. If the tool does not
 * find the fault, its verdict on other programs is meaningless. The exit status is 0 despite the fault, so that only
 * the tool's exit status can report the fault. */
#include <cuda_runtime.h>
#include <stdio.h>
#include <string.h>

enum { THREADS = 64, WARP = 32 };

/* For memcheck: the last thread writes past the end of y. */
static __global__ void writes_beyond(const int *, int *y) { y[threadIdx.x + 1] = 1; }

/* For racecheck: a thread reads a value that a thread of the other warp writes, without a barrier. */
static __global__ void races(const int *, int *y) {
    __shared__ int s[THREADS];
    s[threadIdx.x] = y[threadIdx.x];
    y[threadIdx.x] = s[THREADS - 1 - threadIdx.x];
}

/* For synccheck: the first thread of the warp's upper half waits with a mask that does not contain this thread. */
static __global__ void waits_apart(const int *, int *y) {
    const unsigned lower = 0xffff;
    if (threadIdx.x <= WARP / 2) {
        y[threadIdx.x] = 1;
        __syncwarp(lower);
        y[threadIdx.x] += y[threadIdx.x ^ 1];
    }
}

/* For initcheck: the kernel reads x, which has not been initialized. */
static __global__ void reads_nothing(const int *x, int *y) { y[threadIdx.x] = x[threadIdx.x]; }

static const struct {
    const char *tool;
    void (*kernel)(const int *, int *);
} PLANTED[] = {{"memcheck", writes_beyond},
               {"racecheck", races},
               {"synccheck", waits_apart},
               {"initcheck", reads_nothing}};

int main(int argc, char **argv) {
    int *x, *y;
    for (const auto &p : PLANTED) {
        if (argc < 2 || strcmp(argv[1], p.tool)) continue;
        if (cudaMalloc(&x, THREADS * sizeof *x) || cudaMalloc(&y, THREADS * sizeof *y)) break;
        if (cudaMemset(y, 0, THREADS * sizeof *y)) break;
        p.kernel<<<1, THREADS>>>(x, y);
        cudaDeviceSynchronize(); /* a tool may abort the kernel, so an error here is ignored */
        return 0;
    }
    fprintf(stderr, "usage: planted memcheck|racecheck|synccheck|initcheck, on a machine with a GPU\n");
    return 2;
}
