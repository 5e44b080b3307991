/* The measured steps (step.c) and what is said about them (report.c). */
#ifndef ISOTRON_BENCH_STEP_H
#define ISOTRON_BENCH_STEP_H

#include "bench/train/gemms.h"
#include "bench/train/train.h"
#include "train/trainer.h"

typedef struct Step {
    int64_t wall_ns;
    int64_t blas_ns; /* of a replay of its GEMMs; CPU */
    int64_t op_ns[OP_KERNELS];
} Step;

/* Times of the ops of one step, in the order of the calls. A call's time goes to the profile that is attached
 * when it runs: each call on a tape ends one, so that GEMMs of one op can be told apart. */
typedef struct Recorder {
    Device *device;
    StepGemms *gemms;
    bool counting; /* what a step consists of, else times */
    int64_t calls, at;
    OpProfile (*profile)[OP_KERNELS]; /* [calls + 1] */
    int *gemm;                        /* [calls] index in gemms; -1: none */
} Recorder;

typedef struct Steps {
    const BenchTrain *options;
    Config config;
    const Derived *derived;
    Trainer *run;
    Device *device; /* the run's */
    bool gpu;
    DType type;     /* that activations are stored in */
    char name[200]; /* of the device */
    int threads;
    Batch *batches;
    int64_t microbatches;
    MemoryPlan plan;
    double before, peak; /* bytes of memory: taken before the run, and after its steps with the run */
    double init_seconds, loss;
    double *wall; /* [n_plain] ns, without the times of ops; a GPU's */
    int64_t n_plain;
    double back_to_back;  /* ns of a step without waiting between them; a GPU's */
    double graph_replays; /* in each of these steps */
    Step *profiled;       /* [n_profiled] */
    int64_t n_profiled;
    int64_t op_calls[OP_KERNELS]; /* of a step */
    Recorder recorder;
    StepGemms gemms;
    double roof_gemm, roof_copy; /* GFLOP/s, GB/s; 0: not measured. A GPU's */
} Steps;

/* *result: as of bench_train. */
Err report_steps(Steps *, struct json_t **result);

#endif
