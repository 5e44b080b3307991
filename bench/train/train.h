/* Breaks down the time of a training step, on one rank or several. Builds a run on random tokens and takes steps,
 * first at full speed, then with the time of every op. The time of a step is that of the slowest rank; times of
 * ops are means over the ranks, and so is the time in which computation waits for communication. The bubble is
 * the part of this time that the pipeline's schedule implies if all passes take equal times.
 *
 * The time outside of ops is called "other" on the CPU (tape, loop) and "idle" on a GPU. It and the families add up
 * to the step; on a GPU to the step with timing, whose overhead is reported. The GEMMs are also measured alone: on
 * the CPU after each step, so that both see the same machine load, on a GPU after all steps. */
#pragma once

#include "bench/guard.h"
#include "config/config.h"

struct json_t; /* jansson.h */

typedef struct BenchTrain {
    int64_t steps, warmup; /* at most `steps`, after at least 1 step of warm-up */
    double seconds;        /* limit for a GPU's steps, of which at least 3 are taken; 0: all steps */
    int64_t profiled;      /* steps with the time of every op on a GPU; on the CPU all steps have it */
    bool alone;            /* measure the GEMMs alone, and roofs; not on a CPU with several ranks */
    double
        peak_tflops;  /* of a device, for MFU; not given: that of a known device; otherwise there is no MFU */
    const char *json; /* file for the results; NULL: none */
} BenchTrain;

/* Prints the results. Runs all ranks of this process; each process of a run calls it. The guard may be NULL and is
 * called on rank 0. *result (may be NULL): the content for --json, if there is no error, in the process of rank 0. */
Err bench_train(const Config *, const BenchTrain *, const BenchGuard *, struct json_t **result);
