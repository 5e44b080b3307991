/* Breaks down the time that a training step takes on one or more ranks. Trains on random tokens, first at full speed,
 * then with timing of every op. A step's time is the slowest rank's time. Op times, and the time that computation waits
 * for communication, are means over the ranks. The bubble is the part of the waiting time that the pipeline's schedule
 * implies if all passes have equal durations.
 *
 * The time outside ops is called "other" on the CPU (tape, loop) and "idle" on a GPU. The times of the op families and
 * the time outside ops add up to the step's time. On a GPU, the step's time includes the overhead of timing, which the
 * report states. The GEMMs are also measured alone: on the CPU after each step, so that both measurements have the same
 * machine load, and on a GPU after all steps. */
#pragma once

#include "bench/guard.h"
#include "config/config.h"

struct json_t; /* defined in jansson.h */

typedef struct BenchTrain {
    int64_t steps, warmup; /* `steps` is a maximum; `warmup` is at least 1 */
    double seconds;        /* time limit for the steps on a GPU, after at least 3 steps; 0 means no limit */
    /* number of steps with op timing on a GPU; on the CPU, ops are timed in all steps */
    int64_t profiled;
    /* if true, also measures the roofline limits, and the GEMMs alone; impossible on a CPU with several
     * ranks */
    bool alone;
    /* the device's peak in TFLOP/s, for MFU; if not set, the peak of a known device. MFU is omitted if no peak
     * is known. */
    double peak_tflops;
    const char *json; /* file for the results, or NULL */
} BenchTrain;

/* Prints the results. Runs all ranks of this process. Every process of a run must call this function. The guard is
 * called on rank 0, and may be NULL. In rank 0's process, *result receives the contents of the --json file unless there
 * is an error. The result pointer may be NULL. */
Err bench_train(const Config *, const BenchTrain *, const BenchGuard *, struct json_t **result);
