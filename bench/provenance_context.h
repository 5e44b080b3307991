/* The provenance of a result in the context of Google Benchmark's report. */
#ifndef ISOTRON_BENCH_PROVENANCE_CONTEXT_H
#define ISOTRON_BENCH_PROVENANCE_CONTEXT_H

#include <benchmark/benchmark.h>

#include "train/provenance.h"

inline void add_provenance() {
    const Provenance facts = provenance_read();
    for (int i = 0; i < FACTS; i++) benchmark::AddCustomContext(PROVENANCE_NAMES[i], facts.text[i]);
}

#endif
