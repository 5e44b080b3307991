/* The last step of programs that use Google Benchmark. */
#ifndef ISOTRON_BENCH_GOOGLE_BENCHMARK_H
#define ISOTRON_BENCH_GOOGLE_BENCHMARK_H

#include <benchmark/benchmark.h>

#include "run/provenance.h"

/* Runs the registered benchmarks, with the provenance of the result in the report. */
inline int run_registered(int argc, char **argv) {
    const Provenance facts = provenance_read();
    for (int i = 0; i < FACTS; i++) benchmark::AddCustomContext(PROVENANCE_NAMES[i], facts.text[i]);
    benchmark::Initialize(&argc, argv);
    if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
    benchmark::RunSpecifiedBenchmarks();
    benchmark::Shutdown();
    return 0;
}

#endif
