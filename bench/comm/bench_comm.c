/* Bus bandwidth of collectives compared with copies by the same ranks: bench_comm [RANKS], or mpirun -np
 * RANKS bench_comm. Sizes and bandwidths are those of nccl-tests (doc/PERFORMANCE.md there). The size is that
 * of the larger buffer of a rank; bus = size / time * 2 (n - 1) / n for an all-reduce, (n - 1) / n for an
 * all-gather and a reduce-scatter. The roof is a memcpy of that size by every rank at the same time. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "comm/comm.h"

typedef struct Bench {
    Comm *comm;
    Group all;
    char *in, *out;
} Bench;

static const struct {
    const char *name;
    CommKind kind;
} KINDS[] = {{"all_reduce", COMM_ALL_REDUCE},
             {"all_gather", COMM_ALL_GATHER},
             {"reduce_scatter", COMM_REDUCE_SCATTER}};

static void once(const Bench *b, CommKind kind, int64_t bytes) {
    const int64_t n = bytes / (int64_t)sizeof(float);
    comm_run(b->comm, &(CommCall){.kind = kind,
                                  .dtype = F32,
                                  .group = b->all,
                                  .site = "bench",
                                  .in = b->in,
                                  .out = b->out,
                                  .n = kind == COMM_ALL_REDUCE ? n : n / b->all.size});
}

static void copy(const Bench *b, CommKind kind, int64_t bytes) {
    (void)kind;
    memcpy(b->out, b->in, (size_t)bytes);
    __asm__ volatile("" ::: "memory"); /* no copy may be optimised away */
}

typedef void Step(const Bench *, CommKind, int64_t bytes);

/* Seconds of `times` steps on the slowest rank; all ranks get the same. */
static double seconds(const Bench *b, Step *step, CommKind kind, int64_t bytes, int64_t times) {
    double slowest;
    comm_run(b->comm, &(CommCall){.kind = COMM_BARRIER, .group = b->all, .site = "begin"});
    const int64_t start = clock_ns();
    for (int64_t i = 0; i < times; i++) step(b, kind, bytes);
    const double mine = (double)(clock_ns() - start) * 1e-9;
    comm_run(b->comm, &(CommCall){.kind = COMM_ALL_REDUCE,
                                  .reduction = COMM_MAX,
                                  .dtype = F64,
                                  .group = b->all,
                                  .site = "end",
                                  .in = &mine,
                                  .out = &slowest,
                                  .n = 1});
    return slowest;
}

/* The median of five runs of at least 20 ms each. */
static double median(const Bench *b, Step *step, CommKind kind, int64_t bytes) {
    enum { RUNS = 5, WARMUP = 3 };
    double t[RUNS];
    const double first = seconds(b, step, kind, bytes, WARMUP) / WARMUP;
    const int64_t times = 1 + (int64_t)(0.02 / first);
    for (int i = 0; i < RUNS; i++) {
        const double s = seconds(b, step, kind, bytes, times) / (double)times;
        int at = i;
        for (; at > 0 && t[at - 1] > s; at--) t[at] = t[at - 1];
        t[at] = s;
    }
    return t[RUNS / 2];
}

static void bench(void *arg, Comm *comm) {
    enum { SMALLEST = 1 << 10, LARGEST = 64 << 20 };
    const int n = comm_world(comm);
    const Group all = {.size = n, .rank = comm_rank(comm), .n_axes = 1, .axis_size = {n}, .axis_stride = {1}};
    Bench b = {.comm = comm, .all = all, .in = mem_aligned(LARGEST), .out = mem_aligned(LARGEST)};
    memset(b.in, 0, LARGEST), memset(b.out, 0, LARGEST);
    (void)arg;
    if (b.all.rank == 0)
        printf("%d ranks, F32\n%-16s %12s %12s %10s %10s\n", n, "", "bytes", "us", "bus GB/s", "copy GB/s");
    for (size_t k = 0; k < sizeof KINDS / sizeof *KINDS; k++)
        for (int64_t bytes = SMALLEST; bytes <= LARGEST; bytes *= 4) {
            const double s = median(&b, once, KINDS[k].kind, bytes),
                         roof = median(&b, copy, KINDS[k].kind, bytes);
            const double factor = (KINDS[k].kind == COMM_ALL_REDUCE ? 2.0 : 1.0) * (n - 1) / n;
            if (b.all.rank == 0)
                printf("%-16s %12lld %12.1f %10.2f %10.2f\n", KINDS[k].name, (long long)bytes, s * 1e6,
                       (double)bytes * 1e-9 / s * factor, (double)bytes * 1e-9 / roof);
        }
    free(b.in), free(b.out);
}

int main(int argc, char **argv) {
    if (!comm_mpi_present()) {
        const int ranks = argc > 1 ? atoi(argv[1]) : 2;
        if (ranks < 1) return fputs("usage: bench_comm [RANKS]\n", stderr), 2;
        comm_threads(ranks, NULL, bench, NULL);
        return 0;
    }
    Comm *comm = comm_mpi(NULL);
    bench(NULL, comm);
    comm_free(comm);
    return 0;
}
