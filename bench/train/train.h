/* Breaks down the time of a training step, on one rank or several. Builds a run on random tokens and runs steps, first
 * at full speed, then with the time of every op. The time of a step is that of the slowest rank; times of ops are
 * means over the ranks. The time in which computation waits for communication is also such a mean. The bubble is the
 * part of this time that the pipeline's schedule implies if all passes take equal times.
 *
 * The time outside ops is called "other" on the CPU (tape, loop) and "idle" on a GPU. This time and the families'
 * times add up to the step's time, on a GPU with the overhead of timing, which is reported. The GEMMs are also
 * measured alone. On the CPU this happens after each step, so that both measurements see the same machine load; on a
 * GPU it happens after all steps. */
#pragma once

#include "bench/guard.h"
#include "config/config.h"

struct json_t; /* jansson.h */

typedef struct BenchTrain {
    int64_t steps, warmup; /* `steps` is a maximum; warmup is at least 1 */
    double seconds;        /* time limit for steps on a GPU, of which at least 3 run; 0: no limit */
    int64_t profiled;      /* steps with the time of every op on a GPU; on the CPU all steps have it */
    bool alone;            /* measure the GEMMs alone, and roofs; not on a CPU with several ranks */
    double
        peak_tflops;  /* of a device, for MFU; not given: that of a known device; otherwise there is no MFU */
    const char *json; /* file for the results; NULL: none */
} BenchTrain;

/* Prints the results. Runs all ranks of this process; each process of a run calls it. The guard may be NULL and is
 * called on rank 0. In rank 0's process, *result receives the content of the --json file unless there is an error;
 * `result` may be NULL. */
Err bench_train(const Config *, const BenchTrain *, const BenchGuard *, struct json_t **result);
