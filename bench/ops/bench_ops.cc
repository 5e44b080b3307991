// Each row of kernels/cases.def against the roof that limits it: bench_ops [--benchmark_filter=REGEX]
// [--benchmark_out=FILE.json] Operands that a cache holds can beat the roof of a copy through memory.
#include <string>

#include "bench/ops/cases.h"
#include "bench/google_benchmark.h"

static void run(benchmark::State &state, int number) {
    BenchOp *op = bench_op_open(number);
    const double flops = bench_op_flops(op), bytes = bench_op_bytes(op);
    bench_op_run(op); // first touch
    for (auto _ : state) bench_op_run(op);
    const double done = (flops > 0 ? flops : bytes) * 1e-9 * static_cast<double>(state.iterations());
    state.counters[flops > 0 ? "GFLOP/s" : "GB/s"] = benchmark::Counter(done, benchmark::Counter::kIsRate);
    bench_op_close(op);
}

int main(int argc, char **argv) {
    const BenchRoofs roofs = bench_roofs();
    benchmark::AddCustomContext("sgemm_gflops", std::to_string(roofs.gflops));
    benchmark::AddCustomContext("copy_gbytes", std::to_string(roofs.gbytes));
    for (int i = 0; i < bench_case_count(); i++)
        benchmark::RegisterBenchmark(bench_case_name(i), run, i)
            ->UseRealTime()
            ->Unit(benchmark::kMicrosecond);
    return run_registered(argc, argv);
}
