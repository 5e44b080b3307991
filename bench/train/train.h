/* Where the time of a training step goes. Builds a run on random tokens and takes steps: first as fast as
 * they go, then with the time of every op. What no op accounts for is called "other" on the CPU (tape, loop),
 * and on a GPU "idle": nothing ran there. Families and that rest add up to the step; on a GPU, to the step as
 * it is while ops are timed, and what timing adds to a step is stated. The GEMMs are also
 * measured alone: on the CPU after each step, so that both see the same machine, on a GPU after all steps. */
#ifndef ISOTRON_BENCH_TRAIN_H
#define ISOTRON_BENCH_TRAIN_H

#include "config/config.h"

struct json_t; /* jansson.h */

typedef struct BenchTrain {
    int64_t steps, warmup; /* at most so many; at least 1 before them */
    double seconds;        /* of a GPU's steps are enough, but 3 are taken; 0: all steps */
    int64_t profiled;      /* steps with the time of every op on a GPU; on the CPU all are */
    bool alone;            /* measure the GEMMs alone, and roofs */
    double peak_tflops;    /* of the device for MFU; not given: known by its name, or there is no MFU */
    const char *json;      /* file that gets the results; NULL: none */
} BenchTrain;

/* Prints the results. One rank. *result (may be NULL): what --json gets, if there is no error. */
Err bench_train(const Config *, const Derived *, const BenchTrain *, struct json_t **result);

#endif
