// Collectives between 2 and 4 ranks that are threads: bench_comm [--benchmark_filter=REGEX] [--benchmark_out=FILE.json]
// GB/s is algbw, as in nccl-tests.
#include "bench/comm/rows.h"
#include "bench/google_benchmark.h"

static void run(benchmark::State &state, CommRow row) {
    const auto next = [](void *arg) { return static_cast<benchmark::State *>(arg)->KeepRunning(); };
    comm_row_run(&row, static_cast<int64_t>(state.max_iterations), next, &state);
    const double gbytes = 1e-9 * static_cast<double>(row.bytes) * static_cast<double>(state.iterations());
    state.counters["GB/s"] = benchmark::Counter(gbytes, benchmark::Counter::kIsRate);
}

int main(int argc, char **argv) {
    CommRow rows[COMM_ROWS];
    const int n = comm_rows(rows);
    for (int i = 0; i < n; i++)
        benchmark::RegisterBenchmark(rows[i].name, run, rows[i])
            ->UseRealTime()
            ->Unit(benchmark::kMicrosecond);
    return run_registered(argc, argv);
}
