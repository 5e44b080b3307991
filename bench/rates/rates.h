/* Measures the rates (measure/rates.h) and links (measure/links.h) of a device. Rates are those of every row of
 * kernels/cases.def in each of its sizes, and of GEMMs and attention over a grid of sizes. The rooflines and the host's
 * time for starting an op are also measured. Links are copies between host memory and the device and, if there are
 * several ranks, collectives. A separate process measures ops. If it fails, the call is skipped and reported, and a new
 * process continues. The file is written every ten seconds. */
#pragma once

#include "base/err.h"
#include "config/config.h"
#include "tensor/device.h"

typedef struct BenchRates {
    const Config
        *config; /* the device and, if it has several ranks, the transport of collectives to measure */
    DeviceKind device;
    int64_t threads;    /* number of CPU threads, or 0 for one per core */
    TextList types;     /* such as "bf16"; if empty, bf16 and fp32 */
    const char *filter; /* extended regular expression that selects ops by name; NULL for all ops */
    bool
        deterministic; /* whether ops whose time depends on --deterministic-mode are also measured in this mode */
    GemmTuning tuning;
    double most;      /* the measurement ends after this many seconds; 0 means no limit */
    double seconds;   /* target for the total time; each call is measured at least 3 times */
    const char *json; /* file for the rates, or NULL */
} BenchRates;

Err bench_rates(const BenchRates *);
