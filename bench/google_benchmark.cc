// Ops on the host and collectives between ranks that run as threads, measured by Google Benchmark: bench_host
// [--benchmark_filter=REGEX] [--benchmark_out=FILE.json]. An op is a row of kernels/cases.def. The operands may stay in a cache between runs. The GB/s of a collective are algbw, as in nccl-tests.
#include <benchmark/benchmark.h>

#include "bench/comm/rows.h"
#include "bench/ops/cases.h"
#include "run/provenance.h"

static void run_op(benchmark::State &state, int number) {
    BenchOp *op = bench_op_open(number);
    const double flops = bench_op_flops(op), bytes = bench_op_bytes(op);
    bench_op_run(op); // first touch
    for (auto _ : state) bench_op_run(op);
    const double done = (flops > 0 ? flops : bytes) * 1e-9 * static_cast<double>(state.iterations());
    state.counters[flops > 0 ? "GFLOP/s" : "GB/s"] = benchmark::Counter(done, benchmark::Counter::kIsRate);
    bench_op_close(op);
}

static void run_collective(benchmark::State &state, CommRow row) {
    const auto next = [](void *arg) { return static_cast<benchmark::State *>(arg)->KeepRunning(); };
    comm_row_run(&row, static_cast<int64_t>(state.max_iterations), next, &state);
    const double gbytes = 1e-9 * static_cast<double>(row.bytes) * static_cast<double>(state.iterations());
    state.counters["GB/s"] = benchmark::Counter(gbytes, benchmark::Counter::kIsRate);
}

int main(int argc, char **argv) {
    CommRow rows[COMM_ROWS];
    const int n = comm_rows(rows);
    const auto add = [](const char *name, auto run, auto row) {
        benchmark::RegisterBenchmark(name, run, row)->UseRealTime()->Unit(benchmark::kMicrosecond);
    };
    for (int i = 0; i < bench_case_count(); i++) add(bench_case_name(i), run_op, i);
    for (int i = 0; i < n; i++) add(rows[i].name, run_collective, rows[i]);
    const Provenance facts = provenance_read();
    for (int i = 0; i < FACTS; i++) benchmark::AddCustomContext(PROVENANCE_NAMES[i], facts.text[i]);
    benchmark::Initialize(&argc, argv);
    if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
    benchmark::RunSpecifiedBenchmarks();
    benchmark::Shutdown();
    return 0;
}
